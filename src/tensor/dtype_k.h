/*
 * dtype_k.h - rows of the K types: super-blocks of 256 weights in groups of 16 or 32. Each group
 * has its own scale (and minimum), stored in few bits. Entered through dtype.h's table.
 */
#ifndef PI_DTYPE_K_H
#define PI_DTYPE_K_H

#include <stdint.h>

#define PI_K_LEN 256 /* weights of a super-block */

/* Bytes of a super-block. */
enum {
    PI_Q2_K_BYTES = 84,
    PI_Q3_K_BYTES = 110,
    PI_Q4_K_BYTES = 144,
    PI_Q5_K_BYTES = 176,
    PI_Q6_K_BYTES = 210,
};

/* n is a multiple of PI_K_LEN; src and dst of any alignment on the side of the bytes. */
void pi_q2_k_decode(const void *src, float *dst, int64_t n);
void pi_q3_k_decode(const void *src, float *dst, int64_t n);
void pi_q4_k_decode(const void *src, float *dst, int64_t n);
void pi_q5_k_decode(const void *src, float *dst, int64_t n);
void pi_q6_k_decode(const void *src, float *dst, int64_t n);

void pi_q2_k_encode(const float *src, void *dst, int64_t n);
void pi_q3_k_encode(const float *src, void *dst, int64_t n);
void pi_q4_k_encode(const float *src, void *dst, int64_t n);
void pi_q5_k_encode(const float *src, void *dst, int64_t n);
void pi_q6_k_encode(const float *src, void *dst, int64_t n);

#endif
