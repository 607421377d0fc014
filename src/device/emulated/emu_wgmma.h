/*
 * emu_wgmma.h - Hopper's products of warp groups without a GPU (wgmma_op.cuh). A product is a
 * warp's: its 16 rows, and the operand in shared memory that all four warps read.
 *
 * Products run until they are waited for. Meanwhile their accumulators are NaN. Then both operands
 * must be what they were at the beginning, or the kernel is wrong: it changed them too early.
 */
#ifndef PI_EMU_WGMMA_H
#define PI_EMU_WGMMA_H

#include "device/emulated/emu_numbers.h"

enum { EMU_PRODUCTS = 16, EMU_COLUMNS = 128 };
struct emu_product {
    const uint32_t *a[32];
    uint32_t a_then[32][4];
    uint16_t b_then[16][EMU_COLUMNS];
    uint64_t b;
    int keep, group;
};
/* Products of a warp that are not done, the oldest first, and their accumulators. */
struct emu_products {
    int n, n_column, group;
    float *d[32], sum[32][EMU_COLUMNS / 2];
    emu_product of[EMU_PRODUCTS];
};
static thread_local emu_products *emu_pending[EMU_THREADS / 32];

EMU_OWN static emu_products *emu_products_here(void)
{
    emu_products **p = &emu_pending[emu.now / 32];
    if (*p == NULL)
        *p = (emu_products *)calloc(1, sizeof(**p));
    return *p;
}
/* An operand of 8 x 8 matrices, as its descriptor says: strides to the next columns and rows. */
EMU_OWN static void emu_read_matrix(uint64_t b, int n, uint16_t (*out)[EMU_COLUMNS])
{
    const uint8_t *at = emu.smem + (b & 0x3fff) * 16;
    const size_t next_k = (b >> 16 & 0x3fff) * 16, next_n = (b >> 32 & 0x3fff) * 16;
    for (int k = 0; k < 16; k++)
        for (int i = 0; i < n; i++)
            out[k][i] =
                *(const uint16_t *)(at + i / 8 * next_n + k / 8 * next_k + i % 8 * 16 + k % 8 * 2);
}

/* ---- the functions of wgmma_op.cuh ---- */

struct emu_wgmma {
    float *d;
    const uint32_t *a;
    uint64_t b;
    int n, keep;
};
EMU_OWN static void emu_wgmma_all(void **p)
{
    emu_wgmma **m = (emu_wgmma **)p;
    emu_products *own = emu_products_here();
    const int n = m[0]->n;
    if (own->n == EMU_PRODUCTS)
        EMU_FAIL("too many products of a warp group on their way");
    emu_product *to = &own->of[own->n++];
    own->n_column = n;
    to->b = m[0]->b, to->keep = m[0]->keep, to->group = own->group;
    emu_read_matrix(to->b, n, to->b_then);
    for (int l = 0; l < 32; l++) {
        if (own->n > 1 && own->d[l] != m[l]->d)
            EMU_FAIL("products of a warp group have other accumulators");
        if (m[l]->b != to->b || m[l]->keep != to->keep)
            EMU_FAIL("lanes of a warp have other operands");
        if (own->n == 1)
            memcpy(own->sum[l], m[l]->d, (size_t)n / 2 * sizeof(float));
        own->d[l] = m[l]->d;
        memset(own->d[l], 0xff, (size_t)n / 2 * sizeof(float));
        to->a[l] = m[l]->a;
        memcpy(to->a_then[l], m[l]->a, sizeof(to->a_then[l]));
    }
}
EMU_OWN static void emu_multiply(emu_products *own, const emu_product *of)
{
    static thread_local uint16_t b_now[16][EMU_COLUMNS];
    alignas(32) double a[32][4][2], b[16][8];
    emu_read_matrix(of->b, own->n_column, b_now);
    for (int k = 0; k < 16; k++)
        if (memcmp(b_now[k], of->b_then[k], (size_t)own->n_column * sizeof(b_now[k][0])) != 0)
            EMU_FAIL("shared memory changed while a warp group's product read it");
    for (int l = 0; l < 32; l++) {
        if (memcmp(of->a[l], of->a_then[l], sizeof(of->a_then[l])) != 0)
            EMU_FAIL("registers changed while a warp group's product read them");
        emu_pairs(of->a_then[l], 4, a[l][0], 2);
    }
    for (int j = 0; j < own->n_column / 8; j++) {
        float *d[32];
        for (int k = 0; k < 16; k++)
            for (int i = 0; i < 8; i++)
                b[k][i] = (double)emu_f(of->b_then[k][8 * j + i]);
        for (int l = 0; l < 32; l++) {
            d[l] = own->sum[l] + 4 * j;
            for (int i = 0; of->keep == 0 && i < 4; i++)
                d[l][i] = 0.0f;
        }
        emu_mma_sums(a, b, d);
    }
}
/* Ends the products of all groups but the last n. */
EMU_OWN static void emu_wgmma_end(int n)
{
    emu_products *own = emu_products_here();
    int done = 0;
    while (done < own->n && own->of[done].group < own->group - n)
        emu_multiply(own, &own->of[done++]);
    own->n -= done;
    memmove(own->of, own->of + done, (size_t)own->n * sizeof(own->of[0]));
    for (int l = 0; l < 32 && done > 0 && own->n == 0; l++)
        memcpy(own->d[l], own->sum[l], (size_t)own->n_column / 2 * sizeof(float));
}

template <int N> static void wgmma(float (&d)[N], const uint32_t *a, uint64_t b, int keep)
{
    emu_wgmma arg = {d, a, b, 2 * N, keep};
    emu_meet(8, &arg, emu_wgmma_all);
}
static void wgmma_fence(void)
{
    emu_meet(9, NULL, [](void **) {});
}
static void wgmma_commit(void)
{
    emu_meet(10, NULL, [](void **) { emu_products_here()->group++; });
}
template <int N> static void emu_wgmma_wait(void)
{
    emu_meet(11 + N, NULL, [](void **) { emu_wgmma_end(N); });
}
#define WGMMA_WAIT(n) emu_wgmma_wait<n>()
static inline uint32_t smem_at(const void *p)
{
    return (uint32_t)((const uint8_t *)p - emu.smem);
}
template <int N> static inline void hold(float (&)[N]) {}
static inline uint32_t made_of(uint32_t x, uint32_t)
{
    return x;
}

#endif
