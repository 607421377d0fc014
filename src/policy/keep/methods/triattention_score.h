/*
 * triattention_score.h - the attention that a key will get, predicted from the centre of the
 * queries before rotation: Mao et al., TriAttention, Equations 6 to 13, in folded form. Pure
 * functions of numbers; the policies are triattention.c's.
 *
 * A head has the mean query z_f and the mean modulus a_f per band. A key K is stored after rotation
 * (K_f = k_f exp(i omega_f p)) when t0 tokens are there. For future distances d in D:
 *
 *     S = mean over D of sum_f |z_f| |k_f| cos(omega_f (t0 - p + d) + arg z_f - arg k_f)
 *         + sum_f (a_f - |z_f|) |k_f|
 *
 * The first sum is one dot product. The model decides G_f = mean over D of exp(i omega_f d). With
 * w_f = z_f G_f exp(i omega_f t0) the sum is sum_f Re w_f Re K_f + Im w_f Im K_f. So a head is one
 * synthetic query w, which lies like a key, and one weight e_f per band:
 *
 *     S = w . K + sum_f e_f |K_f|
 *
 * No position of a key is needed, and no angle. The maximum over D instead of the mean takes one
 * query per distance. Phases are computed in double: they reach t0 + 65536 radians.
 */
#ifndef PI_KEEP_TRIATTENTION_SCORE_H
#define PI_KEEP_TRIATTENTION_SCORE_H

#include "policy/keep/stats/stats.h"

#define TRIATTENTION_MAX_OFFSETS 32
#define TRIATTENTION_MIN_STD 1e-6 /* of a z-score, as the authors' */

/* How keys meet queries. */
struct triattention_rope {
    const double *freq; /* [n_pair] */
    int32_t n_pair;
    int32_t dim;     /* of a head; dimensions 2 * n_pair and above are not rotated */
    bool adjacent;   /* pairs (2i, 2i + 1); otherwise (i, i + n_pair) */
    float magnitude; /* that stored keys carry (YaRN); the query then carries it, too */
};

/* Of keys of dim dimensions that a model rotated. */
struct pi_rope;
struct triattention_rope triattention_rope_of(const struct pi_rope *rope, int32_t dim);

/* The terms of the score; all zero but offset_max is the paper's. */
struct triattention_form {
    int32_t offset_max; /* largest future distance */
    bool linear;        /* distances evenly spaced instead of powers of two */
    bool max_offsets;   /* the greatest over distances instead of the mean */
    bool no_trig;       /* without the first sum */
    bool no_norm;       /* without the second */
    bool no_r;          /* the second with a_f: every band as if its queries cancelled */
    bool no_z;          /* heads are compared by raw scores */
    bool flat;          /* unrotated dimensions: their direct dot product with the mean, too */
};

/* The future distances: powers of two up to max; linear: as many, evenly spaced from 1 to max.
   Returns their number; out [TRIATTENTION_MAX_OFFSETS]. max is 1 or more. */
int32_t triattention_offsets(int32_t max, bool linear, int32_t *out);

/* g [n_pair][2]: the mean of exp(i freq d) over n distances. */
void triattention_fold(const double *freq, int32_t n_pair, const int32_t *offset, int32_t n,
                       double *g);

/* The synthetic query of a row of statistics at t0; w [dim] in the order of a key's dimensions.
   g [n_pair][2]; flat: the unrotated dimensions as well (else 0). */
void triattention_query(const struct triattention_rope *rope, const struct stats_row *row,
                        const double *g, double t0, bool flat, float *w);

/* Weights of the moduli; e [n_pair]. A mean that rounding made larger than its modulus counts as
   R = 1. */
void triattention_weights(const struct triattention_rope *rope, const struct stats_row *row,
                          const struct triattention_form *form, float *e);

/* Keys side by side: dimension d of key j is keys[d * stride + j]. */
struct triattention_keys {
    const float *keys; /* [dim][stride] */
    size_t stride;
    int32_t n;
};

/* Distances and their fold, which a model and a form decide once. */
struct triattention_plan {
    struct triattention_rope rope;
    struct triattention_form form;
    int32_t offset[TRIATTENTION_MAX_OFFSETS];
    int32_t n_offset;
    const double *g; /* [n_pair][2], or with max_offsets [n_offset][n_pair][2]; borrowed */
};

/* Doubles that g takes. */
size_t triattention_plan_len(const struct triattention_rope *rope,
                             const struct triattention_form *form);
/* g [triattention_plan_len] is filled and borrowed by the plan. */
void triattention_plan_make(struct triattention_plan *plan, const struct triattention_rope *rope,
                            const struct triattention_form *form, double *g);
/* The plans of a model's lanes: of those whose keys are rotated, and of those whose keys are not,
   for which no distance counts. */
struct triattention_plans {
    struct triattention_plan rotated, unrotated;
    double *g; /* of both; owned */
};

/* NOMEM. m->rope is there. */
pith_status triattention_plans_make(const struct policy_model *m,
                                    const struct triattention_form *form,
                                    struct triattention_plans *out, pith_error *err);
void triattention_plans_free(struct triattention_plans *plans);
const struct triattention_plan *triattention_plan_of(const struct triattention_plans *plans,
                                                     const struct policy_model *m, int32_t layer);
/* Synthetic queries that a row becomes, n_w: 1, or where the greatest over distances counts their
   number. */
int32_t triattention_plan_queries(const struct triattention_plan *plan);

/* Several rows at one moment, ready for keys. */
struct triattention_queries {
    float *w;  /* [n][n_w][dim] owned by the caller, as e */
    float *e;  /* [n][n_pair] */
    int32_t n; /* rows */
};

/* Adds a row at t0; w and e have room for it. */
void triattention_queries_add(const struct triattention_plan *plan, const struct stats_row *row,
                              double t0, struct triattention_queries *queries);

/* Scores of keys, which are read once: out[i * stride + j] of row i and key j. line [n_w][keys->n]
   is scratch, which n_w = 1 does not need. */
void triattention_score(const struct triattention_plan *plan,
                        const struct triattention_queries *queries,
                        const struct triattention_keys *keys, float *out, size_t stride,
                        float *line);

/* In place: (x - mean) / max(population std, TRIATTENTION_MIN_STD) where may[i], 0 elsewhere; may
   NULL: everywhere. Sums are double. Where they are no numbers, because keys of f32
   were as large as floats get, all are 0. */
void triattention_standardise(float *x, const bool *may, int32_t n);

/* z[i] = max(z[i], x[i]). */
void triattention_take_max(float *z, const float *x, int32_t n);

/* A copy of n_row rows with every band's mean turned by an angle of its own, drawn from seed. A
   sign is drawn for every dimension that is not rotated. The moduli and R stay, the directions mean
   nothing. The control that a claim about directions must beat. out may be the rows. */
void triattention_random_phase(const struct pith_stats *s, const float *rows, size_t n_row,
                               uint64_t seed, float *out);

#endif
