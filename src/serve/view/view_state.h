/*
 * view_state.h - the memory of a view while a viewer watches; for view*.c alone.
 */
#ifndef PI_SERVE_VIEW_STATE_H
#define PI_SERVE_VIEW_STATE_H

#include "serve/view/view.h"
#include "serve/view/view_lanes.h"

#define VIEW_FRAMES 200 /* steps that can be replayed */
#define VIEW_EVENTS 200 /* lines of the log */
#define VIEW_KNOWN 1024 /* answers whose counts are compared */

/* A step. */
struct view_frame {
    int64_t number; /* from 1 */
    int64_t step;   /* the scheduler's */
    double time;
    int64_t epoch; /* which sequence was followed */
    int32_t n_token;
    int32_t round; /* the last one so far */
    int32_t n_running;
    int64_t used_bytes;
    int64_t live_bytes;
    int64_t evicted; /* since a viewer watches */
};

enum view_kind { VIEW_ROUND, VIEW_OVERWRITE, VIEW_RECALL, VIEW_SHARE };

/* A line of the log. */
struct view_event {
    int64_t number; /* from 1 */
    enum view_kind kind;
    int64_t step;
    double time;
    int64_t id;
    int32_t answer;
    int64_t epoch; /* of the followed sequence; 0: another's */
    int32_t round; /* rounds of the followed sequence, first and last; 0: another's */
    int32_t round_last;
    int32_t at; /* tokens of the sequence */
    int64_t n_round;
    int64_t n; /* entries that went or came, pages that are shared */
    int64_t bytes;
    int32_t from; /* positions; -1: not known */
    int32_t to;
    int32_t n_lane;
    int32_t budget; /* entries of a lane */
    bool pressure;
};

/* The counts of an answer when it was seen last. */
struct view_known {
    int64_t id;
    int32_t answer;
    const pith_seq *seq; /* to compare, never followed */
    pith_keep_stats keep;
    int64_t recalls;
    int64_t pages_shared;
    bool present;
};

struct view_watch {
    struct view_lanes lanes; /* of the followed sequence */
    struct view_frame frame[VIEW_FRAMES];
    struct view_event event[VIEW_EVENTS];
    struct view_known known[VIEW_KNOWN];
    int32_t n_known;
    int64_t n_frame; /* so far; the ring holds the last */
    int64_t n_event;
    int64_t evicted; /* since a viewer watches */
    int64_t recalled;
    int64_t pressure_rounds;
    bool begun;

    int64_t epoch; /* one more when another sequence is followed; 0: none was */
    int64_t id;
    int32_t answer;
    const pith_seq *seq; /* to compare, never followed */
    bool there;          /* the sequence is still there */
    bool too_large;      /* to be followed */
    int32_t n_prompt;
    int32_t round; /* the last one of this sequence */
    double scanned_s;
    bool stale; /* something went that no scan has seen */

    int64_t sent_frame; /* what the last delta had */
    int64_t sent_event;
    int64_t sent_epoch;
    int32_t sent_token;
    int32_t sent_round;
};

struct serve_view {
    const pith_model *model;
    pith_model_info info;
    pith_keep_rules rules;
    char *alias;     /* owned; NULL: the model's own */
    char *policy[4]; /* [PITH_N_VERB] owned; NULL: none */
    int64_t want_id; /* below 0: whatever runs */
    int32_t want_answer;
    bool only;                /* nothing else is followed in its place */
    struct view_watch *watch; /* owned; NULL: no viewer watches */
};

/* view_log.c */
const char *view_kind_name(enum view_kind kind);
void view_log_compare(struct serve_view *view, const struct serve_view_source *source,
                      const struct serve_view_item *item, const struct view_found *found,
                      int32_t round);
void view_log_prune(struct view_watch *w, const struct serve_view_source *source);
void view_log_frame(struct view_watch *w, const struct serve_view_source *source);

#endif
