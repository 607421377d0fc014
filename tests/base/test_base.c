/* test_base.c - allocation counters and failure on demand, half floats, the parallel loops. */
#define _DEFAULT_SOURCE /* mincore */
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/half.h"
#include "base/mem.h"
#include "testing.h"

TEST(mem_counts_and_zeroes)
{
    int64_t before = pi_mem_used(PI_MEM_OTHER);
    unsigned char *p = pi_mem_alloc(PI_MEM_OTHER, 1000);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 64, 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(p[i], 0);
    p[999] = 7;
    assert_int_equal(pi_mem_used(PI_MEM_OTHER) - before, 1000);
    p = pi_mem_grow(PI_MEM_OTHER, p, 3000, 1);
    assert_int_equal(p[999], 7);
    assert_int_equal(p[2999], 0);
    assert_int_equal(pi_mem_used(PI_MEM_OTHER) - before, 3000);
    pi_mem_free(p);
    assert_int_equal(pi_mem_used(PI_MEM_OTHER) - before, 0);
    assert_null(pi_mem_alloc_n(PI_MEM_OTHER, SIZE_MAX / 2, 3));
}

TEST(a_block_that_will_be_used_whole_is_still_untouched)
{
    enum { SIZE = 256 << 20, PAGE = 4096 };
    static unsigned char there[SIZE / PAGE];
    int64_t before = pi_mem_used(PI_MEM_OTHER);
    unsigned char *block = pi_mem_map_whole(PI_MEM_OTHER, SIZE);
    assert_non_null(block);
    assert_int_equal(pi_mem_used(PI_MEM_OTHER) - before, SIZE);
    assert_int_equal(mincore(block, SIZE, there), 0);
    for (size_t i = 0; i < SIZE / (size_t)sysconf(_SC_PAGESIZE); i++)
        assert_int_equal(there[i] & 1, 0);
    assert_int_equal(block[0] | block[SIZE - 1], 0);
    pi_mem_unmap(PI_MEM_OTHER, block, SIZE);
    assert_int_equal(pi_mem_used(PI_MEM_OTHER) - before, 0);
}

/* The kind of pages in use shows in smaps alone; here the count that decides. */
TEST(slow_huge_pages_are_left_for_small_ones)
{
    enum { SIZE = 256 << 20, STEP = 12345678 };
    const double quick = 1e-4, slow = 5e-3;
    unsigned char *block = pi_mem_map_whole(PI_MEM_OTHER, SIZE);
    assert_non_null(block);
    struct pi_mem_fresh fresh = pi_mem_fresh(block, SIZE);
    for (int32_t i = 0; i < SIZE; i += STEP) {
        int32_t n = (int32_t)pi_min(STEP, SIZE - i);
        pi_mem_fresh_touch(&fresh, block + i, (size_t)n);
        memset(block + i, i / STEP + 1, (size_t)n);
    }
    for (int32_t i = 0; i < SIZE; i += 999)
        assert_int_equal(block[i], i / STEP + 1);

    fresh.slow = 0;
    for (int32_t i = 0; i < 100; i++) /* a slow one now and then is no sign */
        pi_mem_fresh_took(&fresh, i % 2 == 0 ? slow : quick);
    assert_int_equal(fresh.slow, 0);
    for (int32_t i = 0; i < 3; i++)
        pi_mem_fresh_took(&fresh, slow);
    assert_true(fresh.slow >= 0);
    pi_mem_fresh_took(&fresh, slow);
    assert_true(fresh.slow < 0);
    pi_mem_fresh_took(&fresh, quick);
    assert_true(fresh.slow < 0);
    pi_mem_unmap(PI_MEM_OTHER, block, SIZE);
}

TEST(mem_fails_on_demand)
{
    pi_mem_fail_at(2, false);
    void *a = pi_mem_alloc(PI_MEM_OTHER, 8);
    void *b = pi_mem_alloc(PI_MEM_OTHER, 8);
    void *c = pi_mem_alloc(PI_MEM_OTHER, 8);
    assert_int_equal(pi_mem_fail_at(0, false), 3);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    pi_mem_free(a);
    pi_mem_free(c);
}

/* Every finite half survives the round trip; every float rounds to its nearest half, ties to
   even. */
TEST(every_half_survives_the_round_trip)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = pi_f32_from_f16((uint16_t)h);
        if ((h & 0x7c00) == 0x7c00 && (h & 0x3ff)) {
            assert_true(isnan(f));
            continue;
        }
        assert_int_equal(pi_f16_from_f32(f), h);
    }
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float lo = pi_f32_from_f16((uint16_t)h), hi = pi_f32_from_f16((uint16_t)(h + 1));
        float mid = (float)(((double)lo + (double)hi) / 2);
        assert_int_equal(pi_f16_from_f32(mid), h & 1 ? h + 1 : h);
        assert_int_equal(pi_f16_from_f32(nextafterf(mid, hi)), h + 1);
        assert_int_equal(pi_f16_from_f32(-nextafterf(mid, lo)), h | 0x8000);
    }
    assert_int_equal(pi_f16_from_f32(65519.0f), 0x7bff);
    assert_int_equal(pi_f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(pi_f16_from_f32(-INFINITY), 0xfc00);
}
