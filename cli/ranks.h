/*
 * ranks.h - a command that MPI started on several machines (docs/distributed.md). Every rank runs
 * all of it; rank 0 alone prints and writes.
 */
#ifndef CLI_RANKS_H
#define CLI_RANKS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "pith/ranks.h"

#include "pith/scheduler.h"

/* Joins the ranks where MPI started this process with others. Fails where the command cannot run
   over ranks. argv as main has it. */
void ranks_join(int argc, char **argv);

#define RANKS_MOST 256

/* Numbers as "3,1" into weight [RANKS_MOST]; returns how many. Fails (usage) where they are
   none. */
int32_t ranks_weights(const char *text, int32_t *weight);

extern const char *const ranks_splits[]; /* as pith_split, ended by NULL */

/* The number of one of them; NULL: rows. */
pith_split ranks_split(const char *name);

/* Before a model is loaded: what of it each has, and how much; NULL: rows, and all as much. */
void ranks_divide(const char *split, const char *weights);

/* Leaves them, at the end of a command that succeeded. */
void ranks_leave(void);

/* Ends all of them, at the end of a command that failed; nothing where they were left. */
void ranks_abandon(void);

/* On standard error what they sent to each other; nothing where the process is alone. */
void ranks_report(void);
/* The same as "ranks" of an object; not 0: no memory. */
int ranks_add(json_t *report);

/* Whether there are others. */
bool ranks_several(void);

/* Fails on a rank whose data [size] is not rank 0's; all ranks call it. what: "text". */
void ranks_agree(const char *what, const void *data, size_t size);

/* On another rank than 0: takes part in rank 0's steps until that ends, and returns true. Its
   scheduler is led. */
bool ranks_follow(pith_scheduler *scheduler);
/* Whether this is another rank than 0. */
bool ranks_is_follower(void);

/* Where a file is written: path, or nowhere on other ranks than 0. NULL stays NULL. */
const char *ranks_output(const char *path);

#endif
