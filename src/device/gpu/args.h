/*
 * args.h - what kernels are called, and what they get: one plain struct each, the same for the host
 * and for kernels. An address is that of the device's memory, 0: none.
 */
#ifndef PI_GPU_ARGS_H
#define PI_GPU_ARGS_H

#include <stdint.h>

typedef uint64_t gpu_at;

/* The weight types that products by tensor cores know (matmul.cuh). BF16 is packed as F16. F32 has
   a kernel of its own. */
#define GPU_WEIGHTS(X)                                                                             \
    X(Q4_K)                                                                                        \
    X(Q6_K)                                                                                        \
    X(Q8_0) X(Q4_0) X(F16) X(Q4_1) X(Q5_0) X(Q5_1) X(Q5_K) X(Q2_K) X(Q3_K) X(IQ4_NL) X(IQ4_XS)     \
        X(MXFP4)

enum gpu_weight_type {
#define GPU_WEIGHT_ENUM(type) GPU_WEIGHT_##type,
    GPU_WEIGHTS(GPU_WEIGHT_ENUM)
#undef GPU_WEIGHT_ENUM
        GPU_WEIGHT_N,
    GPU_WEIGHT_F32 = GPU_WEIGHT_N
};

/* Kernels: name, threads of a block, blocks of a processor at least, struct of arguments.
   Kernels of weights come one after the other for a kind of kernel, in the order of GPU_WEIGHTS.
   GPU_K_WAITS: the kernel calls GRID_WAIT itself (gpu.h), all others begin with it. */
#define GPU_K_WAITS(...) GPU_K(__VA_ARGS__)
#define GPU_KERNEL_FEW_1(type) GPU_K(mul_few_1_##type, 256, 1, gpu_mul_args)
#define GPU_KERNEL_FEW_2(type) GPU_K(mul_few_2_##type, 256, 1, gpu_mul_args)
#define GPU_KERNEL_MANY_64(type) GPU_K(mul_many_64_##type, 256, 1, gpu_mul_args)
#define GPU_KERNEL_SPLIT_64(type) GPU_K(mul_split_64_##type, 256, 1, gpu_mul_args)
#define GPU_KERNEL_MANY_128(type) GPU_K(mul_many_128_##type, 256, 1, gpu_mul_args)
#define GPU_KERNEL_WGMMA(type) GPU_K(mul_wgmma_##type, 256, 1, gpu_mul_args)
#define GPU_KERNELS                                                                                \
    GPU_WEIGHTS(GPU_KERNEL_FEW_1)                                                                  \
    GPU_WEIGHTS(GPU_KERNEL_FEW_2)                                                                  \
    GPU_WEIGHTS(GPU_KERNEL_MANY_64)                                                                \
    GPU_WEIGHTS(GPU_KERNEL_SPLIT_64)                                                               \
    GPU_WEIGHTS(GPU_KERNEL_MANY_128)                                                               \
    GPU_WEIGHTS(GPU_KERNEL_WGMMA)                                                                  \
    GPU_K(mul_float, 256, 4, gpu_mul_args)                                                         \
    GPU_K(join_stretches, 256, 4, gpu_join_args)                                                   \
    GPU_K(pack_rows, 256, 2, gpu_pack_args)                                                        \
    GPU_K(fill, 256, 4, gpu_fill_args)                                                             \
    GPU_K(rope_fill, 128, 4, gpu_rope_args)                                                        \
    GPU_K(between, 256, 2, gpu_between_args)                                                       \
    GPU_K(cap, 256, 4, gpu_cap_args)                                                               \
    GPU_K(qkv, 128, 4, gpu_qkv_args)                                                               \
    GPU_K(centre, 256, 4, gpu_centre_args)                                                         \
    GPU_K(out_gate, 256, 4, gpu_out_args)                                                          \
    GPU_K(gate, 256, 4, gpu_gate_args)                                                             \
    GPU_K(moe_choose, 128, 4, gpu_moe_args)                                                        \
    GPU_K(moe_sort, 1024, 1, gpu_moe_args)                                                         \
    GPU_K(moe_gather, 256, 4, gpu_moe_args)                                                        \
    GPU_K(moe_hidden, 256, 4, gpu_moe_args)                                                        \
    GPU_K(moe_sum, 256, 4, gpu_moe_args)                                                           \
    GPU_K(delta_in, 128, 4, gpu_delta_args)                                                        \
    GPU_K(delta_conv, 128, 4, gpu_delta_args)                                                      \
    GPU_K(delta_unit, 128, 4, gpu_delta_args)                                                      \
    GPU_K(delta_turn, 64, 4, gpu_delta_args)                                                       \
    GPU_K(delta_out, 128, 4, gpu_delta_args)                                                       \
    GPU_K(latent_low, 256, 2, gpu_latent_args)                                                     \
    GPU_K(latent_in, 128, 4, gpu_latent_args)                                                      \
    GPU_K(latent_query, 128, 4, gpu_latent_args)                                                   \
    GPU_K(latent_gather, 128, 4, gpu_latent_args)                                                  \
    GPU_K(append, 128, 4, gpu_append_args)                                                         \
    GPU_K(move, 128, 4, gpu_move_args)                                                             \
    GPU_K(attend_queries, 128, 4, gpu_attend_args)                                                 \
    GPU_K(attend_part_4, 128, 2, gpu_attend_args)                                                  \
    GPU_K(attend_part_8, 128, 2, gpu_attend_args)                                                  \
    GPU_K(attend_part_16, 128, 1, gpu_attend_args)                                                 \
    GPU_K(attend_join, 128, 4, gpu_attend_args)                                                    \
    GPU_K(read_all, 256, 8, gpu_read_args)                                                         \
    GPU_K(best_rows, 1024, 1, gpu_best_args)

enum gpu_kernel {
#define GPU_K(name, threads, per_sm, args) GPU_KERNEL_##name,
    GPU_KERNELS
#undef GPU_K
        GPU_N_KERNEL
};

/* ---- bytes ---- */

/* Copies bytes that do not overlap; from 0: zeros. */
struct gpu_fill_args {
    gpu_at to, from;
    uint64_t size;
};

/* ---- products ---- */

/*
 * out[t * out_stride + row] = scale * x_scale[t] * (w x[t]) for the rows of a matrix. A matrix may
 * have slabs that lie one behind the other. blockIdx.z counts them. A slab's tokens begin x_first
 * tokens after the first one of the slab before, its output out_step floats after. With experts
 * slab z is expert busy[z], z < *n_busy, of rows first[e] .. first[e + 1], whose activations begin
 * at token padded[e].
 */
struct gpu_mul_args {
    gpu_at w;       /* packed (matmul.cuh), of F32 [n_row][n_col] */
    gpu_at x;       /* f16 in matrices of 8 tokens x 8 columns; of F32 f32 [n_tok][n_col] */
    gpu_at x_scale; /* f32 [token]; none: of F32 */
    gpu_at out;
    gpu_at first, padded, busy, n_busy; /* int32; none: no experts */
    uint64_t slab_bytes, out_stride, out_step;
    int32_t n_row, n_block, n_tok, x_first;
    int32_t n_col; /* of F32 */
    float scale;
};

/* Adds the stretches that mul_split_64 wrote, [n_block][n_tok][n_row]. */
struct gpu_join_args {
    gpu_at part, x_scale, out;
    uint64_t out_stride;
    int32_t n_row, n_block, n_tok;
    float scale;
};

/* Rows of f32 to f16 in matrices of 8 x 8. Each is multiplied by the power of two that makes its
   largest value at least 2^13 and less than 2^14. x_scale [row] gets that power's inverse. Columns
   up to n_block * 256 are zeros. Slabs as gpu_mul_args has them: z is the slab, whose rows begin at
   z * n_tok of x. A block has 8 tokens. */
struct gpu_pack_args {
    gpu_at x, out, x_scale;
    gpu_at first, padded, busy, n_busy;
    int32_t n_col, n_block, n_tok, x_first;
};

/* ---- rows ---- */

struct gpu_rope_args {
    gpu_at pos, freq, cs; /* int32 [n_row], f64 [n_pair], [n_row][n_pair][2] */
    int32_t n_pair;
    float magnitude;
};

/* x += post_norm(h + bias), then out = norm(x) or, with an index, norm(x[index]). */
struct gpu_between_args {
    gpu_at x, h, bias, post_norm, norm, index, out;
    int32_t leave, n;
    float eps;
};

struct gpu_cap_args {
    gpu_at x;
    int32_t n;
    float cap;
};

struct gpu_qkv_args {
    gpu_at q, k, v, q_gate, q_pre, k_pre, bq, bk, bv, q_norm, k_norm, cs, pos;
    int32_t n_pair, adjacent, temp_len;
    int32_t n_head, n_head_kv, dim_k, n_v;
    float temp_scale, eps;
};

struct gpu_centre_args {
    gpu_at k, mean;
    int32_t n;
};

struct gpu_out_args {
    gpu_at x, q_gate;
    int32_t n, n_head, dim;
};

struct gpu_gate_args {
    gpu_at gate, up;
    int32_t fn, n; /* enum pi_gate_act */
};

/* Of all kernels of a mixture of experts: device.h's structs of the bodies. */
struct gpu_moe_args {
    gpu_at weight, chosen, row, token, first, busy, n_busy, padded;
    gpu_at logit, rank, b_router, b_choice, h, shared_gate, shared_weight;
    gpu_at x, gate, up, b_gate, b_up, b_down;
    int32_t n_expert, n_used, n_group, n_group_used, gating, norm, fn, shared;
    int32_t n, n_tok;
    float scale;
};

struct gpu_delta_args {
    gpu_at u, z, c, beta, decay, beta_alpha, kq, dt, a, norm, w;
    gpu_at items; /* struct gpu_delta_item */
    int32_t n_key, n_value, dim, n_conv, tiled, mixed, mixed_gates;
    float eps;
};
struct gpu_delta_item {
    gpu_at past, matrix;
    int32_t row0, n_tok;
};

struct gpu_latent_args {
    gpu_at low, query_a_norm, raw, latent_norm, k, v, head, att, q, q_pre, k_pre, cs, pos;
    int32_t wants_v, n_pair, adjacent, temp_len;
    int32_t n_tok, n_head, n_query, dim_key, n_rot, dim_k, dim_v;
    float temp_scale, eps;
};

/* ---- the store ---- */

enum { GPU_N_PLANE = 3, GPU_CODE_MAX = 16 };

/* Keys or values of a class of pages: kv/class.h's part. The type is that of kv/type.h. */
struct gpu_part {
    int32_t type, dim, group, beside; /* keys that lie side by side */
    struct {
        uint32_t at, row, element, pitch;
    } plane[GPU_N_PLANE];
    float table[GPU_CODE_MAX]; /* of codes */
    float wht_scale;           /* 1 / sqrt(group); 0: nothing is rotated */
};

/* A row that becomes a key or a value: the entry at a place of a page. */
struct gpu_append_row {
    gpu_at from, page; /* f32 [dim]; the page's first byte */
    int32_t slot, value;
    int32_t clip; /* what is noted where the row has more than its type holds */
    int32_t unused;
};
/* A block for each row. */
struct gpu_append_args {
    gpu_at rows, clipped; /* int32: the least noted number; none: nothing is noted */
    int32_t page_len;
    int32_t n; /* rows */
    float limit[2];
    struct gpu_part part[2];
};

/* Parts of pages on their way to a page: kv/page.h's, with addresses. */
struct gpu_move_part {
    gpu_at from;
    int32_t from_slot, to_slot, n, unused;
};
/* Rows of a page in which entries lie beside each other, `element` bytes each: n_row of them, row
   bytes apart. */
struct gpu_move_plane {
    uint32_t at, row, element, n_row;
};
enum { GPU_MOVE_PLANES = 16 };
struct gpu_move_args {
    gpu_at to, parts;
    int32_t n_part, n_plane;
    struct gpu_move_plane plane[GPU_MOVE_PLANES];
};

/* Entries of a page, or of several that are gathered, as queries of one variant see them. */
struct gpu_attend_page {
    gpu_at page;   /* first byte; gathered: entries of struct gpu_attend_entry */
    gpu_at pos;    /* int32 [n] as written; none: every row sees every entry */
    int32_t n;     /* entries; negative: -n are gathered */
    int32_t delta; /* they are read as written that many positions later */
    int32_t variant;
    float log_count; /* ln of how often they count */
};
struct gpu_attend_entry {
    gpu_at page;
    int32_t slot, unused;
};
/* A call of attention. */
struct gpu_attend_job {
    gpu_at q, out; /* query (t, g) at q + t * q_stride + g * dim_k, likewise out */
    gpu_at packed; /* f16 [n_variant][n_row up to 16s][dim_k up to 16s] */
    gpu_at scale;  /* f32 [n_variant][n_row up to 16s] what their products are multiplied by */
    gpu_at turn;   /* f32 [n_variant][n_pair][2] of rotations of variants from 1 on */
    gpu_at sink;   /* f32 [n_group] or none */
    gpu_at pages;
    uint64_t q_stride, out_stride;
    int32_t n_tok, n_group, pos0, n_page, n_chunk, n_variant;
    int32_t part0; /* of its first chunk and 16 rows: [row tile][chunk] */
    int32_t unused;
};
struct gpu_attend_work {
    int32_t job, tile;
    int32_t first, end; /* pages */
};
struct gpu_attend_args {
    gpu_at jobs, work;
    gpu_at o, ml;                     /* f32 [part][16][dim_v up to 16s], [part][16][2] */
    int32_t page_len, window, v_in_k; /* v_in_k: values are keys' dimensions from there on, or -1 */
    int32_t dim_k, dim_v, n_pair, adjacent;
    float factor, cap; /* factor: of q.k */
    struct gpu_part k, v;
};

/* ---- sampling ---- */

enum { GPU_BEST = 128 };

/* The best tokens of rows of logits [n], one behind the other, and copies of the rows: keep has
   their addresses, out a struct of each. */
struct gpu_best_args {
    gpu_at x, keep, out;
    int32_t n;
};
struct gpu_best {
    int32_t n; /* 0: there are none */
    int32_t id[GPU_BEST];
    float logit[GPU_BEST];
};

/* ---- measuring ---- */

/* Reads size bytes, a multiple of 16 that are zeros; out is then left alone. */
struct gpu_read_args {
    gpu_at from, out;
    uint64_t size;
};

#endif
