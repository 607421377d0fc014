/* os.h - the operating system: file mappings, files of pages, clock. */
#ifndef PI_OS_H
#define PI_OS_H

#include "base/base.h"

/* A read-only mapping of a whole file. Zero it before pi_file_map. */
struct pi_file {
    const uint8_t *data; /* [size] */
    size_t size;
    int64_t changed_ns; /* when its bytes last changed, since 1970 */
    int fd;             /* open as long as data is mapped */
};

/* IO (names the path and the reason), FORMAT (an empty file). */
pith_status pi_file_map(const char *path, struct pi_file *file, pith_error *err);
void pi_file_unmap(struct pi_file *file);

/* Gives the pages of a range of the mapping back to the system; reading them again reads the
   file. */
void pi_file_drop(const struct pi_file *file, size_t offset, size_t size);
/* Copies a range of the file into memory, past the mapping. A system call of many pages costs less
   than their faults, and none of them is the process's afterwards. IO: the reason alone. */
pith_status pi_file_read(const struct pi_file *file, size_t offset, void *data, size_t size,
                         pith_error *err);
/* Asks the system to read a range of the mapping, and does not wait for it. */
void pi_file_want(const struct pi_file *file, size_t offset, size_t size);
/* The same where one of three pages of the range is not in memory: looking costs a microsecond. */
void pi_file_want_missing(const struct pi_file *file, size_t offset, size_t size);
/* Asks for huge pages in a range of the mapping, where the file system has them. */
void pi_file_huge(const struct pi_file *file, size_t offset, size_t size);
/* Says that nothing beside what is touched in a range of the mapping need be read. */
void pi_file_random(const struct pi_file *file, size_t offset, size_t size);

/* Lets the system forget its copy of a file, which is on disk. It is read again as it is used, in
   huge pages where a mapping asks for them. Pages that were written are small. */
void pi_file_forget(const char *path);

/* Makes an empty file that only its owner may read and write, where the path names nothing yet. IO
   names the path and the reason. */
pith_status pi_file_create_private(const char *path, pith_error *err);

/* True where the path names something, or a link to nothing. */
bool pi_file_exists(const char *path);
/* True when both paths name one existing file, through links too. */
bool pi_file_same(const char *a, const char *b);

/* Writes all of it at an offset; false, and *why is errno's number. */
bool pi_write_at(int fd, int64_t offset, const void *data, size_t size, int *why);

/* Fails with a sentence about a file's content, behind the end of its path. */
pith_status pi_file_fail(const char *path, pith_status status, const pith_error *why,
                         pith_error *err);

/* A file that is read and written at offsets, by several threads at the same time, and by no other
   process. Zero it before pi_disk_open. */
struct pi_disk {
    bool open;
    int fd;       /* valid when open */
    int64_t size; /* bytes when it was opened; 0: a new file, or an empty one */
};

/* IO; INVALID: not a regular file, or open already, here or in another process. The sentences of
   all these functions are reasons alone, to be put behind a path (pi_file_fail). */
pith_status pi_disk_open(const char *path, struct pi_disk *disk, pith_error *err);
void pi_disk_close(struct pi_disk *disk);
/* All of it, or IO: a failed write leaves anything there. */
pith_status pi_disk_read(const struct pi_disk *disk, int64_t offset, void *data, size_t size,
                         pith_error *err);
pith_status pi_disk_write(const struct pi_disk *disk, int64_t offset, const void *data, size_t size,
                          pith_error *err);
/* Cuts it off there, or makes it as long: what is new reads as zeros and takes no room yet. */
pith_status pi_disk_resize(const struct pi_disk *disk, int64_t size, pith_error *err);

/* Seconds of a monotonic clock. */
double pi_time_s(void);
/* Seconds that the calling thread has computed. */
double pi_thread_time_s(void);

#endif
