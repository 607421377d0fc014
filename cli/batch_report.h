/*
 * batch_report.h - what `pith batch` says of its work: a bar while it runs, figures at the end.
 */
#ifndef CLI_BATCH_REPORT_H
#define CLI_BATCH_REPORT_H

#include "options.h"
#include "session.h"
#include "pith/scheduler.h"

struct batch_report_options {
    const char *json;
    bool progress;
    bool quiet;
};

extern const struct option batch_report_option_table[];

/* Zero it before use. */
struct batch_report {
    const struct batch_report_options *options;
    int64_t n_request; /* in the input, of which */
    int64_t n_skipped; /* were in the output already, */
    int64_t n_answered;
    int64_t n_failed;
    pith_share_stats share; /* sums over all answers */
    pith_keep_stats keep;
    double start_s;
    struct cli_progress bar;
    char what[160]; /* its words */

    /* batch_report_finish */
    double seconds;
    pith_scheduler_stats work;
    pith_kv_stats kv;
};

/* Fails where the file of --json cannot be written. */
void batch_report_check(const struct batch_report_options *o);

void batch_report_start(struct batch_report *r, const struct batch_report_options *o);
void batch_report_add(struct batch_report *r, const pith_answer_result *result);
void batch_report_progress(struct batch_report *r, pith_scheduler *scheduler,
                           const pith_engine *engine);
void batch_report_progress_end(struct batch_report *r);
/* Takes the figures, while there is a scheduler. */
void batch_report_finish(struct batch_report *r, pith_scheduler *scheduler,
                         const pith_engine *engine);
/* On standard error for people, and as JSON where asked; false: that could not be written. */
bool batch_report_print(const struct batch_report *r, const struct session *s);

#endif
