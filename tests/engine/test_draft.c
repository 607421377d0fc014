/*
 * test_draft.c - drafts change nothing: text and memory after it are the same to the bit with and
 * without drafts. Cases: policies, storage types, temperatures, seeds, grammars, ends, borders of
 * pages and budgets, and lengths of memory. Drafts are refused where passes cannot be undone.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>

#include "testing.h"

#include "draft_rig.h"
#include "folder.h"
#include "keep_engine.h"
#include "model_maker.h"
#include "pith/grammar.h"

#define TEXT                                                                                       \
    "The password of Maria is copper lantern. The friend of Maria is Anton. The password of "      \
    "Anton is plain book.\nQuestion: What is the password of Maria?\nAnswer: The password of "     \
    "Maria is copper lantern.\nQuestion: What is the password of Anton?\nAnswer:"

static int32_t prompt[256];
static int32_t n_prompt;

static void setup(void)
{
    make_folder();
    model_load(91);
    check(pith_tokenize(model, TEXT, strlen(TEXT), PITH_TOKENIZE_BOS, prompt, 256, &n_prompt, &err),
          &err);
}

static void teardown(void)
{
    model_free();
    remove_folder();
}

TEST_GROUP(setup, teardown);

static pith_generate_params text_of(int32_t n_predict, float temperature, uint64_t seed)
{
    pith_generate_params p;
    pith_generate_params_default(&p);
    p.n_predict = n_predict;
    p.ignore_end = true;
    p.sample.temperature = temperature;
    p.sample.seed = seed;
    return p;
}

static pith_draft_params always(int32_t n_max)
{
    pith_draft_params p;
    pith_draft_params_default(&p);
    p.always = true;
    p.n_max = n_max;
    return p;
}

/* ---- comparisons ---- */

TEST(drafts_change_no_text_at_any_temperature)
{
    static const float temperatures[] = {0.0f, 0.3f, 0.8f, 1.5f};
    static const int32_t lengths[] = {1, 3, 15, 63};
    int64_t n_draft = 0, n_accepted = 0;
    pith_engine *e = engine_make(NULL, 128, 1, 1024);
    for (size_t t = 0; t < PI_LEN(temperatures); t++)
        for (uint64_t seed = 0; seed < 8; seed++) {
            char what[64];
            pith_draft_params draft = always(lengths[seed % PI_LEN(lengths)]);
            pith_generate_params p = text_of(70, temperatures[t], seed);
            snprintf(what, sizeof(what), "temperature %g, seed %d", (double)temperatures[t],
                     (int)seed);
            draft_twice(e, prompt, n_prompt, &p, &draft, 0, &n_draft, &n_accepted, what);
        }
    assert_true(n_draft > n_accepted && n_accepted > 300);
    pith_engine_free(e);
}

/* Every storage type, and policies that allow it, with rounds at many places of a draft. */
TEST(drafts_change_no_text_under_types_and_policies)
{
    static const char *const types[] = {"f32",    "f16",    "q8_0",   "q4_0",
                                        "turbo4", "turbo3", "turbo2", NULL};
    static const char *const keeps[] = {
        NULL,
        "streaming:budget=48",
        "streaming:budget=40,slack=5,positions=cache",
        "random:budget=48,slack=7,granularity=layer-head",
        "knorm:budget=50%,slack=3",
        "keydiff:budget=48,slack=16,granularity=layer",
        "vnorm:budget=48,batch=16",
        "knorm:budget=48,granularity=global",
    };
    int64_t n_draft = 0, n_accepted = 0;
    for (size_t t = 0; t < PI_LEN(types); t++)
        for (size_t k = 0; k < PI_LEN(keeps); k++) {
            char what[128];
            pith_draft_params draft = always(7);
            pith_engine *e = NULL;
            pith_engine_params params;
            pith_engine_params_default(&params);
            params.chunk = 64;
            params.n_thread = 1;
            params.kv_tokens = 1024;
            params.page_len = PAGE_LEN;
            params.keep = keeps[k];
            if (types[t] != NULL)
                params.type_k = params.type_v = types[t];
            snprintf(what, sizeof(what), "%s, %s", types[t] != NULL ? types[t] : "default",
                     keeps[k] != NULL ? keeps[k] : "none");
            if (keeps[k] != NULL && strstr(keeps[k], "global") != NULL &&
                pith_policy_check(PITH_KEEP, keeps[k], NULL) != PITH_OK)
                continue;
            if (pith_engine_create(model, &params, &e, &err) != PITH_OK) {
                assert_non_null(strstr(err.message, "global")); /* knorm has no map */
                continue;
            }
            pith_generate_params p = text_of(90, k % 2 == 0 ? 0.0f : 0.7f, t);
            draft_twice(e, prompt, n_prompt, &p, &draft, 0, &n_draft, &n_accepted, what);
            pith_engine_free(e);
        }
    assert_true(n_draft > n_accepted && n_accepted > 500);
}

/* Everything that a choice depends on, row by row. */
TEST(drafts_change_no_text_under_grammars_stops_and_biases)
{
    static const char gbnf[] =
        "root ::= (\" The\" | \" password\" | \" of\" | \" Maria\" | \".\")+";
    static const char *const stops[] = {"lantern. The", "zzz"};
    const pith_logit_bias bias[] = {{prompt[3], 2.0f}, {prompt[5], -INFINITY}};
    pith_grammar *g = NULL;
    int64_t n_draft = 0, n_accepted = 0;
    check(pith_grammar_create_gbnf(model, gbnf, strlen(gbnf), NULL, &g, &err), &err);
    pith_engine *e = engine_make(NULL, 128, 1, 1024);
    for (int i = 0; i < 40; i++) {
        char what[32];
        pith_draft_params draft = always(1 + i % 9);
        pith_generate_params p =
            text_of(i % 7 == 6 ? i : 60, i % 3 == 0 ? 0.0f : 0.9f, (uint64_t)i);
        p.sample.repeat_penalty = i % 4 == 1 ? 1.2f : 1.0f;
        p.sample.frequency_penalty = i % 4 == 1 ? 0.1f : 0.0f;
        p.sample.penalty_last_n = i % 8 == 1 ? -1 : 16;
        p.sample.grammar = i % 5 == 2 ? g : NULL;
        p.sample.bias = bias;
        p.sample.n_bias = i % 4 == 3 ? 2 : 0;
        p.stop = stops;
        p.n_stop = i % 6 == 4 ? 2 : 0;
        p.ignore_end = i % 2 == 0;
        snprintf(what, sizeof(what), "choice %d", i);
        draft_twice(e, prompt, n_prompt, &p, &draft, i % 10 == 9 ? 5 : 0, &n_draft, &n_accepted,
                    what);
    }
    assert_true(n_draft > n_accepted && n_accepted > 100);
    pith_grammar_free(g);
    pith_engine_free(e);
}

/* Drafts that begin and end at every place of a page, and texts of every length. */
TEST(drafts_may_begin_and_end_anywhere_in_a_page)
{
    int64_t n_draft = 0, n_accepted = 0;
    pith_engine *e = engine_make(NULL, 8, 1, 512);
    for (int32_t n = n_prompt - 2 * PAGE_LEN; n <= n_prompt; n++) {
        char what[32];
        pith_draft_params draft = always(63); /* more than a pass holds */
        pith_generate_params p = text_of(1 + n % 40, 0.0f, 0);
        snprintf(what, sizeof(what), "prompt of %d", n);
        draft_twice(e, prompt, n, &p, &draft, 0, &n_draft, &n_accepted, what);
    }
    assert_true(n_draft > n_accepted && n_accepted > 100);
    pith_engine_free(e);
}

/* The memory ends in the middle of a text, at the same token for every draft. */
TEST(memory_ends_at_the_same_token_with_drafts)
{
    int64_t n_draft = 0, n_accepted = 0;
    for (int32_t more = 1; more < 40; more += 3) {
        pith_draft_params draft = always(15);
        pith_generate_params p = text_of(-1, 0.0f, 0);
        pith_engine *e = engine_make(NULL, 64, 1, n_prompt + more);
        draft_twice(e, prompt, n_prompt, &p, &draft, 0, &n_draft, &n_accepted, "full");
        pith_engine_free(e);
    }
    assert_true(n_draft > n_accepted && n_accepted > 30);
}

/* A conversation in one sequence, forked on the way: the index follows the sequence's tokens. */
TEST(drafts_follow_turns_and_forks)
{
    int32_t turn[512];
    pith_generate_result r[2];
    pith_engine *e = engine_make(NULL, 64, 1, 2048);
    pith_draft_params draft = always(9);
    pith_seq *seq[2] = {seq_make(e), seq_make(e)};
    for (int32_t n = n_prompt; n < 300; n += 40) {
        for (int i = 0; i < 2; i++) {
            pith_generate_params p = text_of(30, 0.6f, (uint64_t)n);
            p.draft = i == 1 ? &draft : NULL;
            for (int32_t k = 0; k < n; k++)
                turn[k] = k < pith_seq_length(seq[i]) - 10 ? pith_seq_tokens(seq[i])[k]
                                                           : prompt[k % n_prompt];
            check(pith_generate(seq[i], turn, n, &p, NULL, NULL, &r[i], &err), &err);
            pith_seq *fork = NULL;
            check(pith_seq_fork(seq[i], &fork, &err), &err);
            pith_seq_free(seq[i]);
            seq[i] = fork;
        }
        assert_int_equal(pith_seq_length(seq[0]), pith_seq_length(seq[1]));
        assert_memory_equal(pith_seq_tokens(seq[0]), pith_seq_tokens(seq[1]),
                            (size_t)pith_seq_length(seq[0]) * sizeof(int32_t));
        assert_true(hash_of(seq[0]) == hash_of(seq[1]));
        assert_int_equal(r[0].n_cached, r[1].n_cached);
    }
    pith_seq_free(seq[0]);
    pith_seq_free(seq[1]);
    pith_engine_free(e);
}

/* ---- a model that drafts ---- */

/* The model itself drafts its likeliest tokens: when it takes the likeliest, every draft is
   accepted. */
TEST(the_model_itself_drafts_what_comes_true)
{
    int64_t n_draft = 0, n_accepted = 0;
    pith_kv_stats kv;
    pith_engine *e = engine_make(NULL, 64, 1, 1024);
    pith_engine *drafts = engine_make(NULL, 32, 1, 1024);
    pith_draft_params draft = always(6);
    draft.lookup = false;
    draft.engine = drafts;
    pith_generate_params p = text_of(60, 0.0f, 0);
    draft_twice(e, prompt, n_prompt, &p, &draft, 0, &n_draft, &n_accepted, "itself");
    assert_int_equal(n_draft, n_accepted);
    assert_true(n_accepted >= 48);
    for (uint64_t seed = 0; seed < 12; seed++) {
        draft.lookup = seed % 2 == 1;
        p = text_of(60, 0.5f + 0.1f * (float)seed, seed);
        draft_twice(e, prompt, n_prompt, &p, &draft, 0, &n_draft, &n_accepted, "model");
    }
    assert_true(n_draft > n_accepted);
    pith_engine_kv_stats(drafts, &kv);
    assert_int_equal(kv.used_bytes, 0);
    assert_true(kv.peak_bytes > 0);
    pith_engine_free(e);
    pith_engine_free(drafts);
}

/* Its memory ends first: the text goes on without it. */
TEST(the_text_goes_on_when_the_drafting_models_memory_ends)
{
    int64_t n_draft = 0, n_accepted = 0;
    pith_engine *e = engine_make(NULL, 64, 1, 1024);
    pith_engine *drafts = engine_make(NULL, 64, 1, n_prompt + 20);
    pith_draft_params draft = always(6);
    draft.lookup = false;
    draft.engine = drafts;
    pith_generate_params p = text_of(80, 0.0f, 0);
    draft_twice(e, prompt, n_prompt, &p, &draft, 0, &n_draft, &n_accepted, "full model");
    assert_true(n_accepted >= 6 && n_accepted < 40);
    pith_engine_free(e);
    pith_engine_free(drafts);
}

/* ---- by itself ---- */

/* The default, which measures: the text is the same for every decision, and it drafts on a text
   that repeats itself. */
TEST(measuring_by_default_changes_no_text)
{
    int64_t n_draft = 0, n_accepted = 0;
    pith_draft_params draft;
    pith_draft_params_default(&draft);
    pith_engine *e = engine_make(NULL, 64, 1, 2048);
    for (uint64_t seed = 0; seed < 4; seed++) {
        pith_generate_params p = text_of(300, seed == 0 ? 0.0f : 0.5f, seed);
        draft_twice(e, prompt, n_prompt, &p, &draft, 0, &n_draft, &n_accepted, "measured");
    }
    assert_true(n_draft > 0);
    pith_engine_free(e);
}

/* ---- refused ---- */

static bool hear_rows(void *user, const pith_tap_rows *rows)
{
    (void)rows;
    ++*(int *)user;
    return true;
}

TEST(refuses_policies_that_remember_or_overwrite)
{
    static const struct {
        const char *keep, *read, *recall, *share, *word;
    } bad[] = {
        {"h2o:budget=64", NULL, NULL, NULL, "h2o overwrites"},
        {"longflow:budget=64", NULL, NULL, NULL, "longflow overwrites"},
        {"scissorhands:budget=64", NULL, NULL, NULL, "scissorhands remembers"},
        {"snapkv:budget=64", NULL, NULL, NULL, "snapkv remembers"},
        {"knorm:budget=64,rounds=prompt-end", NULL, NULL, NULL, "prompt-end"},
        {NULL, "quest:budget=64", NULL, NULL, "read:"},
        {"knorm:budget=64", NULL, "kv", NULL, "recall:"},
        {"knorm:budget=64", NULL, "text", NULL, "recall:"},
        {NULL, NULL, NULL, "memshare", "share:"},
    };
    pith_draft_params draft = always(4);
    for (size_t i = 0; i < PI_LEN(bad); i++) {
        pith_engine *e = engine_with(model, (pith_engine_params){.n_thread = 1,
                                                                 .kv_tokens = 512,
                                                                 .keep = bad[i].keep,
                                                                 .read = bad[i].read,
                                                                 .recall = bad[i].recall,
                                                                 .share = bad[i].share});
        expect(pith_draft_check(e, NULL, &err), &err, PITH_UNSUPPORTED, bad[i].word);
        pith_generate_params p = text_of(4, 0.0f, 0);
        p.draft = &draft;
        pith_seq *seq = seq_make(e);
        expect(pith_generate(seq, prompt, n_prompt, &p, NULL, NULL, NULL, &err), &err,
               PITH_UNSUPPORTED, bad[i].word);
        assert_int_equal(pith_seq_length(seq), 0);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

TEST(refuses_bad_parameters)
{
    pith_engine *e = engine_make(NULL, 64, 1, 512);
    pith_draft_params draft = always(0);
    expect(pith_draft_check(e, &draft, &err), &err, PITH_INVALID, "n_max: 0");
    draft = always(64);
    expect(pith_draft_check(e, &draft, &err), &err, PITH_INVALID, "n_max: 64");
    draft = always(4);
    draft.engine = e;
    expect(pith_draft_check(e, &draft, &err), &err, PITH_INVALID, "itself");
    expect(pith_draft_check(NULL, &draft, &err), &err, PITH_INVALID, "NULL");
    pith_engine_free(e);
}

/* A drafting model with a few more tokens can draft; one with many more has another vocabulary. Its
   drafts are random, so few are accepted. */
TEST(another_model_drafts_and_another_vocabulary_is_refused)
{
    static const int32_t more[] = {40, 300};
    int64_t n_draft = 0, n_accepted = 0;
    pith_engine *e = engine_make(NULL, 64, 1, 512);
    for (size_t i = 0; i < PI_LEN(more); i++) {
        pith_model *other = NULL;
        pith_engine *drafts = NULL;
        char words[256];
        snprintf(words, sizeof(words),
                 "layers=1 width=32 heads=2 kv_heads=1 head_dim=16 ff=32 "
                 "vocab_file=%s pad=%d",
                 MODEL, info.n_vocab + more[i]);
        check(model_make_of(words, in_folder("other.gguf"), &err), &err);
        check(pith_model_load(in_folder("other.gguf"), NULL, &other, &err), &err);
        check(pith_engine_create(other, NULL, &drafts, &err), &err);
        pith_draft_params draft = always(3);
        draft.engine = drafts;
        draft.lookup = false;
        pith_generate_params p = text_of(30, 0.0f, 0);
        if (i == 0)
            draft_twice(e, prompt, n_prompt, &p, &draft, 0, &n_draft, &n_accepted, "other");
        else
            expect(pith_draft_check(e, &draft, &err), &err, PITH_INVALID, "vocabularies differ");
        pith_engine_free(drafts);
        pith_model_free(other);
    }
    assert_true(n_draft > n_accepted + 20);
    pith_engine_free(e);
}

/* A tap hears each computed token once: nothing is drafted. */
TEST(a_tap_hears_each_token_once)
{
    int n = 0;
    pith_generate_result r;
    pith_engine *e = engine_make(NULL, 64, 1, 512);
    pith_draft_params draft = always(4);
    pith_generate_params p = text_of(20, 0.0f, 0);
    p.draft = &draft;
    pith_seq *seq = seq_make(e);
    check(pith_engine_set_tap(e, hear_rows, &n, &err), &err);
    check(pith_generate(seq, prompt, n_prompt, &p, NULL, NULL, &r, &err), &err);
    assert_int_equal(r.n_draft, 0);
    assert_true(n > 20);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* Wherever memory ends, the text is as without drafts, or there is none. */
TEST(failing_allocations_change_no_text)
{
    static struct told plain, told;
    int32_t *ids, *none;
    int64_t n_ok = 0, n_failed = 0;
    pith_engine *e = engine_make(NULL, 64, 1, 512);
    pith_draft_params draft = always(8);
    pith_generate_params p = text_of(24, 0.0f, 0);
    tell_all(e, prompt, n_prompt, &p, &plain, &ids);
    p.draft = &draft;
    tell_all(e, prompt, n_prompt, &p, &told, &none);
    free(none);
    for (int64_t at = 1; at < 60; at++) {
        pith_seq *seq = seq_make(e);
        memset(&told, 0, sizeof(told));
        pi_mem_fail_at(at, false);
        pith_status status = pith_generate(seq, prompt, n_prompt, &p, tell, &told, NULL, &err);
        pi_mem_fail_at(0, false);
        if (status != PITH_OK)
            assert_int_equal(status, PITH_NOMEM);
        else if (told.len != plain.len || memcmp(told.text, plain.text, told.len) != 0)
            fail_msg("allocation %d: another text", (int)at);
        n_ok += status == PITH_OK;
        n_failed += status != PITH_OK;
        assert_false(seq->ahead.is_ahead);
        pith_seq_free(seq);
    }
    assert_true(n_ok > 0 && n_failed > 0);
    free(ids);
    pith_engine_free(e);
}
