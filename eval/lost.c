/*
 * lost.c - softmax attention of a few queries, over all keys and over those that a policy kept, and
 * the difference. Slow on purpose: each step is the formula.
 */
#include "lost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t lost_scratch_len(const struct lost_job *job)
{
    return 3 * ((size_t)job->n_read + (size_t)job->n_query) + 2 * (size_t)job->dim_v;
}

/* logit[i] = scale * q . k_i for keys [0, n). */
static void make_logits(const struct lost_job *job, const float *q, int32_t n, double *logit)
{
    for (int32_t i = 0; i < n; i++) {
        const float *k = job->k + (size_t)i * job->k_stride;
        double sum = 0.0;
        for (int32_t d = 0; d < job->dim_k; d++)
            sum += (double)q[d] * (double)k[d];
        logit[i] = job->scale * sum;
    }
}

static bool is_there(const struct lost_job *job, int32_t i, bool only_kept)
{
    return !only_kept || i >= job->n_read || job->kept[i];
}

/* weight[i] = exp(logit[i] - max) / sum over the keys that are there, 0 for others; out [dim_v] =
   sum weight v. The query's own key is always there, so the sum is at least 1. */
static void attend(const struct lost_job *job, const double *logit, int32_t n, bool only_kept,
                   double *weight, double *out)
{
    double max = -(double)INFINITY, sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        if (is_there(job, i, only_kept))
            max = fmax(max, logit[i]);
    for (int32_t i = 0; i < n; i++) {
        weight[i] = is_there(job, i, only_kept) ? exp(logit[i] - max) : 0.0;
        sum += weight[i];
    }
    memset(out, 0, (size_t)job->dim_v * sizeof(*out));
    for (int32_t i = 0; i < n; i++) {
        const float *v = job->v + (size_t)i * job->v_stride;
        weight[i] /= sum;
        if (weight[i] > 0.0)
            for (int32_t d = 0; d < job->dim_v; d++)
                out[d] += weight[i] * (double)v[d];
    }
}

static double relative_error(const double *a, const double *b, int32_t n)
{
    double difference = 0.0, norm = 0.0;
    for (int32_t d = 0; d < n; d++) {
        difference += (a[d] - b[d]) * (a[d] - b[d]);
        norm += b[d] * b[d];
    }
    if (norm == 0.0)
        return difference == 0.0 ? 0.0 : 1.0;
    return sqrt(difference / norm);
}

static int compare_descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* The mean mass outside the n_kept heaviest keys. No choice of n_kept keys loses less, because a
   key's mean weight does not depend on the others that stay. */
static double best_mass(const struct lost_job *job, const double *mean, double *sorted)
{
    double lost = 0.0;
    int32_t n_kept = 0;
    for (int32_t i = 0; i < job->n_read; i++)
        n_kept += job->kept[i];
    memcpy(sorted, mean, (size_t)job->n_read * sizeof(*mean));
    qsort(sorted, (size_t)job->n_read, sizeof(*sorted), compare_descending);
    for (int32_t i = job->n_read - 1; i >= n_kept; i--) /* small ones first */
        lost += sorted[i];
    return lost;
}

void lost_measure(const struct lost_job *job, double *scratch, double *mean, struct lost *out)
{
    size_t n_key = (size_t)job->n_read + (size_t)job->n_query;
    double *logit = scratch, *weight = logit + n_key, *kept_weight = weight + n_key;
    double *full = kept_weight + n_key, *left = full + job->dim_v;
    int32_t n = job->n_query * job->n_group;
    memset(mean, 0, (size_t)job->n_read * sizeof(*mean));
    *out = (struct lost){0};
    for (int32_t t = 0; t < job->n_query; t++)
        for (int32_t g = 0; g < job->n_group; g++) {
            const float *q = job->q + (size_t)t * job->q_stride + (size_t)g * (size_t)job->dim_k;
            double mass = 0.0;
            make_logits(job, q, job->n_read + t + 1, logit);
            attend(job, logit, job->n_read + t + 1, false, weight, full);
            attend(job, logit, job->n_read + t + 1, true, kept_weight, left);
            for (int32_t i = 0; i < job->n_read; i++) {
                mean[i] += weight[i] / n;
                mass += job->kept[i] ? 0.0 : weight[i];
            }
            double error = relative_error(left, full, job->dim_v);
            out->mass += mass / n;
            out->mass_max = fmax(out->mass_max, mass);
            out->error += error / n;
            out->error_max = fmax(out->error_max, error);
        }
    out->mass_best = best_mass(job, mean, logit);
}
