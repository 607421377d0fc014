/*
 * learn.cuh - what policies remember of the rows of a pass (kv/learn.h). A thread has a number and
 * takes the tokens in order, so that no number depends on how tokens are cut.
 */
#ifndef PI_GPU_LEARN_CUH
#define PI_GPU_LEARN_CUH

#include "device/gpu/gpu.h"

/* Grid: (numbers of a row / 256, jobs, places that are written). */
KERNEL(256, 8) learn_ring(const gpu_learn_args a)
{
    const gpu_learn_job job = AT(const gpu_learn_job, a.jobs)[blockIdx.y];
    const int i = (int)blockIdx.x * 256 + TID,
              last = job.n_tok < job.n_ring ? job.n_tok : job.n_ring;
    if (i >= job.n || (int)blockIdx.z >= last)
        return;
    const int t = job.n_tok - last + (int)blockIdx.z, place = (job.pos + t) % job.n_ring;
    AT(float, job.to)[(size_t)place * job.n + i] = AT(const float, job.from)[(size_t)t * job.n + i];
}

#endif
