/*
 * apart.cuh - sums of squares over pairs of entries. A block has a pair. Its threads' sums are
 * added in a tree, in f64.
 */
#ifndef PI_GPU_APART_CUH
#define PI_GPU_APART_CUH

#include "device/gpu/read.cuh"

/* Adds the squares of x - y, and half of both squares. `by` is of the first n_rot dimensions. */
DEV void add_apart(const float *x, const float *y, int dim, int n_rot, float by, double *room,
                   double *out, double *size)
{
    double apart = 0.0, both = 0.0;
    for (int d = TID; d < dim; d += 128) {
        const double a = x[d], b = y[d], w = d < n_rot ? by : 1.0f;
        apart += (a - b) * (a - b) * w;
        both += 0.5 * (a * a + b * b) * w;
    }
    *out = tree_sum<128>(apart, room);
    *size += tree_sum<128>(both, room);
}

/* Shared: [128] doubles, two rows [dim + 1]. Grid: (entries, jobs). */
KERNEL(128, 4) apart(const gpu_apart_args &a)
{
    SHARED(smem);
    double *room = (double *)smem;
    const gpu_apart_pair pair =
        AT(const gpu_apart_pair, a.pairs)[blockIdx.y * (uint32_t)a.n + blockIdx.x];
    const int dim = a.k.dim > a.value.dim ? a.k.dim : a.value.dim;
    float *x = (float *)(room + 128), *y = x + dim + 1;
    const uint8_t *first = AT(const uint8_t, pair.page[0]),
                  *second = AT(const uint8_t, pair.page[1]);
    double k, v, size = 0.0;
    decode_entries(a.k, first, a.page_len, pair.slot[0], pair.slot[0] + 1, 1, x);
    decode_entries(a.k, second, a.page_len, pair.slot[1], pair.slot[1] + 1, 1, y);
    const float *turn = AT(const float, a.turn);
    for (int f = TID; pair.turned && f < a.n_pair; f += 128) {
        float *p = x + (a.adjacent ? 2 * f : f), *q = p + (a.adjacent ? 1 : a.n_pair);
        const float re = *p, im = *q;
        *p = re * turn[2 * f] - im * turn[2 * f + 1];
        *q = re * turn[2 * f + 1] + im * turn[2 * f];
    }
    sync_block();
    add_apart(x, y, a.k.dim, pair.turned ? 2 * a.n_pair : 0, a.by, room, &k, &size);
    sync_block();
    decode_entries(a.value, first, a.page_len, pair.slot[0], pair.slot[0] + 1, 1, x);
    decode_entries(a.value, second, a.page_len, pair.slot[1], pair.slot[1] + 1, 1, y);
    add_apart(x, y, a.value.dim, 0, 1.0f, room, &v, &size);
    double *out = AT(double, a.out) + ((size_t)blockIdx.y * a.n + blockIdx.x) * 3;
    if (TID == 0)
        out[0] = k, out[1] = v, out[2] = size;
}

#endif
