/* eigen.h - eigenvalues and eigenvectors of a symmetric matrix. */
#ifndef PI_READ_EIGEN_H
#define PI_READ_EIGEN_H

#include "base/base.h"

/* a [n][n], symmetric and finite, becomes diagonal but for rounding. value [n], descending, of
   equal ones in the order in which the diagonal has them. Row i of vector [n][n] is the eigenvector
   of value[i], of length 1. Its entry of largest magnitude (of equal ones the first) is positive. n
   >= 1. The same matrix gives the same bits. */
void eigen_symmetric(double *a, int32_t n, double *value, double *vector);

#endif
