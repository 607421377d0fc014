/*
 * emu_copies.h - asynchronous copies of an emulated GPU. They arrive as late as they may, and what
 * was there is lost at once.
 */
#ifndef PI_EMU_COPIES_H
#define PI_EMU_COPIES_H

#include "device/emulated/emu_fibers.h"

/* ---- copies that arrive when they are waited for ---- */

static void cp16(void *to, const void *from)
{
    emu_fiber *f = &emu.fiber[emu.now];
    if ((uintptr_t)to % 16 != 0 || (uintptr_t)from % 16 != 0)
        EMU_FAIL("a copy is not aligned");
    if (f->n_copy == EMU_COPIES)
        EMU_FAIL("too many copies on their way");
    memset(to, 0xff, 16); /* it may come at once, too */
    f->copy[f->n_copy++] = {to, from, f->group};
}
static void cp_commit(void)
{
    emu.fiber[emu.now].group++;
}
static void emu_arrive(int left)
{
    emu_fiber *f = &emu.fiber[emu.now];
    int n = 0;
    for (int i = 0; i < f->n_copy; i++)
        if (f->copy[i].group < f->group - left)
            memcpy(f->copy[i].to, f->copy[i].from, 16);
        else
            f->copy[n++] = f->copy[i];
    f->n_copy = n;
}
#define CP_WAIT(n) emu_arrive(n)
/* The bytes must be there. */
static inline void prefetch(const void *p, int n)
{
    if ((uintptr_t)p % 16 != 0 || n % 16 != 0)
        EMU_FAIL("bytes that a kernel asks for are not aligned");
    (void)*(const volatile uint8_t *)p;
    (void)((const volatile uint8_t *)p)[n - 1];
}
static inline uint4 ld_stream(const void *p)
{
    return *(const uint4 *)p;
}
static inline uint2 ld_stream2(const void *p)
{
    return *(const uint2 *)p;
}
static inline uint32_t ld_near(const void *p)
{
    return *(const uint32_t *)p;
}

static inline float ld_far(const float *p)
{
    return *p;
}
static inline float2 ld_far2(const float *p)
{
    return *(const float2 *)p;
}
static inline float4 ld_far4(const float *p)
{
    return *(const float4 *)p;
}

/* ---- bulk copies: old bytes are lost at once, new ones are there when they are waited for ---- */

struct emu_bar {
    uint8_t n, left, parity, unused; /* arrivals of a round, and those that it still wants */
    int32_t bytes;                   /* that are still to come */
};
static_assert(sizeof(emu_bar) == 8, "the size of a barrier");
static void emu_turn(emu_bar *b)
{
    if (b->left > 0 || b->bytes != 0)
        return;
    b->left = b->n;
    b->parity ^= 1;
}
static void bar_init(uint64_t *bar, int n)
{
    *(emu_bar *)bar = {(uint8_t)n, (uint8_t)n, 0, 0, 0};
}
static void bar_init_done(void) {}
static void fence_products(void) {}
static void bar_arrive(uint64_t *bar)
{
    emu_bar *b = (emu_bar *)bar;
    if (b->left == 0)
        EMU_FAIL("too many arrivals at a barrier");
    b->left--;
    emu_turn(b);
}
static void bar_expect(uint64_t *bar, int n)
{
    ((emu_bar *)bar)->bytes += n;
    bar_arrive(bar);
}
static void bulk_copy(void *to, const void *from, int n, uint64_t *bar)
{
    if ((uintptr_t)to % 16 != 0 || (uintptr_t)from % 16 != 0 || n % 16 != 0)
        EMU_FAIL("a bulk copy is not aligned");
    if (emu.n_bulk == EMU_BULK)
        EMU_FAIL("too many bulk copies on their way");
    memset(to, 0xff, (size_t)n);
    emu.bulk[emu.n_bulk++] = {to, from, n, bar};
}
static void bulk_prefetch(const void *from, int n)
{
    if ((uintptr_t)from % 16 != 0 || n % 16 != 0)
        EMU_FAIL("a bulk prefetch is not aligned");
}
struct emu_bar_wait {
    emu_bar *bar;
    uint32_t parity;
};
static bool emu_bar_passed(void *arg)
{
    const emu_bar_wait *w = (const emu_bar_wait *)arg;
    int n = 0;
    for (int i = 0; i < emu.n_bulk; i++)
        if (emu.bulk[i].bar == w->bar) {
            memcpy(emu.bulk[i].to, emu.bulk[i].from, (size_t)emu.bulk[i].n);
            w->bar->bytes -= emu.bulk[i].n;
            emu_turn(w->bar);
        } else {
            emu.bulk[n++] = emu.bulk[i];
        }
    emu.n_bulk = n;
    return w->bar->parity != w->parity;
}
static void bar_wait(uint64_t *bar, uint32_t parity)
{
    emu_bar_wait arg = {(emu_bar *)bar, parity};
    emu_wait(emu_bar_passed, &arg);
}

#endif
