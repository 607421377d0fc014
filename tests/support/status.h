/*
 * status.h - assertions on the status of a call.
 */
#ifndef PI_TEST_STATUS_H
#define PI_TEST_STATUS_H

#include <string.h>

#include "pith/pith.h"
#include "testing.h"

static inline void check(pith_status status, const pith_error *why)
{
    if (status != PITH_OK)
        fail_msg("%s: %s", pith_status_name(status), why->message);
}

/* A failure of this kind, whose sentence has the word. */
static inline void expect(pith_status status, const pith_error *why, pith_status wanted,
                          const char *word)
{
    if (status != wanted || why->status != wanted || strstr(why->message, word) == NULL)
        fail_msg("%s (%s) instead of %s with \"%s\"", pith_status_name(status), why->message,
                 pith_status_name(wanted), word);
}

#endif
