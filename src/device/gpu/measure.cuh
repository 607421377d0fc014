/*
 * measure.cuh - reading memory as fast as it goes, for the bounds that speeds are compared with.
 */
#ifndef PI_GPU_MEASURE_CUH
#define PI_GPU_MEASURE_CUH

#include "device/gpu/gpu.h"

/* Every thread reads 16 bytes of each stretch that all threads read together. */
KERNEL(256, 8) read_all(const gpu_read_args &a)
{
    const uint8_t *from = AT(const uint8_t, a.from);
    const uint64_t step = (uint64_t)gridDim.x * 256 * 16;
    uint32_t sum = 0;
    for (uint64_t at = ((uint64_t)blockIdx.x * 256 + threadIdx.x) * 16; at < a.size; at += step) {
        const uint4 v = ld_stream(from + at);
        sum |= v.x | v.y | v.z | v.w;
    }
    if (sum != 0) /* never, as the host knows and the compiler does not */
        *AT(uint32_t, a.out) = sum;
}

#endif
