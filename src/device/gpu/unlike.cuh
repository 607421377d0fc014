/*
 * unlike.cuh - votes less what other keys repeat (kv_weigh_unlike): cosines between the keys of a
 * lane, of which none is stored. Sums over entries are f64 in an order that their number alone
 * decides.
 */
#ifndef PI_GPU_UNLIKE_CUH
#define PI_GPU_UNLIKE_CUH

#include "device/gpu/keep.cuh"
#include "device/gpu/votes.cuh"

#define UNLIKE_OF(l) (*AT(const gpu_weigh_unlike, (l).w))

/* Keys by their length; those without one are 0. Grid: (parts of pages, lanes). Shared: a part's
   floats. */
KERNEL(128, 4) unlike_unit(const gpu_weigh_args &a)
{
    SHARED(smem);
    float *x = (float *)smem;
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.y];
    const int per = a.page_len / a.n_entry, p = (int)blockIdx.x / per, dim = a.part.dim;
    const int first = (int)blockIdx.x % per * a.n_entry;
    float *unit = AT(float, UNLIKE_OF(l).unit), *by = x + a.n_entry * (dim + 1);
    if (p >= l.n_page)
        return; /* the whole block */
    const gpu_weigh_page page = AT(const gpu_weigh_page, l.pages)[p];
    decode_entries(a.part, AT(const uint8_t, page.page), a.page_len, first, page.n, a.n_entry, x);
    if (page.turn != 0)
        turn_entries(a, l, page, first, x);
    for (int e = TID; e < a.n_entry; e += 128) {
        const float length = length_of(a, x, e, false);
        by[e] = length >= WEIGH_LEAST && length <= 3.402823466e38f ? length : 0.0f;
    }
    sync_block();
    for (int i = TID; i < a.n_entry * dim; i += 128) {
        const int e = i / dim, d = i % dim;
        if (first + e < page.n)
            unit[(size_t)(page.slot + first + e) * dim + d] =
                by[e] > 0.0f ? x[e * (dim + 1) + d] / by[e] : 0.0f;
    }
}

/* Grid: (parts of GPU_UNLIKE_PART entries, lanes). */
KERNEL(128, 8) unlike_part(const gpu_weigh_args &a)
{
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.y];
    const gpu_weigh_unlike u = UNLIKE_OF(l);
    const int first = (int)blockIdx.x * GPU_UNLIKE_PART, dim = a.part.dim;
    const int end = l.n - first < GPU_UNLIKE_PART ? l.n : first + GPU_UNLIKE_PART;
    for (int d = TID; first < l.n && d < dim; d += 128) {
        double sum = 0.0;
        for (int i = first; i < end; i++)
            sum += (double)AT(const float, u.unit)[(size_t)i * dim + d];
        AT(double, u.part)[(size_t)blockIdx.x * dim + d] = sum;
    }
}

/* Grid: lanes. */
KERNEL(128, 8) unlike_all(const gpu_weigh_args &a)
{
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.x];
    const gpu_weigh_unlike u = UNLIKE_OF(l);
    const int n_part = (l.n + GPU_UNLIKE_PART - 1) / GPU_UNLIKE_PART, dim = a.part.dim;
    for (int d = TID; d < dim; d += 128) {
        double sum = 0.0;
        for (int i = 0; i < n_part; i++)
            sum += AT(const double, u.part)[(size_t)i * dim + d];
        AT(double, u.all)[d] = sum;
    }
}

DEV double warp_sum_double(double x)
{
    for (int mask = 16; mask > 0; mask /= 2) {
        union {
            double f;
            uint32_t u[2];
        } v, w;
        v.f = x;
        w.u[0] = shfl(v.u[0], LANE ^ mask);
        w.u[1] = shfl(v.u[1], LANE ^ mask);
        x += w.f;
    }
    return x;
}

/* Of each key the sum of its cosines with all others: with their sum, less with itself. A warp has
   a key. Grid: (entries / 8, lanes). */
KERNEL(256, 4) unlike_mean(const gpu_weigh_args &a)
{
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.y];
    const gpu_weigh_unlike u = UNLIKE_OF(l);
    const int j = (int)blockIdx.x * 8 + WARP, dim = a.part.dim;
    const float *x = AT(const float, u.unit) + (size_t)j * dim;
    double sum = 0.0;
    for (int d = LANE; j < l.n && d < dim; d += 32)
        sum += (double)x[d] * (AT(const double, u.all)[d] - (double)x[d]);
    sum = warp_sum_double(sum);
    if (LANE == 0 && j < l.n) {
        AT(double, u.mean)[j] = sum;
        AT(int32_t, u.last)[j] = -1;
        AT(float, u.cosine)[j] = 0.0f;
    }
}

/* Loads 32 dimensions of a tile of keys; what is not there is 0. */
DEV void load_tile(const float *unit, int n, int dim, int first, int d0, float *tile)
{
    for (int i = TID; i < GPU_UNLIKE_TILE * 32; i += 256) {
        const int e = i / 32, d = i % 32;
        tile[e * 33 + d] =
            first + e < n && d0 + d < dim ? unit[(size_t)(first + e) * dim + d0 + d] : 0.0f;
    }
}

/* The cosines of a thread's 4 rows and 4 columns of a tile. */
DEV void tile_cosines(const float *unit, int n, int dim, int row0, int col0, float *rows,
                      float *cols, float *out)
{
    const int r = TID / 16 * 4, c = TID % 16 * 4;
    UNROLL
    for (int i = 0; i < 16; i++)
        out[i] = 0.0f;
    for (int d0 = 0; d0 < dim; d0 += 32) {
        sync_block();
        load_tile(unit, n, dim, row0, d0, rows);
        load_tile(unit, n, dim, col0, d0, cols);
        sync_block();
        for (int d = 0; d < 32; d++) {
            float x[4], y[4];
            UNROLL
            for (int i = 0; i < 4; i++)
                x[i] = rows[(r + i) * 33 + d], y[i] = cols[(c + i) * 33 + d];
            UNROLL
            for (int i = 0; i < 16; i++)
                out[i] = fmaf(x[i / 4], y[i % 4], out[i]);
        }
    }
}

/* The last entry that each of 64 is like, from the youngest backwards until all have theirs. Grid:
   (entries / 64, lanes). Shared: two tiles, candidates [64][16] and their cosines, a count. */
KERNEL(256, 2) unlike_last(const gpu_weigh_args &a)
{
    SHARED(smem);
    const int tile = GPU_UNLIKE_TILE;
    float *rows = (float *)smem, *cols = rows + tile * 33, *cosine = cols + tile * 33;
    int32_t *found = (int32_t *)(cosine + tile * 16), *left = found + tile * 16;
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.y];
    const gpu_weigh_unlike u = UNLIKE_OF(l);
    const int row0 = (int)blockIdx.x * tile, own = row0 + TID;
    if (row0 >= l.n || !u.drops)
        return; /* the whole block */
    bool done = TID >= tile || own >= l.n;
    for (int col0 = (l.n - 1) / tile * tile; col0 >= 0; col0 -= tile) {
        float out[16];
        tile_cosines(AT(const float, u.unit), l.n, a.part.dim, row0, col0, rows, cols, out);
        UNROLL
        for (int i = 0; i < 4; i++) {
            const int row = TID / 16 * 4 + i;
            int last = -1;
            float with = out[4 * i]; /* of column 0, with which the oldest is met */
            UNROLL
            for (int c = 0; c < 4; c++) {
                const int col = col0 + TID % 16 * 4 + c;
                const bool like = col < l.n && col != row0 + row && out[4 * i + c] > u.threshold;
                last = like ? col : last;
                with = like ? out[4 * i + c] : with;
            }
            found[row * 16 + TID % 16] = last;
            cosine[row * 16 + TID % 16] = with;
        }
        if (TID == 0)
            *left = 0;
        sync_block();
        int at = -1;
        for (int c = 15; !done && c >= 0; c--)
            if (found[TID * 16 + c] >= 0) {
                at = c;
                done = true;
                AT(int32_t, u.last)[own] = found[TID * 16 + c];
            }
        if (at >= 0 || (!done && col0 == 0))
            AT(float, u.cosine)[own] = cosine[TID * 16 + (at >= 0 ? at : 0)];
        if (!done)
            atomic_add((uint32_t *)left, 1u);
        sync_block();
        const bool ends = *left == 0;
        sync_block();
        if (ends)
            return; /* the whole block */
    }
}

/* Takes cosines that do not count off their columns, rows ascending. Grid: (entries / 256,
   lanes). */
KERNEL(256, 4) unlike_drop(const gpu_weigh_args &a)
{
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.y];
    const gpu_weigh_unlike u = UNLIKE_OF(l);
    const int j = (int)blockIdx.x * 256 + TID;
    if (j >= l.n)
        return;
    double sum = AT(double, u.mean)[j];
    for (int i = 0; u.drops && i < l.n; i++) {
        const int last = AT(const int32_t, u.last)[i];
        if (last == j || (last < 0 && u.quirk && j == 0 && i != 0))
            sum -= (double)AT(const float, u.cosine)[i];
    }
    AT(double, u.mean)[j] = sum / l.n;
}

/* The largest over 256 threads. room: [256]. All threads get it. */
DEV double block_most(double x, double *room)
{
    sync_block();
    room[TID] = x;
    sync_block();
    for (int d = 128; d > 0; d /= 2) {
        if (TID < d)
            room[TID] = room[TID + d] > room[TID] ? room[TID + d] : room[TID];
        sync_block();
    }
    return room[0];
}

/* Grid: lanes. */
KERNEL(256, 4) unlike_score(const gpu_weigh_args &a)
{
    SHARED(smem);
    double *room = (double *)smem;
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.x];
    const gpu_weigh_unlike u = UNLIKE_OF(l);
    const double *mean = AT(const double, u.mean);
    float *raw = AT(float, l.raw);
    double most = -1e300, sum = 0.0;
    for (int i = TID; i < l.n; i += 256)
        most = mean[i] > most ? mean[i] : most;
    most = block_most(most, room);
    for (int i = TID; i < l.n; i += 256)
        sum += exp(mean[i] - most);
    sum = tree_sum<256>(sum, room);
    for (int i = TID; i < l.n && i < u.votes.n_before; i += 256)
        raw[i] =
            (float)(u.lambda * (double)raw[i] - (1.0 - u.lambda) * (exp(mean[i] - most) / sum));
}

#endif
