/*
 * calibrate_resume.h - the file by which a calibration goes on where it was stopped. It keeps the
 * targets of texts that were repeated, and an equal calibration finds them there.
 */
#ifndef PI_CALIBRATE_RESUME_H
#define PI_CALIBRATE_RESUME_H

#include "base/os.h"
#include "file/sum.h"

struct pi_resume {
    struct pi_disk disk;
    int64_t at; /* bytes of the file that are good: the header and whole texts */
};

/* Opens the file, or makes it. One of another key is begun anew. path NULL: nothing is kept. IO,
   and INVALID where another process has it. */
pith_status pi_resume_open(struct pi_resume *r, const char *path, uint64_t key, pith_error *err);
void pi_resume_close(struct pi_resume *r);

/* The next text's n floats for each of n_row rows, which are stride floats apart. False: neither
   they nor a later text's are in the file. */
bool pi_resume_read(struct pi_resume *r, float *rows, int32_t n_row, int64_t n, size_t stride);
/* Appends them. A file that cannot be written is left as it is: it only saves time. */
void pi_resume_write(struct pi_resume *r, const float *rows, int32_t n_row, int64_t n,
                     size_t stride);

#endif
