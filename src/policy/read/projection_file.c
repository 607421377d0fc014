/*
 * projection_file.c - Pith's file of Loki's bases, version 1; docs/projection.md describes the
 * bytes. Invariant: size and checksum of a file are checked before anything is allocated for its
 * parts, and a written file reads back as it was.
 */
#include "base/cursor.h"
#include "base/mem.h"
#include "file/sum.h"
#include "policy/read/projection.h"

#define MAGIC "PITHLOKI"
#define VERSION 1
#define HEADER_SIZE 72
#define SUM_SIZE 8

/* Bytes of the whole file; the counts are within the limits, so that nothing overflows 64 bits. */
static uint64_t file_size(const struct pith_projection *p, uint64_t n_model, uint64_t n_text)
{
    uint64_t n_lane = (uint64_t)p->n_layer * (uint64_t)p->n_head, dim = (uint64_t)p->dim;
    return HEADER_SIZE + n_model + n_text + 4 * n_lane * dim * (dim + 1) + SUM_SIZE;
}

static size_t n_lane(const struct pith_projection *p)
{
    return (size_t)p->n_layer * (size_t)p->n_head;
}

/* ---- writing ---- */

pith_status projection_format(const struct pith_projection *p, uint8_t **out, size_t *size,
                              pith_error *err)
{
    struct pi_cursor c = {0};
    size_t n_model = strlen(p->model), n_text = strlen(p->text), dim = (size_t)p->dim;
    uint64_t n = file_size(p, n_model, n_text);
    c.out = n <= SIZE_MAX ? pi_mem_alloc(PI_MEM_OTHER, (size_t)n) : NULL;
    if (c.out == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %llu bytes of a projection",
                       (unsigned long long)n);
    pi_put_bytes(&c, MAGIC, strlen(MAGIC));
    pi_put(&c, VERSION, 4);
    pi_put(&c, HEADER_SIZE, 4);
    pi_put(&c, n, 8);
    pi_put(&c, p->fingerprint, 8);
    pi_put(&c, (uint64_t)p->n_token, 8);
    pi_put(&c, (uint64_t)p->n_layer, 4);
    pi_put(&c, (uint64_t)p->n_head, 4);
    pi_put(&c, (uint64_t)p->dim, 4);
    pi_put(&c, (uint64_t)p->keys, 4);
    pi_put(&c, n_model, 4);
    pi_put(&c, n_text, 4);
    pi_put(&c, 0, 8);
    pi_put_bytes(&c, p->model, n_model);
    pi_put_bytes(&c, p->text, n_text);
    pi_put_floats(&c, p->value, n_lane(p) * dim);
    pi_put_floats(&c, p->vector, n_lane(p) * dim * dim);
    pi_put(&c, pi_sum_of(c.out, c.at), SUM_SIZE);
    assert(c.at == n);
    *out = c.out;
    *size = (size_t)n;
    return PITH_OK;
}

/* ---- reading ---- */

struct header {
    struct pith_projection shape; /* its counts and numbers */
    uint64_t n_model;
    uint64_t n_text;
};

static pith_status check_field(const char *name, uint64_t value, uint64_t min, uint64_t max,
                               pith_error *err)
{
    if (value < min || value > max)
        return pi_fail(err, PITH_FORMAT, "%s: %llu is not in %llu..%llu", name,
                       (unsigned long long)value, (unsigned long long)min, (unsigned long long)max);
    return PITH_OK;
}

/* The next number, which is in a range. */
static pith_status get_field(struct pi_cursor *c, size_t n_byte, const char *name, uint64_t min,
                             uint64_t max, uint64_t *out, pith_error *err)
{
    *out = pi_get(c, n_byte);
    return check_field(name, *out, min, max, err);
}

static pith_status get_header(struct pi_cursor *c, size_t size, struct header *h, pith_error *err)
{
    uint64_t value, n_token, n_layer, n_head, dim, keys;
    c->at = 8;
    uint64_t version = pi_get(c, 4);
    if (version != VERSION)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "version %llu of the projection; this Pith reads version %d",
                       (unsigned long long)version, VERSION);
    if (size < HEADER_SIZE + SUM_SIZE)
        return pi_fail(err, PITH_FORMAT, "%zu bytes are too few for a projection", size);
    PI_TRY(get_field(c, 4, "header size", HEADER_SIZE, HEADER_SIZE, &value, err));
    value = pi_get(c, 8);
    if (value != size)
        return pi_fail(err, PITH_FORMAT, "its header says %llu bytes, the file has %zu",
                       (unsigned long long)value, size);
    h->shape.fingerprint = pi_get(c, 8);
    PI_TRY(get_field(c, 8, "tokens", 0, INT64_MAX, &n_token, err));
    PI_TRY(get_field(c, 4, "layers", 1, PROJECTION_MAX_LAYER, &n_layer, err));
    PI_TRY(get_field(c, 4, "KV heads", 1, PROJECTION_MAX_HEAD, &n_head, err));
    PI_TRY(get_field(c, 4, "dimensions", 1, PROJECTION_MAX_DIM, &dim, err));
    PI_TRY(get_field(c, 4, "keys", PITH_KEYS_ROTATED, PITH_KEYS_PLAIN, &keys, err));
    PI_TRY(get_field(c, 4, "bytes of the model's name", 0, PROJECTION_MAX_TEXT, &h->n_model, err));
    PI_TRY(get_field(c, 4, "bytes of the text's name", 0, PROJECTION_MAX_TEXT, &h->n_text, err));
    PI_TRY(get_field(c, 8, "reserved", 0, 0, &value, err));
    h->shape.n_token = (int64_t)n_token;
    h->shape.n_layer = (int32_t)n_layer;
    h->shape.n_head = (int32_t)n_head;
    h->shape.dim = (int32_t)dim;
    h->shape.keys = (pith_projection_keys)keys;
    uint64_t want = file_size(&h->shape, h->n_model, h->n_text);
    if (want != size)
        return pi_fail(err, PITH_FORMAT, "its counts make %llu bytes, the file has %zu",
                       (unsigned long long)want, size);
    return PITH_OK;
}

/* The next name as a terminated text. */
static pith_status get_name(struct pi_cursor *c, uint64_t n, const char *whose, char *out,
                            pith_error *err)
{
    memcpy(out, c->in + c->at, (size_t)n);
    out[n] = '\0';
    c->at += (size_t)n;
    if (strlen(out) != n)
        return pi_fail(err, PITH_FORMAT, "the name of the %s holds a zero byte", whose);
    return PITH_OK;
}

static pith_status get_body(struct pi_cursor *c, const struct header *h,
                            struct pith_projection **out, pith_error *err)
{
    char model[PROJECTION_MAX_TEXT + 1], text[PROJECTION_MAX_TEXT + 1];
    PI_TRY(get_name(c, h->n_model, "model", model, err));
    PI_TRY(get_name(c, h->n_text, "text", text, err));
    PI_TRY(projection_new(&h->shape, model, text, out, err));
    struct pith_projection *p = *out;
    pi_get_floats(c, p->value, n_lane(p) * (size_t)p->dim);
    pi_get_floats(c, p->vector, n_lane(p) * (size_t)p->dim * (size_t)p->dim);
    return projection_check(p, err);
}

pith_status projection_parse(const uint8_t *data, size_t size, struct pith_projection **out,
                             pith_error *err)
{
    struct pi_cursor c = {.in = data}, sum = {.in = data, .at = size - SUM_SIZE};
    struct pith_projection *p = NULL;
    struct header h = {0};
    if (size < 12 || memcmp(data, MAGIC, 8) != 0)
        return pi_fail(err, PITH_FORMAT,
                       "the file does not begin with " MAGIC ", as pith calibrate loki writes it");
    PI_TRY(get_header(&c, size, &h, err));
    if (pi_get(&sum, SUM_SIZE) != pi_sum_of(data, size - SUM_SIZE))
        return pi_fail(err, PITH_FORMAT, "the checksum is wrong: the file is damaged");
    pith_status status = get_body(&c, &h, &p, err);
    if (status != PITH_OK) {
        pith_projection_free(p);
        return status;
    }
    *out = p;
    return PITH_OK;
}
