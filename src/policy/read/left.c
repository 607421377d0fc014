/*
 * left.c - choices that stay on a device with memory of its own. It knows where scores and choices
 * lie there, and brings a choice to the host where that needs it. It knows no policy and no engine.
 *
 * Invariant: whether a choice stays, and who follows it, depends on the chunk and its sequence's
 * lanes alone. The entries that are read are the same either way.
 */
#include "policy/read/running.h"

/* Ranks of lists that unite are floats. */
#define MOST_RANKS (1 << 24)

/* ---- who stays ---- */

/* Whether the lanes of a layer hold the same positions, slot by slot. */
static bool heads_agree(const struct read *read, const struct pi_pass_chunk *c)
{
    int32_t n_head = read->model.g.n_head, n, first = -1;
    for (int32_t h = 0; h < n_head; h++) {
        if (!read_count_earlier(c, h, &n) || !read_lane_whole(c, h, n) || (h > 0 && n != first))
            return false;
        first = n;
    }
    int64_t n_read = read_budget_for(&read->config.rules, first, c->n_tok);
    return n_read * n_head * read->model.n_group < MOST_RANKS;
}

bool read_picks(const struct read *read, const struct pi_pass_chunk *c)
{
    const struct read_policy *p = read->config.policy;
    int32_t on = read_stream_number(read, c->layer);
    const struct pi_device *d = read->stream[on]->device;
    enum read_role role = read_role_of(read, c->layer);
    if (d->weigh == NULL || p->picks == NULL || !pi_at_some(c->q_at) ||
        !pi_at_some(read->slots_at[on]) || kv_lane_device(c->item->kv, c->layer, 0) != d ||
        (role != READ_OWN && role != READ_SOURCE) ||
        !p->picks(&read->config.params, &read->model, c->n_tok))
        return false;
    return !p->unites || heads_agree(read, c);
}

/* ---- where a choice goes ---- */

static bool blends(const struct lane *l)
{
    const struct read_policy *p = l->read->config.policy;
    return p->blends != NULL && p->blends(&l->read->config.params, l->c.n_tok);
}

static int32_t stream_of(const struct lane *l)
{
    return read_stream_number(l->read, l->c.layer);
}

static size_t number_of(const struct lane *l)
{
    return (size_t)(l->unit - l->read->unit);
}

static struct pi_at slots_of(const struct lane *l)
{
    const struct read *read = l->read;
    return pi_at_item(read->slots_at[stream_of(l)], number_of(l) * (size_t)read->most);
}

static bool is_plain(const struct lane *l)
{
    return kv_lane_is_plain(l->view.kv, l->c.layer, l->c.head);
}

/* The list of the lane's query head g. The lists of a chunk lie side by side. */
static struct pi_at list_of(const struct lane *l, int32_t g)
{
    const struct read *read = l->read;
    size_t n_group = (size_t)read->model.n_group;
    size_t chunk = (size_t)l->of->index * (size_t)read->model.g.n_head * n_group;
    size_t list = (size_t)l->c.head * n_group + (size_t)g;
    return pi_at_item(read->best_at[stream_of(l)],
                      chunk * (size_t)read->most + list * (size_t)l->c.n_choose);
}

/* A choice that the host need not know stays: the lane reads by it, or those behind. */
static void leave(struct lane *l, struct kv_choose_job *job, int32_t g)
{
    const struct read *read = l->read;
    if (l->use == USE_KEEP) {
        if (!read->config.policy->unites &&
            (!is_plain(l) || !read_lane_whole(l->of, l->c.head, l->c.n)))
            return;
        l->unit->kept_at = slots_of(l);
        l->unit->kept_on = stream_of(l);
        l->unit->kept_n = l->c.n;
        l->unit->n_kept = l->c.n_choose;
        job->there = read->config.policy->unites ? list_of(l, g) : l->unit->kept_at;
        return;
    }
    if (l->of->chosen == NULL || !(is_plain(l) || blends(l)))
        return;
    int32_t n_first = (int32_t)(job->slots - l->slots);
    job->there = slots_of(l);
    l->chosen = (struct kv_attend_chosen){.at = job->there,
                                          .n_first = n_first,
                                          .n = job->k,
                                          .n_last = l->n_read - n_first - job->k + l->c.n_tok,
                                          .end = l->c.n + l->c.n_tok};
}

void read_point_choices(struct read *read, int32_t n_lane)
{
    int32_t n = 0;
    for (int32_t i = 0; i < n_lane; i++) {
        struct lane *l = &read->lane[i];
        if (l->use == USE_NONE || !l->picked)
            continue;
        for (int32_t g = 0; g < read_sets_of(read, l->c.n_tok, true); g++, n++) {
            struct kv_choose_job *job = &read->choose_job[n];
            const float *row = l->score + (size_t)g * (size_t)l->c.n;
            job->at = pi_at_item(read->packed_job[n].at, (size_t)(job->score - row));
            leave(l, job, g);
        }
    }
}

/* ---- behind a choice ---- */

/* One list of the lists of a chunk's heads, which are the lanes from `first` on. */
static void add_union(struct read *read, int32_t first, const struct kv_choose_job *jobs,
                      struct pi_at *score, struct kv_unite_job *out)
{
    const struct lane *l = &read->lane[first];
    int32_t n = read->model.g.n_head * read->model.n_group;
    for (int32_t i = 0; i < n; i++)
        score[i] = jobs[i].at;
    *out = (struct kv_unite_job){.score = score,
                                 .lists = list_of(l, 0),
                                 .n_list = n,
                                 .n = jobs[0].n,
                                 .k = jobs[0].k,
                                 .out = l->unit->kept_at};
}

static void unite_left(struct read *read, struct pi_stream *stream, int32_t n_lane)
{
    int32_t n = 0, n_job = 0, n_head = read->model.g.n_head;
    for (int32_t i = 0; i < n_lane; i += n_head) {
        const struct lane *l = &read->lane[i];
        if (l->use != USE_KEEP || !l->picked)
            continue;
        add_union(read, i, read->choose_job + n_job, read->list_at + n_job, &read->unite_job[n++]);
        n_job += n_head * read->model.n_group;
    }
    stream->device->unite(stream, &(struct kv_unite_list){.jobs = read->unite_job, .n = n});
}

/* Slots of a lane whose pages the device cannot count through. */
static void fetch_slots(struct lane *l, struct pi_stream *stream)
{
    int32_t *to = l->slots + l->chosen.n_first;
    size_t size = (size_t)l->chosen.n * sizeof(*to);
    pi_download_to(stream->device, stream, l->chosen.at, size, to);
    l->chosen = (struct kv_attend_chosen){0};
}

static void share_left(struct read *read, struct pi_stream *stream, int32_t n_lane)
{
    int32_t n = 0, n_job = 0;
    for (int32_t i = 0; i < n_lane; i++) {
        struct lane *l = &read->lane[i];
        if (l->use == USE_NONE || !l->picked)
            continue;
        const struct kv_score_job *scored = &read->packed_job[n_job++];
        size_t at = number_of(l) * (size_t)l->c.n_group;
        if (blends(l))
            read->share_job[n++] =
                (struct kv_share_job){.weight = scored->soft.kept,
                                      .chosen = &l->chosen,
                                      .n_group = l->c.n_group,
                                      .n = scored->soft.n_seen,
                                      .out = pi_at_item(read->share_at[stream_of(l)], at)};
    }
    stream->device->share(stream, &(struct kv_share_list){.jobs = read->share_job, .n = n});
    for (int32_t i = 0; i < n_lane; i++)
        if (pi_at_some(read->lane[i].chosen.at) && !is_plain(&read->lane[i]))
            fetch_slots(&read->lane[i], stream);
}

void read_use_left(struct read *read, struct pi_stream *stream, int32_t n_lane)
{
    if (read->config.policy->unites)
        unite_left(read, stream, n_lane);
    if (read->config.policy->blends != NULL)
        share_left(read, stream, n_lane);
}

/* ---- layers behind a source ---- */

static struct unit *source_of(const struct read *read, const struct pi_pass_chunk *c, int32_t head)
{
    return read_unit_of(read, c, read->config.policy->unites ? 0 : head);
}

/* Whether slots of the source's lanes are slots of this one. */
static bool can_follow(const struct read *read, const struct pi_pass_chunk *c, int32_t head)
{
    const struct unit *u = source_of(read, c, head);
    int32_t n;
    return read_count_earlier(c, head, &n) && n == u->kept_n &&
           u->kept_on == read_stream_number(read, c->layer) && c->chosen != NULL &&
           kv_lane_is_plain(c->item->kv, c->layer, head) && read_lane_whole(c, head, n);
}

/* The choice comes to the host, as positions. */
static void bring(struct read *read, const struct pi_pass_chunk *c, int32_t head)
{
    struct unit *u = source_of(read, c, head);
    struct pi_stream *stream = read->stream[u->kept_on];
    int32_t *kept = read_kept_of(read, c, read->config.policy->unites ? 0 : head);
    size_t size = (size_t)u->n_kept * sizeof(*kept);
    pi_download_to(stream->device, stream, u->kept_at, size, kept);
    for (int32_t i = 0; i < u->n_kept; i++)
        kept[i] += read->config.rules.sinks;
    u->kept_at = (struct pi_at){0};
}

void read_bring(struct read *read, const struct pi_pass_chunk *chunks, int32_t n)
{
    int32_t n_head = read->model.g.n_head;
    if (read_role_of(read, chunks->layer) != READ_REUSE)
        return;
    for (int32_t i = 0; i < n; i++)
        for (int32_t h = 0; h < n_head; h++)
            if (pi_at_some(source_of(read, &chunks[i], h)->kept_at) &&
                !can_follow(read, &chunks[i], h))
                bring(read, &chunks[i], h);
}

bool read_follow_there(struct lane *l)
{
    const struct read *read = l->read;
    const struct unit *u = source_of(read, l->of, l->c.head);
    int32_t n_read = read_budget_for(&read->config.rules, l->c.n, l->c.n_tok);
    if (!pi_at_some(u->kept_at) || n_read == l->c.n)
        return false;
    int32_t n_first = (int32_t)pi_min(read->config.rules.sinks, n_read);
    l->chosen = (struct kv_attend_chosen){.at = u->kept_at,
                                          .n_first = n_first,
                                          .n = u->n_kept,
                                          .n_last = n_read - n_first - u->n_kept + l->c.n_tok,
                                          .end = l->c.n + l->c.n_tok};
    l->n_slot = n_read;
    return true;
}

/* ---- outputs ---- */

bool read_blended(void *user, const struct pi_pass_chunk *chunks, int32_t n)
{
    struct read *read = user;
    int32_t n_head = read->model.g.n_head, n_job = 0, on = read_stream_number(read, chunks->layer);
    int32_t n_group = read->model.n_group, dim = read->model.g.dim_v;
    struct pi_stream *stream = read->stream[on];
    bool others = false;
    for (int32_t i = 0; i < n; i++)
        for (int32_t h = 0; h < n_head; h++) {
            const struct unit *u = read_unit_of(read, &chunks[i], h);
            bool part = chunks[i].n_slot[h] >= 0;
            others = others || (part && !u->picked);
            if (!part || !u->picked ||
                !read->config.policy->blends(&read->config.params, chunks[i].n_tok))
                continue;
            size_t at = (size_t)(u - read->unit) * (size_t)n_group;
            read->blend_job[n_job++] = (struct kv_blend_job){
                .seq = chunks[i].item->kv,
                .layer = chunks[i].layer,
                .head = h,
                .n = u->n + 1,
                .n_group = n_group,
                .share = pi_at_item(read->share_at[on], at),
                .out = pi_at_item(chunks[i].out_at, (size_t)h * (size_t)(n_group * dim))};
        }
    if (n_job > 0)
        stream->device->blend(stream, &(struct kv_blend_list){.jobs = read->blend_job, .n = n_job});
    return others;
}
