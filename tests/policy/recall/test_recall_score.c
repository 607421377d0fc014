/*
 * test_recall_score.c - statistics choose the entries that come back from the second tier: the
 * folded TriAttention score, computed again from its definition.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>

#include "policy/keep/stats/stats.h"
#include "recall_rig.h"

static void make_stats(const char *path, int32_t n_layer)
{
    struct pith_stats *s;
    uint64_t rng = 3;
    assert_int_equal(stats_new(&s, &err), PITH_OK);
    s->n_layer = n_layer;
    s->n_head = RIG_HEADS * RIG_GROUP;
    s->n_head_kv = RIG_HEADS;
    s->n_pair = RIG_DIM / 2;
    s->n_centre = 1;
    s->magnitude = 1.0f;
    assert_int_equal(stats_alloc(s, false, false, &err), PITH_OK);
    s->model = pi_mem_strndup(PI_MEM_OTHER, "", 0);
    s->text = pi_mem_strndup(PI_MEM_OTHER, "", 0);
    for (int32_t i = 0; i < n_layer * s->n_head; i++) {
        float *row = s->q + (size_t)i * stats_row_len(s);
        for (int32_t f = 0; f < s->n_pair; f++) {
            row[f] = rng_float(&rng);
            row[s->n_pair + f] = rng_float(&rng);
            row[2 * s->n_pair + f] = hypotf(row[f], row[s->n_pair + f]) * 1.25f;
        }
    }
    for (int32_t l = 0; l < n_layer; l++)
        s->count[l] = 100;
    if (pith_stats_save(s, path, &err) != PITH_OK)
        fail_msg("%s", err.message);
    pith_stats_free(s);
}

/* The folded score itself, of a key after rotation (triattention_score.h). */
static double naive_folded(const struct rig *r, const struct stats_row *row, const float *key)
{
    double score = 0.0;
    int32_t n_pair = r->model.rope->n_pair;
    for (int32_t f = 0; f < n_pair; f++) {
        double mean = 0.0, modulus = hypot((double)row->re[f], (double)row->im[f]);
        double k = hypot((double)key[f], (double)key[f + n_pair]);
        double turn = atan2((double)row->im[f], (double)row->re[f]) -
                      atan2((double)key[f + n_pair], (double)key[f]);
        for (int32_t o = 0; o <= 16; o++)
            mean += cos(r->model.rope->freq[f] * (r->n_token + (double)(1 << o)) + turn) / 17.0;
        score += modulus * k * mean + ((double)row->abs[f] - modulus) * k;
    }
    return score;
}

TEST(statistics_choose)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F32);
    struct recall_kv_options o = rig_options(&g, 8);
    struct rig r;
    struct pi_rope rope = {.n_pair = RIG_DIM / 2, .magnitude = 1.0f};
    double freq[RIG_DIM / 2], z[RIG_GROUP][300];
    float q[RIG_GROUP * RIG_DIM];
    int32_t n_guest[RIG_LANES];
    char path[] = "/tmp/pith-recall-XXXXXX";
    close(mkstemp(path));
    make_stats(path, RIG_LAYERS);
    for (int32_t f = 0; f < RIG_DIM / 2; f++)
        freq[f] = pow(10000.0, -2.0 * f / RIG_DIM);
    rope.freq = freq;
    o.score = RECALL_TRIATTENTION;
    o.block = 1;
    rig_make(&r, &g, 300);
    assert_int_equal(recall_tier_create(&o, &r.model, NULL, 1, &r.tier, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "wants stats=FILE"));
    snprintf(o.stats, sizeof(o.stats), "%s", path);
    assert_int_equal(recall_tier_create(&o, &r.model, NULL, 1, &r.tier, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "rotated"));
    r.model.rope = &rope;
    rig_open(&r, &o, 1);
    rig_append(&r, 300);
    rig_evict(&r, rig_keep_none);
    rig_queries(5, 1, q);
    rig_recall(&r, q, 1, 40, n_guest);
    for (int32_t l = 0; l < RIG_LANES; l++) {
        double least = 1e9, most = -1e9;
        for (int32_t h = 0; h < RIG_GROUP; h++) {
            struct stats_row row =
                stats_q(r.tier->stats.stats, l / RIG_HEADS, l % RIG_HEADS * RIG_GROUP + h);
            double sum = 0.0, square = 0.0;
            for (int32_t p = 0; p < 300; p++) {
                z[h][p] = naive_folded(&r, &row, r.key + (l * 300 + p) * RIG_DIM);
                sum += z[h][p] / 300;
            }
            for (int32_t p = 0; p < 300; p++)
                square += (z[h][p] - sum) * (z[h][p] - sum) / 300;
            for (int32_t p = 0; p < 300; p++)
                z[h][p] = (z[h][p] - sum) / sqrt(square);
        }
        for (int32_t p = 0; p < 300; p++) {
            double best = fmax(z[0][p], z[1][p]);
            if (rig_has_guest(&r, l, p))
                least = fmin(least, best);
            else
                most = fmax(most, best);
        }
        assert_int_equal(n_guest[l], 40);
        rig_check_guests(&r, l);
        assert_true(least >= most - 1e-4);
    }
    rig_free(&r);
    unlink(path);
}
