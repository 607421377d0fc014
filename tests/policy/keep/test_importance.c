/*
 * Importance of entries: the ridge against exact solutions, and targets and a policy's map against
 * attention recomputed in plain C on the repository's model. Also the same bits for any chunk and
 * number of threads, refusals, and failing memory.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <string.h>

#include "testing.h"

#include "base/mem.h"
#include "keep_engine.h"
#include "model_maker.h"
#include "near.h"
#include "policy/keep/learn/importance_fit.h"
#include "policy/keep/learn/importance_prompt.h"
#include "policy/keep/stats/stats.h"

enum { N_TEXT = 40, N_TEXTS = 6 };

static void setup(void)
{
    model_load(11);
}

TEST_GROUP(setup, model_free);

/* ---- the ridge ---- */

/* y = 2 a - b + 3 without a penalty, and the effect of a penalty on one feature. */
TEST(ridge_solves_what_can_be_written_down)
{
    enum { N = 50 };
    double z[2 * N], block[32] = {0}, other[32] = {0}, work[16], w[3], one[2];
    float y[N];
    uint64_t rng = 5;
    for (int i = 0; i < 2 * N; i++)
        z[i] = (double)rng_float(&rng);
    for (int i = 0; i < N; i++)
        y[i] = (float)(2.0 * z[2 * i] - z[2 * i + 1] + 3.0);
    assert_true(ridge_len(2, 1) <= 32);
    struct ridge r = ridge_at(2, 1, block);
    for (int t = 0, n; t < N; t += n) { /* in parts of 7 */
        n = N - t < 7 ? N - t : 7;
        ridge_add_rows(&r, z + 2 * t, y + t, N, n, 0, 1);
        ridge_add_rows(&r, z + 2 * t, y + t, N, n, 1, 2);
        ridge_add_targets(&r, y + t, N, n);
    }
    struct ridge whole = ridge_at(2, 1, other);
    ridge_add_rows(&whole, z, y, N, N, 0, 2);
    ridge_add_targets(&whole, y, N, N);
    assert_memory_equal(block, other, sizeof(block));
    ridge_solve(&r, 0.0, work, w);
    near(w[0], 2.0, 1e-6);
    near(w[1], -1.0, 1e-6);
    near(w[2], 3.0, 1e-6);
    near(ridge_r2(&r, 0, w), 1.0, 1e-9);
    near(ridge_r2(&r, 0, (double[]){0.0, 0.0, r.y[0] / N}), 0.0, 1e-9);
    ridge_merge(&r, &whole);
    ridge_solve(&r, 0.0, work, w);
    near(w[0], 2.0, 1e-6);

    double sx = 0, sy = 0, sxx = 0, sxy = 0, sum = 0, all = 0;
    memset(block, 0, sizeof(block));
    r = ridge_at(1, 1, block);
    for (int i = 0; i < N; i++) {
        y[i] += rng_float(&rng);
        z[i] = z[2 * i];
        sx += z[i], sy += (double)y[i], sxx += z[i] * z[i], sxy += z[i] * (double)y[i];
    }
    ridge_add_rows(&r, z, y, N, N, 0, 1);
    ridge_add_targets(&r, y, N, N);
    ridge_solve(&r, 4.0, work, one);
    near(one[0], (sxy - sx * sy / N) / (sxx - sx * sx / N + 4.0), 1e-9);
    near(one[1], sy / N - one[0] * sx / N, 1e-9);
    for (int i = 0; i < N; i++) {
        sum += pow((double)y[i] - one[0] * z[i] - one[1], 2.0);
        all += pow((double)y[i] - sy / N, 2.0);
    }
    near(ridge_r2(&r, 0, one), 1.0 - sum / all, 1e-9);
}

/* ---- calibrations ---- */

static pith_importance_params params_of(pith_importance_text *texts, int32_t n)
{
    pith_importance_params p;
    for (int32_t i = 0; i < n; i++)
        texts[i] = (pith_importance_text){tokens + 50 * i, N_TEXT - i};
    pith_importance_params_default(&p);
    p.texts = texts;
    p.n_text = n;
    return p;
}

static pith_stats *calibrate(const pith_importance_params *p, int32_t chunk, int32_t n_thread)
{
    pith_engine *e = engine_make_typed(NULL, "f32", chunk, n_thread, 256);
    pith_stats *s = NULL;
    check(pith_calibrate_importance(e, p, &s, &err), &err);
    pith_engine_free(e);
    return s;
}

/* The data of a layer of a sequence. */
struct rows {
    int32_t layer;
    float h[256][512];
    float q[256][512];
    float k[256][512];
    float v[256][512];
};

static void keep_rows(void *user, const struct pi_pass_tap_rows *in)
{
    struct rows *r = user;
    const struct pi_hparams *hp = &((const struct pith_model *)model)->hp;
    size_t n_q = (size_t)(hp->n_head * hp->dim_k), n_k = (size_t)(hp->n_head_kv * hp->dim_k);
    size_t n_v = (size_t)(hp->n_head_kv * hp->dim_v), n_h = (size_t)hp->n_embd;
    for (size_t t = 0; in->layer == r->layer && t < (size_t)in->item->n_tok; t++) {
        size_t pos = (size_t)in->item->pos0 + t;
        memcpy(r->h[pos], in->h + t * n_h, n_h * sizeof(float));
        memcpy(r->q[pos], in->q + t * n_q, n_q * sizeof(float));
        memcpy(r->k[pos], in->k + t * n_k, n_k * sizeof(float));
        memcpy(r->v[pos], in->v + t * n_v, n_v * sizeof(float));
    }
}

/* |Wo_h v| by the product itself. */
static double wo_norm(int32_t layer, int32_t head, const float *v)
{
    const struct pith_model *m = model;
    float row[512];
    double sum = 0.0;
    for (int32_t i = 0; i < m->hp.n_embd; i++) {
        pi_matmul_unpack_row(&m->layer[layer].attn.wo, i, row);
        sum += pow(dot(row + head * m->hp.dim_v, v, m->hp.dim_v), 2.0);
    }
    return sqrt(sum);
}

/* The target of the entry at position i in a lane: the definition, term by term. */
static double target_of(const struct rows *r, int32_t head, int32_t i, int32_t query_begin,
                        int32_t n)
{
    const struct pi_hparams *hp = &((const struct pith_model *)model)->hp;
    int32_t n_group = hp->n_head / hp->n_head_kv;
    double most = 0.0;
    for (int32_t h = head * n_group; h < (head + 1) * n_group; h++) {
        double norm = wo_norm(r->layer, h, r->v[i] + head * hp->dim_v);
        for (int32_t j = query_begin; j < n; j++) {
            double sum = 0.0, own = 0.0;
            for (int32_t t = 0; t <= j; t++) {
                double x = exp((double)hp->attn_scale *
                               dot(r->q[j] + h * hp->dim_k, r->k[t] + head * hp->dim_k, hp->dim_k));
                sum += x;
                own = t == i ? x : own;
            }
            most = fmax(most, own / sum * norm / sqrt(dot(r->h[j], r->h[j], hp->n_embd)));
        }
    }
    return log(most);
}

/* A text is read and repeated by hand. It gives mean, deviation and extremes of the targets of each
   lane of a layer, and the line from knorm's scores. These are the negative norms of keys. */
TEST(targets_are_those_of_a_text_read_twice)
{
    static struct rows rows;
    const struct pi_hparams *hp = &((const struct pith_model *)model)->hp;
    const char *keep[] = {"knorm"};
    pith_importance_text text[1];
    pith_importance_params p = params_of(text, 1);
    struct importance_prompt prompt;
    int32_t all[256], n = 0;
    p.keep = keep;
    p.n_keep = 1;
    pith_stats *s = calibrate(&p, 16, 2);
    const struct stats_importance *m = s->importance;
    check(importance_prompt_create(model, &prompt, &err), &err);
    memcpy(all, prompt.before, (size_t)prompt.n_before * sizeof(*all));
    n = prompt.n_before;
    int32_t begin = n > 4 ? n : 4;
    memcpy(all + n, tokens, N_TEXT * sizeof(*all));
    n += N_TEXT;
    int32_t end = n;
    memcpy(all + n, prompt.middle, (size_t)prompt.n_middle * sizeof(*all));
    n += prompt.n_middle;
    int32_t query = n;
    memcpy(all + n, tokens, N_TEXT * sizeof(*all));
    n += N_TEXT;
    rows.layer = info.n_layer - 1;
    pith_engine *e = engine_make_typed(NULL, "f32", 64, 2, 256);
    pith_seq *seq = seq_make(e);
    check(pi_pass_set_tap(e->pass, &(struct pi_pass_tap){.fn = keep_rows, .user = &rows}, &err),
          &err);
    check(pith_seq_eval(seq, all, n, &err), &err);
    check(pi_pass_set_tap(e->pass, NULL, &err), &err);
    for (int32_t h = 0; h < hp->n_head_kv; h++) {
        size_t lane = (size_t)(rows.layer * hp->n_head_kv + h);
        double sum = 0, square = 0, low = INFINITY, sx = 0, sxx = 0, sxy = 0;
        for (int32_t i = begin; i < end; i++) {
            double y = target_of(&rows, h, i, query, n);
            const float *k = rows.k[i] + h * hp->dim_k;
            double x = -sqrt(dot(k, k, hp->dim_k));
            sum += y, square += y * y, sx += x, sxx += x * x, sxy += x * y;
            low = fmin(low, y);
        }
        double count = end - begin, mean = sum / count;
        near((double)m->mean[lane], mean, 1e-3);
        near((double)m->deviation[lane], sqrt(square / count - mean * mean), 1e-3);
        near((double)m->quantile[lane * (size_t)m->n_quantile], low, 1e-3);
        double slope = (sxy - sx * sum / count) / (sxx - sx * sx / count);
        slope = slope > 0.0 ? slope : 0.0;
        const struct stats_map *map = stats_find_map(s, "knorm");
        near((double)map->slope[lane], slope, 1e-3 * (1.0 + slope));
        near((double)map->intercept[lane], mean - slope * sx / count, 1e-2);
    }
    assert_int_equal(s->n_token, end - begin);
    pith_seq_free(seq);
    pith_engine_free(e);
    importance_prompt_free(&prompt);
    pith_stats_free(s);
}

static uint8_t *bytes_of(const pith_stats *s, size_t *n)
{
    uint8_t *out = NULL;
    check(stats_format(s, &out, n, &err), &err);
    return out;
}

/* Policies of every kind: entries alone, statistics, rows, weights and marks. */
TEST(chunks_and_threads_change_no_bit)
{
    const char *keep[] = {"triattention", "keydiff", "snapkv", "h2o", "longflow"};
    char path[] = "/tmp/pith-importance-XXXXXX";
    pith_importance_text text[N_TEXTS];
    pith_importance_params p = params_of(text, N_TEXTS);
    pith_importance_info i;
    pith_importance_map map;
    size_t n, n_other;
    close(mkstemp(path));
    p.hidden = true;
    p.keep = keep;
    p.n_keep = (int32_t)PI_LEN(keep);
    p.path = path;
    pith_stats *s = calibrate(&p, 64, 2), *other = calibrate(&p, 7, 1);
    uint8_t *bytes = bytes_of(s, &n), *again = bytes_of(other, &n_other);
    assert_int_equal(n, n_other);
    assert_memory_equal(bytes, again, n);
    assert_int_equal(pith_stats_get_importance(s, &i), PITH_OK);
    assert_int_equal(i.n_lane, n_lane);
    assert_int_equal(i.n_map, p.n_keep);
    assert_non_null(i.hidden_r2);
    for (int32_t k = 0; k < p.n_keep; k++) {
        assert_int_equal(pith_stats_get_map(s, k, &map), PITH_OK);
        assert_string_equal(map.policy, keep[k]);
        double most = 0.0;
        for (int32_t lane = 0; lane < n_lane; lane++)
            most = fmax(most, (double)map.slope[lane]);
        assert_true(most > 0.0);
    }
    assert_int_equal(pith_stats_get_map(s, p.n_keep, &map), PITH_NOT_FOUND);
    pith_stats *file = NULL; /* what policies read: the centres */
    check(pith_stats_load(path, &file, &err), &err);
    assert_null(file->importance);
    assert_memory_equal(file->q, s->q,
                        (size_t)s->n_layer * (size_t)s->n_head * stats_row_len(s) * sizeof(float));
    assert_int_equal(unlink(path), 0);
    pith_stats_free(file);
    pith_stats_free(s);
    pith_stats_free(other);
    pi_mem_free(bytes);
    pi_mem_free(again);
}

/* ---- what cannot be ---- */

static void refuse(const pith_importance_params *p, const char *engine_keep, const char *word)
{
    pith_engine *e = engine_make_typed(engine_keep, "f32", 32, 2, 256);
    pith_stats *s = NULL;
    expect(pith_calibrate_importance(e, p, &s, &err), &err, PITH_INVALID, word);
    assert_null(s);
    pith_engine_free(e);
}

static bool stop(void *user, double fraction)
{
    int *left = user;
    assert_true(fraction > 0.0 && fraction <= 1.0);
    return --*left > 0;
}

TEST(refuses_what_it_cannot_learn)
{
    pith_importance_text text[N_TEXTS];
    const char *keep[1];
    pith_importance_params p = params_of(text, 2), bad = p;
    bad.n_text = 0;
    refuse(&bad, NULL, "n_text: 0");
    refuse(&p, "knorm:budget=64", "an engine with policies");
    bad = p;
    bad.keep = keep;
    bad.n_keep = 1;
    keep[0] = "knorm:budget=5";
    refuse(&bad, NULL, "leave out the budget");
    keep[0] = "none";
    refuse(&bad, NULL, "the full cache");
    keep[0] = "nothing";
    refuse(&bad, NULL, "nothing");
    text[1].n_token = 3;
    refuse(&p, NULL, "text 1: 3 tokens");
    text[1].n_token = 30;
    int32_t wrong[10] = {1, 2, 3, -1};
    text[1] = (pith_importance_text){wrong, 10};
    refuse(&p, NULL, "text 1, token 3: id -1");

    p = params_of(text, 2);
    for (int after = 1;; after++) { /* cancelled at every step */
        pith_engine *e = engine_make_typed(NULL, "f32", 32, 2, 256);
        pith_stats *s = NULL;
        int left = after;
        p.progress = stop;
        p.progress_user = &left;
        pith_status status = pith_calibrate_importance(e, &p, &s, &err);
        pith_seq *seq = NULL; /* the engine goes on */
        check(pith_seq_create(e, &seq, &err), &err);
        check(pith_seq_eval(seq, tokens, 20, &err), &err);
        pith_seq_free(seq);
        pith_engine_free(e);
        pith_stats_free(s);
        if (status == PITH_OK)
            break;
        assert_int_equal(status, PITH_CANCELLED);
        assert_true(after < 100);
    }
}

/* Stopped at every step, and once with a damaged file: the same bits, in fewer tokens. */
TEST(a_calibration_that_was_stopped_goes_on)
{
    char path[] = "/tmp/pith-resume-XXXXXX";
    pith_importance_text text[N_TEXTS];
    pith_importance_params p = params_of(text, N_TEXTS);
    size_t n, n_again;
    pith_stats *whole = calibrate(&p, 32, 1);
    uint8_t *bytes = bytes_of(whole, &n);
    int fd = mkstemp(path), n_stop = 0;
    p.resume = path;
    for (bool done = false; !done; n_stop++) {
        pith_engine *e = engine_make_typed(NULL, "f32", 32, 1, 256);
        pith_stats *s = NULL;
        int left = 4 + n_stop;
        p.progress = stop;
        p.progress_user = &left;
        pith_status status = pith_calibrate_importance(e, &p, &s, &err);
        pith_engine_free(e);
        if (n_stop == 5) /* a byte of the first text's targets */
            assert_int_equal(pwrite(fd, "?", 1, 20), 1);
        if (n_stop == 9) /* another calibration's */
            assert_int_equal(pwrite(fd, "?", 1, 9), 1);
        done = status == PITH_OK;
        assert_true(done || status == PITH_CANCELLED);
        if (!done)
            continue;
        uint8_t *again = bytes_of(s, &n_again);
        assert_int_equal(n, n_again);
        assert_memory_equal(bytes, again, n);
        pi_mem_free(again);
        pith_stats_free(s);
    }
    assert_true(n_stop > 10);
    close(fd);
    assert_int_equal(unlink(path), 0);
    p.resume = "/nowhere/at/all";
    pith_engine *e = engine_make_typed(NULL, "f32", 32, 1, 256);
    expect(pith_calibrate_importance(e, &p, &whole, &err), &err, PITH_IO, "cannot open");
    pith_engine_free(e);
    pi_mem_free(bytes);
    pith_stats_free(whole);
}

TEST(failing_memory_loses_nothing)
{
    pith_importance_text text[1];
    pith_importance_params p = params_of(text, 1);
    const char *keep[] = {"knorm"};
    text[0].n_token = 10;
    p.keep = keep;
    p.n_keep = 1;
    p.hidden = true;
    pith_engine *e = engine_make_typed(NULL, "f32", 64, 1, 256);
    for (int64_t i = 1;; i += TEST_STRIDE) {
        pith_stats *s = NULL;
        int64_t used = pi_mem_used(PI_MEM_OTHER);
        pi_mem_fail_at(i, true);
        pith_status status = pith_calibrate_importance(e, &p, &s, &err);
        pi_mem_fail_at(0, false);
        pith_stats_free(s);
        assert_int_equal(pi_mem_used(PI_MEM_OTHER), used);
        if (status == PITH_OK) {
            assert_true(i > 50);
            break;
        }
        expect(status, &err, PITH_NOMEM, "no memory");
    }
    pith_engine_free(e);
}

/* ---- windows ---- */

/* The data of a window's lane is as long as the window, and belongs to no lane of the statistics.
   The model has the repository's tokenizer. */
TEST(windows_belong_to_no_lane_of_the_statistics)
{
    const char *path = "test_importance_windows.gguf";
    pith_importance_params p;
    pith_importance_text text[2];
    pith_stats *s = NULL;
    check(model_make_of("arch=gpt-oss layers=4 width=32 heads=2 kv_heads=1 head_dim=16 "
                        "experts=2 used=1 expert_ff=16 window=8 vocab_file=" MODEL,
                        path, &err),
          &err);
    pith_model *other = model_at(path);
    assert_int_equal(unlink(path), 0);
    pith_engine *e = engine_with(other, (pith_engine_params){.kv_tokens = 512, .n_thread = 1});
    p = params_of(text, 2);
    p.hidden = true;
    check(pith_calibrate_importance(e, &p, &s, &err), &err);
    assert_int_equal(s->importance->n_layer, 2);
    pith_stats_free(s);
    pith_engine_free(e);
    pith_model_free(other);
}
