/*
 * manual.h - what is to be read about the options beside `pith help COMMAND`.
 */
#ifndef CLI_MANUAL_H
#define CLI_MANUAL_H

/* Prints `pith help environment`. */
void help_environment(void);

/* Writes the pages of man, pith.1 and one for each command, into a folder. Fails with the path. */
void manual_write(const char *folder);

#endif
