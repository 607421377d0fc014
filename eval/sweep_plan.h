/*
 * sweep_plan.h - a sweep as its file asks for it. Every combination of task, seed, policy and
 * budget is one cell with a name for people and a hash of all that decides its result.
 */
#ifndef PI_EVAL_SWEEP_PLAN_H
#define PI_EVAL_SWEEP_PLAN_H

#include "sweep_task.h"

#define SWEEP_NO_SEED (-1)
#define SWEEP_HASH_SIZE 17 /* 16 digits and the terminator */

struct sweep_task {
    const struct eval_task *kind;
    char *name; /* owned; no other task has it */
    struct sweep_args args;
    char hash[SWEEP_HASH_SIZE]; /* of the options and the files that they name */
};

struct sweep_policy {
    const char *name;          /* "full", "streaming:sinks=4" */
    const char *keep;          /* NULL: everything stays */
    const char *read;          /* NULL: everything is read */
    const char *recall;        /* NULL: nothing comes back */
    pith_engine_params engine; /* the sweep's with the policy's own settings in it */
    json_t *settings;          /* the engine's settings as given; owned */
};

struct sweep_cell {
    int32_t task;
    int32_t policy;
    char budget[32]; /* "" without */
    int64_t seed;    /* SWEEP_NO_SEED: the task draws nothing */
    char *keep;      /* owned: with the budget in it; NULL: everything stays */
    char *read;      /* likewise; NULL: everything is read */
    char *key;       /* owned: "needle | streaming:sinks=4 | budget 128 | seed 1" */
    char hash[SWEEP_HASH_SIZE];
};

struct sweep_plan {
    json_t *root; /* owned; texts are borrowed from it */
    char *folder; /* owned: of the sweep file, "" for the current one */
    char *model;  /* owned path */
    char *out;    /* owned path of the results */
    bool chat;
    bool keep_text;
    struct sweep_task *tasks; /* [n_task] owned */
    int32_t n_task;
    struct sweep_policy *policies; /* [n_policy] owned */
    int32_t n_policy;
    struct sweep_cell *cells; /* [n_cell] owned: by task, seed, policy, budget */
    int32_t n_cell;
};

/* Reads and checks the file; model and out replace what it says unless NULL. The caller frees with
   sweep_plan_free. IO, FORMAT (no JSON, with line and reason), INVALID (one sentence that names the
   file, the option and the value), NOMEM. */
pith_status sweep_plan_read(const char *path, const char *model, const char *out,
                            struct sweep_plan *plan, pith_error *err);
void sweep_plan_free(struct sweep_plan *plan);

#endif
