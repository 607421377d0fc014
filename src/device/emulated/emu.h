/*
 * emu.h - kernels without a GPU. A thread is a fiber, a block runs on one thread of the system, and
 * OpenMP shares blocks among threads where it is on. Fibers of a warp meet at every collective
 * (mma, ldmatrix, shuffles). Fibers of a block meet at sync_block(). A fiber that waits, yields.
 *
 * It finds errors that a GPU hides. Shared memory starts as NaN. Asynchronous copies arrive as late
 * as they may, and what was there is lost at once. Warps, and blocks that run together, take turns
 * in an order that EMU_ORDER chooses: 0 forth, 1 back, 2.. a seed. By a seed some rest, too.
 * Threads that leave a barrier out are reported, and AddressSanitizer sees every access of a
 * kernel. It does not find races within a warp and has no opinion on memory order between blocks of
 * one launch.
 *
 * mma adds 16 exact products and the old value in f64 and rounds once. So results differ from a
 * GPU's in the last bits, as two GPUs may differ.
 *
 * It gives every function of gpu.h its other meaning, so it is one header, as that is.
 */
#ifndef PI_EMU_H
#define PI_EMU_H

#include <stdio.h>
#include <stdlib.h>

#include <immintrin.h>
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
#define __shared__ /* dynamic only: SHARED */
struct uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
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
    int now, n_thread, n_done, n_at_barrier;
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
static thread_local emu_state emu
    __attribute__((tls_model("initial-exec"))); /* read at every turn */
struct emu_index {
    unsigned x, y, z;
};
#define threadIdx (emu_index{(unsigned)emu.now, 0, 0})
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
    emu_fiber *f = &emu.fiber[emu.now], *to = &emu.scheduler;
    const uint32_t ready = emu_here()->ready, later = ready & ~(emu_bit() | (emu_bit() - 1));
    if (ready != 0) {
        emu.now = emu.now / 32 * 32 + __builtin_ctz(later != 0 ? later : ready);
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
            emu.now = 32 * i + __builtin_ctz(w->ready);
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
    uint32_t was;
};
static void grid_meet(uint32_t *count, bool first, uint32_t n_block)
{
    emu_meeting arg = {count, *count};
    *count += first ? 0x80000000u - (n_block - 1) : 1;
    emu_wait(
        [](void *a) {
            const emu_meeting *m = (const emu_meeting *)a;
            return ((m->was ^ *m->count) & 0x80000000u) != 0;
        },
        &arg);
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

/* ---- f16 ---- */

static inline float emu_f(uint32_t h)
{
    return _cvtsh_ss((uint16_t)h);
}
static inline uint32_t emu_h(float f)
{
    return _cvtss_sh(f, 0);
}
static inline float h_lo(uint32_t x)
{
    return emu_f(x & 0xffff);
}
static inline float h_hi(uint32_t x)
{
    return emu_f(x >> 16);
}
static inline uint32_t h2(float lo, float hi)
{
    return emu_h(lo) | emu_h(hi) << 16;
}
static inline uint32_t h2_add(uint32_t a, uint32_t b)
{
    return h2(h_lo(a) + h_lo(b), h_hi(a) + h_hi(b));
}
static inline uint32_t h2_mul(uint32_t a, uint32_t b)
{
    return h2(h_lo(a) * h_lo(b), h_hi(a) * h_hi(b));
}
static inline uint32_t h2_min(uint32_t a, uint32_t b)
{
    return h2(fminf(h_lo(a), h_lo(b)), fminf(h_hi(a), h_hi(b)));
}
/* The product of two f16 is exact in f32, the sum of it and a f16 in f64. */
static inline uint32_t emu_hfma(float a, float b, float c)
{
    double x = (double)(a * b) + (double)c;
    float y = (float)x; /* rounded to odd, so that rounding twice is rounding once */
    uint32_t bits;
    memcpy(&bits, &y, 4);
    if ((double)y != x) {
        if (fabs((double)y) > fabs(x))
            bits--;
        bits |= 1;
        memcpy(&y, &bits, 4);
    }
    return emu_h(y);
}
static inline uint32_t h2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    return emu_hfma(h_lo(a), h_lo(b), h_lo(c)) | emu_hfma(h_hi(a), h_hi(b), h_hi(c)) << 16;
}
static inline uint32_t h2_low(uint32_t x)
{
    return (x & 0xffff) | x << 16;
}
static inline uint32_t h2_high(uint32_t x)
{
    return x >> 16 | (x & 0xffff0000u);
}
static inline uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits)
{
    return (x & mask) | bits;
}
static inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t sel)
{
    uint64_t all = a | (uint64_t)b << 32;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++)
        r |= (uint32_t)(all >> (8 * (sel >> (4 * i) & 7)) & 0xff) << (8 * i);
    return r;
}
static inline int anew(int x)
{
    return x;
}
static inline uint32_t prmt_of(uint32_t a, uint32_t b, uint32_t sel)
{
    if ((sel & 0x8888u) != 0)
        EMU_FAIL("a selector of prmt_of is above 7");
    return prmt(a, b, sel);
}
static inline uint32_t or_and(uint32_t a, uint32_t b, uint32_t mask)
{
    return (a | b) & mask;
}
static inline uint32_t pick(uint32_t mask, uint32_t a, uint32_t b)
{
    return (a & mask) | (b & ~mask);
}
static inline float reciprocal(float x)
{
    return 1.0f / x;
}
static inline float ex2(float x)
{
    return exp2f(x);
}
static inline float AS_F(uint32_t x)
{
    float y;
    memcpy(&y, &x, 4);
    return y;
}
static inline uint32_t AS_U(float x)
{
    uint32_t y;
    memcpy(&y, &x, 4);
    return y;
}
static inline int32_t atomic_next(int32_t *p)
{
    return __atomic_fetch_add(p, 1, __ATOMIC_RELAXED);
}
static inline void atomic_min(int32_t *p, int32_t v)
{
    int32_t was = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (v < was &&
           !__atomic_compare_exchange_n(p, &was, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}
static inline void atomic_add(uint32_t *p, uint32_t v)
{
    __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

static inline uint32_t atomic_wrap(uint32_t *p, uint32_t last)
{
    uint32_t was = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &was, was >= last ? 0 : was + 1, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
    return was;
}

struct emu_mma {
    float *d;
    const uint32_t *a;
    uint32_t b[2];
};
/* Four or eight numbers of registers as f64, pair by pair to where they belong. */
EMU_OWN static void emu_pairs(const uint32_t *h, int n, double *out, int step)
{
    for (int i = 0; i < n; i += 2) {
        const __m256d x = _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(h + i))));
        _mm_storeu_pd(out + i * step, _mm256_castpd256_pd128(x));
        _mm_storeu_pd(out + (i + 1) * step, _mm256_extractf128_pd(x, 1));
    }
}
/* Adds the product of a [lane][register][half] and b to the numbers of each lane. Products are
   exact, and so are sums but for the last bits of f64. Columns go side by side. */
EMU_OWN static void emu_mma_sums(const double (*a)[4][2], const double (*b)[8], float *const *to)
{
    for (int r = 0; r < 16; r++) {
        __m256d sum0 = _mm256_setzero_pd(), sum1 = sum0;
        alignas(32) double sum[8];
        for (int k = 0; k < 16; k++) {
            const double *of = &a[r % 8 * 4 + k % 8 / 2][r / 8 + k / 8 * 2][k % 2];
            const __m256d x = _mm256_broadcast_sd(of);
            sum0 = _mm256_fmadd_pd(x, _mm256_load_pd(b[k]), sum0);
            sum1 = _mm256_fmadd_pd(x, _mm256_load_pd(b[k] + 4), sum1);
        }
        _mm256_store_pd(sum, sum0);
        _mm256_store_pd(sum + 4, sum1);
        for (int c = 0; c < 8; c++) {
            float *d = to[r % 8 * 4 + c / 2] + r / 8 * 2 + c % 2;
            *d = (float)((double)*d + sum[c]);
        }
    }
}
EMU_OWN static void emu_mma_all(void **p)
{
    emu_mma **m = (emu_mma **)p;
    alignas(32) double a[32][4][2], b[16][8], lane[2][2];
    float *d[32];
    for (int l = 0; l < 32; l++) {
        d[l] = m[l]->d;
        emu_pairs(m[l]->a, 4, a[l][0], 2);
        emu_pairs(m[l]->b, 2, lane[0], 2);
        for (int i = 0; i < 4; i++)
            b[2 * (l % 4) + 8 * (i >> 1) + (i & 1)][l / 4] = lane[i >> 1][i & 1];
    }
    emu_mma_sums(a, b, d);
}
static void mma(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    emu_mma arg = {d, a, {b0, b1}};
    emu_meet(1, &arg, emu_mma_all);
}
struct emu_rows {
    uint32_t *r;
    const uint8_t *row;
};
static void ldsm4(uint32_t *r, const void *row)
{
    emu_rows arg = {r, (const uint8_t *)row};
    emu_meet(2, &arg, [](void **p) {
        emu_rows **m = (emu_rows **)p;
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++)
                m[l]->r[i] = ((const uint32_t *)m[8 * i + l / 4]->row)[l % 4];
    });
}
static void ldsm4t(uint32_t *r, const void *row)
{
    emu_rows arg = {r, (const uint8_t *)row};
    emu_meet(3, &arg, [](void **p) {
        emu_rows **m = (emu_rows **)p;
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++) {
                const uint16_t *x = (const uint16_t *)m[8 * i + 2 * (l % 4)]->row;
                const uint16_t *y = (const uint16_t *)m[8 * i + 2 * (l % 4) + 1]->row;
                m[l]->r[i] = x[l / 4] | (uint32_t)y[l / 4] << 16;
            }
    });
}
struct emu_shfl {
    uint32_t in, out;
    int from;
};
EMU_OWN static void emu_shfl_all(void **p)
{
    emu_shfl **m = (emu_shfl **)p;
    for (int l = 0; l < 32; l++)
        m[l]->out = m[m[l]->from]->in;
}
EMU_OWN static uint32_t shfl(uint32_t v, int lane)
{
    emu_shfl arg = {v, 0, lane & 31};
    emu_meet(4, &arg, emu_shfl_all);
    return arg.out;
}
static float shfl_xor(float v, int mask)
{
    return AS_F(shfl(AS_U(v), (emu.now & 31) ^ mask));
}
struct emu_any {
    bool is, any;
};
static bool any_lane(bool is)
{
    emu_any arg = {is, false};
    emu_meet(6, &arg, [](void **p) {
        bool any = false;
        for (int l = 0; l < 32; l++)
            any = any || ((emu_any *)p[l])->is;
        for (int l = 0; l < 32; l++)
            ((emu_any *)p[l])->any = any;
    });
    return arg.any;
}
static void sync_warp(void)
{
    emu_meet(5, NULL, [](void **) {});
}

/* ---- copies that arrive when they are waited for ---- */

static void cp16(void *to, const void *from)
{
    emu_fiber *f = &emu.fiber[emu.now];
    if ((uintptr_t)to % 16 != 0 || (uintptr_t)from % 16 != 0)
        EMU_FAIL("a copy is not aligned");
    if (f->n_copy == EMU_COPIES)
        EMU_FAIL("too many copies on their way");
    memset(to, 0xff, 16); /* it may come at once, too */
    f->copy[f->n_copy++] = {to, from, f->group};
}
static void cp_commit(void)
{
    emu.fiber[emu.now].group++;
}
static void emu_arrive(int left)
{
    emu_fiber *f = &emu.fiber[emu.now];
    int n = 0;
    for (int i = 0; i < f->n_copy; i++)
        if (f->copy[i].group < f->group - left)
            memcpy(f->copy[i].to, f->copy[i].from, 16);
        else
            f->copy[n++] = f->copy[i];
    f->n_copy = n;
}
#define CP_WAIT(n) emu_arrive(n)
/* The bytes must be there. */
static inline void prefetch(const void *p, int n)
{
    if ((uintptr_t)p % 16 != 0 || n % 16 != 0)
        EMU_FAIL("bytes that a kernel asks for are not aligned");
    (void)*(const volatile uint8_t *)p;
    (void)((const volatile uint8_t *)p)[n - 1];
}
static inline uint4 ld_stream(const void *p)
{
    return *(const uint4 *)p;
}
static inline uint2 ld_stream2(const void *p)
{
    return *(const uint2 *)p;
}
static inline uint32_t ld_near(const void *p)
{
    return *(const uint32_t *)p;
}

static inline float ld_far(const float *p)
{
    return *p;
}
static inline float4 ld_far4(const float *p)
{
    return *(const float4 *)p;
}

/* ---- bulk copies: old bytes are lost at once, new ones are there when they are waited for ---- */

struct emu_bar {
    uint8_t n, left, parity, unused; /* arrivals of a round, and those that it still wants */
    int32_t bytes;                   /* that are still to come */
};
static_assert(sizeof(emu_bar) == 8, "the size of a barrier");
static void emu_turn(emu_bar *b)
{
    if (b->left > 0 || b->bytes != 0)
        return;
    b->left = b->n;
    b->parity ^= 1;
}
static void bar_init(uint64_t *bar, int n)
{
    *(emu_bar *)bar = {(uint8_t)n, (uint8_t)n, 0, 0, 0};
}
static void bar_init_done(void) {}
static void bar_arrive(uint64_t *bar)
{
    emu_bar *b = (emu_bar *)bar;
    if (b->left == 0)
        EMU_FAIL("too many arrivals at a barrier");
    b->left--;
    emu_turn(b);
}
static void bar_expect(uint64_t *bar, int n)
{
    ((emu_bar *)bar)->bytes += n;
    bar_arrive(bar);
}
static void bulk_copy(void *to, const void *from, int n, uint64_t *bar)
{
    if ((uintptr_t)to % 16 != 0 || (uintptr_t)from % 16 != 0 || n % 16 != 0)
        EMU_FAIL("a bulk copy is not aligned");
    if (emu.n_bulk == EMU_BULK)
        EMU_FAIL("too many bulk copies on their way");
    memset(to, 0xff, (size_t)n);
    emu.bulk[emu.n_bulk++] = {to, from, n, bar};
}
static void bulk_prefetch(const void *from, int n)
{
    if ((uintptr_t)from % 16 != 0 || n % 16 != 0)
        EMU_FAIL("a bulk prefetch is not aligned");
}
struct emu_bar_wait {
    emu_bar *bar;
    uint32_t parity;
};
static bool emu_bar_passed(void *arg)
{
    const emu_bar_wait *w = (const emu_bar_wait *)arg;
    int n = 0;
    for (int i = 0; i < emu.n_bulk; i++)
        if (emu.bulk[i].bar == w->bar) {
            memcpy(emu.bulk[i].to, emu.bulk[i].from, (size_t)emu.bulk[i].n);
            w->bar->bytes -= emu.bulk[i].n;
            emu_turn(w->bar);
        } else {
            emu.bulk[n++] = emu.bulk[i];
        }
    emu.n_bulk = n;
    return w->bar->parity != w->parity;
}
static void bar_wait(uint64_t *bar, uint32_t parity)
{
    emu_bar_wait arg = {(emu_bar *)bar, parity};
    emu_wait(emu_bar_passed, &arg);
}

#endif
