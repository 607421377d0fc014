/* products_64.cu - kernels for nvcc: products of 17 to 64 tokens. */
#include "device/gpu/matmul.cuh"
#include "device/cuda/kernels.h"

GPU_GROUP_64
