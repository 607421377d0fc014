/* calibrate_importance.h - the part of `pith calibrate` that learns how important entries are. */
#ifndef CALIBRATE_IMPORTANCE_H
#define CALIBRATE_IMPORTANCE_H

#include "session.h"
#include "pith/calibrate.h"

/* The texts that importance is learnt from. */
struct importance_source {
    const struct option_texts *files;
    const struct option_texts *keep; /* policies whose scores are mapped */
    int32_t n_piece;                 /* pieces of each file, at most */
    int32_t piece_len;               /* tokens of a piece */
    bool hidden;
    const char *resume; /* where a run that is stopped leaves what it learnt; NULL: nowhere */
};

/* Learns from pieces of the files, writes the statistics to path and prints how well they predict,
   unless quiet. The session's model is loaded; starts its engine. */
void importance_write(struct session *s, const struct model_options *m,
                      const struct memory_options *memory, const struct importance_source *from,
                      bool progress, bool quiet, const char *path);

/* Prints the importance of statistics that have one. */
void importance_print(const pith_stats *stats);

#endif
