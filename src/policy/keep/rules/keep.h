/*
 * keep.h - which entries stay. A policy gives each live entry a score. The rules, the same for
 * every policy (budget.c), say how many entries go, when, and which never do. Only kv/ changes the
 * cache.
 *
 * A new policy is one file with one const struct keep_policy and one line in policies.c.
 */
#ifndef PI_KEEP_H
#define PI_KEEP_H

#include "kv/learn.h"
#include "kv/weigh.h"
#include "model/forward.h"
#include "policy/policy.h"

/* ---- the view of a policy ---- */

/* A sequence at the moment of a round. Everything in it is read-only but the state. */
struct keep_view {
    const struct kv_seq *kv;
    const int32_t *tokens; /* [n_token] */
    int32_t n_token;       /* the next token gets this position */
    int32_t n_prompt;      /* the first positions, marked as the prompt; 0: nothing is */
    int32_t pinned;        /* the first pinned position (keep_pinnable); 0: nothing is */
    double scale;          /* as in keep_point */
    int64_t elsewhere;     /* likewise */
    void *state;           /* [state_size] the sequence's block; NULL where the policy has none */
    struct pi_at there; /* some: behind the state's head its bytes are here, on a device (learn) */
    bool shown;         /* written has seen every entry */
    const struct policy_model *model;
    const void *data; /* what the policy's open made; NULL without */
};

/* The live entries of one lane. A policy that compares entries with each other (a z-score) takes
   the evictable ones: the others stay whatever they score. Keys and values: keep_run. */
struct keep_lane {
    int32_t layer;
    int32_t head;          /* KV head */
    int32_t n;             /* entries; slots 0 .. n - 1, the older before the younger unless the
                              lane was overwritten: then positions are in any order */
    const int32_t *pos;    /* [n] */
    const bool *evictable; /* [n] */
    int32_t n_evictable;   /* how many of them are; at least 1 */
    void *scratch; /* [scratch_size] of this call alone, aligned for any type, contents arbitrary */
};

/* Stored entries next to each other, on one page. A lane is its runs, one after the other. */
struct keep_run {
    int32_t slot; /* of the first */
    int32_t n;    /* entries, at most page_len */
};

/* Run i of a lane, 0 <= i < kv_lane_runs(view->kv, lane->layer, lane->head). */
struct keep_run keep_run_at(const struct keep_view *view, const struct keep_lane *lane, int32_t i);

/* The keys of run i as attention sees them, from any storage type, decoded to f32 with entries side
   by side. key[d * page_len + j] is dimension d of entry slot + j. key holds dim_k * page_len
   floats; columns from n on are finite. Keys of a page that is read at other positions than it was
   written at are rotated there. */
void keep_run_keys(const struct keep_view *view, const struct keep_lane *lane, int32_t i,
                   float *key);

/* The values of run i, value[j * dim_v + d]; value holds dim_v * page_len floats, of which n rows
   are written. */
void keep_run_values(const struct keep_view *view, const struct keep_lane *lane, int32_t i,
                     float *value);

/* Mark i of the lane's entries, [length]: kv_lane_read_marks; to write: kv_lane_marks. */
const float *keep_marks(const struct keep_view *view, int32_t layer, int32_t head, int32_t i);
float *keep_marks_to_write(const struct keep_view *view, int32_t layer, int32_t head, int32_t i);
/* With KEEP_NEED_VALUE_NORM: the L1 norms of their values as they are stored, bf16 [length]. */
const uint16_t *keep_norms(const struct keep_view *view, int32_t layer, int32_t head);

/* The last queries of a sequence, of every layer and query head, after rope. A policy whose state
   begins with them recomputes attention from them (queries.c). */

/* Bytes of the last n_query queries at the beginning of a policy's state, a multiple of 64. */
size_t keep_queries_size(const struct policy_model *model, int32_t n_query);
/* For observe, with KEEP_NEED_ROWS: remembers the rows' queries. */
void keep_queries_observe(const struct keep_view *view, int32_t n_query,
                          const struct pi_pass_tap_rows *rows);
/* For learn: the same on the device, and the bytes that stay the host's. */
size_t keep_queries_head(const struct policy_model *model, int32_t n_query);
void keep_queries_learn(const struct keep_view *view, int32_t n_query,
                        const struct pi_pass_rows *rows, int32_t item, struct kv_learn_job *job);
/* Where the device has a layer's ring, f32 [n_query][n_head * n_group][dim_k]; none: the host has
   it. The query of position p is in row p mod n_query. */
struct pi_at keep_queries_there(const struct keep_view *view, int32_t n_query, int32_t layer);
/* How many of the last n_query there are: fewer at the beginning of a sequence, and never more than
   its tokens. */
int32_t keep_queries_count(const struct keep_view *view, int32_t n_query);
/* out [count][n_group][dim_k] = these queries of a lane's group, the oldest first. */
void keep_queries_copy(const struct keep_view *view, const struct keep_lane *lane, int32_t n_query,
                       float *out);
/* Bytes of scratch of keep_queries_sums for n_query queries and a lane of n entries. */
size_t keep_queries_sums_scratch(const struct policy_model *model, int32_t n_query, int32_t n);
/* The device adds up the weights that the last count queries of the lane's group give to its
   entries: *sum [n_group][*stride], a part of scratch. A query's weights are a softmax over the
   entries that it sees. */
void keep_queries_sums(const struct keep_view *view, const struct keep_lane *lane, int32_t n_query,
                       void *scratch, const float **sum, size_t *stride);
/* For weigh: a job of VOTES by the same queries, without pooling and for all entries. */
void keep_queries_votes(const struct keep_view *view, int32_t n_query, struct kv_weigh_job *job);
/* For policies that need more than sums: rows on the host, *logit [count][n_group][*stride], a part
   of scratch. They are the scaled logits of the last count queries, the oldest first. An entry that
   a query does not see has -INFINITY. */
size_t keep_queries_logits_scratch(const struct policy_model *model, int32_t n_query, int32_t n);
void keep_queries_logits(const struct keep_view *view, const struct keep_lane *lane,
                         int32_t n_query, void *scratch, const float **logit, size_t *stride);

/* ---- policies ---- */

/* The data that a policy needs, as bits. */
enum keep_need {
    KEEP_NEED_ROWS = 1 << 0,   /* observe: what each layer computed for the tokens of a pass */
    KEEP_NEED_PLACES = 1 << 1, /* distances are between places within the lane: the first entries,
                                  which always stay, are read as if they stood right before the
                                  others */
    KEEP_NEED_WEIGHTS =
        1 << 2, /* words, or attended: what every token's queries gave to each entry */
    KEEP_NEED_STEP_WEIGHTS = 1 << 3, /* the same, of evaluations of a single token only */
    KEEP_NEED_VALUE_NORM = 1 << 4, /* beside every entry stands the norm of its value: keep_norms */
    KEEP_NEED_WRITTEN = 1 << 5,    /* written: every entry when it is stored */
    KEEP_NEED_REPEAT = 1 << 6,     /* repeated: before the round of a prompt's end the model repeats
                                      what it has read; wants rounds=prompt-end, and marks */
    KEEP_NEED_REPEAT_SCALED = 1 << 7, /* with it: weights are divided by the length of the layer's
                                         input, after its norm, at their query */
};

/* A note of the weights that a policy asks for by a word (kv/note.h). The device makes it. */
struct keep_word {
    enum kv_note_word word;
    enum kv_group group; /* of the query heads of a KV head */
    bool step;           /* it gives the scores of a step (overwrite=on); else it goes to marks */
    int32_t mark;        /* the first mark that it writes */
    float threshold;
    int32_t window;
    int32_t last; /* of the prompt that many last tokens count, and all behind it; 0: all tokens */
    bool plain;   /* of KV_NOTE_NORM: exp(logit) counts in the place of weights */
    bool newest;  /* likewise: the entry just written gets INFINITY */
};

/* Most words of a policy. */
#define KEEP_WORD_ROOM KV_NOTE_ROOM

/* The attention that a query group of one KV head gave to each entry of the lane, the token's own
   included, right after its attention. It is for policies with a function of their own. */
struct keep_attention {
    int32_t layer;
    int32_t head; /* KV head */
    int32_t n;    /* entries that the token may see: the lane's first. Behind them stand only
                     entries of later tokens of its pass */
    int32_t pos;  /* of the token */
    int32_t n_group;
    const float *weight; /* [n_group][stride] softmax weights, 0 for what is not visible */
    size_t stride;
    const float *out; /* [n_group][dim_v] what the queries got: the weighted sum of values */
    int32_t slot;     /* of the token's own entry */
    bool add;         /* for step: scores are added to what out has (step_adds) */
    void *scratch;    /* [step_scratch] for step: of this call alone, aligned for any type */
};

/* The largest weights that the queries of a repeated text gave to the entries of one lane. */
struct keep_repeat {
    int32_t layer;
    int32_t head; /* KV head */
    int32_t n;    /* entries of the lane */
    int32_t n_group;
    const float *most; /* [n_group][n] the largest softmax weight; KEEP_NEED_REPEAT_SCALED */
    float *scratch;    /* [page_len][dim_v] of this call alone, contents arbitrary */
};

/* Tokens that are repeated at once, those around them at most, and both. */
#define KEEP_REPEAT_PART 2048
#define KEEP_REPEAT_AROUND 64
#define KEEP_REPEAT_MOST (KEEP_REPEAT_PART + KEEP_REPEAT_AROUND)

struct keep_rules;

/* NULL is for "does not apply", but score is always there. params is the policy's own struct. */
struct keep_policy {
    const char *name;
    const char *summary;  /* one line */
    const char *citation; /* authors, title, where; "" for none */
    const char *defaults; /* options that are read before the user's, "sinks=4"; NULL: none */
    const struct policy_param *params; /* keys of its own; NULL: none */
    size_t params_size;                /* of the struct that they fill; at most KEEP_PARAMS_SIZE */
    const struct policy_preset *presets; /* NULL: none */
    const char *file;                    /* the option that it cannot do without; NULL: none */
    /* Sets the policy's own options by the rules, once all of them were read. NULL: that depends on
       no rule. */
    void (*settle)(void *params, const struct keep_rules *rules);
    /* Whether scores of different lanes can be compared as they are; NULL: never. Others need a map
       in the statistics for granularity=global. */
    bool (*comparable)(const void *params);
    /* Loads what all sequences of an engine read, once. *data is the policy's, freed
       by close; on failure there is nothing to close. Any status, with a sentence. */
    pith_status (*open)(const void *params, const struct policy_model *model, void **data,
                        pith_error *err);
    void (*close)(void *data);
    /* A set of keep_need. */
    uint32_t (*needs)(const void *params);
    /* Whether the options can work with a lane's budget of n_budget entries, not where it is a
       share of the tokens; INVALID, with the numbers. NULL: with any that the rules allow. */
    pith_status (*check)(const void *params, const struct keep_rules *rules, int32_t n_budget,
                         pith_error *err);
    /* Bytes of state of one sequence, 0 unless it needs KEEP_NEED_ROWS to fill it. The state is
       flat, without pointers, zero in a new sequence, copied by a fork, saved and loaded
       (pith_seq_save). Where an evaluation fails it is as before. A policy with state makes a
       sequence start anew where one without would go on from a shorter prefix (pith_seq_sync). */
    size_t (*state_size)(const void *params, const struct policy_model *model, const void *data);
    /* Whether a block of state_size bytes, from a file, can be a state. NULL: the policy makes do
       with any bytes. */
    bool (*sound)(const void *params, const struct policy_model *model, const void *data,
                  const void *state);
    /* Bytes of scratch for a score over n entries; it does not fall with n. */
    size_t (*scratch_size)(const void *params, const struct policy_model *model, const void *data,
                           int32_t n);
    /* With KEEP_NEED_ROWS: called for every layer of every pass, layers in order, each token once,
       before its entries are stored. view->n_token is the position of the first row. Its additions
       to view->state must not depend on how tokens are cut into passes: add token by token. */
    void (*observe)(const void *params, const struct keep_view *view,
                    const struct pi_pass_tap_rows *rows);
    /* The same by a device (kv/learn.h): says what it does with an item's rows in a layer. The state
       is its device's then, but for the first learn_head bytes, which this brings up to date.
       `score` finds all of it in view->state nevertheless. NULL: the host observes. */
    void (*learn)(const void *params, const struct keep_view *view, const struct pi_pass_rows *rows,
                  int32_t item, struct kv_learn_job *job);
    size_t (*learn_head)(const void *params, const struct policy_model *model);
    bool learns_before_rope; /* learn looks at queries before rope */
    /* Floats that every entry carries along (keep_marks), 0 in a new one; NULL: none. A sequence
       with marks has a state. */
    int32_t (*n_mark)(const void *params);
    /* With KEEP_NEED_WRITTEN: called for every layer, KV head and pass right after the entries of a
       sequence's tokens were stored. KV heads are served at the same time by several threads. It
       writes to the marks of those entries alone, and the mark of one must not depend on the
       others. view->n_token is the position of the first. Entries that come another way (from a
       file, a replay) are not shown, and have marks of 0. */
    void (*written)(const void *params, const struct keep_view *view,
                    const struct pi_pass_written *w);
    /* The same by a device (kv/learn.h), for entry `at` of rows->append. NULL: the host does. */
    void (*predict)(const void *params, const struct keep_view *view,
                    const struct pi_pass_entries *rows, int32_t at, struct kv_predict_job *job);
    bool marks_there; /* devices are to have marks, though no word notes them */
    /* With KEEP_NEED_REPEAT: called for every layer and KV head, several at the same time; writes
       to the marks of that lane alone. Mark 0 of an entry is 0 until it was called with it, and
       never afterwards. So entries whose first mark is 0 are repeated next. */
    void (*repeated)(const void *params, const struct keep_view *view, const struct keep_repeat *r);
    /* With KEEP_NEED_WEIGHTS or KEEP_NEED_STEP_WEIGHTS, or for overwrite=on: what is noted of weights,
       out [KEEP_WORD_ROOM]; returns the number of words. A word for marks takes the place of
       attended, one for steps that of step. NULL: none. */
    int32_t (*words)(const void *params, struct keep_word *out);
    /* Where no word does. It is called for every layer, KV head and token, within one lane in the
       order of tokens. KV heads are served at the same time by several threads. It writes to the
       marks of that lane, and to the parts of view->state that belong to it alone. view->n_token is
       the token's position + 1. */
    void (*attended)(const void *params, const struct keep_view *view,
                     const struct keep_attention *a);
    /* Scores of a lane for the rule overwrite=on (rules.c): out[i], [a->n], how much entry i
       deserves to stay. Called right after the attention of a token that was evaluated alone, and
       after attended. Higher = keep; never NaN. Writes to out and a->scratch alone. NULL: words or
       scores_steps do it, or the policy cannot overwrite. */
    void (*step)(const void *params, const struct keep_view *view, const struct keep_attention *a,
                 float *out);
    /* score takes nothing but marks and norms: it also scores steps, with a lane that has no pos. */
    bool scores_steps;
    /* The words have a step's scores: with these options, or with others, which step does. */
    bool notes_steps;
    /* Whether step heeds a->add; else that is never set. */
    bool step_adds;
    /* Bytes of a->scratch for a step over n entries; it does not fall with n. NULL: none. */
    size_t (*step_scratch)(const void *params, const struct policy_model *model, const void *data,
                           int32_t n);
    /* Called once before the scores of a round; may change view->state. */
    void (*begin)(const void *params, const struct keep_view *view);
    /* Whether nothing is known of a layer (statistics without it), asked after begin; NULL: never.
       Its lanes are not scored and do not vote where several keep the same positions. Where no lane
       votes the oldest go. */
    bool (*silent)(const void *params, const struct keep_view *view, int32_t layer);
    /* out[i], [lane->n]: how much entry i deserves to stay, higher = keep; never NaN. Pure: the
       same view gives the same numbers. Lanes are scored at the same time by several threads, so
       that it writes to out and lane->scratch alone. */
    void (*score)(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out);
    /* The same scores, within rounding, by a device with memory of its own. It sets the kind and
       what belongs to it, for the lane that the job names. room, [weigh_size] bytes, is for its
       arrays, and lasts as long as the job. NULL: there is no kind for them. */
    void (*weigh)(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room);
    size_t (*weigh_size)(const void *params, const struct policy_model *model, const void *data);
    bool weighs_shown; /* it takes written to have seen every entry */
    /* Where the KV heads of a layer share its budget by their scores (allot.c): the least part of
       an even share for each, 0..1. NULL: each lane has its own budget. */
    double (*allot_floor)(const void *params);
    bool alone; /* lanes are scored and shown one after the other, by the evaluating thread */
    /* Whether it can wish to end an evaluation before a round has evicted something; NULL: never. */
    bool (*may_stop)(const void *params);
    /* Whether it has wished to end the evaluation since this was asked last; NULL: never. */
    bool (*stopped)(void *data);
};

extern const struct keep_policy keep_streaming;
extern const struct keep_policy keep_longflow;
extern const struct keep_policy keep_snapkv;
extern const struct keep_policy keep_pyramidkv;
extern const struct keep_policy keep_adakv;
extern const struct keep_policy keep_tova;
extern const struct keep_policy keep_rkv;
extern const struct keep_policy keep_h2o;
extern const struct keep_policy keep_vatp;
extern const struct keep_policy keep_scissorhands;
extern const struct keep_policy keep_raas;
extern const struct keep_policy keep_lazyeviction;
extern const struct keep_policy keep_random;
extern const struct keep_policy keep_knorm;
extern const struct keep_policy keep_keydiff;
extern const struct keep_policy keep_vnorm;
extern const struct keep_policy keep_triattention;
extern const struct keep_policy keep_kvzap;
extern const struct keep_policy keep_expected;
extern const struct keep_policy keep_kvzip;
extern const struct keep_policy keep_custom; /* in no list: keep_config_set_custom */

/* Policy i of those that Pith has; NULL past the last. */
const struct keep_policy *keep_policy_at(int32_t i);

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

/* Whether two texts that were read, and not fitted yet, say the same: the policy and every option.
 */
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

/* Whether the policy and the other rules allow overwrite=on, where it is; INVALID with the reason.
 */
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

/* Fills lane_sum from the shares that lanes of this shape have in statistics; INVALID, IO, FORMAT.
 */
pith_status keep_split_calibrated(struct keep_config *config, const struct kv_geometry *g,
                                  pith_error *err);

/* Whether the policy wants distances between places within the lane (KEEP_NEED_PLACES). */
bool keep_config_places(const struct keep_config *config);

/* Fills weight [n], their mean 1, from "even", "pyramid:BETA" ("pyramidkv:BETA"), numbers "1/2/1",
   or the name of a file of n numbers. INVALID names the key; IO. */
pith_status keep_split_read(const char *key, const char *text, int32_t n, double *weight,
                            pith_error *err);

/* ---- rules ---- */

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

/* Bytes of pages that a sequence needs at most while it grows to n_token tokens, none of them a
   pinned prompt. With rounds=prompt-end all of them are one prompt. config was fitted. */
int64_t keep_bytes_at(const struct keep_config *config, const struct kv_geometry *g,
                      int32_t n_token);

/* The same where the first to.n_prompt tokens are the prompt, which is marked, and all others are
   evaluated one by one; 0: keep_bytes_at. */
int64_t keep_bytes_to(const struct keep_config *config, const struct kv_geometry *g,
                      struct keep_point to);

/* Tells the lanes of a sequence how many entries they will come to hold (kv_lane_expect), where the
   budget is a number; config was fitted. Entries that allotment moves from one lane to another are
   not foreseen. */
void keep_expect(const struct keep_config *config, const struct kv_geometry *g, double scale,
                 struct kv_seq *kv);

/* Positions that may go: lo <= position < hi. */
struct keep_span {
    int32_t lo;
    int32_t hi;
};

/* Which n_evict go of n entries at ascending positions, of those in the span: the lowest scores, of
   equals the older first. With segments the span is cut into that many parts of equal length. Of
   each part goes its share of n_evict, rounded down, and then the lowest of the rest
   (docs/policies.md). Once the choice is made, keep_rest leaves in slots [n] those that stay,
   ascending, and returns their number. */
struct kv_choose_job keep_choice(const int32_t *pos, const float *score, int32_t n,
                                 struct keep_span span, int32_t segments, int32_t n_evict,
                                 int32_t *slots);
int32_t keep_rest(const struct kv_choose_job *choice, const int32_t *pos, int32_t n,
                  int32_t *slots);

/* The work of rounds for a sequence. */
struct keep_tally {
    int64_t n_round;
    int64_t n_evicted;     /* entries, over all lanes */
    int64_t bytes_freed;   /* of pages that rounds gave back, less the copies that they took */
    int32_t first_at;      /* tokens in the sequence at the first round; valid when n_round > 0 */
    double seconds;        /* spent in rounds */
    int64_t n_overwritten; /* of n_evicted: those whose place a token took */
    int32_t first_overwrite_at; /* tokens in the sequence before the first of them went; valid when
                                   n_overwritten > 0 */
    int64_t elsewhere;          /* entries of other ranks' lanes that share the budget, counted */
    int32_t elsewhere_at;       /* when the sequence had this many tokens */
};

/* The policy of an engine, with the scratch of a round. One thread at a time uses it. */
struct keep;

/* *out is NULL for the full cache. config was fitted to model->g; *model is copied, what it points
   to is borrowed until keep_free. Rounds run on at most n_thread threads, which changes no result.
   Opens the policy: its statuses; NOMEM. */
pith_status keep_create(const struct keep_config *config, const struct policy_model *model,
                        int32_t n_thread, struct keep **out, pith_error *err);
void keep_free(struct keep *keep); /* NULL is ignored */
const struct keep_config *keep_get_config(const struct keep *keep);
/* A set of keep_need; overwriting needs weights where the policy does not. 0 for the full cache. */
uint32_t keep_config_needs(const struct keep_config *c);
/* Floats that every entry carries along for the policy (kv_cache_set_marks). */
int32_t keep_config_marks(const struct keep_config *c);
/* Whether attention notes marks, or a step's scores, by words of the policy. */
bool keep_config_notes(const struct keep_config *c);
/* Bytes of the block that each sequence has for the policy; 0: none. */
size_t keep_state_size(const struct keep *keep);
/* Whether the lanes' device learns what the policy remembers, so that blocks are there, too. */
bool keep_learns(const struct keep *keep);

/* Such a block: all of it is the caller's, and keep_view has the same two. */
struct keep_block {
    void *state;        /* [keep_state_size] owned */
    struct pi_at there; /* likewise of the device; none where that does not learn; owned */
};

/* Zeroed; NOMEM. Freeing takes any stage. */
pith_status keep_block_make(const struct keep *keep, struct keep_block *out, pith_error *err);
void keep_block_free(const struct keep *keep, struct keep_block *block);
void keep_block_copy(const struct keep *keep, const struct keep_block *from,
                     const struct keep_block *to);
/* The host's bytes become all of it; and the device's what the host has. */
void keep_block_pull(const struct keep *keep, const struct keep_block *block);
void keep_block_push(const struct keep *keep, const struct keep_block *block);
/* Bytes of scratch that grew with the lanes so far. */
size_t keep_scratch_bytes(const struct keep *keep);
/* Their bound while one sequence, whose lanes agree where the policy wants that, grows to n_token
   tokens. keep has run no round. */
size_t keep_scratch_at(struct keep *keep, int32_t n_token);
/* Whether such a block from a file can be a state. */
bool keep_state_sound(const struct keep *keep, const void *state);
/* keep_config_needs and keep_config_marks of its options. */
uint32_t keep_needs(const struct keep *keep);
int32_t keep_n_mark(const struct keep *keep);
/* Whether full lanes are overwritten (rule overwrite). */
bool keep_overwrites(const struct keep *keep);

/* Whether an evaluation of n_token tokens has no round before its end: with rounds=prompt-end
   evaluations of several tokens have none. Then keep_room and keep_due are not asked about it; a
   round runs when its last token is in, if keep_over_budget says so. */
bool keep_waits(const struct keep *keep, int32_t n_token);

/* INVALID, with the numbers, when the prompt is pinned and some lane's budget does not hold it.
   keep NULL: the full cache, which holds every prompt. */
pith_status keep_check_prompt(const struct keep *keep, struct keep_point at, pith_error *err);

/* With overwrite=on an evaluation of a single token is a step, one of more is part of a prompt. A
   prompt has rounds as ever, and another behind its last token where a lane holds its budget then.
   A step has one before it where a lane that holds its budget has no chosen victim. These rounds
   leave a lane one entry less than its budget. The functions below take an evaluation of one token
   for a step; keep_room and keep_due are asked about prompts alone, and keep_step_due about
   steps. */

/* How many of the next `most` tokens can be appended to a sequence until a round is due: 0 when one
   is due now. It depends on the tokens' number and the lanes' lengths alone. So a sequence has its
   rounds at the same tokens however its evaluation is cut. */
int32_t keep_room(const struct keep *keep, const struct kv_seq *kv, struct keep_point at,
                  int32_t most);

/* Whether a round is to run now, with n_left more tokens to come in this evaluation. */
bool keep_due(const struct keep *keep, const struct kv_seq *kv, struct keep_point at,
              int32_t n_left);

/* Whether a step must wait for a round; false where nothing is overwritten. */
bool keep_step_due(const struct keep *keep, const struct kv_seq *kv, struct keep_point at);

/* The most entries that a lane comes to hold while n tokens follow. */
int64_t keep_longest(const struct keep *keep, const struct kv_seq *kv, struct keep_point at,
                     int32_t n);

/* Makes sure that n more tokens with all their rounds need no memory but pages: page tables, and
   the scratch of a round. INVALID as keep_check_prompt; NOMEM, CONTEXT leave what was. */
pith_status keep_prepare(struct keep *keep, struct kv_seq *kv, struct keep_point at, int32_t n,
                         pith_error *err);

/* Bytes of pages that must be free, beyond the ones that the lanes hold and have reserved. With
   them n more tokens with all their rounds succeed, whatever the policy chooses. It charges the
   pages that the sequence shares (kv_seq_charge_copies): the counts of several sequences add up,
   and kv_seq_clear_charges ends them. */
struct kv_need keep_lacks(const struct keep *keep, struct kv_seq *kv, struct keep_point at,
                          int32_t n);

/* Whether some lane holds more than its budget, so that a round is worth while. With overwrite=on
   also where one holds its budget and has no chosen victim. */
bool keep_over_budget(const struct keep *keep, const struct kv_seq *kv, struct keep_point at);

/* Makes sure that a round now, before it is due, can run: scratch, and pages for copies of shared
   ones. INVALID as keep_check_prompt; NOMEM, KV_FULL leave what was. */
pith_status keep_prepare_round(struct keep *keep, struct kv_seq *kv, struct keep_point at,
                               pith_error *err);

/* ---- overwriting (steps.c) ---- */

/* Whether the lanes that keep the same positions hold the same ones, slot by slot: always, but in a
   sequence that comes from a file. */
bool keep_lanes_agree(const struct keep *keep, const struct kv_seq *kv);

/* Rows of scores for n_item steps in one pass, of lanes of at most `longest` entries; lanes_differ: where
   some sequence's lanes do not agree. NOMEM leaves what was. */
pith_status keep_steps_reserve(struct keep *keep, int32_t n_item, int64_t longest,
                               bool lanes_differ, pith_error *err);

/* Whether a policy can overwrite. */
bool keep_policy_steps(const struct keep_policy *policy);

/* The notes that a policy's words for marks are in one lane, out [KV_NOTE_ROOM]; their number. */
int32_t keep_mark_notes(const struct keep_config *config, const struct keep_view *view,
                        int32_t layer, int32_t head, struct kv_note *out);

/* Says what is noted of a watched lane's weights, and whether the policy looks at rows. item: of a
   step its number in the pass; -1: no step. view as for keep_round. */
void keep_plan_lane(const struct keep *keep, const struct keep_view *view, int32_t item,
                    struct pi_pass_watched *lane);

/* Shows a policy that looks at rows the attention of a token's queries in a lane, and of a step takes
   the scores. One thread for each lane, and of it the tokens in order; thread is below the number
   that keep_create was told. The fields of a for step are filled in here. */
void keep_attended(const struct keep *keep, const struct keep_view *view, struct keep_attention *a,
                   int32_t item, int32_t thread);

/* Once all KV heads of a layer have attended: chooses the entry that the next step overwrites in
   each lane that holds its budget. It sets that as the lane's victim (kv_seq_set_victim).
   lanes_differ: keep_lanes_agree does not hold. Different items at the same time. */
void keep_choose_victims(const struct keep *keep, struct kv_seq *kv, const struct keep_view *view,
                         int32_t layer, int32_t item, bool lanes_differ);

/* Whether a device that can finds the victims of steps (kv_cache_note_places): by one word, or by
   marks. */
bool keep_config_finds(const struct keep_config *config);

/* Where the lanes' device chooses, keep_choose_victims leaves it to that. The first lists the
   work of a layer of one item, the second has it done for all. keep_set_victims gives an item's lanes
   the result, behind the pass. keep_learn_victims comes before that, once. One thread calls them. */
void keep_list_victims(struct keep *keep, const struct kv_seq *kv, const struct keep_view *view,
                       int32_t layer, int32_t item);
void keep_find_victims(struct keep *keep, struct pi_stream *stream);
void keep_learn_victims(struct keep *keep);
void keep_set_victims(const struct keep *keep, struct kv_seq *kv, int32_t item);

/* Lanes whose next entry overwrites one. */
int32_t keep_count_victims(const struct keep *keep, const struct kv_seq *kv);

/* Adds the entries that a token overwrote in n_lane lanes of a sequence of n_token tokens. */
void keep_tally_overwritten(struct keep_tally *tally, int32_t n_lane, int32_t n_token);

/* ---- rounds ---- */

/* Shows the policy the rows of a pass; only where it needs them. view as for keep_round. */
void keep_observe(const struct keep *keep, const struct keep_view *view,
                  const struct pi_pass_tap_rows *rows);

/* Where keep_learns: what the device does in the place of that, with the rows of an item. The caller
   asks it. */
void keep_learn(const struct keep *keep, const struct keep_view *view,
                const struct pi_pass_rows *rows, int32_t item, struct kv_learn_job *job);

/* Shows the policy entries that a pass wrote; only where it needs it. view as for keep_observe.
   Different lanes at the same time. */
void keep_written(const struct keep *keep, const struct keep_view *view,
                  const struct pi_pass_written *w);

/* Whether the lanes' device does so in the place of the policy, and how. */
bool keep_predicts(const struct keep *keep);
void keep_predict(const struct keep *keep, const struct keep_view *view,
                  const struct pi_pass_entries *rows, int32_t at, struct kv_predict_job *job);

/* Shows the policy what repeating a text looked at in one lane; only where it needs it. view as for
   keep_round. Different lanes at the same time. */
void keep_repeated(const struct keep *keep, const struct keep_view *view,
                   const struct keep_repeat *r);
/* Bytes of pages that repeating a part of n_token tokens of one sequence takes at most. */
int64_t keep_repeat_bytes(const struct kv_geometry *g, int64_t n_token);

/* The positions of the tokens that the first n slots of a lane are of, whatever they are read at
   (KEEP_NEED_PLACES). keep NULL: the full cache. */
void keep_positions(const struct keep *keep, const struct kv_seq *kv, int32_t layer, int32_t head,
                    int32_t *out, int32_t n);
/* The same of one slot. */
int32_t keep_position(const struct keep *keep, const struct kv_seq *kv, int32_t layer, int32_t head,
                      int32_t slot);

/* Drops every entry of a token at or above n_token (kv_seq_truncate). keep NULL: the full cache. */
void keep_truncate(struct keep *keep, struct kv_seq *kv, int32_t n_token);

/* A function that is told which entries rounds evict. */
struct keep_witness {
    void *user;
    /* Called before a lane of kv loses all entries but those at slots [n_kept], ascending.
       Different lanes come at the same time; thread is below the number that keep_create was
       told. */
    void (*dropped)(void *user, const struct kv_seq *kv, int32_t layer, int32_t head,
                    const int32_t *slots, int32_t n_kept, int32_t thread);
};

/* From now on rounds tell *witness, which is copied; NULL ends it. */
void keep_set_witness(struct keep *keep, const struct keep_witness *witness);

/* Whether the policy can wish to end an evaluation that can be taken back, and whether it has wished
   to end one. Asking forgets it. keep NULL: no. */
bool keep_may_stop(const struct keep *keep);
bool keep_stopped(const struct keep *keep);
/* Whether one thread alone shows it entries. */
bool keep_is_alone(const struct keep *keep);

/* One round: brings every lane that holds more than its budget to the budget, with overwrite=on to
   one entry less, and gives whole pages back. Lanes that keep the same positions are brought to one
   set of them, also where they held different ones before. The memory that keep_lacks asked for is
   free, so that it succeeds. Of the view, model and data are filled in here. Adds to *tally. */
pith_status keep_round(struct keep *keep, struct kv_seq *kv, const struct keep_view *view,
                       struct keep_tally *tally, pith_error *err);

#endif
