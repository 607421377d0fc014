/*
 * testing.h - what every test includes: cmocka, a seeded generator, shared data that may be absent.
 */
#ifndef TESTING_H
#define TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* Of rounds that are alike in kind a build with sanitizers, which takes five to ten times as long,
   runs one of so many, every other build all of them. The number has no divisor in common with what
   rounds go through in turn. */
#ifdef __SANITIZE_ADDRESS__
#define TEST_STRIDE 5
#else
#define TEST_STRIDE 1
#endif

#define SHARED_DATA PITH_SOURCE_DIR "/../shared/data"

/* splitmix64: the same numbers on every machine. */
static inline uint64_t rng_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [0, n). */
static inline uint64_t rng_below(uint64_t *state, uint64_t n) { return rng_next(state) % n; }

/* Uniform in [-1, 1). */
static inline float rng_float(uint64_t *state)
{
    return (float)(rng_next(state) >> 40) * 0x1p-23f - 1.0f;
}

/* Skips the running test, with the reason, when path cannot be read. */
#define SKIP_WITHOUT(path)                                                                         \
    do {                                                                                           \
        if (access((path), R_OK) != 0) {                                                           \
            printf("skipped: %s is absent\n", (path));                                             \
            skip();                                                                                \
        }                                                                                          \
    } while (0)

#endif
