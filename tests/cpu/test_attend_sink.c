/*
 * test_attend_sink.c - a sink takes its share of a row's attention and adds nothing. Output and
 * weights are as without it, times the remaining share. One of minus infinity is none, to the bit.
 */
#include "attend_check.h"

enum { N_ENTRY = 150, STRIDE = 160, MOST_GROUP = 16, MOST_ROWS = 90, DIM = 32 };

struct result {
    float out[MOST_ROWS * DIM];
    float weight[MOST_ROWS * STRIDE];
    float max[MOST_ROWS];
    float sum[MOST_ROWS];
};

static void attend_sink(const struct fixture *f, int32_t t, int32_t n, const float *sink,
                        struct result *r)
{
    const struct kv_geometry *g = &f->cache->g;
    size_t row = (size_t)(t * f->n_group);
    uint8_t *scratch = test_malloc(kv_attend_scratch_bytes(g, n * f->n_group));
    struct kv_attend_tap tap = {.weight = r->weight + row * STRIDE,
                                .row_stride = STRIDE,
                                .max = r->max + row,
                                .sum = r->sum + row};
    struct kv_attend_job job = {
        .seq = f->seq,
        .n_tok = n,
        .n_group = f->n_group,
        .pos0 = f->pos0 + t,
        .q = f->q + row * DIM,
        .q_stride = (size_t)(f->n_group * DIM),
        .scale = f->scale,
        .sink = sink,
        .out = r->out + row * DIM,
        .out_stride = (size_t)f->n_group * DIM,
        .tap = &tap,
    };
    kv_attend(&job, scratch);
    test_free(scratch);
}

/* size is that of the numbers that were added up to it. */
static void assert_near(double got, double want, double size, const char *what)
{
    if (!(fabs(got - want) <= 3e-6 * size))
        fail_msg("%s: %.9g, not %.9g", what, got, want);
}

/* Compares row r with its result without the sink. */
static void check_row(const struct result *with, const struct result *without, size_t r, float sink)
{
    double share = exp((double)sink - without->max[r]);
    double left = without->sum[r] / (without->sum[r] + share);
    for (size_t d = 0; d < DIM; d++)
        assert_near(with->out[r * DIM + d], without->out[r * DIM + d] * left, left, "output");
    for (size_t s = 0; s < N_ENTRY; s++)
        assert_near(with->weight[r * STRIDE + s], without->weight[r * STRIDE + s] * left, left,
                    "weight");
    assert_true(with->max[r] == fmaxf(sink, without->max[r]));
    double sum = (without->sum[r] + share) * exp((double)without->max[r] - with->max[r]);
    assert_near(with->sum[r], sum, sum, "sum");
}

static void check_call(struct fixture *f, uint64_t *rng, int32_t n_tok, int32_t n_group)
{
    static struct result with, without, parts;
    float sink[MOST_GROUP];
    queries(f, rng, n_tok, n_group, N_ENTRY - n_tok);
    for (int32_t g = 0; g < n_group; g++)
        sink[g] = -INFINITY;
    attend_sink(f, 0, n_tok, NULL, &without);
    attend_sink(f, 0, n_tok, sink, &with);
    size_t n_row = (size_t)(n_tok * n_group);
    assert_memory_equal(with.out, without.out, n_row * DIM * sizeof(float));
    assert_memory_equal(with.weight, without.weight, n_row * STRIDE * sizeof(float));
    for (int32_t g = 0; g < n_group; g++) /* some above all logits */
        sink[g] = rng_float(rng) * (g % 2 == 0 ? 3.0f : 40.0f);
    attend_sink(f, 0, n_tok, sink, &with);
    for (size_t r = 0; r < n_row; r++)
        check_row(&with, &without, r, sink[r % (size_t)n_group]);
    for (int32_t t = 0; t < n_tok; t++)
        attend_sink(f, t, 1, sink, &parts);
    assert_memory_equal(with.out, parts.out, n_row * DIM * sizeof(float));
    assert_memory_equal(with.weight, parts.weight, n_row * STRIDE * sizeof(float));
    test_free(f->q);
    test_free(f->out);
}

TEST(a_sink_takes_its_share_and_adds_nothing)
{
    static const int32_t calls[][2] = {{1, 1}, {1, 8}, {2, 3}, {30, 3}, {9, 10}};
    const enum kv_type types[] = {KV_TYPE_F32, KV_TYPE_F16, KV_TYPE_Q8_0};
    for (size_t i = 0; i < PI_LEN(types); i++) {
        struct kv_geometry g = geometry(DIM, DIM, 32, types[i], types[i], 0);
        struct fixture f;
        uint64_t rng = 7 + i;
        cache_open(&f, &g, N_ENTRY);
        append_random(f.seq, &rng, 0, N_ENTRY);
        for (size_t c = 0; c < PI_LEN(calls); c++)
            check_call(&f, &rng, calls[c][0], calls[c][1]);
        f.q = f.out = NULL;
        close_all(&f);
    }
}
