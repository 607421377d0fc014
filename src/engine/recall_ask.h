/* recall_ask.h - the part of recall that runs within a pass, for recall.c alone. */
#ifndef PI_ENGINE_RECALL_ASK_H
#define PI_ENGINE_RECALL_ASK_H

#include "engine/engine.h"

static inline size_t pi_recall_lane(const struct pith_engine *e, int32_t layer, int32_t head)
{
    return (size_t)layer * (size_t)kv_cache_geometry(e->kv)->n_head + (size_t)head;
}

/* Floats of the queries of a lane's group, of one token. */
size_t pi_recall_group_len(const struct pith_engine *e);
/* Chooses the guests of a lane by the queries that are remembered of it. */
void pi_recall_choose_lane(struct pith_seq *seq, int32_t layer, int32_t head, int32_t n_tok,
                           int32_t pos0, int32_t thread);
struct pi_pass_recaller pi_recall_recaller(struct pith_engine *e);

#endif
