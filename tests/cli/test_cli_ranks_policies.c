/*
 * docs/combinations.md, the columns of uses over ranks. A policy that works there gives the text of
 * one process, and every other is refused with the page's sentence.
 */
#define _POSIX_C_SOURCE 200809L

#include "ranks_rig.h"

#include "policy_options.h"

TEST_GROUP(ranks_set_up, folder_remove);

#define LATENT                                                                                     \
    "arch=deepseek2 layers=3 width=64 head_dim=64 rot=32 rank=64 ff=96 experts=4 used=2 "          \
    "expert_ff=96 lead=1 heads=6 value_dim=32 query_rank=32"

/* The policies of one cell. Recall needs a keep policy. */
struct choice {
    char text[160];
    const char *keep, *read, *recall, *share;
};

static void choose(pith_verb verb, const char *name, const char *file, struct choice *c)
{
    const char **fields[] = {[PITH_KEEP] = &c->keep,
                             [PITH_READ] = &c->read,
                             [PITH_RECALL] = &c->recall,
                             [PITH_SHARE] = &c->share};
    *c = (struct choice){.keep = verb == PITH_RECALL ? "streaming:budget=64" : NULL};
    policy_option(verb, name, file, c->text, sizeof(c->text));
    *fields[verb] = c->text;
}

/* Each of the uses, [n], with `parts` in the words of several ranks. */
static void try_uses(const struct choice *c, const char *model, const pith_use *uses,
                     const char *const *parts, int n)
{
    char words[768], all[1024];
    struct said one = {.out = NULL};
    pith_engine_params params;
    pith_engine_params_default(&params);
    params.keep = c->keep;
    params.read = c->read;
    params.recall = c->recall;
    params.share = c->share;
    snprintf(
        words, sizeof(words),
        "run -t 1 -n 100 --ignore-eos --temp 0.8 --seed 3 --chunk 16 -m %s --keep %s --read %s "
        "--recall %s --share %s -p The_friend_of_the_friend_of_the_friend",
        model, c->keep != NULL ? c->keep : "none", c->read != NULL ? c->read : "none",
        c->recall != NULL ? c->recall : "none", c->share != NULL ? c->share : "none");
    for (int i = 0; i < n; i++) {
        pith_error why;
        bool works = pith_policies_fit(&params, uses[i], &why) == PITH_OK;
        snprintf(all, sizeof(all), "%s %s", words, parts[i]);
        if (!works) {
            expect_refused("2", all, why.message);
            continue;
        }
        if (one.out == NULL) {
            one = over(NULL, words);
            expect_status(&one, 0);
            expect_word(one.err, c->keep != NULL ? "evicted" : "read");
        }
        expect_output("2", all, one.out);
    }
}

/* All policies, with a file for those that need one. */
static void try_all(const char *model, const pith_use *uses, const char *const *parts, int n)
{
    char stats[128], words[512];
    pith_policy_info policy;
    int32_t at = 0;
    snprintf(words, sizeof(words),
             "calibrate importance -t 2 -m %s -f " PITH_SOURCE_DIR
             "/README.md -o %s --pieces 1 -c 96 --hidden",
             model, in_folder("importance.stats", stats));
    struct said s = over(NULL, words);
    expect_status(&s, 0);
    for (int v = 0; v < PITH_N_VERB; v++)
        for (int32_t i = 0; pith_policy_get((pith_verb)v, i, &policy) == PITH_OK; i++) {
            struct choice c;
            if (at++ % TEST_STRIDE != 0)
                continue;
            choose((pith_verb)v, policy.name, stats, &c);
            try_uses(&c, model, uses, parts, n);
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
