/*
 * plan.c - how to spend bytes of KV memory: the first way of the table that fits. A way is tried by
 * the estimate that engines size their memory by, so a plan holds its bytes. It makes no engine and
 * knows no figure: those are plan_table.c's.
 * Invariant: what params name is in the plan's engine as they say it.
 */
#include "pith/plan.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/plan_table.h"
#include "model/model.h"
#include "pith/policy.h"

/* Pairs that policies work on, the fewest bits first: the first one that a model's heads take. */
static const char *const few_bits[][2] = {{"q8_0", "turbo3"}, {"q8_0", "q8_0"}, {"f16", "f16"}};

/* Entries between two rounds: few of a short text, where they would weigh. */
enum { SLACK_UNIT = 16, SLACK_MOST = 128, SLACK_PART = 64 };
#define FIRST_BUDGET 32 /* entries of the smallest budget that is tried */

/* Tokens of a pass. Lanes with a window hold it and a pass, which no policy evicts. So a model that
   has some may do with shorter passes. Where entries are evicted, passes are not longer than the
   slack. */
static const int32_t short_chunks[] = {SLACK_MOST, 32};
#define WORTH 1.2 /* times as many entries are worth a shorter pass */

/* A search for one goal. */
struct search {
    const pith_model *model;
    const pith_engine_params *given;
    const pith_plan_goal *goal;
    int32_t n_token;
    int32_t chunk;  /* tokens of a pass where nothing asks for shorter ones */
    int64_t most;   /* bytes */
    int64_t pages;  /* of the plan's bytes: those that measurements count */
    int64_t least;  /* bytes of the smallest plan so far that does not fit; 0: none was tried */
    pith_error why; /* why the last way that cannot be could not */
    pith_plan *out;
};

static bool is_given(const char *text)
{
    return text != NULL && strcmp(text, "none") != 0;
}

/* ---- one way ---- */

/* While entries are evicted, as many tokens of a prompt are computed together. */
static int32_t slack_of(int32_t n_token)
{
    int32_t slack = (int32_t)pi_align((size_t)(n_token / SLACK_PART), SLACK_UNIT);
    return (int32_t)pi_max(SLACK_UNIT, pi_min(SLACK_MOST, slack));
}

/* "kvzap" is "kvzap:" or "kvzap:window=32,"; has: options stand there already. */
static void add_option(char *text, size_t cap, const char *option)
{
    size_t len = strlen(text);
    snprintf(text + len, cap - len, "%c%s", strchr(text, ':') != NULL ? ',' : ':', option);
}

static bool has_option(const char *keep, const char *key)
{
    size_t len = strlen(key);
    for (const char *at = strchr(keep, ':'); at != NULL; at = strchr(at, ',')) {
        at++;
        if (strncmp(at, key, len) == 0 && at[len] == '=')
            return true;
    }
    return false;
}

/* The keep policy with a budget of entries. Options of the caller stand. */
static void write_keep(const struct search *s, const char *keep, bool stats, int32_t n_entry,
                       char *out, size_t cap)
{
    char option[300];
    snprintf(out, cap, "%s", keep);
    if (stats && s->goal->stats != NULL && !has_option(keep, "stats")) {
        snprintf(option, sizeof(option), "stats=%s", s->goal->stats);
        add_option(out, cap, option);
    }
    if (!has_option(keep, "budget")) {
        snprintf(option, sizeof(option), "budget=%d", n_entry);
        add_option(out, cap, option);
    }
    if (!has_option(keep, "slack") && !has_option(keep, "budget")) {
        snprintf(option, sizeof(option), "slack=%d", slack_of(s->n_token));
        add_option(out, cap, option);
    }
}

/* The plan with n_entry entries of a lane, and the parameters that it makes. */
static pith_engine_params plan_with(struct search *s, const struct plan_way *way, int32_t n_entry)
{
    pith_engine_params p = *s->given;
    const char *keep = s->given->keep != NULL ? s->given->keep : way->keep;
    p.kv_bytes = p.memory_bytes = 0;
    p.kv_tokens = 0;
    s->out->keep[0] = '\0';
    if (is_given(keep))
        write_keep(s, keep, way->stats, n_entry, s->out->keep, sizeof(s->out->keep));
    pith_plan_apply(s->out, &p);
    s->out->n_entry = n_entry;
    return p;
}

/* Its bytes; below 0: it cannot be, and s->why says why. */
static int64_t bytes_with(struct search *s, const struct plan_way *way, int32_t n_entry)
{
    const pith_engine_params p = plan_with(s, way, n_entry);
    int64_t bytes;
    if (s->goal->drafts && pith_policies_fit(&p, PITH_USE_DRAFT, &s->why) != PITH_OK)
        return -1;
    return pith_memory_estimate(s->model, &p, s->n_token, &bytes, &s->why) == PITH_OK ? bytes : -1;
}

/* The largest budget within the bytes; 0: none. The smallest ones are below
   the entries that a policy protects. */
static int32_t most_entries(struct search *s, const struct plan_way *way)
{
    int32_t low = FIRST_BUDGET, high = s->n_token;
    int64_t bytes = low <= high ? bytes_with(s, way, low) : -1;
    while (bytes < 0 && low <= high / 2) {
        low *= 2;
        bytes = bytes_with(s, way, low);
    }
    if (bytes < 0)
        return 0;
    if (bytes > s->most) {
        s->least = s->least == 0 ? bytes : pi_min(s->least, bytes);
        return 0;
    }
    while (low < high) {
        int32_t middle = low + (high - low + 1) / 2;
        bytes = bytes_with(s, way, middle);
        if (bytes >= 0 && bytes <= s->most)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Bytes of pages of the cache that keeps all entries in these types. */
static pith_status all_bytes(const struct search *s, const char *type_k, const char *type_v,
                             int64_t *bytes, pith_error *err)
{
    pith_engine_params p = *s->given;
    p.chunk = p.chunk != 0 ? p.chunk : s->chunk;
    p.keep = p.read = p.recall = p.share = NULL;
    p.kv_bytes = p.memory_bytes = 0;
    p.kv_tokens = 0;
    p.type_k = type_k;
    p.type_v = type_v;
    return pith_kv_estimate(s->model, &p, s->n_token, bytes, err);
}

static bool takes_types(const struct search *s, const char *type_k, const char *type_v)
{
    int64_t bytes;
    type_k = s->given->type_k != NULL ? s->given->type_k : type_k;
    type_v = s->given->type_v != NULL ? s->given->type_v : type_v;
    return all_bytes(s, type_k, type_v, &bytes, NULL) == PITH_OK;
}

static void choose_types(struct search *s, const struct plan_way *way)
{
    const char *type_k = way->type_k, *type_v = way->type_v;
    if (type_k == NULL) {
        size_t i = 0;
        while (i + 1 < PI_LEN(few_bits) && !takes_types(s, few_bits[i][0], few_bits[i][1]))
            i++;
        type_k = few_bits[i][0];
        type_v = few_bits[i][1];
    }
    snprintf(s->out->type_k, sizeof(s->out->type_k), "%s", s->given->type_k != NULL ? "" : type_k);
    snprintf(s->out->type_v, sizeof(s->out->type_v), "%s", s->given->type_v != NULL ? "" : type_v);
}

/* Whether the way is one for this goal, whatever its bytes. */
static bool is_open(const struct search *s, const struct plan_way *way)
{
    const char *recall = s->given->recall;
    if (way->keep == NULL)
        return true;
    if (s->given->keep != NULL)
        return is_given(s->given->keep);
    if (way->stats && s->goal->stats == NULL)
        return false;
    return recall != NULL || way->recall == NULL || !s->goal->no_text ||
           strcmp(way->recall, "text") != 0;
}

/* Whether the way fits with passes of `chunk` tokens; 0: of as many as params say. */
static bool fits_with(struct search *s, const struct plan_choice *choice, int32_t chunk)
{
    const struct plan_way *way = &pi_plan_ways[choice->way];
    s->out->chunk = chunk;
    int32_t n = way->keep == NULL ? s->n_token : most_entries(s, way);
    if (n <= 0 || (double)n < choice->least * s->n_token)
        return false;
    s->out->bytes = bytes_with(s, way, n);
    if (s->out->bytes > s->most && (s->least == 0 || s->out->bytes < s->least))
        s->least = s->out->bytes;
    if (s->out->bytes < 0 || s->out->bytes > s->most)
        return false;
    const pith_engine_params p = plan_with(s, way, n);
    return pith_kv_estimate(s->model, &p, s->n_token, &s->pages, &s->why) == PITH_OK;
}

static bool fits(struct search *s, const struct plan_choice *choice)
{
    const struct plan_way *way = &pi_plan_ways[choice->way];
    const struct pi_hparams *hp = &s->model->hp;
    bool all = way->keep == NULL, windows = hp->n_layer_full < hp->n_layer_kv;
    if (!is_open(s, way))
        return false;
    choose_types(s, way);
    bool recalls = !all && s->given->recall == NULL && way->recall != NULL;
    snprintf(s->out->recall, sizeof(s->out->recall), "%s", recalls ? way->recall : "");
    if (s->given->chunk != 0)
        return fits_with(s, choice, 0);
    if ((all || !windows) && fits_with(s, choice, s->chunk))
        return true;
    int32_t n = 0, chunk = 0;
    for (size_t i = 0; windows && i < PI_LEN(short_chunks) && n < s->n_token; i++)
        if (fits_with(s, choice, short_chunks[i]) && s->out->n_entry > WORTH * n) {
            n = s->out->n_entry;
            chunk = short_chunks[i];
        }
    return n > 0 && fits_with(s, choice, chunk);
}

/* ---- what it costs ---- */

/* Between two measured points, by the logarithm of their bytes. */
static float between(const struct plan_point *high, const struct plan_point *low, double at,
                     float a, float b)
{
    double span = log2((double)high->bytes / (double)low->bytes);
    double part = span > 0.0 ? log2((double)high->bytes / at) / span : 0.0;
    return (float)((double)a * (1.0 - part) + (double)b * part);
}

/* The points of the way around `at` percent; false: fewer bytes than any of them. */
static bool find_points(const struct plan_class *c, enum plan_way_id way, double at,
                        const struct plan_point **high, const struct plan_point **low)
{
    *high = *low = NULL;
    for (size_t i = 0; i < c->n_point; i++) {
        const struct plan_point *p = &c->point[i];
        if (p->way != way)
            continue;
        if ((double)p->bytes >= at || *high == NULL)
            *high = p;
        *low = p;
        if ((double)p->bytes <= at)
            return true;
    }
    /* Rounding and tables are not measured: a tenth less is the same. */
    return *low != NULL && at > 0.9 * (double)(*low)->bytes;
}

static void price(struct search *s, const struct plan_class *c, enum plan_way_id way, bool same)
{
    const struct plan_point *high, *low;
    pith_plan *o = s->out;
    double at = 100.0 * (double)s->pages / (double)pi_max(o->full_bytes, 1);
    bool chosen = s->given->type_k == NULL && s->given->type_v == NULL && s->given->keep == NULL &&
                  s->given->recall == NULL && !is_given(s->given->read) &&
                  !is_given(s->given->share);
    if (!chosen || !find_points(c, way, at, &high, &low))
        return;
    o->on = c->name;
    o->on_its_kind = same;
    at = fmax((double)low->bytes, fmin((double)high->bytes, at));
    if (high->facts >= 0.0f && low->facts >= 0.0f) {
        o->facts = between(high, low, at, high->facts, low->facts);
        o->facts_error = between(high, low, at, high->error, low->error);
    }
    o->perplexity = between(high, low, at, high->rise, low->rise);
    o->perplexity_error = between(high, low, at, high->rise_error, low->rise_error);
}

static void add(char *line, size_t cap, const char *format, ...) PI_PRINTF(3, 4);
static void add(char *line, size_t cap, const char *format, ...)
{
    va_list args;
    size_t len = strlen(line);
    va_start(args, format);
    if (len + 1 < cap)
        vsnprintf(line + len, cap - len, format, args);
    va_end(args);
}

static bool is_exact(const char *type)
{
    return type == NULL || strcmp(type, "f16") == 0 || strcmp(type, "f32") == 0;
}

/* Whether what was named beside the bytes leaves every entry as it is. */
static bool names_nothing_lossy(const pith_engine_params *given)
{
    return is_exact(given->type_k) && is_exact(given->type_v) && !is_given(given->keep) &&
           !is_given(given->read) && !is_given(given->share);
}

static void describe_loss(pith_plan *o, const pith_engine_params *given, enum plan_way_id way)
{
    char *line = o->line;
    size_t cap = sizeof(o->line);
    bool facts = o->facts >= 0.0f, rise = !isnan(o->perplexity);
    o->loss[0] = '\0';
    if (way == PLAN_F16 && names_nothing_lossy(given)) {
        add(o->loss, sizeof(o->loss), "nothing");
        add(line, cap, "; nothing is lost");
        return;
    }
    if (o->on == NULL || (!facts && !rise)) {
        add(o->loss, sizeof(o->loss), "not measured");
        add(line, cap, "; what that costs was not measured");
        return;
    }
    if (facts)
        add(o->loss, sizeof(o->loss), "facts %.0f +- %.0f %%%s", (double)o->facts,
            (double)o->facts_error, rise ? ", " : "");
    if (rise)
        add(o->loss, sizeof(o->loss), "perplexity %+.1f +- %.1f %%", (double)o->perplexity,
            (double)o->perplexity_error);
    add(line, cap, "; %s%s %s", o->on,
        o->on_its_kind ? " with that:" : ", the nearest model that was measured:", o->loss);
}

static void describe(const struct search *s, enum plan_way_id way)
{
    pith_plan *o = s->out;
    const pith_engine_params *g = s->given;
    char *line = o->line;
    size_t cap = sizeof(o->line);
    const char *keep = g->keep != NULL ? g->keep : o->keep;
    const char *recall = g->recall != NULL ? g->recall : o->recall;
    line[0] = '\0';
    add(line, cap, "%.1f MiB, %.1f %% of the full f16 cache of %d tokens: %s/%s",
        (double)o->bytes / 0x1p20, 100.0 * (double)o->bytes / (double)pi_max(o->full_bytes, 1),
        o->n_token, g->type_k != NULL ? g->type_k : o->type_k,
        g->type_v != NULL ? g->type_v : o->type_v);
    if (!is_given(keep) || keep[0] == '\0')
        add(line, cap, ", all entries");
    else
        add(line, cap, ", %.*s", (int)strcspn(keep, ":"), keep);
    if (o->n_entry < o->n_token)
        add(line, cap, " %.0f %%", 100.0 * o->n_entry / o->n_token);
    if (is_given(recall) && recall[0] != '\0')
        add(line, cap, ", recall %.*s", (int)strcspn(recall, ":"), recall);
    if (o->chunk != 0 && o->chunk != s->chunk)
        add(line, cap, ", chunk %d", o->chunk);
    describe_loss(o, g, way);
}

/* ---- all of it ---- */

static pith_status check_goal(const pith_plan_goal *g, pith_error *err)
{
    if (g->n_token < 0)
        return pi_fail(err, PITH_INVALID, "n_token: %d is below 0", g->n_token);
    if (g->share == 0.0 && g->bytes > 0)
        return PITH_OK;
    if (g->share != 0.0 && g->bytes != 0)
        return pi_fail(err, PITH_INVALID, "share: %g and bytes: %lld: one of them is 0", g->share,
                       (long long)g->bytes);
    if (!(g->share > 0.0 && g->share <= 1.0))
        return pi_fail(err, PITH_INVALID, "share: %g is not above 0 and at most 1", g->share);
    return PITH_OK;
}

/* Whether a way before the chosen one was closed for want of statistics alone. */
static bool missed(const struct search *s, const struct plan_choice *order,
                   const struct plan_choice *chosen)
{
    for (const struct plan_choice *c = order; c < chosen; c++)
        if (pi_plan_ways[c->way].stats && s->goal->stats == NULL && s->given->keep == NULL)
            return true;
    return false;
}

static pith_status refuse(const struct search *s, pith_error *err)
{
    if (s->least > 0)
        return pi_fail(err, PITH_INVALID,
                       "%lld bytes of KV memory for %d tokens: the least that a plan takes is %lld",
                       (long long)s->most, s->n_token, (long long)s->least);
    return pi_fail(err, PITH_INVALID, "no plan for %d tokens goes with the options: %.150s",
                   s->n_token, s->why.message);
}

pith_status pith_plan_make(const pith_model *model, const pith_engine_params *params,
                           const pith_plan_goal *goal, pith_plan *out, pith_error *err)
{
    pith_model_info info;
    pith_engine_params defaults;
    bool same;
    if (model == NULL || goal == NULL || out == NULL)
        return pi_fail(err, PITH_INVALID, "pith_plan_make: model, goal and out must not be NULL");
    pith_engine_params_default(&defaults);
    const int32_t chunk = defaults.chunk;
    if (params == NULL) {
        defaults.type_k = defaults.type_v = NULL;
        defaults.chunk = 0;
        params = &defaults;
    }
    PI_TRY(check_goal(goal, err));
    pith_model_get_info(model, &info);
    struct search s = {.model = model, .given = params, .goal = goal, .out = out, .chunk = chunk};
    s.n_token = goal->n_token > 0 ? goal->n_token : info.n_ctx_train;
    *out = (pith_plan){.n_token = s.n_token, .facts = -1.0f, .perplexity = NAN};
    PI_TRY(all_bytes(&s, "f16", "f16", &out->full_bytes, err));
    s.most = goal->bytes > 0 ? goal->bytes : (int64_t)(goal->share * (double)out->full_bytes);
    /* Tables stand beside the pages of the full cache, which is what all of it means. */
    if (goal->share == 1.0)
        s.most = INT64_MAX;
    const struct plan_class *class = pi_plan_class(info.architecture, (double)info.n_param, &same);
    const struct plan_choice *c = class->order;
    while (c->way != PLAN_N_WAY && !fits(&s, c))
        c++;
    if (c->way == PLAN_N_WAY)
        return refuse(&s, err);
    out->wants_stats = missed(&s, class->order, c);
    price(&s, class, c->way, same);
    describe(&s, c->way);
    return PITH_OK;
}

void pith_plan_apply(const pith_plan *plan, pith_engine_params *params)
{
    const char *const texts[] = {plan->type_k, plan->type_v, plan->keep, plan->recall};
    const char **const fields[] = {&params->type_k, &params->type_v, &params->keep,
                                   &params->recall};
    for (size_t i = 0; i < PI_LEN(texts); i++)
        if (texts[i][0] != '\0')
            *fields[i] = texts[i];
    if (plan->chunk != 0)
        params->chunk = plan->chunk;
    if (!is_given(params->keep))
        params->recall = NULL;
}
