/*
 * fill.cuh - bytes from one place of the device's memory to another, or zeros.
 */
#ifndef PI_GPU_FILL_CUH
#define PI_GPU_FILL_CUH

#include "device/gpu/gpu.h"

template <class W> DEV void fill_words(const gpu_fill_args &a, W zero)
{
    const uint64_t n = a.size / sizeof(W), step = (uint64_t)gridDim.x * 256;
    for (uint64_t i = (uint64_t)blockIdx.x * 256 + TID; i < n; i += step)
        AT(W, a.to)[i] = a.from != 0 ? AT(const W, a.from)[i] : zero;
}

KERNEL(256, 4) fill(const gpu_fill_args &a)
{
    if ((a.to | a.from | a.size) % 16 == 0)
        fill_words<uint4>(a, make_uint4(0, 0, 0, 0));
    else if ((a.to | a.from | a.size) % 4 == 0)
        fill_words<uint32_t>(a, 0);
    else
        fill_words<uint8_t>(a, 0);
}

#endif
