/*
 * attend_few.cuh - attention of few rows over pages of 64 entries, for the frequent types and head
 * sizes. A warp takes 16 rows of a call and a chunk of its pages, and needs no other warp. Keys and
 * values come to shared memory as they are stored, a half page at a time, some of them ahead. Codes
 * become f16 in the registers that they are multiplied from.
 *
 * An element of 16 bytes of a plane lies in shared memory at its place in the page, but in a row of
 * eight elements moved (place_of): no bank is hit twice by the loads below.
 */
#ifndef PI_GPU_ATTEND_FEW_CUH
#define PI_GPU_ATTEND_FEW_CUH

#include "device/gpu/attend.cuh"

/* ---- half pages ---- */

/* Bytes of keys or values of a page; those of a plane begin where the planes before end. */
template <int DIM> BOTH int plane_bytes(int type, int plane)
{
    if (plane == PLANE_LOW)
        return type == STORE_F16    ? TILE * DIM * 2
               : type == STORE_Q8_0 ? TILE * DIM
                                    : TILE * DIM / 4;
    if (plane == PLANE_HIGH)
        return type == STORE_TURBO3 ? TILE * DIM / 8 : 0;
    return type == STORE_F16 ? 0 : type == STORE_Q8_0 ? TILE * DIM / 16 : TILE * 2;
}
template <int DIM> BOTH int half_bytes(int type)
{
    return plane_bytes<DIM>(type, PLANE_LOW) + plane_bytes<DIM>(type, PLANE_HIGH) +
           plane_bytes<DIM>(type, PLANE_SCALE);
}

/* The place of element i: moved by the number of its row of 2^shift * 128 bytes. */
DEV int place_f16(int i, int shift)
{
    return i ^ (i >> (3 + shift) & 7);
}
DEV int place_of(int i, int shift)
{
    return i ^ (i >> (3 + shift) & 3) << 1;
}

/* Moving depends on the element's number in 128. */
template <int BYTES, int N_THREAD, typename F>
DEV void plane_fetch(uint8_t *to, const uint8_t *from, F place)
{
    const int t = anew(TID) % N_THREAD;
    UNROLL
    for (int i = 0; i < BYTES / 16; i += N_THREAD)
        if (BYTES / 16 % N_THREAD == 0 || i + t < BYTES / 16)
            cp16(to + place(i % 128 + t) * 16 + i / 128 * 2048, from + t * 16 + i * 16);
}

template <int DIM, int N_THREAD>
DEV void half_fetch(uint8_t *to, const uint8_t *page, const gpu_part &part, int type, bool keys)
{
    const uint8_t *low = page + part.plane[PLANE_LOW].at, *high = page + part.plane[PLANE_HIGH].at,
                  *scale = page + part.plane[PLANE_SCALE].at;
    if (type == STORE_F16) {
        const int shift = keys && part.beside ? 0 : DIM / 128;
        plane_fetch<TILE * DIM * 2, N_THREAD>(to, low, [&](int i) { return place_f16(i, shift); });
    } else if (type == STORE_Q8_0) {
        plane_fetch<TILE * DIM, N_THREAD>(to, low, [](int i) { return place_of(i, 1); });
        plane_fetch<TILE * DIM / 16, N_THREAD>(to + TILE * DIM, scale, [](int i) { return i; });
    } else {
        const int shift = keys ? 1 : 0;
        plane_fetch<TILE * DIM / 4, N_THREAD>(to, low, [&](int i) { return place_of(i, shift); });
        to += TILE * DIM / 4;
        if (type == STORE_TURBO3) {
            plane_fetch<TILE * DIM / 8, N_THREAD>(to, high,
                                                  [&](int i) { return keys ? place_of(i, 0) : i; });
            to += TILE * DIM / 8;
        }
        plane_fetch<TILE * 2, N_THREAD>(to, scale, [](int i) { return i; });
    }
}

/* ---- codes ---- */

/* Eight numbers of f16: the low bytes of 0..3 and 4..7, and the high ones. */
struct code_table {
    uint32_t low[2], high[2];
};
DEV code_table table_of(const gpu_part &part)
{
    code_table t;
    UNROLL
    for (int i = 0; i < 2; i++) {
        const uint32_t x = h2(part.table[4 * i], part.table[4 * i + 1]),
                       y = h2(part.table[4 * i + 2], part.table[4 * i + 3]);
        t.low[i] = prmt(x, y, 0x6420);
        t.high[i] = prmt(x, y, 0x7531);
    }
    return t;
}

/* The numbers of the codes in the lower four nibbles of sel, each below 8. */
DEV void numbers_of(const code_table &t, uint32_t sel, uint32_t *r)
{
    const uint32_t low = prmt_of(t.low[0], t.low[1], sel),
                   high = prmt_of(t.high[0], t.high[1], sel);
    r[0] = prmt(low, high, 0x5140);
    r[1] = prmt(low, high, 0x7362);
}

/* Nibbles of 16 codes of 2 or 3 bits: those of even number, and those of odd number. Upper bits are
   bytes 0 and 2 of high. */
DEV void nibbles_of(uint32_t low, uint32_t high, uint32_t *even, uint32_t *odd)
{
    high = (high | high << 4) & 0x0f0f0f0fu;
    high = (high | high << 2) & 0x33333333u;
    *even = (low & 0x33333333u) | (high << 2 & 0x44444444u);
    *odd = (low >> 2 & 0x33333333u) | (high << 1 & 0x44444444u);
}

/* Bytes 0 and 2 of x, where the selector puts them, are codes of 8 bits + 128. */
DEV uint32_t bytes_of(uint32_t x, uint32_t sel, uint32_t scale)
{
    return h2_mul(h2_add(prmt(x, 0x64646464u, sel), 0xe480e480u), scale);
}

/* ---- queries ---- */

/* Rotates 128 numbers as wht_shared does: a lane has numbers 64 u + 16 (lane % 4) + i. */
DEV void wht_quad(float (*x)[16], float scale)
{
    const int t = LANE % 4;
    UNROLL
    for (int u = 0; u < 2; u++)
        UNROLL
    for (int i = 0; i < 16; i++)
        x[u][i] *= wht_sign(64 * u + 16 * t + i, false);
    UNROLL
    for (int h = 1; h < 16; h *= 2)
        UNROLL
    for (int u = 0; u < 2; u++)
        UNROLL
    for (int i = 0; i < 16; i++)
        if ((i & h) == 0) {
            const float a = x[u][i], b = x[u][i + h];
            x[u][i] = a + b;
            x[u][i + h] = a - b;
        }
    UNROLL
    for (int h = 1; h < 4; h *= 2)
        UNROLL
    for (int u = 0; u < 2; u++)
        UNROLL
    for (int i = 0; i < 16; i++) {
        const float other = shfl_xor(x[u][i], h);
        x[u][i] = (t & h) != 0 ? other - x[u][i] : x[u][i] + other;
    }
    UNROLL
    for (int i = 0; i < 16; i++) {
        const float a = x[0][i], b = x[1][i];
        x[0][i] = (a + b) * (wht_sign(16 * t + i, true) * scale);
        x[1][i] = (a - b) * (wht_sign(64 + 16 * t + i, true) * scale);
    }
}

/* Row i of two of the first operand, from a query as attend_queries has it; returns what products
   are multiplied by. */
template <int DIM>
DEV float query_row(const float *q, bool is, int order, float wht_scale, uint32_t (*out)[4], int i)
{
    const int t = LANE % 4;
    float x[DIM / 16][4] = {}, top = 0.0f; /* of a step: slots 2 t, + 1, + 8, + 9 */
    if (order == GPU_ORDER_BITS && DIM == 128) {
        float y[2][16] = {};
        UNROLL
        for (int j = 0; j < 8; j++)
            if (is) {
                const float4 f = *(const float4 *)(q + j / 4 * 64 + 16 * t + j % 4 * 4);
                float *to = y[j / 4] + j % 4 * 4;
                to[0] = f.x, to[1] = f.y, to[2] = f.z, to[3] = f.w;
            }
        if (wht_scale != 0.0f)
            wht_quad(y, wht_scale);
        UNROLL
        for (int s = 0; s < DIM / 16; s++)
            UNROLL
        for (int j = 0; j < 4; j++)
            x[s][j] = y[s / 4 & 1][s % 4 / 2 + 8 * (s % 2) + 2 * j];
    } else {
        UNROLL
        for (int s = 0; s < DIM / 16; s++)
            if (is && order == GPU_ORDER_BYTES) {
                const float4 f = *(const float4 *)(q + 16 * s + 4 * t);
                x[s][0] = f.x, x[s][1] = f.y, x[s][2] = f.z, x[s][3] = f.w;
            } else if (is) {
                const uint2 a = *(const uint2 *)(q + 16 * s + 2 * t);
                const uint2 b = *(const uint2 *)(q + 16 * s + 2 * t + 8);
                x[s][0] = AS_F(a.x), x[s][1] = AS_F(a.y), x[s][2] = AS_F(b.x), x[s][3] = AS_F(b.y);
            }
    }
    UNROLL
    for (int s = 0; s < DIM / 16; s++)
        UNROLL
    for (int j = 0; j < 4; j++)
        top = f_max(top, fabsf(x[s][j]));
    top = f_max(top, shfl_xor(top, 1));
    top = f_max(top, shfl_xor(top, 2));
    const float by = row_power(top, false);
    UNROLL
    for (int s = 0; s < DIM / 16; s++) {
        out[s][i] = h2(x[s][0] * by, x[s][1] * by);
        out[s][i + 2] = h2(x[s][2] * by, x[s][3] * by);
    }
    return row_power(top, true);
}

/* The same from the queries that attend_queries made: of f16 pages that were gathered of a rotated
   type. */
template <int DIM>
DEV float packed_row(const gpu_attend_job &job, int row, bool is, uint32_t (*out)[4], int i)
{
    const uint32_t *q = AT(const uint32_t, job.packed) + (size_t)row * (DIM / 2) + LANE % 4;
    UNROLL
    for (int s = 0; s < DIM / 16; s++) {
        out[s][i] = is ? q[8 * s] : 0;
        out[s][i + 2] = is ? q[8 * s + 4] : 0;
    }
    return is ? AT(const float, job.scale)[row] * LOG2E : 0.0f;
}

/* ---- products ---- */

/* Where lanes find rows r of eight of matrices beside each other, in elements that place_f16 moved:
   element 2 j + i / 2 of row (i & 1) * 8 + r, for matrix i of ldmatrix. */
DEV void lane_places(int *at)
{
    const int i = LANE / 8, r = LANE % 8;
    UNROLL
    for (int j = 0; j < 4; j++)
        at[j] = ((2 * j + i / 2) ^ r) * 16;
}

/* Logits of 16 rows: x[i] has entries 8 i .. of tile i of plain order. With codes tile 4 h + j has
   entries 32 h + 4 column + j. */
template <int DIM> DEV void dots_f16(const uint8_t *k, const uint32_t (*q)[4], float (*x)[4])
{
    int at[4];
    lane_places(at);
    k += (LANE / 8 % 2 * 8 + LANE % 8) * TILE * 2;
    UNROLL
    for (int s = 0; s < DIM / 16; s++) {
        uint32_t b[4][4];
        UNROLL
        for (int j = 0; j < 4; j++)
            ldsm4t(b[j], k + at[j] + s * TILE * 32);
        UNROLL
        for (int j = 0; j < 4; j++) {
            mma(x[2 * j], q[s], b[j][0], b[j][1]);
            mma(x[2 * j + 1], q[s], b[j][2], b[j][3]);
        }
    }
}

/* Likewise of keys that are stored entry by entry. */
template <int DIM> DEV void dots_f16_rows(const uint8_t *k, const uint32_t (*q)[4], float (*x)[4])
{
    const int i = LANE / 8, r = LANE % 8;
    UNROLL
    for (int s = 0; s < DIM / 16; s++)
        UNROLL
    for (int j = 0; j < 4; j++) {
        uint32_t b[4];
        ldsm4(b, k + place_f16((16 * j + i / 2 * 8 + r) * (DIM / 8) + 2 * s + (i & 1), DIM / 128) *
                         16);
        mma(x[2 * j], q[s], b[0], b[1]);
        mma(x[2 * j + 1], q[s], b[2], b[3]);
    }
}

DEV uint32_t scale_pair(const uint2 &s, int j)
{
    return prmt(j < 2 ? s.x : s.y, 0, j % 2 == 0 ? 0x1010 : 0x3232);
}

DEV uint32_t q8_scales(uint32_t s)
{
    return h2_min(s, 0x60076007u);
}

template <int DIM> DEV void dots_q8(const uint8_t *k, const uint32_t (*q)[4], float (*x)[4])
{
    const int g = LANE / 4, t = LANE % 4;
    UNROLL
    for (int h = 0; h < 2; h++)
        UNROLL
    for (int s = 0; s < DIM / 16; s++) {
        const uint2 scale = *(const uint2 *)(k + TILE * DIM + (s / 2 * TILE + 32 * h + 4 * g) * 2);
        const uint4 c = *(const uint4 *)(k + place_of((4 * s + t) * 16 + 8 * h + g, 1) * 16);
        UNROLL
        for (int j = 0; j < 4; j++) {
            const uint32_t w = (j == 0 ? c.x : j == 1 ? c.y : j == 2 ? c.z : c.w) ^ 0x80808080u;
            const uint32_t by = q8_scales(scale_pair(scale, j));
            mma(x[4 * h + j], q[s], bytes_of(w, 0x4140, by), bytes_of(w, 0x4342, by));
        }
    }
}

template <int DIM>
DEV void dots_bits(const uint8_t *k, bool three, const code_table &table, const uint32_t (*q)[4],
                   float (*x)[4])
{
    const int g = LANE / 4, t = LANE % 4;
    const uint8_t *high = k + TILE * DIM / 4, *scales = high + (three ? TILE * DIM / 8 : 0);
    UNROLL
    for (int h = 0; h < 2; h++) {
        const uint2 scale = *(const uint2 *)(scales + (32 * h + 4 * g) * 2);
        UNROLL
        for (int u = 0; u < DIM / 64; u++) {
            const int row = 4 * u + t;
            const uint4 c = *(const uint4 *)(k + place_of(row * 16 + 8 * h + g, 1) * 16);
            uint2 up = {0, 0};
            if (three)
                up = *(const uint2 *)(high + place_of(row * 8 + 4 * h + g / 2, 0) * 16 + g % 2 * 8);
            UNROLL
            for (int j = 0; j < 4; j++) {
                uint32_t even, odd, b[2];
                nibbles_of(j == 0   ? c.x
                           : j == 1 ? c.y
                           : j == 2 ? c.z
                                    : c.w,
                           prmt(j < 2 ? up.x : up.y, 0, j % 2 == 0 ? 0x4140 : 0x4342), &even, &odd);
                const uint32_t by = scale_pair(scale, j);
                UNROLL
                for (int v = 0; v < 4; v++) {
                    numbers_of(table, (v < 2 ? even : odd) >> (v % 2 * 16), b);
                    mma(x[4 * h + j], q[4 * u + v], h2_mul(b[0], by), h2_mul(b[1], by));
                }
            }
        }
    }
}

/* Adds weights times values of entries 16 k ..: tile i of o has columns 8 i .., with codes
   16 column + i. */
template <int DIM> DEV void sums_f16(const uint8_t *v, int k, const uint32_t *w, float (*o)[4])
{
    int at[4];
    lane_places(at);
    v += (16 * k + LANE / 8 % 2 * 8 + LANE % 8) * DIM * 2;
    UNROLL
    for (int d = 0; d < DIM / 16; d += 4) {
        uint32_t b[4][4];
        UNROLL
        for (int j = 0; j < 4; j++)
            ldsm4t(b[j], v + at[j] + d * 32);
        UNROLL
        for (int j = 0; j < 4; j++) {
            mma(o[2 * (d + j)], w, b[j][0], b[j][1]);
            mma(o[2 * (d + j) + 1], w, b[j][2], b[j][3]);
        }
    }
}

/* Sixteen codes of 8 bits of entries 16 k + 2 t + {0, 1, 8, 9}. */
DEV void sums_q8(const uint8_t *v, int k, const uint32_t *w, float (*o)[4])
{
    const int g = LANE / 4, t = LANE % 4;
    uint4 c[4];
    uint32_t by[2];
    UNROLL
    for (int i = 0; i < 4; i++)
        c[i] = *(const uint4 *)(v + place_of((16 * k + 2 * t + i / 2 * 8 + i % 2) * 8 + g, 1) * 16);
    UNROLL
    for (int i = 0; i < 2; i++) {
        const uint16_t *s =
            (const uint16_t *)(v + TILE * 128) + (16 * k + 2 * t + 8 * i) * 4 + g / 2;
        by[i] = q8_scales(s[0] | (uint32_t)s[4] << 16);
    }
    UNROLL
    for (int i = 0; i < 8; i++) {
        uint32_t b[2][2];
        UNROLL
        for (int j = 0; j < 2; j++) {
            const uint4 &m = c[2 * j], &n = c[2 * j + 1];
            const uint32_t x = i / 2 == 0 ? m.x : i / 2 == 1 ? m.y : i / 2 == 2 ? m.z : m.w;
            const uint32_t y = i / 2 == 0 ? n.x : i / 2 == 1 ? n.y : i / 2 == 2 ? n.z : n.w;
            const uint32_t p = prmt(x, y, i % 2 == 0 ? 0x5140 : 0x7362) ^ 0x80808080u;
            b[0][j] = bytes_of(p, 0x4140, by[j]);
            b[1][j] = bytes_of(p, 0x4342, by[j]);
        }
        mma(o[2 * i], w, b[0][0], b[0][1]);
        mma(o[2 * i + 1], w, b[1][0], b[1][1]);
    }
}

/* Likewise codes of 2 or 3 bits. */
DEV void sums_bits(const uint8_t *v, bool three, const code_table &table, int k, const uint32_t *w,
                   float (*o)[4])
{
    const int g = LANE / 4, t = LANE % 4;
    const uint8_t *high = v + TILE * 32, *scales = high + (three ? TILE * 16 : 0);
    uint32_t sel[2][4], by[2]; /* codes 0 4 8 12, 2 6 10 14, 1 5 9 13, 3 7 11 15 of two entries */
    UNROLL
    for (int i = 0; i < 2; i++) {
        const int entry = 16 * k + 2 * t + 8 * i;
        uint32_t even[2], odd[2];
        UNROLL
        for (int j = 0; j < 2; j++) {
            const uint32_t low =
                *(const uint32_t *)(v + place_of((entry + j) * 2 + g / 4, 0) * 16 + g % 4 * 4);
            uint32_t up = three ? *(const uint16_t *)(high + (entry + j) * 16 + 2 * g) : 0;
            nibbles_of(low, prmt(up, 0, 0x4140), &even[j], &odd[j]);
        }
        sel[i][0] = (even[0] & 0x0f0f0f0fu) | (even[1] << 4 & 0xf0f0f0f0u);
        sel[i][1] = (even[0] >> 4 & 0x0f0f0f0fu) | (even[1] & 0xf0f0f0f0u);
        sel[i][2] = (odd[0] & 0x0f0f0f0fu) | (odd[1] << 4 & 0xf0f0f0f0u);
        sel[i][3] = (odd[0] >> 4 & 0x0f0f0f0fu) | (odd[1] & 0xf0f0f0f0u);
        by[i] = *(const uint32_t *)(scales + entry * 2);
    }
    UNROLL
    for (int s = 0; s < 4; s++)
        UNROLL
    for (int h = 0; h < 2; h++) {
        const int code = (s & 1) * 2 + s / 2 + 8 * h;
        uint32_t b[2][2];
        UNROLL
        for (int i = 0; i < 2; i++) {
            numbers_of(table, sel[i][s] >> (16 * h), b[i]);
            b[i][0] = h2_mul(b[i][0], by[i]);
            b[i][1] = h2_mul(b[i][1], by[i]);
        }
        mma(o[code], w, b[0][0], b[1][0]);
        mma(o[code + 4], w, b[0][1], b[1][1]);
    }
}

/* ---- weights ---- */

/* The entry of element e of tile j of logits. */
DEV int entry_at(bool codes, int j, int e)
{
    const int column = LANE % 4 * 2 + (e & 1);
    return codes ? 32 * (j / 4) + 4 * column + j % 4 : 8 * j + column;
}

/* What rows see of a page: its first n entries, and of these those at the right positions. */
struct sight {
    const int32_t *pos; /* NULL: all */
    int n, window;
    bool codes; /* how logits lie */
};

/* Row i of two of products x becomes exponents of 2; returns the largest. A cap's code is long, so it
   stands there once: tiles go by in turn. */
DEV float logits_row(float (*x)[4], int i, float by, float add, const gpu_attend_args &a,
                     const sight &sees, int limit)
{
    float top = NEG_INF;
    if (a.cap > 0.0f) {
        NO_UNROLL
        for (int turn = 0; turn < 8; turn++) {
            const float y = logit_of(x[0][2 * i], by, add, a.cap, a.cap_by);
            const float z = logit_of(x[0][2 * i + 1], by, add, a.cap, a.cap_by);
            UNROLL
            for (int j = 0; j < 7; j++) {
                x[j][2 * i] = x[j + 1][2 * i];
                x[j][2 * i + 1] = x[j + 1][2 * i + 1];
            }
            x[7][2 * i] = y, x[7][2 * i + 1] = z;
        }
    } else {
        UNROLL
        for (int j = 0; j < 8; j++)
            UNROLL
        for (int e = 2 * i; e < 2 * i + 2; e++)
            x[j][e] = fmaf(x[j][e], by, add);
    }
    if (sees.n < TILE || sees.pos != NULL) {
        UNROLL
        for (int j = 0; j < 8; j++)
            UNROLL
        for (int e = 2 * i; e < 2 * i + 2; e++) {
            const int entry = entry_at(sees.codes, j, e);
            const int when = sees.pos != NULL ? sees.pos[entry] : limit;
            const bool is =
                entry < sees.n && when <= limit && (sees.window == 0 || when > limit - sees.window);
            x[j][e] = is ? x[j][e] : NEG_INF;
        }
    }
    UNROLL
    for (int j = 0; j < 8; j++)
        UNROLL
    for (int e = 2 * i; e < 2 * i + 2; e++)
        top = n_max(top, x[j][e]);
    top = n_max(top, shfl_xor(top, 1));
    return n_max(top, shfl_xor(top, 2));
}

/* Where weights are looked at: exponents of a page, of rows from row0 on. */
DEV void keep_logits(const gpu_attend_job &job, int p, int row0, bool codes, const float (*x)[4])
{
    UNROLL
    for (int j = 0; j < 8; j++)
        UNROLL
    for (int e = 0; e < 4; e++)
        keep_logit(job, TILE, p, entry_at(codes, j, e), row0 + LANE / 4 + 8 * (e / 2), x[j][e]);
}

/* Weights of a row given the largest exponent so far; returns what older sums are multiplied by. */
DEV float weights_row(float (*x)[4], int i, float top, float *m)
{
    const float now = n_max(*m, top), mm = finite_of(now), c = ex2(*m - mm);
    *m = now;
    UNROLL
    for (int j = 0; j < 8; j++) {
        x[j][2 * i] = ex2(x[j][2 * i] - mm);
        x[j][2 * i + 1] = ex2(x[j][2 * i + 1] - mm);
    }
    return c;
}

/* Exponents of 2 to f16 in shared memory, [8 entries][16 rows][16 bytes]. */
DEV void weights_put(uint8_t *ps, bool codes, const float (*x)[4], int n_half)
{
    const int g = LANE / 4, t = LANE % 4;
    UNROLL
    for (int i = 0; i < 2; i++) {
        if (i >= n_half)
            continue;
        if (codes) {
            UNROLL
            for (int h = 0; h < 2; h++)
                *(uint4 *)(ps + ((4 * h + t) * ROWS + g + 8 * i) * 16) =
                    make_uint4(h2(x[4 * h][2 * i], x[4 * h + 1][2 * i]),
                               h2(x[4 * h + 2][2 * i], x[4 * h + 3][2 * i]),
                               h2(x[4 * h][2 * i + 1], x[4 * h + 1][2 * i + 1]),
                               h2(x[4 * h + 2][2 * i + 1], x[4 * h + 3][2 * i + 1]));
        } else {
            UNROLL
            for (int j = 0; j < 8; j++)
                *(uint32_t *)(ps + (j * ROWS + g + 8 * i) * 16 + t * 4) =
                    h2(x[j][2 * i], x[j][2 * i + 1]);
        }
    }
}

/* ---- a chunk ---- */

enum { FEW_ANY = -1 }; /* the type that the call says */

BOTH int few_slot(int k, int v)
{
    return k > v ? k : v;
}

template <int DIM, int TYPE_K, int TYPE_V, int STAGES> DEV void attend_few(const gpu_attend_args &a)
{
    SHARED(smem);
    const gpu_attend_job job = AT(const gpu_attend_job, a.jobs)[blockIdx.y];
    const int tile = (int)blockIdx.z, chunk = job.n_chunk - 1 - (int)blockIdx.x;
    const int n_row = job.n_tok * job.n_group - tile * ROWS;
    if (chunk < 0 || n_row <= 0)
        return;
    int first, end;
    chunk_pages(job, chunk, &first, &end);
    const int g = LANE / 4, t = LANE % 4, n_half = n_row > 8 ? 2 : 1;
    const int type_k = TYPE_K < 0 ? a.k.type : TYPE_K, type_v = TYPE_V < 0 ? a.v.type : TYPE_V;
    const bool codes_k = type_k != STORE_F16, codes_v = type_v != STORE_F16;
    const int slot = few_slot(half_bytes<DIM>(type_k), half_bytes<DIM>(type_v));
    uint8_t *ps = smem, *ring = smem + ROWS * TILE * 2;
    for (int i = LANE; i < ROWS * TILE * 2 / 16; i += 32)
        ((uint4 *)ps)[i] = make_uint4(0, 0, 0, 0); /* rows from 8 on may stay so */
    gpu_attend_ref ref = {};
    if (first + LANE < end)
        ref = page_ref(job, first + LANE);
    const int n_item = 2 * (end - first);
    auto fetch = [&](int i, bool keys) {
        const uint32_t number = shfl((uint32_t)ref.page, i / 2);
        const uint8_t *page = AT(const uint8_t, a.pool) + number * a.stride;
        uint8_t *to = ring + i % STAGES * slot;
        if (i < n_item) {
            if (keys)
                half_fetch<DIM, 32>(to, page, a.k, type_k, true);
            else
                half_fetch<DIM, 32>(to, page, a.v, type_v, false);
        }
        cp_commit();
    };
    UNROLL
    for (int i = 0; i < STAGES - 1; i++)
        fetch(i, i % 2 == 0);
    uint32_t q[DIM / 16][4] = {};
    float by[2] = {0.0f, 0.0f};
    int limit[2];
    const int order = !codes_k                    ? (int)GPU_ORDER_PLAIN
                      : type_k != (int)STORE_Q8_0 ? (int)GPU_ORDER_BITS
                                                  : (int)GPU_ORDER_BYTES;
    UNROLL
    for (int i = 0; i < 2; i++) {
        const int row = tile * ROWS + g + 8 * i;
        const float *from = AT(const float, job.q) + (size_t)(row / job.n_group) * job.q_stride +
                            (size_t)(row % job.n_group) * DIM;
        limit[i] = job.pos0 + row / job.n_group;
        if (TYPE_K == STORE_F16 && a.k.wht_scale != 0.0f)
            by[i] = packed_row<DIM>(job, row, g + 8 * i < n_row, q, i);
        else if (i < n_half)
            by[i] = query_row<DIM>(from, g + 8 * i < n_row, order, a.k.wht_scale, q, i) * a.factor *
                    LOG2E;
    }
    code_table table_k = {}, table_v = {};
    if (codes_k)
        table_k = table_of(a.k);
    if (codes_v)
        table_v = table_of(a.v);
    float o[DIM / 8][4] = {}, l[4] = {}, m[2] = {NEG_INF, NEG_INF};
    NO_UNROLL
    for (int p = first; p < end; p++) {
        const int at = p - first, n = (int)shfl((uint32_t)ref.n, at);
        const float log_count = AS_F(shfl(AS_U(ref.log_count), at));
        CP_WAIT(STAGES - 2);
        sync_warp();
        fetch(2 * at + STAGES - 1, STAGES % 2 == 1);
        const uint8_t *k = ring + 2 * at % STAGES * slot, *v = ring + (2 * at + 1) % STAGES * slot;
        float x[8][4] = {}, c[2] = {1.0f, 1.0f};
        if (!codes_k && (TYPE_K >= 0 || a.k.beside))
            dots_f16<DIM>(k, q, x);
        else if (!codes_k)
            dots_f16_rows<DIM>(k, q, x);
        else if (type_k == STORE_Q8_0)
            dots_q8<DIM>(k, q, x);
        else
            dots_bits<DIM>(k, type_k == STORE_TURBO3, table_k, q, x);
        const sight sees = {page_positions(job, p), n, a.window, codes_k};
        const float add = log_count * LOG2E;
        float top[2] = {logits_row(x, 0, by[0], add, a, sees, limit[0]), NEG_INF};
        if (n_half == 2)
            top[1] = logits_row(x, 1, by[1], add, a, sees, limit[1]);
        if (job.logits != 0)
            keep_logits(job, p, tile * ROWS, codes_k, x);
        c[0] = weights_row(x, 0, top[0], &m[0]);
        if (n_half == 2)
            c[1] = weights_row(x, 1, top[1], &m[1]);
        weights_put(ps, codes_k, x, n_half);
        if (any_lane(c[0] != 1.0f || c[1] != 1.0f)) {
            UNROLL
            for (int d = 0; d < DIM / 8; d++)
                UNROLL
            for (int e = 0; e < 4; e++)
                o[d][e] *= c[e / 2];
            UNROLL
            for (int e = 0; e < 4; e++)
                l[e] *= c[e / 2];
        }
        CP_WAIT(STAGES - 2);
        sync_warp();
        fetch(2 * at + STAGES, STAGES % 2 == 0);
        NO_UNROLL
        for (int s = 0; s < (n + 15) / 16; s++) {
            uint32_t w[4];
            rows_at(w, ps, s);
            if (!codes_v)
                sums_f16<DIM>(v, s, w, o);
            else if (type_v == STORE_Q8_0)
                sums_q8(v, s, w, o);
            else
                sums_bits(v, type_v == STORE_TURBO3, table_v, s, w, o);
            mma(l, w, ONES, ONES);
        }
    }
    CP_WAIT(0);
    UNROLL
    for (int i = 0; i < 2; i++) {
        const size_t at = part_row(job, tile, chunk, g + 8 * i);
        float *out = AT(float, a.o) + at * DIM;
        if (g + 8 * i >= n_row)
            continue;
        if (codes_v) {
            UNROLL
            for (int e = 2 * i; e < 2 * i + 2; e++) {
                UNROLL
                for (int d = 0; d < DIM / 8; d += 4)
                    *(uint4 *)(out + 16 * (2 * t + (e & 1)) + d) = make_uint4(
                        AS_U(o[d][e]), AS_U(o[d + 1][e]), AS_U(o[d + 2][e]), AS_U(o[d + 3][e]));
            }
        } else {
            UNROLL
            for (int d = 0; d < DIM / 8; d++) {
                const uint2 pair = {AS_U(o[d][2 * i]), AS_U(o[d][2 * i + 1])};
                *(uint2 *)(out + 8 * d + 2 * t) = pair;
            }
        }
        if (t == 0) {
            AT(float, a.ml)[at * 2] = m[i];
            AT(float, a.ml)[at * 2 + 1] = l[2 * i];
        }
    }
}

enum { FEW_STAGES = 3, FEW_STAGES_TURBO = 4 };

/* Keys of f16 lie side by side but in the last kernel. */
KERNEL(32, 4) attend_few_64_f16(const gpu_attend_args a)
{
    attend_few<64, STORE_F16, STORE_F16, FEW_STAGES>(a);
}
KERNEL(32, 4) attend_few_128_f16(const gpu_attend_args a)
{
    attend_few<128, STORE_F16, STORE_F16, FEW_STAGES>(a);
}
KERNEL(32, 8) attend_few_128_q8_0(const gpu_attend_args a)
{
    attend_few<128, STORE_Q8_0, STORE_Q8_0, FEW_STAGES>(a);
}
KERNEL(32, 8) attend_few_128_turbo3(const gpu_attend_args a)
{
    attend_few<128, STORE_TURBO3, STORE_TURBO3, FEW_STAGES_TURBO>(a);
}
KERNEL(32, 8) attend_few_128_mixed(const gpu_attend_args a)
{
    attend_few<128, FEW_ANY, FEW_ANY, FEW_STAGES>(a);
}

#endif
