/*
 * The sampler against the definition in pith.h, written down a second time in the plainest way:
 * sort everything, cut, normalise. Which tokens can be drawn is compared exactly, how often by a
 * chi-square test with fixed seeds.
 */
#include <math.h>
#include <string.h>
#include <time.h>

#include "testing.h"

#include "base/mem.h"
#include "engine/sampler.h"
#include "pith/pith.h"
#include "status.h"

#define N_SMALL 24
#define N_DRAW 20000
#define N_LARGE 151936
#define N_MANY 2000

/* ---- the definition ---- */

struct choice {
    float logit;
    int32_t id;
    double weight; /* probability of being drawn */
};

static int by_order(const void *a, const void *b)
{
    const struct choice *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static float penalised(float logit, const int32_t *history, int32_t n_history, int32_t id,
                       const pith_sample_params *p)
{
    int32_t last = p->penalty_last_n < 0 ? n_history : p->penalty_last_n, count = 0;
    for (int32_t i = n_history > last ? n_history - last : 0; i < n_history; i++)
        count += history[i] == id;
    if (count == 0)
        return logit;
    logit = logit > 0 ? logit / p->repeat_penalty : logit * p->repeat_penalty;
    return logit - ((float)count * p->frequency_penalty + p->presence_penalty);
}

/* Fills out [n] with the candidates that are left, likeliest first; returns how many. */
static int32_t define(const float *logits, int32_t n, const int32_t *history, int32_t n_history,
                      const pith_sample_params *p, struct choice *out)
{
    int32_t n_left = 0;
    for (int32_t id = 0; id < n; id++) {
        float logit = logits[id];
        for (int32_t b = 0; b < p->n_bias; b++)
            if (p->bias[b].token == id)
                logit += p->bias[b].bias;
        logit = penalised(logit, history, n_history, id, p);
        if (!isnan(logit))
            out[n_left++] = (struct choice){logit, id, 0.0};
    }
    qsort(out, (size_t)n_left, sizeof(*out), by_order);
    if (p->temperature == 0.0f)
        n_left = 1;
    if (p->top_k > 0 && p->top_k < n_left)
        n_left = p->top_k;

    double total = 0.0, sum = 0.0;
    for (int32_t i = 0; i < n_left; i++)
        total += exp((double)(out[i].logit - out[0].logit));
    int32_t kept = 0;
    while (kept < n_left && (kept == 0 || p->top_p == 1.0f || sum < (double)p->top_p * total))
        sum += exp((double)(out[kept++].logit - out[0].logit));
    while (kept > 1 && p->min_p > 0.0f && out[kept - 1].logit != out[0].logit &&
           out[kept - 1].logit < out[0].logit + logf(p->min_p))
        kept--;

    double mass = 0.0;
    for (int32_t i = 0; i < kept; i++) {
        float t = p->temperature > 0.0f ? p->temperature : 1.0f;
        mass += out[i].weight = exp((double)((out[i].logit - out[0].logit) / t));
    }
    for (int32_t i = 0; i < kept; i++)
        out[i].weight /= mass;
    return kept;
}

/* ---- helpers ---- */

static pith_sample_params plain(void)
{
    pith_sample_params p;
    pith_sample_params_default(&p);
    p.temperature = 1.0f;
    p.top_k = 0;
    p.top_p = 1.0f;
    p.min_p = 0.0f;
    p.seed = 7;
    return p;
}

static pith_sampler *make(const pith_sample_params *p, int32_t n)
{
    pith_sampler *s = NULL;
    if (pith_sampler_create(p, n, &s, &err) != PITH_OK)
        fail_msg("%s", err.message);
    return s;
}

static void random_logits(uint64_t *rng, float *logits, int32_t n, float spread)
{
    for (int32_t i = 0; i < n; i++)
        logits[i] = spread * rng_float(rng);
}

static int32_t once(const pith_sample_params *p, const float *logits, int32_t n)
{
    pith_sampler *s = make(p, n);
    int32_t id = pith_sampler_sample(s, logits);
    pith_sampler_free(s);
    return id;
}

/* The sampler's own word for the distribution is the definition's. */
static void compare_chances(pith_sampler *s, const struct choice *expected, int32_t n_left)
{
    pith_chance top[N_SMALL];
    int32_t n = pith_sampler_chances(s, top, N_SMALL);
    assert_in_range(n, 1, n_left);
    for (int32_t i = 0; i < n_left; i++) {
        assert_float_equal(pith_sampler_chance(s, expected[i].id), expected[i].weight, 1e-6);
        if (i < n)
            assert_float_equal(pith_sampler_chance(s, top[i].token), top[i].p, 0.0);
        if (i < n)
            assert_int_equal(top[i].token, expected[i].id);
        else
            assert_true(expected[i].weight < 1e-40); /* too small for a float */
    }
    assert_int_equal(pith_sampler_chances(s, top, 1), 1);
    assert_int_equal(top[0].token, expected[0].id);
    assert_int_equal(pith_sampler_chances(s, top, 0), 0);
}

/* Samples often and compares with the definition. No token outside of it is drawn, and chi-square
   is within five standard deviations (variance 2 per degree of freedom) of its mean. */
static void compare(const float *logits, int32_t n, const int32_t *history, int32_t n_history,
                    const pith_sample_params *p)
{
    struct choice *expected = calloc((size_t)n, sizeof(*expected));
    int32_t *count = calloc((size_t)n, sizeof(*count));
    int32_t n_left = define(logits, n, history, n_history, p, expected), inside = 0, df = -1;
    pith_sampler *s = make(p, n);
    for (int32_t i = 0; i < n_history; i++)
        pith_sampler_accept(s, history[i]);
    for (int32_t i = 0; i < N_DRAW; i++) {
        int32_t id = pith_sampler_sample(s, logits);
        assert_in_range(id, 0, n - 1);
        count[id]++;
    }
    compare_chances(s, expected, n_left);
    double chi = 0.0;
    for (int32_t i = 0; i < n_left; i++) {
        double mean = expected[i].weight * N_DRAW;
        inside += count[expected[i].id];
        if (mean < 5.0) /* too few for the test's approximation */
            continue;
        chi += (count[expected[i].id] - mean) * (count[expected[i].id] - mean) / mean;
        df++;
    }
    assert_int_equal(inside, N_DRAW);
    if (df > 0 && chi > df + 5.0 * sqrt(2.0 * df))
        fail_msg("chi-square %g with %d degrees of freedom", chi, df);
    pith_sampler_free(s);
    free(count);
    free(expected);
}

/* ---- tests ---- */

TEST(draws_what_the_definition_says)
{
    float logits[N_SMALL];
    uint64_t rng = 1;
    for (int round = 0; round < 12; round++) {
        pith_sample_params p = plain();
        random_logits(&rng, logits, N_SMALL, 3.0f);
        p.seed = (uint64_t)round;
        if (round % 2 == 1)
            p.temperature = 0.4f + 0.2f * (float)round;
        if (round % 3 == 1)
            p.top_k = 1 + (int32_t)rng_below(&rng, N_SMALL + 4);
        if (round % 4 >= 2)
            p.top_p = 0.3f + 0.05f * (float)round;
        if (round >= 6)
            p.min_p = 0.02f * (float)round;
        compare(logits, N_SMALL, NULL, 0, &p);
    }
}

TEST(penalties_follow_the_definition)
{
    static const int32_t history[] = {3, 3, 5, 1, 9, 3, 5, 5, 0, 2, 3};
    static const int32_t windows[] = {-1, 1, 3, 64, 0};
    float logits[N_SMALL];
    uint64_t rng = 2;
    for (int i = 0; i < 5; i++) {
        pith_sample_params p = plain();
        random_logits(&rng, logits, N_SMALL, 2.0f);
        p.penalty_last_n = windows[i];
        p.repeat_penalty = 1.7f;
        p.presence_penalty = i % 2 == 0 ? 0.6f : -0.4f;
        p.frequency_penalty = 0.3f;
        compare(logits, N_SMALL, history, 11, &p);
    }
}

/* The formulas by hand: positive logits are divided, negative multiplied, counts subtracted. */
TEST(penalties_are_computed_as_written)
{
    pith_sample_params p = plain();
    p.temperature = 0.0f;
    p.repeat_penalty = 2.0f;
    pith_sampler *s = make(&p, 3);
    pith_sampler_accept(s, 0);
    assert_int_equal(pith_sampler_sample(s, (float[]){3.0f, 1.6f, 0.0f}), 1);    /* 1.5 < 1.6 */
    assert_int_equal(pith_sampler_sample(s, (float[]){3.4f, 1.6f, 0.0f}), 0);    /* 1.7 > 1.6 */
    assert_int_equal(pith_sampler_sample(s, (float[]){-1.0f, -1.9f, -9.0f}), 1); /* -2 < -1.9 */
    assert_int_equal(pith_sampler_sample(s, (float[]){-1.0f, -2.1f, -9.0f}), 0);
    pith_sampler_free(s);

    p.repeat_penalty = 1.0f;
    p.frequency_penalty = 0.5f;
    p.presence_penalty = 0.25f;
    s = make(&p, 2);
    pith_sampler_accept(s, 0);
    pith_sampler_accept(s, 0);
    pith_sampler_accept(s, -1); /* no token: ignored */
    pith_sampler_accept(s, 2);
    assert_int_equal(pith_sampler_sample(s, (float[]){2.0f, 0.7f}), 0); /* 2 - 1.25 = 0.75 */
    assert_int_equal(pith_sampler_sample(s, (float[]){2.0f, 0.8f}), 1);
    pith_sampler_free(s);
}

TEST(takes_the_likeliest_and_the_first_of_ties)
{
    pith_sample_params p = plain();
    p.temperature = 0.0f;
    assert_int_equal(once(&p, (float[]){1, 3, 3, 2}, 4), 1);
    assert_int_equal(once(&p, (float[]){-INFINITY, -5, -INFINITY}, 3), 1);
    assert_int_equal(once(&p, (float[]){5}, 1), 0);
    /* Cuts that leave one leave the lower id of equals. */
    p = plain();
    p.top_k = 1;
    assert_int_equal(once(&p, (float[]){1, 3, 3, 3}, 4), 1);
    p = plain();
    p.top_p = 0.0f;
    assert_int_equal(once(&p, (float[]){1, 3, 3, 3}, 4), 1);
    p = plain();
    p.temperature = 1e-30f;
    assert_int_equal(once(&p, (float[]){1, 2, 4, 3}, 4), 2);
    /* min-p 1 leaves every token that is as likely as the likeliest. */
    p = plain();
    p.min_p = 1.0f;
    compare((float[]){1, 3, 3, 2, 3}, 5, NULL, 0, &p);
}

TEST(survives_nan_and_infinities)
{
    pith_sample_params p = plain();
    float logits[N_SMALL];
    uint64_t rng = 4;
    random_logits(&rng, logits, N_SMALL, 2.0f);
    logits[0] = logits[7] = logits[N_SMALL - 1] = NAN;
    logits[3] = logits[N_SMALL - 2] = -INFINITY;
    compare(logits, N_SMALL, NULL, 0, &p);
    p.top_k = 20;
    p.top_p = 0.9f;
    compare(logits, N_SMALL, NULL, 0, &p);
    p.temperature = 0.0f;
    compare(logits, N_SMALL, NULL, 0, &p);
    /* Nothing to choose from still gives a token. */
    assert_int_equal(once(&p, (float[]){NAN, NAN}, 2), 0);
    p = plain();
    assert_int_equal(once(&p, (float[]){NAN, NAN}, 2), 0);
    assert_int_equal(once(&p, (float[]){-INFINITY, -INFINITY}, 2), 0);
    assert_int_equal(once(&p, (float[]){1, INFINITY, 2}, 3), 1);
}

TEST(biases_add_to_logits)
{
    pith_logit_bias bias[] = {{2, 5.0f}, {0, -INFINITY}, {1, -0.5f}};
    pith_sample_params p = plain();
    float logits[] = {9.0f, 1.0f, 0.0f, 2.0f};
    p.bias = bias;
    p.n_bias = 3;
    compare(logits, 4, NULL, 0, &p);
    pith_sampler *s = make(&p, 4);
    bias[0].bias = bias[1].bias = INFINITY; /* the sampler has its own copy */
    for (int i = 0; i < 1000; i++)
        assert_int_not_equal(pith_sampler_sample(s, logits), 0);
    pith_sampler_free(s);
    p.n_bias = 1;
    assert_int_equal(once(&p, logits, 4), 2);
}

/* Greedy, forced by an infinite bias, or not chosen at all: one token, and no doubt. */
TEST(a_chance_of_one_is_certain)
{
    pith_logit_bias bias = {2, INFINITY};
    pith_sample_params p = plain();
    pith_chance top[4];
    float logits[] = {9.0f, 1.0f, 0.0f, 2.0f};
    for (int round = 0; round < 3; round++) {
        p.temperature = round == 0 ? 0.0f : 1.0f;
        p.bias = &bias;
        p.n_bias = round == 1;
        pith_sampler *s = make(&p, 4);
        int32_t id = pith_sampler_sample(s, logits);
        pith_sampler_accept(s, id);
        if (round == 2)
            pith_sampler_accept(s, id = 3);
        assert_int_equal(pith_sampler_chances(s, top, 4), 1);
        assert_int_equal(top[0].token, id);
        assert_float_equal(top[0].p, 1.0, 0.0);
        assert_float_equal(pith_sampler_chance(s, id), 1.0, 0.0);
        assert_float_equal(pith_sampler_chance(s, 1), 0.0, 0.0);
        pith_sampler_free(s);
    }
}

TEST(the_seed_decides)
{
    pith_sample_params p = plain();
    float logits[N_SMALL] = {0};
    int32_t first[64];
    int same = 0;
    pith_sampler *s = make(&p, N_SMALL);
    for (int i = 0; i < 64; i++)
        first[i] = pith_sampler_sample(s, logits);
    pith_sampler_free(s);
    s = make(&p, N_SMALL);
    for (int i = 0; i < 64; i++)
        assert_int_equal(pith_sampler_sample(s, logits), first[i]);
    pith_sampler_free(s);
    p.seed++;
    s = make(&p, N_SMALL);
    for (int i = 0; i < 64; i++)
        same += pith_sampler_sample(s, logits) == first[i];
    pith_sampler_free(s);
    assert_in_range(same, 0, 16);
}

static void expect_invalid(pith_sample_params p, const char *field)
{
    pith_sampler *s = NULL;
    err = (pith_error){0};
    assert_int_equal(pith_sampler_create(&p, 10, &s, &err), PITH_INVALID);
    assert_int_equal(err.status, PITH_INVALID);
    assert_null(s);
    if (strstr(err.message, field) == NULL)
        fail_msg("\"%s\" does not name %s", err.message, field);
}

#define INVALID(field, value)                                                                      \
    do {                                                                                           \
        pith_sample_params p_ = plain();                                                           \
        p_.field = (value);                                                                        \
        expect_invalid(p_, #field);                                                                \
    } while (0)

TEST(invalid_params_are_named)
{
    pith_sampler *s = NULL;
    INVALID(temperature, -1.0f);
    INVALID(temperature, NAN);
    INVALID(temperature, INFINITY);
    INVALID(top_k, -1);
    INVALID(top_p, 1.5f);
    INVALID(top_p, NAN);
    INVALID(min_p, -0.1f);
    INVALID(repeat_penalty, 0.0f);
    INVALID(presence_penalty, INFINITY);
    INVALID(frequency_penalty, NAN);
    INVALID(penalty_last_n, -2);
    INVALID(n_bias, 1);
    pith_sample_params p = plain();
    p.n_bias = 1;
    p.bias = &(pith_logit_bias){10, 0.0f};
    expect_invalid(p, "bias: token 10");
    p.bias = &(pith_logit_bias){1, NAN};
    expect_invalid(p, "bias: of token 1");
    assert_int_equal(pith_sampler_create(NULL, 0, &s, NULL), PITH_INVALID);
}

TEST(allocates_at_the_start_alone)
{
    pith_logit_bias bias = {0, 1.0f};
    pith_sample_params p = plain();
    pith_sampler *s = NULL;
    int64_t before = pi_mem_used(PI_MEM_OTHER);
    p.repeat_penalty = 1.1f;
    p.bias = &bias;
    p.n_bias = 1;
    int n_failed = 0;
    for (int nth = 1;; nth++) {
        pi_mem_fail_at(nth, false);
        pith_status status = pith_sampler_create(&p, 100, &s, &err);
        pi_mem_fail_at(0, false);
        if (status == PITH_OK)
            break;
        assert_int_equal(status, PITH_NOMEM);
        assert_null(s);
        assert_int_equal(pi_mem_used(PI_MEM_OTHER), before);
        n_failed++;
    }
    assert_int_equal(n_failed, 5);
    float logits[100] = {0};
    pi_mem_fail_at(0, false);
    for (int i = 0; i < 100; i++)
        pith_sampler_accept(s, pith_sampler_sample(s, logits));
    assert_int_equal(pi_mem_fail_at(0, false), 0); /* none in the loop over tokens */
    pith_sampler_free(s);
    pith_sampler_free(NULL);
    assert_int_equal(pi_mem_used(PI_MEM_OTHER), before);
}

/* A server has a sampler for each answer: the usual ones take little. Windows that are
   counted when asked for give the draws of those with numbers for all tokens. */
TEST(many_samplers_take_little_and_share_a_row)
{
    enum { N = 50000 };
    float *logits = malloc(N * sizeof(*logits)), *row = malloc(N * sizeof(*row));
    pith_sample_params p = plain();
    pith_sampler *counts, *counted;
    assert_true(pi_sampler_bytes(NULL, N) < 4096);
    p.temperature = 1.0f;
    p.top_k = 40;
    p.repeat_penalty = 1.5f;
    p.presence_penalty = 0.5f;
    p.frequency_penalty = 0.5f;
    p.penalty_last_n = 100;
    assert_true(pi_sampler_bytes(&p, N) < 4096);
    int64_t before = pi_mem_used(PI_MEM_OTHER);
    assert_int_equal(pi_sampler_create(&p, N, &counted, &err), PITH_OK);
    assert_true(pi_mem_used(PI_MEM_OTHER) - before < 8192);
    p.penalty_last_n = -1;
    assert_true(pi_sampler_bytes(&p, N) > 4 * N);
    assert_int_equal(pi_sampler_create(&p, N, &counts, &err), PITH_OK);
    for (int i = 0; i < N; i++)
        logits[i] = (float)(i % 97) * 0.1f;
    for (int i = 0; i < 100; i++) {
        int32_t id = pi_sampler_sample(counted, logits, row);
        assert_int_equal(pi_sampler_sample(counts, logits, row), id);
        pith_sampler_accept(counted, id);
        pith_sampler_accept(counts, id);
    }
    pith_sampler_free(counted);
    pith_sampler_free(counts);
    free(logits);
    free(row);
}

/* A real vocabulary: the same candidates, and the time, which the eye may judge. */
/* ---- from the best tokens alone ---- */

/* As a device finds them in a row (device.h). */
static struct pi_best best_of(const float *logits, int32_t n)
{
    static struct choice all[N_MANY];
    struct pi_best best = {.n = (int32_t)pi_min(n, PI_BEST)};
    for (int32_t i = 0; i < n; i++)
        all[i] = (struct choice){logits[i], i, 0.0};
    qsort(all, (size_t)n, sizeof(*all), by_order);
    for (int32_t i = 0; i < best.n; i++) {
        best.id[i] = all[i].id;
        best.logit[i] = all[i].logit;
    }
    return best;
}

/* Logits in steps of `step`, so that many are equal; 0: hardly any. */
static void fill_stepped(float *logits, int32_t n, float step, uint64_t *rng)
{
    for (int32_t i = 0; i < n; i++) {
        float x = 6.0f * (rng_float(rng) + rng_float(rng) + rng_float(rng));
        logits[i] = step > 0.0f ? step * floorf(x / step) : x;
    }
}

struct best_case {
    pith_sample_params p;
    int32_t n;
    float step;
};

/* One sampler sees the row, the other the best tokens where these decide. They choose the same and
   show the same chances. Returns how often they decided. */
static int32_t compare_best(const struct best_case *c, uint64_t seed, int32_t n_round)
{
    static float logits[N_MANY];
    pith_sampler *by_row = NULL, *by_best = NULL;
    int32_t n_decided = 0;
    uint64_t rng = seed;
    pith_sample_params p = c->p;
    p.seed = seed;
    check(pith_sampler_create(&p, c->n, &by_row, &err), &err);
    check(pith_sampler_create(&p, c->n, &by_best, &err), &err);
    for (int32_t i = 0; i < n_round; i++) {
        int32_t other;
        fill_stepped(logits, c->n, c->step, &rng);
        struct pi_best best = best_of(logits, c->n);
        int32_t id = pith_sampler_sample(by_row, logits);
        if (pi_sampler_sample_best(by_best, &best, &other))
            n_decided++;
        else
            other = pith_sampler_sample(by_best, logits);
        assert_int_equal(id, other);
        float a = pith_sampler_chance(by_row, id), b = pith_sampler_chance(by_best, id);
        assert_memory_equal(&a, &b, sizeof(a));
        pith_sampler_accept(by_row, id);
        pith_sampler_accept(by_best, id);
    }
    pith_sampler_free(by_row);
    pith_sampler_free(by_best);
    return n_decided;
}

TEST(the_best_tokens_lead_to_the_rows_draws)
{
    const struct best_case often[] = {
        {{.temperature = 0, .top_p = 1, .repeat_penalty = 1}, N_MANY, 0},
        {{.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1},
         N_MANY,
         0},
        {{.temperature = 1.3f, .top_k = 100, .top_p = 1, .repeat_penalty = 1}, N_MANY, 0},
        {{.temperature = 1, .top_k = 20, .top_p = 0.9f, .repeat_penalty = 1}, N_MANY, 0.0625f},
        {{.temperature = 1.5f, .top_p = 1, .min_p = 0.1f, .repeat_penalty = 1}, N_MANY, 0.0625f},
        {{.temperature = 1, .top_k = 300, .top_p = 1, .min_p = 0.2f, .repeat_penalty = 1},
         N_MANY,
         0},
        {{.temperature = 0.9f,
          .top_k = 40,
          .top_p = 0.95f,
          .repeat_penalty = 1.2f,
          .presence_penalty = 0.5f,
          .frequency_penalty = 0.25f,
          .penalty_last_n = -1},
         N_MANY,
         0.25f},
        {{.temperature = 1, .top_p = 0.8f, .repeat_penalty = 1}, 100, 0.5f}, /* all are known */
    };
    for (size_t i = 0; i < PI_LEN(often); i++) {
        int32_t n = compare_best(&often[i], i + 1, 400);
        if (n < 300)
            fail_msg("case %zu: only %d of 400 were decided", i, n);
    }
}

TEST(the_best_tokens_decide_nothing_where_others_could_count)
{
    static const pith_logit_bias bias = {3, 1.0f};
    const struct best_case never[] = {
        {{.temperature = 1, .top_p = 1, .repeat_penalty = 1}, N_MANY, 0},
        {{.temperature = 1, .top_p = 0.9f, .min_p = 0.1f, .repeat_penalty = 1}, N_MANY, 0},
        {{.temperature = 1, .top_k = 129, .top_p = 1, .repeat_penalty = 1}, N_MANY, 0},
        {{.temperature = 1, .top_k = 4, .top_p = 1, .repeat_penalty = 0.9f, .penalty_last_n = 64},
         N_MANY,
         0},
        {{.temperature = 1,
          .top_k = 4,
          .top_p = 1,
          .repeat_penalty = 1,
          .bias = &bias,
          .n_bias = 1},
         N_MANY,
         0},
        {{.temperature = 1, .top_k = 100, .top_p = 1, .repeat_penalty = 1}, N_MANY, 8}, /* ties */
    };
    for (size_t i = 0; i < PI_LEN(never); i++)
        assert_int_equal(compare_best(&never[i], i + 1, 50), 0);
}

TEST(agrees_on_a_large_vocabulary)
{
    float *logits = calloc(N_LARGE, sizeof(*logits));
    struct choice *expected = calloc(N_LARGE, sizeof(*expected));
    uint64_t rng = 5;
    for (int32_t i = 0; i < N_LARGE; i++)
        logits[i] = 3.0f * (rng_float(&rng) + rng_float(&rng) + rng_float(&rng));
    for (int round = 0; round < 4; round++) {
        pith_sample_params p;
        pith_sample_params_default(&p);
        if (round & 1)
            p.top_k = 0;
        if (round & 2)
            p.min_p = 0.0f;
        int32_t n_left = define(logits, N_LARGE, NULL, 0, &p, expected);
        pith_sampler *s = make(&p, N_LARGE);
        clock_t start = clock();
        for (int i = 0; i < 20; i++) {
            int32_t id = pith_sampler_sample(s, logits);
            int32_t at = 0;
            while (at < n_left && expected[at].id != id)
                at++;
            if (at == n_left)
                fail_msg("token %d is not among the %d that are left", id, n_left);
        }
        printf("top_k %d, min_p %g: %d candidates, %.2f ms per token\n", p.top_k, (double)p.min_p,
               n_left, 1e3 * (double)(clock() - start) / CLOCKS_PER_SEC / 20);
        pith_sampler_free(s);
    }
    free(expected);
    free(logits);
}
