/*
 * policies.h - what `pith policies` prints, shared by its files.
 */
#ifndef CLI_POLICIES_H
#define CLI_POLICIES_H

/* Every pair of policies and storage types, and what sequences are used for under each, as a page
   in Markdown. */
void policies_print_matrix(void);

#endif
