/*
 * policies.c - the table of share policies, their options and what these mean for memory, and the
 * public listing. The code that reads an option knows what it does. Here stand the values that a
 * text can have, and the options that do not go together.
 */
#include "policy/share/share.h"

#include "policy/share/internal.h"

#define RUNS_MAX 4096
#define SEED_MAX (1 << 30)
#define DISTANCE_MAX 1000000 /* in thousandths */

static const char *const form_words[] = {[SHARE_RMS] = "rms", [SHARE_PAPER] = "paper", NULL};
static const char *const mode_words[] = {
    [SHARE_POSITIONAL] = "positional", [SHARE_LITERAL] = "literal", NULL};
static const char *const auto_words[] = {"auto", NULL};
static const char *const yes_words[] = {"no", "yes", NULL};

#define AT(member) .offset = offsetof(struct share_options, member)

/* The options that both policies have. */
#define MODE_PARAM                                                                                 \
    {                                                                                              \
        "mode", POLICY_TYPE_CHOICE, AT(mode), 0, 0, "positional",                                  \
            "how a shared page is read: positional, at the positions of the page that went, or "   \
            "literal, the paper's, where it was written",                                          \
            mode_words                                                                             \
    }
#define RUNS_PARAM                                                                                 \
    {                                                                                              \
        "runs", POLICY_TYPE_COUNT, AT(runs), 1, RUNS_MAX, "2",                                     \
            "with --keep: most stretches of a lane that are read elsewhere; packing leaves them "  \
            "apart, and memory is set aside for that",                                             \
            NULL                                                                                   \
    }

static const struct policy_param memshare_params[] = {
    {"step", POLICY_TYPE_REAL, AT(step), 0, 1000, "0.8",
     "reasoning steps are alike where the cosine of their bags of tokens is above this, to "
     "thousandths",
     NULL},
    {"block", POLICY_TYPE_REAL, AT(block), 0, DISTANCE_MAX, "auto",
     "pages stand for each other where their distance is below this. auto: the sequence measures "
     "it, as quantile says",
     auto_words},
    {"quantile", POLICY_TYPE_REAL, AT(quantile), 0, 1000, "0.1",
     "with block=auto: this part of the pages of like steps, as far as all but 1 % of random pages "
     "are further apart",
     NULL},
    {"relative", POLICY_TYPE_REAL, AT(relative), 0, 2000, "0.5",
     "with form=rms: and where their difference is below this part of their size (0: equal, about "
     "1.4: unrelated)",
     NULL},
    {"form", POLICY_TYPE_CHOICE, AT(form), 0, 0, "rms",
     "the distance of two pages: rms, of an element of K and V, or paper, as the paper writes it",
     form_words},
    MODE_PARAM,
    {"candidates", POLICY_TYPE_COUNT, AT(candidates), 1, SHARE_CANDIDATES_MAX, "8",
     "most similar reasoning steps that a step is compared with", NULL},
    {"across", POLICY_TYPE_CHOICE, AT(across), 0, 0, "no",
     "yes: steps of other sequences are candidates, too. One user's text then shows in another's "
     "answer, and answers depend on company",
     yes_words},
    RUNS_PARAM,
    {"loose", POLICY_TYPE_REAL, AT(loose), 1000, 100000, "1.5",
     "factor of block and relative where a scheduler runs out of memory and may look again "
     "(pressure)",
     NULL},
    {0},
};

static const struct policy_param random_params[] = {
    {"share", POLICY_TYPE_REAL, AT(share), 0, 1000, "0.2",
     "the probability that a page of a reasoning step is shared, with a random page of an earlier "
     "one",
     NULL},
    {"seed", POLICY_TYPE_COUNT, AT(seed), 0, SEED_MAX, "0", "seed of the random pages", NULL},
    MODE_PARAM,
    RUNS_PARAM,
    {0},
};
#undef AT

/* ---- the table ---- */

static pith_status check_memshare(const struct share_options *o, pith_error *err)
{
    if (o->across == 1 && o->mode == SHARE_LITERAL)
        return pi_fail(err, PITH_INVALID,
                       "share: across: with mode=literal an entry counts for several of its own "
                       "sequence, which another's cannot");
    return PITH_OK;
}

static const struct policy {
    const char *name;
    const char *summary;
    const char *citation;
    enum share_kind kind;
    const struct policy_param *params;
    pith_status (*check)(const struct share_options *o, pith_error *err); /* NULL: nothing */
} policies[] = {
    {"memshare",
     "pages of a step stand for pages of an earlier step of like words and near keys and values",
     "MemShare: Memory Efficient Inference for Large Reasoning Models through KV Cache Reuse",
     SHARE_MEMSHARE, memshare_params, check_memshare},
    {"random",
     "each page of a step stands for a random one of an earlier step, with a probability: a "
     "control",
     "MemShare's control", SHARE_RANDOM, random_params, NULL},
};

static const struct policy *policy_at(int32_t i)
{
    return i >= 0 && (size_t)i < PI_LEN(policies) ? &policies[i] : NULL;
}

static const char *name_at(int32_t i)
{
    return policy_at(i) != NULL ? policy_at(i)->name : NULL;
}

static struct policy_options options_of(const struct policy *p, struct share_options *fields)
{
    return (struct policy_options){
        .verb = "share", .name = p->name, .own = p->params, .own_fields = fields};
}

pith_status share_config_parse(const char *text, struct share_config *out, pith_error *err)
{
    struct share_config c = {.kind = SHARE_NONE};
    int32_t index;
    const char *options;
    /* An empty text is none, as a command line has it where an option is taken back. */
    PI_TRY(policy_find("share", text != NULL && text[0] == '\0' ? NULL : text, name_at, &index,
                       &options, err));
    if (index >= 0) {
        const struct policy *p = policy_at(index);
        struct policy_options o = options_of(p, &c.options);
        c.kind = p->kind;
        PI_TRY(policy_options_read(&o, options, err));
        if (p->check != NULL)
            PI_TRY(p->check(&c.options, err));
    }
    *out = c;
    return PITH_OK;
}

pith_status share_config_fit(struct share_config *c, const struct keep_config *keep,
                             const struct recall_config *recall, pith_error *err)
{
    if (c->kind == SHARE_NONE)
        return PITH_OK;
    c->evicts = keep->policy != NULL;
    if (c->evicts && keep->rules.overwrite == 1)
        return pi_fail(err, PITH_INVALID,
                       "share: keep %s overwrites entries in their pages, of which each would have "
                       "to be copied first where it is shared: overwrite=off leaves rounds",
                       keep->policy->name);
    if (c->evicts && keep_config_places(keep) && c->options.mode == SHARE_POSITIONAL)
        return pi_fail(err, PITH_INVALID,
                       "share: mode: keep %s reads its first entries at places of its own, and "
                       "knows nothing of others that do: mode=literal goes with it",
                       keep->policy->name);
    if (recall->kind == RECALL_TEXT)
        return pi_fail(err, PITH_INVALID,
                       "share: recall text would take tokens for evicted whose entries are read "
                       "from another page");
    return PITH_OK;
}

/* ---- memory ---- */

int64_t share_bytes_at(const struct share_config *c, const struct kv_geometry *g, int32_t n_token,
                       int32_t n_entry)
{
    if (c->kind == SHARE_NONE || n_entry >= n_token)
        return 0;
    /* A sequence takes no more pages than without a policy, until a round packs it. That leaves a
       page's places apart at either end of a stretch that is read elsewhere. */
    int64_t n_page = 2 * (int64_t)c->options.runs;
    int64_t bytes = 0;
    for (int32_t l = 0; l < g->n_layer; l++)
        bytes += n_page * g->n_head * (int64_t)kv_layer_page_bytes(g, l);
    return bytes;
}

/* ---- the verb ---- */

static bool list_at(int32_t i, struct policy_listed *out)
{
    const struct policy *p = policy_at(i);
    if (p == NULL)
        return false;
    *out = (struct policy_listed){
        .summary = p->summary, .citation = p->citation, .options = options_of(p, NULL)};
    return true;
}

static pith_status check_option(const char *text, pith_error *err)
{
    struct share_config config;
    return share_config_parse(text, &config, err);
}

const struct policy_verb share_verb = {list_at, check_option};
