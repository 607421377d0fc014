/*
 * distance.c - how far apart two pages are: sums of squares of a lane, and their total over the
 * lanes of all layers. The total is as MemShare writes it, or without the model's shape in it. It
 * knows numbers alone, no lanes. Invariant: the order of every sum is fixed.
 */
#include <math.h>

#include "policy/share/internal.h"

/* ---- a lane ---- */

/* Keys turned on by an angle per pair of dimensions, entries side by side. */
static void turn_keys(const struct kv_geometry *g, const float *k, int32_t n,
                      const struct share_turn *turn, float *out)
{
    const struct pi_rope *rope = turn->rope;
    size_t row = (size_t)g->page_len;
    for (int32_t f = 0; f < rope->n_pair; f++) {
        size_t i = (size_t)(rope->adjacent ? 2 * f : f) * row;
        size_t j = (size_t)(rope->adjacent ? 2 * f + 1 : rope->n_pair + f) * row;
        float cosine = turn->cs[2 * f], sine = turn->cs[2 * f + 1];
        for (int32_t t = 0; t < n; t++) {
            float a = k[i + (size_t)t], b = k[j + (size_t)t];
            out[i + (size_t)t] = a * cosine - b * sine;
            out[j + (size_t)t] = a * sine + b * cosine;
        }
    }
    for (int32_t d = 2 * rope->n_pair; d < g->dim_k; d++)
        memcpy(out + (size_t)d * row, k + (size_t)d * row, (size_t)n * sizeof(*out));
}

/* Squares of n differences, and the mean of both squares, are added to the rows. */
static void add_squares(const float *a, const float *b, int32_t n, float *apart, float *size)
{
    for (int32_t i = 0; i < n; i++) {
        float d = a[i] - b[i];
        apart[i] += d * d;
        size[i] += 0.5f * (a[i] * a[i] + b[i] * b[i]);
    }
}

static double sum_of(const float *x, int32_t n)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i];
    return sum;
}

/* Adds dimensions first .. end of the keys, which are `scale` times what is meant. */
static void add_keys(const struct kv_geometry *g, const float *a, const float *b, int32_t n,
                     int32_t first, int32_t end, double scale, struct share_sums *out)
{
    float apart[64] = {0}, size[64] = {0}; /* of an entry each: pages have no more */
    for (int32_t d = first; d < end; d++) {
        size_t at = (size_t)d * (size_t)g->page_len;
        add_squares(a + at, b + at, n, apart, size);
    }
    out->k += sum_of(apart, n) / (scale * scale);
    out->size += sum_of(size, n) / (scale * scale);
}

static void add_values(const struct kv_geometry *g, const float *a, const float *b, int32_t n,
                       struct share_sums *out)
{
    enum { TILE = 64 };
    for (int32_t d = 0; d < g->dim_v; d += TILE) {
        float apart[TILE] = {0}, size[TILE] = {0};
        int32_t width = (int32_t)pi_min(TILE, g->dim_v - d);
        for (int32_t t = 0; t < n; t++) {
            size_t at = (size_t)t * (size_t)g->dim_v + (size_t)d;
            add_squares(a + at, b + at, width, apart, size);
        }
        out->v += sum_of(apart, width);
        out->size += sum_of(size, width);
    }
}

/* Keys are compared as they were before rotation. An angle that turned both changes no difference,
   so that one of them is turned by the difference of positions. A factor that YaRN multiplied both
   by is divided out. */
void share_lane_sums(const struct kv_geometry *g, const struct share_rows *a,
                     const struct share_rows *b, int32_t n, const struct share_turn *turn,
                     float *work, struct share_sums *out)
{
    int32_t n_rot = 0;
    const float *k = a->k;
    *out = (struct share_sums){0};
    assert(n <= g->page_len && n <= 64);
    if (turn != NULL) {
        n_rot = 2 * turn->rope->n_pair;
        turn_keys(g, a->k, n, turn, work);
        add_keys(g, work, b->k, n, 0, n_rot, (double)turn->rope->magnitude, out);
        k = work;
    }
    add_keys(g, k, b->k, n, n_rot, g->dim_k, 1.0, out);
    add_values(g, a->v, b->v, n, out);
}

/* ---- all layers ---- */

/* MemShare, Algorithm 1, stage 2:
     D = (1 / N) sum over N layers of (||K1 - K2|| + ||V1 - V2||) / (2 d h)
   with d the entries of a page and h the KV heads; norms are over the layer's whole page. Without
   the shape it is the root mean square of an element in its place, RMS(x) = ||x|| / sqrt(d h dim).
   It is half the sum for K and V. */
void share_total_add(struct share_total *t, const struct kv_geometry *g,
                     const struct share_sums *lane, int32_t n)
{
    double k = 0.0, v = 0.0, n_entry = (double)n * g->n_head;
    for (int32_t h = 0; h < g->n_head; h++) {
        k += lane[h].k;
        v += lane[h].v;
        t->size += lane[h].size;
    }
    t->paper += (sqrt(k) + sqrt(v)) / (2.0 * n_entry);
    t->rms += 0.5 * (sqrt(k / (n_entry * g->dim_k)) + sqrt(v / (n_entry * g->dim_v)));
    t->apart += k + v;
}

double share_total_paper(const struct share_total *t, int32_t n_layer)
{
    return t->paper / n_layer;
}

double share_total_rms(const struct share_total *t, int32_t n_layer)
{
    return t->rms / n_layer;
}

/* 0 for equal pages, about sqrt(2) for unrelated ones. */
double share_total_relative(const struct share_total *t)
{
    return t->size > 0.0 ? sqrt(t->apart / t->size) : 0.0;
}
