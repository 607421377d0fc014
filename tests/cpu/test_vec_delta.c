/*
 * test_vec_delta.c - the kernels of a delta net. Every level gives the scalar kernel's bits, for
 * all sizes, in one piece and in parts, and the results agree with the formulas in double.
 */
#include <math.h>
#include <stdlib.h>

#include "cpu/kernels.h"
#include "testing.h"

#define MOST 70 /* of any size */
#define N_TOK 9
#define WIDTH 96 /* of a row */

static struct pi_vec_kernels scalar;

static void set_up(void)
{
    struct pi_kernels k;
    pi_kernels_fill(PI_CPU_SCALAR, &k);
    scalar = k.vec;
}

TEST_GROUP(set_up, NULL);

struct numbers {
    float x[N_TOK][WIDTH], gate[N_TOK][WIDTH], out[N_TOK][WIDTH];
    float w[MOST * PI_CONV_TAPS], past[PI_CONV_TAPS - 1][WIDTH];
    float state[(MOST + 16) * MOST];
};

static void fill(float *x, size_t n, float size, uint64_t *rng)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (rng_float(rng) * 2.0f - 1.0f) * size;
}

static void fill_all(struct numbers *s, uint64_t *rng)
{
    *s = (struct numbers){0};
    fill(&s->x[0][0], N_TOK * WIDTH, 1.0f, rng);
    fill(s->w, PI_LEN(s->w), 1.0f, rng);
    fill(&s->past[0][0], (PI_CONV_TAPS - 1) * WIDTH, 1.0f, rng);
    for (int32_t t = 0; t < N_TOK; t++) {
        s->gate[t][0] = 0.5f + 0.5f * rng_float(rng); /* decay */
        s->gate[t][1] = rng_float(rng);               /* beta */
    }
}

/* The scalar level and each of the others. */
static void for_levels(void (*check)(const struct pi_vec_kernels *k))
{
    for (int32_t level = 0; level < PI_CPU_N_LEVEL; level++) {
        struct pi_kernels k;
        if (pi_kernels_fill((enum pi_cpu_level)level, &k))
            check(&k.vec);
    }
}

static void assert_near(double got, double want, double bound)
{
    if (!(fabs(got - want) <= bound * (1 + fabs(want))))
        fail_msg("got %.9g, want %.9g", got, want);
}

/* ---- the convolution ---- */

static struct pi_vec_conv conv_of(struct numbers *s, int32_t n, int32_t n_tap, int32_t n_tok)
{
    return (struct pi_vec_conv){.w = s->w,
                                .past = &s->past[0][0],
                                .x = &s->x[0][0],
                                .out = &s->out[0][0],
                                .past_stride = WIDTH,
                                .x_stride = WIDTH,
                                .out_stride = WIDTH,
                                .n_tap = n_tap,
                                .n = n,
                                .n_tok = n_tok};
}

static void conv_is_right(const struct numbers *s, int32_t n, int32_t n_tap)
{
    for (int32_t t = 0; t < N_TOK; t++)
        for (int32_t c = 0; c < n; c++) {
            double sum = 0;
            for (int32_t j = 0; j < n_tap; j++) {
                int32_t at = t - n_tap + 1 + j;
                double x = at < 0 ? s->past[n_tap - 1 + at][c] : s->x[at][c];
                sum += (double)s->w[c * n_tap + j] * x;
            }
            assert_near(s->out[t][c], sum / (1 + exp(-sum)), 2e-6);
        }
}

static void check_conv(const struct pi_vec_kernels *k)
{
    static struct numbers a, b;
    uint64_t rng = 3;
    for (int32_t n = 1; n <= MOST; n++)
        for (int32_t n_tap = 2; n_tap <= PI_CONV_TAPS; n_tap += 1 + n % 5) {
            fill_all(&a, &rng);
            b = a;
            struct pi_vec_conv p = conv_of(&a, n, n_tap, N_TOK), q = conv_of(&b, n, n_tap, N_TOK);
            scalar.conv(&p);
            k->conv(&q);
            assert_memory_equal(a.out, b.out, sizeof(a.out));
            conv_is_right(&b, n, n_tap);
        }
}

/* ---- the state ---- */

static struct pi_vec_delta delta_of(struct numbers *s, int32_t dim, int32_t n, int32_t t0,
                                    int32_t n_tok)
{
    return (struct pi_vec_delta){.state = s->state,
                                 .q = &s->x[t0][0],
                                 .k = &s->x[t0][1],
                                 .v = &s->x[t0][2],
                                 .decay = &s->gate[t0][0],
                                 .beta = &s->gate[t0][1],
                                 .kq = &s->gate[t0][2],
                                 .out = &s->out[t0][0],
                                 .qk_stride = WIDTH,
                                 .v_stride = WIDTH,
                                 .gate_stride = WIDTH,
                                 .kq_stride = WIDTH,
                                 .out_stride = WIDTH,
                                 .scale = 0.25f,
                                 .dim = dim,
                                 .n = n,
                                 .n_tok = n_tok};
}

/* Keys and queries of length 1 and below, so that nothing grows. */
static void prepare(struct numbers *s, int32_t dim)
{
    for (int32_t t = 0; t < N_TOK; t++) {
        for (int32_t i = 0; i < WIDTH; i++)
            s->x[t][i] /= sqrtf((float)dim);
        s->gate[t][2] = scalar.product(&s->x[t][1], &s->x[t][0], dim);
    }
}

/* S *= a, S += k (b (v - S^T k))^T, out = scale S^T q. */
static void delta_is_right(const struct numbers *s, int32_t dim, int32_t n)
{
    static double state[MOST][MOST];
    memset(state, 0, sizeof(state));
    for (int32_t t = 0; t < N_TOK; t++) {
        const float *q = &s->x[t][0], *k = &s->x[t][1], *v = &s->x[t][2];
        for (int32_t j = 0; j < n; j++) {
            double by_k = 0, by_q = 0;
            for (int32_t i = 0; i < dim; i++)
                by_k += (state[i][j] *= (double)s->gate[t][0]) * (double)k[i];
            for (int32_t i = 0; i < dim; i++) {
                state[i][j] += (double)k[i] * (double)s->gate[t][1] * ((double)v[j] - by_k);
                by_q += state[i][j] * (double)q[i];
            }
            assert_near(s->out[t][j], 0.25 * by_q, 2e-6);
        }
    }
}

static void check_delta(const struct pi_vec_kernels *k)
{
    static struct numbers a, b, parts;
    uint64_t rng = 5;
    for (int32_t n = 1; n <= MOST; n++) {
        int32_t dim = 1 + (n * 7) % MOST, cut = n % N_TOK;
        fill_all(&a, &rng);
        prepare(&a, dim);
        b = parts = a;
        struct pi_vec_delta p = delta_of(&a, dim, n, 0, N_TOK), q = delta_of(&b, dim, n, 0, N_TOK);
        scalar.delta(&p);
        k->delta(&q);
        assert_memory_equal(a.out, b.out, sizeof(a.out));
        assert_memory_equal(a.state, b.state, sizeof(a.state));
        delta_is_right(&b, dim, n);
        struct pi_vec_delta first = delta_of(&parts, dim, n, 0, cut);
        struct pi_vec_delta rest = delta_of(&parts, dim, n, cut, N_TOK - cut);
        k->delta(&first);
        k->delta(&rest);
        assert_memory_equal(a.out, parts.out, sizeof(a.out));
        assert_memory_equal(a.state, parts.state, sizeof(a.state));
    }
}

/* ---- beside them ---- */

static void check_rows(const struct pi_vec_kernels *k)
{
    uint64_t rng = 7;
    for (int32_t n = 1; n <= 130; n++) {
        float x[140], gate[140], want[140], got[140];
        fill(x, 140, 2.0f, &rng);
        fill(gate, 140, n % 8 == 0 ? 300.0f : 6.0f, &rng);
        memcpy(want, x, sizeof(x));
        memcpy(got, x, sizeof(x));
        scalar.sigmoid_mul(want + 1, gate + 3, n);
        k->sigmoid_mul(got + 1, gate + 3, n);
        assert_memory_equal(got, want, sizeof(got));
        double sum = 0, square = 0;
        for (int32_t i = 1; i <= n; i++) {
            assert_near(got[i], x[i] / (1 + exp(-(double)gate[i + 2])), 1e-6);
            square += (double)x[i] * x[i];
            sum += (double)x[i] * gate[i];
        }
        float product = k->product(x + 1, gate + 1, n);
        assert_true(product == scalar.product(x + 1, gate + 1, n));
        assert_near(product, sum, 1e-4);
        memcpy(want, x, sizeof(x));
        memcpy(got, x, sizeof(x));
        scalar.unit(want + 1, n, 1e-6f);
        k->unit(got + 1, n, 1e-6f);
        assert_memory_equal(got, want, sizeof(got));
        for (int32_t i = 1; i <= n; i++)
            assert_near(got[i], x[i] / sqrt(square + 1e-6), 1e-6);
    }
}

TEST(conv_agrees_at_every_level)
{
    for_levels(check_conv);
}

TEST(delta_agrees_at_every_level)
{
    for_levels(check_delta);
}

TEST(rows_agree_at_every_level)
{
    for_levels(check_rows);
}
