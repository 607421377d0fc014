/* sampler.h - what the library asks of a sampler, beside the public functions. */
#ifndef PI_SAMPLER_H
#define PI_SAMPLER_H

#include "device/device.h"
#include "text/grammar/grammar.h"

/* As pith_sampler_create. The sampler has no row of its own, so that many can share one. */
pith_status pi_sampler_create(const pith_sample_params *params, int32_t n_vocab, pith_sampler **out,
                              pith_error *err);
/* As pith_sampler_sample. The row [n_vocab] is scratch of the call. */
int32_t pi_sampler_sample(pith_sampler *sampler, const float *logits, float *row);

/* Whether samplers of these params change logits before they choose, for which they need a row. */
bool pi_sampler_changes(const pith_sample_params *params);

/* Bytes of a sampler of these params that has no row of its own; NULL: of the default ones. */
int64_t pi_sampler_bytes(const pith_sample_params *params, int32_t n_vocab);

/* Chooses the token that pith_sampler_sample would choose of the whole row, from its best tokens.
   False: they do not decide, and nothing has changed. */
bool pi_sampler_sample_best(pith_sampler *sampler, const struct pi_best *best, int32_t *id);

/* The prompt is over, though no token was sampled yet. */
void pi_sampler_answers(pith_sampler *sampler);

/* Whether the grammar's text has ended and nothing can follow. */
bool pi_sampler_must_end(const pith_sampler *sampler);

/* Why pith_sampler_sample gave -1. */
const pith_error *pi_sampler_error(const pith_sampler *sampler);

#endif
