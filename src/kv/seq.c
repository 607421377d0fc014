/*
 * seq.c - sequences: making, sharing and freeing them, room for new entries, and the entries' way
 * in and out. A sequence reserves pages before a pass, so that appending inside the pass cannot
 * fail. Invariant: an entry is only ever written to a page whose reference count is 1.
 */
#include <stdatomic.h>
#include <stdio.h>

#include "kv/seq.h"
#include "base/mem.h"
#include "device/device.h"
#include "kv/lane_internal.h"
#include "kv/page.h"
#include "kv/pool.h"
#include "kv/pool_internal.h"
#include "kv/seq_internal.h"
#include "kv/window_internal.h"

/* ---- making and freeing ---- */

static int64_t seq_table_bytes(const struct kv_seq *seq)
{
    int64_t n_lane = kv_lane_count(seq->cache);
    return (int64_t)sizeof(*seq) + n_lane * (int64_t)sizeof(struct kv_lane) +
           kv_room_bytes(seq->cache, seq->cap) + (int64_t)seq->marks_size;
}

int64_t kv_seq_bytes_at(const struct kv_geometry *g, size_t mark_size, int32_t n_entry,
                        int64_t n_all)
{
    int64_t n_lane = (int64_t)g->n_layer * g->n_head, longest = pi_ceil_div(n_entry, g->page_len);
    int64_t n_page = pi_min(pi_ceil_div(n_all, g->page_len) + n_lane, n_lane * longest);
    int64_t row = kv_table_room(longest), of_ref = (int64_t)sizeof(struct kv_page_ref);
    if (kv_geometry_device(g)->pack_marks != NULL) /* whose rows are as long as tables */
        of_ref += g->page_len * (int64_t)mark_size;
    return (int64_t)sizeof(struct kv_seq) +
           n_lane * ((int64_t)sizeof(struct kv_lane) + row * of_ref) +
           kv_marks_bytes_at(g, mark_size, n_page);
}

/* One block of tables for all lanes, and the devices' marks: all grow or none does. */
static bool grow_tables(struct kv_seq *seq, int32_t cap)
{
    size_t n_lane = (size_t)kv_lane_count(seq->cache), n_ref;
    struct kv_seq grown = {.cache = seq->cache, .cap = cap};
    struct kv_page_ref *table = NULL;
    if (cap <= seq->cap)
        return true;
    if (!pi_mul_size(n_lane, (size_t)cap, &n_ref))
        return false;
    table = pi_mem_alloc_n(PI_MEM_TABLE, n_ref, sizeof(*table));
    if (table == NULL || !kv_marks_reserve(&grown, seq, cap)) {
        pi_mem_free(table);
        return false;
    }
    for (size_t l = 0; l < n_lane; l++) {
        struct kv_lane *lane = &seq->lane[l];
        kv_marks_pull(seq, lane);
        if (lane->n_page > 0)
            memcpy(table + l * (size_t)cap, lane->table, (size_t)lane->n_page * sizeof(*table));
        lane->table = table + l * (size_t)cap;
    }
    kv_marks_release(seq->cache, seq->there);
    pi_mem_free(seq->table);
    seq->cache->table_bytes -= seq_table_bytes(seq);
    seq->table = table;
    seq->there = grown.there;
    seq->cap = cap;
    kv_marks_settle(seq);
    seq->cache->table_bytes += seq_table_bytes(seq);
    return true;
}

/* The same with marks, whose block gets room for n_page pages of all lanes. */
static bool grow(struct kv_seq *seq, int32_t cap, int64_t n_page)
{
    size_t size = kv_marks_lack(seq, n_page);
    uint8_t *block = size > 0 ? pi_mem_alloc(PI_MEM_TABLE, size) : NULL;
    if ((size > 0 && block == NULL) || !grow_tables(seq, cap)) {
        pi_mem_free(block);
        return false;
    }
    kv_marks_fit(seq, block, size);
    return true;
}

bool kv_seq_grow(struct kv_seq *seq, int32_t cap)
{
    return grow(seq, cap, 0);
}

pith_status kv_seq_create(struct kv_cache *cache, struct kv_seq **out, pith_error *err)
{
    struct kv_seq *seq = pi_mem_alloc(PI_MEM_TABLE, sizeof(*seq));
    struct kv_lane *lane =
        pi_mem_alloc_n(PI_MEM_TABLE, (size_t)kv_lane_count(cache), sizeof(*lane));
    if (seq == NULL || lane == NULL) {
        pi_mem_free(seq);
        pi_mem_free(lane);
        return pi_fail(err, PITH_NOMEM, "no memory for a sequence of %d lanes",
                       kv_lane_count(cache));
    }
    for (int32_t l = 0; l < kv_lane_count(cache); l++)
        lane[l] = (struct kv_lane){
            .kind = kv_class_of(cache->kind, &cache->g, l / cache->g.n_head),
            .window = kv_layer_window(&cache->g, l / cache->g.n_head),
        };
    seq->cache = cache;
    seq->lane = lane;
    kv_state_start(seq);
    seq->next = cache->first;
    if (cache->first != NULL)
        cache->first->prev = seq;
    cache->first = seq;
    cache->n_seq++;
    cache->table_bytes += seq_table_bytes(seq);
    *out = seq;
    return PITH_OK;
}

void kv_seq_free(struct kv_seq *seq)
{
    if (seq == NULL)
        return;
    struct kv_cache *cache = seq->cache;
    kv_seq_land(seq, true);
    for (int32_t l = 0; l < kv_lane_count(cache); l++)
        kv_lane_drop_from(cache, &seq->lane[l], 0);
    kv_state_drop(seq);
    if (seq->prev != NULL)
        seq->prev->next = seq->next;
    else
        cache->first = seq->next;
    if (seq->next != NULL)
        seq->next->prev = seq->prev;
    cache->n_seq--;
    cache->table_bytes -= seq_table_bytes(seq);
    pi_mem_free(seq->table);
    pi_mem_free(seq->marks);
    kv_marks_release(cache, seq->there);
    pi_mem_free(seq->lane);
    pi_mem_free(seq);
}

pith_status kv_seq_fork(const struct kv_seq *from, struct kv_seq **out, pith_error *err)
{
    struct kv_cache *cache = from->cache;
    struct kv_seq *seq;
    int32_t n_lane = kv_lane_count(cache), cap = 0;
    PI_TRY(kv_seq_create(cache, &seq, err));
    for (int32_t l = 0; l < n_lane; l++) {
        seq->lane[l].mark_wanted = from->lane[l].n_live;
        cap = (int32_t)pi_max(cap, from->lane[l].n_live);
    }
    if (!kv_seq_grow(seq, cap)) {
        kv_seq_free(seq);
        return pi_fail(err, PITH_NOMEM, "no memory for page tables of %d entries in %d lanes", cap,
                       n_lane);
    }
    for (int32_t l = 0; l < n_lane; l++) {
        const struct kv_lane *a = &from->lane[l];
        struct kv_lane *b = &seq->lane[l];
        struct kv_page_ref *table = kv_lane_edit(b);
        for (int32_t i = 0; i < a->n_live; i++) {
            table[i] = a->table[i];
            kv_page_ref_add(cache, a->kind, a->table[i].page);
        }
        b->n_page = a->n_live;
        b->unordered = a->unordered;
        b->victim = a->victim;
        b->most = a->most;
        kv_lane_recount(cache, b);
    }
    kv_marks_copy(from, seq);
    kv_state_fork(from, seq);
    *out = seq;
    return PITH_OK;
}

/* ---- room ---- */

void kv_lane_expect(struct kv_seq *seq, int32_t layer, int32_t head, int64_t n)
{
    kv_lane_at(seq, layer, head)->most =
        (int32_t)pi_min(pi_ceil_div(n, seq->cache->g.page_len), INT32_MAX);
}

static bool tail_is_shared(const struct kv_cache *cache, const struct kv_lane *lane)
{
    return kv_lane_tail_room(cache, lane) > 0 &&
           lane->kind->n_ref[lane->table[lane->n_live - 1].page] > 1;
}

/* Pages that a lane takes for n more entries, beyond its reserved pages. One with a window loses
   others meanwhile. */
static int64_t lane_lacks(const struct kv_cache *cache, const struct kv_lane *lane, int32_t n)
{
    int64_t beyond = (int64_t)n - kv_lane_tail_room(cache, lane);
    int64_t n_page = beyond > 0 ? pi_ceil_div(beyond, cache->g.page_len) : 0;
    if (lane->window > 0)
        n_page = pi_min(n_page, kv_lane_window_room(cache, lane));
    return pi_max(0, n_page - (lane->n_page - lane->n_live));
}

/* The table entry that the victim of a lane is in; NULL where it has none. */
static const struct kv_page_ref *victim_ref(const struct kv_cache *cache,
                                            const struct kv_lane *lane)
{
    int32_t entry;
    return lane->victim > 0 ? &lane->table[kv_lane_find(cache, lane, lane->victim - 1, &entry)]
                            : NULL;
}

/* The number of entries by which n more tokens grow the lane: the first may overwrite one. */
static int32_t added(const struct kv_lane *lane, int32_t n)
{
    return n - (lane->victim > 0);
}

/* Pages that n more entries of a lane take, including copies. It may copy the last page, and the
   page in which an entry is to be overwritten (which may be the same). */
static int64_t lane_takes(const struct kv_cache *cache, const struct kv_lane *lane, int32_t n)
{
    const struct kv_page_ref *victim = victim_ref(cache, lane), *last = NULL;
    int64_t copies = 0;
    if (added(lane, n) > 0 && tail_is_shared(cache, lane))
        last = &lane->table[lane->n_live - 1];
    if (last != NULL)
        copies += kv_page_charge(lane->kind, last->page);
    if (victim != NULL && victim != last)
        copies += kv_page_charge(lane->kind, victim->page);
    if (last != NULL)
        lane->kind->n_entry[last->page] = 0;
    if (victim != NULL)
        lane->kind->n_entry[victim->page] = 0;
    return lane_lacks(cache, lane, added(lane, n)) + copies;
}

/* The longest run of a lane whose final length is unknown. At the end of a run, Intel's processors
   have prefetched some 8 KiB that are not read. */
#define MAX_RUN 64

/* Pages to reserve side by side after the n pages of a lane: all that it will hold. While that is
   unknown, as many as it has, so that little more memory is touched than is used. */
static int32_t run_of(const struct kv_lane *lane, int64_t n)
{
    int64_t more =
        lane->most > lane->n_page ? lane->most - lane->n_page : pi_min(lane->n_page, MAX_RUN);
    return (int32_t)pi_min(pi_max(n, more), INT32_MAX);
}

static void take_pages(struct kv_cache *cache, struct kv_lane *lane, int64_t n)
{
    for (; n > 0; n--) {
        int32_t page = kv_page_take(cache, lane->kind, lane->table, lane->n_page, run_of(lane, n));
        kv_lane_edit(lane)[lane->n_page++] = (struct kv_page_ref){.page = page};
    }
}

static void reserve_lane(struct kv_cache *cache, struct kv_lane *lane, int32_t n)
{
    const struct kv_page_ref *victim = victim_ref(cache, lane);
    int64_t lacks = lane_lacks(cache, lane, added(lane, n));
    if (added(lane, n) > 0 && tail_is_shared(cache, lane))
        kv_lane_unshare(cache, lane, lane->n_live - 1);
    if (victim != NULL)
        kv_lane_unshare(cache, lane, (int32_t)(victim - lane->table));
    take_pages(cache, lane, lacks);
}

static struct kv_need seq_takes(const struct kv_seq *seq, int32_t n)
{
    struct kv_need need = {0};
    if (n > 0 && kv_state_lacks(seq) > 0)
        need = kv_need_of_state(&seq->cache->g);
    const int32_t n_lane = kv_lane_count(seq->cache);
    for (int32_t l = 0; n > 0 && l < n_lane; l++) {
        const struct kv_lane *lane = &seq->lane[l];
        if (l + 2 * KV_ASK_AHEAD < n_lane)
            kv_lane_ask_tail(lane + 2 * KV_ASK_AHEAD);
        if (l + KV_ASK_AHEAD < n_lane)
            kv_lane_ask_page(lane + KV_ASK_AHEAD);
        kv_need_add(&need, lane->kind->part,
                    kv_pages_bytes(lane->kind, lane_takes(seq->cache, lane, n)));
    }
    return need;
}

int64_t kv_seq_takes(const struct kv_seq *seq, int32_t n)
{
    return seq_takes(seq, n).all;
}

pith_status kv_seq_reserve(struct kv_seq *seq, int32_t n, pith_error *err)
{
    struct kv_cache *cache = seq->cache;
    int32_t n_lane = kv_lane_count(cache);
    struct kv_need need = seq_takes(seq, n);
    int64_t cap = 0;
    char what[96];
    if (n < 0)
        return pi_fail(err, PITH_INVALID, "room for %d entries cannot be reserved", n);
    if (n == 0)
        return PITH_OK;
    kv_seq_land(seq, false);
    for (int32_t l = 0; l < n_lane; l++) {
        struct kv_lane *lane = &seq->lane[l];
        int64_t own = lane->n_page + lane_lacks(cache, lane, added(lane, n));
        lane->mark_wanted = (int32_t)pi_min(own, INT32_MAX);
        cap = pi_max(cap, own);
    }
    if (!kv_cache_fits(cache, &need)) { /* its own state may be one that it keeps, too */
        kv_state_forget_kept(seq);
        need = seq_takes(seq, n);
    }
    snprintf(what, sizeof(what), "%d more entries in each of %d lanes take pages", n, n_lane);
    PI_TRY(kv_cache_secure(cache, &need, what, err));
    if (cap > seq->cap)
        cap = pi_min(pi_max(cap, kv_table_room(seq->cap)), INT32_MAX);
    if (!kv_seq_grow(seq, (int32_t)cap))
        return pi_fail(err, PITH_NOMEM, "no memory for page tables of %lld entries in %d lanes",
                       (long long)cap, n_lane);
    for (int32_t l = 0; l < n_lane; l++)
        reserve_lane(cache, &seq->lane[l], n);
    kv_state_reserve(seq);
    return PITH_OK;
}

/* Pages that a lane takes to have n of its own: copies of shared ones, and more. */
static int64_t lane_takes_whole(const struct kv_cache *cache, const struct kv_lane *lane, int32_t n)
{
    int64_t takes = pi_max(0, pi_ceil_div(n, cache->g.page_len) - lane->n_page);
    for (int32_t i = 0; i < lane->n_live; i++)
        takes += lane->kind->n_ref[lane->table[i].page] > 1;
    return takes;
}

pith_status kv_seq_reserve_whole(struct kv_seq *seq, const int32_t *n, pith_error *err)
{
    struct kv_cache *cache = seq->cache;
    int32_t n_lane = kv_lane_count(cache);
    struct kv_need need = {0};
    int64_t cap = 0;
    kv_seq_land(seq, false);
    for (int32_t l = 0; l < n_lane; l++) {
        struct kv_lane *lane = &seq->lane[l];
        int64_t own = pi_ceil_div(n[l], cache->g.page_len);
        kv_need_add(&need, lane->kind->part,
                    kv_pages_bytes(lane->kind, lane_takes_whole(cache, lane, n[l])));
        lane->mark_wanted = (int32_t)own;
        cap = pi_max(cap, own);
    }
    PI_TRY(kv_cache_secure(cache, &need, "entries that come back take pages", err));
    if (!kv_seq_grow(seq, (int32_t)cap))
        return pi_fail(err, PITH_NOMEM, "no memory for page tables of %lld entries in %d lanes",
                       (long long)cap, n_lane);
    for (int32_t l = 0; l < n_lane; l++) {
        struct kv_lane *lane = &seq->lane[l];
        for (int32_t i = 0; i < lane->n_live; i++)
            kv_lane_unshare(cache, lane, i);
        take_pages(cache, lane, pi_ceil_div(n[l], cache->g.page_len) - lane->n_page);
    }
    return PITH_OK;
}

void kv_seq_trim(struct kv_seq *seq)
{
    for (int32_t l = 0; l < kv_lane_count(seq->cache); l++)
        kv_lane_drop_from(seq->cache, &seq->lane[l], seq->lane[l].n_live);
    kv_state_trim(seq);
}

const struct kv_geometry *kv_seq_geometry(const struct kv_seq *seq)
{
    return &seq->cache->g;
}

/* ---- planning ---- */

int64_t kv_lane_lacks(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t n)
{
    return lane_lacks(seq->cache, kv_lane_at(seq, layer, head), n);
}

pith_status kv_seq_reserve_table(struct kv_seq *seq, int32_t n, pith_error *err)
{
    return kv_seq_reserve_tables(seq, n, INT64_MAX, err);
}

pith_status kv_seq_reserve_tables(struct kv_seq *seq, int32_t n, int64_t n_all, pith_error *err)
{
    int64_t cap = 0, each = 0, together = n_all / seq->cache->g.page_len;
    for (int32_t l = 0; l < kv_lane_count(seq->cache); l++) {
        struct kv_lane *lane = &seq->lane[l];
        int64_t own = lane->n_page + lane_lacks(seq->cache, lane, n) + kv_lane_count_breaks(lane);
        lane->mark_wanted = lane->n_page;
        each += own;
        together += lane->window > 0 ? own : 1 + kv_lane_count_breaks(lane);
        cap = pi_max(cap, own);
    }
    if (cap > INT32_MAX || !grow(seq, (int32_t)cap, pi_min(each, together)))
        return pi_fail(err, PITH_NOMEM, "no memory for page tables of %lld entries in %d lanes",
                       (long long)cap, kv_lane_count(seq->cache));
    return PITH_OK;
}

int64_t kv_seq_held_bytes(const struct kv_seq *seq)
{
    int64_t bytes = 0;
    for (int32_t l = 0; l < kv_lane_count(seq->cache); l++)
        bytes += kv_pages_bytes(seq->lane[l].kind, seq->lane[l].n_page);
    return bytes + kv_state_held_bytes(seq);
}

int64_t kv_seq_beside_bytes(const struct kv_seq *seq)
{
    return seq_table_bytes(seq);
}

int64_t kv_seq_free_bytes(const struct kv_seq *seq)
{
    return pi_max(0, kv_least_free(seq->cache));
}

bool kv_seq_fits(const struct kv_seq *seq, const struct kv_need *need)
{
    return kv_cache_fits(seq->cache, need);
}

struct kv_need kv_seq_charge_copies(struct kv_seq *seq)
{
    const struct kv_cache *cache = seq->cache;
    struct kv_need need = {0};
    for (int32_t l = 0; l < kv_lane_count(cache); l++)
        for (int32_t i = 0; i < seq->lane[l].n_live; i++) {
            const struct kv_class *kind = seq->lane[l].kind;
            if (kv_page_charge(kind, seq->lane[l].table[i].page))
                kv_need_add(&need, kind->part, kv_pages_bytes(kind, 1));
        }
    seq->charged = seq->charged || need.all > 0;
    return need;
}

void kv_seq_clear_charges(struct kv_seq *seq)
{
    if (!seq->charged)
        return;
    seq->charged = false;
    for (int32_t l = 0; l < kv_lane_count(seq->cache); l++)
        for (int32_t i = 0; i < seq->lane[l].n_live; i++)
            seq->lane[l].kind->n_entry[seq->lane[l].table[i].page] = 0;
}

/* ---- entries ---- */

/* Stores a job's first entry in the slot that the lane is to overwrite, if there is one. The new
   entry is the latest, so the order stays only if that slot is the lane's last. */
static void place_over(struct kv_append *job, struct kv_lane *lane)
{
    int32_t slot = lane->victim - 1;
    if (slot < 0 || job->n == 0)
        return;
    job->n_over = 1;
    job->over_index = kv_lane_find(job->seq->cache, lane, slot, &job->over_entry);
    struct kv_page_ref *ref = kv_lane_ref(lane, job->over_index);
    assert(lane->kind->n_ref[ref->page] == 1 && ref->delta == 0 && ref->n_folded == 0);
    ref->closed = false;
    kv_page_pos(lane->kind, ref->page)[job->over_entry] = job->pos0;
    kv_marks_clear(job->seq, lane, slot, &job->pos0, 1);
    lane->unordered = lane->unordered || slot != lane->len - 1;
    lane->top = job->pos0;
    lane->victim = 0;
}

bool kv_lane_can_overwrite(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    int32_t entry;
    if (slot < 0 || slot >= lane->len)
        return false;
    const struct kv_page_ref *ref = &lane->table[kv_lane_find(seq->cache, lane, slot, &entry)];
    return ref->delta == 0 && ref->n_folded == 0;
}

void kv_seq_set_victim(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot)
{
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    assert(slot >= -1 && slot < lane->len);
    assert(slot < 0 || kv_lane_can_overwrite(seq, layer, head, slot));
    lane->victim = slot + 1;
}

int32_t kv_lane_victim(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    return kv_lane_at(seq, layer, head)->victim - 1;
}

bool kv_cache_clipped(const struct kv_cache *cache, int32_t *layer, bool *value)
{
    for (int32_t i = 0; i < cache->n_kind; i++)
        if (cache->kind[i].device->note_clipped != NULL)
            cache->kind[i].device->note_clipped(cache->kind[i].device);
    int32_t which = atomic_load(&cache->clipped);
    *layer = which / 2;
    *value = which % 2 != 0;
    return which != INT32_MAX;
}

/* Makes places at the end of the lane for the entries of a job that take no other's. */
static void place_behind(struct kv_append *job, struct kv_lane *lane)
{
    const struct kv_cache *cache = job->seq->cache;
    for (int32_t done = job->n_over; done < job->n;) {
        int32_t index = kv_lane_open_page(cache, lane);
        struct kv_page_ref *ref = kv_lane_ref(lane, index);
        int32_t part = (int32_t)pi_min(job->n - done, cache->g.page_len - ref->n);
        int32_t *pos = kv_page_pos(lane->kind, ref->page) + ref->n;
        assert(lane->kind->n_ref[ref->page] == 1);
        assert(lane->unordered || ref->n == 0 || pos[-1] < job->pos0 + done);
        if (ref->n == 0)
            atomic_store_explicit(&lane->unbroken, 0, memory_order_relaxed);
        if (done == job->n_over) {
            job->index = index;
            job->entry = ref->n;
        }
        for (int32_t i = 0; i < part; i++)
            pos[i] = job->pos0 + done + i;
        kv_marks_clear(job->seq, lane, lane->len, pos, part);
        lane->top = job->pos0 + done + part - 1;
        ref->n = (uint8_t)(ref->n + part);
        lane->len += part;
        done += part;
    }
}

/* Asks for lanes of jobs to come, the first of n of which is the running one. */
PI_ASKS ask_for(const struct kv_append *job, int64_t n)
{
    enum { HEAD = 3 * KV_ASK_AHEAD, TAIL = 2 * KV_ASK_AHEAD, PAGE = KV_ASK_AHEAD };
    if (n > HEAD)
        kv_lane_ask(kv_lane_at(job[HEAD].seq, job[HEAD].layer, job[HEAD].head));
    if (n > TAIL)
        kv_lane_ask_tail(kv_lane_at(job[TAIL].seq, job[TAIL].layer, job[TAIL].head));
    if (n > PAGE)
        kv_lane_ask_page(kv_lane_at(job[PAGE].seq, job[PAGE].layer, job[PAGE].head));
}

void kv_append_place(struct kv_append *jobs, int32_t n)
{
    for (struct kv_append *job = jobs; job < jobs + n; job++) {
        ask_for(job, jobs + n - job);
        struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
        assert(!job->seq->on_the_way);
        assert(!lane->unordered || job->n == 0 || lane->top < job->pos0);
        job->n_over = 0;
        job->slot = lane->victim > 0 ? lane->victim - 1 : lane->len;
        place_over(job, lane);
        place_behind(job, lane);
    }
}

/* Host rows as the device reads them: n of `dim` floats, `stride` apart. */
static struct pi_at lend_rows(struct pi_device *d, const float *rows, int32_t n, int32_t dim,
                              size_t stride, struct pi_at *room)
{
    size_t size = ((size_t)(n - 1) * stride + (size_t)dim) * sizeof(*rows);
    *room = (struct pi_at){0};
    if (n == 0 || rows == NULL)
        return *room;
    if (!d->in_host)
        *room = d->alloc(d, PI_MEM_SCRATCH, size);
    return d->lend(d, rows, size, *room);
}

void kv_seq_append(struct kv_seq *seq, int32_t layer, int32_t head, int32_t pos0, int32_t n,
                   const float *k, size_t k_stride, const float *v, size_t v_stride)
{
    const struct kv_class *kind = kv_lane_at(seq, layer, head)->kind;
    struct pi_device *d = kind->device;
    struct pi_at room_k, room_v;
    struct kv_append job = {.seq = seq,
                            .layer = layer,
                            .head = head,
                            .pos0 = pos0,
                            .n = n,
                            .k_stride = k_stride,
                            .v_stride = v_stride};
    job.k = lend_rows(d, k, n, kind->k.dim, k_stride, &room_k);
    job.v = lend_rows(d, v, n, kind->v.dim, v_stride, &room_v);
    kv_append_place(&job, 1);
    d->append(NULL, &job, 1);
    d->free(d, room_k);
    d->free(d, room_v);
}

/* Entries of a page at positions below pos, delta included: they are its first ones. */
static int32_t count_below(const struct kv_class *kind, const struct kv_page_ref *ref, int32_t pos)
{
    const int32_t *stored = kv_page_pos(kind, ref->page);
    int64_t bound = (int64_t)pos - ref->delta;
    int32_t low = 0, high = ref->n;
    while (low < high) {
        int32_t mid = (low + high) / 2;
        if (stored[mid] < bound)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Entries of a page at positions below a bound, as parts that close the gaps between them. */
struct below {
    int32_t n;
    int32_t n_part;
    struct kv_page_part part[KV_PAGE_LEN_MAX];
};

static void find_below(const struct kv_lane *lane, const struct kv_page_ref *ref, int32_t pos,
                       struct below *out)
{
    int32_t page = ref->page;
    const int32_t *stored = kv_page_pos(lane->kind, page);
    int64_t bound = (int64_t)pos - ref->delta;
    out->n = out->n_part = 0;
    if (!lane->unordered) {
        out->n = count_below(lane->kind, ref, pos);
        out->n_part = out->n > 0;
        out->part[0] = (struct kv_page_part){page, 0, 0, out->n};
        return;
    }
    for (int32_t i = 0; i < ref->n; i++) {
        struct kv_page_part *last = out->n_part > 0 ? &out->part[out->n_part - 1] : NULL;
        if (stored[i] >= bound)
            continue;
        if (last != NULL && last->from_slot + last->n == i)
            last->n++;
        else
            out->part[out->n_part++] = (struct kv_page_part){page, i, out->n, 1};
        out->n++;
    }
}

/* Whether those are the first ones of the page, so that nothing is to be written. */
static bool is_prefix(const struct below *b)
{
    return b->n_part == 0 || (b->n_part == 1 && b->part[0].from_slot == 0);
}

int64_t kv_seq_truncate_copies(const struct kv_seq *seq, int32_t pos)
{
    const struct kv_cache *cache = seq->cache;
    struct below below;
    int64_t bytes = 0;
    for (int32_t l = 0; l < kv_lane_count(cache); l++) {
        const struct kv_lane *lane = &seq->lane[l];
        for (int32_t i = 0; lane->unordered && i < lane->n_live; i++) {
            find_below(lane, &lane->table[i], pos, &below);
            if (lane->kind->n_ref[lane->table[i].page] > 1 && !is_prefix(&below))
                bytes += kv_pages_bytes(lane->kind, 1);
        }
    }
    return bytes;
}

/* Leaves in a page, whose entries begin at slot `from` and will at slot `to`, those below pos. */
static void truncate_page(struct kv_seq *seq, const struct kv_lane *lane, struct kv_page_ref *ref,
                          int32_t from, int32_t to, int32_t pos)
{
    struct kv_cache *cache = seq->cache;
    struct below below;
    const struct kv_class *kind = lane->kind;
    find_below(lane, ref, pos, &below);
    if (!is_prefix(&below) && kind->n_ref[ref->page] > 1 && !kv_pages_fit(cache, kind, 1)) {
        below.n_part = below.part[0].from_slot == 0;
        below.n = below.n_part > 0 ? below.part[0].n : 0;
    }
    if (!is_prefix(&below)) {
        int32_t first = below.part[0].from_slot == 0; /* that part stays where it is */
        kv_page_unshare(cache, kind, ref);
        for (int32_t i = 0; i < below.n_part; i++)
            below.part[i].from = ref->page;
        kv_page_move(cache, kind, ref->page, below.part + first, below.n_part - first);
    }
    for (int32_t i = 0; i < below.n_part; i++)
        kv_marks_move(seq, lane, to + below.part[i].to_slot, from + below.part[i].from_slot,
                      below.part[i].n);
    ref->closed = ref->closed && ref->n == below.n;
    ref->n = (uint8_t)below.n;
}

void kv_seq_truncate(struct kv_seq *seq, int32_t pos)
{
    struct kv_cache *cache = seq->cache;
    for (int32_t l = 0; l < kv_lane_count(cache); l++) {
        struct kv_lane *lane = &seq->lane[l];
        int32_t n_kept = 0, before = lane->len;
        bool cut = false; /* some page lost entries */
        kv_lane_drop_from(cache, lane, lane->n_live);
        for (int32_t i = 0, from = 0, to = 0; i < lane->n_live; i++) {
            struct kv_page_ref ref = lane->table[i];
            int32_t n = ref.n;
            truncate_page(seq, lane, &ref, from, to, pos);
            from += n;
            to += ref.n;
            struct kv_page_ref *at = cut ? kv_lane_edit(lane) : kv_lane_ref(lane, 0);
            cut = cut || ref.n < n;
            if (ref.n > 0)
                at[n_kept++] = ref;
            else
                kv_page_drop(cache, lane->kind, ref.page);
        }
        lane->n_page = n_kept;
        kv_lane_recount(cache, lane);
        if (lane->len != before)
            lane->victim = 0;
    }
    kv_state_truncate(seq, pos);
}
