/*
 * calibrate.h - gathers calibration statistics from the rows of a pass. engine/calibrate.c decides
 * which tokens are evaluated.
 */
#ifndef PI_KEEP_CALIBRATE_H
#define PI_KEEP_CALIBRATE_H

#include "model/shape.h"
#include "policy/keep/stats/stats.h"
#include "pith/calibrate.h"
#include "pith/inspect.h"

/* Sums over the queries of every layer, in double. One thread at a time uses it. */
struct calibration;

/* n_select: queries per head that will be added, at most; of them n_sample, evenly spaced, are kept
   for n_centre > 1 centres. INVALID, NOMEM. */
pith_status calibration_create(const struct pith_model *model, int32_t n_centre, int32_t n_sample,
                               int64_t n_select, struct calibration **out, pith_error *err);
void calibration_free(struct calibration *c);

/* The tokens of these rows with select[i] (NULL: all of them). Keys are turned back by their
   positions. The order of tokens within a layer is what counts, not how rows cut them. */
void calibration_add(struct calibration *c, const pith_tap_rows *rows, const uint8_t *select);

/* How centres are found: on n_thread threads, which changes no result. progress (may be NULL) gets
   the share of the heads that are done. */
struct calibration_search {
    uint64_t seed;
    int32_t n_thread;
    pith_progress_fn *progress;
    void *progress_user;
};

/* The statistics of the rows that were added: checked, without names of model and text. FORMAT when
   nothing was added, a query is no number, or no query is anything but zero; CANCELLED when
   progress says so; NOMEM. */
pith_status calibration_finish(const struct calibration *c, const struct calibration_search *how,
                               struct pith_stats **out, pith_error *err);

#endif
