/*
 * attention.h - the common options of policies that watch attention. One combines the query heads
 * of a KV head, and the other leaves prompts out. Internal to keep/.
 *
 * Marks belong to a KV head and an entry, never to a query head: K and V are not expanded. With one
 * query head per KV head, which most of the authors' codes are written for, all three ways are one.
 */
#ifndef PI_KEEP_ATTENTION_H
#define PI_KEEP_ATTENTION_H

#include "policy/keep/rules/policy.h"

extern const char *const keep_group_words[]; /* of enum kv_group, without EACH */

/* A key of a policy's own table; type has a member int32_t group or int32_t prompt. */
#define KEEP_GROUP_PARAM(type, fallback)                                                           \
    {                                                                                              \
        "group", POLICY_TYPE_CHOICE, offsetof(type, group), 0, 0, fallback,                        \
            "the query heads of a KV head count by their mean, max or sum", keep_group_words       \
    }
#define KEEP_PROMPT_PARAM(type, fallback)                                                          \
    {                                                                                              \
        "prompt", POLICY_TYPE_CHOICE, offsetof(type, prompt), 0, 0, fallback,                      \
            "off: only queries of tokens that are evaluated alone count", policy_switch_words      \
    }

/* The need that belongs to the value of such a key. */
static inline uint32_t keep_prompt_need(int32_t prompt)
{
    return prompt ? KEEP_NEED_WEIGHTS : KEEP_NEED_STEP_WEIGHTS;
}

#endif
