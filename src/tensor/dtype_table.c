/*
 * dtype_table.c - weight types whose codes of 4 bits stand for numbers of a table: IQ4_NL, IQ4_XS
 * and MXFP4. (Open Compute Project, Microscaling Formats 1.0: numbers of 4 bits, a power of two for
 * 32 of them.) In every 16 bytes the low nibbles are the first 16 weights, the high ones the
 * second.
 */
#include "tensor/dtype_table.h"

const int8_t pi_iq4_table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};
const int8_t pi_mxfp4_table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* 32 weights of 16 bytes. */
static void decode_32(const uint8_t *q, const int8_t *table, float scale, float *dst)
{
    for (int i = 0; i < 16; i++) {
        dst[i] = scale * (float)table[q[i] & 15];
        dst[i + 16] = scale * (float)table[q[i] >> 4];
    }
}

static float load_f16(const uint8_t *p)
{
    return pi_f32_from_f16((uint16_t)(p[0] | p[1] << 8));
}

/* d, codes [16] */
void pi_iq4_nl_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *block = src;
    for (int64_t i = 0; i < n; i += 32, block += PI_IQ4_NL_BYTES)
        decode_32(block + 2, pi_iq4_table, load_f16(block), dst + i);
}

/* d, the high 2 bits of 8 scales in 16 bits, their low 4 bits [4], codes [128]. Scales have zero
   point 32. */
void pi_iq4_xs_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *block = src;
    for (int64_t i = 0; i < n; i += 256, block += PI_IQ4_XS_BYTES) {
        float d = load_f16(block);
        int high = block[2] | block[3] << 8;
        for (int s = 0; s < 8; s++) {
            int scale = (block[4 + s / 2] >> (s % 2 * 4) & 15) | (high >> (2 * s) & 3) << 4;
            decode_32(block + 8 + 16 * s, pi_iq4_table, d * (float)(scale - 32), dst + i + 32 * s);
        }
    }
}

/* e, codes [16] */
void pi_mxfp4_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *block = src;
    for (int64_t i = 0; i < n; i += 32, block += PI_MXFP4_BYTES)
        decode_32(block + 1, pi_mxfp4_table, pi_mxfp4_scale(block[0]), dst + i);
}

bool pi_mxfp4_is_sound(const void *src, int64_t n)
{
    const uint8_t *block = src;
    uint8_t most = 0;
    for (int64_t i = 0; i < n; i += 32, block += PI_MXFP4_BYTES)
        most = block[0] > most ? block[0] : most;
    return most <= PI_MXFP4_MOST;
}
