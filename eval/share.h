/*
 * share.h - the parts of `pith eval share`: the requests that all rows answer, the rows, and one
 * measured run of a row. share.c makes the table of them.
 */
#ifndef PI_EVAL_SHARE_H
#define PI_EVAL_SHARE_H

#include "chunks.h"
#include "prompt.h"
#include "pith/scheduler.h"

/* ---- requests: share_items.c ---- */

/* One request, the same for every row. */
struct share_item {
    struct eval_prompt prompt; /* refs[0] is what must follow */
    int32_t *ids;              /* [n_id] the prompt's tokens; owned */
    int32_t n_id;
    int32_t n_right;   /* tokens of a right answer */
    int32_t n_predict; /* most tokens of an answer */
    int32_t *forced;   /* [n_right] the answer that is given; NULL: the model writes one; owned */
};

struct share_items {
    struct share_item *at; /* [n] owned */
    int32_t n;
    int32_t n_head; /* tokens that all prompts begin with */
};

/* Makes the requests of params. A request depends on the seed, its number and the parts alone.
   INVALID (named), NOMEM, and what the tokenizer says. The caller frees, also after a failure. */
pith_status share_items_make(const struct eval_setup *setup, const struct eval_share_params *params,
                             struct share_items *out, pith_error *err);
void share_items_free(struct share_items *items);

/* The KV memory that a share of the requests takes under the full cache with nothing shared, each
   with a right answer. It is at least that of the largest request. The statuses of
   pith_kv_estimate. */
pith_status share_items_memory(const struct share_items *items, const struct eval_setup *setup,
                               int32_t page_len, double fit, int64_t *bytes, pith_error *err);

/* ---- rows: share_rows.c ---- */

/* One way to run the requests. */
struct share_row {
    char *name;  /* as given; owned, like the next two */
    char *share; /* policies; NULL: none */
    char *keep;
    int32_t page_len; /* 0: as the others */
    double reserve;   /* below 0: the scheduler's default */
    int32_t step_tokens;
    bool prefix;
    int32_t match; /* the row whose share of pages this one's chance is to take; -1: none */
};

struct share_rows {
    struct share_row *at; /* [n] owned */
    int32_t n;
};

/* Reads rows of parts joined by " + ": none, prefix, page=N, reserve=X, step=N, one policy that
   shares, one that keeps. The first row is what the others are compared with. INVALID names row and
   part. The caller frees, also after a failure. */
pith_status share_rows_parse(const char *const *texts, int32_t n, struct share_rows *out,
                             pith_error *err);
void share_rows_free(struct share_rows *rows);

/* Gives a row that matches another its chance: share of the closed steps' pages. NOMEM. */
pith_status share_row_set_chance(struct share_row *row, double share, pith_error *err);

/* ---- one run: share_run.c ---- */

/* How one request was answered. */
struct share_answer {
    struct eval_text text;
    struct eval_text tokens; /* the bytes of its tokens' ids */
    pith_answer_result result;
    bool done;
    int32_t n_chosen; /* forced tokens that the model would have chosen itself */
    double *nll;      /* [n_right] of forced tokens; NULL unless they are scored; owned */
};

struct share_run {
    struct share_answer *answers; /* [n_item] owned */
    int32_t n_item;
    pith_scheduler_stats stats; /* at the end */
    double seconds;             /* of the steps, what measuring took left out */
    double cpu_s;               /* of all threads, likewise */
    double running;             /* answers that run, their mean over time */
    double used;                /* bytes of pages in use, likewise, and of these */
    double saved;               /* what more they would be if every entry had a page of its own */
    double dead;                /* slots without an entry */
    int64_t kv_peak_bytes;
};

/* Tells how much of the run is done, 0 to 1; false cancels. */
typedef bool share_progress_fn(void *user, double fraction);

/* Submits all requests and runs them to their end in an engine of its own with kv_bytes bytes of KV
   memory. score: forced tokens are scored. A request that does not end as OK fails the run with its
   sentence. The caller frees, also after a failure. */
pith_status share_run_make(const struct eval_setup *setup, const struct share_row *row,
                           const struct share_items *items, int64_t kv_bytes, int32_t page_len,
                           bool score, share_progress_fn *progress, void *user,
                           struct share_run *out, pith_error *err);
void share_run_free(struct share_run *run);

/* Sums over the answers of a run. */
struct share_sums {
    int64_t n_prompt; /* tokens of prompts, computed or found */
    int64_t n_cached;
    int64_t n_generated;
    int64_t evicted;
    int64_t tokens_shared;
    int64_t pages_shared;
    int64_t steps_closed;
    int64_t steps_compared;
    int64_t steps_similar;
    double affected; /* tokens_shared / (n_prompt + n_generated) */
};
void share_run_sum(const struct share_run *run, const struct share_items *items,
                   struct share_sums *out);

#endif
