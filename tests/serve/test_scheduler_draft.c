/*
 * test_scheduler_draft.c - drafts in a scheduler. Each request gets the answer that it gets alone.
 * Cases: other requests, slots, little memory, a keep policy, every source of drafts.
 */
#include "testing.h"

#include "scheduler_rig.h"

#define N_ASK 9
#define TEXT                                                                                       \
    "The password of Maria is copper lantern. The friend of Maria is Anton. The password of "      \
    "Anton is plain book.\nQuestion: What is the password of Maria?\nAnswer: The password of "     \
    "Maria is copper lantern.\nQuestion: What is the password of Anton?\nAnswer:"

static int32_t text[256];
static int32_t n_text;

static void setup(void)
{
    model_load(73);
    check(pith_tokenize(model, TEXT, strlen(TEXT), PITH_TOKENIZE_BOS, text, 256, &n_text, &err),
          &err);
}

TEST_GROUP(setup, model_free);

static void ask_text(struct ask *ask, int32_t i)
{
    ask_init(ask, 0, 1, 20 + 13 * i, i % 3 == 0 ? 0.0f : 0.7f);
    ask->request.prompt = text + i;
    ask->request.n_prompt = n_text - i;
    ask->params.sample.seed = (uint64_t)(50 + i);
}

static pith_draft_params always(int32_t n_max)
{
    pith_draft_params p;
    pith_draft_params_default(&p);
    p.always = true;
    p.n_max = n_max;
    return p;
}

/* Requests that come while others run, so that there are steps with and without drafts. */
static void run_asks(pith_engine *e, const pith_draft_params *draft, int32_t n_seq,
                     pith_scheduler_stats *t, const char *what)
{
    static struct ask asks[N_ASK];
    static struct heard alone[N_ASK];
    pith_scheduler_params params;
    bool idle = false;
    pith_scheduler_params_default(&params);
    params.draft = draft;
    params.n_seq = n_seq;
    for (int32_t i = 0; i < N_ASK; i++) {
        ask_text(&asks[i], i);
        generate_alone(e, &asks[i], 0, &alone[i]);
    }
    pith_scheduler *s = scheduler_make(e, &params);
    for (int32_t step = 0, n = 0; !idle || n < N_ASK; step++) {
        if (n < N_ASK && (step % 7 == 0 || idle))
            submit(s, &asks[n++]);
        check(pith_scheduler_step(s, &idle, &err), &err);
    }
    for (int32_t i = 0; i < N_ASK; i++)
        expect_same(&asks[i].answer[0], &alone[i], what);
    *t = stats_of_scheduler(s);
    int64_t n_draft = 0, n_accepted = 0;
    for (int32_t i = 0; i < N_ASK; i++) {
        n_draft += asks[i].answer[0].result.n_draft;
        n_accepted += asks[i].answer[0].result.n_draft_accepted;
    }
    assert_int_equal(n_draft, t->drafted_tokens);
    assert_int_equal(n_accepted, t->accepted_tokens);
    free_both(s, e);
}

TEST(drafts_change_nothing_in_company)
{
    static const int32_t n_seq[] = {1, 2, 4, 256};
    for (size_t i = 0; i < PI_LEN(n_seq); i++) {
        pith_scheduler_stats t;
        pith_draft_params draft = always(i == 1 ? 3 : 15);
        run_asks(engine_make(NULL, 64, 1, 4096), &draft, n_seq[i], &t, "company");
        assert_true(t.drafted_tokens > t.accepted_tokens && t.accepted_tokens > 20);
    }
}

/* As the command has it: measured. */
TEST(measuring_by_default_changes_nothing)
{
    pith_scheduler_stats t;
    pith_draft_params draft;
    pith_draft_params_default(&draft);
    run_asks(engine_make(NULL, 64, 1, 4096), &draft, 2, &t, "measured");
}

/* Memory for two of them, so that some are put back, with and without rounds. */
TEST(drafts_change_nothing_in_little_memory)
{
    static const char *const keeps[] = {NULL, "knorm:budget=64,slack=8"};
    for (size_t i = 0; i < PI_LEN(keeps); i++) {
        pith_scheduler_stats t;
        pith_draft_params draft = always(15);
        run_asks(engine_make(keeps[i], 64, 1, 2 * (n_text + 60)), &draft, 256, &t, "memory");
        assert_true(t.drafted_tokens > 0);
    }
}

TEST(a_drafting_model_changes_nothing)
{
    pith_scheduler_stats t;
    pith_kv_stats kv;
    pith_engine *drafts = engine_make(NULL, 64, 1, 2048);
    pith_draft_params draft = always(5);
    draft.lookup = false;
    draft.engine = drafts;
    run_asks(engine_make(NULL, 64, 1, 4096), &draft, 3, &t, "model");
    assert_true(t.accepted_tokens > 50);
    pith_engine_kv_stats(drafts, &kv);
    assert_int_equal(kv.used_bytes, 0);
    pith_engine_free(drafts);
}

/* Answers that end in a draft: at a stop string, a length, the callback's wish. Several answers to
   one prompt. */
TEST(answers_may_end_in_a_draft)
{
    static const char *const stops[] = {"lantern", "xyz"};
    static struct ask asks[4];
    static struct heard alone[4][4];
    pith_scheduler_params params;
    pith_draft_params draft = always(15);
    pith_scheduler_params_default(&params);
    params.draft = &draft;
    pith_engine *e = engine_make(NULL, 64, 1, 4096);
    for (int32_t i = 0; i < 4; i++) {
        ask_text(&asks[i], i);
        asks[i].params.ignore_end = i == 1;
        asks[i].params.stop = stops;
        asks[i].params.n_stop = i == 2 ? 2 : 0;
        asks[i].request.n_answer = i == 3 ? 4 : 1;
        for (int32_t j = 0; j < asks[i].request.n_answer; j++)
            generate_alone(e, &asks[i], j, &alone[i][j]);
    }
    pith_scheduler *s = scheduler_make(e, &params);
    for (int32_t i = 0; i < 4; i++) {
        submit(s, &asks[i]);
        run_all(s);
        for (int32_t j = 0; j < asks[i].request.n_answer; j++)
            expect_same(&asks[i].answer[j], &alone[i][j], "end");
    }
    ask_text(&asks[0], 0);
    asks[0].stop_after = 9;
    submit(s, &asks[0]);
    run_all(s);
    assert_int_equal(asks[0].answer[0].result.reason, PITH_STOP_CALLER);
    assert_int_equal(asks[0].answer[0].n, 9);
    assert_true(stats_of_scheduler(s).accepted_tokens > 10);
    free_both(s, e);
}

/* A conversation in a slot: the parked sequence is as without drafts. */
TEST(drafts_change_nothing_in_a_slot)
{
    static struct ask asks[2];
    int32_t turn[512];
    pith_engine *e[2];
    pith_scheduler *s[2];
    pith_draft_params draft = always(7);
    for (int i = 0; i < 2; i++) {
        pith_scheduler_params params;
        pith_scheduler_params_default(&params);
        params.draft = i == 1 ? &draft : NULL;
        e[i] = engine_make(NULL, 64, 1, 2048);
        s[i] = scheduler_make(e[i], &params);
    }
    memcpy(turn, text, (size_t)n_text * sizeof(int32_t));
    for (int32_t n = n_text; n < 380;) {
        for (int i = 0; i < 2; i++) {
            ask_text(&asks[i], 1);
            asks[i].request.prompt = turn;
            asks[i].request.n_prompt = n;
            asks[i].request.slot = 0;
            submit(s[i], &asks[i]);
            run_all(s[i]);
        }
        const struct heard *a = &asks[0].answer[0], *b = &asks[1].answer[0];
        assert_int_equal(a->n, b->n);
        assert_memory_equal(a->token, b->token, (size_t)a->n * sizeof(int32_t));
        assert_int_equal(a->result.n_cached, b->result.n_cached);
        pith_kv_stats kv[2];
        pith_engine_kv_stats(e[0], &kv[0]);
        pith_engine_kv_stats(e[1], &kv[1]);
        assert_int_equal(kv[0].used_bytes, kv[1].used_bytes);
        for (int32_t i = 0; i < a->n; i++)
            turn[n++] = a->token[i];
        for (int32_t i = 0; i < 20; i++)
            turn[n++] = text[i];
    }
    free_both(s[0], e[0]);
    free_both(s[1], e[1]);
}

TEST(refuses_policies_that_overwrite)
{
    pith_scheduler *s = NULL;
    pith_scheduler_params params;
    pith_draft_params draft = always(7);
    pith_scheduler_params_default(&params);
    params.draft = &draft;
    pith_engine *e = engine_make("h2o:budget=64", 64, 1, 1024);
    expect(pith_scheduler_create(e, &params, &s, &err), &err, PITH_UNSUPPORTED, "h2o");
    pith_engine_free(e);
}
