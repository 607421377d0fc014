/*
 * test_stories.c - a trained model end to end: stories260K, converted by
 * scripts/convert_llama2c.py, tells the same greedy story as llama.cpp does from that file
 * (golden/story.txt, made by scripts/golden/story.py). Tokenizer, pass, sampler, stream and
 * detokenizer must all agree.
 */
#include <string.h>

#include "stories.h"
#include "status.h"

#define GOLDEN PITH_SOURCE_DIR "/tests/golden/story.txt"
#define MAX_IDS 512
#define MAX_TEXT 8192

static struct {
    char opening[256];
    int32_t prompt[MAX_IDS], ids[MAX_IDS];
    int32_t n_prompt, n_id;
    char text[MAX_TEXT]; /* opening and story */
} golden;

static int32_t read_ids(char *text, int32_t *ids)
{
    int32_t n = 0;
    for (char *word = strtok(text, " \n"); word != NULL; word = strtok(NULL, " \n")) {
        assert_true(n < MAX_IDS);
        ids[n++] = (int32_t)strtol(word, NULL, 10);
    }
    return n;
}

/* llama.cpp's detokenizer leaves the space that its tokenizer put before the first word. */
static void read_golden(void)
{
    static char line[MAX_TEXT];
    FILE *file = fopen(GOLDEN, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL && strcmp(line, "text\n") != 0) {
        if (strncmp(line, "opening ", 8) == 0)
            snprintf(golden.opening, sizeof(golden.opening), "%.*s", (int)strcspn(line + 8, "\n"),
                     line + 8);
        else if (strncmp(line, "prompt ", 7) == 0)
            golden.n_prompt = read_ids(line + 7, golden.prompt);
        else if (strncmp(line, "ids ", 4) == 0)
            golden.n_id = read_ids(line + 4, golden.ids);
    }
    size_t len = fread(golden.text, 1, sizeof(golden.text) - 1, file);
    fclose(file);
    if (golden.text[0] == ' ')
        memmove(golden.text, golden.text + 1, len);
}

TEST_GROUP(read_golden, NULL);

struct told {
    char text[MAX_TEXT];
    size_t len;
};

static bool take_text(void *user, const char *text, size_t len)
{
    struct told *told = user;
    assert_true(told->len + len < sizeof(told->text));
    memcpy(told->text + told->len, text, len);
    told->len += len;
    return true;
}

static void tell(const pith_model *model, const char *type, int32_t n_thread)
{
    static struct told told;
    err = (pith_error){0};
    pith_engine *engine;
    pith_seq *seq;
    pith_engine_params params;
    pith_generate_params generate;
    memset(&told, 0, sizeof(told));
    pith_engine_params_default(&params);
    params.type_k = params.type_v = type;
    params.n_thread = n_thread;
    check(pith_engine_create(model, &params, &engine, &err), &err);
    check(pith_seq_create(engine, &seq, &err), &err);
    pith_generate_params_default(&generate);
    generate.n_predict = golden.n_id;
    generate.ignore_end = true;
    generate.sample.temperature = 0;
    check(
        pith_generate(seq, golden.prompt, golden.n_prompt, &generate, take_text, &told, NULL, &err),
        &err);

    /* The last token was chosen but not evaluated. */
    const int32_t *ids = pith_seq_tokens(seq);
    assert_int_equal(pith_seq_length(seq), golden.n_prompt + golden.n_id - 1);
    for (int32_t i = 0; i < golden.n_id - 1; i++)
        if (ids[golden.n_prompt + i] != golden.ids[i])
            fail_msg("%s cache, token %d: %d, llama.cpp %d", type, i, ids[golden.n_prompt + i],
                     golden.ids[i]);
    assert_string_equal(told.text, golden.text + strlen(golden.opening));
    pith_seq_free(seq);
    pith_engine_free(engine);
}

TEST(tells_the_story_that_llama_cpp_tells)
{
    err = (pith_error){0};
    pith_model *model = stories_load();
    int32_t ids[MAX_IDS], n = 0;
    assert_true(golden.n_id >= 200);
    check(pith_tokenize(model, golden.opening, strlen(golden.opening), PITH_TOKENIZE_BOS, ids,
                        MAX_IDS, &n, &err),
          &err);
    assert_int_equal(n, golden.n_prompt);
    assert_memory_equal(ids, golden.prompt, (size_t)n * sizeof(*ids));
    tell(model, "f32", 2);
    tell(model, "f16", 1);
    pith_model_free(model);
}

TEST(tokens_of_the_story_give_its_text)
{
    err = (pith_error){0};
    pith_model *model = stories_load();
    char text[MAX_TEXT];
    int32_t ids[2 * MAX_IDS];
    size_t len = 0;
    memcpy(ids, golden.prompt, (size_t)golden.n_prompt * sizeof(*ids));
    memcpy(ids + golden.n_prompt, golden.ids, (size_t)golden.n_id * sizeof(*ids));
    check(pith_detokenize(model, ids, golden.n_prompt + golden.n_id, false, text, sizeof(text),
                          &len, &err),
          &err);
    assert_int_equal(len, strlen(golden.text));
    assert_memory_equal(text, golden.text, len);
    pith_model_free(model);
}
