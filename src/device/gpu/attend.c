/*
 * attend.c - attention over lanes: calls become jobs of attend.cuh. A lane's list of pages stays on
 * the device (pages_of), and only what changed since the last call goes there. The host compares
 * tables by content, so that it does not matter who changed one. Pages that every row of a call sees
 * whole need no positions. Pages that no row sees are left out. Both change no bit. The host makes
 * weights and logits (kv_attend_tap) by the processor's operation. Outputs are the device's all the
 * same, so that watching changes no bit.
 *
 * Invariant: where chunks of pages begin depends on the page's place in its lane, of lanes with a
 * window on its first position.
 *
 * Lists, plans and launches work on the same structs of a call, so they are one file.
 */
#include <math.h>

#include "device/cpu/pages.h"
#include "device/gpu/host.h"

enum {
    ROWS = 16,
    TILE = 64,               /* entries */
    TILE_ROWS = 128,         /* rows of a call at full speed */
    PART_BYTES = 64 << 20,   /* of the sums of chunks of one launch */
    DIM_MOST = 512,          /* of a value */
    KERNEL_SMEM = 2048 + 256 /* of a block, beside the tiles and queries */
};

static_assert((int)TILE == (int)KV_GATHER_LEN && (int)KV_PAGE_LEN_MAX <= (int)TILE,
              "tiles of kernels");

static int32_t up16(int32_t n)
{
    return (n + 15) / 16 * 16;
}

int32_t gpu_attend_tile(int32_t n_group)
{
    return n_group >= TILE_ROWS ? 1 : TILE_ROWS / n_group;
}

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
    bool plain; /* no page has a delta */
    int64_t used;
};

/* References of a table that go to the device. */
struct patch {
    gpu_at to;
    const struct kv_page_ref *from;
    int32_t n;
};

/* Which kernels take a call: for any form, or for few rows or many of a frequent form. */
enum way { WAY_ANY, WAY_FEW, WAY_MANY };

struct plan {
    const struct kv_attend_job *job;
    struct gpu_attend_list guests, own;
    int32_t first, end, n_low, high; /* struct gpu_attend_job */
    int32_t delta0, n_variant, n_chunk;
    size_t bytes; /* of the list, at most */
    enum way way;
};

struct gpu_attend {
    struct lane_copy *lane; /* [cap_lane], a power of two: by the hash of the lane's address */
    size_t n_lane, cap_lane;
    size_t n_ref, cap_ref; /* of GPU_ROOM_REFS */
    int64_t n_launch;
    bool forgot; /* the lists were dropped, which plan_some has not seen */
    struct patch *patch;
    size_t n_patch, cap_patch;
    int32_t *delta; /* of all plans, one after the other */
    size_t n_delta, cap_delta;
    struct plan plan[GPU_JOBS];
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
    size_t i = (size_t)(((uint64_t)(uintptr_t)lane * 0x9e3779b97f4a7c15u) >> 20) & (cap - 1);
    while (lanes[i].lane != NULL && lanes[i].lane != lane)
        i = (i + 1) & (cap - 1);
    return &lanes[i];
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
        struct patch *more = pi_mem_grow(PI_MEM_DEVICE, s->patch, cap, sizeof(*more));
        if (more == NULL)
            return false;
        s->patch = more;
        s->cap_patch = cap;
    }
    int32_t n = lane->n_live - from;
    s->patch[s->n_patch++] =
        (struct patch){c->at + (size_t)from * sizeof(struct gpu_attend_ref), lane->table + from, n};
    memcpy(c->was + from, lane->table + from, (size_t)n * sizeof(*c->was));
    c->n = lane->n_live;
    c->plain = true;
    for (int32_t i = 0; i < c->n; i++)
        c->plain = c->plain && c->was[i].delta == 0;
    return true;
}

/* Whether they are the same but for how many entries the page has. */
static bool same_page(const struct kv_page_ref *a, const struct kv_page_ref *b)
{
    return a->page == b->page && a->delta == b->delta && a->n_folded == b->n_folded;
}

/* How many pages the device has as they are. It need not know how many entries the last one has. */
static int32_t count_same(const struct lane_copy *c, const struct kv_lane *lane)
{
    int32_t n = (int32_t)pi_min(c->n, lane->n_live), i = 0;
    if (n == lane->n_live && memcmp(c->was, lane->table, (size_t)(n - 1) * sizeof(*c->was)) == 0)
        i = n - 1;
    while (i < n && memcmp(&c->was[i], &lane->table[i], sizeof(*c->was)) == 0)
        i++;
    return i == lane->n_live - 1 && i < n && same_page(&c->was[i], &lane->table[i]) ? i + 1 : i;
}

/* The list of a lane on the device, with patches that make it what the table is; `want` as above. */
static bool pages_of(struct gpu_device *d, const struct kv_lane *lane, size_t want,
                     struct gpu_attend_list *out, bool *plain)
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
        *c = (struct lane_copy){
            lane, pi_mem_alloc(PI_MEM_DEVICE, (size_t)cap * sizeof(*c->was)), at, 0, cap, true, 0};
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
    out->refs = c->at;
    out->last_n = lane->table[lane->n_live - 1].n;
    *plain = c->plain;
    return true;
}

/* ---- the pages of a call ---- */

/* First page of a chunk counts 2 pages each, then 4, then 8, then 16 (chunk_first of attend.cuh). */
int32_t gpu_chunk_of(int32_t page)
{
    return page < 16    ? page / 2
           : page < 64  ? 8 + (page - 16) / 4
           : page < 256 ? 20 + (page - 64) / 8
                        : 44 + (page - 256) / 16;
}

/* Pages that count as one where chunks begin. */
static int32_t pages_per(const struct kv_attend_job *job)
{
    int32_t page_len = job->seq->cache->g.page_len;
    return job->slots != NULL || page_len >= TILE ? 1 : TILE / page_len;
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

/* ---- plans ---- */

static bool add_delta(struct gpu_attend *s, struct plan *p, int32_t delta)
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
static bool add_deltas(struct gpu_attend *s, struct plan *p, const struct kv_lane *lane)
{
    bool ok = true;
    for (int32_t i = 0; ok && i < lane->n_live; i++)
        ok = add_delta(s, p, lane->table[i].delta);
    return ok;
}

static struct gpu_attend_ref ref_of(const struct kv_page_ref *ref)
{
    return (struct gpu_attend_ref){ref->page, ref->n, ref->delta,
                                   ref->n_folded > 0 ? (float)log(1.0 + ref->n_folded) : 0.0f};
}

/* The entries that a call lists, in tiles as the processor's gather.c has them; returns how many
   tiles. refs NULL: they are only counted. */
static int32_t list_tiles(const struct kv_attend_job *job, struct gpu_attend_ref *refs,
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
        if (at == 0 || n == TILE || ref->delta != of->delta || ref->n_folded != of->n_folded ||
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

/* Where chunks of a lane with a window begin; returns how many there are. to NULL: they are only
   counted. *most becomes the most pages of one. */
static int32_t list_chunks(const struct plan *p, int32_t *to, int32_t *most)
{
    const struct kv_attend_job *job = p->job;
    const struct kv_lane *own = kv_lane_at(job->seq, job->layer, job->head);
    int32_t n = 0, last = -1, begin = p->first;
    for (int32_t i = p->first; i < p->end; i++) {
        const struct kv_lane *lane =
            i < p->guests.n ? kv_lane_at(job->guests, job->layer, job->head) : own;
        int32_t page = lane->table[i < p->guests.n ? i : i - p->guests.n].page;
        int32_t chunk = gpu_chunk_of(kv_page_pos(lane->kind, page)[0] / TILE);
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
    return (job->n_tok * job->n_group + ROWS - 1) / ROWS;
}

static int32_t many_tiles(const struct kv_attend_job *job)
{
    return (job->n_tok * job->n_group + TILE_ROWS - 1) / TILE_ROWS;
}

/* Rows of sums of a call. */
static size_t count_sums(const struct plan *p)
{
    if (p->way == WAY_MANY)
        return (size_t)many_tiles(p->job) * TILE_ROWS;
    int64_t n_row = (int64_t)p->job->n_tok * p->job->n_group;
    return (size_t)(row_tiles(p->job) * pi_min(n_row, ROWS)) * (size_t)p->n_chunk;
}

/* Bytes that a call takes of the list, at most. */
static size_t list_bytes(const struct plan *p)
{
    const struct kv_attend_job *job = p->job;
    size_t turn = job->rope != NULL ? (size_t)job->rope->n_pair * 2 * sizeof(float) : 0;
    size_t listed = job->slots != NULL ? (size_t)job->n_slot : 0;
    return (size_t)job->n_group * sizeof(float) + 256 +
           (size_t)(p->n_low + p->end - p->high) * TILE * sizeof(int32_t) +
           listed * (sizeof(struct gpu_attend_ref) + sizeof(struct gpu_attend_entry)) +
           (size_t)p->n_variant * (turn + sizeof(int32_t)) +
           (size_t)(p->n_chunk + 1) * sizeof(int32_t);
}

/* The pages that a call reads. `want` as take_refs has it. */
static bool make_plan(struct gpu_device *d, const struct kv_attend_job *job, size_t want,
                      struct plan *p)
{
    struct gpu_attend *s = d->attend;
    const struct kv_lane *own = kv_lane_at(job->seq, job->layer, job->head), *guests = NULL;
    int64_t first = job->pos0, last = (int64_t)job->pos0 + job->n_tok - 1;
    bool plain = true, own_plain = true;
    struct span a = {0}, b;
    *p = (struct plan){.job = job, .delta0 = (int32_t)s->n_delta};
    if (job->guests != NULL) {
        guests = kv_lane_at(job->guests, job->layer, job->head);
        if (!pages_of(d, guests, want, &p->guests, &plain))
            return false;
        a = span_of(guests, plain, first, last);
    }
    if (!pages_of(d, own, want, &p->own, &own_plain))
        return false;
    if (job->slots != NULL) {
        p->own = (struct gpu_attend_list){.n = list_tiles(job, NULL, NULL)};
        b = (struct span){.end = p->own.n, .high = p->own.n};
    } else {
        b = span_of(own, own_plain, first, last);
    }
    b = span_both(a, p->guests.n, b);
    p->first = b.first, p->end = b.end, p->n_low = b.n_low, p->high = b.high;
    if (!add_delta(s, p, 0) || (!plain && !add_deltas(s, p, guests)) ||
        (!own_plain && !add_deltas(s, p, own)))
        return false;
    int32_t per = pages_per(job), most = 0;
    if (p->end > p->first)
        p->n_chunk = own->window > 0 && job->slots == NULL
                         ? list_chunks(p, NULL, &most)
                         : gpu_chunk_of((p->end - 1) / per) - gpu_chunk_of(p->first / per) + 1;
    p->bytes = list_bytes(p);
    p->way = job->slots == NULL && p->n_variant == 1 && most <= 32 ? WAY_FEW : WAY_ANY;
    return true;
}

/* ---- a launch ---- */

/* Calls that share a launch: their lanes are of one class, their numbers the same. */
struct launch {
    struct gpu_device *d;
    struct gpu_attend_args args;
    const struct kv_class *kind;
    int32_t n;     /* calls */
    uint8_t *host; /* the list, and where it will be */
    gpu_at at;
    size_t used, size;
    size_t n_sum;
    int32_t most_rows, most_queries, most_chunks;
    size_t q_used, scale_used; /* of GPU_ROOM_QUERY: elements of 2 and of 4 bytes */
};

/* The next n elements of the list, and where they will be. */
static void *take(struct launch *l, size_t n, size_t size, gpu_at *at)
{
    void *part = l->host + l->used;
    *at = l->at + l->used;
    l->used += pi_align(n * size, 16);
    assert(l->used <= l->size);
    return part;
}

static void take_patches(struct launch *l)
{
    const struct gpu_attend *s = l->d->attend;
    struct gpu_attend_patch *to = take(l, s->n_patch, sizeof(*to), &l->args.patches);
    for (size_t i = 0; i < s->n_patch; i++) {
        const struct patch *p = &s->patch[i];
        struct gpu_attend_ref *refs = take(l, (size_t)p->n, sizeof(*refs), &to[i].from);
        to[i].to = p->to;
        to[i].n = p->n;
        for (int32_t j = 0; j < p->n; j++)
            refs[j] = ref_of(&p->from[j]);
    }
}

static void take_positions(struct launch *l, const struct plan *p, struct gpu_attend_job *to)
{
    const struct kv_attend_job *job = p->job;
    int32_t n_high = p->end - p->high;
    if (p->n_low + n_high == 0 || job->slots != NULL)
        return;
    int32_t *pos = take(l, (size_t)(p->n_low + n_high) * TILE, sizeof(*pos), &to->pos);
    for (int32_t i = 0; i < p->n_low + n_high; i++) {
        int32_t at = i < p->n_low ? p->first + i : p->high + i - p->n_low;
        const struct kv_lane *lane =
            kv_lane_at(at < p->guests.n ? job->guests : job->seq, job->layer, job->head);
        const struct kv_page_ref *ref = &lane->table[at < p->guests.n ? at : at - p->guests.n];
        memset(pos + (size_t)i * TILE, 0, TILE * sizeof(*pos));
        memcpy(pos + (size_t)i * TILE, kv_page_pos(lane->kind, ref->page), ref->n * sizeof(*pos));
    }
}

static void take_variants(struct launch *l, const struct plan *p, struct gpu_attend_job *to)
{
    const struct pi_rope *rope = p->job->rope;
    size_t n = (size_t)p->n_variant, n_pair = rope != NULL ? (size_t)rope->n_pair : 0;
    if (n == 1)
        return;
    int32_t *delta = take(l, n, sizeof(*delta), &to->delta);
    float *turn = take(l, n * n_pair * 2, sizeof(*turn), &to->turn);
    memcpy(delta, l->d->attend->delta + p->delta0, n * sizeof(*delta));
    for (size_t i = 1; i < n; i++)
        pi_rope_fill_delta(rope, -delta[i], turn + i * n_pair * 2);
}

static void add_call(struct launch *l, const struct plan *p, struct gpu_attend_job *to)
{
    const struct kv_attend_job *job = p->job;
    const struct kv_lane *own = kv_lane_at(job->seq, job->layer, job->head);
    gpu_at at;
    int32_t most = 0;
    *to = (struct gpu_attend_job){.q = job->q_at.at,
                                  .out = job->out_at.at,
                                  .packed = l->q_used * sizeof(uint16_t),
                                  .scale = l->scale_used * sizeof(float),
                                  .guests = p->guests,
                                  .own = p->own,
                                  .q_stride = job->q_stride,
                                  .out_stride = job->out_stride,
                                  .part0 = l->n_sum,
                                  .n_tok = job->n_tok,
                                  .n_group = job->n_group,
                                  .pos0 = job->pos0,
                                  .n_variant = p->n_variant,
                                  .first = p->first,
                                  .end = p->end,
                                  .n_low = p->n_low,
                                  .high = p->high,
                                  .n_chunk = p->n_chunk,
                                  .per = pages_per(job),
                                  .ordered = !own->unordered};
    to->chunk0 = gpu_chunk_of(p->first / to->per);
    if (job->sink != NULL)
        memcpy(take(l, (size_t)job->n_group, sizeof(float), &to->sink), job->sink,
               (size_t)job->n_group * sizeof(float));
    take_variants(l, p, to);
    take_positions(l, p, to);
    if (job->slots != NULL) {
        struct gpu_attend_entry *entries = take(l, (size_t)job->n_slot, sizeof(*entries), &at);
        to->entries = at;
        list_tiles(job, take(l, (size_t)p->own.n, sizeof(struct gpu_attend_ref), &to->own.refs),
                   entries);
        to->own.last_n =
            ((struct gpu_attend_ref *)(void *)(l->host + (to->own.refs - l->at)))[p->own.n - 1].n;
    } else if (own->window > 0) {
        list_chunks(p, take(l, (size_t)p->n_chunk + 1, sizeof(int32_t), &to->chunks), &most);
    }
    int32_t n_q = p->way == WAY_FEW ? 0 : p->n_variant * up16(job->n_tok * job->n_group);
    l->q_used += (size_t)n_q * (size_t)up16(l->args.dim_k);
    l->scale_used += (size_t)n_q;
    l->n_sum += count_sums(p);
    l->most_queries = (int32_t)pi_max(l->most_queries, n_q);
    l->most_rows = (int32_t)pi_max(l->most_rows, job->n_tok * job->n_group);
    l->most_chunks = (int32_t)pi_max(l->most_chunks, p->n_chunk);
}

static size_t tile_smem(const struct gpu_attend_args *a)
{
    size_t row = (size_t)up16(a->dim_k) * 2,
           values = a->v_in_k >= 0 ? 0 : (size_t)up16(a->dim_v) * 2;
    return ROWS * row + TILE * (row + values) + KERNEL_SMEM;
}

/* Whether kernels take the class; else the processor does. */
static bool has_kernel(const struct gpu_device *d, const struct gpu_attend_args *a)
{
    return a->dim_v <= DIM_MOST && tile_smem(a) <= d->driver->smem_most;
}

static bool is_bits(const struct gpu_part *p)
{
    return p->type == KV_TYPE_TURBO3 || p->type == KV_TYPE_TURBO2;
}

/* The order of dimensions that kernels of codes want of keys. */
static enum gpu_attend_order order_of(const struct gpu_part *k)
{
    if (k->dim != 128 || !k->beside)
        return GPU_ORDER_PLAIN;
    return k->type == KV_TYPE_Q8_0 ? GPU_ORDER_BYTES
           : is_bits(k)            ? GPU_ORDER_BITS
                                   : GPU_ORDER_PLAIN;
}

int32_t gpu_order_of(const struct gpu_part *k)
{
    return (int32_t)order_of(k);
}

static struct gpu_attend_args args_of(const struct kv_attend_job *job)
{
    const struct kv_geometry *g = &job->seq->cache->g;
    const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
    const struct kv_class *kind = lane->kind;
    bool shared = g->v_in_k > 0 && g->v_in_k % 8 == 0 && g->dim_v % 16 == 0;
    struct gpu_attend_args a = {
        .pool = kind->pool.at,
        .stride = kind->layout.stride,
        .page_len = g->page_len,
        .window = lane->window,
        .v_in_k = shared ? g->v_in_k : -1,
        .dim_k = kind->k.dim,
        .dim_v = kind->value.dim,
        .n_pair = job->rope != NULL ? job->rope->n_pair : 0,
        .adjacent = job->rope != NULL && job->rope->adjacent,
        .factor = job->scale,
        .cap = job->cap,
        .k = gpu_part_of(kind, &kind->k, true),
        .v = gpu_part_of(kind, &kind->value, g->v_in_k > 0),
    };
    a.order = shared ? GPU_ORDER_PLAIN : order_of(&a.k);
    return a;
}

/* A kernel of attend_few.cuh for a class; GPU_N_KERNEL: there is none. */
static enum gpu_kernel few_kernel(const struct gpu_attend_args *a, const struct kv_geometry *g)
{
    bool plain_k = a->k.type == KV_TYPE_F16, plain_v = a->v.type == KV_TYPE_F16;
    bool codes_k = a->order != GPU_ORDER_PLAIN,
         codes_v = a->v.type == KV_TYPE_Q8_0 || is_bits(&a->v);
    if (a->page_len != TILE || g->v_in_k > 0 || a->dim_k != a->dim_v)
        return GPU_N_KERNEL;
    if (plain_k && plain_v && a->k.beside && a->dim_k == 64)
        return GPU_KERNEL_attend_few_64_f16;
    if (a->dim_k != 128 || (!plain_k && !codes_k) || (!plain_v && !codes_v))
        return GPU_N_KERNEL;
    if (plain_k && plain_v && a->k.beside)
        return GPU_KERNEL_attend_few_128_f16;
    if (a->k.type == KV_TYPE_Q8_0 && a->v.type == KV_TYPE_Q8_0)
        return GPU_KERNEL_attend_few_128_q8_0;
    return a->k.type == KV_TYPE_TURBO3 && a->v.type == KV_TYPE_TURBO3
               ? GPU_KERNEL_attend_few_128_turbo3
               : GPU_KERNEL_attend_few_128_mixed;
}

static size_t few_smem(const struct kv_class *kind, enum gpu_kernel kernel)
{
    size_t half = (size_t)TILE * pi_max(kv_part_bytes(&kind->k), kv_part_bytes(&kind->v));
    return ROWS * TILE * 2 + (kernel == GPU_KERNEL_attend_few_128_turbo3 ? 4 : 3) * half;
}

/* Whether two calls may share a launch. */
static bool alike(const struct kv_attend_job *a, const struct kv_attend_job *b)
{
    const struct kv_lane *x = kv_lane_at(a->seq, a->layer, a->head);
    const struct kv_lane *y = kv_lane_at(b->seq, b->layer, b->head);
    return x->kind == y->kind && x->window == y->window && a->scale == b->scale &&
           a->cap == b->cap && a->rope == b->rope;
}

static size_t sum_bytes(const struct gpu_attend_args *a)
{
    return (size_t)up16(a->dim_v) * sizeof(float);
}

/* A kernel of attend_many.cuh for a class that has one of attend_few.cuh; GPU_N_KERNEL: there is
   none. Few blocks of 128 rows take 16 rows a warp. */
static enum gpu_kernel many_kernel(const struct gpu_device *d, const struct gpu_attend_args *a,
                                   enum gpu_kernel few, int64_t blocks)
{
    bool plain_k = a->k.type == KV_TYPE_F16, plain_v = a->v.type == KV_TYPE_F16;
    bool wide = blocks >= 2 * d->card->n_processor;
    if (few == GPU_N_KERNEL || plain_k != plain_v || (plain_k && !a->k.beside))
        return GPU_N_KERNEL;
    if (few == GPU_KERNEL_attend_few_64_f16)
        return GPU_KERNEL_attend_many_64_f16;
    if (plain_k)
        return wide ? GPU_KERNEL_attend_many_128_f16 : GPU_KERNEL_attend_many_128_f16_1;
    return wide ? GPU_KERNEL_attend_many_128_codes : GPU_KERNEL_attend_many_128_codes_1;
}

static size_t many_smem(const struct kv_class *kind)
{
    size_t k = TILE * kv_part_bytes(&kind->k), v = TILE * kv_part_bytes(&kind->v),
           tile = (size_t)TILE * (size_t)kind->k.dim * 2;
    size_t pages = 2 * (k + v) + (kind->type_k != KV_TYPE_F16 ? tile : 0) +
                   (kind->type_v != KV_TYPE_F16 ? tile : 0);
    return 2 * tile + pages;
}

static void run_parts(struct launch *l, const struct plan *plan)
{
    struct gpu_attend_args *a = &l->args;
    const struct kv_attend_job *job = plan->job;
    const struct kv_class *kind = kv_lane_at(job->seq, job->layer, job->head)->kind;
    enum gpu_kernel few = few_kernel(a, &job->seq->cache->g), any;
    int32_t tiles = (l->most_rows + ROWS - 1) / ROWS;
    any = a->dim_v <= 128   ? GPU_KERNEL_attend_part_4
          : a->dim_v <= 256 ? GPU_KERNEL_attend_part_8
                            : GPU_KERNEL_attend_part_16;
    if (plan->way == WAY_ANY)
        gpu_run(l->d, any, l->most_chunks, l->n, tiles, tile_smem(a), a);
    else if (plan->way == WAY_FEW)
        gpu_run(l->d, few, l->most_chunks, l->n, tiles, few_smem(kind, few), a);
    else
        gpu_run(l->d, many_kernel(l->d, a, few, (int64_t)l->n * many_tiles(job)), many_tiles(job),
                l->n, 1, many_smem(kind), a);
    if (plan->way != WAY_MANY)
        gpu_run(l->d, GPU_KERNEL_attend_join, l->most_rows, l->n, 1,
                (size_t)up16(a->dim_v) * sizeof(float), a);
}

static void run_launch(struct launch *l, const struct plan *plan, struct gpu_attend_job *jobs)
{
    struct gpu_device *d = l->d;
    struct gpu_attend_args *a = &l->args;
    size_t queries = pi_align(l->q_used * sizeof(uint16_t), 256);
    gpu_at room = gpu_room(d, GPU_ROOM_QUERY, queries + l->scale_used * sizeof(float) + 1);
    a->o = gpu_room(d, GPU_ROOM_PART, l->n_sum * sum_bytes(a));
    a->ml = gpu_room(d, GPU_ROOM_ML, l->n_sum * 2 * sizeof(float));
    if (room == 0 || a->o == 0 || a->ml == 0)
        return;
    for (int32_t i = 0; i < l->n; i++) {
        jobs[i].packed += room;
        jobs[i].scale += room + queries;
    }
    gpu_send(d, l->at, l->used);
    gpu_run(d, GPU_KERNEL_attend_refs, (int64_t)d->attend->n_patch, 1, 1, 0, a);
    gpu_run(d, GPU_KERNEL_attend_queries, l->most_queries, l->n, 1,
            (size_t)up16(a->dim_k) * sizeof(float) + 64, a);
    run_parts(l, plan);
    d->attend->n_patch = 0;
}

/* References that pages_of may take for a lane. */
static size_t want_of(const struct kv_seq *seq, const struct kv_attend_job *job)
{
    return seq != NULL ? (size_t)kv_lane_at(seq, job->layer, job->head)->n_live * 2 + 64 : 0;
}

/* n calls wait. Blocks of 128 rows should be at least half as many as there are processors. */
static void choose_way(const struct gpu_device *d, const struct gpu_attend_args *a, struct plan *p,
                       int32_t n)
{
    enum gpu_kernel few = few_kernel(a, &p->job->seq->cache->g);
    int64_t blocks = (int64_t)n * many_tiles(p->job);
    if (few == GPU_N_KERNEL || p->job->q_stride % 4 != 0 || p->job->q_at.at % 16 != 0)
        p->way = WAY_ANY;
    if (p->way == WAY_FEW && p->job->n_tok * p->job->n_group > TILE_ROWS / 2 &&
        2 * blocks >= d->card->n_processor && many_kernel(d, a, few, blocks) != GPU_N_KERNEL)
        p->way = WAY_MANY;
}

/* Plans of the first calls that may share a launch; their number, 0 where memory is out. */
static int32_t plan_some(struct gpu_device *d, const struct gpu_attend_args *a,
                         const struct kv_attend_job *jobs, int32_t n)
{
    struct gpu_attend *s = d->attend;
    size_t want = 0, n_sum = 0;
    int32_t i;
    for (i = 0; i < n; i++)
        want += want_of(jobs[i].seq, &jobs[i]) + want_of(jobs[i].guests, &jobs[i]);
    for (i = 0; i < n && i < GPU_JOBS && alike(jobs, jobs + i); i++) {
        struct plan *p = &s->plan[i];
        if (!make_plan(d, &jobs[i], want, p))
            return 0;
        if (s->forgot) { /* what was planned is void */
            s->forgot = false;
            s->n_delta = 0;
            i = -1;
            n_sum = 0;
            continue;
        }
        choose_way(d, a, p, n);
        n_sum += count_sums(p);
        if (i > 0 && (p->way != s->plan[0].way || n_sum * sum_bytes(a) > PART_BYTES ||
                      (p->way == WAY_MANY && many_tiles(p->job) != many_tiles(jobs))))
            break;
    }
    return i;
}

/* Calls that are alike and have a kernel, as many as share a launch; returns how many. */
static int32_t attend_some(struct gpu_device *d, const struct kv_attend_job *jobs, int32_t n)
{
    struct launch l = {.d = d, .args = args_of(jobs)};
    if (d->attend == NULL)
        d->attend = pi_mem_alloc(PI_MEM_DEVICE, sizeof(*d->attend));
    struct gpu_attend *s = d->attend;
    if (s != NULL) {
        s->n_launch++;
        s->n_delta = 0;
        l.n = plan_some(d, &l.args, jobs, n);
    }
    if (l.n == 0) {
        d->driver->failure = "no memory for lists of pages";
        return n;
    }
    for (int32_t i = 0; i < l.n; i++)
        l.size += sizeof(struct gpu_attend_job) + s->plan[i].bytes;
    for (size_t i = 0; i < s->n_patch; i++)
        l.size +=
            sizeof(struct gpu_attend_patch) + (size_t)s->patch[i].n * sizeof(struct gpu_attend_ref);
    l.size += 256;
    void *host;
    l.at = gpu_list(d, l.size, &host);
    if (l.at == 0)
        return l.n;
    l.host = host;
    struct gpu_attend_job *to = take(&l, (size_t)l.n, sizeof(*to), &l.args.jobs);
    take_patches(&l);
    for (int32_t i = 0; i < l.n; i++)
        add_call(&l, &s->plan[i], &to[i]);
    run_launch(&l, s->plan, to);
    return l.n;
}

/* ---- lists for others ---- */

/* Patches of all lanes; false: no memory, or all lists were dropped meanwhile. */
static bool find_lists(struct gpu_device *d, const struct kv_lane *const *lanes, int32_t n,
                       gpu_at *refs)
{
    size_t want = 0;
    bool ok = true, plain;
    for (int32_t i = 0; i < n; i++)
        want += (size_t)lanes[i]->n_live * 2 + 64;
    d->attend->forgot = false;
    for (int32_t i = 0; i < n && ok && !d->attend->forgot; i++) {
        struct gpu_attend_list list;
        ok = pages_of(d, lanes[i], want, &list, &plain);
        refs[i] = list.refs;
    }
    return ok && !d->attend->forgot;
}

bool gpu_attend_lists(struct gpu_device *d, const struct kv_lane *const *lanes, int32_t n,
                      gpu_at *refs)
{
    struct launch l = {.d = d};
    void *host;
    if (d->attend == NULL)
        d->attend = pi_mem_alloc(PI_MEM_OTHER, sizeof(*d->attend));
    struct gpu_attend *s = d->attend;
    if (s == NULL)
        return false;
    s->n_launch++;
    if (!find_lists(d, lanes, n, refs) && !find_lists(d, lanes, n, refs))
        return false;
    s->forgot = false;
    if (s->n_patch == 0)
        return true;
    for (size_t i = 0; i < s->n_patch; i++)
        l.size += sizeof(struct gpu_attend_patch) + 32 +
                  (size_t)s->patch[i].n * sizeof(struct gpu_attend_ref);
    l.at = gpu_list(d, l.size, &host);
    if (l.at == 0)
        return false;
    l.host = host;
    take_patches(&l);
    gpu_send(d, l.at, l.used);
    gpu_run(d, GPU_KERNEL_attend_refs, (int64_t)s->n_patch, 1, 1, 0, &l.args);
    s->n_patch = 0;
    return true;
}

/* ---- over the host ---- */

size_t gpu_attend_scratch(const struct kv_geometry *g, int32_t n_row)
{
    return cpu_attend_scratch(g, n_row);
}

/* Rows of a call, stride floats from token to token. */
static size_t row_bytes(const struct kv_attend_job *job, size_t stride, int32_t dim)
{
    return ((size_t)(job->n_tok - 1) * stride + (size_t)job->n_group * (size_t)dim) * sizeof(float);
}

/* The processor's operation over what was staged: queries and output are the host's. */
static void attend_staged(struct gpu_device *d, const struct kv_attend_job *job, void *scratch)
{
    struct kv_attend_job own = *job;
    if (!gpu_stage_lane(d, 0, job->seq, job->layer, job->head) ||
        (job->guests != NULL && !gpu_stage_lane(d, 1, job->guests, job->layer, job->head)))
        return;
    own.seq = &d->stage[0].seq;
    own.guests = job->guests != NULL ? &d->stage[1].seq : NULL;
    cpu_attend_one(&own, scratch);
}

/* Watches a call, whose output is another's matter, or makes all of one that has no kernel. */
static void attend_on_host(struct gpu_device *d, const struct kv_attend_job *job, bool output,
                           void *scratch)
{
    const struct kv_class *kind = kv_lane_at(job->seq, job->layer, job->head)->kind;
    size_t q_size = row_bytes(job, job->q_stride, kind->k.dim);
    size_t out_size = output ? row_bytes(job, job->out_stride, kind->value.dim) : 0;
    struct kv_attend_job own = *job;
    own.out_at = (struct pi_at){0};
    own.out = output ? job->out : NULL;
    bool out_there = output && job->out == NULL && pi_at_some(job->out_at);
    if (!gpu_host_room(d, (void **)&d->list, pi_align(q_size, 64) + out_size))
        return;
    if (own.q == NULL) {
        d->driver->get(d->driver, d->list, job->q_at.at, q_size);
        own.q = (const float *)(const void *)d->list;
    }
    if (out_there) { /* what lies between rows stays */
        own.out = (float *)(void *)(d->list + pi_align(q_size, 64));
        d->driver->get(d->driver, own.out, job->out_at.at, out_size);
    }
    attend_staged(d, &own, scratch);
    if (out_there)
        d->driver->put(d->driver, job->out_at.at, own.out, out_size);
}

/* ---- the table's ---- */

static void *host_scratch(struct gpu_device *d, const struct kv_attend_job *job)
{
    size_t size = cpu_attend_scratch(&job->seq->cache->g, job->n_tok * job->n_group);
    return gpu_host_room(d, &d->scratch, size) ? d->scratch : NULL;
}

/* A call whose queries and output are on the device, and its tap. scratch NULL: the device's. */
static void attend_call(struct gpu_device *d, const struct kv_attend_job *job, void *scratch)
{
    const struct gpu_attend_args args = args_of(job);
    bool kernel = has_kernel(d, &args), output = pi_at_some(job->out_at);
    if (job->tap != NULL || (output && !kernel)) {
        void *room = scratch != NULL ? scratch : host_scratch(d, job);
        if (room != NULL)
            attend_on_host(d, job, output && !kernel, room);
    }
    if (output && kernel)
        attend_some(d, job, 1);
}

void gpu_attend_one(const struct kv_attend_job *job, void *scratch)
{
    struct gpu_device *d = gpu_of_lane(job->seq, job->layer, job->head);
    const struct kv_class *kind = kv_lane_at(job->seq, job->layer, job->head)->kind;
    struct kv_attend_job own = *job;
    size_t q_size = row_bytes(job, job->q_stride, kind->k.dim);
    size_t out_size = job->out != NULL ? row_bytes(job, job->out_stride, kind->value.dim) : 0;
    gpu_enter(d);
    gpu_at room = gpu_room(d, GPU_ROOM_HOST, pi_align(q_size, 256) + out_size);
    if (room != 0) {
        if (job->q != NULL) {
            d->driver->put(d->driver, room, job->q, q_size);
            own.q_at = (struct pi_at){(uintptr_t)room};
        }
        if (job->out != NULL) { /* what lies between rows stays */
            own.out_at = (struct pi_at){(uintptr_t)(room + pi_align(q_size, 256))};
            own.out = NULL;
            d->driver->put(d->driver, own.out_at.at, job->out, out_size);
        }
        attend_call(d, &own, scratch);
        if (job->out != NULL)
            d->driver->get(d->driver, job->out, own.out_at.at, out_size);
    }
    gpu_leave(d);
}

/* Calls without a tap are collected, and made together. */
static void attend_collected(struct gpu_device *d, const struct kv_attend_job *jobs, int32_t n)
{
    for (int32_t i = 0; i < n;) {
        const struct gpu_attend_args args = args_of(&jobs[i]);
        if (has_kernel(d, &args))
            i += attend_some(d, jobs + i, n - i);
        else
            attend_call(d, &jobs[i++], NULL);
    }
}

void gpu_attend(struct pi_stream *s, const struct kv_attend_list *list)
{
    struct gpu_device *d = gpu_of_stream(s);
    struct kv_attend_job job;
    int32_t n = 0;
    for (int64_t i = 0; i < list->n; i++)
        for (int32_t turn = 0; list->job(list->ctx, i, turn, 0, &job); turn++) {
            bool alone = list->done != NULL || job.tap != NULL;
            gpu_enter(d);
            if (n > 0 && (alone || n == GPU_JOBS)) {
                attend_collected(d, d->job, n);
                n = 0;
            }
            if (alone)
                attend_call(d, &job, NULL);
            else
                d->job[n++] = job;
            gpu_leave(d);
            if (list->done != NULL)
                list->done(list->ctx, i, turn, &job, 0);
        }
    gpu_enter(d);
    attend_collected(d, d->job, n);
    gpu_leave(d);
}
