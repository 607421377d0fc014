/*
 * recall_rig.h - the common part of the tests of recall's second tier: a cache with a sequence of
 * random entries, and a tier with its store. It compares guests with a list of evicted entries.
 */
#ifndef RECALL_RIG_H
#define RECALL_RIG_H

#include "policy/recall/tier.h"
#include "testing.h"

enum { RIG_LAYERS = 2, RIG_HEADS = 2, RIG_DIM = 64, RIG_GROUP = 2, RIG_LANES = 4 };

struct rig {
    struct policy_model model;
    struct kv_cache *cache;
    struct kv_seq *seq;
    struct kv_seq *guests; /* a sequence of the same cache */
    struct recall_tier *tier;
    struct recall_store *store;
    uint64_t rng;
    int32_t n_token; /* of the sequence so far */
    float *key;      /* [lane][capacity][dim] as stored when they were evicted, by position */
    float *value;
    bool *gone; /* [lane][capacity] evicted */
    int32_t capacity;
    int64_t used[PI_MEM_N_TAG]; /* before anything was made */
};

/* A geometry with 16 entries a page and no index. */
struct kv_geometry rig_geometry(enum kv_type type);
/* ram for n pages of every lane, no file, QuoKA's scores, blocks of 8. */
struct recall_kv_options rig_options(const struct kv_geometry *g, int32_t n_page);
/* Bytes of a page of all lanes of a tier that stores them as a geometry says. */
int64_t rig_page_bytes(const struct kv_geometry *g);
/* The same of places in the file, and the bytes before them. */
int64_t rig_place_bytes(const struct kv_geometry *g);
enum { RIG_FILE_BEGIN = 4096 };

/* Makes everything but the tier, for sequences of up to `capacity` tokens. */
void rig_make(struct rig *r, const struct kv_geometry *g, int32_t capacity);
/* Makes the tier and its store. */
void rig_open(struct rig *r, const struct recall_kv_options *o, int32_t n_thread);
/* Frees all of it, and asserts that nothing is left. */
void rig_free(struct rig *r);

/* Appends n tokens with random keys and values to every lane. */
void rig_append(struct rig *r, int32_t n);
/* The same with the key of one position and lane given. */
void rig_append_key(struct rig *r, int32_t n, int32_t pos, int32_t lane, const float *key);
/* Remembers and drops from all lanes what `keep` says no to. */
typedef bool rig_keep(int32_t lane, int32_t pos);
bool rig_keep_none(int32_t lane, int32_t pos);
void rig_evict(struct rig *r, rig_keep *keep);

/* How many times as long as a query a key must be to match it best by far, by an enum
   recall_score. */
float rig_needle_factor(int32_t score);
/* Random queries of n_tok tokens, q [n_tok][RIG_GROUP][dim]. */
void rig_queries(uint64_t seed, int32_t n_tok, float *q);
/* Recalls n_most entries of every lane by one query of n_tok tokens, q [n_tok][RIG_GROUP][dim],
   into the guests; n_guest [RIG_LANES]. */
void rig_recall(struct rig *r, const float *q, int32_t n_tok, int32_t n_most, int32_t *n_guest);
/* Asserts that the guests of a lane ascend, were evicted, and are unchanged bit for bit. */
void rig_check_guests(const struct rig *r, int32_t lane);
bool rig_has_guest(const struct rig *r, int32_t lane, int32_t pos);
/* Plants a key that one token of the question looks for, with the score of o. It is among 2000
   positions that come and go 250 at a time. Asserts that it comes back with the following entries,
   however few come back. */
void rig_check_needle(const struct kv_geometry *g, struct recall_kv_options o, rig_keep *keep,
                      int32_t depth);
/* Entries of all lanes that were evicted. */
int64_t rig_count_gone(const struct rig *r);

/* Setup and teardown of a test with an empty file at rig_path. */
extern char rig_path[64];
void rig_make_path(void);
void rig_remove_path(void);
/* rig_options with room for n_place pages of every lane in that file. */
struct recall_kv_options rig_file_options(const struct kv_geometry *g, int32_t n_page,
                                          int32_t n_place);

/* Log lines since the last call: how many, the last one in *line. */
int32_t rig_log(const char **line);

#endif
