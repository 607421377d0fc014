/*
 * json_read.h - numbers of JSON that a test cannot do without.
 */
#ifndef PI_TEST_JSON_READ_H
#define PI_TEST_JSON_READ_H

#include <jansson.h>

#include "testing.h"

static inline double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("there is no number \"%s\"", key);
    return json_number_value(value);
}

static inline int64_t whole(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value))
        fail_msg("there is no whole number \"%s\"", key);
    return json_integer_value(value);
}

/* A figure of a result's summary. */
static inline double figure(const json_t *result, const char *key)
{
    return number(json_object_get(result, "summary"), key);
}

#endif
