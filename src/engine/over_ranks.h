/*
 * over_ranks.h - an engine whose model is split over several processes (base/ranks.h). A rank sees
 * the lanes of its own KV heads, or of its own layers: what decides by other lanes, too, is
 * refused. By rows it sees all lanes of latent attention, and its own query heads: what decides by
 * queries is refused there.
 */
#ifndef PI_OVER_RANKS_H
#define PI_OVER_RANKS_H

#include "engine/engine.h"
#include "model/model.h"
#include "policy/traits/traits.h"

/* UNSUPPORTED, in one sentence that is the same on all ranks. Policies need not be fitted. */
pith_status pi_over_ranks_check(const struct pith_model *model, const struct policy_set *set,
                                const struct pi_device *device, pith_error *err);

/* By layers: what options count in layers of the whole model, edges with other types and layers
   that read everything, becomes this rank's. INVALID: edges are more than all layers. */
pith_status pi_over_ranks_fit(const struct pith_model *model, struct policy_set *set,
                              struct kv_geometry *g, pith_error *err);

/* UNSUPPORTED, of a file of a sequence. */
pith_status pi_over_ranks_check_file(pith_error *err);

/* This rank's part of bytes that are given for all. */
int64_t pi_over_ranks_part(const struct pith_model *model, int64_t bytes);

/* Of bytes for pages those that every rank has: as many pages for each KV head, by layers for each
   lane. Not so where some layers have windows, nor where lanes share a budget by their scores. Such
   ranks do not run out together (pi_over_ranks_are_alike), so that each may use all it has. */
int64_t pi_over_ranks_pages(const struct pith_model *model, const struct keep_config *keep,
                            const struct kv_geometry *g, int64_t bytes);

/* Bytes of all ranks, of which this one's part is given. */
int64_t pi_over_ranks_whole(const struct pith_model *model, int64_t bytes);

/* Whether every rank runs out of pages with all others. Not so by layers, where some have windows
   or recurrent states; nor where lanes share a budget by their scores. */
bool pi_over_ranks_are_alike(const struct pith_engine *e);

/* The status, where ranks are alike; else pi_ranks_agree of it. */
pith_status pi_over_ranks_agree(const struct pith_engine *e, pith_status status, pith_error *err);

/* Rank 0's time: what is decided by it is then the same on all. */
double pi_over_ranks_seconds(double seconds);

#endif
