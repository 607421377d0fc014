/*
 * test_device_choose.c - choices among scores on a device, against a sort written down here. The
 * best or the worst of each lane are chosen, in parts or not, with ties; of all lanes together the
 * best are counted. Scores of many lanes in one call are the same as in one call each.
 */
#include <math.h>

#include "device/device.h"
#include "kv/kv.h"
#include "kv_check.h"
#include "near.h"
#include "testing.h"

enum { N_LANE = 12, MAX_N = 700, DIM = 32 };

static struct pi_stream *open_stream(int32_t n_thread)
{
    struct pi_device *d = pi_device_default();
    struct pi_stream *s = d->open(d, &(struct pi_stream_shape){.n_thread = n_thread});
    assert_non_null(s);
    return s;
}

/* Takes the k best of slots [begin, end) that are not taken, one after the other. */
static void take_slowly(const struct kv_choose_job *job, int32_t begin, int32_t end, int32_t k,
                        bool *taken)
{
    for (; k > 0; k--) {
        int32_t best = -1;
        for (int32_t i = begin; i < end; i++) {
            float x = job->score[i];
            bool better = best < 0 || (job->lowest ? x < job->score[best] : x > job->score[best]);
            if (!taken[i] && better)
                best = i;
        }
        assert_true(best >= 0);
        taken[best] = true;
    }
}

static void expect_choice(const struct kv_choose_job *job)
{
    bool taken[MAX_N] = {0};
    int32_t left = job->k, n = 0;
    for (int32_t p = 0, begin = 0; p < job->n_part; p++) {
        int32_t end = begin;
        double last = job->lo + (double)(job->hi - job->lo) * (p + 1) / job->n_part;
        while (end < job->n && job->pos[end] < last)
            end++;
        int32_t share = (end - begin) * job->k / job->n;
        take_slowly(job, begin, end, share, taken);
        left -= share;
        begin = end;
    }
    take_slowly(job, 0, job->n, left, taken);
    for (int32_t i = 0; i < job->n; i++)
        if (taken[i])
            assert_int_equal(job->slots[n++], i);
    assert_int_equal(n, job->k);
}

TEST(chooses_the_best_of_each_lane)
{
    static float score[N_LANE][MAX_N];
    static int32_t pos[MAX_N], slots[N_LANE][MAX_N];
    uint64_t rng = 11;
    struct pi_stream *s = open_stream(3);
    size_t size = pi_align(kv_choose_scratch_bytes(MAX_N), 64);
    uint8_t *scratch = test_malloc(3 * size);
    for (int32_t i = 0; i < MAX_N; i++)
        pos[i] = i;
    for (int32_t round = 0; round < 40; round++) {
        struct kv_choose_job jobs[N_LANE];
        for (int32_t l = 0; l < N_LANE; l++) {
            int32_t n = 1 + (int32_t)rng_below(&rng, MAX_N);
            for (int32_t i = 0; i < n; i++) /* every second time with ties */
                score[l][i] = l % 2 == 0 ? rng_float(&rng) : (float)rng_below(&rng, 7) - 3.0f;
            score[l][rng_below(&rng, (uint64_t)n)] = l % 3 == 0 ? INFINITY : -INFINITY;
            jobs[l] = (struct kv_choose_job){.score = score[l],
                                             .n = n,
                                             .k = (int32_t)rng_below(&rng, (uint64_t)n + 1),
                                             .lowest = round % 2 == 1,
                                             .n_part = round % 4 < 2 ? 0 : 1 + l,
                                             .pos = pos,
                                             .hi = n,
                                             .slots = slots[l]};
        }
        const struct kv_choose_list list = {jobs, N_LANE, 1 << 20, scratch, size};
        s->device->choose(s, &list);
        for (int32_t l = 0; l < N_LANE; l++)
            expect_choice(&jobs[l]);
    }
    test_free(scratch);
    s->device->close(s);
}

/* By age, of equal scores those at higher positions are taken, and of one position the later
   lane's. */
TEST(counts_the_best_of_all_lanes)
{
    static float score[N_LANE][MAX_N];
    static int32_t pos[MAX_N];
    uint64_t rng = 12;
    struct pi_stream *s = open_stream(1);
    for (int32_t i = 0; i < MAX_N; i++)
        pos[i] = i;
    for (int32_t round = 0; round < 60; round++) {
        struct kv_choose_lane lanes[N_LANE];
        bool taken[N_LANE][60] = {0};
        int32_t n_all = 0, want[N_LANE] = {0}, sum = 0;
        for (int32_t l = 0; l < N_LANE; l++) {
            lanes[l] = (struct kv_choose_lane){
                .score = score[l], .pos = pos, .n = (int32_t)rng_below(&rng, 60)};
            for (int32_t i = 0; i < lanes[l].n; i++)
                score[l][i] = (float)rng_below(&rng, 30) - 15.0f;
            n_all += lanes[l].n;
        }
        struct kv_choose_all job = {lanes, N_LANE, (int32_t)rng_below(&rng, (uint64_t)n_all + 1),
                                    round % 2 == 0};
        s->device->choose_all(s, &job);
        for (int64_t k = job.k; k > 0; k--) {
            int32_t lane = -1, best = 0;
            for (int32_t l = 0; l < N_LANE; l++)
                for (int32_t i = 0; i < lanes[l].n; i++) {
                    bool better = lane < 0 || score[l][i] > score[lane][best] ||
                                  (score[l][i] == score[lane][best] && i >= best);
                    if (!taken[l][i] && better) {
                        lane = l;
                        best = i;
                    }
                }
            taken[lane][best] = true;
            want[lane]++;
        }
        for (int32_t l = 0; l < N_LANE; l++) {
            if (job.by_age)
                assert_int_equal(lanes[l].n_top, want[l]);
            sum += lanes[l].n_top;
        }
        assert_int_equal(sum, job.k);
    }
    s->device->close(s);
}

TEST(scores_many_lanes_in_one_call)
{
    const struct kv_geometry g = {2,  N_LANE / 2,  DIM,         DIM,
                                  16, KV_TYPE_F16, KV_TYPE_F16, .index = KV_INDEX_NORM};
    static float out[N_LANE][MAX_N], alone[MAX_N], q[N_LANE][3 * DIM];
    struct kv_score_job jobs[N_LANE];
    struct kv_cache *cache = kv_check_cache(&g, N_LANE * (MAX_N / 16 + 2));
    struct kv_seq *seq;
    struct pi_stream *s = open_stream(2);
    size_t size = pi_align(kv_score_scratch_bytes(&g, 3), 64);
    uint8_t *scratch = test_malloc(2 * size);
    uint64_t rng = 13;
    assert_int_equal(kv_seq_create(cache, &seq, &err), PITH_OK);
    assert_int_equal(kv_check_append(seq, 5, 0, 300), PITH_OK);
    for (int32_t l = 0; l < N_LANE; l++) {
        for (int32_t i = 0; i < 3 * DIM; i++)
            q[l][i] = rng_float(&rng) - 0.5f;
        jobs[l] = (struct kv_score_job){.seq = seq,
                                        .layer = l / g.n_head,
                                        .head = l % g.n_head,
                                        .n = 300 - 7 * l,
                                        .kind = l % 2 == 0 ? KV_SCORE_DOT : KV_SCORE_COSINE,
                                        .reduce = KV_SCORE_MAX,
                                        .q = q[l],
                                        .n_q = 1 + l % 3,
                                        .out = out[l]};
    }
    const struct kv_score_list list = {
        .jobs = jobs, .n = N_LANE, .work = 1 << 20, .scratch = scratch, .scratch_size = size};
    s->device->score(s, &list);
    for (int32_t l = 0; l < N_LANE; l++) {
        jobs[l].out = alone;
        kv_score(&jobs[l], scratch);
        assert_memory_equal(out[l], alone, (size_t)jobs[l].n * sizeof(float));
    }
    test_free(scratch);
    s->device->close(s);
    kv_seq_free(seq);
    kv_cache_free(cache);
}
