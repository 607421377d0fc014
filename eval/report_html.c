/*
 * report_html.c - the page: what was measured on what, the charts of each task, the maps, and the
 * table of all results.
 *
 * The page is HTML that is also well-formed XML, so that any XML reader can check it. Every text
 * of a result goes through html_escape.
 */
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report_chart.h"
#include "report_style.h"

#define DISTINCT_MAX 16

/* ---- head ---- */

static void add_lines(struct eval_text *t, const char *const *lines)
{
    for (; *lines != NULL; lines++) {
        eval_text_add(t, *lines);
        eval_text_add(t, "\n");
    }
}

/* Different texts, in the order met. */
struct distinct {
    char *text[DISTINCT_MAX]; /* owned */
    int32_t n;
    bool more;
};

static void distinct_add(struct distinct *d, const char *text, struct eval_text *t)
{
    if (text == NULL || text[0] == '\0')
        return;
    for (int32_t i = 0; i < d->n; i++)
        if (strcmp(d->text[i], text) == 0)
            return;
    if (d->n == DISTINCT_MAX) {
        d->more = true;
        return;
    }
    size_t size = strlen(text) + 1;
    char *copy = malloc(size);
    if (copy == NULL) {
        t->failed = true;
        return;
    }
    memcpy(copy, text, size);
    d->text[d->n++] = copy;
}

/* One line of facts; a dash where no result tells. Frees the texts. */
static void add_fact(struct eval_text *t, const char *name, struct distinct *d)
{
    eval_text_printf(t, "<dt>%s</dt><dd>", name);
    for (int32_t i = 0; i < d->n; i++) {
        if (i > 0)
            eval_text_add(t, "; ");
        html_escape(t, d->text[i]);
        free(d->text[i]);
    }
    if (d->n == 0)
        eval_text_add(t, SVG_DASH);
    if (d->more)
        eval_text_add(t, "; \xe2\x80\xa6");
    eval_text_add(t, "</dd>\n");
    *d = (struct distinct){0};
}

/* A JSON value as people write settings: texts without quotes, objects as "key value". */
static void add_setting(struct eval_text *t, const json_t *value)
{
    const char *text = json_string_value(value);
    if (text != NULL) {
        html_escape_short(t, text, 120);
        return;
    }
    char *dump = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
    if (dump == NULL)
        t->failed = true;
    else
        html_escape_short(t, dump, 160);
    free(dump);
}

/* "threads 2, type_k f16"; the caller frees, NULL for nothing. */
static char *describe_engine(const json_t *engine)
{
    struct eval_text line = {0};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)engine, key, value)
    {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        const char *plain = json_is_string(value) ? json_string_value(value) : text;
        eval_text_printf(&line, "%s%.40s %.80s", line.len > 0 ? ", " : "", key,
                         plain != NULL ? plain : "");
        free(text);
    }
    return line.data;
}

static char *describe_machine(const json_t *run)
{
    struct eval_text line = {0};
    const char *level = results_text(run, "cpu_level");
    double threads = results_number(run, "threads");
    if (level == NULL)
        return NULL;
    eval_text_printf(&line, "%.40s kernels", level);
    if (threads >= 1)
        eval_text_printf(&line, ", %.0f thread%s", threads, threads > 1 ? "s" : "");
    return line.data;
}

/* First and last of the dates, which are ISO 8601 and so sort as text. */
static void add_dates(struct eval_text *t, const struct report *r)
{
    char span[128] = "";
    const char *first = NULL, *last = NULL;
    struct distinct d = {0};
    for (int32_t i = 0; i < r->n_cell; i++) {
        const char *date = results_text(r->cells[i].run, "date");
        if (date == NULL)
            continue;
        if (first == NULL || strcmp(date, first) < 0)
            first = date;
        if (last == NULL || strcmp(date, last) > 0)
            last = date;
    }
    if (first != NULL)
        snprintf(span, sizeof(span), strcmp(first, last) == 0 ? "%.40s" : "%.40s to %.40s", first,
                 last);
    distinct_add(&d, span, t);
    add_fact(t, "measured", &d);
}

static void add_facts(struct eval_text *t, const struct report *r)
{
    struct distinct models = {0}, machines = {0}, engines = {0}, versions = {0}, files = {0};
    for (int32_t i = 0; i < r->n_cell; i++) {
        const struct report_cell *c = &r->cells[i];
        char *machine = describe_machine(c->run);
        char *engine =
            describe_engine(json_object_get(json_object_get(c->result, "cell"), "engine"));
        distinct_add(&models, results_text(c->result, "model"), t);
        distinct_add(&machines, machine, t);
        distinct_add(&engines, engine, t);
        distinct_add(&versions, results_text(c->run, "version"), t);
        distinct_add(&files, c->file, t);
        free(machine);
        free(engine);
    }
    eval_text_add(t, "<dl>\n");
    add_fact(t, "model", &models);
    add_fact(t, "machine", &machines);
    add_fact(t, "engine settings", &engines);
    add_fact(t, "Pith version", &versions);
    add_dates(t, r);
    add_fact(t, "files", &files);
    eval_text_printf(t, "<dt>results</dt><dd>%d", r->n_cell);
    if (r->n_superseded > 0)
        eval_text_printf(t, "; left out as repeated later: %d", r->n_superseded);
    if (r->n_ignored + r->n_cut > 0)
        eval_text_printf(t, "; left out as no whole result: %d", r->n_ignored + r->n_cut);
    eval_text_add(t, "</dd>\n</dl>\n");
}

static void add_policies(struct eval_text *t, const struct report *r)
{
    eval_text_add(t, "<ul class=\"policies\" aria-label=\"policies\">\n");
    for (int32_t i = 0; i < r->n_policy; i++) {
        eval_text_printf(t, "<li data-policy=\"%d\">", i);
        eval_text_add(t, "<svg viewBox=\"-8 -8 16 16\" width=\"16\" height=\"16\" "
                         "aria-hidden=\"true\">");
        svg_marker(t, r->policies[i].slot, 0, 0);
        eval_text_add(t, "</svg><span>");
        html_escape(t, r->policies[i].name);
        eval_text_add(t, r->policies[i].full ? " <span class=\"soft\">(the whole cache, "
                                               "dashed)</span></span></li>\n"
                                             : "</span></li>\n");
    }
    eval_text_add(t, "</ul>\n");
}

static void add_navigation(struct eval_text *t, const struct report *r)
{
    eval_text_add(t, "<nav aria-label=\"sections\"><ul>\n");
    for (int32_t i = 0; i < r->n_group; i++) {
        eval_text_printf(t, "<li><a href=\"#g%d\">", i + 1);
        html_escape(t, r->groups[i].title);
        eval_text_add(t, "</a></li>\n");
    }
    eval_text_add(t, "<li><a href=\"#table\">table of all results</a></li>\n</ul></nav>\n");
}

static void add_head(struct eval_text *t, const struct report *r)
{
    bool one_model = true;
    for (int32_t i = 1; i < r->n_group; i++)
        one_model = one_model && strcmp(r->groups[i].model, r->groups[0].model) == 0;
    const char *model = one_model && r->groups[0].model[0] != '\0' ? r->groups[0].model : NULL;
    eval_text_add(t, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                     "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>\n"
                     "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                     "style-src 'unsafe-inline'; script-src 'unsafe-inline'\"/>\n<title>");
    html_escape(t, model != NULL ? model : "several models");
    eval_text_add(t, ": Pith evaluation</title>\n<style>\n");
    add_lines(t, report_style);
    eval_text_add(t, "</style>\n</head>\n<body>\n<header>\n<h1>");
    html_escape(t, model != NULL ? model : "Several models");
    eval_text_add(t, ": what cache policies cost and keep</h1>\n");
    eval_text_add(t, "<p class=\"soft\">Results of <code>pith eval</code>. Error bars and bands "
                     "are 95% intervals; point at a mark for its figures, follow it to its row. "
                     "A dash is a figure that the results do not hold.</p>\n");
    add_facts(t, r);
    add_policies(t, r);
    add_navigation(t, r);
    eval_text_add(t, "</header>\n<main>\n");
}

/* ---- one task ---- */

static void add_settings(struct eval_text *t, const struct report_group *g)
{
    const char *key;
    json_t *value;
    if (json_object_size(g->settings) == 0)
        return;
    eval_text_add(t, "<details><summary>what was asked</summary><pre>");
    json_object_foreach((json_t *)g->settings, key, value)
    {
        html_escape(t, key);
        eval_text_add(t, ": ");
        add_setting(t, value);
        eval_text_add(t, "\n");
    }
    eval_text_add(t, "</pre></details>\n");
}

static void begin_figure(struct eval_text *t, const char *class_name, const char *caption)
{
    eval_text_printf(t, "<figure class=\"%s\"><figcaption>%s</figcaption>", class_name, caption);
}

static void add_charts(struct eval_text *t, const struct report *r, const struct report_group *g)
{
    static const char *const costs[REPORT_COSTS] = {"memory", "speed", "the share that was read"};
    char caption[128];
    int32_t n = 0;
    if (g->metric == NULL)
        return;
    eval_text_add(t, "<div class=\"charts\">\n");
    for (int kind = REPORT_BUDGET_TOKENS; kind < REPORT_BUDGET_KINDS; kind++) {
        if (!report_has_budget(r, g, kind))
            continue;
        snprintf(caption, sizeof(caption), "<b>%s against budget</b>, %s", g->metric->title,
                 g->metric->note);
        begin_figure(t, "", caption);
        report_budget_chart(t, r, g, kind);
        eval_text_add(t, "</figure>\n");
        n++;
    }
    for (int cost = 0; cost < REPORT_COSTS; cost++) {
        if (!report_has_cost(r, g, cost))
            continue;
        snprintf(caption, sizeof(caption), "<b>%s against %s</b>, marks named by budget",
                 g->metric->title, costs[cost]);
        begin_figure(t, "", caption);
        report_cost_chart(t, r, g, cost);
        eval_text_add(t, "</figure>\n");
        n++;
    }
    eval_text_add(t, "</div>\n");
    if (n == 0)
        eval_text_add(t, "<p class=\"soft\">No two results here differ in budget or cost, so there "
                         "is no chart; the table below has the figures.</p>\n");
}

static void add_caption_name(struct eval_text *t, const struct report *r, int32_t policy,
                             const struct report_budget *budget)
{
    eval_text_add(t, "<b>");
    html_escape_short(t, r->policies[policy].name, 60);
    eval_text_add(t, "</b>");
    if (budget->kind != REPORT_BUDGET_NONE) {
        eval_text_add(t, ", budget ");
        html_escape(t, budget->text);
    }
}

static void add_score_scale(struct eval_text *t)
{
    eval_text_add(t, "<p class=\"scale\">score 0 <svg viewBox=\"0 0 176 14\" width=\"176\" "
                     "height=\"14\" aria-hidden=\"true\">");
    for (int i = 0; i <= 10; i++)
        eval_text_printf(t, "<rect class=\"h%d\" x=\"%d\" width=\"16\" height=\"14\"/>", i, 16 * i);
    eval_text_add(t, "</svg> 1</p>\n");
}

static void add_matrix(struct eval_text *t, const struct report *r, const struct report_group *g)
{
    if (!report_has_matrix(r, g))
        return;
    eval_text_add(t, "<h3>Every policy at every budget</h3>\n");
    add_score_scale(t);
    begin_figure(t, "wide", "Point at a cell for its policy and budget.");
    report_matrix(t, r, g);
    eval_text_add(t, "</figure>\n");
}

static void add_grid_maps(struct eval_text *t, const struct report *r, const struct report_group *g)
{
    int32_t n = 0, policy = -1;
    for (int32_t i = g->first_point; i < g->first_point + g->n_point; i++) {
        const struct report_point *p = &r->points[i];
        if (!report_has_grid(r, p))
            continue;
        if (n++ == 0) {
            eval_text_add(t, "<h3>Score by depth and length</h3>\n<p class=\"soft\">Depth 0 is the "
                             "beginning of the text, 1 its end.</p>\n");
            add_score_scale(t);
        }
        if (p->policy != policy) {
            eval_text_add(t, policy >= 0 ? "</div>\n<h4>" : "<h4>");
            html_escape(t, r->policies[p->policy].name);
            eval_text_add(t, "</h4>\n<div class=\"maps\">\n");
        }
        policy = p->policy;
        eval_text_printf(t, "<figure id=\"m%d\">", p->first_cell + 1);
        if (p->budget.kind != REPORT_BUDGET_NONE) {
            eval_text_add(t, "<figcaption>budget ");
            html_escape(t, p->budget.text);
            eval_text_add(t, "</figcaption>");
        }
        report_grid_map(t, r, p);
        eval_text_add(t, "</figure>\n");
    }
    if (n > 0)
        eval_text_add(t, "</div>\n");
}

static bool is_wide(const struct report_cell *c)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(c->result, "rows"), i, row)
    {
        if (results_number(row, "head") >= 4)
            return true;
    }
    return false;
}

static void add_kept_maps(struct eval_text *t, const struct report *r, const struct report_group *g)
{
    int32_t n = 0;
    for (int32_t i = 0; i < r->n_cell; i++) {
        const struct report_cell *c = &r->cells[i];
        if (&r->groups[c->group] != g || !report_has_kept(c))
            continue;
        if (n++ == 0)
            eval_text_add(t, "<h3>Kept positions</h3>\n<p class=\"soft\">Each panel is one layer "
                             "and KV head: position in the text to the right, tokens read so far "
                             "downwards. Coloured: still in the cache. Grey: read and "
                             "evicted.</p>\n<div class=\"charts\">\n");
        eval_text_printf(t, "<figure id=\"m%d\" class=\"%s\"><figcaption>", i + 1,
                         is_wide(c) ? "wide" : "");
        add_caption_name(t, r, c->policy, &c->budget);
        eval_text_add(t, "</figcaption>");
        report_kept_map(t, r, c);
        eval_text_add(t, "</figure>\n");
    }
    if (n > 0)
        eval_text_add(t, "</div>\n");
}

static void add_group(struct eval_text *t, const struct report *r, int32_t index)
{
    const struct report_group *g = &r->groups[index];
    eval_text_printf(t, "<section>\n<h2 id=\"g%d\">", index + 1);
    html_escape(t, g->title);
    eval_text_add(t, "</h2>\n<p class=\"soft\">task ");
    html_escape(t, g->task);
    eval_text_add(t, ", model ");
    html_escape(t, g->model[0] != '\0' ? g->model : NULL);
    eval_text_add(t, "</p>\n");
    add_settings(t, g);
    add_matrix(t, r, g);
    add_charts(t, r, g);
    add_grid_maps(t, r, g);
    add_kept_maps(t, r, g);
    eval_text_add(t, "</section>\n");
}

/* ---- the table ---- */

static void add_value(struct eval_text *t, const struct report *r, const struct report_cell *c,
                      const struct report_point *p)
{
    char buf[32];
    const struct report_metric *m = r->groups[c->group].metric;
    eval_text_printf(t, "<td class=\"soft\">%s</td>", m != NULL ? m->name : SVG_DASH);
    eval_text_printf(t, "<td>%s</td>", figure_plain(p->value, buf));
    eval_text_printf(t, "<td class=\"soft\">%s", figure_plain(p->low, buf));
    if (!isnan(p->low))
        eval_text_printf(t, " to %s", figure_plain(p->high, buf));
    eval_text_add(t, "</td>");
}

static bool has_map(const struct report *r, const struct report_cell *c)
{
    return report_has_kept(c) || report_has_grid(r, &r->points[c->point]);
}

/* "12.5%", a dash where the results do not tell. */
static const char *figure_read(double share, char *buf)
{
    if (isnan(share))
        return SVG_DASH;
    snprintf(buf, 32, "%.3g%%", 100.0 * share);
    return buf;
}

static void add_row(struct eval_text *t, const struct report *r, int32_t index)
{
    char buf[32];
    const struct report_cell *c = &r->cells[index];
    struct report_point p = {0};
    report_measure(r->groups[c->group].metric, c, 1, &p);
    eval_text_printf(t, "<tr id=\"r%d\"><td class=\"t\"><a href=\"#g%d\">", index + 1,
                     c->group + 1);
    html_escape(t, r->groups[c->group].title);
    eval_text_add(t, "</a></td><td class=\"t policy\">");
    html_escape(t, r->policies[c->policy].name);
    eval_text_add(t, "</td><td>");
    html_escape(t, c->budget.text[0] != '\0' ? c->budget.text : NULL);
    eval_text_printf(t, "</td><td>%s</td>", c->seed[0] != '\0' ? c->seed : SVG_DASH);
    eval_text_printf(t, "<td>%s</td>", figure_count(p.n, buf));
    add_value(t, r, c, &p);
    eval_text_printf(t, "<td>%s</td>", figure_bytes(p.kv_bytes, buf));
    eval_text_printf(t, "<td>%s</td>", figure_plain(p.tokens_per_s, buf));
    eval_text_printf(t, "<td>%s</td>", figure_count(p.evicted, buf));
    eval_text_printf(t, "<td>%s</td>", figure_count(p.rounds, buf));
    eval_text_printf(t, "<td>%s</td>", figure_read(p.read_share, buf));
    eval_text_printf(t, "<td>%s</td>", figure_plain(p.prompt_s, buf));
    eval_text_printf(t, "<td>%s</td><td>", figure_plain(p.recall_s, buf));
    if (has_map(r, c))
        eval_text_printf(t, "<a href=\"#m%d\">map</a>",
                         (report_has_kept(c) ? index : r->points[c->point].first_cell) + 1);
    eval_text_add(t, "</td></tr>\n");
}

static void add_table(struct eval_text *t, const struct report *r)
{
    eval_text_add(
        t, "<section>\n<h2 id=\"table\">All results</h2>\n<div class=\"table\"><table>\n"
           "<thead><tr><th class=\"t\">task</th><th class=\"t\">policy</th>"
           "<th>budget</th><th>seed</th><th>items</th><th>measure</th><th>value</th><th>95%</th>"
           "<th>KV peak</th><th>tokens/s</th><th>evicted</th><th>rounds</th>"
           "<th>read</th><th>prompt s</th><th>recall s</th><th></th></tr></thead>\n<tbody>\n");
    for (int32_t i = 0; i < r->n_cell; i++)
        add_row(t, r, i);
    eval_text_add(t, "</tbody></table></div> <p class=\"soft\">KV peak: most bytes of KV memory in "
                     "use at once.\n"
                     "Evicted: entries dropped, summed over layers, heads and texts. Rounds: times "
                     "that the policy\n"
                     "chose what to drop. Read: of the entries that lay in the cache when tokens "
                     "were evaluated,\n"
                     "those that attention read. Prompt: seconds to read the prompt of an item. "
                     "Recall: the part\n"
                     "of them in which evicted entries were remembered and those that come back "
                     "were chosen.</p>\n"
                     "</section>\n");
}

/* ---- the page ---- */

pith_status eval_report(const char *const *paths, int32_t n_path, struct eval_text *html,
                        struct eval_report_notes *notes, pith_error *err)
{
    struct report r = {0};
    pith_status status = report_read(paths, n_path, &r, err);
    if (status != PITH_OK)
        return status;
    add_head(html, &r);
    for (int32_t i = 0; i < r.n_group; i++)
        add_group(html, &r, i);
    add_table(html, &r);
    eval_text_add(html, "</main>\n<script>\n");
    add_lines(html, report_script);
    eval_text_add(html, "</script>\n</body>\n</html>\n");
    if (notes != NULL)
        *notes = (struct eval_report_notes){r.n_cell, r.n_superseded, r.n_ignored, r.n_cut};
    report_free(&r);
    if (html->failed)
        return eval_fail(err, PITH_NOMEM, "no memory for the page of a report");
    return PITH_OK;
}
