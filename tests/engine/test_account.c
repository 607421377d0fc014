/*
 * test_account.c - the account of the memory that grows with conversations. Its parts sum to the
 * growth of the process, as the system counts it. A budget for everything holds everything, and
 * requests beyond the budget are refused. The number of threads changes none of that.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <unistd.h>

#include "base/threads.h"
#include "keep_engine.h"
#include "folder.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#define N_WARM 2048 /* tokens of a first sequence, which makes the allocations that happen once */
/* Sequences, so that pages of the system weigh little. Sanitizers do not weigh. */
#define N_SEQ (TEST_STRIDE > 1 ? 2 : 8)
#define N_TOKEN 2048 /* of each */
#define PART 512     /* that are evaluated together */
#define MOST_OFF 0.05

static int64_t resident(void)
{
    long long size = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL)
        return -1;
    int n = fscanf(file, "%lld %lld", &size, &pages);
    fclose(file);
    return n == 2 ? pages * (int64_t)sysconf(_SC_PAGESIZE) : -1;
}

static pith_engine_params params_of(const char *keep, const char *recall)
{
    pith_engine_params p;
    pith_engine_params_default(&p);
    p.n_thread = 1;
    p.type_k = p.type_v = "f32";
    p.keep = keep;
    p.recall = recall;
    return p;
}

static pith_engine *make(const pith_engine_params *p)
{
    pith_engine *e = NULL;
    check(pith_engine_create(model, p, &e, &err), &err);
    return e;
}

static pith_memory_stats account_of(const pith_engine *e)
{
    pith_memory_stats m;
    pith_engine_memory_stats(e, &m);
    assert_int_equal(m.total_bytes, m.lane_bytes + m.guest_bytes + m.state_bytes + m.idle_bytes +
                                        m.tier_bytes + m.text_bytes + m.aside_bytes +
                                        m.table_bytes + m.mark_bytes + m.policy_bytes +
                                        m.work_bytes);
    assert_true(m.lane_bytes >= 0 && m.idle_bytes >= 0);
    return m;
}

static pith_seq *fill(pith_engine *e, int32_t n, uint64_t seed)
{
    static int32_t part[PART];
    pith_seq *seq = seq_make(e);
    for (int32_t i = 0; i < n; i += PART) {
        for (int32_t j = 0; j < PART; j++)
            part[j] = (int32_t)rng_below(&seed, (uint64_t)info.n_vocab);
        check(pith_seq_eval(seq, part, PART, &err), &err);
    }
    return seq;
}

/* Fills an engine, and compares its account with the system's. */
static pith_memory_stats check_growth(const char *keep, const char *recall)
{
    pith_engine_params p = params_of(keep, recall);
    p.kv_tokens = (N_SEQ + 1) * (N_TOKEN + PART);
    pith_engine *e = make(&p);
    pith_seq *warm = fill(e, N_WARM, 1), *seq[N_SEQ];
#ifdef __GLIBC__
    malloc_trim(0); /* what earlier tests left is no room for this one */
#endif
    int64_t before = resident(), said = account_of(e).total_bytes + account_of(e).logits_bytes;
    for (int32_t i = 0; i < N_SEQ; i++)
        seq[i] = fill(e, N_TOKEN, (uint64_t)i + 2);
    pith_memory_stats m = account_of(e);
    double grown = (double)(resident() - before),
           sum = (double)(m.total_bytes + m.logits_bytes - said);
    printf("%s, recall %s: resident %.0f KiB more, the account %.0f KiB\n",
           keep != NULL ? keep : "full", recall != NULL ? recall : "none", grown / 1024,
           sum / 1024);
#ifdef __SANITIZE_ADDRESS__
    printf("not compared: the sanitizer's own memory counts, too\n");
#else
    if (before < 0)
        printf("not compared: there is no /proc/self/statm\n");
    else
        assert_true(sum > (1.0 - MOST_OFF) * grown && sum < (1.0 + MOST_OFF) * grown);
#endif
    for (int32_t i = 0; i < N_SEQ; i++)
        pith_seq_free(seq[i]);
    pith_seq_free(warm);
    pith_memory_stats left = account_of(e);
    assert_int_equal(left.lane_bytes + left.guest_bytes + left.tier_bytes + left.policy_bytes, 0);
    pith_engine_free(e);
    return m;
}

TEST(grows_as_it_says_when_full)
{
    pith_memory_stats m = check_growth(NULL, NULL);
    assert_true(m.lane_bytes > 9 * m.total_bytes / 10);
    assert_int_equal(m.tier_bytes + m.guest_bytes + m.text_bytes, 0);
}

TEST(grows_as_it_says_under_a_policy)
{
    (void)check_growth("streaming:budget=25%", NULL);
}

TEST(grows_as_it_says_with_marks)
{
    assert_true(check_growth("h2o:budget=50%", NULL).mark_bytes > 0);
}

TEST(grows_as_it_says_with_a_tier)
{
    pith_memory_stats m = check_growth("streaming:budget=25%", "kv");
    assert_true(m.tier_bytes > 0 && m.guest_bytes > 0 && m.work_bytes > 0);
    m = check_growth("streaming:budget=25%", "kv:type=stored");
    assert_true(m.tier_bytes > m.lane_bytes);
}

TEST(grows_as_it_says_with_text)
{
    assert_true(check_growth("streaming:budget=25%", "text").text_bytes > 0);
}

/* The bytes of evicted entries and lanes together, relative to the full cache. */
TEST(lanes_and_tier_hold_less_than_half)
{
    pith_engine_params p = params_of("streaming:budget=25%", "kv"), full = params_of(NULL, NULL);
    int64_t bytes;
    p.type_k = p.type_v = full.type_k = full.type_v = "f16";
    p.kv_tokens = 2 * N_TOKEN;
    pith_engine *e = make(&p);
    pith_seq *seq = fill(e, N_TOKEN, 5);
    pith_memory_stats m = account_of(e);
    check(pith_kv_estimate(model, &full, N_TOKEN, &bytes, &err), &err);
    printf("lanes %lld, guests %lld, tier %lld of %lld\n", (long long)m.lane_bytes,
           (long long)m.guest_bytes, (long long)m.tier_bytes, (long long)bytes);
    assert_true(m.lane_bytes + m.guest_bytes + m.tier_bytes < bytes / 2);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* ---- a budget for everything ---- */

TEST(a_budget_holds_everything)
{
    static const struct {
        const char *keep, *recall;
    } forms[] = {
        {NULL, NULL},
        {"streaming:budget=25%", NULL},
        {"h2o:budget=50%", NULL},
        {"streaming:budget=25%", "kv"},
        {"streaming:budget=256", "kv:type=stored"},
        {"streaming:budget=25%", "kv:ram=512KiB"},
        {"streaming:budget=25%", "text"},
        {"triattention:v3,budget=400", "text"},
        {"triattention:v3,budget=25%", "kv"},
        {"h2o:budget=256", "kv:type=q4_0"},
        {"snapkv:budget=300,slack=16", NULL},
        {"knorm:budget=40%,granularity=layer", NULL},
    };
    for (size_t i = 0; i<PI_LEN(forms); i += TEST_STRIDE> 1 ? 2 : 1) {
        pith_engine_params p = params_of(forms[i].keep, forms[i].recall);
        check(pith_memory_estimate(model, &p, N_TOKEN, &p.memory_bytes, &err), &err);
        pith_engine *e = make(&p);
        pith_seq *seq = fill(e, N_TOKEN, 9);
        pith_memory_stats m = account_of(e);
        pith_recall_stats r;
        pith_keep_stats k;
        pith_seq_recall_stats(seq, &r);
        pith_seq_keep_stats(seq, &k);
        /* There is one sequence: its figures are the account's. */
        assert_int_equal(r.guest_bytes, m.guest_bytes);
        assert_int_equal(k.remembered_bytes, m.policy_bytes);
        assert_int_equal(m.budget_bytes, p.memory_bytes);
        printf("%s, %s: %lld of %lld bytes\n", p.keep != NULL ? p.keep : "full",
               p.recall != NULL ? p.recall : "none", (long long)m.total_bytes,
               (long long)m.budget_bytes);
        assert_true(m.total_bytes <= m.budget_bytes);
        if (i != 5)
            assert_int_equal(r.lost, 0);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* ---- the number of threads ---- */

#define N_FORM (sizeof(threaded) / sizeof(threaded[0]))

/* Policies whose rounds, steps, weights or recalls have buffers for each thread. With fewer bytes
   than the text takes entries are lost. A share of it must have them all. */
static const struct {
    const char *keep, *recall;
    int32_t tenths; /* of the bytes */
} threaded[] = {
    {"streaming:budget=128", "kv", 8},        {"streaming:budget=25%", "kv:score=quoka", 10},
    {"h2o:budget=128,batch=0", NULL, 10},     {"raas:budget=256", "kv:type=q4_0", 8},
    {"triattention:v3,budget=25%", "kv", 10}, {"snapkv:budget=300,slack=16", NULL, 10},
};

static const int32_t some_threads[] = {1, 2, 8, 64};

/* The end of a conversation within a budget. */
struct outcome {
    int64_t estimate, pages, lost, live;
    uint64_t hash;
};

static struct outcome run_form(size_t form, int32_t n_thread, int64_t budget)
{
    pith_engine_params p = params_of(threaded[form].keep, threaded[form].recall);
    struct outcome out = {0};
    pith_recall_stats r;
    pith_keep_stats k;
    p.n_thread = n_thread;
    check(pith_memory_estimate(model, &p, N_TOKEN, &out.estimate, &err), &err);
    p.memory_bytes = budget;
    pith_engine *e = make(&p);
    pith_seq *seq = fill(e, N_TOKEN, 9);
    pith_memory_stats m = account_of(e);
    if (m.total_bytes > budget)
        fail_msg("%s, %d threads: %lld of %lld bytes", p.keep, n_thread, (long long)m.total_bytes,
                 (long long)budget);
    pith_seq_recall_stats(seq, &r);
    pith_seq_keep_stats(seq, &k);
    out.pages = (int64_t)kv_cache_free_bytes(e->kv) + m.lane_bytes + m.guest_bytes;
    out.lost = r.lost;
    out.live = k.live;
    out.hash = pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
    pith_seq_free(seq);
    pith_engine_free(e);
    return out;
}

TEST(threads_do_not_change_what_a_budget_leaves)
{
    for (size_t i = 0; i < N_FORM; i++) {
        pith_engine_params p = params_of(threaded[i].keep, threaded[i].recall);
        int64_t budget;
        check(pith_memory_estimate(model, &p, N_TOKEN, &budget, &err), &err);
        budget = budget / 10 * threaded[i].tenths;
        struct outcome one = run_form(i, 1, budget);
        assert_true(one.lost > 0 || threaded[i].tenths == 10);
        for (size_t t = 1; t < PI_LEN(some_threads); t++) {
            /* As if there were processors for them. */
            pi_thread_assume((int32_t)pi_min(some_threads[t], 8));
            struct outcome other = run_form(i, some_threads[t], budget);
            pi_thread_assume(0);
            assert_int_equal(other.estimate, one.estimate);
            assert_int_equal(other.pages, one.pages);
            assert_int_equal(other.lost, one.lost);
            assert_int_equal(other.live, one.live);
            assert_true(other.hash == one.hash);
        }
    }
}

/* Its file has room for 4 GiB, of which recalls touch a little. */
TEST_WITH(make_folder, remove_folder, a_budget_holds_recalls_from_a_file)
{
    char recall[256];
    snprintf(recall, sizeof(recall), "kv:ram=128KiB,file=%s", in_folder("tier"));
    for (int32_t n_thread = 1; n_thread <= 8; n_thread += 7) {
        pith_engine_params p = params_of("streaming:budget=128", recall);
        p.n_thread = n_thread;
        p.memory_bytes = 2 << 20;
        pi_thread_assume(8);
        pith_engine *e = make(&p);
        pith_seq *seq = fill(e, N_TOKEN, 9);
        pith_memory_stats m = account_of(e);
        pi_thread_assume(0);
        printf("%d threads: %lld of %lld bytes, %lld of the file\n", n_thread,
               (long long)m.total_bytes, (long long)m.budget_bytes, (long long)m.file_bytes);
        assert_true(m.file_bytes > 0 && m.work_bytes > 0);
        assert_true(m.total_bytes <= m.budget_bytes);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* A budget of entries goes on behind the conversation that the bytes were planned for. */
TEST(a_text_may_be_longer_than_planned)
{
    pith_engine_params p = params_of("raas:budget=256", "kv:type=q4_0");
    p.type_k = p.type_v = "q8_0";
    p.memory_bytes = 600 << 10;
    pith_engine *e = make(&p);
    pith_seq *seq = fill(e, 7 * PART, 9);
    for (int32_t i = 0; i < 8; i++) /* whose weights have buffers, too */
        check(pith_seq_eval(seq, &tokens[i], 1, &err), &err);
    pith_memory_stats m = account_of(e);
    printf("%lld of %lld bytes\n", (long long)m.total_bytes, (long long)m.budget_bytes);
    assert_true(m.total_bytes <= m.budget_bytes);
    pith_seq_free(seq);
    pith_engine_free(e);
}

static void expect_refusal(const pith_engine_params *p, const char *part)
{
    pith_engine *e = NULL;
    assert_int_equal(pith_engine_create(model, p, &e, &err), PITH_INVALID);
    if (strstr(err.message, part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.message, part);
}

TEST(refuses_what_it_cannot_hold)
{
    pith_engine_params p = params_of("streaming:budget=25%", "kv:ram=4MiB");
    p.memory_bytes = 4 << 20;
    expect_refusal(&p, "recall: ram: 4194304 bytes leave nothing");
    p = params_of("streaming:budget=25%", "kv");
    p.memory_bytes = 4096;
    expect_refusal(&p, "memory_bytes: 4096 bytes are less than");
    p.memory_bytes = 4 << 20;
    p.kv_tokens = 100;
    expect_refusal(&p, "kv_tokens: 100");
    p.memory_bytes = -1;
    expect_refusal(&p, "memory_bytes: -1");
}

static void load(void)
{
    model_load(3);
}

TEST_GROUP(load, model_free);
