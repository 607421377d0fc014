/*
 * replay.h - policies at work on queries, keys and values of the caller's, without a model: the
 * very store, rules and scores of the engine. Not installed and not part of the public interface;
 * its functions are exported because eval/, their only user, also stands on a shared library.
 */
#ifndef PI_REPLAY_H
#define PI_REPLAY_H

#include "pith/pith.h"

struct pi_replay;

struct pi_replay_shape {
    int32_t n_layer;
    int32_t n_head; /* KV heads */
    int32_t dim_k;
    int32_t dim_v;
    int32_t page_len; /* as in pith_engine_params */
    const char *type_k;
    const char *type_v;
    int32_t n_token; /* most tokens that will be read */
    /* The figures of the model that policies want; zero where they are not known. */
    int32_t n_group;    /* query heads that share a KV head; 0: 1 */
    float scale;        /* multiplies q.k; 0: 1 / sqrt(dim_k) */
    int32_t n_pair;     /* rotated pairs of a head; 0: keys are taken for not rotated */
    bool adjacent;      /* pairs (2i, 2i+1); otherwise (i, i + n_pair) */
    const double *freq; /* [n_pair] radians per position, copied */
};

/* keep and read are the option texts of pith_engine_params; NULL is the full cache, of which
   everything is read. INVALID, NOMEM, and the statuses of a read policy that opens files.
   UNSUPPORTED: the policy learns from queries while it runs, and those are not replayed. */
PITH_API pith_status pi_replay_create(const struct pi_replay_shape *shape, const char *keep,
                                      const char *read, struct pi_replay **out, pith_error *err);
PITH_API void pi_replay_free(struct pi_replay *r); /* NULL is ignored */

/* Reads the tokens up to number n_token, with the rounds that are due on the way. Afterwards the
   lanes hold the same as after an evaluation of these tokens. tokens [n_token], k and v
   [n_layer] -> [n_token][n_head][dim] begin with the first token of all, at position 0. INVALID
   (fewer than were read already, more than the shape says), NOMEM. */
PITH_API pith_status pi_replay_read(struct pi_replay *r, int32_t n_token, const int32_t *tokens,
                                    const float *const *k, const float *const *v, pith_error *err);

/* Returns the entries of a lane and writes their positions, ascending, [at most as many as tokens
   were read]. */
PITH_API int32_t pi_replay_lane(const struct pi_replay *r, int32_t layer, int32_t head,
                                int32_t *positions);

/* The read policy's choice for the tokens that follow those that were read. They are one chunk
   of a prompt, whose entries are stored for as long as it is looked at. The replay goes on as if
   it had never been. */

/* Begins to look at the next n_token tokens, which end what was looked at before. k and v as for
   pi_replay_read. INVALID (more tokens than the policy lets choose together, or than the shape
   says), NOMEM. */
PITH_API pith_status pi_replay_look(struct pi_replay *r, int32_t n_token, const float *const *k,
                                    const float *const *v, pith_error *err);
/* Lets the lanes of a layer choose; layers in order, each once. q: the chunk's queries after rope,
   [n_token][n_head * n_group][dim_k]. */
PITH_API void pi_replay_choose(struct pi_replay *r, int32_t layer, const float *q);
/* Entries of a lane of that layer that the chunk reads beside its own, and their positions,
   ascending, [as pi_replay_lane]; without a read policy all. */
PITH_API int32_t pi_replay_chosen(const struct pi_replay *r, int32_t head, int32_t *positions);

struct pi_replay_stats {
    int64_t n_round;
    int64_t n_evicted;     /* entries, over all lanes */
    int64_t kv_peak_bytes; /* most bytes of pages in use at once */
};
PITH_API void pi_replay_get_stats(const struct pi_replay *r, struct pi_replay_stats *out);

#endif
