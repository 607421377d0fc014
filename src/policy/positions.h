/* positions.h - lists of positions: in order, and where one stands in them. */
#ifndef PI_POLICY_POSITIONS_H
#define PI_POLICY_POSITIONS_H

#include "base/base.h"

/* The index of the first of n ascending positions that is not below at. */
static inline int32_t policy_first_from(const int32_t *pos, int32_t n, int32_t at)
{
    int32_t low = 0, high = n;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (pos[mid] < at)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Shell's sort. Positions that fall are rare and nearly sorted in pages that others wrote.
   Overwriting leaves them in any order: after a prompt that follows steps. */
static inline void policy_sort_positions(int32_t *pos, int32_t n)
{
    for (int32_t gap = n / 2; gap > 0; gap /= 2)
        for (int32_t i = gap; i < n; i++) {
            int32_t value = pos[i], j = i;
            for (; j >= gap && pos[j - gap] > value; j -= gap)
                pos[j] = pos[j - gap];
            pos[j] = value;
        }
}

#endif
