/*
 * Layers that choose for others, and one choice of all heads. A reader selects on a pass, in whole
 * lanes and in lanes that lost entries, by a policy whose scores a test can compute anew.
 */
#include "testing.h"

#include <string.h>

#include "mem_used.h"
#include "model/model.h"
#include "policy/read/read.h"
#include "status.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define N_TOKEN 200
#define CHUNK 16
#define MAX_CALL 1024

static pith_model *model;
static struct policy_model shape;
static int32_t tokens[N_TOKEN];

/* ---- a policy ---- */

/* Anything that depends on the entry, the lane, the query head and the chunk; many are equal. */
static float score_of(int32_t layer, int32_t head, int32_t pos, int32_t pos0)
{
    uint32_t x =
        (uint32_t)(layer * 31 + head) * 2654435769u ^ (uint32_t)pos * 40503u ^ (uint32_t)pos0 * 97u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (float)(x % 97);
}

static void score(const void *params, const struct read_view *view, const struct read_chunk *c,
                  float *out)
{
    (void)params;
    for (int32_t s = 0; s < c->n; s++)
        out[s] = score_of(c->layer, c->head * c->n_group,
                          kv_lane_written_pos(view->kv, c->layer, c->head, s), c->pos0);
}

static void score_heads(const void *params, const struct read_view *view,
                        const struct read_chunk *c, float *out)
{
    (void)params;
    for (int32_t g = 0; g < c->n_group; g++)
        for (int32_t s = 0; s < c->n; s++)
            out[g * c->n + s] =
                score_of(c->layer, c->head * c->n_group + g,
                         kv_lane_written_pos(view->kv, c->layer, c->head, s), c->pos0);
}

/* The first layer of the model chooses for the last; the layers between read everything. */
static enum read_role role_of(const void *params, const struct policy_model *m, int32_t layer)
{
    (void)params;
    return layer == 0 ? READ_SOURCE : layer == m->g.n_layer - 1 ? READ_REUSE : READ_DENSE;
}

/* Records its choice and the choice it was given, and finds both again. */
static void note_choice(const void *params, const struct read_view *view,
                        const struct read_chunk *c, const int32_t *slots, int32_t n_slot)
{
    (void)params;
    (void)view;
    for (int32_t i = 0; i < c->n_tok * c->n_group; i++)
        c->beside[i] = (float)(slots[n_slot - 1] + i + c->layer);
}

static void halve_output(const void *params, const struct read_view *view,
                         const struct read_chunk *c, float *out, size_t out_stride)
{
    (void)params;
    for (int32_t t = 0; t < c->n_tok; t++)
        for (int32_t g = 0; g < c->n_group; g++) {
            int32_t i = t * c->n_group + g;
            float expected = c->beside[0] + (float)i;
            assert_true(c->beside[i] == expected && c->beside[0] >= (float)c->layer);
            for (int32_t d = 0; d < view->model->g.dim_v; d++)
                out[(size_t)t * out_stride + (size_t)(g * view->model->g.dim_v + d)] *= 0.5f;
        }
}

static const struct read_policy following = {
    .name = "following", .summary = "", .citation = "", .role = role_of, .score = score};
static const struct read_policy united = {.name = "united",
                                          .summary = "",
                                          .citation = "",
                                          .role = role_of,
                                          .score = score_heads,
                                          .unites = true};
static const struct read_policy own = {
    .name = "own", .summary = "", .citation = "", .score = score};
static const struct read_policy adjusting = {.name = "adjusting",
                                             .summary = "",
                                             .citation = "",
                                             .score = score,
                                             .chosen = note_choice,
                                             .adjust = halve_output};

/* ---- a pass with a reader between it and the policy ---- */

struct call {
    int32_t layer, head, pos0, n_tok, n_slot;
    int32_t slots[N_TOKEN];
};

struct world {
    struct kv_cache *cache;
    struct kv_seq *kv;
    struct pi_pass *pass;
    struct read *read;
    struct pi_pass_reader inner;
    int32_t n_thread;
    int32_t n_layer, n_head, n_group;
    struct call call[MAX_CALL]; /* by layer, chunk and head */
    bool seen[MAX_CALL];
};

static size_t call_index(const struct world *w, int32_t layer, int32_t pos0, int32_t head)
{
    size_t i = (size_t)((layer * (N_TOKEN / CHUNK + 1) + pos0 / CHUNK) * w->n_head + head);
    assert_true(i < MAX_CALL);
    return i;
}

static void watch_select(void *user, const struct pi_pass_chunk *chunks, int32_t n)
{
    struct world *w = user;
    w->inner.select(w->inner.user, chunks, n);
    for (const struct pi_pass_chunk *c = chunks; c < chunks + n; c++)
        for (int32_t h = 0; h < w->n_head; h++) {
            int32_t pos0 = c->item->pos0 + c->t0, n_slot = c->n_slot[h];
            size_t i = call_index(w, c->layer, pos0, h);
            w->call[i] = (struct call){c->layer, h, pos0, c->n_tok, n_slot, {0}};
            w->seen[i] = true;
            if (n_slot > 0)
                memcpy(w->call[i].slots, c->slots + (size_t)h * (size_t)c->cap,
                       (size_t)n_slot * sizeof(*c->slots));
        }
}

static void watch_attended(void *user, const struct pi_pass_chunk *chunks, int32_t n)
{
    const struct world *w = user;
    w->inner.attended(w->inner.user, chunks, n);
}

static struct world *world_open(const struct read_policy *policy, const char *options,
                                int32_t n_thread)
{
    struct world *w = calloc(1, sizeof(*w));
    struct read_config config;
    struct policy_model m = shape;
    w->n_thread = n_thread;
    w->n_layer = m.g.n_layer;
    w->n_head = m.g.n_head;
    w->n_group = m.n_group;
    check(read_config_set(policy, options, &config, &err), &err);
    check(read_config_fit(&config, &m.g, &err), &err);
    check(kv_cache_create(&m.g, kv_bytes_for_tokens(&m.g, 2 * N_TOKEN), &w->cache, &err), &err);
    check(kv_seq_create(w->cache, &w->kv, &err), &err);
    check(pi_pass_create(model, &m.g, NULL, N_TOKEN, n_thread, &w->pass, &err), &err);
    check(read_create(&config, &m, n_thread, &w->read, &err), &err);
    read_reader(w->read, &w->inner);
    struct pi_pass_reader outer = w->inner;
    outer.user = w;
    outer.looks = NULL; /* always */
    outer.select = watch_select;
    outer.attended = w->inner.attended != NULL ? watch_attended : NULL;
    check(pi_pass_set_reader(w->pass, &outer, &err), &err);
    return w;
}

static void world_close(struct world *w)
{
    pi_pass_free(w->pass);
    kv_seq_free(w->kv);
    kv_cache_free(w->cache);
    read_free(w->read);
    free(w);
}

/* tokens [begin, end) in one pass, of which the first n_read are read. */
static void run(struct world *w, int32_t begin, int32_t end, int32_t n_read)
{
    struct pi_pass_item item = {.kv = w->kv,
                                .tokens = tokens + begin,
                                .n_tok = end - begin,
                                .pos0 = begin,
                                .n_read = n_read};
    int32_t n_chunk = (int32_t)pi_ceil_div(n_read, w->inner.chunk);
    memset(w->seen, 0, sizeof(w->seen));
    check(kv_seq_reserve(w->kv, end - begin, &err), &err);
    check(read_reserve(w->read, n_chunk, end, &err), &err);
    check(pi_pass_reserve_read(w->pass, n_chunk, read_most(w->read, end), &err), &err);
    pi_pass_run(w->pass, &item, 1);
}

/* ---- the same, computed anew ---- */

/* Whether entry s of a lane is always read. */
static bool is_always(const struct read_rules *r, int32_t s, int32_t n)
{
    return s < r->sinks || s >= n - r->recent;
}

/* The position of the k-th best entry of query head `head` of a source's lane that is not always
   read. */
static int32_t ranked(const struct world *w, const struct read_rules *r, int32_t head, int32_t n,
                      int32_t pos0, int32_t k)
{
    int32_t kv_head = head / w->n_group;
    for (int32_t s = 0; s < n; s++) {
        int32_t before = 0, p = kv_lane_written_pos(w->kv, 0, kv_head, s);
        float mine = score_of(0, head, p, pos0);
        for (int32_t i = 0; i < n; i++) {
            float other = score_of(0, head, kv_lane_written_pos(w->kv, 0, kv_head, i), pos0);
            before += !is_always(r, i, n) && (other > mine || (other == mine && i < s));
        }
        if (!is_always(r, s, n) && before == k)
            return p;
    }
    fail();
    return -1;
}

/* Marks the positions that the last layer is to read of a KV head, without those that are always
   read. */
static void source_choice(const struct world *w, const struct read_policy *policy, int32_t kv_head,
                          int32_t n, int32_t pos0, bool *chosen)
{
    const struct read_rules *r = &read_get_config(w->read)->rules;
    int32_t n_choose = read_budget_at(r, n) - r->sinks - r->recent, n_chosen = 0;
    for (int32_t k = 0; k < n_choose; k++)
        for (int32_t h = 0; h < (policy->unites ? w->n_head * w->n_group : 1); h++) {
            int32_t head = policy->unites ? h : kv_head * w->n_group;
            int32_t p = n_chosen < n_choose ? ranked(w, r, head, n, pos0, k) : -1;
            if (p >= 0 && !chosen[p]) {
                chosen[p] = true;
                n_chosen++;
            }
        }
    assert_int_equal(n_chosen, n_choose);
}

/* The entries that the last layer read in a pass of tokens [begin, end), after which nothing has
   changed. Returns how many chunks read a part of a lane there. */
static int32_t expect_followed(const struct world *w, const struct read_policy *policy,
                               int32_t begin, int32_t end)
{
    const struct read_rules *r = &read_get_config(w->read)->rules;
    int32_t last = w->n_layer - 1, n_sparse = 0;
    for (int32_t pos0 = begin; pos0 < end; pos0 += CHUNK)
        for (int32_t h = 0; h < w->n_head; h++) {
            int32_t later = end - pos0, n_own = (int32_t)pi_min(CHUNK, later), k = 0;
            int32_t n = kv_lane_len(w->kv, last, h) - later;
            int32_t n_source = kv_lane_len(w->kv, 0, h) - later;
            const struct call *c = &w->call[call_index(w, last, pos0, h)];
            bool chosen[N_TOKEN] = {0};
            for (int32_t l = 0; l < w->n_layer; l++) {
                assert_true(w->seen[call_index(w, l, pos0, h)]);
                if (l < last)
                    assert_int_equal(w->call[call_index(w, l, pos0, h)].n_slot, -1);
            }
            if (read_budget_for(r, n_source, n_own) == n_source ||
                read_budget_for(r, n, n_own) == n) {
                assert_int_equal(c->n_slot, -1);
                continue;
            }
            source_choice(w, policy, h, n_source, pos0, chosen);
            for (int32_t s = 0; s < n; s++)
                if (is_always(r, s, n) || chosen[kv_lane_written_pos(w->kv, last, h, s)]) {
                    assert_true(k < c->n_slot);
                    assert_int_equal(c->slots[k++], s);
                }
            for (int32_t t = 0; t < n_own; t++)
                assert_int_equal(c->slots[k++], n + t);
            assert_int_equal(c->n_slot, k);
            n_sparse++;
        }
    return n_sparse;
}

/* Takes every third entry out of one lane, and a few of another's first. */
static void thin(struct world *w)
{
    int32_t slots[N_TOKEN], n = 0, last = w->n_layer - 1;
    int32_t len = kv_lane_len(w->kv, last, 0);
    for (int32_t s = 0; s < len; s++)
        if (s % 3 != 1)
            slots[n++] = s;
    check(kv_seq_compact(w->kv, last, 0, slots, n, &err), &err);
    len = kv_lane_len(w->kv, last, w->n_head - 1);
    for (n = 0; n + 5 < len; n++)
        slots[n] = n + 5;
    check(kv_seq_compact(w->kv, last, w->n_head - 1, slots, n, &err), &err);
}

static void check_following(const struct read_policy *policy, const char *options)
{
    struct world *w = world_open(policy, options, 2);
    run(w, 0, 90, 90);
    assert_int_equal(expect_followed(w, policy, 0, 90), 3 * w->n_head); /* from 48, 64 and 80 on */
    run(w, 90, 97, 0);
    run(w, 97, 98, 1);
    memset(w->seen, 0, sizeof(w->seen));
    thin(w);
    run(w, 112, 150, 38); /* positions leave a gap, which changes nothing */
    assert_int_equal(expect_followed(w, policy, 112, 150), 3 * w->n_head);
    world_close(w);
}

TEST(layers_follow_the_one_that_chose)
{
    check_following(&following, "budget=24,chunk=16,gate=1.5");
    check_following(&following, "budget=24,chunk=16,gate=1.5,sinks=3,recent=4");
    check_following(&following, "budget=50%,chunk=16,gate=1,sinks=10,recent=22,dense-layers=2");
}

TEST(all_heads_read_one_choice)
{
    check_following(&united, "budget=24,chunk=16,gate=1.5");
    check_following(&united, "budget=24,chunk=16,gate=1.5,sinks=3,recent=4");
}

/* ---- every layer for itself ---- */

static void copy_logits(struct world *w, int32_t row, float *out)
{
    pi_pass_logits(w->pass, &row, 1, out);
}

/* chosen and adjust see the same lane of the same layer and no other, on any number of threads. */
TEST(chosen_and_adjust_see_the_same_lane)
{
    pith_model_info info;
    pith_model_get_info(model, &info);
    float *logits[3];
    for (int32_t i = 0; i < 3; i++) {
        static const struct read_policy *const policies[] = {&adjusting, &adjusting, &own};
        struct world *w = world_open(policies[i], "budget=24,chunk=16,gate=1", 1 + 2 * (i % 2));
        logits[i] = malloc((size_t)info.n_vocab * sizeof(float));
        run(w, 0, 120, 110);
        copy_logits(w, 119, logits[i]);
        world_close(w);
    }
    assert_memory_equal(logits[0], logits[1], (size_t)info.n_vocab * sizeof(float));
    assert_true(memcmp(logits[0], logits[2], (size_t)info.n_vocab * sizeof(float)) != 0);
    for (int32_t i = 0; i < 3; i++)
        free(logits[i]);
}

/* Calls over a choice are split where threads have nothing to do, with the same bits. */
TEST(many_threads_give_the_same_bits)
{
    pith_model_info info;
    pith_model_get_info(model, &info);
    float *logits[2];
    for (int32_t i = 0; i < 2; i++) {
        struct world *w = world_open(&own, "budget=30,chunk=128,gate=1", i == 0 ? 1 : 8);
        logits[i] = malloc((size_t)info.n_vocab * sizeof(float));
        run(w, 0, 70, 0);
        run(w, 70, 198, 128);
        copy_logits(w, 127, logits[i]);
        world_close(w);
    }
    assert_memory_equal(logits[0], logits[1], (size_t)info.n_vocab * sizeof(float));
    for (int32_t i = 0; i < 2; i++)
        free(logits[i]);
}

/* Of a lane that was overwritten, only the chunk of the token that did it is read whole. */
TEST(only_the_chunk_that_overwrote_is_read_whole)
{
    struct world *w = world_open(&own, "budget=24,chunk=16,gate=1", 1);
    run(w, 0, 60, 0);
    kv_seq_set_victim(w->kv, 1, 0, 20);
    run(w, 60, 100, 40);
    for (int32_t l = 0; l < w->n_layer; l++)
        for (int32_t pos0 = 60; pos0 < 100; pos0 += CHUNK)
            for (int32_t h = 0; h < w->n_head; h++) {
                const struct call *c = &w->call[call_index(w, l, pos0, h)];
                bool has_victim = l == 1 && h == 0;
                int32_t own_n = (int32_t)pi_min(CHUNK, 100 - pos0);
                assert_int_equal(c->n_slot, has_victim && pos0 == 60 ? -1 : 24 + own_n);
                if (c->n_slot > 0) {
                    assert_int_equal(c->slots[24], pos0 - has_victim);
                    assert_int_equal(kv_lane_pos(w->kv, l, h, c->slots[24]), pos0);
                }
            }
    world_close(w);
}

/* ---- the group ---- */

static void load_model(void)
{
    pith_model_info info;
    uint64_t rng = 12;
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    pith_model_get_info(model, &info);
    shape = (struct policy_model){.g = {.n_layer = info.n_layer,
                                        .n_head = info.n_head_kv,
                                        .dim_k = info.head_dim_k,
                                        .dim_v = info.head_dim_v,
                                        .page_len = 16,
                                        .type_k = KV_TYPE_F16,
                                        .type_v = KV_TYPE_F16},
                                  .n_group = info.n_head / info.n_head_kv,
                                  .scale = model->hp.attn_scale,
                                  .rope = &model->rope,
                                  .model = model};
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&rng, (uint64_t)info.n_vocab);
}

static void free_model(void)
{
    pith_model_free(model);
    mem_check(NULL);
}

TEST_GROUP(load_model, free_model);
