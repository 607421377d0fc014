/*
 * window.h - lanes of layers with a window: they hold what a later query can see, in whole pages.
 */
#ifndef PI_KV_WINDOW_H
#define PI_KV_WINDOW_H

#include "base/base.h"

struct kv_seq;

/* Bytes of pages that lanes with a window lack for n more entries. */
int64_t kv_seq_window_lacks(const struct kv_seq *seq, int32_t n);
/* Takes from the front of every lane with a window the full pages of which no query behind the
   lane's last entry sees anything. `hold`: a reservation goes on, and pages that are the lane's own
   stay reserved for its next entries; else they are given back, and all that it had reserved. A
   reservation counts on a call between any step_len entries of a lane. */
void kv_seq_slide(struct kv_seq *seq, bool hold);
/* Whether the lanes hold all that queries at positions >= pos see of what lies before pos: then a
   sequence can be truncated to pos and go on from there. */
bool kv_seq_reaches(const struct kv_seq *seq, int32_t pos);

#endif
