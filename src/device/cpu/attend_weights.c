/*
 * attend_weights.c - the weights of a call of attention: rows of them during the walk over the
 * lane's pages, and their last step. It knows no page and no kernel of attention.
 */
#include <math.h>

#include "device/cpu/attend.h"

/*
 * The kernels compute p[s] = E(x[s] - m) with m the row's maximum after the page of s. Where m
 * replaces an earlier m', they compute c = E(m' - m). A row of weights keeps these p, and every c
 * that is not 1. When the last page is done, with c_1 .. c_n the factors since the page of s, and l
 * the row's sum,
 *
 *   weight[s] = p[s] * (((1 / l) * c_n) * ... * c_1)
 *
 * each product rounded. So no exponential is computed twice and K and V are read once. The second
 * pass over the row is the only extra cost of softmax(x) over the output alone. Where a row's list
 * is full because m changes often, the stored p are multiplied by the factors so far, and the list
 * begins anew. That, too, depends on the row's own logits alone. Weights in parts are p and the
 * factors of every page, 1 or not, and are multiplied where the row is read anyway.
 */

static float *weights_of(const struct attend *a, int32_t r)
{
    return a->job->tap->weight + (size_t)r * a->job->tap->row_stride;
}

/* Multiplies the row's weights before a slot by a factor and those between them and it. */
static void weights_scale(const struct attend *a, int32_t r, int32_t end, float factor)
{
    const struct stretches *s = &a->stretch[r];
    for (int32_t i = s->n - 1; i >= 0; i--) {
        a->cpu->scale(weights_of(a, r) + s->slot[i], end - s->slot[i], factor);
        end = s->slot[i];
        factor *= s->rescale[i];
    }
}

/* Row r's maximum moved in the page that begins at a slot. */
static void stretch_begin(const struct attend *a, int32_t r, int32_t slot, float rescale)
{
    struct stretches *s = &a->stretch[r];
    if (slot == 0)
        return;
    if (s->n == MAX_STRETCH) {
        weights_scale(a, r, slot, rescale);
        s->n = 1;
        return;
    }
    s->slot[s->n] = slot;
    s->rescale[s->n++] = rescale;
}

/* After rows r0.. have seen the page that begins at a slot. */
void cpu_weights_note(const struct attend *a, int32_t r0, int32_t n_row, int32_t slot)
{
    for (int32_t i = 0; i < n_row; i++)
        if (a->rescale[i] != 1.0f && a->max[r0 + i] > -INFINITY)
            stretch_begin(a, r0 + i, slot, a->rescale[i]);
}

/* Rows r0.. see nothing of the n entries from a slot on. */
void cpu_weights_clear(const struct attend *a, int32_t r0, int32_t n_row, int32_t slot, int32_t n)
{
    for (int32_t r = r0; n > 0 && r < r0 + n_row; r++)
        memset(weights_of(a, r) + slot, 0, (size_t)n * sizeof(float));
}

/* The next page, which ends before a slot, is a part. Its factor for earlier parts is written to
   the place of the previous part's factors. */
void cpu_part_begin(struct attend *a, int32_t end)
{
    struct kv_weight_parts *parts = a->parts;
    a->moved = parts->n == 0 ? NULL : parts->factor + (size_t)(parts->n - 1) * (size_t)a->n_row;
    parts->end[parts->n++] = end;
}

/* Rows r0.. see nothing of the page. */
void cpu_part_pass(const struct attend *a, int32_t r0, int32_t n_row)
{
    for (int32_t r = r0; a->moved != NULL && r < r0 + n_row; r++)
        a->moved[r] = 1.0f;
}

/* From the last part to the first. */
static void parts_finish(const struct attend *a)
{
    const struct kv_weight_parts *parts = a->parts;
    for (int32_t r = 0; parts->n > 0 && r < a->n_row; r++) {
        float *at = parts->factor + (size_t)(parts->n - 1) * (size_t)a->n_row + r;
        float factor = cpu_inverse_sum(a, r);
        *at = factor;
        for (int32_t j = parts->n - 1; j > 0; j--) {
            at -= a->n_row;
            factor *= *at;
            *at = factor;
        }
    }
}

/* The one part of weights that are finished. */
static void parts_whole(const struct attend *a)
{
    struct kv_weight_parts *parts = a->job->tap->parts;
    parts->n = a->len > 0;
    parts->end[0] = a->len;
    for (int32_t r = 0; r < a->n_row; r++)
        parts->factor[r] = 1.0f;
}

void cpu_weights_finish(const struct attend *a)
{
    int32_t len = a->len;
    for (int32_t r = 0; r < a->n_row; r++) {
        if (a->parts == NULL)
            weights_scale(a, r, len, cpu_inverse_sum(a, r));
        cpu_weights_clear(a, r, 1, len, (16 - len % 16) % 16);
    }
    if (a->parts != NULL)
        parts_finish(a);
    else if (a->job->tap->parts != NULL)
        parts_whole(a);
}

/* Parts are taken where every page of the lane has room for one. */
void cpu_parts_start(struct attend *a)
{
    const struct kv_attend_tap *tap = a->job->tap;
    if (!a->weights || tap->parts == NULL)
        return;
    tap->parts->n_row = a->n_row;
    tap->parts->n = 0;
    if (a->lane->n_live <= tap->parts->room)
        a->parts = tap->parts;
}

/* The weights of such a page, which the kernels left in x. */
void cpu_weights_copy(const struct attend *a, int32_t r0, int32_t n_row, int32_t slot, int32_t n)
{
    for (int32_t i = 0; i < n_row; i++)
        memcpy(weights_of(a, r0 + i) + slot, a->x + (size_t)i * PI_ATTEND_SLOTS,
               (size_t)n * sizeof(float));
}
