/*
 * unrolled.h - how the bodies of vector kernels are written: functions that become part of their
 * caller, whose constant arguments they need, and loops that disappear.
 */
#ifndef PI_UNROLLED_H
#define PI_UNROLLED_H

#define TILE static inline __attribute__((always_inline))

/* Before loops over the rows and registers of a tile, which have constant ends and must disappear,
   so that the sums live in registers. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
