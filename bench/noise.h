/*
 * noise.h - numbers to compute with.
 */
#ifndef PI_BENCH_NOISE_H
#define PI_BENCH_NOISE_H

#include <stddef.h>
#include <stdint.h>

/* Numbers in [-1, 1) without a pattern that a sum could profit from. */
static inline void fill_random(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) * 0x1p-23f - 1.0f;
    }
}

#endif
