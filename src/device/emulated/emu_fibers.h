/*
 * emu_fibers.h - the threads of an emulated GPU. A thread is a fiber, a block runs on one thread of
 * the system, and OpenMP shares blocks among threads where it is on. Fibers of a warp meet at every
 * collective (emu_meet). Fibers of a block meet at sync_block(). A fiber that waits, yields.
 */
#ifndef PI_EMU_FIBERS_H
#define PI_EMU_FIBERS_H

#include <stdio.h>
#include <stdlib.h>

#include <sys/mman.h>
#include <ucontext.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#endif
#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define DEV static inline
#define BOTH static inline
#define KERNEL(threads, per_sm) static void
/* Addresses have a bit that pointers have not (emulated/driver.cpp). */
#define EMU_HIDDEN ((uint64_t)1 << 55)
#define AT(type, at) ((type *)((at) & ~EMU_HIDDEN))
#define __restrict__ __restrict
#define SHARED(p) uint8_t *p = emu.smem
#define UNROLL
#define NO_UNROLL
#define UNROLL2
#define UNROLL4
#define UNROLL8
#define __shared__ /* dynamic only: SHARED */
struct uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

/* The emulation's own work is not what sanitizers are to see, and it is most of the time. */
#define EMU_OWN __attribute__((no_sanitize("address"), no_sanitize("undefined")))

/* ---- fibers ---- */

#if defined(__x86_64__) && !defined(EMU_PORTABLE)
#define EMU_ASM 1
#endif
enum { EMU_STACK = 128 * 1024, EMU_THREADS = 1024, EMU_COPIES = 256, EMU_BULK = 64 };
struct emu_copy {
    void *to;
    const void *from;
    int group;
};
struct emu_fiber {
    void *sp;
    uint8_t *stack;
    void *fake;           /* of AddressSanitizer */
    bool (*wait)(void *); /* it waits until this is true */
    void *wait_arg;
    struct emu_copy *copy; /* [EMU_COPIES] */
    int n_copy, group;
#ifndef EMU_ASM
    ucontext_t context;
#endif
};
/* Sets of lanes: those that can run, wait until a function is true, wait at the collective. */
struct emu_warp {
    uint32_t ready, asks, meets;
    int arrived, tag;
    void *arg[32];
};
struct emu_part { /* a barrier of some threads of a block */
    int arrived;
    uint32_t waits[EMU_THREADS / 32]; /* sets of lanes */
};
struct emu_bulk {
    void *to;
    const void *from;
    int n;
    void *bar;
};
struct emu_state {
    struct emu_fiber *fiber, scheduler;
    unsigned now; /* the thread of the block that runs */
    int n_thread, n_done, n_at_barrier;
    struct emu_warp warp[EMU_THREADS / 32];
    struct emu_part part[16];
    struct emu_bulk bulk[EMU_BULK];
    int n_bulk;
    uint8_t *smem;
    size_t smem_size;
    dim3 block, grid, dim;
    void (*body)(void *);
    void *body_arg;
};
/* Read at every turn. It has a constant value at first, or each access would ask for one. */
static thread_local emu_state emu __attribute__((tls_model("initial-exec"))) = {};
struct emu_index {
    unsigned x, y, z;
};
#define threadIdx (emu_index{emu.now, 0, 0})
#define blockIdx emu.block
#define gridDim emu.grid
#define blockDim emu.dim

#ifdef EMU_ASM
extern "C" void emu_switch(void **save, void *to);
asm(".text\n.weak emu_switch\n.type emu_switch,@function\nemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\n"
    "popq %rcx\njmp *%rcx\n");
EMU_OWN static void emu_jump(emu_fiber *from, emu_fiber *to)
{
    emu_switch(&from->sp, to->sp);
}
#else
static void emu_jump(emu_fiber *from, emu_fiber *to)
{
    swapcontext(&from->context, &to->context);
}
#endif

#ifdef EMU_ASAN
static thread_local const void *emu_bottom; /* of the system's own stack */
static thread_local size_t emu_size;
#endif
EMU_OWN static void emu_swap(emu_fiber *from, emu_fiber *to, bool ends)
{
#ifdef EMU_ASAN
    const void *bottom = to->stack != NULL ? to->stack : emu_bottom;
    __sanitizer_start_switch_fiber(ends ? NULL : &from->fake, bottom,
                                   to->stack != NULL ? EMU_STACK : emu_size);
#endif
    emu_jump(from, to);
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
#endif
    (void)ends;
}
EMU_OWN static emu_warp *emu_here(void)
{
    return &emu.warp[emu.now / 32];
}
EMU_OWN static uint32_t emu_bit(void)
{
    return 1u << emu.now % 32;
}
/* The next lane of the warp that can run, else the scheduler. */
EMU_OWN static void emu_go_on(bool ends)
{
    const unsigned now = emu.now, first = now / 32 * 32;
    emu_fiber *f = &emu.fiber[now], *to = &emu.scheduler;
    const uint32_t ready = emu.warp[now / 32].ready, later = ready & ~1u << now % 32;
    if (ready != 0) {
        emu.now = first + (unsigned)__builtin_ctz(later != 0 ? later : ready);
        to = &emu.fiber[emu.now];
    }
    emu_swap(f, to, ends);
}
/* Until others have made the lane ready. */
EMU_OWN static void emu_yield(void)
{
    emu_here()->ready &= ~emu_bit();
    emu_go_on(false);
}
static void emu_entry(void)
{
#ifdef EMU_ASAN
    if (emu_bottom == NULL) /* the first one comes from the scheduler */
        __sanitizer_finish_switch_fiber(NULL, &emu_bottom, &emu_size);
    else
        __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
    emu.body(emu.body_arg);
    emu.n_done++;
    emu_here()->ready &= ~emu_bit();
    emu_go_on(true);
    abort();
}
static void emu_start(emu_fiber *f)
{
    f->n_copy = f->group = 0;
#ifdef EMU_ASM
    /* Not all at the same place of a page, or they meet in the cache. */
    void **top = (void **)(f->stack + EMU_STACK - 64 - (f - emu.fiber) % 61 * 448);
    *--top = NULL;              /* the entry's return address, aligned as after a call */
    *--top = (void *)emu_entry; /* popped by ret */
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    f->sp = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = EMU_STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, emu_entry, 0);
#endif
}
#define EMU_FAIL(...) (fprintf(stderr, "emu: " __VA_ARGS__), fputc('\n', stderr), abort())

static void emu_start_block(void)
{
    memset(emu.smem, 0xff, emu.smem_size);
    memset(emu.warp, 0, sizeof(emu.warp));
    memset(emu.part, 0, sizeof(emu.part));
    emu.n_bulk = emu.n_done = emu.n_at_barrier = 0;
    for (int i = 0; i < emu.n_thread / 32; i++)
        emu.warp[i].ready = ~0u;
    for (int i = 0; i < emu.n_thread; i++)
        emu_start(&emu.fiber[i]);
}
/* A number for the order of things, 0 in the orders that are no seeds. */
static int emu_order(void)
{
    static const int order = getenv("EMU_ORDER") ? atoi(getenv("EMU_ORDER")) : 0;
    return order;
}
EMU_OWN static uint32_t emu_random(uint32_t a, uint32_t b)
{
    uint32_t x = (a * 2654435761u) ^ (b * 2246822519u) ^ ((uint32_t)emu_order() * 3266489917u);
    x = (x ^ x >> 15) * 2654435761u;
    return x ^ x >> 13;
}
/* Which of n comes in turn j of a pass, each once. */
EMU_OWN static int emu_turn_of(int j, int n, uint32_t pass)
{
    const int order = emu_order();
    if (order < 2)
        return order == 0 ? j : n - 1 - j;
    return (int)(((uint32_t)j + emu_random(pass, 7)) % (uint32_t)n);
}
/* Whether something that could run is left for later: never in each fourth pass. */
EMU_OWN static bool emu_idles(int i, uint32_t pass)
{
    return emu_order() >= 2 && pass % 4 != 3 && (emu_random(pass, (uint32_t)i) & 1) != 0;
}
/* Lets those run that wait for something that has come. */
static void emu_ask(emu_warp *w, emu_fiber *lanes)
{
    for (uint32_t left = w->asks; left != 0; left &= left - 1) {
        const int l = __builtin_ctz(left);
        if (lanes[l].wait(lanes[l].wait_arg))
            w->asks &= ~(1u << l), w->ready |= 1u << l;
    }
}
enum emu_found { EMU_RAN, EMU_STUCK, EMU_DONE };
/* Runs every fiber that can run. */
EMU_OWN static emu_found emu_pass(unsigned pass)
{
    const int n = emu.n_thread, n_warp = n / 32;
    bool ran = false;
    for (int j = 0; j < n_warp; j++) {
        const int i = emu_turn_of(j, n_warp, pass);
        emu_warp *w = &emu.warp[i];
        if ((w->ready | w->asks) != 0 && emu_idles(i + (int)emu.block.x * 32, pass)) {
            ran = true;
            continue;
        }
        emu_ask(w, emu.fiber + 32 * i);
        while (w->ready != 0) {
            emu.now = (unsigned)(32 * i + __builtin_ctz(w->ready));
            emu_swap(&emu.scheduler, &emu.fiber[emu.now], false);
            ran = true;
            emu_ask(w, emu.fiber + 32 * i);
        }
    }
    if (emu.n_done == n)
        return EMU_DONE;
    if (emu.n_at_barrier != n)
        return ran ? EMU_RAN : EMU_STUCK;
    emu.n_at_barrier = 0;
    for (int i = 0; i < n_warp; i++)
        emu.warp[i].ready = ~0u;
    return EMU_RAN;
}
static void emu_report(void)
{
    EMU_FAIL("block %u,%u: %d of %d threads wait at a barrier, %d are done", emu.block.x,
             emu.block.y, emu.n_at_barrier, emu.n_thread, emu.n_done);
}
static void emu_run_block(void)
{
    emu_found found = EMU_RAN;
    emu_start_block();
    for (unsigned pass = 0; found == EMU_RAN; pass++)
        found = emu_pass(pass);
    if (found == EMU_STUCK)
        emu_report();
}
static emu_fiber *emu_fibers(void)
{
    emu_fiber *fiber = (emu_fiber *)calloc(EMU_THREADS, sizeof(emu_fiber));
    emu_copy *copy = (emu_copy *)calloc((size_t)EMU_THREADS * EMU_COPIES, sizeof(emu_copy));
    for (int i = 0; i < EMU_THREADS; i++) {
        fiber[i].stack = (uint8_t *)mmap(NULL, EMU_STACK, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        fiber[i].copy = copy + (size_t)i * EMU_COPIES;
    }
    return fiber;
}
static void emu_check(dim3 block)
{
    if (block.x % 32 != 0 || block.x > EMU_THREADS)
        EMU_FAIL("%u threads", block.x);
}
static void emu_take_smem(size_t smem)
{
    emu.smem_size = smem;
    emu.smem = (uint8_t *)aligned_alloc(1024, (smem + 1023) / 1024 * 1024 + 1024);
#ifdef EMU_ASAN
    __asan_poison_memory_region(emu.smem + smem, (smem + 1023) / 1024 * 1024 + 1024 - smem);
#endif
}
static void emu_give_smem(void)
{
#ifdef EMU_ASAN
    __asan_unpoison_memory_region(emu.smem, (emu.smem_size + 1023) / 1024 * 1024 + 1024);
#endif
    free(emu.smem);
}
static void emu_grid(dim3 grid, dim3 block, size_t smem, void (*body)(void *), void *arg)
{
    int64_t n = (int64_t)grid.x * grid.y * grid.z;
    emu_check(block);
#ifdef _OPENMP
#pragma omp parallel
#endif
    {
        if (emu.fiber == NULL)
            emu.fiber = emu_fibers();
        emu_take_smem(smem);
        emu.n_thread = (int)block.x;
        emu.grid = grid, emu.dim = block, emu.body = body, emu.body_arg = arg;
#ifdef _OPENMP
#pragma omp for schedule(dynamic)
#endif
        for (int64_t i = 0; i < n; i++) {
            emu.block = dim3((unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y),
                             (unsigned)(i / grid.x / grid.y));
            emu_run_block();
        }
        emu_give_smem();
    }
}
/* Blocks that may wait for each other, in turn. */
static void emu_together(dim3 grid, dim3 block, size_t smem, void (*body)(void *), void *arg)
{
    enum { MOST = 16 };
    static thread_local emu_fiber *fiber[MOST];
    const emu_state own = emu;
    emu_state *state = (emu_state *)calloc(MOST, sizeof(*state));
    int n = (int)grid.x, n_done = 0;
    bool done[MOST] = {};
    emu_check(block);
    if (n > MOST || grid.y != 1 || grid.z != 1)
        EMU_FAIL("%u blocks cannot run at the same time", grid.x);
    for (int i = 0; i < n; i++) {
        if (fiber[i] == NULL)
            fiber[i] = emu_fibers();
        emu.fiber = fiber[i];
        emu_take_smem(smem);
        emu.n_thread = (int)block.x;
        emu.grid = grid, emu.dim = block, emu.body = body, emu.body_arg = arg;
        emu.block = dim3((unsigned)i);
        emu_start_block();
        state[i] = emu;
    }
    for (unsigned pass = 0; n_done < n; pass++) {
        bool ran = false;
        for (int j = 0; j < n; j++) {
            const int i = emu_turn_of(j, n, pass * 3);
            if (done[i])
                continue;
            emu = state[i];
            emu_found found = emu_pass(pass);
            done[i] = found == EMU_DONE;
            n_done += done[i];
            ran = ran || found != EMU_STUCK;
            state[i] = emu;
        }
        if (!ran)
            emu_report();
    }
    for (int i = 0; i < n; i++) {
        emu.smem = state[i].smem;
        emu_give_smem();
    }
    free(state);
    emu = own;
}

/* ---- what threads do together ---- */

EMU_OWN static void sync_block(void)
{
    emu.n_at_barrier++;
    emu_yield();
}
/* Until test(arg) is true. */
static void emu_wait(bool (*test)(void *), void *arg)
{
    emu_fiber *f = &emu.fiber[emu.now];
    if (test(arg))
        return;
    f->wait = test;
    f->wait_arg = arg;
    emu_here()->asks |= emu_bit();
    emu_yield();
}
EMU_OWN static void sync_part(int which, int n_thread)
{
    emu_part *p = &emu.part[which];
    if (++p->arrived < n_thread) {
        p->waits[emu.now / 32] |= emu_bit();
        emu_yield();
        return;
    }
    p->arrived = 0;
    for (int i = 0; i < emu.n_thread / 32; i++) {
        emu.warp[i].ready |= p->waits[i];
        p->waits[i] = 0;
    }
}
static void fence(void) {}
struct emu_meeting {
    const uint32_t *count;
    uint32_t turn;
};
static inline uint32_t grid_turn(const uint32_t *count)
{
    return *count & 0x80000000u;
}
static uint32_t grid_meet(uint32_t *count, bool first, uint32_t n_block, uint32_t turn)
{
    emu_meeting arg = {count, turn};
    *count += first ? 0x80000000u - (n_block - 1) : 1;
    emu_wait(
        [](void *a) {
            const emu_meeting *m = (const emu_meeting *)a;
            return grid_turn(m->count) != m->turn;
        },
        &arg);
    return turn ^ 0x80000000u;
}
/* Every lane of the warp brings its argument; the last one that comes does the work for all. */
EMU_OWN static void emu_meet(int tag, void *arg, void (*all)(void **))
{
    emu_warp *w = emu_here();
    if (w->arrived > 0 && w->tag != tag)
        EMU_FAIL("lanes of a warp are at different collectives (%d, %d)", w->tag, tag);
    w->tag = tag;
    w->arg[emu.now % 32] = arg;
    if (++w->arrived < 32) {
        w->meets |= emu_bit();
        emu_yield();
        return;
    }
    w->arrived = 0;
    all(w->arg);
    w->ready |= w->meets;
    w->meets = 0;
}

/* Kernels run one after the other. Each must say that it waits (emulated/driver.cpp). */
static bool emu_waited;
#define GRID_WAIT() (emu_waited = true)
#define GRID_GO()

#endif
