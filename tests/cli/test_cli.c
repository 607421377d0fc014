/*
 * The `pith` command from outside: its output, its refusals and their words, and its exit status.
 * Every verb runs on the model of the repository. Conversations are in test_cli_chat.c, readers
 * that go away and full disks in test_cli_output.c.
 */
#define _POSIX_C_SOURCE 200809L

#include <jansson.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "testing.h"

#include "command.h"
#include "model_maker.h"
#include "pith/inspect.h"
#include "json_read.h"

TEST_GROUP(folder_make, folder_remove);

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define PROMPT                                                                                     \
    "The password of Maria is copper lantern.\nQuestion: What is the password of Maria?\nAnswer:"
#define ANSWER " The password of Maria is copper lantern."
/* One thread: the tests of a build run side by side. */
#define ON_MODEL "-m", MODEL, "-t", "1"

static const char *const verbs[] = {"run",       "chat",     "demo",     "bench",
                                    "tokenize",  "info",     "quantize", "logits",
                                    "calibrate", "policies", "batch",    "devices"};
#define N_VERB (sizeof(verbs) / sizeof(verbs[0]))

static json_t *parse(const char *text)
{
    json_error_t why;
    json_t *value = json_loads(text, JSON_DECODE_ANY, &why);
    if (value == NULL)
        fail_msg("no JSON: %s in \"%.200s\"", why.text, text);
    return value;
}

/* ---- help and refusals ---- */

TEST(help_is_the_same_by_verb_and_by_option)
{
    struct said s = command(NULL, "help", NULL), t;
    expect_status(&s, 0);
    for (size_t i = 0; i < N_VERB; i++) {
        expect_word(s.out, verbs[i]);
        struct said a = command(NULL, "help", verbs[i], NULL);
        struct said b = command(NULL, verbs[i], "--help", NULL);
        expect_status(&a, 0);
        expect_status(&b, 0);
        assert_string_equal(a.out, b.out);
        assert_int_equal(strncmp(a.out, "usage: pith ", 12), 0);
        assert_int_equal(a.err_len + b.err_len, 0);
    }
    t = command(NULL, "--help", NULL);
    expect_status(&t, 0);
    assert_string_equal(s.out, t.out);
    s = command(NULL, NULL);
    expect_status(&s, 2);
    assert_int_equal(s.out_len, 0);
    s = command(NULL, "--version", NULL);
    expect_status(&s, 0);
    expect_word(s.out, pith_version());
}

/* The help of `run` names each option with its default, which comes from the library. */
TEST(help_tells_the_defaults)
{
    static const char *const lines[] = {
        "--temp X",
        "(default 0.8)",
        "--top-k N",
        "(default 40)",
        "-ctk, --cache-type-k TYPE",
        "(default f16)",
        "--chunk N",
        "(default 512)",
        "-m, --model FILE",
        "--kv-memory SIZE",
    };
    struct said s = command(NULL, "help", "run", NULL);
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        expect_word(s.out, lines[i]);
}

TEST(refuses_wrong_command_lines)
{
    static const struct {
        const char *words[10];
        const char *expected; /* in the sentence */
    } cases[] = {
        {{"rnu"}, "did you mean \"pith run\"?"},
        {{"frobnicate"}, "frobnicate: there is no such command"},
        {{"--nothing"}, "--nothing: there is no such option"},
        {{"help", "rnu"}, "did you mean"},
        {{"help", "run", "twice"}, "\"twice\": one argument too many"},
        {{"run", "--tmep", "1"}, "--tmep: there is no such option; did you mean --temp?"},
        {{"run", "--temp", "hot"}, "--temp: \"hot\" is not a number"},
        {{"run", "--temp=nan"}, "--temp: \"nan\" is not a number"},
        {{"run", "--temp", "-1"}, "--temp: -1 is not between 0 and"},
        {{"run", "--top-k", "1.5"}, "--top-k: \"1.5\" is not a whole number"},
        {{"run", "--top-k", "99999999999"},
         "--top-k: 99999999999 is not between -1 and 2147483647"},
        {{"run", "--top-k", "-3"}, "--top-k: -3 is not -1 or more"},
        {{"run", "-n", "99999999999"}, "-n: 99999999999 is not between -1 and 2147483647"},
        {{"run", "-c", "99999999999"}, "-c: 99999999999 is not between 0 and 2147483647"},
        {{"run", "--seed", "99999999999999999999"},
         "--seed: 99999999999999999999 is not between -1 and 4611686018427387904"},
        {{"bench", "-d", "0,99999999999"}, "-d: 0,99999999999 is not between 0 and 2147483647"},
        {{"run", "--top-p", "1.01"}, "--top-p: 1.01 is not between 0 and 1"},
        {{"run", ON_MODEL, "-ctk", "q9"},
         "--cache-type-k: \"q9\" is not a storage type (f32, f16,"},
        {{"run", "--kv-memory", "5X"}, "--kv-memory: \"5X\" is not a size"},
        {{"run", "--kv-memory", "-5"}, "--kv-memory: \"-5\" is not a size"},
        {{"run", "--chunk", "0"}, "--chunk: 0 is not between 1 and"},
        {{"run", "--page", "17"}, "--page: \"17\" is not one of 16, 32, 64"},
        {{"run", "--echo=1"}, "--echo: takes no value, \"1\" was given"},
        {{"run", "-n"}, "-n: its value (N) is missing"},
        {{"run", "a", "b"}, "\"b\": one argument too many"},
        {{"run", "-p", "x"}, "-m FILE is missing"},
        {{"run", "-m", MODEL, "-p", "x", "-f", "y"}, "-p and -f both give the text"},
        {{"run", "-m", MODEL, "-c", "5", "--kv-memory", "1M"}, "-c 5 and --kv-memory 1000000"},
        {{"run", "-m", MODEL, "-p", "x", "-l", "5"}, "--logit-bias: \"5\" is not"},
        {{"run", "-m", MODEL, "-p", "x", "-l", "99999999+1"},
         "--logit-bias: token 99999999 is not between 0 and"},
        {{"serve", "-m", MODEL, "--chat-template", "chatml", "-l", "99999999+1"},
         "--logit-bias: token 99999999 is not"},
        {{"serve", "-m", MODEL, "--api-key-file", "/dev/null"},
         "--api-key-file: there is no key in it"},
        {{"run", "-m", MODEL, "-p", "x", "-r", ""}, "--stop: an empty text"},
        {{"chat", "-m", MODEL, "--chat-template", "none"}, "--chat-template: \"none\" is not one"},
        {{"logits", "-m", MODEL}, "--ids IDS is missing"},
        {{"logits", "-m", MODEL, "--ids", "1,x"}, "--ids: \"x\" is not a token id"},
        {{"logits", "-m", MODEL, "--ids", "5,99999"}, "--ids: token id 99999 is not between"},
        {{"logits", "-m", MODEL, "--ids", ""}, "--ids: \"\" holds no token id"},
        {{"bench", "-m", MODEL, "-d", "1,,2"}, "-d: \"1,,2\" is not a list of whole numbers"},
        {{"run", "-m", MODEL, "-p", "a", "--keep", "frozen"},
         "--keep: \"frozen\" is not a policy (none, streaming, random"},
        {{"run", "-m", MODEL, "-p", "a", "--keep", "strem"}, "did you mean streaming?"},
        {{"run", "-m", MODEL, "-p", "a", "--keep", "knorm:buget=5"}, "did you mean budget?"},
        {{"run", "-m", MODEL, "-p", "a", "--read", "quokka"}, "did you mean quoka?"},
        {{"run", "-m", MODEL, "-p", "a", "--share", "memsahre"}, "did you mean memshare?"},
        {{"run", "-m", MODEL, "-p", "a", "--recall", "txet"}, "did you mean text?"},
        {{"run", "-m", MODEL, "-p", "a", "-ctk", "q80"}, "did you mean q8_0?"},
        {{"run", "-m", MODEL, "-p", "a", "-ctv", "q8_0:f61=1+1"}, "did you mean f16?"},
        {{"run", "-m", MODEL, "-p", "a", "--keep", "48"}, "--keep: 48 is no policy: llama.cpp"},
        {{"run", "--kv-memory", "12"}, "--kv-memory: 12 has no unit: is it 12MiB, 12GiB or 12B?"},
        {{"serve", "--body", "65536"}, "--body: 65536 has no unit"},
        {{"run", ON_MODEL, "-p", "a", "--system", "b"}, "--system goes with --chat"},
        {{"run", ON_MODEL, "-p", "a", "--no-thinking"}, "--no-thinking goes with --chat"},
        {{"calibrate", "queries", "-m", MODEL, "-f", "a", "--hidden"},
         "--hidden: there is no such"},
        {{"bench", "-m", MODEL, "--keep", "streaming:slack=0"}, "--keep: slack: 0 is not in"},
        {{"bench", "-m", MODEL, "-o", "xml"}, "-o: \"xml\" is not one of table, csv, json"},
        {{"bench", "-m", MODEL, "-p", "0", "-n", "0"}, "nothing to measure"},
        {{"quantize", "a", "b"}, "TYPE is missing"},
        {{"quantize", "a", "b", "Q7"}, "TYPE: \"Q7\" is not one of"},
        {{"tokenize", "-m", MODEL, "--ids", "1"}, "--ids: ids are not tokenized"},
        {{"info"}, "-m FILE is missing"},
        {{"info", MODEL, "--memory", "0"}, "--memory: 0 is not 1 or more"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct said s = command_list(NULL, NULL, cases[i].words);
        expect_failure(&s, 2, cases[i].expected);
        assert_int_equal(s.out_len, 0);
    }
}

TEST(missing_files_are_named)
{
    static const char *const cases[][8] = {
        {"run", "-m", "/no/model", "-p", "x"},
        {"chat", "-m", "/no/model"},
        {"info", "/no/model"},
        {"tokenize", "-m", "/no/model", "-p", "x"},
        {"logits", "-m", "/no/model", "--ids", "1"},
        {"bench", "-m", "/no/model"},
        {"quantize", "/no/model", "/tmp/out", "F16"},
        {"quantize", MODEL, "/no/model", "F16"},
        {"run", ON_MODEL, "-f", "/no/model"},
        {"logits", ON_MODEL, "--ids", "@/no/model"},
        {"logits", "-m", MODEL, "--ids", "1", "-o", "/no/model"},
        {"demo", "-m", "/no/model", "-f", MODEL, "--answer", MODEL},
        {"demo", "-f", "/no/model"},
        {"run", PITH_SOURCE_DIR, "-p", "x"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct said s = command_list(NULL, NULL, cases[i]);
        expect_failure(&s, 1, i == 13 ? PITH_SOURCE_DIR : "/no/model");
        assert_int_equal(s.out_len, 0);
    }
}

/* Faults that only the model or the engine sees are named as they were typed, too. */
TEST(later_failures_name_the_option)
{
    static const struct {
        const char *words[10];
        const char *expected;
    } cases[] = {
        {{"run", ON_MODEL, "-p", "x", "--kv-memory", "1B"}, "pith run: --kv-memory: 1 bytes are"},
        {{"run", ON_MODEL, "-p", "x", "--json-schema", "{"}, "pith run: --json-schema: JSON: at "},
        {{"run", ON_MODEL, "-p", "x", "--grammar", "{"}, "pith run: --grammar: grammar: line 1"},
        {{"run", ON_MODEL, "-p", "x", "--json-schema-file", "/dev/null"},
         "pith run: --json-schema-file: JSON: at byte 0"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct said s = command_list(NULL, NULL, cases[i].words);
        expect_failure(&s, 1, cases[i].expected);
    }
}

/* ---- run ---- */

TEST(run_prints_the_text_only)
{
    char path[128];
    struct said s = command(NULL, "run", ON_MODEL, "-p", PROMPT, "--temp", "0", NULL);
    expect_status(&s, 0);
    assert_string_equal(s.out, ANSWER);
    expect_word(s.err, "tokens/s");
    expect_word(s.err, "pages");

    s = command(NULL, "run", ON_MODEL, "-p", PROMPT, "--temp", "0", "--echo", "-q", NULL);
    assert_string_equal(s.out, PROMPT ANSWER);
    assert_string_equal(s.err, "");

    /* The same prompt from a file and from standard input, whose last newline goes. */
    write_file(in_folder("prompt.txt", path), PROMPT "\n");
    s = command(NULL, "run", ON_MODEL, "-f", path, "--temp", "0", "-q", NULL);
    assert_string_equal(s.out, ANSWER);
    s = command(PROMPT "\n", "run", MODEL, "-t", "1", "--temp", "0", "-q", NULL);
    assert_string_equal(s.out, ANSWER);
    s = command(PROMPT, "run", ON_MODEL, "-f", "-", "--temp=0", "-q", "-n", "0", NULL);
    expect_status(&s, 0);
    assert_string_equal(s.out, "");

    s = command(NULL, "run", ON_MODEL, "-e", "-p", "a\\nb\\x41\\\\", "-n", "0", "--echo", "-q",
                NULL);
    assert_string_equal(s.out, "a\nbA\\");
}

TEST(top_k_of_minus_one_is_all)
{
    struct said all = command(NULL, "run", ON_MODEL, "-p", PROMPT, "--temp", "2", "-s", "3",
                              "--top-k", "0", "-n", "20", "-q", NULL);
    struct said minus = command(NULL, "run", ON_MODEL, "-p", PROMPT, "--temp", "2", "-s", "3",
                                "--top-k", "-1", "-n", "20", "-q", NULL);
    expect_status(&minus, 0);
    assert_true(all.out_len > 0);
    assert_string_equal(minus.out, all.out);
}

TEST(options_of_run_act)
{
    struct said s =
        command(NULL, "run", ON_MODEL, "-p", PROMPT, "--temp", "0", "-r", "is cop", "-q", NULL);
    assert_string_equal(s.out, " The password of Maria ");
    s = command(NULL, "run", ON_MODEL, "-p", PROMPT, "--temp", "0", "-n", "3", "-q", NULL);
    expect_word(ANSWER, s.out);
    assert_true(s.out_len > 0 && s.out_len < strlen(ANSWER));
    s = command(NULL, "run", ON_MODEL, "-p", PROMPT, "--temp", "0", "-q", "-ctk", "q8_0", "-ctv",
                "f32", "--page", "16", "--chunk", "7", "--kv-memory", "1MiB", "--show-kv", NULL);
    assert_string_equal(s.out, ANSWER);
    expect_word(s.err, "layer 2 head 0");
    expect_word(s.err, " = the pool's ");
}

/* Answers in a grammar, or of a schema, from the command line and from a file. */
TEST(run_answers_in_a_grammar)
{
    char path[128], at_path[132];
    struct said s = command(NULL, "run", ON_MODEL, "-p", PROMPT, "-q", "--grammar",
                            "root ::= \"yes\" | \"no\"", NULL);
    expect_status(&s, 0);
    assert_true(strcmp(s.out, "yes") == 0 || strcmp(s.out, "no") == 0);
    write_file(in_folder("digits.gbnf", path), "root ::= [0-9]{3}\n");
    s = command(NULL, "run", ON_MODEL, "-p", PROMPT, "-q", "--grammar-file", path, NULL);
    expect_status(&s, 0);
    assert_int_equal(s.out_len, 3);
    assert_int_equal(strspn(s.out, "0123456789"), 3);
    write_file(in_folder("schema.json", path), "{\"enum\": [true, false]}");
    snprintf(at_path, sizeof(at_path), "@%s", path);
    s = command(NULL, "run", ON_MODEL, "-p", PROMPT, "-q", "-j", at_path, NULL);
    expect_status(&s, 0);
    assert_true(strcmp(s.out, "true") == 0 || strcmp(s.out, "false") == 0);
    s = command(NULL, "run", ON_MODEL, "-p", PROMPT, "-j", "{\"not\":{}}", NULL);
    expect_failure(&s, 1, "#/not: this keyword is not supported");
    s = command(NULL, "run", ON_MODEL, "-p", PROMPT, "-j", "{}", "--grammar", "x", NULL);
    expect_failure(&s, 2, "only one of them");
}

TEST(the_seed_decides_and_threads_do_not)
{
    struct said s[4];
    for (int i = 0; i < 4; i++) {
        s[i] = command(NULL, "run", "-m", MODEL, "-t", i == 1 ? "2" : "1", "-p", "The", "-n", "24",
                       "-s", i == 2 ? "5" : "4", "--temp", "1.5", "--top-k", "0", "-q",
                       "--cpu-level", i == 3 ? "scalar" : pith_cpu_level(), NULL);
        expect_status(&s[i], 0);
    }
    assert_string_equal(s[0].out, s[1].out);
    assert_string_not_equal(s[0].out, s[2].out);
    assert_true(s[3].out_len > 0);
}

TEST(run_tells_what_it_did_as_json)
{
    struct said s = command(NULL, "run", ON_MODEL, "-p", PROMPT, "--temp", "0", "-n", "4", "--json",
                            "-c", "64", NULL);
    json_t *o = parse(s.err);
    assert_int_equal(whole(o, "generated_tokens"), 4);
    assert_int_equal(whole(o, "length"), whole(o, "prompt_tokens") + 3);
    assert_true(whole(o, "kv_used_bytes") <= whole(o, "kv_reserved_bytes"));
    assert_string_equal(json_string_value(json_object_get(o, "stop")), "length");
    assert_int_equal(strlen(json_string_value(json_object_get(o, "logits_hash"))), 16);
    json_decref(o);
}

/* The first makes the file, the second maps it: the same text and logits as without, and the report
   says so. */
TEST(run_keeps_packed_weights)
{
    char at[128], option[160], kept[128];
    char *text = NULL, *hash = NULL;
    snprintf(option, sizeof(option), "--cache-weights=%s", in_folder("", at));
    for (int i = 0; i < 4; i++) {
        struct said s = command(NULL, "run", ON_MODEL, "-p", PROMPT, "--temp", "0", "-n", "8", "-c",
                                "64", i < 3 ? "--json" : "-e", i > 0 ? option : "-e", NULL);
        expect_status(&s, 0);
        if (i == 3) {
            expect_word(s.err, "weights  mapped");
            expect_word(s.err, hash);
            continue;
        }
        json_t *o = parse(s.err);
        assert_true(json_is_true(json_object_get(o, "weights_mapped")) == (i > 0));
        assert_true(whole(o, "disk_bytes") >= 0 && number(o, "disk_bytes_per_token") >= 0);
        if (i == 0) {
            text = strdup(s.out);
            hash = strdup(json_string_value(json_object_get(o, "logits_hash")));
        }
        assert_string_equal(s.out, text);
        assert_string_equal(json_string_value(json_object_get(o, "logits_hash")), hash);
        json_decref(o);
    }
    assert_int_equal(access(in_folder("pith-nano.gguf.packed", kept), R_OK), 0);
    struct said s = command(NULL, "run", ON_MODEL, "-p", PROMPT, "-n", "1", "-q",
                            "--cache-weights=/nowhere/at/all", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "warning: weights: /nowhere/at/all/pith-nano.gguf.packed");
    expect_word(s.err, "they are packed into memory");
    free(text);
    free(hash);
}

/* With a keep policy the output reports its work, and the KV memory has the size that the policy
   needs. */
TEST(run_tells_what_a_keep_policy_did)
{
    struct said s = command(NULL, "run", ON_MODEL, "-p", PROMPT, "--temp", "0", "-n", "120",
                            "--ignore-eos", "--page", "16", "--json", "--keep",
                            "streaming:budget=32,slack=16", "--recall", "none", NULL);
    expect_status(&s, 0);
    json_t *o = parse(s.err);
    int64_t rounds = whole(o, "keep_rounds"), lanes = 6;
    assert_int_equal(rounds, (whole(o, "length") - 32) / 16);
    assert_int_equal(whole(o, "keep_evicted"), rounds * 16 * lanes);
    assert_int_equal(whole(o, "keep_first_round_at"), 48);
    assert_true(whole(o, "keep_bytes_freed") > 0);
    json_decref(o);

    s = command(NULL, "run", ON_MODEL, "-p", PROMPT, "-n", "1", "--keep", "streaming", NULL);
    expect_status(&s, 0);
    assert_non_null(strstr(s.err, "streaming: no round yet, the fullest lane holds "));

    s = command(NULL, "bench", ON_MODEL, "-p", "16", "-n", "4", "-d", "200", "-r", "2", "-o",
                "json", "--keep", "streaming:budget=32,slack=16", NULL);
    expect_status(&s, 0);
    o = parse(s.out);
    assert_string_equal(json_string_value(json_object_get(o, "keep")),
                        "streaming:budget=32,slack=16");
    assert_true(whole(o, "kv_peak_bytes") > 0);
    json_decref(o);
}

TEST(run_ends_when_memory_is_full)
{
    struct said s = command(NULL, "run", ON_MODEL, "-p", "The", "-c", "16", "--page", "16",
                            "--ignore-eos", "-q", NULL);
    expect_status(&s, 0);
    assert_true(s.out_len > 0);
    expect_word(s.err, "ends at 16 tokens because");
    s = command(NULL, "run", ON_MODEL, "-p", PROMPT, "-c", "16", "--page", "16", NULL);
    expect_failure(&s, 1, "do not fit the KV memory, which -c, --kv or --kv-memory size");
    assert_int_equal(s.out_len, 0);
}

/* ---- logits ---- */

static bool keep_row(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    float **rows = user;
    pith_model_info info;
    pith_model_get_info(pith_engine_model(pith_seq_engine(seq)), &info);
    memcpy(rows[0] + (size_t)pos * (size_t)info.n_vocab, logits,
           (size_t)info.n_vocab * sizeof(*logits));
    return true;
}

/* The rows of logits through the library. Returns the size of a row; the caller frees. */
static int32_t library_rows(const int32_t *ids, int32_t n, float **rows)
{
    pith_model *model;
    pith_engine *engine;
    pith_seq *seq;
    pith_model_info info;
    assert_int_equal(pith_model_load(MODEL, NULL, &model, NULL), PITH_OK);
    assert_int_equal(pith_engine_create(model, NULL, &engine, NULL), PITH_OK);
    assert_int_equal(pith_seq_create(engine, &seq, NULL), PITH_OK);
    pith_model_get_info(model, &info);
    *rows = calloc((size_t)n * (size_t)info.n_vocab, sizeof(float));
    pith_batch_item item = {.seq = seq,
                            .tokens = ids,
                            .n_token = n,
                            .logits = PITH_LOGITS_ALL,
                            .on_logits = keep_row,
                            .user = rows};
    assert_int_equal(pith_batch_eval(engine, &item, 1, NULL, NULL, NULL), PITH_OK);
    pith_seq_free(seq);
    pith_engine_free(engine);
    pith_model_free(model);
    return info.n_vocab;
}

static void check_position(json_t *position, int32_t pos, const float *row, int32_t n_vocab)
{
    char hash[24];
    json_t *top = json_object_get(position, "top");
    double last = INFINITY;
    assert_int_equal(whole(position, "pos"), pos);
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)pith_logits_hash(row, n_vocab));
    assert_string_equal(json_string_value(json_object_get(position, "hash")), hash);
    assert_int_equal(json_array_size(top), 5);
    for (size_t i = 0; i < 5; i++) {
        int64_t id = json_integer_value(json_array_get(json_array_get(top, i), 0));
        double logit = json_real_value(json_array_get(json_array_get(top, i), 1));
        int32_t above = 0;
        assert_in_range(id, 0, n_vocab - 1);
        assert_true((float)logit == row[id]);
        assert_true(logit <= last);
        for (int32_t t = 0; t < n_vocab; t++)
            above += row[t] > row[id];
        assert_true(above <= (int32_t)i);
        last = logit;
    }
}

TEST(logits_are_those_of_the_library)
{
    static const int32_t ids[] = {980, 4, 300, 77, 512, 0, 981};
    char path[128], raw[128];
    float *rows;
    int32_t n_vocab = library_rows(ids, 7, &rows);
    write_file(in_folder("ids.txt", path), "@ignored");
    char argument[160];
    write_file(path, " 980, 4\n300 77,512\t0 981\n");
    snprintf(argument, sizeof(argument), "@%s", path);
    for (int round = 0; round < 3; round++) {
        struct said s =
            command(NULL, "logits", ON_MODEL, "--ids",
                    round == 0 ? "980,4,300,77,512,0,981" : argument, "--top", "5", "--chunk",
                    round == 1 ? "2" : "512", "--json", "--out", in_folder("raw", raw), NULL);
        expect_status(&s, 0);
        assert_int_equal(s.err_len, 0);
        json_t *o = parse(s.out), *positions = json_object_get(o, "positions");
        assert_int_equal(json_array_size(positions), 7);
        for (int32_t i = 0; i < 7; i++)
            check_position(json_array_get(positions, (size_t)i), i, rows + i * n_vocab, n_vocab);
        json_decref(o);
        struct stat st;
        assert_int_equal(stat(raw, &st), 0);
        assert_int_equal(st.st_size, 7 * (long)n_vocab * 4);
    }
    struct said s = command(NULL, "logits", ON_MODEL, "--ids", "[1, 2]", "--top", "0", NULL);
    expect_status(&s, 0);
    assert_true(strchr(s.out, ':') == NULL && s.out[0] == '0');
    free(rows);
}

/* ---- tokenize, info, quantize, bench ---- */

TEST(tokenize_gives_the_ids_of_the_library)
{
    static const char text[] = "The password of Maria: \xe2\x82\xac!\n";
    int32_t ids[128], n;
    pith_model *model;
    assert_int_equal(pith_model_load(MODEL, NULL, &model, NULL), PITH_OK);
    for (int round = 0; round < 2; round++) {
        uint32_t flags = round == 0 ? PITH_TOKENIZE_BOS : 0;
        assert_int_equal(pith_tokenize(model, text, strlen(text), flags, ids, 128, &n, NULL),
                         PITH_OK);
        struct said s =
            command(text, "tokenize", "-m", MODEL, "--json", round == 0 ? NULL : "--no-bos", NULL);
        expect_status(&s, 0);
        json_t *list = parse(s.out);
        assert_int_equal(json_array_size(list), n);
        for (int32_t i = 0; i < n; i++)
            assert_int_equal(json_integer_value(json_array_get(list, (size_t)i)), ids[i]);
        json_decref(list);
        /* And back, from the JSON as it is. */
        struct said back = command(s.out, "tokenize", "-m", MODEL, "--detokenize", NULL);
        expect_status(&back, 0);
        assert_string_equal(back.out, text);
    }
    pith_model_free(model);
    struct said s = command("", "tokenize", "-m", MODEL, "--json", "--no-bos", NULL);
    assert_string_equal(s.out, "[]\n");
    s = command(NULL, "tokenize", "-m", MODEL, "-p", "The end", NULL);
    expect_word(s.out, "\"The\"");
    expect_word(s.out, "\" \"");
}

TEST(info_counts_parameters_and_memory)
{
    int64_t n_param = 0;
    size_t i, k;
    json_t *tensor, *dim;
    struct said s = command(NULL, "info", MODEL, "-v", "--json", "--memory", "1GiB", NULL);
    expect_status(&s, 0);
    json_t *o = parse(s.out);
    assert_string_equal(json_string_value(json_object_get(o, "architecture")), "qwen2");
    json_array_foreach(json_object_get(o, "tensors"), i, tensor)
    {
        int64_t n = 1;
        json_array_foreach(json_object_get(tensor, "shape"), k, dim) n *= json_integer_value(dim);
        n_param += n;
    }
    assert_int_equal(n_param, whole(o, "n_param"));
    assert_true(json_array_size(json_object_get(o, "kv")) >= 9);
    json_t *f32 = json_array_get(json_object_get(o, "kv"), 0);
    int64_t entries = whole(o, "n_layer") * whole(o, "n_head_kv");
    int64_t row = 4 * (whole(o, "head_dim_k") + whole(o, "head_dim_v"));
    assert_true(json_real_value(json_object_get(f32, "bytes_per_token")) >=
                (double)(entries * row));
    assert_true(whole(f32, "fits_tokens") > 0 &&
                whole(f32, "fits_tokens") * entries * row < (int64_t)1 << 30);
    json_decref(o);
    s = command(NULL, "info", MODEL, "-v", NULL);
    expect_status(&s, 0);
    expect_word(s.out, "token_embd.weight");
    expect_word(s.out, "bytes/token");
    expect_word(s.out, "qwen2.block_count");
}

/* Features of some layers only, and windows beside the memory that grows. */
TEST(info_tells_layers_apart)
{
    char path[128];
    err = (pith_error){0};
    assert_int_equal(model_make_of("arch=gemma3 layers=7 window=9 width=32 ff=32",
                                   in_folder("gemma3.gguf", path), &err),
                     PITH_OK);
    struct said s = command(NULL, "info", path, NULL);
    expect_status(&s, 0);
    expect_word(s.out, "windows       6 of 7 layers see 9 tokens at most");
    expect_word(s.out, "full windows of f16 take");
    s = command(NULL, "bench", path, "-t", "1", "-p", "90", "-n", "4", "-d", "150", "-r", "2",
                NULL);
    expect_status(&s, 0); /* it cannot go back to the depth, and reads it again */
    s = command(NULL, "info", path, "--json", NULL);
    expect_status(&s, 0);
    json_t *o = parse(s.out);
    assert_int_equal(whole(o, "n_layer_window"), 6);
    assert_int_equal(whole(o, "window"), 9);
    /* One of seven layers grows. */
    json_t *f32 = json_array_get(json_object_get(o, "kv"), 0);
    int64_t row = 4 * whole(o, "n_head_kv") * (whole(o, "head_dim_k") + whole(o, "head_dim_v"));
    double bytes = json_real_value(json_object_get(f32, "bytes_per_token"));
    assert_true(bytes >= (double)row && bytes < 1.1 * (double)row);
    json_decref(o);
}

/* The fixed bytes of recurrent layers, beside the bytes per token of the others. */
TEST(info_tells_the_bytes_of_states)
{
    char path[128];
    err = (pith_error){0};
    assert_int_equal(model_make_of("arch=qwen35 layers=4 width=64 ff=32 rot=8",
                                   in_folder("qwen35.gguf", path), &err),
                     PITH_OK);
    struct said s = command(NULL, "info", path, NULL);
    expect_status(&s, 0);
    expect_word(s.out,
                "recurrent     3 of the layers, with a state of 23.6 KiB a sequence; 1 have");
    expect_word(s.out, "bytes/token of the layers with attention");
    s = command(NULL, "info", path, "--json", NULL);
    expect_status(&s, 0);
    json_t *o = parse(s.out);
    assert_int_equal(whole(o, "n_layer_kv"), 1);
    assert_int_equal(whole(o, "state_bytes"), 3 * 4 * (3 * 160 + 6 * 16 * 16));
    json_t *f32 = json_array_get(json_object_get(o, "kv"), 0);
    int64_t row = 4 * whole(o, "n_head_kv") * (whole(o, "head_dim_k") + whole(o, "head_dim_v"));
    double bytes = json_real_value(json_object_get(f32, "bytes_per_token"));
    assert_true(bytes >= (double)row && bytes < 1.1 * (double)row);
    json_decref(o);
}

/* Values of latent lanes take nothing, and have the type of keys. */
TEST(info_tells_the_bytes_of_latent_lanes)
{
    char path[128];
    struct model_spec spec;
    err = (pith_error){0};
    model_spec_default(&spec);
    assert_int_equal(
        model_spec_parse(&spec, "arch=deepseek2 layers=3 width=32 ff=32 rank=64 rot=32", &err),
        PITH_OK);
    assert_int_equal(model_make(&spec, in_folder("deepseek2.gguf", path), &err), PITH_OK);
    struct said s = command(NULL, "info", path, NULL);
    expect_status(&s, 0);
    expect_word(s.out,
                "latent        a lane a layer, of 32 rotated dimensions and 64 for keys and");
    s = command(NULL, "info", path, "--json", NULL);
    expect_status(&s, 0);
    json_t *o = parse(s.out), *kv = json_object_get(o, "kv"), *pair;
    assert_int_equal(whole(o, "v_in_k"), 32);
    /* f32 comes first: three layers of 96 values and a position. */
    double bytes = json_real_value(json_object_get(json_array_get(kv, 0), "bytes_per_token"));
    assert_true(bytes == 3 * (4 * 96 + 4));
    size_t i;
    json_array_foreach(kv, i, pair)
        assert_string_equal(json_string_value(json_object_get(pair, "type_k")),
                            json_string_value(json_object_get(pair, "type_v")));
    json_decref(o);
    s = command(NULL, "logits", path, "--ids", "1", "-ctk", "q8_0", NULL);
    expect_status(&s, 1);
    expect_word(s.err, "type_v must be type_k (q8_0, and edges alike)");
}

TEST(sizes_are_read_with_their_units)
{
    static const struct {
        const char *text;
        int64_t bytes;
    } sizes[] = {
        {"1B", 1},          {"4096B", 4096},
        {"3k", 3000},       {"3KiB", 3072},
        {"3K", 3000},       {"1.5MiB", 1572864},
        {"2MB", 2000000},   {"1Gi", (int64_t)1 << 30},
        {"1G", 1000000000}, {"0.5TiB", (int64_t)1 << 39},
    };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct said s = command(NULL, "info", MODEL, "--json", "--memory", sizes[i].text, NULL);
        expect_status(&s, 0);
        json_t *o = parse(s.out);
        assert_int_equal(whole(o, "memory_bytes"), sizes[i].bytes);
        json_decref(o);
    }
}

TEST(quantize_writes_a_model_that_answers_alike)
{
    char path[128], odd[128];
    struct stat st;
    struct said s = command(NULL, "quantize", MODEL, in_folder("q8.gguf", path), "Q8_0", "-t", "1",
                            "--progress", NULL);
    expect_status(&s, 0);
    assert_int_equal(s.out_len, 0);
    expect_word(s.err, "100 %  quantizing");
    s = command(NULL, "run", "-m", path, "-t", "1", "-p", PROMPT, "--temp", "0", "-q", NULL);
    assert_string_equal(s.out, ANSWER);
    s = command(NULL, "info", path, "--json", NULL);
    json_t *o = parse(s.out);
    assert_string_equal(json_string_value(json_object_get(o, "file_type")), "Q8_0");
    json_decref(o);
    /* A device is written directly, and has no size. */
    s = command(NULL, "quantize", MODEL, "/dev/stdout", "Q4_0", "-t", "1", NULL);
    expect_status(&s, 0);
    assert_true(s.out_len > 100000 && memcmp(s.out, "GGUF", 4) == 0);
    expect_word(s.err, " KiB, from ");
    s = command(NULL, "quantize", MODEL, "/dev/null", "Q4_0", "-t", "1", NULL);
    expect_word(s.err, "/dev/null: from ");
    /* A failure leaves no file. */
    s = command(NULL, "quantize", path, in_folder("none/x.gguf", odd), "Q4_0", "-q", NULL);
    expect_failure(&s, 1, "x.gguf");
    s = command(NULL, "quantize", PITH_SOURCE_DIR "/LICENSE", in_folder("x.gguf", odd), "Q4_0",
                NULL);
    expect_failure(&s, 1, "LICENSE");
    assert_int_equal(stat(odd, &st), -1);
}

TEST(bench_prints_a_row_for_each_measurement)
{
    size_t i;
    json_t *row;
    struct said s = command(NULL, "bench", ON_MODEL, "-p", "16", "-n", "4", "-d", "0,40", "-r", "2",
                            "-o", "json", NULL);
    expect_status(&s, 0);
    json_t *o = parse(s.out), *rows = json_object_get(o, "rows");
    assert_int_equal(json_array_size(rows), 4);
    assert_int_equal(whole(o, "threads"), 1);
    assert_true(number(json_object_get(o, "machine"), "read_bytes_per_s") > 0);
    json_array_foreach(rows, i, row)
    {
        assert_int_equal(whole(row, "depth"), i < 2 ? 0 : 40);
        assert_int_equal(whole(row, "n"), i % 2 == 0 ? 16 : 4);
        assert_true(number(row, "tokens_per_s") > 0 && number(row, "bound") > 0);
        assert_true(number(row, "best") >= number(row, "tokens_per_s"));
    }
    json_decref(o);

    /* Prompts of each length are of one sequence; sequences generate together. */
    s = command(NULL, "bench", ON_MODEL, "-p", "16,32", "-n", "4", "-np", "1,3", "-r", "1", "-o",
                "json", NULL);
    expect_status(&s, 0);
    o = parse(s.out);
    rows = json_object_get(o, "rows");
    const int32_t expected[][2] = {{16, 1}, {32, 1}, {4, 1}, {4, 3}};
    assert_int_equal(json_array_size(rows), 4);
    json_array_foreach(rows, i, row)
    {
        assert_int_equal(whole(row, "n"), expected[i][0]);
        assert_int_equal(whole(row, "sequences"), expected[i][1]);
        assert_true(number(row, "bound") > 0);
    }
    /* The weights are read once for all. */
    assert_true(number(json_array_get(rows, 3), "bound") >
                1.5 * number(json_array_get(rows, 2), "bound"));
    json_decref(o);

    /* As many fields in each line of CSV as in its head. */
    s = command(NULL, "bench", ON_MODEL, "-p", "16", "-n", "0", "-r", "1", "-o", "csv", NULL);
    expect_status(&s, 0);
    int commas[2] = {0}, line = 0;
    for (const char *c = s.out; *c != '\0' && line < 2; c++) {
        commas[line] += *c == ',';
        line += *c == '\n';
    }
    assert_int_equal(line, 2);
    assert_int_equal(commas[0], commas[1]);
}
