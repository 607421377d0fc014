/*
 * fuzz_snapshot.c - the snapshot reader on any bytes, as they are and with size and checksum made
 * right, and the store's operations on accepted snapshots. A finding is a sanitizer's report, a
 * leak or a refusal without a sentence. So is an account that differs after a sequence was restored
 * and freed.
 */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "engine/files.h"
#include "file/sum.h"
#include "kv/snapshot.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define N_PAGE 24
#define MAX_DIM 64

static volatile uint64_t seen; /* so that bytes which are only looked at are read */

/* The index parts to compute again for every file. */
#define INDEX (KV_INDEX_NORM | KV_INDEX_UNIT8 | KV_INDEX_COLUMNS | KV_INDEX_BOUNDS)

/* The shapes of fuzz/seeds.py, one with an index, one with layers of unlike types; the last one has
   latent lanes. */
static const struct kv_geometry shapes[] = {
    {1, 2, 32, 64, 16, .type_k = KV_TYPE_F16, .type_v = KV_TYPE_Q8_0},
    {2, 1, 3, 5, 32, .type_k = KV_TYPE_F32, .type_v = KV_TYPE_F16,
     .index = INDEX | KV_INDEX_VALUE_SUM},
    {2, 1, 32, 64, 16, .type_k = KV_TYPE_TURBO3, .type_v = KV_TYPE_Q4_0,
     .edge_k = {KV_TYPE_F16, 1, 0}},
    {1, 1, 64, 32, 16, .type_k = KV_TYPE_Q8_0, .type_v = KV_TYPE_Q8_0, .v_in_k = 32},
};

static void put_le(uint8_t *p, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(value >> (8 * i));
}

/* Reads every entry of a lane; the store promises finite numbers and positions in range. */
static void touch_lane(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    const struct kv_geometry *g = kv_cache_geometry(seq->cache);
    float row[MAX_DIM];
    for (int32_t s = 0; s < kv_lane_len(seq, layer, head); s++) {
        if (kv_lane_pos(seq, layer, head, s) < 0)
            abort();
        kv_lane_key(seq, layer, head, s, row);
        for (int32_t d = 0; d < g->dim_k; d++)
            if (!isfinite(row[d]))
                abort();
        kv_lane_value(seq, layer, head, s, row);
        for (int32_t d = 0; d < g->dim_v; d++)
            if (!isfinite(row[d]))
                abort();
    }
}

/* Attention with weights of a query that sees the entries up to a position. */
static void attend(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t pos)
{
    const struct kv_geometry *g = kv_cache_geometry(seq->cache);
    static const float q[MAX_DIM] = {1.0f, -1.0f, 0.5f};
    const struct pi_rope rope = {0};
    float out[MAX_DIM];
    size_t stride = pi_align((size_t)kv_lane_len(seq, layer, head), 16);
    float *weight = malloc((stride + 1) * sizeof(*weight));
    void *scratch = malloc(kv_attend_scratch_bytes(g, 1));
    struct kv_attend_tap tap = {.weight = weight, .row_stride = stride};
    struct kv_attend_job job = {.seq = seq,
                                .layer = layer,
                                .head = head,
                                .n_tok = 1,
                                .n_group = 1,
                                .pos0 = pos,
                                .q = q,
                                .scale = 1.0f,
                                .out = out,
                                .rope = &rope,
                                .tap = &tap};
    if (weight == NULL || scratch == NULL)
        abort();
    kv_attend(&job, scratch);
    for (int32_t d = 0; d < g->dim_v; d++)
        if (!isfinite(out[d]))
            abort();
    for (int32_t s = 0; s < kv_lane_len(seq, layer, head); s++)
        if (!(weight[s] >= 0.0f && weight[s] <= 1.001f) ||
            (weight[s] > 0.0f && kv_lane_pos(seq, layer, head, s) > pos))
            abort();
    free(weight);
    free(scratch);
}

/* The entry before the last of a lane is the next to be overwritten, if its page takes entries. */
static void set_victim(struct kv_seq *seq, int32_t layer, int32_t head)
{
    int32_t slot = kv_lane_len(seq, layer, head) - 2;
    if (kv_lane_can_overwrite(seq, layer, head, slot))
        kv_seq_set_victim(seq, layer, head, slot);
}

/* Keeps every other entry of a lane, then appends to all, over old entries too. */
static void use(struct kv_seq *seq)
{
    const struct kv_geometry *g = kv_cache_geometry(seq->cache);
    static const float row[MAX_DIM];
    int32_t slots[N_PAGE * 64], n = 0, last = -1;
    struct kv_seq *fork = NULL;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            touch_lane(seq, l, h);
            int32_t top = -1;
            for (int32_t s = 0; s < kv_lane_len(seq, l, h); s++)
                top = (int32_t)pi_max(top, kv_lane_pos(seq, l, h, s));
            if (kv_lane_last(seq, l, h) != top)
                abort();
            last = (int32_t)pi_max(last, top);
            attend(seq, l, h, top);
            attend(seq, l, h, top / 2);
        }
    if (kv_seq_fork(seq, &fork, NULL) != PITH_OK)
        abort();
    for (int32_t s = 1; s < kv_lane_len(seq, 0, 0) && n < (int32_t)PI_LEN(slots); s += 2)
        slots[n++] = s;
    pith_status status = kv_seq_compact(fork, 0, 0, slots, n, NULL);
    if (status != PITH_OK && status != PITH_KV_FULL)
        abort();
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            set_victim(fork, l, h);
    if (last < INT32_MAX - 2 && kv_seq_reserve(fork, 2, NULL) == PITH_OK)
        for (int32_t l = 0; l < g->n_layer; l++)
            for (int32_t h = 0; h < g->n_head; h++) {
                kv_seq_append(fork, l, h, last + 1, 2, row, 0, row, 0);
                attend(fork, l, h, last + 1);
            }
    kv_seq_truncate(seq, last / 2);
    touch_lane(seq, 0, 0);
    touch_lane(fork, 0, 0);
    kv_seq_free(fork);
}

/* The parts that the engine reads in the caller's bytes. It looks at every byte of every part. */
static void read_rest(const struct kv_seq *seq, const struct kv_geometry *g, const uint8_t *extra,
                      size_t size)
{
    struct pi_saved m;
    pith_error err = {0};
    pith_status status = pi_saved_read(seq, g, "file", extra, size, &m, &err);
    if (status != PITH_OK) {
        if (err.message[0] == 0 || err.status != status)
            abort();
        return;
    }
    size_t n_lane = (size_t)g->n_layer * (size_t)g->n_head, n_entry = 0;
    for (size_t l = 0; l < n_lane; l++)
        n_entry += (size_t)kv_lane_len(seq, (int32_t)l / g->n_head, (int32_t)l % g->n_head);
    uint64_t sum = pi_sum_of((const uint8_t *)m.tokens, m.head.n_token * sizeof(*m.tokens));
    if (m.victim != NULL)
        sum ^= pi_sum_of((const uint8_t *)m.victim, n_lane * sizeof(*m.victim)) ^
               pi_sum_of((const uint8_t *)m.mark, n_entry * m.head.n_mark * sizeof(*m.mark)) ^
               pi_sum_of(m.state, m.head.state_size) ^
               pi_sum_of((const uint8_t *)m.text, m.head.text_size);
    seen = sum;
}

static void load(const struct kv_geometry *g, const uint8_t *data, size_t size)
{
    struct kv_cache *cache = NULL;
    struct kv_seq *seq = NULL;
    void *extra = NULL;
    size_t extra_size;
    pith_kv_stats before, after;
    pith_error err = {0};
    if (kv_cache_create(g, N_PAGE * (int64_t)kv_page_bytes(g), &cache, NULL) != PITH_OK)
        abort();
    kv_cache_set_marks(cache, 2, true);
    kv_cache_stats(cache, &before);
    pith_status status =
        kv_snapshot_load(cache, "file", data, size, &seq, &extra, &extra_size, &err);
    if (status == PITH_OK) {
        read_rest(seq, g, extra, extra_size);
        use(seq);
    } else if (err.message[0] == 0 || err.status != status || seq != NULL || extra != NULL)
        abort();
    kv_seq_free(seq);
    pi_mem_free(extra);
    kv_cache_stats(cache, &after);
    if (status == PITH_OK)
        after.peak_bytes = before.peak_bytes;
    if (memcmp(&before, &after, sizeof(before)) != 0)
        abort();
    kv_cache_free(cache);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < PI_LEN(shapes); i++)
        load(&shapes[i], data, size);
    if (size < KV_SNAPSHOT_HEADER_SIZE + KV_SNAPSHOT_SUM_SIZE)
        return 0;
    uint8_t *sealed = malloc(size);
    if (sealed == NULL)
        return 0;
    memcpy(sealed, data, size);
    put_le(sealed + 16, size);
    put_le(sealed + size - KV_SNAPSHOT_SUM_SIZE, pi_sum_of(sealed, size - KV_SNAPSHOT_SUM_SIZE));
    for (size_t i = 0; i < PI_LEN(shapes); i++)
        load(&shapes[i], sealed, size);
    free(sealed);
    if (pi_mem_used(PI_MEM_TABLE) + pi_mem_used(PI_MEM_KV) + pi_mem_used(PI_MEM_OTHER) != 0)
        abort();
    return 0;
}
