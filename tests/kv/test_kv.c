/*
 * test_kv.c - the KV store against a model that keeps every entry in a plain array: random
 * operations, every pool size, every allocation failing.
 */
#include "base/mem.h"
#include "kv_by_page.h"
#include "kv/lane_internal.h"
#include "kv_check.h"
#include "testing.h"
#include "kv_shape.h"

#define N_LAYER 2
#define N_HEAD 2
#define DIM_K 64
#define DIM_V 32
#define MAX_LEN 400
#define MAX_SEQ 5

static struct kv_geometry geometry(int32_t page_len, enum kv_type type_k, enum kv_type type_v)
{
    return (struct kv_geometry)KV_SHAPE(N_LAYER, N_HEAD, DIM_K, DIM_V, page_len, type_k, type_v);
}

/* ---- the model ---- */

struct entry {
    int32_t pos;
    float k[DIM_K];
    float v[DIM_V];
};

struct model_lane {
    struct entry *entry; /* [MAX_LEN] */
    int32_t len;
};

struct pair {
    struct kv_seq *seq; /* NULL: unused */
    struct model_lane lane[N_LAYER][N_HEAD];
    int32_t next; /* position of the next token */
};

/* A lane's table as it was when its pages were listed. */
struct listed {
    int64_t version;
    int32_t n;
    struct kv_page_ref table[256];
};

struct world {
    struct kv_cache *cache;
    struct pair pair[MAX_SEQ];
    struct listed listed[MAX_SEQ][N_LAYER * N_HEAD];
    uint64_t rng;
    int64_t other_table_bytes;
    int n_full; /* failures for want of pages so far */
};

static void world_start(struct world *w, const struct kv_geometry *g, int32_t n_page, uint64_t seed)
{
    *w = (struct world){.rng = seed, .other_table_bytes = pi_mem_used(PI_MEM_TABLE)};
    w->cache = kv_check_cache(g, n_page);
    for (int i = 0; i < MAX_SEQ; i++)
        for (int l = 0; l < N_LAYER * N_HEAD; l++)
            w->pair[i].lane[l / N_HEAD][l % N_HEAD].entry = malloc(MAX_LEN * sizeof(struct entry));
}

static void world_end(struct world *w)
{
    pith_kv_stats stats;
    for (int i = 0; i < MAX_SEQ; i++) {
        kv_seq_free(w->pair[i].seq);
        for (int l = 0; l < N_LAYER * N_HEAD; l++)
            free(w->pair[i].lane[l / N_HEAD][l % N_HEAD].entry);
    }
    kv_cache_stats(w->cache, &stats);
    assert_int_equal(stats.used_bytes, 0);
    assert_int_equal(stats.live_bytes, 0);
    assert_int_equal(stats.saved_bytes, 0);
    kv_cache_free(w->cache);
    assert_int_equal(pi_mem_used(PI_MEM_TABLE), w->other_table_bytes);
}

static void check_pair(const struct pair *p, bool contents)
{
    float row[DIM_K];
    for (int l = 0; l < N_LAYER; l++)
        for (int h = 0; h < N_HEAD; h++) {
            const struct model_lane *m = &p->lane[l][h];
            assert_int_equal(kv_lane_len(p->seq, l, h), m->len);
            for (int s = 0; s < m->len; s++) {
                assert_int_equal(kv_lane_pos(p->seq, l, h, s), m->entry[s].pos);
                if (!contents)
                    continue;
                kv_lane_key(p->seq, l, h, s, row);
                assert_memory_equal(row, m->entry[s].k, sizeof(m->entry[s].k));
                kv_lane_value(p->seq, l, h, s, row);
                assert_memory_equal(row, m->entry[s].v, sizeof(m->entry[s].v));
            }
        }
}

/* A table of the same version has the pages that were listed, and more behind them, or fewer. The
   last one may have any number of entries. */
static void check_version(const struct kv_lane *lane, struct listed *was)
{
    const int32_t n = (int32_t)pi_min(was->n, lane->n_live);
    for (int32_t i = 0; i < n && lane->version == was->version; i++) {
        const struct kv_page_ref *a = &was->table[i], *b = &lane->table[i];
        assert_true(a->page == b->page && a->delta == b->delta && a->n_folded == b->n_folded);
        assert_true(a->n == b->n || i == n - 1);
    }
    if (lane->unbroken == lane->version + 1)
        assert_int_equal(kv_lane_count_breaks(lane), 0);
    for (int32_t i = 0; i < lane->n_live && lane->even == lane->version + 1; i++)
        assert_true(lane->table[i].delta == 0 && lane->table[i].n_folded == 0);
    was->version = lane->version;
    was->n = lane->n_live;
    assert_true(was->n <= (int32_t)PI_LEN(was->table));
    if (was->n > 0)
        memcpy(was->table, lane->table, (size_t)was->n * sizeof(*was->table));
}

static void check_world(struct world *w, bool contents)
{
    kv_check_account(w->cache, w->other_table_bytes);
    for (int i = 0; i < MAX_SEQ; i++) {
        struct kv_seq *seq = w->pair[i].seq;
        if (seq == NULL)
            continue;
        check_pair(&w->pair[i], contents);
        for (int l = 0; l < N_LAYER * N_HEAD; l++) {
            check_version(&seq->lane[l], &w->listed[i][l]);
            kv_lane_breaks(seq, l / N_HEAD, l % N_HEAD); /* it may be remembered */
            kv_lane_is_plain(seq, l / N_HEAD, l % N_HEAD);
        }
    }
}

/* ---- operations on both ---- */

/* Pages that a lane with this table takes for n more entries, copies included. */
static int64_t pages_needed(const struct kv_cache *cache, const struct kv_lane *lane, int32_t n)
{
    int32_t len = cache->g.page_len, reserved = lane->n_page - lane->n_live, copy = 0;
    if (n == 0)
        return 0;
    if (lane->n_live > 0) {
        const struct kv_page_ref *tail = &lane->table[lane->n_live - 1];
        if (tail->delta == 0 && tail->n < len && !tail->closed) {
            copy = lane->kind->n_ref[tail->page] > 1;
            n -= len - tail->n;
        }
    }
    int64_t fresh = n > 0 ? (n + len - 1) / len : 0;
    return copy + (fresh > reserved ? fresh - reserved : 0);
}

/* Asserts that the reservation succeeds exactly when the pages are there, and that a failure
   changes nothing. */
static bool do_reserve(struct world *w, struct pair *p, int32_t n)
{
    int64_t need = 0;
    for (int l = 0; l < N_LAYER * N_HEAD; l++)
        need += kv_pages_bytes(p->seq->lane[l].kind, pages_needed(w->cache, &p->seq->lane[l], n));
    int64_t n_free = kv_seq_free_bytes(p->seq);
    uint64_t digest = kv_check_digest(w->cache);
    pith_status status = kv_seq_reserve(p->seq, n, &err);
    assert_int_equal(status, need > n_free ? PITH_KV_FULL : PITH_OK);
    if (status == PITH_OK) {
        assert_int_equal(n_free - kv_seq_free_bytes(p->seq), need);
        return true;
    }
    assert_true(kv_check_digest(w->cache) == digest);
    w->n_full++;
    return false;
}

/* Appends n entries to one lane in pieces of random size, from rows with a random stride. */
static void append_lane(struct world *w, struct pair *p, int l, int h, int32_t n)
{
    const struct kv_geometry *g = &w->cache->g;
    size_t k_stride = DIM_K + rng_below(&w->rng, 5), v_stride = DIM_V + rng_below(&w->rng, 5);
    float *k = calloc((size_t)n * k_stride + 1, sizeof(*k));
    float *v = calloc((size_t)n * v_stride + 1, sizeof(*v));
    struct model_lane *m = &p->lane[l][h];
    for (int32_t i = 0; i < n; i++) {
        struct entry *e = &m->entry[m->len + i];
        kv_check_row(rng_next(&w->rng), k + (size_t)i * k_stride, DIM_K);
        kv_check_row(rng_next(&w->rng), v + (size_t)i * v_stride, DIM_V);
        e->pos = p->next + i;
        kv_check_stored(kv_layer_type_k(g, l), k + (size_t)i * k_stride, DIM_K, e->k);
        kv_check_stored(kv_layer_type_v(g, l), v + (size_t)i * v_stride, DIM_V, e->v);
    }
    for (int32_t done = 0; done < n;) {
        int32_t part = 1 + (int32_t)rng_below(&w->rng, (uint64_t)(n - done));
        kv_seq_append(p->seq, l, h, p->next + done, part, k + (size_t)done * k_stride, k_stride,
                      v + (size_t)done * v_stride, v_stride);
        done += part;
    }
    m->len += n;
    free(k);
    free(v);
}

static void op_append(struct world *w, struct pair *p)
{
    int32_t n = 1 + (int32_t)rng_below(&w->rng, rng_below(&w->rng, 2) ? 5 : 90);
    for (int l = 0; l < N_LAYER * N_HEAD; l++)
        n = (int32_t)pi_min(n, MAX_LEN - p->lane[l / N_HEAD][l % N_HEAD].len);
    if (!do_reserve(w, p, n + (int32_t)rng_below(&w->rng, 3)))
        return;
    for (int l = 0; l < N_LAYER * N_HEAD; l++) /* now and then a lane stays behind */
        if (rng_below(&w->rng, 8) != 0)
            append_lane(w, p, l / N_HEAD, l % N_HEAD, n);
    p->next += n;
    if (rng_below(&w->rng, 2))
        kv_seq_trim(p->seq);
}

static void op_fork(struct pair *from, struct pair *to)
{
    if (to == from)
        return;
    kv_seq_free(to->seq);
    assert_int_equal(kv_seq_fork(from->seq, &to->seq, NULL), PITH_OK);
    to->next = from->next;
    for (int l = 0; l < N_LAYER * N_HEAD; l++) {
        const struct model_lane *a = &from->lane[l / N_HEAD][l % N_HEAD];
        struct model_lane *b = &to->lane[l / N_HEAD][l % N_HEAD];
        memcpy(b->entry, a->entry, (size_t)a->len * sizeof(*a->entry));
        b->len = a->len;
    }
}

static void op_truncate(struct world *w, struct pair *p)
{
    int32_t pos = rng_below(&w->rng, 4) ? p->next - (int32_t)rng_below(&w->rng, 40)
                                        : (int32_t)rng_below(&w->rng, (uint64_t)p->next + 1);
    pos = (int32_t)pi_max(pos, 0);
    kv_seq_truncate(p->seq, pos);
    p->next = pos;
    for (int l = 0; l < N_LAYER * N_HEAD; l++) {
        struct model_lane *m = &p->lane[l / N_HEAD][l % N_HEAD];
        int32_t n = 0;
        for (int32_t s = 0; s < m->len; s++)
            if (m->entry[s].pos < pos)
                m->entry[n++] = m->entry[s];
        m->len = n;
        assert_int_equal(p->seq->lane[l].n_page, p->seq->lane[l].n_live);
    }
}

/* Pages that a lane has after keeping: one per page_len entries of each run with one delta and
   ascending positions. */
static int32_t packed_pages(const struct kv_cache *cache, const struct kv_lane *lane,
                            const struct entry *entries, const int32_t *slots, int32_t n)
{
    int32_t n_page = 0, in_page = 0, delta = 0, pos = 0;
    for (int32_t j = 0; j < n; j++) {
        int32_t entry;
        int32_t d = lane->table[kv_lane_find(cache, lane, slots[j], &entry)].delta;
        if (n_page == 0 || d != delta || in_page == cache->g.page_len ||
            entries[slots[j]].pos <= pos) {
            n_page++;
            in_page = 0;
            delta = d;
        }
        pos = entries[slots[j]].pos;
        in_page++;
    }
    return n_page;
}

static void op_compact(struct world *w, struct pair *p)
{
    int l = (int)rng_below(&w->rng, N_LAYER), h = (int)rng_below(&w->rng, N_HEAD);
    struct model_lane *m = &p->lane[l][h];
    struct kv_lane *lane = kv_lane_at(p->seq, l, h);
    int32_t slots[MAX_LEN], n = 0;
    uint64_t keep = rng_below(&w->rng, 11); /* of ten */
    int32_t first = (int32_t)rng_below(&w->rng, (uint64_t)m->len + 1);
    for (int32_t s = 0; s < m->len; s++)
        if (s < first || rng_below(&w->rng, 10) < keep)
            slots[n++] = s;
    int32_t n_page = packed_pages(w->cache, lane, m->entry, slots, n), n_shared = 0;
    for (int32_t i = 0; i < lane->n_live; i++)
        n_shared += lane->kind->n_ref[lane->table[i].page] > 1;
    int64_t n_free = kv_seq_free_bytes(p->seq);
    uint64_t digest = kv_check_digest(w->cache);
    pith_status status = kv_seq_compact(p->seq, l, h, slots, n, NULL);
    if (status == PITH_KV_FULL) {
        assert_true(kv_check_digest(w->cache) == digest);
        assert_true(n_free < kv_pages_bytes(lane->kind, n_shared));
        w->n_full++;
        return;
    }
    assert_int_equal(status, PITH_OK);
    for (int32_t j = 0; j < n; j++)
        m->entry[j] = m->entry[slots[j]];
    m->len = n;
    assert_int_equal(lane->n_page, n_page);
}

static void op_share(struct world *w, struct pair *p, const struct pair *from)
{
    int l = (int)rng_below(&w->rng, N_LAYER), h = (int)rng_below(&w->rng, N_HEAD);
    struct kv_lane *lane = kv_lane_at(p->seq, l, h);
    const struct kv_lane *source = kv_lane_at(from->seq, l, h);
    int32_t to_index = (int32_t)rng_below(&w->rng, (uint64_t)lane->n_live + 1);
    int32_t from_index = (int32_t)rng_below(&w->rng, (uint64_t)source->n_live + 1);
    int32_t delta = (int32_t)rng_below(&w->rng, 5) * 7 - 14;
    int32_t to_slot = 0, from_slot = 0;
    for (int32_t i = 0; i < to_index; i++)
        to_slot += lane->table[i].n;
    for (int32_t i = 0; i < from_index; i++)
        from_slot += source->table[i].n;
    const struct entry *entry = &from->lane[l][h].entry[from_slot];
    int32_t n = to_index < lane->n_live ? lane->table[to_index].n : 0;
    bool valid = n > 0 && from_slot + n <= source->len && (from != p || from_slot + n <= to_slot);
    for (int32_t i = 0; valid && i < n; i++)
        valid = entry[i].pos + delta >= 0;
    assert_int_equal(kv_seq_reserve_runs(p->seq, source->n_live, NULL), PITH_OK);
    uint64_t digest = kv_check_digest(w->cache);
    pith_status status = page_share(p->seq, l, h, to_index, from->seq, from_index, delta, NULL);
    assert_int_equal(status, valid ? PITH_OK : PITH_INVALID);
    if (!valid) {
        assert_true(kv_check_digest(w->cache) == digest);
        return;
    }
    struct entry *to = &p->lane[l][h].entry[to_slot];
    memmove(to, entry, (size_t)n * sizeof(*to));
    for (int32_t i = 0; i < n; i++)
        to[i].pos += delta;
    /* The next token comes after everything that is stored. */
    for (int32_t i = 0; i < n; i++)
        p->next = (int32_t)pi_max(p->next, to[i].pos + 1);
}

static void random_op(struct world *w)
{
    struct pair *p = &w->pair[rng_below(&w->rng, MAX_SEQ)];
    struct pair *other = &w->pair[rng_below(&w->rng, MAX_SEQ)];
    if (p->seq == NULL) {
        assert_int_equal(kv_seq_create(w->cache, &p->seq, NULL), PITH_OK);
        p->next = 0;
        for (int l = 0; l < N_LAYER * N_HEAD; l++)
            p->lane[l / N_HEAD][l % N_HEAD].len = 0;
    }
    switch (rng_below(&w->rng, 12)) {
    case 0:
        op_truncate(w, p);
        break;
    case 1:
        op_fork(p, other);
        break;
    case 2:
    case 3:
        op_compact(w, p);
        break;
    case 4:
    case 5:
        op_share(w, p, other->seq != NULL ? other : p);
        break;
    case 6:
        if (rng_below(&w->rng, 3) == 0) {
            kv_seq_free(p->seq);
            p->seq = NULL;
        }
        break;
    default:
        op_append(w, p);
    }
}

TEST(random_operations_agree_with_plain_arrays)
{
    static const int32_t page_lens[] = {16, 32, 64};
    int n_full = 0;
    for (int t = 0; t < 2 * KV_N_TYPE * KV_N_TYPE; t += TEST_STRIDE) {
        struct kv_geometry g = geometry(page_lens[t % 3], (enum kv_type)(t / 2 % KV_N_TYPE),
                                        (enum kv_type)(t / 2 / KV_N_TYPE));
        g.index = t / 2 % 2 ? KV_INDEX_ROWS : 0; /* keys in either order */
        if (t % 2)                               /* the layers differ */
            g.edge_k = (struct kv_edge){(enum kv_type)((g.type_k + 3) % KV_N_TYPE), 1, 0};
        if (t % 4 == 3)
            g.edge_v = (struct kv_edge){(enum kv_type)((g.type_v + 5) % KV_N_TYPE), 0, 1};
        struct world w;
        world_start(&w, &g, 2000 / g.page_len + 20, (uint64_t)t + 1);
        for (int i = 0; i < 240; i++) {
            random_op(&w);
            check_world(&w, i % 8 == 0);
        }
        check_world(&w, true);
        n_full += w.n_full;
        world_end(&w);
    }
    assert_true(n_full > 100 / TEST_STRIDE); /* else the pools were too large to test anything */
}

/* ---- exact numbers ---- */

static void assert_pages(const struct kv_cache *cache, int64_t used, int64_t shared, int64_t saved)
{
    pith_kv_stats stats;
    kv_cache_stats(cache, &stats);
    assert_int_equal(stats.n_page_used, used);
    assert_int_equal(stats.shared_bytes / stats.page_bytes, shared);
    assert_int_equal(stats.saved_bytes / stats.page_bytes, saved);
}

TEST(fork_counts_pages)
{
    struct kv_geometry g = geometry(16, KV_TYPE_F16, KV_TYPE_Q8_0);
    struct kv_cache *cache = kv_check_cache(&g, 64);
    struct kv_seq *a, *b, *c;
    assert_int_equal(kv_seq_create(cache, &a, NULL), PITH_OK);
    assert_int_equal(kv_check_append(a, 1, 0, 40), PITH_OK);
    assert_pages(cache, 12, 0, 0);
    assert_int_equal(kv_seq_fork(a, &b, NULL), PITH_OK);
    assert_int_equal(kv_seq_fork(a, &c, NULL), PITH_OK);
    assert_pages(cache, 12, 12, 24);
    assert_int_equal(kv_check_append(b, 2, 40, 1), PITH_OK); /* copies four tails */
    assert_pages(cache, 16, 12, 20);
    kv_seq_truncate(c, 16);
    assert_pages(cache, 16, 8, 12);
    assert_int_equal(kv_check_append(c, 3, 16, 1), PITH_OK); /* full pages are not copied */
    assert_pages(cache, 20, 8, 12);
    kv_seq_free(a);
    assert_pages(cache, 16, 4, 4);
    kv_seq_free(b);
    assert_pages(cache, 8, 0, 0);
    kv_seq_free(c);
    assert_pages(cache, 0, 0, 0);
    kv_cache_free(cache);
}

/* Pages that continue no lane are taken lowest first, so that a pool that is mostly empty stays so
   in memory. */
TEST(takes_the_lowest_page_first)
{
    struct kv_geometry g = geometry(16, KV_TYPE_F32, KV_TYPE_F32);
    struct kv_cache *cache = kv_check_cache(&g, 200);
    for (int32_t i = 0; i < 200; i++)
        assert_int_equal(kv_page_take(cache, &cache->kind[0], NULL, 0, 1), i);
    assert_int_equal(kv_page_take(cache, &cache->kind[0], NULL, 0, 1), -1);
    static const int32_t given[] = {150, 63, 64, 199, 0, 70};
    static const int32_t taken[] = {0, 63, 64, 70, 150, 199};
    for (size_t i = 0; i < PI_LEN(given); i++)
        kv_page_drop(cache, &cache->kind[0], given[i]);
    for (size_t i = 0; i < PI_LEN(taken); i++)
        assert_int_equal(kv_page_take(cache, &cache->kind[0], NULL, 0, 1), taken[i]);
    for (int32_t i = 0; i < 200; i++)
        kv_page_drop(cache, &cache->kind[0], i);
    kv_cache_free(cache);
}

/* Pages of a lane that do not lie behind the one before. */
static int32_t count_breaks(const struct kv_lane *lane)
{
    int32_t n = 0;
    for (int32_t i = 1; i < lane->n_page; i++)
        n += lane->table[i].page != lane->table[i - 1].page + 1;
    return n;
}

static int32_t highest_page(const struct kv_seq *seq)
{
    int32_t highest = 0;
    for (int32_t l = 0; l < N_LAYER * N_HEAD; l++)
        for (int32_t i = 0; i < seq->lane[l].n_page; i++)
            highest = (int32_t)pi_max(highest, seq->lane[l].table[i].page);
    return highest;
}

/* Lanes that grow in turn still have their pages side by side, in runs as long as the lane was. So
   the touched part of the pool is not much more than the used part. */
TEST(pages_of_a_lane_lie_side_by_side)
{
    enum { N_SEQ = 3, N_PAGE = 64, P = 16, N_LANE = N_LAYER * N_HEAD };
    enum { ALL = 4 * N_SEQ * N_PAGE * N_LANE };
    struct kv_geometry g = geometry(P, KV_TYPE_F32, KV_TYPE_F32);
    struct kv_cache *cache = kv_check_cache(&g, ALL);
    struct kv_seq *seq[N_SEQ];
    for (int32_t i = 0; i < N_SEQ; i++)
        assert_int_equal(kv_seq_create(cache, &seq[i], NULL), PITH_OK);
    for (int32_t n = 0; n < N_PAGE; n++) {
        int32_t n_used = (n + 1) * N_SEQ * N_LANE;
        for (int32_t i = 0; i < N_SEQ; i++)
            assert_int_equal(kv_check_append(seq[i], 1, n * P, P), PITH_OK);
        for (int32_t i = 0; i < N_SEQ; i++)
            assert_true(highest_page(seq[i]) < 2 * n_used);
    }
    for (int32_t i = 0; i < N_SEQ; i++)
        for (int32_t l = 0; l < N_LANE; l++) /* runs of 1, 1, 2, 4, 8, 16, 32 */
            assert_true(count_breaks(&seq[i]->lane[l]) <= 6);
    kv_seq_truncate(seq[0], P); /* any lane may take the rest of its runs, too */
    kv_seq_free(seq[1]);
    kv_seq_free(seq[2]);
    static int32_t taken[ALL];
    for (int32_t i = N_LANE; i < ALL; i++) {
        taken[i] = kv_page_take(cache, &cache->kind[0], NULL, 0, 1);
        assert_in_range(taken[i], 0, i);
    }
    for (int32_t i = N_LANE; i < ALL; i++)
        kv_page_drop(cache, &cache->kind[0], taken[i]);
    kv_seq_free(seq[0]);
    kv_cache_free(cache);
}

/* Where the length of lanes is known, each lane's pages lie in one run, even in a pool that they
   fill to the last page. A longer lane takes any free pages. */
TEST(expected_pages_lie_side_by_side)
{
    enum { N_SEQ = 3, N_PAGE = 21, P = 16, N_LANE = N_LAYER * N_HEAD };
    struct kv_geometry g = geometry(P, KV_TYPE_F32, KV_TYPE_F32);
    struct kv_cache *cache = kv_check_cache(&g, N_SEQ * N_PAGE * N_LANE);
    struct kv_seq *seq[N_SEQ + 1];
    for (int32_t i = 0; i < N_SEQ; i++) {
        assert_int_equal(kv_seq_create(cache, &seq[i], NULL), PITH_OK);
        for (int32_t l = 0; l < N_LANE; l++)
            kv_lane_expect(seq[i], l / N_HEAD, l % N_HEAD, N_PAGE * P - P / 2);
    }
    for (int32_t n = 0; n < N_PAGE; n++)
        for (int32_t i = 0; i < N_SEQ; i++)
            assert_int_equal(kv_check_append(seq[i], 1, n * P, P), PITH_OK);
    assert_int_equal(kv_cache_free_bytes(cache), 0);
    for (int32_t i = 0; i < N_SEQ; i++)
        for (int32_t l = 0; l < N_LANE; l++)
            assert_int_equal(count_breaks(&seq[i]->lane[l]), 0);
    kv_seq_truncate(seq[1], 2 * P);
    assert_int_equal(kv_seq_fork(seq[1], &seq[N_SEQ], NULL), PITH_OK);
    assert_int_equal(seq[N_SEQ]->lane[0].most, N_PAGE);
    for (int32_t n = N_PAGE; n < 2 * N_PAGE - 2; n++)
        assert_int_equal(kv_check_append(seq[2], 1, n * P, P), PITH_OK);
    assert_int_equal(kv_check_append(seq[2], 1, 2 * N_PAGE * P, P), PITH_KV_FULL);
    for (int32_t l = 0; l < N_LANE; l++) /* the rest of the other's run is in one piece */
        assert_int_equal(count_breaks(&seq[2]->lane[l]), 1);
    for (int32_t i = 0; i <= N_SEQ; i++)
        kv_seq_free(seq[i]);
    kv_cache_free(cache);
}

/* Pages reserved for a lane's growth are not lost: any lane gets the last page of a pool. */
TEST(runs_give_way)
{
    enum { N_PAGE = 21, P = 16, N_LANE = N_LAYER * N_HEAD };
    struct kv_geometry g = geometry(P, KV_TYPE_F32, KV_TYPE_F32);
    struct kv_cache *cache = kv_check_cache(&g, 2 * N_PAGE * N_LANE);
    struct kv_seq *a, *b;
    assert_int_equal(kv_seq_create(cache, &a, NULL), PITH_OK);
    assert_int_equal(kv_seq_create(cache, &b, NULL), PITH_OK);
    for (int32_t n = 0; n < N_PAGE; n++) {
        assert_int_equal(kv_check_append(a, 1, n * P, P), PITH_OK);
        assert_int_equal(kv_check_append(b, 1, n * P, P), PITH_OK);
    }
    assert_int_equal(kv_cache_free_bytes(cache), 0);
    assert_int_equal(kv_check_append(a, 1, N_PAGE * P, 1), PITH_KV_FULL);
    kv_check_same(a, b);
    kv_seq_free(a);
    kv_seq_free(b);
    kv_cache_free(cache);
}

/* Entries of different deltas cannot share a page; a page read at a delta takes no new entries. */
TEST(delta_pages_stay_apart)
{
    struct kv_geometry g = geometry(16, KV_TYPE_F32, KV_TYPE_F32);
    struct kv_cache *cache = kv_check_cache(&g, 64);
    struct kv_seq *seq;
    assert_int_equal(kv_seq_create(cache, &seq, NULL), PITH_OK);
    assert_int_equal(kv_check_append(seq, 1, 0, 64), PITH_OK);
    assert_int_equal(page_share(seq, 1, 1, 2, seq, 0, 32, NULL), PITH_OK);
    int32_t slots[64], n = 0;
    for (int32_t s = 0; s < 64; s++)
        if (s % 16 >= 8)
            slots[n++] = s;
    assert_int_equal(kv_seq_compact(seq, 1, 1, slots, n, NULL), PITH_OK);
    const struct kv_lane *lane = kv_lane_at(seq, 1, 1);
    assert_int_equal(lane->n_page, 3);
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(lane->table[i].n, i == 0 ? 16 : 8);
        assert_int_equal(lane->table[i].delta, i == 1 ? 32 : 0);
    }
    for (int32_t s = 0; s < n; s++)
        assert_int_equal(kv_lane_pos(seq, 1, 1, s), slots[s]);
    kv_seq_truncate(seq, 44); /* the delta page is the last one then */
    assert_int_equal(lane->len, 20);
    assert_int_equal(kv_check_append(seq, 2, 44, 1), PITH_OK);
    assert_int_equal(lane->n_page, 3);
    assert_int_equal(kv_lane_pos(seq, 1, 1, 19), 43);
    assert_int_equal(kv_lane_pos(seq, 1, 1, 20), 44);
    kv_seq_free(seq);
    kv_cache_free(cache);
}

/* ---- failures ---- */

TEST(budget_is_checked)
{
    struct kv_geometry g = geometry(64, KV_TYPE_F16, KV_TYPE_F16);
    int64_t page = (int64_t)kv_page_bytes(&g), least = N_LAYER * N_HEAD * page;
    assert_int_equal(page, 64 * (2 * DIM_K + 2 * DIM_V + 4));
    const int64_t bad[] = {INT64_MIN, -1, 0, least - 1, INT64_MAX, (int64_t)1 << 60};
    for (size_t i = 0; i < PI_LEN(bad); i++) {
        struct kv_cache *cache = NULL;
        char number[32];
        assert_int_equal(kv_cache_create(&g, bad[i], &cache, &err), PITH_INVALID);
        assert_null(cache);
        snprintf(number, sizeof(number), "%lld", (long long)bad[i]);
        assert_non_null(strstr(err.message, number));
    }
    struct kv_cache *cache = NULL;
    assert_int_equal(kv_cache_create(&g, least + page - 1, &cache, NULL), PITH_OK);
    assert_int_equal(cache->kind[0].n_page, N_LAYER * N_HEAD);
    kv_cache_free(cache);
    assert_int_equal(kv_bytes_for_tokens(&g, 0), 0);
    assert_int_equal(kv_bytes_for_tokens(&g, 1), least);
    assert_int_equal(kv_bytes_for_tokens(&g, 64), least);
    assert_int_equal(kv_bytes_for_tokens(&g, 65), 2 * least);
    assert_true(kv_bytes_for_tokens(&g, INT64_MAX) == INT64_MAX);
}

TEST(geometry_is_checked)
{
    static const struct {
        struct kv_geometry g;
        pith_status status;
        const char *names;
    } cases[] = {
        {KV_SHAPE(1, 1, 32, 32, 48, KV_TYPE_F16, KV_TYPE_F16), PITH_INVALID, "page_len: 48"},
        {KV_SHAPE(0, 1, 32, 32, 64, KV_TYPE_F16, KV_TYPE_F16), PITH_INVALID, "n_layer: 0"},
        {KV_SHAPE(1, -3, 32, 32, 64, KV_TYPE_F16, KV_TYPE_F16), PITH_INVALID, "n_head: -3"},
        {KV_SHAPE(1, 1, 0, 32, 64, KV_TYPE_F16, KV_TYPE_F16), PITH_INVALID, "dim_k: 0"},
        {KV_SHAPE(1, 1, 32, 1 << 30, 64, KV_TYPE_F16, KV_TYPE_F16), PITH_INVALID,
         "dim_v: 1073741824"},
        {KV_SHAPE(1, 1, 80, 80, 64, KV_TYPE_Q8_0, KV_TYPE_F16), PITH_UNSUPPORTED, "type_k: q8_0"},
        {KV_SHAPE(1, 1, 80, 80, 64, KV_TYPE_F16, KV_TYPE_Q8_0), PITH_UNSUPPORTED, "type_v: q8_0"},
        {KV_SHAPE(1, 1, 80, 80, 64, KV_TYPE_F16, KV_N_TYPE), PITH_INVALID, "type_v: 8"},
        {KV_SHAPE(1, 1, 80, 96, 16, KV_TYPE_F32, KV_TYPE_Q8_0), PITH_OK, ""},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        err = (pith_error){0};
        assert_int_equal(kv_geometry_check(&cases[i].g, &err), cases[i].status);
        assert_non_null(strstr(err.message, cases[i].names));
    }
    for (int i = 0; i < KV_N_TYPE; i++)
        assert_int_equal(kv_type_find(kv_type_name((enum kv_type)i)), i);
    assert_int_equal(kv_type_find("q4_1"), KV_N_TYPE);
}

/* A fixed story that meets every operation, one step at a time. Each step either succeeds or leaves
   everything as it was. */
struct story {
    struct kv_cache *cache;
    struct kv_seq *a, *b;
};

static pith_status story_step(struct story *s, int step)
{
    static const int32_t odd[] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 33, 39};
    switch (step) {
    case 0:
        return kv_seq_create(s->cache, &s->a, NULL);
    case 1:
        return kv_check_append(s->a, 1, 0, 40);
    case 2:
        return kv_seq_fork(s->a, &s->b, NULL);
    case 3:
        return kv_check_append(s->b, 2, 40, 3);
    case 4:
        return kv_seq_compact(s->b, 0, 1, odd, PI_LEN(odd), NULL);
    case 5:
        return page_share(s->b, 1, 0, 1, s->a, 0, 16, NULL);
    case 6:
        return kv_seq_compact(s->b, 1, 0, odd, PI_LEN(odd), NULL);
    case 7:
        return kv_check_append(s->a, 3, 40, 200);
    case 8:
        kv_seq_truncate(s->a, 20);
        return PITH_OK;
    case 9:
        return kv_seq_reserve(s->a, 300, NULL);
    default:
        kv_seq_trim(s->a);
        return PITH_OK;
    }
}

#define N_STEP 11

static void story_end(struct story *s)
{
    kv_seq_free(s->a);
    kv_seq_free(s->b);
    assert_int_equal(s->cache->used, 0);
    kv_cache_free(s->cache);
}

/* The story in a pool of every size, until it fits: each failure is KV_FULL and changes nothing. */
TEST(may_be_full_at_every_point)
{
    struct kv_geometry g = geometry(16, KV_TYPE_Q8_0, KV_TYPE_F16);
    int64_t before = pi_mem_used(PI_MEM_TABLE);
    unsigned failed_steps = 0;
    bool fits = false;
    for (int32_t n_page = N_LAYER * N_HEAD; !fits; n_page++) {
        struct story s = {.cache = kv_check_cache(&g, n_page)};
        int step;
        for (step = 0; step < N_STEP; step++) {
            uint64_t digest = kv_check_digest(s.cache);
            pith_status status = story_step(&s, step);
            kv_check_account(s.cache, before);
            if (status == PITH_OK)
                continue;
            assert_int_equal(status, PITH_KV_FULL);
            assert_true(kv_check_digest(s.cache) == digest);
            failed_steps |= 1u << step;
            break;
        }
        fits = step == N_STEP;
        story_end(&s);
    }
    assert_int_equal(failed_steps, 1u << 1 | 1u << 3 | 1u << 4 | 1u << 6 | 1u << 7 | 1u << 9);
    assert_int_equal(pi_mem_used(PI_MEM_TABLE), before);
}

/* Keeping entries of shared pages in a full pool. */
TEST(compacts_when_full)
{
    struct kv_geometry g = geometry(16, KV_TYPE_F32, KV_TYPE_F16);
    struct kv_cache *cache = kv_check_cache(&g, 8);
    struct kv_seq *a, *b;
    static const int32_t prefix[] = {0, 1, 2}, rest[] = {1, 2, 3, 20};
    assert_int_equal(kv_seq_create(cache, &a, NULL), PITH_OK);
    assert_int_equal(kv_check_append(a, 1, 0, 32), PITH_OK);
    assert_int_equal(kv_seq_fork(a, &b, NULL), PITH_OK);
    uint64_t digest = kv_check_digest(cache);
    assert_int_equal(kv_seq_compact(b, 0, 0, rest, 4, NULL), PITH_KV_FULL);
    assert_true(kv_check_digest(cache) == digest);
    assert_int_equal(kv_seq_compact(b, 0, 0, prefix, 3, NULL), PITH_OK); /* needs no copy */
    assert_int_equal(kv_lane_pages(b, 0, 0), 1);
    kv_seq_truncate(a, 16);
    assert_int_equal(kv_check_free(cache), 1); /* b lets go of that page alone */
    assert_int_equal(kv_seq_compact(b, 1, 1, rest, 4, NULL), PITH_OK);
    assert_int_equal(kv_lane_pos(b, 1, 1, 3), 20);
    assert_int_equal(kv_seq_compact(b, 1, 1, (const int32_t[]){2, 2}, 2, NULL), PITH_INVALID);
    assert_int_equal(kv_seq_compact(b, 1, 1, (const int32_t[]){0, 4}, 2, NULL), PITH_INVALID);
    assert_int_equal(kv_seq_compact(b, 1, 1, rest, 5, NULL), PITH_INVALID);
    assert_int_equal(kv_seq_reserve(b, -1, NULL), PITH_INVALID);
    kv_seq_free(a);
    kv_seq_free(b);
    kv_cache_free(cache);
}

/* Every allocation of the story fails once; the step that met it is repeated and succeeds. */
TEST(any_allocation_may_fail)
{
    struct kv_geometry g = geometry(16, KV_TYPE_F16, KV_TYPE_F32);
    int64_t tables = pi_mem_used(PI_MEM_TABLE), pool = pi_mem_used(PI_MEM_KV);
    int64_t budget = 200 * (int64_t)kv_page_bytes(&g);
    bool met = true;
    int n_failed = 0;
    for (int64_t n = 1; met; n++) {
        struct story s = {0};
        met = false;
        pi_mem_fail_at(n, false);
        if (kv_cache_create(&g, budget, &s.cache, NULL) != PITH_OK) {
            met = true;
            pi_mem_fail_at(0, false);
            assert_int_equal(pi_mem_used(PI_MEM_TABLE), tables);
            assert_int_equal(pi_mem_used(PI_MEM_KV), pool);
            assert_int_equal(kv_cache_create(&g, budget, &s.cache, NULL), PITH_OK);
        }
        for (int step = 0; step < N_STEP; step++) {
            uint64_t digest = kv_check_digest(s.cache);
            pith_status status = story_step(&s, step);
            if (status == PITH_OK)
                continue;
            met = true;
            n_failed++;
            assert_int_equal(status, PITH_NOMEM);
            assert_true(kv_check_digest(s.cache) == digest);
            kv_check_account(s.cache, tables);
            assert_int_equal(story_step(&s, step), PITH_OK);
        }
        pi_mem_fail_at(0, false);
        story_end(&s);
        assert_int_equal(pi_mem_used(PI_MEM_TABLE), tables);
        assert_int_equal(pi_mem_used(PI_MEM_KV), pool);
    }
    assert_true(n_failed >= 7);
}
