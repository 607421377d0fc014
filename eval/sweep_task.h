/*
 * sweep_task.h - the options of a task as a sweep's file has them, in JSON.
 */
#ifndef PI_EVAL_SWEEP_TASK_H
#define PI_EVAL_SWEEP_TASK_H

#include "tasks.h"

#define SWEEP_FILES 3 /* that the options of a task name, at most */

/* Texts are borrowed from the JSON. */
struct sweep_args {
    union eval_args of;
    char *path[SWEEP_FILES]; /* owned: the task's files, with the folder in front; NULL: none */
    char *text;              /* owned: of its --file, where the task wants it; NULL: it does not */
};

/* NULL when no sweep has such a task; names receives those that there are, "a, b, c". */
const struct eval_task *sweep_task_find(const char *name, struct eval_text *names);

/* The option of a task that a key of the JSON means: --min-steps is min_steps, and a row may have
   further keys. A flag --no-X is also X, the other way round: *inverted. NULL: none. */
const struct option *sweep_option_find(const struct option *options, const char *key,
                                       bool *inverted);

/* Reads the options of a task: an object, whose keys "task" and "name" are skipped. folder is put
   before relative paths, "" for none. The options, in whatever order, are mixed into *hash
   (FNV-1a), and of files the bytes instead of the name. The caller frees with sweep_args_free, also
   after a failure. INVALID: one sentence that names the option, IO, NOMEM. */
pith_status sweep_args_read(const struct eval_task *task, const json_t *options, const char *folder,
                            struct sweep_args *out, uint64_t *hash, pith_error *err);
void sweep_args_free(struct sweep_args *args);

/* A path as it is, or behind folder when it is relative; malloc'ed, NULL when out of memory. */
char *sweep_path(const char *folder, const char *path);

/* FNV-1a, 64 bits, going on from hash. */
#define SWEEP_HASH_START 0xcbf29ce484222325u
uint64_t sweep_hash(uint64_t hash, const void *bytes, size_t len);
/* The same of a text with its terminator, so that "ab" and "c" are not "a" and "bc"; NULL differs
   from all. Of a value: for any order of its keys; false when out of memory. */
uint64_t sweep_hash_text(uint64_t hash, const char *text);
bool sweep_hash_json(uint64_t *hash, const json_t *value);

#endif
