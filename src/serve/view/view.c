/*
 * view.c - which sequence watchers follow, and what each step changed. It writes no JSON and owns
 * no engine. Invariant: without watchers it holds no memory of sequences. It looks at a lane's
 * positions only where the policies' counts or the lanes' lengths say that entries went.
 */
#include "serve/view/view.h"

#include <stdlib.h>
#include <string.h>

#include "serve/view/view_state.h"

#define SCAN_S 0.1 /* between looks at lanes that are overwritten with every token */

/* ---- life ---- */

static bool copy_text(char **to, const char *from)
{
    if (from == NULL)
        return true;
    size_t size = strlen(from) + 1;
    *to = malloc(size);
    if (*to != NULL)
        memcpy(*to, from, size);
    return *to != NULL;
}

pith_status serve_view_create(const struct serve_view_setup *setup, struct serve_view **out,
                              pith_error *err)
{
    const char *policies[] = {setup->keep, setup->read, setup->recall, setup->share};
    pith_keep_rules rules;
    pith_status status = pith_keep_get_rules(setup->keep, &rules, err);
    if (status != PITH_OK)
        return status;
    struct serve_view *view = calloc(1, sizeof(*view));
    bool made = view != NULL && copy_text(&view->alias, setup->alias);
    for (int i = 0; made && i < PITH_N_VERB; i++)
        made = copy_text(&view->policy[i], policies[i]);
    if (!made) {
        serve_view_free(view);
        if (err != NULL)
            *err = (pith_error){PITH_NOMEM, "no memory for the view of the KV memory"};
        return PITH_NOMEM;
    }
    view->model = setup->model;
    view->rules = rules;
    view->want_id = -1;
    pith_model_get_info(setup->model, &view->info);
    *out = view;
    return PITH_OK;
}

void serve_view_free(struct serve_view *view)
{
    if (view == NULL)
        return;
    serve_view_watch(view, false);
    for (int i = 0; i < PITH_N_VERB; i++)
        free(view->policy[i]);
    free(view->alias);
    free(view);
}

void serve_view_watch(struct serve_view *view, bool on)
{
    if (on == (view->watch != NULL))
        return;
    if (!on) {
        view_lanes_free(&view->watch->lanes);
        free(view->watch);
        view->watch = NULL;
        return;
    }
    struct view_watch *w = calloc(1, sizeof(*w));
    if (w != NULL && !view_lanes_create(&w->lanes, view->info.n_layer, view->info.n_head_kv)) {
        free(w);
        w = NULL;
    }
    view->watch = w;
}

bool serve_view_watched(const struct serve_view *view)
{
    return view->watch != NULL;
}

void serve_view_follow(struct serve_view *view, int64_t id, int32_t answer)
{
    view->want_id = id;
    view->want_answer = answer;
    view->only = false;
}

void serve_view_follow_only(struct serve_view *view, int64_t id)
{
    serve_view_follow(view, id, 0);
    view->only = true;
}

/* ---- which sequence ---- */

/* How much there is to see of an item; the followed one wins over equals. */
static int interest(const struct view_watch *w, const struct serve_view_item *item)
{
    static const char *const states[] = {"parked", "reading", "generating"};
    int worth = 0;
    for (int i = 0; i < 3; i++)
        if (strcmp(item->state, states[i]) == 0)
            worth = 10 * (i + 1);
    bool same = item->seq == w->seq || (item->id == w->id && item->answer == w->answer);
    return worth + (w->there && same ? 15 : 0);
}

static const struct serve_view_item *choose(const struct serve_view *view,
                                            const struct serve_view_source *source)
{
    const struct serve_view_item *best = NULL;
    for (int32_t i = 0; i < source->n_item; i++) {
        const struct serve_view_item *item = &source->items[i];
        if (item->seq == NULL)
            continue;
        if (view->want_id >= 0 && item->id == view->want_id && item->answer == view->want_answer)
            return item;
        if (view->only)
            continue;
        if (best == NULL || interest(view->watch, item) > interest(view->watch, best))
            best = item;
    }
    return best;
}

/* Begins with another sequence, or again with one whose tokens are others now. */
static void begin(struct view_watch *w)
{
    view_lanes_reset(&w->lanes);
    w->epoch++;
    w->round = 0;
    w->too_large = false;
}

/* ---- steps ---- */

/* Reads positions where something went, or may have; returns whether it did. */
static bool look(struct view_watch *w, const struct serve_view_item *item, int32_t n_before,
                 double now_s, struct view_found *found)
{
    bool fresh = n_before == 0;
    bool differ = view_lanes_differ(&w->lanes, item->seq, w->lanes.n_token - n_before);
    pith_keep_stats keep;
    pith_seq_keep_stats(item->seq, &keep);
    const struct view_known *known = NULL;
    for (int32_t i = 0; i < w->n_known; i++)
        if (w->known[i].seq == item->seq)
            known = &w->known[i];
    bool rounds = known == NULL || keep.rounds != known->keep.rounds;
    bool evicted = known == NULL || keep.evicted != known->keep.evicted;
    if (!fresh && !differ && !evicted && !rounds && !w->stale)
        return false;
    w->stale = !rounds && !fresh && now_s - w->scanned_s < SCAN_S;
    if (w->stale)
        return false; /* only overwritten: seen with a later step */
    w->scanned_s = now_s;
    bool unseen = fresh && (known != NULL || !w->begun); /* it went before it was followed */
    view_lanes_scan(&w->lanes, item->seq, unseen ? 0 : w->round + 1, found);
    if (!unseen && found->n_gone > 0)
        w->round++;
    return found->n_gone > 0;
}

static void follow(struct serve_view *view, const struct serve_view_source *source,
                   const struct serve_view_item *item)
{
    struct view_watch *w = view->watch;
    struct view_found found = {.from = -1, .to = -1};
    if (item->seq != w->seq || !view_lanes_continue(&w->lanes, item->seq))
        begin(w);
    w->id = item->id;
    w->answer = item->answer;
    w->seq = item->seq;
    w->n_prompt = item->n_prompt;
    int32_t n_before = w->lanes.n_token;
    bool went = false;
    w->too_large = w->too_large || !view_lanes_grow(&w->lanes, item->seq);
    if (w->too_large)
        view_lanes_reset(&w->lanes);
    else if (w->lanes.n_token > 0)
        went = look(w, item, n_before, source->now_s, &found);
    view_log_compare(view, source, item, &found, went ? w->round : 0);
}

void serve_view_step(struct serve_view *view, const struct serve_view_source *source)
{
    struct view_watch *w = view->watch;
    if (w == NULL)
        return;
    const struct serve_view_item *item = choose(view, source);
    w->there = item != NULL;
    if (item != NULL)
        follow(view, source, item);
    else
        w->seq = NULL;
    for (int32_t i = 0; i < source->n_item; i++)
        if (source->items[i].seq != NULL && &source->items[i] != item)
            view_log_compare(view, source, &source->items[i], NULL, 0);
    view_log_prune(w, source);
    view_log_frame(w, source);
}
