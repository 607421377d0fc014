/*
 * product.c - products of activations with weights, on the processor. Invariant: every work item
 * writes its own range and sums in a fixed order. So results depend neither on threads nor on other
 * rows.
 */
#include "device/cpu/cpu.h"

#define MIN_CHUNKS_PER_THREAD 8 /* so that a slow thread holds the others up by little */

/* Activations from row `row` on, n_tok of them. */
static struct pi_act act_of(const struct cpu_stream *s, struct pi_at x, const struct pi_int8 *act,
                            size_t row, int32_t n_tok, int32_t n_col)
{
    size_t block = row * (size_t)pi_ceil_div(n_col, PI_ACT_BLOCK);
    struct pi_act out = {.n_tok = n_tok, .n_col = n_col, .far = s->cpu->matmul.far};
    if (pi_at_some(x))
        out.x = pi_cpu_floats(x) + row * (size_t)n_col;
    if (pi_at_some(act->q)) {
        out.q = (const int8_t *)pi_cpu_ptr(act->q) + block * PI_ACT_BLOCK;
        out.scale = pi_cpu_floats(act->scale) + block;
        out.sum16 = (const int16_t *)pi_cpu_ptr(act->sum16) + block * 2;
    }
    return out;
}

/* Groups [first, last) of a matrix. */
static void multiply(const struct cpu_stream *s, const struct pi_matrix *w,
                     const struct pi_act *act, int64_t first, int64_t last, float *out,
                     size_t stride, int32_t thread)
{
    s->cpu->matmul.mul[pi_matmul_index(w->type)](w, act, (int32_t)first,
                                                 (int32_t)pi_min(last, w->n_group), out, stride,
                                                 cpu_scratch(s, thread));
}

/* ---- up to three matrices that share their input, done as one loop ---- */

struct product {
    const struct cpu_stream *s;
    struct pi_act act;
    struct pi_matrix w[3];
    float *out[3]; /* [n_tok][n_row] */
    int32_t chunk; /* groups of one work item */
};

static void product_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct product *p = ctx;
    for (int64_t item = begin, n; item < end; item += n) {
        int64_t rest = item;
        int32_t i = 0;
        for (; rest >= pi_ceil_div(p->w[i].n_group, p->chunk); i++)
            rest -= pi_ceil_div(p->w[i].n_group, p->chunk);
        const struct pi_matrix *w = &p->w[i];
        n = pi_min(end - item, pi_ceil_div(w->n_group, p->chunk) - rest); /* of this matrix */
        multiply(p->s, w, &p->act, rest * p->chunk, (rest + n) * p->chunk, p->out[i],
                 (size_t)w->n_row, thread);
    }
}

void cpu_product(struct pi_stream *stream, const struct pi_product *job)
{
    const struct cpu_stream *s = cpu_stream_of(stream);
    struct product p = {.s = s};
    int64_t n_group = 0, n_item = 0;
    p.act = act_of(s, job->x, &job->act, 0, job->n_tok, job->w[0]->n_col);
    for (int32_t i = 0; i < job->n; i++) {
        p.w[i] = pi_cpu_matrix(job->w[i]);
        p.out[i] = pi_cpu_floats(job->out[i]);
        n_group += p.w[i].n_group;
    }
    int32_t n_thread = cpu_threads_for(s, n_group * PI_GROUP * (int64_t)p.w[0].n_col * job->n_tok);
    p.chunk = (int32_t)(n_thread == 1 ? n_group
                                      : pi_max(1, n_group / (n_thread * MIN_CHUNKS_PER_THREAD)));
    for (int32_t i = 0; i < job->n; i++)
        n_item += pi_ceil_div(p.w[i].n_group, p.chunk);
    cpu_items(s, n_thread, n_item, product_items, &p);
}

/* ---- a matrix for each head: one loop over all heads and the groups of their matrices ---- */

struct heads {
    const struct cpu_stream *s;
    const struct pi_product_heads *job;
    struct pi_matrix w; /* of head 0 */
    int32_t chunk;      /* groups of one work item */
    int32_t n_chunk;    /* work items of a head */
};

static void heads_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct heads *p = ctx;
    const struct pi_product_heads *job = p->job;
    for (int64_t item = begin; item < end; item++) {
        int32_t head = (int32_t)(item / p->n_chunk);
        int64_t part = item % p->n_chunk;
        struct pi_matrix w = pi_matrix_slab(&p->w, head);
        struct pi_act act =
            act_of(p->s, job->x, &job->act, (size_t)head * (size_t)job->n_tok, job->n_tok, w.n_col);
        multiply(p->s, &w, &act, part * p->chunk, (part + 1) * p->chunk,
                 pi_cpu_floats(job->out) + (size_t)head * job->step, job->stride, thread);
    }
}

void cpu_product_heads(struct pi_stream *stream, const struct pi_product_heads *job)
{
    const struct cpu_stream *s = cpu_stream_of(stream);
    struct heads p = {.s = s, .job = job, .w = pi_cpu_matrix(job->w)};
    int32_t n_group = job->w->n_group;
    int64_t work = (int64_t)job->n_head * n_group * PI_GROUP * job->w->n_col * job->n_tok;
    int32_t n_thread = cpu_threads_for(s, work);
    int64_t n_item = n_thread == 1 ? 1 : (int64_t)n_thread * MIN_CHUNKS_PER_THREAD;
    p.chunk = (int32_t)pi_ceil_div(n_group, pi_ceil_div(n_item, job->n_head));
    p.n_chunk = (int32_t)pi_ceil_div(n_group, p.chunk);
    cpu_items(s, n_thread, (int64_t)p.n_chunk * job->n_head, heads_items, &p);
}

/* ---- one or two matrices of every expert that has rows, as one loop ---- */

struct experts {
    const struct cpu_stream *s;
    const struct pi_product_experts *job;
    struct pi_matrix w[2]; /* of expert 0 */
    const int32_t *busy, *first;
    int32_t chunk;   /* groups of one work item */
    int32_t n_chunk; /* work items of a matrix; all have the same shape */
};

static void experts_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct experts *p = ctx;
    const struct pi_product_experts *job = p->job;
    for (int64_t item = begin; item < end; item++) {
        int32_t expert = p->busy[item / (job->n * p->n_chunk)];
        int32_t i = (int32_t)(item / p->n_chunk % job->n);
        int64_t part = item % p->n_chunk;
        struct pi_matrix w = pi_matrix_slab(&p->w[i], expert);
        size_t row = (size_t)p->first[expert];
        struct pi_act act =
            act_of(p->s, job->x, &job->act, row, p->first[expert + 1] - p->first[expert], w.n_col);
        multiply(p->s, &w, &act, part * p->chunk, (part + 1) * p->chunk,
                 pi_cpu_floats(job->out[i]) + row * (size_t)w.n_row, (size_t)w.n_row, thread);
    }
}

void cpu_product_experts(struct pi_stream *stream, const struct pi_product_experts *job)
{
    const struct cpu_stream *s = cpu_stream_of(stream);
    struct experts p = {.s = s,
                        .job = job,
                        .busy = pi_cpu_ints(job->places.busy),
                        .first = pi_cpu_ints(job->places.first)};
    for (int32_t i = 0; i < job->n; i++)
        p.w[i] = pi_cpu_matrix(job->w[i]);
    int32_t n_busy = *pi_cpu_ints(job->places.n_busy);
    int64_t n_group = p.w[0].n_group, n_all = n_group * job->n * n_busy;
    int64_t work = n_group * PI_GROUP * p.w[0].n_col * job->n_row * job->n;
    int32_t n_thread = cpu_threads_for(s, work);
    int64_t chunk = n_thread == 1 ? n_group : n_all / (n_thread * MIN_CHUNKS_PER_THREAD);
    p.chunk = (int32_t)pi_min(pi_max(1, chunk), n_group);
    p.n_chunk = (int32_t)pi_ceil_div(n_group, p.chunk);
    cpu_items(s, n_thread, (int64_t)p.n_chunk * job->n * n_busy, experts_items, &p);
}
