/*
 * voices.h - continuations of sequences, many side by side. Each is a given text whose probability
 * is wanted, or the likeliest tokens one after the other.
 */
#ifndef PI_EVAL_VOICES_H
#define PI_EVAL_VOICES_H

#include "eval.h"

/* One continuation. Zero it before use; eval_voice_free releases its text. */
struct eval_voice {
    pith_seq *seq;        /* borrowed; its last token's logits are there */
    const int32_t *given; /* [n_given] what is said; NULL: the likeliest tokens */
    int32_t n_given;
    int32_t n_quiet;    /* this number of given tokens opens the answer and does not count */
    int32_t n_predict;  /* most of the likeliest tokens */
    const char *wanted; /* the likeliest tokens end where this stands in their text, in whatever
                           case; NULL: they do not */
    /* set by eval_voices_speak: */
    double logprob;        /* of given: sum of log p; NAN where memory ended */
    struct eval_text text; /* of the likeliest tokens */
    int32_t n_said;
    bool found; /* wanted stands in the text */
    bool ended;
};

/* Says all of them, token by token and all in one batch, each token as a generated one. No voice
   depends on another. Where the KV memory or the context ends, the voice does, too. */
pith_status eval_voices_speak(pith_engine *engine, struct eval_voice *voices, int32_t n,
                              pith_error *err);
void eval_voice_free(struct eval_voice *v);

/* Whether part stands in text, ASCII letters in whatever case. */
bool eval_contains(const char *text, const char *part);

/* An answer whose probability is wanted, as tokens behind a prompt's. */
struct eval_given {
    int32_t *ids;    /* [n_id] owned */
    int32_t n_id;    /* 0: none is wanted */
    int32_t n_quiet; /* as in struct eval_voice */
    double logprob;  /* set: NAN where memory ended */
};
void eval_given_free(struct eval_given *g);

/* Says it on a fork of a sequence that has read the prompt, which stays as it is. */
pith_status eval_given_hear(const pith_seq *seq, struct eval_given *given, pith_error *err);

/* eval_ask, and before the answer is generated the given one is heard behind the same reading of
   the prompt. The run's memory must hold two such items. */
pith_status eval_ask_given(struct eval_run *run, const int32_t *ids, int32_t n_id,
                           const char *message, int32_t n_predict, const char *const *stop,
                           int32_t n_stop, struct eval_given *given, struct eval_answer *out,
                           pith_error *err);

/* The likeliest of n tokens, the first of equals. */
int32_t eval_likeliest(const float *logits, int32_t n);

#endif
