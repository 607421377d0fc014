/*
 * read_store.h - the subject of bench_read: lanes of random entries and queries in the shape of
 * Qwen3-4B's attention (32 query heads, 8 KV heads, head size 128). A read policy works on them
 * through the calls that a pass makes.
 */
#ifndef BENCH_READ_STORE_H
#define BENCH_READ_STORE_H

#include "policy/read/read.h"
#include "rig.h"

#define SHAPE_LAYERS 36
#define SHAPE_HEADS 8 /* KV heads */
#define SHAPE_GROUP 4 /* query heads of one */
#define SHAPE_DIM 128
#define SHAPE_CHUNK 128 /* tokens of a chunk, and the last ones of every lane */

/* Lanes of several lengths, which share their pages. Zero it before use. */
struct store {
    struct policy_model model;
    int32_t n_thread;
    struct kv_cache *cache; /* owned */
    struct kv_seq *seq;     /* the longest, owned */
    float *q;               /* [SHAPE_CHUNK][SHAPE_HEADS * SHAPE_GROUP][SHAPE_DIM] owned */
    float *out;             /* likewise */
    size_t scratch_size;
    uint8_t *scratch; /* [n_thread][scratch_size] owned */
};

/* A policy with its options. Zero it before use. */
struct side {
    struct read_config config;
    struct read *read; /* owned */
    struct pi_pass_reader reader;
    struct kv_geometry g;        /* with the index that the policy wants */
    int32_t cap;                 /* slots that a chunk selects, at most */
    int32_t *slots;              /* [SHAPE_HEADS][cap] owned */
    int32_t n_slot[SHAPE_HEADS]; /* that the last chunk selected; -1: everything */
};

/* Tokens at the end of a lane, and a layer. */
struct place {
    struct kv_seq *seq;
    int32_t layer;
    int32_t n_tok;
    int32_t n; /* entries before them */
};

/* Seconds on the wall of one chunk, or step, in one layer. */
struct spent {
    double choose; /* scores, the choice, and what joins the KV heads of a layer */
    double attend; /* over the chosen entries, including the policy's changes to the outputs */
};

/* If it cannot open the side, the program ends with a sentence. */
void side_open(struct side *s, const char *read, int32_t n_layer, int32_t longest,
               int32_t n_thread);
void side_close(struct side *s);

/* Lanes of n entries in the first n_fill layers of the side's geometry: keys and values drawn from
   a normal distribution, queries too. The same numbers for every side. */
void store_open(struct store *st, const struct side *s, int32_t n_fill, int32_t n,
                int32_t n_thread);
void store_close(struct store *st);
/* The same lanes cut to n entries; the caller frees. */
struct kv_seq *store_cut(const struct store *st, int32_t n);

/* Seconds of full attention of p's tokens in all KV heads of its layer, in the tiles of tokens that
   a pass uses. With whole it uses the tiles of a chunk that reads a part: mostly one. */
double store_dense(struct store *st, const struct place *p, bool whole);
/* The same under the side's policy. */
struct spent store_read(struct store *st, struct side *s, const struct place *p);

/* Runs fn for every KV head on the store's threads; seconds. */
double store_heads(const struct store *st, pi_job_fn *fn, void *ctx);

/* The queries of p's tokens in a KV head, as policies see them. */
struct read_chunk store_chunk(const struct store *st, const struct place *p, int32_t head);

/* Makes a file of bases for Loki, whose name path [cap] gets and the caller removes. To random keys
   every basis is as good as that which would be fitted to them: it is the unit matrix. */
void write_basis(char *path, size_t cap);

#endif
