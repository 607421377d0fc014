/*
 * gpu.h - what kernels are written in: a handful of device functions over plain registers. Under
 * nvcc they are instructions. Under a host compiler emu.h gives them the same meaning, so that the
 * same kernels run, slowly, without a GPU. A pair of f16 is a uint32_t, the first in the low half.
 * Kernels are C++ in a C style; nothing is fused but what says so (nvcc -fmad=false).
 */
#ifndef PI_GPU_GPU_H
#define PI_GPU_GPU_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "device/gpu/args.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define DEV static __device__ __forceinline__
#define BOTH static __host__ __device__ __forceinline__
/* cuda/kernels.h makes a kernel out of it. */
#define KERNEL(threads, per_sm) DEV void
extern __shared__ __align__(1024) uint8_t gpu_smem[];
#define SHARED(p) uint8_t *p = gpu_smem
#define AT(type, at) ((type *)(at))

DEV uint32_t smem_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- f16 ---- */

DEV uint32_t h2(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
DEV float h_lo(uint32_t x)
{
    return __half2float(__ushort_as_half((unsigned short)(x & 0xffff)));
}
DEV float h_hi(uint32_t x)
{
    return __half2float(__ushort_as_half((unsigned short)(x >> 16)));
}
DEV uint32_t h2_add(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
DEV uint32_t h2_mul(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
DEV uint32_t h2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
DEV uint32_t h2_min(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("min.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
/* One half of a pair, twice. */
DEV uint32_t h2_low(uint32_t x)
{
    uint32_t r;
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nmov.b32 %0, {l, l};\n}" : "=r"(r) : "r"(x));
    return r;
}
DEV uint32_t h2_high(uint32_t x)
{
    uint32_t r;
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nmov.b32 %0, {h, h};\n}" : "=r"(r) : "r"(x));
    return r;
}
/* x & mask | bits, in one instruction. */
DEV uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(x), "r"(mask), "r"(bits));
    return r;
}
/* Bytes of a and b that the nibbles of sel name, each below 8. */
DEV uint32_t prmt(uint32_t a, uint32_t b, uint32_t sel)
{
    return __byte_perm(a, b, sel);
}
/* Likewise, where the lower four nibbles of sel are below 8 for sure: one instruction less. */
DEV uint32_t prmt_of(uint32_t a, uint32_t b, uint32_t sel)
{
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(sel));
    return r;
}
/* (a | b) & mask; and bits of a where the mask has them, else of b: one instruction each. */
DEV uint32_t or_and(uint32_t a, uint32_t b, uint32_t mask)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xa8;" : "=r"(r) : "r"(a), "r"(b), "r"(mask));
    return r;
}
DEV uint32_t pick(uint32_t mask, uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(r) : "r"(mask), "r"(a), "r"(b));
    return r;
}
DEV float ex2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* About; of infinity 0. */
DEV float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- collectives of a warp ---- */

/* d += a b, a 16 x 16, b 16 x 8. g is lane / 4, t is lane % 4.
   a[0] (row g, k 2t..), a[1] (g + 8, 2t), a[2] (g, 2t + 8), a[3] (g + 8, 2t + 8).
   b[0] (k 2t.., column g), b[1] (k 2t + 8). d[0..1] (row g, columns 2t..), d[2..3] (row g + 8). */
DEV void mma(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* Four 8 x 8 matrices of f16: lanes 8i .. 8i + 7 point to the rows, of 16 bytes, of matrix i. */
DEV void ldsm4(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_at(row))
                 : "memory");
}
DEV void ldsm4t(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_at(row))
                 : "memory");
}
DEV uint32_t shfl(uint32_t v, int lane)
{
    return __shfl_sync(~0u, v, lane);
}
DEV float shfl_xor(float v, int mask)
{
    return __shfl_xor_sync(~0u, v, mask);
}
DEV bool any_lane(bool is)
{
    return __any_sync(~0u, is) != 0;
}
DEV void sync_warp(void)
{
    __syncwarp();
}
DEV void sync_block(void)
{
    __syncthreads();
}
/* Adds 1, and returns what was there. */
DEV int32_t atomic_next(int32_t *p)
{
    return atomicAdd(p, 1);
}
DEV void atomic_min(int32_t *p, int32_t v)
{
    atomicMin(p, v);
}
DEV void atomic_max(uint32_t *p, uint32_t v)
{
    atomicMax(p, v);
}
DEV void atomic_add(uint32_t *p, uint32_t v)
{
    atomicAdd(p, v);
}
/* Counts to `last`, then to 0 again; what it was. */
DEV uint32_t atomic_wrap(uint32_t *p, uint32_t last)
{
    return atomicInc(p, last);
}
/* Barrier number `which` of 1 .. 15, of that many threads. */
DEV void sync_part(int which, int n_thread)
{
    asm volatile("bar.sync %0, %1;" ::"r"(which), "r"(n_thread) : "memory");
}
/* All blocks see this thread's writes before its later ones. */
DEV void fence(void)
{
    __threadfence();
}
/* A barrier of all blocks of a launch, which run at the same time. One thread of each calls it.
   The count never ends: block 0 adds so much that its highest bit turns once in a round. turn: that
   bit before, of grid_turn or the last round; returns the new one. */
DEV uint32_t grid_turn(const uint32_t *count)
{
    uint32_t now;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(count) : "memory");
    return now & 0x80000000u;
}
DEV uint32_t grid_meet(uint32_t *count, bool first, uint32_t n_block, uint32_t turn)
{
    const uint32_t by = first ? 0x80000000u - (n_block - 1) : 1;
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(count), "r"(by) : "memory");
    while (grid_turn(count) == turn) {
    }
    return turn ^ 0x80000000u;
}

/* ---- kernels that overlap (sm_90 and up) ---- */

/* A kernel may begin while the ones before it still run. Behind GRID_WAIT all of them are done, and
   what they wrote is seen. Every kernel calls it, or it would hide its predecessors from the next
   one. Before it, only what no kernel writes may be read (weights, lists), nothing be written.
   Behind GRID_GO, when all blocks are there, the next kernel may begin.
   Loads by `nc` are for what no kernel writes. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define GRID_WAIT() asm volatile("griddepcontrol.wait;" ::: "memory")
#define GRID_GO() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#else
#define GRID_WAIT()
#define GRID_GO()
#endif

/* ---- memory ---- */

DEV void cp16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_at(to)), "l"(from)
                 : "memory");
}
DEV void cp_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
#define CP_WAIT(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
/* Weights: read once, not to stay in the first level of cache. */
DEV uint4 ld_stream(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
DEV uint2 ld_stream2(const void *p)
{
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(p));
    return v;
}
DEV uint32_t ld_near(const void *p)
{
    uint32_t v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
/* Asks for n bytes, a multiple of 16, to be in the second level of cache: by all lanes of a
   warp. */
DEV void prefetch(const void *p, int n)
{
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(n) : "memory");
#else
    for (int i = (int)threadIdx.x % 32 * 128; i < n; i += 32 * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const uint8_t *)p + i));
#endif
}
/* For numbers that other blocks of the launch wrote. */
DEV float ld_far(const float *p)
{
    return __ldcg(p);
}
DEV float2 ld_far2(const float *p)
{
    return __ldcg((const float2 *)p);
}
DEV float4 ld_far4(const float *p)
{
    return __ldcg((const float4 *)p);
}

/* ---- bulk copies, from compute capability 9.0 on: they report to a barrier in shared memory ----
 *
 * Such a barrier counts arrivals and bytes. Its rounds have parities 0, 1, 0 and so on. A thread
 * that waits for a round must have seen the one before. Else it takes one for the other.
 */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define GPU_BULK 1
DEV void bar_init(uint64_t *bar, int n)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_at(bar)), "r"(n));
}
/* Before the block's other threads use barriers, and bulk copies. */
DEV void bar_init_done(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Products of warp groups see what this thread wrote to shared memory. */
DEV void fence_products(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* An arrival, and n bytes that will come. */
DEV void bar_expect(uint64_t *bar, int n)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(smem_at(bar)), "r"(n)
                 : "memory");
}
DEV void bar_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(smem_at(bar)) : "memory");
}
DEV void bar_wait(uint64_t *bar, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\nW:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
                 "@p bra D;\nbra W;\nD:\n}" ::"r"(smem_at(bar)),
                 "r"(parity)
                 : "memory");
}
/* Likewise to the second level of cache, by one thread. */
DEV void bulk_prefetch(const void *from, int n)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(n) : "memory");
}
/* To shared memory: addresses and n are multiples of 16. */
DEV void bulk_copy(void *to, const void *from, int n, uint64_t *bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(smem_at(to)),
                 "l"(from), "r"(n), "r"(smem_at(bar))
                 : "memory");
}
#endif

/* The same number, of which the compiler knows nothing: what is made of it is made anew each time,
   and holds no register meanwhile. */
DEV int anew(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

#define AS_F(x) __uint_as_float(x)
#define AS_U(x) __float_as_uint(x)
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define UNROLL2 _Pragma("unroll 2")
#define UNROLL4 _Pragma("unroll 4")
#define UNROLL8 _Pragma("unroll 8")
#else
#include "device/emulated/emu.h"
#define GPU_BULK 1
#endif

#define TID ((int)threadIdx.x)
#define LANE (TID & 31)
#define WARP (TID >> 5)
#define NEG_INF AS_F(0xff800000u)

DEV float f_max(float a, float b)
{
    return a > b ? a : b;
}
/* Likewise of numbers alone, in one instruction. */
DEV float n_max(float a, float b)
{
    return fmaxf(a, b);
}

#endif
