/*
 * test_recall_engine.c - recall `kv` in an engine. With nothing evicted it gives the bits of the
 * full cache, and with everything back its logits. Bits are the same for any chunk, number of
 * threads and other sequences. Also the budget, forks, truncation and stopped evaluations.
 */
#include <math.h>

#include "testing.h"

#include "keep_engine.h"

#define N_PROMPT 150
#define N_TURN 30
#define N_STEP 12
#define N_TOKEN (N_PROMPT + N_TURN + N_STEP)

static pith_engine *engine_of(const char *keep, const char *read, const char *recall,
                              const char *type, int32_t chunk, int32_t n_thread, int32_t kv_tokens)
{
    return engine_with(model, (pith_engine_params){.chunk = chunk,
                                                   .n_thread = n_thread,
                                                   .kv_tokens = kv_tokens,
                                                   .page_len = PAGE_LEN,
                                                   .keep = keep,
                                                   .read = read,
                                                   .recall = recall,
                                                   .type_k = type,
                                                   .type_v = type});
}

static pith_recall_stats recall_of(const pith_seq *seq)
{
    pith_recall_stats s;
    pith_seq_recall_stats(seq, &s);
    return s;
}

/* ---- the same bits ---- */

/* Hashes of the logits after each token of a prompt, a turn and steps; beside another sequence
   where company says so. */
static pith_recall_stats hashes_of(pith_engine *e, bool company, uint64_t *hashes)
{
    pith_seq *seq = seq_make(e), *other = seq_make(e);
    uint64_t unused[N_TOKEN];
    for (int32_t i = 0, n; i < N_TOKEN; i += n) {
        n = i == 0 ? N_PROMPT : i == N_PROMPT ? N_TURN : 1;
        pith_batch_item items[2] = {{.seq = seq,
                                     .tokens = tokens + i,
                                     .n_token = n,
                                     .logits = PITH_LOGITS_ALL,
                                     .on_logits = keep_hash,
                                     .user = hashes},
                                    {.seq = other,
                                     .tokens = tokens + i + 7,
                                     .n_token = n,
                                     .logits = PITH_LOGITS_ALL,
                                     .on_logits = keep_hash,
                                     .user = unused}};
        check(pith_batch_eval(e, items, company ? 2 : 1, NULL, NULL, &err), &err);
    }
    pith_recall_stats stats = recall_of(seq);
    pith_seq_free(seq);
    pith_seq_free(other);
    pith_engine_free(e);
    return stats;
}

static const struct {
    const char *keep;
    const char *read;
    const char *recall;
    const char *type;
} forms[] = {
    {"streaming:sinks=4,budget=60,slack=8", NULL, "kv:last=16,block=2", "f16"},
    {"knorm:budget=60,slack=24", NULL, "kv:last=16,every=3", "q8_0"},
    {"longflow:budget=60,overwrite=on,slack=8", NULL, "kv:last=20,every=2", "f16"},
    {"h2o:budget=60,slack=8", NULL, "kv:last=16", "f32"},
    {"h2o:budget=60,slack=8", NULL, "kv:last=16,ask=0.01", "f16"},
    {"adakv:budget=60,slack=24,window=8", NULL, "kv:last=16,take=50%", "f16"},
    {"pyramidkv:budget=60,slack=24,window=8", NULL, "kv:last=30", "f16"},
    {"snapkv:budget=60,slack=24,window=8", NULL, "kv:last=16,every=1", "f16"},
    {"triattention:v3,budget=60,slack=24,prefix=4,window=8", NULL, "kv:last=16", "f16"},
    {"tova:budget=60,slack=8", NULL, "kv:last=16", "f16"},
    {"raas:budget=60,slack=8", NULL, "kv:last=16", "f16"},
    {"rkv:budget=60,slack=24,window=8", NULL, "kv:last=16", "f16"},
    {"vatp:budget=60,slack=8", NULL, "kv:last=16", "f16"},
    {"scissorhands:budget=60,slack=24", NULL, "kv:last=16", "f16"},
    {"lazyeviction:budget=60,slack=24,window=8", NULL, "kv:last=16", "f16"},
    {"keydiff:budget=40%,slack=8", NULL, "kv:last=16,score=bounds", "f16"},
    {"random:budget=60,slack=8,granularity=all", NULL, "kv:last=16", "f16"},
    {"vnorm:budget=30KiB,slack=8", NULL, "kv:last=16,take=30%", "f16"},
    {"knorm:budget=60,slack=8,batch=16", NULL, "kv:last=16", "f16"},
    {"knorm:budget=60,slack=24", "quoka:budget=16,chunk=10", "kv:last=16,every=3", "f16"},
    {"streaming:sinks=4,budget=60,slack=8", "quest:budget=16,chunk=10,phase=prompt", "kv:last=25",
     "f16"},
};

TEST(chunks_threads_and_company_change_no_bit)
{
    for (size_t f = 0; f < PI_LEN(forms); f++) {
        uint64_t a[N_TOKEN], b[N_TOKEN], c[N_TOKEN];
        const int32_t n = 3 * N_TOKEN;
        pith_recall_stats s = hashes_of(
            engine_of(forms[f].keep, forms[f].read, forms[f].recall, forms[f].type, 512, 1, n),
            false, a);
        if (s.recalls < 2 || s.guests == 0 || s.stored == 0)
            fail_msg("%s: %lld recalls, %lld guests of %lld", forms[f].keep, (long long)s.recalls,
                     (long long)s.guests, (long long)s.stored);
        assert_int_equal(s.lost, 0);
        hashes_of(engine_of(forms[f].keep, forms[f].read, forms[f].recall, forms[f].type, 33, 2, n),
                  false, b);
        hashes_of(engine_of(forms[f].keep, forms[f].read, forms[f].recall, forms[f].type, 50, 2, n),
                  true, c);
        for (int32_t i = 0; i < N_TOKEN; i++)
            if (a[i] != b[i] || a[i] != c[i])
                fail_msg("%s: position %d differs", forms[f].keep, i);
        /* Restored entries change the result. */
        hashes_of(engine_of(forms[f].keep, forms[f].read, NULL, forms[f].type, 512, 1, n), false,
                  b);
        assert_memory_not_equal(a, b, sizeof(a));
    }
}

/* A budget that is never reached. */
TEST(nothing_evicted_is_full)
{
    static const char *const keeps[] = {"streaming:budget=400,slack=64",
                                        "longflow:budget=400,overwrite=on",
                                        "adakv:budget=400,slack=64", "snapkv:budget=400"};
    static const char *const reads[] = {NULL, "quoka:budget=16,chunk=10,phase=prompt"};
    uint64_t full[N_TOKEN], got[N_TOKEN];
    for (size_t r = 0; r < PI_LEN(reads); r++) {
        hashes_of(engine_of(NULL, reads[r], NULL, "f16", 64, 1, 3 * N_TOKEN), false, full);
        for (size_t i = 0; i < PI_LEN(keeps); i++) {
            pith_recall_stats s = hashes_of(
                engine_of(keeps[i], reads[r], "kv:every=2", "f16", 64, 2, 3 * N_TOKEN), true, got);
            assert_int_equal(s.recalls + s.stored + s.guests, 0);
            assert_memory_equal(got, full, sizeof(full));
        }
    }
}

/* ---- everything comes back ---- */

static double distance(const float *a, const float *b)
{
    double sum = 0.0, norm = 0.0;
    for (int32_t i = 0; i < info.n_vocab; i++) {
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(sum / norm);
}

/* A text is read under the full cache and cut once. A turn that gets all evicted entries back
   computes the same result, except for the order of sums. Steps after it, too. */
TEST(everything_back_is_full)
{
    static const char *const keeps[] = {
        "streaming:sinks=4,budget=420,slack=1000", "random:budget=420,slack=1000",
        "knorm:budget=420,slack=1000", "adakv:budget=420,slack=1000,window=8"};
    for (size_t i = 0; i < PI_LEN(keeps); i++) {
        pith_engine *e = engine_of(keeps[i], NULL, "kv:type=stored,take=400,last=30,block=1", "f32",
                                   64, 2, 1000);
        pith_engine *alone = engine_of(keeps[i], NULL, NULL, "f32", 64, 2, 1000);
        pith_engine *f = engine_of(NULL, NULL, NULL, "f32", 64, 2, 1000);
        pith_seq *seq = seq_make(e), *full = seq_make(f), *lost = seq_make(alone);
        eval(seq, 0, N_PROMPT);
        eval(full, 0, N_PROMPT);
        check(pith_seq_keep_round(seq, &err), &err);
        int64_t evicted = stats_of(seq).evicted;
        assert_int_equal(evicted, (int64_t)n_lane * (N_PROMPT - 20));
        assert_int_equal(recall_of(seq).stored, evicted);
        assert_int_equal(recall_of(seq).guests, 0);
        eval(seq, N_PROMPT, N_PROMPT + N_TURN);
        eval(full, N_PROMPT, N_PROMPT + N_TURN);
        assert_int_equal(recall_of(seq).recalls, 1);
        assert_int_equal(recall_of(seq).guests, evicted);
        assert_true(distance(pith_seq_logits(seq), pith_seq_logits(full)) < 1e-4);
        for (int32_t t = N_PROMPT + N_TURN; t < N_TOKEN; t++) {
            eval(seq, t, t + 1);
            eval(full, t, t + 1);
        }
        assert_true(distance(pith_seq_logits(seq), pith_seq_logits(full)) < 1e-4);
        assert_true(recall_of(seq).doubt < 1e-4);
        /* Without them it is far away. */
        check(pith_seq_truncate(seq, N_PROMPT, &err), &err);
        assert_int_equal(recall_of(seq).guests, 0);
        for (int32_t t = N_PROMPT; t < N_PROMPT + N_TURN; t++) /* tokens alone recall nothing */
            eval(seq, t, t + 1);
        check(pith_seq_truncate(full, N_PROMPT, &err), &err);
        eval(full, N_PROMPT, N_PROMPT + N_TURN);
        assert_true(distance(pith_seq_logits(seq), pith_seq_logits(full)) > 1e-2);
        pith_seq_free(seq);
        pith_seq_free(full);
        pith_seq_free(lost);
        pith_engine_free(e);
        pith_engine_free(f);
        pith_engine_free(alone);
    }
}

/* The last queries ask again after a later round: nothing is evicted when the prompt ends, and a
   step's round evicts most of it. */
TEST(what_asked_last_asks_again_after_a_round)
{
    pith_engine *e = engine_of("random:budget=420,slack=136", NULL,
                               "kv:type=stored,take=400,last=30,ask=0", "f32", 64, 2, 1000);
    pith_engine *f = engine_of(NULL, NULL, NULL, "f32", 64, 2, 1000);
    pith_seq *seq = seq_make(e), *full = seq_make(f), *fork;
    eval(seq, 0, N_PROMPT);
    eval(full, 0, N_PROMPT);
    assert_int_equal(recall_of(seq).stored + recall_of(seq).guests, 0);
    check(pith_seq_fork(seq, &fork, &err), &err);
    for (int32_t t = N_PROMPT; t < N_PROMPT + N_STEP; t++) {
        eval(seq, t, t + 1);
        eval(fork, t, t + 1);
        eval(full, t, t + 1);
    }
    assert_int_equal(recall_of(seq).stored, (int64_t)n_lane * 136);
    assert_int_equal(recall_of(seq).guests, (int64_t)n_lane * 136);
    assert_true(distance(pith_seq_logits(seq), pith_seq_logits(full)) < 1e-4);
    assert_true(hash_of(seq) == hash_of(fork));
    pith_seq_free(seq);
    pith_seq_free(full);
    pith_seq_free(fork);
    pith_engine_free(e);
    pith_engine_free(f);
}

/* A token that misses something in a lane chooses there; one that misses nothing changes none. */
TEST(steps_ask_where_they_miss_something)
{
    static const char *const recalls[] = {"kv:last=16,take=30,ask=0", "kv:last=16,take=30,ask=1",
                                          "kv:last=16,take=30,ask=0.01"};
    uint64_t hash[3];
    for (size_t i = 0; i < PI_LEN(recalls); i++) {
        pith_engine *e =
            engine_of("streaming:sinks=4,budget=60,slack=40", NULL, recalls[i], "f16", 64, 2, 1000);
        pith_seq *seq = seq_make(e);
        eval(seq, 0, N_PROMPT);
        for (int32_t t = N_PROMPT; t < N_PROMPT + 4; t++)
            eval(seq, t, t + 1);
        hash[i] = hash_of(seq);
        assert_true(recall_of(seq).guests <= (int64_t)n_lane * 30);
        pith_seq_free(seq);
        assert_int_equal(used_pages(e), 0);
        pith_engine_free(e);
    }
    assert_true(hash[0] == hash[1]);
    assert_true(hash[0] != hash[2]);
}

/* It begins anew with a turn, and is 0 where steps do not look. */
TEST(doubt_is_about_entries_that_did_not_come_back)
{
    static const char *const recalls[] = {
        "kv:last=16,take=2,ask=0.01", "kv:last=16,take=30,ask=0.01", "kv:last=16,take=30,ask=0"};
    double doubt[3];
    for (size_t i = 0; i < PI_LEN(recalls); i++)
        for (int32_t n_thread = 1; n_thread <= 2; n_thread++) {
            pith_engine *e = engine_of("streaming:sinks=4,budget=60,slack=40", NULL, recalls[i],
                                       "f16", 64 / n_thread, n_thread, 1000);
            pith_seq *seq = seq_make(e), *fork;
            eval(seq, 0, N_PROMPT);
            assert_true(recall_of(seq).doubt == 0.0);
            for (int32_t t = N_PROMPT; t < N_PROMPT + 4; t++)
                eval(seq, t, t + 1);
            double d = recall_of(seq).doubt;
            assert_true(d >= 0.0 && d <= 1.0);
            assert_true(n_thread == 1 || d == doubt[i]);
            doubt[i] = d;
            check(pith_seq_fork(seq, &fork, &err), &err);
            assert_true(recall_of(fork).doubt == d);
            pith_seq_free(fork);
            eval(seq, N_PROMPT + 4, N_PROMPT + 24);
            assert_true(recall_of(seq).doubt == 0.0);
            pith_seq_free(seq);
            pith_engine_free(e);
        }
    assert_true(doubt[0] > 0.0 && doubt[1] > 0.0 && doubt[2] == 0.0);
}

/* ---- memory ---- */

static int64_t used_bytes(pith_engine *e)
{
    pith_kv_stats s;
    pith_engine_kv_stats(e, &s);
    assert_true(s.used_bytes <= s.reserved_bytes && s.peak_bytes <= s.reserved_bytes);
    return s.peak_bytes;
}

/* A budget in bytes holds lanes and guests, at every step; and the memory that an engine makes for
   one sequence suffices. */
TEST(budget_is_kept)
{
    static const char *const keeps[] = {
        "streaming:sinks=4,slack=8,budget=", "knorm:slack=24,budget=",
        "adakv:window=8,slack=8,budget=", "pyramidkv:window=8,slack=8,budget=",
        "longflow:overwrite=on,slack=8,budget="};
    static const char *const recalls[] = {"kv:last=16,every=2", "kv:last=16,take=60%",
                                          "kv:last=16,take=40,every=1"};
    static const char *const budgets[] = {"100", "150KiB"};
    for (size_t i = 0; i < PI_LEN(keeps) * PI_LEN(recalls) * PI_LEN(budgets); i++) {
        char keep[128];
        const char *budget = budgets[i % 2], *recall = recalls[i / 2 % 3];
        snprintf(keep, sizeof(keep), "%s%s", keeps[i / 6], budget);
        pith_engine *e = engine_of(keep, NULL, recall, "f16", 64, 2, 0);
        pith_seq *seq = seq_make(e);
        for (int32_t t = 0, n; t < TOKENS_MAX - 16; t += n) {
            n = t % 3 == 0 ? 16 : t < 60 ? 40 : 1;
            eval(seq, t, t + n);
            int64_t most = used_bytes(e);
            if (strcmp(budget, "100") != 0)
                assert_true(most <= 150 * 1024);
            else
                assert_true(stats_of(seq).live + recall_of(seq).guests <=
                            (int64_t)n_lane * (100 + 24));
        }
        if (recall_of(seq).recalls == 0 || recall_of(seq).guests == 0)
            fail_msg("%s, %s: nothing came back", keep, recall);
        pith_seq_free(seq);
        assert_int_equal(used_pages(e), 0);
        pith_engine_free(e);
    }
}

TEST(the_estimate_is_enough)
{
    static const char *const keeps[] = {"streaming:sinks=4,slack=8,budget=100",
                                        "knorm:slack=8,budget=50%",
                                        "longflow:overwrite=on,slack=8,budget=100"};
    for (size_t i = 0; i < PI_LEN(keeps); i++)
        for (int32_t n = 60; n < 300; n += 37) {
            pith_engine_params params;
            pith_engine *e;
            int64_t with, without;
            pith_engine_params_default(&params);
            params.page_len = PAGE_LEN;
            params.keep = keeps[i];
            check(pith_kv_estimate(model, &params, n, &without, &err), &err);
            params.recall = "kv:last=16";
            check(pith_kv_estimate(model, &params, n, &with, &err), &err);
            assert_true(with <= without + n_lane * 16 * 64 * 4);
            params.kv_bytes = with;
            check(pith_engine_create(model, &params, &e, &err), &err);
            pith_seq *seq = seq_make(e);
            eval(seq, 0, n - 20);
            eval(seq, n - 20, n);
            pith_seq_free(seq);
            pith_engine_free(e);
        }
}

/* ---- forks, truncation, sync ---- */

#define KEEP "knorm:budget=60,slack=24"
#define RECALL "kv:last=16"

TEST(a_fork_has_guests_and_goes_its_own_way)
{
    pith_engine *e = engine_of(KEEP, NULL, RECALL, "f16", 64, 2, 1000);
    pith_seq *a = seq_make(e), *b, *c;
    eval(a, 0, N_PROMPT);
    eval(a, N_PROMPT, N_PROMPT + N_TURN);
    check(pith_seq_fork(a, &b, &err), &err);
    check(pith_seq_fork(a, &c, &err), &err);
    pith_kv_stats s;
    pith_engine_kv_stats(e, &s);
    assert_int_equal(s.n_seq, 3);
    assert_int_equal(recall_of(a).guests, recall_of(b).guests);
    assert_int_equal(recall_of(a).stored, recall_of(b).stored);
    /* All go on alike, also where one recalls anew before the others. */
    eval(b, N_PROMPT + N_TURN, N_PROMPT + N_TURN + 8);
    eval(b, N_PROMPT + N_TURN + 8, N_PROMPT + N_TURN + 9);
    pith_seq_free(c);
    eval(a, N_PROMPT + N_TURN, N_PROMPT + N_TURN + 8);
    assert_int_equal(recall_of(a).recalls, recall_of(b).recalls);
    eval(a, N_PROMPT + N_TURN + 8, N_PROMPT + N_TURN + 9);
    assert_int_equal(hash_of(a), hash_of(b));
    pith_seq_free(a);
    eval(b, N_PROMPT + N_TURN + 9, N_TOKEN); /* with pages that are its own again */
    pith_seq_free(b);
    assert_int_equal(used_pages(e), 0);
    pith_engine_free(e);
}

TEST(truncating_forgets_guests_and_brings_entries_back)
{
    const int32_t end = N_PROMPT + N_TURN;
    pith_engine *e = engine_of("knorm:budget=60,slack=1000", NULL, RECALL, "f16", 64, 2, 2000);
    pith_seq *a = seq_make(e), *b;
    eval(a, 0, N_PROMPT);
    check(pith_seq_keep_round(a, &err), &err);
    eval(a, N_PROMPT, end);
    check(pith_seq_fork(a, &b, &err), &err);
    int64_t guests = recall_of(a).guests, stored = recall_of(a).stored;
    uint64_t turn = hash_of(a);
    /* An answer is forgotten, and what came back for its question stays. */
    for (int32_t t = end; t < end + 3; t++)
        eval(a, t, t + 1);
    uint64_t answer = hash_of(a);
    check(pith_seq_truncate(a, end, &err), &err);
    assert_int_equal(recall_of(a).guests, guests);
    for (int32_t t = end; t < end + 3; t++)
        eval(a, t, t + 1);
    assert_int_equal(hash_of(a), answer);
    /* The turn is forgotten with what came back for it, and read again brings it back. */
    check(pith_seq_truncate(a, N_PROMPT, &err), &err);
    assert_int_equal(recall_of(a).guests, 0);
    assert_true(recall_of(a).stored <= stored && recall_of(a).stored > 0);
    eval(a, N_PROMPT, end);
    assert_int_equal(recall_of(a).guests, guests);
    assert_int_equal(hash_of(a), turn);
    /* With everything gone nothing is remembered. */
    check(pith_seq_truncate(a, 0, &err), &err);
    assert_int_equal(recall_of(a).stored + recall_of(a).guests + recall_of(a).recalls, 0);
    pith_seq_free(a);
    pith_seq_free(b);
    pith_engine_free(e);
}

/* A sync gives the state of a fresh sequence, from any contents. */
TEST(a_sync_gives_what_a_fresh_sequence_gives)
{
    static const int32_t ends[] = {20, 50, 59, 60, 75, 90, 100, 149, 150, 151};
    int32_t other[TOKENS_MAX];
    for (size_t i = 0; i < PI_LEN(ends); i++)
        for (int32_t same = 5; same < ends[i]; same += 17) {
            pith_engine *e = engine_of(KEEP, NULL, RECALL, "f16", 64, 2, 1000);
            pith_seq *a = seq_make(e), *b = seq_make(e);
            memcpy(other, tokens, sizeof(tokens));
            for (int32_t t = same; t < TOKENS_MAX; t++)
                other[t] = tokens[TOKENS_MAX - 1 - t];
            eval(a, 0, same + 1 + same % 2 * 80); /* beyond the common part */
            eval(a, pith_seq_length(a), pith_seq_length(a) + 5);
            check(pith_seq_sync(a, other, ends[i], NULL, NULL, &err), &err);
            eval_ids(b, other, 0, ends[i]);
            if (hash_of(a) != hash_of(b))
                fail_msg("%d tokens, %d of them the same", ends[i], same);
            assert_int_equal(recall_of(a).guests, recall_of(b).guests);
            assert_int_equal(recall_of(a).recalls, recall_of(b).recalls);
            pith_seq_free(a);
            pith_seq_free(b);
            pith_engine_free(e);
        }
}

/* ---- what fails ---- */

static bool stop_at_end(void *user, double fraction)
{
    return fraction < *(double *)user;
}

/* A stopped turn leaves the sequence as it was, without guests where it had chosen some. */
TEST(a_stopped_turn_leaves_no_guests)
{
    double end = 1.0, before = 0.1;
    pith_engine *e = engine_of("knorm:budget=60,slack=1000", NULL, RECALL, "f16", 64, 2, 2000);
    pith_seq *a = seq_make(e), *b;
    eval(a, 0, N_PROMPT);
    check(pith_seq_keep_round(a, &err), &err);
    check(pith_seq_fork(a, &b, &err), &err);
    int64_t pages = used_pages(e);
    pith_batch_item item = {.seq = a, .tokens = tokens + N_PROMPT, .n_token = N_TURN};
    expect(pith_batch_eval(e, &item, 1, stop_at_end, &end, &err), &err, PITH_CANCELLED, "");
    assert_int_equal(pith_seq_length(a), N_PROMPT);
    assert_int_equal(recall_of(a).guests + recall_of(a).recalls, 0);
    assert_int_equal(recall_of(a).stored, recall_of(b).stored);
    assert_true(used_pages(e) <= pages + n_lane); /* last pages, which the fork shared */
    eval(a, N_PROMPT, N_PROMPT + N_TURN);
    eval(b, N_PROMPT, N_PROMPT + N_TURN);
    assert_int_equal(hash_of(a), hash_of(b));
    /* Stopped before it recalls, the guests of the turn before are still there. */
    item = (pith_batch_item){.seq = a, .tokens = tokens, .n_token = 80};
    expect(pith_batch_eval(e, &item, 1, stop_at_end, &before, &err), &err, PITH_CANCELLED, "");
    eval(a, N_PROMPT + N_TURN, N_PROMPT + N_TURN + 1);
    eval(b, N_PROMPT + N_TURN, N_PROMPT + N_TURN + 1);
    assert_int_equal(hash_of(a), hash_of(b));
    /* Stopped after it, they are gone. */
    item.n_token = 10;
    expect(pith_batch_eval(e, &item, 1, stop_at_end, &end, &err), &err, PITH_CANCELLED, "");
    assert_int_equal(recall_of(a).guests, 0);
    assert_int_equal(recall_of(a).recalls, recall_of(b).recalls);
    pith_seq_free(a);
    pith_seq_free(b);
    pith_engine_free(e);
}

/* No room for guests: nothing has changed. */
TEST(no_room_for_guests_changes_nothing)
{
    pith_engine *e = engine_of("knorm:budget=112,slack=1000", NULL, "kv:take=80,last=16", "f16", 64,
                               2, N_PROMPT + 10);
    pith_seq *a = seq_make(e), *b = seq_make(e);
    eval(a, 0, N_PROMPT);
    check(pith_seq_keep_round(a, &err), &err); /* 32 entries are left */
    eval(b, 0, 80);
    int64_t pages = used_pages(e);
    expect(pith_seq_eval(a, tokens, 20, &err), &err, PITH_KV_FULL, "free");
    assert_int_equal(pith_seq_length(a), N_PROMPT);
    assert_int_equal(used_pages(e), pages);
    pith_seq_free(b);
    check(pith_seq_eval(a, tokens, 20, &err), &err);
    assert_true(recall_of(a).guests > 0);
    pith_seq_free(a);
    pith_engine_free(e);
}

TEST(recalls_every_so_many_tokens)
{
    for (int32_t every = 0; every < 4; every++) {
        char recall[64];
        snprintf(recall, sizeof(recall), "kv:last=16,every=%d", every);
        pith_engine *e = engine_of("knorm:budget=60,slack=1000", NULL, recall, "f16", 64, 1, 1000);
        pith_seq *a = seq_make(e);
        eval(a, 0, N_PROMPT);
        eval(a, N_PROMPT, N_PROMPT + 1); /* nothing is there yet */
        assert_int_equal(recall_of(a).recalls, 0);
        check(pith_seq_truncate(a, N_PROMPT, &err), &err);
        check(pith_seq_keep_round(a, &err), &err);
        for (int32_t t = 0; t < 12; t++)
            eval(a, N_PROMPT + t, N_PROMPT + t + 1);
        int64_t wanted = every == 0 ? 0 : every == 1 ? 12 : 12 / every;
        assert_in_range(recall_of(a).recalls, wanted, wanted + (every > 1));
        pith_seq_free(a);
        pith_engine_free(e);
    }
}

/* The first entries go right before a token that recalls. */
TEST(recalls_right_behind_the_first_round)
{
    static const char *const keeps[] = {"knorm:budget=60,slack=8,batch=16",
                                        "longflow:budget=60,slack=8,overwrite=on",
                                        "streaming:budget=60,slack=8"};
    for (size_t i = 0; i < PI_LEN(keeps); i++)
        for (int32_t begin = 31; begin < 80; begin += 12) {
            pith_engine *e = engine_of(keeps[i], NULL, "kv:last=8,every=1", "f16", 64, 1, 400);
            pith_seq *a = seq_make(e);
            eval(a, 0, begin);
            for (int32_t t = begin; t < 90; t++)
                eval(a, t, t + 1);
            assert_true(recall_of(a).recalls > 0);
            assert_true(recall_of(a).guests > 0);
            pith_seq_free(a);
            pith_engine_free(e);
        }
}

/* A file has entries and no store. */
TEST(a_file_holds_no_second_tier)
{
    const char *path = "test_recall_engine.snap";
    pith_engine *e = engine_of(KEEP, NULL, RECALL, "f16", 64, 2, 1000);
    pith_seq *a = seq_make(e), *b;
    eval(a, 0, N_PROMPT);
    check(pith_seq_save(a, path, &err), &err);
    check(pith_seq_load(e, path, &b, &err), &err);
    assert_int_equal(recall_of(b).stored + recall_of(b).guests, 0);
    eval(b, N_PROMPT, N_PROMPT + N_TURN + 10); /* and begins to have one */
    assert_true(recall_of(b).stored > 0);
    pith_seq_free(a);
    pith_seq_free(b);
    pith_engine_free(e);
    remove(path);
}

TEST(refuses_what_does_not_go_with_it)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    pith_engine_params_default(&params);
    params.recall = "kv";
    expect(pith_engine_create(model, &params, &e, &err), &err, PITH_INVALID,
           "recall: there is no keep policy that evicts anything");
    params.keep = KEEP;
    params.chunk = 31;
    expect(pith_engine_create(model, &params, &e, &err), &err, PITH_INVALID,
           "recall: last: 32 tokens choose together, which a pass of at most 31 tokens");
    params.recall = "kv:lost=1";
    expect(pith_engine_create(model, &params, &e, &err), &err, PITH_INVALID, "no option \"lost\"");
    assert_null(e);
}

static void setup(void)
{
    model_load(11);
}

TEST_GROUP(setup, model_free);
