/*
 * eval_read.h - for tests of evaluations: reads results and notes. Beside folder.h.
 */
#ifndef TESTS_EVAL_READ_H
#define TESTS_EVAL_READ_H

#include <jansson.h>

#include "folder.h"

enum { NOTES_SIZE = 4096 };

/* The number under a key. */
static inline double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("\"%s\" is no number", key);
    return json_number_value(value);
}

/* Row i of a result that has rows. */
static inline const json_t *row_of(const json_t *result, size_t i)
{
    return json_array_get(json_object_get(result, "rows"), i);
}

/* A file of the test's folder with a text. */
static inline void put(const char *name, const char *text)
{
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* Appends a line to notes, char [NOTES_SIZE]. */
static inline void on_note(void *notes, const char *sentence)
{
    size_t len = strlen(notes);
    snprintf((char *)notes + len, NOTES_SIZE - len, "%s\n", sentence);
}

#endif
