/*
 * learn.cuh - what policies remember of the rows of a pass, and the importance that they predict of
 * new entries (kv/learn.h). What is remembered is a thread's, which takes the tokens in order. What
 * is predicted knows one token alone. So no number depends on how tokens are cut.
 */
#ifndef PI_GPU_LEARN_CUH
#define PI_GPU_LEARN_CUH

#include "device/gpu/rows.cuh"

/* ---- what is remembered ---- */

/* Grid: (numbers of a row / 256, jobs, places that are written). */
KERNEL(256, 8) learn_ring(const gpu_learn_args &a)
{
    const gpu_learn_job job = AT(const gpu_learn_job, a.jobs)[blockIdx.y];
    const int i = (int)blockIdx.x * 256 + TID,
              last = job.n_tok < job.n_ring ? job.n_tok : job.n_ring;
    if (i >= job.n || (int)blockIdx.z >= last)
        return;
    const int t = job.n_tok - last + (int)blockIdx.z, place = (job.pos + t) % job.n_ring;
    AT(float, job.to)[(size_t)place * job.n + i] = AT(const float, job.from)[(size_t)t * job.n + i];
}

/* Block 0 of a head has its first vector and the sum, block 1 + i the products of dimension i with
   those from i on. Grid: (1 + dim, heads, jobs). */
KERNEL(128, 8) learn_moments(const gpu_learn_args &a)
{
    const gpu_learn_job job = AT(const gpu_learn_job, a.jobs)[blockIdx.z];
    const int dim = job.dim, head = (int)blockIdx.y, row = (int)blockIdx.x - 1;
    const size_t len = 2 * (size_t)dim + (job.square ? (size_t)dim * (dim + 1) / 2 : 0);
    const float *q = AT(const float, job.from) + (size_t)head * dim;
    float *to = AT(float, job.to) + (size_t)head * len;
    const float *first = job.begins ? q : to;
    const int i = row > 0 ? row : 0; /* the products of i begin behind those of all before */
    float *square = to + 2 * dim + i * dim - i * (i - 1) / 2 - i;
    for (int j = TID; j < dim; j += 128) {
        if ((row >= 0 && j < row) || job.n_tok == 0)
            continue;
        float *out = row < 0 ? to + dim + j : square + j;
        const float fj = first[j], fi = row < 0 ? 0.0f : first[i];
        float sum = job.begins ? 0.0f : *out;
        for (int t = 0; t < job.n_tok; t++) {
            const float *x = q + (size_t)t * job.n;
            const float y = x[j] - fj;
            sum += row < 0 ? y : (x[i] - fi) * y;
        }
        *out = sum;
        if (row < 0 && job.begins)
            to[j] = fj;
    }
}

/* A thread has a pair, or a number behind the pairs. Grid: (pairs and others / 128, heads, jobs). */
KERNEL(128, 8) learn_pairs(const gpu_learn_args &a)
{
    const gpu_learn_job &job = AT(const gpu_learn_job, a.jobs)[blockIdx.z];
    const int n = job.n_pair, f = (int)blockIdx.x * 128 + TID, head = (int)blockIdx.y;
    if (f >= n + job.n_flat)
        return;
    const float *q = AT(const float, job.from) + (size_t)head * job.dim;
    double *to = AT(double, job.to) + (size_t)head * (3 * n + job.n_flat);
    if (f >= n) {
        double sum = to[2 * n + f];
        for (int t = 0; t < job.n_tok; t++)
            sum += (double)q[(size_t)t * job.n + n + f];
        to[2 * n + f] = sum;
        return;
    }
    const int first = job.adjacent ? 2 * f : f, second = job.adjacent ? 2 * f + 1 : n + f;
    double x = to[f], y = to[n + f], length = to[2 * n + f];
    for (int t = 0; t < job.n_tok; t++) {
        const double u = (double)q[(size_t)t * job.n + first],
                     v = (double)q[(size_t)t * job.n + second];
        x += u;
        y += v;
        length += sqrt(u * u + v * v);
    }
    to[f] = x, to[n + f] = y, to[2 * n + f] = length;
}

/* ---- what is predicted ---- */

enum { PREDICT_KEY, PREDICT_HIDDEN, PREDICT_NETWORK };

/* A number, which is not 0. */
DEV float predicted(double sum)
{
    const double most = 3.402823466385288598e38;
    const float x = sum > -most ? (float)(sum < most ? sum : most) : -3.402823466e38f;
    return x != 0.0f ? x : 1.175494351e-38f;
}

DEV float *mark_of_token(const gpu_predict_job &job, int t)
{
    return AT(float, job.mark) + (t == 0 ? job.slot : job.behind + t);
}

DEV float clipped(const gpu_predict_job &job, int i, float x)
{
    const float low = AT(const float, job.low)[i], high = AT(const float, job.high)[i];
    x = x > low ? x : low;
    return x < high ? x : high;
}

/* A warp has a token. Grid: (tokens / 8, jobs). */
KERNEL(256, 4) predict_hidden(const gpu_predict_args &a)
{
    const gpu_predict_job job = AT(const gpu_predict_job, a.jobs)[blockIdx.y];
    const int t = (int)blockIdx.x * 8 + WARP;
    const float *w = AT(const float, job.weight), *h = AT(const float, job.h) + (size_t)t * job.n;
    float sum = 0.0f;
    for (int i = LANE; t < job.n_tok && i < job.n; i += 32)
        sum = fmaf(w[i], clipped(job, i, h[i]), sum);
    sum = warp_sum(sum);
    if (LANE == 0 && t < job.n_tok)
        *mark_of_token(job, t) = predicted((double)sum + (double)w[job.n]);
}

/* A warp has a neuron, which some tokens meet at once. Grid: (neurons / 8, jobs, tokens /
   GPU_PREDICT_TOKENS). */
KERNEL(256, 4) predict_neurons(const gpu_predict_args &a)
{
    const gpu_predict_job job = AT(const gpu_predict_job, a.jobs)[blockIdx.y];
    const int j = (int)blockIdx.x * 8 + WARP, t0 = (int)blockIdx.z * GPU_PREDICT_TOKENS;
    const int left = job.n_tok - t0, n_here = left < GPU_PREDICT_TOKENS ? left : GPU_PREDICT_TOKENS;
    const float *w = AT(const float, job.neuron) + (size_t)j * (job.n + 1);
    const float *h = AT(const float, job.h) + (size_t)t0 * job.n;
    float sum[GPU_PREDICT_TOKENS];
    if (!job.first || left <= 0)
        return; /* the whole block */
    UNROLL
    for (int t = 0; t < GPU_PREDICT_TOKENS; t++)
        sum[t] = 0.0f;
    for (int i = LANE; j < job.n_neuron && i < job.n; i += 32) {
        const float x = w[i];
        UNROLL
        for (int t = 0; t < GPU_PREDICT_TOKENS; t++)
            if (t < n_here)
                sum[t] = fmaf(x, h[(size_t)t * job.n + i], sum[t]);
    }
    UNROLL
    for (int t = 0; t < GPU_PREDICT_TOKENS; t++) {
        const float all = warp_sum(sum[t]);
        if (LANE == 0 && t < n_here && j < job.n_neuron) {
            const double x = (double)all + (double)w[job.n];
            AT(float, job.out)
            [(size_t)(t0 + t) * job.n_neuron + j] =
                (float)(0.5 * x * (1.0 + erf(x * 0.70710678118654752)));
        }
    }
}

/* KEY, and what is behind the neurons of NETWORK. Grid: (tokens, jobs). */
KERNEL(128, 4) predict_marks(const gpu_predict_args &a)
{
    SHARED(smem);
    double *room = (double *)smem, sum = 0.0, k2 = 0.0, v2 = 0.0;
    const gpu_predict_job job = AT(const gpu_predict_job, a.jobs)[blockIdx.y];
    const int t = (int)blockIdx.x, n = a.kind == PREDICT_KEY ? job.n : job.n_neuron;
    const float *w = AT(const float, job.weight);
    if (t >= job.n_tok)
        return; /* the whole block */
    if (a.kind == PREDICT_NETWORK) {
        for (int j = TID; j < n; j += 128)
            sum += (double)w[j] * (double)AT(const float, job.out)[(size_t)t * n + j];
    } else {
        const float *k = AT(const float, job.k) + (size_t)t * job.k_stride;
        const float *v = AT(const float, job.v) + (size_t)t * job.v_stride;
        for (int i = TID; i < n; i += 128) {
            sum += (double)w[i] * (double)clipped(job, i, k[i]);
            k2 += (double)k[i] * (double)k[i];
        }
        for (int i = TID; i < job.dim_v; i += 128)
            v2 += (double)v[i] * (double)v[i];
        k2 = tree_sum<128>(k2, room);
        v2 = tree_sum<128>(v2, room);
    }
    sum = tree_sum<128>(sum, room);
    if (a.kind == PREDICT_KEY)
        sum += (double)w[n] * (double)clipped(job, n, (float)sqrt(k2)) +
               (double)w[n + 1] * (double)clipped(job, n + 1, (float)sqrt(v2));
    sum += (double)w[a.kind == PREDICT_KEY ? n + 2 : n];
    if (TID == 0)
        *mark_of_token(job, t) = predicted(sum);
}

#endif
