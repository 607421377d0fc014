/* read_rows.c - prints what bench_read measured, times in milliseconds. */
#include "read_rows.h"

#include <math.h>
#include <stdio.h>

struct row row_of(const char *table, const char *setting, int32_t entries)
{
    struct row r = {.table = table,
                    .entries = entries,
                    .dense = NAN,
                    .sparse = NAN,
                    .goal = NAN,
                    .peak = NAN,
                    .share = NAN,
                    .index = NAN,
                    .overlap = NAN};
    snprintf(r.setting, sizeof(r.setting), "%s", setting);
    for (int i = 0; i < N_FIGURE; i++)
        r.part[i] = NAN;
    return r;
}

static const char *const columns =
    "table,setting,entries,dense_ms,sparse_ms,times,goal,select_ms,score_ms,top_ms,gather_ms,"
    "attend_ms,peak_share,read_share,index_pct,overlap";

void row_print_head(bool csv)
{
    if (csv)
        puts(columns);
    else
        printf("%-8s %-26s %7s %9s %9s %6s %5s  %7s %7s %7s %7s %7s  %5s %5s %6s %7s\n", "table",
               "setting", "entries", "dense,ms", "part,ms", "times", "goal", "select", "score",
               "top", "gather", "attend", "peak", "read", "index", "overlap");
}

/* A figure, and nothing where there is none. */
static void print_cell(bool csv, int width, int digits, double value)
{
    if (csv && isnan(value))
        printf(",");
    else if (csv)
        printf(",%.6g", value);
    else if (isnan(value))
        printf(" %*s", width, "");
    else
        printf(" %*.*f", width, digits, value);
}

void row_print(const struct row *r, bool csv)
{
    printf(csv ? "%s,\"%s\",%d" : "%-8s %-26s %7d", r->table, r->setting, r->entries);
    print_cell(csv, 9, 3, 1e3 * r->dense);
    print_cell(csv, 9, 3, 1e3 * r->sparse);
    print_cell(csv, 6, 2, r->dense / r->sparse);
    print_cell(csv, 5, 1, r->goal);
    if (!csv)
        printf(" ");
    print_cell(csv, 7, 3, 1e3 * r->part[SELECT]);
    print_cell(csv, 7, 3, 1e3 * r->part[SCORE]);
    print_cell(csv, 7, 3, 1e3 * r->part[TOP]);
    bool apart = !isnan(r->part[ALONE]); /* else the gather is part of attention */
    print_cell(csv, 7, 3, apart ? 1e3 * (r->part[ATTEND] - r->part[ALONE]) : NAN);
    print_cell(csv, 7, 3, 1e3 * r->part[apart ? ALONE : ATTEND]);
    if (!csv)
        printf(" ");
    print_cell(csv, 5, 2, r->peak);
    print_cell(csv, 5, 3, r->share);
    print_cell(csv, 6, 2, r->index);
    print_cell(csv, 7, 4, r->overlap);
    putchar('\n');
    fflush(stdout);
}
