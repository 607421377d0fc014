/*
 * threads.c - the parallel loops and the helpers, which are the threads that take part in them
 * beside the caller. All callers of the process share the helpers. They are made when a loop first
 * wants them, and sleep when there is nothing to do. They end with the process or when the library
 * is unloaded.
 *
 * A caller takes helpers that are free, asks each into its loop, and works itself. It takes back
 * pieces that are not begun, and waits for helpers that have begun. So a helper that the system
 * does not run holds up no caller, unless it lost its processor in the middle of a piece. A helper
 * that costs more time by that than it saves rests for a while. So beside other busy processes a
 * loop is as fast as with one thread.
 *
 * Owners: while a helper is taken, its fields belong to the caller that took it, but for those that
 * the helper itself writes. The fields' order in memory is that of `task`.
 */
#define _GNU_SOURCE
#include "base/threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/os.h"
#include "base/processors.h"
#include "base/wait.h"

#define MICROSECOND ((int64_t)1000)
#define MILLISECOND ((int64_t)1000000)

#define MAX_HELPER 511
#define MAX_SPAN 64
#define SPAN_ITEMS ((int64_t)UINT32_MAX) /* of a loop, at most */
#define RANGES_PER_THREAD 4              /* so that a slow thread can leave some to others */

/* How long a waiting thread spins before it sleeps. Within a token loops follow each other by 5 to
   40 microseconds; going to sleep and waking takes about 50. */
#define SPIN_NS (100 * MICROSECOND)
/* A gap between two readings of the clock: the thread was not running, because other work needs the
   processor. */
#define OFF_NS (100 * MICROSECOND)
#define CALM_NS (10 * MILLISECOND) /* no spinning for this long after that */

/* A helper's credit is the time that it has saved. The time is taken off that its callers have
   waited for it or worked alone because it did not come. Below zero it rests. */
#define CREDIT_MAX (16 * MILLISECOND)
#define CREDIT_BACK (1 * MILLISECOND) /* at first and after a rest */
#define REST_MIN (10 * MILLISECOND)
#define REST_MAX (2000 * MILLISECOND)
#define REST_PER_WAIT 48 /* a rest is at least this many times the wait that led to it */
#define GAIN_PER_WAIT                                                                              \
    8 /* but there is none where this many times of it were saved since the last
                            rest */
#define RETRY_NS (1000 * MILLISECOND) /* where the system gave no thread */
/* Work that takes less is taken to be done in one go; reading a thread's time costs most of a
   microsecond. */
#define LONG_NS (250 * MICROSECOND)

/* ---- pieces ---- */

/* Pieces [begin, end) that no thread has taken yet: begin in the lower half, so that both change at
   once. */
struct span {
    _Alignas(PI_APART) _Atomic uint64_t pieces;
};

struct loop {
    pi_job_fn *fn;
    void *ctx;
    int64_t n, n_piece; /* n items in n_piece pieces */
    int64_t start_ns;
    int32_t n_span;
    struct span spans[MAX_SPAN];
};

static uint64_t pieces_of(uint64_t begin, uint64_t end)
{
    return end << 32 | begin;
}

/* Takes the first piece, or the last one; -1 where none is left. */
static int64_t take(struct span *span, bool first)
{
    uint64_t pieces = atomic_load_explicit(&span->pieces, memory_order_relaxed);
    for (;;) {
        uint64_t begin = pieces & UINT32_MAX, end = pieces >> 32;
        uint64_t left = first ? pieces_of(begin + 1, end) : pieces_of(begin, end - 1);
        if (begin >= end)
            return -1;
        if (atomic_compare_exchange_weak_explicit(&span->pieces, &pieces, left,
                                                  memory_order_relaxed, memory_order_relaxed))
            return (int64_t)(first ? begin : end - 1);
    }
}

/* Neighbours go to one thread, one after the other: what it asked memory for behind an item belongs
   to the next. A thread that has done its own takes from the ends of the others' pieces. */
static void work(struct loop *loop, int32_t thread)
{
    for (int32_t i = 0; i < loop->n_span; i++) {
        struct span *span = &loop->spans[(thread + i) % loop->n_span];
        for (int64_t p = take(span, i == 0); p >= 0; p = take(span, i == 0))
            loop->fn(loop->ctx, loop->n * p / loop->n_piece, loop->n * (p + 1) / loop->n_piece,
                     thread);
    }
}

/* ---- helpers ---- */

/* The state of a helper's task beside a loop. A loop's address is even: it stands for being asked,
   the address and BEGUN for working. */
enum { FREE = 0, BEGUN = 1, TAKEN = 2, ENDED = 4 };

struct helper {
    _Alignas(PI_APART) _Atomic uintptr_t task;
    _Atomic uint32_t sleeps;  /* 1: it sleeps until it is woken */
    _Atomic uint32_t awaited; /* 1: the caller sleeps until it has ended */
    int32_t thread;           /* in the loop */
    /* The helper's. */
    int64_t saved_ns;             /* the time that it worked in the last loop */
    int64_t ended_ns;             /* when that was over */
    int64_t gap_ns;               /* mean time from there to the next loop's start */
    int64_t calm_ns;              /* until then it goes to sleep at once */
    int64_t slept_ns;             /* since seen_ns */
    int64_t seen_ns, seen_run_ns; /* when it last read its thread's time, and that */
    /* The caller's. */
    _Alignas(PI_APART) struct helper *next; /* of the same loop */
    int64_t credit, gain, rest_ns;
    _Atomic int64_t rests_until;
    pthread_t id;
};

static struct {
    struct helper helpers[MAX_HELPER];
    _Atomic int32_t n_helper;
    _Atomic int32_t limit;    /* threads that may run at once; 0: not known yet */
    _Atomic int64_t retry_ns; /* no helper is made until then */
    _Atomic bool stops;
    bool hooked;                                 /* what happens at fork and exit is arranged */
    pthread_mutex_t lock;                        /* of making and ending helpers */
    _Alignas(PI_APART) _Atomic int32_t n_caller; /* inside of loops */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_asked(uintptr_t task)
{
    return task > ENDED && (task & BEGUN) == 0;
}

/* Spins until *task has changed, for a limited time. Returns false where that took too long, or
   where the thread lost its processor in between: *off. */
static bool look(_Atomic uintptr_t *task, uintptr_t was, int64_t start, bool *off)
{
    *off = false;
    for (int64_t last = start; !*off && last - start < SPIN_NS;) {
        for (int32_t i = 0; i < 4; i++) {
            if (atomic_load_explicit(task, memory_order_relaxed) != was)
                return true;
            pi_wait_pause();
        }
        int64_t now = pi_time_ns();
        *off = now - last > OFF_NS;
        last = now;
    }
    return false;
}

/* The helper is idle with a task of that value. */
static void idle(struct helper *h, uintptr_t task)
{
    bool off = false;
    int64_t now = pi_time_ns();
    if (h->gap_ns < SPIN_NS && now >= h->calm_ns && now - h->ended_ns < SPIN_NS) {
        if (look(&h->task, task, now, &off))
            return;
        now = pi_time_ns();
        if (off)
            h->calm_ns = now + CALM_NS;
    }
    atomic_store(&h->sleeps, 1);
    if (atomic_load(&h->task) == task && !atomic_load(&pool.stops))
        pi_wait_sleep(&h->sleeps, 1);
    atomic_store(&h->sleeps, 0);
    h->slept_ns += pi_time_ns() - now;
}

/* Waits for a loop and begins it; NULL: the helper is to end. */
static struct loop *await_loop(struct helper *h)
{
    for (;;) {
        uintptr_t task = atomic_load_explicit(&h->task, memory_order_acquire);
        if (is_asked(task)) {
            if (atomic_compare_exchange_strong_explicit(&h->task, &task, task | BEGUN,
                                                        memory_order_acq_rel, memory_order_relaxed))
                return (struct loop *)task;
        } else if (atomic_load(&pool.stops)) {
            return NULL;
        } else {
            idle(h, task);
        }
    }
}

static int64_t run_ns(void)
{
    return (int64_t)(pi_thread_time_s() * 1e9);
}

/* The time of a piece of work that ended now, less what the system took from it. */
static int64_t worked_ns(struct helper *h, int64_t begin, int64_t now)
{
    int64_t wall = now - begin;
    if (wall < LONG_NS)
        return wall;
    int64_t run = run_ns();
    int64_t off = (now - h->seen_ns - h->slept_ns) - (run - h->seen_run_ns);
    h->seen_ns = now;
    h->seen_run_ns = run;
    h->slept_ns = 0;
    return pi_max(0, wall - pi_max(0, off));
}

static void *help(void *arg)
{
    struct helper *h = arg;
    h->seen_ns = h->ended_ns = pi_time_ns();
    h->seen_run_ns = run_ns();
    for (struct loop *loop; (loop = await_loop(h)) != NULL;) {
        int64_t begin = pi_time_ns();
        int64_t gap = pi_min(pi_max(0, loop->start_ns - h->ended_ns), 2 * SPIN_NS);
        h->gap_ns += (gap - h->gap_ns) / 4;
        work(loop, h->thread);
        h->ended_ns = pi_time_ns();
        h->saved_ns = worked_ns(h, begin, h->ended_ns);
        atomic_store(&h->task, ENDED);
        if (atomic_load(&h->awaited) != 0 && atomic_exchange(&h->awaited, 0) != 0)
            pi_wait_wake(&h->awaited);
    }
    return NULL;
}

/* ---- making and ending helpers ---- */

static void before_fork(void)
{
    pthread_mutex_lock(&pool.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&pool.lock);
}

/* The child has the thread that called fork, and no other. */
static void in_child(void)
{
    pi_wait_forked();
    memset(pool.helpers, 0, sizeof(pool.helpers));
    atomic_store(&pool.n_helper, 0);
    atomic_store(&pool.n_caller, 0);
    pthread_mutex_init(&pool.lock, NULL);
}

/* Ends the helpers; callers that go on do so alone. */
static void stop(void)
{
    pthread_mutex_lock(&pool.lock);
    int32_t n = atomic_exchange(&pool.n_helper, 0);
    atomic_store(&pool.stops, true);
    for (int32_t i = 0; i < n; i++) {
        struct helper *h = &pool.helpers[i];
        if (atomic_exchange(&h->sleeps, 0) != 0)
            pi_wait_wake(&h->sleeps);
        pthread_join(h->id, NULL);
    }
    pthread_mutex_unlock(&pool.lock);
}

/* Signals of the program are for its own threads, but for those that a thread's own fault
   raises. */
static int start(struct helper *h)
{
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGPROF);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int status = pthread_create(&h->id, NULL, help, h);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return status;
}

static void make_helpers(int32_t n, int64_t now)
{
    if (now < atomic_load(&pool.retry_ns) || pthread_mutex_trylock(&pool.lock) != 0)
        return;
    if (!pool.hooked)
        pool.hooked = atexit(stop) == 0 && pthread_atfork(before_fork, after_fork, in_child) == 0;
    int32_t i = atomic_load(&pool.n_helper);
    for (; pool.hooked && !atomic_load(&pool.stops) && i < pi_min(n, MAX_HELPER); i++) {
        pool.helpers[i].credit = CREDIT_BACK;
        if (start(&pool.helpers[i]) != 0)
            break;
        atomic_store(&pool.n_helper, i + 1);
    }
    if (i < n)
        atomic_store(&pool.retry_ns, now + RETRY_NS);
    pthread_mutex_unlock(&pool.lock);
}

/* ---- callers ---- */

static int32_t limit(void)
{
    int32_t n = atomic_load_explicit(&pool.limit, memory_order_relaxed);
    if (n == 0) {
        n = pi_processors();
        atomic_store(&pool.limit, n);
    }
    return n;
}

/* Takes up to n helpers that are free and do not rest; they are numbered from 1. Returns how
   many. */
static int32_t take_helpers(int32_t n, int64_t now, struct helper **list)
{
    int32_t most = limit() - 1;
    int32_t n_helper =
        (int32_t)pi_min(atomic_load_explicit(&pool.n_helper, memory_order_acquire), most);
    int32_t n_taken = 0, n_rest = 0;
    for (int32_t i = 0; i < n_helper && n_taken < n; i++) {
        struct helper *h = &pool.helpers[i];
        uintptr_t task = atomic_load_explicit(&h->task, memory_order_relaxed);
        bool rests = atomic_load_explicit(&h->rests_until, memory_order_relaxed) > now;
        n_rest += rests;
        if (task != FREE || rests ||
            !atomic_compare_exchange_strong_explicit(&h->task, &task, TAKEN, memory_order_acquire,
                                                     memory_order_relaxed))
            continue;
        h->thread = ++n_taken;
        *list = h;
        list = &h->next;
    }
    *list = NULL;
    if (n_taken + n_rest < n && n_helper < most)
        make_helpers((int32_t)pi_min(n_helper + n - n_taken - n_rest, most), now);
    return n_taken;
}

/* Books the time that it has saved in a loop. */
static void settle(struct helper *h, int64_t saved, int64_t waited, int64_t now)
{
    h->credit = pi_min(h->credit + saved - waited, CREDIT_MAX);
    h->gain += saved - waited;
    if (h->credit >= 0)
        return;
    bool mishap = h->gain > GAIN_PER_WAIT * waited;
    int64_t rest = mishap ? h->rest_ns / 2 : pi_max(h->rest_ns * 2, REST_PER_WAIT * waited);
    h->rest_ns = pi_min(pi_max(rest, REST_MIN), REST_MAX);
    h->credit = CREDIT_BACK;
    h->gain = 0;
    atomic_store_explicit(&h->rests_until, now + h->rest_ns, memory_order_relaxed);
}

static void ask(struct helper *h, struct loop *loop)
{
    atomic_store(&h->task, (uintptr_t)loop);
    if (atomic_load(&h->sleeps) != 0 && atomic_exchange(&h->sleeps, 0) != 0)
        pi_wait_wake(&h->sleeps);
}

static void await_helper(struct helper *h, const struct loop *loop, int64_t now)
{
    uintptr_t begun = (uintptr_t)loop | BEGUN;
    bool off;
    if (look(&h->task, begun, now, &off))
        return;
    while (atomic_load(&h->task) == begun) {
        atomic_store(&h->awaited, 1);
        if (atomic_load(&h->task) == begun)
            pi_wait_sleep(&h->awaited, 1);
    }
    atomic_store(&h->awaited, 0);
}

/* Takes the loop from threads that have not begun, waits for the others, and frees all. */
static void collect(struct helper *helpers, struct loop *loop)
{
    int64_t now = pi_time_ns();
    for (struct helper *h = helpers; h != NULL; h = h->next) {
        uintptr_t asked = (uintptr_t)loop;
        if (atomic_compare_exchange_strong(&h->task, &asked, TAKEN))
            settle(h, 0, now - loop->start_ns, now);
    }
    for (struct helper *h = helpers, *next; h != NULL; h = next) {
        int64_t waited = 0;
        next = h->next;
        if (atomic_load(&h->task) == ((uintptr_t)loop | BEGUN)) {
            await_helper(h, loop, now);
            int64_t then = pi_time_ns();
            waited = then - now;
            now = then;
        }
        if (atomic_load_explicit(&h->task, memory_order_acquire) == ENDED)
            settle(h, h->saved_ns, waited, now);
        atomic_store_explicit(&h->task, FREE, memory_order_release);
    }
}

static void run_loop(int32_t n_thread, int64_t n, int64_t max_piece, pi_job_fn *fn, void *ctx)
{
    struct loop loop;
    struct helper *helpers = NULL;
    int32_t n_caller = atomic_fetch_add(&pool.n_caller, 1) + 1;
    int64_t n_want = pi_min(pi_min(n_thread, n), limit() / pi_max(1, n_caller)) - 1;
    loop.start_ns = pi_time_ns();
    int32_t n_seat = 1;
    if (n_want > 0)
        n_seat += take_helpers((int32_t)n_want, loop.start_ns, &helpers);
    if (n_seat == 1) {
        fn(ctx, 0, n, 0);
    } else {
        loop.fn = fn;
        loop.ctx = ctx;
        loop.n = n;
        loop.n_piece = max_piece == 0 ? n : pi_min(n, max_piece * n_seat);
        loop.n_span = (int32_t)pi_min(n_seat, MAX_SPAN);
        for (int64_t i = 0; i < loop.n_span; i++)
            atomic_init(&loop.spans[i].pieces,
                        pieces_of((uint64_t)(loop.n_piece * i / loop.n_span),
                                  (uint64_t)(loop.n_piece * (i + 1) / loop.n_span)));
        for (struct helper *h = helpers; h != NULL; h = h->next)
            ask(h, &loop);
        work(&loop, 0);
        collect(helpers, &loop);
    }
    atomic_fetch_sub(&pool.n_caller, 1);
}

void pi_parallel_ranges(int32_t n_thread, int64_t n, pi_job_fn *fn, void *ctx)
{
    if (n_thread > 1 && n > 1)
        run_loop(n_thread, n, RANGES_PER_THREAD, fn, ctx);
    else if (n > 0)
        fn(ctx, 0, n, 0);
}

void pi_parallel_items(int32_t n_thread, int64_t n, pi_job_fn *fn, void *ctx)
{
    assert(n <= SPAN_ITEMS);
    if (n_thread > 1 && n > 1)
        run_loop(n_thread, n, 0, fn, ctx);
    else if (n > 0)
        fn(ctx, 0, n, 0);
}

int32_t pi_thread_count(void)
{
    return limit();
}

void pi_thread_assume(int32_t n_processor)
{
    atomic_store(&pool.limit, n_processor);
}

#define MIN_WORK 500000

int32_t pi_threads_worth(int32_t n_thread, int64_t work)
{
    return work < MIN_WORK ? 1 : (int32_t)pi_min(n_thread, pi_thread_count());
}
