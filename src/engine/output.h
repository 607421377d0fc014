/*
 * output.h - the text of an answer: chooses tokens from logits, one after the other, until
 * something ends the text. It makes whole characters of them, none of which is a part of a stop
 * string. Other files make the logits and take the text: generate.c for one sequence, the scheduler
 * for many.
 *
 * The order of calls: init, accept for the prompt, next for each row of logits. That ends when next
 * says that the text has ended, or is_full does. Then flush, unless a stop string or the caller
 * ended the text, and free.
 */
#ifndef PI_OUTPUT_H
#define PI_OUTPUT_H

#include "text/stop.h"

struct pi_output {
    const pith_model *model;            /* borrowed until pi_output_free, as params */
    const pith_generate_params *params; /* with what params point to */
    bool wants_text;                    /* false: bytes are made for stop strings alone */
    const int32_t *forced; /* [n_forced] borrowed: take the place of the first that would be chosen;
                              may be set after pi_output_init */
    int32_t n_forced;
    pith_sampler *sampler; /* owned */
    struct pi_stop stop;   /* owned */
    int32_t *stop_id;      /* [stop.n_string] owned: the control token of this name; -1: there is
                              none. NULL: there are no strings */
    pith_utf8_stream utf8;
    char *piece; /* [piece_cap] bytes of one token, owned */
    size_t piece_cap;
    char *chars;    /* [3 * (piece_cap + 4)] whole characters, owned */
    size_t n_given; /* of stop.held: handed out by the last call */
    int32_t n_generated;
    pith_stop_reason reason; /* valid once the text has ended */
};

/* The text of one row of logits, or of the end. */
struct pi_output_part {
    int32_t token;    /* -1: none */
    const char *text; /* [len] characters that are certain now, borrowed until the next call */
    size_t len;
    bool ended; /* the text is over, out->reason says why */
};

/* Adds seed to the seed of params. INVALID (a parameter out of range, named), NOMEM. *out is zeroed
   first, so that it may be freed after a failure. */
pith_status pi_output_init(struct pi_output *out, const pith_model *model,
                           const pith_generate_params *params, uint64_t seed, bool wants_text,
                           pith_error *err);
void pi_output_free(struct pi_output *out);

/* Tells the sampler of tokens that are not chosen here: the prompt. */
void pi_output_accept(struct pi_output *out, const int32_t *tokens, int32_t n);

/* Whether there are n_predict tokens. */
bool pi_output_is_full(const struct pi_output *out);

/* Chooses the next token from the logits behind the sequence, while it is not full. An end token
   ends the text, and is no part of it; so does a grammar behind whose text nothing can follow.
   NOMEM; INVALID or UNSUPPORTED: the grammar gives no token. */
pith_status pi_output_next(struct pi_output *out, const struct pith_seq *seq,
                           struct pi_output_part *part, pith_error *err);

/* The text is over for a reason other than a stop string or the caller: what was held back is text.
   A character that the model itself left unfinished (PITH_STOP_END) shows as U+FFFD; one that was
   cut off does not. NOMEM. */
pith_status pi_output_flush(struct pi_output *out, pith_stop_reason reason,
                            struct pi_output_part *part, pith_error *err);

#endif
