/*
 * window.h - lanes of layers with a window: they hold the entries that later queries see, in whole
 * pages.
 */
#ifndef PI_KV_WINDOW_H
#define PI_KV_WINDOW_H

#include "kv/geometry.h"

struct kv_seq;

/* Bytes of pages that lanes with a window lack for n more entries. */
struct kv_need kv_seq_window_lacks(const struct kv_seq *seq, int32_t n);
/* Drops full pages from the front of every lane with a window, if no query after the lane's last
   entry sees them. `hold`: a reservation goes on, and the lane's own pages stay reserved for its
   next entries. Else they are given back, and so is the whole reservation. A reservation counts on
   a call between any step_len entries of a lane. */
void kv_seq_slide(struct kv_seq *seq, bool hold);
/* Whether the lanes hold all entries before pos that queries at positions >= pos see. Then a
   sequence can be truncated to pos and go on from there. */
bool kv_seq_reaches(const struct kv_seq *seq, int32_t pos);

#endif
