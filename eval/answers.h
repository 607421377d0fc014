/*
 * answers.h - checkers: pure functions of an answer and the right one.
 *
 * All of them judge the visible answer. Of a reasoning model that is what follows the thinking
 * block; a block that is still open at the end has no answer behind it.
 */
#ifndef PI_EVAL_ANSWERS_H
#define PI_EVAL_ANSWERS_H

#include "prompt.h"

/* Returns the part of text behind its last "</think>"; text itself when there is none. When a
   "<think>" is open at the end, it is the end of text, an empty string. Points into text. */
const char *eval_visible(const char *text);

/* Returns the part of text behind the last occurrence of question, text itself when it has none. So
   a model that repeats its prompt is judged by the text behind that. Space around question does not
   count; an empty or NULL question occurs nowhere. Points into text. */
const char *eval_after_echo(const char *text, const char *question);

/* ---- needle (TriAttention V3 report, section 3.3) ---- */

enum eval_verdict {
    EVAL_PASS,           /* "WORD NUMBER" stands in the answer, letter by letter */
    EVAL_PARTIAL_WORD,   /* the word in whatever case, the number wrong, cut or elsewhere */
    EVAL_PARTIAL_NUMBER, /* the number without the word */
    EVAL_FAIL,
    EVAL_N_VERDICT,
};

/* "PASS", "PARTIAL_WORD", "PARTIAL_NUMBER", "FAIL". */
const char *eval_verdict_name(enum eval_verdict verdict);

struct eval_needle_key {
    const char *word;
    const char *number;
    const char *question; /* of the prompt */
    const char *needle;   /* the whole sentence */
    const char *before;   /* text that precedes the sentence in the prompt, "" at its start */
    const char *after;    /* text that follows it, "" where the question does */
};

/* Words and numbers count only when they stand alone: neither 17742 nor 77420 nor 7742.5 is 7742.
   Of an answer that repeats the question, what follows its last repetition counts. One that holds
   the needle together with the text around it repeats the prompt and has failed. */
enum eval_verdict eval_needle_check(const char *answer, const struct eval_needle_key *key);

/* ---- RULER ---- */

/* The share of references that occur in the answer, whatever the case; 0 without references. */
double eval_share_found(const char *answer, const struct eval_strings *refs);

/* ---- questions ---- */

/* The final answer of a solution: the content of the last complete \boxed{...}. Without one it is
   the number behind the last "####", which a heading is not, else the last number. *out is a string
   that the caller frees, "" when there is none. question is the problem's text, for
   eval_after_echo. cut: the generation ran out of tokens, so a number at the very end may be half
   of one and is not taken. NOMEM. */
pith_status eval_final_answer(const char *answer, const char *question, bool cut, char **out,
                              pith_error *err);

/* The letter of the choice that an answer names, of n from A on. It is the one in the last
   \boxed{...}, else behind the last "answer", else in the last brackets. '\0': none. question is as
   for eval_final_answer. NOMEM. */
pith_status eval_final_choice(const char *answer, const char *question, int32_t n, char *out,
                              pith_error *err);

/* Normalises TeX that prints the same, or means the same number, to one text. It covers spacing,
   \left and \right, \dfrac and a/b and \frac12, units, degrees, percent and dollar signs. Also
   commas in numbers, a leading "x=" and a full stop. The caller frees *out. NOMEM. */
pith_status eval_normalise(const char *answer, char **out, pith_error *err);

/* Sets *equal: the same text after eval_normalise, the same number (18.0 and 18, 0.5 and 1/2), or a
   list of such. An answer of letters only may differ in case. Nothing equals "". NOMEM. */
pith_status eval_answers_equal(const char *a, const char *b, bool *equal, pith_error *err);

/* The same of lists whose items may come in any order. */
pith_status eval_sets_equal(const char *a, const char *b, bool *equal, pith_error *err);

#endif
