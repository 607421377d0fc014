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
#include "model/forward.h"

/* ---- what a policy sees ---- */

/* The shape that a policy works on. Read-only, borrowed until the engine is freed. */
struct keep_model {
    struct kv_geometry g; /* layers, KV heads, head sizes, page length, storage types */
    int32_t n_group;      /* query heads that share a KV head: h * n_group .. (h + 1) * n_group - 1
                             read KV head h */
    float scale;          /* multiplies q.k */
    const struct pi_rope
        *rope; /* frequencies with the model's scaling, pairing, 2 * n_pair rotated
                  dimensions; NULL where keys were not rotated or nobody knows how */
    const struct pith_model *model; /* for a fingerprint; NULL where there are only tensors */
};

/* A sequence at the moment of a round. Everything in it is read-only but the state. */
struct keep_view {
    const struct kv_seq *kv;
    const int32_t *tokens; /* [n_token] */
    int32_t n_token;       /* the next token gets this position */
    int32_t n_prompt;      /* the first positions, marked as the prompt; 0: nothing is */
    void *state;           /* [state_size] the sequence's block; NULL where the policy has none */
    const struct keep_model *model;
    const void *data; /* what the policy's open made; NULL without */
};

/* The live entries of one lane. A policy that compares entries with each other (a z-score) takes
   the evictable ones: the others stay whatever they score. Keys and values: keep_run. */
struct keep_lane {
    int32_t layer;
    int32_t head;          /* KV head */
    int32_t n;             /* entries; slots 0 .. n - 1, the older before the younger */
    const int32_t *pos;    /* [n] */
    const bool *evictable; /* [n] */
    int32_t n_evictable;   /* how many of them are; at least 1 */
    void *scratch; /* [scratch_size] of this call alone, aligned for any type, contents arbitrary */
};

/* Stored entries next to each other: those of one page. A lane is its runs, one after the other. */
struct keep_run {
    int32_t slot; /* of the first */
    int32_t n;    /* entries, at most page_len */
};

/* Run i of a lane, 0 <= i < kv_lane_runs(view->kv, lane->layer, lane->head). */
struct keep_run keep_run_at(const struct keep_view *view, const struct keep_lane *lane, int32_t i);

/* The keys of run i as attention sees them, from any storage type, decoded to f32 with entries side
   by side: key[d * page_len + j] is dimension d of entry slot + j. key holds dim_k * page_len
   floats; columns from n on are finite. Keys of a page that is read at other positions than it was
   written at are rotated there. */
void keep_run_keys(const struct keep_view *view, const struct keep_lane *lane, int32_t i,
                   float *key);

/* The values of run i, value[j * dim_v + d]; value holds dim_v * page_len floats, of which n rows
   are written. */
void keep_run_values(const struct keep_view *view, const struct keep_lane *lane, int32_t i,
                     float *value);

/* ---- policies ---- */

enum keep_type {
    KEEP_TYPE_COUNT,  /* int32_t: "128" */
    KEEP_TYPE_BUDGET, /* struct keep_budget: "2048", "50%", "64MiB" */
    KEEP_TYPE_REAL,   /* double: "0.5"; min and max are in thousandths */
    KEEP_TYPE_CHOICE, /* int32_t: the index of one of `words` */
    KEEP_TYPE_TEXT,   /* char[KEEP_TEXT_SIZE], terminated: a file's name; no comma */
};

#define KEEP_TEXT_SIZE 256

/* One option key. */
struct keep_param {
    const char *key; /* NULL ends a table */
    enum keep_type type;
    size_t offset; /* of the field in struct keep_rules, or in the policy's own struct */
    int32_t min;   /* COUNT, REAL, and BUDGET in tokens: min <= value <= max */
    int32_t max;
    const char *fallback; /* the value when the option is not given, as text */
    const char *help;
    const char *const *words; /* CHOICE: NULL-terminated */
};

/* Options under a name, read after the defaults and before what the user says: NAME:PRESET,... */
struct keep_preset {
    const char *name; /* NULL ends a table */
    const char *options;
    const char *help;
};

/* What a policy wants to be shown, as bits. */
enum keep_need {
    KEEP_NEED_ROWS = 1 << 0,   /* observe: what each layer computed for the tokens of a pass */
    KEEP_NEED_PLACES = 1 << 1, /* distances are those of places within the lane: entries that always
                                  stay because they are the first are read as if they stood right
                                  before the oldest of the others */
};

/* NULL is for "does not apply", but score is always there. params is the policy's own struct. */
struct keep_policy {
    const char *name;
    const char *summary;  /* one line */
    const char *citation; /* authors, title, where; "" for none */
    const char *defaults; /* options that are read before the user's, "sinks=4"; NULL: none */
    const struct keep_param *params;   /* keys of its own; NULL: none */
    size_t params_size;                /* of the struct that they fill; at most KEEP_PARAMS_SIZE */
    const struct keep_preset *presets; /* NULL: none */
    /* Loads what all sequences of an engine read (statistics), once. *data is the policy's, freed
       by close; on failure there is nothing to close. Any status, with a sentence. */
    pith_status (*open)(const void *params, const struct keep_model *model, void **data,
                        pith_error *err);
    void (*close)(void *data);
    /* A set of keep_need. */
    uint32_t (*needs)(const void *params);
    /* Bytes of state of one sequence: flat, without pointers, zero in a new sequence, copied by a
       fork, as before where an evaluation fails. A policy with state makes a sequence start anew
       where one without would go on from a shorter prefix (pith_seq_sync), and cannot be saved. */
    size_t (*state_size)(const void *params, const struct keep_model *model, const void *data);
    /* Bytes of scratch for a score over n entries; it does not fall with n. */
    size_t (*scratch_size)(const void *params, const struct keep_model *model, const void *data,
                           int32_t n);
    /* With KEEP_NEED_ROWS: called for every layer of every pass, layers in order, each token once,
       before its entries are stored. view->n_token is the position of the first row. What it adds
       to view->state must not depend on how tokens are cut into passes: add token by token. */
    void (*observe)(const void *params, const struct keep_view *view,
                    const struct pi_pass_tap_rows *rows);
    /* Called once before the scores of a round; may change view->state. */
    void (*begin)(const void *params, const struct keep_view *view);
    /* Whether nothing is known of a layer (statistics without it), asked after begin; NULL: never.
       Its lanes are not scored and have no say where several keep the same positions; where nobody
       has one the oldest go. */
    bool (*silent)(const void *params, const struct keep_view *view, int32_t layer);
    /* out[i], [lane->n]: how much entry i deserves to stay, higher = keep; never NaN. Pure: the
       same view gives the same numbers. Lanes are scored at the same time by several threads, so
       that it writes to out and lane->scratch alone. */
    void (*score)(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out);
};

extern const struct keep_policy keep_streaming;
extern const struct keep_policy keep_random;
extern const struct keep_policy keep_knorm;
extern const struct keep_policy keep_keydiff;
extern const struct keep_policy keep_vnorm;
extern const struct keep_policy keep_triattention;

/* Policy i of those that Pith has; NULL past the last. */
const struct keep_policy *keep_policy_at(int32_t i);

/* ---- options ---- */

#define KEEP_PARAMS_SIZE 1024
#define KEEP_COUNT_MAX (1 << 29) /* of one rule: sums of several stay within int32_t */
#define KEEP_SPLIT_MAX 256       /* layers, or heads, that a budget can be split over */

enum keep_unit { KEEP_UNIT_TOKENS, KEEP_UNIT_SHARE, KEEP_UNIT_BYTES };

struct keep_budget {
    enum keep_unit unit;
    int64_t value; /* entries per lane; millionths of the tokens; bytes of the whole sequence */
};

/* Which lanes keep the same positions. */
enum keep_granularity {
    KEEP_ALL,        /* every lane */
    KEEP_HEAD,       /* the lanes of one KV-head index, across layers */
    KEEP_LAYER,      /* the lanes of one layer */
    KEEP_LAYER_HEAD, /* each lane for itself */
};

/* How the scores of several lanes become one. */
enum keep_combine { KEEP_MEAN, KEEP_MAX };

/* The options that every policy has; rules.c says what each does. */
struct keep_rules {
    struct keep_budget budget;
    int32_t slack;
    int32_t prefix;
    int32_t sinks;
    int32_t window;
    int32_t pin_prompt;  /* 1: the positions marked as the prompt are a prefix, too */
    int32_t segments;    /* 0: none */
    int32_t granularity; /* enum keep_granularity */
    int32_t combine;     /* enum keep_combine */
    int32_t batch;       /* 0: rounds as soon as they are due */
    char layers[KEEP_TEXT_SIZE];
    char heads[KEEP_TEXT_SIZE];
};

extern const struct keep_param keep_rule_params[];

/* Options as checked values. A plain value: copying it is allowed. */
struct keep_config {
    const struct keep_policy *policy; /* NULL: the full cache */
    struct keep_rules rules;
    int32_t n_budget; /* entries per lane, the mean where the budget is split; 0: a share of the
                         tokens, or bytes that are not fitted */
    double layer_weight[KEEP_SPLIT_MAX]; /* fitted: [n_layer] of the mean budget, their mean is 1 */
    double head_weight[KEEP_SPLIT_MAX];  /* [n_head] */
    bool split;                          /* fitted: not all weights are 1 */
    union {
        max_align_t align;
        uint8_t bytes[KEEP_PARAMS_SIZE];
    } params; /* the policy's own */
};

/* "NAME" or "NAME:key=value,..." or "NAME:PRESET,key=value,..."; NULL and "none" are the full
   cache. INVALID with a sentence that lists what there is: an unknown policy, preset or key, a
   value that cannot be read or is out of range, rules that contradict each other, a budget in
   tokens that is smaller than what is protected. */
pith_status keep_config_parse(const char *text, struct keep_config *out, pith_error *err);

/* The same for a policy that is given and options without its name; NULL or "": all defaults. */
pith_status keep_config_set(const struct keep_policy *policy, const char *options,
                            struct keep_config *out, pith_error *err);

/* What the options mean for lanes of this shape: a budget in bytes, its split over layers and heads
   (reads the file that it is in). INVALID, with the numbers: bytes that hold no more than the
   slack, a lane's budget that is less than what is protected, a split for another shape. IO. */
pith_status keep_config_fit(struct keep_config *config, const struct kv_geometry *g,
                            pith_error *err);

/* Whether a budget of n_budget entries holds what is protected; INVALID, with the numbers. */
pith_status keep_rules_check(const struct keep_rules *rules, int32_t n_budget, int32_t n_prompt,
                             pith_error *err);

/* Whether a split of the budget and the granularity can go together; INVALID. */
pith_status keep_rules_agree(const struct keep_rules *rules, pith_error *err);

/* Whether the policy wants distances to be those of places within the lane (KEEP_NEED_PLACES). */
bool keep_config_places(const struct keep_config *config);

/* The value that a parameter has when the policy's options are empty, as text. */
void keep_param_fallback(const struct keep_policy *policy, const struct keep_param *param,
                         char *out, size_t cap);

/* Fills weight [n], their mean 1, from "even", "pyramid:BETA", numbers "1/2/1", or the name of a
   file of n numbers. INVALID names the key; IO. */
pith_status keep_split_read(const char *key, const char *text, int32_t n, double *weight,
                            pith_error *err);

/* ---- rules ---- */

/* Where a sequence stands. */
struct keep_point {
    int32_t n_token;
    int32_t n_prompt; /* as in keep_view */
};

/* Entries per lane that a round leaves in a sequence of n_token tokens; the mean of the lanes where
   the budget is split. */
int32_t keep_budget_at(const struct keep_config *config, int32_t n_token);

/* The same of one lane; config was fitted. */
int32_t keep_lane_budget_at(const struct keep_config *config, int32_t layer, int32_t head,
                            struct keep_point at);

/* The most entries that a lane with the mean budget ever holds while its sequence grows to n_token
   tokens, none of them a pinned prompt. */
int32_t keep_most_at(const struct keep_config *config, int32_t n_token);

/* Bytes of pages that a sequence needs at most while it grows to n_token tokens, none of them a
   pinned prompt; config was fitted. */
int64_t keep_bytes_at(const struct keep_config *config, const struct kv_geometry *g,
                      int32_t n_token);

/* Positions that may go: lo <= position < hi. */
struct keep_span {
    int32_t lo;
    int32_t hi;
};

/* The slots that stay of n entries at ascending positions, all but n_evict of those in the span,
   ascending in slots; returns their number. The lowest scores go, of equals the older first. With
   segments the span is cut into so many parts of equal length; of each part goes its share of
   n_evict, rounded down, and then the lowest of what is left (docs/policies.md). rank [n] is
   scratch. */
int32_t keep_choose(const int32_t *pos, const float *score, int32_t n, struct keep_span span,
                    int32_t segments, int32_t n_evict, uint32_t *rank, int32_t *slots);

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

/* *out is NULL for the full cache. config was fitted to model->g; *model is copied, what it points
   to is borrowed until keep_free. Rounds run on at most n_thread threads, which changes no result.
   Opens the policy: its statuses; NOMEM. */
pith_status keep_create(const struct keep_config *config, const struct keep_model *model,
                        int32_t n_thread, struct keep **out, pith_error *err);
void keep_free(struct keep *keep); /* NULL is ignored */
const struct keep_config *keep_get_config(const struct keep *keep);
/* Bytes of the block that each sequence has for the policy; 0: none. */
size_t keep_state_size(const struct keep *keep);
/* A set of keep_need. */
uint32_t keep_needs(const struct keep *keep);

/* INVALID, with the numbers, when the prompt is pinned and some lane's budget does not hold it. */
pith_status keep_check_prompt(const struct keep *keep, int32_t n_prompt, pith_error *err);

/* How many of the next `most` tokens can be appended to a sequence until a round is due: 0 when one
   is due now. It depends on the tokens' number and the lanes' lengths alone, so a sequence has its
   rounds at the same tokens however its evaluation is cut. */
int32_t keep_room(const struct keep *keep, const struct kv_seq *kv, struct keep_point at,
                  int32_t most);

/* Whether a round is to run now, with n_left more tokens to come in this evaluation. */
bool keep_due(const struct keep *keep, const struct kv_seq *kv, struct keep_point at,
              int32_t n_left);

/* Makes sure that n more tokens with all their rounds need no memory but pages: page tables, and
   the scratch of a round. INVALID as keep_check_prompt; NOMEM, CONTEXT leave what was. */
pith_status keep_prepare(struct keep *keep, struct kv_seq *kv, struct keep_point at, int32_t n,
                         pith_error *err);

/* Pages that must be free, beyond those that the lanes hold and have reserved, so that n more
   tokens with all their rounds can be appended, whatever the policy chooses. It charges the pages
   that the sequence shares (kv_seq_charge_copies): the counts of several sequences add up, and
   kv_seq_clear_charges ends them. */
int64_t keep_lacks(const struct keep *keep, struct kv_seq *kv, struct keep_point at, int32_t n);

/* Whether some lane holds more than its budget, so that a round now would evict. */
bool keep_over_budget(const struct keep *keep, const struct kv_seq *kv, struct keep_point at);

/* Makes sure that a round now, which nothing is due for, can run: scratch, and pages for copies of
   what the sequence shares. INVALID as keep_check_prompt; NOMEM, KV_FULL leave what was. */
pith_status keep_prepare_round(struct keep *keep, struct kv_seq *kv, struct keep_point at,
                               pith_error *err);

/* Shows the policy what a pass computed; only where it needs it. view as for keep_round. */
void keep_observe(const struct keep *keep, const struct keep_view *view,
                  const struct pi_pass_tap_rows *rows);

/* The positions of the tokens that the first n slots of a lane are of, whatever they are read at
   (KEEP_NEED_PLACES). keep NULL: the full cache. */
void keep_positions(const struct keep *keep, const struct kv_seq *kv, int32_t layer, int32_t head,
                    int32_t *out, int32_t n);
/* The same of one slot. */
int32_t keep_position(const struct keep *keep, const struct kv_seq *kv, int32_t layer, int32_t head,
                      int32_t slot);

/* Drops every entry of a token at or above n_token (kv_seq_truncate). keep NULL: the full cache. */
void keep_truncate(struct keep *keep, struct kv_seq *kv, int32_t n_token);

/* One round: brings every lane that holds more than its budget to the budget and gives whole pages
   back. Lanes that keep the same positions are brought to one set of them, also where they held
   different ones before. What keep_lacks asked for is free, so that it succeeds. Of the view, model
   and data are filled in here. Adds to *tally. */
pith_status keep_round(struct keep *keep, struct kv_seq *kv, const struct keep_view *view,
                       struct keep_tally *tally, pith_error *err);

#endif
