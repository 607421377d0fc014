/*
 * `--kv`: a run holds the bytes that it says, values that cannot be are refused in one sentence,
 * and options beside it stand.
 */
#define _POSIX_C_SOURCE 200809L

#include <jansson.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command.h"
#include "json_read.h"
#include "testing.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-mini.gguf"
#define TEXT PITH_SOURCE_DIR "/models/demo/prompt-2k.txt"

static char little[128]; /* the beginning of TEXT */

static void make(void)
{
    char text[4001] = "";
    folder_make();
    FILE *file = fopen(TEXT, "r");
    assert_non_null(file);
    assert_int_equal(fread(text, 1, sizeof(text) - 1, file), sizeof(text) - 1);
    fclose(file);
    write_file(in_folder("little", little), text);
}

TEST_GROUP(make, folder_remove);

#define RUN_OF(text)                                                                               \
    "run", "-m", MODEL, "-t", "1", "-f", text, "-n", "4", "--temp", "0", "--no-chat"
#define RUN RUN_OF(little)

static json_t *stats_of(const struct said *s)
{
    expect_status(s, 0);
    json_t *o = json_loads(s->err, 0, NULL);
    assert_non_null(o);
    return o;
}

/* As Pith chooses; recall of entries and of text; a policy with marks. */
static const struct {
    const char *value, *option[5];
} held[] = {
    {"25%", {NULL}},
    {"12.5%", {NULL}},
    {"60%", {"--keep", "streaming", "--recall", "kv", NULL}},
    {"12.5%", {"--recall", "text", NULL}},
    {"25%", {"--keep", "h2o", NULL}},
};

TEST(a_run_holds_the_share_that_it_was_given)
{
    struct said s = command(NULL, RUN_OF(TEXT), "--json", NULL);
    json_t *full = stats_of(&s);
    double all = number(full, "kv_peak_bytes");
    for (size_t i = 0; i<sizeof(held) / sizeof(held[0]); i += TEST_STRIDE> 1 ? 2 : 1) {
        const char *const *more = held[i].option;
        s = command(NULL, RUN_OF(TEXT), "--json", "--kv", held[i].value, more[0],
                    more[0] ? more[1] : NULL, more[0] ? more[2] : NULL,
                    more[0] && more[2] ? more[3] : NULL, NULL);
        json_t *o = stats_of(&s);
        double share = atof(held[i].value) / 100.0, total = number(o, "memory_total_bytes");
        printf("%s: %.0f of %.0f\n", held[i].value, total, number(o, "memory_budget_bytes"));
        assert_true(number(o, "memory_budget_bytes") <= share * all);
        assert_true(total <= number(o, "memory_budget_bytes"));
        /* It is spent, too. */
        assert_true(total > 0.75 * share * all);
        assert_true(number(json_object_get(o, "memory_beside"), "logits") > 0);
        assert_non_null(json_object_get(o, "kv_plan"));
        json_decref(o);
    }
    json_decref(full);
}

/* A real model, where its file is. */
TEST(a_real_model_holds_its_share)
{
    if (TEST_STRIDE > 1)
        test_skip("with sanitizers a text takes minutes");
    static const char *const values[] = {"25%", "12.5%"};
    const char *model = test_model_file("smollm2", "smollm2-135m-instruct-q4_1.gguf");
    for (size_t i = 0; i < 2; i++) {
        struct said s = command(NULL, "run", "-m", model, "-f", TEXT, "-c", "2560", "-n", "4",
                                "--no-chat", "--json", "--kv", values[i], NULL);
        json_t *o = stats_of(&s);
        assert_true(number(o, "memory_total_bytes") <= number(o, "memory_budget_bytes"));
        json_decref(o);
    }
}

TEST(the_line_says_what_was_chosen)
{
    struct said s = command(NULL, RUN, "--kv", "25%", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "--kv 25%: ");
    expect_word(s.err, " of the full f16 cache of ");
    expect_word(s.err, "q8_0/turbo3, ");
    expect_word(s.err, "\"pith calibrate ");
    s = command(NULL, RUN, "-q", "--kv", "25%", NULL);
    expect_status(&s, 0);
    assert_string_equal(s.err, "");
}

TEST(a_size_is_the_whole_process)
{
    struct said s = command(NULL, RUN, "--kv", "512MiB", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "f16/f16, all entries; nothing is lost");
    s = command(NULL, RUN, "--kv", "12MiB", NULL);
    expect_failure(&s, 1, "weights, buffers and tables of the process take ");
    char size[32];
    snprintf(size, sizeof(size), "%.1fMiB", atof(strstr(s.err, "process take ") + 13) + 2.0);
    s = command(NULL, RUN, "--json", "--kv", size, NULL);
    json_t *o = stats_of(&s);
    assert_true(number(o, "memory_total_bytes") <= number(o, "memory_budget_bytes"));
    assert_true(number(o, "memory_budget_bytes") < 2.2 * 1048576.0);
    assert_non_null(strstr(json_string_value(json_object_get(o, "kv_plan")), "% of the full f16"));
    json_decref(o);
    s = command(NULL, RUN, "--kv", "auto", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "nothing is lost");
}

TEST(what_is_named_beside_it_may_lose_something)
{
    static const char *const named[][4] = {
        {"--keep", "random:budget=25%", "--recall", "none"},
        {"-ctk", "q8_0", "-ctv", "turbo2"},
        {"--read", "quoka:budget=64", "--recall", "none"},
    };
    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
        struct said s = command(NULL, RUN, "--kv", "512MiB", named[i][0], named[i][1], named[i][2],
                                named[i][3], NULL);
        expect_status(&s, 0);
        assert_null(strstr(s.err, "nothing is lost"));
        expect_word(s.err, "what that costs was not measured");
    }
    struct said s = command(NULL, RUN, "--kv", "512MiB", "-ctk", "f16", "--keep", "none", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "nothing is lost");
}

TEST(without_a_size_there_is_room_for_what_is_asked)
{
    static const char *const keeps[] = {"raas:budget=25%", "triattention:budget=25%"};
    struct said s;
    for (size_t i = 0; i < 2; i++) {
        s = command(NULL, RUN, "--keep", keeps[i], NULL);
        expect_status(&s, 0);
    }
    s = command(NULL, "bench", "-m", MODEL, "-t", "1", "-p", "0", "-n", "4", "-d", "300", "-np",
                "4", "-r", "1", "--keep", "streaming:budget=25%", NULL);
    expect_status(&s, 0);
    s = command(NULL, "bench", "-m", MODEL, "-t", "1", "-p", "0", "-n", "4", "-d", "300", "-np",
                "4", "-r", "1", "--kv", "25%", NULL);
    expect_status(&s, 0);
}

/* The context of the tiny model has 4,096 tokens. */
TEST(a_prompt_beyond_the_trained_context_is_planned_for)
{
    char path[128], text[16001] = "";
    FILE *file = fopen(TEXT, "r");
    size_t n = file != NULL ? fread(text, 1, sizeof(text) - 1, file) : 0;
    assert_true(n > 4000);
    fclose(file);
    file = fopen(in_folder("long", path), "w");
    assert_non_null(file);
    for (size_t i = 0; i < 2 + 16000 / n; i++)
        assert_int_equal(fwrite(text, 1, n, file), n);
    fclose(file);
    static const char *const values[] = {"200MiB", "60%"};
    for (size_t i = 0; i < (TEST_STRIDE > 1 ? 1 : 2); i++) {
        struct said s = command(NULL, "run", "-m", PITH_SOURCE_DIR "/models/pith-nano.gguf", "-t",
                                "2", "-f", path, "-n", "2", "--no-chat", "--kv", values[i], NULL);
        expect_status(&s, 0);
        const char *of = strstr(s.err, "full f16 cache of ");
        assert_non_null(of);
        assert_in_range(atoi(of + strlen("full f16 cache of ")), 4097, 100000);
    }
}

TEST(values_that_are_none_are_refused)
{
    static const struct {
        const char *value, *word;
    } bad[] = {
        {"0%", "leaves no entry"},   {"-5%", "leaves no entry"},
        {"nan%", "leaves no entry"}, {"101%", "more than the full cache"},
        {"25", "neither a share"},   {"25q", "neither a share"},
        {"25%%", "neither a share"}, {"%", "neither a share"},
        {"much", "neither a share"}, {"0MiB", "is no memory"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct said s = command(NULL, RUN, "--kv", bad[i].value, NULL);
        expect_failure(&s, 2, bad[i].word);
    }
    struct said s = command(NULL, RUN, "--kv", "25%", "--kv-memory", "10MiB", NULL);
    expect_failure(&s, 2, "give one");
    s = command(NULL, RUN, "--kv", "0.01%", NULL);
    expect_failure(&s, 1, "the least that a plan takes is ");
}

/* A page of each lane is more than a quarter of nine tokens. */
TEST(a_share_of_a_short_text_is_one_of_a_longer)
{
    struct said s = command(NULL, "run", "-m", MODEL, "-t", "1", "-p", "Hello", "--temp", "0", "-n",
                            "6", "--kv", "25%", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "% of the full f16 cache of 1024 tokens");
    s = command(NULL, "run", "-m", MODEL, "-t", "1", "-p", "Hello", "--temp", "0", "-n", "6",
                "--kv", "0.01%", NULL);
    expect_failure(&s, 1, "tokens: the least that a plan takes is ");
    assert_null(strstr(s.err, "1024"));
}

TEST(options_beside_it_stand)
{
    struct said s = command(NULL, RUN, "--kv", "25%", "--keep", "streaming:sinks=8", "-ctk", "f16",
                            "--recall", "none", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "f16/turbo3, streaming ");
    expect_word(s.err, "streaming:sinks=8,budget=");
    s = command(NULL, RUN, "--kv", "25%", "--keep", "streaming:budget=900", "-ctk", "f16", NULL);
    expect_failure(&s, 1, "the least that a plan takes is ");
}

TEST(tasks_and_other_commands_take_it)
{
    char path[128];
    struct said s =
        command(NULL, "eval", "perplexity", "-m", MODEL, "-t", "1", "-f", TEXT, "-c", "512",
                "--chunks", "1", "--no-paired", "--kv", "25%", "--json", "-", NULL);
    expect_status(&s, 0);
    expect_word(s.err, " of the full f16 cache of 512 tokens");
    json_t *o = json_loads(s.out, 0, NULL);
    assert_non_null(o);
    assert_true(figure(o, "kv_peak_bytes") <= 0.25 * 512 * 3120);
    assert_true(figure(o, "rounds") > 0);
    json_decref(o);
    s = command("hello\n", "chat", "-m", MODEL, "-t", "1", "-n", "2", "--kv", "30%",
                "--chat-template", "chatml", "--system", "You are short.", NULL);
    expect_status(&s, 0);
    expect_word(s.err, " of the full f16 cache of 8192 tokens");
    write_file(in_folder("in.jsonl", path),
               "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"
               "{\"prompt\":\"Once\",\"max_tokens\":2}}\n");
    char out[128];
    s = command(NULL, "batch", "-m", MODEL, "-t", "1", "-f", path, "-o", in_folder("o.jsonl", out),
                "--kv", "25%", NULL);
    expect_status(&s, 0);
}

/* Pages of other files that are in memory, as the program's, are none of them. */
TEST(mapped_weights_count_as_others)
{
    if (TEST_STRIDE > 1)
        test_skip("a sanitizer takes memory of its own");
    char path[128], option[160];
    const char *model = test_model_file("smollm2", "smollm2-135m-instruct-q4_1.gguf");
    double taken[3];
    snprintf(option, sizeof(option), "--cache-weights=%s", in_folder("weights", path));
    assert_int_equal(mkdir(path, 0700), 0);
    for (int i = 0; i < 3; i++) { /* the second writes the file, the third maps it */
        struct said s = command(NULL, "run", "-m", model, "-t", "2", "-f", little, "-n", "4",
                                "--no-chat", "--kv", "32MiB", i > 0 ? option : "-q", NULL);
        const char *take = strstr(s.err, "of the process take ");
        assert_non_null(take);
        taken[i] = atof(take + strlen("of the process take "));
    }
    printf("%.1f MiB, mapped %.1f and %.1f\n", taken[0], taken[1], taken[2]);
    assert_true(taken[1] > taken[0] - 3.0);
    assert_true(taken[2] > taken[0] - 3.0);
}

/* The model drafts for itself, of which it has a second copy. */
TEST(a_drafting_model_has_its_part)
{
    static const char *const values[] = {"auto", "60%", "25%"};
    struct said s = command(NULL, RUN, "--json", "--draft", "none", NULL);
    json_t *o = stats_of(&s), *full = o;
    for (size_t i = 0; i < 3; i++) {
        s = command(NULL, RUN, "--json", "--kv", values[i], "--draft", MODEL, NULL);
        o = stats_of(&s);
        assert_string_equal(json_string_value(json_object_get(o, "draft")), MODEL);
        assert_true(number(o, "memory_total_bytes") <= number(o, "memory_budget_bytes"));
        /* No recall, beside which nothing can be drafted. */
        assert_null(strstr(json_string_value(json_object_get(o, "kv_plan")), "recall"));
        if (i == 0)
            assert_string_equal(json_string_value(json_object_get(o, "logits_hash")),
                                json_string_value(json_object_get(full, "logits_hash")));
        json_decref(o);
    }
    json_decref(full);
    s = command(NULL, RUN, "--kv", "25%", "--draft", "lookup", NULL);
    expect_status(&s, 0);
    s = command(NULL, RUN, "--kv", "25%", "--draft", MODEL, "--keep", "h2o", NULL);
    expect_failure(&s, 1, "no way back from a draft");
}

/* The most that a command has resident, in MiB. It runs in a process between: the system tells of
   the largest child only. Below 0: it failed. */
static double most_resident(const char *const *words)
{
    int ends[2];
    double most = 0.0;
    assert_int_equal(pipe(ends), 0);
    pid_t between = fork();
    if (between == 0) {
        struct rusage usage;
        struct said s = command_list(NULL, NULL, words);
        getrusage(RUSAGE_CHILDREN, &usage);
        most = s.status == 0 ? (double)usage.ru_maxrss / 1024.0 : -1.0;
        if (s.status != 0)
            fputs(s.err, stderr);
        _exit(write(ends[1], &most, sizeof(most)) != sizeof(most));
    }
    assert_int_equal(read(ends[0], &most, sizeof(most)), sizeof(most));
    assert_int_equal(waitpid(between, NULL, 0), between);
    close(ends[0]);
    close(ends[1]);
    return most;
}

TEST(a_size_has_the_drafting_model_within_it)
{
    if (TEST_STRIDE > 1)
        test_skip("a sanitizer takes memory of its own");
    char size[32];
    struct said s = command(NULL, RUN, "--kv", "16MiB", "--draft", MODEL, NULL);
    expect_failure(&s, 1, "weights, buffers and tables of the process take ");
    double taken = atof(strstr(s.err, "process take ") + 13);
    assert_true(taken > 2.0 * 14.0); /* the weights twice */
    snprintf(size, sizeof(size), "%.1fMiB", taken + 2.0);
    s = command(NULL, RUN, "--kv", size, "--draft", MODEL, NULL);
    expect_failure(&s, 1, "tokens: nothing is left to the model");
    /* Room for all of its entries, and for less than the full cache of the other. */
    snprintf(size, sizeof(size), "%.1fMiB", taken + 5.0);
    s = command(NULL, RUN, "--json", "--kv", size, "--draft", MODEL, NULL);
    json_t *o = stats_of(&s);
    assert_true(number(o, "memory_budget_bytes") < 2.5 * 1048576.0);
    json_decref(o);
    const char *const words[] = {RUN, "--json", "--kv", size, "--draft", MODEL, NULL};
    double most = most_resident(words);
    printf("%s: %.1f MiB resident\n", size, most);
    assert_in_range((int64_t)most, 1, (int64_t)(taken + 5.0));
}

/* Each answer of many has logits of its own, of a real vocabulary. */
TEST(a_size_has_the_answers_that_run_at_once_within_it)
{
    if (TEST_STRIDE > 1)
        test_skip("a sanitizer takes memory of its own");
    char in[128], out[128];
    const char *model = test_model_file("smollm2", "smollm2-135m-instruct-q4_1.gguf");
    FILE *file = fopen(in_folder("many.jsonl", in), "w");
    assert_non_null(file);
    for (int i = 0; i < 96; i++)
        fprintf(file,
                "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"
                "{\"prompt\":\"Once upon %d\",\"max_tokens\":3,\"presence_penalty\":0.5}}\n",
                i, i);
    fclose(file);
    in_folder("many.out", out);
    const char *const words[] = {"batch", "-m", model,          "-t",   "2",      "-f", in,
                                 "-o",    out,  "--ignore-eos", "--kv", "230MiB", NULL};
    double most = most_resident(words);
    printf("%.1f MiB resident\n", most);
    assert_in_range((int64_t)most, 1, 230);
}

/* Chunks side by side, and rows of logits. */
TEST(a_size_has_a_task_within_it)
{
    if (TEST_STRIDE > 1)
        test_skip("a sanitizer takes memory of its own");
    const char *model = test_model_file("smollm2", "smollm2-135m-instruct-q4_1.gguf");
    const char *const words[] = {"eval", "perplexity", "-m", model,  "-t",   "2",      "-f", TEXT,
                                 "-c",   "512",        "-b", "2048", "--kv", "170MiB", NULL};
    double most = most_resident(words);
    printf("%.1f MiB resident\n", most);
    assert_in_range((int64_t)most, 1, 170);
}

/* A batch of two requests, of which one has no end of its own. */
static struct said batch(const char *kv, const char *option, const char *value)
{
    static char in[128], out[128];
    write_file(in_folder("two.jsonl", in),
               "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"
               "{\"prompt\":\"Once\",\"max_tokens\":2}}\n"
               "{\"custom_id\":\"b\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"
               "{\"prompt\":\"Once upon\"}}\n");
    unlink(in_folder("two.out", out));
    return command(NULL, "batch", "-m", MODEL, "-t", "1", "-f", in, "-o", out, "--ignore-eos",
                   "--json", "-", "--kv", kv, option, value, NULL);
}

TEST(a_share_of_a_batch_is_one_of_each_context)
{
    struct said s = batch("50%", "-c", "320");
    expect_status(&s, 0);
    expect_word(s.err, " of the full f16 cache of 320 tokens");
    json_t *o = json_loads(s.out, 0, NULL);
    assert_non_null(o);
    assert_true(number(o, "kv_reserved_bytes") <= 2 * 0.5 * 320 * 3120);
    assert_true(number(o, "generated_tokens") <= 2 + 320);
    assert_true(number(o, "generated_tokens") > 300);
    json_decref(o);
}

TEST(host_memory_of_a_batch_comes_out_of_a_size)
{
    struct said s = batch("512MiB", "--swap", "1GiB");
    expect_failure(&s, 1, "--swap takes 1.00 GiB of the ");
}

#define NANO PITH_SOURCE_DIR "/models/pith-nano.gguf"

/* Options of a plan, as a user would paste them behind a command that reads the text. */
static void paste(const char *options, double bytes)
{
    const char *words[40] = {"run", "-m", NANO, "-t", "1", "-f", TEXT, "-n", "1", "--json"};
    char *copy = strdup(options), *rest = NULL;
    size_t n = 10;
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        words[n++] = word;
    words[n] = NULL;
    struct said s = command_list(NULL, NULL, words);
    json_t *o = stats_of(&s);
    assert_true(number(o, "kv_peak_bytes") <= bytes);
    json_decref(o);
    free(copy);
}

/* Address space for the model, and none for a buffer that caches do not hold. */
TEST(without_memory_to_measure_the_rest_is_printed)
{
    if (TEST_STRIDE > 1)
        test_skip("a sanitizer takes address space of its own");
    pid_t child = fork();
    if (child == 0) {
        struct rlimit most = {(rlim_t)140 << 20, (rlim_t)140 << 20};
        setrlimit(RLIMIT_AS, &most);
        struct said s = command(NULL, "plan", NANO, "-c", "512", "-t", "1", NULL);
        bool ok = s.status == 0 && strstr(s.out, " %        -  nothing") != NULL &&
                  strstr(s.out, "there is no memory to measure") != NULL;
        if (!ok)
            fprintf(stderr, "%d\n%s%s", s.status, s.out, s.err);
        s = command(NULL, "bench", "-m", NANO, "-t", "1", "-p", "0", "-n", "2", "-r", "1", NULL);
        ok = ok && s.status == 0 && strstr(s.out, "generate       2        0") != NULL &&
             strstr(s.err, "bounds are left out") != NULL;
        if (!ok)
            fprintf(stderr, "%d\n%s%s", s.status, s.out, s.err);
        _exit(ok ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

TEST(options_of_a_plan_run_within_its_bytes)
{
    struct said s = command(NULL, "plan", NANO, "-c", "2048", "-t", "1", "--json", NULL);
    expect_status(&s, 0);
    json_t *o = json_loads(s.out, 0, NULL), *plan;
    size_t i;
    double before = 1e18, speed = 0.0;
    assert_non_null(o);
    assert_true(json_array_size(json_object_get(o, "plans")) >= 6);
    json_array_foreach(json_object_get(o, "plans"), i, plan)
    {
        assert_true(number(plan, "bytes") < before);
        assert_true(number(plan, "tokens_per_s") > speed);
        before = number(plan, "bytes");
        speed = number(plan, "tokens_per_s");
        if (i % TEST_STRIDE == 0)
            paste(json_string_value(json_object_get(plan, "options")), before);
    }
    json_decref(o);
    s = command(NULL, "plan", "-m", NANO, "-c", "512", NULL);
    expect_status(&s, 0);
    expect_word(s.out, "the full f16 cache of 512 tokens takes ");
    expect_word(s.out, "-ctk q8_0 -ctv turbo3 --keep ");
}
