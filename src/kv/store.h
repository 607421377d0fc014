/*
 * store.h - the structs of the store: cache, sequence, lane, table entry, state and block.
 */
#ifndef PI_KV_STORE_H
#define PI_KV_STORE_H

#include <stdatomic.h>

#include "kv/class.h"
#include "kv/state.h"

/*
 * n is the table entry's own: two lanes that share a page may see different numbers of its entries.
 * Entries of different deltas cannot live in one page, because their keys were rotated at other
 * positions than they are read at. Nor can entries that count differently. A page may have been
 * closed early, and shared stretches begin and end within pages (span.c). So a page before the last
 * may hold fewer than P entries.
 */
struct kv_page_ref {
    int32_t page;      /* index into the class's pool */
    int32_t delta;     /* the entries are read as if written that many positions later */
    uint16_t n_folded; /* dropped entries that each stands for: it counts 1 + n_folded times
                          (kv_seq_fold_span) */
    uint8_t n;         /* entries, the first n of the page; 0 in a page that is only reserved */
    bool closed;       /* takes no more entries though it has room for some (span.h) */
};

enum { KV_COUNT_MAX = 1 << 16 }; /* the most that an entry counts */

/* The cache of one layer and KV head. Its pages are of the class `kind`. Slots count its entries in
   table order: slot 0 is the first entry of table[0], and table[i] begins where table[i - 1]
   ends. */
struct kv_lane {
    const struct kv_class *kind;     /* the cache's */
    const struct kv_page_ref *table; /* [cap], [n_page] in use; a part of the sequence's block;
                                        changed by kv_lane_edit */
    int64_t version;                 /* of the table: kv_lane_edit */
    _Atomic int64_t even;     /* 1 + a version at which no page had a delta or counted twice, */
    _Atomic int64_t unbroken; /* and at which there were no breaks; 0 where a page came since */
    int32_t n_page;           /* pages held; [n_live, n_page) are reserved beyond the entries */
    int32_t n_live;           /* pages with entries: table[0 .. n_live) */
    int32_t len;              /* entries, the sum of n */
    bool ragged;              /* a page before the last with entries holds fewer than P */
    bool unordered;     /* an entry was overwritten, and since then positions fall within a page, or
                       between pages of one delta; else they ascend in every page */
    int32_t top;        /* the largest position, delta included, of an unordered lane */
    int32_t victim;     /* 1 + the slot of the entry that the next one overwrites; 0: none */
    int32_t most;       /* pages that it is expected to hold one day; 0: not known */
    int32_t window;     /* the layer's; such a lane is never unordered */
    struct pi_at marks; /* on its device f32 [n_mark][cap * page_len], then norms bf16 [..]; none:
                           they are the host's alone */
    int32_t n_there; /* the first entries whose marks are the device's, and out of date on the host;
                        more than len where the lane was cut since */
    size_t mark_at;  /* where its own part of the sequence's marks begins, in bytes */
    int32_t mark_cap;    /* pages whose slots it has room for */
    int32_t mark_wanted; /* and is to have after the next kv_marks_fit */
};

/* A state is a page of a class of its own. */
struct kv_state {
    int32_t page;    /* -1: none, which is a state of zeros */
    int32_t n_token; /* whose state it is */
};

struct kv_cache {
    struct kv_geometry g;
    struct kv_class *kind; /* [n_kind], in the cache's own block */
    int32_t n_kind;
    struct kv_class *state; /* one of kind, whose pages are states; NULL: there are none */
    struct kv_class *more;  /* [n_more] behind kind: pools of the later parts of states, nothing
                                else. A page has its number in all of them */
    int32_t n_more;
    int64_t budget;          /* bytes of pages */
    int64_t limit;           /* of them those that may be taken now: kv_cache_set_limit */
    int64_t used;            /* of pages that are taken, at most the budget */
    int64_t peak;            /* the most they were */
    struct kv_need on;       /* of used: on each device */
    struct kv_need most_on;  /* the most they were there */
    int64_t table_bytes;     /* lists, and the lane heads, tables and marks of all sequences */
    int64_t aside_bytes;     /* of contents that are swapped out */
    bool moving;             /* some page is marked as moving */
    bool borrowed;           /* the caller owns the pools' memory (kv_cache_create_in) */
    int32_t n_mark;          /* floats beside every entry */
    bool value_norm;         /* beside them the L1 norm of the value, in bf16 */
    bool places;             /* the last mark is 1 + the entry's position, int32_t */
    bool marks_noted;        /* attention notes them, on the lane's device where that can */
    const float *projection; /* [n_layer][n_head][index_dim][dim_k] of KV_INDEX_PROJ; borrowed */
    int32_t n_seq;
    _Atomic int32_t
        clipped; /* twice the first layer of which a key was NaN or more than its type holds
                                (one more: a value); INT32_MAX: none was */
    struct kv_seq *first;   /* all sequences, for the account of live entries */
    struct kv_block *block; /* all blocks */
};

struct kv_seq {
    struct kv_cache *cache;
    struct kv_seq *prev, *next; /* the cache's list */
    struct kv_lane *lane;       /* [n_layer][n_head]; owned */
    struct kv_page_ref *table;  /* [n_layer][n_head][cap], one block for all lanes; owned */
    uint8_t *marks; /* the lanes' parts, one behind the other: f32 [n_mark][mark_cap * page_len] by
                       slot, then norms bf16 [mark_cap * page_len]; NULL without; owned */
    size_t marks_size;   /* bytes of the block */
    struct pi_at *there; /* [cache->n_kind] memory of marks on devices; NULL likewise; owned */
    int32_t cap;         /* table entries of a lane */
    struct kv_swapped
        *arriving;         /* what its pages come from; owned; NULL: it is not away any more */
    bool on_the_way;       /* they may not be there yet: kv_seq_land */
    struct kv_state state; /* the sequence's own */
    struct kv_state kept[KV_STATES_KEPT]; /* [n_kept] ascending */
    int32_t n_kept;
    int32_t state_wanted; /* kv_seq_want_state */
    bool charged;         /* kv_seq_charge_copies left marks */
};

/* One page of every lane, and the state after it. */
struct kv_block {
    struct kv_block *prev, *next; /* the cache's list */
    int32_t state;                /* page; -1: none is held */
    int32_t page[];               /* [n_layer][n_head] */
};

static inline struct kv_lane *kv_lane_at(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    return &seq->lane[(size_t)layer * (size_t)seq->cache->g.n_head + (size_t)head];
}

/* A pass of many sequences goes over thousands of lanes, each in lines of its own. These ask the
   processor's cache for them: a lane's head; then its last reference; then that page's positions
   and count. */
PI_ASKS kv_lane_ask(const struct kv_lane *lane)
{
    PI_ASK(lane);
    PI_ASK((const char *)(lane + 1) - 1);
}
PI_ASKS kv_lane_ask_tail(const struct kv_lane *lane)
{
    if (lane->n_live > 0)
        PI_ASK(&lane->table[lane->n_live - 1]);
}
PI_ASKS kv_lane_ask_page(const struct kv_lane *lane)
{
    if (lane->n_live == 0)
        return;
    const struct kv_page_ref *ref = &lane->table[lane->n_live - 1];
    PI_ASK(kv_page_pos(lane->kind, ref->page) + ref->n - (ref->n > 0));
    PI_ASK(&lane->kind->n_ref[ref->page]);
}
enum { KV_ASK_AHEAD = 8 /* lanes between two of them */ };

static inline int32_t kv_lane_count(const struct kv_cache *cache)
{
    return cache->g.n_layer * cache->g.n_head;
}

static inline int32_t kv_lane_number(const struct kv_seq *seq, const struct kv_lane *lane)
{
    return (int32_t)(lane - seq->lane);
}

#endif
