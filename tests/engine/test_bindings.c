/*
 * The functions that programs in other languages need. Objects are freed in any order and by any
 * thread, and an engine that is in a call is BUSY. A generation is pulled. The caller has stored
 * entries, rows of a pass, and probabilities without rows of logits.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/half.h"
#include "keep_engine.h"
#include "near.h"
#include "pith/inspect.h"
#include "pith/policy.h"

static void set_up(void)
{
    model_load(11);
}

TEST_GROUP(set_up, model_free);

/* ---- who frees, and when ---- */

TEST(objects_are_freed_in_any_order)
{
    pith_model *own = NULL;
    pith_engine *e = NULL;
    pith_seq *seq = NULL, *fork = NULL;
    check(pith_model_load(MODEL, NULL, &own, &err), &err);
    check(pith_engine_create(own, NULL, &e, &err), &err);
    pith_model_free(own);
    check(pith_seq_create(e, &seq, &err), &err);
    check(pith_seq_eval(seq, tokens, 20, &err), &err);
    check(pith_seq_fork(seq, &fork, &err), &err);
    pith_generation *g = NULL;
    check(pith_generation_create(fork, tokens, 25, NULL, &g, &err), &err);
    pith_engine_free(e);
    pith_seq_free(seq);
    check(pith_seq_eval(fork, tokens, 3, &err), &err);
    pith_seq_free(fork);
    pith_token token;
    assert_int_equal(pith_generation_next(g, &token, &err), PITH_INVALID);
    pith_generation_free(g);
}

struct other {
    pith_seq *seq;
    pith_seq *lost; /* freed by the other thread */
    pith_status status;
};

static void *be_other(void *user)
{
    struct other *o = user;
    o->status = pith_seq_eval(o->seq, tokens, 1, NULL);
    pith_seq_free(o->lost);
    return NULL;
}

/* In a callback: this thread, and another one. */
static bool call_back(void *user, double fraction)
{
    struct other *o = user;
    pthread_t thread;
    pith_seq *seq = NULL;
    if (fraction < 1.0 || o->lost == NULL)
        return true;
    assert_int_equal(pith_seq_truncate(o->seq, 0, &err), PITH_BUSY);
    assert_int_equal(pith_seq_create(pith_seq_engine(o->seq), &seq, NULL), PITH_BUSY);
    assert_int_equal(pthread_create(&thread, NULL, be_other, o), 0);
    pthread_join(thread, NULL);
    o->lost = NULL;
    return true;
}

TEST(an_engine_that_evaluates_is_busy)
{
    pith_engine *e = engine_make(NULL, 16, 1, 512);
    struct other o = {.status = PITH_OK};
    check(pith_seq_create(e, &o.seq, &err), &err);
    check(pith_seq_create(e, &o.lost, &err), &err);
    eval(o.lost, 0, 40);
    pith_batch_item item = {.seq = o.seq, .tokens = tokens, .n_token = 30};
    check(pith_batch_eval(e, &item, 1, call_back, &o, &err), &err);
    assert_null(o.lost);
    assert_int_equal(o.status, PITH_BUSY);
    assert_int_equal(pith_seq_length(o.seq), 30);
    pith_kv_stats kv;
    pith_engine_kv_stats(e, &kv);
    assert_int_equal(kv.n_seq, 1); /* the other went when the evaluation ended */
    pith_seq_free(o.seq);
    pith_engine_free(e);
}

/* Sequences that another thread frees. */
struct lost {
    pith_seq *seqs[20000];
    _Atomic int n_freed;
};

static void *free_lost(void *user)
{
    struct lost *lost = user;
    for (int i = 0; i < 20000; i++) {
        pith_seq_free(lost->seqs[i]);
        atomic_store(&lost->n_freed, i + 1);
    }
    return NULL;
}

TEST(a_call_never_meets_a_free)
{
    static struct lost lost;
    pith_engine *e = engine_make(NULL, 16, 1, 512);
    pith_seq *seq = seq_make(e);
    for (int i = 0; i < 20000; i++)
        check(pith_seq_fork(seq, &lost.seqs[i], &err), &err);
    pthread_t thread;
    pith_kv_stats kv;
    assert_int_equal(pthread_create(&thread, NULL, free_lost, &lost), 0);
    while (atomic_load(&lost.n_freed) < 20000)
        check(pith_seq_truncate(seq, 0, &err), &err);
    pthread_join(thread, NULL);
    pith_engine_kv_stats(e, &kv);
    assert_int_equal(kv.n_seq, 1);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* ---- a generation that is pulled ---- */

struct text {
    char bytes[4096];
    size_t len;
};

static bool add_text(void *user, const char *text, size_t len)
{
    struct text *t = user;
    assert_true(t->len + len < sizeof(t->bytes));
    memcpy(t->bytes + t->len, text, len);
    t->len += len;
    return true;
}

static pith_generate_params sampled(const pith_draft_params *draft)
{
    pith_generate_params p;
    pith_generate_params_default(&p);
    p.n_predict = 24;
    p.ignore_end = true;
    p.sample.seed = 5;
    p.draft = draft;
    return p;
}

static void pulls_what_is_pushed(const pith_draft_params *draft)
{
    pith_engine *e = engine_make(NULL, 64, 1, 1024);
    pith_seq *pushed = seq_make(e), *pulled = seq_make(e);
    pith_generate_params p = sampled(draft);
    struct text a = {.len = 0}, b = {.len = 0};
    pith_generate_result result, other;
    check(pith_generate(pushed, tokens, 30, &p, add_text, &a, &result, &err), &err);
    pith_generation *g = NULL;
    pith_token token = {0};
    int32_t n = 0;
    check(pith_generation_create(pulled, tokens, 30, &p, &g, &err), &err);
    for (;;) {
        check(pith_generation_next(g, &token, &err), &err);
        add_text(&b, token.text, token.len);
        if (token.ended)
            break;
        assert_int_equal(pith_seq_length(pulled), 30 + n); /* all but this token */
        double logprob = pith_logits_logprob(pith_seq_logits(pulled), info.n_vocab, token.id, NULL);
        assert_true(logprob <= 0.0 && logprob > -50.0);
        n++;
    }
    bool best = true;
    assert_true(pith_logits_logprob(pith_seq_logits(pulled), info.n_vocab, -1, &best) < -1e30);
    assert_false(best);
    assert_int_equal(token.reason, PITH_STOP_LENGTH);
    pith_generation_result(g, &other);
    assert_int_equal(other.n_generated, n);
    assert_int_equal(result.n_generated, n);
    assert_int_equal(other.n_draft_accepted, result.n_draft_accepted);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.bytes, b.bytes, a.len);
    assert_int_equal(pith_seq_length(pulled), pith_seq_length(pushed));
    assert_memory_equal(pith_seq_tokens(pulled), pith_seq_tokens(pushed),
                        (size_t)pith_seq_length(pushed) * sizeof(int32_t));
    check(pith_generation_next(g, &token, &err), &err); /* the end says the same again */
    assert_true(token.ended && token.id < 0 && token.len == 0);
    pith_generation_free(g);
    pith_seq_free(pulled);
    pith_seq_free(pushed);
    pith_engine_free(e);
}

TEST(a_generation_is_pulled_as_it_is_pushed)
{
    pulls_what_is_pushed(NULL);
}

TEST(with_drafts_too)
{
    pith_draft_params draft;
    pith_draft_params_default(&draft);
    draft.always = true;
    pulls_what_is_pushed(&draft);
}

TEST(a_generation_that_is_left_leaves_what_was_handed_out)
{
    pith_engine *e = engine_make(NULL, 64, 1, 1024);
    pith_seq *seq = seq_make(e);
    pith_draft_params draft;
    pith_draft_params_default(&draft);
    draft.always = true;
    pith_generate_params p = sampled(&draft);
    for (int32_t n = 1; n < 6; n++) {
        pith_generation *g = NULL;
        pith_token token;
        check(pith_seq_truncate(seq, 0, &err), &err);
        check(pith_generation_create(seq, tokens, 30, &p, &g, &err), &err);
        for (int32_t i = 0; i < n; i++)
            check(pith_generation_next(g, &token, &err), &err);
        if (n % 2 == 0)
            pith_generation_free(g);
        assert_int_equal(pith_seq_length(seq), 30 + n - 1);
        check(pith_seq_eval(seq, &token.id, 1, &err), &err);
        pith_lane_info lane; /* no token that was drafted ahead is left */
        check(pith_seq_lane(seq, 0, 0, &lane, NULL, 0), NULL);
        assert_int_equal(lane.n_entry, 30 + n);
        if (n % 2 != 0)
            pith_generation_free(g);
    }
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(a_generation_notices_that_its_sequence_went_on)
{
    pith_engine *e = engine_make(NULL, 64, 1, 1024);
    pith_seq *seq = seq_make(e);
    pith_generate_params p = sampled(NULL);
    pith_generation *g = NULL, *next = NULL;
    pith_token token;
    check(pith_generation_create(seq, tokens, 30, &p, &g, &err), &err);
    check(pith_generation_next(g, &token, &err), &err);
    check(pith_seq_eval(seq, tokens, 2, &err), &err);
    assert_int_equal(pith_generation_next(g, &token, &err), PITH_INVALID);
    check(pith_generation_create(seq, tokens, 30, &p, &next, &err), &err);
    pith_generation_free(g);
    check(pith_generation_next(next, &token, &err), &err);
    pith_generation_free(next);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* ---- entries and probabilities ---- */

struct taken {
    float *k; /* [n][n_head_kv][dim] of layer 1 */
};

static bool take_keys(void *user, const pith_tap_rows *rows)
{
    struct taken *t = user;
    size_t row = (size_t)info.n_head_kv * (size_t)info.head_dim_k;
    assert_non_null(rows->h);
    if (rows->layer == 1)
        memcpy(t->k + (size_t)rows->pos0 * row, rows->k,
               (size_t)rows->n_token * row * sizeof(float));
    return true;
}

TEST(stored_entries_are_what_was_computed)
{
    size_t dim = (size_t)info.head_dim_k, row = (size_t)info.n_head_kv * dim;
    pith_engine *e = engine_make_typed(NULL, "f32", 64, 1, 512);
    pith_seq *seq = seq_make(e);
    struct taken t = {.k = calloc(100 * row, sizeof(float))};
    float *k = calloc(100 * dim, sizeof(float)), *v = calloc(100 * dim, sizeof(float));
    check(pith_engine_set_tap(e, take_keys, &t, &err), &err);
    eval(seq, 0, 100);
    for (int32_t h = 0; h < info.n_head_kv; h++) {
        check(pith_seq_lane_entries(seq, 1, h, 10, 80, k, v), NULL);
        for (size_t i = 0; i < 80; i++)
            assert_memory_equal(k + i * dim, t.k + (i + 10) * row + (size_t)h * dim,
                                dim * sizeof(float));
        float sum = 0.0f;
        for (size_t i = 0; i < 80 * dim; i++)
            sum += fabsf(v[i]);
        assert_true(sum > 0.0f && isfinite(sum));
    }
    assert_int_equal(pith_seq_lane_entries(seq, 1, 0, 10, 91, k, v), PITH_INVALID);
    assert_int_equal(pith_seq_lane_entries(seq, info.n_layer, 0, 0, 1, k, v), PITH_INVALID);
    free(t.k);
    free(k);
    free(v);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* Bytes of n entries of a lane, whose values are one of few forms. */
static void check_raw(const char *type,
                      float (*value)(const uint8_t *row, int32_t bytes, int32_t d))
{
    size_t dim = (size_t)info.head_dim_k, n = 50;
    pith_engine *e = engine_make_typed(NULL, type, 64, 1, 512);
    pith_seq *seq = seq_make(e);
    pith_lane_form form = {.type_k = NULL};
    eval(seq, 0, 100);
    check(pith_seq_lane_raw(seq, 1, 0, 0, 0, &form, NULL, NULL), NULL);
    assert_string_equal(form.type_k, type);
    assert_string_equal(form.type_v, type);
    pith_store_info store;
    int32_t number = 0;
    while (pith_store_type(number, &store) == PITH_OK && strcmp(store.name, type) != 0)
        number++;
    assert_int_equal(form.rotated_k, store.rotated);
    assert_true(form.k_bytes == pith_store_bits(number, info.head_dim_k) * info.head_dim_k / 8);
    assert_true(form.v_bytes == pith_store_bits(number, info.head_dim_v) * info.head_dim_v / 8);
    uint8_t *raw_k = calloc(n, (size_t)form.k_bytes), *raw_v = calloc(n, (size_t)form.v_bytes);
    uint8_t *other = calloc(1, (size_t)form.v_bytes);
    float *k = calloc(n * dim, sizeof(float)), *v = calloc(n * dim, sizeof(float));
    check(pith_seq_lane_raw(seq, 1, 0, 10, (int32_t)n, &form, raw_k, raw_v), NULL);
    check(pith_seq_lane_raw(seq, 1, 0, 12, 1, NULL, NULL, other), NULL);
    assert_memory_equal(other, raw_v + (size_t)2 * (size_t)form.v_bytes, (size_t)form.v_bytes);
    check(pith_seq_lane_entries(seq, 1, 0, 10, (int32_t)n, k, v), NULL);
    for (size_t i = 0; i < n * dim && value != NULL; i++) {
        size_t row = i / dim;
        int32_t d = (int32_t)(i % dim);
        near(value(raw_k + row * (size_t)form.k_bytes, form.k_bytes, d), k[i], 0.0);
        near(value(raw_v + row * (size_t)form.v_bytes, form.v_bytes, d), v[i], 0.0);
    }
    assert_int_equal(pith_seq_lane_raw(seq, 1, 0, 60, 41, &form, NULL, NULL), PITH_INVALID);
    free(raw_k);
    free(raw_v);
    free(other);
    free(k);
    free(v);
    pith_seq_free(seq);
    pith_engine_free(e);
}

static float value_f32(const uint8_t *row, int32_t bytes, int32_t d)
{
    float x;
    (void)bytes;
    memcpy(&x, row + (size_t)d * sizeof(x), sizeof(x));
    return x;
}

/* The codes, then a scale for each 32 of them. */
static float value_q8_0(const uint8_t *row, int32_t bytes, int32_t d)
{
    uint16_t scale;
    int32_t dim = bytes / 34 * 32;
    memcpy(&scale, row + dim + d / 32 * 2, sizeof(scale));
    return pi_f32_from_f16(scale) * (float)(int8_t)row[d];
}

TEST(stored_bytes_are_the_entries)
{
    check_raw("f32", value_f32);
    check_raw("q8_0", value_q8_0);
    check_raw("turbo3", NULL);
}

/* ---- rows of a pass ---- */

struct tapped {
    float *q, *out; /* [n_head][dim] of the last token in layer 1 */
    uint64_t first; /* hash of layer 0's queries, which no storage type changes */
};

static bool take_last(void *user, const pith_tap_rows *rows)
{
    struct tapped *t = user;
    size_t n = (size_t)(info.n_head * info.head_dim_k);
    size_t last = (size_t)rows->n_token - 1;
    if (rows->layer == 0)
        t->first = pith_logits_hash(rows->q + last * n, (int32_t)n);
    if (rows->layer != 1)
        return true;
    memcpy(t->q, rows->q + last * n, n * sizeof(float));
    n = (size_t)(info.n_head * info.head_dim_v);
    memcpy(t->out, rows->out + last * n, n * sizeof(float));
    return true;
}

static struct tapped tap_with(const char *type, pith_engine **e, pith_seq **seq)
{
    struct tapped t = {.q = calloc((size_t)(info.n_head * info.head_dim_k), sizeof(float)),
                       .out = calloc((size_t)(info.n_head * info.head_dim_v), sizeof(float))};
    *e = engine_make_typed(NULL, type, 64, 2, 512);
    *seq = seq_make(*e);
    check(pith_engine_set_tap(*e, take_last, &t, &err), &err);
    eval(*seq, 0, 90);
    check(pith_engine_set_tap(*e, NULL, NULL, &err), &err);
    return t;
}

/* A query head's attention over a lane of n entries, by the textbook. */
static void attend(const float *q, const float *k, const float *v, int32_t n, float scale,
                   double *out)
{
    double sum = 0.0, most = -1e30, *w = calloc((size_t)n, sizeof(double));
    for (int32_t i = 0; i < n; i++) {
        for (int32_t d = 0; d < info.head_dim_k; d++)
            w[i] += (double)q[d] * k[i * info.head_dim_k + d] * scale;
        most = w[i] > most ? w[i] : most;
    }
    memset(out, 0, (size_t)info.head_dim_v * sizeof(*out));
    for (int32_t i = 0; i < n; i++)
        sum += w[i] = exp(w[i] - most);
    for (int32_t i = 0; i < n; i++)
        for (int32_t d = 0; d < info.head_dim_v; d++)
            out[d] += w[i] / sum * v[i * info.head_dim_v + d];
    free(w);
}

TEST(a_tap_sees_what_attention_gave)
{
    pith_engine *e, *coded;
    pith_seq *seq, *other;
    pith_attention_info how;
    struct tapped t = tap_with("f32", &e, &seq), u = tap_with("turbo3", &coded, &other);
    float *k = calloc((size_t)(90 * info.head_dim_k), sizeof(float));
    float *v = calloc((size_t)(90 * info.head_dim_v), sizeof(float));
    double *out = calloc((size_t)info.head_dim_v, sizeof(double));
    pith_model_get_attention(model, &how);
    assert_true(t.first == u.first);
    for (int32_t h = 0; h < info.n_head; h++) {
        check(pith_seq_lane_entries(seq, 1, h / (info.n_head / info.n_head_kv), 0, 90, k, v), NULL);
        attend(t.q + h * info.head_dim_k, k, v, 90, how.attn_scale, out);
        for (int32_t d = 0; d < info.head_dim_v; d++)
            near(t.out[h * info.head_dim_v + d], out[d], 1e-4 + attention_error());
    }
    free(k);
    free(v);
    free(out);
    free(t.q);
    free(t.out);
    free(u.q);
    free(u.out);
    pith_seq_free(seq);
    pith_seq_free(other);
    pith_engine_free(e);
    pith_engine_free(coded);
}

/* ---- strings ---- */

TEST(texts_of_a_model_outlive_it)
{
    pith_model *own = NULL;
    char text[5][256];
    const char *key;
    size_t len;
    int32_t n = 0;
    check(pith_model_load(MODEL, NULL, &own, &err), &err);
    assert_int_equal(pith_model_text(own, 1, &key, text[1], 2, &len), PITH_RANGE);
    assert_string_equal(key, "architecture");
    for (; pith_model_text(own, n, &key, NULL, 0, &len) != PITH_NOT_FOUND; n++) {
        assert_in_range(n, 0, 4);
        assert_in_range(len, 0, 255);
        check(pith_model_text(own, n, NULL, text[n], sizeof(text[n]), NULL), NULL);
        assert_int_equal(strlen(text[n]), len);
    }
    pith_model_free(own);
    assert_int_equal(n, 5);
    assert_string_equal(text[0], info.name);
    assert_string_equal(text[2], info.file_type);
    assert_string_equal(text[3], info.tokenizer);
}

struct rows {
    double logprob[100];
    bool best[100];
};

static bool take_row(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    struct rows *r = user;
    (void)seq;
    r->logprob[pos] = pith_logits_logprob(logits, info.n_vocab, tokens[pos + 1], &r->best[pos]);
    return true;
}

TEST(probabilities_are_those_of_rows)
{
    struct rows a, b;
    int32_t targets[100];
    pith_engine *e = engine_make(NULL, 40, 2, 512);
    pith_seq *x = seq_make(e), *y = seq_make(e);
    memset(&b, 0, sizeof(b));
    for (int32_t i = 0; i < 100; i++)
        targets[i] = i % 3 == 1 ? -1 : tokens[i + 1];
    pith_batch_item item = {.seq = x,
                            .tokens = tokens,
                            .n_token = 100,
                            .logits = PITH_LOGITS_ALL,
                            .on_logits = take_row,
                            .user = &a};
    check(pith_batch_eval(e, &item, 1, NULL, NULL, &err), &err);
    item = (pith_batch_item){.seq = y,
                             .tokens = tokens,
                             .n_token = 100,
                             .logits = PITH_LOGITS_ALL,
                             .targets = targets,
                             .logprob = b.logprob,
                             .best = b.best};
    check(pith_batch_eval(e, &item, 1, NULL, NULL, &err), &err);
    for (int32_t i = 0; i < 100; i++)
        if (targets[i] >= 0) {
            assert_memory_equal(&a.logprob[i], &b.logprob[i], sizeof(double));
            assert_int_equal(a.best[i], b.best[i]);
        } else {
            assert_true(b.logprob[i] == 0.0);
        }
    targets[5] = info.n_vocab;
    assert_int_equal(pith_batch_eval(e, &item, 1, NULL, NULL, &err), PITH_INVALID);
    pith_seq_free(x);
    pith_seq_free(y);
    pith_engine_free(e);
}
