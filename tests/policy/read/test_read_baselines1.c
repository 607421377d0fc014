/*
 * SampleAttention, SnapKV and KeyDiff as read policies: the vectors of their specification, and
 * their formulas in double. Also lanes whose entries were moved in position or overwritten, and the
 * same scores at every processor level.
 */
#include <math.h>
#include <string.h>

#include "testing.h"

#include "cpu/kernels.h"
#include "near.h"
#include "read_check.h"
#include "rounded.h"
#include "status.h"

TEST_GROUP(NULL, read_vectors_free);

#define MAX_ENTRIES 512
#define MAX_DIM 128

/* ---- vectors ---- */

/* The scores of the keys before the chunk of case chunk6, and the best of them. */
static void check_vector(const struct read_policy *policy, const char *options, const char *name,
                         const char *scores, const char *kept, int32_t n_kept)
{
    struct read_problem p;
    struct read_world w;
    float score[MAX_ENTRIES];
    int32_t slots[MAX_ENTRIES];
    read_vector_load(read_vector_case("chunk6"), &p);
    read_world_open(&w, &p, policy, options, KV_TYPE_F32);
    json_t *v = read_vector_at(read_vector_at(read_vectors(), "baselines"), name);
    read_world_score(&w, 0, score);
    for (int32_t s = 0; s < p.n; s++)
        near(score[s], json_number_value(json_array_get(read_vector_at(v, scores), (size_t)s)),
             1e-6);
    assert_true(read_world_choose(&w, score, slots));
    for (int32_t i = 0; i < n_kept; i++)
        assert_int_equal(slots[i],
                         json_integer_value(json_array_get(read_vector_at(v, kept), (size_t)i)));
    read_world_close(&w);
    read_problem_free(&p);
}

TEST(scores_are_those_of_the_vectors)
{
    check_vector(&read_sampleattention, "budget=4,queries=2", "sampleattention_topk",
                 "scores_mean_softmax", "keep4_ascending", 4);
    /* Six with the window, which is of the chunk and read anyway. */
    check_vector(&read_snapkv, "budget=4,queries=2,kernel=3", "snapkv", "scores_prefix",
                 "keep6_ascending", 4);
    check_vector(&read_keydiff, "budget=4", "keydiff", "scores", "keep4_ascending", 4);
}

/* ---- the formulas, in double ---- */

/* weight += softmax of a query over the first n slots. */
static void add_softmax(const struct read_world *w, int32_t head, const float *q, int32_t n,
                        double *weight)
{
    double x[MAX_ENTRIES], met[MAX_DIM], max = -INFINITY, sum = 0.0;
    float k[MAX_DIM];
    query_met(kv_seq_geometry(w->kv)->type_k, q, w->problem->dim, met);
    for (int32_t s = 0; s < n; s++) {
        kv_lane_key(w->kv, 0, head, s, k);
        x[s] = 0.0;
        for (int32_t d = 0; d < w->problem->dim; d++)
            x[s] += (double)w->model.scale * met[d] * (double)k[d];
        max = fmax(max, x[s]);
    }
    for (int32_t s = 0; s < n; s++)
        sum += exp(x[s] - max);
    for (int32_t s = 0; s < n; s++)
        weight[s] += exp(x[s] - max) / sum;
}

static void reference_sample(const struct read_world *w, int32_t head, int32_t n_query, bool logits,
                             double *score)
{
    struct read_chunk c = read_world_chunk(w, head);
    int32_t n = n_query < c.n_tok ? n_query : c.n_tok;
    memset(score, 0, sizeof(*score) * MAX_ENTRIES);
    for (int32_t j = 0; j < n; j++)
        for (int32_t g = 0; g < c.n_group; g++) {
            const float *q =
                c.q + (size_t)(j * c.n_tok / n) * c.q_stride + (size_t)(g * w->problem->dim);
            if (!logits)
                add_softmax(w, head, q, c.n, score);
            for (int32_t s = 0; logits && s < c.n; s++) {
                float k[MAX_DIM];
                kv_lane_key(w->kv, 0, head, s, k);
                score[s] += (double)w->model.scale * dot(q, k, w->problem->dim);
            }
        }
    for (int32_t s = 0; s < c.n; s++)
        score[s] /= n * c.n_group;
}

static void reference_snapkv(const struct read_world *w, int32_t head, int32_t n_query, bool max,
                             int32_t kernel, double *score)
{
    struct read_chunk c = read_world_chunk(w, head);
    int32_t n = n_query < c.n_tok ? n_query : c.n_tok, n_vote = c.n + c.n_tok - n;
    double vote[MAX_ENTRIES] = {0};
    for (int32_t t = c.n_tok - n; t < c.n_tok; t++)
        for (int32_t g = 0; g < c.n_group; g++)
            add_softmax(w, head, c.q + (size_t)t * c.q_stride + (size_t)(g * w->problem->dim),
                        c.n + t + 1, vote);
    for (int32_t s = 0; s < c.n; s++) {
        double sum = 0.0, best = -INFINITY;
        for (int32_t i = s - kernel / 2; i < s - kernel / 2 + kernel; i++) {
            if (i < 0 || i >= n_vote)
                continue;
            sum += vote[i];
            best = fmax(best, vote[i]);
        }
        score[s] = (max ? best : sum / kernel) / (n * c.n_group);
    }
}

static void reference_keydiff(const struct read_world *w, int32_t head, double *score)
{
    int32_t n = w->problem->n, dim = w->problem->dim;
    double anchor[MAX_DIM] = {0}, aa = 0.0;
    float k[MAX_DIM];
    for (int32_t s = 0; s < n; s++) {
        kv_lane_key(w->kv, 0, head, s, k);
        for (int32_t d = 0; d < dim; d++)
            anchor[d] += (double)k[d] / sqrt(dot(k, k, dim)) / n;
    }
    for (int32_t d = 0; d < dim; d++)
        aa += anchor[d] * anchor[d];
    for (int32_t s = 0; s < n; s++) {
        double ka = 0.0;
        kv_lane_key(w->kv, 0, head, s, k);
        for (int32_t d = 0; d < dim; d++)
            ka += (double)k[d] * anchor[d];
        score[s] = -ka / sqrt(dot(k, k, dim) * aa);
    }
}

static const struct read_problem shapes[] = {
    {.n_q = 8, .n_kv = 2, .dim = 64, .chunk = 33, .n = 150, .scale = 0.25f},
    {.n_q = 3, .n_kv = 3, .dim = 48, .chunk = 70, .n = 97, .scale = 0.5f},
    {.n_q = 6, .n_kv = 1, .dim = 24, .chunk = 9, .n = 70, .scale = 0.3f},
    {.n_q = 40, .n_kv = 1, .dim = 32, .chunk = 20, .n = 131, .scale = 0.1f},
    {.n_q = 4, .n_kv = 2, .dim = 128, .chunk = 1, .n = 130, .scale = 0.2f},
};

static const struct form {
    const struct read_policy *policy;
    const char *options;
    int32_t n_query;
    bool other; /* logits; the largest of neighbours */
    int32_t kernel;
} forms[] = {
    {&read_sampleattention, "", 16, false, 0},
    {&read_sampleattention, "queries=7", 7, false, 0},
    {&read_sampleattention, "queries=20,weigh=logits", 20, true, 0},
    {&read_snapkv, "", 64, false, 5},
    {&read_snapkv, "queries=4,kernel=8", 4, false, 8},
    {&read_snapkv, "queries=11,pool=max,kernel=7", 11, true, 7},
    {&read_keydiff, "", 0, false, 0},
};

static void reference(const struct read_world *w, const struct form *f, int32_t head, double *score)
{
    if (f->policy == &read_sampleattention)
        reference_sample(w, head, f->n_query, f->other, score);
    else if (f->policy == &read_snapkv)
        reference_snapkv(w, head, f->n_query, f->other, f->kernel, score);
    else
        reference_keydiff(w, head, score);
}

static enum kv_type type_for(const struct read_problem *p, size_t i)
{
    return read_type((int32_t)(i + i / 7), p->dim);
}

TEST(scores_agree_with_doubles)
{
    uint64_t rng = 21;
    for (size_t i = 0; i < PI_LEN(shapes) * PI_LEN(forms); i++) {
        struct read_problem p = shapes[i % PI_LEN(shapes)];
        const struct form *f = &forms[i / PI_LEN(shapes)];
        struct read_world w;
        float score[MAX_ENTRIES];
        double want[MAX_ENTRIES];
        read_problem_random(&p, &rng);
        read_world_open(&w, &p, f->policy, f->options, type_for(&p, i));
        for (int32_t h = 0; h < p.n_kv; h++) {
            read_world_score(&w, h, score);
            reference(&w, f, h, want);
            for (int32_t s = 0; s < p.n; s++)
                near(score[s], want[s], 3e-6);
        }
        read_world_close(&w);
        read_problem_free(&p);
    }
}

TEST(needs_no_index)
{
    for (size_t i = 0; i < PI_LEN(forms); i++) {
        struct kv_geometry g = {
            .n_layer = 1, .n_head = 1, .dim_k = 32, .dim_v = 32, .page_len = 16};
        struct read_config config;
        check(read_config_set(forms[i].policy, forms[i].options, &config, &err), &err);
        check(read_config_fit(&config, &g, &err), &err);
        assert_int_equal(g.index, KV_INDEX_ROWS);
    }
}

/* ---- lanes that were changed ---- */

/* Pairs (i, i + n), turned as the positions' keys are. */
static void rotate(const struct pi_rope *rope, int32_t by, float *k)
{
    for (int32_t i = 0; i < rope->n_pair; i++) {
        double c = cos(by * rope->freq[i]), s = sin(by * rope->freq[i]);
        double a = (double)k[i], b = (double)k[i + rope->n_pair];
        k[i] = (float)(a * c - b * s);
        k[i + rope->n_pair] = (float)(a * s + b * c);
    }
}

#define SHIFT (-7)
#define GAP 9 /* positions between the entries that are shifted and the others */

/* Puts the entries before slot 48 at positions from 0, and the others and the chunk GAP positions
   later. The lanes of the world have other positions. */
static void refill(struct read_world *w, bool shifted)
{
    const struct read_problem *p = w->problem;
    size_t dim = (size_t)p->dim;
    float *k = test_calloc((size_t)p->n * dim, sizeof(float));
    kv_seq_truncate(w->kv, 0);
    check(kv_seq_reserve(w->kv, p->n + p->chunk, &err), &err);
    for (int32_t h = 0; h < p->n_kv; h++) {
        size_t past = (size_t)h * (size_t)p->n * dim, own = (size_t)h * (size_t)p->chunk * dim;
        memcpy(k, p->k + past, (size_t)p->n * dim * sizeof(float));
        for (size_t s = 0; !shifted && s < 48; s++)
            rotate(w->model.rope, SHIFT, k + s * dim);
        kv_seq_append(w->kv, 0, h, 10 + (shifted ? 0 : SHIFT), 48, k, dim, p->v + past, dim);
        kv_seq_append(w->kv, 0, h, 58 + GAP, p->n - 48, k + 48 * dim, dim, p->v + past + 48 * dim,
                      dim);
        kv_seq_append(w->kv, 0, h, 10 + p->n + GAP, p->chunk, p->kc + own, dim, p->vc + own, dim);
        if (shifted)
            kv_seq_shift(w->kv, 0, h, 48, SHIFT);
    }
    test_free(k);
}

/* Keys that are read elsewhere than they were written score as if they had been written there. */
TEST(shifted_keys_score_as_if_written_there)
{
    uint64_t rng = 22;
    double freq[16];
    struct pi_rope rope = {.n_pair = 16, .freq = freq, .magnitude = 1.0f};
    for (int32_t i = 0; i < 16; i++)
        freq[i] = pow(1000.0, -i / 16.0);
    for (size_t i = 0; i < PI_LEN(forms); i++) {
        struct read_problem p = {
            .n_q = 4, .n_kv = 2, .dim = 32, .chunk = 18, .n = 90, .scale = 0.3f};
        float score[2][MAX_ENTRIES];
        struct read_world w;
        read_problem_random(&p, &rng);
        read_world_open(&w, &p, forms[i].policy, forms[i].options, KV_TYPE_F32);
        w.model.rope = &rope;
        struct read_chunk c = read_world_chunk(&w, 1);
        c.pos0 = 10 + p.n + GAP;
        for (int32_t shifted = 0; shifted < 2; shifted++) {
            refill(&w, shifted == 1);
            read_world_score_chunk(&w, &c, score[shifted]);
        }
        for (int32_t s = 0; s < p.n; s++)
            near(score[0][s], score[1][s], 3e-6);
        read_world_close(&w);
        read_problem_free(&p);
    }
}

/* An entry that took the place of another is a neighbour of those beside it in the text. */
TEST(overwritten_entries_are_neighbours_by_position)
{
    enum { PLACE = 37 };
    uint64_t rng = 23;
    for (size_t i = 0; i < PI_LEN(forms); i++) {
        struct read_problem p = {
            .n_q = 4, .n_kv = 1, .dim = 32, .chunk = 18, .n = 90, .scale = 0.3f};
        size_t dim = (size_t)p.dim;
        float plain[MAX_ENTRIES], moved[MAX_ENTRIES];
        struct read_world w;
        read_problem_random(&p, &rng);
        read_world_open(&w, &p, forms[i].policy, forms[i].options, KV_TYPE_F32);
        read_world_score(&w, 0, plain);
        /* The last entry before the chunk goes to PLACE, where one of no interest was. */
        kv_seq_truncate(w.kv, 0);
        check(kv_seq_reserve(w.kv, p.n + p.chunk, &err), &err);
        kv_seq_append(w.kv, 0, 0, 0, PLACE, p.k, dim, p.v, dim);
        kv_seq_append(w.kv, 0, 0, PLACE, 1, p.kc, dim, p.vc, dim);
        kv_seq_append(w.kv, 0, 0, PLACE + 1, p.n - 1 - PLACE, p.k + PLACE * dim, dim,
                      p.v + PLACE * dim, dim);
        kv_seq_set_victim(w.kv, 0, 0, PLACE);
        kv_seq_append(w.kv, 0, 0, p.n, 1, p.k + (size_t)(p.n - 1) * dim, dim,
                      p.v + (size_t)(p.n - 1) * dim, dim);
        kv_seq_append(w.kv, 0, 0, p.n + 1, p.chunk, p.kc, dim, p.vc, dim);
        struct read_chunk c = read_world_chunk(&w, 0);
        c.pos0 = p.n + 1;
        read_world_score_chunk(&w, &c, moved);
        for (int32_t s = 0; s < p.n; s++)
            near(moved[s == p.n - 1 ? PLACE : s < PLACE ? s : s + 1], plain[s], 3e-6);
        read_world_close(&w);
        read_problem_free(&p);
    }
}

/* A chunk does not see the tokens after it in the same pass. */
TEST(does_not_see_behind_the_chunk)
{
    uint64_t rng = 24;
    for (size_t i = 0; i < PI_LEN(forms); i++) {
        struct read_problem p = {
            .n_q = 4, .n_kv = 1, .dim = 32, .chunk = 40, .n = 90, .scale = 0.3f};
        struct read_problem first;
        float alone[MAX_ENTRIES], before[MAX_ENTRIES];
        struct read_world w;
        read_problem_random(&p, &rng);
        read_world_open(&w, &p, forms[i].policy, forms[i].options, KV_TYPE_F32);
        first = p;
        first.chunk = 18; /* the queries of w are rows of all heads, token after token */
        w.problem = &first;
        read_world_score(&w, 0, before);
        kv_seq_truncate(w.kv, p.n + first.chunk);
        read_world_score(&w, 0, alone);
        assert_memory_equal(alone, before, (size_t)p.n * sizeof(float));
        w.problem = &p;
        read_world_close(&w);
        read_problem_free(&p);
    }
}

/* ---- levels and extremes ---- */

TEST(every_level_gives_the_same_scores)
{
    uint64_t rng = 25;
    for (size_t i = 0; i < PI_LEN(shapes) * PI_LEN(forms); i++) {
        struct read_problem p = shapes[i % PI_LEN(shapes)];
        const struct form *f = &forms[i / PI_LEN(shapes)];
        float scalar[3][MAX_ENTRIES], other[MAX_ENTRIES];
        struct read_world w;
        read_problem_random(&p, &rng);
        for (int level = 0; level < PI_CPU_N_LEVEL; level++) {
            const char *name = pi_cpu_level_name((enum pi_cpu_level)level);
            if (pith_cpu_level_set(name, NULL) != PITH_OK)
                continue;
            read_world_open(&w, &p, f->policy, f->options, type_for(&p, i + 1));
            for (int32_t h = 0; h < p.n_kv; h++) {
                float *score = level == PI_CPU_SCALAR ? scalar[h] : other;
                read_world_score(&w, h, score);
                if (memcmp(score, scalar[h], (size_t)p.n * sizeof(float)) != 0)
                    fail_msg("%s: %s: scores differ from the scalar level's", f->policy->name,
                             name);
            }
            read_world_close(&w);
        }
        assert_int_equal(pith_cpu_level_set(NULL, NULL), PITH_OK);
        read_problem_free(&p);
    }
}

/* Keys of zeros, and such as have no square in a float, give numbers all the same. */
TEST(extreme_keys_give_numbers)
{
    static const float sizes[] = {0.0f, 1e-30f, 1e25f, 2e38f};
    uint64_t rng = 26;
    for (size_t i = 0; i < PI_LEN(sizes) * PI_LEN(forms); i++) {
        struct read_problem p = shapes[0];
        struct read_world w;
        float score[MAX_ENTRIES];
        read_problem_random(&p, &rng);
        for (int32_t d = 0; d < p.dim * p.n * 2 / 3; d++)
            p.k[d] = fmaxf(fminf(p.k[d] * sizes[i / PI_LEN(forms)], 3e38f), -3e38f);
        read_world_open(&w, &p, forms[i % PI_LEN(forms)].policy, forms[i % PI_LEN(forms)].options,
                        KV_TYPE_F32);
        read_world_score(&w, 0, score); /* fails where one is no number */
        read_world_close(&w);
        read_problem_free(&p);
    }
}
