/*
 * span.h - stretches of a lane that other entries stand for, by reference or by count.
 */
#ifndef PI_KV_SPAN_H
#define PI_KV_SPAN_H

#include "base/base.h"

struct kv_seq;

/* Makes room for n more table entries in every lane. NOMEM leaves everything as it was. */
pith_status kv_seq_reserve_runs(struct kv_seq *seq, int32_t n, pith_error *err);

/* Gives back the entries slot .. slot + n - 1 of a lane, wherever they lie in its pages, and lets
   those of (from_seq, same layer and head) from from_slot on stand there, which begins a run: the
   last of its runs as far as it is needed, read as if written delta positions later than from_seq
   reads them; counts go up and down. All count once, and of the same sequence they lie before.
   Slots stay what they are. The page of `slot` keeps its entries before, and the places behind stay
   empty until packing; what its page holds behind the stretch moves to that page's front, which is
   copied first where others point to it; pages that nothing is left of are given back. Marks come
   along, an aim at what goes is forgotten.
   A last entry of the table that is one of those and holds less than a page is closed: the next
   entry that is appended begins another page, however many that one could still take. A truncation
   that drops an entry of such a page, a compaction of its lane and a new entry in the place of one
   of its own open it again; one that is the last again, and whole, is still closed.
   The last page of from_seq may be open: its next kv_seq_reserve copies it. What either sequence
   had reserved before is not to be counted on, and places that packing does not close may become
   more: plan again (kv_seq_reserve_table).
   INVALID, also for a stretch in the middle of one page, which would take another; NOMEM without
   room in the table (kv_seq_reserve_runs); KV_FULL without a page for that copy: all leave
   everything as it was. */
pith_status kv_seq_share_span(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot,
                              int32_t n, const struct kv_seq *from_seq, int32_t from_slot,
                              int32_t delta, pith_error *err);
/* The bytes that are to be free for that copy; mostly 0. */
int64_t kv_lane_span_takes(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot,
                           int32_t n);

/* Drops the entries slot .. slot + n - 1 of a lane, which count once, in the same way, and lets
   those of its whole runs from from_slot on, n entries before `slot`, count once more, at most
   65536 times: attention reads each as if it stood there so many times (its logit plus the
   logarithm of that, once), and taps show it so; scores (kv_score), sums of values and marks know
   each entry once. The lane has no entries at the positions of those that go; where none follows
   them, the page that they began in takes entries again. Pages that count more than once take none,
   and an aim at one of theirs is forgotten. A compaction that keeps every entry of such a page
   leaves them their count, and that page apart; of another one's entries each counts once then. A
   truncation leaves counts as they are, a copy (kv_seq_copy) counts once. Takes no room in the
   table; else as above. */
pith_status kv_seq_fold_span(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot,
                             int32_t n, int32_t from_slot, pith_error *err);

#endif
