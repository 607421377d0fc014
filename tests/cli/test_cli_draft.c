/*
 * test_cli_draft.c - `--draft` on the command line. Texts and hashes are the same with and without
 * drafts, from every source. Also the report, and refusals; `auto` is never refused.
 */
#define _POSIX_C_SOURCE 200809L

#include <jansson.h>
#include <string.h>

#include "testing.h"

#include "command.h"

TEST_GROUP(folder_make, folder_remove);

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define OTHER PITH_SOURCE_DIR "/models/pith-mini.gguf"
#define PROMPT                                                                                     \
    "The password of Maria is copper lantern. The friend of Maria is Anton. The password of "      \
    "Maria is copper lantern. The friend of"
#define RUN "run", "-m", MODEL, "-t", "1", "-p", PROMPT, "-n", "80", "--ignore-eos", "--seed", "4"

static json_t *report_of(const struct said *s)
{
    json_error_t why;
    expect_status(s, 0);
    json_t *o = json_loads(s->err, 0, &why);
    assert_non_null(o);
    return o;
}

static json_int_t count_of(const json_t *o, const char *key)
{
    json_t *value = json_object_get(o, key);
    if (!json_is_integer(value))
        fail_msg("no number \"%s\"", key);
    return json_integer_value(value);
}

/* Without drafts, with drafts from the text, and with drafts from the same model. */
TEST(drafts_change_no_text)
{
    static const char *const temperatures[] = {"0", "0.8"};
    for (int t = 0; t < 2; t++) {
        struct said s[3] = {
            command(NULL, RUN, "--temp", temperatures[t], "--json", "--draft", "none", NULL),
            command(NULL, RUN, "--temp", temperatures[t], "--json", "--draft", "lookup",
                    "--draft-max", "4", NULL),
            command(NULL, RUN, "--temp", temperatures[t], "--json", "--draft", MODEL, NULL),
        };
        json_t *o[3] = {report_of(&s[0]), report_of(&s[1]), report_of(&s[2])};
        for (int i = 1; i < 3; i++) {
            assert_string_equal(s[i].out, s[0].out);
            assert_string_equal(json_string_value(json_object_get(o[i], "logits_hash")),
                                json_string_value(json_object_get(o[0], "logits_hash")));
            assert_int_equal(count_of(o[i], "kv_used_bytes"), count_of(o[0], "kv_used_bytes"));
            assert_true(count_of(o[i], "draft_n") >= count_of(o[i], "draft_n_accepted"));
        }
        assert_string_equal(json_string_value(json_object_get(o[0], "draft")), "none");
        assert_int_equal(count_of(o[0], "draft_n"), 0);
        assert_int_equal(count_of(o[1], "draft_kv_peak_bytes"), 0);
        assert_string_equal(json_string_value(json_object_get(o[1], "draft")), "lookup");
        assert_string_equal(json_string_value(json_object_get(o[2], "draft")), MODEL);
        for (int i = 0; i < 3; i++)
            json_decref(o[i]);
    }
}

/* A recording sees each token once: drafts may be asked for beside it, and none comes. */
TEST(nothing_is_drafted_while_recording)
{
    char path[128];
    in_folder("run.safetensors", path);
    struct said s[2] = {
        command(NULL, RUN, "--temp", "0", "--json", "--draft", "lookup", NULL),
        command(NULL, RUN, "--temp", "0", "--json", "--draft", "lookup", "--record", path, NULL),
    };
    json_t *plain = report_of(&s[0]), *recorded = report_of(&s[1]);
    assert_string_equal(s[1].out, s[0].out);
    assert_true(count_of(plain, "draft_n") > 0);
    assert_int_equal(count_of(recorded, "draft_n"), 0);
    json_decref(plain);
    json_decref(recorded);
}

/* By itself where policies allow it, and without a word where not. */
TEST(auto_drafts_where_policies_allow_it)
{
    struct said s = command(NULL, RUN, "--json", NULL);
    json_t *o = report_of(&s);
    assert_string_equal(json_string_value(json_object_get(o, "draft")), "auto");
    json_decref(o);
    s = command(NULL, RUN, "--json", "--keep", "h2o:budget=64", NULL);
    o = report_of(&s);
    assert_string_equal(json_string_value(json_object_get(o, "draft")), "none");
    json_decref(o);
}

TEST(refuses_drafts_that_policies_forbid)
{
    struct said s = command(NULL, RUN, "--draft", "lookup", "--keep", "h2o:budget=64", NULL);
    expect_failure(&s, 1, "h2o overwrites");
    s = command(NULL, RUN, "--draft", MODEL, "--share", "memshare", NULL);
    expect_failure(&s, 1, "share: steps");
    s = command(NULL, RUN, "--draft", "lookupp", NULL);
    expect_failure(&s, 1, "lookupp");
    s = command(NULL, RUN, "--draft-max", "64", NULL);
    expect_failure(&s, 2, "--draft-max");
    s = command(NULL, RUN, "--draft", OTHER, NULL);
    expect_failure(&s, 1, "tokenizers differ");
}

/* A file of requests, whose answers are the same lines. */
TEST(drafts_change_no_answer_of_a_batch)
{
    char in[128], out[2][128];
    write_file(
        in_folder("in", in),
        "{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": "
        "{\"prompt\": \"" PROMPT "\", \"max_tokens\": 60, \"temperature\": 0}}\n"
        "{\"custom_id\": \"b\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": "
        "{\"prompt\": \"" PROMPT " Maria\", \"max_tokens\": 50, \"temperature\": 1, "
        "\"seed\": 3}}\n");
    for (int i = 0; i < 2; i++) {
        struct said s = command(NULL, "batch", "-m", MODEL, "-t", "1", "-f", in, "-o",
                                in_folder(i == 0 ? "none" : "lookup", out[i]), "--draft",
                                i == 0 ? "none" : "lookup", NULL);
        expect_status(&s, 0);
    }
    json_t *answer[2][2];
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen(out[i], "r");
        char line[1 << 14];
        assert_non_null(file);
        for (int k = 0; k < 2; k++) {
            assert_non_null(fgets(line, sizeof(line), file));
            json_t *o = json_loads(line, 0, NULL);
            const char *id = json_string_value(json_object_get(o, "custom_id"));
            json_t *body = json_object_get(json_object_get(o, "response"), "body");
            answer[i][id[0] - 'a'] = json_incref(json_object_get(body, "choices"));
            json_decref(o);
        }
        fclose(file);
    }
    for (int k = 0; k < 2; k++) {
        assert_true(json_equal(answer[0][k], answer[1][k]));
        json_decref(answer[0][k]);
        json_decref(answer[1][k]);
    }
}
