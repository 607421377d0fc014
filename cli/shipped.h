/* shipped.h - the files that come with Pith: small models and the demo's text. */
#ifndef CLI_SHIPPED_H
#define CLI_SHIPPED_H

/* The path of such a file, which the caller frees. Fails where it is nowhere. */
char *cli_find_shipped(const char *name);

#endif
