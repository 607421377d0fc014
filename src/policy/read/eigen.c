/*
 * eigen.c - Jacobi's method: rotations in planes (p, q), each of which makes a[p][q] zero. It goes
 * row by row over all planes until nothing is left beside the diagonal. Golub and Van Loan, "Matrix
 * Computations", section 8.5: with theta = (a[q][q] - a[p][p]) / (2 a[p][q])
 *
 *   t = sign(theta) / (|theta| + sqrt(theta^2 + 1)),  c = 1 / sqrt(t^2 + 1),  s = t c
 *
 * It converges quadratically for every symmetric matrix, to eigenvalues that are right to the
 * rounding of its largest. Heads have some hundred dimensions, for which that is some tens of
 * milliseconds; faster ways exist and are not needed.
 */
#include "policy/read/eigen.h"

#include <float.h>
#include <math.h>

#define MAX_SWEEP 64 /* about ten are needed */

/* Rows x and y [n] become c x - s y and s x + c y. */
static void rotate(double *x, double *y, int32_t n, double c, double s)
{
    for (int32_t i = 0; i < n; i++) {
        double u = x[i], v = y[i];
        x[i] = c * u - s * v;
        y[i] = s * u + c * v;
    }
}

/* Makes a[p][q] zero; vector gets the same rotation. */
static void annihilate(double *a, int32_t n, int32_t p, int32_t q, double *vector)
{
    double *row_p = a + (size_t)p * (size_t)n, *row_q = a + (size_t)q * (size_t)n;
    double off = row_p[q], at_p = row_p[p], at_q = row_q[q];
    double theta = (at_q - at_p) / (2.0 * off);
    double t = (theta < 0.0 ? -1.0 : 1.0) / (fabs(theta) + sqrt(theta * theta + 1.0));
    double c = 1.0 / sqrt(t * t + 1.0), s = t * c;
    rotate(row_p, row_q, n, c, s);
    for (int32_t k = 0; k < n; k++) {
        a[(size_t)k * (size_t)n + (size_t)p] = row_p[k];
        a[(size_t)k * (size_t)n + (size_t)q] = row_q[k];
    }
    row_p[p] = at_p - t * off;
    row_q[q] = at_q + t * off;
    row_p[q] = row_q[p] = 0.0;
    rotate(vector + (size_t)p * (size_t)n, vector + (size_t)q * (size_t)n, n, c, s);
}

/* One rotation in every plane whose entry is more than rounding of the matrix; false: there was
   none. */
static bool sweep(double *a, int32_t n, double least, double *vector)
{
    bool any = false;
    for (int32_t p = 0; p < n - 1; p++)
        for (int32_t q = p + 1; q < n; q++)
            if (fabs(a[(size_t)p * (size_t)n + (size_t)q]) > least) {
                annihilate(a, n, p, q, vector);
                any = true;
            }
    return any;
}

static void swap_rows(double *x, double *y, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        double kept = x[i];
        x[i] = y[i];
        y[i] = kept;
    }
}

static void sort_values(int32_t n, double *value, double *vector)
{
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = i; j > 0 && value[j] > value[j - 1]; j--) {
            swap_rows(&value[j - 1], &value[j], 1);
            swap_rows(vector + (size_t)(j - 1) * (size_t)n, vector + (size_t)j * (size_t)n, n);
        }
}

/* Turns a vector so that its largest entry is positive. */
static void fix_sign(double *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (fabs(x[i]) > fabs(x[best]))
            best = i;
    for (int32_t i = 0; x[best] < 0.0 && i < n; i++)
        if (i != best)
            x[i] = -x[i];
    x[best] = fabs(x[best]);
}

void eigen_symmetric(double *a, int32_t n, double *value, double *vector)
{
    size_t size = (size_t)n * (size_t)n;
    double largest = 0.0;
    memset(vector, 0, size * sizeof(*vector));
    for (size_t i = 0; i < size; i++)
        largest = fmax(largest, fabs(a[i]));
    for (size_t i = 0; i < (size_t)n; i++)
        vector[i * (size_t)n + i] = 1.0;
    for (int32_t i = 0; i < MAX_SWEEP && sweep(a, n, largest * DBL_EPSILON * 0.5, vector); i++)
        ;
    for (size_t i = 0; i < (size_t)n; i++)
        value[i] = a[i * (size_t)n + i];
    sort_values(n, value, vector);
    for (size_t i = 0; i < (size_t)n; i++)
        fix_sign(vector + i * (size_t)n, n);
}
