/*
 * snapshot.c - a sequence to a file and back; docs/snapshot.md describes the bytes. What the caller
 * adds (tokens) is bytes to it. Invariant: a file appears whole or not at all, and a load that
 * fails has changed nothing, not even the account's peak.
 */
#include "base/os.h"
#include "kv/hash.h"
#include "kv/snapshot.h"

_Static_assert(KV_TYPE_F32 == 0 && KV_TYPE_F16 == 1 && KV_TYPE_Q8_0 == 2,
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

/* ---- saving ---- */

/* What a page of the pool becomes in the file. */
struct note {
    int32_t number; /* 1 + its number there; 0: not met yet */
    int32_t n;      /* entries that some table entry covers */
};

struct writer {
    struct pi_new_file file;
    struct kv_hash hash;
    pith_status status; /* the first failure; puts after it do nothing */
    pith_error *err;
    struct note *note; /* [pool pages] */
    uint8_t *page;     /* one page, with unused slots cleared */
    int32_t n_page;
    uint64_t n_ref;
};

static void put(struct writer *w, const void *data, size_t size)
{
    if (w->status != PITH_OK)
        return;
    kv_hash_add(&w->hash, data, size);
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
            struct note *note = &w->note[lane->table[i].page];
            if (note->number == 0)
                note->number = ++w->n_page;
            note->n = (int32_t)pi_max(note->n, lane->table[i].n);
        }
        w->n_ref += (uint64_t)lane->n_live;
    }
}

/* The lowest version that says what there is to say, for readers that know no other. */
static uint32_t version_of(const struct kv_seq *seq)
{
    for (int32_t l = 0; l < kv_lane_count(seq->cache); l++)
        if (seq->lane[l].unordered)
            return KV_SNAPSHOT_VERSION_UNORDERED;
    return KV_SNAPSHOT_VERSION;
}

static void put_header(struct writer *w, const struct kv_seq *seq, size_t extra_size)
{
    const struct kv_cache *cache = seq->cache;
    int32_t field[KV_SNAPSHOT_N_FIELD];
    uint64_t size = KV_SNAPSHOT_HEADER_SIZE + 4 * KV_SNAPSHOT_SECTION_SIZE +
                    4 * (uint64_t)kv_lane_count(cache) + KV_SNAPSHOT_REF_SIZE * w->n_ref +
                    (uint64_t)w->n_page * cache->layout.stored + extra_size + KV_SNAPSHOT_SUM_SIZE;
    put(w, KV_SNAPSHOT_MAGIC, 8);
    put_int(w, version_of(seq), 4);
    put_int(w, KV_SNAPSHOT_HEADER_SIZE, 4);
    put_int(w, size, 8);
    kv_snapshot_fields(&cache->g, field);
    for (int i = 0; i < KV_SNAPSHOT_N_FIELD; i++)
        put_int(w, (uint64_t)field[i], 4);
    put_int(w, (uint64_t)w->n_page, 4);
    put_int(w, w->n_ref, 8);
    put_int(w, cache->layout.stored, 8);
    put_int(w, extra_size, 8);
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
    for (int32_t l = 0; l < n_lane; l++)
        for (int32_t i = 0; i < seq->lane[l].n_live; i++) {
            const struct kv_page_ref *ref = &seq->lane[l].table[i];
            put_int(w, (uint64_t)w->note[ref->page].number - 1, 4);
            put_int(w, (uint32_t)ref->delta, 4);
            put_int(w, (uint64_t)ref->n, 4);
        }
}

/* Clears the rows of `size` bytes of slots n.. of a page. */
static void clear_slots(const struct kv_cache *cache, uint8_t *rows, size_t size, size_t n)
{
    memset(rows + n * size, 0, ((size_t)cache->g.page_len - n) * size);
}

/* The same of keys or values. */
static void clear_part(const struct kv_cache *cache, enum kv_type type, size_t dim, uint8_t *values,
                       uint8_t *scales, size_t n)
{
    const struct kv_codec *codec = &kv_codecs[type];
    clear_slots(cache, values, dim * (size_t)codec->value_bytes, n);
    clear_slots(cache, scales, dim / (size_t)codec->block * (size_t)codec->scale_bytes, n);
}

/* A page as files have it: keys entry by entry, and nothing of what may be left in slots from n on,
   text of another sequence, say. */
static void put_page(struct writer *w, const struct kv_cache *cache, const uint8_t *page, int32_t n)
{
    const struct kv_geometry *g = &cache->g;
    const struct kv_page_layout *at = &cache->layout;
    uint8_t *copy = w->page;
    memcpy(copy, page, at->stored);
    if (at->side_by_side)
        kv_columns_to_rows(cache, page, copy);
    if (n < g->page_len) {
        clear_part(cache, g->type_k, (size_t)g->dim_k, copy + at->k, copy + at->k_scale, (size_t)n);
        clear_part(cache, g->type_v, (size_t)g->dim_v, copy + at->v, copy + at->v_scale, (size_t)n);
        clear_slots(cache, copy + at->pos, sizeof(int32_t), (size_t)n);
    }
    put(w, copy, at->stored);
}

static void put_pages(struct writer *w, const struct kv_seq *seq)
{
    const struct kv_cache *cache = seq->cache;
    int32_t next = 1;
    put_section(w, "PAGE", (uint64_t)w->n_page * cache->layout.stored);
    for (int32_t l = 0; l < kv_lane_count(cache); l++)
        for (int32_t i = 0; i < seq->lane[l].n_live; i++) {
            int32_t page = seq->lane[l].table[i].page;
            const struct note *note = &w->note[page];
            if (note->number != next)
                continue;
            next++;
            put_page(w, cache, kv_page_at(cache, page), note->n);
        }
}

static pith_status write_file(struct writer *w, const struct kv_seq *seq, const void *extra,
                              size_t extra_size, const char *path)
{
    w->status = pi_new_file_open(path, &w->file, w->err);
    kv_hash_start(&w->hash);
    note_pages(w, seq);
    put_header(w, seq, extra_size);
    put_tables(w, seq);
    put_pages(w, seq);
    put_section(w, "EXTR", extra_size);
    put(w, extra, extra_size);
    put_int(w, kv_hash_value(&w->hash), KV_SNAPSHOT_SUM_SIZE);
    if (w->status == PITH_OK)
        w->status = pi_new_file_commit(&w->file, w->err);
    pi_new_file_discard(&w->file);
    return w->status;
}

pith_status kv_seq_save(const struct kv_seq *seq, const void *extra, size_t extra_size,
                        const char *path, pith_error *err)
{
    const struct kv_cache *cache = seq->cache;
    struct writer w = {.err = err};
    pith_status status;
    size_t note_size = (size_t)cache->n_page * sizeof(*w.note);
    w.note = pi_mem_map(PI_MEM_OTHER, note_size);
    w.page = pi_mem_alloc(PI_MEM_OTHER, cache->layout.stored);
    if (w.note == NULL || w.page == NULL)
        status = pi_fail(err, PITH_NOMEM, "%s: no memory to write a snapshot", path);
    else
        status = write_file(&w, seq, extra, extra_size, path);
    pi_mem_free(w.page);
    pi_mem_unmap(PI_MEM_OTHER, w.note, note_size);
    return status;
}

/* ---- loading ---- */

static pith_status check_shape(const struct kv_geometry *file, const struct kv_geometry *cache,
                               const char *name, pith_error *err)
{
    int32_t a[KV_SNAPSHOT_N_FIELD], b[KV_SNAPSHOT_N_FIELD];
    kv_snapshot_fields(file, a);
    kv_snapshot_fields(cache, b);
    for (int i = 0; i < KV_SNAPSHOT_N_FIELD; i++) {
        if (a[i] == b[i])
            continue;
        if (i >= 5)
            return pi_fail(err, PITH_INVALID, "%s: %s is %s, and the engine's is %s", name,
                           field_name[i], kv_type_name((enum kv_type)a[i]),
                           kv_type_name((enum kv_type)b[i]));
        return pi_fail(err, PITH_INVALID, "%s: %s is %d, and the engine's is %d", name,
                       field_name[i], a[i], b[i]);
    }
    return PITH_OK;
}

/* Files have no index, so that they can be read by engines with another one: it is made anew, for
   all places, since another table entry may see more of the page. */
static void load_page(const struct kv_cache *cache, int32_t lane, uint8_t *page,
                      const uint8_t *bytes)
{
    memcpy(page, bytes, cache->layout.stored);
    if (cache->layout.side_by_side)
        kv_columns_from_rows(cache, page, bytes);
    kv_index_write(cache, lane, page, 0, cache->g.page_len);
    kv_index_finish(cache, page);
}

/* Fills an empty lane with n table entries. pages [n_page] receives the pool's page for each of the
   file's, which come in ascending order. */
static void load_lane(struct kv_seq *seq, struct kv_lane *lane, const struct kv_snapshot *s,
                      const uint8_t *refs, struct kv_snapshot_lane from, int32_t *pages,
                      int32_t *n_taken)
{
    struct kv_cache *cache = seq->cache;
    int32_t n = (int32_t)from.n;
    for (int32_t i = 0; i < n; i++) {
        struct kv_page_ref ref = kv_snapshot_ref(refs + (size_t)i * KV_SNAPSHOT_REF_SIZE);
        if (ref.page == *n_taken) {
            pages[ref.page] = kv_page_take(cache);
            load_page(cache, (int32_t)(lane - seq->lane), kv_page_at(cache, pages[ref.page]),
                      s->pages + (size_t)ref.page * cache->layout.stored);
            (*n_taken)++;
        } else {
            kv_page_ref_add(cache, pages[ref.page]);
        }
        ref.page = pages[ref.page];
        lane->table[i] = ref;
    }
    lane->n_page = n;
    lane->unordered = from.unordered;
    kv_lane_recount(cache, lane);
    kv_marks_start_lane(seq, lane);
}

/* Everything that can fail: the sequence, its tables, the list of pages, the caller's block. */
static pith_status load_prepare(struct kv_cache *cache, const struct kv_snapshot *s,
                                const char *name, struct kv_seq **seq, int32_t **pages,
                                void **extra, pith_error *err)
{
    int32_t cap = 0;
    for (int32_t l = 0; l < kv_lane_count(cache); l++)
        cap = (int32_t)pi_max(cap, kv_snapshot_lane_at(s, (size_t)l).n);
    if (s->n_page > cache->n_free)
        return pi_fail(err, PITH_KV_FULL, "%s: %d pages, and %d of %d are free", name, s->n_page,
                       cache->n_free, cache->n_page);
    PI_TRY(kv_seq_create(cache, seq, err));
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
    int32_t *pages = NULL, n_taken = 0;
    void *block = NULL;
    PI_TRY(kv_snapshot_parse(name, bytes, size, &s, err));
    PI_TRY(check_shape(&s.g, &cache->g, name, err));
    pith_status status = load_prepare(cache, &s, name, &seq, &pages, &block, err);
    if (status != PITH_OK)
        goto fail;
    const uint8_t *refs = s.refs;
    for (int32_t l = 0; l < kv_lane_count(cache); l++) {
        struct kv_snapshot_lane lane = kv_snapshot_lane_at(&s, (size_t)l);
        load_lane(seq, &seq->lane[l], &s, refs, lane, pages, &n_taken);
        refs += (size_t)lane.n * KV_SNAPSHOT_REF_SIZE;
    }
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
