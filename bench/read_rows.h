/*
 * read_rows.h - the answers of bench_read: one row for each thing that was measured,
 * as a table for people or as CSV.
 */
#ifndef BENCH_READ_ROWS_H
#define BENCH_READ_ROWS_H

#include <stdbool.h>
#include <stdint.h>

/* Seconds of a chunk: full attention; choosing; attending to the chosen entries. Then queries,
   scores and the choice by themselves, and full attention over as many entries as were chosen. */
enum figure { DENSE, CHOOSE, ATTEND, SELECT, SCORE, TOP, ALONE, N_FIGURE };

/* NAN: does not apply. */
struct row {
    const char *table;
    char setting[80];
    int32_t entries;
    double dense;  /* seconds of full attention, and .. */
    double sparse; /* .. under the policy */
    double goal;   /* of dense / sparse */
    double part[N_FIGURE];
    double peak;    /* share of the machine's peak that full attention reaches */
    double share;   /* of the entries that were read */
    double index;   /* bytes beside keys and values, in percent of them */
    double overlap; /* share of the chosen entries that exact scores choose too */
};

/* A row in which nothing applies yet. table is borrowed. */
struct row row_of(const char *table, const char *setting, int32_t entries);

void row_print_head(bool csv);
void row_print(const struct row *r, bool csv);

#endif
