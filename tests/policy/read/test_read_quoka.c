/*
 * QuoKA: every vector of its specification, and its forms against their formulas in double. Also
 * changes that must not change a choice, the same scores at every processor level, and the theorem
 * on which the method rests. The policy in an engine is in test_read_model.c.
 */
#include <math.h>

#include "testing.h"

#include "cpu/kernels.h"
#include "rounded.h"
#include "near.h"
#include "policy/read/quoka.h"
#include "read_check.h"
#include "status.h"

TEST_GROUP(NULL, read_vectors_free);

#define TOLERANCE 1e-5 /* of single precision, as the vectors say */
#define MAX_SLOTS 64
#define MAX_ENTRIES 512

/* ---- vectors ---- */

static void near_list(const json_t *list, const float *got, size_t n, double tolerance,
                      const char *what)
{
    assert_true(json_array_size(list) <= n);
    for (size_t i = 0; i < json_array_size(list); i++) {
        double want = json_number_value(json_array_get(list, i));
        if (!(fabs(got[i] - want) <= tolerance))
            fail_msg("%s %zu is %.9g, not %.9g", what, i, (double)got[i], want);
    }
}

static void same_list(const json_t *list, const int32_t *got, int32_t n, const char *what)
{
    assert_int_equal(json_array_size(list), n);
    for (int32_t i = 0; i < n; i++) {
        json_int_t want = json_integer_value(json_array_get(list, (size_t)i));
        if (want != got[i])
            fail_msg("%s %d is %d, not %d", what, i, got[i], (int)want);
    }
}

static void open_vector(struct read_world *w, const struct read_problem *p, const char *more)
{
    char options[128];
    snprintf(options, sizeof(options), "budget=%d,gate=1,queries=%d%s", p->budget, p->n_query,
             more);
    read_world_open(w, p, &read_quoka, options, KV_TYPE_F32);
}

/* The kept queries, and their final form where the vector has it. */
static void check_queries(const struct read_world *w, const json_t *expect)
{
    const struct read_problem *p = w->problem;
    const struct quoka_form *form = (const void *)&w->config.params;
    json_t *retained = read_vector_at(expect, "retained"), *qbar = json_object_get(expect, "qbar");
    for (int32_t h = 0; h < p->n_kv; h++) {
        struct read_chunk c = read_world_chunk(w, h);
        struct quoka_queries queries;
        quoka_queries_make(form, &w->model, &c, c.scratch, &queries);
        assert_int_equal(queries.n_set, 1);
        for (int32_t g = 0; g < c.n_group; g++)
            same_list(json_array_get(retained, (size_t)(h * c.n_group + g)),
                      queries.kept + g * queries.n, queries.n, "kept query");
        for (int32_t j = 0; qbar != NULL && j < queries.n; j++)
            near_list(json_array_get(json_array_get(qbar, (size_t)h), (size_t)j),
                      queries.q + j * p->dim, (size_t)p->dim, TOLERANCE, "qbar");
    }
}

/* out [n_q][chunk][dim] where the vector has it whole, otherwise its listed parts. */
static void check_output(const struct read_problem *p, const json_t *expect, const float *out,
                         const char *whole, const char *sums)
{
    size_t row = (size_t)p->dim, n_row = (size_t)(p->n_q * p->chunk);
    json_t *list = json_object_get(expect, whole);
    double sum = 0.0, squares = 0.0, error = attention_error() * sqrt((double)(n_row * row));
    char key[32];
    for (size_t r = 0; list != NULL && r < n_row; r++)
        near_list(json_array_get(json_array_get(list, r / (size_t)p->chunk), r % (size_t)p->chunk),
                  out + r * row, row, TOLERANCE + attention_error(), whole);
    if (list != NULL)
        return;
    for (size_t i = 0; i < n_row * row; i++) {
        sum += (double)out[i];
        squares += (double)out[i] * (double)out[i];
    }
    snprintf(key, sizeof(key), "%s_sum", sums);
    near(sum, json_number_value(read_vector_at(expect, key)), 2e-3 + error);
    snprintf(key, sizeof(key), "%s_sumsq", sums);
    near(squares, json_number_value(read_vector_at(expect, key)), 1e-3 + error);
}

static void check_attention(const struct read_world *w, const json_t *expect, const int32_t *slots,
                            int32_t n_slot)
{
    const struct read_problem *p = w->problem;
    size_t len = (size_t)p->n_q * (size_t)p->chunk * (size_t)p->dim;
    float *out = test_calloc(len, sizeof(float));
    read_world_attend(w, slots, n_slot, out);
    check_output(p, expect, out, "out", "out");
    if (json_object_get(expect, "out_head0_row0") != NULL) {
        near_list(read_vector_at(expect, "out_head0_row0"), out, (size_t)p->dim,
                  TOLERANCE + attention_error(), "first row");
        near_list(read_vector_at(expect, "out_lasthead_lastrow"), out + len - (size_t)p->dim,
                  (size_t)p->dim, TOLERANCE + attention_error(), "last row");
    }
    if (json_object_get(expect, "out_dense") != NULL ||
        json_object_get(expect, "dense_sum") != NULL) {
        read_world_attend(w, NULL, 0, out);
        check_output(p, expect, out, "out_dense", "dense");
    }
    test_free(out);
}

/* A case with entries before the chunk, through the policy and the rules. */
static void check_case(const char *name)
{
    json_t *c = read_vector_case(name), *expect = read_vector_at(c, "expect");
    json_t *wanted = read_vector_at(expect, "sel_ascending");
    json_t *shat = json_object_get(expect, "shat");
    int32_t slots[4 * MAX_SLOTS];
    float score[MAX_ENTRIES];
    struct read_problem p;
    struct read_world w;
    read_vector_load(c, &p);
    int32_t n_slot = p.budget < p.n ? p.budget : p.n;
    assert_true(p.n <= MAX_ENTRIES && n_slot <= MAX_SLOTS && p.n_kv <= 4);
    open_vector(&w, &p, "");
    check_queries(&w, expect);
    if (shat == NULL)
        shat = read_vector_at(expect, "shat_first8");
    for (int32_t h = 0; h < p.n_kv; h++) {
        int32_t *of_head = slots + h * n_slot;
        read_world_score(&w, h, score);
        near_list(json_array_get(shat, (size_t)h), score, (size_t)p.n, TOLERANCE, "score");
        if (!read_world_choose(&w, score, of_head))
            for (int32_t s = 0; s < n_slot; s++)
                of_head[s] = s;
        same_list(json_array_get(wanted, (size_t)h), of_head, n_slot, "slot");
    }
    check_attention(&w, expect, slots, n_slot);
    read_world_close(&w);
    read_problem_free(&p);
}

TEST(chooses_as_the_vectors_say)
{
    static const char *const names[] = {
        "chunk6",
        "cache_shorter_than_budget",
        "chunk_not_longer_than_NQ",
        "decode_one_query",
        "ties",
        "zero_key",
        "gen_a",
        "gen_b",
        "gen_c",
    };
    /* Here and below: first_chunk, ratio_budget. */
    assert_int_equal(json_array_size(read_vector_at(read_vectors(), "cases")), PI_LEN(names) + 2);
    for (size_t i = 0; i < PI_LEN(names); i++)
        check_case(names[i]);
}

/* With nothing before the chunk nothing is chosen, and attention is causal within it. */
TEST(the_first_chunk_is_dense)
{
    struct read_problem p;
    struct read_world w;
    json_t *c = read_vector_case("first_chunk");
    read_vector_load(c, &p);
    assert_int_equal(p.n, 0);
    open_vector(&w, &p, "");
    assert_false(read_world_choose(&w, NULL, NULL));
    check_attention(&w, read_vector_at(c, "expect"), NULL, 0);
    read_world_close(&w);
    read_problem_free(&p);
}

TEST(budgets_in_percent_are_those_of_the_vectors)
{
    json_t *rows = read_vector_at(read_vector_case("ratio_budget"), "rows");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        struct read_config config;
        char options[64];
        snprintf(options, sizeof(options), "gate=1,budget=%g%%",
                 100.0 * json_number_value(read_vector_at(row, "ratio")));
        check(read_config_set(&read_quoka, options, &config, &err), &err);
        assert_int_equal(
            read_budget_at(&config.rules, (int32_t)json_integer_value(read_vector_at(row, "T"))),
            json_integer_value(read_vector_at(row, "B_SA")));
    }
    assert_int_equal(json_array_size(rows), 8);
}

/* For the mistakes that the vectors list, the paper's ablations make the listed choice. */
TEST(ablations_choose_as_the_vectors_say)
{
    static const struct {
        const char *options, *key;
    } forms[] = {{",score=dot", "dot_product_sel_ascending"},
                 {",aggregate=mean", "mean_over_queries_sel_ascending"}};
    json_t *c = read_vector_case("chunk6");
    struct read_problem p;
    read_vector_load(c, &p);
    for (size_t i = 0; i < PI_LEN(forms); i++) {
        struct read_world w;
        float score[MAX_ENTRIES];
        int32_t slots[MAX_SLOTS];
        open_vector(&w, &p, forms[i].options);
        read_world_score(&w, 0, score);
        assert_true(read_world_choose(&w, score, slots));
        same_list(
            json_array_get(read_vector_at(read_vector_at(c, "wrong_variants"), forms[i].key), 0),
            slots, p.budget, forms[i].options);
        read_world_close(&w);
    }
    read_problem_free(&p);
}

/* ---- the formulas, in double ---- */

#define MAX_DIM 128
#define MAX_CHUNK 64
#define MAX_GROUP 8

static double length(const float *a, int32_t n)
{
    return sqrt(dot(a, a, n));
}

/* s[g][t] of a KV head. */
static void reference_similarity(const struct read_chunk *c, int32_t dim,
                                 double s[MAX_GROUP][MAX_CHUNK])
{
    for (int32_t g = 0; g < c->n_group; g++) {
        double mean[MAX_DIM] = {0}, mm = 0.0;
        for (int32_t t = 0; t < c->n_tok; t++)
            for (int32_t d = 0; d < dim; d++)
                mean[d] += (double)c->q[(size_t)t * c->q_stride + (size_t)(g * dim + d)] / c->n_tok;
        for (int32_t d = 0; d < dim; d++)
            mm += mean[d] * mean[d];
        for (int32_t t = 0; t < c->n_tok; t++) {
            const float *q = c->q + (size_t)t * c->q_stride + (size_t)(g * dim);
            double qm = 0.0;
            for (int32_t d = 0; d < dim; d++)
                qm += (double)q[d] * mean[d];
            s[g][t] = qm / (length(q, dim) * sqrt(mm));
        }
    }
}

/* kept[g][j]: the j-th token of a head. */
static void reference_kept(const struct quoka_form *form, const struct read_chunk *c, int32_t dim,
                           int32_t n, int32_t kept[MAX_GROUP][MAX_CHUNK])
{
    double s[MAX_GROUP][MAX_CHUNK];
    reference_similarity(c, dim, s);
    for (int32_t g = 1; form->pair == QUOKA_TOKEN && g < c->n_group; g++)
        for (int32_t t = 0; t < c->n_tok; t++)
            s[0][t] += s[g][t];
    for (int32_t g = 0; g < c->n_group; g++) {
        const double *of_head = s[form->pair == QUOKA_TOKEN ? 0 : g];
        bool taken[MAX_CHUNK] = {false};
        for (int32_t j = 0; j < n; j++) {
            int32_t best = -1;
            for (int32_t t = 0; t < c->n_tok; t++)
                if (!taken[t] && (best < 0 || of_head[t] < of_head[best]))
                    best = t;
            best = c->n_tok > n ? best : j;
            taken[best] = true;
            kept[g][j] = best;
        }
    }
}

/* The score of one key: every head by itself, then by the form. */
static double reference_score(const struct quoka_form *form, const struct read_chunk *c,
                              int32_t dim, int32_t n, int32_t kept[MAX_GROUP][MAX_CHUNK],
                              const float *k)
{
    double x[MAX_CHUNK], result = 0.0, by_key = length(k, dim);
    int32_t n_set = form->pair == QUOKA_NONE ? c->n_group : 1, per_set = c->n_group / n_set;
    for (int32_t set = 0; set < n_set; set++) {
        double best = -INFINITY, sum = 0.0;
        for (int32_t j = 0; j < n; j++) {
            x[j] = 0.0;
            for (int32_t g = set * per_set; g < (set + 1) * per_set; g++) {
                const float *q = c->q + (size_t)kept[g][j] * c->q_stride + (size_t)(g * dim);
                double by = form->score == QUOKA_DOT ? 1.0 : length(q, dim) * by_key;
                x[j] += by > 0.0 ? dot(q, k, dim) / by / per_set : 0.0;
            }
            best = x[j] > best ? x[j] : best;
            sum += x[j] / n;
        }
        result += (form->aggregate == QUOKA_MEAN ? sum : best) / n_set;
    }
    return result;
}

/* Shapes that have whole and odd numbers of everything, more queries than tokens, and one. */
static const struct read_problem shapes[] = {
    {.n_q = 8, .n_kv = 2, .dim = 64, .chunk = 33, .n = 150, .n_query = 16, .budget = 20},
    {.n_q = 3, .n_kv = 3, .dim = 48, .chunk = 20, .n = 97, .n_query = 5, .budget = 11},
    {.n_q = 6, .n_kv = 1, .dim = 24, .chunk = 9, .n = 70, .n_query = 16, .budget = 13},
    {.n_q = 10, .n_kv = 2, .dim = 128, .chunk = 64, .n = 131, .n_query = 1, .budget = 30},
    {.n_q = 4, .n_kv = 2, .dim = 32, .chunk = 1, .n = 130, .n_query = 16, .budget = 30},
};

static const char *const forms[] = {
    "",
    ",pair=token",
    ",pair=none",
    ",aggregate=mean",
    ",pair=none,aggregate=mean",
    ",score=dot",
    ",score=dot,pair=token",
    ",score=dot,pair=none,aggregate=mean",
    ",index=int8",
    ",index=int8,pair=none",
};

static void check_formula(const struct read_problem *p, const char *form_text, enum kv_type type)
{
    struct read_world w;
    float score[MAX_ENTRIES], k[MAX_DIM];
    int32_t kept[MAX_GROUP][MAX_CHUNK];
    int32_t n = p->n_query < p->chunk ? p->n_query : p->chunk;
    char options[128];
    snprintf(options, sizeof(options), "budget=%d,queries=%d%s", p->budget, p->n_query, form_text);
    read_world_open(&w, p, &read_quoka, options, type);
    const struct quoka_form *form = (const void *)&w.config.params;
    /* Codes of 8 bits: an error of half a step in each of dim products, of random sign. */
    double tolerance = form->index == QUOKA_INT8 ? 0.02 : form->score == QUOKA_DOT ? 2e-4 : 2e-6;
    for (int32_t h = 0; h < p->n_kv; h++) {
        struct read_chunk c = read_world_chunk(&w, h);
        reference_kept(form, &c, p->dim, n, kept);
        read_world_score(&w, h, score);
        for (int32_t s = 0; s < p->n; s++) {
            kv_lane_key(w.kv, 0, h, s, k);
            near(score[s], reference_score(form, &c, p->dim, n, kept, k), tolerance);
        }
    }
    read_world_close(&w);
}

TEST(scores_agree_with_doubles)
{
    uint64_t rng = 11;
    for (size_t i = 0; i < PI_LEN(shapes); i++) {
        struct read_problem p = shapes[i];
        p.scale = 0.125f;
        read_problem_random(&p, &rng);
        for (size_t f = 0; f < PI_LEN(forms); f++) {
            check_formula(&p, forms[f], read_type((int32_t)(i + f), p.dim));
        }
        read_problem_free(&p);
    }
}

/* int8 keeps no lengths, a dot product needs them. */
TEST(int8_goes_with_no_dot_product)
{
    struct kv_geometry g = {.n_layer = 1, .n_head = 1, .dim_k = 32, .dim_v = 32, .page_len = 16};
    struct read_config config;
    check(read_config_set(&read_quoka, "score=dot,index=int8", &config, &err), &err);
    expect(read_config_fit(&config, &g, &err), &err, PITH_INVALID, "int8");
    check(read_config_set(&read_quoka, "score=dot", &config, &err), &err);
    check(read_config_fit(&config, &g, &err), &err);
    assert_int_equal(g.index, KV_INDEX_ROWS);
    check(read_config_set(&read_quoka, "", &config, &err), &err);
    check(read_config_fit(&config, &g, &err), &err);
    assert_int_equal(g.index, KV_INDEX_ROWS | KV_INDEX_NORM);
    check(read_config_set(&read_quoka, "index=int8", &config, &err), &err);
    check(read_config_fit(&config, &g, &err), &err);
    assert_int_equal(g.index, KV_INDEX_ROWS | KV_INDEX_UNIT8);
}

/* ---- what must not change a choice ---- */

/* The slots of every KV head. */
static void choose(const struct read_problem *p, const char *options, int32_t *slots)
{
    struct read_world w;
    float score[MAX_ENTRIES];
    read_world_open(&w, p, &read_quoka, options, KV_TYPE_F32);
    for (int32_t h = 0; h < p->n_kv; h++) {
        read_world_score(&w, h, score);
        assert_true(read_world_choose(&w, score, slots + h * p->budget));
    }
    read_world_close(&w);
}

static void scale_by(float *x, int32_t n, float factor)
{
    for (int32_t i = 0; i < n; i++)
        x[i] *= factor;
}

TEST(scaling_changes_no_choice)
{
    static const char *const options[] = {"budget=20", "budget=20,pair=token",
                                          "budget=20,pair=none"};
    uint64_t rng = 12;
    for (int32_t round = 0; round < 12; round++) {
        struct read_problem p = shapes[0];
        int32_t before[2 * MAX_SLOTS], after[2 * MAX_SLOTS];
        p.scale = 0.125f;
        read_problem_random(&p, &rng);
        choose(&p, options[round % 3], before);
        for (int32_t i = 0; i < p.n_kv * p.n; i++)
            scale_by(p.k + i * p.dim, p.dim, 0.01f + 50.0f * (1.0f + rng_float(&rng)));
        choose(&p, options[round % 3], after);
        assert_memory_equal(before, after, (size_t)(p.n_kv * p.budget) * sizeof(*before));
        for (int32_t h = 0; h < p.n_q; h++)
            scale_by(p.q + h * p.chunk * p.dim, p.chunk * p.dim, 0.3f + (float)h);
        choose(&p, options[round % 3], after);
        assert_memory_equal(before, after, (size_t)(p.n_kv * p.budget) * sizeof(*before));
        read_problem_free(&p);
    }
}

/* A key's score is its own, wherever it lies. */
TEST(a_keys_score_does_not_depend_on_its_place)
{
    uint64_t rng = 13;
    for (int32_t round = 0; round < 6; round++) {
        struct read_problem p = shapes[round % 2], moved;
        int32_t order[MAX_ENTRIES], before[3 * MAX_SLOTS], after[3 * MAX_SLOTS];
        size_t row = (size_t)p.dim * sizeof(float);
        char options[32];
        snprintf(options, sizeof(options), "budget=%d", p.budget);
        read_problem_random(&p, &rng);
        moved = p;
        moved.k = test_calloc((size_t)(p.n_kv * p.n), row);
        for (int32_t s = 0; s < p.n; s++) {
            int32_t at = (int32_t)rng_below(&rng, (uint64_t)s + 1);
            order[s] = order[at];
            order[at] = s;
        }
        for (int32_t i = 0; i < p.n_kv * p.n; i++)
            memcpy(moved.k + i * p.dim, p.k + (i / p.n * p.n + order[i % p.n]) * p.dim, row);
        choose(&p, options, before);
        choose(&moved, options, after);
        for (int32_t i = 0; i < p.n_kv * p.budget; i++) {
            bool found = false;
            for (int32_t j = 0; j < p.budget; j++)
                found = found || before[i / p.budget * p.budget + j] == order[after[i]];
            assert_true(found);
        }
        test_free(moved.k);
        read_problem_free(&p);
    }
}

/* Of equally similar queries the first tokens are kept, and in a chunk of zeros all are. */
TEST(of_equal_queries_the_first_are_kept)
{
    uint64_t rng = 14;
    struct read_problem p = shapes[0];
    size_t row = (size_t)p.dim;
    float score[MAX_ENTRIES];
    struct read_world w;
    read_problem_random(&p, &rng);
    for (int32_t t = 4; t < p.chunk; t++) /* head 0: four queries, again and again */
        memcpy(p.q + (size_t)t * row, p.q + (size_t)(t % 4) * row, row * sizeof(float));
    memset(p.q + (size_t)p.chunk * row, 0, (size_t)p.chunk * row * sizeof(float)); /* head 1 */
    read_world_open(&w, &p, &read_quoka, "", KV_TYPE_F32);
    struct read_chunk c = read_world_chunk(&w, 0);
    struct quoka_queries queries;
    quoka_queries_make((const void *)&w.config.params, &w.model, &c, c.scratch, &queries);
    for (int32_t j = 0; j < 16; j++) {
        /* Of 33 tokens every one of the four comes 8 times or, the first, 9 times. */
        if (j > 0 && queries.kept[j] % 4 == queries.kept[j - 1] % 4)
            assert_int_equal(queries.kept[j], queries.kept[j - 1] + 4);
        else
            assert_true(queries.kept[j] < 4);
        assert_int_equal(queries.kept[16 + j], j);
    }
    memset(p.q, 0, (size_t)(p.n_q * p.chunk) * row * sizeof(float));
    read_world_close(&w);
    read_world_open(&w, &p, &read_quoka, "", KV_TYPE_F32);
    read_world_score(&w, 0, score);
    for (int32_t s = 0; s < p.n; s++)
        assert_true(score[s] == 0.0f);
    read_world_close(&w);
    read_problem_free(&p);
}

/* A budget that covers all entries chooses nothing, so everything is read (whole engines with such
   a budget: test_read_model.c). Choosing everything reads everything, too. */
TEST(a_budget_of_all_is_dense)
{
    uint64_t rng = 15;
    for (size_t i = 0; i < PI_LEN(shapes); i++) {
        struct read_problem p = shapes[i];
        struct read_world w;
        p.scale = 0.2f;
        read_problem_random(&p, &rng);
        size_t len = (size_t)p.n_q * (size_t)p.chunk * (size_t)p.dim;
        float *dense = test_calloc(len, sizeof(float)), *chosen = test_calloc(len, sizeof(float));
        int32_t *slots = test_calloc((size_t)(p.n_kv * p.n), sizeof(int32_t));
        enum kv_type type = read_type((int32_t)i, p.dim);
        char options[32];
        snprintf(options, sizeof(options), "gate=1,budget=%d", p.n);
        read_world_open(&w, &p, &read_quoka, options, type);
        assert_false(read_world_choose(&w, NULL, NULL));
        for (int32_t s = 0; s < p.n_kv * p.n; s++)
            slots[s] = s % p.n;
        read_world_attend(&w, NULL, 0, dense);
        read_world_attend(&w, slots, p.n, chosen);
        for (size_t at = 0; at < len; at++)
            near(chosen[at], dense[at], 2e-6 + rounded_error(type, p.dim) + attention_error());
        read_world_close(&w);
        read_problem_free(&p);
        test_free(dense);
        test_free(chosen);
        test_free(slots);
    }
}

/* Numbers beyond the range of the formulas still give scores: zeros, and keys and queries whose
   squares or products overflow a float. */
TEST(extreme_keys_and_queries_give_numbers)
{
    static const float sizes[] = {0.0f, 1e-30f, 1e25f, 3e38f};
    uint64_t rng = 16;
    for (size_t i = 0; i < PI_LEN(sizes) * PI_LEN(forms); i++) {
        struct read_problem p = shapes[0];
        struct read_world w;
        float score[MAX_ENTRIES];
        read_problem_random(&p, &rng);
        scale_by(p.k, p.n * p.dim / 2, sizes[i / PI_LEN(forms)]);
        scale_by(p.q, p.chunk * p.dim + 7 * p.dim, sizes[i / PI_LEN(forms)]);
        for (int32_t d = 0; d < p.dim * p.n; d++)
            p.k[d] = fmaxf(fminf(p.k[d], 3e38f), -3e38f);
        for (int32_t d = 0; d < p.dim * p.chunk * 2; d++)
            p.q[d] = fmaxf(fminf(p.q[d], 3e38f), -3e38f);
        char options[64];
        snprintf(options, sizeof(options), "budget=8%s", forms[i % PI_LEN(forms)]);
        read_world_open(&w, &p, &read_quoka, options, KV_TYPE_F32);
        read_world_score(&w, 0, score); /* fails where one is no number */
        read_world_close(&w);
        read_problem_free(&p);
    }
}

/* ---- levels ---- */

TEST(every_level_gives_the_same_choice)
{
    uint64_t rng = 17;
    for (size_t i = 0; i < 3 * PI_LEN(shapes) * PI_LEN(forms); i++) {
        struct read_problem p = shapes[i % PI_LEN(shapes)];
        float scalar[3][MAX_ENTRIES], other[MAX_ENTRIES];
        int32_t slots[MAX_SLOTS], others[MAX_SLOTS];
        enum kv_type type = read_type((int32_t)i, p.dim);
        struct read_world w;
        char options[96];
        snprintf(options, sizeof(options), "budget=%d%s", p.budget,
                 forms[i / PI_LEN(shapes) % PI_LEN(forms)]);
        read_problem_random(&p, &rng);
        for (int level = 0; level < PI_CPU_N_LEVEL; level++) {
            const char *name = pi_cpu_level_name((enum pi_cpu_level)level);
            if (pith_cpu_level_set(name, NULL) != PITH_OK)
                continue;
            read_world_open(&w, &p, &read_quoka, options, type);
            for (int32_t h = 0; h < p.n_kv; h++) {
                float *score = level == PI_CPU_SCALAR ? scalar[h] : other;
                read_world_score(&w, h, score);
                if (memcmp(score, scalar[h], (size_t)p.n * sizeof(float)) != 0)
                    fail_msg("%s: %s: scores differ from the scalar level's", options, name);
                assert_true(read_world_choose(&w, scalar[h], slots));
                assert_true(read_world_choose(&w, score, others));
                assert_memory_equal(slots, others, (size_t)p.budget * sizeof(*slots));
            }
            read_world_close(&w);
        }
        assert_int_equal(pith_cpu_level_set(NULL, NULL), PITH_OK);
        read_problem_free(&p);
    }
}

/* ---- Theorem 1 ---- */

#define N_PAIR 500
#define N_KEY 100
#define THEOREM_DIM 6

/*
 * For any k, q and M, with beta = cos(k, q) and alpha = cos(M, k),
 *
 *   cos(M, q) <= alpha beta + sqrt((1 - alpha^2) (1 - beta^2)) <= 1 + alpha beta - (alpha^2 +
 * beta^2) / 2
 *
 * The right side is the paper's (section 3.1, appendix D), and the middle is its tight form. If a
 * query is close to a key that is far from the mean, the query is far from the mean. alpha and beta
 * are the store's cosines. In a plane, where k lies between M and q, the middle is reached.
 */
TEST(the_theorem_of_the_paper_holds)
{
    uint64_t rng = 18;
    double least_gap = INFINITY;
    struct read_problem p = {.n_q = 2, .n_kv = 1, .dim = THEOREM_DIM, .chunk = 1, .n = N_KEY};
    float alpha[N_KEY], beta[N_KEY];
    struct read_world w;
    p.budget = 1;
    read_problem_random(&p, &rng);
    read_world_open(&w, &p, &read_quoka, "budget=1", KV_TYPE_F32);
    void *scratch = test_malloc(kv_score_scratch_bytes(&w.model.g, 1));
    struct kv_score_job job = {.seq = w.kv, .n = N_KEY, .kind = KV_SCORE_COSINE, .n_q = 1};
    for (int32_t i = 0; i < N_PAIR; i++) {
        float m[THEOREM_DIM], q[THEOREM_DIM];
        for (int32_t d = 0; d < THEOREM_DIM; d++) {
            m[d] = rng_float(&rng);
            /* Some between the mean and one of the keys. */
            q[d] = i % 5 == 0 ? p.k[i % N_KEY * THEOREM_DIM + d] + m[d] : rng_float(&rng);
        }
        job.q = m;
        job.out = alpha;
        kv_score(&job, scratch);
        job.q = q;
        job.out = beta;
        kv_score(&job, scratch);
        double lm = length(m, THEOREM_DIM), lq = length(q, THEOREM_DIM);
        double between = dot(m, q, THEOREM_DIM) / (lm * lq);
        for (int32_t s = 0; s < N_KEY; s++) {
            double a = (double)alpha[s] / lm, b = (double)beta[s] / lq;
            double tight = a * b + sqrt(fmax(0.0, 1.0 - a * a) * fmax(0.0, 1.0 - b * b));
            double loose = 1.0 + a * b - (a * a + b * b) / 2.0;
            if (between > tight + 1e-5 || tight > loose + 1e-6)
                fail_msg("cos %.9g, bounds %.9g and %.9g", between, tight, loose);
            least_gap = fmin(least_gap, tight - between);
        }
    }
    near(least_gap, 0.0, 1e-5);
    test_free(scratch);
    read_world_close(&w);
    read_problem_free(&p);
}
