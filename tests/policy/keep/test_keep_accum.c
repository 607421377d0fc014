/*
 * The policies that add attention up as it is computed (h2o, vatp, scissorhands, raas,
 * lazyeviction), each called on a lane that is made by hand. They are compared with the vectors of
 * the authors' formulas, and with a plain computation that stores every row. On a model:
 * test_keep_accum_model.c.
 */
#include <math.h>
#include <string.h>

#include "testing.h"

#include "choose_kept.h"
#include "device/cpu/note.h"
#include "kv_check.h"
#include "policy/keep/rules/keep.h"
#include "status.h"
#include "kv_shape.h"

#define DIM 4
#define MAX_LEN 700

/* A cache of one lane, of f32 entries, under one policy. */
struct hand {
    struct kv_cache *cache;
    struct kv_seq *kv;
    struct keep_config config;
    struct policy_model model;
    struct keep_view view;
    int32_t pos[MAX_LEN]; /* of the lane's entries */
    int32_t n;
};

static void make(struct hand *t, const struct keep_policy *policy, const char *options,
                 int32_t n_group)
{
    memset(t, 0, sizeof(*t));
    t->model = (struct policy_model){
        .g = {1, 1, DIM, DIM, 16, KV_TYPE_F32, KV_TYPE_F32}, .n_group = n_group, .scale = 0.5f};
    check(keep_config_set(policy, options, &t->config, &err), &err);
    t->cache = kv_check_cache(&t->model.g, MAX_LEN / 16 + 2);
    kv_cache_set_marks(t->cache, policy->n_mark(&t->config.params),
                       (policy->needs(&t->config.params) & KEEP_NEED_VALUE_NORM) != 0);
    check(kv_seq_create(t->cache, &t->kv, &err), &err);
    t->view = (struct keep_view){.kv = t->kv, .model = &t->model};
}

static void drop(struct hand *t)
{
    kv_seq_free(t->kv);
    kv_cache_free(t->cache);
}

/* The next n tokens, whose keys and values are given; rows of DIM. */
static void append(struct hand *t, int32_t n, const float *k, const float *v)
{
    check(kv_seq_reserve(t->kv, n, &err), &err);
    kv_seq_append(t->kv, 0, 0, t->view.n_token, n, k, DIM, v, DIM);
    for (int32_t i = 0; i < n; i++)
        t->pos[t->n++] = t->view.n_token++;
}

static void append_any(struct hand *t, int32_t n)
{
    float row[DIM];
    for (int32_t i = 0; i < n; i++) {
        kv_check_row((uint64_t)t->view.n_token, row, DIM);
        append(t, 1, row, row);
    }
}

/* Shows the weights [n_group][stride] that the token at pos gave to the first n entries. */
static void attend(struct hand *t, int32_t pos, int32_t n, const float *weight, size_t stride)
{
    struct keep_view view = t->view;
    struct kv_note notes[KV_NOTE_ROOM];
    int32_t n_note = keep_mark_notes(&t->config, &view, 0, 0, notes);
    const struct cpu_noted noted = {
        .weight = weight, .stride = stride, .n_group = t->model.n_group, .n = n, .pos = pos};
    struct keep_attention a = {
        .n = n, .pos = pos, .n_group = t->model.n_group, .weight = weight, .stride = stride};
    view.n_token = pos + 1;
    for (int32_t i = 0; i < n_note; i++)
        cpu_note_token(&notes[i], &noted);
    if (n_note == 0)
        t->config.policy->attended(&t->config.params, &view, &a);
}

static void score(struct hand *t, float *out)
{
    bool evictable[MAX_LEN];
    memset(evictable, 1, sizeof(evictable));
    struct keep_lane lane = {.n = t->n, .pos = t->pos, .evictable = evictable, .n_evictable = t->n};
    t->config.policy->score(&t->config.params, &t->view, &lane, out);
}

static void step(struct hand *t, float *out)
{
    const struct keep_lane lane = {.n = t->n};
    assert_true(t->config.policy->scores_steps);
    t->config.policy->score(&t->config.params, &t->view, &lane, out);
}

static void compact(struct hand *t, const int32_t *slots, int32_t n)
{
    check(kv_seq_compact(t->kv, 0, 0, slots, n, &err), &err);
    for (int32_t i = 0; i < n; i++)
        t->pos[i] = t->pos[slots[i]];
    t->n = n;
}

/* Weights of a query group at random, of which most are small: [n_group][stride], each row's sum is
   1 over n. */
static void random_rows(uint64_t *rng, int32_t n_group, int32_t n, size_t stride, float *weight)
{
    memset(weight, 0, (size_t)n_group * stride * sizeof(*weight));
    for (int32_t g = 0; g < n_group; g++) {
        float *row = weight + (size_t)g * stride, sum = 0.0f;
        for (int32_t i = 0; i < n; i++)
            sum += row[i] = expf(4.0f * rng_float(rng));
        for (int32_t i = 0; i < n; i++)
            row[i] /= sum;
    }
}

/* ---- h2o and vatp against their vectors ---- */

/* Inputs of the vectors "h2o" and "vatp": a prompt of four tokens and three steps. */
static const float prompt_q[4][DIM] = {{0.75f, -1.75f, 1.0f, -0.75f},
                                       {1.875f, -2.0f, 1.125f, -0.75f},
                                       {1.0f, -1.75f, -1.625f, 0.75f},
                                       {1.5f, 0.25f, -1.0f, -0.875f}};
static const float prompt_k[4][DIM] = {{1.5f, -1.375f, -0.625f, -1.625f},
                                       {1.25f, 2.0f, 1.0f, -0.625f},
                                       {2.0f, 0.875f, 1.25f, 0.375f},
                                       {1.625f, -1.75f, 0.875f, 1.125f}};
static const float prompt_v[4][DIM] = {{1.5f, 1.25f, -0.75f, -1.75f},
                                       {0.625f, 0.5f, 1.75f, 1.0f},
                                       {-0.75f, -1.375f, 1.125f, 1.0f},
                                       {-1.0f, 1.625f, -0.25f, -1.125f}};
static const float step_q[3][DIM] = {{-1.375f, -1.0f, -1.875f, 0.75f},
                                     {-2.0f, -0.875f, 1.75f, 0.375f},
                                     {-1.75f, 0.375f, 1.25f, 0.875f}};
static const float step_k[3][DIM] = {
    {0.25f, 0.5f, 1.25f, 1.0f}, {-1.75f, 2.0f, 1.375f, 1.5f}, {-1.5f, -1.0f, 0.625f, -0.625f}};
static const float step_v[3][DIM] = {{-2.0f, -0.625f, 1.0f, 0.75f},
                                     {1.625f, -0.75f, -0.75f, -1.5f},
                                     {0.75f, -1.375f, -0.375f, -1.25f}};

/* Softmax of q over the first n entries of the lane, in double. */
static void softmax(const struct hand *t, const float *q, int32_t n, float *out)
{
    double x[MAX_LEN], max = -INFINITY, sum = 0.0;
    float k[DIM];
    for (int32_t i = 0; i < n; i++) {
        x[i] = 0.0;
        kv_lane_key(t->kv, 0, 0, i, k);
        for (int32_t d = 0; d < DIM; d++)
            x[i] += 0.5 * q[d] * k[d];
        max = fmax(max, x[i]);
    }
    for (int32_t i = 0; i < n; i++)
        sum += x[i] = exp(x[i] - max);
    for (int32_t i = 0; i < n; i++)
        out[i] = (float)(x[i] / sum);
}

struct vector {
    double prompt[4];
    double score[3][5]; /* after each step, NAN for protected entries */
    int32_t evicted[3];
};

/* Two heavy and two recent entries: each step adds its row, then one of five entries goes. */
static void replay(const struct keep_policy *policy, const char *options, int32_t n_sink,
                   const struct vector *want)
{
    struct hand t;
    float weight[16] = {0}, got[5], at_step[5];
    make(&t, policy, options, 1);
    append(&t, 4, &prompt_k[0][0], &prompt_v[0][0]);
    for (int32_t i = 0; i < 4; i++) {
        memset(weight, 0, sizeof(weight));
        softmax(&t, prompt_q[i], i + 1, weight);
        attend(&t, i, i + 1, weight, 16);
    }
    score(&t, got);
    for (int32_t i = 0; i < 4; i++)
        if (want->prompt[i] == want->prompt[i] && fabs(got[i] - want->prompt[i]) > 1e-6)
            fail_msg("%s: entry %d: %.9f is not %.9f", policy->name, i, got[i], want->prompt[i]);
    assert_int_equal(keep_window_at(&t.config.rules, 4), 2);
    assert_int_equal(t.config.rules.sinks, n_sink);
    for (int32_t s = 0; s < 3; s++) {
        int32_t slots[5];
        append(&t, 1, step_k[s], step_v[s]);
        softmax(&t, step_q[s], 5, weight);
        attend(&t, 4 + s, 5, weight, 16);
        score(&t, got);
        step(&t, at_step);
        for (int32_t i = 0; i < 5; i++) {
            assert_true(at_step[i] == got[i]);
            double x = want->score[s][i];
            if (x == x && fabs(got[i] - x) > 1e-6 * fmax(1.0, fabs(x)))
                fail_msg("%s: step %d, entry %d: %.9f is not %.9f", policy->name, s, i, got[i], x);
        }
        struct keep_span span = {n_sink > 0 ? t.pos[n_sink - 1] + 1 : 0, t.view.n_token - 2};
        int32_t last = want->evicted[s], n_before = t.n;
        assert_int_equal(choose_kept(t.pos, got, 5, span, 0, 1, slots), 4);
        compact(&t, slots, 4);
        assert_int_equal(n_before, 5);
        for (int32_t i = 0; i < 4; i++)
            assert_true(t.pos[i] != last);
    }
    static const int32_t left[4] = {0, 3, 5, 6};
    assert_memory_equal(t.pos, left, sizeof(left));
    drop(&t);
}

/* tests/vectors/longflow.json, "h2o" and "vatp" (FMInference/H2O utils_real_drop,
   guozhiyu/vatp). */
TEST(h2o_and_vatp_score_as_their_authors_do)
{
    static const struct vector h2o = {
        {3.4120322096, 0.2590050672, 0.2475392073, 0.081423516},
        {{3.8391629162, 0.2887609713, 0.2834316789, 0.4063674221, 0.1822770114},
         {3.8512382695, 0.3064683063, 0.4844958481, 0.338872576, 0.7354933212},
         {3.853074889, 0.4975468399, 0.4181974405, 1.5492623927, 0.0920184527}},
        {2, 1, 4}};
    static const struct vector vatp = {
        {NAN, 1.0036446353, 1.0520416308, 0.325694064},
        {{NAN, 1.1189487638, 1.2045846355, 1.6254696885, 0.7974619251},
         {NAN, 1.2916366594, 1.9371003765, 1.4806317356, 3.392045139},
         {NAN, 1.9893043437, 1.827678018, 7.1557270948, 0.3450691976}},
        {1, 2, 4}};
    replay(&keep_h2o, "budget=4", 0, &h2o);
    replay(&keep_vatp, "budget=4,sinks=1", 1, &vatp);
}

/* ---- h2o ---- */

/* Three query heads share a KV head, over several blocks of entries. Prompts come in chunks whose
   later tokens are not visible yet, and an entry is evicted. */
TEST(h2o_adds_the_rows_of_a_group)
{
    enum { N = 300, G = 3, STRIDE = 304 };
    static const char *const options[] = {"group=mean", "group=max", "group=sum",
                                          "group=mean,average=on"};
    static float weight[G * STRIDE], got[N];
    for (int32_t o = 0; o < 4; o++) {
        double sum[N] = {0}, count[N] = {0};
        uint64_t rng = 7;
        struct hand t;
        make(&t, &keep_h2o, options[o], G);
        append_any(&t, N);
        for (int32_t p = 0; p < N; p++) {
            random_rows(&rng, G, p + 1, STRIDE, weight);
            attend(&t, p, p + 1, weight, STRIDE);
            for (int32_t i = 0; i <= p; i++) {
                double w[G], x = 0.0;
                for (int32_t g = 0; g < G; g++)
                    w[g] = weight[g * STRIDE + i];
                x = o == 1 ? fmax(fmax(w[0], w[1]), w[2]) : w[0] + w[1] + w[2];
                sum[i] += o == 0 || o == 3 ? x / G : x;
                count[i] += 1.0;
            }
        }
        int32_t slots[N], n = 0;
        for (int32_t i = 0; i < N; i++)
            if (i % 7 != 3) {
                sum[n] = sum[i];
                count[n] = count[i];
                slots[n++] = i;
            }
        compact(&t, slots, n);
        score(&t, got);
        for (int32_t i = 0; i < n; i++) {
            double want = o == 3 ? sum[i] / count[i] : sum[i];
            if (fabs(got[i] - want) > 1e-5 * want)
                fail_msg("%s: entry %d: %g is not %g", options[o], i, got[i], want);
        }
        drop(&t);
    }
}

/* A sum of a million small weights equals the sum in double to 3 %, as h2o.c says. Two entries that
   differ by 1 % keep their order. */
TEST(h2o_adds_a_million_small_weights)
{
    enum { N_QUERY = 1000000 };
    float weight[16] = {0}, got[3];
    double sum[3] = {0};
    uint64_t rng = 5;
    struct hand t;
    make(&t, &keep_h2o, NULL, 1);
    append_any(&t, 3);
    weight[0] = 0.9f; /* a sink, which stands still first */
    for (int32_t q = 0; q < N_QUERY; q++) {
        weight[1] = 1e-5f * (1.0f + 0.9f * rng_float(&rng));
        weight[2] = 1.01e-5f * (1.0f + 0.9f * rng_float(&rng));
        attend(&t, 2, 3, weight, 16);
        for (int32_t i = 0; i < 3; i++)
            sum[i] += weight[i];
    }
    score(&t, got);
    for (int32_t i = 0; i < 3; i++)
        if (fabs(got[i] - sum[i]) > 0.03 * sum[i])
            fail_msg("entry %d: %.9g is not %.9g", i, got[i], sum[i]);
    assert_true(fabs(got[1] - sum[1]) < 2e-4 * sum[1] && fabs(got[2] - sum[2]) < 2e-4 * sum[2]);
    assert_true(got[1] < got[2] && got[2] < got[0]);
    drop(&t);
}

/* ---- vatp ---- */

/* The norm is the stored value's, for any large number: never NaN. */
TEST(vatp_takes_norms_of_stored_values)
{
    static const float v[3][DIM] = {
        {3e38f, -3e38f, 3e38f, 3e38f}, {0.0f, 0.0f, 0.0f, 0.0f}, {1.0f, -2.0f, 0.5f, -0.25f}};
    static const float k[3][DIM];
    float weight[16] = {0.0f, 0.5f, 0.5f}, got[3];
    struct hand t;
    make(&t, &keep_vatp, NULL, 1);
    append(&t, 3, &k[0][0], &v[0][0]);
    score(&t, got);
    assert_true(got[0] == 0.0f && got[1] == 0.0f && got[2] == 0.0f);
    attend(&t, 2, 3, weight, 16);
    score(&t, got);
    assert_true(got[0] == 0.0f && got[1] == 0.0f);
    assert_true(got[2] == 0.5f * 3.75f);
    drop(&t);
}

/* ---- scissorhands ---- */

/* Counts of the last w queries with every row remembered; entries come and go between. */
static void check_counts(int32_t w, const char *group, int32_t n_group)
{
    enum { STEPS = 400, STRIDE = 416 };
    static float weight[3 * STRIDE], got[MAX_LEN];
    static bool low[STEPS][STEPS]; /* [query][position] */
    char options[64];
    uint64_t rng = (uint64_t)w;
    struct hand t;
    memset(low, 0, sizeof(low));
    snprintf(options, sizeof(options), "history=%d,group=%s", w, group);
    make(&t, &keep_scissorhands, options, n_group);
    for (int32_t p = 0; p < STEPS; p++) {
        append_any(&t, 1);
        random_rows(&rng, n_group, t.n, STRIDE, weight);
        attend(&t, p, t.n, weight, STRIDE);
        for (int32_t i = 0; i < t.n; i++) {
            float x = weight[i];
            for (int32_t g = 1; g < n_group; g++) {
                float other = weight[(size_t)g * STRIDE + (size_t)i];
                x = group[1] == 'a' ? (other > x ? other : x) : x + other;
            }
            x = group[1] == 'e' ? x * (1.0f / (float)n_group) : x;
            low[p][t.pos[i]] = x < 1.0f / (float)t.n;
        }
        if (p % 50 == 49) {
            int32_t slots[MAX_LEN], n = 0;
            for (int32_t i = 0; i < t.n; i++)
                if (rng_below(&rng, 3) > 0)
                    slots[n++] = i;
            score(&t, got);
            for (int32_t i = 0; i < t.n; i++) {
                int32_t want = 0;
                for (int32_t q = p; q >= 0 && q > p - w; q--)
                    want += low[q][t.pos[i]];
                if (got[i] != (float)-want)
                    fail_msg("%s: at %d: position %d: %g is not %d", options, p, t.pos[i], got[i],
                             -want);
            }
            compact(&t, slots, n);
        }
    }
    drop(&t);
}

TEST(scissorhands_counts_weights_below_the_mean)
{
    check_counts(37, "mean", 2);
    check_counts(32, "max", 3);
    check_counts(1, "sum", 2);
    check_counts(129, "mean", 1);
    check_counts(400, "mean", 1);
}

/* VATP's form: nothing of the prompt but its last rows, and all that follows. */
TEST(scissorhands_adds_the_rows_behind_the_prompt)
{
    enum { N = 40, PROMPT = 25, W = 6, STRIDE = 48 };
    static float weight[STRIDE], got[MAX_LEN];
    double sum[N] = {0};
    uint64_t rng = 9;
    struct hand t;
    make(&t, &keep_scissorhands, "count=sum,history=6", 1);
    t.view.n_prompt = PROMPT;
    append_any(&t, N);
    for (int32_t p = 0; p < N; p++) {
        random_rows(&rng, 1, p + 1, STRIDE, weight);
        attend(&t, p, p + 1, weight, STRIDE);
        for (int32_t i = 0; i <= p && p >= PROMPT - W; i++)
            sum[i] += weight[i];
    }
    score(&t, got);
    for (int32_t i = 0; i < N; i++)
        assert_true(fabs(got[i] - sum[i]) <= 1e-5 * sum[i]);
    drop(&t);
}

/* ---- raas ---- */

/* The page of a position when the prompt ends at n_prompt: -1, -2, .. before it. */
static int32_t page_before(int32_t pos, int32_t n_prompt, int32_t len)
{
    return pos >= n_prompt ? (pos - n_prompt) / len : -1 - (n_prompt - 1 - pos) / len;
}

static int compare_up(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

/* Stamps by either rule, page by page; entries go between, whole pages and parts. */
static void check_stamps(const char *options, bool top, int32_t page_len, double level,
                         int32_t n_prompt)
{
    enum { STEPS = 150, STRIDE = 160, OFFSET = 160 };
    static float weight[2 * STRIDE], got[MAX_LEN];
    int32_t stamp[STEPS] = {0}; /* per position */
    uint64_t rng = 77;
    struct hand t;
    make(&t, &keep_raas, options, 2);
    t.view.n_prompt = n_prompt;
    for (int32_t p = 0; p < STEPS; p++) {
        float best[2 * OFFSET], sorted[2 * OFFSET], x[STEPS];
        int32_t n_page = 0, latest[2 * OFFSET] = {0};
        append_any(&t, 1);
        random_rows(&rng, 2, t.n, STRIDE, weight);
        attend(&t, p, t.n, weight, STRIDE);
        for (int32_t i = 0; i < 2 * OFFSET; i++)
            best[i] = -1.0f;
        for (int32_t i = 0; i < t.n; i++) {
            int32_t page = page_before(t.pos[i], n_prompt, page_len) + OFFSET;
            x[i] = fmaxf(weight[i], weight[STRIDE + i]);
            if (t.pos[i] >= n_prompt)
                best[page] = fmaxf(best[page], x[i]);
        }
        for (int32_t i = 0; i < 2 * OFFSET; i++)
            if (best[i] >= 0.0f)
                sorted[n_page++] = best[i];
        qsort(sorted, (size_t)n_page, sizeof(*sorted), compare_up);
        int32_t k = (int32_t)fmax(1.0, floor(level * n_page + 0.5));
        for (int32_t i = 0; i < t.n; i++) {
            int32_t page = page_before(t.pos[i], n_prompt, page_len) + OFFSET;
            bool looked = top ? n_page > 0 && best[page] >= sorted[k - 1] : x[i] >= (float)level;
            stamp[t.pos[i]] = looked ? p + 1 : stamp[t.pos[i]];
        }
        for (int32_t i = 0; i < t.n; i++) {
            int32_t *of = &latest[page_before(t.pos[i], n_prompt, page_len) + OFFSET];
            *of = (int32_t)pi_max(*of, pi_max(stamp[t.pos[i]], t.pos[i] + 1));
        }
        score(&t, got);
        for (int32_t i = 0; i < t.n; i++) {
            int32_t want = latest[page_before(t.pos[i], n_prompt, page_len) + OFFSET];
            if (got[i] != (float)want)
                fail_msg("%s: at %d: position %d: %g is not %d", options, p, t.pos[i], got[i],
                         want);
        }
        if (p % 30 == 29) {
            int32_t slots[MAX_LEN], n = 0, gone = (int32_t)rng_below(&rng, 6) + OFFSET;
            for (int32_t i = 0; i < t.n; i++)
                if (page_before(t.pos[i], n_prompt, page_len) + OFFSET != gone &&
                    rng_below(&rng, 11) > 0)
                    slots[n++] = i;
            compact(&t, slots, n);
        }
    }
    drop(&t);
}

TEST(raas_stamps_what_queries_look_at)
{
    check_stamps("threshold=0.02", false, 16, 0.02, 0);
    check_stamps("threshold=0.05,page=5", false, 5, 0.05, 13);
    check_stamps("looks=top", true, 16, 0.5, 0);
    check_stamps("looks=top,top=0.2,page=4", true, 4, 0.2, 11);
    check_stamps("looks=top,top=0,page=1", true, 1, 0.0, 3);
    check_stamps("looks=top,top=1,page=4", true, 4, 1.0, 3);
}

/* ---- lazyeviction ---- */

/* tests/vectors/longflow.json, "lazyeviction": rows of t, TS, MRI and both scores. */
TEST(lazyeviction_scores_as_its_authors_do)
{
    static const struct {
        double ts, mri, code, notes;
    } rows[] = {
        {349, 1, 1.2384079439, 1.0757656855},  {340, 20, 0.3648511334, 1.7300865446},
        {300, 20, 0.0586245438, 1.1267215671}, {170, 0, 0.0, 0.0},
        {0, 349, 0.2378048238, 1.5353242092},  {350, 175, 0.5378828427, 1.9971428649},
    };
    enum { N = 6 };
    static const char *const forms[] = {"score=code,window=1", "score=notes,window=1"};
    for (int32_t f = 0; f < 2; f++) {
        struct hand t;
        float got[N];
        make(&t, &keep_lazyeviction, forms[f], 1);
        append_any(&t, N);
        for (int32_t i = 0; i < N; i++) {
            keep_marks_to_write(&t.view, 0, 0, 0)[i] = (float)rows[i].ts + 2.0f;
            keep_marks_to_write(&t.view, 0, 0, 1)[i] = (float)rows[i].mri;
        }
        t.view.n_token = 351; /* t = 350 is the position of the last token */
        score(&t, got);
        for (int32_t i = 0; i < N; i++) {
            double want = f == 0 ? rows[i].code : rows[i].notes;
            if (fabs(got[i] - want) > 1e-6)
                fail_msg("%s: row %d: %.9f is not %.9f", forms[f], i, got[i], want);
        }
        drop(&t);
    }
}

/* TS and MRI with the authors' bookkeeping, for a prompt that no step of its own was shown of. */
static void check_gaps(const char *options, int32_t n_group, bool max)
{
    enum { STEPS = 200, PROMPT = 30, STRIDE = 208 };
    static float weight[3 * STRIDE], got[MAX_LEN];
    double ts[STEPS], mri[STEPS] = {0};
    uint64_t rng = 21;
    struct hand t;
    make(&t, &keep_lazyeviction, options, n_group);
    append_any(&t, PROMPT);
    for (int32_t i = 0; i < STEPS; i++)
        ts[i] = i < PROMPT ? PROMPT - 1 : i - 1; /* 0, and t - 1, where steps begin at 1 */
    for (int32_t p = PROMPT; p < STEPS; p++) {
        append_any(&t, 1);
        random_rows(&rng, n_group, t.n, STRIDE, weight);
        attend(&t, p, t.n, weight, STRIDE);
        for (int32_t i = 0; i < t.n; i++) {
            float x = weight[i];
            for (int32_t g = 1; g < n_group; g++) {
                float other = weight[(size_t)g * STRIDE + (size_t)i];
                x = max ? fmaxf(x, other) : x + other;
            }
            if (x >= 0.02f) {
                mri[t.pos[i]] = fmax(mri[t.pos[i]], p - ts[t.pos[i]]);
                ts[t.pos[i]] = p;
            }
        }
        score(&t, got);
        for (int32_t i = 0; i < t.n; i++) {
            double ago = p - ts[t.pos[i]], m = mri[t.pos[i]];
            double want = 2.0 / (1.0 + exp(1.0 + ago / (m + 1e-5))) +
                          (m == 0.0 ? 0 : 2.0 / (1.0 + exp(m - 1)));
            if (fabs(got[i] - want) > 1e-6)
                fail_msg("%s: at %d: position %d: %g is not %g", options, p, t.pos[i], got[i],
                         want);
        }
        if (p % 40 == 39) {
            int32_t slots[MAX_LEN], n = 0;
            for (int32_t i = 0; i < t.n; i++)
                if (i >= t.n - 9 || rng_below(&rng, 2) > 0)
                    slots[n++] = i;
            compact(&t, slots, n);
        }
    }
    drop(&t);
}

TEST(lazyeviction_remembers_the_longest_gap)
{
    check_gaps("threshold=0.02", 1, true);
    check_gaps("threshold=0.02", 3, true);
    check_gaps("threshold=0.02,group=sum", 2, false);
}

/* An entry that no query has seen yet counts as much as one that its own token has just attended
   to. */
TEST(lazyeviction_spares_what_no_query_saw)
{
    float got[2], weight[16] = {1.0f};
    struct hand t;
    make(&t, &keep_lazyeviction, NULL, 1);
    append_any(&t, 1);
    attend(&t, 0, 1, weight, 16);
    append_any(&t, 1);
    score(&t, got);
    assert_true(fabs(got[1] - 2.0 / (1.0 + exp(1.0)) - 1.0) < 1e-6);
    t.view.n_token = 900;
    score(&t, got);
    assert_true(fabs(got[0] - 1.0) < 1e-6 && got[1] > 1.5f);
    drop(&t);
}

/* ---- options ---- */

TEST(reads_their_options)
{
    struct keep_config c;
    check(keep_config_parse("h2o:budget=101", &c, &err), &err);
    assert_int_equal(keep_window_at(&c.rules, 101), 50);
    check(keep_config_parse("h2o:budget=100,recent=0.29,window=3", &c, &err), &err);
    assert_int_equal(keep_window_at(&c.rules, 100), 29);
    assert_int_equal(keep_window_at(&c.rules, 8), 3);
    expect(keep_config_parse("vatp:budget=38", &c, &err), &err, PITH_INVALID,
           "38 entries is smaller than the 39");
    expect(keep_config_parse("vatp:budget=39", &c, &err), &err, PITH_INVALID, "none to overwrite");
    check(keep_config_parse("vatp:budget=39,overwrite=off", &c, &err), &err);
    /* A share is never below twice the protected entries, as far as there are that many. */
    check(keep_config_parse("vatp:budget=50%,overwrite=off", &c, &err), &err);
    check(keep_config_fit(
              &c, &(struct kv_geometry)KV_SHAPE(1, 1, 4, 4, 16, KV_TYPE_F32, KV_TYPE_F32), &err),
          &err);
    assert_int_equal(keep_budget_at(&c, 10), 10);
    assert_int_equal(keep_budget_at(&c, 60), 40);
    assert_int_equal(keep_budget_at(&c, 1000), 500);
    expect(keep_config_parse("h2o:recent=0.95", &c, &err), &err, PITH_INVALID, "recent");
    check(keep_config_parse("lazyeviction:aime", &c, &err), &err);
    assert_true(c.rules.window == 363 && c.rules.slack == 363);
    check(keep_config_parse("lazyeviction", &c, &err), &err);
    assert_true(c.rules.window == 175 && c.rules.slack == 175);
    check(keep_config_parse("raas", &c, &err), &err);
    assert_true(c.rules.pin_prompt == 1 && c.rules.slack == 16);
    check(keep_config_parse("scissorhands", &c, &err), &err);
    assert_int_equal(c.rules.window, 10);
}
