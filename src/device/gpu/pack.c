/*
 * pack.c - weights in the order in which the tensor cores' operands lie in registers (matmul.cuh),
 * in exactly the file's bytes. Scales are multiplied by a power of two that brings a matrix's
 * largest weight near 1, where f16 has all its bits. Products are divided by it. Both are exact.
 */
#include <math.h>
#include <stdatomic.h>

#include "base/half.h"
#include "base/threads.h"
#include "device/gpu/host.h"
#include "tensor/dtype_table.h"

enum {
    BLOCK = 256,
    TILE = 64,
    BLOCK_BYTES = 288, /* of a row's codes and scales, at most */
    MXFP4_ZERO_EXPONENT = 103
};

enum gpu_weight_type gpu_weight_type_of(enum pi_dtype type)
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

/* ---- codes ---- */

/* The planes of a type's codes (matmul.cuh): the low 4 bits, and 2 bits and 1 bit from some bit on.
   -1: there is no such plane. Without planes codes are bytes. */
struct planes {
    bool low;
    int8_t two, one;
};

static struct planes planes_of(enum pi_dtype type)
{
    switch (type) {
    case PI_DTYPE_Q8_0:
        return (struct planes){false, -1, -1};
    case PI_DTYPE_Q2_K:
        return (struct planes){false, 0, -1};
    case PI_DTYPE_Q3_K:
        return (struct planes){false, 0, 2};
    case PI_DTYPE_Q6_K:
        return (struct planes){true, 4, -1};
    case PI_DTYPE_Q5_0:
    case PI_DTYPE_Q5_1:
    case PI_DTYPE_Q5_K:
        return (struct planes){true, -1, 4};
    default:
        return (struct planes){true, -1, -1};
    }
}

/* n codes of the low halves of bytes, then n of the high ones. */
static void read_nibbles(const uint8_t *q, int n, uint8_t *code)
{
    for (int i = 0; i < n; i++) {
        code[i] = q[i] & 15;
        code[n + i] = q[i] >> 4;
    }
}

/* `mask` of n bytes, from a bit on, becomes the bits of n codes from another one on. */
static void add_bits(const uint8_t *q, int n, int from, int mask, int to, uint8_t *code)
{
    for (int i = 0; i < n; i++)
        code[i] = (uint8_t)(code[i] | (q[i] >> from & mask) << to);
}

/* Of 256 weights in one block (tensor/dtype_k.c has the files' layouts). */
static void read_wide(enum pi_dtype type, const uint8_t *b, uint8_t *code)
{
    const uint8_t *low = b + (type == PI_DTYPE_Q4_K ? 16 : type == PI_DTYPE_Q5_K ? 48 : 0);
    for (int i = 0; i < 4 && (type == PI_DTYPE_Q4_K || type == PI_DTYPE_Q5_K); i++)
        read_nibbles(low + 32 * i, 32, code + 64 * i);
    for (int i = 0; i < 8 && type == PI_DTYPE_Q5_K; i++)
        add_bits(b + 16, 32, i, 1, 4, code + 32 * i);
    for (int i = 0; i < 2 && type == PI_DTYPE_Q6_K; i++)
        read_nibbles(low + 64 * i, 64, code + 128 * i);
    for (int i = 0; i < 8 && type == PI_DTYPE_IQ4_XS; i++)
        read_nibbles(b + 8 + 16 * i, 16, code + 32 * i);
    const uint8_t *pair = b + (type == PI_DTYPE_Q6_K ? 128 : type == PI_DTYPE_Q2_K ? 16 : 32);
    bool pairs = planes_of(type).two >= 0;
    for (int i = 0; i < 8 && pairs; i++)
        add_bits(pair + i / 4 * 32, 32, i % 4 * 2, 3, planes_of(type).two, code + 32 * i);
    for (int i = 0; i < 8 && type == PI_DTYPE_Q3_K; i++)
        add_bits(b, 32, i, 1, 2, code + 32 * i);
}

/* Of 32 weights in one block. */
static void read_narrow(enum pi_dtype type, const uint8_t *b, uint8_t *code)
{
    bool five = type == PI_DTYPE_Q5_0 || type == PI_DTYPE_Q5_1;
    bool min = type == PI_DTYPE_Q4_1 || type == PI_DTYPE_Q5_1;
    const uint8_t *q = b + (type == PI_DTYPE_MXFP4 ? 1 : min ? 4 : 2);
    for (int i = 0; i < 32 && type == PI_DTYPE_Q8_0; i++)
        code[i] = q[i] ^ 128;
    if (type != PI_DTYPE_Q8_0)
        read_nibbles(q + (five ? 4 : 0), 16, code);
    for (int i = 0; i < 32 && five; i++)
        code[i] = (uint8_t)(code[i] | (q[i / 8] >> (i % 8) & 1) << 4);
}

/* Codes of a lane's registers in 16 columns, `bits` wide each. Odd columns have bits from 16 on.
   code: of the lane's first row and column. */
static inline uint32_t word_of(const uint8_t *code, int shift, int bits)
{
    uint32_t word = 0, mask = (1u << bits) - 1;
    for (int j = 0; j < 4; j++) {
        const uint8_t *c = code + j % 2 * 8 * BLOCK + j / 2 * 8;
        word |= (c[0] >> shift & mask) << (bits * j) | (c[1] >> shift & mask) << (bits * j + 16);
    }
    return word;
}

static uint8_t *put_word(uint8_t *out, uint32_t word)
{
    memcpy(out, &word, sizeof(word));
    return out + sizeof(word);
}

/* The planes of a block one after the other; returns where the scales follow. */
static uint8_t *put_codes(struct planes planes, const uint8_t *code, uint8_t *out)
{
    const uint8_t *at[4 * 32]; /* the first code of a tile's lane */
    int n = PI_LEN(at);
    for (int i = 0; i < n; i++)
        at[i] = code + i % 32 / 4 * BLOCK + i / 32 * TILE + i % 4 * 2;
    for (int i = 0; i < n && planes.low; i++)
        for (int k = 0; k < 4; k++)
            out = put_word(out, word_of(at[i] + 16 * k, 0, 4));
    for (int i = 0; i < n && planes.two >= 0; i++)
        for (int k = 0; k < 4; k += 2)
            out = put_word(out, word_of(at[i] + 16 * k, planes.two, 2) |
                                    word_of(at[i] + 16 * k + 16, planes.two, 2) << 8);
    for (int i = 0; i < n && planes.one >= 0; i++) {
        uint32_t word = 0;
        for (int k = 0; k < 4; k++)
            word |= word_of(at[i] + 16 * k, planes.one, 1) << (4 * k);
        out = put_word(out, word);
    }
    for (int i = 0; i < 2 * n && !planes.low && planes.two < 0; i++)
        for (int e = 0; e < 8; e++) { /* of two steps of 16 columns, the registers' pairs */
            const uint8_t *c = at[i / 64 * 32 + i % 32] + i / 32 % 2 * 32 + e / 4 * 16;
            c += e % 2 * 8 * BLOCK + e / 2 % 2 * 8;
            *out++ = c[0];
            *out++ = c[1];
        }
    return out;
}

/* ---- scales of one row ---- */

static uint16_t half_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

/* A scale times a power of two. */
static void put_scale(uint8_t *out, const uint8_t *from, float power)
{
    uint16_t half = pi_f16_from_f32(pi_f32_from_f16(half_at(from)) * power);
    memcpy(out, &half, sizeof(half));
}

/* Byte t of three words gets 24 bits of tile t. */
static void put_24(uint8_t *out, int tile, uint32_t bits)
{
    for (int i = 0; i < 3; i++)
        out[4 * i + tile] = (uint8_t)(bits >> (8 * i));
}

static void scales_of_k(const uint8_t *s, int i, uint32_t *scale, uint32_t *min)
{
    *scale = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
    *min = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
}

static void put_q45_k(const uint8_t *b, int row, uint8_t *out, float power)
{
    uint8_t *to = out + row * 16;
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

static void put_q6_k(const uint8_t *b, int row, uint8_t *out, float power)
{
    for (int i = 0; i < 16; i++)
        out[row * 16 + i] = b[192 + i] ^ 128;
    put_scale(out + 256 + row * 2, b + 208, power);
}

static void put_q2_k(const uint8_t *b, int row, uint8_t *out, float power)
{
    memcpy(out + row * 16, b, 16);
    put_scale(out + 256 + row * 4, b + 80, power);
    put_scale(out + 256 + row * 4 + 2, b + 82, power);
}

static void put_q3_k(const uint8_t *b, int row, uint8_t *out, float power)
{
    const uint8_t *scales = b + 96;
    for (int t = 0; t < 4; t++) {
        uint32_t bits = 0;
        for (int e = 0; e < 4; e++) {
            int i = 4 * t + e;
            uint32_t low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4;
            bits |= (low | (uint32_t)(scales[8 + i % 4] >> (i / 4 * 2) & 3) << 4) << (6 * e);
        }
        put_24(out + row * 12, t, bits);
    }
    put_scale(out + 192 + row * 2, b + 108, power);
}

static void put_iq4_xs(const uint8_t *b, int row, uint8_t *out, float power)
{
    uint64_t bits = 0;
    uint16_t high = half_at(b + 2);
    for (int i = 0; i < 8; i++) {
        uint64_t low = b[4 + i / 2] >> (i % 2 * 4) & 15;
        bits |= (low | (uint64_t)(high >> (2 * i) & 3) << 4) << (6 * i);
    }
    put_scale(out + row * 8, b, power);
    for (int i = 0; i < 6; i++)
        out[row * 8 + 2 + i] = (uint8_t)(bits >> (8 * i));
}

/* Of block i of 8. */
static void put_narrow(enum pi_dtype type, const uint8_t *b, int row, int i, uint8_t *out,
                       float power)
{
    bool min = type == PI_DTYPE_Q4_1 || type == PI_DTYPE_Q5_1;
    if (type == PI_DTYPE_MXFP4) {
        int e = 0;
        frexpf(power, &e);
        e += b[0] - 1 - MXFP4_ZERO_EXPONENT;
        out[row * 8 + i] = (uint8_t)(e < 0 ? 0 : e);
        return;
    }
    put_scale(out + (row * 8 + i) * (min ? 4 : 2), b, power);
    if (min)
        put_scale(out + (row * 8 + i) * 4 + 2, b + 2, power);
}

static void put_scales(enum pi_dtype type, const uint8_t *b, int row, uint8_t *out, float power)
{
    const struct pi_dtype_traits *traits = pi_dtype_find((uint32_t)type);
    switch (type) {
    case PI_DTYPE_Q4_K:
    case PI_DTYPE_Q5_K:
        put_q45_k(b, row, out, power);
        break;
    case PI_DTYPE_Q6_K:
        put_q6_k(b, row, out, power);
        break;
    case PI_DTYPE_Q2_K:
        put_q2_k(b, row, out, power);
        break;
    case PI_DTYPE_Q3_K:
        put_q3_k(b, row, out, power);
        break;
    case PI_DTYPE_IQ4_XS:
        put_iq4_xs(b, row, out, power);
        break;
    default:
        for (int i = 0; i < BLOCK / 32; i++)
            put_narrow(type, b + i * traits->block_bytes, row, i, out, power);
        break;
    }
}

/* ---- a block of 16 rows x 256 columns ---- */

/* f16 and bf16, which lie column by column on the host. */
static void put_halves(const struct pi_matrix *w, int64_t group, int32_t b, uint8_t *out,
                       float power)
{
    const uint8_t *from = w->data + (size_t)group * w->group_bytes;
    for (int i = 0; i < BLOCK / 16 * 32; i++)
        for (int j = 0; j < 8; j++, out += 2) {
            int row = i % 32 / 4 + j / 2 % 2 * 8;
            int32_t col = b * BLOCK + i / 32 * 16 + i % 4 * 2 + j / 4 * 8 + j % 2;
            uint16_t half = 0;
            if (col < w->n_col)
                half = half_at(from + ((size_t)col * PI_GROUP + (size_t)row) * 2);
            if (w->type == PI_DTYPE_BF16)
                half = pi_f16_from_f32(pi_f32_from_bf16(half) * power);
            memcpy(out, &half, sizeof(half));
        }
}

static void put_block(const struct pi_matrix *w, int64_t group, int32_t b, uint8_t *out,
                      float power)
{
    const struct pi_dtype_traits *traits = pi_dtype_find((uint32_t)w->type);
    int32_t len = traits->block_len, n = (int32_t)pi_min(BLOCK, w->n_col - b * BLOCK) / len;
    uint8_t rows[PI_GROUP][BLOCK_BYTES], code[PI_GROUP][BLOCK];
    memset(rows, 0, sizeof(rows));
    memset(code, 0, sizeof(code));
    for (int r = 0; r < PI_GROUP; r++) {
        for (int32_t i = 0; i < n; i++)
            pi_matmul_file_block(w, (int32_t)group * PI_GROUP + r, b * (BLOCK / len) + i,
                                 rows[r] + (size_t)(i * traits->block_bytes));
        if (len == BLOCK)
            read_wide(w->type, rows[r], code[r]);
        for (int32_t i = 0; i < BLOCK / 32 && len < BLOCK; i++)
            read_narrow(w->type, rows[r] + (size_t)(i * traits->block_bytes), code[r] + 32 * i);
    }
    out = put_codes(planes_of(w->type), code[0], out);
    for (int r = 0; r < PI_GROUP; r++)
        put_scales(w->type, rows[r], r, out, power);
}

/* ---- matrices, on the host's threads ---- */

/* A matrix, or a slab of it, on its way. */
struct work {
    const struct pi_matrix *w;
    const struct gpu_weight *to;
    uint8_t *out;     /* of groups from `first` on */
    int64_t first;    /* group */
    float power;      /* what weights are multiplied by */
    atomic_uint most; /* bits of the largest magnitude so far */
};

static void most_of_groups(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct work *job = ctx;
    float most = 0.0f;
    unsigned bits, was = atomic_load(&job->most);
    (void)thread;
    for (int64_t r = begin * PI_GROUP; r < pi_min(end * PI_GROUP, job->w->n_row); r++)
        most = fmaxf(most, pi_matmul_row_most(job->w, (int32_t)r));
    memcpy(&bits, &most, sizeof(bits)); /* magnitudes and their bits have one order */
    while (was < bits && !atomic_compare_exchange_weak(&job->most, &was, bits)) {
    }
}

/* F32 stays row by row. */
static void copy_rows(const struct work *job, int64_t group)
{
    size_t n_col = (size_t)job->w->n_col;
    int64_t end = pi_min((group + 1) * PI_GROUP, job->w->n_row);
    float *out = (float *)(void *)job->out - (size_t)(job->first * PI_GROUP) * n_col;
    for (int64_t r = group * PI_GROUP; r < end; r++)
        pi_matmul_unpack_row(job->w, (int32_t)r, out + (size_t)r * n_col);
}

static void pack_groups(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct work *job = ctx;
    int32_t n_block = job->to->n_block;
    size_t block = job->to->type == GPU_WEIGHT_F32 ? 0 : block_bytes(job->w->type);
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        uint8_t *out = job->out + (size_t)i * (size_t)n_block * block;
        if (job->to->type == GPU_WEIGHT_F32)
            copy_rows(job, job->first + i);
        for (int32_t b = 0; block > 0 && b < n_block; b++, out += block)
            if (job->to->type == GPU_WEIGHT_F16)
                put_halves(job->w, job->first + i, b, out, job->power);
            else
                put_block(job->w, job->first + i, b, out, job->power);
    }
}

static void over_groups(pi_job_fn *fn, struct work *job, int64_t n)
{
    int64_t cost = n * PI_GROUP * job->w->n_col;
    pi_parallel_ranges(pi_threads_worth(pi_thread_count(), cost), n, fn, job);
}

/* The power of two that brings the largest weight to [0.5, 1). */
static int power_of(const struct pi_matrix *w, int32_t n_slab)
{
    struct work job = {.w = w};
    float most;
    int e = 0;
    if (w->type == PI_DTYPE_F16 || w->type == PI_DTYPE_F32)
        return 0;
    for (int32_t s = 0; s < n_slab; s++) {
        const struct pi_matrix slab = pi_matrix_slab(w, s);
        job.w = &slab;
        over_groups(most_of_groups, &job, w->n_group);
    }
    unsigned bits = atomic_load(&job.most);
    memcpy(&most, &bits, sizeof(most));
    frexpf(most, &e);
    return most > 0.0f ? (int)pi_min(-e, 127) : 0;
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

/* Fills device memory that is there, PART bytes about at a time. */
static bool fill(struct gpu_device *d, const struct pi_matrix *w, int32_t n_slab,
                 struct gpu_weight *to)
{
    enum { PART = 64 << 20 };
    size_t rows = (size_t)w->n_col * sizeof(float) * PI_GROUP;
    size_t group = to->type == GPU_WEIGHT_F32 ? rows : (size_t)to->n_block * block_bytes(w->type);
    int64_t step = pi_min(w->n_group, (int64_t)(PART / group + 1));
    uint8_t *bytes = pi_mem_alloc(PI_MEM_SCRATCH, (size_t)step * group);
    if (bytes == NULL)
        return false;
    int power = power_of(w, n_slab);
    to->scale = ldexpf(1.0f, -power);
    for (int32_t s = 0; s < n_slab; s++) {
        const struct pi_matrix slab = pi_matrix_slab(w, s);
        for (int64_t g = 0; g < w->n_group; g += step) {
            struct work job = {&slab, to, bytes, g, ldexpf(1.0f, power), 0};
            int64_t n = pi_min(step, w->n_group - g);
            size_t at = (size_t)g * group;
            over_groups(pack_groups, &job, n);
            d->driver->put(d->driver, to->at + (size_t)s * to->slab_bytes + at, bytes,
                           (size_t)pi_min(n * (int64_t)group, (int64_t)(to->slab_bytes - at)));
        }
    }
    pi_mem_free(bytes);
    return true;
}

struct pi_at gpu_pack(struct pi_device *device, const struct pi_matrix *w, int32_t n_slab)
{
    struct gpu_device *d = gpu_of(device);
    struct gpu_weight *to = pi_mem_alloc(PI_MEM_DEVICE, sizeof(*to));
    if (to == NULL)
        return (struct pi_at){0};
    to->type = gpu_weight_type_of(w->type);
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
