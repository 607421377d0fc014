/*
 * rng.h - the generator behind sampling: small, the same numbers on every machine.
 *
 * PCG-XSH-RR 64/32 (O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good
 * Algorithms for Random Number Generation", HMC-CS-2014-0905, section 6.3):
 *   state' = state * 6364136223846793005 + inc (mod 2^64), inc odd
 *   output = rotr32((state ^ state >> 18) >> 27, state >> 59)
 */
#ifndef PI_RNG_H
#define PI_RNG_H

#include <stdint.h>

struct pi_rng {
    uint64_t state;
    uint64_t inc;
};

static inline uint32_t pi_rng_next(struct pi_rng *rng)
{
    uint64_t old = rng->state;
    uint32_t mixed = (uint32_t)(((old >> 18) ^ old) >> 27);
    uint32_t turn = (uint32_t)(old >> 59);
    rng->state = old * 6364136223846793005u + rng->inc;
    return (mixed >> turn) | (mixed << (-turn & 31));
}

/* Streams with different numbers are independent. */
static inline void pi_rng_seed(struct pi_rng *rng, uint64_t seed, uint64_t stream)
{
    rng->state = 0;
    rng->inc = stream << 1 | 1;
    pi_rng_next(rng);
    rng->state += seed;
    pi_rng_next(rng);
}

/* Uniform in [0, 1), 53 bits. */
static inline double pi_rng_double(struct pi_rng *rng)
{
    uint64_t hi = pi_rng_next(rng);
    return (double)((hi << 32 | pi_rng_next(rng)) >> 11) * 0x1p-53;
}

#endif
