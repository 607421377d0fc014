/*
 * test_kv_block.c - pages that stay though no sequence has them, and sequences that wait in host
 * memory. It checks who may have them, how the account counts them, and every allocation failing.
 * The order of references is the specification's (memshare.json, refcount_cow_trace).
 */
#include "kv_by_page.h"
#include "kv_check.h"
#include "kv_clear.h"
#include "testing.h"
#include "kv_shape.h"

static const struct kv_geometry two_layers = {
    2,   2,    32, 32, 16, KV_TYPE_F16, KV_TYPE_F32, 0, 0, {KV_TYPE_Q8_0, 1, 0},
    {0}, NULL, 0,  0,  0,  NULL,        {0}};
static const struct kv_geometry one_lane = KV_SHAPE(1, 1, 32, 32, 16, KV_TYPE_F16, KV_TYPE_Q8_0);

static struct kv_seq *open_seq(struct kv_cache *cache)
{
    struct kv_seq *seq;
    assert_int_equal(kv_seq_create(cache, &seq, NULL), PITH_OK);
    return seq;
}

/* ---- the trace ---- */

/* The vector's blocks of 4 tokens are pages of 16 here, a token of its being 4. */
enum { TOKEN = 4 };

struct story {
    struct kv_cache *cache;
    struct kv_seq *seq[4]; /* A, B, C, D */
    int32_t name[16];      /* the page that is the vector's block i; -1: none yet */
};

/* Asserts the tables of A, B, C and D, as the vector names their blocks, one digit each: the same
   names are the same pages. And the table entries, the blocks they use and the ones saved. */
static void check_story(struct story *s, const char *const table[4], int32_t entries,
                        int32_t physical, int32_t saved)
{
    int32_t n = 0, n_ref[16] = {0};
    for (int32_t q = 0; q < 4; q++)
        for (int32_t i = 0; s->seq[q] != NULL && (i == 0 || table[q][i - 1] != '\0'); i++) {
            if (table[q][i] == '\0') {
                assert_int_equal(kv_lane_pages(s->seq[q], 0, 0), i);
                break;
            }
            int32_t block = table[q][i] - '0', page = kv_lane_page(s->seq[q], 0, 0, i);
            if (n_ref[block]++ == 0) {
                for (int32_t b = 0; b < 16; b++)
                    assert_true(n_ref[b] == 0 || b == block || s->name[b] != page);
                s->name[block] = page;
            }
            assert_int_equal(page, s->name[block]);
            n++;
        }
    pith_kv_stats stats;
    kv_cache_stats(s->cache, &stats);
    int32_t used = 0;
    for (int32_t b = 0; b < 16; b++) {
        used += n_ref[b] > 0;
        if (n_ref[b] > 0)
            assert_int_equal(s->cache->kind[0].n_ref[s->name[b]] -
                                 s->cache->kind[0].n_held[s->name[b]],
                             n_ref[b]);
    }
    assert_int_equal(n, entries);
    assert_int_equal(used, physical);
    assert_int_equal(stats.saved_bytes / stats.page_bytes, saved);
    kv_check_account(s->cache, 0);
}

TEST(follows_the_published_story_of_references)
{
    struct story s = {.cache = kv_check_cache(&one_lane, 11)};
    struct kv_block *block[4];
    float row[32] = {1};
    s.seq[0] = open_seq(s.cache);
    assert_int_equal(kv_check_append(s.seq[0], 1, 0, 10 * TOKEN), PITH_OK);
    check_story(&s, (const char *const[]){"123", "", "", ""}, 3, 3, 0);
    assert_int_equal(kv_check_append(s.seq[0], 1, 10 * TOKEN, 6 * TOKEN), PITH_OK);
    check_story(&s, (const char *const[]){"1234", "", "", ""}, 4, 4, 0);
    for (int32_t i = 0; i < 4; i++) /* the vector's cached blocks */
        assert_int_equal(kv_block_hold(s.seq[0], i, &block[i], NULL), PITH_OK);
    assert_int_equal(page_share(s.seq[0], 0, 0, 3, s.seq[0], 1, 32, NULL), PITH_OK);
    check_story(&s, (const char *const[]){"1232", "", "", ""}, 4, 3, 1);
    assert_true(kv_block_is_alone(s.cache, block[3])); /* what share released is still exact */
    assert_int_equal(kv_check_append(s.seq[0], 1, 16 * TOKEN, 4 * TOKEN), PITH_OK);
    check_story(&s, (const char *const[]){"12325", "", "", ""}, 5, 4, 1);
    s.seq[1] = open_seq(s.cache);
    assert_int_equal(kv_seq_append_blocks(s.seq[1], block, 3, NULL), PITH_OK);
    assert_int_equal(kv_check_append(s.seq[1], 2, 12 * TOKEN, TOKEN), PITH_OK);
    check_story(&s, (const char *const[]){"12325", "1236", "", ""}, 9, 5, 4);
    assert_int_equal(kv_seq_fork(s.seq[1], &s.seq[2], NULL), PITH_OK);
    check_story(&s, (const char *const[]){"12325", "1236", "1236", ""}, 13, 5, 8);
    assert_int_equal(kv_check_append(s.seq[2], 3, 13 * TOKEN, TOKEN), PITH_OK); /* copied */
    check_story(&s, (const char *const[]){"12325", "1236", "1237", ""}, 13, 6, 7);
    assert_int_equal(kv_check_append(s.seq[1], 3, 13 * TOKEN, TOKEN), PITH_OK); /* not again */
    check_story(&s, (const char *const[]){"12325", "1236", "1237", ""}, 13, 6, 7);
    kv_seq_set_victim(s.seq[0], 0, 0, 20); /* written in place: page 3 of A keeps the original */
    assert_int_equal(kv_seq_reserve(s.seq[0], 1, NULL), PITH_OK);
    kv_seq_append(s.seq[0], 0, 0, 200, 1, row, 0, row, 0);
    check_story(&s, (const char *const[]){"18325", "1236", "1237", ""}, 13, 7, 6);
    kv_seq_free(s.seq[0]);
    s.seq[0] = NULL;
    check_story(&s, (const char *const[]){"", "1236", "1237", ""}, 8, 5, 3);
    kv_seq_free(s.seq[2]);
    s.seq[2] = NULL;
    check_story(&s, (const char *const[]){"", "1236", "", ""}, 4, 4, 0);
    s.seq[3] = open_seq(s.cache);
    for (int32_t i = 0; i < 2; i++)
        assert_int_equal(kv_seq_append_blocks(s.seq[3], &block[i], 1, NULL), PITH_OK);
    assert_int_equal(kv_check_append(s.seq[3], 1, 8 * TOKEN, 2 * TOKEN), PITH_OK);
    check_story(&s, (const char *const[]){"", "1236", "", "129"}, 7, 5, 2);
    kv_seq_free(s.seq[1]);
    kv_seq_free(s.seq[3]);
    for (int32_t i = 0; i < 4; i++) {
        assert_true(kv_block_is_alone(s.cache, block[i]));
        kv_block_drop(s.cache, block[i]);
    }
    assert_int_equal(s.cache->used, 0);
    kv_cache_free(s.cache);
}

/* ---- blocks ---- */

static void must_fail(pith_status status, const pith_error *why, const char *says)
{
    assert_int_equal(status, PITH_INVALID);
    if (strstr(why->message, says) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", why->message, says);
}

TEST(block_is_checked)
{
    struct kv_cache *cache = kv_check_cache(&two_layers, 80);
    struct kv_seq *seq = open_seq(cache), *other = open_seq(cache);
    struct kv_block *block = NULL, *first;
    assert_int_equal(kv_check_append(seq, 1, 0, 60), PITH_OK);
    must_fail(kv_block_hold(seq, -1, &block, &err), &err, "index: -1 is not in 0..3");
    must_fail(kv_block_hold(seq, 4, &block, &err), &err, "index: 4");
    must_fail(kv_block_hold(seq, 3, &block, &err), &err, "run 3 of layer 0, head 0");
    assert_int_equal(page_share(seq, 1, 0, 2, seq, 0, 32, NULL), PITH_OK);
    must_fail(kv_block_hold(seq, 2, &block, &err), &err, "run 2 of layer 1, head 0");
    assert_int_equal(page_fold(seq, 1, 1, 2, 0, NULL), PITH_OK);
    must_fail(kv_block_hold(seq, 0, &block, &err), &err, "run 0 of layer 1, head 1");
    assert_int_equal(kv_block_hold(seq, 1, &block, NULL), PITH_OK);
    assert_int_equal(kv_block_bytes(cache), kv_bytes_for_tokens(&two_layers, 16));
    assert_false(kv_block_is_alone(cache, block));
    kv_check_account(cache, 0);
    must_fail(kv_seq_append_blocks(seq, &block, 1, &err), &err,
              "layer 0, head 0 does not hold full");
    assert_int_equal(kv_check_append(other, 2, 0, 16), PITH_OK);
    assert_int_equal(kv_block_hold(other, 0, &first, NULL), PITH_OK);
    kv_seq_truncate(other, 0);
    must_fail(kv_seq_append_blocks(other, (struct kv_block *[]){block, first}, 2, &err), &err,
              "layer 0, head 0");
    assert_int_equal(kv_lane_len(other, 0, 0), 0);
    assert_int_equal(kv_seq_append_blocks(other, &first, 1, NULL), PITH_OK);
    must_fail(kv_seq_append_blocks(other, &first, 1, &err), &err, "earlier positions");
    assert_int_equal(kv_seq_reserve(other, 1, NULL), PITH_OK);
    must_fail(kv_seq_append_blocks(other, &block, 1, &err), &err, "layer 0, head 0");
    kv_seq_trim(other);
    assert_int_equal(kv_seq_append_blocks(other, &block, 1, NULL), PITH_OK);
    assert_int_equal(kv_check_append(other, 2, 32, 1), PITH_OK);
    for (int32_t s = 0; s < 33; s++)
        assert_int_equal(kv_lane_pos(other, 1, 1, s), s);
    kv_seq_free(seq);
    kv_seq_free(other);
    assert_true(kv_block_is_alone(cache, block));
    int64_t used = cache->used;
    pith_kv_stats stats;
    kv_cache_stats(cache, &stats);
    assert_int_equal(stats.used_bytes, 2 * kv_block_bytes(cache));
    assert_int_equal(stats.live_bytes, 0); /* no lane sees it */
    kv_block_drop(cache, block);
    assert_int_equal(used - cache->used, kv_block_bytes(cache));
    kv_block_drop(cache, first);
    kv_block_drop(cache, NULL);
    kv_check_account(cache, 0);
    kv_cache_free(cache);
}

/* A block is not written to: a sequence that overwrites, packs or empties a lane gets pages of its
   own. */
TEST(a_block_is_never_written_to)
{
    struct kv_cache *cache = kv_check_cache(&one_lane, 6);
    struct kv_seq *seq = open_seq(cache), *again = open_seq(cache);
    struct kv_block *block;
    float before[32], after[32], row[32] = {3};
    static const int32_t odd[] = {1, 3, 5, 7};
    assert_int_equal(kv_check_append(seq, 1, 0, 16), PITH_OK);
    kv_lane_key(seq, 0, 0, 1, before);
    assert_int_equal(kv_block_hold(seq, 0, &block, NULL), PITH_OK);
    kv_seq_set_victim(seq, 0, 0, 1);
    assert_int_equal(kv_seq_charge_copies(seq).all, (int64_t)kv_page_bytes(&one_lane));
    kv_seq_clear_charges(seq);
    assert_int_equal(kv_seq_takes(seq, 1), (int64_t)kv_page_bytes(&one_lane));
    assert_int_equal(kv_seq_reserve(seq, 1, NULL), PITH_OK);
    kv_seq_append(seq, 0, 0, 20, 1, row, 0, row, 0);
    assert_int_equal(kv_seq_append_blocks(again, &block, 1, NULL), PITH_OK);
    kv_lane_key(again, 0, 0, 1, after);
    assert_memory_equal(before, after, sizeof(before));
    assert_int_equal(kv_seq_compact(again, 0, 0, odd, 4, NULL), PITH_OK);
    kv_lane_clear(again, 0, 0);
    assert_int_equal(kv_seq_append_blocks(seq, &block, 1, NULL) != PITH_OK,
                     1); /* it was overwritten */
    clear_lanes(seq, 1, 1);
    kv_seq_trim(seq);
    assert_int_equal(kv_seq_append_blocks(seq, &block, 1, NULL), PITH_OK);
    kv_lane_key(seq, 0, 0, 1, after);
    assert_memory_equal(before, after, sizeof(before));
    kv_seq_free(seq);
    kv_seq_free(again);
    kv_block_drop(cache, block);
    kv_cache_free(cache);
}

/* ---- waiting ---- */

/* A sequence with all there is: shared and folded pages, a closed one, a victim, marks, an
   index. */
static struct kv_seq *rich_seq(struct kv_cache *cache)
{
    struct kv_seq *seq = open_seq(cache);
    float row[32] = {3};
    assert_int_equal(kv_check_append(seq, 1, 0, 60), PITH_OK);
    assert_int_equal(page_share(seq, 0, 0, 2, seq, 0, 32, NULL), PITH_OK);
    assert_int_equal(page_share(seq, 0, 0, 1, seq, 0, 16, NULL), PITH_OK);
    assert_int_equal(page_fold(seq, 1, 1, 2, 0, NULL), PITH_OK);
    for (int32_t l = 0; l < 4; l++)
        kv_seq_set_victim(seq, l / 2, l % 2, l == 3 ? 17 : 3);
    assert_int_equal(kv_seq_reserve(seq, 2, NULL), PITH_OK);
    for (int32_t l = 0; l < 4; l++)
        kv_seq_append(seq, l / 2, l % 2, 60, 2, row, 0, row, 0);
    pages_close(seq);
    for (int32_t l = 0; l < 4; l++) {
        kv_seq_set_victim(seq, l / 2, l % 2, l == 0 ? 50 : 18);
        for (int32_t s = 0; s < kv_lane_len(seq, l / 2, l % 2); s++)
            kv_lane_marks(seq, l / 2, l % 2, 0)[s] = (float)(s + 100 * l);
    }
    return seq;
}

#define PAGE_MAX (1 << 16)

/* Everything of two sequences but page numbers: which entries are the same page is. */
static void assert_same_seq(const struct kv_seq *a, const struct kv_seq *b)
{
    static uint8_t page_a[PAGE_MAX], page_b[PAGE_MAX];
    kv_check_same(a, b);
    for (int32_t l = 0; l < 4; l++) {
        const struct kv_lane *x = &a->lane[l], *y = &b->lane[l];
        assert_int_equal(x->victim, y->victim);
        assert_int_equal(x->unordered, y->unordered);
        assert_int_equal(x->ragged, y->ragged);
        assert_true(!x->unordered || x->top == y->top);
        for (int32_t i = 0; i < x->n_live; i++) {
            assert_true(x->kind->layout.bytes <= PAGE_MAX);
            kv_lane_get_page(a, l / 2, l % 2, i, page_a);
            kv_lane_get_page(b, l / 2, l % 2, i, page_b);
            assert_memory_equal(page_a, page_b, x->kind->layout.bytes);
            for (int32_t j = 0; j < i; j++)
                assert_int_equal(x->table[i].page == x->table[j].page,
                                 y->table[i].page == y->table[j].page);
        }
        assert_memory_equal(kv_lane_marks(a, l / 2, l % 2, 0), kv_lane_marks(b, l / 2, l % 2, 0),
                            (size_t)x->len * sizeof(float));
        assert_memory_equal(kv_lane_norms(a, l / 2, l % 2), kv_lane_norms(b, l / 2, l % 2),
                            (size_t)x->len * sizeof(uint16_t));
    }
}

TEST(a_swapped_sequence_comes_back_bit_for_bit)
{
    struct kv_geometry g = two_layers;
    g.index = KV_INDEX_NORM | KV_INDEX_BOUNDS | KV_INDEX_VALUE_SUM;
    int64_t tables = pi_mem_used(PI_MEM_TABLE);
    struct kv_cache *cache = kv_check_cache(&g, 60), *twin = kv_check_cache(&g, 60);
    kv_cache_set_marks(cache, 1, true);
    kv_cache_set_marks(twin, 1, true);
    struct kv_seq *seq = rich_seq(cache), *want = rich_seq(twin);
    struct kv_swapped *out = NULL;
    assert_int_equal(kv_seq_reserve(seq, 40, NULL), PITH_OK);
    assert_int_equal(kv_seq_reserve(want, 40, NULL), PITH_OK);
    kv_seq_trim(seq);
    int64_t used = cache->used, other = pi_mem_used(PI_MEM_OTHER);
    assert_int_equal(kv_seq_reserve(seq, 40, NULL), PITH_OK); /* is not taken along */
    assert_int_equal(kv_seq_swap_out(seq, &out, NULL), PITH_OK);
    assert_int_equal(cache->used, 0);
    assert_int_equal(kv_swapped_pool_bytes(out), used);
    assert_int_equal(kv_swapped_host_bytes(out), pi_mem_used(PI_MEM_OTHER) - other);
    kv_check_account(cache, tables + twin->table_bytes);
    struct kv_seq *filler = open_seq(cache);
    assert_int_equal(kv_check_append(filler, 9, 0, 230), PITH_OK);
    uint64_t digest = kv_check_digest(cache);
    assert_int_equal(kv_seq_swap_in(seq, out, NULL), PITH_KV_FULL);
    assert_true(kv_check_digest(cache) == digest);
    kv_seq_truncate(filler, 16);
    int64_t before = cache->used;
    assert_int_equal(kv_seq_swap_in(seq, out, NULL), PITH_OK);
    assert_int_equal(cache->used - before, used);
    assert_int_equal(pi_mem_used(PI_MEM_OTHER), other);
    assert_same_seq(seq, want);
    kv_check_account(cache, tables + twin->table_bytes);
    /* Both go on alike. */
    assert_int_equal(kv_check_append(seq, 5, 62, 20), PITH_OK);
    assert_int_equal(kv_check_append(want, 5, 62, 20), PITH_OK);
    kv_check_same(seq, want);
    kv_seq_free(seq);
    kv_seq_free(want);
    kv_seq_free(filler);
    kv_cache_free(cache);
    kv_cache_free(twin);
}

/* Pages that a fork, a block or another sequence holds stay; each allocation fails once. */
TEST(what_others_share_stays_in_the_pool)
{
    struct kv_cache *cache = kv_check_cache(&two_layers, 60);
    kv_cache_set_marks(cache, 1, true);
    int64_t other = pi_mem_used(PI_MEM_OTHER);
    struct kv_seq *seq = rich_seq(cache), *fork, *never = open_seq(cache);
    struct kv_block *block;
    struct kv_swapped *out, *empty;
    struct kv_seq *plain = open_seq(cache);
    assert_int_equal(kv_check_append(plain, 2, 0, 20), PITH_OK);
    assert_int_equal(kv_block_hold(plain, 0, &block, NULL), PITH_OK);
    assert_int_equal(kv_seq_fork(seq, &fork, NULL), PITH_OK);
    int64_t used = cache->used;
    for (int64_t n = 1; n <= 3; n++) {
        uint64_t digest = kv_check_digest(cache);
        pi_mem_fail_at(n, false);
        assert_int_equal(kv_seq_swap_out(seq, &out, NULL), PITH_NOMEM);
        pi_mem_fail_at(0, false);
        assert_true(kv_check_digest(cache) == digest);
        assert_int_equal(pi_mem_used(PI_MEM_OTHER), other);
    }
    assert_int_equal(kv_seq_swap_out(seq, &out, NULL), PITH_OK);
    assert_int_equal(cache->used, used); /* all of it is the fork's, too */
    assert_int_equal(kv_seq_swap_out(never, &empty, NULL), PITH_OK);
    assert_int_equal(kv_swapped_pool_bytes(empty), 0);
    assert_int_equal(kv_seq_swap_in(never, empty, NULL), PITH_OK);
    assert_int_equal(kv_check_append(never, 3, 0, 1), PITH_OK);
    pi_mem_fail_at(1, true);
    assert_int_equal(kv_seq_swap_in(seq, out, NULL), PITH_OK); /* takes no memory but pages */
    pi_mem_fail_at(0, false);
    assert_same_seq(seq, fork);
    assert_int_equal(kv_seq_swap_out(plain, &out, NULL), PITH_OK);
    kv_seq_free(plain);
    assert_true(kv_block_is_alone(cache, block));
    kv_swapped_free(out);
    kv_swapped_free(NULL);
    assert_int_equal(pi_mem_used(PI_MEM_OTHER), other);
    kv_check_account(cache, 0);
    kv_seq_free(seq);
    kv_seq_free(fork);
    kv_seq_free(never);
    kv_block_drop(cache, block);
    kv_cache_free(cache);
}
