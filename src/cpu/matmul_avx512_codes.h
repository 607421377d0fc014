/*
 * matmul_avx512_codes.h - the packed weight types as registers of AVX-512: the 32-bit lanes are the
 * 16 rows of a group, each with four columns of codes, one per byte. Every type has two functions on
 * a block of a group:
 *   codes_T(words, sub, code)            the 8 registers of the block's columns [32 sub, 32 sub + 32)
 *   scales_T(words, halves, scale, min)  the block's scales and minimums, [sub][16] each
 * The bits are those that matmul_pack.c's functions for one row describe.
 */
#ifndef PI_MATMUL_AVX512_CODES_H
#define PI_MATMUL_AVX512_CODES_H

#include <immintrin.h>

#include "cpu/matmul_layout.h"

#define INLINE static inline __attribute__((always_inline))

typedef void codes_fn(const __m512i *words, int32_t sub, __m512i code[8]);
typedef void scales_fn(const __m512i *words, const uint16_t *halves, float *scale, float *min);

/* ---- pieces ------------------------------------------------------------------------------- */

INLINE __m512i bytes(int value) { return _mm512_set1_epi8((char)value); }

/* Each row's word shifted right by n bits, then masked per byte. */
INLINE __m512i field(__m512i words, int32_t n, int mask)
{
    return _mm512_and_si512(_mm512_srlv_epi32(words, _mm512_set1_epi32(n)), bytes(mask));
}

/* code | (words rotated right by n, masked per byte): adds high bits that lie in bytes like the
   low ones. A negative n rotates left. */
INLINE __m512i with_high(__m512i code, __m512i words, int32_t n, int mask)
{
    __m512i high = _mm512_rorv_epi32(words, _mm512_set1_epi32(n));
    return _mm512_ternarylogic_epi32(code, high, bytes(mask), 0xf8); /* a | (b & c) */
}

/* Byte i of each row's bytes that start at words, as a number of 32 bits. */
INLINE __m512i byte_at(const __m512i *words, int32_t i)
{
    __m512i shift = _mm512_set1_epi32(i % 4 * 8);
    return _mm512_and_si512(_mm512_srlv_epi32(words[i / 4], shift), _mm512_set1_epi32(255));
}

INLINE __m512 half_at(const uint16_t *halves, int32_t i)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(halves + (size_t)i * PI_GROUP)));
}

INLINE void store_product(float *dst, __m512 d, __m512i n)
{
    _mm512_store_ps(dst, _mm512_mul_ps(d, _mm512_cvtepi32_ps(n)));
}

/* ---- blocks of 32 ------------------------------------------------------------------------- */

INLINE void codes_q8_0(const __m512i *words, int32_t sub, __m512i code[8])
{
    (void)sub;
    for (int32_t i = 0; i < 8; i++)
        code[i] = words[i];
}

INLINE void codes_q4(const __m512i *words, int32_t sub, __m512i code[8])
{
    (void)sub;
    for (int32_t i = 0; i < 4; i++) {
        code[i] = _mm512_and_si512(words[i], bytes(15));
        code[i + 4] = _mm512_and_si512(_mm512_srli_epi32(words[i], 4), bytes(15));
    }
}

/* The first word has a row's 32 high bits, one per column. For each byte of the result a field of 8
   bits is cut out of the 64 bits of two rows so that the column's bit comes to lie at bit 4. */
INLINE void codes_q5(const __m512i *words, int32_t sub, __m512i code[8])
{
    codes_q4(words + 1, sub, code);
    __m512i cut = _mm512_set1_epi64(0x1f1e1d1c3f3e3d3cll); /* columns 0..3, less 4 */
    for (int32_t i = 0; i < 8; i++) {
        __m512i high = _mm512_multishift_epi64_epi8(cut, words[0]);
        code[i] = _mm512_ternarylogic_epi32(code[i], high, bytes(16), 0xf8);
        cut = _mm512_add_epi8(cut, bytes(4));
    }
}

INLINE void scales_plain(const __m512i *words, const uint16_t *halves, float *scale, float *min)
{
    (void)words;
    (void)min;
    _mm512_store_ps(scale, half_at(halves, 0));
}

INLINE void scales_with_min(const __m512i *words, const uint16_t *halves, float *scale, float *min)
{
    (void)words;
    _mm512_store_ps(scale, half_at(halves, 0));
    _mm512_store_ps(min, half_at(halves, 1));
}

/* ---- blocks of 256 ------------------------------------------------------------------------ */

INLINE void codes_q2_k(const __m512i *words, int32_t sub, __m512i code[8])
{
    for (int32_t i = 0; i < 8; i++)
        code[i] = field(words[4 + sub / 4 * 8 + i], sub % 4 * 2, 3);
}

INLINE void scales_q2_k(const __m512i *words, const uint16_t *halves, float *scale, float *min)
{
    __m512 d = half_at(halves, 0);
    __m512 neg_dmin = _mm512_xor_ps(half_at(halves, 1), _mm512_set1_ps(-0.0f));
    for (int32_t i = 0; i < 16; i++) {
        __m512i both = byte_at(words, i);
        store_product(scale + i * PI_GROUP, d, _mm512_and_si512(both, _mm512_set1_epi32(15)));
        store_product(min + i * PI_GROUP, neg_dmin, _mm512_srli_epi32(both, 4));
    }
}

INLINE void codes_q3_k(const __m512i *words, int32_t sub, __m512i code[8])
{
    for (int32_t i = 0; i < 8; i++) {
        __m512i low = field(words[8 + sub / 4 * 8 + i], sub % 4 * 2, 3);
        code[i] = with_high(low, words[i], sub - 2, 4);
    }
}

INLINE void scales_q3_k(const __m512i *words, const uint16_t *halves, float *scale, float *min)
{
    (void)min;
    __m512 d = half_at(halves, 0);
    for (int32_t j = 0; j < 4; j++) { /* bytes j of the scales 4j .. 4j + 3 */
        __m512i low = field(words[24 + j % 2], j / 2 * 4, 15);
        __m512i packed = with_high(low, words[26], j * 2 - 4, 48);
        for (int32_t i = 0; i < 4; i++) {
            __m512i n = _mm512_sub_epi32(byte_at(&packed, i), _mm512_set1_epi32(32));
            store_product(scale + (4 * j + i) * PI_GROUP, d, n);
        }
    }
}

/* 12 bytes: scales 0..3 and minimums 0..3 in the low 6 bits of the first eight, those of 4..7 in
   the nibbles of the last four and the high 2 bits of the first eight. */
INLINE void scales_q45_k(const __m512i *words, const uint16_t *halves, float *scale, float *min)
{
    __m512 d = half_at(halves, 0);
    __m512 neg_dmin = _mm512_xor_ps(half_at(halves, 1), _mm512_set1_ps(-0.0f));
    __m512i scale_bytes[2], min_bytes[2];
    scale_bytes[0] = field(words[0], 0, 63);
    min_bytes[0] = field(words[1], 0, 63);
    scale_bytes[1] = with_high(field(words[2], 0, 15), words[0], 2, 48);
    min_bytes[1] = with_high(field(words[2], 4, 15), words[1], 2, 48);
    for (int32_t i = 0; i < 8; i++) {
        store_product(scale + i * PI_GROUP, d, byte_at(&scale_bytes[i / 4], i % 4));
        store_product(min + i * PI_GROUP, neg_dmin, byte_at(&min_bytes[i / 4], i % 4));
    }
}

INLINE void codes_q4_k(const __m512i *words, int32_t sub, __m512i code[8])
{
    for (int32_t i = 0; i < 8; i++)
        code[i] = field(words[3 + sub / 2 * 8 + i], sub % 2 * 4, 15);
}

INLINE void codes_q5_k(const __m512i *words, int32_t sub, __m512i code[8])
{
    for (int32_t i = 0; i < 8; i++) {
        __m512i low = field(words[11 + sub / 2 * 8 + i], sub % 2 * 4, 15);
        code[i] = with_high(low, words[3 + i], sub - 4, 16);
    }
}

INLINE void codes_q6_k(const __m512i *words, int32_t sub, __m512i code[8])
{
    for (int32_t i = 0; i < 8; i++) {
        __m512i low = field(words[sub / 4 * 16 + sub % 2 * 8 + i], sub % 4 / 2 * 4, 15);
        code[i] = with_high(low, words[32 + sub / 4 * 8 + i], sub % 4 * 2 - 4, 48);
    }
}

INLINE void scales_q6_k(const __m512i *words, const uint16_t *halves, float *scale, float *min)
{
    (void)min;
    __m512 d = half_at(halves, 0);
    for (int32_t i = 0; i < 16; i++) {
        __m512i up = _mm512_sllv_epi32(words[48 + i / 4], _mm512_set1_epi32(24 - i % 4 * 8));
        store_product(scale + i * PI_GROUP, d, _mm512_srai_epi32(up, 24));
    }
}

#endif
