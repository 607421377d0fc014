/*
 * elsewhere.c - rounds of a model that is split over several processes (base/ranks.h): lanes of
 * other ranks are scored there. Their scores come here, or scores of layers pass through all ranks.
 * Every rank then decides the same for its own lanes. It knows no policy by name.
 *
 * Invariant: scores are combined in the order of layers and heads, as in one process. So a round
 * drops the same entries on any number of ranks. Ranks come to the same rounds, because these
 * depend on numbers that all ranks have.
 */
#include "base/ranks.h"
#include "policy/keep/rules/rounds.h"

/* ---- one set, of several ranks' lanes ---- */

/* Ranks have their heads in order, and all lanes of the set hold the same positions. */
void keep_fold_heads(const struct keep *k, struct keep_set *set,
                     void (*fold)(const struct keep *k, struct keep_set *set, const float *score))
{
    size_t size[PI_RANKS_MOST], row = (size_t)set->n * sizeof(float);
    keep_find_span(set);
    if (!set->due || set->n_may_go == 0)
        return;
    assert(set->agree);
    for (int32_t r = 0; r < pi_ranks()->n_rank; r++)
        size[r] =
            (size_t)(pi_ranks_from(k->whole.n_head, r + 1) - pi_ranks_from(k->whole.n_head, r)) *
            row;
    uint8_t *own = pi_ranks_write((size_t)k->model.g.n_head * row);
    for (int32_t h = 0; h < k->model.g.n_head; h++)
        memcpy(own + (size_t)h * row, k->part[h].score, row);
    const uint8_t *all = pi_ranks_share(size);
    for (int32_t h = 0; h < k->whole.n_head; h++)
        fold(k, set, (const float *)(const void *)(all + (size_t)h * row));
}

void keep_receive_sets(const struct keep *k)
{
    for (int32_t s = 0; s < keep_round_sets(k) && k->whole.first_layer > 0; s++) {
        struct keep_set *set = &k->set[s];
        if (!set->due)
            continue;
        pi_ranks_receive(set->score, (size_t)set->n * sizeof(*set->score));
        pi_ranks_receive(set->n_of, (size_t)set->n * sizeof(*set->n_of));
    }
}

/* All are handed on before the last rank tells what came of the first. */
void keep_hand_on_sets(const struct keep *k)
{
    bool last = k->whole.first_layer + k->model.g.n_layer == k->whole.n_layer;
    for (int32_t s = 0; s < keep_round_sets(k) && !last; s++) {
        const struct keep_set *set = &k->set[s];
        if (!set->due)
            continue;
        pi_ranks_hand_on(set->score, (size_t)set->n * sizeof(*set->score));
        pi_ranks_hand_on(set->n_of, (size_t)set->n * sizeof(*set->n_of));
    }
    for (int32_t s = 0; s < keep_round_sets(k); s++) {
        struct keep_set *set = &k->set[s];
        if (!set->due)
            continue;
        pi_ranks_tell_last(set->score, (size_t)set->n * sizeof(*set->score));
        pi_ranks_tell_last(set->n_of, (size_t)set->n * sizeof(*set->n_of));
    }
}

/* ---- a set for each lane, which share a budget ---- */

/* A rank's message says which lanes it has. Then comes each of them in order: a head, the positions
   of the entries that may go, and their scores. */
struct lanes_head {
    int32_t first_layer;
    int32_t n_layer;
    int32_t first_head;
    int32_t n_head;
};

struct lane_head {
    int32_t n_held; /* of entries that stay whatever they score */
    int32_t n_may_go;
};

static void *append(uint8_t *to, const void *data, size_t size)
{
    memcpy(to, data, size);
    return to + size;
}

static size_t write_lanes(const struct keep *k)
{
    const struct lanes_head lanes = {k->whole.first_layer, k->model.g.n_layer, k->whole.first_head,
                                     k->model.g.n_head};
    size_t size = sizeof(lanes);
    for (int32_t s = 0; s < keep_n_set(k); s++) {
        keep_find_span(&k->set[s]);
        size += sizeof(struct lane_head) +
                (size_t)k->set[s].n_may_go * (sizeof(int32_t) + sizeof(float));
    }
    uint8_t *to = append(pi_ranks_write(size), &lanes, sizeof(lanes));
    for (int32_t s = 0; s < keep_n_set(k); s++) {
        const struct keep_set *set = &k->set[s];
        size_t n = (size_t)set->n_may_go;
        const struct lane_head lane = {set->n - set->n_may_go, set->n_may_go};
        to = append(to, &lane, sizeof(lane));
        to = append(to, set->pos + set->first, n * sizeof(*set->pos));
        to = append(to, set->score + set->first, n * sizeof(*set->score));
    }
    return size;
}

/* Which of all lanes is the first of a layer. */
static int32_t lane_at(const struct keep *k, int32_t layer, int32_t head)
{
    return layer * k->whole.n_head + head;
}

/* Makes sets of a rank's lanes, which have only the entries that may go. Returns how many others
   there are. */
static int64_t read_lanes(const struct keep *k, const uint8_t *from)
{
    struct lanes_head lanes;
    int64_t n_held = 0;
    memcpy(&lanes, from, sizeof(lanes));
    from += sizeof(lanes);
    for (int32_t i = 0; i < lanes.n_layer * lanes.n_head; i++) {
        struct lane_head lane;
        int32_t layer = lanes.first_layer + i / lanes.n_head;
        int32_t head = lanes.first_head + i % lanes.n_head;
        memcpy(&lane, from, sizeof(lane));
        from += sizeof(lane);
        size_t size = (size_t)lane.n_may_go * sizeof(int32_t);
        k->everywhere[lane_at(k, layer, head)] = (struct keep_set){
            .n = lane.n_may_go,
            .pos = (int32_t *)(void *)(uintptr_t)from,
            .score = (float *)(void *)(uintptr_t)(from + size),
            .span = {INT32_MIN, INT32_MAX},
        };
        n_held += lane.n_held;
        from += 2 * size;
    }
    return n_held;
}

void keep_allot_everywhere(const struct keep *k, int64_t total, int32_t n_token,
                           struct keep_tally *tally)
{
    size_t size[PI_RANKS_MOST];
    pi_ranks_learn_sizes(write_lanes(k), size);
    const uint8_t *from = pi_ranks_share(size);
    int32_t n_set = (int32_t)keep_allot_lanes(k), n_head = k->model.g.n_head;
    int64_t n_held = 0, n_stay = 0, own = 0;
    for (int32_t r = 0; r < pi_ranks()->n_rank; from += size[r++])
        n_held += read_lanes(k, from);
    keep_allot(k->stream, &k->config, k->everywhere, k->lane, n_set, total - n_held);
    for (int32_t i = 0; i < n_set; i++)
        n_stay += k->everywhere[i].budget;
    for (int32_t s = 0; s < keep_n_set(k); s++) {
        struct keep_set *set = &k->set[s];
        int32_t i = lane_at(k, k->whole.first_layer + s / n_head, k->whole.first_head + s % n_head);
        set->budget = k->everywhere[i].budget + set->n - set->n_may_go;
        own += set->budget;
    }
    tally->elsewhere = n_held + n_stay - own;
    tally->elsewhere_at = n_token;
}
