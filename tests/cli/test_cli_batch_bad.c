/*
 * `pith batch` on faulty input: files that are refused as a whole, requests that are answered with
 * their fault, options.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <sys/file.h>

#include "batch_rig.h"

TEST_GROUP(folder_make, folder_remove);

#define TEXT(body)                                                                                 \
    "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":" body "}"
#define SAY(body)                                                                                  \
    "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":" body "}"

/* A file without any request is refused as a whole, before the model is read. */
TEST(a_file_without_requests_is_refused)
{
    char in[128], out[128], word[256];
    static const struct {
        const char *text;
        const char *word;
    } cases[] = {
        {"", ": there is no request in it"},
        {"\n \t\r\n", ": there is no request in it"},
        {"\n\nnonsense\n7\n", ", line 3: \"nonsense\" is not JSON: "},
        {"{\"custom_id\":\"a\"", ", line 1: \"{\"custom_id\":\"a\"\" is not JSON: "},
        {"[1,2]\n", ", line 1: an array of 2 is not an object"},
        {"{\"custom_id\":7}", ", line 1: custom_id: 7 is not a string"},
        {"{\"method\":\"POST\"}", ", line 1: custom_id: is missing"},
        {"{\"custom_id\":\"\"}", ", line 1: custom_id: \"\" is empty"},
        {"{\"custom_id\":\"a\\u0000b\"}", "is empty or has a zero byte"},
        {"{\"custom_id\":\"a\",\"custom_id\":\"b\"}",
         ", line 1: \"{\"custom_id\":\"a\",\"custom_id\":\"b\"}\""},
        {"{\"custom_id\":\"\xff\"}", "is not JSON: "},
    };
    in_folder("bad.jsonl", in);
    in_folder("bad.out", out);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_file(in, cases[i].text);
        struct said s = batch(in, out, NULL);
        snprintf(word, sizeof(word), "%s%s", cases[i].word[0] == ',' ? in : "", cases[i].word);
        expect_failure(&s, 1, word);
        assert_int_not_equal(access(out, F_OK), 0);
    }
}

/* A faulty request is answered with its fault, and the others go on. */
TEST(a_bad_request_is_answered_and_the_others_go_on)
{
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
         "seed: \"x\" is not a whole number of 64 bits"},
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
        {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"\":1}}", 400,
         "logit_bias: \"\" has no tokens"},
        {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"7\":\"x\"}}", 400,
         "logit_bias: \"x\", for token 7, is no number up to 1000000"},
        {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"99999999\":1}}", 400,
         "logit_bias: 99999999 is not a token id"},
        {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":[[7]]}", 400,
         "logit_bias[0]: an array of 1 is not a pair of a token and a bias"},
        {"/v1/completions", "{\"prompt\":\"a\",\"stream\":true}", 400,
         "stream: true is not supported in a batch"},
        {"/v1/completions", "{\"prompt\":\"a\",\"echo\":true,\"logprobs\":1}", 400,
         "echo: true with logprobs is not supported here"},
        {"/v1/completions", "{\"prompt\":\"a\",\"best_of\":3}", 400,
         "best_of: 3 is not n, which is 1"},
        {"/v1/chat/completions", "{}", 400, "messages: is missing"},
        {"/v1/chat/completions", "{\"messages\":\"hello\"}", 400,
         "messages: \"hello\" is not an array of messages"},
        {"/v1/chat/completions", "{\"messages\":[\"hello\"]}", 400, "messages[0].role: is missing"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}", 400,
         "messages[0].role: \"robot\" is not one of system, developer, user, assistant and tool"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":null}]}", 400,
         "messages[0].content: is missing"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", 400,
         "messages[0].content[0].type: \"image_url\" is not \"text\""},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"top_logprobs\":2}", 400,
         "top_logprobs: without \"logprobs\": true there are none"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{}]}", 400,
         "tools[0].type: is missing"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"response_format\":{\"type\":"
         "\"xml\"}}",
         400, "response_format.type: \"xml\" is not one of text, json_object and json_schema"},
        /* and what only a model and its memory show */
        {"/v1/completions", "{\"prompt\":[1,99999]}", 400, NULL},
        {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"99999\":1}}", 400, NULL},
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

static const json_t *line_at(const json_t *lines, size_t i)
{
    return json_array_get(lines, i);
}

/* Lines that are no requests, or have another's name, get a line of their own in the output, by
   which --resume knows them. */
TEST(a_bad_line_gets_a_line_of_its_own)
{
    char in[128], out[128], text[8192];
    static const char *const options[] = {"--temp", "0", NULL};
    static const struct {
        const char *line, *name, *message;
    } cases[] = {
        {TEXT("{\"prompt\":\"The friend of\",\"max_tokens\":3,\"seed\":18446744073709551615}"), "a",
         NULL},
        {"nonsense", NULL, "line 2: \"nonsense\" is not JSON: "},
        {"[1,2]", NULL, "line 3: an array of 2 is not an object"},
        {"{\"custom_id\":7}", NULL, "line 4: custom_id: 7 is not a string"},
        {SAY("{}"), "a", "line 5: custom_id \"a\" is that of line 1, too"},
        {"{\"custom_id\":\"b\",\"method\":\"POST\",\"url\":\"/v1/"
         "completions\",\"body\":{\"prompt\":"
         "\"The\",\"max_tokens\":2147483648,\"stop\":\" \"}}",
         "b", NULL},
    };
    size_t n = sizeof(cases) / sizeof(cases[0]);
    FILE *file = open_file("lines.jsonl", in);
    for (size_t i = 0; i < n; i++)
        fprintf(file, "%s\n", cases[i].line);
    close_file(file);
    struct said s = batch(in, in_folder("lines.out", out), options);
    expect_failure(&s, 1, "4 of 6 requests failed; \"");
    for (int again = 0; again < 2; again++) {
        json_t *lines = json_array();
        file = fopen(out, "r");
        while (fgets(text, sizeof(text), file) != NULL)
            json_array_append_new(lines, json_loads(text, 0, NULL));
        fclose(file);
        size_t wrong = 0;
        for (size_t i = 0; i < json_array_size(lines); i++) {
            const json_t *line = line_at(lines, i), *number = json_object_get(line, "line");
            if (number == NULL)
                continue;
            size_t k = (size_t)json_integer_value(number) - 1;
            const json_t *name = json_object_get(line, "custom_id");
            const char *message = word_of(json_object_get(line, "error"), "message");
            assert_true(k < n && cases[k].message != NULL);
            assert_int_equal(strncmp(message, cases[k].message, strlen(cases[k].message)), 0);
            assert_true(cases[k].name != NULL ? json_is_string(name) : json_is_null(name));
            wrong++;
        }
        assert_int_equal(wrong, 4);
        json_decref(lines);
        s = batch(in, out, (const char *const[]){"--temp", "0", "--resume", NULL});
        expect_status(&s, 0); /* nothing is left to do */
    }
}

TEST(refuses_bad_options)
{
    char in[128], out[128];
    write_plain("plain.jsonl", in, 1);
    write_file(in_folder("there.jsonl", out), "{}\n");
    struct said s = batch(in, out, NULL);
    expect_failure(&s, 1, "is there already: --resume goes on with it");
    s = batch(in, in, NULL);
    expect_failure(&s, 2, "-f and -o name the same file");
    s = batch(in, out, (const char *const[]){"--resume", NULL});
    expect_failure(&s, 1, "--resume: line 1 of \"");
    s = batch(in, "/no/folder/out.jsonl", NULL);
    expect_failure(&s, 1, "cannot write \"/no/folder/out.jsonl\": ");
    s = batch("/no/such.jsonl", out, NULL);
    expect_failure(&s, 1, "cannot open \"/no/such.jsonl\": ");
    s = batch(in, out, (const char *const[]){"--seqs", "0", NULL});
    expect_failure(&s, 2, "--seqs");
    s = batch(in, out, (const char *const[]){"--json", "/no/folder/x.json", NULL});
    expect_failure(&s, 1, "--json: /no/folder/x.json: cannot create");
    s = command(NULL, "batch", "-m", MODEL, "-f", in, NULL);
    expect_failure(&s, 2, "-o FILE is missing");
    int held = open(in_folder("held.jsonl", out), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    assert_true(held >= 0);
    assert_int_equal(flock(held, LOCK_EX), 0);
    s = batch(in, out, NULL);
    expect_failure(&s, 1, "is being written by another process");
    close(held);
    /* A chat needs a template, and nothing is in the output yet when that shows. */
    FILE *file = open_file("untold.jsonl", in);
    add_line(file, "a", "/v1/chat/completions", chat_body("Who?", 2));
    close_file(file);
    s = batch(in, in_folder("untold.out", out), NULL);
    expect_failure(&s, 1, "the model has no chat template");
    json_t *all = read_output(out);
    assert_int_equal(json_object_size(all), 0);
    json_decref(all);
    all = batch_all(in, out, (const char *const[]){"--chat-template", "chatml", NULL});
    json_decref(all);
}
