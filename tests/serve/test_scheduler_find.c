/*
 * test_scheduler_find.c - which parked conversation a request goes on from. A prompt whose text is
 * parked in other tokens is read by its own, unless a policy decided what is left of them. So it
 * gets what it gets alone: from a plain model, from one with recurrent layers, and from one with
 * windows. Also where recurrent layers let a conversation go back to.
 */
#define _POSIX_C_SOURCE 200809L

#include "folder.h"
#include "model_maker.h"
#include "scheduler_rig.h"

#define HYBRID PITH_SOURCE_DIR "/models/pith-hybrid.gguf"
#define WINDOWS                                                                                    \
    "arch=gemma3 layers=7 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 window=20 tied=1 ctx=512 " \
    "vocab_file=" MODEL

static pith_model *hybrid, *windows;

static void setup(void)
{
    make_folder();
    model_load(91);
    check(model_make_of(WINDOWS, in_folder("windows.gguf"), &err), &err);
    check(pith_model_load(in_folder("windows.gguf"), NULL, &windows, &err), &err);
    check(pith_model_load(HYBRID, NULL, &hybrid, &err), &err);
}

static void teardown(void)
{
    pith_model_free(hybrid);
    pith_model_free(windows);
    model_free();
    remove_folder();
}

TEST_GROUP(setup, teardown);

static pith_engine *engine_of(const pith_model *of, const char *keep, const char *read)
{
    return engine_with(of, (pith_engine_params){.chunk = 64,
                                                .n_thread = 1,
                                                .kv_tokens = 1500,
                                                .page_len = PAGE_LEN,
                                                .keep = keep,
                                                .read = read});
}

static int32_t add_text(int32_t *ids, int32_t n, const char *text)
{
    int32_t n_more;
    check(pith_tokenize(model, text, strlen(text), 0, ids + n, 256 - n, &n_more, &err), &err);
    return n + n_more;
}

/* Runs a prompt, whose answer has n_predict tokens and whose conversation stays. */
static const pith_answer_result *run_prompt(pith_scheduler *s, struct ask *ask, const int32_t *ids,
                                            int32_t n, int32_t n_predict)
{
    ask_init(ask, 0, 1, n_predict, 0.0f);
    ask->request.prompt = ids;
    ask->request.n_prompt = n;
    ask->request.slot = PITH_SLOT_ANY;
    submit(s, ask);
    run_all(s);
    if (ask->answer[0].result.status != PITH_OK)
        fail_msg("%s", ask->answer[0].message);
    return &ask->answer[0].result;
}

/* ---- other tokens of the same text ---- */

/* A text of n_before tokens and a word, parked as a space and the rest. Then the text goes on, with
   the word as its tokenizer has it. Asked again, all of that is there. Returns how many tokens
   were not read at first. */
static int32_t spell_otherwise(const pith_model *of, const char *keep, int32_t n_before)
{
    static struct ask ask, again;
    static struct heard alone;
    int32_t parked[256], prompt[256];
    pith_engine *e = engine_of(of, keep, NULL), *lone = engine_of(of, keep, NULL);
    pith_scheduler *s = scheduler_make(e, NULL);
    memcpy(parked, tokens, (size_t)n_before * sizeof(*parked));
    memcpy(prompt, tokens, (size_t)n_before * sizeof(*prompt));
    int32_t n_parked = add_text(parked, add_text(parked, n_before, " "), "Otto");
    int32_t n_prompt = add_text(prompt, n_before, " Otto");
    assert_int_equal(n_prompt, n_before + 1);
    assert_true(n_parked > n_prompt);
    n_prompt = add_text(prompt, n_prompt, " is Maria.");
    run_prompt(s, &ask, parked, n_parked, 1);
    int32_t n_cached = run_prompt(s, &ask, prompt, n_prompt, 8)->n_cached;
    if (keep == NULL) {
        generate_alone(lone, &ask, 0, &alone);
        expect_same(&ask.answer[0], &alone, "its own tokens");
    } else {
        assert_int_equal(run_prompt(s, &again, prompt, n_prompt, 8)->n_cached, n_prompt);
        assert_memory_equal(again.answer[0].hash, ask.answer[0].hash,
                            8 * sizeof(*again.answer[0].hash));
    }
    free_both(s, e);
    pith_engine_free(lone);
    return n_cached;
}

TEST(a_prompt_is_read_by_its_own_tokens)
{
    const pith_model *const models[] = {model, hybrid, windows};
    for (size_t i = 0; i < PI_LEN(models); i++) {
        assert_int_equal(spell_otherwise(models[i], NULL, 8), 0); /* less than a page */
        assert_true(spell_otherwise(models[i], NULL, 100) <= 100);
    }
    assert_int_equal(spell_otherwise(model, NULL, 100), 100);
}

/* Evicted entries depend on the turns, and are not to be had again: there the conversation goes on
   in its own words. Before anything is evicted it does not. */
TEST(what_a_policy_decided_goes_on_in_its_own_words)
{
    static const char keep[] = "streaming:budget=64,slack=16";
    assert_true(spell_otherwise(model, keep, 150) > 150);
    assert_true(spell_otherwise(model, keep, 40) <= 40);
    assert_true(spell_otherwise(model, keep, 8) <= 8);
}

/* ---- going back ---- */

/* Asked again, an answer goes on from before it. Another end of the question goes on from a state
   that was kept. Neither is said to be dropped, and both get what they get alone. */
TEST(recurrent_layers_go_back_in_a_conversation)
{
    static struct ask ask;
    static struct heard alone;
    int32_t other[100];
    pith_engine *e = engine_of(hybrid, NULL, NULL), *lone = engine_of(hybrid, NULL, NULL);
    pith_scheduler *s = scheduler_make(e, NULL);
    for (int32_t turn = 0; turn < 3; turn++) {
        const pith_answer_result *r = run_prompt(s, &ask, tokens, 100, 20);
        assert_int_equal(r->reuse, turn == 0 ? PITH_REUSE_NEW : PITH_REUSE_NONE);
        assert_int_equal(r->n_cached, turn == 0 ? 0 : 100);
        generate_alone(lone, &ask, 0, &alone);
        expect_same(&ask.answer[0], &alone, "again");
    }
    memcpy(other, tokens, sizeof(other));
    other[97] = (other[97] + 1) % info.n_vocab;
    const pith_answer_result *r = run_prompt(s, &ask, other, 100, 20);
    assert_int_equal(r->reuse, PITH_REUSE_POLICY);
    assert_int_equal(r->differs_at, 97);
    assert_int_equal(r->n_from_park, 80); /* the last page that 8 tokens follow */
    generate_alone(lone, &ask, 0, &alone);
    expect_same(&ask.answer[0], &alone, "another end");
    assert_int_equal(stats_of_scheduler(s).parked_dropped, 0);
    assert_int_equal(stats_of_scheduler(s).reuse_dropped, 0);
    free_both(s, e);
    pith_engine_free(lone);
}

/* Under a read policy alone a question that is asked again goes on from before its answer, too. */
TEST(a_read_policy_is_asked_again)
{
    static struct ask first, again;
    int32_t talk[256];
    pith_engine *e = engine_of(model, NULL, "quoka:budget=24,chunk=16,gate=1");
    pith_scheduler *s = scheduler_make(e, NULL);
    memcpy(talk, tokens, sizeof(talk));
    run_prompt(s, &first, talk, 100, 20);
    memcpy(talk + 100, first.answer[0].token, 20 * sizeof(*talk));
    assert_int_equal(run_prompt(s, &first, talk, 180, 20)->n_cached, 119);
    for (int32_t turn = 0; turn < 3; turn++) {
        const pith_answer_result *r = run_prompt(s, &again, talk, 180, 20);
        assert_int_equal(r->reuse, PITH_REUSE_NONE);
        assert_int_equal(r->n_cached, 180);
        assert_memory_equal(again.answer[0].hash, first.answer[0].hash,
                            20 * sizeof(*again.answer[0].hash));
    }
    free_both(s, e);
}

/* A parked conversation keeps states, and the cache of prefixes has them, too. They leave their
   memory to a prompt that takes all of it. So do the states that the prompt itself published. */
TEST(states_that_are_kept_leave_their_memory)
{
    static struct ask ask;
    static struct heard alone;
    pith_engine *lone = engine_of(hybrid, NULL, NULL);
    pith_engine *e = engine_with(
        hybrid, (pith_engine_params){
                    .chunk = 64, .n_thread = 1, .kv_tokens = 20 * PAGE_LEN, .page_len = PAGE_LEN});
    pith_scheduler *s = scheduler_make(e, NULL);
    run_prompt(s, &ask, tokens, 200, 10);
    for (int32_t turn = 0; turn < 2; turn++) {
        run_prompt(s, &ask, tokens + 190 * turn, 20 * PAGE_LEN - 4, 4);
        generate_alone(lone, &ask, 0, &alone);
        expect_same(&ask.answer[0], &alone, "all of the memory");
    }
    free_both(s, e);
    pith_engine_free(lone);
}
