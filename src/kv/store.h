/*
 * store.h - the inside of the KV store, for the files of kv/ alone: what a page looks like in
 * memory, what a lane is, and who counts the references.
 */
#ifndef PI_KV_STORE_H
#define PI_KV_STORE_H

#include "base/mem.h"
#include "kv/kv.h"

/*
 * A page holds P = page_len entries of one layer and KV head. Values are stored entry by entry. Keys
 * are, too, where the geometry has an index (kv.h): one key is then read at the cost of the lines it
 * lies in, and kernels put keys side by side on their way into registers (cpu/attend.h). Without, they
 * are stored side by side, in elements of 2 or 4 bytes: a value of f16 or f32, or four codes of q8_0.
 *
 *   f32, f16  K [P][dim_k] or [dim_k][P]                        V [P][dim_v]
 *   q8_0      K codes  int8 [P][dim_k] or [dim_k / 4][P][4]     V codes  int8 [P][dim_v]
 *             K scales f16 [P][dim_k / 32] or [dim_k / 32][P]   V scales f16 [P][dim_v / 32]
 *             value = scale * code; a block is 32 consecutive dimensions of one entry
 *   then      positions int32 [P]
 *   then      what the geometry's index has (struct kv_page_layout)
 *
 * Every part starts at a multiple of 64 bytes. Entries fill a page from its first slot on, in
 * ascending order of position but in lanes that were overwritten. Slots that hold no entry contain
 * finite values.
 */
struct kv_page_layout {
    bool side_by_side; /* keys */
    size_t k;       /* offset of K or its codes; always 0 */
    size_t k_scale; /* offset of K's scales, q8_0 only */
    size_t v;
    size_t v_scale;
    size_t pos;
    size_t stored; /* bytes of these parts, what follows is made from (a multiple of 64) */

    /* index.c; where the geometry has them */
    size_t norm;       /* f32 [P] */
    size_t unit;       /* uint8_t [P][kv_unit_dim], codes + 128 */
    size_t unit_scale; /* f32 [P] */
    size_t columns;    /* f16 [dim_k][P] */
    size_t proj;       /* f16 [P][index_dim] */
    size_t bounds;     /* f32 [2][dim_k], the least values and the largest */
    size_t value_sum;  /* f32 [dim_v] */

    size_t bytes; /* of a page, a multiple of 64 */
    size_t entry; /* bytes of one entry in all parts, without padding */
    size_t whole; /* bytes beyond those of its entries that a full page has, without padding */
};

void kv_page_layout_make(const struct kv_geometry *g, struct kv_page_layout *out);

/*
 * n is the table entry's own: two lanes that share a page may see different numbers of its entries.
 * Entries of different deltas cannot live in one page, because their keys were rotated at other
 * positions than they are read at; so a page before the last may hold fewer than P entries.
 */
struct kv_page_ref {
    int32_t page;  /* index into the pool */
    int32_t delta; /* the entries are read as if written that many positions later */
    int32_t n;     /* entries, the first n of the page; 0 in a page that is only reserved */
};

/* The cache of one layer and KV head. Slots count its entries in table order: slot 0 is the first
   entry of table[0], and table[i] begins where table[i - 1] ends. */
struct kv_lane {
    struct kv_page_ref *table; /* [cap], [n_page] in use; a part of the sequence's block */
    int32_t n_page;            /* pages held; [n_live, n_page) are reserved beyond the entries */
    int32_t n_live;            /* pages with entries: table[0 .. n_live) */
    int32_t len;               /* entries, the sum of n */
    bool ragged;               /* a page before the last with entries holds fewer than P */
    bool unordered; /* an entry was overwritten, and since then positions fall within a page, or
                       between pages of one delta; else they ascend in every page */
    int32_t top;    /* the largest position, delta included, of an unordered lane */
    int32_t aim;    /* 1 + the slot that the next entry overwrites; 0: none */
};

struct kv_cache {
    struct kv_geometry g;
    struct kv_page_layout layout;
    uint8_t *pool; /* [n_page][layout.bytes], one mapping; owned */
    size_t pool_size;
    int32_t n_page;
    int32_t n_free;
    void *lists; /* one mapping that holds the three arrays; owned */
    size_t lists_size;
    uint64_t *taken;  /* [ceil(n_page / 64)] bit p % 64 of word p / 64 is set when p is in use */
    int32_t *n_ref;   /* [n_page] table entries that point to the page */
    uint8_t *n_entry; /* [n_page] scratch of counts (kv_cache_stats, charges); zero between them */
    int32_t low_word; /* no word of `taken` below it has a clear bit */
    int32_t n_page_peak;
    int32_t n_page_shared;   /* pages with n_ref > 1 */
    int64_t n_ref_extra;     /* sum of n_ref - 1 over those */
    int64_t table_bytes;     /* lists, and the lane heads, tables and marks of all sequences */
    int32_t n_mark;          /* floats beside every entry */
    bool value_norm;         /* mark 0 is the L1 norm of the value */
    const float *projection; /* [n_layer][n_head][index_dim][dim_k] of KV_INDEX_PROJ; borrowed */
    int32_t n_seq;
    struct kv_seq *first; /* all sequences, for the account of live entries */
};

struct kv_seq {
    struct kv_cache *cache;
    struct kv_seq *prev, *next; /* the cache's list */
    struct kv_lane *lane;       /* [n_layer][n_head]; owned */
    struct kv_page_ref *table;  /* [n_layer][n_head][cap], one block for all lanes; owned */
    float *marks; /* [n_layer][n_head][n_mark][cap * page_len] by slot, one block; NULL without
                     marks or room; owned */
    int32_t cap;  /* table entries of a lane */
};

static inline struct kv_lane *kv_lane_at(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    return &seq->lane[(size_t)layer * (size_t)seq->cache->g.n_head + (size_t)head];
}

static inline uint8_t *kv_page_at(const struct kv_cache *cache, int32_t page)
{
    return cache->pool + (size_t)page * cache->layout.bytes;
}

static inline int32_t kv_lane_count(const struct kv_cache *cache)
{
    return cache->g.n_layer * cache->g.n_head;
}

/* Mark i of the slots of lane number l. */
static inline float *kv_marks_at(const struct kv_seq *seq, size_t l, int32_t i)
{
    size_t row = (size_t)seq->cap * (size_t)seq->cache->g.page_len;
    return seq->marks + (l * (size_t)seq->cache->n_mark + (size_t)i) * row;
}

/* Floats of a page, from an offset on. */
static inline float *kv_page_floats(uint8_t *page, size_t offset)
{
    return (float *)(void *)(page + offset);
}

static inline int32_t *kv_page_pos(const struct kv_cache *cache, int32_t page)
{
    return (int32_t *)(void *)(kv_page_at(cache, page) + cache->layout.pos);
}

/* pool.c. Takes the lowest free page, with one reference; -1 when none is free. */
int32_t kv_page_take(struct kv_cache *cache);
void kv_page_ref_add(struct kv_cache *cache, int32_t page);
/* Gives one reference back; the page is free when it was the last. */
void kv_page_drop(struct kv_cache *cache, int32_t page);

/* Gives a table entry a page of its own, with the entries it holds, where others point to it too. A
   page is free for it. */
void kv_page_unshare(struct kv_cache *cache, struct kv_page_ref *ref);

/* seq.c. Gives every lane room for cap table entries; false: no memory, and nothing has changed. */
bool kv_seq_grow(struct kv_seq *seq, int32_t cap);

/* lane.c. The table index of a slot's page, 0 <= slot < len; *entry receives its place there. */
int32_t kv_lane_find(const struct kv_cache *cache, const struct kv_lane *lane, int32_t slot,
                     int32_t *entry);
/* Gives back the pages from table index `begin` on; entries in them are lost. */
void kv_lane_drop_from(struct kv_cache *cache, struct kv_lane *lane, int32_t begin);
/* As kv_lane_breaks. */
int32_t kv_lane_count_breaks(const struct kv_cache *cache, const struct kv_lane *lane);
/* Recomputes len, n_live and ragged from the table, and of an unordered lane top and whether it
   still is one. */
void kv_lane_recount(const struct kv_cache *cache, struct kv_lane *lane);

/* marks.c. The floats of a sequence's marks with room for cap table entries; false: too many. */
bool kv_marks_size(const struct kv_cache *cache, int32_t cap, size_t *n);
/* Copies the marks of all entries into a block with room for cap table entries. */
void kv_marks_copy(const struct kv_seq *from, float *to, int32_t cap);
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

/* page.c. Entries of a page, at its first byte. n rows of floats, stride apart, become the keys or
   values of entries slot, slot + 1, ... */
void kv_page_write_keys(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                        const float *rows, size_t stride);
void kv_page_write_values(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                          const float *rows, size_t stride);
void kv_page_read_key(const struct kv_cache *cache, const uint8_t *page, int32_t slot, float *out);
void kv_page_read_value(const struct kv_cache *cache, const uint8_t *page, int32_t slot,
                        float *out);
enum { KV_PAGE_LEN_MAX = 64 }; /* of those that kv_geometry_check lets through */

/* Entries next to each other on their way to another place. */
struct kv_page_part {
    const uint8_t *from; /* their page */
    int32_t from_slot;
    int32_t to_slot;
    int32_t n;
};

/* columns.c: the same of keys that lie side by side. */
void kv_columns_write(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                      const float *rows, size_t stride);
void kv_columns_read(const struct kv_cache *cache, const uint8_t *page, int32_t slot, float *out);
void kv_columns_move(const struct kv_cache *cache, uint8_t *to, const struct kv_page_part *part,
                     int32_t n_part);
/* The keys of all places of a page, from entry by entry to side by side and back. Pages are those of
   layouts alike but for that. */
void kv_columns_from_rows(const struct kv_cache *cache, uint8_t *page, const uint8_t *rows);
void kv_columns_to_rows(const struct kv_cache *cache, const uint8_t *page, uint8_t *rows);

/* Copies entries as stored, their positions too, into a page. Parts may come from the page itself,
   from further up than they go and in ascending order. */
void kv_page_move(const struct kv_cache *cache, uint8_t *to, const struct kv_page_part *part,
                  int32_t n_part);

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
/* Makes what belongs to entries slot .. slot + n of a page of lane number `lane`; their keys are
   written. */
void kv_index_write(const struct kv_cache *cache, int32_t lane, uint8_t *page, int32_t slot,
                    int32_t n);
/* Makes what belongs to a page whose page_len entries are written. */
void kv_index_finish(const struct kv_cache *cache, uint8_t *page);
/* What kv_index_write made of entries follows them. Parts as kv_page_move's. */
struct kv_page_part;
void kv_index_move(const struct kv_cache *cache, uint8_t *to, const struct kv_page_part *part,
                   int32_t n_part);
/* Of the first n entries of a page: each dimension's least key, then each one's largest, out
   [2][dim_k]; the sum of dimensions d .. d + n_dim of their values, one after the other, d a
   multiple of KV_CODEC_MAX and n_dim at most that, out [n_dim]. */
void kv_index_bounds(const struct kv_cache *cache, const uint8_t *page, int32_t n, float *out);
void kv_index_value_sum(const struct kv_cache *cache, const uint8_t *page, int32_t n, int32_t d,
                        int32_t n_dim, float *out);
/* A lane's matrix times x [dim_k], out [index_dim]: by cpu/score.h's arithmetic of few vectors. */
void kv_index_project(const struct kv_cache *cache, int32_t lane, const float *x, float *out);

/* gather.c. Some of a lane's entries, tile after tile. */
enum { KV_GATHER_LEN = 64 }; /* entries of a tile, at most */

struct kv_cursor {
    int32_t at;    /* slots that are done */
    int32_t index; /* table entry that the next one does not lie before */
    int32_t begin; /* its first slot */
};

/* A part of a page whose entries have rows of `size` bytes. */
struct kv_gather_part {
    size_t from; /* offset in a page */
    size_t to;   /* and in the tile */
    size_t size;
};

struct kv_gather {
    const struct kv_cache *cache;
    const struct kv_lane *lane;
    const int32_t *slots; /* [n] ascending */
    int32_t n;
    struct kv_cursor here;        /* what is gathered */
    struct kv_cursor asked;       /* what the memory was asked for */
    struct kv_page_layout layout; /* of the tile: a page of KV_GATHER_LEN entries, no index */
    uint8_t *tile;                /* [layout.bytes], 64-byte aligned */
    struct kv_gather_part part[5];
    int32_t n_part;
};

size_t kv_gather_bytes(const struct kv_geometry *g); /* of a tile */
void kv_gather_start(struct kv_gather *g, const struct kv_cache *cache, const struct kv_lane *lane,
                     const int32_t *slots, int32_t n, uint8_t *tile);
/* Fills the tile with the next entries, *n of them, all read *delta positions later than written;
   false when there are none left. */
bool kv_gather_next(struct kv_gather *g, int32_t *n, int32_t *delta);
/* Asks the memory for entries of the slots before number `end` of the list. */
void kv_gather_ask(struct kv_gather *g, int32_t end);

/* attend.c. Turns a vector by cosines and sines that pi_rope_fill_delta wrote. */
void kv_rotate(const struct pi_rope *rope, const float *cs, float *x);

enum { KV_CODEC_MAX = 128 }; /* most values that one call encodes */

/* codec.c. One per storage type. What a type cannot hold is stored as the nearest finite value, NaN
   as 0: masked slots are multiplied by 0 and must not poison others. */
struct kv_codec {
    const char *name;
    int32_t value_bytes; /* of one value or code */
    int32_t block;       /* dimensions of a block; the head size is a multiple of it */
    int32_t scale_bytes; /* of a block's scale, 0 where it has none */
    /* n <= KV_CODEC_MAX dimensions of one row, a multiple of block; scales [n / block]. */
    void (*encode)(const float *x, int32_t n, void *values, uint16_t *scales);
    /* Any n that is a multiple of block. */
    void (*decode)(const void *values, const uint16_t *scales, int32_t n, float *out);
};

extern const struct kv_codec kv_codecs[KV_N_TYPE];

#endif
