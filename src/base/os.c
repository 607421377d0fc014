/*
 * os.c - POSIX calls of the library, in one place; files that appear whole are in new_file.c.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/os.h"

pith_status pi_file_map(const char *path, struct pi_file *file, pith_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return pi_fail(err, PITH_IO, "%s: cannot open: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return pi_fail(err, PITH_IO, "%s: not a regular file", path);
    }
    if (st.st_size == 0) {
        close(fd);
        return pi_fail(err, PITH_FORMAT, "%s: the file is empty", path);
    }
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        int map_errno = errno;
        close(fd);
        return pi_fail(err, PITH_IO, "%s: cannot map %lld bytes: %s", path, (long long)st.st_size,
                       strerror(map_errno));
    }
    file->fd = fd;
    file->data = data;
    file->size = (size_t)st.st_size;
    file->changed_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    return PITH_OK;
}

void pi_file_unmap(struct pi_file *file)
{
    if (file->data != NULL) {
        munmap((void *)file->data, file->size);
        close(file->fd);
    }
    *file = (struct pi_file){0};
}

void pi_file_drop(const struct pi_file *file, size_t offset, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t begin = pi_align(offset, page);
    size_t end = (offset + size) / page * page;
    if (begin < end && end <= file->size)
        madvise((void *)(file->data + begin), end - begin, MADV_DONTNEED);
}

/* All of it, or the reason why not. */
static pith_status read_at(int fd, int64_t offset, void *data, size_t size, pith_error *err)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = pread(fd, (uint8_t *)data + done, size - done, offset + (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return pi_fail(err, PITH_IO, "cannot read: %s", strerror(errno));
        if (n == 0)
            return pi_fail(err, PITH_IO, "the file ends at byte %lld",
                           (long long)(offset + (int64_t)done));
        done += (size_t)n;
    }
    return PITH_OK;
}

pith_status pi_file_read(const struct pi_file *file, size_t offset, void *data, size_t size,
                         pith_error *err)
{
    return read_at(file->fd, (int64_t)offset, data, size, err);
}

/* Advice about the pages that hold a range, of which the first and the last may hold more. */
static void advise(const struct pi_file *file, size_t offset, size_t size, int advice)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), begin = offset / page * page;
    if (size > 0 && offset <= file->size && size <= file->size - offset)
        madvise((void *)(file->data + begin), offset + size - begin, advice);
}

void pi_file_want(const struct pi_file *file, size_t offset, size_t size)
{
    advise(file, offset, size, MADV_WILLNEED);
}

void pi_file_want_missing(const struct pi_file *file, size_t offset, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < 3 && size > 0; i++) {
        size_t at = (offset + (size - 1) / 2 * i) / page * page;
        unsigned char there = 1;
        if (mincore((void *)(file->data + at), 1, &there) == 0 && (there & 1) == 0) {
            pi_file_want(file, offset, size);
            return;
        }
    }
}

void pi_file_huge(const struct pi_file *file, size_t offset, size_t size)
{
#if defined(MADV_HUGEPAGE)
    advise(file, offset, size, MADV_HUGEPAGE);
#else
    (void)file, (void)offset, (void)size;
#endif
}

void pi_file_random(const struct pi_file *file, size_t offset, size_t size)
{
    advise(file, offset, size, MADV_RANDOM);
}

void pi_file_forget(const char *path)
{
#if defined(POSIX_FADV_DONTNEED)
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
#else
    (void)path;
#endif
}

pith_status pi_file_create_private(const char *path, pith_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (fd < 0 && errno != EEXIST)
        return pi_fail(err, PITH_IO, "%s: cannot be made: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return PITH_OK;
}

bool pi_file_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

bool pi_file_same(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool pi_write_at(int fd, int64_t offset, const void *data, size_t size, int *why)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = pwrite(fd, (const uint8_t *)data + done, size - done, offset + (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        *why = n < 0 ? errno : ENOSPC;
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

pith_status pi_file_fail(const char *path, pith_status status, const pith_error *why,
                         pith_error *err)
{
    const size_t shown = 80, len = strlen(path); /* of the path: its end */
    return pi_fail(err, status, "%s%s: %s", len > shown ? "..." : "",
                   len > shown ? path + len - shown : path, why->message);
}

pith_status pi_disk_open(const char *path, struct pi_disk *disk, pith_error *err)
{
    struct stat st;
    *disk = (struct pi_disk){0};
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (fd < 0)
        return pi_fail(err, PITH_IO, "cannot open: %s", strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return pi_fail(err, PITH_INVALID, "not a regular file");
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int reason = errno;
        close(fd);
        if (reason == EWOULDBLOCK)
            return pi_fail(err, PITH_INVALID, "the file is in use already");
        return pi_fail(err, PITH_IO, "cannot lock: %s", strerror(reason));
    }
    *disk = (struct pi_disk){.open = true, .fd = fd, .size = (int64_t)st.st_size};
    return PITH_OK;
}

void pi_disk_close(struct pi_disk *disk)
{
    if (disk->open)
        close(disk->fd);
    *disk = (struct pi_disk){0};
}

pith_status pi_disk_read(const struct pi_disk *disk, int64_t offset, void *data, size_t size,
                         pith_error *err)
{
    return read_at(disk->fd, offset, data, size, err);
}

pith_status pi_disk_write(const struct pi_disk *disk, int64_t offset, const void *data, size_t size,
                          pith_error *err)
{
    int why;
    if (!pi_write_at(disk->fd, offset, data, size, &why))
        return pi_fail(err, PITH_IO, "cannot write: %s", strerror(why));
    return PITH_OK;
}

pith_status pi_disk_resize(const struct pi_disk *disk, int64_t size, pith_error *err)
{
    if (ftruncate(disk->fd, (off_t)size) != 0)
        return pi_fail(err, PITH_IO, "cannot make it %lld bytes long: %s", (long long)size,
                       strerror(errno));
    return PITH_OK;
}

static double clock_s(clockid_t clock)
{
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

double pi_time_s(void)
{
    return clock_s(CLOCK_MONOTONIC);
}

double pi_thread_time_s(void)
{
    return clock_s(CLOCK_THREAD_CPUTIME_ID);
}
