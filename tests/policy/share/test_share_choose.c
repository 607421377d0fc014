/*
 * test_share_choose.c - of several pages that could stand for others the ones that do: what frees
 * most, of those the nearest, of equals the first. Steps of the same tokens, whose distances are
 * told; some are the choices of the MemShare vectors.
 */
#include "kv_by_page.h"
#include "policy/share/internal.h"
#include "share_rig.h"

TEST_GROUP(load_model, free_model);

enum { P = 16, DIM = 4, N_EARLIER = 3, STEP = 2 * P };

/* A share policy of the model's vocabulary over one small lane, and a sequence of it. */
struct few {
    struct kv_cache *cache;
    struct kv_seq *kv;
    struct share *share;
    struct share_seq *seq;
    double still[DIM / 2]; /* nothing turns: keys are the same wherever they are read */
    struct pi_rope rope;
    int32_t tokens[(N_EARLIER + 1) * STEP]; /* one step over and over */
    int32_t n;
};

static void open_few(struct few *f, const char *config)
{
    struct policy_model m = {.g = {1, 1, DIM, DIM, P, KV_TYPE_F32, KV_TYPE_F32, 0, 0, {0}, {0}},
                             .n_group = 1,
                             .scale = 1.0f,
                             .model = model};
    static int32_t word[IDS_MAX], blank[IDS_MAX];
    int32_t n_word = encode("The way goes from bridge to tower", word);
    int32_t n_blank = encode("\n\n", blank);
    struct share_config c;
    *f = (struct few){.n = 0};
    f->rope = (struct pi_rope){.n_pair = DIM / 2, .freq = f->still, .magnitude = 1.0f};
    m.rope = &f->rope;
    check(share_config_parse(config, &c, &err), &err);
    check(share_create(&c, &m, 1, &f->share, &err), &err);
    check(share_seq_create(f->share, NULL, &f->seq, &err), &err);
    check(kv_cache_create(&m.g, 1 << 20, &f->cache, &err), &err);
    check(kv_seq_create(f->cache, &f->kv, &err), &err);
    assert_true(n_word > 0 && n_blank > 0 && n_blank < P);
    for (int32_t i = 0; i < (int32_t)PI_LEN(f->tokens); i++) {
        int32_t at = i % STEP, tail = at - (STEP - n_blank);
        f->tokens[i] = tail < 0 ? word[at % n_word] : blank[tail];
    }
}

static void close_few(struct few *f)
{
    share_seq_free(f->seq);
    share_free(f->share);
    kv_seq_free(f->kv);
    kv_cache_free(f->cache);
}

/* A step whose pages are that far from zeros, by the root mean square of an element. */
static void read_step(struct few *f, const double distance[2])
{
    float row[DIM];
    for (int32_t i = 0; i < STEP; i++, f->n++) {
        for (int32_t d = 0; d < DIM; d++)
            row[d] = (float)distance[i / P];
        check(share_seq_begin(f->seq, f->kv, f->n, &err), &err);
        check(kv_seq_reserve(f->kv, 1, &err), &err);
        kv_seq_append(f->kv, 0, 0, f->n, 1, row, 0, row, 0);
        share_seq_note(f->seq, f->kv, f->tokens, f->n + 1, true);
    }
}

/* Distances between the pages of three steps and the pages of a fourth, and the step whose pages
   replace them. */
static const struct {
    double distance[N_EARLIER][2];
    int32_t stands[2]; /* -1: none */
} choices[] = {
    {{{0.31, 0.31}, {0.92, 0.92}, {0.79, 0.79}}, {0, 0}}, /* the vectors' at 0.8 */
    {{{0.85, 0.85}, {0.80, 0.80}, {1.20, 1.20}}, {-1, -1}},
    {{{0.50, 0.50}, {0.50, 0.50}, {0.20, 0.20}}, {2, 2}},
    {{{0.50, 0.50}, {0.50, 0.50}, {0.90, 0.90}}, {0, 0}}, /* of equals the first */
    {{{0.50, 0.50}, {0.20, 0.20}, {0.30, 0.30}}, {1, 1}},
    {{{0.10, 0.60}, {0.60, 0.11}, {0.30, 0.30}}, {2, 2}}, /* the mean of the entries' */
    {{{0.10, 0.60}, {0.50, 0.50}, {0.45, 0.45}}, {0, 0}},
    {{{0.10, 0.90}, {0.70, 0.70}, {0.90, 0.10}}, {1, 1}}, /* what frees both pages first */
    {{{0.10, 0.90}, {0.90, 0.70}, {0.20, 0.90}}, {0, 1}}, /* each page for itself */
};

TEST(the_nearest_page_stands_for_another)
{
    for (size_t c = 0; c < PI_LEN(choices); c++) {
        struct few f;
        open_few(&f, "memshare:block=0.8,relative=2");
        double threshold = f.share->config.options.block;
        f.share->config.options.block = 0.0; /* the earlier ones share nothing */
        for (int32_t i = 0; i < N_EARLIER; i++)
            read_step(&f, choices[c].distance[i]);
        f.share->config.options.block = threshold;
        read_step(&f, (const double[2]){0.0, 0.0});
        assert_int_equal(kv_lane_len(f.kv, 0, 0), (N_EARLIER + 1) * STEP);
        for (int32_t i = 0; i < STEP; i++) {
            int32_t slot = N_EARLIER * STEP + i, stands = choices[c].stands[i / P];
            int32_t written = kv_lane_written_pos(f.kv, 0, 0, slot);
            if (written != (stands < 0 ? slot : stands * STEP + i))
                fail_msg("choice %zu: entry %d was written at %d", c, i, written);
            assert_int_equal(kv_lane_pos(f.kv, 0, 0, slot), slot);
        }
        close_few(&f);
    }
}
