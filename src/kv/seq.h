/*
 * seq.h - sequences: making and freeing them, room for new entries, appending and truncating.
 */
#ifndef PI_KV_SEQ_H
#define PI_KV_SEQ_H

#include "base/base.h"
#include "device/device.h"
#include "kv/geometry.h"

struct kv_cache;
struct kv_seq;

pith_status kv_seq_create(struct kv_cache *cache, struct kv_seq **out, pith_error *err);
void kv_seq_free(struct kv_seq *seq);
/* Shares every page that holds entries. The reservations of seq no longer count, since its tail
   page is shared now: reserve again. Victims are copied, so that both go on alike. NOMEM. */
pith_status kv_seq_fork(const struct kv_seq *seq, struct kv_seq **out, pith_error *err);
const struct kv_geometry *kv_seq_geometry(const struct kv_seq *seq); /* its cache's */

/* ---- room ---- */

/* Bytes of a sequence's tables and marks at most, mark_size of each entry, while its lanes grow to
   n_entry entries, and to n_all together. */
int64_t kv_seq_bytes_at(const struct kv_geometry *g, size_t mark_size, int32_t n_entry,
                        int64_t n_all);

/* Makes room so that n more entries can be appended to every lane. The lane gets pages, and copies
   of shared ones that it writes to: the last one and the one that its victim is in. The first
   entry of a lane with a victim takes no room; if that is forgotten before, reserve again. INVALID
   for a negative n. KV_FULL or NOMEM leaves everything as it was. */
pith_status kv_seq_reserve(struct kv_seq *seq, int32_t n, pith_error *err);
/* Makes room for n[layer * n_head + head] entries in every lane, in pages of its own: the caller
   empties the lanes before it appends. Their entries stay until then. KV_FULL, NOMEM leave
   everything as it was. */
pith_status kv_seq_reserve_whole(struct kv_seq *seq, const int32_t *n, pith_error *err);
/* Tells that a lane will hold n entries one day. Pages side by side are then kept free for it as
   long as there are others, because memory in order is read faster. 0: not known, as at first.
   Takes no memory, and a fork inherits it. */
void kv_lane_expect(struct kv_seq *seq, int32_t layer, int32_t head, int64_t n);
/* Gives back pages that the lanes do not use (after a reservation that was not used). */
void kv_seq_trim(struct kv_seq *seq);
/* Bytes of pages that reserving room for n more entries takes (kv_seq_reserve), copies included; 0
   where n is not positive. */
int64_t kv_seq_takes(const struct kv_seq *seq, int32_t n);
/* Bytes of all pages held, reserved ones included. */
int64_t kv_seq_held_bytes(const struct kv_seq *seq);
/* Bytes of its tables and marks, of which the cache's statistics are the sum. */
int64_t kv_seq_beside_bytes(const struct kv_seq *seq);
/* Bytes that pages can still be taken for, whatever lanes they are of; and whether there is room
   for some whose lanes are known. */
int64_t kv_seq_free_bytes(const struct kv_seq *seq);
bool kv_seq_fits(const struct kv_seq *seq, const struct kv_need *need);

/* ---- room for a plan of compactions and reservations: after these two, later reservations of n
   entries in all need no memory but pages ---- */

/* Room for n more entries in every lane's page table, also with compactions between, no pages.
   NOMEM leaves all as it was. */
pith_status kv_seq_reserve_table(struct kv_seq *seq, int32_t n, pith_error *err);
/* The same where lanes without a window never hold more than n_all entries together. */
pith_status kv_seq_reserve_tables(struct kv_seq *seq, int32_t n, int64_t n_all, pith_error *err);
/* Pages that one lane takes to grow by n entries, beyond its reserved ones, if its last page is not
   shared. */
int64_t kv_lane_lacks(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t n);
/* The most bytes that copies of shared pages can take when compacting, appending and overwriting.
   Each holder of a page but the last may need one. A series of calls over several sequences charges
   a page no more often than that. Call kv_seq_clear_charges for each sequence at the end, and only
   kv_lane functions in between. */
struct kv_need kv_seq_charge_copies(struct kv_seq *seq);
void kv_seq_clear_charges(struct kv_seq *seq);

/* ---- entries in ---- */

/* Appends n entries at positions pos0, pos0 + 1, ... to one lane, the first one in the place of the
   victim, where there is one. Room was reserved. pos0 is above the position of the last entry, in
   an overwritten lane above all positions. Values beyond the range of the storage type are stored
   as its largest finite ones, NaN as 0.
   k: [n] rows of dim_k floats, k_stride floats apart, after rope. v likewise; it is not read if
   values are parts of keys. */
void kv_seq_append(struct kv_seq *seq, int32_t layer, int32_t head, int32_t pos0, int32_t n,
                   const float *k, size_t k_stride, const float *v, size_t v_stride);

/* The same for many lanes, in two steps, with rows on the device. The first step makes places for
   the entries in the tables, and the device's append writes them there. The lanes are not read in
   between. */
struct kv_append {
    struct kv_seq *seq;
    int32_t layer;
    int32_t head;
    int32_t pos0;
    int32_t n;
    struct pi_at k;
    size_t k_stride; /* floats */
    struct pi_at v;
    size_t v_stride;

    /* where they go, set by the first step */
    int32_t slot;       /* of the first one in its lane */
    int32_t n_over;     /* 1: that takes another one's place, in */
    int32_t over_index; /* this table entry */
    int32_t over_entry;
    int32_t index, entry; /* table entry, and place in its page, of the first of the others */
};

void kv_append_place(struct kv_append *jobs, int32_t n);

/* Lets the next entry that is appended to a lane overwrite the one at a slot, 0 <= slot < length.
   -1: it goes to the end, as in a new lane. Nothing else moves, and the lane does not grow. One
   append of n entries overwrites one and adds n - 1. Positions no longer ascend until a compaction
   or a truncation leaves them in order.
   The victim is forgotten by an append, a compaction, and a truncation that drops an entry of the
   lane. A shift, a shared stretch and a folded one forget it if they touch its entry. The next
   kv_seq_reserve copies the page if it is shared, and kv_seq_charge_copies counts that. Entries of
   a page with a delta, or that counts more than once, cannot be overwritten:
   kv_lane_can_overwrite. */
void kv_seq_set_victim(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot);
int32_t kv_lane_victim(const struct kv_seq *seq, int32_t layer, int32_t head);
bool kv_lane_can_overwrite(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot);
/* Whether a number was appended that is NaN or more than its storage type holds: the nearest number
   is stored. *layer and *value tell the first. Entries that a stream has not written yet do not
   count. */
bool kv_cache_clipped(const struct kv_cache *cache, int32_t *layer, bool *value);

/* ---- entries out ---- */

/* Drops every entry at a position >= pos from every lane, and gives back all pages that hold no
   entry then, reserved ones too. If the cache has states, there is one after pos tokens
   (kv_seq_state_reach). Nothing is copied: a lane sees less of a shared page, which kv_seq_reserve
   copies before it is written to. An overwritten lane differs: gaps within its pages are filled,
   which copies a shared page. If no page is free for the copy, the entries of the page after the
   first gap go, too. */
void kv_seq_truncate(struct kv_seq *seq, int32_t pos);
/* The bytes that are to be free so that kv_seq_truncate drops nothing below pos; mostly 0. */
int64_t kv_seq_truncate_copies(const struct kv_seq *seq, int32_t pos);

#endif
