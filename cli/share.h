/*
 * share.h - what `--share` adds to the commands: lines of their reports.
 */
#ifndef CLI_SHARE_H
#define CLI_SHARE_H

#include "session.h"

/* Whether a --share, which may be NULL, is not "none". */
bool share_is_on(const char *share);

/* The line of a report on standard error; nothing without --share. */
void share_report(const struct session *s);

/* The same as members of a report's JSON; NULL where there is no memory. */
json_t *share_json(const struct session *s);

#endif
