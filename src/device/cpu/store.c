/*
 * store.c - the store's operations on pages, on the processor: writing entries where the host made
 * room, copying and carrying them, and whole pages. Where bytes lie in a page is page.c's,
 * columns.c's and index.c's.
 */
#include <math.h>

#include "base/half.h"
#include "device/cpu/cpu.h"
#include "device/cpu/pages.h"
#include "tensor/finite.h"

/* ---- appending ---- */

/* Whether one of n rows has a NaN or more than its type can hold. */
static bool is_clipped(const struct kv_part *part, int32_t n, const float *rows, size_t stride)
{
    uint32_t limit = pi_bits_from_f32(kv_codec_limit(part->type));
    for (int32_t i = 0; i < n; i++)
        if (pi_max_magnitude(rows + (size_t)i * stride, part->dim) > limit)
            return true;
    return false;
}

/* Layers are written at the same time. The first layer of all is noted, in any order of threads. */
static void note_clipped(struct kv_cache *cache, int32_t which)
{
    int32_t was = atomic_load(&cache->clipped);
    while (which < was && !atomic_compare_exchange_weak(&cache->clipped, &was, which)) {
    }
}

static void note(const struct kv_append *job, const struct kv_class *kind)
{
    if (is_clipped(&kind->k, job->n, pi_cpu_floats(job->k), job->k_stride))
        note_clipped(job->seq->cache, 2 * job->layer);
    else if (is_clipped(&kind->v, job->n, pi_cpu_floats(job->v), job->v_stride))
        note_clipped(job->seq->cache, 2 * job->layer + 1);
}

/* Writes rows done .. done + n of a job to a page from a place on, and their index. */
static void write_entries(const struct kv_append *job, const struct kv_lane *lane, int32_t done,
                          const struct kv_page_ref *ref, int32_t entry, int32_t n, int32_t slot)
{
    const struct kv_cache *cache = job->seq->cache;
    const struct kv_class *kind = lane->kind;
    int32_t number = kv_lane_number(job->seq, lane);
    uint8_t *page = kv_page_at(kind, ref->page);
    kv_page_write_keys(cache, kind, page, entry, n,
                       pi_cpu_floats(job->k) + (size_t)done * job->k_stride, job->k_stride);
    if (kind->v.dim > 0)
        kv_page_write_values(cache, kind, page, entry, n,
                             pi_cpu_floats(job->v) + (size_t)done * job->v_stride, job->v_stride);
    kv_index_write(cache, kind, number, page, entry, n);
    if (ref->n == cache->g.page_len)
        kv_index_finish(cache, kind, page);
    if (cache->value_norm)
        cpu_norms(cache, kind, ref->page, entry, n, kv_norms_at(job->seq, (size_t)number) + slot);
}

static void append_one(const struct kv_append *job)
{
    const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
    int32_t page_len = job->seq->cache->g.page_len, entry = job->entry;
    int32_t slot = lane->len - (job->n - job->n_over);
    note(job, lane->kind);
    if (job->n_over > 0)
        write_entries(job, lane, 0, &lane->table[job->over_index], job->over_entry, 1, job->slot);
    for (int32_t i = job->index, done = job->n_over, n; done < job->n; i++, done += n, slot += n) {
        n = (int32_t)pi_min(job->n - done, page_len - entry);
        write_entries(job, lane, done, &lane->table[i], entry, n, slot);
        entry = 0;
    }
}

static void append_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct kv_append *jobs = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        append_one(&jobs[i]);
}

void cpu_append(struct pi_stream *stream, const struct kv_append *jobs, int32_t n)
{
    const int64_t work_per_float = 64; /* rounding takes several, awaiting a key's lines most */
    int64_t n_float = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct kv_geometry *g = &jobs[i].seq->cache->g;
        n_float += (int64_t)jobs[i].n * (g->dim_k + g->dim_v);
    }
    if (stream == NULL) {
        append_items((void *)jobs, 0, n, 0);
        return;
    }
    const struct cpu_stream *s = cpu_stream_of(stream);
    cpu_ranges(s, cpu_threads_for(s, n_float * work_per_float), n, append_items, (void *)jobs);
}

/* ---- the index of entries ---- */

void cpu_index(const struct kv_cache *cache, const struct kv_class *kind, int32_t lane,
               int32_t page, int32_t slot, int32_t n)
{
    kv_index_write(cache, kind, lane, kv_page_at(kind, page), slot, n);
}

void cpu_finish(const struct kv_cache *cache, const struct kv_class *kind, int32_t page)
{
    kv_index_finish(cache, kind, kv_page_at(kind, page));
}

/* The L1 norm of the value at a place of a page, summed in ascending order. */
static float value_norm(const struct kv_class *kind, const uint8_t *page, int32_t entry)
{
    float row[KV_CODEC_MAX], sum = 0.0f;
    for (int32_t d = 0; d < kind->value.dim; d += KV_CODEC_MAX) {
        int32_t n = (int32_t)pi_min(KV_CODEC_MAX, kind->value.dim - d);
        kv_page_read_part(&kind->value, page, entry, d, n, row);
        for (int32_t i = 0; i < n; i++)
            sum += fabsf(row[i]);
    }
    return sum;
}

void cpu_norms(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
               int32_t slot, int32_t n, uint16_t *out)
{
    (void)cache;
    for (int32_t j = 0; j < n; j++)
        out[j] = pi_bf16_from_f32(value_norm(kind, kv_page_at(kind, page), slot + j));
}

/* ---- single entries ---- */

void cpu_decode_entry(const struct kv_place *p, enum kv_side side, float *out)
{
    const uint8_t *page = kv_page_at(p->kind, p->page);
    if (side == KV_SIDE_K)
        kv_page_read_key(p->cache, p->kind, page, p->slot, out);
    else
        kv_page_read_value(p->cache, p->kind, page, p->slot, out);
}

void cpu_encode_entry(const struct kv_place *p, enum kv_side side, const float *row)
{
    uint8_t *page = kv_page_at(p->kind, p->page);
    if (side == KV_SIDE_K)
        kv_page_write_keys(p->cache, p->kind, page, p->slot, 1, row, 0);
    else
        kv_page_write_values(p->cache, p->kind, page, p->slot, 1, row, 0);
}

void cpu_get_entry(const struct kv_place *p, enum kv_side side, uint8_t *out)
{
    kv_page_get_side(p->kind, side, kv_page_at(p->kind, p->page), p->slot, out);
}

void cpu_put_entry(const struct kv_place *p, enum kv_side side, const uint8_t *bytes)
{
    kv_page_put_side(p->kind, side, kv_page_at(p->kind, p->page), p->slot, bytes);
}

/* ---- copies ---- */

#define MOST_DIM 16384 /* of a head: kv_geometry_check */

/* Elements of 2 or 4 bytes, some of them apart: strides count elements. */
static void copy_elements(const uint8_t *from, size_t from_stride, uint8_t *to, size_t to_stride,
                          size_t n, size_t size)
{
    if (size == sizeof(uint16_t)) {
        const uint16_t *a = (const uint16_t *)(const void *)from;
        uint16_t *b = (uint16_t *)(void *)to;
        for (size_t i = 0; i < n; i++)
            b[i * to_stride] = a[i * from_stride];
    } else {
        const uint32_t *a = (const uint32_t *)(const void *)from;
        uint32_t *b = (uint32_t *)(void *)to;
        for (size_t i = 0; i < n; i++)
            b[i * to_stride] = a[i * from_stride];
    }
}

/* The bytes that a plane of keys has of an entry. */
static void copy_plane(const struct kv_place *from, const struct kv_plane *a,
                       const struct kv_place *to, const struct kv_plane *b)
{
    bool beside = from->kind->layout.side_by_side, to_beside = to->kind->layout.side_by_side;
    size_t from_slot = (size_t)from->slot, to_slot = (size_t)to->slot;
    const uint8_t *in =
        kv_page_at(from->kind, from->page) + a->at + from_slot * (beside ? a->element : a->row);
    uint8_t *out =
        kv_page_at(to->kind, to->page) + b->at + to_slot * (to_beside ? b->element : b->row);
    if (a->row == 0)
        return;
    if (!beside && !to_beside)
        memcpy(out, in, a->row);
    else
        copy_elements(in, beside ? (size_t)from->kind->page_len : 1, out,
                      to_beside ? (size_t)to->kind->page_len : 1, a->row / a->element, a->element);
}

static void copy_key(const struct kv_place *from, const struct kv_place *to, const float *shift)
{
    float row[MOST_DIM];
    if (shift == NULL && from->kind->type_k == to->kind->type_k) {
        for (int32_t i = 0; i < KV_N_PLANE; i++)
            copy_plane(from, &from->kind->k.plane[i], to, &to->kind->k.plane[i]);
        return;
    }
    cpu_decode_entry(from, KV_SIDE_K, row);
    for (int32_t d = 0; shift != NULL && d < from->kind->k.dim; d++)
        row[d] += shift[d];
    cpu_encode_entry(to, KV_SIDE_K, row);
}

static void copy_value(const struct kv_place *from, const struct kv_place *to)
{
    float row[MOST_DIM];
    if (from->kind->type_v == to->kind->type_v) {
        for (int32_t i = 0; i < KV_N_PLANE; i++) {
            const struct kv_plane *a = &from->kind->v.plane[i], *b = &to->kind->v.plane[i];
            memcpy(kv_page_at(to->kind, to->page) + b->at + (size_t)to->slot * b->row,
                   kv_page_at(from->kind, from->page) + a->at + (size_t)from->slot * a->row,
                   a->row);
        }
        return;
    }
    cpu_decode_entry(from, KV_SIDE_V, row);
    cpu_encode_entry(to, KV_SIDE_V, row);
}

enum {
    TURN_BYTES = 1 << 15, /* of a page's keys that are turned on the stack: f16 of 256 dimensions */
    TURN_FROM = 16,       /* entries of a page from which on that is faster than picking them */
};

/* The key of an entry from all keys of its page, which stand entry by entry there. */
static void take_turned(const struct kv_place *from, const uint8_t *turned,
                        const struct kv_place *to)
{
    uint8_t *page = kv_page_at(to->kind, to->page);
    for (int32_t p = 0; p < KV_N_PLANE; p++) {
        const struct kv_plane *x = &from->kind->k.plane[p], *y = &to->kind->k.plane[p];
        memcpy(page + y->at + (size_t)to->slot * y->row,
               turned + x->at + (size_t)from->slot * x->row, x->row);
    }
}

/* Keys that lie side by side are turned once, where many of a page are copied. */
static bool turns(const struct kv_copy *c, const struct kv_class *a, const struct kv_class *b,
                  int32_t n)
{
    return a->layout.side_by_side && !b->layout.side_by_side && a->type_k == b->type_k &&
           a->layout.v <= TURN_BYTES && c->shift == NULL && n >= TURN_FROM;
}

void cpu_fill(const struct kv_copy *c, const int32_t *slots, int32_t n, int32_t to_slot)
{
    const struct kv_lane *from = kv_lane_at(c->from, c->from_layer, c->from_head);
    const struct kv_lane *to = kv_lane_at(c->to, c->to_layer, c->to_head);
    uint64_t turned[TURN_BYTES / sizeof(uint64_t)];
    struct kv_place a = kv_place_of(c->from, from, slots[0]);
    int32_t begin = slots[0] - a.slot;
    bool turn = turns(c, from->kind, to->kind, n);
    if (turn)
        kv_columns_to_rows(a.cache, a.kind, kv_page_at(a.kind, a.page), (uint8_t *)turned);
    for (int32_t i = 0; i < n; i++) {
        const struct kv_place b = kv_place_of(c->to, to, to_slot + i);
        a.slot = slots[i] - begin;
        if (turn)
            take_turned(&a, (const uint8_t *)turned, &b);
        else
            copy_key(&a, &b, c->shift);
        copy_value(&a, &b);
        cpu_index(b.cache, b.kind, b.lane, b.page, b.slot, 1);
    }
}

/* ---- whole pages ---- */

void cpu_copy(const struct kv_cache *cache, const struct kv_class *kind, int32_t to, int32_t from)
{
    (void)cache;
    memcpy(kv_page_at(kind, to), kv_page_at(kind, from), kind->layout.stride);
}

void cpu_clear_page(const struct kv_cache *cache, const struct kv_class *kind, int32_t page)
{
    (void)cache;
    memset(kv_page_at(kind, page), 0, kind->layout.stride);
}

void cpu_read_page(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                   enum kv_page_form form, uint8_t *out)
{
    const struct kv_page_layout *at = &kind->layout;
    const uint8_t *from = kv_page_at(kind, page);
    memcpy(out, from, at->stored);
    if (form == KV_PAGE_AS_IT_IS)
        memcpy(out + at->saved, from + at->stored, at->stride - at->stored);
    else if (at->side_by_side)
        kv_columns_to_rows(cache, kind, from, out);
}

void cpu_write_page(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                    enum kv_page_form form, const uint8_t *bytes)
{
    const struct kv_page_layout *at = &kind->layout;
    uint8_t *to = kv_page_at(kind, page);
    memcpy(to, bytes, at->stored);
    if (form == KV_PAGE_AS_IT_IS)
        memcpy(to + at->stored, bytes + at->saved, at->stride - at->stored);
    else if (at->side_by_side)
        kv_columns_from_rows(cache, kind, to, bytes);
}
