/*
 * attend_check.h - the common part of the tests of attention: a lane with queries, and attention
 * over it. It checks that every processor level gives scalar's bits in chunks of any size. For one
 * file of a test program.
 */
#ifndef PI_TEST_ATTEND_CHECK_H
#define PI_TEST_ATTEND_CHECK_H

#include <float.h>
#include <math.h>

#include "base/mem.h"
#include "cpu/kernels.h"
#include "device/cpu/pages.h"
#include "testing.h"

/* A lane with one KV head, and queries at positions pos0 on. */
struct fixture {
    struct kv_cache *cache;
    struct kv_seq *seq;
    int32_t n_group;
    int32_t n_tok;
    int32_t pos0;
    float scale;
    float *q;   /* [n_tok][n_group][dim_k] */
    float *out; /* [n_tok][n_group][dim_v] */
    const struct pi_rope *rope;
};

/* One lane. */
static inline struct kv_geometry geometry(int32_t dim_k, int32_t dim_v, int32_t page_len,
                                          enum kv_type type_k, enum kv_type type_v, uint32_t index)
{
    return (struct kv_geometry){.n_layer = 1,
                                .n_head = 1,
                                .dim_k = dim_k,
                                .dim_v = dim_v,
                                .page_len = page_len,
                                .type_k = type_k,
                                .type_v = type_v,
                                .index = index};
}

/* A head size that a type can store, at least dim. */
static inline int32_t dim_for(enum kv_type type, int32_t dim)
{
    int32_t block = kv_codecs[type].block > 0 ? kv_codecs[type].block : KV_CODEC_GROUP;
    return (dim + block - 1) / block * block;
}

static inline float *random_rows(uint64_t *rng, size_t n, float factor)
{
    float *x = test_calloc(n + 1, sizeof(float));
    for (size_t i = 0; i < n; i++)
        x[i] = factor * rng_float(rng);
    return x;
}

static inline void cache_open(struct fixture *f, const struct kv_geometry *g, int32_t n_token)
{
    *f = (struct fixture){.n_group = 1, .n_tok = 1, .scale = 1.0f};
    assert_int_equal(kv_cache_create(g, 4 * kv_bytes_for_tokens(g, n_token + 64), &f->cache, &err),
                     PITH_OK);
    assert_int_equal(kv_seq_create(f->cache, &f->seq, &err), PITH_OK);
}

static inline void append(struct kv_seq *seq, int32_t pos0, int32_t n, const float *k,
                          const float *v)
{
    const struct kv_geometry *g = &seq->cache->g;
    assert_int_equal(kv_seq_reserve(seq, n, NULL), PITH_OK);
    kv_seq_append(seq, 0, 0, pos0, n, k, (size_t)g->dim_k, v, (size_t)g->dim_v);
}

static inline void append_random(struct kv_seq *seq, uint64_t *rng, int32_t pos0, int32_t n)
{
    const struct kv_geometry *g = &seq->cache->g;
    float *k = random_rows(rng, (size_t)n * (size_t)g->dim_k, 1.0f);
    float *v = random_rows(rng, (size_t)n * (size_t)g->dim_v, 1.0f);
    append(seq, pos0, n, k, v);
    test_free(k);
    test_free(v);
}

static inline void queries(struct fixture *f, uint64_t *rng, int32_t n_tok, int32_t n_group,
                           int32_t pos0)
{
    const struct kv_geometry *g = &f->cache->g;
    size_t n_row = (size_t)n_tok * (size_t)n_group;
    f->n_tok = n_tok;
    f->n_group = n_group;
    f->pos0 = pos0;
    f->scale = 1.0f / sqrtf((float)g->dim_k);
    f->q = random_rows(rng, n_row * (size_t)g->dim_k, 4.0f);
    f->out = test_calloc(n_row * (size_t)g->dim_v, sizeof(float));
}

static inline void close_all(struct fixture *f)
{
    test_free(f->q);
    test_free(f->out);
    kv_seq_free(f->seq);
    kv_cache_free(f->cache);
}

/* Tokens [t, t + n) of the fixture into out. The scratch has exactly the size that was promised and
   starts anywhere, so that a sanitizer sees a step beyond it. */
static inline void attend(const struct fixture *f, int32_t t, int32_t n, float *out,
                          struct kv_attend_tap *tap)
{
    const struct kv_geometry *g = &f->cache->g;
    size_t q_stride = (size_t)f->n_group * (size_t)g->dim_k;
    size_t out_stride = (size_t)f->n_group * (size_t)g->dim_v;
    size_t out_begin = (size_t)t * out_stride;
    size_t size = kv_attend_scratch_bytes(g, n * f->n_group);
    uint8_t *scratch = test_malloc(size);
    memset(scratch, 0xff, size); /* NaN, should any of it be read */
    struct kv_attend_job job = {
        .seq = f->seq,
        .n_tok = n,
        .n_group = f->n_group,
        .pos0 = f->pos0 + t,
        .q = f->q + (size_t)t * q_stride,
        .q_stride = q_stride,
        .scale = f->scale,
        .out = out == NULL ? NULL : out + out_begin,
        .out_stride = out_stride,
        .rope = f->rope,
        .tap = tap,
    };
    kv_attend(&job, scratch);
    test_free(scratch);
}

static inline size_t out_len(const struct fixture *f)
{
    return (size_t)f->n_tok * (size_t)f->n_group * (size_t)f->cache->g.dim_v;
}

static inline void assert_same_bits(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof(float)) != 0)
            fail_msg("%s: value %zu of %zu is %.9g, expected %.9g", what, i, n, (double)a[i],
                     (double)b[i]);
}

/* All levels of this processor, whole and in random chunks, give scalar's bits. */
static inline void assert_levels_agree(struct fixture *f, uint64_t *rng)
{
    float *other = test_calloc(out_len(f) + 1, sizeof(float));
    assert_int_equal(pith_cpu_level_set("scalar", NULL), PITH_OK);
    attend(f, 0, f->n_tok, f->out, NULL);
    for (int level = 0; level < PI_CPU_N_LEVEL; level++) {
        const char *name = pi_cpu_level_name((enum pi_cpu_level)level);
        if (pith_cpu_level_set(name, NULL) != PITH_OK)
            continue;
        attend(f, 0, f->n_tok, other, NULL);
        assert_same_bits(other, f->out, out_len(f), name);
        if (level == PI_CPU_SCALAR)
            continue;
        memset(other, 0xff, out_len(f) * sizeof(float));
        for (int32_t t = 0, n; t < f->n_tok; t += n) {
            n = 1 + (int32_t)rng_below(rng, rng_below(rng, 2) ? 3 : (uint64_t)f->n_tok);
            n = n < f->n_tok - t ? n : f->n_tok - t;
            attend(f, t, n, other, NULL);
        }
        assert_same_bits(other, f->out, out_len(f), "in chunks");
    }
    assert_int_equal(pith_cpu_level_set(NULL, NULL), PITH_OK);
    test_free(other);
}

#endif
