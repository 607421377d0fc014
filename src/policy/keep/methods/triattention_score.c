/*
 * triattention_score.c - the arithmetic of triattention_score.h. It knows neither caches nor
 * policies. Invariant: a key's score is summed over its own dimensions in one order (cpu/vec.h),
 * keys stand side by side, and nothing is fused. So every vector width gives the same bits.
 */
#include "policy/keep/methods/triattention_score.h"

#include <math.h>

#include "base/mem.h"
#include "cpu/kernels.h"
#include "tensor/rope.h"

/* ---- once per model ---- */

struct triattention_rope triattention_rope_of(const struct pi_rope *rope, int32_t dim)
{
    return (struct triattention_rope){
        .freq = rope->freq,
        .n_pair = rope->n_pair,
        .dim = dim,
        .adjacent = rope->adjacent,
        .magnitude = rope->magnitude,
    };
}

int32_t triattention_offsets(int32_t max, bool linear, int32_t *out)
{
    int32_t n = 0;
    for (int64_t d = 1; d <= max && n < TRIATTENTION_MAX_OFFSETS; d *= 2)
        out[n++] = (int32_t)d;
    for (int32_t i = 0; linear && i < n; i++)
        out[i] = n > 1 ? 1 + (int32_t)llround((double)(max - 1) * i / (n - 1)) : max;
    return n;
}

void triattention_fold(const double *freq, int32_t n_pair, const int32_t *offset, int32_t n,
                       double *g)
{
    for (int32_t f = 0; f < n_pair; f++) {
        double re = 0.0, im = 0.0;
        for (int32_t i = 0; i < n; i++) {
            re += cos(freq[f] * offset[i]);
            im += sin(freq[f] * offset[i]);
        }
        g[2 * f] = re / n;
        g[2 * f + 1] = im / n;
    }
}

size_t triattention_plan_len(const struct triattention_rope *rope,
                             const struct triattention_form *form)
{
    int32_t offset[TRIATTENTION_MAX_OFFSETS];
    int32_t n =
        form->max_offsets ? triattention_offsets(form->offset_max, form->linear, offset) : 1;
    return 2 * (size_t)rope->n_pair * (size_t)n;
}

void triattention_plan_make(struct triattention_plan *plan, const struct triattention_rope *rope,
                            const struct triattention_form *form, double *g)
{
    plan->rope = *rope;
    plan->form = *form;
    plan->n_offset = triattention_offsets(form->offset_max, form->linear, plan->offset);
    plan->g = g;
    if (form->max_offsets)
        for (int32_t i = 0; i < plan->n_offset; i++)
            triattention_fold(rope->freq, rope->n_pair, &plan->offset[i], 1,
                              g + 2 * (size_t)i * (size_t)rope->n_pair);
    else
        triattention_fold(rope->freq, rope->n_pair, plan->offset, plan->n_offset, g);
}

/* The first rotation that is not m->rope; that where there is none. */
static const struct pi_rope *other_rope(const struct policy_model *m)
{
    for (int32_t l = 0; l < m->g.n_layer; l++)
        if (policy_rope(m, l) != m->rope)
            return policy_rope(m, l);
    return m->rope;
}

pith_status triattention_plans_make(const struct policy_model *m,
                                    const struct triattention_form *form,
                                    struct triattention_plans *out, pith_error *err)
{
    const struct triattention_rope rotated = triattention_rope_of(m->rope, m->g.dim_k);
    const struct triattention_rope unrotated = triattention_rope_of(other_rope(m), m->g.dim_k);
    size_t len = triattention_plan_len(&rotated, form);
    out->g = pi_mem_alloc_n(PI_MEM_TABLE, 2 * len, sizeof(*out->g));
    if (out->g == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the scores of a policy");
    triattention_plan_make(&out->rotated, &rotated, form, out->g);
    triattention_plan_make(&out->unrotated, &unrotated, form, out->g + len);
    return PITH_OK;
}

void triattention_plans_free(struct triattention_plans *plans)
{
    pi_mem_free(plans->g);
    plans->g = NULL;
}

const struct triattention_plan *triattention_plan_of(const struct triattention_plans *plans,
                                                     const struct policy_model *m, int32_t layer)
{
    return policy_rope(m, layer) == m->rope ? &plans->rotated : &plans->unrotated;
}

int32_t triattention_plan_queries(const struct triattention_plan *plan)
{
    return plan->form.max_offsets && !plan->form.no_trig ? plan->n_offset : 1;
}

/* ---- once per head and round ---- */

void triattention_query(const struct triattention_rope *rope, const struct stats_row *row,
                        const double *g, double t0, bool flat, float *w)
{
    int32_t n = rope->n_pair;
    double s = (double)rope->magnitude;
    for (int32_t f = 0; f < n; f++) {
        double c = cos(rope->freq[f] * t0), d = sin(rope->freq[f] * t0);
        double a = g[2 * f] * c - g[2 * f + 1] * d, b = g[2 * f] * d + g[2 * f + 1] * c;
        double re = (double)row->re[f], im = (double)row->im[f];
        int32_t x = rope->adjacent ? 2 * f : f, y = rope->adjacent ? 2 * f + 1 : n + f;
        w[x] = (float)(s * (re * a - im * b));
        w[y] = (float)(s * (re * b + im * a));
    }
    for (int32_t i = 2 * n; i < rope->dim; i++)
        w[i] = flat ? row->flat[i - 2 * n] : 0.0f;
}

void triattention_weights(const struct triattention_rope *rope, const struct stats_row *row,
                          const struct triattention_form *form, float *e)
{
    for (int32_t f = 0; f < rope->n_pair; f++) {
        double a = (double)row->abs[f];
        if (!form->no_r)
            a -= hypot((double)row->re[f], (double)row->im[f]); /* Equation 9 */
        e[f] = (float)((double)rope->magnitude * (a > 0.0 ? a : 0.0));
    }
}

void triattention_queries_add(const struct triattention_plan *plan, const struct stats_row *row,
                              double t0, struct triattention_queries *queries)
{
    const struct triattention_rope *rope = &plan->rope;
    size_t dim = (size_t)rope->dim, n_pair = (size_t)rope->n_pair;
    size_t n_w = (size_t)triattention_plan_queries(plan);
    for (size_t i = 0; i < n_w; i++) {
        float *w = queries->w + ((size_t)queries->n * n_w + i) * dim;
        triattention_query(rope, row, plan->g + 2 * i * n_pair, t0, plan->form.flat, w);
        if (plan->form.no_trig)
            memset(w, 0, 2 * n_pair * sizeof(*w));
    }
    triattention_weights(rope, row, &plan->form, queries->e + (size_t)queries->n++ * n_pair);
}

/* ---- keys ---- */

void triattention_score(const struct triattention_plan *plan,
                        const struct triattention_queries *queries,
                        const struct triattention_keys *keys, float *out, size_t stride,
                        float *line)
{
    int32_t n_w = triattention_plan_queries(plan);
    size_t n_pair = (size_t)plan->rope.n_pair, n = (size_t)keys->n;
    struct pi_vec_score s = {.key = keys->keys,
                             .stride = keys->stride,
                             .n = keys->n,
                             .dim = plan->rope.dim,
                             .n_pair = plan->rope.n_pair,
                             .adjacent = plan->rope.adjacent,
                             .n_query = queries->n,
                             .w = queries->w,
                             .e = plan->form.no_norm ? NULL : queries->e,
                             .e_stride = n_pair,
                             .out = out,
                             .out_stride = stride};
    if (n_w == 1) {
        pi_kernels()->vec.score(&s);
        return;
    }
    /* The second sum depends on no distance. A row's queries share its weights, and the greatest of
       their sums is the greatest first sum plus it. */
    s.n_query = n_w;
    s.e_stride = 0;
    s.out = line;
    s.out_stride = n;
    for (int32_t i = 0; i < queries->n; i++, out += stride) {
        pi_kernels()->vec.score(&s);
        memcpy(out, line, n * sizeof(*out));
        for (int32_t o = 1; o < n_w; o++)
            triattention_take_max(out, line + (size_t)o * n, keys->n);
        s.w += (size_t)n_w * (size_t)s.dim;
        s.e = s.e != NULL ? s.e + n_pair : NULL;
    }
}

/* ---- scores of several heads ---- */

/* The first index from i on where may[] is `value`, or n; may NULL: all may. */
static int32_t find_next(const bool *may, int32_t i, int32_t n, bool value)
{
    if (may == NULL || i == n)
        return value ? i : n;
    const bool *at = memchr(may + i, value, (size_t)(n - i));
    return at != NULL ? (int32_t)(at - may) : n;
}

/* Sum of x - mean, or of its square, over the runs of those that may go; *count receives how many
   they are. */
static double sum_of(const float *x, const bool *may, int32_t n, double mean, bool square,
                     int32_t *count)
{
    double sum = 0.0;
    *count = 0;
    for (int32_t i = find_next(may, 0, n, true), end; i < n; i = find_next(may, end, n, true)) {
        end = find_next(may, i, n, false);
        sum += pi_kernels()->vec.sum(x + i, end - i, mean, square);
        *count += end - i;
    }
    return sum;
}

void triattention_standardise(float *x, const bool *may, int32_t n)
{
    int32_t count;
    double mean = sum_of(x, may, n, 0.0, false, &count);
    mean /= count > 0 ? count : 1;
    double square = sum_of(x, may, n, mean, true, &count);
    double std = sqrt(square / (count > 0 ? count : 1));
    double scale = 1.0 / fmax(std, TRIATTENTION_MIN_STD);
    bool number = isfinite(mean) && isfinite(std);
    for (int32_t i = 0, end; i < n; i = end) {
        bool goes = number && (may == NULL || may[i]);
        end = number ? find_next(may, i, n, !goes) : n;
        if (goes)
            pi_kernels()->vec.standardise(x + i, end - i, mean, scale);
        else
            memset(x + i, 0, (size_t)(end - i) * sizeof(*x));
    }
}

void triattention_take_max(float *z, const float *x, int32_t n)
{
    pi_kernels()->vec.take_max(z, x, n);
}

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void triattention_random_phase(const struct pith_stats *s, const float *rows, size_t n_row,
                               uint64_t seed, float *out)
{
    const double turn = 6.283185307179586476925;
    size_t len = stats_row_len(s), n = (size_t)s->n_pair;
    if (out != rows)
        memcpy(out, rows, n_row * len * sizeof(*out));
    for (size_t r = 0; r < n_row; r++) {
        for (size_t f = 0; f < n; f++) {
            float *re = &out[r * len + f], *im = &out[r * len + n + f];
            double angle = turn * (double)(next_random(&seed) >> 11) * 0x1p-53;
            double modulus = hypot((double)*re, (double)*im);
            *re = (float)(modulus * cos(angle));
            *im = (float)(modulus * sin(angle));
        }
        for (size_t i = 3 * n; i < len; i++)
            out[r * len + i] *= (next_random(&seed) & 1) != 0 ? -1.0f : 1.0f;
    }
}
