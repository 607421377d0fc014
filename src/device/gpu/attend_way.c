/*
 * attend_way.c - the kernel of a call of attention, by the form of its pages and its number of
 * rows, and its launch. Invariant: all kernels that take a call give the same bits (attend.cuh).
 */
#include "device/gpu/attend_plan.h"

enum {
    DIM_MOST = 512,           /* of a value */
    KERNEL_SMEM = 2048 + 320, /* of a block of attend_part, beside the tiles and queries */
    WIDE_SMEM = 2560 + 512,   /* of attend_wide likewise */
    TALL_SMEM = 512 + 512     /* of attend_tall, beside pages, queries and weights */
};

/* ---- forms ---- */

/* Sizes of heads that there are fast kernels for. */
static bool is_common(int32_t dim)
{
    return dim == 64 || dim == 128 || dim == 256;
}

static bool is_bits(const struct gpu_part *p)
{
    return p->type == KV_TYPE_TURBO3 || p->type == KV_TYPE_TURBO2;
}

/* Whether attend_few.cuh has a kernel for pages of that form. Values are no parts of keys. */
static bool is_frequent(const struct gpu_part *k, const struct gpu_part *v, int32_t page_len)
{
    bool codes = k->type == KV_TYPE_Q8_0 || is_bits(k);
    return page_len == GPU_TILE && k->dim == v->dim && is_common(k->dim) &&
           (k->type == KV_TYPE_F16 || (codes && k->beside)) &&
           (v->type == KV_TYPE_F16 || v->type == KV_TYPE_Q8_0 || is_bits(v));
}

int32_t gpu_order_of(const struct gpu_part *k, const struct gpu_part *v, int32_t page_len)
{
    if (!is_frequent(k, v, page_len) || k->type == KV_TYPE_F16)
        return GPU_ORDER_PLAIN;
    return k->type == KV_TYPE_Q8_0 ? GPU_ORDER_BYTES : GPU_ORDER_BITS;
}

/* Bytes of a stored key or value. */
static size_t part_bytes(const struct gpu_part *p)
{
    return (size_t)p->plane[0].row + p->plane[1].row + p->plane[2].row;
}

/* ---- kernels, and their shared memory ---- */

/* Shared memory of attend_part, which has n rooms for values beside keys: 1, or 0. */
static size_t tile_smem(const struct gpu_attend_args *a, size_t n)
{
    size_t k = (size_t)gpu_up16(a->dim_k) * 2,
           v = a->v_in_k >= 0 ? 0 : (size_t)gpu_up16(a->dim_v) * 2;
    return GPU_ROWS * k + GPU_TILE * (n > 0 ? k + v : k > v ? k : v) + KERNEL_SMEM;
}

bool gpu_way_exists(const struct gpu_device *d, const struct gpu_attend_args *a)
{
    return a->dim_v <= DIM_MOST && tile_smem(a, 0) <= d->driver->smem_all;
}

static void part_run(struct gpu_device *d, const struct gpu_attend_args *a,
                     const struct gpu_extent *most, int32_t tiles)
{
    enum gpu_kernel kernel = a->dim_v <= 128   ? GPU_KERNEL_attend_part_4
                             : a->dim_v <= 256 ? GPU_KERNEL_attend_part_8
                                               : GPU_KERNEL_attend_part_16;
    struct gpu_attend_args own = *a;
    own.n_room = tile_smem(a, 1) <= d->driver->smem_all ? 1 : 0;
    gpu_run(d, kernel, most->chunks, most->n, tiles, tile_smem(a, (size_t)own.n_room), &own);
}

/* A kernel of attend_few.cuh for a class; GPU_N_KERNEL: there is none. */
static enum gpu_kernel few_kernel(const struct gpu_attend_args *a)
{
    bool both = a->k.type == KV_TYPE_F16 && a->v.type == KV_TYPE_F16 && a->k.beside;
    if (a->is_in_keys || !is_frequent(&a->k, &a->v, a->page_len))
        return GPU_N_KERNEL;
    if (a->k.dim == 64)
        return both ? GPU_KERNEL_attend_few_64_f16 : GPU_KERNEL_attend_few_64_mixed;
    if (a->k.dim == 256)
        return GPU_KERNEL_attend_few_256_mixed;
    if (both)
        return GPU_KERNEL_attend_few_128_f16;
    if (a->k.type == KV_TYPE_Q8_0 && a->v.type == KV_TYPE_Q8_0)
        return GPU_KERNEL_attend_few_128_q8_0;
    return a->k.type == KV_TYPE_TURBO3 && a->v.type == KV_TYPE_TURBO3
               ? GPU_KERNEL_attend_few_128_turbo3
               : GPU_KERNEL_attend_few_128_mixed;
}

/* Weights of n_row rows, and the half pages of a kernel. */
static size_t few_smem(const struct gpu_attend_args *a, int32_t n_row)
{
    size_t half = (size_t)GPU_TILE * pi_max(part_bytes(&a->k), part_bytes(&a->v));
    return (size_t)n_row * GPU_TILE * 2 + 3 * half;
}

/* A kernel of attend_decode.cuh for the head sizes of a class; GPU_N_KERNEL: there is none. */
static enum gpu_kernel decode_kernel(const struct gpu_attend_args *a)
{
    if (a->is_in_keys || a->dim_k != a->dim_v || !is_common(a->dim_k))
        return GPU_N_KERNEL;
    return a->dim_k == 64    ? GPU_KERNEL_attend_decode_64
           : a->dim_k == 128 ? GPU_KERNEL_attend_decode_128
                             : GPU_KERNEL_attend_decode_256;
}

/* Rows of a block of attend_many.cuh (many_height), and the blocks of a call. Where pages are no
   copy, the copy would be as large. */
static int32_t many_height(const struct gpu_attend_args *a)
{
    return gpu_copy_dim(a) > 128 ? 64 : 128;
}
static int64_t many_blocks(const struct gpu_attend_args *a, const struct kv_attend_job *job)
{
    return pi_ceil_div((int64_t)job->n_tok * job->n_group, many_height(a));
}

/* Shared memory of pages, with n rooms for values, or for keys that have these; and of attend_wide.
   0: keys and values apart take one room by turns. */
static size_t wide_pages(const struct gpu_attend_args *a, size_t n)
{
    size_t k = (size_t)GPU_TILE * ((size_t)gpu_up16(a->dim_k) * 2 + 16),
           v = (size_t)GPU_TILE * ((size_t)gpu_up16(a->dim_v) * 2 + 16);
    return a->v_in_k >= 0 ? n * k : n > 0 ? k + n * v : k > v ? k : v;
}

static size_t wide_smem(const struct gpu_attend_args *a, size_t n)
{
    return (size_t)GPU_ROWS * (size_t)gpu_up16(a->dim_k) * 2 + WIDE_SMEM + wide_pages(a, n);
}

/* The least rooms that attend_wide and attend_tall can have. Zeros behind dimensions stay in a
   room, so keys and values that share one have none. */
static int32_t least_rooms(const struct gpu_attend_args *a)
{
    return a->is_in_keys || a->dim_k % 16 != 0 || a->dim_v % 16 != 0 ? 1 : 0;
}

/* Whether attend_wide.cuh takes pages of that form. Parts of keys that begin or end elsewhere than
   its matrices are the general kernel's. */
static bool is_wide(const struct gpu_device *d, const struct gpu_attend_args *a)
{
    return a->order == GPU_ORDER_PLAIN && a->dim_k % 8 == 0 && a->dim_v % 8 == 0 &&
           (!a->is_in_keys || a->v_in_k >= 0) &&
           wide_smem(a, (size_t)least_rooms(a)) <= d->driver->smem_all;
}

static void wide_run(struct gpu_device *d, const struct gpu_attend_args *a,
                     const struct gpu_extent *most, int32_t tiles)
{
    enum gpu_kernel kernel = a->dim_v <= 128   ? GPU_KERNEL_attend_wide_128
                             : a->dim_v <= 256 ? GPU_KERNEL_attend_wide_256
                                               : GPU_KERNEL_attend_wide_512;
    struct gpu_attend_args own = *a;
    own.n_room = wide_smem(a, 2) <= d->driver->smem_most  ? 2
                 : wide_smem(a, 1) <= d->driver->smem_all ? 1
                                                          : 0;
    gpu_run(d, kernel, most->chunks, most->n, tiles, wide_smem(a, (size_t)own.n_room), &own);
}

/* A block of attend_tall.cuh: its rows (0: there is none), its rooms as attend_wide has them, and
   sixteens of a query's dimensions in shared memory. */
struct tall {
    int32_t height, n_room, n_query;
    size_t smem;
};

static size_t tall_smem(const struct gpu_attend_args *a, const struct tall *t)
{
    size_t query = (size_t)t->n_query * 32, weights = (size_t)GPU_TILE * 2;
    return (size_t)t->height * (query + weights) + TALL_SMEM + wide_pages(a, (size_t)t->n_room);
}

/* The block for that many rows: of 64, where there is room for all of their queries. */
static struct tall tall_of(const struct gpu_device *d, const struct gpu_attend_args *a,
                           int32_t rows)
{
    const size_t most = d->driver->smem_all;
    const int32_t all = gpu_up16(a->dim_k) / 16;
    struct tall t = {.height = 32, .n_room = 1};
    if (tall_smem(a, &t) > most)
        t.n_room = least_rooms(a);
    t.height = rows > 32 ? 64 : 32;
    t.n_query = all;
    if (tall_smem(a, &t) > most)
        t.height = 32;
    while (t.n_query > 0 && tall_smem(a, &t) > most)
        t.n_query--;
    t.n_room += t.n_room == 1;
    if (tall_smem(a, &t) > most)
        t.n_room = 1;
    t.smem = tall_smem(a, &t);
    if (t.smem > most || rows <= GPU_ROWS)
        t.height = 0;
    return t;
}

static void tall_run(struct gpu_device *d, const struct gpu_attend_args *a,
                     const struct gpu_extent *most)
{
    const struct tall t = tall_of(d, a, most->rows);
    struct gpu_attend_args own = *a;
    own.n_room = t.n_room;
    own.n_query = t.n_query;
    gpu_run(d, t.height == 64 ? GPU_KERNEL_attend_tall_64 : GPU_KERNEL_attend_tall_32,
            a->is_joined ? 1 : most->chunks, most->n, pi_ceil_div(most->rows, t.height), t.smem,
            &own);
}

/* attend_wide or attend_tall. Blocks that take all chunks should be three for four processors at
   least. */
static enum gpu_way wide_way(const struct gpu_device *d, const struct gpu_attend_args *a,
                             const struct kv_attend_job *job, int32_t n)
{
    const int32_t rows = job->n_tok * job->n_group;
    const struct tall t = tall_of(d, a, rows);
    if (t.height == 0 || gpu_is_watched(job))
        return GPU_WAY_WIDE;
    return 4 * n * pi_ceil_div(rows, t.height) >= 3 * d->card->n_processor ? GPU_WAY_TALL
                                                                           : GPU_WAY_TALL_SPLIT;
}

/* A kernel of attend_many.cuh or attend_wgmma.cuh for a form that is frequent; GPU_N_KERNEL: there
   is none. Few blocks of 128 rows take 16 rows a warp. */
static enum gpu_kernel many_kernel(const struct gpu_device *d, const struct gpu_attend_args *a,
                                   int64_t blocks)
{
    bool plain_k = a->k.type == KV_TYPE_F16, plain_v = a->v.type == KV_TYPE_F16;
    bool wide = blocks >= 2 * d->card->n_processor;
    if (!is_frequent(&a->k, &a->v, a->page_len) || plain_k != plain_v ||
        (a->k.dim != 128 && !plain_k))
        return GPU_N_KERNEL;
    if (a->k.dim != 128)
        return a->k.dim == 64 ? GPU_KERNEL_attend_many_64_f16 : GPU_KERNEL_attend_many_256_f16;
    if (d->attend_wgmma && plain_k)
        return a->k.beside ? GPU_KERNEL_attend_wgmma_f16 : GPU_KERNEL_attend_wgmma_f16_rows;
    if (d->attend_wgmma)
        return GPU_KERNEL_attend_wgmma_codes;
    if (plain_k)
        return wide ? GPU_KERNEL_attend_many_128_f16 : GPU_KERNEL_attend_many_128_f16_1;
    return wide ? GPU_KERNEL_attend_many_128_codes : GPU_KERNEL_attend_many_128_codes_1;
}

static size_t many_smem(const struct gpu_attend_args *a, enum gpu_kernel kernel)
{
    size_t k = GPU_TILE * part_bytes(&a->k), v = GPU_TILE * part_bytes(&a->v),
           tile = (size_t)GPU_TILE * (size_t)a->k.dim * 2;
    size_t pages = (a->k.dim > 128 ? 1 : 2) * (k + v) + (a->k.type != KV_TYPE_F16 ? tile : 0) +
                   (a->v.type != KV_TYPE_F16 ? tile : 0);
    bool tables =
        a->k.type != KV_TYPE_F16 && (a->k.type != KV_TYPE_Q8_0 || a->v.type != KV_TYPE_Q8_0);
    if (kernel >= GPU_KERNEL_attend_wgmma_f16 && kernel <= GPU_KERNEL_attend_wgmma_codes)
        pages = GPU_ATTEND_STAGES * (2 * tile + 16) + (a->k.type != KV_TYPE_F16 ? 2 * (k + v) : 0);
    return (size_t)many_height(a) * ((size_t)a->k.dim * 2 + 8) + pages + (tables ? 32 : 0);
}

/* ---- the way of a call ---- */

/* Blocks of many rows should be at least half as many as there are processors. */
enum gpu_way gpu_way_of(const struct gpu_device *d, const struct gpu_attend_args *a,
                        const struct gpu_plan *p, int32_t n, bool copies)
{
    const struct kv_attend_job *job = p->job;
    int64_t blocks = n * many_blocks(a, job);
    enum gpu_kernel few = few_kernel(a), decode = decode_kernel(a);
    bool one = p->is_simple && p->n_variant == 1;
    bool many = one && !gpu_is_watched(job) && job->n_tok * job->n_group > GPU_TILE_ROWS / 2 &&
                2 * blocks >= d->card->n_processor;
    bool takes_queries = job->q_stride % 4 == 0 && job->q_at.at % 16 == 0;
    if (many && few != GPU_N_KERNEL && many_kernel(d, a, blocks) != GPU_N_KERNEL)
        return GPU_WAY_MANY;
    if (gpu_is_listed(job) && p->guests.n > 0) /* pages of f16 and others */
        return GPU_WAY_ANY;
    if (many && gpu_copy_dim(a) > 0 && p->is_whole && copies && !gpu_is_listed(job))
        return GPU_WAY_COPY;
    if (one && takes_queries && few != GPU_N_KERNEL && (gpu_is_listed(job) || p->most <= 32))
        return GPU_WAY_FEW;
    if (decode != GPU_N_KERNEL)
        return GPU_WAY_DECODE;
    return is_wide(d, a) ? wide_way(d, a, job, n) : GPU_WAY_ANY;
}

void gpu_way_run(struct gpu_device *d, const struct gpu_attend_args *a, const struct gpu_plan *plan,
                 const struct gpu_extent *most)
{
    const int32_t rows = most->rows, tiles = (rows + GPU_ROWS - 1) / GPU_ROWS,
                  many = (int32_t)many_blocks(a, plan->job);
    if (plan->way == GPU_WAY_ANY)
        part_run(d, a, most, tiles);
    else if (plan->way == GPU_WAY_WIDE)
        wide_run(d, a, most, tiles);
    else if (gpu_is_wide(plan->way))
        tall_run(d, a, most);
    else if (plan->way == GPU_WAY_DECODE)
        gpu_run(d, decode_kernel(a), most->chunks, most->n, pi_ceil_div(rows, GPU_ROWS / 2),
                (size_t)GPU_TILE * (size_t)(GPU_ROWS + a->dim_k * 2), a);
    else if (plan->way == GPU_WAY_FEW && rows <= GPU_ROWS / 2)
        gpu_run(d, few_kernel(a), most->chunks, most->n, 1, few_smem(a, GPU_ROWS / 2), a);
    else if (plan->way == GPU_WAY_FEW) /* the next kernel takes 16 */
        gpu_run(d, few_kernel(a) + 1, most->chunks, most->n, tiles, few_smem(a, GPU_ROWS), a);
    else {
        enum gpu_kernel kernel = many_kernel(d, a, (int64_t)most->n * many);
        gpu_run(d, kernel, many, most->n, 1, many_smem(a, kernel), a);
    }
}
