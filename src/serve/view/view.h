/*
 * view.h - the content of the KV memory, as JSON for people who watch: the bytes, the requests, and
 * one sequence that is followed. Of that it says which lanes still hold each token, and at which
 * round the others let it go. docs/page.md describes the documents.
 *
 * How a server uses it, all on the thread that steps:
 *   - the first watcher arrives:   serve_view_watch(view, true)
 *   - after each step, if serve_view_watched(view): list the requests, serve_view_step()
 *   - a watcher arrives:           serve_view_snapshot(), the first event of its stream
 *   - at most 5 times a second:    serve_view_delta(), the same text for every watcher
 *   - the last watcher has gone:   serve_view_watch(view, false), which frees what was gathered
 *   - GET /kv:                     serve_view_snapshot(), whether a viewer watches or not
 * While no viewer watches nothing is gathered and serve_view_step returns at once. Applying a delta
 * twice, or one that a snapshot has in it already, changes nothing. It never changes the engine.
 *
 * Routes of the page: GET /props, GET /kv, GET /kv/events ("data: <document>\n\n", the first a
 * snapshot), POST /kv/cancel?id=N (pith_scheduler_cancel). Also POST /kv/follow?id=N&answer=N
 * (serve_view_follow; without id: any that runs), POST /v1/chat/completions, POST /v1/completions.
 */
#ifndef PI_SERVE_VIEW_H
#define PI_SERVE_VIEW_H

#include "pith/scheduler.h"

struct serve_view;

struct serve_view_setup {
    const pith_model *model; /* must outlive the view */
    const char *alias;       /* the model's name for clients; NULL: its own. Copied */
    const char *keep, *read, *recall, *share; /* as in pith_engine_params; may be NULL. Copied */
};

/* One answer or parked slot: what pith_scheduler_each shows of it. */
struct serve_view_item {
    int64_t id;
    int32_t answer;
    int32_t slot;      /* -1: none */
    const char *state; /* constant: "waiting", "reading", "generating", "swapped", "parked" */
    int32_t n_prompt;
    int32_t n_done;
    int32_t n_generated;
    int32_t n_cached;
    int32_t n_pin;       /* tokens that a policy with pin-prompt never evicts; 0: its prompt */
    int64_t held_bytes;  /* of its pages, shared ones included */
    int64_t aside_bytes; /* set aside beyond them */
    int64_t full_bytes;  /* that its tokens would take without any policy */
    const pith_seq *seq; /* NULL: nothing of it is in the KV memory */
};

/* The state to show now; borrowed during the call. */
struct serve_view_source {
    const pith_engine *engine;
    const pith_engine *draft_engine; /* the drafting model's; NULL: none */
    pith_scheduler_stats stats;
    const struct serve_view_item *items; /* [n_item] */
    int32_t n_item;
    double now_s; /* of a clock that never goes back */
};

/* INVALID (keep cannot be read), NOMEM. */
pith_status serve_view_create(const struct serve_view_setup *setup, struct serve_view **out,
                              pith_error *err);
/* NULL is ignored. */
void serve_view_free(struct serve_view *view);

void serve_view_watch(struct serve_view *view, bool on);
bool serve_view_watched(const struct serve_view *view);

/* Follows one answer while it is there. id below 0: a request that generates, else one that
   reads, else a parked conversation. It stays with that while it lasts. */
void serve_view_follow(struct serve_view *view, int64_t id, int32_t answer);
/* Follows a request's first answer, and nothing where that is not there: what was seen stays. */
void serve_view_follow_only(struct serve_view *view, int64_t id);

/* Notes the changes of a step. Without a keep round that is a comparison of lengths. Where
   memory for the notes is short the sequence is no longer followed, and the documents say so. */
void serve_view_step(struct serve_view *view, const struct serve_view_source *source);

/* The whole state; what changed since the last delta. *json [*len] is terminated and freed by
   serve_view_text_free. NOMEM. */
pith_status serve_view_snapshot(struct serve_view *view, const struct serve_view_source *source,
                                char **json, size_t *len);
pith_status serve_view_delta(struct serve_view *view, const struct serve_view_source *source,
                             char **json, size_t *len);
void serve_view_text_free(char *json);

#endif
