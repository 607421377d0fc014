/*
 * SparQ, Loki and Quest as read policies: published steps on small lanes, and their formulas in
 * double on lanes of every storage type.
 *
 * The vectors were made with float64 from the formulas and code that the policies' files name. They
 * are for the last query of a chunk of six over ten keys and its own.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "testing.h"

#include "base/mem.h"
#include "near.h"
#include "policy/read/projection.h"
#include "read_check.h"
#include "status.h"

#define MAX_ENTRIES 512
#define MAX_DIM 64

/* ---- vectors ---- */

static const float vector_q[2][4] = {{-0.44f, -0.24f, -0.58f, 0.96f},
                                     {-0.43f, 0.42f, 0.27f, 0.99f}};
static const float vector_k[11][4] = {
    {0.51f, 0.8f, 0.99f, -0.47f},   {-0.84f, 0.46f, -0.34f, 0.96f}, {-0.3f, 0.86f, -0.46f, -0.69f},
    {0.65f, 0.34f, -0.1f, -0.82f},  {-0.04f, 0.34f, 0.56f, 0.94f},  {0.45f, -0.71f, 0.89f, 0.48f},
    {0.46f, -0.8f, -0.34f, -0.26f}, {0.33f, 0.05f, 0.23f, 0.4f},    {-0.48f, -0.11f, 0.34f, -0.25f},
    {-0.2f, 0.9f, 0.1f, 0.44f},     {-0.69f, -0.45f, 0.8f, -0.68f},
};
static const float vector_v[11][4] = {
    {0.8f, 0.04f, 0.27f, -0.05f},     {0.16f, -0.1f, -0.26f, 0.41f},
    {0.47f, -0.85f, -1.0f, -0.24f},   {-0.56f, -0.81f, -0.41f, -0.13f},
    {0.4f, -0.47f, -0.55f, -0.51f},   {-0.53f, -0.58f, 0.99f, 0.75f},
    {0.6f, -0.74f, 0.92f, 0.05f},     {0.03f, 0.32f, -0.44f, -0.93f},
    {-0.12f, -0.66f, -0.21f, -0.27f}, {-0.57f, -0.59f, 0.21f, -0.2f},
    {0.63f, 0.12f, -0.64f, -0.38f},
};

/* n of the keys lie before the token, whose own is the next; the two query heads share them. */
static void load_vector(struct read_problem *p, int32_t n_kv, int32_t n)
{
    *p = (struct read_problem){.n_q = 2, .n_kv = n_kv, .dim = 4, .chunk = 1, .n = n, .scale = 0.5f};
    read_problem_make(p);
    memcpy(p->q, vector_q, sizeof(vector_q));
    for (int32_t h = 0; h < n_kv; h++) {
        memcpy(p->k + h * n * 4, vector_k, (size_t)n * sizeof(vector_k[0]));
        memcpy(p->v + h * n * 4, vector_v, (size_t)n * sizeof(vector_v[0]));
        memcpy(p->kc + h * 4, vector_k[n < 11 ? n : 0], sizeof(vector_k[0]));
        memcpy(p->vc + h * 4, vector_v[n < 11 ? n : 0], sizeof(vector_v[0]));
    }
}

TEST(sparq_chooses_as_the_vector_says)
{
    static const double logit[2][11] = {
        {-0.425375149, 0.812972754, -0.333953492, -0.675714343, 0.57925568, 0.165465644,
         -0.284590834, 0.150354627, -0.018133221, 0.321360977, -0.219865308},
        {-0.417257311, 0.799407959, -0.337718779, -0.665137165, 0.577675254, 0.171693521,
         -0.277440152, 0.154871579, -0.025050066, 0.317910332, -0.229473236}};
    static const int32_t wanted[] = {1, 4, 5, 9};
    static const double alpha[] = {0.607831151, 0.605999343};
    static const double out[2][4] = {{0.059578559, -0.348500232, -0.089240157, -0.014977048},
                                     {0.054980829, -0.363621067, -0.092830428, -0.046882246}};
    for (int32_t columns = 0; columns < 2; columns++) {
        struct read_problem p;
        struct read_world w;
        float score[11], beside[2], attended[8], row[8];
        int32_t slots[11];
        double tolerance = columns ? 1e-3 : 2e-7;
        load_vector(&p, 1, 10);
        read_world_open(&w, &p, &read_sparq,
                        columns ? "budget=4,recent=1,r=2,gate=1"
                                : "budget=4,recent=1,r=2,gate=1,columns=off",
                        KV_TYPE_F32);
        struct read_chunk c = read_world_chunk(&w, 0);
        c.beside = beside;
        read_world_score_chunk(&w, &c, score);
        for (int32_t s = 0; s < 10; s++)
            near(score[s], logit[0][s] + logit[1][s], tolerance);
        assert_true(read_world_choose(&w, score, slots));
        assert_memory_equal(slots, wanted, sizeof(wanted));
        read_sparq.chosen(&w.config.params, &w.view, &c, slots, 4);
        read_world_attend(&w, slots, 4, attended);
        memcpy(row, attended, sizeof(row));
        read_sparq.adjust(&w.config.params, &w.view, &c, row, 8);
        for (int32_t g = 0; g < 2; g++) {
            near(beside[g], alpha[g], tolerance);
            for (int32_t d = 0; d < 4; d++)
                near(row[g * 4 + d], out[g][d], tolerance);
        }
        read_world_close(&w);
        read_problem_free(&p);
    }
}

/* A file of bases for a shape: row i of lane l is vector[l][i]. */
static void write_basis(const char *path, int32_t n_layer, int32_t n_head, int32_t dim,
                        const float *vector, const float *value)
{
    struct pith_projection shape = {
        .n_layer = n_layer, .n_head = n_head, .dim = dim, .keys = PITH_KEYS_ROTATED, .n_token = 1};
    struct pith_projection *p;
    size_t n = (size_t)n_layer * (size_t)n_head * (size_t)dim;
    check(projection_new(&shape, NULL, NULL, &p, &err), &err);
    memcpy(p->value, value, n * sizeof(float));
    memcpy(p->vector, vector, n * (size_t)dim * sizeof(float));
    check(pith_projection_save(p, path, &err), &err);
    pith_projection_free(p);
}

static void temporary(char *path)
{
    strcpy(path, "/tmp/pith-test-XXXXXX");
    close(mkstemp(path));
}

/* Here each query head has a KV head of its own, with the same keys, as the authors choose. */
TEST(loki_chooses_as_the_vector_says)
{
    static const float basis[4][4] = {{0.5f, 0.5f, 0.5f, 0.5f},
                                      {0.5f, -0.5f, 0.5f, -0.5f},
                                      {0.5f, 0.5f, -0.5f, -0.5f},
                                      {0.5f, -0.5f, -0.5f, 0.5f}};
    static const int32_t wanted[2][4] = {{1, 2, 4, 9}, {1, 4, 7, 9}};
    static const double out[2][4] = {{0.108804107, -0.412032237, -0.34286817, -0.049522772},
                                     {0.029749514, -0.245643918, -0.260849071, -0.230695988}};
    struct read_problem p;
    struct read_world w;
    char path[32], options[96];
    float vector[2][4][4], value[8] = {1, 1, 1, 1, 1, 1, 1, 1}, score[11], row[4];
    int32_t slots[11];
    temporary(path);
    memcpy(vector[0], basis, sizeof(basis));
    memcpy(vector[1], basis, sizeof(basis));
    write_basis(path, 1, 2, 4, &vector[0][0][0], value);
    snprintf(options, sizeof(options), "budget=4,gate=1,r=2,projection=%s", path);
    load_vector(&p, 2, 11);
    read_world_open(&w, &p, &read_loki, options, KV_TYPE_F32);
    assert_int_equal(w.model.g.index, KV_INDEX_ROWS | KV_INDEX_PROJ);
    assert_int_equal(w.model.g.index_dim, 2);
    void *scratch = test_malloc(kv_attend_scratch_bytes(&w.model.g, 1));
    for (int32_t h = 0; h < 2; h++) {
        read_world_score(&w, h, score);
        assert_true(read_world_choose(&w, score, slots));
        assert_memory_equal(slots, wanted[h], sizeof(wanted[h]));
        struct kv_attend_job job = {.seq = w.kv,
                                    .head = h,
                                    .n_tok = 1,
                                    .n_group = 1,
                                    .pos0 = 11,
                                    .q = vector_q[h],
                                    .q_stride = 4,
                                    .scale = 0.5f,
                                    .out = row,
                                    .out_stride = 4,
                                    .slots = slots,
                                    .n_slot = 4};
        kv_attend(&job, scratch);
        for (int32_t d = 0; d < 4; d++)
            near(row[d], out[h][d], 2e-7);
    }
    test_free(scratch);
    read_world_close(&w);
    read_problem_free(&p);
    unlink(path);
}

/* ---- on lanes of every type, beside the formulas ---- */

static const struct read_problem shapes[] = {
    {.n_q = 8, .n_kv = 2, .dim = 64, .chunk = 1, .n = 150, .scale = 0.25f},
    {.n_q = 6, .n_kv = 2, .dim = 32, .chunk = 37, .n = 201, .scale = 0.5f},
    {.n_q = 2, .n_kv = 2, .dim = 64, .chunk = 5, .n = 96, .scale = 0.5f},
};

static const float *query(const struct read_chunk *c, int32_t dim, int32_t t, int32_t g)
{
    return c->q + (size_t)t * c->q_stride + (size_t)(g * dim);
}

/* l_h(t) of one query over the first n slots. */
static void sparq_logits(const struct read_world *w, const struct read_chunk *c, int32_t t,
                         int32_t g, int32_t r, int32_t n, double *out)
{
    int32_t dim = w->problem->dim;
    double length[MAX_DIM] = {0}, part = 0.0, all = 0.0;
    bool used[MAX_DIM];
    for (int32_t i = 0; i < c->n_group; i++)
        for (int32_t d = 0; d < dim; d++)
            length[d] += fabs((double)query(c, dim, t, i)[d]);
    for (int32_t d = 0; d < dim; d++) {
        int32_t n_above = 0;
        for (int32_t i = 0; i < dim; i++)
            n_above += length[i] > length[d];
        used[d] = n_above < r;
        all += fabs((double)query(c, dim, t, g)[d]);
        part += used[d] ? fabs((double)query(c, dim, t, g)[d]) : 0.0;
    }
    for (int32_t s = 0; s < n; s++) {
        float k[MAX_DIM];
        kv_lane_key(w->kv, 0, c->head, s, k);
        out[s] = 0.0;
        for (int32_t d = 0; d < dim; d++)
            out[s] += used[d] ? (double)query(c, dim, t, g)[d] * (double)k[d] : 0.0;
        out[s] *= (double)w->model.scale / sqrt(part / all);
    }
}

static void soften(double *x, int32_t n)
{
    double max = x[0], sum = 0.0;
    for (int32_t s = 1; s < n; s++)
        max = fmax(max, x[s]);
    for (int32_t s = 0; s < n; s++)
        sum += exp(x[s] - max);
    for (int32_t s = 0; s < n; s++)
        x[s] = exp(x[s] - max) / sum;
}

/* Scores of a KV head. For a single token, also each query head's score of every entry. */
static void sparq_reference(const struct read_world *w, int32_t head, int32_t r, bool softmax,
                            double *score, double weight[][MAX_ENTRIES])
{
    struct read_chunk c = read_world_chunk(w, head);
    static double logit[MAX_ENTRIES];
    memset(score, 0, MAX_ENTRIES * sizeof(*score));
    for (int32_t t = 0; t < c.n_tok; t++)
        for (int32_t g = 0; g < c.n_group; g++) {
            sparq_logits(w, &c, t, g, r, c.n + t + 1, logit);
            for (int32_t s = 0; !softmax && s < c.n; s++)
                score[s] += logit[s] / c.n_tok;
            soften(logit, c.n + t + 1);
            for (int32_t s = 0; softmax && s < c.n; s++)
                score[s] += logit[s] / c.n_tok;
            memcpy(weight[g], logit, sizeof(logit));
        }
}

/* Half floats of the second copy of K are this far off. */
static double tolerance_of(const char *options)
{
    return strstr(options, "columns=off") != NULL ? 2e-5 : 4e-3;
}

TEST(sparq_agrees_with_doubles)
{
    static const char *const forms[] = {
        "r=9,columns=off",   "r=9,columns=off,rank=softmax", "r=20,columns=on",
        "r=64,rank=softmax", "r=200,columns=off,mean=off",   "r=17,rank=softmax,mean=off",
    };
    static double score[MAX_ENTRIES], weight[8][MAX_ENTRIES];
    uint64_t rng = 77;
    for (size_t i = 0; i < PI_LEN(shapes) * PI_LEN(forms) * KV_N_TYPE; i++) {
        struct read_problem p = shapes[i % PI_LEN(shapes)];
        const char *options = forms[i / PI_LEN(shapes) % PI_LEN(forms)];
        bool softmax = strstr(options, "softmax") != NULL,
             mean = strstr(options, "mean=off") == NULL;
        struct read_world w;
        float out[MAX_ENTRIES], beside[8], row[8 * MAX_DIM];
        int32_t slots[] = {3, 5, 40, 77}, r = atoi(options + 2);
        read_problem_random(&p, &rng);
        read_world_open(&w, &p, &read_sparq, options,
                        (enum kv_type)(i / PI_LEN(shapes) / PI_LEN(forms)));
        for (int32_t h = 0; h < p.n_kv; h++) {
            struct read_chunk c = read_world_chunk(&w, h);
            double tolerance = tolerance_of(options);
            c.beside = beside;
            sparq_reference(&w, h, r, softmax, score, weight);
            read_world_score_chunk(&w, &c, out);
            for (int32_t s = 0; s < c.n; s++)
                near(out[s], score[s], softmax ? tolerance * score[s] * 3.0 : tolerance);
            for (size_t d = 0; d < PI_LEN(row); d++)
                row[d] = 1.0f;
            read_sparq.chosen(&w.config.params, &w.view, &c, slots, 4);
            read_sparq.adjust(&w.config.params, &w.view, &c, row, (size_t)(c.n_group * p.dim));
            for (int32_t d = 0; d < p.dim; d++) {
                double all = 0.0;
                float v[MAX_DIM];
                for (int32_t s = 0; s < c.n + 1; s++) {
                    kv_lane_value(w.kv, 0, h, s, v);
                    all += (double)v[d] / (c.n + 1);
                }
                for (int32_t g = 0; g < c.n_group; g++) {
                    double a = weight[g][3] + weight[g][5] + weight[g][40] + weight[g][77] +
                               weight[g][c.n];
                    bool adjusts = mean && c.n_tok == 1;
                    near(row[g * p.dim + d], adjusts ? a + (1.0 - a) * all : 1.0, tolerance);
                }
            }
        }
        read_world_close(&w);
        read_problem_free(&p);
    }
}

/* A matrix of rows that are orthogonal: random ones, by Gram and Schmidt. */
static void random_basis(int32_t dim, float *out, uint64_t *rng)
{
    static double x[MAX_DIM][MAX_DIM];
    for (int32_t i = 0; i < dim; i++) {
        for (int32_t d = 0; d < dim; d++)
            x[i][d] = (double)rng_float(rng);
        for (int32_t pass = 0; pass < 2; pass++)
            for (int32_t j = 0; j <= i; j++) {
                double sum = 0.0;
                for (int32_t d = 0; d < dim; d++)
                    sum += x[i][d] * x[j][d];
                for (int32_t d = 0; d < dim; d++)
                    x[i][d] = j < i ? x[i][d] - sum * x[j][d] : x[i][d] / sqrt(sum);
            }
        for (int32_t d = 0; d < dim; d++)
            out[i * dim + d] = (float)x[i][d];
    }
}

/* (q P_r).(k P_r) of one query over the first n slots; with r = d that is q.k. */
static void loki_products(const struct read_world *w, const struct read_chunk *c, const float *q,
                          const float *basis, int32_t r, int32_t n, double *out)
{
    int32_t dim = w->problem->dim;
    for (int32_t s = 0; s < n; s++) {
        float k[MAX_DIM];
        kv_lane_key(w->kv, 0, c->head, s, k);
        out[s] = r == dim ? dot(q, k, dim) : 0.0;
        for (int32_t j = 0; r < dim && j < r; j++)
            out[s] += dot(q, basis + j * dim, dim) * dot(k, basis + j * dim, dim);
    }
}

/* Scores are the mean of the products or of their softmax. */
static void check_loki(const struct read_world *w, const struct read_chunk *c, const float *basis,
                       int32_t r, bool softmax)
{
    static double sum[MAX_ENTRIES], x[MAX_ENTRIES];
    float out[MAX_ENTRIES];
    memset(sum, 0, sizeof(sum));
    for (int32_t t = 0; t < c->n_tok; t++)
        for (int32_t g = 0; g < c->n_group; g++) {
            int32_t n = c->n + t + 1;
            loki_products(w, c, query(c, w->problem->dim, t, g), basis, r, n, x);
            for (int32_t s = 0; softmax && s < n; s++)
                x[s] *= (double)w->model.scale;
            if (softmax)
                soften(x, n);
            for (int32_t s = 0; s < c->n; s++)
                sum[s] += x[s] / (c->n_tok * c->n_group);
        }
    read_world_score_chunk(w, c, out);
    for (int32_t s = 0; s < c->n; s++)
        near(out[s], sum[s], softmax ? 1e-2 * sum[s] : 4e-3);
}

TEST(loki_agrees_with_doubles)
{
    uint64_t rng = 31;
    char path[32], options[96];
    temporary(path);
    for (size_t i = 0; i < PI_LEN(shapes) * KV_N_TYPE * 4; i++) {
        struct read_problem p = shapes[i % PI_LEN(shapes)];
        size_t form = i / PI_LEN(shapes) / KV_N_TYPE;
        int32_t r = form % 2 == 0 ? p.dim : 11;
        float *basis = test_calloc((size_t)(p.n_kv * p.dim * p.dim), sizeof(float));
        float *value = test_calloc((size_t)(p.n_kv * p.dim), sizeof(float));
        struct read_world w;
        for (int32_t h = 0; h < p.n_kv; h++)
            random_basis(p.dim, basis + h * p.dim * p.dim, &rng);
        write_basis(path, 1, p.n_kv, p.dim, basis, value);
        snprintf(options, sizeof(options), "budget=32,r=%d,rank=%s,projection=%s",
                 r == p.dim ? 999 : r, form < 2 ? "logits" : "softmax", path);
        read_problem_random(&p, &rng);
        read_world_open(&w, &p, &read_loki, options,
                        (enum kv_type)(i / PI_LEN(shapes) % KV_N_TYPE));
        assert_int_equal(w.model.g.index_dim, r);
        for (int32_t h = 0; h < p.n_kv; h++) {
            struct read_chunk c = read_world_chunk(&w, h);
            check_loki(&w, &c, basis + h * p.dim * p.dim, r, form >= 2);
        }
        read_world_close(&w);
        read_problem_free(&p);
        test_free(basis);
        test_free(value);
    }
    unlink(path);
}

static struct kv_geometry geometry(int32_t n_layer, int32_t n_head, int32_t dim)
{
    return (struct kv_geometry){.n_layer = n_layer,
                                .n_head = n_head,
                                .dim_k = dim,
                                .dim_v = dim,
                                .page_len = 16,
                                .type_k = KV_TYPE_F32,
                                .type_v = KV_TYPE_F32};
}

/* A share of the variance asks for as many dimensions as the lane that needs most. */
TEST(loki_takes_shares_of_the_variance)
{
    static const struct {
        const char *r;
        int32_t wanted;
    } form[] = {{"r=64", 8}, {"r=3", 3}, {"r=50%", 2}, {"r=90%", 4}, {"r=100%", 8}, {"r=0.01%", 1}};
    static const float value[2][8] = {{9, 0.5f, 0.25f, 0.125f, 0.0625f, 0.0625f, 0, 0},
                                      {4, 3, 1, 1, 0.5f, 0.25f, 0.125f, 0.125f}};
    struct kv_geometry g = geometry(2, 1, 8), fitted;
    struct policy_model model = {.n_group = 1, .scale = 1.0f};
    struct read_config c;
    struct read *read;
    float basis[2 * 8 * 8] = {0};
    char path[32], options[96];
    for (int32_t i = 0; i < 16; i++)
        basis[i / 8 * 64 + i % 8 * 9] = 1.0f;
    temporary(path);
    write_basis(path, 2, 1, 8, basis, value[0]);
    for (size_t i = 0; i < PI_LEN(form); i++) {
        fitted = g;
        snprintf(options, sizeof(options), "%s,projection=%s", form[i].r, path);
        check(read_config_set(&read_loki, options, &c, &err), &err);
        check(read_config_fit(&c, &fitted, &err), &err);
        assert_int_equal(fitted.index_dim, form[i].wanted);
        model.g = fitted;
        check(read_create(&c, &model, 1, &read, &err), &err);
        for (int32_t l = 0; l < 2; l++)
            for (int32_t j = 0; j < form[i].wanted; j++)
                for (int32_t d = 0; d < 8; d++)
                    assert_true(read_projection(read)[(l * form[i].wanted + j) * 8 + d] ==
                                (float)(d == j));
        read_free(read);
    }
    check(read_config_set(&read_loki, "r=8", &c, &err), &err);
    expect(read_config_fit(&c, &fitted, &err), &err, PITH_INVALID, "pith calibrate loki");
    snprintf(options, sizeof(options), "r=8kB,projection=%s", path);
    check(read_config_set(&read_loki, options, &c, &err), &err);
    expect(read_config_fit(&c, &fitted, &err), &err, PITH_INVALID, "8000 bytes");
    snprintf(options, sizeof(options), "r=50%%,projection=%s", path);
    check(read_config_set(&read_loki, options, &c, &err), &err);
    model.g = geometry(3, 1, 8);
    check(read_config_fit(&c, &model.g, &err), &err);
    expect(read_create(&c, &model, 1, &read, &err), &err, PITH_INVALID,
           "2 layers, the model has 3");
    unlink(path);
    assert_int_equal(read_create(&c, &model, 1, &read, &err), PITH_IO);
}

/* ---- Quest ---- */

/* No query's product with a key exceeds the score of the key's page. A page has one score, and the
   last page is read while it has room. */
TEST(quest_bounds_every_product)
{
    uint64_t rng = 8;
    for (size_t i = 0; i < PI_LEN(shapes) * KV_N_TYPE * 2; i++) {
        struct read_problem p = shapes[i % PI_LEN(shapes)];
        bool max = i / PI_LEN(shapes) / KV_N_TYPE == 0;
        struct read_world w;
        float out[MAX_ENTRIES];
        int32_t slots[MAX_ENTRIES], n_cut = 0;
        read_problem_random(&p, &rng);
        read_world_open(&w, &p, &read_quest,
                        max ? "heads=max,budget=48,gate=1" : "budget=48,gate=1",
                        (enum kv_type)(i / PI_LEN(shapes) % KV_N_TYPE));
        assert_int_equal(w.model.g.index, KV_INDEX_ROWS | KV_INDEX_BOUNDS);
        for (int32_t h = 0; h < p.n_kv; h++) {
            struct read_chunk c = read_world_chunk(&w, h);
            read_world_score(&w, h, out);
            for (int32_t s = 0; s < c.n; s++) {
                float k[MAX_DIM];
                double mean = 0.0;
                kv_lane_key(w.kv, 0, h, s, k);
                for (int32_t t = 0; t < c.n_tok; t++)
                    for (int32_t g = 0; g < c.n_group; g++) {
                        double x = dot(query(&c, p.dim, t, g), k, p.dim);
                        assert_true(!max || x <= (double)out[s] * (1.0 + 1e-6) + 1e-5);
                        mean += x / (c.n_tok * c.n_group);
                    }
                assert_true(mean <= (double)out[s] * (1.0 + 1e-6) + 1e-5);
                assert_true(s % 16 == 0 || out[s] == out[s - 1]);
                assert_true((out[s] == INFINITY) == (s / 16 * 16 + 16 > c.n));
            }
            assert_true(read_world_choose(&w, out, slots));
            for (int32_t j = 0; j < 48; j++) { /* pages in the middle are whole, but for one */
                int32_t page = slots[j] / 16, n_in = 0;
                for (int32_t k = 0; k < 48; k++)
                    n_in += slots[k] / 16 == page;
                n_cut += slots[j] % 16 == 0 && n_in < 16 && (page + 1) * 16 <= c.n;
            }
            assert_true(n_cut <= h + 1);
        }
        read_world_close(&w);
        read_problem_free(&p);
    }
}

/* The bound of a page is reached where all of its keys are one. */
TEST(quest_is_tight)
{
    struct read_problem p = {.n_q = 1, .n_kv = 1, .dim = 32, .chunk = 1, .n = 64, .scale = 1.0f};
    struct read_world w;
    float out[64];
    uint64_t rng = 2;
    read_problem_random(&p, &rng);
    for (int32_t s = 0; s < 64; s++)
        memcpy(p.k + s * 32, p.k + s / 16 * 16 * 32, 32 * sizeof(float));
    read_world_open(&w, &p, &read_quest, "budget=16,gate=1", KV_TYPE_F32);
    read_world_score(&w, 0, out);
    for (int32_t s = 0; s < 64; s++)
        near(out[s], dot(w.q, p.k + s * 32, 32), 1e-5);
    read_world_close(&w);
    read_problem_free(&p);
}
