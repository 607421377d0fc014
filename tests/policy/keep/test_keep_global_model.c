/*
 * The rules that reach across lanes, on a model: one budget for all, shares of lanes by
 * calibration, and rounds that wait for a prompt. Bits are the same for any chunk, threads and
 * other sequences, after forks, in files and from a scheduler. They equal full attention where the
 * budget holds everything. The scheduler never holds more pages than it announced. Statistics are
 * made up.
 */
#include <unistd.h>

#include "testing.h"

#include "policy/keep/stats/stats.h"
#include "scheduler_rig.h"

#define N_TOKEN 350
#define WIDE 3 /* the lane that the statistics think most of */

static const char *stats_path(void)
{
    static char path[64];
    snprintf(path, sizeof(path), "/tmp/pith-global-stats-%d", (int)getpid());
    return path;
}

/* Lane i needs i times what lane 0 does, but WIDE most of all, and lane 1 nothing. */
static struct stats_importance *make_importance(void)
{
    static const char *const mapped[] = {"knorm", "triattention", "snapkv", "h2o", "adakv"};
    struct stats_importance of = {.n_layer = info.n_layer,
                                  .n_lane = n_lane,
                                  .n_feature = 32 + 2,
                                  .n_quantile = 8,
                                  .n_map = PI_LEN(mapped)};
    struct stats_importance *m = NULL;
    check(stats_importance_create(&of, &m, &err), &err);
    for (int32_t i = 0; i < n_lane; i++) {
        float mean = i == WIDE ? 6.0f : i == 1 ? -9.0f : 0.2f * (float)i;
        for (int32_t q = 0; q < of.n_quantile; q++)
            m->quantile[i * of.n_quantile + q] = mean + (float)(q - 4) * 0.3f;
        for (int32_t j = 0; j < of.n_map; j++) {
            m->map[j].slope[i] = i == 0 ? 0.0f : 0.02f;
            m->map[j].intercept[i] = mean;
        }
        m->mean[i] = mean;
        m->deviation[i] = 1.0f;
    }
    for (int32_t j = 0; j < of.n_map; j++) {
        m->map[j].policy = pi_mem_alloc(PI_MEM_OTHER, strlen(mapped[j]) + 1);
        assert_non_null(m->map[j].policy);
        strcpy(m->map[j].policy, mapped[j]);
    }
    return m;
}

static void setup(void)
{
    pith_engine *e;
    pith_stats *s = NULL;
    model_load(91);
    e = engine_make(NULL, 128, 1, 0);
    check(pith_calibrate(e, tokens, 200, NULL, &s, &err), &err);
    s->importance = make_importance();
    check(pith_stats_save(s, stats_path(), &err), &err);
    pith_stats_free(s);
    pith_engine_free(e);
}

static void teardown(void)
{
    unlink(stats_path());
    model_free();
}

TEST_GROUP(setup, teardown);

/* Options with the file for "@". */
static const char *with_stats(const char *options)
{
    static char text[4][320];
    static int32_t next;
    char *out = text[next++ % 4];
    const char *at = strchr(options, '@');
    snprintf(out, sizeof(text[0]), "%.*s%s%s", at != NULL ? (int)(at - options) : 300, options,
             at != NULL ? stats_path() : "", at != NULL ? at + 1 : "");
    return out;
}

static int32_t lane_len(const pith_seq *seq, int32_t i)
{
    pith_lane_info lane;
    assert_int_equal(pith_seq_lane(seq, i / info.n_head_kv, i % info.n_head_kv, &lane, NULL, 0),
                     PITH_OK);
    return lane.n_entry;
}

/* The positions of all lanes, as a number. */
static uint64_t positions_of(const pith_seq *seq)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < n_lane; i++) {
        int32_t pos[TOKENS_MAX];
        pith_lane_info lane;
        assert_int_equal(
            pith_seq_lane(seq, i / info.n_head_kv, i % info.n_head_kv, &lane, pos, TOKENS_MAX),
            PITH_OK);
        for (int32_t j = 0; j < lane.n_entry; j++)
            sum = sum * 1000003u + (uint64_t)(pos[j] + 1);
        sum = sum * 31 + (uint64_t)lane.n_entry;
    }
    return sum;
}

static const char *const forms[] = {
    "random:granularity=global,budget=64,slack=24",
    "knorm:granularity=global,budget=30%,slack=24,window=8,sinks=2,stats=@",
    "knorm:granularity=global,budget=20KiB,slack=8,stats=@",
    "snapkv:granularity=global,budget=64,slack=24,stats=@",
    "h2o:granularity=global,overwrite=off,budget=64,slack=8,stats=@",
    "triattention:global,window=16,budget=64,slack=24,stats=@",
    "knorm:granularity=global,budget=25%,segments=3,rounds=prompt-end,stats=@",
    "adakv:granularity=global,queries=8,window=8,budget=64,slack=24,stats=@",
    "knorm:split=calibrated,budget=64,slack=24,stats=@",
    "longflow:split=calibrated:10%,granularity=layer-head,budget=60,stats=@",
    "tova:rounds=prompt-end,budget=64",
    "streaming:rounds=prompt-end,budget=64,positions=cache",
    "triattention:v3,rounds=prompt-end,prefix=16,window=16,budget=40%",
};

/* A prompt of 300, then 20 more together, then tokens one by one; alone or beside another. */
static pith_seq *read_all(pith_engine *e, bool company)
{
    pith_seq *seq = seq_make(e), *other = seq_make(e);
    pith_batch_item items[2] = {{.seq = seq, .tokens = tokens, .n_token = 300},
                                {.seq = other, .tokens = tokens + 100, .n_token = 170}};
    check(pith_batch_eval(e, items, company ? 2 : 1, NULL, NULL, &err), &err);
    eval(seq, 300, 320);
    for (int32_t t = 320; t < N_TOKEN; t++)
        eval(seq, t, t + 1);
    pith_seq_free(other);
    return seq;
}

TEST(chunks_threads_and_company_change_no_bit)
{
    static const int32_t chunk[] = {512, 7, 1, 64};
    for (size_t f = 0; f < PI_LEN(forms); f++) {
        uint64_t hash = 0, positions = 0;
        for (int32_t way = 0; way < 4; way++) {
            pith_engine *e =
                engine_make(with_stats(forms[f]), chunk[way], 1 + way % 3, way == 3 ? 1200 : 512);
            pith_seq *seq = read_all(e, way == 3);
            if (way == 0) {
                hash = hash_of(seq);
                positions = positions_of(seq);
                assert_true(stats_of(seq).evicted > 0);
            }
            if (hash_of(seq) != hash || positions_of(seq) != positions)
                fail_msg("%s: other bits in way %d", forms[f], way);
            pith_seq_free(seq);
            pith_engine_free(e);
        }
    }
}

TEST(a_budget_holds_everything)
{
    static const char *const wide[] = {
        "random:granularity=global,budget=512",
        "knorm:granularity=global,budget=100%,stats=@",
        "knorm:split=calibrated,budget=100%,stats=@",
        "knorm:rounds=prompt-end,budget=512",
        "triattention:global,budget=512,stats=@",
    };
    pith_engine *full = engine_make(NULL, 64, 1, 512);
    pith_seq *want = read_all(full, false);
    for (size_t i = 0; i < PI_LEN(wide); i++) {
        pith_engine *e = engine_make(with_stats(wide[i]), 64, 2, 512);
        pith_seq *seq = read_all(e, false);
        if (hash_of(seq) != hash_of(want) || stats_of(seq).evicted != 0)
            fail_msg("%s: not full attention's bits", wide[i]);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
    pith_seq_free(want);
    pith_engine_free(full);
}

/* The map decides how much each lane holds, and protected entries stay everywhere. */
TEST(a_map_decides_which_lanes_hold_more)
{
    pith_engine *e = engine_make(
        with_stats("knorm:granularity=global,budget=80,slack=16,window=8,sinks=2,stats=@"), 64, 2,
        512);
    pith_seq *seq = seq_make(e);
    eval(seq, 0, 300);
    check(pith_seq_keep_round(seq, &err), &err);
    int32_t sum = 0;
    for (int32_t i = 0; i < n_lane; i++)
        sum += lane_len(seq, i);
    assert_int_equal(sum, 80 * n_lane);
    assert_int_equal(lane_len(seq, WIDE), 300);
    assert_int_equal(lane_len(seq, 1), 10);
    pith_seq_free(seq);
    pith_engine_free(e);
    /* A file without a map of the policy's. */
    pith_engine_params params;
    pith_engine_params_default(&params);
    params.keep = with_stats("vnorm:granularity=global,stats=@");
    expect(pith_engine_create(model, &params, &e, &err), &err, PITH_INVALID,
           "have no map of the scores of vnorm: `pith calibrate importance --keep vnorm`");
}

/* Every lane has its share of a number, and all shares are all of it. */
TEST(calibrated_shares_make_up_the_budget)
{
    struct kv_geometry g = {.n_layer = info.n_layer,
                            .n_head = info.n_head_kv,
                            .dim_k = 32,
                            .dim_v = 32,
                            .page_len = 16,
                            .type_k = KV_TYPE_F16,
                            .type_v = KV_TYPE_F16};
    for (int32_t n = 20; n < 400; n += 13) {
        struct keep_config c;
        char text[400];
        snprintf(text, sizeof(text),
                 "knorm:split=calibrated:%d%%,sinks=2,window=3,budget=%d,stats=%s",
                 n % 2 == 0 ? 10 : 40, n, stats_path());
        check(keep_config_parse(text, &c, &err), &err);
        check(keep_config_fit(&c, &g, &err), &err);
        int32_t sum = 0, least = pi_min(n, 2 + 3 + 16);
        for (int32_t i = 0; i < n_lane; i++) {
            int32_t b = keep_lane_budget_at(&c, i / g.n_head, i % g.n_head,
                                            (struct keep_point){5000, 0, 0.0, 0});
            assert_true(b >= least);
            assert_true(i == WIDE ||
                        b <= keep_lane_budget_at(&c, WIDE / g.n_head, WIDE % g.n_head,
                                                 (struct keep_point){5000, 0, 0.0, 0}));
            sum += b;
        }
        assert_int_equal(sum, n * n_lane);
    }
    /* A share: at that of the budget itself, so that no lane has more than all. */
    struct keep_config c;
    check(keep_config_parse(with_stats("knorm:split=calibrated,budget=40%,stats=@"), &c, &err),
          &err);
    check(keep_config_fit(&c, &g, &err), &err);
    int64_t sum = 0;
    for (int32_t i = 0; i < n_lane; i++)
        sum += keep_lane_budget_at(&c, i / g.n_head, i % g.n_head,
                                   (struct keep_point){10000, 0, 0.0, 0});
    assert_in_range(sum, 4000 * n_lane - n_lane, 4000 * n_lane + n_lane);
    assert_true(keep_lane_budget_at(&c, WIDE / g.n_head, WIDE % g.n_head,
                                    (struct keep_point){10000, 0, 0.0, 0}) > 9900);
    expect(keep_config_parse(with_stats("knorm:split=calibrate,stats=@"), &c, &err), &err,
           PITH_INVALID, "is neither even, calibrated nor calibrated:10%");
}

/* No round until the last token is in, and then one; the memory of the whole prompt is asked for
   first. */
TEST(a_round_waits_for_the_prompts_end)
{
    for (int32_t global = 0; global < 2; global++) {
        const char *keep = global ? "random:rounds=prompt-end,budget=64,slack=8,granularity=global"
                                  : "random:rounds=prompt-end,budget=64,slack=8,batch=4";
        pith_engine *e = engine_make(keep, 32, 2, 320);
        pith_seq *seq = seq_make(e), *other = seq_make(e);
        pith_kv_stats kv;
        eval(seq, 0, 300);
        assert_int_equal(stats_of(seq).rounds, 1);
        assert_int_equal(stats_of(seq).first_round_at, 300);
        assert_int_equal(stats_of(seq).live, 64 * n_lane);
        pith_engine_kv_stats(e, &kv);
        assert_int_equal(kv.peak_bytes, 19 * n_lane * kv.page_bytes);
        for (int32_t t = 300; t < N_TOKEN; t++) {
            eval(seq, t, t + 1);
            assert_true(stats_of(seq).live <= (64 + 8 + 4) * n_lane);
        }
        assert_true(stats_of(seq).rounds > 3);
        /* Beside it there is no room for another prompt as long, and nothing is changed. */
        int64_t used = used_pages(e);
        expect(pith_seq_eval(other, tokens, 300, &err), &err, PITH_KV_FULL, "");
        assert_int_equal(used_pages(e), used);
        eval(other, 0, 150);
        assert_int_equal(stats_of(other).live, 64 * n_lane);
        pith_seq_free(other);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* The estimate is for the whole prompt. The entries at its end equal the result of one round over
   the same entries. */
TEST(the_prompts_end_is_one_round)
{
    pith_engine *e = engine_make("keydiff:rounds=prompt-end,budget=25%", 64, 2, 0);
    pith_engine *late = engine_make("keydiff:budget=25%,slack=1000", 64, 2, 0);
    pith_seq *a = seq_make(e), *b = seq_make(late);
    eval(a, 0, 300);
    eval(b, 0, 300);
    check(pith_seq_keep_round(b, &err), &err);
    assert_true(positions_of(a) == positions_of(b));
    int64_t bytes;
    pith_engine_params params;
    pith_engine_params_default(&params);
    check(pith_kv_estimate(model, &params, 300, &bytes, &err), &err);
    params.keep = "keydiff:rounds=prompt-end,budget=25%";
    int64_t of_keep;
    check(pith_kv_estimate(model, &params, 300, &of_keep, &err), &err);
    assert_int_equal(of_keep, bytes);
    pith_seq_free(a);
    pith_seq_free(b);
    pith_engine_free(late);
    pith_engine_free(e);
}

TEST(forks_and_files_go_on_alike)
{
    char path[64];
    snprintf(path, sizeof(path), "/tmp/pith-global-%d", (int)getpid());
    for (size_t f = 0; f < PI_LEN(forms); f++) {
        pith_engine *e = engine_make(with_stats(forms[f]), 64, 2, 1600);
        pith_seq *seq = seq_make(e), *fork = NULL, *loaded = NULL;
        eval(seq, 0, 250);
        check(pith_seq_fork(seq, &fork, &err), &err);
        check(pith_seq_save(seq, path, &err), &err);
        check(pith_seq_load(e, path, &loaded, &err), &err);
        pith_seq *all[] = {seq, fork, loaded};
        bool marks = strncmp(forms[f], "h2o", 3) == 0; /* files do not have them */
        for (size_t i = 0; i < PI_LEN(all); i++) {
            eval(all[i], 250, 330);
            eval(all[i], 330, 331);
            if (!(marks && i == 2) && hash_of(all[i]) != hash_of(seq))
                fail_msg("%s: copy %d goes on differently", forms[f], (int)i);
        }
        pith_seq_free(loaded);
        pith_seq_free(fork);
        pith_seq_free(seq);
        /* One that was saved without a policy is brought to the budget. */
        pith_engine *full = engine_make(NULL, 64, 2, 512);
        seq = seq_make(full);
        eval(seq, 0, 250);
        check(pith_seq_save(seq, path, &err), &err);
        check(pith_seq_load(e, path, &loaded, &err), &err);
        eval(loaded, 250, 260);
        assert_true(stats_of(loaded).evicted > 0);
        pith_seq_free(loaded);
        pith_seq_free(seq);
        pith_engine_free(full);
        pith_engine_free(e);
    }
    unlink(path);
}

/* Several requests in a memory that holds few. No request is put back, the pool is never too small,
   and each answer equals that of its request alone. */
TEST(several_requests_get_what_each_gets_alone)
{
    static const char *const served[] = {
        "random:granularity=global,budget=48,slack=16",
        "knorm:granularity=global,budget=40%,slack=16,stats=@",
        "random:rounds=prompt-end,budget=48,slack=16",
        "knorm:granularity=global,rounds=prompt-end,budget=30%,slack=16,stats=@",
        "knorm:split=calibrated,budget=48,slack=16,stats=@",
    };
    for (size_t f = 0; f < PI_LEN(served); f++) {
        static struct ask ask[5];
        pith_engine *e = engine_make(with_stats(served[f]), 64, 2, 420);
        pith_scheduler_params params;
        pith_scheduler_params_default(&params);
        pith_scheduler *s = scheduler_make(e, &params);
        for (int32_t i = 0; i < 5; i++) {
            ask_init(&ask[i], 20 * i, 90 + 40 * i, 30, 0.0f);
            submit(s, &ask[i]);
        }
        run_all(s);
        pith_scheduler_stats t = stats_of_scheduler(s);
        assert_int_equal(t.preempted_swap + t.preempted_recompute, 0);
        used_pages(e); /* the peak is within the pool */
        pith_engine *alone = engine_make(with_stats(served[f]), 64, 1, 512);
        for (int32_t i = 0; i < 5; i++) {
            struct heard heard;
            generate_alone(alone, &ask[i], 0, &heard);
            expect_same(&ask[i].answer[0], &heard, served[f]);
        }
        pith_engine_free(alone);
        free_both(s, e);
    }
}
