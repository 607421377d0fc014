/*
 * importance_score.c - asks a keep policy for its scores outside of rounds. It calls the policy's
 * own functions with a view that it makes, so that rounds know nothing of it. Invariant: each lane
 * has its sums, and texts are added in order, so that threads change no bit.
 */
#include "policy/keep/learn/importance_score.h"

#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/threads.h"
#include "policy/keep/rules/options.h"

/* Of a lane. */
struct line {
    double n, x, y, xx, yy, xy;
};

struct importance_score {
    struct keep_config config;
    struct policy_model model;
    char *text;               /* owned */
    struct pith_stats *stats; /* owned; NULL: none */
    void *data;               /* of the policy's open */
    int32_t n_thread;
    int32_t longest;
    size_t scratch_size;
    size_t thread_size; /* of a thread's block: positions, marks, scores, scratch */
    uint8_t *block;     /* [n_thread][thread_size] owned */
    struct line *line;  /* [n_lane] owned */
};

/* ---- options ---- */

static bool has_key(const struct keep_policy *p, const char *key)
{
    for (const struct policy_param *q = p->params; q != NULL && q->key != NULL; q++)
        if (strcmp(q->key, key) == 0)
            return true;
    return false;
}

/* Whether a text sets a key: "key=" at the beginning of one of its options. */
static bool sets_key(const char *text, const char *key)
{
    size_t len = strlen(key);
    for (const char *at = text; at != NULL; at = strpbrk(at, ":,")) {
        at += *at == ':' || *at == ',';
        if (strncmp(at, key, len) == 0 && at[len] == '=')
            return true;
    }
    return false;
}

/* The policy that a text names, whatever its options. */
static pith_status find_policy(const char *text, const struct keep_policy **out, pith_error *err)
{
    struct keep_config named;
    char name[POLICY_TEXT_SIZE];
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(text, ":"), text);
    PI_TRY(keep_config_parse(name, &named, err));
    if (named.policy == NULL)
        return pi_fail(err, PITH_INVALID, "%s: the full cache has no scores to map", text);
    *out = named.policy;
    return PITH_OK;
}

/* Each lane is scored for itself, so that no map is asked for that is not there yet. */
static pith_status compose(struct importance_score *s, const char *text, const char *stats_path,
                           pith_error *err)
{
    const struct keep_policy *policy;
    if (sets_key(text, "budget"))
        return pi_fail(err, PITH_INVALID,
                       "%s: nothing is evicted to learn a map: leave out the budget", text);
    PI_TRY(find_policy(text, &policy, err));
    size_t cap = strlen(text) + 96 + (stats_path != NULL ? strlen(stats_path) : 0);
    bool z = has_key(policy, "z") && !sets_key(text, "z");
    bool stats = stats_path != NULL && !sets_key(text, "stats");
    s->text = pi_mem_alloc(PI_MEM_OTHER, cap);
    if (s->text == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the options of a policy");
    snprintf(s->text, cap, "%s%cbudget=%d,granularity=layer-head%s%s%s", text,
             strchr(text, ':') != NULL ? ',' : ':', 2 * s->longest + 1024, z ? ",z=off" : "",
             stats ? ",stats=" : "", stats ? stats_path : "");
    return keep_config_parse(s->text, &s->config, err);
}

pith_status importance_score_check(const char *text, pith_error *err)
{
    struct importance_score s = {0};
    pith_status status = compose(&s, text, NULL, err);
    pi_mem_free(s.text);
    return status;
}

/* ---- objects ---- */

/* A thread's arrays. */
struct work {
    int32_t *pos;    /* [n] */
    bool *evictable; /* [n] */
    float *score;    /* [n] */
    void *scratch;
};

static size_t lay_out(const struct importance_score *s, uint8_t *base, struct work *w)
{
    size_t used = 0, n = (size_t)s->longest;
    w->pos = pi_mem_part(base, &used, n, sizeof(*w->pos));
    w->evictable = pi_mem_part(base, &used, n, sizeof(*w->evictable));
    w->score = pi_mem_part(base, &used, n, sizeof(*w->score));
    w->scratch = pi_mem_part(base, &used, s->scratch_size, 1);
    return used;
}

static pith_status open_policy(struct importance_score *s, const char *text, const char *stats_path,
                               pith_error *err)
{
    const struct policy_model *m = &s->model;
    struct work w;
    PI_TRY(compose(s, text, stats_path, err));
    PI_TRY(keep_config_fit(&s->config, &m->g, err));
    if (s->config.rules.stats[0] != '\0') {
        PI_TRY(pith_stats_load(s->config.rules.stats, &s->stats, err));
        PI_TRY(stats_check_lanes(s->stats, m, "", err));
        s->model.stats = s->stats;
    }
    const struct keep_policy *p = s->config.policy;
    if (p->open != NULL)
        PI_TRY(p->open(&s->config.params, m, &s->data, err));
    if (p->scratch_size != NULL)
        s->scratch_size = p->scratch_size(&s->config.params, m, s->data, s->longest);
    s->thread_size = pi_align(lay_out(s, NULL, &w), PI_APART);
    s->block = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)s->n_thread, s->thread_size);
    s->line =
        pi_mem_alloc_n(PI_MEM_OTHER, (size_t)m->g.n_layer * (size_t)m->g.n_head, sizeof(*s->line));
    if (s->block == NULL || s->line == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the scores of %s", p->name);
    return PITH_OK;
}

pith_status importance_score_create(const char *text, const char *stats_path, int32_t longest,
                                    const struct policy_model *model, int32_t n_thread,
                                    struct importance_score **out, pith_error *err)
{
    struct importance_score *s = pi_mem_alloc(PI_MEM_OTHER, sizeof(*s));
    if (s == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the scores of a policy");
    s->model = *model;
    s->n_thread = n_thread;
    s->longest = longest;
    pith_status status = open_policy(s, text, stats_path, err);
    if (status != PITH_OK) {
        importance_score_free(s);
        return status;
    }
    *out = s;
    return PITH_OK;
}

void importance_score_free(struct importance_score *s)
{
    if (s == NULL)
        return;
    if (s->data != NULL && s->config.policy->close != NULL)
        s->config.policy->close(s->data);
    pith_stats_free(s->stats);
    pi_mem_free(s->text);
    pi_mem_free(s->block);
    pi_mem_free(s->line);
    pi_mem_free(s);
}

const char *importance_score_text(const struct importance_score *s)
{
    return s->text;
}

bool importance_score_is_alone(const struct importance_score *s)
{
    const struct keep_policy *p = s->config.policy;
    const void *params = &s->config.params;
    return (p->needs == NULL || (p->needs(params) & ~(uint32_t)KEEP_NEED_PLACES) == 0) &&
           (p->n_mark == NULL || p->n_mark(params) == 0) &&
           (p->state_size == NULL || p->state_size(params, &s->model, s->data) == 0);
}

/* ---- scores ---- */

struct score_job {
    struct importance_score *s;
    struct keep_view view;
    int32_t begin, end;     /* targets */
    int32_t may_lo, may_hi; /* positions that may go */
    const float *y;
    size_t y_stride;
};

/* The window where a budget is a quarter of the text, which `recent` is a part of. */
static int32_t window_of(const struct importance_score *s, int32_t n_token)
{
    return keep_window_at(&s->config.rules, n_token / 4);
}

static void add_line(struct line *line, double x, double y)
{
    line->n += 1.0;
    line->x += x;
    line->y += y;
    line->xx += x * x;
    line->yy += y * y;
    line->xy += x * y;
}

static void score_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct score_job *j = ctx;
    const struct importance_score *s = j->s;
    const struct keep_policy *p = s->config.policy;
    int32_t n_head = s->model.g.n_head, n = j->view.n_token;
    struct work w;
    lay_out(s, s->block + (size_t)thread * s->thread_size, &w);
    for (int32_t i = 0; i < n; i++) {
        w.pos[i] = i;
        w.evictable[i] = i >= j->may_lo && i < j->may_hi;
    }
    for (int64_t at = begin; at < end; at++) {
        struct keep_lane lane = {.layer = (int32_t)(at / n_head),
                                 .head = (int32_t)(at % n_head),
                                 .n = n,
                                 .pos = w.pos,
                                 .evictable = w.evictable,
                                 .n_evictable = j->may_hi - j->may_lo,
                                 .scratch = w.scratch};
        if (p->silent != NULL && p->silent(&s->config.params, &j->view, lane.layer))
            continue;
        p->score(&s->config.params, &j->view, &lane, w.score);
        int32_t lo = (int32_t)pi_max(j->begin, j->may_lo);
        int32_t hi = (int32_t)pi_min(j->end, j->may_hi);
        for (int32_t i = lo; i < hi; i++)
            if (isfinite(w.score[i]))
                add_line(&s->line[at], (double)w.score[i],
                         (double)j->y[(size_t)at * j->y_stride + (size_t)(i - j->begin)]);
    }
}

void importance_score_add(struct importance_score *s, const struct kv_seq *kv,
                          const int32_t *tokens, int32_t n_token, void *state, int32_t begin,
                          int32_t end, const float *y, size_t y_stride)
{
    const struct keep_rules *rules = &s->config.rules;
    struct score_job j = {.s = s, .begin = begin, .end = end, .y = y, .y_stride = y_stride};
    j.view = (struct keep_view){.kv = kv,
                                .tokens = tokens,
                                .n_token = n_token,
                                .state = state,
                                .model = &s->model,
                                .data = s->data};
    j.may_lo = (int32_t)pi_max(rules->prefix, rules->sinks);
    j.may_hi = n_token - window_of(s, n_token);
    assert(n_token <= s->longest);
    if (j.may_lo >= j.may_hi)
        return;
    if (s->config.policy->begin != NULL)
        s->config.policy->begin(&s->config.params, &j.view);
    pi_parallel_items(s->n_thread, (int64_t)s->model.g.n_layer * s->model.g.n_head, score_lanes,
                      &j);
}

/* ---- the line ---- */

static void fit_lane(const struct line *line, float *slope, float *intercept, float *correlation)
{
    double n = line->n > 0.0 ? line->n : 1.0;
    double xx = line->xx - line->x * line->x / n, yy = line->yy - line->y * line->y / n;
    double xy = line->xy - line->x * line->y / n, scale = sqrt(xx) * sqrt(yy);
    bool varies = xx > 1e-12 * line->xx && yy > 0.0 && isfinite(scale);
    double r = varies ? xy / scale : 0.0, a = r > 0.0 ? xy / xx : 0.0;
    *slope = (float)a;
    *intercept = (float)((line->y - a * line->x) / n);
    *correlation = (float)fmax(-1.0, fmin(1.0, r));
}

pith_status importance_score_fit(const struct importance_score *s, struct stats_map *out,
                                 pith_error *err)
{
    const char *name = s->config.policy->name;
    for (int32_t i = 0; i < s->model.g.n_layer * s->model.g.n_head; i++)
        fit_lane(&s->line[i], &out->slope[i], &out->intercept[i], &out->correlation[i]);
    out->policy = pi_mem_strndup(PI_MEM_OTHER, name, strlen(name));
    return out->policy != NULL ? PITH_OK
                               : pi_fail(err, PITH_NOMEM, "no memory for the name of a policy");
}
