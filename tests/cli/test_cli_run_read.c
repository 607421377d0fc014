/*
 * `--read` on the command line. The report of `pith run` is compared with a sequence that the
 * library makes from the same text. Also `pith bench` with this option, and refusals.
 */
#include <jansson.h>
#include <stdbool.h>
#include <string.h>

#include "pith/inspect.h"
#include "pith/policy.h"
#include "status.h"
#include "testing.h"

#include "command.h"
#include "json_read.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define PROMPT PITH_SOURCE_DIR "/models/demo/prompt-2k.txt"
#define RUN "run", "-m", MODEL, "-t", "1", "-f", PROMPT, "--temp", "0", "-n", "8", "--ignore-eos"
#define CAP 4096

static const char *const policies[] = {
    "quoka:budget=256",
    "quoka:budget=25%,index=int8,phase=prompt",
    "keydiff:budget=1500,chunk=64",
    "quoka:budget=5000",
};
#define N_POLICY (sizeof(policies) / sizeof(policies[0]))

struct made {
    pith_read_stats stats;
    uint64_t hash;
};

/* The same with the library. */
static struct made make(const char *read, const char *keep)
{
    static char text[CAP * 8];
    static int32_t ids[CAP];
    pith_model_info info;
    pith_generate_params params;
    int32_t n;
    FILE *file = fopen(PROMPT, "rb");
    assert_non_null(file);
    size_t len = fread(text, 1, sizeof(text), file);
    fclose(file);
    pith_model *model = model_at(MODEL);
    pith_model_get_info(model, &info);
    pith_engine *engine =
        engine_with(model, (pith_engine_params){.n_thread = 1, .read = read, .keep = keep});
    pith_seq *seq = seq_make(engine);
    check(pith_tokenize(model, text, len, PITH_TOKENIZE_BOS, ids, CAP, &n, &err), &err);
    pith_generate_params_default(&params);
    params.n_predict = 8;
    params.ignore_end = true;
    params.sample.temperature = 0.0f;
    check(pith_generate(seq, ids, n, &params, NULL, NULL, NULL, &err), &err);
    struct made made = {.hash = pith_logits_hash(pith_seq_logits(seq), info.n_vocab)};
    pith_seq_read_stats(seq, &made.stats);
    pith_seq_free(seq);
    pith_engine_free(engine);
    pith_model_free(model);
    return made;
}

static void expect_json(const char *read, const char *keep)
{
    char hash[24];
    struct said s = keep != NULL ? command(NULL, RUN, "--json", "--read", read, "--keep", keep,
                                           "--recall", "none", NULL)
                                 : command(NULL, RUN, "--json", "--read", read, NULL);
    expect_status(&s, 0);
    json_t *o = json_loads(s.err, 0, NULL);
    assert_non_null(o);
    struct made m = make(read, keep);
    assert_string_equal(json_string_value(json_object_get(o, "read")), read);
    assert_int_equal(whole(o, "read_chunks"), m.stats.chunks);
    assert_int_equal(whole(o, "read_sparse"), m.stats.sparse);
    assert_int_equal(whole(o, "read_stored"), m.stats.stored);
    assert_int_equal(whole(o, "read_entries"), m.stats.read);
    assert_true(json_real_value(json_object_get(o, "read_s")) > 0.0);
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)m.hash);
    assert_string_equal(json_string_value(json_object_get(o, "logits_hash")), hash);
    json_decref(o);
}

TEST(json_tells_what_was_read)
{
    for (size_t i = 0; i < N_POLICY; i++)
        expect_json(policies[i], NULL);
    expect_json(policies[0], "streaming:budget=700");
    struct said s = command(NULL, RUN, "--json", NULL);
    expect_word(s.err, "\"read\":\"none\"");
    assert_null(strstr(s.err, "read_chunks"));
}

TEST(lines_tell_what_was_read)
{
    for (size_t i = 0; i < N_POLICY; i++) {
        char part[80], chunks[80];
        struct said s = command(NULL, RUN, "--read", policies[i], NULL);
        expect_status(&s, 0);
        struct made m = make(policies[i], NULL);
        snprintf(part, sizeof(part), "%.*s: %.1f %% of ", (int)strcspn(policies[i], ":"),
                 policies[i], 100.0 * (double)m.stats.read / (double)m.stats.stored);
        snprintf(chunks, sizeof(chunks), "k entries; %lld of %lld lane chunks read a part",
                 (long long)m.stats.sparse, (long long)m.stats.chunks);
        expect_word(s.err, part);
        expect_word(s.err, chunks);
        assert_int_equal(m.stats.sparse == 0, i == 3);
    }
    struct said s = command(NULL, RUN, "--read", "quoka:budget=1024", "-n", "3", NULL);
    expect_word(s.err, "; generated tokens read lanes of up to 6144 entries whole (gate)");
    s = command(NULL, RUN, "--read", "quoka:budget=25%", "-n", "3", NULL);
    expect_word(s.err, "; generated tokens read everything (gate)");
    s = command(NULL, RUN, "--read", "quoka:budget=25%,gate=1", "-n", "3", NULL);
    assert_null(strstr(s.err, "(gate)"));
    s = command(NULL, RUN, "--read", "quoka:phase=decode", "-n", "1", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "quoka: no chunk that it chooses for");
    s = command(NULL, RUN, "--read", "none", NULL);
    expect_status(&s, 0);
    assert_null(strstr(s.err, "lane chunks"));
}

TEST(bench_takes_read)
{
    struct said s = command(NULL, "bench", "-m", MODEL, "-t", "1", "-p", "64", "-n", "2", "-r", "1",
                            "-d", "300", "--read", "quoka:budget=64", "-o", "csv", NULL);
    expect_status(&s, 0);
    expect_word(s.out, ",keep,read,recall,share,chunk,");
    expect_word(s.out, "\"none\",\"quoka:budget=64\",\"none\",\"none\",512,");
}

TEST(refuses_bad_read_options)
{
    struct said s = command(NULL, RUN, "--read", "quokka", NULL);
    expect_failure(&s, 2, "--read: \"quokka\" is not a policy");
    s = command(NULL, RUN, "--read", "quoka:budget=1GiB", NULL);
    expect_failure(&s, 2, "--read: budget");
    s = command(NULL, RUN, "--read", "quoka", "--chunk", "64", NULL);
    expect_failure(&s, 1, "128 tokens choose together");
    s = command(NULL, RUN, "--read", "quoka", "--keep", "longflow", NULL);
    expect_failure(&s, 1, "phase=prompt");
}
