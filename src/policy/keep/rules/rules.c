/*
 * rules.c - the rules of every keep policy as numbers: the table of their options, their
 * contradictions, and how many entries a lane may hold. Pure functions of the options; when a round
 * runs is budget.c's, which entries go is choose.c's and round.c's.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "policy/keep/rules/options.h"

/* ---- the options ---- */

static const char *const granularity_words[] = {
    [KEEP_ALL] = "all",       [KEEP_HEAD] = "head",
    [KEEP_LAYER] = "layer",   [KEEP_LAYER_HEAD] = "layer-head",
    [KEEP_GLOBAL] = "global", NULL,
};
static const char *const rounds_words[] = {
    [KEEP_STREAM] = "stream", [KEEP_PROMPT_END] = "prompt-end", NULL};
static const char *const combine_words[] = {[KEEP_MEAN] = "mean", [KEEP_MAX] = "max", NULL};

#define AT(member) .offset = offsetof(struct keep_rules, member)
const struct policy_param keep_rule_params[] = {
    {"budget", POLICY_TYPE_BUDGET, AT(budget), 1, KEEP_COUNT_MAX, "1024",
     "entries that a round leaves in a lane: a number (512), a share of the tokens (50%), or the "
     "size of all pages (64MiB)",
     NULL},
    {"slack", POLICY_TYPE_COUNT, AT(slack), 1, KEEP_COUNT_MAX, "128",
     "a round comes when a lane holds budget + slack entries. Small: smooth memory, many rounds. "
     "Large: few rounds, more memory. At least 1",
     NULL},
    {"prefix", POLICY_TYPE_COUNT, AT(prefix), 0, KEEP_COUNT_MAX, "0",
     "entries at positions below this always stay", NULL},
    {"sinks", POLICY_TYPE_COUNT, AT(sinks), 0, KEEP_COUNT_MAX, "0",
     "this many of a lane's oldest entries always stay", NULL},
    {"window", POLICY_TYPE_COUNT, AT(window), 0, KEEP_COUNT_MAX, "0",
     "entries at this many last positions always stay", NULL},
    {"recent", POLICY_TYPE_REAL, AT(recent), 0, 900, "0",
     "a window of this part of the lane's budget (0.5: half), where that is more", NULL},
    {"pin-prompt", POLICY_TYPE_CHOICE, AT(pin_prompt), 0, 0, "off",
     "on: the entries of the prompt always stay, where they are at most half of the budget",
     policy_switch_words},
    {"segments", POLICY_TYPE_COUNT, AT(segments), 0, 4096, "0",
     "the entries that may go are cut into this many parts of equal length, and each loses its "
     "share; 0: no parts",
     NULL},
    {"granularity", POLICY_TYPE_CHOICE, AT(granularity), 0, 0, "layer-head",
     "which lanes keep the same positions: all, head (a KV head in every layer), layer, or "
     "layer-head (each for itself). global: each for itself, and all lanes share one budget by "
     "score",
     granularity_words},
    {"combine", POLICY_TYPE_CHOICE, AT(combine), 0, 0, "mean",
     "the score of lanes that keep the same positions: mean or max", combine_words},
    {"batch", POLICY_TYPE_COUNT, AT(batch), 0, KEEP_COUNT_MAX, "0",
     "rounds only before tokens whose number is a multiple of this; 0: before any", NULL},
    {"rounds", POLICY_TYPE_CHOICE, AT(rounds), 0, 0, "stream",
     "stream: rounds while a prompt is read. prompt-end: none then, and one after its last token",
     rounds_words},
    {"overwrite", POLICY_TYPE_CHOICE, AT(overwrite), 0, 0, "off",
     "on: in a full lane, a token that is evaluated alone replaces the entry of lowest score",
     policy_switch_words},
    {"layers", POLICY_TYPE_TEXT, AT(layers), 0, 0, "even",
     "how the layers share the budget: even, pyramid:BETA, pyramidkv:BETA, numbers like 2/1/1, or "
     "a file of them",
     NULL},
    {"heads", POLICY_TYPE_TEXT, AT(heads), 0, 0, "even",
     "how the KV heads of a layer share its budget, likewise", NULL},
    {"split", POLICY_TYPE_TEXT, AT(split), 0, 0, "even",
     "how all lanes share the budget: even. calibrated, calibrated:10%: each lane has a share of "
     "its own, from statistics",
     NULL},
    {"stats", POLICY_TYPE_TEXT, AT(stats), 0, 0, "",
     "a file of pith calibrate: query centres, weights of kvzap, maps of scores, shares of lanes",
     NULL},
    {0},
};
#undef AT

/* ---- what is protected ---- */

/* Entries that stay whatever they score. The prefix, the prompt and the sinks are all the oldest
   entries, so that the largest includes the others. */
static int64_t count_first(const struct keep_rules *r, int32_t n_pinned)
{
    return pi_max(pi_max(r->prefix, r->sinks), n_pinned);
}

int32_t keep_pin_most(const struct keep_rules *r, double scale)
{
    if (r->pin_least == 0 || isinf(scale))
        return INT32_MAX;
    int32_t least = (int32_t)(r->pin_least * (scale > 0.0 ? scale : 1.0));
    int64_t beside = (int64_t)least - keep_window_at(r, least) - r->overwrite;
    return (int32_t)pi_max(0, pi_min(least / 2, beside));
}

int32_t keep_pinned_prompt(const struct keep_rules *r, int32_t n_prompt, double scale)
{
    return r->pin_prompt != 0 && n_prompt <= keep_pin_most(r, scale) ? n_prompt : 0;
}

int32_t keep_window_at(const struct keep_rules *r, int32_t n_budget)
{
    /* The small number is for products like 0.29 * 100. */
    return (int32_t)pi_max(r->window, (int64_t)(r->recent * n_budget + 1e-6));
}

/* Entries of a budget beside the first that are protected, and one that a round or a step takes. */
static int64_t pinnable(const struct keep_rules *r, int32_t n_budget, int32_t n_pinned)
{
    return pi_max(0, n_budget - count_first(r, n_pinned) - r->overwrite - 1);
}

int32_t keep_protected_at(const struct keep_rules *r, int32_t n_budget,
                          const struct keep_view *view)
{
    int32_t window = keep_window_at(r, n_budget), last = view->n_token - view->pinned;
    int32_t n_pinned = keep_pinned_prompt(r, view->n_prompt, view->scale);
    bool holds = view->pinned > 0 && last <= pinnable(r, n_budget, n_pinned);
    return holds ? (int32_t)pi_max(window, last) : window;
}

/* The smallest budget that holds what is protected of it, and with overwriting the entry that is
   overwritten. */
static int64_t least_budget(const struct keep_rules *r, int32_t n_pinned)
{
    int64_t first = count_first(r, n_pinned) + r->overwrite;
    int64_t least = (int64_t)ceil((double)first / (1.0 - r->recent));
    if (first + r->window > least)
        return first + r->window;
    /* Its window is the whole number below its part, which an entry or two less can hold. */
    while (least > first && least - 1 >= first + keep_window_at(r, (int32_t)(least - 1)))
        least--;
    return least;
}

pith_status keep_rules_check(const struct keep_rules *r, int32_t n_budget, int32_t n_pinned,
                             pith_error *err)
{
    int64_t first = count_first(r, n_pinned);
    int32_t window = keep_window_at(r, n_budget);
    if (n_budget < first + window)
        return pi_fail(err, PITH_INVALID,
                       "keep: a budget of %d entries is smaller than the %lld that are protected: "
                       "the first %lld and the last %d",
                       n_budget, (long long)(first + window), (long long)first, window);
    if (n_budget < first + window + r->overwrite)
        return pi_fail(err, PITH_INVALID,
                       "keep: a budget of %d entries leaves none to overwrite: the first %lld and "
                       "the last %d are protected",
                       n_budget, (long long)first, window);
    return PITH_OK;
}

/* A share of the tokens leaves at least as much room to entries that may go as to protected ones.
   With less it would drop all of a short text that is not protected. A part of the budget (recent)
   grows with it. */
static int64_t least_share(const struct keep_rules *r, int32_t n_pinned)
{
    return pi_max(2 * (count_first(r, n_pinned) + r->window), least_budget(r, n_pinned));
}

/* ---- how many ---- */

/* Of a mean budget, to the lane of a weight. The small number is for products like 3 * (1/3). */
static int32_t weigh(int32_t n_budget, double weight)
{
    return (int32_t)pi_min((int64_t)((double)n_budget * weight + 1e-6),
                           2 * (int64_t)KEEP_COUNT_MAX);
}

/* The lane's share of n entries per lane, where every lane has one of its own: so rounded that all
   shares together are all entries. */
static int32_t lane_part(const struct keep_config *c, int32_t layer, int32_t head, int32_t n)
{
    const double *sum = c->lane_sum + (size_t)layer * (size_t)c->n_head + (size_t)head;
    return (int32_t)((int64_t)(n * sum[1] + 1e-6) - (int64_t)(n * sum[0] + 1e-6));
}

static double weight_of(const struct keep_config *c, int32_t layer, int32_t head)
{
    if (c->split && c->n_head > 0) {
        const double *sum = c->lane_sum + (size_t)layer * (size_t)c->n_head + (size_t)head;
        return sum[1] - sum[0];
    }
    return c->split ? c->layer_weight[layer] * c->head_weight[head] : 1.0;
}

/* A budget in entries as a sequence's own. */
static int32_t scaled(int32_t n_budget, double scale)
{
    if (n_budget == 0 || scale == 0.0 || isinf(scale))
        return n_budget;
    return (int32_t)pi_max(1, pi_min(llround(n_budget * scale), KEEP_COUNT_MAX));
}

static int32_t weighed_budget(const struct keep_config *c, double weight, struct keep_point at)
{
    int32_t n_budget = scaled(c->n_budget, at.scale);
    if (isinf(at.scale))
        return KEEP_COUNT_MAX;
    if (n_budget > 0) {
        int32_t n_unsplit = (int32_t)pi_min(c->n_unsplit, n_budget);
        return n_unsplit + weigh(n_budget - n_unsplit, weight);
    }
    /* A share means that of the entries which the full cache would have. Of those that are live it
       would compound from round to round, down to slack * share / (1 - share) whatever the length.
       More than all tokens are not needed; so limited, it grows by at most one per token. */
    double slope = (double)c->rules.budget.value * 1000.0 * weight + 1e-3;
    slope *= at.scale > 0.0 ? at.scale : 1.0;
    int64_t billionths = slope < 1e9 ? (int64_t)slope : 1000000000;
    int64_t share = at.n_token * billionths / 1000000000;
    share += (int64_t)floor(c->n_unsplit * (1.0 - weight) + 1e-6);
    int32_t n_pinned = keep_pinned_prompt(&c->rules, at.n_prompt, at.scale);
    share = pi_max(share, least_share(&c->rules, n_pinned));
    return (int32_t)pi_max(pi_min(share, at.n_token), 1);
}

int32_t keep_lane_budget_at(const struct keep_config *c, int32_t layer, int32_t head,
                            struct keep_point at)
{
    if (c->split && c->n_head > 0 && c->n_budget > 0 && !isinf(at.scale)) {
        int32_t n_budget = scaled(c->n_budget, at.scale);
        int32_t n_unsplit = (int32_t)pi_min(c->n_unsplit, n_budget);
        return n_unsplit + lane_part(c, layer, head, n_budget - n_unsplit);
    }
    return weighed_budget(c, weight_of(c, layer, head), at);
}

int32_t keep_pinnable(const struct keep_config *c, const struct kv_geometry *g,
                      struct keep_point at)
{
    int64_t least = INT32_MAX;
    int32_t n_pinned = keep_pinned_prompt(&c->rules, at.n_prompt, at.scale);
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            least = pi_min(least, pinnable(&c->rules, keep_lane_budget_at(c, l, h, at), n_pinned));
    return (int32_t)least;
}

int32_t keep_own_budget(const struct keep_config *c, struct keep_point at)
{
    at.n_prompt = 0;
    return weighed_budget(c, 1.0, at);
}

int32_t keep_budget_at(const struct keep_config *c, int32_t n_token)
{
    return keep_own_budget(c, (struct keep_point){.n_token = n_token});
}

/* The most entries that a lane of a budget ever holds. Where rounds wait for a multiple of `batch`
   tokens, as many as that can follow a moment at which it was just not due. */
static int64_t most_of(const struct keep_config *c, int64_t n_budget, int32_t n_token)
{
    return pi_min(n_token, n_budget + c->rules.slack + c->rules.batch);
}

int32_t keep_most_at(const struct keep_config *c, int32_t n_token)
{
    if (c->policy == NULL || c->rules.rounds == KEEP_PROMPT_END)
        return n_token;
    return (int32_t)most_of(c, keep_budget_at(c, n_token), n_token);
}

bool keep_config_places(const struct keep_config *c)
{
    return c->policy != NULL && c->policy->needs != NULL &&
           (c->policy->needs(&c->params) & KEEP_NEED_PLACES) != 0;
}

/* The entries that fill the pages which such a lane ever holds. The first entries have pages of
   their own once a round came, which is a page more. */
static int64_t filled_by(const struct keep_config *c, const struct kv_geometry *g, int64_t n_budget,
                         int32_t n_token)
{
    bool apart = keep_config_places(c) && n_token >= n_budget + c->rules.slack;
    return most_of(c, n_budget, n_token) + (apart ? g->page_len : 0);
}

int32_t keep_longest_at(const struct keep_config *c, const struct kv_geometry *g, int32_t n_token)
{
    struct keep_point at = {.n_token = n_token};
    int64_t most = 0, n_lane = keep_config_is_global(c)
                                   ? (int64_t)g->n_layer * g->n_head + c->n_elsewhere
                               : keep_config_allots(c) ? g->n_head
                                                       : 1;
    if (c->policy == NULL || c->rules.rounds == KEEP_PROMPT_END)
        return n_token;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            most = pi_max(most, filled_by(c, g, keep_lane_budget_at(c, l, h, at), n_token));
    return (int32_t)pi_min(n_token, n_lane * most);
}

int64_t keep_together_at(const struct keep_config *c, const struct kv_geometry *g, int32_t n_token)
{
    int64_t n_lane = (int64_t)g->n_layer * g->n_head;
    if (!keep_config_is_global(c))
        return n_lane * keep_longest_at(c, g, n_token);
    return pi_min((n_lane + c->n_elsewhere) * keep_most_at(c, n_token), n_lane * n_token);
}

/* Pages of a layer whose lanes share its budget: equally long until its first round. */
static int64_t allotted_pages(const struct keep_config *c, const struct kv_geometry *g,
                              int32_t layer, struct keep_point to)
{
    int32_t budget = keep_lane_budget_at(c, layer, 0, to);
    int64_t n = most_of(c, budget, to.n_token);
    if (to.n_token < (int64_t)budget + c->rules.slack)
        return g->n_head * pi_ceil_div(n, g->page_len);
    return keep_allot_pages(g, g->n_head, n * g->n_head, 0);
}

/* Bytes where all lanes share a budget: equally long until the first round, and then of any
   lengths, those with the largest pages the longest. */
static int64_t global_bytes(const struct keep_config *c, const struct kv_geometry *g,
                            struct keep_point to)
{
    int32_t budget = weighed_budget(c, 1.0, to), n_lane = g->n_layer * g->n_head;
    int64_t n = most_of(c, budget, to.n_token);
    if (to.n_token < (int64_t)budget + c->rules.slack)
        return kv_bytes_for_tokens(g, n);
    int64_t n_entry = pi_min(n * (n_lane + c->n_elsewhere), (int64_t)to.n_token * n_lane);
    int64_t n_page = keep_allot_pages(g, n_lane, n_entry, 0);
    return pi_min(n_page * (int64_t)kv_page_bytes(g), kv_bytes_for_tokens(g, to.n_token));
}

/* Bytes of pages where rounds come as soon as they are due. */
static int64_t streamed_bytes(const struct keep_config *c, const struct kv_geometry *g,
                              struct keep_point to)
{
    int64_t bytes = 0;
    if (keep_config_is_global(c))
        return global_bytes(c, g, to);
    if (!c->split && !keep_config_allots(c))
        return kv_bytes_for_tokens(g, filled_by(c, g, weighed_budget(c, 1.0, to), to.n_token));
    for (int32_t l = 0; l < g->n_layer; l++) {
        int64_t n_page = keep_config_allots(c) ? allotted_pages(c, g, l, to) : 0;
        for (int32_t h = 0; !keep_config_allots(c) && h < g->n_head; h++) {
            int32_t budget = keep_lane_budget_at(c, l, h, to);
            n_page += (filled_by(c, g, budget, to.n_token) + g->page_len - 1) / g->page_len;
        }
        bytes += n_page * (int64_t)kv_layer_page_bytes(g, l);
    }
    return bytes;
}

/* A fork copies its last page. */
int64_t keep_repeat_bytes(const struct kv_geometry *g, int64_t n_token)
{
    int64_t n = pi_min(n_token, KEEP_REPEAT_PART) + KEEP_REPEAT_AROUND;
    return kv_bytes_for_tokens(g, n + g->page_len) + kv_bytes_of_state(g);
}

int64_t keep_bytes_to(const struct keep_config *c, const struct kv_geometry *g,
                      struct keep_point to)
{
    if (c->policy == NULL)
        return kv_bytes_for_tokens(g, to.n_token);
    int64_t bytes = streamed_bytes(c, g, to);
    if (c->rules.rounds != KEEP_PROMPT_END)
        return bytes;
    int64_t whole = to.n_prompt > 0 ? pi_min(to.n_prompt, to.n_token) : to.n_token;
    whole += keep_config_places(c) ? g->page_len : 0;
    int64_t peak = kv_bytes_for_tokens(g, whole);
    if (c->policy->needs != NULL && (c->policy->needs(&c->params) & KEEP_NEED_REPEAT) != 0)
        peak += keep_repeat_bytes(g, whole);
    return pi_max(bytes, peak);
}

int64_t keep_bytes_at(const struct keep_config *c, const struct kv_geometry *g, int32_t n_token)
{
    return keep_bytes_to(c, g, (struct keep_point){.n_token = n_token});
}

/* A lane that is overwritten is longer for as long as its prompt is read. */
void keep_expect(const struct keep_config *c, const struct kv_geometry *g, double scale,
                 struct kv_seq *kv)
{
    bool known = c->n_budget > 0 && !keep_config_is_global(c);
    for (int32_t l = 0; known && l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            int32_t n = keep_lane_budget_at(c, l, h, (struct keep_point){.scale = scale});
            int64_t most = c->rules.overwrite ? n : filled_by(c, g, n, INT32_MAX);
            kv_lane_expect(kv, l, h, isinf(scale) ? 0 : most); /* 0: not known */
        }
}

/* ---- fitting ---- */

/* Shares by score and shares that were set exclude each other. */
static pith_status check_global(const struct keep_rules *r, pith_error *err)
{
    const char *keys[] = {"layers", "heads", "split"}, *values[] = {r->layers, r->heads, r->split};
    for (size_t i = 0; r->granularity == KEEP_GLOBAL && i < PI_LEN(keys); i++)
        if (strcmp(values[i], "even") != 0)
            return pi_fail(err, PITH_INVALID,
                           "keep: %s: %.64s: with granularity global all lanes share the budget by "
                           "score",
                           keys[i], values[i]);
    return PITH_OK;
}

/* A share of its own for every lane. */
static pith_status check_split(const struct keep_rules *r, pith_error *err)
{
    double retention;
    if (strcmp(r->split, "even") == 0)
        return PITH_OK;
    PI_TRY(keep_split_retention(r, &retention, err));
    if (r->granularity != KEEP_LAYER_HEAD)
        return pi_fail(err, PITH_INVALID,
                       "keep: split: %.64s: lanes that keep the same positions, as with "
                       "granularity %s, have no shares of their own (layer-head)",
                       r->split, granularity_words[r->granularity]);
    if (strcmp(r->layers, "even") != 0 || strcmp(r->heads, "even") != 0)
        return pi_fail(err, PITH_INVALID,
                       "keep: split: %.64s: every lane has a share already, so that layers and "
                       "heads have none",
                       r->split);
    if (r->stats[0] == '\0')
        return pi_fail(err, PITH_INVALID,
                       "keep: split: %.64s: shares come from importance in statistics: "
                       "`pith calibrate importance` writes them, and stats=FILE reads them",
                       r->split);
    return PITH_OK;
}

pith_status keep_rules_agree(const struct keep_rules *r, pith_error *err)
{
    PI_TRY(check_global(r, err));
    PI_TRY(check_split(r, err));
    bool apart = r->granularity == KEEP_LAYER_HEAD || r->granularity == KEEP_GLOBAL;
    bool layers = r->granularity == KEEP_LAYER || apart;
    bool heads = r->granularity == KEEP_HEAD || apart;
    if (!layers && strcmp(r->layers, "even") != 0)
        return pi_fail(err, PITH_INVALID,
                       "keep: layers: %.64s: with granularity %s every layer keeps the same "
                       "positions, so that their budgets are equal",
                       r->layers, granularity_words[r->granularity]);
    if (!heads && strcmp(r->heads, "even") != 0)
        return pi_fail(err, PITH_INVALID,
                       "keep: heads: %.64s: with granularity %s every KV head keeps the same "
                       "positions, so that their budgets are equal",
                       r->heads, granularity_words[r->granularity]);
    return PITH_OK;
}

/* A lane's victim is known when its attention is done, or that of its layer: not before other
   layers have read theirs. */
pith_status keep_overwrite_check(const struct keep_config *c, pith_error *err)
{
    const struct keep_rules *r = &c->rules;
    if (!r->overwrite)
        return PITH_OK;
    if (!keep_policy_steps(c->policy))
        return pi_fail(err, PITH_INVALID,
                       "keep: overwrite: on: %s has no score for single steps, only for rounds",
                       c->policy->name);
    if (r->granularity == KEEP_GLOBAL)
        return pi_fail(
            err, PITH_INVALID,
            "keep: overwrite: on: lanes that share one budget by score are never full by "
            "themselves (overwrite=off, or split=calibrated with layer-head)");
    if (r->granularity != KEEP_LAYER && r->granularity != KEEP_LAYER_HEAD)
        return pi_fail(
            err, PITH_INVALID,
            "keep: overwrite: on: an entry is overwritten in one layer at a time, so with "
            "granularity %s layers cannot keep the same positions (layer, layer-head)",
            granularity_words[r->granularity]);
    if (r->batch > 0)
        return pi_fail(err, PITH_INVALID,
                       "keep: batch: %d: rounds that wait leave no place for what overwrites",
                       r->batch);
    if (keep_config_places(c))
        return pi_fail(err, PITH_INVALID,
                       "keep: overwrite: on: %s reads entries elsewhere than they were written, "
                       "which are not overwritten",
                       c->policy->name);
    return PITH_OK;
}

pith_status keep_config_check(const struct keep_config *c, int32_t n_budget, pith_error *err)
{
    PI_TRY(keep_rules_check(&c->rules, n_budget, 0, err));
    return c->policy->check == NULL ? PITH_OK
                                    : c->policy->check(&c->params, &c->rules, n_budget, err);
}

/* Where layers have pages of several sizes, more entries than an even split holds can lie in the
   small ones. That is at most as many as the smallest would hold. 0 where all are alike. */
static int64_t most_of_cheap(const struct kv_geometry *g, int64_t bytes)
{
    int64_t page = (int64_t)kv_page_bytes(g), n_lane = (int64_t)g->n_layer * g->n_head;
    int64_t least = page;
    for (int32_t l = 0; l < g->n_layer; l++)
        least = pi_min(least, (int64_t)kv_layer_page_bytes(g, l));
    return least < page ? pi_min(bytes / least * g->page_len / n_lane + 1, KEEP_COUNT_MAX) : 0;
}

/* Bytes of pages are full where every lane holds all that it ever does, so that the size is kept
   between rounds, too. An even split is exact; of another the largest budget that fits is found. */
static pith_status fit_bytes(struct keep_config *c, const struct kv_geometry *g, pith_error *err)
{
    int64_t n_lane = (int64_t)g->n_layer * g->n_head, bytes = c->rules.budget.value;
    int64_t over = (int64_t)c->rules.slack + c->rules.batch;
    int64_t n_page = bytes / kv_bytes_for_tokens(g, 1) - keep_config_places(c);
    int64_t n = pi_max(0, pi_min(n_page, KEEP_COUNT_MAX / g->page_len)) * g->page_len;
    if (n <= over)
        return pi_fail(err, PITH_INVALID,
                       "keep: a budget of %lld bytes holds %lld entries in each of %lld lanes, not "
                       "more than the slack of %lld",
                       (long long)bytes, (long long)n, (long long)n_lane, (long long)over);
    int64_t low = 1, high = n - over;
    c->n_budget = (int32_t)high;
    if (c->split || keep_config_allots(c))
        high = pi_max(high, most_of_cheap(g, bytes));
    while ((c->split || keep_config_allots(c)) && low < high) {
        c->n_budget = (int32_t)(low + (high - low + 1) / 2);
        if (streamed_bytes(c, g, (struct keep_point){.n_token = INT32_MAX}) <= bytes)
            low = c->n_budget;
        else
            high = c->n_budget - 1;
        c->n_budget = (int32_t)low;
    }
    return PITH_OK;
}

static pith_status read_split(struct keep_config *c, const struct kv_geometry *g, pith_error *err)
{
    if (g->n_layer > KEEP_SPLIT_MAX || g->n_head > KEEP_SPLIT_MAX) {
        if (strcmp(c->rules.layers, "even") == 0 && strcmp(c->rules.heads, "even") == 0)
            return PITH_OK;
        return pi_fail(err, PITH_INVALID,
                       "keep: a budget cannot be split over %d layers of %d KV heads: at most %d",
                       g->n_layer, g->n_head, KEEP_SPLIT_MAX);
    }
    PI_TRY(keep_split_read("layers", c->rules.layers, g->n_layer, c->layer_weight, err));
    PI_TRY(keep_split_read("heads", c->rules.heads, g->n_head, c->head_weight, err));
    if (strncmp(c->rules.layers, "pyramidkv:", 10) == 0 ||
        strncmp(c->rules.heads, "pyramidkv:", 10) == 0)
        c->n_unsplit = c->rules.window;
    for (int32_t l = 0; l < g->n_layer; l++)
        c->split = c->split || c->layer_weight[l] != 1.0;
    for (int32_t h = 0; h < g->n_head; h++)
        c->split = c->split || c->head_weight[h] != 1.0;
    return PITH_OK;
}

void keep_config_limit_pins(struct keep_config *c, const struct kv_geometry *g)
{
    int64_t least = c->n_budget > 0 ? c->n_budget : INT32_MAX;
    for (int32_t l = 0; g != NULL && c->n_budget > 0 && c->split && l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            least = pi_min(least, keep_lane_budget_at(c, l, h, (struct keep_point){0}));
    c->rules.pin_least = c->n_budget > 0 ? (int32_t)least : 0;
}

/* Every lane must hold what is protected, and something. A share is never less. */
static pith_status check_lanes(const struct keep_config *c, const struct kv_geometry *g,
                               double scale, pith_error *err)
{
    for (int32_t l = 0; c->n_budget > 0 && l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            int32_t n = keep_lane_budget_at(c, l, h, (struct keep_point){.scale = scale});
            if (n < 1)
                return pi_fail(err, PITH_INVALID,
                               "keep: layer %d, KV head %d: its part of a budget of %d entries is "
                               "less than one",
                               l, h, scaled(c->n_budget, scale));
            PI_TRY(keep_config_check(c, n, err));
            if (!c->split)
                return PITH_OK;
        }
    return PITH_OK;
}

pith_status keep_config_fit(struct keep_config *c, const struct kv_geometry *g, pith_error *err)
{
    if (c->policy == NULL)
        return PITH_OK;
    c->split = false;
    c->n_unsplit = 0;
    c->n_head = 0;
    PI_TRY(read_split(c, g, err));
    if (strcmp(c->rules.split, "even") != 0)
        PI_TRY(keep_split_calibrated(c, g, err));
    if (c->rules.budget.unit == POLICY_UNIT_BYTES)
        PI_TRY(fit_bytes(c, g, err));
    keep_config_limit_pins(c, g);
    return check_lanes(c, g, 0.0, err);
}

/* ---- a sequence's own budget ---- */

pith_status keep_read_scale(const struct keep_config *c, const struct policy_budget *whole,
                            const struct kv_geometry *g, const char *text, double *scale,
                            pith_error *err)
{
    static const char *const units[] = {"a number of entries", "a share of the tokens", "bytes"};
    static const struct policy_param params[] = {
        {"budget", POLICY_TYPE_BUDGET, 0, 1, KEEP_COUNT_MAX, "1024", "", NULL},
        {.key = NULL},
    };
    struct policy_budget own;
    struct policy_options options = {"pith", "keep", params, &own, .defaults = NULL};
    char words[64];
    *scale = INFINITY;
    if (strcmp(text, "none") == 0)
        return PITH_OK;
    if (c->policy == NULL)
        return pi_fail(err, PITH_INVALID,
                       "budget: %.32s: the engine has no keep policy, which evicts (none)", text);
    snprintf(words, sizeof(words), "budget=%.48s", text);
    PI_TRY(policy_options_read(&options, words, err));
    if (whole->unit == POLICY_UNIT_BYTES)
        return pi_fail(err, PITH_INVALID,
                       "budget: %.32s: the engine's budget is a size, which is that of all "
                       "sequences (none)",
                       text);
    if (own.unit != whole->unit)
        return pi_fail(err, PITH_INVALID, "budget: %.32s is not %s, as the engine's is, nor none",
                       text, units[whole->unit]);
    *scale = (double)own.value / (double)whole->value;
    return check_lanes(c, g, *scale, err);
}
