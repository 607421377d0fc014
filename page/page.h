/*
 * page.h - the files of the live page and of the sheet, made into the binary by the build.
 */
#ifndef PAGE_H
#define PAGE_H

#include <stddef.h>

struct page_file {
    const char *name; /* below /page/; the first is that of GET / */
    const char *data; /* [size] UTF-8, and a zero behind it */
    size_t size;
};

extern const struct page_file page_files[]; /* [page_n_file] */
extern const size_t page_n_file;

#endif
