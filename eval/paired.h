/*
 * paired.h - answers under the measured cache beside the full cache's. It has the probability of
 * the right answer, and the share of the full cache's right answers that are found again.
 */
#ifndef PI_EVAL_PAIRED_H
#define PI_EVAL_PAIRED_H

#include "eval.h"

/* One answer. */
struct eval_pair {
    int32_t group; /* answers of one group are not independent (one text), groups are; ascending */
    bool found;
    double logprob; /* of the whole right answer; NAN: not known */
    bool full_found;
    double full_logprob;
};

/* Zero it before use; paired says whether the full cache's figures are there. */
struct eval_pairs {
    struct eval_pair *at; /* [n] owned */
    int32_t n;
    int32_t cap;
    bool paired;
};
bool eval_pairs_add(struct eval_pairs *p, const struct eval_pair *pair); /* false: no memory */
void eval_pairs_free(struct eval_pairs *p);

/* Mean of exp(logprob) over answers [begin, end) of which it is known; NAN: of none. */
double eval_pairs_probability(const struct eval_pairs *p, int32_t begin, int32_t end, bool full);

/* Adds "se" (of the share found), "probability", "probability_se" and, of pairs, "full_score",
   "full_probability", "full_probability_se", "ratio", "ratio_se", "n_full", "recovered",
   "recovered_se", "recovered_low", "recovered_high" to summary. Errors take groups as independent:
   a ratio R = sum y / sum x has sqrt(G / (G - 1) * sum_g (y_g - R x_g)^2) / sum x. False: no
   memory. */
bool eval_pairs_summarise(const struct eval_pairs *p, json_t *summary);

/* Adds "answer_logprob" and "probability" of answers [begin, end), means over them, and of pairs
   "full_logprob", "full_probability" and "full_pass", how many the full cache finds. */
bool eval_pairs_describe(const struct eval_pairs *p, int32_t begin, int32_t end, json_t *row);

#endif
