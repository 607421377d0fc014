/*
 * importance_target.c - gathers the targets that importance_target.h defines. They are the largest
 * weight over |h| per query head and entry while queries attend, and |Wo_h v| per query head and
 * entry. It must not know what text is read, nor who runs the pass. Invariant: a maximum has no
 * order, so that targets depend neither on chunks nor on threads.
 */
#include "policy/keep/learn/importance_target.h"

#include <math.h>

#include "base/mem.h"
#include "base/threads.h"

/* ---- the gram matrices ---- */

struct importance_gram {
    const struct pi_hparams *hp; /* the model's, borrowed */
    int32_t dim; /* of a head's value where Wo meets it: dim_v, but with latent attention */
    float *g;    /* [n_layer][n_head][dim][dim] symmetric */
    float
        *expand; /* [n_layer][n_head][dim][dim_v] of a lane's value to a head's; NULL: it is one */
};

struct gram_job {
    const struct pith_model *model;
    struct importance_gram *gram;
    double *sum; /* [n_thread][n_head][dim][dim] */
    float *row;  /* [n_thread][n_head * dim] */
};

/* Adds w w' of each head's part of a row of Wo. */
static void add_row(const struct importance_gram *gram, const float *row, double *sum)
{
    size_t n = (size_t)gram->dim;
    for (size_t h = 0; h < (size_t)gram->hp->n_head; h++) {
        const float *w = row + h * n;
        for (size_t i = 0; i < n; i++) {
            double *out = sum + (h * n + i) * n;
            for (size_t j = 0; j < n; j++)
                out[j] += (double)w[i] * (double)w[j];
        }
    }
}

/* Latent attention: the matrices that make heads' values of a lane's. */
static void take_expand(const struct gram_job *job, int32_t l)
{
    const struct importance_gram *gram = job->gram;
    const struct pi_hparams *hp = gram->hp;
    size_t n = (size_t)gram->dim * (size_t)hp->dim_v;
    float *out = gram->expand + (size_t)l * (size_t)hp->n_head * n;
    for (int32_t h = 0; h < hp->n_head; h++, out += n)
        for (int32_t r = 0; r < gram->dim; r++)
            pi_model_expand_row(job->model, l, h, r, out + (size_t)r * (size_t)hp->dim_v);
}

static void gram_layers(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct gram_job *job = ctx;
    const struct pi_hparams *hp = job->gram->hp;
    size_t n_col = (size_t)hp->n_head * (size_t)job->gram->dim, n = n_col * (size_t)job->gram->dim;
    double *sum = job->sum + (size_t)thread * n;
    float *row = job->row + (size_t)thread * n_col;
    for (int64_t l = begin; l < end; l++) {
        memset(sum, 0, n * sizeof(*sum));
        for (int32_t r = 0; r < hp->n_embd; r++) {
            pi_model_output_row(job->model, (int32_t)l, r, row);
            add_row(job->gram, row, sum);
        }
        if (job->gram->expand != NULL)
            take_expand(job, (int32_t)l);
        for (size_t i = 0; i < n; i++)
            job->gram->g[(size_t)l * n + i] = (float)sum[i];
    }
}

/* Of a gram whose hp and dim are set; false: no memory. */
static bool gram_alloc(struct importance_gram *gram)
{
    const struct pi_hparams *hp = gram->hp;
    size_t n = (size_t)hp->n_layer_full * (size_t)hp->n_head, dim = (size_t)gram->dim;
    gram->g = pi_mem_alloc_n(PI_MEM_OTHER, n, dim * dim * sizeof(*gram->g));
    if (hp->latent.n_rank > 0)
        gram->expand =
            pi_mem_alloc_n(PI_MEM_OTHER, n, dim * (size_t)hp->dim_v * sizeof(*gram->expand));
    return gram->g != NULL && (hp->latent.n_rank == 0 || gram->expand != NULL);
}

pith_status importance_gram_create(const struct pith_model *model, int32_t n_thread,
                                   struct importance_gram **out, pith_error *err)
{
    const struct pi_hparams *hp = pi_model_hparams(model);
    int32_t dim = hp->latent.n_rank > 0 ? hp->latent.dim_out : hp->dim_v;
    size_t n_col = (size_t)hp->n_head * (size_t)dim, n = n_col * (size_t)dim;
    struct importance_gram *gram = pi_mem_alloc(PI_MEM_OTHER, sizeof(*gram));
    struct gram_job job = {.model = model, .gram = gram};
    job.sum = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n_thread, n * sizeof(*job.sum));
    job.row = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n_thread, n_col * sizeof(*job.row));
    bool ok = gram != NULL && job.sum != NULL && job.row != NULL;
    if (gram != NULL) {
        gram->hp = hp;
        gram->dim = dim;
        ok = ok && gram_alloc(gram);
    }
    if (ok)
        pi_parallel_items(n_thread, hp->n_layer_full, gram_layers, &job);
    pi_mem_free(job.sum);
    pi_mem_free(job.row);
    if (!ok) {
        importance_gram_free(gram);
        return pi_fail(err, PITH_NOMEM, "no memory for the output projections of %d heads",
                       hp->n_head);
    }
    *out = gram;
    return PITH_OK;
}

void importance_gram_free(struct importance_gram *gram)
{
    if (gram == NULL)
        return;
    pi_mem_free(gram->g);
    pi_mem_free(gram->expand);
    pi_mem_free(gram);
}

#define PANEL 32       /* of G's columns: their sums stay in registers */
#define MOST_DIM 16384 /* of a head: what the KV store holds, and latent_load.c reads */

/* A head's value of a lane's. */
static const float *expand_value(const struct importance_gram *gram, size_t head, const float *v,
                                 float *out)
{
    size_t n = (size_t)gram->hp->dim_v;
    const float *w = gram->expand + head * (size_t)gram->dim * n;
    for (int32_t i = 0; i < gram->dim; i++, w += n) {
        float sum = 0;
        for (size_t r = 0; r < n; r++)
            sum += w[r] * v[r];
        out[i] = sum;
    }
    return out;
}

double importance_norm(const struct importance_gram *gram, int32_t layer, int32_t head,
                       const float *v)
{
    size_t n = (size_t)gram->dim;
    size_t at = (size_t)layer * (size_t)gram->hp->n_head + (size_t)head;
    const float *g = gram->g + at * n * n;
    float own[MOST_DIM];
    double sum = 0.0;
    if (gram->expand != NULL)
        v = expand_value(gram, at, v, own);
    for (size_t first = 0; first < n; first += PANEL) {
        size_t width = n - first < PANEL ? n - first : PANEL;
        float y[PANEL] = {0};
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < width; j++)
                y[j] += v[i] * g[i * n + first + j];
        for (size_t j = 0; j < width; j++)
            sum += (double)y[j] * (double)v[first + j];
    }
    return sqrt(sum > 0.0 ? sum : 0.0);
}

/* ---- a sequence ---- */

struct importance_target {
    const struct pi_hparams *hp;        /* the model's, borrowed */
    const struct importance_gram *gram; /* borrowed; NULL: weights alone */
    struct importance_span span;
    size_t n_key;
    float *most;    /* [n_layer][n_head][n_key] the largest weight, over |h| */
    float *norm;    /* [n_layer][n_head][n_key] |Wo_h v|; NULL without gram */
    float *inverse; /* [queries] 1 / |h| in the running layer; NULL without gram */
};

pith_status importance_target_create(const struct pith_model *model,
                                     const struct importance_gram *gram,
                                     const struct importance_span *span,
                                     struct importance_target **out, pith_error *err)
{
    const struct pi_hparams *hp = pi_model_hparams(model);
    size_t n_head = (size_t)hp->n_layer_full * (size_t)hp->n_head;
    struct importance_target *t = pi_mem_alloc(PI_MEM_OTHER, sizeof(*t));
    assert(span->key_begin <= span->key_end && span->key_end <= span->query_begin);
    if (t == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the importance of entries");
    t->hp = hp;
    t->gram = gram;
    t->span = *span;
    t->n_key = (size_t)(span->key_end - span->key_begin);
    t->most = pi_mem_alloc_n(PI_MEM_OTHER, n_head, t->n_key * sizeof(*t->most));
    if (gram != NULL) {
        t->norm = pi_mem_alloc_n(PI_MEM_OTHER, n_head, t->n_key * sizeof(*t->norm));
        t->inverse = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)(span->query_end - span->query_begin),
                                    sizeof(*t->inverse));
    }
    if (t->most == NULL || (gram != NULL && (t->norm == NULL || t->inverse == NULL))) {
        importance_target_free(t);
        return pi_fail(err, PITH_NOMEM, "no memory for the importance of %d entries",
                       span->key_end - span->key_begin);
    }
    *out = t;
    return PITH_OK;
}

void importance_target_free(struct importance_target *t)
{
    if (t == NULL)
        return;
    pi_mem_free(t->most);
    pi_mem_free(t->norm);
    pi_mem_free(t->inverse);
    pi_mem_free(t);
}

/* ---- rows ---- */

struct rows_job {
    struct importance_target *t;
    const struct pi_pass_tap_rows *rows;
};

static void note_key(const struct importance_target *t, const struct pi_pass_tap_rows *rows,
                     int32_t token, size_t i)
{
    const struct pi_hparams *hp = t->hp;
    int32_t n_group = hp->n_head / hp->n_head_kv;
    const float *v = rows->v + (size_t)token * (size_t)hp->n_head_kv * (size_t)hp->dim_v;
    for (int32_t h = 0; h < hp->n_head; h++)
        t->norm[((size_t)rows->layer * (size_t)hp->n_head + (size_t)h) * t->n_key + i] =
            (float)importance_norm(t->gram, rows->layer, h,
                                   v + (size_t)(h / n_group) * (size_t)hp->dim_v);
}

static float inverse_norm(const float *h, int32_t n)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)h[i] * (double)h[i];
    return (float)(1.0 / sqrt(sum > 1e-30 ? sum : 1e-30));
}

static void note_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct rows_job *job = ctx;
    struct importance_target *t = job->t;
    const struct importance_span *span = &t->span;
    int32_t n_embd = t->hp->n_embd;
    (void)thread;
    for (int32_t i = (int32_t)begin; i < (int32_t)end; i++) {
        int32_t pos = job->rows->item->pos0 + i;
        if (pos >= span->key_begin && pos < span->key_end)
            note_key(t, job->rows, i, (size_t)(pos - span->key_begin));
        if (pos >= span->query_begin && pos < span->query_end)
            t->inverse[pos - span->query_begin] =
                inverse_norm(job->rows->h + (size_t)i * (size_t)n_embd, n_embd);
    }
}

void importance_target_rows(struct importance_target *t, const struct pi_pass_tap_rows *rows,
                            int32_t n_thread)
{
    struct rows_job job = {t, rows};
    if (t->gram != NULL && rows->layer < t->hp->n_layer_full)
        pi_parallel_ranges(n_thread, rows->item->n_tok, note_rows, &job);
}

/* ---- weights ---- */

void importance_target_attended(struct importance_target *t, const struct pi_pass_attention *a)
{
    const struct pi_hparams *hp = t->hp;
    int32_t pos = a->item->pos0 + a->t, n_group = hp->n_head / hp->n_head_kv;
    if (a->layer >= hp->n_layer_full || pos < t->span.query_begin || pos >= t->span.query_end)
        return;
    assert(a->n >= t->span.key_end);
    float scale = t->gram != NULL ? t->inverse[pos - t->span.query_begin] : 1.0f;
    for (int32_t g = 0; g < n_group; g++) {
        size_t head = (size_t)a->layer * (size_t)hp->n_head + (size_t)(a->head * n_group + g);
        const float *w = a->weight + (size_t)g * a->stride + t->span.key_begin;
        float *most = t->most + head * t->n_key;
        for (size_t i = 0; i < t->n_key; i++) {
            float x = w[i] * scale;
            most[i] = x > most[i] ? x : most[i];
        }
    }
}

void importance_target_lane(const struct importance_target *t, int32_t layer, int32_t head,
                            float *out)
{
    const struct pi_hparams *hp = t->hp;
    int32_t n_group = hp->n_head / hp->n_head_kv;
    size_t first = (size_t)layer * (size_t)hp->n_head + (size_t)(head * n_group);
    for (size_t i = 0; i < t->n_key; i++) {
        double most = IMPORTANCE_LEAST;
        for (size_t h = first; h < first + (size_t)n_group; h++) {
            double x = (double)t->most[h * t->n_key + i];
            most = fmax(most, t->norm != NULL ? x * (double)t->norm[h * t->n_key + i] : x);
        }
        out[i] = (float)log(most);
    }
}
