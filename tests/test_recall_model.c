/*
 * test_recall_model.c - the small model of the repository loses facts under a tenth of its cache,
 * and recall brings them back: from the beginning, the middle and the end of a text of 1,200 words,
 * in one turn and in two.
 */
#include <string.h>

#include "testing.h"

#include "status.h"

#include <pith.h>

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

static int32_t encode(const char *s, int32_t *out)
{
    int32_t n = 0;
    pith_error err;
    check(pith_tokenize(model, s, strlen(s), 0, out, IDS_MAX, &n, &err), &err);
    return n;
}

static int load(void **state)
{
    pith_error err;
    FILE *f = fopen(TEXT, "rb");
    (void)state;
    assert_non_null(f);
    size_t len = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[len] = '\0';
    char *question = strstr(text, "Question:");
    assert_non_null(question);
    *question = '\0';
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    n_context = encode(text, ids);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    pith_model_free(model);
    return 0;
}

static pith_engine *engine_of(const char *keep, const char *recall)
{
    pith_engine_params p;
    pith_engine *e;
    pith_error err;
    pith_engine_params_default(&p);
    p.keep = keep;
    p.recall = recall;
    p.page_len = 16;
    p.kv_tokens = 3000;
    p.n_thread = 2;
    check(pith_engine_create(model, &p, &e, &err), &err);
    return e;
}

/* Whether the model names the password behind what it read. */
static bool answers(pith_seq *seq, const char *answer)
{
    int32_t want[32], n = encode(answer, want), n_vocab;
    pith_model_info info;
    pith_error err;
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
    pith_seq *base;
    pith_error err;
    int32_t n_found = 0;
    check(pith_seq_create(e, &base, &err), &err);
    if (!one_turn)
        check(pith_seq_eval(base, ids, n_context, &err), &err);
    for (int32_t i = 0; i < N_FACT; i++) {
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
#define N_NEAR 4

static void test_needles(void **state)
{
    (void)state;
    int32_t full = found("none", NULL, false), alone = found(KEEP, NULL, false);
    int32_t back = found(KEEP, "kv:last=16", false), plain = found(KEEP, "kv", false);
    print_message("%d tokens, %d facts: full %d, keep %d, keep and recall %d, by default %d\n",
                  n_context, N_FACT, full, alone, back, plain);
    assert_int_equal(full, N_FACT);
    assert_true(alone <= N_NEAR);
    assert_int_equal(back, full);
    assert_true(plain >= full - 1);
}

/* A text longer than the budget that ends with its question. */
static void test_one_turn(void **state)
{
    (void)state;
    int32_t alone = found(KEEP, NULL, true), back = found(KEEP, "kv:last=16", true);
    int32_t plain = found(KEEP, "kv", true);
    print_message("one turn: keep %d, keep and recall %d, by default %d\n", alone, back, plain);
    assert_true(alone <= N_NEAR);
    assert_int_equal(back, N_FACT);
    assert_true(plain >= N_FACT - 2);
}

/* The form `text`: what went is found by the question, and by no other sequence. */
static void test_text(void **state)
{
    pith_engine *e = engine_of(KEEP, "text");
    pith_seq *seq, *fork, *other;
    pith_recall_stats stats;
    pith_error err;
    const char *ask = "Hello. Question: What is the password of Carl?";
    char *got = NULL;
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_needles),
        cmocka_unit_test(test_one_turn),
        cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
