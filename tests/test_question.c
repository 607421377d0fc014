/*
 * Where recall goes in a prompt: the byte and the token in front of its question, for texts with
 * and without a label, lines and a template around them; and that tokens on both sides stay.
 */
#include <string.h>

#include "engine/question.h"
#include "status.h"
#include "testing.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"

static void expect_question(const char *message, const char *expected)
{
    const char *q;
    size_t len;
    pith_recall_question(message, strlen(message), &q, &len);
    assert_int_equal(len, strlen(expected));
    assert_memory_equal(q, expected, len);
    assert_ptr_equal(q + len, message + strlen(message));
}

static void test_question(void **state)
{
    char text[1000];
    const char *q;
    size_t len;
    (void)state;
    expect_question("Question: a? QUESTION:b?\n", "b?\n");
    expect_question("question:", "");
    expect_question("questions: a?", "questions: a?");
    expect_question("", "");
    memset(text, 'x', sizeof(text));
    pith_recall_question(text, sizeof(text), &q, &len);
    assert_ptr_equal(q, text + sizeof(text) - 512);
    memcpy(text + sizeof(text) - 513, "\xe2\x82\xac", 3); /* a character lies across the limit */
    pith_recall_question(text, sizeof(text), &q, &len);
    assert_ptr_equal(q, text + sizeof(text) - 510);
    assert_int_equal(len, 510);
    memcpy(text, "Question:", 9);
    pith_recall_question(text, sizeof(text), &q, &len);
    assert_ptr_equal(q, text + 9);
}

static void expect_place(const char *text, const char *message, const char *rest,
                         const char *question)
{
    struct pi_question q;
    size_t at = pi_question_place(text, strlen(text), message, strlen(message), &q);
    if (rest == NULL) {
        assert_int_equal(at, 0);
        return;
    }
    assert_true(at < strlen(text));
    assert_string_equal(text + at, rest);
    assert_int_equal(q.len, strlen(question));
    assert_memory_equal(q.text, question, q.len);
}

static void test_place(void **state)
{
    static const char lines[] = "One. Two.\nQuestion: Who is\nAnton?\n";
    static const char two[] = "QUESTION: no?\nA.\nmy question: yes?\n";
    static const char chat[] =
        "<|im_start|>user\nA.\nQuestion: B?<|im_end|>\n<|im_start|>assistant\n";
    static const char inline_chat[] = "[INST] Question: B? [/INST]";
    (void)state;
    expect_place(lines, lines, "Question: Who is\nAnton?\n", "Who is\nAnton?");
    expect_place(two, two, "my question: yes?\n", "yes?");
    expect_place(chat, "  A.\nQuestion: B? ", "Question: B?<|im_end|>\n<|im_start|>assistant\n",
                 "B?");
    /* No farther back than the message, whatever stands on its line. */
    expect_place(inline_chat, "Question: B?", "Question: B? [/INST]", "B?");
    /* The last occurrence, and nothing where the text has another message. */
    expect_place("Question: B?\nA.\nQuestion: B?", "A.\nQuestion: B?", "Question: B?", "B?");
    expect_place(lines, "Question: Who are you?", NULL, NULL);
    expect_place(lines, "Question:  \n", NULL, NULL);
    expect_place(lines, "", NULL, NULL);
    expect_place("", "Question: B?", NULL, NULL);
    expect_place("B?", "Question: B?", NULL, NULL);
}

/* Without a label the last 512 bytes ask; their line begins near, or only their word does. */
static void test_tail(void **state)
{
    static char text[2001];
    struct pi_question q;
    (void)state;
    for (size_t i = 0; i < 2000; i++)
        text[i] = i % 10 == 9 ? ' ' : (char)('a' + i % 7);
    size_t at = pi_question_place(text, 2000, text, 2000, &q);
    assert_int_equal(at, 1480); /* 1488 lies in the word from 1480 on */
    text[1300] = '\n';
    assert_int_equal(pi_question_place(text, 2000, text, 2000, &q), 1301);
    text[1200] = '\n';
    text[1300] = ' ';
    assert_int_equal(pi_question_place(text, 2000, text, 2000, &q), 1480);
    memset(text, 'a', 2000); /* one word: as far back as a line may be */
    assert_int_equal(pi_question_place(text, 2000, text, 2000, &q), 1488 - 256);
}

/* The token that begins the question, for a prompt with tokens before and behind its message. */
static void test_tokens(void **state)
{
    static const char message[] = "The friend of Maria is Anton.\nQuestion: Who is the friend?";
    static const char behind[] = "<|im_end|>\n<|im_start|>assistant\n";
    char prompt[256], bytes[256];
    int32_t ids[256], n;
    size_t len = 0;
    pith_error err;
    pith_model *model;
    struct pi_question q;
    (void)state;
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    snprintf(prompt, sizeof(prompt), "<|im_start|>user\n%s%s", message, behind);
    check(pith_tokenize(model, prompt, strlen(prompt), PITH_TOKENIZE_BOS | PITH_TOKENIZE_SPECIAL,
                        ids, 256, &n, &err),
          &err);
    check(pi_question_find(model, ids, n, message, strlen(message), &q, &err), &err);
    assert_true(q.at > 0 && q.at < n);
    check(pith_detokenize(model, ids + q.at, n - q.at, true, bytes, sizeof(bytes), &len, &err),
          &err);
    assert_int_equal(len, strlen("Question: Who is the friend?") + strlen(behind));
    assert_memory_equal(bytes, "Question: Who is the friend?", 28);
    check(pi_question_find(model, ids, n, "Who else?", 9, &q, &err), &err);
    assert_int_equal(q.at, 0);
    ids[1] = -1;
    assert_int_equal(pi_question_find(model, ids, n, message, strlen(message), &q, &err),
                     PITH_INVALID);
    pith_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_question),
        cmocka_unit_test(test_place),
        cmocka_unit_test(test_tail),
        cmocka_unit_test(test_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
