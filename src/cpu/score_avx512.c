/*
 * score_avx512.c - scoring keys with registers of 16 floats or 64 codes. Dot products and columns
 * are score_tile.h's; codes are multiplied by VNNI, four to a lane, keys + 128 being unsigned.
 */
#include "cpu/codes_avx512.h"
#include "cpu/kernels.h"
#include "cpu/lanes_avx512.h"

enum { VEC = 16, GROUP = 16, FEW_KEYS = 16 };

/* As lanes_avx512.h's of maxima. */
TILE __m512i fold_sum(const __m512i *r)
{
    __m512i x[4];
#pragma GCC unroll 4
    for (int32_t i = 0; i < 4; i++) {
        __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(r[4 * i], r[4 * i + 1]),
                                      _mm512_unpackhi_epi32(r[4 * i], r[4 * i + 1]));
        __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(r[4 * i + 2], r[4 * i + 3]),
                                      _mm512_unpackhi_epi32(r[4 * i + 2], r[4 * i + 3]));
        x[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
    __m512i y0 = _mm512_add_epi32(_mm512_shuffle_i32x4(x[0], x[1], 0x88),
                                  _mm512_shuffle_i32x4(x[0], x[1], 0xdd));
    __m512i y1 = _mm512_add_epi32(_mm512_shuffle_i32x4(x[2], x[3], 0x88),
                                  _mm512_shuffle_i32x4(x[2], x[3], 0xdd));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(y0, y1, 0x88), _mm512_shuffle_i32x4(y0, y1, 0xdd));
}

TILE void group_max(__m512 acc[GROUP][1], float *out)
{
    _mm512_storeu_ps(out, fold_max(&acc[0][0]));
}

TILE void group_tree(__m512 acc[FEW_KEYS][1], float *out)
{
    _mm512_storeu_ps(out, fold_tree(&acc[0][0]));
}

#include "cpu/score_tile.h"

/* ---- codes -------------------------------------------------------------------------------- */

/* acc += the sums of four products, k unsigned. As assembly because GCC copies each sum of a tile
   twice around the instruction otherwise. */
TILE void dot_codes(__m512i *acc, __m512i k, __m512i q)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*acc) : "v"(k), "v"(q));
}

/* Keys i .. i + 16 times each vector, along the key. */
TILE void unit8_few(const int32_t dim, const struct pi_score_keys *keys,
                    const struct pi_score_codes *q, int32_t i, float *out)
{
    size_t row = pi_align((size_t)dim, PI_SCORE_PAD);
    const uint8_t *first = (const uint8_t *)keys->k + (size_t)i * (size_t)dim;
    __m512 top = _mm512_set1_ps(-FLT_MAX);
    for (int32_t j = 0; j < q->n; j++) {
        const int8_t *with = q->code + (size_t)j * row;
        __m512i acc[16];
        UNROLL
        for (int32_t g = 0; g < 16; g++) {
            const uint8_t *k = first + (size_t)g * (size_t)dim;
            acc[g] = _mm512_setzero_si512();
            for (int32_t d = 0; d < dim; d += 64) {
                __mmask64 in = dim - d >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << (dim - d)) - 1;
                if (j == 0 && keys->next != 0)
                    line_prefetch_far(k + keys->next + d);
                dot_codes(&acc[g], _mm512_maskz_loadu_epi8(in, k + d),
                          _mm512_loadu_si512(with + d));
            }
        }
        __m512i sum = _mm512_sub_epi32(fold_sum(acc), _mm512_set1_epi32(q->offset[j]));
        top =
            _mm512_max_ps(top, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(q->scale[j])));
    }
    _mm512_storeu_ps(out + i, top);
}

/* Keys i .. i + 16 times blocks of 16 vectors, four codes of a key against four of each vector. */
TILE void unit8_many(const int32_t dim, const struct pi_score_keys *keys,
                     const struct pi_score_codes *q, int32_t i, float *out)
{
    __m512 top[16];
    const uint8_t *k = (const uint8_t *)keys->k + (size_t)i * (size_t)dim;
    UNROLL
    for (int32_t g = 0; g < 16; g++)
        top[g] = _mm512_set1_ps(-FLT_MAX);
    for (int32_t d = 0; d < 16 * dim && keys->next != 0; d += 64)
        line_prefetch_far(k + keys->next + d);
    for (int32_t b = 0; b < (q->n + 15) / 16; b++) {
        const int8_t *with = q->code + (size_t)b * (size_t)dim * 16;
        __m512i acc[16], start = _mm512_sub_epi32(_mm512_setzero_si512(),
                                                  _mm512_loadu_si512(q->offset + b * 16));
        __m512 scale = _mm512_loadu_ps(q->scale + b * 16);
        UNROLL
        for (int32_t g = 0; g < 16; g++)
            acc[g] = start;
        for (int32_t d = 0; d < dim; d += 4) {
            __m512i vectors = _mm512_loadu_si512(with + d * 16);
            UNROLL
            for (int32_t g = 0; g < 16; g++) {
                int32_t four;
                memcpy(&four, k + (size_t)g * (size_t)dim + d, sizeof(four));
                dot_codes(&acc[g], _mm512_set1_epi32(four), vectors);
            }
        }
        UNROLL
        for (int32_t g = 0; g < 16; g++)
            top[g] = _mm512_max_ps(top[g], _mm512_mul_ps(_mm512_cvtepi32_ps(acc[g]), scale));
    }
    _mm512_storeu_ps(out + i, fold_max(top));
}

/* The usual head sizes as constants, so that the keys lie at fixed distances. */
TILE void unit8_dim(const int32_t dim, const struct pi_score_keys *keys,
                    const struct pi_score_codes *q, float *out)
{
    for (int32_t i = 0; i < keys->n; i += 16)
        if (q->n <= PI_SCORE_FEW)
            unit8_few(dim, keys, q, i, out);
        else
            unit8_many(dim, keys, q, i, out);
}

static void unit8(const struct pi_score_keys *keys, const struct pi_score_codes *q, float *out)
{
    if (keys->dim == 128)
        unit8_dim(128, keys, q, out);
    else if (keys->dim == 64)
        unit8_dim(64, keys, q, out);
    else
        unit8_dim(keys->dim, keys, q, out);
}

/* ---- choosing ----------------------------------------------------------------------------- */

static int32_t at_least(const float *x, int32_t n, float least, int32_t *at)
{
    const __m512 bound = _mm512_set1_ps(least);
    __m512i index = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    int32_t count = 0;
    for (int32_t i = 0; i < n; i += 16) {
        __mmask16 in = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        __mmask16 found =
            _mm512_mask_cmp_ps_mask(in, _mm512_maskz_loadu_ps(in, x + i), bound, _CMP_GE_OQ);
        _mm512_storeu_si512(at + count, _mm512_maskz_compress_epi32(found, index));
        count += __builtin_popcount(found);
        index = _mm512_add_epi32(index, _mm512_set1_epi32(16));
    }
    return count;
}

void pi_score_init_avx512(struct pi_score_kernels *k)
{
    score_init(k);
    k->unit8 = unit8;
    k->at_least = at_least;
}
