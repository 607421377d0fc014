/*
 * test_kv_gather.c - attention over some of a lane's entries. For any lane, the output has the bits
 * of a lane that holds only these entries, in pages of 64. For all entries, it has the bits of the
 * lane itself. Every storage type, few rows and many, every processor level, taps.
 */
#include "attend_check.h"
#include "kv_by_page.h"

enum { N_ENTRY = 300, MOST_ROWS = 60 };

/* The results of a call. */
struct result {
    float *out;    /* [n_row][dim_v] */
    float *logits; /* [n_row][stride] */
    float *weight; /* [n_row][stride] */
    float *max;    /* [n_row] */
    float *sum;    /* [n_row] */
    size_t n_row;
    size_t stride;
    size_t dim;
};

static struct result result_new(const struct fixture *f, size_t len)
{
    struct result r = {.n_row = (size_t)(f->n_tok * f->n_group), .dim = (size_t)f->cache->g.dim_v};
    r.stride = (len + 15) / 16 * 16;
    r.out = test_calloc(r.n_row * r.dim + 1, sizeof(float));
    r.logits = test_calloc(r.n_row * r.stride + 1, sizeof(float));
    r.weight = test_calloc(r.n_row * r.stride + 1, sizeof(float));
    r.max = test_calloc(r.n_row, sizeof(float));
    r.sum = test_calloc(r.n_row, sizeof(float));
    return r;
}

static void result_free(struct result *r)
{
    test_free(r->out);
    test_free(r->logits);
    test_free(r->weight);
    test_free(r->max);
    test_free(r->sum);
}

/* Tokens from t on, n of them, over a sequence; slots may be NULL. */
static void attend_slots(const struct fixture *f, const struct kv_seq *seq, int32_t t, int32_t n,
                         const int32_t *slots, int32_t n_slot, struct result *r)
{
    const struct kv_geometry *g = &seq->cache->g;
    size_t row = (size_t)(t * f->n_group), size = kv_attend_scratch_bytes(g, n * f->n_group);
    uint8_t *scratch = test_malloc(size);
    memset(scratch, 0xff, size);
    struct kv_attend_tap tap = {.logits = r->logits + row * r->stride,
                                .weight = r->weight + row * r->stride,
                                .row_stride = r->stride,
                                .max = r->max + row,
                                .sum = r->sum + row};
    struct kv_attend_job job = {
        .seq = seq,
        .n_tok = n,
        .n_group = f->n_group,
        .pos0 = f->pos0 + t,
        .q = f->q + row * (size_t)g->dim_k,
        .q_stride = (size_t)(f->n_group * g->dim_k),
        .scale = f->scale,
        .out = r->out + row * r->dim,
        .out_stride = (size_t)f->n_group * r->dim,
        .rope = f->rope,
        .tap = &tap,
        .slots = slots,
        .n_slot = n_slot,
    };
    kv_attend(&job, scratch);
    float *with = test_calloc(r->n_row * r->dim + 1, sizeof(float));
    job.tap = NULL;
    job.out = with;
    kv_attend(&job, scratch);
    assert_same_bits(with, r->out + row * r->dim, (size_t)(n * f->n_group) * r->dim, "with a tap");
    test_free(with);
    test_free(scratch);
}

static void assert_same(const struct result *a, const struct result *b, const char *what)
{
    assert_same_bits(a->out, b->out, a->n_row * a->dim, what);
    assert_same_bits(a->logits, b->logits, a->n_row * a->stride, what);
    assert_same_bits(a->weight, b->weight, a->n_row * a->stride, what);
    assert_same_bits(a->max, b->max, a->n_row, what);
    assert_same_bits(a->sum, b->sum, a->n_row, what);
}

/* The slots over seq give the result of the whole of `alone`, at every level and in chunks. */
static void check(struct fixture *f, const struct kv_seq *seq, const int32_t *slots, int32_t n,
                  const struct kv_seq *alone, uint64_t *rng)
{
    struct result want = result_new(f, (size_t)n), got = result_new(f, (size_t)n);
    assert_int_equal(kv_lane_len(alone, 0, 0), n);
    assert_int_equal(pith_cpu_level_set("scalar", NULL), PITH_OK);
    attend_slots(f, alone, 0, f->n_tok, NULL, 0, &want);
    for (int level = 0; level < PI_CPU_N_LEVEL; level++) {
        const char *name = pi_cpu_level_name((enum pi_cpu_level)level);
        if (pith_cpu_level_set(name, NULL) != PITH_OK)
            continue;
        attend_slots(f, seq, 0, f->n_tok, slots, n, &got);
        assert_same(&got, &want, name);
        for (int32_t t = 0, part; t < f->n_tok; t += part) {
            part = 1 + (int32_t)rng_below(rng, (uint64_t)(f->n_tok - t));
            attend_slots(f, seq, t, part, slots, n, &got);
        }
        assert_same(&got, &want, "in chunks");
    }
    assert_int_equal(pith_cpu_level_set(NULL, NULL), PITH_OK);
    result_free(&want);
    result_free(&got);
}

/* Some slots of len, in runs and alone. */
static int32_t choose(uint64_t *rng, int32_t len, int32_t *slots)
{
    int32_t n = 0;
    for (int32_t s = 0; s < len;) {
        int32_t run = 1 + (int32_t)rng_below(rng, rng_below(rng, 4) == 0 ? 90 : 4);
        for (int32_t i = 0; i < run && s < len; i++)
            slots[n++] = s++;
        s += 1 + (int32_t)rng_below(rng, 12);
    }
    return n;
}

static void compacted(const struct kv_seq *seq, const int32_t *slots, int32_t n,
                      struct kv_seq **out)
{
    assert_int_equal(kv_seq_fork(seq, out, NULL), PITH_OK);
    assert_int_equal(kv_seq_compact(*out, 0, 0, slots, n, NULL), PITH_OK);
}

/* Rows: a token, one with a group, a chunk that begins among the entries. */
static const struct {
    int32_t n_tok;
    int32_t n_group;
    int32_t before; /* the first query's position before the end */
} calls[] = {{1, 1, 0}, {1, 4, 0}, {1, 16, 0}, {20, 3, 17}, {7, 1, 200}, {2, 4, 290}};

static void check_calls(struct fixture *f, const int32_t *slots, int32_t n,
                        const struct kv_seq *alone, uint64_t *rng)
{
    for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
        int32_t last = kv_lane_last(f->seq, 0, 0);
        queries(f, rng, calls[c].n_tok, calls[c].n_group,
                (int32_t)pi_max(0, last - calls[c].before));
        check(f, f->seq, slots, n, alone, rng);
        test_free(f->q);
        test_free(f->out);
    }
}

/* Pages of 64. All entries are the lane itself; some entries equal the lane after packing. */
TEST(chosen_entries_give_the_bits_of_a_lane_of_them)
{
    const enum kv_type types[] = {KV_TYPE_F32, KV_TYPE_F16, KV_TYPE_Q8_0};
    int32_t slots[N_ENTRY], n;
    for (int t = 0; t < 3; t++) {
        struct kv_geometry g = {
            1,    1, 64, 96, 64,   types[t], types[(t + 1) % 3], KV_INDEX_NORM, 0, {0}, {0},
            NULL, 0, 0,  0,  NULL, {0}};
        struct fixture f;
        struct kv_seq *alone;
        uint64_t rng = (uint64_t)t;
        cache_open(&f, &g, N_ENTRY);
        append_random(f.seq, &rng, 0, N_ENTRY);
        for (n = 0; n < N_ENTRY; n++)
            slots[n] = n;
        check_calls(&f, slots, n, f.seq, &rng);
        for (int round = 0; round < 3; round++) {
            n = choose(&rng, N_ENTRY, slots);
            compacted(f.seq, slots, n, &alone);
            check_calls(&f, slots, n, alone, &rng);
            kv_seq_free(alone);
        }
        f.q = f.out = NULL;
        close_all(&f);
    }
}

/* Smaller pages: the entries appended to a lane with pages of 64. */
TEST(small_pages_give_the_same_bits)
{
    int32_t slots[N_ENTRY];
    for (int32_t page_len = 16; page_len <= 32; page_len *= 2) {
        struct kv_geometry g = {
            1,   1,    80, 33, page_len, KV_TYPE_F16, KV_TYPE_F32, KV_INDEX_ROWS, 0, {0},
            {0}, NULL, 0,  0,  0,        NULL,        {0}};
        struct fixture f, alone;
        uint64_t rng = (uint64_t)page_len;
        float k[80], v[33];
        cache_open(&f, &g, N_ENTRY);
        append_random(f.seq, &rng, 0, N_ENTRY);
        int32_t n = choose(&rng, N_ENTRY, slots);
        g.page_len = 64;
        cache_open(&alone, &g, N_ENTRY);
        for (int32_t i = 0; i < n; i++) {
            kv_lane_key(f.seq, 0, 0, slots[i], k);
            kv_lane_value(f.seq, 0, 0, slots[i], v);
            append(alone.seq, slots[i], 1, k, v);
        }
        check_calls(&f, slots, n, alone.seq, &rng);
        f.q = f.out = NULL;
        close_all(&f);
        close_all(&alone);
    }
}

/* Pages with deltas, of which positions fall from one to the next: packing breaks at the same
   places as tiles do. And a lane that was overwritten. */
TEST(shifted_and_overwritten_lanes_give_the_same_bits)
{
    enum { DIM = 32 };
    double freq[DIM / 2];
    int32_t slots[N_ENTRY + 100];
    for (int32_t i = 0; i < DIM / 2; i++)
        freq[i] = pow(10000, -(double)i / (DIM / 2));
    const struct pi_rope rope = {.n_pair = DIM / 2, .freq = freq, .magnitude = 1};
    for (int unordered = 0; unordered < 2; unordered++)
        for (int round = 0; round < 4; round++) {
            struct kv_geometry g = {
                1,   1,    DIM, DIM, 64, KV_TYPE_F16, KV_TYPE_Q8_0, KV_INDEX_ROWS, 0, {0},
                {0}, NULL, 0,   0,   0,  NULL,        {0}};
            uint64_t rng = (uint64_t)(10 + round);
            struct fixture f;
            struct kv_seq *other, *alone;
            cache_open(&f, &g, 2 * N_ENTRY);
            append_random(f.seq, &rng, 500, N_ENTRY);
            assert_int_equal(kv_seq_create(f.cache, &other, NULL), PITH_OK);
            append_random(other, &rng, 100, N_ENTRY);
            for (int32_t i = 0; i < 60 && unordered; i++) {
                kv_seq_set_victim(f.seq, 0, 0, (int32_t)rng_below(&rng, N_ENTRY));
                append_random(f.seq, &rng, 500 + N_ENTRY + i, 1);
            }
            assert_int_equal(kv_lane_unordered(f.seq, 0, 0), unordered);
            if (round % 2 == 1) {
                assert_int_equal(page_share(f.seq, 0, 0, 1, other, 2, 0, NULL), PITH_OK);
                assert_int_equal(page_share(f.seq, 0, 0, 2, other, 1, 30, NULL), PITH_OK);
                assert_int_equal(page_share(f.seq, 0, 0, 3, other, 3, 30, NULL), PITH_OK);
            }
            if (round / 2 == 1)
                kv_seq_shift(f.seq, 0, 0, 64, -17);
            int32_t n = choose(&rng, kv_lane_len(f.seq, 0, 0), slots);
            compacted(f.seq, slots, n, &alone);
            f.rope = &rope;
            check_calls(&f, slots, n, alone, &rng);
            kv_seq_free(alone);
            kv_seq_free(other);
            f.q = f.out = NULL;
            close_all(&f);
        }
}

/* Nothing is chosen: nothing is seen. */
TEST(no_chosen_entry_gives_zeros)
{
    struct kv_geometry g = {1,   1,    32, 32, 64, KV_TYPE_F16, KV_TYPE_F16, KV_INDEX_ROWS, 0, {0},
                            {0}, NULL, 0,  0,  0,  NULL,        {0}};
    const int32_t slots[1] = {0};
    struct fixture f;
    uint64_t rng = 4;
    cache_open(&f, &g, 40);
    append_random(f.seq, &rng, 0, 40);
    queries(&f, &rng, 3, 5, 39);
    struct result r = result_new(&f, 0);
    memset(r.out, 0xff, out_len(&f) * sizeof(float));
    attend_slots(&f, f.seq, 0, 3, slots, 0, &r);
    for (size_t i = 0; i < out_len(&f); i++)
        assert_true(r.out[i] == 0.0f);
    for (size_t i = 0; i < r.n_row; i++)
        assert_true(r.max[i] == -INFINITY && r.sum[i] == 0.0f);
    result_free(&r);
    close_all(&f);
}
