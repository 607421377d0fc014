/*
 * pool.c - pooling over neighbours, as SnapKV and the methods after it do. It knows no lane and no
 * policy; the caller brings entries into the order of the text.
 */
#include "policy/pool.h"

void policy_pool_order(const int32_t *pos, int32_t n, int32_t *order)
{
    bool ascends = true;
    for (int32_t i = 0; i < n; i++) {
        order[i] = i;
        ascends = ascends && (i == 0 || pos[i] >= pos[i - 1]);
    }
    /* Shell's sort: lanes whose entries were overwritten, or come from shared pages. */
    for (int32_t gap = ascends ? 0 : n / 2; gap > 0; gap /= 2)
        for (int32_t i = gap; i < n; i++) {
            int32_t at = order[i], j = i;
            for (; j >= gap; j -= gap) {
                int32_t before = order[j - gap];
                if (pos[before] < pos[at] || (pos[before] == pos[at] && before < at))
                    break;
                order[j] = before;
            }
            order[j] = at;
        }
}

void policy_pool(enum policy_pool_kind kind, int32_t kernel, const float *x, int32_t n, float *out)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t begin = i - kernel / 2;
        int32_t end = (int32_t)pi_min((int64_t)begin + kernel, n);
        begin = (int32_t)pi_max(begin, 0);
        float pooled = x[begin];
        for (int32_t j = begin + 1; j < end; j++)
            pooled = kind == POLICY_POOL_AVG ? pooled + x[j] : x[j] > pooled ? x[j] : pooled;
        out[i] = kind == POLICY_POOL_AVG ? pooled / (float)kernel : pooled;
    }
}
