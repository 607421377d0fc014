/*
 * report.c - a report as the JSON that page/sheet.js draws: policies, groups with their points, and
 * the cells with what maps need of their rows.
 */
#include "report.h"

#include <math.h>
#include <stdlib.h>

#include "report_data.h"
#include "sheet.h"

static json_t *figure(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *budget_json(const struct report_budget *b)
{
    static const char *const kinds[REPORT_BUDGET_KINDS] = {NULL, "tokens", "share", "bytes"};
    if (b->kind == REPORT_BUDGET_NONE)
        return json_null();
    return json_pack("{s:s, s:o, s:s}", "kind", kinds[b->kind], "value", figure(b->value), "text",
                     b->text);
}

/* Points and cells have these in common. */
static json_t *measured_json(const struct report_point *p)
{
    return json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "policy",
                     p->policy, "budget", budget_json(&p->budget), "n", figure(p->n), "value",
                     figure(p->value), "low", figure(p->low), "high", figure(p->high), "kv_bytes",
                     figure(p->kv_bytes), "tokens_per_s", figure(p->tokens_per_s), "evicted",
                     figure(p->evicted), "rounds", figure(p->rounds), "read_share",
                     figure(p->read_share), "prompt_s", figure(p->prompt_s), "recall_s",
                     figure(p->recall_s));
}

/* A row's score and number of texts, and what maps are drawn by. Rows of several policies, which
   name theirs, have no map of kept positions: they would lie on one another. */
static json_t *row_json(const json_t *row)
{
    static const char *const keys[] = {"length", "depth", "steps", "parts",   "task",
                                       "tokens", "layer", "head",  "entries", "kept"};
    json_t *out = json_pack("{s:o, s:o}", "score", figure(results_score(row)), "n",
                            figure(results_texts(row)));
    size_t n = sizeof(keys) / sizeof(keys[0]) - (json_object_get(row, "policy") != NULL);
    for (size_t i = 0; i < n; i++)
        if (json_object_get(row, keys[i]) != NULL)
            json_object_set(out, keys[i], json_object_get(row, keys[i]));
    return out;
}

static json_t *cell_json(const struct report *r, const struct report_cell *c)
{
    struct report_point p = {.policy = c->policy, .budget = c->budget};
    size_t i;
    json_t *row, *rows = json_array();
    json_array_foreach(json_object_get(c->result, "rows"), i, row)
        json_array_append_new(rows, row_json(row));
    report_measure(r->groups[c->group].metric, c, 1, &p);
    json_t *out = measured_json(&p);
    json_t *more =
        json_pack("{s:i, s:s, s:o, s:O*, s:O*, s:o}", "group", c->group, "seed", c->seed, "file",
                  sheet_text(c->file), "run", c->run, "engine",
                  json_object_get(json_object_get(c->result, "cell"), "engine"), "rows", rows);
    json_object_update(out, more);
    json_decref(more);
    return out;
}

static json_t *point_json(const struct report_point *p)
{
    json_t *out = measured_json(p);
    json_object_set_new(out, "first", json_integer(p->first_cell));
    json_object_set_new(out, "n_cell", json_integer(p->n_cell));
    return out;
}

static json_t *group_json(const struct report *r, const struct report_group *g)
{
    const struct report_metric *m = g->metric;
    json_t *points = json_array();
    for (int32_t i = 0; i < g->n_point; i++)
        json_array_append_new(points, point_json(&r->points[g->first_point + i]));
    json_t *metric = m == NULL ? json_null()
                               : json_pack("{s:s, s:s, s:s, s:b}", "name", m->name, "title",
                                           m->title, "note", m->note, "share", m->share);
    return json_pack("{s:o, s:s, s:s, s:O*, s:o, s:o}", "title", sheet_text(g->title), "task",
                     g->task, "model", g->model, "settings", g->settings, "metric", metric,
                     "points", points);
}

static json_t *report_json(const struct report *r)
{
    json_t *policies = json_array(), *groups = json_array(), *cells = json_array();
    for (int32_t i = 0; i < r->n_policy; i++) {
        const struct report_policy *p = &r->policies[i];
        json_array_append_new(policies, json_pack("{s:o, s:b, s:i}", "name", sheet_text(p->name),
                                                  "full", p->full, "slot", p->slot));
    }
    for (int32_t i = 0; i < r->n_group; i++)
        json_array_append_new(groups, group_json(r, &r->groups[i]));
    for (int32_t i = 0; i < r->n_cell; i++)
        json_array_append_new(cells, cell_json(r, &r->cells[i]));
    if (json_array_size(policies) < (size_t)r->n_policy ||
        json_array_size(groups) < (size_t)r->n_group || json_array_size(cells) < (size_t)r->n_cell)
        return NULL;
    return json_pack("{s:s, s:i, s:i, s:o, s:o, s:o}", "type", "report", "n_superseded",
                     r->n_superseded, "n_ignored", r->n_ignored + r->n_cut, "policies", policies,
                     "groups", groups, "cells", cells);
}

pith_status eval_report(const char *const *paths, int32_t n_path, struct eval_text *html,
                        struct eval_report_notes *notes, pith_error *err)
{
    struct report r = {0};
    pith_status status = report_read(paths, n_path, &r, err);
    if (status != PITH_OK)
        return status;
    if (notes != NULL)
        *notes = (struct eval_report_notes){r.n_cell, r.n_superseded, r.n_ignored, r.n_cut};
    status = sheet_write(report_json(&r), html, err);
    report_free(&r);
    return status;
}
