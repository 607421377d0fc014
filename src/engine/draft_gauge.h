/*
 * draft_gauge.h - decides whether a draft pays, and its best length, from the measured times of
 * passes and drafts. It decides how many tokens are drafted, and never which token comes next. So
 * times may differ from run to run, and texts do not. It knows neither tokens nor sequences.
 *
 * Let p be the chance that a drafted token comes true behind others that did. Then a draft of k
 * tokens gives 1 + p + ... + p^k tokens in place of one. A pass of n rows takes c(n) times as long
 * as one of one row, and drafting a token takes `each` of these. Where m sequences have their
 * tokens in the pass anyway:
 *
 *   gain(k) = (m + p + ... + p^k) / m * c(m) / (c(m + k) + k each)
 */
#ifndef PI_DRAFT_GAUGE_H
#define PI_DRAFT_GAUGE_H

#include <stdbool.h>
#include <stdint.h>

#define DRAFT_MOST 63 /* tokens of a draft */

/* Times of passes in a generation or in a scheduler. Seconds are those that the thread computed,
   so that other programs do not count. */
struct draft_cost {
    double one_s;                   /* of a pass of one row; 0: not known yet */
    double times[DRAFT_MOST + 2];   /* [rows] measured over guessed; 0: not known yet */
    uint8_t n_seen[DRAFT_MOST + 2]; /* so often, up to some */
};

/* After a pass of n rows, each of another position or sequence. */
void draft_cost_note(struct draft_cost *c, int32_t n_row, double seconds);

/* c(n). Of a number of rows that was not measured, by the nearest that was. */
double draft_cost_rows(const struct draft_cost *c, int32_t n_row);

/* Sources of drafts that are judged apart: by how much matched, and where (draft_lookup.h), and the
   model. */
enum { DRAFT_N_LOOKUP_KIND = 12, DRAFT_KIND_MODEL = DRAFT_N_LOOKUP_KIND, DRAFT_N_KIND };

struct draft_gauge {
    double came[DRAFT_N_KIND];    /* drafted tokens that came true, old ones for less */
    double tried[DRAFT_N_KIND];   /* and all of which that is known */
    double all_came, all_guessed; /* of all lookups, what came true and what was guessed of it */
    double each_s;                /* seconds that the model takes for a token of a draft */
    /* [lookup, model] */
    int32_t pause[2];   /* tokens between two tries that do not seem to pay */
    int32_t n_since[2]; /* tokens since the last one */
};

void draft_gauge_start(struct draft_gauge *g);

/* The chance of a drafted token of a kind. */
double draft_gauge_chance(const struct draft_gauge *g, int kind);

/* The best length of a draft of at most n tokens, beside n_row rows that are there anyway. *gain
   is 1 where the length is 0. each: of drafting a token, as a part of a pass of one row. */
int32_t draft_gauge_best(double chance, const struct draft_cost *c, double each, int32_t n_row,
                         int32_t n, double *gain);

/* The same with what the gauge knows; where it seems not to pay, a short draft once in a while. */
int32_t draft_gauge_plan(struct draft_gauge *g, const struct draft_cost *c, int kind, double each,
                         int32_t n_row, int32_t n, double *gain);

/* A draft of n tokens was tried, of which the first n_came came true; n 0: a token came without. */
void draft_gauge_note(struct draft_gauge *g, int kind, int32_t n, int32_t n_came);

/* The model took this long for n tokens of drafts; guess_s: the guess for one. */
void draft_gauge_note_each(struct draft_gauge *g, int32_t n, double seconds, double guess_s);

#endif
