/*
 * derivation.h - the text of the derivation task: sums modulo 20, in parts, of which some recur, as
 * reasoning models repeat themselves.
 */
#ifndef PI_EVAL_DERIVATION_H
#define PI_EVAL_DERIVATION_H

#include "prompt.h"

#define DERIVATION_MIN_PART 4
#define DERIVATION_MAX_PART 60

/* Writes the prompt; refs[0] is all that must follow. INVALID for parts out of range, NOMEM. */
pith_status eval_derivation_make(uint64_t seed, int32_t n_part, int32_t sample,
                                 struct eval_prompt *out, pith_error *err);

struct derivation_score {
    bool answer;  /* the total is right */
    bool whole;   /* so is every character */
    double parts; /* the share of the parts that are right, their running totals included */
};

/* Compares with what must follow. */
void eval_derivation_score(const char *answer, const char *expected, int32_t n_part,
                           struct derivation_score *out);

#endif
