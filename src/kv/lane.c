/*
 * lane.c - one lane: where a slot lies, keeping some of its entries, reading some elsewhere. It
 * decides nothing about which entries are worth keeping. Invariant: len, n_live and ragged agree
 * with the table, and positions ascend within every page of a lane that is not unordered.
 */
#include <stdatomic.h>
#include <stdio.h>

#include "kv/lane.h"
#include "base/threads.h"
#include "device/device.h"
#include "kv/lane_internal.h"
#include "kv/marks_internal.h"
#include "kv/page.h"
#include "kv/pool_internal.h"

/* ---- the table ---- */

struct kv_page_ref *kv_lane_edit(struct kv_lane *lane)
{
    static atomic_llong n_edit;
    lane->version = atomic_fetch_add_explicit(&n_edit, 1, memory_order_relaxed) + 1;
    return (struct kv_page_ref *)lane->table;
}

void kv_lane_unshare(struct kv_cache *cache, struct kv_lane *lane, int32_t i)
{
    if (lane->kind->n_ref[lane->table[i].page] > 1)
        kv_page_unshare(cache, lane->kind, &kv_lane_edit(lane)[i]);
}

int32_t kv_lane_find(const struct kv_cache *cache, const struct kv_lane *lane, int32_t slot,
                     int32_t *entry)
{
    assert(slot >= 0 && slot < lane->len);
    int32_t i = 0;
    if (!lane->ragged) {
        i = slot / cache->g.page_len;
        *entry = slot % cache->g.page_len;
        return i;
    }
    while (slot >= lane->table[i].n)
        slot -= lane->table[i++].n;
    *entry = slot;
    return i;
}

int32_t kv_lane_open_page(const struct kv_cache *cache, struct kv_lane *lane)
{
    if (kv_lane_tail_room(cache, lane) > 0)
        return lane->n_live - 1;
    assert(lane->n_live < lane->n_page);
    if (lane->n_live > 0 && lane->table[lane->n_live - 1].n < cache->g.page_len)
        lane->ragged = true;
    return lane->n_live++;
}

void kv_lane_drop_from(struct kv_cache *cache, struct kv_lane *lane, int32_t begin)
{
    for (int32_t i = begin; i < lane->n_page; i++)
        kv_page_drop(cache, lane->kind, lane->table[i].page);
    lane->n_page = begin;
    if (begin < lane->n_live)
        kv_lane_recount(cache, lane);
}

/* Entries of two pages one after the other that positions keep apart: they fall. */
static bool falls(const struct kv_class *kind, const struct kv_page_ref *a,
                  const struct kv_page_ref *b)
{
    return kv_page_pos(kind, b->page)[0] <= kv_page_pos(kind, a->page)[a->n - 1];
}

/* The remaining entries of an unordered lane are ordered again where positions ascend as far as a
   delta goes. Where they ascend only within pages, the lane stays unordered: otherwise packing
   would leave gaps that kv_lane_breaks did not count before. */
void kv_lane_find_order(struct kv_lane *lane)
{
    lane->unordered = false;
    lane->top = -1;
    for (int32_t i = 0; i < lane->n_live; i++) {
        const struct kv_page_ref *ref = &lane->table[i], *before = ref - (i > 0);
        const int32_t *pos = kv_page_pos(lane->kind, ref->page);
        if (i > 0 && before->delta == ref->delta && falls(lane->kind, before, ref))
            lane->unordered = true;
        for (int32_t e = 0; e < ref->n; e++) {
            lane->top = (int32_t)pi_max(lane->top, pos[e] + ref->delta);
            lane->unordered = lane->unordered || (e > 0 && pos[e] <= pos[e - 1]);
        }
    }
}

void kv_lane_recount(const struct kv_cache *cache, struct kv_lane *lane)
{
    lane->len = 0;
    lane->n_live = 0;
    lane->ragged = false;
    for (int32_t i = 0; i < lane->n_page && lane->table[i].n > 0; i++) {
        if (i > 0 && lane->table[i - 1].n < cache->g.page_len)
            lane->ragged = true;
        lane->len += lane->table[i].n;
        lane->n_live++;
    }
    if (lane->unordered)
        kv_lane_find_order(lane);
}

int32_t kv_lane_count_breaks(const struct kv_lane *lane)
{
    int32_t n = 0;
    if (lane->n_live == 0)
        return 0;
    for (int32_t i = 1; i < lane->n_live; i++) {
        const struct kv_page_ref *a = &lane->table[i - 1], *b = &lane->table[i];
        n += a->delta != b->delta || a->n_folded > 0 || b->n_folded > 0 ||
             (!lane->unordered && falls(lane->kind, a, b));
    }
    const struct kv_page_ref *last = &lane->table[lane->n_live - 1];
    return n + (last->delta != 0 || last->n_folded > 0);
}

/* ---- queries ---- */

int32_t kv_lane_breaks(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    if (atomic_load_explicit(&lane->unbroken, memory_order_relaxed) == lane->version + 1)
        return 0;
    int32_t n = kv_lane_count_breaks(lane);
    if (n == 0)
        atomic_store_explicit(&lane->unbroken, lane->version + 1, memory_order_relaxed);
    return n;
}

bool kv_lane_is_plain(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    bool plain = !lane->ragged && !lane->unordered;
    if (!plain || atomic_load_explicit(&lane->even, memory_order_relaxed) == lane->version + 1)
        return plain;
    for (int32_t i = 0; i < lane->n_live && plain; i++)
        plain = lane->table[i].delta == 0 && lane->table[i].n_folded == 0;
    if (plain)
        atomic_store_explicit(&lane->even, lane->version + 1, memory_order_relaxed);
    return plain;
}

struct pi_device *kv_lane_device(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    return kv_lane_at(seq, layer, head)->kind->device;
}

int32_t kv_lane_len(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    return kv_lane_at(seq, layer, head)->len;
}

int32_t kv_seq_most_staying(const struct kv_seq *seq, int32_t n_layer, int32_t n_head)
{
    int32_t most = 0;
    for (int32_t l = 0; l < n_layer; l++)
        for (int32_t h = 0; h < n_head; h++) {
            const struct kv_lane *lane = kv_lane_at(seq, l, h);
            most = (int32_t)pi_max(most, lane->len - (lane->victim > 0));
        }
    return most;
}

int32_t kv_lane_pages(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    return kv_lane_at(seq, layer, head)->n_page;
}

int32_t kv_lane_room(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    return kv_lane_tail_room(seq->cache, kv_lane_at(seq, layer, head));
}

int32_t kv_lane_pos(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    int32_t entry;
    const struct kv_page_ref *ref = &lane->table[kv_lane_find(seq->cache, lane, slot, &entry)];
    return kv_page_pos(lane->kind, ref->page)[entry] + ref->delta;
}

bool kv_lane_unordered(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    return kv_lane_at(seq, layer, head)->unordered;
}

void kv_lane_positions(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t *out,
                       int32_t n)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    assert(n <= lane->len);
    for (int32_t p = 0; n > 0; p++) {
        const struct kv_page_ref *ref = &lane->table[p];
        const int32_t *pos = kv_page_pos(lane->kind, ref->page);
        int32_t part = (int32_t)pi_min(ref->n, n);
        for (int32_t i = 0; i < part; i++)
            *out++ = pos[i] + ref->delta;
        n -= part;
    }
}

int32_t kv_lane_written_pos(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    int32_t entry, i = kv_lane_find(seq->cache, lane, slot, &entry);
    return kv_page_pos(lane->kind, lane->table[i].page)[entry];
}

void kv_lane_written(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t *out, int32_t n)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    assert(n <= lane->len);
    for (int32_t p = 0; n > 0; p++) {
        int32_t part = (int32_t)pi_min(lane->table[p].n, n);
        memcpy(out, kv_page_pos(lane->kind, lane->table[p].page), (size_t)part * sizeof(*out));
        out += part;
        n -= part;
    }
}

bool kv_lane_agrees(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t other_layer,
                    int32_t other_head)
{
    const struct kv_lane *a = kv_lane_at(seq, layer, head);
    const struct kv_lane *b = kv_lane_at(seq, other_layer, other_head);
    if (a->len != b->len)
        return false;
    for (int32_t slot = 0, i = 0, j = 0, at = 0, bt = 0; slot < a->len;) {
        const struct kv_page_ref *x = &a->table[i], *y = &b->table[j];
        const int32_t *p = kv_page_pos(a->kind, x->page) + at;
        const int32_t *q = kv_page_pos(b->kind, y->page) + bt;
        int32_t n = (int32_t)pi_min(x->n - at, y->n - bt);
        if (x->delta != y->delta || x->n_folded != y->n_folded ||
            memcmp(p, q, (size_t)n * sizeof(*p)) != 0)
            return false;
        slot += n;
        at = at + n < x->n ? at + n : 0;
        bt = bt + n < y->n ? bt + n : 0;
        i += at == 0;
        j += bt == 0;
    }
    return true;
}

int32_t kv_lane_last(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    int32_t last = lane->unordered ? lane->top : -1;
    for (int32_t i = 0; !lane->unordered && i < lane->n_live; i++) {
        const struct kv_page_ref *ref = &lane->table[i];
        last = (int32_t)pi_max(last, kv_page_pos(lane->kind, ref->page)[ref->n - 1] + ref->delta);
    }
    return last;
}

/* ---- keeping some entries ---- */

/* Walks kept slots and the places they move to. An entry never moves back in the table, nor up
   within a page that it stays in. So moving entries in order overwrites no unread entry. A new page
   begins when the last is full, when the delta changes or, in an ordered lane, when the position
   falls. A page that counts more than once and is kept whole also begins a new page, keeps its
   count, and ends with it. The kept entries of other such pages count once. */
struct packer {
    const struct kv_cache *cache;
    const struct kv_lane *lane;
    int32_t from;       /* table index of the source page */
    int32_t from_begin; /* its first slot */
    int32_t from_end;
    int32_t delta;
    int32_t n_folded; /* of its kept entries */
    int32_t entry;    /* of the slot in its page */
    int32_t pos;      /* as stored */
    int32_t to;       /* table index of the destination, -1 before the first slot */
    int32_t to_entry;
    int32_t to_delta;
    int32_t to_n_folded;
    bool opened; /* the slot is the first of its destination */
};

static void packer_start(const struct kv_cache *cache, const struct kv_lane *lane, struct packer *p)
{
    *p = (struct packer){.cache = cache, .lane = lane, .from = -1, .to = -1};
}

/* Goes on to the page of the first of n > 0 ascending slots, that is the first of it; whether it is
   another one. */
static bool packer_enter(struct packer *p, const int32_t *slots, int32_t n)
{
    const struct kv_page_ref *ref = NULL;
    while (slots[0] >= p->from_end) {
        ref = &p->lane->table[++p->from];
        p->from_begin = p->from_end;
        p->from_end += ref->n;
    }
    if (ref == NULL)
        return false;
    bool whole = slots[0] == p->from_begin && n >= ref->n && slots[ref->n - 1] == p->from_end - 1;
    p->delta = ref->delta;
    p->n_folded = whole ? ref->n_folded : 0;
    return true;
}

/* Goes on to the first of the n > 0 slots that are left. */
static void packer_next(struct packer *p, const int32_t *slots, int32_t n)
{
    bool entered = packer_enter(p, slots, n);
    int32_t before = p->pos;
    p->entry = slots[0] - p->from_begin;
    p->pos = kv_page_pos(p->lane->kind, p->lane->table[p->from].page)[p->entry];
    p->to_entry++;
    p->opened = p->to < 0 || p->to_entry == p->cache->g.page_len || p->delta != p->to_delta ||
                (entered && (p->n_folded > 0 || p->to_n_folded > 0)) ||
                (p->pos <= before && !p->lane->unordered);
    if (p->opened) {
        p->to++;
        p->to_entry = 0;
        p->to_delta = p->delta;
        p->to_n_folded = p->n_folded;
    }
}

/* How many of n > 0 ascending slots, from the first on, have no gap between them. */
static int32_t count_adjacent(const int32_t *slots, int32_t n)
{
    int32_t fit = 1, beyond = n + 1;
    if (slots[n - 1] - slots[0] == n - 1)
        return n;
    while (beyond - fit > 1) {
        int32_t mid = fit + (beyond - fit) / 2;
        if (slots[mid - 1] - slots[0] == mid - 1)
            fit = mid;
        else
            beyond = mid;
    }
    return fit;
}

/* How many of n slots, from that of the packer on, lie and go next to each other. */
static int32_t packer_stretch(const struct packer *p, const int32_t *slots, int32_t n)
{
    int64_t most = pi_min(p->from_end - slots[0], p->cache->g.page_len - p->to_entry);
    return count_adjacent(slots, (int32_t)pi_min(n, most));
}

/* Goes on within a stretch. */
static void packer_skip(struct packer *p, int32_t n)
{
    p->entry += n;
    p->to_entry += n;
    p->pos = kv_page_pos(p->lane->kind, p->lane->table[p->from].page)[p->entry];
}

static bool packer_stays(const struct packer *p)
{
    return p->from == p->to && p->entry == p->to_entry;
}

/* Shared pages that keeping these slots writes to, each of which takes a free page, but that of the
   last holder. Holders are counted as kv_seq_charge_copies does, which foretold the most. */
static int32_t count_copies(const struct kv_cache *cache, const struct kv_lane *lane,
                            const int32_t *slots, int32_t n)
{
    struct packer p;
    int32_t n_copy = 0;
    bool written = false;
    packer_start(cache, lane, &p);
    for (int32_t j = 0; j < n; j++) {
        packer_next(&p, slots + j, n - j);
        if (p.opened)
            written = false;
        if (packer_stays(&p) || written)
            continue;
        written = true;
        n_copy += kv_page_charge(lane->kind, lane->table[p.to].page);
    }
    for (int32_t i = 0; i < lane->n_live; i++)
        lane->kind->n_entry[lane->table[i].page] = 0;
    return n_copy;
}

/* Stretches that wait to be moved: of a page, or of several where the device takes pages
   together. */
struct moves {
    int32_t to; /* table index of the last page */
    int32_t n, n_goal;
    bool begun; /* the device has got some */
    struct kv_page_goal goal[KV_PAGE_LEN_MAX];
    struct kv_page_part part[8 * KV_PAGE_LEN_MAX];
};

/* To the device, all at once. Positions were moved. */
static void moves_send(const struct kv_cache *cache, const struct kv_lane *lane, struct moves *m)
{
    const struct kv_lane_moves all = {.kind = lane->kind,
                                      .lane = lane,
                                      .first = !m->begun,
                                      .n_goal = m->n_goal,
                                      .n_part = m->n,
                                      .goal = m->goal,
                                      .part = m->part};
    if (m->n_goal > 0)
        lane->kind->device->move_lane(cache, &all);
    m->begun = m->begun || m->n_goal > 0;
    m->n = m->n_goal = 0;
}

/* The last page is complete. */
static void moves_run(const struct kv_cache *cache, const struct kv_lane *lane, struct moves *m)
{
    int32_t n_before = 0;
    for (int32_t i = 0; i < m->n_goal; i++)
        n_before += m->goal[i].n_part;
    if (m->n == n_before)
        return;
    int32_t page = lane->table[m->to].page, n_part = m->n - n_before;
    bool full = lane->table[m->to].n == cache->g.page_len;
    if (lane->kind->device->move_lane != NULL) {
        kv_page_move_pos(lane->kind, page, m->part + n_before, n_part);
        m->goal[m->n_goal++] = (struct kv_page_goal){page, n_part, full};
        if (m->n_goal == PI_LEN(m->goal) || m->n + KV_PAGE_LEN_MAX > (int32_t)PI_LEN(m->part))
            moves_send(cache, lane, m);
        return;
    }
    kv_page_move(cache, lane->kind, page, m->part, m->n);
    if (full)
        lane->kind->device->finish(cache, lane->kind, page);
    m->n = 0;
}

static void moves_add(const struct kv_cache *cache, const struct kv_lane *lane, struct moves *m,
                      const struct packer *p, int32_t n)
{
    int32_t from = lane->table[p->from].page;
    if (m->to != p->to)
        moves_run(cache, lane, m);
    m->to = p->to;
    m->part[m->n++] = (struct kv_page_part){from, p->entry, p->to_entry, n};
}

/* Gives the lane pages of its own where keeping the slots writes to shared ones; they are free. The
   copies hold the contents of the shared pages, because entries of them are still to be moved. */
static void claim(struct kv_cache *cache, struct kv_lane *lane, const int32_t *slots, int32_t n)
{
    struct packer p;
    packer_start(cache, lane, &p);
    for (int32_t j = 0; j < n; j++) {
        packer_next(&p, slots + j, n - j);
        if (!packer_stays(&p))
            kv_lane_unshare(cache, lane, p.to);
    }
}

/* Moves the kept entries to their places, in pages that the lane owns alone. The lane's pages
   beyond n_live must then still be given back. This function touches no counts of the pool, so that
   several threads can pack lanes. */
static void pack(const struct kv_cache *cache, struct kv_lane *lane, const int32_t *slots,
                 int32_t n)
{
    struct packer p;
    struct moves moves = {.to = -1};
    struct kv_page_ref *table = kv_lane_edit(lane);
    packer_start(cache, lane, &p);
    for (int32_t j = 0, n_next; j < n; j += n_next) {
        packer_next(&p, slots + j, n - j);
        n_next = packer_stretch(&p, slots + j, n - j);
        struct kv_page_ref *to = &table[p.to];
        if (!packer_stays(&p))
            moves_add(cache, lane, &moves, &p, n_next);
        packer_skip(&p, n_next - 1);
        to->delta = p.to_delta;
        to->n_folded = (uint16_t)p.to_n_folded;
        to->n = (uint8_t)(p.to_entry + 1);
        to->closed = false;
    }
    moves_run(cache, lane, &moves);
    if (lane->kind->device->move_lane != NULL)
        moves_send(cache, lane, &moves);
    lane->n_live = p.to + 1;
}

static bool lane_shares(const struct kv_lane *lane)
{
    for (int32_t i = 0; i < lane->n_live; i++)
        if (lane->kind->n_ref[lane->table[i].page] > 1)
            return true;
    return false;
}

/* Whether a lane has these slots, each above the one before. */
static bool are_slots(const struct kv_lane *lane, const int32_t *slots, int32_t n)
{
    int32_t wrong = 0; /* one loop without an exit: vectors */
    if (n <= 0 || n > lane->len)
        return n == 0;
    for (int32_t j = 1; j < n; j++)
        wrong |= slots[j] <= slots[j - 1];
    return wrong == 0 && slots[0] >= 0 && slots[n - 1] < lane->len;
}

/* INVALID, with what is wrong. */
static pith_status refuse_slots(const struct kv_lane *lane, const int32_t *slots, int32_t n,
                                pith_error *err)
{
    int32_t j = 0;
    if (n < 0 || n > lane->len)
        return pi_fail(err, PITH_INVALID, "%d entries cannot be kept of %d", n, lane->len);
    while (slots[j] >= 0 && slots[j] < lane->len && (j == 0 || slots[j] > slots[j - 1]))
        j++;
    return pi_fail(err, PITH_INVALID,
                   "slot %d of those to keep is %d: it must be above the one before and below %d",
                   j, slots[j], lane->len);
}

enum { CHECKED_BEFORE = 64 }; /* cuts that may have had the same slots */

/* Whether an earlier cut has the same slots, in a lane of the same length. */
static bool is_checked(const struct kv_seq *seq, const struct kv_cut *cut, int32_t i)
{
    int32_t len = kv_lane_at(seq, cut[i].layer, cut[i].head)->len;
    for (int32_t j = i - 1; j >= 0 && j >= i - CHECKED_BEFORE; j--)
        if (cut[j].slots == cut[i].slots && cut[j].n == cut[i].n &&
            kv_lane_at(seq, cut[j].layer, cut[j].head)->len == len)
            return true;
    return false;
}

/* The arguments of a thread that checks or packs. */
struct packing {
    struct kv_seq *seq;
    const struct kv_cut *cut;
    atomic_bool wrong; /* some cut has wrong slots */
};

static void check_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct packing *job = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const struct kv_cut *cut = &job->cut[i];
        const struct kv_lane *lane = kv_lane_at(job->seq, cut->layer, cut->head);
        if (!is_checked(job->seq, job->cut, (int32_t)i) && !are_slots(lane, cut->slots, cut->n))
            atomic_store(&job->wrong, true);
    }
}

static void pack_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct packing *job = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const struct kv_cut *cut = &job->cut[i];
        struct kv_lane *lane = kv_lane_at(job->seq, cut->layer, cut->head);
        pack(job->seq->cache, lane, cut->slots, cut->n);
        kv_marks_keep(job->seq, lane, cut->slots, cut->n);
    }
}

static pith_status check_copies(const struct kv_cache *cache, const struct kv_need *copies,
                                int64_t n, int64_t n_entry, pith_error *err)
{
    char what[96];
    snprintf(what, sizeof(what), "keeping %lld of %lld entries copies shared pages", (long long)n,
             (long long)n_entry);
    return kv_cache_secure(cache, copies, what, err);
}

pith_status kv_seq_compact_lanes(struct kv_seq *seq, const struct kv_cut *cut, int32_t n_cut,
                                 int32_t n_thread, pith_error *err)
{
    struct kv_cache *cache = seq->cache;
    struct packing job = {.seq = seq, .cut = cut};
    struct kv_need copies = {0};
    int64_t n_entry = 0, n = 0;
    pi_parallel_items(n_thread, n_cut, check_lanes, &job);
    for (int32_t i = 0; i < n_cut; i++) {
        const struct kv_lane *lane = kv_lane_at(seq, cut[i].layer, cut[i].head);
        if (atomic_load(&job.wrong) && !are_slots(lane, cut[i].slots, cut[i].n))
            return refuse_slots(lane, cut[i].slots, cut[i].n, err);
        if (lane_shares(lane))
            kv_need_add(
                &copies, lane->kind->part,
                kv_pages_bytes(lane->kind, count_copies(cache, lane, cut[i].slots, cut[i].n)));
        n_entry += lane->len;
        n += cut[i].n;
    }
    if (copies.all > 0)
        PI_TRY(check_copies(cache, &copies, n, n_entry, err));
    for (int32_t i = 0; copies.all > 0 && i < n_cut; i++)
        claim(cache, kv_lane_at(seq, cut[i].layer, cut[i].head), cut[i].slots, cut[i].n);
    pi_parallel_items(n_thread, n_cut, pack_lanes, &job);
    for (int32_t i = 0; i < n_cut; i++) {
        struct kv_lane *lane = kv_lane_at(seq, cut[i].layer, cut[i].head);
        kv_lane_drop_from(cache, lane, lane->n_live);
        kv_lane_recount(cache, lane);
        lane->victim = 0;
    }
    return PITH_OK;
}

pith_status kv_seq_compact(struct kv_seq *seq, int32_t layer, int32_t head, const int32_t *slots,
                           int32_t n, pith_error *err)
{
    const struct kv_cut cut = {layer, head, slots, n};
    return kv_seq_compact_lanes(seq, &cut, 1, 1, err);
}

/* ---- reading the first entries elsewhere ---- */

void kv_seq_shift(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot, int32_t delta)
{
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    struct kv_page_ref *table = kv_lane_edit(lane);
    lane->victim = lane->victim <= slot ? 0 : lane->victim;
    for (int32_t i = 0; slot > 0; i++) {
        assert(i < lane->n_live && lane->table[i].n <= slot);
        table[i].delta = delta;
        slot -= lane->table[i].n;
    }
    if (lane->unordered)
        kv_lane_find_order(lane);
}

pith_status kv_seq_split(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot,
                         pith_error *err)
{
    struct kv_cache *cache = seq->cache;
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    int32_t entry, i = 0;
    if (slot == 0 || slot == lane->len)
        return PITH_OK;
    i = kv_lane_find(cache, lane, slot, &entry);
    if (entry == 0)
        return PITH_OK;
    bool shared = lane->kind->n_ref[lane->table[i].page] > 1;
    if (!kv_pages_fit(cache, lane->kind, 1 + shared) || lane->n_page == seq->cap)
        return pi_fail(err, PITH_KV_FULL, "no page for the entries before slot %d of %d", slot,
                       lane->len);
    kv_lane_unshare(cache, lane, i);
    struct kv_page_ref *table = kv_lane_edit(lane), first = lane->table[i];
    first.page = kv_page_take(cache, lane->kind, lane->table, i, 1);
    first.n = (uint8_t)entry;
    first.closed = false;
    int32_t page = lane->table[i].page;
    const struct kv_page_part before = {page, 0, 0, entry};
    const struct kv_page_part after = {page, entry, 0, lane->table[i].n - entry};
    kv_page_move(cache, lane->kind, first.page, &before, 1);
    kv_page_move(cache, lane->kind, page, &after, 1);
    table[i].n = (uint8_t)(table[i].n - entry);
    memmove(&table[i + 1], &table[i], (size_t)(lane->n_page - i) * sizeof(*table));
    table[i] = first;
    lane->n_page++;
    kv_lane_recount(cache, lane);
    return PITH_OK;
}
