/*
 * places.c - where entries stand in the text, for policies whose distances are between places
 * within the lane (KEEP_NEED_PLACES). A round moves the first entries of a lane right before the
 * others.
 */
#include "policy/keep/rules/rounds.h"

int32_t keep_count_shifted(const struct kv_seq *kv, int32_t layer, int32_t head)
{
    int32_t n = 0;
    for (int32_t i = 0; i < kv_lane_runs(kv, layer, head); i++) {
        struct kv_run run = kv_lane_run(kv, layer, head, i);
        if (run.delta == 0)
            break;
        n += run.n;
    }
    return n;
}

void keep_positions(const struct keep *k, const struct kv_seq *kv, int32_t layer, int32_t head,
                    int32_t *out, int32_t n)
{
    if (k != NULL && keep_config_places(&k->config))
        kv_lane_written(kv, layer, head, out, n);
    else
        kv_lane_positions(kv, layer, head, out, n);
}

int32_t keep_position(const struct keep *k, const struct kv_seq *kv, int32_t layer, int32_t head,
                      int32_t slot)
{
    if (k != NULL && keep_config_places(&k->config))
        return kv_lane_written_pos(kv, layer, head, slot);
    return kv_lane_pos(kv, layer, head, slot);
}

/* Shifted entries go back to their own positions, lose the ones that are to go, and are shifted by
   the gap that is left then. That may be one before the next token. */
void keep_truncate(struct keep *k, struct kv_seq *kv, int32_t n_token)
{
    int32_t n_lane = 0;
    if (k != NULL && keep_config_places(&k->config))
        n_lane = k->model.g.n_layer * k->model.g.n_head;
    for (int32_t i = 0; i < n_lane; i++) {
        int32_t l = i / k->model.g.n_head, h = i % k->model.g.n_head;
        k->cut[i] = (struct kv_cut){.layer = l, .head = h, .n = keep_count_shifted(kv, l, h)};
        kv_seq_shift(kv, l, h, k->cut[i].n, 0);
    }
    kv_seq_truncate(kv, n_token);
    for (int32_t i = 0; i < n_lane; i++) {
        int32_t l = k->cut[i].layer, h = k->cut[i].head, len = kv_lane_len(kv, l, h);
        int32_t n = (int32_t)pi_min(k->cut[i].n, len);
        int32_t next = n < len ? kv_lane_written_pos(kv, l, h, n) : n_token;
        if (n > 0)
            kv_seq_shift(kv, l, h, n, next - 1 - kv_lane_written_pos(kv, l, h, n - 1));
    }
}
