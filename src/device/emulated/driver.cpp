/*
 * driver.cpp - a GPU without a GPU, for tests: kernels run by emu.h on the processor. Its memory is
 * the process's, but addresses have a bit that no pointer has, so that a host that takes one for a
 * pointer crashes. New memory is full of NaN, and what is mapped can only be touched where `touch`
 * gave it memory. Lists are full of NaN, too, before they are written and after they went up.
 */
#include "device/emulated/emulated.h"

#include <sys/mman.h>
#include <unistd.h>

#include "device/gpu/attend.cuh"
#include "device/gpu/fill.cuh"
#include "device/gpu/matmul.cuh"
#include "device/gpu/measure.cuh"
#include "device/gpu/rows.cuh"
#include "device/gpu/sample.cuh"
#include "device/gpu/store.cuh"

/* Hopper's instructions have no emulation, and `wgmma` is false. */
#define MUL_WGMMA(type)                                                                            \
    static void mul_wgmma_##type(const gpu_mul_args)                                               \
    {                                                                                              \
        EMU_FAIL("wgmma is not there");                                                            \
    }
GPU_WEIGHTS(MUL_WGMMA)

struct entry {
    void (*run)(void *args);
    unsigned n_thread;
};

/* As kernels.cu has them. */
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

static void emu_free(struct gpu_card *, gpu_at at, size_t)
{
    free(ptr(at));
}

static size_t page_up(size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (n + page - 1) / page * page;
}

static void *emu_alloc_host(struct gpu_card *, size_t size)
{
    return malloc(size);
}

static void emu_free_host(struct gpu_card *, void *p, size_t)
{
    free(p);
}

static gpu_at emu_map(struct gpu_card *, size_t size)
{
    void *p =
        mmap(NULL, page_up(size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? 0 : hide(p);
}

static void emu_unmap(struct gpu_card *, gpu_at at, size_t size)
{
    munmap(ptr(at), page_up(size));
}

static bool emu_touch(struct gpu_card *, gpu_at at, size_t size)
{
    return mprotect(ptr(at), size, PROT_READ | PROT_WRITE) == 0;
}

static void emu_drop(struct gpu_card *, gpu_at at, size_t size)
{
    madvise(ptr(at), size, MADV_DONTNEED);
    mprotect(ptr(at), size, PROT_NONE);
}

static void emu_put(struct gpu_card *, gpu_at to, const void *host, size_t size)
{
    memcpy(ptr(to), host, size);
}

static void emu_get(struct gpu_card *, void *host, gpu_at from, size_t size)
{
    memcpy(host, ptr(from), size);
}

static void run(const struct gpu_card *c, const struct gpu_launch *l)
{
    if (l->smem > c->smem_most)
        EMU_FAIL("kernel %d asks for %u bytes of shared memory", (int)l->kernel, l->smem);
    emu_waited = false;
    emu_grid(dim3(l->x, l->y, l->z), dim3(entries[l->kernel].n_thread), l->smem,
             entries[l->kernel].run, (void *)l->args);
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
    *free = *total = (size_t)1 << 30;
}

extern "C" struct gpu_card *emulated_card(void)
{
    static struct gpu_card c = {};
    c.name = "emulated";
    c.text = "a GPU emulated by the processor";
    c.n_processor = 4;
    c.smem_most = 99 * 1024;
    c.f16_flop_per_s = c.f32_flop_per_s = 1e9; /* some figure, so that bounds have one */
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
    c.memory = emu_memory;
    return &c;
}
