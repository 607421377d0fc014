/*
 * product.c - products of activations with packed weights: which kernel takes them. Bits are the
 * same by any of them (matmul.cuh).
 */
#include "device/gpu/host.h"

enum {
    FEW = 8,
    ROWS_OF_BLOCK = 128,
    COLS_OF_BLOCK = 256,
    ROW_ROOM = 64 * sizeof(float), /* shared memory of kernels that pack rows */
    SLACK = 128                    /* tokens that kernels may read beyond the last */
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

/* Eights of tokens that lie side by side, as the kernel wants them that takes n_tok tokens. */
static int32_t side_of(const struct gpu_device *d, int64_t n_tok)
{
    return !d->driver->wgmma || n_tok <= 2 * FEW ? 1 : n_tok <= 64 ? 8 : 16;
}

/* Room for the packed form of rows; out 0: no memory. */
static struct gpu_packed packed_room(struct gpu_device *d, size_t n_row, int32_t n_col,
                                     int32_t n_side)
{
    int32_t n_block = (int32_t)pi_ceil_div(n_col, COLS_OF_BLOCK);
    size_t row = (size_t)n_block * COLS_OF_BLOCK * sizeof(uint16_t);
    struct gpu_packed to = {gpu_room(d, GPU_ROOM_X, (n_row + SLACK) * row),
                            gpu_room(d, GPU_ROOM_X_SCALE, (n_row + SLACK) * sizeof(float)), n_block,
                            n_side};
    if (to.x_scale == 0)
        to.out = 0;
    d->packed.x = 0;
    return to;
}

struct gpu_packed gpu_packs(struct gpu_device *d, gpu_at x, int64_t n_tok, int32_t n_col)
{
    struct gpu_packed to = packed_room(d, up8((size_t)n_tok), n_col, side_of(d, n_tok));
    d->packed = (struct gpu_packed_rows){to.out != 0 ? x : 0, (int32_t)n_tok, n_col};
    return to;
}

/* Packs n_slab times n_tok rows to room for n_row; false: no memory. With experts they are the rows
   of places. */
static bool pack(struct gpu_device *d, struct gpu_pack_args *a, int64_t n_slab, size_t n_row)
{
    a->packed = packed_room(d, n_row, a->n_col, 1);
    if (a->packed.out == 0)
        return false;
    gpu_run(d, GPU_KERNEL_pack_rows, a->n_tok, n_slab, 1, ROW_ROOM, a);
    return true;
}

/* Likewise n_tok plain rows, unless that is done. */
static bool pack_plain(struct gpu_device *d, struct gpu_pack_args *a)
{
    const struct gpu_packed_rows *is = &d->packed;
    int32_t n_side = side_of(d, a->n_tok);
    if (is->x == a->x && is->n_col == a->n_col && is->n_tok >= a->n_tok &&
        side_of(d, is->n_tok) == n_side) {
        a->packed = (struct gpu_packed){d->room[GPU_ROOM_X].at, d->room[GPU_ROOM_X_SCALE].at,
                                        (int32_t)pi_ceil_div(a->n_col, COLS_OF_BLOCK), n_side};
        return true;
    }
    a->packed = gpu_packs(d, a->x, a->n_tok, a->n_col);
    if (a->packed.out == 0)
        return false;
    gpu_run(d, GPU_KERNEL_pack_rows, a->n_tok, 1, 1, ROW_ROOM, a);
    return true;
}

/* Rows were written: packed ones are out of date where they meet. */
static void wrote(struct gpu_device *d, gpu_at out, size_t size)
{
    const struct gpu_packed_rows *is = &d->packed;
    size_t n = (size_t)is->n_tok * (size_t)is->n_col * sizeof(float);
    if (out < is->x + n && is->x < out + size)
        d->packed.x = 0;
}

/* ---- the kernel ---- */

static enum gpu_kernel kernel_of(enum gpu_kernel first, enum gpu_weight_type type)
{
    return (enum gpu_kernel)((int)first + (int)type);
}

/* Gives the matrices blocks of that many rows, one matrix after the other; returns their number. */
static int64_t tile(struct gpu_mul_args *a, int64_t rows)
{
    int64_t n = 0;
    for (int i = 0; i < GPU_MATRICES; i++) {
        a->m[i].tile0 = a->m[i].w != 0 ? (int32_t)n : INT32_MAX;
        n += pi_ceil_div(a->m[i].n_row, rows);
    }
    return n;
}

static void run_float(struct gpu_device *d, struct gpu_mul_args *a, int64_t n_slab)
{
    int64_t n_tile = tile(a, 8);
    gpu_run(d, GPU_KERNEL_mul_float, n_tile, a->n_tok, n_slab, 0, a);
}

/* Shared memory of products of many tokens, `wide` tokens a block. */
static size_t smem_of(const struct gpu_device *d, int wide)
{
    size_t stage = (size_t)wide * 128;
    return d->driver->wgmma ? GPU_WGMMA_STAGES * (stage + 2 * sizeof(uint64_t)) : 4 * stage;
}

/* The kernel where the device has Hopper's instructions, else the other one. */
static enum gpu_kernel many_of(const struct gpu_device *d, enum gpu_kernel wgmma,
                               enum gpu_kernel other, enum gpu_weight_type type)
{
    return kernel_of(d->driver->wgmma ? wgmma : other, type);
}

/* Few row tiles do not fill the processors: shares of the columns do. */
static bool run_split(struct gpu_device *d, enum gpu_weight_type type, struct gpu_mul_args *a)
{
    int64_t n_tile = tile(a, ROWS_OF_BLOCK);
    int64_t n_room =
        (int64_t)d->driver->n_processor * (d->driver->wgmma ? GPU_WGMMA_BLOCKS((int)type) : 1);
    int64_t n_share = pi_min(n_room / n_tile, a->n_block);
    size_t n = (size_t)a->n_all * (size_t)a->n_tok;
    if (n_share < 2)
        return false;
    a->part = gpu_room(d, GPU_ROOM_PART, (size_t)a->n_block * n * sizeof(float));
    if (a->part == 0)
        return true;
    gpu_run(d, many_of(d, GPU_KERNEL_mul_wgmma_split_Q4_K, GPU_KERNEL_mul_split_64_Q4_K, type),
            n_tile, pi_ceil_div(a->n_tok, 64), n_share, smem_of(d, 64), a);
    gpu_run(d, GPU_KERNEL_join_stretches, pi_ceil_div((int64_t)n, 256), 1, 1, 0, a);
    return true;
}

/* typical: tokens of a slab, about; a->n_tok: at most. */
static void run(struct gpu_device *d, enum gpu_weight_type type, struct gpu_mul_args *a,
                int64_t n_slab, int64_t typical)
{
    size_t few = (size_t)a->n_block * 512;
    if (typical <= 64 && typical > 2 * FEW && n_slab == 1 && a->busy == 0 && run_split(d, type, a))
        return;
    if (typical <= FEW && few <= d->driver->smem_most)
        gpu_run(d, kernel_of(GPU_KERNEL_mul_few_1_Q4_K, type), tile(a, PI_GROUP),
                pi_ceil_div(a->n_tok, FEW), n_slab, few, a);
    else if (typical <= 2 * FEW && 2 * few <= d->driver->smem_most)
        gpu_run(d, kernel_of(GPU_KERNEL_mul_few_2_Q4_K, type), tile(a, PI_GROUP),
                pi_ceil_div(a->n_tok, 2 * FEW), n_slab, 2 * few, a);
    else if (typical <= 64)
        gpu_run(d, many_of(d, GPU_KERNEL_mul_wgmma_64_Q4_K, GPU_KERNEL_mul_many_64_Q4_K, type),
                tile(a, ROWS_OF_BLOCK), pi_ceil_div(a->n_tok, 64), n_slab, smem_of(d, 64), a);
    else
        gpu_run(d, many_of(d, GPU_KERNEL_mul_wgmma_128_Q4_K, GPU_KERNEL_mul_many_128_Q4_K, type),
                tile(a, ROWS_OF_BLOCK), pi_ceil_div(a->n_tok, 128), n_slab, smem_of(d, 128), a);
}

/* The arguments that all matrices of an input share, without a matrix. */
static struct gpu_mul_args args_of(const struct pi_weight *w, const struct gpu_pack_args *x)
{
    const struct gpu_weight *p = weight_of(w);
    bool is_float = p->type == GPU_WEIGHT_F32;
    return (struct gpu_mul_args){
        .x = is_float ? x->x : x->packed.out,
        .x_scale = is_float ? 0 : x->packed.x_scale,
        .first = x->first,
        .padded = x->padded,
        .busy = x->busy,
        .n_busy = x->n_busy,
        .n_block = p->n_block,
        .n_tok = x->n_tok,
        .x_first = is_float ? x->n_tok : x->x_first,
        .n_col = w->n_col,
        .n_side = x->packed.n_side,
    };
}

static void add(struct gpu_mul_args *a, const struct pi_weight *w, struct pi_at out)
{
    const struct gpu_weight *p = weight_of(w);
    struct gpu_matrix *m = a->m;
    while (m->w != 0)
        m++;
    *m = (struct gpu_matrix){.w = p->at,
                             .out = out.at,
                             .slab_bytes = p->slab_bytes,
                             .out_stride = (uint64_t)w->n_row,
                             .n_row = (int32_t)pi_min(w->n_row, (int64_t)w->n_group * PI_GROUP),
                             .row0 = a->n_all,
                             .scale = p->scale};
    a->n_all += m->n_row;
}

/* ---- the table's ---- */

/* The matrices of one type among w [n], from number i on, which is the first of it: false, it is
   not. */
static bool gather(struct gpu_mul_args *a, const struct pi_weight *const *w,
                   const struct pi_at *out, int32_t i, int32_t n)
{
    enum gpu_weight_type type = weight_of(w[i])->type;
    for (int32_t j = 0; j < i; j++)
        if (weight_of(w[j])->type == type)
            return false;
    for (int32_t j = i; j < n; j++)
        if (weight_of(w[j])->type == type)
            add(a, w[j], out[j]);
    return true;
}

void gpu_product(struct pi_stream *s, const struct pi_product *p)
{
    struct gpu_device *d = gpu_of_stream(s);
    struct gpu_pack_args x = {.x = p->x.at, .n_col = p->w[0]->n_col, .n_tok = p->n_tok};
    bool ok = true;
    gpu_enter_product(d);
    for (int32_t i = 0; i < p->n && ok && p->n_tok > 0; i++) {
        const struct gpu_weight *w = weight_of(p->w[i]);
        bool is_float = w->type == GPU_WEIGHT_F32;
        ok = is_float || pack_plain(d, &x);
        struct gpu_mul_args a = args_of(p->w[i], &x);
        if (!ok || !gather(&a, p->w, p->out, i, p->n))
            continue;
        if (is_float)
            run_float(d, &a, 1);
        else
            run(d, w->type, &a, 1, p->n_tok);
    }
    for (int32_t i = 0; i < p->n; i++)
        wrote(d, p->out[i].at, (size_t)p->n_tok * (size_t)p->w[i]->n_row * sizeof(float));
    gpu_leave(d);
}

void gpu_product_heads(struct pi_stream *s, const struct pi_product_heads *p)
{
    struct gpu_device *d = gpu_of_stream(s);
    const struct gpu_weight *w = weight_of(p->w);
    size_t n_tok = up8((size_t)p->n_tok);
    struct gpu_pack_args x = {
        .x = p->x.at, .n_col = p->w->n_col, .n_tok = p->n_tok, .x_first = (int32_t)n_tok};
    bool is_float = w->type == GPU_WEIGHT_F32;
    gpu_enter_pass(d);
    if (p->n_tok > 0 && (is_float || pack(d, &x, p->n_head, n_tok * (size_t)p->n_head))) {
        struct gpu_mul_args a = args_of(p->w, &x);
        add(&a, p->w, p->out);
        a.m[0].out_stride = p->stride;
        a.m[0].out_step = p->step;
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
    gpu_enter_pass(d);
    for (int32_t i = 0; i < p->n && ok && p->n_row > 0; i++) {
        const struct gpu_weight *w = weight_of(p->w[i]);
        bool is_float = w->type == GPU_WEIGHT_F32;
        if (!is_float && !packed)
            packed = ok = pack(d, &x, 1, (size_t)p->n_row + 7 * (size_t)n_busy);
        struct gpu_mul_args a = args_of(p->w[i], &x);
        if (!ok || !gather(&a, p->w, p->out, i, p->n))
            continue;
        if (is_float)
            run_float(d, &a, n_busy);
        else
            run(d, w->type, &a, n_busy, pi_ceil_div(p->n_row, p->n_expert));
    }
    gpu_leave(d);
}
