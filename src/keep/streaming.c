/*
 * streaming.c - the first entries and the most recent ones. Xiao, Tian, Chen, Han, Lewis,
 * "Efficient Streaming Language Models with Attention Sinks", ICLR 2024 (arXiv 2309.17453), section
 * 3.2: four initial tokens, which the softmax needs to put its surplus on, and a rolling window.
 *
 * Departure: the paper rotates keys by their place within the cache, so that distances never exceed
 * its size. Pith keeps the original positions, as for every policy: a stored key is never rotated
 * again, so that pages can be shared and forked, and a distance means the same with and without
 * eviction. Beyond the length that a model was trained for, the distance to the sinks is therefore
 * one that it has never seen.
 */
#include "keep/keep.h"

/* score(i) = position(i). The sinks are the rules' business. Positions above 2^24 share floats with
   their neighbours; the order holds, because of equals the older goes first. */
static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    (void)params;
    (void)view;
    for (int32_t i = 0; i < lane->n; i++)
        out[i] = (float)lane->pos[i];
}

const struct keep_policy keep_streaming = {
    .name = "streaming",
    .summary = "the first tokens (attention sinks) and the most recent ones",
    .citation = "Xiao et al., Efficient Streaming Language Models with Attention Sinks, ICLR 2024, "
                "arXiv 2309.17453",
    .defaults = "sinks=4",
    .score = score,
};
