/*
 * policy_options.h - each policy with options that make it act on short texts. For one file of a test
 * program.
 */
#ifndef PI_TEST_POLICY_OPTIONS_H
#define PI_TEST_POLICY_OPTIONS_H

#include "testing.h"

#include "pith/policy.h"

/* Verb, name and options; NULL: of all others of the verb. */
static const char *const policy_options[][3] = {
    {"keep", "adakv", "budget=64,slack=8,window=8,queries=8"},
    {"keep", "snapkv", "budget=64,slack=8,window=8,queries=8"},
    {"keep", "pyramidkv", "budget=64,slack=8,window=8,queries=8"},
    {"keep", "lazyeviction", "budget=64,slack=8,window=8"},
    {"keep", "longflow", "budget=64,slack=8,prompt-window=8"},
    {"keep", "rkv", "budget=64,slack=8,window=8,queries=8"},
    {"keep", "kvzip", "budget=64,slack=8,window=8"},
    {"keep", "kvzap", "budget=64,slack=8,window=8"},
    {"keep", "raas", "budget=112,slack=4"}, /* both hold their prompt */
    {"keep", "triattention", "budget=112,slack=4"},
    {"keep", NULL, "budget=64,slack=8"},
    {"read", "lessismore", "budget=24,source=0"}, /* the last layer of three has none behind it */
    {"read", "tidaldecode", "budget=24,source=0"},
    {"read", "quest", "budget=24,dense-layers=0"},
    {"read", "sparq", "budget=24,r=8"},
    {"read", NULL, "budget=24,chunk=16,gate=1"},
    {"recall", "kv", "take=6,last=8,ram=4MiB"},
    {"share", "memshare", "step=0.1,block=100,relative=2"},
    {"share", NULL, "share=0.5"},
};

/* "NAME:options", with the file that the policy cannot do without. */
static inline void policy_option(pith_verb verb, const char *name, const char *file, char *out,
                                 size_t cap)
{
    pith_policy_info policy;
    const char *v = pith_verb_name(verb), *options = NULL;
    for (size_t i = 0; options == NULL && i < PI_LEN(policy_options); i++) {
        const char *const *o = policy_options[i];
        if (strcmp(v, o[0]) == 0 && (o[1] == NULL || strcmp(name, o[1]) == 0))
            options = o[2];
    }
    snprintf(out, cap, "%s%s%s", name, options != NULL ? ":" : "", options != NULL ? options : "");
    for (int32_t i = 0; pith_policy_get(verb, i, &policy) == PITH_OK; i++)
        if (strcmp(policy.name, name) == 0 && policy.file[0] != '\0') { /* "key=FILE, which ..." */
            size_t len = strlen(out);
            snprintf(out + len, cap - len, ",%.*s%s", (int)strcspn(policy.file, "F"), policy.file,
                     file);
        }
}

#endif
