/*
 * driver.c - a GPU through NVIDIA's driver library, libcuda.so.1, which is opened when a GPU is
 * asked for: no CUDA runtime, nothing to link. The kernels are a fatbin in the library, an array
 * that the build makes. Everything runs on one stream. Invariant: what the driver refuses is noted
 * once, in `failure`, and nothing crashes.
 *
 * The part of cuda.h that is used stands here. Its handles are pointers, its enums ints, and its
 * functions are looked up by name.
 */
#include "device/cuda/cuda.h"

#include <dlfcn.h>
#include <stdio.h>

#include "base/mem.h"

extern const unsigned long long pi_gpu_fatbin[];

typedef int cu_result;

/* CUmemAllocationProp and CUmemAccessDesc of memory of a device. */
struct cu_location {
    int type, id;
};
struct cu_prop {
    int type, handle_types;
    struct cu_location location;
    void *win32;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};
struct cu_access {
    struct cu_location location;
    int flags;
};

enum {
    CU_PINNED = 1,
    CU_DEVICE = 1,
    CU_READ_WRITE = 3,
    CU_MINIMUM = 0,
    ATTRIBUTE_CLOCK = 13, /* kHz, the highest */
    ATTRIBUTE_PROCESSORS = 16,
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_MINOR = 76,
    ATTRIBUTE_SMEM = 97,
    FUNCTION_SMEM = 8,
    STREAM_NON_BLOCKING = 1
};

#define CU_FUNCTIONS(X)                                                                            \
    X(init, "cuInit", unsigned)                                                                    \
    X(device_count, "cuDeviceGetCount", int *)                                                     \
    X(device_get, "cuDeviceGet", int *, int)                                                       \
    X(device_name, "cuDeviceGetName", char *, int, int)                                            \
    X(device_attribute, "cuDeviceGetAttribute", int *, int, int)                                   \
    X(context_retain, "cuDevicePrimaryCtxRetain", void **, int)                                    \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", int)                                        \
    X(context_set, "cuCtxSetCurrent", void *)                                                      \
    X(module_load, "cuModuleLoadData", void **, const void *)                                      \
    X(module_unload, "cuModuleUnload", void *)                                                     \
    X(module_function, "cuModuleGetFunction", void **, void *, const char *)                       \
    X(function_set, "cuFuncSetAttribute", void *, int, int)                                        \
    X(memory_info, "cuMemGetInfo_v2", size_t *, size_t *)                                          \
    X(mem_alloc, "cuMemAlloc_v2", uint64_t *, size_t)                                              \
    X(mem_free, "cuMemFree_v2", uint64_t)                                                          \
    X(copy_in, "cuMemcpyHtoDAsync_v2", uint64_t, const void *, size_t, void *)                     \
    X(copy_out, "cuMemcpyDtoHAsync_v2", void *, uint64_t, size_t, void *)                          \
    X(copy, "cuMemcpyDtoDAsync_v2", uint64_t, uint64_t, size_t, void *)                            \
    X(fill, "cuMemsetD8Async", uint64_t, unsigned char, size_t, void *)                            \
    X(reserve, "cuMemAddressReserve", uint64_t *, size_t, size_t, uint64_t, unsigned long long)    \
    X(unreserve, "cuMemAddressFree", uint64_t, size_t)                                             \
    X(create, "cuMemCreate", unsigned long long *, size_t, const struct cu_prop *,                 \
      unsigned long long)                                                                          \
    X(release, "cuMemRelease", unsigned long long)                                                 \
    X(map, "cuMemMap", uint64_t, size_t, size_t, unsigned long long, unsigned long long)           \
    X(unmap, "cuMemUnmap", uint64_t, size_t)                                                       \
    X(access, "cuMemSetAccess", uint64_t, size_t, const struct cu_access *, size_t)                \
    X(granularity, "cuMemGetAllocationGranularity", size_t *, const struct cu_prop *, int)         \
    X(stream_create, "cuStreamCreate", void **, unsigned)                                          \
    X(stream_destroy, "cuStreamDestroy_v2", void *)                                                \
    X(stream_wait, "cuStreamSynchronize", void *)                                                  \
    X(launch, "cuLaunchKernel", void *, unsigned, unsigned, unsigned, unsigned, unsigned,          \
      unsigned, unsigned, void *, void **, void **)                                                \
    X(error_name, "cuGetErrorName", cu_result, const char **)

struct cu_api {
#define CU_FIELD(field, name, ...) cu_result (*field)(__VA_ARGS__);
    CU_FUNCTIONS(CU_FIELD)
#undef CU_FIELD
};

static struct cu_api cu;

#define CU_NAME(field, name, ...) name,
static const char *const cu_names[] = {CU_FUNCTIONS(CU_NAME)};
#undef CU_NAME

#define GPU_K(name, threads, per_sm, args) {#name, threads},
static const struct {
    const char *name;
    unsigned n_thread;
} kernels[GPU_N_KERNEL] = {GPU_KERNELS};
#undef GPU_K

/* A mapping of pages: addresses in chunks, each of which gets memory when it is first touched. */
struct mapping {
    struct mapping *next;
    gpu_at at;
    size_t size, n_chunk;
    unsigned long long handle[]; /* [n_chunk] 0: none */
};

struct cuda {
    struct gpu_driver base;
    int device;
    void *context, *module, *stream;
    void *function[GPU_N_KERNEL];
    struct cu_prop prop;
    size_t chunk;
    struct mapping *mapping;
    char name[16], text[128], why[128];
};

static struct cuda *cuda_of(struct gpu_driver *d)
{
    return (struct cuda *)d;
}

/* False, and the first failure is noted, where a result is one. */
static bool good(struct cuda *c, cu_result r, const char *what)
{
    const char *name = "an error without a name";
    if (r == 0)
        return true;
    cu.error_name(r, &name);
    if (c->base.failure == NULL) {
        snprintf(c->why, sizeof(c->why), "%s: %s", what, name);
        c->base.failure = c->why;
    }
    return false;
}

/* The context of whichever thread calls. */
static bool enter(struct cuda *c)
{
    return good(c, cu.context_set(c->context), "the GPU's context");
}

/* ---- memory ---- */

static gpu_at cuda_alloc(struct gpu_driver *d, size_t size)
{
    struct cuda *c = cuda_of(d);
    uint64_t at = 0;
    return enter(c) && cu.mem_alloc(&at, size) == 0 ? at : 0;
}

static void cuda_free(struct gpu_driver *d, gpu_at at, size_t size)
{
    struct cuda *c = cuda_of(d);
    (void)size;
    if (enter(c))
        good(c, cu.mem_free(at), "freeing the GPU's memory");
}

static gpu_at cuda_map(struct gpu_driver *d, size_t size)
{
    struct cuda *c = cuda_of(d);
    size_t n_chunk = (size + c->chunk - 1) / c->chunk;
    uint64_t at = 0;
    struct mapping *m = pi_mem_alloc(PI_MEM_DEVICE, sizeof(*m) + n_chunk * sizeof(m->handle[0]));
    if (m == NULL || !enter(c) || cu.reserve(&at, n_chunk * c->chunk, c->chunk, 0, 0) != 0) {
        pi_mem_free(m);
        return 0;
    }
    m->at = at;
    m->size = size;
    m->n_chunk = n_chunk;
    m->next = c->mapping;
    c->mapping = m;
    return at;
}

static struct mapping *mapping_of(struct cuda *c, gpu_at at)
{
    struct mapping *m = c->mapping;
    while (m != NULL && (at < m->at || at >= m->at + m->n_chunk * c->chunk))
        m = m->next;
    return m;
}

static bool give_chunk(struct cuda *c, struct mapping *m, size_t i)
{
    const struct cu_access access = {c->prop.location, CU_READ_WRITE};
    gpu_at at = m->at + i * c->chunk;
    if (m->handle[i] != 0)
        return true;
    return good(c, cu.create(&m->handle[i], c->chunk, &c->prop, 0), "memory for pages") &&
           good(c, cu.map(at, c->chunk, 0, m->handle[i], 0), "mapping pages") &&
           good(c, cu.access(at, c->chunk, &access, 1), "mapping pages") &&
           good(c, cu.fill(at, 0, c->chunk, c->stream), "clearing pages");
}

static void take_chunk(struct cuda *c, struct mapping *m, size_t i)
{
    if (m->handle[i] == 0)
        return;
    good(c, cu.unmap(m->at + i * c->chunk, c->chunk), "unmapping pages");
    good(c, cu.release(m->handle[i]), "giving pages back");
    m->handle[i] = 0;
}

static bool cuda_touch(struct gpu_driver *d, gpu_at at, size_t size)
{
    struct cuda *c = cuda_of(d);
    struct mapping *m = mapping_of(c, at);
    bool ok = m != NULL && enter(c);
    for (size_t i = ok ? (size_t)(at - m->at) / c->chunk : 0;
         ok && m->at + i * c->chunk < at + size; i++)
        ok = give_chunk(c, m, i);
    return ok;
}

/* Chunks that lie within. Work that may read them is awaited first. */
static void cuda_drop(struct gpu_driver *d, gpu_at at, size_t size)
{
    struct cuda *c = cuda_of(d);
    struct mapping *m = mapping_of(c, at);
    if (m == NULL || !enter(c) || !good(c, cu.stream_wait(c->stream), "the GPU's work"))
        return;
    size_t i = ((size_t)(at - m->at) + c->chunk - 1) / c->chunk;
    for (; m->at + (i + 1) * c->chunk <= at + size; i++)
        take_chunk(c, m, i);
}

static void cuda_unmap(struct gpu_driver *d, gpu_at at, size_t size)
{
    struct cuda *c = cuda_of(d);
    struct mapping **link = &c->mapping, *m;
    (void)size;
    while (*link != NULL && (*link)->at != at)
        link = &(*link)->next;
    m = *link;
    if (m == NULL || !enter(c))
        return;
    good(c, cu.stream_wait(c->stream), "the GPU's work");
    for (size_t i = 0; i < m->n_chunk; i++)
        take_chunk(c, m, i);
    good(c, cu.unreserve(m->at, m->n_chunk * c->chunk), "giving addresses back");
    *link = m->next;
    pi_mem_free(m);
}

/* ---- copies and work ---- */

/* From pageable memory: the driver has read it when it returns, or waits. */
static void cuda_put(struct gpu_driver *d, gpu_at to, const void *host, size_t size)
{
    struct cuda *c = cuda_of(d);
    if (size > 0 && enter(c))
        good(c, cu.copy_in(to, host, size, c->stream), "a copy to the GPU");
}

static void cuda_get(struct gpu_driver *d, void *host, gpu_at from, size_t size)
{
    struct cuda *c = cuda_of(d);
    bool ok = enter(c) && (size == 0 || good(c, cu.copy_out(host, from, size, c->stream),
                                             "a copy from the GPU"));
    if (!ok || !good(c, cu.stream_wait(c->stream), "the GPU's work"))
        memset(host, 0, size);
}

static void cuda_copy(struct gpu_driver *d, gpu_at to, gpu_at from, size_t size)
{
    struct cuda *c = cuda_of(d);
    if (size > 0 && enter(c))
        good(c, cu.copy(to, from, size, c->stream), "a copy on the GPU");
}

static void cuda_clear(struct gpu_driver *d, gpu_at at, size_t size)
{
    struct cuda *c = cuda_of(d);
    if (size > 0 && enter(c))
        good(c, cu.fill(at, 0, size, c->stream), "clearing the GPU's memory");
}

static void cuda_launch(struct gpu_driver *d, const struct gpu_launch *l)
{
    struct cuda *c = cuda_of(d);
    void *args[] = {(void *)l->args};
    if (enter(c))
        good(c,
             cu.launch(c->function[l->kernel], l->x, l->y, l->z, kernels[l->kernel].n_thread, 1, 1,
                       l->smem, c->stream, args, NULL),
             kernels[l->kernel].name);
}

static void cuda_wait(struct gpu_driver *d)
{
    struct cuda *c = cuda_of(d);
    if (enter(c))
        good(c, cu.stream_wait(c->stream), "the GPU's work");
}

static void cuda_memory(struct gpu_driver *d, size_t *free, size_t *total)
{
    struct cuda *c = cuda_of(d);
    *free = *total = 0;
    if (enter(c))
        good(c, cu.memory_info(free, total), "the GPU's memory");
}

/* ---- the library ---- */

/* Looks the library up, once. Returns why it cannot be used; "": it can. */
static const char *open_library(void)
{
    static bool done;
    static char why[128];
    if (done)
        return why;
    done = true;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return strcpy(why, "no GPU here: NVIDIA's driver is not installed");
    for (size_t i = 0; i < PI_LEN(cu_names); i++) {
        void *f = dlsym(library, cu_names[i]);
        if (f == NULL) {
            snprintf(why, sizeof(why), "no GPU here: NVIDIA's driver is too old, it has no %s",
                     cu_names[i]);
            return why;
        }
        memcpy((char *)&cu + i * sizeof(f), &f, sizeof(f));
    }
    return cu.init(0) == 0 ? why : strcpy(why, "no GPU here");
}

int32_t cuda_count(pith_error *err)
{
    const char *why = open_library();
    int n = 0;
    if (why[0] == '\0' && (cu.device_count(&n) != 0 || n == 0)) {
        why = "no GPU here";
        n = 0;
    }
    if (why[0] != '\0')
        pi_fail(err, PITH_UNSUPPORTED, "%s", why);
    return n;
}

static int attribute(const struct cuda *c, int which)
{
    int value = 0;
    cu.device_attribute(&value, which, c->device);
    return value;
}

static bool load_kernels(struct cuda *c)
{
    if (!good(c, cu.module_load(&c->module, pi_gpu_fatbin), "loading kernels"))
        return false;
    for (int i = 0; i < GPU_N_KERNEL; i++)
        if (!good(c, cu.module_function(&c->function[i], c->module, kernels[i].name),
                  kernels[i].name) ||
            !good(c, cu.function_set(c->function[i], FUNCTION_SMEM, (int)c->base.smem_most),
                  kernels[i].name))
            return false;
    return true;
}

/* Operations of a processor in a clock, of the last row at or below the capability. f16 is dense, by
   tensor cores with sums in f32. Of 8.6, 8.9 and 12.0 workstation cards have this, others
   half of it in f16. From the papers that NVIDIA has for each architecture. */
static void set_peaks(struct cuda *c)
{
    static const struct {
        int capability, f16, f32;
    } rates[] = {
        {80, 2048, 128}, {86, 1024, 256}, {90, 4096, 256}, {100, 8192, 256}, {120, 1024, 256}};
    int capability = 10 * attribute(c, ATTRIBUTE_MAJOR) + attribute(c, ATTRIBUTE_MINOR);
    double clocks = 1e3 * attribute(c, ATTRIBUTE_CLOCK) * c->base.n_processor;
    for (size_t i = 0; i < PI_LEN(rates); i++)
        if (rates[i].capability <= capability) {
            c->base.f16_flop_per_s = rates[i].f16 * clocks;
            c->base.f32_flop_per_s = rates[i].f32 * clocks;
        }
}

static bool start(struct cuda *c, int32_t i)
{
    const size_t least = 2 << 20;
    if (!good(c, cu.device_get(&c->device, i), "the GPU") ||
        !good(c, cu.device_name(c->text, (int)sizeof(c->text), c->device), "the GPU's name") ||
        !good(c, cu.context_retain(&c->context, c->device), "the GPU's context") || !enter(c) ||
        !good(c, cu.stream_create(&c->stream, STREAM_NON_BLOCKING), "the GPU's stream"))
        return false;
    int smem = attribute(c, ATTRIBUTE_SMEM);
    c->base.n_processor = attribute(c, ATTRIBUTE_PROCESSORS);
    c->base.smem_most = (uint32_t)(smem < 99 * 1024 ? smem : 99 * 1024);
    c->base.wgmma = attribute(c, ATTRIBUTE_MAJOR) == 9 && attribute(c, ATTRIBUTE_MINOR) == 0;
    set_peaks(c);
    c->prop = (struct cu_prop){.type = CU_PINNED, .location = {CU_DEVICE, c->device}};
    return good(c, cu.granularity(&c->chunk, &c->prop, CU_MINIMUM), "the GPU's pages") &&
           (c->chunk = c->chunk < least ? least : c->chunk) > 0 && load_kernels(c);
}

pith_status cuda_open(int32_t i, struct gpu_driver **out, pith_error *err)
{
    int32_t n = cuda_count(err);
    *out = NULL;
    if (n == 0)
        return PITH_UNSUPPORTED;
    if (i < 0 || i >= n)
        return pi_fail(err, PITH_INVALID, "there is no GPU %d: there are %d", i, n);
    struct cuda *c = pi_mem_alloc(PI_MEM_DEVICE, sizeof(*c));
    if (c == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a GPU");
    snprintf(c->name, sizeof(c->name), "cuda:%d", i);
    c->base = (struct gpu_driver){.name = c->name,
                                  .text = c->text,
                                  .alloc = cuda_alloc,
                                  .free = cuda_free,
                                  .map = cuda_map,
                                  .unmap = cuda_unmap,
                                  .touch = cuda_touch,
                                  .drop = cuda_drop,
                                  .put = cuda_put,
                                  .get = cuda_get,
                                  .copy = cuda_copy,
                                  .clear = cuda_clear,
                                  .launch = cuda_launch,
                                  .wait = cuda_wait,
                                  .memory = cuda_memory};
    if (!start(c, i)) {
        pith_status status = pi_fail(err, PITH_UNSUPPORTED, "GPU %d cannot be used: %s", i, c->why);
        cuda_close(&c->base);
        return status;
    }
    *out = &c->base;
    return PITH_OK;
}

void cuda_close(struct gpu_driver *driver)
{
    if (driver == NULL)
        return;
    struct cuda *c = cuda_of(driver);
    while (c->mapping != NULL)
        cuda_unmap(driver, c->mapping->at, c->mapping->size);
    if (c->module != NULL)
        cu.module_unload(c->module);
    if (c->stream != NULL)
        cu.stream_destroy(c->stream);
    if (c->context != NULL)
        cu.context_release(c->device);
    pi_mem_free(c);
}
