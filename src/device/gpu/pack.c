/*
 * pack.c - weights in the order in which the tensor cores' operands lie in registers (matmul.cuh),
 * in exactly the file's bytes. Scales are multiplied by a power of two that brings a matrix's
 * largest weight near 1, where f16 has all its bits. Products are divided by it. Both are exact.
 */
#include <math.h>

#include "base/half.h"
#include "device/gpu/host.h"
#include "tensor/dtype_table.h"

enum { BLOCK = 256, TILE = 64, MXFP4_ZERO_EXPONENT = 103 };

static enum gpu_weight_type type_of(enum pi_dtype type)
{
    switch (type) {
    case PI_DTYPE_F32:
        return GPU_WEIGHT_F32;
    case PI_DTYPE_F16:
    case PI_DTYPE_BF16:
        return GPU_WEIGHT_F16;
#define CASE(name)                                                                                 \
    case PI_DTYPE_##name:                                                                          \
        return GPU_WEIGHT_##name;
        CASE(Q4_0)
        CASE(Q4_1)
        CASE(Q5_0)
        CASE(Q5_1)
        CASE(Q8_0)
        CASE(Q2_K)
        CASE(Q3_K)
        CASE(Q4_K)
        CASE(Q5_K)
        CASE(Q6_K)
        CASE(IQ4_NL)
        CASE(IQ4_XS)
        CASE(MXFP4)
#undef CASE
    }
    assert(false);
    return GPU_WEIGHT_N;
}

/* Bytes of 16 rows x 256 columns. */
static size_t block_bytes(enum pi_dtype type)
{
    const struct pi_dtype_traits *traits = pi_dtype_find((uint32_t)type);
    return pi_dtype_row_bytes(traits, BLOCK) * PI_GROUP;
}

/* ---- one row of a block ---- */

/* Where a code goes. */
struct place {
    uint8_t *out; /* the block of 16 rows */
    int row, col;
};

static int lane_of(const struct place *p)
{
    return p->row % 8 * 4 + p->col % 8 / 2;
}

static int register_of(const struct place *p)
{
    return p->row / 8 | p->col % 16 / 8 << 1;
}

static void put_bits(uint8_t *at, int bit, uint32_t code)
{
    at[bit / 8] = (uint8_t)(at[bit / 8] | code << (bit % 8));
}

static void put_low4(const struct place *p, uint32_t code)
{
    int k = p->col % TILE / 16;
    put_bits(p->out + p->col / TILE * 512 + lane_of(p) * 16 + k * 4,
             p->col % 2 * 16 + 4 * register_of(p), code & 15);
}

static void put_two(const struct place *p, size_t plane, uint32_t code)
{
    int k = p->col % TILE / 16;
    put_bits(p->out + plane + p->col / TILE * 256 + lane_of(p) * 8 + k / 2 * 4,
             p->col % 2 * 16 + 2 * (4 * (k & 1) + register_of(p)), code & 3);
}

static void put_one(const struct place *p, size_t plane, uint32_t code)
{
    int k = p->col % TILE / 16;
    put_bits(p->out + plane + p->col / TILE * 128 + lane_of(p) * 4,
             p->col % 2 * 16 + 4 * k + register_of(p), code & 1);
}

static void put_byte(const struct place *p, uint32_t code)
{
    int k = p->col % TILE / 16, tile = p->col / TILE;
    p->out[(tile * 2 + k / 2) * 512 + lane_of(p) * 16 + (k & 1) * 8 + register_of(p) * 2 +
           p->col % 2] = (uint8_t)code;
}

static void put_half(const struct place *p, uint16_t half)
{
    int k = p->col % TILE / 16, tile = p->col / TILE;
    memcpy(p->out + (tile * 4 + k) * 512 + lane_of(p) * 16 + register_of(p) * 4 + p->col % 2 * 2,
           &half, sizeof(half));
}

static uint16_t half_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

/* A scale times a power of two. */
static void put_scale(uint8_t *out, const uint8_t *from, int power)
{
    uint16_t half = pi_f16_from_f32(ldexpf(pi_f32_from_f16(half_at(from)), power));
    memcpy(out, &half, sizeof(half));
}

/* Byte t of three words gets 24 bits of tile t. */
static void put_24(uint8_t *out, int tile, uint32_t bits)
{
    for (int i = 0; i < 3; i++)
        out[4 * i + tile] = (uint8_t)(bits >> (8 * i));
}

/* The codes of a file's block of 32: nibbles, the first 16 in the low halves. */
static uint32_t nibble_of(const uint8_t *q, int col)
{
    return q[col % 16] >> (col / 16 * 4) & 15;
}

/* Two bits of 256 codes, and one bit of them (tensor/dtype_k.c has the files' layouts). */
static uint32_t pair_of(const uint8_t *q, int col)
{
    return q[col / 128 * 32 + col % 32] >> (col % 128 / 32 * 2) & 3;
}

static uint32_t bit_of(const uint8_t *q, int col)
{
    return q[col % 32] >> (col / 32) & 1;
}

static void scales_of_k(const uint8_t *s, int i, uint32_t *scale, uint32_t *min)
{
    *scale = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
    *min = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
}

/* ---- blocks of 256 in the file ---- */

static void put_q45_k(const uint8_t *b, bool five, int row, uint8_t *out, int power)
{
    const uint8_t *q = b + (five ? 48 : 16), *high = b + 16;
    size_t plane = 2048;
    for (int c = 0; c < BLOCK; c++) {
        const struct place p = {out, row, c};
        put_low4(&p, q[c / 64 * 32 + c % 32] >> (c % 64 / 32 * 4) & 15);
        if (five)
            put_one(&p, plane, bit_of(high, c));
    }
    uint8_t *to = out + plane + (five ? 512 : 0) + row * 16;
    put_scale(to, b, power);
    put_scale(to + 2, b + 2, power);
    for (int t = 0; t < 4; t++) {
        uint32_t bits = 0, scale, min;
        for (int e = 0; e < 2; e++) {
            scales_of_k(b + 4, 2 * t + e, &scale, &min);
            bits |= scale << (12 * e) | min << (12 * e + 6);
        }
        put_24(to + 4, t, bits);
    }
}

static void put_q6_k(const uint8_t *b, int row, uint8_t *out, int power)
{
    for (int c = 0; c < BLOCK; c++) {
        const struct place p = {out, row, c};
        int half = c / 128, at = c % 128;
        put_low4(&p, b[64 * half + at % 64] >> (at / 64 * 4) & 15);
        put_two(&p, 2048, b[128 + 32 * half + at % 32] >> (at / 32 * 2) & 3);
    }
    for (int i = 0; i < 16; i++)
        out[3072 + row * 16 + i] = b[192 + i] ^ 128;
    put_scale(out + 3328 + row * 2, b + 208, power);
}

static void put_q2_k(const uint8_t *b, int row, uint8_t *out, int power)
{
    for (int c = 0; c < BLOCK; c++)
        put_two(&(struct place){out, row, c}, 0, pair_of(b + 16, c));
    memcpy(out + 1024 + row * 16, b, 16);
    put_scale(out + 1280 + row * 4, b + 80, power);
    put_scale(out + 1280 + row * 4 + 2, b + 82, power);
}

static void put_q3_k(const uint8_t *b, int row, uint8_t *out, int power)
{
    const uint8_t *scales = b + 96;
    for (int c = 0; c < BLOCK; c++) {
        const struct place p = {out, row, c};
        put_two(&p, 0, pair_of(b + 32, c));
        put_one(&p, 1024, bit_of(b, c));
    }
    for (int t = 0; t < 4; t++) {
        uint32_t bits = 0;
        for (int e = 0; e < 4; e++) {
            int i = 4 * t + e;
            uint32_t low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4;
            bits |= (low | (uint32_t)(scales[8 + i % 4] >> (i / 4 * 2) & 3) << 4) << (6 * e);
        }
        put_24(out + 1536 + row * 12, t, bits);
    }
    put_scale(out + 1536 + 192 + row * 2, b + 108, power);
}

static void put_iq4_xs(const uint8_t *b, int row, uint8_t *out, int power)
{
    uint64_t bits = 0;
    uint16_t high = half_at(b + 2);
    for (int c = 0; c < BLOCK; c++)
        put_low4(&(struct place){out, row, c}, nibble_of(b + 8 + c / 32 * 16, c % 32));
    for (int i = 0; i < 8; i++) {
        uint64_t low = b[4 + i / 2] >> (i % 2 * 4) & 15;
        bits |= (low | (uint64_t)(high >> (2 * i) & 3) << 4) << (6 * i);
    }
    put_scale(out + 2048 + row * 8, b, power);
    for (int i = 0; i < 6; i++)
        out[2048 + row * 8 + 2 + i] = (uint8_t)(bits >> (8 * i));
}

/* ---- blocks of 32 in the file: number i of 8 of a row ---- */

static void put_32(enum pi_dtype type, const uint8_t *b, int row, int i, uint8_t *out, int power)
{
    bool five = type == PI_DTYPE_Q5_0 || type == PI_DTYPE_Q5_1;
    bool min = type == PI_DTYPE_Q4_1 || type == PI_DTYPE_Q5_1;
    size_t codes = type == PI_DTYPE_Q8_0 ? 4096 : five ? 2560 : 2048;
    const uint8_t *q = b + (type == PI_DTYPE_MXFP4 ? 1 : min ? 4 : 2), *high = q;
    q += five ? 4 : 0;
    for (int c = 0; c < 32; c++) {
        const struct place p = {out, row, 32 * i + c};
        if (type == PI_DTYPE_Q8_0) {
            put_byte(&p, q[c] ^ 128u);
            continue;
        }
        put_low4(&p, nibble_of(q, c));
        if (five)
            put_one(&p, 2048, high[c / 8] >> (c % 8) & 1);
    }
    if (type == PI_DTYPE_MXFP4) {
        int e = b[0] + power - MXFP4_ZERO_EXPONENT;
        out[codes + (size_t)(row * 8 + i)] = (uint8_t)(e < 0 ? 0 : e);
        return;
    }
    uint8_t *to = out + codes + (size_t)(row * 8 + i) * (min ? 4 : 2);
    put_scale(to, b, power);
    if (min)
        put_scale(to + 2, b + 2, power);
}

/* ---- matrices ---- */

/* Block number b of 256 columns of a row. */
static void put_row(const struct pi_matrix *w, int32_t row, int32_t b, uint8_t *out, int power)
{
    const struct pi_dtype_traits *traits = pi_dtype_find((uint32_t)w->type);
    uint8_t block[BLOCK];
    int r = row % PI_GROUP;
    int32_t n = (int32_t)pi_min(BLOCK, w->n_col - b * BLOCK);
    for (int32_t i = 0; i < n; i += traits->block_len) {
        pi_matmul_file_block(w, row, (b * BLOCK + i) / traits->block_len, block);
        switch (w->type) {
        case PI_DTYPE_F16:
            put_half(&(struct place){out, r, i}, half_at(block));
            break;
        case PI_DTYPE_BF16:
            put_half(&(struct place){out, r, i},
                     pi_f16_from_f32(ldexpf(pi_f32_from_bf16(half_at(block)), power)));
            break;
        case PI_DTYPE_Q4_K:
        case PI_DTYPE_Q5_K:
            put_q45_k(block, w->type == PI_DTYPE_Q5_K, r, out, power);
            break;
        case PI_DTYPE_Q6_K:
            put_q6_k(block, r, out, power);
            break;
        case PI_DTYPE_Q2_K:
            put_q2_k(block, r, out, power);
            break;
        case PI_DTYPE_Q3_K:
            put_q3_k(block, r, out, power);
            break;
        case PI_DTYPE_IQ4_XS:
            put_iq4_xs(block, r, out, power);
            break;
        default:
            put_32(w->type, block, r, i / 32, out, power);
            break;
        }
    }
}

/* The power of two that brings the largest weight to [0.5, 1). */
static int power_of(const struct pi_matrix *w, int32_t n_slab, float *row)
{
    float most = 0.0f;
    int e = 0;
    if (w->type == PI_DTYPE_F16)
        return 0;
    for (int32_t s = 0; s < n_slab; s++) {
        const struct pi_matrix slab = pi_matrix_slab(w, s);
        for (int32_t r = 0; r < w->n_row; r++) {
            pi_matmul_unpack_row(&slab, r, row);
            for (int32_t c = 0; c < w->n_col; c++)
                most = fmaxf(most, fabsf(row[c]));
        }
    }
    frexpf(most, &e);
    return most > 0.0f ? -e : 0;
}

/* One slab, to out, which is zeros. F32 stays row by row. */
static void pack_slab(const struct pi_matrix *w, const struct gpu_weight *to, int power,
                      uint8_t *out)
{
    size_t block = block_bytes(w->type);
    for (int32_t r = 0; r < w->n_row && to->type == GPU_WEIGHT_F32; r++)
        pi_matmul_unpack_row(w, r, (float *)(void *)out + (size_t)r * (size_t)w->n_col);
    for (int32_t r = 0; r < w->n_row && to->type != GPU_WEIGHT_F32; r++)
        for (int32_t b = 0; b < to->n_block; b++)
            put_row(w, r, b,
                    out + ((size_t)(r / PI_GROUP) * (size_t)to->n_block + (size_t)b) * block,
                    power);
}

static bool note_weight(struct gpu_device *d, struct gpu_weight *w)
{
    if (d->n_weight == d->cap_weight) {
        size_t cap = d->cap_weight * 2 + 16;
        struct gpu_weight **more = pi_mem_grow(PI_MEM_DEVICE, d->weight, cap, sizeof(*more));
        if (more == NULL)
            return false;
        d->weight = more;
        d->cap_weight = cap;
    }
    d->weight[d->n_weight++] = w;
    atomic_fetch_add(&d->base.bytes, (int64_t)w->size);
    return true;
}

void gpu_weight_free(struct gpu_device *d, struct gpu_weight *w)
{
    if (w->at != 0)
        d->driver->free(d->driver, w->at, w->size);
    pi_mem_free(w);
}

/* Fills device memory that is there. */
static bool fill(struct gpu_device *d, const struct pi_matrix *w, int32_t n_slab,
                 struct gpu_weight *to)
{
    uint8_t *bytes = pi_mem_alloc(PI_MEM_SCRATCH, to->slab_bytes);
    float *row = pi_mem_alloc_n(PI_MEM_SCRATCH, (size_t)w->n_col, sizeof(*row));
    bool ok = bytes != NULL && row != NULL;
    int power = ok && to->type != GPU_WEIGHT_F32 ? power_of(w, n_slab, row) : 0;
    to->scale = ldexpf(1.0f, -power);
    for (int32_t s = 0; ok && s < n_slab; s++) {
        const struct pi_matrix slab = pi_matrix_slab(w, s);
        memset(bytes, 0, to->slab_bytes);
        pack_slab(&slab, to, power, bytes);
        d->driver->put(d->driver, to->at + (size_t)s * to->slab_bytes, bytes, to->slab_bytes);
    }
    pi_mem_free(bytes);
    pi_mem_free(row);
    return ok;
}

struct pi_at gpu_pack(struct pi_device *device, const struct pi_matrix *w, int32_t n_slab)
{
    struct gpu_device *d = gpu_of(device);
    struct gpu_weight *to = pi_mem_alloc(PI_MEM_DEVICE, sizeof(*to));
    if (to == NULL)
        return (struct pi_at){0};
    to->type = type_of(w->type);
    to->host = *w;
    to->n_block = (int32_t)pi_ceil_div(w->n_col, BLOCK);
    to->slab_bytes = to->type == GPU_WEIGHT_F32
                         ? (size_t)w->n_row * (size_t)w->n_col * sizeof(float)
                         : (size_t)w->n_group * (size_t)to->n_block * block_bytes(w->type);
    to->size = to->slab_bytes * (size_t)n_slab;
    gpu_enter(d);
    to->at = d->driver->alloc(d->driver, to->size);
    bool ok = to->at != 0 && fill(d, w, n_slab, to) && note_weight(d, to);
    if (!ok)
        gpu_weight_free(d, to);
    gpu_leave(d);
    return (struct pi_at){ok ? (uintptr_t)to : 0};
}

struct pi_at gpu_pack_vector(struct pi_device *device, const float *x, size_t n)
{
    struct pi_at at = device->alloc(device, PI_MEM_WEIGHTS, n * sizeof(*x));
    if (pi_at_some(at))
        device->upload(NULL, x, n * sizeof(*x), at);
    return at;
}

void gpu_unpack(struct pi_device *device, struct pi_at at)
{
    struct gpu_device *d = gpu_of(device);
    bool found = false;
    gpu_enter(d);
    for (size_t i = 0; i < d->n_weight && !found; i++)
        if ((uintptr_t)d->weight[i] == at.at) {
            atomic_fetch_sub(&d->base.bytes, (int64_t)d->weight[i]->size);
            gpu_weight_free(d, d->weight[i]);
            d->weight[i] = d->weight[--d->n_weight];
            found = true;
        }
    gpu_leave(d);
    if (!found)
        device->free(device, at);
}
