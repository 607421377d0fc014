/*
 * attend_tall.cuh - attention of more than 16 rows over the pages of attend_wide.cuh, with the same
 * bits. A block takes 64 or 32 rows of a call, by eight warps, so that a page is read and decoded
 * once for all of them. A warp makes the logits of 16 rows and 32 or 16 of a page's entries. It has
 * the outputs of all rows, of every eighth 16 dimensions.
 *
 * A block takes one chunk, whose sums attend_join joins. Where there are blocks enough
 * (args.is_joined) it takes all chunks, and joins each to those before in memory: args.o then has a
 * row for each of a call.
 *
 * Pages come as attend_wide's do. Queries lie in shared memory as far as there is room
 * (args.n_query). The dimensions behind, and queries of several variants, are read where they are.
 */
#ifndef PI_GPU_ATTEND_TALL_CUH
#define PI_GPU_ATTEND_TALL_CUH

#include "device/gpu/attend_many.cuh"
#include "device/gpu/attend_wide.cuh"

enum { TALL_N = 4 /* sixteens of dimensions that a warp has at most */ };

/* What a thread has of a block's rows. Warps 0 .. HEIGHT / 16 - 1 have the sums of weights of the
   rows of which they make logits. */
template <int HEIGHT> struct tall_rows {
    /* Of rows LANE / 4 + 8 i of the warp's 16: largest exponents, sums of weights. */
    float m[2], l[2];
    float o[HEIGHT / 16][2 * TALL_N][4]; /* of all rows */
};

/* The block's first row, and its call: made anew, so that no register holds them meanwhile. */
template <int HEIGHT> DEV int tall_row0(void)
{
    return (int)blockIdx.z * anew(HEIGHT);
}
DEV const gpu_attend_job &tall_job(const gpu_attend_args &a)
{
    return AT(const gpu_attend_job, a.jobs)[anew((int)blockIdx.y)];
}

/* The 16 rows and HEIGHT / 2 entries of which a warp makes logits. */
template <int HEIGHT> DEV int tall_tile(void)
{
    return WARP % (HEIGHT / 16);
}
template <int HEIGHT> DEV int tall_entry(void)
{
    return WARP / (HEIGHT / 16) * (HEIGHT / 2);
}

/* ---- a page's logits ---- */

/* Products with sixteens of entries; keys(b, j, k): those of sixteen j at dimensions 16 k on, of
   its variant. */
template <int HEIGHT, typename F>
DEV void tall_dots(const gpu_attend_args &a, const gpu_attend_job &job, int tile,
                   const int *variant, const uint8_t *qs, float (*x)[4], F keys)
{
    const int dim16 = up16(a.dim_k), n = dim16 / 16, there = job.n_variant == 1 ? a.n_query : 0;
    uint32_t q[4], b[4];
    UNROLL2
    for (int k = 0; k < there; k++) {
        many_rows_at<HEIGHT>(q, qs, tall_tile<HEIGHT>(), k);
        UNROLL
        for (int j = 0; j < HEIGHT / 32; j++) {
            keys(b, j, k);
            mma(x[2 * j], q, b[0], b[1]);
            mma(x[2 * j + 1], q, b[2], b[3]);
        }
    }
    UNROLL2
    for (int k = there; k < n; k++)
        UNROLL
    for (int j = 0; j < HEIGHT / 32; j++) {
        queries_at(q, job, variant[j], tile, dim16, k);
        keys(b, j, k);
        mma(x[2 * j], q, b[0], b[1]);
        mma(x[2 * j + 1], q, b[2], b[3]);
    }
}

/* The warp's exponents of a page, x[j][e]: of row e / 2 and entry 8 j + 2 (LANE % 4) + e % 2. Their
   largest come to tops, [entries / (HEIGHT / 2)][HEIGHT]. row0: the block's first row. */
template <int HEIGHT>
DEV void tall_logits(const gpu_attend_args &a, const gpu_attend_job &job, int p, int row0,
                     const uint8_t *qs, const uint8_t *keys, const wide_page &s, float *tops,
                     float (*x)[4])
{
    enum { N = HEIGHT / 32 /* sixteens of entries */ };
    const int lane = LANE, g = lane / 4, t = lane % 4, i = lane / 8;
    const int n_pad = up16(job.n_tok * job.n_group), entry0 = tall_entry<HEIGHT>();
    const bool is = row0 + 16 * tall_tile<HEIGHT>() < n_pad; /* else there are no such rows */
    const int tile = is ? row0 / 16 + tall_tile<HEIGHT>() : 0;
    int variant[N];
    UNROLL
    for (int j = 0; j < N; j++)
        variant[j] =
            job.n_variant == 1 ? 0 : variant_of(job, s.refs[(entry0 + 16 * j) >> s.shift].delta);
    UNROLL
    for (int j = 0; j < 2 * N; j++)
        UNROLL
    for (int e = 0; e < 4; e++)
        x[j][e] = 0.0f;
    if (is && entry0 < wide_count(s, true)) {
        if (lies_sideways(a.k)) {
            const uint8_t *own = keys + ((i & 1) * 8 + lane % 8) * TILE * 2;
            tall_dots<HEIGHT>(a, job, tile, variant, qs, x, [&](uint32_t *b, int j, int k) {
                ldsm4t(b, own + k * TILE * 32 + ((entry0 / 8 + 2 * j + i / 2) ^ lane % 8) * 16);
            });
        } else {
            const int pitch = wide_pitch(a.dim_k);
            const uint8_t *own = keys + (entry0 + i / 2 * 8 + lane % 8) * pitch + (i & 1) * 16;
            tall_dots<HEIGHT>(a, job, tile, variant, qs, x, [&](uint32_t *b, int j, int k) {
                ldsm4(b, own + j * 16 * pitch + k * 32);
            });
        }
    }
    const int32_t *pos = page_positions(job, p);
    float top[2] = {NEG_INF, NEG_INF};
    UNROLL
    for (int j = 0; j < 2 * N; j++) {
        const gpu_attend_ref &ref = s.refs[(entry0 + 8 * j) >> s.shift];
        const float add = ref.log_count * LOG2E;
        const float *scale = AT(const float, job.scale) + variant[j / 2] * n_pad + tile * ROWS + g;
        UNROLL
        for (int e = 0; e < 4; e++) {
            const int entry = entry0 + 8 * j + 2 * t + (e & 1), own = tile * ROWS + g + e / 2 * 8;
            bool sees = is && (entry & (a.page_len - 1)) < ref.n;
            if (sees && pos != NULL) {
                const int when = pos[entry] + ref.delta, limit = job.pos0 + own / job.n_group;
                sees = when <= limit && (a.window == 0 || when > limit - a.window);
            }
            const float y = logit_of(x[j][e], scale[e / 2 * 8] * LOG2E, add, a.cap, a.cap_by);
            x[j][e] = sees ? y : NEG_INF;
            top[e / 2] = n_max(top[e / 2], x[j][e]);
        }
    }
    UNROLL
    for (int r = 0; r < 2; r++) {
        top[r] = n_max(top[r], shfl_xor(top[r], 1));
        top[r] = n_max(top[r], shfl_xor(top[r], 2));
        if (t == 0)
            tops[entry0 / (HEIGHT / 2) * HEIGHT + 16 * tall_tile<HEIGHT>() + g + 8 * r] = top[r];
    }
}

/* ---- its weights, and its values ---- */

/* Weights to shared memory, [8 entries][HEIGHT][16 bytes]. In place of tops come, [HEIGHT], by what
   older sums are multiplied. */
template <int HEIGHT>
DEV void tall_weights(const float (*x)[4], float *tops, tall_rows<HEIGHT> &rows, uint8_t *ps)
{
    enum { PARTS = 2 * TILE / HEIGHT /* warps of the same rows */ };
    const int tile = tall_tile<HEIGHT>(), own = 16 * tile + LANE / 4;
    float c[2];
    UNROLL
    for (int i = 0; i < 2; i++) {
        float now = rows.m[i];
        UNROLL
        for (int w = 0; w < PARTS; w++)
            now = n_max(now, tops[w * HEIGHT + own + 8 * i]);
        const float mm = finite_of(now);
        c[i] = ex2(rows.m[i] - mm);
        rows.m[i] = now;
        UNROLL
        for (int j = 0; j < HEIGHT / 16; j++)
            *(uint32_t *)(ps + ((tall_entry<HEIGHT>() / 8 + j) * HEIGHT + own + 8 * i) * 16 +
                          LANE % 4 * 4) = h2(ex2(x[j][2 * i] - mm), ex2(x[j][2 * i + 1] - mm));
        rows.l[i] *= c[i];
    }
    sync_part(1 + tile, 32 * PARTS);
    if (WARP < HEIGHT / 16 && LANE % 4 == 0)
        tops[own] = c[0], tops[own + 8] = c[1];
}

/* Multiplies older sums. */
template <int HEIGHT> DEV void tall_scale(const float *by, tall_rows<HEIGHT> &rows)
{
    UNROLL
    for (int r = 0; r < HEIGHT / 16; r++) {
        const float c[2] = {by[16 * r + LANE / 4], by[16 * r + LANE / 4 + 8]};
        if (any_lane(c[0] != 1.0f || c[1] != 1.0f)) {
            UNROLL
            for (int j = 0; j < 2 * TALL_N; j++)
                UNROLL
            for (int e = 0; e < 4; e++)
                rows.o[r][j][e] *= c[e / 2];
        }
    }
}

/* Adds weights times the first n values. */
template <int HEIGHT>
DEV void tall_sums(const uint8_t *values, int pitch, int n, int n_dim16, const uint8_t *ps,
                   tall_rows<HEIGHT> &rows)
{
    const int warp = WARP, i = LANE / 8;
    values += ((i & 1) * 8 + LANE % 8) * pitch + (2 * warp + i / 2) * 16;
    NO_UNROLL
    for (int k = 0; k < (n + 15) / 16; k++) {
        uint32_t w[HEIGHT / 16][4], b[4];
        UNROLL
        for (int r = 0; r < HEIGHT / 16; r++) {
            many_rows_at<HEIGHT>(w[r], ps, r, k);
            if (r == warp) {
                float l[4] = {rows.l[0], rows.l[0], rows.l[1], rows.l[1]};
                mma(l, w[r], ONES, ONES);
                rows.l[0] = l[0], rows.l[1] = l[2];
            }
        }
        UNROLL
        for (int d = 0; d < TALL_N; d++)
            if (WIDE_WARPS * d + warp < n_dim16) {
                ldsm4t(b, values + k * 16 * pitch + d * WIDE_WARPS * 32);
                UNROLL
                for (int r = 0; r < HEIGHT / 16; r++) {
                    mma(rows.o[r][2 * d], w[r], b[0], b[1]);
                    mma(rows.o[r][2 * d + 1], w[r], b[2], b[3]);
                }
            }
    }
}

/* ---- chunks ---- */

template <int HEIGHT> DEV void tall_clear(tall_rows<HEIGHT> &rows)
{
    UNROLL
    for (int r = 0; r < HEIGHT / 16; r++)
        UNROLL
    for (int j = 0; j < 2 * TALL_N; j++)
        UNROLL
    for (int e = 0; e < 4; e++)
        rows.o[r][j][e] = 0.0f;
    UNROLL
    for (int i = 0; i < 2; i++)
        rows.l[i] = 0.0f, rows.m[i] = NEG_INF;
}

/* Maxima and sums of weights of the warp's rows are joined to those before, as attend_join does. To
   by, [2][HEIGHT], comes what outputs before are multiplied by, then what the chunk's are. */
template <int HEIGHT>
DEV void tall_join_rows(const gpu_attend_args &a, const gpu_attend_job &job, int row0,
                        const tall_rows<HEIGHT> &rows, bool is_first, float *by)
{
    UNROLL
    for (int i = 0; i < 2; i++) {
        const int own = 16 * WARP + LANE / 4 + 8 * i, row = row0 + own;
        if (LANE % 4 != 0 || row >= job.n_tok * job.n_group)
            continue;
        float *ml = AT(float, a.ml) + (job.part0 + row) * 2, m = NEG_INF, l = 0.0f;
        if (!is_first) {
            m = ml[0], l = ml[1];
        } else if (job.sink != 0) {
            m = AT(const float, job.sink)[row % job.n_group] * LOG2E;
            l = 1.0f;
        }
        const float now = n_max(m, rows.m[i]), mm = finite_of(now), c = ex2(m - mm),
                    w = ex2(rows.m[i] - mm);
        ml[0] = now, ml[1] = fmaf(rows.l[i], w, l * c);
        by[own] = c, by[HEIGHT + own] = w;
    }
}

/* Joins a chunk to those before. tops: room for numbers of rows. */
template <int HEIGHT>
DEV void tall_join(const gpu_attend_args &a, const gpu_attend_job &job, int row0,
                   const tall_rows<HEIGHT> &rows, bool is_first, float *tops)
{
    const int g = LANE / 4, row_v = up16(a.dim_v), n_row = job.n_tok * job.n_group;
    sync_block(); /* tops are read */
    if (WARP < HEIGHT / 16)
        tall_join_rows<HEIGHT>(a, job, row0, rows, is_first, tops);
    sync_block();
    UNROLL
    for (int r = 0; r < HEIGHT / 16; r++)
        UNROLL
    for (int i = 0; i < 2; i++) {
        const int own = 16 * r + g + 8 * i;
        if (row0 + own >= n_row)
            continue;
        const float c = tops[own], w = tops[HEIGHT + own];
        float *o = AT(float, a.o) + (job.part0 + row0 + own) * row_v + 16 * WARP + LANE % 4 * 2;
        UNROLL
        for (int j = 0; j < 2 * TALL_N; j++) {
            float2 *to = (float2 *)(o + j / 2 * WIDE_WARPS * 16 + j % 2 * 8), x = {0.0f, 0.0f};
            if (WIDE_WARPS * (j / 2) + WARP >= row_v / 16)
                continue;
            if (!is_first)
                x = *to;
            x.x = fmaf(rows.o[r][j][2 * i], w, x.x * c);
            x.y = fmaf(rows.o[r][j][2 * i + 1], w, x.y * c);
            *to = x;
        }
    }
}

/* The block's sums of a chunk, as attend_join reads them. */
template <int HEIGHT>
DEV void tall_put(const gpu_attend_args &a, const gpu_attend_job &job, int row0, int chunk,
                  const tall_rows<HEIGHT> &rows)
{
    UNROLL
    for (int r = 0; r < HEIGHT / 16; r++)
        part_put<WIDE_WARPS>(a, job, row0 / ROWS + r, chunk, rows.o[r], rows.m, rows.l[0],
                             rows.l[1], WARP == r);
}

/* ---- the kernel ---- */

/* Queries where all pages have one delta; they come with the first keys. */
template <int HEIGHT>
DEV void tall_queries(const gpu_attend_args &a, const gpu_attend_job &job, int row0, uint8_t *qs)
{
    const int n8 = up16(a.dim_k) / 8, n_pad = up16(job.n_tok * job.n_group);
    for (int i = TID; job.n_variant == 1 && i < HEIGHT * a.n_query * 2; i += WIDE_THREADS) {
        const int row = row0 + i % HEIGHT < n_pad ? row0 + i % HEIGHT : n_pad - 1;
        cp16(qs + i * 16, AT(const uint8_t, job.packed) + ((size_t)row * n8 + i / HEIGHT) * 16);
    }
}

/* The pages of a block: of chunk `chunk`, or of all; none behind those that its rows see. */
template <int HEIGHT>
DEV void tall_pages(const gpu_attend_args &a, const gpu_attend_job &job, int row0, int chunk,
                    int *first, int *end)
{
    const int n_row = job.n_tok * job.n_group,
              last = row0 + HEIGHT < n_row ? row0 + HEIGHT - 1 : n_row - 1;
    *first = job.first, *end = job.end;
    if (a.is_joined == 0)
        chunk_pages(job, chunk, first, end);
    if (job.n_variant == 1 && job.ordered) {
        const int seen = many_end(job, job.pos0 + last / job.n_group);
        *end = *end < seen ? *end : seen;
    }
}

/* Grid: (chunks, or 1 where they are joined; calls; tiles of rows). */
template <int HEIGHT> DEV void attend_tall(const gpu_attend_args &a)
{
    SHARED(smem);
    const gpu_attend_job &job = AT(const gpu_attend_job, a.jobs)[blockIdx.y];
    const int row0 = (int)blockIdx.z * HEIGHT;
    int chunk = a.is_joined ? 0 : job.n_chunk - 1 - (int)blockIdx.x;
    if (chunk < 0 || row0 >= job.n_tok * job.n_group)
        return; /* the whole block */
    int first, end;
    tall_pages<HEIGHT>(a, job, row0, chunk, &first, &end);
    const bool shared = a.v_in_k >= 0, two = a.n_room == 2;
    tall_rows<HEIGHT> rows;
    tall_clear(rows);
    wide_begin(a, job, first, wide_room_of(a, smem, HEIGHT, a.n_query));
    tall_queries<HEIGHT>(a, job, row0, smem);
    NO_UNROLL
    for (int p = first - 1; p < end; p++) {
        const bool is = p >= first, odd = (p & 1) != 0;
        NO_UNROLL
        for (int half = 0; half < 2; half++) { /* what fills a room stands there once */
            const wide_room room = wide_room_of(a, smem + anew(0), HEIGHT, a.n_query);
            const int len = anew(a.page_len), shift = len == 64 ? 6 : len == 32 ? 5 : 4;
            const wide_page s = {room.refs + (odd ? 4 : 0), shift},
                            next = {room.refs + (odd ? 0 : 4), shift};
            const uint8_t *values = room.values + (two && odd ? room.v_size : 0);
            if (is && half == 0) {
                float x[HEIGHT / 16][4];
                gpu_attend_ref ref = {};
                if (TID < 4 && p + 1 < end)
                    ref = short_ref(tall_job(a), p + 1, TID);
                if (a.n_room == 0)
                    CP_WAIT(0);
                else
                    CP_WAIT(1); /* what came behind keys may be on its way */
                sync_block();
                tall_logits<HEIGHT>(a, tall_job(a), p, tall_row0<HEIGHT>(), room.queries,
                                    shared ? values : room.keys, s, room.tops, x);
                if (TID < 4)
                    next.refs[TID] = ref;
                sync_block();
                tall_weights<HEIGHT>(x, room.tops, rows, room.weights);
            } else if (is) {
                if (two)
                    CP_WAIT(2);
                else if (a.n_room == 1)
                    CP_WAIT(1);
                else
                    CP_WAIT(0);
                sync_block();
                tall_scale<HEIGHT>(room.tops, rows);
                tall_sums<HEIGHT>(shared ? values + a.v_in_k * 2 : values,
                                  wide_pitch(shared ? a.dim_k : a.dim_v), wide_count(s, false),
                                  up16(a.dim_v) / 16, room.weights, rows);
                if (!two)
                    sync_block();
            }
            wide_next<TALL_N>(a, room, half, is, p + 1 < end, odd, s.refs, next.refs, shift);
        }
        if (a.is_joined == 0 || !is)
            continue;
        if (p + 1 == chunk_last(job, chunk) || p + 1 == end) {
            tall_join<HEIGHT>(a, tall_job(a), tall_row0<HEIGHT>(), rows, first >= 0,
                              wide_room_of(a, smem, HEIGHT, a.n_query).tops);
            tall_clear(rows);
            first = -1; /* once a chunk was joined */
            chunk++;
        }
    }
    if (a.is_joined == 0)
        tall_put<HEIGHT>(a, job, row0, chunk, rows);
    else if (first >= 0)
        tall_join<HEIGHT>(a, job, row0, rows, true, wide_room_of(a, smem, HEIGHT, a.n_query).tops);
}

KERNEL(256, 1) attend_tall_32(const gpu_attend_args &a)
{
    attend_tall<32>(a);
}
KERNEL(256, 1) attend_tall_64(const gpu_attend_args &a)
{
    attend_tall<64>(a);
}

#endif
