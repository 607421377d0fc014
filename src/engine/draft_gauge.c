/*
 * draft_gauge.c - the numbers behind drafts (draft_gauge.h). Invariant: every estimate moves a part
 * of the way to the last value. So a single odd time or lucky draft changes little. A text that
 * turns from copying to writing is noticed within some tens of tokens.
 */
#include "engine/draft_gauge.h"

#include "base/base.h"

/* Q4_K with one thread takes 1.0 times for 2 rows, 1.35 for 4, 2.3 for 8, 4.6 for 16. A small model
   takes 1.3 times for 2. */
#define ROW_GUESS 0.2
#define ODD 2.0 /* a time that is more times off what was thought counts as this many times */
#define ROWS_MOST (DRAFT_MOST + 1)
#define STEP (1.0 / 8) /* of the way to a new time */
#define FADE 0.97      /* what older tokens count for with each new one */
#define GUESSED 3.0    /* tokens that a first guess counts for */
#define PAYS 1.05      /* gain from which on drafting is taken to pay */
#define TRY_LEN 2      /* tokens of a draft that is a try */
#define LEN_FIRST 3    /* tokens of a draft of a kind of which none came true yet */
#define PAUSE_FIRST 48
#define PAUSE_MOST 1024

/* First guesses. A lookup's kind: 0, 1, 2, 3, 4 to 7, 8 or more tokens matched. There is one far
   from where the last draft was taken from, and the same near it. */
static const double guess[DRAFT_N_KIND] = {
    0.0,  0.08, 0.15, 0.3, 0.5,  0.8,  /* far */
    0.15, 0.3,  0.45, 0.6, 0.75, 0.88, /* near */
    0.7,                               /* the model */
};

/* ---- passes ---- */

static double guess_rows(int32_t n_row)
{
    return 1.0 + ROW_GUESS * (n_row - 1);
}

double draft_cost_rows(const struct draft_cost *c, int32_t n_row)
{
    int32_t n = (int32_t)pi_min(n_row, ROWS_MOST);
    double times = 1.0;
    if (n_row < 2)
        return 1.0;
    for (int32_t far = 0; far < ROWS_MOST; far++) {
        int32_t below = n - far >= 2 ? n - far : 0, above = n + far <= ROWS_MOST ? n + far : 0;
        times = c->times[below] > 0.0 ? c->times[below] : c->times[above];
        if (times > 0.0)
            break;
    }
    return guess_rows(n_row) * (times > 0.0 ? times : 1.0);
}

/* An interrupted pass is no measure, so that a single time moves an estimate by little. */
static double closer(double before, double seen, double step)
{
    seen = seen > ODD * before ? ODD * before : seen < before / ODD ? before / ODD : seen;
    return before + step * (seen - before);
}

void draft_cost_note(struct draft_cost *c, int32_t n_row, double seconds)
{
    if (seconds <= 0.0 || n_row > ROWS_MOST)
        return;
    if (n_row == 1) {
        c->one_s = c->one_s > 0.0 ? closer(c->one_s, seconds, STEP) : seconds;
        return;
    }
    if (c->one_s <= 0.0) { /* as good a guess as there is */
        c->one_s = seconds / draft_cost_rows(c, n_row);
        return;
    }
    double before = draft_cost_rows(c, n_row) / guess_rows(n_row);
    double step = 1.0 / (2 + c->n_seen[n_row]); /* the first guess counts as one time */
    c->n_seen[n_row] += step > STEP;
    c->times[n_row] =
        closer(before, seconds / c->one_s / guess_rows(n_row), step > STEP ? step : STEP);
}

/* ---- drafts ---- */

void draft_gauge_start(struct draft_gauge *g)
{
    *g = (struct draft_gauge){.pause = {PAUSE_FIRST, PAUSE_FIRST}};
}

/* Where a text makes fewer drafts true than was guessed, that is said of kinds that were not tried,
   too. */
double draft_gauge_chance(const struct draft_gauge *g, int kind)
{
    double all = (g->all_came + GUESSED) / (g->all_guessed + GUESSED);
    double first = guess[kind] * (kind < DRAFT_N_LOOKUP_KIND && all < 1.0 ? all : 1.0);
    return (g->came[kind] + GUESSED * first) / (g->tried[kind] + GUESSED);
}

int32_t draft_gauge_best(double chance, const struct draft_cost *c, double each, int32_t n_row,
                         int32_t n, double *gain)
{
    double alone = draft_cost_rows(c, n_row), all = n_row, next = 1.0;
    int32_t best = 0;
    *gain = 1.0;
    for (int32_t k = 1; k <= n; k++) {
        next *= chance;
        all += next;
        double of_k = all / n_row * alone / (draft_cost_rows(c, n_row + k) + k * each);
        if (of_k > *gain) {
            *gain = of_k;
            best = k;
        }
    }
    return best;
}

int32_t draft_gauge_plan(struct draft_gauge *g, const struct draft_cost *c, int kind, double each,
                         int32_t n_row, int32_t n, double *gain)
{
    int32_t by = kind == DRAFT_KIND_MODEL,
            known = LEN_FIRST + (int32_t)g->came[kind]; /* a long one that fails costs much */
    n = (int32_t)pi_min(n, known);
    int32_t best = draft_gauge_best(draft_gauge_chance(g, kind), c, each, n_row, n, gain);
    if (*gain >= PAYS)
        return best;
    *gain = 1.0;
    if (n < 1 || g->n_since[by] < g->pause[by])
        return 0;
    g->n_since[by] = 0;
    g->pause[by] = (int32_t)pi_min(2 * g->pause[by], PAUSE_MOST);
    return (int32_t)pi_min(n, TRY_LEN);
}

void draft_gauge_note(struct draft_gauge *g, int kind, int32_t n, int32_t n_came)
{
    int32_t n_known = n_came < n ? n_came + 1 : n;
    for (int i = 0; i < 2; i++)
        g->n_since[i] += 1 + n_came;
    for (int32_t i = 0; i < n_known; i++) {
        g->came[kind] = FADE * g->came[kind] + (i < n_came);
        g->tried[kind] = FADE * g->tried[kind] + 1.0;
        if (kind >= DRAFT_N_LOOKUP_KIND)
            continue;
        g->all_came = FADE * g->all_came + (i < n_came);
        g->all_guessed = FADE * g->all_guessed + guess[kind];
    }
    if (n > TRY_LEN && n_came == n) /* it pays again */
        g->pause[kind == DRAFT_KIND_MODEL] = PAUSE_FIRST;
}

void draft_gauge_note_each(struct draft_gauge *g, int32_t n, double seconds, double guess_s)
{
    bool first = g->each_s <= 0.0;
    g->each_s = closer(first ? guess_s : g->each_s, seconds / n, first ? 0.5 : STEP);
}
