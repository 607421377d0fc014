/* processors.h - how much of the machine this process may use, and what the machine is. */
#ifndef PI_PROCESSORS_H
#define PI_PROCESSORS_H

#include "base/base.h"

/* Processors that the process may use at the same time, at least 1. They are the ones it may run
   on. There are fewer where its control groups give it less time (a container with a limit,
   CPUQuota= of systemd). */
int32_t pi_processors(void);

/* The limit of control groups, rounded to whole processors; INT32_MAX: no limit. root is where
   their file system is mounted, self the list of the groups of a process. */
int32_t pi_processors_of_groups(const char *root, const char *self);

/* Bytes that control groups leave between their limits and what they use; INT64_MAX: no limit. */
int64_t pi_memory_of_groups(const char *root, const char *self);

/* The system's name of its processors, cut off at cap; else "this machine's processor". */
void pi_processor_name(char *out, size_t cap);
/* Bytes of the machine's memory, and those that this process could have now without swapping; -1:
   the system does not say. The second is the least of the system's free memory and the
   rest of control groups and process limits (ulimit -v, -d). */
void pi_memory_size(int64_t *total, int64_t *unused);
/* Bytes of this process that are in memory: its own, and pages of files; -1: the system does not
   say. */
void pi_memory_resident(int64_t *own, int64_t *of_files);
/* Of a mapping's bytes those that are in this process's memory; 0: the system does not say. */
int64_t pi_memory_resident_in(const void *data, size_t size);

#endif
