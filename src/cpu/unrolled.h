/*
 * unrolled.h - how the bodies of vector kernels are written: functions that become part of their
 * caller, whose constant arguments they need, and loops that disappear.
 */
#ifndef PI_UNROLLED_H
#define PI_UNROLLED_H

#include <stdbool.h>
#include <stdint.h>

/* With PI_FEW_COPIES, which builds with sanitizers define, there is one copy of a body, and loops
   stay. The sums are the same; a file then takes a second to compile. Clang needs the constants. */
#if defined(PI_FEW_COPIES) && !defined(__clang__)
#define TILE static inline
#else
#define TILE static inline __attribute__((always_inline))
#endif

/* For functions that many tiles call before their loops: inlined, the code would be compiled for
   each tile. */
#define ONCE static __attribute__((noinline))

/* Before loops over the rows and registers of a tile, which have constant ends and must disappear,
   so that the sums live in registers. */
#if defined(PI_FEW_COPIES) && !defined(__clang__)
#define UNROLL
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Whether item i of n belongs to a step, where the items are spread evenly over n_step steps. */
TILE bool spread_to(int32_t i, int32_t n, int32_t step, int32_t n_step)
{
    return i * n_step / n == step;
}

#endif
