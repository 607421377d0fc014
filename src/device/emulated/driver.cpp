/*
 * driver.cpp - a GPU without a GPU, for tests: kernels run by emu.h on the processor. Its memory is
 * the process's, but addresses have a bit that no pointer has, so that a host that takes one for a
 * pointer crashes. New memory is full of NaN, and what is mapped can only be touched where `touch`
 * gave it memory. Lists are full of NaN, too, before they are written and after they went up.
 * Copies beside the work are done as late as the contract of card.h allows.
 */
#include "device/emulated/emulated.h"

#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "device/gpu/apart.cuh"
#include "device/gpu/attend.cuh"
#include "device/gpu/embed.cuh"
#include "device/gpu/entries.cuh"
#include "device/gpu/expect.cuh"
#include "device/gpu/fill.cuh"
#include "device/gpu/attend_decode.cuh"
#include "device/gpu/attend_few.cuh"
#include "device/gpu/attend_many.cuh"
#include "device/gpu/attend_tall.cuh"
#include "device/gpu/attend_wgmma.cuh"
#include "device/gpu/attend_wide.cuh"
#include "device/gpu/gather.cuh"
#include "device/gpu/keep.cuh"
#include "device/gpu/learn.cuh"
#include "device/gpu/matmul.cuh"
#include "device/gpu/matmul_wgmma.cuh"
#include "device/gpu/measure.cuh"
#include "device/gpu/note.cuh"
#include "device/gpu/read.cuh"
#include "device/gpu/rows.cuh"
#include "device/gpu/sample.cuh"
#include "device/gpu/soft.cuh"
#include "device/gpu/step.cuh"
#include "device/gpu/store.cuh"
#include "device/gpu/unlike.cuh"
#include "device/gpu/votes.cuh"

struct entry {
    void (*run)(void *args);
    unsigned n_thread;
};

/* As cuda/kernels.h has them. */
#define GPU_K(name, threads, per_sm, type)                                                         \
    {[](void *args) {                                                                              \
         GRID_WAIT();                                                                              \
         name(*(const type *)args);                                                                \
     },                                                                                            \
     threads},
#undef GPU_K_WAITS
#define GPU_K_WAITS(name, threads, per_sm, type)                                                   \
    {[](void *args) { name(*(const type *)args); }, threads},
static const struct entry entries[GPU_N_KERNEL] = {GPU_KERNELS};
#undef GPU_K

static uint8_t *ptr(gpu_at at)
{
    return (uint8_t *)(at & ~EMU_HIDDEN);
}

static gpu_at hide(void *p)
{
    return p == NULL ? 0 : (gpu_at)(uintptr_t)p | EMU_HIDDEN;
}

static gpu_at emu_alloc(struct gpu_card *, size_t size)
{
    void *p = aligned_alloc(256, (size + 255) / 256 * 256);
    if (p != NULL)
        memset(p, 0xff, size);
    return hide(p);
}

/* ---- copies beside the work ---- */

struct late {
    struct gpu_carry piece;
    bool out;
};
static std::vector<late> emu_late;
static bool emu_forgets;

static void emu_carried(struct gpu_card *)
{
    for (const late &l : emu_late)
        if (l.out)
            memcpy(l.piece.host, ptr(l.piece.at), l.piece.size);
        else
            memcpy(ptr(l.piece.at), l.piece.host, l.piece.size);
    emu_late.clear();
}

/* Until then there are other numbers where the bytes go, of f16 about 1. */
static void emu_carry(struct gpu_card *, const struct gpu_carry *list, int32_t n, bool out)
{
    for (int32_t i = 0; i < n; i++) {
        memset(out ? list[i].host : ptr(list[i].at), 0x3c, list[i].size);
        emu_late.push_back({list[i], out});
    }
}

static void emu_settle(struct gpu_card *c)
{
    if (!emu_forgets)
        emu_carried(c);
}

extern "C" void emulated_forget_settle(bool forget)
{
    emu_forgets = forget;
}

extern "C" size_t emulated_on_the_way(void)
{
    return emu_late.size();
}

/* ---- memory ---- */

static void emu_free(struct gpu_card *, gpu_at at, size_t)
{
    free(ptr(at));
}

static size_t page_up(size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (n + page - 1) / page * page;
}

static void *emu_alloc_host(struct gpu_card *, size_t size, gpu_at *at)
{
    void *p = malloc(size);
    *at = hide(p);
    return p;
}

static void emu_free_host(struct gpu_card *, void *p, size_t)
{
    free(p);
}

/* Bytes that are mapped, and how many of them have memory: all at most, some in each mapping. */
static size_t emu_most = (size_t)1 << 30, emu_given;
static struct {
    gpu_at at;
    size_t given;
} emu_mapping[64];

static size_t *given_of(gpu_at at)
{
    int found = -1;
    for (int i = 0; i < 64; i++)
        if (emu_mapping[i].at != 0 && emu_mapping[i].at <= at &&
            (found < 0 || emu_mapping[i].at > emu_mapping[found].at))
            found = i;
    if (found < 0)
        EMU_FAIL("an address of no mapping is touched");
    return &emu_mapping[found].given;
}

static void count_given(gpu_at at, size_t more)
{
    *given_of(at) += more;
    emu_given += more;
}

static gpu_at emu_map(struct gpu_card *, size_t size)
{
    void *p =
        mmap(NULL, page_up(size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int i = 0;
    while (i < 64 && emu_mapping[i].at != 0)
        i++;
    if (p == MAP_FAILED || i == 64)
        return 0;
    emu_mapping[i] = {hide(p), 0};
    return hide(p);
}

static void emu_unmap(struct gpu_card *c, gpu_at at, size_t size)
{
    emu_carried(c);
    munmap(ptr(at), page_up(size));
    emu_given -= *given_of(at);
    for (auto &m : emu_mapping)
        if (m.at == at)
            m = {0, 0};
}

static bool emu_touch(struct gpu_card *, gpu_at at, size_t size)
{
    if (emu_given + size > emu_most || mprotect(ptr(at), size, PROT_READ | PROT_WRITE) != 0)
        return false;
    count_given(at, size);
    return true;
}

static void emu_drop(struct gpu_card *c, gpu_at at, size_t size)
{
    emu_carried(c);
    madvise(ptr(at), size, MADV_DONTNEED);
    mprotect(ptr(at), size, PROT_NONE);
    count_given(at, 0 - size);
}

extern "C" void emulated_limit(size_t size)
{
    emu_most = size;
}

extern "C" size_t emulated_given(void)
{
    return emu_given;
}

static void emu_put(struct gpu_card *, gpu_at to, const void *host, size_t size)
{
    memcpy(ptr(to), host, size);
}

static size_t emu_n_get;

extern "C" size_t emulated_gets(void)
{
    return emu_n_get;
}

static void emu_get(struct gpu_card *, void *host, gpu_at from, size_t size)
{
    emu_n_get++;
    memcpy(host, ptr(from), size);
}

static bool emu_reach = true;
static size_t emu_n_fetch;

static bool emu_fetch(struct gpu_card *, gpu_at to, struct gpu_card *, gpu_at from, size_t size)
{
    if (emu_reach)
        memcpy(ptr(to), ptr(from), size);
    emu_n_fetch += emu_reach;
    return emu_reach;
}

extern "C" void emulated_part(bool apart)
{
    emu_reach = !apart;
}

extern "C" size_t emulated_fetches(void)
{
    return emu_n_fetch;
}

static void run(const struct gpu_card *c, const struct gpu_launch *l)
{
    const bool together = l->kernel == GPU_KERNEL_step;
    if (l->smem > gpu_smem_of(c, l->kernel))
        EMU_FAIL("kernel %d asks for %u bytes of shared memory", (int)l->kernel, l->smem);
    emu_waited = false;
    (together ? emu_together : emu_grid)(dim3(l->x, l->y, l->z), dim3(entries[l->kernel].n_thread),
                                         l->smem, entries[l->kernel].run, (void *)l->args);
    if (!emu_waited)
        EMU_FAIL("kernel %d does not wait for those before it", (int)l->kernel);
}

static void emu_submit(struct gpu_card *c, const struct gpu_batch *b)
{
    if (b->size > 0) {
        memcpy(ptr(b->lists), b->host, b->size);
        memset((void *)b->host, 0xff, b->size);
    }
    for (int32_t i = 0; i < b->n; i++)
        run(c, &b->launch[i]);
}

static void emu_claim(struct gpu_card *, int32_t) {}

static void emu_wait(struct gpu_card *) {}

static void emu_memory(struct gpu_card *, size_t *free, size_t *total)
{
    *total = emu_most;
    *free = emu_given < emu_most ? emu_most - emu_given : 0;
}

static struct gpu_card *card_of(int i)
{
    static struct gpu_card both[2];
    struct gpu_card &c = both[i];
    if (c.name != NULL) /* a test may have changed it */
        return &c;
    c.name = "emulated";
    c.text = "a GPU emulated by the processor";
    c.n_processor = 4;
    c.smem_most = 99 * 1024;
    c.f16_flop_per_s = c.f32_flop_per_s = 1e9; /* some figure, so that bounds have one */
    c.smem_step = c.smem_all = 227 * 1024;
    c.step = true;
    c.chunk = page_up(1);
    c.alloc = emu_alloc;
    c.free = emu_free;
    c.alloc_host = emu_alloc_host;
    c.free_host = emu_free_host;
    c.map = emu_map;
    c.unmap = emu_unmap;
    c.touch = emu_touch;
    c.drop = emu_drop;
    c.put = emu_put;
    c.get = emu_get;
    c.submit = emu_submit;
    c.claim = emu_claim;
    c.wait = emu_wait;
    c.carry = emu_carry;
    c.fetch = emu_fetch;
    c.settle = emu_settle;
    c.carried = emu_carried;
    c.memory = emu_memory;
    return &c;
}

extern "C" struct gpu_card *emulated_card(void)
{
    return card_of(0);
}

extern "C" struct gpu_card *emulated_other(void)
{
    return card_of(1);
}
