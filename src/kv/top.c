/*
 * top.c - the highest of many scores, by counting. It must not know the source of the scores.
 *
 * Scores become unsigned numbers of the same order. Histograms count their highest 11 bits, then
 * the next 11, then the last 10. Each histogram tells which bin the k-th highest number lies in. Of
 * few numbers 8 bits are counted at a time, since walking over bins would take longest there. Where
 * k is small, a sample estimates a lower bound first, and only scores above it are looked at:
 * mostly a few per cent. Invariant: the chosen slots depend on the scores alone, not on the way of
 * choosing.
 */
#include <math.h>

#include "kv/top.h"
#include "base/half.h"
#include "base/mem.h"
#include "cpu/kernels.h"

enum {
    BITS = 11,
    BINS = 1 << BITS,
    FEW_BITS = 8,
    FEW = 512,          /* numbers below which FEW_BITS are counted at a time */
    SAMPLE = 1024,      /* scores of a sample */
    SAMPLE_FROM = 4096, /* scores from which on one is drawn */
    SLACK = 16,         /* entries that at_least may write beyond its result */
};

/* One call's working memory, parts of the caller's scratch. */
struct work {
    uint32_t *key;   /* [n] */
    int32_t *at;     /* [n + SLACK] slots that are looked at */
    uint32_t *count; /* [BINS] */
};

static size_t place(struct work *w, int32_t n, uint8_t *scratch)
{
    size_t used = 0;
    w->key = pi_mem_part(scratch, &used, (size_t)n, sizeof(*w->key));
    w->at = pi_mem_part(scratch, &used, (size_t)n + SLACK, sizeof(*w->at));
    w->count = pi_mem_part(scratch, &used, BINS, sizeof(*w->count));
    return used;
}

size_t kv_top_scratch_bytes(int32_t n)
{
    struct work w;
    return place(&w, n, NULL) + 64;
}

/* Unsigned numbers in the order of floats: the sign is turned, and with it all bits of a negative.
   Adding 0 makes the negative zero the positive one. */
static inline uint32_t key_of(float x)
{
    uint32_t bits = pi_bits_from_f32(x + 0.0f);
    return bits ^ ((uint32_t) - (int32_t)(bits >> 31) | 0x80000000u);
}

static inline float score_of(uint32_t key)
{
    return pi_f32_from_bits((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

/* Of n numbers the k-th highest, 1 <= k <= n; *n_equal receives how many of its value are among the
   k highest. The numbers are left in disorder. */
static uint32_t find_kth(uint32_t *key, int32_t n, int32_t k, uint32_t *count, int32_t *n_equal)
{
    uint32_t found = 0;
    int32_t bits = n < FEW ? FEW_BITS : BITS;
    for (int32_t shift = 32; shift > 0;) {
        int32_t width = (int32_t)pi_min(bits, shift), n_left = 0;
        uint32_t mask = ((uint32_t)1 << width) - 1, bin = mask;
        shift -= width;
        memset(count, 0, ((size_t)mask + 1) * sizeof(*count));
        for (int32_t i = 0; i < n; i++)
            count[key[i] >> shift & mask]++;
        for (; (int32_t)count[bin] < k; bin--)
            k -= (int32_t)count[bin];
        for (int32_t i = 0; i < n; i++) {
            uint32_t x = key[i];
            key[n_left] = x;
            n_left += (x >> shift & mask) == bin;
        }
        n = n_left;
        found |= bin << shift;
    }
    *n_equal = k;
    return found;
}

/* A score that a little more than k of n exceed, if a sample of them does not deceive. */
static float guess(const float *score, int32_t n, int32_t k, struct work *w)
{
    double share = (double)SAMPLE * k / n;
    int32_t rank = (int32_t)(share + 3.0 * sqrt(share) + 8.0), n_equal;
    if (rank >= SAMPLE)
        return -INFINITY;
    for (int32_t i = 0; i < SAMPLE; i++)
        w->key[i] = key_of(score[(int64_t)i * n / SAMPLE]);
    return score_of(find_kth(w->key, SAMPLE, rank, w->count, &n_equal));
}

/* The slots to look at, ascending: all, or the ones that reach the sample's bound, if there are k
   or more of them. Returns how many. */
static int32_t find_candidates(const float *score, int32_t n, int32_t k, struct work *w)
{
    float least = n < SAMPLE_FROM ? -INFINITY : guess(score, n, k, w);
    int32_t found = pi_kernels()->score.at_least(score, n, least, w->at);
    return found >= k ? found : pi_kernels()->score.at_least(score, n, -INFINITY, w->at);
}

void kv_top(const float *score, int32_t n, int32_t k, int32_t *slots, void *scratch)
{
    struct work w;
    int32_t n_equal, n_found = 0;
    assert(k >= 0 && k <= n);
    place(&w, n, (uint8_t *)scratch + (64 - (uintptr_t)scratch % 64) % 64);
    if (k == 0)
        return;
    int32_t n_at = find_candidates(score, n, k, &w);
    for (int32_t i = 0; i < n_at; i++)
        w.key[i] = key_of(score[w.at[i]]);
    float least = score_of(find_kth(w.key, n_at, k, w.count, &n_equal));
    for (int32_t i = 0; i < n_at && n_found < k; i++) {
        float x = score[w.at[i]];
        slots[n_found] = w.at[i];
        n_found += x > least || (x == least && n_equal-- > 0);
    }
}
