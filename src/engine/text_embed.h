/*
 * text_embed.h - the vectors of recall's texts, by a GGUF embedding model that is loaded beside the
 * one that runs, with an engine of its own.
 */
#ifndef PI_ENGINE_TEXT_EMBED_H
#define PI_ENGINE_TEXT_EMBED_H

#include "policy/recall/text_embed.h"

/* The vector of a longer text is that of its first tokens, up to this number, and an end that the
   model adds. */
#define PI_TEXT_EMBED_TOKENS 1024

/* The statuses of pith_model_load and pith_engine_create; UNSUPPORTED where pith_embed has no
   vector of it. */
pith_status pi_text_embed_open(const char *path, int32_t n_thread, struct text_embed **out,
                               pith_error *err);

#endif
