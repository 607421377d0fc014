/*
 * test_kv_copy.c - entries copied to another sequence: their bytes, positions, order and index;
 * lanes that are emptied and filled again; pages put in and taken out. The account is recomputed
 * after each.
 */
#include "kv_check.h"
#include "kv_clear.h"
#include "testing.h"

static struct kv_geometry geometry(enum kv_type type_k, enum kv_type type_v, int32_t page_len,
                                   uint32_t index)
{
    return (struct kv_geometry){.n_layer = 2,
                                .n_head = 2,
                                .dim_k = 64,
                                .dim_v = 96,
                                .page_len = page_len,
                                .type_k = type_k,
                                .type_v = type_v,
                                .index = index};
}

static struct kv_seq *new_seq(struct kv_cache *cache)
{
    struct kv_seq *seq;
    assert_int_equal(kv_seq_create(cache, &seq, NULL), PITH_OK);
    return seq;
}

/* Checks the account of a cache beside which there may be another. */
static void check_account(const struct kv_cache *cache, const struct kv_cache *other)
{
    pith_kv_stats stats = {0};
    if (other != NULL)
        kv_cache_stats(other, &stats);
    kv_check_account(cache, stats.table_bytes);
}

/* Asserts that an entry is bit for bit the other. */
static void check_entry(const struct kv_copy *c, int32_t from_slot, int32_t to_slot)
{
    float a[96], b[96];
    assert_int_equal(kv_lane_pos(c->from, c->from_layer, c->from_head, from_slot),
                     kv_lane_pos(c->to, c->to_layer, c->to_head, to_slot));
    kv_lane_key(c->from, c->from_layer, c->from_head, from_slot, a);
    kv_lane_key(c->to, c->to_layer, c->to_head, to_slot, b);
    assert_memory_equal(a, b, 64 * sizeof(float));
    kv_lane_value(c->from, c->from_layer, c->from_head, from_slot, a);
    kv_lane_value(c->to, c->to_layer, c->to_head, to_slot, b);
    assert_memory_equal(a, b, 96 * sizeof(float));
}

/* Every index part of a page is what appending the same rows would have made. */
static void check_index(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    const struct kv_page_layout *at = &lane->kind->layout;
    uint8_t *copy = pi_mem_alloc(PI_MEM_OTHER, at->stride);
    for (int32_t i = 0; i < lane->n_live; i++) {
        const uint8_t *page = kv_page_at(lane->kind, lane->table[i].page);
        memcpy(copy, page, at->stride);
        memset(copy + at->stored, 0, at->stride - at->stored);
        kv_index_write(seq->cache, lane->kind, (int32_t)(lane - seq->lane), copy, 0,
                       lane->table[i].n);
        if (lane->table[i].n < seq->cache->g.page_len)
            continue;
        kv_index_finish(seq->cache, lane->kind, copy);
        assert_memory_equal(copy, page, at->stride);
    }
    pi_mem_free(copy);
}

static void check_copies(const struct kv_geometry *a, const struct kv_geometry *b)
{
    struct kv_cache *from = kv_check_cache(a, 64), *to = kv_check_cache(b, 64);
    struct kv_seq *source = new_seq(from), *target = new_seq(to);
    const struct kv_copy c = {source, 1, 0, target, 0, 1, NULL};
    const int32_t some[] = {3, 4, 5, 17, 40, 41, 63, 64, 65, 99}, more[] = {99, 2, 50, 1};
    assert_int_equal(kv_check_append(source, 5, 10, 100), PITH_OK);
    assert_int_equal(kv_seq_reserve(target, 14, NULL), PITH_OK);
    kv_seq_copy(&c, some, 10);
    assert_int_equal(kv_lane_len(target, 0, 1), 10);
    assert_false(kv_lane_unordered(target, 0, 1));
    for (int32_t i = 0; i < 10; i++)
        check_entry(&c, some[i], i);
    kv_seq_copy(&c, more, 4);
    assert_true(kv_lane_unordered(target, 0, 1));
    assert_int_equal(kv_lane_last(target, 0, 1), 109);
    for (int32_t i = 0; i < 4; i++)
        check_entry(&c, more[i], 10 + i);
    check_index(target, 0, 1);
    check_account(from, to);
    check_account(to, from);
    kv_seq_free(source);
    kv_seq_free(target);
    kv_cache_free(from);
    kv_cache_free(to);
}

TEST(copies_are_as_stored)
{
    const uint32_t indices[] = {0, KV_INDEX_ROWS, KV_INDEX_NORM | KV_INDEX_BOUNDS};
    for (int k = 0; k < KV_N_TYPE; k++)
        for (size_t i = 0; i < 9; i++) {
            enum kv_type type_k = (enum kv_type)k, type_v = (enum kv_type)((k + 3) % KV_N_TYPE);
            struct kv_geometry a = geometry(type_k, type_v, 16 << i % 3, indices[i / 3]);
            struct kv_geometry b = geometry(type_k, type_v, i % 2 == 0 ? 64 : 16, indices[i % 3]);
            check_copies(&a, &b);
        }
}

/* Types that differ: a side of equal type is copied as stored, the other is as if it were
   appended. */
TEST(copies_may_be_of_another_type)
{
    struct kv_geometry a = geometry(KV_TYPE_F16, KV_TYPE_Q8_0, 16, 0);
    struct kv_geometry b = geometry(KV_TYPE_TURBO4, KV_TYPE_Q8_0, 64, KV_INDEX_NORM);
    struct kv_cache *from = kv_check_cache(&a, 64), *to = kv_check_cache(&b, 64);
    struct kv_seq *source = new_seq(from), *target = new_seq(to), *other = new_seq(to);
    const struct kv_copy c = {source, 0, 0, target, 1, 1, NULL};
    float x[96], y[96];
    assert_int_equal(kv_check_append(source, 9, 0, 40), PITH_OK);
    assert_int_equal(kv_seq_reserve(target, 40, NULL), PITH_OK);
    assert_int_equal(kv_seq_reserve(other, 40, NULL), PITH_OK);
    for (int32_t s = 0; s < 40; s++) {
        kv_seq_copy(&c, &s, 1);
        kv_lane_key(source, 0, 0, s, x);
        kv_lane_value(source, 0, 0, s, y);
        kv_seq_append(other, 1, 1, s, 1, x, 0, y, 0);
        kv_lane_key(target, 1, 1, s, x);
        kv_lane_key(other, 1, 1, s, y);
        assert_memory_equal(x, y, 64 * sizeof(float));
        kv_lane_value(target, 1, 1, s, x);
        kv_lane_value(source, 0, 0, s, y);
        assert_memory_equal(x, y, 96 * sizeof(float));
    }
    check_account(to, from);
    kv_seq_free(source);
    kv_seq_free(target);
    kv_seq_free(other);
    kv_cache_free(from);
    kv_cache_free(to);
}

/* Sequences of one cache, from a lane with short pages, and back where they came from. */
TEST(copies_between_sequences_of_a_cache)
{
    struct kv_geometry g = geometry(KV_TYPE_F16, KV_TYPE_F16, 16, 0);
    struct kv_cache *cache = kv_check_cache(&g, 100);
    kv_cache_set_marks(cache, 1, true);
    struct kv_seq *a = new_seq(cache), *b = new_seq(cache);
    const struct kv_copy there = {a, 0, 1, b, 0, 1, NULL}, back = {b, 0, 1, a, 0, 1, NULL};
    int32_t slots[50];
    assert_int_equal(kv_check_append(a, 3, 0, 50), PITH_OK);
    assert_int_equal(kv_seq_reserve_table(a, 32, NULL), PITH_OK);
    assert_int_equal(kv_seq_split(a, 0, 1, 20, NULL), PITH_OK);
    assert_int_equal(kv_seq_reserve(b, 50, NULL), PITH_OK);
    for (int32_t s = 0; s < 50; s++)
        slots[s] = 49 - s;
    kv_seq_copy(&there, slots, 50);
    for (int32_t s = 0; s < 50; s++) {
        check_entry(&there, 49 - s, s);
        assert_true(kv_lane_norms(a, 0, 1)[49 - s] == kv_lane_norms(b, 0, 1)[s]);
        assert_true(kv_lane_marks(b, 0, 1, 0)[s] == 0.0f);
    }
    kv_lane_clear(a, 0, 1);
    kv_seq_copy(&back, slots, 50);
    assert_false(kv_lane_unordered(a, 0, 1));
    for (int32_t s = 0; s < 50; s++)
        assert_int_equal(kv_lane_pos(a, 0, 1, s), s);
    check_account(cache, NULL);
    kv_seq_free(a);
    kv_seq_free(b);
    kv_cache_free(cache);
}

/* Entries from several places, in any order, are as if they had been appended. */
TEST(lanes_are_filled_from_several_places)
{
    struct kv_geometry g = geometry(KV_TYPE_Q8_0, KV_TYPE_F16, 16, KV_INDEX_BOUNDS);
    struct kv_cache *cache = kv_check_cache(&g, 100);
    struct kv_seq *even = new_seq(cache), *odd = new_seq(cache), *all = new_seq(cache);
    const struct kv_copy from_even = {even, 1, 1, all, 1, 1, NULL},
                         from_odd = {odd, 1, 1, all, 1, 1, NULL};
    assert_int_equal(kv_check_append(even, 3, 0, 40), PITH_OK);
    assert_int_equal(kv_check_append(odd, 4, 0, 40), PITH_OK);
    assert_int_equal(kv_seq_reserve(all, 40, NULL), PITH_OK);
    kv_lane_extend(all, 1, 1, 40);
    for (int32_t s = 1; s < 40; s += 2)
        kv_lane_fill(&from_odd, s, s);
    for (int32_t s = 38; s >= 0; s -= 2)
        kv_lane_fill(&from_even, s, s);
    kv_lane_seal(all, 1, 1, 0);
    assert_int_equal(kv_lane_len(all, 1, 1), 40);
    assert_false(kv_lane_unordered(all, 1, 1));
    for (int32_t s = 0; s < 40; s++)
        check_entry(s % 2 == 0 ? &from_even : &from_odd, s, s);
    check_index(all, 1, 1);
    check_account(cache, NULL);
    kv_seq_free(even);
    kv_seq_free(odd);
    kv_seq_free(all);
    kv_cache_free(cache);
}

TEST(clearing_keeps_own_pages)
{
    struct kv_geometry g = geometry(KV_TYPE_F16, KV_TYPE_F16, 16, 0);
    struct kv_cache *cache = kv_check_cache(&g, 40);
    struct kv_seq *a = new_seq(cache), *fork;
    assert_int_equal(kv_check_append(a, 3, 0, 40), PITH_OK);
    clear_lanes(a, 2, 2);
    for (int32_t l = 0; l < 4; l++) {
        assert_int_equal(kv_lane_len(a, l / 2, l % 2), 0);
        assert_int_equal(kv_lane_pages(a, l / 2, l % 2), 3);
        assert_int_equal(kv_lane_last(a, l / 2, l % 2), -1);
        assert_int_equal(kv_lane_lacks(a, l / 2, l % 2, 48), 0);
    }
    check_account(cache, NULL);
    assert_int_equal(kv_check_append(a, 4, 0, 40), PITH_OK);
    assert_int_equal(kv_seq_fork(a, &fork, NULL), PITH_OK);
    clear_lanes(a, 2, 2);
    assert_int_equal(kv_lane_pages(a, 0, 0), 0);
    assert_int_equal(kv_lane_len(fork, 1, 1), 40);
    check_account(cache, NULL);
    kv_seq_free(a);
    check_account(cache, NULL);
    kv_seq_free(fork);
    kv_cache_free(cache);
}

TEST(pages_go_in_and_out)
{
    struct kv_geometry g = geometry(KV_TYPE_TURBO3, KV_TYPE_F16, 16, KV_INDEX_NORM);
    struct kv_cache *cache = kv_check_cache(&g, 60), *other = kv_check_cache(&g, 60);
    struct kv_seq *a = new_seq(cache), *b = new_seq(other);
    const struct kv_copy c = {a, 0, 0, b, 0, 0, NULL};
    uint8_t page[1 << 14];
    assert_true(kv_layer_page_bytes(&g, 0) <= sizeof(page));
    assert_int_equal(kv_check_append(a, 3, 0, 40), PITH_OK);
    assert_int_equal(kv_seq_reserve(b, 48, NULL), PITH_OK);
    for (int i = 0; i < 3; i++) {
        static const int32_t run[] = {2, 0, 1}, n[] = {8, 16, 5};
        kv_lane_get_page(a, 0, 0, run[i], page);
        kv_lane_put_page(b, 0, 0, page, n[i]);
    }
    assert_int_equal(kv_lane_len(b, 0, 0), 29);
    assert_true(kv_lane_unordered(b, 0, 0));
    assert_int_equal(kv_lane_last(b, 0, 0), 39);
    for (int32_t s = 0; s < 29; s++)
        check_entry(&c, s < 8 ? 32 + s : s - 8, s);
    kv_lane_drop_first(b, 0, 0);
    assert_int_equal(kv_lane_len(b, 0, 0), 21);
    assert_int_equal(kv_lane_last(b, 0, 0), 20);
    assert_false(kv_lane_unordered(b, 0, 0));
    for (int32_t s = 0; s < 21; s++)
        check_entry(&c, s, s);
    kv_lane_drop_first(b, 0, 0);
    kv_lane_drop_first(b, 0, 0);
    assert_int_equal(kv_lane_len(b, 0, 0), 0);
    assert_int_equal(kv_lane_pages(b, 0, 0), 0);
    check_account(other, cache);
    kv_seq_free(a);
    kv_seq_free(b);
    kv_cache_free(cache);
    kv_cache_free(other);
}
