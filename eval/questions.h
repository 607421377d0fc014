/*
 * questions.h - files of problems with answers, one JSON object per line.
 */
#ifndef PI_EVAL_QUESTIONS_H
#define PI_EVAL_QUESTIONS_H

#include "eval.h"

struct question {
    char *problem;    /* owned */
    char *answer;     /* owned; TeX, a number, or the letter of a choice */
    bool any_order;   /* the answer is a list whose items may come in any order */
    int32_t n_choice; /* 0: none are given */
    char *name;       /* what the file calls it, or its line; owned */
};

struct question_file {
    struct question *question; /* [n] owned */
    int32_t n;
};

/* Reads text [len]: "problem" or "question", a text, and "answer", a text or a number, of which
   what follows the last "####" counts (GSM8K). In its place may stand "final_answer", a list
   (OlympiadBench), or "solution", whose final answer counts (Minerva). With "choices" or "options",
   a list, the answer is the number of one from 0 on, its letter or its text. GPQA's fields are
   "Question", "Correct Answer" and three more, which are shuffled by the line's number. Empty lines
   are passed over. FORMAT (which line and field), NOMEM. The caller frees with eval_questions_free,
   also on failure. */
pith_status eval_questions_parse(const char *text, size_t len, struct question_file *out,
                                 pith_error *err);
void eval_questions_free(struct question_file *f);

#endif
