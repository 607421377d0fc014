/*
 * matmul_wgmma.cuh - the product of matmul.cuh for many tokens by Hopper's wgmma (sm_90a alone):
 * the same fragments of weights, now the first operand of a warp group's instruction, and the same
 * activations in shared memory, whose 8 x 8 matrices are its core matrices. A block of two warp
 * groups has 128 rows and 128 tokens. Weights are decoded while the tensor cores work on the tile
 * before. Other targets have the names without the work, and the host does not call them.
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

template <int T> DEV void mul_wgmma(const gpu_mul_args &args)
{
    enum { BN = 128, STAGE = BN * 128 };
    SHARED(smem);
    const int n_block = args.n_block, n_row = args.n_row, n_tile = n_block * 4;
    const int lane = LANE, group = (int)blockIdx.x * 8 + WARP, n_group = (n_row + 15) / 16;
    const slab here = slab_of(args, (int)blockIdx.z, n_block, 0);
    if ((int)blockIdx.y * BN >= here.n_tok)
        return;
    const uint8_t *w0 = here.w + (size_t)(group < n_group ? group : 0) * n_block * block_bytes(T);
    const uint16_t *x0 = here.x + (size_t)blockIdx.y * (BN / 8) * n_block * 32 * X_MATRIX;
    auto copy = [&](int tile) {
        if (tile < n_tile)
            for (int i = TID; i < BN / 8 * 64; i += 256)
                cp16(smem + (size_t)(tile % STAGES) * STAGE + i * 16,
                     (const uint8_t *)(x0 +
                                       ((size_t)(i / 64) * n_block * 32 + tile * 8) * X_MATRIX) +
                         i % 64 * 16);
        cp_commit();
    };
    float acc[64], total[64];
    UNROLL
    for (int i = 0; i < 64; i++)
        total[i] = acc[i] = 0.0f;
    codes<T> c, next_c;
    stored_scales<T> st;
    ready_scales<T> ready;
    uint32_t a[2][4][4];
    copy(0);
    copy(1);
    codes_load<T>(&next_c, w0, 0);
    scales_load<T>(&st, w0);
    NO_UNROLL
    for (int blk = 0; blk < n_block; blk++) {
        scales_ready<T>(&st, &ready);
        UNROLL
        for (int j = 0; j < 4; j++) {
            const int tile = blk * 4 + j;
            c = next_c;
            const uint8_t *b = w0 + (size_t)(j == 3 ? blk + 1 : blk) * block_bytes(T);
            if (j < 3 || blk + 1 < n_block)
                codes_load<T>(&next_c, b, (j + 1) % 4);
            if (j == 3 && blk + 1 < n_block)
                scales_load<T>(&st, b);
            tile_scales ts;
            scales_of_tile<T>(&ready, j, &ts);
            UNROLL
            for (int k = 0; k < 4; k++)
                fragment<T>(&c, &ts, k, a[j & 1][k]);
            CP_WAIT(1);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            sync_block();
            copy(tile + 2);
            uint32_t stage = smem_at(smem + (size_t)(tile % STAGES) * STAGE);
            wgmma_fence();
            UNROLL
            for (int k = 0; k < 4; k++)
                wgmma_128(acc, a[j & 1][k], wgmma_matrix(stage + k * 256), j > 0 || k > 0);
            wgmma_commit();
            if (j == 3) {
                WGMMA_WAIT(0);
                UNROLL
                for (int i = 0; i < 64; i++)
                    total[i] += acc[i];
            } else {
                WGMMA_WAIT(1);
            }
        }
    }
    CP_WAIT(0);
    UNROLL
    for (int i = 0; i < 64; i++) {
        const int row = group * 16 + lane / 4 + 8 * (i / 2 % 2);
        const int tok = (int)blockIdx.y * BN + i / 4 * 8 + 2 * (lane % 4) + i % 2;
        if (row < n_row && tok < here.n_tok)
            here.out[(size_t)tok * args.out_stride + row] =
                total[i] * args.scale * here.x_scale[tok];
    }
}
#else
template <int T> DEV void mul_wgmma(const gpu_mul_args &) {}
#endif

#define MUL_WGMMA(type)                                                                            \
    KERNEL(256, 1) mul_wgmma_##type(const gpu_mul_args a)                                          \
    {                                                                                              \
        mul_wgmma<GPU_WEIGHT_##type>(a);                                                           \
    }
GPU_WEIGHTS(MUL_WGMMA)

#endif
