/*
 * sweep_log.h - the file that a sweep appends its results to. Its lines survive whatever happens to
 * the sweep: a line is on the disk before the next cell begins.
 */
#ifndef PI_EVAL_SWEEP_LOG_H
#define PI_EVAL_SWEEP_LOG_H

#include "results.h"

struct sweep_log {
    const char *path; /* borrowed */
    int fd;
    int64_t size;           /* of the whole lines */
    struct results results; /* that were there, owned */
};

/* Opens or makes the file for this process alone and reads what is there; fresh empties it. A half
   written line at the end is cut off, which results.cut tells. The caller closes. INVALID (what
   would be cut off or emptied is no result), IO, BUSY (another sweep has it open), NOMEM. */
pith_status sweep_log_open(const char *path, bool fresh, struct sweep_log *out, pith_error *err);
/* Appends one line and waits until it is on the disk; a line that could not be written whole is
   taken back. IO, NOMEM. */
pith_status sweep_log_append(struct sweep_log *log, const json_t *line, pith_error *err);
void sweep_log_close(struct sweep_log *log);

#endif
