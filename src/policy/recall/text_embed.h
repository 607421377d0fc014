/*
 * text_embed.h - texts to vectors, by a GGUF embedding model that is loaded beside the one that
 * runs.
 */
#ifndef PI_RECALL_TEXT_EMBED_H
#define PI_RECALL_TEXT_EMBED_H

#include "base/base.h"

struct text_embed;

/* Loads the model at path, to work with n_thread threads (0: all processors). The statuses of
   pith_model_load and pith_engine_create; UNSUPPORTED where pith_embed has no vector of it. */
pith_status text_embed_open(const char *path, int32_t n_thread, struct text_embed **out,
                            pith_error *err);
void text_embed_close(struct text_embed *e); /* NULL is ignored */

/* Floats of a vector. */
int32_t text_embed_dim(const struct text_embed *e);
/* Identifies the model that a vector is of, never 0. */
uint64_t text_embed_maker(const struct text_embed *e);

/* The vector of a text, of length 1 or, where the text has no tokens, all 0. Of a long text, its
   first TEXT_EMBED_TOKENS tokens and an end that the model adds. The same bits for any number of
   threads. NOMEM, and what pith_embed says. */
#define TEXT_EMBED_TOKENS 1024
pith_status text_embed_text(struct text_embed *e, const char *text, size_t len, float *out,
                            pith_error *err);

#endif
