/*
 * store.h - the inside of the KV store, for the files of kv/ alone: what a page looks like in
 * memory, what a lane is, and who counts the references.
 */
#ifndef PI_KV_STORE_H
#define PI_KV_STORE_H

#include <stdatomic.h>

#include "base/mem.h"
#include "cpu/attend.h"
#include "device/device.h"
#include "kv/kv.h"

/*
 * A page holds P = page_len entries of one layer and KV head. Values are stored entry by entry.
 * Keys are, too, where the geometry has an index (kv.h): one key is then read at the cost of the
 * lines it lies in, and kernels put keys side by side on their way into registers (cpu/attend.h).
 * Without, they are stored side by side, in elements of 4 bytes, or 2 where a plane's values have 2
 * bytes or less than 2 bits: a value of f32, f16 or bf16, four codes of q8_0, 8 codes of 4 bits, 16
 * of 2 bits or 1 bit.
 *
 *                   K entry by entry, or side by side            V
 *   f32, f16, bf16  [P][dim] or [dim][P]                         [P][dim]
 *   q8_0            int8 [P][dim] or [dim / 4][P][4]             int8 [P][dim]
 *   q4_0, turbo4    [P][dim / 2] or [dim / 8][P][4]              [P][dim / 2]
 *   turbo3, turbo2  [P][dim / 4] or [dim / 16][P][4]             [P][dim / 4]   lower two bits
 *   turbo3, then    [P][dim / 8] or [dim / 16][P][2]             [P][dim / 8]   bit 2
 *   then, of types with scales, f16
 *                   [P][dim / group] or [dim / group][P]         [P][dim / group]
 *   behind both     what the geometry's index has (struct kv_page_layout)
 *
 * Positions int32 [P] lie apart, in an array of all pages of a class (kv_class.pos): what only asks
 * where entries stand reads no page.
 *
 * Where values are parts of keys (kv_geometry.v_in_k), keys are stored entry by entry and V has no
 * bytes: a value is that stretch of its key's row, with K's distance from one row to the next.
 *
 * A stored value of q8_0 is scale * code, of the types of fewer bits scale * table[code], rounded
 * once, with the scale of its group of dimensions (kv_type_group). Codes are packed little end
 * first (cpu/attend.h).
 *
 * Every part starts at a multiple of 64 bytes. Entries fill a page from its first slot on, in
 * ascending order of position but in lanes that were overwritten. Slots that hold no entry contain
 * finite values.
 */
struct kv_page_layout {
    bool side_by_side; /* keys */
    size_t k;          /* offset of K, its codes or their lower bits; always 0 */
    size_t k_high;     /* of bit 2 of K's codes, turbo3 only */
    size_t k_scale;    /* offset of K's scales, types with scales only */
    size_t k_end;      /* where the parts of V begin, if it has some */
    size_t v;          /* of a value, which may be a part of a key */
    size_t v_high;
    size_t v_scale;
    size_t stored; /* bytes of these parts, what follows is made from (a multiple of 64) */
    size_t saved;  /* the same with positions behind them, as files have pages */

    /* index.c; where the geometry has them */
    size_t norm;       /* f32 [P] */
    size_t unit;       /* uint8_t [P][kv_unit_dim], codes + 128 */
    size_t unit_scale; /* f32 [P] */
    size_t columns;    /* f16 [dim_k][P] */
    size_t proj;       /* f16 [P][index_dim] */
    size_t bounds;     /* f32 [2][dim_k], the least values and the largest */
    size_t value_sum;  /* f32 [dim_v] */

    size_t stride; /* bytes from one page to the next, a multiple of 64 */
    size_t bytes;  /* that a page is charged: these, and its positions */
    size_t entry;  /* bytes of one entry in all parts and its position, without padding */
    size_t whole;  /* bytes beyond those of its entries that a full page has, without padding */
};

/* A plane of keys or values: rows of an entry each, cut into elements where they lie side by side.
 */
struct kv_plane {
    size_t at;      /* offset in a page */
    size_t row;     /* bytes of an entry, 0 where the type has no such plane */
    size_t element; /* bytes */
    size_t pitch;   /* bytes from one row to the next, where they lie entry by entry */
};

enum { KV_PLANE_LOW, KV_PLANE_HIGH, KV_PLANE_SCALE, KV_N_PLANE };

/* The keys or values of a class of pages. */
struct kv_part {
    enum kv_type type;
    const struct kv_codec *codec; /* the type's */
    int32_t dim;
    int32_t group; /* kv_type_group */
    struct kv_plane plane[KV_N_PLANE];
};

/*
 * Pages of one size and form, those of all layers with a pair of types: a pool of their own in
 * address space, of as many pages as the whole budget pays for. Page numbers count within it.
 * Memory is given to pages as they are touched, and taken from free ones again where all classes
 * together would hold more than the budget (pool.c).
 */
struct kv_class {
    enum kv_type type_k;
    enum kv_type type_v;
    int32_t group_k; /* of k and value below */
    int32_t group_v;
    struct kv_part k;
    struct kv_part v;     /* what is stored beside keys: of no dimension where nothing is */
    struct kv_part value; /* where values are read: v, or a part of k */
    int32_t v_pitch;      /* dimensions from one value to the next: dim_v, or dim_k */
    struct kv_page_layout layout;

    int32_t number;    /* in the cache's list */
    struct pi_at pool; /* [n_page][layout.stride] on the device, one mapping; owned by the cache */
    size_t pool_size;
    int32_t *pos; /* [n_page][page_len] as written, one mapping; NULL: of states; owned likewise */
    size_t pos_size;
    int32_t page_len;
    int32_t n_page;
    int32_t n_used;
    void *lists; /* one mapping that holds the six arrays; owned by the cache */
    size_t lists_size;
    uint64_t *taken;    /* [ceil(n_page / 64)] bit p % 64 of word p / 64 is set when p is in use */
    uint64_t *left;     /* likewise: free, and better taken by the lane of the page before p */
    uint64_t *resident; /* likewise: the system may have given p memory */
    int32_t *n_ref;     /* [n_page] table entries that point to the page, and blocks that hold it */
    int32_t *n_held;    /* [n_page] of these the blocks */
    uint8_t *n_entry;   /* [n_page] scratch of counts (kv_cache_stats, charges); zero between */
    int32_t low_word;   /* no word of `taken` below it has a clear bit */
    int32_t n_resident; /* bits of `resident` */
    int32_t n_shared;   /* pages that more than one table entry points to */
    int64_t n_ref_extra; /* the sum of those beyond each one's first */
};

enum { KV_CLASS_MAX = 5 }; /* two types of keys with two of values, and states */

/* The form of pages of a geometry's layers with a pair of types; no pool. */
void kv_class_make(const struct kv_geometry *g, enum kv_type type_k, enum kv_type type_v,
                   struct kv_class *out);
/* The forms of all layers, in the order in which they come first; returns their number. */
int32_t kv_classes_make(const struct kv_geometry *g, struct kv_class kind[KV_CLASS_MAX]);
/* That of a layer among them. */
const struct kv_class *kv_class_of(const struct kv_class *kind, const struct kv_geometry *g,
                                   int32_t layer);

/*
 * n is the table entry's own: two lanes that share a page may see different numbers of its entries.
 * Entries of different deltas cannot live in one page, because their keys were rotated at other
 * positions than they are read at, nor can those that count differently; a page may have been
 * closed early, and what others stand for begins and ends within pages (span.c). So a page before
 * the last may hold fewer than P entries.
 */
struct kv_page_ref {
    int32_t page;  /* index into the class's pool */
    int32_t delta; /* the entries are read as if written that many positions later */
    uint16_t more; /* and as if each stood there so many times more than once (kv_seq_fold_span) */
    uint8_t n;     /* entries, the first n of the page; 0 in a page that is only reserved */
    bool closed;   /* takes no more entries though it has room for some (kv_seq_share_span) */
};

enum { KV_COUNT_MAX = 1 << 16 }; /* the most that an entry counts */

/* The cache of one layer and KV head. Its pages are of the class `kind`. Slots count its entries in
   table order: slot 0 is the first entry of table[0], and table[i] begins where table[i - 1] ends.
 */
struct kv_lane {
    const struct kv_class *kind; /* the cache's */
    struct kv_page_ref *table;   /* [cap], [n_page] in use; a part of the sequence's block */
    int32_t n_page;              /* pages held; [n_live, n_page) are reserved beyond the entries */
    int32_t n_live;              /* pages with entries: table[0 .. n_live) */
    int32_t len;                 /* entries, the sum of n */
    bool ragged;                 /* a page before the last with entries holds fewer than P */
    bool unordered; /* an entry was overwritten, and since then positions fall within a page, or
                       between pages of one delta; else they ascend in every page */
    int32_t top;    /* the largest position, delta included, of an unordered lane */
    int32_t aim;    /* 1 + the slot that the next entry overwrites; 0: none */
    int32_t most;   /* pages that it is expected to hold one day; 0: nobody knows */
    int32_t window; /* the layer's; such a lane is never unordered */
};

/* A state is a page of a class of its own. */
struct kv_state {
    int32_t page;    /* -1: none, which is a state of zeros */
    int32_t n_token; /* whose state it is */
};

struct kv_cache {
    struct kv_geometry g;
    struct pi_device *device; /* that has the pages */
    struct kv_class kind[KV_CLASS_MAX];
    int32_t n_kind;
    struct kv_class *state;  /* one of kind, whose pages are states; NULL: there are none */
    int64_t budget;          /* bytes of pages */
    int64_t used;            /* of pages that are taken, at most the budget */
    int64_t peak;            /* the most they were */
    int64_t table_bytes;     /* lists, and the lane heads, tables and marks of all sequences */
    int64_t aside_bytes;     /* of what was swapped out */
    bool borrowed;           /* the pools' memory is somebody else's (kv_cache_create_in) */
    int32_t n_mark;          /* floats beside every entry */
    bool value_norm;         /* beside them the L1 norm of the value, in bf16 */
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
    uint8_t *marks; /* f32 [n_layer][n_head][n_mark][cap * page_len] by slot, with norms behind
                       them bf16 [n_layer][n_head][cap * page_len], one block; NULL without any or
                       room; owned */
    int32_t cap;    /* table entries of a lane */
    struct kv_state state;                /* the sequence's own */
    struct kv_state kept[KV_STATES_KEPT]; /* [n_kept] ascending */
    int32_t n_kept;
    int32_t state_wanted; /* kv_seq_want_state */
};

/* One page of every lane, and the state behind it. */
struct kv_block {
    struct kv_block *prev, *next; /* the cache's list */
    int32_t state;                /* page; -1: none is held */
    int32_t page[];               /* [n_layer][n_head] */
};

static inline struct kv_lane *kv_lane_at(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    return &seq->lane[(size_t)layer * (size_t)seq->cache->g.n_head + (size_t)head];
}

static inline int32_t kv_lane_count(const struct kv_cache *cache)
{
    return cache->g.n_layer * cache->g.n_head;
}

/* Mark i of the slots of lane number l. */
static inline float *kv_marks_at(const struct kv_seq *seq, size_t l, int32_t i)
{
    size_t row = (size_t)seq->cap * (size_t)seq->cache->g.page_len;
    float *first = (float *)(void *)seq->marks;
    return first + (l * (size_t)seq->cache->n_mark + (size_t)i) * row;
}

/* The norms of the values of its slots. */
static inline uint16_t *kv_norms_at(const struct kv_seq *seq, size_t l)
{
    size_t row = (size_t)seq->cap * (size_t)seq->cache->g.page_len;
    float *behind = kv_marks_at(seq, (size_t)kv_lane_count(seq->cache), 0);
    return (uint16_t *)(void *)behind + l * row;
}

static inline int32_t *kv_page_pos(const struct kv_class *kind, int32_t page)
{
    return kind->pos + (size_t)page * (size_t)kind->page_len;
}

/* Bytes of n pages. */
static inline int64_t kv_pages_bytes(const struct kv_class *kind, int64_t n)
{
    return n * (int64_t)kind->layout.bytes;
}

/* pool.c. Takes a free page of a class, with one reference, as entry n of a table: if it can be the
   one behind that of entry n - 1, or else the first of a run of pages, >= 1, that the table had
   better have side by side from here on. -1 when the budget has no bytes left for it. */
int32_t kv_page_take(struct kv_cache *cache, const struct kv_class *kind,
                     const struct kv_page_ref *table, int32_t n, int32_t run);
void kv_page_ref_add(struct kv_cache *cache, const struct kv_class *kind, int32_t page);
/* Gives one reference back; the page is free when it was the last. */
void kv_page_drop(struct kv_cache *cache, const struct kv_class *kind, int32_t page);
/* The same of a block that holds the page, which some table entry points to or another block holds.
 */
void kv_page_hold(struct kv_cache *cache, const struct kv_class *kind, int32_t page);
void kv_page_release(struct kv_cache *cache, const struct kv_class *kind, int32_t page);

/* Gives a table entry a page of its own, with the entries it holds, where others point to it too.
   The bytes for it are free. */
void kv_page_unshare(struct kv_cache *cache, const struct kv_class *kind, struct kv_page_ref *ref);

/* Whether one more holder of a page that is to write to it has to copy it: all do but the last.
   What was charged is noted in n_entry, which the caller clears. */
bool kv_page_charge(const struct kv_class *kind, int32_t page);

static inline int32_t kv_lane_number(const struct kv_seq *seq, const struct kv_lane *lane)
{
    return (int32_t)(lane - seq->lane);
}

/* state.c: bytes of the kept states that nobody else has. */
int64_t kv_state_kept_bytes(const struct kv_cache *cache);

/* Bytes that the budget has left; those of kept states, which give way, are among them. */
static inline int64_t kv_free_bytes(const struct kv_cache *cache)
{
    int64_t kept = cache->state != NULL ? kv_state_kept_bytes(cache) : 0;
    return cache->budget - cache->used + kept;
}

/* Bytes beside an entry. */
static inline size_t kv_mark_bytes(const struct kv_cache *cache)
{
    return (size_t)cache->n_mark * sizeof(float) + (cache->value_norm ? sizeof(uint16_t) : 0);
}

/* Bytes of the tables and marks of a sequence with room for cap table entries in every lane. */
static inline int64_t kv_room_bytes(const struct kv_cache *cache, int32_t cap)
{
    int64_t marks = (int64_t)cache->g.page_len * (int64_t)kv_mark_bytes(cache);
    return kv_lane_count(cache) * (int64_t)cap * ((int64_t)sizeof(struct kv_page_ref) + marks);
}

/* seq.c. Gives every lane room for cap table entries; false: no memory, and nothing has changed. */
bool kv_seq_grow(struct kv_seq *seq, int32_t cap);

/* lane.c. The table index of a slot's page, 0 <= slot < len; *entry receives its place there. */
int32_t kv_lane_find(const struct kv_cache *cache, const struct kv_lane *lane, int32_t slot,
                     int32_t *entry);
/* The table index of the page that the next entry goes to, for which there is room. */
int32_t kv_lane_open_page(const struct kv_cache *cache, struct kv_lane *lane);
/* Gives back the pages from table index `begin` on; entries in them are lost. */
void kv_lane_drop_from(struct kv_cache *cache, struct kv_lane *lane, int32_t begin);
/* As kv_lane_breaks. */
int32_t kv_lane_count_breaks(const struct kv_lane *lane);
/* Finds out anew whether an unordered lane still is one, and its top. */
void kv_lane_find_order(struct kv_lane *lane);

/* Free places of the page that the next entry may be written to. A page that is read at a delta
   takes no new entries: their keys are rotated at their true positions. Nor does one that counts
   more than once, or one that was closed. */
static inline int32_t kv_lane_tail_room(const struct kv_cache *cache, const struct kv_lane *lane)
{
    if (lane->n_live == 0)
        return 0;
    const struct kv_page_ref *last = &lane->table[lane->n_live - 1];
    return last->delta != 0 || last->more > 0 || last->closed ? 0 : cache->g.page_len - last->n;
}
/* Recomputes len, n_live and ragged from the table, and of an unordered lane top and whether it
   still is one. */
void kv_lane_recount(const struct kv_cache *cache, struct kv_lane *lane);

/* state.c. The class of states; its number is set. */
void kv_state_class_make(const struct kv_geometry *g, struct kv_class *out);
/* Of a sequence that is made, forked (of `from`), or freed. */
void kv_state_start(struct kv_seq *seq);
void kv_state_fork(const struct kv_seq *from, struct kv_seq *seq);
void kv_state_drop(struct kv_seq *seq);
/* Bytes that its own state lacks before it can be written to; and takes them. */
int64_t kv_state_lacks(const struct kv_seq *seq);
void kv_state_reserve(struct kv_seq *seq);
void kv_state_trim(struct kv_seq *seq); /* gives back that of no token */
void kv_state_forget_kept(struct kv_seq *seq);
/* Copies its floats out, where it has one; false: none. */
bool kv_state_save(const struct kv_seq *seq, uint8_t *out);
/* Makes the state of a fresh sequence that after n_token tokens; there is room. */
void kv_state_load(struct kv_seq *seq, const uint8_t *bytes, int32_t n_token);
/* Forgets kept states that nobody else has until so many bytes are unused. */
void kv_state_give_way(struct kv_cache *cache, int64_t bytes);
/* As kv_seq_truncate. */
void kv_state_truncate(struct kv_seq *seq, int32_t n_token);
/* Lets a page, which counts one more then, be the state of a sequence that has none. */
void kv_state_adopt(struct kv_seq *seq, int32_t page, int32_t n_token);
/* The page of a state after n_token tokens; -1: there is none. */
int32_t kv_state_find(const struct kv_seq *seq, int32_t n_token);
/* Bytes of a sequence's own state, unless its page is marked in n_entry, which it is then; and
   unmarks it. */
int64_t kv_state_count(const struct kv_seq *seq);
void kv_state_uncount(const struct kv_seq *seq);
int64_t kv_state_held_bytes(const struct kv_seq *seq);

/* window.c. The most pages that a lane with a window holds, whatever is appended. */
int32_t kv_window_pages(const struct kv_geometry *g, int32_t window);
/* How many more pages of its own a lane with a window can come to hold at a time. */
int32_t kv_lane_window_room(const struct kv_cache *cache, const struct kv_lane *lane);

/* marks.c: an entry's marks, and the norm of its value. The bytes of a sequence's with room for cap
   table entries; false: too many. */
bool kv_marks_size(const struct kv_cache *cache, int32_t cap, size_t *size);
/* Copies the marks of all entries into the block of another sequence, or one with more room. */
void kv_marks_copy(const struct kv_seq *from, const struct kv_seq *to);
/* Sets the marks of slots slot .. slot + n to 0, not the norms. */
void kv_marks_clear(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot, int32_t n);
/* Sets the marks of slots slot .. slot + n as those of entries that are new, whose values were
   written to places entry .. entry + n of a page. */
void kv_marks_start(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot,
                    const struct kv_page_ref *ref, int32_t entry, int32_t n);
/* The same for every entry of a lane. */
void kv_marks_start_lane(const struct kv_seq *seq, const struct kv_lane *lane);
/* Packs the marks of the given slots, n of them, ascending, into the first ones. */
void kv_marks_keep(const struct kv_seq *seq, const struct kv_lane *lane, const int32_t *slots,
                   int32_t n);
/* Moves the marks of n slots next to each other. */
void kv_marks_move(const struct kv_seq *seq, const struct kv_lane *lane, int32_t to, int32_t from,
                   int32_t n);
/* The same to the lane of that layer and head of another sequence, or of the same. */
void kv_marks_share(const struct kv_seq *seq, const struct kv_lane *lane, int32_t to,
                    const struct kv_seq *from_seq, int32_t from, int32_t n);

enum { KV_PAGE_LEN_MAX = 64 }; /* of those that kv_geometry_check lets through */

/* An entry's place. */
struct kv_place {
    const struct kv_cache *cache;
    const struct kv_class *kind;
    int32_t lane; /* number */
    int32_t page;
    int32_t slot; /* in the page */
};

/* read.c. That of a slot of a lane. */
struct kv_place kv_place_of(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot);

static inline const struct kv_part *kv_place_part(const struct kv_place *p, enum kv_side side)
{
    return side == KV_SIDE_K ? &p->kind->k : &p->kind->v;
}

/* Bytes of a stored key or value, whatever its page looks like: its planes one after the other. */
static inline size_t kv_part_bytes(const struct kv_part *part)
{
    return part->plane[KV_PLANE_LOW].row + part->plane[KV_PLANE_HIGH].row +
           part->plane[KV_PLANE_SCALE].row;
}

/* Entries next to each other on their way to another place. */
struct kv_page_part {
    int32_t from; /* their page */
    int32_t from_slot;
    int32_t to_slot;
    int32_t n;
};

/* Copies entries as stored, their positions too, into a page. Parts may come from the page itself,
   from further up than they go and in ascending order. */
void kv_page_move(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
                  const struct kv_page_part *part, int32_t n_part);
/* All of a page, index and positions included. */
void kv_page_copy(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
                  int32_t from);
/* A page as one stretch of layout.bytes and back: what is stored, the positions, the index. */
void kv_page_export(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                    uint8_t *out);
void kv_page_import(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                    const uint8_t *bytes);
/* A page as files have it, layout.saved bytes: keys entry by entry, no index, positions last. And
   back, which makes the index of all places anew: another table entry may see more of the page. */
void kv_page_save(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                  uint8_t *out);
void kv_page_load(const struct kv_cache *cache, const struct kv_class *kind, int32_t lane,
                  int32_t page, const uint8_t *bytes);

/* index.c. */
enum { KV_INDEX_DIM_MAX = 1024 }; /* the largest head size whose keys can be projected */

/* Codes of a key in KV_INDEX_UNIT8: the dimensions, padded to a multiple of 4. */
static inline size_t kv_unit_dim(const struct kv_geometry *g)
{
    return pi_align((size_t)g->dim_k, 4);
}

/* The part of kv_geometry_check about the index. */
pith_status kv_index_check(const struct kv_geometry *g, pith_error *err);
/* Adds the parts of the index to a layout that has all others. */
void kv_index_place(const struct kv_geometry *g, struct kv_page_layout *layout);
enum {
    KV_CODEC_MAX = 128,  /* most values that one call encodes; groups lie within so many */
    KV_CODE_MAX = 16,    /* codes of a table */
    KV_CODEC_GROUP = 16, /* the shortest group */
};

/* type.c. One per storage type. */
struct kv_codec {
    const char *name;
    enum pi_attend_type kernel; /* attention's and scoring's */
    int32_t bits;               /* of a value or code, without those of the high plane */
    int32_t bits_high;          /* of a code in the high plane */
    int32_t block; /* dimensions that share a scale; the head size is a multiple of it; 0: a group
                      that depends on the head size, at least KV_CODEC_GROUP; 1: no scales */
    bool rotated;  /* groups are rotated before they are coded (wht.h) */
};

extern const struct kv_codec kv_codecs[KV_N_TYPE];
#endif
