/*
 * calibrate.h - what policies learn of a model before they run: statistics of its queries, the
 * importance of entries, and the bases of its keys.
 */
#ifndef PITH_CALIBRATE_H
#define PITH_CALIBRATE_H

#include "pith/pith.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- calibration -------------------------------------------------------------------------- */

/*
 * Statistics of a model's queries before rotation, from which the TriAttention policies predict
 * attention. They are per layer, query head and rotated pair (band): the mean as a complex number
 * and the mean modulus. docs/stats.md describes them and the files.
 */

typedef struct pith_stats pith_stats;

/* Which tokens' queries count. */
typedef enum pith_select {
    PITH_SELECT_UNKNOWN, /* a file that does not say */
    PITH_SELECT_ALL,
    PITH_SELECT_GENERATED, /* those that the model wrote after the text */
    PITH_SELECT_RANGES,
} pith_select;

/* How dimensions pair up in a file. A band's statistics are the same either way. */
typedef enum pith_pairing {
    PITH_PAIRING_UNKNOWN,
    PITH_PAIRING_HALF,     /* (i, i + n_pair) */
    PITH_PAIRING_ADJACENT, /* (2i, 2i + 1) */
} pith_pairing;

/* Tokens [begin, end) of a text. */
typedef struct pith_range {
    int32_t begin;
    int32_t end;
} pith_range;

typedef struct pith_calibrate_params {
    pith_select select;       /* default PITH_SELECT_ALL */
    const pith_range *ranges; /* [n_range] for PITH_SELECT_RANGES, ascending, apart */
    int32_t n_range;
    int32_t n_generate; /* tokens that follow each piece for PITH_SELECT_GENERATED. Default 512 */
    int32_t n_ctx;      /* the text is read in pieces of at most n_ctx tokens, each from position 0;
                           0: the model's trained context (default) */
    int32_t n_centre;   /* centres per head. Default 1: the mean alone */
    int32_t n_sample;   /* queries of each head that centres are found from. Default 8192 */
    uint64_t seed;      /* of the centres. Default 0 */
    pith_sample_params sample; /* how tokens are generated */
    const char *text;          /* what the tokens are, for the file; may be NULL */
    pith_progress_fn *progress;
    void *progress_user;
    uint32_t reserved[8];
} pith_calibrate_params;

PITH_API void pith_calibrate_params_default(pith_calibrate_params *out);

/* Evaluates the tokens in sequences of its own and gathers statistics; the engine's tap is taken
   over and is unset afterwards. progress gets what is done of the tokens and, with several centres,
   of the heads whose centres are found: half of the whole each. The engine should hold all tokens
   of a piece: one with a keep or a read policy is refused. The same tokens and params give the same
   bits for any chunk and number of threads. INVALID (a parameter out of range, named; a selection
   with fewer tokens than centres, or none). FORMAT (queries that are all zero or no numbers).
   KV_FULL, CANCELLED, NOMEM. */
PITH_API pith_status pith_calibrate(pith_engine *engine, const int32_t *tokens, int32_t n_token,
                                    const pith_calibrate_params *params, pith_stats **out,
                                    pith_error *err);

/* Reads statistics: Pith's format, or TRIA 1 and 2. IO. FORMAT (damaged, or no statistics: a
   sentence with the value). UNSUPPORTED (a later version; a PyTorch file: the sentence names the
   script that converts it). NOMEM. */
PITH_API pith_status pith_stats_load(const char *path, pith_stats **out, pith_error *err);

/* Writes Pith's format; the file appears whole or not at all. IO, NOMEM. */
PITH_API pith_status pith_stats_save(const pith_stats *stats, const char *path, pith_error *err);

PITH_API void pith_stats_free(pith_stats *stats);

/* Whether the statistics can be of this model: shapes, and the fingerprint where there is one.
   INVALID names the difference. */
PITH_API pith_status pith_stats_check(const pith_stats *stats, const pith_model *model,
                                      pith_error *err);

/* Pointers are owned by the statistics. */
typedef struct pith_stats_info {
    const char *format;   /* "pith 2", "TRIA 2" */
    const char *model;    /* its name, "" where the file does not say */
    const char *text;     /* what was read, "" where the file does not say */
    uint64_t fingerprint; /* 0: the file does not say */
    int64_t n_token;      /* read; 0: the file does not say */
    pith_select select;
    const pith_range *range; /* [n_range] what PITH_SELECT_RANGES selected */
    int32_t n_range;
    int32_t n_layer;
    int32_t n_head;
    int32_t n_head_kv; /* 0: the file does not say */
    int32_t n_pair;
    int32_t n_centre;
    pith_pairing pairing;
    const double *freq; /* [n_pair] radians per position; NULL: the file does not say */
    bool has_keys;
    uint32_t reserved[8];
} pith_stats_info;

PITH_API void pith_stats_get_info(const pith_stats *stats, pith_stats_info *out);

/* The queries of one head. */
typedef struct pith_stats_head {
    int64_t n_query;      /* that were averaged; 0: the layer has no statistics, -1: not known */
    const float *re;      /* [n_pair] the mean of x_a + i x_b over the pair's dimensions a and b */
    const float *im;      /* [n_pair] */
    const float *abs;     /* [n_pair] the mean modulus; R = |re + i im| / abs */
    const float *weight;  /* [n_centre] shares of the centres; NULL with one */
    const float *key_abs; /* [n_pair] the mean modulus of the keys that it reads, before rotation;
                             NULL: the file does not say */
    uint32_t reserved[8];
} pith_stats_head;

/* NOT_FOUND when layer or head is out of range. */
PITH_API pith_status pith_stats_get_head(const pith_stats *stats, int32_t layer, int32_t head,
                                         pith_stats_head *out);

/* The logit that a head's mean query expects of its mean key, for each distance: the curve of
   attention against distance (TriAttention, Equation 4). The attention scale is left out. Factors
   that rotation multiplies queries and keys by (YaRN) are in. out [n]. INVALID for another model,
   UNSUPPORTED for statistics without keys, NOT_FOUND. */
PITH_API pith_status pith_stats_curve(const pith_stats *stats, const pith_model *model,
                                      int32_t layer, int32_t head, const double *distance,
                                      int32_t n, double *out, pith_error *err);

/* How well these curves tell the logits of a text: per head the mean over queries of Pearson's
   correlation between curve and logits. The distances are 1, 2, 3, ... that grow by half each time
   (Equations 24 and 25). The tokens must fit in the engine. out [n_layer][n_head]. As
   pith_calibrate. */
PITH_API pith_status pith_stats_reconstruct(const pith_stats *stats, pith_engine *engine,
                                            const int32_t *tokens, int32_t n_token, double *out,
                                            pith_error *err);

/*
 * Importance: what entries are worth for repeating a text (KVzip+), learnt from texts that the
 * model is made to repeat, as a part of statistics. docs/stats.md says what is learnt.
 */

/* A piece of text as tokens, without the tokens that a model wants before a text. */
typedef struct pith_importance_text {
    const int32_t *tokens; /* [n_token] */
    int32_t n_token;
} pith_importance_text;

typedef struct pith_importance_params {
    const pith_importance_text *texts; /* [n_text] each is read, and then repeated */
    int32_t n_text;
    bool hidden;             /* weights of the layers' inputs, too. Default false */
    const char *const *keep; /* [n_keep] policies whose scores are mapped to importance, "NAME" or
                                "NAME:options" without a budget; a map is of a policy's name */
    int32_t n_keep;
    const char *path; /* where statistics without maps are saved before policies are asked, which
                         read them there (stats=); NULL: nowhere */
    const char *text; /* what the texts are, for the file; may be NULL */
    pith_progress_fn *progress;
    void *progress_user;
    const char *resume; /* a file where what was learnt so far is kept, for the same calibration to
                           go on from; NULL: nowhere. The caller removes it at the end */
    uint32_t reserved[6];
} pith_importance_params;

PITH_API void pith_importance_params_default(pith_importance_params *out);

/* Gathers statistics of the texts' queries, as pith_calibrate, and learns the importance of their
   entries. Every fifth text is held out to measure how well it is predicted. The engine has no
   policies and holds twice the longest text and some tokens around it. Its tap is taken over and is
   unset afterwards. The same texts give the same bits for any chunk and number of threads. As
   pith_calibrate; the statuses of policies and their engines; UNSUPPORTED without a tokenizer. */
PITH_API pith_status pith_calibrate_importance(pith_engine *engine,
                                               const pith_importance_params *params,
                                               pith_stats **out, pith_error *err);

/* Pointers are owned by the statistics. A lane is a layer and a KV head, layers first. */
typedef struct pith_importance_info {
    int32_t n_layer;
    int32_t n_head_kv;
    int32_t n_lane;
    int32_t n_map;
    const float *mean;      /* [n_lane] of the logarithm of importance */
    const float *deviation; /* [n_lane] */
    const float *key_r2;    /* [n_lane] R^2 on held-out texts of weights of a key's features */
    const float *hidden_r2; /* [n_lane] of the layer's input; NULL: not learnt */
    uint32_t reserved[8];
} pith_importance_info;

/* NOT_FOUND for statistics without importance. */
PITH_API pith_status pith_stats_get_importance(const pith_stats *stats, pith_importance_info *out);

/* The affine map of a policy's scores. */
typedef struct pith_importance_map {
    const char *policy;
    const float *slope;       /* [n_lane] 0 where scores do not rise with importance */
    const float *intercept;   /* [n_lane] */
    const float *correlation; /* [n_lane] */
    uint32_t reserved[4];
} pith_importance_map;

/* Map i, 0 <= i < n_map. NOT_FOUND. */
PITH_API pith_status pith_stats_get_map(const pith_stats *stats, int32_t i,
                                        pith_importance_map *out);

/* share[lane], [n_lane] = the part of its entries that a lane keeps where `retention` of all lanes'
   entries, the most important ones, are kept. NOT_FOUND for statistics without importance. INVALID:
   retention is not in 0..1. */
PITH_API pith_status pith_stats_get_shares(const pith_stats *stats, double retention,
                                           double *share);

/* ---- projections -------------------------------------------------------------------------- */

/*
 * The bases that the read policy Loki scores keys in: per layer and KV head the eigenvectors of the
 * covariance of a text's keys. docs/projection.md describes them and the file.
 */

typedef struct pith_projection pith_projection;

/* Which keys the bases are of. They are applied to rotated keys either way. */
typedef enum pith_projection_keys {
    PITH_KEYS_ROTATED = 1, /* as they are stored */
    PITH_KEYS_PLAIN = 2,   /* as they were before rotation */
} pith_projection_keys;

typedef struct pith_projection_params {
    pith_projection_keys keys; /* default PITH_KEYS_ROTATED */
    int32_t n_ctx;    /* the text is read in pieces of at most n_ctx tokens, each from position 0;
                         0: the model's trained context (default) */
    const char *text; /* what the tokens are, for the file; may be NULL */
    pith_progress_fn *progress;
    void *progress_user;
    uint32_t reserved[8];
} pith_projection_params;

PITH_API void pith_projection_params_default(pith_projection_params *out);

/* Evaluates the tokens in sequences of its own and finds the bases of their keys; the engine's tap
   is taken over and is unset afterwards. progress gets what is done of the tokens and of the bases.
   An engine with a keep or a read policy is refused. The same tokens and params give the same bits
   for any chunk and number of threads. params may be NULL. INVALID (a parameter out of range,
   named; fewer than two tokens), FORMAT (keys that are no numbers), KV_FULL, CANCELLED, NOMEM. */
PITH_API pith_status pith_projection_fit(pith_engine *engine, const int32_t *tokens,
                                         int32_t n_token, const pith_projection_params *params,
                                         pith_projection **out, pith_error *err);

/* IO, FORMAT (damaged, or no projection: a sentence with field and value), UNSUPPORTED (a later
   version), NOMEM. */
PITH_API pith_status pith_projection_load(const char *path, pith_projection **out, pith_error *err);
/* The file appears whole or not at all. IO, NOMEM. */
PITH_API pith_status pith_projection_save(const pith_projection *projection, const char *path,
                                          pith_error *err);
PITH_API void pith_projection_free(pith_projection *projection); /* NULL is ignored */

/* Whether the bases are of this model: shape and fingerprint. INVALID names the difference. */
PITH_API pith_status pith_projection_check(const pith_projection *projection,
                                           const pith_model *model, pith_error *err);

/* Pointers are owned by the projection. */
typedef struct pith_projection_info {
    const char *model; /* its name, "" where it has none */
    const char *text;  /* the name of the text that was read, "" where the file has none */
    uint64_t fingerprint;
    int64_t n_token; /* read */
    pith_projection_keys keys;
    int32_t n_layer;
    int32_t n_head; /* KV heads */
    int32_t dim;    /* of a head */
    uint32_t reserved[8];
} pith_projection_info;

PITH_API void pith_projection_get_info(const pith_projection *projection,
                                       pith_projection_info *out);

/* The fewest dimensions in which the keys of a layer and KV head have the share (0 to 1) of their
   variance. With layer or head -1 it is the most of any. 0 where there is no such layer or head. */
PITH_API int32_t pith_projection_rank(const pith_projection *projection, int32_t layer,
                                      int32_t head, double share);

#ifdef __cplusplus
}
#endif

#endif
