/*
 * test_share_steps.c - the ends of steps, the similarity of steps, and the distance of pages.
 * Numbers are those in the MemShare vectors (steps, cosines, distances, early ends, pages inside
 * steps), computed in double precision from Algorithm 1 of the paper.
 */
#include <math.h>
#include <string.h>

#include "kv_by_page.h"
#include "policy/share/internal.h"
#include "status.h"
#include "testing.h"

/* ---- blank lines ---- */

/* Texts of tokens, and where steps end behind them; 0 ends both. */
static const struct {
    const char *piece[9];
    int32_t end[5];
} splits[] = {
    {{"A", " b", ".\n\n", "C", "\n", "\n", "D", " e"}, {3, 6}},
    {{"x\n", "\ny", "z"}, {2}},
    {{"x", "\n", "y", "\n\n\n", "z", "\n\n"}, {4, 6}},
    {{"\n\n", "\n\n", "q"}, {1, 2}},
    {{"a\n", "", "\nb", "c\n", "d"}, {3}},
};

TEST(steps_end_at_blank_lines)
{
    for (size_t i = 0; i < PI_LEN(splits); i++) {
        uint8_t flags[9];
        int32_t tokens[9], n = 0, begin = 0, n_end = 0;
        for (; splits[i].piece[n] != NULL; n++) {
            flags[n] = share_text_flags(splits[i].piece[n], strlen(splits[i].piece[n]));
            tokens[n] = n;
            if (!share_ends_step(flags, tokens + begin, n + 1 - begin))
                continue;
            assert_int_equal(splits[i].end[n_end++], n + 1);
            begin = n + 1;
        }
        assert_int_equal(splits[i].end[n_end], 0);
    }
}

/* ---- likeness ---- */

static const struct {
    int32_t a[12], b[12]; /* ends with 0 */
    int64_t dot, norm_a, norm_b;
    bool at_8, at_9;
} likes[] = {
    {{1, 2, 3, 4}, {1, 2, 3, 4}, 4, 4, 4, true, true},
    {{1, 2, 3, 4}, {4, 3, 2, 1}, 4, 4, 4, true, true},
    {{1, 2, 3, 4}, {5, 6, 7, 8}, 0, 4, 4, false, false},
    {{1, 2, 3, 4}, {1, 2, 3, 5}, 3, 4, 4, false, false},
    {{1, 1, 2}, {1, 2, 2}, 4, 5, 5, false, false}, /* exactly 0.8, and the test is strict */
    {{1, 2, 3, 4, 5}, {1, 2, 3, 4}, 4, 5, 4, true, false},
    {{7, 7, 7, 7}, {7}, 4, 16, 1, true, true},
    {{0}, {1}, 0, 0, 1, false, false},
    {{10, 11, 12, 13, 14, 15, 16, 17, 18, 19},
     {10, 11, 12, 13, 14, 15, 16, 17, 18, 99},
     9,
     10,
     10,
     true,
     false},
    {{3, 3, 3, 5, 8, 8}, {3, 5, 5, 8, 8, 9}, 9, 14, 10, false, false},
    {{1, 2, 2, 3, 3, 3, 4}, {4, 3, 3, 3, 2, 2, 1}, 15, 15, 15, true, true},
};

static int32_t length_of(const int32_t *tokens)
{
    int32_t n = 0;
    while (n < 12 && tokens[n] != 0)
        n++;
    return n;
}

TEST(steps_are_alike)
{
    int32_t count[100] = {0}, id[2][12], times[2][12];
    for (size_t i = 0; i < PI_LEN(likes); i++) {
        struct share_bag a = {id[0], times[0], 0}, b = {id[1], times[1], 0};
        int64_t norm_b = share_bag_fill(&b, likes[i].b, length_of(likes[i].b), count);
        share_bag_clear(&b, count);
        int64_t norm_a = share_bag_fill(&a, likes[i].a, length_of(likes[i].a), count);
        int64_t dot = share_bag_dot(&b, count);
        share_bag_clear(&a, count);
        assert_int_equal(dot, likes[i].dot);
        assert_int_equal(norm_a, likes[i].norm_a);
        assert_int_equal(norm_b, likes[i].norm_b);
        assert_int_equal(share_alike(dot, norm_a, norm_b, 0.8), likes[i].at_8);
        assert_int_equal(share_alike(dot, norm_a, norm_b, 0.9), likes[i].at_9);
    }
    for (int32_t i = 0; i < 100; i++)
        assert_int_equal(count[i], 0);
}

/* Steps as long as a context of a million tokens: products beyond 64 bits. */
TEST(compares_steps_of_a_million_tokens)
{
    const int64_t n = 1000000;
    assert_true(share_alike(n * n, n * n, n * n, 0.999));
    assert_false(share_alike(n * n, n * n, n * n, 1.0));
    assert_true(share_alike(9 * n * n / 10 + 1, n * n, n * n, 0.9));
    assert_false(share_alike(9 * n * n / 10, n * n, n * n, 0.9));
}

/* ---- distance ---- */

/* Blocks of 2 layers, 2 tokens, 2 KV heads and 2 dimensions: [layer][token][head][dim]. */
static const float block_k[3][16] = {
    {1, 0, .5f, .5f, 0, 1, 1, 1, 2, 0, 0, 2, 1, -1, .5f, 0},
    {1, .3f, .5f, .1f, 0, 1, 1, 1, 2, 0, 0, 2, 1, -1, .5f, .5f},
    {-3, 4, 2.5f, -1.5f, 4, -3, -1, 5, -2, 6, 8, -2, -5, 3, .5f, 7},
};
static const float block_v[3][16] = {
    {.1f, .2f, .3f, .4f, .5f, .6f, .7f, .8f, 1, 1, 0, 0, 0, 1, 1, 0},
    {.1f, .2f, .3f, .4f, .5f, .6f, .7f, .9f, 1, 1, .6f, .8f, 0, 1, 1, 0},
    {2.1f, -1.8f, .3f, -2.6f, -1.5f, 3.6f, 2.7f, .8f, -1, 3, 2, -2, 4, 1, -1, 3},
};
static const struct kv_geometry small = {
    .n_layer = 2, .n_head = 2, .dim_k = 2, .dim_v = 2, .page_len = 2};

/* One lane of a block as runs give it: keys with entries side by side. */
static void lane_of(int32_t block, int32_t layer, int32_t head, float *k, float *v)
{
    for (int32_t t = 0; t < 2; t++)
        for (int32_t d = 0; d < 2; d++) {
            size_t at = (size_t)(((layer * 2 + t) * 2 + head) * 2 + d);
            k[d * 2 + t] = block_k[block][at];
            v[t * 2 + d] = block_v[block][at];
        }
}

static struct share_total compare(int32_t a, int32_t b, int32_t n_layer)
{
    struct share_total total = {0};
    for (int32_t l = 0; l < n_layer; l++) {
        struct share_sums sums[2];
        for (int32_t h = 0; h < 2; h++) {
            float row[4][4], work[4];
            lane_of(a, l, h, row[0], row[1]);
            lane_of(b, l, h, row[2], row[3]);
            const struct share_rows x = {row[0], row[1]}, y = {row[2], row[3]};
            share_lane_sums(&small, &x, &y, 2, NULL, work, &sums[h]);
        }
        share_total_add(&total, &small, sums, 2);
    }
    return total;
}

static void near_to(double x, double y)
{
    if (!(fabs(x - y) <= 1e-6 * (1.0 + fabs(y))))
        fail_msg("%.9g instead of %.9g", x, y);
}

TEST(distances_are_those_of_the_vectors)
{
    static const double paper[3][3] = {
        {0, 0.13125, 2.337197274777741}, {0, 0, 2.3192886216152155}, {0}};
    static const double relative[3][3] = {
        {0, 0.265477707291676, 1.4597650762183332}, {0, 0, 1.4415679027144082}, {0}};
    for (int32_t a = 0; a < 3; a++)
        for (int32_t b = a; b < 3; b++) {
            struct share_total t = compare(a, b, 2);
            near_to(share_total_paper(&t, 2), paper[a][b]);
            near_to(share_total_relative(&t), relative[a][b]);
            /* Without the shape: times sqrt(block h / dim). */
            near_to(share_total_rms(&t, 2), paper[a][b] * sqrt(2.0 * 2.0 / 2.0));
        }
    /* Of the pair that is apart one layer is enough to say so at 0.8. */
    struct share_total first = compare(0, 2, 1);
    near_to(share_total_paper(&first, 2), 0.9639134338419212);
}

/* Partial pages, dimensions that are not rotated, and both pairings of rotation: rotating to two
   positions leaves the distance unchanged. */
TEST(rotation_changes_no_distance)
{
    enum { DIM = 10, P = 16, N = 11 };
    double freq[4] = {1.0, 0.3, 0.05, 0.001};
    uint64_t seed = 5;
    for (int32_t adjacent = 0; adjacent < 2; adjacent++) {
        const struct pi_rope rope = {
            .n_pair = 4, .adjacent = adjacent == 1, .freq = freq, .magnitude = 1.25f};
        struct kv_geometry g = {.n_layer = 1, .n_head = 1, .dim_k = DIM, .dim_v = 6, .page_len = P};
        float a[DIM * P], b[DIM * P], ra[DIM * P], rb[DIM * P], v[6 * P] = {0}, work[DIM * P];
        float cs[8];
        for (int32_t i = 0; i < DIM * P; i++) {
            a[i] = rng_float(&seed);
            b[i] = a[i] + 0.1f * rng_float(&seed);
        }
        for (int32_t t = 0; t < P; t++)
            for (int32_t side = 0; side < 2; side++) {
                const float *from = side ? b : a;
                float *to = side ? rb : ra;
                pi_rope_fill(&rope, (side ? 700 : 40) + t, cs);
                for (int32_t d = 0; d < DIM; d++)
                    to[d * P + t] = from[d * P + t];
                for (int32_t f = 0; f < 4; f++) {
                    int32_t i = adjacent ? 2 * f : f, j = adjacent ? 2 * f + 1 : 4 + f;
                    float x = from[i * P + t], y = from[j * P + t];
                    to[i * P + t] = x * cs[2 * f] - y * cs[2 * f + 1];
                    to[j * P + t] = x * cs[2 * f + 1] + y * cs[2 * f];
                }
            }
        struct share_sums plain, turned;
        const struct share_rows x = {a, v}, y = {b, v}, rx = {ra, v}, ry = {rb, v};
        share_lane_sums(&g, &x, &y, N, NULL, work, &plain);
        pi_rope_fill_delta(&rope, 700 - 40, cs);
        const struct share_turn turn = {&rope, cs};
        share_lane_sums(&g, &rx, &ry, N, &turn, work, &turned);
        assert_true(fabs(plain.k - turned.k) < 1e-4 * plain.k);
        assert_true(fabs(plain.size - turned.size) < 1e-4 * plain.size);
        assert_true(turned.v == 0.0);
    }
}

/* ---- pages ---- */

/* Pages that lie in a step whole, where pages end every 16 tokens. */
TEST(finds_pages_that_lie_in_a_step)
{
    static const int32_t steps[][4] = {
        {0, 32, 0, 2},   {5, 37, 1, 2},  {5, 20, 1, 1},  {16, 31, 1, 1},
        {40, 100, 3, 6}, {40, 47, 3, 3}, {48, 48, 3, 3},
    };
    const struct kv_geometry g = {.n_layer = 1,
                                  .n_head = 1,
                                  .dim_k = 4,
                                  .dim_v = 4,
                                  .page_len = 16,
                                  .type_k = KV_TYPE_F32,
                                  .type_v = KV_TYPE_F32};
    struct kv_cache *cache;
    struct kv_seq *seq;
    struct share_page page[8];
    float rows[100 * 4] = {0};
    check(kv_cache_create(&g, 1 << 20, &cache, &err), &err);
    check(kv_seq_create(cache, &seq, &err), &err);
    check(kv_seq_reserve(seq, 100, &err), &err);
    kv_seq_append(seq, 0, 0, 0, 100, rows, 4, rows, 4);
    for (size_t i = 0; i < PI_LEN(steps); i++) {
        int32_t n = share_pages_inside(seq, steps[i][0], steps[i][1], page, 8);
        assert_int_equal(n, steps[i][3] - steps[i][2]);
        for (int32_t k = 0; k < n; k++) {
            assert_int_equal(page[k].at, 16 * (steps[i][2] + k));
            assert_int_equal(page[k].n, 16);
        }
    }
    /* The last page has 4 entries, and counts once it was ended. */
    assert_int_equal(share_pages_inside(seq, 80, 100, page, 8), 1);
    pages_close(seq);
    assert_int_equal(share_pages_inside(seq, 80, 100, page, 8), 2);
    assert_int_equal(page[1].n, 4);
    kv_seq_free(seq);
    kv_cache_free(cache);
}
