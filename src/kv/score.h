/*
 * score.h - scores of every entry of a lane by a few vectors, with K streamed once.
 */
#ifndef PI_KV_SCORE_H
#define PI_KV_SCORE_H

#include "device/device.h"
#include "kv/geometry.h"
#include "tensor/rope.h"

struct kv_seq;

enum kv_score_kind {
    KV_SCORE_DOT,    /* q.k, with the keys as stored */
    KV_SCORE_COSINE, /* q.k / |k|, 0 for a key of zeros; needs KV_INDEX_NORM */
    KV_SCORE_UNIT8,  /* about the same, from int8 codes of q and of k / |k|; needs KV_INDEX_UNIT8 */
    KV_SCORE_COLUMNS, /* the sum of q[d] * k[d] over the dimensions that `dims` lists;
                         KV_INDEX_COLUMNS reads those alone, as f16, without it all of K is read */
    KV_SCORE_PROJ,    /* (q's matrix product).(k's, as f16); needs KV_INDEX_PROJ */
    KV_SCORE_BOUNDS,  /* the most that q.k can be for any key between the dimensions' bounds of the
                         entry's page. If the page is not full, or n ends in it: between the bounds
                         of its first entries. KV_INDEX_BOUNDS spares reading full pages */
};

/* How the scores of several vectors become one: the largest, or their mean. Of all kinds but bounds
   the mean is taken as the score of the vectors' mean, summed in order: the work of one vector.
   SOFTMAX, of vectors that a device picks (ALL, LARGE): struct kv_score_soft says. */
enum kv_score_reduce { KV_SCORE_MAX, KV_SCORE_MEAN, KV_SCORE_SOFTMAX };

enum kv_pick {
    KV_PICK_NONE,    /* vectors are given */
    KV_PICK_UNUSUAL, /* of every query head the n_q that are least like their mean, equal ranks
                        averaged over heads; at most n_tok */
    KV_PICK_MEAN,  /* one: the mean of n tokens' queries, token j n_tok / n each, times `factor` */
    KV_PICK_HEADS, /* n_group: such a mean of each query head */
    KV_PICK_ALL,   /* n n_group, token by token, of those tokens, times `factor` */
    KV_PICK_LARGE, /* of COLUMNS: each query in the n_dim dimensions that are largest over its
                      token's heads, times factor / sqrt(what they have of its sum of moduli). One
                      vector is the sum of all; else there are n_tok n_group. The job's n_dim is the
                      least of n_tok n_dim and dim_k; the device lists them */
};

/* Vectors that a device with memory of its own makes of a chunk's queries. */
struct kv_score_pick {
    enum kv_pick how;
    struct pi_at q; /* on the device: query (t, g) at q + t * stride + g * dim_k floats */
    size_t stride;
    int32_t n_tok, n_group;
    int32_t n;     /* of MEAN, HEADS and ALL: 1 .. n_tok */
    int32_t n_dim; /* of LARGE */
    bool scaled;   /* of UNUSUAL: each query is divided by its length */
    float factor;  /* of all others */
};

enum kv_score_take {
    KV_TAKE_MEAN,   /* of the weights that vectors give an entry */
    KV_TAKE_LOGITS, /* the sum of products instead: weights are for `kept` */
    KV_TAKE_SUM,    /* of weights */
    KV_TAKE_MOST,   /* the largest weight */
};

/* Of SOFTMAX: an entry's score is the mean of the weights that the vectors give it. A vector's
   weights are the softmax of its products with the entries that it sees, which are made finite. */
struct kv_score_soft {
    int32_t n_seen; /* entries that the first token's vectors see */
    bool grows;     /* each later token's see one more */
    int32_t n_vote; /* entries that get such means, n to n_seen; 0: n. The first n have scores */
    int32_t kernel; /* the means of this many neighbours in the order of the text, from kernel / 2
                          before on, become one; 0 or 1: they do not */
    bool most;      /* the largest; else their mean, zeros beyond the ends counted */
    enum kv_score_take take;
    bool keeps;        /* of one token: */
    struct pi_at kept; /* receives where its weights are, f32 [n_q][n_seen] */
};

struct kv_score_job {
    const struct kv_seq *seq;
    int32_t layer;
    int32_t head; /* KV head */
    int32_t n;    /* the lane's first n slots are scored; at most its length */
    enum kv_score_kind kind;
    enum kv_score_reduce reduce;
    const float *q; /* [n_q][dim_k], after rope; not read where the device picks n_q */
    struct kv_score_pick pick;
    struct kv_score_soft soft;
    int32_t n_sure;      /* where the device picks: the last n_sure scores are INFINITY */
    int32_t n_q;         /* 1 or more */
    const int32_t *dims; /* [n_dim] ascending, of KV_SCORE_COLUMNS */
    int32_t n_dim;
    const struct pi_rope *rope; /* rotates q for pages with a delta; may be NULL without any */
    float *out;                 /* [n] */
    struct pi_at at; /* receives where the scores are, f32 [n], where the list says `there` */
};

/* Jobs of a call. */
struct kv_score_list {
    struct kv_score_job *jobs; /* [n] */
    int32_t n;
    int64_t work;        /* multiplications of all, about */
    bool there;          /* scores may stay on the device until the next call, and `out` as it is */
    uint8_t *scratch;    /* of the host, [threads of the stream][scratch_size] */
    size_t scratch_size; /* kv_score_scratch_bytes of the most vectors of a job */
};

/* Bytes of scratch of one job. */
size_t kv_score_scratch_bytes(const struct kv_geometry *g, int32_t n_q);
/* out[s] for every slot s < n. Every level of the processor gives the same bits (cpu/score.h has
   the arithmetic). The score of a slot depends on q and its entry alone; for bounds, on q and its
   page. */
void kv_score(const struct kv_score_job *job, void *scratch);

#endif
