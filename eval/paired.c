/*
 * paired.c - figures of answers under the measured cache and under the full one. It knows no task.
 *
 * Invariant: every figure is a ratio of two sums over answers. Its error is the ratio estimator's
 * with groups as the units, so that answers of one text do not count as independent.
 */
#include "paired.h"

#include <math.h>
#include <stdlib.h>

#include "chunks.h"

bool eval_pairs_add(struct eval_pairs *p, const struct eval_pair *pair)
{
    if (p->n == p->cap) {
        int32_t cap = p->cap > 0 ? 2 * p->cap : 64;
        struct eval_pair *at = realloc(p->at, (size_t)cap * sizeof(*at));
        if (at == NULL)
            return false;
        p->at = at;
        p->cap = cap;
    }
    p->at[p->n++] = *pair;
    return true;
}

void eval_pairs_free(struct eval_pairs *p)
{
    free(p->at);
    *p = (struct eval_pairs){0};
}

/* ---- ratios of sums ---- */

/* An answer's terms of the two sums of a figure. */
struct terms {
    double y, x;
};
typedef struct terms terms_fn(const struct eval_pair *pair);

static struct terms found(const struct eval_pair *p)
{
    return (struct terms){p->found, 1.0};
}

static struct terms full_found(const struct eval_pair *p)
{
    return (struct terms){p->full_found, 1.0};
}

static struct terms recovered(const struct eval_pair *p)
{
    return (struct terms){p->found && p->full_found, p->full_found};
}

static struct terms probability_of(double logprob)
{
    bool known = !isnan(logprob);
    return (struct terms){known ? exp(logprob) : 0.0, known};
}

static struct terms probability(const struct eval_pair *p)
{
    return probability_of(p->logprob);
}

static struct terms full_probability(const struct eval_pair *p)
{
    return probability_of(p->full_logprob);
}

static struct terms ratio(const struct eval_pair *p)
{
    bool known = !isnan(p->logprob) && !isnan(p->full_logprob);
    return (struct terms){known ? exp(p->logprob) : 0.0, known ? exp(p->full_logprob) : 0.0};
}

struct estimate {
    double value, se, y, x;
};

static struct estimate estimate(const struct eval_pairs *p, int32_t begin, int32_t end,
                                terms_fn *terms)
{
    struct estimate e = {0};
    for (int32_t i = begin; i < end; i++) {
        struct terms t = terms(&p->at[i]);
        e.y += t.y;
        e.x += t.x;
    }
    e.value = e.x > 0.0 ? e.y / e.x : (double)NAN;
    double sum2 = 0.0, n_group = 0.0;
    for (int32_t i = begin; i < end; n_group++) {
        double left = 0.0;
        int32_t group = p->at[i].group;
        for (; i < end && p->at[i].group == group; i++) {
            struct terms t = terms(&p->at[i]);
            left += t.y - e.value * t.x;
        }
        sum2 += left * left;
    }
    e.se = n_group > 1.0 ? sqrt(n_group / (n_group - 1.0) * sum2) / e.x : (double)NAN;
    return e;
}

static bool set_estimate(const struct eval_pairs *p, json_t *object, const char *key,
                         const char *key_se, terms_fn *terms)
{
    struct estimate e = estimate(p, 0, p->n, terms);
    return (key == NULL || eval_set(object, key, eval_number(e.value))) &&
           (key_se == NULL || eval_set(object, key_se, eval_number(e.se)));
}

/* ---- the figures ---- */

double eval_pairs_probability(const struct eval_pairs *p, int32_t begin, int32_t end, bool full)
{
    return estimate(p, begin, end, full ? full_probability : probability).value;
}

static bool set_recovered(const struct eval_pairs *p, json_t *summary)
{
    struct estimate e = estimate(p, 0, p->n, recovered);
    struct eval_interval i = {(double)NAN, (double)NAN, (double)NAN};
    if (e.x > 0.0)
        i = eval_wilson(e.y, e.x);
    return eval_set(summary, "n_full", json_integer((json_int_t)e.x)) &&
           eval_set(summary, "recovered", eval_number(e.value)) &&
           eval_set(summary, "recovered_se", eval_number(e.se)) &&
           eval_set(summary, "recovered_low", eval_number(i.low)) &&
           eval_set(summary, "recovered_high", eval_number(i.high));
}

bool eval_pairs_summarise(const struct eval_pairs *p, json_t *summary)
{
    bool ok = set_estimate(p, summary, NULL, "se", found) &&
              set_estimate(p, summary, "probability", "probability_se", probability);
    if (!p->paired)
        return ok;
    return ok && set_estimate(p, summary, "full_score", NULL, full_found) &&
           set_estimate(p, summary, "full_probability", "full_probability_se", full_probability) &&
           set_estimate(p, summary, "ratio", "ratio_se", ratio) && set_recovered(p, summary);
}

static double mean_logprob(const struct eval_pairs *p, int32_t begin, int32_t end, bool full)
{
    struct eval_moments m = {0};
    for (int32_t i = begin; i < end; i++) {
        double value = full ? p->at[i].full_logprob : p->at[i].logprob;
        if (!isnan(value))
            eval_moments_add(&m, value);
    }
    return eval_moments_mean(&m);
}

bool eval_pairs_describe(const struct eval_pairs *p, int32_t begin, int32_t end, json_t *row)
{
    int32_t n_full = 0;
    for (int32_t i = begin; i < end; i++)
        n_full += p->at[i].full_found;
    bool ok =
        eval_set(row, "answer_logprob", eval_number(mean_logprob(p, begin, end, false))) &&
        eval_set(row, "probability", eval_number(eval_pairs_probability(p, begin, end, false)));
    if (!p->paired)
        return ok;
    return ok && eval_set(row, "full_logprob", eval_number(mean_logprob(p, begin, end, true))) &&
           eval_set(row, "full_probability",
                    eval_number(eval_pairs_probability(p, begin, end, true))) &&
           eval_set(row, "full_pass", json_integer(n_full));
}
