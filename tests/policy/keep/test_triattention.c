/*
 * The TriAttention score against the vectors of its specification, and
 * against its own formula summed term by term in double. The policy in an engine is in
 * test_triattention_rounds.c, with vector 11; vectors 1, 10 and 12, of statistics, in the tests of
 * those. Longer than most files: all vectors share its helpers.
 */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "testing.h"

#include "near.h"
#include "choose_kept.h"

#include "device/cpu/pages.h"
#include "policy/keep/rules/keep.h"
#include "policy/keep/methods/triattention_score.h"

#define VECTORS PITH_SOURCE_DIR "/tests/vectors/"
#define TOLERANCE 1e-4 /* of single precision, as the vectors say */
#define MAX_KEYS 16
#define MAX_DIM 16
#define MAX_PAIR 8

/* ---- vectors ---- */

static json_t *root, *v3_root;

static void forget_vectors(void)
{
    json_decref(root);
    json_decref(v3_root);
}

TEST_GROUP(NULL, forget_vectors);

static json_t *vector(int id)
{
    if (root == NULL)
        root = json_load_file(VECTORS "triattention.json", 0, NULL);
    assert_non_null(root);
    return json_array_get(json_object_get(root, "vectors"), (size_t)id - 1);
}

static json_t *in(int id, const char *key)
{
    json_t *v = json_object_get(json_object_get(vector(id), "inputs"), key);
    assert_non_null(v);
    return v;
}

static json_t *want(int id, const char *key)
{
    json_t *v = json_object_get(json_object_get(vector(id), "expected"), key);
    assert_non_null(v);
    return v;
}

static double at(const json_t *list, size_t i)
{
    return json_number_value(json_array_get(list, i));
}

static void floats(const json_t *list, float *out)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = (float)at(list, i);
}

/* A head's statistics and keys, as a vector gives them. */
struct problem {
    float re[MAX_PAIR], im[MAX_PAIR], abs[MAX_PAIR];
    double freq[MAX_PAIR];
    struct triattention_rope rope;
    struct stats_row row;
    float key[MAX_DIM * MAX_KEYS]; /* [dim][MAX_KEYS] rotated */
    struct triattention_keys keys;
};

static void set_rope(struct problem *p, int32_t dim, double theta)
{
    p->rope = (struct triattention_rope){
        .freq = p->freq, .n_pair = dim / 2, .dim = dim, .magnitude = 1.0f};
    p->row = (struct stats_row){p->re, p->im, p->abs, NULL};
    for (int32_t f = 0; f < dim / 2; f++)
        p->freq[f] = pow(theta, -2.0 * f / dim);
    p->keys = (struct triattention_keys){p->key, MAX_KEYS, 0};
}

/* Rotates a key to pos and puts it beside the others. */
static void add_key(struct problem *p, const double *k, double pos, double magnitude)
{
    int32_t n = p->rope.n_pair, j = p->keys.n++;
    for (int32_t f = 0; f < n; f++) {
        int32_t x = p->rope.adjacent ? 2 * f : f, y = p->rope.adjacent ? 2 * f + 1 : n + f;
        double c = magnitude * cos(p->freq[f] * pos), s = magnitude * sin(p->freq[f] * pos);
        p->key[x * MAX_KEYS + j] = (float)(k[x] * c - k[y] * s);
        p->key[y * MAX_KEYS + j] = (float)(k[x] * s + k[y] * c);
    }
    for (int32_t d = 2 * n; d < p->rope.dim; d++)
        p->key[d * MAX_KEYS + j] = (float)k[d];
}

static void load_keys(struct problem *p, int id, double magnitude)
{
    json_t *k = in(id, "k_pre"), *pos = in(id, "key_pos");
    double key[MAX_DIM];
    p->keys.n = 0;
    for (size_t i = 0; i < json_array_size(k); i++) {
        for (int32_t d = 0; d < p->rope.dim; d++)
            key[d] = at(json_array_get(k, i), (size_t)d);
        add_key(p, key, at(pos, i), magnitude);
    }
}

static void load_problem(struct problem *p, int id)
{
    set_rope(p, (int32_t)json_integer_value(in(id, "head_dim")),
             json_number_value(in(id, "theta")));
    floats(in(id, "q_mean_real"), p->re);
    floats(in(id, "q_mean_imag"), p->im);
    floats(in(id, "q_abs_mean"), p->abs);
    load_keys(p, id, 1.0);
}

static void score(const struct problem *p, struct triattention_form form, double t0, float *out)
{
    static double g[2 * MAX_PAIR * TRIATTENTION_MAX_OFFSETS];
    static float w[MAX_DIM * TRIATTENTION_MAX_OFFSETS], e[MAX_PAIR];
    float line[TRIATTENTION_MAX_OFFSETS * MAX_KEYS];
    struct triattention_plan plan;
    struct triattention_queries queries = {.w = w, .e = e};
    assert_true(triattention_plan_len(&p->rope, &form) <= PI_LEN(g));
    triattention_plan_make(&plan, &p->rope, &form, g);
    triattention_queries_add(&plan, &p->row, t0, &queries);
    assert_int_equal(queries.n, 1);
    triattention_score(&plan, &queries, &p->keys, out, MAX_KEYS, line);
}

static const struct triattention_form paper = {.offset_max = 65536};

static void dots(const struct problem *p, const float *w, float *out)
{
    for (int32_t j = 0; j < p->keys.n; j++) {
        double sum = 0.0;
        for (int32_t d = 0; d < p->rope.dim; d++)
            sum += (double)w[d] * (double)p->key[d * MAX_KEYS + j];
        out[j] = (float)sum;
    }
}

static void expect_scores(const struct problem *p, struct triattention_form form,
                          const json_t *wanted)
{
    float out[MAX_KEYS];
    score(p, form, 1024, out);
    for (int32_t i = 0; i < p->keys.n; i++)
        near((double)out[i], at(wanted, (size_t)i), TOLERANCE);
}

TEST(offsets_are_those_of_vector_3)
{
    for (size_t i = 0; i < json_array_size(in(3, "max")); i++) {
        int32_t out[TRIATTENTION_MAX_OFFSETS];
        json_t *wanted = json_array_get(want(3, "offsets"), i);
        int32_t n = triattention_offsets((int32_t)at(in(3, "max"), i), false, out);
        assert_int_equal(n, json_array_size(wanted));
        assert_int_equal(n, (int)at(want(3, "counts"), i));
        for (int32_t j = 0; j < n; j++)
            assert_int_equal(out[j], (int)at(wanted, (size_t)j));
    }
}

TEST(rotation_is_that_of_vector_2)
{
    static const char *const names[] = {"half_rotated_s1", "interleaved_rotated_s1",
                                        "half_rotated_scaled"};
    double x[8], s = json_number_value(in(2, "s"));
    for (size_t i = 0; i < 8; i++)
        x[i] = at(in(2, "x"), i);
    for (int v = 0; v < 3; v++) {
        struct problem p;
        set_rope(&p, 8, 10000.0);
        p.rope.adjacent = v == 1;
        add_key(&p, x, 37.0, v == 2 ? s : 1.0);
        for (size_t d = 0; d < 8; d++)
            near((double)p.key[d * MAX_KEYS], at(want(2, names[v]), d), 1e-6);
    }
    /* A query at a distance of 0 with one offset is the rotation of its mean. */
    struct problem p;
    float w[8];
    const double one[8] = {1, 0, 1, 0, 1, 0, 1, 0};
    set_rope(&p, 8, 10000.0);
    p.rope.magnitude = (float)s;
    for (int f = 0; f < 4; f++) {
        p.re[f] = (float)x[f];
        p.im[f] = (float)x[4 + f];
    }
    triattention_query(&p.rope, &p.row, one, 37.0, false, w);
    for (size_t d = 0; d < 8; d++)
        near((double)w[d], at(want(2, "half_rotated_scaled"), d), 1e-6);
}

TEST(scores_are_those_of_vector_4)
{
    struct problem p;
    double g[2 * MAX_PAIR];
    int32_t offset[TRIATTENTION_MAX_OFFSETS];
    float w[MAX_DIM];
    load_problem(&p, 4);
    for (int32_t j = 0; j < p.keys.n; j++)
        for (int32_t d = 0; d < 8; d++)
            near((double)p.key[d * MAX_KEYS + j],
                 at(json_array_get(in(4, "k_rotated"), (size_t)j), (size_t)d), 1e-5);
    int32_t n = triattention_offsets(65536, false, offset);
    triattention_fold(p.freq, 4, offset, n, g);
    triattention_query(&p.rope, &p.row, g, 1024, false, w);
    for (size_t f = 0; f < 4; f++) {
        near(g[2 * f], at(want(4, "G_real"), f), 1e-9);
        near(g[2 * f + 1], at(want(4, "G_imag"), f), 1e-9);
        near((double)w[f], at(want(4, "folded_query_real"), f), 1e-6);
        near((double)w[4 + f], at(want(4, "folded_query_imag"), f), 1e-6);
    }
    expect_scores(&p, paper, want(4, "score"));
    float all[MAX_KEYS];
    score(&p, paper, 1024, all);
    for (size_t i = 1; i < (size_t)p.keys.n; i++)
        assert_true(all[(int)at(want(4, "order_desc"), i - 1)] >
                    all[(int)at(want(4, "order_desc"), i)]);
    struct triattention_form form = paper;
    form.no_norm = true;
    expect_scores(&p, form, want(4, "trig_mean"));
    form = paper;
    form.no_trig = true;
    expect_scores(&p, form, want(4, "extra"));
    for (int32_t o = 0; o < n; o++) /* one distance at a time */
        for (int32_t j = 0; j < p.keys.n; j++) {
            float out[MAX_KEYS];
            double one[2 * MAX_PAIR];
            triattention_fold(p.freq, 4, &offset[o], 1, one);
            triattention_query(&p.rope, &p.row, one, 1024, false, w);
            dots(&p, w, out);
            near((double)out[j],
                 at(json_array_get(want(4, "trig_per_key_per_offset"), (size_t)j), (size_t)o),
                 TOLERANCE);
        }
}

TEST(ablations_are_those_of_vector_5)
{
    struct problem p;
    load_problem(&p, 4);
    expect_scores(&p, (struct triattention_form){.offset_max = 65536, .no_r = true},
                  want(5, "disable_mlr"));
    expect_scores(&p, (struct triattention_form){.offset_max = 65536, .no_trig = true},
                  want(5, "disable_trig"));
    expect_scores(&p,
                  (struct triattention_form){.offset_max = 65536, .no_trig = true, .no_r = true},
                  want(5, "disable_both"));
    expect_scores(&p, (struct triattention_form){.offset_max = 65536, .max_offsets = true},
                  want(5, "max_over_offsets"));
    expect_scores(&p, (struct triattention_form){.offset_max = 128}, want(5, "offset_max_128"));
    expect_scores(&p, (struct triattention_form){.offset_max = 4096}, want(5, "offset_max_4096"));
    /* The plain norm of keys is the second term of a head whose queries cancel, all of modulus
       1. */
    for (int32_t f = 0; f < 4; f++) {
        p.re[f] = p.im[f] = 0.0f;
        p.abs[f] = 1.0f;
    }
    expect_scores(&p, paper, want(5, "norm_only_unweighted_knorm"));
}

TEST(magnitudes_are_those_of_vector_6)
{
    struct problem p;
    float out[MAX_KEYS];
    load_problem(&p, 4);
    double s = json_number_value(in(6, "s"));
    p.rope.magnitude = (float)s;
    load_keys(&p, 4, s);
    for (int32_t j = 0; j < p.keys.n; j++)
        for (int32_t d = 0; d < p.rope.dim; d++)
            near((double)p.key[d * MAX_KEYS + j],
                 at(json_array_get(in(6, "k_cached"), (size_t)j), (size_t)d), 1e-5);
    expect_scores(&p, paper, want(6, "hf_score"));
    score(&p, paper, 1024, out);
    for (int32_t j = 0; j < p.keys.n; j++) /* where keys are multiplied once more than undone */
        near(s * (double)out[j], at(want(6, "vllm_score"), (size_t)j), 2 * TOLERANCE);
    triattention_standardise(out, NULL, p.keys.n);
    for (int32_t j = 0; j < p.keys.n; j++)
        near((double)out[j], at(want(6, "z_population"), (size_t)j), TOLERANCE);
}

TEST(z_scores_are_those_of_vector_7)
{
    static const char *const inputs[] = {"a", "constant"};
    static const char *const outputs[] = {"hf_a", "hf_constant"};
    static const char *const others[] = {"vllm_a", "vllm_constant"};
    for (int v = 0; v < 2; v++) {
        float x[6], y[8] = {0};
        bool may[8] = {false, true, true, true, true, true, true, false};
        floats(in(7, inputs[v]), x);
        y[0] = 1e6f; /* protected entries do not enter mean and deviation */
        memcpy(y + 1, x, sizeof(x));
        triattention_standardise(x, NULL, 6);
        triattention_standardise(y, may, 8);
        for (size_t i = 0; i < 6; i++) {
            near((double)x[i], at(want(7, outputs[v]), i), 1e-6);
            assert_true(x[i] == y[i + 1]);
            /* The other port divides by the deviation of a sample. */
            near((double)x[i] * sqrt(5.0 / 6.0), at(want(7, others[v]), i), 1e-6);
        }
        assert_true(y[0] == 0.0f && y[7] == 0.0f);
    }
}

TEST(groups_are_those_of_vector_8)
{
    struct problem p;
    float final[MAX_KEYS], raw[MAX_KEYS];
    int32_t pos[MAX_KEYS], slots[MAX_KEYS];
    set_rope(&p, 8, json_number_value(in(8, "theta")));
    load_keys(&p, 8, 1.0);
    for (size_t h = 0; h < 2; h++) {
        floats(json_array_get(in(8, "q_mean_real"), h), p.re);
        floats(json_array_get(in(8, "q_mean_imag"), h), p.im);
        floats(json_array_get(in(8, "q_abs_mean"), h), p.abs);
        score(&p, paper, 128, raw);
        for (int32_t j = 0; j < p.keys.n; j++)
            near((double)raw[j], at(json_array_get(want(8, "raw"), h), (size_t)j), TOLERANCE);
        triattention_standardise(raw, NULL, p.keys.n);
        for (int32_t j = 0; j < p.keys.n; j++)
            near((double)raw[j], at(json_array_get(want(8, "z_hf"), h), (size_t)j), TOLERANCE);
        if (h == 0)
            memcpy(final, raw, sizeof(final));
        else
            triattention_take_max(final, raw, p.keys.n);
    }
    for (int32_t j = 0; j < p.keys.n; j++) {
        near((double) final[j], at(want(8, "final_hf"), (size_t)j), TOLERANCE);
        pos[j] = (int32_t)at(in(8, "key_pos"), (size_t)j);
    }
    int32_t n_keep = (int32_t)json_integer_value(in(8, "budget"));
    assert_int_equal(n_keep, choose_kept(pos, final, p.keys.n, (struct keep_span){0, 1 << 20}, 0,
                                         p.keys.n - n_keep, slots));
    for (int32_t i = 0; i < n_keep; i++) {
        assert_int_equal(slots[i], (int)at(want(8, "keep_slots_hf"), (size_t)i));
        assert_int_equal(pos[slots[i]], (int)at(want(8, "keep_positions_hf"), (size_t)i));
    }
}

/* Rows are query heads, layer by layer: their maximum per KV head, and over layers the mean. */
TEST(selections_are_those_of_vector_9)
{
    enum { LAYERS = 2, HEADS = 4, GROUP = 2, N = 7, PREFIX = 2, KEEP = 3 };
    float z[LAYERS][HEADS / GROUP][N], row[N];
    int32_t pos[N], slots[N];
    for (int32_t i = 0; i < N; i++)
        pos[i] = i;
    for (size_t r = 0; r < LAYERS * HEADS; r++) {
        float *to = z[r / HEADS][r % HEADS / GROUP];
        floats(json_array_get(in(9, "head_matrix"), r), row);
        if (r % GROUP == 0)
            memcpy(to, row, sizeof(row));
        else
            triattention_take_max(to, row, N);
    }
    for (size_t g = 0; g < HEADS / GROUP; g++) {
        for (size_t l = 0; l < LAYERS; l++) {
            json_t *keep = json_array_get(json_array_get(want(9, "per_layer_perhead_keep"), l), g);
            choose_kept(pos, z[l][g], N, (struct keep_span){0, N}, 0, N - KEEP, slots);
            for (size_t i = 0; i < KEEP; i++)
                assert_int_equal(slots[i] + PREFIX, (int)at(keep, PREFIX + i));
        }
        for (size_t i = 0; i < N; i++) {
            row[i] = (z[0][g][i] + z[1][g][i]) / 2.0f;
            near((double)row[i], at(json_array_get(want(9, "per_head_aggregated"), g), i), 1e-6);
        }
        choose_kept(pos, row, N, (struct keep_span){0, N}, 0, N - KEEP, slots);
        for (size_t i = 0; i < KEEP; i++)
            assert_int_equal(slots[i] + PREFIX,
                             (int)at(json_array_get(want(9, "per_head_keep"), g), PREFIX + i));
        memcpy(row, z[0][g], sizeof(row)); /* a port's combine=max over layers */
        triattention_take_max(row, z[1][g], N);
        for (size_t i = 0; i < N; i++)
            near((double)row[i], at(json_array_get(want(9, "sglang_default_layer_max"), g), i),
                 1e-6);
    }
    /* The union of the heads' choices, then the best by maximum: granularity=all,combine=max. */
    memcpy(row, z[0][0], sizeof(row));
    for (size_t r = 1; r < LAYERS * HEADS / GROUP; r++)
        triattention_take_max(row, z[r / (HEADS / GROUP)][r % (HEADS / GROUP)], N);
    for (size_t i = 0; i < N; i++)
        near((double)row[i], at(want(9, "union_combined"), i), 1e-6);
    choose_kept(pos, row, N, (struct keep_span){0, N}, 0, N - KEEP, slots);
    for (size_t i = 0; i < KEEP; i++)
        assert_int_equal(slots[i] + PREFIX, (int)at(want(9, "union_keep"), PREFIX + i));
}

/* A part of v3.json, by name. */
static json_t *v3(const char *name)
{
    if (v3_root == NULL)
        v3_root = json_load_file(VECTORS "v3.json", 0, NULL);
    json_t *v = json_object_get(v3_root, name);
    assert_non_null(v);
    return v;
}

static double number(const json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static void expect_collapse(const json_t *v)
{
    struct problem p;
    double key[MAX_DIM], g[2 * MAX_PAIR];
    float out[MAX_KEYS], w[MAX_DIM], extra[MAX_KEYS];
    int32_t offset[TRIATTENTION_MAX_OFFSETS], n = (int32_t)number(v, "freq_count");
    int32_t n_offset = triattention_offsets(65536, false, offset);
    double t0 = number(v, "max_pos");
    set_rope(&p, (int32_t)number(v, "n_rot"), number(v, "rope_theta"));
    floats(json_object_get(v, "center_real"), p.re);
    floats(json_object_get(v, "center_imag"), p.im);
    floats(json_object_get(v, "center_abs"), p.abs);
    for (int32_t d = 0; d < p.rope.dim; d++)
        key[d] = at(json_object_get(v, "k_pre_rope"), (size_t)d);
    add_key(&p, key, number(v, "key_pos"), 1.0);
    triattention_fold(p.freq, n, offset, n_offset, g);
    triattention_query(&p.rope, &p.row, g, t0, false, w);
    for (int32_t f = 0; f < n; f++) {
        size_t i = (size_t)f;
        double c = at(json_object_get(v, "cos_sum"), i), s = at(json_object_get(v, "sin_sum"), i);
        double re = (double)p.re[f], im = (double)p.im[f];
        double kr = (double)p.key[f * MAX_KEYS], ki = (double)p.key[(n + f) * MAX_KEYS];
        near(p.freq[f], at(json_object_get(v, "omega"), i), 1e-9);
        near(kr, at(json_object_get(v, "k_cached"), i), 1e-5);
        near(ki, at(json_object_get(v, "k_cached"), i + (size_t)n), 1e-5);
        near(re * kr + im * ki, at(json_object_get(v, "A"), i), 1e-5);
        near(im * kr - re * ki, at(json_object_get(v, "B"), i), 1e-5);
        near((double)w[f], re * c - im * s, 1e-6);
        near((double)w[n + f], re * s + im * c, 1e-6);
    }
    for (int32_t o = 0; o < n_offset; o++)
        assert_int_equal(offset[o], (int)at(json_object_get(v, "offsets"), (size_t)o));
    score(&p, paper, t0, out);
    near((double)out[0], number(v, "score_naive"), TOLERANCE);
    near((double)out[0], number(v, "score_collapsed"), TOLERANCE);
    near((double)out[0], number(v, "score_paper_form"), TOLERANCE);
    score(&p, (struct triattention_form){.offset_max = 65536, .no_trig = true}, t0, extra);
    near((double)extra[0], number(v, "extra"), TOLERANCE);
    near((double)out[0], number(v, "score_rope_center_dot_key"), TOLERANCE);
}

/* The fork's collapsed form is the same number. */
TEST(the_collapsed_form_is_the_same_number)
{
    for (size_t c = 0; c < json_array_size(v3("collapse")); c++)
        expect_collapse(json_array_get(v3("collapse"), c));
}

/* One of "V1_evict_lowest_paper" and the like. */
static void expect_selection(const json_t *v, const char *name, const json_t *result)
{
    int32_t pos[64], slots[64], n = (int32_t)json_array_size(json_object_get(v, "positions"));
    float x[64];
    bool fork = strstr(name, "highest") != NULL;
    assert_true(n <= 64);
    for (int32_t i = 0; i < n; i++) {
        pos[i] = (int32_t)at(json_object_get(v, "positions"), (size_t)i);
        x[i] = (float)at(json_object_get(v, "scores"), (size_t)i) * (fork ? -1.0f : 1.0f);
    }
    struct keep_span span = {name[1] == '3' ? (int32_t)number(v, "prefix_protect") : 0,
                             pos[n - 1] + 1 - (int32_t)number(v, "window_size")};
    assert_int_equal(span.hi, (int)number(result, "window_threshold"));
    json_t *gone = json_object_get(result, "evicted_sorted");
    int32_t n_evict = (int32_t)number(v, "n_to_evict"), most = (int32_t)number(result, "eligible");
    n_evict = n_evict < most ? n_evict : most; /* as the fork does where a budget is too small */
    assert_int_equal(n_evict, json_array_size(gone));
    int32_t n_kept = choose_kept(
        pos, x, n, span, name[1] == '1' ? 0 : (int32_t)number(v, "n_segments"), n_evict, slots);
    assert_int_equal(n_kept, n - n_evict);
    for (int32_t i = 0, kept = 0, lost = 0; i < n; i++)
        if (kept < n_kept && slots[kept] == i)
            kept++;
        else
            assert_int_equal(pos[i], (int)at(gone, (size_t)lost++));
}

TEST(v3_selects_as_the_fork_does)
{
    int32_t n = 0;
    for (size_t c = 0; c < json_array_size(v3("selection")); c++) {
        json_t *v = json_array_get(v3("selection"), c), *result;
        const char *name;
        struct keep_rules rules = {.prefix = (int32_t)number(v, "prefix_protect"),
                                   .window = (int32_t)number(v, "window_size")};
        /* The last case is a budget that the fork overruns; here it is refused. */
        assert_int_equal(keep_rules_check(&rules, (int32_t)number(v, "budget"), 0, NULL),
                         c == 2 ? PITH_INVALID : PITH_OK);
        json_object_foreach(json_object_get(v, "results"), name, result)
        {
            expect_selection(v, name, result);
            n++;
        }
    }
    assert_int_equal(n, 18);
}

/* The storage type that V3 stacks with, bit by bit. */
TEST(q8_0_codes_are_those_of_the_fork)
{
    const struct kv_coder *codec = &kv_coders[KV_TYPE_Q8_0];
    float x[32], back[32];
    int8_t code[32];
    uint16_t scale;
    char hex[80];
    floats(json_object_get(v3("q8_0"), "x"), x);
    codec->encode(x, 32, 32, &(struct kv_row){.low = (uint8_t *)code, .scale = &scale});
    codec->decode(&(struct kv_stored_row){.low = (uint8_t *)code, .scale = &scale}, 32, 32, back);
    snprintf(hex, sizeof(hex), "0x%04x", scale);
    assert_string_equal(hex, json_string_value(json_object_get(v3("q8_0"), "d_fp16_bits")));
    int n = snprintf(hex, sizeof(hex), "%02x%02x", scale & 0xff, scale >> 8);
    for (size_t i = 0; i < 32; i++) {
        assert_int_equal(code[i], (int)at(json_object_get(v3("q8_0"), "qs"), i));
        near((double)back[i], at(json_object_get(v3("q8_0"), "dequant"), i), 1e-6);
        n += snprintf(hex + n, sizeof(hex) - (size_t)n, "%02x", (unsigned)(uint8_t)code[i]);
    }
    assert_string_equal(hex, json_string_value(json_object_get(v3("q8_0"), "block_hex")));
    assert_int_equal(n / 2, (int)number(v3("q8_0"), "block_bytes"));
    near(kv_type_bits(KV_TYPE_Q8_0, 128), number(v3("bits_per_value"), "q8_0"), 0);
    near(kv_type_bits(KV_TYPE_F16, 128), number(v3("bits_per_value"), "f16"), 0);
}

/* ---- the formula itself ---- */

/* Equation 11 term by term, in double, from keys before rotation. At positions up to a million the
   phases must be as exact as near 0. */
static double naive(const struct problem *p, const double *k, double pos, double t0,
                    const int32_t *offset, int32_t n, bool max)
{
    double best = -1e300, sum = 0.0, extra = 0.0;
    int32_t np = p->rope.n_pair;
    for (int32_t o = 0; o < n; o++) {
        double s = 0.0;
        for (int32_t f = 0; f < np; f++) {
            int32_t x = p->rope.adjacent ? 2 * f : f, y = p->rope.adjacent ? 2 * f + 1 : np + f;
            double q = hypot((double)p->re[f], (double)p->im[f]), m = hypot(k[x], k[y]);
            double phi = atan2((double)p->im[f], (double)p->re[f]) - atan2(k[y], k[x]);
            s += q * m * cos(p->freq[f] * (t0 - pos + offset[o]) + phi);
            if (o == 0)
                extra += ((double)p->abs[f] - q) * m;
        }
        best = fmax(best, s);
        sum += s;
    }
    return (max ? best : sum / n) + extra;
}

TEST(scores_agree_with_the_formula_in_double)
{
    uint64_t rng = 7;
    for (int trial = 0; trial < 200; trial++) {
        struct problem p;
        double key[MAX_KEYS][MAX_DIM], pos[MAX_KEYS];
        float out[MAX_KEYS], flat[MAX_DIM];
        int32_t n_pair = 1 + (int32_t)rng_below(&rng, 6), n_flat = 2 * (int32_t)rng_below(&rng, 3);
        int32_t offset[TRIATTENTION_MAX_OFFSETS];
        bool max = trial % 3 == 0, linear = trial % 5 == 0, use_flat = trial % 2 == 0;
        struct triattention_form form = {.offset_max = 1 << rng_below(&rng, 17),
                                         .max_offsets = max,
                                         .linear = linear,
                                         .flat = use_flat};
        double t0 = 1e6 - (double)rng_below(&rng, 900000);
        set_rope(&p, 2 * n_pair, 1e6);
        p.rope.dim = 2 * n_pair + n_flat;
        p.rope.adjacent = trial % 4 < 2;
        p.row.flat = flat;
        for (int32_t f = 0; f < n_pair; f++) {
            p.re[f] = rng_float(&rng);
            p.im[f] = rng_float(&rng);
            p.abs[f] = hypotf(p.re[f], p.im[f]) + fabsf(rng_float(&rng));
        }
        for (int32_t i = 0; i < n_flat; i++)
            flat[i] = rng_float(&rng);
        for (int32_t j = 0; j < MAX_KEYS; j++) {
            pos[j] = (double)rng_below(&rng, (uint64_t)t0);
            for (int32_t d = 0; d < p.rope.dim; d++)
                key[j][d] = (double)rng_float(&rng);
            add_key(&p, key[j], pos[j], 1.0);
        }
        score(&p, form, t0, out);
        int32_t n = triattention_offsets(form.offset_max, linear, offset);
        for (int32_t j = 0; j < MAX_KEYS; j++) {
            double wanted = naive(&p, key[j], pos[j], t0, offset, n, max);
            for (int32_t i = 0; use_flat && i < n_flat; i++)
                wanted += (double)flat[i] * key[j][2 * n_pair + i];
            near((double)out[j], wanted, 2e-5);
        }
    }
}

TEST(linear_offsets_are_evenly_spread)
{
    int32_t out[TRIATTENTION_MAX_OFFSETS];
    assert_int_equal(triattention_offsets(65536, true, out), 17);
    assert_int_equal(out[0], 1);
    assert_int_equal(out[8], 32769); /* 1 + 65535 / 2, rounded up */
    assert_int_equal(out[16], 65536);
    assert_int_equal(triattention_offsets(1, true, out), 1);
    assert_int_equal(out[0], 1);
    assert_int_equal(triattention_offsets(INT32_MAX, false, out), 31);
}

/* Sums that overflowed give no order; protected entries do not matter for that. */
TEST(infinite_scores_say_nothing)
{
    const bool may[4] = {true, true, true, false};
    float x[4] = {1, INFINITY, 3, 4}, y[4] = {1, 2, 3, INFINITY}, z[4] = {1, 2, NAN, 4};
    triattention_standardise(x, may, 4);
    triattention_standardise(y, may, 4);
    triattention_standardise(z, NULL, 4);
    for (int i = 0; i < 4; i++)
        assert_true(x[i] == 0.0f && z[i] == 0.0f);
    assert_true(y[0] < 0.0f && y[1] == 0.0f && y[2] > 0.0f && y[3] == 0.0f);
}

#define FUTURE 2000 /* queries */

/* Queries of a head about one direction in each band; how far they stray is `spread`. Adds their
   meaning to the statistics of p, and to logits the mean logit of the keys over all future
   distances. Returns the mean of R. */
static double meet(struct problem *p, double t0, double spread, uint64_t *rng, double *logits)
{
    double re[MAX_PAIR] = {0}, im[MAX_PAIR] = {0}, abs[MAX_PAIR] = {0}, r = 0.0;
    int32_t offset[TRIATTENTION_MAX_OFFSETS], n = p->rope.n_pair;
    int32_t n_offset = triattention_offsets(65536, false, offset);
    for (int t = 0; t < FUTURE; t++)
        for (int32_t f = 0; f < n; f++) {
            double a = 0.6 + 0.1 * f, b = 0.8 - 0.2 * f;
            for (int i = 0; i < 4; i++) { /* nearly a normal distribution */
                a += spread * (double)rng_float(rng);
                b += spread * (double)rng_float(rng);
            }
            re[f] += a / FUTURE;
            im[f] += b / FUTURE;
            abs[f] += hypot(a, b) / FUTURE;
            for (int32_t o = 0; o < n_offset; o++) {
                double angle = p->freq[f] * (t0 + offset[o]), c = cos(angle), s = sin(angle);
                for (int32_t j = 0; j < p->keys.n; j++)
                    logits[j] += ((a * c - b * s) * (double)p->key[f * MAX_KEYS + j] +
                                  (a * s + b * c) * (double)p->key[(n + f) * MAX_KEYS + j]) /
                                 (FUTURE * n_offset);
            }
        }
    for (int32_t f = 0; f < n; f++) {
        p->re[f] = (float)re[f];
        p->im[f] = (float)im[f];
        p->abs[f] = (float)abs[f];
        r += hypot(re[f], im[f]) / abs[f] / n;
    }
    return r;
}

static double correlate(const float *scores, const double *logits, int32_t n)
{
    double x[MAX_KEYS];
    for (int32_t j = 0; j < n; j++)
        x[j] = (double)scores[j];
    return stats_correlate(x, logits, n);
}

/* High scores are keys that will be attended, the more so the more one way queries point; the fork
   evicts these first. The queries are others than the vector's, its correlations nearly the
   same. */
TEST(high_scores_are_keys_that_will_be_attended)
{
    static const struct {
        double spread, r, full; /* the last two as v3.json's "sign_check" has them */
    } cases[] = {{0.25, 0.95, 0.9999}, {1.0, 0.6, 0.9067}, {3.0, 0.2, 0.5995}};
    for (size_t c = 0; c < PI_LEN(cases); c++) {
        struct problem p;
        double logits[MAX_KEYS] = {0}, k[MAX_DIM];
        float out[MAX_KEYS];
        uint64_t rng = 3;
        set_rope(&p, MAX_DIM, 10000.0);
        for (int j = 0; j < MAX_KEYS; j++) {
            for (int d = 0; d < MAX_DIM; d++)
                k[d] = (double)rng_float(&rng);
            add_key(&p, k, 10.0 * j, 1.0);
        }
        near(meet(&p, 200, cases[c].spread, &rng, logits), cases[c].r, 0.06);
        score(&p, paper, 200, out);
        near(correlate(out, logits, MAX_KEYS), cases[c].full, 0.05);
        score(&p, (struct triattention_form){.offset_max = 65536, .no_norm = true}, 200, out);
        assert_true(correlate(out, logits, MAX_KEYS) > 0.98);
    }
}

TEST(random_phases_keep_lengths)
{
    struct pith_stats s = {.n_pair = 3, .n_flat = 1};
    float rows[2][10] = {{3, 0, -1, 4, 2, 0, 6, 3, 1, 7}, {1, 1, 1, 0, 0, 0, 1, 1, 1, 2}};
    float out[2][10], again[2][10];
    triattention_random_phase(&s, rows[0], 2, 5, out[0]);
    triattention_random_phase(&s, rows[0], 2, 5, again[0]);
    assert_memory_equal(out, again, sizeof(out));
    for (int r = 0; r < 2; r++) {
        for (int f = 0; f < 3; f++)
            near(hypot((double)out[r][f], (double)out[r][3 + f]),
                 hypot((double)rows[r][f], (double)rows[r][3 + f]), 1e-6);
        assert_memory_equal(&out[r][6], &rows[r][6], 3 * sizeof(float));
        /* A dimension that is not rotated has two phases. */
        near(fabs((double)out[r][9]), fabs((double)rows[r][9]), 0);
    }
    assert_true(fabsf(out[0][0] - rows[0][0]) > 1e-3f || fabsf(out[0][1] - rows[0][1]) > 1e-3f);
    assert_true(out[1][0] != out[1][1]);
    int32_t n_turned = 0;
    for (uint64_t seed = 0; seed < 100; seed++) {
        triattention_random_phase(&s, rows[0], 1, seed, out[0]);
        n_turned += out[0][9] < 0.0f;
    }
    assert_true(n_turned > 30 && n_turned < 70);
}
