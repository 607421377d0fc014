/*
 * driver.cpp - a GPU's driver without a GPU, for tests: kernels run by emu.h on the processor. Its
 * memory is the process's, but addresses have a bit that no pointer has, so that a host that takes
 * one for a pointer crashes. New memory is full of NaN, and what is mapped can only be touched
 * where `touch` gave it memory.
 */
#include "device/emulated/emulated.h"

#include <sys/mman.h>
#include <unistd.h>

#include "device/gpu/attend.cuh"
#include "device/gpu/matmul.cuh"
#include "device/gpu/measure.cuh"
#include "device/gpu/rows.cuh"
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

#define GPU_K(name, threads, per_sm, type) {[](void *args) { name(*(const type *)args); }, threads},
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

static gpu_at emu_alloc(struct gpu_driver *, size_t size)
{
    void *p = aligned_alloc(256, (size + 255) / 256 * 256);
    if (p != NULL)
        memset(p, 0xff, size);
    return hide(p);
}

static void emu_free(struct gpu_driver *, gpu_at at, size_t)
{
    free(ptr(at));
}

static size_t page_up(size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (n + page - 1) / page * page;
}

static gpu_at emu_map(struct gpu_driver *, size_t size)
{
    void *p =
        mmap(NULL, page_up(size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? 0 : hide(p);
}

static void emu_unmap(struct gpu_driver *, gpu_at at, size_t size)
{
    munmap(ptr(at), page_up(size));
}

static bool emu_touch(struct gpu_driver *, gpu_at at, size_t size)
{
    size_t page = page_up(1), first = (size_t)(uintptr_t)ptr(at) / page * page;
    size_t end = page_up((size_t)(uintptr_t)ptr(at) + size);
    return mprotect((void *)first, end - first, PROT_READ | PROT_WRITE) == 0;
}

static void emu_drop(struct gpu_driver *, gpu_at at, size_t size)
{
    size_t page = page_up(1), first = page_up((size_t)(uintptr_t)ptr(at));
    size_t end = ((size_t)(uintptr_t)ptr(at) + size) / page * page;
    if (first < end)
        madvise((void *)first, end - first, MADV_DONTNEED),
            mprotect((void *)first, end - first, PROT_NONE);
}

static void emu_put(struct gpu_driver *, gpu_at to, const void *host, size_t size)
{
    memcpy(ptr(to), host, size);
}

static void emu_get(struct gpu_driver *, void *host, gpu_at from, size_t size)
{
    memcpy(host, ptr(from), size);
}

static void emu_copy(struct gpu_driver *, gpu_at to, gpu_at from, size_t size)
{
    memmove(ptr(to), ptr(from), size);
}

static void emu_clear(struct gpu_driver *, gpu_at at, size_t size)
{
    memset(ptr(at), 0, size);
}

static void emu_launch(struct gpu_driver *d, const struct gpu_launch *l)
{
    if (l->smem > d->smem_most)
        EMU_FAIL("kernel %d asks for %u bytes of shared memory", (int)l->kernel, l->smem);
    emu_grid(dim3(l->x, l->y, l->z), dim3(entries[l->kernel].n_thread), l->smem,
             entries[l->kernel].run, (void *)l->args);
}

static void emu_wait(struct gpu_driver *) {}

static void emu_memory(struct gpu_driver *, size_t *free, size_t *total)
{
    *free = *total = (size_t)1 << 30;
}

extern "C" struct gpu_driver *emulated_driver(void)
{
    static struct gpu_driver d = {};
    d.name = "emulated";
    d.text = "a GPU emulated by the processor";
    d.n_processor = 4;
    d.smem_most = 99 * 1024;
    d.f16_flop_per_s = d.f32_flop_per_s = 1e9; /* some figure, so that bounds have one */
    d.alloc = emu_alloc;
    d.free = emu_free;
    d.map = emu_map;
    d.unmap = emu_unmap;
    d.touch = emu_touch;
    d.drop = emu_drop;
    d.put = emu_put;
    d.get = emu_get;
    d.copy = emu_copy;
    d.clear = emu_clear;
    d.launch = emu_launch;
    d.wait = emu_wait;
    d.memory = emu_memory;
    return &d;
}
