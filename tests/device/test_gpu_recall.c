/*
 * Recall of entries on a device of GPU kind: where the tier's pages are, and the scores that the
 * device makes there against the host's. The entries of a model that come back are the processor's.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/gpu/host.h"
#include "engine/engine.h"
#include "gpu_count.h"
#include "gpu_rig.h"
#include "near.h"
#include "recall_rig.h"
#include "status.h"
#include "testing.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"

enum {
    N_PAGE = 400, /* of a lane of the tier, 26 MB in all */
    N_FIRST = 60,
    N_TURN = 12,
    N_STEP = 3,
    MOST = 256,
    N_ASK = 24
};

static pith_error err;

TEST_GROUP(NULL, free_gpu);

/* ---- a tier ---- */

static bool keep_third(int32_t lane, int32_t pos)
{
    return (pos + lane) % 3 == 0;
}

/* Lanes of which two rounds evicted two thirds, and queries of their last tokens. */
struct lanes {
    struct rig r;
    float q[N_ASK * RIG_GROUP * RIG_DIM];
    struct pi_at q_at;
    struct pi_stream *stream;
};

static void open_lanes(struct lanes *l, enum kv_type type, int32_t tier, int32_t combine)
{
    struct pi_device *was = pi_device_register(gpu());
    const struct kv_geometry g = rig_geometry(type);
    struct recall_kv_options o = rig_options(&g, N_PAGE);
    o.score = RECALL_ATTENTION;
    o.combine = combine;
    o.type = tier;
    rig_queries(9, N_ASK, l->q);
    rig_make(&l->r, &g, 400);
    rig_open(&l->r, &o, 1);
    for (int32_t i = 0; i < 2; i++) {
        rig_append(&l->r, 150);
        rig_evict(&l->r, keep_third);
    }
    rig_append(&l->r, N_ASK);
    struct pi_device *d = gpu();
    l->q_at = d->alloc(d, PI_MEM_OTHER, sizeof(l->q));
    l->stream = d->open(d, &(struct pi_stream_shape){.n_thread = 1});
    d->upload(l->stream, l->q, sizeof(l->q), l->q_at);
    pi_device_register(was);
}

static void close_lanes(struct lanes *l)
{
    gpu()->close(l->stream);
    gpu()->free(gpu(), l->q_at);
    rig_free(&l->r);
}

static struct recall_query query_of(const struct lanes *l, int32_t lane, int32_t n_tok)
{
    return (struct recall_query){.layer = lane / RIG_HEADS,
                                 .head = lane % RIG_HEADS,
                                 .n_tok = n_tok,
                                 .n_group = RIG_GROUP,
                                 .pos0 = l->r.n_token - n_tok,
                                 .q = l->q,
                                 .q_at = l->q_at,
                                 .q_stride = RIG_GROUP * RIG_DIM,
                                 .own = l->r.seq};
}

/* Positions of a lane's guests. */
static int32_t guests_of(const struct lanes *l, const struct recall_query *query, int32_t *pos)
{
    int32_t n = kv_lane_len(l->r.guests, query->layer, query->head);
    kv_lane_positions(l->r.guests, query->layer, query->head, pos, n);
    return n;
}

static int32_t count_apart(const int32_t *a, const int32_t *b, int32_t n)
{
    int32_t apart = 0;
    for (int32_t i = 0; i < n; i++) {
        bool there = false;
        for (int32_t j = 0; j < n; j++)
            there = there || a[i] == b[j];
        apart += !there;
    }
    return apart;
}

/* The lanes of a layer, by n_tok queries: scores, guests and shares that are missed. Attention of
   the host's way rounds to f16, the device's scores do not. */
static void check_layer(struct lanes *l, int32_t layer, int32_t n_tok, int32_t *n, int32_t *apart)
{
    struct recall_ask ask[RIG_HEADS];
    enum { N_GUEST = 40 };
    int32_t want[N_GUEST], got[N_GUEST];
    for (int32_t h = 0; h < RIG_HEADS; h++) {
        ask[h] = (struct recall_ask){.store = l->r.store,
                                     .query = query_of(l, layer * RIG_HEADS + h, n_tok)};
        assert_true(recall_can_ask(l->r.store, &ask[h].query));
    }
    size_t gets = gpu_is_own() ? emulated_gets() : 0;
    recall_tier_ask(l->r.tier, ask, RIG_HEADS);
    assert_true(!gpu_is_own() || emulated_gets() == gets + 1);
    for (int32_t h = 0; h < RIG_HEADS; h++) {
        struct recall_query query = ask[h].query;
        query.value = NULL;
        check(kv_seq_reserve_whole(l->r.guests, (int32_t[]){N_GUEST, N_GUEST, N_GUEST, N_GUEST},
                                   &err),
              &err);
        assert_int_equal(recall_store_choose(l->r.store, &query, l->r.guests, N_GUEST, 0), N_GUEST);
        guests_of(l, &query, want);
        const float *value = l->r.tier->work->value;
        for (int32_t i = 0; i < kv_lane_len(l->r.store->row[layer * RIG_HEADS + h].kv, 0, 0); i++)
            near(ask[h].query.value[i], value[i], 4e-3 * value[i] + 1e-7);
        assert_int_equal(recall_store_choose(l->r.store, &ask[h].query, l->r.guests, N_GUEST, 0),
                         N_GUEST);
        guests_of(l, &query, got);
        *apart += count_apart(got, want, N_GUEST);
        *n += N_GUEST;
        float missed = recall_store_missed(l->r.store, &query, l->r.guests, 0);
        ask[h].guests = l->r.guests;
        recall_tier_ask(l->r.tier, &ask[h], 1);
        near(ask[h].missed, missed, 2e-3);
        assert_true(missed > 0.01f && missed < 1.0f);
    }
}

static void check_tier(enum kv_type type, int32_t tier, int32_t combine)
{
    static struct lanes l;
    int32_t n = 0, apart = 0;
    open_lanes(&l, type, tier, combine);
    assert_int_equal(l.r.tier->part[0].where, RECALL_ON_DEVICE);
    check_layer(&l, 0, 1, &n, &apart);
    check_layer(&l, 1, N_ASK, &n, &apart);
    printf("%s: %d of %d guests differ from the host's\n", kv_type_name(type), apart, n);
    assert_true(apart * 20 <= n);
    close_lanes(&l);
}

TEST(the_device_scores_its_lanes_with_one_wait)
{
    check_tier(KV_TYPE_F16, 0, RECALL_MAX);
    check_tier(KV_TYPE_Q8_0, 0, RECALL_SUM);
    check_tier(KV_TYPE_F16, RECALL_PACKED, RECALL_MAX); /* keys less their mean */
}

/* Where pages of the lanes leave no room for the tier's, those are pinned memory. The same entries
   come back. */
TEST(a_tier_without_room_is_in_pinned_memory)
{
    static struct lanes l;
    static float value[2][1024];
    if (!gpu_is_own())
        test_skip("memory of the emulation alone can be limited");
    for (int32_t i = 0; i < 2; i++) {
        gpu();
        if (i > 0)
            emulated_limit(emulated_given() + (12 << 20));
        open_lanes(&l, KV_TYPE_F16, 0, RECALL_MAX);
        assert_int_equal(l.r.tier->part[0].where, i == 0 ? RECALL_ON_DEVICE : RECALL_IN_PINNED);
        struct recall_ask ask = {.store = l.r.store, .query = query_of(&l, 1, N_ASK)};
        recall_tier_ask(l.r.tier, &ask, 1);
        memcpy(value[i], ask.query.value,
               (size_t)kv_lane_len(l.r.store->row[1].kv, 0, 0) * sizeof(float));
        close_lanes(&l);
    }
    emulated_limit((size_t)1 << 30);
    assert_memory_equal(value[0], value[1], sizeof(value[0]));
}

/* ---- a model ---- */

static pith_seq *run(pith_model *model, struct pi_device *d, int32_t chunk)
{
    pith_engine_params params;
    pith_engine *e;
    pith_seq *seq;
    int32_t ids[N_FIRST + N_TURN + N_STEP];
    pith_engine_params_default(&params);
    params.kv_tokens = 256;
    params.keep = "streaming:budget=40,slack=4,sinks=2";
    params.recall = "kv:last=8,take=12,ask=0.0001";
    params.chunk = chunk;
    for (int32_t i = 0; i < N_FIRST + N_TURN + N_STEP; i++)
        ids[i] = 300 + i * 37 % 211;
    struct pi_device *was = pi_device_register(d);
    check(pith_engine_create(model, &params, &e, &err), &err);
    pi_device_register(was);
    check(pith_seq_create(e, &seq, &err), &err);
    check(pith_seq_eval(seq, ids, N_FIRST, &err), &err);
    check(pith_seq_eval(seq, ids + N_FIRST, N_TURN, &err), &err);
    for (int32_t i = N_FIRST + N_TURN; i < N_FIRST + N_TURN + N_STEP; i++)
        check(pith_seq_eval(seq, ids + i, 1, &err), &err);
    return seq;
}

static void end(pith_seq *seq)
{
    pith_engine *e = seq->engine;
    pith_seq_free(seq);
    pith_engine_free(e);
}

static int32_t guests_apart(const pith_seq *a, const pith_seq *b, int32_t *n)
{
    const struct kv_geometry *g = kv_cache_geometry(a->engine->kv);
    int32_t x[MOST], y[MOST], apart = 0;
    *n = 0;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            int32_t len = kv_lane_len(a->recall.guests, l, h);
            assert_int_equal(len, kv_lane_len(b->recall.guests, l, h));
            kv_lane_positions(a->recall.guests, l, h, x, len);
            kv_lane_positions(b->recall.guests, l, h, y, len);
            apart += count_apart(x, y, len);
            *n += len;
        }
    return apart;
}

TEST(entries_come_back_as_on_the_processor)
{
    pith_model *model;
    pith_model_info info;
    int32_t n;
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    pith_model_get_info(model, &info);
    pith_seq *host = run(model, &pi_device_cpu, 64), *b = run(model, gpu(), 17), *a;
    if (gpu_is_own())
        gpu_count(emulated_card());
    a = run(model, gpu(), 64);
    if (gpu_is_own()) /* lanes of a layer together, and of a round */
        assert_in_range(gpu_launches[GPU_KERNEL_entry_copy], 1,
                        gpu_blocks[GPU_KERNEL_entry_copy] / 16);
    int32_t apart = guests_apart(a, host, &n);
    printf("%d of %d guests differ from the processor's\n", apart, n);
    assert_true(n > 0 && apart * 12 <= n);
    assert_int_equal(guests_apart(a, b, &n), 0);
    assert_memory_equal(pith_seq_logits(a), pith_seq_logits(b),
                        (size_t)info.n_vocab * sizeof(float));
    pith_memory_stats stats;
    pith_engine_memory_stats(a->engine, &stats);
    assert_true(stats.tier_device_bytes > 0 && stats.tier_device_bytes == stats.tier_bytes);
    pith_engine_memory_stats(host->engine, &stats);
    assert_int_equal(stats.tier_device_bytes, 0);
    end(host);
    end(a);
    end(b);
    pith_model_free(model);
}
