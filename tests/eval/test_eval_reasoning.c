/* The reasoning tasks of `pith eval`: recursion, derivation, questions. The answers of the
   generators are computed again here by other means. */
#include "testing.h"

#include <math.h>
#include <string.h>

#include "eval/answers.h"
#include "eval/derivation.h"
#include "eval/questions.h"
#include "eval/recursion.h"
#include "eval/ruler.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* ---- recursion ---- */

TEST(reads_the_published_records)
{
    static const struct {
        const char *name;
        int32_t n;
    } files[] = {
        {"questions/dfs/dfs_state_query_100.json", 100},
        {"questions/dfs/dfs_state_query_detail.json", 80},
        {"questions/dfs/dfs_state_query_small.json", 30},
    };
    for (size_t i = 0; i < COUNT(files); i++) {
        const char *path = test_data(files[i].name);
        char *text = NULL;
        size_t len = 0;
        struct recursion_file f;
        assert_int_equal(eval_read_file(path, &text, &len, &err), PITH_OK);
        assert_int_equal(eval_record_file_parse(text, len, &f, &err), PITH_OK);
        assert_int_equal(f.n, files[i].n);
        assert_int_equal(f.n_wrong, 0);
        eval_record_file_free(&f);
        free(text);
    }
}

static const char record_text[] =
    "[{\"id\":0,\"graph\":{\"nodes\":[3,0,1,2],\"edges\":[[0,2],[0,1],[1,3]]},\"start_node\":0,"
    "\"steps\":4,\"answer\":{\"current_node\":0,\"stack\":[0],\"visited_nodes\":[0,1,3]}},"
    "{\"graph\":{\"nodes\":[7,9],\"edges\":[[7,9]]},\"start_node\":7,\"steps\":3,"
    "\"answer\":{\"current_node\":null,\"stack\":[],\"visited_nodes\":[7,9]}},"
    "{\"graph\":{\"nodes\":[7,9],\"edges\":[[7,9]]},\"start_node\":7,\"steps\":1,"
    "\"answer\":{\"current_node\":7,\"stack\":[7],\"visited_nodes\":[7]}}]";

static void score(const char *answer, const struct recursion_record *r, int parsed, int node,
                  int stack, int visited)
{
    struct recursion_score s;
    eval_paper_score(answer, r, &s);
    if (s.parsed != parsed || s.node != node || s.stack != stack || s.visited != visited)
        fail_msg("\"%s\": parsed %d, node %d, stack %d, visited %d", answer, s.parsed, s.node,
                 s.stack, s.visited);
}

TEST(scores_parts_of_an_answer)
{
    struct recursion_file f;
    assert_int_equal(eval_record_file_parse(record_text, strlen(record_text), &f, &err), PITH_OK);
    assert_int_equal(f.n, 3);
    assert_int_equal(f.n_wrong, 1); /* the third is wrong, and found out */
    const struct recursion_record *r = &f.record[0];
    score("{\"current_node\": 0, \"stack\": [0], \"visited_nodes\": [0, 1, 3]}", r, 1, 1, 1, 1);
    score("{\"current_node\": 0, \"stack\": [0], \"visited_nodes\": [3, 1, 0]}", r, 1, 1, 1, 1);
    score("{\"current_node\": 0, \"stack\": [0], \"visited_nodes\": [0, 1]}", r, 1, 1, 1, 0);
    score("{\"current_node\": 0, \"stack\": [0, 1], \"visited_nodes\": [0, 1, 3, 2]}", r, 1, 1, 0,
          0);
    score("{\"current_node\": \"0\", \"stack\": [\"0\"], \"visited_nodes\": []}", r, 1, 0, 0, 0);
    score("{\"current_node\": null, \"stack\": 0}", r, 1, 0, 0, 0);
    score("Analysis: {a} then\nAnswer: {\"current_node\": 0, \"stack\": [0],\n"
          "\"visited_nodes\": [0, 1, 3]} as said",
          r, 1, 1, 1, 1);
    score("```json\n{\"current_node\": 0, \"stack\": [0], \"visited_nodes\": [0, 1, 3]}\n```\n"
          "not {\"current_node\": 2, \"stack\": [2], \"visited_nodes\": [2]}",
          r, 1, 1, 1, 1);
    score("```\nx\n```\n```\n{\"current_node\": 0, \"stack\": [0], \"visited_nodes\": [0]}\n```", r,
          1, 1, 1, 0);
    score("```json\n{\"current_node\": 0, \"stack\": [0]", r, 0, 0, 0, 0);
    score("<think>{\"current_node\": 0, \"stack\": [0], \"visited_nodes\": [0, 1, 3]}", r, 0, 0, 0,
          0);
    score("{\"state\": {\"x\": 1}, \"current_node\": 0, \"stack\": [0]} }", r, 0, 0, 0, 0);
    score("so {\"why\": {\"x\": 1}, \"current_node\": 0, \"stack\": [0], \"visited_nodes\":[1]}.",
          r, 1, 1, 1, 0);
    score("no answer", r, 0, 0, 0, 0);
    score("{\"current_node\": null, \"stack\": [], \"visited_nodes\": [7, 9]}", &f.record[1], 1, 1,
          1, 1);
    struct recursion_score s;
    eval_paper_score("{\"current_node\": 0, \"stack\": [1], \"visited_nodes\": [0, 1, 2, 8]}", r,
                     &s);
    assert_true(fabs(s.f1 - 4.0 / 7.0) < 1e-12);
    assert_true(s.depth && !s.stack);
    eval_record_file_free(&f);
}

TEST(refuses_bad_records)
{
    static const char *const texts[] = {
        "",
        "{}",
        "[]",
        "[{}]",
        "[{\"graph\":{\"nodes\":[0,0],\"edges\":[]}}]",
        "[{\"graph\":{\"nodes\":[0,1],\"edges\":[[0,2]]}}]",
        "[{\"graph\":{\"nodes\":[0,1],\"edges\":[[0]]}}]",
        "[{\"graph\":{\"nodes\":[0,1],\"edges\":[[0,1]]},\"start_node\":5,\"steps\":1}]",
        "[{\"graph\":{\"nodes\":[0,1],\"edges\":[[0,1]]},\"start_node\":0,\"steps\":9,"
        "\"answer\":{}}]",
        "[{\"graph\":{\"nodes\":[0,1],\"edges\":[[0,1]]},\"start_node\":0,\"steps\":-1}]",
        "[{\"graph\":{\"nodes\":[0,1],\"edges\":[[0,1]]},\"start_node\":0,\"steps\":1}]",
        "[{\"graph\":{\"nodes\":[4294967296],\"edges\":[]},\"start_node\":0,\"steps\":1}]",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct recursion_file f;
        assert_int_equal(eval_record_file_parse(texts[i], strlen(texts[i]), &f, &err), PITH_FORMAT);
        eval_record_file_free(&f);
    }
}

TEST(drawn_records_are_right)
{
    for (int32_t steps = 1; steps <= RECURSION_MAX_STEP; steps++) {
        for (int32_t sample = 0; sample < 6; sample++) {
            struct recursion_record r = {0};
            assert_int_equal(eval_paper_random(1, steps, sample, &r, &err), PITH_OK);
            assert_in_range(r.graph.n_node, RECURSION_MIN_NODE, RECURSION_MAX_NODE);
            assert_true(r.graph.n_edge >= r.graph.n_node - 1);
            assert_true(r.n_stack > 0 && r.stack[0] == 0);
            /* Steps forward and steps back: one node more on the path, one less. */
            int32_t forward = r.n_visited - 1, back = steps - forward;
            assert_int_equal(r.n_stack, 1 + forward - back);
            struct eval_prompt p = {0};
            eval_paper_prompt(&r, &p);
            assert_int_equal(eval_prompt_check(&p, &err), PITH_OK);
            char want[64];
            snprintf(want, sizeof(want), "after exactly %d steps", (int)steps);
            assert_non_null(strstr(p.text.data, want));
            eval_prompt_free(&p);
            eval_record_free(&r);
        }
    }
    struct recursion_record r = {0};
    assert_int_equal(eval_paper_random(1, RECURSION_MAX_STEP + 1, 0, &r, &err), PITH_INVALID);
    eval_record_free(&r);
}

/* ---- traces ---- */

#define MAX_NAME 16

struct told {
    char name[MAX_NAME];
    char next[4][MAX_NAME];
    int n_next;
};

static int find_told(const struct told *g, int n, const char *name)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(g[i].name, name) == 0)
            return i;
    }
    fail_msg("%s is no node", name);
    return -1;
}

/* Reads "- Maria: Anton, Clara." lines. */
static int read_graph(const char *text, struct told *g, const char **rest)
{
    int n = 0;
    assert_int_equal(strncmp(text, "Graph:\n", 7), 0);
    for (text += 7; strncmp(text, "- ", 2) == 0; n++) {
        int used = 0;
        assert_int_equal(sscanf(text, "- %15[A-Za-z]:%n", g[n].name, &used), 1);
        text += used;
        for (g[n].n_next = 0; *text != '\n'; g[n].n_next++) {
            assert_true(g[n].n_next < 4);
            assert_int_equal(sscanf(text, " %15[A-Za-z]%n", g[n].next[g[n].n_next], &used), 1);
            text += used;
            assert_true(*text == ',' || (*text == '.' && text[1] == '\n'));
            text++;
        }
        text++;
    }
    *rest = text;
    return n;
}

/* Writes the trace from the prompt's statements, with names alone. */
static void retell(const struct told *g, int n, const char *start, int steps, struct eval_text *out)
{
    int stack[64], depth = 1, order[64], n_seen = 1;
    stack[0] = order[0] = find_told(g, n, start);
    eval_text_printf(out, "1 %s.\n", start);
    for (int step = 1; step <= steps; step++) {
        const struct told *here = &g[stack[depth - 1]];
        eval_text_printf(out, "Step %d of %d: %s:", step, steps, here->name);
        int found = -1;
        for (int i = 0; i < here->n_next && found < 0; i++) {
            int next = find_told(g, n, here->next[i]);
            bool seen = false;
            for (int k = 0; k < n_seen; k++)
                seen = seen || order[k] == next;
            eval_text_printf(out, " %s %s", here->next[i], seen ? "old," : "new.\n");
            found = seen ? -1 : next;
        }
        if (found >= 0) {
            stack[depth++] = order[n_seen++] = found;
            eval_text_printf(out, "%d %s under %s.\n", n_seen, g[found].name, here->name);
        } else {
            depth--;
            assert_true(depth > 0); /* never more steps than the search has */
            eval_text_printf(out, " end. Back to %s.\n", g[stack[depth - 1]].name);
        }
    }
    eval_text_printf(out, "State: at %s. Stack: %s", g[stack[depth - 1]].name,
                     g[stack[depth - 1]].name);
    for (int i = depth - 2; i >= 0; i--)
        eval_text_printf(out, " under %s", g[stack[i]].name);
    eval_text_printf(out, ". Visited: 1 %s", start);
    for (int i = 1; i < n_seen; i++)
        eval_text_printf(out, ", %d %s", i + 1, g[order[i]].name);
    eval_text_add(out, ".");
}

TEST(traces_lead_to_the_states_that_they_tell)
{
    for (int32_t steps = 6; steps <= TRACE_MAX_STEP; steps += 2) {
        for (int32_t sample = 0; sample < 4; sample++) {
            struct recursion_record r = {0};
            struct eval_prompt p = {0};
            assert_int_equal(eval_trace_make(4, steps, sample, &r, &p, &err), PITH_OK);
            struct told g[TRACE_MAX_NODE];
            const char *rest;
            char start[MAX_NAME];
            int asked = 0, used = 0;
            int n = read_graph(p.text.data, g, &rest);
            assert_int_equal(n, r.graph.n_node);
            assert_in_range(n, TRACE_MIN_NODE, TRACE_MAX_NODE);
            assert_int_equal(
                sscanf(rest, "Search of %d steps from %15[A-Za-z].%n", &asked, start, &used), 2);
            assert_string_equal(rest + used, "\n");
            assert_int_equal(asked, steps);
            struct eval_text want = {0};
            retell(g, n, start, steps, &want);
            assert_string_equal(p.refs.at[0], want.data);
            struct recursion_score s;
            eval_trace_score(want.data, p.refs.at[0], &s);
            assert_true(s.parsed && s.node && s.stack && s.depth && s.visited);
            assert_true(s.f1 == 1.0 && s.lines == 1.0);
            eval_text_free(&want);
            eval_prompt_free(&p);
            eval_record_free(&r);
        }
    }
}

TEST(scores_the_last_state_of_a_trace)
{
    static const char want[] = "1 Maria.\n"
                               "Step 1 of 2: Maria: Anton new.\n"
                               "2 Anton under Maria.\n"
                               "Step 2 of 2: Anton: Maria old, Hugo new.\n"
                               "3 Hugo under Anton.\n"
                               "State: at Hugo. Stack: Hugo under Anton under Maria. Visited: 1"
                               " Maria, 2 Anton, 3 Hugo.";
    struct recursion_score s;
    eval_trace_score("State: at Hugo. Stack: Hugo under Anton under Maria. Visited: 1 Maria, 2"
                     " Hugo.\n",
                     want, &s);
    assert_true(s.stack && s.node && !s.visited && s.lines == 0.0);
    assert_true(fabs(s.f1 - 0.8) < 1e-12);
    eval_trace_score("Step 2 of 2: Anton: Maria old, Hugo new. \nStep 1 of 2: Maria: Hugo new.\n"
                     "State: at Anton. Stack: Anton under Hugo under Maria. Visited:",
                     want, &s);
    assert_true(!s.stack && s.depth && !s.node && s.lines == 0.5 && s.f1 == 0.0);
    /* Cut within the stack: the part is right so far, but it is no stack. */
    eval_trace_score("State: at Hugo. Stack: Hugo under Anton under Maria", want, &s);
    assert_false(s.stack || s.parsed);
    eval_trace_score("<think>State: at Hugo. Stack: Hugo under Anton under Maria.", want, &s);
    assert_false(s.stack || s.parsed);
    eval_trace_score("", want, &s);
    assert_false(s.stack || s.parsed || s.visited);
}

/* ---- derivation ---- */

TEST(derivations_are_right_and_parts_recur)
{
    bool recurs = false;
    for (int32_t n_part = DERIVATION_MIN_PART; n_part <= DERIVATION_MAX_PART; n_part += 8) {
        struct eval_prompt p = {0};
        assert_int_equal(eval_derivation_make(6, n_part, 0, &p, &err), PITH_OK);
        const char *text = p.text.data + strlen("Sums modulo 20:");
        struct eval_text want = {0};
        int total = 0, pairs[DERIVATION_MAX_PART + 1][2];
        for (int i = 1; i <= n_part; i++) {
            int number, a, b, used;
            assert_int_equal(sscanf(text, " #%d %d&%d%n", &number, &a, &b, &used), 3);
            assert_true(number == i && a >= 0 && a < 20 && b >= 0 && b < 20);
            text += used;
            pairs[i][0] = a;
            pairs[i][1] = b;
            for (int k = 1; k < i; k++)
                recurs = recurs || (pairs[k][0] == a && pairs[k][1] == b);
            int was = total;
            total = (was + 2 * a + 2 * b - b + b) % 20; /* a+b, +b, +a is 2a + 2b */
            eval_text_printf(
                &want, "Part #%d %d&%d: %d+%d=%d, %d+%d=%d, %d+%d=%d. Total %d+%d=%d.\n\n", i, a, b,
                a, b, (a + b) % 20, (a + b) % 20, b, (a + 2 * b) % 20, (a + 2 * b) % 20, a,
                (2 * a + 2 * b) % 20, was, (2 * a + 2 * b) % 20, total);
        }
        assert_string_equal(text, ".\n\n");
        eval_text_printf(&want, "Answer: %d.", total);
        assert_string_equal(p.refs.at[0], want.data);
        struct derivation_score s;
        eval_derivation_score(want.data, p.refs.at[0], n_part, &s);
        assert_true(s.answer && s.whole && s.parts == 1.0);
        eval_text_free(&want);
        eval_prompt_free(&p);
    }
    assert_true(recurs);
    struct eval_prompt p = {0};
    assert_int_equal(eval_derivation_make(6, 3, 0, &p, &err), PITH_INVALID);
    eval_prompt_free(&p);
}

TEST(scores_parts_and_answers_of_derivations)
{
    static const char want[] = "Part #1 7&5: 7+5=12, 12+5=17, 17+7=4. Total 0+4=4.\n\n"
                               "Part #2 3&8: 3+8=11, 11+8=19, 19+3=2. Total 4+2=6.\n\n"
                               "Answer: 6.";
    struct derivation_score s;
    eval_derivation_score("Part #1 7&5: 7+5=12, 12+5=17, 17+7=4. Total 0+4=4.\n\n"
                          "Part #2 3&8: 3+8=11, 11+8=19, 19+3=3. Total 4+3=7.\n\nAnswer: 7.",
                          want, 2, &s);
    assert_true(!s.answer && !s.whole && s.parts == 0.5);
    eval_derivation_score("Answer: 6.\n", want, 2, &s);
    assert_true(s.answer && !s.whole && s.parts == 0.0);
    eval_derivation_score("Answer: 6", want, 2, &s);
    assert_false(s.answer);
    eval_derivation_score("Answer: 16.", want, 2, &s);
    assert_false(s.answer);
}

/* ---- questions ---- */

TEST(reads_lines_of_questions)
{
    static const char text[] =
        "{\"problem\": \"p\", \"answer\": \"\\\\frac{1}{2}\", \"unique_id\": \"t/1\"}\n"
        "\n"
        "{\"question\": \"q\", \"answer\": \"2 eggs and #### no\\n#### 1,450\"}\r\n"
        "{\"id\": 0, \"problem\": \"a\", \"question\": \"b\", \"answer\": 27.0}\n"
        "{\"problem\": \"c\", \"answer\": 70, \"id\": \"x\"}";
    struct question_file f;
    assert_int_equal(eval_questions_parse(text, strlen(text), &f, &err), PITH_OK);
    assert_int_equal(f.n, 4);
    assert_string_equal(f.question[0].answer, "\\frac{1}{2}");
    assert_string_equal(f.question[0].name, "t/1");
    assert_string_equal(f.question[1].problem, "q");
    assert_string_equal(f.question[1].answer, "1,450");
    assert_string_equal(f.question[1].name, "line 3");
    assert_string_equal(f.question[2].problem, "a");
    assert_string_equal(f.question[2].answer, "27");
    assert_string_equal(f.question[3].answer, "70");
    eval_questions_free(&f);
    static const char *const bad[] = {"",
                                      "\n \n",
                                      "[]",
                                      "{\"problem\": \"p\"}",
                                      "{\"answer\": \"p\"}",
                                      "{\"problem\": \"p\", \"answer\": []}",
                                      "{\"problem\": \"p\", \"answer\": \"\"}",
                                      "{\"problem\": \"p\", \"answer\": \"12 #### \"}",
                                      "{\"problem\": \"p\", \"final_answer\": [\"\", \"\"]}",
                                      "{\"problem\": \"p\", \"solution\": \"no box\"}",
                                      "{\"problem\""};
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(eval_questions_parse(bad[i], strlen(bad[i]), &f, &err), PITH_FORMAT);
        eval_questions_free(&f);
    }
}

/* Fields of GPQA, OlympiadBench, Minerva and lists of choices. */
TEST(reads_choices_lists_and_solutions)
{
    static const char text[] =
        "{\"Question\": \"Which?\", \"Correct Answer\": \"right\", \"Incorrect Answer 1\": \"x\","
        " \"Incorrect Answer 2\": \"y\", \"Incorrect Answer 3\": \"z\", \"Record ID\": \"rec1\"}\n"
        "{\"question\": \"Q\", \"final_answer\": [\"$2$\", \"3\"], \"is_multiple_answer\": true}\n"
        "{\"problem\": \"P\", \"solution\": \"It is \\\\boxed{5} or so, \\\\boxed{7}.\"}\n"
        "{\"question\": \"C\", \"choices\": [\"p\", \"q\"], \"answer\": 1}\n"
        "{\"question\": \"C\", \"options\": [\"p\", \"q\"], \"answer\": \"A\"}\n";
    struct question_file f;
    if (eval_questions_parse(text, strlen(text), &f, &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_int_equal(f.n, 5);
    char line[16];
    snprintf(line, sizeof(line), "(%s) right", f.question[0].answer);
    assert_non_null(strstr(f.question[0].problem, line));
    assert_non_null(strstr(f.question[0].problem, "(D) "));
    assert_string_equal(f.question[0].name, "rec1");
    assert_string_equal(f.question[1].answer, "$2$, 3");
    assert_true(f.question[1].any_order);
    assert_string_equal(f.question[2].answer, "7");
    assert_string_equal(f.question[3].answer, "B");
    assert_string_equal(f.question[4].answer, "A");
    assert_int_equal(f.question[4].n_choice, 2);
    eval_questions_free(&f);
    static const char none[] = "{\"question\": \"C\", \"choices\": [\"p\", \"q\"], \"answer\": 2}";
    assert_int_equal(eval_questions_parse(none, strlen(none), &f, &err), PITH_FORMAT);
    eval_questions_free(&f);
}

TEST(lists_are_compared_in_any_order)
{
    static const struct {
        const char *a, *b;
        bool equal;
    } cases[] = {{"3, 2", "$2$, 3", true},  {"2, 3", "2,3", true},          {"2", "2, 3", false},
                 {"2, 2", "2, 3", false},   {"(1,2), 3", "3, (1,2)", true}, {"", "2", false},
                 {"1/2, 4", "4, 0.5", true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool equal;
        assert_int_equal(eval_sets_equal(cases[i].a, cases[i].b, &equal, &err), PITH_OK);
        if (equal != cases[i].equal)
            fail_msg("\"%s\" and \"%s\"", cases[i].a, cases[i].b);
    }
}

TEST(takes_the_letter_of_a_choice)
{
    static const struct {
        const char *text;
        char letter;
    } cases[] = {{"So \\boxed{C}.", 'C'},  {"\\boxed{\\text{B}}", 'B'},
                 {"\\boxed{(D)}", 'D'},    {"The answer is (A).", 'A'},
                 {"Answer: **B**", 'B'},   {"(A) is wrong, so (C)", 'C'},
                 {"I think Apples", '\0'}, {"\\boxed{E}", '\0'},
                 {"<think>(A)", '\0'},     {"<think>(A)</think>(B)", 'B'}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char letter;
        assert_int_equal(eval_final_choice(cases[i].text, "", 4, &letter, &err), PITH_OK);
        if (letter != cases[i].letter)
            fail_msg("\"%s\": %c", cases[i].text, letter);
    }
}

/* Every reference that is shipped is found again in a solution, boxed, and equals itself and no
   neighbour that reads otherwise. */
TEST(reads_the_published_questions)
{
    static const struct {
        const char *name;
        int32_t n;
    } files[] = {
        {"questions/lessismore_math500.jsonl", 500}, {"questions/lessismore_aime.jsonl", 30},
        {"questions/lessismore_aime2025.jsonl", 30}, {"questions/qwenmath_amc23.jsonl", 40},
        {"questions/gsm8k_test.jsonl", 1319},
    };
    for (size_t i = 0; i < COUNT(files); i++) {
        const char *path = test_data(files[i].name);
        char *text = NULL;
        size_t len = 0;
        struct question_file f;
        assert_int_equal(eval_read_file(path, &text, &len, &err), PITH_OK);
        assert_int_equal(eval_questions_parse(text, len, &f, &err), PITH_OK);
        assert_int_equal(f.n, files[i].n);
        for (int32_t k = 0; k < f.n; k++) {
            const struct question *q = &f.question[k];
            struct eval_text solution = {0};
            char *said = NULL;
            bool same = false;
            eval_text_printf(&solution, "%s\nIt is not \\boxed{0}, so $\\boxed{%s}$.", q->problem,
                             q->answer);
            assert_int_equal(eval_final_answer(solution.data, q->problem, false, &said, &err),
                             PITH_OK);
            assert_string_equal(said, q->answer);
            assert_int_equal(eval_answers_equal(said, q->answer, &same, &err), PITH_OK);
            if (!same)
                fail_msg("%s: \"%s\" is not itself", q->name, said);
            free(said);
            eval_text_free(&solution);
        }
        eval_questions_free(&f);
        free(text);
    }
}

/* ---- words ---- */

TEST(words_are_distinct)
{
    static const struct eval_word_list *const lists[] = {&eval_names, &eval_adjectives,
                                                         &eval_things, &eval_places, &eval_roles};
    struct eval_strings all = {0};
    for (size_t i = 0; i < COUNT(lists); i++) {
        for (int32_t k = 0; k < lists[i]->n; k++) {
            assert_false(eval_strings_has(&all, lists[i]->word[k]));
            eval_strings_add(&all, lists[i]->word[k]);
        }
    }
    assert_int_equal(all.n, 183);
    eval_strings_free(&all);
    struct eval_rng rng = eval_rng_make(1, 2, 3);
    for (int i = 0; i < 2000; i++) {
        char word[EVAL_INVENTED_SIZE];
        eval_invent(&rng, word);
        assert_in_range(strlen(word), 2, 15);
    }
}
