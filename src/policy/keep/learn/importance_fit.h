/*
 * importance_fit.h - ridge regression of targets on features, from sums that are gathered token by
 * token: normal equations in double, solved by Cholesky's factors. It knows neither models nor
 * texts.
 */
#ifndef PI_KEEP_IMPORTANCE_FIT_H
#define PI_KEEP_IMPORTANCE_FIT_H

#include "base/base.h"

/* Sums over samples of features z, which should be near mean 0 and deviation 1, and of targets y.
   The arrays are parts of one block of the caller's. */
struct ridge {
    int32_t n;        /* features */
    int32_t n_target; /* that share them */
    int64_t count;    /* samples */
    double *zz;       /* [n * (n + 1) / 2] z z', the lower triangle, row after row */
    double *z;        /* [n] */
    double *zy;       /* [n_target][n] */
    double *y;        /* [n_target] */
    double *yy;       /* [n_target] */
};

/* Doubles of the block, and the sums in a block of zeros. */
size_t ridge_len(int32_t n, int32_t n_target);
struct ridge ridge_at(int32_t n, int32_t n_target, double *block);

/* Rows [begin, end) of the triangle and of the other sums: a share of the work for a thread. z
   [n_sample][n], y [n_target][n_sample, y_stride apart]. Samples are added one after the other, so
   that cutting them changes no bit. */
void ridge_add_rows(const struct ridge *r, const double *z, const float *y, size_t y_stride,
                    int32_t n_sample, int32_t begin, int32_t end);
/* The rest: count and what is of targets alone. */
void ridge_add_targets(struct ridge *r, const float *y, size_t y_stride, int32_t n_sample);

/* Adds the sums of b to a. */
void ridge_merge(struct ridge *a, const struct ridge *b);

/* Weights [n_target][n + 1], the intercept last, that minimise the squared error plus alpha times
   the squares of all weights but the intercept. work [n * (n + 1) / 2 + n] doubles. Without samples
   all are 0. */
void ridge_solve(const struct ridge *r, double alpha, double *work, double *weight);

/* R^2 of weights [n + 1] on the samples of r for one target: 1 - squared error / variance; 0 where
   the target does not vary. */
double ridge_r2(const struct ridge *r, int32_t target, const double *weight);

#endif
