/*
 * kv.h - the KV store: pools of pages, lanes that point into them, and attention over a lane. This
 * is the list of its headers, for files outside of kv/. ARCHITECTURE.md, "The store", defines page
 * and lane. Only files of kv/ change the cache.
 *
 * Owner: the thread that runs the engine. Append and attend on different lanes may run at the same
 * time; everything else may not.
 */
#ifndef PI_KV_H
#define PI_KV_H

#include "kv/attend.h"
#include "kv/block.h"
#include "kv/choose.h"
#include "kv/copy.h"
#include "kv/count.h"
#include "kv/geometry.h"
#include "kv/index.h"
#include "kv/lane.h"
#include "kv/marks.h"
#include "kv/note.h"
#include "kv/pool.h"
#include "kv/read.h"
#include "kv/save.h"
#include "kv/score.h"
#include "kv/seq.h"
#include "kv/span.h"
#include "kv/state.h"
#include "kv/swap.h"
#include "kv/top.h"
#include "kv/type.h"
#include "kv/window.h"

#endif
