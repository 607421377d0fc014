/*
 * attend_gather.c - entries that calls of attention list, on their way to kernels. gather.cuh makes
 * pages of f16 of them in a room, which the kernels of frequent forms or of wide heads read. Where
 * there is no such kernel, attend.cuh reads the entries where they are, by a list. All pages of
 * calls of many rows become pages of f16, too, where their form has no kernel (attend_decode.cuh).
 *
 * Invariant: both give the same bits, and neither depends on who made the list.
 */
#include "device/gpu/attend_plan.h"

int32_t gpu_copy_dim(const struct gpu_attend_args *a)
{
    const int32_t sizes[] = {64, 128, 256}, most = (int32_t)pi_max(a->dim_k, a->dim_v);
    for (size_t i = 0; i < PI_LEN(sizes); i++)
        if (most <= sizes[i] && a->dim_k % 8 == 0 && a->dim_v % 8 == 0 && !a->is_in_keys)
            return sizes[i];
    return 0;
}

/* Dimensions of keys and values there; of values 0 where they are parts of keys. common: of a size
   that the kernels of frequent forms have. */
struct sizes {
    int32_t k, v;
    bool common;
};

static struct sizes sizes_of(const struct gpu_attend_args *a, bool own)
{
    const int32_t common = own ? 0 : gpu_copy_dim(a);
    if (common > 0)
        return (struct sizes){common, common, true};
    return (struct sizes){a->dim_k, a->is_in_keys ? 0 : a->dim_v, false};
}

static size_t page_bytes(struct sizes sizes)
{
    return (size_t)GPU_TILE * 2 * (size_t)(sizes.k + sizes.v);
}

/* Keys or values of a page of f16, `row` dimensions from one entry to the next. */
static struct gpu_part half_part(const struct gpu_part *of, int32_t dim, int32_t row, size_t at,
                                 bool beside)
{
    struct gpu_part part = {.type = KV_TYPE_F16,
                            .dim = dim,
                            .group = of->group,
                            .beside = beside,
                            .wht_scale = of->wht_scale};
    part.plane[0].at = (uint32_t)at;
    part.plane[0].row = (uint32_t)dim * 2;
    part.plane[0].pitch = (uint32_t)row * 2;
    part.plane[0].element = 2;
    return part;
}

static struct gpu_attend_args half_form(const struct gpu_attend_args *a, struct sizes to,
                                        bool beside)
{
    struct gpu_attend_args out = *a;
    out.page_len = GPU_TILE;
    out.stride = page_bytes(to);
    out.row_k = gpu_up16(to.k);
    out.row_v = to.v > 0 ? gpu_up16(to.v) : a->row_v;
    out.k = half_part(&a->k, to.k, to.k, 0, beside);
    out.v = to.v > 0 ? half_part(&a->v, to.v, to.v, (size_t)GPU_TILE * (size_t)to.k * 2, false)
                     : half_part(&a->v, a->dim_v, to.k, (size_t)pi_max(a->v_in_k, 0) * 2, false);
    return out;
}

struct gpu_attend_args gpu_gather_form(const struct gpu_attend_args *a, bool own)
{
    const struct sizes to = sizes_of(a, own);
    return half_form(a, to, to.common);
}

size_t gpu_gather_bytes(const struct gpu_plan *p)
{
    size_t tiles = (size_t)p->n_tile * sizeof(struct gpu_attend_ref);
    size_t entries = p->job->slots != NULL
                         ? (size_t)(p->n_guest + p->job->n_slot) * sizeof(struct gpu_attend_entry)
                         : 0;
    return tiles + entries + sizeof(struct gpu_gather_job) + 96;
}

/* Tiles of n entries from number `first` on, all full but the last; returns how many. */
static int32_t put_tiles(struct gpu_attend_ref *tiles, int32_t first, int32_t n)
{
    int32_t n_tile = (int32_t)pi_ceil_div(n, GPU_TILE);
    for (int32_t i = 0; i < n_tile; i++)
        tiles[i] = (struct gpu_attend_ref){first + i * GPU_TILE,
                                           (int32_t)pi_min(GPU_TILE, n - i * GPU_TILE), 0, 0.0f};
    return n_tile;
}

/* Guests, whose pages are full but the last. */
static void put_guests(const struct kv_attend_job *job, struct gpu_attend_entry *entries, int32_t n)
{
    const struct kv_lane *lane = n > 0 ? kv_lane_at(job->guests, job->layer, job->head) : NULL;
    for (int32_t i = 0; i < n; i++) {
        int32_t page = lane->table[i / lane->kind->page_len].page, slot = i % lane->kind->page_len;
        entries[i] = (struct gpu_attend_entry){gpu_page_at(lane->kind, page), slot,
                                               kv_page_pos(lane->kind, page)[slot]};
    }
}

struct gpu_gathered gpu_gather_add(struct gpu_listing *l, const struct gpu_plan *p,
                                   struct gpu_gather_job *job, struct gpu_attend_job *to)
{
    const struct kv_attend_job *of = p->job;
    struct gpu_gathered out = {0};
    *job = (struct gpu_gather_job){
        .n = p->n_guest + of->n_slot, .n_guest = p->n_guest, .n_tile = p->n_tile};
    struct gpu_attend_ref *tiles = gpu_take(l, (size_t)p->n_tile, sizeof(*tiles), &job->tiles);
    int32_t n_tile = put_tiles(tiles, 0, p->n_guest);
    if (of->slots != NULL) {
        struct gpu_attend_entry *entries =
            gpu_take(l, (size_t)job->n, sizeof(*entries), &job->entries);
        put_guests(of, entries, p->n_guest);
        gpu_plan_tiles(of, tiles + n_tile, entries + p->n_guest);
        for (; n_tile < p->n_tile; n_tile++)
            tiles[n_tile].page += p->n_guest;
        out.entries = entries;
    } else {
        put_tiles(tiles + n_tile, p->n_guest, of->n_slot);
        job->chosen = of->chosen.at.at;
        job->refs = p->lane.refs;
        job->guests = p->lane_guests.refs;
        job->n_first = of->chosen.n_first;
        job->n_chosen = of->chosen.n;
        job->n_last = of->chosen.n_last;
        job->end = of->chosen.end;
        job->high = (int32_t)pi_max(p->high - p->guests.n, 0);
    }
    to->entries = job->entries;
    to->own.refs = job->tiles;
    to->own.last_n = tiles[p->n_tile - 1].n;
    out.tiles = tiles;
    return out;
}

static struct gpu_gather_args args_of(const struct gpu_attend_args *from, struct sizes to)
{
    return (struct gpu_gather_args){.pool = from->pool,
                                    .stride = from->stride,
                                    .to_stride = page_bytes(to),
                                    .page_len = from->page_len,
                                    .to_k = to.k,
                                    .to_v = to.v,
                                    .k = from->k,
                                    .v = from->v};
}

/* Where each call's pages or entries go; false: no memory. */
static bool place(struct gpu_device *d, bool pages, struct gpu_gather_job *jobs,
                  struct gpu_attend_job *calls, int32_t n, struct gpu_gather_args *args)
{
    size_t n_tile = 0, n_entry = 0, size = args->to_stride;
    for (int32_t i = 0; i < n; i++) {
        jobs[i].first = (int32_t)n_tile;
        n_tile += (size_t)jobs[i].n_tile;
        n_entry += jobs[i].chosen != 0 ? (size_t)jobs[i].n : 0;
    }
    if (!pages && n_entry == 0)
        return true;
    size = pages ? n_tile * (size + sizeof(struct gpu_attend_ref))
                 : n_entry * sizeof(struct gpu_attend_entry);
    args->to = gpu_room(d, GPU_ROOM_GATHER, size);
    args->refs = args->to + n_tile * args->to_stride;
    n_entry = 0;
    for (int32_t i = 0; i < n; i++) {
        if (pages) {
            calls[i].entries = 0;
            calls[i].own.refs = args->refs + (size_t)jobs[i].first * sizeof(struct gpu_attend_ref);
        } else if (jobs[i].chosen != 0) {
            calls[i].entries = jobs[i].entries =
                args->to + n_entry * sizeof(struct gpu_attend_entry);
            n_entry += (size_t)jobs[i].n;
        }
    }
    return args->to != 0;
}

bool gpu_gather_place(struct gpu_device *d, const struct gpu_attend_args *from, enum gpu_way way,
                      struct gpu_gather_job *jobs, gpu_at jobs_at, struct gpu_attend_job *calls,
                      int32_t n, struct gpu_gather_args *args)
{
    const struct sizes to = sizes_of(from, gpu_is_wide(way));
    *args = args_of(from, to);
    args->jobs = jobs_at;
    args->beside = to.common;
    for (int32_t i = 0; i < n; i++) {
        args->most_tile = (int32_t)pi_max(args->most_tile, jobs[i].n_tile);
        args->most = (int32_t)pi_max(args->most, jobs[i].chosen != 0 ? jobs[i].n : 0);
    }
    return place(d, way != GPU_WAY_ANY, jobs, calls, n, args);
}

void gpu_gather_run(struct gpu_device *d, const struct gpu_gather_args *args, bool pages, int32_t n)
{
    size_t smem = GPU_TILE * (sizeof(struct gpu_attend_entry) +
                              (args->beside ? (size_t)(args->to_k + 2) * 2 : 0));
    if (pages)
        gpu_run(d, GPU_KERNEL_gather_pages, args->most_tile, n, 1, smem, args);
    else
        gpu_run(d, GPU_KERNEL_gather_list, pi_ceil_div(args->most, 128), n, 1, 0, args);
}

/* ---- copies of whole pages ---- */

struct gpu_attend_args gpu_copy_form(const struct gpu_attend_args *a)
{
    return half_form(a, sizes_of(a, false), false);
}

size_t gpu_copy_bytes(const struct gpu_attend_args *a, const struct gpu_plan *p)
{
    return (size_t)(p->end - p->first) *
           (page_bytes(sizes_of(a, false)) + sizeof(struct gpu_attend_ref));
}

bool gpu_copy_place(struct gpu_device *d, const struct gpu_attend_args *from,
                    struct gpu_attend_job *calls, struct gpu_attend_job *to, int32_t n,
                    struct gpu_gather_args *args)
{
    size_t n_page = 0;
    *args = args_of(from, sizes_of(from, false));
    args->order = from->order;
    for (int32_t i = 0; i < n; i++) {
        calls[i].copy0 = (int32_t)n_page;
        n_page += (size_t)(calls[i].end - calls[i].first);
        args->most_tile = (int32_t)pi_max(args->most_tile, calls[i].end - calls[i].first);
    }
    args->to = gpu_room(d, GPU_ROOM_GATHER,
                        n_page * (args->to_stride + sizeof(struct gpu_attend_ref)) + 1);
    args->refs = args->to + n_page * args->to_stride;
    for (int32_t i = 0; i < n; i++) {
        gpu_at refs = args->refs + (size_t)calls[i].copy0 * sizeof(struct gpu_attend_ref) -
                      (size_t)calls[i].first * sizeof(struct gpu_attend_ref);
        to[i] = calls[i];
        to[i].guests = (struct gpu_attend_list){0};
        to[i].own = (struct gpu_attend_list){.refs = refs}; /* which say how full each page is */
        to[i].per = 1;
    }
    return args->to != 0;
}
