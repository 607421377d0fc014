/* page.h - the page of GET /, made into the binary. */
#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H

#include <stddef.h>

extern const char server_page[]; /* [server_page_size], HTML */
extern const size_t server_page_size;

#endif
