/*
 * test_chat.c - the chat templates that come along. Prompts equal the published templates' (golden
 * file, see scripts/golden/chat.py). Also refusals.
 */
#include <string.h>

#include "testing.h"
#include "text/template/chat.h"

#define GOLDEN PITH_SOURCE_DIR "/tests/golden/chat.txt"
#define TEXT_MAX 4096
#define MESSAGE_MAX 8

struct test_case {
    char name[64];
    uint32_t flags;
    pith_message messages[MESSAGE_MAX];
    char role[MESSAGE_MAX][16];
    char content[MESSAGE_MAX][256];
    int32_t n;
};

/* Copies the text between the bars of a golden line, with its escapes undone. */
static void read_text(const char *line, char *out, size_t cap)
{
    const char *begin = strchr(line, '|'), *end = strrchr(line, '|');
    assert_non_null(begin);
    assert_true(end > begin);
    size_t n = 0;
    for (const char *p = begin + 1; p < end; p++) {
        assert_true(n + 1 < cap);
        if (*p == '\\')
            out[n++] = *++p == 'n' ? '\n' : *p;
        else
            out[n++] = *p;
    }
    out[n] = 0;
}

static void check_case(const struct test_case *c, const char *want)
{
    char got[TEXT_MAX];
    size_t len = 0, needed = 0;
    err = (pith_error){0};
    pith_status status =
        pi_chat_render(c->name, c->messages, c->n, c->flags, got, sizeof(got) - 1, &len, &err);
    if (status != PITH_OK)
        fail_msg("%s: %s", c->name, err.message);
    got[len] = 0;
    if (strcmp(got, want) != 0)
        fail_msg("%s, flags %u:\nis     \"%s\"\nshould \"%s\"", c->name, c->flags, got, want);
    assert_int_equal(pi_chat_render(c->name, c->messages, c->n, c->flags, NULL, 0, &needed, NULL),
                     len > 0 ? PITH_RANGE : PITH_OK);
    assert_int_equal(needed, len);
}

TEST(prompts_are_those_of_published_templates)
{
    FILE *file = fopen(GOLDEN, "rb");
    assert_non_null(file);
    static char line[TEXT_MAX], want[TEXT_MAX];
    static struct test_case c;
    int n_case = 0;
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "case %63s %u", c.name, &c.flags) == 2) {
            c.n = 0;
        } else if (line[0] == '=') {
            read_text(line, want, sizeof(want));
            check_case(&c, want);
            n_case++;
        } else {
            assert_true(c.n < MESSAGE_MAX);
            assert_int_equal(sscanf(line, "%15s", c.role[c.n]), 1);
            read_text(line, c.content[c.n], sizeof(c.content[c.n]));
            c.messages[c.n] = (pith_message){c.role[c.n], c.content[c.n]};
            c.n++;
        }
    }
    fclose(file);
    assert_true(n_case > 200);
}

/* A model without a switch for thinking, which the golden templates do not cover. */
TEST(no_thinking_closes_the_thought_in_the_prompt)
{
    const pith_message ask = {"user", "Hi"};
    struct test_case c = {.flags = PITH_CHAT_GENERATE | PITH_CHAT_NO_THINKING, .n = 1};
    c.messages[0] = ask;
    static const char *const expected[][2] = {
        {"deepseek-r1", "<\xef\xbd\x9cUser\xef\xbd\x9c>Hi<\xef\xbd\x9c"
                        "Assistant\xef\xbd\x9c><think>\n\n</think>\n\n"},
        {"deepseek-r1-2501", "<\xef\xbd\x9cUser\xef\xbd\x9c>Hi<\xef\xbd\x9c"
                             "Assistant\xef\xbd\x9c><think>\n\n</think>\n\n"},
        {"deepseek", "<\xef\xbd\x9cUser\xef\xbd\x9c>Hi<\xef\xbd\x9c"
                     "Assistant\xef\xbd\x9c>"},
        {"qwq", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
                "<think>\n\n</think>\n\n"},
        {"qwen3-thinking", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
                           "<think>\n\n</think>\n\n"},
        {"chatml", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"},
    };
    for (size_t i = 0; i < PI_LEN(expected); i++) {
        snprintf(c.name, sizeof(c.name), "%s", expected[i][0]);
        check_case(&c, expected[i][1]);
    }
}

TEST(every_name_is_listed_once)
{
    int32_t n = 0;
    for (; pi_chat_name(n) != NULL; n++) {
        for (int32_t i = 0; i < n; i++)
            assert_string_not_equal(pi_chat_name(i), pi_chat_name(n));
    }
    assert_true(n >= 8);
    assert_null(pi_chat_name(-1));
    assert_null(pi_chat_name(n));
}

static void refuse(const char *name, const pith_message *messages, int32_t n, const char *says)
{
    char out[256];
    size_t len = 77;
    err = (pith_error){0};
    assert_int_equal(pi_chat_render(name, messages, n, 0, out, sizeof(out), &len, &err),
                     PITH_INVALID);
    if (strstr(err.message, says) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.message, says);
    assert_int_equal(len, 77);
}

TEST(refuses_messages_that_a_template_cannot_take)
{
    const pith_message odd = {"tool", "x"}, null = {"user", NULL}, nobody = {NULL, "x"};
    const pith_message late[] = {{"user", "x"}, {"system", "y"}};
    refuse("nothing", NULL, 0, "\"nothing\"");
    refuse(NULL, NULL, 0, "NULL");
    refuse("chatml", &odd, 1, "messages[0].role: \"tool\"");
    refuse("chatml", &nobody, 1, "messages[0].role");
    refuse("chatml", &null, 1, "messages[0].content");
    refuse("gemma", late, 2, "messages[1].role");
    refuse("chatml", NULL, 1, "n_message 1");
    refuse("chatml", late, -1, "n_message -1");
}

/* Nothing is written beyond cap. */
TEST(writes_nothing_beyond_cap)
{
    const pith_message ask = {"user", "Hello"};
    char whole[256], part[256];
    size_t len, needed;
    assert_int_equal(
        pi_chat_render("chatml", &ask, 1, PITH_CHAT_GENERATE, whole, sizeof(whole), &len, NULL),
        PITH_OK);
    for (size_t cap = 0; cap < len; cap++) {
        memset(part, '#', sizeof(part));
        assert_int_equal(
            pi_chat_render("chatml", &ask, 1, PITH_CHAT_GENERATE, part, cap, &needed, NULL),
            PITH_RANGE);
        assert_int_equal(needed, len);
        assert_int_equal(part[cap], '#');
    }
}
