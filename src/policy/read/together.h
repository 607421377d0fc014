/*
 * together.h - the common score of a chunk's queries for a key. A mean of dot products is the dot
 * product of the mean, so that methods which average logits score every key once, whatever the
 * chunk. A mean of softmax weights is none, and goes through the lane for every query.
 */
#ifndef PI_READ_TOGETHER_H
#define PI_READ_TOGETHER_H

#include "policy/read/read.h"

/* Dimensions of a head whose queries a device with memory of its own makes vectors of, at most. And
   queries of a group that softmax weights are made of: their parts take 8 bytes for each and
   page. */
#define READ_MOST_PICKED_DIM 512
#define READ_MOST_PICKED_ROWS 2048

/* Whether a device makes such vectors of n_query queries of a group; of softmax weights, or not. */
bool read_can_pick(const struct policy_model *model, int32_t n_query, bool soft);

/* A chunk's queries, for such a device to make vectors of. */
struct kv_score_pick read_pick(const struct read_chunk *c, enum kv_pick how);

/* ask of methods whose sets are query heads of the group, each by the mean of its queries: n_set of
   n_group / n_set heads. The device makes the vectors where the host has no queries. */
void read_ask_means(const struct read_view *view, const struct read_chunk *c,
                    enum kv_score_kind kind, int32_t n_set, struct kv_score_job *jobs);

/* The job of softmax weights where a device picks, by the queries of heads [g0, g0 + n_g). It
   scores as read_mean_weights does. */
struct kv_score_job read_soft_job(const struct read_view *view, const struct read_chunk *c,
                                  enum kv_score_kind kind, int32_t g0, int32_t n_g);

/* out [dim] = the mean of the chunk's queries of query heads [g0, g0 + n_g) of the group. Tokens
   are in order, and heads in order within a token. */
void read_mean_query(const struct read_chunk *c, int32_t dim, int32_t g0, int32_t n_g, float *out);

/* Number i of the vectors that a policy asks by. */
static inline float *read_vector(const struct read_view *view, const struct read_chunk *c,
                                 int32_t i)
{
    return c->vector + (size_t)i * (size_t)view->model->g.dim_k;
}

/* A job that scores the lane's first n slots by n_q queries, q [n_q][dim_k], into out. */
struct kv_score_job read_score_job(const struct read_view *view, const struct read_chunk *c,
                                   enum kv_score_kind kind, const float *q, int32_t n_q, int32_t n,
                                   float *out);

/* The methods that were made for one query say how to score by it, not how several queries score
   together. It is by the mean of their logits, or by that of their softmax weights. */
enum read_rank { READ_RANK_LOGITS, READ_RANK_SOFTMAX };
extern const char *const read_rank_words[];

/* row [n], finite, becomes exp(row - its largest); returns the sum. */
double read_soften(float *row, int32_t n);

/* Working memory of read_mean_weights. */
struct read_soft {
    float *q;    /* [dim_k] */
    float *row;  /* [n + n_tok] */
    void *score; /* [kv_score_scratch_bytes(g, 1)] */
};

/* Places the parts into base (NULL: counts alone), *used bytes into it. */
void read_soft_place(const struct policy_model *model, int32_t n, int32_t n_tok, uint8_t *base,
                     size_t *used, struct read_soft *soft);

/* out [c->n] = the mean over the chunk's tokens and query heads [g0, g0 + n_g) of the softmax of
   scale * score. Each softmax is over the entries that its query sees. The kind of score takes a
   query as it is. */
void read_mean_weights(const struct read_view *view, const struct read_chunk *c,
                       enum kv_score_kind kind, int32_t g0, int32_t n_g, struct read_soft *soft,
                       float *out);

/* Makes scores finite: values that are no number, and values beyond the largest float, which sums
   of keys near it can be. */
void read_clean(float *score, int32_t n);

#endif
