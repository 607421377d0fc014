/*
 * random.c - entries at random: the line that every other policy has to beat. The random number of
 * an entry is a hash of its place. So it is the same in every round, however tokens are cut into
 * passes, and in a fork.
 */
#include "policy/keep/rules/options.h"

struct random_params {
    int32_t seed;
};

static const struct policy_param params_table[] = {
    {"seed", POLICY_TYPE_COUNT, offsetof(struct random_params, seed), 0, KEEP_COUNT_MAX, "0",
     "seed of the random scores", NULL},
    {0},
};

/* splitmix64's last step (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
   2014): every bit of x changes every bit of the result with probability 1/2. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* score(i) = a number in [0, 1) from seed, layer, head and position. */
static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    const struct random_params *p = params;
    uint64_t key = mix((uint64_t)p->seed + 0x9e3779b97f4a7c15u);
    const struct policy_whole all = policy_whole(view->model);
    key = mix(key ^ ((uint64_t)(all.first_layer + lane->layer) << 32 |
                     (uint64_t)(all.first_head + lane->head)));
    for (int32_t i = 0; i < lane->n; i++)
        out[i] =
            (float)(mix(key + 0x9e3779b97f4a7c15u * ((uint64_t)lane->pos[i] + 1)) >> 40) * 0x1p-24f;
}

static bool comparable(const void *params)
{
    (void)params;
    return true;
}

const struct keep_policy keep_random = {
    .name = "random",
    .summary = "entries drawn at random, a control",
    .citation = "",
    .params = params_table,
    .params_size = sizeof(struct random_params),
    .score = score,
    .comparable = comparable,
};
