/*
 * step.cuh - one token of a whole model in one launch: a block a processor, all at the same time.
 *
 * Weights do not depend on activations. So one warp of each block fetches the block's share of
 * all matrices, in order, into a ring of slots in shared memory, and runs ahead as far as the ring
 * reaches. 16 warps take units of 16 rows x 256 columns out of it. Barriers of the grid, norms and
 * attention stop those warps. The stream from memory goes on as long as the ring has room.
 *
 * The arithmetic is that of matmul.cuh, rows.cuh, store.cuh and attend.cuh, bit by bit. It is one
 * kernel, so it is one file.
 *
 * Slots belong to teams of 4 warps in turn, so that each warp sees every round of its slots: the
 * parity of a round is no more than that. Copies are numbered through the launch; number n goes to
 * slot n mod n_slot, n_slot is a multiple of 4, and team n mod 4 takes it.
 */
#ifndef PI_GPU_STEP_CUH
#define PI_GPU_STEP_CUH

#include "device/gpu/attend.cuh"
#include "device/gpu/matmul.cuh"

enum {
    STEP_WARPS = 16,
    STEP_WORK = 32 * STEP_WARPS,
    STEP_TEAMS = 4,
    STEP_TEAM = STEP_WARPS / STEP_TEAMS,
    STEP_NORMS = 1,  /* eights of a row that a thread keeps in registers, where it is normed */
    STEP_TAKES = 3,  /* and where not */
    STEP_PHASES = 4, /* of a layer */
    STEP_SUMS = 64   /* floats: three sets of 16, and the launch's flags */
};

static_assert((int)STEP_WORK == (int)WIDE_ROW, "columns of threads");

#ifdef GPU_BULK

DEV void sync_work(void)
{
    sync_part(1, STEP_WORK);
}

DEV void sync_grid(const gpu_step_args &s)
{
    sync_work();
    if (TID == 0)
        grid_meet(AT(uint32_t, s.met), blockIdx.x == 0, gridDim.x);
    sync_work();
}

/* ---- which matrices a phase has ---- */

struct step_phase {
    const gpu_step_matrix *m; /* [n] one behind the other, or by groups of 16 rows in turn */
    int n, turns;             /* turns: matrices that take turns */
    int end[3];               /* groups of the first one, of the first two, of all */
};

DEV step_phase phase_of(const gpu_step_matrix *m /* of the layer, or the head */, int which)
{
    step_phase p;
    p.n = which == 0 ? 3 : which == 2 ? 2 : 1;
    p.turns = which == 2 ? 2 : 1;
    p.m = which == 0   ? m + GPU_STEP_Q
          : which == 1 ? m + GPU_STEP_O
          : which == 2 ? m + GPU_STEP_GATE
          : which == 3 ? m + GPU_STEP_DOWN
                       : m;
    UNROLL
    for (int i = 0; i < 3; i++)
        p.end[i] = (i > 0 ? p.end[i - 1] : 0) + (i < p.n ? (p.m[i].n_row + 15) / 16 : 0);
    return p;
}

/* Groups of rows of this block. Those that take turns stay together. */
DEV int items_of(const step_phase &p)
{
    const int n = p.turns == 2 ? p.end[0] : p.end[2];
    return (n - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x * p.turns;
}

struct step_item {
    const gpu_step_matrix *m;
    int which, group;
};

DEV step_item item_of(const step_phase &p, int k)
{
    step_item item;
    item.group = (int)blockIdx.x + k / p.turns * (int)gridDim.x;
    item.which = p.turns == 2 ? k & 1 : (item.group >= p.end[0]) + (item.group >= p.end[1]);
    if (p.turns == 1 && item.which > 0)
        item.group -= item.which == 1 ? p.end[0] : p.end[1];
    item.m = p.m + item.which;
    return item;
}

DEV const gpu_step_layer *layer_at(const gpu_step_args &s, int l)
{
    return AT(const gpu_step_layer, s.layers + (uint64_t)l * s.layer_size);
}

/* ---- the stream ---- */

/* The matrices of phase i, a lane each. Where a layer begins, two lanes more have its norms as
   w. */
DEV gpu_step_matrix lane_matrix(const gpu_step_args &s, int i)
{
    const int l = i / STEP_PHASES, which = i % STEP_PHASES;
    const int n = which == 0 ? 3 : which == 2 ? 2 : 1;
    gpu_step_matrix m = {};
    if (l == s.n_layer) {
        if (LANE == 0)
            m = s.head;
        return m;
    }
    const gpu_step_layer *layer = layer_at(s, l);
    if (LANE < n)
        m = layer->m[(which == 0   ? GPU_STEP_Q
                      : which == 1 ? GPU_STEP_O
                      : which == 2 ? GPU_STEP_GATE
                                   : GPU_STEP_DOWN) +
                     LANE];
    else if (which == 0 && LANE < 5)
        m.w = LANE == 3 ? layer->norm : layer->ffn_norm;
    return m;
}

/* A line of a norm goes to the second level of cache, of each block another one. */
DEV void norm_prefetch(const gpu_step_args &s, gpu_at norm)
{
    const uint64_t at = (uint64_t)blockIdx.x * 128;
    if (at < 4 * (uint64_t)s.n_embd)
        bulk_prefetch(AT(const uint8_t, (norm + at) & ~(uint64_t)127), 128);
}

/* One copy after the other, in the order of the products, by one warp. What it needs to know of a
   phase comes while the phase before is copied. */
DEV void step_fetch(const gpu_step_args &s, uint8_t *smem, uint64_t *full, uint64_t *empty)
{
    const int n_phase = STEP_PHASES * s.n_layer + (s.head.w != 0), n_block = (int)gridDim.x;
    int slot = 0;
    uint32_t lap = 0;
    gpu_step_matrix next = lane_matrix(s, 0);
    for (int i = 0; i < n_phase; i++) {
        const bool last = i == STEP_PHASES * s.n_layer;
        const int turns = !last && i % STEP_PHASES == 2 ? 2 : 1;
        const gpu_step_matrix m = next;
        if (i + 1 < n_phase)
            next = lane_matrix(s, i + 1);
        if (!last && i % STEP_PHASES == 0 && (LANE == 3 || LANE == 4))
            norm_prefetch(s, m.w);
        const uint32_t groups = (uint32_t)(m.n_row + 15) / 16;
        const int end0 = (int)shfl(groups, 0), end1 = end0 + (int)shfl(groups, 1);
        const int n = turns == 2 ? end0 : end1 + (int)shfl(groups, 2);
        const int end = (n - (int)blockIdx.x + n_block - 1) / n_block * turns;
        int group = (int)blockIdx.x;
        for (int k = 0; k < end; k++) {
            const int of = turns == 2 ? k & 1 : (group >= end0) + (group >= end1);
            const int at = turns == 2 || of == 0 ? group : group - (of == 1 ? end0 : end1);
            const int bytes = (int)shfl((uint32_t)m.bytes, of);
            const int n_unit = (int)shfl((uint32_t)m.n_unit, of);
            const uint64_t w = shfl((uint32_t)m.w, of) | (uint64_t)shfl((uint32_t)(m.w >> 32), of)
                                                             << 32;
            int left = (int)shfl((uint32_t)m.n_block, of) * bytes;
            const uint8_t *from = AT(const uint8_t, w) + (size_t)at * left;
            for (const int most = n_unit * bytes; left > 0; left -= most, from += most) {
                const int size = left < most ? left : most;
                /* one lane alone: others might miss a round, as a wait knows parities only */
                if (LANE == 0) {
                    if (lap > 0)
                        bar_wait(&empty[slot], (lap - 1) & 1);
                    bar_expect(&full[slot], size);
                    bulk_copy(smem + slot * s.slot_size, from, size, &full[slot]);
                }
                if (++slot == s.n_slot)
                    slot = 0, lap++;
            }
            if (turns == 1 || (k & 1) != 0)
                group += n_block;
        }
    }
}

/* ---- products ---- */

/* Place of column c of the input, in halves, for loads of 16 bytes: of each 64 columns
   [lane % 4][k-step][half of it][2]. */
DEV int x_place(int c)
{
    return c / 64 * 64 + c % 8 / 2 * 16 + c / 16 % 4 * 4 + c / 8 % 2 * 2 + c % 2;
}

DEV void give_back(uint64_t *empty)
{
    sync_warp();
    if (LANE == 0)
        bar_arrive(empty);
}

/* A unit of a slot times x. All tokens of the tensor cores' second operand are the same one. The
   slot is given back when its codes are in registers: of wide types, which come a tile at a time,
   those of the last one. */
template <int T>
DEV void step_unit(const uint8_t *unit, uint64_t *empty, const uint8_t *x, float *part)
{
    const bool wide = T != GPU_WEIGHT_Q4_K && T != GPU_WEIGHT_Q4_0;
    codes<T> c[wide ? 1 : 4];
    stored_scales<T> st;
    ready_scales<T> ready;
    UNROLL
    for (int j = 0; j < (wide ? 0 : 4); j++)
        codes_load<T, true>(&c[wide ? 0 : j], unit, j);
    scales_load<T, true>(&st, unit);
    scales_ready<T>(&st, &ready);
    if (!wide)
        give_back(empty);
    float acc[4] = {};
    UNROLL
    for (int j = 0; j < 4; j++) {
        const uint4 x0 = *(const uint4 *)(x + j * 128 + LANE % 4 * 32);
        const uint4 x1 = *(const uint4 *)(x + j * 128 + LANE % 4 * 32 + 16);
        tile_scales ts;
        scales_of_tile<T>(&ready, j, &ts);
        if (wide)
            codes_load<T, true>(&c[0], unit, j);
        if (wide && j == 3)
            give_back(empty);
        UNROLL
        for (int k = 0; k < 4; k++) {
            uint32_t a[4];
            fragment<T>(&c[wide ? 0 : j], &ts, k, a);
            mma(acc, a, word_of(k < 2 ? x0 : x1, k % 2 * 2),
                word_of(k < 2 ? x0 : x1, k % 2 * 2 + 1));
        }
    }
    if (LANE % 4 == 0)
        part[LANE / 4] = acc[0], part[LANE / 4 + 8] = acc[2];
}

/* A block's part of the launch, as its warps see it. */
struct step_block {
    uint8_t *ring, *xs;
    float *parts, *sums;
    uint64_t *full, *empty;
    int slot;              /* of the next copy, */
    uint32_t lap;          /* and how often the ring has gone round before it */
    float x_scale;         /* of the input */
    uint8_t *layers;       /* copies of the layer and of the next one */
    gpu_step_matrix *head; /* copies, too: */
    gpu_step_kind *kinds;
    float *vectors; /* of step_here */
};

/* The units of one item that are this warp's. */
template <int T>
DEV void step_multiply(const gpu_step_args &s, step_block *b, const gpu_step_matrix &m, float *part)
{
    const int n_block = m.n_block, n_unit = m.n_unit, n_copy = m.n_copy, team = WARP / STEP_TEAM;
    NO_UNROLL
    for (int c = (team - b->slot) & (STEP_TEAMS - 1); c < n_copy; c += STEP_TEAMS) {
        int slot = b->slot + c;
        uint32_t lap = b->lap;
        for (; slot >= s.n_slot; lap++)
            slot -= s.n_slot;
        const int n = n_unit < n_block - c * n_unit ? n_unit : n_block - c * n_unit;
        const int mine = (WARP - slot / STEP_TEAMS - (int)lap) & (STEP_TEAM - 1);
        bar_wait(&b->full[slot], lap & 1);
        if (mine < n)
            step_unit<T>(b->ring + slot * s.slot_size + mine * block_bytes(T), &b->empty[slot],
                         b->xs + (c * n_unit + mine) * 512, part + (c * n_unit + mine) * 16);
        else
            give_back(&b->empty[slot]); /* when all lanes have seen the round */
    }
    b->slot += n_copy;
    for (; b->slot >= s.n_slot; b->lap++)
        b->slot -= s.n_slot;
}

DEV void step_any(const gpu_step_args &s, step_block *b, const gpu_step_matrix &m, float *part)
{
    switch (m.type) {
#define STEP_CASE(type)                                                                            \
    case GPU_WEIGHT_##type:                                                                        \
        step_multiply<GPU_WEIGHT_##type>(s, b, m, part);                                           \
        break;
        GPU_STEP_WEIGHTS(STEP_CASE)
#undef STEP_CASE
    }
}

/* ---- inputs of products ---- */

DEV float step_most(float top, float *room)
{
    top = warp_max(top);
    if (LANE == 0)
        room[WARP] = top;
    sync_work();
    for (int i = 0; i < STEP_WARPS; i++)
        top = f_max(top, room[i]);
    return top;
}

/* Eight columns of a row that other blocks wrote. Behind the last column are zeros. */
DEV void far_eight(float *v, const float *row, int at, int n)
{
    if (in_eights(row, n)) {
        const float4 a = at < n ? ld_far4(row + at) : float4(),
                     b = at < n ? ld_far4(row + at + 4) : float4();
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
    UNROLL
    for (int i = 0; i < 8; i++)
        v[i] = at + i < n ? ld_far(row + at + i) : 0.0f;
}

/* Likewise to f16, times a power of two. */
DEV void put_eight(const step_block *b, int c, const float *v, float by)
{
    UNROLL
    for (int i = 0; i < 8; i += 2)
        *(uint32_t *)(b->xs + 2 * x_place(c + i)) = h2(v[i] * by, v[i + 1] * by);
}

/* The columns of thread TID are those of rows.cuh's kernels of a whole row: eights, WIDE_ROW * 8
   apart. The first ones stay in registers. */
DEV int eights_of(int j)
{
    return 8 * (TID + STEP_WORK * j);
}

/* Eight columns of x again, normed where there is a norm. */
DEV void step_again(float *v, const float *x, const float *norm, float factor, int c, int n)
{
    float by[8];
    far_eight(v, x, c, n);
    if (norm == 0)
        return;
    load_eight(by, norm, c, n);
    UNROLL
    for (int e = 0; e < 8; e++)
        v[e] = v[e] * factor * by[e];
}

/* A row to f16 as pack_row makes it: N eights of a thread, which holds them, then the rest. */
template <int N>
DEV void step_put(step_block *b, const float (*held)[8], float top, const float *x,
                  const float *norm, float factor, int n)
{
    const int n256 = (n + 255) / 256 * 256;
    float more[8];
    for (int c = eights_of(N); c < n; c += 8 * STEP_WORK) {
        step_again(more, x, norm, factor, c, n);
        top = most_of_eight(more, top);
    }
    top = step_most(top, b->sums + STEP_WARPS);
    const float scale = row_power(top, false);
    b->x_scale = row_power(top, true);
    UNROLL
    for (int j = 0; j < N; j++)
        if (eights_of(j) < n256)
            put_eight(b, eights_of(j), held[j], scale);
    for (int c = eights_of(N); c < n256; c += 8 * STEP_WORK) {
        step_again(more, x, norm, factor, c, n);
        put_eight(b, c, more, scale);
    }
    sync_work();
}

/* The norm of x, as `between` makes it. */
DEV void step_norm(const gpu_step_args &s, step_block *b, const float *x, const float *norm)
{
    float v[STEP_NORMS][8], w[STEP_NORMS][8], more[8], square = 0.0f, top = 0.0f;
    const int n = s.n_embd;
    UNROLL
    for (int j = 0; j < STEP_NORMS; j++) {
        far_eight(v[j], x, eights_of(j), n);
        load_eight(w[j], norm, eights_of(j), n);
    }
    UNROLL
    for (int j = 0; j < STEP_NORMS; j++)
        square = square_of_eight(v[j], square);
    for (int c = eights_of(STEP_NORMS); c < n; c += 8 * STEP_WORK) {
        far_eight(more, x, c, n);
        square = square_of_eight(more, square);
    }
    square = warp_sum(square);
    if (LANE == 0)
        b->sums[WARP] = square;
    sync_work();
    float sum = 0.0f;
    for (int i = 0; i < STEP_WARPS; i++)
        sum += b->sums[i];
    const float factor = 1.0f / sqrtf(sum / (float)n + s.eps);
    UNROLL
    for (int j = 0; j < STEP_NORMS; j++) {
        UNROLL
        for (int e = 0; e < 8; e++)
            v[j][e] = v[j][e] * factor * w[j][e];
        top = most_of_eight(v[j], top);
    }
    step_put<STEP_NORMS>(b, v, top, x, norm, factor, n);
}

/* A row of other blocks. */
DEV void step_take(step_block *b, const float *x, int n)
{
    float v[STEP_TAKES][8], top = 0.0f;
    UNROLL
    for (int j = 0; j < STEP_TAKES; j++)
        far_eight(v[j], x, eights_of(j), n);
    UNROLL
    for (int j = 0; j < STEP_TAKES; j++)
        top = most_of_eight(v[j], top);
    step_put<STEP_TAKES>(b, v, top, x, 0, 1.0f, n);
}

/* ---- attention ---- */

/* The running layer, in shared memory: others read it late, since a barrier of the grid empties the
   first level of cache. */
struct step_here {
    const gpu_step_layer *layer;
    const gpu_step_lane *lanes; /* [n_head_kv] */
    const gpu_step_kind *kind;
    float *q_norm, *k_norm, *cs; /* [dim_k], [dim_k], [n_pair][2] */
};

/* The chunks of a layer's lanes in turn: the longest are the last of a lane, and go first. The
   order of blocks turns round, so that none gets the longest always. */
struct step_piece {
    int k, head, chunk;
    const gpu_step_lane *lane; /* 0: there are no more */
    int first, end;            /* pages */
};

DEV step_piece next_piece(const gpu_step_args &s, const step_here &h, int k)
{
    const int n = h.layer->n_most * s.n_head_kv, n_block = (int)gridDim.x;
    step_piece p;
    p.lane = 0, p.head = p.chunk = p.first = p.end = 0;
    for (p.k = k;; p.k++) {
        const int i = p.k * n_block + (p.k % 2 ? n_block - 1 - (int)blockIdx.x : (int)blockIdx.x);
        if (p.k * n_block >= n)
            return p;
        if (i >= n)
            continue;
        p.head = i % s.n_head_kv;
        p.chunk = h.layer->n_most - 1 - i / s.n_head_kv;
        if (p.chunk < h.lanes[p.head].n_chunk)
            break;
    }
    const gpu_step_lane *lane = p.lane = h.lanes + p.head;
    if (lane->chunks != 0) {
        p.first = AT(const int32_t, lane->chunks)[p.chunk];
        p.end = AT(const int32_t, lane->chunks)[p.chunk + 1];
    } else {
        p.first = chunk_first(p.chunk);
        p.end = chunk_first(p.chunk + 1);
        p.end = p.end < lane->end ? p.end : lane->end;
    }
    return p;
}

DEV bool adds_to(const step_piece &p)
{
    return p.chunk == p.lane->chunk;
}

/* A tile of entries in shared memory, in one of two forms. near: keys [dim][64 entries], values
   [entry][dim], as pages have them, 16 bytes each, whose number is turned by the row's, so that no
   bank is hit twice. Else [8 dimensions][64 entries][16 bytes]. */
struct step_tile {
    int near, dim16, v16, v_row /* bytes */, values /* offset */;
};

DEV step_tile tile_of(const gpu_step_args &s, const gpu_step_kind &kind)
{
    step_tile t;
    t.near = kind.near, t.dim16 = up16(s.dim_k), t.v16 = up16(s.dim_v);
    t.v_row = (s.dim_v * 2 + 127) / 128 * 128;
    t.values = t.dim16 * 128;
    return t;
}

DEV void near_fetch(const gpu_step_args &s, const gpu_step_kind &kind, const step_tile &t,
                    const uint8_t *page, uint8_t *out)
{
    const int n_key = s.page_len / 8, n_value = s.dim_v / 8;
    for (int i = TID; i < s.dim_k * n_key; i += STEP_WORK) {
        const int row = i / n_key, c = i % n_key;
        cp16(out + row * 128 + (c ^ (row & 7)) * 16, page + kind.k.plane[0].at + i * 16);
    }
    for (int i = TID; i < s.page_len * n_value; i += STEP_WORK) {
        const int row = i / n_value, c = i % n_value;
        cp16(out + t.values + row * t.v_row + (c ^ (row & 7)) * 16,
             page + kind.v.plane[0].at + (size_t)row * kind.v.plane[0].pitch + c * 16);
    }
}

/* Any other type, by way of registers. */
DEV void far_fill(const gpu_part &part, const uint8_t *page, int page_len, int n, int order,
                  uint8_t *out)
{
    const int n16 = up16(n), n8 = up16(part.dim) / 8;
    for (int i = TID; i < n16 * n8; i += STEP_WORK) {
        const int e = i % n16, d8 = i / n16;
        float x[8] = {};
        if (e < n)
            entry_slots(part, page, page_len, e, d8 * 8, order, x);
        *(uint4 *)(out + (d8 * TILE + e) * 16) =
            make_uint4(h2(x[0], x[1]), h2(x[2], x[3]), h2(x[4], x[5]), h2(x[6], x[7]));
    }
}

/* Keys 8 w .. 8 w + 7 at dimensions 16 k .. 16 k + 32: of two k-steps. */
DEV void step_keys(const step_tile &t, const uint8_t *keys, int w, int k, uint32_t *b)
{
    const int i = LANE / 8, r = LANE % 8, row = 16 * k + 8 * i + r;
    if (t.near)
        ldsm4t(b, keys + row * 128 + (w ^ (row & 7)) * 16);
    else
        ldsm4(b, keys + ((2 * k + i) * TILE + 8 * w + r) * 16);
}
/* Values of entries 16 k .. 16 k + 16 at dimensions 8 d and, in b[2..3], 8 e ... */
DEV void step_values(const step_tile &t, const uint8_t *values, int d, int e, int k, uint32_t *b)
{
    const int i = LANE / 8, row = 16 * k + (i & 1) * 8 + LANE % 8, c = i < 2 ? d : e;
    if (t.near)
        ldsm4t(b, values + row * t.v_row + (c ^ (row & 7)) * 16);
    else
        ldsm4t(b, values + (c * TILE + row) * 16);
}

/* A query of the group to f16 there, by a warp: qkv, then attend_queries. */
DEV void step_query(const gpu_step_args &s, const step_here &h, float *x, int head, int row,
                    uint8_t *qs, float *scale)
{
    const int dim = s.dim_k;
    const float *bias = AT(const float, h.layer->bq);
    head_row(x, AT(const float, s.q) + (size_t)head * dim, dim,
             bias != 0 ? bias + head * dim : bias, h.layer->q_norm != 0 ? h.q_norm : 0, s.eps, 0,
             h.layer->cs != 0 ? h.cs : 0, h.layer->n_pair, h.layer->adjacent);
    if (s.temp_scale != 0.0f) {
        const float by = temperature(s.temp_scale, s.temp_len, *AT(const int32_t, s.pos));
        for (int i = LANE; i < dim; i += 32)
            x[i] *= by;
        sync_warp();
    }
    if (h.kind->k.wht_scale != 0.0f)
        wht_shared<32>(x, dim, h.kind->k.group, h.kind->k.wht_scale, false);
    float top = 0.0f;
    for (int i = LANE; i < dim; i += 32)
        top = f_max(top, fabsf(x[i]));
    top = warp_max(top);
    const float by = row_power(top, false);
    for (int c = 2 * LANE; c < up16(dim); c += 64) {
        const int i = slot_dim(h.kind->order, c), j = slot_dim(h.kind->order, c + 1);
        *(uint32_t *)(qs + (c / 8 * ROWS + row) * 16 + c % 8 * 2) =
            h2(i < dim ? x[i] * by : 0.0f, j < dim ? x[j] * by : 0.0f);
    }
    if (LANE == 0)
        scale[row] = row_power(top, true) * s.factor;
}

/* The new key and value of a head, in shared memory, by a warp each. */
DEV void step_key(const gpu_step_args &s, const step_here &h, int head, float *x)
{
    const int dim = s.dim_k;
    const float *bias = AT(const float, h.layer->bk);
    head_row(x, AT(const float, s.k) + (size_t)head * dim, dim,
             bias != 0 ? bias + head * dim : bias, h.layer->k_norm != 0 ? h.k_norm : 0, s.eps, 0,
             h.layer->cs != 0 ? h.cs : 0, h.layer->n_pair, h.layer->adjacent);
    for (int i = LANE; h.layer->centre != 0 && i < dim; i += 32)
        x[i] -= AT(const float, h.layer->centre)[head * dim + i];
}
DEV void step_value(const gpu_step_args &s, const step_here &h, int head, float *x)
{
    const float *from = AT(const float, s.v) + (size_t)head * s.dim_v;
    float v[8];
    UNROLL
    for (int j = 0; j < 8; j++)
        v[j] = LANE + 32 * j < s.dim_v ? ld_far(from + LANE + 32 * j) : 0.0f;
    UNROLL
    for (int j = 0; j < 8; j++) {
        const int i = LANE + 32 * j;
        if (i < s.dim_v)
            x[i] =
                h.layer->bv != 0 ? v[j] + AT(const float, h.layer->bv)[head * s.dim_v + i] : v[j];
    }
}

/* The queries of a piece; where its chunk has the new entry's page, that is written. */
DEV void step_enter(const gpu_step_args &s, const step_here &h, const step_piece &p, uint8_t *smem)
{
    const int n_group = s.n_head / s.n_head_kv, half = TID / 128 % 2;
    float *rows = (float *)(smem + s.rows), *key = rows + n_group * s.dim_k, *value = key + s.dim_k;
    float *scale = (float *)(smem + s.sums) + 2 * STEP_WARPS;
    const int n_code = row_codes(s.dim_k > s.dim_v ? s.dim_k : s.dim_v);
    uint8_t *code = smem + s.codes + half * (n_code + 64);
    for (int r = WARP; r < n_group + (adds_to(p) ? 2 : 0); r += STEP_WARPS)
        if (r < n_group)
            step_query(s, h, rows + r * s.dim_k, p.head * n_group + r, r, smem + s.queries, scale);
        else if (r == n_group)
            step_key(s, h, p.head, key);
        else
            step_value(s, h, p.head, value);
    sync_work();
    if (!adds_to(p))
        return;
    const gpu_part &part = half == 0 ? h.kind->k : h.kind->v;
    const float *x = half == 0 ? key : value;
    uint16_t *to = (uint16_t *)(code + n_code);
    if (TID < 256) {
        if (row_clips(x, part.dim, h.kind->limit[half], TID % 128) && s.clipped != 0)
            atomic_min(AT(int32_t, s.clipped), h.layer->clip + half);
        row_encode(part, x, code, to, TID % 128);
    }
    if (!h.kind->near)
        sync_work();
    if (TID < 256)
        row_store(part, x, code, to, AT(uint8_t, p.lane->page), s.page_len, p.lane->slot,
                  TID % 128);
    if (!h.kind->near)
        sync_work();
}

/* The new entry to a tile whose page was fetched before it was written: near. */
DEV void step_patch(const gpu_step_args &s, const step_tile &t, const step_piece &p, uint8_t *smem,
                    uint8_t *tile)
{
    const float *key = (const float *)(smem + s.rows) + s.n_head / s.n_head_kv * s.dim_k;
    const int slot = p.lane->slot;
    for (int d = TID; d < s.dim_k; d += STEP_WORK)
        *(uint16_t *)(tile + d * 128 + ((slot / 8) ^ (d & 7)) * 16 + slot % 8 * 2) =
            (uint16_t)half_of(within(key[d], 65504.0f));
    for (int d = TID; d < s.dim_v; d += STEP_WORK)
        *(uint16_t *)(tile + t.values + slot * t.v_row + ((d / 8) ^ (slot & 7)) * 16 + d % 8 * 2) =
            (uint16_t)half_of(within(key[s.dim_k + d], 65504.0f));
    sync_work();
}

/* What a block holds of a piece's sums: rows g and g + 8, dimensions 8 warp .. and 8 (warp + 16)
 * ...
   */
struct step_sums {
    float o[2][4], l[4], m[2];
};

/* A tile, of whose entries the first `skip` are not seen: attend_part's loop. */
DEV void step_attend(const gpu_step_args &s, const step_tile &t, const uint8_t *tile, int skip,
                     const gpu_attend_ref &ref, uint8_t *smem, step_sums *a)
{
    const int warp = WARP, g = LANE / 4, u = LANE % 4, n = ref.n, n_step = (n + 15) / 16;
    uint8_t *qs = smem + s.queries, *ps = smem + s.weights;
    float *tops = (float *)(ps + ROWS * TILE * 2); /* [8][16] */
    const float *scale = (const float *)(smem + s.sums) + 2 * STEP_WARPS;
    float x[4] = {}, top[2] = {NEG_INF, NEG_INF};
    if (warp < 8) {
        for (int k = 0; warp < 2 * n_step && k < t.dim16 / 16; k += 2) {
            uint32_t q[4], b[4];
            step_keys(t, tile, warp, k, b);
            rows_at(q, qs, k);
            mma(x, q, b[0], b[1]);
            if (k + 1 < t.dim16 / 16) {
                rows_at(q, qs, k + 1);
                mma(x, q, b[2], b[3]);
            }
        }
        UNROLL
        for (int e = 0; e < 4; e++) {
            const int slot = 8 * warp + 2 * u + (e & 1), i = e / 2;
            const float y =
                logit_of(x[e], scale[g + 8 * i] * LOG2E, ref.log_count * LOG2E, s.cap, s.cap_by);
            x[e] = slot >= skip && slot < n ? y : NEG_INF;
            top[i] = f_max(top[i], x[e]);
        }
        tops_put(tops, top);
    }
    sync_work();
    float c[2];
    UNROLL
    for (int i = 0; i < 2; i++) {
        const float mm = tops_join<8>(tops, i, &a->m[i], &c[i]);
        if (warp < 8)
            *(uint32_t *)(ps + (warp * ROWS + g + 8 * i) * 16 + u * 4) =
                h2(ex2(x[2 * i] - mm), ex2(x[2 * i + 1] - mm));
    }
    sync_work();
    UNROLL
    for (int e = 0; e < 4; e++) {
        a->o[0][e] *= c[e / 2];
        a->o[1][e] *= c[e / 2];
        a->l[e] *= c[e / 2];
    }
    const int n_d = t.v16 / 8, d0 = warp < n_d ? warp : 0, d1 = warp + 16 < n_d ? warp + 16 : d0;
    for (int k = 0; k < n_step; k++) {
        uint32_t w[4], b[4];
        rows_at(w, ps, k);
        step_values(t, tile + t.values, d0, d1, k, b);
        mma(a->o[0], w, b[0], b[1]);
        mma(a->o[1], w, b[2], b[3]);
        mma(a->l, w, ONES, ONES);
    }
    sync_work();
}

/* What a row's chunks are joined to, in order: maximum, sum of weights, sum of values. */
struct step_join {
    float m, l, o;
};

DEV step_join join_start(const step_here &h, int head)
{
    step_join j;
    j.m = h.layer->sink != 0 ? AT(const float, h.layer->sink)[head] * LOG2E : NEG_INF;
    j.l = h.layer->sink != 0 ? 1.0f : 0.0f;
    j.o = 0.0f;
    return j;
}
DEV void join_add(step_join *j, float m, float l, float o)
{
    const float now = f_max(j->m, m), mm = finite_of(now), c = ex2(j->m - mm), w = ex2(m - mm);
    j->l = fmaf(l, w, j->l * c);
    j->o = fmaf(o, w, j->o * c);
    j->m = now;
}
DEV float join_end(const step_join &j)
{
    return j.l > 0.0f ? j.o / j.l : 0.0f;
}

/* The sums of a piece for others; true: this block is the last of its head. */
DEV bool step_hand_over(const gpu_step_args &s, const step_piece &p, size_t part0, uint8_t *smem,
                        const step_sums *a)
{
    const int n_group = s.n_head / s.n_head_kv, v16 = up16(s.dim_v), g = LANE / 4, u = LANE % 4;
    float *o = AT(float, s.o), *ml = AT(float, s.ml);
    uint32_t *flag = (uint32_t *)(smem + s.sums) + 3 * STEP_WARPS;
    UNROLL
    for (int i = 0; i < 2; i++) {
        const int row = g + 8 * i;
        const size_t at = part0 + (size_t)p.chunk * n_group + row;
        UNROLL
        for (int d = 0; d < 2; d++)
            UNROLL
        for (int e = 0; e < 2; e++)
            if (row < n_group && (WARP + 16 * d) * 8 < v16)
                o[at * v16 + (WARP + 16 * d) * 8 + 2 * u + e] = a->o[d][2 * i + e];
        if (row < n_group && WARP == 0 && u == 0)
            ml[at * 2] = a->m[i], ml[at * 2 + 1] = a->l[2 * i];
    }
    fence();
    sync_work();
    if (TID == 0) {
        *flag = atomic_wrap(AT(uint32_t, s.done) + p.head, (uint32_t)p.lane->n_chunk - 1);
        fence();
    }
    sync_work();
    return (int)*flag == p.lane->n_chunk - 1;
}

/* Joins the chunks of a head, and turns sums of rotated values back: attend_join. */
DEV void step_leave(const gpu_step_args &s, const step_here &h, const step_piece &p, uint8_t *smem,
                    const step_sums *a)
{
    const int n_group = s.n_head / s.n_head_kv, v16 = up16(s.dim_v), head0 = p.head * n_group;
    const size_t part0 = (size_t)head0 * h.layer->n_most;
    const float *o = AT(const float, s.o), *ml = AT(const float, s.ml);
    float *rows = (float *)(smem + s.rows);
    if (p.lane->n_chunk == 1) {
        UNROLL
        for (int i = 0; i < 8; i++) {
            const int row = LANE / 4 + (i & 2) * 4;
            const int d = (WARP + (i & 4) * 4) * 8 + 2 * (LANE % 4) + (i & 1);
            if (row >= n_group || d >= s.dim_v)
                continue;
            step_join j = join_start(h, head0 + row);
            join_add(&j, a->m[i >> 1 & 1], a->l[i & 2], a->o[i >> 2][i & 3]);
            rows[row * s.dim_v + d] = join_end(j);
        }
    } else {
        if (!step_hand_over(s, p, part0, smem, a))
            return;
        for (int i = TID; i < n_group * s.dim_v; i += STEP_WORK) {
            const int row = i / s.dim_v;
            step_join j = join_start(h, head0 + row);
            UNROLL4
            for (int c = 0; c < p.lane->n_chunk; c++) {
                const size_t at = part0 + (size_t)c * n_group + row;
                join_add(&j, ld_far(ml + at * 2), ld_far(ml + at * 2 + 1),
                         ld_far(o + at * v16 + i % s.dim_v));
            }
            rows[i] = join_end(j);
        }
    }
    sync_work();
    const gpu_part &part = h.kind->v;
    for (int r = WARP; part.wht_scale != 0.0f && r < n_group; r += STEP_WARPS)
        wht_shared<32>(rows + r * s.dim_v, s.dim_v, part.group, part.wht_scale, true);
    if (part.wht_scale != 0.0f)
        sync_work();
    for (int i = TID; i < n_group * s.dim_v; i += STEP_WORK)
        AT(float, s.att)[(size_t)head0 * s.dim_v + i] = rows[i];
}

/* Pages on their way to the two tiles, in the order in which this block needs them. */
struct step_pages {
    step_piece p; /* of the next page that is fetched */
    int page;
    int n_fetched, n_used;
    gpu_attend_ref next, there[2]; /* that page, and those in the tiles */
};

DEV gpu_attend_ref ref_at(const gpu_step_lane *lane, int i)
{
    gpu_attend_ref ref = AT(const gpu_attend_ref, lane->refs)[i];
    if (i == lane->last)
        ref.n = lane->last_n;
    return ref;
}

DEV const uint8_t *page_at(const step_here &h, const gpu_attend_ref &ref)
{
    return AT(const uint8_t, h.kind->pool) + (uint64_t)ref.page * h.kind->stride;
}

DEV void pages_next(step_pages *f)
{
    if (f->p.lane != 0)
        f->next = ref_at(f->p.lane, f->page);
}

/* Fetches the next page, if a tile is free. */
DEV void step_page_fetch(const gpu_step_args &s, const step_here &h, const step_tile &t,
                         uint8_t *tiles, step_pages *f)
{
    if (f->p.lane == 0 || f->n_fetched - f->n_used == 2)
        return;
    near_fetch(s, *h.kind, t, page_at(h, f->next), tiles + f->n_fetched % 2 * s.tile);
    cp_commit();
    f->there[1] = f->next;
    if (f->n_fetched == f->n_used)
        f->there[0] = f->next;
    f->n_fetched++;
    if (++f->page == f->p.end) {
        f->p = next_piece(s, h, f->p.k + 1);
        f->page = f->p.first;
    }
    pages_next(f);
}

/* Waits for the next tile. */
DEV void step_page_wait(const gpu_step_args &s, const step_here &h, const step_tile &t,
                        uint8_t *tiles, step_pages *f)
{
    step_page_fetch(s, h, t, tiles, f);
    step_page_fetch(s, h, t, tiles, f);
    if (f->n_fetched - f->n_used == 2)
        CP_WAIT(1);
    else
        CP_WAIT(0);
}

/* Attention of a layer, with the barrier before it. */
DEV void step_attention(const gpu_step_args &s, const step_here &h, uint8_t *smem)
{
    const step_tile t = tile_of(s, *h.kind);
    uint8_t *tiles = smem + s.area;
    step_pages f;
    f.p = next_piece(s, h, 0);
    f.page = f.p.first, f.n_fetched = f.n_used = 0;
    step_piece p = f.p;
    pages_next(&f);
    for (int i = 0; t.near && i < 2; i++) /* what this token writes is put there by step_patch */
        step_page_fetch(s, h, t, tiles, &f);
    sync_grid(s);
    for (; p.lane != 0; p = next_piece(s, h, p.k + 1)) {
        step_sums a = {};
        a.m[0] = a.m[1] = NEG_INF;
        step_enter(s, h, p, smem);
        NO_UNROLL
        for (int i = p.first; i < p.end; i++) {
            uint8_t *tile = tiles + f.n_used % 2 * s.tile;
            if (t.near) {
                step_page_wait(s, h, t, tiles, &f);
            } else {
                f.there[0] = ref_at(p.lane, i);
                const uint8_t *page = page_at(h, f.there[0]);
                far_fill(h.kind->k, page, s.page_len, f.there[0].n, h.kind->order, tile);
                far_fill(h.kind->v, page, s.page_len, f.there[0].n, GPU_ORDER_PLAIN,
                         tile + t.values);
            }
            sync_work();
            if (t.near && adds_to(p) && i == p.lane->index)
                step_patch(s, t, p, smem, tile);
            step_attend(s, t, tile, i == p.lane->first ? p.lane->skip : 0, f.there[0], smem, &a);
            f.n_used++;
            f.there[0] = f.there[1];
        }
        step_leave(s, h, p, smem, &a);
        sync_work();
    }
}

/* ---- the launch ---- */

/* A product's number, where it is one: what the phase does with it. */
DEV void step_done(const gpu_step_args &s, const gpu_step_layer *layer, int which,
                   const step_item &item, bool is, int row, float y)
{
    is = is && row < item.m->n_row;
    if (which == 2) {
        const float up = AS_F(shfl(AS_U(y), (LANE + 16) & 31)); /* of the thread 16 further on */
        if (is && item.which == 0)
            AT(float, s.act)[row] = activate(s.activation, y, up);
    } else if (which == 0) {
        if (is)
            AT(float, item.which == 0 ? s.q : item.which == 1 ? s.k : s.v)[row] = y;
    } else if (which == STEP_PHASES) {
        if (is)
            AT(float, s.logits)[row] = y;
    } else if (is) {
        float *x = AT(float, s.x) + row;
        if (which == 1 && layer->bo != 0)
            y += AT(const float, layer->bo)[row];
        *x = ld_far(x) + y;
    }
}

/* The products of a phase, some items at a time. Threads get sums in order of rows. */
DEV void step_product(const gpu_step_args &s, step_block *b, const gpu_step_layer *layer, int which)
{
    const step_phase p = phase_of(which == STEP_PHASES ? b->head : layer->m, which);
    const int end = items_of(p), n_block = p.m->n_block;
    int most = s.part_units / n_block, half = 0;
    most = (most < STEP_WARPS * 2 ? most : STEP_WARPS * 2) & ~1;
    for (int k0 = 0; k0 < end; k0 += most, half ^= 1) {
        const int some = end - k0 < most ? end - k0 : most;
        float *parts = b->parts + half * s.part_units * 16;
        NO_UNROLL
        for (int k = 0; k < some; k++)
            step_any(s, b, *item_of(p, k0 + k).m, parts + k * n_block * 16);
        sync_work();
        /* whole warps: what is done may exchange numbers within one */
        if (TID < (some * 16 + 31) / 32 * 32) {
            const bool is = TID < some * 16;
            const step_item item = item_of(p, k0 + (is ? TID / 16 : 0));
            const float *from = parts + (is ? TID / 16 : 0) * n_block * 16 + TID % 16;
            float sum = 0.0f;
            UNROLL4
            for (int i = 0; i < n_block; i++)
                sum += from[i * 16];
            step_done(s, layer, which, item, is, item.group * 16 + TID % 16,
                      sum * item.m->scale * b->x_scale);
        }
    }
    sync_work();
}

/* Asks for a layer's struct and its lanes. */
DEV void layer_fetch(const gpu_step_args &s, const step_block *b, int l)
{
    const uint8_t *from = AT(const uint8_t, s.layers + (uint64_t)l * s.layer_size);
    uint8_t *to = b->layers + l % 2 * s.layer_size;
    for (int i = 16 * TID; i < s.layer_size; i += 16 * STEP_WORK)
        cp16(to + i, from + i);
    cp_commit();
}

/* What the launch reads again and again. */
DEV void step_copy(const gpu_step_args &s, step_block *b)
{
    const uint32_t *from = AT(const uint32_t, s.kinds);
    layer_fetch(s, b, 0);
    for (int i = TID; i < s.n_kind * (int)sizeof(gpu_step_kind) / 4; i += STEP_WORK)
        ((uint32_t *)b->kinds)[i] = from[i];
    if (TID == 0)
        *b->head = s.head;
}

DEV step_here here_of(const gpu_step_args &s, const step_block *b, int l)
{
    step_here h;
    h.layer = (const gpu_step_layer *)(b->layers + l % 2 * s.layer_size);
    h.lanes = (const gpu_step_lane *)(h.layer + 1);
    h.kind = b->kinds + h.layer->kind;
    h.q_norm = b->vectors, h.k_norm = h.q_norm + s.dim_k, h.cs = h.k_norm + s.dim_k;
    return h;
}

/* The second half of the warps brings the vectors of heads, while the first one sums a norm. */
DEV void vectors_copy(const gpu_step_args &s, const step_here &h)
{
    const int t = TID - STEP_WORK / 2;
    for (int i = t; t >= 0 && i < s.dim_k; i += STEP_WORK / 2) {
        if (h.layer->q_norm != 0)
            h.q_norm[i] = AT(const float, h.layer->q_norm)[i];
        if (h.layer->k_norm != 0)
            h.k_norm[i] = AT(const float, h.layer->k_norm)[i];
    }
    for (int i = t; t >= 0 && h.layer->cs != 0 && i < 2 * h.layer->n_pair; i += STEP_WORK / 2)
        h.cs[i] = AT(const float, h.layer->cs)[i];
}

/* The first pages that this block reads in a layer go to the second level of cache: by one thread,
   early, since what comes from memory waits behind the ring's share of it. */
DEV void pages_prefetch(const gpu_step_args &s, const step_here &h)
{
    const step_piece p = next_piece(s, h, 0);
    for (int i = p.first; p.lane != 0 && i < p.end && i < p.first + 4; i++)
        bulk_prefetch(page_at(h, ref_at(p.lane, i)), (int)h.kind->stride);
}

/* Phases of a layer: queries, keys and values, then attention; its output; gate and up; down. A
   phase more: logits. */
DEV void step_phases(const gpu_step_args &s, step_block *b, uint8_t *smem)
{
    const int n_phase = STEP_PHASES * s.n_layer + (s.head.w != 0);
    step_copy(s, b);
    NO_UNROLL
    for (int i = 0; i < n_phase; i++) {
        const int l = i / STEP_PHASES, which = l == s.n_layer ? STEP_PHASES : i % STEP_PHASES;
        if (i == 0) {
            CP_WAIT(0);
            sync_work();
        } else if (which == STEP_PHASES - 1) {
            CP_WAIT(0); /* the next layer's struct: seen by all behind the input's barriers */
        }
        const step_here h = here_of(s, b, l < s.n_layer ? l : 0);
        if (which == 0)
            vectors_copy(s, h);
        if (which % 2 == 0)
            step_norm(s, b, AT(const float, s.x),
                      AT(const float, which == STEP_PHASES ? s.head_norm
                                      : which == 0         ? h.layer->norm
                                                           : h.layer->ffn_norm));
        else
            step_take(b, AT(const float, which == 1 ? s.att : s.act),
                      which == 1 ? s.n_head * s.dim_v : s.n_ff);
        if (which == STEP_PHASES - 1 && l + 1 < s.n_layer && TID == STEP_WORK - 1)
            pages_prefetch(s, here_of(s, b, l + 1));
        step_product(s, b, h.layer, which);
        if (which == 0)
            step_attention(s, h, smem);
        if (which == 1 && l + 1 < s.n_layer)
            layer_fetch(s, b, l + 1);
        if (which < STEP_PHASES)
            sync_grid(s);
    }
}

DEV void step_run(const gpu_step_args &s)
{
    SHARED(smem);
    step_block b;
    b.ring = smem, b.xs = smem + s.area, b.parts = (float *)(smem + s.parts);
    b.sums = (float *)(smem + s.sums);
    b.full = (uint64_t *)(smem + s.bars), b.empty = b.full + s.n_slot;
    b.slot = 0, b.lap = 0, b.x_scale = 1.0f;
    b.layers = smem + s.copies;
    b.kinds = (gpu_step_kind *)(b.layers + 2 * s.layer_size);
    b.head = (gpu_step_matrix *)(b.kinds + s.n_kind);
    b.vectors = (float *)(b.head + 1);
    if (TID < s.n_slot)
        bar_init(&b.full[TID], 1), bar_init(&b.empty[TID], STEP_TEAM);
    for (int i = TID; i < ROWS * up16(s.dim_k) / 2; i += GPU_STEP_THREADS)
        ((uint32_t *)(smem + s.queries))[i] = 0;
    for (int i = TID; i < STEP_SUMS; i += GPU_STEP_THREADS)
        b.sums[i] = 0.0f;
    bar_init_done();
    sync_block();
    if (WARP < STEP_WARPS) {
        GRID_WAIT();
        GRID_GO();
        step_phases(s, &b, smem);
    } else {
        step_fetch(s, smem, b.full, b.empty);
    }
}
#endif

KERNEL(GPU_STEP_THREADS, 1) step(const gpu_step_args s)
{
#ifdef GPU_BULK
    step_run(s);
#endif
}

#endif
