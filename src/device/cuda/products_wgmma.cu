/* products_wgmma.cu - kernels for nvcc: products by Hopper's tensor cores. */
#include "device/gpu/matmul_wgmma.cuh"
#include "device/cuda/kernels.h"

GPU_GROUP_WGMMA
