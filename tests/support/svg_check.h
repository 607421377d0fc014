/*
 * svg_check.h - reads the maps of cli/map.h back: that they are well-formed, and what their rows
 * say.
 */
#ifndef TEST_SVG_CHECK_H
#define TEST_SVG_CHECK_H

#include <stddef.h>
#include <stdint.h>

/* Fails the test unless the text is one element of XML. Names must be balanced, values quoted,
   attributes and ids unique, and entities known. There must be no control characters, and UTF-8
   must be valid. */
void svg_check(const char *svg, size_t len);

/* One rectangle of a row. */
struct svg_piece {
    int level; /* 8: all of it is kept */
    int32_t begin;
    int32_t end; /* positions begin .. end - 1 */
};

/* The pieces of the row with this id ("l0h1"), in the order of the file, into pieces [cap]; returns
   their number. Fails the test where there is no such row, or its paths are not as promised. */
int32_t svg_row(const char *svg, const char *id, struct svg_piece *pieces, int32_t cap);

#endif
