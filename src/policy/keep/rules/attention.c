/*
 * attention.c - words of the options that policies which watch attention share.
 */
#include "policy/keep/rules/attention.h"

const char *const keep_group_words[] = {
    [KV_GROUP_MEAN] = "mean", [KV_GROUP_MAX] = "max", [KV_GROUP_SUM] = "sum", NULL};
