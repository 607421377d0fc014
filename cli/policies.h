/*
 * policies.h - what `pith policies` prints, shared by its files.
 */
#ifndef CLI_POLICIES_H
#define CLI_POLICIES_H

#include <stddef.h>

#define POLICIES_WIDTH 100 /* columns of a line, where words allow it */

/* Prints text from column `at` on and breaks it behind spaces and commas; later lines begin at
   `indent`. Ends the line. */
void policies_print_wrapped(const char *text, size_t at, size_t indent);

/* Every pair of policies and storage types, and what sequences are used for under each, as a page
   in Markdown. */
void policies_print_matrix(void);

#endif
