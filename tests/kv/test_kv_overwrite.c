/*
 * test_kv_overwrite.c - overwriting an entry of a lane: the slot, the pages it takes, and
 * truncating, saving, loading and attending to such a lane.
 */
#include "base/mem.h"
#include "base/os.h"
#include "rounded.h"
#include "file/sum.h"
#include "kv/snapshot.h"
#include "kv_check.h"
#include "testing.h"
#include "kv_shape.h"

enum { N_HEAD = 2, DIM = 32, MAX_LEN = 256, N_TOK = 30, GROUP = 2 };
enum { ROWS = N_TOK * GROUP, STRIDE = MAX_LEN };

/* ---- victims ---- */

static struct kv_seq *filled(struct kv_cache *cache, int32_t n)
{
    struct kv_seq *seq;
    assert_int_equal(kv_seq_create(cache, &seq, NULL), PITH_OK);
    assert_int_equal(kv_check_append(seq, 1, 0, n), PITH_OK);
    return seq;
}

static void assert_positions(const struct kv_seq *seq, const int32_t *want, int32_t n)
{
    for (int h = 0; h < N_HEAD; h++) {
        assert_int_equal(kv_lane_len(seq, 0, h), n);
        for (int32_t s = 0; s < n; s++)
            assert_int_equal(kv_lane_pos(seq, 0, h, s), want[s]);
    }
}

static void set_victims(struct kv_seq *seq, int32_t slot)
{
    for (int h = 0; h < N_HEAD; h++)
        kv_seq_set_victim(seq, 0, h, slot);
}

TEST(the_next_token_takes_the_slot_of_the_victim)
{
    struct kv_geometry g = KV_SHAPE(1, N_HEAD, DIM, DIM, 16, KV_TYPE_F16, KV_TYPE_F16);
    struct kv_cache *cache = kv_check_cache(&g, 40);
    struct kv_seq *seq = filled(cache, 4);
    assert_int_equal(kv_lane_victim(seq, 0, 0), -1);
    set_victims(seq, 3); /* the last may go without a fall */
    assert_int_equal(kv_check_append(seq, 1, 4, 1), PITH_OK);
    assert_positions(seq, (int32_t[]){0, 1, 2, 4}, 4);
    assert_false(kv_lane_unordered(seq, 0, 0));
    assert_int_equal(kv_lane_victim(seq, 0, 0), -1);
    set_victims(seq, 1);
    float k[3][DIM] = {{0}}, v[3][DIM] = {{0}};
    assert_int_equal(kv_seq_reserve(seq, 3, NULL), PITH_OK);
    for (int h = 0; h < N_HEAD; h++)
        kv_seq_append(seq, 0, h, 5, 3, k[0], DIM, v[0], DIM);
    assert_positions(seq, (int32_t[]){0, 5, 2, 4, 6, 7}, 6);
    assert_true(kv_lane_unordered(seq, 0, 0));
    assert_int_equal(kv_lane_last(seq, 0, 1), 7);
    set_victims(seq, 2);
    set_victims(seq, -1);
    assert_int_equal(kv_check_append(seq, 1, 8, 1), PITH_OK);
    assert_positions(seq, (int32_t[]){0, 5, 2, 4, 6, 7, 8}, 7);
    set_victims(seq, 0);
    kv_seq_truncate(seq, 9); /* drops nothing */
    assert_int_equal(kv_lane_victim(seq, 0, 0), 0);
    kv_seq_truncate(seq, 5); /* what fell is gone */
    assert_positions(seq, (int32_t[]){0, 2, 4}, 3);
    assert_int_equal(kv_lane_victim(seq, 0, 0), -1);
    assert_false(kv_lane_unordered(seq, 0, 0));
    kv_seq_free(seq);
    kv_cache_free(cache);
}

/* An overwriting lane whose pages are full takes no page for the next token. A shared one takes a
   copy of the page it overwrites, and the other holder's entries stay the same. */
TEST(a_lane_with_a_victim_takes_no_page_and_copies_a_shared_one)
{
    struct kv_geometry g = KV_SHAPE(1, N_HEAD, DIM, DIM, 16, KV_TYPE_F16, KV_TYPE_F16);
    struct kv_cache *cache = kv_check_cache(&g, 10);
    struct kv_seq *seq = filled(cache, 64), *fork;
    assert_int_equal(kv_check_free(cache), 2);
    set_victims(seq, 20);
    assert_int_equal(kv_check_append(seq, 2, 64, 1), PITH_OK);
    assert_int_equal(kv_check_free(cache), 2);
    set_victims(seq, 40);
    assert_int_equal(kv_seq_fork(seq, &fork, NULL), PITH_OK);
    assert_int_equal(kv_lane_victim(fork, 0, 1), 40);
    assert_int_equal(kv_check_append(fork, 3, 65, 1), PITH_OK);
    assert_int_equal(kv_check_free(cache), 0);
    assert_int_equal(kv_lane_pos(fork, 0, 0, 40), 65);
    assert_int_equal(kv_lane_pos(seq, 0, 0, 40), 40);
    assert_int_equal(kv_lane_victim(seq, 0, 0), 40);
    uint64_t digest = kv_check_digest(cache);
    set_victims(fork, 0);
    assert_int_equal(kv_check_append(fork, 3, 66, 1), PITH_KV_FULL);
    set_victims(fork, -1);
    assert_true(kv_check_digest(cache) == digest);
    kv_seq_free(fork);
    kv_seq_free(seq);
    kv_cache_free(cache);
}

/* Where no page is free for a copy, the entries after the first gap go, too, and nothing else. */
TEST(truncates_without_taking_pages)
{
    struct kv_geometry g = KV_SHAPE(1, N_HEAD, DIM, DIM, 16, KV_TYPE_F16, KV_TYPE_F16);
    struct kv_cache *cache = kv_check_cache(&g, 2 * N_HEAD);
    struct kv_seq *seq = filled(cache, 32), *fork;
    set_victims(seq, 3);
    assert_int_equal(kv_check_append(seq, 2, 32, 1), PITH_OK);
    assert_int_equal(kv_seq_fork(seq, &fork, NULL), PITH_OK);
    assert_int_equal(kv_seq_truncate_copies(fork, 32), N_HEAD * (int64_t)kv_page_bytes(&g));
    kv_seq_truncate(fork, 32);
    assert_positions(
        fork, (int32_t[]){0, 1, 2, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31},
        19);
    assert_int_equal(kv_lane_pos(seq, 0, 0, 3), 32);
    assert_int_equal(kv_lane_len(seq, 0, 0), 32);
    kv_seq_free(fork);
    assert_int_equal(kv_seq_truncate_copies(seq, 32), 0); /* alone it needs none */
    kv_seq_truncate(seq, 32);
    assert_int_equal(kv_lane_len(seq, 0, 0), 31);
    assert_int_equal(kv_lane_pos(seq, 0, 0, 3), 4);
    kv_check_account(cache, pi_mem_used(PI_MEM_TABLE) - cache->table_bytes);
    kv_seq_free(seq);
    kv_cache_free(cache);
}

/* ---- files ---- */

static void put_le(uint8_t *p, uint64_t value, int n_byte)
{
    for (int i = 0; i < n_byte; i++)
        p[i] = (uint8_t)(value >> (8 * i));
}

/* Loads bytes whose checksum is made right; says (may be NULL) is a part of the refusal. */
static void load_bytes(struct kv_cache *cache, uint8_t *bytes, size_t size, const char *says)
{
    struct kv_seq *seq = NULL;
    void *extra = NULL;
    size_t extra_size;
    err = (pith_error){0};
    put_le(bytes + size - 8, pi_sum_of(bytes, size - 8), 8);
    pith_status status =
        kv_snapshot_load(cache, "file", bytes, size, &seq, &extra, &extra_size, &err);
    assert_int_equal(status, says == NULL ? PITH_OK : PITH_FORMAT);
    if (says != NULL && strstr(err.message, says) == NULL)
        fail_msg("%s", err.message);
    if (says == NULL)
        assert_true(kv_lane_unordered(seq, 0, 0) && !kv_lane_unordered(seq, 0, 1));
    pi_mem_free(extra);
    kv_seq_free(seq);
}

/* Only a lane that says so may have positions that fall. */
TEST(a_file_says_where_positions_fall)
{
    struct kv_geometry g = KV_SHAPE(1, N_HEAD, DIM, DIM, 16, KV_TYPE_F16, KV_TYPE_F16);
    struct kv_cache *cache = kv_check_cache(&g, 40);
    struct kv_seq *seq = filled(cache, 20);
    struct pi_file file = {0};
    char path[64];
    snprintf(path, sizeof(path), "/tmp/pith-marks-%d", (int)getpid());
    kv_seq_set_victim(seq, 0, 0, 5);
    assert_int_equal(kv_check_append(seq, 1, 20, 1), PITH_OK);
    assert_int_equal(kv_seq_save(seq, "x", 1, path, NULL), PITH_OK);
    assert_int_equal(pi_file_map(path, &file, NULL), PITH_OK);
    uint8_t *bytes = test_malloc(file.size);
    uint8_t *lane = bytes + KV_SNAPSHOT_HEADER_SIZE + KV_SNAPSHOT_SECTION_SIZE;
    memcpy(bytes, file.data, file.size);
    load_bytes(cache, bytes, file.size, NULL);
    put_le(lane, 2, 4);
    load_bytes(cache, bytes, file.size, "table entry 0: position 6 of entry 6 is out of order");
    put_le(lane, 0x80000003, 4);
    load_bytes(cache, bytes, file.size, "lane 1: 2 table entries, and 1 are left");
    pi_file_unmap(&file);
    assert_int_equal(unlink(path), 0);
    test_free(bytes);
    kv_seq_free(seq);
    kv_cache_free(cache);
}

/* ---- attention ---- */

/* The output and the weights of n_tok queries, n_group of each, on the first lane. */
static void attend(const struct kv_seq *seq, int32_t pos0, int32_t n_tok, int32_t n_group,
                   const float *q, float *out, float *weight)
{
    const struct kv_geometry *g = kv_cache_geometry(seq->cache);
    void *scratch = test_malloc(kv_attend_scratch_bytes(g, n_tok * n_group));
    struct kv_attend_tap tap = {.weight = weight, .row_stride = MAX_LEN};
    kv_attend(&(struct kv_attend_job){.seq = seq,
                                      .n_tok = n_tok,
                                      .n_group = n_group,
                                      .pos0 = pos0,
                                      .q = q,
                                      .q_stride = (size_t)n_group * DIM,
                                      .scale = 0.3f,
                                      .out = out,
                                      .out_stride = (size_t)n_group * DIM,
                                      .tap = &tap},
              scratch);
    test_free(scratch);
}

static float q[ROWS * DIM], out[3][ROWS * DIM], weight[3][ROWS * STRIDE];

static int by_value(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Checks an overwritten lane against the same entries in order, to rounding. Checks a prompt at
   once against token by token, bit for bit. Entry pos[s] has slot at[s]. */
static void check_attention(const struct kv_seq *seq, const struct kv_seq *sorted,
                            const int32_t *pos, const int32_t *at, int32_t len, int32_t pos0)
{
    const enum kv_type type_v = kv_cache_geometry(seq->cache)->type_v;
    attend(sorted, pos0, N_TOK, GROUP, q, out[0], weight[0]);
    attend(seq, pos0, N_TOK, GROUP, q, out[1], weight[1]);
    for (int32_t t = 0; t < N_TOK; t++)
        attend(seq, pos0 + t, 1, GROUP, q + t * GROUP * DIM, out[2] + t * GROUP * DIM,
               weight[2] + t * GROUP * STRIDE);
    assert_memory_equal(out[1], out[2], sizeof(out[1]));
    for (int32_t r = 0; r < ROWS; r++) {
        for (int32_t d = 0; d < DIM; d++)
            assert_float_equal(out[1][r * DIM + d], out[0][r * DIM + d],
                               2e-6 + rounded_error(type_v, DIM));
        assert_memory_equal(&weight[1][r * STRIDE], &weight[2][r * STRIDE],
                            (size_t)len * sizeof(float));
        for (int32_t s = 0; s < len; s++) {
            float w = weight[1][r * STRIDE + at[s]];
            assert_float_equal(w, weight[0][r * STRIDE + s], 2e-6);
            assert_int_equal(w == 0.0f, pos[s] > pos0 + r / GROUP);
        }
    }
}

/* A lane of `budget` entries that was overwritten at random slots, beside its entries in order. */
static void check_overwritten(const struct kv_geometry *g, int32_t budget, uint64_t *rng)
{
    struct kv_cache *cache = kv_check_cache(g, 100);
    struct kv_seq *seq = filled(cache, budget), *sorted = filled(cache, 0);
    int32_t pos[MAX_LEN], at[MAX_LEN], next = budget;
    for (; next < 3 * budget; next++) {
        set_victims(seq, (int32_t)rng_below(rng, (uint64_t)budget));
        assert_int_equal(kv_check_append(seq, 1, next, 1), PITH_OK);
    }
    assert_true(kv_lane_unordered(seq, 0, 0));
    kv_lane_positions(seq, 0, 0, pos, budget);
    qsort(pos, (size_t)budget, sizeof(pos[0]), by_value);
    for (int32_t s = 0; s < budget; s++) {
        assert_int_equal(kv_check_append(sorted, 1, pos[s], 1), PITH_OK);
        for (at[s] = 0; kv_lane_pos(seq, 0, 0, at[s]) != pos[s];)
            at[s]++;
    }
    assert_false(kv_lane_unordered(sorted, 0, 0));
    for (int i = 0; i < ROWS * DIM; i++)
        q[i] = 4.0f * rng_float(rng);
    for (int32_t pos0 = next; pos0 >= 0; pos0 -= 37)
        check_attention(seq, sorted, pos, at, budget, pos0);
    kv_seq_free(seq);
    kv_seq_free(sorted);
    kv_cache_free(cache);
}

TEST(attends_over_overwritten_lanes)
{
    uint64_t rng = 5;
    for (int t = 0; t < 9; t++) {
        enum kv_type type = (enum kv_type)(t % KV_N_TYPE);
        struct kv_geometry g = KV_SHAPE(1, N_HEAD, DIM, DIM, 16 << t / 3, type, type);
        check_overwritten(&g, 40 + t * 13, &rng);
    }
}
