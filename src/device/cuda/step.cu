/* step.cu - kernels for nvcc: one token in one launch. */
#include "device/gpu/step.cuh"
#include "device/cuda/kernels.h"

GPU_GROUP_STEP
