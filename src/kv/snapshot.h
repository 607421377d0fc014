/*
 * snapshot.h - snapshots as bytes: the numbers of the format (docs/snapshot.md), the parser, and
 * loading from memory. save.h has the functions of files.
 */
#ifndef PI_KV_SNAPSHOT_H
#define PI_KV_SNAPSHOT_H

#include "kv/store.h"

#define KV_SNAPSHOT_MAGIC "PITHSNAP"
#define KV_SNAPSHOT_VERSION 8             /* a reader refuses every other */
#define KV_SNAPSHOT_CLOSED 0x80000000u    /* of a table entry's n */
#define KV_SNAPSHOT_UNORDERED 0x80000000u /* of a lane's u32: its positions need not ascend */

enum {
    KV_SNAPSHOT_HEADER_SIZE = 124,
    KV_SNAPSHOT_SECTION_SIZE = 12, /* tag and payload size before each payload */
    KV_SNAPSHOT_REF_SIZE = 16,
    KV_SNAPSHOT_SUM_SIZE = 8,
    KV_SNAPSHOT_N_FIELD = 7, /* of the shape, u32 each from offset 24 on */
    KV_SNAPSHOT_EDGES = 80,  /* offset of the types, */
    KV_SNAPSHOT_N_EDGE = 10, /* u32 each */
    KV_SNAPSHOT_V_IN_K = 120,
};

/* The shape as the file has it: n_layer, n_head, dim_k, dim_v, page_len, type_k, type_v. */
void kv_snapshot_fields(const struct kv_geometry *g, int32_t out[KV_SNAPSHOT_N_FIELD]);
/* The types at the ends: type, first and last of K's edge and of V's. Then the groups of
   type_k, type_v and the edges' types (kv_type_group), 0 where there is no edge. */
void kv_snapshot_edges(const struct kv_geometry *g, int32_t out[KV_SNAPSHOT_N_EDGE]);

/* The contents of a snapshot; points into the bytes that were parsed. */
struct kv_snapshot {
    struct kv_geometry g;
    struct kv_class kind[KV_CLASS_MAX]; /* pages of its layers, with keys entry by entry */
    int32_t n_kind;
    int32_t n_page;
    size_t n_ref;
    const uint8_t *lane;  /* [n_layer][n_head] u32 */
    const uint8_t *refs;  /* [n_ref][KV_SNAPSHOT_REF_SIZE] */
    const uint8_t *pages; /* [n_page] one after the other, each of its layer's bytes */
    size_t pages_size;
    const uint8_t *state; /* [state_size] i32 tokens, then floats */
    size_t state_size;    /* 0: there is none */
    const uint8_t *extra; /* [extra_size] */
    size_t extra_size;
};

/* A pure function of the bytes, which may lie at any address; name is for the sentence. FORMAT,
   UNSUPPORTED (another version). */
pith_status kv_snapshot_parse(const char *name, const uint8_t *bytes, size_t size,
                              struct kv_snapshot *out, pith_error *err);

/* Lane number l in it. */
struct kv_snapshot_lane {
    uint32_t n; /* table entries */
    bool unordered;
};
struct kv_snapshot_lane kv_snapshot_lane_at(const struct kv_snapshot *s, size_t l);

/* Table entry number i in it. */
struct kv_snapshot_ref {
    int32_t page;
    int32_t delta;
    int32_t n;
    int32_t count;
    bool closed;
};
struct kv_snapshot_ref kv_snapshot_ref_at(const struct kv_snapshot *s, size_t i);
uint32_t kv_snapshot_u32(const uint8_t *p);

/* kv_seq_load from memory. */
pith_status kv_snapshot_load(struct kv_cache *cache, const char *name, const uint8_t *bytes,
                             size_t size, struct kv_seq **out, void **extra, size_t *extra_size,
                             pith_error *err);

#endif
