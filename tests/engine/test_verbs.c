/*
 * The joint of the verbs: which of them an engine has, in which order, and that a hook that fails
 * leaves nothing behind. Every allocation of making an engine, a sequence and a fork fails once.
 */
#include "keep_engine.h"

static const struct combo {
    const char *keep, *recall, *read, *share;
    const char *verbs;
} combos[] = {
    {NULL, NULL, NULL, NULL, "store, draft"},
    {"longflow:budget=48,slack=16,prompt-window=8", NULL, NULL, NULL, "store, keep, draft"},
    {"knorm:budget=48,slack=16", "kv:take=16,last=16,ram=1MiB", NULL, NULL,
     "store, keep, recall of entries, draft"},
    {"knorm:budget=48,slack=16", "text", NULL, NULL, "store, keep, recall of text, draft"},
    {NULL, NULL, "quoka:chunk=16", NULL, "store, read, draft"},
    {"streaming:budget=64,slack=16", NULL, NULL, "memshare", "store, share, keep, draft"},
};

static void setup(void)
{
    model_load(17);
}

TEST_GROUP(setup, model_free);

static pith_status engine_of(const struct combo *c, pith_engine **out, pith_error *why)
{
    pith_engine_params params;
    pith_engine_params_default(&params);
    params.chunk = 64;
    params.n_thread = 1;
    params.kv_tokens = 1024;
    params.page_len = PAGE_LEN;
    params.keep = c->keep;
    params.recall = c->recall;
    params.read = c->read;
    params.share = c->share;
    return pith_engine_create(model, &params, out, why);
}

static int64_t used(void)
{
    int64_t bytes = 0;
    for (int tag = 0; tag < PI_MEM_N_TAG; tag++)
        bytes += pi_mem_used((enum pi_mem_tag)tag);
    return bytes;
}

TEST(options_choose_the_verbs_and_the_table_their_order)
{
    for (size_t c = 0; c < PI_LEN(combos); c++) {
        pith_engine *e = NULL;
        char names[256] = "";
        check(engine_of(&combos[c], &e, &err), &err);
        for (int32_t i = 0; i < e->n_verb; i++) {
            assert_non_null(e->verb[i]->name);
            snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s",
                     i > 0 ? ", " : "", e->verb[i]->name);
        }
        assert_string_equal(names, combos[c].verbs);
        pith_engine_free(e);
    }
}

TEST(an_engine_that_cannot_be_made_leaves_nothing)
{
    for (size_t c = 0; c < PI_LEN(combos); c++) {
        pith_status status = PITH_NOMEM;
        int64_t before = used(), n = 0;
        while (status != PITH_OK) {
            pith_engine *e = NULL;
            pi_mem_fail_at(++n, false);
            status = engine_of(&combos[c], &e, &err);
            pi_mem_fail_at(0, false);
            if (status == PITH_OK) {
                pith_engine_free(e);
            } else {
                assert_int_equal(status, PITH_NOMEM);
                assert_null(e);
            }
            assert_int_equal(used(), before);
        }
        assert_true(n > 10);
    }
}

/* After the failure, the sequence to be forked goes on as if nothing had been tried. */
TEST(a_sequence_or_fork_that_cannot_be_made_leaves_nothing)
{
    for (size_t c = 0; c < PI_LEN(combos); c++) {
        pith_engine *e = NULL;
        check(engine_of(&combos[c], &e, &err), &err);
        pith_seq *seq = seq_make(e), *same = seq_make(e);
        eval(seq, 0, 100);
        eval(same, 0, 100);
        for (int fork = 0; fork < 2; fork++) {
            pith_status status = PITH_NOMEM;
            int64_t n = 0;
            while (status != PITH_OK) {
                pith_seq *out = NULL;
                int64_t before = used();
                pi_mem_fail_at(++n, false);
                status = fork ? pith_seq_fork(seq, &out, &err) : pith_seq_create(e, &out, &err);
                pi_mem_fail_at(0, false);
                if (status == PITH_OK) {
                    eval_ids(out, tokens, pith_seq_length(out), 110);
                    pith_seq_free(out);
                } else {
                    assert_int_equal(status, PITH_NOMEM);
                    assert_null(out);
                    assert_true(used() <= before);
                }
            }
            assert_true(n > 2);
        }
        eval(seq, 100, 120);
        eval(same, 100, 120);
        assert_int_equal(hash_of(seq), hash_of(same));
        pith_seq_free(seq);
        pith_seq_free(same);
        pith_engine_free(e);
    }
}
