/*
 * attend_wgmma.cuh - attention of prompts by Hopper's products of warp groups (sm_90a alone), for
 * heads of 128 dimensions: the pages of attend_many.cuh, both of f16 or both of codes, and its
 * bits. Other targets have the names without the work, and the host does not call them.
 *
 * A block takes 128 rows of a call and all of its pages. Two warp groups multiply, 64 rows each.
 * Four warps bring pages to a ring of stages in shared memory, as f16 in 8 x 8 matrices, and decode
 * codes on the way. A stage has two barriers: full, when its page is there, and empty, when all
 * warps that multiply have read it. So one warp group may weigh its logits while the other's
 * products keep the tensor cores busy.
 *
 * A warp group asks for the logits of a page and then for the sums of the page before. It weighs
 * those logits while the sums run.
 */
#ifndef PI_GPU_ATTEND_WGMMA_CUH
#define PI_GPU_ATTEND_WGMMA_CUH

#include "device/gpu/attend_many.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
#include "device/gpu/wgmma_op.cuh"

/* Warps, of which the last four bring pages; bytes of keys or values of a page, and of a stage. */
enum {
    AW_DIM = 128,
    AW_HEIGHT = 128,
    AW_WARPS = 8,
    AW_BRING = 128,
    AW_HALF = TILE * AW_DIM * 2,
    AW_STAGE = 2 * AW_HALF
};
/* Barriers of a part of the block. */
enum { AW_WORK = 1, AW_BRINGERS };

/* A matrix of ROWS x 16 bytes side by side becomes 8 x 8 matrices, those below each other first, by
   four warps. */
template <int ROWS> DEV void matrices_bring(uint8_t *to, const uint8_t *from)
{
    enum { COLUMNS = AW_HALF / 16 / ROWS };
    const int r = LANE % 8, c = LANE / 8;
    UNROLL
    for (int i = 0; i < AW_HALF / 16 / AW_BRING; i++) {
        const int piece = i * 4 + WARP % 4, row = piece / (COLUMNS / 4) * 8 + r,
                  column = piece % (COLUMNS / 4) * 4 + c;
        cp16(to + (column * ROWS + row) * 16, from + (row * COLUMNS + column) * 16);
    }
}

/* The ring of stages, as those who bring and those who multiply see it. Page i of a block is in
   stage i % GPU_ATTEND_STAGES. */
struct aw_ring {
    uint8_t *stage;
    uint64_t *full, *empty;
};
DEV int aw_stage(int i)
{
    return i % GPU_ATTEND_STAGES;
}
DEV uint32_t aw_parity(int i)
{
    return (uint32_t)(i / GPU_ATTEND_STAGES) & 1;
}
/* Of four warps: what they wrote to page i's stage is there. */
DEV void aw_report(const aw_ring &ring, int i)
{
    fence_products();
    sync_warp();
    if (LANE == 0)
        bar_arrive(&ring.full[aw_stage(i)]);
}
DEV void aw_wait_empty(const aw_ring &ring, int i)
{
    if (i >= GPU_ATTEND_STAGES)
        bar_wait(&ring.empty[aw_stage(i)], aw_parity(i - GPU_ATTEND_STAGES));
}

DEV const uint8_t *aw_page(const gpu_attend_args &a, const gpu_attend_job &job, int p)
{
    return AT(const uint8_t, a.pool) + page_ref(job, p).page * a.stride;
}

/* Pages of f16. A page is reported when the next one has been asked for. */
template <bool BESIDE>
DEV void aw_bring(const gpu_attend_args &a, const gpu_attend_job &job, int first, int end,
                  const aw_ring &ring)
{
    NO_UNROLL
    for (int p = first; p < end; p++) {
        const int i = p - first;
        uint8_t *to = ring.stage + aw_stage(i) * AW_STAGE;
        const uint8_t *from = aw_page(a, job, p);
        aw_wait_empty(ring, i);
        if (BESIDE)
            matrices_bring<AW_DIM>(to, from + a.k.plane[PLANE_LOW].at);
        else
            matrices_bring<TILE>(to, from + a.k.plane[PLANE_LOW].at);
        matrices_bring<TILE>(to + AW_HALF, from + a.v.plane[PLANE_LOW].at);
        cp_commit();
        if (i > 0) {
            CP_WAIT(1);
            aw_report(ring, i - 1);
        }
    }
    CP_WAIT(0);
    aw_report(ring, end - 1 - first);
}

/* Pages of codes, which come to one of two rooms as they are stored. */
DEV void aw_decode(const gpu_attend_args &a, const gpu_attend_job &job, int first, int end,
                   const aw_ring &ring, uint8_t *raw, const code_table *tables)
{
    const int half_k = half_bytes<AW_DIM>(a.k.type), page = half_k + half_bytes<AW_DIM>(a.v.type);
    auto fetch = [&](int p) {
        uint8_t *to = raw + ((p - first) & 1) * page;
        if (p < end) {
            const uint8_t *from = aw_page(a, job, p);
            half_fetch<AW_DIM, AW_BRING>(to, from, a.k, a.k.type, true);
            half_fetch<AW_DIM, AW_BRING>(to + half_k, from, a.v, a.v.type, false);
        }
        cp_commit();
    };
    fetch(first);
    NO_UNROLL
    for (int p = first; p < end; p++) {
        const int i = p - first;
        uint8_t *to = ring.stage + aw_stage(i) * AW_STAGE;
        const uint8_t *from = raw + (i & 1) * page;
        fetch(p + 1);
        CP_WAIT(1);
        sync_part(AW_BRINGERS, AW_BRING);
        aw_wait_empty(ring, i);
        keys_decode<AW_DIM>(a.k.type, from, tables[0], to);
        values_decode(a.v.type, from + half_k, tables[1], to + AW_HALF);
        aw_report(ring, i);
        sync_part(AW_BRINGERS, AW_BRING);
    }
}

/* A number that all lanes have, which the compiler then knows: operands are addressed by such. */
DEV int aw_one(int x)
{
    return (int)shfl((uint32_t)x, 0);
}

/* ---- products of a warp group: nothing depends on a page here, or they would run in turn ---- */

/* Asks for the logits of 64 rows and a page's keys, which lie side by side or entry by entry. */
template <bool BESIDE> DEV void aw_dots(float (&s)[32], const uint8_t *qs, const uint8_t *keys)
{
    const uint64_t q = wgmma_operand(smem_at(qs) + aw_one(WARP / 4) * 64 * 16, AW_HEIGHT * 16, 128);
    const uint64_t k = BESIDE ? wgmma_operand(smem_at(keys), 128, AW_DIM * 16)
                              : wgmma_operand(smem_at(keys), TILE * 16, 128);
    UNROLL
    for (int i = 0; i < AW_DIM / 16; i++)
        wgmma<BESIDE>(s, q + i * (AW_HEIGHT * 32 / 16), k + i * ((BESIDE ? 256 : TILE * 32) / 16),
                      i > 0);
}

/* Asks for the sums of a page's values. Those behind the last entry have weights of zero; all that a
   page may hold there is finite. */
DEV void aw_sums(float (&o)[AW_DIM / 2], const uint32_t (*w)[4], const uint8_t *values)
{
    const uint64_t v = wgmma_operand(smem_at(values), 128, TILE * 16);
    UNROLL
    for (int k = 0; k < TILE / 16; k++)
        wgmma<true>(o, w[k], v + k * (256 / 16), 1);
}

/* ---- the block ---- */

/* Pages first .. end of the rows from row0 on. In the first turn the sums have no weights yet, in
   the last one the logits are of no use. */
template <bool BESIDE>
DEV void aw_work(const gpu_attend_args &a, const gpu_attend_job &job, int row0, int first, int end,
                 const uint8_t *qs, const many_row *row_of, const aw_ring &ring)
{
    many_rows<AW_DIM, 1> rows;
    float s[8][4] = {};
    float(&dots)[32] = reinterpret_cast<float(&)[32]>(s);
    float(&sums)[AW_DIM / 2] = reinterpret_cast<float(&)[AW_DIM / 2]>(rows.o);
    uint32_t w[TILE / 16][4] = {};
    int chunk = many_chunk(job, first), chunk_end = chunk_last(job, chunk);
    bool is_first = true; /* no chunk was joined */
    many_clear(rows);
    const many_row own[2] = {row_of[many_row_at(WARP, 0)], row_of[many_row_at(WARP, 1)]};
    NO_UNROLL
    for (int p = first; p <= end; p++) {
        const int i = p - first, here = aw_one(p < end ? i : i - 1),
                  before = aw_one(i > 0 ? i - 1 : 0);
        bar_wait(&ring.full[aw_stage(here)], aw_parity(here));
        hold(dots);
        hold(sums);
        wgmma_fence();
        aw_dots<BESIDE>(dots, qs, ring.stage + aw_stage(here) * AW_STAGE);
        wgmma_commit();
        aw_sums(sums, w, ring.stage + aw_stage(before) * AW_STAGE + AW_HALF);
        wgmma_commit();
        const gpu_attend_ref ref = page_ref(job, first + here);
        const bool begins = p == chunk_end || p == end; /* a chunk, or is behind the last */
        const sight sees = {many_positions<1>(a, job, first + here, ref.n, row_of), ref.n,
                            a.window};
        WGMMA_WAIT(1);
        hold(dots);
        float c[2], m[2];
        UNROLL
        for (int j = 0; j < 2; j++) {
            const float top =
                logits_row(s, j, own[j].by, ref.log_count * LOG2E, a, sees, own[j].limit);
            m[j] = begins ? NEG_INF : rows.m[0][j];
            c[j] = weights_row(s, j, top, &m[j]);
        }
        WGMMA_WAIT(0);
        hold(sums);
        if (i > 0 && LANE == 0)
            bar_arrive(&ring.empty[aw_stage(i - 1)]);
        if (begins) {
            many_join(a, job, row0, rows, is_first);
            is_first = false;
            chunk_end = chunk_last(job, ++chunk);
        } else {
            many_scale(rows, 0, c);
        }
        float l[4] = {rows.l[0][0], rows.l[0][0], rows.l[0][1], rows.l[0][1]};
        UNROLL
        for (int k = 0; k < TILE / 16; k++) {
            UNROLL
            for (int j = 0; j < 4; j++)
                w[k][j] = h2(s[2 * k + j / 2][2 * (j & 1)], s[2 * k + j / 2][2 * (j & 1) + 1]);
            mma(l, w[k], ONES, ONES);
        }
        rows.l[0][0] = l[0], rows.l[0][1] = l[2];
        rows.m[0][0] = m[0], rows.m[0][1] = m[1];
    }
}

/* Grid: (tiles of rows, calls). The last rows, which see most, begin first. */
template <bool CODES, bool BESIDE> DEV void attend_wgmma(const gpu_attend_args &a)
{
    SHARED(smem);
    const gpu_attend_job &job = AT(const gpu_attend_job, a.jobs)[blockIdx.y];
    const int n_row = job.n_tok * job.n_group;
    const int row0 = ((n_row + AW_HEIGHT - 1) / AW_HEIGHT - 1 - (int)blockIdx.x) * AW_HEIGHT;
    if (row0 < 0)
        return;
    const int page = CODES ? half_bytes<AW_DIM>(a.k.type) + half_bytes<AW_DIM>(a.v.type) : 0;
    uint8_t *qs = smem, *stages = qs + AW_HEIGHT * AW_DIM * 2,
            *raw = stages + GPU_ATTEND_STAGES * AW_STAGE;
    many_row *row_of = (many_row *)(raw + 2 * page);
    uint64_t *bars = (uint64_t *)(row_of + AW_HEIGHT);
    code_table *tables = (code_table *)(bars + 2 * GPU_ATTEND_STAGES);
    const aw_ring ring = {stages, bars, bars + GPU_ATTEND_STAGES};
    const int last_row = row0 + AW_HEIGHT < n_row ? row0 + AW_HEIGHT - 1 : n_row - 1;
    const int end = many_end(job, job.pos0 + last_row / job.n_group);
    const int first = many_first(job, a.window, job.pos0 + row0 / job.n_group, end);
    const bool works = WARP < AW_WARPS;
    if (works) {
        many_queries<AW_DIM, 32 * AW_WARPS>(job, row0, qs);
        cp_commit();
        many_begin<AW_DIM>(job, row0, row_of);
        CP_WAIT(0);
        fence_products();
    } else if (TID == 32 * AW_WARPS) {
        for (int i = 0; i < GPU_ATTEND_STAGES; i++) {
            bar_init(&ring.full[i], AW_BRING / 32);
            bar_init(&ring.empty[i], AW_WARPS);
        }
        bar_init_done();
        if (CODES && a.k.type != STORE_Q8_0)
            tables[0] = table_of(a.k);
        if (CODES && a.v.type != STORE_Q8_0)
            tables[1] = table_of(a.v);
    }
    sync_block();
    if (!works) {
        if (CODES && first < end)
            aw_decode(a, job, first, end, ring, raw, tables);
        else if (first < end)
            aw_bring<BESIDE>(a, job, first, end, ring);
        return;
    }
    if (first < end)
        aw_work<BESIDE>(a, job, row0, first, end, qs, row_of, ring);
    sync_part(AW_WORK, 32 * AW_WARPS);
    many_finish<AW_DIM, 1>(a, job, row0, first >= end, (float *)smem);
}
#else
template <bool CODES, bool BESIDE> DEV void attend_wgmma(const gpu_attend_args &) {}
#endif

KERNEL(384, 1) attend_wgmma_f16(const gpu_attend_args &a)
{
    attend_wgmma<false, true>(a);
}
KERNEL(384, 1) attend_wgmma_f16_rows(const gpu_attend_args &a)
{
    attend_wgmma<false, false>(a);
}
KERNEL(384, 1) attend_wgmma_codes(const gpu_attend_args &a)
{
    attend_wgmma<true, false>(a);
}

#endif
