/*
 * report_matrix.c - the score of every policy at every budget in one drawing. There is a row for
 * each policy, and for each budget a block of columns. A block has one for each measured number of
 * steps, of parts, length or task. Where many lines of a chart cover each other, figures do not.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report_chart.h"

#define PARTS_MAX 16   /* columns of a block */
#define COLUMNS_MAX 64 /* of all blocks */
#define WIDTH_MAX 2200.0
#define CELL_WIDTH 31.0
#define CELL_HEIGHT 22.0
#define BLOCK_GAP 9.0 /* six blocks of five columns fit a page */
#define TOP 38.0
#define NAME_MAX 34 /* characters */
#define CHARACTER 7.0
#define MARKER_ROOM 20.0

/* ---- columns ---- */

struct matrix {
    const struct report *r;
    const struct report_group *g;
    const char *key; /* what rows differ in; NULL: nothing that is known here */
    char part[PARTS_MAX][24];
    int32_t n_part; /* columns of a block, 1 without a key */
    struct report_budget budget[COLUMNS_MAX];
    int32_t n_budget; /* blocks */
    double cell_width;
    double left; /* where blocks begin */
};

/* The value of a row under a key, as text; false without. */
static bool part_of(const json_t *row, const char *key, char *text, size_t cap)
{
    const json_t *value = json_object_get(row, key);
    if (json_is_number(value))
        snprintf(text, cap, "%g", json_number_value(value));
    else if (json_is_string(value))
        snprintf(text, cap, "%s", json_string_value(value));
    return json_is_number(value) || json_is_string(value);
}

static int32_t find_part(const struct matrix *m, const char *text)
{
    for (int32_t i = 0; i < m->n_part; i++)
        if (strcmp(m->part[i], text) == 0)
            return i;
    return -1;
}

/* Fills the parts by one key, in the order met. False where some row lacks it, or there are too
   many or not even two. */
static bool find_parts(struct matrix *m, const char *key)
{
    m->n_part = 0;
    for (int32_t i = m->g->first_point; i < m->g->first_point + m->g->n_point; i++)
        for (int32_t c = 0; c < m->r->points[i].n_cell; c++) {
            const struct report_cell *cell = &m->r->cells[m->r->points[i].first_cell + c];
            size_t k;
            json_t *row;
            json_array_foreach(json_object_get(cell->result, "rows"), k, row)
            {
                char text[sizeof(m->part[0])];
                if (!part_of(row, key, text, sizeof(text)) || isnan(results_score(row)))
                    return false;
                if (find_part(m, text) >= 0)
                    continue;
                if (m->n_part == PARTS_MAX)
                    return false;
                memcpy(m->part[m->n_part++], text, sizeof(text));
            }
        }
    return m->n_part >= 2;
}

static bool before(const struct report_budget *a, const struct report_budget *b)
{
    return a->kind != b->kind ? a->kind < b->kind : a->value < b->value;
}

/* Every budget once: none first, then tokens, shares and bytes, each ascending. */
static void find_budgets(struct matrix *m)
{
    for (int32_t i = m->g->first_point; i < m->g->first_point + m->g->n_point; i++) {
        const struct report_budget *b = &m->r->points[i].budget;
        int32_t at = 0;
        while (at < m->n_budget && before(&m->budget[at], b))
            at++;
        if ((at < m->n_budget && !before(b, &m->budget[at])) || m->n_budget == COLUMNS_MAX)
            continue;
        memmove(m->budget + at + 1, m->budget + at,
                (size_t)(m->n_budget - at) * sizeof(m->budget[0]));
        m->budget[at] = *b;
        m->n_budget++;
    }
}

/* Where names of parts are longer than figures, columns are as wide as names. */
static bool fits(struct matrix *m)
{
    int32_t longest = 0;
    for (int32_t i = 0; i < m->n_part; i++) {
        int32_t length = html_length(m->part[i]);
        longest = length > longest ? length : longest;
    }
    m->cell_width = fmax(CELL_WIDTH, longest * CHARACTER + 6);
    return m->n_part * m->n_budget <= COLUMNS_MAX &&
           m->n_part * m->n_budget * m->cell_width <= WIDTH_MAX;
}

static struct matrix matrix_of(const struct report *r, const struct report_group *g)
{
    static const char *const keys[] = {"steps", "parts", "length", "task"};
    struct matrix m = {.r = r, .g = g};
    find_budgets(&m);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && m.key == NULL; i++)
        if (find_parts(&m, keys[i]) && fits(&m))
            m.key = keys[i];
    if (m.key == NULL) {
        m.n_part = 1;
        m.cell_width = CELL_WIDTH;
    }
    return m;
}

static double score_of(const struct matrix *m, const struct report_point *p, int32_t part)
{
    double sum = 0.0, items = 0.0;
    if (m->key == NULL)
        return p->value;
    for (int32_t c = 0; c < p->n_cell; c++) {
        size_t k;
        json_t *row;
        json_array_foreach(json_object_get(m->r->cells[p->first_cell + c].result, "rows"), k, row)
        {
            char text[sizeof(m->part[0])];
            if (!part_of(row, m->key, text, sizeof(text)) || strcmp(text, m->part[part]) != 0)
                continue;
            double n = results_texts(row);
            sum += n * results_score(row);
            items += n;
        }
    }
    return items > 0.0 ? sum / items : (double)NAN;
}

/* ---- drawing ---- */

static double block_x(const struct matrix *m, int32_t budget)
{
    return m->left + budget * (m->n_part * m->cell_width + BLOCK_GAP);
}

static void draw_header(struct eval_text *t, const struct matrix *m)
{
    svg_text(t, m->left - 8, 14, "name end", "budget");
    if (m->key != NULL)
        svg_text(t, m->left - 8, 31, "tick end", m->key);
    for (int32_t b = 0; b < m->n_budget; b++) {
        bool none = m->budget[b].kind == REPORT_BUDGET_NONE;
        svg_text(t, block_x(m, b) + m->n_part * m->cell_width / 2, 14, "name mid",
                 none ? "none" : m->budget[b].text);
        for (int32_t i = 0; i < m->n_part && m->key != NULL; i++)
            svg_text(t, block_x(m, b) + (i + 0.5) * m->cell_width, 31, "tick mid", m->part[i]);
    }
}

/* The cells of one point. */
static void draw_point(struct eval_text *t, const struct matrix *m, const struct report_point *p,
                       double y)
{
    char name[256];
    int32_t block = 0;
    while (block < m->n_budget && before(&m->budget[block], &p->budget))
        block++;
    report_name(m->r, p->policy, &p->budget, name, sizeof(name));
    for (int32_t i = 0; i < m->n_part; i++) {
        eval_text_add(t, "<g><title>");
        html_escape(t, name);
        if (m->key != NULL) {
            eval_text_printf(t, ", %s ", m->key);
            html_escape(t, m->part[i]);
        }
        eval_text_add(t, "</title>");
        svg_score_cell(t, block_x(m, block) + i * m->cell_width, y, m->cell_width, CELL_HEIGHT,
                       score_of(m, p, i));
        eval_text_add(t, "</g>");
    }
}

static void draw_name(struct eval_text *t, const struct matrix *m, int32_t policy, double y)
{
    const struct report_policy *p = &m->r->policies[policy];
    svg_marker(t, p->slot, 10, y + CELL_HEIGHT / 2);
    eval_text_printf(t, "<text class=\"name\" x=\"%.1f\" y=\"%.1f\">", MARKER_ROOM,
                     y + CELL_HEIGHT / 2 + 4);
    html_escape_short(t, p->name, NAME_MAX);
    eval_text_add(t, "</text>");
}

bool report_has_matrix(const struct report *r, const struct report_group *g)
{
    bool budget = false, policies = false;
    if (g->metric == NULL || !g->metric->share)
        return false;
    for (int32_t i = g->first_point; i < g->first_point + g->n_point; i++) {
        budget = budget || r->points[i].budget.kind != REPORT_BUDGET_NONE;
        policies = policies || r->points[i].policy != r->points[g->first_point].policy;
    }
    return budget && policies;
}

/* A policy's row: its name and its points' cells, hidden by its button. Returns the points. */
static int32_t draw_row(struct eval_text *t, const struct matrix *m, int32_t first, double y)
{
    int32_t n = 0, end = m->g->first_point + m->g->n_point;
    int32_t policy = m->r->points[first].policy;
    eval_text_printf(t, "<g class=\"series\" data-policy=\"%d\">", policy);
    draw_name(t, m, policy, y);
    while (first + n < end && m->r->points[first + n].policy == policy)
        draw_point(t, m, &m->r->points[first + n++], y);
    eval_text_add(t, "</g>");
    return n;
}

void report_matrix(struct eval_text *t, const struct report *r, const struct report_group *g)
{
    struct matrix m = matrix_of(r, g);
    int32_t n_row = 0, longest = 0, policy = -1;
    for (int32_t i = g->first_point; i < g->first_point + g->n_point; i++) {
        int32_t length = html_length(r->policies[r->points[i].policy].name);
        longest = length > longest ? length : longest;
        n_row += r->points[i].policy != policy;
        policy = r->points[i].policy;
    }
    longest = longest < NAME_MAX ? longest : NAME_MAX;
    m.left = MARKER_ROOM + fmax(longest * CHARACTER, 50.0) + 8;
    svg_begin(t, block_x(&m, m.n_budget), TOP + n_row * CELL_HEIGHT + 4, "matrix",
              "score of every policy at every budget");
    draw_header(t, &m);
    for (int32_t row = 0, i = g->first_point; row < n_row; row++)
        i += draw_row(t, &m, i, TOP + row * CELL_HEIGHT);
    svg_end(t);
}
