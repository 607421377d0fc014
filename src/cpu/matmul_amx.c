/*
 * matmul_amx.c - products with quantised weights on AMX-INT8. One instruction multiplies 16 tokens
 * by the 16 rows of a group, and the packed form is its operand. The sums of a block of columns go
 * through memory to AVX-512, which scales and adds them. It must not know the loops around tiles
 * (matmul_blocked.h) nor the bits of any type (matmul_quant.h). Invariant: the arithmetic is
 * exactly matmul.h's.
 *
 * The shape of the tiles is set once for a product, since setting it takes as long as ten products
 * of tiles. A tile has as many rows of activations as there are tokens, at most 16. With more
 * tokens the last tile holds the last 16; it repeats some tokens of the tile before, whose sums are
 * ignored.
 *
 * A Granite Rapids bounds it so, in cycles for 16 tokens, 16 rows and 32 columns. A product of
 * tiles takes 18, for 64 columns as for 32. With its loads and the store of its sums it takes 30.
 * To scale and add the sums takes 27, or 36 with minimums.
 */
#include "cpu/kernels.h"
#include "cpu/matmul_avx512.h"

enum { FEW_PART = 8, CODES_IN_PLACE = false, SIGNED_PANELS = true, DOT_ASKS = true };

#include "cpu/matmul_avx512_lanes.h"

enum { TILE_TOK = 16, MANY_TOK = 4 * TILE_TOK };

_Static_assert(TILE_TOK == PI_TURN_TOK && MANY_TOK % PI_TURN_TOK == 0,
               "turned scales are read tile by tile");

/* ---- tiles of the processor --------------------------------------------------------------- */

/* Tile registers by their contents: four for sums of products, two for activations, two for
   codes. */
enum { TILE_ACT = 4, TILE_CODE = 6, N_TILE = 8 };

/* The operand of ldtilecfg. */
struct tile_shapes {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t n_row[16];
};

/* Shapes for n_tok tokens and products over n_col columns, 16 to 64. */
static void tiles_begin(int32_t n_tok, int32_t n_col)
{
    struct tile_shapes shapes = {.palette = 1};
    for (int32_t i = 0; i < N_TILE; i++) {
        bool act = i >= TILE_ACT && i < TILE_CODE;
        shapes.row_bytes[i] = (uint16_t)(act ? n_col : PI_WORD_BYTES);
        shapes.n_row[i] = (uint8_t)(i < TILE_CODE ? pi_min(n_tok, TILE_TOK) : n_col / 4);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}

static void tiles_end(void)
{
    __asm__ volatile("tilerelease");
}

/*
 * Tiles are named by numbers in the text of an instruction. It is written as assembly since
 * compilers do not agree on what their intrinsics say of memory.
 */
#define TILE_LOAD(tile, at, stride)                                                                \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(at), "r"(stride) : "memory")
#define TILE_STORE(tile, at)                                                                       \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)"                                        \
                     :                                                                             \
                     : "r"(at), "r"((size_t)PI_WORD_BYTES)                                         \
                     : "memory")
#define TILE_DOT(sum, act, code) /* both signed */                                                 \
    __asm__ volatile("tdpbssd %tmm" #code ", %tmm" #act ", %tmm" #sum)

/* ---- many tokens -------------------------------------------------------------------------- */

/*
 * Sums start from SUM_START. Read as a float, its bits are 1.5 * 2^23, and with a sum below 2^22 in
 * magnitude they are START + sum. START * s is exact for scales of up to 22 bits (the types have
 * 19). So one fma(bits, s, -START * s) rounds as (float)sum * s does. A zero may have the other
 * sign, which no accumulator, begun at +0, shows.
 */
#define SUM_START 0x4b400000
#define START 12582912.0f

static const _Alignas(64) int32_t sum_start[PI_GROUP] = {
    SUM_START, SUM_START, SUM_START, SUM_START, SUM_START, SUM_START, SUM_START, SUM_START,
    SUM_START, SUM_START, SUM_START, SUM_START, SUM_START, SUM_START, SUM_START, SUM_START};

/* Sums of products: one tile. */
struct tile_sums {
    _Alignas(64) int32_t of[TILE_TOK][PI_GROUP];
};

/* rows [TILE_TOK] of n <= 16 floats, stride apart, as columns: pi_turn_fn. */
static void columns_first(const float *rows, size_t stride, int32_t n, float *out)
{
    __mmask16 mask = (__mmask16)((1u << n) - 1);
    __m512 a[16], b[16];
    PI_UNROLL
    for (int32_t t = 0; t < 16; t++)
        a[t] = _mm512_maskz_loadu_ps(mask, rows + (size_t)t * stride);
    PI_UNROLL
    for (int32_t t = 0; t < 16; t += 2) { /* pairs of tokens */
        b[t] = _mm512_unpacklo_ps(a[t], a[t + 1]);
        b[t + 1] = _mm512_unpackhi_ps(a[t], a[t + 1]);
    }
    PI_UNROLL
    for (int32_t t = 0; t < 16; t += 4) /* fours: column 4 k + i of token t in a[t + i] */
        for (int32_t i = 0; i < 4; i++) {
            __m512d low = _mm512_castps_pd(b[t + i / 2]), high = _mm512_castps_pd(b[t + i / 2 + 2]);
            a[t + i] = _mm512_castpd_ps(i % 2 ? _mm512_unpackhi_pd(low, high)
                                              : _mm512_unpacklo_pd(low, high));
        }
    PI_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        __m512 even = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
        __m512 odd = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
        __m512 even2 = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
        __m512 odd2 = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
        b[i] = _mm512_shuffle_f32x4(even, even2, 0x88);
        b[i + 4] = _mm512_shuffle_f32x4(odd, odd2, 0x88);
        b[i + 8] = _mm512_shuffle_f32x4(even, even2, 0xdd);
        b[i + 12] = _mm512_shuffle_f32x4(odd, odd2, 0xdd);
    }
    PI_UNROLL
    for (int32_t i = 0; i < 16; i++)
        if (i < n)
            _mm512_store_ps(out + (size_t)i * TILE_TOK, b[i]);
}

/*
 * Products and sums take turns: N_ROOM products leave their sums in memory, then AVX-512 scales and
 * adds them. Mixed they are slower, as the processor then adds one vector per cycle instead of two.
 * A product's sums leave the registers LAG products later, since a store would wait for it.
 */
enum { N_ROOM = 16, N_SUM_TILE = 4, LAG = 3 };

/* A tile in work: TILE_TOK of its tokens. */
struct tile_work {
    struct tile_sums room[N_ROOM];
    _Alignas(64) float acc[PI_TILE_GROUP_MAX][TILE_TOK][PI_GROUP];
    const struct pi_tile *tile;
    const int8_t *q;
};

/* sum = SUM_START + activations times codes, by the tile registers of those numbers. */
#define PRODUCT(sum, act, code_tile, code)                                                         \
    do {                                                                                           \
        TILE_LOAD(sum, sum_start, (size_t)0);                                                      \
        TILE_LOAD(code_tile, code, (size_t)PI_WORD_BYTES);                                         \
        TILE_DOT(sum, act, code_tile);                                                             \
    } while (0)

/* Product number i of n. Before it, the register whose turn is next gives its sums away. */
#define PRODUCT_NEXT(sum, next, act, code_tile, code)                                              \
    do {                                                                                           \
        if (i >= LAG)                                                                              \
            TILE_STORE(next, (to++)->of);                                                          \
        PRODUCT(sum, act, code_tile, code);                                                        \
        if (++i == n)                                                                              \
            goto drain;                                                                            \
    } while (0)

/* Blocks [begin, begin + n_block) of 32 columns times the codes of every group. Sums of block b,
   group g and half h go to room[(b * n_group + g) * n_half + h]. */
PI_INLINE void step_products(struct tile_work *w, int32_t begin, int32_t n_block, int32_t n_half,
                             int32_t n_group)
{
    const int32_t n = n_block * n_group * n_half;
    const size_t at = (size_t)begin * PI_CODE_BYTES, stride = w->tile->q_stride;
    const size_t code_step = PI_CODE_BYTES / (size_t)n_half, q_step = PI_ACT_BLOCK / (size_t)n_half;
    const uint8_t *code = w->tile->panel[0].code + at;
    const uint8_t *code1 = w->tile->panel[n_group - 1].code + at;
    const int8_t *q = w->q + begin * PI_ACT_BLOCK;
    struct tile_sums *to = w->room;
    int32_t i = 0;
    for (;;) {
        TILE_LOAD(4, q, stride);
        PRODUCT_NEXT(0, 1, 4, 6, code);
        if (n_group == 2 && n_half == 1) {
            PRODUCT_NEXT(1, 2, 4, 7, code1);
            TILE_LOAD(5, q + q_step, stride);
            PRODUCT_NEXT(2, 3, 5, 6, code + code_step);
            PRODUCT_NEXT(3, 0, 5, 7, code1 + code_step);
        } else if (n_group == 2) {
            TILE_LOAD(5, q + q_step, stride);
            PRODUCT_NEXT(1, 2, 5, 7, code + code_step);
            PRODUCT_NEXT(2, 3, 4, 6, code1);
            PRODUCT_NEXT(3, 0, 5, 7, code1 + code_step);
        } else {
            TILE_LOAD(5, q + q_step, stride);
            PRODUCT_NEXT(1, 2, 5, 7, code + code_step);
            TILE_LOAD(4, q + 2 * q_step, stride);
            PRODUCT_NEXT(2, 3, 4, 6, code + 2 * code_step);
            TILE_LOAD(5, q + 3 * q_step, stride);
            PRODUCT_NEXT(3, 0, 5, 7, code + 3 * code_step);
        }
        q += 4 / n_group * (int32_t)q_step;
        code += 4 / (size_t)n_group * code_step;
        code1 += 4 / (size_t)n_group * code_step;
    }
drain:
    for (i = (int32_t)(to - w->room); i < n; i++, to++)
        if (i % N_SUM_TILE == 0)
            TILE_STORE(0, to->of);
        else if (i % N_SUM_TILE == 1)
            TILE_STORE(1, to->of);
        else if (i % N_SUM_TILE == 2)
            TILE_STORE(2, to->of);
        else
            TILE_STORE(3, to->of);
}

/* The factors of a block's sums: scales and minimums of its rows, for the whole block or for its
   halves. */
struct block_scales {
    __m512 scale[2], min[2];
    __m512 neg_start; /* -START * scale[0] */
};

PI_INLINE struct block_scales scales_of(const float *scale, const float *min, int32_t n_half,
                                        bool has_min)
{
    struct block_scales s;
    for (int32_t h = 0; h < n_half; h++) {
        s.scale[h] = _mm512_load_ps(scale + h * PI_GROUP);
        if (has_min)
            s.min[h] = _mm512_load_ps(min + h * PI_GROUP);
    }
    s.neg_start = _mm512_mul_ps(_mm512_set1_ps(-START), s.scale[0]);
    return s;
}

/* A block's term for token t, before the activations' scale. sums are of the block or of its
   halves; x_sum has the sums of activations, of halves stride apart, where there are minimums. */
PI_INLINE __m512 block_term(const struct block_scales *s, const struct tile_sums *sums, int32_t t,
                            int32_t n_half, bool has_min, const float *x_sum, int32_t stride)
{
    __m512 first = _mm512_load_ps((const float *)(const void *)sums[0].of[t]);
    __m512 term = _mm512_fmadd_ps(first, s->scale[0], s->neg_start);
    if (n_half == 2) {
        __m512 second = _mm512_load_ps((const float *)(const void *)sums[1].of[t]);
        term = _mm512_fmadd_ps(_mm512_sub_ps(second, _mm512_set1_ps(START)), s->scale[1], term);
    }
    for (int32_t h = 0; h < n_half && has_min; h++)
        term = _mm512_fmadd_ps(s->min[h], _mm512_set1_ps(x_sum[h * stride]), term);
    return term;
}

/* Adds what n blocks from `begin` on give for a group, to all tokens. */
PI_INLINE void step_add(struct tile_work *w, const float *x_scale, const float *x_sum,
                        int32_t group, int32_t begin, int32_t n, int32_t n_half, int32_t n_group,
                        bool has_min)
{
    const struct pi_panel *panel = &w->tile->panel[group];
    __m512 acc[TILE_TOK];
    PI_UNROLL
    for (int32_t t = 0; t < TILE_TOK; t++)
        acc[t] = _mm512_load_ps(w->acc[group][t]);
    for (int32_t b = 0; b < n; b++) {
        size_t sub = (size_t)(begin + b) * (size_t)n_half;
        const struct block_scales scales =
            scales_of(panel->scale + sub * PI_GROUP, panel->min + sub * PI_GROUP, n_half, has_min);
        const struct tile_sums *sums = &w->room[(b * n_group + group) * n_half];
        const float *x = x_scale + (begin + b) * TILE_TOK, *s = x_sum + sub * TILE_TOK;
        PI_UNROLL
        for (int32_t t = 0; t < TILE_TOK; t++) {
            __m512 term = block_term(&scales, sums, t, n_half, has_min, s + t, TILE_TOK);
            acc[t] = _mm512_fmadd_ps(term, _mm512_set1_ps(x[t]), acc[t]);
        }
    }
    PI_UNROLL
    for (int32_t t = 0; t < TILE_TOK; t++)
        _mm512_store_ps(w->acc[group][t], acc[t]);
}

/* Asks for the outputs of the tokens that follow, at step i of n. To ask for their activations,
   too, is slower. */
PI_INLINE void step_ask(const struct pi_tile *p, const float *out, int32_t i, int32_t n)
{
    for (int32_t t = TILE_TOK * i / n; t < TILE_TOK * (i + 1) / n; t++) {
        _mm_prefetch((const char *)(out + (size_t)t * p->out_stride), _MM_HINT_T0);
        _mm_prefetch((const char *)(out + (size_t)t * p->out_stride) + 64, _MM_HINT_T0);
    }
}

/* Panels times the tile's tokens, 16 after 16. The last 16 are the tile's last: tokens that were in
   work before are computed again and ignored. */
PI_INLINE void tile_tokens(struct tile_work *w, int32_t n_half, int32_t n_group, bool has_min)
{
    const struct pi_tile *p = w->tile;
    const int32_t most = N_ROOM / n_half / n_group;
    for (int32_t tok = 0; tok < p->n_tok; tok += TILE_TOK) {
        int32_t before = (int32_t)pi_max(0, tok + TILE_TOK - p->n_tok);
        const float *x_scale = p->x_scale + (size_t)tok * p->x_stride;
        const float *x_sum = (const float *)(const void *)p->aux + (size_t)tok * p->aux_stride;
        float *out = p->out + (size_t)tok * p->out_stride;
        w->q = p->q + ((int64_t)tok - before) * (int64_t)p->q_stride;
        for (int32_t g = 0; g < n_group; g++)
            for (int32_t t = 0; t < TILE_TOK; t++)
                _mm512_store_ps(w->acc[g][t],
                                p->first || t < before
                                    ? _mm512_setzero_ps()
                                    : _mm512_loadu_ps(out + (size_t)(t - before) * p->out_stride +
                                                      g * PI_GROUP));
        for (int32_t b = 0; b < p->n_block; b += most) {
            int32_t n = (int32_t)pi_min(most, p->n_block - b);
            step_products(w, b, n, n_half, n_group);
            step_ask(p, out + TILE_TOK * p->out_stride, b / most,
                     (int32_t)pi_ceil_div(p->n_block, most));
            for (int32_t g = 0; g < n_group; g++)
                step_add(w, x_scale, x_sum, g, b, n, n_half, n_group, has_min);
        }
        for (int32_t t = before; t < TILE_TOK; t++)
            for (int32_t g = 0; g < n_group; g++)
                _mm512_storeu_ps(out + (size_t)(t - before) * p->out_stride + g * PI_GROUP,
                                 _mm512_load_ps(w->acc[g][t]));
    }
}

PI_INLINE void tile_of(const struct pi_tile *tile, int32_t sub_len, bool has_min)
{
    struct tile_work w;
    w.tile = tile;
    if (tile->n_group == 2)
        tile_tokens(&w, 32 / sub_len, 2, has_min);
    else
        tile_tokens(&w, 32 / sub_len, 1, has_min);
}

/* clang-format off */
static void tile_32_zero(const struct pi_tile *p) { tile_of(p, 32, false); }
static void tile_32_min(const struct pi_tile *p) { tile_of(p, 32, true); }
static void tile_16_zero(const struct pi_tile *p) { tile_of(p, 16, false); }
static void tile_16_min(const struct pi_tile *p) { tile_of(p, 16, true); }
/* clang-format on */

/* ---- few tokens --------------------------------------------------------------------------- */

/*
 * A group's codes are decoded CODES_AHEAD blocks before tiles load them: a tile would wait for
 * codes that are not yet in the cache.
 */
enum { CODES_AHEAD = 2, N_CODES = 4 };

/* Room for blocks by turns: of codes, as signed bytes, and of the sums of their products. */
struct few_work {
    _Alignas(64) uint8_t code[N_CODES][PI_CODE_BYTES];
    struct tile_sums sums[2][2]; /* of halves */
    _Alignas(64) float scale[PI_SUB_MAX * PI_GROUP];
    _Alignas(64) float min[PI_SUB_MAX * PI_GROUP];
};

/* All tokens times the codes of block `at`. */
PI_INLINE void few_products(const struct shape *s, const struct pi_tile *p, int32_t at,
                            const uint8_t *code, struct tile_sums *sums)
{
    const int8_t *q = p->q + at * PI_ACT_BLOCK;
    bool halves = s->sub_len == 16;
    if (halves || at % 2 == 0) {
        TILE_LOAD(4, q, p->q_stride);
        PRODUCT(0, 4, 6, code);
        TILE_STORE(0, sums[0].of);
    }
    if (halves || at % 2 == 1) {
        TILE_LOAD(5, q + (halves ? 16 : 0), p->q_stride);
        PRODUCT(1, 5, 7, code + (halves ? PI_CODE_BYTES / 2 : 0));
        TILE_STORE(1, sums[halves].of);
    }
}

/* Adds the terms of block `at` to the tokens, and to unused rows past the last token. Tokens are
   the steps of ask. */
PI_INLINE void few_add(const struct shape *s, const struct pi_tile *p, int32_t at,
                       const float *scale, const float *min, const struct tile_sums *sums,
                       struct pi_ask ask, __m512 acc[TILE_TOK])
{
    const int32_t n_half = 32 / s->sub_len;
    const struct block_scales scales = scales_of(scale, min, n_half, s->has_min);
    const float *x_scale = p->x_scale + at;
    const float *x_sum = (const float *)(const void *)p->aux + at * n_half;
    PI_UNROLL
    for (int32_t t = 0; t < TILE_TOK; t++) {
        __m512 term = block_term(&scales, sums, t, n_half, s->has_min, x_sum, 1);
        acc[t] = _mm512_fmadd_ps(term, _mm512_set1_ps(*x_scale), acc[t]);
        ask_beside(ask, t);
        x_scale += t + 1 < p->n_tok ? p->x_stride : 0;
        x_sum += t + 1 < p->n_tok ? p->aux_stride : 0;
    }
}

/* pi_few_fn of a shape. Memory is asked for as by few where it is far, PREFETCH_BYTES ahead of the
   block whose sums are added. */
PI_INLINE void few_tiles(const struct shape s, const struct pi_matrix *w, const uint8_t *group,
                         const struct pi_tile *tile)
{
    const struct pi_tile p = *tile;
    const int32_t n_block = w->n_col / s.block_len, n_sub = s.block_len / 32;
    const int32_t n_half = 32 / s.sub_len, n_at = n_block * n_sub;
    const char *ahead = (const char *)group + PREFETCH_BYTES;
    struct few_work work;
    __m512 acc[TILE_TOK];
    memset(work.sums, 0, sizeof(work.sums)); /* rows past the last token stay so */
    PI_UNROLL
    for (int32_t t = 0; t < TILE_TOK; t++)
        acc[t] = _mm512_setzero_ps();
    for (int32_t i = 0; i <= n_at + CODES_AHEAD; i++) {
        int32_t at = i - CODES_AHEAD, done = at - 1, sub = done % n_sub * n_half;
        if (i < n_at)
            decode_codes(&s, block_words(&s, group, i / n_sub), i % n_sub, work.code[i % N_CODES]);
        if (at >= 0 && at < n_at)
            few_products(&s, &p, at, work.code[at % N_CODES], work.sums[at % 2]);
        if (done < 0)
            continue;
        if (done % n_sub == 0) {
            const uint16_t *halves = block_halves(&s, group, n_block, done / n_sub);
            lanes_prefetch((const char *)halves + w->group_bytes);
            s.scales(block_words(&s, group, done / n_sub), halves, work.scale, work.min);
        }
        few_add(&s, &p, done, work.scale + sub * PI_GROUP, work.min + sub * PI_GROUP,
                work.sums[done % 2], few_ask_beside(&s, ahead, 0, TILE_TOK), acc);
        ahead += few_bytes(&s);
    }
    PI_UNROLL
    for (int32_t t = 0; t < TILE_TOK; t++)
        if (t < p.n_tok)
            _mm512_storeu_ps(p.out + (size_t)t * p.out_stride, acc[t]);
}

/* ---- the types ---------------------------------------------------------------------------- */

#define FEW_TILES(name)                                                                            \
    static void few_tiles_##name(const struct pi_matrix *w, const uint8_t *group,                  \
                                 const struct pi_tile *p)                                          \
    {                                                                                              \
        few_tiles(shape_##name, w, group, p);                                                      \
    }

QUANT_TYPES(FEW_TILES)

#define QUANT_KERNELS(name, tile_fn, zero_code)                                                    \
    {                                                                                              \
        .decode = decode_##name, .tile = tile_fn, .few = few_tiles_##name, .zero = zero_code,      \
        .tile_zero = 0, .few_tok = TILE_TOK, .few_part = TILE_TOK, .tile_tok = MANY_TOK,           \
        .tile_group = PI_TILE_GROUP_MAX, .turn = columns_first                                     \
    }

static const struct pi_quant_kernels kernels[PI_MATMUL_N_TYPE] = QUANT_TABLE;

/* Of fewer tokens AVX-512's products are faster, from the same packed weights. */
static void mul_quantised(const struct pi_matrix *w, const struct pi_act *a, int32_t group_begin,
                          int32_t group_end, float *out, size_t out_stride, void *scratch)
{
    if (a->n_tok <= FEW_PART) {
        pi_matmul_quantised_avx512(w, a, group_begin, group_end, out, out_stride, scratch);
        return;
    }
    tiles_begin(a->n_tok, pi_matmul_layout(w->type)->sub_len);
    mul_blocked(&kernels[pi_matmul_index(w->type)], w, a, group_begin, group_end, out, out_stride,
                scratch);
    tiles_end();
}

/* ---- the probe ---------------------------------------------------------------------------- */

static int64_t probe_int8(int64_t n_step)
{
    tiles_begin(TILE_TOK, 64);
    for (int64_t i = 0; i < n_step; i++)
        __asm__ volatile("tdpbssd %tmm6, %tmm4, %tmm0\n\ttdpbssd %tmm7, %tmm5, %tmm1");
    tiles_end();
    return n_step * 2 * TILE_TOK * PI_GROUP * 64 * 2;
}

void pi_matmul_init_amx(struct pi_matmul_kernels *k)
{
    for (int32_t i = 0; i < PI_MATMUL_N_TYPE; i++)
        if (kernels[i].tile != NULL)
            k->mul[i] = mul_quantised;
    k->probe_int8 = probe_int8;
}
