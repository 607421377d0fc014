/* svg.h - texts and figures of drawings. */
#ifndef CLI_SVG_H
#define CLI_SVG_H

#include <eval.h>

/* Adds s with &, <, >, " and ' as entities. Bytes that are no UTF-8 (the name of a file, a text
   that was cut) or no XML character become U+FFFD. */
void svg_escape(struct eval_text *t, const char *s);
/* The same, at most n characters, the last an ellipsis where more follow. */
void svg_escape_short(struct eval_text *t, const char *s, int32_t n);
/* Escaped text at a place, and the line's end. */
void svg_text(struct eval_text *t, double x, double y, const char *class_name, const char *text);

/* "12,345"; buf [32]; returns buf. */
const char *figure_count(double n, char *buf);

#endif
