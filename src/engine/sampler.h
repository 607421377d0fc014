/* sampler.h - what the library asks of a sampler with a grammar, beside the public functions. */
#ifndef PI_SAMPLER_H
#define PI_SAMPLER_H

#include "text/grammar/grammar.h"

/* The prompt is over, though no token was sampled yet. */
void pi_sampler_answers(pith_sampler *sampler);

/* Whether the grammar's text has ended and nothing can follow. */
bool pi_sampler_must_end(const pith_sampler *sampler);

/* Why pith_sampler_sample gave -1. */
const pith_error *pi_sampler_error(const pith_sampler *sampler);

#endif
