/*
 * `pith batch` as its users meet it: each request gets what it gets alone, from `pith run` or from
 * the library; wrong ones are told what is wrong; and whatever ends the command, the output holds
 * whole lines that --resume goes on from.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include "pith.h"
#include "testing.h"

#include "command.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define FACTS "The password of Maria is copper lantern. The friend of Anton is Emma."
#define N_REQUEST 12
#define WORDS 48

static const char *const questions[] = {
    "\nQuestion: What is the password of Maria?\nAnswer:",
    "\nQuestion: Who is the friend of Anton?\nAnswer:",
    "\nOne summer the old smith",
    "\nThe way goes from",
};

/* ---- lines ---- */

/* A line of the input; body is taken over. */
static void add_line(FILE *file, const char *id, const char *url, json_t *body)
{
    json_t *line = json_pack("{s:s, s:s, s:s, s:o}", "custom_id", id, "method", "POST", "url", url,
                             "body", body);
    assert_non_null(line);
    assert_int_equal(json_dumpf(line, file, JSON_COMPACT), 0);
    fputc('\n', file);
    json_decref(line);
}

static FILE *open_file(const char *name, char *path)
{
    FILE *file = fopen(in_folder(name, path), "w");
    assert_non_null(file);
    return file;
}

static void close_file(FILE *file)
{
    assert_int_equal(fclose(file), 0);
}

/* The lines of an output by custom_id: each once, each whole. The caller frees. */
static json_t *read_output(const char *path)
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

static size_t count_lines(const char *path)
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
static const json_t *body_of(const json_t *all, const char *id)
{
    const json_t *line = json_object_get(all, id);
    const json_t *response = json_object_get(line, "response");
    if (json_integer_value(json_object_get(response, "status_code")) != 200)
        fail_msg("\"%s\": %s", id, line == NULL ? "no line" : json_dumps(line, JSON_COMPACT));
    assert_true(json_is_null(json_object_get(line, "error")));
    return json_object_get(response, "body");
}

static const json_t *choice_of(const json_t *all, const char *id, size_t i)
{
    const json_t *choice = json_array_get(json_object_get(body_of(all, id), "choices"), i);
    assert_int_equal(json_integer_value(json_object_get(choice, "index")), i);
    return choice;
}

static const char *text_of(const json_t *choice)
{
    const json_t *message = json_object_get(choice, "message");
    if (message == NULL)
        return json_string_value(json_object_get(choice, "text"));
    assert_string_equal(json_string_value(json_object_get(message, "role")), "assistant");
    return json_string_value(json_object_get(message, "content"));
}

static const char *word_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static int64_t number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

/* Runs `pith batch` on a file with some more words, ended by NULL. */
static struct said batch(const char *in, const char *out, const char *const *more)
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
static json_t *batch_all(const char *in, const char *out, const char *const *more)
{
    remove(out);
    struct said s = batch(in, out, more);
    expect_status(&s, 0);
    assert_string_equal(s.err, "");
    assert_string_equal(s.out, "");
    said_free(&s);
    return read_output(out);
}

/* ---- what each gets alone ---- */

struct plain {
    char prompt[512];
    char n_predict[16];
    char temp[16];
    char seed[16];
};

/* Prompts that begin alike, some of them drawn by chance. */
static void make_plain(int i, struct plain *p)
{
    snprintf(p->prompt, sizeof(p->prompt), "%s%s%s%s", FACTS, i % 3 > 0 ? " " FACTS : "",
             i % 3 > 1 ? " " FACTS : "", questions[i % 4]);
    snprintf(p->n_predict, sizeof(p->n_predict), "%d", 5 + 11 * i);
    snprintf(p->temp, sizeof(p->temp), "%s", i % 2 == 0 ? "0" : "0.9");
    snprintf(p->seed, sizeof(p->seed), "%d", i);
}

static void write_plain(const char *name, char *path, int n)
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

/* What `pith run` prints with these memory options. */
static struct said run_alone(const struct plain *p, const char *const *memory)
{
    const char *words[WORDS] = {"run",     "-m", MODEL,        "-t",     "1",     "-q", "-p",
                                p->prompt, "-n", p->n_predict, "--temp", p->temp, "-s", p->seed};
    int n = 14;
    for (; memory != NULL && *memory != NULL && n < WORDS - 1; memory++)
        words[n++] = *memory;
    words[n] = NULL;
    struct said s = command_list(NULL, NULL, words);
    expect_status(&s, 0);
    return s;
}

/* One set of options; memory is what `pith run` has as well. */
static void check_alone(const char *in, const char *const *memory, const char *const *schedule)
{
    char out[128];
    const char *more[WORDS] = {NULL};
    int n = 0;
    for (; memory != NULL && *memory != NULL; memory++)
        more[n++] = *memory;
    memory -= n;
    for (; *schedule != NULL; schedule++)
        more[n++] = *schedule;
    json_t *all = batch_all(in, in_folder("alone.jsonl", out), more);
    assert_int_equal(json_object_size(all), N_REQUEST);
    for (int i = 0; i < N_REQUEST; i++) {
        struct plain p;
        char id[16];
        make_plain(i, &p);
        snprintf(id, sizeof(id), "r%d", i);
        struct said alone = run_alone(&p, memory);
        assert_string_equal(text_of(choice_of(all, id, 0)), alone.out);
        said_free(&alone);
    }
    json_decref(all);
}

static void test_alone(void **state)
{
    (void)state;
    char in[128];
    static const char *const none[] = {NULL};
    static const char *const few[] = {"--seqs", "3", "--queue", "2", NULL};
    static const char *const tight[] = {"-c", "256", "--page", "16", "--reserve", "0", NULL};
    static const char *const steps[] = {"--step", "7", "--no-prefix", NULL};
    static const char *const pages[] = {"--page", "16", NULL};
    static const char *const keep[] = {"--keep", "streaming:budget=64,slack=16", "--page", "16",
                                       NULL};
    static const char *const coded[] = {"-ctk", "q8_0", "-ctv", "turbo3", "--page", "16", NULL};
    static const char *const share[] = {"--share", "memshare", NULL};
    static const char *const read[] = {"--read", "quoka:budget=32", NULL};
    static const char *const recall[] = {
        "--keep", "knorm:budget=64,slack=16", "--recall", "kv", "--page", "16", NULL};
    write_plain("plain.jsonl", in, N_REQUEST);
    check_alone(in, none, none);
    check_alone(in, none, few);
    check_alone(in, none, tight); /* where answers are put back and computed again */
    check_alone(in, pages, steps);
    check_alone(in, keep, few);
    check_alone(in, coded, none);
    check_alone(in, share, few);
    check_alone(in, read, none);
    check_alone(in, recall, few);
}

/* The same lines whatever runs beside and however: but for the time, the tokens that were found,
   and the order. */
static void forget_company(json_t *all)
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

static void test_company(void **state)
{
    (void)state;
    char in[128], out[128];
    static const char *const sets[][8] = {
        {NULL},
        {"-t", "2", NULL},
        {"--seqs", "2", "--page", "16", NULL},
        {"-c", "512", "--page", "16", "--step", "33", NULL},
    };
    write_plain("plain.jsonl", in, N_REQUEST);
    json_t *first = NULL;
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        json_t *all = batch_all(in, in_folder("company.jsonl", out), sets[i]);
        forget_company(all);
        if (first == NULL)
            first = json_incref(all);
        assert_true(json_equal(all, first));
        json_decref(all);
    }
    json_decref(first);
}

/* ---- kinds of requests ---- */

#define CHAT "--chat", "--chat-template", "chatml"

static json_t *chat_body(const char *text, int n_token)
{
    return json_pack("{s:[{s:s, s:s}], s:i}", "messages", "role", "user", "content", text,
                     "max_tokens", n_token);
}

static void test_chat(void **state)
{
    (void)state;
    char in[128], out[128];
    static const char text[] = "What is the password of Maria?";
    static const char *const options[] = {
        "--chat-template", "chatml", "-s", "40", "-sys", "Maria's password is copper.", NULL};
    FILE *file = open_file("chat.jsonl", in);
    json_t *body = chat_body(text, 30);
    json_object_set_new(body, "n", json_integer(3));
    json_object_set_new(body, "model", json_string("some \"model\""));
    add_line(file, "several", "/v1/chat/completions", body);
    /* Its own system message stands in the place of the option's, and parts are put together. */
    add_line(file, "parts", "/v1/chat/completions",
             json_pack("{s:[{s:s, s:s}, {s:s, s:[{s:s, s:s}, {s:s, s:s}]}], s:i, s:i}", "messages",
                       "role", "developer", "content", "Be brief.", "role", "user", "content",
                       "type", "text", "text", "What is the ", "type", "text", "text",
                       "password of Maria?", "max_completion_tokens", 30, "max_tokens", 5));
    close_file(file);
    json_t *all = batch_all(in, in_folder("chat.out", out), options);

    assert_int_equal(json_array_size(json_object_get(body_of(all, "several"), "choices")), 3);
    assert_string_equal(word_of(body_of(all, "several"), "object"), "chat.completion");
    assert_string_equal(word_of(body_of(all, "several"), "model"), "some \"model\"");
    assert_int_equal(strncmp(word_of(body_of(all, "several"), "id"), "chatcmpl-", 9), 0);
    for (int i = 0; i < 3; i++) {
        char seed[8];
        snprintf(seed, sizeof(seed), "%d", 40 + i);
        struct said s = command(NULL, "run", "-m", MODEL, "-t", "1", "-q", CHAT, "-p", text, "-n",
                                "30", "-s", seed, "-sys", "Maria's password is copper.", NULL);
        expect_status(&s, 0);
        assert_string_equal(text_of(choice_of(all, "several", (size_t)i)), s.out);
        said_free(&s);
    }
    struct said s = command(NULL, "run", "-m", MODEL, "-t", "1", "-q", CHAT, "-p", text, "-n", "30",
                            "-s", "40", "-sys", "Be brief.", NULL);
    assert_string_equal(text_of(choice_of(all, "parts", 0)), s.out);
    said_free(&s);
    json_decref(all);
}

/* A request's own word on thinking is that of --no-thinking. */
static void test_thinking(void **state)
{
    (void)state;
    char in[128], out[128];
    static const char *const options[] = {"--chat-template", "qwen3", "--temp", "0", NULL};
    FILE *file = open_file("think.jsonl", in);
    json_t *body = chat_body("Who is it?", 20);
    json_object_set_new(body, "chat_template_kwargs", json_pack("{s:b}", "enable_thinking", 0));
    add_line(file, "no", "/v1/chat/completions", body);
    add_line(file, "yes", "/v1/chat/completions", chat_body("Who is it?", 20));
    close_file(file);
    json_t *all = batch_all(in, in_folder("think.out", out), options);
    for (int i = 0; i < 2; i++) {
        struct said s = command(NULL, "run", "-m", MODEL, "-t", "1", "-q", "--chat",
                                "--chat-template", "qwen3", "-p", "Who is it?", "-n", "20",
                                "--temp", "0", i == 0 ? "--no-thinking" : NULL, NULL);
        expect_status(&s, 0);
        assert_string_equal(text_of(choice_of(all, i == 0 ? "no" : "yes", 0)), s.out);
        said_free(&s);
    }
    assert_true(number_of(json_object_get(body_of(all, "no"), "usage"), "prompt_tokens") >
                number_of(json_object_get(body_of(all, "yes"), "usage"), "prompt_tokens"));
    json_decref(all);
}

/* Prompts as texts and as ids, one and several, and an end by a string. */
static void test_prompts(void **state)
{
    (void)state;
    char in[128], out[128];
    int32_t ids[64], n_id = 0;
    pith_model *model = NULL;
    pith_error err;
    static const char *const options[] = {"--temp", "0", "-n", "12", NULL};
    static const char text[] = FACTS "\nQuestion: What is the password of Maria?\nAnswer:";
    assert_int_equal(pith_model_load(MODEL, NULL, &model, &err), PITH_OK);
    assert_int_equal(
        pith_tokenize(model, text, strlen(text), PITH_TOKENIZE_BOS, ids, 64, &n_id, &err), PITH_OK);
    pith_model_free(model);
    json_t *list = json_array();
    for (int32_t i = 0; i < n_id; i++)
        json_array_append_new(list, json_integer(ids[i]));
    FILE *file = open_file("prompts.jsonl", in);
    add_line(file, "text", "/v1/completions", json_pack("{s:s}", "prompt", text));
    add_line(file, "ids", "/v1/completions", json_pack("{s:O}", "prompt", list));
    add_line(file, "mixed", "/v1/completions",
             json_pack("{s:[O, s], s:i}", "prompt", list, text, "n", 2));
    add_line(file, "stop", "/v1/completions",
             json_pack("{s:s, s:[s, s]}", "prompt", text, "stop", "no such", " copper"));
    json_t *body = json_pack("{s:s, s:i}", "prompt", text, "max_tokens", 3);
    json_object_set_new(body, "logit_bias", json_pack("{s:i}", "500", 1000));
    add_line(file, "bias", "/v1/completions", body);
    add_line(file, "none", "/v1/completions",
             json_pack("{s:s, s:i}", "prompt", text, "max_tokens", 0));
    close_file(file);
    json_decref(list);

    json_t *all = batch_all(in, in_folder("prompts.out", out), options);
    const json_t *usage = json_object_get(body_of(all, "ids"), "usage");
    const char *answer = text_of(choice_of(all, "text", 0));
    expect_word(answer, "copper lantern");
    assert_string_equal(word_of(body_of(all, "text"), "object"), "text_completion");
    assert_string_equal(word_of(body_of(all, "text"), "model"), "pith-nano");
    assert_string_equal(text_of(choice_of(all, "ids", 0)), answer);
    assert_int_equal(number_of(usage, "prompt_tokens"), n_id);
    assert_int_equal(number_of(usage, "total_tokens"),
                     n_id + number_of(usage, "completion_tokens"));
    assert_int_equal(json_array_size(json_object_get(body_of(all, "mixed"), "choices")), 4);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(text_of(choice_of(all, "mixed", i)), answer);
    usage = json_object_get(body_of(all, "mixed"), "usage");
    assert_int_equal(number_of(usage, "prompt_tokens"), 2 * n_id);

    const char *stopped = text_of(choice_of(all, "stop", 0));
    assert_int_equal(strncmp(answer, stopped, strlen(stopped)), 0);
    assert_int_equal(strncmp(answer + strlen(stopped), " copper", 7), 0);
    assert_string_equal(word_of(choice_of(all, "stop", 0), "finish_reason"), "stop");
    assert_string_equal(word_of(choice_of(all, "bias", 0), "finish_reason"), "length");
    usage = json_object_get(body_of(all, "bias"), "usage");
    assert_int_equal(number_of(usage, "completion_tokens"), 3);
    assert_string_not_equal(text_of(choice_of(all, "bias", 0)), answer);
    assert_string_equal(text_of(choice_of(all, "none", 0)), "");
    json_decref(all);
}

/* ---- log probabilities ---- */

struct row {
    int32_t id;
    double logprob;
};

/* The library's greedy tokens after a text, with what the model thought of them. */
static int32_t make_rows(const char *text, int32_t n, struct row *rows)
{
    pith_model *model = NULL;
    pith_engine *engine = NULL;
    pith_seq *seq = NULL;
    pith_engine_params params;
    int32_t ids[128], n_id = 0;
    pith_engine_params_default(&params);
    params.n_thread = 1;
    assert_int_equal(pith_model_load(MODEL, NULL, &model, NULL), PITH_OK);
    assert_int_equal(pith_engine_create(model, &params, &engine, NULL), PITH_OK);
    assert_int_equal(pith_seq_create(engine, &seq, NULL), PITH_OK);
    assert_int_equal(
        pith_tokenize(model, text, strlen(text), PITH_TOKENIZE_BOS, ids, 128, &n_id, NULL),
        PITH_OK);
    assert_int_equal(pith_seq_eval(seq, ids, n_id, NULL), PITH_OK);
    pith_model_info info;
    pith_model_get_info(model, &info);
    int32_t i = 0;
    for (; i < n; i++) {
        const float *logits = pith_seq_logits(seq);
        double sum = 0.0;
        rows[i].id = 0;
        for (int32_t v = 1; v < info.n_vocab; v++)
            if (logits[v] > logits[rows[i].id])
                rows[i].id = v;
        for (int32_t v = 0; v < info.n_vocab; v++)
            sum += exp((double)logits[v] - (double)logits[rows[i].id]);
        rows[i].logprob = -log(sum);
        if (pith_token_is_end(model, rows[i].id))
            break;
        assert_int_equal(pith_seq_eval(seq, &rows[i].id, 1, NULL), PITH_OK);
    }
    pith_seq_free(seq);
    pith_engine_free(engine);
    pith_model_free(model);
    return i;
}

/* The bytes of tokens are the text, each token is the first of its likeliest, and their
   probabilities descend. */
static void check_chat_logprobs(const json_t *choice, const struct row *rows, int32_t n)
{
    const json_t *content = json_object_get(json_object_get(choice, "logprobs"), "content");
    char text[512];
    size_t len = 0;
    assert_int_equal(json_array_size(content), n);
    for (int32_t i = 0; i < n; i++) {
        const json_t *token = json_array_get(content, (size_t)i);
        const json_t *top = json_object_get(token, "top_logprobs"), *other;
        double p = json_real_value(json_object_get(token, "logprob")), last = 0.0, sum = 0.0;
        size_t k;
        assert_true(fabs(p - rows[i].logprob) < 1e-5);
        assert_int_equal(json_array_size(top), 4);
        assert_string_equal(word_of(json_array_get(top, 0), "token"), word_of(token, "token"));
        json_array_foreach(top, k, other)
        {
            double q = json_real_value(json_object_get(other, "logprob"));
            assert_true(q <= last);
            last = q;
            sum += exp(q);
        }
        assert_true(sum <= 1.0 + 1e-5);
        json_array_foreach(json_object_get(token, "bytes"), k, other) text[len++] =
            (char)json_integer_value(other);
    }
    text[len] = '\0';
    assert_string_equal(text, text_of(choice));
}

/* The older form; a text that a stop string ends has the tokens before it. */
static void check_text_logprobs(const json_t *choice, const struct row *rows, int32_t n)
{
    const json_t *all = json_object_get(choice, "logprobs"), *offset;
    const json_t *tokens = json_object_get(all, "tokens"),
                 *tops = json_object_get(all, "top_logprobs");
    size_t i, n_char = 0, n_token = json_array_size(tokens);
    assert_in_range(n_token, 2, n - 1);
    assert_int_equal(json_array_size(tops), n_token);
    json_array_foreach(json_object_get(all, "text_offset"), i, offset)
    {
        const char *token = json_string_value(json_array_get(tokens, i));
        const json_t *p = json_array_get(json_object_get(all, "token_logprobs"), i);
        assert_true(fabs(json_real_value(p) - rows[i].logprob) < 1e-5);
        assert_true(json_equal(json_object_get(json_array_get(tops, i), token), (json_t *)p));
        assert_int_equal(json_integer_value(offset), n_char);
        n_char += strlen(token);
    }
    assert_int_equal(n_char, strlen(text_of(choice)));
}

static void test_logprobs(void **state)
{
    (void)state;
    char in[128], out[128];
    struct row rows[10];
    static const char text[] = FACTS "\nQuestion: What is the password of Maria?\nAnswer:";
    static const char user[] = "<|im_start|>user\nMaria<|im_end|>\n<|im_start|>assistant\n";
    static const char *const options[] = {"--temp", "0", "--chat-template", "chatml", NULL};
    FILE *file = open_file("logprobs.jsonl", in);
    json_t *body = chat_body("Maria", 10);
    json_object_set_new(body, "logprobs", json_true());
    json_object_set_new(body, "top_logprobs", json_integer(4));
    /* a bias that changes nothing, as it is the same for all that matter: probabilities are those
       of the model, before it */
    add_line(file, "chat", "/v1/chat/completions", body);
    add_line(file, "text", "/v1/completions",
             json_pack("{s:s, s:i, s:s, s:i}", "prompt", text, "logprobs", 2, "stop", " lantern",
                       "max_tokens", 10));
    add_line(file, "none", "/v1/completions",
             json_pack("{s:s, s:i}", "prompt", text, "max_tokens", 2));
    close_file(file);
    json_t *all = batch_all(in, in_folder("logprobs.out", out), options);
    check_chat_logprobs(choice_of(all, "chat", 0), rows, make_rows(user, 10, rows));
    int32_t n = make_rows(text, 10, rows);
    check_text_logprobs(choice_of(all, "text", 0), rows, n);
    assert_true(json_is_null(json_object_get(choice_of(all, "none", 0), "logprobs")));
    json_decref(all);
}

/* ---- what is wrong ---- */

#define TEXT(body)                                                                                 \
    "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":" body "}"
#define SAY(body)                                                                                  \
    "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":" body "}"

/* A file with such a line is refused as a whole, before the model is read. */
static void test_bad_files(void **state)
{
    (void)state;
    char in[128], out[128], word[256];
    static const struct {
        const char *text;
        const char *word;
    } cases[] = {
        {"", ": there is no request in it"},
        {"\n \t\r\n", ": there is no request in it"},
        {TEXT("{}") "\n\nnonsense", ", line 3: \"nonsense\" is not JSON: "},
        {"{\"custom_id\":\"a\"", ", line 1: \"{\"custom_id\":\"a\"\" is not JSON: "},
        {"[1,2]\n", ", line 1: an array of 2 is not an object"},
        {"{\"custom_id\":7}", ", line 1: custom_id: 7 is not a string"},
        {"{\"method\":\"POST\"}", ", line 1: custom_id: is missing"},
        {"{\"custom_id\":\"\"}", ", line 1: custom_id: \"\" is empty"},
        {"{\"custom_id\":\"a\\u0000b\"}", "is empty or has a zero byte"},
        {"{\"custom_id\":\"a\",\"custom_id\":\"b\"}",
         ", line 1: \"{\"custom_id\":\"a\",\"custom_id\":\"b\"}\""},
        {"{\"custom_id\":\"\xff\"}", "is not JSON: "},
        {"\n" TEXT("{}") "\n\n" SAY("{}") "\n", ", line 4: custom_id \"a\" is that of line 2, too"},
    };
    in_folder("bad.jsonl", in);
    in_folder("bad.out", out);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_file(in, cases[i].text);
        struct said s = batch(in, out, NULL);
        snprintf(word, sizeof(word), "%s%s", cases[i].word[0] == ',' ? in : "", cases[i].word);
        expect_failure(&s, 1, word);
        said_free(&s);
        assert_int_not_equal(access(out, F_OK), 0);
    }
}

/* A request that is wrong is answered with what is wrong, and the others go on. */
static void test_bad_requests(void **state)
{
    (void)state;
    char in[128], out[128], id[16];
    static const struct {
        const char *url;
        const char *body;
        int code;
        const char *message; /* behind "line N: " */
    } cases[] = {
        {"/v1/embeddings", "{}", 404,
         "url: \"/v1/embeddings\" is not one of /v1/chat/completions and /v1/completions"},
        {"/v1/completions", "[]", 400, "body: an array of 0 is not an object"},
        {"/v1/completions", "{}", 400, "prompt: is missing"},
        {"/v1/completions", "{\"prompt\":7}", 400,
         "prompt: 7 is not a string or an array of token ids"},
        {"/v1/completions", "{\"prompt\":[]}", 400, "prompt: 0 prompts are not between 1 and 128"},
        {"/v1/completions", "{\"prompt\":[[]]}", 400, "prompt: a prompt of no tokens"},
        {"/v1/completions", "{\"prompt\":[1,-2]}", 400, "prompt: -2 is not a token id"},
        {"/v1/completions", "{\"prompt\":[\"a\",true]}", 400,
         "prompt: true is not a string or an array of token ids"},
        {"/v1/completions", "{\"prompt\":\"a\",\"model\":4}", 400, "model: 4 is not a string"},
        {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":\"4\"}", 400,
         "max_tokens: \"4\" is not a whole number"},
        {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":-2}", 400,
         "max_tokens: -2 is not between -1 and 2147483647"},
        {"/v1/completions", "{\"prompt\":\"a\",\"n_predict\":2.5}", 400,
         "n_predict: 2.5 is not a whole number"},
        {"/v1/completions", "{\"prompt\":\"a\",\"temperature\":\"hot\"}", 400,
         "temperature: \"hot\" is not a number"},
        {"/v1/completions", "{\"prompt\":\"a\",\"temperature\":-0.5}", 400,
         "temperature: -0.5 is not between 0 and 1000000"},
        {"/v1/completions", "{\"prompt\":\"a\",\"top_p\":1.5}", 400,
         "top_p: 1.5 is not between 0 and 1"},
        {"/v1/completions", "{\"prompt\":\"a\",\"top_k\":\"\\n\"}", 400,
         "top_k: \" \" is not a whole number"},
        {"/v1/completions", "{\"prompt\":\"a\",\"min_p\":[]}", 400,
         "min_p: an array of 0 is not a number"},
        {"/v1/completions", "{\"prompt\":\"a\",\"seed\":\"x\"}", 400,
         "seed: \"x\" is not a whole number"},
        {"/v1/completions", "{\"prompt\":\"a\",\"n\":0}", 400, "n: 0 is not between 1 and 128"},
        {"/v1/completions", "{\"prompt\":[\"a\",\"b\"],\"n\":65}", 400,
         "n: 65 answers to each of 2 prompts are more than 128"},
        {"/v1/completions", "{\"prompt\":\"a\",\"ignore_eos\":1}", 400,
         "ignore_eos: 1 is not true or false"},
        {"/v1/completions", "{\"prompt\":\"a\",\"stop\":{}}", 400,
         "stop: an object is not a string or an array of strings"},
        {"/v1/completions", "{\"prompt\":\"a\",\"stop\":[\"a\",3]}", 400,
         "stop: 3 is not a string"},
        {"/v1/completions", "{\"prompt\":\"a\",\"stop\":\"\"}", 400,
         "stop: \"\" would end everything"},
        {"/v1/completions", "{\"prompt\":\"a\",\"logprobs\":21}", 400,
         "logprobs: 21 is not between 0 and 20"},
        {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}", 400,
         "logit_bias: \"x\" is not a token id"},
        {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"7\":\"x\"}}", 400,
         "logit_bias: \"x\", for token 7, is no number up to 1000000"},
        {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":[[7]]}", 400,
         "logit_bias[0]: an array of 1 is not a pair of token id and bias"},
        {"/v1/completions", "{\"prompt\":\"a\",\"stream\":true}", 400,
         "stream: true is not supported in a batch"},
        {"/v1/completions", "{\"prompt\":\"a\",\"echo\":true}", 400,
         "echo: true is not supported in a batch"},
        {"/v1/completions", "{\"prompt\":\"a\",\"best_of\":3}", 400,
         "best_of: 3 is not n, which is 1"},
        {"/v1/chat/completions", "{}", 400, "messages: is missing"},
        {"/v1/chat/completions", "{\"messages\":\"hello\"}", 400,
         "messages: \"hello\" is not an array of messages"},
        {"/v1/chat/completions", "{\"messages\":[\"hello\"]}", 400, "messages[0].role: is missing"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}", 400,
         "messages[0].role: \"tool\" is not one of system, developer, user and assistant"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":null}]}", 400,
         "messages[0].content: is missing"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000\"}]}",
         400, "messages[0].content: \"a \" has a zero byte"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", 400,
         "messages[0].content[0].type: \"image_url\" is not \"text\""},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"top_logprobs\":2}", 400,
         "top_logprobs: without \"logprobs\": true there are none"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{}]}", 400,
         "tools: an array of 1 is not supported"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"response_format\":{\"type\":"
         "\"json_object\"}}",
         400, "response_format.type: \"json_object\" is not \"text\""},
        /* and what only a model and its memory show */
        {"/v1/completions", "{\"prompt\":[1,99999]}", 400, NULL},
        {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"99999\":1}}", 400, NULL},
        {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":100000}", 400, NULL},
        {"/v1/completions", "{\"prompt\":\"\"}", 400, NULL},
    };
    static const char *const options[] = {"--temp", "0",   "--chat-template", "chatml",
                                          "-c",     "256", "--no-bos",        NULL};
    size_t n = sizeof(cases) / sizeof(cases[0]);
    FILE *file = open_file("wrong.jsonl", in);
    for (size_t i = 0; i < n; i++)
        fprintf(file, "{\"custom_id\":\"w%zu\",\"method\":\"POST\",\"url\":\"%s\",\"body\":%s}\n",
                i, cases[i].url, cases[i].body);
    fprintf(file, "{\"custom_id\":\"get\",\"method\":\"GET\",\"url\":\"/v1/completions\"}\n");
    fprintf(file,
            "{\"custom_id\":\"good\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"
            "{\"prompt\":\"The friend of\",\"max_tokens\":3,\"unknown\":{},\"user\":null,"
            "\"stop\":null,\"n\":1.0,\"top_k\":-1}}\n");
    close_file(file);
    struct said s = batch(in, in_folder("wrong.out", out), options);
    expect_failure(&s, 1, " requests failed; \"");
    said_free(&s);
    json_t *all = read_output(out);
    assert_int_equal(json_object_size(all), n + 2);
    assert_non_null(text_of(choice_of(all, "good", 0)));
    for (size_t i = 0; i < n; i++) {
        char expected[320];
        snprintf(id, sizeof(id), "w%zu", i);
        const json_t *line = json_object_get(all, id),
                     *response = json_object_get(line, "response");
        const json_t *error = json_object_get(json_object_get(response, "body"), "error");
        const char *message = word_of(error, "message");
        assert_int_equal(number_of(response, "status_code"), cases[i].code);
        assert_int_equal(number_of(error, "code"), cases[i].code);
        snprintf(expected, sizeof(expected), "line %zu: %s", i + 1,
                 cases[i].message != NULL ? cases[i].message : "");
        if (cases[i].message != NULL)
            assert_string_equal(message, expected);
        else
            assert_int_equal(strncmp(message, expected, strlen(expected)), 0);
        assert_string_equal(word_of(json_object_get(line, "error"), "message"), message);
        assert_string_equal(word_of(json_object_get(line, "error"), "code"),
                            word_of(error, "type"));
    }
    const json_t *get = json_object_get(json_object_get(all, "get"), "response");
    assert_int_equal(number_of(get, "status_code"), 405);
    json_decref(all);
}

static void test_bad_options(void **state)
{
    (void)state;
    char in[128], out[128];
    write_plain("plain.jsonl", in, 1);
    write_file(in_folder("there.jsonl", out), "{}\n");
    struct said s = batch(in, out, NULL);
    expect_failure(&s, 1, "is there already: --resume goes on with it");
    said_free(&s);
    s = batch(in, in, NULL);
    expect_failure(&s, 2, "-f and -o name the same file");
    said_free(&s);
    s = batch(in, out, (const char *const[]){"--resume", NULL});
    expect_failure(&s, 1, "--resume: line 1 of \"");
    said_free(&s);
    s = batch(in, "/no/folder/out.jsonl", NULL);
    expect_failure(&s, 1, "cannot write \"/no/folder/out.jsonl\": ");
    said_free(&s);
    s = batch("/no/such.jsonl", out, NULL);
    expect_failure(&s, 1, "cannot open \"/no/such.jsonl\": ");
    said_free(&s);
    s = batch(in, out, (const char *const[]){"--seqs", "0", NULL});
    expect_failure(&s, 2, "--seqs");
    said_free(&s);
    s = batch(in, out, (const char *const[]){"--json", "/no/folder/x.json", NULL});
    expect_failure(&s, 1, "--json: cannot write \"/no/folder/x.json\"");
    said_free(&s);
    s = command(NULL, "batch", "-m", MODEL, "-f", in, NULL);
    expect_failure(&s, 2, "-o FILE is missing");
    said_free(&s);
    int held = open(in_folder("held.jsonl", out), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    assert_true(held >= 0);
    assert_int_equal(flock(held, LOCK_EX), 0);
    s = batch(in, out, NULL);
    expect_failure(&s, 1, "is being written by another process");
    said_free(&s);
    close(held);
    /* A chat needs a template, and nothing is in the output yet when that shows. */
    FILE *file = open_file("untold.jsonl", in);
    add_line(file, "a", "/v1/chat/completions", chat_body("Who?", 2));
    close_file(file);
    s = batch(in, in_folder("untold.out", out), NULL);
    expect_failure(&s, 1, "the model has no chat template");
    said_free(&s);
    json_t *all = read_output(out);
    assert_int_equal(json_object_size(all), 0);
    json_decref(all);
    all = batch_all(in, out, (const char *const[]){"--chat-template", "chatml", NULL});
    json_decref(all);
}

/* ---- ends before the end ---- */

#define N_LONG 64

static void write_long(char *path)
{
    FILE *file = open_file("long.jsonl", path);
    for (int i = 0; i < N_LONG; i++) {
        char id[16];
        snprintf(id, sizeof(id), "request \"%d\"", i);
        add_line(file, id, "/v1/completions",
                 json_pack("{s:s, s:i, s:i, s:b}", "prompt", questions[i % 4], "max_tokens",
                           100 + i % 7, "seed", i, "ignore_eos", 1));
    }
    close_file(file);
}

static const char *const slowly[] = {"--seqs", "2", NULL};

/* Starts a batch and sends it a signal when its output has some lines. */
static struct said end_early(const char *in, const char *out, int signal_number)
{
    const char *words[] = {"batch", "-m", MODEL, "-t",     "1", "-q", "-f",
                           in,      "-o", out,   "--seqs", "2", NULL};
    struct said said = {0};
    FILE *null = fopen("/dev/null", "r+"), *err = tmpfile();
    assert_true(null != NULL && err != NULL);
    pid_t pid = command_start(words, fileno(null), fileno(null), fileno(err));
    for (int i = 0; i < 20000 && count_lines(out) < 5; i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_int_equal(kill(pid, signal_number), 0);
    said.status = command_wait(pid);
    said.err_len = (size_t)ftell(err);
    fseek(err, 0, SEEK_END);
    said.err_len = (size_t)ftell(err);
    rewind(err);
    said.err = calloc(said.err_len + 1, 1);
    assert_int_equal(fread(said.err, 1, said.err_len, err), said.err_len);
    fclose(err);
    fclose(null);
    return said;
}

/* What one run would have written is what the file has after the second one. */
static void expect_rest(const char *in, const char *out, const json_t *whole)
{
    struct said s = batch(in, out, (const char *const[]){"--resume", "--seqs", "2", NULL});
    expect_status(&s, 0);
    said_free(&s);
    json_t *all = read_output(out);
    forget_company(all);
    assert_true(json_equal(all, (json_t *)whole));
    json_decref(all);
    s = batch(in, out, (const char *const[]){"--resume", NULL}); /* there is nothing left to do */
    expect_status(&s, 0);
    assert_string_equal(s.err, "");
    said_free(&s);
    assert_int_equal(count_lines(out), N_LONG);
}

static void test_resume(void **state)
{
    (void)state;
    char in[128], out[128];
    write_long(in);
    json_t *whole = batch_all(in, in_folder("whole.out", out), slowly);
    forget_company(whole);
    assert_int_equal(json_object_size(whole), N_LONG);

    struct said s = end_early(in, in_folder("killed.out", out), SIGKILL);
    assert_int_equal(s.status, 128 + SIGKILL);
    said_free(&s);
    assert_in_range(count_lines(out), 5, N_LONG - 1);
    FILE *file = fopen(out, "a");
    fputs("{\"id\":\"batch_req_0\",\"custom_id\":\"request \\\"63", file);
    close_file(file);
    s = batch(in, out, NULL);
    expect_failure(&s, 1, "is there already");
    said_free(&s);
    expect_rest(in, out, whole);

    s = end_early(in, in_folder("interrupted.out", out), SIGINT);
    expect_failure(&s, 130, "interrupted: ");
    expect_word(s.err, "of 64 requests are in \"");
    expect_word(s.err, "--resume does the rest");
    said_free(&s);
    assert_in_range(count_lines(out), 5, N_LONG - 1);
    json_t *part = read_output(out); /* whole lines */
    json_decref(part);
    expect_rest(in, out, whole);

    /* With nothing to go on with, --resume begins. */
    in_folder("fresh.out", out);
    expect_rest(in, out, whole);
    json_decref(whole);
}

/* A rest of a line is dropped, and said to be. */
static void test_torn(void **state)
{
    (void)state;
    char in[128], out[128];
    write_plain("plain.jsonl", in, 3);
    static const char *const torn[] = {"{\"custom", "x",
                                       "{\"custom_id\":\"r0\",\"response\":null}"};
    for (size_t i = 0; i < 3; i++) {
        write_file(in_folder("torn.out", out), torn[i]);
        struct said s = batch(in, out, (const char *const[]){"--resume", NULL});
        expect_status(&s, 0);
        expect_word(s.err, "the rest of a line at the end of \"");
        said_free(&s);
        json_t *all = read_output(out);
        assert_int_equal(json_object_size(all), 3);
        json_decref(all);
    }
}

static void test_full_disk(void **state)
{
    (void)state;
    char in[128], out[128];
    struct rlimit limit, before;
    write_long(in);
    json_t *whole = batch_all(in, in_folder("whole.out", out), slowly);
    forget_company(whole);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){9000, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN); /* the command inherits it */
    in_folder("full.out", out);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct said s = batch(in, out, slowly);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect_failure(&s, 1, "cannot write \"");
    expect_word(s.err, "File too large; ");
    expect_word(s.err, "of 64 requests are in it");
    said_free(&s);
    assert_in_range(count_lines(out), 3, N_LONG - 1);
    json_t *part = read_output(out); /* what was begun of a line is taken back */
    json_decref(part);
    expect_rest(in, out, whole);
    json_decref(whole);
}

/* ---- figures ---- */

static void test_figures(void **state)
{
    (void)state;
    char in[128], out[128], path[128];
    FILE *file = open_file("figures.jsonl", in);
    for (int i = 0; i < 8; i++) {
        char id[8];
        snprintf(id, sizeof(id), "%d", i);
        add_line(file, id, "/v1/completions",
                 json_pack("{s:s, s:i, s:f}", "prompt", FACTS " " FACTS " " FACTS, "max_tokens", 20,
                           "temperature", 0.0));
    }
    close_file(file);
    in_folder("figures.json", path);
    struct said s =
        batch(in, in_folder("figures.out", out),
              (const char *const[]){"--page", "16", "--seqs", "2", "--json", path, NULL});
    expect_status(&s, 0);
    said_free(&s);
    json_t *figures = json_load_file(path, 0, NULL), *all = read_output(out);
    assert_non_null(figures);
    int64_t n_prompt = 0, n_cached = 0, n_generated = 0;
    const char *id;
    json_t *line;
    json_object_foreach(all, id, line)
    {
        const json_t *usage = json_object_get(body_of(all, id), "usage");
        n_prompt += number_of(usage, "prompt_tokens");
        n_cached += number_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
        n_generated += number_of(usage, "completion_tokens");
    }
    assert_true(n_cached > 0);
    assert_int_equal(number_of(figures, "requests"), 8);
    assert_int_equal(number_of(figures, "answered"), 8);
    assert_int_equal(number_of(figures, "failed"), 0);
    assert_int_equal(number_of(figures, "skipped"), 0);
    assert_int_equal(number_of(figures, "peak_running"), 2);
    assert_int_equal(number_of(figures, "cached_tokens"), n_cached);
    assert_int_equal(number_of(figures, "prompt_tokens"), n_prompt - n_cached);
    assert_int_equal(number_of(figures, "generated_tokens"), n_generated);
    assert_true(number_of(figures, "kv_peak_bytes") > 0);
    assert_true(number_of(figures, "kv_peak_bytes") <= number_of(figures, "kv_reserved_bytes"));
    assert_true(number_of(figures, "prefix_pages") > 0);
    assert_string_equal(word_of(figures, "keep"), "none");
    json_decref(figures);
    json_decref(all);

    /* For people, and with nothing reused. */
    remove(out);
    s = command(NULL, "batch", "-m", MODEL, "-t", "1", "-f", in, "-o", out, "--no-prefix", "--json",
                "-", "--keep", "streaming:budget=32,slack=16", "--page", "16", "--progress", NULL);
    expect_status(&s, 0);
    figures = json_loads(s.out, 0, NULL);
    assert_int_equal(number_of(figures, "cached_tokens"), 0);
    assert_true(number_of(figures, "keep_rounds") > 0);
    assert_true(number_of(figures, "keep_evicted") > 0);
    json_decref(figures);
    expect_word(s.err, "8 requests: 8 answered, 0 failed");
    expect_word(s.err, "rounds, ");
    expect_word(s.err, "times put back");
    said_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),       cmocka_unit_test(test_company),
        cmocka_unit_test(test_chat),        cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_prompts),     cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_bad_files),   cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_bad_options), cmocka_unit_test(test_resume),
        cmocka_unit_test(test_torn),        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_figures),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
