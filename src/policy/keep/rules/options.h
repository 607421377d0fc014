/*
 * options.h - the options of keep: a policy by its name, options of its own, and the rules, which
 * are the same for every policy. Here stands also all that follows from them before there is a
 * sequence. These are the needs of policy and rules, the budget of each lane, and the most memory.
 */
#ifndef PI_KEEP_OPTIONS_H
#define PI_KEEP_OPTIONS_H

#include "policy/keep/rules/policy.h"

/* ---- options ---- */

#define KEEP_PARAMS_SIZE 1024
#define KEEP_COUNT_MAX (1 << 29) /* of one rule: sums of several stay within int32_t */
#define KEEP_SPLIT_MAX 256       /* layers, or heads, that a budget can be split over */
#define KEEP_LANE_MAX 2048       /* lanes that can have shares of their own */

/* Which lanes keep the same positions. */
enum keep_granularity {
    KEEP_ALL,        /* every lane */
    KEEP_HEAD,       /* the lanes of one KV-head index, across layers */
    KEEP_LAYER,      /* the lanes of one layer */
    KEEP_LAYER_HEAD, /* each lane for itself */
    KEEP_GLOBAL,     /* each lane for itself, of a budget that all lanes share by score */
};

/* When rounds come to an evaluation of several tokens. */
enum keep_when {
    KEEP_STREAM,     /* as soon as they are due */
    KEEP_PROMPT_END, /* when its last token is in */
};

/* How the scores of several lanes become one. */
enum keep_combine { KEEP_MEAN, KEEP_MAX };

/* The options that every policy has; rules.c says what each does. */
struct keep_rules {
    struct policy_budget budget;
    int32_t slack;
    int32_t prefix;
    int32_t sinks;
    int32_t window;
    double recent;      /* a window of this part of the lane's budget, where that is more */
    int32_t pin_prompt; /* 1: the positions marked as the prompt are a prefix, too, where they are
                           at most keep_pin_most */
    int32_t pin_least;  /* the smallest budget of a lane, for keep_pin_most; 0: a share (derived) */
    int32_t segments;   /* 0: none */
    int32_t granularity; /* enum keep_granularity */
    int32_t combine;     /* enum keep_combine */
    int32_t batch;       /* 0: rounds as soon as they are due */
    int32_t rounds;      /* enum keep_when */
    int32_t overwrite;   /* 1: a full lane takes a token that is evaluated alone by overwriting the
                            entry of lowest score (policies with step) */
    char layers[POLICY_TEXT_SIZE];
    char heads[POLICY_TEXT_SIZE];
    char split[POLICY_TEXT_SIZE];
    char stats[POLICY_TEXT_SIZE]; /* "": none */
};

extern const struct policy_param keep_rule_params[];

/* Options as checked values. A plain value: copying it is allowed. */
struct keep_config {
    const struct keep_policy *policy; /* NULL: the full cache */
    struct keep_rules rules;
    int32_t n_budget; /* entries per lane, the mean where the budget is split; 0: a share of the
                         tokens, or bytes that are not fitted */
    double layer_weight[KEEP_SPLIT_MAX]; /* fitted: [n_layer] of the mean budget, their mean is 1 */
    double head_weight[KEEP_SPLIT_MAX];  /* [n_head] */
    bool split;                          /* fitted: not all weights are 1 */
    int32_t n_head;                      /* fitted: of lane_sum; 0: layers and heads have weights */
    double lane_sum[KEEP_LANE_MAX + 1];  /* fitted: [n_lane + 1] the weights of all lanes before
                                            one, of which lane_sum[n_lane] = n_lane */
    int32_t n_unsplit; /* fitted: entries of each lane's budget that are not weighed (pyramidkv) */
    int32_t n_elsewhere; /* lanes of other ranks that share the budget (granularity=global) */
    union {
        max_align_t align;
        uint8_t bytes[KEEP_PARAMS_SIZE];
    } params; /* the policy's own */
};

/* "NAME" or "NAME:key=value,..." or "NAME:PRESET,key=value,..."; NULL and "none" are the full
   cache. INVALID, with a sentence that lists the choices: an unknown policy, preset or key, or a
   value that is unreadable or out of range. Also rules that contradict each other, or a budget in
   tokens that is smaller than the protected entries. */
pith_status keep_config_parse(const char *text, struct keep_config *out, pith_error *err);

/* The same for a policy that is given and options without its name; NULL or "": all defaults. */
pith_status keep_config_set(const struct keep_policy *policy, const char *options,
                            struct keep_config *out, pith_error *err);

/* The policy of a program that has scores of its own, params->keep_score. INVALID as above. */
pith_status keep_config_set_custom(const pith_engine_params *params, struct keep_config *out,
                                   pith_error *err);

/* Whether two texts that were read, and not fitted yet, say the same: the policy and every
   option. */
bool keep_config_same(const struct keep_config *a, const struct keep_config *b);

/* Sets rules.pin_least by the budget, which fitting does, too; g NULL: before that. */
void keep_config_limit_pins(struct keep_config *c, const struct kv_geometry *g);

/* Fits the options to lanes of this shape: a budget in bytes, its split over layers and heads
   (reads the file that it is in). INVALID, with the numbers: bytes that hold no more than the
   slack, or a lane's budget that is less than the protected entries. Also a split for another
   shape. IO. */
pith_status keep_config_fit(struct keep_config *config, const struct kv_geometry *g,
                            pith_error *err);

/* The last positions of a lane with a budget of n_budget entries that are protected. */
int32_t keep_window_at(const struct keep_rules *rules, int32_t n_budget);

/* The last positions that are protected in a round that leaves n_budget entries. They are the
   window, and all from the pinned position on for as long as the budget holds them beside the first
   entries. */
int32_t keep_protected_at(const struct keep_rules *rules, int32_t n_budget,
                          const struct keep_view *view);

/* The longest prompt that is pinned: half of the smallest budget of a lane, or the budget without
   its window where that is less. scale as in keep_point. INT32_MAX where the budget is a share. */
int32_t keep_pin_most(const struct keep_rules *rules, double scale);

/* The first positions that are pinned as the prompt: n_prompt, or 0 where they are not. */
int32_t keep_pinned_prompt(const struct keep_rules *rules, int32_t n_prompt, double scale);

/* Whether a budget of n_budget entries holds what is protected; INVALID, with the numbers. */
pith_status keep_rules_check(const struct keep_rules *rules, int32_t n_budget, int32_t n_pinned,
                             pith_error *err);

/* The same, and that the policy can work with it. */
pith_status keep_config_check(const struct keep_config *config, int32_t n_budget, pith_error *err);

/* Whether a split of the budget and the granularity can go together; INVALID. */
pith_status keep_rules_agree(const struct keep_rules *rules, pith_error *err);

/* Whether the policy and the other rules allow overwrite=on, where it is; INVALID with the
   reason. */
pith_status keep_overwrite_check(const struct keep_config *config, pith_error *err);

/* Whether lanes share a budget by their scores, within a layer or all. Then the budget of one lane
   is the mean of theirs, which the sum of their entries keeps to. */
bool keep_config_allots(const struct keep_config *config);
/* Whether all of them do. */
bool keep_config_is_global(const struct keep_config *config);

/* Whether that goes together with the rules; INVALID. */
pith_status keep_allot_check(const struct keep_config *config, pith_error *err);

/* The most pages that n_lane such lanes of n_entry entries in all fill, where packing leaves
   n_apart places that are not closed (kv_lane_breaks). */
int64_t keep_allot_pages(const struct kv_geometry *g, int32_t n_lane, int64_t n_entry,
                         int64_t n_apart);

/* Fills lane_sum from the shares that lanes of this shape have in statistics; INVALID, IO,
   FORMAT. */
pith_status keep_split_calibrated(struct keep_config *config, const struct kv_geometry *g,
                                  pith_error *err);

/* Whether the policy wants distances between places within the lane (KEEP_NEED_PLACES). */
bool keep_config_places(const struct keep_config *config);

/* The share of the entries that lanes were compared at, of split: "calibrated" or
   "calibrated:10%". */
pith_status keep_split_retention(const struct keep_rules *rules, double *out, pith_error *err);

/* Fills weight [n], their mean 1, from "even", "pyramid:BETA" ("pyramidkv:BETA"), numbers "1/2/1",
   or the name of a file of n numbers. INVALID names the key; IO. */
pith_status keep_split_read(const char *key, const char *text, int32_t n, double *weight,
                            pith_error *err);

/* ---- what the policy and the rules need ---- */

/* A set of keep_need; overwriting needs weights where the policy does not. 0 for the full cache. */
uint32_t keep_config_needs(const struct keep_config *c);

/* Floats that every entry carries along for the policy (kv_cache_set_marks). */
int32_t keep_config_marks(const struct keep_config *c);

/* Whether attention notes marks, or a step's scores, by words of the policy. */
bool keep_config_notes(const struct keep_config *c);

/* Whether a device that can finds the victims of steps (kv_cache_note_places): by one word, or by
   marks. */
bool keep_config_finds(const struct keep_config *config);

/* ---- budgets ---- */

/* Where a sequence stands. */
struct keep_point {
    int32_t n_token;
    int32_t n_prompt; /* as in keep_view */
    double scale; /* of the sequence's budget beside the options'; 0: the same; INFINITY: nothing is
                     ever evicted */
    int64_t elsewhere; /* entries of other ranks' lanes that share the budget */
};

/* Entries per lane that a round leaves in a sequence of n_token tokens; the mean of the lanes where
   the budget is split. Of one with a budget of its own: keep_own_budget. */
int32_t keep_budget_at(const struct keep_config *config, int32_t n_token);
int32_t keep_own_budget(const struct keep_config *config, struct keep_point at);

/* Reads a sequence's own budget, in the unit of `whole`, the budget of the options with recall's
   part of it. *scale is that of keep_point. "none" has no budget. INVALID: the text, another unit,
   or a budget that the policy or its rules cannot work with. */
pith_status keep_read_scale(const struct keep_config *config, const struct policy_budget *whole,
                            const struct kv_geometry *g, const char *text, double *scale,
                            pith_error *err);

/* The same of one lane; config was fitted. */
int32_t keep_lane_budget_at(const struct keep_config *config, int32_t layer, int32_t head,
                            struct keep_point at);

/* Positions at the end of a sequence that can be pinned. Every lane's budget holds them beside the
   first entries that are protected, and one that may go. */
int32_t keep_pinnable(const struct keep_config *config, const struct kv_geometry *g,
                      struct keep_point at);

/* The most entries that a lane with the mean budget ever holds while its sequence grows to n_token
   tokens, none of them a pinned prompt. */
int32_t keep_most_at(const struct keep_config *config, int32_t n_token);

/* The same of the longest lane: of lanes that share a budget one may come to have it all. */
int32_t keep_longest_at(const struct keep_config *config, const struct kv_geometry *g,
                        int32_t n_token);
/* And of all of its lanes together, at most. */
int64_t keep_together_at(const struct keep_config *config, const struct kv_geometry *g,
                         int32_t n_token);

/* Bytes of pages that a sequence needs at most while it grows to n_token tokens, none of them a
   pinned prompt. With rounds=prompt-end all of them are one prompt. config was fitted. */
int64_t keep_bytes_at(const struct keep_config *config, const struct kv_geometry *g,
                      int32_t n_token);

/* The same where the first to.n_prompt tokens are the prompt, which is marked, and all others are
   evaluated one by one; 0: keep_bytes_at. */
int64_t keep_bytes_to(const struct keep_config *config, const struct kv_geometry *g,
                      struct keep_point to);

/* Bytes of pages that repeating a part of n_token tokens of one sequence takes at most. */
int64_t keep_repeat_bytes(const struct kv_geometry *g, int64_t n_token);

/* Tells the lanes of a sequence how many entries they will come to hold (kv_lane_expect), where the
   budget is a number; config was fitted. Entries that allotment moves from one lane to another are
   not foreseen. */
void keep_expect(const struct keep_config *config, const struct kv_geometry *g, double scale,
                 struct kv_seq *kv);

#endif
