/*
 * test_kv_devices.c - one budget over several devices. Layers are on the processor, and on a copy
 * of it that has room for less. Others are on the tests' own device where it is another one.
 */
#include "kv_check.h"
#include "testing.h"
#include "status.h"

#include "device/device.h"
#include "kv/copy.h"
#include "kv/span.h"

enum { N_LAYER = 5, N_HEAD = 2, DIM = 32, PAGE = 16, MOST_SEQ = 6, MOST_TOKEN = 200 };

static struct pi_device small; /* has room for little */
static const int32_t number[N_LAYER] = {0, 1, 2, 3, 4};
static uint64_t seed;

/* Layers 0 and 1 on the processor, 2 and 3 on the small device, 4 on the tests' own. */
static struct kv_geometry split(int64_t most, size_t state_bytes)
{
    struct kv_geometry g = {.n_layer = N_LAYER,
                            .n_head = N_HEAD,
                            .dim_k = DIM,
                            .dim_v = DIM,
                            .page_len = PAGE,
                            .type_k = KV_TYPE_F16,
                            .type_v = KV_TYPE_Q8_0,
                            .edge_k = {KV_TYPE_F32, 1, 0},
                            .state_bytes = 3 * state_bytes};
    struct pi_device *own = pi_device_of_tests();
    memcpy(&small, &pi_device_cpu, sizeof(small));
    small.name = "small";
    g.devices.n = own != NULL && own != &pi_device_cpu ? 3 : 2;
    g.devices.number = number;
    g.devices.part[0].device = &pi_device_cpu;
    g.devices.part[0].end = 2;
    g.devices.part[0].state_bytes = state_bytes;
    g.devices.part[1].device = &small;
    g.devices.part[1].end = g.devices.n == 3 ? 4 : N_LAYER;
    g.devices.part[1].state_bytes = (g.devices.n == 3 ? 1 : 2) * state_bytes;
    g.devices.part[1].most = most;
    g.devices.part[2].device = own;
    g.devices.part[2].end = N_LAYER;
    g.devices.part[2].state_bytes = state_bytes;
    return g;
}

/* Pages are within the budget, on each device within its room, and the parts are the whole. */
static void check_parts(const struct kv_cache *cache)
{
    const struct kv_devices *d = &kv_cache_geometry(cache)->devices;
    pith_kv_stats stats;
    struct kv_parts parts;
    int64_t used = 0, idle = 0;
    kv_cache_stats(cache, &stats);
    kv_cache_parts(cache, &parts);
    for (int32_t i = 0; i < d->n; i++) {
        struct kv_device_parts there;
        kv_cache_device_parts(cache, d->part[i].device, &there);
        assert_true(there.used >= 0 && there.used <= there.peak && there.peak <= there.most);
        assert_true(there.idle >= 0 && there.used + there.idle <= there.most);
        assert_true(d->part[i].most == 0 || there.most <= d->part[i].most);
        used += there.used;
        idle += there.idle;
    }
    assert_int_equal(used, stats.used_bytes);
    assert_int_equal(idle, parts.idle);
    assert_true(used + idle <= stats.reserved_bytes);
}

/* ---- single steps ---- */

static void append(struct kv_seq *seq, int32_t pos0, int32_t n)
{
    static float row[MOST_TOKEN * DIM];
    for (int32_t l = 0; l < N_LAYER; l++)
        for (int32_t h = 0; h < N_HEAD; h++) {
            for (int32_t i = 0; i < n * DIM; i++)
                row[i] = (float)rng_below(&seed, 1000) / 500.0f - 1.0f;
            kv_seq_append(seq, l, h, pos0, n, row, DIM, row, DIM);
        }
}

TEST(a_device_is_full_before_the_budget_is)
{
    struct kv_geometry g = split(1, 0);
    struct kv_cache *cache;
    struct kv_seq *seq;
    const int64_t page = (int64_t)kv_layer_page_bytes(&g, 2);
    int32_t lanes = (g.devices.part[1].end - 2) * N_HEAD, n = 0;
    expect(kv_cache_create(&g, 1 << 20, &cache, &err), &err, PITH_INVALID,
           "KV budget: small has room for 1 bytes of pages");
    g.devices.part[1].most = 3 * lanes * page;
    check(kv_cache_create(&g, 1 << 20, &cache, &err), &err);
    assert_true(kv_cache_free_bytes(cache) < 1 << 20); /* the small one bounds the others */
    check(kv_seq_create(cache, &seq, &err), &err);
    pith_status status;
    for (; (status = kv_seq_reserve(seq, 1, &err)) == PITH_OK; n++) {
        append(seq, n, 1);
        check_parts(cache);
    }
    assert_int_equal(n, 3 * PAGE);
    char want[128];
    snprintf(want, sizeof(want), "of %lld bytes on small, and 0 of %lld are free there",
             (long long)(lanes * page), (long long)(3 * lanes * page));
    expect(status, &err, PITH_KV_FULL, want);
    assert_int_equal(kv_seq_free_bytes(seq), 0); /* whatever lanes they are for */

    /* Lanes of other devices can still grow: a copy of a fork's page on the processor. */
    struct kv_seq *fork;
    int32_t slots[PAGE] = {0};
    for (int32_t i = 0; i < PAGE - 1; i++)
        slots[i] = i + 1;
    check(kv_seq_fork(seq, &fork, &err), &err);
    check(kv_seq_compact(fork, 0, 0, slots, PAGE - 1, &err), &err);
    expect(kv_seq_compact(fork, 2, 0, slots, PAGE - 1, &err), &err, PITH_KV_FULL, "on small");
    check_parts(cache);
    kv_seq_free(fork);
    kv_seq_free(seq);
    kv_cache_free(cache);
}

/* ---- random steps ---- */

struct run {
    struct kv_cache *cache;
    struct kv_seq *seq[MOST_SEQ];
    struct kv_swapped *away[MOST_SEQ];
    int32_t n_token[MOST_SEQ];
    int32_t n_full; /* statuses */
};

static bool full(struct run *r, pith_status status)
{
    if (status != PITH_KV_FULL)
        check(status, &err);
    r->n_full += status == PITH_KV_FULL;
    return status == PITH_KV_FULL;
}

static void grow(struct run *r, int32_t i)
{
    int32_t n = 1 + (int32_t)rng_below(&seed, 40);
    if (r->n_token[i] + n > MOST_TOKEN || full(r, kv_seq_reserve(r->seq[i], n, &err)))
        return;
    append(r->seq[i], r->n_token[i], n);
    r->n_token[i] += n;
}

/* Some lanes lose more than others, so that devices hold different shares. */
static void thin(struct run *r, int32_t i)
{
    int32_t l = (int32_t)rng_below(&seed, N_LAYER), h = (int32_t)rng_below(&seed, N_HEAD);
    int32_t slots[MOST_TOKEN], n = 0, len = kv_lane_len(r->seq[i], l, h);
    for (int32_t s = 0; s < len; s++)
        if (rng_below(&seed, 3) > 0)
            slots[n++] = s;
    full(r, kv_seq_compact(r->seq[i], l, h, slots, n, &err));
}

static void drop(struct run *r, int32_t i)
{
    kv_swapped_free(r->away[i]);
    kv_seq_free(r->seq[i]);
    r->seq[i] = NULL;
    r->away[i] = NULL;
    r->n_token[i] = 0;
}

static void fork_to(struct run *r, int32_t from, int32_t to)
{
    if (r->away[from] != NULL || from == to)
        return;
    drop(r, to);
    check(kv_seq_fork(r->seq[from], &r->seq[to], &err), &err);
    r->n_token[to] = r->n_token[from];
}

static void turn(struct run *r, int32_t i)
{
    if (r->away[i] == NULL)
        check(kv_seq_swap_out(r->seq[i], &r->away[i], &err), &err);
    else if (!full(r, kv_seq_swap_in(r->seq[i], r->away[i], &err)))
        r->away[i] = NULL;
}

static void step(struct run *r)
{
    int32_t i = (int32_t)rng_below(&seed, MOST_SEQ), what = (int32_t)rng_below(&seed, 12);
    if (r->seq[i] == NULL)
        check(kv_seq_create(r->cache, &r->seq[i], &err), &err);
    if (what < 2)
        turn(r, i);
    else if (what == 2)
        fork_to(r, i, (int32_t)rng_below(&seed, MOST_SEQ));
    else if (what == 3)
        drop(r, i);
    else if (r->away[i] != NULL)
        return;
    else if (what < 9)
        grow(r, i);
    else if (what < 11)
        thin(r, i);
    else {
        r->n_token[i] = (int32_t)rng_below(&seed, (uint32_t)r->n_token[i] + 1);
        if (kv_seq_state_reach(r->seq[i], r->n_token[i]) != r->n_token[i])
            r->n_token[i] = 0;
        kv_seq_truncate(r->seq[i], r->n_token[i]);
    }
}

static void random_steps(size_t state_bytes)
{
    struct kv_geometry g = split(0, state_bytes);
    struct kv_need one = kv_need_for_tokens(&g, PAGE);
    struct run r = {0};
    seed = 11;
    g.devices.part[1].most = one.part[1] * 11;
    check(kv_cache_create(&g, one.all * 13, &r.cache, &err), &err);
    for (int32_t n = 0; n < 3000; n++) {
        step(&r);
        check_parts(r.cache);
    }
    print_message("%d times full\n", r.n_full);
    assert_true(r.n_full > 100);
    for (int32_t i = 0; i < MOST_SEQ; i++)
        drop(&r, i);
    pith_kv_stats stats;
    kv_cache_stats(r.cache, &stats);
    assert_int_equal(stats.used_bytes, 0);
    kv_cache_free(r.cache);
}

TEST(no_step_exceeds_a_devices_room)
{
    random_steps(0);
}

TEST(nor_with_states)
{
    random_steps(100);
}
