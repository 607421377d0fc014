/*
 * status.h - assertions on the status of a call.
 */
#ifndef PI_TEST_STATUS_H
#define PI_TEST_STATUS_H

#include <string.h>

#include "pith/pith.h"
#include "testing.h"

static inline void check(pith_status status, const pith_error *err)
{
    if (status != PITH_OK)
        fail_msg("%s: %s", pith_status_name(status), err->message);
}

/* A failure of this kind, whose sentence has the word. */
static inline void expect(pith_status status, const pith_error *err, pith_status wanted,
                          const char *word)
{
    if (status != wanted || err->status != wanted || strstr(err->message, word) == NULL)
        fail_msg("%s (%s) instead of %s with \"%s\"", pith_status_name(status), err->message,
                 pith_status_name(wanted), word);
}

#endif
