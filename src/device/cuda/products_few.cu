/* products_few.cu - kernels for nvcc: products of 1 to 16 tokens. */
#include "device/gpu/matmul.cuh"
#include "device/cuda/kernels.h"

GPU_GROUP_FEW
