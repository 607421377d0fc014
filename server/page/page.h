/*
 * page.h - the page of GET /, made into the binary from index.html by the build.
 */
#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H

#include <stddef.h>

extern const char server_page[]; /* [server_page_size] HTML, and a zero behind it */
extern const size_t server_page_size;

#endif
