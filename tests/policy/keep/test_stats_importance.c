/*
 * Importance in calibration statistics. Its section of the file is read back, or refused with a
 * sentence; files without it are unchanged. Shares of lanes have an exact mean and never fall;
 * predictions clip.
 */
#include <math.h>
#include <string.h>

#include "testing.h"

#include "base/cursor.h"
#include "base/mem.h"
#include "file/sum.h"
#include "near.h"
#include "policy/keep/stats/stats.h"
#include "status.h"

enum { LAYERS = 2, HEADS_KV = 2, LANES = 4, EMBD = 3, FEATURES = 4, QUANTILES = 5, MAPS = 2 };

static void fill(float *x, size_t n, uint64_t *rng)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rng_float(rng);
}

/* x ascending in rows of n. */
static void ascend(float *x, size_t n_row, size_t n)
{
    for (size_t i = 0; i < n_row * n; i++)
        if (i % n != 0)
            x[i] = x[i - 1] + fabsf(x[i]);
}

static void above(const float *low, float *high, size_t n)
{
    for (size_t i = 0; i < n; i++)
        high[i] = low[i] + fabsf(high[i]);
}

static struct stats_importance *make_importance(int32_t n_embd, uint64_t seed)
{
    struct stats_importance shape = {.n_layer = LAYERS,
                                     .n_lane = LANES,
                                     .n_embd = n_embd,
                                     .n_feature = FEATURES,
                                     .n_quantile = QUANTILES,
                                     .n_map = MAPS};
    struct stats_importance *m = NULL;
    size_t n_hidden = LAYERS * (size_t)n_embd;
    check(stats_importance_create(&shape, &m, &err), &err);
    fill(m->mean, LANES, &seed);
    for (int i = 0; i < LANES; i++)
        m->deviation[i] = 0.5f + (float)i;
    fill(m->quantile, LANES * QUANTILES, &seed);
    ascend(m->quantile, LANES, QUANTILES);
    fill(m->key_weight, LANES * (FEATURES + 1), &seed);
    fill(m->key_low, LANES * FEATURES, &seed);
    fill(m->key_high, LANES * FEATURES, &seed);
    above(m->key_low, m->key_high, LANES * FEATURES);
    fill(m->key_r2, LANES, &seed);
    if (n_embd > 0) {
        fill(m->hidden_weight, LANES * (size_t)(n_embd + 1), &seed);
        fill(m->hidden_low, n_hidden, &seed);
        fill(m->hidden_high, n_hidden, &seed);
        above(m->hidden_low, m->hidden_high, n_hidden);
        fill(m->hidden_r2, LANES, &seed);
    }
    for (int i = 0; i < MAPS; i++) {
        m->map[i].policy = policy_name(i == 0 ? "triattention" : "h2o", i == 0 ? 12 : 3);
        for (int lane = 0; lane < LANES; lane++)
            m->map[i].slope[lane] = (float)(lane * (i + 1));
        fill(m->map[i].intercept, LANES, &seed);
        fill(m->map[i].correlation, LANES, &seed);
    }
    return m;
}

static struct pith_stats *make_stats(struct stats_importance *m)
{
    struct pith_stats *s = NULL;
    check(stats_new(&s, &err), &err);
    s->n_layer = LAYERS;
    s->n_head = 2 * HEADS_KV;
    s->n_head_kv = HEADS_KV;
    s->n_pair = 1;
    check(stats_alloc(s, false, false, &err), &err);
    for (size_t i = 0; i < LAYERS * 2 * HEADS_KV; i++)
        s->q[3 * i] = s->q[3 * i + 2] = 1.0f;
    s->count[0] = s->count[1] = 5;
    s->importance = m;
    check(stats_check(s, &err), &err);
    return s;
}

static uint8_t *bytes_of(const struct pith_stats *s, size_t *n)
{
    uint8_t *out = NULL;
    check(stats_format(s, &out, n, &err), &err);
    return out;
}

static void seal(uint8_t *bytes, size_t n)
{
    struct pi_cursor c = {.out = bytes, .at = n - 8};
    pi_put(&c, pi_sum_of(bytes, n - 8), 8);
}

/* ---- the file ---- */

TEST(importance_comes_back_as_it_was)
{
    for (int32_t n_embd = 0; n_embd <= EMBD; n_embd += EMBD) {
        struct pith_stats *s = make_stats(make_importance(n_embd, 3)), *back = NULL;
        size_t n, n_again;
        uint8_t *bytes = bytes_of(s, &n);
        assert_int_equal(bytes[8], 2);
        check(stats_parse(bytes, n, &back, &err), &err);
        assert_string_equal(back->format, "pith 2");
        const struct stats_importance *m = back->importance, *was = s->importance;
        assert_non_null(m);
        assert_int_equal(m->n_layer, LAYERS);
        assert_int_equal(m->n_embd, n_embd);
        assert_memory_equal(m->quantile, was->quantile, LANES * QUANTILES * sizeof(float));
        assert_memory_equal(m->key_weight, was->key_weight, LANES * (FEATURES + 1) * sizeof(float));
        assert_true((m->hidden_weight != NULL) == (n_embd > 0));
        const struct stats_map *map = stats_find_map(back, "h2o");
        assert_non_null(map);
        near((double)map->slope[3], 6.0, 0);
        assert_null(stats_find_map(back, "h2"));
        assert_null(stats_find_map(NULL, "h2o"));
        uint8_t *again = bytes_of(back, &n_again);
        assert_int_equal(n, n_again);
        assert_memory_equal(bytes, again, n);
        pith_stats_free(s);
        pith_stats_free(back);
        pi_mem_free(bytes);
        pi_mem_free(again);
    }
}

/* The bytes up to the section are the same but the header's size. */
TEST(without_importance_the_section_is_empty)
{
    struct pith_stats *with = make_stats(make_importance(EMBD, 3)), *without = make_stats(NULL);
    struct pith_stats *back = NULL;
    size_t n1, n2;
    uint8_t *one = bytes_of(without, &n1), *two = bytes_of(with, &n2);
    for (size_t i = n1 - 16; i < n1 - 8; i++)
        assert_int_equal(one[i], 0);
    check(stats_parse(one, n1, &back, &err), &err);
    assert_null(back->importance);
    assert_string_equal(back->format, "pith 2");
    assert_null(stats_find_map(back, "h2o"));
    assert_memory_equal(one + 24, two + 24, n1 - 16 - 24);
    pith_stats_free(with);
    pith_stats_free(without);
    pith_stats_free(back);
    pi_mem_free(one);
    pi_mem_free(two);
}

static void refuse(uint8_t *bytes, size_t n, const char *word)
{
    struct pith_stats *s = NULL;
    seal(bytes, n);
    expect(stats_parse(bytes, n, &s, &err), &err, PITH_FORMAT, word);
    assert_null(s);
}

TEST(refuses_damaged_importance)
{
    struct pith_stats *with = make_stats(make_importance(EMBD, 3)), *without = make_stats(NULL);
    struct pith_stats *s = NULL;
    size_t n, n1;
    uint8_t *bytes = bytes_of(with, &n), *again = bytes_of(with, &n);
    pi_mem_free(bytes_of(without, &n1));
    size_t at = n1 - 16; /* of the section's length */
    for (size_t cut = 0; cut < n; cut++)
        assert_int_equal(stats_parse(bytes, cut, &s, &err), PITH_FORMAT);
    for (size_t i = 0; i < n; i++) { /* every byte matters */
        memcpy(again, bytes, n);
        again[i] ^= 0x40;
        assert_int_not_equal(stats_parse(again, n, &s, &err), PITH_OK);
    }
    for (size_t cut = at; cut < n - 8; cut++) { /* sealed: every shorter section */
        memcpy(again, bytes, n);
        struct pi_cursor c = {.out = again, .at = 16};
        pi_put(&c, cut + 8, 8);
        c.at = at;
        if (cut >= at + 8)
            pi_put(&c, cut - at - 8, 8);
        seal(again, cut + 8);
        bool empty = cut == at + 8;
        assert_int_equal(stats_parse(again, cut + 8, &s, &err), empty ? PITH_OK : PITH_FORMAT);
        assert_true((s != NULL) == empty);
        pith_stats_free(s);
        s = NULL;
    }
    size_t body = at + 8 + 24, quantile = body + 8 * LANES;
    size_t low = quantile + 4 * LANES * (QUANTILES + FEATURES + 1);
    const struct {
        size_t at;
        uint32_t value;
        const char *word;
    } damage[] = {
        {at, 3, "a section of 3 bytes"},
        {at + 8, 3, "3 lanes are not 2 layers of 2 KV heads"},
        {at + 12, 1 << 30, "hidden features: 1073741824"},
        {at + 12, 30000, "do not make a section"},
        {at + 12, 0, "policy's name"},
        {at + 16, 0, "key features: 0"},
        {at + 20, 0, "quantiles: 0"},
        {at + 24, 65, "maps: 65"},
        {at + 24, 3, "do not make a section"},
        {at + 28, 1, "counts do not make"}, /* neurons */
        {body, 0x7fc00000, "mean 0 is no number"},
        {body + 4 * LANES, 0xbf800000, "deviation 0: -1 is below 0"},
        {quantile, 0x42000000, "quantile 0: 32 is above"},
        {low + 4, 0x42000000, "key feature 1: 32 is above"},
    };
    for (size_t i = 0; i < PI_LEN(damage); i++) {
        memcpy(again, bytes, n);
        struct pi_cursor c = {.out = again, .at = damage[i].at};
        pi_put(&c, damage[i].value, 4);
        refuse(again, n, damage[i].word);
    }
    pith_stats_free(with);
    pith_stats_free(without);
    pi_mem_free(bytes);
    pi_mem_free(again);
}

static void refuse_map(const struct stats_map *map, const char *word)
{
    struct pith_stats *s = make_stats(make_importance(0, 9));
    struct stats_map *to = &s->importance->map[1];
    pi_mem_free(to->policy);
    to->policy = policy_name(map->policy, strlen(map->policy));
    to->slope[2] = *map->slope;
    to->correlation[2] = *map->correlation;
    expect(stats_check(s, &err), &err, PITH_FORMAT, word);
    pith_stats_free(s);
}

TEST(refuses_bad_maps)
{
    float one = 1.0f, less = -0.5f, more = 1.5f, none = NAN;
    refuse_map(&(struct stats_map){"triattention", &one, &one, &one}, "two maps of triattention");
    refuse_map(&(struct stats_map){"", &one, &one, &one}, "map 1 has a name of 0 bytes");
    refuse_map(&(struct stats_map){"h2o", &less, &one, &one}, "h2o, lane 2: slope -0.5");
    refuse_map(&(struct stats_map){"h2o", &one, &one, &more}, "correlation 1.5");
    refuse_map(&(struct stats_map){"h2o", &none, &one, &one}, "slope 2 is no number");
}

TEST(failing_memory_leaves_nothing)
{
    struct pith_stats *s = make_stats(make_importance(EMBD, 3)), *back = NULL;
    size_t n;
    uint8_t *bytes = bytes_of(s, &n);
    int64_t used = pi_mem_used(PI_MEM_OTHER);
    for (int64_t i = 1;; i++) {
        pi_mem_fail_at(i, true);
        pith_status status = stats_parse(bytes, n, &back, &err);
        pi_mem_fail_at(0, false);
        if (status == PITH_OK) {
            assert_true(i > 20);
            break;
        }
        expect(status, &err, PITH_NOMEM, "no memory");
        assert_null(back);
        assert_int_equal(pi_mem_used(PI_MEM_OTHER), used);
    }
    pith_stats_free(s);
    pith_stats_free(back);
    pi_mem_free(bytes);
}

/* ---- shares and predictions ---- */

static double mean_of(const double *x)
{
    double sum = 0.0;
    for (int i = 0; i < LANES; i++)
        sum += x[i];
    return sum / LANES;
}

/* Lanes of random quantiles, and lanes that are all ties: the mean is exact, nothing falls. */
TEST(shares_have_an_exact_mean)
{
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct stats_importance *m = make_importance(0, seed);
        double share[LANES], before[LANES] = {0};
        for (int i = 0; seed >= 3 && i < LANES * QUANTILES; i++)
            m->quantile[i] = seed == 3 ? -2.0f : seed == 4 ? (float)(i / QUANTILES) : -1e30f;
        for (int i = 0; seed >= 4 && i < LANES; i++)
            m->deviation[i] = 0.0f;
        for (int i = 0; i <= 1000; i++) {
            stats_lane_shares(m, i / 1000.0, share);
            near(mean_of(share), i / 1000.0, 1e-12);
            for (int lane = 0; lane < LANES; lane++) {
                assert_true(share[lane] >= before[lane] - 1e-12 && share[lane] <= 1.0 + 1e-12);
                before[lane] = share[lane];
            }
        }
        stats_importance_free(m);
    }
}

TEST(shares_are_of_a_part_of_the_entries)
{
    double share[LANES];
    struct pith_stats s = {.importance = make_importance(0, 1)};
    assert_int_equal(pith_stats_get_shares(&s, 1.0, share), PITH_OK);
    assert_int_equal(pith_stats_get_shares(&s, -1.0, share), PITH_INVALID);
    assert_int_equal(pith_stats_get_shares(&s, 2.0, share), PITH_INVALID);
    assert_int_equal(pith_stats_get_shares(&s, (double)NAN, share), PITH_INVALID);
    stats_importance_free(s.importance);
}

/* Two lanes whose targets lie apart: half of all entries is all of one and none of the other. */
TEST(lanes_that_lie_apart_get_all_or_nothing)
{
    struct stats_importance *m = make_importance(0, 1);
    double share[LANES];
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < QUANTILES; i++)
            m->quantile[lane * QUANTILES + i] = (float)(i + (lane % 2 != 0 ? 100 : 0));
    for (int lane = 0; lane < LANES; lane++)
        m->deviation[lane] = 1.0f;
    stats_lane_shares(m, 0.5, share);
    for (int lane = 0; lane < LANES; lane++)
        near(share[lane], lane % 2, 1e-9);
    stats_lane_shares(m, 0.25, share); /* the median of the upper ones */
    near(share[1], 0.5, 1e-9);
    near(share[0], 0.0, 1e-9);
    stats_importance_free(m);
}

TEST(predictions_clip_their_features)
{
    const float weight[] = {2.0f, -3.0f, 0.5f}, low[] = {-1.0f, -1.0f}, high[] = {1.0f, 4.0f};
    near(stats_importance_predict(weight, low, high, (float[]){0.5f, 2.0f}, 2), -4.5, 0);
    near(stats_importance_predict(weight, low, high, (float[]){9.0f, -8.0f}, 2), 5.5, 0);
    near(stats_importance_predict(weight, low, high, (float[]){-9.0f, 8.0f}, 2), -13.5, 0);
}
