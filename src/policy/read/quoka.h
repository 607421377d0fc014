/*
 * quoka.h - the first half of QuoKA: the queries that speak for a chunk, apart from the keys that
 * they choose. For the policy itself, for tests of each step, and for a benchmark of the parts.
 */
#ifndef PI_READ_QUOKA_H
#define PI_READ_QUOKA_H

#include "policy/read/read.h"

enum quoka_pair { QUOKA_RANK, QUOKA_TOKEN, QUOKA_NONE };
enum quoka_score { QUOKA_COSINE, QUOKA_DOT };
enum quoka_aggregate { QUOKA_MAX, QUOKA_MEAN };
enum quoka_index { QUOKA_NORM, QUOKA_INT8 };

/* The options of the policy: read_quoka's params. */
struct quoka_form {
    int32_t n_query;   /* N_Q */
    int32_t pair;      /* enum quoka_pair: which queries of the heads of a group are averaged */
    int32_t score;     /* enum quoka_score */
    int32_t aggregate; /* enum quoka_aggregate: of the scores of several queries */
    int32_t index;     /* enum quoka_index: what is scored with QUOKA_COSINE */
};

/* The queries of a chunk and a KV head, prepared for scoring. Parts of the scratch that it was made
   in. */
struct quoka_queries {
    int32_t n_set;       /* 1; one for each query head with QUOKA_NONE */
    int32_t n;           /* of each set: the smaller of N_Q and the chunk's tokens */
    const float *q;      /* [n_set][n][dim_k] */
    const int32_t *kept; /* [n_group][n] the tokens of the chunk whose queries they are made of,
                            least similar first where there was a choice */
};

size_t quoka_queries_scratch(const struct quoka_form *form, const struct policy_model *model,
                             int32_t n_tok);
void quoka_queries_make(const struct quoka_form *form, const struct policy_model *model,
                        const struct read_chunk *c, void *scratch, struct quoka_queries *out);

#endif
