/*
 * text_embed.h - what recall of text needs of an embedding model: texts to vectors. The engine
 * makes one for recall (engine/text_embed.c), as it takes an engine.
 */
#ifndef PI_RECALL_TEXT_EMBED_H
#define PI_RECALL_TEXT_EMBED_H

#include "base/base.h"

struct text_embed {
    int32_t dim;    /* floats of a vector */
    uint64_t maker; /* identifies the model that a vector is of, never 0 */
    /* The vector of a text, of length 1 or, where the text has no tokens, all 0; out is [dim]. The
       same bits for any number of threads. NOMEM, and what pith_embed says. */
    pith_status (*text)(struct text_embed *e, const char *text, size_t len, float *out,
                        pith_error *err);
    void (*close)(struct text_embed *e);
};

/* Loads the model at path, to work with n_thread threads (0: all processors). */
typedef pith_status text_embed_open_fn(const char *path, int32_t n_thread, struct text_embed **out,
                                       pith_error *err);

#endif
