/*
 * projection.c - Loki's bases in memory: what they must be to be used, whose they are, and how many
 * of their dimensions matter. Files are projection_file.c's; how bases come about is loki_fit.c's.
 * Invariant: what projection_check accepted is orthogonal, so that in all its dimensions q.k is
 * what it was.
 */
#include "policy/read/projection.h"

#include <math.h>

#include "base/mem.h"
#include "base/new_file.h"
#include "base/os.h"
#include "policy/identity.h"
#include "model/shape.h"

/* As much lengths and angles may be off: files hold single precision. */
#define TOLERANCE 1e-3f

/* ---- objects ---- */

pith_status projection_new(const struct pith_projection *shape, const char *model, const char *text,
                           struct pith_projection **out, pith_error *err)
{
    struct pith_projection *p = pi_mem_alloc(PI_MEM_OTHER, sizeof(*p));
    size_t n_lane = (size_t)shape->n_layer * (size_t)shape->n_head, dim = (size_t)shape->dim;
    size_t n_vector = 0;
    bool fits = pi_mul_size(n_lane * dim, dim, &n_vector);
    if (p != NULL) {
        *p = *shape;
        p->model = policy_name(model != NULL ? model : "", model != NULL ? strlen(model) : 0);
        p->text = policy_name(text != NULL ? text : "", text != NULL ? strlen(text) : 0);
        p->value = pi_mem_alloc_n(PI_MEM_OTHER, n_lane * dim, sizeof(*p->value));
        p->vector = fits ? pi_mem_alloc_n(PI_MEM_OTHER, n_vector, sizeof(*p->vector)) : NULL;
        if (p->model != NULL && p->text != NULL && p->value != NULL && p->vector != NULL) {
            *out = p;
            return PITH_OK;
        }
    }
    pith_projection_free(p);
    return pi_fail(err, PITH_NOMEM, "no memory for the bases of %d layers of %d heads",
                   shape->n_layer, shape->n_head);
}

void pith_projection_free(pith_projection *p)
{
    if (p == NULL)
        return;
    pi_mem_free(p->model);
    pi_mem_free(p->text);
    pi_mem_free(p->value);
    pi_mem_free(p->vector);
    pi_mem_free(p);
}

void pith_projection_get_info(const pith_projection *p, pith_projection_info *out)
{
    *out = (pith_projection_info){
        .model = p->model,
        .text = p->text,
        .fingerprint = p->fingerprint,
        .n_token = p->n_token,
        .keys = p->keys,
        .n_layer = p->n_layer,
        .n_head = p->n_head,
        .dim = p->dim,
    };
}

/* ---- checks ---- */

pith_status projection_check_shape(const struct pith_projection *p, pith_error *err)
{
    const struct {
        const char *name;
        int32_t value, max;
    } field[] = {
        {"layers", p->n_layer, PROJECTION_MAX_LAYER},
        {"KV heads", p->n_head, PROJECTION_MAX_HEAD},
        {"dimensions", p->dim, PROJECTION_MAX_DIM},
    };
    for (size_t i = 0; i < PI_LEN(field); i++)
        if (field[i].value < 1 || field[i].value > field[i].max)
            return pi_fail(err, PITH_FORMAT, "%s: %d is not in 1..%d", field[i].name,
                           field[i].value, field[i].max);
    return PITH_OK;
}

static pith_status check_values(const struct pith_projection *p, int32_t layer, int32_t head,
                                pith_error *err)
{
    const float *value = projection_value(p, layer, head);
    for (int32_t i = 0; i < p->dim; i++)
        if (!(isfinite(value[i]) && value[i] >= 0.0f && (i == 0 || value[i] <= value[i - 1])))
            return pi_fail(err, PITH_FORMAT,
                           "layer %d, head %d: eigenvalue %d is %g, which is not between 0 and "
                           "the one before",
                           layer, head, i, (double)value[i]);
    return PITH_OK;
}

static float dot(const float *a, const float *b, int32_t n)
{
    float part[8] = {0}; /* side by side, so that compilers may do them so */
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int32_t j = 0; j < 8; j++)
            part[j] += a[i + j] * b[i + j];
    for (; i < n; i++)
        part[0] += a[i] * b[i];
    return ((part[0] + part[4]) + (part[2] + part[6])) +
           ((part[1] + part[5]) + (part[3] + part[7]));
}

static pith_status check_vectors(const struct pith_projection *p, int32_t layer, int32_t head,
                                 pith_error *err)
{
    const float *vector = projection_vector(p, layer, head);
    size_t dim = (size_t)p->dim;
    for (int32_t i = 0; i < p->dim; i++)
        for (int32_t j = 0; j <= i; j++) {
            float x = dot(vector + (size_t)i * dim, vector + (size_t)j * dim, p->dim);
            if (!(fabsf(x - (i == j ? 1.0f : 0.0f)) <= TOLERANCE))
                return pi_fail(err, PITH_FORMAT,
                               "layer %d, head %d: the product %g of vectors %d and %d is not %d",
                               layer, head, (double)x, i, j, i == j);
        }
    return PITH_OK;
}

pith_status projection_check(const struct pith_projection *p, pith_error *err)
{
    for (int32_t l = 0; l < p->n_layer; l++)
        for (int32_t h = 0; h < p->n_head; h++) {
            PI_TRY(check_values(p, l, h, err));
            PI_TRY(check_vectors(p, l, h, err));
        }
    return PITH_OK;
}

static pith_status check_count(const char *what, int32_t have, int32_t want, pith_error *err)
{
    if (have != want)
        return pi_fail(err, PITH_INVALID,
                       "the projection has %d %s, the model has %d: it is of another model", have,
                       what, want);
    return PITH_OK;
}

pith_status projection_check_fits(const struct pith_projection *p, int32_t n_layer, int32_t n_head,
                                  int32_t dim, uint64_t fingerprint, pith_error *err)
{
    PI_TRY(check_count("layers", p->n_layer, n_layer, err));
    PI_TRY(check_count("KV heads", p->n_head, n_head, err));
    PI_TRY(check_count("dimensions of a head", p->dim, dim, err));
    if (fingerprint != 0 && p->fingerprint != fingerprint)
        return pi_fail(err, PITH_INVALID,
                       "the projection is of \"%.60s\", whose fingerprint %016llx is not the "
                       "model's %016llx",
                       p->model, (unsigned long long)p->fingerprint,
                       (unsigned long long)fingerprint);
    return PITH_OK;
}

pith_status pith_projection_check(const pith_projection *p, const pith_model *m, pith_error *err)
{
    if (p == NULL || m == NULL)
        return pi_fail(err, PITH_INVALID,
                       "pith_projection_check: projection and model must not be NULL");
    const struct pi_hparams *hp = pi_model_hparams(m);
    return projection_check_fits(p, hp->n_layer_full, hp->n_head_kv, hp->dim_k,
                                 pi_model_fingerprint(m), err);
}

/* ---- how many dimensions matter ---- */

/* Of one lane. */
static int32_t rank_of(const struct pith_projection *p, int32_t layer, int32_t head, double share)
{
    const float *value = projection_value(p, layer, head);
    double all = 0.0, sum = 0.0;
    for (int32_t i = 0; i < p->dim; i++)
        all += (double)value[i];
    for (int32_t i = 0; i < p->dim; i++) {
        sum += (double)value[i];
        if (sum >= share * all)
            return i + 1;
    }
    return p->dim;
}

int32_t pith_projection_rank(const pith_projection *p, int32_t layer, int32_t head, double share)
{
    int32_t most = 0;
    for (int32_t l = 0; l < p->n_layer; l++)
        for (int32_t h = 0; h < p->n_head; h++)
            if ((layer < 0 || layer == l) && (head < 0 || head == h))
                most = (int32_t)pi_max(most, rank_of(p, l, h, share));
    return most;
}

/* ---- files ---- */

pith_status pith_projection_load(const char *path, pith_projection **out, pith_error *err)
{
    struct pi_file file = {0};
    pith_error why;
    if (path == NULL || out == NULL)
        return pi_fail(err, PITH_INVALID, "pith_projection_load: path and out must not be NULL");
    PI_TRY(pi_file_map(path, &file, err));
    pith_status status = projection_parse(file.data, file.size, out, &why);
    pi_file_unmap(&file);
    return status == PITH_OK ? PITH_OK : pi_file_fail(path, status, &why, err);
}

pith_status pith_projection_save(const pith_projection *p, const char *path, pith_error *err)
{
    uint8_t *data = NULL;
    size_t size = 0;
    if (p == NULL || path == NULL)
        return pi_fail(err, PITH_INVALID,
                       "pith_projection_save: projection and path must not be NULL");
    PI_TRY(projection_format(p, &data, &size, err));
    pith_status status = pi_new_file_save(path, data, size, err);
    pi_mem_free(data);
    return status;
}
