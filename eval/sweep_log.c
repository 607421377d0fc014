/*
 * sweep_log.c - appends lines to the results of a sweep, each on the disk before the next.
 *
 * Invariant: the file holds whole lines, but for the moment of a write. A write that fails
 * half-way, on a full disk say, is taken back. The next sweep cuts off a line that the end of the
 * process left.
 */
#define _DEFAULT_SOURCE /* flock: a lock that reading the file does not lose, as POSIX's does */
#define _POSIX_C_SOURCE 200809L

#include "sweep_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static pith_status system_failure(pith_error *err, const char *path, const char *what)
{
    return eval_fail(err, PITH_IO, "%s: %s: %s", path, what, strerror(errno));
}

/* A wrong name must not change a file: one whose lines are all something else gets no result. Only
   results, whole or half written, are cut off or emptied. */
static pith_status read_back(struct sweep_log *log, bool fresh, pith_error *err)
{
    struct results *r = &log->results;
    pith_status status = results_read(log->path, r, err);
    if (status != PITH_OK)
        return status;
    if ((r->cut && !r->cut_is_result) || (r->n_ignored > 0 && json_array_size(r->lines) == 0))
        return eval_fail(err, PITH_INVALID,
                         "%s: holds something else than the results of a sweep, and stays as it is",
                         log->path);
    log->size = fresh ? 0 : r->whole_bytes;
    if ((fresh || r->cut) && ftruncate(log->fd, (off_t)log->size) != 0)
        return system_failure(err, log->path,
                              fresh ? "cannot be emptied"
                                    : "its half written last line cannot be cut off");
    if (fresh) {
        results_free(r);
        r->lines = json_array();
    }
    return r->lines != NULL ? PITH_OK
                            : eval_fail(err, PITH_NOMEM, "%s: no memory for results", log->path);
}

pith_status sweep_log_open(const char *path, bool fresh, struct sweep_log *out, pith_error *err)
{
    struct sweep_log log = {.path = path};
    struct stat st;
    if (strcmp(path, "-") == 0 || (stat(path, &st) == 0 && !S_ISREG(st.st_mode)))
        return eval_fail(err, PITH_IO, "%s: a sweep reads its results again: name a regular file",
                         path);
    log.fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log.fd < 0)
        return system_failure(err, path, "cannot be opened for results");
    pith_status status = PITH_OK;
    if (flock(log.fd, LOCK_EX | LOCK_NB) != 0)
        status = errno == EWOULDBLOCK
                     ? eval_fail(err, PITH_BUSY, "%s: another sweep is writing to it", path)
                     : system_failure(err, path, "cannot be locked");
    if (status == PITH_OK)
        status = read_back(&log, fresh, err);
    if (status != PITH_OK) {
        sweep_log_close(&log);
        return status;
    }
    *out = log;
    return PITH_OK;
}

static bool write_all(int fd, const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, text, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        text += n;
        len -= (size_t)n;
    }
    return true;
}

pith_status sweep_log_append(struct sweep_log *log, const json_t *line, pith_error *err)
{
    char *text = json_dumps(line, JSON_COMPACT);
    if (text == NULL)
        return eval_fail(err, PITH_NOMEM, "%s: no memory for a line of it", log->path);
    size_t len = strlen(text);
    text[len++] = '\n'; /* in place of the terminator */
    pith_status status = PITH_OK;
    if (!write_all(log->fd, text, len) || fsync(log->fd) != 0) {
        status = system_failure(err, log->path, "a result cannot be written");
        /* Should this fail, too, the next sweep cuts the rest off. */
        if (ftruncate(log->fd, (off_t)log->size) != 0)
            log->size = -1;
    } else {
        log->size += (int64_t)len;
    }
    free(text);
    return status;
}

void sweep_log_close(struct sweep_log *log)
{
    if (log->fd >= 0)
        close(log->fd);
    results_free(&log->results);
    log->fd = -1;
}
