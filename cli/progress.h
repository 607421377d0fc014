/*
 * progress.h - the bar on standard error: how far a long operation is, how fast it goes, how long
 * it will take. There is one line, drawn over itself, and only where standard error is a terminal
 * or the user asked. Code that writes to standard error hides it first (cli_note does).
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* An operation. Zero the rest; it must stay where it is until cli_progress_end. */
struct cli_progress {
    const char *what; /* "quantizing"; borrowed */
    bool on;
    int64_t bytes; /* that the whole operation works on; 0: it is no matter of bytes */

    double start_s; /* when it was told of first; 0: it was not */
    double first;   /* the fraction then */
};

/* Whether bars are drawn where the user did not ask: standard error is a terminal. */
bool cli_progress_wanted(void);

/* A pith_progress_fn; user is a struct cli_progress. Returns false after Ctrl-C. */
bool cli_progress_step(void *user, double fraction);
/* The operation is over, the line goes away. */
void cli_progress_end(struct cli_progress *progress);

/* A pith_advance_fn: tokens that an engine reads, within the operation that was told of last or by
   themselves. user is not used. Returns false after Ctrl-C. */
bool cli_progress_read(void *user, int64_t n_read, int64_t n_token);
/* Draws what is read also where standard error is no terminal. */
void cli_progress_force_reading(void);

/* Takes the line away until there is news. */
void cli_progress_hide(void);

#endif
