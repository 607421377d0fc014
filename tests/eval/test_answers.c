/*
 * test_answers.c - the models that ship give llama.cpp's greedy answers, token for token, with
 * their weights in F32 and an F32 cache (golden/answers-*.jsonl, made by
 * scripts/golden/answers.py).
 */
#include <jansson.h>
#include <string.h>

#include "pith/inspect.h"
#include "testing.h"
#include "status.h"

#define GOLDEN PITH_SOURCE_DIR "/tests/golden/answers-%s.jsonl"
#define NEEDLES PITH_SOURCE_DIR "/models/demo/needles.jsonl"
#define MAX_IDS 8192
#define N_PROMPT 50

/* The lines of a JSONL file as an array. */
static json_t *read_lines(const char *path)
{
    json_error_t why;
    json_t *lines = json_array();
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int c; (c = getc(file)) != EOF;) {
        if (c == '\n')
            continue;
        ungetc(c, file);
        json_t *line = json_loadf(file, JSON_DISABLE_EOF_CHECK, &why);
        if (line == NULL)
            fail_msg("%s: line %d: %s", path, why.line, why.text);
        json_array_append_new(lines, line);
    }
    fclose(file);
    return lines;
}

static const char *prompt_of(const json_t *line, const json_t *needles)
{
    const json_t *needle = json_object_get(line, "needle");
    if (needle != NULL)
        line = json_array_get(needles, (size_t)json_integer_value(needle));
    return json_string_value(json_object_get(line, "prompt"));
}

/* Compares the tokens that follow the prompt with the line's. */
static void check_answer(pith_engine *engine, const char *prompt, const json_t *expected, size_t at)
{
    static int32_t ids[MAX_IDS];
    pith_seq *seq;
    int32_t n_id, n = (int32_t)json_array_size(expected);
    pith_generate_params params;
    pith_generate_params_default(&params);
    params.sample.temperature = 0.0f;
    params.n_predict = n + 1; /* the last token taken is not evaluated */
    params.ignore_end = true;
    check(pith_tokenize(pith_engine_model(engine), prompt, strlen(prompt), PITH_TOKENIZE_BOS, ids,
                        MAX_IDS, &n_id, &err),
          &err);
    check(pith_seq_create(engine, &seq, &err), &err);
    check(pith_generate(seq, ids, n_id, &params, NULL, NULL, NULL, &err), &err);
    assert_int_equal(pith_seq_length(seq), n_id + n);
    for (int32_t i = 0; i < n; i++) {
        int32_t want = (int32_t)json_integer_value(json_array_get(expected, (size_t)i));
        if (pith_seq_tokens(seq)[n_id + i] != want)
            fail_msg("prompt %zu: token %d is %d, not %d", at, i, pith_seq_tokens(seq)[n_id + i],
                     want);
    }
    pith_seq_free(seq);
}

static void check_model(const char *name)
{
    char path[512], exact[64];
    pith_model *model;
    pith_engine *engine;
    pith_engine_params params;
    snprintf(path, sizeof(path), PITH_SOURCE_DIR "/models/pith-%s.gguf", name);
    snprintf(exact, sizeof(exact), "test_answers_%s_%d.gguf", name, (int)getpid());
    check(pith_quantize(path, exact, "F32", 0, NULL, NULL, &err), &err);
    check(pith_model_load(exact, NULL, &model, &err), &err);
    remove(exact);
    pith_engine_params_default(&params);
    params.type_k = params.type_v = "f32";
    check(pith_engine_create(model, &params, &engine, &err), &err);

    snprintf(path, sizeof(path), GOLDEN, name);
    json_t *lines = read_lines(path), *needles = read_lines(NEEDLES);
    assert_int_equal(json_array_size(lines),
                     1 + N_PROMPT); /* the first line says how it was made */
    for (size_t i = 1; i < json_array_size(lines); i += TEST_STRIDE) {
        const json_t *line = json_array_get(lines, i);
        const char *prompt = prompt_of(line, needles);
        assert_non_null(prompt);
        check_answer(engine, prompt, json_object_get(line, "ids"), i);
    }
    json_decref(lines);
    json_decref(needles);
    pith_engine_free(engine);
    pith_model_free(model);
}

TEST(nano_answers_as_llama_cpp_does)
{
    check_model("nano");
}

TEST(mini_answers_as_llama_cpp_does)
{
    check_model("mini");
}
