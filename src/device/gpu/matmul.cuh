/*
 * matmul.cuh - quantised matrices times activations, by mma.sync, for any number of tokens with the
 * same bits.
 *
 * The arithmetic. Weights become f16, activations are f16, products are exact and are added in f32
 * by the tensor cores, 16 columns at a time in ascending order, from 0 at every multiple of 256
 * columns. The sums of these stretches are added in f32 in ascending order, from 0. So a kernel may
 * give stretches to whatever warps or blocks it likes: bits do not change.
 *
 * Weights. Rows in groups of 16, columns in blocks of 256. A block's codes lie in the order in
 * which the lanes of a warp hold the first operand of mma, 64 columns (a tile) after the other,
 * then the scales. As many bytes as the file's format has, for every type. Lane l holds in register
 * j row l / 4 + 8 (j & 1), column 2 (l % 4) + 8 (j / 2) + half of each 16. A tile has for each lane
 *   low 4 bits   16 bytes, a word for each 16 columns, register j's halves in bits 4 j and 16 + 4 j
 *   2 bits       8 bytes, a word for each 32 columns: bits 2 (4 (k % 2) + j), and 16 + that
 *   1 bit        4 bytes: bits 4 k + j, and 16 + that
 *   8 bits, f16  a byte or two of each, in the order of k, j and half
 * Scales are described at scales_load.
 *
 * Activations. f16 in matrices of 8 tokens x 8 columns, 128 bytes each, token by token within:
 * x[token / 8][column / 8][token % 8][column % 8]. Such a matrix is one register of the second
 * operand, a row of ldmatrix and a core matrix of wgmma. For wgmma n_side eights of tokens lie side
 * by side for 64 columns: x[token / (8 n_side)][column / 64][token / 8 % n_side][column / 8 % 8].
 * So a tile of 8 n_side tokens is one stretch of memory. n_side is 1 for all other kernels.
 */
#ifndef PI_GPU_MATMUL_CUH
#define PI_GPU_MATMUL_CUH

#include "device/gpu/rows.cuh"

enum { BLOCK_COLS = 256, TILE_COLS = 64, STAGES = 4 };

/* Codes of 16 rows x 256 columns in three planes, and which scales they have. */
BOTH constexpr bool has_low4(int t)
{
    return t != GPU_WEIGHT_Q8_0 && t != GPU_WEIGHT_F16 && t != GPU_WEIGHT_Q2_K &&
           t != GPU_WEIGHT_Q3_K;
}
BOTH constexpr bool has_two(int t)
{
    return t == GPU_WEIGHT_Q6_K || t == GPU_WEIGHT_Q2_K || t == GPU_WEIGHT_Q3_K;
}
BOTH constexpr bool has_one(int t)
{
    return t == GPU_WEIGHT_Q5_0 || t == GPU_WEIGHT_Q5_1 || t == GPU_WEIGHT_Q5_K ||
           t == GPU_WEIGHT_Q3_K;
}
BOTH constexpr bool has_table(int t)
{
    return t == GPU_WEIGHT_IQ4_NL || t == GPU_WEIGHT_IQ4_XS || t == GPU_WEIGHT_MXFP4;
}
BOTH constexpr bool has_min(int t)
{
    return t == GPU_WEIGHT_Q4_K || t == GPU_WEIGHT_Q5_K || t == GPU_WEIGHT_Q4_1 ||
           t == GPU_WEIGHT_Q5_1 || t == GPU_WEIGHT_Q2_K;
}
/* Scales over 16 columns; else 32. */
BOTH constexpr bool is_fine(int t)
{
    return t == GPU_WEIGHT_Q6_K || t == GPU_WEIGHT_Q2_K || t == GPU_WEIGHT_Q3_K;
}
/* Bytes of codes before the scales, before the plane of 2 bits, and before that of 1. */
BOTH constexpr int two_at(int t)
{
    return has_low4(t) ? 2048 : 0;
}
BOTH constexpr int one_at(int t)
{
    return two_at(t) + (has_two(t) ? 1024 : 0);
}
BOTH constexpr int scales_at(int t)
{
    return t == GPU_WEIGHT_F16    ? 8192
           : t == GPU_WEIGHT_Q8_0 ? 4096
                                  : one_at(t) + (has_one(t) ? 512 : 0);
}
BOTH constexpr int scale_bytes(int t)
{
    return t == GPU_WEIGHT_F16                               ? 0
           : t == GPU_WEIGHT_Q6_K                            ? 288
           : t == GPU_WEIGHT_Q2_K                            ? 320
           : t == GPU_WEIGHT_Q3_K                            ? 224
           : t == GPU_WEIGHT_Q4_1 || t == GPU_WEIGHT_Q5_1    ? 512
           : t == GPU_WEIGHT_IQ4_XS || t == GPU_WEIGHT_MXFP4 ? 128
                                                             : 256;
}
BOTH constexpr int block_bytes(int t)
{
    return scales_at(t) + scale_bytes(t);
}

/* What a lane holds of a tile, of a block's scales as stored, of those made ready, and of a tile's.
   s[i][k]: pairs of equal f16, the scale of row g + 8 i in k-step k of 16 columns; m likewise. */
template <int T> struct codes {
    uint4 v[T == GPU_WEIGHT_F16 ? 4 : T == GPU_WEIGHT_Q8_0 ? 2 : 1];
    uint2 two;
    uint32_t one;
};
template <int T> struct stored_scales {
    uint32_t w[2][4];
};
template <int T> struct ready_scales {
    uint32_t w[2][4];
};
struct tile_scales {
    uint32_t s[2][4], m[2][4];
};

/* S: from shared memory. */
template <bool S> DEV uint4 ld_four(const uint8_t *p)
{
    return S ? *(const uint4 *)p : ld_stream(p);
}
template <bool S> DEV uint2 ld_two(const uint8_t *p)
{
    return S ? *(const uint2 *)p : ld_stream2(p);
}
template <bool S> DEV uint32_t ld_one(const uint8_t *p)
{
    return S ? *(const uint32_t *)p : ld_near(p);
}

template <int T, bool S = false>
DEV void codes_load(codes<T> *c, const uint8_t *block, int tile, int lane = LANE)
{
    if (T == GPU_WEIGHT_F16) {
        UNROLL
        for (int k = 0; k < 4; k++)
            c->v[k % (T == GPU_WEIGHT_F16 ? 4 : 1)] =
                ld_four<S>(block + (tile * 4 + k) * 512 + lane * 16);
    } else if (T == GPU_WEIGHT_Q8_0) {
        UNROLL
        for (int k = 0; k < 2; k++)
            c->v[k % (T == GPU_WEIGHT_Q8_0 ? 2 : 1)] =
                ld_four<S>(block + (tile * 2 + k) * 512 + lane * 16);
    }
    if (has_low4(T))
        c->v[0] = ld_four<S>(block + tile * 512 + lane * 16);
    if (has_two(T))
        c->two = ld_two<S>(block + two_at(T) + tile * 256 + lane * 8);
    if (has_one(T))
        c->one = ld_one<S>(block + one_at(T) + tile * 128 + lane * 4);
}

/*
 * Lane t of a row loads what the scales of tile t are made of. Of 16 rows r:
 *   Q4_K, Q5_K        16 bytes: d, dmin, three words of which byte t has tile t's 4 x 6 bits
 *   Q6_K              16 bytes of scale + 128, then [16] f16 d
 *   Q2_K              16 bytes: scale in the low nibble, minimum in the high one; then [16] d, dmin
 *   Q3_K              three words, byte t has tile t's 4 x 6 bits of scale + 32; then [16] d
 *   IQ4_XS            d, then 48 bits, 12 of tile t: 2 x 6 of scale + 32
 *   MXFP4             8 bytes, the exponent of a scale + 32 or so (pack.c), 0 for a scale of 0
 *   Q4_1, Q5_1        8 x (d, m)
 *   the others        8 f16
 */
template <int T, bool S = false>
DEV void scales_load(stored_scales<T> *s, const uint8_t *block, int lane = LANE)
{
    const int g = lane / 4, t = lane % 4;
    const uint8_t *at = block + scales_at(T);
    UNROLL
    for (int i = 0; i < 2; i++) {
        const int r = g + 8 * i;
        uint32_t *w = s->w[i];
        if (T == GPU_WEIGHT_Q4_K || T == GPU_WEIGHT_Q5_K) {
            uint4 v = ld_four<S>(at + r * 16);
            w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
        } else if (T == GPU_WEIGHT_Q6_K || T == GPU_WEIGHT_Q2_K) {
            w[0] = ld_one<S>(at + r * 16 + t * 4);
            w[1] = T == GPU_WEIGHT_Q2_K ? ld_one<S>(at + 256 + r * 4)
                                        : ld_one<S>(at + 256 + (r & ~1) * 2) >> (16 * (r & 1));
        } else if (T == GPU_WEIGHT_Q3_K) {
            w[0] = ld_one<S>(at + 192 + (r & ~1) * 2) >> (16 * (r & 1));
            UNROLL
            for (int j = 0; j < 3; j++)
                w[j + 1] = ld_one<S>(at + r * 12 + 4 * j);
        } else if (T == GPU_WEIGHT_IQ4_XS) {
            uint2 v = ld_two<S>(at + r * 8);
            w[0] = v.x, w[1] = v.y;
        } else if (T == GPU_WEIGHT_MXFP4) {
            w[0] = ld_one<S>(at + r * 8 + t / 2 * 4) >> (16 * (t & 1));
        } else if (T == GPU_WEIGHT_Q4_1 || T == GPU_WEIGHT_Q5_1) {
            uint2 v = ld_two<S>(at + r * 32 + t * 8);
            w[0] = v.x, w[1] = v.y;
        } else if (T != GPU_WEIGHT_F16) {
            w[0] = ld_one<S>(at + r * 16 + t * 4);
        }
    }
}

/* Two numbers below 1024 as f16, less `zero` (f16 of 1024 + zero, twice, negated). */
DEV uint32_t numbers(uint32_t pair, uint32_t minus)
{
    return h2_add(pair | 0x64006400u, minus);
}

/* 24 bits of tile t: byte t of three words. */
DEV uint32_t bits_of_tile(uint32_t a, uint32_t b, uint32_t c, uint32_t t)
{
    uint32_t v = prmt(a, b, t | (4 + t) << 4) & 0xffff;
    return v | prmt(c, 0, t) << 16;
}

/* The exponent of a power of two as f16: 0 is 0. Above 24 normal numbers, below it subnormal
   ones. */
DEV uint32_t half_of_exponent(uint32_t e)
{
    return e == 0 ? 0 : e > 10 ? (e - 10) << 10 : 1u << (e - 1);
}

/* Lane t of a row makes the scales of tile t: [0], [1] those of k-steps 0, 1 and 2, 3 or, where
   they are over 32 columns, (scale, minimum) or both scales in [0]; [2], [3] minimums over 16. */
template <int T>
DEV void scales_ready(const stored_scales<T> *s, ready_scales<T> *out, uint32_t lane = LANE)
{
    const uint32_t t = lane % 4;
    UNROLL
    for (int i = 0; i < 2; i++) {
        const uint32_t *w = s->w[i];
        uint32_t *to = out->w[i];
        if (T == GPU_WEIGHT_Q4_K || T == GPU_WEIGHT_Q5_K) {
            uint32_t v = bits_of_tile(w[1], w[2], w[3], t);
            uint32_t a = (v & 0x3f) | (v << 10 & 0x3f0000);
            uint32_t b = (v >> 12 & 0x3f) | (v >> 2 & 0x3f0000);
            uint32_t d = w[0] ^ 0x80000000u; /* (d, -dmin) */
            to[0] = h2_mul(numbers(a, 0xe400e400u), d);
            to[1] = h2_mul(numbers(b, 0xe400e400u), d);
        } else if (T == GPU_WEIGHT_Q6_K) {
            uint32_t d = prmt(w[1], 0, 0x1010), v = w[0];
            to[0] = h2_mul(h2_add(prmt(v, 0x64646464u, 0x4140), 0xe480e480u), d);
            to[1] = h2_mul(h2_add(prmt(v, 0x64646464u, 0x4342), 0xe480e480u), d);
        } else if (T == GPU_WEIGHT_Q2_K) {
            uint32_t d = prmt(w[1], 0, 0x1010), dmin = prmt(w[1], 0, 0x3232) ^ 0x80008000u;
            uint32_t low = w[0] & 0x0f0f0f0fu, high = w[0] >> 4 & 0x0f0f0f0fu;
            to[0] = h2_mul(h2_add(prmt(low, 0x64646464u, 0x4140), 0xe400e400u), d);
            to[1] = h2_mul(h2_add(prmt(low, 0x64646464u, 0x4342), 0xe400e400u), d);
            to[2] = h2_mul(h2_add(prmt(high, 0x64646464u, 0x4140), 0xe400e400u), dmin);
            to[3] = h2_mul(h2_add(prmt(high, 0x64646464u, 0x4342), 0xe400e400u), dmin);
        } else if (T == GPU_WEIGHT_Q3_K) {
            uint32_t v = bits_of_tile(w[1], w[2], w[3], t), d = prmt(w[0], 0, 0x1010);
            uint32_t a = (v & 0x3f) | (v << 10 & 0x3f0000);
            uint32_t b = (v >> 12 & 0x3f) | (v >> 2 & 0x3f0000);
            to[0] = h2_mul(numbers(a, 0xe420e420u), d);
            to[1] = h2_mul(numbers(b, 0xe420e420u), d);
        } else if (T == GPU_WEIGHT_IQ4_XS) {
            uint64_t bits = (uint64_t)w[0] >> 16 | (uint64_t)w[1] << 16;
            uint32_t v = (uint32_t)(bits >> (12 * t)), d = prmt(w[0], 0, 0x1010);
            to[0] = h2_mul(numbers((v & 0x3f) | (v << 10 & 0x3f0000), 0xe420e420u), d);
        } else if (T == GPU_WEIGHT_MXFP4) {
            to[0] = half_of_exponent(w[0] & 0xff) | half_of_exponent(w[0] >> 8 & 0xff) << 16;
        } else if (T == GPU_WEIGHT_Q4_1 || T == GPU_WEIGHT_Q5_1) {
            to[0] = w[0], to[1] = w[1];
        } else {
            to[0] = w[0];
        }
    }
}

template <int T>
DEV void scales_of_tile(const ready_scales<T> *r, int tile, tile_scales *out, int lane = LANE)
{
    const int owner = (lane & ~3) | tile;
    /* F16 has no scales. */
    UNROLL
    for (int i = 0; i < (T == GPU_WEIGHT_F16 ? 0 : 2); i++) {
        uint32_t a = shfl(r->w[i][0], owner);
        uint32_t b = is_fine(T) || has_min(T) ? shfl(r->w[i][1], owner) : 0;
        uint32_t c = is_fine(T) && has_min(T) ? shfl(r->w[i][2], owner) : 0;
        uint32_t d = is_fine(T) && has_min(T) ? shfl(r->w[i][3], owner) : 0;
        UNROLL
        for (int k = 0; k < 4; k++) {
            if (is_fine(T)) {
                const uint32_t x = k < 2 ? a : b, y = k < 2 ? c : d;
                out->s[i][k] = k & 1 ? h2_high(x) : h2_low(x);
                if (has_min(T))
                    out->m[i][k] = k & 1 ? h2_high(y) : h2_low(y);
            } else if (has_min(T)) {
                out->s[i][k] = h2_low(k < 2 ? a : b);
                out->m[i][k] = h2_high(k < 2 ? a : b);
            } else {
                out->s[i][k] = k < 2 ? h2_low(a) : h2_high(a);
            }
        }
    }
}

DEV uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* The 16 numbers of a table + 128, as bytes. */
template <int T> DEV uint32_t table_word(int i)
{
    if (T == GPU_WEIGHT_MXFP4) /* 0, 1, 2, 3, 4, 6, 8, 12, and their negatives */
        return i == 0 ? 0x83828180u : i == 1 ? 0x8c888684u : i == 2 ? 0x7d7e7f80u : 0x74787a7cu;
    /* -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 */
    return i == 0 ? 0x3f2d1801u : i == 1 ? 0x766a5d4fu : i == 2 ? 0xa6998d81u : 0xf1d9c5b5u;
}

/* x moved down by n bits, or up. */
DEV uint32_t moved(uint32_t x, int n)
{
    return n < 0 ? x << -n : x >> n;
}

/* The codes of register j in k-step k, as f16 numbers. */
template <int T> DEV uint32_t values_of(const codes<T> *c, int k, int j)
{
    const uint32_t f1024 = 0x64006400u; /* bits below 1024 added to it are numbers added to it */
    if (T == GPU_WEIGHT_Q8_0) {         /* bytes + 128 */
        uint32_t w = word_of(c->v[(k / 2) % (T == GPU_WEIGHT_Q8_0 ? 2 : 1)], 2 * (k & 1) + j / 2);
        return h2_add(prmt(w, 0x64646464u, j & 1 ? 0x4342 : 0x4140), 0xe480e480u);
    }
    const uint32_t pair = has_two(T) ? (k < 2 ? c->two.x : c->two.y) : 0;
    const int two = 2 * (4 * (k & 1) + j), one = 4 * k + j; /* their first bits */
    if (T == GPU_WEIGHT_Q2_K)
        return h2_add(and_or(moved(pair, two), 0x00030003u, f1024), 0xe400e400u);
    if (T == GPU_WEIGHT_Q3_K) {
        uint32_t low = and_or(moved(pair, two), 0x00030003u, f1024);
        return h2_add(and_or(moved(c->one, one - 2), 0x00040004u, low), 0xe404e404u);
    }
    const uint32_t w = word_of(c->v[0], k);
    if (has_table(T)) {
        uint32_t low = w >> (4 * j) & 0x000f000fu;
        uint32_t sel = (low & 7) | (low >> 12 & 0x70);
        uint32_t below = prmt(table_word<T>(0), table_word<T>(1), sel);
        uint32_t above = prmt(table_word<T>(2), table_word<T>(3), sel);
        uint32_t lo = low & 8 ? above : below, hi = low & 0x00080000u ? above : below;
        return h2_add(prmt(prmt(lo, hi, 0x50), 0x64646464u, 0x4140), 0xe480e480u);
    }
    const bool centred = T == GPU_WEIGHT_Q4_0;
    if (!has_two(T) && !has_one(T) && (j & 1) != 0) /* 1024 + 16 code, which spares a shift */
        return h2_fma(and_or(moved(w, 4 * j - 4), 0x00f000f0u, f1024), 0x2c002c00u,
                      centred ? 0xd480d480u : 0xd400d400u);
    uint32_t low = and_or(moved(w, 4 * j), 0x000f000fu, f1024);
    if (has_two(T)) /* Q6_K */
        return h2_add(and_or(moved(pair, two - 4), 0x00300030u, low), 0xe420e420u);
    if (has_one(T))
        return h2_add(and_or(moved(c->one, one - 4), 0x00100010u, low),
                      T == GPU_WEIGHT_Q5_0 ? 0xe410e410u : 0xe400e400u);
    return h2_add(low, centred ? 0xe408e408u : 0xe400e400u);
}

/* The first operand of mma for k-step k of a tile. */
template <int T> DEV void fragment(const codes<T> *c, const tile_scales *s, int k, uint32_t *a)
{
    UNROLL
    for (int j = 0; j < 4; j++) {
        if (T == GPU_WEIGHT_F16) {
            a[j] = word_of(c->v[k % (T == GPU_WEIGHT_F16 ? 4 : 1)], j);
            continue;
        }
        uint32_t q = values_of<T>(c, k, j);
        a[j] = has_min(T) ? h2_fma(q, s->s[j & 1][k], s->m[j & 1][k]) : h2_mul(q, s->s[j & 1][k]);
    }
}

/* ---- what a block works on ---- */

struct slab {
    const uint8_t *w;
    const uint16_t *x;    /* of its first token */
    const float *x_scale; /* likewise */
    float *out;
    size_t first; /* token */
    int matrix, tile, n_tok;
};

/* Rows and tokens of a slab of experts, or of the plain slab z; tile: of the block's matrix. */
DEV slab slab_of(const gpu_mul_args &a, int x, int z)
{
    slab s;
    s.matrix = (x >= a.m[1].tile0) + (x >= a.m[2].tile0);
    const gpu_matrix &m = a.m[s.matrix];
    int index = z, first = z * a.x_first;
    s.tile = x - m.tile0;
    s.n_tok = a.n_tok;
    s.first = (size_t)first;
    s.out = AT(float, m.out) + (size_t)z * m.out_step;
    if (a.busy != 0) {
        const bool is = z < *AT(const int32_t, a.n_busy);
        index = is ? AT(const int32_t, a.busy)[z] : 0;
        const int row = AT(const int32_t, a.first)[index];
        first = AT(const int32_t, a.padded)[index];
        s.first = (size_t)row;
        s.n_tok = is ? AT(const int32_t, a.first)[index + 1] - row : 0;
        s.out = AT(float, m.out) + (size_t)row * m.out_stride;
    }
    s.w = AT(const uint8_t, m.w) + (size_t)index * m.slab_bytes;
    s.x = AT(const uint16_t, a.x) + (size_t)(first / 8) * a.n_block * 32 * X_MATRIX;
    s.x_scale = AT(const float, a.x_scale) + first;
    return s;
}

/* ---- few tokens: the speed of memory ----
 *
 * 8 NT tokens. A block of 8 warps has 16 rows; warps take blocks of columns in turn, and leave each
 * one's sums in shared memory: [n_block][NT][128] floats. A tile's registers get the next block's
 * codes as soon as they are read. Weights are asked for before the kernels before this one are
 * awaited. Grid: (groups of rows, tokens / 8 NT, slabs).
 */
template <int T, int NT> DEV void mul_few(const gpu_mul_args &args)
{
    SHARED(smem);
    float *part = (float *)smem;
    const int lane = LANE, n_block = args.n_block, tok0 = (int)blockIdx.y * 8 * NT;
    GRID_GO();
    if (args.busy != 0)
        GRID_WAIT();
    const slab here = slab_of(args, (int)blockIdx.x, (int)blockIdx.z);
    const gpu_matrix &m = args.m[here.matrix];
    if (tok0 >= here.n_tok)
        return;
    const uint8_t *w = here.w + ((size_t)here.tile * n_block + WARP) * block_bytes(T);
    codes<T> c[4];
    stored_scales<T> st;
    if (WARP < n_block) {
        scales_load<T>(&st, w);
        UNROLL
        for (int j = 0; j < 4; j++)
            codes_load<T>(&c[j], w, j);
    }
    if (WARP == 0)
        prefetch(w, n_block * block_bytes(T));
    GRID_WAIT();
    /* A lane's words of the second operand are of token lane / 4, or of the first one where that is
       not there: its sums are nobody's. */
    const uint32_t *x[NT];
    UNROLL
    for (int nt = 0; nt < NT; nt++) {
        const bool is = tok0 + nt * 8 + lane / 4 < here.n_tok;
        const size_t tile = (size_t)(tok0 / 8 + (is ? nt : 0)) * n_block + WARP;
        x[nt] = (const uint32_t *)(here.x + tile * 32 * X_MATRIX) + (is ? lane : lane % 4);
    }
    float *to = part + (size_t)WARP * NT * 128 + lane * 4;
    NO_UNROLL
    for (int blk = WARP; blk < n_block; blk += 8) {
        const bool more = blk + 8 < n_block;
        float acc[NT][4] = {};
        ready_scales<T> ready;
        uint32_t bx[2][NT][8];
        auto load_x = [&](int j) {
            UNROLL
            for (int nt = 0; nt < NT; nt++)
                UNROLL
            for (int k8 = 0; k8 < 8; k8++)
                bx[j & 1][nt][k8] = x[nt][(j * 8 + k8) * (X_MATRIX / 2)];
        };
        load_x(0);
        scales_ready<T>(&st, &ready);
        w += 8 * block_bytes(T);
        if (more)
            scales_load<T>(&st, w);
        UNROLL
        for (int j = 0; j < 4; j++) {
            tile_scales ts;
            if (j < 3)
                load_x(j + 1);
            scales_of_tile<T>(&ready, j, &ts);
            UNROLL
            for (int k = 0; k < 4; k++) {
                uint32_t a[4];
                fragment<T>(&c[j], &ts, k, a);
                UNROLL
                for (int nt = 0; nt < NT; nt++)
                    mma(acc[nt], a, bx[j & 1][nt][2 * k], bx[j & 1][nt][2 * k + 1]);
            }
            if (more)
                codes_load<T>(&c[j], w, j);
        }
        UNROLL
        for (int nt = 0; nt < NT; nt++) {
            *(float4 *)(to + nt * 128) = {acc[nt][0], acc[nt][1], acc[nt][2], acc[nt][3]};
            x[nt] += 8 * 32 * (X_MATRIX / 2);
        }
        to += 8 * NT * 128;
    }
    sync_block();
    for (int i = TID; i < NT * 128; i += 256) {
        float sum = 0.0f;
        UNROLL4
        for (int blk = 0; blk < n_block; blk++)
            sum += part[(size_t)blk * NT * 128 + i];
        int nt = i / 128, l = i / 4 % 32, e = i % 4;
        int row = here.tile * 16 + l / 4 + 8 * (e / 2), tok = tok0 + nt * 8 + 2 * (l % 4) + e % 2;
        if (row < m.n_row && tok < here.n_tok)
            here.out[(size_t)tok * m.out_stride + row] = sum * m.scale * here.x_scale[tok];
    }
}

/* ---- many tokens: the speed of mma.sync ----
 *
 * A block of 8 warps has 128 rows and BN tokens; a warp 32 rows and BN / 2 tokens. It makes its
 * fragments of weights in registers; activations come through STAGES stretches of shared memory, 64
 * columns each. Grid: (rows / 128, tokens / BN, slabs or shares of the columns).
 *
 * SPLIT: the blocks of blockIdx.z take a share of the columns each and leave every stretch's sums
 * in part; join_stretches adds them in order: same bits, more blocks at
 * work.
 */
template <int T, int BN, bool SPLIT> DEV void mul_many(const gpu_mul_args &args)
{
    enum { NT = BN / 16, STAGE = BN * 128 /* bytes */ };
    SHARED(smem);
    const slab here = slab_of(args, (int)blockIdx.x, SPLIT ? 0 : (int)blockIdx.z);
    const gpu_matrix &m = args.m[here.matrix];
    const int lane = LANE, wm = WARP / 2, wn = WARP % 2, n_block = args.n_block, n_row = m.n_row;
    const int group0 = here.tile * 8 + wm * 2, n_group = (n_row + 15) / 16;
    if ((int)blockIdx.y * BN >= here.n_tok)
        return;
    const int first = SPLIT ? (int)blockIdx.z * n_block / (int)gridDim.z : 0;
    const int end = SPLIT ? ((int)blockIdx.z + 1) * n_block / (int)gridDim.z : n_block,
              n_tile = end * 4;
    const size_t pitch = (size_t)n_block * block_bytes(T);
    const uint16_t *x0 = here.x + (size_t)blockIdx.y * (BN / 8) * n_block * 32 * X_MATRIX;
    const uint8_t *w0 = here.w + (size_t)(group0 < n_group ? group0 : 0) * pitch;
    const uint32_t second = group0 + 1 < n_group ? (uint32_t)pitch : 0; /* the other 16 rows */

    float acc[2][NT][4] = {}, total[2][NT][4] = {};
    codes<T> c[2], next_c[2];
    stored_scales<T> st[2];
    ready_scales<T> ready[2];

    auto copy = [&](int tile) {
        if (tile < n_tile)
            for (int i = TID; i < BN / 8 * 64; i += 256)
                cp16(smem + (size_t)(tile % STAGES) * STAGE + i * 16,
                     (const uint8_t *)(x0 +
                                       ((size_t)(i / 64) * n_block * 32 + tile * 8) * X_MATRIX) +
                         i % 64 * 16);
        cp_commit();
    };
    for (int i = 0; i < STAGES - 1; i++)
        copy(first * 4 + i);
    UNROLL
    for (int r = 0; r < 2; r++) {
        codes_load<T>(&next_c[r], w0 + r * second + (size_t)first * block_bytes(T), 0);
        scales_load<T>(&st[r], w0 + r * second + (size_t)first * block_bytes(T));
    }
    auto place = [&](int r, int i, int e, int *row) {
        *row = (group0 + r) * 16 + lane / 4 + 8 * (e / 2);
        int tok = (int)blockIdx.y * BN + (wn * NT + i) * 8 + 2 * (lane % 4) + e % 2;
        return *row < n_row && tok < here.n_tok ? tok : -1;
    };
    NO_UNROLL
    for (int blk = first; blk < end; blk++) {
        UNROLL
        for (int r = 0; r < 2; r++)
            scales_ready<T>(&st[r], &ready[r]);
        UNROLL
        for (int j = 0; j < 4; j++) {
            const int tile = blk * 4 + j;
            UNROLL
            for (int r = 0; r < 2; r++) {
                c[r] = next_c[r];
                const uint8_t *b =
                    w0 + r * second + (size_t)(j == 3 ? blk + 1 : blk) * block_bytes(T);
                if (j < 3 || blk + 1 < end)
                    codes_load<T>(&next_c[r], b, (j + 1) % 4);
                if (j == 3 && blk + 1 < end)
                    scales_load<T>(&st[r], b);
            }
            CP_WAIT(STAGES - 2);
            sync_block();
            copy(tile + STAGES - 1);
            const uint8_t *stage = smem + (size_t)(tile % STAGES) * STAGE;
            tile_scales ts[2];
            UNROLL
            for (int r = 0; r < 2; r++)
                scales_of_tile<T>(&ready[r], j, &ts[r]);
            UNROLL
            for (int k = 0; k < 4; k++) {
                uint32_t a[2][4], b[NT / 2][4];
                UNROLL
                for (int i = 0; i < NT / 2; i++) {
                    int nt = wn * NT + 2 * i + lane / 16, k8 = 2 * k + (lane / 8 & 1);
                    ldsm4(b[i], stage + (nt * 8 + k8) * 128 + lane % 8 * 16);
                }
                UNROLL
                for (int r = 0; r < 2; r++)
                    fragment<T>(&c[r], &ts[r], k, a[r]);
                UNROLL
                for (int i = 0; i < NT / 2; i++)
                    UNROLL
                for (int r = 0; r < 2; r++) {
                    mma(acc[r][2 * i], a[r], b[i][0], b[i][1]);
                    mma(acc[r][2 * i + 1], a[r], b[i][2], b[i][3]);
                }
            }
        }
        UNROLL
        for (int r = 0; r < 2; r++)
            UNROLL
        for (int i = 0; i < NT; i++)
            UNROLL
        for (int e = 0; e < 4; e++) {
            int row, tok = SPLIT ? place(r, i, e, &row) : -1;
            if (SPLIT && tok >= 0)
                AT(float, args.part)
            [((size_t)blk * here.n_tok + tok) * args.n_all + m.row0 + row] = acc[r][i][e];
            total[r][i][e] += acc[r][i][e];
            acc[r][i][e] = 0.0f;
        }
    }
    CP_WAIT(0);
    /* Parts of split sums are written above. */
    UNROLL
    for (int r = 0; r < (SPLIT ? 0 : 2); r++)
        UNROLL
    for (int i = 0; i < NT; i++)
        UNROLL
    for (int e = 0; e < 4; e++) {
        int row, tok = place(r, i, e, &row);
        if (tok >= 0)
            here.out[(size_t)tok * m.out_stride + row] =
                total[r][i][e] * m.scale * here.x_scale[tok];
    }
}

/* A thread has a sum. Grid: (rows of all matrices times tokens) / 256. */
KERNEL(256, 4) join_stretches(const gpu_mul_args &a)
{
    const int i = (int)blockIdx.x * 256 + TID, n = a.n_all * a.n_tok;
    if (i >= n)
        return;
    const float *part = AT(const float, a.part);
    const int tok = i / a.n_all, row = i % a.n_all;
    const gpu_matrix &m =
        a.m[(a.m[1].w != 0 && row >= a.m[1].row0) + (a.m[2].w != 0 && row >= a.m[2].row0)];
    float sum = 0.0f;
    UNROLL4
    for (int b = 0; b < a.n_block; b++)
        sum += part[(size_t)b * n + i];
    AT(float, m.out)
    [(size_t)tok * m.out_stride + row - m.row0] = sum * m.scale * AT(const float, a.x_scale)[tok];
}

/* ---- F32: fused multiply-adds ----
 *
 * A warp makes one sum: lane l of columns l, l + 32, .., then lanes are added as a tree. Grid:
 * (rows / 8, tokens, slabs).
 */
KERNEL(256, 4) mul_float(const gpu_mul_args &a)
{
    const slab here = slab_of(a, (int)blockIdx.x, (int)blockIdx.z);
    const gpu_matrix &m = a.m[here.matrix];
    const int row = here.tile * 8 + WARP, tok = (int)blockIdx.y, n = a.n_col;
    if (tok >= here.n_tok)
        return;
    const float *w = (const float *)here.w + (size_t)(row < m.n_row ? row : 0) * n;
    const float *x = AT(const float, a.x) + (here.first + tok) * n;
    float sum = 0.0f;
    for (int i = LANE; i < n; i += 32)
        sum = fmaf(w[i], x[i], sum);
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2)
        sum += shfl_xor(sum, mask);
    if (LANE == 0 && row < m.n_row)
        here.out[(size_t)tok * m.out_stride + row] = sum;
}

/* ---- by name ---- */

#define MUL_FEW_1(type)                                                                            \
    KERNEL(256, 3) mul_few_1_##type(const gpu_mul_args &a)                                          \
    {                                                                                              \
        mul_few<GPU_WEIGHT_##type, 1>(a);                                                          \
    }
#define MUL_FEW_2(type)                                                                            \
    KERNEL(256, 2) mul_few_2_##type(const gpu_mul_args &a)                                          \
    {                                                                                              \
        mul_few<GPU_WEIGHT_##type, 2>(a);                                                          \
    }
#define MUL_MANY_64(type)                                                                          \
    KERNEL(256, 1) mul_many_64_##type(const gpu_mul_args &a)                                        \
    {                                                                                              \
        mul_many<GPU_WEIGHT_##type, 64, false>(a);                                                 \
    }
#define MUL_SPLIT_64(type)                                                                         \
    KERNEL(256, 1) mul_split_64_##type(const gpu_mul_args &a)                                       \
    {                                                                                              \
        mul_many<GPU_WEIGHT_##type, 64, true>(a);                                                  \
    }
#define MUL_MANY_128(type)                                                                         \
    KERNEL(256, 1) mul_many_128_##type(const gpu_mul_args &a)                                       \
    {                                                                                              \
        mul_many<GPU_WEIGHT_##type, 128, false>(a);                                                \
    }
GPU_WEIGHTS(MUL_FEW_1)
GPU_WEIGHTS(MUL_FEW_2)
GPU_WEIGHTS(MUL_MANY_64)
GPU_WEIGHTS(MUL_SPLIT_64)
GPU_WEIGHTS(MUL_MANY_128)

#endif
