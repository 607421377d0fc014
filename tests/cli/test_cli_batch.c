/*
 * `pith batch` on the command line. Each request gets the same answer as alone, from `pith run` or
 * from the library, for every kind of request and any other requests beside it. Also the figures at
 * the end.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include <math.h>

#include "batch_rig.h"

TEST_GROUP(folder_make, folder_remove);

#define N_REQUEST 12

/* ---- the answers of single runs ---- */

/* The output of `pith run` with these memory options. */
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
    }
    json_decref(all);
}

TEST(each_request_gets_what_it_gets_alone)
{
    char in[128];
    static const char *const none[] = {NULL};
    static const char *const few[] = {"--seqs", "3", "--queue", "2", NULL};
    static const char *const tight[] = {"-c", "256", "--page", "16", "--reserve", "0", NULL};
    static const char *const steps[] = {"--step", "7", "--no-prefix", NULL};
    static const char *const pages[] = {"--page", "16", NULL};
    static const char *const keep[] = {
        "--keep", "streaming:budget=64,slack=16", "--recall", "none", "--page", "16", NULL};
    static const char *const coded[] = {"-ctk", "q8_0", "-ctv", "turbo3", "--page", "16", NULL};
    static const char *const share[] = {"--share", "memshare", NULL};
    static const char *const read[] = {"--read", "quoka:budget=32", NULL};
    static const char *const recall[] = {
        "--keep", "knorm:budget=64,slack=16", "--recall", "kv", "--page", "16", NULL};
    static const char *const text[] = {
        "--keep", "streaming:budget=64,slack=8", "--recall", "text:floor=0", "--page", "16", NULL};
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
    check_alone(in, text, few);
}

TEST(answers_do_not_depend_on_company)
{
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

TEST(chat_requests_get_what_run_answers)
{
    char in[128], out[128];
    static const char text[] = "What is the password of Maria?";
    static const char *const options[] = {
        "--chat-template", "chatml", "-s", "40", "-sys", "Maria's password is copper.", NULL};
    FILE *file = open_file("chat.jsonl", in);
    json_t *body = chat_body(text, 30);
    json_object_set_new(body, "n", json_integer(3));
    json_object_set_new(body, "model", json_string("some \"model\""));
    add_line(file, "several", "/v1/chat/completions", body);
    /* The line's own system message replaces the option's, and parts are lines. */
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
        char seed[16];
        snprintf(seed, sizeof(seed), "%d", 40 + i);
        struct said s = command(NULL, "run", "-m", MODEL, "-t", "1", "-q", CHAT, "-p", text, "-n",
                                "30", "-s", seed, "-sys", "Maria's password is copper.", NULL);
        expect_status(&s, 0);
        assert_string_equal(text_of(choice_of(all, "several", (size_t)i)), s.out);
    }
    struct said s = command(NULL, "run", "-m", MODEL, "-t", "1", "-q", CHAT, "-p",
                            "What is the \npassword of Maria?", "-n", "30", "-s", "40", "-sys",
                            "Be brief.", NULL);
    assert_string_equal(text_of(choice_of(all, "parts", 0)), s.out);
    json_decref(all);
}

/* A template of one's own, for the commands that chat. */
TEST(a_template_file_makes_the_prompts)
{
    char in[128], out[128], file_path[128];
    write_file(in_folder("own.jinja", file_path),
               "{% for m in messages %}{{ m.content }}{% endfor %}\nAnswer:");
    const char *const options[] = {"--chat-template-file", file_path, "--temp", "0", NULL};
    FILE *file = open_file("own.jsonl", in);
    add_line(file, "own", "/v1/chat/completions",
             chat_body(FACTS "\nQuestion: What is the password of Maria?", 12));
    close_file(file);
    json_t *all = batch_all(in, in_folder("own.out", out), options);
    expect_word(text_of(choice_of(all, "own", 0)), "copper lantern");
    json_decref(all);
    struct said s = command(
        NULL, "run", "-m", MODEL, "-t", "1", "-q", "--chat", "--chat-template-file", file_path,
        "-p", FACTS "\nQuestion: What is the password of Maria?", "-n", "12", "--temp", "0", NULL);
    expect_status(&s, 0);
    expect_word(s.out, "copper lantern");
    s = batch(in, out, (const char *const[]){"--chat-template-file", "/no/such.jinja", NULL});
    expect_failure(&s, 1, "cannot open \"/no/such.jinja\": ");
}

/* A request's own word on thinking is that of --no-thinking. */
TEST(a_request_may_switch_thinking)
{
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
    }
    assert_true(number_of(json_object_get(body_of(all, "no"), "usage"), "prompt_tokens") >
                number_of(json_object_get(body_of(all, "yes"), "usage"), "prompt_tokens"));
    json_decref(all);
}

/* Prompts as texts and as ids, one and several, and an end by a string. */
TEST(prompts_may_be_texts_ids_and_lists)
{
    char in[128], out[128];
    int32_t ids[64], n_id = 0;
    pith_model *model = NULL;
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

/* The library's greedy tokens after a text, with their log probabilities. */
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

TEST(logprobs_are_those_of_the_logits)
{
    char in[128], out[128];
    struct row rows[10];
    static const char text[] = FACTS "\nQuestion: What is the password of Maria?\nAnswer:";
    static const char user[] = "<|im_start|>user\nMaria<|im_end|>\n<|im_start|>assistant\n";
    static const char *const options[] = {"--temp", "0", "--chat-template", "chatml", NULL};
    FILE *file = open_file("logprobs.jsonl", in);
    json_t *body = chat_body("Maria", 10);
    json_object_set_new(body, "logprobs", json_true());
    json_object_set_new(body, "top_logprobs", json_integer(4));
    /* a bias that is the same for all likely tokens and so changes no choice: probabilities are the
       model's, before the bias */
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

/* ---- figures ---- */

TEST(figures_at_the_end_add_up)
{
    char in[128], out[128], path[128];
    FILE *file = open_file("figures.jsonl", in);
    for (int i = 0; i < 8; i++) {
        char id[16];
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
}
