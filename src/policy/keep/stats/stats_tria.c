/*
 * stats_tria.c - the TRIA format, versions 1 and 2, that a port of TriAttention to llama.cpp
 * calibrates into. Little-endian: a header of 64 bytes, in version 2 a budget scale per layer, then
 * per layer and query head four arrays of n_pair floats. They are real and imaginary means, mean
 * moduli, and R or something else. Layers without attention are all zero.
 *
 * Some fields are not believed, because files are wrong about them. These are the rotary base
 * (10000 for models of 1000000), and the KV heads where a converter did not know them. The third is
 * the fourth array, which one tool fills with R and another with mean modulus - modulus of the
 * mean. Frequencies come from the model, R is computed.
 */
#include "policy/keep/stats/stats.h"

#define HEADER_SIZE 64
#define N_ARRAY 4 /* per head */

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void floats_at(const uint8_t *p, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = u32_at(p + 4 * i);
        memcpy(&out[i], &bits, sizeof(bits));
    }
}

/* As a count that stats_check_shape refuses where it is too large. */
static int32_t count_at(const uint8_t *p)
{
    return (int32_t)pi_min(u32_at(p), INT32_MAX);
}

static pith_status parse_header(const uint8_t *data, size_t size, struct pith_stats *s,
                                size_t *body, pith_error *err)
{
    if (size < HEADER_SIZE)
        return pi_fail(err, PITH_FORMAT, "%zu bytes are too few for a TRIA header of %d", size,
                       HEADER_SIZE);
    if (memcmp(data, "AIRT", 4) != 0)
        return pi_fail(err, PITH_FORMAT, "the file does not begin with AIRT");
    uint32_t version = u32_at(data + 4);
    if (version != 1 && version != 2)
        return pi_fail(err, PITH_UNSUPPORTED, "version %u of TRIA; Pith reads 1 and 2", version);
    s->format = version == 1 ? "TRIA 1" : "TRIA 2";
    s->n_layer = count_at(data + 8);
    s->n_head = count_at(data + 12);
    s->n_head_kv = count_at(data + 16);
    int32_t n_rot = count_at(data + 20);
    s->n_pair = count_at(data + 24);
    PI_TRY(stats_check_shape(s, err));
    if (n_rot != 2 * s->n_pair)
        return pi_fail(err, PITH_FORMAT, "%d rotated dimensions are not two for each of %d bands",
                       n_rot, s->n_pair);
    *body = HEADER_SIZE + (version == 2 ? 4 * (size_t)s->n_layer : 0);
    uint64_t want =
        *body + 4 * N_ARRAY * (uint64_t)s->n_layer * (uint64_t)s->n_head * (uint64_t)s->n_pair;
    if (want != size)
        return pi_fail(err, PITH_FORMAT, "the file has %zu bytes and should have %llu", size,
                       (unsigned long long)want);
    return PITH_OK;
}

static pith_status parse(const uint8_t *data, size_t size, struct pith_stats *s, pith_error *err)
{
    size_t at = 0;
    PI_TRY(parse_header(data, size, s, &at, err));
    PI_TRY(stats_alloc(s, false, false, err));
    size_t n = (size_t)s->n_pair, n_lane = (size_t)s->n_layer * (size_t)s->n_head;
    s->pairing = PITH_PAIRING_HALF;
    for (size_t i = 0; i < n_lane; i++, at += 4 * N_ARRAY * n)
        floats_at(data + at, s->q + i * 3 * n, 3 * n); /* the three arrays of a row, in its order */
    for (int32_t l = 0; l < s->n_layer; l++)
        s->count[l] = -1;
    return stats_check(s, err);
}

pith_status stats_parse_tria(const uint8_t *data, size_t size, struct pith_stats **out,
                             pith_error *err)
{
    struct pith_stats *s = NULL;
    PI_TRY(stats_new(&s, err));
    pith_status status = parse(data, size, s, err);
    if (status != PITH_OK) {
        pith_stats_free(s);
        return status;
    }
    *out = s;
    return PITH_OK;
}
