/*
 * internal.h - the list of the headers inside of the store, for devices and tests. Files of kv/
 * include the headers that they use.
 */
#ifndef PI_KV_INTERNAL_H
#define PI_KV_INTERNAL_H

#include "kv/class.h"
#include "kv/index_internal.h"
#include "kv/kv.h"
#include "kv/lane_internal.h"
#include "kv/marks_internal.h"
#include "kv/page.h"
#include "kv/pool_internal.h"
#include "kv/read_internal.h"
#include "kv/seq_internal.h"
#include "kv/state_internal.h"
#include "kv/store.h"
#include "kv/type_internal.h"
#include "kv/window_internal.h"

#endif
