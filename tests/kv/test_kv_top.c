/*
 * test_kv_top.c - the highest of many scores, against a sort: ties, all and none, infinities, zeros
 * of either sign, and scores that deceive a sample. Every processor level.
 */
#include <math.h>

#include "cpu/kernels.h"
#include "kv/kv.h"
#include "testing.h"

/* The highest first, of equals the lower slot. */
static const float *ranked;

static int by_rank(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (ranked[i] != ranked[j])
        return ranked[i] > ranked[j] ? -1 : 1;
    return i < j ? -1 : i > j;
}

static int by_slot(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return i < j ? -1 : i > j;
}

/* The scratch has exactly the size that was promised, starts anywhere and holds anything; slots
   have room for k and no more. */
static void check_level(const float *score, int32_t n, int32_t k, const int32_t *want)
{
    int32_t *slots = test_malloc((size_t)k * sizeof(*slots) + 1);
    void *scratch = test_malloc(kv_top_scratch_bytes(n));
    memset(scratch, 0xff, kv_top_scratch_bytes(n));
    kv_top(score, n, k, slots, scratch);
    for (int32_t i = 0; i < k; i++)
        if (slots[i] != want[i])
            fail_msg("slot %d of %d among %d is %d (%.9g), expected %d (%.9g)", i, k, n, slots[i],
                     (double)score[slots[i]], want[i], (double)score[want[i]]);
    test_free(scratch);
    test_free(slots);
}

static void check(const float *score, int32_t n, int32_t k)
{
    int32_t *order = test_malloc((size_t)n * sizeof(*order) + 1);
    for (int32_t i = 0; i < n; i++)
        order[i] = i;
    ranked = score;
    qsort(order, (size_t)n, sizeof(*order), by_rank);
    qsort(order, (size_t)k, sizeof(*order), by_slot);
    for (int level = 0; level < PI_CPU_N_LEVEL; level++)
        if (pith_cpu_level_set(pi_cpu_level_name((enum pi_cpu_level)level), NULL) == PITH_OK)
            check_level(score, n, k, order);
    assert_int_equal(pith_cpu_level_set(NULL, NULL), PITH_OK);
    test_free(order);
}

static void check_counts(const float *score, int32_t n)
{
    const int32_t counts[] = {0, 1, 2, n / 100, n / 8, n / 2, n - n / 7, n - 1, n};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        if (counts[i] >= 0 && counts[i] <= n)
            check(score, n, counts[i]);
}

enum { MOST = 20000 };

/* Scores of one kind each. */
static float draw(int kind, int32_t i, int32_t n, uint64_t *rng)
{
    const float edge[] = {0.0f, -0.0f, INFINITY, -INFINITY, 1e-45f, -1e-45f, 3e38f, -3e38f};
    switch (kind) {
    case 0:
        return rng_float(rng);
    case 1: /* ties */
        return (float)rng_below(rng, 5) - 2.0f;
    case 2: /* all are equal */
        return -0.25f;
    case 3:
        return edge[rng_below(rng, 8)];
    case 4: /* close together: they differ in their last bits alone */
        return 1.0f + 0x1p-23f * (float)rng_below(rng, 3000);
    case 5: /* all magnitudes */
        return ldexpf(rng_float(rng), (int)rng_below(rng, 200) - 100);
    case 6: /* falling */
        return -(float)i;
    default: /* the highest scores are at the places that a sample at even distances reads */
        return (int64_t)i * 1024 / n != (int64_t)(i + 1) * 1024 / n ? 9.0f : rng_float(rng);
    }
}

TEST(finds_the_highest_as_a_sort_does)
{
    const int32_t sizes[] = {1, 2, 15, 16, 17, 63, 511, 512, 1000, 4095, 4096, 5003, MOST};
    uint64_t rng = 1;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
        for (int kind = 0; kind < 8; kind++) {
            float *score = test_malloc((size_t)sizes[s] * sizeof(*score));
            for (int32_t i = 0; i < sizes[s]; i++)
                score[i] = draw(kind, i, sizes[s], &rng);
            check_counts(score, sizes[s]);
            test_free(score);
        }
    check(NULL, 0, 0);
}

/* A sample that sees nothing but the highest scores leaves fewer than are wanted, and one that sees
   nothing but the lowest nearly all. */
TEST(scores_that_deceive_a_sample_are_sorted_too)
{
    float *score = test_malloc(MOST * sizeof(*score));
    uint64_t rng = 2;
    for (int high = 0; high < 2; high++) {
        for (int32_t i = 0; i < MOST; i++)
            score[i] = rng_float(&rng);
        for (int64_t i = 0; i < 1024; i++)
            score[i * MOST / 1024] += high ? 4.0f : -4.0f;
        check_counts(score, MOST);
        check(score, MOST, 1025);
    }
    test_free(score);
}
