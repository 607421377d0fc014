/*
 * A budget of a sequence's own (pith_seq_set_budget, pith_request.budget). Beside others in one
 * memory, the sequence gets the tokens and bits of an engine with this budget for all. A sequence
 * without a budget gets the tokens of an engine without a policy. It is refused where the memory is
 * too small, and entries kept under another budget are not reused.
 */
#include "testing.h"

#include "scheduler_rig.h"

#define N_PROMPT 150
#define N_PREDICT 30

static void setup(void)
{
    model_load(31);
}

TEST_GROUP(setup, model_free);

static pith_engine *engine_of(const char *keep, const char *recall, const char *share,
                              int32_t kv_tokens)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    pith_engine_params_default(&params);
    params.chunk = 64;
    params.n_thread = 1;
    params.kv_tokens = kv_tokens;
    params.page_len = PAGE_LEN;
    params.keep = keep;
    params.recall = recall;
    params.share = share;
    if (pith_engine_create(model, &params, &e, &err) != PITH_OK)
        fail_msg("%s|%s: %s", keep != NULL ? keep : "", recall != NULL ? recall : "", err.message);
    return e;
}

/* The answer of an engine with the budget for all, to the prompt from a place on. */
static void alone_with(const char *keep, const char *recall, int32_t from, struct heard *out)
{
    struct ask ask;
    pith_engine *e = engine_of(keep, recall, NULL, 900);
    ask_init(&ask, from, N_PROMPT, N_PREDICT, 0.8f);
    generate_alone(e, &ask, 0, out);
    pith_engine_free(e);
}

/* ---- the same as an engine's ---- */

struct setting {
    const char *options; /* of the policy, with %s for the budget */
    const char *recall;
    const char *budget; /* of the engine */
    const char *own;    /* of the second request */
};

static void keep_text(char *out, size_t cap, const struct setting *c, const char *budget)
{
    const char *at = strchr(c->options, '*');
    snprintf(out, cap, "%.*s%s%s", (int)(at - c->options), c->options, budget, at + 1);
}

static void compare(const struct setting *c)
{
    static struct ask asks[4];
    static struct heard alone[4];
    char whole[128], own[128], what[400];
    const char *const budgets[] = {NULL, c->own, "none", NULL};
    keep_text(whole, sizeof(whole), c, c->budget);
    keep_text(own, sizeof(own), c, c->own);
    alone_with(whole, c->recall, 0, &alone[0]);
    alone_with(own, c->recall, 40, &alone[1]);
    alone_with(NULL, NULL, 80, &alone[2]);
    alone_with(whole, c->recall, 120, &alone[3]);
    pith_engine *e = engine_of(whole, c->recall, NULL, 900);
    pith_scheduler *s = scheduler_make(e, NULL);
    for (int32_t i = 0; i < 4; i++) {
        ask_init(&asks[i], 40 * i, N_PROMPT, N_PREDICT, 0.8f);
        asks[i].request.budget = budgets[i];
        submit(s, &asks[i]);
    }
    run_all(s);
    for (int32_t i = 0; i < 4; i++) {
        snprintf(what, sizeof(what), "%s|%s, own %s", whole, c->recall != NULL ? c->recall : "",
                 budgets[i] != NULL ? budgets[i] : "nothing");
        expect_same(&asks[i].answer[0], &alone[i], what);
        const pith_answer_result *r = &asks[i].answer[0].result;
        int64_t n = N_PROMPT + N_PREDICT - 1;
        assert_true(r->full_bytes > 0);
        if (i == 2) {
            assert_int_equal(r->keep.live, n * n_lane);
            assert_int_equal(r->keep.evicted, 0);
            assert_int_equal(r->held_bytes, r->full_bytes);
        } else {
            assert_true(r->keep.evicted > 0);
            assert_true(r->held_bytes < r->full_bytes);
        }
    }
    free_both(s, e);
}

TEST(a_budget_of_its_own_gives_the_bits_of_such_an_engine)
{
    static const struct setting settings[] = {
        {"streaming:budget=*,slack=16", NULL, "96", "64"},
        {"streaming:budget=*,slack=16", "kv", "96", "64"},
        {"knorm:budget=*,slack=8,granularity=layer-head", NULL, "40%", "20%"},
        {"knorm:budget=*,slack=8,granularity=layer-head", "kv", "20%", "50%"},
        {"h2o:budget=*,slack=16", NULL, "64", "96"},
        {"snapkv:budget=*,rounds=prompt-end", NULL, "64", "80"},
        {"adakv:budget=*,slack=16", NULL, "80", "60"},
        {"pyramidkv:budget=*,slack=16", NULL, "96", "72"},
        {"longflow:budget=*", NULL, "64", "96"},
        {"tova:budget=*,overwrite=on,granularity=layer-head", NULL, "64", "48"},
        {"keydiff:budget=*,slack=16,pin-prompt=off", NULL, "50%", "30%"},
    };
    for (size_t i = 0; i < PI_LEN(settings); i++)
        compare(&settings[i]);
}

/* ---- memory ---- */

/* The sequence's own budget decides the reserved memory and refusals, in the one memory. */
TEST(the_own_budget_is_what_memory_is_set_aside_for)
{
    struct ask ask;
    pith_engine *e = engine_of("streaming:budget=48,slack=16", NULL, NULL, 128);
    pith_scheduler *s = scheduler_make(e, NULL);
    ask_init(&ask, 0, N_PROMPT, N_PREDICT, 0.0f);
    ask.request.budget = "none";
    assert_int_equal(pith_scheduler_submit(s, &ask.request, &ask.id, &err), PITH_KV_FULL);
    assert_non_null(strstr(err.message, "bytes of KV memory"));
    ask.request.budget = "160";
    assert_int_equal(pith_scheduler_submit(s, &ask.request, &ask.id, &err), PITH_KV_FULL);
    ask.request.budget = "64";
    submit(s, &ask);
    run_all(s);
    assert_int_equal(ask.answer[0].result.status, PITH_OK);
    free_both(s, e);
}

static void submit_in(pith_scheduler *s, struct ask *ask, const char *budget)
{
    ask_init(ask, 0, N_PROMPT, N_PREDICT, 0.0f);
    ask->request.slot = 0;
    ask->request.budget = budget;
    submit(s, ask);
    run_all(s);
}

/* A slot that was kept under one budget is no beginning under another, and none for none. */
TEST(a_slot_kept_under_another_budget_is_no_beginning)
{
    static const char *const budgets[] = {NULL, "none", "none", "64", NULL};
    static struct ask asks[PI_LEN(budgets)];
    pith_engine *e = engine_of("streaming:budget=96,slack=16", NULL, NULL, 900);
    pith_scheduler_params params;
    pith_scheduler_params_default(&params);
    params.no_prefix = true; /* only in slots */
    pith_scheduler *s = scheduler_make(e, &params);
    for (size_t i = 0; i < PI_LEN(budgets); i++) {
        submit_in(s, &asks[i], budgets[i]);
        int32_t n_cached = asks[i].answer[0].result.n_cached;
        assert_int_equal(n_cached > 0, i == 2);
    }
    assert_int_equal(asks[0].answer[0].hash[N_PREDICT - 1], asks[4].answer[0].hash[N_PREDICT - 1]);
    assert_int_equal(asks[1].answer[0].hash[N_PREDICT - 1], asks[2].answer[0].hash[N_PREDICT - 1]);
    free_both(s, e);
}

/* ---- refusals ---- */

static void refuse(const char *keep, const char *share, const char *budget, pith_status status,
                   const char *sentence)
{
    pith_engine *e = engine_of(keep, NULL, share, 400);
    pith_seq *seq = seq_make(e);
    struct ask ask;
    assert_int_equal(pith_seq_set_budget(seq, budget, &err), status);
    if (strstr(err.message, sentence) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", sentence, err.message);
    pith_scheduler *s = scheduler_make(e, NULL);
    ask_init(&ask, 0, 8, 4, 0.0f);
    ask.request.budget = budget;
    assert_int_equal(pith_scheduler_submit(s, &ask.request, &ask.id, &err), status);
    pith_scheduler_free(s);
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(refuses_budgets_that_do_not_fit)
{
    const char *tokens_keep = "streaming:budget=96,sinks=4,window=16";
    refuse(tokens_keep, NULL, "25%", PITH_INVALID,
           "25% is not a number of entries, as the engine's is");
    refuse(tokens_keep, NULL, "1MiB", PITH_INVALID, "1MiB is not a number of entries");
    refuse(tokens_keep, NULL, "few", PITH_INVALID, "\"few\" is no number of tokens");
    refuse(tokens_keep, NULL, "64,slack=3", PITH_INVALID, "slack");
    refuse(tokens_keep, NULL, "", PITH_INVALID, "budget");
    refuse(tokens_keep, NULL, "8", PITH_INVALID, "a budget of 8 entries is smaller than the 20");
    refuse("knorm:budget=25%", NULL, "64", PITH_INVALID, "64 is not a share of the tokens");
    refuse("knorm:budget=25%", NULL, "101%", PITH_INVALID, "101%");
    refuse("knorm:budget=1MiB", NULL, "50KiB", PITH_INVALID, "a size");
    refuse(NULL, NULL, "25%", PITH_INVALID, "no keep policy");
    refuse("knorm:budget=96", "memshare", "64", PITH_UNSUPPORTED, "share policy");
}

/* A fork has it, too; a sequence with tokens keeps its own. */
TEST(a_fork_has_the_budget_too)
{
    pith_keep_stats keep;
    pith_engine *e = engine_of("streaming:budget=48,slack=8", NULL, NULL, 900);
    pith_seq *seq = seq_make(e), *fork = NULL;
    check(pith_seq_set_budget(seq, "none", &err), &err);
    eval(seq, 0, 100);
    assert_int_equal(pith_seq_set_budget(seq, NULL, &err), PITH_INVALID);
    check(pith_seq_fork(seq, &fork, &err), &err);
    eval(fork, 100, 200);
    pith_seq_keep_stats(fork, &keep);
    assert_int_equal(keep.evicted, 0);
    assert_int_equal(keep.live, 200 * n_lane);
    pith_seq_free(fork);
    pith_seq_free(seq);
    pith_engine_free(e);
}
