/*
 * read.h - which stored entries attention looks at. Nothing is evicted. For each chunk of a prompt,
 * and for each generated token, a policy gives every entry of a lane one number. The best of them
 * are read together with the chunk's own entries, and the rest is left alone until the next chunk.
 * The rules, the same for every policy (rules.c), say how many, when, and which are always read.
 *
 * A new policy is one file with one const struct read_policy and one line in policies.c.
 */
#ifndef PI_READ_H
#define PI_READ_H

#include "model/forward.h"
#include "policy/policy.h"

/* ---- the view of a policy ---- */

struct read_rules;

/* Everything in it is read-only. */
struct read_view {
    const struct kv_seq *kv;
    const struct policy_model *model; /* g.index has what the policy asked for */
    const struct read_rules *rules;
    const void *data; /* what the policy's open made; NULL without */
};

/* The queries of a chunk in the lane of one KV head. */
struct read_chunk {
    int32_t layer;
    int32_t head; /* KV head */
    int32_t n;    /* entries of earlier tokens: slots 0 .. n - 1 */
    int32_t n_tok;
    int32_t n_group;
    int32_t pos0;      /* position of the first query */
    const float *q;    /* after rope: query (t, g) at q + t * q_stride + g * dim_k; NULL: the device
                          picks */
    struct pi_at q_at; /* the same on the device */
    size_t q_stride;
    int32_t n_choose; /* entries that will be chosen by score */
    float *beside;    /* [n_tok][n_group] for chosen and adjust: of this chunk and KV head, from one
                         to the other in one layer */
    float *vector;    /* [n_vector][dim_k] for ask, until the device has scored */
    void *scratch;    /* [scratch_size] of this call alone, aligned for any type. Where score is not
                      about what the device scored, chosen finds what it left there */
};

/* ---- policies ---- */

/* The role of a layer. */
enum read_role {
    READ_OWN,    /* chooses for itself */
    READ_DENSE,  /* reads everything */
    READ_SOURCE, /* reads everything, and chooses for the READ_REUSE layers behind it */
    READ_REUSE,  /* reads the positions that the last READ_SOURCE layer chose, those that its lane
                    still has */
};

/* NULL is for "does not apply", but score is always there. params is the policy's own struct. */
struct read_policy {
    const char *name;
    const char *summary;  /* one line */
    const char *citation; /* authors, title, where */
    const char *defaults; /* options that are read before the user's, "budget=256"; NULL: none */
    const struct policy_param *params; /* keys of its own; NULL: none */
    size_t params_size;                /* of the struct that they fill; at most READ_PARAMS_SIZE */
    const struct policy_preset *presets; /* NULL: none */
    const char *file;                    /* the option that it cannot do without; NULL: none */
    int32_t page_len; /* entries of the pages that it is made for; 0: pages do not matter to it */
    /* Loads what all sequences of an engine read (a projection), once. *data is the policy's, freed
       by close; on failure there is nothing to close. Any status, with a sentence. */
    pith_status (*open)(const void *params, const struct policy_model *model, void **data,
                        pith_error *err);
    void (*close)(void *data);
    /* Whether the options can work with the rules and this shape; INVALID, with the numbers. */
    pith_status (*check)(const void *params, const struct read_rules *rules,
                         const struct kv_geometry *g, pith_error *err);
    /* The data that pages hold beside entries, a set of kv_index; *dim is kv_geometry.index_dim.
       NULL: nothing. */
    uint32_t (*index)(const void *params, const struct kv_geometry *g, int32_t *dim);
    /* With KV_INDEX_PROJ: kv_cache_set_projection's matrices, which live until close. */
    const float *(*projection)(const void *data);
    /* NULL: READ_OWN throughout. */
    enum read_role (*role)(const void *params, const struct policy_model *model, int32_t layer);
    /* Bytes of scratch for lanes of up to n entries, the chunk's own and later ones included, and
       chunks of up to n_tok tokens. It falls with neither. NULL: none. */
    size_t (*scratch_size)(const void *params, const struct policy_model *model, int32_t n,
                           int32_t n_tok);
    /* By how many sets of vectors the device scores a lane for chunks of n_tok tokens: all lanes of
       a layer in one call. 0, or NULL: score does it. */
    int32_t (*n_set)(const void *params, const struct policy_model *model, int32_t n_tok);
    /* Where n_set is not 0: fills kind, reduce, q and n_q, for columns also dims and n_dim, of a
       job for each set. They lie in c->vector, n_vector of all sets at most. */
    void (*ask)(const void *params, const struct read_view *view, const struct read_chunk *c,
                struct kv_score_job *jobs);
    int32_t (*n_vector)(const void *params, const struct policy_model *model, int32_t n_tok);
    /* Whether a device with memory of its own makes the vectors of such chunks: ask says which
       (kv_score_pick). Its scores then are the policy's, and stay there: one set, or with `unites`
       one of each query head. NULL: never. */
    bool (*picks)(const void *params, const struct policy_model *model, int32_t n_tok);
    /* Then, whether such chunks, of one token, are blended by what it kept (kv_score_soft.keeps,
       kv_blend_job) instead of chosen and adjust. NULL: never. */
    bool (*blends)(const void *params, int32_t n_tok);

    /* Where n_set is not 0, out has what the device gave, [n_set][n], and is changed in place.
       out[s], [c->n]: how much entry s deserves to be read, higher = read; never NaN. Of equal
       scores the lower slot is taken. Pure; lanes are scored at the same time by several
       threads. */
    void (*score)(const void *params, const struct read_view *view, const struct read_chunk *c,
                  float *out);
    /* With READ_SOURCE: one set for all KV heads of a layer. score then fills n_group rows, one for
       each query head, out [n_group][n]. Every query head's best c->n_choose stand in the order of
       their scores. The first of all heads, then the second of all heads, ... are taken until there
       are c->n_choose different ones. */
    bool unites;
    /* After the choice of a READ_OWN layer, slots [n_slot] ascending, without the chunk's own:
       writes c->beside. */
    void (*chosen)(const void *params, const struct read_view *view, const struct read_chunk *c,
                   const int32_t *slots, int32_t n_slot);
    /* After the attention over a choice of a READ_OWN layer: output (t, g) at out + t * out_stride
       + g * dim_v. The content of c->scratch is arbitrary. */
    void (*adjust)(const void *params, const struct read_view *view, const struct read_chunk *c,
                   float *out, size_t out_stride);
    /* Whether it has wished to end the evaluation since this was asked last. Its lanes are scored
       one after the other, by the evaluating thread. NULL: it never does. */
    bool (*stopped)(void *data);
};

extern const struct read_policy read_quoka;
extern const struct read_policy read_sampleattention;
extern const struct read_policy read_sparq;
extern const struct read_policy read_loki;
extern const struct read_policy read_lessismore;
extern const struct read_policy read_tidaldecode;
extern const struct read_policy read_quest;
extern const struct read_policy read_snapkv;
extern const struct read_policy read_keydiff;
extern const struct read_policy read_custom; /* in no list: read_config_set_custom */

/* Policy i of those that Pith has; NULL past the last. */
const struct read_policy *read_policy_at(int32_t i);

/* ---- options ---- */

#define READ_PARAMS_SIZE 1024

enum read_phase { READ_BOTH, READ_PROMPT, READ_DECODE };

/* The options that every policy has; rules.c says what each does. */
struct read_rules {
    struct policy_budget budget; /* entries of a lane that are read beside the chunk's own: tokens,
                                    or a share of the entries of earlier tokens; never bytes */
    int32_t chunk;               /* most tokens of a prompt that choose together */
    int32_t sinks;        /* number of a lane's first entries that are always read; in the budget */
    int32_t recent;       /* number of its last, before the chunk's own, likewise */
    int32_t tail;         /* number of a prompt's last tokens that read everything */
    int32_t dense_layers; /* number of first layers that read everything */
    double gate;   /* a lane is read whole up to gate * budget entries; at least 1, or 0: what
                             measurements say (rules.c) */
    int32_t phase; /* enum read_phase: what reads a part */
};

extern const struct policy_param read_rule_params[];

/* Options as checked values. A plain value: copying it is allowed. */
struct read_config {
    const struct read_policy *policy; /* NULL: everything is read */
    struct read_rules rules;
    union {
        max_align_t align;
        uint8_t bytes[READ_PARAMS_SIZE];
    } params; /* the policy's own */
};

/* "NAME" or "NAME:key=value,..." or "NAME:PRESET,key=value,..."; NULL and "none" read everything.
   INVALID with a sentence. */
pith_status read_config_parse(const char *text, struct read_config *out, pith_error *err);

/* The same for a policy that is given and options without its name; NULL or "": all defaults. */
pith_status read_config_set(const struct read_policy *policy, const char *options,
                            struct read_config *out, pith_error *err);

/* The policy of a program that has scores of its own, params->read_score. INVALID as above. */
pith_status read_config_set_custom(const pith_engine_params *params, struct read_config *out,
                                   pith_error *err);

/* Puts the index that the policy wants into the geometry, and checks that both go together.
   INVALID, UNSUPPORTED. */
pith_status read_config_fit(const struct read_config *config, struct kv_geometry *g,
                            pith_error *err);

/* Entries that a chunk of n_tok tokens reads beside its own of a lane with n of earlier tokens; n:
   all of them. */
int32_t read_budget_for(const struct read_rules *rules, int32_t n, int32_t n_tok);
/* The same of a chunk of several tokens. */
int32_t read_budget_at(const struct read_rules *rules, int32_t n);

/* Of n slots n_read are read: the first `sinks`, the last `recent`, and of the others the ones of
   highest score. read_choice is the choice of those, behind the place for the first ones in slots
   [n_read]. Once it is made, read_fill makes all of them, ascending. */
struct kv_choose_job read_choice(const struct read_rules *rules, const float *score, int32_t n,
                                 int32_t n_read, int32_t *slots);
void read_fill(const struct read_rules *rules, int32_t n, int32_t n_read, int32_t *slots);

/* Entries up to which a single token reads a lane whole; -1: it reads all lanes whole. */
int64_t read_step_gate(const struct read_rules *rules);

/* ---- reading ---- */

/* The entries that were there and that were read, over all layers, KV heads and chunks. */
struct read_tally {
    int64_t n_chunk;  /* chunks times lanes */
    int64_t n_sparse; /* of them: those that read a part */
    int64_t n_step;   /* of n_chunk: single tokens */
    int64_t n_step_sparse;
    int64_t n_stored; /* entries that the lanes of all those chunks held, their own included */
    int64_t n_read;   /* of them: those that were read */
    double seconds;   /* spent choosing: over all threads, but for the device's part */
    int32_t first_at; /* tokens in the sequence before the first chunk that read a part; valid when
                         n_sparse > 0 */
};

/* The policy of an engine, with scratch for a pass. One thread at a time uses it, and the pass's
   workers through its reader. */
struct read;

/* *out is NULL where everything is read. config was fitted to model->g; *model is copied, what it
   points to is borrowed until read_free. Opens the policy: its statuses; NOMEM. */
pith_status read_create(const struct read_config *config, const struct policy_model *model,
                        int32_t n_thread, struct read **out, pith_error *err);
void read_free(struct read *read); /* NULL is ignored */
const struct read_config *read_get_config(const struct read *read);
/* Whether the policy can wish to end an evaluation, and whether it has. Asking forgets it. read
   NULL: no. */
bool read_may_stop(const struct read *read);
bool read_stopped(const struct read *read);
/* NULL without KV_INDEX_PROJ. */
const float *read_projection(const struct read *read);

/* The reader for pi_pass_set_reader. It lives as long as read. */
void read_reader(struct read *read, struct pi_pass_reader *out);

/* Tokens at the beginning of an evaluation of n_token tokens that are read in chunks, the others
   reading everything. A step is an evaluation of one token, a prompt one of more. */
int32_t read_tokens(const struct read *read, int32_t n_token);

/* Of `most` tokens that a pass has room for, how many of an item's next left tokens it takes. The
   first left_read of them are read in chunks. Chunks are never cut by a pass, so that the entries
   that are read depend on the evaluation alone. May be 0. until: tokens to the item's next keep
   round, where a chunk ends, too; at least 1. */
int32_t read_take(const struct read *read, int32_t most, int32_t left, int32_t left_read,
                  int32_t until);

/* Scratch for passes of up to n_chunk chunks over lanes of up to `longest` entries, their own
   included. NOMEM leaves what was. */
pith_status read_reserve(struct read *read, int32_t n_chunk, int64_t longest, pith_error *err);
/* Most slots that a chunk then selects in a lane: pi_pass_reserve_read's cap. */
int64_t read_most(const struct read *read, int64_t longest);

/* Adds what the last pass read for an item to *tally, once; between passes. item as the pass was
   given it. */
void read_add_tally(struct read *read, const struct pi_pass_item *item, struct read_tally *tally);

/* Of the first `same` tokens of a sequence, how many can be kept. A fresh sequence that is
   evaluated to n_token tokens at once must have the same entries of them, and go on with the same
   chunks. They are the tokens that are read whole in any evaluation, cut where a chunk ends. tally
   is the sequence's. */
int32_t read_reusable(const struct read *read, const struct read_tally *tally, int32_t same,
                      int32_t n_token);

#endif
