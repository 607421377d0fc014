/*
 * snapshot.c - a sequence to a file and back; docs/snapshot.md describes the bytes. The caller's
 * additional data (tokens) is bytes to it. Invariant: a file appears whole or not at all. A load
 * that fails has changed nothing, not even the account's peak.
 */
#include <stdio.h>

#include "kv/snapshot.h"
#include "base/mem.h"
#include "base/new_file.h"
#include "base/os.h"
#include "file/sum.h"
#include "kv/lane_internal.h"
#include "kv/page.h"
#include "kv/pool_internal.h"
#include "kv/save.h"
#include "kv/seq.h"
#include "kv/seq_internal.h"

_Static_assert(KV_TYPE_F32 == 0 && KV_TYPE_F16 == 1 && KV_TYPE_Q8_0 == 2 && KV_TYPE_Q4_0 == 3 &&
                   KV_TYPE_TURBO4 == 4 && KV_TYPE_TURBO3 == 5 && KV_TYPE_TURBO2 == 6 &&
                   KV_TYPE_BF16 == 7,
               "the numbers of storage types are part of the file format");

static const char *const field_name[KV_SNAPSHOT_N_FIELD] = {"n_layer",  "n_head", "dim_k", "dim_v",
                                                            "page_len", "type_k", "type_v"};

void kv_snapshot_fields(const struct kv_geometry *g, int32_t out[KV_SNAPSHOT_N_FIELD])
{
    const int32_t fields[KV_SNAPSHOT_N_FIELD] = {g->n_layer,        g->n_head,   g->dim_k,
                                                 g->dim_v,          g->page_len, (int32_t)g->type_k,
                                                 (int32_t)g->type_v};
    memcpy(out, fields, sizeof(fields));
}

static bool has_edge(const struct kv_edge *edge)
{
    return edge->first > 0 || edge->last > 0;
}

static void put_edge(const struct kv_edge *edge, int32_t dim, int32_t out[3], int32_t *group)
{
    memset(out, 0, 3 * sizeof(*out));
    *group = 0;
    if (!has_edge(edge))
        return;
    out[0] = (int32_t)edge->type;
    out[1] = edge->first;
    out[2] = edge->last;
    *group = kv_type_group(edge->type, dim);
}

void kv_snapshot_edges(const struct kv_geometry *g, int32_t out[KV_SNAPSHOT_N_EDGE])
{
    int32_t dim_v = g->v_in_k > 0 ? g->dim_k : g->dim_v; /* that groups follow from */
    put_edge(&g->edge_k, g->dim_k, out, out + 8);
    put_edge(&g->edge_v, dim_v, out + 3, out + 9);
    out[6] = kv_type_group(g->type_k, g->dim_k);
    out[7] = kv_type_group(g->type_v, dim_v);
}

/* ---- saving ---- */

/* The place of a page of the pool in the file. */
struct note {
    int32_t number; /* 1 + its number there; 0: not met yet */
    int32_t n;      /* entries that some table entry covers */
};

struct writer {
    struct pi_new_file file;
    struct pi_sum hash;
    pith_status status; /* the first failure; puts after it do nothing */
    pith_error *err;
    struct note *note[KV_CLASS_MAX]; /* [pages of the class's pool] */
    uint8_t *page;                   /* one page, with unused slots cleared, or the state */
    int32_t n_page;
    uint64_t pages_size;
    uint64_t n_ref;
};

static void put(struct writer *w, const void *data, size_t size)
{
    if (w->status != PITH_OK)
        return;
    pi_sum_add(&w->hash, data, size);
    w->status = pi_new_file_write(&w->file, data, size, w->err);
}

static void put_int(struct writer *w, uint64_t value, size_t n_byte)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < n_byte; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    put(w, bytes, n_byte);
}

/* Numbers the pages in table order and notes how much of each is in use. */
static void note_pages(struct writer *w, const struct kv_seq *seq)
{
    for (int32_t l = 0; l < kv_lane_count(seq->cache); l++) {
        const struct kv_lane *lane = &seq->lane[l];
        for (int32_t i = 0; i < lane->n_live; i++) {
            struct note *note = &w->note[lane->kind->number][lane->table[i].page];
            if (note->number == 0) {
                note->number = ++w->n_page;
                w->pages_size += lane->kind->layout.saved;
            }
            note->n = (int32_t)pi_max(note->n, lane->table[i].n);
        }
        w->n_ref += (uint64_t)lane->n_live;
    }
}

/* Bytes of the largest page as files have it. */
static size_t largest_stored(const struct kv_cache *cache)
{
    size_t most = 0;
    for (int32_t i = 0; i < cache->n_kind; i++)
        most = cache->kind[i].layout.saved > most ? cache->kind[i].layout.saved : most;
    return most;
}

/* Bytes of the section of the state, with its head. */
static uint64_t state_section_size(const struct kv_seq *seq)
{
    uint64_t state = seq->state.page >= 0 ? 4 + seq->cache->g.state_bytes : 0;
    return KV_SNAPSHOT_SECTION_SIZE + state;
}

static void put_header(struct writer *w, const struct kv_seq *seq, size_t extra_size)
{
    const struct kv_cache *cache = seq->cache;
    int32_t field[KV_SNAPSHOT_N_FIELD], edge[KV_SNAPSHOT_N_EDGE];
    uint64_t size = KV_SNAPSHOT_HEADER_SIZE + 4 * KV_SNAPSHOT_SECTION_SIZE +
                    4 * (uint64_t)kv_lane_count(cache) + KV_SNAPSHOT_REF_SIZE * w->n_ref +
                    w->pages_size + state_section_size(seq) + extra_size + KV_SNAPSHOT_SUM_SIZE;
    put(w, KV_SNAPSHOT_MAGIC, 8);
    put_int(w, KV_SNAPSHOT_VERSION, 4);
    put_int(w, KV_SNAPSHOT_HEADER_SIZE, 4);
    put_int(w, size, 8);
    kv_snapshot_fields(&cache->g, field);
    for (int i = 0; i < KV_SNAPSHOT_N_FIELD; i++)
        put_int(w, (uint64_t)field[i], 4);
    put_int(w, (uint64_t)w->n_page, 4);
    put_int(w, w->n_ref, 8);
    put_int(w, largest_stored(cache), 8);
    put_int(w, extra_size, 8);
    kv_snapshot_edges(&cache->g, edge);
    for (int i = 0; i < KV_SNAPSHOT_N_EDGE; i++)
        put_int(w, (uint64_t)edge[i], 4);
    put_int(w, (uint64_t)cache->g.v_in_k, 4);
}

static void put_section(struct writer *w, const char *tag, uint64_t size)
{
    put(w, tag, 4);
    put_int(w, size, 8);
}

static void put_tables(struct writer *w, const struct kv_seq *seq)
{
    int32_t n_lane = kv_lane_count(seq->cache);
    put_section(w, "LANE", 4 * (uint64_t)n_lane);
    for (int32_t l = 0; l < n_lane; l++)
        put_int(
            w, (uint32_t)seq->lane[l].n_live | (seq->lane[l].unordered ? KV_SNAPSHOT_UNORDERED : 0),
            4);
    put_section(w, "REFS", KV_SNAPSHOT_REF_SIZE * w->n_ref);
    for (int32_t l = 0; l < n_lane; l++) {
        const struct note *note = w->note[seq->lane[l].kind->number];
        for (int32_t i = 0; i < seq->lane[l].n_live; i++) {
            const struct kv_page_ref *ref = &seq->lane[l].table[i];
            put_int(w, (uint64_t)note[ref->page].number - 1, 4);
            put_int(w, (uint32_t)ref->delta, 4);
            put_int(w, ref->n | (ref->closed ? KV_SNAPSHOT_CLOSED : 0), 4);
            put_int(w, (uint64_t)ref->n_folded + 1, 4);
        }
    }
}

/* Clears the rows of `size` bytes of slots n.. of a page. */
static void clear_slots(const struct kv_cache *cache, uint8_t *rows, size_t size, size_t n)
{
    memset(rows + n * size, 0, ((size_t)cache->g.page_len - n) * size);
}

/* The same of keys or values. */
static void clear_part(const struct kv_cache *cache, const struct kv_part *part, uint8_t *page,
                       size_t n)
{
    for (const struct kv_plane *p = part->plane; p < part->plane + KV_N_PLANE; p++)
        clear_slots(cache, page + p->at, p->row, n);
}

/* Writes a page in the form of the file. Slots from n on, which may hold text of another sequence,
   are not written. */
static void put_page(struct writer *w, const struct kv_cache *cache, const struct kv_class *kind,
                     int32_t page, int32_t n)
{
    uint8_t *copy = w->page;
    kv_page_save(cache, kind, page, copy);
    if (n < cache->g.page_len) {
        clear_part(cache, &kind->k, copy, (size_t)n);
        clear_part(cache, &kind->v, copy, (size_t)n);
        clear_slots(cache, copy + kind->layout.stored, sizeof(int32_t), (size_t)n);
    }
    put(w, copy, kind->layout.saved);
}

static void put_pages(struct writer *w, const struct kv_seq *seq)
{
    const struct kv_cache *cache = seq->cache;
    int32_t next = 1;
    put_section(w, "PAGE", w->pages_size);
    for (int32_t l = 0; l < kv_lane_count(cache); l++)
        for (int32_t i = 0; i < seq->lane[l].n_live; i++) {
            int32_t page = seq->lane[l].table[i].page;
            const struct kv_class *kind = seq->lane[l].kind;
            const struct note *note = &w->note[kind->number][page];
            if (note->number != next)
                continue;
            next++;
            put_page(w, cache, kind, page, note->n);
        }
}

static void put_state(struct writer *w, const struct kv_seq *seq)
{
    put_section(w, "STAT", state_section_size(seq) - KV_SNAPSHOT_SECTION_SIZE);
    if (!kv_state_save(seq, w->page))
        return;
    put_int(w, (uint64_t)seq->state.n_token, 4);
    put(w, w->page, seq->cache->g.state_bytes);
}

static pith_status write_file(struct writer *w, const struct kv_seq *seq, const void *extra,
                              size_t extra_size, const char *path)
{
    w->status = pi_new_file_open(path, &w->file, w->err);
    pi_sum_start(&w->hash);
    note_pages(w, seq);
    put_header(w, seq, extra_size);
    put_tables(w, seq);
    put_pages(w, seq);
    put_state(w, seq);
    put_section(w, "EXTR", extra_size);
    put(w, extra, extra_size);
    put_int(w, pi_sum_value(&w->hash), KV_SNAPSHOT_SUM_SIZE);
    if (w->status == PITH_OK)
        w->status = kv_cache_check(seq->cache, w->err);
    if (w->status == PITH_OK)
        w->status = pi_new_file_commit(&w->file, w->err);
    pi_new_file_discard(&w->file);
    return w->status;
}

static size_t note_size(const struct kv_cache *cache, int32_t kind)
{
    return (size_t)cache->kind[kind].n_page * sizeof(struct note);
}

pith_status kv_seq_save(const struct kv_seq *seq, const void *extra, size_t extra_size,
                        const char *path, pith_error *err)
{
    const struct kv_cache *cache = seq->cache;
    struct writer w = {.err = err};
    pith_status status;
    bool has_notes = true;
    for (int32_t i = 0; i < cache->n_kind; i++) {
        w.note[i] = pi_mem_map(PI_MEM_OTHER, note_size(cache, i));
        has_notes = has_notes && w.note[i] != NULL;
    }
    size_t page = largest_stored(cache), state = cache->g.state_bytes;
    w.page = pi_mem_alloc(PI_MEM_OTHER, page > state ? page : state);
    if (!has_notes || w.page == NULL)
        status = pi_fail(err, PITH_NOMEM, "%s: no memory to write a snapshot", path);
    else
        status = write_file(&w, seq, extra, extra_size, path);
    pi_mem_free(w.page);
    for (int32_t i = 0; i < cache->n_kind; i++)
        pi_mem_unmap(PI_MEM_OTHER, w.note[i], note_size(cache, i));
    return status;
}

/* ---- loading ---- */

/* The types must be the layers' own, in both forms of the fields. */
static pith_status check_layer(const char *field, int32_t layer, bool all, enum kv_type file,
                               enum kv_type cache, const char *name, pith_error *err)
{
    char where[32] = "";
    if (file == cache)
        return PITH_OK;
    if (!all)
        snprintf(where, sizeof(where), "layer %d: ", layer);
    return pi_fail(err, PITH_INVALID, "%s: %s%s is %s, and the engine's is %s", name, where, field,
                   kv_type_name(file), kv_type_name(cache));
}

static pith_status check_shape(const struct kv_geometry *file, const struct kv_geometry *cache,
                               const char *name, pith_error *err)
{
    int32_t a[KV_SNAPSHOT_N_FIELD], b[KV_SNAPSHOT_N_FIELD];
    kv_snapshot_fields(file, a);
    kv_snapshot_fields(cache, b);
    for (int i = 0; i < 5; i++)
        if (a[i] != b[i])
            return pi_fail(err, PITH_INVALID, "%s: %s is %d, and the engine's is %d", name,
                           field_name[i], a[i], b[i]);
    bool all_k = !has_edge(&file->edge_k) && !has_edge(&cache->edge_k);
    bool all_v = !has_edge(&file->edge_v) && !has_edge(&cache->edge_v);
    for (int32_t l = 0; l < cache->n_layer; l++) {
        PI_TRY(check_layer(field_name[5], l, all_k, kv_layer_type_k(file, l),
                           kv_layer_type_k(cache, l), name, err));
        PI_TRY(check_layer(field_name[6], l, all_v, kv_layer_type_v(file, l),
                           kv_layer_type_v(cache, l), name, err));
    }
    return PITH_OK;
}

static pith_status check_latent(const struct kv_geometry *file, const struct kv_geometry *cache,
                                const char *name, pith_error *err)
{
    if (file->v_in_k != cache->v_in_k)
        return pi_fail(err, PITH_INVALID,
                       "%s: values begin at dimension %d of keys, and in the engine at %d (0: they "
                       "are stored beside keys)",
                       name, file->v_in_k, cache->v_in_k);
    return PITH_OK;
}

static pith_status check_state(const struct kv_snapshot *s, const struct kv_cache *cache,
                               const char *name, pith_error *err)
{
    size_t has = s->state_size > 0 ? s->state_size - 4 : 0, wants = cache->g.state_bytes;
    if (has != wants && (has > 0 || s->n_page > 0))
        return pi_fail(err, PITH_INVALID,
                       "%s: the recurrent layers' state has %zu bytes, and the engine's %zu", name,
                       has, wants);
    return PITH_OK;
}

/* The state of loading. */
struct loader {
    const struct kv_snapshot *from;
    size_t ref;
    const uint8_t *page;
    int32_t
        *pages; /* [n_page] the pool's page for each of the file's, which come in ascending order */
    int32_t n_taken;
};

/* Fills an empty lane with its table entries. */
static void load_lane(struct kv_seq *seq, struct kv_lane *lane, struct kv_snapshot_lane from,
                      struct loader *next)
{
    struct kv_cache *cache = seq->cache;
    struct kv_page_ref *table = kv_lane_edit(lane);
    for (uint32_t i = 0; i < from.n; i++) {
        struct kv_snapshot_ref ref = kv_snapshot_ref_at(next->from, next->ref++);
        if (ref.page == next->n_taken) {
            int32_t page =
                kv_page_take(cache, lane->kind, lane->table, (int32_t)i, (int32_t)(from.n - i));
            next->pages[next->n_taken++] = page;
            kv_page_load(cache, lane->kind, kv_lane_number(seq, lane), page, next->page);
            next->page += lane->kind->layout.saved;
        } else {
            kv_page_ref_add(cache, lane->kind, next->pages[ref.page]);
        }
        table[i] = (struct kv_page_ref){.page = next->pages[ref.page],
                                        .delta = ref.delta,
                                        .n_folded = (uint16_t)(ref.count - 1),
                                        .n = (uint8_t)ref.n,
                                        .closed = ref.closed};
    }
    lane->n_page = (int32_t)from.n;
    lane->unordered = from.unordered;
    kv_lane_recount(cache, lane);
    kv_marks_start_lane(seq, lane);
}

/* Bytes of the pool's pages that a snapshot of the cache's shape takes: pages belong to one
   lane. */
static struct kv_need count_bytes(const struct kv_cache *cache, const struct kv_snapshot *s)
{
    size_t ref = 0;
    int32_t next = 0;
    struct kv_need need = {0};
    if (s->state_size > 0)
        need = kv_need_of_state(&cache->g);
    for (int32_t l = 0; l < kv_lane_count(cache); l++) {
        const struct kv_class *kind = kv_class_of(cache->kind, &cache->g, l / cache->g.n_head);
        uint32_t n = kv_snapshot_lane_at(s, (size_t)l).n;
        for (uint32_t i = 0; i < n; i++)
            if (kv_snapshot_ref_at(s, ref++).page == next) {
                next++;
                kv_need_add(&need, kind->part, kv_pages_bytes(kind, 1));
            }
    }
    return need;
}

/* Everything that can fail: the sequence, its tables, the list of pages, the caller's block. */
static pith_status load_prepare(struct kv_cache *cache, const struct kv_snapshot *s,
                                const char *name, struct kv_seq **seq, int32_t **pages,
                                void **extra, pith_error *err)
{
    int32_t cap = 0;
    struct kv_need need = count_bytes(cache, s);
    char what[256];
    snprintf(what, sizeof(what), "%.160s: %d pages", name, s->n_page);
    PI_TRY(kv_cache_secure(cache, &need, what, err));
    PI_TRY(kv_seq_create(cache, seq, err));
    for (int32_t l = 0; l < kv_lane_count(cache); l++) {
        int32_t n = (int32_t)kv_snapshot_lane_at(s, (size_t)l).n;
        (*seq)->lane[l].mark_wanted = n;
        cap = (int32_t)pi_max(cap, n);
    }
    *pages = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)s->n_page, sizeof(**pages));
    *extra = pi_mem_alloc(PI_MEM_OTHER, s->extra_size);
    if (*pages == NULL || *extra == NULL || !kv_seq_grow(*seq, cap))
        return pi_fail(err, PITH_NOMEM, "%s: no memory for a sequence of %d pages", name,
                       s->n_page);
    return PITH_OK;
}

pith_status kv_snapshot_load(struct kv_cache *cache, const char *name, const uint8_t *bytes,
                             size_t size, struct kv_seq **out, void **extra, size_t *extra_size,
                             pith_error *err)
{
    struct kv_snapshot s;
    struct kv_seq *seq = NULL;
    int32_t *pages = NULL;
    void *block = NULL;
    PI_TRY(kv_snapshot_parse(name, bytes, size, &s, err));
    PI_TRY(check_shape(&s.g, &cache->g, name, err));
    PI_TRY(check_latent(&s.g, &cache->g, name, err));
    PI_TRY(check_state(&s, cache, name, err));
    pith_status status = load_prepare(cache, &s, name, &seq, &pages, &block, err);
    if (status != PITH_OK)
        goto fail;
    struct loader next = {.from = &s, .page = s.pages, .pages = pages};
    for (int32_t l = 0; l < kv_lane_count(cache); l++)
        load_lane(seq, &seq->lane[l], kv_snapshot_lane_at(&s, (size_t)l), &next);
    if (s.state_size > 0)
        kv_state_load(seq, s.state + 4, (int32_t)kv_snapshot_u32(s.state));
    if (s.extra_size > 0)
        memcpy(block, s.extra, s.extra_size);
    pi_mem_free(pages);
    *out = seq;
    *extra = block;
    *extra_size = s.extra_size;
    return PITH_OK;
fail:
    kv_seq_free(seq);
    pi_mem_free(pages);
    pi_mem_free(block);
    return status;
}

pith_status kv_seq_load(struct kv_cache *cache, const char *path, struct kv_seq **out, void **extra,
                        size_t *extra_size, pith_error *err)
{
    struct pi_file file = {0};
    PI_TRY(pi_file_map(path, &file, err));
    pith_status status =
        kv_snapshot_load(cache, path, file.data, file.size, out, extra, extra_size, err);
    pi_file_unmap(&file);
    return status;
}
