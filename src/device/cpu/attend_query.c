/*
 * attend_query.c - prepares the queries of attention for the kernels. It rotates them to the
 * positions of a page's keys, and as stored keys are rotated. It rounds them or puts them in pairs
 * for bf16 and codes them for q8_0. It also finds the first and last position that each query sees.
 * It knows no page. Invariant: a row depends on its own query, on the page's delta and on the type
 * of keys.
 */
#include "cpu/kernels.h"
#include "device/cpu/pages.h"
#include "device/cpu/wht.h"

/* Pairs as vec.h's rope has them; here because all levels must give the same bits. */
void kv_rotate(const struct pi_rope *rope, const float *cs, float *x)
{
    for (int32_t i = 0; i < rope->n_pair; i++) {
        float *first = rope->adjacent ? x + 2 * i : x + i;
        float *second = rope->adjacent ? first + 1 : first + rope->n_pair;
        float a = *first, b = *second;
        *first = a * cs[2 * i] - b * cs[2 * i + 1];
        *second = a * cs[2 * i + 1] + b * cs[2 * i];
    }
}

enum { CODE_LEN = 32 }; /* dimensions that share a scale of q8_0 */

static void round_row(float *q, int32_t n)
{
    for (int32_t d = 0; d < n; d++)
        q[d] = pi_f32_from_bf16(pi_attend_bf16(q[d], PI_ATTEND_BF16_LEAST));
}

/* One of n_row rows that lie side by side, from its own place on. A pair has the size of a
   float. */
static void put_row(const float *from, int32_t dim, int32_t n_row, bool pairs, float *to)
{
    for (int32_t d = 0; !pairs && d < dim; d++)
        to[(size_t)d * (size_t)n_row] = from[d];
    for (int32_t d = 0; pairs && d < dim; d += 2) {
        uint32_t second = d + 1 < dim ? pi_bits_from_f32(from[d + 1]) >> 16 : 0;
        uint32_t pair = pi_bits_from_f32(from[d]) | second;
        memcpy(to + (size_t)(d / 2) * (size_t)n_row, &pair, sizeof(pair));
    }
}

/* Row r of n_row in a block's place, as it meets keys of q8_0. */
static void put_codes(const float *from, int32_t dim, int32_t n_row, int32_t r, float *block)
{
    const struct pi_attend_codes to = kv_query_codes(block, dim, n_row);
    int8_t code[CODE_LEN];
    int16_t sum16[2];
    for (int32_t b = 0; b < dim / CODE_LEN; b++) {
        pi_kernels()->vec.quantize(from + b * CODE_LEN, CODE_LEN, code, to.scale + b * n_row + r,
                                   sum16);
        to.sum[b * n_row + r] = sum16[0] + sum16[1];
        for (int32_t i = 0; i < CODE_LEN / 4; i++)
            memcpy(&to.code[(b * CODE_LEN / 4 + i) * n_row + r], code + 4 * i, 4);
    }
}

/* A key counts as written delta positions later. Its product with a query equals that of the key
   where it was and the query rotated back by delta. Keys that are stored rotated (wht.h) meet
   rotated queries, which leaves products unchanged, too. Keys of bf16 meet rounded queries, and
   keys of q8_0 codes (cpu/attend.h). */
void kv_queries_put(const struct kv_attend_job *job, const struct kv_part *k, int32_t delta,
                    float *row, float *cs, const struct kv_queries *to)
{
    int32_t dim = k->dim, n_all = job->n_tok * job->n_group;
    bool turn = delta != 0 && job->rope != NULL, bf16 = k->codec->kernel == PI_ATTEND_BF16;
    bool coded = k->codec->kernel == PI_ATTEND_Q8_0;
    assert(delta == 0 || job->rope != NULL);
    if (turn)
        pi_rope_fill_delta(job->rope, -delta, cs);
    for (int32_t r = 0; r < n_all; r++) {
        int32_t first = r / to->block_rows * to->block_rows;
        int32_t n_row = (int32_t)pi_min(to->block_rows, n_all - first);
        const float *from = job->q + (size_t)(r / job->n_group) * job->q_stride +
                            (size_t)(r % job->n_group) * (size_t)dim;
        if (turn || bf16 || k->codec->rotated)
            from = memcpy(row, from, (size_t)dim * sizeof(float));
        if (turn)
            kv_rotate(job->rope, cs, row);
        if (k->codec->rotated)
            kv_wht(row, dim, k->group, false);
        if (bf16)
            round_row(row, dim);
        float *block = to->q + (size_t)first * (size_t)dim;
        if (coded)
            put_codes(from, dim, n_row, r - first, block);
        else
            put_row(from, dim, n_row, to->pairs, block + (r - first));
    }
}

int32_t kv_query_limit(const struct kv_attend_job *job, int32_t r, int32_t delta)
{
    int64_t limit = (int64_t)job->pos0 + r / job->n_group - delta;
    return (int32_t)pi_max(INT32_MIN, pi_min(INT32_MAX, limit));
}

int32_t kv_query_first(const struct kv_attend_job *job, int32_t window, int32_t r, int32_t delta)
{
    int64_t first = (int64_t)job->pos0 + r / job->n_group - delta - window + 1;
    return (int32_t)pi_max(INT32_MIN, first);
}

/* One division for all rows of a token: they would show in the time. */
void kv_query_limits(const struct kv_attend_job *job, int32_t delta, int32_t r0, int32_t n_row,
                     int32_t *out)
{
    int32_t limit = 0, end = 0; /* the row at which the next token begins */
    for (int32_t i = 0; i < n_row; i++) {
        if (i == end) {
            limit = kv_query_limit(job, r0 + i, delta);
            end = ((r0 + i) / job->n_group + 1) * job->n_group - r0;
        }
        out[i] = limit;
    }
}
