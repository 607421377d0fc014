/*
 * ranks.c - how much each rank has of whatever is divided. It sends nothing.
 */
#include "base/ranks.h"

pith_status pi_ranks_check_parts(pith_split split, const int32_t *weight, int32_t n_weight,
                                 int32_t n_rank, pith_error *err)
{
    PI_TRY(pi_check_range("split", (int64_t)split, PITH_SPLIT_ROWS, PITH_SPLIT_AUTO, err));
    if (n_weight != 0 && n_weight != n_rank)
        return pi_fail(err, PITH_INVALID, "ranks: %d weights are not one for each of %d ranks",
                       n_weight, n_rank);
    for (int32_t r = 0; r < n_weight; r++)
        if (weight[r] < 1 || weight[r] > PITH_RANKS_WEIGHT_MOST)
            return pi_fail(err, PITH_INVALID, "ranks: a weight of %d is not in 1..%d", weight[r],
                           PITH_RANKS_WEIGHT_MOST);
    return PITH_OK;
}

bool pi_ranks_by_layers(void)
{
    return pi_ranks()->n_rank > 1 && pi_ranks()->split == PITH_SPLIT_LAYERS;
}

bool pi_ranks_by_rows(void)
{
    return pi_ranks()->n_rank > 1 && pi_ranks()->split == PITH_SPLIT_ROWS;
}

int32_t pi_ranks_from(int32_t n, int32_t r)
{
    const pith_ranks_info *ranks = pi_ranks();
    int32_t least = n >= ranks->n_rank, at = 0;
    int64_t sum = 0, below = 0;
    if (ranks->weight == NULL)
        return (int32_t)((int64_t)n * r / ranks->n_rank);
    for (int32_t i = 0; i < ranks->n_rank; i++)
        sum += ranks->weight[i];
    for (int32_t i = 0; i < r; i++) {
        below += ranks->weight[i];
        at = (int32_t)pi_max(at + least, n * below / sum);
        at = (int32_t)pi_min(at, n - least * (ranks->n_rank - 1 - i));
    }
    return at;
}
