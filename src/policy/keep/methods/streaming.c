/*
 * streaming.c - the first entries and the most recent ones. Xiao, Tian, Chen, Han, Lewis,
 * "Efficient Streaming Language Models with Attention Sinks", ICLR 2024 (arXiv 2309.17453), section
 * 3.2: four initial tokens, which the softmax needs to put its surplus on, and a rolling window.
 *
 * The paper counts positions within the cache, so that distances never exceed its size:
 * positions=cache. It rotates keys anew for that; here a stored key is never rotated again. Only
 * differences of positions count, and the window and the next token keep theirs. So it is enough to
 * read the sinks as if they stood right before the window. The angles are the same, at the cost of
 * one turned query. With positions=true, the default, a distance means the same with and without
 * eviction. The distance to the sinks grows beyond the model's training.
 */
#include "policy/keep/rules/policy.h"

enum { POSITIONS_TRUE, POSITIONS_CACHE };

struct streaming_params {
    int32_t positions;
};

static const char *const positions_words[] = {"true", "cache", NULL};

static const struct policy_param params_table[] = {
    {"positions", POLICY_TYPE_CHOICE, offsetof(struct streaming_params, positions), 0, 0, "true",
     "true: distances are between positions of the text. cache: between places within the cache",
     positions_words},
    {0},
};

static uint32_t needs(const void *params)
{
    const struct streaming_params *p = params;
    return p->positions == POSITIONS_CACHE ? KEEP_NEED_PLACES : 0;
}

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

static bool comparable(const void *params)
{
    (void)params;
    return true;
}

static void weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room)
{
    (void)params;
    (void)view;
    (void)room;
    job->kind = KV_WEIGH_POSITION;
}

const struct keep_policy keep_streaming = {
    .name = "streaming",
    .summary = "the first tokens (attention sinks) and the most recent ones",
    .citation = "Xiao et al., Efficient Streaming Language Models with Attention Sinks, ICLR 2024, "
                "arXiv 2309.17453",
    .defaults = "sinks=4",
    .params = params_table,
    .params_size = sizeof(struct streaming_params),
    .needs = needs,
    .score = score,
    .weigh = weigh,
    .comparable = comparable,
};
