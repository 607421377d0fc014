/*
 * report_svg.h - the strokes that the charts of a report are drawn with. These are escaped text,
 * axes with round ticks, markers, and labels that keep out of each other's way.
 *
 * Colours are classes of the page's style sheet (report_html.c), so that one drawing serves light
 * and dark pages and paper. Coordinates are SVG's: x to the right, y downwards, in pixels.
 */
#ifndef PI_EVAL_REPORT_SVG_H
#define PI_EVAL_REPORT_SVG_H

#include "report_data.h"

#define SVG_N_COLOUR 8 /* classes c0 .. c7; cf is the full cache */
#define SVG_N_MARKER 7 /* prime to the colours: 56 policies look different */
#define SVG_TICKS_MAX 24
#define SVG_LABELS_MAX 128
#define SVG_DASH "\xe2\x80\x93" /* en dash: no figure */

/* ---- text ---- */

/* Adds s with &, <, >, " and ' as entities. Bytes that are no UTF-8 (the name of a file, a text
   that was cut) or no XML character become U+FFFD. NULL adds a dash. */
void html_escape(struct eval_text *t, const char *s);
/* The same, at most n characters, the last an ellipsis where more follow. */
void html_escape_short(struct eval_text *t, const char *s, int32_t n);
/* Characters of UTF-8 text. */
int32_t html_length(const char *s);

/* Figures for people; NAN gives a dash. buf [32]; returns buf. */
const char *figure_bytes(double bytes, char *buf); /* "1.5 MiB" */
const char *figure_count(double n, char *buf);     /* "12,345" */
const char *figure_plain(double x, char *buf);     /* "0.982", "12.3", "1,234" */

/* ---- axes ---- */

struct svg_scale {
    double low, high;  /* values at the ends */
    double begin, end; /* pixels at the ends */
    bool logarithmic;  /* low > 0 */
    double tick[SVG_TICKS_MAX];
    int32_t n_tick;
};

/* A linear scale from values with round ticks, ends widened to them. low <= high. */
struct svg_scale svg_scale_linear(double low, double high, double begin, double end);
/* A scale over positive values, logarithmic where they span more than a factor of 4, with a margin
   on either side. Ticks within are round in powers of ten, or of two and of 1024 for bytes. */
struct svg_scale svg_scale_positive(double low, double high, double begin, double end, bool bytes);
double svg_at(const struct svg_scale *s, double value);

typedef const char *svg_figure_fn(double value, char *buf);

/* Grid lines, tick labels and the name of an axis below (x) or to the left (y) of a plot. */
void svg_axis_x(struct eval_text *t, const struct svg_scale *x, const struct svg_scale *y,
                svg_figure_fn *figure, const char *name);
void svg_axis_y(struct eval_text *t, const struct svg_scale *x, const struct svg_scale *y,
                svg_figure_fn *figure, const char *name);

/* ---- marks ---- */

/* Opens an SVG image of this size; label says in one sentence what it shows, escaped here. */
void svg_begin(struct eval_text *t, double width, double height, const char *class_name,
               const char *label);
void svg_end(struct eval_text *t);

/* Escaped text at a place. */
void svg_text(struct eval_text *t, double x, double y, const char *class_name, const char *text);

/* The shape and colour of a policy's slot, centred. */
void svg_marker(struct eval_text *t, int32_t slot, double x, double y);
/* A rectangle in the colour of a score in [0,1] with its figure; NAN: a frame with a dash. */
void svg_score_cell(struct eval_text *t, double x, double y, double width, double height,
                    double score);
/* The class of a slot's colour, "c3" or "cf"; buf [8]; returns buf. */
const char *svg_colour(int32_t slot, char *buf);

/* Labels that must not cover each other, nor the marks. */
struct svg_boxes {
    struct {
        double x0, y0, x1, y1;
    } box[SVG_LABELS_MAX];
    int32_t n;
    double left, top, right, bottom; /* of the area that labels may use */
};

/* Keeps a mark free of labels. */
void svg_boxes_mark(struct svg_boxes *b, double x, double y, double radius);
/* Writes a label beside a mark where there is room; leaves it out where there is none. */
void svg_boxes_label(struct svg_boxes *b, struct eval_text *t, double x, double y,
                     const char *class_name, const char *text);

#endif
