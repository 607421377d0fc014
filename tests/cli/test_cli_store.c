/*
 * `-ctk` and `-ctv` on the command line. Every pair of types gives the library's result, `pith
 * info` lists the cost of each, and an unknown type is refused before a model is read.
 */
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "pith/inspect.h"
#include "status.h"
#include "testing.h"

#include "command.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define LAYERS PITH_SOURCE_DIR "/models/pith-mini.gguf" /* 6: enough for edges of 2 + 2 */
#define TEXT "The password of Maria is copper lantern.\nQuestion: What is the password of Maria?\n"
#define RUN "run", "-m", MODEL, "-t", "1", "-p", TEXT, "--temp", "0", "-n", "8", "--ignore-eos"

static const char *const types[] = {"f32",    "f16",    "q8_0",   "q4_0",
                                    "turbo4", "turbo3", "turbo2", "bf16"};
#define N_TYPE (sizeof(types) / sizeof(types[0]))

/* Other texts that the options accept. */
static const char *const texts[][2] = {
    {"turbo3:force", "turbo3"},
    {"q8_0", "turbo2:q8_0=1+1"},
    {"turbo4:force:f16=0+1", "turbo2:turbo4=1+0"},
    {"f16:f32=1+2", "q4_0"},
};
#define N_TEXT (sizeof(texts) / sizeof(texts[0]))

/* The hash of the last logits, and the bytes of a token, by the library. */
static uint64_t make(const pith_model *model, const char *type_k, const char *type_v)
{
    int32_t ids[128], n;
    pith_model_info info;
    pith_generate_params params;
    pith_model_get_info(model, &info);
    pith_engine *engine = engine_with(
        model,
        (pith_engine_params){.n_thread = 1, .kv_tokens = 256, .type_k = type_k, .type_v = type_v});
    pith_seq *seq = seq_make(engine);
    check(pith_tokenize(model, TEXT, strlen(TEXT), PITH_TOKENIZE_BOS, ids, 128, &n, &err), &err);
    pith_generate_params_default(&params);
    params.n_predict = 8;
    params.ignore_end = true;
    params.sample.temperature = 0.0f;
    check(pith_generate(seq, ids, n, &params, NULL, NULL, NULL, &err), &err);
    uint64_t hash = pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
    pith_seq_free(seq);
    pith_engine_free(engine);
    return hash;
}

static void expect_pair(const pith_model *model, const char *type_k, const char *type_v)
{
    char hash[64];
    struct said s = command(NULL, RUN, "--json", "-ctk", type_k, "-ctv", type_v, NULL);
    expect_status(&s, 0);
    snprintf(hash, sizeof(hash), "\"logits_hash\":\"%016llx\"",
             (unsigned long long)make(model, type_k, type_v));
    if (strstr(s.err, hash) == NULL)
        fail_msg("%s and %s: no %s in %s", type_k, type_v, hash, s.err);
}

TEST(every_pair_of_types_gives_the_librarys_bits)
{
    pith_model *model = model_at(MODEL);
    for (size_t i = 0; i < N_TYPE; i++) {
        expect_pair(model, types[i], types[N_TYPE - 1 - i]);
        expect_pair(model, types[i], "f16");
        expect_pair(model, "f16", types[i]);
    }
    for (size_t i = 0; i < N_TEXT; i++)
        expect_pair(model, texts[i][0], texts[i][1]);
    assert_true(make(model, "turbo2", "turbo2") != make(model, "turbo4", "turbo4"));
    assert_true(make(model, "q8_0", "turbo2:q8_0=1+1") != make(model, "q8_0", "turbo2"));
    pith_model_free(model);
}

TEST(refuses_what_is_no_type)
{
    static const char *const cases[][2] = {
        {"q9", "q9"},
        {"turbo5", "turbo5"},
        {"", "cache-type-k"},
        {"f16:soft", "soft"},
        {"turbo3:q8_0=2", "q8_0=2"},
        {"turbo3:q8_0=-1+2", "-1"},
        {"turbo3:q9=2+2", "q9"},
        {"turbo3:force:force", "force"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct said s = command(NULL, RUN, "-ctk", cases[i][0], NULL);
        expect_failure(&s, 2, cases[i][1]);
        s = command(NULL, RUN, "-ctv", cases[i][0], NULL);
        expect_failure(&s, 2, i == 2 ? "cache-type-v" : cases[i][1]);
    }
}

TEST(help_lists_every_type)
{
    struct said s = command(NULL, "run", "--help", NULL);
    struct said p = command(NULL, "policies", NULL);
    expect_status(&s, 0);
    expect_status(&p, 0);
    for (size_t i = 0; i < N_TYPE; i++) {
        char line[32];
        expect_word(s.out, types[i]);
        snprintf(line, sizeof(line), "\n  %s ", types[i]);
        expect_word(p.out, line);
    }
    expect_word(s.out, "FIRST+LAST");
    expect_word(p.out, "docs/store.md");
}

static double estimate(const pith_model *model, const char *type_k, const char *type_v)
{
    int64_t bytes;
    pith_engine_params p;
    pith_engine_params_default(&p);
    p.type_k = type_k;
    p.type_v = type_v;
    p.page_len = 64;
    check(pith_kv_estimate(model, &p, p.page_len, &bytes, &err), &err);
    return (double)bytes / p.page_len;
}

static void expect_costs(const pith_model *model, const json_t *list)
{
    size_t i;
    json_t *pair;
    double f16 = estimate(model, "f16", "f16");
    json_array_foreach(list, i, pair)
    {
        double bytes = json_number_value(json_object_get(pair, "bytes_per_token"));
        double expected = estimate(model, json_string_value(json_object_get(pair, "type_k")),
                                   json_string_value(json_object_get(pair, "type_v")));
        assert_true(fabs(bytes - expected) < 1e-6);
        assert_true(fabs(json_number_value(json_object_get(pair, "times_less")) - f16 / bytes) <
                    1e-9);
        assert_true(json_integer_value(json_object_get(pair, "fits_tokens")) > 0);
    }
}

TEST(info_tells_what_each_type_costs)
{
    char cell[64];
    pith_model *model = model_at(LAYERS);
    struct said s = command(NULL, "info", LAYERS, "--json", "--memory", "1GiB", NULL);
    expect_status(&s, 0);
    json_t *o = json_loads(s.out, 0, NULL);
    assert_non_null(o);
    assert_int_equal(json_array_size(json_object_get(o, "kv")), N_TYPE * N_TYPE);
    assert_true(json_array_size(json_object_get(o, "kv_edges")) > 0);
    assert_int_equal(json_integer_value(json_object_get(o, "heads_per_kv_head")), 2);
    expect_costs(model, json_object_get(o, "kv"));
    expect_costs(model, json_object_get(o, "kv_edges"));
    json_decref(o);
    s = command(NULL, "info", LAYERS, NULL);
    expect_status(&s, 0);
    snprintf(cell, sizeof(cell), "%.1f", estimate(model, "q8_0", "turbo3"));
    expect_word(s.out, cell);
    snprintf(cell, sizeof(cell), "%.2f",
             estimate(model, "f16", "f16") / estimate(model, "q4_0", "turbo2"));
    expect_word(s.out, cell);
    expect_word(s.out, "2 query heads share a KV head: turbo keys stay");
    expect_word(s.out, "turbo2:q8_0=2+2");
    pith_model_free(model);
}

TEST(bench_takes_storage_types)
{
    struct said s = command(NULL, "bench", "-m", MODEL, "-t", "1", "-p", "32", "-n", "2", "-r", "1",
                            "-ctk", "turbo4", "-ctv", "turbo2:q8_0=1+1", "-o", "csv", NULL);
    expect_status(&s, 0);
    expect_word(s.out, ",turbo4,turbo2:q8_0=1+1,\"none\"");
}
