/*
 * test_cli_share.c - `--share` on the command line. The reports of `pith run` and `pith eval` are
 * compared with a sequence of the library. Also the result of `pith calibrate share`, a derivation
 * with recurring parts that keeps its answer, and refusals.
 */
#define _POSIX_C_SOURCE 200809L

#include <jansson.h>
#include <stdbool.h>
#include <string.h>

#include "pith/inspect.h"
#include "pith/policy.h"
#include "status.h"
#include "testing.h"

#include "command.h"

TEST_GROUP(folder_make, folder_remove);

#define MODEL PITH_SOURCE_DIR "/models/pith-mini.gguf"
#define SHARE "memshare:step=0.8,block=0.15"
#define N_PREDICT 700

/* A prompt of the derivation task, which the model was trained on. */
static const char prompt[] =
    "Sums modulo 20: #1 0&3 #2 9&10 #3 7&16 #4 17&16 #5 7&16 #6 3&17 #7 7&16 #8 17&16 #9 9&10 "
    "#10 11&12 #11 0&3 #12 11&12.\n\n";

static json_t *number_of(const json_t *o, const char *key)
{
    json_t *value = json_object_get(o, key);
    if (!json_is_number(value))
        fail_msg("no number \"%s\"", key);
    return value;
}

struct made {
    pith_share_stats stats;
    int32_t n_token;
    uint64_t hash;
};

/* The same with the library. */
static struct made make(const char *share)
{
    int32_t ids[512], n;
    pith_model_info info;
    pith_generate_params g;
    struct made made;
    pith_model *model = model_at(MODEL);
    pith_model_get_info(model, &info);
    pith_engine *engine = engine_with(model, (pith_engine_params){.n_thread = 1, .share = share});
    pith_seq *seq = seq_make(engine);
    check(pith_tokenize(model, prompt, strlen(prompt), PITH_TOKENIZE_BOS, ids, 512, &n, &err),
          &err);
    pith_generate_params_default(&g);
    g.n_predict = N_PREDICT;
    g.sample.temperature = 0.0f;
    check(pith_generate(seq, ids, n, &g, NULL, NULL, NULL, &err), &err);
    pith_seq_share_stats(seq, &made.stats);
    made.n_token = pith_seq_length(seq);
    made.hash = pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
    pith_seq_free(seq);
    pith_engine_free(engine);
    pith_model_free(model);
    return made;
}

#define RUN "run", "-m", MODEL, "-t", "1", "-p", prompt, "--temp", "0", "-n", "700", "-c", "1200"

TEST(run_tells_what_was_shared)
{
    struct made m = make(SHARE);
    char hash[32];
    assert_true(m.stats.pages_shared > 0);
    struct said s = command(NULL, RUN, "--share", SHARE, "--json", NULL);
    expect_status(&s, 0);
    json_t *o = json_loads(strrchr(s.err, '{') != NULL ? strchr(s.err, '{') : "", 0, NULL);
    assert_non_null(o);
    assert_string_equal(json_string_value(json_object_get(o, "share")), SHARE);
    assert_int_equal(json_integer_value(number_of(o, "share_steps")), m.stats.steps_closed);
    assert_int_equal(json_integer_value(number_of(o, "share_steps_similar")),
                     m.stats.steps_similar);
    assert_int_equal(json_integer_value(number_of(o, "share_pages")), m.stats.pages_shared);
    assert_int_equal(json_integer_value(number_of(o, "share_tokens")), m.stats.tokens_shared);
    assert_int_equal(json_integer_value(number_of(o, "share_bytes_saved")), m.stats.bytes_saved);
    double affected = (double)m.stats.tokens_shared / m.n_token;
    assert_true(json_number_value(number_of(o, "share_affected")) == affected);
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)m.hash);
    assert_string_equal(json_string_value(json_object_get(o, "logits_hash")), hash);
    json_decref(o);
    s = command(NULL, RUN, "--share", SHARE, NULL);
    expect_status(&s, 0);
    expect_word(s.err, "memshare: ");
    expect_word(s.err, "pages shared (");
}

/* Sharing at this threshold loses no fact. */
TEST(a_small_threshold_keeps_the_answer)
{
    struct said plain = command(NULL, RUN, NULL),
                shared = command(NULL, RUN, "--share", SHARE, NULL);
    expect_status(&shared, 0);
    expect_word(plain.out, "Answer:");
    assert_string_equal(plain.out, shared.out);
}

TEST(eval_tells_what_was_shared)
{
    struct said s = command(NULL, "eval", "derivation", "-m", MODEL, "-t", "1", "--parts", "8",
                            "--samples", "2", "--share", SHARE, "--json", "-", NULL);
    expect_status(&s, 0);
    json_t *o = json_loads(s.out, 0, NULL);
    const json_t *t = json_object_get(json_object_get(o, "summary"), "share");
    assert_string_equal(json_string_value(json_object_get(o, "share")), SHARE);
    assert_true(json_integer_value(number_of(t, "steps")) >= 14);
    assert_true(json_number_value(number_of(t, "affected")) > 0.0);
    json_decref(o);
}

TEST(calibrate_finds_thresholds)
{
    char path[128];
    write_file(in_folder("prompt.txt", path), prompt);
    struct said s = command(NULL, "calibrate", "share", "-m", MODEL, "-t", "1", "-f", path,
                            "--select", "generated", "-n", "700", "--temp", "0", NULL);
    expect_status(&s, 0);
    expect_word(s.out, "have one like them before");
    expect_word(s.out, "\nrms: quantiles");
    expect_word(s.out, "\nrelative: quantiles");
    expect_word(s.out, "\npaper: quantiles");
    expect_word(s.out, "  by chance");
    expect_word(s.out, "all but 1 % of random pages are further apart: block=");
    expect_word(s.out, "of like steps with other tokens are too few to suggest"); /* 12 steps */
    s = command(NULL, "calibrate", "share", "random", "-m", MODEL, "-f", path, NULL);
    expect_failure(&s, 2, "memshare alone");
}

TEST(bench_and_policies_take_share)
{
    struct said s = command(NULL, "bench", "-m", MODEL, "-t", "1", "-p", "32", "-n", "2", "-r", "1",
                            "-d", "64", "--share", SHARE, "-o", "csv", NULL);
    expect_status(&s, 0);
    expect_word(s.out, "\"" SHARE "\",512,");
    s = command(NULL, "policies", NULL);
    expect_word(s.out, "--share NAME:key=value");
    s = command(NULL, "policies", "memshare", NULL);
    expect_word(s.out, "across=no");
    expect_word(s.out, "One user's text");
}

TEST(refuses_bad_share_options)
{
    static const char *const bad[][2] = {{"memshare:block=-1", "block"},
                                         {"memshare:form=cosine", "form"},
                                         {"memshare:across=yes,mode=literal", "across"},
                                         {"foo", "memshare, random"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct said s = command(NULL, RUN, "--share", bad[i][0], NULL);
        expect_failure(&s, 2, bad[i][1]);
    }
    struct said s = command(NULL, RUN, "--share", "memshare", "--keep", "longflow:budget=64", NULL);
    expect_failure(&s, 1, "overwrites");
}
