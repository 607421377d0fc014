/*
 * attend_plan.c - which pages a call of attention reads, and in which chunks. A lane's list of
 * pages stays on the device (pages_of), and only what changed since the last call goes there. The
 * host compares tables whose version is another (kv_lane_edit) by content. Pages that every row
 * of a call sees whole need no positions. Pages that no row sees are left out. Both change no bit.
 *
 * Invariant: where chunks of pages begin depends on the page's place in its lane, of lanes with a
 * window on its first position.
 */
#include "device/gpu/attend_plan.h"

#include <math.h>

static_assert((int)GPU_TILE == (int)KV_GATHER_LEN && (int)KV_PAGE_LEN_MAX <= (int)GPU_TILE,
              "tiles of kernels");

/* ---- lists of pages that stay on the device ---- */

enum {
    FIRST_REFS = 1 << 16,
    FIRST_LANES = 1 << 10,
    RECENT = 4096 /* launches: a lane that was read in none of them is likely gone */
};

/* A lane's table as the device has it. */
struct lane_copy {
    const struct kv_lane *lane; /* where it was found; NULL: nothing is here */
    struct kv_page_ref *was;    /* [cap] */
    gpu_at at;                  /* [cap] struct gpu_attend_ref */
    int32_t n, cap;
    int64_t version; /* of the lane's table */
    bool plain;      /* no page has a delta */
    bool folded;     /* some page counts more than once */
    int64_t used;
};

static void forget_lanes(struct gpu_attend *s)
{
    for (size_t i = 0; i < s->cap_lane; i++) {
        pi_mem_free(s->lane[i].was);
        s->lane[i] = (struct lane_copy){0};
    }
    s->n_lane = s->n_ref = s->n_patch = 0;
    s->forgot = true;
}

void gpu_attend_free(struct gpu_attend *s)
{
    if (s == NULL)
        return;
    forget_lanes(s);
    pi_mem_free(s->lane);
    pi_mem_free(s->patch);
    pi_mem_free(s->delta);
    pi_mem_free(s);
}

static struct lane_copy *place_in(struct lane_copy *lanes, size_t cap, const struct kv_lane *lane)
{
    size_t i = gpu_hash(lane) & (cap - 1);
    while (lanes[i].lane != NULL && lanes[i].lane != lane)
        i = (i + 1) & (cap - 1);
    return &lanes[i];
}

/* Asks the processor's cache for a lane's place, then for what it has there. */
PI_ASKS ask_for_place(const struct gpu_attend *s, const struct kv_attend_job *job, bool inside)
{
    const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
    if (s->cap_lane == 0)
        return;
    const struct lane_copy *c = &s->lane[gpu_hash(lane) & (s->cap_lane - 1)];
    if (!inside)
        PI_ASK(c);
    else if (c->lane == lane && c->n > 0)
        PI_ASK(&c->was[c->n - 1]);
}

void gpu_plan_ask(const struct gpu_attend *s, const struct kv_attend_job *jobs, int32_t n)
{
    if (n > 2 * KV_ASK_AHEAD)
        ask_for_place(s, &jobs[2 * KV_ASK_AHEAD], false);
    if (n > KV_ASK_AHEAD)
        ask_for_place(s, &jobs[KV_ASK_AHEAD], true);
}

static bool grow_lanes(struct gpu_attend *s)
{
    size_t cap = s->cap_lane > 0 ? 2 * s->cap_lane : FIRST_LANES;
    struct lane_copy *more = pi_mem_alloc(PI_MEM_DEVICE, cap * sizeof(*more));
    if (more == NULL)
        return false;
    for (size_t i = 0; i < s->cap_lane; i++)
        if (s->lane[i].lane != NULL)
            *place_in(more, cap, s->lane[i].lane) = s->lane[i];
    pi_mem_free(s->lane);
    s->lane = more;
    s->cap_lane = cap;
    return true;
}

/* Room for n more references. Where there is none all lists are dropped, and a launch begins anew
   with room for what was read lately and for `want`. */
static gpu_at take_refs(struct gpu_device *d, size_t n, size_t want)
{
    struct gpu_attend *s = d->attend;
    if (s->n_ref + n > s->cap_ref) {
        size_t live = want;
        for (size_t i = 0; i < s->cap_lane; i++)
            if (s->lane[i].lane != NULL && s->lane[i].used + RECENT > s->n_launch)
                live += (size_t)s->lane[i].cap;
        forget_lanes(s);
        if (s->cap_ref < 2 * live)
            s->cap_ref = pi_max(FIRST_REFS, 4 * live);
    }
    gpu_at room = gpu_room(d, GPU_ROOM_REFS, s->cap_ref * sizeof(struct gpu_attend_ref));
    gpu_at at = room + s->n_ref * sizeof(struct gpu_attend_ref);
    s->n_ref += n;
    return room != 0 ? at : 0;
}

static bool add_patch(struct gpu_attend *s, struct lane_copy *c, const struct kv_lane *lane,
                      int32_t from)
{
    if (s->n_patch == s->cap_patch) {
        size_t cap = 2 * s->cap_patch + 64;
        struct gpu_patch *more = pi_mem_grow(PI_MEM_DEVICE, s->patch, cap, sizeof(*more));
        if (more == NULL)
            return false;
        s->patch = more;
        s->cap_patch = cap;
    }
    int32_t n = lane->n_live - from;
    s->patch[s->n_patch++] = (struct gpu_patch){
        c->at + (size_t)from * sizeof(struct gpu_attend_ref), lane->table + from, n};
    memcpy(c->was + from, lane->table + from, (size_t)n * sizeof(*c->was));
    c->n = lane->n_live;
    c->plain = true;
    c->folded = false;
    for (int32_t i = 0; i < c->n; i++) {
        c->plain = c->plain && c->was[i].delta == 0;
        c->folded = c->folded || c->was[i].n_folded > 0;
    }
    return true;
}

/* Whether they are the same but for how many entries the page has. */
static bool same_page(const struct kv_page_ref *a, const struct kv_page_ref *b)
{
    return a->page == b->page && a->delta == b->delta && a->n_folded == b->n_folded;
}

/* How many pages the device has as they are. It need not know how many entries the last one has. A
   table of the same version may have more pages, or fewer, and its last one more entries. */
static int32_t count_same(const struct lane_copy *c, const struct kv_lane *lane)
{
    if (c->n > 0 && c->version == lane->version)
        return lane->n_live > c->n ? c->n - 1 : lane->n_live;
    int32_t n = (int32_t)pi_min(c->n, lane->n_live), i = 0;
    if (n == lane->n_live && memcmp(c->was, lane->table, (size_t)(n - 1) * sizeof(*c->was)) == 0)
        i = n - 1;
    while (i < n && memcmp(&c->was[i], &lane->table[i], sizeof(*c->was)) == 0)
        i++;
    return i == lane->n_live - 1 && i < n && same_page(&c->was[i], &lane->table[i]) ? i + 1 : i;
}

/* The list of a lane on the device, with patches that make it what the table is; `want` as above.
   folded: becomes true where a page counts more than once. */
static bool pages_of(struct gpu_device *d, const struct kv_lane *lane, size_t want,
                     struct gpu_attend_list *out, bool *plain, bool *folded)
{
    struct gpu_attend *s = d->attend;
    *out = (struct gpu_attend_list){.n = lane->n_live};
    *plain = true;
    if (lane->n_live == 0)
        return true;
    if (2 * (s->n_lane + 1) > s->cap_lane && !grow_lanes(s))
        return false;
    struct lane_copy *c = place_in(s->lane, s->cap_lane, lane);
    if (c->cap < lane->n_live) {
        int32_t cap = lane->n_live + lane->n_live / 2 + 8;
        gpu_at at = take_refs(d, (size_t)cap, want);
        c = place_in(s->lane, s->cap_lane, lane);
        pi_mem_free(c->was);
        s->n_lane += c->lane == NULL;
        *c = (struct lane_copy){.lane = lane,
                                .was = pi_mem_alloc(PI_MEM_DEVICE, (size_t)cap * sizeof(*c->was)),
                                .at = at,
                                .cap = cap,
                                .plain = true};
        if (at == 0 || c->was == NULL) {
            c->cap = 0;
            return false;
        }
    }
    c->used = s->n_launch;
    int32_t same = count_same(c, lane);
    if (same < lane->n_live && !add_patch(s, c, lane, same))
        return false;
    c->n = lane->n_live;
    c->version = lane->version;
    out->refs = c->at;
    out->last_n = lane->table[lane->n_live - 1].n;
    *plain = c->plain;
    *folded = *folded || c->folded;
    return true;
}

/* ---- what changed of them ---- */

void *gpu_take(struct gpu_listing *l, size_t n, size_t size, gpu_at *at)
{
    void *part = l->host + l->used;
    *at = l->at + l->used;
    l->used += pi_align(n * size, 16);
    assert(l->used <= l->size);
    return part;
}

static struct gpu_attend_ref ref_of(const struct kv_page_ref *ref)
{
    return (struct gpu_attend_ref){ref->page, ref->n, ref->delta,
                                   ref->n_folded > 0 ? (float)log(1.0 + ref->n_folded) : 0.0f};
}

size_t gpu_patches_size(const struct gpu_attend *s)
{
    size_t size = 32;
    for (size_t i = 0; i < s->n_patch; i++)
        size +=
            sizeof(struct gpu_attend_patch) + (size_t)s->patch[i].n * sizeof(struct gpu_attend_ref);
    return size;
}

void gpu_patches_take(const struct gpu_attend *s, struct gpu_listing *l, gpu_at *patches)
{
    struct gpu_attend_patch *to = gpu_take(l, s->n_patch, sizeof(*to), patches);
    for (size_t i = 0; i < s->n_patch; i++) {
        const struct gpu_patch *p = &s->patch[i];
        struct gpu_attend_ref *refs = gpu_take(l, (size_t)p->n, sizeof(*refs), &to[i].from);
        to[i].to = p->to;
        to[i].n = p->n;
        for (int32_t j = 0; j < p->n; j++)
            refs[j] = ref_of(&p->from[j]);
    }
}

/* ---- lists for others ---- */

/* Patches of all lanes; false: no memory, or all lists were dropped meanwhile. */
static bool find_lists(struct gpu_device *d, const struct kv_lane *const *lanes, int32_t n,
                       struct gpu_lane_list *out)
{
    size_t want = 0;
    bool ok = true, plain = true, folded = false;
    for (int32_t i = 0; i < n; i++)
        want += (size_t)lanes[i]->n_live * 2 + 64;
    d->attend->forgot = false;
    for (int32_t i = 0; i < n && ok && !d->attend->forgot; i++) {
        struct gpu_attend_list list;
        ok = pages_of(d, lanes[i], want, &list, &plain, &folded);
        out[i] = (struct gpu_lane_list){list.refs, !plain};
    }
    return ok && !d->attend->forgot;
}

bool gpu_attend_lists(struct gpu_device *d, const struct kv_lane *const *lanes, int32_t n,
                      struct gpu_lane_list *out)
{
    struct gpu_listing l = {0};
    struct gpu_attend_args a = {0};
    void *host;
    if (d->attend == NULL)
        d->attend = pi_mem_alloc(PI_MEM_DEVICE, sizeof(*d->attend));
    struct gpu_attend *s = d->attend;
    if (s == NULL)
        return false;
    s->n_launch++;
    if (!find_lists(d, lanes, n, out) && !find_lists(d, lanes, n, out))
        return false;
    s->forgot = false;
    if (s->n_patch == 0)
        return true;
    l.size = gpu_patches_size(s);
    l.at = gpu_list(d, l.size, &host);
    if (l.at == 0)
        return false;
    l.host = host;
    gpu_patches_take(s, &l, &a.patches);
    gpu_send(d, l.at, l.used);
    gpu_run(d, GPU_KERNEL_attend_refs, (int64_t)s->n_patch, 1, 1, 0, &a);
    s->n_patch = 0;
    return true;
}

/* ---- the pages of a call ---- */

/* First page of a chunk counts 2 pages each, then 4, then 8, then 16 (chunk_first of
   attend.cuh). */
int32_t gpu_chunk_of(int32_t page)
{
    return page < 16    ? page / 2
           : page < 64  ? 8 + (page - 16) / 4
           : page < 256 ? 20 + (page - 64) / 8
                        : 44 + (page - 256) / 16;
}

/* Pages of the store that are one page of kernels. In a lane with a window, whose first pages go, a
   page's number says nothing about which are together. */
static int32_t pages_per(const struct kv_attend_job *job)
{
    int32_t page_len = job->seq->cache->g.page_len;
    return gpu_is_listed(job) || kv_lane_at(job->seq, job->layer, job->head)->window > 0
               ? 1
               : GPU_TILE / page_len;
}

/* Pages of a lane that some row sees. Every row sees all of them whole, but for the first n_low and
   those from `high` on. */
struct span {
    int32_t first, end, n_low, high;
};

/* The least and the largest position of a page, as they are read. */
static void page_reach(const struct kv_lane *lane, const struct kv_page_ref *ref, int64_t *low,
                       int64_t *high)
{
    const int32_t *pos = kv_page_pos(lane->kind, ref->page);
    int32_t least = pos[0], most = pos[ref->n > 0 ? ref->n - 1 : 0];
    for (int32_t i = 0; lane->unordered && i < ref->n; i++) {
        least = (int32_t)pi_min(least, pos[i]);
        most = (int32_t)pi_max(most, pos[i]);
    }
    *low = (int64_t)least + ref->delta;
    *high = (int64_t)most + ref->delta;
}

/* Of a lane without deltas and window whose positions ascend: from the end. */
static struct span span_of_ordered(const struct kv_lane *lane, int64_t first, int64_t last)
{
    struct span s = {.end = lane->n_live, .high = lane->n_live};
    for (int64_t low, high; s.high > 0; s.high--) {
        page_reach(lane, &lane->table[s.high - 1], &low, &high);
        if (high <= first)
            break;
        if (low > last)
            s.end = s.high - 1;
    }
    return s;
}

/* Whether some row sees the page, and whether all see it whole. */
static bool is_seen(const struct kv_lane *lane, int32_t i, int64_t first, int64_t last, bool *whole)
{
    int64_t window = lane->window, low, high;
    page_reach(lane, &lane->table[i], &low, &high);
    bool seen = low <= last && (window == 0 || high > first - window);
    *whole = seen && high <= first && (window == 0 || low > last - window);
    return seen;
}

static struct span span_of(const struct kv_lane *lane, bool plain, int64_t first, int64_t last)
{
    struct span s = {.first = lane->n_live};
    bool whole;
    if (lane->unordered && lane->top <= first)
        return (struct span){.end = lane->n_live, .high = lane->n_live};
    if (!lane->unordered && plain && lane->window == 0)
        return span_of_ordered(lane, first, last);
    for (int32_t i = 0; i < lane->n_live; i++)
        if (is_seen(lane, i, first, last, &whole)) {
            s.first = (int32_t)pi_min(s.first, i);
            s.end = i + 1;
        }
    s.first = (int32_t)pi_min(s.first, s.end);
    s.high = s.first;
    while (lane->window > 0 && s.high < s.end &&
           (is_seen(lane, s.high, first, last, &whole), !whole))
        s.high++;
    s.n_low = s.high - s.first;
    while (s.high < s.end && (is_seen(lane, s.high, first, last, &whole), whole))
        s.high++;
    return s;
}

/* Guests and a lane, one behind the other. */
static struct span span_both(struct span a, int32_t n_a, struct span b)
{
    if (n_a == 0)
        return b;
    /* a window's early pages are at the beginning of either: then all have positions */
    bool whole = a.n_low == 0 && a.high == a.end && b.n_low == 0 && b.first == 0;
    return (struct span){.first = a.first,
                         .end = n_a + b.end,
                         .high = whole && a.end == n_a ? n_a + b.high : a.first};
}

/* The span in pages of `per` pages of the store each; the store has n_page. */
static struct span span_joined(struct span s, int32_t per, int32_t n_page)
{
    if (per == 1)
        return s;
    bool whole = s.high == n_page && s.end == n_page;
    struct span out = {.first = s.first / per, .end = (s.end + per - 1) / per};
    out.high = s.first % per != 0 ? out.first : whole ? out.end : s.high / per;
    return out;
}

/* ---- plans ---- */

static bool add_delta(struct gpu_attend *s, struct gpu_plan *p, int32_t delta)
{
    for (int32_t i = 0; i < p->n_variant; i++)
        if (s->delta[p->delta0 + i] == delta)
            return true;
    if (s->n_delta == s->cap_delta) {
        size_t cap = 2 * s->cap_delta + 64;
        int32_t *more = pi_mem_grow(PI_MEM_DEVICE, s->delta, cap, sizeof(*more));
        if (more == NULL)
            return false;
        s->delta = more;
        s->cap_delta = cap;
    }
    s->delta[s->n_delta++] = delta;
    p->n_variant++;
    return true;
}

/* The variants of queries that a lane's pages need: one for each delta. */
static bool add_deltas(struct gpu_attend *s, struct gpu_plan *p, const struct kv_lane *lane)
{
    bool ok = true;
    for (int32_t i = 0; ok && i < lane->n_live; i++)
        ok = add_delta(s, p, lane->table[i].delta);
    return ok;
}

int32_t gpu_plan_tiles(const struct kv_attend_job *job, struct gpu_attend_ref *refs,
                       struct gpu_attend_entry *entries)
{
    const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
    const struct kv_page_ref *of = NULL; /* the tile's */
    int32_t n_tile = 0, n = 0, index = 0, begin = 0, before = 0;
    for (int32_t at = 0; at < job->n_slot; at++) {
        int32_t slot = job->slots[at];
        while (slot >= begin + lane->table[index].n)
            begin += lane->table[index++].n;
        const struct kv_page_ref *ref = &lane->table[index];
        int32_t pos = kv_page_pos(lane->kind, ref->page)[slot - begin];
        bool falls = !lane->unordered && pos <= before;
        if (at == 0 || n == GPU_TILE || ref->delta != of->delta || ref->n_folded != of->n_folded ||
            falls) {
            of = ref;
            n = 0;
            n_tile++;
        }
        before = pos;
        n++;
        if (refs != NULL) {
            refs[n_tile - 1] = ref_of(of);
            refs[n_tile - 1].page = at + 1 - n;
            refs[n_tile - 1].n = n;
            entries[at] =
                (struct gpu_attend_entry){gpu_page_at(lane->kind, ref->page), slot - begin, pos};
        }
    }
    return n_tile;
}

/* The tiles of a call's list; `high` is the first one with an entry that some query does not
   see. */
static struct span span_of_listed(const struct kv_attend_job *job)
{
    const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
    if (job->slots == NULL) {
        int32_t n = (int32_t)pi_ceil_div(job->n_slot, GPU_TILE);
        return (struct span){.end = n, .high = (job->n_slot - job->chosen.n_last) / GPU_TILE};
    }
    struct span s = {.end = gpu_plan_tiles(job, NULL, NULL)};
    int32_t n = 0, index = 0, begin = 0;
    if (lane->window > 0)
        return s;
    /* tiles of 64 end where their last entry does; shorter ones make some more tiles have
       positions */
    for (; n < job->n_slot; n++) {
        while (job->slots[n] >= begin + lane->table[index].n)
            begin += lane->table[index++].n;
        const struct kv_page_ref *ref = &lane->table[index];
        if (kv_page_pos(lane->kind, ref->page)[job->slots[n] - begin] + ref->delta > job->pos0)
            break;
    }
    s.high = n == job->n_slot ? s.end : n / GPU_TILE;
    return s;
}

int32_t gpu_plan_chunks(const struct gpu_plan *p, int32_t *to, int32_t *most)
{
    const struct kv_attend_job *job = p->job;
    const struct kv_lane *own = kv_lane_at(job->seq, job->layer, job->head);
    int32_t n = 0, last = -1, begin = p->first;
    for (int32_t i = p->first; i < p->end; i++) {
        const struct kv_lane *lane =
            i < p->guests.n ? kv_lane_at(job->guests, job->layer, job->head) : own;
        int32_t page = lane->table[i < p->guests.n ? i : i - p->guests.n].page;
        int32_t chunk = gpu_chunk_of(kv_page_pos(lane->kind, page)[0] / GPU_TILE);
        if (n == 0 || chunk != last) {
            begin = i;
            if (to != NULL)
                to[n] = i;
            n++;
        }
        *most = (int32_t)pi_max(*most, i + 1 - begin);
        last = chunk;
    }
    if (to != NULL)
        to[n] = p->end;
    return n;
}

static int32_t row_tiles(const struct kv_attend_job *job)
{
    return (job->n_tok * job->n_group + GPU_ROWS - 1) / GPU_ROWS;
}

size_t gpu_plan_sums(const struct gpu_plan *p)
{
    if (gpu_is_many(p->way))
        return (size_t)gpu_many_tiles(p->job) * GPU_TILE_ROWS;
    int64_t n_row = (int64_t)p->job->n_tok * p->job->n_group;
    int32_t n_chunk = p->way == GPU_WAY_TALL ? 1 : p->n_chunk;
    return (size_t)(row_tiles(p->job) * pi_min(n_row, GPU_ROWS)) * (size_t)n_chunk;
}

/* Bytes that a call takes of the list, at most. */
static size_t list_bytes(const struct gpu_plan *p)
{
    const struct kv_attend_job *job = p->job;
    size_t turn = job->rope != NULL ? (size_t)job->rope->n_pair * 2 * sizeof(float) : 0;
    return (size_t)job->n_group * sizeof(float) + 256 +
           (size_t)(p->n_low + p->end - p->high) * GPU_TILE * sizeof(int32_t) +
           (gpu_is_listed(job) ? gpu_gather_bytes(p) : 0) +
           (size_t)p->n_variant * (turn + sizeof(int32_t)) +
           (size_t)(p->n_chunk + 1) * sizeof(int32_t);
}

/* Whether short pages of a lane that are one are full but the last, and count once each. */
static bool is_whole(const struct gpu_plan *p, const struct kv_lane *guests,
                     const struct kv_lane *own, bool folded)
{
    if (p->per == 1)
        return true;
    if (guests != NULL && p->guests.n > 0 &&
        (guests->ragged || p->guests.last_n < own->kind->page_len || p->guests.n % p->per != 0))
        return false;
    return !folded && !own->ragged;
}

/* Guests whose pages are full but the last, and read as they are, become tiles, too. */
static bool are_tiles(const struct kv_attend_job *job, const struct kv_lane *guests, bool plain,
                      bool folded)
{
    return gpu_is_listed(job) && !gpu_is_watched(job) && plain && !folded && !guests->ragged;
}

/* The tiles of a call that lists entries. a: the span of its guests' pages. */
static struct span lay_tiles(struct gpu_plan *p, struct span a, int32_t n_guest)
{
    struct span b = span_of_listed(p->job);
    const int32_t n = (int32_t)pi_ceil_div(n_guest, GPU_TILE);
    bool seen = a.first == 0 && a.high == p->guests.n && a.n_low == 0;
    p->n_guest = n_guest;
    p->n_tile = n + b.end;
    p->lane = p->own;
    p->own = (struct gpu_attend_list){.n = p->n_tile};
    if (n_guest == 0)
        return b;
    p->lane_guests = p->guests;
    p->guests = (struct gpu_attend_list){0};
    return (struct span){.end = p->n_tile, .high = seen ? n + b.high : 0};
}

bool gpu_plan_make(struct gpu_device *d, const struct kv_attend_job *job, size_t want,
                   struct gpu_plan *p)
{
    struct gpu_attend *s = d->attend;
    const struct kv_lane *own = kv_lane_at(job->seq, job->layer, job->head), *guests = NULL;
    int64_t first = job->pos0, last = (int64_t)job->pos0 + job->n_tok - 1;
    bool plain = true, own_plain = true, folded = false;
    struct span a = {0}, b;
    int32_t n_guest = 0;
    *p = (struct gpu_plan){.job = job, .delta0 = (int32_t)s->n_delta, .per = pages_per(job)};
    if (job->guests != NULL) {
        guests = kv_lane_at(job->guests, job->layer, job->head);
        if (!pages_of(d, guests, want, &p->guests, &plain, &folded))
            return false;
        a = span_of(guests, plain, first, last);
        n_guest = are_tiles(job, guests, plain, folded) ? guests->len : 0;
    }
    if (!pages_of(d, own, want, &p->own, &own_plain, &folded))
        return false;
    p->is_whole = is_whole(p, guests, own, folded);
    if (gpu_is_listed(job))
        b = lay_tiles(p, a, n_guest);
    else
        b = span_of(own, own_plain, first, last);
    b = span_joined(span_both(a, p->guests.n, b), p->per, p->guests.n + p->own.n);
    p->first = b.first, p->end = b.end, p->n_low = b.n_low, p->high = b.high;
    if (!add_delta(s, p, 0) || (!plain && !add_deltas(s, p, guests)) ||
        (!own_plain && !add_deltas(s, p, own)))
        return false;
    if (p->end > p->first)
        p->n_chunk = own->window > 0 && !gpu_is_listed(job)
                         ? gpu_plan_chunks(p, NULL, &p->most)
                         : gpu_chunk_of(p->end - 1) - gpu_chunk_of(p->first) + 1;
    p->bytes = list_bytes(p);
    p->is_simple = !gpu_is_listed(job) || p->guests.n == 0;
    return true;
}

size_t gpu_plan_want(const struct kv_seq *seq, const struct kv_attend_job *job)
{
    return seq != NULL ? (size_t)kv_lane_at(seq, job->layer, job->head)->n_live * 2 + 64 : 0;
}
