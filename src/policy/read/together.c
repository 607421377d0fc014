/*
 * together.c - the mean of a chunk's queries and the job that scores a lane by it. Also the mean of
 * the weights that each query would give alone. It knows no policy. Sums go in the order of the
 * tokens, so that they depend on the chunk alone.
 */
#include "policy/read/together.h"

#include <float.h>

#include "base/mem.h"
#include "cpu/kernels.h"

const char *const read_rank_words[] = {
    [READ_RANK_LOGITS] = "logits", [READ_RANK_SOFTMAX] = "softmax", NULL};

void read_mean_query(const struct read_chunk *c, int32_t dim, int32_t g0, int32_t n_g, float *out)
{
    float share = 1.0f / ((float)c->n_tok * (float)n_g);
    memset(out, 0, (size_t)dim * sizeof(*out));
    for (int32_t t = 0; t < c->n_tok; t++)
        for (int32_t g = g0; g < g0 + n_g; g++) {
            const float *q = c->q + (size_t)t * c->q_stride + (size_t)g * (size_t)dim;
            for (int32_t d = 0; d < dim; d++)
                out[d] += q[d];
        }
    for (int32_t d = 0; d < dim; d++)
        out[d] *= share;
}

struct kv_score_pick read_pick(const struct read_chunk *c, enum kv_pick how)
{
    return (struct kv_score_pick){.how = how,
                                  .q = c->q_at,
                                  .stride = c->q_stride,
                                  .n_tok = c->n_tok,
                                  .n_group = c->n_group,
                                  .n = c->n_tok,
                                  .factor = 1.0f};
}

bool read_can_pick(const struct policy_model *model, int32_t n_query, bool soft)
{
    return model->g.dim_k <= READ_MOST_PICKED_DIM && (!soft || n_query <= READ_MOST_PICKED_ROWS);
}

struct kv_score_job read_soft_job(const struct read_view *view, const struct read_chunk *c,
                                  enum kv_score_kind kind, int32_t g0, int32_t n_g)
{
    struct kv_score_job job = {.kind = kind,
                               .reduce = KV_SCORE_SOFTMAX,
                               .n_q = c->n_tok * n_g,
                               .pick = read_pick(c, KV_PICK_ALL),
                               .soft = {.n_seen = c->n + 1, .grows = true}};
    job.pick.q = pi_at_item(c->q_at, (size_t)(g0 * view->model->g.dim_k));
    job.pick.n_group = n_g;
    job.pick.factor = view->model->scale;
    return job;
}

struct kv_score_job read_score_job(const struct read_view *view, const struct read_chunk *c,
                                   enum kv_score_kind kind, const float *q, int32_t n_q, int32_t n,
                                   float *out)
{
    return (struct kv_score_job){
        .seq = view->kv,
        .layer = c->layer,
        .head = c->head,
        .n = n,
        .kind = kind,
        .reduce = KV_SCORE_MEAN,
        .q = q,
        .n_q = n_q,
        .rope = policy_rope(view->model, c->layer),
        .out = out,
    };
}

void read_ask_means(const struct read_view *view, const struct read_chunk *c,
                    enum kv_score_kind kind, int32_t n_set, struct kv_score_job *jobs)
{
    int32_t n_g = c->n_group / n_set;
    for (int32_t i = 0; i < n_set; i++) {
        float *q = read_vector(view, c, i);
        jobs[i] = (struct kv_score_job){.kind = kind, .reduce = KV_SCORE_MEAN, .q = q, .n_q = 1};
        if (c->q != NULL) {
            read_mean_query(c, view->model->g.dim_k, i * n_g, n_g, q);
            continue;
        }
        jobs[i].pick = read_pick(c, KV_PICK_MEAN);
        jobs[i].pick.q = pi_at_item(c->q_at, (size_t)(i * n_g * view->model->g.dim_k));
        jobs[i].pick.n_group = n_g;
    }
}

void read_clean(float *score, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        float x = score[i] >= -FLT_MAX ? score[i] : -FLT_MAX;
        score[i] = x <= FLT_MAX ? x : FLT_MAX;
    }
}

/* ---- weights ---- */

double read_soften(float *row, int32_t n)
{
    float max = row[0];
    for (int32_t i = 1; i < n; i++)
        max = row[i] > max ? row[i] : max;
    pi_kernels()->attend.decay(row, n, max, 1.0f);
    return pi_kernels()->vec.sum(row, n, 0.0, false);
}

void read_soft_place(const struct policy_model *model, int32_t n, int32_t n_tok, uint8_t *base,
                     size_t *used, struct read_soft *soft)
{
    soft->q = pi_mem_part(base, used, (size_t)model->g.dim_k, sizeof(float));
    soft->row = pi_mem_part(base, used, (size_t)n + (size_t)n_tok, sizeof(float));
    soft->score = pi_mem_part(base, used, kv_score_scratch_bytes(&model->g, 1), 1);
}

void read_mean_weights(const struct read_view *view, const struct read_chunk *c,
                       enum kv_score_kind kind, int32_t g0, int32_t n_g, struct read_soft *soft,
                       float *out)
{
    int32_t dim = view->model->g.dim_k;
    memset(out, 0, (size_t)c->n * sizeof(*out));
    for (int32_t t = 0; t < c->n_tok; t++)
        for (int32_t g = g0; g < g0 + n_g; g++) {
            const float *q = c->q + (size_t)t * c->q_stride + (size_t)g * (size_t)dim;
            int32_t n_seen = c->n + t + 1;
            for (int32_t d = 0; d < dim; d++)
                soft->q[d] = q[d] * view->model->scale;
            struct kv_score_job job = read_score_job(view, c, kind, soft->q, 1, n_seen, soft->row);
            kv_score(&job, soft->score);
            read_clean(soft->row, n_seen);
            double sum = read_soften(soft->row, n_seen);
            float share = (float)(1.0 / (sum * c->n_tok * n_g));
            for (int32_t i = 0; i < c->n; i++)
                out[i] += soft->row[i] * share;
        }
}
