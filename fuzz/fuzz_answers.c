/*
 * fuzz_answers.c - `pith eval`'s readers of answers and of files of questions, on any bytes. It
 * runs the extractor and the comparison of final answers, the checkers of needles, searches and
 * derivations, and the readers of records and problems. A finding is a sanitizer's report, a leak
 * or a refusal without a sentence. So is an answer that does not equal itself, or a score out of
 * its range.
 */
#include <stdlib.h>
#include <string.h>

#include "eval/answers.h"
#include "eval/derivation.h"
#include "eval/facts.h"
#include "eval/questions.h"
#include "eval/recursion.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_files(const char *text, size_t size)
{
    struct recursion_file records;
    struct question_file questions;
    struct facts_file facts;
    pith_error err = {0};
    if (eval_record_file_parse(text, size, &records, &err) != PITH_OK && err.message[0] == '\0')
        abort();
    eval_record_file_free(&records);
    err.message[0] = '\0';
    if (eval_questions_parse(text, size, &questions, &err) != PITH_OK && err.message[0] == '\0')
        abort();
    eval_questions_free(&questions);
    err.message[0] = '\0';
    if (eval_facts_parse(text, size, &facts, &err) != PITH_OK && err.message[0] == '\0')
        abort();
    eval_facts_free(&facts);
}

static void check_final(const char *text)
{
    static const char *const questions[] = {NULL, "#### 1"};
    pith_error err;
    for (int i = 0; i < 2; i++) {
        char *said = NULL, *normal = NULL;
        bool same = false;
        if (eval_final_answer(text, questions[i], i == 1, &said, &err) != PITH_OK ||
            eval_normalise(text, &normal, &err) != PITH_OK ||
            eval_answers_equal(text, text, &same, &err) != PITH_OK)
            abort();
        if (same != (normal[0] != '\0') || strlen(said) > strlen(text))
            abort();
        free(said);
        free(normal);
    }
}

static void check_states(const char *text)
{
    static const char record[] =
        "[{\"graph\":{\"nodes\":[0,1,2],\"edges\":[[0,1],[1,2]]},\"start_node\":0,\"steps\":2,"
        "\"answer\":{\"current_node\":2,\"stack\":[0,1,2],\"visited_nodes\":[0,1,2]}}]";
    static const char trace[] = "1 Maria.\nStep 1: Maria: Anton new.\n2 Anton under Maria.\n"
                                "State: at Anton. Stack: Anton under Maria. Visited: 1 Maria, 2"
                                " Anton.";
    struct recursion_file f;
    struct recursion_score s;
    struct derivation_score d;
    if (eval_record_file_parse(record, strlen(record), &f, NULL) != PITH_OK || f.n_wrong != 0)
        abort();
    eval_paper_score(text, &f.record[0], &s);
    if (!(s.f1 >= 0.0 && s.f1 <= 1.0) || (s.stack && !s.depth))
        abort();
    eval_record_file_free(&f);
    eval_trace_score(text, trace, &s);
    if (!(s.f1 >= 0.0 && s.f1 <= 1.0) || !(s.lines >= 0.0 && s.lines <= 1.0))
        abort();
    eval_derivation_score(text, "Part #1 1&2: 1+2=3.\n\nAnswer: 3.", 1, &d);
    if (!(d.parts >= 0.0 && d.parts <= 1.0) || (d.whole && !d.answer))
        abort();
}

static void check_needle(const char *text)
{
    static const struct eval_needle_key key = {"PURPLE ELEPHANT", "7742",
                                               "What is it?",     "It is PURPLE ELEPHANT 7742.",
                                               "before ",         " after"};
    if (eval_needle_check(text, &key) >= EVAL_N_VERDICT)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (text == NULL)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    read_files(text, size);
    check_final(text);
    check_states(text);
    check_needle(text);
    free(text);
    return 0;
}
