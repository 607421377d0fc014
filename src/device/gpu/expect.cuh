/*
 * expect.cuh - the attention that Gaussian queries to come give (kv_weigh_expected): their moments,
 * from sums over the queries that were, and what keys make of them.
 */
#ifndef PI_GPU_EXPECT_CUH
#define PI_GPU_EXPECT_CUH

#include "device/gpu/unlike.cuh"

#define EXPECTED_OF(l) (*AT(const gpu_weigh_expected, (l).w))

/* ---- the queries ---- */

struct expect_sums {
    const float *first, *sum, *square;
    int dim;
};

DEV expect_sums sums_of(const gpu_weigh_expected &x, int dim, int g)
{
    const size_t len = 2 * (size_t)dim + (x.square ? (size_t)dim * (dim + 1) / 2 : 0);
    const float *at = AT(const float, x.moments) + (size_t)g * len;
    return expect_sums{at, at + dim, at + 2 * dim, dim};
}

DEV double spread_of(const expect_sums &s, double n, int i, int j)
{
    const int a = i < j ? i : j, b = i < j ? j : i;
    const size_t at = (size_t)a * s.dim - (size_t)a * (a - 1) / 2 + (b - a);
    return (double)s.square[at] / n - (double)s.sum[i] / n * ((double)s.sum[j] / n);
}

/* What dimension i becomes of: c of itself, and s of another one. */
struct expect_turn {
    int other;
    double c, s;
};

DEV expect_turn turn_of(const gpu_weigh_args &a, const gpu_weigh_expected &x, int i)
{
    expect_turn t = {i, 1.0, 0.0};
    if (i >= 2 * a.n_pair)
        return t;
    const int f = a.adjacent ? i / 2 : i % a.n_pair;
    const bool high = a.adjacent ? i % 2 != 0 : i >= a.n_pair;
    const double *turn = AT(const double, x.turn) + 2 * f;
    t.other = a.adjacent ? i ^ 1 : high ? i - a.n_pair : i + a.n_pair;
    t.c = turn[0];
    t.s = high ? turn[1] : -turn[1];
    return t;
}

/* Mean and spread of a head's rotated queries. Grid: (dimensions, lanes, heads). */
KERNEL(128, 4) expect_query(const gpu_weigh_args &a)
{
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.y];
    const gpu_weigh_expected x = EXPECTED_OF(l);
    const int dim = a.part.dim, g = (int)blockIdx.z, i = (int)blockIdx.x;
    if (g >= x.n_group)
        return; /* the whole block */
    const expect_sums s = sums_of(x, dim, g);
    const expect_turn ti = turn_of(a, x, i);
    const double n = (double)x.count;
    if (TID == 0) {
        const double own = (double)s.first[i] + (double)s.sum[i] / n;
        const double other = (double)s.first[ti.other] + (double)s.sum[ti.other] / n;
        AT(float, x.mean)[(size_t)g * dim + i] = (float)(ti.c * own + ti.s * other);
    }
    for (int j = TID; x.square && j < dim; j += 128) {
        const expect_turn tj = turn_of(a, x, j);
        const double own = tj.c * spread_of(s, n, i, j) + tj.s * spread_of(s, n, i, tj.other);
        const double other =
            tj.c * spread_of(s, n, ti.other, j) + tj.s * spread_of(s, n, ti.other, tj.other);
        AT(float, x.spread)[((size_t)g * dim + i) * dim + j] = (float)(ti.c * own + ti.s * other);
    }
}

/* ---- the entries ---- */

DEV float finite_score(double x)
{
    const double most = 3.402823466385288598e38;
    return x > -most ? (float)(x < most ? x : most) : -3.402823466e38f;
}

/* A share of the dimensions of entry e: its product with the mean, and with what the spread makes
   of it. Four dimensions at a time. */
DEV float expect_part(const gpu_weigh_args &a, const gpu_weigh_expected &x, int g, const float *k,
                      int part, int n_part)
{
    const int dim = a.part.dim;
    const float *mean = AT(const float, x.mean) + (size_t)g * dim;
    const float *spread = AT(const float, x.spread) + (size_t)g * dim * dim;
    const float half = x.square ? 0.5f * x.scale : 0.0f;
    float sum = 0.0f;
    for (int d = 4 * part; d < dim; d += 4 * n_part) {
        float line[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        const int n = dim - d < 4 ? dim - d : 4;
        for (int j = 0; x.square && j < dim; j++) {
            UNROLL
            for (int i = 0; i < 4; i++)
                line[i] = fmaf(spread[(size_t)(d + (i < n ? i : 0)) * dim + j], k[j], line[i]);
        }
        for (int i = 0; i < n; i++)
            sum = fmaf(k[d + i], fmaf(half, line[i], mean[d + i]), sum);
    }
    return sum;
}

/* Grid: (parts of pages, lanes, heads). Shared: a part's floats, [128]. */
KERNEL(128, 4) expect_logit(const gpu_weigh_args &a)
{
    SHARED(smem);
    float *k = (float *)smem, *room = k + (a.n_entry * (a.part.dim + 1) + 3) / 4 * 4;
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.y];
    const gpu_weigh_expected x = EXPECTED_OF(l);
    const int per = a.page_len / a.n_entry, p = (int)blockIdx.x / per, g = (int)blockIdx.z;
    const int first = (int)blockIdx.x % per * a.n_entry, e = TID % a.n_entry;
    if (p >= l.n_page || g >= x.n_group)
        return; /* the whole block */
    const gpu_weigh_page page = AT(const gpu_weigh_page, l.pages)[p];
    decode_entries(a.part, AT(const uint8_t, page.page), a.page_len, first, page.n, a.n_entry, k);
    if (page.turn != 0)
        turn_entries(a, l, page, first, k);
    room[TID] = expect_part(a, x, g, k + e * (a.part.dim + 1), TID / a.n_entry, 128 / a.n_entry);
    sync_block();
    if (TID >= a.n_entry || first + e >= page.n)
        return;
    float sum = 0.0f;
    for (int i = 0; i < 128 / a.n_entry; i++)
        sum += room[i * a.n_entry + e];
    AT(float, x.logit)
    [(size_t)g * l.n + page.slot + first + e] = finite_score((double)(sum * x.scale));
}

/* Lengths of values; a.part is theirs. Grid: (parts of pages, lanes). */
KERNEL(128, 4) expect_norm(const gpu_weigh_args &a)
{
    SHARED(smem);
    float *v = (float *)smem;
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.y];
    const gpu_weigh_expected x = EXPECTED_OF(l);
    const int per = a.page_len / a.n_entry, p = (int)blockIdx.x / per;
    const int first = (int)blockIdx.x % per * a.n_entry;
    if (p >= l.n_page || x.norm == 0)
        return; /* the whole block */
    const gpu_weigh_page page = AT(const gpu_weigh_page, l.pages)[p];
    decode_entries(a.part, AT(const uint8_t, page.page), a.page_len, first, page.n, a.n_entry, v);
    for (int e = TID; e < a.n_entry && first + e < page.n; e += 128) {
        double sum = 0.0;
        for (int d = 0; d < a.part.dim; d++) {
            const double y = (double)v[e * (a.part.dim + 1) + d];
            sum += y * y;
        }
        AT(double, x.norm)[page.slot + first + e] = sqrt(sum);
    }
}

/* The logarithm of a head's sum over entries from begin on. Grid: (heads, lanes). */
KERNEL(256, 4) expect_down(const gpu_weigh_args &a)
{
    SHARED(smem);
    double *room = (double *)smem;
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.y];
    const gpu_weigh_expected x = EXPECTED_OF(l);
    const int g = (int)blockIdx.x;
    if (g >= x.n_group)
        return; /* the whole block */
    const float *logit = AT(const float, x.logit) + (size_t)g * l.n;
    double most = -3.402823466e38, sum = 0.0;
    for (int i = l.begin + TID; i < l.n; i += 256)
        most = (double)logit[i] > most ? (double)logit[i] : most;
    most = block_most(most, room);
    for (int i = l.begin + TID; i < l.n; i += 256)
        sum += exp((double)logit[i] - most);
    sum = tree_sum<256>(sum, room);
    if (TID == 0)
        AT(double, x.down)[g] = x.sum ? most + log(sum) : 0.0;
}

/* Grid: (entries / 256, lanes). */
KERNEL(256, 4) expect_score(const gpu_weigh_args &a)
{
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.y];
    const gpu_weigh_expected x = EXPECTED_OF(l);
    const int i = (int)blockIdx.x * 256 + TID;
    if (i >= l.n)
        return;
    const double *down = AT(const double, x.down);
    double all = (double)AT(const float, x.logit)[i] - down[0];
    for (int g = 1; g < x.n_group; g++) {
        const double y = (double)AT(const float, x.logit)[(size_t)g * l.n + i] - down[g];
        const double high = y > all ? y : all, low = y > all ? all : y;
        all = high + log1p(exp(low - high));
    }
    all -= log((double)x.n_group);
    if (x.epsilon > 0.0)
        all = log(exp(all) + x.epsilon);
    all += log((x.norm != 0 ? AT(const double, x.norm)[i] : 1.0) + 2.2250738585072014e-308);
    AT(float, l.raw)[i] = finite_score(x.share ? exp(all) : all);
}

#endif
