/*
 * share.h - several places of a sequence, or several sequences, read one page. A share policy works
 * on the tokens that a sequence generates. Tokens form steps, a closed step is compared with
 * earlier ones, and pages that are near enough stand for each other. prefix.h has the other form,
 * exact reuse of prefixes across requests, which needs no policy. Only kv/ changes the cache.
 */
#ifndef PI_SHARE_H
#define PI_SHARE_H

#include "policy/recall/recall.h"
#include "pith/policy.h"

/* ---- options ---- */

enum share_kind {
    SHARE_NONE,
    SHARE_MEMSHARE,
    SHARE_RANDOM, /* the control: as many pages as it is told, with pages taken by chance */
};

/* How two pages are compared. */
enum share_form {
    SHARE_RMS,   /* the scale-free form, with the relative guard (the default) */
    SHARE_PAPER, /* as MemShare writes it: depends on the model's shape */
};

/* How what was shared is read. */
enum share_mode {
    SHARE_POSITIONAL, /* at the positions of the page that went: exact where keys are equal before
                         rotation */
    SHARE_LITERAL,    /* the paper's: at the positions where it was written, counting for both */
};

struct share_options {
    double step;        /* the cosine of two steps' bags of tokens is above this; 0.8 */
    double block;       /* below 0: the sequence measures it */
    double quantile;    /* of its measurements of like steps */
    double relative;    /* the guard of SHARE_RMS: so is the relative distance */
    int32_t form;       /* enum share_form */
    int32_t mode;       /* enum share_mode */
    int32_t candidates; /* most similar steps that are compared with, 8 */
    int32_t across;     /* 1: other sequences' steps are candidates, too */
    int32_t runs; /* under a keep policy: the most stretches of a lane that are read elsewhere,
                     for which memory is set aside */
    double loose; /* factor of `block` and `relative` in a scan under memory pressure */
    double share; /* SHARE_RANDOM: of the pages of closed steps */
    int32_t seed; /* SHARE_RANDOM */
};

/* A plain value: copying it is allowed. */
struct share_config {
    enum share_kind kind;
    struct share_options options;
    bool evicts; /* fitted: there is a keep policy */
};

/* "memshare:step=0.9,..."; NULL, "" and "none": nothing. INVALID. */
pith_status share_config_parse(const char *text, struct share_config *out, pith_error *err);
/* Whether it goes together with a keep policy and a form of recall. INVALID with the reason. */
pith_status share_config_fit(struct share_config *c, const struct keep_config *keep,
                             const struct recall_config *recall, pith_error *err);

/* Bytes of pages that a sequence can take, beyond its entries, because rounds pack shared stretches
   apart. It is for n_token tokens of which lanes hold at most n_entry. */
int64_t share_bytes_at(const struct share_config *c, const struct kv_geometry *g, int32_t n_token,
                       int32_t n_entry);

/* ---- steps ---- */

struct share;     /* an engine's */
struct share_seq; /* a sequence's steps */

/* UNSUPPORTED (a model without tokenizer, which has no steps; a rotation that deltas cannot
   express), NOMEM. Objects that model points to are borrowed until share_free. */
pith_status share_create(const struct share_config *c, const struct policy_model *model,
                         int32_t n_thread, struct share **out, pith_error *err);
void share_free(struct share *share); /* every share_seq is freed before; NULL is ignored */

/* owner: shown to a listener. */
pith_status share_seq_create(struct share *share, const pith_seq *owner, struct share_seq **out,
                             pith_error *err);
void share_seq_free(struct share_seq *seq);
/* Bytes of the steps that it remembers. */
size_t share_seq_bytes(const struct share_seq *seq);
/* kv: the fork of the other's. */
pith_status share_seq_fork(const struct share_seq *from, const pith_seq *owner, struct kv_seq *kv,
                           struct share_seq **out, pith_error *err);
/* Forgets what lies at or above n_token, which the lanes have forgotten already. */
void share_seq_truncate(struct share_seq *seq, int32_t n_token);

/* Forgets which steps there were, in a sequence that shares nothing: as if all were a prompt. */
void share_seq_forget(struct share_seq *seq);

/* Before token number n_token is evaluated alone: memory for what it may close. NOMEM leaves
   everything as it was. */
pith_status share_seq_begin(struct share_seq *seq, struct kv_seq *kv, int32_t n_token,
                            pith_error *err);
/* Takes that back, where the token was not evaluated and its entries are gone. */
void share_seq_cancel(struct share_seq *seq);

/* After an evaluation: tokens [n_token] are the sequence's, of which the last was evaluated alone
   (step) or not, which ends the step before it. Where a step closes, compares
   and shares. Different sequences one after the other. */
void share_seq_note(struct share_seq *seq, struct kv_seq *kv, const int32_t *tokens,
                    int32_t n_token, bool step);

/* Compares all closed steps that share nothing once more, at looser thresholds; returns the bytes
   that came free. */
int64_t share_seq_scan(struct share_seq *seq, struct kv_seq *kv);

/* A sequence that keeps no more than this number of tokens is as if it shared nothing; INT32_MAX
   where nothing has happened. */
int32_t share_seq_first_change(const struct share_seq *seq);
/* The tokens of the sequence may share pages in unknown ways: they come from a file. */
void share_seq_set_loaded(struct share_seq *seq);

/* After a keep round: lanes were packed, so that steps whose pages are gone are no candidates. */
void share_seq_note_round(struct share_seq *seq);

void share_seq_stats(const struct share_seq *seq, pith_share_stats *out);

void share_set_log(struct share *share, pith_share_fn *fn, void *user, bool all);

#endif
