/*
 * test_attend.c - attention over lanes against a reference in double precision, and every processor
 * level against scalar bit for bit. A row's bits depend neither on the chunk and the rows beside it
 * nor on invisible entries. One file, because every lane that is made here passes all the checks.
 */
#include "attend_check.h"
#include "kv_by_page.h"
#include "rounded.h"

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
    double *q = test_calloc((size_t)g->dim_k, sizeof(double));
    int32_t *pos = test_calloc((size_t)len + 1, sizeof(int32_t));
    lane_decode(f, k, v, pos);
    for (int32_t r = 0; r < f->n_tok * f->n_group; r++) {
        query_met(g->type_k, f->q + r * g->dim_k, g->dim_k, q);
        double max = -INFINITY, sum = 0;
        for (int32_t s = 0; s < len; s++) {
            x[s] = 0;
            for (int32_t d = 0; d < g->dim_k; d++)
                x[s] += q[d] * k[s * g->dim_k + d];
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
    test_free(q);
    test_free(pos);
}

/* Values lie in [-1, 1]. Logits err by about dim * 2^-24 * their terms (below 4 / sqrt(dim)). The
   output errs by that and by some 2^-24 for each addition. Dropped small weights and rounded values
   add their own errors. Queries that are rotated before coding have other codes. Each number is off
   by up to 4 / 254, and a logit by 0.005 in the mean. */
static void assert_near_reference(const struct fixture *f, double tolerance)
{
    double *want = test_calloc(out_len(f) + 1, sizeof(double));
    reference(f, want);
    if (kv_codecs[f->cache->g.type_v].rotated)
        tolerance += (double)PI_ATTEND_SMALL * kv_lane_len(f->seq, 0, 0);
    tolerance += rounded_error(f->cache->g.type_v, f->cache->g.dim_v);
    if (f->rope != NULL && f->cache->g.type_k == KV_TYPE_Q8_0)
        tolerance += 1e-2;
    for (size_t i = 0; i < out_len(f); i++)
        if (!(fabs(f->out[i] - want[i]) <= tolerance))
            fail_msg("output %zu: %.9g, expected %.9g", i, (double)f->out[i], want[i]);
    test_free(want);
}

/* ---- the checks that every lane passes ---- */

/* Tokens [t, t + n) with weights, [n_tok][n_group][stride]. */
static void attend_weights(const struct fixture *f, int32_t t, int32_t n, float *out, float *weight,
                           size_t stride)
{
    struct kv_attend_tap tap = {.weight = weight + (size_t)(t * f->n_group) * stride,
                                .row_stride = stride};
    attend(f, t, n, out, &tap);
}

/* The same from weights in parts, with room for `room` parts. */
static void attend_parts(const struct fixture *f, int32_t t, int32_t n, int32_t room, float *out,
                         float *weight, size_t stride)
{
    size_t n_row = (size_t)(n * f->n_group);
    int32_t len = kv_lane_len(f->seq, 0, 0), n_run = kv_lane_runs(f->seq, 0, 0);
    struct kv_weight_parts parts = {.room = room};
    parts.end = test_calloc((size_t)room, sizeof(*parts.end));
    parts.factor = test_calloc((size_t)room * n_row, sizeof(*parts.factor));
    struct kv_attend_tap tap = {.weight = weight + (size_t)(t * f->n_group) * stride,
                                .row_stride = stride,
                                .parts = &parts};
    attend(f, t, n, out, &tap);
    assert_int_equal(parts.n, n_run <= room ? n_run : len > 0);
    assert_int_equal(parts.n_row, n_row);
    assert_true(len == 0 || parts.end[parts.n - 1] == len);
    for (size_t r = 0; r < n_row; r++)
        for (int32_t s = 0, j = 0; s < len; s++) {
            j += s == parts.end[j];
            tap.weight[r * stride + (size_t)s] *= parts.factor[(size_t)j * n_row + r];
        }
    test_free(parts.end);
    test_free(parts.factor);
}

static size_t weight_stride(const struct fixture *f)
{
    return (size_t)(kv_lane_len(f->seq, 0, 0) + 15) / 16 * 16;
}

static void assert_same_weights(const struct fixture *f, const float *a, const float *b,
                                const char *what)
{
    assert_same_bits(a, b, (size_t)(f->n_tok * f->n_group) * weight_stride(f), what);
}

/* Weights in parts equal the weights of the same products, unless the row's maximum moved often.
   Then stretches were joined, and weights are off by a rounding or two for each. */
static void assert_near_weights(const struct fixture *f, const float *a, const float *b)
{
    enum { STRETCHES = 32 };
    size_t n = (size_t)(f->n_tok * f->n_group) * weight_stride(f);
    int32_t n_run = kv_lane_runs(f->seq, 0, 0);
    double bound = n_run > STRETCHES ? ldexp(2.0 * n_run, -24) : 0.0;
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= bound * (double)b[i] + bound * FLT_MIN))
            fail_msg("weight %zu: %.9g in parts, %.9g", i, (double)a[i], (double)b[i]);
}

/* The output with weights is the one without, and all levels and chunks agree about the weights;
   weight receives them. */
static void assert_weights_agree(struct fixture *f, uint64_t *rng, float *weight)
{
    size_t stride = weight_stride(f), n_row = (size_t)(f->n_tok * f->n_group);
    float *other = test_calloc(n_row * stride + 1, sizeof(float));
    float *out = test_calloc(out_len(f) + 1, sizeof(float));
    assert_int_equal(pith_cpu_level_set("scalar", NULL), PITH_OK);
    attend(f, 0, f->n_tok, f->out, NULL);
    memset(weight, 0xff, n_row * stride * sizeof(float));
    attend_weights(f, 0, f->n_tok, out, weight, stride);
    assert_same_bits(out, f->out, out_len(f), "with weights");
    for (int level = 0; level < PI_CPU_N_LEVEL; level++) {
        const char *name = pi_cpu_level_name((enum pi_cpu_level)level);
        if (pith_cpu_level_set(name, NULL) != PITH_OK)
            continue;
        memset(other, 0xff, n_row * stride * sizeof(float));
        memset(out, 0xff, out_len(f) * sizeof(float));
        for (int32_t t = 0, n; t < f->n_tok; t += n) {
            n = 1 + (int32_t)rng_below(rng, rng_below(rng, 2) ? 3 : (uint64_t)f->n_tok);
            n = level == 0 ? f->n_tok : n < f->n_tok - t ? n : f->n_tok - t;
            attend_weights(f, t, n, out, other, stride);
        }
        assert_same_weights(f, other, weight, name);
        assert_same_bits(out, f->out, out_len(f), name);
        memset(other, 0xff, n_row * stride * sizeof(float));
        attend_parts(f, 0, f->n_tok, 1 + kv_lane_runs(f->seq, 0, 0), out, other, stride);
        assert_near_weights(f, other, weight);
        assert_same_bits(out, f->out, out_len(f), "in parts");
        memset(other, 0xff, n_row * stride * sizeof(float));
        attend_parts(f, 0, f->n_tok, 1, out, other, stride);
        assert_same_weights(f, other, weight, "in one part");
        memset(other, 0xff, n_row * stride * sizeof(float));
        attend_weights(f, 0, f->n_tok, NULL, other, stride);
        assert_same_weights(f, other, weight, "without values");
    }
    assert_int_equal(pith_cpu_level_set(NULL, NULL), PITH_OK);
    test_free(other);
    test_free(out);
}

/* Weights against the softmax of the logits in double precision. A weight is a product of one or
   more exponentials. Each is off by an ulp or two and by the rounding of its argument. */
static void assert_weights(struct fixture *f, uint64_t *rng)
{
    size_t stride = weight_stride(f), n_row = (size_t)(f->n_tok * f->n_group);
    size_t len = (size_t)kv_lane_len(f->seq, 0, 0);
    float *weight = test_calloc(n_row * stride + 1, sizeof(float));
    float *logits = test_calloc(n_row * stride + 1, sizeof(float));
    float *max = test_calloc(n_row, sizeof(float)), *sum = test_calloc(n_row, sizeof(float));
    struct kv_attend_tap tap = {.logits = logits, .row_stride = stride, .max = max, .sum = sum};
    assert_weights_agree(f, rng, weight);
    attend(f, 0, f->n_tok, NULL, &tap);
    for (size_t r = 0; r < n_row; r++) {
        double total = 0;
        for (size_t s = 0; s < len && sum[r] > 0; s++)
            total += exp((double)logits[r * stride + s] - (double)max[r]);
        for (size_t s = 0; s < (len + 15) / 16 * 16; s++) {
            double x = s < len ? (double)logits[r * stride + s] : -INFINITY;
            double want = sum[r] > 0 ? exp(x - (double)max[r]) / total : 0,
                   got = weight[r * stride + s];
            double bound = sum[r] > 0 && x > -INFINITY ? 2e-6 + 0x1p-23 * ((double)max[r] - x) : 0;
            if (!(fabs(got - want) <= bound * want + 1e-37))
                fail_msg("row %zu: weight %zu is %.9g, expected %.9g", r, s, got, want);
        }
    }
    test_free(weight);
    test_free(logits);
    test_free(max);
    test_free(sum);
}

static void check(struct fixture *f, uint64_t *rng)
{
    assert_weights(f, rng);
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

static void split_random(struct kv_seq *seq, uint64_t *rng)
{
    int32_t len = kv_lane_len(seq, 0, 0);
    assert_int_equal(kv_seq_reserve_table(seq, 2 * seq->cache->g.page_len, NULL), PITH_OK);
    assert_int_equal(kv_seq_split(seq, 0, 0, (int32_t)rng_below(rng, (uint64_t)len + 1), NULL),
                     PITH_OK);
}

TEST(agrees_with_doubles_for_types_dims_and_groups)
{
    static const int32_t dims[] = {64, 80, 96, 128, 40, 32, 1, 7, 16, 100, 256, 72, 112, 33};
    uint64_t rng = 1;
    for (int32_t i = 0; i < 6 * KV_N_TYPE * KV_N_TYPE; i += TEST_STRIDE) {
        struct kv_geometry g = {.n_layer = 1, .n_head = 1, .page_len = 16 << (i % 3)};
        g.type_k = (enum kv_type)(i / 3 % KV_N_TYPE);
        g.type_v = (enum kv_type)(i / 3 / KV_N_TYPE % KV_N_TYPE);
        g.index = i / 2 % 2 ? KV_INDEX_ROWS : 0; /* keys in either order */
        g.dim_k = dims[rng_below(&rng, PI_LEN(dims))];
        g.dim_v = i % 4 ? g.dim_k : dims[rng_below(&rng, PI_LEN(dims))];
        g.dim_k = dim_for(g.type_k, g.dim_k);
        g.dim_v = dim_for(g.type_v, g.dim_v);
        int32_t len = 1 + (int32_t)rng_below(&rng, 200), n_group = 1 + i % 8;
        int32_t n_tok = 1 + (int32_t)rng_below(&rng, i % 5 ? 6 : 24);
        struct fixture f;
        cache_open(&f, &g, len);
        append_random(f.seq, &rng, 0, len);
        if (i % 2)
            compact_random(f.seq, &rng, 1 + rng_below(&rng, 8));
        for (int32_t j = 0; j < i / 8 % 4; j++) /* pages of any length */
            split_random(f.seq, &rng);
        queries(&f, &rng, n_tok, n_group, (int32_t)rng_below(&rng, (uint64_t)len + 4) - n_tok);
        check(&f, &rng);
        close_all(&f);
    }
}

/* Every tail of a head size, in both ways over a page. */
TEST(agrees_with_doubles_for_every_head_size)
{
    static const enum kv_type types[] = {KV_TYPE_F32, KV_TYPE_F16, KV_TYPE_BF16};
    uint64_t rng = 12;
    for (int32_t dim = 1; dim <= 130; dim += TEST_STRIDE)
        for (int32_t i = 0; i < 12; i++) {
            enum kv_type type = types[i % 3];
            uint32_t index = i / 6 ? KV_INDEX_ROWS : 0;
            struct kv_geometry g = geometry(dim, dim, 32, type, type, index);
            struct fixture f;
            cache_open(&f, &g, 40);
            append_random(f.seq, &rng, 0, 40);
            queries(&f, &rng, i % 6 < 3 ? 1 : 5, 1 + dim % 5, 35);
            check(&f, &rng);
            close_all(&f);
        }
}

/* Transposed keys give the same logits as keys entry by entry, at every level. All types, page
   lengths and tails of a head size, full and partial pages. */
TEST(agrees_with_doubles_on_keys_side_by_side)
{
    uint64_t rng = 14;
    for (int32_t i = 0; i < 2 * KV_N_TYPE * 80; i += TEST_STRIDE) {
        enum kv_type type = (enum kv_type)(i % KV_N_TYPE);
        int32_t turn = i / KV_N_TYPE % 80, dim = 2 * turn + 1 + i / KV_N_TYPE / 80;
        uint32_t index = i / KV_N_TYPE / 40 % 2 ? KV_INDEX_ROWS : 0;
        if (kv_codecs[type].block != 1)
            dim = dim_for(type, turn % 9 * 32 + 1 + (turn % 2 ? 16 : 0));
        struct kv_geometry g = geometry(dim, 1, 16 << (turn % 3), type, KV_TYPE_F32, index);
        struct fixture f;
        cache_open(&f, &g, 100);
        append_random(f.seq, &rng, 0, 100);
        float *out = test_calloc((size_t)(dim * g.page_len), sizeof(float));
        float *key = test_calloc((size_t)dim, sizeof(float));
        for (int level = 0; level < PI_CPU_N_LEVEL; level++) {
            if (pith_cpu_level_set(pi_cpu_level_name((enum pi_cpu_level)level), NULL) != PITH_OK)
                continue;
            for (int32_t r = 0; r < kv_lane_runs(f.seq, 0, 0); r++) {
                struct kv_run run = kv_lane_run(f.seq, 0, 0, r);
                memset(out, 0xff, (size_t)(dim * g.page_len) * sizeof(float));
                kv_lane_run_keys(f.seq, 0, 0, r, out);
                for (int32_t j = 0; j < run.n; j++) {
                    kv_lane_key(f.seq, 0, 0, run.slot + j, key);
                    for (int32_t d = 0; d < dim; d++)
                        assert_same_bits(out + d * g.page_len + j, key + d, 1, "key");
                }
                for (int32_t j = 0; j < dim * g.page_len; j++)
                    assert_true(isfinite(out[j]));
            }
        }
        assert_int_equal(pith_cpu_level_set(NULL, NULL), PITH_OK);
        test_free(out);
        test_free(key);
        close_all(&f);
    }
}

/* A lane that grows by one entry, each step a generated token. */
TEST(agrees_with_doubles_for_every_length_of_a_lane)
{
    uint64_t rng = 2;
    for (int32_t type = 0; type < KV_N_TYPE; type++) {
        struct kv_geometry g =
            geometry(32, 32, 16 << (type % 3), (enum kv_type)type, (enum kv_type)type, 0);
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

TEST(agrees_with_doubles_on_a_long_lane)
{
    uint64_t rng = 3;
    static const enum kv_type pairs[][2] = {
        {KV_TYPE_F16, KV_TYPE_F16},       {KV_TYPE_Q8_0, KV_TYPE_F16},
        {KV_TYPE_F16, KV_TYPE_Q8_0},      {KV_TYPE_Q8_0, KV_TYPE_Q8_0},
        {KV_TYPE_Q8_0, KV_TYPE_TURBO3},   {KV_TYPE_TURBO4, KV_TYPE_Q4_0},
        {KV_TYPE_TURBO3, KV_TYPE_TURBO2}, {KV_TYPE_BF16, KV_TYPE_BF16}};
    for (int32_t i = 0; i < (int32_t)PI_LEN(pairs); i += TEST_STRIDE) {
        struct kv_geometry g = geometry(64, 64, 64, pairs[i][0], pairs[i][1], 0);
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

/* A query's bits depend neither on later entries nor on the other queries of its batch. */
TEST(later_entries_do_not_matter)
{
    uint64_t rng = 4;
    struct kv_geometry g = geometry(80, 80, 32, KV_TYPE_F16, KV_TYPE_F16, 0);
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

/* Pages 1, 2 and 4 of a lane are replaced by pages of another lane. They hold the same text 1000,
   1000 and 37 positions earlier. */
static void check_delta(bool adjacent, int32_t n_pair, enum kv_type type, double tolerance)
{
    enum { P = 16, DIM = 64, N = 6 * P };
    uint64_t rng = 5;
    double freq[DIM / 2];
    for (int32_t i = 0; i < n_pair; i++)
        freq[i] = pow(10000, -(double)i / n_pair);
    struct pi_rope rope = {.n_pair = n_pair, .adjacent = adjacent, .freq = freq, .magnitude = 1};
    struct kv_geometry g = geometry(DIM, DIM, P, type, type, 0);
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
        assert_int_equal(page_share(f.seq, 0, 0, i, donor, i, 1000, NULL), PITH_OK);
    assert_int_equal(page_share(f.seq, 0, 0, 4, late, 4, 37, NULL), PITH_OK);
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
TEST(reads_keys_at_shifted_positions)
{
    for (int32_t adjacent = 0; adjacent < 2; adjacent++)
        for (int32_t n_pair = 16; n_pair <= 32; n_pair += 16) {
            check_delta(adjacent, n_pair, KV_TYPE_F32, 2e-5);
            check_delta(adjacent, n_pair, KV_TYPE_F16, 2e-3);
            check_delta(adjacent, n_pair, KV_TYPE_Q8_0, 3e-2);
            check_delta(adjacent, n_pair, KV_TYPE_Q4_0, 5e-1);
            check_delta(adjacent, n_pair, KV_TYPE_TURBO4, 5e-1);
            check_delta(adjacent, n_pair, KV_TYPE_TURBO3, 1.0);
            check_delta(adjacent, n_pair, KV_TYPE_TURBO2, 1.0);
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

TEST(shows_the_logits_that_it_used)
{
    uint64_t rng = 6;
    for (int32_t i = 0; i < 42; i++) {
        struct kv_geometry g =
            geometry(64, 32, 16 << (i % 3), (enum kv_type)(i / 3 % KV_N_TYPE), KV_TYPE_F16, 0);
        g.index = i / 2 % 2 ? KV_INDEX_ROWS : 0;
        struct fixture f;
        cache_open(&f, &g, 300);
        append_random(f.seq, &rng, 0, 120 + i * 4);
        if (i % 2)
            compact_random(f.seq, &rng, 4);
        queries(&f, &rng, i % 4 ? 3 : 30, 1 + i % 4, i * 5);
        check_tap(&f);
        close_all(&f);
    }
}

/* Logits that rise from entry to entry: the maximum moves at every page. There are several times as
   many pages as a row has stretches of one maximum. */
TEST(follows_a_maximum_that_rises_with_every_entry)
{
    uint64_t rng = 13;
    enum { N = 16 * 131 + 5, DIM = 16 };
    for (int32_t i = 0; i < 6; i++) {
        struct kv_geometry g =
            geometry(DIM, DIM, 16, KV_TYPE_F32, i % 2 ? KV_TYPE_F16 : KV_TYPE_F32, 0);
        float *k = random_rows(&rng, N * DIM, 1.0f), *v = random_rows(&rng, N * DIM, 1.0f);
        struct fixture f;
        cache_open(&f, &g, N);
        for (int32_t s = 0; s < N; s++) /* steps of a page: small, large, beyond the exponential */
            k[s * DIM] = (float)s * (i < 2 ? 0.001f : i < 4 ? 0.3f : 8.0f);
        append(f.seq, 0, N, k, v);
        queries(&f, &rng, i % 3 ? 20 : 2, 2, N - 20);
        for (int32_t r = 0; r < f.n_tok * f.n_group; r++)
            f.q[r * DIM] = r % 3 ? 1.0f : 0.5f;
        assert_weights(&f, &rng);
        test_free(k);
        test_free(v);
        close_all(&f);
    }
}
