/* attention.cu - kernels for nvcc: attention. */
#include "device/gpu/attend.cuh"
#include "device/gpu/attend_decode.cuh"
#include "device/gpu/attend_few.cuh"
#include "device/gpu/attend_many.cuh"
#include "device/gpu/attend_tall.cuh"
#include "device/gpu/attend_wgmma.cuh"
#include "device/gpu/attend_wide.cuh"
#include "device/cuda/kernels.h"

GPU_GROUP_ATTENTION
