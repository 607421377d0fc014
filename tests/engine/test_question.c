/*
 * The question in a message, and the place of recall in a prompt: the byte and the token before the
 * question. Texts are with and without a label, lines and a template around them. The tokens on
 * both sides stay the same.
 */
#include <string.h>

#include "engine/question.h"
#include "status.h"
#include "testing.h"
#include "pith/policy.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"

static void expect_question(const char *message, const char *expected)
{
    const char *q;
    size_t len;
    pith_recall_question(message, strlen(message), &q, &len);
    assert_true(q >= message && q + len <= message + strlen(message));
    if (len != strlen(expected) || memcmp(q, expected, len) != 0)
        fail_msg("\"%.*s\" is not \"%s\"", (int)len, q, expected);
}

/* A text of prose, which asks nothing, of at least 600 bytes. */
#define SENTENCE "The old harbour was rebuilt after the fire, and ships came back. "
#define LINE SENTENCE SENTENCE SENTENCE
#define PROSE LINE LINE LINE LINE

static void expect_behind(const char *behind, const char *expected)
{
    char text[4096];
    snprintf(text, sizeof(text), "%s%s", PROSE, behind);
    expect_question(text, expected);
}

TEST(finds_what_follows_a_label)
{
    static char text[2000];
    const char *q;
    size_t len;
    expect_question("Question: a? QUESTION:b?\n", "b?");
    expect_question("question:", "");
    expect_behind("Question: Who is\nAnton?\n", "Who is\nAnton?");
    expect_behind("Is it? question: say the name", "say the name");
    /* A label far before the end is one of the text. */
    memset(text, 'x', sizeof(text));
    memcpy(text, "Question:", 9);
    pith_recall_question(text, sizeof(text), &q, &len);
    assert_true(q > text + 9);
}

TEST(takes_a_short_message_whole)
{
    expect_question("", "");
    expect_question(" \n ", "");
    expect_question("questions: a?", "questions: a?");
    expect_question(" Thanks. And the code word? Just say it. ",
                    "Thanks. And the code word? Just say it.");
}

/* The question at the end of a long message does not include the filler before it. */
TEST(finds_what_asks_at_the_end)
{
    expect_behind("What is the code word?", "What is the code word?");
    expect_behind("What is the code word? Answer with the word, nothing else:",
                  "What is the code word? Answer with the word, nothing else:");
    expect_behind("Who sent it? And where is she now?\n", "Who sent it? And where is she now?");
    /* A question in the text before does not belong to the question after it. */
    expect_behind("Why did they go? They had no bread. Tell me the name of the ship.",
                  "Tell me the name of the ship.");
    expect_behind("Who came?\n\nList the ships.", "List the ships.");
    expect_behind("what is the code word? answer with just the word",
                  "what is the code word? answer with just the word");
    expect_behind("Tell me the code word.", "Tell me the code word.");
    expect_behind("Who is Dr. J. Smith of No. 7?", "Who is Dr. J. Smith of No. 7?");
    expect_behind("\"Who is it?\" he asked. Name the ship!", "Name the ship!");
    expect_behind("(Which of the two is older?)", "(Which of the two is older?)");
    expect_behind("Quel est le mot de passe ?", "Quel est le mot de passe ?");
    /* Lines end sentences, except wrapped ones. */
    expect_behind("\n    }\nwhat does main return?", "what does main return?");
    expect_behind("\nreturn a ? b : c;\nWhich value is returned?", "Which value is returned?");
    expect_behind("\nWhat is the name of the harbour that was rebuilt\nafter the fire?",
                  "What is the name of the harbour that was rebuilt\nafter the fire?");
    expect_behind("See http://a.b/?q=1 for it. Which page is it?", "Which page is it?");
    /* A text that breaks off in front of the question, with no mark between. */
    expect_behind("At noon the ma What is the code word? Say it:",
                  "What is the code word? Say it:");
    expect_behind("They came to the ha On which day did they come?", "On which day did they come?");
    expect_behind("They came to the ha Tell me the code word.", "Tell me the code word.");
    expect_behind("Where did the band When She Sang play?",
                  "Where did the band When She Sang play?");
    /* Nothing asks: the last sentence. */
    expect_behind("Nenne das Passwort von Walter.", "Nenne das Passwort von Walter.");
}

TEST(knows_sentences_of_other_scripts)
{
    /* Chinese, without blanks between sentences; Arabic; Greek; Hindi. */
    expect_behind("\xe8\xbf\x99\xe6\x98\xaf\xe4\xb9\xa6\xe3\x80\x82\xe5\xaf\x86\xe7\xa0\x81\xe6\x98"
                  "\xaf\xe4\xbb\x80\xe4\xb9\x88\xef\xbc\x9f",
                  "\xe5\xaf\x86\xe7\xa0\x81\xe6\x98\xaf\xe4\xbb\x80\xe4\xb9\x88\xef\xbc\x9f");
    expect_behind("\xd9\x85\xd8\xa7 \xd8\xa7\xd8\xb3\xd9\x85\xd9\x87\xd8\x9f",
                  "\xd9\x85\xd8\xa7 \xd8\xa7\xd8\xb3\xd9\x85\xd9\x87\xd8\x9f");
    expect_behind("\xcf\x80\xce\xbf\xce\xb9\xce\xbf\xcd\xbe",
                  "\xcf\x80\xce\xbf\xce\xb9\xce\xbf\xcd\xbe");
    expect_behind("\xe0\xa4\x95\xe0\xa5\xa4 Who?", "Who?");
}

/* A question that opens the message. */
TEST(finds_a_question_that_opens_the_message)
{
    char text[4096];
    snprintf(text, sizeof(text), "When does the train leave? %s", PROSE);
    expect_question(text, "When does the train leave?");
    snprintf(text, sizeof(text), "Here is a text.\n%sAnd what is it?", PROSE);
    expect_question(text, "And what is it?");
}

/* Bytes that are no text, and sentences without end. */
TEST(any_bytes_are_safe)
{
    static char text[3000];
    const char *q;
    size_t len;
    for (int32_t round = 0; round < 64; round++) {
        for (size_t i = 0; i < sizeof(text); i++)
            text[i] =
                (char)(round < 2
                           ? (round == 0 ? 'a' : '.')
                           : "a.?! \n\"\xe3\x80\x82\xef\xbc\x9f:"[(i * 7 + i / 3 * (size_t)round) %
                                                                  14]);
        for (size_t n = 0; n < sizeof(text); n += 97) {
            pith_recall_question(text, n, &q, &len);
            assert_true(q >= text && q + len <= text + n);
            assert_true(pith_recall_place(text, n) <= n);
        }
    }
}

/* ---- its place ---- */

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

TEST(finds_the_place_in_front_of_the_question)
{
    static const char lines[] = "One. Two.\nQuestion: Who is\nAnton?\n";
    static const char two[] = "QUESTION: no?\nA.\nmy question: yes?\n";
    static const char chat[] =
        "<|im_start|>user\nA.\nQuestion: B?<|im_end|>\n<|im_start|>assistant\n";
    static const char inline_chat[] = "[INST] Question: B? [/INST]";
    expect_place(lines, lines, "Question: Who is\nAnton?\n", "Who is\nAnton?");
    expect_place(two, two, "my question: yes?\n", "yes?");
    expect_place(chat, "  A.\nQuestion: B? ", "Question: B?<|im_end|>\n<|im_start|>assistant\n",
                 "B?");
    /* No farther back than the message, for any text on its line. */
    expect_place(inline_chat, "Question: B?", "Question: B? [/INST]", "B?");
    /* The last occurrence, and nothing where the text has another message. */
    expect_place("Question: B?\nA.\nQuestion: B?", "A.\nQuestion: B?", "Question: B?", "B?");
    expect_place(lines, "Question: Who are you?", NULL, NULL);
    expect_place(lines, "Question:  \n", NULL, NULL);
    expect_place(lines, "", NULL, NULL);
    expect_place("", "Question: B?", NULL, NULL);
    expect_place("B?", "Question: B?", NULL, NULL);
}

/* Templates around the same message: the place is in front of its question, in the message. */
TEST(finds_the_place_within_any_template)
{
    static const char *const around[][2] = {
        {"<|im_start|>system\nWhat?<|im_end|>\n<|im_start|>user\n",
         "<|im_end|>\n<|im_start|>assistant\n"},
        {"<s>[INST] ", " [/INST]"},
        {"<start_of_turn>user\n", "<end_of_turn>\n<start_of_turn>model\n"},
        {"<|user|>\n", "<|end|>\n<|assistant|>\n"},
        {"", "\nAnswer:"},
    };
    static const char ask[] = "Who is Anton? Say the name.";
    char message[4096], text[8192], rest[256];
    for (size_t i = 0; i < PI_LEN(around); i++) {
        snprintf(message, sizeof(message), "%s%s", PROSE, ask);
        snprintf(text, sizeof(text), "%s%s%s", around[i][0], message, around[i][1]);
        snprintf(rest, sizeof(rest), "%s%s", ask, around[i][1]);
        expect_place(text, message, rest, ask);
        /* A question that opens the message: behind it. */
        snprintf(message, sizeof(message), "%s %sThe end.", ask, PROSE);
        snprintf(text, sizeof(text), "%s%s%s", around[i][0], message, around[i][1]);
        expect_place(text, message, around[i][1], ask);
    }
    snprintf(message, sizeof(message), "%s%s", PROSE, ask);
    assert_string_equal(message + pith_recall_place(message, strlen(message)), ask);
}

/* A text without a template that does not end with a question is to be continued. */
TEST(a_text_that_asks_nothing_has_no_place)
{
    char text[4096];
    expect_place(PROSE, PROSE, NULL, NULL);
    snprintf(text, sizeof(text), "Who is it? %sThen they", PROSE);
    expect_place(text, text, NULL, NULL);
    snprintf(text, sizeof(text), "%sTell the name.", PROSE);
    expect_place(text, text, NULL, NULL);
    expect_place("Once upon a time", "Once upon a time", NULL, NULL);
    snprintf(text, sizeof(text), "%sWho is it?\n", PROSE);
    expect_place(text, text, "Who is it?\n", "Who is it?");
}

/* The token that begins the question, for a prompt with tokens before and behind its message. */
TEST(finds_the_token_that_begins_the_question)
{
    static const char message[] = "The friend of Maria is Anton.\nQuestion: Who is the friend?";
    static const char behind[] = "<|im_end|>\n<|im_start|>assistant\n";
    char prompt[256], bytes[256];
    int32_t ids[256], n;
    size_t len = 0;
    struct pi_question q;
    pith_model *model = model_at(MODEL);
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
