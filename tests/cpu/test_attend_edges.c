/*
 * test_attend_edges.c - attention with extreme numbers: logits beyond a float, queries that see one
 * entry or none, negative zeros, and the exponential over all of its range.
 */
#include "attend_check.h"
#include "rounded.h"
#include "near.h"

static void assert_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            fail_msg("value %zu is %g", i, (double)x[i]);
}

/* Products far beyond the range of a float, of either sign and mixed. */
TEST(logits_beyond_a_float_give_finite_outputs)
{
    uint64_t rng = 7;
    static const float sizes[] = {1e4f, 1e20f, 3e38f};
    for (int32_t i = 0; i < 12 * KV_N_TYPE; i++) {
        enum kv_type type = (enum kv_type)(i % KV_N_TYPE);
        struct kv_geometry g = geometry(32, 32, 16, type, type, 0);
        float size = sizes[i / KV_N_TYPE % 3];
        struct fixture f;
        cache_open(&f, &g, 60);
        float *k = random_rows(&rng, 60 * 32, size), *v = random_rows(&rng, 60 * 32, 1.0f);
        append(f.seq, 0, 60, k, v);
        queries(&f, &rng, i % 2 ? 1 : 20, 2, i < 6 * KV_N_TYPE ? 59 : 20);
        for (size_t j = 0; j < (size_t)(f.n_tok * f.n_group * 32); j++)
            f.q[j] *= size / 4.0f;
        f.scale = i % 5 == 4 ? 1e10f : 1.0f;
        assert_levels_agree(&f, &rng);
        assert_finite(f.out, out_len(&f));
        for (size_t j = 0; j < out_len(&f); j++) /* a coarse code may lie beyond its value */
            assert_true(fabsf(f.out[j]) <= (type <= KV_TYPE_Q8_0 ? 1.001f : 2.0f));
        test_free(k);
        test_free(v);
        close_all(&f);
    }
}

/* Numbers of either sign with exponents from `least` to `most`, and now and then 0. */
static float *spread_rows(uint64_t *rng, size_t n, int32_t least, int32_t most)
{
    float *x = random_rows(rng, n, 1.0f);
    for (size_t i = 0; i < n; i++)
        x[i] = rng_below(rng, 9) == 0
                   ? 0.0f
                   : ldexpf(x[i], least + (int32_t)rng_below(rng, (uint64_t)(most - least)));
    return x;
}

/* Products and sums that would be subnormal, which instructions for pairs treat as zero: with bf16
   they never are. Keys, queries and values from far below the stored range to large ones, mixed or
   all small, and weights that are nearly 0. */
TEST(bf16_keeps_small_numbers)
{
    static const int32_t spans[][2] = {{-150, -30}, {-150, 60}, {-62, -38}, {-45, -20}, {-3, 90}};
    static const int32_t dims[] = {64, 33, 80, 7};
    uint64_t rng = 21;
    for (int32_t i = 0; i < 4 * (int32_t)PI_LEN(spans) * (int32_t)PI_LEN(dims); i += TEST_STRIDE) {
        const int32_t *span = spans[i % 5], dim = dims[i / 5 % 4];
        enum kv_type type_k = i / 20 % 2 ? KV_TYPE_F32 : KV_TYPE_BF16;
        struct kv_geometry g =
            geometry(dim, dim, 16 << (i % 3), type_k, KV_TYPE_BF16, i / 40 ? KV_INDEX_ROWS : 0);
        struct fixture f;
        cache_open(&f, &g, 150);
        float *k = spread_rows(&rng, (size_t)(150 * dim), span[0], span[1]);
        float *v = spread_rows(&rng, (size_t)(150 * dim), span[0], span[1]);
        append(f.seq, 0, 150, k, v);
        queries(&f, &rng, i % 2 ? 1 : 20, 3, 128);
        test_free(f.q);
        f.q = spread_rows(&rng, (size_t)(f.n_tok * 3 * dim), span[0], span[1]);
        f.scale = ldexpf(1.0f, -2 * span[1] + (int32_t)rng_below(&rng, 12));
        assert_levels_agree(&f, &rng);
        assert_finite(f.out, out_len(&f));
        test_free(k);
        test_free(v);
        close_all(&f);
    }
}

static double value_top(const float *x, int32_t n)
{
    double top = 0;
    for (int32_t i = 0; i < n; i++)
        top = fmax(top, fabs((double)x[i]));
    return top;
}

/* A row that sees one entry returns its value, bit for bit, or rounded, alike in all rows. */
TEST(single_entry_is_exact)
{
    uint64_t rng = 8;
    for (int32_t i = 0; i < 3 * KV_N_TYPE; i++) {
        enum kv_type type = (enum kv_type)(i % KV_N_TYPE);
        struct kv_geometry g = geometry(64, 64, 16 << (i / KV_N_TYPE), type, type, 0);
        struct fixture f;
        float value[64];
        cache_open(&f, &g, 80);
        append_random(f.seq, &rng, 5, 70);
        queries(&f, &rng, 1, 1 + i, 5);
        attend(&f, 0, 1, f.out, NULL);
        kv_lane_value(f.seq, 0, 0, 0, value);
        for (int32_t d = 0; d < 64; d++)
            value[d] += 0.0f; /* a code of 0 under a negative scale */
        for (int32_t d = 0; d < 64; d++)
            near(f.out[d], value[d], rounded_error(type, 64) * value_top(value, 64));
        for (int32_t r = 0; r <= i; r++)
            assert_same_bits(f.out + r * 64, rounded_error(type, 64) > 0 ? f.out : value, 64,
                             "single entry");
        close_all(&f);
    }
}

/* A product that rounds to a negative zero keeps its sign until something is added, even a zero.
   The result must be the same whether later slots are skipped or added as zeros. */
TEST(negative_zero_keeps_its_sign)
{
    const float zero = 0.0f, k[6] = {0, -1, 0, 0, 0, 0}, v[6] = {0, -1e-45f, 1, 1, 1, 1};
    struct kv_geometry g = geometry(1, 1, 16, KV_TYPE_F32, KV_TYPE_F32, 0);
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
TEST(a_query_that_sees_nothing_gets_zeros)
{
    uint64_t rng = 9;
    for (int32_t n_tok = 1; n_tok <= 21; n_tok += 20)
        for (int32_t len = 0; len <= 40; len += 40) {
            struct kv_geometry g = geometry(32, 40, 16, KV_TYPE_Q8_0, KV_TYPE_F16, 0);
            struct fixture f;
            float logits[21 * 40], max[21], sum[21];
            cache_open(&f, &g, 40);
            if (len > 0)
                append_random(f.seq, &rng, 100, len);
            queries(&f, &rng, n_tok, 1, 100 - n_tok);
            memset(f.out, 0xff, out_len(&f) * sizeof(float));
            attend(&f, 0, n_tok, f.out,
                   &(struct kv_attend_tap){
                       .logits = logits, .row_stride = 40, .max = max, .sum = sum});
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
TEST(exponential_is_near_over_all_of_its_range)
{
    struct kv_geometry g = geometry(1, 1, 16, KV_TYPE_F32, KV_TYPE_F32, 0);
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

TEST(a_tile_holds_a_useful_number_of_rows)
{
    for (int32_t n_group = 1; n_group <= 200; n_group++) {
        int32_t tile = kv_attend_tile(&(struct kv_geometry){0}, n_group);
        assert_true(tile >= 1);
        assert_true(tile == 1 || (tile * n_group >= 32 && tile * n_group <= 128));
    }
}

/* ---- prefetches ---- */

/* Outputs over a page, [n_row][dim_v], with the logits in x. */
static void page_attend(const struct pi_attend_kernels *cpu, const struct kv_class *kind,
                        const struct pi_attend_page *page, struct pi_attend_rows *rows)
{
    for (int32_t r = 0; r < rows->n_row; r++) {
        rows->max[r] = -INFINITY;
        rows->sum[r] = 0.0f;
    }
    memset(rows->o, 0, (size_t)rows->n_row * rows->o_stride * sizeof(float));
    cpu->logits[kind->k.codec->kernel](page, rows);
    cpu->softmax(page, rows, NULL);
    cpu->values[kind->v.codec->kernel](page, rows);
}

/* The first page of a lane, on its own and asking for the second one, near and far. */
static void check_asking(enum kv_type type, int32_t dim, int32_t n_row)
{
    struct kv_geometry g = geometry(dim_for(type, dim), dim_for(type, dim), 64, type, type, 0);
    struct pi_kernels cpu;
    struct fixture f;
    uint64_t rng = 11;
    _Alignas(64) float x[PI_ATTEND_ROWS_STORED * PI_ATTEND_SLOTS];
    float max[PI_ATTEND_ROWS_STORED], sum[PI_ATTEND_ROWS_STORED], rescale[PI_ATTEND_ROWS_STORED];
    cache_open(&f, &g, 128);
    append_random(f.seq, &rng, 0, 128);
    queries(&f, &rng, n_row, 1, 127);
    const struct kv_lane *lane = kv_lane_at(f.seq, 0, 0);
    const struct kv_attend_job job = {
        .n_tok = n_row, .n_group = 1, .q = f.q, .q_stride = (size_t)g.dim_k};
    float *q = test_calloc((size_t)(n_row * g.dim_k), sizeof(float));
    float *row = test_calloc((size_t)g.dim_k, sizeof(float));
    const struct kv_queries to = {.q = q, .block_rows = n_row};
    kv_queries_put(&job, &lane->kind->k, 0, row, NULL, &to);
    const uint8_t *base = kv_page_at(lane->kind, lane->table[0].page);
    struct pi_attend_page page;
    kv_page_view(lane->kind, &lane->kind->layout, base,
                 kv_page_pos(lane->kind, lane->table[0].page), g.page_len, 64, &page);
    float *want = test_calloc(out_len(&f), sizeof(float));
    struct pi_attend_rows rows = {.n_row = n_row,
                                  .q = q,
                                  .q_codes = kv_query_codes(q, g.dim_k, n_row),
                                  .scale = f.scale,
                                  .all_visible = true,
                                  .x = x,
                                  .max = max,
                                  .sum = sum,
                                  .rescale = rescale,
                                  .o = want,
                                  .o_stride = (size_t)g.dim_v};
    assert_true(pi_kernels_fill(PI_CPU_SCALAR, &cpu));
    page_attend(&cpu.attend, lane->kind, &page, &rows);
    rows.o = f.out;
    for (int32_t i = 0; i < 3 * PI_CPU_N_LEVEL; i++) {
        page.next = i % 3 == 0 ? 0 : kv_page_at(lane->kind, lane->table[1].page) - base;
        page.far = i % 3 == 2;
        if (!pi_kernels_fill((enum pi_cpu_level)(i / 3), &cpu))
            continue;
        page_attend(&cpu.attend, lane->kind, &page, &rows);
        assert_same_bits(f.out, want, out_len(&f), pi_cpu_level_name((enum pi_cpu_level)(i / 3)));
    }
    test_free(want);
    test_free(q);
    test_free(row);
    close_all(&f);
}

/* Prefetching later pages, into either level of cache, changes no bits. */
TEST(asking_changes_nothing)
{
    static const enum kv_type types[] = {KV_TYPE_F32, KV_TYPE_F16, KV_TYPE_Q8_0};
    static const int32_t dims[] = {20, 64, 72, 128};
    for (size_t t = 0; t < PI_LEN(types); t++)
        for (size_t d = 0; d < PI_LEN(dims); d++)
            for (int32_t n_row = 1; n_row <= PI_ATTEND_ROWS_STORED; n_row++)
                check_asking(types[t], dims[d], n_row);
}
