/*
 * The cache of prefixes: the prefixes that it finds, and the blocks that go first when memory is
 * needed.
 */
#include "prefix_rig.h"

/* ---- hashes ---- */

/* tests/vectors/memshare.json, hash_chain: blocks of four tokens. Its root is the hash of a number
   and the block size, as of one "token" after a "parent". */
TEST(hashes_are_those_of_the_vectors)
{
    static const struct {
        int32_t token[8];
        uint64_t salt;
        uint64_t hash[2];
    } cases[] = {
        {{1, 2, 3, 4, 5, 6, 7, 8}, 0, {0x3c24fe27610586aa, 0xc388492da4e28b6e}},
        {{2, 2, 3, 4, 5, 6, 7, 8}, 0, {0xe6433d3e7d208c69, 0xd5fe786ece20380b}},
        {{1, 2, 3, 4, 5, 6, 7, 8}, 7, {0x9c3976377cd533b3, 0x9d6ef0de8c523f4a}},
    };
    int32_t block_size = 4;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t hash = prefix_hash(cases[i].salt, &block_size, 1);
        for (int32_t b = 0; b < 2; b++) {
            hash = prefix_hash(hash, cases[i].token + 4 * b, 4);
            assert_int_equal(hash, cases[i].hash[b]);
        }
    }
    /* FNV-1a's published values of "" and "foobar" (draft-eastlake-fnv, appendix). */
    assert_int_equal(prefix_root(""), 0xcbf29ce484222325);
    assert_int_equal(prefix_root("foobar"), 0x85944171f73967e8);
}

/* Two pages of one hash behind prefix_root(SALT), found by walking the hash's upper bits. */
static void make_collision(int32_t *a, int32_t *b, int32_t n)
{
    static const int32_t first_a[] = {3206214, 89778997, 7}, first_b[] = {98029821, 136823264, 186};
    fill_text(a, n, 5);
    memcpy(b, a, (size_t)n * sizeof(*a));
    memcpy(a, first_a, sizeof(first_a));
    memcpy(b, first_b, sizeof(first_b));
    assert_int_equal(prefix_hash(prefix_root(SALT), a, LEN),
                     prefix_hash(prefix_root(SALT), b, LEN));
}

TEST(a_collision_of_hashes_finds_no_other_text)
{
    struct rig r = rig_make(&geometry, N_PAGE);
    int32_t a[3 * LEN], b[3 * LEN];
    make_collision(a, b, 3 * LEN);

    /* The other page is not found by the hash. */
    assert_int_equal(publish(&r, a, LEN), LEN);
    assert_int_equal(rig_find(r.cache, b, 3 * LEN), 0);
    /* Behind both stand pages of the same tokens and, so, of one hash, which differ in parents. */
    assert_int_equal(publish(&r, b, 3 * LEN), 3 * LEN);
    assert_int_equal(rig_find(r.cache, a, 3 * LEN), LEN);
    assert_int_equal(publish(&r, a, 2 * LEN), 2 * LEN);
    assert_int_equal(prefix_count(r.cache), 5);

    struct kv_seq *seq_a = begin_seq(&r, a, 3 * LEN, 2 * LEN);
    struct kv_seq *seq_b = begin_seq(&r, b, 3 * LEN, 2 * LEN);
    check_text(seq_a, a, 2 * LEN);
    check_text(seq_b, b, 2 * LEN);
    kv_seq_free(seq_a);
    kv_seq_free(seq_b);
    /* Blocks that share a bucket and a hash are freed one by one. */
    assert_int_equal(prefix_reclaim(r.cache, kv_block_bytes(r.kv)), kv_block_bytes(r.kv));
    assert_int_equal(rig_find(r.cache, b, 3 * LEN), 2 * LEN);
    assert_int_equal(prefix_reclaim(r.cache, INT64_MAX), 4 * kv_block_bytes(r.kv));
    assert_int_equal(rig_find(r.cache, a, 3 * LEN), 0);
    rig_free(&r);
}

/* Other policies, types or models are another salt: nothing of one is in the other. */
TEST(another_salt_finds_nothing)
{
    struct rig r = rig_make(&geometry, N_PAGE);
    struct prefix_cache *other = NULL;
    int32_t text[2 * LEN + 1];
    fill_text(text, 2 * LEN + 1, 1);
    assert_int_not_equal(prefix_root(SALT), prefix_root("salt "));
    assert_int_equal(prefix_create(r.kv, "another", &other, NULL), PITH_OK);
    assert_int_equal(publish(&r, text, 2 * LEN), 2 * LEN);
    assert_int_equal(rig_find(r.cache, text, 2 * LEN + 1), 2 * LEN);
    assert_int_equal(rig_find(other, text, 2 * LEN + 1), 0);
    prefix_free(other);
    prefix_free(NULL);
    rig_free(&r);
}

/* ---- finding ---- */

/* Something is left to evaluate, and only whole pages are found. */
TEST(finds_whole_pages_and_leaves_something_to_evaluate)
{
    struct rig r = rig_make(&geometry, N_PAGE);
    int32_t text[5 * LEN];
    fill_text(text, 5 * LEN, 2);
    assert_int_equal(rig_find(r.cache, text, 5 * LEN), 0);
    assert_int_equal(publish(&r, text, 3 * LEN + 5), 3 * LEN);
    assert_int_equal(prefix_count(r.cache), 3);
    for (int32_t n = 0; n <= 5 * LEN; n++) {
        int32_t most = n == 0 ? 0 : (n - 1) / LEN * LEN;
        assert_int_equal(rig_find(r.cache, text, n), pi_min(most, 3 * LEN));
    }
    int32_t n_unused, n_found;
    assert_int_equal(prefix_find(r.cache, 0, text, 5 * LEN, &n_unused), 3 * LEN);
    assert_int_equal(n_unused, 3 * LEN);
    struct kv_seq *seq = begin_seq(&r, text, 2 * LEN + 1, 2 * LEN);
    n_found = prefix_find(r.cache, 0, text, 5 * LEN, &n_unused);
    assert_int_equal(n_found - n_unused, 2 * LEN);
    kv_seq_free(seq);
    for (int32_t page = 0; page < 3; page++) {
        int32_t other[4 * LEN];
        memcpy(other, text, sizeof(other));
        other[page * LEN + LEN - 1] ^= 1; /* after a token that differs it is another text */
        assert_int_equal(rig_find(r.cache, other, 4 * LEN), page * LEN);
    }
    assert_int_equal(prefix_publish(r.cache, 0, text, 0, NULL), 0);
    assert_int_equal(prefix_publish(r.cache, 0, text, LEN - 1, NULL), 0);
    rig_free(&r);
}

/* Appending takes no pages. Appended blocks equal the published ones, for every form of page. */
static void check_append(const struct kv_geometry *g)
{
    struct rig r = rig_make(g, N_PAGE);
    int32_t text[6 * LEN];
    fill_text(text, 6 * LEN, 3);
    assert_int_equal(publish(&r, text, 4 * LEN + 3), 4 * LEN);
    assert_int_equal(used(&r), 4 * kv_block_bytes(r.kv));
    assert_int_equal(prefix_unused_bytes(r.cache), used(&r));

    struct kv_seq *a = begin_seq(&r, text, 6 * LEN, 4 * LEN), *b = NULL;
    assert_int_equal(used(&r), 4 * kv_block_bytes(r.kv));
    assert_int_equal(prefix_unused_bytes(r.cache), 0);
    check_text(a, text, 4 * LEN);
    /* Two forks go on differently, and publish their blocks. */
    assert_int_equal(grow_seq(a, text, 4 * LEN, 5 * LEN - 2), PITH_OK);
    assert_int_equal(kv_seq_fork(a, &b, NULL), PITH_OK);
    assert_int_equal(grow_seq(a, text, 5 * LEN - 2, 6 * LEN), PITH_OK);
    int32_t other[6 * LEN];
    memcpy(other, text, sizeof(other));
    other[5 * LEN - 1] += 1;
    assert_int_equal(grow_seq(b, other, 5 * LEN - 2, 6 * LEN), PITH_OK);
    assert_int_equal(prefix_publish(r.cache, 0, text, 6 * LEN, a), 6 * LEN);
    assert_int_equal(prefix_publish(r.cache, 0, other, 6 * LEN, b), 6 * LEN);
    assert_int_equal(prefix_count(r.cache), 8);
    assert_int_equal(used(&r), 8 * kv_block_bytes(r.kv));
    kv_check_account(r.kv, pi_mem_used(PI_MEM_TABLE) - r.kv->table_bytes);
    kv_seq_free(a);
    kv_seq_free(b);
    a = begin_seq(&r, other, 6 * LEN, 5 * LEN);
    check_text(a, other, 5 * LEN);
    kv_seq_free(a);
    rig_free(&r);
}

TEST(a_found_prefix_goes_on_alike)
{
    struct kv_geometry g = geometry;
    check_append(&g);
    g.type_k = g.type_v = KV_TYPE_F16;
    check_append(&g);
    g.dim_k = g.dim_v = 32;
    g.type_k = KV_TYPE_Q8_0;
    g.type_v = KV_TYPE_TURBO3;
    g.edge_v = (struct kv_edge){KV_TYPE_F16, 1, 0}; /* two classes of pages */
    check_append(&g);
    g.index = KV_INDEX_NORM;
    check_append(&g);
}

/* A page that is there already is not taken twice, and the older one stays the one that is
   found. */
TEST(a_page_is_taken_once)
{
    struct rig r = rig_make(&geometry, N_PAGE);
    int32_t text[3 * LEN];
    fill_text(text, 3 * LEN, 4);
    struct kv_seq *a = make_seq(r.kv, text, 2 * LEN), *b = make_seq(r.kv, text, 3 * LEN);
    assert_int_equal(prefix_publish(r.cache, 0, text, 2 * LEN, a), 2 * LEN);
    assert_int_equal(prefix_publish(r.cache, 0, text, 3 * LEN, b), 3 * LEN);
    assert_int_equal(prefix_publish(r.cache, 0, text, 3 * LEN, b), 3 * LEN);
    assert_int_equal(prefix_count(r.cache), 3);
    kv_seq_free(b); /* two pages of its own go, the third is the cache's */
    assert_int_equal(used(&r), 3 * kv_block_bytes(r.kv));
    struct kv_seq *c = begin_seq(&r, text, 3 * LEN, 2 * LEN);
    for (int32_t i = 0; i < 2; i++)
        assert_int_equal(kv_lane_page(c, 0, 0, i), kv_lane_page(a, 0, 0, i));
    kv_seq_free(a);
    kv_seq_free(c);
    rig_free(&r);
}

/* Many texts that begin alike, published in some order: the table grows several times, and all of
   them are found. */
TEST(finds_each_of_many_texts)
{
    enum { N = 700 };
    struct rig r = rig_make(&geometry, 8 * N);
    int32_t text[2 * LEN + 1];
    uint64_t seed = 6;
    for (int32_t i = 0; i < N; i++) {
        fill_text(text, 2 * LEN + 1, 7);
        text[(i % 2) * LEN + i % LEN] = 1000 + i * 37 % N;
        assert_int_equal(publish(&r, text, 2 * LEN), 2 * LEN);
    }
    for (int32_t k = 0; k < 3 * N; k++) {
        int32_t i = (int32_t)rng_below(&seed, N);
        fill_text(text, 2 * LEN + 1, 7);
        text[(i % 2) * LEN + i % LEN] = 1000 + i * 37 % N;
        assert_int_equal(rig_find(r.cache, text, 2 * LEN + 1), 2 * LEN);
        text[(i % 2) * LEN + i % LEN] = 1000 + N;
        assert_int_equal(rig_find(r.cache, text, 2 * LEN + 1), (i % 2) * LEN);
    }
    rig_free(&r);
}

/* ---- freeing ---- */

TEST(drops_the_least_recently_used_leaf_first)
{
    struct rig r = rig_make(&geometry, N_PAGE);
    int64_t block = kv_block_bytes(r.kv);
    int32_t text[3][3 * LEN + 1];
    for (int32_t i = 0; i < 3; i++) {
        fill_text(text[i], 3 * LEN + 1, 8);
        text[i][LEN] = i; /* the first page is the same */
        assert_int_equal(publish(&r, text[i], 3 * LEN), 3 * LEN);
    }
    assert_int_equal(prefix_count(r.cache), 7);
    kv_seq_free(begin_seq(&r, text[0], 2 * LEN + 1, 2 * LEN)); /* used: all but its last page */
    static const int32_t found[][3] = {
        {2, 3, 3}, /* text 0's last page was not used since */
        {2, 2, 3}, {2, 1, 3}, {2, 1, 2}, {2, 1, 1}, {1, 1, 1}, {0, 0, 0},
    };
    for (size_t step = 0; step < 7; step++) {
        assert_int_equal(prefix_unused_bytes(r.cache), (7 - (int64_t)step) * block);
        assert_int_equal(prefix_reclaim(r.cache, 0), 0);
        assert_int_equal(prefix_reclaim(r.cache, 1), block);
        for (int32_t i = 0; i < 3; i++)
            assert_int_equal(rig_find(r.cache, text[i], 3 * LEN + 1), found[step][i] * LEN);
    }
    assert_int_equal(prefix_dropped(r.cache), 7);
    assert_int_equal(prefix_reclaim(r.cache, INT64_MAX), 0);
    rig_free(&r);
}

/* Looking is no use. */
TEST(find_touches_nothing)
{
    struct rig r = rig_make(&geometry, N_PAGE);
    int32_t a[LEN + 1], b[LEN + 1];
    fill_text(a, LEN + 1, 9);
    fill_text(b, LEN + 1, 10);
    publish(&r, a, LEN);
    publish(&r, b, LEN);
    assert_int_equal(rig_find(r.cache, a, LEN + 1), LEN);
    prefix_reclaim(r.cache, 1);
    assert_int_equal(rig_find(r.cache, a, LEN + 1), 0);
    assert_int_equal(rig_find(r.cache, b, LEN + 1), LEN);
    rig_free(&r);
}

TEST(keeps_what_a_sequence_uses)
{
    struct rig r = rig_make(&geometry, N_PAGE);
    int64_t block = kv_block_bytes(r.kv);
    int32_t text[6 * LEN + 1], late[LEN];
    fill_text(text, 6 * LEN + 1, 11);
    publish(&r, text, 6 * LEN);
    struct kv_seq *seq = begin_seq(&r, text, 3 * LEN + 1, 3 * LEN);
    assert_int_equal(prefix_unused_bytes(r.cache), 3 * block);
    assert_int_equal(prefix_reclaim(r.cache, 2 * block - 1), 2 * block);
    assert_int_equal(rig_find(r.cache, text, 6 * LEN + 1), 4 * LEN);
    assert_int_equal(prefix_reclaim(r.cache, 5 * block), block);
    assert_int_equal(prefix_reclaim(r.cache, block), 0);
    check_text(seq, text, 3 * LEN);

    /* A sequence without its first page: that block is alone, but the blocks after it are not. */
    for (int32_t l = 0; l < 2; l++)
        for (int32_t h = 0; h < 2; h++)
            kv_lane_drop_first(seq, l, h);
    assert_int_equal(prefix_unused_bytes(r.cache), 0);
    assert_int_equal(prefix_reclaim(r.cache, block), 0);
    assert_int_equal(used(&r), 3 * block);

    /* An unused text beside the used one goes, though it is the younger. */
    fill_text(late, LEN, 12);
    publish(&r, late, LEN);
    assert_int_equal(prefix_unused_bytes(r.cache), block);
    assert_int_equal(prefix_reclaim(r.cache, 10 * block), block);
    kv_seq_free(seq);
    assert_int_equal(prefix_unused_bytes(r.cache), 3 * block);
    assert_int_equal(prefix_reclaim(r.cache, 10 * block), 3 * block);
    assert_int_equal(used(&r), 0);
    rig_free(&r);
}

/* A page that no sequence uses is held for the pages behind it. It goes last, and with it they are
   forgotten; the sequence keeps them. */
TEST(what_is_held_for_pages_behind_it_goes_last)
{
    struct rig r = rig_make(&geometry, N_PAGE);
    int64_t block = kv_block_bytes(r.kv);
    int32_t text[3 * LEN + 1];
    fill_text(text, 3 * LEN + 1, 13);
    publish(&r, text, 3 * LEN);
    struct kv_seq *seq = begin_seq(&r, text, 3 * LEN + 1, 3 * LEN);
    assert_int_equal(prefix_rest_bytes(r.cache), 0);
    assert_int_equal(prefix_reclaim_rest(r.cache), 0);
    for (int32_t l = 0; l < 2; l++)
        for (int32_t h = 0; h < 2; h++)
            kv_lane_drop_first(seq, l, h);
    assert_int_equal(prefix_unused_bytes(r.cache), 0);
    assert_int_equal(prefix_rest_bytes(r.cache), block);
    assert_int_equal(prefix_reclaim_rest(r.cache), block);
    assert_int_equal(prefix_rest_bytes(r.cache), 0);
    assert_int_equal(prefix_count(r.cache), 0);
    assert_int_equal(used(&r), 2 * block);
    kv_seq_free(seq);
    assert_int_equal(used(&r), 0);
    rig_free(&r);
}

/* ---- no memory ---- */

TEST(failing_memory_publishes_less)
{
    struct kv_cache *kv = kv_check_cache(&geometry, N_PAGE);
    struct prefix_cache *cache = NULL;
    static int32_t text[200 * LEN + 1];
    int32_t n_found, n_there = 0, n_short = 0;
    fill_text(text, 200 * LEN + 1, 13);
    int64_t before = pi_mem_used(PI_MEM_OTHER), n = 0;
    pith_status status = PITH_NOMEM;
    while (status == PITH_NOMEM) {
        pi_mem_fail_at(++n, false);
        status = prefix_create(kv, SALT, &cache, &err);
        pi_mem_fail_at(0, false);
        if (status == PITH_NOMEM)
            assert_int_equal(pi_mem_used(PI_MEM_OTHER), before);
    }
    assert_int_equal(status, PITH_OK);
    assert_int_equal(n, 3); /* two allocations */

    /* Each publication remembers as far as memory goes, and nothing is wrong afterwards; an
       allocation of the table that fails costs nothing at all. */
    struct kv_seq *seq = make_seq(kv, text, 200 * LEN);
    for (n = 1; n_there < 200 * LEN; n++) {
        pi_mem_fail_at(n, false);
        n_there = prefix_publish(cache, 0, text, 200 * LEN, seq);
        pi_mem_fail_at(0, false);
        n_short += n_there < 200 * LEN;
        assert_int_equal(prefix_count(cache), n_there / LEN);
        assert_int_equal(rig_find(cache, text, 200 * LEN + 1), n_there);
    }
    assert_in_range(n_short, 2, 200);
    kv_seq_free(seq);

    assert_int_equal(kv_seq_create(kv, &seq, NULL), PITH_OK);
    status = PITH_NOMEM;
    for (n = 1; status == PITH_NOMEM; n++) {
        n_found = -1;
        pi_mem_fail_at(n, false);
        status = prefix_append(cache, 0, text, 200 * LEN + 1, seq, &n_found, &err);
        pi_mem_fail_at(0, false);
        if (status == PITH_NOMEM) {
            assert_int_equal(kv_lane_len(seq, 1, 1), 0);
            assert_int_equal(kv_lane_pages(seq, 0, 0), 0);
            assert_int_equal(prefix_unused_bytes(cache), 200 * kv_block_bytes(kv));
        }
    }
    assert_int_equal(status, PITH_OK);
    assert_true(n > 2);
    assert_int_equal(n_found, 200 * LEN);
    kv_seq_free(seq);
    prefix_free(cache);
    assert_int_equal(pi_mem_used(PI_MEM_OTHER), before);
    kv_cache_free(kv);
}
