/*
 * kv.h - the KV store: pools of pages, lanes that point into them, and attention over a lane.
 * Only files of kv/ change the cache. ARCHITECTURE.md, "The store", defines page and lane.
 *
 * Owner: the thread that runs the engine. Append and attend on different lanes may run at the same
 * time; everything else may not.
 */
#ifndef PI_KV_H
#define PI_KV_H

#include "base/base.h"
#include "device/device.h"
#include "tensor/rope.h"

/* How keys or values are stored (codec.c, coded.c; docs/store.md has the formats). The order is
   that of the bits that a value takes, but for the last one, which came later: files have the
   numbers. Those of the turbo types are rotated before they are coded
   (wht.h), and stay so in the page; what functions here return is turned back. */
enum kv_type {
    KV_TYPE_F32,
    KV_TYPE_F16,
    KV_TYPE_Q8_0,
    KV_TYPE_Q4_0,
    KV_TYPE_TURBO4,
    KV_TYPE_TURBO3,
    KV_TYPE_TURBO2,
    KV_TYPE_BF16,
    KV_N_TYPE
};

/* What a page holds beside its entries for those who score them without reading all of K (index.c):
   parts whose bytes are a page's, each a function of the keys or values as they are stored, and so
   the same however an entry came to where it is. */
enum kv_index {
    KV_INDEX_NORM = 1 << 0,      /* 1 / |k| of every entry, f32; 0 for a key of zeros */
    KV_INDEX_UNIT8 = 1 << 1,     /* k / |k| of every entry as int8 codes with one f32 scale */
    KV_INDEX_COLUMNS = 1 << 2,   /* the keys once more, f16, with entries side by side */
    KV_INDEX_PROJ = 1 << 3,      /* every key times its lane's matrix, index_dim f16 values */
    KV_INDEX_BOUNDS = 1 << 4,    /* of a full page: each dimension's least and largest value, f32 */
    KV_INDEX_VALUE_SUM = 1 << 5, /* of a full page: the sum of its values, f32 */
    KV_INDEX_ROWS = 1 << 6, /* nothing but the keys entry by entry, as with any other part: a key is
                   then a few lines of memory, for whoever scores and picks single ones.
                   Without index they lie side by side, which reading all is faster by */
};

/* The first `first` and the last `last` layers, which store another type than the others. */
struct kv_edge {
    enum kv_type type;
    int32_t first;
    int32_t last; /* both 0: there are none */
};

struct kv_geometry {
    int32_t n_layer; /* those that have lanes: of a model its layers with attention */
    int32_t n_head;  /* KV heads */
    int32_t dim_k;   /* of one head */
    int32_t dim_v;
    int32_t page_len; /* 16, 32 or 64 entries */
    enum kv_type type_k;
    enum kv_type type_v;
    uint32_t index;    /* a set of kv_index; 0: none */
    int32_t index_dim; /* of KV_INDEX_PROJ, at most dim_k; else 0 */
    struct kv_edge edge_k;
    struct kv_edge edge_v;
    const int32_t *window; /* [n_layer] a query sees its own position and the window - 1 before it,
                              0: all before it, in layers before those with a window; borrowed for
                              as long as there is a cache; NULL: no layer has a window */
    int32_t step_len;      /* where there are windows: most entries that are appended to a lane from
                              one kv_seq_slide to the next */
    size_t state_bytes; /* of a sequence's state (state.c), which layers without lanes have in the
                              place of entries; 0: none */
    int32_t v_in_k; /* 0: values are stored beside keys; else they are the dim_v dimensions of keys
                       from this one on, and take no bytes: latent lanes */
    struct pi_device *device; /* that has the pages; NULL: that of pi_device_default */
};

struct pi_device *kv_geometry_device(const struct kv_geometry *g);

static inline int32_t kv_layer_window(const struct kv_geometry *g, int32_t layer)
{
    return g->window != NULL ? g->window[layer] : 0;
}

/* The lanes of layers without a window, which come before the others. */
struct kv_geometry kv_full_lanes(const struct kv_geometry *g);

struct kv_cache; /* the pools and their geometry */
struct kv_seq;   /* one sequence: n_layer * n_head lanes */

/* KV_N_TYPE for an unknown name. */
enum kv_type kv_type_find(const char *name);
const char *kv_type_name(enum kv_type type);
/* What a geometry's field for K or V is given as: TYPE[:EDGE=FIRST+LAST], that is another type in
   so many layers at both ends, and for K also ":force" and ":centre" behind TYPE, in this order,
   which engines look at. */
struct kv_type_choice {
    enum kv_type type;
    struct kv_edge edge;
    bool force;
    bool centre;
};
/* The value of a field; NULL is f16. INVALID, one sentence that names the field and the value. */
pith_status kv_type_read(const char *field, const char *text, struct kv_type_choice *out,
                         pith_error *err);
/* The types of a geometry from the values of type_k and type_v; *k: the choice of K, whose force
   and centre V's must not have. INVALID, as above. */
pith_status kv_geometry_read_types(struct kv_geometry *g, const char *type_k, const char *type_v,
                                   struct kv_type_choice *k, pith_error *err);
bool kv_type_is_rotated(enum kv_type type);
/* Dimensions that share a scale in a head of a size: 32 of q8_0 and q4_0, of the turbo types the
   largest power of two that divides the head size, 128 at most; 1 where there are no scales. 0 for
   a head size that the type cannot store. */
int32_t kv_type_group(enum kv_type type, int32_t dim);
/* Bits of a value in a head of a size that the type stores, scales included. */
double kv_type_bits(enum kv_type type, int32_t dim);
/* The types of a layer. */
enum kv_type kv_layer_type_k(const struct kv_geometry *g, int32_t layer);
enum kv_type kv_layer_type_v(const struct kv_geometry *g, int32_t layer);

/* UNSUPPORTED with a sentence when the geometry cannot be stored (q8_0 and q4_0 need a head size
   that is a multiple of 32, the turbo types one of 16; where values are parts of keys, both types
   are one, of which no group holds dimensions of both), INVALID for a page length other than 16,
   32, 64. */
pith_status kv_geometry_check(const struct kv_geometry *g, pith_error *err);
/* Bytes of a page of a layer's lanes, and of the largest of all. */
size_t kv_layer_page_bytes(const struct kv_geometry *g, int32_t layer);
size_t kv_page_bytes(const struct kv_geometry *g);
/* Bytes of pages for n_token tokens of one sequence in every lane: in those with a window the most
   that they hold on the way. */
int64_t kv_bytes_for_tokens(const struct kv_geometry *g, int64_t n_token);
/* Bytes that a state takes of the budget; 0: there are none. */
int64_t kv_bytes_of_state(const struct kv_geometry *g);

/* The bytes of pages in use never exceed budget_bytes; where all pages are of one size, the budget
   is what whole pages take of it. INVALID, with the numbers, when not one token fits in every lane
   or when the budget is more than can be addressed; NOMEM. */
pith_status kv_cache_create(const struct kv_geometry *g, int64_t budget_bytes,
                            struct kv_cache **out, pith_error *err);
void kv_cache_free(struct kv_cache *cache); /* every sequence is freed before */
/* Many small caches in one mapping of somebody else's: the bytes that a cache of pages of one form
   takes there for its lists and for its pages, multiples of 64, and such a cache in zeroed bytes,
   borrowed until it is freed. The statuses of kv_cache_create. */
pith_status kv_cache_sizes(const struct kv_geometry *g, int64_t budget_bytes, size_t *lists,
                           size_t *pool, pith_error *err);
pith_status kv_cache_create_in(const struct kv_geometry *g, int64_t budget_bytes, uint8_t *lists,
                               uint8_t *pool, struct kv_cache **out, pith_error *err);
/* Gives the memory of pages that nobody uses back to the system. */
void kv_cache_give_back(struct kv_cache *cache);
const struct kv_geometry *kv_cache_geometry(const struct kv_cache *cache);
const struct kv_geometry *kv_seq_geometry(const struct kv_seq *seq); /* its cache's */
void kv_cache_stats(const struct kv_cache *cache, pith_kv_stats *out);
void kv_cache_reset_peak(struct kv_cache *cache); /* to what is in use now */

/* Where the memory of a cache goes, in bytes. */
struct kv_parts {
    int64_t held;   /* pages in use, but for states */
    int64_t states; /* of recurrent layers, kept ones included */
    int64_t idle;   /* free pages that were used, and whose memory waits for the next ones */
    int64_t tables; /* lists, lane heads and page tables */
    int64_t marks;  /* floats beside entries */
    int64_t aside;  /* of sequences that were swapped out, in host memory */
};
void kv_cache_parts(const struct kv_cache *cache, struct kv_parts *out);

/* Every entry of the sequences that are made from now on has n_mark floats beside it, its marks: 0
   when it is appended, changed by whoever asked for them, and they stay with the entry wherever it
   is packed to, until it is dropped or overwritten; a fork gets a copy, and so does a sequence that
   shares another's entries, while a snapshot has none: after a load they are 0. With value_norm
   the L1 norm of its value stands beside them, set on the way in, also by a load, and never
   changed: of the value as it is stored, summed over the dimensions in ascending order, rounded to
   bf16, since steps read it at every token. Their bytes count as those of page tables.
   No sequence exists yet. */
void kv_cache_set_marks(struct kv_cache *cache, int32_t n_mark, bool value_norm);

/* The matrices of KV_INDEX_PROJ, [n_layer][n_head][index_dim][dim_k], borrowed until the cache is
   freed; no sequence exists yet. */
void kv_cache_set_projection(struct kv_cache *cache, const float *matrix);

pith_status kv_seq_create(struct kv_cache *cache, struct kv_seq **out, pith_error *err);
void kv_seq_free(struct kv_seq *seq);
/* Shares every page that holds entries. What seq had reserved is not to be counted on afterwards:
   its tail page is shared now, reserve again. Aims are copied, so that both go on alike. NOMEM. */
pith_status kv_seq_fork(const struct kv_seq *seq, struct kv_seq **out, pith_error *err);

/* Makes room so that n more entries can be appended to every lane: pages, and pages of its own for
   those that it writes to, the last one and the one that an aim points into. The first entry of a
   lane with an aim takes no room: where the aim is forgotten before, reserve again. INVALID for a
   negative n. KV_FULL or NOMEM leaves everything as it was. */
pith_status kv_seq_reserve(struct kv_seq *seq, int32_t n, pith_error *err);
/* Makes room for n[layer * n_head + head] entries in every lane that is emptied before: pages of
   its own. What the lanes hold stays. KV_FULL, NOMEM leave everything as it was. */
pith_status kv_seq_reserve_whole(struct kv_seq *seq, const int32_t *n, pith_error *err);
/* A lane that is expected to hold n entries one day has pages for them side by side kept free as
   long as there are others: what lies in order is read faster. 0: nobody knows, as at first. Takes
   no memory, and a fork expects what its original does. */
void kv_lane_expect(struct kv_seq *seq, int32_t layer, int32_t head, int64_t n);
/* ---- windows: lanes hold what a later query can see, in whole pages (window.c) ---- */

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

/* Gives back pages beyond what the lanes hold (after a reservation that was not used). */
void kv_seq_trim(struct kv_seq *seq);

/* ---- states: what layers without lanes remember, of all tokens up to one position (state.c) ----

   A state is one block of floats, state_bytes of them, all 0 before the first token. Its bytes
   count in the budget as pages do. Where a cache has states kv_seq_reserve makes room for the
   sequence's own, which a fork shares until it is written to. Beside it a sequence may keep states
   of earlier positions, which it can be truncated to. They take only what is free, and count as
   free: whoever needs that gets it. */

/* The most that are kept of a sequence. */
enum { KV_STATES_KEPT = 3 };

/* The sequence's state, to be read and written to on its device; room was reserved. */
struct pi_at kv_seq_state(const struct kv_seq *seq);
/* The same to the host and back, state_bytes of it. */
void kv_seq_read_state(const struct kv_seq *seq, void *out);
void kv_seq_write_state(const struct kv_seq *seq, const void *state);
/* It is now that after n_token tokens. Nothing where the cache has no states. */
void kv_seq_note_state(struct kv_seq *seq, int32_t n_token);
/* Keeps a copy of the state where there is room. The one that is missed least gives way where there
   are as many as there may be. */
void kv_seq_keep_state(struct kv_seq *seq);
/* The most tokens, n_token at most, after which there is a state; n_token where the cache has
   none. */
int32_t kv_seq_state_reach(const struct kv_seq *seq, int32_t n_token);
/* Remembers that the state after n_token tokens had better be kept; -1: none, as at first. */
void kv_seq_want_state(struct kv_seq *seq, int32_t n_token);
int32_t kv_seq_wanted_state(const struct kv_seq *seq);

/* What a plan over compactions and reservations must know beforehand. Together the first and the
   second make sure that later reservations of n entries in all need no memory but pages. */

/* Room for n more entries in every lane's page table, also with compactions between, no pages.
   NOMEM leaves all as it was. */
pith_status kv_seq_reserve_table(struct kv_seq *seq, int32_t n, pith_error *err);
/* Pages that one lane takes to grow by n entries, beyond those that it has reserved, when nobody
   shares its last page. */
int64_t kv_lane_lacks(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t n);
/* How many pages more than its entries fill a lane can come to hold, whatever is kept of it and
   appended or overwritten: the places that packing closes no gap over (kv_seq_compact), and a last
   page with a delta or one that counts more than once, which takes no new entries. What closed
   pages leave free is not among it: packing fills it, and until then kv_lane_lacks tells what more
   entries take. 0 for a lane that shares nothing at other positions and folded none. */
int32_t kv_lane_breaks(const struct kv_seq *seq, int32_t layer, int32_t head);
/* Bytes that pages can still be taken for. */
int64_t kv_seq_free_bytes(const struct kv_seq *seq);
/* Bytes of the sequence's pages, but for those that were counted already: a series of calls over
   several sequences counts each page once, until kv_seq_uncount was called for each of them. In
   between nothing but kv_lane functions. */
int64_t kv_seq_count_bytes(struct kv_seq *seq);
void kv_seq_uncount(struct kv_seq *seq);
/* The most bytes that copies of shared pages can take when compacting, appending and overwriting.
   Each holder of a page may need one, but the last: a series of calls over several sequences
   charges a page no more often, until kv_seq_clear_charges was called for each of them. In between
   nothing but kv_lane functions. */
int64_t kv_seq_charge_copies(struct kv_seq *seq);
void kv_seq_clear_charges(struct kv_seq *seq);

/* Appends n entries at positions pos0, pos0 + 1, ... to one lane, the first to where the lane is
   aimed at; room was reserved, and pos0 is above the position of the lane's last entry, in a lane
   that was overwritten above all. Values beyond the range of the storage type are stored as its
   largest finite ones, NaN as 0.
   k: [n] rows of dim_k floats, k_stride floats apart, after rope; v alike, not looked at where
   values are parts of keys. */
void kv_seq_append(struct kv_seq *seq, int32_t layer, int32_t head, int32_t pos0, int32_t n,
                   const float *k, size_t k_stride, const float *v, size_t v_stride);

/* The same for many lanes, in two steps, with rows on the device: the first makes places for the
   entries in the tables, the device's append writes them there. In between nobody looks. */
struct kv_append {
    struct kv_seq *seq;
    int32_t layer;
    int32_t head;
    int32_t pos0;
    int32_t n;
    struct pi_at k;
    size_t k_stride; /* floats */
    struct pi_at v;
    size_t v_stride;

    /* where they go, set by the first step */
    int32_t slot;       /* of the first one in its lane */
    int32_t n_over;     /* 1: that takes another one's place, in */
    int32_t over_index; /* this table entry */
    int32_t over_entry;
    int32_t index, entry; /* table entry, and place in its page, of the first of the others */
};
void kv_append_place(struct kv_append *jobs, int32_t n);

/* Lets the next entry that is appended to a lane take the place of the one at a slot, 0 <= slot <
   length, instead of going to the end (-1, and what a new lane has): nothing else moves, the lane
   does not grow, and its positions ascend no longer, until a compaction or a truncation leaves them
   in order. One append of n entries overwrites one and adds n - 1. An append, a compaction and a
   truncation that drops an entry of the lane forget the aim; so do a shift, a shared
   stretch and a folded one that its entry is touched by. A page that others point to is copied by
   the next kv_seq_reserve; kv_seq_charge_copies counts it. Not for the entries of a page with a
   delta, nor of one that counts more than once: kv_lane_can_aim. */
void kv_seq_aim(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot);
int32_t kv_lane_aim(const struct kv_seq *seq, int32_t layer, int32_t head);
bool kv_lane_can_aim(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot);

/* Drops every entry at a position >= pos from every lane, wherever it lies, and gives back all
   pages that hold no entry then, reserved ones too. Where the cache has states there is one after
   pos tokens (kv_seq_state_reach). Nothing is copied: a lane sees less of a shared
   page, which kv_seq_reserve copies before it is written to. Only in a lane that was overwritten
   gaps within a page are closed, which copies a shared one; where no page is free for that the
   entries of the page behind the first gap go, too. */
void kv_seq_truncate(struct kv_seq *seq, int32_t pos);
/* The bytes that are to be free so that kv_seq_truncate drops nothing below pos; mostly 0. */
int64_t kv_seq_truncate_copies(const struct kv_seq *seq, int32_t pos);

/* Keeps the entries at the given slots (ascending, n of them) of one lane, in their order, and
   gives back all pages that hold no entry then, reserved ones too. Pages are packed without gaps
   but where the delta changes or, after sharing, positions fall; in a lane that was overwritten,
   where they fall anyway, only where the delta changes; and but before and after a page that counts
   more than once and of which every entry is kept. Shared pages are copied before
   they change, which takes a free page for each. INVALID (slots not ascending or out of range),
   KV_FULL: lane unchanged. */
pith_status kv_seq_compact(struct kv_seq *seq, int32_t layer, int32_t head, const int32_t *slots,
                           int32_t n, pith_error *err);

/* What is to stay of a lane. */
struct kv_cut {
    int32_t layer;
    int32_t head;
    const int32_t *slots; /* [n] ascending; lanes may share the array */
    int32_t n;
};

/* The same for n_cut different lanes, which are packed by at most n_thread threads at the same
   time; which pages come free does not depend on them. INVALID, KV_FULL: no lane has changed. */
pith_status kv_seq_compact_lanes(struct kv_seq *seq, const struct kv_cut *cut, int32_t n_cut,
                                 int32_t n_thread, pith_error *err);

/* Lets a lane's entries before a slot, which begins a page or is the lane's end, be read as if
   written delta positions later than they were, whatever they are read at now. They must stay in
   order and below the entries that follow, but in a lane that was overwritten. Nothing is copied.
   */
void kv_seq_shift(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot, int32_t delta);

/* Lets a slot of a lane, 0 <= slot <= length, begin a page. Where it does not yet, that takes one
   page, and another where the slot's page is shared, and kv_seq_reserve_table had room for one.
   KV_FULL leaves the lane as it was. */
pith_status kv_seq_split(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot,
                         pith_error *err);

/* ---- sharing: entries that stand in more than one place ---- */

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

/* The pages of run `index` in all lanes of a sequence, kept whatever becomes of it: blocks of a
   cache of prefixes. Every lane's run there is a full page without delta that counts once, and no
   lane was overwritten. Blocks are dropped before the cache is freed. */
struct kv_block;
/* INVALID, NOMEM. */
pith_status kv_block_hold(const struct kv_seq *seq, int32_t index, struct kv_block **out,
                          pith_error *err);
void kv_block_drop(struct kv_cache *cache, struct kv_block *block); /* NULL is ignored */
/* Whether no sequence, and no other block, has a page of it: dropping it frees kv_block_held_bytes. A
   state that a sequence keeps is free then. */
bool kv_block_is_alone(const struct kv_cache *cache, const struct kv_block *block);
int64_t kv_block_bytes(const struct kv_cache *cache); /* of the pages of any block */
/* Of its pages and its state. */
int64_t kv_block_held_bytes(const struct kv_cache *cache, const struct kv_block *block);
/* Holds the state after n_token tokens, where the sequence has one and the block lies there; a block
   has one at most. Whether a sequence can begin with blocks of which this is the last. */
void kv_block_hold_state(const struct kv_seq *seq, int32_t n_token, struct kv_block *block);
bool kv_block_ends(const struct kv_cache *cache, const struct kv_block *block);
/* Appends blocks, of ascending positions, to every lane of a sequence, whose lanes hold full pages
   of earlier positions only and reserve none: counts go up, nothing is copied. With states the
   sequence is empty, and its own is the last one's. INVALID, NOMEM leave it as it was. */
pith_status kv_seq_append_blocks(struct kv_seq *seq, struct kv_block *const *blocks, int32_t n,
                                 pith_error *err);

/* What a sequence holds, in host memory instead of pages. */
struct kv_swapped;
/* Empties the sequence, and gives its pages back, reserved ones too. A page that stands in several
   places of it is taken once, and will be again; what other sequences share is copied. NOMEM leaves
   it as it was. */
pith_status kv_seq_swap_out(struct kv_seq *seq, struct kv_swapped **out, pith_error *err);
/* Puts it back into the sequence that it came from, to which nothing was done in between, bit for
   bit (marks, aims, closed pages and counts too), and frees `swapped`. Takes no memory but pages;
   KV_FULL leaves both as they were. */
pith_status kv_seq_swap_in(struct kv_seq *seq, struct kv_swapped *swapped, pith_error *err);
void kv_swapped_free(struct kv_swapped *swapped); /* before the cache is; NULL is ignored */
/* Page tables and marks aside, which the cache's statistics go on to count. */
int64_t kv_swapped_host_bytes(const struct kv_swapped *swapped);
int64_t kv_swapped_pool_bytes(const struct kv_swapped *swapped); /* that coming back takes */

/* Whether something was appended that is NaN or more than its storage type holds: the nearest number
   is stored. *layer and *value tell the first. */
bool kv_cache_clipped(const struct kv_cache *cache, int32_t *layer, bool *value);
/* Bytes of pages that reserving room for n more entries takes (kv_seq_reserve), copies included; 0
   where n is not positive. */
int64_t kv_seq_takes(const struct kv_seq *seq, int32_t n);
int64_t kv_cache_free_bytes(const struct kv_cache *cache);

int32_t kv_lane_len(const struct kv_seq *seq, int32_t layer, int32_t head);
/* Bytes of all pages held, reserved ones included. */
int64_t kv_seq_held_bytes(const struct kv_seq *seq);
/* Pages held, reserved ones included. */
int32_t kv_lane_pages(const struct kv_seq *seq, int32_t layer, int32_t head);
/* How many entries the last page takes before another one is needed; 0 where it takes none. */
int32_t kv_lane_room(const struct kv_seq *seq, int32_t layer, int32_t head);
/* Position of a slot, its page's delta included. Positions ascend with slots but where pages were
   shared at other positions and in lanes that were overwritten (kv_seq_aim). */
int32_t kv_lane_pos(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot);
/* Whether the lane was overwritten, so that its positions may fall from slot to slot. */
bool kv_lane_unordered(const struct kv_seq *seq, int32_t layer, int32_t head);
/* The positions of the first n slots (n <= length), page by page: O(n) for any lane. */
void kv_lane_positions(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t *out,
                       int32_t n);
/* The same without the deltas: where the entries were written. */
int32_t kv_lane_written_pos(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot);
void kv_lane_written(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t *out,
                     int32_t n);
/* Whether two lanes hold the same positions, slot by slot, read and written, that count alike. */
bool kv_lane_agrees(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t other_layer,
                    int32_t other_head);
/* The largest position of a lane; -1 when it is empty. O(pages), O(1) for one that was overwritten.
 */
int32_t kv_lane_last(const struct kv_seq *seq, int32_t layer, int32_t head);
/* Mark i of every slot, [length]; kv_cache_set_marks. Whoever has the lane may write. Valid until
   the sequence gets more room (reserve, fork, load) or the lane's slots change. */
float *kv_lane_marks(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i);
/* The norms of the values of every slot, bf16 [length], likewise; nobody writes. */
const uint16_t *kv_lane_norms(const struct kv_seq *seq, int32_t layer, int32_t head);

/* The stored key or value of a slot, decoded to f32 and turned back where its type is rotated. */
void kv_lane_key(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot, float *out);
void kv_lane_value(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot, float *out);

/* A lane page by page: the runs 0, 1, ... of a lane, one after the other, are its slots. */
struct kv_run {
    int32_t slot;  /* of its first entry */
    int32_t n;     /* entries, 1..page_len */
    int32_t delta; /* read as if written that many positions later */
    int32_t count; /* each is read as if it stood there so many times */
};
int32_t kv_lane_runs(const struct kv_seq *seq, int32_t layer, int32_t head);
struct kv_run kv_lane_run(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i);
/* The stored keys of run i decoded to f32 with entries side by side, out [dim_k][page_len], and its
   values, out [page_len][dim_v], bit for bit those of kv_lane_key and kv_lane_value; entries beyond
   the run are finite. */
void kv_lane_run_keys(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i, float *out);
void kv_lane_run_values(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i,
                        float *out);

/* Weights of rows as their pass wrote them: part j is the slots before end[j] that are of no
   earlier part, and there row r's softmax weight is what is stored times factor[j * n_row + r]. The
   last part ends where the lane does. A part is a page; the rows of a lane of more pages than there
   is room for are finished, in one part, whose factors are 1. */
struct kv_weight_parts {
    int32_t room;  /* parts that end and factor hold, at least 1; the caller's */
    int32_t n;     /* set by the call, as are the others: 0 for a lane without entries */
    int32_t n_row; /* floats from one part's factors to the next one's */
    int32_t *end;  /* [room] ascending */
    float *factor; /* [room][n_tok * n_group] */
};

/* The logits and the weights of one attention call, for whoever asks: NULL is not wanted. Weights
   have the guarantees of the output: bits that depend only on what the query sees and where; and
   they leave the output's bits alone. */
struct kv_attend_tap {
    float *logits; /* [n_tok][n_group][row_stride] scaled logits q.k, -INFINITY where not visible */
    float *weight; /* [n_tok][n_group][row_stride] softmax of the logits over what the query sees, 0
                      where it does not and from the lane's length to the next multiple of 16
                      (attend.c has the arithmetic) */
    size_t row_stride; /* at least the lane's length; for weights its next multiple of 16 */
    struct kv_weight_parts *parts; /* where weights are wanted in parts, which spares another pass
                                      over them; else NULL */
    float *max;                    /* [n_tok][n_group] -INFINITY for a query that sees nothing */
    float *sum;                    /* [n_tok][n_group] sum of exp(logit - max), 0 likewise:
                                      weight = exp(logit - max) / sum */
};

/* One attention call: n_tok queries times the n_group query heads that share one KV head. */
struct kv_attend_job {
    const struct kv_seq *seq;
    const struct kv_seq *guests; /* its entries of the same layer and head are read before those of
                                    seq, as if they were the lane's first: whole, also where slots
                                    lists what is read of seq. NULL: none. The tap shows those of
                                    seq alone, whose weights then sum to less than 1; the guests are
                                    in its max and sum */
    int32_t layer;
    int32_t head; /* KV head */
    int32_t n_tok;
    int32_t n_group;
    int32_t pos0;      /* position of the first query; query t sees entries at <= pos0 + t, and in a
                       layer with a window no more than that before itself */
    const float *q;    /* query (t, g) at q + t * q_stride + g * dim_k; after rope; NULL: */
    struct pi_at q_at; /* they are there on the device */
    size_t q_stride;
    float scale; /* multiplies q.k */
    float cap;   /* the product becomes cap * tanh(product / cap), also in a tap; 0: it does not */
    const float *sink;   /* [n_group] a logit of no entry, in a tap's max and sum, too; or NULL */
    float *out;          /* output (t, g) at out + t * out_stride + g * dim_v; NULL: */
    struct pi_at out_at; /* it goes there on the device; none: only the tap is wanted, and no value
                            is read */
    size_t out_stride;
    const struct pi_rope
        *rope;                 /* rotates queries for pages with a delta; may be NULL without any */
    struct kv_attend_tap *tap; /* may be NULL */
    const int32_t *slots; /* [n_slot] ascending: the entries that are read, of which a query sees
                             those at its position or before; NULL: the whole lane. A tap's rows are
                             then as long as slots, and weights come in no parts */
    int32_t n_slot;
};

/* Bytes of scratch of one thread for calls with at most n_tok * n_group rows. */
size_t kv_attend_scratch_bytes(const struct kv_geometry *g, int32_t n_row);

/* Exact softmax attention over the lane, but that for values of a rotated type a weight below
   PI_ATTEND_SMALL of what its row has summed up so far counts as nothing. Each query's bits depend
   only on the entries it sees and on their slots, not on n_tok: a prompt read in chunks of any size
   gives the same output. */
void kv_attend(const struct kv_attend_job *job, void *scratch);

/* Replaces a query by what of it keys of a type meet there: rounded where they are bf16, what its
   codes stand for where they are q8_0. */
void kv_query_met(enum kv_type type, float *q, int32_t dim);

/* Tokens of queries that one call should take at least to run at full speed, given n_group. */
int32_t kv_attend_tile(const struct kv_geometry *g, int32_t n_group);

/* The calls of a layer, in the order in which they had better be begun: `job` fills call number
   `turn` of unit i, from 0 on, and says false when there are no more. Calls of a unit come in order
   and on one thread, those of different units at the same time; thread is below the stream's. Their
   queries and outputs are on the device. */
struct kv_attend_list {
    void *ctx;
    int64_t n;    /* units */
    int64_t work; /* multiplications of all, about */
    bool (*job)(void *ctx, int64_t i, int32_t turn, int32_t thread, struct kv_attend_job *out);
    /* After a call: its tap is filled. NULL: nothing. */
    void (*done)(void *ctx, int64_t i, int32_t turn, const struct kv_attend_job *job,
                 int32_t thread);
};

/* ---- scoring: what a few vectors make of every entry, K streamed once (score.c) ---- */

enum kv_score_kind {
    KV_SCORE_DOT,    /* q.k, with the keys as stored */
    KV_SCORE_COSINE, /* q.k / |k|, 0 for a key of zeros; needs KV_INDEX_NORM */
    KV_SCORE_UNIT8,  /* about the same, from int8 codes of q and of k / |k|; needs KV_INDEX_UNIT8 */
    KV_SCORE_COLUMNS, /* the sum of q[d] * k[d] over the dimensions that `dims` lists;
                         KV_INDEX_COLUMNS reads those alone, as f16, without it all of K is read */
    KV_SCORE_PROJ,    /* (q's matrix product).(k's, as f16); needs KV_INDEX_PROJ */
    KV_SCORE_BOUNDS,  /* the most that q.k can be for any key between the dimensions' bounds of the
                         entry's page; where the page is not full, or n ends in it, between those of
                         the entries before; KV_INDEX_BOUNDS spares reading full pages */
};

/* How the scores of several vectors become one: the largest, or their mean. Of all kinds but bounds
   the mean is taken as the score of the vectors' mean, summed in order: the work of one vector. */
enum kv_score_reduce { KV_SCORE_MAX, KV_SCORE_MEAN };

struct kv_score_job {
    const struct kv_seq *seq;
    int32_t layer;
    int32_t head; /* KV head */
    int32_t n;    /* the lane's first n slots are scored; at most its length */
    enum kv_score_kind kind;
    enum kv_score_reduce reduce;
    const float *q;      /* [n_q][dim_k], after rope */
    int32_t n_q;         /* 1 or more */
    const int32_t *dims; /* [n_dim] ascending, of KV_SCORE_COLUMNS */
    int32_t n_dim;
    const struct pi_rope *rope; /* rotates q for pages with a delta; may be NULL without any */
    float *out;                 /* [n] */
};

/* Bytes of scratch of one call. */
size_t kv_score_scratch_bytes(const struct kv_geometry *g, int32_t n_q);
/* out[s] for every slot s < n. Every level of the processor gives the same bits (cpu/score.h has
   the arithmetic), and a slot's score depends on its entry (its page for bounds) and on q alone. */
void kv_score(const struct kv_score_job *job, void *scratch);

/* The sum of the values of the lane's first n slots, out [dim_v], page after page and within a page
   slot after slot; with KV_INDEX_VALUE_SUM full pages are not read. */
void kv_lane_value_sum(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t n,
                       float *out);

/* The k slots of highest score among n, ascending, into slots; of equal scores the lower slots. Not
   a sort: O(n). 0 <= k <= n, scores are never NaN. scratch [kv_top_scratch_bytes(n)]. */
size_t kv_top_scratch_bytes(int32_t n);
void kv_top(const float *score, int32_t n, int32_t k, int32_t *slots, void *scratch);

/* ---- copies (copy.c): a lane's entries in another sequence, of the same cache or another ---- */

/* From where to where. Both caches have the same head sizes. */
struct kv_copy {
    const struct kv_seq *from;
    int32_t from_layer;
    int32_t from_head;
    struct kv_seq *to;
    int32_t to_layer;
    int32_t to_head;
    const float *shift; /* [dim_k] added to every key; NULL: nothing. For lanes that store keys
                           differently: else bytes would be codes of other keys */
};

/* Appends copies of entries, in the order of slots [n], to a lane that has room for them: at their
   own positions, which need not ascend (the lane is then as one that was overwritten), as stored
   where both lanes store keys or values alike, else decoded and stored anew. Their marks begin at
   0. The entries are read at no delta. The table of references is not touched: copies to different
   lanes may be made at the same time. */
void kv_seq_copy(const struct kv_copy *c, const int32_t *slots, int32_t n);

/* The same in three steps, where entries come from several places: makes the lane n entries longer,
   for which there is room; fills each of those; and, from a slot on, makes what follows from all of
   them. In between nobody else looks at the lane. */
void kv_lane_extend(struct kv_seq *seq, int32_t layer, int32_t head, int32_t n);
void kv_lane_fill(const struct kv_copy *c, int32_t from_slot, int32_t to_slot);
void kv_lane_seal(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot);

/* Forgets all entries, and keeps the pages, so that there is room for as many without another
   reservation. Pages that others point to are given back and must be reserved again; a lane without
   them may be cleared while others are. */
void kv_lane_clear(struct kv_seq *seq, int32_t layer, int32_t head);

/* The number of the page of run i, the same in all lanes that share it, and a copy of all that the
   page holds, kv_layer_page_bytes bytes. */
int32_t kv_lane_page(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i);
void kv_lane_get_page(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i,
                      uint8_t *out);
/* Appends a page with such bytes, of which the first n entries count, to a lane that has a page
   reserved for it. The bytes come from a lane of the same geometry, and nobody checks them. */
void kv_lane_put_page(struct kv_seq *seq, int32_t layer, int32_t head, const uint8_t *data,
                      int32_t n);
/* Forgets the entries of the first run, and gives its page back. */
void kv_lane_drop_first(struct kv_seq *seq, int32_t layer, int32_t head);

/* Snapshot of a sequence: docs/snapshot.md describes the format. extra [extra_size] is the caller's
   (tokens), stored and checksummed along. */
pith_status kv_seq_save(const struct kv_seq *seq, const void *extra, size_t extra_size,
                        const char *path, pith_error *err);
/* *extra is a pi_mem block of *extra_size bytes that the caller frees. */
pith_status kv_seq_load(struct kv_cache *cache, const char *path, struct kv_seq **out, void **extra,
                        size_t *extra_size, pith_error *err);

#endif
