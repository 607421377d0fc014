/* sampler.h - what the library asks of a sampler, beside the public functions. */
#ifndef PI_SAMPLER_H
#define PI_SAMPLER_H

#include "device/device.h"
#include "text/grammar/grammar.h"

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
