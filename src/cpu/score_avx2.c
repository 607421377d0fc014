/*
 * score_avx2.c - scoring keys with registers of 8 floats. Dot products and columns are
 * score_tile.h's; codes are multiplied as 16-bit numbers, whose products are added in pairs.
 */
#include "cpu/codes_avx2.h"
#include "cpu/kernels.h"
#include "cpu/lanes_avx2.h"

enum { VEC = 8, GROUP = 4, FEW_KEYS = 4 };

/* The largest of 8. */
static inline float max_all(__m256 v)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

static inline void group_max(__m256 acc[GROUP][2], float *out)
{
    for (int32_t g = 0; g < GROUP; g++)
        out[g] = max_all(_mm256_max_ps(acc[g][0], acc[g][1]));
}

static inline void group_tree(__m256 acc[FEW_KEYS][2], float *out)
{
    for (int32_t g = 0; g < FEW_KEYS; g++)
        out[g] = vec_tree(acc[g]);
}

#include "cpu/score_tile.h"

/* ---- codes -------------------------------------------------------------------------------- */

static inline __m128i sixteen(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

static inline int32_t sum_all(__m256i v)
{
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

/* A key times each vector, along the key. Where it ends within 16 codes the vector goes on with
   zeros. */
TILE float unit8_few(const struct pi_score_codes *q, int32_t dim, const uint8_t *k)
{
    size_t row = pi_align((size_t)dim, PI_SCORE_PAD);
    float top = -FLT_MAX;
    for (int32_t j = 0; j < q->n; j++) {
        const int8_t *with = q->code + (size_t)j * row;
        __m256i acc = _mm256_setzero_si256();
        for (int32_t d = 0; d < dim; d += 16)
            acc = _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_cvtepu8_epi16(sixteen(k + d)),
                                                          _mm256_cvtepi8_epi16(sixteen(with + d))));
        float x = (float)(sum_all(acc) - q->offset[j]) * q->scale[j];
        top = x > top ? x : top;
    }
    return top;
}

/* Four codes of a key against four of each of 16 vectors: 4 vectors to a register, two sums
   each. */
TILE float unit8_many(const struct pi_score_codes *q, int32_t dim, const uint8_t *k)
{
    __m256 top = _mm256_set1_ps(-FLT_MAX);
    for (int32_t b = 0; b < (q->n + 15) / 16; b++) {
        const int8_t *with = q->code + (size_t)b * (size_t)dim * 16;
        __m256i acc[4];
        UNROLL
        for (int32_t v = 0; v < 4; v++)
            acc[v] = _mm256_setzero_si256();
        for (int32_t d = 0; d < dim; d += 4) {
            int32_t four;
            memcpy(&four, k + d, sizeof(four));
            __m256i key = _mm256_broadcastq_epi64(_mm_cvtepu8_epi16(_mm_cvtsi32_si128(four)));
            UNROLL
            for (int32_t v = 0; v < 4; v++)
                acc[v] = _mm256_add_epi32(
                    acc[v],
                    _mm256_madd_epi16(key, _mm256_cvtepi8_epi16(sixteen(with + d * 16 + v * 16))));
        }
        UNROLL
        for (int32_t v = 0; v < 4; v += 2) {
            /* Adding neighbours leaves vectors 0 1, 4 5, 2 3, 6 7 of these 8. */
            __m256i sum = _mm256_permute4x64_epi64(_mm256_hadd_epi32(acc[v], acc[v + 1]), 0xd8);
            const int32_t *offset = q->offset + b * 16 + v * 4;
            sum = _mm256_sub_epi32(sum, _mm256_loadu_si256((const __m256i *)(const void *)offset));
            top = _mm256_max_ps(top, _mm256_mul_ps(_mm256_cvtepi32_ps(sum),
                                                   _mm256_loadu_ps(q->scale + b * 16 + v * 4)));
        }
    }
    return max_all(top);
}

static void unit8(const struct pi_score_keys *keys, const struct pi_score_codes *q, float *out)
{
    for (int32_t i = 0; i < keys->n; i++) {
        const uint8_t *k = (const uint8_t *)keys->k + (size_t)i * (size_t)keys->dim;
        for (int32_t d = 0; d < keys->dim && keys->next != 0; d += 64)
            line_prefetch_far(k + keys->next + d);
        out[i] = q->n <= PI_SCORE_FEW ? unit8_few(q, keys->dim, k) : unit8_many(q, keys->dim, k);
    }
}

void pi_score_init_avx2(struct pi_score_kernels *k)
{
    score_init(k);
    k->unit8 = unit8;
}
