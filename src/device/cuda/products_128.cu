/* products_128.cu - kernels for nvcc: products of more tokens. */
#include "device/gpu/matmul.cuh"
#include "device/cuda/kernels.h"

GPU_GROUP_128
