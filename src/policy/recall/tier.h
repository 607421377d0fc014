/*
 * tier.h - the inside of the second tier, for the files of recall/ alone: shelves in memory, the
 * file behind them, and what scores entries.
 *
 * The tier has a shelf for every lane (layer and KV head) of the model, all with the same number of
 * pages of 64 entries. A shelf is a kv_cache of one lane, and as many places for pages in the file.
 * A store has a row on each shelf: a kv_seq of evicted entries, in the order of eviction, and its
 * pages in the file. So an operation on a lane touches its shelf alone and lanes need no locks. The
 * page that is pushed out does not depend on threads. It is the oldest page of the lane, of all
 * stores.
 *
 * Rows that were forked share pages, in memory as in the file. Both are pushed out by all rows at
 * once, which see the oldest page of the shelf first.
 */
#ifndef PI_RECALL_TIER_H
#define PI_RECALL_TIER_H

#include <stdatomic.h>

#include "base/mem.h"
#include "base/os.h"
#include "policy/keep/methods/triattention_score.h"
#include "policy/read/quoka.h"
#include "policy/recall/recall.h"

enum {
    RECALL_STAGING_LEN = 8,      /* pages of the file that are scored together */
    RECALL_FILE_MOST = 1 << 10,  /* pages of the file that a recall of one lane reads, at most */
    RECALL_FILE_LEAST = 32,      /* that it may read, however few guests there are, in each round:
                                    bounds of 64 keys are loose, these cost half a millisecond */
    RECALL_KINDS = 4,            /* different lanes: two storage types of keys, two of values */
    RECALL_ROWS = 8,             /* rows of statistics that keys meet together */
    RECALL_ATTEND_ROWS = 16,     /* rows of one call of attention */
    RECALL_PAGES_MOST = 1 << 24, /* of a lane, in memory and in the file: entries are counted in
                                    int32_t */
};

/* ---- the file (tier_file.c; docs/recall-file.md) ---- */

#define RECALL_FILE_MAGIC "PITHTIER"

enum {
    RECALL_FILE_VERSION = 1,
    RECALL_FILE_ORDER = 0x01020304,              /* as the writer's memory has it */
    RECALL_FILE_HEADER = 128,                    /* bytes before the sizes of places */
    RECALL_FILE_ALIGN = 4096,                    /* places begin at a multiple */
    RECALL_HEAD_SIZE = 64 + 4 * RECALL_PAGE_LEN, /* of a place, before the page */
};

/* Whose file it is, and where its places are. */
struct recall_file_shape {
    uint64_t fingerprint; /* of the model; 0: not known */
    int32_t n_layer;
    int32_t n_head;
    int32_t dim_k;
    int32_t dim_v;
    int32_t n_place; /* of a lane */
};

/* Reads the beginning of a file, of which `size` bytes are there (all, or more than any header).
   *header is the size of its header, sizes of places included: that of layer l is
   recall_file_place_size. FORMAT, UNSUPPORTED (another version, another order of bytes). */
pith_status recall_file_parse(const uint8_t *bytes, size_t size, struct recall_file_shape *out,
                              size_t *header, pith_error *err);
/* Bytes of a place of a layer of a file that was parsed. */
uint32_t recall_file_place_size(const uint8_t *bytes, int32_t layer);
#define RECALL_FILE_LAYER_MAX 4096 /* layers of a file */
#define RECALL_FILE_HEADER_MAX (RECALL_FILE_HEADER + 4 * RECALL_FILE_LAYER_MAX + 8)

/* The head before a page. */
struct recall_head {
    int32_t lane; /* layer * n_head + head */
    int32_t n;    /* entries */
    uint64_t store;
    uint64_t stamp;
    uint64_t size;                /* of the page */
    uint64_t sum;                 /* its checksum */
    int32_t pos[RECALL_PAGE_LEN]; /* of the entries */
};

/* Reads a head. FORMAT: something else, or torn. empty: nothing was ever written there. */
pith_status recall_head_parse(const uint8_t bytes[RECALL_HEAD_SIZE], struct recall_head *out,
                              bool *empty, pith_error *err);
void recall_head_format(const struct recall_head *head, uint8_t out[RECALL_HEAD_SIZE]);

/* The file of a tier. Offsets of places are the shelves'. */
struct recall_file {
    struct pi_disk disk;
    bool own; /* the header is this tier's */
    char path[POLICY_TEXT_SIZE];
    atomic_bool failed;     /* nothing more is written: a write failed */
    atomic_bool read_spoke; /* a page that could not be read was told of */
};

struct recall_tier;
struct recall_shelf;

/* Opens the file, or makes it, and places the shelves in it. A file of the same model is used
   again, and its content is dropped. Where the system refuses (no directory, no right, a full disk)
   the tier has no file, which a warning says. INVALID: another model's file, a file of something
   else, a file in use, or a size that holds no page of every lane. UNSUPPORTED: another version. */
pith_status recall_file_open(struct recall_tier *tier, pith_error *err);
void recall_file_close(struct recall_tier *tier);
/* Writes a page to a place, its head last. False: it failed; the first time a warning says why, and
   nothing is written any more. */
bool recall_file_write(struct recall_tier *tier, const struct recall_shelf *shelf, int32_t place,
                       struct recall_head *head, const void *page);
/* Reads a page, and checks that it is the one that was written. False: it is not; the first time a
   warning says why. buffer [RECALL_HEAD_SIZE + page_bytes] has the page at RECALL_HEAD_SIZE; page
   false: reads the head alone. */
bool recall_file_read(struct recall_tier *tier, const struct recall_shelf *shelf, int32_t place,
                      bool page, struct recall_head *head, uint8_t *buffer);

/* ---- shelves and rows (tier_shelf.c) ---- */

/* A page in the file, as memory knows it. */
struct recall_place {
    uint64_t stamp;
    uint64_t sum; /* of the page: what is read back is what was written */
    int32_t n;    /* entries */
    int32_t low;  /* their least position and their largest */
    int32_t high;
    int32_t n_ref; /* rows that it belongs to; 0: free */
};

/* A row's part of such a page: its first `seen` entries at positions below `below`, n of them. */
struct recall_ref {
    int32_t place;
    int32_t seen;
    int32_t below;
    int32_t n;
};

/* A lane of a store. */
struct recall_row {
    struct kv_seq *kv;      /* owned; in the shelf's cache */
    float *centre;          /* [2][dim_k] what is taken off keys, and its opposite; zero at first */
    bool centred;           /* it is set */
    uint64_t *stamp;        /* [n_page] of the pages of kv: when they were opened, ascending */
    struct recall_ref *ref; /* [n_place] in the file, a ring */
    int32_t first_ref;
    int32_t n_ref;
    int64_t n_file; /* entries in the file */
    int64_t n_lost;
};

/* A lane of the tier. */
struct recall_shelf {
    int32_t number; /* layer * n_head + head */
    int32_t layer;
    int32_t kind;           /* which staging lane pages of the file are read to */
    int32_t part;           /* where its pages are */
    bool centres;           /* keys are stored less a constant of their row (recall_row_add) */
    struct kv_cache *cache; /* one lane; owned */
    int32_t n_page;         /* of the cache */
    size_t page_bytes;
    uint64_t clock; /* pages that were opened */

    int32_t n_place; /* of the file; 0: there is none */
    int64_t offset;  /* of the first place */
    int64_t place_bytes;
    int32_t n_fresh;            /* places that have been used so far */
    int32_t n_free;             /* of those, free again */
    struct recall_place *place; /* [n_place] */
    int32_t *free;              /* [n_free] the places, the last is taken first */
    uint16_t *bounds; /* [n_place][2][dim_k] f16: nothing that scores of the page's keys are made of
                         lies outside */
};

struct recall_store {
    struct recall_tier *tier;
    struct recall_store *prev, *next; /* the tier's list */
    uint64_t id;
    struct recall_row *row; /* [n_shelf] */
    void *block;            /* stamps and refs of all rows; mapped, owned */
    size_t block_size;
};

/* Takes copies of entries of a lane, slots [n] ascending, none of them read at a delta. Where the
   shelf centres, keys are stored less the mean of the lane's keys at the row's first entry. The
   common part of the keys takes none of the few bits then. Each logit of the row is lower by the
   same number, which scores add again. */
void recall_row_add(struct recall_store *store, int32_t shelf, const struct kv_seq *from,
                    int32_t layer, int32_t head, const int32_t *slots, int32_t n, int32_t thread);
/* Forgets what stands at positions >= n_token. */
void recall_row_truncate(struct recall_store *store, int32_t shelf, int32_t n_token);
/* The row's pages in the file, oldest first: number i of row->n_ref. */
struct recall_ref *recall_row_ref(const struct recall_shelf *shelf, struct recall_row *row,
                                  int32_t i);
/* Takes pages out of the row whose n became 0, and what they held out of its count. */
void recall_row_sweep(struct recall_shelf *shelf, struct recall_row *row);
/* The vector that is taken off the row's keys [dim_k]; NULL: nothing. */
const float *recall_row_centre(const struct recall_row *row);
void recall_row_free(struct recall_shelf *shelf, struct recall_row *row);

/* ---- scores (tier_score.c) ---- */

/* Pages of the file are read back to a staging lane, which is like a shelf's. */
struct recall_staging {
    struct kv_cache *cache;
    struct kv_seq *kv; /* RECALL_STAGING_LEN pages are reserved */
};

/* A thread's working memory. All but the staging lanes are parts of one mapping. */
struct recall_work {
    struct recall_staging staging[RECALL_KINDS]; /* [n_kind] where there is a file */
    float *lane_key;    /* [RECALL_PAGE_LEN][dim_k] of the lane that comes in; owned */
    uint8_t *file_page; /* a page on its way to the file, where there is one; owned */
    uint8_t *block;     /* mapped; NULL before the first reserve */
    size_t block_size;
    int32_t most_entry; /* numbers and places of the largest recall so far: what was touched */
    int32_t most_place;

    /* Scores. */
    void *queries;    /* of quoka_queries_make */
    void *score;      /* of kv_score */
    float *vector;    /* [most vectors][2 * dim_k] for bounds */
    float *packed;    /* the same as kernels take them */
    float *key;       /* [dim_k][RECALL_PAGE_LEN] */
    float *w;         /* [n_row][dim_k] of statistics, as e and standard */
    float *e;         /* [n_row][n_pair] */
    double *standard; /* [n_row][2] mean and 1 / deviation of a row's scores */
    float *raw;       /* [RECALL_ROWS][n_entry]; where choices are, as weight */
    void *attend;     /* of kv_attend */
    float *weight;    /* [rows of a call][n_entry up to a multiple of 16] */
    float *tile_max;  /* [rows of a call] */
    float *tile_sum;
    double *missed;  /* [rows of a call] */
    double *row_max; /* [n_tok][n_group] M and L of tier_attend.c */
    double *row_sum;
    float best;     /* the largest score of the last choice in memory */
    float *line;    /* [n_place up to a multiple of 16] */
    float *promise; /* [likewise] by place: no entry of its page scores higher, to rounding */

    /* Entries that can come back. Numbers below the row's length are slots of it; behind them every
       page that was read has RECALL_PAGE_LEN. */
    float *value;    /* [n_entry] their scores, by number */
    int32_t *pos;    /* [n_entry] by number; -1: none */
    float *reach;    /* [n_entry] in w->order: the best score that an entry comes back with */
    int32_t *chosen; /* [n_entry] */
    /* A choice among scores: in the place of weight and raw, which scoring alone needs. */
    uint64_t *order; /* [n_entry] position << 32 | number, ascending */
    uint64_t *other; /* [n_entry] */
    int32_t *wait;   /* [n_entry] */
    void *top;       /* of kv_top */
    uint32_t *count; /* of a sort */

    /* Pages of the file. */
    int32_t *page; /* [RECALL_FILE_MOST] numbers of the row's refs that were read */
    int32_t n_page;
    bool *taken;     /* [n_place] by number of the ref: it was read */
    uint8_t *buffer; /* of recall_file_read */
};

/* The data of TriAttention's scores; all zero without. */
struct recall_stats {
    struct pith_stats *stats;
    struct triattention_plans plans;
    int32_t n_row; /* centres that a KV head is scored by, at most */
};

/* Whether what makes the scores goes together with the model; loads the statistics. INVALID, the
   statuses of a file. */
pith_status recall_score_open(struct recall_tier *tier, pith_error *err);
void recall_score_close(struct recall_tier *tier);
/* Bytes of the parts that scores need, placed from *used on (base NULL: counts alone). */
void recall_score_place(const struct recall_tier *tier, int32_t n_tok, int32_t n_place,
                        uint8_t *base, size_t *used, struct recall_work *w);
/* Writes the bounds of a page in memory: of the first n entries of a lane's first page. key has
   room for three keys. */
void recall_bounds_make(const struct recall_tier *tier, const struct recall_shelf *shelf,
                        const struct kv_seq *kv, int32_t n, float *key, uint16_t *out);

/* The scores of one recall. */
struct recall_scorer {
    const struct recall_tier *tier;
    const struct recall_query *query;
    struct recall_work *w;
    struct quoka_queries q;
    int32_t n_row;       /* of statistics; 0: the queries score */
    const float *centre; /* [dim_k] taken off stored keys; NULL: nothing */
};

void recall_scorer_start(const struct recall_tier *tier, const struct recall_query *query,
                         struct recall_work *w, struct recall_scorer *out);
/* Scores of all entries of a lane, out [its length], never NaN. first: the row in memory, which
   comes before all staging lanes and sets the measure that scores of statistics are compared by. */
void recall_scorer_run(struct recall_scorer *s, const struct kv_seq *kv, bool first, float *out);
/* Fills w->promise for the places of the shelf. */
void recall_scorer_promise(struct recall_scorer *s, const struct recall_shelf *shelf);

/* The bound of each page in the file for its score by n vectors, out [places up to a multiple of
   16]. It is the largest of the vectors' products with anything between its bounds. */
void recall_score_bounds(const struct recall_scorer *s, const struct recall_shelf *shelf,
                         const float *vector, int32_t n, float *out);

/* The same steps of RECALL_ATTENTION (tier_attend.c). */
void recall_attend_place(const struct recall_tier *tier, int32_t n_tok, uint8_t *base, size_t *used,
                         struct recall_work *w);
/* Rows of one call of attention, whose weights have room in w->weight; 0 with other scores. */
size_t recall_attend_rows(const struct recall_tier *tier, int32_t n_tok);
void recall_attend_run(const struct recall_scorer *s, const struct kv_seq *kv, bool first,
                       float *out);
void recall_attend_promise(struct recall_scorer *s, const struct recall_shelf *shelf);

/* The room for scores of recall_tier_ask; NOMEM. */
pith_status recall_ask_reserve(struct recall_tier *tier, int32_t n_entry, pith_error *err);

/* Bytes of the threads' working memory that the largest recall so far has touched, in each of them.
   The parts are address space for any recall. Each is used from its beginning on. */
int64_t recall_work_bytes(const struct recall_tier *tier);

/* ---- the tier (tier.c) ---- */

/* Which of its kinds a lane is of; another one is added. */
int32_t recall_tier_kind(struct recall_tier *tier, const struct kv_geometry *lane);

/* Pages of the layers of one device. */
enum recall_where { RECALL_IN_HOST, RECALL_IN_PINNED, RECALL_ON_DEVICE };
struct recall_part {
    struct pi_device *device;
    struct pi_stream *stream; /* owned; NULL: the device does not score */
    enum recall_where where;
    struct pi_at pages; /* one mapping, owned */
    size_t size;
};

struct recall_tier {
    struct recall_kv_options o;
    struct policy_model model;
    int32_t n_thread;
    int32_t n_shelf;
    int32_t n_page;  /* of a shelf in memory */
    int32_t n_place; /* of a shelf in the file */
    int32_t n_kind;  /* different lanes: storage types differ from layer to layer */
    struct kv_geometry kind[RECALL_KINDS]; /* of one lane */
    struct recall_shelf *shelf;            /* [n_shelf] */
    uint8_t *memory; /* of the shelves: lists, then positions; one mapping, owned */
    size_t memory_size;
    struct recall_part part[KV_PART_MOST + 1]; /* [n_part] */
    int32_t n_part;
    float *value; /* [RECALL_ASK_MOST][n_value] scores of recall_tier_ask, mapped, owned; NULL
                          before the first reserve, or without such a device */
    size_t n_value;
    struct recall_file file;
    void *places; /* the shelves' arrays about the file; mapped, owned */
    size_t places_size;
    struct recall_stats stats;
    struct recall_work *work;   /* [n_thread] */
    int32_t n_tok;              /* that recalls are reserved for */
    struct recall_store *first; /* all stores */
    uint64_t n_store;           /* that were ever made */
};

#endif
