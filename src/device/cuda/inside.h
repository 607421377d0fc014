/*
 * inside.h - the part of NVIDIA's cuda.h that is used, and a card as driver.c and graph.c share it.
 * Its handles are pointers, its enums ints, and its functions are looked up by name.
 */
#ifndef PI_CUDA_INSIDE_H
#define PI_CUDA_INSIDE_H

#include "device/cuda/cuda.h"

typedef int cu_result;

/* Groups of kernels. */
#define CUDA_ONE(name, kernels) +1
enum { CUDA_MODULES = 0 GPU_GROUPS(CUDA_ONE) };
#undef CUDA_ONE

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
/* CUlaunchAttribute and CUlaunchConfig, CUDA_KERNEL_NODE_PARAMS_v2, CUgraphEdgeData. */
struct cu_attribute {
    int id;
    union {
        int number;
        uint64_t all[8];
    } value;
};
struct cu_config {
    unsigned grid[3], block[3], smem;
    void *stream;
    struct cu_attribute *attribute;
    unsigned n_attribute;
};
struct cu_node {
    void *function;
    unsigned grid[3], block[3], smem;
    void **args, **extra;
    void *kernel, *context;
};
struct cu_edge {
    unsigned char from_port, to_port, type, reserved[5];
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
    STREAM_NON_BLOCKING = 1,
    EVENT_NO_TIMES = 2,
    HOST_MAPPED = 2,
    PEER_ALREADY = 704,  /* access was enabled before */
    LAUNCH_OVERLAPS = 6, /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
    EDGE_OVERLAPS = 1    /* port and type of a programmatic edge */
};

#define CU_FUNCTIONS(X)                                                                            \
    X(init, "cuInit", unsigned)                                                                    \
    X(device_count, "cuDeviceGetCount", int *)                                                     \
    X(device_get, "cuDeviceGet", int *, int)                                                       \
    X(device_name, "cuDeviceGetName", char *, int, int)                                            \
    X(device_total, "cuDeviceTotalMem_v2", size_t *, int)                                          \
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
    X(copy_peer, "cuMemcpyPeerAsync", uint64_t, void *, uint64_t, void *, size_t, void *)          \
    X(peer_can, "cuDeviceCanAccessPeer", int *, int, int)                                          \
    X(peer_enable, "cuCtxEnablePeerAccess", void *, unsigned)                                      \
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
    X(stream_await, "cuStreamWaitEvent", void *, void *, unsigned)                                 \
    X(host_alloc, "cuMemHostAlloc", void **, size_t, unsigned)                                     \
    X(host_free, "cuMemFreeHost", void *)                                                          \
    X(event_create, "cuEventCreate", void **, unsigned)                                            \
    X(event_destroy, "cuEventDestroy_v2", void *)                                                  \
    X(event_record, "cuEventRecord", void *, void *)                                               \
    X(event_wait, "cuEventSynchronize", void *)                                                    \
    X(launch, "cuLaunchKernelEx", const struct cu_config *, void *, void **, void **)              \
    X(graph_create, "cuGraphCreate", void **, unsigned)                                            \
    X(graph_destroy, "cuGraphDestroy", void *)                                                     \
    X(graph_add, "cuGraphAddKernelNode_v2", void **, void *, const void *, size_t,                 \
      const struct cu_node *)                                                                      \
    X(graph_link, "cuGraphAddDependencies_v2", void *, void *const *, void *const *,               \
      const struct cu_edge *, size_t)                                                              \
    X(graph_make, "cuGraphInstantiateWithFlags", void **, void *, unsigned long long)              \
    X(graph_set, "cuGraphExecKernelNodeSetParams_v2", void *, void *, const struct cu_node *)      \
    X(graph_launch, "cuGraphLaunch", void *, void *)                                               \
    X(graph_free, "cuGraphExecDestroy", void *)                                                    \
    X(error_name, "cuGetErrorName", cu_result, const char **)

struct cu_api {
#define CU_FIELD(field, name, ...) cu_result (*field)(__VA_ARGS__);
    CU_FUNCTIONS(CU_FIELD)
#undef CU_FIELD
};

/* Filled before the first card is opened. */
extern struct cu_api cu;

struct cuda_kernel {
    const char *name;
    unsigned n_thread;
    size_t args_size;
    bool early; /* it has work before it waits for the kernels before it */
};
extern const struct cuda_kernel cuda_kernels[GPU_N_KERNEL];

/* A mapping of pages: addresses in chunks, each of which gets memory when it is first touched. */
struct cuda_mapping {
    struct cuda_mapping *next;
    gpu_at at;
    size_t size, n_chunk;
    unsigned long long handle[]; /* [n_chunk] 0: none */
};

/* Pinned memory on the way between pageable memory and the card. */
enum { CUDA_N_STAGE = 2, CUDA_STAGE = 4 << 20 };
struct cuda_stage {
    uint8_t *host; /* [CUDA_STAGE] */
    size_t used;   /* bytes on their way up, since its turn began */
    void *done;    /* event: all copies are */
};

struct cuda_graph;
enum { CUDA_N_GRAPH = 64 };

struct cuda {
    struct gpu_card base;
    int device;
    bool overlaps; /* sm_90 and up: kernels with early work begin early */
    void *context, *module[CUDA_MODULES];
    void *stream, *up;       /* of all work, and of lists on their way */
    void *beside;            /* stream of copies beside the work */
    void *before, *carried;  /* events: what such copies come after, and the copies are done */
    void *given, *taken;     /* likewise of rows for another card, and of rows from there */
    uint32_t met, reached;   /* bits of other cards: asked whether it reaches them, and it does */
    void *there[GPU_N_SLOT]; /* event: the slot's lists have gone up */
    void *used[GPU_N_SLOT];  /* event: the kernels of its batch are done */
    void *function[GPU_N_KERNEL];
    struct cu_prop prop;
    struct cuda_mapping *mapping;
    struct cuda_stage stage[CUDA_N_STAGE];
    int turn; /* which stage takes what goes up */
    struct cuda_graph *graph[CUDA_N_GRAPH];
    uint64_t clock; /* of batches */
    char name[16], text[128], why[128];
};

/* False, and the first failure is noted, where a result is one. */
bool cuda_good(struct cuda *c, cu_result r, const char *what);

/* graph.c */
void cuda_run(struct cuda *c, const struct gpu_batch *b);
void cuda_graphs_free(struct cuda *c);

#endif
