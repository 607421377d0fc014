/*
 * lines.c - see lines.h.
 */
#include "lines.h"

#include <stdlib.h>
#include <string.h>

static bool is_blank(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && text[n] != '\0' && strchr(" \t\r", text[n]) != NULL)
        n++;
    return n == len;
}

pith_status eval_lines_read(const char *text, size_t len, const char *what, eval_line_fn *on_line,
                            void *user, pith_error *err)
{
    int32_t n_taken = 0, line = 1;
    for (size_t at = 0; at < len; line++) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end != NULL ? (size_t)(end - (text + at)) : len - at;
        json_error_t where;
        if (!is_blank(text + at, n)) {
            json_t *json = json_loadb(text + at, n, 0, &where);
            if (json == NULL)
                return eval_fail(err, PITH_FORMAT, "%s: line %d: %s", what, (int)line, where.text);
            pith_status status = on_line(user, json, line, err);
            json_decref(json);
            if (status != PITH_OK)
                return status;
            n_taken++;
        }
        at += n + 1;
    }
    if (n_taken == 0)
        return eval_fail(err, PITH_FORMAT, "%s: the file holds no line", what);
    return PITH_OK;
}

void *eval_lines_grow(void *array, int32_t n, int32_t *cap, size_t size)
{
    if (n < *cap)
        return array;
    int32_t more = *cap > 0 ? 2 * *cap : 64;
    void *grown = realloc(array, (size_t)more * size);
    if (grown != NULL)
        *cap = more;
    return grown;
}
