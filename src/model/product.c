/*
 * product.c - the computing calls of blocks: bodies over the rows of a pass, and products of
 * activations with weights, both on the pass's device. It knows no block.
 */
#include "base/ranks.h"
#include "model/load_ranks.h"
#include "model/pass.h"

void pi_pass_rows(const struct pi_pass *pass, enum pi_rows_body body, const void *args, int64_t n)
{
    const int64_t work_per_float = 40; /* norms, exponentials and rounding take many operations */
    pass->device->rows(pass->stream, body, args, pass->now.n_tok, n * work_per_float);
}

void pi_pass_product(const struct pi_pass *pass, struct pi_at x, int32_t n_tok,
                     const struct pi_weight *const *w, const struct pi_at *out, int32_t n)
{
    struct pi_product p = {.x = x, .act = pass->rows.act, .n_tok = n_tok, .n = n};
    for (int32_t i = 0; i < n; i++) {
        p.w[i] = w[i];
        p.out[i] = out[i];
    }
    pass->device->product(pass->stream, &p);
}

struct pi_int8 pi_pass_act(const struct pi_pass *pass, const struct pi_weight *w)
{
    const struct pi_int8 unread = {.q = {0}};
    return pi_weight_reads_int8(w) ? pass->rows.act : unread;
}

/* Ranks have processors alone (engine.c), whose memory is the host's. */
void pi_pass_gather(struct pi_at x, const struct pi_int8 *act, int32_t n_row, int32_t n_unit,
                    int32_t unit)
{
    if (pi_at_some(act->q))
        pi_ranks_gather_int8((int8_t *)act->q.at, (float *)act->scale.at, (int16_t *)act->sum16.at,
                             n_row, n_unit, unit / PI_ACT_BLOCK);
    else
        pi_ranks_gather((void *)x.at, n_row, n_unit, (size_t)unit * sizeof(float));
}

void pi_pass_gather_rows(struct pi_at out, int32_t n_row, int32_t n)
{
    int32_t unit = pi_ranks_row_unit(n);
    pi_ranks_gather((void *)out.at, n_row, n / unit, (size_t)unit * sizeof(float));
}

void pi_pass_gather_logits(const struct pi_pass *pass, struct pi_at out, int32_t n_row)
{
    int32_t n = pass->model->hp.n_vocab, unit = pi_ranks_row_unit(n);
    if (pass->collects)
        pi_ranks_collect((void *)out.at, n_row, n / unit, (size_t)unit * sizeof(float));
    else
        pi_pass_gather_rows(out, n_row, n);
}

struct pi_temperature pi_pass_temperature(const struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    return (struct pi_temperature){hp->temp_scale, hp->temp_len};
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

struct pi_at pi_pass_place(const struct pi_pass *pass, int32_t n_row, size_t row_len, size_t size,
                           bool *ok)
{
    size_t len;
    struct pi_at at = {0};
    if (pi_mul_size((size_t)n_row, row_len, &len) && pi_mul_size(len, size, &len))
        at = pass->device->alloc(pass->device, PI_MEM_SCRATCH, len);
    *ok = *ok && pi_at_some(at);
    return at;
}

struct pi_at pi_pass_take(const struct pi_pass *pass, struct pi_at *memory, size_t n)
{
    struct pi_at part = *memory;
    *memory = pi_at_item(*memory, (size_t)pass->plan.max_tok * n);
    return part;
}

float *pi_pass_look(const struct pi_pass *pass, struct pi_at rows, size_t n, enum pi_pass_room room)
{
    size_t size = (size_t)pass->now.n_tok * n * sizeof(float);
    return pass->device->download(pass->stream, rows, size, pass->rows.room[room]);
}
