/*
 * test_share_beside.c - share policies beside the other verbs: every storage type, files, recall,
 * and read and keep policies (TriAttention among them) within the planned memory. A page that
 * replaces an equal one changes attention by rounding only.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>

#include "policy/share/internal.h"
#include "share_rig.h"

#include "folder.h"
#include "model_maker.h"

/* ---- pages that are equal before rotation ---- */

enum { DIM = 32, N_LAYER = 2, N_HEAD = 2, STEP = 23 };

static struct policy_model small_model(enum kv_type type)
{
    return (struct policy_model){
        .g = {.n_layer = N_LAYER,
              .n_head = N_HEAD,
              .dim_k = DIM,
              .dim_v = DIM,
              .page_len = 16,
              .type_k = type,
              .type_v = type},
        .n_group = 1,
        .scale = 0.2f,
        .rope = &model->rope,
        .model = model,
    };
}

/* The entry of token t of a step, the same in every step before it is rotated. */
static void entry_of(int32_t lane, int32_t t, float *k, float *v)
{
    uint64_t seed = 1000 * (uint64_t)lane + (uint64_t)t;
    for (int32_t d = 0; d < DIM; d++) {
        k[d] = rng_float(&seed);
        v[d] = rng_float(&seed);
    }
}

static void rotate(const float *x, int32_t pos, float *out)
{
    float cs[DIM];
    pi_rope_fill(&model->rope, pos, cs);
    for (int32_t f = 0; f < model->rope.n_pair; f++) {
        int32_t i = model->rope.adjacent ? 2 * f : f;
        int32_t j = model->rope.adjacent ? 2 * f + 1 : model->rope.n_pair + f;
        out[i] = x[i] * cs[2 * f] - x[j] * cs[2 * f + 1];
        out[j] = x[i] * cs[2 * f + 1] + x[j] * cs[2 * f];
    }
}

/* Reads three equal steps that end with a blank line; each time that it may it shares. */
static struct share_seq *read_steps(struct share *s, struct kv_seq *kv, int32_t feed)
{
    int32_t n_layer = kv_seq_geometry(kv)->n_layer;
    int32_t tokens[3 * STEP];
    struct share_seq *seq;
    check(share_seq_create(s, NULL, &seq, &err), &err);
    for (int32_t i = 0; i < 3 * STEP; i++) {
        float k[DIM], r[DIM], v[DIM];
        tokens[i] = i % STEP >= STEP - 2 ? feed : 300 + i % STEP;
        check(share_seq_begin(seq, kv, i, &err), &err);
        check(kv_seq_reserve(kv, 1, &err), &err);
        for (int32_t l = 0; l < n_layer; l++)
            for (int32_t h = 0; h < N_HEAD; h++) {
                entry_of(l * N_HEAD + h, i % STEP, k, v);
                rotate(k, i, r);
                kv_seq_append(kv, l, h, i, 1, r, DIM, v, DIM);
            }
        share_seq_note(seq, kv, tokens, i + 1, true);
        kv_seq_slide(kv, false);
    }
    return seq;
}

static void attend(const struct kv_seq *kv, int32_t layer, int32_t head, float *out)
{
    const struct kv_geometry *g = &(struct kv_geometry){0};
    float x[DIM], q[DIM], v[DIM];
    struct policy_model m = small_model(KV_TYPE_F32);
    g = &m.g;
    void *scratch = malloc(kv_attend_scratch_bytes(g, 1));
    assert_non_null(scratch);
    entry_of(77, 1, x, v);
    rotate(x, 3 * STEP, q);
    const struct kv_attend_job job = {.seq = kv,
                                      .layer = layer,
                                      .head = head,
                                      .n_tok = 1,
                                      .n_group = 1,
                                      .pos0 = 3 * STEP,
                                      .q = q,
                                      .q_stride = DIM,
                                      .scale = 1.0f,
                                      .out = out,
                                      .out_stride = DIM,
                                      .rope = &model->rope};
    kv_attend(&job, scratch);
    free(scratch);
}

/* The token of a line feed; two of them are a blank line. */
static int32_t find_feed(const struct share *s)
{
    const uint8_t wanted = SHARE_BEGINS | SHARE_ENDS;
    for (int32_t id = 0; id < model->hp.n_vocab; id++)
        if ((s->flags[id] & (wanted | SHARE_BLANK)) == wanted)
            return id;
    fail_msg("no token is a line feed");
    return -1;
}

TEST(an_equal_page_changes_attention_by_rounding_alone)
{
    struct share_config config[2];
    struct policy_model m = small_model(KV_TYPE_F32);
    check(share_config_parse("memshare:block=0.00001", &config[0], &err), &err);
    check(share_config_parse("random:share=0", &config[1], &err), &err);
    struct kv_cache *cache;
    struct kv_seq *kv[2];
    struct share *share[2];
    struct share_seq *seq[2];
    check(kv_cache_create(&m.g, 1 << 22, &cache, &err), &err);
    for (int32_t i = 0; i < 2; i++) {
        check(kv_seq_create(cache, &kv[i], &err), &err);
        check(share_create(&config[i], &m, 2, &share[i], &err), &err);
        seq[i] = read_steps(share[i], kv[i], find_feed(share[i]));
    }
    pith_share_stats t;
    share_seq_stats(seq[0], &t);
    assert_int_equal(t.steps_closed, 3);
    assert_int_equal(t.steps_similar, 2);
    assert_int_equal(t.pages_shared, 4); /* two of each step but the first */
    assert_int_equal(t.tokens_shared, 2 * STEP);
    assert_int_equal(kv_seq_free_bytes(kv[0]),
                     (int64_t)(1 << 22) / (int64_t)kv_page_bytes(&m.g) *
                             (int64_t)kv_page_bytes(&m.g) -
                         (2 + 5) * N_LAYER * N_HEAD * (int64_t)kv_page_bytes(&m.g));
    for (int32_t l = 0; l < N_LAYER; l++)
        for (int32_t h = 0; h < N_HEAD; h++) {
            float a[DIM], b[DIM];
            attend(kv[0], l, h, a);
            attend(kv[1], l, h, b);
            for (int32_t d = 0; d < DIM; d++)
                assert_true(fabsf(a[d] - b[d]) < 1e-5f);
        }
    for (int32_t i = 0; i < 2; i++) {
        share_seq_free(seq[i]);
        share_free(share[i]);
        kv_seq_free(kv[i]);
    }
    kv_cache_free(cache);
}

/* Lanes with a window keep their own entries, whose pages go by themselves. */
TEST(windows_stand_beside_shared_pages)
{
    enum { WINDOW = 20, ALL = N_LAYER + 1 };
    static const int32_t window[ALL] = {0, 0, WINDOW};
    struct policy_model m = small_model(KV_TYPE_F32);
    struct share_config config[2];
    struct kv_geometry g = m.g;
    struct kv_cache *cache;
    struct kv_seq *kv[2];
    struct share *share[2];
    struct share_seq *seq[2];
    pith_share_stats t;
    g.n_layer = ALL;
    g.window = window;
    g.step_len = 1;
    check(share_config_parse("memshare:block=0.00001", &config[0], &err), &err);
    check(share_config_parse("random:share=0", &config[1], &err), &err);
    check(kv_cache_create(&g, 1 << 22, &cache, &err), &err);
    m.g = kv_full_lanes(&g);
    for (int32_t i = 0; i < 2; i++) {
        check(kv_seq_create(cache, &kv[i], &err), &err);
        check(share_create(&config[i], &m, 1, &share[i], &err), &err);
        seq[i] = read_steps(share[i], kv[i], find_feed(share[i]));
    }
    share_seq_stats(seq[0], &t);
    assert_int_equal(t.pages_shared, 4);
    for (int32_t l = 0; l < ALL; l++)
        for (int32_t h = 0; h < N_HEAD; h++) {
            float a[DIM], b[DIM];
            int32_t n = kv_lane_len(kv[0], l, h);
            assert_int_equal(n, kv_lane_len(kv[1], l, h));
            assert_true(l < N_LAYER ? n == 3 * STEP : n < WINDOW + 32);
            for (int32_t i = 0; i < n; i++) /* at its own position, wherever it was written */
                assert_int_equal(kv_lane_pos(kv[0], l, h, i), 3 * STEP - n + i);
            attend(kv[0], l, h, a);
            attend(kv[1], l, h, b);
            for (int32_t d = 0; d < DIM; d++)
                assert_true(fabsf(a[d] - b[d]) < 1e-5f);
        }
    for (int32_t i = 0; i < 2; i++) {
        share_seq_free(seq[i]);
        share_free(share[i]);
        kv_seq_free(kv[i]);
    }
    kv_cache_free(cache);
}

/* A model of which most layers have a window: its other lanes hold fewer pages, and all
   positions. */
TEST(models_with_windows_share)
{
    pith_model *windows;
    pith_engine_params p = params_of(LAX);
    pith_engine *e = NULL;
    pith_lane_info lane;
    static int32_t pos[IDS_MAX];
    int64_t live[2];
    check(model_make_of("arch=gemma3 layers=4 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 "
                        "window=20 pattern=2 tied=1 vocab_file=" MODEL,
                        in_folder("windows.gguf"), &err),
          &err);
    check(pith_model_load(in_folder("windows.gguf"), NULL, &windows, &err), &err);
    for (int32_t i = 0; i < 2; i++) {
        p.share = i == 0 ? NULL : LAX;
        p.page_len = 16;
        check(pith_engine_create(windows, &p, &e, &err), &err);
        pith_seq *seq = seq_of(e);
        read_to(seq, ends[5]);
        pith_kv_stats kv;
        pith_engine_kv_stats(e, &kv);
        live[i] = kv.live_bytes;
        assert_true(i == 0 || stats_of(seq).pages_shared > 0);
        for (int32_t l = 0; l < 2; l++) { /* those without a window come first */
            check(pith_seq_lane(seq, l, 0, &lane, pos, IDS_MAX), &err);
            assert_int_equal(lane.n_entry, ends[5]);
            for (int32_t j = 0; j < lane.n_entry; j++)
                assert_int_equal(pos[j], j);
        }
        pith_seq_free(seq);
        pith_engine_free(e);
    }
    assert_true(live[1] < live[0]);
    pith_model_free(windows);
}

/* ---- storage types ---- */

TEST(shares_pages_of_every_storage_type)
{
    static const char *const names[][2] = {
        {"f32", "f32"},       {"f16", "q8_0"},      {"q8_0", "f16"},     {"q4_0", "q4_0"},
        {"turbo4", "turbo4"}, {"turbo3", "turbo2"}, {"turbo2", "turbo3"}};
    for (size_t i = 0; i < PI_LEN(names); i++)
        for (int32_t literal = 0; literal < 2; literal++) {
            pith_engine_params p = params_of(literal ? LAX ",mode=literal" : LAX);
            p.type_k = names[i][0];
            p.type_v = names[i][1];
            pith_engine *e = engine_of(&p);
            pith_seq *seq = seq_of(e);
            read_to(seq, n_id);
            pith_share_stats t = stats_of(seq);
            assert_true(t.pages_shared > 4);
            for (int32_t l = 0; l < model->hp.n_layer; l++)
                for (int32_t h = 0; h < model->hp.n_head_kv; h++)
                    assert_int_equal(kv_lane_len(seq->memory.kv, l, h),
                                     n_id - (literal ? t.tokens_shared : 0));
            for (int32_t v = 0; v < model->hp.n_vocab; v++)
                assert_true(isfinite(pith_seq_logits(seq)[v]));
            assert_true(hash_of(seq) == hash_at(e, n_id));
            pith_seq_free(seq);
            pith_engine_free(e);
        }
}

/* ---- files ---- */

TEST(a_file_holds_shared_pages)
{
    for (int32_t literal = 0; literal < 2; literal++) {
        pith_engine_params p = params_of(literal ? LAX ",mode=literal" : LAX);
        pith_engine *e = engine_of(&p);
        pith_seq *seq = seq_of(e), *loaded;
        pith_kv_stats one, both;
        read_to(seq, n_id);
        pith_engine_kv_stats(e, &one);
        check(pith_seq_save(seq, in_folder("seq"), &err), &err);
        check(pith_seq_load(e, in_folder("seq"), &loaded, &err), &err);
        pith_engine_kv_stats(e, &both);
        assert_int_equal(both.used_bytes, 2 * one.used_bytes); /* shared pages stay shared */
        assert_int_equal(stats_of(loaded).steps_closed, 0);
        check(pith_seq_eval(seq, ids, 30, &err), &err);
        check(pith_seq_eval(loaded, ids, 30, &err), &err);
        assert_true(hash_of(seq) == hash_of(loaded));
        /* It shares the pages it reads from now on; the steps of the file's tokens are unknown. */
        for (int32_t i = ends[0]; i < ends[5]; i++)
            check(pith_seq_eval(loaded, &ids[i], 1, &err), &err);
        assert_true(stats_of(loaded).pages_shared > 0);
        pith_seq *fresh = seq_of(e);
        check(pith_seq_sync(loaded, ids, N_PROMPT, NULL, NULL, &err), &err);
        check(pith_seq_sync(fresh, ids, N_PROMPT, NULL, NULL, &err), &err);
        assert_true(hash_of(loaded) == hash_of(fresh));
        pith_seq_free(fresh);
        pith_seq_free(loaded);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* ---- reading a part ---- */

TEST(read_policies_read_shared_pages)
{
    static const char *const policies[] = {"quoka:budget=64,chunk=16,gate=1",
                                           "quest:budget=64,chunk=16,gate=1",
                                           "keydiff:budget=48,chunk=16,gate=1"};
    for (size_t i = 0; i < PI_LEN(policies); i++) {
        pith_engine_params p = params_of(LAX);
        p.read = policies[i];
        pith_engine *e = engine_of(&p);
        pith_seq *seq = seq_of(e);
        pith_read_stats r;
        read_to(seq, n_id);
        pith_seq_read_stats(seq, &r);
        assert_true(r.sparse > 0 && stats_of(seq).pages_shared > 4);
        assert_true(hash_of(seq) == hash_at(e, n_id));
        pith_seq_free(seq);
        pith_engine_free(e);
    }
    /* A budget that is never reached reads what full attention reads. */
    pith_engine_params p = params_of(LAX), whole = params_of(LAX);
    p.read = "quoka:budget=4096,chunk=16";
    pith_engine *a = engine_of(&p), *b = engine_of(&whole);
    assert_true(hash_at(a, n_id) == hash_at(b, n_id));
    pith_engine_free(a);
    pith_engine_free(b);
}

/* ---- evicting ---- */

/* Statistics of the model for TriAttention. */
static const char *make_stats(void)
{
    pith_engine_params p = params_of(NULL);
    pith_engine *e = engine_of(&p);
    pith_stats *stats;
    check(pith_calibrate(e, ids, n_id, NULL, &stats, &err), &err);
    check(pith_stats_save(stats, in_folder("model.stats"), &err), &err);
    pith_stats_free(stats);
    pith_engine_free(e);
    return in_folder("model.stats");
}

/* The steps of the text, and once more. */
static uint64_t read_twice(pith_seq *seq)
{
    read_to(seq, n_id);
    for (int32_t i = N_PROMPT; i < n_id; i++)
        check(pith_seq_eval(seq, &ids[i], 1, &err), &err);
    return hash_of(seq);
}

/* Within the memory that was planned, which nothing else has, and shared in between rounds. */
TEST(keep_policies_evict_within_the_planned_memory)
{
    static const char *const policies[] = {"triattention:budget=128,slack=160,stats=%s",
                                           "knorm:budget=128,slack=160",
                                           "h2o:budget=160,slack=130,recent=0.2,overwrite=off",
                                           "longflow:budget=128,slack=160,overwrite=off",
                                           "streaming:budget=100,slack=150,granularity=layer",
                                           "knorm:budget=60,slack=20,granularity=layer-head",
                                           "keydiff:budget=100,slack=100,layers=1/2/1",
                                           "adakv:budget=96,slack=64,overwrite=off"};
    const char *stats = make_stats();
    for (size_t i = 0; i < PI_LEN(policies); i++)
        for (int32_t k = 0; k < 3; k++) {
            if (TEST_STRIDE > 1 && (i + (size_t)k) % 3 != 0) /* each with one of them */
                continue;
            char keep[256];
            int64_t bytes, n_shared = 0;
            pith_keep_stats kept;
            pith_engine_params p = params_of(k == 0   ? LAX
                                             : k == 1 ? LAX ",runs=1"
                                                      : LAX ",mode=literal");
            snprintf(keep, sizeof(keep), policies[i], stats);
            p.keep = keep;
            check(pith_kv_estimate(model, &p, 2 * n_id, &bytes, &err), &err);
            p.kv_tokens = 0;
            p.kv_bytes = bytes;
            pith_engine *e = engine_of(&p);
            pith_seq *seq = seq_of(e);
            uint64_t hash = read_twice(seq);
            pith_seq_keep_stats(seq, &kept);
            /* Folded entries are gone, so that lanes may never come to a round. */
            if ((kept.rounds == 0 && k != 2) || kept.longest >= kept.budget + 160)
                fail_msg("%s: %lld rounds, %d entries", keep, (long long)kept.rounds, kept.longest);
            n_shared = stats_of(seq).pages_shared;
            assert_true(n_shared > 0 || k == 1 || i > 4);
            pith_seq_free(seq);
            seq = seq_of(e);
            assert_true(hash == read_twice(seq));
            pith_seq_free(seq);
            pith_engine_free(e);
        }
}

/* With a budget that is never reached, and memory for as many stretches as there are, a keep policy
   changes nothing. */
TEST(a_budget_that_is_never_reached_changes_nothing)
{
    pith_engine_params p = params_of(LAX ",runs=100"), whole = params_of(LAX);
    p.keep = "knorm:budget=4096";
    p.recall = "kv:ram=1MiB";
    pith_engine *a = engine_of(&p), *b = engine_of(&whole);
    assert_true(hash_at(a, n_id) == hash_at(b, n_id));
    pith_engine_free(a);
    pith_engine_free(b);
}

/* Recalled entries are guests, which share no pages. */
TEST(guests_are_not_shared)
{
    pith_engine_params p = params_of(LAX);
    pith_recall_stats r;
    p.keep = "knorm:budget=128,slack=128";
    p.recall = "kv:ram=4MiB,every=8";
    pith_engine *e = engine_of(&p);
    pith_seq *seq = seq_of(e);
    read_to(seq, n_id);
    check(pith_seq_eval(seq, ids, N_PROMPT, &err), &err);
    pith_seq_recall_stats(seq, &r);
    assert_true(r.recalls > 0 && r.stored > 0 && stats_of(seq).pages_shared > 0);
    pith_seq_free(seq);
    pith_engine_free(e);
}

static void begin(void)
{
    load_model();
    make_folder();
}

static void end(void)
{
    remove_folder();
    free_model();
}

TEST_GROUP(begin, end);
