/*
 * ranks.h - one model over several processes, which MPI starts on as many machines (docs/
 * distributed.md). Every rank runs the same program on the same input, and comes to the same
 * tokens. It holds a part of the weights and of the KV cache. A library without MPI has one rank.
 */
#ifndef PITH_RANKS_H
#define PITH_RANKS_H

#include "pith/pith.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How a model is divided. */
typedef enum pith_split {
    PITH_SPLIT_ROWS,   /* some KV heads and rows of matrices of every layer: all compute a token */
    PITH_SPLIT_LAYERS, /* some layers: they compute a token one after the other */
    PITH_SPLIT_AUTO    /* rows where a gather of 16 kB takes less than a tenth of a layer's time in
                          memory, else layers. Rank 0 decides when the first model is loaded */
} pith_split;

typedef struct pith_ranks_info {
    int32_t rank;          /* of this process, from 0 */
    int32_t n_rank;        /* 1: the process is alone */
    const int32_t *weight; /* [n_rank] how much each has beside the others; NULL: all as much */
    pith_split split;
    double probe_s;     /* of a gather of 16 kB, measured for PITH_SPLIT_AUTO; else 0 */
    int64_t n_gather;   /* by layers: rows handed on, and logits told to all */
    int64_t sent_bytes; /* of rows, to all others together, since pith_ranks_start */
    double gather_s;    /* in these, waiting for others included */
} pith_ranks_info;

/* Joins the processes that were started together, before any model is loaded. words [n_word] are
   the options, which must be equal on all ranks. Models that are loaded later are split over the
   ranks. UNSUPPORTED: the library was built without MPI. INVALID: versions or options differ. */
PITH_API pith_status pith_ranks_start(const char *const *words, int32_t n_word, pith_error *err);

#define PITH_RANKS_WEIGHT_MOST 1000000

/* Says how models that are loaded later are divided. Each rank gets a part by its weight, and
   something at least. weight [n_weight] from 1 on, copied; n_weight 0: all as much. Without this
   call ranks get rows, and all as much. INVALID: an unknown split, a number of weights other than
   that of ranks, or other ranks are given others. */
PITH_API pith_status pith_ranks_divide(pith_split split, const int32_t *weight, int32_t n_weight,
                                       pith_error *err);

/* Leaves them. ok false: every other rank is ended, too. */
PITH_API void pith_ranks_end(bool ok);

/* For a rank that fails, and is about to call pith_ranks_end(false). Rank 0 tells the others so.
   Another returns whether rank 0 tells it within wait_s seconds: then rank 0 says why. */
PITH_API bool pith_ranks_all_fail(double wait_s);

/* Rank 0 of 1 before pith_ranks_start. */
PITH_API void pith_ranks_describe(pith_ranks_info *out);

/* Copies rank 0's data [size] to all ranks, which call this together. */
PITH_API void pith_ranks_tell(void *data, size_t size);

/* Of one rank of n_rank, before there are any. */
typedef struct pith_ranks_plan {
    int32_t n_head_kv;   /* KV heads whose lanes it holds */
    int32_t first_layer; /* of those that it has */
    int32_t n_layer;
    int64_t weight_bytes;
    int64_t kv_token_bytes;   /* of a token's keys and values in f16 */
    int64_t state_bytes;      /* of a sequence's state in recurrent layers */
    int64_t sent_token_bytes; /* what it sends for a token, to all others together */
} pith_ranks_plan;

/* Of the rank that `as` describes: rank, n_rank, weight and split. Reads the file's head, no
   weights, and needs no MPI. Statuses of pith_model_load; UNSUPPORTED: the model cannot be split
   so. INVALID: the rank is not in 0 .. n_rank - 1, a weight is out of range, or the split is
   PITH_SPLIT_AUTO or unknown. */
PITH_API pith_status pith_ranks_estimate(const char *path, const pith_ranks_info *as,
                                         pith_ranks_plan *out, pith_error *err);

#ifdef __cplusplus
}
#endif

#endif
