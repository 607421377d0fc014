/*
 * report_data.h - the data of a report, taken from files of results and put in order. They are
 * groups (one task with its settings on one model), policies, and the points at which they meet.
 *
 * A figure that the results do not hold is NAN here and a dash on the page; nothing is made up.
 */
#ifndef PI_EVAL_REPORT_DATA_H
#define PI_EVAL_REPORT_DATA_H

#include "results.h"

enum report_budget_kind {
    REPORT_BUDGET_NONE, /* the policy has none, as the full cache */
    REPORT_BUDGET_TOKENS,
    REPORT_BUDGET_SHARE, /* of the tokens so far, 0.5 for "50%" */
    REPORT_BUDGET_BYTES,
    REPORT_BUDGET_KINDS,
};

struct report_budget {
    enum report_budget_kind kind;
    double value;
    char text[32]; /* as it was given, "" without */
};

/* The figure of a task that its charts show. */
struct report_metric {
    const char *key;   /* in the summary */
    const char *error; /* key of its standard error in the summary, NULL: none */
    const char *name;  /* "score", of axes and of figures */
    const char *title; /* "Accuracy", at the beginning of a caption */
    const char *note;  /* "more is better" */
    bool share;        /* lies in [0,1], and n items were judged */
};

struct report_policy {
    char *name;   /* owned */
    bool full;    /* the cache as it is, the top line */
    int32_t slot; /* its colour and shape: from 0 without the full cache, which has -1 */
};

struct report_group {
    char *key;   /* owned: what makes two results comparable */
    char *title; /* owned */
    const char *task;
    const char *model;
    const json_t *settings;             /* may be NULL */
    const struct report_metric *metric; /* NULL: the task has no figure that a chart shows */
    int32_t first_point;                /* of points, which stand group by group */
    int32_t n_point;
};

/* One line of a file. */
struct report_cell {
    const json_t *result;
    const json_t *summary;
    const json_t *run; /* when and on what; may be NULL */
    const char *file;
    int32_t group;
    int32_t policy;
    struct report_budget budget;
    char seed[24]; /* "" when not recorded */
    int32_t point;
    bool superseded; /* a later line repeats this one */
};

/* A policy at a budget on a group's task: its seeds together. */
struct report_point {
    int32_t group;
    int32_t policy;
    struct report_budget budget;
    int32_t first_cell; /* of cells, which stand point by point */
    int32_t n_cell;
    double n;                /* items judged */
    double value, low, high; /* the group's metric and its 95 % interval */
    double kv_bytes;         /* peak, the most of the seeds */
    double tokens_per_s;     /* these and below: mean over the seeds */
    double evicted;
    double rounds;
    double read_share; /* of the stored entries, those that were read */
    double prompt_s;   /* seconds that a prompt took to read */
    double recall_s;   /* and of them those that recall took; NAN without one */
};

struct report {
    struct results *files; /* [n_file] owned, with their names borrowed from the caller */
    int32_t n_file;
    struct report_policy *policies; /* [n_policy] the full cache first */
    int32_t n_policy;
    struct report_group *groups; /* [n_group] */
    int32_t n_group;
    struct report_point *points; /* [n_point] by group, policy, budget */
    int32_t n_point;
    struct report_cell *cells; /* [n_cell] by point, then as read */
    int32_t n_cell;
    int32_t n_superseded;
    int32_t n_ignored; /* lines that are no result, over all files */
    int32_t n_cut;     /* files that end within a line */
};

/* Reads the files. paths must outlive the report. The caller frees with report_free. IO, FORMAT (no
   result in any of them), NOMEM. */
pith_status report_read(const char *const *paths, int32_t n_path, struct report *out,
                        pith_error *err);
void report_free(struct report *r);

/* The first figure of a summary that charts show; NULL when it has none. */
const struct report_metric *report_metric_of(const json_t *summary);

/* The figures of n cells of one place together; place, cells and policy of *out stay. */
void report_measure(const struct report_metric *metric, const struct report_cell *cells, int32_t n,
                    struct report_point *out);

/* The options that a result was measured under, as eval.h has them; NULL: nothing. */
struct report_options {
    const char *keep; /* "full" is nothing, too */
    const char *read;
    const char *recall;
    const char *store;
};

/* Names a result that no sweep wrote: "streaming", "read quoka", "streaming, read quoka, recall
   kv:block=16, q8_0/turbo3". The name lacks the budget, which is the read policy's where it names
   one and else the keep policy's. */
void report_policy_name(const struct report_options *options, char *name, size_t cap,
                        struct report_budget *budget);

/* Splits a policy as given, "streaming:sinks=4,budget=128", into the policy without its budget (at
   most cap bytes with the terminator) and the budget. */
void report_split_policy(const char *text, char *policy, size_t cap, struct report_budget *budget);

/* Reads "128", "50%", "4MiB"; NONE for anything else. The text is kept as far as there is room. */
struct report_budget report_parse_budget(const char *text);

#endif
