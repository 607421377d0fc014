/*
 * kv_model.h - a model of the KV store without shared memory. A lane is a list of its own entries,
 * and the pages that it points to are only numbers. So it can predict the pages in use, the shared
 * pages and when memory runs out. For one geometry of a few small lanes.
 */
#ifndef KV_MODEL_H
#define KV_MODEL_H

#include "kv_check.h"
#include "testing.h"

enum {
    N_LAYER = 3,
    N_HEAD = 2,
    N_LANE = N_LAYER * N_HEAD,
    DIM = 4,
    P = 16,
    N_SEQ = 6,
    N_BLOCK = 4,
    MOST_PAGE = 48,
    MOST_ENTRY = 400,
    N_UID = 1024,
};

/* A page in use, and its references. */
struct uid {
    int32_t n_ref;  /* table entries */
    int32_t n_held; /* blocks */
    int32_t lane;
};

struct ref {
    int32_t uid;
    int32_t n;
    int32_t delta;
    int32_t n_folded;
    bool closed;
};

struct entry {
    int32_t pos; /* as written */
    uint32_t id; /* key and value follow from it */
    float mark;
};

struct lane {
    struct ref page[MOST_PAGE];
    int32_t n_page;
    int32_t n_live;
    struct entry entry[MOST_ENTRY];
    int32_t len;
    int32_t victim; /* -1: none */
    bool unordered;
};

struct pair {
    struct kv_seq *seq;
    struct kv_swapped *swapped; /* then it has the lanes' contents */
    int32_t next;               /* the position of the next token */
    struct lane lane[N_LANE];
};

struct held {
    struct kv_block *block;
    int32_t uid[N_LANE];
    struct entry entry[N_LANE][P];
};

enum op {
    OP_APPEND,
    OP_FORK,
    OP_SPAN,
    OP_FOLD_SPAN,
    OP_COMPACT,
    OP_VICTIM,
    OP_TRUNCATE,
    OP_HOLD,
    OP_DROP,
    OP_APPEND_BLOCK,
    OP_SWAP,
    OP_TRIM,
    OP_FREE,
    N_KIND
};

struct world {
    struct kv_cache *cache;
    int64_t tables; /* allocated before */
    uint64_t rng;
    uint32_t n_id;
    int64_t used;
    struct uid uid[N_UID];
    struct pair pair[N_SEQ];
    struct held held[N_BLOCK];
    int32_t n_done[N_KIND];   /* operations that went through */
    int32_t n_full[N_KIND];   /* that found no memory */
    int32_t n_closed[N_KIND]; /* that met a lane whose last page was closed */
};

struct packed {
    struct ref page[MOST_PAGE];
    bool written[MOST_PAGE];
    int32_t n_page;
};

int64_t model_page_bytes(const struct world *w, int32_t lane);
int64_t model_free_bytes(const struct world *w);
/* A page of a lane, with one reference of a table; -1 less of a table or of a block. */
int32_t model_take(struct world *w, int32_t lane);
void model_drop(struct world *w, int32_t uid, bool held);
bool model_is_shared(const struct world *w, const struct ref *ref);

/* The page of a slot, and its place there; the first slot of page i. */
int32_t model_find_page(const struct lane *m, int32_t slot, int32_t *entry);
int32_t model_begin(const struct lane *m, int32_t i);
/* The largest position that is read in a lane; -1: it is empty. */
int32_t model_last(const struct lane *m);
int32_t model_tail_room(const struct lane *m);
/* Counts the entries of the pages, and whether an unordered lane still is one. */
void model_recount(struct lane *m);

/* Copies that writing to n table entries of these pages takes: each holder makes one but the
   last. */
int32_t model_copies(const struct world *w, const int32_t *uid, int32_t n);
/* Pages that n more entries take; with copies, and if it is so wished taken. */
int64_t model_lacks(const struct lane *m, int32_t n);
int64_t model_reserve(struct world *w, int32_t l, struct lane *m, int32_t n, bool take);
void model_drop_reserved(struct world *w, struct lane *m);
void model_truncate(struct world *w, int32_t l, struct lane *m, int32_t pos);
/* Where kept slots would go; and lets them. */
void model_pack(const struct lane *m, const int32_t *slots, int32_t n, struct packed *out);
void model_apply(struct world *w, int32_t l, struct lane *m, const int32_t *slots, int32_t n,
                 const struct packed *to);

/* The key and the value of an entry, exact in f16. */
void model_numbers(uint32_t id, float *key, float *value);
/* Asserts that a sequence's tables equal the model's. */
void model_check_tables(const struct pair *p);
/* Asserts the same of everything: entries, marks, which pages are the same, and the used, shared,
   saved and live counts. The store's counters must also agree with its own tables. */
void model_check(const struct world *w);

#endif
