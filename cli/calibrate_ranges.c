/*
 * calibrate_ranges.c - reads files of numbers and of ranges of tokens, and fails with the byte or
 * line that is none.
 */
#include "calibrate_ranges.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cli_text numbers_read(const char *path)
{
    struct cli_text text = cli_read_file(path);
    size_t len = strlen(text.data);
    if (len != text.len)
        cli_fail("%s: byte %zu is zero, and no part of a number", path, len);
    if (len > INT32_MAX)
        cli_fail("%s: %zu bytes of numbers are more than %d", path, len, INT32_MAX);
    return text;
}

pith_range *ranges_read(const char *path, int32_t *n)
{
    struct cli_text text = numbers_read(path);
    size_t cap = 16;
    pith_range *ranges = cli_alloc(cap, sizeof(*ranges));
    int32_t line_number = 0;
    *n = 0;
    for (char *line = text.data, *next; line != NULL; line = next) {
        long long begin, end;
        char rest;
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        line[strcspn(line, "#")] = '\0';
        line_number++;
        if (line[strspn(line, " \t\r")] == '\0')
            continue;
        if (sscanf(line, "%lld %lld %c", &begin, &end, &rest) != 2 || begin < 0 || end <= begin ||
            end > INT32_MAX)
            cli_fail("%s, line %d: \"%.60s\" is not the first token of a range and the one behind "
                     "its last",
                     path, line_number, line);
        if ((size_t)*n == cap) {
            ranges = realloc(ranges, (cap *= 2) * sizeof(*ranges));
            if (ranges == NULL)
                cli_fail("no memory for the ranges of %s", path);
        }
        ranges[(*n)++] = (pith_range){(int32_t)begin, (int32_t)end};
    }
    free(text.data);
    return ranges;
}
