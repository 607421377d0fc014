/*
 * product.c - what blocks compute with: loops over the rows of a pass, and products of activations
 * with weights. It knows no block. Invariant: every work item writes its own range and sums in a
 * fixed order, so that results depend neither on threads nor on the tokens beside.
 */
#include "model/pass.h"

/* ---- how many threads ---- */

/* Multiplications below which waking and awaiting other threads costs more than they save. */
#define MIN_WORK 500000

int32_t pi_pass_threads_for(const struct pi_pass *pass, int64_t work)
{
    return work < MIN_WORK ? 1 : (int32_t)pi_min(pass->n_thread, pi_thread_count());
}

void pi_pass_rows(struct pi_pass *pass, pi_job_fn *fn, int64_t n)
{
    const int64_t work_per_float = 40; /* norms, exponentials and rounding take many operations */
    pi_parallel_ranges(pi_pass_threads_for(pass, pass->n_tok * n * work_per_float), pass->n_tok, fn,
                       pass);
}

/* ---- products with weights ---- */

/* Up to three matrices that share their input, done as one loop. */
struct product {
    struct pi_pass *pass;
    struct pi_act act;
    const struct pi_matrix *w[3];
    float *out[3]; /* [n_tok][n_row] */
    int32_t n;
    int32_t chunk; /* groups of one work item */
};

#define MIN_CHUNKS_PER_THREAD 8 /* so that a slow thread holds the others up by little */

static void product_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct product *p = ctx;
    void *scratch = p->pass->scratch + (size_t)thread * p->pass->scratch_size;
    for (int64_t item = begin, n; item < end; item += n) {
        int64_t rest = item;
        int32_t i = 0;
        for (; rest >= pi_ceil_div(p->w[i]->n_group, p->chunk); i++)
            rest -= pi_ceil_div(p->w[i]->n_group, p->chunk);
        const struct pi_matrix *w = p->w[i];
        n = pi_min(end - item, pi_ceil_div(w->n_group, p->chunk) - rest); /* of this matrix */
        int32_t first = (int32_t)rest * p->chunk;
        int32_t last = (int32_t)pi_min((rest + n) * p->chunk, w->n_group);
        p->pass->cpu->matmul.mul[pi_matmul_index(w->type)](w, &p->act, first, last, p->out[i],
                                                           (size_t)w->n_row, scratch);
    }
}

void pi_pass_product(struct pi_pass *pass, const float *x, int32_t n_tok,
                     const struct pi_matrix *const *w, float *const *out, int32_t n)
{
    struct product p = {.pass = pass, .n = n};
    int64_t n_group = 0, n_item = 0;
    p.act = (struct pi_act){.n_tok = n_tok,
                            .n_col = w[0]->n_col,
                            .x = x,
                            .q = pass->act_q,
                            .scale = pass->act_scale,
                            .sum16 = pass->act_sum16,
                            .far = pass->cpu->matmul.far};
    for (int32_t i = 0; i < n; i++) {
        p.w[i] = w[i];
        p.out[i] = out[i];
        n_group += w[i]->n_group;
    }
    int32_t n_thread = pi_pass_threads_for(pass, n_group * PI_GROUP * w[0]->n_col * n_tok);
    p.chunk = (int32_t)(n_thread == 1 ? n_group
                                      : pi_max(1, n_group / (n_thread * MIN_CHUNKS_PER_THREAD)));
    for (int32_t i = 0; i < n; i++)
        n_item += pi_ceil_div(w[i]->n_group, p.chunk);
    pi_parallel_items(n_thread, n_item, product_items, &p);
}

void pi_pass_quantize(struct pi_pass *pass, const float *row, int64_t t, int32_t n)
{
    size_t n_block = (size_t)pi_ceil_div(n, PI_ACT_BLOCK), at = (size_t)t * n_block;
    pass->cpu->vec.quantize(row, n, pass->act_q + at * PI_ACT_BLOCK, pass->act_scale + at,
                            pass->act_sum16 + at * 2);
}

bool pi_matrix_reads_int8(const struct pi_matrix *w)
{
    return !pi_matmul_is_float(w->type);
}

/* ---- memory ---- */

void *pi_pass_alloc(int32_t n_row, size_t row_len, size_t size, bool *ok)
{
    size_t len;
    void *p = pi_mul_size((size_t)n_row, row_len, &len) ? pi_mem_alloc_n(PI_MEM_SCRATCH, len, size)
                                                        : NULL;
    *ok = *ok && p != NULL;
    return p;
}
