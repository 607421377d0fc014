/* outputs.h - files that a command writes may not be those that it reads. */
#ifndef CLI_OUTPUTS_H
#define CLI_OUTPUTS_H

#include "options.h"

/* Whether both paths lead to one regular file, which a write to either changes. "-" is standard
   input; either may be NULL. */
bool outputs_same_file(const char *a, const char *b);

/* Fails (usage) where an option that writes a file names one that another option reads or writes.
   The groups and the values stay borrowed, for outputs_check_input. */
void outputs_check(const struct option_group *groups, const void *values);

/* Fails (usage) where an option writes to a file whose path no option has, as of the model that a
   name stands for. path may be NULL; its text is kept. The parts of a model of several files count
   with the first. */
void outputs_check_input(const char *path);

/* Over ranks: fails on one whose files that options name for reading, but for models, have other
   contents than rank 0's. All ranks call it. */
void outputs_agree(void);

/* The same of policies [n], as they are used: NULL is none. */
void outputs_agree_policies(const char *const *policy, int n);

/* Whether the command reads this file, by an option or by a path that outputs_check_input had. It
   is for files that are named later than the command line. */
bool outputs_would_lose(const char *path);

#endif
