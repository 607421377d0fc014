/*
 * `--recall` on the command line. The report of `pith run` for both forms is compared with a
 * sequence that the library makes from the same text. An evicted fact is found again in the same
 * turn. Also the text that a conversation puts before a message, and refusals.
 */
#define _POSIX_C_SOURCE 200809L

#include <jansson.h>
#include <stdbool.h>
#include <string.h>

#include "pith/inspect.h"
#include "pith/policy.h"
#include "status.h"
#include "testing.h"

#include "command.h"
#include "json_read.h"

TEST_GROUP(folder_make, folder_remove);

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define PROMPT PITH_SOURCE_DIR "/models/demo/prompt-2k.txt"
#define FACT "plain book" /* the answer to the prompt; it is at about token 320 */
#define KEEP "streaming:budget=256"
#define RUN "run", "-m", MODEL, "-t", "1", "-f", PROMPT, "--temp", "0", "-n", "4", "--ignore-eos"
#define CAP 4096

static const char *const forms[] = {
    "kv",
    "kv:type=q8_0,score=bounds,take=64,ram=1MiB",
    "text",
    "text:top=2,floor=0,bleed=8",
};
#define N_FORM (sizeof(forms) / sizeof(forms[0]))

struct made {
    pith_recall_stats stats;
    pith_keep_stats keep;
    pith_generate_result result;
    uint64_t hash;
};

static size_t read_prompt(char *text, size_t cap)
{
    FILE *file = fopen(PROMPT, "rb");
    assert_non_null(file);
    size_t len = fread(text, 1, cap - 1, file);
    fclose(file);
    len -= text[len - 1] == '\n'; /* as `pith run` reads a file */
    text[len] = '\0';
    return len;
}

/* The same with the library; within: the prompt is also the message that is recalled for. */
static struct made make(const char *keep, const char *recall, bool within)
{
    static char text[CAP * 8];
    static int32_t ids[CAP];
    pith_model_info info;
    pith_generate_params params;
    struct made made;
    int32_t n;
    size_t len = read_prompt(text, sizeof(text));
    pith_model *model = model_at(MODEL);
    pith_model_get_info(model, &info);
    pith_engine *engine =
        engine_with(model, (pith_engine_params){.n_thread = 1, .keep = keep, .recall = recall});
    pith_seq *seq = seq_make(engine);
    check(pith_tokenize(model, text, len, PITH_TOKENIZE_BOS, ids, CAP, &n, &err), &err);
    pith_generate_params_default(&params);
    params.n_predict = 4;
    params.ignore_end = true;
    params.sample.temperature = 0.0f;
    params.message = within ? text : NULL;
    params.message_len = within ? len : 0;
    check(pith_generate(seq, ids, n, &params, NULL, NULL, &made.result, &err), &err);
    made.hash = pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
    pith_seq_recall_stats(seq, &made.stats);
    pith_seq_keep_stats(seq, &made.keep);
    assert_int_equal(pith_seq_length(seq), n + made.result.n_recalled + 3);
    pith_seq_free(seq);
    pith_engine_free(engine);
    pith_model_free(model);
    return made;
}

static void expect_hash(const json_t *o, uint64_t expected)
{
    char hash[24];
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)expected);
    assert_string_equal(json_string_value(json_object_get(o, "logits_hash")), hash);
}

/* ---- run ---- */

TEST(json_tells_what_recall_did)
{
    for (size_t i = 0; i < N_FORM; i++) {
        struct said s = command(NULL, RUN, "--json", "--keep", KEEP, "--recall", forms[i], NULL);
        expect_status(&s, 0);
        json_t *o = json_loads(s.err, 0, NULL);
        assert_non_null(o);
        struct made m = make(KEEP, forms[i], true);
        bool text = strncmp(forms[i], "text", 4) == 0;
        assert_true(m.stats.recalls > 0 && m.stats.stored > 0 && m.stats.guests > 0);
        assert_int_equal(m.result.n_recalled > 0, text);
        assert_string_equal(json_string_value(json_object_get(o, "recall")), forms[i]);
        assert_int_equal(whole(o, "recalls"), m.stats.recalls);
        assert_int_equal(whole(o, "recall_stored"), m.stats.stored);
        assert_int_equal(whole(o, "recall_lost"), m.stats.lost);
        assert_int_equal(whole(o, "recall_guests"), m.stats.guests);
        assert_int_equal(whole(o, "recall_ram_bytes"), m.stats.ram_bytes);
        assert_int_equal(whole(o, "recall_file_bytes"), m.stats.file_bytes);
        assert_int_equal(whole(o, "recalled_tokens"), m.result.n_recalled);
        expect_hash(o, m.hash);
        json_decref(o);
    }
    /* It is the default beside a keep policy. */
    struct said s = command(NULL, RUN, "--json", "--keep", KEEP, NULL);
    json_t *usual = json_loads(s.err, 0, NULL);
    expect_hash(usual, make(KEEP, "kv", true).hash);
    assert_true(number(usual, "doubt") >= 0.0 && number(usual, "doubt") <= 1.0);
    json_decref(usual);
    s = command(NULL, RUN, "--json", "--keep", KEEP, "--recall", "none", NULL);
    expect_word(s.err, "\"recall\":\"none\"");
    assert_null(strstr(s.err, "recall_stored"));
}

/* Neither threads nor the chunk change a bit. */
TEST(threads_and_chunks_change_no_bit)
{
    for (size_t i = 0; i < N_FORM; i++) {
        struct said s = command(NULL, RUN, "--json", "--keep", KEEP, "--recall", forms[i], "-t",
                                "2", "--chunk", "96", NULL);
        expect_status(&s, 0);
        json_t *o = json_loads(s.err, 0, NULL);
        assert_non_null(o);
        expect_hash(o, make(KEEP, forms[i], true).hash);
        json_decref(o);
    }
}

/* The fact is evicted, and both forms find it again before the answer. */
TEST(finds_the_fact)
{
    struct said s = command(NULL, RUN, "-q", "--keep", KEEP, "--recall", "none", NULL);
    expect_status(&s, 0);
    assert_null(strstr(s.out, FACT));
    s = command(NULL, RUN, "-q", "--keep", KEEP, "--recall", "kv", NULL);
    expect_status(&s, 0);
    expect_word(s.out, FACT);
    s = command(NULL, RUN, "-q", "--keep", KEEP, "--recall", "text", NULL);
    expect_status(&s, 0);
    expect_word(s.out, FACT);
}

TEST(lines_tell_what_recall_did)
{
    char line[128];
    struct said s = command(NULL, RUN, "--keep", KEEP, "--recall", "kv", NULL);
    struct made m = make(KEEP, "kv", true);
    expect_status(&s, 0);
    snprintf(line, sizeof(line), "kv: %lld evicted entries in ", (long long)m.stats.stored);
    expect_word(s.err, line);
    snprintf(line, sizeof(line), " of memory, %lld lost; 1 recall, %lld entries are back\n",
             (long long)m.stats.lost, (long long)m.stats.guests);
    assert_int_equal(m.stats.recalls, 1);
    expect_word(s.err, line);
    assert_null(strstr(s.err, "--recall kv reads"));

    s = command(NULL, RUN, "--keep", KEEP, "--recall", "text", NULL);
    m = make(KEEP, "text", true);
    expect_status(&s, 0);
    snprintf(line, sizeof(line), "text: %lld spans in the store, %lld found for the last question",
             (long long)m.stats.stored, (long long)m.stats.guests);
    expect_word(s.err, line);
    snprintf(line, sizeof(line), ", %d tokens of them read before it\n", m.result.n_recalled);
    expect_word(s.err, line);
}

/* Where entries were evicted and nothing brings them back, a line says what would. */
TEST(hints_at_recall_where_entries_were_evicted)
{
    char line[128];
    struct said s = command(NULL, RUN, "--keep", KEEP, "--recall", "none", NULL);
    struct made m = make(KEEP, NULL, false);
    expect_status(&s, 0);
    snprintf(line, sizeof(line), "recall   %lld of %lld entries were evicted; --recall kv reads",
             (long long)m.keep.evicted, (long long)(m.keep.evicted + m.keep.live));
    expect_word(s.err, line);
    s = command(NULL, RUN, "--keep", "streaming:budget=3000", NULL);
    expect_status(&s, 0);
    assert_null(strstr(s.err, "--recall"));
    s = command(NULL, RUN, "--keep", KEEP, "--recall", "none", "--json", NULL);
    expect_status(&s, 0);
    assert_null(strstr(s.err, "--recall"));
}

/* A budget that is never reached changes no bit. */
TEST(changes_no_bit_below_the_budget)
{
    struct made full = make(NULL, NULL, false);
    for (size_t i = 0; i < N_FORM; i++) {
        struct made m = make("streaming:budget=3000", forms[i], true);
        assert_int_equal(m.hash, full.hash);
        assert_int_equal(m.stats.stored, 0);
        assert_int_equal(m.result.n_recalled, 0);
    }
}

/* Text recall changes a prompt only where the caller names the message in it. */
TEST(text_recall_waits_for_a_message)
{
    struct made plain = make(KEEP, NULL, false), text = make(KEEP, "text", false);
    assert_int_equal(plain.hash, text.hash);
    assert_int_equal(text.result.n_recalled, 0);
    assert_true(text.stats.stored > 0);
    assert_true(make(KEEP, "text", true).hash != plain.hash);
}

/* A named session in a file serves the next process. */
TEST(a_named_session_serves_the_next_process)
{
    char db[128], recall[256];
    in_folder("spans.db", db);
    snprintf(recall, sizeof(recall), "text:session=tale,db=%s", db);
    struct said s = command(NULL, RUN, "-q", "--keep", KEEP, "--recall", recall, NULL);
    expect_status(&s, 0);
    for (int i = 0; i < 2; i++) {
        if (i == 1)
            snprintf(recall, sizeof(recall), "text:session=other,db=%s", db);
        s = command(NULL, "run", "-m", MODEL, "-t", "1", "--temp", "0", "-n", "4", "-p",
                    "The sun shone.\nQuestion: What is the password of Walter?\n"
                    "Answer: The password of Walter is",
                    "--keep", KEEP, "--recall", recall, "--json", NULL);
        expect_status(&s, 0);
        if (i == 0)
            expect_word(s.out, FACT);
        assert_int_equal(strstr(s.err, "\"recalled_tokens\":0,") == NULL, i == 0);
    }
}

/* ---- chat ---- */

/* The prompt without its question is one message, whose lines are continued, and the question
   follows. The conversation is saved. */
static json_t *converse(const char *template_name, const char *recall)
{
    static char text[CAP * 8], input[2 * CAP * 8];
    char path[128];
    size_t n = 0;
    size_t len = read_prompt(text, sizeof(text));
    char *question = strstr(text, "Question:");
    assert_non_null(question);
    (void)len;
    for (const char *at = text; at < question - 1; at++) {
        if (*at == '\n')
            input[n++] = '\\';
        input[n++] = *at;
    }
    snprintf(input + n, sizeof(input) - n,
             "\nQuestion: What is the password of Walter?\n/save %s\n",
             in_folder("talk.json", path));
    struct said s =
        command(input, "chat", "-m", MODEL, "-t", "1", "--chat-template", template_name, "--temp",
                "0", "-n", "8", "--keep", KEEP, "--recall", recall, "--stats", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "text: ");
    json_t *list = json_load_file(path, 0, NULL);
    assert_non_null(list);
    return list;
}

static void expect_message(const json_t *list, size_t i, const char *role, const char *word)
{
    const json_t *m = json_array_get(list, i);
    assert_string_equal(json_string_value(json_object_get(m, "role")), role);
    expect_word(json_string_value(json_object_get(m, "content")), word);
}

/* Under every template, recalled text stands in the user's message, before its question. */
TEST(finds_stand_in_front_of_the_users_question)
{
    static const char *const templates[] = {"chatml", "mistral-v3"};
    for (size_t i = 0; i < 2; i++) {
        json_t *list = converse(templates[i], "text");
        assert_int_equal(json_array_size(list), 4);
        expect_message(list, 2, "user", "Walter is " FACT);
        expect_message(list, 2, "user", "\nQuestion: What is the password of Walter?");
        expect_message(list, 3, "assistant", "");
        json_decref(list);
    }
}

/* ---- other commands, refusals ---- */

TEST(bench_takes_recall)
{
    struct said s = command(NULL, "bench", "-m", MODEL, "-t", "1", "-p", "64", "-n", "2", "-r", "1",
                            "-d", "600", "--keep", KEEP, "--recall", "kv", "-o", "csv", NULL);
    expect_status(&s, 0);
    expect_word(s.out, ",keep,read,recall,share,chunk,");
    expect_word(s.out, "\"" KEEP "\",\"none\",\"kv\",\"none\",512,");
}

TEST(policies_lists_both_forms)
{
    pith_policy_info form;
    pith_param_info param;
    struct said s = command(NULL, "policies", NULL), t = command(NULL, "policies", "--json", NULL);
    json_t *root = json_loads(t.out, 0, NULL), *list = json_object_get(root, "recall");
    int32_t n = 0;
    expect_word(s.out, "--recall NAME:key=value");
    for (; pith_policy_get(PITH_RECALL, n, &form) == PITH_OK; n++) {
        struct said one = command(NULL, "policies", form.name, NULL);
        const json_t *o = json_array_get(list, (size_t)n);
        expect_word(s.out, form.summary[0] != '\0' ? form.name : "-");
        assert_string_equal(json_string_value(json_object_get(o, "name")), form.name);
        assert_int_equal(json_array_size(json_object_get(o, "params")), form.n_param);
        for (int32_t j = 0; pith_policy_get_param(PITH_RECALL, n, j, &param) == PITH_OK; j++) {
            char key[64];
            snprintf(key, sizeof(key), "\n  %s=%s", param.key, param.fallback);
            expect_word(one.out, key);
        }
        assert_null(strstr(one.out, "The rules"));
    }
    assert_int_equal(n, 2);
    json_decref(root);
}

TEST(refuses_bad_recall_options)
{
    struct said s = command(NULL, RUN, "--keep", KEEP, "--recall", "kw", NULL);
    expect_failure(&s, 2, "--recall: \"kw\" is not a policy");
    s = command(NULL, RUN, "--keep", KEEP, "--recall", "text:top=99", NULL);
    expect_failure(&s, 2, "--recall: top");
    s = command(NULL, RUN, "--recall", "kv", NULL);
    expect_failure(&s, 1, "recall: there is no keep policy");
    s = command(NULL, RUN, "--keep", KEEP, "--recall", "kv:take=300", NULL);
    expect_failure(&s, 1, "recall: take");
}
