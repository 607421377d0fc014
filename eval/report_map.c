/*
 * report_map.c - the maps of a report: score by depth and length, and which positions a policy kept
 * by layer, KV head and time.
 */
#include "report_chart.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- score by depth and length ---- */

#define GRID_MAX 40 /* lengths, depths */
#define GRID_LEFT 46.0
#define GRID_WIDTH_MIN 132.0
#define GRID_TOP 4.0
#define GRID_CELL_HEIGHT 26.0
#define GRID_CELL_NARROW 34.0 /* as wide as a figure: five maps stand side by side */
#define GRID_CELL_WIDE 46.0   /* as wide as a length of five digits */

struct grid {
    double length[GRID_MAX]; /* [n_length] ascending */
    double depth[GRID_MAX];  /* [n_depth] ascending */
    int32_t n_length, n_depth;
    double cell_width;
    double sum[GRID_MAX][GRID_MAX]; /* [depth][length] */
    double n[GRID_MAX][GRID_MAX];   /* texts */
};

static bool is_grid_row(const json_t *row)
{
    return !isnan(results_number(row, "length")) && !isnan(results_number(row, "depth")) &&
           !isnan(results_score(row));
}

bool report_has_grid(const struct report *r, const struct report_point *p)
{
    for (int32_t i = 0; i < p->n_cell; i++) {
        const json_t *rows = json_object_get(r->cells[p->first_cell + i].result, "rows");
        if (is_grid_row(json_array_get(rows, 0)))
            return true;
    }
    return false;
}

/* Inserts value into an ascending list of distinct values, unless it is full. */
static void add_distinct(double *list, int32_t *n, double value)
{
    int32_t i = 0;
    while (i < *n && list[i] < value)
        i++;
    if ((i < *n && list[i] == value) || *n == GRID_MAX)
        return;
    memmove(list + i + 1, list + i, (size_t)(*n - i) * sizeof(*list));
    list[i] = value;
    (*n)++;
}

static int32_t index_of(const double *list, int32_t n, double value)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i] == value)
            return i;
    return -1;
}

static void grid_add(struct grid *g, const json_t *row, bool count)
{
    double length = results_number(row, "length"), depth = results_number(row, "depth");
    if (!is_grid_row(row))
        return;
    if (!count) {
        add_distinct(g->length, &g->n_length, length);
        add_distinct(g->depth, &g->n_depth, depth);
        return;
    }
    int32_t l = index_of(g->length, g->n_length, length);
    int32_t d = index_of(g->depth, g->n_depth, depth);
    if (l < 0 || d < 0)
        return;
    double n = results_texts(row);
    g->sum[d][l] += n * results_score(row);
    g->n[d][l] += n;
}

/* First the axes, then the scores. */
static void grid_fill(struct grid *g, const struct report *r, const struct report_point *p)
{
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < p->n_cell; i++) {
            size_t k;
            json_t *row;
            json_t *rows = json_object_get(r->cells[p->first_cell + i].result, "rows");
            json_array_foreach(rows, k, row) grid_add(g, row, pass == 1);
        }
}

static void draw_grid_cell(struct eval_text *t, const struct grid *g, int32_t d, int32_t l)
{
    char buf[32], length[32];
    double n = g->n[d][l], mean = n > 0 ? g->sum[d][l] / n : (double)NAN;
    eval_text_printf(t, "<g><title>%s tokens, depth %g: ", figure_count(g->length[l], length),
                     g->depth[d]);
    eval_text_printf(t, "%s of %.0f</title>", figure_plain(mean, buf), n);
    svg_score_cell(t, GRID_LEFT + l * g->cell_width, GRID_TOP + d * GRID_CELL_HEIGHT, g->cell_width,
                   GRID_CELL_HEIGHT, mean);
    eval_text_add(t, "</g>");
}

void report_grid_map(struct eval_text *t, const struct report *r, const struct report_point *p)
{
    char label[512], name[256], buf[32];
    struct grid *g = calloc(1, sizeof(*g));
    if (g == NULL) {
        t->failed = true;
        return;
    }
    grid_fill(g, r, p);
    bool wide = g->n_length > 0 && g->length[g->n_length - 1] >= 10000.0;
    g->cell_width = wide ? GRID_CELL_WIDE : GRID_CELL_NARROW;
    double bottom = GRID_TOP + g->n_depth * GRID_CELL_HEIGHT;
    double middle = GRID_LEFT + g->n_length * g->cell_width / 2;
    snprintf(label, sizeof(label), "mean score by depth and length, %s",
             report_name(r, p->policy, &p->budget, name, sizeof(name)));
    svg_begin(t, fmax(GRID_LEFT + g->n_length * g->cell_width + 2, GRID_WIDTH_MIN), bottom + 40,
              "map", label);
    for (int32_t d = 0; d < g->n_depth; d++) {
        snprintf(buf, sizeof(buf), "%g", round(g->depth[d] * 1e4) / 1e4);
        svg_text(t, GRID_LEFT - 6, GRID_TOP + (d + 0.5) * GRID_CELL_HEIGHT + 4, "tick end", buf);
        for (int32_t l = 0; l < g->n_length; l++)
            draw_grid_cell(t, g, d, l);
    }
    for (int32_t l = 0; l < g->n_length; l++) {
        /* Without commas, for want of room. */
        snprintf(buf, sizeof(buf), "%.0f", g->length[l]);
        svg_text(t, GRID_LEFT + (l + 0.5) * g->cell_width, bottom + 15, "tick mid", buf);
    }
    svg_text(t, middle, bottom + 33, "name mid", g->n_length < 3 ? "tokens" : "length, tokens");
    eval_text_printf(t, "<g transform=\"translate(9 %.1f) rotate(-90)\">",
                     GRID_TOP + g->n_depth * GRID_CELL_HEIGHT / 2);
    svg_text(t, 0, 0, "name mid", "depth");
    eval_text_add(t, "</g>");
    svg_end(t);
    free(g);
}

/* ---- kept positions ---- */

#define KEPT_LEFT 74.0
#define KEPT_TOP 20.0
#define KEPT_GAP 12.0
#define KEPT_NARROW 620.0 /* all panels of few heads: two maps stand side by side */
#define KEPT_WIDE 1060.0
#define KEPT_FEW_HEADS 4
#define KEPT_PANEL_MIN 48.0
#define KEPT_PANEL_MAX 260.0
#define KEPT_LANES_MAX 4096 /* layers, heads: more is no map */
#define KEPT_MERGE 0.4      /* pixels: too narrow a gap to see */

/* The spans of the rows. */
struct kept {
    int32_t n_layer, n_head;
    double n_token; /* at the last record */
    double panel_width, panel_height;
};

/* Rows of several policies, which name theirs, would lie on one another. */
static bool is_kept_row(const json_t *row)
{
    return json_object_get(row, "policy") == NULL && results_number(row, "tokens") > 0 &&
           results_number(row, "layer") >= 0 && results_number(row, "layer") < KEPT_LANES_MAX &&
           results_number(row, "head") >= 0 && results_number(row, "head") < KEPT_LANES_MAX &&
           results_text(row, "kept") != NULL;
}

bool report_has_kept(const struct report_cell *c)
{
    return is_kept_row(json_array_get(json_object_get(c->result, "rows"), 0));
}

static struct kept measure_kept(const json_t *rows)
{
    struct kept k = {0};
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)rows, i, row)
    {
        if (!is_kept_row(row))
            continue;
        k.n_layer = (int32_t)fmax(k.n_layer, results_number(row, "layer") + 1);
        k.n_head = (int32_t)fmax(k.n_head, results_number(row, "head") + 1);
        k.n_token = fmax(k.n_token, results_number(row, "tokens"));
    }
    double width = k.n_head <= KEPT_FEW_HEADS ? KEPT_NARROW : KEPT_WIDE;
    double panel = (width - KEPT_LEFT) / fmax(k.n_head, 1) - KEPT_GAP;
    k.panel_width = fmin(fmax(panel, KEPT_PANEL_MIN), KEPT_PANEL_MAX);
    k.panel_height = k.n_layer <= 4 ? 116.0 : k.n_layer <= 8 ? 84.0 : 52.0;
    return k;
}

/* One strip of a panel. */
struct strip {
    double y, height;
    double scale; /* pixels per position */
    double limit; /* positions lie below it */
};

static void draw_rectangle(struct eval_text *t, const struct strip *s, double begin, double end)
{
    eval_text_printf(t, "M%.1f %.2fh%.1fv%.2fh%.1fz", begin, s->y, end - begin, s->height,
                     begin - end);
}

/* Takes "120-255" or "7", and the comma behind it, off *text. False at the end, or where it is not
   written as it should be. */
static bool next_range(const char **text, double *first, double *last)
{
    char *rest;
    *first = *last = strtod(*text, &rest);
    if (rest == *text)
        return false;
    if (*rest == '-')
        *last = strtod(rest + 1, &rest);
    if (*rest != ',' && *rest != '\0')
        return false;
    *text = *rest == ',' ? rest + 1 : rest;
    return true;
}

/* "0-3,120-255" as rectangles; ranges that touch on paper are one. */
static void draw_ranges(struct eval_text *t, const struct strip *s, const char *text)
{
    double begin = -1.0, end = -1.0, first, last;
    while (next_range(&text, &first, &last)) {
        if (!(first >= 0.0 && first <= last && last < s->limit))
            continue;
        if (begin >= 0.0 && first * s->scale - end > KEPT_MERGE) {
            draw_rectangle(t, s, begin, end);
            begin = -1.0;
        }
        if (begin < 0.0)
            begin = first * s->scale;
        end = fmax((last + 1.0) * s->scale, begin + 0.5);
    }
    if (begin >= 0.0)
        draw_rectangle(t, s, begin, end);
}

/* The records of one lane, from the first token on: a strip reaches from the record before. */
static void draw_panel(struct eval_text *t, const struct kept *k, const json_t *rows, int32_t layer,
                       int32_t head, int32_t slot)
{
    char colour[8], buf[32], entries[32];
    double before = 0.0, last_entries = (double)NAN;
    double across = k->panel_width / k->n_token, down = k->panel_height / k->n_token;
    size_t i;
    json_t *row;
    eval_text_printf(t,
                     "<path class=\"gone\" d=\"M0 0L%.1f %.1fH0z\"/><path class=\"kept %s\" d=\"",
                     k->panel_width, k->panel_height, svg_colour(slot, colour));
    json_array_foreach((json_t *)rows, i, row)
    {
        if (!is_kept_row(row) || results_number(row, "layer") != layer ||
            results_number(row, "head") != head)
            continue;
        double now = results_number(row, "tokens");
        if (now <= before)
            continue;
        struct strip strip = {before * down, (now - before) * down, across, k->n_token};
        draw_ranges(t, &strip, results_text(row, "kept"));
        before = now;
        last_entries = results_number(row, "entries");
    }
    eval_text_printf(t, "\"/><path class=\"frame\" d=\"M0 0H%.1fV%.1fH0z\"/>", k->panel_width,
                     k->panel_height);
    if (k->panel_width < 100.0)
        return;
    snprintf(entries, sizeof(entries), "%s kept", figure_count(last_entries, buf));
    svg_text(t, k->panel_width - 5, 14, "tick end", entries);
}

static void draw_kept_axes(struct eval_text *t, const struct kept *k, double width, double bottom)
{
    char buf[32], name[32];
    for (int32_t h = 0; h < k->n_head; h++) {
        double x = KEPT_LEFT + h * (k->panel_width + KEPT_GAP);
        snprintf(name, sizeof(name), k->panel_width < 90.0 ? "head %d" : "KV head %d", h);
        svg_text(t, x + k->panel_width / 2, KEPT_TOP - 7, "tick mid", name);
        if (k->panel_width < 90.0 && h > 0)
            continue;
        svg_text(t, x, bottom + 15, "tick", "0");
        svg_text(t, x + k->panel_width, bottom + 15, "tick end", figure_count(k->n_token, buf));
    }
    for (int32_t l = 0; l < k->n_layer; l++) {
        double y = KEPT_TOP + l * (k->panel_height + KEPT_GAP);
        snprintf(name, sizeof(name), "layer %d", l);
        svg_text(t, KEPT_LEFT - 6, y + k->panel_height / 2 + 4, "name end", name);
        svg_text(t, KEPT_LEFT - 6, y + 10, "tick end", "0");
        svg_text(t, KEPT_LEFT - 6, y + k->panel_height, "tick end", figure_count(k->n_token, buf));
    }
    svg_text(t, (KEPT_LEFT + width) / 2, bottom + 33, "name mid", "position in the text");
    eval_text_printf(t, "<g transform=\"translate(12 %.1f) rotate(-90)\">",
                     (KEPT_TOP + bottom) / 2);
    svg_text(t, 0, 0, "name mid", "tokens read");
    eval_text_add(t, "</g>");
}

void report_kept_map(struct eval_text *t, const struct report *r, const struct report_cell *c)
{
    char label[512], name[256];
    const json_t *rows = json_object_get(c->result, "rows");
    struct kept k = measure_kept(rows);
    if ((int64_t)k.n_layer * k.n_head > KEPT_LANES_MAX)
        return;
    double width = KEPT_LEFT + k.n_head * (k.panel_width + KEPT_GAP);
    double bottom = KEPT_TOP + k.n_layer * (k.panel_height + KEPT_GAP) - KEPT_GAP;
    snprintf(label, sizeof(label), "kept positions by layer, head and time, %s",
             report_name(r, c->policy, &c->budget, name, sizeof(name)));
    svg_begin(t, width, bottom + 42, "map", label);
    for (int32_t l = 0; l < k.n_layer; l++)
        for (int32_t h = 0; h < k.n_head; h++) {
            eval_text_printf(t, "<g transform=\"translate(%.1f %.1f)\">",
                             KEPT_LEFT + h * (k.panel_width + KEPT_GAP),
                             KEPT_TOP + l * (k.panel_height + KEPT_GAP));
            draw_panel(t, &k, rows, l, h, r->policies[c->policy].slot);
            eval_text_add(t, "</g>");
        }
    draw_kept_axes(t, &k, width, bottom);
    svg_end(t);
}
