/*
 * test_recall_model.c - the repository's small model loses facts under a tenth of its cache, and
 * recall brings them back. They come from the beginning, the middle and the end of a text of 1,200
 * words, in one turn and in two.
 */
#include <string.h>

#include "testing.h"

#include "status.h"

#include "pith/inspect.h"
#include "pith/policy.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define TEXT PITH_SOURCE_DIR "/models/demo/prompt-2k.txt"
#define IDS_MAX 4096

static pith_model *model;
static char text[65536];
static int32_t n_context; /* tokens of the text before its question */
static int32_t ids[IDS_MAX];

/* Facts of the text, in its order. */
static const char *const facts[][2] = {
    {"Marta", " glass wagon."},  {"Simon", " heavy crown."},   {"Walter", " plain book."},
    {"Carl", " bright pencil."}, {"Elena", " broken basket."}, {"Martin", " black salmon."},
    {"Paul", " bitter coin."},   {"Helen", " dark rope."},     {"Nora", " copper feather."},
    {"Leon", " light spider."},  {"Maria", " strong bottle."}, {"Vera", " iron feather."},
};
#define N_FACT ((int32_t)(sizeof(facts) / sizeof(*facts)))
/* Under sanitizers every third fact is asked for: the same code, ten times as slow. */
#define EACH (TEST_STRIDE > 1 ? 3 : 1)
#define N_ASKED ((N_FACT + EACH - 1) / EACH)

static int32_t encode(const char *s, int32_t *out)
{
    int32_t n = 0;
    check(pith_tokenize(model, s, strlen(s), 0, out, IDS_MAX, &n, &err), &err);
    return n;
}

static void load(void)
{
    FILE *f = fopen(TEXT, "rb");
    assert_non_null(f);
    size_t len = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[len] = '\0';
    char *question = strstr(text, "Question:");
    assert_non_null(question);
    *question = '\0';
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    n_context = encode(text, ids);
}

static void unload(void)
{
    pith_model_free(model);
}

TEST_GROUP(load, unload);

static pith_engine *engine_of(const char *keep, const char *recall)
{
    return engine_with(
        model,
        (pith_engine_params){
            .keep = keep, .recall = recall, .page_len = 16, .kv_tokens = 3000, .n_thread = 2});
}

/* Whether the model names the password after its text. */
static bool answers(pith_seq *seq, const char *answer)
{
    int32_t want[32], n = encode(answer, want), n_vocab;
    pith_model_info info;
    pith_model_get_info(model, &info);
    n_vocab = info.n_vocab;
    for (int32_t i = 0; i < n; i++) {
        const float *logits = pith_seq_logits(seq);
        int32_t best = 0;
        for (int32_t v = 1; v < n_vocab; v++)
            best = logits[v] > logits[best] ? v : best;
        if (best != want[i])
            return false;
        check(pith_seq_eval(seq, &want[i], 1, &err), &err);
    }
    return true;
}

/* How many of the facts are found; the question in the turn of the text, or in one of its own. */
static int32_t found(const char *keep, const char *recall, bool one_turn)
{
    pith_engine *e = engine_of(keep, recall);
    int32_t n_found = 0;
    pith_seq *base = seq_make(e);
    if (!one_turn)
        check(pith_seq_eval(base, ids, n_context, &err), &err);
    for (int32_t i = 0; i < N_FACT; i += EACH) {
        char question[128];
        int32_t all[IDS_MAX], n = one_turn ? n_context : 0;
        pith_seq *seq;
        snprintf(question, sizeof(question),
                 "Question: What is the password of %s?\nAnswer: The password of %s is",
                 facts[i][0], facts[i][0]);
        memcpy(all, ids, (size_t)n * sizeof(*ids));
        n += encode(question, all + n);
        check(pith_seq_fork(base, &seq, &err), &err);
        check(pith_seq_eval(seq, all, n, &err), &err);
        bool right = answers(seq, facts[i][1]);
        n_found += right;
        pith_seq_free(seq);
    }
    pith_seq_free(base);
    pith_engine_free(e);
    return n_found;
}

/* With a window of the last tokens, four facts of the end are never lost. */
#define KEEP "streaming:sinks=4,budget=200,slack=32"
#define N_NEAR ((4 + EACH - 1) / EACH)

TEST(brings_back_facts_in_a_second_turn)
{
    int32_t full = found("none", NULL, false), alone = found(KEEP, NULL, false);
    int32_t back = found(KEEP, "kv:last=16", false), plain = found(KEEP, "kv", false);
    print_message("%d tokens, %d facts: full %d, keep %d, keep and recall %d, by default %d\n",
                  n_context, N_ASKED, full, alone, back, plain);
    assert_int_equal(full, N_ASKED);
    assert_true(alone <= N_NEAR);
    assert_int_equal(back, full);
    assert_true(plain >= full - 1);
}

/* A text longer than the budget that ends with its question. */
TEST(brings_back_facts_in_one_turn)
{
    int32_t alone = found(KEEP, NULL, true), back = found(KEEP, "kv:last=16", true);
    int32_t plain = found(KEEP, "kv", true);
    print_message("one turn: keep %d, keep and recall %d, by default %d\n", alone, back, plain);
    assert_true(alone <= N_NEAR);
    assert_int_equal(back, N_ASKED);
    assert_true(plain >= N_ASKED - 2);
}

/* The form `text`: what went is found by the question, and by no other sequence. */
TEST(finds_text_of_its_own_sequence)
{
    pith_engine *e = engine_of(KEEP, "text");
    pith_seq *seq, *fork, *other;
    pith_recall_stats stats;
    const char *ask = "Hello. Question: What is the password of Carl?";
    char *got = NULL;
    check(pith_seq_create(e, &seq, &err), &err);
    check(pith_seq_create(e, &other, &err), &err);
    check(pith_seq_recall_text(seq, ask, strlen(ask), &got, &err), &err);
    assert_null(got); /* nothing was evicted */
    check(pith_seq_eval(seq, ids, n_context, &err), &err);
    pith_seq_recall_stats(seq, &stats);
    assert_true(stats.stored > 0);
    assert_int_equal(stats.recalls, 0);
    check(pith_seq_recall_text(seq, ask, strlen(ask), &got, &err), &err);
    assert_non_null(got);
    assert_non_null(strstr(got, "password of Carl is bright pencil"));
    pith_recall_free(got);
    pith_seq_recall_stats(seq, &stats);
    assert_true(stats.recalls == 1 && stats.guests > 0);
    check(pith_seq_recall_text(other, ask, strlen(ask), &got, &err), &err);
    assert_null(got);
    check(pith_seq_fork(seq, &fork, &err), &err);
    check(pith_seq_truncate(seq, 0, &err), &err);
    check(pith_seq_recall_text(seq, ask, strlen(ask), &got, &err), &err);
    assert_null(got);
    check(pith_seq_recall_text(fork, ask, strlen(ask), &got, &err), &err);
    assert_non_null(got);
    pith_recall_free(got);
    pith_recall_free(NULL);
    pith_seq_free(fork);
    pith_seq_free(other);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* ---- one turn with the form `text` ---- */

#define N_SAID 24
#define SLACK 40 /* of the policies below */
#define KEEP40 "random:sinks=4,window=32,budget=10%,slack=40"

/* Whether every lane holds all of positions [first, last). */
static void expect_held(const pith_seq *seq, int32_t first, int32_t last, const char *keep)
{
    static int32_t pos[IDS_MAX];
    pith_model_info info;
    pith_model_get_info(model, &info);
    for (int32_t l = 0; l < info.n_layer; l++)
        for (int32_t h = 0; h < info.n_head_kv; h++) {
            pith_lane_info lane;
            int32_t n = 0;
            assert_int_equal(pith_seq_lane(seq, l, h, &lane, pos, IDS_MAX), PITH_OK);
            for (int32_t i = 0; i < lane.n_entry; i++)
                n += pos[i] >= first && pos[i] < last;
            if (n != last - first)
                fail_msg("%s: layer %d, head %d: %d of %d..%d", keep, l, h, n, first, last);
        }
}

/* The text put before the question of one turn, "" for none. Rounds during this text, the question
   and the answer keep all of it, within the budget. */
static const char *put_in(const char *keep, const char *question)
{
    static char prompt[65536], said[8192];
    pith_engine *e = engine_of(keep, "text");
    pith_generate_params params;
    pith_generate_result result;
    pith_keep_stats stats;
    int32_t all[IDS_MAX], n = 0;
    size_t len = 0;
    snprintf(prompt, sizeof(prompt), "%s%s", text, question);
    check(pith_tokenize(model, prompt, strlen(prompt), 0, all, IDS_MAX, &n, &err), &err);
    pith_generate_params_default(&params);
    params.n_predict = N_SAID;
    params.ignore_end = true;
    params.sample.temperature = 0.0f;
    params.message = prompt;
    params.message_len = strlen(prompt);
    pith_seq *seq = seq_make(e);
    check(pith_generate(seq, all, n, &params, NULL, NULL, &result, &err), &err);
    pith_seq_keep_stats(seq, &stats);
    assert_true(stats.rounds > 0);
    assert_true(stats.longest <= stats.budget + SLACK);
    assert_int_equal(pith_seq_length(seq), n + result.n_recalled + N_SAID - 1);
    if (result.n_recalled > 0) {
        /* The text's last token can hold the blank in front of the question. */
        expect_held(seq, n_context + 1, pith_seq_length(seq), keep);
        check(pith_detokenize(model, pith_seq_tokens(seq) + n_context - 1, result.n_recalled + 1,
                              false, said, sizeof(said) - 1, &len, &err),
              &err);
    }
    said[len] = '\0';
    pith_seq_free(seq);
    pith_engine_free(e);
    return said;
}

/* Protected entries leave more or less room. The inserted text gets room in every case. */
TEST(leaves_room_for_what_is_put_in)
{
    static const char *const keeps[] = {
        "random:sinks=4,window=32,budget=10%,slack=40",
        "random:sinks=4,window=8,budget=120,slack=40",
        "random:prefix=60,window=60,budget=240,slack=40",
        "random:prefix=100,window=20,budget=220,slack=40,segments=4",
        "streaming:sinks=4,budget=200,slack=40",
        "knorm:prefix=30,recent=0.3,budget=250,slack=40",
    };
    for (size_t i = 0; i < sizeof(keeps) / sizeof(*keeps); i++)
        for (int32_t k = 2; k < 6; k += EACH) { /* the first can lie in the prefix */
            char question[128], fact[128];
            snprintf(question, sizeof(question), "What is the password of %s?", facts[k][0]);
            snprintf(fact, sizeof(fact), "%s is%.*s", facts[k][0], (int)strcspn(facts[k][1], "."),
                     facts[k][1]);
            const char *said = put_in(keeps[i], question);
            if (strstr(said, fact) == NULL)
                fail_msg("%s: \"%s\" is not in \"%s\"", keeps[i], fact, said);
        }
}

/* Where nothing matches, or nothing asks, the prompt is read as it is. */
TEST(puts_nothing_in_where_nothing_matches)
{
    assert_string_equal(put_in(KEEP40, "Who invented the steam engine?"), "");
    assert_string_equal(put_in(KEEP40, "The password of Walter"), "");
}
