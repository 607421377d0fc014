/*
 * read.h - the entries of a lane as floats: one by one, page by page, and the sum of their values.
 */
#ifndef PI_KV_READ_H
#define PI_KV_READ_H

#include "kv/type.h"

struct kv_seq;

/* The stored key or value of a slot, decoded to f32 and turned back where its type is rotated. */
void kv_lane_key(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot, float *out);
void kv_lane_value(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot, float *out);

/* A lane page by page: the runs 0, 1, ... of a lane, one after the other, are its slots. */
struct kv_run {
    int32_t slot;  /* of its first entry */
    int32_t n;     /* entries, 1..page_len */
    int32_t delta; /* read as if written that many positions later */
    int32_t count; /* each is read as if it stood there this many times */
};

int32_t kv_lane_runs(const struct kv_seq *seq, int32_t layer, int32_t head);
struct kv_run kv_lane_run(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i);
/* The stored keys of run i decoded to f32 with entries side by side, out [dim_k][page_len], and its
   values, out [page_len][dim_v]. Bit for bit the results of kv_lane_key and kv_lane_value; entries
   beyond the run are finite. */
void kv_lane_run_keys(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i, float *out);
void kv_lane_run_values(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i,
                        float *out);

/* The form of a lane's stored entries. A row has an entry's codes, their third bits where the type
   has them apart, and its scales. */
struct kv_form {
    enum kv_type type_k, type_v;
    size_t k_bytes, v_bytes; /* of a row; 0 of values that are parts of keys */
    int32_t group_k, group_v;
    size_t page_bytes; /* of a page, for kv_lane_raw */
};

void kv_lane_form(const struct kv_seq *seq, int32_t layer, int32_t head, struct kv_form *out);
/* Rows of entries from .. from + n - 1 as they are stored, at the positions of their writing: k
   [n][k_bytes], v [n][v_bytes]; either may be NULL. page [page_bytes] is scratch. */
void kv_lane_raw(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t from, int32_t n,
                 uint8_t *page, uint8_t *k, uint8_t *v);

/* The sum of the values of the lane's first n slots, out [dim_v], in the order of pages, and of
   slots within a page. With KV_INDEX_VALUE_SUM full pages are not read. */
void kv_lane_value_sum(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t n,
                       float *out);

#endif
