/*
 * attend.cuh - softmax attention over lanes of pages of any storage type, for any number of rows,
 * with the same bits for a row whatever rows are beside it and however a prompt is cut.
 *
 * attend_part takes any type and size: a block has 16 rows of a call and a chunk of its pages.
 * Entries become f16 in shared memory, [8 dimensions][64 entries][16 bytes]: eight entries beside
 * each other are a matrix of ldmatrix, plain for keys, transposed for values, and no bank is hit
 * twice. attend_few.cuh and attend_many.cuh have the frequent types and sizes, with the same bits.
 * attend_decode.cuh has their sizes with any other type or length of pages, attend_wide.cuh and
 * attend_tall.cuh other sizes. For the frequent types' sake the dimensions of a product may come in
 * another order (slot_dim).
 *
 * Here a page has 64 entries. Where pages of the store are shorter, as many of them as have 64 are
 * one page, from the lane's first on (gpu_attend_job.per). Of a lane with a window each is one.
 *
 * The arithmetic, for a row and the pages of a lane in order:
 *   x = scale * (q . k)                                   the dot by mma, dimensions ascending
 *   x = cap * tanh(x / cap) where there is a cap, then (x + ln(count)) * log2 e
 *   m' = max(m, x of visible), c = 2^(m - m'), p = f16(2^(x - m')), 0 where not visible
 *   o = o c + p v, l = l c + p 1                          by mma, 16 entries at a time, ascending
 * A chunk of pages begins with m = -inf, l = 0, o = 0. Chunks are joined in order, from the sink
 * (its logit, 1, 0), or (-inf, 0, 0):
 *   M' = max(M, m), L' = fma(l, 2^(m - M'), L 2^(M - M')), O' likewise.
 * A number of a type with codes is f16(scale * f16(its code's)). What a row does not see adds
 * exactly nothing, be it entries, pages or chunks. Where chunks begin depends on a page's place in
 * its lane alone: in a lane with a window on its first position.
 */
#ifndef PI_GPU_ATTEND_CUH
#define PI_GPU_ATTEND_CUH

#include "device/gpu/rows.cuh"
#include "device/gpu/store.cuh"

enum { TILE = 64 /* entries, at most */, ROWS = 16 };
#define LOG2E 1.44269504f
#define ONES 0x3c003c00u

BOTH int up16(int n)
{
    return (n + 15) / 16 * 16;
}

DEV float finite_of(float m)
{
    return m == NEG_INF ? 0.0f : m;
}

/* First page of chunk c: 2 pages each, then 4 from page 16, 8 from page 64, 16 from page 256 on. */
BOTH int chunk_first(int c)
{
    return c < 8    ? 2 * c
           : c < 20 ? 16 + 4 * (c - 8)
           : c < 44 ? 64 + 8 * (c - 20)
                    : 256 + 16 * (c - 44);
}

/* The pages of chunk i of a call. */
DEV void chunk_pages(const gpu_attend_job &job, int i, int *first, int *end)
{
    if (job.chunks != 0) {
        *first = AT(const int32_t, job.chunks)[i];
        *end = AT(const int32_t, job.chunks)[i + 1];
        return;
    }
    *first = chunk_first(job.chunk0 + i);
    *end = chunk_first(job.chunk0 + i + 1);
    *first = *first < job.first ? job.first : *first;
    *end = *end < job.end ? *end : job.end;
}

/* Page i of a call, as the store has it. */
DEV gpu_attend_ref page_ref(const gpu_attend_job &job, int i)
{
    const bool guest = i < job.guests.n;
    const int at = guest ? i : i - job.guests.n, n = guest ? job.guests.n : job.own.n;
    gpu_attend_ref ref = AT(const gpu_attend_ref, guest ? job.guests.refs : job.own.refs)[at];
    if (at == n - 1)
        ref.n = guest ? job.guests.last_n : job.own.last_n;
    return ref;
}

/* Number s of the short pages that page p is; of no entries where there is none. */
DEV gpu_attend_ref short_ref(const gpu_attend_job &job, int p, int s)
{
    gpu_attend_ref ref = {};
    if (s < job.per && p * job.per + s < job.guests.n + job.own.n)
        ref = page_ref(job, p * job.per + s);
    return ref;
}

/* Positions of a page's entries; NULL: every row sees every entry. */
DEV const int32_t *page_positions(const gpu_attend_job &job, int i)
{
    if (i >= job.first + job.n_low && i < job.high)
        return NULL;
    const int at = i < job.first + job.n_low ? i - job.first : job.n_low + i - job.high;
    return AT(const int32_t, job.pos) + (size_t)at * TILE;
}

DEV int variant_of(const gpu_attend_job &job, int32_t delta)
{
    int v = 0;
    while (v < job.n_variant - 1 && AT(const int32_t, job.delta)[v] != delta)
        v++;
    return v;
}

/* Which dimension slot c of a product is: so that a word of a page, 4 codes of 8 bits or 16 of 2
   bits, is a lane's part of one product of tensor cores, or of four. */
BOTH int slot_dim(int order, int c)
{
    const int s = c / 16, t = c % 8 / 2, i = c % 2 + c % 16 / 8 * 2;
    if (order == GPU_ORDER_BYTES)
        return 16 * s + 4 * t + i;
    if (order == GPU_ORDER_BITS)
        return 16 * (s / 4 * 4 + t) + s % 4 / 2 + 8 * (s % 2) + 2 * i;
    return c;
}

/* References of pages to the lists that stay. Grid: patches. */
KERNEL(128, 4) attend_refs(const gpu_attend_args &a)
{
    const gpu_attend_patch patch = AT(const gpu_attend_patch, a.patches)[blockIdx.x];
    for (int i = TID; i < patch.n; i += 128)
        AT(uint4, patch.to)[i] = AT(const uint4, patch.from)[i];
}

/* Meets the threads of a warp, or of a block. */
template <int N> DEV void sync_of(void)
{
    if (N == 32)
        sync_warp();
    else
        sync_block();
}

/* Rotates the groups of a vector in shared memory, or back, by N threads: a warp, or a block of
   128. */
template <int N> DEV void wht_shared(float *x, int dim, int group, float scale, bool inverse)
{
    const int id = N == 32 ? LANE : TID;
    for (int i = id; i < dim; i += N)
        x[i] *= wht_sign(i % group, inverse);
    for (int h = 1; h < group; h *= 2) {
        sync_of<N>();
        for (int p = id; p < dim / 2; p += N) {
            const int i = p / h * 2 * h + p % h;
            const float a = x[i], b = x[i + h];
            x[i] = a + b;
            x[i + h] = a - b;
        }
    }
    sync_of<N>();
    for (int i = id; i < dim; i += N)
        x[i] *= wht_sign(i % group, !inverse) * scale;
    sync_of<N>();
}

/* A row of queries of a variant: turned to where pages of a delta have keys, rotated as these are
   stored, f16 times a power of two. Grid: (variants * rows, calls). */
KERNEL(128, 4) attend_queries(const gpu_attend_args &a)
{
    SHARED(smem);
    float *x = (float *)smem, *tops = x + a.row_k;
    const gpu_attend_job job = AT(const gpu_attend_job, a.jobs)[blockIdx.y];
    const int n_row = job.n_tok * job.n_group, n_pad = up16(n_row), dim = a.dim_k, dim16 = a.row_k;
    const int variant = (int)blockIdx.x / n_pad, row = (int)blockIdx.x % n_pad;
    if (variant >= job.n_variant)
        return;
    const bool is = row < n_row;
    const float *q = AT(const float, job.q) + (size_t)(is ? row / job.n_group : 0) * job.q_stride +
                     (size_t)(is ? row % job.n_group : 0) * dim;
    for (int i = TID; i < dim16; i += 128)
        x[i] = is && i < dim ? q[i] : 0.0f;
    sync_block();
    if (variant > 0 && WARP == 0)
        turn_head(x, AT(const float, job.turn) + (size_t)variant * a.n_pair * 2, a.n_pair,
                  a.adjacent);
    sync_block();
    if (a.k.wht_scale != 0.0f)
        wht_shared<128>(x, dim, a.k.group, a.k.wht_scale, false);
    float top = 0.0f;
    for (int i = TID; i < dim; i += 128)
        top = f_max(top, fabsf(x[i]));
    top = warp_max(top);
    if (LANE == 0)
        tops[WARP] = top;
    sync_block();
    for (int i = 0; i < 4; i++)
        top = f_max(top, tops[i]);
    const float by = row_power(top, false);
    uint32_t *out = AT(uint32_t, job.packed) + ((size_t)variant * n_pad + row) * (dim16 / 2);
    for (int i = TID; i < dim16 / 2; i += 128)
        out[i] = h2(x[slot_dim(a.order, 2 * i)] * by, x[slot_dim(a.order, 2 * i + 1)] * by);
    if (TID == 0)
        AT(float, job.scale)[variant * n_pad + row] = row_power(top, true) * a.factor;
}

/* ---- fragments, of operands in shared memory [8 columns][rows][16 bytes] ---- */

/* Keys 16 j .. 16 j + 15 at dimensions 16 k ..: b[0..1] of the first eight, b[2..3] of the
   others. */
DEV void keys_at(uint32_t *b, const uint8_t *keys, int j, int k)
{
    const int i = LANE / 8;
    ldsm4(b, keys + ((2 * k + (i & 1)) * TILE + 16 * j + (i / 2) * 8 + LANE % 8) * 16);
}
/* Values of entries 16 k .. at dimensions 16 d ..: b[0..1] of the first eight dimensions. */
DEV void values_at(uint32_t *b, const uint8_t *values, int d, int k)
{
    const int i = LANE / 8;
    ldsm4t(b, values + ((2 * d + i / 2) * TILE + 16 * k + (i & 1) * 8 + LANE % 8) * 16);
}
/* 16 rows at columns 16 k ... */
DEV void rows_at(uint32_t *a, const uint8_t *m, int k)
{
    const int i = LANE / 8;
    ldsm4(a, m + ((2 * k + i / 2) * ROWS + (i & 1) * 8 + LANE % 8) * 16);
}

/* Eight numbers of an entry, in order or those of slots d .. d + 8. */
DEV void entry_slots(const gpu_part &part, const uint8_t *page, int page_len, int slot, int d,
                     int order, float *x)
{
    if (order == GPU_ORDER_PLAIN) {
        entry_read(part, page, page_len, slot, d, x);
        return;
    }
    const int n =
        order == GPU_ORDER_BYTES ? 4 : 2; /* slots that are of the same eight dimensions */
    float y[8];
    for (int i = 0; i < 8; i++) {
        const int dim = slot_dim(order, d + i);
        if (i % n == 0)
            entry_read(part, page, page_len, slot, dim & ~7, y);
        x[i] = y[0];
        UNROLL
        for (int j = 1; j < 8; j++)
            x[i] = j == (dim & 7) ? y[j] : x[i];
    }
}

/* A page of entries: short ones of len entries each, or those of a list. */
struct tile_from {
    const gpu_attend_ref *refs; /* in shared memory */
    const gpu_attend_entry *list;
    gpu_at pool;
    uint64_t stride;
    int n, len; /* n: entries up to the last */
};

/* Where entry e is; false: there is none. */
DEV bool entry_at(const tile_from &from, int e, const uint8_t **page, int *slot)
{
    const gpu_attend_ref &ref = from.refs[e / from.len];
    *slot = e % from.len;
    if (*slot >= ref.n)
        return false;
    if (from.list != NULL) {
        *page = AT(const uint8_t, from.list[e].page);
        *slot = from.list[e].slot;
    } else {
        *page = AT(const uint8_t, from.pool) + ref.page * from.stride;
    }
    return true;
}

/* Keys or values of n entries, up to the next multiple of 16, to f16 there. */
DEV void tile_fill(const gpu_part &part, const tile_from &from, int page_len, int order,
                   uint8_t *out)
{
    const int n16 = up16(from.n), n8 = up16(part.dim) / 8;
    for (int i = TID; i < n16 * n8; i += 128) {
        const int e = i % n16, d8 = i / n16;
        float x[8] = {};
        const uint8_t *page = NULL;
        int slot;
        const bool is = entry_at(from, e, &page, &slot);
        if (part.type == STORE_F16 && !part.beside &&
            (part.plane[PLANE_LOW].at | part.plane[PLANE_LOW].pitch) % 16 == 0) { /* as it is */
            const size_t at =
                part.plane[PLANE_LOW].at + d8 * 16 + (size_t)slot * part.plane[PLANE_LOW].pitch;
            *(uint4 *)(out + (d8 * TILE + e) * 16) =
                is && d8 * 8 < part.dim ? *(const uint4 *)(page + at) : make_uint4(0, 0, 0, 0);
            continue;
        }
        if (is)
            entry_slots(part, page, page_len, slot, d8 * 8, order, x);
        *(uint4 *)(out + (d8 * TILE + e) * 16) =
            make_uint4(h2(x[0], x[1]), h2(x[2], x[3]), h2(x[4], x[5]), h2(x[6], x[7]));
    }
}

/* Queries where all pages have one delta. */
DEV void queries_fill(const gpu_attend_job &job, int tile, int dim16, uint8_t *out)
{
    const uint4 *q = AT(const uint4, job.packed) + (size_t)tile * ROWS * (dim16 / 8);
    for (int i = TID; i < ROWS * dim16 / 8; i += 128)
        *(uint4 *)(out + (i % (dim16 / 8) * ROWS + i / (dim16 / 8)) * 16) = q[i];
}

/* Else those of a variant, as rows_at has them. */
DEV void queries_at(uint32_t *a, const gpu_attend_job &job, int variant, int tile, int dim16, int k)
{
    const int n_pad = up16(job.n_tok * job.n_group);
    const uint32_t *q = AT(const uint32_t, job.packed) +
                        ((size_t)variant * n_pad + tile * ROWS + LANE / 4) * (dim16 / 2) + 8 * k +
                        LANE % 4;
    a[0] = q[0], a[1] = q[4 * dim16], a[2] = q[4], a[3] = q[4 * dim16 + 4];
}

/* A product becomes an exponent of 2: by and add are multiplied by log2 e. */
DEV float logit_of(float x, float by, float add, float cap, float cap_by)
{
    return fmaf(cap > 0.0f ? cap * tanhf(x * by * cap_by) : x, cap > 0.0f ? LOG2E : by, add);
}

/* Sums of a row of a chunk; a call's rows beyond the last have none. */
DEV size_t part_row(const gpu_attend_job &job, int tile, int chunk, int row)
{
    const int n_row = job.n_tok * job.n_group, rows = n_row < ROWS ? n_row : ROWS;
    return job.part0 + ((size_t)tile * job.n_chunk + chunk) * rows + row;
}

/* Where weights are looked at: where a row's exponent of entry e of page p goes; NULL: nowhere. */
DEV float *logit_place(const gpu_attend_job &job, int page_len, int p, int e, int row)
{
    const int i = p * job.per + e / page_len - job.guests.n;
    if (job.logits == 0 || e >= job.per * page_len || i < 0 || i >= job.own.n ||
        row >= job.n_tok * job.n_group)
        return NULL;
    return AT(float, job.logits) + (size_t)row * job.logits_stride + (size_t)i * page_len +
           e % page_len;
}

/* A page's largest exponents, of rows LANE / 4 + 8 i: a warp's own come to tops [warps][16]. */
DEV void tops_put(float *tops, float *top)
{
    UNROLL
    for (int i = 0; i < 2; i++) {
        top[i] = n_max(top[i], shfl_xor(top[i], 1));
        top[i] = n_max(top[i], shfl_xor(top[i], 2));
        if (LANE % 4 == 0)
            tops[WARP * ROWS + LANE / 4 + 8 * i] = top[i];
    }
}
/* The largest of row i so far, *m, with those of all warps. Returns what exponents are taken less;
   *c: by what older sums are multiplied. */
template <int WARPS> DEV float tops_join(const float *tops, int i, float *m, float *c)
{
    float now = *m;
    UNROLL
    for (int w = 0; w < WARPS; w++)
        now = n_max(now, tops[w * ROWS + LANE / 4 + 8 * i]);
    const float mm = finite_of(now);
    *c = ex2(*m - mm);
    *m = now;
    return mm;
}

/* A chunk's sums of rows LANE / 4 + 8 i, as attend_join reads them: of every WARPS-th 16 dimensions,
   eight by eight. counts: this warp has the sums of weights. */
template <int WARPS, int N>
DEV void part_put(const gpu_attend_args &a, const gpu_attend_job &job, int tile, int chunk,
                  const float (&o)[N][4], const float *m, float l0, float l1, bool counts)
{
    const int g = LANE / 4, t = LANE % 4, dim_v16 = up16(a.dim_v);
    UNROLL
    for (int i = 0; i < 2; i++) {
        const int row = g + 8 * i;
        const size_t at = part_row(job, tile, chunk, row);
        if (tile * ROWS + row >= job.n_tok * job.n_group)
            continue;
        UNROLL
        for (int j = 0; j < N; j++) {
            const int d16 = WARPS * (j / 2) + WARP;
            float *to = AT(float, a.o) + at * dim_v16 + 16 * d16 + j % 2 * 8 + 2 * t;
            if (d16 < dim_v16 / 16)
                to[0] = o[j][2 * i], to[1] = o[j][2 * i + 1];
        }
        if (counts && t == 0) {
            AT(float, a.ml)[at * 2] = m[i];
            AT(float, a.ml)[at * 2 + 1] = i == 0 ? l0 : l1;
        }
    }
}

/* 16 rows of a call and a chunk of its pages, by 4 warps: a warp makes the logits of 16 of a page's
   entries, and the outputs of every fourth 16 dimensions, N of 8 at most. Grid: (chunks, calls,
   tiles of rows). The longest chunks begin first. */
template <int N> DEV void attend_part(const gpu_attend_args &a)
{
    SHARED(smem);
    const gpu_attend_job job = AT(const gpu_attend_job, a.jobs)[blockIdx.y];
    const int tile = (int)blockIdx.z, chunk = job.n_chunk - 1 - (int)blockIdx.x;
    if (chunk < 0 || tile * ROWS >= job.n_tok * job.n_group)
        return;
    int first, end;
    chunk_pages(job, chunk, &first, &end);
    const int lane = LANE, warp = WARP, g = lane / 4, t = lane % 4;
    const int dim16 = up16(a.dim_k), dim_v16 = up16(a.dim_v), n_row = job.n_tok * job.n_group;
    const bool apart = a.v_in_k < 0, by_turns = apart && a.n_room == 0; /* in the keys' room */
    uint8_t *qs = smem, *keys = qs + ROWS * dim16 * 2,
            *values = keys + (by_turns ? 0 : TILE * dim16 * 2), *ps = values;
    if (apart)
        ps += TILE * 2 * (by_turns && dim16 > dim_v16 ? dim16 : dim_v16);
    float *tops = (float *)(ps + ROWS * TILE * 2);              /* [4 warps][16] */
    gpu_attend_ref *refs = (gpu_attend_ref *)(tops + 4 * ROWS); /* [4] */
    if (!apart)
        values = keys + a.v_in_k / 8 * TILE * 16;
    float o[N][4] = {}, l[4] = {}, m[2] = {NEG_INF, NEG_INF}, by[2] = {0.0f, 0.0f};
    int64_t limit[2];
    UNROLL
    for (int i = 0; i < 2; i++)
        limit[i] = (int64_t)job.pos0 + (tile * ROWS + g + 8 * i) / job.n_group;
    int variant = -1;
    if (job.n_variant == 1)
        queries_fill(job, tile, dim16, qs);
    NO_UNROLL
    for (int p = first; p < end; p++) {
        if (TID < 4)
            refs[TID] = short_ref(job, p, TID);
        sync_block();
        const bool listed = job.entries != 0 && p >= job.guests.n;
        tile_from from = {refs, NULL, a.pool, a.stride, 0, listed ? (int)TILE : a.page_len};
        for (int i = 0; i < job.per; i++)
            from.n = refs[i].n > 0 ? i * from.len + refs[i].n : from.n;
        if (listed)
            from.list = AT(const gpu_attend_entry, job.entries) + refs[0].page;
        /* a warp's 16 entries are of one page of the store */
        const gpu_attend_ref own = refs[16 * warp / from.len];
        const int n_step = (from.n + 15) / 16, of = variant_of(job, own.delta);
        const int32_t *pos = page_positions(job, p);
        if (of != variant) {
            variant = of;
            const float *scale = AT(const float, job.scale) + variant * up16(n_row) + tile * ROWS;
            UNROLL
            for (int i = 0; i < 2; i++)
                by[i] = scale[g + 8 * i] * LOG2E;
        }
        tile_fill(a.k, from, a.page_len, a.order, keys);
        if (apart && !by_turns)
            tile_fill(a.v, from, a.page_len, GPU_ORDER_PLAIN, values);
        sync_block();
        float s[2][4] = {}, top[2] = {NEG_INF, NEG_INF};
        if (warp < n_step)
            for (int k = 0; k < dim16 / 16; k++) {
                uint32_t q[4], b[4];
                if (job.n_variant == 1)
                    rows_at(q, qs, k);
                else
                    queries_at(q, job, variant, tile, dim16, k);
                keys_at(b, keys, warp, k);
                mma(s[0], q, b[0], b[1]);
                mma(s[1], q, b[2], b[3]);
            }
        UNROLL
        for (int j = 0; j < 2; j++)
            UNROLL
        for (int e = 0; e < 4; e++) {
            const int slot = 16 * warp + 8 * j + 2 * t + (e & 1), i = e / 2;
            bool sees = slot % from.len < own.n;
            if (sees && (pos != NULL || listed)) {
                const int64_t when =
                    (int64_t)(listed ? from.list[slot].pos : pos[slot]) + own.delta;
                sees = when <= limit[i] && (a.window == 0 || when > limit[i] - a.window);
            }
            s[j][e] =
                sees ? logit_of(s[j][e], by[i], own.log_count * LOG2E, a.cap, a.cap_by) : NEG_INF;
            float *kept = logit_place(job, a.page_len, p, slot, tile * ROWS + g + 8 * i);
            if (kept != NULL)
                *kept = s[j][e];
            top[i] = f_max(top[i], s[j][e]);
        }
        tops_put(tops, top);
        sync_block();
        float c[2];
        UNROLL
        for (int i = 0; i < 2; i++) {
            const float mm = tops_join<4>(tops, i, &m[i], &c[i]);
            UNROLL
            for (int j = 0; j < 2; j++)
                *(uint32_t *)(ps + ((2 * warp + j) * ROWS + g + 8 * i) * 16 + t * 4) =
                    h2(ex2(s[j][2 * i] - mm), ex2(s[j][2 * i + 1] - mm));
        }
        if (by_turns)
            tile_fill(a.v, from, a.page_len, GPU_ORDER_PLAIN, values);
        sync_block();
        UNROLL
        for (int i = 0; i < N; i++)
            UNROLL
        for (int e = 0; e < 4; e++)
            o[i][e] *= c[e / 2];
        UNROLL
        for (int e = 0; e < 4; e++)
            l[e] *= c[e / 2];
        for (int k = 0; k < n_step; k++) {
            uint32_t w[4], b[4];
            rows_at(w, ps, k);
            UNROLL
            for (int d = 0; d < N / 2; d++)
                if (4 * d + warp < dim_v16 / 16) {
                    values_at(b, values, 4 * d + warp, k);
                    mma(o[2 * d], w, b[0], b[1]);
                    mma(o[2 * d + 1], w, b[2], b[3]);
                }
            mma(l, w, ONES, ONES);
        }
        sync_block();
    }
    part_put<4>(a, job, tile, chunk, o, m, l[0], l[2], warp == 0);
}

KERNEL(128, 2) attend_part_4(const gpu_attend_args &a)
{
    attend_part<4>(a);
}
KERNEL(128, 2) attend_part_8(const gpu_attend_args &a)
{
    attend_part<8>(a);
}
KERNEL(128, 1) attend_part_16(const gpu_attend_args &a)
{
    attend_part<16>(a);
}

/* Packs a token's row of outputs once all its heads are there: the last one's block does it. */
DEV void join_pack(const gpu_attend_args &a, int token, float *room)
{
    uint32_t *before = (uint32_t *)room;
    if (a.packed.out == 0)
        return;
    fence();
    sync_block();
    if (TID == 0) {
        *before = atomic_wrap(AT(uint32_t, a.count) + token, (uint32_t)a.n_head - 1);
        fence();
    }
    sync_block();
    const bool last = *before == (uint32_t)a.n_head - 1;
    sync_block();
    if (!last)
        return;
    const float *row = AT(const float, a.rows) + (size_t)token * a.n_col;
    float most = 0.0f;
    for (int i = TID * 8; i < a.n_col; i += 128 * 8) {
        float v[8];
        load_eight(v, row, i, a.n_col);
        most = most_of_eight(v, most);
    }
    pack_row(a.packed, token, row, NULL, a.n_col, most, room, 128);
}

/* Joins the chunks of a row, and turns a sum of rotated values back. Grid: (rows, calls). */
KERNEL(128, 4) attend_join(const gpu_attend_args &a)
{
    SHARED(smem);
    float *x = (float *)smem;
    const gpu_attend_job job = AT(const gpu_attend_job, a.jobs)[blockIdx.y];
    enum { N = 4, JOIN = 8 };
    const int row = (int)blockIdx.x, dim_v16 = a.row_v;
    if (row >= job.n_tok * job.n_group)
        return;
    const float sink =
        job.sink != 0 ? AT(const float, job.sink)[row % job.n_group] * LOG2E : NEG_INF;
    float *out = AT(float, job.out) + (size_t)(row / job.n_group) * job.out_stride +
                 (size_t)(row % job.n_group) * a.dim_v;
    /* eight chunks at a time on their way, all maxima and sums of chunks before */
    const size_t rows = (size_t)(part_row(job, 0, 1, 0) - part_row(job, 0, 0, 0));
    size_t at = part_row(job, row / ROWS, 0, row % ROWS);
    int n_chunk = job.n_chunk;
    float m = sink, l = job.sink != 0 ? 1.0f : 0.0f, o[N] = {};
    if (a.is_joined) { /* attend_tall's: it is taken as it is, with its zeros' signs */
        at = job.part0 + row;
        n_chunk = 1;
        m = NEG_INF, l = 0.0f;
        UNROLL
        for (int j = 0; j < N; j++)
            o[j] = -0.0f;
    }
    for (int i0 = 0; i0 < n_chunk; i0 += JOIN) {
        float part[JOIN][N], top[JOIN], sum[JOIN];
        UNROLL
        for (int i = 0; i < JOIN; i++) {
            const size_t r = at + (i0 + i < n_chunk ? i0 + i : n_chunk - 1) * rows;
            top[i] = AT(const float, a.ml)[r * 2];
            sum[i] = AT(const float, a.ml)[r * 2 + 1];
            UNROLL
            for (int j = 0; j < N; j++)
                part[i][j] = TID + 128 * j < a.dim_v
                                 ? AT(const float, a.o)[r * dim_v16 + TID + 128 * j]
                                 : 0.0f;
        }
        UNROLL
        for (int i = 0; i < JOIN; i++)
            if (i0 + i < n_chunk) {
                const float now = f_max(m, top[i]), mm = finite_of(now), c = ex2(m - mm),
                            w = ex2(top[i] - mm);
                l = fmaf(sum[i], w, l * c);
                UNROLL
                for (int j = 0; j < N; j++)
                    o[j] = fmaf(part[i][j], w, o[j] * c);
                m = now;
            }
    }
    if (job.ml != 0 && TID == 0) {
        AT(float, job.ml)[2 * row] = m;
        AT(float, job.ml)[2 * row + 1] = l;
    }
    if (job.out == 0)
        return; /* the whole block: weights alone are wanted */
    UNROLL
    for (int j = 0; j < N; j++)
        if (TID + 128 * j < a.dim_v)
            x[TID + 128 * j] = l > 0.0f ? o[j] / l : 0.0f;
    sync_block();
    if (a.v.wht_scale != 0.0f)
        wht_shared<128>(x, a.dim_v, a.v.group, a.v.wht_scale, true);
    for (int d = TID; d < a.dim_v; d += 128)
        out[d] = x[d];
    join_pack(a, job.token0 + row / job.n_group, x + dim_v16);
}

#endif
