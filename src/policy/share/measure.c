/*
 * measure.c - the threshold of pages where none is given. Distances mean something else in every
 * model, so a sequence measures its own. Its pairs are pages of like steps, and pages of other
 * tokens that chance took. Pages below a quantile of the first stand for each other, as far as they
 * are nearer than all but few of the second.
 *
 * Invariant: the threshold depends on the steps that closed before alone. So a fork goes on as its
 * origin, and a sequence that forgets its last steps is as if they had not been.
 */
#include <math.h>
#include <stdlib.h>

#include "policy/share/internal.h"

#define LEAST_LIKE 8      /* distances of like steps from which a quantile means something */
#define LEAST_CHANCE 4    /* and of chance */
#define CHANCE_SHARE 0.01 /* of pages by chance that may be nearer than the threshold */

void share_sample_add(struct share_seq *seq, int32_t step, double distance, bool chance)
{
    if (seq->n_sample == seq->cap_sample) /* SHARE_SAMPLES are enough */
        return;
    seq->sample[seq->n_sample++] = (struct share_sample){step, (float)distance, chance};
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The quantile of one kind; 0 where there are fewer than `least`. */
static double quantile(const struct share_seq *seq, bool chance, int32_t least, double q)
{
    float sorted[SHARE_SAMPLES];
    int32_t n = 0;
    for (int32_t i = 0; i < seq->n_sample; i++)
        if (seq->sample[i].chance == chance)
            sorted[n++] = seq->sample[i].distance;
    if (n < least)
        return 0.0;
    qsort(sorted, (size_t)n, sizeof(*sorted), by_size);
    return (double)sorted[(int32_t)(q * (n - 1))];
}

double share_block_limit(const struct share_seq *seq)
{
    const struct share_options *o = &seq->share->config.options;
    if (o->block >= 0.0)
        return o->block;
    double like = quantile(seq, false, LEAST_LIKE, o->quantile);
    double chance = quantile(seq, true, LEAST_CHANCE, CHANCE_SHARE);
    return fmin(like, chance);
}
