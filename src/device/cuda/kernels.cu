/*
 * kernels.cu - every kernel, for nvcc: one fatbin.
 */
#include "device/gpu/attend.cuh"
#include "device/gpu/matmul.cuh"
#include "device/gpu/matmul_wgmma.cuh"
#include "device/gpu/measure.cuh"
#include "device/gpu/rows.cuh"
#include "device/gpu/store.cuh"
