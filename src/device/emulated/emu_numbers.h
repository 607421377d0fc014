/*
 * emu_numbers.h - the arithmetic of an emulated GPU: f16, bits, atomics, and products and shuffles
 * of a warp. mma adds 16 exact products and the old value in f64 and rounds once. So results differ
 * from a GPU's in the last bits, as two GPUs may differ.
 */
#ifndef PI_EMU_NUMBERS_H
#define PI_EMU_NUMBERS_H

#include <immintrin.h>

#include "device/emulated/emu_fibers.h"

/* ---- f16 ---- */

static inline float emu_f(uint32_t h)
{
    return _cvtsh_ss((uint16_t)h);
}
static inline uint32_t emu_h(float f)
{
    return _cvtss_sh(f, 0);
}
static inline float h_lo(uint32_t x)
{
    return emu_f(x & 0xffff);
}
static inline float h_hi(uint32_t x)
{
    return emu_f(x >> 16);
}
static inline uint32_t h2(float lo, float hi)
{
    return emu_h(lo) | emu_h(hi) << 16;
}
static inline uint32_t h2_add(uint32_t a, uint32_t b)
{
    return h2(h_lo(a) + h_lo(b), h_hi(a) + h_hi(b));
}
static inline uint32_t h2_mul(uint32_t a, uint32_t b)
{
    return h2(h_lo(a) * h_lo(b), h_hi(a) * h_hi(b));
}
static inline uint32_t h2_min(uint32_t a, uint32_t b)
{
    return h2(fminf(h_lo(a), h_lo(b)), fminf(h_hi(a), h_hi(b)));
}
/* The product of two f16 is exact in f32, the sum of it and a f16 in f64. */
static inline uint32_t emu_hfma(float a, float b, float c)
{
    double x = (double)(a * b) + (double)c;
    float y = (float)x; /* rounded to odd, so that rounding twice is rounding once */
    uint32_t bits;
    memcpy(&bits, &y, 4);
    if ((double)y != x) {
        if (fabs((double)y) > fabs(x))
            bits--;
        bits |= 1;
        memcpy(&y, &bits, 4);
    }
    return emu_h(y);
}
static inline uint32_t h2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    return emu_hfma(h_lo(a), h_lo(b), h_lo(c)) | emu_hfma(h_hi(a), h_hi(b), h_hi(c)) << 16;
}
static inline uint32_t h2_low(uint32_t x)
{
    return (x & 0xffff) | x << 16;
}
static inline uint32_t h2_high(uint32_t x)
{
    return x >> 16 | (x & 0xffff0000u);
}
static inline uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits)
{
    return (x & mask) | bits;
}
static inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t sel)
{
    uint64_t all = a | (uint64_t)b << 32;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++)
        r |= (uint32_t)(all >> (8 * (sel >> (4 * i) & 7)) & 0xff) << (8 * i);
    return r;
}
static inline int anew(int x)
{
    return x;
}
static inline uint32_t prmt_of(uint32_t a, uint32_t b, uint32_t sel)
{
    if ((sel & 0x8888u) != 0)
        EMU_FAIL("a selector of prmt_of is above 7");
    return prmt(a, b, sel);
}
static inline uint32_t or_and(uint32_t a, uint32_t b, uint32_t mask)
{
    return (a | b) & mask;
}
static inline uint32_t pick(uint32_t mask, uint32_t a, uint32_t b)
{
    return (a & mask) | (b & ~mask);
}
static inline float reciprocal(float x)
{
    return 1.0f / x;
}
static inline float ex2(float x)
{
    return exp2f(x);
}
static inline float AS_F(uint32_t x)
{
    float y;
    memcpy(&y, &x, 4);
    return y;
}
static inline uint32_t AS_U(float x)
{
    uint32_t y;
    memcpy(&y, &x, 4);
    return y;
}
static inline int32_t atomic_next(int32_t *p)
{
    return __atomic_fetch_add(p, 1, __ATOMIC_RELAXED);
}
static inline void atomic_min(int32_t *p, int32_t v)
{
    int32_t was = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (v < was &&
           !__atomic_compare_exchange_n(p, &was, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}
static inline void atomic_max(uint32_t *p, uint32_t v)
{
    uint32_t was = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (v > was &&
           !__atomic_compare_exchange_n(p, &was, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}
static inline void atomic_add(uint32_t *p, uint32_t v)
{
    __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

static inline uint32_t atomic_wrap(uint32_t *p, uint32_t last)
{
    uint32_t was = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &was, was >= last ? 0 : was + 1, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
    return was;
}

struct emu_mma {
    float *d;
    const uint32_t *a;
    uint32_t b[2];
};
/* Four or eight numbers of registers as f64, pair by pair to where they belong. */
EMU_OWN static void emu_pairs(const uint32_t *h, int n, double *out, int step)
{
    for (int i = 0; i < n; i += 2) {
        const __m256d x = _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(h + i))));
        _mm_storeu_pd(out + i * step, _mm256_castpd256_pd128(x));
        _mm_storeu_pd(out + (i + 1) * step, _mm256_extractf128_pd(x, 1));
    }
}
/* Adds the product of a [lane][register][half] and b to the numbers of each lane. Products are
   exact, and so are sums but for the last bits of f64. Columns go side by side. */
EMU_OWN static void emu_mma_sums(const double (*a)[4][2], const double (*b)[8], float *const *to)
{
    for (int r = 0; r < 16; r++) {
        __m256d sum0 = _mm256_setzero_pd(), sum1 = sum0;
        alignas(32) double sum[8];
        for (int k = 0; k < 16; k++) {
            const double *of = &a[r % 8 * 4 + k % 8 / 2][r / 8 + k / 8 * 2][k % 2];
            const __m256d x = _mm256_broadcast_sd(of);
            sum0 = _mm256_fmadd_pd(x, _mm256_load_pd(b[k]), sum0);
            sum1 = _mm256_fmadd_pd(x, _mm256_load_pd(b[k] + 4), sum1);
        }
        _mm256_store_pd(sum, sum0);
        _mm256_store_pd(sum + 4, sum1);
        for (int c = 0; c < 8; c++) {
            float *d = to[r % 8 * 4 + c / 2] + r / 8 * 2 + c % 2;
            *d = (float)((double)*d + sum[c]);
        }
    }
}
EMU_OWN static void emu_mma_all(void **p)
{
    emu_mma **m = (emu_mma **)p;
    alignas(32) double a[32][4][2], b[16][8], lane[2][2];
    float *d[32];
    for (int l = 0; l < 32; l++) {
        d[l] = m[l]->d;
        emu_pairs(m[l]->a, 4, a[l][0], 2);
        emu_pairs(m[l]->b, 2, lane[0], 2);
        for (int i = 0; i < 4; i++)
            b[2 * (l % 4) + 8 * (i >> 1) + (i & 1)][l / 4] = lane[i >> 1][i & 1];
    }
    emu_mma_sums(a, b, d);
}
static void mma(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    emu_mma arg = {d, a, {b0, b1}};
    emu_meet(1, &arg, emu_mma_all);
}
struct emu_rows {
    uint32_t *r;
    const uint8_t *row;
};
static void ldsm4(uint32_t *r, const void *row)
{
    emu_rows arg = {r, (const uint8_t *)row};
    emu_meet(2, &arg, [](void **p) {
        emu_rows **m = (emu_rows **)p;
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++)
                m[l]->r[i] = ((const uint32_t *)m[8 * i + l / 4]->row)[l % 4];
    });
}
static void ldsm4t(uint32_t *r, const void *row)
{
    emu_rows arg = {r, (const uint8_t *)row};
    emu_meet(3, &arg, [](void **p) {
        emu_rows **m = (emu_rows **)p;
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++) {
                const uint16_t *x = (const uint16_t *)m[8 * i + 2 * (l % 4)]->row;
                const uint16_t *y = (const uint16_t *)m[8 * i + 2 * (l % 4) + 1]->row;
                m[l]->r[i] = x[l / 4] | (uint32_t)y[l / 4] << 16;
            }
    });
}
struct emu_shfl {
    uint32_t in, out;
    int from;
};
EMU_OWN static void emu_shfl_all(void **p)
{
    emu_shfl **m = (emu_shfl **)p;
    for (int l = 0; l < 32; l++)
        m[l]->out = m[m[l]->from]->in;
}
EMU_OWN static uint32_t shfl(uint32_t v, int lane)
{
    emu_shfl arg = {v, 0, lane & 31};
    emu_meet(4, &arg, emu_shfl_all);
    return arg.out;
}
static float shfl_xor(float v, int mask)
{
    return AS_F(shfl(AS_U(v), (emu.now & 31) ^ mask));
}
struct emu_any {
    bool is, any;
};
static bool any_lane(bool is)
{
    emu_any arg = {is, false};
    emu_meet(6, &arg, [](void **p) {
        bool any = false;
        for (int l = 0; l < 32; l++)
            any = any || ((emu_any *)p[l])->is;
        for (int l = 0; l < 32; l++)
            ((emu_any *)p[l])->any = any;
    });
    return arg.any;
}
static void sync_warp(void)
{
    emu_meet(5, NULL, [](void **) {});
}

#endif
