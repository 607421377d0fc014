/*
 * random_stats.h - statistics of a model's shape for the TriAttention policies, whose directions
 * and concentrations are random: the time of a score does not depend on them.
 */
#ifndef BENCH_RANDOM_STATS_H
#define BENCH_RANDOM_STATS_H

#include "pith/pith.h"

/* Writes a new file in the directory for temporary files; path [cap] gets its name, and the caller
   removes it. IO, NOMEM. */
pith_status random_stats_write(const pith_model *model, char *path, size_t cap, pith_error *err);

#endif
