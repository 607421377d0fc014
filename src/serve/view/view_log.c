/*
 * view_log.c - the log of the policies' work, from differences of their counts, and the ring of
 * steps. It looks at no lane: the findings of a scan come from view.c. Invariant: numbers of events
 * and frames ascend by one, so that a watcher can tell what it has.
 */
#include <string.h>

#include "serve/view/view_state.h"

const char *view_kind_name(enum view_kind kind)
{
    static const char *const names[] = {"round", "overwrite", "recall", "share"};
    return names[kind];
}

/* ---- events ---- */

/* Steps that overwrite come with each token: they become one line as long as nothing else does. */
static struct view_event *last_of_kind(struct view_watch *w, const struct view_event *e)
{
    struct view_event *last = &w->event[(w->n_event + VIEW_EVENTS - 1) % VIEW_EVENTS];
    bool same = w->n_event > 0 && e->kind == VIEW_OVERWRITE && last->kind == e->kind &&
                last->id == e->id && last->answer == e->answer && last->epoch == e->epoch;
    return same ? last : NULL;
}

static void add_event(struct view_watch *w, const struct view_event *e)
{
    struct view_event *last = last_of_kind(w, e);
    if (last == NULL) {
        last = &w->event[w->n_event++ % VIEW_EVENTS];
        *last = *e;
        last->number = w->n_event;
        return;
    }
    last->n += e->n;
    last->at = e->at;
    last->step = e->step;
    last->time = e->time;
    last->round_last = e->round_last;
    last->n_lane = e->n_lane > last->n_lane ? e->n_lane : last->n_lane;
    last->from = last->from < 0 || (e->from >= 0 && e->from < last->from) ? e->from : last->from;
    last->to = e->to > last->to ? e->to : last->to;
    if (w->sent_event >= w->n_event) /* it changed, so it goes out again */
        w->sent_event = w->n_event - 1;
}

/* ---- comparing ---- */

static struct view_known *find_known(struct view_watch *w, const struct serve_view_item *item,
                                     bool *is_new)
{
    struct view_known *same_seq = NULL;
    for (int32_t i = 0; i < w->n_known; i++) {
        struct view_known *k = &w->known[i];
        if (k->seq == item->seq)
            same_seq = k;
        if (k->id == item->id && k->answer == item->answer)
            return k;
    }
    if (w->n_known == VIEW_KNOWN)
        return NULL;
    struct view_known *k = &w->known[w->n_known++];
    *k = same_seq != NULL ? *same_seq : (struct view_known){0};
    *is_new = same_seq == NULL && !w->begun;
    k->id = item->id;
    k->answer = item->answer;
    return k;
}

static void compare_keep(struct view_watch *w, struct view_event e, const struct view_known *k,
                         const pith_keep_stats *now, const struct view_found *found)
{
    int64_t overwritten = now->overwritten - k->keep.overwritten;
    int64_t evicted = now->evicted - k->keep.evicted - overwritten;
    w->evicted += overwritten + evicted;
    e.budget = now->budget;
    e.from = found != NULL ? found->from : -1;
    e.to = found != NULL ? found->to : -1;
    e.n_lane = found != NULL ? found->n_lane : 0;
    if (now->rounds > k->keep.rounds) {
        e.kind = VIEW_ROUND;
        e.n_round = now->rounds - k->keep.rounds;
        e.n = evicted;
        e.bytes = now->bytes_freed - k->keep.bytes_freed;
        add_event(w, &e);
    }
    if (overwritten > 0) {
        e.kind = VIEW_OVERWRITE;
        e.n_round = 0;
        e.n = overwritten;
        e.bytes = 0;
        add_event(w, &e);
    }
}

static void compare_others(struct view_watch *w, struct view_event e, struct view_known *k,
                           const pith_seq *seq)
{
    pith_recall_stats recall = {0};
    pith_share_stats share = {0};
    pith_seq_recall_stats(seq, &recall);
    pith_seq_share_stats(seq, &share);
    e.from = e.to = -1;
    if (recall.recalls > k->recalls) {
        e.kind = VIEW_RECALL;
        e.n_round = recall.recalls - k->recalls;
        e.n = recall.guests;
        w->recalled += recall.guests;
        add_event(w, &e);
    }
    if (share.pages_shared > k->pages_shared) {
        e.kind = VIEW_SHARE;
        e.n = share.pages_shared - k->pages_shared;
        add_event(w, &e);
    }
    k->recalls = recall.recalls;
    k->pages_shared = share.pages_shared;
}

void view_log_compare(struct serve_view *view, const struct serve_view_source *source,
                      const struct serve_view_item *item, const struct view_found *found,
                      int32_t round)
{
    struct view_watch *w = view->watch;
    bool is_new = false;
    struct view_known *k = find_known(w, item, &is_new);
    if (k == NULL)
        return;
    k->present = true;
    pith_keep_stats keep;
    pith_seq_keep_stats(item->seq, &keep);
    bool again = keep.evicted < k->keep.evicted || keep.rounds < k->keep.rounds;
    if (again) /* computed again from its tokens */
        k->keep = (pith_keep_stats){0};
    struct view_event e = {.step = source->stats.n_step,
                           .time = source->now_s,
                           .id = item->id,
                           .answer = item->answer,
                           .epoch = round > 0 ? w->epoch : 0,
                           .round = round,
                           .round_last = round,
                           .at = pith_seq_length(item->seq),
                           .pressure = source->stats.pressure_rounds > w->pressure_rounds};
    if (is_new) { /* what it did before a viewer watched is no news */
        pith_recall_stats recall = {0};
        pith_share_stats share = {0};
        pith_seq_recall_stats(item->seq, &recall);
        pith_seq_share_stats(item->seq, &share);
        k->recalls = recall.recalls;
        k->pages_shared = share.pages_shared;
    } else {
        compare_keep(w, e, k, &keep, found);
        compare_others(w, e, k, item->seq);
    }
    k->keep = keep;
    k->seq = item->seq;
}

void view_log_prune(struct view_watch *w, const struct serve_view_source *source)
{
    int32_t n = 0;
    for (int32_t i = 0; i < w->n_known; i++)
        if (w->known[i].present)
            w->known[n++] = w->known[i];
    w->n_known = n;
    for (int32_t i = 0; i < n; i++)
        w->known[i].present = false;
    w->begun = true;
    w->pressure_rounds = source->stats.pressure_rounds;
}

/* ---- frames ---- */

void view_log_frame(struct view_watch *w, const struct serve_view_source *source)
{
    const struct view_frame *last = &w->frame[(w->n_frame + VIEW_FRAMES - 1) % VIEW_FRAMES];
    pith_kv_stats kv;
    if (w->n_frame > 0 && last->step == source->stats.n_step && last->epoch == w->epoch &&
        last->n_token == w->lanes.n_token && last->round == w->round)
        return;
    pith_engine_kv_stats(source->engine, &kv);
    w->n_frame++;
    w->frame[(w->n_frame - 1) % VIEW_FRAMES] = (struct view_frame){
        .number = w->n_frame,
        .step = source->stats.n_step,
        .time = source->now_s,
        .epoch = w->epoch,
        .n_token = w->lanes.n_token,
        .round = w->round,
        .n_running = source->stats.n_running,
        .used_bytes = kv.used_bytes,
        .live_bytes = kv.live_bytes,
        .evicted = w->evicted,
    };
}
