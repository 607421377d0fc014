/* calibrate_ranges.h - files of numbers that `pith calibrate` reads. */
#ifndef CALIBRATE_RANGES_H
#define CALIBRATE_RANGES_H

#include "io.h"
#include "pith/calibrate.h"

/* A file of numbers, which a zero byte would end early. */
struct cli_text numbers_read(const char *path);

/* The ranges of a file, [*n], freed by the caller; "#" begins a comment. Fails with the line that
   is none. */
pith_range *ranges_read(const char *path, int32_t *n);

#endif
