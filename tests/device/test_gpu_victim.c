/*
 * The entries that steps overwrite, as a device of GPU kind finds them (kv/victim.h), against loops
 * of the host. There are few different scores, entries in any order, and oldest entries that stay.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "kv/internal.h"
#include "kv/victim.h"
#include "gpu_rig.h"
#include "status.h"
#include "testing.h"

enum { N_HEAD = 3, DIM = 16, MOST = 400, N_CASE = 24 };

TEST_GROUP(NULL, free_gpu);

struct rig {
    struct kv_cache *cache;
    struct kv_seq *seq;
    int32_t next;
    uint64_t rng;
    float score[N_HEAD][MOST];
};

static void append(struct rig *r, int32_t n)
{
    static float row[MOST * DIM];
    for (int32_t i = 0; i < n * DIM; i++)
        row[i] = rng_float(&r->rng);
    check(kv_seq_reserve(r->seq, n, NULL), NULL);
    for (int32_t h = 0; h < N_HEAD; h++)
        kv_seq_append(r->seq, 0, h, r->next, n, row, DIM, row, DIM);
    r->next += n;
}

/* The same slot of all lanes gets a new entry. */
static void overwrite(struct rig *r, int32_t slot)
{
    for (int32_t h = 0; h < N_HEAD; h++)
        kv_seq_set_victim(r->seq, 0, h, slot);
    append(r, 1);
}

/* Marks of few different numbers, and scores of their own. */
static void draw(struct rig *r)
{
    for (int32_t h = 0; h < N_HEAD; h++) {
        float *sum = kv_lane_marks(r->seq, 0, h, 0), *seen = kv_lane_marks(r->seq, 0, h, 1);
        for (int32_t i = 0; i < kv_lane_len(r->seq, 0, h); i++) {
            sum[i] = (float)rng_below(&r->rng, 5) / 4.0f;
            seen[i] = (float)rng_below(&r->rng, 4);
            r->score[h][i] = rng_below(&r->rng, 40) == 0 ? INFINITY : (float)rng_below(&r->rng, 4);
        }
    }
}

/* ---- the host's way ---- */

static float score_of(const struct rig *r, const struct kv_victim_job *job, int32_t h, int32_t i)
{
    if (pi_at_some(job->score))
        return r->score[h][i];
    float sum = kv_lane_read_marks(r->seq, 0, h, 0)[i];
    if (job->kind == KV_WEIGH_MARK_NORM)
        return sum * pi_f32_from_bf16(kv_lane_norms(r->seq, 0, h)[i]);
    float seen = kv_lane_read_marks(r->seq, 0, h, 1)[i];
    return job->kind == KV_WEIGH_MARK_MEAN ? sum / (seen > 1.0f ? seen : 1.0f) : sum;
}

static int32_t host_victim(const struct rig *r, const struct kv_victim_job *job)
{
    int32_t n = kv_lane_len(r->seq, 0, 0), pos[MOST], best = -1;
    float lowest = 0.0f;
    kv_lane_positions(r->seq, 0, 0, pos, n);
    for (int32_t i = 0; i < n; i++) {
        int32_t n_older = 0;
        float x = score_of(r, job, job->head, i);
        for (int32_t h = job->head + 1; h < job->head + job->n_head; h++) {
            float y = score_of(r, job, h, i);
            x = job->mean ? x + y : x > y ? x : y;
        }
        for (int32_t j = 0; j < n; j++)
            n_older += pos[j] < pos[i];
        if (n_older < job->n_sink || pos[i] < job->lo || pos[i] >= job->hi)
            continue;
        if (best < 0 || x < lowest || (x == lowest && pos[i] < pos[best]))
            best = i, lowest = x;
    }
    return best;
}

/* ---- both ---- */

static struct kv_victim_job draw_job(struct rig *r, struct pi_at scores)
{
    static const enum kv_weigh_kind kinds[] = {KV_WEIGH_MARK, KV_WEIGH_MARK_MEAN,
                                               KV_WEIGH_MARK_NORM};
    int32_t head = (int32_t)rng_below(&r->rng, N_HEAD);
    struct kv_victim_job job = {.seq = r->seq,
                                .head = head,
                                .n_head =
                                    1 + (int32_t)rng_below(&r->rng, (uint32_t)(N_HEAD - head)),
                                .mean = rng_below(&r->rng, 2) == 0,
                                .stride = MOST,
                                .kind = kinds[rng_below(&r->rng, 3)],
                                .lo = (int32_t)rng_below(&r->rng, 30),
                                .hi = r->next - (int32_t)rng_below(&r->rng, 30),
                                .n_sink = (int32_t)rng_below(&r->rng, 7)};
    if (rng_below(&r->rng, 2) == 0)
        job.score = pi_at_item(scores, (size_t)head * MOST);
    if (rng_below(&r->rng, 8) == 0)
        job.hi = job.lo; /* nothing may go */
    return job;
}

static void compare(struct rig *r, struct pi_stream *s, struct pi_at room)
{
    struct kv_victim_job jobs[N_CASE];
    int32_t found[N_CASE], n_found = 0;
    struct pi_at out = pi_at_item(room, N_HEAD * MOST);
    draw(r);
    s->device->upload(s, r->score, sizeof(r->score), room);
    for (int32_t i = 0; i < N_CASE; i++) {
        jobs[i] = draw_job(r, room);
        jobs[i].out = pi_at_item(out, (size_t)i);
    }
    const struct kv_victim_list list = {jobs, N_CASE};
    s->device->victims(s, &list);
    memcpy(found, s->device->download(s, out, sizeof(found), found), sizeof(found));
    for (int32_t i = 0; i < N_CASE; i++) {
        assert_int_equal(found[i], host_victim(r, &jobs[i]));
        n_found += found[i] >= 0;
    }
    assert_true(n_found > N_CASE / 2 && n_found < N_CASE);
}

TEST(victims_are_the_lowest_that_may_go)
{
    struct pi_device *d = gpu();
    struct rig r = {.rng = 7};
    struct kv_geometry g = {.n_layer = 1,
                            .n_head = N_HEAD,
                            .dim_k = DIM,
                            .dim_v = DIM,
                            .page_len = 16,
                            .type_k = KV_TYPE_F16,
                            .type_v = KV_TYPE_F16,
                            .device = d};
    check(kv_cache_create(&g, 1 << 20, &r.cache, NULL), NULL);
    kv_cache_set_marks(r.cache, 2, true);
    kv_cache_note_marks(r.cache);
    kv_cache_note_places(r.cache);
    check(kv_seq_create(r.cache, &r.seq, NULL), NULL);
    struct pi_stream *s = d->open(d, &(struct pi_stream_shape){.n_thread = 1});
    struct pi_at room = d->alloc(d, PI_MEM_SCRATCH, (N_HEAD * MOST + N_CASE) * sizeof(float));
    assert_true(kv_lane_finds_victim(r.seq, 0, 0) == false); /* it has had no room */
    append(&r, 300);
    assert_true(kv_lane_finds_victim(r.seq, 0, 0));
    compare(&r, s, room);
    for (int32_t i = 0; i < 60; i++) /* behind the first entries, which are still the oldest */
        overwrite(&r, 10 + (int32_t)rng_below(&r.rng, 290));
    compare(&r, s, room);
    for (int32_t i = 0; i < 4; i++) /* the oldest are anywhere */
        overwrite(&r, i);
    compare(&r, s, room);
    int32_t slots[MOST], n = 0;
    for (int32_t i = 0; i < kv_lane_len(r.seq, 0, 0); i++)
        if (rng_below(&r.rng, 3) > 0)
            slots[n++] = i;
    for (int32_t h = 0; h < N_HEAD; h++)
        check(kv_seq_compact(r.seq, 0, h, slots, n, NULL), NULL);
    append(&r, 9);
    compare(&r, s, room);
    kv_seq_truncate(r.seq, r.next - 20);
    r.next -= 20;
    append(&r, 5);
    compare(&r, s, room);
    d->free(d, room);
    d->close(s);
    kv_seq_free(r.seq);
    kv_cache_free(r.cache);
}
