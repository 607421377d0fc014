/*
 * attention.h - the common options of policies that watch attention. One combines the query heads
 * of a KV head, and the other leaves prompts out. Internal to keep/.
 *
 * Marks belong to a KV head and an entry, never to a query head: K and V are not expanded. With one
 * query head per KV head, which most of the authors' codes are written for, all three ways are one.
 */
#ifndef PI_KEEP_ATTENTION_H
#define PI_KEEP_ATTENTION_H

#include "policy/keep/rules/keep.h"

/* How the weights that a query group gave to an entry become one. */
enum keep_group { KEEP_GROUP_MEAN, KEEP_GROUP_MAX, KEEP_GROUP_SUM };

extern const char *const keep_group_words[];
extern const char *const keep_switch_words[]; /* off, on */

/* A key of a policy's own table; type has a member int32_t group or int32_t prompt. */
#define KEEP_GROUP_PARAM(type, fallback)                                                           \
    {                                                                                              \
        "group", POLICY_TYPE_CHOICE, offsetof(type, group), 0, 0, fallback,                        \
            "the query heads of a KV head count by their mean, max or sum", keep_group_words       \
    }
#define KEEP_PROMPT_PARAM(type, fallback)                                                          \
    {                                                                                              \
        "prompt", POLICY_TYPE_CHOICE, offsetof(type, prompt), 0, 0, fallback,                      \
            "off: only queries of tokens that are evaluated alone count", keep_switch_words        \
    }

/* The need that belongs to the value of such a key. */
static inline uint32_t keep_prompt_need(int32_t prompt)
{
    return prompt ? KEEP_NEED_WEIGHTS : KEEP_NEED_STEP_WEIGHTS;
}

/* Entries that are taken at once: a part of the stack that stays in the first cache. */
#define KEEP_GROUP_BLOCK 128

/* out[i], [n], n <= KEEP_GROUP_BLOCK: what the group gave to entry begin + i. Query heads are added
   in ascending order; the mean is the sum times 1 / n_group. */
void keep_group_weights(const struct keep_attention *a, enum keep_group how, int32_t begin,
                        int32_t n, float *out);

#endif
