/*
 * finite.c - logits that are no numbers, and the weight of the file that makes them so. It looks at
 * every row of logits that is read, and at the weights only where it found one.
 */
#include <math.h>

#include "base/mem.h"
#include "model/model.h"
#include "pith/inspect.h"
#include "tensor/dtype.h"
#include "tensor/finite.h"

#define PIECE_LEN 16384 /* weights that are decoded together: whole blocks of every type */

/* The first weight of a tensor that is not finite, and its value; -1: all are. */
static int64_t find_in(const struct pi_gguf_tensor *t, float *x, float *value)
{
    const struct pi_dtype_traits *type = pi_dtype_find(t->type);
    int64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    for (int64_t first = 0; type != NULL && first < n; first += PIECE_LEN) {
        int64_t n_piece = pi_min(PIECE_LEN, n - first);
        type->decode(t->data + pi_dtype_row_bytes(type, first), x, n_piece);
        int64_t at = pi_find_not_finite(x, n_piece);
        if (at < 0)
            continue;
        *value = x[at];
        return first + at;
    }
    return -1;
}

pith_status pi_model_not_finite(const struct pith_model *m, pith_error *err)
{
    float *x = pi_mem_alloc_n(PI_MEM_OTHER, PIECE_LEN, sizeof(*x)), value = 0;
    for (int64_t i = 0; x != NULL && i < m->gguf.n_tensor; i++) {
        const struct pi_gguf_tensor *t = &m->gguf.tensor[i];
        int64_t at = find_in(t, x, &value);
        if (at < 0)
            continue;
        pi_mem_free(x);
        return pi_fail(err, PITH_INTERNAL,
                       "the logits are not finite: weight %lld of tensor \"%.*s\" is %s; the file "
                       "is damaged",
                       (long long)at, (int)pi_min(t->name.len, 80), t->name.data,
                       isnan(value) ? "NaN" : "infinite");
    }
    pi_mem_free(x);
    return pi_fail(err, PITH_INTERNAL,
                   "the logits are not finite, though the weights are: an activation overflowed");
}

pith_status pith_logits_check(const pith_model *m, const float *logits, pith_error *err)
{
    if (m == NULL || logits == NULL)
        return pi_fail(err, PITH_INVALID, "pith_logits_check: model or logits is NULL");
    if (pi_max_magnitude(logits, m->hp.n_vocab) < PI_FINITE_END)
        return PITH_OK;
    return pi_model_not_finite(m, err);
}
