/*
 * span.h - replaces stretches of a lane by other entries, by reference or by count.
 */
#ifndef PI_KV_SPAN_H
#define PI_KV_SPAN_H

#include "base/base.h"

struct kv_seq;

/* A stretch is n entries of a lane from a slot on, which count once, wherever they lie in its
   pages. Both operations below give it back as follows. The page that it begins in keeps its
   earlier entries, and its later places stay empty until packing. The rest of the page that it ends
   in moves to that page's front; a shared page is copied first. Pages without entries are given
   back. A victim that goes is forgotten. Reservations of either sequence no longer count,
   and there may be more gaps that packing does not close: plan again (kv_seq_reserve_table).
   INVALID, also for a stretch in the middle of one page, which would take another one; KV_FULL
   without a page for the copy. An error leaves everything as it was. */

/* A closed page takes no new entries, though it has room: the next one begins another page. It
   opens again if a truncation drops one of its entries, a compaction packs its lane, or a new entry
   overwrites one of its own. It is still closed if it is the last page again, and whole. */

/* Entries of a page that counts c times are read as if each stood there c times. Attention adds
   log(c) to their logits, and taps show it. Scores (kv_score), sums of values and marks know each
   entry once. Such a page takes no new entries, and a victim among them is forgotten. A
   compaction that keeps all of its entries keeps it apart, with its count; if one is lost, the
   others count once. A truncation leaves counts as they are; entries that are copied (kv_seq_copy)
   count once. */

/* Makes room for n more table entries in every lane. NOMEM leaves everything as it was. */
pith_status kv_seq_reserve_runs(struct kv_seq *seq, int32_t n, pith_error *err);

/* Replaces the entries slot .. slot + n - 1 by n entries of another lane (from_seq, same layer and
   head), from from_slot on. They are read as if written delta positions later than from_seq reads
   them. Slots stay as they are, and marks come along. The table refers to the pages of from_seq,
   which are not copied. from_slot begins a run. The last of the runs is taken as far as it is
   needed. All entries count once; in the same sequence they lie before slot. The last page of
   from_seq may be open: its next kv_seq_reserve copies it. If the lane then ends in one of these
   pages, and that is not full, it is closed. NOMEM without room in the table
   (kv_seq_reserve_runs). */
pith_status kv_seq_share_span(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot,
                              int32_t n, const struct kv_seq *from_seq, int32_t from_slot,
                              int32_t delta, pith_error *err);
/* The bytes that must be free for the copy of a page that a stretch ends in; mostly 0. */
int64_t kv_lane_span_takes(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot,
                           int32_t n);

/* Drops the entries slot .. slot + n - 1, and lets the n entries from from_slot on count once more.
   Those are whole runs before slot, and count at most 65536 times. The lane has no other entries at
   the positions of the dropped ones. If no entry follows them, the page that they began in takes
   entries again. Takes no room in the table. */
pith_status kv_seq_fold_span(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot,
                             int32_t n, int32_t from_slot, pith_error *err);

#endif
