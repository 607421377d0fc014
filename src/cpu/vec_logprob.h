/* vec_logprob.h - the part of vec_body.h that turns a row of logits into a log probability. */
#ifndef PI_VEC_LOGPROB_H
#define PI_VEC_LOGPROB_H

static float vec_largest(const float *x, int32_t n)
{
    float m[VEC_LANES];
    int32_t i = 0;
    for (int32_t j = 0; j < VEC_LANES; j++)
        m[j] = x[j < n ? j : 0];
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        for (int32_t j = 0; j < VEC_LANES; j++)
            m[j] = x[i + j] > m[j] ? x[i + j] : m[j];
    for (int32_t j = 0; i + j < n; j++)
        m[j] = x[i + j] > m[j] ? x[i + j] : m[j];
    for (int32_t half = VEC_LANES / 2; half > 0; half /= 2)
        for (int32_t j = 0; j < half; j++)
            m[j] = m[j + half] > m[j] ? m[j + half] : m[j];
    return m[0];
}

/* exp(x) for x <= 0, 0 below -708. As expf.h's, in double: the remainder is below ln 2 / 2, and so
   what the series leaves out is below 2^-57 of the sum. */
TILE double vec_exp_double(double x)
{
    const double least = -708.0, magic = 0x1.8p+52, log2e = 0x1.71547652b82fep+0;
    const double ln2_high = 0x1.62e42fefa38p-1, ln2_low = 0x1.ef35793c7673p-45;
    double in = x < least ? least : x, t = fma(in, log2e, magic), n = t - magic;
    double r = fma(n, -ln2_low, fma(n, -ln2_high, in)), y = 1.0 / 6227020800.0;
    y = fma(y, r, 1.0 / 479001600.0);
    y = fma(y, r, 1.0 / 39916800.0);
    y = fma(y, r, 1.0 / 3628800.0);
    y = fma(y, r, 1.0 / 362880.0);
    y = fma(y, r, 1.0 / 40320.0);
    y = fma(y, r, 1.0 / 5040.0);
    y = fma(y, r, 1.0 / 720.0);
    y = fma(y, r, 1.0 / 120.0);
    y = fma(y, r, 1.0 / 24.0);
    y = fma(y, r, 1.0 / 6.0);
    y = fma(y, r, 0.5);
    y = fma(y, r, 1.0);
    y = fma(y, r, 1.0);
    uint64_t bits, exponent;
    memcpy(&bits, &y, sizeof(bits));
    memcpy(&exponent, &t, sizeof(exponent));
    bits += exponent << 52; /* the low bits of t hold n */
    memcpy(&y, &bits, sizeof(y));
    return x < least ? 0.0 : y;
}

/* Partial sums as of vec_sum_squares. */
static double vec_exp_sum(const float *x, int32_t n, float max)
{
    double s[VEC_LANES] = {0};
    int32_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        for (int32_t j = 0; j < VEC_LANES; j++)
            s[j] += vec_exp_double((double)x[i + j] - (double)max);
    for (int32_t j = 0; i + j < n; j++)
        s[j] += vec_exp_double((double)x[i + j] - (double)max);
    for (int32_t half = VEC_LANES / 2; half > 0; half /= 2)
        for (int32_t j = 0; j < half; j++)
            s[j] += s[j + half];
    return s[0];
}

#endif
