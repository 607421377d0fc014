/*
 * stats_importance.c - importance in calibration statistics: the object, what it must be, its
 * section in Pith's file (docs/stats.md), and what follows from it for lanes. How it comes about is
 * importance_fit.c's. put and get take the parts in the same order, that of visit. Invariant: what
 * is read was checked for size before anything is allocated, and is finite.
 */
#include <math.h>

#include "base/cursor.h"
#include "base/mem.h"
#include "policy/keep/stats/stats.h"

#define SECTION_HEADER 24 /* n_lane, n_embd, n_feature, n_quantile, n_map, n_hidden */

/* An array of the section. */
struct part {
    const char *name;
    float **at; /* the field */
    size_t n;   /* floats */
};

#define N_PART 13

/* The arrays in the order of the file; those that an object does not have have no floats. */
static void list_parts(struct stats_importance *m, struct part *out)
{
    size_t n_lane = (size_t)m->n_lane, n_feature = (size_t)m->n_feature;
    size_t n_embd = (size_t)m->n_embd, n_layer = (size_t)m->n_layer;
    size_t has = n_embd > 0, n_hidden = (size_t)m->n_hidden, net = n_hidden > 0;
    const struct part parts[N_PART] = {
        {"mean", &m->mean, n_lane},
        {"deviation", &m->deviation, n_lane},
        {"quantile", &m->quantile, n_lane * (size_t)m->n_quantile},
        {"key weight", &m->key_weight, n_lane * (n_feature + 1)},
        {"low key feature", &m->key_low, n_lane * n_feature},
        {"high key feature", &m->key_high, n_lane * n_feature},
        {"key R^2", &m->key_r2, n_lane},
        {"hidden weight", &m->hidden_weight, has * n_lane * (n_embd + 1)},
        {"low hidden feature", &m->hidden_low, n_layer * n_embd},
        {"high hidden feature", &m->hidden_high, n_layer * n_embd},
        {"hidden R^2", &m->hidden_r2, has * n_lane},
        {"weight into the network", &m->net_in, n_layer * n_hidden * (n_embd + 1)},
        {"weight out of the network", &m->net_out, net * n_lane * (n_hidden + 1)},
    };
    memcpy(out, parts, sizeof(parts));
}

/* ---- objects ---- */

static bool alloc_map(struct stats_map *map, size_t n_lane)
{
    map->slope = pi_mem_alloc_n(PI_MEM_OTHER, n_lane, sizeof(float));
    map->intercept = pi_mem_alloc_n(PI_MEM_OTHER, n_lane, sizeof(float));
    map->correlation = pi_mem_alloc_n(PI_MEM_OTHER, n_lane, sizeof(float));
    return map->slope != NULL && map->intercept != NULL && map->correlation != NULL;
}

static bool alloc_all(struct stats_importance *m)
{
    struct part part[N_PART];
    bool ok = true;
    list_parts(m, part);
    for (size_t i = 0; i < N_PART; i++) {
        if (part[i].n == 0)
            continue;
        *part[i].at = pi_mem_alloc_n(PI_MEM_OTHER, part[i].n, sizeof(float));
        ok = ok && *part[i].at != NULL;
    }
    if (m->n_map > 0)
        m->map = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)m->n_map, sizeof(*m->map));
    for (int32_t i = 0; m->map != NULL && i < m->n_map; i++)
        ok = alloc_map(&m->map[i], (size_t)m->n_lane) && ok;
    return ok && (m->n_map == 0 || m->map != NULL);
}

pith_status stats_importance_create(const struct stats_importance *shape,
                                    struct stats_importance **out, pith_error *err)
{
    struct stats_importance *m = pi_mem_alloc(PI_MEM_OTHER, sizeof(*m));
    if (m != NULL) {
        m->n_layer = shape->n_layer;
        m->n_lane = shape->n_lane;
        m->n_embd = shape->n_embd;
        m->n_feature = shape->n_feature;
        m->n_quantile = shape->n_quantile;
        m->n_map = shape->n_map;
        m->n_hidden = shape->n_hidden;
    }
    if (m == NULL || !alloc_all(m)) {
        stats_importance_free(m);
        return pi_fail(err, PITH_NOMEM, "no memory for the importance of %d lanes", shape->n_lane);
    }
    *out = m;
    return PITH_OK;
}

void stats_importance_free(struct stats_importance *m)
{
    struct part part[N_PART];
    if (m == NULL)
        return;
    list_parts(m, part);
    for (size_t i = 0; i < N_PART; i++)
        pi_mem_free(*part[i].at);
    for (int32_t i = 0; m->map != NULL && i < m->n_map; i++) {
        pi_mem_free(m->map[i].policy);
        pi_mem_free(m->map[i].slope);
        pi_mem_free(m->map[i].intercept);
        pi_mem_free(m->map[i].correlation);
    }
    pi_mem_free(m->map);
    pi_mem_free(m);
}

/* ---- checks ---- */

static pith_status check_counts(const struct stats_importance *m, const struct pith_stats *s,
                                pith_error *err)
{
    const struct {
        const char *name;
        int32_t value, min, max;
    } field[] = {
        {"hidden features", m->n_embd, 0, STATS_MAX_EMBD},
        {"key features", m->n_feature, 1, STATS_MAX_FEATURE},
        {"quantiles", m->n_quantile, 1, STATS_MAX_QUANTILE},
        {"maps", m->n_map, 0, STATS_MAX_MAP},
        {"neurons", m->n_hidden, 0, m->n_embd > 0 ? STATS_MAX_HIDDEN : 0},
    };
    if (s->n_head_kv == 0 || m->n_layer != s->n_layer || m->n_lane != s->n_layer * s->n_head_kv)
        return pi_fail(err, PITH_FORMAT, "importance: %d lanes are not %d layers of %d KV heads",
                       m->n_lane, s->n_layer, s->n_head_kv);
    for (size_t i = 0; i < PI_LEN(field); i++)
        if (field[i].value < field[i].min || field[i].value > field[i].max)
            return pi_fail(err, PITH_FORMAT, "importance: %s: %d is not in %d..%d", field[i].name,
                           field[i].value, field[i].min, field[i].max);
    return PITH_OK;
}

static pith_status check_finite(const char *name, const float *x, size_t n, pith_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return pi_fail(err, PITH_FORMAT, "importance: %s %zu is no number", name, i);
    return PITH_OK;
}

/* x[i] <= y[i] */
static pith_status check_order(const char *name, const float *x, const float *y, size_t n,
                               pith_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] > y[i])
            return pi_fail(err, PITH_FORMAT, "importance: %s %zu: %g is above %g", name, i,
                           (double)x[i], (double)y[i]);
    return PITH_OK;
}

static pith_status check_lanes(const struct stats_importance *m, pith_error *err)
{
    size_t n_quantile = (size_t)m->n_quantile, n_lane = (size_t)m->n_lane;
    for (size_t i = 0; i < n_lane; i++) {
        if (m->deviation[i] < 0.0f)
            return pi_fail(err, PITH_FORMAT, "importance: deviation %zu: %g is below 0", i,
                           (double)m->deviation[i]);
        const float *q = m->quantile + i * n_quantile;
        PI_TRY(check_order("quantile", q, q + 1, n_quantile - 1, err));
    }
    PI_TRY(check_order("key feature", m->key_low, m->key_high, n_lane * (size_t)m->n_feature, err));
    return check_order("hidden feature", m->hidden_low, m->hidden_high,
                       (size_t)m->n_layer * (size_t)m->n_embd, err);
}

static pith_status check_map(const struct stats_importance *m, int32_t i, pith_error *err)
{
    const struct stats_map *map = &m->map[i];
    size_t n_lane = (size_t)m->n_lane, len = map->policy != NULL ? strlen(map->policy) : 0;
    if (len == 0 || len > STATS_MAX_POLICY)
        return pi_fail(err, PITH_FORMAT, "importance: map %d has a name of %zu bytes, not 1..%d", i,
                       len, STATS_MAX_POLICY);
    for (int32_t j = 0; j < i; j++)
        if (strcmp(m->map[j].policy, map->policy) == 0)
            return pi_fail(err, PITH_FORMAT, "importance: there are two maps of %s", map->policy);
    PI_TRY(check_finite("slope", map->slope, n_lane, err));
    PI_TRY(check_finite("intercept", map->intercept, n_lane, err));
    PI_TRY(check_finite("correlation", map->correlation, n_lane, err));
    for (size_t lane = 0; lane < n_lane; lane++)
        if (map->slope[lane] < 0.0f || fabsf(map->correlation[lane]) > 1.0f)
            return pi_fail(err, PITH_FORMAT,
                           "importance: %s, lane %zu: slope %g is below 0 or correlation %g "
                           "outside -1..1",
                           map->policy, lane, (double)map->slope[lane],
                           (double)map->correlation[lane]);
    return PITH_OK;
}

pith_status stats_importance_check(const struct stats_importance *m, const struct pith_stats *s,
                                   pith_error *err)
{
    struct stats_importance copy = *m; /* list_parts wants fields that could be set */
    struct part part[N_PART];
    PI_TRY(check_counts(m, s, err));
    list_parts(&copy, part);
    for (size_t i = 0; i < N_PART; i++)
        PI_TRY(check_finite(part[i].name, *part[i].at, part[i].n, err));
    PI_TRY(check_lanes(m, err));
    for (int32_t i = 0; i < m->n_map; i++)
        PI_TRY(check_map(m, i, err));
    return PITH_OK;
}

/* ---- the section of a file ---- */

/* Without the names of maps. The counts are within the limits: nothing overflows 64 bits. */
static uint64_t fixed_size(const struct stats_importance *m)
{
    uint64_t n_lane = (uint64_t)m->n_lane, n_feature = (uint64_t)m->n_feature;
    uint64_t n_embd = (uint64_t)m->n_embd;
    uint64_t n = n_lane * (3 + (uint64_t)m->n_quantile + 3 * n_feature + 1);
    if (n_embd > 0)
        n += n_lane * (n_embd + 2) + 2 * (uint64_t)m->n_layer * n_embd;
    if (m->n_hidden > 0)
        n += (uint64_t)m->n_layer * (uint64_t)m->n_hidden * (n_embd + 1) +
             n_lane * ((uint64_t)m->n_hidden + 1);
    return SECTION_HEADER + 4 * n + (uint64_t)m->n_map * (4 + 12 * n_lane);
}

uint64_t stats_importance_size(const struct stats_importance *m)
{
    if (m == NULL)
        return 0;
    uint64_t size = fixed_size(m);
    for (int32_t i = 0; i < m->n_map; i++)
        size += strlen(m->map[i].policy);
    return size;
}

void stats_importance_put(struct pi_cursor *c, const struct stats_importance *m)
{
    struct stats_importance copy = *m;
    struct part part[N_PART];
    size_t n_lane = (size_t)m->n_lane;
    const int32_t count[] = {m->n_lane,     m->n_embd, m->n_feature,
                             m->n_quantile, m->n_map,  m->n_hidden};
    for (size_t i = 0; i < PI_LEN(count); i++)
        pi_put(c, (uint64_t)count[i], 4);
    list_parts(&copy, part);
    for (size_t i = 0; i < N_PART; i++)
        pi_put_floats(c, *part[i].at, part[i].n);
    for (int32_t i = 0; i < m->n_map; i++) {
        size_t len = strlen(m->map[i].policy);
        pi_put(c, len, 4);
        pi_put_bytes(c, m->map[i].policy, len);
        pi_put_floats(c, m->map[i].slope, n_lane);
        pi_put_floats(c, m->map[i].intercept, n_lane);
        pi_put_floats(c, m->map[i].correlation, n_lane);
    }
}

static pith_status wrong_size(uint64_t size, pith_error *err)
{
    return pi_fail(err, PITH_FORMAT, "importance: its counts do not make a section of %llu bytes",
                   (unsigned long long)size);
}

/* The names that stay once the fixed part is taken out of the section: left bytes. */
static pith_status get_map(struct pi_cursor *c, struct stats_map *map, size_t n_lane,
                           uint64_t *left, pith_error *err)
{
    uint64_t len = pi_get(c, 4);
    if (len > *left || len > STATS_MAX_POLICY)
        return pi_fail(err, PITH_FORMAT, "importance: a policy's name of %llu bytes",
                       (unsigned long long)len);
    *left -= len;
    map->policy = policy_name((const char *)c->in + c->at, (size_t)len);
    if (map->policy == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a policy's name");
    if (strlen(map->policy) != len)
        return pi_fail(err, PITH_FORMAT, "importance: a policy's name holds a zero byte");
    c->at += (size_t)len;
    pi_get_floats(c, map->slope, n_lane);
    pi_get_floats(c, map->intercept, n_lane);
    pi_get_floats(c, map->correlation, n_lane);
    return PITH_OK;
}

pith_status stats_importance_get(struct pi_cursor *c, uint64_t size, const struct pith_stats *s,
                                 struct stats_importance **out, pith_error *err)
{
    struct stats_importance shape = {.n_layer = s->n_layer};
    int32_t *to[] = {&shape.n_lane,     &shape.n_embd, &shape.n_feature,
                     &shape.n_quantile, &shape.n_map,  &shape.n_hidden};
    struct part part[N_PART];
    if (size < SECTION_HEADER)
        return wrong_size(size, err);
    for (size_t i = 0; i < PI_LEN(to); i++)
        *to[i] = (int32_t)pi_min((int64_t)pi_get(c, 4), INT32_MAX);
    PI_TRY(check_counts(&shape, s, err));
    if (fixed_size(&shape) > size)
        return wrong_size(size, err);
    uint64_t left = size - fixed_size(&shape);
    PI_TRY(stats_importance_create(&shape, out, err));
    struct stats_importance *m = *out; /* the caller's, who frees it */
    list_parts(m, part);
    for (size_t i = 0; i < N_PART; i++)
        pi_get_floats(c, *part[i].at, part[i].n);
    for (int32_t i = 0; i < m->n_map; i++)
        PI_TRY(get_map(c, &m->map[i], (size_t)m->n_lane, &left, err));
    return left == 0 ? PITH_OK : wrong_size(size, err);
}

/* ---- what follows ---- */

const struct stats_map *stats_find_map(const struct pith_stats *s, const char *policy)
{
    const struct stats_importance *m = s != NULL ? s->importance : NULL;
    for (int32_t i = 0; m != NULL && i < m->n_map; i++)
        if (strcmp(m->map[i].policy, policy) == 0)
            return &m->map[i];
    return NULL;
}

double stats_importance_predict(const float *weight, const float *low, const float *high,
                                const float *x, int32_t n)
{
    double sum = (double)weight[n];
    for (int32_t i = 0; i < n; i++) {
        float clipped = x[i] < low[i] ? low[i] : x[i] > high[i] ? high[i] : x[i];
        sum += (double)weight[i] * (double)clipped;
    }
    return sum;
}

/* How far the tails beyond the outer quantiles reach, over which their half of a step is spread. It
   is far enough that a double tells its ends apart. */
static double tail_of(const struct stats_importance *m, int32_t lane, double quantile)
{
    return (double)m->deviation[lane] + 1e-3 * (1.0 + fabs(quantile));
}

static double lower_end(const struct stats_importance *m, int32_t lane)
{
    double q = (double)m->quantile[(size_t)lane * (size_t)m->n_quantile];
    return q - tail_of(m, lane, q);
}

static double upper_end(const struct stats_importance *m, int32_t lane)
{
    double q = (double)m->quantile[((size_t)lane + 1) * (size_t)m->n_quantile - 1];
    return q + tail_of(m, lane, q);
}

/* The share of a lane's entries above t: 1 below its lower tail, 0 above the upper one. */
static double share_above(const struct stats_importance *m, int32_t lane, double t)
{
    int32_t n = m->n_quantile, lo = 0, hi = n;
    const float *q = m->quantile + (size_t)lane * (size_t)n;
    double x, y, at;
    while (lo < hi) { /* the first quantile above t */
        int32_t mid = lo + (hi - lo) / 2;
        if ((double)q[mid] <= t)
            lo = mid + 1;
        else
            hi = mid;
    }
    x = lo > 0 ? (double)q[lo - 1] : lower_end(m, lane);
    y = lo < n ? (double)q[lo] : upper_end(m, lane);
    at = t <= x ? 0.0 : t >= y ? 1.0 : (t - x) / (y - x); /* of the way from x to y */
    /* Quantile i stands at (i + 0.5) / n; the tails at 0 and 1. */
    double begin = lo > 0 ? (lo - 0.5) / n : 0.0, end = lo < n ? (lo + 0.5) / n : 1.0;
    return 1.0 - (begin + at * (end - begin));
}

static double fill_shares(const struct stats_importance *m, double t, double *share)
{
    double sum = 0.0;
    for (int32_t i = 0; i < m->n_lane; i++)
        sum += share[i] = share_above(m, i, t);
    return sum / m->n_lane;
}

static void fill_all(const struct stats_importance *m, double value, double *share)
{
    for (int32_t i = 0; i < m->n_lane; i++)
        share[i] = value;
}

/* Enough to halve any range of floats to two neighbouring doubles. */
#define MAX_HALVINGS 1200

void stats_lane_shares(const struct stats_importance *m, double retention, double *share)
{
    double lo = INFINITY, hi = -INFINITY; /* every entry is above lo, none above hi */
    if (!(retention > 0.0 && retention < 1.0)) {
        fill_all(m, retention > 0.0 ? 1.0 : 0.0, share);
        return;
    }
    for (int32_t i = 0; i < m->n_lane; i++) {
        lo = fmin(lo, lower_end(m, i));
        hi = fmax(hi, upper_end(m, i));
    }
    for (int i = 0; i < MAX_HALVINGS; i++) {
        double mid = lo + (hi - lo) / 2;
        if (mid <= lo || mid >= hi)
            break;
        if (fill_shares(m, mid, share) >= retention)
            lo = mid;
        else
            hi = mid;
    }
    /* Equal quantiles make steps: of the two sides the part that makes the mean exact. */
    double mean_hi = fill_shares(m, hi, share), mean_lo = 0.0;
    for (int32_t i = 0; i < m->n_lane; i++)
        mean_lo += share_above(m, i, lo) / m->n_lane;
    double part = mean_lo > mean_hi ? (retention - mean_hi) / (mean_lo - mean_hi) : 0.0;
    for (int32_t i = 0; i < m->n_lane; i++)
        share[i] += part * (share_above(m, i, lo) - share[i]);
}

/* ---- for callers ---- */

pith_status pith_stats_get_importance(const pith_stats *s, pith_importance_info *out)
{
    const struct stats_importance *m = s->importance;
    if (m == NULL)
        return PITH_NOT_FOUND;
    *out = (pith_importance_info){.n_layer = m->n_layer,
                                  .n_head_kv = s->n_head_kv,
                                  .n_lane = m->n_lane,
                                  .n_map = m->n_map,
                                  .mean = m->mean,
                                  .deviation = m->deviation,
                                  .key_r2 = m->key_r2,
                                  .hidden_r2 = m->hidden_r2};
    return PITH_OK;
}

pith_status pith_stats_get_map(const pith_stats *s, int32_t i, pith_importance_map *out)
{
    const struct stats_importance *m = s->importance;
    if (m == NULL || i < 0 || i >= m->n_map)
        return PITH_NOT_FOUND;
    *out = (pith_importance_map){.policy = m->map[i].policy,
                                 .slope = m->map[i].slope,
                                 .intercept = m->map[i].intercept,
                                 .correlation = m->map[i].correlation};
    return PITH_OK;
}

pith_status pith_stats_get_shares(const pith_stats *s, double retention, double *share)
{
    if (s->importance == NULL)
        return PITH_NOT_FOUND;
    if (!(retention >= 0.0 && retention <= 1.0))
        return PITH_INVALID;
    stats_lane_shares(s->importance, retention, share);
    return PITH_OK;
}
