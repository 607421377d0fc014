/*
 * chunks.h - what perplexity and divergence share: a text cut into chunks of tokens, two caches
 * that read the same tokens, and means with their errors.
 */
#ifndef PI_EVAL_CHUNKS_H
#define PI_EVAL_CHUNKS_H

#include "eval.h"

/* ---- the text ---- */

/* Chunk i is ids [i * n_ctx, (i + 1) * n_ctx); what is left at the end is not read. */
struct eval_chunks {
    int32_t *ids; /* [n_id] owned */
    int32_t n_id;
    int32_t n_ctx;
    int32_t n_chunk;
    int32_t bos; /* takes the place of each chunk's first token; -1: the model wants none */
};

/* Tokenizes the text, BOS as the model asks. n_chunk 0: all that there are. at_least: chunks that
   the text must have. INVALID (named), NOMEM, and what pith_tokenize says. The caller frees. */
pith_status eval_chunks_make(const struct eval_setup *setup, const char *text, size_t text_len,
                             int32_t n_ctx, int32_t n_chunk, int32_t at_least,
                             struct eval_chunks *out, pith_error *err);
void eval_chunks_free(struct eval_chunks *c);

/* The tokens of a chunk as the model reads them, [n_ctx]. */
void eval_chunks_read(const struct eval_chunks *c, int32_t i, int32_t *out);

/* Sets "note" of the summary where the run needs a remark. The reasons are that nothing was
   evicted, or nothing before the last token that counts (n_after: tokens that count behind a first
   round). A third is that chunks are longer than the model's training. False when out of memory. */
bool eval_chunks_note(const struct eval_chunks *c, const struct eval_setup *setup, int64_t evicted,
                      int64_t n_after, json_t *summary);

/* ---- the caches ---- */

/* The params of the full cache that a measured one is compared with: nothing is evicted, its memory
   fits. Storage is of reference_type, or as in measured where that is NULL. */
pith_engine_params eval_full_params(const pith_engine_params *measured, const char *reference_type);

/* ---- figures ---- */

/* Sums of a sample. */
struct eval_moments {
    double sum, sum2;
    int64_t n;
};
void eval_moments_add(struct eval_moments *m, double value);
void eval_moments_join(struct eval_moments *m, const struct eval_moments *other);
double eval_moments_mean(const struct eval_moments *m); /* NAN when empty */
/* Of the mean: sqrt((E[x^2] - E[x]^2) / (n - 1)); NAN for fewer than two values. */
double eval_moments_se(const struct eval_moments *m);

/* log(sum exp(logits - max)) as llama-perplexity has it, and the greatest logit: -(logit - *max -
   result) is the negative log-likelihood of a token. */
double eval_log_sum(const float *logits, int32_t n, float *max);

/* Sets key of object; false when out of memory (value NULL included), so that calls may be joined
   with &&. The value is stolen. */
bool eval_set(json_t *object, const char *key, json_t *value);

#endif
