/*
 * emu_wgmma.h - Hopper's products of warp groups without a GPU (wgmma_op.cuh). A product is a
 * warp's: its 16 rows, and the operands in shared memory that all four warps read.
 *
 * Products run until they are waited for. Meanwhile their accumulators are NaN. Then both operands
 * must be what they were at the beginning, or the kernel is wrong: it changed them too early.
 */
#ifndef PI_EMU_WGMMA_H
#define PI_EMU_WGMMA_H

#include "device/emulated/emu_numbers.h"

enum { EMU_PRODUCTS = 16, EMU_COLUMNS = 128, EMU_SUMS = 2 };
/* Operands of a product: the first one in registers of the lanes, or in shared memory. */
struct emu_operands {
    const uint32_t *a[32];
    uint64_t a_at, b_at;
    bool turned;
    uint32_t a_then[32][4];
    uint16_t b_then[16][EMU_COLUMNS];
};
struct emu_product {
    emu_operands of;
    int keep, group, sums;
};
/* Accumulators that products on their way add to. */
struct emu_sums {
    int n, n_column; /* products */
    float *d[32], sum[32][EMU_COLUMNS / 2];
};
/* Products of a warp that are not done, the oldest first. */
struct emu_products {
    int n, group;
    emu_sums sums[EMU_SUMS];
    emu_product product[EMU_PRODUCTS];
};
static thread_local emu_products *emu_pending[EMU_THREADS / 32];

EMU_OWN static emu_products *emu_products_here(void)
{
    emu_products **p = &emu_pending[emu.now / 32];
    if (*p == NULL)
        *p = (emu_products *)calloc(1, sizeof(**p));
    return *p;
}
/* Columns i0 .. of an operand of 8 x 8 matrices, as its descriptor says: strides to the next
   columns and rows. */
EMU_OWN static void emu_read_matrix(uint64_t at, bool turned, int i0, int n,
                                    uint16_t (*out)[EMU_COLUMNS])
{
    const uint8_t *base = emu.smem + (at & 0x3fff) * 16;
    const size_t next_k = (at >> 16 & 0x3fff) * 16, next_n = (at >> 32 & 0x3fff) * 16;
    for (int k = 0; k < 16; k++)
        for (int j = 0; j < n; j++) {
            const int i = i0 + j, row = turned ? k % 8 : i % 8, column = turned ? i % 8 : k % 8;
            out[k][j] =
                *(const uint16_t *)(base + i / 8 * next_n + k / 8 * next_k + row * 16 + column * 2);
        }
}
EMU_OWN static void emu_read_operands(emu_operands *of, int n_column)
{
    static thread_local uint16_t rows[16][EMU_COLUMNS];
    if (of->a_at != 0)
        emu_read_matrix(of->a_at, false, emu.now / 32 % 4 * 16, 16, rows);
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            const int row = l / 4 + i % 2 * 8, k = l % 4 * 2 + i / 2 * 8;
            of->a_then[l][i] =
                of->a_at == 0 ? of->a[l][i] : (uint32_t)rows[k + 1][row] << 16 | rows[k][row];
        }
    emu_read_matrix(of->b_at, of->turned, 0, n_column, of->b_then);
}

/* ---- the functions of wgmma_op.cuh ---- */

struct emu_wgmma {
    float *d;
    const uint32_t *a;
    uint64_t a_at, b_at;
    int n, keep;
    bool turned;
};
/* The accumulators of a product's lanes among those that products add to, or new ones. */
EMU_OWN static emu_sums *emu_sums_of(emu_products *own, emu_wgmma **m)
{
    emu_sums *s = NULL;
    for (emu_sums &t : own->sums)
        if (t.n > 0 && t.d[0] == m[0]->d)
            s = &t;
        else if (t.n == 0 && s == NULL)
            s = &t;
    if (s == NULL)
        EMU_FAIL("products of a warp group have too many accumulators");
    for (int l = 0; l < 32; l++) {
        if (s->n > 0 && (s->d[l] != m[l]->d || s->n_column != m[l]->n))
            EMU_FAIL("products of a warp group have other accumulators");
        if (s->n == 0)
            memcpy(s->sum[l], m[l]->d, (size_t)m[l]->n / 2 * sizeof(float));
        s->d[l] = m[l]->d;
        memset(s->d[l], 0xff, (size_t)m[l]->n / 2 * sizeof(float));
    }
    s->n_column = m[0]->n;
    s->n++;
    return s;
}
EMU_OWN static void emu_wgmma_all(void **p)
{
    emu_wgmma **m = (emu_wgmma **)p;
    emu_products *own = emu_products_here();
    if (own->n == EMU_PRODUCTS)
        EMU_FAIL("too many products of a warp group on their way");
    emu_product *to = &own->product[own->n++];
    for (int l = 0; l < 32; l++) {
        if (m[l]->a_at != m[0]->a_at || m[l]->b_at != m[0]->b_at || m[l]->keep != m[0]->keep)
            EMU_FAIL("lanes of a warp have other operands");
        to->of.a[l] = m[l]->a;
    }
    to->of.a_at = m[0]->a_at, to->of.b_at = m[0]->b_at, to->of.turned = m[0]->turned;
    to->keep = m[0]->keep, to->group = own->group;
    to->sums = (int)(emu_sums_of(own, m) - own->sums);
    emu_read_operands(&to->of, m[0]->n);
}
EMU_OWN static void emu_multiply(emu_sums *sums, const emu_product *p)
{
    static thread_local emu_operands now;
    const emu_operands &of = p->of;
    alignas(32) double a[32][4][2], b[16][8];
    memcpy(now.a, of.a, sizeof(now.a));
    now.a_at = of.a_at, now.b_at = of.b_at, now.turned = of.turned;
    emu_read_operands(&now, sums->n_column);
    for (int k = 0; k < 16; k++)
        if (memcmp(now.b_then[k], of.b_then[k], (size_t)sums->n_column * sizeof(uint16_t)) != 0)
            EMU_FAIL("shared memory changed while a warp group's product read it");
    if (memcmp(now.a_then, of.a_then, sizeof(now.a_then)) != 0)
        EMU_FAIL("%s changed while a warp group's product read them",
                 of.a_at == 0 ? "registers" : "rows in shared memory");
    for (int l = 0; l < 32; l++)
        emu_pairs(of.a_then[l], 4, a[l][0], 2);
    for (int j = 0; j < sums->n_column / 8; j++) {
        float *d[32];
        for (int k = 0; k < 16; k++)
            for (int i = 0; i < 8; i++)
                b[k][i] = (double)emu_f(of.b_then[k][8 * j + i]);
        for (int l = 0; l < 32; l++) {
            d[l] = sums->sum[l] + 4 * j;
            for (int i = 0; p->keep == 0 && i < 4; i++)
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
    for (; done < own->n && own->product[done].group < own->group - n; done++) {
        emu_sums *s = &own->sums[own->product[done].sums];
        emu_multiply(s, &own->product[done]);
        if (--s->n == 0)
            for (int l = 0; l < 32; l++)
                memcpy(s->d[l], s->sum[l], (size_t)s->n_column / 2 * sizeof(float));
    }
    own->n -= done;
    memmove(own->product, own->product + done, (size_t)own->n * sizeof(own->product[0]));
}

template <bool TURNED = false, int N>
static void wgmma(float (&d)[N], const uint32_t *a, uint64_t b, int keep)
{
    emu_wgmma arg = {d, a, 0, b, 2 * N, keep, TURNED};
    emu_meet(8, &arg, emu_wgmma_all);
}
template <bool TURNED = false, int N>
static void wgmma(float (&d)[N], uint64_t a, uint64_t b, int keep)
{
    emu_wgmma arg = {d, NULL, a, b, 2 * N, keep, TURNED};
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
