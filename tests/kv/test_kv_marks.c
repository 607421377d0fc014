/*
 * test_kv_marks.c - marks beside entries and lanes whose entries are overwritten, against a model
 * that keeps both in plain arrays: random operations, every allocation failing.
 */
#include <math.h>

#include "base/half.h"
#include "base/mem.h"
#include "device/device.h"
#include "kv_by_page.h"
#include "kv_check.h"
#include "testing.h"
#include "kv_shape.h"

#define N_HEAD 2
#define DIM 32
#define N_MARK 2
#define MAX_LEN 260
#define MAX_SEQ 4
#define MAX_N 40 /* entries that one step appends */

/* ---- the model ---- */

struct entry {
    uint64_t id; /* decides key and value */
    int32_t pos;
    float mark[N_MARK];
    uint16_t norm;
};

struct model_lane {
    struct entry entry[MAX_LEN];
    int32_t len;
    int32_t victim; /* -1: none */
};

struct pair {
    struct kv_seq *seq; /* NULL: unused */
    struct model_lane lane[N_HEAD];
    int32_t next; /* position of the next token */
};

struct world {
    struct kv_cache *cache;
    struct pair pair[MAX_SEQ];
    uint64_t rng;
    int64_t other_table_bytes;
    int n_full;      /* failures for want of pages so far */
    int n_overwrite; /* entries that took another's place */
    int n_reordered; /* lanes that were in order again after a step, having entries */
    char path[64];
};

static void rows_of(uint64_t id, float *k, float *v)
{
    kv_check_row(id, k, DIM);
    kv_check_row(~id, v, DIM);
}

/* A new entry as the store has it: its norm, and zeros. */
static struct entry entry_of(const struct kv_geometry *g, uint64_t id, int32_t pos)
{
    struct entry e = {.id = id, .pos = pos};
    float k[DIM], v[DIM], stored[DIM];
    rows_of(id, k, v);
    kv_check_stored(g->type_v, v, DIM, stored);
    float norm = 0.0f;
    for (int d = 0; d < DIM; d++)
        norm += fabsf(stored[d]);
    e.norm = pi_bf16_from_f32(norm);
    return e;
}

/* noted: marks lie on the device, where it takes them. */
static void world_start(struct world *w, const struct kv_geometry *g, int32_t n_page, uint64_t seed,
                        bool noted)
{
    *w = (struct world){.rng = seed, .other_table_bytes = pi_mem_used(PI_MEM_TABLE)};
    snprintf(w->path, sizeof(w->path), "/tmp/pith-marks-%d", (int)getpid());
    w->cache = kv_check_cache(g, n_page);
    kv_cache_set_marks(w->cache, N_MARK, true);
    if (noted)
        kv_cache_note_marks(w->cache);
}

static void world_end(struct world *w)
{
    pith_kv_stats stats;
    for (int i = 0; i < MAX_SEQ; i++)
        kv_seq_free(w->pair[i].seq);
    kv_cache_stats(w->cache, &stats);
    assert_int_equal(stats.used_bytes, 0);
    kv_cache_free(w->cache);
    assert_int_equal(pi_mem_used(PI_MEM_TABLE), w->other_table_bytes);
}

/* A GPU adds up the squares of a rotated group in its own order: its scale may be the next f16. */
static void check_row(enum kv_type type, const float *row, const float *want)
{
    bool other_sums = pi_device_default()->floats && type >= KV_TYPE_TURBO4 && type != KV_TYPE_BF16;
    for (int d = 0; d < DIM && other_sums; d++)
        assert_true(fabsf(row[d] - want[d]) <= fabsf(want[d]) * 0x1p-9f);
    if (!other_sums)
        assert_memory_equal(row, want, DIM * sizeof(*row));
}

/* Likewise the norm of a value: the next bf16. */
static void check_norm(uint16_t norm, uint16_t want)
{
    assert_true(abs(norm - want) <= (pi_device_default()->floats ? 1 : 0));
}

static void check_contents(const struct pair *p, int h)
{
    const struct kv_geometry *g = kv_cache_geometry(p->seq->cache);
    float k[DIM], v[DIM], row[DIM], want[DIM];
    for (int s = 0; s < p->lane[h].len; s++) {
        rows_of(p->lane[h].entry[s].id, k, v);
        kv_check_stored(g->type_k, k, DIM, want);
        kv_lane_key(p->seq, 0, h, s, row);
        check_row(g->type_k, row, want);
        kv_check_stored(g->type_v, v, DIM, want);
        kv_lane_value(p->seq, 0, h, s, row);
        check_row(g->type_v, row, want);
    }
}

static void check_marks(const struct kv_seq *seq, int h, const struct model_lane *m)
{
    for (int i = 0; i < N_MARK; i++) {
        const float *mark = kv_lane_read_marks(seq, 0, h, i);
        for (int s = 0; s < m->len; s++)
            assert_memory_equal(&mark[s], &m->entry[s].mark[i], sizeof(*mark));
    }
    const uint16_t *norm = kv_lane_norms(seq, 0, h);
    for (int s = 0; s < m->len; s++)
        check_norm(norm[s], m->entry[s].norm);
}

static void check_pair(const struct pair *p, bool contents)
{
    for (int h = 0; h < N_HEAD; h++) {
        const struct model_lane *m = &p->lane[h];
        int32_t pos[MAX_LEN], last = -1;
        bool falls = false;
        assert_int_equal(kv_lane_len(p->seq, 0, h), m->len);
        assert_int_equal(kv_lane_victim(p->seq, 0, h), m->victim);
        kv_lane_positions(p->seq, 0, h, pos, m->len);
        check_marks(p->seq, h, m);
        for (int s = 0; s < m->len; s++) {
            assert_int_equal(pos[s], m->entry[s].pos);
            falls = falls || pos[s] <= last;
            last = (int32_t)pi_max(last, pos[s]);
        }
        assert_int_equal(kv_lane_last(p->seq, 0, h), last);
        if (falls && kv_lane_breaks(p->seq, 0, h) == 0)
            assert_true(kv_lane_unordered(p->seq, 0, h));
        if (contents)
            check_contents(p, h);
    }
}

/* ---- steps on both ---- */

/* Pages that n more entries of a lane take, copies included. */
static int64_t pages_needed(const struct kv_cache *cache, const struct kv_lane *lane, int32_t n)
{
    int32_t len = cache->g.page_len, entry, tail = -1;
    int64_t copies = 0;
    if (n == 0)
        return 0;
    if (lane->victim > 0) {
        tail = kv_lane_find(cache, lane, lane->victim - 1, &entry);
        copies += lane->kind->n_ref[lane->table[tail].page] > 1;
        n--;
    }
    if (n > 0 && lane->n_live > 0) {
        const struct kv_page_ref *ref = &lane->table[lane->n_live - 1];
        if (ref->delta == 0 && ref->n < len) {
            copies += tail != lane->n_live - 1 && lane->kind->n_ref[ref->page] > 1;
            n -= len - ref->n;
        }
    }
    int32_t reserved = lane->n_page - lane->n_live;
    int64_t fresh = n > 0 ? (n + len - 1) / len : 0;
    return copies + (fresh > reserved ? fresh - reserved : 0);
}

static bool do_reserve(struct world *w, struct pair *p, int32_t n)
{
    int64_t need = 0;
    for (int h = 0; h < N_HEAD; h++)
        need += pages_needed(w->cache, &p->seq->lane[h], n);
    int32_t n_free = kv_check_free(w->cache);
    uint64_t digest = kv_check_digest(w->cache);
    pith_status status = kv_seq_reserve(p->seq, n, NULL);
    assert_int_equal(status, need > n_free ? PITH_KV_FULL : PITH_OK);
    if (status == PITH_OK) {
        assert_int_equal(n_free - kv_check_free(w->cache), need);
        return true;
    }
    assert_true(kv_check_digest(w->cache) == digest);
    w->n_full++;
    return false;
}

static void append_lane(struct world *w, struct pair *p, int h, int32_t n)
{
    float k[MAX_N][DIM], v[MAX_N][DIM];
    struct model_lane *m = &p->lane[h];
    for (int32_t i = 0; i < n; i++) {
        struct entry e = entry_of(&w->cache->g, rng_next(&w->rng), p->next + i);
        rows_of(e.id, k[i], v[i]);
        m->entry[m->victim >= 0 ? m->victim : m->len] = e;
        m->len += m->victim < 0;
        w->n_overwrite += m->victim >= 0;
        m->victim = -1;
    }
    int32_t first = 1 + (int32_t)rng_below(&w->rng, (uint64_t)n);
    kv_seq_append(p->seq, 0, h, p->next, first, k[0], DIM, v[0], DIM);
    if (first < n)
        kv_seq_append(p->seq, 0, h, p->next + first, n - first, k[first], DIM, v[first], DIM);
}

static void op_append(struct world *w, struct pair *p)
{
    int32_t n = rng_below(&w->rng, 4) ? 1 : 1 + (int32_t)rng_below(&w->rng, MAX_N);
    for (int h = 0; h < N_HEAD; h++)
        if (p->lane[h].len + n > MAX_LEN)
            return;
    if (!do_reserve(w, p, n))
        return;
    for (int h = 0; h < N_HEAD; h++)
        append_lane(w, p, h, n);
    p->next += n;
    if (rng_below(&w->rng, 4) == 0)
        kv_seq_trim(p->seq);
}

static void op_victim(struct world *w, struct pair *p)
{
    for (int h = 0; h < N_HEAD; h++) {
        struct model_lane *m = &p->lane[h];
        int32_t slot = (int32_t)rng_below(&w->rng, (uint64_t)m->len + 1) - 1, entry;
        const struct kv_lane *lane = kv_lane_at(p->seq, 0, h);
        if (slot >= 0 && lane->table[kv_lane_find(w->cache, lane, slot, &entry)].delta != 0)
            continue;
        m->victim = slot;
        kv_seq_set_victim(p->seq, 0, h, slot);
    }
    if (rng_below(&w->rng, 8) != 0)
        op_append(w, p);
}

static void op_mark(struct world *w, struct pair *p)
{
    for (int h = 0; h < N_HEAD; h++)
        for (int i = 0; i < N_MARK && p->lane[h].len > 0; i++) {
            int32_t s = (int32_t)rng_below(&w->rng, (uint64_t)p->lane[h].len);
            float value = rng_float(&w->rng);
            p->lane[h].entry[s].mark[i] = value;
            kv_lane_marks(p->seq, 0, h, i)[s] = value;
        }
}

/* Packs one lane or both; the slots that stay are a random choice, or those in order of
   position. */
static void op_compact(struct world *w, struct pair *p)
{
    int32_t slots[N_HEAD][MAX_LEN];
    struct kv_cut cut[N_HEAD];
    uint64_t share = rng_below(&w->rng, 9), digest = kv_check_digest(w->cache);
    for (int h = 0; h < N_HEAD; h++) {
        int32_t n = 0, last = -1;
        for (int32_t s = 0; s < p->lane[h].len; s++) {
            int32_t pos = p->lane[h].entry[s].pos;
            if (share == 8 ? pos > last : rng_below(&w->rng, 8) < share) {
                slots[h][n++] = s;
                last = pos;
            }
        }
        cut[h] = (struct kv_cut){.layer = 0, .head = h, .slots = slots[h], .n = n};
    }
    int n_cut = 1 + (int)rng_below(&w->rng, N_HEAD);
    int32_t breaks[N_HEAD];
    for (int h = 0; h < N_HEAD; h++)
        breaks[h] = kv_lane_breaks(p->seq, 0, h);
    pith_status status = kv_seq_compact_lanes(p->seq, cut, n_cut, 2, NULL);
    if (status == PITH_KV_FULL) {
        assert_true(kv_check_digest(w->cache) == digest);
        w->n_full++;
        return;
    }
    assert_int_equal(status, PITH_OK);
    for (int h = 0; h < n_cut; h++) {
        struct model_lane *m = &p->lane[h];
        int64_t filled = pi_ceil_div(cut[h].n, w->cache->g.page_len);
        for (int32_t j = 0; j < cut[h].n; j++)
            m->entry[j] = m->entry[slots[h][j]];
        m->len = cut[h].n;
        m->victim = -1;
        assert_true(kv_lane_pages(p->seq, 0, h) <= filled + breaks[h]);
        assert_true(kv_lane_breaks(p->seq, 0, h) <= breaks[h]);
        w->n_reordered += share == 8 && m->len > 0;
        if (share == 8)
            assert_false(kv_lane_unordered(p->seq, 0, h));
    }
}

static void op_truncate(struct world *w, struct pair *p)
{
    int32_t back = (int32_t)rng_below(&w->rng, rng_below(&w->rng, 4) ? 12 : 400);
    int32_t pos = (int32_t)pi_max(0, p->next - back);
    if (kv_seq_truncate_copies(p->seq, pos) > kv_seq_free_bytes(p->seq)) {
        w->n_full++;
        return;
    }
    int64_t n_free = kv_seq_free_bytes(p->seq), copies = kv_seq_truncate_copies(p->seq, pos);
    kv_seq_truncate(p->seq, pos);
    assert_true(kv_seq_free_bytes(p->seq) >= n_free - copies);
    assert_int_equal(kv_seq_truncate_copies(p->seq, pos), 0);
    p->next = pos;
    for (int h = 0; h < N_HEAD; h++) {
        struct model_lane *m = &p->lane[h];
        int32_t n = 0;
        for (int32_t s = 0; s < m->len; s++)
            if (m->entry[s].pos < pos)
                m->entry[n++] = m->entry[s];
        m->victim = n == m->len ? m->victim : -1;
        m->len = n;
        assert_int_equal(p->seq->lane[h].n_page, p->seq->lane[h].n_live);
    }
}

static void op_fork(struct pair *from, struct pair *to)
{
    if (to == from)
        return;
    kv_seq_free(to->seq);
    assert_int_equal(kv_seq_fork(from->seq, &to->seq, NULL), PITH_OK);
    to->next = from->next;
    memcpy(to->lane, from->lane, sizeof(to->lane));
}

/* A page of the lane becomes one of another, which brings its marks. */
static void op_share(struct world *w, struct pair *p, const struct pair *from)
{
    int h = (int)rng_below(&w->rng, N_HEAD);
    int32_t n_to = kv_lane_runs(p->seq, 0, h), n_from = kv_lane_runs(from->seq, 0, h);
    int32_t delta = (int32_t)rng_below(&w->rng, 2) * 5;
    if (n_to == 0 || n_from == 0)
        return;
    int32_t i = (int32_t)rng_below(&w->rng, (uint64_t)n_to);
    int32_t j = (int32_t)rng_below(&w->rng, (uint64_t)n_from);
    struct kv_run to = kv_lane_run(p->seq, 0, h, i), source = kv_lane_run(from->seq, 0, h, j);
    if (to.n != w->cache->g.page_len || source.n != to.n || (from == p && source.slot >= to.slot))
        return;
    assert_int_equal(page_share(p->seq, 0, h, i, from->seq, j, delta, NULL), PITH_OK);
    struct model_lane *m = &p->lane[h];
    memmove(&m->entry[to.slot], &from->lane[h].entry[source.slot],
            (size_t)to.n * sizeof(m->entry[0]));
    for (int32_t s = to.slot; s < to.slot + to.n; s++) {
        m->entry[s].pos += delta;
        p->next = (int32_t)pi_max(p->next, m->entry[s].pos + 1);
    }
    if (m->victim >= to.slot && m->victim < to.slot + to.n)
        m->victim = -1;
}

static void op_split(struct world *w, struct pair *p)
{
    int h = (int)rng_below(&w->rng, N_HEAD);
    int32_t slot = (int32_t)rng_below(&w->rng, (uint64_t)p->lane[h].len + 1);
    assert_int_equal(kv_seq_reserve_table(p->seq, w->cache->g.page_len, NULL), PITH_OK);
    pith_status status = kv_seq_split(p->seq, 0, h, slot, NULL);
    assert_true(status == PITH_OK || status == PITH_KV_FULL);
}

/* To a file and back: the entries and their order stay, marks and victims do not. */
static void op_reload(struct world *w, struct pair *p)
{
    struct kv_seq *loaded = NULL;
    void *extra = NULL;
    size_t extra_size;
    assert_int_equal(kv_seq_save(p->seq, "x", 1, w->path, NULL), PITH_OK);
    pith_status status = kv_seq_load(w->cache, w->path, &loaded, &extra, &extra_size, NULL);
    assert_int_equal(unlink(w->path), 0);
    if (status == PITH_KV_FULL) {
        w->n_full++;
        return;
    }
    assert_int_equal(status, PITH_OK);
    kv_check_same(p->seq, loaded);
    pi_mem_free(extra);
    kv_seq_free(p->seq);
    p->seq = loaded;
    for (int h = 0; h < N_HEAD; h++) {
        p->lane[h].victim = -1;
        for (int32_t s = 0; s < p->lane[h].len; s++)
            for (int i = 0; i < N_MARK; i++)
                p->lane[h].entry[s].mark[i] = 0.0f;
    }
}

static void random_step(struct world *w)
{
    struct pair *p = &w->pair[rng_below(&w->rng, MAX_SEQ)];
    struct pair *other = &w->pair[rng_below(&w->rng, MAX_SEQ)];
    if (p->seq == NULL) {
        assert_int_equal(kv_seq_create(w->cache, &p->seq, NULL), PITH_OK);
        p->next = 0;
        for (int h = 0; h < N_HEAD; h++)
            p->lane[h] = (struct model_lane){.victim = -1};
    }
    switch (rng_below(&w->rng, 24)) {
    case 0:
        op_truncate(w, p);
        break;
    case 1:
        op_fork(p, other);
        break;
    case 2:
        op_compact(w, p);
        break;
    case 3:
        op_share(w, p, other->seq != NULL ? other : p);
        break;
    case 4:
        op_split(w, p);
        break;
    case 5:
        if (rng_below(&w->rng, 8) == 0)
            op_reload(w, p);
        break;
    case 6:
        if (rng_below(&w->rng, 8) == 0) {
            kv_seq_free(p->seq);
            p->seq = NULL;
        }
        break;
    case 7:
    case 8:
    case 9:
        op_mark(w, p);
        break;
    case 10:
    case 11:
    case 12:
    case 13:
        op_append(w, p);
        break;
    default:
        op_victim(w, p);
    }
}

TEST(marks_agree_with_plain_arrays)
{
    int n_full = 0, n_overwrite = 0, n_reordered = 0;
    int n_step = pi_device_default()->floats ? 400 : 1200; /* the emulated GPU is slow */
    for (int t = 0; t < 9; t++) {
        struct kv_geometry g =
            KV_SHAPE(1, N_HEAD, DIM, DIM, t % 2 ? 16 : 32, (enum kv_type)(t % KV_N_TYPE),
                     (enum kv_type)(t / 3 % KV_N_TYPE));
        struct world w;
        world_start(&w, &g, t % 3 == 0 ? 24 : 60, (uint64_t)t + 1, t % 4 < 2);
        for (int i = 0; i < n_step; i++) {
            random_step(&w);
            if (i % 4 == 0)
                kv_check_account(w.cache, w.other_table_bytes);
            for (int j = 0; j < MAX_SEQ; j++)
                if (w.pair[j].seq != NULL)
                    check_pair(&w.pair[j], i % 20 == 0);
        }
        n_full += w.n_full;
        n_overwrite += w.n_overwrite;
        n_reordered += w.n_reordered;
        world_end(&w);
    }
    assert_true(n_full > n_step / 12 && n_overwrite > n_step && n_reordered > n_step / 60);
}

/* ---- room ---- */

static struct kv_seq *filled(struct kv_cache *cache, int32_t n)
{
    struct kv_seq *seq;
    assert_int_equal(kv_seq_create(cache, &seq, NULL), PITH_OK);
    assert_int_equal(kv_check_append(seq, 1, 0, n), PITH_OK);
    return seq;
}

/* A sequence with marks that runs out of memory is unchanged; its bytes are the ones it was
   given. */
TEST(any_allocation_may_fail)
{
    struct kv_geometry g = KV_SHAPE(1, N_HEAD, DIM, DIM, 16, KV_TYPE_F16, KV_TYPE_Q8_0);
    int64_t before = pi_mem_used(PI_MEM_TABLE);
    for (int64_t n = 1;; n++) {
        struct kv_cache *cache = kv_check_cache(&g, 60);
        struct kv_seq *seq, *fork = NULL;
        kv_cache_set_marks(cache, N_MARK, true);
        seq = filled(cache, 20);
        kv_lane_marks(seq, 0, 1, 1)[19] = 7.0f;
        uint64_t digest = kv_check_digest(cache);
        int64_t bytes = cache->table_bytes;
        pi_mem_fail_at(n, false);
        pith_status status = kv_seq_fork(seq, &fork, NULL);
        if (status == PITH_OK)
            status = kv_seq_reserve(seq, 300, NULL);
        bool failed = status == PITH_NOMEM;
        pi_mem_fail_at(0, false);
        kv_seq_free(fork);
        if (failed) {
            assert_int_equal(cache->table_bytes, bytes);
            assert_true(kv_check_digest(cache) == digest);
        } else {
            assert_int_equal(status, PITH_OK);
            int64_t n_entry = (int64_t)N_HEAD * 320;
            assert_true(cache->table_bytes - bytes >= n_entry * (N_MARK * 4 + 2) / 2);
        }
        assert_true(kv_lane_marks(seq, 0, 1, 1)[19] == 7.0f);
        assert_int_equal(pi_mem_used(PI_MEM_TABLE) - before, cache->table_bytes);
        kv_seq_free(seq);
        kv_cache_free(cache);
        if (!failed) {
            assert_true(n > 4);
            break;
        }
    }
}

/* Lanes of unlike lengths that share a budget, as rounds of a keep policy leave them. Marks take
   what the entries of all lanes need, however long the longest lane is. Once there is room for all
   of it, no memory is asked for. */
TEST(marks_take_what_all_lanes_hold)
{
    enum { N_LANE = 8, ALL = 1600, STEP = 20, N_ROUND = 40 };
    struct kv_geometry g = KV_SHAPE(1, N_LANE, DIM, DIM, 16, KV_TYPE_F16, KV_TYPE_Q8_0);
    struct kv_cache *cache = kv_check_cache(&g, 400);
    struct kv_seq *seq;
    int32_t slots[ALL], pos = 0, longest = 0;
    uint64_t rng = 1;
    int64_t most = cache->table_bytes + kv_seq_bytes_at(&g, N_MARK * 4 + 2, ALL, ALL);
    kv_cache_set_marks(cache, N_MARK, true);
    assert_int_equal(kv_seq_create(cache, &seq, NULL), PITH_OK);
    assert_int_equal(kv_seq_reserve_tables(seq, ALL, ALL, NULL), PITH_OK);
    for (int i = 0; i < N_ROUND; i++) {
        for (int32_t len = 0; len + N_LANE * STEP <= ALL; pos += STEP) {
            pi_mem_fail_at(1, false);
            assert_int_equal(kv_seq_reserve(seq, STEP, NULL), PITH_OK);
            pi_mem_fail_at(0, false);
            assert_int_equal(kv_check_append(seq, 1, pos, STEP), PITH_OK);
            len = 0;
            for (int32_t h = 0; h < N_LANE; h++) {
                len += kv_lane_len(seq, 0, h);
                longest = (int32_t)pi_max(longest, kv_lane_len(seq, 0, h));
                kv_lane_marks(seq, 0, h, 1)[kv_lane_len(seq, 0, h) - 1] = (float)(pos + h);
            }
            assert_true(cache->table_bytes <= most);
        }
        for (int32_t h = 0; h < N_LANE; h++) { /* one of them gets to keep all it has */
            int32_t len = kv_lane_len(seq, 0, h), n = 0;
            bool favoured = h == i / 8 % N_LANE;
            for (int32_t s = 0; s < len; s++)
                if (favoured || s == len - 1 || rng_below(&rng, 4) == 0)
                    slots[n++] = s;
            assert_int_equal(kv_seq_compact(seq, 0, h, slots, n, NULL), PITH_OK);
            assert_true(kv_lane_marks(seq, 0, h, 1)[n - 1] == (float)(pos - STEP + h));
        }
    }
    assert_true(longest > 3 * ALL / N_LANE);
    bool as_tables = pi_device_default()->pack_marks != NULL; /* the device has them, too */
    assert_true(as_tables || 2 * kv_seq_bytes_at(&g, N_MARK * 4 + 2, ALL, ALL) <
                                 kv_seq_bytes_at(&g, N_MARK * 4 + 2, ALL, N_LANE * (int64_t)ALL));
    kv_seq_free(seq);
    kv_cache_free(cache);
}
