/*
 * test_threads.c - parallel loops process each item once on any number of threads. Cases: any
 * counts, nested loops, many callers, helpers that do not get to run, a child of fork. The limits
 * of control groups are read from made-up folders. For scripts/test-tsan.sh, too.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/processors.h"
#include "base/threads.h"
#include "base/wait.h"
#include "folder.h"
#include "testing.h"

#if defined(__SANITIZE_THREAD__)
#define WITH_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif
#ifndef WITH_TSAN
#define WITH_TSAN 0
#endif

enum { N_PROCESSOR = 8, MAX_ITEM = 300 };

static void nap(int64_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

/* Records of each item. Items are written by one thread each, or a sanitizer says so. */
struct seen {
    int n_thread;
    int64_t nap_ns; /* of each item */
    int count[MAX_ITEM];
    _Atomic int by_other;          /* items that the caller did not do */
    _Atomic int used[N_PROCESSOR]; /* threads that are in an item */
    _Atomic int wrong;             /* two threads had the same number */
};

static void see(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct seen *s = ctx;
    if (thread < 0 || thread >= s->n_thread || begin >= end ||
        atomic_fetch_add(&s->used[thread], 1) != 0)
        atomic_fetch_add(&s->wrong, 1);
    for (int64_t i = begin; i < end; i++) {
        s->count[i]++;
        if (thread != 0)
            atomic_fetch_add(&s->by_other, 1);
        if (s->nap_ns > 0)
            nap(s->nap_ns);
    }
    atomic_fetch_sub(&s->used[thread], 1);
}

/* Returns whether every item was done once, by threads with numbers of their own. */
static bool loop_is_right(struct seen *s, bool ranges, int n_thread, int n)
{
    memset(s->count, 0, sizeof(s->count));
    s->n_thread = n_thread;
    if (ranges)
        pi_parallel_ranges(n_thread, n, see, s);
    else
        pi_parallel_items(n_thread, n, see, s);
    bool ok = atomic_load(&s->wrong) == 0;
    for (int i = 0; i < MAX_ITEM; i++)
        ok = ok && s->count[i] == (i < n);
    return ok;
}

TEST(does_each_item_once)
{
    static struct seen s;
    for (int n_thread = 1; n_thread <= N_PROCESSOR; n_thread++)
        for (int n = 0; n < MAX_ITEM; n += n < 40 ? 1 : 37) {
            if (!loop_is_right(&s, true, n_thread, n) || !loop_is_right(&s, false, n_thread, n))
                fail_msg("%d threads, %d items: one was not done once", n_thread, n);
        }
}

/* Helpers do take part: items that take long are shared. */
TEST(helpers_take_part)
{
    static struct seen s = {.nap_ns = 1000000};
    int64_t until = pi_time_ns() + 60 * (int64_t)1000000000;
    while (atomic_load(&s.by_other) < 100 && pi_time_ns() < until)
        assert_true(loop_is_right(&s, true, 4, 40));
    assert_true(atomic_load(&s.by_other) >= 100);
}

/* ---- loops inside of loops, and many callers ---- */

static void nest(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    _Atomic int *wrong = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        struct seen inner = {0};
        if (!loop_is_right(&inner, i % 2 == 0, 4, 1 + (int)i * 7 % MAX_ITEM))
            atomic_fetch_add(wrong, 1);
    }
}

TEST(loops_may_stand_in_loops)
{
    for (int round = 0; round < 50 / TEST_STRIDE; round++) {
        _Atomic int wrong = 0;
        pi_parallel_items(4, 40, nest, &wrong);
        assert_int_equal(atomic_load(&wrong), 0);
    }
}

static void *call_loops(void *arg)
{
    struct seen s = {0};
    uint64_t rng = (uint64_t)(uintptr_t)arg;
    for (int i = 0; i < 2000 / TEST_STRIDE; i++)
        if (!loop_is_right(&s, i % 2 == 0, 1 + (int)rng_below(&rng, N_PROCESSOR),
                           (int)rng_below(&rng, MAX_ITEM)))
            return (void *)1;
    return NULL;
}

TEST(many_callers_get_their_own_results)
{
    enum { N_CALLER = 6 };
    pthread_t callers[N_CALLER];
    for (uintptr_t i = 0; i < N_CALLER; i++)
        assert_int_equal(pthread_create(&callers[i], NULL, call_loops, (void *)(i + 1)), 0);
    for (int i = 0; i < N_CALLER; i++) {
        void *wrong;
        pthread_join(callers[i], &wrong);
        assert_null(wrong);
    }
}

/* ---- helpers that cost more than they save ---- */

struct costly {
    _Atomic int n_by_other;
};

/* A helper loses its processor in the middle of its item. */
static void lose(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct costly *c = ctx;
    if (thread == 0) {
        int64_t until = pi_time_ns() + (end - begin) * 50000;
        while (pi_time_ns() < until)
            ;
    } else {
        atomic_fetch_add(&c->n_by_other, 1);
        nap(5000000);
    }
}

TEST(costly_helpers_rest)
{
    struct costly c = {0};
    pi_thread_assume(2);
    int64_t start = pi_time_ns();
    for (int i = 0; i < 1000; i++)
        pi_parallel_items(2, 4, lose, &c);
    pi_thread_assume(N_PROCESSOR);
    int64_t asked = (pi_time_ns() - start) / 1000000; /* milliseconds */
    /* At most one of 5 ms in each rest of 160 ms, and a few before the first rests. */
    if (atomic_load(&c.n_by_other) > 12 + asked / 100)
        fail_msg("a helper that loses its processor was asked %d times in %d ms",
                 atomic_load(&c.n_by_other), (int)asked);
}

/* ---- helpers that the system does not run ---- */

static _Atomic int n_frozen;
static _Atomic bool frozen;

static void freeze(int signal)
{
    (void)signal;
    atomic_fetch_add(&n_frozen, 1);
    while (atomic_load(&frozen))
        nap(1000000);
    atomic_fetch_sub(&n_frozen, 1);
}

/* Sends the signal to every thread but this one; returns to how many. */
static int signal_others(int signal)
{
    int n = 0;
    DIR *list = opendir("/proc/self/task");
    if (list == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
        long id = strtol(entry->d_name, NULL, 10);
        if (id > 0 && id != syscall(SYS_gettid))
            n += syscall(SYS_tgkill, getpid(), id, signal) == 0;
    }
    closedir(list);
    return n;
}

TEST(frozen_helpers_hold_up_nobody)
{
    static struct seen s;
    if (WITH_TSAN)
        test_skip("ThreadSanitizer delivers signals late");
    struct sigaction action = {.sa_handler = freeze}, old;
    sigaction(SIGPROF, &action, &old);
    atomic_store(&frozen, true);
    int n = signal_others(SIGPROF);
    assert_true(n > 0);
    while (atomic_load(&n_frozen) < n)
        nap(1000000);
    for (int i = 0; i < 2000; i++)
        assert_true(loop_is_right(&s, i % 2 == 0, 4, 1 + i % MAX_ITEM));
    assert_int_equal(atomic_load(&s.by_other), 0);
    atomic_store(&frozen, false);
    while (atomic_load(&n_frozen) > 0)
        nap(1000000);
    sigaction(SIGPROF, &old, NULL);
    test_helpers_take_part();
}

/* ---- fork ---- */

TEST(a_child_of_fork_has_loops_of_its_own)
{
    static struct seen s;
    if (WITH_TSAN)
        test_skip("ThreadSanitizer makes no threads in a child of fork");
    assert_true(loop_is_right(&s, false, 4, 100));
    pid_t child = fork();
    if (child == 0) {
        static struct seen in_child = {.nap_ns = 1000000};
        bool ok = true;
        for (int i = 0; i < 1000 && ok && atomic_load(&in_child.by_other) < 20; i++)
            ok = loop_is_right(&in_child, i % 2 == 0, 4, 40);
        int wrong = !ok || atomic_load(&in_child.by_other) < 20;
#ifdef __SANITIZE_ADDRESS__
        _exit(wrong); /* its search for leaks would look for the parent's threads */
#else
        exit(wrong); /* ends its helpers */
#endif
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    test_helpers_take_part();
}

/* ---- processors ---- */

static void write_file(const char *root, const char *path, const char *text)
{
    char full[512];
    int n = snprintf(full, sizeof(full), "%s", root);
    for (const char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        snprintf(full + n, sizeof(full) - (size_t)n, "%.*s", (int)(slash - path), path);
        mkdir(full, 0700);
    }
    snprintf(full + n, sizeof(full) - (size_t)n, "%s", path);
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

TEST(counts_processors_of_control_groups)
{
    static const struct {
        const char *self, *path, *text, *path2, *text2;
        int32_t expected;
    } cases[] = {
        {"0::/a/b\n", "/a/b/cpu.max", "200000 100000\n", "/a/cpu.max", "max 100000\n", 2},
        {"0::/a/b\n", "/a/b/cpu.max", "max 100000\n", "/a/cpu.max", "350000 100000\n", 4},
        {"0::/a/b\n", "/a/b/cpu.max", "10000 100000\n", "/a/cpu.max", "max 100000\n", 1},
        {"0::/a/b\n", "/a/b/cpu.max", "max 100000\n", "/a/cpu.max", "max 100000\n", INT32_MAX},
        /* A container whose list has the paths of the host: its own limit stands at the root. */
        {"0::/docker/0123\n", "/cpu.max", "150000 50000\n", "/x", "", 3},
        {"3:memory:/m\n2:cpu,cpuacct:/g\n0::/\n", "/cpu/g/cpu.cfs_quota_us", "600000\n",
         "/cpu/g/cpu.cfs_period_us", "100000\n", 6},
        {"2:cpuset:/g\n1:cpuacct,cpu:/g\n", "/cpu/g/cpu.cfs_quota_us", "-1\n",
         "/cpu/g/cpu.cfs_period_us", "100000\n", INT32_MAX},
        {"nonsense\n", "/cpu.max", "100000 100000\n", "/x", "", INT32_MAX},
        {"0::/\n", "/cpu.max", "nonsense\n", "/x", "", INT32_MAX},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char root[600], self[640];
        snprintf(root, sizeof(root), "%s/groups%zu", folder, i);
        snprintf(self, sizeof(self), "%s/self", root);
        assert_int_equal(mkdir(root, 0700), 0);
        write_file(root, "/self", cases[i].self);
        write_file(root, cases[i].path, cases[i].text);
        write_file(root, cases[i].path2, cases[i].text2);
        int32_t n = pi_processors_of_groups(root, self);
        if (n != cases[i].expected)
            fail_msg("case %zu: %d processors, not %d", i, (int)n, (int)cases[i].expected);
    }
    assert_int_equal(pi_processors_of_groups(folder, "/nowhere"), INT32_MAX);
    assert_true(pi_processors() >= 1);
}

/* Cached files that are not read are free, and the groups around one count, too. */
TEST(counts_memory_that_control_groups_leave)
{
    static const struct {
        const char *self;
        const char *file[7][2];
        int64_t expected;
    } cases[] = {
        {"0::/a/b\n", {{"/a/b/memory.max", "1000\n"}, {"/a/b/memory.current", "700\n"}}, 300},
        {"0::/a/b\n",
         {{"/a/b/memory.max", "1000\n"},
          {"/a/b/memory.current", "700\n"},
          {"/a/b/memory.stat", "anon 500\nfile 200\ninactive_file 150\nactive_file 50\n"}},
         450},
        {"0::/a/b\n",
         {{"/a/b/memory.max", "1000\n"},
          {"/a/b/memory.high", "800\n"},
          {"/a/b/memory.current", "700\n"},
          {"/a/memory.max", "2000\n"},
          {"/a/memory.current", "1100\n"}},
         100},
        {"0::/a/b\n",
         {{"/a/b/memory.max", "max\n"},
          {"/a/b/memory.current", "700\n"},
          {"/a/memory.max", "2000\n"},
          {"/a/memory.current", "1950\n"}},
         50},
        {"0::/a\n", {{"/a/memory.max", "500\n"}, {"/a/memory.current", "700\n"}}, 0},
        {"0::/a\n", {{"/a/memory.max", "max\n"}, {"/a/memory.current", "700\n"}}, INT64_MAX},
        /* A container whose list has the paths of the host. */
        {"0::/docker/01\n", {{"/memory.max", "900\n"}, {"/memory.current", "600\n"}}, 300},
        {"4:memory:/m/n\n2:cpu,cpuacct:/g\n0::/\n",
         {{"/memory/m/n/memory.limit_in_bytes", "9223372036854771712\n"},
          {"/memory/m/n/memory.usage_in_bytes", "700\n"},
          {"/memory/m/memory.limit_in_bytes", "1000\n"},
          {"/memory/m/memory.usage_in_bytes", "800\n"},
          {"/memory/m/memory.stat", "inactive_file 1\ntotal_inactive_file 300\n"}},
         500},
        {"0::/a\n", {{"/a/memory.max", "nonsense\n"}, {"/a/memory.current", "7\n"}}, INT64_MAX},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char root[600], self[640];
        snprintf(root, sizeof(root), "%s/memory%zu", folder, i);
        snprintf(self, sizeof(self), "%s/self", root);
        assert_int_equal(mkdir(root, 0700), 0);
        write_file(root, "/self", cases[i].self);
        for (size_t k = 0; k < 7 && cases[i].file[k][0] != NULL; k++)
            write_file(root, cases[i].file[k][0], cases[i].file[k][1]);
        int64_t n = pi_memory_of_groups(root, self);
        if (n != cases[i].expected)
            fail_msg("case %zu: %lld bytes, not %lld", i, (long long)n,
                     (long long)cases[i].expected);
    }
    assert_true(pi_memory_of_groups(folder, "/nowhere") == INT64_MAX);
}

/* A limit that leaves a GiB of address space, in a process of its own. */
TEST(counts_memory_that_the_limits_of_the_process_leave)
{
    int64_t total, before, after;
    pi_memory_size(&total, &before);
    if (TEST_STRIDE > 1 || before < (int64_t)2 << 30)
        test_skip("a sanitizer takes address space of its own, or little memory is free");
    pid_t child = fork();
    if (child == 0) {
        FILE *f = fopen("/proc/self/statm", "r");
        unsigned long long pages = 0;
        if (f == NULL || fscanf(f, "%llu", &pages) != 1)
            _exit(2);
        fclose(f);
        struct rlimit most;
        getrlimit(RLIMIT_AS, &most);
        most.rlim_cur = (rlim_t)(pages * (unsigned long long)sysconf(_SC_PAGESIZE)) + (1u << 30);
        setrlimit(RLIMIT_AS, &most);
        pi_memory_size(&total, &after);
        _exit(after <= (int64_t)1 << 30 && after > (int64_t)1 << 29 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void open_all(void)
{
    pi_thread_assume(N_PROCESSOR);
    make_folder();
}

TEST_GROUP(open_all, remove_folder);
