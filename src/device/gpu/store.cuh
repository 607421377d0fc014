/*
 * store.cuh - entries in pages: encoding rows, moving entries, and reading them. A page has the
 * bytes that kv/class.h describes, as on the processor. All of it goes in units of 2 bytes, of
 * which every row of a plane is a multiple.
 */
#ifndef PI_GPU_STORE_CUH
#define PI_GPU_STORE_CUH

#include "device/gpu/rows.cuh"

/* The numbers of enum kv_type, kv/type.h: host files assert that they are these. */
enum {
    STORE_F32,
    STORE_F16,
    STORE_Q8_0,
    STORE_Q4_0,
    STORE_TURBO4,
    STORE_TURBO3,
    STORE_TURBO2,
    STORE_BF16
};
enum { PLANE_LOW, PLANE_HIGH, PLANE_SCALE };

/* Where unit u of the row that a plane has of an entry lies. */
DEV size_t unit_at(const gpu_part &part, int plane, int page_len, int slot, int u)
{
    const uint32_t size = part.plane[plane].element, byte = 2 * (uint32_t)u;
    if (part.beside) { /* elements of 2 or 4 bytes */
        const uint32_t element = size == 4 ? byte >> 2 : byte >> 1;
        return part.plane[plane].at + ((size_t)element * page_len + slot) * size +
               (byte & (size - 1));
    }
    return part.plane[plane].at + (size_t)slot * part.plane[plane].pitch + byte;
}

DEV uint32_t unit_of(const gpu_part &part, int plane, const uint8_t *page, int page_len, int slot,
                     int u)
{
    return *(const uint16_t *)(page + unit_at(part, plane, page_len, slot, u));
}

DEV int code_bits(int type)
{
    return type == STORE_Q8_0 ? 8 : type == STORE_Q4_0 || type == STORE_TURBO4 ? 4 : 2;
}

DEV bool has_codes(int type)
{
    return type != STORE_F32 && type != STORE_F16 && type != STORE_BF16;
}

/* ---- encoding ---- */

DEV float within(float x, float limit)
{
    float y = x < limit ? x : limit;
    y = y > -limit ? y : -limit;
    return x == x ? y : 0.0f;
}

DEV float warp_max(float v)
{
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2)
        v = f_max(v, shfl_xor(v, mask));
    return v;
}

DEV uint32_t half_of(float x)
{
    return h2(x, 0.0f) & 0xffff;
}

/* A block of 32 as ggml's q8_0 has it, one number a lane. Returns the scale. */
DEV uint32_t encode_q8(float x, uint8_t *code)
{
    x = within(x, 65504.0f * 127.0f);
    const float d = warp_max(fabsf(x)) / 127.0f;
    const uint32_t scale = half_of(d);
    const float y = scale != 0 ? x * (1.0f / d) : 0.0f;
    const int whole = (int)y;
    const float rest = y - (float)whole;
    *code = (uint8_t)(whole + (rest >= 0.5f) - (rest <= -0.5f));
    return scale;
}

/* Likewise q4_0: by the value of largest magnitude, the first of equals. */
DEV uint32_t encode_q4(float x, uint8_t *code)
{
    x = within(x, 65504.0f * 8.0f);
    float most = x;
    int at = LANE;
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2) {
        float other = shfl_xor(most, mask);
        int other_at = (int)shfl((uint32_t)at, LANE ^ mask);
        bool takes = fabsf(other) > fabsf(most) || (fabsf(other) == fabsf(most) && other_at < at);
        most = takes ? other : most;
        at = takes ? other_at : at;
    }
    const float d = most / -8.0f;
    const uint32_t scale = (half_of(d) & 0x7fff) != 0 ? half_of(d) : 0;
    const int c = (int)(x * (scale != 0 ? 1.0f / d : 0.0f) + 8.5f);
    *code = (uint8_t)(c < 15 ? c : 15);
    return scale;
}

/* Signs of the rotation (device/cpu/wht.c), before and after. */
DEV uint32_t wht_signs(int word, bool after)
{
    if (after)
        return word == 0   ? 0xe953116fu
               : word == 1 ? 0xc09d7023u
               : word == 2 ? 0x485aca85u
                           : 0x415a9a9du;
    return word == 0   ? 0x1b95fca6u
           : word == 1 ? 0xbd07a6b6u
           : word == 2 ? 0x5b39c444u
                       : 0xb60daf56u;
}
DEV float wht_sign(int i, bool after)
{
    return (wht_signs(i / 32, after) >> (i % 32) & 1) != 0 ? 1.0f : -1.0f;
}

/* The butterflies of n numbers, without signs and scale: lane l has numbers l, l + 32, .. */
DEV void wht_turn(float *v, int n)
{
    for (int h = 1; h < 32 && h < n; h *= 2)
        UNROLL
    for (int i = 0; i < 4; i++) {
        float other = shfl_xor(v[i], h);
        v[i] = (LANE & h) != 0 ? other - v[i] : v[i] + other;
    }
    for (int h = 1; h < 4 && 32 * h < n; h *= 2)
        UNROLL
    for (int i = 0; i < 4; i++)
        if ((i & h) == 0) {
            float a = v[i], b = v[(i | h) & 3];
            v[i] = a + b;
            v[(i | h) & 3] = a - b;
        }
}

/* The nearest of n centroids times length. */
DEV int nearest(float x, const float *table, int n, float length)
{
    int code = 0;
    for (int c = 1; c < n; c++)
        code = x >= 0.5f * (table[c - 1] + table[c]) * length ? c : code;
    return code;
}

/* A group of the rotated types (device/cpu/coded.c has the formulas), by a warp: lane l has numbers
   l, l + 32, .. of it. Returns the scale. */
DEV uint32_t encode_turbo(const gpu_part &part, const float *x, uint8_t *code)
{
    const int n = part.group, n_code = part.type == STORE_TURBO4   ? 16
                                       : part.type == STORE_TURBO3 ? 8
                                                                   : 4;
    float v[4], square = 0.0f;
    UNROLL
    for (int i = 0; i < 4; i++) {
        const int at = 32 * i + LANE;
        v[i] = at < n ? within(x[at], 65504.0f) : 0.0f;
        square = fmaf(v[i], v[i], square);
        v[i] *= wht_sign(at, false);
    }
    square = warp_sum(square);
    const float norm = sqrtf(square);
    wht_turn(v, n);
    UNROLL
    for (int i = 0; i < 4; i++)
        v[i] *= wht_sign(32 * i + LANE, true) * part.wht_scale;
    const float stretch[5] = {1.0f, 0.8f, 0.9f, 1.1f, 1.2f};
    float best = 1.0f, most = -1.0f, along = 0.0f;
    for (int s = 0; s < 5; s++) {
        float xc = 0.0f, own = 0.0f;
        UNROLL
        for (int i = 0; i < 4; i++)
            if (32 * i + LANE < n) {
                float c = part.table[nearest(v[i], part.table, n_code, norm * stretch[s])];
                xc = fmaf(v[i], c, xc);
                own = fmaf(c, c, own);
            }
        xc = warp_sum(xc), own = warp_sum(own);
        if (xc * xc > most * own)
            most = xc * xc / own, along = xc, best = stretch[s];
    }
    UNROLL
    for (int i = 0; i < 4; i++)
        if (32 * i + LANE < n)
            code[32 * i + LANE] = (uint8_t)nearest(v[i], part.table, n_code, norm * best);
    const float scale = square / along;
    return norm <= 1e-10f ? 0 : half_of(scale < 65504.0f ? scale : 65504.0f);
}

/* Unit u of the row of a plane, from numbers or codes. */
DEV uint32_t unit_to_store(int type, int plane, int u, const float *x, const uint8_t *code,
                           const uint16_t *scale)
{
    uint32_t r = 0;
    if (plane == PLANE_SCALE)
        return scale[u];
    if (plane == PLANE_HIGH) {
        for (int i = 0; i < 16; i++)
            r |= (uint32_t)(code[16 * u + i] >> 2 & 1) << i;
        return r;
    }
    if (type == STORE_F32)
        return AS_U(within(x[u / 2], 3.4028234e38f)) >> (16 * (u % 2)) & 0xffff;
    if (type == STORE_F16)
        return half_of(within(x[u], 65504.0f));
    if (type == STORE_BF16) { /* to nearest even; the largest number is that of bf16 */
        uint32_t bits = AS_U(within(x[u], 3.3895314e38f));
        return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
    const int n_bit = code_bits(type), mask = (1 << n_bit) - 1;
    for (int i = 0; i < 16 / n_bit; i++)
        r |= (uint32_t)(code[u * (16 / n_bit) + i] & mask) << (n_bit * i);
    return r;
}

/* By 128 threads, of which this is number i: whether a row has more than its type holds; its codes
   and scales to shared memory; then, behind a barrier, its entry. */
DEV bool row_clips(const float *x, int dim, float limit, int i)
{
    bool clipped = false;
    for (; i < dim; i += 128)
        clipped = clipped || !(fabsf(x[i]) <= limit);
    return clipped;
}
DEV void row_encode(const gpu_part &part, const float *x, uint8_t *code, uint16_t *scale, int i)
{
    for (int g = i / 32; has_codes(part.type) && g < part.dim / part.group; g += 4) {
        const float *from = x + g * part.group;
        uint8_t *to = code + g * part.group;
        uint32_t s = part.type == STORE_Q8_0   ? encode_q8(from[LANE], to + LANE)
                     : part.type == STORE_Q4_0 ? encode_q4(from[LANE], to + LANE)
                                               : encode_turbo(part, from, to);
        if (LANE == 0)
            scale[g] = (uint16_t)s;
    }
}
DEV void row_store(const gpu_part &part, const float *x, const uint8_t *code, const uint16_t *scale,
                   uint8_t *page, int page_len, int slot, int i)
{
    for (int p = 0; p < GPU_N_PLANE; p++)
        for (int u = i; u < (int)part.plane[p].row / 2; u += 128)
            *(uint16_t *)(page + unit_at(part, p, page_len, slot, u)) =
                (uint16_t)unit_to_store(part.type, p, u, x, code, scale);
}
/* Bytes of codes of a row in shared memory, its scales behind them. */
BOTH int row_codes(int dim)
{
    return (dim + 127) / 128 * 128;
}

/* A block makes one row an entry. Shared memory: codes, then scales. Grid: rows. */
KERNEL(128, 4) append(const gpu_append_args &a)
{
    SHARED(smem);
    const gpu_append_row row = AT(const gpu_append_row, a.rows)[blockIdx.x];
    const gpu_part &part = a.part[row.value ? 1 : 0];
    const float *x = AT(const float, row.from);
    uint16_t *scale = (uint16_t *)(smem + row_codes(part.dim));
    if (row_clips(x, part.dim, a.limit[row.value ? 1 : 0], TID) && a.clipped != 0)
        atomic_min(AT(int32_t, a.clipped), row.clip);
    row_encode(part, x, smem, scale, TID);
    sync_block();
    row_store(part, x, smem, scale, AT(uint8_t, row.page), a.page_len, row.slot, TID);
}

/* ---- moving ---- */

/* A thread has a unit of a row of elements, and moves it for all entries of all parts in order:
   what comes from the page itself is read before it is overwritten. Grid: (units / 128, planes). */
KERNEL(128, 4) move(const gpu_move_args &a)
{
    const gpu_move_plane p = a.plane[blockIdx.y];
    const uint32_t i = blockIdx.x * 128 + TID, n_unit = p.element / 2;
    if (i >= p.n_row * n_unit)
        return;
    const size_t at = p.at + (size_t)(i / n_unit) * p.row + i % n_unit * 2;
    for (int j = 0; j < a.n_part; j++) {
        const gpu_move_part part = AT(const gpu_move_part, a.parts)[j];
        for (int e = 0; e < part.n; e++)
            *(uint16_t *)(AT(uint8_t, a.to) + at + (size_t)(part.to_slot + e) * p.element) =
                *(const uint16_t *)(AT(const uint8_t, part.from) + at +
                                    (size_t)(part.from_slot + e) * p.element);
    }
}

/* ---- reading ---- */

DEV float float_of(uint32_t half)
{
    return h_lo(half);
}

#define Q8_SCALE_MOST 515.5f /* so that codes become numbers of f16 */

/* Dimensions d .. d + 8 of an entry, as stored: what is rotated stays so. Behind the last they are
   0. With `half` numbers of tables are rounded to f16, and wider types are cut to what it holds. */
DEV void entry_decode(const gpu_part &part, const uint8_t *page, int page_len, int slot, int d,
                      bool half, float *out)
{
    const int type = part.type;
    UNROLL
    for (int i = 0; i < 8; i++)
        out[i] = 0.0f;
    if (!has_codes(type)) {
        for (int i = 0; i < 8 && d + i < part.dim; i++) {
            const int u = type == STORE_F32 ? 2 * (d + i) : d + i;
            uint32_t x = unit_of(part, PLANE_LOW, page, page_len, slot, u);
            if (type == STORE_F32)
                x |= unit_of(part, PLANE_LOW, page, page_len, slot, u + 1) << 16;
            const float y = type == STORE_F16 ? float_of(x) : AS_F(type == STORE_F32 ? x : x << 16);
            out[i] = half ? within(y, 65504.0f) : y;
        }
        return;
    }
    if (d >= part.dim)
        return;
    float scale = float_of(unit_of(part, PLANE_SCALE, page, page_len, slot, d / part.group));
    if (half && type == STORE_Q8_0)
        scale = scale < Q8_SCALE_MOST ? scale : Q8_SCALE_MOST;
    uint32_t high = 0, word[4];
    if (type == STORE_TURBO3)
        high = unit_of(part, PLANE_HIGH, page, page_len, slot, d / 16) >> (d % 16);
    const int n_bit = code_bits(type), n_unit = n_bit / 2;
    for (int i = 0; i < n_unit; i++)
        word[i] = unit_of(part, PLANE_LOW, page, page_len, slot, d * n_bit / 16 + i);
    if (n_bit == 2)
        word[0] = unit_of(part, PLANE_LOW, page, page_len, slot, d / 8);
    UNROLL
    for (int i = 0; i < 8; i++) {
        uint32_t code = word[i * n_bit / 16] >> (i * n_bit % 16) & ((1u << n_bit) - 1);
        if (type == STORE_Q8_0)
            out[i] = scale * (float)(int8_t)code;
        else
            out[i] = part.table[(code | (high >> i & 1) << 2) & (GPU_CODE_MAX - 1)];
        if (type != STORE_Q8_0)
            out[i] = scale * (half ? float_of(half_of(out[i])) : out[i]);
    }
}

/* As attention reads it. */
DEV void entry_read(const gpu_part &part, const uint8_t *page, int page_len, int slot, int d,
                    float *out)
{
    entry_decode(part, page, page_len, slot, d, true, out);
}

/* Entries first .. first + n_entry of a page become floats x [n_entry][dim + 1], rotated as they are
   stored; places without one are 0. */
DEV void entries_as_stored(const gpu_part &part, const uint8_t *page, int page_len, int first,
                           int n, int n_entry, float *x)
{
    const int dim = part.dim, n_part = (dim + 7) / 8;
    for (int i = TID; i < n_entry * n_part; i += 128) {
        const int e = part.beside ? i % n_entry : i / n_part;
        const int d = (part.beside ? i / n_entry : i % n_part) * 8;
        float v[8];
        if (first + e < n)
            entry_decode(part, page, page_len, first + e, d, false, v);
        UNROLL
        for (int j = 0; j < 8; j++)
            if (d + j < dim)
                x[e * (dim + 1) + d + j] = first + e < n ? v[j] : 0.0f;
    }
    sync_block();
}

/* Likewise, as attention sees them. */
DEV void decode_entries(const gpu_part &part, const uint8_t *page, int page_len, int first, int n,
                        int n_entry, float *x)
{
    const int dim = part.dim;
    entries_as_stored(part, page, page_len, first, n, n_entry, x);
    if (part.wht_scale == 0.0f)
        return;
    for (int i = WARP; i < n_entry * (dim / part.group); i += 4) {
        float *group = x + i / (dim / part.group) * (dim + 1) + i % (dim / part.group) * part.group;
        float v[4];
        UNROLL
        for (int j = 0; j < 4; j++)
            v[j] = 32 * j + LANE < part.group ? group[32 * j + LANE] * wht_sign(32 * j + LANE, true)
                                              : 0.0f;
        wht_turn(v, part.group);
        UNROLL
        for (int j = 0; j < 4; j++)
            if (32 * j + LANE < part.group)
                group[32 * j + LANE] = v[j] * wht_sign(32 * j + LANE, false) * part.wht_scale;
    }
    sync_block();
}

#endif
