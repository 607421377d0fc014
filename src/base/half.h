/* half.h - 16-bit floats, exactly: IEEE binary16 (round to nearest even) and bfloat16. */
#ifndef PI_HALF_H
#define PI_HALF_H

#include <stdint.h>
#include <string.h>

static inline float pi_f32_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline uint32_t pi_bits_from_f32(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

/* The exponent is moved by scaling with 2^112; subnormals come out right because the product of a
   subnormal pattern and that power is exact. */
static inline float pi_f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t rest = (uint32_t)(h & 0x7fffu) << 13;
    float f = pi_f32_from_bits(rest) * pi_f32_from_bits(0x77800000u);
    if ((h & 0x7c00u) == 0x7c00u) /* infinity or NaN keep an all-ones exponent */
        f = pi_f32_from_bits(rest | 0x7f800000u);
    return pi_f32_from_bits(pi_bits_from_f32(f) | sign);
}

static inline uint16_t pi_f16_from_f32(float f)
{
    uint32_t bits = pi_bits_from_f32(f);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t mag = bits & 0x7fffffffu;
    if (mag > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u); /* NaN */
    if (mag >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u); /* 65520 and more round to infinity */
    if (mag < 0x38800000u) {
        /* Below 2^-14: adding 0.5 leaves the subnormal's bits, rounded to even, in the mantissa. */
        float scaled = pi_f32_from_bits(mag) + 0.5f;
        return (uint16_t)(sign | (pi_bits_from_f32(scaled) - 0x3f000000u));
    }
    uint32_t odd = (mag >> 13) & 1u;
    return (uint16_t)(sign | ((mag - 0x38000000u + 0xfffu + odd) >> 13));
}

static inline float pi_f32_from_bf16(uint16_t b) { return pi_f32_from_bits((uint32_t)b << 16); }

static inline uint16_t pi_bf16_from_f32(float f)
{
    uint32_t bits = pi_bits_from_f32(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 64u); /* a quiet NaN */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#endif
