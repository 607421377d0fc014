/*
 * test_matmul.c - packed weights decode to the numbers of the file's format, and the scalar
 * products agree with sums in double. Every level gives the scalar products' bits, for every type,
 * over all tails, and writes nothing else.
 */
#include <math.h>

#include "base/half.h"
#include "base/mem.h"
#include "cpu/kernels.h"
#include "cpu/matmul_layout.h"
#include "testing.h"

#define GUARD 0x7fc12345u /* a NaN that no product gives */

/* In the order of pi_matmul_index. */
static const enum pi_dtype types[PI_MATMUL_N_TYPE] = {
    PI_DTYPE_F32,  PI_DTYPE_F16,    PI_DTYPE_BF16,   PI_DTYPE_Q8_0, PI_DTYPE_Q4_0, PI_DTYPE_Q4_1,
    PI_DTYPE_Q5_0, PI_DTYPE_Q5_1,   PI_DTYPE_Q2_K,   PI_DTYPE_Q3_K, PI_DTYPE_Q4_K, PI_DTYPE_Q5_K,
    PI_DTYPE_Q6_K, PI_DTYPE_IQ4_NL, PI_DTYPE_IQ4_XS, PI_DTYPE_MXFP4};

/* ---- weights and activations -------------------------------------------------------------- */

struct weights {
    enum pi_dtype type;
    int32_t n_row, n_col;
    size_t row_bytes;
    uint8_t *rows; /* [n_row][row_bytes], as in a file */
};

enum content { CONTENT_RANDOM, CONTENT_ALL_ONES, CONTENT_ALL_ZEROS, CONTENT_N };

static uint16_t random_half(uint64_t *rng)
{
    return pi_f16_from_f32(rng_float(rng) * (rng_below(rng, 8) == 0 ? 60.0f : 0.01f));
}

static void fill_floats(struct weights *w, uint64_t *rng)
{
    for (size_t i = 0; i < (size_t)w->n_row * (size_t)w->n_col; i++) {
        float f = rng_float(rng);
        uint16_t half = w->type == PI_DTYPE_F16 ? pi_f16_from_f32(f) : pi_bf16_from_f32(f);
        if (w->type == PI_DTYPE_F32)
            memcpy(w->rows + 4 * i, &f, 4);
        else
            memcpy(w->rows + 2 * i, &half, 2);
    }
}

/* Any byte is a valid code; only the f16 of a block must be finite. */
static struct weights weights_new(enum pi_dtype type, int32_t n_row, int32_t n_col,
                                  enum content content, uint64_t seed)
{
    const struct pi_matmul_layout *layout = pi_matmul_layout(type);
    size_t n_block = (size_t)(n_col / layout->block_len);
    struct weights w = {.type = type, .n_row = n_row, .n_col = n_col};
    w.row_bytes = n_block * (size_t)layout->block_bytes;
    w.rows = malloc(w.row_bytes * (size_t)n_row);
    assert_non_null(w.rows);
    if (pi_matmul_is_float(type)) {
        fill_floats(&w, &seed);
        return w;
    }
    for (size_t b = 0; b < n_block * (size_t)n_row; b++) {
        uint8_t *block = w.rows + b * (size_t)layout->block_bytes;
        for (int32_t i = 0; i < layout->block_bytes; i++)
            block[i] = content == CONTENT_RANDOM ? (uint8_t)rng_next(&seed)
                                                 : (content == CONTENT_ALL_ONES ? 0xff : 0);
        if (type == PI_DTYPE_Q8_0 && content != CONTENT_RANDOM)
            memset(block + 2, content == CONTENT_ALL_ONES ? 127 : 128, 32); /* the extremes */
        if (type == PI_DTYPE_MXFP4) /* the smallest are no normal numbers */
            block[0] = (uint8_t)(rng_below(&seed, 8) == 0 ? rng_below(&seed, 3)
                                                          : 118 + rng_below(&seed, 12));
        for (int32_t i = 0; i < layout->n_half; i++) {
            uint16_t half = random_half(&seed);
            memcpy(block + layout->half_offset[i], &half, 2);
        }
    }
    return w;
}

/* The first n_row rows, packed; free data with free(). */
static struct pi_matrix pack(const struct weights *w, int32_t n_row)
{
    struct pi_matrix m = {.type = w->type, .n_row = n_row, .n_col = w->n_col};
    m.n_group = (int32_t)pi_ceil_div(n_row, PI_GROUP);
    m.group_bytes = pi_matmul_group_bytes(w->type, w->n_col);
    m.data = aligned_alloc(64, (size_t)m.n_group * m.group_bytes);
    assert_non_null(m.data);
    memset(m.data, 0xa5, (size_t)m.n_group * m.group_bytes);
    for (int32_t g = 0; g < m.n_group; g++)
        pi_matmul_pack_group(w->type, w->n_col, w->rows + (size_t)g * PI_GROUP * w->row_bytes,
                             (int32_t)pi_min(PI_GROUP, n_row - g * PI_GROUP),
                             m.data + (size_t)g * m.group_bytes);
    return m;
}

/* Arrays that start at odd places: one element after an aligned address. */
struct activations {
    struct pi_act act;
    float *x;
    int8_t *q;
    float *scale;
    int16_t *sum16;
};

static struct activations activations_new(int32_t n_tok, int32_t n_col, bool extreme, uint64_t seed)
{
    size_t n_block = (size_t)pi_ceil_div(n_col, PI_ACT_BLOCK), n = (size_t)n_tok;
    struct activations a = {.x = malloc((n * (size_t)n_col + 1) * 4),
                            .q = malloc(n * n_block * PI_ACT_BLOCK + 1),
                            .scale = malloc((n * n_block + 1) * 4),
                            .sum16 = malloc((n * n_block * 2 + 1) * 2)};
    assert_true(a.x && a.q && a.scale && a.sum16);
    a.act =
        (struct pi_act){n_tok, n_col, a.x + 1, a.q + 1, a.scale + 1, a.sum16 + 1, n_tok % 2 == 0};
    for (size_t i = 0; i < n * (size_t)n_col; i++)
        a.x[1 + i] = rng_float(&seed);
    for (size_t b = 0; b < n * n_block; b++) {
        int32_t sign = rng_below(&seed, 2) ? 1 : -1;
        a.scale[1 + b] = rng_below(&seed, 16) == 0 ? 0.0f : fabsf(rng_float(&seed)) * 0.1f;
        for (size_t half = 0; half < 2; half++) {
            int32_t sum = 0;
            for (size_t i = half * 16; i < half * 16 + 16; i++) {
                bool real = b % n_block * PI_ACT_BLOCK + i < (size_t)n_col;
                int32_t q = extreme ? 127 * sign : (int32_t)rng_below(&seed, 255) - 127;
                a.q[1 + b * PI_ACT_BLOCK + i] = (int8_t)(real ? q : 0);
                sum += real ? q : 0;
            }
            a.sum16[1 + b * 2 + half] = (int16_t)sum;
        }
    }
    return a;
}

static void activations_free(struct activations *a)
{
    free(a->x);
    free(a->q);
    free(a->scale);
    free(a->sum16);
}

static void *scratch_new(int32_t n_col)
{
    void *scratch = aligned_alloc(64, pi_align(pi_matmul_scratch_bytes(n_col), 64));
    assert_non_null(scratch);
    memset(scratch, 0xff, pi_matmul_scratch_bytes(n_col));
    return scratch;
}

/* ---- packing ------------------------------------------------------------------------------ */

TEST(counts_the_bytes_of_a_group)
{
    for (int32_t i = 0; i < PI_MATMUL_N_TYPE; i++) {
        const struct pi_dtype_traits *traits = pi_dtype_find((uint32_t)types[i]);
        assert_int_equal(pi_matmul_index(types[i]), i);
        int32_t n_col = 3 * traits->block_len;
        size_t bytes = pi_matmul_group_bytes(types[i], n_col);
        assert_int_equal(bytes, pi_align(pi_dtype_row_bytes(traits, n_col) * PI_GROUP, 64));
        assert_int_equal(pi_matmul_group_bytes(types[i], 0), 0);
        if (traits->block_len > 1)
            assert_int_equal(pi_matmul_group_bytes(types[i], n_col + 1), 0);
    }
    assert_int_equal(pi_matmul_index((enum pi_dtype)77), -1);
    assert_int_equal(pi_matmul_group_bytes((enum pi_dtype)77, 256), 0);
}

TEST(packing_is_lossless)
{
    for (int32_t i = 0; i < PI_MATMUL_N_TYPE; i++) {
        const struct pi_dtype_traits *traits = pi_dtype_find((uint32_t)types[i]);
        int32_t n_col = 3 * (int32_t)pi_max(traits->block_len, 7);
        float *want = malloc((size_t)n_col * 4), *got = malloc((size_t)n_col * 4);
        for (int32_t n_row = 1; n_row <= 35; n_row += 17) {
            struct weights w = weights_new(types[i], n_row, n_col, CONTENT_RANDOM, 11);
            struct pi_matrix m = pack(&w, n_row);
            for (int32_t r = 0; r < m.n_group * PI_GROUP; r++) {
                memset(want, 0, (size_t)n_col * 4);
                if (r < n_row)
                    traits->decode(w.rows + (size_t)r * w.row_bytes, want, n_col);
                pi_matmul_unpack_row(&m, r, got);
                for (int32_t c = 0; c < n_col; c++)
                    if (got[c] != want[c])
                        fail_msg("%s row %d column %d: %.9g, not %.9g", traits->name, r, c,
                                 (double)got[c], (double)want[c]);
            }
            free(m.data);
            free(w.rows);
        }
        free(want);
        free(got);
    }
}

/* ---- the reference ------------------------------------------------------------------------ */

/* The scalar product against a sum in double of the decoded weights. The bound is that for a sum of
   n_col products rounded one by one. */
static void check_scalar(enum pi_dtype type, int32_t n_col, bool extreme)
{
    enum { N_ROW = 19, N_TOK = 3 };
    const struct pi_dtype_traits *traits = pi_dtype_find((uint32_t)type);
    struct pi_kernels k;
    assert_true(pi_kernels_fill(PI_CPU_SCALAR, &k));
    struct weights w =
        weights_new(type, N_ROW, n_col, extreme ? CONTENT_ALL_ONES : CONTENT_RANDOM, 5);
    struct pi_matrix m = pack(&w, N_ROW);
    struct activations a = activations_new(N_TOK, n_col, extreme, 6);
    void *scratch = scratch_new(n_col);
    float out[N_TOK * N_ROW], *row = malloc((size_t)n_col * 4);
    k.matmul.mul[pi_matmul_index(type)](&m, &a.act, 0, m.n_group, out, N_ROW, scratch);
    for (int32_t r = 0; r < N_ROW; r++) {
        traits->decode(w.rows + (size_t)r * w.row_bytes, row, n_col);
        for (int32_t t = 0; t < N_TOK; t++) {
            double sum = 0, magnitude = 0;
            for (int32_t c = 0; c < n_col; c++) {
                size_t block = (size_t)t * (size_t)((n_col + 31) / 32) + (size_t)(c / 32);
                double x = pi_matmul_is_float(type)
                               ? (double)a.act.x[t * n_col + c]
                               : (double)a.act.scale[block] * a.act.q[block * 32 + (size_t)c % 32];
                sum += (double)row[c] * x;
                magnitude += fabs((double)row[c] * x);
            }
            double error = fabs(sum - (double)out[t * N_ROW + r]);
            /* Minimums and codes cancel: rounded terms may be 40 times the result. */
            if (!(error <= 1e-6 * magnitude * (extreme ? 40 : 10)))
                fail_msg("%s row %d token %d: %.9g, not %.9g (error %g of %g)", traits->name, r, t,
                         (double)out[t * N_ROW + r], sum, error, magnitude);
        }
    }
    free(row);
    free(scratch);
    activations_free(&a);
    free(m.data);
    free(w.rows);
}

TEST(scalar_products_agree_with_doubles)
{
    for (int32_t i = 0; i < PI_MATMUL_N_TYPE; i++) {
        int32_t block = pi_matmul_layout(types[i])->block_len;
        check_scalar(types[i], block * (block == 1 ? 45 : 3), false);
        check_scalar(types[i], block * (block == 1 ? 64 : 2), true);
    }
}

/* ---- levels ------------------------------------------------------------------------------- */

/* The scalar products of all rows and tokens, and the place where a level writes the same. */
struct fixture {
    enum pi_cpu_level level;
    pi_matmul_fn *mul;
    struct weights w;
    struct activations a;
    float *want; /* [n_tok][n_row] */
    float *got;  /* room for more */
    size_t got_len;
    void *scratch;
};

static struct fixture fixture_new(enum pi_cpu_level level, const struct pi_kernels *k,
                                  enum pi_dtype type, int32_t n_row, int32_t n_col, int32_t n_tok,
                                  enum content content)
{
    struct fixture f = {.level = level, .mul = k->matmul.mul[pi_matmul_index(type)]};
    struct pi_kernels scalar;
    assert_true(pi_kernels_fill(PI_CPU_SCALAR, &scalar));
    f.w = weights_new(type, n_row, n_col, content, (uint64_t)(n_col + n_tok));
    f.a = activations_new(n_tok, n_col, content != CONTENT_RANDOM, (uint64_t)n_row);
    f.want = malloc((size_t)n_tok * (size_t)n_row * 4);
    f.got_len = (size_t)n_tok * (size_t)(n_row + 40) + 64;
    f.got = malloc(f.got_len * 4);
    f.scratch = scratch_new(n_col);
    struct pi_matrix m = pack(&f.w, n_row);
    scalar.matmul.mul[pi_matmul_index(type)](&m, &f.a.act, 0, m.n_group, f.want, (size_t)n_row,
                                             f.scratch);
    free(m.data);
    return f;
}

static void fixture_free(struct fixture *f)
{
    free(f->w.rows);
    activations_free(&f->a);
    free(f->want);
    free(f->got);
    free(f->scratch);
}

static void fixture_fail(const struct fixture *f, const struct pi_matrix *m, int32_t n_tok,
                         const char *what, size_t at, uint32_t got, uint32_t want)
{
    fail_msg("%s %s: %d rows, %d columns, %d tokens: %s at %zu is %08x, not %08x",
             pi_cpu_level_name(f->level), pi_dtype_find((uint32_t)m->type)->name, m->n_row,
             m->n_col, n_tok, what, at, got, want);
}

/* Groups [begin, end) of the first n_row rows, times the first n_tok tokens, written out_stride
   apart: the same bits as scalar, and nothing else touched. */
static void fixture_check(const struct fixture *f, const struct pi_matrix *m, int32_t n_tok,
                          int32_t begin, int32_t end, size_t out_stride)
{
    uint32_t *bits = (uint32_t *)(void *)f->got;
    size_t used = (size_t)n_tok * out_stride + 33;
    assert_true(used <= f->got_len);
    for (size_t i = 0; i < used; i++)
        bits[i] = GUARD;
    struct pi_act act = f->a.act;
    act.n_tok = n_tok;
    f->mul(m, &act, begin, end, f->got + 16, out_stride, f->scratch);
    int32_t row_begin = begin * PI_GROUP, row_end = (int32_t)pi_min(end * PI_GROUP, m->n_row);
    for (size_t i = 0; i < used; i++) {
        size_t t = i < 16 ? 0 : (i - 16) / out_stride,
               r = i < 16 ? SIZE_MAX : (i - 16) % out_stride;
        bool inside = i >= 16 && t < (size_t)n_tok && r >= (size_t)row_begin && r < (size_t)row_end;
        uint32_t want = GUARD;
        if (inside)
            want = pi_bits_from_f32(f->want[t * (size_t)f->w.n_row + r]);
        if (bits[i] != want)
            fixture_fail(f, m, n_tok, inside ? "output" : "guard", i, bits[i], want);
    }
}

/* Every count of rows and of tokens from 1 to 130. */
static void check_tails(enum pi_cpu_level level, const struct pi_kernels *k, enum pi_dtype type)
{
    int32_t block = pi_matmul_layout(type)->block_len;
    int32_t n_col = block == 1 ? 37 : block * (block == 32 ? 3 : 1);
    struct fixture f = fixture_new(level, k, type, 130, n_col, 130, CONTENT_RANDOM);
    for (int32_t n_row = 1; n_row <= 130; n_row++) {
        struct pi_matrix m = pack(&f.w, n_row);
        static const int32_t n_toks[] = {1, 2, 3, 5, 13};
        for (size_t i = 0; i < PI_LEN(n_toks); i++)
            fixture_check(&f, &m, n_toks[i], 0, m.n_group, (size_t)n_row + i);
        free(m.data);
    }
    for (int32_t n_row = 15; n_row <= 35; n_row += 9) {
        struct pi_matrix m = pack(&f.w, n_row);
        for (int32_t n_tok = 1; n_tok <= 130; n_tok++)
            fixture_check(&f, &m, n_tok, 0, m.n_group, (size_t)n_row + 3);
        free(m.data);
    }
    fixture_free(&f);
}

/* Columns from one block to more than a panel and than a slab has. */
static void check_columns(enum pi_cpu_level level, const struct pi_kernels *k, enum pi_dtype type)
{
    static const int32_t n_blocks_1[] = {1, 2, 31, 64, 129, 1025};
    static const int32_t n_blocks_32[] = {1, 2, 5, 16, 17, 35};
    static const int32_t n_blocks_256[] = {1, 2, 3, 5};
    int32_t block = pi_matmul_layout(type)->block_len;
    const int32_t *n_blocks = block == 1 ? n_blocks_1 : block == 32 ? n_blocks_32 : n_blocks_256;
    size_t n = block == 1    ? PI_LEN(n_blocks_1)
               : block == 32 ? PI_LEN(n_blocks_32)
                             : PI_LEN(n_blocks_256);
    for (size_t i = 0; i < n; i++)
        for (int32_t content = 0; content < CONTENT_N; content++) {
            struct fixture f =
                fixture_new(level, k, type, 51, block * n_blocks[i], 8, (enum content)content);
            struct pi_matrix m = pack(&f.w, 51);
            for (int32_t n_tok = 1; n_tok <= 8; n_tok++)
                fixture_check(&f, &m, n_tok, 0, m.n_group, 51);
            free(m.data);
            fixture_free(&f);
        }
}

/* Every range of groups: only its rows are written. */
static void check_ranges(enum pi_cpu_level level, const struct pi_kernels *k, enum pi_dtype type)
{
    int32_t block = pi_matmul_layout(type)->block_len;
    struct fixture f = fixture_new(level, k, type, 121, block == 1 ? 33 : block, 9, CONTENT_RANDOM);
    struct pi_matrix m = pack(&f.w, 121);
    for (int32_t begin = 0; begin <= m.n_group; begin++)
        for (int32_t end = begin; end <= m.n_group; end++) {
            fixture_check(&f, &m, 1, begin, end, 130);
            fixture_check(&f, &m, 9, begin, end, 121);
        }
    free(m.data);
    fixture_free(&f);
}

/* More tokens and columns than stay in a cache; long rows, whose sums fill the scratch. */
static void check_slabs(enum pi_cpu_level level, const struct pi_kernels *k, enum pi_dtype type)
{
    int32_t block = pi_matmul_layout(type)->block_len;
    int32_t n_col = block == 1 ? 300 : block == 32 ? 1056 : 1280;
    struct fixture f = fixture_new(level, k, type, 18, n_col, 515, CONTENT_RANDOM);
    struct pi_matrix m = pack(&f.w, 18);
    fixture_check(&f, &m, 515, 0, m.n_group, 18);
    fixture_check(&f, &m, 300, 0, m.n_group, 20);
    free(m.data);
    fixture_free(&f);
    f = fixture_new(level, k, type, 3, 16384, 30, CONTENT_RANDOM);
    m = pack(&f.w, 3);
    for (int32_t n_tok = 24; n_tok <= 30; n_tok += 3)
        fixture_check(&f, &m, n_tok, 0, m.n_group, 3);
    free(m.data);
    fixture_free(&f);
}

typedef void check_fn(enum pi_cpu_level level, const struct pi_kernels *k, enum pi_dtype type);

static void check_levels(check_fn *check)
{
    int32_t n_found = 0;
    for (int32_t level = PI_CPU_SCALAR + 1; level < PI_CPU_N_LEVEL; level++) {
        struct pi_kernels k;
        if (!pi_kernels_fill((enum pi_cpu_level)level, &k)) {
            printf("no level %s here\n", pi_cpu_level_name((enum pi_cpu_level)level));
            continue;
        }
        n_found++;
        for (int32_t i = 0; i < PI_MATMUL_N_TYPE; i++)
            check((enum pi_cpu_level)level, &k, types[i]);
    }
    if (n_found == 0)
        test_skip("there is no level but scalar here");
}

TEST(every_level_agrees_over_all_tails)
{
    check_levels(check_tails);
}

TEST(every_level_agrees_over_columns)
{
    check_levels(check_columns);
}

TEST(every_level_agrees_over_ranges)
{
    check_levels(check_ranges);
}

TEST(every_level_agrees_over_slabs)
{
    check_levels(check_slabs);
}

/* Products of one token and of many give the same bits in scalar, too. */
TEST(scalar_tokens_are_independent)
{
    struct pi_kernels k;
    assert_true(pi_kernels_fill(PI_CPU_SCALAR, &k));
    for (int32_t i = 0; i < PI_MATMUL_N_TYPE; i++) {
        struct fixture f = fixture_new(PI_CPU_SCALAR, &k, types[i], 20, 256, 4, CONTENT_RANDOM);
        struct pi_matrix m = pack(&f.w, 20);
        for (int32_t n_tok = 1; n_tok <= 4; n_tok++)
            for (int32_t g = 0; g < m.n_group; g++)
                fixture_check(&f, &m, n_tok, g, g + 1, 22);
        free(m.data);
        fixture_free(&f);
    }
}

/* The probes return the number of operations that they ran. */
TEST(probes_count_what_they_did)
{
    for (int32_t level = 0; level < PI_CPU_N_LEVEL; level++) {
        struct pi_kernels k;
        if (!pi_kernels_fill((enum pi_cpu_level)level, &k))
            continue;
        assert_int_equal(k.matmul.probe_int8(0), 0);
        assert_true(k.matmul.probe_int8(1) >= 8);
        assert_int_equal(k.matmul.probe_int8(1000), 1000 * k.matmul.probe_int8(1));
        assert_int_equal(k.matmul.probe_f32(1000), 1000 * k.matmul.probe_f32(1));
    }
}
