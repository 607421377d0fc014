/*
 * matmul_wgmma.cuh - the product of matmul.cuh for many tokens by Hopper's wgmma (sm_90a alone):
 * the same fragments of weights, now the first operand of a warp group's instruction, and the same
 * activations in shared memory, whose 8 x 8 matrices are its core matrices. A block of two warp
 * groups has 128 rows and BN tokens. Other targets have the names without the work, and the host
 * does not call them.
 *
 * Activations come 64 columns (a tile) at a time to a ring of stages, by bulk copies. A stage has
 * two barriers in shared memory: full, when its bytes are there, and empty, when all warps have
 * read it. No barrier of the block stands between tiles. So one warp group may add up a stretch, or
 * decode, while the other's products keep the tensor cores busy. A warp decodes the next tile while
 * its products of this one run.
 */
#ifndef PI_GPU_MATMUL_WGMMA_CUH
#define PI_GPU_MATMUL_WGMMA_CUH

#include "device/gpu/matmul.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
#include "device/gpu/wgmma_op.cuh"

/* Core matrices of 128 bytes: the next 8 columns follow after 128 bytes, the next 8 tokens after
   1024. */
DEV uint64_t wgmma_matrix(uint32_t at)
{
    return wgmma_operand(at, 128, 1024);
}

template <int T, int BN, bool SPLIT> DEV void mul_wgmma(const gpu_mul_args &args)
{
    enum {
        STAGE = BN * 128,
        RING = GPU_WGMMA_STAGES,
        AHEAD = RING - 2,
        BUFFERS = BN / 64 /* of fragments: with few registers another block decodes meanwhile */
    };
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
    if (TID < RING) {
        bar_init(&full[TID], 1);
        bar_init(&empty[TID], 8);
        bar_init_done();
    }
    sync_block();
    /* The first warp brings a tile, in pieces of tokens that lie side by side. Where they lie is
       not kept in registers that all warps need. */
    auto bring = [&](int tile) {
        if (WARP > 0 || tile >= n_tile)
            return;
        const int n_piece = BN / 8 / args.n_side, piece = args.n_side * 1024;
        const uint8_t *x =
            (const uint8_t *)here.x +
            (((size_t)(blockIdx.y * n_piece + lane % n_piece) * n_block + first) * 4 +
             (size_t)tile) *
                piece;
        uint64_t *bar = &full[tile % RING];
        if (tile >= RING)
            bar_wait(&empty[tile % RING], (uint32_t)(tile / RING - 1) & 1);
        if (lane == 0)
            bar_expect(bar, STAGE);
        sync_warp();
        if (lane < n_piece)
            bulk_copy(smem + tile % RING * STAGE + lane * piece, x, piece, bar);
        sync_warp();
    };
    const uint32_t nothing = (uint32_t)args.n_tok >> 31;
    const uint8_t *w =
        here.w + ((size_t)(group < n_group ? group : 0) * n_block + first) * block_bytes(T);
    float acc[BN / 2], total[BN / 2];
    codes<T> c[2];
    stored_scales<T> st;
    ready_scales<T> ready;
    uint32_t a[BUFFERS][4][4];
    UNROLL
    for (int i = 0; i < BN / 2; i++)
        total[i] = acc[i] = 0.0f;
    /* Of a tile; behind the last one some block that is there. */
    auto block_at = [&](int tile) { return tile < n_tile ? tile / 4 : 0; };
    /* Decodes a tile whose codes are there, and asks for those of the one after the next. */
    auto decode = [&](uint32_t(&to)[4][4], int j, int tile) {
        tile_scales ts;
        if (j == 0) {
            scales_ready<T>(&st, &ready);
            scales_load<T>(&st, w + (size_t)block_at(tile + 4) * block_bytes(T));
        }
        scales_of_tile<T>(&ready, j, &ts);
        UNROLL
        for (int k = 0; k < 4; k++) {
            fragment<T>(&c[j & 1], &ts, k, to[k]);
            UNROLL
            for (int i = 0; T == GPU_WEIGHT_F16 && i < 4; i++)
                to[k][i] = made_of(to[k][i], nothing);
        }
        codes_load<T>(&c[j & 1], w + (size_t)block_at(tile + 2) * block_bytes(T), (j + 2) % 4);
    };
    scales_load<T>(&st, w);
    codes_load<T>(&c[0], w, 0);
    codes_load<T>(&c[1], w, 1);
    decode(a[0], 0, 0);
    GRID_WAIT();
    for (int i = 0; i < AHEAD; i++)
        bring(i);
    const int row = group * 16 + lane / 4, tok0 = (int)blockIdx.y * BN + 2 * (lane % 4);
    /* to: of this thread's first row and token, of rows `stride` apart. */
    auto put = [&](float *to, size_t stride, const float(&v)[BN / 2]) {
        UNROLL
        for (int i = 0; i < BN / 2; i += 4, to += 8 * stride)
            UNROLL
        for (int e = 0; e < 4; e++) {
            const int tok = tok0 + i * 2 + e % 2;
            if (tok < here.n_tok && row + e / 2 * 8 < n_row)
                to[(e % 2 > 0 ? stride : 0) + e / 2 * 8] =
                    SPLIT ? v[i + e] : v[i + e] * m.scale * here.x_scale[tok];
        }
    };
    float *part = AT(float, args.part) + ((size_t)first * here.n_tok + (size_t)tok0) * args.n_all +
                  m.row0 + row;
    NO_UNROLL
    for (int blk = 0; blk < end - first; blk++) {
        UNROLL
        for (int j = 0; j < 4; j++) {
            const int tile = blk * 4 + j, stage = tile % RING;
            bar_wait(&full[stage], (uint32_t)(tile / RING) & 1);
            hold(acc);
            wgmma_fence();
            const uint32_t at = smem_at(smem + stage * STAGE);
            UNROLL
            for (int k = 0; k < 4; k++)
                wgmma(acc, a[j % BUFFERS][k], wgmma_matrix(at + k * 256), j > 0 || k > 0);
            wgmma_commit();
            if (BUFFERS > 1 && j > 0) {
                WGMMA_WAIT(1);
                if (lane == 0)
                    bar_arrive(&empty[(tile - 1) % RING]);
            }
            const bool more = j < 3 || blk + 1 < end - first;
            if (BUFFERS > 1 && more)
                decode(a[(j + 1) % BUFFERS], (j + 1) % 4, tile + 1);
            bring(tile + AHEAD);
            if (BUFFERS == 1 || j == 3) {
                WGMMA_WAIT(0);
                hold(acc);
                if (lane == 0)
                    bar_arrive(&empty[stage]);
            }
            if (BUFFERS == 1 && more)
                decode(a[0], (j + 1) % 4, tile + 1);
        }
        if (SPLIT) {
            put(part, (size_t)args.n_all, acc);
            part += (size_t)here.n_tok * args.n_all;
        }
        UNROLL
        for (int i = 0; i < BN / 2; i++)
            total[i] += acc[i];
    }
    if (!SPLIT)
        put(here.out + (size_t)tok0 * m.out_stride + row, m.out_stride, total);
}
#else
template <int T, int BN, bool SPLIT> DEV void mul_wgmma(const gpu_mul_args &) {}
#endif

#define MUL_WGMMA_128(type)                                                                        \
    KERNEL(256, 1) mul_wgmma_128_##type(const gpu_mul_args &a)                                     \
    {                                                                                              \
        mul_wgmma<GPU_WEIGHT_##type, 128, false>(a);                                               \
    }
#define MUL_WGMMA_64(type)                                                                         \
    KERNEL(256, 2) mul_wgmma_64_##type(const gpu_mul_args &a)                                      \
    {                                                                                              \
        mul_wgmma<GPU_WEIGHT_##type, 64, false>(a);                                                \
    }
#define MUL_WGMMA_SPLIT(type)                                                                      \
    KERNEL(256, 2) mul_wgmma_split_##type(const gpu_mul_args &a)                                   \
    {                                                                                              \
        mul_wgmma<GPU_WEIGHT_##type, 64, true>(a);                                                 \
    }
GPU_WEIGHTS(MUL_WGMMA_128)
GPU_WEIGHTS(MUL_WGMMA_64)
GPU_WEIGHTS(MUL_WGMMA_SPLIT)

#endif
