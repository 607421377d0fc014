/*
 * The text inserted from spans that a question finds: sentences around its words, whole where there
 * is room and cut around them where not. They are in the order of the text, each once; without a
 * match of a rare word there is no text.
 */
#include <string.h>

#include "mem_used.h"
#include "policy/recall/text_sentences.h"
#include "policy/recall/text_snippets.h"
#include "status.h"
#include "testing.h"

#define HEADING "Earlier in this text:\n"
#define FACT "The train to Brackwater leaves at 16:47."
#define ASK "When does the train to Brackwater leave?"
#define PROSE                                                                                      \
    "The harbour was rebuilt after the fire. Ships came back in the second year. A mole of stone " \
    "was laid out to the west. Nobody paid the workers in winter. "

static int32_t n_part;

/* The snippets of the spans [n], in a buffer that the next call overwrites; "" for none. */
static const char *snippets(const char *const *spans, int32_t n, const char *question,
                            int32_t chars, double meaning)
{
    static char copy[16384];
    struct text_hit hit[16];
    struct text_hits hits = {.hit = hit, .n = n};
    struct text_wish wish = {
        .question = question, .len = strlen(question), .meaning = meaning, .chars = chars};
    char *text = NULL;
    for (int32_t i = 0; i < n; i++)
        hit[i] = (struct text_hit){.first = 100 * i,
                                   .last = 100 * i + 130, /* overlaps the next */
                                   .layer = -1,
                                   .score = 1.0 / (i + 1),
                                   .text = (char *)spans[i]};
    check(text_snippets(&hits, &wish, &text, &n_part, &err), &err);
    snprintf(copy, sizeof(copy), "%s", text != NULL ? text : "");
    assert_int_equal(text != NULL, n_part > 0);
    pi_mem_free(text);
    return copy;
}

static const char *snippet(const char *span, const char *question, int32_t chars)
{
    return snippets(&span, 1, question, chars, 0);
}

/* The fact stands at the end, in the middle and at the beginning of a span that does not fit. */
TEST(keeps_the_sentence_with_the_fact_whole)
{
    static const char *const spans[] = {PROSE PROSE FACT, PROSE FACT " " PROSE,
                                        FACT " " PROSE PROSE, "went out. " PROSE FACT " It is"};
    for (size_t i = 0; i < PI_LEN(spans); i++)
        for (int32_t chars = 70; chars <= 1000; chars += 31) {
            const char *text = snippet(spans[i], ASK, chars);
            if (strstr(text, FACT) == NULL)
                fail_msg("span %d, %d characters: \"%s\"", (int)i, chars, text);
            assert_true(strlen(text) <= (size_t)chars);
        }
    assert_string_equal(snippet(spans[1], ASK, 70), HEADING FACT "\n");
    /* With room come the sentences beside it, and no more. */
    assert_string_equal(snippet(spans[1], ASK, 1000),
                        HEADING "Nobody paid the workers in winter. " FACT
                                " The harbour was rebuilt after the fire.\n");
    assert_int_equal(n_part, 1);
}

/* A sentence that is longer than the room is cut around the words, which stay. */
TEST(cuts_around_the_words_of_the_question)
{
    static const char code[] =
        "static const int alpha = 1, beta = 2, gamma = 3, delta = 4, epsilon = 5, zeta = 6, "
        "port_of_brackwater = 16470, eta = 7, theta = 8, iota = 9, kappa = 10, lambda = 11, mu = "
        "12, "
        "nu = 13, xi = 14, omicron = 15, rho = 17, sigma = 18, tau = 19, upsilon = 20, phi = 21, "
        "chi = 22, psi = 23, omega = 24, and = 25, so = 26, on = 27, until = 28, it = 29, ends = "
        "30";
    for (int32_t chars = 80; chars < 300; chars += 17) {
        const char *text = snippet(code, "What is the port of Brackwater?", chars);
        assert_true(strlen(text) <= (size_t)chars);
        if (strstr(text, "port_of_brackwater = 16470") == NULL)
            fail_msg("%d characters: \"%s\"", chars, text);
    }
    assert_string_equal(snippet(code, "What is the port of Brackwater?", 30), "");
}

/* Several places come each with its own sentence, in the order of the text. */
TEST(several_places_come_in_the_order_of_the_text)
{
    static const char *const spans[] = {
        PROSE "The key of Maria is a red pencil. " PROSE,
        PROSE PROSE "The key of Anton is a green stone. ",
        PROSE "The key of Walter is a plain book. " PROSE,
    };
    assert_string_equal(snippets(spans, 3, "What are the keys of Walter and of Maria?", 110, 0),
                        HEADING
                        "The key of Maria is a red pencil.\nThe key of Walter is a plain book.\n");
    assert_int_equal(n_part, 2);
    /* The one that is asked for, where there is room for one. */
    assert_string_equal(snippets(spans, 3, "What is the key of Anton?", 64, 0),
                        HEADING "The key of Anton is a green stone.\n");
}

/* Spans overlap: a sentence of two is inserted once, and whole where one of them has it whole. */
TEST(inserts_a_sentence_once)
{
    static const char *const spans[] = {PROSE FACT, FACT " " PROSE, "leaves at 16:47. " PROSE};
    static const char *const cut[] = {PROSE "The train to Brackwater leaves", FACT " " PROSE};
    const char *text = snippets(spans, 3, ASK, 2000, 0);
    const char *first = strstr(text, "16:47");
    assert_non_null(first);
    assert_null(strstr(first + 1, "16:47"));
    text = snippets(cut, 2, ASK, 70, 0);
    assert_string_equal(text, HEADING FACT "\n");
}

/* Nothing where no word, or only such as most sentences have, is the question's. */
TEST(inserts_nothing_without_a_rare_word)
{
    static const char other[] =
        "There was a ship here. There was a dog here. There was a cat here. "
        "There was an owl here. There was a man here. There was a cow here. "
        "There was a bee here. There was a fox here. There was an ox here. ";
    static const char *const one[] = {PROSE FACT};
    assert_string_equal(snippet(PROSE, ASK, 1000), "");
    assert_string_equal(snippet(other, "What was here before the flood came?", 1000), "");
    assert_string_equal(snippet(other, "What is it?", 1000), "");
    assert_string_equal(snippet(other, "", 1000), "");
    assert_string_equal(snippet("", ASK, 1000), "");
    assert_string_equal(snippets(NULL, 0, ASK, 1000, 0), "");
    /* A store that knows meanings may find what shares no word. */
    assert_string_equal(snippets(one, 1, "Departures?", 1000, 0), "");
    assert_true(strlen(snippets(one, 1, "Departures?", 1000, 0.5)) > strlen(HEADING));
}

/* A fact of two sentences, of which the second has the answer and not the name. */
TEST(takes_a_neighbour_of_the_sentence)
{
    static const char span[] = PROSE "Maria Lindqvist came to Turku in spring. Her favourite fruit "
                                     "is the dragonfruit. " PROSE;
    const char *text = snippet(span, "What is Maria Lindqvist's favourite fruit?", 200);
    assert_non_null(strstr(text, "Maria Lindqvist came"));
    assert_non_null(strstr(text, "dragonfruit"));
}

/* Any bytes: never more characters than allowed, and the memory is given back. */
TEST(any_bytes_stay_within_the_limit)
{
    static const char alphabet[] = "ab .?\n:\xc3\xa9";
    char span[700], ask[40];
    uint32_t random = 7;
    for (int32_t round = 0; round < 2000; round++) {
        for (size_t i = 0; i + 1 < sizeof(span); i++) {
            random = random * 1664525 + 1013904223;
            span[i] = alphabet[(random >> 24) % (sizeof(alphabet) - 3)];
        }
        span[sizeof(span) - 1] = '\0';
        snprintf(ask, sizeof(ask), "%.30s", span + round % 600);
        int32_t chars = round % 300;
        assert_true(strlen(snippet(span, ask, chars)) <= (size_t)chars);
    }
}

TEST(failing_memory_is_told)
{
    static const char span[] = PROSE FACT " " PROSE;
    struct text_hit hit = {.first = 0, .last = 90, .layer = -1, .text = (char *)span};
    struct text_hits hits = {.hit = &hit, .n = 1};
    struct text_wish wish = {.question = ASK, .len = strlen(ASK), .chars = 60};
    int64_t used = pi_mem_used(PI_MEM_OTHER);
    for (int32_t i = 1;; i++) {
        char *text = NULL;
        int32_t n;
        pi_mem_fail_at(i, false);
        pith_status status = text_snippets(&hits, &wish, &text, &n, &err);
        pi_mem_fail_at(0, false);
        assert_true(status == PITH_OK || status == PITH_NOMEM);
        bool done = status == PITH_OK && text != NULL && strstr(text, "Brackwater") != NULL;
        pi_mem_free(text);
        assert_int_equal(pi_mem_used(PI_MEM_OTHER), used);
        if (done && i > 5)
            break;
        assert_true(i < 1000);
    }
}
