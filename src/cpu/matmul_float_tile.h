/*
 * matmul_float_tile.h - a level's products with float weights: the tiles, whose accumulators stay
 * in registers, and the functions of the three types. A level includes its lanes (vec, vec_fma, ..)
 * and defines how many floats a register holds and how many groups fit beside six tokens. It also
 * defines how a register of weights of each type is loaded. The loops around tiles are
 * matmul_blocked_float.h's.
 *
 *   #define VEC_LEN 8        floats of a register
 *   #define TILE_GROUP 1     groups of a tile of several tokens
 *   vec load_f32(const uint8_t *rows), load_f16, load_bf16: VEC_LEN weights, aligned
 */
#include "cpu/matmul_blocked_float.h"

enum { TILE_TOK = 6, N_PART = PI_GROUP / VEC_LEN };

/* VEC_LEN weights of one column. */
typedef vec load_fn(const uint8_t *rows);

/* The accumulators of n_group groups and n_tok tokens. */
typedef vec accumulators[PI_FLOAT_TILE_GROUP_MAX][N_PART][TILE_TOK];

PI_INLINE void begin(const struct pi_float_tile *p, int32_t n_group, int32_t n_tok,
                     accumulators acc)
{
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++) {
        PI_UNROLL
        for (int32_t g = 0; g < n_group; g++) {
            PI_UNROLL
            for (int32_t r = 0; r < N_PART; r++)
                acc[g][r][t] =
                    p->first
                        ? vec_zero()
                        : vec_load(p->out + (size_t)t * p->out_stride + g * PI_GROUP + r * VEC_LEN);
        }
    }
}

PI_INLINE void end(const struct pi_float_tile *p, int32_t n_group, int32_t n_tok, accumulators acc)
{
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++) {
        PI_UNROLL
        for (int32_t g = 0; g < n_group; g++) {
            PI_UNROLL
            for (int32_t r = 0; r < N_PART; r++)
                vec_store(p->out + (size_t)t * p->out_stride + g * PI_GROUP + r * VEC_LEN,
                          acc[g][r][t]);
        }
    }
}

/* Several tokens: a column's weights are loaded once, and meet every token. */
PI_INLINE void tile(const struct pi_float_tile *p, load_fn *load, size_t elem_bytes,
                    int32_t n_group, int32_t n_tok)
{
    accumulators acc;
    begin(p, n_group, n_tok, acc);
    for (size_t c = 0; c < (size_t)p->n_col; c++) {
        size_t at = c * PI_GROUP * elem_bytes;
        vec w[PI_FLOAT_TILE_GROUP_MAX][N_PART];
        PI_UNROLL
        for (int32_t g = 0; g < n_group; g++) {
            __builtin_prefetch(p->ahead[g] + at);
            PI_UNROLL
            for (size_t r = 0; r < N_PART; r++)
                w[g][r] = load(p->group[g] + at + r * VEC_LEN * elem_bytes);
        }
        PI_UNROLL
        for (int32_t t = 0; t < n_tok; t++) {
            vec x = vec_set1(p->x[(size_t)t * p->x_stride + c]);
            PI_UNROLL
            for (int32_t g = 0; g < n_group; g++) {
                PI_UNROLL
                for (int32_t r = 0; r < N_PART; r++)
                    acc[g][r][t] = vec_fma(w[g][r], x, acc[g][r][t]);
            }
        }
    }
    end(p, n_group, n_tok, acc);
}

/* One token: all groups at a time, against the latency of their chains. */
PI_INLINE void tile_one(const struct pi_float_tile *p, load_fn *load, size_t elem_bytes)
{
    accumulators acc;
    begin(p, PI_FLOAT_TILE_GROUP_MAX, 1, acc);
    for (size_t c = 0; c < (size_t)p->n_col; c++) {
        size_t at = c * PI_GROUP * elem_bytes;
        vec x = vec_set1(p->x[c]);
        PI_UNROLL
        for (int32_t g = 0; g < PI_FLOAT_TILE_GROUP_MAX; g++) {
            __builtin_prefetch(p->ahead[g] + at);
            PI_UNROLL
            for (size_t r = 0; r < N_PART; r++)
                acc[g][r][0] =
                    vec_fma(load(p->group[g] + at + r * VEC_LEN * elem_bytes), x, acc[g][r][0]);
        }
    }
    end(p, PI_FLOAT_TILE_GROUP_MAX, 1, acc);
}

PI_INLINE void tile_tokens(const struct pi_float_tile *p, load_fn *load, size_t elem_bytes,
                           int32_t n_group)
{
    if (p->n_tok == 1)
        tile(p, load, elem_bytes, n_group, 1);
    else if (p->n_tok == 2)
        tile(p, load, elem_bytes, n_group, 2);
    else if (p->n_tok == 3)
        tile(p, load, elem_bytes, n_group, 3);
    else if (p->n_tok == 4)
        tile(p, load, elem_bytes, n_group, 4);
    else if (p->n_tok == 5)
        tile(p, load, elem_bytes, n_group, 5);
    else
        tile(p, load, elem_bytes, n_group, 6);
}

#if TILE_GROUP == 1
/* Other tiles go group by group. */
PI_INLINE void tile_groups(const struct pi_float_tile *p, load_fn *load, size_t elem_bytes)
{
    struct pi_float_tile one = *p;
    for (int32_t g = 0; g < p->n_group; g++) {
        one.group[0] = p->group[g];
        one.ahead[0] = p->ahead[g];
        one.out = p->out + g * PI_GROUP;
        tile_tokens(&one, load, elem_bytes, 1);
    }
}
#else
PI_INLINE void tile_groups(const struct pi_float_tile *p, load_fn *load, size_t elem_bytes)
{
    if (p->n_group == 4)
        tile_tokens(p, load, elem_bytes, 4);
    else if (p->n_group == 3)
        tile_tokens(p, load, elem_bytes, 3);
    else if (p->n_group == 2)
        tile_tokens(p, load, elem_bytes, 2);
    else
        tile_tokens(p, load, elem_bytes, 1);
}
#endif

/* Enters the version with the tile's numbers as constants. */
PI_INLINE void tile_enter(const struct pi_float_tile *p, load_fn *load, size_t elem_bytes)
{
    if (p->n_tok == 1 && p->n_group == PI_FLOAT_TILE_GROUP_MAX)
        tile_one(p, load, elem_bytes);
    else
        tile_groups(p, load, elem_bytes);
}

/* clang-format off */
static void tile_f32(const struct pi_float_tile *p) { tile_enter(p, load_f32, 4); }
static void tile_f16(const struct pi_float_tile *p) { tile_enter(p, load_f16, 2); }
static void tile_bf16(const struct pi_float_tile *p) { tile_enter(p, load_bf16, 2); }
/* clang-format on */

static const struct pi_float_kernels kernels_f32 = {tile_f32, TILE_TOK, PI_FLOAT_TILE_GROUP_MAX, 4};
static const struct pi_float_kernels kernels_f16 = {tile_f16, TILE_TOK, PI_FLOAT_TILE_GROUP_MAX, 2};
static const struct pi_float_kernels kernels_bf16 = {tile_bf16, TILE_TOK, PI_FLOAT_TILE_GROUP_MAX,
                                                     2};

static void mul_f32(const struct pi_matrix *w, const struct pi_act *a, int32_t group_begin,
                    int32_t group_end, float *out, size_t out_stride, void *scratch)
{
    mul_blocked_float(&kernels_f32, w, a, group_begin, group_end, out, out_stride, scratch);
}

static void mul_f16(const struct pi_matrix *w, const struct pi_act *a, int32_t group_begin,
                    int32_t group_end, float *out, size_t out_stride, void *scratch)
{
    mul_blocked_float(&kernels_f16, w, a, group_begin, group_end, out, out_stride, scratch);
}

static void mul_bf16(const struct pi_matrix *w, const struct pi_act *a, int32_t group_begin,
                     int32_t group_end, float *out, size_t out_stride, void *scratch)
{
    mul_blocked_float(&kernels_bf16, w, a, group_begin, group_end, out, out_stride, scratch);
}

static void init_float(struct pi_matmul_kernels *k)
{
    k->mul[pi_matmul_index(PI_DTYPE_F32)] = mul_f32;
    k->mul[pi_matmul_index(PI_DTYPE_F16)] = mul_f16;
    k->mul[pi_matmul_index(PI_DTYPE_BF16)] = mul_bf16;
}
