/*
 * lane.h - one lane: its length, its positions, and which of its entries stay.
 */
#ifndef PI_KV_LANE_H
#define PI_KV_LANE_H

#include "base/base.h"

struct kv_seq;

int32_t kv_lane_len(const struct kv_seq *seq, int32_t layer, int32_t head);
/* Pages held, reserved ones included. */
int32_t kv_lane_pages(const struct kv_seq *seq, int32_t layer, int32_t head);
/* How many entries the last page takes before another one is needed; 0 where it takes none. */
int32_t kv_lane_room(const struct kv_seq *seq, int32_t layer, int32_t head);
/* How many pages more than its entries fill a lane can come to hold, whatever is kept of it and
   appended or overwritten: the places that packing closes no gap over (kv_seq_compact), and a last
   page with a delta or one that counts more than once, which takes no new entries. What closed
   pages leave free is not among it: packing fills it, and until then kv_lane_lacks tells what more
   entries take. 0 for a lane that shares nothing at other positions and folded none. */
int32_t kv_lane_breaks(const struct kv_seq *seq, int32_t layer, int32_t head);

/* ---- positions ---- */

/* Position of a slot, its page's delta included. Positions ascend with slots but where pages were
   shared at other positions and in lanes that were overwritten (kv_seq_aim). */
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
/* The largest position of a lane; -1 when it is empty. O(pages), O(1) for one that was overwritten.
 */
int32_t kv_lane_last(const struct kv_seq *seq, int32_t layer, int32_t head);

/* ---- changes ---- */

/* Keeps the entries at the given slots (ascending, n of them) of one lane, in their order, and
   gives back all pages that hold no entry then, reserved ones too. Pages are packed without gaps
   but where the delta changes or, after sharing, positions fall; in a lane that was overwritten,
   where they fall anyway, only where the delta changes; and but before and after a page that counts
   more than once and of which every entry is kept. Shared pages are copied before
   they change, which takes a free page for each. INVALID (slots not ascending or out of range),
   KV_FULL: lane unchanged. */
pith_status kv_seq_compact(struct kv_seq *seq, int32_t layer, int32_t head, const int32_t *slots,
                           int32_t n, pith_error *err);

/* What is to stay of a lane. */
struct kv_cut {
    int32_t layer;
    int32_t head;
    const int32_t *slots; /* [n] ascending; lanes may share the array */
    int32_t n;
};

/* The same for n_cut different lanes, which are packed by at most n_thread threads at the same
   time; which pages come free does not depend on them. INVALID, KV_FULL: no lane has changed. */
pith_status kv_seq_compact_lanes(struct kv_seq *seq, const struct kv_cut *cut, int32_t n_cut,
                                 int32_t n_thread, pith_error *err);

/* Lets a lane's entries before a slot, which begins a page or is the lane's end, be read as if
   written delta positions later than they were, whatever they are read at now. They must stay in
   order and below the entries that follow, but in a lane that was overwritten. Nothing is copied.
   */
void kv_seq_shift(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot, int32_t delta);

/* Lets a slot of a lane, 0 <= slot <= length, begin a page. Where it does not yet, that takes one
   page, and another where the slot's page is shared, and kv_seq_reserve_table had room for one.
   KV_FULL leaves the lane as it was. */
pith_status kv_seq_split(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot,
                         pith_error *err);

#endif
