/* report_chart.h - the drawings of a report, one function each; report_html.c puts them on a page.
 */
#ifndef PI_EVAL_REPORT_CHART_H
#define PI_EVAL_REPORT_CHART_H

#include "report_svg.h"

/* Whether a group has a point with a figure and a budget of a kind. */
bool report_has_budget(const struct report *r, const struct report_group *g,
                       enum report_budget_kind kind);

/* A group's figure against budgets of one kind. Each policy is a line with error bars, and each
   policy without a budget a dashed line with its interval. */
void report_budget_chart(struct eval_text *t, const struct report *r, const struct report_group *g,
                         enum report_budget_kind kind);

enum report_cost { REPORT_COST_MEMORY, REPORT_COST_SPEED, REPORT_COST_READ, REPORT_COSTS };

/* Whether two of a group's points at least have a figure and that cost; of the share that was read
   two that differ. */
bool report_has_cost(const struct report *r, const struct report_group *g, enum report_cost cost);
/* A group's figure against what it cost: a mark per point, named by its budget. */
void report_cost_chart(struct eval_text *t, const struct report *r, const struct report_group *g,
                       enum report_cost cost);

/* Whether a group's figure is a share, and two policies at least have it, one of them at a budget.
 */
bool report_has_matrix(const struct report *r, const struct report_group *g);
/* The score of every policy (down) at every budget (across). Each budget has a column for each
   value in which the rows of the task differ: steps, parts, length or task. */
void report_matrix(struct eval_text *t, const struct report *r, const struct report_group *g);

/* Whether a point's rows have a length, a depth and a verdict. */
bool report_has_grid(const struct report *r, const struct report_point *p);
/* Mean score by depth (down) and length (across), with the figures written in. */
void report_grid_map(struct eval_text *t, const struct report *r, const struct report_point *p);

/* Whether a cell's rows say which positions were kept. */
bool report_has_kept(const struct report_cell *c);
/* Kept positions over time, one panel per layer (down) and KV head (across). */
void report_kept_map(struct eval_text *t, const struct report *r, const struct report_cell *c);

/* A policy with its budget, "streaming:sinks=4 at 128"; buf [cap]; returns buf. */
const char *report_name(const struct report *r, int32_t policy, const struct report_budget *budget,
                        char *buf, size_t cap);

#endif
