/*
 * stats.h - calibration statistics: what the queries of a model are like before they are rotated,
 * per layer and query head. In memory, checked, and as files: Pith's own (docs/stats.md) and
 * TRIA. Each reader is a pure function of (bytes, length).
 *
 * Of n_pair rotated pairs, band f of a vector x is the complex number z_f = x_a + i x_b with (a, b)
 * the pair's dimensions. A row holds, one after the other:
 *   re [n_pair], im [n_pair]   the mean of z_f
 *   abs [n_pair]               the mean of |z_f|
 *   flat [n_flat]              the mean of the dimensions that are not rotated
 * R_f = |mean z_f| / mean |z_f| (TriAttention, Equation 23) is 1 where a band's queries all point
 * one way and 0 where they cancel.
 */
#ifndef PI_KEEP_STATS_H
#define PI_KEEP_STATS_H

#include "base/base.h"
#include "policy/identity.h"
#include "policy/policy.h"
#include "pith/calibrate.h"

/* An affine map from a keep policy's score to log importance, lane by lane. */
struct stats_map {
    char *policy;     /* owned; the policy's name */
    float *slope;     /* [n_lane] >= 0; 0: the score says nothing here, the intercept is the mean */
    float *intercept; /* [n_lane] */
    float *correlation; /* [n_lane] of score and target, -1..1 */
};

/* How important entries are for repeating a text (KVzip+, policy/keep/learn/importance_target.h):
   statistics of the target, which is a logarithm, and what predicts it. Lanes are layer-major, KV
   heads within a layer. A prediction clips feature i to [low[i], high[i]], multiplies by weight[i],
   adds the last weight. */
struct stats_importance {
    int32_t n_layer;
    int32_t n_lane;        /* n_layer * KV heads */
    int32_t n_embd;        /* inputs of hidden_weight; 0: there is none */
    int32_t n_feature;     /* dim_k + 2: the key before rotation, |k|, |v| */
    int32_t n_quantile;    /* quantile i is at (i + 0.5) / n_quantile */
    float *mean;           /* [n_lane] of the target */
    float *deviation;      /* [n_lane] */
    float *quantile;       /* [n_lane][n_quantile] ascending */
    float *key_weight;     /* [n_lane][n_feature + 1] */
    float *key_low;        /* [n_lane][n_feature] */
    float *key_high;       /* [n_lane][n_feature] */
    float *key_r2;         /* [n_lane] on texts that were held out, at most 1 */
    float *hidden_weight;  /* [n_lane][n_embd + 1]; NULL where n_embd is 0, as are the next three */
    float *hidden_low;     /* [n_layer][n_embd] */
    float *hidden_high;    /* [n_layer][n_embd] */
    float *hidden_r2;      /* [n_lane] */
    int32_t n_hidden;      /* neurons of each layer's network; 0: there is none */
    float *net_in;         /* [n_layer][n_hidden][n_embd + 1] of the layer's input, the bias last */
    float *net_out;        /* [n_lane][n_hidden + 1] of gelu(neuron), the bias last */
    struct stats_map *map; /* [n_map] */
    int32_t n_map;
};

struct pith_stats {
    int32_t n_layer;
    int32_t n_head;    /* query heads */
    int32_t n_head_kv; /* 0: the file does not say */
    int32_t n_pair;
    int32_t n_flat; /* dimensions of a head that are not rotated and that the rows hold; 0: none */
    int32_t n_centre; /* of a head; 1: the mean alone, and centre and weight are NULL */
    pith_pairing pairing;
    pith_select select;
    uint64_t fingerprint; /* of the model; 0: the file does not say */
    int64_t n_token;      /* evaluated; 0: the file does not say */
    float magnitude;      /* that rotation multiplies by; 1 but for YaRN */
    char *model;          /* owned; its name, "" where there is none */
    char *text;           /* owned; what the tokens were, "" where there is none */
    double *freq;         /* [n_pair] radians per position; NULL: the file does not say, or lies */
    int64_t *count;       /* [n_layer] queries; 0: no statistics; -1: the file does not say */
    pith_range *range;    /* [n_range] tokens that were selected, where select is RANGES */
    int32_t n_range;
    float *q;      /* [n_layer][n_head][row] */
    float *k;      /* [n_layer][n_head_kv][row] keys, before rotation; NULL: none */
    float *centre; /* [n_layer][n_head][n_centre][row] */
    float *weight; /* [n_layer][n_head][n_centre] share of the queries, summing to 1 per head */
    const char *format;                  /* where it comes from, a constant string */
    struct stats_importance *importance; /* owned; NULL: none */
};

/* Limits of every reader: beyond any model, and so that products of a few fit in int64_t. */
#define STATS_MAX_LAYER 4096
#define STATS_MAX_HEAD 4096
#define STATS_MAX_PAIR 4096
#define STATS_MAX_FLAT 8192
#define STATS_MAX_CENTRE 1024
#define STATS_MAX_TEXT 4096
#define STATS_MAX_RANGE (1 << 20)
#define STATS_MAX_EMBD (1 << 17)
#define STATS_MAX_HIDDEN 16384
#define STATS_MAX_FEATURE (1 << 14)
#define STATS_MAX_QUANTILE 4096
#define STATS_MAX_MAP 64
#define STATS_MAX_POLICY 64 /* bytes of a policy's name */

static inline size_t stats_row_len(const struct pith_stats *s)
{
    return 3 * (size_t)s->n_pair + (size_t)s->n_flat;
}

/* The parts of a row. */
struct stats_row {
    const float *re;   /* [n_pair] */
    const float *im;   /* [n_pair] */
    const float *abs;  /* [n_pair] */
    const float *flat; /* [n_flat] */
};

struct stats_row stats_row_at(const struct pith_stats *s, const float *rows, size_t i);
static inline struct stats_row stats_q(const struct pith_stats *s, int32_t layer, int32_t head)
{
    return stats_row_at(s, s->q, (size_t)layer * (size_t)s->n_head + (size_t)head);
}
/* The keys that a query head reads; there must be keys. */
static inline struct stats_row stats_k(const struct pith_stats *s, int32_t layer, int32_t head)
{
    int32_t group = s->n_head / s->n_head_kv;
    return stats_row_at(s, s->k, (size_t)layer * (size_t)s->n_head_kv + (size_t)(head / group));
}
/* Centre c of a head; of statistics without centres there is one, the mean. */
struct stats_row stats_centre(const struct pith_stats *s, int32_t layer, int32_t head, int32_t c);

/* R of a band; 0 where its queries are all zero. */
double stats_resultant(const struct stats_row *row, int32_t f);

/* Adds a vector before rotation to the sums of a row, [3 * n_pair + n_flat]. */
struct pi_rope;
void stats_add(const struct pi_rope *rope, int32_t n_flat, const float *x, double *sum);

/* Allocates the arrays for the counts that *s already holds; k: keys too. The caller frees *s with
   pith_stats_free, which takes it at any stage. NOMEM. */
pith_status stats_alloc(struct pith_stats *s, bool has_freq, bool has_k, pith_error *err);

/* pith_stats_load of the file that a verb's option names: a refusal begins with both. */
pith_status stats_load_option(const char *verb, const char *path, pith_stats **out,
                              pith_error *err);

/* A new empty object. NOMEM. */
pith_status stats_new(struct pith_stats **out, pith_error *err);

/* Checks the counts against the limits. FORMAT names the field and the value. */
pith_status stats_check_shape(const struct pith_stats *s, pith_error *err);

/* Checks statistics of any origin. They are finite, some layer is present, and |mean| <= mean of
   |.| in every band (to the rounding of single precision). So R is in [0, 1]. The shares of the
   centres of a head are 1 together. Marks layers whose rows are all zero as absent (count 0).
   FORMAT with layer, head, band and value. */
pith_status stats_check(struct pith_stats *s, pith_error *err);

/* Whether statistics have the shape of a model's lanes and, where the model itself is there, are of
   it. who, "" or "recall: ", begins the sentence. INVALID names the difference. */
pith_status stats_check_lanes(const struct pith_stats *s, const struct policy_model *m,
                              const char *who, pith_error *err);

/* Some layers and KV heads of a model's. */
struct stats_part {
    int32_t first_layer, n_layer, n_layer_all;
    int32_t first_head, n_head, n_head_all; /* KV heads */
};

/* From here on the statistics are of that part alone (stats_part.c). INVALID: they are of another
   shape, and unchanged. */
pith_status stats_keep_part(struct pith_stats *s, const struct stats_part *part, pith_error *err);

/* ---- files ---- */

/* Each reads one format into a new object, checked. FORMAT, UNSUPPORTED, NOMEM. */
pith_status stats_parse_own(const uint8_t *data, size_t size, struct pith_stats **out,
                            pith_error *err);
pith_status stats_parse_tria(const uint8_t *data, size_t size, struct pith_stats **out,
                             pith_error *err);
/* Whichever it is, by its first bytes. */
pith_status stats_parse(const uint8_t *data, size_t size, struct pith_stats **out, pith_error *err);

/* Bytes of Pith's format, a pi_mem block that the caller frees. NOMEM. */
pith_status stats_format(const struct pith_stats *s, uint8_t **out, size_t *size, pith_error *err);

/* ---- importance (stats_importance.c) ---- */

/* Allocates the arrays for the counts that *shape holds, n_map maps without names included. The
   caller frees the result, at any stage. NOMEM. */
pith_status stats_importance_create(const struct stats_importance *shape,
                                    struct stats_importance **out, pith_error *err);
void stats_importance_free(struct stats_importance *m);

/* Checks counts and numbers: within the limits of their own and of s, finite, quantiles ascending,
   low <= high. No deviation or slope is negative, and names of maps differ. FORMAT with lane and
   value. */
pith_status stats_importance_check(const struct stats_importance *m, const struct pith_stats *s,
                                   pith_error *err);

/* Bytes of the section of a file; 0 without importance. */
uint64_t stats_importance_size(const struct stats_importance *m);
struct pi_cursor;
void stats_importance_put(struct pi_cursor *c, const struct stats_importance *m);
/* Reads a section of size bytes at c, which has that many. FORMAT, NOMEM. */
pith_status stats_importance_get(struct pi_cursor *c, uint64_t size, const struct pith_stats *s,
                                 struct stats_importance **out, pith_error *err);

/* The map of a policy's scores; NULL: there is none. s may be NULL. */
const struct stats_map *stats_find_map(const struct pith_stats *s, const char *policy);

/* weight[n] + sum over i < n of weight[i] times x[i] clipped to [low[i], high[i]], in double and in
   ascending order. */
double stats_importance_predict(const float *weight, const float *low, const float *high,
                                const float *x, int32_t n);

/* share[lane] = the part of a lane's entries whose target is above T, where T is such that the mean
   over lanes is `retention`, within 0..1. From the quantiles, linear between them: the mean is
   exact to rounding, and no share falls when retention rises. share [n_lane]. */
void stats_lane_shares(const struct stats_importance *m, double retention, double *share);

/* ---- what statistics say ---- */

/* The logit that a mean query expects of a mean key at a distance (Equation 4), without the model's
   attention scale. It is the sum over f of |q_f| |k_f| cos(freq_f distance + arg q_f - arg k_f),
   and the dot product of the unrotated dimensions. */
double stats_predict(const struct stats_row *q, const struct stats_row *k, const double *freq,
                     int32_t n_pair, int32_t n_flat, double distance);

/* Pearson's correlation; 0 where one side does not vary. */
double stats_correlate(const double *x, const double *y, int32_t n);

/* The bands by their expected contribution mean |q_f| mean |k_f| (Equation 26), the greatest first;
   k NULL: by mean |q_f|. order [n_pair]. */
void stats_dominant(const struct stats_row *q, const struct stats_row *k, int32_t n_pair,
                    int32_t *order);

#endif
