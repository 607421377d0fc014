/*
 * moe.h - mixtures of experts: how a router's numbers become a choice. The block itself is moe.c.
 */
#ifndef PI_MOE_H
#define PI_MOE_H

#include "base/base.h"

/* From the router's logits to probabilities; the numbers are those of ARCH.expert_gating_func. */
enum pi_moe_gating {
    PI_MOE_SOFTMAX = 1,        /* over all experts */
    PI_MOE_SIGMOID = 2,        /* of each expert alone */
    PI_MOE_SOFTMAX_CHOSEN = 3, /* over the chosen ones */
};

/* Of an expert's hidden row. */
enum pi_moe_act {
    PI_MOE_SILU, /* silu(gate) * up */
    PI_MOE_OAI,  /* vec.h's oai_mul */
};

#define PI_MOE_MAX_EXPERT 4096
#define PI_MOE_MAX_GROUP 64

/* n_expert 0: the family has none. */
struct pi_moe_rule {
    int32_t n_expert;
    int32_t n_used;       /* of a token, 1 .. n_expert */
    int32_t n_group;      /* equal runs of experts; 1: no choice among groups */
    int32_t n_group_used; /* of a token; together they have n_used experts or more */
    int32_t n_ff;         /* width of an expert */
    int32_t n_ff_shared;  /* width of the expert of all tokens; 0: there is none */
    enum pi_moe_gating gating;
    enum pi_moe_act act;
    bool norm;   /* the chosen experts' weights are divided by their sum */
    float scale; /* what weights are multiplied with at the end */
};

/*
 * Chooses a token's experts, the best first; of equal ones the lower number comes first.
 *   prob = softmax(logit), sigmoid(logit) or logit;  rank = prob + bias
 *   of groups, those stay whose two best ranks have the largest sums
 *   weight[i] = prob[chosen[i]], then softmax over the chosen, norm and scale as the rule says
 * logit [n_expert] is left as prob, rank [n_expert] is scratch, bias [n_expert] may be NULL.
 */
void pi_moe_route(const struct pi_moe_rule *rule, const float *bias, float *logit, float *rank,
                  int32_t *chosen, float *weight);

#endif
