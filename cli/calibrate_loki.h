/* calibrate_loki.h - the part of `pith calibrate` that finds and draws Loki's bases. */
#ifndef CALIBRATE_LOKI_H
#define CALIBRATE_LOKI_H

#include "session.h"
#include "pith/calibrate.h"

/* The texts that bases are made from. */
struct loki_source {
    const struct cli_ids *ids;
    const char *text; /* its name */
    const char *keys; /* rotated or plain */
    int32_t n_ctx;    /* tokens of a piece */
};

/* Finds the bases on the session's engine, writes them to path and says so, unless quiet. */
void loki_write(const struct session *s, const struct loki_source *from, bool progress, bool quiet,
                const char *path);

/* Whether the file is one of bases, by its first bytes. */
bool loki_is_file(const char *path);

/* Draws it; model (NULL: any) is the model that it must belong to. */
void loki_inspect(const char *path, const pith_model *model);

#endif
