/*
 * test_attend_codes.c - attention over codes of 4, 3 and 2 bits. The kernels run on pages that are
 * made here bit by bit, against the numbers of the codes, and every processor level against scalar.
 * Lanes of these types are tested as in test_attend.c.
 */
#include "attend_check.h"
#include "rounded.h"

/* ---- pages made here ---- */

enum { N_TYPE = 3, ROWS = PI_ATTEND_ROWS_STORED };
static const enum pi_attend_type types[N_TYPE] = {PI_ATTEND_CODE4, PI_ATTEND_CODE3,
                                                  PI_ATTEND_CODE2};
static const int32_t dims[] = {16, 32, 48, 64, 80, 96, 112, 128, 192, 256, 320, 400, 512};

/* The coded parts. Every part is a block of its own, of its exact size, for sanitizers. */
struct coded {
    enum pi_attend_type type;
    int32_t dim;
    int32_t len;
    int32_t group;
    bool columns;
    float table[PI_ATTEND_CODES];
    uint8_t *code;   /* [len][dim] */
    uint16_t *scale; /* [len][dim / group] */
    uint8_t *low;    /* packed */
    uint8_t *high;
    uint16_t *scale_packed;
};

static int32_t group_of(int32_t dim)
{
    int32_t group = 128;
    while (dim % group != 0)
        group /= 2;
    return group;
}

static void *exact(size_t size)
{
    return test_calloc(size > 0 ? size : 1, 1);
}

/* Where the bits of a code go: docs/store.md's words. */
static void pack(struct coded *c, int32_t s, int32_t d)
{
    size_t slot = (size_t)s, i = (size_t)d, len = (size_t)c->len, dim = (size_t)c->dim;
    uint32_t code = c->code[slot * dim + i];
    size_t bits = c->type == PI_ATTEND_CODE4 ? 4 : 2, n = 32 / bits;
    size_t bit = c->columns ? ((i / n * len + slot) * n + i % n) * bits : (slot * dim + i) * bits;
    c->low[bit / 8] |= (uint8_t)((code & (bits == 4 ? 15 : 3)) << bit % 8);
    if (c->type != PI_ATTEND_CODE3)
        return;
    bit = c->columns ? (i / 16 * len + slot) * 16 + i % 16 : slot * dim + i;
    c->high[bit / 8] |= (uint8_t)((code >> 2) << bit % 8);
}

static int32_t code_count(enum pi_attend_type type)
{
    return type == PI_ATTEND_CODE4 ? 16 : type == PI_ATTEND_CODE3 ? 8 : 4;
}

/* As attend.h wants a table of fewer than 16 numbers. */
static void table_repeat(struct coded *c)
{
    for (int32_t i = 0; i < PI_ATTEND_CODES; i++)
        c->table[i] = c->table[i % code_count(c->type)];
}

static void coded_make(struct coded *c, enum pi_attend_type type, int32_t dim, int32_t group,
                       int32_t len, bool columns, uint64_t *rng)
{
    *c = (struct coded){.type = type, .dim = dim, .len = len, .columns = columns, .group = group};
    size_t n = (size_t)len * (size_t)dim, n_scale = n / (size_t)c->group;
    int32_t n_code = code_count(type);
    for (int32_t i = 0; i < PI_ATTEND_CODES; i++)
        c->table[i] = rng_float(rng);
    table_repeat(c);
    c->code = exact(n);
    c->scale = exact(n_scale * 2);
    c->scale_packed = exact(n_scale * 2);
    c->low = exact(n * (type == PI_ATTEND_CODE4 ? 4 : 2) / 8);
    c->high = exact(type == PI_ATTEND_CODE3 ? n / 8 : 0);
    for (size_t i = 0; i < n; i++) {
        c->code[i] = (uint8_t)rng_below(rng, (uint64_t)n_code);
        pack(c, (int32_t)(i / (size_t)dim), (int32_t)(i % (size_t)dim));
    }
    for (size_t i = 0; i < n_scale; i++) {
        size_t n_group = (size_t)(dim / c->group), s = i / n_group, g = i % n_group;
        c->scale[i] = (uint16_t)(0x3000 + rng_below(rng, 0x0c00)); /* 0.125 to 1 */
        c->scale_packed[columns ? g * (size_t)len + s : i] = c->scale[i];
    }
}

static void coded_free(struct coded *c)
{
    test_free(c->code);
    test_free(c->scale);
    test_free(c->scale_packed);
    test_free(c->low);
    test_free(c->high);
}

static float number(const struct coded *c, int32_t s, int32_t d)
{
    size_t at = (size_t)s * (size_t)c->dim + (size_t)d;
    return pi_f32_from_f16(c->scale[at / (size_t)c->group]) * c->table[c->code[at]];
}

/* A call with everything that it reads and writes. */
struct call {
    struct coded k, v;
    struct pi_attend_page page;
    struct pi_attend_rows rows;
    int32_t pos[PI_ATTEND_SLOTS];
    int32_t limit[ROWS];
    float *q;
    _Alignas(64) float x[ROWS * PI_ATTEND_SLOTS];
    float max[ROWS];
    float sum[ROWS];
    float rescale[ROWS];
    float *o;
};

static void call_make(struct call *c, enum pi_attend_type type_k, int32_t dim_k, int32_t group_k,
                      enum pi_attend_type type_v, int32_t dim_v, int32_t group_v, int32_t len,
                      bool columns, int32_t n_row, uint64_t *rng)
{
    memset(c, 0, sizeof(*c));
    coded_make(&c->k, type_k, dim_k, group_k, len, columns, rng);
    coded_make(&c->v, type_v, dim_v, group_v, len, false, rng);
    c->page = (struct pi_attend_page){
        .k = c->k.low,
        .k_high = type_k == PI_ATTEND_CODE3 ? c->k.high : NULL,
        .k_scale = c->k.scale_packed,
        .k_table = c->k.table,
        .v = c->v.low,
        .v_high = type_v == PI_ATTEND_CODE3 ? c->v.high : NULL,
        .v_scale = c->v.scale_packed,
        .v_table = c->v.table,
        .pos = c->pos,
        .k_group = group_k,
        .v_group = group_v,
        .page_len = len,
        .n = 1 + (int32_t)rng_below(rng, (uint64_t)len),
        .columns = columns,
        .dim_k = dim_k,
        .dim_v = dim_v,
        .v_pitch = dim_v,
    };
    for (int32_t s = 0; s < len; s++)
        c->pos[s] = 3 * s;
    c->q = random_rows(rng, (size_t)(dim_k * n_row), 4.0f);
    c->o = random_rows(rng, (size_t)(dim_v * n_row), 1.0f);
    for (int32_t r = 0; r < n_row; r++) {
        c->limit[r] = (int32_t)rng_below(rng, (uint64_t)(3 * len));
        c->max[r] = rng_float(rng);
        c->sum[r] = 1.0f + rng_float(rng);
    }
    c->rows = (struct pi_attend_rows){.n_row = n_row,
                                      .q = c->q,
                                      .scale = 3.0f / sqrtf((float)dim_k),
                                      .limit = c->limit,
                                      .x = c->x,
                                      .max = c->max,
                                      .sum = c->sum,
                                      .rescale = c->rescale,
                                      .o = c->o,
                                      .o_stride = (size_t)dim_v};
}

static void call_free(struct call *c)
{
    coded_free(&c->k);
    coded_free(&c->v);
    test_free(c->q);
    test_free(c->o);
}

/* Decoding by one level gives the numbers of the codes. */
static void check_decode(const struct call *c, const struct pi_attend_kernels *cpu)
{
    int32_t len = c->page.page_len;
    float *k = test_calloc((size_t)(len * c->page.dim_k), sizeof(float));
    float *v = test_calloc((size_t)(len * c->page.dim_v), sizeof(float));
    cpu->decode_k[c->k.type](&c->page, k);
    cpu->decode_v[c->v.type](&c->page, v);
    for (int32_t s = 0; s < len; s++) {
        for (int32_t d = 0; d < c->page.dim_k; d++)
            assert_true(k[d * len + s] == number(&c->k, s, d));
        for (int32_t d = 0; d < c->page.dim_v; d++)
            assert_true(v[s * c->page.dim_v + d] == number(&c->v, s, d));
    }
    test_free(k);
    test_free(v);
}

/* The same call by a level and by scalar; sharpness: of the weights. */
static void check_call(const struct call *c, const struct pi_attend_kernels *cpu,
                       const struct pi_attend_kernels *scalar, bool drop)
{
    size_t n_o = (size_t)(c->rows.n_row * c->page.dim_v);
    struct call a = *c, b = *c;
    float *o = test_calloc(n_o, sizeof(float)), *plain = test_calloc(n_o, sizeof(float));
    struct call *both[2] = {&a, &b};
    const struct pi_attend_kernels *by[2] = {cpu, scalar};
    memcpy(o, c->o, n_o * sizeof(float));
    memcpy(plain, c->o, n_o * sizeof(float));
    for (int32_t i = 0; i < 2; i++) {
        struct pi_attend_rows *rows = &both[i]->rows;
        rows->x = both[i]->x;
        rows->max = both[i]->max;
        rows->sum = both[i]->sum;
        rows->rescale = both[i]->rescale;
        rows->o = i == 0 ? o : plain;
        by[i]->logits[c->k.type](&c->page, rows);
        by[i]->softmax(&c->page, rows, NULL);
        rows->need = ~(uint64_t)0 >> (64 - c->page.n);
        if (drop)
            rows->need = by[i]->drop(&c->page, rows);
        by[i]->values[c->v.type](&c->page, rows);
    }
    for (int32_t r = 0; r < c->rows.n_row; r++)
        assert_same_bits(a.x + r * PI_ATTEND_SLOTS, b.x + r * PI_ATTEND_SLOTS, (size_t)c->page.n,
                         "weights");
    assert_same_bits(a.sum, b.sum, (size_t)c->rows.n_row, "sums");
    assert_true(a.rows.need == b.rows.need);
    assert_same_bits(o, plain, n_o, "outputs");
    /* The outputs equal the outputs of the values as f32 under the same weights. */
    float *v = test_calloc((size_t)(c->page.page_len * c->page.dim_v), sizeof(float));
    struct pi_attend_page page = c->page;
    scalar->decode_v[c->v.type](&page, v);
    page.v = v;
    memcpy(o, c->o, n_o * sizeof(float));
    a.rows.o = o;
    cpu->values[PI_ATTEND_F32](&page, &a.rows);
    for (size_t i = 0; i < n_o; i++)
        assert_true(o[i] == plain[i]);
    test_free(v);
    test_free(o);
    test_free(plain);
}

/* Dropped weights and others, as the header defines them. */
static void check_drop(struct call *c, const struct pi_attend_kernels *cpu, uint64_t *rng)
{
    uint64_t want = 0;
    float expect[ROWS][PI_ATTEND_SLOTS];
    for (int32_t r = 0; r < c->rows.n_row; r++) {
        c->sum[r] = 1000.0f;
        for (int32_t s = 0; s < PI_ATTEND_SLOTS; s++) {
            float p = rng_below(rng, 3) == 0 ? 0.0f : (float)exp(-1.0 * (double)rng_below(rng, 14));
            if (rng_below(rng, 4) == 0)
                p = PI_ATTEND_SMALL * c->sum[r]; /* not below */
            p = s < c->page.n ? p : 0.0f;
            c->x[r * PI_ATTEND_SLOTS + s] = p;
            expect[r][s] = p < PI_ATTEND_SMALL * c->sum[r] ? 0.0f : p;
            if (s < c->page.n && expect[r][s] > 0.0f)
                want |= (uint64_t)1 << s;
        }
    }
    assert_true(cpu->drop(&c->page, &c->rows) == want);
    for (int32_t r = 0; r < c->rows.n_row; r++)
        assert_same_bits(c->x + r * PI_ATTEND_SLOTS, expect[r], (size_t)c->page.n, "left");
}

static void check_all(struct call *c, uint64_t *rng)
{
    struct pi_kernels scalar, other;
    assert_true(pi_kernels_fill(PI_CPU_SCALAR, &scalar));
    int32_t all[ROWS];
    for (int32_t r = 0; r < ROWS; r++)
        all[r] = 3 * c->page.page_len;
    for (int level = 0; level < PI_CPU_N_LEVEL; level++) {
        if (!pi_kernels_fill((enum pi_cpu_level)level, &other))
            continue;
        check_decode(c, &other.attend);
        c->rows.all_visible = false;
        c->rows.limit = c->limit;
        check_call(c, &other.attend, &scalar.attend, false);
        c->rows.all_visible = true;
        c->rows.limit = all;
        check_call(c, &other.attend, &scalar.attend, false);
        c->rows.scale *= 20.0f; /* peaked weights */
        check_call(c, &other.attend, &scalar.attend, true);
        c->rows.scale /= 20.0f;
        check_drop(c, &other.attend, rng);
    }
}

/* Every pair of types and all heights of a call, over head sizes, orders and lengths of a page. */
TEST(kernels_agree_with_what_codes_stand_for)
{
    uint64_t rng = 1;
    for (int32_t i = 0; i < 2 * 3 * (int32_t)PI_LEN(dims) * ROWS; i += TEST_STRIDE) {
        struct call call, *c = &call;
        int32_t dim_k = dims[i % (int32_t)PI_LEN(dims)], n_row = 1 + i / 3 % ROWS;
        int32_t dim_v = i % 3 ? dim_k : dims[rng_below(&rng, PI_LEN(dims))];
        call_make(c, types[i % N_TYPE], dim_k, group_of(dim_k), types[rng_below(&rng, N_TYPE)],
                  dim_v, group_of(dim_v), 16 << rng_below(&rng, 3), i / 2 % 2, n_row, &rng);
        check_all(c, &rng);
        call_free(c);
    }
}

/* Groups of fewer dimensions than a head has, such as 32. */
TEST(kernels_read_groups_of_any_length)
{
    uint64_t rng = 2;
    for (int32_t group = 16; group <= 128; group *= 2)
        for (int32_t i = 0; i < 24; i++) {
            struct call call, *c = &call;
            int32_t dim = group * (1 + i % (384 / group));
            call_make(c, types[i % N_TYPE], dim, group, types[i / 3 % N_TYPE], dim, group,
                      16 << rng_below(&rng, 3), i / 2 % 2, 1 + i % ROWS, &rng);
            check_all(c, &rng);
            call_free(c);
        }
}

/* ---- rounded values ---- */

/* The kernels of a level. For AVX-512, the ones for processors without products of bf16. */
static bool fill_variant(int32_t i, struct pi_kernels *out)
{
    if (i < PI_CPU_N_LEVEL)
        return pi_kernels_fill((enum pi_cpu_level)i, out);
#if defined(__x86_64__)
    if (!pi_kernels_fill(PI_CPU_AVX512, out))
        return false;
    pi_attend_init_avx512(&out->attend);
    return true;
#else
    return false;
#endif
}

/* Weights are in x. Outputs of one way: from codes, or from what decoding makes of them. */
static void rounded_by(const struct call *c, const struct pi_attend_kernels *cpu, bool decoded,
                       float *out)
{
    struct call a = *c;
    struct pi_attend_page page = c->page;
    float *v = test_calloc((size_t)(page.page_len * page.dim_v), sizeof(float));
    memcpy(out, c->o, (size_t)(c->rows.n_row * page.dim_v) * sizeof(float));
    a.rows.x = a.x;
    a.rows.rescale = a.rescale;
    a.rows.o = out;
    if (decoded) {
        cpu->decode_rounded[c->v.type](&page, v);
        cpu->round_weights(&page, &a.rows);
        page.v = v;
        cpu->values[PI_ATTEND_F32](&page, &a.rows);
        for (int32_t r = 0; r < c->rows.n_row; r++)
            assert_true(a.rescale[r] == 1.0f);
    } else {
        cpu->values_rounded[c->v.type](&page, &a.rows);
        assert_same_bits(a.x, c->x, PI_LEN(a.x), "weights");
    }
    test_free(v);
}

/* The error of outputs is at most 2^-7 of an entry and a little more, plus the error of the sums.
   Weights that count as zero are below either bound. */
static void check_rounded_near(const struct call *c, const float *out)
{
    for (int32_t r = 0; r < c->rows.n_row; r++)
        for (int32_t d = 0; d < c->page.dim_v; d++) {
            size_t i = (size_t)(r * c->page.dim_v + d);
            double want = (double)c->o[i] * (double)c->rescale[r], all = fabs(want);
            double bound = c->page.n * 0x1p-80 + 0x1p-100;
            for (int32_t s = 0; s < c->page.n; s++) {
                double part = (double)number(&c->v, s, d) * (double)c->x[r * PI_ATTEND_SLOTS + s];
                want += part;
                all += fabs(part);
                bound += 0x1.02p-7 * fabs(part);
            }
            bound += 70 * 0x1p-24 * all;
            if (!(fabs((double)out[i] - want) <= bound))
                fail_msg("row %d, dimension %d: %g, expected %g within %g", r, d, (double)out[i],
                         want, bound);
        }
}

static void check_rounded(const struct call *c)
{
    struct pi_kernels scalar, other;
    size_t n = (size_t)(c->rows.n_row * c->page.dim_v);
    float *want = test_calloc(n, sizeof(float)), *out = test_calloc(n, sizeof(float));
    assert_true(pi_kernels_fill(PI_CPU_SCALAR, &scalar));
    rounded_by(c, &scalar.attend, false, want);
    check_rounded_near(c, want);
    for (int32_t i = 0; i <= PI_CPU_N_LEVEL; i++) {
        if (!fill_variant(i, &other))
            continue;
        for (int32_t decoded = 0; decoded < 2; decoded++) {
            rounded_by(c, &other.attend, decoded, out);
            for (size_t j = 0; j < n; j++) /* whatever the signs of zeros, for the last step */
                out[j] += 0.0f, want[j] += 0.0f;
            assert_same_bits(out, want, n,
                             i < PI_CPU_N_LEVEL ? pi_cpu_level_name((enum pi_cpu_level)i)
                                                : "plain AVX-512");
        }
    }
    test_free(want);
    test_free(out);
}

/* Weights, of which some are 0 in all rows, and factors; half of the calls begin a row. */
static void weights_fill(struct call *c, uint64_t *rng)
{
    uint64_t sparse = rng_below(rng, 2) ? rng_next(rng) & rng_next(rng) : ~(uint64_t)0;
    c->rows.need = ~(uint64_t)0 >> (64 - c->page.n);
    if (rng_below(rng, 4) > 0)
        c->rows.need &= sparse;
    for (int32_t r = 0; r < c->rows.n_row; r++) {
        for (int32_t s = 0; s < PI_ATTEND_SLOTS; s++)
            c->x[r * PI_ATTEND_SLOTS + s] =
                s < c->page.n && (c->rows.need >> s & 1) != 0 ? fabsf(rng_float(rng)) : 0.0f;
        c->rescale[r] = rng_below(rng, 2) ? 1.0f : fabsf(rng_float(rng));
    }
}

/* Numbers near the least normal number, and near the bounds below which the rules give zero:
   weights, scales, the table, sums, and sums that cancel. Sums are what earlier pages could have
   left: multiples of
   2^-123. */
static void nasty_fill(struct call *c, uint64_t *rng)
{
    for (int32_t i = 0; i < PI_ATTEND_CODES; i++)
        if (rng_below(rng, 2))
            c->v.table[i] = ldexpf(rng_float(rng) < 0 ? -1.0f : 1.0f, -(int)rng_below(rng, 21));
    table_repeat(&c->v);
    for (int32_t s = 0; s < c->v.len; s++)
        if (rng_below(rng, 2))
            c->v.scale[s] = c->v.scale_packed[s] =
                (uint16_t)(rng_below(rng, 2) << 15 | rng_below(rng, 2) * rng_below(rng, 0x7c00));
    for (size_t i = 0; i < PI_LEN(c->x); i++)
        if (c->x[i] > 0.0f && rng_below(rng, 4) > 0)
            c->x[i] = ldexpf(c->x[i], -(int)rng_below(rng, 126));
    for (int32_t r = 0; r < c->rows.n_row; r++) {
        if (rng_below(rng, 2))
            c->rescale[r] = ldexpf(c->rescale[r], -(int)rng_below(rng, 100));
        for (int32_t d = 0; d < c->page.dim_v; d++) {
            float *o = c->o + r * c->page.dim_v + d;
            uint64_t kind = rng_below(rng, 4);
            if (kind == 0)
                *o = 0.0f;
            else if (kind == 1)
                *o = ldexpf((float)rng_below(rng, 1 << 24) * (*o < 0.0f ? -1.0f : 1.0f), -123);
            else if (kind == 2)
                *o = ldexpf(roundf(*o * 256.0f), -8 - (int)rng_below(rng, 115));
        }
    }
}

/* Every type, head size, number of rows and page length. All levels and both ways give the same
   bits, near the exact outputs. */
TEST(rounded_weights_give_the_same_bits_at_every_level)
{
    static const int32_t sizes[] = {16, 32, 64, 128};
    uint64_t rng = 4;
    for (int32_t i = 0; i < 5 * N_TYPE * (int32_t)PI_LEN(sizes) * ROWS; i += TEST_STRIDE) {
        struct call call, *c = &call;
        int32_t dim = sizes[i / N_TYPE % (int32_t)PI_LEN(sizes)];
        call_make(c, PI_ATTEND_CODE2, 16, 16, types[i % N_TYPE], dim, dim, 16 << rng_below(&rng, 3),
                  false, 1 + i / N_TYPE / (int32_t)PI_LEN(sizes) % ROWS, &rng);
        weights_fill(c, &rng);
        check_rounded(c);
        nasty_fill(c, &rng);
        check_rounded(c);
        call_free(c);
    }
}

/* Pairs of products that nearly cancel each other and the sum, at all magnitudes down to the least.
   A processor that treats small numbers as zero would fail. */
TEST(rounded_weights_keep_small_sums)
{
    uint64_t rng = 5;
    for (int32_t i = 0; i < 3000; i += TEST_STRIDE) {
        struct call call, *c = &call;
        call_make(c, PI_ATTEND_CODE2, 16, 16, types[i % N_TYPE], 64, 64, 16, false, 2, &rng);
        for (int32_t j = 0; j < PI_ATTEND_CODES; j++)
            c->v.table[j] = (float)(1 + rng_below(&rng, 3)) * (j % 2 ? -0x1p-20f : 0x1p-20f);
        table_repeat(&c->v);
        c->rows.need = ~(uint64_t)0 >> (64 - c->page.n);
        for (int32_t s = 0; s < c->page.page_len; s++)
            c->v.scale[s] = c->v.scale_packed[s] = 0x3c00;
        for (int32_t r = 0; r < 2; r++) {
            c->rescale[r] = 1.0f;
            for (int32_t s = 0; s < PI_ATTEND_SLOTS; s++)
                c->x[r * PI_ATTEND_SLOTS + s] =
                    s < c->page.n ? ldexpf(1.0f + (float)rng_below(&rng, 128) / 128.0f,
                                           -(int)rng_below(&rng, 4) - 77)
                                  : 0.0f;
            for (int32_t d = 0; d < 64; d++)
                c->o[r * 64 + d] = ldexpf((float)rng_below(&rng, 9) - 4.0f, -100 - (int)(d % 24));
        }
        check_rounded(c);
        call_free(c);
    }
}

/* ---- scores ---- */

/* Few vectors and many, of every type, against the sums of the codes' numbers. */
static void check_scores(const struct coded *c, int32_t n_q, const struct pi_score_kernels *cpu,
                         const struct pi_score_kernels *scalar, uint64_t *rng)
{
    float *q = random_rows(rng, (size_t)(n_q * c->dim), 1.0f), got[PI_ATTEND_SLOTS] = {0},
          want[PI_ATTEND_SLOTS] = {0};
    float *packed = test_calloc(pi_score_pack_len(n_q, c->dim), sizeof(float));
    const struct pi_score_keys keys = {.k = c->low,
                                       .high = c->type == PI_ATTEND_CODE3 ? c->high : NULL,
                                       .scale = c->scale_packed,
                                       .table = c->table,
                                       .group = c->group,
                                       .n = 1 + (int32_t)rng_below(rng, (uint64_t)c->len),
                                       .dim = c->dim};
    const struct pi_score_vectors vectors = {n_q, packed};
    pi_score_pack(q, n_q, c->dim, packed);
    cpu->dot[c->type](&keys, &vectors, got);
    scalar->dot[c->type](&keys, &vectors, want);
    assert_same_bits(got, want, (size_t)keys.n, "scores");
    for (int32_t s = 0; s < keys.n; s++) {
        double top = -INFINITY;
        for (int32_t j = 0; j < n_q; j++) {
            double sum = 0;
            for (int32_t d = 0; d < c->dim; d++)
                sum += (double)q[j * c->dim + d] * (double)number(c, s, d);
            top = fmax(top, sum);
        }
        assert_true(fabs((double)got[s] - top) <= 1e-6 * c->dim);
    }
    test_free(q);
    test_free(packed);
}

TEST(scores_agree_with_what_codes_stand_for)
{
    struct pi_kernels scalar, other;
    uint64_t rng = 3;
    assert_true(pi_kernels_fill(PI_CPU_SCALAR, &scalar));
    for (int32_t i = 0; i < 3 * (int32_t)PI_LEN(dims) * 3; i++) {
        int32_t dim = dims[i / 3 % (int32_t)PI_LEN(dims)];
        static const int32_t counts[] = {1, 3, 21};
        struct coded c;
        coded_make(&c, types[i % N_TYPE], dim, i % 2 ? 16 : group_of(dim), 64, false, &rng);
        for (int level = 0; level < PI_CPU_N_LEVEL; level++)
            if (pi_kernels_fill((enum pi_cpu_level)level, &other))
                check_scores(&c, counts[i / 3 / (int32_t)PI_LEN(dims)], &other.score, &scalar.score,
                             &rng);
        coded_free(&c);
    }
}

/* ---- lanes ---- */

/* Logits that spread far: most weights are small. The weights that are dropped depend on a query
   alone. The weights that a tap sees do not depend on the values. */
static void check_peaked(enum kv_type type_v, int32_t n_tok, int32_t n_group, uint64_t seed)
{
    enum { N = 700, DIM = 64 };
    float *weight[2], *out[2];
    size_t stride = (N + 15) / 16 * 16, n_row = (size_t)(n_tok * n_group);
    for (int32_t i = 0; i < 2; i++) {
        struct kv_geometry g = geometry(DIM, DIM, 32, KV_TYPE_Q8_0, i ? KV_TYPE_F32 : type_v, 0);
        struct fixture f;
        uint64_t rng = seed;
        cache_open(&f, &g, N);
        append_random(f.seq, &rng, 0, N);
        queries(&f, &rng, n_tok, n_group, N - n_tok);
        f.scale *= 8.0f;
        assert_levels_agree(&f, &rng);
        out[i] = test_calloc(out_len(&f), sizeof(float));
        weight[i] = test_calloc(n_row * stride, sizeof(float));
        struct kv_attend_tap tap = {.weight = weight[i], .row_stride = stride};
        attend(&f, 0, n_tok, out[i], &tap);
        assert_same_bits(out[i], f.out, out_len(&f), "with a tap");
        if (i == 0) { /* the stored values under all weights that are not dropped */
            float v[DIM];
            double *sum = test_calloc(out_len(&f), sizeof(double)), most = 0;
            int32_t n_small = 0;
            for (int32_t s = 0; s < N; s++) {
                kv_lane_value(f.seq, 0, 0, s, v);
                for (size_t r = 0; r < n_row; r++) {
                    n_small += weight[0][r * stride + (size_t)s] < PI_ATTEND_SMALL;
                    for (int32_t d = 0; d < DIM; d++)
                        sum[r * DIM + (size_t)d] +=
                            (double)weight[0][r * stride + (size_t)s] * (double)v[d];
                }
            }
            for (size_t j = 0; j < out_len(&f); j++)
                most = fmax(most, fabs(sum[j] - (double)out[0][j]));
            assert_true(n_small > (int32_t)n_row * N / 2);
            if (!(most <= 2e-5 + (double)PI_ATTEND_SMALL * N + rounded_error(type_v, DIM)))
                fail_msg("outputs differ by %g", most);
            test_free(sum);
        }
        close_all(&f);
    }
    assert_same_bits(weight[0], weight[1], n_row * stride, "weights");
    for (int32_t i = 0; i < 2; i++) {
        test_free(weight[i]);
        test_free(out[i]);
    }
}

/* Of vectors of independent normal numbers, by the sum of twelve others each. */
static void append_normal(struct kv_seq *seq, uint64_t *rng, int32_t n, float *v)
{
    const struct kv_geometry *g = &seq->cache->g;
    float *k = random_rows(rng, (size_t)(n * g->dim_k), 1.0f);
    for (int32_t i = 0; i < n * g->dim_v; i++)
        for (int32_t j = 0; j < 12; j++)
            v[i] += 0.5f * rng_float(rng);
    append(seq, 0, n, k, v);
    test_free(k);
}

/*
 * The error that rounding adds to an output, beside the error of coding: |o - o'|^2 / |o|^2 over
 * all rows. o is from the original values, o' from the stored values and from the rounded ones.
 * Random queries see all entries of a lane, spread flatly or peaked.
 */
static void check_rounded_error(enum kv_type type_v, float sharpness, uint64_t *rng)
{
    enum { N = 512, DIM = 128, ROWS_ALL = 64 };
    struct kv_geometry g = geometry(DIM, DIM, 64, KV_TYPE_F32, type_v, 0);
    struct fixture f;
    float *v = test_calloc(N * DIM, sizeof(float)), stored[DIM];
    float *weight = test_calloc(ROWS_ALL * N, sizeof(float));
    double coding = 0, rounding = 0, all = 0;
    double(*sum)[2] = test_calloc(ROWS_ALL * DIM, sizeof(*sum));
    struct kv_attend_tap tap = {.weight = weight, .row_stride = N};
    cache_open(&f, &g, N);
    append_normal(f.seq, rng, N, v);
    queries(&f, rng, 1, ROWS_ALL, N - 1);
    f.scale *= sharpness;
    attend(&f, 0, 1, f.out, &tap);
    for (int32_t s = 0; s < N; s++) {
        kv_lane_value(f.seq, 0, 0, s, stored);
        for (int32_t i = 0; i < ROWS_ALL * DIM; i++) {
            double w = (double)weight[i / DIM * N + s];
            sum[i][0] += w * (double)v[s * DIM + i % DIM];
            sum[i][1] += w * (double)stored[i % DIM];
        }
    }
    for (int32_t i = 0; i < ROWS_ALL * DIM; i++) {
        all += sum[i][0] * sum[i][0];
        coding += pow(sum[i][1] - sum[i][0], 2);
        rounding += pow((double)f.out[i] - sum[i][1], 2);
    }
    print_message("%s, logits x %g: coding %.4f, rounding %.7f\n", kv_type_name(type_v),
                  (double)sharpness, coding / all, rounding / all);
    assert_true(rounding <= 2e-5 * all && rounding > 0);
    assert_true(rounding <= coding / 300);
    test_free(v);
    test_free(weight);
    test_free(sum);
    close_all(&f);
}

TEST(rounding_weights_adds_little_error)
{
    uint64_t rng = 6;
    for (enum kv_type type = KV_TYPE_TURBO4; type <= KV_TYPE_TURBO2; type++) {
        check_rounded_error(type, 0.2f, &rng);
        check_rounded_error(type, 8.0f, &rng);
    }
}

TEST(one_large_weight_is_read_exactly)
{
    for (enum kv_type type = KV_TYPE_Q4_0; type < KV_N_TYPE; type++) {
        check_peaked(type, 1, 3, 5);
        check_peaked(type, 25, 2, 6);
    }
}
