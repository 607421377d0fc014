/*
 * rows.cuh - what happens to a row between two products: a block a row, in most kernels. Sums are
 * those of a block (block_sum): each thread's terms in ascending order, then a tree, so that the
 * bits of a row depend on it alone. device.h says what each body does. They share these sums, so
 * they are one file.
 */
#ifndef PI_GPU_ROWS_CUH
#define PI_GPU_ROWS_CUH

#include "device/gpu/gpu.h"

enum {
    ROW_SMEM = 64 * 4, /* bytes of shared memory that block_sum needs */
    X_MATRIX = 64,     /* f16 of packed activations: 8 tokens x 8 columns (matmul.cuh) */
    WIDE_ROW = 512     /* threads of kernels that take a whole row, eight columns a thread */
};

DEV float warp_sum(float v)
{
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2)
        v += shfl_xor(v, mask);
    return v;
}

/* The sum of all threads' numbers, for all of them. room [32] is free again behind it. */
DEV float block_sum(float v, float *room, int n_thread)
{
    v = warp_sum(v);
    if (LANE == 0)
        room[WARP] = v;
    sync_block();
    float sum = 0.0f;
    for (int i = 0; i < n_thread / 32; i++)
        sum += room[i];
    sync_block();
    return sum;
}

/* The sum of the numbers of N threads, all of the block's, in a tree, for all of them. room:
   [N]. */
template <int N> DEV double tree_sum(double v, double *room)
{
    sync_block();
    room[TID] = v;
    sync_block();
    for (int d = N / 2; d > 0; d /= 2) {
        if (TID < d)
            room[TID] += room[TID + d];
        sync_block();
    }
    return room[0];
}

/* The largest of all threads' numbers, as block_sum. */
DEV float block_max(float v, float *room, int n_thread)
{
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2)
        v = f_max(v, shfl_xor(v, mask));
    if (LANE == 0)
        room[WARP] = v;
    sync_block();
    for (int i = 0; i < n_thread / 32; i++)
        v = f_max(v, room[i]);
    sync_block();
    return v;
}

/* 1 / sqrt(mean of squares + eps) of a row. */
DEV float norm_factor(const float *x, int n, float eps, float *room, int n_thread)
{
    float square = 0.0f;
    for (int i = TID; i < n; i += n_thread)
        square = fmaf(x[i], x[i], square);
    return 1.0f / sqrtf(block_sum(square, room, n_thread) / (float)n + eps);
}

/* 2^-e with which a row's largest magnitude comes to lie in [2^13, 2^14), and 2^e. */
DEV float row_power(float most, bool inverse)
{
    int e = (int)(AS_U(most) >> 23 & 255) - 127 - 13;
    e = e < -126 ? -126 : e > 114 ? 0 : e;
    return AS_F((uint32_t)(127 + (inverse ? e : -e)) << 23);
}

/* ---- eight columns of a row, from a multiple of 8 on ---- */

/* Whether both ends of eight columns are where 16 bytes may be read at once. */
DEV bool in_eights(const float *row, int n)
{
    return n % 8 == 0 && (size_t)row % 16 == 0;
}

/* Behind the last column are zeros. */
DEV void load_eight(float *v, const float *row, int at, int n)
{
    if (in_eights(row, n) && at < n) {
        const uint4 a = *(const uint4 *)(row + at), b = *(const uint4 *)(row + at + 4);
        v[0] = AS_F(a.x), v[1] = AS_F(a.y), v[2] = AS_F(a.z), v[3] = AS_F(a.w);
        v[4] = AS_F(b.x), v[5] = AS_F(b.y), v[6] = AS_F(b.z), v[7] = AS_F(b.w);
        return;
    }
    UNROLL
    for (int i = 0; i < 8; i++)
        v[i] = at + i < n ? row[at + i] : 0.0f;
}

DEV void store_eight(const float *v, float *row, int at, int n)
{
    if (in_eights(row, n)) {
        *(uint4 *)(row + at) = make_uint4(AS_U(v[0]), AS_U(v[1]), AS_U(v[2]), AS_U(v[3]));
        *(uint4 *)(row + at + 4) = make_uint4(AS_U(v[4]), AS_U(v[5]), AS_U(v[6]), AS_U(v[7]));
        return;
    }
    UNROLL
    for (int i = 0; i < 8; i++)
        if (at + i < n)
            row[at + i] = v[i];
}

DEV float most_of_eight(const float *v, float most)
{
    UNROLL
    for (int i = 0; i < 8; i++)
        most = f_max(most, fabsf(v[i]));
    return most;
}

DEV float square_of_eight(const float *v, float sum)
{
    UNROLL
    for (int i = 0; i < 8; i++)
        sum = fmaf(v[i], v[i], sum);
    return sum;
}

/* The packed form of row t, by all threads of a block. x: where each thread wrote its own eights of
   columns, TID, TID + n_thread and so on; most: the largest magnitude that it wrote. x NULL: there
   is no more than one eight a thread, `held`, zeros behind the last column. room as of
   block_max. */
DEV void pack_row(const gpu_packed &to, int t, const float *x, const float *held, int n, float most,
                  float *room, int n_thread)
{
    if (to.out == 0)
        return;
    most = block_max(most, room, n_thread);
    const float scale = row_power(most, false);
    const int n8 = to.n_block * 32;
    const int side = to.n_side, eight = t / 8;
    uint16_t *out = AT(uint16_t, to.out) + t % 8 * 8 +
                    ((size_t)(eight / side) * n8 * side + eight % side * 8) * X_MATRIX;
    if (TID == 0)
        AT(float, to.x_scale)[t] = row_power(most, true);
    for (int k8 = TID; k8 < n8; k8 += n_thread) {
        float v[8];
        if (x != NULL)
            load_eight(v, x, k8 * 8, n);
        UNROLL
        for (int i = 0; i < 8; i++)
            v[i] = x != NULL ? v[i] * scale : k8 == TID && k8 * 8 < n ? held[i] * scale : 0.0f;
        *(uint4 *)(out + ((size_t)(k8 / 8) * side * 8 + k8 % 8) * X_MATRIX) =
            make_uint4(h2(v[0], v[1]), h2(v[2], v[3]), h2(v[4], v[5]), h2(v[6], v[7]));
    }
}

/* Within a few units of the last place, which packing rounds away. */
DEV float sigmoid(float x)
{
    return reciprocal(1.0f + ex2(-1.4426950408889634f * x));
}

DEV float activate(int fn, float x, float up)
{
    if (fn == 2) { /* of gpt-oss */
        float g = x < 7.0f ? x : 7.0f, u = up < 7.0f ? up : 7.0f;
        u = u > -7.0f ? u : -7.0f;
        return g * sigmoid(1.702f * g) * (u + 1.0f);
    }
    if (fn == 1) /* x / 2 (1 + tanh(u)) = x sigmoid(2 u) */
        return x * sigmoid(2.0f * 0.7978845608f * fmaf(0.044715f * x, x * x, x)) * up;
    return x * sigmoid(x) * up;
}

/* What the query of a position is multiplied by. */
DEV float temperature(float scale, int len, int pos)
{
    return 1.0f + scale * logf((float)(pos / len) + 1.0f);
}

/* ---- the stream ---- */

KERNEL(WIDE_ROW, 1) between(const gpu_between_args &a)
{
    SHARED(smem);
    float *room = (float *)smem;
    const int n = a.n, t = (int)blockIdx.x;
    float v[8], d[8], by[8], early[8]; /* of the norm, which no kernel writes */
    GRID_GO();
    if (a.norm != 0)
        load_eight(early, AT(const float, a.norm), TID * 8, n);
    GRID_WAIT();
    const int from = a.index != 0 ? AT(const int32_t, a.index)[t] : t;
    float *x = AT(float, a.x) + (size_t)from * n, *h = AT(float, a.h) + (size_t)t * n;
    float *out = AT(float, a.out) + (size_t)t * n;
    float factor = 1.0f, square = 0.0f, most = 0.0f;
    const bool before = a.leave && (a.bias != 0 || a.post_norm != 0);
    for (int i = TID * 8; before && i < n; i += WIDE_ROW * 8) {
        load_eight(d, h, i, n);
        if (a.bias != 0) {
            load_eight(by, AT(const float, a.bias), i, n);
            UNROLL
            for (int e = 0; e < 8; e++)
                d[e] += by[e];
            store_eight(d, h, i, n);
        }
        square = square_of_eight(d, square);
    }
    if (before && a.post_norm != 0)
        factor = 1.0f / sqrtf(block_sum(square, room, WIDE_ROW) / (float)n + a.eps);
    square = 0.0f;
    for (int i = TID * 8; i < n; i += WIDE_ROW * 8) {
        load_eight(v, x, i, n);
        if (a.leave) {
            load_eight(d, h, i, n);
            if (a.post_norm != 0)
                load_eight(by, AT(const float, a.post_norm), i, n);
            UNROLL
            for (int e = 0; e < 8; e++)
                v[e] += a.post_norm != 0 ? d[e] * factor * by[e] : d[e];
            store_eight(v, x, i, n);
        }
        square = square_of_eight(v, square);
    }
    if (a.norm == 0)
        return;
    factor = 1.0f / sqrtf(block_sum(square, room, WIDE_ROW) / (float)n + a.eps);
    for (int i = TID * 8; i < n; i += WIDE_ROW * 8) {
        if (n > WIDE_ROW * 8) { /* else they are still there */
            load_eight(v, x, i, n);
            load_eight(early, AT(const float, a.norm), i, n);
        }
        UNROLL
        for (int e = 0; e < 8; e++)
            v[e] = v[e] * factor * early[e];
        most = most_of_eight(v, most);
        store_eight(v, out, i, n);
    }
    pack_row(a.packed, t, n > WIDE_ROW * 8 ? out : NULL, v, n, most, room, WIDE_ROW);
}

/* Grid: (parts of a row, rows). */
KERNEL(256, 4) cap(const gpu_cap_args &a)
{
    float *x = AT(float, a.x) + (size_t)blockIdx.y * a.n;
    for (int i = (int)blockIdx.x * 256 + TID; i < a.n; i += (int)gridDim.x * 256)
        x[i] = a.cap * tanhf(x[i] / a.cap);
}

KERNEL(256, 4) centre(const gpu_centre_args &a)
{
    float *k = AT(float, a.k) + (size_t)blockIdx.x * a.n;
    for (int i = TID; i < a.n; i += 256)
        k[i] -= AT(const float, a.mean)[i];
}

/* Grid: rows, as of all that pack rows. */
KERNEL(1024, 1) gate(const gpu_gate_args &a)
{
    enum { THREADS = 1024 };
    SHARED(smem);
    const int t = (int)blockIdx.x;
    float *x = AT(float, a.gate) + (size_t)t * a.n, v[8], up[8], most = 0.0f;
    GRID_GO();
    GRID_WAIT();
    UNROLL2
    for (int i = TID * 8; i < a.n; i += THREADS * 8) {
        load_eight(v, x, i, a.n);
        load_eight(up, AT(const float, a.up) + (size_t)t * a.n, i, a.n);
        UNROLL
        for (int e = 0; e < 8; e++)
            v[e] = activate(a.fn, v[e], up[e]);
        most = most_of_eight(v, most);
        store_eight(v, x, i, a.n);
    }
    pack_row(a.packed, t, x, NULL, a.n, most, (float *)smem, THREADS);
}

/* ---- attention ---- */

/* Turns pairs of a head by cosines and sines; a warp's lanes share it. */
DEV void turn_head(float *head, const float *cs, int n_pair, bool adjacent)
{
    for (int i = LANE; i < n_pair; i += 32) {
        float *first = adjacent ? head + 2 * i : head + i;
        float *second = adjacent ? first + 1 : first + n_pair;
        float x = *first, y = *second;
        *first = x * cs[2 * i] - y * cs[2 * i + 1];
        *second = x * cs[2 * i + 1] + y * cs[2 * i];
    }
}

/* A head of queries or keys, by a warp, from `from` to x. before, where there is one, gets a copy
   of what is turned. Addresses that are 0: that step is not done. N numbers of a lane come
   together. */
template <int N>
DEV void head_row(float *x, const float *from, int dim, const float *bias, const float *norm,
                  float eps, float *before, const float *cs, int n_pair, bool adjacent)
{
    float square = 0.0f;
    for (int i0 = LANE; i0 < dim; i0 += 32 * N) {
        float v[N];
        UNROLL
        for (int j = 0; j < N; j++)
            v[j] = i0 + 32 * j < dim ? ld_far(from + i0 + 32 * j) : 0.0f;
        UNROLL
        for (int j = 0; j < N; j++) {
            const int i = i0 + 32 * j;
            if (i >= dim)
                continue;
            if (bias != 0)
                v[j] += bias[i];
            x[i] = v[j];
            square = fmaf(v[j], v[j], square);
        }
    }
    square = warp_sum(square);
    const float factor = 1.0f / sqrtf(square / (float)dim + eps);
    for (int i = LANE; i < dim; i += 32) {
        if (norm != 0)
            x[i] = x[i] * factor * norm[i];
        if (before != 0)
            before[i] = x[i];
    }
    sync_warp();
    if (cs != 0)
        turn_head(x, cs, n_pair, adjacent);
    sync_warp();
}

/* A head of queries or keys, by a warp, at its own place; values have a bias alone. Grid: (heads of
   all three / 4, rows). */
KERNEL(128, 4) qkv(const gpu_qkv_args &a)
{
    const int t = (int)blockIdx.y, dim = a.dim_k, n_all = a.n_head + a.n_head_kv;
    const int head = (int)blockIdx.x * 4 + WARP;
    if ((int)blockIdx.x * 4 >= n_all) { /* values */
        float *v = AT(float, a.v) + (size_t)t * a.n_v;
        const int part = (int)blockIdx.x - (n_all + 3) / 4;
        for (int i = part * 128 + TID; i < a.n_v; i += 128 * ((int)gridDim.x - (n_all + 3) / 4))
            v[i] += AT(const float, a.bv)[i];
        return;
    }
    const bool query = head < a.n_head;
    const int h = query ? head : head - a.n_head, n = query ? a.n_head : a.n_head_kv;
    const size_t at = ((size_t)t * n + h) * dim;
    float *x = AT(float, query ? a.q : a.k) + at;
    const float *bias = AT(const float, query ? a.bq : a.bk);
    float *before = AT(float, query ? a.q_pre : a.k_pre);
    if (head >= n_all)
        return;
    head_row<8>(x, query && a.q_gate != 0 ? AT(const float, a.q_gate) + 2 * at : x, dim,
                bias != 0 ? bias + h * dim : bias, AT(const float, query ? a.q_norm : a.k_norm),
                a.eps, before != 0 ? before + at : before,
                AT(const float, a.cs) + (a.cs != 0 ? (size_t)t * a.n_pair * 2 : 0), a.n_pair,
                a.adjacent);
    if (query && a.temp_scale != 0.0f) {
        const float by = temperature(a.temp_scale, a.temp_len, AT(const int32_t, a.pos)[t]);
        for (int i = LANE; i < dim; i += 32)
            x[i] *= by;
    }
}

KERNEL(WIDE_ROW, 1) out_gate(const gpu_out_args &a)
{
    SHARED(smem);
    const int t = (int)blockIdx.x, dim = a.dim;
    const float *from = AT(const float, a.q_gate) + (size_t)t * 2 * a.n_head * dim;
    float *x = AT(float, a.x) + (size_t)t * a.n, v[8], most = 0.0f;
    GRID_GO();
    GRID_WAIT();
    for (int i = TID * 8; i < a.n; i += WIDE_ROW * 8) {
        load_eight(v, x, i, a.n);
        for (int e = i; e < i + 8 && e < a.n_head * dim; e++)
            v[e - i] *= sigmoid(from[e / dim * 2 * dim + dim + e % dim]);
        most = most_of_eight(v, most);
        store_eight(v, x, i, a.n);
    }
    pack_row(a.packed, t, x, NULL, a.n, most, (float *)smem, WIDE_ROW);
}

/* ---- a mixture of experts ---- */

/* The first of the largest. */
DEV int largest(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

DEV void softmax_row(float *x, int n)
{
    float most = x[0], sum = 0.0f;
    for (int i = 1; i < n; i++)
        most = f_max(most, x[i]);
    for (int i = 0; i < n; i++) {
        x[i] = expf(x[i] - most);
        sum += x[i];
    }
    for (int i = 0; i < n; i++)
        x[i] *= 1.0f / sum;
}

/* Experts of groups that are not among the best rank last: a group counts by its two best ranks. */
DEV void leave_groups_out(const gpu_moe_args &a, float *rank)
{
    const int n = a.n_expert / a.n_group;
    float score[64];
    uint64_t stays = 0;
    for (int g = 0; g < a.n_group; g++) {
        const float *x = rank + g * n;
        int first = largest(x, n);
        float second = NEG_INF;
        for (int i = 0; i < n; i++)
            second = i != first && x[i] > second ? x[i] : second;
        score[g] = n == 1 ? x[first] : x[first] + second;
    }
    for (int i = 0; i < a.n_group_used; i++) {
        int best = largest(score, a.n_group);
        stays |= (uint64_t)1 << best;
        score[best] = NEG_INF;
    }
    for (int e = 0; e < a.n_expert; e++)
        rank[e] = (stays >> (e / n) & 1) != 0 ? rank[e] : NEG_INF;
}

/* One thread chooses a token's experts; the block makes the shared expert's weight. Grid:
   tokens. */
KERNEL(128, 4) moe_choose(const gpu_moe_args &a)
{
    SHARED(smem);
    const int t = (int)blockIdx.x, n = a.n_expert;
    float *logit = AT(float, a.logit) + (size_t)t * n, *rank = AT(float, a.rank) + (size_t)t * n;
    int32_t *chosen = AT(int32_t, a.chosen) + (size_t)t * a.n_used;
    float *weight = AT(float, a.weight) + (size_t)t * a.n_used;
    if (TID == 0) {
        for (int e = 0; e < n && a.b_router != 0; e++)
            logit[e] += AT(const float, a.b_router)[e];
        if (a.gating == 1)
            softmax_row(logit, n);
        for (int e = 0; e < n; e++) {
            if (a.gating == 2)
                logit[e] = sigmoid(logit[e]);
            rank[e] = a.b_choice != 0 ? logit[e] + AT(const float, a.b_choice)[e] : logit[e];
        }
        if (a.n_group > 1)
            leave_groups_out(a, rank);
        for (int i = 0; i < a.n_used; i++) {
            chosen[i] = largest(rank, n);
            weight[i] = logit[chosen[i]];
            rank[chosen[i]] = NEG_INF;
        }
        if (a.gating == 3)
            softmax_row(weight, a.n_used);
        float sum = 0.0f;
        for (int i = 0; i < a.n_used; i++)
            sum += weight[i];
        for (int i = 0; i < a.n_used; i++)
            weight[i] = (a.norm ? weight[i] / f_max(sum, 6.103515625e-5f) : weight[i]) * a.scale;
    }
    if (a.shared_gate == 0)
        return;
    const float *h = AT(const float, a.h) + (size_t)t * a.n;
    float sum = 0.0f;
    for (int i = TID; i < a.n; i += 128)
        sum = fmaf(AT(const float, a.shared_gate)[i], h[i], sum);
    sum = block_sum(sum, (float *)smem, 128);
    if (TID == 0)
        AT(float, a.shared_weight)[t] = sigmoid(sum);
}

/* Gives each choice its row among those of its expert, tokens in order. padded [e] is where its
   activations begin if each expert's take whole eights of tokens. One block. */
KERNEL(1024, 1) moe_sort(const gpu_moe_args &a)
{
    const int32_t *chosen = AT(const int32_t, a.chosen);
    int32_t *first = AT(int32_t, a.first), n_row = a.n_tok * a.n_used;
    for (int e = TID; e < a.n_expert; e += 1024) {
        int n = 0;
        for (int i = 0; i < n_row; i++)
            n += chosen[i] == e;
        first[e + 1] = n;
    }
    sync_block();
    if (TID == 0) {
        int sum = 0, padded = 0, n_busy = 0;
        for (int e = 0; e < a.n_expert; e++) {
            int n = first[e + 1];
            AT(int32_t, a.padded)[e] = padded;
            if (n > 0)
                AT(int32_t, a.busy)[n_busy++] = e;
            sum += n, padded += (n + 7) / 8 * 8;
            first[e + 1] = sum;
        }
        first[0] = 0;
        *AT(int32_t, a.n_busy) = n_busy;
    }
    sync_block();
    for (int e = TID; e < a.n_expert; e += 1024) {
        int at = first[e];
        for (int i = 0; i < n_row; i++)
            if (chosen[i] == e) {
                AT(int32_t, a.row)[i] = at;
                AT(int32_t, a.token)[at++] = i / a.n_used;
            }
    }
}

KERNEL(256, 4) moe_gather(const gpu_moe_args &a)
{
    const int r = (int)blockIdx.x, from = AT(const int32_t, a.token)[r];
    for (int i = TID; i < a.n; i += 256)
        AT(float, a.x)[(size_t)r * a.n + i] = AT(const float, a.h)[(size_t)from * a.n + i];
}

/* The expert of a row: the last of those with rows whose first is not behind it. */
DEV int expert_of(const int32_t *first, const int32_t *busy, int n_busy, int row)
{
    int lo = 0, hi = n_busy - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (first[busy[mid]] <= row)
            lo = mid;
        else
            hi = mid - 1;
    }
    return busy[lo];
}

/* Grid: (rows, slabs), or (rows of all experts). */
KERNEL(WIDE_ROW, 1) pack_rows(const gpu_pack_args &a)
{
    SHARED(smem);
    GRID_GO();
    GRID_WAIT();
    int from = (int)(blockIdx.y * a.n_tok + blockIdx.x),
        to = (int)(blockIdx.y * a.x_first + blockIdx.x);
    if (a.busy != 0) {
        const int e = expert_of(AT(const int32_t, a.first), AT(const int32_t, a.busy),
                                *AT(const int32_t, a.n_busy), from);
        to = AT(const int32_t, a.padded)[e] + from - AT(const int32_t, a.first)[e];
    }
    const float *x = AT(const float, a.x) + (size_t)from * a.n_col;
    float most = 0.0f, v[8];
    for (int i = TID * 8; i < a.n_col; i += WIDE_ROW * 8) {
        load_eight(v, x, i, a.n_col);
        most = most_of_eight(v, most);
    }
    pack_row(a.packed, to, x, NULL, a.n_col, most, (float *)smem, WIDE_ROW);
}

KERNEL(256, 4) moe_hidden(const gpu_moe_args &a)
{
    const int r = (int)blockIdx.x,
              e = expert_of(AT(const int32_t, a.first), AT(const int32_t, a.busy),
                            *AT(const int32_t, a.n_busy), r);
    float *gate = AT(float, a.gate) + (size_t)r * a.n;
    const float *up = AT(const float, a.up) + (size_t)r * a.n;
    for (int i = TID; i < a.n; i += 256) {
        float g = gate[i], u = up[i];
        if (a.b_gate != 0)
            g += AT(const float, a.b_gate)[(size_t)e * a.n + i];
        if (a.b_up != 0)
            u += AT(const float, a.b_up)[(size_t)e * a.n + i];
        gate[i] = activate(a.fn, g, u);
    }
}

KERNEL(256, 4) moe_sum(const gpu_moe_args &a)
{
    const int t = (int)blockIdx.x;
    const int32_t *row = AT(const int32_t, a.row) + (size_t)t * a.n_used;
    const int32_t *chosen = AT(const int32_t, a.chosen) + (size_t)t * a.n_used;
    const float *weight = AT(const float, a.weight) + (size_t)t * a.n_used;
    float *h = AT(float, a.h) + (size_t)t * a.n;
    const float by = a.shared_weight != 0 ? AT(const float, a.shared_weight)[t] : 1.0f;
    for (int i = TID; i < a.n; i += 256) {
        float sum = 0.0f;
        for (int j = 0; j < a.n_used; j++) {
            float y = AT(const float, a.x)[(size_t)row[j] * a.n + i];
            if (a.b_down != 0)
                y += AT(const float, a.b_down)[(size_t)chosen[j] * a.n + i];
            sum += weight[j] * y;
        }
        h[i] = a.shared ? sum + h[i] * by : sum;
    }
}

/* ---- gated delta nets ---- */

struct delta_len {
    size_t key, value, mix;
};
DEV delta_len delta_len_of(const gpu_delta_args &a)
{
    delta_len l;
    l.key = (size_t)a.n_key * a.dim;
    l.value = (size_t)a.n_value * a.dim;
    l.mix = 2 * l.key + l.value;
    return l;
}

/* Rows of u and z apart, where a file has them together, and the gates. Grid: tokens. */
KERNEL(128, 4) delta_in(const gpu_delta_args &a)
{
    const delta_len l = delta_len_of(a);
    const int t = (int)blockIdx.x, share = a.n_value / a.n_key;
    const size_t shared = l.value / a.n_key, part = 2 * (size_t)a.dim + 2 * shared;
    const float *row = AT(const float, a.c) + (size_t)t * (l.mix + l.value);
    float *u = AT(float, a.u) + (size_t)t * l.mix, *z = AT(float, a.z) + (size_t)t * l.value;
    for (size_t i = TID; a.mixed && i < l.mix + l.value; i += 128) {
        size_t h = i / part, at = i % part, dim = (size_t)a.dim;
        float x = row[i];
        if (at < dim)
            u[h * dim + at] = x;
        else if (at < 2 * dim)
            u[l.key + h * dim + at - dim] = x;
        else if (at < 2 * dim + shared)
            u[2 * l.key + h * shared + at - 2 * dim] = x;
        else
            z[h * shared + at - 2 * dim - shared] = x;
    }
    for (int h = TID; h < a.n_value; h += 128) {
        float *beta = AT(float, a.beta) + (size_t)t * a.n_value + h;
        float *decay = AT(float, a.decay) + (size_t)t * a.n_value + h;
        if (a.mixed_gates) {
            const float *from = AT(const float, a.beta_alpha) + (size_t)t * 2 * a.n_value +
                                h / share * 2 * share + h % share;
            *beta = from[0];
            *decay = from[share];
        }
        double x = (double)*decay + (double)AT(const float, a.dt)[h];
        double softplus = x > 20.0 ? x : log1p(exp(x));
        *beta = (float)(1.0 / (1.0 + exp(-(double)*beta)));
        *decay = (float)exp((double)AT(const float, a.a)[h] * softplus);
    }
}

/* A thread has a channel, over all tokens of an item. Grid: (channels / 128, items). */
KERNEL(128, 4) delta_conv(const gpu_delta_args &a)
{
    const delta_len l = delta_len_of(a);
    const gpu_delta_item item = AT(const gpu_delta_item, a.items)[blockIdx.y];
    const size_t ch = (size_t)blockIdx.x * 128 + TID;
    const int n_past = a.n_conv - 1;
    if (ch >= l.mix)
        return;
    const float *w = AT(const float, a.w) + ch * a.n_conv;
    const float *x = AT(const float, a.u) + (size_t)item.row0 * l.mix + ch;
    float *out = AT(float, a.c) + (size_t)item.row0 * l.mix + ch;
    float *past = AT(float, item.past) + ch;
    for (int t = 0; t < item.n_tok; t++) {
        float s = 0.0f;
        for (int j = 0; j < a.n_conv; j++) {
            int at = t - n_past + j;
            s = fmaf(w[j], at < 0 ? past[(size_t)(n_past + at) * l.mix] : x[(size_t)at * l.mix], s);
        }
        out[(size_t)t * l.mix] = s * sigmoid(s);
    }
    for (int j = 0; j < n_past; j++) { /* from what lies further on */
        int at = item.n_tok - n_past + j;
        past[(size_t)j * l.mix] =
            at < 0 ? past[(size_t)(j + item.n_tok) * l.mix] : x[(size_t)at * l.mix];
    }
}

/* A warp makes a key head's q and k of length 1. Grid: (key heads / 4, tokens). */
KERNEL(128, 4) delta_unit(const gpu_delta_args &a)
{
    const delta_len l = delta_len_of(a);
    const int t = (int)blockIdx.y, h = (int)blockIdx.x * 4 + WARP;
    const bool is = h < a.n_key;
    float *q = AT(float, a.c) + (size_t)t * l.mix + (size_t)(is ? h : 0) * a.dim, *k = q + l.key;
    float qq = 0.0f, kk = 0.0f, kq = 0.0f;
    for (int i = LANE; i < a.dim; i += 32) {
        qq = fmaf(q[i], q[i], qq);
        kk = fmaf(k[i], k[i], kk);
    }
    const float by_q = 1.0f / sqrtf(warp_sum(qq) + a.eps),
                by_k = 1.0f / sqrtf(warp_sum(kk) + a.eps);
    for (int i = LANE; is && i < a.dim; i += 32) {
        q[i] *= by_q;
        k[i] *= by_k;
        kq = fmaf(k[i], q[i], kq);
    }
    kq = warp_sum(kq);
    if (is && LANE == 0)
        AT(float, a.kq)[(size_t)t * a.n_key + h] = kq;
}

/* A thread has a column of a head's matrix, over all tokens of an item, one after the other. What
   is read takes the value's place. Grid: (columns / 64, value heads, items). */
KERNEL(64, 4) delta_turn(const gpu_delta_args &a)
{
    const delta_len l = delta_len_of(a);
    const gpu_delta_item item = AT(const gpu_delta_item, a.items)[blockIdx.z];
    const int j = (int)blockIdx.x * 64 + TID, head = (int)blockIdx.y;
    const int key = a.tiled ? head % a.n_key : head / (a.n_value / a.n_key);
    const size_t matrix = (size_t)((a.dim + 15) / 16) * 16 * a.dim;
    if (j >= a.dim)
        return;
    float *s =
        AT(float, item.matrix) + (size_t)head * matrix + (size_t)(j / 16) * a.dim * 16 + j % 16;
    const float scale = 1.0f / sqrtf((float)a.dim);
    for (int t = item.row0; t < item.row0 + item.n_tok; t++) {
        const float *q = AT(const float, a.c) + (size_t)t * l.mix + (size_t)key * a.dim;
        const float *k = q + l.key;
        float *v = AT(float, a.c) + (size_t)t * l.mix + 2 * l.key + (size_t)head * a.dim + j;
        const float decay = AT(const float, a.decay)[(size_t)t * a.n_value + head];
        const float beta = AT(const float, a.beta)[(size_t)t * a.n_value + head];
        const float kq = AT(const float, a.kq)[(size_t)t * a.n_key + key];
        float sk = 0.0f, sq = 0.0f;
        for (int i = 0; i < a.dim; i++) {
            sk = fmaf(s[(size_t)i * 16], k[i], sk);
            sq = fmaf(s[(size_t)i * 16], q[i], sq);
        }
        const float d = beta * (*v - decay * sk);
        for (int i = 0; i < a.dim; i++)
            s[(size_t)i * 16] = fmaf(k[i], d, decay * s[(size_t)i * 16]);
        *v = scale * fmaf(kq, d, decay * sq);
    }
}

/* A warp has a value head. Grid: (value heads / 4, tokens). */
KERNEL(128, 4) delta_out(const gpu_delta_args &a)
{
    const delta_len l = delta_len_of(a);
    const int t = (int)blockIdx.y, h = (int)blockIdx.x * 4 + WARP;
    const bool is = h < a.n_value;
    const size_t at = (size_t)(is ? h : 0) * a.dim;
    const float *o = AT(const float, a.c) + (size_t)t * l.mix + 2 * l.key + at;
    float *z = AT(float, a.z) + (size_t)t * l.value + at, square = 0.0f;
    for (int i = LANE; i < a.dim; i += 32)
        square = fmaf(o[i], o[i], square);
    const float factor = 1.0f / sqrtf(warp_sum(square) / (float)a.dim + a.eps);
    for (int i = LANE; is && i < a.dim; i += 32)
        z[i] = z[i] * sigmoid(z[i]) * (o[i] * factor * AT(const float, a.norm)[i]);
}

/* ---- latent attention ---- */

KERNEL(256, 2) latent_low(const gpu_latent_args &a)
{
    SHARED(smem);
    float *low = AT(float, a.low) + (size_t)blockIdx.x * a.n_query;
    const float factor = norm_factor(low, a.n_query, a.eps, (float *)smem, 256);
    for (int i = TID; i < a.n_query; i += 256)
        low[i] = low[i] * factor * AT(const float, a.query_a_norm)[i];
}

/* The lane's vector of a token, and its heads: what is rotated goes to the query, the rest to where
   the next product reads it. Grid: (1 + heads / 4, tokens). */
KERNEL(128, 4) latent_in(const gpu_latent_args &a)
{
    SHARED(smem);
    const int t = (int)blockIdx.y, n = a.dim_key, n_rot = a.n_rot;
    const float *cs = AT(const float, a.cs) + (size_t)t * a.n_pair * 2;
    if (blockIdx.x == 0) {
        const float *raw = AT(const float, a.raw) + (size_t)t * a.dim_k;
        float *k = AT(float, a.k) + (size_t)t * a.dim_k;
        const float factor = norm_factor(raw, a.dim_v, a.eps, (float *)smem, 128);
        for (int i = TID; i < a.dim_k; i += 128) {
            k[i] = i < n_rot ? raw[a.dim_v + i]
                             : raw[i - n_rot] * factor * AT(const float, a.latent_norm)[i - n_rot];
            if (a.k_pre != 0)
                AT(float, a.k_pre)[(size_t)t * a.dim_k + i] = k[i];
            if (a.wants_v && i >= n_rot)
                AT(float, a.v)[(size_t)t * a.dim_v + i - n_rot] = k[i];
        }
        sync_block();
        if (WARP == 0)
            turn_head(k, cs, a.n_pair, a.adjacent);
        return;
    }
    const int h = ((int)blockIdx.x - 1) * 4 + WARP;
    const bool is = h < a.n_head;
    const float *head =
        AT(const float, a.head) + ((size_t)t * a.n_head + (is ? h : 0)) * (n + n_rot);
    float *q = AT(float, a.q) + ((size_t)t * a.n_head + (is ? h : 0)) * a.dim_k;
    float *att = AT(float, a.att) + ((size_t)(is ? h : 0) * a.n_tok + t) * n;
    for (int i = LANE; is && i < n; i += 32)
        att[i] = head[i];
    for (int i = LANE; is && i < n_rot; i += 32) {
        q[i] = head[n + i];
        if (a.q_pre != 0)
            AT(float, a.q_pre)[((size_t)t * a.n_head + h) * a.dim_k + i] = q[i];
    }
    sync_warp();
    if (is)
        turn_head(q, cs, a.n_pair, a.adjacent);
}

/* Grid: (heads, tokens). */
KERNEL(128, 4) latent_query(const gpu_latent_args &a)
{
    const size_t at = ((size_t)blockIdx.y * a.n_head + blockIdx.x) * a.dim_k;
    float *q = AT(float, a.q) + at;
    for (int i = TID; a.q_pre != 0 && i < a.dim_v; i += 128)
        AT(float, a.q_pre)[at + a.n_rot + i] = q[a.n_rot + i];
    if (a.temp_scale == 0.0f)
        return;
    sync_block();
    const float by = temperature(a.temp_scale, a.temp_len, AT(const int32_t, a.pos)[blockIdx.y]);
    for (int i = TID; i < a.dim_k; i += 128)
        q[i] *= by;
}

/* What attention gave, head by head, to where queries were. Grid: (heads, tokens). */
KERNEL(128, 4) latent_gather(const gpu_latent_args &a)
{
    const int h = (int)blockIdx.x, t = (int)blockIdx.y;
    const float *att = AT(const float, a.att) + ((size_t)t * a.n_head + h) * a.dim_v;
    float *q = AT(float, a.q) + ((size_t)h * a.n_tok + t) * a.dim_v;
    for (int i = TID; i < a.dim_v; i += 128)
        q[i] = att[i];
}

#endif
