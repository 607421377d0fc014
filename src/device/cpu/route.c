/*
 * route.c - which experts a token takes, and with which weights: a function of that token's
 * router row alone. It knows neither weights nor threads. Exponentials are the kernels' own
 * (expf.h), so that a choice is the same on every machine.
 */
#include <math.h>

#include "cpu/expf.h"
#include "device/cpu/route.h"

/* Below it a sum of weights is taken for this: the smallest normal number of 16 bits. */
#define LEAST_SUM 0x1p-14f

static float exp_within(float x)
{
    return pi_expf(fminf(fmaxf(x, PI_EXP_MIN), PI_EXP_MAX));
}

static void softmax(float *x, int32_t n)
{
    float most = x[0];
    double sum = 0;
    for (int32_t i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (int32_t i = 0; i < n; i++) {
        x[i] = exp_within(x[i] - most);
        sum += (double)x[i];
    }
    for (int32_t i = 0; i < n; i++)
        x[i] *= (float)(1 / sum);
}

static void to_probabilities(enum pi_moe_gating gating, float *x, int32_t n)
{
    if (gating == PI_MOE_SOFTMAX)
        softmax(x, n);
    for (int32_t i = 0; i < n && gating == PI_MOE_SIGMOID; i++)
        x[i] = 1 / (1 + exp_within(-x[i]));
}

/* The first of the largest. */
static int32_t largest(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

/* The sum of the two largest. */
static float group_score(const float *rank, int32_t n)
{
    int32_t first = largest(rank, n);
    float second = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        second = i != first && rank[i] > second ? rank[i] : second;
    return n == 1 ? rank[first] : rank[first] + second;
}

/* Experts of groups that are not among the best rank last. */
static void leave_groups_out(const struct pi_moe_rule *rule, float *rank)
{
    int32_t n = rule->n_expert / rule->n_group;
    float score[PI_MOE_MAX_GROUP];
    bool stays[PI_MOE_MAX_GROUP] = {false};
    for (int32_t g = 0; g < rule->n_group; g++)
        score[g] = group_score(rank + g * n, n);
    for (int32_t i = 0; i < rule->n_group_used; i++) {
        int32_t best = largest(score, rule->n_group);
        stays[best] = true;
        score[best] = -INFINITY;
    }
    for (int32_t e = 0; e < rule->n_expert; e++)
        rank[e] = stays[e / n] ? rank[e] : -INFINITY;
}

/* w /= max(sum of w, LEAST_SUM) */
static void normalise(float *w, int32_t n)
{
    float sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += w[i];
    for (int32_t i = 0; i < n; i++)
        w[i] /= fmaxf(sum, LEAST_SUM);
}

void pi_moe_route(const struct pi_moe_rule *rule, const float *bias, float *logit, float *rank,
                  int32_t *chosen, float *weight)
{
    int32_t n = rule->n_expert;
    to_probabilities(rule->gating, logit, n);
    for (int32_t e = 0; e < n; e++)
        rank[e] = bias != NULL ? logit[e] + bias[e] : logit[e];
    if (rule->n_group > 1)
        leave_groups_out(rule, rank);
    for (int32_t i = 0; i < rule->n_used; i++) {
        chosen[i] = largest(rank, n);
        weight[i] = logit[chosen[i]];
        rank[chosen[i]] = -INFINITY;
    }
    if (rule->gating == PI_MOE_SOFTMAX_CHOSEN)
        softmax(weight, rule->n_used);
    if (rule->norm)
        normalise(weight, rule->n_used);
    for (int32_t i = 0; i < rule->n_used; i++)
        weight[i] *= rule->scale;
}
