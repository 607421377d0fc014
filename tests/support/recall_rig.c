/* recall_rig.c - the shared part of the tests of recall's second tier. */
#define _DEFAULT_SOURCE /* mkstemp */
#include "recall_rig.h"
#include "kv_clear.h"
#include "mem_used.h"

struct kv_geometry rig_geometry(enum kv_type type)
{
    return (struct kv_geometry){.n_layer = RIG_LAYERS,
                                .n_head = RIG_HEADS,
                                .dim_k = RIG_DIM,
                                .dim_v = RIG_DIM,
                                .page_len = 16,
                                .type_k = type,
                                .type_v = type};
}

static struct kv_geometry lane_of(const struct kv_geometry *g)
{
    struct kv_geometry lane = *g;
    lane.n_layer = lane.n_head = 1;
    lane.page_len = RECALL_PAGE_LEN;
    lane.index = KV_INDEX_NORM;
    return lane;
}

int64_t rig_page_bytes(const struct kv_geometry *g)
{
    const struct kv_geometry lane = lane_of(g);
    return RIG_LANES * (int64_t)kv_page_bytes(&lane);
}

int64_t rig_place_bytes(const struct kv_geometry *g)
{
    return rig_page_bytes(g) + RIG_LANES * RECALL_HEAD_SIZE;
}

struct recall_kv_options rig_options(const struct kv_geometry *g, int32_t n_page)
{
    return (struct recall_kv_options){.ram = n_page * rig_page_bytes(g),
                                      .score = RECALL_QUOKA,
                                      .queries = 16,
                                      .block = 8,
                                      .last = 32};
}

/* ---- the log ---- */

static char log_line[1024];
static int32_t n_log;

static void take_line(void *user, pith_log_level level, const char *line)
{
    (void)user;
    if (level != PITH_LOG_WARN)
        return;
    snprintf(log_line, sizeof(log_line), "%s", line);
    n_log++;
}

int32_t rig_log(const char **line)
{
    int32_t n = n_log;
    n_log = 0;
    *line = log_line;
    return n;
}

/* ---- making ---- */

void rig_make(struct rig *r, const struct kv_geometry *g, int32_t capacity)
{
    *r = (struct rig){.rng = 42, .capacity = capacity};
    r->model = (struct policy_model){.g = *g, .n_group = RIG_GROUP, .scale = 0.125f};
    pith_log_set(take_line, NULL);
    mem_used(r->used);
    if (kv_cache_create(g, 2 * kv_bytes_for_tokens(g, capacity) + 8 * rig_page_bytes(g), &r->cache,
                        &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_int_equal(kv_seq_create(r->cache, &r->seq, &err), PITH_OK);
    assert_int_equal(kv_seq_create(r->cache, &r->guests, &err), PITH_OK);
    size_t n = (size_t)RIG_LANES * (size_t)capacity;
    r->key = pi_mem_alloc_n(PI_MEM_OTHER, n * RIG_DIM, sizeof(float));
    r->value = pi_mem_alloc_n(PI_MEM_OTHER, n * RIG_DIM, sizeof(float));
    r->gone = pi_mem_alloc_n(PI_MEM_OTHER, n, sizeof(bool));
    assert_true(r->key != NULL && r->value != NULL && r->gone != NULL);
}

void rig_open(struct rig *r, const struct recall_kv_options *o, int32_t n_thread)
{
    err = (pith_error){0};
    if (recall_tier_create(o, &r->model, r->cache, n_thread, &r->tier, &err) != PITH_OK ||
        recall_store_create(r->tier, &r->store, &err) != PITH_OK ||
        recall_tier_reserve(r->tier, 64, &err) != PITH_OK)
        fail_msg("%s", err.message);
}

void rig_free(struct rig *r)
{
    recall_store_free(r->store);
    recall_tier_free(r->tier);
    kv_seq_free(r->seq);
    kv_seq_free(r->guests);
    kv_cache_free(r->cache);
    pi_mem_free(r->key);
    pi_mem_free(r->value);
    pi_mem_free(r->gone);
    mem_check(r->used);
}

/* ---- entries ---- */

void rig_append_key(struct rig *r, int32_t n, int32_t pos, int32_t lane, const float *key)
{
    float k[RIG_DIM], v[RIG_DIM];
    assert_true(r->n_token + n <= r->capacity);
    if (kv_seq_reserve(r->seq, n, &err) != PITH_OK)
        fail_msg("%s", err.message);
    for (int32_t t = 0; t < n; t++, r->n_token++)
        for (int32_t l = 0; l < RIG_LANES; l++) {
            for (int32_t d = 0; d < RIG_DIM; d++) {
                k[d] = rng_float(&r->rng);
                v[d] = rng_float(&r->rng);
            }
            if (l == lane && r->n_token == pos)
                memcpy(k, key, sizeof(k));
            kv_seq_append(r->seq, l / RIG_HEADS, l % RIG_HEADS, r->n_token, 1, k, 0, v, 0);
        }
}

void rig_append(struct rig *r, int32_t n)
{
    rig_append_key(r, n, -1, -1, NULL);
}

static size_t entry_at(const struct rig *r, int32_t lane, int32_t pos)
{
    return (size_t)lane * (size_t)r->capacity + (size_t)pos;
}

bool rig_keep_none(int32_t lane, int32_t pos)
{
    (void)lane;
    (void)pos;
    return false;
}

void rig_evict(struct rig *r, rig_keep *keep)
{
    int32_t *kept = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)r->capacity, sizeof(*kept));
    for (int32_t l = 0; l < RIG_LANES; l++) {
        int32_t layer = l / RIG_HEADS, head = l % RIG_HEADS, n = 0;
        for (int32_t s = 0; s < kv_lane_len(r->seq, layer, head); s++) {
            int32_t pos = kv_lane_pos(r->seq, layer, head, s);
            if (keep(l, pos)) {
                kept[n++] = s;
                continue;
            }
            size_t at = entry_at(r, l, pos);
            kv_lane_key(r->seq, layer, head, s, r->key + at * RIG_DIM);
            kv_lane_value(r->seq, layer, head, s, r->value + at * RIG_DIM);
            r->gone[at] = true;
        }
        recall_store_remember(r->store, r->seq, layer, head, kept, n, 0);
        assert_int_equal(kv_seq_compact(r->seq, layer, head, kept, n, &err), PITH_OK);
    }
    pi_mem_free(kept);
}

void rig_check_needle(const struct kv_geometry *g, struct recall_kv_options o, rig_keep *keep,
                      int32_t depth)
{
    struct rig r;
    float q[8 * RIG_GROUP * RIG_DIM], key[RIG_DIM];
    int32_t n_guest[RIG_LANES], lane = depth % RIG_LANES;
    bool bounds = o.score == RECALL_BOUNDS; /* they say nothing of neighbours */
    o.block = bounds ? 1 : 16;
    rig_queries((uint64_t)depth + 7, 8, q);
    for (int32_t d = 0; d < RIG_DIM; d++) /* both heads of a token of the question look for it */
        q[(3 * RIG_GROUP + 1) * RIG_DIM + d] = q[3 * RIG_GROUP * RIG_DIM + d];
    for (int32_t d = 0; d < RIG_DIM; d++)
        key[d] = q[3 * RIG_GROUP * RIG_DIM + d] * rig_needle_factor(o.score);
    rig_make(&r, g, 2000);
    rig_open(&r, &o, 1);
    for (int32_t i = 0; i < 2000; i += 250) {
        rig_append_key(&r, 250, depth, lane, key);
        rig_evict(&r, i % 500 == 0 ? keep : rig_keep_none);
    }
    rig_recall(&r, q, 8, bounds ? 64 : 16, n_guest);
    rig_check_guests(&r, lane);
    for (int32_t p = depth; p < (bounds ? depth + 1 : depth + 12) && p < 2000; p++)
        assert_true(rig_has_guest(&r, lane, p));
    rig_free(&r);
}

/* ---- a file ---- */

char rig_path[64];

struct recall_kv_options rig_file_options(const struct kv_geometry *g, int32_t n_page,
                                          int32_t n_place)
{
    struct recall_kv_options o = rig_options(g, n_page);
    snprintf(o.file, sizeof(o.file), "%s", rig_path);
    o.size = RIG_FILE_BEGIN + n_place * rig_place_bytes(g);
    return o;
}

void rig_make_path(void)
{
    snprintf(rig_path, sizeof(rig_path), "/tmp/pith-recall-XXXXXX");
    close(mkstemp(rig_path));
}

void rig_remove_path(void)
{
    unlink(rig_path);
}

int64_t rig_count_gone(const struct rig *r)
{
    int64_t n = 0;
    for (size_t i = 0; i < (size_t)RIG_LANES * (size_t)r->capacity; i++)
        n += r->gone[i];
    return n;
}

/* ---- recalls ---- */

float rig_needle_factor(int32_t score)
{
    /* Cosines need none; bounds of pages of 64 random keys are loose. */
    return score == RECALL_BOUNDS ? 60.0f : score == RECALL_ATTENTION ? 3.0f : 1.5f;
}

void rig_queries(uint64_t seed, int32_t n_tok, float *q)
{
    for (int32_t i = 0; i < n_tok * RIG_GROUP * RIG_DIM; i++)
        q[i] = rng_float(&seed);
}

void rig_recall(struct rig *r, const float *q, int32_t n_tok, int32_t n_most, int32_t *n_guest)
{
    clear_lanes(r->guests, RIG_LANES / RIG_HEADS, RIG_HEADS);
    if (kv_seq_reserve(r->guests, n_most, &err) != PITH_OK)
        fail_msg("%s", err.message);
    for (int32_t l = 0; l < RIG_LANES; l++) {
        const struct recall_query query = {.layer = l / RIG_HEADS,
                                           .head = l % RIG_HEADS,
                                           .n_tok = n_tok,
                                           .n_group = RIG_GROUP,
                                           .pos0 = r->n_token,
                                           .q = q,
                                           .q_stride = RIG_GROUP * RIG_DIM,
                                           .own = r->seq};
        n_guest[l] = recall_store_choose(r->store, &query, r->guests, n_most, 0);
        assert_int_equal(n_guest[l], kv_lane_len(r->guests, l / RIG_HEADS, l % RIG_HEADS));
    }
}

void rig_check_guests(const struct rig *r, int32_t lane)
{
    int32_t layer = lane / RIG_HEADS, head = lane % RIG_HEADS, before = -1;
    float row[RIG_DIM];
    for (int32_t s = 0; s < kv_lane_len(r->guests, layer, head); s++) {
        int32_t pos = kv_lane_pos(r->guests, layer, head, s);
        assert_true(pos > before && pos < r->capacity);
        size_t at = entry_at(r, lane, pos);
        assert_true(r->gone[at]);
        kv_lane_key(r->guests, layer, head, s, row);
        assert_memory_equal(row, r->key + at * RIG_DIM, sizeof(row));
        kv_lane_value(r->guests, layer, head, s, row);
        assert_memory_equal(row, r->value + at * RIG_DIM, sizeof(row));
        before = pos;
    }
    assert_false(kv_lane_unordered(r->guests, layer, head));
}

bool rig_has_guest(const struct rig *r, int32_t lane, int32_t pos)
{
    int32_t layer = lane / RIG_HEADS, head = lane % RIG_HEADS;
    for (int32_t s = 0; s < kv_lane_len(r->guests, layer, head); s++)
        if (kv_lane_pos(r->guests, layer, head, s) == pos)
            return true;
    return false;
}
