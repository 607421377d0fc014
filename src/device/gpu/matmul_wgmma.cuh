/*
 * matmul_wgmma.cuh - the product of matmul.cuh for many tokens by Hopper's wgmma (sm_90a alone):
 * the same fragments of weights, now the first operand of a warp group's instruction, and the same
 * activations in shared memory, whose 8 x 8 matrices are its core matrices. A block of two warp
 * groups has 128 rows and BN tokens. Other targets have the names without the work, and the host
 * does not call them.
 *
 * Activations come 64 columns (a tile) at a time to a ring of stages. A stage has two barriers in
 * shared memory: full, when all threads' copies are there, and empty, when all warps have read it.
 * No barrier of the block stands between tiles. So one warp group may add up a stretch, or decode,
 * while the other's products keep the tensor cores busy. A warp decodes the next tile while its
 * products of this one run.
 */
#ifndef PI_GPU_MATMUL_WGMMA_CUH
#define PI_GPU_MATMUL_WGMMA_CUH

#include "device/gpu/matmul.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "device/gpu/wgmma_op.cuh"

DEV void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
DEV void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
#define WGMMA_WAIT(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")
/* Core matrices of 128 bytes: the next 8 columns follow after 128 bytes, the next 8 tokens after
   1024. */
DEV uint64_t wgmma_matrix(uint32_t at)
{
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(128 >> 4) << 16 | (uint64_t)(1024 >> 4) << 32;
}
/* The compiler does not move what uses these numbers past here. */
template <int N> DEV void hold(float (&d)[N])
{
    UNROLL
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
/* An arrival when this thread's copies so far are there. */
DEV void cp_arrive(uint64_t *bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(smem_at(bar)) : "memory");
}
DEV void ring_init(uint64_t *bar, int n)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_at(bar)), "r"(n) : "memory");
}
DEV void ring_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(smem_at(bar)) : "memory");
}
DEV void ring_wait(uint64_t *bar, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\nW:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
                 "@p bra D;\nbra W;\nD:\n}" ::"r"(smem_at(bar)),
                 "r"(parity)
                 : "memory");
}

template <int T, int BN, bool SPLIT> DEV void mul_wgmma(const gpu_mul_args &args)
{
    enum { STAGE = BN * 128, RING = GPU_WGMMA_STAGES, AHEAD = RING / 2 };
    SHARED(smem);
    uint64_t *full = (uint64_t *)(smem + RING * STAGE), *empty = full + RING;
    GRID_GO();
    if (args.busy != 0)
        GRID_WAIT();
    const slab here = slab_of(args, (int)blockIdx.x, SPLIT ? 0 : (int)blockIdx.z);
    const gpu_matrix &m = args.m[here.matrix];
    const int lane = LANE, n_block = args.n_block, n_row = m.n_row;
    const int group = here.tile * 8 + WARP, n_group = (n_row + 15) / 16;
    if ((int)blockIdx.y * BN >= here.n_tok)
        return;
    const int first = SPLIT ? (int)blockIdx.z * n_block / (int)gridDim.z : 0;
    const int end = SPLIT ? ((int)blockIdx.z + 1) * n_block / (int)gridDim.z : n_block;
    const int n_tile = (end - first) * 4;
    const uint32_t nothing = (uint32_t)args.n_tok >> 31;
    const uint8_t *w =
        here.w + ((size_t)(group < n_group ? group : 0) * n_block + first) * block_bytes(T);
    const uint8_t *x = (const uint8_t *)(here.x + ((size_t)blockIdx.y * (BN / 8) * n_block * 32 +
                                                   (size_t)first * 32) *
                                                      X_MATRIX);
    if (TID < RING) {
        ring_init(&full[TID], 256);
        ring_init(&empty[TID], 8);
    }
    sync_block();
    auto copy = [&](int tile) {
        if (tile >= n_tile)
            return;
        if (tile >= RING)
            ring_wait(&empty[tile % RING], (uint32_t)(tile / RING - 1) & 1);
        UNROLL
        for (int i = TID; i < BN * 8; i += 256)
            cp16(smem + tile % RING * STAGE + i * 16,
                 x + ((size_t)(i / 64) * n_block * 32 + tile * 8) * X_MATRIX * 2 + i % 64 * 16);
        cp_arrive(&full[tile % RING]);
    };
    float acc[BN / 2], total[BN / 2];
    codes<T> c;
    stored_scales<T> st;
    ready_scales<T> ready;
    uint32_t a[2][4][4];
    UNROLL
    for (int i = 0; i < BN / 2; i++)
        total[i] = acc[i] = 0.0f;
    /* Decodes the tile whose codes are there, and asks for the next ones. */
    auto decode = [&](uint32_t(&to)[4][4], int j, int tile) {
        tile_scales ts;
        if (j == 0) {
            scales_ready<T>(&st, &ready);
            if (tile + 4 < n_tile)
                scales_load<T>(&st, w + (size_t)(tile / 4 + 1) * block_bytes(T));
        }
        scales_of_tile<T>(&ready, j, &ts);
        UNROLL
        for (int k = 0; k < 4; k++) {
            fragment<T>(&c, &ts, k, to[k]);
            UNROLL
            for (int i = 0; T == GPU_WEIGHT_F16 && i < 4; i++)
                to[k][i] ^= nothing; /* loads do not write to operands on their way */
        }
        if (tile + 1 < n_tile)
            codes_load<T>(&c, w + (size_t)((tile + 1) / 4) * block_bytes(T), (j + 1) % 4);
    };
    scales_load<T>(&st, w);
    codes_load<T>(&c, w, 0);
    decode(a[0], 0, 0);
    GRID_WAIT();
    for (int i = 0; i < AHEAD; i++)
        copy(i);
    auto place = [&](int i, int *row) {
        *row = group * 16 + lane / 4 + 8 * (i / 2 % 2);
        const int tok = (int)blockIdx.y * BN + i / 4 * 8 + 2 * (lane % 4) + i % 2;
        return *row < n_row && tok < here.n_tok ? tok : -1;
    };
    NO_UNROLL
    for (int blk = 0; blk < end - first; blk++) {
        UNROLL
        for (int j = 0; j < 4; j++) {
            const int tile = blk * 4 + j, stage = tile % RING;
            ring_wait(&full[stage], (uint32_t)(tile / RING) & 1);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            hold(acc);
            wgmma_fence();
            const uint32_t at = smem_at(smem + stage * STAGE);
            UNROLL
            for (int k = 0; k < 4; k++)
                wgmma(acc, a[j & 1][k], wgmma_matrix(at + k * 256), j > 0 || k > 0);
            wgmma_commit();
            copy(tile + AHEAD);
            if (j > 0) {
                WGMMA_WAIT(1);
                if (lane == 0)
                    ring_arrive(&empty[(tile - 1) % RING]);
            }
            if (j < 3 || blk + 1 < end - first)
                decode(a[(j + 1) & 1], (j + 1) % 4, tile + 1);
            if (j == 3) {
                WGMMA_WAIT(0);
                hold(acc);
                if (lane == 0)
                    ring_arrive(&empty[stage]);
            }
        }
        UNROLL
        for (int i = 0; i < BN / 2; i++) {
            int row;
            const int tok = SPLIT ? place(i, &row) : -1;
            if (SPLIT && tok >= 0)
                AT(float, args.part)
            [((size_t)(first + blk) * here.n_tok + tok) * args.n_all + m.row0 + row] = acc[i];
            total[i] += acc[i];
        }
    }
    UNROLL
    for (int i = 0; !SPLIT && i < BN / 2; i++) {
        int row;
        const int tok = place(i, &row);
        if (tok >= 0)
            here.out[(size_t)tok * m.out_stride + row] = total[i] * m.scale * here.x_scale[tok];
    }
}
#else
template <int T, int BN, bool SPLIT> DEV void mul_wgmma(const gpu_mul_args &) {}
#endif

#define MUL_WGMMA_128(type)                                                                        \
    KERNEL(256, 1) mul_wgmma_128_##type(const gpu_mul_args a)                                      \
    {                                                                                              \
        mul_wgmma<GPU_WEIGHT_##type, 128, false>(a);                                               \
    }
#define MUL_WGMMA_64(type)                                                                         \
    KERNEL(256, 1) mul_wgmma_64_##type(const gpu_mul_args a)                                       \
    {                                                                                              \
        mul_wgmma<GPU_WEIGHT_##type, 64, false>(a);                                                \
    }
#define MUL_WGMMA_SPLIT(type)                                                                      \
    KERNEL(256, 1) mul_wgmma_split_##type(const gpu_mul_args a)                                    \
    {                                                                                              \
        mul_wgmma<GPU_WEIGHT_##type, 64, true>(a);                                                 \
    }
GPU_WEIGHTS(MUL_WGMMA_128)
GPU_WEIGHTS(MUL_WGMMA_64)
GPU_WEIGHTS(MUL_WGMMA_SPLIT)

#endif
