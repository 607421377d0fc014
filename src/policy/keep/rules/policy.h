/*
 * policy.h - the definition of a keep policy: its view of a sequence, the data that it asks for,
 * and its functions. It gives each live entry of a lane a score, higher is kept, and changes
 * nothing. The rules say how many entries go, when, and which never do (options.h).
 *
 * A new policy is one file with one const struct keep_policy and one line in policies.c.
 */
#ifndef PI_KEEP_POLICY_H
#define PI_KEEP_POLICY_H

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
    /* Whether observe looks at a layer's next rows; NULL: always. */
    bool (*observes)(const void *params, const struct keep_view *view, int32_t layer);
    /* The same by a device (kv/learn.h): says what it does with an item's rows in a layer. The
       state is its device's then, but for the first learn_head bytes, which this brings up to date.
       `score` finds all of it in view->state nevertheless. NULL: the host observes. */
    void (*learn)(const void *params, const struct keep_view *view, const struct pi_pass_rows *rows,
                  int32_t item, struct kv_learn_job *job);
    size_t (*learn_head)(const void *params, const struct policy_model *model);
    bool learns_before_rope; /* observe and learn look at queries before rope, else behind it */
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
    /* With KEEP_NEED_WEIGHTS or KEEP_NEED_STEP_WEIGHTS, or for overwrite=on: what is noted of
       weights, out [KEEP_WORD_ROOM]; returns the number of words. A word for marks takes the place
       of attended, one for steps that of step. NULL: none. */
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
    /* score takes nothing but marks and norms: it also scores steps, with a lane that has no
       pos. */
    bool scores_steps;
    /* The words have a step's scores: with these options, or with others, which step does. */
    bool notes_steps;
    /* Whether step heeds a->add; else that is never set. */
    bool step_adds;
    /* Bytes of a->scratch for a step over n entries; it does not fall with n. NULL: none. */
    size_t (*step_scratch)(const void *params, const struct policy_model *model, const void *data,
                           int32_t n);
    /* Called once before the scores of a round; returns whether it changed view->state, which goes
       to the device then that learns. */
    bool (*begin)(const void *params, const struct keep_view *view);
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
    /* Whether it can wish to end an evaluation before a round has evicted something; NULL:
       never. */
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

/* Whether a policy can overwrite. */
bool keep_policy_steps(const struct keep_policy *policy);

#endif
