/*
 * page.h - the files of the page of GET /, made into the binary by the build.
 */
#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H

#include <stddef.h>

struct page_file {
    const char *name; /* below /page/; the first is that of GET / */
    const char *data; /* [size] UTF-8, and a zero behind it */
    size_t size;
};

extern const struct page_file page_files[]; /* [page_n_file] */
extern const size_t page_n_file;

#endif
