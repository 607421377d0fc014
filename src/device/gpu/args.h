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
    X(Q8_0)                                                                                        \
    X(Q4_0) X(F16) X(Q4_1) X(Q5_0) X(Q5_1) X(Q5_K) X(Q2_K) X(Q3_K) X(IQ4_NL) X(IQ4_XS) X(MXFP4)

/* One launch for a whole token knows these types (step.cuh). */
#define GPU_STEP_WEIGHTS(X) X(Q4_K) X(Q6_K) X(Q8_0) X(Q4_0) X(F16) X(Q5_0) X(Q5_K)

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
/* Blocks of mul_few of 8 tokens that a processor has registers for. */
#define GPU_FEW_BLOCKS(t)                                                                          \
    ((t) == GPU_WEIGHT_F16 || (t) == GPU_WEIGHT_Q2_K || (t) == GPU_WEIGHT_Q5_K ? 2 : 3)
/* Of mul_wgmma of 64 tokens. */
#define GPU_WGMMA_BLOCKS(t) ((t) == GPU_WEIGHT_F16 ? 1 : 2)
#define GPU_KERNEL_FEW_1(type)                                                                     \
    GPU_K_WAITS(mul_few_1_##type, 256, GPU_FEW_BLOCKS(GPU_WEIGHT_##type), gpu_mul_args)
#define GPU_KERNEL_FEW_2(type) GPU_K_WAITS(mul_few_2_##type, 256, 2, gpu_mul_args)
#define GPU_KERNEL_MANY_64(type) GPU_K(mul_many_64_##type, 256, 1, gpu_mul_args)
#define GPU_KERNEL_SPLIT_64(type) GPU_K(mul_split_64_##type, 256, 1, gpu_mul_args)
#define GPU_KERNEL_MANY_128(type) GPU_K(mul_many_128_##type, 256, 1, gpu_mul_args)
#define GPU_KERNEL_WGMMA_128(type) GPU_K_WAITS(mul_wgmma_128_##type, 256, 1, gpu_mul_args)
#define GPU_KERNEL_WGMMA_64(type)                                                                  \
    GPU_K_WAITS(mul_wgmma_64_##type, 256, GPU_WGMMA_BLOCKS(GPU_WEIGHT_##type), gpu_mul_args)
#define GPU_KERNEL_WGMMA_SPLIT(type)                                                               \
    GPU_K_WAITS(mul_wgmma_split_##type, 256, GPU_WGMMA_BLOCKS(GPU_WEIGHT_##type), gpu_mul_args)
/* Forms of pages that attend_few takes, each with a kernel for 8 rows and one for 16. X has name,
   dimensions, and types of keys and values (ANY: the call's). Then come half pages in shared
   memory, and blocks of a processor of 8 rows and of 16. */
#define GPU_FEW_FORMS(X)                                                                           \
    X(64_f16, 64, FEW_F16, FEW_F16, 3, 8, 4)                                                       \
    X(64_mixed, 64, FEW_ANY, FEW_ANY, 3, 8, 4)                                                     \
    X(128_f16, 128, FEW_F16, FEW_F16, 3, 4, 4)                                                     \
    X(128_q8_0, 128, FEW_Q8_0, FEW_Q8_0, 3, 8, 8)                                                  \
    X(128_turbo3, 128, FEW_TURBO3, FEW_TURBO3, 3, 16, 8)                                           \
    X(128_mixed, 128, FEW_ANY, FEW_ANY, 3, 8, 8)                                                   \
    X(256_mixed, 256, FEW_ANY, FEW_ANY, 3, 4, 1)
#define GPU_KERNELS_FEW(name, dim, k, v, stages, blocks_8, blocks_16)                              \
    GPU_K(attend_few_##name, 32, blocks_8, gpu_attend_args)                                        \
    GPU_K(attend_few_##name##_16, 32, blocks_16, gpu_attend_args)
/* Kernels in groups, each of which nvcc compiles to a module of its own: cuda/GROUP.cu. */
#define GPU_GROUP_FEW                                                                              \
    GPU_WEIGHTS(GPU_KERNEL_FEW_1)                                                                  \
    GPU_WEIGHTS(GPU_KERNEL_FEW_2)
#define GPU_GROUP_64                                                                               \
    GPU_WEIGHTS(GPU_KERNEL_MANY_64)                                                                \
    GPU_WEIGHTS(GPU_KERNEL_SPLIT_64)
#define GPU_GROUP_128 GPU_WEIGHTS(GPU_KERNEL_MANY_128)
#define GPU_GROUP_WGMMA                                                                            \
    GPU_WEIGHTS(GPU_KERNEL_WGMMA_128)                                                              \
    GPU_WEIGHTS(GPU_KERNEL_WGMMA_64)                                                               \
    GPU_WEIGHTS(GPU_KERNEL_WGMMA_SPLIT)
#define GPU_GROUP_ROWS                                                                             \
    GPU_K(mul_float, 256, 4, gpu_mul_args)                                                         \
    GPU_K(join_stretches, 256, 4, gpu_mul_args)                                                    \
    GPU_K_WAITS(pack_rows, 512, 1, gpu_pack_args)                                                  \
    GPU_K(fill, 256, 4, gpu_fill_args)                                                             \
    GPU_K(embed, 256, 2, gpu_embed_args)                                                           \
    GPU_K_WAITS(between, 512, 1, gpu_between_args)                                                 \
    GPU_K(cap, 256, 4, gpu_cap_args)                                                               \
    GPU_K(qkv, 128, 4, gpu_qkv_args)                                                               \
    GPU_K(centre, 256, 4, gpu_centre_args)                                                         \
    GPU_K_WAITS(out_gate, 512, 1, gpu_out_args)                                                    \
    GPU_K_WAITS(gate, 1024, 1, gpu_gate_args)                                                      \
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
    GPU_K(entry_put, 128, 4, gpu_entry_args)                                                       \
    GPU_K(entry_copy, 128, 4, gpu_entry_args)                                                      \
    GPU_K(value_pages, 128, 4, gpu_value_args)                                                     \
    GPU_K(value_join, 128, 4, gpu_value_args)                                                      \
    GPU_K(move, 128, 4, gpu_move_args)                                                             \
    GPU_K(gather_list, 128, 8, gpu_gather_args)                                                    \
    GPU_K(gather_pages, 128, 8, gpu_gather_args)                                                   \
    GPU_K(note_sums, 256, 4, gpu_note_args)                                                        \
    GPU_K(note_words, 256, 4, gpu_note_args)                                                       \
    GPU_K(note_rows, 256, 4, gpu_note_rows_args)                                                   \
    GPU_K(victims, 256, 4, gpu_victim_args)                                                        \
    GPU_K(learn_ring, 256, 8, gpu_learn_args)                                                      \
    GPU_K(learn_moments, 128, 8, gpu_learn_args)                                                   \
    GPU_K(learn_pairs, 128, 8, gpu_learn_args)                                                     \
    GPU_K(predict_hidden, 256, 4, gpu_predict_args)                                                \
    GPU_K(predict_neurons, 256, 4, gpu_predict_args)                                               \
    GPU_K(predict_marks, 128, 4, gpu_predict_args)                                                 \
    GPU_K(marks_clear, 128, 8, gpu_marks_args)                                                     \
    GPU_K(marks_sources, 128, 8, gpu_marks_args)                                                   \
    GPU_K(marks_keep, 1024, 1, gpu_marks_args)                                                     \
    GPU_K(weigh_half, 128, 8, gpu_weigh_args)                                                      \
    GPU_K(weigh_page, 128, 4, gpu_weigh_args)                                                      \
    GPU_K(weigh_marks, 256, 4, gpu_weigh_args)                                                     \
    GPU_K(weigh_anchor, 128, 4, gpu_weigh_args)                                                    \
    GPU_K(votes_fold, 256, 4, gpu_weigh_args)                                                      \
    GPU_K(votes_pool, 256, 4, gpu_weigh_args)                                                      \
    GPU_K(unlike_unit, 128, 4, gpu_weigh_args)                                                     \
    GPU_K(unlike_part, 128, 8, gpu_weigh_args)                                                     \
    GPU_K(unlike_all, 128, 8, gpu_weigh_args)                                                      \
    GPU_K(unlike_mean, 256, 4, gpu_weigh_args)                                                     \
    GPU_K(unlike_last, 256, 2, gpu_weigh_args)                                                     \
    GPU_K(unlike_drop, 256, 4, gpu_weigh_args)                                                     \
    GPU_K(unlike_score, 256, 4, gpu_weigh_args)                                                    \
    GPU_K(expect_query, 128, 4, gpu_weigh_args)                                                    \
    GPU_K(expect_logit, 128, 4, gpu_weigh_args)                                                    \
    GPU_K(expect_norm, 128, 4, gpu_weigh_args)                                                     \
    GPU_K(expect_down, 256, 4, gpu_weigh_args)                                                     \
    GPU_K(expect_score, 256, 4, gpu_weigh_args)                                                    \
    GPU_K(weigh_sums, 256, 4, gpu_weigh_args)                                                      \
    GPU_K(weigh_spread, 128, 4, gpu_weigh_args)                                                    \
    GPU_K(weigh_fold, 256, 4, gpu_weigh_args)                                                      \
    GPU_K(weigh_finish, 256, 4, gpu_weigh_args)                                                    \
    GPU_K(choose_best, 1024, 1, gpu_choose_args)                                                   \
    GPU_K(all_count, 256, 4, gpu_choose_args)                                                      \
    GPU_K(all_digit, 1024, 1, gpu_choose_args)                                                     \
    GPU_K(all_above, 256, 4, gpu_choose_args)                                                      \
    GPU_K(compact_list, 128, 4, gpu_compact_args)                                                  \
    GPU_K(compact_2, 256, 4, gpu_compact_args)                                                     \
    GPU_K(compact_4, 256, 4, gpu_compact_args)                                                     \
    GPU_K(compact_16, 256, 4, gpu_compact_args)                                                    \
    GPU_K(pick_head, 1024, 1, gpu_pick_args)                                                       \
    GPU_K(pick_join, 128, 4, gpu_pick_args)                                                        \
    GPU_K(pick_large, 128, 4, gpu_pick_args)                                                       \
    GPU_K(pick_dims, 128, 4, gpu_pick_args)                                                        \
    GPU_K(soft_parts, 128, 4, gpu_score_args)                                                      \
    GPU_K(soft_rows, 128, 4, gpu_score_args)                                                       \
    GPU_K(soft_take, 128, 4, gpu_score_args)                                                       \
    GPU_K(soft_pool, 128, 4, gpu_score_args)                                                       \
    GPU_K(asked, 128, 4, gpu_asked_args)                                                           \
    GPU_K(unite_clear, 256, 4, gpu_chosen_args)                                                    \
    GPU_K(unite_rank, 256, 4, gpu_chosen_args)                                                     \
    GPU_K(share_of, 128, 4, gpu_chosen_args)                                                       \
    GPU_K(blend, 128, 4, gpu_chosen_args)                                                          \
    GPU_K(score_vectors, 128, 4, gpu_score_args)                                                   \
    GPU_K(score_page, 128, 4, gpu_score_args)                                                      \
    GPU_K(score_bounds, 128, 4, gpu_score_args)                                                    \
    GPU_K(apart, 128, 4, gpu_apart_args)                                                           \
    GPU_K(index_entries, 128, 4, gpu_index_args)                                                   \
    GPU_K(index_pages, 128, 4, gpu_index_args)                                                     \
    GPU_K(read_all, 256, 8, gpu_read_args)                                                         \
    GPU_K(best_rows, 1024, 1, gpu_best_args)
#define GPU_GROUP_ATTENTION                                                                        \
    GPU_K(attend_refs, 128, 4, gpu_attend_args)                                                    \
    GPU_K(attend_queries, 128, 4, gpu_attend_args)                                                 \
    GPU_FEW_FORMS(GPU_KERNELS_FEW)                                                                 \
    GPU_K(attend_decode_64, 32, 12, gpu_attend_args)                                               \
    GPU_K(attend_decode_128, 32, 12, gpu_attend_args)                                              \
    GPU_K(attend_decode_256, 32, 6, gpu_attend_args)                                               \
    GPU_K(attend_copy, 128, 8, gpu_gather_args)                                                    \
    GPU_K(attend_many_64_f16, 128, 2, gpu_attend_args)                                             \
    GPU_K(attend_many_128_f16, 128, 2, gpu_attend_args)                                            \
    GPU_K(attend_many_128_codes, 128, 2, gpu_attend_args)                                          \
    GPU_K(attend_many_256_f16, 128, 2, gpu_attend_args)                                            \
    GPU_K(attend_many_128_f16_1, 256, 1, gpu_attend_args)                                          \
    GPU_K(attend_many_128_codes_1, 256, 1, gpu_attend_args)                                        \
    GPU_K(attend_wgmma_f16, 384, 1, gpu_attend_args)                                               \
    GPU_K(attend_wgmma_f16_rows, 384, 1, gpu_attend_args)                                          \
    GPU_K(attend_wgmma_codes, 384, 1, gpu_attend_args)                                             \
    GPU_K(attend_wide_128, 256, 2, gpu_attend_args)                                                \
    GPU_K(attend_wide_256, 256, 2, gpu_attend_args)                                                \
    GPU_K(attend_wide_512, 256, 2, gpu_attend_args)                                                \
    GPU_K(attend_tall_32, 256, 1, gpu_attend_args)                                                 \
    GPU_K(attend_tall_64, 256, 1, gpu_attend_args)                                                 \
    GPU_K(attend_part_4, 128, 2, gpu_attend_args)                                                  \
    GPU_K(attend_part_8, 128, 2, gpu_attend_args)                                                  \
    GPU_K(attend_part_16, 128, 1, gpu_attend_args)                                                 \
    GPU_K(attend_join, 128, 4, gpu_attend_args)
#define GPU_GROUP_STEP GPU_K_WAITS(step, GPU_STEP_THREADS, 1, gpu_step_args)
#define GPU_GROUPS(X)                                                                              \
    X(products_few, GPU_GROUP_FEW)                                                                 \
    X(products_64, GPU_GROUP_64)                                                                   \
    X(products_128, GPU_GROUP_128)                                                                 \
    X(products_wgmma, GPU_GROUP_WGMMA)                                                             \
    X(rows, GPU_GROUP_ROWS)                                                                        \
    X(attention, GPU_GROUP_ATTENTION)                                                              \
    X(step, GPU_GROUP_STEP)
#define GPU_OF_GROUP(name, kernels) kernels
#define GPU_KERNELS GPU_GROUPS(GPU_OF_GROUP)

enum { GPU_STEP_THREADS = 544 /* 16 warps at work, one that fetches */ };

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
 * out[t * out_stride + row] = scale * x_scale[t] * (w x[t]) for the rows of up to three matrices of
 * one type and one input. A matrix may have slabs that lie one behind the other. blockIdx.z counts
 * them. A slab's tokens begin x_first tokens after the first one of the slab before, its output
 * out_step floats after. With experts slab z is expert busy[z], z < *n_busy, of rows first[e] ..
 * first[e + 1], whose activations begin at token padded[e].
 */
enum { GPU_MATRICES = 3, GPU_WGMMA_STAGES = 6 /* 64 columns of activations, of mul_wgmma */ };
struct gpu_matrix {
    gpu_at w; /* packed (matmul.cuh), of F32 [n_row][n_col] */
    gpu_at out;
    uint64_t slab_bytes, out_stride, out_step;
    int32_t n_row;
    int32_t tile0; /* blockIdx.x of its first rows; past the grid's end: there is no such matrix */
    int32_t row0;  /* number of its first row among all matrices' */
    float scale;
};
struct gpu_mul_args {
    struct gpu_matrix m[GPU_MATRICES];
    gpu_at x;       /* f16 in matrices of 8 tokens x 8 columns; of F32 f32 [n_tok][n_col] */
    gpu_at x_scale; /* f32 [token]; none: of F32 */
    gpu_at first, padded, busy, n_busy; /* int32; none: no experts */
    gpu_at part; /* f32 [n_block][n_tok][n_all] stretches, where columns are split */
    int32_t n_block, n_tok, x_first;
    int32_t n_col;  /* of F32 */
    int32_t n_all;  /* rows of all matrices */
    int32_t n_side; /* eights of tokens that lie side by side (matmul.cuh) */
};

/* Where a kernel leaves a row's packed form; out none: nowhere. */
struct gpu_packed {
    gpu_at out, x_scale; /* f16 in matrices of 8 x 8; f32 [row] */
    int32_t n_block, n_side;
};

/* Rows of f32 to f16 in matrices of 8 x 8. Each is multiplied by the power of two that makes its
   largest value at least 2^13 and less than 2^14. x_scale [row] gets that power's inverse. Columns
   up to n_block * 256 are zeros. Slabs as gpu_mul_args has them: z is the slab, whose rows begin at
   z * n_tok of x. A block has a row: blockIdx.x of slab blockIdx.y or, with experts, of all of
   them. */
struct gpu_pack_args {
    gpu_at x;
    gpu_at first, padded, busy, n_busy;
    struct gpu_packed packed;
    int32_t n_col, n_tok, x_first, unused;
};

/* ---- rows ---- */

/* Embeddings, and the cosines and sines of up to two rotations. */
enum { GPU_ROW_BF16 = GPU_WEIGHT_F32 + 1 };
struct gpu_embed_args {
    gpu_at rows;           /* as a file has them, [n_row][row_bytes] */
    gpu_at pos, x;         /* int32 [n_row]; f32 [n_row][n] */
    gpu_at freq[2], cs[2]; /* f64 [n_pair]; f32 [n_row][n_pair][2] */
    int32_t n_pair[2];
    float magnitude[2];
    int32_t type, block_len, block_bytes, row_bytes, n;
    float scale; /* of embeddings */
};

/* x += post_norm(h + bias), then out = norm(x) or, with an index, norm(x[index]). */
struct gpu_between_args {
    gpu_at x, h, bias, post_norm, norm, index, out;
    struct gpu_packed packed; /* of out */
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
    struct gpu_packed packed; /* of x */
    int32_t n, n_head, dim;
};

struct gpu_gate_args {
    gpu_at gate, up;
    struct gpu_packed packed; /* of gate */
    int32_t fn, n;            /* enum pi_gate_act */
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

/* A page of a lane: entries as written that are read `delta` positions later. */
struct gpu_attend_ref {
    int32_t page, n, delta;
    float log_count; /* ln of how often an entry counts */
};
struct gpu_attend_list {
    gpu_at refs;
    int32_t n, last_n; /* last_n: entries of the last page */
};
struct gpu_attend_entry {
    gpu_at page;
    int32_t slot, pos;
};
enum { GPU_ATTEND_STAGES = 4 /* pages of attend_wgmma in shared memory */ };
/* A call of attention. Its pages are the guests' and its own. Pages [first, end) are read, which
   hold what some row sees. Of these the first n_low and those from `high` on have positions. */
struct gpu_attend_job {
    gpu_at q, out;  /* query (t, g) at q + t * q_stride + g * dim_k, likewise out */
    gpu_at packed;  /* f16 [n_variant][n_row up to 16s][dim_k up to 16s], in the order of slots */
    gpu_at scale;   /* f32 [n_variant][n_row up to 16s] what their products are multiplied by */
    gpu_at turn;    /* f32 [n_variant][n_pair][2] of rotations of variants from 1 on */
    gpu_at delta;   /* int32 [n_variant] whose variant is which */
    gpu_at sink;    /* f32 [n_group] or none */
    gpu_at pos;     /* int32 [page][64] */
    gpu_at chunks;  /* int32 [n_chunk + 1] pages where chunks begin; none: by chunk_first */
    gpu_at entries; /* own pages are gathered of these: `page` is the first; none: they are not */
    struct gpu_attend_list guests, own;
    uint64_t q_stride, out_stride, part0; /* part0: rows of sums before its own */
    int32_t n_tok, n_group, pos0, n_variant;
    int32_t first, end, n_low, high;
    int32_t chunk0, n_chunk; /* the number of the first chunk */
    int32_t per;             /* pages of the store that are one here */
    int32_t ordered;         /* positions ascend */
    int32_t token0;          /* its first token's row of outputs, where these are packed */
    int32_t copy0;           /* where its pages are copied: the first one */
    /* Of a call whose weights are looked at, else none. f32 [rows][logits_stride] exponents of 2 of
       its own pages, page_len a page; and f32 [rows][2], maximum and sum of each row. */
    gpu_at logits, ml;
    uint64_t logits_stride;
};
/* Entries that a call reads of its lane: listed, or chosen on the device (struct
   kv_attend_chosen). */
struct gpu_gather_job {
    gpu_at
        entries; /* struct gpu_attend_entry [n]: given, or of chosen ones written by gather_list */
    gpu_at chosen; /* int32 [n_chosen]; none: entries are given */
    gpu_at guests, refs; /* struct gpu_attend_ref of the guests' pages and the lane's */
    gpu_at tiles;        /* struct gpu_attend_ref [n_tile]: `page` is the first entry */
    gpu_at pos; /* int32 [n_tile - high][64] of chosen ones; before, all queries see them */
    int32_t n, n_guest, n_tile, n_first, n_chosen, n_last, end, high; /* n: with n_guest guests */
    int32_t first, unused; /* first: page of the room */
};
struct gpu_gather_args {
    gpu_at jobs, pool;
    gpu_at to, refs; /* pages of f16, and their references */
    uint64_t stride, to_stride;
    int32_t page_len, most_tile, most, order; /* order: of dimensions of keys, in a copy */
    struct gpu_part k, v;
    int32_t to_k, to_v; /* dimensions there, the last ones zeros; to_v 0: values are in keys */
    int32_t beside, unused; /* beside: keys lie side by side there */
};
enum gpu_attend_order { GPU_ORDER_PLAIN, GPU_ORDER_BYTES, GPU_ORDER_BITS };
/* References on their way to a lane's list. */
struct gpu_attend_patch {
    gpu_at to, from;
    int32_t n, unused;
};
struct gpu_attend_args {
    gpu_at jobs, patches, pool;
    gpu_at o, ml;                     /* f32 [row of sums][row_v], [row of sums][2] */
    uint64_t stride;                  /* bytes from one page to the next */
    int32_t page_len, window, v_in_k; /* v_in_k: values are keys' dimensions from there on, or -1 */
    int32_t dim_k, dim_v, n_pair, adjacent;
    int32_t order;             /* of dimensions of queries and keys, enum gpu_attend_order */
    float factor, cap, cap_by; /* factor: of q.k; cap_by: 1 / (cap log2 e) */
    /* where calls make whole rows [token][n_col] and these are packed; packed.out 0: they are
       not */
    struct gpu_packed packed;
    gpu_at rows, count; /* f32; uint32 [token] zeros, which are left so */
    int32_t n_col, n_head;
    struct gpu_part k, v;
    int32_t row_k, row_v; /* of a packed query and a sum: dim_k and dim_v up to 16s, or a copy's */
    int32_t n_room; /* of attend_wide and others: pages of values that a block has room for. Of 0
                       they take the keys' room by turns */
    int32_t is_in_keys; /* values are parts of keys, also where v_in_k is -1 */
    int32_t n_query;    /* of attend_tall: sixteens of a query's dimensions in shared memory */
    int32_t is_joined;  /* of attend_tall: chunks are joined, part0 has a row for each row */
};

/* ---- notes of weights ---- */

/* kv/note.h's words. Arrays of marks are where the lane's marks are. */
struct gpu_note_word {
    gpu_at to;        /* f32 [rows][stride] */
    gpu_at norm;      /* uint16 bf16 [entries] of NORM */
    gpu_at scale;     /* f32 [tokens of the call] of MOST, or none */
    gpu_at log_scale; /* f32, of NORM, or none */
    gpu_at sums; /* of BEFORE f32 [tokens][group][2] maximum and sum, of TOGETHER [tokens][2] */
    uint64_t stride;
    int32_t word, group, from, n, window, newest;
    float threshold;
    int32_t unused;
};
/* A call of attention. Its logits are of places: page * page_len + entry. Pages outside of
   [first, end) were not read. */
struct gpu_note_call {
    gpu_at words, logits, ml;
    uint64_t stride;
    int32_t n_word, n_tok, pos0, n_later, first, end;
};
/* Calls of one lane, in order. */
struct gpu_note_lane {
    gpu_at calls;
    gpu_at pages; /* int32 [n_page][2] slot of the first entry, entries; none: places are slots */
    int32_t n_call, n_group, len, page_len, n_page, unused;
};
struct gpu_note_args {
    gpu_at lanes;
    int32_t n_block, unused; /* of note_sums, which rows go round */
};
/* Rows of a call as the host sees them, f32 [rows][row_stride]; none: not wanted. */
struct gpu_note_rows_args {
    struct gpu_note_call call;
    struct gpu_note_lane lane;
    gpu_at weight, logit;
    uint64_t row_stride;
};

/* Scores of a lane, by slot: times the norm, or divided by how many saw the entry; none: alone. */
struct gpu_victim_row {
    gpu_at score, seen, norm; /* f32, f32, bf16 */
};
/* Lanes of which one entry goes (kv/victim.h). */
struct gpu_victim {
    gpu_at rows;  /* struct gpu_victim_row [n_row] */
    gpu_at place; /* int32 [n] 1 + position */
    gpu_at out;   /* int32 */
    int32_t n_row, n, lo, hi, n_sink, mean;
};
struct gpu_victim_args {
    gpu_at victims;
};

/* Rows that are remembered (kv/learn.h). */
struct gpu_learn_job {
    gpu_at from, to; /* f32; of pairs `to` is f64 */
    int32_t n_tok, n, pos, n_ring;
    int32_t dim, square, begins; /* of moments and pairs: of a part of the row */
    int32_t n_pair, n_flat, adjacent;
};
struct gpu_learn_args {
    gpu_at jobs;
};
/* The mark of new entries of a lane. Token t's, but the first one's, is number behind + t. */
struct gpu_predict_job {
    gpu_at mark, k, v, h;             /* f32 */
    gpu_at weight, low, high, neuron; /* as kv/learn.h has them */
    gpu_at out;                       /* f32 [n_tok][n_neuron] what neurons give */
    uint64_t k_stride, v_stride;
    int32_t n_tok, slot, behind, n, dim_v, n_neuron;
    int32_t first; /* its neurons are made, and serve the jobs behind it */
    int32_t unused;
};
struct gpu_predict_args {
    gpu_at jobs;
    int32_t kind, unused;
};
enum { GPU_PREDICT_TOKENS = 8 /* that meet a neuron at once */ };

/* A lane whose marks change. marks_clear: n new entries from slot on, the first at position
   `first`. marks_keep: slots slot .. + n get the entries of the slots that source has from `first`
   on. */
struct gpu_marks_lane {
    gpu_at marks; /* kv_lane.marks */
    uint64_t row; /* bytes */
    int32_t slot, n, first, unused;
};
struct gpu_marks_run {
    int32_t to, from, n; /* to: in source */
};
struct gpu_marks_args {
    gpu_at lanes, runs, source;
    int32_t n_run, n_mark, norms, places; /* places: the last mark is 1 + the position */
};

/* ---- single entries ---- */

/* A key or a value on its way to a place of a page. */
struct gpu_entry_row {
    gpu_at page, from; /* from: bytes as stored or floats, or a page of another lane */
    gpu_at shift;      /* f32 [dim] added to a key of another lane, or none */
    int32_t slot, from_slot, value, encode, of_host, unused;
};
struct gpu_entry_args {
    gpu_at rows;
    int32_t page_len, from_len;
    struct gpu_part part[2];
};

/* A page of a lane whose values are summed: where its sum is, and whether it is made. */
struct gpu_value_page {
    gpu_at page, sum;
    int32_t n, makes;
};
struct gpu_value_args {
    gpu_at pages, out;
    int32_t page_len, n_entry, n_page, unused;
    struct gpu_part part;
};

/* Places of two entries that are compared. */
struct gpu_apart_pair {
    gpu_at page[2];
    int32_t slot[2], turned, unused;
};
struct gpu_apart_args {
    gpu_at pairs; /* [job][n] */
    gpu_at turn;  /* f32 [n_pair][2] */
    gpu_at out;   /* f64 [job][n][3]: keys, values, both */
    int32_t page_len, n, n_pair, adjacent;
    float by; /* what squares of turned dimensions are multiplied by */
    int32_t unused;
    struct gpu_part k, value;
};

/* ---- a round ---- */

/* A page of a lane that is weighed, and how its keys are turned, f32 [n_pair][2] or none. */
struct gpu_weigh_page {
    gpu_at page, turn;
    int32_t slot, n; /* of its first entry, and how many they are */
};
/* A lane. Its vectors are counted: of row 0 first. They stand in fours of GPU_WEIGH_LEN floats. For
   each pair these are four weights of each dimension and of the modulus. Then come four weights of
   each dimension without a pair. */
struct gpu_weigh_lane {
    gpu_at pages; /* struct gpu_weigh_page */
    gpu_at
        w; /* f32 [vectors up to 4s / 4][GPU_WEIGH_LEN]; of VOTES, UNLIKE, EXPECTED their struct */
    gpu_at pos; /* int32 [n]: keys are turned back to position 0; none: they are not */
    gpu_at raw; /* f32 [vectors][n], what each vector scores */
    gpu_at sum; /* f64 [rows][chunks of GPU_WEIGH_CHUNK][2]; of APART f32 [parts of pages][dim] */
    gpu_at
        spread; /* f64 [rows][2] mean, and 1 / deviation; of APART f32 [dim + 1], and its length */
    gpu_at marks; /* kv_lane.marks, of kinds that look at them */
    uint64_t row; /* bytes */
    int32_t n_page, n_vector, n, n_row;
    int32_t begin, end; /* slots that may go */
    int32_t standard;   /* rows are standardised over those */
    int32_t mapped;     /* scores are slope * score + intercept */
    float slope, intercept, sign;
    float now; /* of gaps */
    int32_t code, n_mark;
};
/* Of VOTES. */
struct gpu_weigh_votes {
    gpu_at vote; /* f32 [n_group][n] sums of weights */
    gpu_at all;  /* f32 [n] of the group, before pooling */
    int32_t n_group, group, largest, kernel, n_before;
    float by; /* what sums are multiplied by */
};
/* Of UNLIKE: what is behind votes. */
struct gpu_weigh_unlike {
    struct gpu_weigh_votes votes;
    gpu_at unit;   /* f32 [n][dim] keys by their length */
    gpu_at part;   /* f64 [n / GPU_UNLIKE_PART][dim] sums of them */
    gpu_at all;    /* f64 [dim] */
    gpu_at mean;   /* f64 [n] sums of cosines, then of those that count */
    gpu_at last;   /* int32 [n] the last like entry of each; -1: none */
    gpu_at cosine; /* f32 [n] with that, or with the oldest */
    double lambda;
    float threshold;
    int32_t drops, quirk, unused;
};
enum { GPU_UNLIKE_PART = 512, GPU_UNLIKE_TILE = 64 };
/* Of EXPECTED. */
struct gpu_weigh_expected {
    gpu_at moments;      /* f32 [n_group][..] as kv/learn.h has them */
    gpu_at turn;         /* f64 [n_pair][2] */
    gpu_at mean, spread; /* f32 [n_group][dim], [n_group][dim][dim] of rotated queries */
    gpu_at logit;        /* f32 [n_group][n] */
    gpu_at norm;         /* f64 [n] lengths of values; 0: they do not count */
    gpu_at down;         /* f64 [n_group] logarithms of sums */
    int64_t count;
    double epsilon;
    float scale;
    int32_t n_group, square, sum, share, unused;
};
#define GPU_WEIGH_LEN(n_pair, dim) (12 * (n_pair) + 4 * ((dim)-2 * (n_pair)))
enum { GPU_WEIGH_CHUNK = 2048 };
/* The scores of a set's lanes, as one. */
struct gpu_weigh_set {
    gpu_at score; /* f32 [end], of which [begin, end) count */
    int32_t begin, end;
    int32_t lane, n_lane; /* of this call, one behind the other */
    int32_t n_before;     /* lanes of earlier calls */
    int32_t mean;         /* else the largest */
    float unknown;
    int32_t unused;
};
struct gpu_weigh_args {
    gpu_at lanes, sets;
    gpu_at turn; /* f32 [GPU_TURN_LOW + ..][n_pair][2] of positions 0, 1, .. and of first_high + 0,
                    GPU_TURN_LOW, .. : what keys are turned back by */
    int32_t first_high;
    int32_t kind, page_len, n_pair, adjacent;
    int32_t n_entry; /* of a page that a block takes at once */
    int32_t n_set;
    struct gpu_part part;
    struct gpu_part value; /* of EXPECTED */
};
enum { GPU_TURN_LOW = 256 };

/* A choice: kv_choose_job. A part's share of its own is taken first, at last one of all. */
struct gpu_choose_part {
    int32_t begin, end, k, unused;
};
struct gpu_choose_job {
    gpu_at score; /* f32 [n] */
    gpu_at parts, slots;
    gpu_at taken; /* uint8 [n] */
    int32_t n, k, lowest, n_part;
    gpu_at count; /* of all lanes: int32 [2] above the border, and at it */
};
struct gpu_choose_args {
    gpu_at jobs;
    gpu_at count; /* uint32 [2048] */
    gpu_at state; /* int64 left; uint32 found, known */
    int32_t n_job, shift;
};

/* ---- compaction ---- */

/* Entries that move together: from a page to the lane's goal `row`. */
struct gpu_compact_part {
    uint32_t from, row; /* the page's number; the goal's, among all of the call */
    uint8_t from_slot, to_slot, n, unused;
};
/* A lane's goals. */
struct gpu_compact_lane {
    int32_t first, n;
};
/* Elements that every entry has, in vectors of 2, 4 or 16 bytes. Vector v of entry e lies at
   at + v / per_row * row + e * element + v % per_row * width. */
struct gpu_compact_plane {
    uint32_t at, row, element, per_row, n_vector;
    int32_t beside; /* neighbours are entries, else vectors */
};
struct gpu_compact_args {
    gpu_at pool, parts, lanes;
    gpu_at goals;  /* int32 [goals] numbers of pages */
    gpu_at source; /* uint32 [goals][page_len]: page * 64 + slot + 1; 0: the place stays as it is */
    uint64_t stride;
    int32_t n_part, page_len, n_plane, unused;
    struct gpu_compact_plane plane[GPU_MOVE_PLANES];
};

/* ---- sampling ---- */

enum { GPU_BEST = 128 };

/* The best tokens of rows of logits [n], one behind the other, and copies of the rows. keep has the
   copies' addresses, out a struct of each row. */
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

/* ---- one token of a model in one launch (step.cuh) ---- */

enum {
    GPU_STEP_EMBD = 8192, /* columns of the stream at most */
    GPU_STEP_PIECES = 32  /* chunks that a block reads in a layer at most */
};

/* A matrix; w 0: there is none. */
struct gpu_step_matrix {
    gpu_at w;
    int32_t type, n_row, n_block;
    int32_t bytes;          /* of a unit of 16 rows and 256 columns */
    int32_t n_unit, n_copy; /* units of a copy, copies of 16 rows */
    float scale;
    int32_t unused;
};
enum {
    GPU_STEP_Q,
    GPU_STEP_K,
    GPU_STEP_V,
    GPU_STEP_O,
    GPU_STEP_GATE,
    GPU_STEP_UP,
    GPU_STEP_DOWN,
    GPU_STEP_MATRICES
};
/* Its lanes lie behind it, struct gpu_step_lane [n_head_kv]. */
struct gpu_step_layer {
    struct gpu_step_matrix m[GPU_STEP_MATRICES];
    gpu_at norm, ffn_norm;                             /* of the inputs of both blocks */
    gpu_at bq, bk, bv, bo, q_norm, k_norm, centre, cs; /* 0: none */
    gpu_at sink;                                       /* f32 [n_head] or none */
    gpu_at pool;                                       /* of its pages, */
    uint64_t stride;                                   /* bytes of each, */
    int32_t k_at, v_at; /* where keys [dim][64] and values [64][dim] begin, f16 */
    int32_t n_pair, adjacent;
    int32_t n_most; /* chunks of its longest lane */
    int32_t clip;   /* what append notes of a key; 1 more of a value */
    int32_t unused[2];
};
/* A lane with the entry that the launch adds to it. The token sees its pages [first, end), of the
   first one entries from `skip` on. */
struct gpu_step_lane {
    gpu_at refs;         /* struct gpu_attend_ref of all its pages */
    gpu_at chunks;       /* as gpu_attend_job has it */
    gpu_at page;         /* where the new entry goes */
    int32_t slot, index; /* in that page, which is number `index` */
    int32_t chunk;       /* has it */
    int32_t n_chunk;
    int32_t first, end, skip;
    int32_t last, last_n; /* number and entries of the lane's last page */
};
/* A chunk that a block reads. Its pages are [at, end) of all that the block reads in a layer. The
   first one is number `first` of its lane. */
struct gpu_step_piece {
    int32_t head, chunk, first, at, end;
};
struct gpu_step_args {
    struct gpu_step_matrix head;         /* to logits; w 0: there is none */
    gpu_at layers, head_norm;            /* layers: layer_size bytes each */
    gpu_at x, q, k, v, att, act, logits; /* f32 rows of the token */
    gpu_at pos;                          /* int32 */
    gpu_at o, ml; /* f32 [n_head_kv * chunks][group][dim_v], [..][group][2] */
    gpu_at tops;  /* f32 [n_layer][2] zeros: the largest magnitudes of att and act */
    gpu_at done,
        met; /* int32 [n_head_kv] zeros, and uint32: the launch leaves them as it needs them */
    gpu_at clipped; /* as gpu_append_args has it */
    int32_t n_layer, layer_size;
    int32_t n_embd, n_ff, n_head, n_head_kv, dim_k, dim_v;
    int32_t temp_len, activation; /* enum pi_gate_act */
    float temp_scale, eps, factor, cap, cap_by;
    float limit; /* of an entry's numbers */
    /* shared memory: where what begins, in bytes; the ring begins at 0 */
    int32_t n_slot, slot_size, area, parts, tile, copies, queries, weights, rows, list, sums, bars;
    int32_t part_units; /* stretches whose sums have room */
};

/* ---- reading a part ---- */

/* Of a chunk's queries those that are least like their mean: kv_score_pick. */
struct gpu_pick {
    gpu_at q;    /* f32: query (t, g) at q + t * stride + g * dim */
    gpu_at unit; /* f32 [n_group][n][dim] what each head gives; not of ALL */
    gpu_at out;  /* f32 [n][dim] their mean over heads, or all */
    uint64_t stride;
    int32_t n_tok, n_group, n, scaled; /* scaled: each is divided by its length */
    int32_t how, n_sample;             /* enum kv_pick; of MEAN, HEADS and ALL */
    float factor;
    int32_t n_dim; /* of LARGE: of a token, */
    gpu_at dims;   /* int32 [n_list] dimensions that some token has, and others up to that number */
    int32_t n_list, unused;
};
struct gpu_pick_args {
    gpu_at picks;
    int32_t dim, unused;
};

/* Where a page has the parts of its index, in bytes; ~0: not there. */
struct gpu_index_parts {
    uint32_t norm, unit, unit_scale, columns, proj, bounds, value_sum, unused;
};

/* A job of kv_score, without bounds or with. */
struct gpu_score_job {
    gpu_at pages;   /* struct gpu_weigh_page, with `turn` the vectors that meet the page; none: */
    gpu_at refs;    /* struct gpu_attend_ref of pages that are full but the last, and not turned */
    gpu_at out;     /* f32 [n] */
    gpu_at q;       /* f32 [n_q][dim] as given */
    gpu_at vectors; /* f32 [variants][n_vector][len + 1], a number of its own behind each */
    gpu_at dims;    /* int32 [len] of COLUMNS */
    gpu_at turn;    /* f32 [variants][n_pair][2]: what vectors are turned by */
    gpu_at matrix;  /* f32 [len][dim] of PROJ */
    int32_t n_page, n_q, n_vector, n_variant;
    int32_t mean;
    int32_t sure; /* slots from there on are the best */
    gpu_at parts; /* of SOFTMAX, f32 [parts of pages][n_vector][2]: the largest product, and the sum
                       of exp(product - largest); */
    gpu_at rows;  /* f32 [n_vector][2] the largest of all, and 1 / the sum; */
    gpu_at votes; /* f32 [n_vote] means that are to be pooled to `out`; none: `out` has them; */
    gpu_at order; /* int32 [n_vote] slots in the order of the text; none: they are in order; */
    gpu_at kept;  /* f32 [n_vector][n_seen] weights; none: not wanted */
    int32_t n_seen, n_per_token;                /* vectors of a token see n_seen entries, */
    int32_t grows;                              /* and of the next one this many more */
    int32_t n_vote, kernel, most, take; /* take: enum kv_score_take */
    int32_t n_all;                      /* entries that some vector sees */
};
struct gpu_score_args {
    gpu_at jobs, pool;
    uint64_t stride; /* of the pool's pages */
    int32_t kind, page_len, n_entry;  /* n_entry: of a page that a block takes at once */
    int32_t len;                      /* of a vector as keys meet it */
    int32_t n_pair, adjacent, turned; /* turned: keys are stored rotated, and vectors likewise */
    int32_t most_variant;
    int32_t unit_dim, index_dim;
    struct gpu_index_parts at;
    struct gpu_part k;
};

/* ---- choices that stay ---- */

/* kv_unite_job: list h of n_list has places [k] among scores f32 [n]. */
struct gpu_unite_job {
    gpu_at score; /* gpu_at [n_list] */
    gpu_at lists; /* int32 [n_list][k] */
    gpu_at key;   /* f32 [n] receives the least of rank * n_list + list */
    int32_t n_list, n, k, unused;
};
/* kv_share_job: weights are f32 [n_group][n]. The first n_first entries count, the listed ones
   behind, and the last n_last. */
struct gpu_share_job {
    gpu_at weight, chosen, out;
    int32_t n, n_first, n_chosen, n_last;
};
/* kv_blend_job, with pages of gpu_value_args. */
struct gpu_blend_job {
    gpu_at share, out;
    int32_t first, n_page, n, n_group;
};
struct gpu_chosen_args {
    gpu_at jobs;  /* of one kind */
    gpu_at pages; /* struct gpu_value_page, of blends */
    int32_t dim, unused;
};

/* kv_asked_job: rows of both lanes and of guests, f32 [n_vector][2] as gpu_score_job.rows. */
struct gpu_asked_job {
    gpu_at own, stored, guests; /* none: the lane has no entry */
    gpu_at centre;              /* f32 [dim]; none: nothing was taken off */
    gpu_at q;                   /* query (t, g) at q + t * stride + g * dim */
    gpu_at missed; /* f32 [n_vector] receives shares; none: `stored` becomes the largest
                                   product, and what its weights are multiplied by */
    uint64_t stride;
    int32_t n_vector, n_group;
    float factor; /* of queries */
    int32_t unused;
};
struct gpu_asked_args {
    gpu_at jobs;
    int32_t dim, unused;
};

/* ---- the index ---- */

struct gpu_index_row {
    gpu_at page;
    gpu_at norm; /* uint16: where the norm of its value goes; 0: to gpu_index_args.norms */
    int32_t slot, lane;
};
struct gpu_index_args {
    gpu_at rows;
    gpu_at norms;  /* uint16 [rows] norms of values; none: not wanted */
    gpu_at matrix; /* f32 [lane][index_dim][dim] of projections */
    int32_t page_len, unit_dim, index_dim, n_entry;
    struct gpu_index_parts at;
    struct gpu_part k, value;
};

#endif
