/*
 * loki_fit.h - finds Loki's bases from the keys of a pass. engine/project.c decides which tokens
 * are evaluated.
 */
#ifndef PI_READ_LOKI_FIT_H
#define PI_READ_LOKI_FIT_H

#include "model/shape.h"
#include "policy/read/projection.h"
#include "pith/calibrate.h"
#include "pith/inspect.h"

/* Sums over the keys of every layer and KV head, in double. One thread at a time uses it, and its
   workers through it. */
struct loki_fit;

/* keys as pith_projection_params has them. NOMEM. */
pith_status loki_fit_create(const struct pith_model *model, pith_projection_keys keys,
                            int32_t n_thread, struct loki_fit **out, pith_error *err);
void loki_fit_free(struct loki_fit *f);

/* The keys of these rows. The order of tokens within a layer is what counts, not how rows cut
   them. */
void loki_fit_add(struct loki_fit *f, const pith_tap_rows *rows);

/* The bases of the keys that were added, checked, with the names of model and text (NULL: "").
   progress (may be NULL) gets the share of the heads that are done. FORMAT where a key was no
   number; CANCELLED when progress says so; NOMEM. */
pith_status loki_fit_finish(const struct loki_fit *f, const char *text, pith_progress_fn *progress,
                            void *user, struct pith_projection **out, pith_error *err);

#endif
