/*
 * projection.h - the bases that Loki scores keys in. For every layer and KV head they are the
 * eigenvectors of the covariance of its keys, the one of largest eigenvalue first. In memory,
 * checked, and as files (docs/projection.md). The reader is a pure function of (bytes, length).
 */
#ifndef PI_READ_PROJECTION_H
#define PI_READ_PROJECTION_H

#include "base/base.h"
#include "pith/calibrate.h"

struct pith_projection {
    int32_t n_layer;
    int32_t n_head; /* KV heads */
    int32_t dim;    /* of one head */
    pith_projection_keys keys;
    uint64_t fingerprint; /* of the model */
    int64_t n_token;      /* whose keys were taken */
    char *model;          /* owned; its name, "" where there is none */
    char *text;           /* owned; what the tokens were, "" where there is none */
    float *value;         /* [n_layer][n_head][dim] eigenvalues, descending */
    float *vector;        /* [n_layer][n_head][dim][dim] row i is the eigenvector of value i */
};

/* Limits of the reader: beyond any model, and so that products of all fit in int64_t. */
#define PROJECTION_MAX_LAYER 4096
#define PROJECTION_MAX_HEAD 4096
#define PROJECTION_MAX_DIM 8192
#define PROJECTION_MAX_TEXT 4096

/* The values and vectors of a lane. */
static inline float *projection_value(const struct pith_projection *p, int32_t layer, int32_t head)
{
    return p->value + ((size_t)layer * (size_t)p->n_head + (size_t)head) * (size_t)p->dim;
}
static inline float *projection_vector(const struct pith_projection *p, int32_t layer, int32_t head)
{
    size_t lane = (size_t)layer * (size_t)p->n_head + (size_t)head;
    return p->vector + lane * (size_t)p->dim * (size_t)p->dim;
}

/* A new object of a shape that projection_check_shape accepted, with names of its own (NULL: "")
   and zeros. NOMEM. */
pith_status projection_new(const struct pith_projection *shape, const char *model, const char *text,
                           struct pith_projection **out, pith_error *err);

/* Checks the counts against the limits. FORMAT names the field and the value. */
pith_status projection_check_shape(const struct pith_projection *p, pith_error *err);

/* Checks bases of any origin. Eigenvalues are finite, not below 0 and descending. Vectors are
   finite, of length 1 and at right angles to each other (to 1e-3), so that all of them together
   change no dot product. FORMAT with layer, head and value. */
pith_status projection_check(const struct pith_projection *p, pith_error *err);

/* The same checks as pith_projection_check on a shape, where there may be no model (0: no
   fingerprint) to compare with. */
pith_status projection_check_fits(const struct pith_projection *p, int32_t n_layer, int32_t n_head,
                                  int32_t dim, uint64_t fingerprint, pith_error *err);

/* Bytes of a file as an object, checked. FORMAT, UNSUPPORTED, NOMEM. */
pith_status projection_parse(const uint8_t *data, size_t size, struct pith_projection **out,
                             pith_error *err);

/* Bytes of the file, a pi_mem block that the caller frees. NOMEM. */
pith_status projection_format(const struct pith_projection *p, uint8_t **out, size_t *size,
                              pith_error *err);

#endif
