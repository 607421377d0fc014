/*
 * test_traits.c - what policies imply together: a line for each policy that changes something, and
 * for combinations, with every trait that others ask for.
 */
#include "engine/schedule.h"
#include "status.h"
#include "testing.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"

/* Traits in a line's order: r emembers, b ounded, c uts prompts, counts s teps, takes p refixes.
   Then the published form and the form that hides. */
static const struct {
    const char *keep, *read, *recall, *share;
    const char *flags;
    enum engine_publishes publishes;
    const char *hides;
} lines[] = {
    {NULL, NULL, NULL, NULL, "c p", ENGINE_PUBLISHES_ALL, NULL},
    {"streaming:budget=96", NULL, NULL, NULL, "bc p", ENGINE_PUBLISHES_ALL, "keep"},
    {"streaming:budget=96,rounds=prompt-end", NULL, NULL, NULL, "b sp", ENGINE_PUBLISHES_ALL,
     "keep"},
    {"h2o:budget=96,overwrite=off", NULL, NULL, NULL, "rbc", ENGINE_PUBLISHES_NOTHING, "keep"},
    {"longflow:budget=96,overwrite=on", NULL, NULL, NULL, "rb s", ENGINE_PUBLISHES_NOTHING, "keep"},
    {NULL, "quoka:budget=64", NULL, NULL, "cs", ENGINE_PUBLISHES_NOTHING, "read"},
    {NULL, NULL, NULL, "memshare", "csp", ENGINE_PUBLISHES_PROMPTS, NULL},
    {"streaming:budget=96", NULL, NULL, "memshare:mode=literal", "bcsp", ENGINE_PUBLISHES_PROMPTS,
     "keep"},
    {"knorm:budget=96", "quoka:budget=64", NULL, NULL, "bs", ENGINE_PUBLISHES_NOTHING, "keep"},
    {"knorm:budget=192", NULL, "kv:ram=1MiB", NULL, "bcsp", ENGINE_PUBLISHES_ALL, "keep"},
    {"knorm:budget=192", NULL, "text", NULL, "bc p", ENGINE_PUBLISHES_ALL, "keep"},
};

static pith_model *model;

static void load(void)
{
    assert_int_equal(pith_model_load(MODEL, NULL, &model, NULL), PITH_OK);
}

static void unload(void)
{
    pith_model_free(model);
}

TEST_GROUP(load, unload);

static pith_engine_params params_of(size_t i)
{
    pith_engine_params params;
    pith_engine_params_default(&params);
    params.keep = lines[i].keep;
    params.read = lines[i].read;
    params.recall = lines[i].recall;
    params.share = lines[i].share;
    params.n_thread = 1;
    params.kv_tokens = 1024;
    return params;
}

static void check_flag(size_t line, const char *name, char letter, bool value)
{
    if (value != (strchr(lines[line].flags, letter) != NULL))
        fail_msg("line %zu: %s is %d", line, name, value);
}

TEST(each_policy_implies_its_traits)
{
    for (size_t i = 0; i < PI_LEN(lines); i++) {
        pith_engine_params params = params_of(i);
        pith_engine *e = NULL;
        check(pith_engine_create(model, &params, &e, &err), &err);
        const struct engine_traits *t = &e->traits;
        check_flag(i, "remembers", 'r', t->remembers);
        check_flag(i, "bounded", 'b', t->bounded);
        check_flag(i, "cuts_prompts", 'c', t->cuts_prompts);
        check_flag(i, "counts_steps", 's', t->counts_steps);
        check_flag(i, "takes_prefixes", 'p', t->takes_prefixes);
        assert_int_equal(t->publishes, lines[i].publishes);
        assert_int_equal(t->evicts, lines[i].keep != NULL);
        assert_int_equal(t->reads_parts, lines[i].read != NULL);
        assert_int_equal(t->recalls_kv || t->recalls_text, lines[i].recall != NULL);
        assert_int_equal(t->shares, lines[i].share != NULL);
        assert_int_equal(t->full, i == 0);
        assert_string_equal(t->hides != NULL ? t->hides : "", lines[i].hides ? lines[i].hides : "");
        pith_engine_free(e);
    }
}

/* An estimate before there is an engine, and what its scheduler sets aside, are one number. */
TEST(estimates_and_reservations_are_one_number)
{
    for (size_t i = 0; i < PI_LEN(lines); i++) {
        pith_engine_params params = params_of(i);
        pith_engine *e = NULL;
        check(pith_engine_create(model, &params, &e, &err), &err);
        for (int32_t n = 1; n < 2000; n += 333) {
            int64_t estimate;
            check(pith_kv_estimate(model, &params, n, &estimate, &err), &err);
            assert_int_equal(pi_engine_bytes_at(e, (struct keep_point){n, 0, 0.0, 0}), estimate);
        }
        pith_engine_free(e);
    }
}

TEST(refuses_pairs_that_exclude_each_other)
{
    static const struct {
        const char *keep, *read, *word;
    } pairs[] = {
        {"h2o:budget=96", "quoka:budget=64", "every token"},
        {"h2o:budget=96,stats=nowhere.stats", "quoka:budget=64", "every token"}, /* not opened */
        {"longflow:budget=96,overwrite=on", "quoka:budget=64,phase=decode",
         "every generated token"},
    };
    for (size_t i = 0; i < PI_LEN(pairs); i++) {
        pith_engine_params params = params_of(0);
        pith_engine *e = NULL;
        params.keep = pairs[i].keep;
        params.read = pairs[i].read;
        int64_t estimate;
        expect(pith_engine_create(model, &params, &e, &err), &err, PITH_INVALID, pairs[i].word);
        expect(pith_kv_estimate(model, &params, 100, &estimate, &err), &err, PITH_INVALID,
               pairs[i].word);
        expect(pith_policies_fit(&params, PITH_USE_FORK, &err), &err, PITH_INVALID, pairs[i].word);
    }
}

/* A policy's state is filled by the inputs that it needs, which are known before it is opened. */
TEST(state_is_foreseen)
{
    pith_policy_info policy;
    for (int32_t i = 0; pith_policy_get(PITH_KEEP, i, &policy) == PITH_OK; i++) {
        pith_engine_params params = params_of(0);
        pith_engine *e = NULL;
        params.keep = policy.name;
        if (pith_engine_create(model, &params, &e, NULL) != PITH_OK) {
            assert_true(policy.file[0] != '\0');
            continue;
        }
        const struct engine_traits *t = &e->traits;
        if (t->remembers != (t->state_size > 0 || t->n_mark > 0))
            fail_msg("%s: %zu bytes of state, %d marks", policy.name, t->state_size, t->n_mark);
        pith_engine_free(e);
    }
}

/* Every use with something to say of it, and arguments that say nothing. */
TEST(each_use_is_allowed_or_refused)
{
    pith_engine_params params = params_of(0);
    pith_error out;
    for (int use = 0; use < PITH_N_USE; use++) {
        assert_int_equal(pith_policies_fit(&params, (pith_use)use, &out), PITH_OK);
        assert_int_equal(out.message[0] != '\0', use == PITH_USE_SWAP);
    }
    expect(pith_policies_fit(NULL, PITH_USE_FORK, &out), &out, PITH_INVALID, "params");
    expect(pith_policies_fit(&params, (pith_use)PITH_N_USE, &out), &out, PITH_INVALID, "use: 9");
    params.keep = "nothing";
    expect(pith_policies_fit(&params, PITH_USE_FORK, &out), &out, PITH_INVALID, "not a policy");
    params.keep = NULL;
    params.type_k = "f16:centre";
    expect(pith_policies_fit(&params, PITH_USE_FILE, &out), &out, PITH_UNSUPPORTED, "(centre)");
}

/* Options that decide by lanes of other ranks, in the uses over ranks: rows, layers and latent. */
TEST(ranks_refuse_what_looks_at_lanes_of_others)
{
    static const struct {
        const char *keep, *read, *share;
        const char *words[3]; /* NULL: it works */
    } asked[] = {
        {"knorm:budget=96", NULL, NULL, {NULL, NULL, NULL}},
        {"knorm:budget=64MiB",
         NULL,
         NULL,
         {"number of tokens", "number of tokens", "number of tok"}},
        {"knorm:budget=96,heads=1/2/1/2/1/2/1/2",
         NULL,
         NULL,
         {"no heads", "no layers, heads", NULL}},
        {"knorm:budget=96,layers=pyramid:2", NULL, NULL, {NULL, "no layers, heads or split", NULL}},
        {"longflow:budget=96,granularity=layer",
         NULL,
         NULL,
         {"granularity=layer-head", NULL, "looks at queries"}},
        {"longflow:budget=96,granularity=layer-head", NULL, NULL, {NULL, NULL, "looks at queries"}},
        {"adakv:budget=96", NULL, NULL, {"cannot share its budget", NULL, "looks at queries"}},
        {NULL, "quoka:budget=64", NULL, {"all query heads", NULL, "all query heads"}},
        {NULL, "tidaldecode", NULL, {"all query heads", "chooses for", "all query heads"}},
        {NULL, NULL, "memshare", {"share: over", "share: over", "share: over"}},
    };
    for (size_t i = 0; i < PI_LEN(asked); i++)
        for (int k = 0; k < 3; k++) {
            pith_engine_params params = params_of(0);
            pith_error out;
            params.keep = asked[i].keep;
            params.read = asked[i].read;
            params.share = asked[i].share;
            pith_status status =
                pith_policies_fit(&params, (pith_use)(PITH_USE_RANKS_ROWS + k), &out);
            if (asked[i].words[k] == NULL && status != PITH_OK)
                fail_msg("%zu, %d: %s", i, k, out.message);
            if (asked[i].words[k] != NULL)
                expect(status, &out, PITH_UNSUPPORTED, asked[i].words[k]);
        }
}
