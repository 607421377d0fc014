/*
 * new_file.c - see new_file.h. Invariant: a file that is replaced keeps its old contents until the
 * new ones are whole on disk. Nothing that the process did not make is ever removed.
 */
#define _GNU_SOURCE
#include "base/new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/os.h"

#define MOST_LINKS 40 /* one behind the other, as the system counts them */

/* "PATH: what: why", with the end of a long path. */
static pith_status fail(const char *path, const char *what, int why, pith_error *err)
{
    pith_error reason;
    pi_fail(&reason, PITH_IO, "%s: %s", what, strerror(why));
    return pi_file_fail(path, PITH_IO, &reason, err);
}

/* ---- where it goes ---- */

/* Whether the file is what standard output or standard error goes to: that descriptor; else -1. */
static int find_output(const struct stat *file)
{
    struct stat st;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (fstat(fd, &st) == 0 && st.st_dev == file->st_dev && st.st_ino == file->st_ino)
            return fd;
    return -1;
}

/* A copy of first [len] and then of rest; NULL, and errno: no memory. */
static char *join(const char *first, size_t len, const char *rest)
{
    size_t rest_len = strlen(rest);
    char *out = pi_mem_alloc(PI_MEM_OTHER, len + rest_len + 1);
    errno = ENOMEM;
    if (out == NULL)
        return NULL;
    memcpy(out, first, len);
    memcpy(out + len, rest, rest_len + 1);
    return out;
}

/* The path that links lead to, where there may be nothing yet. NULL, and errno: none, or no
   memory. */
static char *follow(const char *path)
{
    char link[PATH_MAX];
    char *at = join(path, strlen(path), "");
    for (int i = 0; at != NULL; i++) {
        ssize_t n = readlink(at, link, sizeof(link) - 1);
        if (n < 0)
            return at; /* no link */
        link[n] = '\0';
        const char *slash = strrchr(at, '/');
        size_t folder = link[0] != '/' && slash != NULL ? (size_t)(slash + 1 - at) : 0;
        char *next = i < MOST_LINKS ? join(at, folder, link) : NULL;
        pi_mem_free(at);
        at = next;
        if (i == MOST_LINKS)
            errno = ELOOP;
    }
    return NULL;
}

/* ---- opening ---- */

/* A stream to the descriptor, which it owns; otherwise errno says why. */
static bool take(struct pi_new_file *file, int fd)
{
    file->stream = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (file->stream == NULL && fd >= 0) {
        int why = errno;
        close(fd);
        errno = why;
    }
    return file->stream != NULL;
}

static bool open_directly(struct pi_new_file *file, int output)
{
    if (output >= 0)
        return take(file, fcntl(output, F_DUPFD_CLOEXEC, 0));
    return take(file, open(file->path, O_WRONLY | O_CLOEXEC));
}

/* Under the first name that is free: a killed process, or one of another machine, may have left a
   file of this process's number. old: the file that is replaced, or NULL. */
static bool open_beside(struct pi_new_file *file, const struct stat *old)
{
    static atomic_uint n_file;
    char suffix[48];
    int fd;
    if (old != NULL && access(file->path, W_OK) != 0)
        return false;
    file->end_path = follow(file->path);
    if (file->end_path == NULL)
        return false;
    do {
        snprintf(suffix, sizeof(suffix), ".tmp-%ld-%u", (long)getpid(),
                 atomic_fetch_add(&n_file, 1));
        pi_mem_free(file->tmp_path);
        file->tmp_path = join(file->end_path, strlen(file->end_path), suffix);
        if (file->tmp_path == NULL)
            return false;
        fd = open(file->tmp_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                  old != NULL ? S_IRUSR | S_IWUSR : 0666);
    } while (fd < 0 && errno == EEXIST);
    if (fd < 0) {
        int why = errno;
        pi_mem_free(file->tmp_path);
        file->tmp_path = NULL;
        errno = why;
        return false;
    }
    if (old != NULL)
        fchmod(fd, old->st_mode & 07777); /* where the file system has modes */
    return take(file, fd);
}

/* Whether the path names what is written directly; *exists: whether it names anything, *st. */
static bool is_direct(const char *path, struct stat *st, bool *exists, int *output)
{
    *exists = stat(path, st) == 0;
    *output = *exists ? find_output(st) : -1;
    return *exists && (*output >= 0 || !S_ISREG(st->st_mode));
}

pith_status pi_new_file_open(const char *path, struct pi_new_file *file, pith_error *err)
{
    struct stat st;
    bool exists;
    int output;
    *file = (struct pi_new_file){0};
    if (path[0] == '\0')
        return pi_fail(err, PITH_IO, "the name of the file to write is empty");
    bool direct = is_direct(path, &st, &exists, &output);
    file->path = join(path, strlen(path), "");
    bool ok = file->path != NULL &&
              (direct ? open_directly(file, output) : open_beside(file, exists ? &st : NULL));
    if (ok)
        return PITH_OK;
    int why = errno;
    pi_new_file_discard(file);
    if (why == ENOMEM)
        return pi_fail(err, PITH_NOMEM, "no memory for the name of a file");
    return fail(path, exists ? "cannot write" : "cannot create", why, err);
}

pith_status pi_new_file_check(const char *path, pith_error *err)
{
    struct pi_new_file file;
    struct stat st;
    bool exists;
    int output;
    if (is_direct(path, &st, &exists, &output) && !S_ISDIR(st.st_mode))
        return output >= 0 || access(path, W_OK) == 0 ? PITH_OK
                                                      : fail(path, "cannot write", errno, err);
    PI_TRY(pi_new_file_open(path, &file, err));
    pi_new_file_discard(&file);
    return PITH_OK;
}

/* ---- writing ---- */

pith_status pi_new_file_write(struct pi_new_file *file, const void *data, size_t size,
                              pith_error *err)
{
    if (size > 0 && fwrite(data, 1, size, file->stream) != size)
        return fail(file->path, "cannot write", errno, err);
    return PITH_OK;
}

pith_status pi_new_file_write_at(const struct pi_new_file *file, size_t offset, const void *data,
                                 size_t size, pith_error *err)
{
    int why;
    if (!pi_write_at(fileno(file->stream), (int64_t)offset, data, size, &why))
        return fail(file->path, "cannot write", why, err);
    return PITH_OK;
}

pith_status pi_new_file_resize(const struct pi_new_file *file, size_t size, pith_error *err)
{
    if (ftruncate(fileno(file->stream), (off_t)size) != 0)
        return pi_fail(err, PITH_IO, "%s: cannot make it %zu bytes long: %s", file->path, size,
                       strerror(errno));
    return PITH_OK;
}

/* ---- the end ---- */

/* Whether all that was written is where a loss of power leaves it; a device has no such place. */
static bool flush(struct pi_new_file *file)
{
    return fflush(file->stream) == 0 &&
           (file->end_path == NULL || fsync(fileno(file->stream)) == 0);
}

pith_status pi_new_file_commit(struct pi_new_file *file, pith_error *err)
{
    pith_status status = PITH_OK;
    if (!flush(file))
        status = fail(file->path, "cannot write", errno, err);
    if (fclose(file->stream) != 0 && status == PITH_OK)
        status = fail(file->path, "cannot write", errno, err);
    file->stream = NULL;
    if (status == PITH_OK && file->end_path != NULL) {
        if (rename(file->tmp_path, file->end_path) != 0) {
            status = fail(file->path, "cannot rename", errno, err);
        } else {
            pi_mem_free(file->tmp_path);
            file->tmp_path = NULL;
        }
    }
    pi_new_file_discard(file);
    return status;
}

void pi_new_file_discard(struct pi_new_file *file)
{
    if (file->stream != NULL)
        fclose(file->stream);
    if (file->tmp_path != NULL)
        unlink(file->tmp_path);
    pi_mem_free(file->path);
    pi_mem_free(file->end_path);
    pi_mem_free(file->tmp_path);
    *file = (struct pi_new_file){0};
}

pith_status pi_new_file_save(const char *path, const void *data, size_t size, pith_error *err)
{
    struct pi_new_file file = {0};
    pith_status status = pi_new_file_open(path, &file, err);
    if (status == PITH_OK)
        status = pi_new_file_write(&file, data, size, err);
    if (status == PITH_OK)
        status = pi_new_file_commit(&file, err);
    pi_new_file_discard(&file);
    return status;
}
