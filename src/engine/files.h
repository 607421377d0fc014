/*
 * files.h - the caller's bytes of a snapshot (docs/snapshot.md), read, for files.c and for the fuzz
 * target.
 */
#ifndef PI_ENGINE_FILES_H
#define PI_ENGINE_FILES_H

#include "kv/kv.h"

#define PI_SAVED_LAYOUT 2 /* layout 1 is read, too: its head has no fingerprint */

/* The head before the tokens. Without text, marks and state nothing else follows. */
struct pi_saved_head {
    int32_t no_token; /* -1: a list of tokens alone begins with a token */
    uint32_t layout;
    uint32_t n_token;
    uint32_t n_prompt;
    uint32_t text_size;
    uint32_t n_mark;
    uint64_t state_size;
    uint64_t fingerprint; /* of the model; 0: not known */
};

/* The arrays lie in the bytes that were read; without memory all but the tokens are NULL. */
struct pi_saved {
    struct pi_saved_head head;
    const int32_t *tokens; /* [n_token] any numbers */
    const int32_t *victim; /* [n_layer][n_head] any numbers; NULL: the tokens are all */
    const float *mark;     /* lane by lane [n_mark][entries] any numbers */
    const uint8_t *state;  /* [state_size] */
    const char *text;      /* [text_size] the policy as the engine was given it; not terminated */
    bool taken;            /* a verb's load took what stands beside the tokens */
};

/* Entries in all lanes, and the bytes of `victim`. */
uint64_t pi_saved_entries(const struct kv_seq *kv, const struct kv_geometry *g);
size_t pi_saved_victims_bytes(const struct kv_geometry *g);

/* Cuts bytes, at a multiple of 4, into their parts for a sequence whose entries are there. FORMAT
   where sizes do not add up, UNSUPPORTED (a layout that is not known). */
pith_status pi_saved_read(const struct kv_seq *kv, const struct kv_geometry *g, const char *path,
                          const uint8_t *bytes, size_t size, struct pi_saved *out, pith_error *err);

#endif
