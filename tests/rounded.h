/*
 * rounded.h - how far outputs of attention may be from those of other arithmetic, or of the same
 * entries in other pages, where values are rounded (cpu/attend.h).
 */
#ifndef PI_TEST_ROUNDED_H
#define PI_TEST_ROUNDED_H

#include "kv/store.h"

/* For values in [-1, 1]. A coordinate of an entry changes by less than 2^-7 of it, and by less than
   a third of that in the mean; after they are turned back each is a sum of all, with either sign.
 */
static inline double rounded_error(enum kv_type type_v, int32_t dim_v)
{
    return kv_type_is_rotated(type_v) && kv_type_group(type_v, dim_v) == dim_v ? 0x1p-7 : 0.0;
}

#endif
