/*
 * report_chart.c - accuracy against budget, and against what it cost.
 *
 * A policy has one colour and one shape in all charts. Lines are named at their ends as well, so no
 * chart is read by colour alone. Every mark leads to its row in the table and tells its figures
 * when pointed at.
 */
#include "report_chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDTH 560.0
#define HEIGHT 330.0
#define PLOT_LEFT 72.0 /* room for "0.00005" beside the name of the axis */
#define PLOT_TOP 14.0
#define PLOT_BOTTOM 282.0
#define LINE_RIGHT 416.0 /* the names of the lines stand to the right of it */
#define COST_RIGHT 528.0
#define NAME_CHARS 17
#define NAME_STEP 14.0 /* pixels between names */
#define NAMES_MAX 18   /* as many as there is height for */
#define DODGE 5.0      /* pixels between the error bars of two policies at one budget */
#define CAP 3.0        /* half width of the ends of an error bar */

const char *report_name(const struct report *r, int32_t policy, const struct report_budget *budget,
                        char *buf, size_t cap)
{
    if (budget->kind == REPORT_BUDGET_NONE)
        snprintf(buf, cap, "%s", r->policies[policy].name);
    else
        snprintf(buf, cap, "%s at %s", r->policies[policy].name, budget->text);
    return buf;
}

/* ---- the span of a chart ---- */

struct span {
    double low, high;
    int32_t n;
};

static void span_add(struct span *s, double value)
{
    if (isnan(value))
        return;
    if (s->n == 0 || value < s->low)
        s->low = value;
    if (s->n == 0 || value > s->high)
        s->high = value;
    s->n++;
}

struct plot {
    struct svg_scale x, y;
    const struct report_metric *metric;
};

static bool is_shown(const struct report_point *p)
{
    return !isnan(p->value);
}

/* Shares are drawn from 0 to 1, whatever the points span; other figures as they are. */
static struct svg_scale value_scale(const struct report *r, const struct report_group *g)
{
    struct span span = {0};
    if (g->metric->share)
        return svg_scale_linear(0.0, 1.0, PLOT_BOTTOM, PLOT_TOP);
    for (int32_t i = 0; i < g->n_point; i++) {
        const struct report_point *p = &r->points[g->first_point + i];
        span_add(&span, p->value);
        span_add(&span, p->low);
        span_add(&span, p->high);
    }
    return svg_scale_linear(span.low, span.high, PLOT_BOTTOM, PLOT_TOP);
}

static const char *figure_value(double value, char *buf)
{
    if (fabs(value) < 1000.0)
        snprintf(buf, 32, "%g", round(value * 1e6) / 1e6);
    else
        figure_count(value, buf);
    return buf;
}

static const char *figure_share(double value, char *buf)
{
    snprintf(buf, 32, "%g%%", round(value * 1e4) / 100.0);
    return buf;
}

/* The text that pointing at a mark shows; the same for every chart. */
static void add_title(struct eval_text *t, const struct report *r, const struct report_point *p)
{
    char name[256], buf[32];
    const struct report_metric *m = r->groups[p->group].metric;
    eval_text_add(t, "<title>");
    html_escape(t, report_name(r, p->policy, &p->budget, name, sizeof(name)));
    eval_text_printf(t, ": %s %s", m->name, figure_plain(p->value, buf));
    if (!isnan(p->low)) {
        eval_text_printf(t, " (95%%: %s", figure_plain(p->low, buf));
        eval_text_printf(t, " to %s)", figure_plain(p->high, buf));
    }
    eval_text_printf(t, ", KV peak %s", figure_bytes(p->kv_bytes, buf));
    eval_text_printf(t, ", %s tokens/s", figure_plain(p->tokens_per_s, buf));
    eval_text_printf(t, ", %s entries evicted</title>", figure_count(p->evicted, buf));
}

static void add_mark(struct eval_text *t, const struct report *r, const struct report_point *p,
                     double x, double y)
{
    eval_text_printf(t, "<a href=\"#r%d\">", p->first_cell + 1);
    add_title(t, r, p);
    svg_marker(t, r->policies[p->policy].slot, x, y);
    eval_text_add(t, "</a>");
}

/* The elements of one policy are a group that the page can dim. */
static void begin_series(struct eval_text *t, const struct report *r, int32_t policy)
{
    char colour[8];
    eval_text_printf(t, "<g class=\"series %s\" data-policy=\"%d\">",
                     svg_colour(r->policies[policy].slot, colour), policy);
}

/* ---- against budget ---- */

bool report_has_budget(const struct report *r, const struct report_group *g,
                       enum report_budget_kind kind)
{
    for (int32_t i = 0; i < g->n_point; i++) {
        const struct report_point *p = &r->points[g->first_point + i];
        if (p->budget.kind == kind && p->budget.value > 0 && is_shown(p))
            return true;
    }
    return false;
}

static const struct {
    const char *name;
    svg_figure_fn *figure;
} budget_axes[REPORT_BUDGET_KINDS] = {
    [REPORT_BUDGET_TOKENS] = {"budget, tokens", figure_count},
    [REPORT_BUDGET_SHARE] = {"budget, share of the tokens so far", figure_share},
    [REPORT_BUDGET_BYTES] = {"budget, bytes", figure_bytes},
};

/* Ticks are the budgets themselves while they are few. */
static struct svg_scale budget_scale(const struct report *r, const struct report_group *g,
                                     enum report_budget_kind kind)
{
    struct span span = {0};
    double seen[SVG_TICKS_MAX];
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_point; i++) {
        const struct report_point *p = &r->points[g->first_point + i];
        if (p->budget.kind != kind || !is_shown(p) || !(p->budget.value > 0))
            continue;
        span_add(&span, p->budget.value);
        int32_t j = n;
        for (; j > 0 && seen[j - 1] >= p->budget.value; j--)
            if (seen[j - 1] == p->budget.value)
                break;
        if (j > 0 && seen[j - 1] == p->budget.value)
            continue;
        if (n == SVG_TICKS_MAX)
            continue;
        memmove(seen + j + 1, seen + j, (size_t)(n - j) * sizeof(*seen));
        seen[j] = p->budget.value;
        n++;
    }
    struct svg_scale x = svg_scale_positive(span.low, span.high, PLOT_LEFT, LINE_RIGHT - 8,
                                            kind == REPORT_BUDGET_BYTES);
    if (n <= 10) {
        memcpy(x.tick, seen, (size_t)n * sizeof(*seen));
        x.n_tick = n;
    }
    return x;
}

/* The name of a line, and where it would like to stand. */
struct line_name {
    int32_t policy;
    double x, y; /* the line's end */
    double at;   /* the name's height */
};

struct line_names {
    struct line_name name[NAMES_MAX];
    int32_t n;
};

/* Kept by height, so that spreading is one pass in each direction. */
static void add_line_name(struct line_names *names, int32_t policy, double x, double y)
{
    int32_t j = names->n;
    if (j == NAMES_MAX)
        return;
    for (; j > 0 && names->name[j - 1].y > y; j--)
        names->name[j] = names->name[j - 1];
    names->name[j] = (struct line_name){policy, x, y, y};
    names->n++;
}

static void draw_line_names(struct eval_text *t, const struct report *r, struct line_names *names)
{
    for (int32_t i = 1; i < names->n; i++)
        names->name[i].at = fmax(names->name[i].at, names->name[i - 1].at + NAME_STEP);
    for (int32_t i = names->n - 1; i >= 0; i--) {
        double most = i == names->n - 1 ? PLOT_BOTTOM : names->name[i + 1].at - NAME_STEP;
        names->name[i].at = fmin(names->name[i].at, most);
    }
    for (int32_t i = 0; i < names->n; i++) {
        const struct line_name *n = &names->name[i];
        begin_series(t, r, n->policy);
        eval_text_printf(t, "<path class=\"leader\" d=\"M%.1f %.1fL%.1f %.1f\"/>", n->x + 6, n->y,
                         LINE_RIGHT + 6, n->at);
        eval_text_printf(t, "<text x=\"%.1f\" y=\"%.1f\" class=\"line-name\">", LINE_RIGHT + 9,
                         n->at + 4);
        html_escape_short(t, r->policies[n->policy].name, NAME_CHARS);
        eval_text_add(t, "<title>");
        html_escape(t, r->policies[n->policy].name);
        eval_text_add(t, "</title></text></g>");
    }
}

static void draw_level(struct eval_text *t, const struct report *r, const struct plot *plot,
                       const struct report_point *p, struct line_names *names)
{
    double y = svg_at(&plot->y, p->value);
    begin_series(t, r, p->policy);
    if (!isnan(p->low)) {
        double high = svg_at(&plot->y, p->high), low = svg_at(&plot->y, p->low);
        eval_text_printf(t, "<path class=\"band\" d=\"M%.1f %.1fH%.1fV%.1fH%.1fz\"/>",
                         plot->x.begin, high, plot->x.end, low, plot->x.begin);
    }
    eval_text_printf(t, "<a href=\"#r%d\">", p->first_cell + 1);
    add_title(t, r, p);
    eval_text_printf(t, "<path class=\"line dashed\" d=\"M%.1f %.1fH%.1f\"/></a></g>",
                     plot->x.begin, y, plot->x.end);
    add_line_name(names, p->policy, plot->x.end - 6, y);
}

static void draw_error_bar(struct eval_text *t, const struct plot *plot,
                           const struct report_point *p, double x)
{
    if (isnan(p->low))
        return;
    double low = svg_at(&plot->y, p->low), high = svg_at(&plot->y, p->high);
    eval_text_printf(t, "<path class=\"bar\" d=\"M%.1f %.1fh%.0fM%.1f %.1fV%.1fM%.1f %.1fh%.0f\"/>",
                     x - CAP, high, 2 * CAP, x, high, low, x - CAP, low, 2 * CAP);
}

/* The points of one policy, budgets ascending: bars, then the line, then the marks over both. */
static void draw_line(struct eval_text *t, const struct report *r, const struct plot *plot,
                      const struct report_point *points, int32_t n, double dodge,
                      struct line_names *names)
{
    struct eval_text line = {0}, marks = {0};
    double x = 0, y = 0;
    int32_t drawn = 0;
    begin_series(t, r, points[0].policy);
    for (int32_t i = 0; i < n; i++) {
        const struct report_point *p = &points[i];
        if (!is_shown(p) || !(p->budget.value > 0))
            continue;
        x = svg_at(&plot->x, p->budget.value) + dodge;
        y = svg_at(&plot->y, p->value);
        draw_error_bar(t, plot, p, x);
        eval_text_printf(&line, "%c%.1f %.1f", drawn++ == 0 ? 'M' : 'L', x, y);
        add_mark(&marks, r, p, x, y);
    }
    if (drawn > 0) {
        eval_text_printf(t, "<path class=\"line\" d=\"%s\"/>", line.data != NULL ? line.data : "");
        eval_text_add(t, marks.data != NULL ? marks.data : "");
        add_line_name(names, points[0].policy, x, y);
    }
    eval_text_add(t, "</g>");
    t->failed = t->failed || line.failed || marks.failed;
    eval_text_free(&line);
    eval_text_free(&marks);
}

/* Runs of points that are one line of the chart: same policy, same kind of budget. */
static int32_t run_length(const struct report *r, int32_t at, int32_t end)
{
    int32_t n = 1;
    const struct report_point *p = &r->points[at];
    while (at + n < end && p[n].policy == p->policy && p[n].budget.kind == p->budget.kind)
        n++;
    return n;
}

void report_budget_chart(struct eval_text *t, const struct report *r, const struct report_group *g,
                         enum report_budget_kind kind)
{
    char label[256];
    struct line_names names = {0};
    int32_t end = g->first_point + g->n_point, n_line = 0, line = 0;
    struct plot plot = {budget_scale(r, g, kind), value_scale(r, g), g->metric};
    plot.x.end = LINE_RIGHT - 8;
    snprintf(label, sizeof(label), "%s of %.100s against %s, one line per policy", g->metric->name,
             g->title, budget_axes[kind].name);
    svg_begin(t, WIDTH, HEIGHT, "chart", label);
    svg_axis_x(t, &plot.x, &plot.y, budget_axes[kind].figure, budget_axes[kind].name);
    svg_axis_y(t, &plot.x, &plot.y, figure_value, g->metric->name);
    for (int32_t i = g->first_point; i < end; i += run_length(r, i, end)) {
        n_line += r->points[i].budget.kind == kind;
        if (r->points[i].budget.kind == REPORT_BUDGET_NONE && is_shown(&r->points[i]))
            draw_level(t, r, &plot, &r->points[i], &names);
    }
    for (int32_t i = g->first_point, n; i < end; i += n) {
        n = run_length(r, i, end);
        if (r->points[i].budget.kind == kind)
            draw_line(t, r, &plot, &r->points[i], n, DODGE * (line++ - (n_line - 1) / 2.0), &names);
    }
    draw_line_names(t, r, &names);
    svg_end(t);
}

/* ---- against cost ---- */

static const struct {
    const char *name;
    svg_figure_fn *figure;
    bool binary; /* ticks are powers of two */
} cost_axes[REPORT_COSTS] = {
    [REPORT_COST_MEMORY] = {"KV memory, peak", figure_bytes, true},
    [REPORT_COST_SPEED] = {"generated tokens/s", figure_value, false},
    [REPORT_COST_READ] = {"share of the cache that was read", figure_share, false},
};

static double cost_of(const struct report_point *p, enum report_cost cost)
{
    const double values[REPORT_COSTS] = {p->kv_bytes, p->tokens_per_s, p->read_share};
    return values[cost] > 0 ? values[cost] : (double)NAN;
}

bool report_has_cost(const struct report *r, const struct report_group *g, enum report_cost cost)
{
    struct span span = {0};
    for (int32_t i = 0; i < g->n_point; i++) {
        const struct report_point *p = &r->points[g->first_point + i];
        if (is_shown(p))
            span_add(&span, cost_of(p, cost));
    }
    return span.n >= 2 && (cost != REPORT_COST_READ || span.low < span.high);
}

static void draw_cost_line(struct eval_text *t, const struct report *r, const struct plot *plot,
                           const struct report_point *points, int32_t n, enum report_cost cost)
{
    int32_t drawn = 0;
    begin_series(t, r, points[0].policy);
    eval_text_add(t, "<path class=\"line thin\" d=\"M0 0");
    for (int32_t i = 0; i < n; i++)
        if (is_shown(&points[i]) && !isnan(cost_of(&points[i], cost)))
            eval_text_printf(t, "%c%.1f %.1f", drawn++ == 0 ? 'M' : 'L',
                             svg_at(&plot->x, cost_of(&points[i], cost)),
                             svg_at(&plot->y, points[i].value));
    eval_text_add(t, "\"/></g>");
}

/* Names first, marks over them: where there is little room a name loses a corner, not a mark. */
static void draw_cost_marks(struct eval_text *t, const struct report *r, const struct plot *plot,
                            const struct report_group *g, enum report_cost cost)
{
    enum { PLACES, NAMES, MARKS, PASSES };
    struct svg_boxes boxes = {
        .left = PLOT_LEFT, .top = 0, .right = WIDTH, .bottom = PLOT_BOTTOM + 4};
    for (int pass = 0; pass < PASSES; pass++)
        for (int32_t i = g->first_point; i < g->first_point + g->n_point; i++) {
            const struct report_point *p = &r->points[i];
            if (!is_shown(p) || isnan(cost_of(p, cost)))
                continue;
            double x = svg_at(&plot->x, cost_of(p, cost)), y = svg_at(&plot->y, p->value);
            if (pass == PLACES) {
                svg_boxes_mark(&boxes, x, y, 5);
                continue;
            }
            begin_series(t, r, p->policy);
            if (pass == MARKS)
                add_mark(t, r, p, x, y);
            else
                svg_boxes_label(&boxes, t, x, y, "mark-name",
                                p->budget.kind == REPORT_BUDGET_NONE ? r->policies[p->policy].name
                                                                     : p->budget.text);
            eval_text_add(t, "</g>");
        }
}

void report_cost_chart(struct eval_text *t, const struct report *r, const struct report_group *g,
                       enum report_cost cost)
{
    char label[256];
    const char *name = cost_axes[cost].name;
    struct span span = {0};
    int32_t end = g->first_point + g->n_point;
    for (int32_t i = g->first_point; i < end; i++)
        if (is_shown(&r->points[i]))
            span_add(&span, cost_of(&r->points[i], cost));
    struct plot plot = {
        svg_scale_positive(span.low, span.high, PLOT_LEFT, COST_RIGHT, cost_axes[cost].binary),
        value_scale(r, g), g->metric};
    snprintf(label, sizeof(label), "%s of %.100s against %s, one mark per policy and budget",
             g->metric->name, g->title, name);
    svg_begin(t, WIDTH, HEIGHT, "chart", label);
    svg_axis_x(t, &plot.x, &plot.y, cost_axes[cost].figure, name);
    svg_axis_y(t, &plot.x, &plot.y, figure_value, g->metric->name);
    for (int32_t i = g->first_point, n; i < end; i += n) {
        n = run_length(r, i, end);
        draw_cost_line(t, r, &plot, &r->points[i], n, cost);
    }
    draw_cost_marks(t, r, &plot, g, cost);
    svg_end(t);
}
