/*
 * copy.h - copies of entries in another sequence, of the same cache or another, and of whole pages.
 */
#ifndef PI_KV_COPY_H
#define PI_KV_COPY_H

#include "base/base.h"

struct kv_seq;

/* From where to where. Both caches have the same head sizes. */
struct kv_copy {
    const struct kv_seq *from;
    int32_t from_layer;
    int32_t from_head;
    struct kv_seq *to;
    int32_t to_layer;
    int32_t to_head;
    const float *shift; /* [dim_k] added to every key; NULL: nothing. For lanes that store keys
                           differently: else bytes would be codes of other keys */
};

/* Appends copies of entries, in the order of slots [n], to a lane that has room for them. They keep
   their positions, which need not ascend: the lane then counts as overwritten. If both lanes store
   keys or values alike, their bytes are copied; else they are decoded and stored anew. Their marks
   begin at 0. The entries are read at no delta. The table of references is not touched: copies to
   different lanes may be made at the same time. */
void kv_seq_copy(const struct kv_copy *c, const int32_t *slots, int32_t n);

/* The same in three steps, for entries from several places. The first makes the lane n entries
   longer, for which there is room. The second fills each entry. The third finishes all entries from
   a slot on: the index of full pages, marks, norms and order. The lane is not read in between. */
void kv_lane_extend(struct kv_seq *seq, int32_t layer, int32_t head, int32_t n);
void kv_lane_fill(const struct kv_copy *c, int32_t from_slot, int32_t to_slot);
void kv_lane_seal(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot);

/* Forgets all entries, and keeps the pages, so that there is room for as many without another
   reservation. Pages that others point to are given back and must be reserved again; a lane without
   them may be cleared while others are. */
void kv_lane_clear(struct kv_seq *seq, int32_t layer, int32_t head);

/* The number of the page of run i, the same in all lanes that share it. A copy of all bytes of the
   page, kv_layer_page_bytes of them. */
int32_t kv_lane_page(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i);
void kv_lane_get_page(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i,
                      uint8_t *out);
/* Appends a page with such bytes, of which the first n entries count, to a lane that has a page
   reserved for it. The bytes come from a lane of the same geometry, and are not checked. */
void kv_lane_put_page(struct kv_seq *seq, int32_t layer, int32_t head, const uint8_t *data,
                      int32_t n);
/* Forgets the entries of the first run, and gives its page back. */
void kv_lane_drop_first(struct kv_seq *seq, int32_t layer, int32_t head);

#endif
