/*
 * keep.h - which entries stay. A policy has an opinion, one number per live entry; the rules, the
 * same for every policy (budget.c), say how many entries go, when, and which never do. Only kv/
 * changes the cache.
 *
 * A new policy is one file with one const struct keep_policy and one line in policies.c.
 */
#ifndef PI_KEEP_H
#define PI_KEEP_H

#include "kv/kv.h"

/* ---- what a policy sees ---- */

/* A sequence at the moment of a round. Everything in it is read-only but the state. */
struct keep_view {
    const struct kv_seq *kv;
    const int32_t *tokens; /* [n_token] */
    int32_t n_token;       /* the next token gets this position */
    void *state;           /* [state_size] the sequence's block; NULL where the policy has none */
};

/* The live entries of one lane. */
struct keep_lane {
    int32_t layer;
    int32_t head;       /* KV head */
    int32_t n;          /* entries; slots 0 .. n - 1, the older before the younger */
    const int32_t *pos; /* [n] */
};

/* ---- policies ---- */

enum keep_type {
    KEEP_TYPE_COUNT,  /* int32_t: "128" */
    KEEP_TYPE_BUDGET, /* struct keep_budget: "2048", "50%", "64MiB" */
};

/* One option key. */
struct keep_param {
    const char *key; /* NULL ends a table */
    enum keep_type type;
    size_t offset; /* of the field in struct keep_rules, or in the policy's own struct */
    int32_t min;   /* COUNT, and BUDGET in tokens: min <= value <= max */
    int32_t max;
    const char *fallback; /* the value when the option is not given, as text */
    const char *help;
};

struct keep_policy {
    const char *name;
    const char *summary;  /* one line */
    const char *citation; /* authors, title, where; "" for none */
    const char *defaults; /* options that are read before the user's, "sinks=4"; NULL: none */
    const struct keep_param *params; /* keys of its own; NULL: none */
    size_t params_size;              /* of the struct that they fill; at most KEEP_PARAMS_SIZE */
    /* Bytes of state of one sequence: flat, without pointers, zero in a new sequence, copied by a
       fork. NULL: none. */
    size_t (*state_size)(const void *params, const struct kv_geometry *g);
    /* out[i], [lane->n]: how much entry i deserves to stay, higher = keep; never NaN. Pure: the
       same view gives the same numbers. */
    void (*score)(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out);
};

extern const struct keep_policy keep_streaming;

/* Policy i of those that Pith has; NULL past the last. */
const struct keep_policy *keep_policy_at(int32_t i);

/* ---- options ---- */

#define KEEP_PARAMS_SIZE 256
#define KEEP_COUNT_MAX (1 << 29) /* of one rule: sums of several stay within int32_t */

enum keep_unit { KEEP_UNIT_TOKENS, KEEP_UNIT_SHARE, KEEP_UNIT_BYTES };

struct keep_budget {
    enum keep_unit unit;
    int64_t value; /* entries per lane; millionths of the tokens; bytes of the whole sequence */
};

/* The options that every policy has; budget.c says what each does. */
struct keep_rules {
    struct keep_budget budget;
    int32_t slack;
    int32_t prefix;
    int32_t sinks;
    int32_t window;
};

extern const struct keep_param keep_rule_params[];

/* Options as checked values. A plain value: copying it is allowed. */
struct keep_config {
    const struct keep_policy *policy; /* NULL: the full cache */
    struct keep_rules rules;
    int32_t n_budget; /* entries per lane; 0: a share of the tokens, or bytes that are not fitted */
    union {
        max_align_t align;
        uint8_t bytes[KEEP_PARAMS_SIZE];
    } params; /* the policy's own */
};

/* "NAME" or "NAME:key=value,..."; NULL and "none" are the full cache. INVALID with a sentence that
   lists what there is: an unknown policy or key, a value that cannot be read or is out of range, a
   budget in tokens that is smaller than what is protected. */
pith_status keep_config_parse(const char *text, struct keep_config *out, pith_error *err);

/* The same for a policy that is given and options without its name; NULL or "": all defaults. */
pith_status keep_config_set(const struct keep_policy *policy, const char *options,
                            struct keep_config *out, pith_error *err);

/* What a budget in bytes means for lanes of this shape. INVALID, with the numbers, for bytes that
   hold no more than the slack, or less than what is protected. */
pith_status keep_config_fit(struct keep_config *config, const struct kv_geometry *g,
                            pith_error *err);

/* Whether a budget of n_budget entries holds what is protected; INVALID, with the numbers. */
pith_status keep_rules_check(const struct keep_rules *rules, int32_t n_budget, pith_error *err);

/* The value that a parameter has when the policy's options are empty, as text. */
void keep_param_fallback(const struct keep_policy *policy, const struct keep_param *param,
                         char *out, size_t cap);

/* ---- rules ---- */

/* Entries per lane that a round leaves in a sequence of n_token tokens. */
int32_t keep_budget_at(const struct keep_config *config, int32_t n_token);

/* The most entries that a lane ever holds while its sequence grows to n_token tokens. */
int32_t keep_most_at(const struct keep_config *config, int32_t n_token);

/* What rounds did to a sequence. */
struct keep_tally {
    int64_t n_round;
    int64_t n_evicted;   /* entries, over all lanes */
    int64_t bytes_freed; /* of pages that rounds gave back, less the copies that they took */
    int32_t first_at;    /* tokens in the sequence at the first round; valid when n_round > 0 */
    double seconds;      /* spent in rounds */
};

/* The policy of an engine, with the scratch of a round. One thread at a time uses it. */
struct keep;

/* *out is NULL for the full cache. config was fitted to the geometry of the cache. NOMEM. */
pith_status keep_create(const struct keep_config *config, const struct kv_geometry *g,
                        struct keep **out, pith_error *err);
void keep_free(struct keep *keep); /* NULL is ignored */
const struct keep_config *keep_get_config(const struct keep *keep);
/* Bytes of the block that each sequence has for the policy; 0: none. */
size_t keep_state_size(const struct keep *keep);

/* How many of the next `most` tokens can be appended to a sequence of n_token tokens until a round
   is due: 0 when one is due now. It depends on the tokens' number and the lanes' lengths alone, so
   a sequence has its rounds at the same tokens however its evaluation is cut. */
int32_t keep_room(const struct keep *keep, const struct kv_seq *kv, int32_t n_token, int32_t most);

/* Makes sure that n more tokens with all their rounds need no memory but pages: page tables, and
   the scratch of a round. NOMEM, CONTEXT leave what was. */
pith_status keep_prepare(struct keep *keep, struct kv_seq *kv, int32_t n_token, int32_t n,
                         pith_error *err);

/* Pages that must be free, beyond those that the lanes hold and have reserved, so that n more
   tokens with all their rounds can be appended, whatever the policy chooses. It charges the pages
   that the sequence shares (kv_seq_charge_copies): the counts of several sequences add up, and
   kv_seq_clear_charges ends them. */
int64_t keep_lacks(const struct keep *keep, struct kv_seq *kv, int32_t n_token, int32_t n);

/* One round: brings every lane that holds more than its budget to the budget and gives whole pages
   back. What keep_lacks asked for is free, so that it succeeds. Adds to *tally. */
pith_status keep_round(struct keep *keep, struct kv_seq *kv, const struct keep_view *view,
                       struct keep_tally *tally, pith_error *err);

#endif
