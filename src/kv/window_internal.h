/*
 * window_internal.h - how many pages lanes with a window hold.
 */
#ifndef PI_KV_WINDOW_INTERNAL_H
#define PI_KV_WINDOW_INTERNAL_H

#include "kv/store.h"

/* The most pages that a lane with a window holds, for any entries appended. */
int32_t kv_window_pages(const struct kv_geometry *g, int32_t window);
/* How many more pages of its own a lane with a window can come to hold at a time. */
int32_t kv_lane_window_room(const struct kv_cache *cache, const struct kv_lane *lane);

#endif
