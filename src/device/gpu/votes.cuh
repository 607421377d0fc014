/*
 * votes.cuh - scores by the attention of the last queries (kv_weigh_votes): sums of weights of a
 * group's heads as one, pooled over neighbours.
 */
#ifndef PI_GPU_VOTES_CUH
#define PI_GPU_VOTES_CUH

#include "device/gpu/note.cuh"

#define MOST_SCORE AS_F(0x7f7fffffu) /* of entries that are not scored */

/* Grid: (entries / 256, lanes). */
KERNEL(256, 4) votes_fold(const gpu_weigh_args &a)
{
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.y];
    const gpu_weigh_votes v = *AT(const gpu_weigh_votes, l.w);
    const int i = (int)blockIdx.x * 256 + TID;
    if (i >= l.n)
        return;
    const float *vote = AT(const float, v.vote) + i;
    float x = vote[0];
    for (int g = 1; g < v.n_group; g++) {
        const float y = vote[(size_t)g * l.n];
        x = v.group == GROUP_MAX ? f_max(x, y) : x + y;
    }
    x = v.group == GROUP_MEAN ? x / (float)v.n_group : x;
    AT(float, v.all)[i] = x * v.by;
}

/* Neighbours beyond the ends are zeros of the mean, and no part of the largest. Grid as before. */
KERNEL(256, 4) votes_pool(const gpu_weigh_args &a)
{
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.y];
    const gpu_weigh_votes v = *AT(const gpu_weigh_votes, l.w);
    const float *all = AT(const float, v.all);
    const int i = (int)blockIdx.x * 256 + TID, from = i - v.kernel / 2;
    const int begin = from > 0 ? from : 0,
              end = from + v.kernel < v.n_before ? from + v.kernel : v.n_before;
    if (i >= l.n)
        return;
    float x = i < v.n_before ? all[begin] : MOST_SCORE;
    for (int j = begin + 1; i < v.n_before && j < end; j++)
        x = v.largest ? f_max(x, all[j]) : x + all[j];
    if (i < v.n_before && !v.largest)
        x /= (float)v.kernel;
    AT(float, l.raw)[i] = x;
}

#endif
