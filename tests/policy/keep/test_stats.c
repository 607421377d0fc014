/*
 * Calibration: the vectors of its specification, and statistics of the repository's model. They are
 * computed by hand, are the same for any split of the text, and cover the selected tokens. Also
 * refusals and centres. test_stats_files.c tests files.
 */
#define _POSIX_C_SOURCE 200809L

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "testing.h"

#include "base/mem.h"
#include "engine/engine.h"
#include "near.h"
#include "policy/keep/learn/calibrate.h"
#include "policy/keep/learn/centres.h"
#include "status.h"

#define VECTORS PITH_SOURCE_DIR "/tests/vectors/triattention.json"
#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define N_TOKEN 300

/* ---- vectors ---- */

static json_t *part(int id, const char *side, const char *key)
{
    static json_t *root;
    if (root == NULL)
        root = json_load_file(VECTORS, 0, NULL);
    assert_non_null(root);
    json_t *v = json_array_get(json_object_get(root, "vectors"), (size_t)id - 1);
    json_t *out = json_object_get(json_object_get(v, side), key);
    assert_non_null(out);
    return out;
}

static double at(const json_t *list, size_t i)
{
    return json_number_value(json_array_get(list, i));
}

/* A model of one layer and head with 8 dimensions, rotated as the vectors say. */
static double bare_freq[4] = {1.0, 0.1, 0.01, 0.001};
static char bare_name[] = "bare";

static struct pith_model bare_model(void)
{
    return (struct pith_model){
        .hp = {.n_layer = 1,
               .n_layer_kv = 1,
               .n_layer_full = 1,
               .n_head = 1,
               .n_head_kv = 1,
               .dim_k = 8,
               .dim_v = 8,
               .n_rot = 8},
        .rope = {.n_pair = 4, .freq = bare_freq, .magnitude = 1.0f},
        .name = bare_name,
    };
}

/* Statistics of queries and keys before rotation; the keys are rotated for the calibration. */
static struct pith_stats *stats_of(const struct pith_model *m, const json_t *q, const json_t *k)
{
    struct calibration *c = NULL;
    struct pith_stats *s = NULL;
    size_t n = json_array_size(q);
    float *rows = calloc(2 * n * 8, sizeof(*rows));
    assert_non_null(rows);
    for (size_t i = 0; i < n; i++)
        for (size_t d = 0; d < 8; d++) {
            rows[i * 8 + d] = (float)at(json_array_get(q, i), d);
            rows[(n + i) * 8 + d] = (float)at(json_array_get(k, i), d);
        }
    for (size_t i = 0; i < n; i++)
        for (size_t f = 0; f < 4; f++) {
            float *x = rows + (n + i) * 8 + f, a = x[0], b = x[4];
            double angle = bare_freq[f] * (double)i;
            x[0] = (float)((double)a * cos(angle) - (double)b * sin(angle));
            x[4] = (float)((double)a * sin(angle) + (double)b * cos(angle));
        }
    check(calibration_create(m, 1, 1, (int64_t)n, &c, &err), &err);
    for (size_t i = 0; i < n; i += 3) { /* in pieces of three tokens */
        pith_tap_rows piece = {.n_token = (int32_t)(n - i < 3 ? n - i : 3),
                               .pos0 = (int32_t)i,
                               .q_pre = rows + i * 8,
                               .k = rows + (n + i) * 8};
        calibration_add(c, &piece, NULL);
    }
    struct calibration_search how = {.n_thread = 1};
    check(calibration_finish(c, &how, &s, &err), &err);
    calibration_free(c);
    free(rows);
    return s;
}

/* A magnitude of rotation (YaRN) is on the keys that are given, not in the statistics, and on both
   sides of the logit. */
TEST(a_magnitude_is_on_keys_and_not_in_statistics)
{
    struct pith_model m = bare_model();
    const float rows[2][8] = {{1, 2, 3, 4, 5, 6, 7, 8}, {2, 1, 0, -1, -2, -3, -4, -5}};
    const double distance[3] = {0, 1, 40};
    double curve[3];
    float k[8];
    m.rope.magnitude = 1.5f;
    for (int f = 0; f < 4; f++) { /* the key of position 7, as it is stored */
        double angle = bare_freq[f] * 7.0, a = (double)rows[1][f], b = (double)rows[1][f + 4];
        k[f] = (float)(1.5 * (a * cos(angle) - b * sin(angle)));
        k[f + 4] = (float)(1.5 * (a * sin(angle) + b * cos(angle)));
    }
    struct calibration *c = NULL;
    struct calibration_search how = {.n_thread = 1};
    struct pith_stats *s = NULL;
    check(calibration_create(&m, 1, 1, 1, &c, &err), &err);
    pith_tap_rows piece = {.n_token = 1, .pos0 = 7, .q_pre = rows[0], .k = k};
    calibration_add(c, &piece, NULL);
    check(calibration_finish(c, &how, &s, &err), &err);
    calibration_free(c);
    near((double)s->magnitude, 1.5, 0);
    check(pith_stats_curve(s, &m, 0, 0, distance, 3, curve, &err), &err);
    for (int i = 0; i < 3; i++) {
        double sum = 0.0;
        for (int f = 0; f < 4; f++) { /* the rotated query times the key */
            double angle = bare_freq[f] * distance[i], co = cos(angle), si = sin(angle);
            double a = (double)rows[0][f] * co - (double)rows[0][f + 4] * si;
            double b = (double)rows[0][f] * si + (double)rows[0][f + 4] * co;
            sum += 1.5 * 1.5 * (a * (double)rows[1][f] + b * (double)rows[1][f + 4]);
        }
        near(curve[i], sum, 1e-4);
    }
    expect(pith_stats_curve(s, &m, 1, 0, distance, 3, curve, &err), &err, PITH_NOT_FOUND,
           "layer 1");
    pith_stats_free(s);
}

TEST(means_are_those_of_vector_1)
{
    struct pith_model m = bare_model();
    json_t *q = part(1, "inputs", "q_pre");
    struct pith_stats *s = stats_of(&m, q, q);
    struct stats_row row = stats_q(s, 0, 0), key = stats_row_at(s, s->k, 0);
    assert_int_equal(s->count[0], json_array_size(q));
    for (int32_t f = 0; f < 4; f++) {
        size_t i = (size_t)f;
        near((double)row.re[f], at(part(1, "expected", "q_mean_real"), i), 1e-6);
        near((double)row.im[f], at(part(1, "expected", "q_mean_imag"), i), 1e-6);
        near((double)row.abs[f], at(part(1, "expected", "q_abs_mean"), i), 1e-6);
        near(hypot((double)row.re[f], (double)row.im[f]), at(part(1, "expected", "q_mean_abs"), i),
             1e-6);
        near(stats_resultant(&row, f), at(part(1, "expected", "R"), i), 1e-6);
        near((1.0 - stats_resultant(&row, f)) * (double)row.abs[f],
             at(part(1, "expected", "one_minus_R_times_qabs"), i), 1e-6);
        /* The same vectors as keys, turned back. */
        near((double)key.re[f], (double)row.re[f], 1e-6);
        near((double)key.im[f], (double)row.im[f], 1e-6);
        near((double)key.abs[f], (double)row.abs[f], 1e-6);
    }
    pith_stats_free(s);
}

TEST(curves_are_those_of_vector_10)
{
    struct pith_model m = bare_model();
    json_t *q = part(10, "inputs", "q_pre"), *k = part(10, "inputs", "k_pre");
    json_t *distances = part(10, "inputs", "distances");
    struct pith_stats *s = stats_of(&m, q, k);
    struct stats_row row = stats_q(s, 0, 0), key = stats_row_at(s, s->k, 0);
    int32_t order[4], n = (int32_t)json_array_size(distances);
    double curve[16], mean = 0.0;
    for (int32_t f = 0; f < 4; f++) {
        double a = (double)row.re[f], b = (double)row.im[f];
        double c = (double)key.re[f], d = (double)key.im[f];
        near(a * c + b * d, at(part(10, "expected", "coef_cos"), (size_t)f), 1e-5);
        near(a * d - b * c, at(part(10, "expected", "coef_sin"), (size_t)f), 1e-5);
    }
    for (int32_t i = 0; i < n; i++) {
        curve[i] = stats_predict(&row, &key, bare_freq, 4, 0, at(distances, (size_t)i));
        near(curve[i], at(part(10, "expected", "predicted"), (size_t)i), 1e-5);
    }
    int first = (int)json_integer_value(part(10, "inputs", "first_query"));
    int last = (int)json_integer_value(part(10, "inputs", "last_query"));
    for (int i = first; i <= last; i++) {
        double logit[16];
        for (int32_t j = 0; j < n; j++) {
            /* One query and one key are statistics of one: their curve is the logit. */
            float rows[2][12];
            struct stats_row one[2];
            for (size_t side = 0; side < 2; side++) {
                json_t *x = json_array_get(
                    side == 0 ? q : k, (size_t)(side == 0 ? i : i - (int)at(distances, (size_t)j)));
                for (size_t d = 0; d < 8; d++)
                    rows[side][d] = (float)at(x, d);
                one[side] = (struct stats_row){rows[side], rows[side] + 4, NULL, NULL};
            }
            logit[j] = stats_predict(&one[0], &one[1], bare_freq, 4, 0, at(distances, (size_t)j));
            if (i == 100 && (int)at(distances, (size_t)j) == 5)
                near(logit[j], json_number_value(part(10, "expected", "logit_q100_k95_unscaled")),
                     1e-5);
        }
        double r = stats_correlate(logit, curve, n);
        if (i == first)
            near(r, json_number_value(part(10, "expected", "r_first")), 1e-5);
        mean += r / (last - first + 1);
    }
    near(mean, json_number_value(part(10, "expected", "rbar")), 1e-5);
    stats_dominant(&row, &key, 4, order);
    for (int32_t i = 0; i < 4; i++) {
        int32_t f = order[i];
        assert_int_equal(f, (int)at(part(10, "expected", "dominant_order"), (size_t)i));
        near((double)row.abs[f] * (double)key.abs[f],
             at(part(10, "expected", "dominant_C"), (size_t)f), 1e-5);
    }
    pith_stats_free(s);
}

/* ---- a calibration ---- */

static pith_model *model;
static pith_model_info info;
static int32_t tokens[N_TOKEN];

static void setup(void)
{
    uint64_t rng = 1;
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    pith_model_get_info(model, &info);
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&rng, (uint64_t)info.n_vocab);
}

static void teardown(void)
{
    pith_model_free(model);
}

TEST_GROUP(setup, teardown);

static pith_engine *engine_make(int32_t chunk, int32_t n_thread, const char *keep)
{
    return engine_with(
        model, (pith_engine_params){
                   .chunk = chunk, .n_thread = n_thread, .kv_tokens = N_TOKEN + 64, .keep = keep});
}

static pith_stats *calibrate(int32_t chunk, int32_t n_thread, const pith_calibrate_params *p)
{
    pith_engine *e = engine_make(chunk, n_thread, NULL);
    pith_stats *s = NULL;
    check(pith_calibrate(e, tokens, N_TOKEN, p, &s, &err), &err);
    pith_engine_free(e);
    return s;
}

static uint8_t *bytes_of(const pith_stats *s, size_t *n)
{
    uint8_t *out = NULL;
    check(stats_format(s, &out, n, &err), &err);
    return out;
}

/* Sums the queries of a head by hand. */
struct by_hand {
    double re, im, abs;
    int32_t n;
};

static bool add_by_hand(void *user, const pith_tap_rows *rows)
{
    struct by_hand *b = user;
    if (rows->layer != 1)
        return true;
    for (int32_t t = 0; t < rows->n_token; t++) { /* head 2, band 5 */
        const float *q =
            rows->q_pre + ((size_t)t * (size_t)info.n_head + 2) * (size_t)info.head_dim_k;
        double x = (double)q[5], y = (double)q[5 + info.n_rot / 2];
        b->re += x;
        b->im += y;
        b->abs += hypot(x, y);
        b->n++;
    }
    return true;
}

TEST(statistics_are_those_computed_by_hand)
{
    pith_calibrate_params p;
    pith_calibrate_params_default(&p);
    p.n_centre = 4;
    p.n_sample = 128;
    p.text = "random tokens";
    pith_stats *s = calibrate(64, 2, &p), *other = calibrate(7, 1, &p);
    size_t n, n_other;
    uint8_t *bytes = bytes_of(s, &n), *bytes_other = bytes_of(other, &n_other);
    assert_int_equal(n, n_other);
    assert_memory_equal(bytes, bytes_other, n);
    pi_mem_free(bytes_other);
    pith_stats_free(other);

    struct by_hand hand = {0};
    pith_engine *e = engine_make(100, 2, NULL);
    pith_seq *seq = seq_make(e);
    check(pith_engine_set_tap(e, add_by_hand, &hand, &err), &err);
    check(pith_seq_eval(seq, tokens, N_TOKEN, &err), &err);
    pith_seq_free(seq);
    pith_engine_free(e);
    pith_stats_head head;
    check(pith_stats_get_head(s, 1, 2, &head), &err);
    assert_int_equal(pith_stats_get_head(s, info.n_layer, 0, &head), PITH_NOT_FOUND);
    assert_int_equal(pith_stats_get_head(s, 0, info.n_head, &head), PITH_NOT_FOUND);
    assert_ptr_equal(head.key_abs, stats_k(s, 1, 2).abs);
    assert_int_equal(head.n_query, N_TOKEN);
    near((double)head.re[5], hand.re / hand.n, 1e-5);
    near((double)head.im[5], hand.im / hand.n, 1e-5);
    near((double)head.abs[5], hand.abs / hand.n, 1e-5);

    double weight = 0.0;
    for (int32_t c = 0; c < 4; c++)
        weight += (double)head.weight[c];
    near(weight, 1.0, 1e-6);
    check(pith_stats_check(s, model, &err), &err);
    pith_stats_info i;
    pith_stats_get_info(s, &i);
    assert_string_equal(i.text, "random tokens");
    assert_int_equal(i.n_token, N_TOKEN);
    assert_true(i.has_keys && i.fingerprint != 0 && i.n_centre == 4);
    pi_mem_free(bytes);
    pith_stats_free(s);
}

/* Queries and keys of one layer, after rotation. */
#define MAX_DIM 64
struct rows {
    float q[N_TOKEN][MAX_DIM]; /* of head 3 */
    float k[N_TOKEN][MAX_DIM]; /* of the KV head that it reads */
};

static bool keep_rows(void *user, const pith_tap_rows *in)
{
    struct rows *r = user;
    size_t dim = (size_t)info.head_dim_k, n_head = (size_t)info.n_head;
    size_t n_kv = (size_t)info.n_head_kv, kv = 3 / (n_head / n_kv);
    for (size_t t = 0; in->layer == 2 && t < (size_t)in->n_token; t++) {
        memcpy(r->q[(size_t)in->pos0 + t], in->q + (t * n_head + 3) * dim, dim * sizeof(float));
        memcpy(r->k[(size_t)in->pos0 + t], in->k + (t * n_kv + kv) * dim, dim * sizeof(float));
    }
    return true;
}

/* Equations 4, 24 and 25 written out: curve and correlation of head 3 of layer 2. */
TEST(reconstructs_the_published_equations)
{
    static const int32_t distance[] = {1, 2, 3, 5, 8, 12, 18, 27, 41, 62, 93, 140};
    enum { N = PI_LEN(distance) };
    static struct rows rows;
    pith_stats *s = calibrate(64, 2, NULL);
    pith_engine *e = engine_make(64, 2, NULL);
    double curve[N], x[N], r[64], mean = 0.0;
    pith_seq *seq = seq_make(e);
    check(pith_engine_set_tap(e, keep_rows, &rows, &err), &err);
    check(pith_seq_eval(seq, tokens, N_TOKEN, &err), &err);
    pith_seq_free(seq);
    struct stats_row q = stats_q(s, 2, 3), k = stats_k(s, 2, 3);
    for (int i = 0; i < N; i++) {
        double sum = 0.0;
        for (int32_t f = 0; f < s->n_pair; f++) {
            double a = hypot((double)q.re[f], (double)q.im[f]);
            double b = hypot((double)k.re[f], (double)k.im[f]);
            double phase =
                atan2((double)q.im[f], (double)q.re[f]) - atan2((double)k.im[f], (double)k.re[f]);
            sum += a * b * cos(s->freq[f] * distance[i] + phase);
        }
        x[i] = distance[i];
        check(pith_stats_curve(s, model, 2, 3, &x[i], 1, &curve[i], &err), &err);
        near(curve[i], sum, 1e-6 * (1.0 + fabs(sum)));
    }
    for (int t = N_TOKEN / 2; t < N_TOKEN; t++) {
        double sx = 0, sy = 0, sxx = 0, syy = 0, sxy = 0;
        for (int i = 0; i < N; i++) {
            double y = 0.0, c = curve[i];
            for (int32_t d = 0; d < info.head_dim_k; d++)
                y += (double)rows.q[t][d] * (double)rows.k[t - distance[i]][d];
            sx += c;
            sy += y;
            sxx += c * c;
            syy += y * y;
            sxy += c * y;
        }
        double scale = sqrt((N * sxx - sx * sx) * (N * syy - sy * sy));
        mean += (N * sxy - sx * sy) / scale / (N_TOKEN - N_TOKEN / 2);
    }
    check(pith_stats_reconstruct(s, e, tokens, N_TOKEN, r, &err), &err);
    near(r[2 * info.n_head + 3], mean, 1e-6);
    expect(pith_stats_reconstruct(s, e, tokens, 6, r, &err), &err, PITH_INVALID, "6 tokens");
    pith_engine_free(e);
    pith_stats_free(s);
}

TEST(counts_the_selected_tokens)
{
    pith_calibrate_params p;
    pith_stats *s = NULL, *all;
    const pith_range ranges[] = {{3, 10}, {64, 65}, {290, 1000}};
    pith_calibrate_params_default(&p);
    all = calibrate(64, 2, &p);
    p.select = PITH_SELECT_RANGES;
    p.ranges = ranges;
    p.n_range = 3;
    s = calibrate(50, 2, &p);
    assert_int_equal(s->count[0], 7 + 1 + 10);
    assert_int_equal(s->n_range, 3);
    assert_int_equal(s->range[2].begin, 290);
    pith_stats_free(s);
    /* Everything as one range is everything. */
    const pith_range whole[] = {{0, N_TOKEN}};
    p.ranges = whole;
    p.n_range = 1;
    s = calibrate(50, 2, &p);
    assert_memory_equal(s->q, all->q,
                        (size_t)s->n_layer * (size_t)s->n_head * stats_row_len(s) * 4);
    pith_stats_free(s);
    pith_stats_free(all);
    /* Pieces begin anew; generated tokens are counted per piece. */
    p.select = PITH_SELECT_GENERATED;
    p.n_generate = 20;
    p.n_ctx = 100;
    s = calibrate(64, 2, &p);
    assert_int_equal(s->count[2], 3 * 20);
    assert_int_equal(s->n_token, N_TOKEN + 3 * 20);
    pith_stats_free(s);
}

/* Arguments that cannot be calibrated are refused with a sentence that names them. */
TEST(refuses_what_cannot_be_calibrated)
{
    pith_calibrate_params p;
    pith_stats *s = NULL;
    pith_calibrate_params_default(&p);
    const pith_range outside[] = {{N_TOKEN, N_TOKEN + 5}}, wrong[] = {{5, 9}, {8, 12}};
    pith_engine *e = engine_make(64, 1, NULL);
    p.select = PITH_SELECT_RANGES;
    p.ranges = outside;
    p.n_range = 1;
    expect(pith_calibrate(e, tokens, N_TOKEN, &p, &s, &err), &err, PITH_INVALID, "none of the");
    p.ranges = wrong;
    p.n_range = 2;
    expect(pith_calibrate(e, tokens, N_TOKEN, &p, &s, &err), &err, PITH_INVALID, "range 1");
    p.select = PITH_SELECT_ALL;
    p.n_centre = 0;
    expect(pith_calibrate(e, tokens, N_TOKEN, &p, &s, &err), &err, PITH_INVALID, "n_centre");
    p.n_centre = N_TOKEN + 1;
    p.n_sample = N_TOKEN + 1;
    expect(pith_calibrate(e, tokens, N_TOKEN, &p, &s, &err), &err, PITH_INVALID,
           "301 centres of 300");
    p.n_centre = 2;
    p.n_sample = 1;
    expect(pith_calibrate(e, tokens, N_TOKEN, &p, &s, &err), &err, PITH_INVALID, "n_sample");
    p.select = PITH_SELECT_RANGES;
    p.n_sample = 100;
    p.ranges = NULL;
    expect(pith_calibrate(e, tokens, N_TOKEN, &p, &s, &err), &err, PITH_INVALID, "ranges: NULL");
    p.n_ctx = -1;
    expect(pith_calibrate(e, tokens, N_TOKEN, &p, &s, &err), &err, PITH_INVALID, "n_ctx: -1");
    p.n_ctx = 0;
    p.select = PITH_SELECT_GENERATED;
    p.n_generate = info.n_ctx_train;
    expect(pith_calibrate(e, tokens, N_TOKEN, &p, &s, &err), &err, PITH_INVALID, "n_generate");
    expect(pith_calibrate(e, tokens, 0, NULL, &s, &err), &err, PITH_INVALID, "n_token");
    expect(pith_calibrate(e, NULL, 1, NULL, &s, &err), &err, PITH_INVALID, "NULL");
    pith_calibrate_params_default(&p);
    p.n_ctx = 1 << 20; /* more than the engine holds */
    int32_t *many = calloc(1000, sizeof(*many));
    assert_non_null(many);
    assert_int_equal(pith_calibrate(e, many, 1000, &p, &s, &err), PITH_KV_FULL);
    assert_null(s);
    free(many);
    pith_engine_free(e);
    e = engine_make(64, 1, "streaming:budget=64,slack=16");
    expect(pith_calibrate(e, tokens, N_TOKEN, NULL, &s, &err), &err, PITH_INVALID, "keep policy");
    pith_engine_free(e);
}

/* Generated tokens give the statistics of a text of prompt and answer at the answer's tokens. */
TEST(generated_tokens_count_as_those_of_a_text)
{
    enum { N_PROMPT = 60, N_ANSWER = 20 };
    pith_calibrate_params p;
    pith_calibrate_params_default(&p);
    p.select = PITH_SELECT_GENERATED;
    p.n_generate = N_ANSWER;
    p.sample.temperature = 0.0f;
    pith_engine *e = engine_make(64, 2, NULL);
    pith_stats *s = NULL, *same = NULL;
    int32_t whole[N_PROMPT + N_ANSWER];
    check(pith_calibrate(e, tokens, N_PROMPT, &p, &s, &err), &err);
    assert_int_equal(s->count[0], N_ANSWER);
    memcpy(whole, tokens, N_PROMPT * sizeof(*whole));
    pith_seq *seq = seq_make(e);
    check(pith_seq_eval(seq, tokens, N_PROMPT, &err), &err);
    for (int32_t i = N_PROMPT; i < N_PROMPT + N_ANSWER; i++) {
        const float *logits = pith_seq_logits(seq);
        whole[i] = 0;
        for (int32_t t = 1; t < info.n_vocab; t++)
            whole[i] = logits[t] > logits[whole[i]] ? t : whole[i];
        check(pith_seq_eval(seq, &whole[i], 1, &err), &err);
    }
    pith_seq_free(seq);
    const pith_range answer[] = {{N_PROMPT, N_PROMPT + N_ANSWER}};
    p.select = PITH_SELECT_RANGES;
    p.ranges = answer;
    p.n_range = 1;
    check(pith_calibrate(e, whole, N_PROMPT + N_ANSWER, &p, &same, &err), &err);
    size_t row = stats_row_len(s) * sizeof(float), n_layer = (size_t)s->n_layer;
    assert_memory_equal(s->q, same->q, n_layer * (size_t)s->n_head * row);
    assert_memory_equal(s->k, same->k, n_layer * (size_t)s->n_head_kv * row);
    pith_stats_free(s);
    pith_stats_free(same);
    pith_engine_free(e);
}

/* Progress rises to 1, and whenever it is told to stop it stops. */
struct watch {
    double last;
    int32_t n;
    int32_t stop_at; /* call that ends it; 0: none */
};

static bool look(void *user, double fraction)
{
    struct watch *w = user;
    assert_true(fraction >= w->last && fraction <= 1.0 + 1e-9);
    w->last = fraction;
    return ++w->n != w->stop_at;
}

TEST(tells_progress_and_may_be_cancelled)
{
    pith_engine *e = engine_make(64, 1, NULL);
    for (int way = 0; way < 3; way++) { /* all, generated, centres */
        struct watch w = {0};
        pith_calibrate_params p;
        pith_stats *s = NULL;
        pith_calibrate_params_default(&p);
        p.select = way == 1 ? PITH_SELECT_GENERATED : PITH_SELECT_ALL;
        p.n_generate = 4;
        p.n_centre = way == 2 ? 3 : 1;
        p.n_ctx = 20;
        p.progress = look;
        p.progress_user = &w;
        check(pith_calibrate(e, tokens, 50, &p, &s, &err), &err);
        pith_stats_free(s);
        s = NULL;
        near(w.last, 1.0, 1e-9);
        int32_t n = w.n;
        assert_true(n >= 3);
        int64_t used = pi_mem_used(PI_MEM_OTHER);
        for (int32_t i = 1; i <= n; i++) {
            w = (struct watch){.stop_at = i};
            expect(pith_calibrate(e, tokens, 50, &p, &s, &err), &err, PITH_CANCELLED, "");
            assert_null(s);
            assert_int_equal(w.n, i);
        }
        assert_int_equal(pi_mem_used(PI_MEM_OTHER), used);
    }
    pith_engine_free(e);
}

/* Every allocation that fails is said, and leaves nothing behind. */
TEST(failing_memory_leaves_nothing)
{
    pith_calibrate_params p;
    pith_calibrate_params_default(&p);
    p.n_centre = 2;
    p.n_sample = 32;
    pith_engine *e = engine_make(64, 1, NULL);
    pith_stats *s = NULL;
    double r[64];
    int64_t used = pi_mem_used(PI_MEM_OTHER);
    for (int64_t i = 1;; i++) {
        pi_mem_fail_at(i, true);
        pith_status status = pith_calibrate(e, tokens, 100, &p, &s, &err);
        pi_mem_fail_at(0, false);
        if (status == PITH_OK)
            break;
        expect(status, &err, PITH_NOMEM, "memory");
        assert_null(s);
        assert_true(i < 200);
    }
    for (int64_t i = 1;; i++) {
        pi_mem_fail_at(i, true);
        pith_status status = pith_stats_reconstruct(s, e, tokens, 100, r, &err);
        pi_mem_fail_at(0, false);
        if (status == PITH_OK)
            break;
        expect(status, &err, PITH_NOMEM, "memory");
        assert_true(i < 200);
    }
    pith_stats_free(s);
    assert_int_equal(pi_mem_used(PI_MEM_OTHER), used);
    pith_engine_free(e);
}

/* ---- centres ---- */

TEST(finds_centres_of_separate_groups)
{
    enum { N = 600, DIM = 5, K = 3 };
    static float x[N][DIM];
    static int32_t owner[N], again[N];
    uint64_t rng = 9;
    for (int i = 0; i < N; i++)
        for (int d = 0; d < DIM; d++)
            x[i][d] = 10.0f * (float)(d == i % K) + 0.5f * rng_float(&rng);
    void *scratch = pi_mem_alloc(PI_MEM_OTHER, centres_scratch(N, DIM, K));
    assert_non_null(scratch);
    for (uint64_t seed = 0; seed < 10; seed++) {
        centres_find(x[0], N, DIM, K, seed, scratch, owner);
        centres_find(x[0], N, DIM, K, seed, scratch, again);
        assert_memory_equal(owner, again, sizeof(owner));
        assert_true(owner[0] != owner[1] && owner[1] != owner[2] && owner[0] != owner[2]);
        for (int i = K; i < N; i++) /* three clouds far from each other are three centres */
            assert_int_equal(owner[i], owner[i % K]);
    }
    memset(x, 0, sizeof(x)); /* fewer different points than centres */
    centres_find(x[0], N, DIM, K, 1, scratch, owner);
    for (int i = 0; i < N; i++)
        assert_int_equal(owner[i], 0);
    pi_mem_free(scratch);
}
