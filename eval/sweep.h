/*
 * sweep.h - policies x budgets x tasks from one small file. Each combination is measured once and
 * written down as soon as it is done, so that a sweep goes on where it stopped. docs/eval.md
 * describes the file.
 */
#ifndef PI_EVAL_SWEEP_H
#define PI_EVAL_SWEEP_H

#include "eval.h"

/* Receives a sentence that is no failure: what was found in the results, a cell that failed. */
typedef void eval_note_fn(void *user, const char *sentence);

/* Receives the path of a file that the sweep reads, or keeps its results in. */
typedef void eval_file_fn(void *user, const char *path);

struct eval_sweep_params {
    const char *path;   /* the sweep file */
    const char *model;  /* instead of the file's; NULL: the file's */
    const char *out;    /* the results; NULL: what the file says, or its name with .jsonl */
    int32_t n_thread;   /* where the file does not say; 0: all processors */
    const char *device; /* likewise, as pith_engine_params, and the next two */
    int32_t n_gpu_layers;
    const char *tensor_split;
    const char *cache_weights;  /* as pith_model_params */
    bool fresh;                 /* forget the results that are there */
    eval_file_fn *file;         /* of each, before anything is measured; may be NULL */
    eval_note_fn *note;         /* may be NULL */
    eval_progress_fn *progress; /* may be NULL; the fraction is of this run, in time */
    void *user;                 /* of all three */
};

/* Runs the cells whose results are not there yet. *result has the shape of a task's. Rows, one per
   cell: task, policy, budget, seed (where there are several), score and n (items). Where the tasks
   measure different things, measure and value take the place of score. Then kv_bytes (peak),
   tokens_per_s, evicted, rounds, read_share (where a policy reads a part); null where there is no
   figure. Summary: n (cells), done (before), run, failed, note. A cell that fails is noted and left
   for the next time. The caller frees with json_decref. IO, FORMAT. INVALID (also a file of other
   content, which would be lost). BUSY (another sweep writes the same results). NOMEM. CANCELLED
   (finished cells stay). */
pith_status eval_sweep(const struct eval_sweep_params *params, json_t **result, pith_error *err);

#endif
