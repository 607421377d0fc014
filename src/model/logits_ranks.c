/*
 * logits_ranks.c - see logits_ranks.h. Invariant: the best tokens are as if one process had found
 * them in the whole row: the higher logit first, of equals the lower id.
 */
#include "model/logits_ranks.h"

#include <math.h>

#include "base/ranks.h"
#include "model/load_ranks.h"

#define NOT_FINITE (-1) /* in the place of pi_best.n */

bool pi_logits_stay(const struct pi_pass *pass)
{
    return (pi_ranks_by_rows() || pi_ranks_by_layers()) && !pass->collects;
}

/* Units of rows that stay together. */
static int32_t unit_of(const struct pi_pass *pass)
{
    return pi_ranks_row_unit(pass->model->hp.n_vocab);
}

static int32_t first_of(const struct pi_pass *pass)
{
    int32_t n = pass->model->hp.n_vocab, unit = unit_of(pass);
    return pi_ranks_by_rows() ? unit * pi_ranks_from(n / unit, pi_ranks()->rank) : 0;
}

int32_t pi_logits_own(const struct pi_pass *pass)
{
    int32_t n = pass->model->hp.n_vocab, unit = unit_of(pass);
    if (pi_ranks_by_rows())
        return unit * pi_ranks_own(n / unit);
    return pi_shape_ends(&pass->model->hp) ? n : 0;
}

/* ---- the best of a part ---- */

static bool is_better(const struct pi_best *b, int32_t i, int32_t than)
{
    return b->logit[i] > b->logit[than] ||
           (b->logit[i] == b->logit[than] && b->id[i] < b->id[than]);
}

static void swap(struct pi_best *b, int32_t i, int32_t j)
{
    int32_t id = b->id[i];
    float logit = b->logit[i];
    b->id[i] = b->id[j];
    b->logit[i] = b->logit[j];
    b->id[j] = id;
    b->logit[j] = logit;
}

/* A heap of n whose root is the worst. */
static void sift(struct pi_best *b, int32_t i, int32_t n)
{
    for (int32_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        child += child + 1 < n && is_better(b, child, child + 1);
        if (!is_better(b, i, child))
            return;
        swap(b, i, child);
        i = child;
    }
}

/* Of n logits, which are tokens first, first + 1, ... */
static void find_own(const float *x, int32_t n, int32_t first, struct pi_best *out)
{
    float sum = 0.0f;
    for (int32_t i = 0; i < n; i++)
        sum += x[i] - x[i]; /* 0 of finite numbers alone */
    out->n = sum == 0.0f ? (int32_t)pi_min(n, PI_BEST) : NOT_FINITE;
    for (int32_t i = 0; i < out->n; i++) {
        out->id[i] = first + i;
        out->logit[i] = x[i];
    }
    for (int32_t i = out->n / 2 - 1; i >= 0; i--)
        sift(out, i, out->n);
    for (int32_t i = out->n; i < n && out->n > 0; i++) {
        if (!(x[i] > out->logit[0]))
            continue;
        out->id[0] = first + i;
        out->logit[0] = x[i];
        sift(out, 0, out->n);
    }
    for (int32_t i = out->n - 1; i > 0; i--) { /* the worst goes to the end */
        swap(out, 0, i);
        sift(out, 0, i);
    }
}

/* ---- the best of all ---- */

/* part [n_rank] of one row, `stride` bytes apart. */
static void merge(const uint8_t *part, size_t stride, int32_t n_rank, struct pi_best *out)
{
    int32_t at[PI_RANKS_MOST] = {0};
    out->n = 0;
    for (int32_t r = 0; r < n_rank; r++)
        if (((const struct pi_best *)(const void *)(part + (size_t)r * stride))->n == NOT_FINITE)
            return;
    while (out->n < PI_BEST) {
        const struct pi_best *best = NULL;
        int32_t from = 0;
        for (int32_t r = 0; r < n_rank; r++) { /* of equals the lower rank has the lower id */
            const struct pi_best *b = (const void *)(part + (size_t)r * stride);
            if (at[r] < b->n && (best == NULL || b->logit[at[r]] > best->logit[at[from]])) {
                best = b;
                from = r;
            }
        }
        if (best == NULL)
            return;
        out->id[out->n] = best->id[at[from]];
        out->logit[out->n++] = best->logit[at[from]++];
    }
}

void pi_logits_find_best(const struct pi_pass *pass, const float *rows, int32_t n,
                         struct pi_best *const *out)
{
    size_t sizes[PI_RANKS_MOST], size = (size_t)n * sizeof(struct pi_best);
    int32_t own = pi_logits_own(pass);
    struct pi_best *mine = pi_ranks_write(size);
    for (int32_t i = 0; i < n && own > 0; i++)
        find_own(rows + (size_t)i * (size_t)own, own, first_of(pass), &mine[i]);
    if (pi_ranks_by_rows()) {
        for (int32_t r = 0; r < pi_ranks()->n_rank; r++)
            sizes[r] = size;
        const uint8_t *all = pi_ranks_share(sizes);
        for (int32_t i = 0; i < n; i++)
            merge(all + (size_t)i * sizeof(*mine), size, pi_ranks()->n_rank, out[i]);
        return;
    }
    pi_ranks_tell_last(mine, size);
    for (int32_t i = 0; i < n; i++)
        merge((const uint8_t *)&mine[i], 0, 1, out[i]);
}

void pi_logits_gather(const struct pi_pass *pass, const float *own, float *out)
{
    int32_t n = pass->model->hp.n_vocab, unit = unit_of(pass);
    memcpy(out, own, (size_t)pi_logits_own(pass) * sizeof(*out));
    if (pi_ranks_by_rows())
        pi_ranks_gather(out, 1, n / unit, (size_t)unit * sizeof(*out));
    else
        pi_ranks_tell_last(out, (size_t)n * sizeof(*out));
}
