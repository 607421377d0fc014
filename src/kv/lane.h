/*
 * lane.h - one lane: its length, its positions, and which of its entries stay.
 */
#ifndef PI_KV_LANE_H
#define PI_KV_LANE_H

#include "base/base.h"

struct kv_seq;
struct pi_device;

int32_t kv_lane_len(const struct kv_seq *seq, int32_t layer, int32_t head);
/* The most entries of a lane of the first layers and heads, less the one that the next entry
   overwrites. */
int32_t kv_seq_most_staying(const struct kv_seq *seq, int32_t n_layer, int32_t n_head);
/* The device that has its pages. */
struct pi_device *kv_lane_device(const struct kv_seq *seq, int32_t layer, int32_t head);
/* Pages held, reserved ones included. */
int32_t kv_lane_pages(const struct kv_seq *seq, int32_t layer, int32_t head);
/* How many entries the last page takes before another one is needed; 0 where it takes none. */
int32_t kv_lane_room(const struct kv_seq *seq, int32_t layer, int32_t head);
/* How many pages more than its entries fill a lane can come to hold, for any entries kept, appended
   or overwritten. It counts the gaps that packing leaves (kv_seq_compact). It counts a last page
   with a delta, or one that counts more than once, since they take no new entries. It does not
   count the free places of closed pages (span.h): packing fills them, and until then kv_lane_lacks
   tells how many pages more entries take. 0 for a lane that shares nothing at other positions and
   folded nothing. */
int32_t kv_lane_breaks(const struct kv_seq *seq, int32_t layer, int32_t head);
/* Whether slot s is in page s / P, pages have no delta and count once, and positions ascend.
   O(pages). */
bool kv_lane_is_plain(const struct kv_seq *seq, int32_t layer, int32_t head);

/* ---- positions ---- */

/* Position of a slot, its page's delta included. Positions ascend with slots, except where pages
   were shared at other positions and in overwritten lanes (kv_seq_set_victim). */
int32_t kv_lane_pos(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot);
/* Whether the lane was overwritten, so that its positions may fall from slot to slot. */
bool kv_lane_unordered(const struct kv_seq *seq, int32_t layer, int32_t head);
/* The positions of the first n slots (n <= length), page by page: O(n) for any lane. */
void kv_lane_positions(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t *out,
                       int32_t n);
/* The same without the deltas: where the entries were written. */
int32_t kv_lane_written_pos(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot);
void kv_lane_written(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t *out,
                     int32_t n);
/* Whether two lanes hold the same positions, slot by slot, read and written, that count alike. */
bool kv_lane_agrees(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t other_layer,
                    int32_t other_head);
/* The largest position of a lane; -1 when it is empty. O(pages), O(1) for one that was
   overwritten. */
int32_t kv_lane_last(const struct kv_seq *seq, int32_t layer, int32_t head);

/* ---- changes ---- */

/* Keeps the entries at the given slots (n, ascending) of one lane, in their order. Gives back all
   pages that hold no entry then, reserved ones too.
   Pages are packed without gaps except where the delta changes, and, after sharing, where positions
   fall. In an overwritten lane positions fall anyway, and only the delta matters. A page that
   counts more than once, and of which every entry is kept, stays apart. Shared pages are copied
   before they change, which takes a free page for each.
   INVALID (slots not ascending or out of range), KV_FULL: lane unchanged. */
pith_status kv_seq_compact(struct kv_seq *seq, int32_t layer, int32_t head, const int32_t *slots,
                           int32_t n, pith_error *err);

/* The entries of a lane that stay. */
struct kv_cut {
    int32_t layer;
    int32_t head;
    const int32_t *slots; /* [n] ascending; lanes may share the array */
    int32_t n;
};

/* The same for n_cut different lanes, which at most n_thread threads pack at the same time. The
   same pages come free for any number of threads. INVALID, KV_FULL: no lane has changed. */
pith_status kv_seq_compact_lanes(struct kv_seq *seq, const struct kv_cut *cut, int32_t n_cut,
                                 int32_t n_thread, pith_error *err);

/* Reads a lane's entries before a slot as if written delta positions later than they were, instead
   of their old delta. The slot begins a page or is the lane's end. The entries must stay in order
   and below the following ones, except in an overwritten lane. Nothing is copied. */
void kv_seq_shift(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot, int32_t delta);

/* Lets a slot of a lane, 0 <= slot <= length, begin a page. If it does not yet, that takes one
   page, and another if the slot's page is shared; kv_seq_reserve_table made room for one table
   entry. KV_FULL leaves the lane as it was. */
pith_status kv_seq_split(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot,
                         pith_error *err);

#endif
