/*
 * attend_few.cuh - attention of few rows over pages of 64 entries, for the frequent types and head
 * sizes. A warp takes 8 or 16 rows of a call and a chunk of its pages, and needs no other warp.
 * Keys and values come to shared memory as they are stored, a half page at a time, some of them
 * ahead. Codes become f16 in the registers that they are multiplied from.
 *
 * Entries are the rows of the tensor cores' products, and rows of queries their columns, so that
 * 8 rows cost half of what 16 do. A sum of products does not depend on which factor comes first.
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
    return type == STORE_F16    ? 0
           : type == STORE_Q8_0 ? TILE * DIM / 16
                                : TILE * 2 * (DIM > 128 ? DIM / 128 : 1);
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
/* Of values of 2 or 3 bits. */
template <int DIM> DEV int place_of_bits(int i)
{
    return DIM == 64 ? i : place_of(i, 0);
}

/* Moving depends on the element's number in 256. */
template <int BYTES, int N_THREAD, typename F>
DEV void plane_fetch(uint8_t *to, const uint8_t *from, F place)
{
    const int t = anew(TID) % N_THREAD;
    UNROLL
    for (int i = 0; i < BYTES / 16; i += N_THREAD)
        if (BYTES / 16 % N_THREAD == 0 || i + t < BYTES / 16)
            cp16(to + place(i % 256 + t) * 16 + i / 256 * 4096, from + t * 16 + i * 16);
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
        const int shift = keys ? 1 : DIM / 128;
        plane_fetch<TILE * DIM, N_THREAD>(to, low, [&](int i) { return place_of(i, shift); });
        plane_fetch<TILE * DIM / 16, N_THREAD>(to + TILE * DIM, scale, [](int i) { return i; });
    } else {
        plane_fetch<TILE * DIM / 4, N_THREAD>(
            to, low, [&](int i) { return keys ? place_of(i, 1) : place_of_bits<DIM>(i); });
        to += TILE * DIM / 4;
        if (type == STORE_TURBO3) {
            plane_fetch<TILE * DIM / 8, N_THREAD>(to, high,
                                                  [&](int i) { return keys ? place_of(i, 0) : i; });
            to += TILE * DIM / 8;
        }
        plane_fetch<TILE * 2 * (DIM > 128 ? DIM / 128 : 1), N_THREAD>(to, scale,
                                                                      [](int i) { return i; });
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
        t.low[i] = (uint32_t)anew((int)prmt(x, y, 0x6420)); /* else they are moved at each use */
        t.high[i] = (uint32_t)anew((int)prmt(x, y, 0x7531));
    }
    return t;
}

/* The numbers of the codes in the lower four nibbles of sel, each below 8. */
DEV void numbers_of(const code_table &t, uint32_t sel, uint32_t *r)
{
    const uint32_t low = prmt_of(t.low[0], t.low[1], sel),
                   high = prmt_of(t.high[0], t.high[1], sel);
    r[0] = prmt_of(low, high, 0x5140);
    r[1] = prmt_of(low, high, 0x7362);
}

/* Upper bits of 16 codes, bytes 0 and 2 of high: those of codes 2 n and 2 n + 1 in nibble n. */
DEV uint32_t high_of(uint32_t high)
{
    high = or_and(high, high << 4, 0x0f0f0f0fu);
    return or_and(high, high << 2, 0x33333333u);
}
/* Nibbles of 16 codes of 2 or 3 bits: those of even number, and those of odd number. */
DEV void nibbles_of(uint32_t low, uint32_t high, uint32_t *even, uint32_t *odd)
{
    high = high_of(high);
    *even = and_or(high << 2, 0x44444444u, low & 0x33333333u);
    *odd = and_or(high << 1, 0x44444444u, low >> 2 & 0x33333333u);
}
/* Likewise of two entries, whose codes alternate: sel[i] has the codes 4 n + 0, 2, 1, 3 of both. */
DEV void nibbles_of_two(const uint32_t *low, const uint32_t *high, uint32_t *sel)
{
    const uint32_t m = 0x0f0f0f0fu;
    const uint32_t first = pick(m, low[0], low[1] << 4), second = pick(m, low[0] >> 4, low[1]);
    const uint32_t bits =
        pick(m, prmt_of(high[0], high[0] >> 4, 0x5140), prmt_of(high[1] << 4, high[1], 0x5140));
    sel[0] = and_or(bits << 2, 0x44444444u, first & 0x33333333u);
    sel[1] = and_or(bits, 0x44444444u, second & 0x33333333u);
    sel[2] = and_or(bits << 1, 0x44444444u, first >> 2 & 0x33333333u);
    sel[3] = and_or(bits >> 1, 0x44444444u, second >> 2 & 0x33333333u);
}

/* Bytes 0 and 2 of x, where the selector puts them, are codes of 8 bits + 128. */
DEV uint32_t bytes_of(uint32_t x, uint32_t sel, uint32_t scale)
{
    return h2_mul(h2_add(prmt_of(x, 0x64646464u, sel), 0xe480e480u), scale);
}

/* ---- queries ---- */

/* Rotates a group of 64 U numbers as wht_shared does: a lane has 64 u + 16 (lane % 4) + i. */
template <int U> DEV void wht_quad(float (*x)[16], float scale)
{
    const int t = LANE % 4;
    UNROLL
    for (int u = 0; u < U; u++)
        UNROLL
    for (int i = 0; i < 16; i++)
        x[u][i] *= wht_sign(64 * u + 16 * t + i, false);
    UNROLL
    for (int h = 1; h < 16; h *= 2)
        UNROLL
    for (int u = 0; u < U; u++)
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
    for (int u = 0; u < U; u++)
        UNROLL
    for (int i = 0; i < 16; i++) {
        const float other = shfl_xor(x[u][i], h);
        x[u][i] = (t & h) != 0 ? other - x[u][i] : x[u][i] + other;
    }
    UNROLL
    for (int i = 0; i < 16; i++) {
        if (U == 2) {
            const float a = x[0][i], b = x[U - 1][i];
            x[0][i] = a + b;
            x[U - 1][i] = a - b;
        }
        UNROLL
        for (int u = 0; u < U; u++)
            x[u][i] *= wht_sign(64 * u + 16 * t + i, true) * scale;
    }
}

/* Numbers of a query that a lane has of a row: of step s slots 2 t, + 1, + 8, + 9 are x[s]. */
template <int DIM> DEV void query_bits(const float *q, bool is, float wht_scale, float (*x)[4])
{
    enum { U = DIM / 64, GROUP = U < 2 ? U : 2 };
    float y[U][16] = {};
    UNROLL
    for (int j = 0; j < 4 * U; j++)
        if (is) {
            const float4 f = *(const float4 *)(q + j / 4 * 64 + 16 * (LANE % 4) + j % 4 * 4);
            float *to = y[j / 4] + j % 4 * 4;
            to[0] = f.x, to[1] = f.y, to[2] = f.z, to[3] = f.w;
        }
    if (wht_scale != 0.0f)
        UNROLL
    for (int u = 0; u < U; u += GROUP)
        wht_quad<GROUP>(y + u, wht_scale);
    UNROLL
    for (int s = 0; s < DIM / 16; s++)
        UNROLL
    for (int j = 0; j < 4; j++)
        x[s][j] = y[s / 4][s % 4 / 2 + 8 * (s % 2) + 2 * j];
}

/* A row of the second operand, from a query as attend_queries has it: row LANE / 4 of eight,
   out[s]. Returns what products are multiplied by. */
template <int DIM, int NB>
DEV float query_row(const float *q, bool is, int order, float wht_scale, uint32_t (*out)[NB][2],
                    int n)
{
    const int t = LANE % 4;
    float x[DIM / 16][4] = {}, top = 0.0f;
    if (order == GPU_ORDER_BITS) {
        query_bits<DIM>(q, is, wht_scale, x);
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
        top = n_max(top, fabsf(x[s][j]));
    top = n_max(top, shfl_xor(top, 1));
    top = n_max(top, shfl_xor(top, 2));
    const float by = row_power(top, false);
    UNROLL
    for (int s = 0; s < DIM / 16; s++) {
        out[s][n][0] = h2(x[s][0] * by, x[s][1] * by);
        out[s][n][1] = h2(x[s][2] * by, x[s][3] * by);
    }
    return row_power(top, true);
}

/* The same from the queries that attend_queries made: of f16 pages that were gathered of a rotated
   type, or have more dimensions than a query. */
template <int DIM, int NB>
DEV float packed_row(const gpu_attend_job &job, int row, bool is, uint32_t (*out)[NB][2], int n)
{
    const uint32_t *q = AT(const uint32_t, job.packed) + (size_t)row * (DIM / 2) + LANE % 4;
    UNROLL
    for (int s = 0; s < DIM / 16; s++) {
        out[s][n][0] = is ? q[8 * s] : 0;
        out[s][n][1] = is ? q[8 * s + 4] : 0;
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

/* Two tiles of eight entries, or dimensions, times NB of eight rows: d[n][e] has column LANE / 4 of
   tile e / 2, and row 8 n + 2 (LANE % 4) + (e & 1). */
template <int NB>
DEV void mma_two(float (*d)[4], const uint32_t *one, const uint32_t *two, const uint32_t (*w)[2])
{
    const uint32_t a[4] = {one[0], two[0], one[1], two[1]};
    UNROLL
    for (int n = 0; n < NB; n++)
        mma(d[n], a, w[n][0], w[n][1]);
}

/* Logits: x[m] has the tiles 2 m and 2 m + 1. Tile i has entries 8 i .., with codes tile 4 h + j
   has entries 32 h + 4 column + j. */
template <int DIM, int NB>
DEV void dots_f16(const uint8_t *k, const uint32_t (*q)[NB][2], float (*x)[NB][4])
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
        for (int j = 0; j < 4; j++)
            mma_two<NB>(x[j], b[j], b[j] + 2, q[s]);
    }
}

/* Likewise of keys that are stored entry by entry. */
template <int DIM, int NB>
DEV void dots_f16_rows(const uint8_t *k, const uint32_t (*q)[NB][2], float (*x)[NB][4])
{
    const int i = LANE / 8, r = LANE % 8;
    UNROLL
    for (int s = 0; s < DIM / 16; s++)
        UNROLL
    for (int j = 0; j < 4; j++) {
        uint32_t b[4];
        ldsm4(b, k + place_f16((16 * j + i / 2 * 8 + r) * (DIM / 8) + 2 * s + (i & 1), DIM / 128) *
                         16);
        mma_two<NB>(x[j], b, b + 2, q[s]);
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

DEV uint32_t word_of_four(const uint4 &x, int i)
{
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

template <int DIM, int NB>
DEV void dots_q8(const uint8_t *k, const uint32_t (*q)[NB][2], float (*x)[NB][4])
{
    const int g = LANE / 4, t = LANE % 4;
    UNROLL
    for (int h = 0; h < 2; h++)
        UNROLL
    for (int s = 0; s < DIM / 16; s++) {
        const uint2 scale = *(const uint2 *)(k + TILE * DIM + (s / 2 * TILE + 32 * h + 4 * g) * 2);
        const uint4 c = *(const uint4 *)(k + place_of((4 * s + t) * 16 + 8 * h + g, 1) * 16);
        UNROLL
        for (int j = 0; j < 4; j += 2) {
            uint32_t b[2][2];
            UNROLL
            for (int i = 0; i < 2; i++) {
                const uint32_t w = word_of_four(c, j + i) ^ 0x80808080u;
                const uint32_t by = q8_scales(scale_pair(scale, j + i));
                b[i][0] = bytes_of(w, 0x4140, by);
                b[i][1] = bytes_of(w, 0x4342, by);
            }
            mma_two<NB>(x[2 * h + j / 2], b[0], b[1], q[s]);
        }
    }
}

template <int DIM, int NB>
DEV void dots_bits(const uint8_t *k, bool three, const code_table &table,
                   const uint32_t (*q)[NB][2], float (*x)[NB][4])
{
    const int g = LANE / 4, t = LANE % 4;
    const uint8_t *high = k + TILE * DIM / 4, *scales = high + (three ? TILE * DIM / 8 : 0);
    UNROLL
    for (int h = 0; h < 2; h++)
        UNROLL
    for (int u = 0; u < DIM / 64; u++) {
        const uint2 scale = *(const uint2 *)(scales + (u / 2 * TILE + 32 * h + 4 * g) * 2);
        const int row = 4 * u + t;
        const uint4 c = *(const uint4 *)(k + place_of(row * 16 + 8 * h + g, 1) * 16);
        uint2 up = {0, 0};
        if (three)
            up = *(const uint2 *)(high + place_of(row * 8 + 4 * h + g / 2, 0) * 16 + g % 2 * 8);
        UNROLL
        for (int j = 0; j < 4; j += 2) {
            uint32_t even[2], odd[2], by[2];
            UNROLL
            for (int i = 0; i < 2; i++) {
                nibbles_of(word_of_four(c, j + i),
                           prmt_of(j == 0 ? up.x : up.y, 0, i == 0 ? 0x4140 : 0x4342), &even[i],
                           &odd[i]);
                by[i] = scale_pair(scale, j + i);
            }
            UNROLL
            for (int v = 0; v < 4; v++) {
                uint32_t b[2][2];
                UNROLL
                for (int i = 0; i < 2; i++) {
                    numbers_of(table, (v < 2 ? even[i] : odd[i]) >> (v % 2 * 16), b[i]);
                    b[i][0] = h2_mul(b[i][0], by[i]);
                    b[i][1] = h2_mul(b[i][1], by[i]);
                }
                mma_two<NB>(x[2 * h + j / 2], b[0], b[1], q[4 * u + v]);
            }
        }
    }
}

/* Adds weights times values of entries 16 k ..: o[p] has two tiles of eight dimensions, those of
   few_dim. */
template <int DIM, int NB>
DEV void sums_f16(const uint8_t *v, int k, const uint32_t (*w)[2], float (*o)[NB][4])
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
        for (int j = 0; j < 4; j++)
            mma_two<NB>(o[d + j], b[j], b[j] + 2, w);
    }
}

/* Codes of 8 bits of entries 16 k + 2 t + {0, 1, 8, 9}. */
template <int DIM, int NB>
DEV void sums_q8(const uint8_t *v, int k, const uint32_t (*w)[2], float (*o)[NB][4])
{
    enum { N = DIM / 8, WORDS = N / 4 < 4 ? N / 4 : 4 }; /* codes of a lane; words of a load */
    const int g = LANE / 4, t = LANE % 4;
    const uint8_t *scales = v + TILE * DIM + 16 * k * DIM / 16;
    uint32_t by[2];
    v += 16 * k * DIM;
    UNROLL
    for (int i = 0; i < 2; i++) {
        const uint16_t *s = (const uint16_t *)scales + (2 * t + 8 * i) * (DIM / 32) + g * N / 32;
        by[i] = q8_scales(s[0] | (uint32_t)s[DIM / 32] << 16);
    }
    UNROLL
    for (int f = 0; f < N / 4; f += WORDS) {
        uint32_t c[4][WORDS];
        UNROLL
        for (int i = 0; i < 4; i++) {
            const uint32_t at = (uint32_t)((2 * t + i / 2 * 8 + i % 2) * DIM + g * N + 4 * f);
            const uint8_t *from = v + place_of(at / 16, DIM / 128) * 16 + at % 16;
            if (WORDS == 2) {
                const uint2 x = *(const uint2 *)from;
                c[i][0] = x.x, c[i][1] = x.y;
            } else {
                const uint4 x = *(const uint4 *)from;
                UNROLL
                for (int j = 0; j < WORDS; j++)
                    c[i][j] = word_of_four(x, j);
            }
        }
        UNROLL
        for (int i = 0; i < 2 * WORDS; i++) {
            uint32_t b[2][2];
            UNROLL
            for (int j = 0; j < 2; j++) {
                const uint32_t x =
                    prmt_of(c[2 * j][i / 2], c[2 * j + 1][i / 2], i % 2 == 0 ? 0x5140 : 0x7362) ^
                    0x80808080u;
                b[0][j] = bytes_of(x, 0x4140, by[j]);
                b[1][j] = bytes_of(x, 0x4342, by[j]);
            }
            mma_two<NB>(o[2 * f + i], b[0], b[1], w);
        }
    }
}

/* Likewise codes of 2 or 3 bits. */
template <int DIM, int NB>
DEV void sums_bits(const uint8_t *v, bool three, const code_table &table, int k,
                   const uint32_t (*w)[2], float (*o)[NB][4])
{
    enum { N = DIM / 8, HALVES = N < 16 ? 1 : 2, GROUPS = DIM > 128 ? DIM / 128 : 1 };
    const int g = LANE / 4, t = LANE % 4;
    const uint8_t *high = v + TILE * DIM / 4, *scales = high + (three ? TILE * DIM / 8 : 0);
    v += 16 * k * DIM / 4, high += 16 * k * DIM / 8, scales += 16 * k * GROUPS * 2;
    UNROLL
    for (int f = 0; f < N; f += 16) {
        uint32_t sel[2][4], by[2];
        UNROLL
        for (int i = 0; i < 2; i++) {
            uint32_t low[2], up[2] = {0, 0};
            UNROLL
            for (int j = 0; j < 2; j++) {
                const uint32_t at = (uint32_t)((2 * t + 8 * i + j) * DIM + g * N + f);
                const uint8_t *from = v + place_of_bits<DIM>((int)(at / 64)) * 16 + at % 64 / 4;
                low[j] = N < 16 ? *(const uint16_t *)from : *(const uint32_t *)from;
                if (three)
                    up[j] = N < 16 ? high[at / 8] : *(const uint16_t *)(high + at / 8);
            }
            nibbles_of_two(low, up, sel[i]);
            const uint16_t *s = (const uint16_t *)scales + (2 * t + 8 * i) * GROUPS + g * N / 128;
            by[i] = GROUPS == 1 ? *(const uint32_t *)s : s[0] | (uint32_t)s[GROUPS] << 16;
        }
        UNROLL
        for (int h = 0; h < HALVES; h++)
            UNROLL
        for (int s = 0; s < 4; s++) {
            uint32_t b[2][2], x[2];
            UNROLL
            for (int i = 0; i < 2; i++) {
                numbers_of(table, sel[i][s] >> (16 * h), x);
                b[0][i] = h2_mul(x[0], by[i]);
                b[1][i] = h2_mul(x[1], by[i]);
            }
            mma_two<NB>(o[f / 2 + 4 * h + s], b[0], b[1], w);
        }
    }
}

/* The dimension of a lane's row of tile i of two of o[p]. */
template <int DIM> DEV int few_dim(int type_v, int p, int i)
{
    const int g = LANE / 4;
    if (type_v == STORE_F16)
        return 16 * p + 8 * i + g;
    if (type_v == STORE_Q8_0)
        return g * (DIM / 8) + 2 * p + i;
    return g * (DIM / 8) + p / 4 * 8 + (p & 1) * 2 + (p >> 1 & 1) + 4 * i;
}

/* ---- weights ---- */

/* The entry of column LANE / 4 of tile i of logits. */
DEV int few_entry(bool codes, int i)
{
    const int g = LANE / 4;
    return codes ? 32 * (i / 4) + 4 * g + i % 4 : 8 * i + g;
}

/* What rows see of a page: its first n entries, and of these those at the right positions. */
struct sight {
    const int32_t *pos; /* NULL: all */
    int n, window;
};

DEV bool is_seen(const sight &sees, int entry, int when, int limit)
{
    return entry < sees.n && when <= limit && (sees.window == 0 || when > limit - sees.window);
}

/* Rows 8 n + 2 (LANE % 4) + i of a warp: what they see, what their products are multiplied by, and
   their sums so far. */
template <int DIM, int NB> struct few_rows {
    int limit[NB][2];
    float by[NB][2], m[NB][2], l[NB][2], o[DIM / 16][NB][4];
};

/* Products become exponents of 2; add(i) is what is added to those of tile i. A cap's code is long,
   so it stands there for a pair of tiles, and pairs go by in turn. */
template <int DIM, int NB, typename F>
DEV void few_logits(const gpu_attend_args &a, const few_rows<DIM, NB> &rows, F add, bool codes,
                    const sight &sees, float (*x)[NB][4])
{
    if (a.cap > 0.0f) {
        NO_UNROLL
        for (int turn = 0; turn < 4; turn++)
            UNROLL
        for (int n = 0; n < NB; n++)
            UNROLL
        for (int e = 0; e < 4; e++) {
            const float y =
                logit_of(x[0][n][e], rows.by[n][e & 1], add(2 * turn + e / 2), a.cap, a.cap_by);
            x[0][n][e] = x[1][n][e], x[1][n][e] = x[2][n][e], x[2][n][e] = x[3][n][e];
            x[3][n][e] = y;
        }
    } else {
        UNROLL
        for (int j = 0; j < 4; j++)
            UNROLL
        for (int n = 0; n < NB; n++)
            UNROLL
        for (int e = 0; e < 4; e++)
            x[j][n][e] = fmaf(x[j][n][e], rows.by[n][e & 1], add(2 * j + e / 2));
    }
    if (sees.n == TILE && sees.pos == NULL)
        return;
    UNROLL
    for (int i = 0; i < 8; i++) {
        const int entry = few_entry(codes, i), when = sees.pos != NULL ? sees.pos[entry] : 0;
        UNROLL
        for (int n = 0; n < NB; n++)
            UNROLL
        for (int e = 0; e < 2; e++) {
            const int limit = rows.limit[n][e];
            const bool is = is_seen(sees, entry, sees.pos != NULL ? when : limit, limit);
            float *at = &x[i / 2][n][i % 2 * 2 + e];
            *at = is ? *at : NEG_INF;
        }
    }
}

/* Where weights are looked at: exponents of a page, of rows from row0 on (logit_place). */
template <int NB>
DEV void keep_logits(const gpu_attend_job &job, int p, int row0, bool codes,
                     const float (*x)[NB][4])
{
    if (job.logits == 0 || p < job.guests.n)
        return;
    UNROLL
    for (int n = 0; n < NB; n++)
        UNROLL
    for (int e = 0; e < 2; e++) {
        const int row = row0 + 8 * n + 2 * (LANE % 4) + e;
        float *to = AT(float, job.logits) + (size_t)row * job.logits_stride +
                    (size_t)(p - job.guests.n) * TILE;
        if (row < job.n_tok * job.n_group)
            UNROLL
        for (int i = 0; i < 8; i++)
            to[few_entry(codes, i)] = x[i / 2][n][i % 2 * 2 + e];
    }
}

/* Exponents become weights; older sums are multiplied by what the largest exponent so far says. */
template <int DIM, int NB> DEV void few_weights(few_rows<DIM, NB> &rows, float (*x)[NB][4])
{
    float c[NB][2];
    bool moves = false;
    UNROLL
    for (int n = 0; n < NB; n++)
        UNROLL
    for (int e = 0; e < 2; e++) {
        float top = rows.m[n][e];
        UNROLL
        for (int j = 0; j < 4; j++)
            top = n_max(top, n_max(x[j][n][e], x[j][n][e + 2]));
        top = n_max(top, shfl_xor(top, 4));
        top = n_max(top, shfl_xor(top, 8));
        top = n_max(top, shfl_xor(top, 16));
        const float mm = finite_of(top);
        c[n][e] = ex2(rows.m[n][e] - mm);
        rows.m[n][e] = top;
        moves = moves || c[n][e] != 1.0f;
        UNROLL
        for (int j = 0; j < 4; j++) {
            x[j][n][e] = ex2(x[j][n][e] - mm);
            x[j][n][e + 2] = ex2(x[j][n][e + 2] - mm);
        }
    }
    if (!any_lane(moves))
        return;
    UNROLL
    for (int n = 0; n < NB; n++)
        UNROLL
    for (int e = 0; e < 4; e++) {
        UNROLL
        for (int d = 0; d < DIM / 16; d++)
            rows.o[d][n][e] *= c[n][e & 1];
        if (e < 2)
            rows.l[n][e] *= c[n][e];
    }
}

/* Weights as f16 in shared memory, [8 rows][64 entries][16 bytes]; an entry's place is moved so
   that eight neighbours lie in all banks, and so do those that lanes write. */
DEV int weight_place(int entry)
{
    return (entry ^ (entry >> 3 & 3)) * 16;
}
template <int NB> DEV void weights_put(uint8_t *ps, bool codes, const float (*x)[NB][4])
{
    UNROLL
    for (int n = 0; n < NB; n++)
        UNROLL
    for (int i = 0; i < 8; i++)
        *(uint32_t *)(ps + n * TILE * 16 + weight_place(few_entry(codes, i)) + LANE % 4 * 4) =
            h2(x[i / 2][n][i % 2 * 2], x[i / 2][n][i % 2 * 2 + 1]);
}
/* Those of entries 16 k .., a second operand. */
template <int NB> DEV void weights_at(uint32_t (*w)[2], const uint8_t *ps, int k)
{
    const int i = LANE / 8;
    uint32_t r[4];
    ldsm4t(r,
           ps + (NB == 2 ? i / 2 : 0) * TILE * 16 + weight_place(16 * k + (i & 1) * 8 + LANE % 8));
    UNROLL
    for (int n = 0; n < NB; n++)
        w[n][0] = r[2 * n], w[n][1] = r[2 * n + 1];
}

/* ---- a chunk ---- */

BOTH int few_slot(int k, int v)
{
    return k > v ? k : v;
}

template <int DIM, int NB>
DEV void few_begin(const gpu_attend_args &a, const gpu_attend_job &job, int tile, int order,
                   uint32_t (*q)[NB][2], few_rows<DIM, NB> &rows)
{
    const int g = LANE / 4, t = LANE % 4, n_row = job.n_tok * job.n_group;
    UNROLL
    for (int n = 0; n < NB; n++) {
        const int row = tile * ROWS + 8 * n + g;
        const float *from = AT(const float, job.q) + (size_t)(row / job.n_group) * job.q_stride +
                            (size_t)(row % job.n_group) * DIM;
        const bool packed =
            order == GPU_ORDER_PLAIN && (a.k.wht_scale != 0.0f || a.dim_k != DIM);
        const float by = packed
                             ? packed_row<DIM, NB>(job, row, row < n_row, q, n)
                             : query_row<DIM, NB>(from, row < n_row, order, a.k.wht_scale, q, n) *
                                   a.factor * LOG2E;
        UNROLL
        for (int e = 0; e < 2; e++) {
            rows.by[n][e] = AS_F(shfl(AS_U(by), 4 * (2 * t + e)));
            rows.limit[n][e] = job.pos0 + (tile * ROWS + 8 * n + 2 * t + e) / job.n_group;
            rows.m[n][e] = NEG_INF, rows.l[n][e] = 0.0f;
        }
        UNROLL
        for (int d = 0; d < DIM / 16; d++)
            UNROLL
        for (int e = 0; e < 4; e++)
            rows.o[d][n][e] = 0.0f;
    }
}

/* The sums of a row of a chunk, n and e of few_rows. */
template <int DIM, int NB>
DEV void few_put(const few_rows<DIM, NB> &rows, int type_v, int n, int e, float *out)
{
    if (type_v == STORE_F16) {
        UNROLL
        for (int p = 0; p < DIM / 16; p++)
            UNROLL
        for (int i = 0; i < 2; i++)
            out[few_dim<DIM>(type_v, p, i)] = rows.o[p][n][2 * i + e];
        return;
    }
    float x[DIM / 8];
    UNROLL
    for (int p = 0; p < DIM / 16; p++)
        UNROLL
    for (int i = 0; i < 2; i++) {
        const int bytes = 2 * p + i, bits = p / 4 * 8 + (p & 1) * 2 + (p >> 1 & 1) + 4 * i;
        if (type_v == STORE_Q8_0)
            x[bytes] = rows.o[p][n][2 * i + e];
        else
            x[bits] = rows.o[p][n][2 * i + e];
    }
    UNROLL
    for (int d = 0; d < DIM / 8; d += 4)
        *(uint4 *)(out + LANE / 4 * (DIM / 8) + d) =
            make_uint4(AS_U(x[d]), AS_U(x[d + 1]), AS_U(x[d + 2]), AS_U(x[d + 3]));
}

/* The sums of rows row0 .. of a chunk. */
template <int DIM, int NB>
DEV void few_finish(const gpu_attend_args &a, const gpu_attend_job &job, int row0, int chunk,
                    int type_v, const few_rows<DIM, NB> &rows)
{
    UNROLL
    for (int n = 0; n < NB; n++)
        UNROLL
    for (int e = 0; e < 2; e++) {
        const int row = 8 * n + 2 * (LANE % 4) + e;
        if (row0 + row >= job.n_tok * job.n_group)
            continue;
        const size_t at = part_row(job, row0 / ROWS, chunk, row0 % ROWS + row);
        few_put<DIM, NB>(rows, type_v, n, e, AT(float, a.o) + at * DIM);
        if (LANE < 4) {
            AT(float, a.ml)[at * 2] = rows.m[n][e];
            AT(float, a.ml)[at * 2 + 1] = rows.l[n][e];
        }
    }
}

/* A warp for 8 NB rows of a tile of 16, and a chunk. Grid: (chunks, calls, tiles); of more than one
   tile NB is 2. A type below 0 is the call's. */
template <int DIM, int NB, int TYPE_K, int TYPE_V, int STAGES>
DEV void attend_few(const gpu_attend_args &a)
{
    SHARED(smem);
    const gpu_attend_job &job = AT(const gpu_attend_job, a.jobs)[blockIdx.y];
    const int tile = (int)blockIdx.z, chunk = job.n_chunk - 1 - (int)blockIdx.x;
    if (chunk < 0 || tile * ROWS >= job.n_tok * job.n_group)
        return;
    int first, end;
    chunk_pages(job, chunk, &first, &end);
    const int type_k = TYPE_K < 0 ? a.k.type : TYPE_K, type_v = TYPE_V < 0 ? a.v.type : TYPE_V;
    const bool codes_k = type_k != STORE_F16;
    const int slot = few_slot(half_bytes<DIM>(type_k), half_bytes<DIM>(type_v));
    uint8_t *ps = smem, *ring = smem + NB * TILE * 16;
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
    const int order = !codes_k                    ? (int)GPU_ORDER_PLAIN
                      : type_k != (int)STORE_Q8_0 ? (int)GPU_ORDER_BITS
                                                  : (int)GPU_ORDER_BYTES;
    uint32_t q[DIM / 16][NB][2];
    few_rows<DIM, NB> rows;
    few_begin(a, job, tile, order, q, rows);
    code_table table_k = {}, table_v = {};
    if (codes_k)
        table_k = table_of(a.k);
    if (TYPE_K >= 0 && TYPE_K == TYPE_V)
        table_v = table_k;
    else if (type_v != STORE_F16)
        table_v = table_of(a.v);
    NO_UNROLL
    for (int p = first; p < end; p++) {
        const int at = p - first, n = (int)shfl((uint32_t)ref.n, at);
        const float log_count = AS_F(shfl(AS_U(ref.log_count), at));
        CP_WAIT(STAGES - 2);
        sync_warp();
        fetch(2 * at + STAGES - 1, STAGES % 2 == 1);
        const uint8_t *k = ring + 2 * at % STAGES * slot, *v = ring + (2 * at + 1) % STAGES * slot;
        float x[4][NB][4] = {};
        if (!codes_k && (TYPE_K >= 0 || a.k.beside))
            dots_f16<DIM, NB>(k, q, x);
        else if (!codes_k)
            dots_f16_rows<DIM, NB>(k, q, x);
        else if (type_k == STORE_Q8_0)
            dots_q8<DIM, NB>(k, q, x);
        else
            dots_bits<DIM, NB>(k, type_k == STORE_TURBO3, table_k, q, x);
        const sight sees = {page_positions(job, p), n, a.window};
        const float add = log_count * LOG2E;
        few_logits<DIM, NB>(
            a, rows, [=](int) { return add; }, codes_k, sees, x);
        keep_logits<NB>(job, p, tile * ROWS, codes_k, x);
        few_weights<DIM, NB>(rows, x);
        weights_put<NB>(ps, codes_k, x);
        CP_WAIT(STAGES - 2);
        sync_warp();
        fetch(2 * at + STAGES, STAGES % 2 == 0);
        NO_UNROLL
        for (int s = 0; s < (n + 15) / 16; s++) {
            const uint32_t ones[4] = {ONES, ONES, ONES, ONES};
            uint32_t w[NB][2];
            weights_at<NB>(w, ps, s);
            if (type_v == STORE_F16)
                sums_f16<DIM, NB>(v, s, w, rows.o);
            else if (type_v == STORE_Q8_0)
                sums_q8<DIM, NB>(v, s, w, rows.o);
            else
                sums_bits<DIM, NB>(v, type_v == STORE_TURBO3, table_v, s, w, rows.o);
            UNROLL
            for (int i = 0; i < NB; i++) {
                float l[4] = {rows.l[i][0], rows.l[i][1], 0.0f, 0.0f};
                mma(l, ones, w[i][0], w[i][1]);
                rows.l[i][0] = l[0], rows.l[i][1] = l[1];
            }
        }
    }
    CP_WAIT(0);
    few_finish<DIM, NB>(a, job, tile * ROWS, chunk, type_v, rows);
}

#define FEW_KERNELS(name, dim, type_k, type_v, stages, blocks_8, blocks_16)                        \
    KERNEL(32, blocks_8) attend_few_##name(const gpu_attend_args &a)                                \
    {                                                                                              \
        attend_few<dim, 1, type_k, type_v, stages>(a);                                             \
    }                                                                                              \
    KERNEL(32, blocks_16) attend_few_##name##_16(const gpu_attend_args &a)                          \
    {                                                                                              \
        attend_few<dim, 2, type_k, type_v, stages>(a);                                             \
    }
enum { FEW_F16 = STORE_F16, FEW_Q8_0 = STORE_Q8_0, FEW_TURBO3 = STORE_TURBO3, FEW_ANY = -1 };
GPU_FEW_FORMS(FEW_KERNELS)

#endif
