/*
 * docs/combinations.md, the columns of uses over ranks. A policy that works there gives the text of
 * one process, and every other is refused with the page's sentence. Budgets are so small that a
 * text depends on what the policy chose. There is memory for ranks that get more than their part of
 * one budget for all lanes.
 */
#define _POSIX_C_SOURCE 200809L

#include "ranks_rig.h"

#include "pith/policy.h"

TEST_GROUP(ranks_set_up, folder_remove);

#define LATENT                                                                                     \
    "arch=deepseek2 layers=3 width=64 head_dim=64 rot=32 rank=64 ff=96 experts=4 used=2 "          \
    "expert_ff=96 lead=1 heads=6 value_dim=32 query_rank=32"

/* Options of every policy of a verb, and what some have beside them. */
static const char *const common[PITH_N_VERB] = {
    [PITH_KEEP] = "budget=24,slack=4,window=4,pin-prompt=off",
    [PITH_READ] = "budget=8",
};
static const struct {
    pith_verb verb;
    const char *name, *options;
} own[] = {
    {PITH_KEEP, "snapkv", "queries=4"},       {PITH_KEEP, "pyramidkv", "queries=4"},
    {PITH_KEEP, "adakv", "queries=4"},        {PITH_KEEP, "rkv", "queries=4"},
    {PITH_KEEP, "vatp", "sinks=2"},           {PITH_KEEP, "longflow", "prompt-window=4"},
    {PITH_READ, "quoka", "chunk=16,gate=1"},  {PITH_READ, "sampleattention", "chunk=16,gate=1"},
    {PITH_READ, "snapkv", "chunk=16,gate=1"}, {PITH_READ, "keydiff", "chunk=16,gate=1"},
    {PITH_READ, "lessismore", "source=0"},    {PITH_READ, "tidaldecode", "source=0"},
    {PITH_READ, "sparq", "r=8,window=4"},     {PITH_READ, "quest", "dense-layers=0"},
};

/* The text of a policy's option. file is for one that cannot do without. */
static void option(pith_verb verb, const pith_policy_info *policy, const char *file, char out[256])
{
    int len = snprintf(out, 256, "%s", policy->name);
    if (common[verb] != NULL)
        len += snprintf(out + len, (size_t)(256 - len), ":%s", common[verb]);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (own[i].verb == verb && strcmp(own[i].name, policy->name) == 0)
            len += snprintf(out + len, (size_t)(256 - len), ",%s", own[i].options);
    if (policy->file[0] != '\0') /* "key=FILE, which ..." */
        snprintf(out + len, (size_t)(256 - len), ",%.*s%s", (int)strcspn(policy->file, "F"),
                 policy->file, file);
}

#define RUN                                                                                        \
    "run -t 1 -n 60 --ignore-eos --temp 0.8 --seed 3 --chunk 16 "                                  \
    "--kv-memory 4MiB -p The_friend_of_the_friend_of_the_friend"

/* One policy in each of the uses, [n], with `parts` in the words of several ranks. full: the text
   without a policy. Recall needs a keep policy. */
static void try_uses(pith_verb verb, char *text, const char *model, const char *full,
                     const pith_use *uses, const char *const *parts, int n)
{
    const char *value[PITH_N_VERB] = {"none", "none", "none", "none"};
    char words[768], all[1024];
    struct said one = {.out = NULL};
    pith_engine_params params;
    if (verb == PITH_RECALL)
        value[PITH_KEEP] = "streaming";
    value[verb] = text;
    pith_engine_params_default(&params);
    params.keep = value[PITH_KEEP];
    params.read = value[PITH_READ];
    params.recall = value[PITH_RECALL];
    params.share = value[PITH_SHARE];
    snprintf(words, sizeof(words), RUN " -m %s --keep %s --read %s --recall %s --share %s", model,
             params.keep, params.read, params.recall, params.share);
    for (int i = 0; i < n; i++) {
        pith_error why;
        snprintf(all, sizeof(all), "%s %s", words, parts[i]);
        if (pith_policies_fit(&params, uses[i], &why) != PITH_OK) {
            expect_refused("2", all, why.message);
            continue;
        }
        if (one.out == NULL) {
            one = over(NULL, words);
            expect_status(&one, 0);
            assert_string_not_equal(one.out, full);
        }
        expect_output("2", all, one.out);
    }
}

static void try_all(const char *model, const pith_use *uses, const char *const *parts, int n)
{
    char stats[128], words[768], text[256];
    pith_policy_info policy;
    int32_t at = 0;
    snprintf(words, sizeof(words), RUN " --keep none --recall none -m %s", model);
    struct said full = over(NULL, words);
    expect_status(&full, 0);
    make_statistics(model, stats);
    for (int v = 0; v < PITH_N_VERB; v++)
        for (int32_t i = 0; pith_policy_get((pith_verb)v, i, &policy) == PITH_OK; i++) {
            if (at++ % TEST_STRIDE != 0)
                continue;
            option((pith_verb)v, &policy, stats, text);
            try_uses((pith_verb)v, text, model, full.out, uses, parts, n);
        }
}

TEST(rows_and_layers_have_the_policies_that_the_page_says)
{
    static const pith_use uses[] = {PITH_USE_RANKS_ROWS, PITH_USE_RANKS_LAYERS};
    static const char *const parts[] = {"--split rows", "--split layers"};
    try_all(MINI, uses, parts, 2);
}

TEST(latent_rows_have_the_policies_that_the_page_says)
{
    static const pith_use uses[] = {PITH_USE_RANKS_LATENT};
    static const char *const parts[] = {"--split rows"};
    char path[128];
    make_texts(LATENT, path);
    try_all(path, uses, parts, 1);
}
