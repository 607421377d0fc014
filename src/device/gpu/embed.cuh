/*
 * embed.cuh - embeddings: rows as a file has them become floats, by the formulas and the roundings
 * of tensor/dtype.c, and positions become cosines and sines.
 */
#ifndef PI_GPU_EMBED_CUH
#define PI_GPU_EMBED_CUH

#include "device/gpu/matmul.cuh"

DEV float half_at(const uint8_t *p)
{
    return h_lo(p[0] | (uint32_t)p[1] << 8);
}

DEV float number_of_table(bool fours, int code)
{
    const uint32_t word =
        fours ? table_word<GPU_WEIGHT_MXFP4>(code / 4) : table_word<GPU_WEIGHT_IQ4_NL>(code / 4);
    return (float)((int)(word >> (8 * (code % 4)) & 255) - 128);
}

/* Nibble e of 2 n: the first n are low halves. */
DEV int nibble(const uint8_t *q, int n, int e)
{
    return q[e % n] >> (e / n * 4) & 15;
}

/* Weight e of a block of 256 (tensor/dtype_k.c). */
DEV float weight_of_256(int type, const uint8_t *b, int e)
{
    const int pair = e / 128 * 32 + e % 32, at = e % 128 / 32 * 2, bit = e / 32, i = e / 16;
    if (type == GPU_WEIGHT_Q6_K) {
        int code = nibble(b + e / 128 * 64, 64, e % 128) | (b[128 + pair] >> at & 3) << 4;
        return half_at(b + 208) * (float)(int8_t)b[192 + i] * (float)(code - 32);
    }
    if (type == GPU_WEIGHT_Q2_K) {
        float value = half_at(b + 80) * (float)(b[i] & 15) * (float)(b[16 + pair] >> at & 3);
        return value - half_at(b + 82) * (float)(b[i] >> 4);
    }
    if (type == GPU_WEIGHT_Q3_K) {
        const uint8_t *s = b + 96;
        int scale = (i < 8 ? s[i] & 15 : s[i - 8] >> 4) | (s[8 + i % 4] >> (i / 4 * 2) & 3) << 4;
        int code = (b[32 + pair] >> at & 3) | (b[e % 32] >> bit & 1) << 2;
        return half_at(b + 108) * (float)(scale - 32) * (float)(code - 4);
    }
    if (type == GPU_WEIGHT_IQ4_XS) {
        int low = b[4 + bit / 2] >> (bit % 2 * 4) & 15, high = b[2 + bit / 4] >> (bit % 4 * 2) & 3;
        return half_at(b) * (float)((low | high << 4) - 32) *
               number_of_table(false, nibble(b + 8 + bit * 16, 16, e % 32));
    }
    const uint8_t *s = b + 4; /* Q4_K, Q5_K */
    const bool five = type == GPU_WEIGHT_Q5_K;
    int scale = bit < 4 ? s[bit] & 63 : (s[bit + 4] & 15) | s[bit - 4] >> 6 << 4;
    int min = bit < 4 ? s[bit + 4] & 63 : s[bit + 4] >> 4 | s[bit] >> 6 << 4;
    int code = nibble(b + (five ? 48 : 16) + e / 64 * 32, 32, e % 64);
    if (five)
        code |= (b[16 + e % 32] >> bit & 1) << 4;
    return half_at(b) * (float)scale * (float)code - half_at(b + 2) * (float)min;
}

/* Weight e of a block of 32. */
DEV float weight_of_32(int type, const uint8_t *b, int e)
{
    const bool five = type == GPU_WEIGHT_Q5_0 || type == GPU_WEIGHT_Q5_1;
    const bool min = type == GPU_WEIGHT_Q4_1 || type == GPU_WEIGHT_Q5_1;
    if (type == GPU_WEIGHT_MXFP4) /* half of 2^(byte - 127) */
        return 0.5f * AS_F(b[0] == 0 ? 0x00400000u : (uint32_t)b[0] << 23) *
               number_of_table(true, nibble(b + 1, 16, e));
    const float d = half_at(b);
    if (type == GPU_WEIGHT_Q8_0)
        return d * (float)(int8_t)b[2 + e];
    const uint8_t *q = b + (min ? 4 : 2);
    int code = nibble(q + (five ? 4 : 0), 16, e);
    if (type == GPU_WEIGHT_IQ4_NL)
        return d * number_of_table(false, code);
    if (five)
        code |= (q[e / 8] >> (e % 8) & 1) << 4;
    return min ? d * (float)code + half_at(b + 2) : d * (float)(code - (five ? 16 : 8));
}

DEV float weight_at(const gpu_embed_args &a, const uint8_t *row, int i)
{
    if (a.type == GPU_WEIGHT_F32)
        return ((const float *)row)[i];
    if (a.type == GPU_WEIGHT_F16)
        return half_at(row + 2 * i);
    if (a.type == GPU_ROW_BF16)
        return AS_F((uint32_t)(row[2 * i] | row[2 * i + 1] << 8) << 16);
    const uint8_t *b = row + (size_t)(i / a.block_len) * a.block_bytes;
    return a.block_len == 256 ? weight_of_256(a.type, b, i % 256) : weight_of_32(a.type, b, i % 32);
}

/* Phases are taken in f64, so that positions far out keep their angle. Grid: rows. */
KERNEL(256, 2) embed(const gpu_embed_args &a)
{
    const int t = (int)blockIdx.x;
    const uint8_t *row = AT(const uint8_t, a.rows) + (size_t)t * a.row_bytes;
    float *x = AT(float, a.x) + (size_t)t * a.n;
    for (int i = TID; i < a.n; i += 256)
        x[i] = weight_at(a, row, i) * a.scale;
    for (int r = 0; r < 2; r++) {
        const double pos = AT(const int32_t, a.pos)[t];
        float *cs = AT(float, a.cs[r]) + (size_t)t * a.n_pair[r] * 2;
        for (int i = TID; i < a.n_pair[r]; i += 256) {
            double phase = pos * AT(const double, a.freq[r])[i];
            cs[2 * i] = (float)(a.magnitude[r] * cos(phase));
            cs[2 * i + 1] = (float)(a.magnitude[r] * sin(phase));
        }
    }
}

#endif
