/*
 * batch_rig.h - the common part of the tests of `pith batch`: files of requests, runs of the
 * command, and its output by custom_id. For one file of a test program, which asks for POSIX.1-2008
 * first.
 */
#ifndef PI_TEST_BATCH_RIG_H
#define PI_TEST_BATCH_RIG_H

#include <jansson.h>
#include <stdbool.h>
#include <string.h>

#include "command.h"
#include "pith/pith.h"
#include "testing.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define WORDS 48
#define FACTS "The password of Maria is copper lantern. The friend of Anton is Emma."

static const char *const questions[] = {
    "\nQuestion: What is the password of Maria?\nAnswer:",
    "\nQuestion: Who is the friend of Anton?\nAnswer:",
    "\nOne summer the old smith",
    "\nThe way goes from",
};

/* ---- lines ---- */

/* A line of the input; body is taken over. */
static inline void add_line(FILE *file, const char *id, const char *url, json_t *body)
{
    json_t *line = json_pack("{s:s, s:s, s:s, s:o}", "custom_id", id, "method", "POST", "url", url,
                             "body", body);
    assert_non_null(line);
    assert_int_equal(json_dumpf(line, file, JSON_COMPACT), 0);
    fputc('\n', file);
    json_decref(line);
}

static inline FILE *open_file(const char *name, char *path)
{
    FILE *file = fopen(in_folder(name, path), "w");
    assert_non_null(file);
    return file;
}

static inline void close_file(FILE *file)
{
    assert_int_equal(fclose(file), 0);
}

/* The lines of an output by custom_id: each once, each whole. The caller frees. */
static inline json_t *read_output(const char *path)
{
    json_t *all = json_object();
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    while ((len = getline(&line, &cap, file)) > 0) {
        json_error_t error;
        assert_int_equal(line[len - 1], '\n');
        json_t *json = json_loadb(line, (size_t)len, 0, &error);
        if (json == NULL)
            fail_msg("%s: \"%s\"", error.text, line);
        const char *id = json_string_value(json_object_get(json, "custom_id"));
        assert_non_null(id);
        if (json_object_get(all, id) != NULL)
            fail_msg("\"%s\" is there twice", id);
        assert_int_equal(json_object_set_new(all, id, json), 0);
    }
    free(line);
    fclose(file);
    return all;
}

static inline size_t count_lines(const char *path)
{
    FILE *file = fopen(path, "r");
    size_t n = 0;
    if (file == NULL)
        return 0;
    for (int c = fgetc(file); c != EOF; c = fgetc(file))
        n += c == '\n';
    fclose(file);
    return n;
}

/* The body of an answered request, borrowed from all. */
static inline const json_t *body_of(const json_t *all, const char *id)
{
    const json_t *line = json_object_get(all, id);
    const json_t *response = json_object_get(line, "response");
    if (json_integer_value(json_object_get(response, "status_code")) != 200)
        fail_msg("\"%s\": %s", id, line == NULL ? "no line" : json_dumps(line, JSON_COMPACT));
    assert_true(json_is_null(json_object_get(line, "error")));
    return json_object_get(response, "body");
}

static inline const json_t *choice_of(const json_t *all, const char *id, size_t i)
{
    const json_t *choice = json_array_get(json_object_get(body_of(all, id), "choices"), i);
    assert_int_equal(json_integer_value(json_object_get(choice, "index")), i);
    return choice;
}

static inline const char *text_of(const json_t *choice)
{
    const json_t *message = json_object_get(choice, "message");
    if (message == NULL)
        return json_string_value(json_object_get(choice, "text"));
    assert_string_equal(json_string_value(json_object_get(message, "role")), "assistant");
    return json_string_value(json_object_get(message, "content"));
}

static inline const char *word_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static inline int64_t number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

/* ---- requests ---- */

struct plain {
    char prompt[512];
    char n_predict[16];
    char temp[16];
    char seed[16];
};

/* Prompts that begin alike, some of them drawn by chance. */
static inline void make_plain(int i, struct plain *p)
{
    snprintf(p->prompt, sizeof(p->prompt), "%s%s%s%s", FACTS, i % 3 > 0 ? " " FACTS : "",
             i % 3 > 1 ? " " FACTS : "", questions[i % 4]);
    snprintf(p->n_predict, sizeof(p->n_predict), "%d", 5 + 11 * i);
    snprintf(p->temp, sizeof(p->temp), "%s", i % 2 == 0 ? "0" : "0.9");
    snprintf(p->seed, sizeof(p->seed), "%d", i);
}

static inline void write_plain(const char *name, char *path, int n)
{
    FILE *file = open_file(name, path);
    for (int i = 0; i < n; i++) {
        struct plain p;
        char id[16];
        make_plain(i, &p);
        snprintf(id, sizeof(id), "r%d", i);
        add_line(file, id, "/v1/completions",
                 json_pack("{s:s, s:i, s:f, s:i}", "prompt", p.prompt, "max_tokens",
                           atoi(p.n_predict), "temperature", atof(p.temp), "seed", atoi(p.seed)));
    }
    close_file(file);
}

static inline json_t *chat_body(const char *text, int n_token)
{
    return json_pack("{s:[{s:s, s:s}], s:i}", "messages", "role", "user", "content", text,
                     "max_tokens", n_token);
}

/* ---- runs ---- */

/* Runs `pith batch` on a file with some more words, ended by NULL. */
static inline struct said batch(const char *in, const char *out, const char *const *more)
{
    static const char *const first[] = {"batch", "-m", MODEL, "-t", "1", "-q", "-f"};
    const char *words[WORDS];
    int n = 0;
    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++)
        words[n++] = first[i];
    words[n++] = in;
    words[n++] = "-o";
    words[n++] = out;
    for (; more != NULL && *more != NULL && n < WORDS - 1; more++)
        words[n++] = *more;
    words[n] = NULL;
    return command_list(NULL, NULL, words);
}

/* The same, which succeeds and says nothing; returns its output. */
static inline json_t *batch_all(const char *in, const char *out, const char *const *more)
{
    remove(out);
    struct said s = batch(in, out, more);
    expect_status(&s, 0);
    assert_string_equal(s.err, "");
    assert_string_equal(s.out, "");
    return read_output(out);
}

/* The lines are the same with any other requests and options, except for the time, the found
   tokens, and the order. */
static inline void forget_company(json_t *all)
{
    const char *id;
    json_t *line;
    json_object_foreach(all, id, line)
    {
        json_t *body = json_object_get(json_object_get(line, "response"), "body");
        json_object_del(body, "created");
        json_object_del(json_object_get(body, "usage"), "prompt_tokens_details");
    }
}

#endif
