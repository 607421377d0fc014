/* rows.cu - kernels for nvcc: what is small: rows, pages, scores, choices. */
#include "device/gpu/apart.cuh"
#include "device/gpu/attend.cuh"
#include "device/gpu/embed.cuh"
#include "device/gpu/entries.cuh"
#include "device/gpu/fill.cuh"
#include "device/gpu/gather.cuh"
#include "device/gpu/keep.cuh"
#include "device/gpu/matmul.cuh"
#include "device/gpu/measure.cuh"
#include "device/gpu/note.cuh"
#include "device/gpu/read.cuh"
#include "device/gpu/rows.cuh"
#include "device/gpu/sample.cuh"
#include "device/gpu/soft.cuh"
#include "device/gpu/store.cuh"
#include "device/cuda/kernels.h"

GPU_GROUP_ROWS
