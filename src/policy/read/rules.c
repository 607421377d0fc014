/*
 * rules.c - the rules of every read policy as numbers: the table of their options, their
 * contradictions, and how many entries are read. Also how tokens are cut into chunks. Pure
 * functions of the options; which entries are read is choose.c's.
 */
#include <math.h>

#include "policy/read/reading.h"

#define COUNT_MAX (1 << 29) /* of one rule: sums of several stay within int32_t */
#define CHUNK_MAX 8192      /* the most tokens of a pass */

/* Lengths, in budgets, at which choosing begins to pay. A chunk of many tokens gains from the first
   entries that it leaves out. A single token looks at every key to choose, and then at scattered
   entries, where reading all is a stream. With 8 KV heads of 128 in f16 and a budget of 1024 both
   take the same time at 4 to 12 times the budget. That depends on the index and on where the lanes
   lie (bench/bench_read.c, decode; docs/read.md). */
#define CHUNK_GATE 1.25
#define STEP_GATE 6.0

static const char *const phase_words[] = {
    [READ_BOTH] = "both",
    [READ_PROMPT] = "prompt",
    [READ_DECODE] = "decode",
    NULL,
};

#define AT(member) .offset = offsetof(struct read_rules, member)
const struct policy_param read_rule_params[] = {
    {"budget", POLICY_TYPE_BUDGET, AT(budget), 1, COUNT_MAX, "1024",
     "entries of a lane that a chunk reads beside its own: a number (512), or a share of the "
     "earlier entries (25%)",
     NULL},
    {"chunk", POLICY_TYPE_COUNT, AT(chunk), 1, CHUNK_MAX, "128",
     "most tokens of a prompt that choose together", NULL},
    {"sinks", POLICY_TYPE_COUNT, AT(sinks), 0, COUNT_MAX, "0",
     "this many of a lane's first entries are always read; they count", NULL},
    {"recent", POLICY_TYPE_COUNT, AT(recent), 0, COUNT_MAX, "0",
     "this many of a lane's last entries before the chunk's own are always read; they count", NULL},
    {"tail", POLICY_TYPE_COUNT, AT(tail), 0, COUNT_MAX, "0",
     "this many last tokens of a prompt read everything", NULL},
    {"dense-layers", POLICY_TYPE_COUNT, AT(dense_layers), 0, COUNT_MAX, "0",
     "this many first layers read everything", NULL},
    {"gate", POLICY_TYPE_REAL, AT(gate), 0, 1000000000, "0",
     "a lane of up to this many times the budget is read whole, at least 1; 0: 1.25, and 6 by a "
     "single token",
     NULL},
    {"phase", POLICY_TYPE_CHOICE, AT(phase), 0, 0, "both",
     "which tokens read a part: prompt (evaluations of several tokens), decode (of one), or both",
     phase_words},
    {0},
};
#undef AT

pith_status read_rules_check(const struct read_rules *r, pith_error *err)
{
    int64_t always = (int64_t)r->sinks + r->recent;
    if (r->budget.unit == POLICY_UNIT_BYTES)
        return pi_fail(err, PITH_INVALID,
                       "read: budget: %lld bytes: reading stores and frees nothing, so a budget is "
                       "a number of entries (1024) or a share of them (25%%)",
                       (long long)r->budget.value);
    if (r->budget.unit == POLICY_UNIT_TOKENS && r->budget.value < always)
        return pi_fail(err, PITH_INVALID,
                       "read: a budget of %lld entries is smaller than the %lld that are always "
                       "read: the first %d and the last %d",
                       (long long)r->budget.value, (long long)always, r->sinks, r->recent);
    if (r->gate > 0.0 && r->gate < 1.0)
        return pi_fail(err, PITH_INVALID,
                       "read: gate: %g: up to less than the budget there is nothing to choose (at "
                       "least 1, or 0)",
                       r->gate);
    return PITH_OK;
}

static double gate_of(const struct read_rules *r, int32_t n_tok)
{
    if (r->gate > 0.0)
        return r->gate;
    return n_tok == 1 ? STEP_GATE : CHUNK_GATE;
}

int32_t read_budget_for(const struct read_rules *r, int32_t n, int32_t n_tok)
{
    int64_t budget = r->budget.value;
    if (r->budget.unit == POLICY_UNIT_SHARE)
        budget = pi_max(1, n * r->budget.value / 1000000);
    budget = pi_max(budget, (int64_t)r->sinks + r->recent);
    return n <= gate_of(r, n_tok) * (double)budget ? n : (int32_t)budget;
}

int32_t read_budget_at(const struct read_rules *r, int32_t n)
{
    return read_budget_for(r, n, 2);
}

int32_t read_whole_up_to(const struct read_rules *r)
{
    int64_t budget = r->budget.value;
    if (r->budget.unit == POLICY_UNIT_SHARE)
        budget = 1; /* the least that a share is; beyond it a longer lane may be read in part */
    double n = gate_of(r, 2) * (double)pi_max(budget, (int64_t)r->sinks + r->recent);
    return n < INT32_MAX ? (int32_t)n : INT32_MAX;
}

int64_t read_step_gate(const struct read_rules *r)
{
    double always = (double)r->sinks + r->recent, budget = (double)r->budget.value;
    if (r->phase == READ_PROMPT)
        return -1;
    if (r->budget.unit == POLICY_UNIT_TOKENS)
        return (int64_t)(gate_of(r, 1) * budget);
    return gate_of(r, 1) * budget >= 1e6 ? -1 : (int64_t)(gate_of(r, 1) * fmax(1.0, always));
}

/* ---- chunks ---- */

int32_t read_chunk_of(const struct read_rules *r)
{
    return r->phase == READ_DECODE ? 1 : r->chunk;
}

int32_t read_tokens_of(const struct read_rules *r, int32_t n_token)
{
    if (n_token == 1)
        return r->phase != READ_PROMPT;
    return r->phase == READ_DECODE ? 0 : (int32_t)pi_max(0, (int64_t)n_token - r->tail);
}

int32_t read_take_of(const struct read_rules *r, int32_t most, int32_t left, int32_t left_read,
                     int32_t until)
{
    int32_t chunk = read_chunk_of(r), take = 0;
    int32_t stop = (int32_t)pi_min(left_read, until); /* the last chunk ends here */
    while (take < stop) {
        int32_t n = (int32_t)pi_min(chunk, stop - take);
        if (n > most - take)
            return take;
        take += n;
    }
    return (int32_t)pi_min(most, pi_min(left, until));
}
