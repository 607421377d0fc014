/*
 * test_plan.c - plans of KV memory. They hold their bytes by the estimate and in an engine, and
 * spend all that they can. They leave alone whatever params name, and refuse with figures.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <string.h>

#include "engine/plan_table.h"
#include "folder.h"
#include "model_maker.h"
#include "pith/plan.h"
#include "pith/policy.h"
#include "status.h"
#include "testing.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-mini.gguf"
#define N_TOKEN 1024 /* of a conversation */

static pith_model *model;

static void load(void)
{
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
}

static void unload(void)
{
    pith_model_free(model);
}

TEST_GROUP(load, unload);

/* Everything is the plan's to choose. */
static pith_engine_params open_params(void)
{
    pith_engine_params p;
    pith_engine_params_default(&p);
    p.n_thread = 1;
    p.type_k = p.type_v = NULL;
    return p;
}

static pith_plan plan_of(const pith_engine_params *p, double share, bool no_text)
{
    pith_plan plan;
    const pith_plan_goal goal = {.n_token = N_TOKEN, .share = share, .no_text = no_text};
    check(pith_plan_make(model, p, &goal, &plan, &err), &err);
    return plan;
}

static int64_t estimate(const pith_plan *plan, pith_engine_params p)
{
    int64_t bytes;
    pith_plan_apply(plan, &p);
    check(pith_memory_estimate(model, &p, N_TOKEN, &bytes, &err), &err);
    return bytes;
}

static const double shares[] = {0.6, 0.5, 0.4, 0.25, 0.125, 0.08};
#define N_SHARE (sizeof(shares) / sizeof(shares[0]))

TEST(a_plan_takes_the_bytes_that_it_says_and_no_more_than_it_may)
{
    const pith_engine_params p = open_params();
    for (size_t i = 0; i < 2 * N_SHARE; i++) {
        double share = shares[i / 2];
        pith_plan plan = plan_of(&p, share, i % 2 == 0);
        assert_true((double)plan.bytes <= share * (double)plan.full_bytes);
        assert_int_equal(plan.bytes, estimate(&plan, p));
        assert_true(i % 2 == 1 || strcmp(plan.recall, "text") != 0);
    }
}

TEST(threads_do_not_change_a_plan)
{
    static const int32_t some[] = {2, 8, 64};
    pith_engine_params p = open_params();
    for (size_t i = 0; i < 2 * N_SHARE; i++) {
        p.n_thread = 1;
        pith_plan one = plan_of(&p, shares[i / 2], i % 2 == 0);
        for (size_t t = 0; t < sizeof(some) / sizeof(some[0]); t++) {
            p.n_thread = some[t];
            pith_plan other = plan_of(&p, shares[i / 2], i % 2 == 0);
            assert_string_equal(other.line, one.line);
            assert_int_equal(other.n_entry, one.n_entry);
            assert_int_equal(other.bytes, one.bytes);
        }
    }
}

TEST(the_full_cache_is_that_of_f16_and_counts_its_pages)
{
    int64_t bytes;
    pith_engine_params p = open_params();
    pith_plan plan = plan_of(&p, 1.0, false);
    p.type_k = p.type_v = "f16";
    check(pith_kv_estimate(model, &p, N_TOKEN, &bytes, &err), &err);
    assert_int_equal(plan.full_bytes, bytes);
    assert_string_equal(plan.type_k, "f16");
    assert_string_equal(plan.keep, "");
    assert_int_equal(plan.n_entry, N_TOKEN);
}

TEST(bits_are_spent_before_entries_and_one_entry_more_is_too_many)
{
    const pith_engine_params p = open_params();
    char more[sizeof(((pith_plan *)0)->keep)], *number;
    static const char *const values[] = {"q8_0", "turbo4", "turbo3"};
    for (size_t i = 0; i < 3; i++) {
        pith_plan plan = plan_of(&p, shares[i], false);
        assert_string_equal(plan.type_k, "q8_0");
        assert_string_equal(plan.type_v, values[i]);
        assert_string_equal(plan.keep, "");
    }
    pith_plan plan = plan_of(&p, 0.25, true);
    assert_string_equal(plan.type_v, "turbo3");
    assert_true(plan.n_entry < N_TOKEN);
    strcpy(more, plan.keep);
    number = strstr(more, "budget=");
    assert_non_null(number);
    assert_int_equal(atoi(number + strlen("budget=")), plan.n_entry);
    /* Pages are whole: a page more does not fit. */
    sprintf(number, "budget=%d,slack=%d", plan.n_entry + 64, atoi(strstr(plan.keep, "slack=") + 6));
    strcpy(plan.keep, more);
    assert_true((double)estimate(&plan, p) > 0.25 * (double)plan.full_bytes);
}

TEST(an_engine_of_the_plan_reads_the_whole_conversation_within_it)
{
    static int32_t tokens[N_TOKEN];
    uint64_t seed = 7;
    pith_memory_stats m;
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = 300 + (int32_t)rng_below(&seed, 4000);
    const size_t step = TEST_STRIDE > 1 ? 2 : 1;
    for (size_t i = 2; i < N_SHARE; i += step) {
        pith_engine *e = NULL;
        pith_seq *seq = NULL;
        pith_engine_params p = open_params();
        pith_plan plan = plan_of(&p, shares[i], true);
        pith_plan_apply(&plan, &p);
        p.memory_bytes = plan.bytes;
        check(pith_engine_create(model, &p, &e, &err), &err);
        check(pith_seq_create(e, &seq, &err), &err);
        check(pith_seq_eval(seq, tokens, N_TOKEN, &err), &err);
        pith_engine_memory_stats(e, &m);
        assert_true(m.total_bytes <= plan.bytes);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

TEST(what_params_name_stands)
{
    pith_engine_params p = open_params();
    p.type_k = "f16";
    p.type_v = "f16";
    pith_plan plan = plan_of(&p, 0.5, true);
    assert_string_equal(plan.type_k, "");
    assert_true(plan.n_entry < N_TOKEN / 2 && plan.on == NULL);
    assert_non_null(strstr(plan.line, "f16/f16"));
    p.keep = "streaming:sinks=8";
    plan = plan_of(&p, 0.25, true);
    assert_memory_equal(plan.keep, "streaming:sinks=8,budget=", 25);
    assert_int_equal(plan.bytes, estimate(&plan, p));
    p.keep = "streaming:budget=100,slack=20";
    plan = plan_of(&p, 0.25, true);
    assert_string_equal(plan.keep, p.keep);
    p.recall = "kv:ram=1MiB";
    plan = plan_of(&p, 0.9, true);
    assert_string_equal(plan.recall, "");
    assert_int_equal(plan.bytes, estimate(&plan, p));
}

TEST(a_budget_of_the_params_that_does_not_fit_is_refused)
{
    pith_plan plan;
    pith_engine_params p = open_params();
    const pith_plan_goal goal = {.n_token = N_TOKEN, .share = 0.2};
    p.keep = "streaming:budget=900";
    p.type_k = p.type_v = "f16";
    expect(pith_plan_make(model, &p, &goal, &plan, &err), &err, PITH_INVALID,
           "the least that a plan takes");
    p.keep = "none";
    expect(pith_plan_make(model, &p, &goal, &plan, &err), &err, PITH_INVALID,
           "the least that a plan takes");
}

TEST(goals_out_of_range_are_refused)
{
    static const pith_plan_goal bad[] = {
        {.share = 0.0},
        {.share = -0.1},
        {.share = 1.01},
        {.share = NAN},
        {.share = 0.5, .bytes = 1000},
        {.share = 0.5, .n_token = -1},
    };
    pith_plan plan;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        expect(pith_plan_make(model, NULL, &bad[i], &plan, &err), &err, PITH_INVALID, "");
}

TEST(too_few_bytes_are_refused_with_the_least_that_will_do)
{
    pith_plan plan;
    pith_plan_goal goal = {.n_token = N_TOKEN, .bytes = 1000};
    expect(pith_plan_make(model, NULL, &goal, &plan, &err), &err, PITH_INVALID, "takes is ");
    const char *least = strstr(err.message, "takes is ");
    assert_non_null(least);
    goal.bytes = atoll(least + strlen("takes is "));
    check(pith_plan_make(model, NULL, &goal, &plan, &err), &err);
    goal.bytes--;
    expect(pith_plan_make(model, NULL, &goal, &plan, &err), &err, PITH_INVALID, "takes is ");
}

TEST(fewer_bytes_never_keep_more)
{
    const pith_engine_params p = open_params();
    int32_t before = N_TOKEN;
    for (int percent = 100; percent >= 6; percent -= 2) {
        pith_plan plan = plan_of(&p, percent / 100.0, true);
        /* Between policies it may rise: what recall keeps aside is bytes, too. */
        if (strncmp(plan.keep, "streaming", 9) != 0 && plan.recall[0] == '\0')
            assert_true(plan.n_entry <= before);
        before = plan.n_entry > before ? before : plan.n_entry;
    }
}

/* Lanes with a window hold it and a pass, and no policy evicts them. */
TEST(models_with_windows_take_shorter_passes_where_bytes_are_few)
{
    pith_model *whole = model;
    pith_engine_params p = open_params();
    make_folder();
    check(model_make_of("arch=gemma3 layers=6 width=64 heads=4 kv_heads=2 head_dim=64 ff=96 "
                        "window=128 tied=1 vocab_file=" MODEL,
                        in_folder("windows.gguf"), &err),
          &err);
    check(pith_model_load(in_folder("windows.gguf"), NULL, &model, &err), &err);
    p.chunk = 0;
    pith_plan all = plan_of(&p, 1.0, true), plan = plan_of(&p, 0.26, true);
    assert_int_equal(all.chunk, 512);
    assert_true(plan.chunk > 0 && plan.chunk < 512);
    assert_int_equal(plan.bytes, estimate(&plan, p));
    assert_true((double)plan.bytes <= 0.26 * (double)all.full_bytes);

    pith_engine_params named = open_params();
    const pith_plan_goal goal = {.n_token = N_TOKEN, .share = 0.26, .no_text = true};
    expect(pith_plan_make(model, &named, &goal, &plan, &err), &err, PITH_INVALID, "takes is ");
    named.chunk = 32;
    plan = plan_of(&named, 0.26, true);
    assert_int_equal(plan.chunk, 0);
    pith_model_free(model);
    remove_folder();

    model = whole; /* without windows a pass is as long as ever */
    plan = plan_of(&p, 0.26, true);
    assert_int_equal(plan.chunk, 512);
}

/* No doubling of a budget passes the largest number. */
TEST(the_longest_context_is_planned)
{
    static const double few[] = {1.0, 0.45, 0.125, 0.0625};
    pith_plan plan;
    for (size_t i = 0; i < sizeof(few) / sizeof(few[0]); i++) {
        const pith_plan_goal goal = {.n_token = INT32_MAX, .share = few[i]};
        check(pith_plan_make(model, NULL, &goal, &plan, &err), &err);
        assert_true(few[i] == 1.0 || (double)plan.bytes <= few[i] * (double)plan.full_bytes);
    }
    /* No budget goes with a policy that there is not. */
    const pith_plan_goal goal = {.n_token = INT32_MAX, .share = 0.125};
    pith_engine_params p = open_params();
    p.keep = "streaming:recent=2147483647";
    assert_int_equal(pith_plan_make(model, &p, &goal, &plan, &err), PITH_INVALID);
}

TEST(tokens_can_be_drafted_under_a_plan_for_drafts)
{
    pith_plan plan;
    for (size_t i = 0; i < N_SHARE; i++) {
        pith_plan_goal goal = {.n_token = N_TOKEN, .share = shares[i], .drafts = true};
        pith_engine_params p = open_params();
        check(pith_plan_make(model, &p, &goal, &plan, &err), &err);
        assert_true((double)plan.bytes <= shares[i] * (double)plan.full_bytes);
        pith_plan_apply(&plan, &p);
        check(pith_policies_fit(&p, PITH_USE_DRAFT, &err), &err);
        assert_null(p.recall);
        /* A policy that is named stands, and is refused. */
        p = open_params();
        p.keep = "h2o";
        expect(pith_plan_make(model, &p, &goal, &plan, &err), &err, PITH_INVALID,
               "no way back from a draft");
    }
}

TEST(the_table_is_whole)
{
    bool same;
    static const struct {
        const char *architecture;
        double n_param;
        const char *name;
        bool same;
    } cases[] = {
        {"qwen2", 0.49e9, "Qwen2.5-Coder-0.5B", true}, {"qwen2", 1.5e9, "Qwen2.5-Coder-1.5B", true},
        {"qwen2", 7e9, "Qwen2.5-Coder-1.5B", false},   {"llama", 0.135e9, "SmolLM2-135M", true},
        {"gemma3", 0.27e9, "SmolLM2-135M", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct plan_class *c = pi_plan_class(cases[i].architecture, cases[i].n_param, &same);
        assert_true(same == cases[i].same);
        for (size_t j = 1; j < c->n_point; j++)
            if (c->point[j].way == c->point[j - 1].way)
                assert_true(c->point[j].bytes < c->point[j - 1].bytes);
        int32_t n = 0;
        for (const struct plan_choice *o = c->order; o->way != PLAN_N_WAY; o++, n++) {
            const struct plan_way *way = &pi_plan_ways[o->way];
            check(pith_policy_check(PITH_KEEP, way->keep, &err), &err);
            check(pith_policy_check(PITH_RECALL, way->recall, &err), &err);
            if (way->type_k != NULL)
                check(pith_store_check(way->type_k, way->type_v, &err), &err);
        }
        assert_true(n >= 8);
    }
}

TEST(a_process_has_its_weights_and_the_buffers_of_a_pass)
{
    int64_t small, large;
    pith_model_info info;
    pith_engine_params p;
    pith_engine_params_default(&p);
    pith_model_get_info(model, &info);
    p.chunk = 64;
    check(pith_process_bytes(model, &p, &small, &err), &err);
    p.chunk = 2048;
    check(pith_process_bytes(model, &p, &large, &err), &err);
    assert_true(small > info.weight_bytes);
    assert_true(large > small + 1984 * (int64_t)info.n_embd * (int64_t)sizeof(float));
    assert_true(pith_model_fingerprint(model) != 0);
    int64_t one, many, drafting;
    int64_t row = (int64_t)info.n_vocab * (int64_t)sizeof(float);
    check(pith_answers_bytes(model, NULL, 1, 0, &one, &err), &err);
    check(pith_answers_bytes(model, NULL, 33, 0, &many, &err), &err);
    check(pith_answers_bytes(model, NULL, 1, 8, &drafting, &err), &err);
    assert_true(many - one >= 64 * row && many - one < 64 * row + 33 * 65536);
    assert_int_equal(drafting - one, 15 * row);
    assert_int_equal(pith_answers_bytes(model, NULL, -1, 0, &one, &err), PITH_INVALID);
    pith_model *head = NULL;
    pith_model_params params;
    pith_model_params_default(&params);
    params.vocab_only = true;
    check(pith_model_load(MODEL, &params, &head, &err), &err);
    check(pith_answers_bytes(head, NULL, 1, 8, &one, &err), &err);
    assert_int_equal(one, drafting);
    pith_model_free(head);
    /* Without a model it is what there is now: two models do not count that twice. */
    int64_t now;
    check(pith_process_bytes(NULL, NULL, &now, &err), &err);
    assert_true(now > info.weight_bytes && now < small);
}
