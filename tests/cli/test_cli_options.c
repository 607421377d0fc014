/*
 * Options beside the command line: the environment, and lines that were written for llama.cpp. The
 * tests see the effect of an option in the text that a model writes and in refusals.
 */
#define _POSIX_C_SOURCE 200809L

#include <string.h>

#include "testing.h"

#include "command.h"
#include "with_template.h"

TEST_GROUP(folder_make, folder_remove);

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define ON_MODEL "run", "-m", MODEL, "-t", "1", "-p", "The friend of", "--temp", "0"
#define VARIABLES_MAX 4

/* One command under some variables, "NAME=value", which are gone afterwards. */
struct variables {
    const char *text[VARIABLES_MAX];
};

static struct said command_under(const struct variables *v, const char *const *words)
{
    char name[64];
    for (int i = 0; i < VARIABLES_MAX && v->text[i] != NULL; i++) {
        const char *equals = strchr(v->text[i], '=');
        snprintf(name, sizeof(name), "%.*s", (int)(equals - v->text[i]), v->text[i]);
        setenv(name, equals + 1, 1);
    }
    struct said s = command_list(NULL, NULL, words);
    for (int i = 0; i < VARIABLES_MAX && v->text[i] != NULL; i++) {
        snprintf(name, sizeof(name), "%.*s", (int)(strchr(v->text[i], '=') - v->text[i]),
                 v->text[i]);
        unsetenv(name);
    }
    return s;
}

/* ---- the environment ---- */

/* A variable has the effect of its option, and the command line overrides it. */
TEST(variables_are_options)
{
    static const struct {
        struct variables given;
        const char *words[16]; /* under the variables */
        const char *same[16];  /* with options alone */
    } cases[] = {
        {{{"PITH_PREDICT=5"}}, {ON_MODEL, "-q"}, {ON_MODEL, "-q", "-n", "5"}},
        {{{"PITH_PREDICT=5"}}, {ON_MODEL, "-q", "-n", "3"}, {ON_MODEL, "-q", "-n", "3"}},
        {{{"LLAMA_ARG_N_PREDICT=5"}}, {ON_MODEL, "-q"}, {ON_MODEL, "-q", "-n", "5"}},
        {{{"PITH_PREDICT=5", "LLAMA_ARG_N_PREDICT=2"}},
         {ON_MODEL, "-q"},
         {ON_MODEL, "-q", "-n", "5"}},
        {{{"PITH_QUIET=on", "PITH_PREDICT=3", "PITH_ECHO=enabled"}},
         {ON_MODEL},
         {ON_MODEL, "-q", "-n", "3", "--echo"}},
        {{{"PITH_QUIET=1", "PITH_ECHO=0", "PITH_PREDICT=3"}},
         {ON_MODEL},
         {ON_MODEL, "-q", "-n", "3"}},
        {{{"PITH_ECHO=true", "PITH_PREDICT=3"}},
         {ON_MODEL, "-q", "--no-display-prompt"},
         {ON_MODEL, "-q", "-n", "3"}},
        {{{"PITH_PREDICT="}}, {ON_MODEL, "-q", "-n", "3"}, {ON_MODEL, "-q", "-n", "3"}},
        /* A variable of another way to say the same does not stand beside the command line. */
        {{{"PITH_CTX_SIZE=2", "PITH_PREDICT=3"}},
         {ON_MODEL, "-q", "--kv-memory", "1MiB"},
         {ON_MODEL, "-q", "-n", "3"}},
        {{{"PITH_FILE=/no/file", "LLAMA_ARG_MODEL=/no/model"}},
         {ON_MODEL, "-q", "-n", "3"},
         {ON_MODEL, "-q", "-n", "3"}},
        /* Variables that belong to --chat have no effect without it, and unknown names have none at
           all. */
        {{{"PITH_SYSTEM=Be brief.", "LLAMA_ARG_CHAT_TEMPLATE=chatml", "PITH_NOTHING=7"}},
         {ON_MODEL, "-q", "-n", "3"},
         {ON_MODEL, "-q", "-n", "3"}},
        {{{"LLAMA_ARG_THREADS=-1"}}, {ON_MODEL, "-q", "-n", "3"}, {ON_MODEL, "-q", "-n", "3"}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct said s = command_under(&cases[i].given, cases[i].words);
        struct said t = command_list(NULL, NULL, cases[i].same);
        expect_status(&s, 0);
        expect_status(&t, 0);
        assert_true(t.out_len > 0);
        assert_string_equal(s.out, t.out);
        assert_string_equal(s.err, "");
    }
}

TEST(variables_are_checked)
{
    static const struct {
        struct variables given;
        const char *words[16];
        const char *expected;
    } cases[] = {
        {{{"PITH_CTX_SIZE=many"}}, {ON_MODEL}, "PITH_CTX_SIZE: \"many\" is not a whole number"},
        {{{"PITH_KV_MEMORY=12"}}, {ON_MODEL}, "PITH_KV_MEMORY: 12 has no unit"},
        {{{"PITH_CPU_LEVEL=sclar"}}, {ON_MODEL}, "PITH_CPU_LEVEL: \"sclar\" is not one of"},
        {{{"PITH_QUIET=maybe"}}, {ON_MODEL}, "PITH_QUIET: \"maybe\" is none of on, enabled"},
        {{{"LLAMA_ARG_TOP_P=2"}}, {ON_MODEL}, "LLAMA_ARG_TOP_P: 2 is not between 0 and 1"},
        {{{"LLAMA_ARG_PORT=http"}}, {"serve"}, "LLAMA_ARG_PORT: \"http\" is not a whole number"},
        {{{"PITH_KEEP=strem"}}, {ON_MODEL}, "did you mean streaming?"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct said s = command_under(&cases[i].given, cases[i].words);
        expect_failure(&s, 2, cases[i].expected);
        assert_int_equal(s.out_len, 0);
    }
}

/* Of the weights' file: on is beside the model, off is none, anything else its folder. */
TEST(a_variable_may_have_no_value)
{
    static const struct variables on = {{"PITH_CACHE_WEIGHTS=/no/folder"}};
    static const struct variables off = {{"PITH_CACHE_WEIGHTS=off"}};
    static const char *const words[] = {ON_MODEL, "-q", "-n", "1", NULL};
    struct said s = command_under(&on, words);
    expect_word(s.err, "/no/folder");
    s = command_under(&off, words);
    expect_status(&s, 0);
    assert_string_equal(s.err, "");
}

/* No variable of the project's own tests and scripts is the variable of an option. */
TEST(variables_do_not_clash)
{
    static const char *const taken[] = {"MODELS",  "CLIENTS", "STORIES", "FAMILY",
                                        "BUSY",    "LOGITS",  "TSAN",    "FUZZ",
                                        "COMMAND", "FORMAT",  "CONTEXT"};
    static const char *const verbs[] = {"run",       "chat",     "serve", "batch",
                                        "demo",      "bench",    "info",  "tokenize",
                                        "calibrate", "quantize", "logits"};
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        struct said s = command(NULL, "help", verbs[i], NULL);
        expect_status(&s, 0);
        for (size_t k = 0; k < sizeof(taken) / sizeof(taken[0]); k++) {
            char option[32] = "--";
            size_t n = 2;
            for (const char *c = taken[k]; *c != '\0'; c++)
                option[n++] = (char)(*c - 'A' + 'a');
            option[n] = '\0';
            for (const char *at = s.out; (at = strstr(at, option)) != NULL; at += n)
                assert_true(at[n] >= 'a' || at[n] == '-');
        }
    }
}

TEST(help_tells_of_the_environment)
{
    struct said s = command(NULL, "help", "environment", NULL);
    expect_status(&s, 0);
    expect_word(s.out, "PITH_KV_MEMORY");
    expect_word(s.out, "LLAMA_ARG_CTX_SIZE");
    expect_word(s.out, "LLAMA_API_KEY");
    s = command(NULL, "help", NULL);
    expect_word(s.out, "pith help environment");
}

/* ---- llama.cpp's spellings ---- */

/* Lines for llama.cpp give the text of the same line without what has no effect, and one line on
   standard error names that. */
TEST(lines_for_llama_cpp_run_as_they_are)
{
    static const struct {
        const char *words[24];
        const char *without; /* the line on standard error; NULL: none */
    } cases[] = {
        {{ON_MODEL, "-n", "6", "-ngl", "99", "-fa", "--mlock"},
         "without effect in Pith: -fa, --mlock\n"},
        {{ON_MODEL, "--n-predict", "6", "-fa", "on", "--no-mmap", "-c", "0"},
         "without effect in Pith: -fa, --no-mmap\n"},
        {{ON_MODEL, "--n_predict", "6", "--gpu-layers", "all", "--color", "--no-warmup"},
         "without effect in Pith: --color, --no-warmup\n"},
        {{ON_MODEL, "-n", "6", "--flash-attn=auto", "-b", "2048", "-ub", "512"},
         "without effect in Pith: --flash-attn=auto, -b\n"},
        {{ON_MODEL, "-n", "6", "-no-cnv", "--no-display-prompt", "-t", "-1", "--mirostat", "0"},
         "without effect in Pith: --mirostat\n"},
        {{ON_MODEL, "-n", "6", "--xtc-probability", "0.0", "--typical", "1.00", "-sm", "none"},
         "without effect in Pith: --xtc-probability, --typical, -sm\n"},
        {{ON_MODEL, "-n", "6", "-tb", "4", "--cache-type-k", "f16", "-devd", "none", "-np", "2"},
         "without effect in Pith: -tb, -devd, -np\n"},
        {{ON_MODEL, "-n", "6", "--temperature", "0", "--no-escape", "--perf"},
         "without effect in Pith: --perf\n"},
    };
    static const char *const plain[] = {ON_MODEL, "-q", "-n", "6", NULL};
    struct said expected = command_list(NULL, NULL, plain);
    expect_status(&expected, 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct said s = command_list(NULL, NULL, cases[i].words);
        expect_status(&s, 0);
        assert_string_equal(s.out, expected.out);
        assert_int_equal(strncmp(s.err, cases[i].without, strlen(cases[i].without)), 0);
    }
    /* Variables likewise; nothing is said with --quiet, nor where a line of JSON is asked for. */
    const struct variables gpu = {{"LLAMA_ARG_N_GPU_LAYERS=99", "LLAMA_ARG_FLASH_ATTN=on"}};
    static const char *const loud[] = {ON_MODEL, "-n", "1", NULL};
    static const char *const json[] = {ON_MODEL, "-n", "1", "--json", NULL};
    struct said s = command_under(&gpu, loud);
    expect_word(s.err, "without effect in Pith: LLAMA_ARG_FLASH_ATTN\n");
    s = command_under(&gpu, json);
    assert_int_equal(s.err[0], '{');
    s = command_under(&gpu, plain);
    assert_string_equal(s.err, "");
}

/* Options that would change an answer are refused, and the message names an alternative. */
TEST(what_is_lacking_is_refused)
{
    static const struct {
        const char *words[16];
        const char *expected;
    } cases[] = {
        {{ON_MODEL, "--mirostat", "2"}, "--mirostat 2: llama.cpp has this option, Pith does not"},
        {{ON_MODEL, "--lora", "x.gguf"}, "--lora x.gguf: llama.cpp has this option"},
        {{ON_MODEL, "--rope-freq-base", "1e6"}, "the model's file decides"},
        {{ON_MODEL, "--rope-freq-base"}, "--rope-freq-base: its value (VALUE) is missing"},
        {{"chat", "-m", MODEL, "-no-cnv"}, "\"pith run\" continues a text"},
        {{ON_MODEL, "-i"}, "\"pith chat\" is a conversation"},
        {{"serve", "--embeddings"}, "it serves no embeddings"},
        {{ON_MODEL, "-nlg", "9"}, "-nlg: there is no such option"},
        {{ON_MODEL, "--temprature", "0"}, "did you mean --temperature?"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct said s = command_list(NULL, NULL, cases[i].words);
        expect_failure(&s, 2, cases[i].expected);
    }
}

/* ---- one table of loading options ---- */

/* Every command that loads a model accepts the options of loading: the test checks their values. */
TEST(every_command_takes_the_loading_options)
{
    static const char *const commands[][4] = {
        {"run"},
        {"chat"},
        {"serve"},
        {"batch"},
        {"demo"},
        {"bench"},
        {"info"},
        {"tokenize"},
        {"logits"},
        {"calibrate", "queries"},
        {"calibrate", "importance"},
        {"calibrate", "loki"},
        {"calibrate", "share"},
        {"calibrate", "inspect"},
        {"eval", "perplexity"},
        {"eval", "divergence"},
        {"eval", "stack"},
        {"eval", "needle"},
        {"eval", "ruler"},
        {"eval", "recursion"},
        {"eval", "derivation"},
        {"eval", "questions"},
        {"eval", "facts"},
        {"eval", "share"},
        {"eval", "kept"},
        {"eval", "sweep"},
    };
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        const char *words[12];
        int n = 0;
        for (int k = 0; k < 4 && commands[i][k] != NULL; k++)
            words[n++] = commands[i][k];
        words[n++] = "--cache-weights=/no/folder";
        words[n++] = "-ngl";
        words[n++] = "9";
        words[n++] = "--threads";
        words[n++] = "2";
        words[n++] = "--cpu-level";
        words[n++] = "sclar";
        words[n] = NULL;
        struct said s = command_list(NULL, NULL, words);
        expect_failure(&s, 2, "--cpu-level: \"sclar\" is not one of scalar, avx2");
        expect_word(s.err, "did you mean scalar?");
    }
}

/* A sweep loads models as the command line says. */
TEST(sweep_maps_weights)
{
    char plan[128], out[128], folder[128], option[160], packed[192];
    write_file(in_folder("sweep.json", plan),
               "{\"model\": \"" MODEL "\", \"policies\": [\"full\"],"
               " \"tasks\": [{\"task\": \"needle\", \"style\": \"pith\", \"lengths\": [128],"
               " \"depths\": [0.5], \"repeats\": 1, \"predict\": 2}]}");
    in_folder("sweep.jsonl", out);
    in_folder("", folder);
    snprintf(option, sizeof(option), "--cache-weights=%s", folder);
    struct said s = command(NULL, "eval", "sweep", plan, "-o", out, option, "-t", "1", NULL);
    expect_status(&s, 0);
    snprintf(packed, sizeof(packed), "%s/pith-nano.gguf.packed", folder);
    FILE *file = fopen(packed, "rb");
    assert_non_null(file);
    fclose(file);
}

/* ---- models that were trained on messages ---- */

TEST(chat_is_mentioned)
{
    static const char template[] = "{% for m in messages %}{{ m['content'] }}{% endfor %}";
    char model[128];
    write_with_template(MODEL, in_folder("instruct.gguf", model), template);
    struct said s = command(NULL, "run", "-m", model, "-p", "Hello", "-n", "1", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "--chat applies it");
    static const char *const silent[] = {"-q",     "--json", "--no-chat",      "-no-cnv",
                                         "--chat", "-cnv",   "--parse-special"};
    for (size_t i = 0; i < sizeof(silent) / sizeof(silent[0]); i++) {
        s = command(NULL, "run", "-m", model, "-p", "Hello", "-n", "1", silent[i], NULL);
        expect_status(&s, 0);
        assert_null(strstr(s.err, "--chat applies"));
    }
    /* A model without one is not spoken of. */
    s = command(NULL, "run", "-m", MODEL, "-p", "Hello", "-n", "1", NULL);
    assert_null(strstr(s.err, "--chat"));
}

/* The system message from a file is the one from the line. */
TEST(the_system_message_may_come_from_a_file)
{
    static const char template[] =
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}";
    char model[128], path[128];
    write_with_template(MODEL, in_folder("system.gguf", model), template);
    write_file(in_folder("system.txt", path), "Be brief.\n");
#define ON_CHAT "run", "-m", model, "-p", "Hi", "--chat", "--echo", "-q", "-n", "0"
    struct said s = command(NULL, ON_CHAT, "--system", "Be brief.", NULL);
    struct said t = command(NULL, ON_CHAT, "-sysf", path, NULL);
    expect_status(&s, 0);
    expect_word(s.out, "system: Be brief.\nuser: Hi");
    assert_string_equal(s.out, t.out);
    s = command(NULL, ON_CHAT, "-sysf", path, "-sys", "x", NULL);
    expect_failure(&s, 2, "both give the system message");
}
