/*
 * step.cuh - one token of a whole model in one launch: a block a processor, all at the same time.
 *
 * Weights do not depend on activations. So one warp of each block fetches the block's share of
 * all matrices, in order, into a ring of slots in shared memory, and runs ahead as far as the ring
 * reaches. 16 warps take units of 16 rows x 256 columns out of it. Barriers of the grid, norms and
 * attention stop those warps. The stream from memory goes on as long as the ring has room.
 *
 * It is for the most frequent form: pages of 64 entries in f16, heads of up to 128 dimensions. So
 * its code is short, which matters: each block goes through all of it in every layer.
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
    STEP_NORMS = GPU_STEP_EMBD / (8 * STEP_WORK), /* eights of a row that a thread norms */
    STEP_TAKES = 3,                               /* and that come to it at a time elsewhere */
    STEP_PHASES = 4,                              /* of a layer */
    STEP_SUMS = 3 * STEP_WARPS                    /* floats: three sets, then step_notes */
};

static_assert((int)STEP_WORK == (int)WIDE_ROW, "columns of threads");

#ifdef GPU_BULK

DEV void sync_work(void)
{
    sync_part(1, STEP_WORK);
}

/* What a block's threads tell each other, in shared memory. */
struct step_notes {
    uint32_t most; /* bits of the largest magnitude that the block has written of a row */
    uint32_t came; /* how many blocks had been at a head before */
    uint32_t turn; /* of the grid's barrier: thread 0's */
};

DEV step_notes *notes_of(const gpu_step_args &s, uint8_t *smem)
{
    return (step_notes *)((float *)(smem + s.sums) + STEP_SUMS);
}

/* By all lanes of a warp. */
DEV void most_note(const gpu_step_args &s, uint8_t *smem, float most)
{
    most = warp_max(most);
    if (LANE == 0)
        atomic_max(&notes_of(s, smem)->most, AS_U(most));
}

/* A barrier of all blocks. top, if there is one: gets the largest magnitude of what all wrote. */
DEV void sync_grid(const gpu_step_args &s, uint8_t *smem, gpu_at top)
{
    sync_work();
    if (TID == 0) {
        step_notes *notes = notes_of(s, smem);
        if (top != 0) {
            atomic_max(AT(uint32_t, top), notes->most);
            notes->most = 0;
        }
        notes->turn = grid_meet(AT(uint32_t, s.met), blockIdx.x == 0, gridDim.x, notes->turn);
    }
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
    const gpu_step_layer *layer = AT(const gpu_step_layer, s.layers + (uint64_t)l * s.layer_size);
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

/* Place of column c, a multiple of 8, of the input, in halves, for loads of 16 bytes: of each 64
   columns [pair % 4][k-step][half of it][2]. The next pairs are 16 further each. */
DEV uint32_t x_place(uint32_t c)
{
    return (c & ~63u) + (c >> 4 & 3) * 4 + (c >> 3 & 1) * 2;
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
DEV void step_unit(const uint8_t *unit, uint64_t *empty, const uint8_t *x, float *part, int lane)
{
    const bool wide = T != GPU_WEIGHT_Q4_K && T != GPU_WEIGHT_Q4_0;
    codes<T> c[wide ? 1 : 4];
    stored_scales<T> st;
    ready_scales<T> ready;
    UNROLL
    for (int j = 0; j < (wide ? 0 : 4); j++)
        codes_load<T, true>(&c[wide ? 0 : j], unit, j, lane);
    scales_load<T, true>(&st, unit, lane);
    scales_ready<T>(&st, &ready, (uint32_t)lane);
    if (!wide)
        give_back(empty);
    float acc[4] = {};
    UNROLL
    for (int j = 0; j < 4; j++) {
        const uint4 x0 = *(const uint4 *)(x + j * 128 + lane % 4 * 32);
        const uint4 x1 = *(const uint4 *)(x + j * 128 + lane % 4 * 32 + 16);
        tile_scales ts;
        scales_of_tile<T>(&ready, j, &ts, lane);
        if (wide)
            codes_load<T, true>(&c[0], unit, j, lane);
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
    if (lane % 4 == 0)
        part[lane / 4] = acc[0], part[lane / 4 + 8] = acc[2];
}

/* Where a warp is in the ring. */
struct step_place {
    int slot;     /* of the next copy, */
    uint32_t lap; /* and how often the ring has gone round before it */
};

/* The units of one item that are this warp's. */
template <int T>
DEV void step_multiply(const gpu_step_args &s, step_place *at, const gpu_step_matrix &m,
                       uint8_t *smem, float *part)
{
    const int n_block = m.n_block, n_unit = m.n_unit, n_copy = m.n_copy;
    const int tid = anew(TID), lane = tid & 31, warp = tid >> 5, team = warp / STEP_TEAM;
    uint64_t *full = (uint64_t *)(smem + s.bars), *empty = full + s.n_slot;
    NO_UNROLL
    for (int c = (team - at->slot) & (STEP_TEAMS - 1); c < n_copy; c += STEP_TEAMS) {
        int slot = at->slot + c;
        uint32_t lap = at->lap;
        for (; slot >= s.n_slot; lap++)
            slot -= s.n_slot;
        const int n = n_unit < n_block - c * n_unit ? n_unit : n_block - c * n_unit;
        const int mine = (warp - slot / STEP_TEAMS - (int)lap) & (STEP_TEAM - 1);
        bar_wait(&full[slot], lap & 1);
        if (mine < n)
            step_unit<T>(smem + slot * s.slot_size + mine * block_bytes(T), &empty[slot],
                         smem + s.area + (c * n_unit + mine) * 512, part + (c * n_unit + mine) * 16,
                         lane);
        else
            give_back(&empty[slot]); /* when all lanes have seen the round */
    }
    at->slot += n_copy;
    for (; at->slot >= s.n_slot; at->lap++)
        at->slot -= s.n_slot;
}

DEV void step_any(const gpu_step_args &s, step_place *at, const gpu_step_matrix &m, uint8_t *smem,
                  float *part)
{
    switch (m.type) {
#define STEP_CASE(type)                                                                            \
    case GPU_WEIGHT_##type:                                                                        \
        step_multiply<GPU_WEIGHT_##type>(s, at, m, smem, part);                                    \
        break;
        GPU_STEP_WEIGHTS(STEP_CASE)
#undef STEP_CASE
    }
}

/* ---- inputs of products ---- */

/* Sums or maxima of all warps, of which each has put its own there. */
DEV float step_sum(const float *room)
{
    float sum = 0.0f;
    sync_work();
    for (int i = 0; i < STEP_WARPS; i++)
        sum += room[i];
    return sum;
}
DEV float step_most(const float *room)
{
    float most = 0.0f;
    sync_work();
    for (int i = 0; i < STEP_WARPS; i++)
        most = f_max(most, room[i]);
    return most;
}

/* The columns of a thread are those of rows.cuh's kernels of a whole row: eights, WIDE_ROW * 8
   apart. */
DEV int eights_of(int tid, int j)
{
    return 8 * (tid + STEP_WORK * j);
}

/* Eight columns of a row that other blocks wrote. Behind the last column are zeros. */
DEV void far_eight(float *v, const float *row, int at, int n)
{
    const float4 a = at < n ? ld_far4(row + at) : float4(),
                 b = at < n ? ld_far4(row + at + 4) : float4();
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

/* Likewise to a product's input as f16, times a power of two: eight j of this thread. */
DEV void put_eight(uint8_t *xs, int tid, int j, const float *v, float by)
{
    uint16_t *to = (uint16_t *)xs + x_place(8 * (uint32_t)tid) + j * 8 * STEP_WORK;
    UNROLL
    for (int i = 0; i < 4; i++)
        *(uint32_t *)(to + i * 16) = h2(v[2 * i] * by, v[2 * i + 1] * by);
}

/* The norm of x, as `between` makes it, to a product's input. Returns by what products are
   multiplied. */
DEV float step_norm(const gpu_step_args &s, uint8_t *smem, const float *x, const float *norm)
{
    float v[STEP_NORMS][8], w[STEP_NORMS][8], square = 0.0f, top = 0.0f;
    float *sums = (float *)(smem + s.sums);
    const int n = s.n_embd, tid = anew(TID);
    UNROLL
    for (int j = 0; j < STEP_NORMS; j++) {
        const int c = eights_of(tid, j);
        const float4 a = c < n ? *(const float4 *)(norm + c) : float4(),
                     b = c < n ? *(const float4 *)(norm + c + 4) : float4();
        far_eight(v[j], x, c, n);
        w[j][0] = a.x, w[j][1] = a.y, w[j][2] = a.z, w[j][3] = a.w;
        w[j][4] = b.x, w[j][5] = b.y, w[j][6] = b.z, w[j][7] = b.w;
    }
    UNROLL
    for (int j = 0; j < STEP_NORMS; j++)
        square = square_of_eight(v[j], square);
    square = warp_sum(square);
    if (LANE == 0)
        sums[WARP] = square;
    const float factor = 1.0f / sqrtf(step_sum(sums) / (float)n + s.eps);
    UNROLL
    for (int j = 0; j < STEP_NORMS; j++) {
        UNROLL
        for (int e = 0; e < 8; e++)
            v[j][e] = v[j][e] * factor * w[j][e];
        top = most_of_eight(v[j], top);
    }
    top = warp_max(top);
    if (LANE == 0)
        sums[STEP_WARPS + WARP] = top;
    top = step_most(sums + STEP_WARPS);
    const float scale = row_power(top, false);
    UNROLL
    for (int j = 0; j < STEP_NORMS; j++)
        if (eights_of(tid, j) < (n + 255) / 256 * 256)
            put_eight(smem + s.area, tid, j, v[j], scale);
    sync_work();
    return row_power(top, true);
}

/* Likewise a row whose blocks noted its largest magnitude. */
DEV float step_take(const gpu_step_args &s, uint8_t *smem, const float *x, int n, gpu_at most)
{
    const int n256 = (n + 255) / 256 * 256, tid = anew(TID);
    const float top = ld_far(AT(const float, most)), scale = row_power(top, false);
    NO_UNROLL
    for (int j0 = 0; eights_of(tid, j0) < n256; j0 += STEP_TAKES) {
        float v[STEP_TAKES][8];
        UNROLL
        for (int j = 0; j < STEP_TAKES; j++)
            far_eight(v[j], x, eights_of(tid, j0 + j), n);
        UNROLL
        for (int j = 0; j < STEP_TAKES; j++)
            if (eights_of(tid, j0 + j) < n256)
                put_eight(smem + s.area, tid, j0 + j, v[j], scale);
    }
    sync_work();
    return row_power(top, true);
}

/* ---- attention ---- */

/* The running layer, in shared memory: others read it late, since a barrier of the grid empties the
   first level of cache. */
struct step_here {
    const gpu_step_layer *layer;
    const gpu_step_lane *lanes;  /* [n_head_kv] */
    float *q_norm, *k_norm, *cs; /* [dim_k], [dim_k], [n_pair][2] */
};

/* What this block reads in a layer, in shared memory: chunks of lanes, and the references of their
   pages one behind the other. */
struct step_list {
    gpu_step_piece piece[GPU_STEP_PIECES];
    int n_page, unused[3];
    gpu_attend_ref ref[1]; /* [s.n_page] */
};

DEV step_list *list_of(const gpu_step_args &s, uint8_t *smem)
{
    return (step_list *)(smem + s.list);
}

/* Lists them, by a warp. Chunks of all lanes are blocks' work in turn: the longest are the last of
   a lane, and go first. The order of blocks turns round, so that none gets the longest always. */
DEV void list_make(const gpu_step_args &s, const step_here &h, uint8_t *smem)
{
    step_list *list = list_of(s, smem);
    const int n_block = (int)gridDim.x, me = (int)blockIdx.x;
    const int i = LANE * n_block + (LANE % 2 ? n_block - 1 - me : me);
    const int head = i % s.n_head_kv, chunk = h.layer->n_most - 1 - i / s.n_head_kv;
    const gpu_step_lane *lane = h.lanes + head;
    int first = 0, end = 0;
    if (chunk >= 0 && chunk < lane->n_chunk) {
        if (lane->chunks != 0) {
            first = AT(const int32_t, lane->chunks)[chunk];
            end = AT(const int32_t, lane->chunks)[chunk + 1];
        } else {
            first = chunk_first(chunk);
            end = chunk_first(chunk + 1);
            end = end < lane->end ? end : lane->end;
        }
    }
    const int n = end - first;
    int sum = n;
    NO_UNROLL
    for (int d = 1; d < 32; d *= 2) {
        const int before = (int)shfl((uint32_t)sum, (LANE - d) & 31);
        sum += LANE >= d ? before : 0;
    }
    gpu_step_piece *p = list->piece + LANE;
    p->head = head, p->chunk = chunk, p->first = first, p->at = sum - n, p->end = sum;
    if (LANE == 31)
        list->n_page = sum;
    NO_UNROLL
    for (int k = 0; k < n; k++)
        cp16(list->ref + sum - n + k, AT(const gpu_attend_ref, lane->refs) + first + k);
    cp_commit();
}

/* Page number u of the list, in the pool. */
DEV const uint8_t *page_at(const step_list *list, const step_here &h, int u)
{
    return AT(const uint8_t, h.layer->pool) + (uint64_t)list->ref[u].page * h.layer->stride;
}

/* The first pages go to the second level of cache: by one thread, early, since what comes from
   memory waits behind the ring's share of it. */
DEV void pages_prefetch(const gpu_step_args &s, const step_here &h, uint8_t *smem)
{
    const step_list *list = list_of(s, smem);
    NO_UNROLL
    for (int u = 0; u < list->n_page && u < 4; u++)
        bulk_prefetch(page_at(list, h, u), (int)h.layer->stride);
}

/* A page in shared memory: keys [dim][64 entries], values [entry][dim], as pages have them, 16
   bytes each, whose number is turned by the row's, so that no bank is hit twice. */
DEV int value_row(const gpu_step_args &s)
{
    return (s.dim_v * 2 + 127) & ~127;
}
DEV int near_at(int row, int row_bytes, int c)
{
    return row * row_bytes + (c ^ (row & 7)) * 16;
}

/* Brings page u of the list, where there is one. A thread has every 64th row of keys, and one of
   values. */
DEV void page_fetch(const gpu_step_args &s, const step_here &h, uint8_t *smem, int u)
{
    const step_list *list = list_of(s, smem);
    if (u < list->n_page) {
        const uint8_t *page = page_at(list, h, u);
        const int tid = anew(TID), row = tid / 8, c = tid % 8, n = s.dim_v / 8;
        uint8_t *keys = smem + s.area + u % 2 * s.tile, *values = keys + s.dim_k * 128;
        const uint8_t *k = page + h.layer->k_at + tid * 16;
        const uint8_t *v = page + h.layer->v_at + (row * n + c) * 16;
        uint8_t *to_k = keys + near_at(row, 128, c), *to_v = values + near_at(row, value_row(s), c);
        UNROLL
        for (int i = 0; i < 2; i++) {
            if (row + 64 * i < s.dim_k)
                cp16(to_k + i * 64 * 128, k + i * 64 * 128);
            if (c + 8 * i < n)
                cp16(to_v + i * 128, v + i * 128);
        }
    }
    cp_commit();
}

/* Keys 8 w .. 8 w + 7 at dimensions 16 k .. 16 k + 32: of two k-steps. */
DEV void step_keys(const uint8_t *keys, int lane, int w, int k, uint32_t *b)
{
    ldsm4t(b, keys + near_at(16 * k + lane, 128, w));
}
/* Values of entries 16 k .. 16 k + 32 at dimensions 8 d ..: of two k-steps. */
DEV void step_values(const uint8_t *values, int row_bytes, int lane, int d, int k, uint32_t *b)
{
    ldsm4t(b, values + near_at(16 * k + lane, row_bytes, d));
}

/* A query of the group to f16, by a warp: attend_queries. */
DEV void query_put(const gpu_step_args &s, float *x, int row, uint8_t *smem)
{
    const int dim = s.dim_k;
    float by = 1.0f, top = 0.0f;
    if (s.temp_scale != 0.0f)
        by = temperature(s.temp_scale, s.temp_len, *AT(const int32_t, s.pos));
    NO_UNROLL
    for (int i = LANE; i < dim; i += 32) {
        if (s.temp_scale != 0.0f)
            x[i] *= by;
        top = f_max(top, fabsf(x[i]));
    }
    sync_warp();
    top = warp_max(top);
    by = row_power(top, false);
    NO_UNROLL
    for (int c = 2 * LANE; c < dim; c += 64)
        *(uint32_t *)(smem + s.queries + (c / 8 * ROWS + row) * 16 + c % 8 * 2) =
            h2(x[c] * by, x[c + 1] * by);
    if (LANE == 0)
        ((float *)(smem + s.sums))[2 * STEP_WARPS + row] = row_power(top, true) * s.factor;
}

DEV float *new_entry(const gpu_step_args &s, uint8_t *smem) /* key, then value */
{
    return (float *)(smem + s.rows) + s.n_head / s.n_head_kv * s.dim_k;
}

/* The queries of a piece, and the new key and value where it has their page: a warp each. */
DEV void step_enter(const gpu_step_args &s, const step_here &h, const gpu_step_piece &p, bool adds,
                    uint8_t *smem)
{
    const int n_group = s.n_head / s.n_head_kv, dim = s.dim_k, n_v = s.dim_v;
    const gpu_step_layer *layer = h.layer;
    NO_UNROLL
    for (int r = WARP; r < n_group + (adds ? 2 : 0); r += STEP_WARPS) {
        float *x = (float *)(smem + s.rows) + r * dim;
        const bool query = r < n_group;
        if (r <= n_group) {
            const int head = query ? p.head * n_group + r : p.head;
            const float *from = AT(const float, query ? s.q : s.k) + (size_t)head * dim;
            const float *bias = AT(const float, query ? layer->bq : layer->bk);
            const float *norm = (query ? layer->q_norm : layer->k_norm) == 0 ? 0
                                : query                                      ? h.q_norm
                                                                             : h.k_norm;
            head_row<4>(x, from, dim, bias != 0 ? bias + head * dim : bias, norm, s.eps, 0,
                        layer->cs != 0 ? h.cs : 0, layer->n_pair, layer->adjacent);
            if (query)
                query_put(s, x, r, smem);
            for (int i = LANE; !query && layer->centre != 0 && i < dim; i += 32)
                x[i] -= AT(const float, layer->centre)[head * dim + i];
            continue;
        }
        const float *from = AT(const float, s.v) + (size_t)p.head * n_v;
        const float *bias = AT(const float, layer->bv);
        float v[4];
        UNROLL
        for (int j = 0; j < 4; j++)
            v[j] = LANE + 32 * j < n_v ? ld_far(from + LANE + 32 * j) : 0.0f;
        UNROLL
        for (int j = 0; j < 4; j++)
            if (LANE + 32 * j < n_v)
                x[LANE + 32 * j] = bias != 0 ? v[j] + bias[p.head * n_v + LANE + 32 * j] : v[j];
    }
}

/* The new entry, to its page of the lane or to a copy that was fetched before. */
DEV void entry_put(const gpu_step_args &s, const step_here &h, const gpu_step_lane &lane,
                   uint8_t *smem, uint8_t *tile)
{
    const int tid = anew(TID), half = tid / 128, d = tid % 128, slot = lane.slot;
    if (half > 1 || d >= (half == 0 ? s.dim_k : s.dim_v))
        return;
    const float x = new_entry(s, smem)[half * s.dim_k + d];
    uint8_t *to = half == 0 ? tile + near_at(d, 128, slot / 8) + slot % 8 * 2
                            : tile + s.dim_k * 128 + near_at(slot, value_row(s), d / 8) + d % 8 * 2;
    if (tile == 0) {
        to = AT(uint8_t, lane.page) + (half == 0 ? h.layer->k_at + (d * TILE + slot) * 2
                                                 : h.layer->v_at + (slot * s.dim_v + d) * 2);
        if (!(fabsf(x) <= s.limit) && s.clipped != 0)
            atomic_min(AT(int32_t, s.clipped), h.layer->clip + half);
    }
    *(uint16_t *)to = (uint16_t)half_of(within(x, s.limit));
}

/* What a thread holds of a piece's sums: rows g and g + 8, dimensions 8 warp ... */
struct step_sums {
    float o[4], l[4], m[2];
};

/* A page of n entries, of which the first `skip` are not seen: attend_part's loop. */
DEV void step_attend(const gpu_step_args &s, const uint8_t *tile, int skip, int n, float log_count,
                     uint8_t *smem, step_sums *a)
{
    const int tid = anew(TID), lane = tid & 31, warp = tid >> 5, g = lane / 4, u = lane % 4;
    const int n_step = (n + 15) / 16;
    uint8_t *qs = smem + s.queries, *ps = smem + s.weights;
    float *tops = (float *)(ps + ROWS * TILE * 2); /* [8][16] */
    float x[4] = {};
    if (warp < 8) {
        const float *scale = (const float *)(smem + s.sums) + 2 * STEP_WARPS;
        float top[2] = {NEG_INF, NEG_INF};
        const int n_k = warp < 2 * n_step ? s.dim_k / 16 : 0;
        UNROLL2
        for (int k = 0; k < n_k; k += 2) {
            uint32_t q[4], b[4];
            step_keys(tile, lane, warp, k, b);
            rows_at(q, qs, k);
            mma(x, q, b[0], b[1]);
            if (k + 1 < n_k) {
                rows_at(q, qs, k + 1);
                mma(x, q, b[2], b[3]);
            }
        }
        UNROLL
        for (int e = 0; e < 4; e++) {
            const int slot = 8 * warp + 2 * u + (e & 1), i = e / 2;
            const float y =
                logit_of(x[e], scale[g + 8 * i] * LOG2E, log_count * LOG2E, s.cap, s.cap_by);
            x[e] = slot >= skip && slot < n ? y : NEG_INF;
            top[i] = f_max(top[i], x[e]);
        }
        tops_put(tops, top);
    }
    sync_work();
    UNROLL
    for (int i = 0; i < 2; i++) {
        float c;
        const float mm = tops_join<8>(tops, i, &a->m[i], &c);
        if (warp < 8)
            *(uint32_t *)(ps + (warp * ROWS + g + 8 * i) * 16 + u * 4) =
                h2(ex2(x[2 * i] - mm), ex2(x[2 * i + 1] - mm));
        a->o[2 * i] *= c, a->o[2 * i + 1] *= c;
        a->l[2 * i] *= c, a->l[2 * i + 1] *= c;
    }
    sync_work();
    const uint8_t *values = tile + s.dim_k * 128;
    for (int k = 0; 8 * warp < s.dim_v && k < n_step; k += 2) {
        uint32_t w[4], b[4];
        step_values(values, value_row(s), lane, warp, k, b);
        rows_at(w, ps, k);
        mma(a->o, w, b[0], b[1]);
        mma(a->l, w, ONES, ONES);
        if (k + 1 < n_step) {
            rows_at(w, ps, k + 1);
            mma(a->o, w, b[2], b[3]);
            mma(a->l, w, ONES, ONES);
        }
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

/* A number of attention's output. Returns its magnitude. */
DEV float att_put(const gpu_step_args &s, int head, int d, float x)
{
    AT(float, s.att)[(size_t)head * s.dim_v + d] = x;
    return fabsf(x);
}

/* The sums of a piece for others; true: this block is the last of its head. */
DEV bool step_hand_over(const gpu_step_args &s, const gpu_step_piece &p, int n_chunk, size_t part0,
                        uint8_t *smem, const step_sums *a)
{
    const int n_group = s.n_head / s.n_head_kv, g = LANE / 4, u = LANE % 4;
    step_notes *notes = notes_of(s, smem);
    UNROLL
    for (int i = 0; i < 2; i++) {
        const int row = g + 8 * i;
        const size_t at = part0 + (size_t)p.chunk * n_group + row;
        float *o = AT(float, s.o) + at * s.dim_v + WARP * 8 + 2 * u, *ml = AT(float, s.ml) + at * 2;
        if (row < n_group && WARP * 8 < s.dim_v)
            o[0] = a->o[2 * i], o[1] = a->o[2 * i + 1];
        if (row < n_group && TID < 32 && u == 0)
            ml[0] = a->m[i], ml[1] = a->l[2 * i];
    }
    fence();
    sync_work();
    if (TID == 0) {
        notes->came = atomic_wrap(AT(uint32_t, s.done) + p.head, (uint32_t)n_chunk - 1);
        fence();
    }
    sync_work();
    return (int)notes->came == n_chunk - 1;
}

/* Joins the chunks of a head: attend_join. */
DEV void step_leave(const gpu_step_args &s, const step_here &h, const gpu_step_piece &p,
                    int n_chunk, uint8_t *smem, const step_sums *a)
{
    const int n_group = s.n_head / s.n_head_kv, head0 = p.head * n_group;
    float most = 0.0f;
    if (n_chunk == 1) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            const int row = LANE / 4 + (i & 2) * 4, d = WARP * 8 + 2 * (LANE % 4) + (i & 1);
            if (row >= n_group || d >= s.dim_v)
                continue;
            step_join j = join_start(h, head0 + row);
            join_add(&j, a->m[i >> 1], a->l[i & 2], a->o[i]);
            most = f_max(most, att_put(s, head0 + row, d, join_end(j)));
        }
    } else {
        const size_t part0 = (size_t)head0 * h.layer->n_most;
        if (!step_hand_over(s, p, n_chunk, part0, smem, a))
            return;
        NO_UNROLL
        for (int i = TID; i < n_group * s.dim_v; i += STEP_WORK) {
            const int row = i / s.dim_v, d = i % s.dim_v;
            step_join j = join_start(h, head0 + row);
            UNROLL8
            for (int c = 0; c < n_chunk; c++) {
                const size_t at = part0 + (size_t)c * n_group + row;
                const float2 ml = ld_far2(AT(const float, s.ml) + at * 2);
                join_add(&j, ml.x, ml.y, ld_far(AT(const float, s.o) + at * s.dim_v + d));
            }
            most = f_max(most, att_put(s, head0 + row, d, join_end(j)));
        }
    }
    most_note(s, smem, most);
}

/* Attention of a layer, with the barrier before it. What this token writes is put into a page that
   was fetched before by entry_put. Two pages are on their way at most. Behind the next barrier the
   room of pages is that of a product's input. */
DEV void step_attention(const gpu_step_args &s, const step_here &h, uint8_t *smem)
{
    const step_list *list = list_of(s, smem);
    sync_work(); /* the room of a product's input and sums becomes that of pages */
    NO_UNROLL
    for (int u = 0; u < 2; u++)
        page_fetch(s, h, smem, u);
    sync_grid(s, smem, 0);
    NO_UNROLL
    for (int k = 0; k < GPU_STEP_PIECES && list->piece[k].at < list->n_page; k++) {
        const gpu_step_piece p = list->piece[k];
        const gpu_step_lane &lane = h.lanes[p.head];
        const bool adds = p.chunk == lane.chunk;
        if (p.at == p.end)
            continue;
        step_sums a = {};
        a.m[0] = a.m[1] = NEG_INF;
        step_enter(s, h, p, adds, smem);
        NO_UNROLL
        for (int u = p.at; u < p.end; u++) {
            const int i = p.first + u - p.at, n = i == lane.last ? lane.last_n : list->ref[u].n;
            uint8_t *tile = smem + s.area + u % 2 * s.tile;
            if (u > 0)
                page_fetch(s, h, smem, u + 1);
            CP_WAIT(1);
            sync_work();
            if (adds && u == p.at)
                entry_put(s, h, lane, smem, 0);
            if (adds && i == lane.index) {
                entry_put(s, h, lane, smem, tile);
                sync_work();
            }
            step_attend(s, tile, u == p.at && p.chunk == 0 ? lane.skip : 0, n,
                        list->ref[u].log_count, smem, &a);
        }
        step_leave(s, h, p, lane.n_chunk, smem, &a);
    }
}

/* ---- the launch ---- */

/* A product's number, where it is one: what the phase does with it. old: what the stream had. */
DEV void step_done(const gpu_step_args &s, const gpu_step_layer *layer, int which,
                   const step_item &item, bool is, int row, float y, float old, uint8_t *smem)
{
    is = is && row < item.m->n_row;
    if (which == 2) {
        const float up = AS_F(shfl(AS_U(y), (LANE + 16) & 31)); /* of the thread 16 further on */
        const float x = activate(s.activation, y, up);
        is = is && item.which == 0;
        if (is)
            AT(float, s.act)[row] = x;
        most_note(s, smem, is ? fabsf(x) : 0.0f);
    } else if (which == 0) {
        if (is)
            AT(float, item.which == 0 ? s.q : item.which == 1 ? s.k : s.v)[row] = y;
    } else if (which == STEP_PHASES) {
        if (is)
            AT(float, s.logits)[row] = y;
    } else if (is) {
        if (which == 1 && layer->bo != 0)
            y += AT(const float, layer->bo)[row];
        AT(float, s.x)[row] = old + y;
    }
}

/* The products of a phase with an input that was divided by x_scale, some items at a time. Threads
   get sums in order of rows. */
DEV void step_product(const gpu_step_args &s, step_place *at, uint8_t *smem,
                      const gpu_step_layer *layer, const gpu_step_matrix *head, int which,
                      float x_scale)
{
    const step_phase p = phase_of(which == STEP_PHASES ? head : layer->m, which);
    const int end = items_of(p), n_block = p.m->n_block;
    int most = s.part_units / n_block, half = 0;
    most = (most < STEP_WARPS * 2 ? most : STEP_WARPS * 2) & ~1;
    NO_UNROLL
    for (int k0 = 0; k0 < end; k0 += most, half ^= 1) {
        const int some = end - k0 < most ? end - k0 : most;
        float *parts = (float *)(smem + s.parts) + half * s.part_units * 16;
        NO_UNROLL
        for (int k = 0; k < some; k++)
            step_any(s, at, *item_of(p, k0 + k).m, smem, parts + k * n_block * 16);
        /* whole warps: what is done may exchange numbers within one */
        const bool is = TID < some * 16, here = TID < (some * 16 + 31) / 32 * 32;
        const step_item item = item_of(p, k0 + (is ? TID / 16 : 0));
        const int row = item.group * 16 + TID % 16;
        const float old =
            is && which % 2 != 0 && row < item.m->n_row ? ld_far(AT(const float, s.x) + row) : 0.0f;
        sync_work();
        if (here) {
            const float *from = parts + (is ? TID / 16 : 0) * n_block * 16 + TID % 16;
            float sum = 0.0f;
            UNROLL4
            for (int i = 0; i < n_block; i++)
                sum += from[i * 16];
            step_done(s, layer, which, item, is, row, sum * item.m->scale * x_scale, old, smem);
        }
    }
}

/* Copies in shared memory: of two layers in turn with their lanes, of the head, of vectors. */
DEV uint8_t *layer_room(const gpu_step_args &s, uint8_t *smem, int l)
{
    return smem + s.copies + l % 2 * s.layer_size;
}
DEV gpu_step_matrix *head_room(const gpu_step_args &s, uint8_t *smem)
{
    return (gpu_step_matrix *)(smem + s.copies + 2 * s.layer_size);
}

/* Asks for a layer's struct and its lanes. */
DEV void layer_fetch(const gpu_step_args &s, uint8_t *smem, int l)
{
    const uint8_t *from = AT(const uint8_t, s.layers + (uint64_t)l * s.layer_size);
    uint8_t *to = layer_room(s, smem, l);
    for (int i = 16 * TID; i < s.layer_size; i += 16 * STEP_WORK)
        cp16(to + i, from + i);
    cp_commit();
}

DEV step_here here_of(const gpu_step_args &s, uint8_t *smem, int l)
{
    step_here h;
    h.layer = (const gpu_step_layer *)layer_room(s, smem, l);
    h.lanes = (const gpu_step_lane *)(h.layer + 1);
    h.q_norm = (float *)(head_room(s, smem) + 1);
    h.k_norm = h.q_norm + s.dim_k, h.cs = h.k_norm + s.dim_k;
    return h;
}

/* The second half of the warps brings the vectors of heads, while the first one sums a norm. */
DEV void vectors_copy(const gpu_step_args &s, const step_here &h)
{
    const int t = TID - STEP_WORK / 2;
    if (t < 0)
        return;
    if (t < s.dim_k && h.layer->q_norm != 0)
        h.q_norm[t] = AT(const float, h.layer->q_norm)[t];
    if (t < s.dim_k && h.layer->k_norm != 0)
        h.k_norm[t] = AT(const float, h.layer->k_norm)[t];
    if (t < 2 * h.layer->n_pair && h.layer->cs != 0)
        h.cs[t] = AT(const float, h.layer->cs)[t];
}

/* Phases of a layer: queries, keys and values, then attention; its output; gate and up; down. A
   phase more: logits. */
DEV void step_phases(const gpu_step_args &s, uint8_t *base)
{
    uint8_t *smem = base;
    const int n_phase = STEP_PHASES * s.n_layer + (s.head.w != 0);
    step_place at = {};
    layer_fetch(s, smem, 0);
    if (TID == 0) {
        *head_room(s, smem) = s.head;
        notes_of(s, smem)->turn = grid_turn(AT(const uint32_t, s.met));
    }
    CP_WAIT(0);
    sync_work();
    if (WARP == STEP_WARPS - 1)
        list_make(s, here_of(s, smem, 0), smem);
    NO_UNROLL
    for (int i = 0; i < n_phase; i++) {
        smem = base + anew(0); /* addresses are made anew, and hold no registers */
        const int l = i / STEP_PHASES, which = l == s.n_layer ? STEP_PHASES : i % STEP_PHASES;
        const step_here h = here_of(s, smem, l < s.n_layer ? l : 0);
        const gpu_at top = s.tops + (2 * l + which / 2) * sizeof(float);
        float x_scale;
        CP_WAIT(0); /* for a layer's struct and its list: seen behind the input's barriers */
        if (which == 0)
            vectors_copy(s, h);
        if (which % 2 == 0)
            x_scale = step_norm(s, smem, AT(const float, s.x),
                                AT(const float, which == STEP_PHASES ? s.head_norm
                                                : which == 0         ? h.layer->norm
                                                                     : h.layer->ffn_norm));
        else
            x_scale = step_take(s, smem, AT(const float, which == 1 ? s.att : s.act),
                                which == 1 ? s.n_head * s.dim_v : s.n_ff, top);
        if (which == 0 && TID == STEP_WORK - 1)
            pages_prefetch(s, h, smem);
        if (which == STEP_PHASES - 1 && l + 1 < s.n_layer && WARP == STEP_WARPS - 1)
            list_make(s, here_of(s, smem, l + 1), smem);
        step_product(s, &at, smem, h.layer, head_room(s, smem), which, x_scale);
        if (which == 0)
            step_attention(s, h, smem);
        if (which == 1 && l + 1 < s.n_layer)
            layer_fetch(s, smem, l + 1);
        if (which < STEP_PHASES)
            sync_grid(s, smem, which == 0 || which == 2 ? top : 0);
    }
}

DEV void step_run(const gpu_step_args &s)
{
    SHARED(smem);
    uint64_t *full = (uint64_t *)(smem + s.bars), *empty = full + s.n_slot;
    if (TID < s.n_slot)
        bar_init(&full[TID], 1), bar_init(&empty[TID], STEP_TEAM);
    for (int i = TID; i < ROWS * s.dim_k / 2; i += GPU_STEP_THREADS)
        ((uint32_t *)(smem + s.queries))[i] = 0;
    if (TID < STEP_SUMS + (int)sizeof(step_notes) / 4)
        ((uint32_t *)(smem + s.sums))[TID] = 0;
    bar_init_done();
    sync_block();
    if (WARP < STEP_WARPS) {
        GRID_WAIT();
        GRID_GO();
        step_phases(s, smem);
    } else {
        step_fetch(s, smem, full, empty);
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
