/*
 * test_real.c - a real pretrained model, SmolLM2-135M-Instruct, from the folder that PITH_MODELS
 * names. It loads and writes the text of llama.cpp (golden/real.txt, made by
 * scripts/golden/real.py). It finds facts of a text under the full cache and under a budget.
 */
#define _POSIX_C_SOURCE 200809L

#include <string.h>

#include "testing.h"

#include <facts.h>
#include <jansson.h>
#include "pith/pith.h"
#include "status.h"
#include "json_read.h"

#define SMOLLM2 "smollm2-135m-instruct-q4_1.gguf"
#define GOLDEN PITH_SOURCE_DIR "/tests/golden/real.txt"
#define MAX_IDS 64

static pith_model *load(void)
{
    pith_model *model = NULL;
    check(pith_model_load(test_model_file("smollm2", SMOLLM2), NULL, &model, &err), &err);
    return model;
}

TEST(loads_a_real_model)
{
    pith_model *model = load();
    pith_model_info info;
    pith_model_get_info(model, &info);
    assert_string_equal(info.architecture, "llama");
    assert_int_equal(info.n_layer, 30);
    assert_int_equal(info.n_head_kv, 3);
    assert_int_equal(info.n_ctx_train, 8192);
    assert_non_null(strstr(pith_chat_template(model), "named SmolLM, trained by Hugging Face"));
    pith_model_free(model);
}

/* ---- llama.cpp's text ---- */

static int32_t read_ids(char *text, int32_t *ids)
{
    int32_t n = 0;
    for (char *word = strtok(text, " \n"); word != NULL; word = strtok(NULL, " \n")) {
        assert_true(n < MAX_IDS);
        ids[n++] = (int32_t)strtol(word, NULL, 10);
    }
    return n;
}

static void tell(const pith_model *model, const int32_t *prompt, int32_t n_prompt,
                 const int32_t *ids, int32_t n_id)
{
    pith_engine_params params;
    pith_generate_params generate;
    pith_engine *engine = NULL;
    pith_seq *seq = NULL;
    pith_engine_params_default(&params);
    params.n_thread = 2;
    params.kv_tokens = 256;
    check(pith_engine_create(model, &params, &engine, &err), &err);
    check(pith_seq_create(engine, &seq, &err), &err);
    pith_generate_params_default(&generate);
    generate.n_predict = n_id;
    generate.ignore_end = true;
    generate.sample.temperature = 0;
    check(pith_generate(seq, prompt, n_prompt, &generate, NULL, NULL, NULL, &err), &err);
    const int32_t *said = pith_seq_tokens(seq) + n_prompt;
    for (int32_t i = 0; i < n_id - 1; i++)
        if (said[i] != ids[i])
            fail_msg("token %d: %d, llama.cpp %d", i, said[i], ids[i]);
    pith_seq_free(seq);
    pith_engine_free(engine);
}

TEST(writes_what_llama_cpp_writes)
{
    static char line[4096], opening[512];
    int32_t prompt[MAX_IDS], ids[MAX_IDS], said[MAX_IDS], n_prompt = 0, n_text = 0, n = 0;
    pith_model *model = load();
    FILE *file = fopen(GOLDEN, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "opening ", 8) == 0) {
            snprintf(opening, sizeof(opening), "%.*s", (int)strcspn(line + 8, "\n"), line + 8);
        } else if (strncmp(line, "prompt ", 7) == 0) {
            n_prompt = read_ids(line + 7, prompt);
            check(pith_tokenize(model, opening, strlen(opening), PITH_TOKENIZE_BOS, said, MAX_IDS,
                                &n, &err),
                  &err);
            assert_int_equal(n, n_prompt);
            assert_memory_equal(said, prompt, (size_t)n * sizeof(*said));
        } else if (strncmp(line, "ids ", 4) == 0) {
            tell(model, prompt, n_prompt, ids, read_ids(line + 4, ids));
            n_text++;
        }
    }
    fclose(file);
    assert_true(n_text >= 4);
    pith_model_free(model);
}

/* ---- facts ---- */

static json_t *facts(const pith_model *model, const char *keep, bool paired)
{
    static const int32_t lengths[] = {1024};
    struct eval_setup setup = {.model = model, .seed = 1, .chat = true};
    struct eval_facts_texts_params p = {
        .lengths = lengths, .n_length = 1, .n_text = 1, .n_predict = 24, .paired = paired};
    json_t *result = NULL;
    pith_engine_params_default(&setup.engine);
    setup.engine.n_thread = 2;
    setup.engine.keep = keep;
    check(eval_facts_texts(&setup, &p, &result, &err), &err);
    return result;
}

/* The model finds most facts, and a cache that loses a tenth loses few of them. */
TEST(a_cache_that_loses_a_tenth_loses_few_facts)
{
    if (TEST_STRIDE > 1)
        test_skip("with sanitizers a text takes minutes");
    pith_model *model = load();
    json_t *result = facts(model, "keydiff:budget=90%,slack=16", true);
    assert_true(figure(result, "full_score") >= 0.5);
    assert_true(figure(result, "recovered") >= 0.75);
    assert_true(figure(result, "evicted") > 0.0);
    json_decref(result);
    pith_model_free(model);
}
