/*
 * soft.cuh - scores of entries by softmax weights, and what is made of choices that stay on the
 * device. Products are made twice, once for each row's maximum and sum and once for its weights, so
 * that no room for all of them is needed. Invariant: maxima and sums are of parts of pages, joined
 * in an order that the lane alone decides. Weights are added vector by vector.
 */
#ifndef PI_GPU_SOFT_CUH
#define PI_GPU_SOFT_CUH

#include "device/gpu/read.cuh"

/* enum kv_score_take: host files assert that they are these. */
enum { TAKE_MEAN, TAKE_LOGITS, TAKE_SUM, TAKE_MOST };

/* ---- weights ---- */

/* The entries that vector v sees. */
DEV int seen_by(const gpu_score_job &job, int v)
{
    return job.n_seen + (job.grows ? v / job.n_per_token : 0);
}

/* Where a block of soft_parts and soft_take has what it works on. */
struct soft_room {
    float *q, *scale, *product; /* [len][SCORE_VECTORS], [SCORE_VECTORS], [SCORE_VECTORS][n + 1] */
    float *x;                   /* of load_keys */
};

DEV soft_room soft_room_of(const gpu_score_args &a, void *smem)
{
    soft_room r;
    r.q = (float *)smem;
    r.scale = r.q + a.len * SCORE_VECTORS;
    r.product = r.scale + SCORE_VECTORS;
    r.x = r.product + SCORE_VECTORS * (a.n_entry + 1);
    return r;
}

template <int N>
DEV void put_products(const gpu_score_args &a, const soft_room &r, const float *k, int u0, int e)
{
    float s[N] = {};
    products<N>(k, r.q + u0, a.len, s);
    UNROLL
    for (int j = 0; j < N; j++)
        r.product[(u0 + j) * (a.n_entry + 1) + e] = within_range(s[j] * r.scale[u0 + j]);
}

/* Products of a part of a page with vectors v0 .. of it, finite. */
DEV void soft_products(const gpu_score_args &a, const gpu_score_job &job,
                       const gpu_weigh_page &page, int v0, const soft_room &r)
{
    const int n_entry = a.n_entry, len = a.len, e = TID % n_entry, n_share = 128 / n_entry;
    const int share = TID / n_entry, own = n_share <= 2 ? 8 : 1;
    const float *k = r.x + e * (len + 1);
    take_vectors(job, page, v0, len, r.q, r.scale);
    for (int u0 = share * own; u0 < SCORE_VECTORS; u0 += n_share * own) {
        if (own == 8)
            put_products<8>(a, r, k, u0, e);
        else
            put_products<1>(a, r, k, u0, e);
    }
    sync_block();
}

/* Maxima and sums of a part of a page. Shared: soft_room. Grid: (parts of pages, jobs). */
KERNEL(128, 4) soft_parts(const gpu_score_args &a)
{
    SHARED(smem);
    const gpu_score_job job = AT(const gpu_score_job, a.jobs)[blockIdx.y];
    const int per = a.page_len / a.n_entry, p = (int)blockIdx.x / per;
    const int first = (int)blockIdx.x % per * a.n_entry;
    if (p >= job.n_page)
        return; /* the whole block */
    const gpu_weigh_page page = score_page_of(a, job, p);
    const soft_room r = soft_room_of(a, smem);
    load_keys(a, job, page, first, r.x);
    for (int v0 = 0; v0 < job.n_vector; v0 += SCORE_VECTORS) {
        soft_products(a, job, page, v0, r);
        for (int u = WARP; u < SCORE_VECTORS && v0 + u < job.n_vector; u += 4) {
            const float *x = r.product + u * (a.n_entry + 1);
            const int seen = seen_by(job, v0 + u) - page.slot - first;
            int n = page.n - first < a.n_entry ? page.n - first : a.n_entry;
            n = seen < n ? seen : n;
            float top = NEG_INF, sum = 0.0f;
            for (int e = LANE; e < n; e += 32)
                top = f_max(top, x[e]);
            top = warp_max(top);
            for (int e = LANE; e < n; e += 32)
                sum += expf(x[e] - top);
            sum = warp_sum(sum);
            float *out = AT(float, job.parts) + ((size_t)blockIdx.x * job.n_vector + v0 + u) * 2;
            if (LANE == 0)
                out[0] = top, out[1] = sum;
        }
        sync_block();
    }
}

/* The same of all parts of a vector, and 1 / the sum. Shared: [128] f64, [128] f32. Grid: (vectors,
   jobs). */
KERNEL(128, 4) soft_rows(const gpu_score_args &a)
{
    SHARED(smem);
    double *sums = (double *)smem;
    float *room = (float *)(sums + 128);
    const gpu_score_job job = AT(const gpu_score_job, a.jobs)[blockIdx.y];
    const int v = (int)blockIdx.x, n = job.n_page * (a.page_len / a.n_entry);
    if (v >= job.n_vector)
        return; /* the whole block */
    const float *part = AT(const float, job.parts) + v * 2;
    float top = NEG_INF;
    for (int i = TID; i < n; i += 128)
        top = f_max(top, part[(size_t)i * job.n_vector * 2]);
    room[TID] = top;
    sync_block();
    for (int i = 0; i < 128; i++)
        top = f_max(top, room[i]);
    double sum = 0.0;
    for (int i = TID; i < n; i += 128) {
        const float *x = part + (size_t)i * job.n_vector * 2;
        sum += x[1] > 0.0f ? (double)x[1] * exp((double)x[0] - (double)top) : 0.0;
    }
    sum = tree_sum<128>(sum, sums);
    if (TID == 0) {
        float *out = AT(float, job.rows) + 2 * v;
        out[0] = top, out[1] = (float)(1.0 / sum);
    }
}

/* Means over vectors, or sums of products, of a part of a page. Shared: soft_room. Grid: (parts of
   pages, jobs). */
KERNEL(128, 4) soft_take(const gpu_score_args &a)
{
    SHARED(smem);
    const gpu_score_job job = AT(const gpu_score_job, a.jobs)[blockIdx.y];
    const int per = a.page_len / a.n_entry, p = (int)blockIdx.x / per;
    const int first = (int)blockIdx.x % per * a.n_entry;
    if (p >= job.n_page)
        return; /* the whole block */
    const gpu_weigh_page page = score_page_of(a, job, p);
    const soft_room r = soft_room_of(a, smem);
    const int slot = page.slot + first + TID;
    const bool has = TID < a.n_entry && first + TID < page.n;
    float sum = 0.0f;
    load_keys(a, job, page, first, r.x);
    for (int v0 = 0; v0 < job.n_vector; v0 += SCORE_VECTORS) {
        soft_products(a, job, page, v0, r);
        for (int u = 0; has && u < SCORE_VECTORS && v0 + u < job.n_vector; u++) {
            const float *row = AT(const float, job.rows) + 2 * (v0 + u);
            const float x = r.product[u * (a.n_entry + 1) + TID];
            if (slot >= seen_by(job, v0 + u))
                continue;
            const float w = expf(x - row[0]) * row[1];
            if (job.take == TAKE_MOST)
                sum = w > sum ? w : sum;
            else
                sum += job.take == TAKE_LOGITS ? x : w;
            if (job.kept != 0)
                AT(float, job.kept)[(size_t)(v0 + u) * job.n_seen + slot] = w;
        }
        sync_block();
    }
    if (!has || slot >= job.n_vote)
        return;
    if (job.take == TAKE_MEAN)
        sum /= (float)job.n_vector;
    sum = within_range(sum);
    AT(float, job.votes != 0 ? job.votes : job.out)[slot] = slot < job.sure ? sum : -NEG_INF;
}

/* Neighbours in the order of the text become one. Grid: (entries / 128, jobs). */
KERNEL(128, 4) soft_pool(const gpu_score_args &a)
{
    const gpu_score_job job = AT(const gpu_score_job, a.jobs)[blockIdx.y];
    const int i = (int)blockIdx.x * 128 + TID, n = job.n_vote;
    if (job.votes == 0 || i >= n)
        return;
    const int32_t *order = AT(const int32_t, job.order);
    const float *x = AT(const float, job.votes);
    const int begin = i - job.kernel / 2 > 0 ? i - job.kernel / 2 : 0;
    const int end = i - job.kernel / 2 + job.kernel < n ? i - job.kernel / 2 + job.kernel : n;
    float pooled = x[order != NULL ? order[begin] : begin];
    for (int j = begin + 1; j < end; j++) {
        const float y = x[order != NULL ? order[j] : j];
        pooled = !job.most ? pooled + y : y > pooled ? y : pooled;
    }
    AT(float, job.out)
    [order != NULL ? order[i] : i] = job.most ? pooled : pooled / (float)job.kernel;
}

/* ---- two lanes ---- */

/* The sum of a row's weights, with a maximum of all. */
DEV double weight_sum(const float *row, double shift, double top)
{
    return row != NULL ? exp((double)row[0] + shift - top) / (double)row[1] : 0.0;
}

/* A row of weights over a lane of the queries' own and over stored entries. Shared: [128] f64.
   Grid: (vectors, jobs). */
KERNEL(128, 4) asked(const gpu_asked_args &a)
{
    SHARED(smem);
    const gpu_asked_job job = AT(const gpu_asked_job, a.jobs)[blockIdx.y];
    const int v = (int)blockIdx.x;
    if (v >= job.n_vector)
        return; /* the whole block */
    const float *q = AT(const float, job.q) + (size_t)(v / job.n_group) * job.stride +
                     (size_t)(v % job.n_group) * a.dim;
    double centre = 0.0;
    for (int d = TID; job.centre != 0 && d < a.dim; d += 128)
        centre += (double)q[d] * (double)AT(const float, job.centre)[d];
    centre = tree_sum<128>(centre, (double *)smem) * (double)job.factor;
    if (TID != 0)
        return;
    const float *own = job.own != 0 ? AT(const float, job.own) + 2 * v : NULL;
    float *stored = AT(float, job.stored) + 2 * v;
    const float *guests = job.guests != 0 ? AT(const float, job.guests) + 2 * v : NULL;
    double top = (double)stored[0] + centre;
    top = own != NULL && (double)own[0] > top ? (double)own[0] : top;
    const double some = weight_sum(stored, centre, top), all = some + weight_sum(own, 0.0, top);
    if (job.missed != 0)
        AT(float, job.missed)[v] = (float)((some - weight_sum(guests, 0.0, top)) / all);
    else
        stored[1] = (float)(exp((double)stored[0] + centre - top) / all);
}

/* ---- one list of several ---- */

/* No rank yet. Grid: (entries / 256, jobs). */
KERNEL(256, 4) unite_clear(const gpu_chosen_args &a)
{
    const gpu_unite_job job = AT(const gpu_unite_job, a.jobs)[blockIdx.y];
    const int i = (int)blockIdx.x * 256 + TID;
    if (i < job.n)
        AT(float, job.key)[i] = -NEG_INF;
}

/* Where an entry of a list stands by its score. Keys are positive floats, which compare as whole
   numbers do. Grid: (entries / 256, lists, jobs). */
KERNEL(256, 4) unite_rank(const gpu_chosen_args &a)
{
    const gpu_unite_job job = AT(const gpu_unite_job, a.jobs)[blockIdx.z];
    const int i = (int)blockIdx.x * 256 + TID, h = (int)blockIdx.y;
    if (h >= job.n_list || i >= job.k)
        return;
    const float *score = AT(const float, AT(const gpu_at, job.score)[h]);
    const int32_t *list = AT(const int32_t, job.lists) + (size_t)h * job.k;
    const float own = score[list[i]];
    int rank = 0;
    for (int j = 0; j < job.k; j++) {
        const float x = score[list[j]];
        rank += x > own || (x == own && j < i);
    }
    atomic_min(AT(int32_t, job.key) + list[i], (int32_t)AS_U((float)(rank * job.n_list + h)));
}

/* ---- what was not read ---- */

/* The part of a head's weights that is read. Shared: [128] f64. Grid: (heads, jobs). */
KERNEL(128, 4) share_of(const gpu_chosen_args &a)
{
    SHARED(smem);
    const gpu_share_job job = AT(const gpu_share_job, a.jobs)[blockIdx.y];
    const int n_read = job.n_first + job.n_chosen + job.n_last;
    const float *w = AT(const float, job.weight) + (size_t)blockIdx.x * job.n;
    double sum = 0.0;
    for (int i = TID; i < n_read; i += 128) {
        const int slot = i < job.n_first ? i
                         : i < job.n_first + job.n_chosen
                             ? AT(const int32_t, job.chosen)[i - job.n_first] + job.n_first
                             : job.n - n_read + i;
        sum += (double)w[slot];
    }
    sum = tree_sum<128>(sum, (double *)smem);
    if (TID == 0)
        AT(float, job.out)[blockIdx.x] = (float)sum;
}

/* Outputs of a lane. Grid: (dimensions / 128, jobs). */
KERNEL(128, 4) blend(const gpu_chosen_args &a)
{
    const gpu_blend_job job = AT(const gpu_blend_job, a.jobs)[blockIdx.y];
    const int d = (int)blockIdx.x * 128 + TID;
    if (d >= a.dim)
        return;
    float sum = 0.0f;
    for (int i = 0; i < job.n_page; i++)
        sum += AT(const float, AT(const gpu_value_page, a.pages)[job.first + i].sum)[d];
    for (int g = 0; g < job.n_group; g++) {
        const float share = AT(const float, job.share)[g];
        float *out = AT(float, job.out) + g * a.dim + d;
        *out = share * *out + (1.0f - share) * (sum / (float)job.n);
    }
}

#endif
