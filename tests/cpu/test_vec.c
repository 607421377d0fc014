/* Rows of activations: the scalar level against plain double arithmetic, every other level against
   scalar bit for bit, over all lengths 1..130 and unaligned starts. */
#include <math.h>
#include <string.h>

#include "testing.h"

#include "base/half.h"
#include "cpu/expf.h"
#include "cpu/kernels.h"
#include "device/cpu/wht.h"

#define MAX_N 130
#define ROOM (MAX_N + 64)

static struct pi_vec_kernels scalar;

static void set_up(void)
{
    struct pi_kernels k;
    pi_kernels_fill(PI_CPU_SCALAR, &k);
    scalar = k.vec;
}

TEST_GROUP(set_up, NULL);

/* Calls check for every level that this processor has, and every length and start. */
static void for_each(void (*check)(const struct pi_vec_kernels *k, int32_t n, int32_t start,
                                   uint64_t *rng))
{
    for (int32_t level = 0; level < PI_CPU_N_LEVEL; level++) {
        struct pi_kernels k;
        uint64_t rng = 7;
        if (!pi_kernels_fill((enum pi_cpu_level)level, &k))
            continue;
        for (int32_t n = 1; n <= MAX_N; n++)
            for (int32_t start = 0; start < 4; start++)
                check(&k.vec, n, start, &rng);
    }
}

static void fill(float *x, int32_t n, float size, uint64_t *rng)
{
    for (int32_t i = 0; i < n; i++)
        x[i] = rng_float(rng) * size;
}

/* Bits are compared, so that -0 and NaN count. */
static void assert_same(const void *a, const void *b, size_t size)
{
    assert_memory_equal(a, b, size);
}

static void assert_close(double got, double want, double bound)
{
    if (!(fabs(got - want) <= bound))
        fail_msg("got %.9g, want %.9g, bound %.3g", got, want, bound);
}

static void check_rms_norm(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    float x[ROOM], gain[ROOM], want[ROOM], got[ROOM];
    fill(x, ROOM, 3.0f, rng);
    fill(gain, ROOM, 2.0f, rng);
    memcpy(got, x, sizeof(got));
    memcpy(want, x, sizeof(want));
    scalar.rms_norm(x + start, gain + start, want + start, n, 1e-5f);
    k->rms_norm(got + start, gain + start, got + start, n, 1e-5f); /* in place */
    assert_same(got, want, sizeof(got));
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[start + i] * x[start + i];
    for (int32_t i = 0; i < n; i++) {
        double y = x[start + i] * (double)gain[start + i] / sqrt(sum / n + 1e-5);
        assert_close(got[start + i], y, 3e-7 * fabs(y) + 1e-30);
    }
}

static void check_add(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    float x[ROOM], y[ROOM], got[ROOM];
    fill(x, ROOM, 3.0f, rng);
    fill(y, ROOM, 2.0f, rng);
    memcpy(got, x, sizeof(got));
    k->add(got + start, y + start, n);
    for (int32_t i = 0; i < ROOM; i++)
        x[i] = i >= start && i < start + n ? x[i] + y[i] : x[i];
    assert_same(got, x, sizeof(got));
}

static void check_exp_sum(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    float x[ROOM];
    fill(x, ROOM, rng_below(rng, 8) == 0 ? 900.0f : 12.0f, rng);
    float max = x[start];
    for (int32_t i = start; i < start + n; i++)
        max = x[i] > max ? x[i] : max;
    if (n == 0)
        return;
    double want = 0, got = k->exp_sum(x + start, n, max);
    for (int32_t i = start; i < start + n; i++)
        want += exp((double)x[i] - max);
    assert_true(k->largest(x + start, n) == max);
    assert_true(got == scalar.exp_sum(x + start, n, max));
    assert_close(got, want, 1e-15 * want);
}

static void check_silu_mul(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    float gate[ROOM], up[ROOM], want[ROOM], got[ROOM];
    fill(gate, ROOM, rng_below(rng, 8) == 0 ? 300.0f : 8.0f, rng);
    fill(up, ROOM, 2.0f, rng);
    memcpy(got, gate, sizeof(got));
    memcpy(want, gate, sizeof(want));
    scalar.silu_mul(want + start, up + start, n);
    k->silu_mul(got + start, up + start, n);
    assert_same(got, want, sizeof(got));
    for (int32_t i = start; i < start + n; i++) {
        double y = gate[i] / (1.0 + exp(-(double)gate[i])) * up[i];
        assert_close(got[i], y, 1e-6 * fabs(y) + 1e-30);
    }
}

static void check_oai_mul(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    float gate[ROOM], up[ROOM], want[ROOM], got[ROOM];
    fill(gate, ROOM, rng_below(rng, 8) == 0 ? 300.0f : 12.0f, rng);
    fill(up, ROOM, 12.0f, rng);
    memcpy(got, gate, sizeof(got));
    memcpy(want, gate, sizeof(want));
    scalar.oai_mul(want + start, up + start, n);
    k->oai_mul(got + start, up + start, n);
    assert_same(got, want, sizeof(got));
    for (int32_t i = start; i < start + n; i++) {
        double g = fmin(gate[i], 7.0), u = fmax(fmin(up[i], 7.0), -7.0);
        double y = g / (1.0 + exp(-1.702 * g)) * (u + 1.0);
        assert_close(got[i], y, (1e-6 + 2e-7 * fabs(g)) * fabs(y) + 1e-30);
    }
}

static void check_gelu_mul(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    float gate[ROOM], up[ROOM], want[ROOM], got[ROOM];
    fill(gate, ROOM, rng_below(rng, 8) == 0 ? 300.0f : 4.0f, rng);
    fill(up, ROOM, 2.0f, rng);
    memcpy(got, gate, sizeof(got));
    memcpy(want, gate, sizeof(want));
    scalar.gelu_mul(want + start, up + start, n);
    k->gelu_mul(got + start, up + start, n);
    assert_same(got, want, sizeof(got));
    for (int32_t i = start; i < start + n; i++) {
        double x = gate[i], u = 0.7978845608028654 * (x + 0.044715 * x * x * x);
        double y = x / (1.0 + exp(-2.0 * u)) * up[i];
        assert_close(got[i], y, 1e-5 * fabs(y) + 1e-30);
    }
}

static void check_soft_cap(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    float x[ROOM], want[ROOM], got[ROOM], cap = rng_below(rng, 2) == 0 ? 30.0f : 50.0f;
    fill(x, ROOM, rng_below(rng, 4) == 0 ? 3e4f : 40.0f, rng);
    x[start] = rng_below(rng, 4) == 0 ? 0.0f : x[start];
    memcpy(got, x, sizeof(got));
    memcpy(want, x, sizeof(want));
    scalar.soft_cap(want + start, cap, n);
    k->soft_cap(got + start, cap, n);
    assert_same(got, want, sizeof(got));
    for (int32_t i = start; i < start + n; i++)
        assert_close(got[i], (double)cap * tanh((double)x[i] / (double)cap), 3e-7 * (double)cap);
}

static void check_rope(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    int32_t n_pair = (n + 1) / 2;
    float x[ROOM], cs[ROOM], want[ROOM], got[ROOM];
    fill(x, ROOM, 3.0f, rng);
    for (int32_t i = 0; i < n_pair; i++) {
        double angle = rng_float(rng) * 9.0;
        cs[2 * i] = (float)cos(angle);
        cs[2 * i + 1] = (float)sin(angle);
    }
    for (int32_t adjacent = 0; adjacent < 2; adjacent++) {
        memcpy(got, x, sizeof(got));
        memcpy(want, x, sizeof(want));
        scalar.rope(want + start, cs, n_pair, adjacent);
        k->rope(got + start, cs, n_pair, adjacent);
        assert_same(got, want, sizeof(got));
        for (int32_t i = 0; i < n_pair; i++) {
            int32_t lo = start + (adjacent ? 2 * i : i);
            int32_t hi = start + (adjacent ? 2 * i + 1 : i + n_pair);
            double c = cs[2 * i], s = cs[2 * i + 1];
            assert_close(got[lo], x[lo] * c - x[hi] * s, 1e-6);
            assert_close(got[hi], x[lo] * s + x[hi] * c, 1e-6);
        }
    }
}

static void check_quantize(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    enum { N_BLOCK = (MAX_N + 31) / 32 };
    float x[ROOM], scale[2][N_BLOCK] = {{0}};
    int8_t q[2][N_BLOCK * 32] = {{0}};
    int16_t sum[2][N_BLOCK * 2] = {{0}};
    int32_t n_block = (n + 31) / 32;
    fill(x, ROOM, 5.0f, rng);
    if (rng_below(rng, 4) == 0)
        memset(x + start, 0, (size_t)(n < 32 ? n : 32) * sizeof(float));
    scalar.quantize(x + start, n, q[0], scale[0], sum[0]);
    k->quantize(x + start, n, q[1], scale[1], sum[1]);
    assert_same(q[0], q[1], sizeof(q[0]));
    assert_same(scale[0], scale[1], sizeof(scale[0]));
    assert_same(sum[0], sum[1], sizeof(sum[0]));
    for (int32_t b = 0; b < n_block; b++) {
        int32_t half[2] = {0, 0};
        for (int32_t i = 0; i < 32; i++) {
            float value = b * 32 + i < n ? x[start + b * 32 + i] : 0.0f;
            half[i / 16] += q[1][b * 32 + i];
            assert_close(q[1][b * 32 + i] * (double)scale[1][b], value, 0.501 * scale[1][b]);
        }
        assert_int_equal(sum[1][2 * b], half[0]);
        assert_int_equal(sum[1][2 * b + 1], half[1]);
    }
}

static void check_halves(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    float x[ROOM], back[ROOM] = {0};
    uint16_t half[ROOM] = {0};
    fill(x, ROOM, rng_below(rng, 4) == 0 ? 1e-5f : 100.0f, rng);
    k->f16_from_f32(x + start, half + start, n);
    k->f32_from_f16(half + start, back + start, n);
    for (int32_t i = start; i < start + n; i++) {
        assert_int_equal(half[i], pi_f16_from_f32(x[i]));
        assert_true(back[i] == pi_f32_from_f16(half[i]));
        assert_close(back[i], x[i], fabs(x[i]) / 2048 + 3e-8);
    }
    assert_int_equal(half[start + n], 0);
    assert_true(back[start + n] == 0.0f);
}

#define SCORE_ROW (MAX_N + 7)
#define SCORE_DIM 9
#define SCORE_QUERY 7

/* Every number of queries and pairs, pairings, moduli or none; out has its neighbours beside it. */
static void check_score(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    static float key[SCORE_DIM * SCORE_ROW + 4], out[SCORE_QUERY * SCORE_ROW], got[PI_LEN(out)];
    float w[SCORE_QUERY * SCORE_DIM], e[SCORE_QUERY * SCORE_DIM];
    int32_t n_pair = (n + start) % 5, dim = 2 * n_pair + start % 2;
    dim = dim > 0 ? dim : 1;
    struct pi_vec_score s = {.key = key + start,
                             .stride = SCORE_ROW,
                             .n = n,
                             .dim = dim,
                             .n_pair = n_pair,
                             .adjacent = n % 2 == 0,
                             .n_query = 1 + n % SCORE_QUERY,
                             .w = w,
                             .e = n % 3 == 0 ? NULL : e,
                             .e_stride = n % 4 == 0 ? 0 : (size_t)n_pair,
                             .out = got + start,
                             .out_stride = SCORE_ROW - 4};
    fill(key, (int32_t)PI_LEN(key), 3.0f, rng);
    fill(w, (int32_t)PI_LEN(w), 3.0f, rng);
    fill(e, (int32_t)PI_LEN(e), 3.0f, rng);
    fill(out, (int32_t)PI_LEN(out), 3.0f, rng);
    memcpy(got, out, sizeof(out));
    for (int32_t q = 0; q < s.n_query; q++)
        for (int32_t j = 0; j < n; j++) {
            float sum = 0.0f;
            for (int32_t f = 0; f < n_pair; f++) {
                int32_t a = s.adjacent ? 2 * f : f, b = s.adjacent ? 2 * f + 1 : n_pair + f;
                float x = s.key[a * SCORE_ROW + j], y = s.key[b * SCORE_ROW + j];
                float xx = x * x, yy = y * y, term = w[q * dim + a] * x;
                sum += term;
                term = w[q * dim + b] * y;
                sum += term;
                term = s.e != NULL ? e[(size_t)q * s.e_stride + (size_t)f] * sqrtf(xx + yy) : 0.0f;
                sum += term;
            }
            for (int32_t d = 2 * n_pair; d < dim; d++) {
                float term = w[q * dim + d] * s.key[d * SCORE_ROW + j];
                sum += term;
            }
            out[start + q * (SCORE_ROW - 4) + j] = sum;
        }
    k->score(&s);
    assert_same(got, out, sizeof(out));
}

static void check_scores(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    float x[ROOM], z[ROOM], got[ROOM];
    double part[16] = {0}, mean = (double)rng_float(rng), sum = 0.0;
    bool square = start % 2 == 1;
    fill(x, ROOM, 3.0f, rng);
    fill(z, ROOM, 3.0f, rng);
    for (int32_t i = 0; i < n; i++) {
        double d = (double)x[start + i] - mean, term = square ? d * d : d;
        part[i % 16] += term;
        sum += term;
    }
    for (int32_t half = 8; half > 0; half /= 2)
        for (int32_t j = 0; j < half; j++)
            part[j] += part[j + half];
    assert_true(k->sum(x + start, n, mean, square) == part[0]);
    assert_close(part[0], sum, 1e-12 * n * 16);
    memcpy(got, x, sizeof(got));
    k->standardise(got + start, n, mean, 1.75);
    for (int32_t i = 0; i < n; i++) {
        double d = ((double)x[start + i] - mean) * 1.75;
        assert_true(got[start + i] == (float)d);
        x[start + i] = got[start + i];
    }
    assert_same(got, x, sizeof(got)); /* and nothing beside it */
    memcpy(got, z, sizeof(got));
    k->take_max(got + start, x + start, n);
    for (int32_t i = start; i < start + n; i++)
        z[i] = x[i] > z[i] ? x[i] : z[i];
    assert_same(got, z, sizeof(got));
}

/* Any number of rows, those with text of their own among them. */
static void check_weigh(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    float w[9 * ROOM], c[9], part[3 * 11], factor[ROOM], out[ROOM], want[ROOM];
    uint16_t stored[ROOM];
    fill(w, 9 * ROOM, 1.0f, rng);
    fill(c, 9, 2.0f, rng);
    fill(part, 3 * 11, 2.0f, rng);
    fill(factor, ROOM, 3.0f, rng);
    for (int32_t i = 0; i < ROOM; i++) {
        stored[i] = pi_bf16_from_f32(factor[i]);
        factor[i] = pi_f32_from_bf16(stored[i]);
    }
    for (int32_t n_row = 1; n_row <= 9; n_row++) {
        memset(out, 0, sizeof(out));
        memset(want, 0, sizeof(want));
        int32_t end[3] = {n / 3, n / 3, n}; /* one of them may have nothing */
        end[1] += (int32_t)rng_below(rng, (uint64_t)(n - n / 3));
        if (n >= 64 && n_row % 2 == 0) { /* a part as long as a page */
            end[1] = n - 64;
            end[0] = end[0] < end[1] ? end[0] : end[1];
        }
        for (int32_t i = 0; i < n; i++) {
            const float *of = part + (i < end[0] ? 0 : i < end[1] ? 11 : 22);
            float sum = c[0] * of[0] * w[start + i];
            for (int32_t r = 1; r < n_row; r++)
                sum = fmaf(c[r] * of[r], w[r * ROOM + start + i], sum);
            want[start + i] = sum * factor[start + i];
        }
        struct pi_vec_weigh weigh = {w + start, ROOM, n_row,          c,           end,  3,
                                     part,      11,   stored + start, out + start, false};
        k->weigh(&weigh);
        assert_same(out, want, sizeof(out));
        weigh.add = true;
        for (int32_t i = 0; i < n; i++)
            want[start + i] += want[start + i];
        k->weigh(&weigh);
        assert_same(out, want, sizeof(out));
        weigh.add = false;
        weigh.part = NULL; /* 1 */
        for (int32_t i = 0; i < n; i++) {
            float sum = c[0] * w[start + i];
            for (int32_t r = 1; r < n_row; r++)
                sum = fmaf(c[r], w[r * ROOM + start + i], sum);
            want[start + i] = sum * factor[start + i];
        }
        k->weigh(&weigh);
        assert_same(out, want, sizeof(out));
    }
}

/* As vec.h has it, one after the other. */
static int32_t single_lowest(const float *x, int32_t n)
{
    int32_t best = 0, n_equal = 0;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(x[i]) || signbit(x[i]))
            return -1;
        n_equal = x[i] < x[best] || i == 0 ? 1 : n_equal + (x[i] == x[best]);
        best = x[i] < x[best] ? i : best;
    }
    return n_equal == 1 && isfinite(x[best]) && x[best] > 0.0f ? best : -1;
}

/* Scores with ties, infinities of both signs and NaN, ages in no order. */
static void check_lowest(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    float x[ROOM];
    int32_t age[ROOM];
    static const float odd[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f};
    for (int32_t round = 0; round < 4; round++) {
        int32_t lo = (int32_t)rng_below(rng, 40), hi = (int32_t)rng_below(rng, 200), best = -1;
        for (int32_t i = 0; i < ROOM; i++) {
            x[i] = round == 3 ? INFINITY : (float)rng_below(rng, 6) - (round == 1 ? 0.0f : 2.0f);
            if (round == 2 && rng_below(rng, 4) == 0)
                x[i] = odd[rng_below(rng, 5)];
            age[i] = i;
        }
        for (int32_t i = ROOM - 1; i > 0; i--) {
            int32_t j = (int32_t)rng_below(rng, (uint64_t)i + 1), a = age[i];
            age[i] = age[j];
            age[j] = a;
        }
        for (int32_t i = 0; i < n; i++) {
            float y = isnan(x[start + i]) ? 0.0f : x[start + i];
            float z = best < 0 || isnan(x[start + best]) ? 0.0f : x[start + best];
            if (age[start + i] >= lo && age[start + i] < hi &&
                (best < 0 || y < z || (y == z && age[start + i] < age[start + best])))
                best = i;
        }
        assert_int_equal(k->lowest(x + start, age + start, n, lo, hi), best);
        assert_int_equal(k->single_lowest(x + start, n), single_lowest(x + start, n));
        for (int32_t i = start; round != 2 && i < start + n; i++)
            x[i] = fabsf(x[i]) + 1.0f;
        assert_int_equal(k->single_lowest(x + start, n), single_lowest(x + start, n));
        x[start + (int32_t)rng_below(rng, (uint64_t)n)] = 0.5f;
        int32_t single = single_lowest(x + start, n);
        assert_true(round == 2 || x[start + single] == 0.5f);
        assert_int_equal(k->single_lowest(x + start, n), single);
    }
}

/* Rows longer than a block, with the lowest number anywhere, once and twice. */
static void check_long_lowest(const struct pi_vec_kernels *k, int32_t n, int32_t start,
                              uint64_t *rng)
{
    enum { LONG = 1100 };
    static const float odd[] = {NAN, -1.0f, -0.0f, 0.0f};
    float x[LONG];
    int32_t len = 250 + 6 * n, at = (int32_t)rng_below(rng, (uint64_t)(len - start));
    int32_t other = (int32_t)rng_below(rng, (uint64_t)(len - start));
    for (int32_t i = 0; i < LONG; i++)
        x[i] = i < start || i >= len ? 0.25f : 1.0f + (float)rng_below(rng, 1000);
    x[start + at] = 0.5f;
    assert_int_equal(k->single_lowest(x + start, len - start), at);
    x[start + other] = 0.5f;
    assert_int_equal(k->single_lowest(x + start, len - start), at == other ? at : -1);
    x[start + other] = odd[rng_below(rng, 4)];
    assert_int_equal(k->single_lowest(x + start, len - start), -1);
}

static void check_distance(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    float x[ROOM], y[ROOM];
    double want = 0.0;
    fill(x, ROOM, 3.0f, rng);
    fill(y, ROOM, 2.0f, rng);
    for (int32_t i = start; i < start + n; i++)
        want += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    float got = k->distance(x + start, y + start, n);
    assert_true(got == scalar.distance(x + start, y + start, n));
    assert_close((double)got, want, 1e-6 * want);
}

/* Element (i, j) of Hadamard's matrix in Sylvester's order is the parity of the bits of i & j. */
static void check_wht(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    float x[ROOM], got[ROOM], want[ROOM];
    uint32_t before[4], after[4];
    if (n < 16 || n > 128 || (n & (n - 1)) != 0)
        return;
    fill(x, ROOM, 3.0f, rng);
    for (int32_t i = 0; i < 4; i++) {
        before[i] = (uint32_t)rng_next(rng);
        after[i] = (uint32_t)rng_next(rng);
    }
    memcpy(got, x, sizeof(got));
    memcpy(want, x, sizeof(want));
    k->wht(got + start, n, before, after, 0.3f);
    scalar.wht(want + start, n, before, after, 0.3f);
    assert_same(got, want, sizeof(got));
    for (int32_t i = 0; i < n; i++) {
        double sum = 0;
        for (int32_t j = 0; j < n; j++) {
            uint32_t both = (uint32_t)(i & j), odd = 0;
            for (; both != 0; both &= both - 1)
                odd ^= 1;
            double sign = odd ^ (~before[j / 32] >> j % 32 & 1) ? -1 : 1;
            sum += sign * (double)x[start + j];
        }
        sum *= after[i / 32] >> i % 32 & 1 ? (double)0.3f : -(double)0.3f;
        assert_close((double)got[start + i], sum, 2e-5);
    }
}

/* Codes against the midpoints one by one, also for numbers that lie on one, and the sums that judge
   them, for tables of every length. */
static void check_table(const struct pi_vec_kernels *k, int32_t n, int32_t start, uint64_t *rng)
{
    float x[ROOM], table[16];
    uint8_t got[ROOM];
    int32_t n_code = 2 + n % 15;
    if (n % 16 != 0 || n > 128)
        return;
    fill(x, ROOM, 3.0f, rng);
    for (int32_t c = 0; c < n_code; c++)
        table[c] = (c > 0 ? table[c - 1] : -1.0f) + 0.05f + fabsf(rng_float(rng)) * 0.2f;
    for (int32_t round = 0; round < 3; round++) {
        float length = 1.0f + 0.4f * (float)round, along, own, fit[2];
        double want[2] = {0, 0};
        x[start + n / 2] = 0.5f * (table[0] + table[1]) * length;
        k->table_codes(x + start, n, table, n_code, length, got);
        for (int32_t i = 0; i < n; i++) {
            int32_t code = 0;
            while (code + 1 < n_code &&
                   x[start + i] >= 0.5f * (table[code] + table[code + 1]) * length)
                code++;
            assert_int_equal(got[i], code);
            want[0] += (double)x[start + i] * (double)table[code];
            want[1] += (double)table[code] * (double)table[code];
        }
        k->table_fit(x + start, n, table, n_code, length, &along, &own);
        scalar.table_fit(x + start, n, table, n_code, length, &fit[0], &fit[1]);
        assert_true(along == fit[0] && own == fit[1]);
        assert_close((double)along, want[0], 1e-4);
        assert_close((double)own, want[1], 1e-4);
    }
}

/* The rotation of a unit vector of tests/vectors/v3.json ("turbo", e0 and the LCG vector):
   its signs are the ones that others have. Then back again, for every group. */
TEST(rotation_has_the_published_signs)
{
    static const float want[6] = {-0.0520140640f, -0.1171502396f, 0.1662762612f,
                                  0.0186958052f,  0.0005325676f,  0.0154598790f};
    float x[384], back[384];
    uint32_t seed = 12345;
    double norm = 0;
    for (int32_t i = 0; i < 128; i++) {
        seed = (seed * 1103515245u + 12345u) & 0x7fffffffu;
        x[i] = (float)((int32_t)((seed >> 8) % 20001u) - 10000) / 2500.0f;
        norm += (double)x[i] * (double)x[i];
    }
    memcpy(back, x, sizeof(float) * 128);
    kv_wht(back, 128, 128, false);
    for (int32_t i = 0; i < 6; i++)
        assert_close((double)back[i] / sqrt(norm), (double)want[i], 1e-6);
    uint64_t rng = 3;
    for (int32_t group = KV_WHT_MIN; group <= KV_WHT_MAX; group *= 2) {
        double before = 0, after = 0;
        fill(x, 384, 1.0f, &rng);
        memcpy(back, x, sizeof(x));
        kv_wht(back, 384, group, false);
        for (int32_t i = 0; i < 384; i++) {
            before += (double)x[i] * (double)x[i];
            after += (double)back[i] * (double)back[i];
        }
        assert_close(after, before, 1e-5 * before);
        assert_true(memcmp(back, x, sizeof(x)) != 0);
        kv_wht(back, 384, group, true);
        for (int32_t i = 0; i < 384; i++)
            assert_close((double)back[i], (double)x[i], 1e-6);
    }
}

TEST(exp_sum_agrees_at_every_level)
{
    for_each(check_exp_sum);
}

TEST(wht_agrees_at_every_level)
{
    for_each(check_wht);
}
TEST(table_agrees_at_every_level)
{
    for_each(check_table);
}
TEST(weigh_agrees_at_every_level)
{
    for_each(check_weigh);
}
TEST(lowest_agrees_at_every_level)
{
    for_each(check_lowest);
}
TEST(lowest_of_long_rows_agrees_at_every_level)
{
    for_each(check_long_lowest);
}
TEST(distance_agrees_at_every_level)
{
    for_each(check_distance);
}
TEST(scores_agree_at_every_level)
{
    for_each(check_scores);
}
TEST(score_agrees_at_every_level)
{
    for_each(check_score);
}
TEST(rms_norm_agrees_at_every_level)
{
    for_each(check_rms_norm);
}
TEST(add_agrees_at_every_level)
{
    for_each(check_add);
}
TEST(gelu_mul_agrees_at_every_level)
{
    for_each(check_gelu_mul);
}

TEST(soft_cap_agrees_at_every_level)
{
    for_each(check_soft_cap);
}

TEST(silu_mul_agrees_at_every_level)
{
    for_each(check_silu_mul);
}
TEST(oai_mul_agrees_at_every_level)
{
    for_each(check_oai_mul);
}
TEST(rope_agrees_at_every_level)
{
    for_each(check_rope);
}
/* 127 over the largest of them would be beyond f32. */
static void check_quantize_tiny(const struct pi_vec_kernels *k, int32_t n, int32_t start,
                                uint64_t *rng)
{
    float x[32], scale;
    int8_t q[32];
    int16_t sum[2];
    (void)n;
    (void)start;
    fill(x, 32, 0x1p-124f, rng);
    k->quantize(x, 32, q, &scale, sum);
    for (int32_t i = 0; i < 32; i++)
        assert_int_equal(q[i], 0);
    assert_int_equal(sum[0], 0);
    assert_int_equal(sum[1], 0);
}

TEST(quantize_agrees_at_every_level)
{
    for_each(check_quantize);
    for_each(check_quantize_tiny);
}
TEST(halves_agree_at_every_level)
{
    for_each(check_halves);
}

/* Every half float, both ways: the level's instructions against the portable conversion. */
TEST(every_half_converts_as_the_portable_code)
{
    static uint16_t all[65536], back[65536];
    static float value[65536];
    for (int32_t i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (int32_t level = 0; level < PI_CPU_N_LEVEL; level++) {
        struct pi_kernels k;
        if (!pi_kernels_fill((enum pi_cpu_level)level, &k))
            continue;
        k.vec.f32_from_f16(all, value, 65536);
        k.vec.f16_from_f32(value, back, 65536);
        for (int32_t i = 0; i < 65536; i++) {
            bool nan = (i & 0x7c00) == 0x7c00 && (i & 0x3ff) != 0;
            assert_true(nan ? value[i] != value[i] : back[i] == i);
        }
    }
}

TEST(exp_is_near_over_its_range)
{
    for (double x = -86.9; x < 87.9; x += 0.00137) {
        double want = exp((float)x);
        assert_close(pi_expf((float)x), want, 1.8e-7 * want);
    }
    assert_true(pi_expf(0.0f) == 1.0f);
}
