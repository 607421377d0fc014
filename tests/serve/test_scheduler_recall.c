/*
 * Recall of text in a scheduler. Questions about a text of facts get the answer and the bits that
 * pith_generate gives them, in any steps and company. A talk goes on from what was parked, though
 * its next prompt lacks what was found.
 */
#include <stdio.h>

#include "scheduler_rig.h"

#define KEEP "streaming:budget=128,slack=32"
#define IDS_MAX 1200
#define N_ASK 3

static char story[16384]; /* without its question */
static char texts[N_ASK][sizeof(story)];
static int32_t ids[N_ASK][IDS_MAX];
static const char *const names[N_ASK] = {"Walter", "Nora", "Vera"};

static void setup(void)
{
    FILE *file = fopen(PITH_SOURCE_DIR "/models/demo/prompt-2k.txt", "rb");
    model_load(5);
    assert_non_null(file);
    size_t len = fread(story, 1, sizeof(story) - 1, file);
    fclose(file);
    story[len] = '\0';
    *strstr(story, "Question:") = '\0';
    memmove(story, story + len / 2, strlen(story + len / 2) + 1);
}

static void teardown(void)
{
    model_free();
}

TEST_GROUP(setup, teardown);

/* Question i about the first `share` of the story. */
static void ask_question(struct ask *ask, int32_t i, double share, int32_t n_predict)
{
    int32_t n;
    size_t len = (size_t)(share * (double)strlen(story));
    ask_init(ask, 0, 1, n_predict, 0.0f);
    snprintf(texts[i], sizeof(texts[i]),
             "The password of %s is red %d. %.*s\nQuestion: What is the password of %s?\nAnswer:",
             names[i], i, (int)len, story, names[i]);
    check(pith_tokenize(model, texts[i], strlen(texts[i]), PITH_TOKENIZE_BOS, ids[i], IDS_MAX, &n,
                        &err),
          &err);
    ask->request.prompt = ids[i];
    ask->request.n_prompt = n;
    ask->params.message = texts[i];
    ask->params.message_len = strlen(texts[i]);
}

static pith_engine *recalling(const char *keep, int32_t chunk, int32_t kv_tokens)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    pith_engine_params_default(&params);
    params.n_gpu_layers = test_gpu_layers();
    params.chunk = chunk;
    params.n_thread = 1;
    params.kv_tokens = kv_tokens;
    params.page_len = PAGE_LEN;
    params.keep = keep;
    params.recall = "text";
    check(pith_engine_create(model, &params, &e, &err), &err);
    return e;
}

/* The text and the last logits of a request alone; returns the tokens that were recalled. */
static int32_t alone(const struct ask *ask, struct heard *out)
{
    pith_engine *e = recalling(KEEP, 256, 4000);
    pith_generate_result result;
    pith_seq *seq = seq_make(e);
    memset(out, 0, sizeof(*out));
    check(pith_generate(seq, ask->request.prompt, ask->request.n_prompt, &ask->params, hear_text,
                        out, &result, &err),
          &err);
    out->n = result.n_generated;
    out->hash[0] = hash_of(seq);
    pith_seq_free(seq);
    pith_engine_free(e);
    return result.n_recalled;
}

static void expect_alone(const struct ask *ask, int32_t answer, const struct heard *want,
                         int32_t n_recalled)
{
    const struct heard *got = &ask->answer[answer];
    if (got->n_done != 1 || got->result.status != PITH_OK || got->n != want->n)
        fail_msg("done %d times, %s: %s, %d of %d tokens", got->n_done,
                 pith_status_name(got->result.status), got->message, got->n, want->n);
    assert_int_equal(got->len, want->len);
    assert_memory_equal(got->text, want->text, want->len);
    assert_true(got->hash[got->n - 1] == want->hash[0]);
    assert_int_equal(got->result.n_recalled, n_recalled);
}

/* Steps until there is nothing to do. Disturbed, a request has to give way at random in between. */
static void run(pith_scheduler *s, bool disturbed)
{
    uint64_t seed = 7;
    for (bool idle = false; !idle;) {
        check(pith_scheduler_step(s, &idle, &err), &err);
        if (disturbed && !idle && rng_below(&seed, 5) == 0)
            for (int32_t i = 0; i < 3; i++)
                scheduler_relieve(s, NULL, s->kv_bytes);
    }
}

TEST(answers_are_those_of_a_question_alone)
{
    static struct ask asks[N_ASK];
    static struct heard want[N_ASK];
    static const struct {
        int32_t chunk, step_tokens;
        bool disturbed;
    } ways[] = {{256, 0, false}, {32, 17, false}, {64, 40, true}};
    int32_t n_recalled[N_ASK];
    for (int32_t i = 0; i < N_ASK; i++) {
        ask_question(&asks[i], i, 1.0 - 0.2 * i, 24);
        n_recalled[i] = alone(&asks[i], &want[i]);
        assert_true(n_recalled[i] > 10);
    }
    assert_non_null(strstr(want[0].text, "red 0"));
    for (size_t k = 0; k < PI_LEN(ways); k++) {
        pith_engine *e = recalling(KEEP, ways[k].chunk, 8000);
        pith_scheduler_params params;
        pith_scheduler_params_default(&params);
        params.step_tokens = ways[k].step_tokens;
        params.max_preempt = ways[k].disturbed ? 1000 : 3;
        pith_scheduler *s = scheduler_make(e, &params);
        for (int32_t i = 0; i < N_ASK; i++) {
            ask_question(&asks[i], i, 1.0 - 0.2 * i, 24);
            asks[i].request.n_answer = i == 1 ? 1 : 2;
            submit(s, &asks[i]);
        }
        run(s, ways[k].disturbed);
        for (int32_t i = 0; i < N_ASK; i++)
            for (int32_t j = 0; j < asks[i].request.n_answer; j++)
                expect_alone(&asks[i], j, &want[i], n_recalled[i]);
        pith_scheduler_stats t = stats_of_scheduler(s);
        assert_int_equal(t.preempted_swap > 0, ways[k].disturbed);
        assert_int_equal(t.preempted_recompute > 0, ways[k].disturbed);
        free_both(s, e);
    }
}

/* Only the beginning of a text in front of the question is found again. */
TEST(a_prefix_ends_before_the_question)
{
    static struct ask ask;
    static struct heard want;
    pith_engine *e = recalling(KEEP, 64, 4000);
    pith_scheduler *s = scheduler_make(e, NULL);
    for (int32_t again = 0; again < 2; again++) {
        ask_question(&ask, 0, 1.0, 8);
        int32_t n_recalled = alone(&ask, &want);
        submit(s, &ask);
        run_all(s);
        expect_alone(&ask, 0, &want, n_recalled);
        assert_int_equal(ask.answer[0].result.n_cached >= PAGE_LEN, again);
    }
    /* Nothing was evicted of a short one: its question is a part of no prefix either. */
    for (int32_t again = 0; again < 2; again++) {
        ask_question(&ask, 1, 0.04, 8);
        assert_in_range(ask.request.n_prompt, 2 * PAGE_LEN, 128);
        assert_int_equal(alone(&ask, &want), 0);
        submit(s, &ask);
        run_all(s);
        expect_alone(&ask, 0, &want, 0);
        assert_int_equal(ask.answer[0].result.n_cached >= PAGE_LEN, again);
    }
    free_both(s, e);
}

/* The next turn of a talk, whose prompt lacks what was found for the one before. */
static void go_on(pith_scheduler *s, const struct ask *first, int32_t slot)
{
    static struct ask ask;
    static int32_t more[IDS_MAX];
    static const char text[] = "\nQuestion: What is the password of Walter?\nAnswer:";
    int32_t n = 0, n_first = first->request.n_prompt + first->answer[0].n;
    memcpy(more, ids[0], (size_t)first->request.n_prompt * sizeof(*more));
    memcpy(more + first->request.n_prompt, first->answer[0].token,
           (size_t)first->answer[0].n * sizeof(*more));
    check(pith_tokenize(model, text, strlen(text), 0, more + n_first, IDS_MAX - n_first, &n, &err),
          &err);
    ask_init(&ask, 0, 1, 8, 0.0f);
    ask.request.prompt = more;
    ask.request.n_prompt = n_first + n;
    ask.request.slot = slot;
    ask.params.message = text;
    ask.params.message_len = strlen(text);
    submit(s, &ask);
    run_all(s);
    assert_int_equal(ask.answer[0].result.status, PITH_OK);
    assert_int_equal(ask.answer[0].result.reuse, PITH_REUSE_NONE);
    assert_int_equal(ask.answer[0].result.n_cached, n_first - 1);
    assert_non_null(strstr(ask.answer[0].text, "red 0"));
}

TEST(a_talk_goes_on_from_what_was_found)
{
    static struct ask ask;
    static struct heard want;
    static const int32_t slots[] = {0, 1, PITH_SLOT_ANY};
    for (size_t k = 0; k < PI_LEN(slots); k++) {
        pith_engine *e = recalling(KEEP, 64, 4000);
        pith_scheduler *s = scheduler_make(e, NULL);
        for (int32_t again = 0; again < 2; again++) { /* then from the place to return to */
            ask_question(&ask, 0, 1.0, 8);
            ask.request.slot = slots[k];
            int32_t n_recalled = alone(&ask, &want);
            submit(s, &ask);
            run_all(s);
            expect_alone(&ask, 0, &want, again ? 0 : n_recalled);
            assert_int_equal(ask.answer[0].result.n_cached, again ? ask.request.n_prompt : 0);
        }
        go_on(s, &ask, slots[k]);
        free_both(s, e);
    }
}

/* A request that is cancelled at its step number n leaves nothing that changes the next. */
TEST(a_cancelled_question_changes_nothing)
{
    static struct ask ask;
    static struct heard want;
    pith_engine *e = recalling(KEEP, 64, 4000);
    pith_scheduler_params params;
    pith_scheduler_params_default(&params);
    params.step_tokens = 48;
    params.no_prefix = true;
    pith_scheduler *s = scheduler_make(e, &params);
    ask_question(&ask, 0, 1.0, 8);
    int32_t n_recalled = alone(&ask, &want), n_step = (ask.request.n_prompt + n_recalled) / 48 + 3;
    for (int32_t k = n_step - 6; k <= n_step; k++) {
        ask_question(&ask, 0, 1.0, 8);
        ask.request.slot = 0;
        submit(s, &ask);
        for (int32_t i = 0; i < k; i++)
            check(pith_scheduler_step(s, NULL, &err), &err);
        check(pith_scheduler_cancel(s, ask.id), &err);
        run_all(s);
        assert_int_equal(ask.answer[0].n_done, 1);
        ask_question(&ask, 0, 1.0, 8);
        ask.request.slot = 0; /* it may go on from what was read */
        submit(s, &ask);
        run_all(s);
        assert_int_equal(ask.answer[0].result.status, PITH_OK);
        assert_int_equal(ask.answer[0].result.n_recalled > 0,
                         ask.answer[0].result.n_cached < ask.request.n_prompt);
        assert_memory_equal(ask.answer[0].text, want.text, want.len);
        assert_true(ask.answer[0].hash[ask.answer[0].n - 1] == want.hash[0]);
        pith_scheduler_slot_erase(s, 0, NULL, NULL);
    }
    free_both(s, e);
}

TEST(a_session_with_a_name_is_refused)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    pith_scheduler *s = NULL;
    pith_engine_params_default(&params);
    params.keep = KEEP;
    params.recall = "text:session=work";
    check(pith_engine_create(model, &params, &e, &err), &err);
    expect(pith_scheduler_create(e, NULL, &s, &err), &err, PITH_UNSUPPORTED, "session=work");
    pith_engine_free(e);
}
