/* The checkers of `pith eval`: what counts as an answer, and the traps that a careless checker
   falls into. */
#include "testing.h"

#include <string.h>

#include "eval/answers.h"

/* ---- visible text, echo ---- */

TEST(thinking_is_no_answer)
{
    assert_string_equal(eval_visible("plain"), "plain");
    assert_string_equal(eval_visible("<think>a</think> b"), " b");
    assert_string_equal(eval_visible("a</think>b"), "b"); /* the prompt opened it */
    assert_string_equal(eval_visible("<think>it is 7742"), "");
    assert_string_equal(eval_visible("<think>a</think>b<think>c"), "");
    assert_string_equal(eval_visible("<think>a</think>b<think>c</think>d"), "d");
    assert_string_equal(eval_visible(""), "");
}

TEST(echo_is_no_answer)
{
    assert_string_equal(eval_after_echo("Who? Anton. Who? Berta.", "\nWho? "), " Berta.");
    assert_string_equal(eval_after_echo("Anton.", "Who?"), "Anton.");
    assert_string_equal(eval_after_echo("Anton.", ""), "Anton.");
    assert_string_equal(eval_after_echo("Anton.", " \n"), "Anton.");
    assert_string_equal(eval_after_echo("Anton.", NULL), "Anton.");
    assert_string_equal(eval_after_echo("Who?", "Who?"), "");
}

/* ---- needle ---- */

#define PAPER_QUESTION                                                                             \
    "What is the secret code word mentioned earlier? Answer with just the code word and number,"   \
    " nothing else:"
#define PAPER_NEEDLE "The secret code word is PURPLE ELEPHANT 7742."

static const struct eval_needle_key paper = {
    .word = "PURPLE ELEPHANT",
    .number = "7742",
    .question = " " PAPER_QUESTION,
    .needle = PAPER_NEEDLE,
    .before = "and the band played on all night. ",
    .after = " Reception was positive , with re",
};

static const char *check(const char *answer)
{
    return eval_verdict_name(eval_needle_check(answer, &paper));
}

TEST(tells_passes_from_parts_and_failures)
{
    assert_string_equal(check(" PURPLE ELEPHANT 7742"), "PASS");
    assert_string_equal(check("The code word is \"PURPLE ELEPHANT 7742\"."), "PASS");
    assert_string_equal(check("PURPLE ELEPHANT 7742.\n\nNext"), "PASS");
    assert_string_equal(check(PAPER_NEEDLE), "PASS"); /* the fact alone is an answer */
    assert_string_equal(check("PURPLE ELEPHANT"), "PARTIAL_WORD");
    assert_string_equal(check("PURPLE ELEPHANT 1234"), "PARTIAL_WORD");
    assert_string_equal(check("GREEN ELEPHANT 7742"), "PARTIAL_NUMBER");
    assert_string_equal(check("7742"), "PARTIAL_NUMBER");
    assert_string_equal(check("ELEPHANT"), "FAIL");
    assert_string_equal(check("I do not know."), "FAIL");
    assert_string_equal(check(""), "FAIL");
}

TEST(counts_whole_numbers_only)
{
    assert_string_equal(check("PURPLE ELEPHANT 774"), "PARTIAL_WORD");
    assert_string_equal(check("PURPLE ELEPHANT 77420"), "PARTIAL_WORD");
    assert_string_equal(check("PURPLE ELEPHANT 17742"), "PARTIAL_WORD");
    assert_string_equal(check("PURPLE ELEPHANT 7742.5"), "PARTIAL_WORD");
    assert_string_equal(check("PURPLE ELEPHANTS 7742"), "PARTIAL_NUMBER");
    assert_string_equal(check("17742"), "FAIL");
    assert_string_equal(check("77420"), "FAIL");
    assert_string_equal(check("3.7742"), "FAIL");
    assert_string_equal(check("774"), "FAIL");
    assert_string_equal(check("7742,"), "PARTIAL_NUMBER");
}

TEST(case_and_spacing_do_not_matter)
{
    assert_string_equal(check("Purple Elephant 7742"), "PARTIAL_WORD");
    assert_string_equal(check("purple elephant"), "PARTIAL_WORD");
    assert_string_equal(check("PURPLE  ELEPHANT 7742"), "PARTIAL_NUMBER");
    assert_string_equal(check("PURPLE ELEPHANT\n7742"), "PARTIAL_WORD");
    assert_string_equal(check("PURPLE ELEPHANT, number 7742"), "PARTIAL_WORD");
}

TEST(what_is_thought_is_no_answer)
{
    assert_string_equal(check("<think>PURPLE ELEPHANT 7742?</think>PURPLE ELEPHANT 7742"), "PASS");
    assert_string_equal(check("<think>PURPLE ELEPHANT 7742</think>I cannot say."), "FAIL");
    assert_string_equal(check("<think>It was PURPLE ELEPHANT 7742, I am"), "FAIL");
    assert_string_equal(check("PURPLE ELEPHANT 7742</think>GREEN 1"), "FAIL");
}

TEST(an_echoed_prompt_is_no_needle)
{
    /* The prompt comes back, whole or in part: the needle in it is not an answer. */
    assert_string_equal(check("band played on all night. " PAPER_NEEDLE " Reception was positive ,"
                              " with reviews " PAPER_QUESTION),
                        "FAIL");
    assert_string_equal(check("and the band played on all night. " PAPER_NEEDLE), "FAIL");
    assert_string_equal(check(PAPER_NEEDLE " Reception was positive , with reviews"), "FAIL");
    assert_string_equal(check("and the band played on all night. " PAPER_NEEDLE " " PAPER_QUESTION
                              " GREEN ELEPHANT 7742"),
                        "PARTIAL_NUMBER");
    assert_string_equal(check("and the band played on all night. " PAPER_NEEDLE " " PAPER_QUESTION
                              " PURPLE ELEPHANT 7742"),
                        "PASS");
    /* A model that goes round: the question, then the text again. */
    assert_string_equal(check(PAPER_QUESTION " and the band played on all night. " PAPER_NEEDLE
                                             " Reception was positive , with reviews"),
                        "FAIL");
    /* At the start of a text nothing precedes the needle, at its end the question follows. */
    struct eval_needle_key edge = paper;
    edge.before = edge.after = "";
    assert_int_equal(eval_needle_check(PAPER_NEEDLE " " PAPER_QUESTION, &edge), EVAL_FAIL);
    assert_int_equal(eval_needle_check(PAPER_NEEDLE, &edge), EVAL_PASS);
}

/* ---- RULER ---- */

TEST(counts_the_share_that_was_found)
{
    struct eval_strings refs = {0};
    assert_true(eval_share_found("x", &refs) == 0.0);
    eval_strings_add(&refs, "1234567");
    eval_strings_add(&refs, "Copper-Lantern");
    eval_strings_add(&refs, "abcdef");
    eval_strings_add(&refs, "ghijkl");
    assert_false(refs.failed);
    assert_true(eval_share_found(" 1234567, copper-lantern and ABCDEF.", &refs) == 0.75);
    assert_true(eval_share_found("12345678", &refs) == 0.25); /* substrings, as the benchmark has */
    assert_true(eval_share_found("123456", &refs) == 0.0);
    assert_true(eval_share_found("", &refs) == 0.0);
    assert_true(eval_share_found("<think>1234567</think>ghijkl", &refs) == 0.25);
    eval_strings_free(&refs);
}

/* ---- final answers ---- */

struct extraction {
    const char *text;
    const char *answer;
};

static void check_extractions(const struct extraction *cases, size_t n, const char *question,
                              bool cut)
{
    for (size_t i = 0; i < n; i++) {
        char *out = NULL;
        assert_int_equal(eval_final_answer(cases[i].text, question, cut, &out, &err), PITH_OK);
        assert_string_equal(out, cases[i].answer);
        free(out);
    }
}

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

TEST(takes_the_last_box_that_closes)
{
    static const struct extraction cases[] = {
        {"so \\boxed{42}.", "42"},
        {"\\boxed{\\frac{1}{\\sqrt{2}}} and more 17", "\\frac{1}{\\sqrt{2}}"},
        {"first \\boxed{1}, no: \\boxed{2}", "2"},
        {"\\boxed{\\left\\{1, 2\\right\\}}", "\\left\\{1, 2\\right\\}"},
        {"\\boxed{\\boxed{5}}", "5"},
        {"\\fbox{7} is it", "7"},
        {"\\boxed 9 is it", "9"},
        {"$\\boxed 9$", "9"},
        {"\\boxed{3} then \\boxed{\\frac{1}{", "3"}, /* the last complete one */
        {"it is \\boxed{77", ""},                    /* cut: half an answer is none */
        {"#### 5\n\\boxed{6}", "6"},
        {"<think>\\boxed{1}</think>The answer is 2.", "2"},
        {"<think>\\boxed{1}", ""},
    };
    check_extractions(cases, COUNT(cases), NULL, false);
}

TEST(takes_the_answer_behind_marks_or_the_last_number)
{
    static const struct extraction cases[] = {
        {"2 + 2 = 4\n#### 18", "18"},
        {"#### $1,450,000 dollars\nin 3 years", "1,450,000"},
        {"#### -5", "-5"},
        {"#### 1\n#### 2\n", "2"},
        {"#### Step 1: think\nThe total is 12 eggs.", "12"},
        {"#### 2. The sum\nis 30", "30"},
        {"The answer is 18.", "18"},
        {"The answer is 18.0 and no other", "18.0"},
        {"He pays $1,450,000.", "1,450,000"},
        {"from 3 to 5, so -2", "-2"},
        {"10-4", "4"}, /* a difference, no sign */
        {"the 3rd of 7, the 21st", "7"},
        {"x2 is the 4 th", "4"},
        {"about 3/4 of it", "3/4"},
        {"it is $\\dfrac{3}{4}$.", "\\dfrac{3}{4}"},
        {"minus: -\\frac{3}{4}", "-\\frac{3}{4}"},
        {"no number at all", ""},
        {"", ""},
    };
    check_extractions(cases, COUNT(cases), NULL, false);
}

TEST(takes_answers_behind_echoes_and_cuts)
{
    static const char question[] = "Solve #### 99 + 1. Put it into \\boxed{}";
    static const struct extraction echoed[] = {
        {"Solve #### 99 + 1. Put it into \\boxed{} The sum is 100.", "100"},
        {"Solve #### 99 + 1. Put it into \\boxed{}", ""},
        {"100", "100"},
    };
    check_extractions(echoed, COUNT(echoed), question, false);
    static const struct extraction cut[] = {
        {"the sum is 77", ""}, /* perhaps 774 */
        {"the sum is 77 ", "77"}, {"the sum is 77.", "77"},
        {"#### 77", ""},          {"\\boxed{77}", "77"}, /* closed: whole */
    };
    check_extractions(cut, COUNT(cut), NULL, true);
}

/* ---- equality ---- */

static bool equal(const char *a, const char *b)
{
    bool forth = false, back = false;
    assert_int_equal(eval_answers_equal(a, b, &forth, &err), PITH_OK);
    assert_int_equal(eval_answers_equal(b, a, &back, &err), PITH_OK);
    assert_int_equal(forth, back);
    return forth;
}

TEST(answers_are_equal_however_they_are_written)
{
    static const char *const pairs[][2] = {
        {"18", "18.0"},
        {"18", " 18. "},
        {"18", "18."},
        {"$18$", "18"},
        {"\\$18.90", "18.9"},
        {"1,450,000", "1450000"},
        {"10,\\!080", "10080"},
        {"-1", "-1.0"},
        {"0.5", "\\frac{1}{2}"},
        {"1/2", "\\dfrac12"},
        {"-\\frac{1}{2}", "\\frac{-1}{2}"},
        {"1\\frac{4}{5}", "9/5"},
        {"\\dfrac{17}{50}", "0.34"},
        {"\\frac{\\sqrt{3}}{2}", "\\frac{\\sqrt3}{2}"},
        {"6\\sqrt{2}", "6 \\sqrt 2"},
        {"\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\frac{\\pi}{2})"},
        {"(-2,1)", "(-2.0, 1)"},
        {"3, 5, 7", "3,5,7"},
        {"\\text{even}", "even"},
        {"\\text{Evelyn}", "evelyn"},
        {"30^\\circ", "30"},
        {"90^{\\circ}", "90"},
        {"50\\%", "50"},
        {"5\\text{ cm}", "5"},
        {"5 \\text{ cm}^2", "5"},
        {"15\\mbox{ cm}^{2}", "15"},
        {"x=5", "5"},
        {"y = -2x", "y=-2x"},
        {"52_8", "52_{8}"},
        {"x^3+3x-6", "x^{3} + 3x - 6"},
        {"288 \\pi", "288\\pi"},
        {"\\begin{pmatrix} 1/5 \\\\ -18/5 \\end{pmatrix}",
         "\\begin{pmatrix} \\frac{1}{5} \\\\ -\\frac{18}{5} \\end{pmatrix}"},
        {"\\(7\\)", "7"},
        {"007", "7"},
    };
    for (size_t i = 0; i < COUNT(pairs); i++) {
        if (!equal(pairs[i][0], pairs[i][1]))
            fail_msg("\"%s\" and \"%s\" are not taken as equal", pairs[i][0], pairs[i][1]);
    }
}

TEST(answers_that_differ_are_not_equal)
{
    static const char *const pairs[][2] = {
        {"18", "81"},
        {"774", "7742"},
        {"18", "-18"},
        {"0.333", "1/3"},
        {"", ""},
        {"", "0"},
        {"x", "X"},
        {"(1,2)", "[1,2]"},
        {"(1,2)", "(2,1)"},
        {"(1,2)", "(1,2,3)"},
        {"1,2", "1"},
        {"(1,450)", "1450"},
        {"3, 500", "3500"},
        {"\\frac{1}{2}", "\\frac{2}{1}"},
        {"12345678901234567", "12345678901234568"}, /* beyond a double's digits */
        {"\\text{even}", "\\text{odd}"},
        {"5\\pi", "5"},
        {"2^{10}", "2^1"},
        {"x=y=5", "5"},
        {"1/0", "1"},
    };
    for (size_t i = 0; i < COUNT(pairs); i++) {
        if (equal(pairs[i][0], pairs[i][1]))
            fail_msg("\"%s\" and \"%s\" are taken as equal", pairs[i][0], pairs[i][1]);
    }
}

static void check_normal(const char *text, const char *want)
{
    char *out = NULL;
    assert_int_equal(eval_normalise(text, &out, &err), PITH_OK);
    assert_string_equal(out, want);
    free(out);
}

TEST(writes_answers_in_one_form)
{
    check_normal("$\\dfrac12$", "\\frac{1}{2}");
    check_normal("\\frac\\pi2", "\\frac{\\pi}{2}");
    check_normal("\\frac{\\sqrt2}3", "\\frac{\\sqrt{2}}{3}");
    check_normal("\\tfrac{3}4/5", "\\frac{3}{4}/5");
    check_normal("\\sqrt[3]{2}", "\\sqrt[3]{2}");
    check_normal("\\leftarrow", "\\leftarrow");
    check_normal("2.5/3", "2.5/3");
    check_normal("a\\ b", "ab");
    check_normal("\\frac", "\\frac"); /* what TeX would refuse is left as it is */
    check_normal("\\text{", "\\text{");
    check_normal("", "");
}

/* Any bytes: nothing is read or written out of bounds (the sanitizers say so), and a text equals
   itself unless nothing is left of it. */
TEST(any_bytes_are_safe)
{
    static const char alphabet[] = "\\{}[]()$%^_,./-=# 0123456789abfrctxsqdeo\n<>|&~!;:";
    uint64_t rng = 7;
    for (int i = 0; i < 20000; i++) {
        char text[48];
        size_t len = rng_below(&rng, sizeof(text));
        for (size_t k = 0; k < len; k++)
            text[k] = alphabet[rng_below(&rng, sizeof(alphabet) - 1)];
        text[len] = '\0';
        if (rng_below(&rng, 2) == 0 && len > 12)
            memcpy(text + len - 12, "\\frac1\\frac2", 12);
        char *normal = NULL, *said = NULL;
        bool same = false;
        assert_int_equal(eval_normalise(text, &normal, &err), PITH_OK);
        assert_int_equal(eval_final_answer(text, "1 + 1", false, &said, &err), PITH_OK);
        assert_int_equal(eval_answers_equal(text, text, &same, &err), PITH_OK);
        assert_int_equal(same, normal[0] != '\0');
        (void)eval_needle_check(text, &paper);
        free(normal);
        free(said);
    }
}
