/*
 * sweep_task.h - tasks by name with their options as JSON. A new task of eval.h is one row here.
 */
#ifndef PI_EVAL_SWEEP_TASK_H
#define PI_EVAL_SWEEP_TASK_H

#include "eval.h"

#define SWEEP_LIST_MAX 64

/* What any task can be asked; each uses some of it. Texts are borrowed from the JSON. */
struct sweep_args {
    char *path; /* owned: a file that the task reads by itself, its folder put in front */
    char *text; /* owned: a file that was read here, [text_len] */
    size_t text_len;
    const char *style;
    const char *needle;
    const char *question;
    const char *prefix;
    const char *word;
    const char *number;
    const char *haystack;
    const char *instruction;
    const char *reference_type;
    const char *texts[SWEEP_LIST_MAX];
    int32_t n_text;
    int32_t ints[SWEEP_LIST_MAX]; /* lengths */
    int32_t n_int;
    double reals[SWEEP_LIST_MAX]; /* depths */
    int32_t n_real;
    int32_t needles, repeats, predict, samples, questions, draws, parallel;
    int32_t n_ctx, n_batch, chunks, every;
    int32_t min_steps, max_steps, step_stride;
    bool trace, paired, example;
    double temperature, top_p, min_p;
    int32_t top_k;
};

struct sweep_kind; /* one task of the table */

/* NULL when there is no such task; names receives those that there are, "a, b, c". */
const struct sweep_kind *sweep_kind_find(const char *name, struct eval_text *names);
const char *sweep_kind_name(const struct sweep_kind *kind);

/* Reads the options of a task: an object, whose keys "task" and "name" are skipped. folder is put
   before relative paths, "" for none. What was asked is mixed into *hash (FNV-1a): the options in
   whatever order, and of files the bytes instead of the name. The caller frees with
   sweep_args_free, also after a failure. INVALID: one sentence that names the option, IO, NOMEM. */
pith_status sweep_args_read(const struct sweep_kind *kind, const json_t *options,
                            const char *folder, struct sweep_args *out, uint64_t *hash,
                            pith_error *err);
void sweep_args_free(struct sweep_args *args);

/* Whether another seed is another measurement; where it is not, seeds would only repeat it. */
bool sweep_kind_is_drawn(const struct sweep_kind *kind, const struct sweep_args *args);

pith_status sweep_kind_run(const struct sweep_kind *kind, const struct eval_setup *setup,
                           const struct sweep_args *args, json_t **result, pith_error *err);

/* A path as it is, or behind folder when it is relative; malloc'ed, NULL when out of memory. */
char *sweep_path(const char *folder, const char *path);

/* FNV-1a, 64 bits, going on from hash. */
#define SWEEP_HASH_START 0xcbf29ce484222325u
uint64_t sweep_hash(uint64_t hash, const void *bytes, size_t len);
/* The same of a text with its terminator, so that "ab" and "c" are not "a" and "bc"; NULL differs
   from all. Of a value: whatever the order of its keys; false when out of memory. */
uint64_t sweep_hash_text(uint64_t hash, const char *text);
bool sweep_hash_json(uint64_t *hash, const json_t *value);

#endif
