/*
 * test_share.c - share policies in an engine: options and refusals. Without sharing nothing
 * changes. The shared pages depend on the sequence alone: not on threads, chunks or other
 * sequences, nor on forks, truncation and failures.
 */
#include "share_rig.h"

TEST_GROUP(load_model, free_model);

/* ---- options ---- */

static void refuse(const char *share, const char *keep, const char *recall, const char *word)
{
    pith_engine_params p = params_of(share);
    pith_engine *e = NULL;
    p.keep = keep;
    p.recall = recall;
    expect(pith_engine_create(model, &p, &e, &err), &err, PITH_INVALID, word);
}

TEST(reads_options_and_refuses_bad_ones)
{
    struct share_config a, b;
    pith_policy_info info;
    pith_param_info param;
    check(share_config_parse("memshare", &a, &err), &err);
    assert_true(a.options.step == 0.8 && a.options.block < 0.0 && a.options.quantile == 0.1);
    assert_int_equal(a.options.mode, SHARE_POSITIONAL);
    assert_int_equal(a.options.form, SHARE_RMS);
    assert_int_equal(a.options.candidates, 8);
    check(share_config_parse("memshare:step=0.9,form=paper,block=0.8,mode=literal", &b, &err),
          &err);
    assert_int_equal(b.options.mode, SHARE_LITERAL);
    assert_true(b.options.step == 0.9 && b.options.block == 0.8);
    assert_int_equal(b.options.form, SHARE_PAPER);
    check(share_config_parse("memshare:block=0.15", &b, &err), &err);
    assert_true(b.options.step == 0.8 && b.options.block == 0.15);
    assert_int_equal(b.options.form, SHARE_RMS);
    check(share_config_parse("", &b, &err), &err);
    assert_int_equal(b.kind, SHARE_NONE);
    expect(pith_policy_check(PITH_SHARE, "memshare:step=2", &err), &err, PITH_INVALID, "step");
    expect(pith_policy_check(PITH_SHARE, "memshire", &err), &err, PITH_INVALID,
           "did you mean memshare?");
    expect(pith_policy_check(PITH_SHARE, "memshare:mode=literal,across=yes", &err), &err,
           PITH_INVALID, "across");
    assert_int_equal(pith_policy_get(PITH_SHARE, 0, &info), PITH_OK);
    assert_string_equal(info.name, "memshare");
    assert_int_equal(pith_policy_get_param(PITH_SHARE, 0, info.n_param - 1, &param), PITH_OK);
    assert_int_equal(pith_policy_get_param(PITH_SHARE, 0, info.n_param, &param), PITH_NOT_FOUND);
    assert_int_equal(pith_policy_get(PITH_SHARE, 2, &info), PITH_NOT_FOUND);
    refuse("memshare", "longflow:budget=64", NULL, "overwrites");
    refuse("memshare", "streaming:budget=64,positions=cache", NULL, "places");
    refuse("memshare", "knorm:budget=64", "text", "recall text");
}

/* Pages hold 16 entries by default, and otherwise the number that the options name. */
TEST(pages_hold_16_unless_told)
{
    pith_engine_params p = params_of("memshare");
    for (int32_t i = 0; i < 3; i++) {
        p.share = i == 0 ? "memshare" : i == 1 ? NULL : "memshare";
        p.page_len = i == 2 ? 32 : 0;
        pith_engine *e = engine_of(&p);
        assert_int_equal(kv_cache_geometry(e->kv)->page_len, i == 0 ? 16 : i == 1 ? 64 : 32);
        pith_engine_free(e);
    }
}

/* ---- nothing shared ---- */

/* Thresholds of 0 and a control that shares nothing are the cache without a policy, bit for bit. */
TEST(sharing_nothing_changes_no_bit)
{
    pith_engine_params p[3] = {params_of("memshare:block=0"), params_of("random:share=0"),
                               params_of(NULL)};
    pith_engine *e[3];
    pith_seq *seq[3];
    pith_kv_stats kv[3];
    p[2].page_len = 16;
    for (int32_t i = 0; i < 3; i++) {
        e[i] = engine_of(&p[i]);
        seq[i] = seq_of(e[i]);
    }
    for (int32_t n = N_PROMPT; n <= n_id; n++) {
        for (int32_t i = 0; i < 3; i++) {
            read_to(seq[i], n);
            pith_engine_kv_stats(e[i], &kv[i]);
            assert_true(hash_of(seq[i]) == hash_of(seq[0]));
            assert_int_equal(kv[i].used_bytes, kv[0].used_bytes);
        }
    }
    assert_int_equal(share_seq_first_change(seq[0]->share), INT32_MAX);
    pith_share_stats t = stats_of(seq[0]);
    assert_int_equal(t.steps_closed, n_end);
    assert_int_equal(t.steps_compared, n_end - 1);
    assert_true(t.steps_similar > n_end / 2 && t.pages_compared > 0);
    assert_int_equal(t.pages_shared, 0);
    for (int32_t i = 0; i < 3; i++) {
        pith_seq_free(seq[i]);
        pith_engine_free(e[i]);
    }
}

/* ---- measured ---- */

/* Without a threshold a sequence measures one. A fork, and one that forgets its last steps and
   reads them again, go on with the same. */
TEST(a_sequence_measures_its_threshold)
{
    pith_engine_params p = params_of("memshare:quantile=0.9"),
                       few = params_of("memshare:quantile=0.05");
    pith_engine *e = engine_of(&p), *least = engine_of(&few);
    pith_seq *seq = seq_of(e), *fork = NULL, *other = seq_of(least);
    int32_t half = N_PROMPT + (n_id - N_PROMPT) / 2;
    read_to(seq, half);
    check(pith_seq_fork(seq, &fork, &err), &err);
    read_to(seq, n_id);
    read_to(fork, n_id);
    pith_share_stats t = stats_of(seq);
    assert_true(t.block > 0.0 && t.block == stats_of(fork).block);
    assert_true(hash_of(seq) == hash_of(fork));
    assert_true(t.pages_shared > 0);
    read_to(other, n_id);
    assert_true(stats_of(other).block > 0.0 && stats_of(other).block < t.block);
    assert_true(stats_of(other).pages_shared < t.pages_shared);
    check(pith_seq_truncate(other, half, &err), &err);
    double cut = stats_of(other).block;
    pith_seq *again = seq_of(least);
    read_to(again, half);
    assert_true(stats_of(again).block == cut);
    pith_seq_free(again);
    pith_seq_free(other);
    pith_seq_free(fork);
    pith_seq_free(seq);
    pith_engine_free(least);
    pith_engine_free(e);
}

/* ---- shared ---- */

/* The entries of the lanes: all positions; a replaced page is read at the position of the page that
   it replaces. */
static void check_lanes(const pith_seq *seq, bool literal)
{
    pith_share_stats t = stats_of(seq);
    int32_t pos[IDS_MAX], n = pith_seq_length(seq);
    for (int32_t l = 0; l < model->hp.n_layer; l++)
        for (int32_t h = 0; h < model->hp.n_head_kv; h++) {
            pith_lane_info lane;
            assert_int_equal(pith_seq_lane(seq, l, h, &lane, pos, IDS_MAX), PITH_OK);
            assert_int_equal(lane.n_entry, literal ? n - t.tokens_shared : n);
            for (int32_t i = 0; i < lane.n_entry; i++)
                assert_true(literal ? i == 0 || pos[i] > pos[i - 1] : pos[i] == i);
        }
}

/* Under sanitizers, ten times as slow, every other form and place. */
#define EACH (TEST_STRIDE > 1 ? 3 : 1)

static const char *const sharing[] = {LAX, LAX ",mode=literal", "random:share=0.7",
                                      "random:share=0.7,mode=literal", LAX ",form=paper"};

/* However much is shared, a sequence never takes more pages than without a policy. */
TEST(takes_never_more_pages)
{
    for (size_t k = 0; k < PI_LEN(sharing) + 2; k++) {
        pith_engine_params p = params_of(k < PI_LEN(sharing)    ? sharing[k]
                                         : k == PI_LEN(sharing) ? LAX ",candidates=1"
                                                                : "memshare"),
                           none = params_of(NULL);
        none.page_len = 16;
        pith_engine *e[2] = {engine_of(&p), engine_of(&none)};
        pith_seq *seq[2] = {seq_of(e[0]), seq_of(e[1])};
        pith_kv_stats kv[2];
        for (int32_t n = N_PROMPT; n <= n_id; n++) {
            for (int32_t i = 0; i < 2; i++) {
                read_to(seq[i], n);
                pith_engine_kv_stats(e[i], &kv[i]);
            }
            assert_true(kv[0].used_bytes <= kv[1].used_bytes);
        }
        int64_t less = kv[1].used_bytes - kv[0].used_bytes, saved = stats_of(seq[0]).bytes_saved;
        assert_true(k > PI_LEN(sharing) || (less > 0 && saved > 0));
        for (int32_t i = 0; i < 2; i++) {
            pith_seq_free(seq[i]);
            pith_engine_free(e[i]);
        }
    }
}

/* The same tokens and bits for any number of threads, alone and in company. */
TEST(threads_and_company_change_no_bit)
{
    for (size_t k = 0; k < PI_LEN(sharing); k += EACH) {
        pith_engine_params p = params_of(sharing[k]);
        pith_engine *e = engine_of(&p);
        pith_seq *seq = seq_of(e);
        read_to(seq, n_id);
        pith_share_stats t = stats_of(seq);
        assert_true(t.pages_shared > 4 && t.tokens_shared > 4 * 8);
        check_lanes(seq, strstr(sharing[k], "literal") != NULL);

        p.n_thread = 3;
        p.chunk = 16;
        pith_engine *other = engine_of(&p);
        pith_seq *pair[2] = {seq_of(other), seq_of(other)};
        read_to(pair[0], N_PROMPT + 3);
        for (int32_t i = N_PROMPT; i < n_id; i++) {
            pith_batch_item items[2] = {
                {.seq = pair[0], .tokens = &ids[i + 3 < n_id ? i + 3 : 5], .n_token = 1},
                {.seq = pair[1],
                 .tokens = i == N_PROMPT ? ids : &ids[i - 1],
                 .n_token = i == N_PROMPT ? N_PROMPT : 1}};
            check(pith_batch_eval(other, items, 2, NULL, NULL, &err), &err);
        }
        read_to(pair[1], n_id);
        assert_true(hash_of(pair[1]) == hash_of(seq));
        pith_share_stats u = stats_of(pair[1]);
        assert_int_equal(u.pages_shared, t.pages_shared);
        assert_int_equal(u.tokens_shared, t.tokens_shared);
        assert_int_equal(u.pages_compared, t.pages_compared);
        pith_seq_free(pair[0]);
        pith_seq_free(pair[1]);
        pith_engine_free(other);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* A fork goes on as its origin, whichever goes first; freeing one leaves the other. */
TEST(a_fork_goes_on_alike)
{
    for (size_t k = 0; k < PI_LEN(sharing); k += EACH) {
        pith_engine_params p = params_of(sharing[k]);
        pith_engine *e = engine_of(&p);
        for (int32_t at = N_PROMPT + 5; at < n_id; at += 149 * EACH) {
            pith_seq *seq = seq_of(e), *fork;
            read_to(seq, at);
            check(pith_seq_fork(seq, &fork, &err), &err);
            read_to(fork, n_id);
            uint64_t hash = hash_of(fork);
            pith_share_stats t = stats_of(fork);
            pith_seq_free(fork);
            read_to(seq, n_id);
            assert_true(hash_of(seq) == hash);
            assert_int_equal(stats_of(seq).pages_shared, t.pages_shared);
            pith_seq_free(seq);
        }
        pith_kv_stats kv;
        pith_engine_kv_stats(e, &kv);
        assert_int_equal(kv.used_bytes, 0);
        pith_engine_free(e);
    }
}

/* Syncing to another text is a fresh sequence, wherever the two part. */
TEST(a_sync_gives_what_a_fresh_sequence_gives)
{
    for (size_t k = 0; k < PI_LEN(sharing); k += EACH) {
        pith_engine_params p = params_of(sharing[k]);
        pith_engine *e = engine_of(&p);
        for (int32_t at = 20; at < n_id; at += 97 * EACH) {
            int32_t other[IDS_MAX];
            pith_seq *seq = seq_of(e), *fresh = seq_of(e);
            read_to(seq, n_id);
            memcpy(other, ids, sizeof(other));
            other[at] = other[at] == 7 ? 8 : 7;
            int32_t n = at + 9 < n_id ? at + 9 : n_id;
            check(pith_seq_sync(seq, other, n, NULL, NULL, &err), &err);
            check(pith_seq_sync(fresh, other, n, NULL, NULL, &err), &err);
            assert_true(hash_of(seq) == hash_of(fresh));
            /* And goes on as one. */
            for (int32_t i = N_PROMPT; i < N_PROMPT + 60; i++) {
                check(pith_seq_eval(seq, &ids[i], 1, &err), &err);
                check(pith_seq_eval(fresh, &ids[i], 1, &err), &err);
            }
            assert_true(hash_of(seq) == hash_of(fresh));
            pith_seq_free(seq);
            pith_seq_free(fresh);
        }
        pith_engine_free(e);
    }
}

/* Forgetting a part and reading it again: anywhere where nothing is shared, and at the ends of
   steps where something is. */
TEST(forgets_a_part_and_reads_it_again)
{
    for (int32_t k = 0; k < 3; k++) {
        pith_engine_params p = params_of(k == 0 ? "memshare:block=0" : sharing[k - 1]);
        pith_engine *e = engine_of(&p);
        uint64_t hash = hash_at(e, n_id);
        int32_t n_try = k == 0 ? n_id - N_PROMPT : n_end;
        for (int32_t i = 0; i < n_try; i += k == 0 ? 41 * EACH : EACH) {
            /* Folding lets an earlier page count twice, which forgetting does not take back. */
            int32_t at = k == 0 ? N_PROMPT + i : ends[i];
            pith_seq *seq = seq_of(e);
            read_to(seq, k == 2 ? (at + 9 < n_id ? at + 9 : n_id) : n_id);
            check(pith_seq_truncate(seq, at, &err), &err);
            read_to(seq, n_id);
            assert_true(hash_of(seq) == hash);
            assert_int_equal(stats_of(seq).steps_closed, n_end);
            check(pith_seq_truncate(seq, 0, &err), &err);
            assert_int_equal(stats_of(seq).steps_closed, 0);
            assert_int_equal(share_seq_first_change(seq->share), INT32_MAX);
            read_to(seq, ends[2]);
            pith_seq_free(seq);
        }
        pith_engine_free(e);
    }
}

/* A prompt that is forgotten back to where a step began goes on as if there had been none. */
TEST(forgets_a_step_at_its_end)
{
    pith_engine_params p = params_of(LAX);
    pith_engine *e = engine_of(&p);
    pith_seq *seq = seq_of(e), *plain = seq_of(e);
    read_to(seq, N_PROMPT + 11);
    check(pith_seq_truncate(seq, N_PROMPT, &err), &err);
    read_to(plain, N_PROMPT);
    assert_int_equal(share_seq_first_change(seq->share), INT32_MAX);
    check(pith_seq_eval(seq, ids + 100, 30, &err), &err);
    check(pith_seq_eval(plain, ids + 100, 30, &err), &err);
    assert_true(hash_of(seq) == hash_of(plain));
    pith_seq_free(seq);
    pith_seq_free(plain);
    pith_engine_free(e);
}

static bool stop(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    (void)user;
    (void)seq;
    (void)pos;
    (void)logits;
    return false;
}

/* Evaluations that are stopped leave everything as it was. */
TEST(a_stopped_evaluation_leaves_what_was)
{
    pith_engine_params p = params_of(LAX);
    pith_engine *e = engine_of(&p);
    pith_seq *seq = seq_of(e), *plain = seq_of(e);
    uint64_t hash = hash_at(e, n_id);
    for (int32_t n = N_PROMPT; n < n_id; n += 29) {
        read_to(seq, n);
        pith_batch_item item = {.seq = seq,
                                .tokens = &ids[n],
                                .n_token = 1,
                                .logits = PITH_LOGITS_ALL,
                                .on_logits = stop};
        assert_int_equal(pith_batch_eval(e, &item, 1, NULL, NULL, &err), PITH_CANCELLED);
        assert_int_equal(pith_seq_length(seq), n);
        if (n > N_PROMPT)
            continue;
        read_to(plain, N_PROMPT);
        item.n_token = 20;
        assert_int_equal(pith_batch_eval(e, &item, 1, NULL, NULL, &err), PITH_CANCELLED);
        pith_seq *fork;
        check(pith_seq_fork(seq, &fork, &err), &err);
        check(pith_seq_eval(fork, ids + 9, 30, &err), &err);
        check(pith_seq_eval(plain, ids + 9, 30, &err), &err);
        assert_true(hash_of(fork) == hash_of(plain));
        pith_seq_free(fork);
    }
    read_to(seq, n_id);
    assert_true(hash_of(seq) == hash);
    pith_seq_free(seq);
    pith_seq_free(plain);
    pith_engine_free(e);
}

/* ---- other sequences ---- */

TEST(shares_across_sequences)
{
    pith_engine_params p = params_of(LAX ",across=yes");
    pith_engine *e = engine_of(&p);
    pith_seq *first = seq_of(e), *second = seq_of(e);
    read_to(first, ends[3]);
    read_to(second, ends[0]); /* a step that has none before it in its own sequence */
    assert_true(stats_of(second).pages_shared > 0);
    check_lanes(second, false);
    pith_seq_free(first);
    read_to(second, n_id);
    pith_seq_free(second);
    pith_kv_stats kv;
    pith_engine_kv_stats(e, &kv);
    assert_int_equal(kv.used_bytes, 0);
    pith_engine_free(e);
}

/* ---- listening ---- */

struct heard {
    int32_t n, n_shared, n_early;
    const pith_seq *seq;
};

static void hear(void *user, const pith_share_pair *p)
{
    struct heard *h = user;
    h->n++;
    h->n_shared += p->shared;
    h->n_early += p->early;
    assert_ptr_equal(p->seq, h->seq);
    assert_true(p->cosine > 0.0 && p->cosine <= 1.0 + 1e-12 && p->from_pos < p->pos && p->n > 0);
    assert_true(p->rms >= 0.0 && p->paper >= 0.0 && p->relative >= 0.0 && p->relative < 2.0);
}

TEST(a_listener_hears_every_comparison)
{
    pith_engine_params p = params_of(LAX), none = params_of(NULL);
    pith_engine *e = engine_of(&p), *plain = engine_of(&none);
    expect(pith_engine_set_share_log(plain, hear, NULL, false, &err), &err, PITH_INVALID,
           "no share policy");
    for (int32_t all = 0; all < 2; all++) {
        pith_seq *seq = seq_of(e);
        struct heard h = {.seq = seq};
        check(pith_engine_set_share_log(e, hear, &h, all == 1, &err), &err);
        read_to(seq, n_id);
        pith_share_stats t = stats_of(seq);
        assert_int_equal(h.n, t.pages_compared);
        assert_int_equal(h.n_early, t.pages_early);
        assert_int_equal(h.n_shared, t.pages_shared);
        assert_true(all == 1 ? h.n_shared == 0 && h.n_early == 0 : h.n_shared > 0);
        pith_seq_free(seq);
    }
    check(pith_engine_set_share_log(e, NULL, NULL, false, &err), &err);
    pith_engine_free(e);
    pith_engine_free(plain);
}

/* ---- memory ---- */

/* Under pressure pages are shared that were too far apart before. */
TEST(shares_more_under_pressure)
{
    pith_engine_params p = params_of("memshare:step=0.5,block=0.01,relative=2,loose=100");
    pith_engine *e = engine_of(&p);
    pith_seq *seq = seq_of(e);
    pith_kv_stats before, after;
    read_to(seq, n_id);
    int64_t shared = stats_of(seq).pages_shared;
    pith_engine_kv_stats(e, &before);
    int64_t bytes = share_seq_scan(seq->share, seq->memory.kv);
    pith_engine_kv_stats(e, &after);
    assert_true(bytes > 0 && stats_of(seq).pages_shared > shared);
    assert_int_equal(before.used_bytes - after.used_bytes, bytes);
    check_lanes(seq, false);
    check(pith_seq_eval(seq, ids, 20, &err), &err);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* Every allocation fails once, under sanitizers some: what could not be done leaves all as it was,
   and is done then. */
TEST(failing_allocations_change_nothing)
{
    pith_engine_params p = params_of(LAX);
    pith_engine *whole = engine_of(&p);
    uint64_t hash = hash_at(whole, ends[4]);
    int32_t n_failed = 0;
    pith_engine_free(whole);
    for (int32_t n = 1;; n += EACH) {
        pith_engine *e = NULL;
        pith_seq *seq = NULL, *fork = NULL;
        pi_mem_fail_at(n, false);
        if (pith_engine_create(model, &p, &e, &err) != PITH_OK)
            check(pith_engine_create(model, &p, &e, &err), &err);
        if (pith_seq_create(e, &seq, &err) != PITH_OK)
            check(pith_seq_create(e, &seq, &err), &err);
        if (pith_seq_eval(seq, ids, N_PROMPT, &err) != PITH_OK)
            check(pith_seq_eval(seq, ids, N_PROMPT, &err), &err);
        for (int32_t i = N_PROMPT; i < ends[4]; i++) {
            if (i == ends[2] + 3 && pith_seq_fork(seq, &fork, &err) != PITH_OK)
                check(pith_seq_fork(seq, &fork, &err), &err);
            if (pith_seq_eval(seq, &ids[i], 1, &err) != PITH_OK) {
                assert_int_equal(err.status, PITH_NOMEM);
                check(pith_seq_eval(seq, &ids[i], 1, &err), &err);
                n_failed++;
            }
        }
        bool over = pi_mem_fail_at(0, false) < n;
        assert_true(hash_of(seq) == hash);
        pith_seq_free(seq);
        read_to(fork, ends[4]);
        assert_true(hash_of(fork) == hash);
        pith_seq_free(fork);
        pith_engine_free(e);
        if (over)
            break;
    }
    assert_true(n_failed > 3);
}
