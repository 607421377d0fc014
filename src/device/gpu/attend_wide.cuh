/*
 * attend_wide.cuh - attention over pages of any type, layout and length, for heads of any multiple
 * of eight dimensions and values that are parts of keys, with attend_part's bits. A block takes 16
 * rows of a call and a chunk of its pages, by eight warps. A warp makes the logits of eight of a
 * page's entries, and the outputs of every eighth 16 dimensions.
 *
 * Entries become f16 in shared memory, those of f16 by asynchronous copies. What the next page
 * brings is on its way as soon as there is room for it. Keys have one room: the next ones come when
 * all warps have made their logits. Values have two where a block's memory allows. Else the next
 * ones come when the last ones are added. Of the largest heads they take the keys' room by turns.
 * Keys with values in them are as values.
 *
 * A room has the elements of 16 bytes of an entry one after the other, of all entries an odd number
 * apart: eight entries hit no bank twice. Keys of f16, bf16 and f32 that lie side by side stay so,
 * [dimension][64 entries], at the places of place_f16.
 */
#ifndef PI_GPU_ATTEND_WIDE_CUH
#define PI_GPU_ATTEND_WIDE_CUH

#include "device/gpu/attend_decode.cuh"

enum {
    WIDE_THREADS = 256,
    WIDE_WARPS = WIDE_THREADS / 32,
    WIDE_REST = 512 /* bytes of parts and references */
};
static_assert(2 * sizeof(gpu_part) + 8 * sizeof(gpu_attend_ref) <= WIDE_REST, "there is room");

/* Bytes from one entry to the next. */
DEV int wide_pitch(int dim)
{
    return up16(dim) * 2 + 16;
}

/* ---- a page, to shared memory ---- */

/* The short pages of a page, in shared memory: of 1 << shift entries each. */
struct wide_page {
    gpu_attend_ref *refs; /* [4] */
    int shift;
};

/* Entries that there is room for in the store; or those up to the last one. */
DEV int wide_count(const wide_page &s, bool room)
{
    int n = 0;
    UNROLL
    for (int i = 0; i < 4; i++) {
        const int own = room ? 1 << s.shift : s.refs[i].n;
        n = s.refs[i].n > 0 ? (i << s.shift) + own : n;
    }
    return n;
}

DEV const uint8_t *wide_at(const gpu_attend_args &a, const wide_page &s, int e)
{
    return AT(const uint8_t, a.pool) + s.refs[e >> s.shift].page * a.stride;
}

/* Where a thread is in rows of n elements, which all threads go through one after the other. */
struct wide_walk {
    int row, at, n, n_row, rest; /* the next element is n_row rows and `rest` further on */
};

DEV wide_walk walk_begin(int n)
{
    const uint32_t u = (uint32_t)n, row = (uint32_t)TID / u, n_row = WIDE_THREADS / u;
    return {(int)row, TID - (int)row * n, n, (int)n_row, WIDE_THREADS - (int)n_row * n};
}

DEV void walk_on(wide_walk &w)
{
    w.row += w.n_row;
    w.at += w.rest;
    if (w.at >= w.n)
        w.at -= w.n, w.row++;
}

/* f16 as it is stored. */
DEV void wide_copy(uint8_t *out, const gpu_attend_args &a, const gpu_part &part, const wide_page &s)
{
    const int pitch = wide_pitch(part.dim), n = TILE * part.dim / 8, there = wide_count(s, true);
    wide_walk w = walk_begin(part.beside ? 8 : part.dim / 8);
    UNROLL2
    for (int i = TID; i < n; i += WIDE_THREADS) {
        const int e = part.beside ? w.at * 8 : w.row, d = part.beside ? w.row : w.at * 8,
                  to = part.beside ? place_f16(i, 0) * 16 : e * pitch + w.at * 16;
        if (e < there)
            cp16(out + to, element_at(part, PLANE_LOW, wide_at(a, s, e), a.page_len,
                                      e & (a.page_len - 1), d, 2));
        walk_on(w);
    }
}

/* Keys of f32 or bf16 that lie side by side. */
DEV void wide_sides(uint8_t *out, const gpu_attend_args &a, const gpu_part &part,
                    const wide_page &s)
{
    const int there = wide_count(s, true);
    sides_fill(out, a, part.dim, TID, WIDE_THREADS,
               [&](int e) { return e < there ? wide_at(a, s, e) : NULL; });
}

/* Pieces, N of a thread on their way. */
template <int N>
DEV void wide_pieces(uint8_t *out, const gpu_attend_args &a, const gpu_part &part, int type,
                     const wide_page &s)
{
    const int pitch = wide_pitch(part.dim), n = TILE * part.dim / 8, group = group_shift(part),
              there = wide_count(s, true);
    const codes_of_four table = codes_table(part);
    wide_walk w = walk_begin(part.beside ? (int)TILE : part.dim / 8);
    NO_UNROLL
    for (int i0 = TID; i0 < n; i0 += WIDE_THREADS * N) {
        piece p[N];
        int to[N];
        UNROLL
        for (int j = 0; j < N; j++) {
            const int e = part.beside ? w.at : w.row, d = part.beside ? w.row : w.at;
            to[j] = i0 + WIDE_THREADS * j < n && e < there ? e * pitch + d * 16 : -1;
            if (to[j] >= 0)
                p[j] = piece_load(part, type, wide_at(a, s, e), a.page_len, e & (a.page_len - 1), d,
                                  group);
            walk_on(w);
        }
        UNROLL
        for (int j = 0; j < N; j++)
            if (to[j] >= 0)
                *(uint4 *)(out + to[j]) = piece_numbers(type, table, p[j]);
    }
}

/* Keys or values of a page, N codes of a thread on their way. The part is in shared memory: a kernel
   that chose between its arguments would have a copy of them all. */
template <int N>
DEV void wide_fill(uint8_t *out, const gpu_attend_args &a, const gpu_part &part, const wide_page &s)
{
    if (part.type == STORE_F16)
        wide_copy(out, a, part, s);
    else if (lies_sideways(part))
        wide_sides(out, a, part, s);
    else if (part.type == STORE_F32)
        wide_pieces<1>(out, a, part, STORE_F32, s);
    else if (part.type == STORE_BF16)
        wide_pieces<1>(out, a, part, STORE_BF16, s);
    else if (part.type == STORE_Q8_0)
        wide_pieces<N>(out, a, part, STORE_Q8_0, s);
    else if (code_bits(part.type) == 4)
        wide_pieces<N>(out, a, part, STORE_TURBO4, s);
    else if (part.type == STORE_TURBO3)
        wide_pieces<N>(out, a, part, STORE_TURBO3, s);
    else
        wide_pieces<N>(out, a, part, STORE_TURBO2, s);
}

/* Zeros for the dimensions from the last one up to the next multiple of 16, which no page has. */
DEV void wide_clear(uint8_t *out, const gpu_part &part)
{
    const int to =
        lies_sideways(part) ? (part.dim * 8 + TID) * 16 : TID * wide_pitch(part.dim) + part.dim * 2;
    if (part.dim % 16 != 0 && TID < TILE)
        *(uint4 *)(out + to) = make_uint4(0, 0, 0, 0);
}

/* ---- a page's weights, and its values ---- */

/* A block's rows LANE / 4 + 8 i: what they see, and their sums so far, of 16 N dimensions. */
template <int N> struct wide_rows {
    int limit[2];
    float m[2], l[2], o[2 * N][4];
};

/* Where a block's parts lie in its shared memory. */
struct wide_room {
    uint8_t *queries, *weights, *keys, *values; /* values: the first room, or the keys' */
    float *tops;                                /* [8 warps][16] */
    gpu_part *part;                             /* [2] of keys and values */
    gpu_attend_ref *refs;                       /* [2][4] of pages, by turns */
    int v_size;
};

/* Of a block of `height` rows, which has n_query sixteens of their dimensions. */
DEV wide_room wide_room_of(const gpu_attend_args &a, uint8_t *smem, int height, int n_query)
{
    wide_room r;
    const bool shared = a.v_in_k >= 0;
    r.queries = smem;
    r.weights = r.queries + height * n_query * 32;
    r.tops = (float *)(r.weights + height * TILE * 2);
    r.part = (gpu_part *)(r.tops + WIDE_WARPS * ROWS);
    r.refs = (gpu_attend_ref *)(r.part + 2);
    r.keys = (uint8_t *)r.part + WIDE_REST;
    r.values = r.keys + (shared || a.n_room == 0 ? 0 : TILE * wide_pitch(a.dim_k));
    r.v_size = TILE * wide_pitch(shared ? a.dim_k : a.dim_v);
    return r;
}

/* Products with the warp's eight entries; load(b, k, i): lane i's part of the four eights of
   dimensions from 16 k on. */
template <typename F>
DEV void wide_dots(const gpu_attend_args &a, const gpu_attend_job &job, int tile, int variant,
                   const uint8_t *qs, float *x, F load)
{
    const int dim16 = up16(a.dim_k), n = dim16 / 16;
    UNROLL2
    for (int k = 0; k < n; k += 2) {
        uint32_t q[4], b[4];
        load(b, k, k + 1 < n ? LANE : LANE % 16); /* of an odd last one the first two again */
        UNROLL
        for (int j = 0; j < 2; j++) {
            if (k + j == n)
                continue;
            if (job.n_variant == 1)
                rows_at(q, qs, k + j);
            else
                queries_at(q, job, variant, tile, dim16, k + j);
            mma(x, q, b[2 * j], b[2 * j + 1]);
        }
    }
}

/* The warp's exponents of a page, x[e]: of row e / 2 and entry 8 * WARP + 2 (LANE % 4) + e % 2. */
template <int N>
DEV void wide_logits(const gpu_attend_args &a, const gpu_attend_job &job, int p, int tile,
                     const uint8_t *qs, const uint8_t *keys, const wide_page &s, wide_rows<N> &rows,
                     float *tops, float *x)
{
    const int lane = LANE, warp = WARP, g = lane / 4, t = lane % 4, number = 8 * warp >> s.shift;
    const int n = s.refs[number].n, delta = s.refs[number].delta;
    const float add = s.refs[number].log_count * LOG2E;
    const int variant = job.n_variant == 1 ? 0 : variant_of(job, delta);
    const int32_t *pos = page_positions(job, p);
    const float *scale =
        AT(const float, job.scale) + variant * up16(job.n_tok * job.n_group) + tile * ROWS + g;
    const float by[2] = {scale[0] * LOG2E, scale[8] * LOG2E};
    UNROLL
    for (int e = 0; e < 4; e++)
        x[e] = 0.0f;
    if (8 * warp < wide_count(s, true)) {
        if (lies_sideways(a.k)) {
            const uint8_t *own = keys + (warp ^ lane % 8) * 16;
            wide_dots(a, job, tile, variant, qs, x,
                      [&](uint32_t *b, int k, int i) { ldsm4t(b, own + (16 * k + i) * TILE * 2); });
        } else {
            const uint8_t *own = keys + (8 * warp + lane % 8) * wide_pitch(a.dim_k);
            wide_dots(a, job, tile, variant, qs, x,
                      [&](uint32_t *b, int k, int i) { ldsm4(b, own + (2 * k + i / 8) * 16); });
        }
    }
    float top[2] = {NEG_INF, NEG_INF};
    UNROLL
    for (int e = 0; e < 4; e++) {
        const int entry = 8 * warp + 2 * t + (e & 1), i = e / 2;
        bool sees = (entry & (a.page_len - 1)) < n;
        if (sees && pos != NULL) {
            const int when = pos[entry] + delta;
            sees = when <= rows.limit[i] && (a.window == 0 || when > rows.limit[i] - a.window);
        }
        x[e] = sees ? logit_of(x[e], by[i], add, a.cap, a.cap_by) : NEG_INF;
        float *kept = logit_place(job, a.page_len, p, entry, tile * ROWS + g + 8 * i);
        if (kept != NULL)
            *kept = x[e];
        top[i] = n_max(top[i], x[e]);
    }
    tops_put(tops, top);
}

/* Weights to shared memory, and older sums are multiplied. */
template <int N>
DEV void wide_weights(const float *x, const float *tops, wide_rows<N> &rows, uint8_t *ps)
{
    const int g = LANE / 4, t = LANE % 4;
    float c[2];
    UNROLL
    for (int i = 0; i < 2; i++) {
        const float mm = tops_join<WIDE_WARPS>(tops, i, &rows.m[i], &c[i]);
        *(uint32_t *)(ps + (WARP * ROWS + g + 8 * i) * 16 + t * 4) =
            h2(ex2(x[2 * i] - mm), ex2(x[2 * i + 1] - mm));
    }
    UNROLL
    for (int j = 0; j < 2 * N; j++)
        UNROLL
    for (int e = 0; e < 4; e++)
        rows.o[j][e] *= c[e / 2];
    rows.l[0] *= c[0], rows.l[1] *= c[1];
}

/* Adds weights times the first n values. The last warp, whose dimensions are fewest, counts the
   weights. */
template <int N>
DEV void wide_sums(const uint8_t *values, int pitch, int n, int n_dim16, const uint8_t *ps,
                   wide_rows<N> &rows)
{
    const int warp = WARP, i = LANE / 8;
    values += ((i & 1) * 8 + LANE % 8) * pitch + (2 * warp + i / 2) * 16;
    NO_UNROLL
    for (int k = 0; k < (n + 15) / 16; k++) {
        uint32_t w[4], b[4];
        rows_at(w, ps, k);
        UNROLL
        for (int d = 0; d < N; d++)
            if (WIDE_WARPS * d + warp < n_dim16) {
                ldsm4t(b, values + k * 16 * pitch + d * WIDE_WARPS * 32);
                mma(rows.o[2 * d], w, b[0], b[1]);
                mma(rows.o[2 * d + 1], w, b[2], b[3]);
            }
        if (warp == WIDE_WARPS - 1) {
            float l[4] = {rows.l[0], rows.l[0], rows.l[1], rows.l[1]};
            mma(l, w, ONES, ONES);
            rows.l[0] = l[0], rows.l[1] = l[2];
        }
    }
}

/* Before the first page: its references, and zeros. */
DEV void wide_begin(const gpu_attend_args &a, const gpu_attend_job &job, int first,
                    const wide_room &room)
{
    if (TID == 0)
        room.part[0] = a.k, room.part[1] = a.v;
    if (TID < 4)
        room.refs[(first & 1) * 4 + TID] = short_ref(job, first, TID);
    sync_block();
    if (a.v_in_k < 0)
        wide_clear(room.keys, room.part[0]);
    for (int i = 0; i < a.n_room; i++)
        wide_clear(room.values + i * room.v_size, room.part[a.v_in_k < 0 ? 1 : 0]);
}

/* Queries where all pages have one delta. */
DEV void wide_queries(const gpu_attend_args &a, const gpu_attend_job &job, int tile, uint8_t *qs)
{
    const int dim16 = up16(a.dim_k);
    for (int i = TID; job.n_variant == 1 && i < ROWS * dim16 / 8; i += WIDE_THREADS)
        cp16(qs + i * 16, /* as rows_at has them; they come with the first keys */
             AT(const uint8_t, job.packed) +
                 ((size_t)(tile * ROWS + i % ROWS) * (dim16 / 8) + i / ROWS) * 16);
}

/* What there is room for of the next page: behind a page's weights its keys and, with two rooms, its
   values. The rest comes behind the page's sums. Copies of keys and of values are a group each.
   With no room for values, those of the page itself come behind its weights, and the next keys
   behind its sums. is, more: there is this page, and the next one. */
template <int N>
DEV void wide_next(const gpu_attend_args &a, const wide_room &room, int half, bool is, bool more,
                   bool odd, gpu_attend_ref *here, gpu_attend_ref *next, int shift)
{
    const bool shared = a.v_in_k >= 0, two = a.n_room == 2, none = a.n_room == 0;
    NO_UNROLL
    for (int side = 0; side < 2; side++) {
        const bool early = none ? side == 1 : two || (side == 0 && !shared);
        uint8_t *to = room.values + (two && !odd ? room.v_size : 0);
        if (half != (early ? 0 : 1))
            continue;
        if (side == 0 && !shared)
            to = room.keys;
        const bool own = none && side == 1; /* values of this page */
        const wide_page page = {own ? here : next, shift};
        if ((own ? is : more) && !(side == 1 && shared))
            wide_fill<N == 1 ? 3 : 2>(to, a, room.part[side], page);
        cp_commit();
    }
}

/* 16 rows, and a chunk. Grid: (chunks, calls, tiles of rows). */
template <int N> DEV void attend_wide(const gpu_attend_args &a)
{
    SHARED(smem);
    const gpu_attend_job &job = AT(const gpu_attend_job, a.jobs)[blockIdx.y];
    const int tile = (int)blockIdx.z, chunk = job.n_chunk - 1 - (int)blockIdx.x;
    if (chunk < 0 || tile * ROWS >= job.n_tok * job.n_group)
        return; /* the whole block */
    int first, end;
    chunk_pages(job, chunk, &first, &end);
    const bool shared = a.v_in_k >= 0, two = a.n_room == 2;
    const int shift = a.page_len == 64 ? 6 : a.page_len == 32 ? 5 : 4;
    wide_rows<N> rows = {};
    UNROLL
    for (int i = 0; i < 2; i++) {
        rows.m[i] = NEG_INF;
        rows.limit[i] = job.pos0 + (tile * ROWS + LANE / 4 + 8 * i) / job.n_group;
    }
    const int n_query = up16(a.dim_k) / 16;
    wide_begin(a, job, first, wide_room_of(a, smem, ROWS, n_query));
    wide_queries(a, job, tile, smem);
    NO_UNROLL
    for (int p = first - 1; p < end; p++) {
        const bool is = p >= first, odd = (p & 1) != 0;
        NO_UNROLL
        for (int half = 0; half < 2; half++) { /* what fills a room stands there once */
            const wide_room room = wide_room_of(a, smem + anew(0), ROWS, n_query); /* made anew */
            const wide_page s = {room.refs + (odd ? 4 : 0), shift},
                            next = {room.refs + (odd ? 0 : 4), shift};
            const uint8_t *values = room.values + (two && odd ? room.v_size : 0);
            if (is && half == 0) {
                float x[4];
                gpu_attend_ref ref = {};
                if (TID < 4 && p + 1 < end)
                    ref = short_ref(job, p + 1, TID);
                if (a.n_room == 0)
                    CP_WAIT(0);
                else
                    CP_WAIT(1); /* what came behind keys may be on its way */
                sync_block();
                wide_logits<N>(a, job, p, tile, room.queries, shared ? values : room.keys, s, rows,
                               room.tops, x);
                if (TID < 4)
                    next.refs[TID] = ref;
                sync_block();
                wide_weights<N>(x, room.tops, rows, room.weights);
            } else if (is) {
                if (two)
                    CP_WAIT(2);
                else if (a.n_room == 1)
                    CP_WAIT(1);
                else
                    CP_WAIT(0);
                sync_block();
                wide_sums<N>(shared ? values + a.v_in_k * 2 : values,
                             wide_pitch(shared ? a.dim_k : a.dim_v), wide_count(s, false),
                             up16(a.dim_v) / 16, room.weights, rows);
                if (!two)
                    sync_block();
            }
            wide_next<N>(a, room, half, is, p + 1 < end, odd, s.refs, next.refs, shift);
        }
    }
    part_put<WIDE_WARPS>(a, job, tile, chunk, rows.o, rows.m, rows.l[0], rows.l[1],
                         WARP == WIDE_WARPS - 1);
}

KERNEL(256, 2) attend_wide_128(const gpu_attend_args &a)
{
    attend_wide<1>(a);
}
KERNEL(256, 2) attend_wide_256(const gpu_attend_args &a)
{
    attend_wide<2>(a);
}
KERNEL(256, 2) attend_wide_512(const gpu_attend_args &a)
{
    attend_wide<4>(a);
}

#endif
