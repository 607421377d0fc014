/*
 * centres.c - k-means. It knows points, not queries. Invariant: sums run over points in their order
 * and over dimensions in theirs, so that a seed gives one result on every machine. Centres stand
 * side by side, [dim][k], so that a point is compared with many at once.
 */
#include "policy/keep/learn/centres.h"

#include <float.h>
#include <math.h>

#define MAX_ROUND 50 /* Lloyd's steps; most clouds rest after twenty */

struct work {
    const float *x; /* [n][dim] */
    int32_t n;
    int32_t dim;
    int32_t k;
    double *sum;     /* [k][dim] */
    double *nearest; /* [n] squared distance to the nearest centre */
    float *centre;   /* [dim][k] */
    float *distance; /* [k] */
    int32_t *count;  /* [k] */
    int32_t *owner;  /* [n] */
};

static size_t reserve(size_t *at, size_t n, size_t size)
{
    size_t begin = *at;
    *at += pi_align(n * size, 64);
    return begin;
}

/* Lays the arrays out in a block; NULL: only their size. */
static size_t lay_out(struct work *w, uint8_t *block)
{
    size_t at = 0, n = (size_t)w->n, dim = (size_t)w->dim, k = (size_t)w->k;
    size_t sum = reserve(&at, k * dim, sizeof(*w->sum));
    size_t nearest = reserve(&at, n, sizeof(*w->nearest));
    size_t centre = reserve(&at, k * dim, sizeof(*w->centre));
    size_t distance = reserve(&at, k, sizeof(*w->distance));
    size_t count = reserve(&at, k, sizeof(*w->count));
    if (block != NULL) {
        w->sum = (double *)(void *)(block + sum);
        w->nearest = (double *)(void *)(block + nearest);
        w->centre = (float *)(void *)(block + centre);
        w->distance = (float *)(void *)(block + distance);
        w->count = (int32_t *)(void *)(block + count);
    }
    return at;
}

size_t centres_scratch(int32_t n, int32_t dim, int32_t k)
{
    struct work w = {.n = n, .dim = dim, .k = k};
    return lay_out(&w, NULL);
}

/* splitmix64 as a number in [0, 1). */
static double next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static void set_centre(struct work *w, int32_t c, int32_t point)
{
    for (int32_t d = 0; d < w->dim; d++)
        w->centre[(size_t)d * (size_t)w->k + (size_t)c] =
            w->x[(size_t)point * (size_t)w->dim + (size_t)d];
}

/* distance[c] to centres [begin, k). */
static void measure(const struct work *w, int32_t point, int32_t begin, int32_t end)
{
    const float *x = w->x + (size_t)point * (size_t)w->dim;
    float *restrict out = w->distance;
    for (int32_t c = begin; c < end; c++)
        out[c] = 0.0f;
    for (int32_t d = 0; d < w->dim; d++) {
        const float *restrict centre = w->centre + (size_t)d * (size_t)w->k;
        for (int32_t c = begin; c < end; c++)
            out[c] += (x[d] - centre[c]) * (x[d] - centre[c]);
    }
}

/* A point drawn with probability proportional to its squared distance to the centres so far. */
static int32_t draw(const struct work *w, uint64_t *seed)
{
    double total = 0.0;
    for (int32_t i = 0; i < w->n; i++)
        total += w->nearest[i];
    double left = next_random(seed) * total;
    for (int32_t i = 0; i < w->n; i++) {
        left -= w->nearest[i];
        if (left < 0.0)
            return i;
    }
    return (int32_t)(next_random(seed) * w->n); /* all points are centres already */
}

static void start(struct work *w, uint64_t *seed)
{
    int32_t point = (int32_t)(next_random(seed) * w->n);
    for (int32_t i = 0; i < w->n; i++)
        w->nearest[i] = DBL_MAX;
    for (int32_t c = 0; c < w->k; c++) {
        set_centre(w, c, point);
        for (int32_t i = 0; i < w->n; i++) {
            measure(w, i, c, c + 1);
            w->nearest[i] = fmin(w->nearest[i], (double)w->distance[c]);
        }
        point = draw(w, seed);
    }
}

/* Gives every point to its nearest centre, the first of equals; whether any changed. */
static bool assign(struct work *w)
{
    bool changed = false;
    for (int32_t i = 0; i < w->n; i++) {
        int32_t best = 0;
        measure(w, i, 0, w->k);
        for (int32_t c = 1; c < w->k; c++)
            if (w->distance[c] < w->distance[best])
                best = c;
        changed |= w->owner[i] != best;
        w->owner[i] = best;
    }
    return changed;
}

/* Moves every centre to the mean of its points; one without points stays where it is. */
static void move(struct work *w)
{
    memset(w->sum, 0, (size_t)w->k * (size_t)w->dim * sizeof(*w->sum));
    memset(w->count, 0, (size_t)w->k * sizeof(*w->count));
    for (int32_t i = 0; i < w->n; i++) {
        const float *x = w->x + (size_t)i * (size_t)w->dim;
        double *sum = w->sum + (size_t)w->owner[i] * (size_t)w->dim;
        w->count[w->owner[i]]++;
        for (int32_t d = 0; d < w->dim; d++)
            sum[d] += (double)x[d];
    }
    for (int32_t c = 0; c < w->k; c++)
        for (int32_t d = 0; w->count[c] > 0 && d < w->dim; d++)
            w->centre[(size_t)d * (size_t)w->k + (size_t)c] =
                (float)(w->sum[(size_t)c * (size_t)w->dim + (size_t)d] / w->count[c]);
}

void centres_find(const float *x, int32_t n, int32_t dim, int32_t k, uint64_t seed, void *scratch,
                  int32_t *owner)
{
    struct work w = {.x = x, .n = n, .dim = dim, .k = k, .owner = owner};
    lay_out(&w, scratch);
    for (int32_t i = 0; i < n; i++)
        owner[i] = -1;
    start(&w, &seed);
    for (int32_t i = 0; i < MAX_ROUND && assign(&w); i++)
        move(&w);
}
