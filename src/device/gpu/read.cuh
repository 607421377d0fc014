/*
 * read.cuh - scores of a lane's entries by vectors, the choice of a chunk's queries, and the index
 * of a page. The score of an entry is one chain of fused additions over its dimensions. It depends
 * on the vectors and its entry alone, of bounds on its page.
 */
#ifndef PI_GPU_READ_CUH
#define PI_GPU_READ_CUH

#include "device/gpu/keep.cuh"

/* enum kv_score_kind: host files assert that they are these. */
enum { SCORE_DOT, SCORE_COSINE, SCORE_UNIT8, SCORE_COLUMNS, SCORE_PROJ, SCORE_BOUNDS };
#define NOT_THERE 0xffffffffu
#define FLOAT_MOST 3.402823466e38f

/* A score within the range of floats; NaN is the least. */
DEV float within_range(float x)
{
    const float y = x < FLOAT_MOST ? x : FLOAT_MOST;
    return x == x && y > -FLOAT_MOST ? y : -FLOAT_MOST;
}

/* ---- the queries of a chunk ---- */

/* enum kv_pick: host files assert that they are these. */
enum { PICK_NONE, PICK_UNUSUAL, PICK_MEAN, PICK_HEADS, PICK_ALL, PICK_LARGE };

/* The token of sample j. */
DEV int64_t sampled(const gpu_pick &p, int j)
{
    return p.n_sample < p.n_tok ? (int64_t)j * p.n_tok / p.n_sample : j;
}

/* One query head of a lane. Shared: [8 + 1][dim] sums and the mean; of UNUSUAL also [n_tok]
   similarities, [n_tok] inverse lengths, [n] tokens. Grid: (heads of a group, picks). */
KERNEL(1024, 1) pick_head(const gpu_pick_args &a)
{
    SHARED(smem);
    const gpu_pick p = AT(const gpu_pick, a.picks)[blockIdx.y];
    const int g = (int)blockIdx.x, dim = a.dim;
    float *sum = (float *)smem, *mean = sum + 8 * dim, *like = mean + dim,
          *inverse = like + p.n_tok;
    int32_t *kept = (int32_t *)(inverse + p.n_tok);
    const float *q = AT(const float, p.q) + (size_t)g * dim;
    const bool is_mean = p.how == PICK_MEAN || p.how == PICK_HEADS;
    if (g >= p.n_group || (!is_mean && p.how != PICK_UNUSUAL))
        return; /* the whole block */
    const int n_sample = is_mean ? p.n_sample : p.n_tok;
    for (int i = TID; i < 8 * dim; i += 1024) {
        float s = 0.0f;
        for (int j = i / dim; j < n_sample; j += 8) {
            const int64_t t = is_mean ? sampled(p, j) : j;
            s += q[(size_t)t * p.stride + i % dim];
        }
        sum[i] = s;
    }
    sync_block();
    for (int d = TID; d < dim; d += 1024) {
        float s = 0.0f;
        for (int i = 0; i < 8; i++)
            s += sum[i * dim + d];
        mean[d] = s / (float)n_sample;
        if (is_mean)
            AT(float, p.unit)[g * dim + d] = mean[d] * p.factor;
    }
    if (is_mean)
        return; /* the whole block */
    sync_block();
    for (int t = WARP; t < p.n_tok; t += 32) {
        float dot = 0.0f, square = 0.0f;
        for (int d = LANE; d < dim; d += 32) {
            const float x = q[(size_t)t * p.stride + d];
            dot = fmaf(x, mean[d], dot);
            square = fmaf(x, x, square);
        }
        dot = warp_sum(dot), square = warp_sum(square);
        const float by = square > 0.0f ? 1.0f / sqrtf(square) : 0.0f, cosine = dot * by;
        if (LANE == 0) {
            inverse[t] = by;
            like[t] = fabsf(cosine) <= FLOAT_MOST ? cosine : 0.0f;
        }
    }
    sync_block();
    for (int t = TID; t < p.n_tok; t += 1024) {
        int rank = p.n < p.n_tok ? 0 : t;
        for (int i = 0; p.n < p.n_tok && i < p.n_tok; i++)
            rank += like[i] < like[t] || (like[i] == like[t] && i < t);
        if (rank < p.n)
            kept[rank] = t;
    }
    sync_block();
    for (int i = TID; i < p.n * dim; i += 1024) {
        const int t = kept[i / dim];
        const float x = q[(size_t)t * p.stride + i % dim];
        AT(float, p.unit)[(size_t)g * p.n * dim + i] = p.scaled ? x * inverse[t] : x;
    }
}

/* The mean over heads, each head's, or all queries. Grid: (numbers / 128, picks). */
KERNEL(128, 4) pick_join(const gpu_pick_args &a)
{
    const gpu_pick p = AT(const gpu_pick, a.picks)[blockIdx.y];
    const int i = (int)blockIdx.x * 128 + TID, n = p.n * a.dim;
    if (i >= n || p.how == PICK_LARGE)
        return;
    if (p.how == PICK_ALL) {
        const int v = i / a.dim, g = v % p.n_group;
        const int64_t t = sampled(p, v / p.n_group);
        AT(float, p.out)
        [i] = AT(const float, p.q)[(size_t)t * p.stride + g * a.dim + i % a.dim] * p.factor;
        return;
    }
    if (p.how == PICK_HEADS) {
        AT(float, p.out)[i] = AT(const float, p.unit)[i];
        return;
    }
    float sum = 0.0f;
    for (int g = 0; g < p.n_group; g++)
        sum += AT(const float, p.unit)[(size_t)g * n + i];
    AT(float, p.out)[i] = sum / (float)p.n_group;
}

/* A token's queries in their largest dimensions, to unit [n_tok][n_group][dim]. Shared: [dim] sums
   of moduli, [dim] whether they are among them. Grid: (tokens, picks). */
KERNEL(128, 4) pick_large(const gpu_pick_args &a)
{
    SHARED(smem);
    const gpu_pick p = AT(const gpu_pick, a.picks)[blockIdx.y];
    const int t = (int)blockIdx.x, dim = a.dim;
    float *length = (float *)smem;
    int32_t *has = (int32_t *)(length + dim);
    if (p.how != PICK_LARGE || t >= p.n_tok)
        return; /* the whole block */
    const float *q = AT(const float, p.q) + (size_t)t * p.stride;
    for (int d = TID; d < dim; d += 128) {
        float sum = 0.0f;
        for (int g = 0; g < p.n_group; g++)
            sum += fabsf(q[g * dim + d]);
        length[d] = sum;
    }
    sync_block();
    for (int d = TID; d < dim; d += 128) {
        int rank = 0;
        for (int i = 0; i < dim; i++)
            rank += length[i] > length[d] || (length[i] == length[d] && i < d);
        has[d] = rank < p.n_dim;
    }
    sync_block();
    for (int g = WARP; g < p.n_group; g += 4) {
        float part = 0.0f, all = 0.0f;
        for (int d = LANE; d < dim; d += 32) {
            const float x = fabsf(q[g * dim + d]);
            all += x;
            part += has[d] ? x : 0.0f;
        }
        part = warp_sum(part), all = warp_sum(all);
        const float by = part > 0.0f ? p.factor / sqrtf(part / all) : 0.0f;
        float *out = AT(float, p.unit) + (size_t)(t * p.n_group + g) * dim;
        for (int d = LANE; d < dim; d += 32)
            out[d] = has[d] ? q[g * dim + d] * by : 0.0f;
    }
}

/* The dimensions that some of those have, and further ones up to the number, ascending. Where there
   is one vector, it is their sum. Shared: [dim] whether it is used. Grid: picks. */
KERNEL(128, 4) pick_dims(const gpu_pick_args &a)
{
    SHARED(smem);
    const gpu_pick p = AT(const gpu_pick, a.picks)[blockIdx.x];
    const int dim = a.dim, n = p.n_tok * p.n_group;
    int32_t *used = (int32_t *)smem;
    if (p.how != PICK_LARGE)
        return; /* the whole block */
    for (int d = TID; d < dim; d += 128) {
        float sum = 0.0f;
        used[d] = 0;
        for (int v = 0; v < n; v++) {
            const float x = AT(const float, p.unit)[(size_t)v * dim + d];
            used[d] |= x != 0.0f;
            sum += x;
        }
        if (p.n == 1)
            AT(float, p.out)[d] = sum;
    }
    sync_block();
    if (TID != 0)
        return;
    int more = p.n_list, at = 0;
    for (int d = 0; d < dim; d++)
        more -= used[d];
    for (int d = 0; d < dim && at < p.n_list; d++) {
        if (!used[d] && more <= 0)
            continue;
        more -= !used[d];
        AT(int32_t, p.dims)[at++] = d;
    }
}

/* ---- vectors as keys meet them ---- */

/* Rotates x [dim] of shared memory as the groups of a part are, by 128 threads. */
DEV void rotate_groups(const gpu_part &part, float *x, bool back)
{
    const int n_group = part.dim / part.group;
    for (int i = WARP; i < n_group; i += 4) {
        float v[4];
        UNROLL
        for (int j = 0; j < 4; j++) {
            const int d = 32 * j + LANE;
            v[j] = d < part.group ? x[i * part.group + d] * wht_sign(d, back) : 0.0f;
        }
        wht_turn(v, part.group);
        UNROLL
        for (int j = 0; j < 4; j++) {
            const int d = 32 * j + LANE;
            if (d < part.group)
                x[i * part.group + d] = v[j] * wht_sign(d, !back) * part.wht_scale;
        }
    }
    sync_block();
}

/* The largest modulus of x [n], over 128 threads. room: [128] */
DEV float block_most(const float *x, int n, float *room)
{
    float most = 0.0f;
    for (int i = TID; i < n; i += 128)
        most = f_max(most, fabsf(x[i]));
    room[TID] = most;
    sync_block();
    for (int i = 0; i < 128; i++)
        most = f_max(most, room[i]);
    sync_block();
    return most;
}

/* The code of x: halves away from zero. */
DEV int code_of(float x, double inverse)
{
    const double y = (double)x * inverse;
    return (int)(y + (y < 0.0 ? -0.5 : 0.5));
}

/* Number i of x as keys of a kind meet it. */
DEV float met(const gpu_score_args &a, const gpu_score_job &job, const float *x, int i,
              double inverse)
{
    const int dim = a.k.dim;
    if (a.kind == SCORE_COLUMNS)
        return x[AT(const int32_t, job.dims)[i]];
    if (a.kind == SCORE_BOUNDS)
        return i < dim ? (x[i] < 0.0f ? x[i] : 0.0f) : (x[i - dim] < 0.0f ? 0.0f : x[i - dim]);
    if (a.kind == SCORE_UNIT8)
        return (float)code_of(x[i], inverse);
    if (a.kind != SCORE_PROJ)
        return x[i];
    float sum = 0.0f;
    for (int d = 0; d < dim; d++)
        sum = fmaf(AT(const float, job.matrix)[(size_t)i * dim + d], x[d], sum);
    return sum;
}

/* Page p of a job. */
DEV gpu_weigh_page score_page_of(const gpu_score_args &a, const gpu_score_job &job, int p)
{
    if (job.refs == 0)
        return AT(const gpu_weigh_page, job.pages)[p];
    const int slot = p * a.page_len, n = job.n_all - slot;
    const size_t page = (size_t)AT(const gpu_attend_ref, job.refs)[p].page;
    return {a.pool + page * a.stride, job.vectors, slot, n < a.page_len ? n : a.page_len};
}

/* A vector for a variant of pages. Shared: [dim] and [128] floats. Grid: (vectors, variants,
   jobs). */
KERNEL(128, 4) score_vectors(const gpu_score_args &a)
{
    SHARED(smem);
    float *x = (float *)smem, *room = x + a.k.dim;
    const gpu_score_job job = AT(const gpu_score_job, a.jobs)[blockIdx.z];
    const int v = (int)blockIdx.x, variant = (int)blockIdx.y, dim = a.k.dim;
    if (v >= job.n_vector || variant >= job.n_variant)
        return; /* the whole block */
    const bool all = job.mean && a.kind != SCORE_BOUNDS;
    const int first = all ? 0 : v, n = all ? job.n_q : 1;
    for (int d = TID; d < dim; d += 128) {
        float sum = 0.0f;
        for (int j = first; j < first + n; j++)
            sum += AT(const float, job.q)[(size_t)j * dim + d];
        x[d] = all ? sum * (1.0f / (float)n) : sum;
    }
    sync_block();
    const float *turn = AT(const float, job.turn) + (size_t)variant * a.n_pair * 2;
    for (int f = TID; variant > 0 && f < a.n_pair; f += 128) {
        float *p = x + (a.adjacent ? 2 * f : f), *q = p + (a.adjacent ? 1 : a.n_pair);
        const float re = *p, im = *q;
        *p = re * turn[2 * f] - im * turn[2 * f + 1];
        *q = re * turn[2 * f + 1] + im * turn[2 * f];
    }
    sync_block();
    if (a.turned)
        rotate_groups(a.k, x, false);
    const float most = a.kind == SCORE_UNIT8 ? block_most(x, dim, room) : 0.0f;
    const double inverse = most > 0.0f ? 127.0 / (double)most : 0.0;
    float *out =
        AT(float, job.vectors) + ((size_t)variant * job.n_vector + v) * (size_t)(a.len + 1);
    for (int i = TID; i < a.len; i += 128)
        out[i] = met(a, job, x, i, inverse);
    if (TID == 0)
        out[a.len] = a.kind == SCORE_UNIT8 ? most / 127.0f : 1.0f;
}

/* ---- scores ---- */

/* The keys of entries first .. of a page, or what stands for them: x [n_entry][len + 1]. */
DEV void load_keys(const gpu_score_args &a, const gpu_score_job &job, const gpu_weigh_page &page,
                   int first, float *x)
{
    const uint8_t *at = AT(const uint8_t, page.page);
    const int len = a.len, row = len + 1, n_entry = a.n_entry, dim = a.k.dim;
    if (a.kind == SCORE_DOT || a.kind == SCORE_COSINE) {
        entries_as_stored(a.k, at, a.page_len, first, page.n, n_entry, x);
        return;
    }
    if (a.kind == SCORE_COLUMNS && a.at.columns == NOT_THERE) {
        float *whole = x + n_entry * row;
        decode_entries(a.k, at, a.page_len, first, page.n, n_entry, whole);
        for (int i = TID; i < n_entry * len; i += 128)
            x[i / len * row + i % len] =
                whole[i / len * (dim + 1) + AT(const int32_t, job.dims)[i % len]];
        sync_block();
        return;
    }
    for (int i = TID; i < n_entry * len; i += 128) {
        const bool beside = a.kind == SCORE_COLUMNS;
        const int e = beside ? i % n_entry : i / len, d = beside ? i / n_entry : i % len;
        const int slot = first + e;
        float k = 0.0f;
        if (slot < page.n && beside)
            k = float_of((
                (const uint16_t
                     *)(at +
                        a.at.columns))[(size_t)AT(const int32_t, job.dims)[d] * a.page_len + slot]);
        else if (slot < page.n && a.kind == SCORE_PROJ)
            k = float_of(((const uint16_t *)(at + a.at.proj))[(size_t)slot * len + d]);
        else if (slot < page.n)
            k = (float)((int)at[a.at.unit + (size_t)slot * a.unit_dim + d] - 128);
        x[e * row + d] = k;
    }
    sync_block();
}

enum { SCORE_VECTORS = 16 }; /* of a block at once */

/* An entry's products with N of the vectors q [len][SCORE_VECTORS]: s [N], zeros before. */
template <int N> DEV void products(const float *x, const float *q, int len, float *s)
{
    UNROLL4
    for (int d = 0; d < len; d++) {
        const float k = x[d];
        float y[N];
        if (N % 4 == 0)
            for (int j = 0; j < N / 4; j++)
                ((float4 *)y)[j] = ((const float4 *)(q + d * SCORE_VECTORS))[j];
        else
            for (int j = 0; j < N; j++)
                y[j] = q[d * SCORE_VECTORS + j];
        UNROLL
        for (int j = 0; j < N; j++)
            s[j] = fmaf(k, y[j], s[j]);
    }
}

/* The largest of the first n. */
template <int N>
DEV float most_of(const float *x, const float *q, const float *scale, int len, int n, float top)
{
    float s[N] = {};
    products<N>(x, q, len, s);
    UNROLL
    for (int j = 0; j < N; j++)
        if (j < n)
            top = f_max(top, within_range(s[j] * scale[j]));
    return top;
}

/* Vectors v0 .. of those that meet a page: q [len][SCORE_VECTORS], and their numbers. */
DEV void take_vectors(const gpu_score_job &job, const gpu_weigh_page &page, int v0, int len,
                      float *q, float *scale)
{
    const float *from = AT(const float, page.turn) + (size_t)v0 * (len + 1);
    const int n = job.n_vector - v0 < SCORE_VECTORS ? job.n_vector - v0 : SCORE_VECTORS;
    for (int i = TID; i < SCORE_VECTORS * (len + 1); i += 128) {
        const int v = i / (len + 1), d = i % (len + 1);
        const float y = v < n ? from[i] : 0.0f;
        if (d < len)
            q[d * SCORE_VECTORS + v] = y;
        else
            scale[v] = y;
    }
    sync_block();
}

/* Entries of a page with all vectors, 16 at a time. A thread has an entry and some of the vectors.
   Shared: the keys, [len][16] vectors, [128] scores. Grid: (parts of pages, jobs). */
KERNEL(128, 4) score_page(const gpu_score_args &a)
{
    SHARED(smem);
    const gpu_score_job job = AT(const gpu_score_job, a.jobs)[blockIdx.y];
    const int per = a.page_len / a.n_entry, p = (int)blockIdx.x / per, len = a.len;
    const int first = (int)blockIdx.x % per * a.n_entry, n_entry = a.n_entry;
    if (p >= job.n_page)
        return; /* the whole block */
    const gpu_weigh_page page = score_page_of(a, job, p);
    float *q = (float *)smem, *best = q + len * SCORE_VECTORS, *scale = best + 128;
    float *x = scale + SCORE_VECTORS;
    load_keys(a, job, page, first, x);
    const int e = TID % n_entry, n_share = 128 / n_entry, share = TID / n_entry;
    const int own = n_share <= 2 ? 8 : n_share <= 4 ? 4 : 1;
    float top = NEG_INF;
    for (int v0 = 0; v0 < job.n_vector; v0 += SCORE_VECTORS) {
        const int n = job.n_vector - v0 < SCORE_VECTORS ? job.n_vector - v0 : SCORE_VECTORS;
        take_vectors(job, page, v0, len, q, scale);
        for (int u0 = share * own; u0 < SCORE_VECTORS; u0 += n_share * own) {
            const float *k = x + e * (len + 1);
            if (own == 8)
                top = most_of<8>(k, q + u0, scale + u0, len, n - u0, top);
            else if (own == 4)
                top = most_of<4>(k, q + u0, scale + u0, len, n - u0, top);
            else
                top = most_of<1>(k, q + u0, scale + u0, len, n - u0, top);
        }
        sync_block();
    }
    best[TID] = top;
    sync_block();
    if (share > 0 || first + e >= page.n)
        return;
    for (int i = 1; i < n_share; i++)
        top = f_max(top, best[i * n_entry + e]);
    const uint8_t *at = AT(const uint8_t, page.page);
    const uint32_t factor = a.kind == SCORE_COSINE  ? a.at.norm
                            : a.kind == SCORE_UNIT8 ? a.at.unit_scale
                                                    : NOT_THERE;
    if (factor != NOT_THERE)
        top *= ((const float *)(at + factor))[first + e];
    const int slot = page.slot + first + e;
    AT(float, job.out)[slot] = slot < job.sure ? top : -NEG_INF;
}

/* The least and largest of each dimension of a page's n entries: bounds [2][dim]. x: [n_entry][dim
   + 1]. */
DEV void take_bounds(const gpu_part &k, const uint8_t *page, int page_len, int n, int n_entry,
                     float *bounds, float *x)
{
    const int dim = k.dim;
    for (int first = 0; first < n; first += n_entry) {
        decode_entries(k, page, page_len, first, n, n_entry, x);
        for (int d = TID; d < dim; d += 128)
            for (int e = 0; e < n_entry && first + e < n; e++) {
                const float y = x[e * (dim + 1) + d];
                if (first + e == 0)
                    bounds[d] = bounds[dim + d] = y;
                bounds[d] = y < bounds[d] ? y : bounds[d];
                bounds[dim + d] = y > bounds[dim + d] ? y : bounds[dim + d];
            }
        sync_block();
    }
}

/* BOUNDS: a page by all vectors, four at a time. Shared: bounds [2 dim], [4], keys.
   Grid: (pages, jobs). */
KERNEL(128, 4) score_bounds(const gpu_score_args &a)
{
    SHARED(smem);
    const gpu_score_job job = AT(const gpu_score_job, a.jobs)[blockIdx.y];
    if ((int)blockIdx.x >= job.n_page)
        return; /* the whole block */
    const gpu_weigh_page page = score_page_of(a, job, (int)blockIdx.x);
    const uint8_t *at = AT(const uint8_t, page.page);
    float *bounds = (float *)smem, *room = bounds + 2 * a.k.dim, *x = room + 4;
    if (a.at.bounds != NOT_THERE && page.n == a.page_len) {
        for (int i = TID; i < 2 * a.k.dim; i += 128)
            bounds[i] = ((const float *)(at + a.at.bounds))[i];
        sync_block();
    } else {
        take_bounds(a.k, at, a.page_len, page.n, a.n_entry, bounds, x);
    }
    float top = NEG_INF, sum = 0.0f;
    for (int v0 = 0; v0 < job.n_vector; v0 += 4) {
        float s = 0.0f;
        if (v0 + WARP < job.n_vector) {
            const float *q = AT(const float, page.turn) + (size_t)(v0 + WARP) * (a.len + 1);
            for (int i = LANE; i < a.len; i += 32)
                s = fmaf(bounds[i], q[i], s);
        }
        s = warp_sum(s);
        if (LANE == 0)
            room[WARP] = within_range(s);
        sync_block();
        for (int j = 0; j < 4 && v0 + j < job.n_vector; j++) {
            top = f_max(top, room[j]);
            sum += room[j];
        }
        sync_block();
    }
    if (job.mean)
        top = sum * (1.0f / (float)job.n_vector);
    for (int e = TID; e < page.n; e += 128)
        AT(float, job.out)[page.slot + e] = page.slot + e < job.sure ? top : -NEG_INF;
}

/* ---- the index ---- */

DEV uint32_t index_half(float x)
{
    return half_of(within(x, 65504.0f));
}

DEV uint32_t bf16_of(float x)
{
    const uint32_t b = AS_U(x);
    return (b + 0x7fff + (b >> 16 & 1)) >> 16;
}

DEV void index_unit(const gpu_index_args &a, const gpu_index_row &row, const float *x, float most,
                    double length)
{
    uint8_t *page = AT(uint8_t, row.page), *code = page + a.at.unit + (size_t)row.slot * a.unit_dim;
    const double inverse = most > 0.0f ? 127.0 / (double)most : 0.0;
    for (int d = TID; d < a.unit_dim; d += 128)
        code[d] = (uint8_t)(d < a.k.dim ? code_of(x[d], inverse) + 128 : 128);
    if (TID == 0)
        ((float *)(page + a.at.unit_scale))[row.slot] =
            most > 0.0f ? (float)((double)most / length / 127.0) : 0.0f;
}

/* What belongs to an entry: a block for each. Shared: [128] doubles, [128] floats, [dim + 1].
   Grid: rows. */
KERNEL(128, 4) index_entries(const gpu_index_args &a)
{
    SHARED(smem);
    double *sums = (double *)smem;
    float *room = (float *)(sums + 128), *x = room + 128;
    const gpu_index_row row = AT(const gpu_index_row, a.rows)[blockIdx.x];
    uint8_t *page = AT(uint8_t, row.page);
    const int dim = a.k.dim, slot = row.slot;
    decode_entries(a.k, page, a.page_len, slot, slot + 1, 1, x);
    if (a.at.norm != NOT_THERE || a.at.unit != NOT_THERE) {
        double square = 0.0;
        for (int d = TID; d < dim; d += 128)
            square += (double)x[d] * (double)x[d];
        const double length = sqrt(tree_sum<128>(square, sums));
        if (a.at.norm != NOT_THERE && TID == 0)
            ((float *)(page + a.at.norm))[slot] =
                length > 0.0
                    ? (float)(1.0 / length < 3.402823466e38 ? 1.0 / length : 3.402823466e38)
                    : 0.0f;
        if (a.at.unit != NOT_THERE)
            index_unit(a, row, x, block_most(x, dim, room), length);
    }
    for (int d = TID; a.at.columns != NOT_THERE && d < dim; d += 128)
        ((uint16_t *)(page + a.at.columns))[(size_t)d * a.page_len + slot] =
            (uint16_t)index_half(x[d]);
    for (int i = TID; a.at.proj != NOT_THERE && i < a.index_dim; i += 128) {
        const float *m = AT(const float, a.matrix) + ((size_t)row.lane * a.index_dim + i) * dim;
        float sum = 0.0f;
        for (int d = 0; d < dim; d++)
            sum = fmaf(m[d], x[d], sum);
        ((uint16_t *)(page + a.at.proj))[(size_t)slot * a.index_dim + i] =
            (uint16_t)index_half(sum);
    }
    if (a.norms == 0 && row.norm == 0)
        return; /* the whole block */
    sync_block();
    decode_entries(a.value, page, a.page_len, slot, slot + 1, 1, x);
    double sum = 0.0;
    for (int d = TID; d < a.value.dim; d += 128)
        sum += (double)fabsf(x[d]);
    sum = tree_sum<128>(sum, sums);
    if (TID == 0)
        *AT(uint16_t, row.norm != 0 ? row.norm : a.norms + blockIdx.x * 2) =
            (uint16_t)bf16_of((float)sum);
}

/* What belongs to a full page. Shared: [2 dim] floats, keys or values. Grid: rows. */
KERNEL(128, 4) index_pages(const gpu_index_args &a)
{
    SHARED(smem);
    uint8_t *page = AT(uint8_t, AT(const gpu_index_row, a.rows)[blockIdx.x].page);
    float *bounds = (float *)smem, *x = bounds + 2 * a.k.dim;
    if (a.at.bounds != NOT_THERE) {
        take_bounds(a.k, page, a.page_len, a.page_len, a.n_entry, bounds, x);
        for (int i = TID; i < 2 * a.k.dim; i += 128)
            ((float *)(page + a.at.bounds))[i] = bounds[i];
        sync_block();
    }
    for (int first = 0; a.at.value_sum != NOT_THERE && first < a.page_len; first += a.n_entry) {
        float *out = (float *)(page + a.at.value_sum);
        decode_entries(a.value, page, a.page_len, first, a.page_len, a.n_entry, x);
        for (int d = TID; d < a.value.dim; d += 128)
            for (int e = 0; e < a.n_entry; e++) {
                const float y = x[e * (a.value.dim + 1) + d];
                out[d] = first + e == 0 ? y : out[d] + y;
            }
        sync_block();
    }
}

#endif
