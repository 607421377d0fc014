/*
 * test_attend.c - attention over lanes against a reference in double precision, every processor
 * level against scalar bit for bit, and what must not change a row's bits: the chunk it is read in,
 * the rows beside it, entries that it does not see.
 */
#include <float.h>
#include <math.h>

#include "base/mem.h"
#include "cpu/kernels.h"
#include "kv/store.h"
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

static float *random_rows(uint64_t *rng, size_t n, float factor)
{
    float *x = test_calloc(n + 1, sizeof(float));
    for (size_t i = 0; i < n; i++)
        x[i] = factor * rng_float(rng);
    return x;
}

static void cache_open(struct fixture *f, const struct kv_geometry *g, int32_t n_token)
{
    pith_error err;
    *f = (struct fixture){.n_group = 1, .n_tok = 1, .scale = 1.0f};
    assert_int_equal(kv_cache_create(g, 4 * kv_bytes_for_tokens(g, n_token + 64), &f->cache, &err),
                     PITH_OK);
    assert_int_equal(kv_seq_create(f->cache, &f->seq, &err), PITH_OK);
}

static void append(struct kv_seq *seq, int32_t pos0, int32_t n, const float *k, const float *v)
{
    const struct kv_geometry *g = &seq->cache->g;
    assert_int_equal(kv_seq_reserve(seq, n, NULL), PITH_OK);
    kv_seq_append(seq, 0, 0, pos0, n, k, (size_t)g->dim_k, v, (size_t)g->dim_v);
}

static void append_random(struct kv_seq *seq, uint64_t *rng, int32_t pos0, int32_t n)
{
    const struct kv_geometry *g = &seq->cache->g;
    float *k = random_rows(rng, (size_t)n * (size_t)g->dim_k, 1.0f);
    float *v = random_rows(rng, (size_t)n * (size_t)g->dim_v, 1.0f);
    append(seq, pos0, n, k, v);
    test_free(k);
    test_free(v);
}

static void queries(struct fixture *f, uint64_t *rng, int32_t n_tok, int32_t n_group, int32_t pos0)
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

static void close_all(struct fixture *f)
{
    test_free(f->q);
    test_free(f->out);
    kv_seq_free(f->seq);
    kv_cache_free(f->cache);
}

/* Tokens [t, t + n) of the fixture into out. The scratch has exactly the size that was promised and
   starts anywhere, so that a sanitizer sees a step beyond it. */
static void attend(const struct fixture *f, int32_t t, int32_t n, float *out,
                   struct kv_attend_tap *tap)
{
    const struct kv_geometry *g = &f->cache->g;
    size_t q_stride = (size_t)f->n_group * (size_t)g->dim_k;
    size_t out_stride = (size_t)f->n_group * (size_t)g->dim_v;
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
        .out = out + (size_t)t * out_stride,
        .out_stride = out_stride,
        .rope = f->rope,
        .tap = tap,
    };
    kv_attend(&job, scratch);
    test_free(scratch);
}

static size_t out_len(const struct fixture *f)
{
    return (size_t)f->n_tok * (size_t)f->n_group * (size_t)f->cache->g.dim_v;
}

/* ---- the reference ---- */

/* Turns x on by delta positions, in double. */
static void turn(const struct pi_rope *rope, int32_t delta, double *x)
{
    for (int32_t i = 0; rope != NULL && i < rope->n_pair; i++) {
        int32_t a = rope->adjacent ? 2 * i : i, b = rope->adjacent ? a + 1 : i + rope->n_pair;
        double c = cos(delta * rope->freq[i]), s = sin(delta * rope->freq[i]), xa = x[a];
        x[a] = xa * c - x[b] * s;
        x[b] = xa * s + x[b] * c;
    }
}

/* Keys and values as stored, [len][dim], keys turned by their page's delta. */
static void lane_decode(const struct fixture *f, double *k, double *v, int32_t *pos)
{
    const struct kv_geometry *g = &f->cache->g;
    const struct kv_lane *lane = kv_lane_at(f->seq, 0, 0);
    float *row = test_calloc((size_t)(g->dim_k + g->dim_v), sizeof(float));
    int32_t s = 0;
    for (int32_t i = 0; i < lane->n_live; i++)
        for (int32_t j = 0; j < lane->table[i].n; j++, s++) {
            kv_lane_key(f->seq, 0, 0, s, row);
            for (int32_t d = 0; d < g->dim_k; d++)
                k[s * g->dim_k + d] = row[d];
            turn(f->rope, lane->table[i].delta, k + s * g->dim_k);
            kv_lane_value(f->seq, 0, 0, s, row);
            for (int32_t d = 0; d < g->dim_v; d++)
                v[s * g->dim_v + d] = row[d];
            pos[s] = kv_lane_pos(f->seq, 0, 0, s);
        }
    assert_int_equal(s, lane->len);
    test_free(row);
}

/* Softmax attention as the textbook has it. */
static void reference(const struct fixture *f, double *out)
{
    const struct kv_geometry *g = &f->cache->g;
    int32_t len = kv_lane_len(f->seq, 0, 0);
    double *k = test_calloc((size_t)(len * g->dim_k) + 1, sizeof(double));
    double *v = test_calloc((size_t)(len * g->dim_v) + 1, sizeof(double));
    double *x = test_calloc((size_t)len + 1, sizeof(double));
    int32_t *pos = test_calloc((size_t)len + 1, sizeof(int32_t));
    lane_decode(f, k, v, pos);
    for (int32_t r = 0; r < f->n_tok * f->n_group; r++) {
        double max = -INFINITY, sum = 0;
        for (int32_t s = 0; s < len; s++) {
            x[s] = 0;
            for (int32_t d = 0; d < g->dim_k; d++)
                x[s] += (double)f->q[r * g->dim_k + d] * k[s * g->dim_k + d];
            x[s] = pos[s] <= f->pos0 + r / f->n_group ? x[s] * (double)f->scale : -INFINITY;
            max = fmax(max, x[s]);
        }
        for (int32_t d = 0; d < g->dim_v; d++)
            out[r * g->dim_v + d] = 0;
        for (int32_t s = 0; s < len && max > -INFINITY; s++) {
            double p = exp(x[s] - max);
            sum += p;
            for (int32_t d = 0; d < g->dim_v; d++)
                out[r * g->dim_v + d] += p * v[s * g->dim_v + d];
        }
        for (int32_t d = 0; d < g->dim_v && sum > 0; d++)
            out[r * g->dim_v + d] /= sum;
    }
    test_free(k);
    test_free(v);
    test_free(x);
    test_free(pos);
}

/* Values lie in [-1, 1]. Logits err by about dim * 2^-24 * their terms (below 4 / sqrt(dim)), the
   output by that and by some 2^-24 for each addition. */
static void assert_near_reference(const struct fixture *f, double tolerance)
{
    double *want = test_calloc(out_len(f) + 1, sizeof(double));
    reference(f, want);
    for (size_t i = 0; i < out_len(f); i++)
        if (!(fabs(f->out[i] - want[i]) <= tolerance))
            fail_msg("output %zu: %.9g, expected %.9g", i, (double)f->out[i], want[i]);
    test_free(want);
}

static void assert_same_bits(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof(float)) != 0)
            fail_msg("%s: value %zu of %zu is %.9g, expected %.9g", what, i, n, (double)a[i],
                     (double)b[i]);
}

/* ---- the checks that every lane passes ---- */

/* All levels of this processor, whole and in random chunks, give scalar's bits. */
static void assert_levels_agree(struct fixture *f, uint64_t *rng)
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

static void check(struct fixture *f, uint64_t *rng)
{
    assert_levels_agree(f, rng);
    assert_near_reference(f, 2e-5);
}

/* Keeps about share/8 of the entries, chosen by chance, as an eviction does. */
static void compact_random(struct kv_seq *seq, uint64_t *rng, uint64_t share)
{
    int32_t len = kv_lane_len(seq, 0, 0), n = 0;
    int32_t *slots = test_calloc((size_t)len + 1, sizeof(int32_t));
    for (int32_t s = 0; s < len; s++)
        if (rng_below(rng, 8) < share)
            slots[n++] = s;
    assert_int_equal(kv_seq_compact(seq, 0, 0, slots, n, NULL), PITH_OK);
    test_free(slots);
}

static void test_types_dims_groups(void **state)
{
    (void)state;
    static const int32_t dims[] = {64, 80, 96, 128, 40, 32, 1, 7, 16, 100, 256, 72};
    uint64_t rng = 1;
    for (int32_t i = 0; i < 240; i++) {
        struct kv_geometry g = {.n_layer = 1, .n_head = 1, .page_len = 16 << (i % 3)};
        g.type_k = (enum kv_type)(i / 3 % KV_N_TYPE);
        g.type_v = (enum kv_type)(i / 9 % KV_N_TYPE);
        g.dim_k = dims[rng_below(&rng, PI_LEN(dims))];
        g.dim_v = i % 4 ? g.dim_k : dims[rng_below(&rng, PI_LEN(dims))];
        if (g.type_k == KV_TYPE_Q8_0)
            g.dim_k = (g.dim_k + 31) / 32 * 32;
        if (g.type_v == KV_TYPE_Q8_0)
            g.dim_v = (g.dim_v + 31) / 32 * 32;
        int32_t len = 1 + (int32_t)rng_below(&rng, 200), n_group = 1 + i % 8;
        int32_t n_tok = 1 + (int32_t)rng_below(&rng, i % 5 ? 6 : 24);
        struct fixture f;
        cache_open(&f, &g, len);
        append_random(f.seq, &rng, 0, len);
        if (i % 2)
            compact_random(f.seq, &rng, 1 + rng_below(&rng, 8));
        queries(&f, &rng, n_tok, n_group, (int32_t)rng_below(&rng, (uint64_t)len + 4) - n_tok);
        check(&f, &rng);
        close_all(&f);
    }
}

/* Every tail of a head size, in both ways over a page. */
static void test_every_dim(void **state)
{
    (void)state;
    uint64_t rng = 12;
    for (int32_t dim = 1; dim <= 130; dim++)
        for (int32_t i = 0; i < 4; i++) {
            enum kv_type type = i % 2 ? KV_TYPE_F16 : KV_TYPE_F32;
            struct kv_geometry g = {1, 1, dim, dim, 32, type, type};
            struct fixture f;
            cache_open(&f, &g, 40);
            append_random(f.seq, &rng, 0, 40);
            queries(&f, &rng, i < 2 ? 1 : 5, 1 + dim % 5, 35);
            check(&f, &rng);
            close_all(&f);
        }
}

/* A lane that grows by one entry, each step a generated token. */
static void test_every_length(void **state)
{
    (void)state;
    uint64_t rng = 2;
    for (int32_t type = 0; type < KV_N_TYPE; type++) {
        struct kv_geometry g = {1, 1, 32, 32, 16 << type, (enum kv_type)type, (enum kv_type)type};
        struct fixture f;
        cache_open(&f, &g, 200);
        queries(&f, &rng, 1, 2, 0);
        for (int32_t len = 1; len <= 200; len++, f.pos0++) {
            append_random(f.seq, &rng, f.pos0, 1);
            check(&f, &rng);
        }
        close_all(&f);
    }
}

static void test_long_lane(void **state)
{
    (void)state;
    uint64_t rng = 3;
    for (int32_t i = 0; i < 4; i++) {
        struct kv_geometry g = {
            1, 1, 64, 64, 64, (enum kv_type)(1 + i % 2), (enum kv_type)(1 + i / 2)};
        struct fixture f;
        cache_open(&f, &g, 3000);
        append_random(f.seq, &rng, 0, 3000);
        if (i % 2)
            compact_random(f.seq, &rng, 5);
        queries(&f, &rng, 7, 7, 2993);
        check(&f, &rng);
        close_all(&f);
    }
}

/* A query's bits are the same whether later entries exist or not, and whoever is in its batch. */
static void test_later_entries_do_not_matter(void **state)
{
    (void)state;
    uint64_t rng = 4;
    struct kv_geometry g = {1, 1, 80, 80, 32, KV_TYPE_F16, KV_TYPE_F16};
    struct fixture f;
    cache_open(&f, &g, 300);
    queries(&f, &rng, 150, 3, 0);
    float *k = random_rows(&rng, 150 * 80, 1.0f), *v = random_rows(&rng, 150 * 80, 1.0f);
    float *step = test_calloc(out_len(&f), sizeof(float));
    for (int32_t t = 0; t < 150; t++) {
        append(f.seq, t, 1, k + t * 80, v + t * 80);
        attend(&f, t, 1, step, NULL);
    }
    attend(&f, 0, 150, f.out, NULL);
    assert_same_bits(f.out, step, out_len(&f), "all at once");
    attend(&f, 17, 9, f.out, NULL);
    attend(&f, 100, 50, f.out, NULL);
    assert_same_bits(f.out, step, out_len(&f), "some of them");
    test_free(k);
    test_free(v);
    test_free(step);
    close_all(&f);
}

/* ---- deltas ---- */

/* Fills a lane with the same keys, rotated as if written at pos0 on. */
static void append_rotated(struct kv_seq *seq, const struct pi_rope *rope, int32_t pos0, int32_t n,
                           const float *k, const float *v)
{
    int32_t dim = seq->cache->g.dim_k;
    float *turned = test_calloc((size_t)(n * dim), sizeof(float));
    double *row = test_calloc((size_t)dim, sizeof(double));
    for (int32_t i = 0; i < n; i++) {
        for (int32_t d = 0; d < dim; d++)
            row[d] = k[i * dim + d];
        turn(rope, pos0 + i, row);
        for (int32_t d = 0; d < dim; d++)
            turned[i * dim + d] = (float)row[d];
    }
    append(seq, pos0, n, turned, v);
    test_free(turned);
    test_free(row);
}

/* Pages 1, 2 and 4 of a lane are replaced by pages of another lane that hold the same text 1000,
   1000 and 37 positions earlier. */
static void check_delta(bool adjacent, int32_t n_pair, enum kv_type type, double tolerance)
{
    enum { P = 16, DIM = 64, N = 6 * P };
    uint64_t rng = 5;
    double freq[DIM / 2];
    for (int32_t i = 0; i < n_pair; i++)
        freq[i] = pow(10000, -(double)i / n_pair);
    struct pi_rope rope = {.n_pair = n_pair, .adjacent = adjacent, .freq = freq, .magnitude = 1};
    struct kv_geometry g = {1, 1, DIM, DIM, P, type, type};
    float *k = random_rows(&rng, N * DIM, 1.0f), *v = random_rows(&rng, N * DIM, 1.0f);
    struct fixture f;
    cache_open(&f, &g, 4 * N);
    f.rope = &rope;
    struct kv_seq *donor, *late;
    assert_int_equal(kv_seq_create(f.cache, &donor, NULL), PITH_OK);
    assert_int_equal(kv_seq_create(f.cache, &late, NULL), PITH_OK);
    append_rotated(f.seq, &rope, 1000, N, k, v);
    append_rotated(donor, &rope, 0, N, k, v);
    append_rotated(late, &rope, 963, N, k, v);
    queries(&f, &rng, 40, 2, 1000 + N - 40);
    float *whole = test_calloc(out_len(&f), sizeof(float));
    attend(&f, 0, f.n_tok, whole, NULL);
    for (int32_t i = 1; i <= 2; i++)
        assert_int_equal(kv_seq_share_page(f.seq, 0, 0, i, donor, i, 1000, NULL), PITH_OK);
    assert_int_equal(kv_seq_share_page(f.seq, 0, 0, 4, late, 4, 37, NULL), PITH_OK);
    for (int32_t s = 0; s < N; s++)
        assert_int_equal(kv_lane_pos(f.seq, 0, 0, s), 1000 + s);
    assert_levels_agree(&f, &rng);
    assert_near_reference(&f, 5e-5);
    double worst = 0;
    for (size_t i = 0; i < out_len(&f); i++)
        worst = fmax(worst, fabs((double)f.out[i] - (double)whole[i]));
    if (worst > tolerance)
        fail_msg("delta: outputs differ by %g, expected at most %g", worst, tolerance);
    assert_true(worst > 0 || type == KV_TYPE_F32); /* pages were really replaced */
    test_free(k);
    test_free(v);
    test_free(whole);
    kv_seq_free(donor);
    kv_seq_free(late);
    close_all(&f);
}

/* Storage rounds each key where it was written, so the coarser types differ by their rounding. */
static void test_delta(void **state)
{
    (void)state;
    for (int32_t adjacent = 0; adjacent < 2; adjacent++)
        for (int32_t n_pair = 16; n_pair <= 32; n_pair += 16) {
            check_delta(adjacent, n_pair, KV_TYPE_F32, 2e-5);
            check_delta(adjacent, n_pair, KV_TYPE_F16, 2e-3);
            check_delta(adjacent, n_pair, KV_TYPE_Q8_0, 3e-2);
        }
}

/* ---- taps ---- */

static void check_tap(struct fixture *f)
{
    const struct kv_geometry *g = &f->cache->g;
    size_t n_row = (size_t)f->n_tok * (size_t)f->n_group, stride = 301;
    int32_t len = kv_lane_len(f->seq, 0, 0);
    float *logits = test_calloc(n_row * stride, sizeof(float));
    float *max = test_calloc(n_row, sizeof(float)), *sum = test_calloc(n_row, sizeof(float));
    float *out = test_calloc(out_len(f), sizeof(float)), *v = test_calloc((size_t)g->dim_v, 4);
    struct kv_attend_tap tap = {.logits = logits, .row_stride = stride, .max = max, .sum = sum};
    attend(f, 0, f->n_tok, out, NULL);
    attend(f, 0, f->n_tok, f->out, &tap);
    assert_same_bits(f->out, out, out_len(f), "with a tap");
    /* The rows and their weights give the output back. */
    for (size_t r = 0; r < n_row; r++) {
        double *want = test_calloc((size_t)g->dim_v, sizeof(double)), total = 0;
        float most = -INFINITY;
        for (int32_t s = 0; s < len; s++) {
            float x = logits[r * stride + (size_t)s];
            bool visible = kv_lane_pos(f->seq, 0, 0, s) <= f->pos0 + (int32_t)r / f->n_group;
            assert_true(visible ? isfinite(x) : x == -INFINITY);
            most = fmaxf(most, x);
            double p = visible ? exp((double)x - (double)max[r]) : 0;
            total += p;
            kv_lane_value(f->seq, 0, 0, s, v);
            for (int32_t d = 0; d < g->dim_v; d++)
                want[d] += p / (double)sum[r] * (double)v[d];
        }
        assert_true(most == max[r]);
        assert_float_equal(sum[r], total, 1e-5 * total);
        for (int32_t d = 0; d < g->dim_v; d++)
            assert_float_equal(f->out[r * (size_t)g->dim_v + (size_t)d], want[d], 1e-5);
        test_free(want);
    }
    test_free(logits);
    test_free(max);
    test_free(sum);
    test_free(out);
    test_free(v);
}

static void test_tap(void **state)
{
    (void)state;
    uint64_t rng = 6;
    for (int32_t i = 0; i < 24; i++) {
        struct kv_geometry g = {
            1, 1, 64, 32, 16 << (i % 3), (enum kv_type)(i / 3 % KV_N_TYPE), KV_TYPE_F16};
        struct fixture f;
        cache_open(&f, &g, 300);
        append_random(f.seq, &rng, 0, 120 + i * 7);
        if (i % 2)
            compact_random(f.seq, &rng, 4);
        queries(&f, &rng, i % 4 ? 3 : 30, 1 + i % 4, i * 8);
        check_tap(&f);
        close_all(&f);
    }
}

/* ---- edges ---- */

static void assert_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            fail_msg("value %zu is %g", i, (double)x[i]);
}

/* Products far beyond the range of a float, of either sign and mixed. */
static void test_huge_logits(void **state)
{
    (void)state;
    uint64_t rng = 7;
    static const float sizes[] = {1e4f, 1e20f, 3e38f};
    for (int32_t i = 0; i < 36; i++) {
        enum kv_type type = (enum kv_type)(i % KV_N_TYPE);
        struct kv_geometry g = {1, 1, 32, 32, 16, type, type};
        float size = sizes[i / 3 % 3];
        struct fixture f;
        cache_open(&f, &g, 60);
        float *k = random_rows(&rng, 60 * 32, size), *v = random_rows(&rng, 60 * 32, 1.0f);
        append(f.seq, 0, 60, k, v);
        queries(&f, &rng, i % 2 ? 1 : 20, 2, i < 18 ? 59 : 20);
        for (size_t j = 0; j < (size_t)(f.n_tok * f.n_group * 32); j++)
            f.q[j] *= size / 4.0f;
        f.scale = i % 5 == 4 ? 1e10f : 1.0f;
        assert_levels_agree(&f, &rng);
        assert_finite(f.out, out_len(&f));
        for (size_t j = 0; j < out_len(&f); j++)
            assert_true(fabsf(f.out[j]) <= 1.001f);
        test_free(k);
        test_free(v);
        close_all(&f);
    }
}

/* A row that sees one entry returns its value, bit for bit. */
static void test_single_entry_is_exact(void **state)
{
    (void)state;
    uint64_t rng = 8;
    for (int32_t i = 0; i < 3 * KV_N_TYPE; i++) {
        enum kv_type type = (enum kv_type)(i % KV_N_TYPE);
        struct kv_geometry g = {1, 1, 64, 64, 16 << (i / KV_N_TYPE), type, type};
        struct fixture f;
        float value[64];
        cache_open(&f, &g, 80);
        append_random(f.seq, &rng, 5, 70);
        queries(&f, &rng, 1, 1 + i, 5);
        attend(&f, 0, 1, f.out, NULL);
        kv_lane_value(f.seq, 0, 0, 0, value);
        for (int32_t r = 0; r <= i; r++)
            assert_same_bits(f.out + r * 64, value, 64, "single entry");
        close_all(&f);
    }
}

/* A product that rounds to a negative zero keeps its sign until something is added, even nothing:
   whether later slots are skipped or added as nothing must not show. */
static void test_negative_zero(void **state)
{
    (void)state;
    const float zero = 0.0f, k[6] = {0, -1, 0, 0, 0, 0}, v[6] = {0, -1e-45f, 1, 1, 1, 1};
    struct kv_geometry g = {1, 1, 1, 1, 16, KV_TYPE_F32, KV_TYPE_F32};
    struct fixture f;
    uint64_t rng = 11;
    cache_open(&f, &g, 6);
    queries(&f, &rng, 20, 1, 1);
    for (int32_t i = 0; i < 20; i++)
        f.q[i] = 1.0f;
    append(f.seq, 0, 2, k, v);
    attend(&f, 0, 1, f.out, NULL);
    assert_same_bits(f.out, &zero, 1, "alone");
    append(f.seq, 2, 4, k + 2, v + 2);
    attend(&f, 0, 1, f.out, NULL);
    assert_same_bits(f.out, &zero, 1, "with later entries");
    attend(&f, 0, 20, f.out, NULL);
    assert_same_bits(f.out, &zero, 1, "with later queries");
    close_all(&f);
}

/* Queries before the first entry, and an empty lane: zeros, and a tap that says so. */
static void test_nothing_visible(void **state)
{
    (void)state;
    uint64_t rng = 9;
    for (int32_t n_tok = 1; n_tok <= 21; n_tok += 20)
        for (int32_t len = 0; len <= 40; len += 40) {
            struct kv_geometry g = {1, 1, 32, 40, 16, KV_TYPE_Q8_0, KV_TYPE_F16};
            struct fixture f;
            float logits[21 * 40], max[21], sum[21];
            cache_open(&f, &g, 40);
            if (len > 0)
                append_random(f.seq, &rng, 100, len);
            queries(&f, &rng, n_tok, 1, 100 - n_tok);
            memset(f.out, 0xff, out_len(&f) * sizeof(float));
            attend(&f, 0, n_tok, f.out, &(struct kv_attend_tap){logits, 40, max, sum});
            for (size_t i = 0; i < out_len(&f); i++)
                assert_true(f.out[i] == 0.0f);
            for (int32_t r = 0; r < n_tok; r++) {
                assert_true(max[r] == -INFINITY && sum[r] == 0.0f);
                for (int32_t s = 0; s < len; s++)
                    assert_true(logits[r * 40 + s] == -INFINITY);
            }
            close_all(&f);
        }
}

/* Values 0 and 1 under logits 0 and x make the output E(x) / (1 + E(x)). */
static void test_exponential(void **state)
{
    (void)state;
    struct kv_geometry g = {1, 1, 1, 1, 16, KV_TYPE_F32, KV_TYPE_F32};
    struct fixture f;
    uint64_t rng = 10;
    enum { N = 20000 };
    cache_open(&f, &g, 2);
    append(f.seq, 0, 2, (float[]){0.0f, 1.0f}, (float[]){0.0f, 1.0f});
    queries(&f, &rng, N, 1, 1);
    f.scale = 1.0f;
    for (int32_t i = 0; i < N; i++)
        f.q[i] = i < N / 2 ? -87.0f * (float)i / (N / 2) : -(float)i / N;
    assert_levels_agree(&f, &rng);
    for (int32_t i = 0; i < N; i++) {
        double e = exp((double)f.q[i]), want = e / (1 + e);
        if (fabs(f.out[i] - want) > 4 * 0x1p-24 * want)
            fail_msg("exp(%.9g): %.9g, expected %.9g", (double)f.q[i], (double)f.out[i], want);
    }
    close_all(&f);
}

static void test_tile(void **state)
{
    (void)state;
    for (int32_t n_group = 1; n_group <= 200; n_group++) {
        int32_t tile = kv_attend_tile(n_group);
        assert_true(tile >= 1);
        assert_true(tile == 1 || (tile * n_group >= 32 && tile * n_group <= 128));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types_dims_groups),
        cmocka_unit_test(test_every_dim),
        cmocka_unit_test(test_every_length),
        cmocka_unit_test(test_long_lane),
        cmocka_unit_test(test_later_entries_do_not_matter),
        cmocka_unit_test(test_delta),
        cmocka_unit_test(test_tap),
        cmocka_unit_test(test_huge_logits),
        cmocka_unit_test(test_single_entry_is_exact),
        cmocka_unit_test(test_negative_zero),
        cmocka_unit_test(test_nothing_visible),
        cmocka_unit_test(test_exponential),
        cmocka_unit_test(test_tile),
    };
    return cmocka_run_group_tests_name("attend", tests, NULL, NULL);
}
