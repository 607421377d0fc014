/*
 * importance_fit.c - the sums and the solution of a ridge regression. Of n samples with centred
 * features Z (sums of zz less n times the mean's products) and targets y:
 *
 *     w = (Z'Z + alpha I)^-1 Z'y,   b = mean y - w . mean z
 *
 * Invariant: every sum is taken in the order of samples by the thread that owns its row. So neither
 * chunks nor threads change a bit.
 */
#include "policy/keep/learn/importance_fit.h"

#include <math.h>

static size_t triangle(int32_t n)
{
    return (size_t)n * ((size_t)n + 1) / 2;
}

size_t ridge_len(int32_t n, int32_t n_target)
{
    return triangle(n) + (size_t)n + (size_t)n_target * ((size_t)n + 2);
}

struct ridge ridge_at(int32_t n, int32_t n_target, double *block)
{
    struct ridge r = {.n = n, .n_target = n_target, .zz = block};
    r.z = r.zz + triangle(n);
    r.zy = r.z + n;
    r.y = r.zy + (size_t)n_target * (size_t)n;
    r.yy = r.y + n_target;
    return r;
}

/* out[0..len) += sum over four samples, one after the other. */
static void add_four(double *restrict out, const double *restrict z, size_t stride, size_t i,
                     size_t len)
{
    const double *z1 = z + stride, *z2 = z1 + stride, *z3 = z2 + stride;
    double a0 = z[i], a1 = z1[i], a2 = z2[i], a3 = z3[i];
    for (size_t j = 0; j < len; j++) {
        double sum = out[j];
        sum += a0 * z[j];
        sum += a1 * z1[j];
        sum += a2 * z2[j];
        sum += a3 * z3[j];
        out[j] = sum;
    }
}

static void add_one(double *restrict out, const double *restrict z, size_t i, size_t len)
{
    double a = z[i];
    for (size_t j = 0; j < len; j++)
        out[j] += a * z[j];
}

void ridge_add_rows(const struct ridge *r, const double *z, const float *y, size_t y_stride,
                    int32_t n_sample, int32_t begin, int32_t end)
{
    size_t n = (size_t)r->n;
    for (size_t i = (size_t)begin; i < (size_t)end; i++) {
        double *out = r->zz + triangle((int32_t)i);
        int32_t t = 0;
        for (; t + 4 <= n_sample; t += 4)
            add_four(out, z + (size_t)t * n, n, i, i + 1);
        for (; t < n_sample; t++)
            add_one(out, z + (size_t)t * n, i, i + 1);
        for (t = 0; t < n_sample; t++)
            r->z[i] += z[(size_t)t * n + i];
        for (size_t k = 0; k < (size_t)r->n_target; k++)
            for (t = 0; t < n_sample; t++)
                r->zy[k * n + i] += z[(size_t)t * n + i] * (double)y[k * y_stride + (size_t)t];
    }
}

void ridge_add_targets(struct ridge *r, const float *y, size_t y_stride, int32_t n_sample)
{
    r->count += n_sample;
    for (size_t k = 0; k < (size_t)r->n_target; k++)
        for (size_t t = 0; t < (size_t)n_sample; t++) {
            double x = (double)y[k * y_stride + t];
            r->y[k] += x;
            r->yy[k] += x * x;
        }
}

void ridge_merge(struct ridge *a, const struct ridge *b)
{
    size_t len = ridge_len(a->n, a->n_target); /* of the block, whose first part is zz */
    for (size_t i = 0; i < len; i++)
        a->zz[i] += b->zz[i];
    a->count += b->count;
}

/* Lower factor L of a positive definite matrix in its own triangle: A = L L'. A pivot that rounding
   made nothing or less leaves its feature out. */
static void factorise(double *a, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        double *row = a + triangle(i);
        for (int32_t j = 0; j <= i; j++) {
            const double *other = a + triangle(j);
            double sum = row[j];
            for (int32_t k = 0; k < j; k++)
                sum -= row[k] * other[k];
            if (j < i)
                row[j] = other[j] > 0.0 ? sum / other[j] : 0.0;
            else
                row[j] = sum > 0.0 ? sqrt(sum) : 0.0;
        }
    }
}

/* Solves L L' x = x in place. */
static void substitute(const double *a, int32_t n, double *x)
{
    for (int32_t i = 0; i < n; i++) {
        const double *row = a + triangle(i);
        for (int32_t k = 0; k < i; k++)
            x[i] -= row[k] * x[k];
        x[i] = row[i] > 0.0 ? x[i] / row[i] : 0.0;
    }
    for (int32_t i = n - 1; i >= 0; i--) {
        const double *row = a + triangle(i);
        x[i] = row[i] > 0.0 ? x[i] / row[i] : 0.0;
        for (int32_t k = 0; k < i; k++)
            x[k] -= row[k] * x[i];
    }
}

void ridge_solve(const struct ridge *r, double alpha, double *work, double *weight)
{
    size_t n = (size_t)r->n;
    double count = (double)r->count, *a = work, *x = work + triangle(r->n);
    memset(weight, 0, (size_t)r->n_target * (n + 1) * sizeof(*weight));
    if (r->count == 0)
        return;
    for (size_t i = 0; i < n; i++) {
        size_t at = triangle((int32_t)i);
        for (size_t j = 0; j <= i; j++)
            a[at + j] = r->zz[at + j] - r->z[i] * r->z[j] / count + (i == j ? alpha : 0.0);
    }
    factorise(a, r->n);
    for (size_t k = 0; k < (size_t)r->n_target; k++) {
        double *w = weight + k * (n + 1);
        for (size_t i = 0; i < n; i++)
            x[i] = r->zy[k * n + i] - r->z[i] * r->y[k] / count;
        substitute(a, r->n, x);
        w[n] = r->y[k] / count;
        for (size_t i = 0; i < n; i++) {
            w[i] = x[i];
            w[n] -= x[i] * r->z[i] / count;
        }
    }
}

double ridge_r2(const struct ridge *r, int32_t target, const double *w)
{
    size_t n = (size_t)r->n;
    const double *zy = r->zy + (size_t)target * n;
    double b = w[n], count = (double)r->count, y = r->y[target], yy = r->yy[target];
    double variance = r->count > 0 ? yy - y * y / count : 0.0;
    /* sum (y - w.z - b)^2, opened. */
    double error = yy - 2.0 * b * y + b * b * count;
    for (size_t i = 0; i < n; i++) {
        const double *row = r->zz + triangle((int32_t)i);
        double inner = 0.5 * w[i] * row[i];
        for (size_t j = 0; j < i; j++)
            inner += w[j] * row[j];
        error += 2.0 * w[i] * (inner + b * r->z[i] - zy[i]);
    }
    return variance > 1e-12 * (yy + 1.0) ? 1.0 - error / variance : 0.0;
}
