/*
 * matmul_avx512_lanes.h - AVX-512's instructions for matmul_quant.h: the 32-bit lanes of a register
 * are the 16 rows of a group. A file includes it, and with it matmul_quant.h, once, after defining
 * FEW_PART, CODES_IN_PLACE, DOT_ASKS and SIGNED_PANELS.
 */
#ifndef PI_MATMUL_AVX512_LANES_H
#define PI_MATMUL_AVX512_LANES_H

#include <immintrin.h>

#include "cpu/lanes_avx512.h"
#include "cpu/matmul_blocked.h"
#include "cpu/unrolled.h"

typedef __m512i lanes;
typedef __m512 flanes;
enum { N_PART = 1 };

/* clang-format off */
PI_INLINE lanes lanes_zero(void) { return _mm512_setzero_si512(); }
PI_INLINE lanes lanes_load(const uint8_t *p) { return _mm512_load_si512(p); }
PI_INLINE void lanes_store(uint8_t *p, lanes x) { _mm512_store_si512(p, x); }
PI_INLINE flanes flanes_load(const float *p) { return _mm512_load_ps(p); }
PI_INLINE void flanes_store(float *p, flanes x) { _mm512_storeu_ps(p, x); }
PI_INLINE flanes flanes_set1(const float *p) { return _mm512_set1_ps(*p); }
PI_INLINE flanes flanes_mul(flanes a, flanes b) { return _mm512_mul_ps(a, b); }
PI_INLINE flanes flanes_fma(flanes a, flanes b, flanes c) { return _mm512_fmadd_ps(a, b, c); }
PI_INLINE flanes flanes_int(lanes x) { return _mm512_cvtepi32_ps(x); }
PI_INLINE flanes flanes_neg(flanes x) { return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f)); }
PI_INLINE lanes lanes_plus(lanes x, int32_t n) { return _mm512_add_epi32(x, _mm512_set1_epi32(n)); }
PI_INLINE lanes lanes_q8_0(lanes x) { return x; }
PI_INLINE lanes bytes(int value) { return _mm512_set1_epi8((char)value); }
PI_INLINE void lanes_prefetch(const char *p) { _mm_prefetch(p, _MM_HINT_T0); }
/* clang-format on */

PI_INLINE lanes lanes_panel(lanes x, int32_t zero)
{
    return SIGNED_PANELS ? _mm512_sub_epi8(x, bytes(zero)) : x;
}

PI_INLINE flanes flanes_half(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)p));
}

PI_INLINE lanes lanes_field(lanes x, int32_t n, int mask)
{
    return _mm512_and_si512(_mm512_srlv_epi32(x, _mm512_set1_epi32(n)), bytes(mask));
}

PI_INLINE lanes lanes_with_high(lanes code, lanes x, int32_t n, int mask)
{
    lanes high = _mm512_rorv_epi32(x, _mm512_set1_epi32(n));
    return _mm512_ternarylogic_epi32(code, high, bytes(mask), 0xf8); /* a | (b & c) */
}

/* Each byte of the result is a field of 8 bits, cut out of the 64 bits of two rows. The column's
   bit becomes bit 4 of the field. The constant holds the bit positions of columns 0..3, less 4. */
PI_INLINE lanes lanes_with_bits(lanes code, lanes x, int32_t i)
{
    lanes cut = _mm512_add_epi8(_mm512_set1_epi64(0x1f1e1d1c3f3e3d3cll), bytes(4 * i));
    lanes high = _mm512_multishift_epi64_epi8(cut, x);
    return _mm512_ternarylogic_epi32(code, high, bytes(16), 0xf8);
}

PI_INLINE lanes lanes_byte(lanes x, int32_t i)
{
    return _mm512_and_si512(_mm512_srlv_epi32(x, _mm512_set1_epi32(i * 8)), _mm512_set1_epi32(255));
}

PI_INLINE lanes lanes_sbyte(lanes x, int32_t i)
{
    return _mm512_srai_epi32(_mm512_sllv_epi32(x, _mm512_set1_epi32(24 - i * 8)), 24);
}

PI_INLINE lanes lanes_table(lanes x, const uint8_t *table)
{
    __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), x);
}

PI_INLINE lanes lanes_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

PI_INLINE lanes lanes_u16(const uint16_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

PI_INLINE flanes flanes_exponent(lanes x)
{
    lanes bits = _mm512_max_epi32(_mm512_slli_epi32(x, 23), _mm512_set1_epi32(0x00400000));
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0.5f));
}

/* Four activations, to every row. */
PI_INLINE __m512i four(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof(v));
    return _mm512_set1_epi32(v);
}

struct shape;

PI_INLINE void ask_beside(struct pi_ask ask, int32_t step)
{
    PI_UNROLL
    for (int32_t i = 0; i < ask.n; i++)
        if (spread_to(i, ask.n, ask.first + step, ask.n_step))
            line_prefetch_far(ask.at + i * 64);
}

/* In two chains, against the instruction's latency. */
PI_INLINE lanes dot(const struct shape *s, const lanes code[8], int32_t begin, int32_t end,
                    const int8_t *q, struct pi_ask ask)
{
    (void)s;
    lanes even = _mm512_setzero_si512(), odd = _mm512_setzero_si512();
    PI_UNROLL
    for (int32_t i = begin; i < end; i += 2) {
        ask_beside(ask, i);
        even = _mm512_dpbusd_epi32(even, code[i], four(q + 4 * i));
        ask_beside(ask, i + 1);
        odd = _mm512_dpbusd_epi32(odd, code[i + 1], four(q + 4 * i + 4));
    }
    return _mm512_add_epi32(even, odd);
}

#include "cpu/matmul_quant.h"

/* The types of a file that has a tile_* of each kind and QUANT_KERNELS(name, tile, zero code), in
   the order of pi_matmul_index. The float types, which come first, have none. */
#define QUANT_TABLE                                                                                \
    {                                                                                              \
        [3] = QUANT_KERNELS(q8_0, tile_32_zero, 128), [4] = QUANT_KERNELS(q4_0, tile_32_zero, 8),  \
        [5] = QUANT_KERNELS(q4_1, tile_32_min, 0), [6] = QUANT_KERNELS(q5_0, tile_32_zero, 16),    \
        [7] = QUANT_KERNELS(q5_1, tile_32_min, 0), [8] = QUANT_KERNELS(q2_k, tile_16_min, 0),      \
        [9] = QUANT_KERNELS(q3_k, tile_16_zero, 4), [10] = QUANT_KERNELS(q4_k, tile_32_min, 0),    \
        [11] = QUANT_KERNELS(q5_k, tile_32_min, 0), [12] = QUANT_KERNELS(q6_k, tile_16_zero, 32),  \
        [13] = QUANT_KERNELS(iq4_nl, tile_32_zero, 128),                                           \
        [14] = QUANT_KERNELS(iq4_xs, tile_32_zero, 128),                                           \
        [15] = QUANT_KERNELS(mxfp4, tile_32_zero, 12)                                              \
    }

#endif
