/*
 * product.c - products of activations with packed weights: which kernel takes them. Bits are the
 * same by any of them (matmul.cuh).
 */
#include "device/gpu/host.h"

enum {
    FEW = 8,
    ROWS_OF_BLOCK = 128,
    SLACK = 128 /* tokens that kernels may read beyond the last */
};

static size_t up8(size_t n)
{
    return pi_align(n, 8);
}

static const struct gpu_weight *weight_of(const struct pi_weight *w)
{
    return (const struct gpu_weight *)w->data.at;
}

/* ---- activations ---- */

/* Packs n_slab times n_tok rows; false: no memory. With experts they are the rows of places. */
static bool pack(struct gpu_device *d, struct gpu_pack_args *a, int64_t n_slab, size_t n_row)
{
    size_t row = (size_t)a->n_block * 256 * sizeof(uint16_t);
    a->out = gpu_room(d, GPU_ROOM_X, (n_row + SLACK) * row);
    a->x_scale = gpu_room(d, GPU_ROOM_X_SCALE, (n_row + SLACK) * sizeof(float));
    if (a->out == 0 || a->x_scale == 0)
        return false;
    gpu_run(d, GPU_KERNEL_pack_rows, 1, pi_ceil_div(a->n_tok, 8), n_slab, 256 * sizeof(float), a);
    return true;
}

/* ---- the kernel ---- */

static enum gpu_kernel kernel_of(enum gpu_kernel first, enum gpu_weight_type type)
{
    return (enum gpu_kernel)((int)first + (int)type);
}

static void run_float(struct gpu_device *d, const struct gpu_mul_args *a, int64_t n_slab)
{
    gpu_run(d, GPU_KERNEL_mul_float, pi_ceil_div(a->n_row, 8), a->n_tok, n_slab, 0, a);
}

/* Few row tiles do not fill the processors: shares of the columns do. */
static bool run_split(struct gpu_device *d, enum gpu_weight_type type, struct gpu_mul_args *a)
{
    int64_t n_tile = pi_ceil_div(a->n_row, ROWS_OF_BLOCK);
    int64_t n_share = pi_min(d->driver->n_processor / n_tile, a->n_block);
    if (n_share < 2)
        return false;
    struct gpu_join_args join = {.x_scale = a->x_scale,
                                 .out = a->out,
                                 .out_stride = a->out_stride,
                                 .n_row = a->n_row,
                                 .n_block = a->n_block,
                                 .n_tok = a->n_tok,
                                 .scale = a->scale};
    size_t n = (size_t)a->n_row * (size_t)a->n_tok;
    join.part = a->out = gpu_room(d, GPU_ROOM_PART, (size_t)a->n_block * n * sizeof(float));
    if (join.part == 0)
        return true;
    gpu_run(d, kernel_of(GPU_KERNEL_mul_split_64_Q4_K, type), n_tile, pi_ceil_div(a->n_tok, 64),
            n_share, 4 * 64 * 128, a);
    gpu_run(d, GPU_KERNEL_join_stretches, pi_ceil_div((int64_t)n, 256), 1, 1, 0, &join);
    return true;
}

/* typical: tokens of a slab, about; a->n_tok: at most. */
static void run(struct gpu_device *d, enum gpu_weight_type type, struct gpu_mul_args *a,
                int64_t n_slab, int64_t typical)
{
    size_t few = (size_t)a->n_block * 512;
    int64_t n_tile = pi_ceil_div(a->n_row, ROWS_OF_BLOCK),
            n_group = pi_ceil_div(a->n_row, PI_GROUP);
    if (typical <= FEW && few <= d->driver->smem_most)
        gpu_run(d, kernel_of(GPU_KERNEL_mul_few_1_Q4_K, type), n_group, pi_ceil_div(a->n_tok, FEW),
                n_slab, few, a);
    else if (typical <= 2 * FEW && 2 * few <= d->driver->smem_most)
        gpu_run(d, kernel_of(GPU_KERNEL_mul_few_2_Q4_K, type), n_group,
                pi_ceil_div(a->n_tok, 2 * FEW), n_slab, 2 * few, a);
    else if (typical <= 64 && n_slab == 1 && a->busy == 0 && run_split(d, type, a))
        return;
    else if (typical <= 64)
        gpu_run(d, kernel_of(GPU_KERNEL_mul_many_64_Q4_K, type), n_tile, pi_ceil_div(a->n_tok, 64),
                n_slab, 4 * 64 * 128, a);
    else
        gpu_run(
            d,
            kernel_of(d->driver->wgmma ? GPU_KERNEL_mul_wgmma_Q4_K : GPU_KERNEL_mul_many_128_Q4_K,
                      type),
            n_tile, pi_ceil_div(a->n_tok, 128), n_slab, 4 * 128 * 128, a);
}

/* A matrix's own arguments. */
static struct gpu_mul_args args_of(const struct pi_weight *w, const struct gpu_pack_args *x)
{
    const struct gpu_weight *p = weight_of(w);
    bool is_float = p->type == GPU_WEIGHT_F32;
    return (struct gpu_mul_args){
        .w = p->at,
        .x = is_float ? x->x : x->out,
        .x_scale = is_float ? 0 : x->x_scale,
        .first = x->first,
        .padded = x->padded,
        .busy = x->busy,
        .n_busy = x->n_busy,
        .slab_bytes = p->slab_bytes,
        .out_stride = (uint64_t)w->n_row,
        .n_row = (int32_t)pi_min(w->n_row, (int64_t)w->n_group * PI_GROUP),
        .n_block = p->n_block,
        .n_tok = x->n_tok,
        .x_first = is_float ? x->n_tok : x->x_first,
        .n_col = w->n_col,
        .scale = p->scale,
    };
}

/* ---- the table's ---- */

void gpu_product(struct pi_stream *s, const struct pi_product *p)
{
    struct gpu_device *d = gpu_of_stream(s);
    struct gpu_pack_args x = {.x = p->x.at, .n_col = p->w[0]->n_col, .n_tok = p->n_tok};
    bool packed = false, ok = true;
    gpu_enter(d);
    for (int32_t i = 0; i < p->n && ok && p->n_tok > 0; i++) {
        const struct gpu_weight *w = weight_of(p->w[i]);
        bool is_float = w->type == GPU_WEIGHT_F32;
        x.n_block = w->n_block;
        if (!is_float && !packed)
            packed = ok = pack(d, &x, 1, up8((size_t)p->n_tok));
        struct gpu_mul_args a = args_of(p->w[i], &x);
        a.out = p->out[i].at;
        if (ok && is_float)
            run_float(d, &a, 1);
        else if (ok)
            run(d, w->type, &a, 1, p->n_tok);
    }
    gpu_leave(d);
}

void gpu_product_heads(struct pi_stream *s, const struct pi_product_heads *p)
{
    struct gpu_device *d = gpu_of_stream(s);
    const struct gpu_weight *w = weight_of(p->w);
    size_t n_tok = up8((size_t)p->n_tok);
    struct gpu_pack_args x = {.x = p->x.at,
                              .n_col = p->w->n_col,
                              .n_block = w->n_block,
                              .n_tok = p->n_tok,
                              .x_first = (int32_t)n_tok};
    bool is_float = w->type == GPU_WEIGHT_F32;
    gpu_enter(d);
    if (p->n_tok > 0 && (is_float || pack(d, &x, p->n_head, n_tok * (size_t)p->n_head))) {
        struct gpu_mul_args a = args_of(p->w, &x);
        a.out = p->out.at;
        a.out_stride = p->stride;
        a.out_step = p->step;
        if (is_float)
            run_float(d, &a, p->n_head);
        else
            run(d, w->type, &a, p->n_head, p->n_tok);
    }
    gpu_leave(d);
}

void gpu_product_experts(struct pi_stream *s, const struct pi_product_experts *p)
{
    struct gpu_device *d = gpu_of_stream(s);
    int64_t n_busy = pi_min(p->n_expert, p->n_row);
    struct gpu_pack_args x = {.x = p->x.at,
                              .first = p->places.first.at,
                              .padded = d->padded,
                              .busy = p->places.busy.at,
                              .n_busy = p->places.n_busy.at,
                              .n_col = p->w[0]->n_col,
                              .n_tok = p->n_row};
    bool packed = false, ok = true;
    gpu_enter(d);
    for (int32_t i = 0; i < p->n && ok && p->n_row > 0; i++) {
        const struct gpu_weight *w = weight_of(p->w[i]);
        bool is_float = w->type == GPU_WEIGHT_F32;
        x.n_block = w->n_block;
        if (!is_float && !packed)
            packed = ok = pack(d, &x, n_busy, (size_t)p->n_row + 7 * (size_t)n_busy);
        struct gpu_mul_args a = args_of(p->w[i], &x);
        a.out = p->out[i].at;
        if (ok && is_float)
            run_float(d, &a, n_busy);
        else if (ok)
            run(d, w->type, &a, n_busy, pi_ceil_div(p->n_row, p->n_expert));
    }
    gpu_leave(d);
}
