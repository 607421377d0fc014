/* rank.h - floats as integers in the same order, for counting and selecting. */
#ifndef PI_KEEP_RANK_H
#define PI_KEEP_RANK_H

#include "base/base.h"

/* Integers in the order of the floats; both zeros are one. Not for NaN. No number has UINT32_MAX.
 */
static inline uint32_t keep_rank_of(float score)
{
    float x = score + 0.0f;
    uint32_t bits;
    assert(x == x);
    memcpy(&bits, &x, sizeof(bits));
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

#endif
