/* new_file.h - files that are whole or not there: what Pith writes at once goes through here. */
#ifndef PI_NEW_FILE_H
#define PI_NEW_FILE_H

#include <stdio.h>

#include "base/base.h"

/*
 * A file that appears under its name only when it is whole. It is written beside it as
 * path.tmp-PID-N, N a number that no other file there has. A symbolic link is followed, and stays.
 * A file that is replaced leaves its mode to the new one.
 *
 * A device and a pipe are written directly. So is the file that standard output or standard error
 * goes to: others may write to it, too.
 */
struct pi_new_file {
    FILE *stream;
    char *path;     /* as it was named; owned */
    char *end_path; /* where its links lead; owned; NULL: written directly */
    char *tmp_path; /* owned; NULL: nothing to remove */
};

/* IO names the path and the reason: a folder, a present file that may not be written. NOMEM. */
pith_status pi_new_file_open(const char *path, struct pi_new_file *file, pith_error *err);
/* IO names the reason (a full disk, a lost file system). */
pith_status pi_new_file_write(struct pi_new_file *file, const void *data, size_t size,
                              pith_error *err);
/* Writes at an offset, by any number of threads at the same time, in a file that
   pi_new_file_write does not write. IO, too, where it is written directly and has no offsets. */
pith_status pi_new_file_write_at(const struct pi_new_file *file, size_t offset, const void *data,
                                 size_t size, pith_error *err);
/* Makes it that long: bytes that were not written read as zeros. IO. */
pith_status pi_new_file_resize(const struct pi_new_file *file, size_t size, pith_error *err);
/* Flushes, syncs and renames; on failure the temporary file is removed and the old one stays. */
pith_status pi_new_file_commit(struct pi_new_file *file, pith_error *err);
/* Removes the temporary file; harmless after a commit or a failed open. */
void pi_new_file_discard(struct pi_new_file *file);

/* All of it in one call: the file has these bytes, or is as it was. */
pith_status pi_new_file_save(const char *path, const void *data, size_t size, pith_error *err);
/* Whether a file can be written there, before anything is computed for it. A present file, a device
   and a pipe are left alone. IO, NOMEM. */
pith_status pi_new_file_check(const char *path, pith_error *err);

#endif
