/*
 * store.c - pages on the device: rows become entries, entries move, pages come and go. A page has
 * the processor's bytes (kv/class.h), so that a file, a swapped page and a moved entry are the same
 * on both. read.c makes their index. carry.c
 * has the operations without a kernel.
 */
#include <math.h>

#include "device/cpu/pages.h"
#include "device/gpu/host.h"

/* Kernels know the types by these numbers (store.cuh). */
static_assert(KV_TYPE_F32 == 0 && KV_TYPE_F16 == 1 && KV_TYPE_Q8_0 == 2 && KV_TYPE_Q4_0 == 3 &&
                  KV_TYPE_TURBO4 == 4 && KV_TYPE_TURBO3 == 5 && KV_TYPE_TURBO2 == 6 &&
                  KV_TYPE_BF16 == 7,
              "the numbers of storage types");
static_assert((int)GPU_N_PLANE == (int)KV_N_PLANE && (int)GPU_CODE_MAX == (int)KV_CODE_MAX,
              "planes and tables");

struct gpu_part gpu_part_of(const struct kv_class *kind, const struct kv_part *part, bool keys)
{
    struct gpu_part out = {.type = (int32_t)part->type,
                           .dim = part->dim,
                           .group = part->group,
                           .beside = keys && kind->layout.side_by_side};
    if (part->dim == 0)
        return out;
    for (int i = 0; i < KV_N_PLANE; i++) {
        const struct kv_plane *p = &part->plane[i];
        out.plane[i].at = (uint32_t)p->at;
        out.plane[i].row = (uint32_t)p->row;
        out.plane[i].element = (uint32_t)p->element;
        out.plane[i].pitch = (uint32_t)p->pitch;
    }
    const float *table = part->codec->block == 1 || part->type == KV_TYPE_Q8_0
                             ? NULL
                             : kv_codec_table(part->type, part->group);
    if (table != NULL)
        memcpy(out.table, table, sizeof(out.table));
    if (part->codec->rotated)
        out.wht_scale = (float)(1.0 / sqrt((double)part->group));
    return out;
}

/* ---- appending ---- */

/* n rows of a list become entries. */
static void run_append(struct gpu_device *d, const struct kv_class *kind, gpu_at rows, int32_t n,
                       gpu_at clipped)
{
    const struct gpu_append_args args = {
        .rows = rows,
        .clipped = clipped,
        .page_len = kind->page_len,
        .n = n,
        .limit = {kv_codec_limit(kind->type_k), kv_codec_limit(kind->type_v)},
        .part = {gpu_part_of(kind, &kind->k, true), gpu_part_of(kind, &kind->v, false)},
    };
    size_t widest = (size_t)pi_max(kind->k.dim, kind->v.dim);
    gpu_run(d, GPU_KERNEL_append, n, 1, 1, pi_align(widest, 128) + pi_align(widest / 8 + 2, 16),
            &args);
}

/* Rows of a job on their way to places of pages. */
struct row_list {
    struct gpu_device *d;
    const struct kv_append *job;
    const struct kv_lane *lane;
    struct gpu_append_row *row;
    int32_t n;
};

static void add_rows(struct row_list *l, int32_t done, const struct kv_page_ref *ref, int32_t entry,
                     int32_t n)
{
    const struct kv_class *kind = l->lane->kind;
    gpu_at page = gpu_page_at(kind, ref->page);
    gpu_touch(l->d, page, kind->layout.stride);
    for (int32_t i = 0; i < n; i++) {
        const struct kv_append *job = l->job;
        size_t row = (size_t)(done + i);
        l->row[l->n++] = (struct gpu_append_row){.from = pi_at_item(job->k, row * job->k_stride).at,
                                                 .page = page,
                                                 .slot = entry + i,
                                                 .clip = 2 * job->layer};
        if (kind->v.dim > 0)
            l->row[l->n++] =
                (struct gpu_append_row){.from = pi_at_item(job->v, row * job->v_stride).at,
                                        .page = page,
                                        .slot = entry + i,
                                        .value = 1,
                                        .clip = 2 * job->layer + 1};
    }
}

/* Where the entries of a job stand: a call for each page. */
typedef void each_fn(void *ctx, int32_t done, const struct kv_page_ref *ref, int32_t entry,
                     int32_t n, int32_t slot);

static void each_page(const struct kv_append *job, each_fn *fn, void *ctx)
{
    const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
    int32_t page_len = job->seq->cache->g.page_len, entry = job->entry;
    int32_t slot = lane->len - (job->n - job->n_over);
    if (job->n_over > 0)
        fn(ctx, 0, &lane->table[job->over_index], job->over_entry, 1, job->slot);
    for (int32_t i = job->index, done = job->n_over, n; done < job->n; i++, done += n, slot += n) {
        n = (int32_t)pi_min(job->n - done, page_len - entry);
        fn(ctx, done, &lane->table[i], entry, n, slot);
        entry = 0;
    }
}

static void list_page(void *ctx, int32_t done, const struct kv_page_ref *ref, int32_t entry,
                      int32_t n, int32_t slot)
{
    (void)slot;
    add_rows(ctx, done, ref, entry, n);
}

/* Jobs [0, n) whose lanes are of one class. */
static void append_class(struct gpu_device *d, const struct kv_append *jobs, int32_t n)
{
    const struct kv_class *kind = kv_lane_at(jobs->seq, jobs->layer, jobs->head)->kind;
    struct row_list l = {.d = d};
    int64_t n_row = 0;
    for (int32_t i = 0; i < n; i++)
        n_row += 2 * (int64_t)jobs[i].n;
    size_t size = (size_t)n_row * sizeof(*l.row);
    void *host;
    gpu_at at = n_row > 0 ? gpu_list(d, size, &host) : 0;
    if (at == 0)
        return;
    l.row = host;
    for (int32_t i = 0; i < n; i++) {
        l.job = &jobs[i];
        l.lane = kv_lane_at(jobs[i].seq, jobs[i].layer, jobs[i].head);
        each_page(&jobs[i], list_page, &l);
    }
    gpu_send(d, at, (size_t)l.n * sizeof(*l.row));
    run_append(d, kind, at, l.n, d->clipped);
}

/* Entries of jobs whose index and norms are made, and pages that are full now. */
struct follow {
    const struct kv_append *job;
    const struct kv_lane *lane;
    struct gpu_index_row *row, *full;
    int32_t n, n_full;
    const uint16_t *norms; /* of the rows, on the way back */
};

static void follow_page(void *ctx, int32_t done, const struct kv_page_ref *ref, int32_t entry,
                        int32_t n, int32_t slot)
{
    struct follow *f = ctx;
    gpu_at page = gpu_page_at(f->lane->kind, ref->page);
    (void)done;
    for (int32_t i = 0; i < n; i++)
        f->row[f->n++] = (struct gpu_index_row){page, gpu_norm_at(f->job->seq, f->lane, slot + i),
                                                entry + i, kv_lane_number(f->job->seq, f->lane)};
    if (ref->n == f->lane->kind->page_len)
        f->full[f->n_full++] = (struct gpu_index_row){.page = page};
}

static void take_norms(void *ctx, int32_t done, const struct kv_page_ref *ref, int32_t entry,
                       int32_t n, int32_t slot)
{
    struct follow *f = ctx;
    int32_t number = kv_lane_number(f->job->seq, f->lane);
    (void)done;
    (void)ref;
    (void)entry;
    memcpy(kv_norms_at(f->job->seq, (size_t)number) + slot, f->norms, (size_t)n * sizeof(uint16_t));
    f->norms += n;
}

static void each_job(struct follow *f, const struct kv_append *jobs, int32_t n, each_fn *fn)
{
    for (int32_t i = 0; i < n; i++) {
        f->job = &jobs[i];
        f->lane = kv_lane_at(jobs[i].seq, jobs[i].layer, jobs[i].head);
        each_page(&jobs[i], fn, f);
    }
}

/* The index and the norms of new entries, where the cache has them. Jobs [0, n) as append_class has
   them. */
static void follow_class(struct gpu_device *d, const struct kv_append *jobs, int32_t n)
{
    const struct kv_cache *cache = jobs->seq->cache;
    const struct kv_class *kind = kv_lane_at(jobs->seq, jobs->layer, jobs->head)->kind;
    struct follow f = {.n = 0};
    size_t n_row = 0;
    for (int32_t i = 0; i < n; i++)
        n_row += (size_t)jobs[i].n;
    size_t rows = 2 * n_row * sizeof(*f.row);
    if ((cache->g.index == 0 && !cache->value_norm) || n_row == 0 ||
        !gpu_host_room(d, (void **)&d->rows, rows + n_row * sizeof(uint16_t)))
        return;
    f.row = d->rows;
    f.full = f.row + n_row;
    bool there = pi_at_some(kv_lane_at(jobs->seq, jobs->layer, jobs->head)->marks);
    uint16_t *norms = cache->value_norm && !there ? (uint16_t *)(void *)(f.row + 2 * n_row) : NULL;
    each_job(&f, jobs, n, follow_page);
    gpu_index_rows(d, cache, kind, f.row, f.n, norms);
    gpu_index_full(d, cache, kind, f.full, f.n_full);
    f.norms = norms;
    if (norms != NULL)
        each_job(&f, jobs, n, take_norms);
}

void gpu_note_for(struct gpu_device *d, struct kv_cache *cache)
{
    if (d->noted == cache)
        return;
    gpu_fold_clipped(d);
    d->noted = cache;
    *d->clipped_host = INT32_MAX;
}

void gpu_append(struct pi_stream *s, const struct kv_append *jobs, int32_t n)
{
    (void)s;
    if (n == 0)
        return;
    struct gpu_device *d = gpu_of_lane(jobs->seq, jobs->layer, jobs->head);
    gpu_enter_pass(d);
    for (int32_t i = 0, end; i < n; i = end) {
        const struct kv_lane *lane = kv_lane_at(jobs[i].seq, jobs[i].layer, jobs[i].head);
        for (end = i + 1;
             end < n &&
             kv_lane_at(jobs[end].seq, jobs[end].layer, jobs[end].head)->kind == lane->kind;)
            end++;
        gpu_note_for(d, jobs[i].seq->cache);
        append_class(d, jobs + i, end - i);
        gpu_marks_append(d, jobs + i, end - i);
        follow_class(d, jobs + i, end - i);
    }
    gpu_leave(d);
}

void gpu_note_clipped(struct pi_device *device)
{
    struct gpu_device *d = gpu_of(device);
    gpu_enter_pass(d);
    gpu_fold_clipped(d);
    gpu_leave(d);
}

/* ---- moving ---- */

static void add_plane(struct gpu_move_args *a, size_t at, size_t row, size_t element, size_t n_row)
{
    if (element > 0 && n_row > 0)
        a->plane[a->n_plane++] = (struct gpu_move_plane){(uint32_t)at, (uint32_t)row,
                                                         (uint32_t)element, (uint32_t)n_row};
}

static void add_planes(struct gpu_move_args *a, const struct kv_class *kind,
                       const struct kv_part *part, bool beside)
{
    for (const struct kv_plane *p = part->plane; p < part->plane + KV_N_PLANE; p++)
        if (p->row > 0 && beside)
            add_plane(a, p->at, (size_t)kind->page_len * p->element, p->element,
                      p->row / p->element);
        else if (p->row > 0)
            add_plane(a, p->at, 0, p->row, 1);
}

/* The parts of the index that belong to entries. */
static void add_index(struct gpu_move_args *a, const struct kv_cache *cache,
                      const struct kv_class *kind)
{
    const struct kv_geometry *g = &cache->g;
    const struct kv_page_layout *at = &kind->layout;
    if ((g->index & KV_INDEX_NORM) != 0)
        add_plane(a, at->norm, 0, sizeof(float), 1);
    if ((g->index & KV_INDEX_UNIT8) != 0) {
        add_plane(a, at->unit, 0, kv_unit_dim(g), 1);
        add_plane(a, at->unit_scale, 0, sizeof(float), 1);
    }
    if ((g->index & KV_INDEX_PROJ) != 0)
        add_plane(a, at->proj, 0, (size_t)g->index_dim * sizeof(uint16_t), 1);
    if ((g->index & KV_INDEX_COLUMNS) != 0)
        add_plane(a, at->columns, (size_t)g->page_len * sizeof(uint16_t), sizeof(uint16_t),
                  (size_t)g->dim_k);
}

void gpu_planes_of(struct gpu_move_args *a, const struct kv_cache *cache,
                   const struct kv_class *kind)
{
    add_planes(a, kind, &kind->k, kind->layout.side_by_side);
    add_planes(a, kind, &kind->v, false);
    add_index(a, cache, kind);
}

void gpu_move(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
              const struct kv_page_part *part, int32_t n_part)
{
    struct gpu_device *d = gpu_of_class(kind);
    struct gpu_move_part parts[KV_PAGE_LEN_MAX];
    struct gpu_move_args args = {.to = gpu_page_at(kind, to), .n_part = n_part};
    assert(n_part <= KV_PAGE_LEN_MAX);
    for (int32_t i = 0; i < n_part; i++)
        parts[i] = (struct gpu_move_part){gpu_page_at(kind, part[i].from), part[i].from_slot,
                                          part[i].to_slot, part[i].n, 0};
    gpu_planes_of(&args, cache, kind);
    int64_t most = 0;
    for (int32_t i = 0; i < args.n_plane; i++)
        most = pi_max(most, (int64_t)args.plane[i].n_row * args.plane[i].element / 2);
    gpu_enter(d);
    gpu_touch_page(d, kind, to);
    void *host;
    size_t size = (size_t)n_part * sizeof(*parts);
    args.parts = gpu_list(d, size, &host);
    if (args.parts == 0) {
        gpu_leave(d);
        return;
    }
    memcpy(host, parts, size);
    gpu_send(d, args.parts, size);
    gpu_run(d, GPU_KERNEL_move, pi_ceil_div(most, 128), args.n_plane, 1, 0, &args);
    gpu_leave(d);
}

/* ---- whole pages ---- */

void gpu_copy(const struct kv_cache *cache, const struct kv_class *kind, int32_t to, int32_t from)
{
    struct gpu_device *d = gpu_of_class(kind);
    (void)cache;
    gpu_enter(d);
    gpu_touch_page(d, kind, to);
    gpu_touch_page(d, kind, from);
    d->driver->copy(d->driver, gpu_page_at(kind, to), gpu_page_at(kind, from), kind->layout.stride);
    gpu_leave(d);
}

void gpu_clear_page(const struct kv_cache *cache, const struct kv_class *kind, int32_t page)
{
    struct gpu_device *d = gpu_of_class(kind);
    (void)cache;
    gpu_enter(d);
    gpu_touch_page(d, kind, page);
    d->driver->clear(d->driver, gpu_page_at(kind, page), kind->layout.stride);
    gpu_leave(d);
}

void gpu_read_page(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                   enum kv_page_form form, uint8_t *out)
{
    struct gpu_device *d = gpu_of_class(kind);
    gpu_enter(d);
    if (gpu_stage_page(d, kind, page))
        cpu_read_page(cache, &d->stage[0].kind, 0, form, out);
    gpu_leave(d);
}

void gpu_write_page(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                    enum kv_page_form form, const uint8_t *bytes)
{
    struct gpu_device *d = gpu_of_class(kind);
    const struct kv_page_layout *is = &kind->layout;
    struct gpu_stage *s = &d->stage[0];
    gpu_at at = gpu_page_at(kind, page);
    gpu_enter(d);
    gpu_touch_page(d, kind, page);
    if (form == KV_PAGE_AS_IT_IS) {
        d->driver->put(d->driver, at, bytes, is->stored);
        d->driver->put(d->driver, at + is->stored, bytes + is->saved, is->stride - is->stored);
    } else if (gpu_stage_page(d, kind, page)) {
        cpu_write_page(cache, &s->kind, 0, form, bytes);
        d->driver->put(d->driver, at, s->page, is->stride);
    }
    gpu_leave(d);
}
