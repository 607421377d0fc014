/*
 * fuzz_snapshot.c - the snapshot reader on any bytes, as they are and with size and checksum made
 * right, and the store's operations on what it accepts. A finding is a sanitizer's report, a leak,
 * a refusal without a sentence, or a byte of the account that differs after a sequence came and
 * went.
 */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "kv/hash.h"
#include "kv/snapshot.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define N_PAGE 24
#define MAX_DIM 64

/* The shapes of fuzz/seeds.py. */
static const struct kv_geometry shapes[] = {
    {1, 2, 32, 64, 16, KV_TYPE_F16, KV_TYPE_Q8_0},
    {2, 1, 3, 5, 32, KV_TYPE_F32, KV_TYPE_F16},
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

/* Keeps every other entry of a lane, then appends to all. */
static void use(struct kv_seq *seq)
{
    const struct kv_geometry *g = kv_cache_geometry(seq->cache);
    static const float row[MAX_DIM];
    int32_t slots[N_PAGE * 64], n = 0, last = -1;
    struct kv_seq *fork = NULL;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            touch_lane(seq, l, h);
            for (int32_t s = 0; s < kv_lane_len(seq, l, h); s++)
                last = (int32_t)pi_max(last, kv_lane_pos(seq, l, h, s));
        }
    if (kv_seq_fork(seq, &fork, NULL) != PITH_OK)
        abort();
    for (int32_t s = 1; s < kv_lane_len(seq, 0, 0) && n < (int32_t)PI_LEN(slots); s += 2)
        slots[n++] = s;
    pith_status status = kv_seq_compact(fork, 0, 0, slots, n, NULL);
    if (status != PITH_OK && status != PITH_KV_FULL)
        abort();
    if (last < INT32_MAX - 2 && kv_seq_reserve(fork, 2, NULL) == PITH_OK)
        for (int32_t l = 0; l < g->n_layer; l++)
            for (int32_t h = 0; h < g->n_head; h++)
                kv_seq_append(fork, l, h, last + 1, 2, row, 0, row, 0);
    kv_seq_truncate(seq, last / 2);
    touch_lane(seq, 0, 0);
    touch_lane(fork, 0, 0);
    kv_seq_free(fork);
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
    kv_cache_stats(cache, &before);
    pith_status status =
        kv_snapshot_load(cache, "file", data, size, &seq, &extra, &extra_size, &err);
    if (status == PITH_OK)
        use(seq);
    else if (err.message[0] == 0 || err.status != status || seq != NULL || extra != NULL)
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
    put_le(sealed + size - KV_SNAPSHOT_SUM_SIZE, kv_hash_of(sealed, size - KV_SNAPSHOT_SUM_SIZE));
    for (size_t i = 0; i < PI_LEN(shapes); i++)
        load(&shapes[i], sealed, size);
    free(sealed);
    if (pi_mem_used(PI_MEM_TABLE) + pi_mem_used(PI_MEM_KV) + pi_mem_used(PI_MEM_OTHER) != 0)
        abort();
    return 0;
}
