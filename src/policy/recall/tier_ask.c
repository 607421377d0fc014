/*
 * tier_ask.c - scores of the tier's entries on the device that has them (kv/asked.h). All questions
 * of a layer go together. It moves nothing and decides nothing. Invariant: as tier_attend.c's,
 * whose formula it is. The bits are the device's.
 */
#include "kv/asked.h"
#include "policy/recall/tier.h"

static const struct recall_row *row_of(const struct recall_store *store,
                                       const struct recall_query *query)
{
    return &store->row[query->layer * store->tier->model.g.n_head + query->head];
}

static const struct recall_part *part_of(const struct recall_tier *tier, int32_t layer)
{
    return &tier->part[tier->shelf[layer * tier->model.g.n_head].part];
}

bool recall_store_has(const struct recall_store *store, int32_t layer, int32_t head)
{
    const struct recall_row *row =
        row_of(store, &(struct recall_query){.layer = layer, .head = head});
    return kv_lane_len(row->kv, 0, 0) > 0 || row->n_ref > 0;
}

bool recall_can_ask(const struct recall_store *store, const struct recall_query *query)
{
    const struct recall_tier *tier = store->tier;
    const struct recall_row *row = row_of(store, query);
    const struct kv_seq *own = query->own;
    if (tier->o.score != RECALL_ATTENTION || !pi_at_some(query->q_at) ||
        part_of(tier, query->layer)->stream == NULL || row->n_ref > 0 || tier->value == NULL ||
        kv_lane_len(row->kv, 0, 0) == 0)
        return false;
    /* The queries' own tokens are the lane's last, and all else is before them. */
    int32_t n = own != NULL ? kv_lane_len(own, query->layer, query->head) : 0,
            first = n - query->n_tok;
    return own != NULL && first >= 0 &&
           kv_lane_written_pos(own, query->layer, query->head, first) == query->pos0 &&
           kv_lane_written_pos(own, query->layer, query->head, n - 1) ==
               query->pos0 + query->n_tok - 1;
}

pith_status recall_ask_reserve(struct recall_tier *tier, int32_t n_entry, pith_error *err)
{
    bool some = false;
    for (int32_t i = 0; i < tier->n_part; i++)
        some = some || tier->part[i].stream != NULL;
    if (!some || tier->value != NULL || tier->o.score != RECALL_ATTENTION)
        return PITH_OK;
    tier->value =
        pi_mem_map(PI_MEM_SCRATCH, RECALL_ASK_MOST * (size_t)n_entry * sizeof(*tier->value));
    tier->n_value = tier->value != NULL ? (size_t)n_entry : 0;
    return tier->value != NULL
               ? PITH_OK
               : pi_fail(err, PITH_NOMEM, "no memory for scores of evicted entries");
}

/* Questions [n], RECALL_ASK_MOST at most. */
static void ask_some(struct recall_tier *tier, struct recall_ask *ask, int32_t n)
{
    struct kv_asked_job jobs[RECALL_ASK_MOST];
    const struct policy_model *m = &tier->model;
    struct pi_stream *stream = part_of(tier, ask->query.layer)->stream;
    bool misses = ask->guests != NULL;
    for (int32_t i = 0; i < n; i++) {
        const struct recall_query *query = &ask[i].query;
        const struct recall_row *row = row_of(ask[i].store, query);
        jobs[i] = (struct kv_asked_job){.own = query->own,
                                        .layer = query->layer,
                                        .head = query->head,
                                        .stored = row->kv,
                                        .guests = ask[i].guests,
                                        .pick = {.how = KV_PICK_ALL,
                                                 .q = query->q_at,
                                                 .stride = query->q_stride,
                                                 .n_tok = query->n_tok,
                                                 .n_group = query->n_group,
                                                 .n = query->n_tok,
                                                 .factor = m->scale},
                                        .rope = policy_rope(m, query->layer),
                                        .centre = recall_row_centre(row),
                                        .sums = tier->o.combine == RECALL_SUM,
                                        .out = tier->value + (size_t)i * tier->n_value};
    }
    stream->device->asked(stream, &(struct kv_asked_list){.jobs = jobs, .n = n, .misses = misses});
    for (int32_t i = 0; i < n; i++) {
        ask[i].query.value = misses ? NULL : jobs[i].out;
        ask[i].missed = misses ? jobs[i].missed : 0.0f;
    }
}

void recall_tier_ask(struct recall_tier *tier, struct recall_ask *ask, int32_t n)
{
    for (int32_t i = 0; i < n; i += RECALL_ASK_MOST)
        ask_some(tier, ask + i, (int32_t)pi_min(RECALL_ASK_MOST, n - i));
}
