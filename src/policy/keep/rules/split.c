/*
 * split.c - shares of a budget from text: even, a pyramid, numbers, or what calibration found lanes
 * to need. A pure function of the text, or of the file that is named.
 */
#include "base/number.h"
#include "base/os.h"
#include "base/utf8.h"
#include "policy/keep/rules/options.h"
#include "policy/keep/stats/stats.h"

/* Entries of every lane beyond what is protected that its share does not touch: a page of the
   smallest, as less would free no memory. */
#define LANE_LEAST 16
/* Of the numbers that say shares. */
#define NUMBER_MOST 1e9
/* A share of the entries where neither the budget nor the option names one. */
#define RETENTION 0.25

/* Cai et al., "PyramidKV", 2024 (arXiv 2406.02069), section 3.2: budgets that fall by equal steps
   from 2 - 1 / beta of the mean in the first layer to 1 / beta of it in the last. */
static pith_status fill_pyramid(const char *key, const char *text, int32_t n, double *weight,
                                pith_error *err)
{
    double beta;
    if (!pi_number_read(text, strlen(text), &beta) || !(beta >= 1.0) || !(beta <= 1e6))
        return pi_fail(err, PITH_INVALID, "keep: %s: \"pyramid:%.32s\" has no number in 1..1e6",
                       key, text);
    for (int32_t i = 0; i < n; i++)
        weight[i] = n == 1 ? 1.0 : 2.0 - 1.0 / beta - i * (2.0 - 2.0 / beta) / (n - 1);
    return PITH_OK;
}

/* Numbers as they are to numbers whose mean is 1. */
static void normalise(int32_t n, double *weight)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += weight[i];
    for (int32_t i = 0; i < n; i++)
        weight[i] *= n / sum;
}

/* A number at the beginning of text [len], behind blanks, that ends there or before `end`; *used
   characters with what ends it. False: none, not above zero, or too large. */
static bool read_number(const char *text, size_t len, char end, size_t *used, double *out)
{
    size_t n = 0, blank = 0;
    while (n < len && text[n] != end)
        n++;
    while (blank < n && pi_is_space(text[blank]))
        blank++;
    *used = n < len ? n + 1 : n;
    return pi_number_read(text + blank, n - blank, out) && *out > 0.0 && *out <= NUMBER_MOST;
}

/* Exactly n numbers, each ended by `end` or the text. */
static pith_status read_numbers(const char *key, const char *text, size_t len, char end, int32_t n,
                                double *weight, pith_error *err)
{
    size_t at = 0, used;
    int32_t i = 0;
    for (; at < len; i++) {
        double x;
        if (!read_number(text + at, len - at, end, &used, &x))
            return pi_fail(err, PITH_INVALID,
                           "keep: %s: number %d, at \"%.*s\", is not a number above zero, up to %g",
                           key, i + 1, (int)pi_min((int64_t)(len - at), 24), text + at,
                           NUMBER_MOST);
        if (i < n)
            weight[i] = x;
        at += used;
    }
    if (i != n)
        return pi_fail(err, PITH_INVALID, "keep: %s: %d numbers, and %d are shared among", key, i,
                       n);
    normalise(n, weight);
    return PITH_OK;
}

/* One number per line. */
static pith_status read_file(const char *key, const char *path, int32_t n, double *weight,
                             pith_error *err)
{
    struct pi_file file = {0};
    pith_error why;
    pith_status opened = pi_file_map(path, &file, &why);
    if (opened != PITH_OK)
        return pi_fail(err, opened, "keep: %s: %s", key, why.message);
    const char *text = (const char *)file.data;
    size_t mark = pi_utf8_mark(text, file.size);
    pith_status status = read_numbers(key, text + mark, file.size - mark, '\n', n, weight, err);
    pi_file_unmap(&file);
    return status;
}

pith_status keep_split_read(const char *key, const char *text, int32_t n, double *weight,
                            pith_error *err)
{
    static const char pyramid[] = "pyramid:", beyond[] = "pyramidkv:";
    if (strcmp(text, "even") == 0) {
        for (int32_t i = 0; i < n; i++)
            weight[i] = 1.0;
        return PITH_OK;
    }
    if (strncmp(text, pyramid, sizeof(pyramid) - 1) == 0)
        return fill_pyramid(key, text + sizeof(pyramid) - 1, n, weight, err);
    if (strncmp(text, beyond, sizeof(beyond) - 1) == 0)
        return fill_pyramid(key, text + sizeof(beyond) - 1, n, weight, err);
    if (text[0] >= '0' && text[0] <= '9')
        return read_numbers(key, text, strlen(text), '/', n, weight, err);
    if (text[0] == '\0')
        return pi_fail(err, PITH_INVALID,
                       "keep: %s: it is empty: even, pyramid:BETA, numbers (1/2/1) or a file", key);
    return read_file(key, text, n, weight, err);
}

/* ---- by calibration ---- */

pith_status keep_split_retention(const struct keep_rules *r, double *out, pith_error *err)
{
    static const char name[] = "calibrated";
    const char *text = r->split, *number = text + sizeof(name);
    size_t len = strlen(text);
    double percent;
    *out = RETENTION;
    if (r->budget.unit == POLICY_UNIT_SHARE)
        *out = (double)r->budget.value * 1e-6;
    if (strcmp(text, name) == 0)
        return PITH_OK;
    bool given = strncmp(text, "calibrated:", sizeof(name)) == 0 && text[len - 1] == '%' &&
                 pi_number_read(number, (size_t)(text + len - 1 - number), &percent);
    if (!given || !(percent > 0.0) || !(percent <= 100.0))
        return pi_fail(err, PITH_INVALID,
                       "keep: split: \"%.64s\" is neither even, calibrated nor calibrated:10%% (a "
                       "share of the entries above 0%% and at most 100%%)",
                       text);
    *out = percent / 100.0;
    return PITH_OK;
}

/* The entries that every lane holds before shares count: the protected ones and a few, and as many
   as the policy can work with. */
static int32_t least_of_lane(const struct keep_config *c)
{
    const struct keep_rules *r = &c->rules;
    int64_t n = pi_max(r->prefix, r->sinks) + (int64_t)r->window + r->overwrite + LANE_LEAST;
    int64_t most = n + 4096;
    while (c->policy->check != NULL && n < most &&
           c->policy->check(&c->params, r, (int32_t)n, NULL) != PITH_OK)
        n++;
    return (int32_t)pi_min(n, KEEP_COUNT_MAX);
}

static pith_status sum_shares(struct keep_config *c, const struct stats_importance *m,
                              double retention, pith_error *err)
{
    double share[KEEP_LANE_MAX], all = 0.0;
    stats_lane_shares(m, retention, share);
    for (int32_t i = 0; i < m->n_lane; i++)
        all += share[i];
    if (!(all > 0.0))
        return pi_fail(err, PITH_INVALID, "keep: split: %.64s: leaves no lane anything",
                       c->rules.split);
    double so_far = 0.0;
    for (int32_t i = 0; i < m->n_lane; i++) {
        c->lane_sum[i] = so_far / all * m->n_lane;
        so_far += share[i];
    }
    c->lane_sum[m->n_lane] = m->n_lane;
    return PITH_OK;
}

pith_status keep_split_calibrated(struct keep_config *c, const struct kv_geometry *g,
                                  pith_error *err)
{
    struct pith_stats *stats = NULL;
    double retention;
    int32_t n_lane = g->n_layer * g->n_head;
    PI_TRY(keep_split_retention(&c->rules, &retention, err));
    PI_TRY(stats_load_option("keep", c->rules.stats, &stats, err));
    const struct stats_importance *m = stats->importance;
    pith_status status = PITH_OK;
    if (m == NULL)
        status = pi_fail(err, PITH_INVALID,
                         "keep: split: %.64s: the statistics hold no importance: `pith calibrate "
                         "importance` writes it",
                         c->rules.split);
    else if (m->n_lane != n_lane || n_lane > KEEP_LANE_MAX)
        status =
            pi_fail(err, PITH_INVALID,
                    "keep: split: %.64s: statistics of %d lanes, and the model has %d (at most "
                    "%d)",
                    c->rules.split, m->n_lane, n_lane, KEEP_LANE_MAX);
    else
        status = sum_shares(c, m, retention, err);
    pith_stats_free(stats);
    c->split = status == PITH_OK;
    c->n_head = g->n_head;
    c->n_unsplit = least_of_lane(c);
    return status;
}
