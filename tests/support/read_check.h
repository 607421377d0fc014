/*
 * read_check.h - the common part of the tests of read policies. A problem is a chunk's queries, the
 * keys and values before it and its own, from numbers or from the vectors of their specification.
 * It has the lanes that hold a problem, and a policy's scores, choice and outputs there.
 */
#ifndef READ_CHECK_H
#define READ_CHECK_H

#include <jansson.h>

#include "policy/read/read.h"

#define READ_VECTORS PITH_SOURCE_DIR "/tests/vectors/quoka.json"

/* One layer. Arrays are of the problem. */
struct read_problem {
    int32_t n_q;  /* query heads */
    int32_t n_kv; /* KV heads */
    int32_t dim;
    int32_t chunk;
    int32_t n; /* entries before the chunk */
    int32_t n_query;
    int32_t budget;
    float scale;
    float *q;  /* [n_q][chunk][dim] */
    float *k;  /* [n_kv][n][dim] */
    float *v;  /* [n_kv][n][dim] */
    float *kc; /* [n_kv][chunk][dim] */
    float *vc; /* [n_kv][chunk][dim] */
};

/* The arrays are zero. */
void read_problem_make(struct read_problem *p);
void read_problem_free(struct read_problem *p);
/* Uniform numbers, queries and keys with means of their own; the members before q are given. */
void read_problem_random(struct read_problem *p, uint64_t *rng);

/* The file's root, which read_vectors_free frees. */
json_t *read_vectors(void);
void read_vectors_free(void);
/* A member that must be there. */
json_t *read_vector_at(const json_t *object, const char *key);
/* The case of that name, and its problem. */
json_t *read_vector_case(const char *name);
void read_vector_load(const json_t *c, struct read_problem *p);

/* A policy on the lanes of a problem. */
struct read_world {
    const struct read_problem *problem;
    struct read_config config;
    struct policy_model model;
    struct read_view view;
    struct kv_cache *cache;
    struct kv_seq *kv;
    float *q;    /* [chunk][n_q][dim] as a pass has queries */
    void *data;  /* the policy's */
    void *score; /* scratch of a score, no larger than the policy asked for */
};

/* type: of keys and values. The entries are at positions 0, 1, ... */
void read_world_open(struct read_world *w, const struct read_problem *p,
                     const struct read_policy *policy, const char *options, enum kv_type type);
void read_world_close(struct read_world *w);
/* The policy's input for a KV head. */
struct read_chunk read_world_chunk(const struct read_world *w, int32_t head);
/* out: the scores of a chunk's entries, a row of n or one for each query head. */
void read_world_score_chunk(const struct read_world *w, const struct read_chunk *chunk, float *out);
/* out [n]: the scores of a KV head's entries. */
void read_world_score(const struct read_world *w, int32_t head, float *out);
/* Whether a part is read of a lane; then the slots [problem->budget], ascending, without the
   chunk's own. By the rules, from scores. */
bool read_world_choose(const struct read_world *w, const float *score, int32_t *slots);
/* out [n_q][chunk][dim]: attention of the chunk to the slots [n_kv][n_slot] and its own entries;
   slots NULL: to everything. */
void read_world_attend(const struct read_world *w, const int32_t *slots, int32_t n_slot,
                       float *out);

/* Storage type number i, counted round and round; f16 where that type cannot store keys of dim
   dimensions. */
enum kv_type read_type(int32_t i, int32_t dim);

#endif
