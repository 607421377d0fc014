/*
 * kernels.cu - every kernel, for nvcc: one fatbin. A kernel's name has a prefix, and it begins with
 * GRID_WAIT where it does not call that itself.
 */
#include "device/gpu/attend.cuh"
#include "device/gpu/embed.cuh"
#include "device/gpu/fill.cuh"
#include "device/gpu/attend_few.cuh"
#include "device/gpu/attend_many.cuh"
#include "device/gpu/gather.cuh"
#include "device/gpu/keep.cuh"
#include "device/gpu/matmul.cuh"
#include "device/gpu/matmul_wgmma.cuh"
#include "device/gpu/measure.cuh"
#include "device/gpu/note.cuh"
#include "device/gpu/read.cuh"
#include "device/gpu/rows.cuh"
#include "device/gpu/sample.cuh"
#include "device/gpu/step.cuh"
#include "device/gpu/store.cuh"

#define ENTRY(name, threads, per_sm, type, begin)                                                  \
    extern "C" __global__ void __launch_bounds__(threads, per_sm)                                  \
        pi_##name(const __grid_constant__ type a)                                                  \
    {                                                                                              \
        begin;                                                                                     \
        name(a);                                                                                   \
    }
#define BEGIN                                                                                      \
    do {                                                                                           \
        GRID_WAIT();                                                                               \
        GRID_GO();                                                                                 \
    } while (0)
#define GPU_K(name, threads, per_sm, type) ENTRY(name, threads, per_sm, type, BEGIN)
#undef GPU_K_WAITS
#define GPU_K_WAITS(name, threads, per_sm, type) ENTRY(name, threads, per_sm, type, )
GPU_KERNELS
