/*
 * view_lanes.h - one sequence as its watchers see it: its tokens, and of each lane the positions
 * that it held when it was last looked at. And at which round the others went.
 *
 * A round has a number in the sequence, from 1; 0 stands for what went before a viewer watched.
 */
#ifndef PI_SERVE_VIEW_LANES_H
#define PI_SERVE_VIEW_LANES_H

#include "pith/inspect.h"

#include "serve/view/view_text.h"

#define VIEW_HELD UINT16_MAX          /* not gone */
#define VIEW_ROUND_MAX 65000          /* later rounds share this number */
#define VIEW_LANES_BYTES (64ll << 20) /* of notes; a sequence that needs more is not followed */

struct view_lane {
    int32_t n_entry;
    bool changed; /* something went since the last delta */
    bool back;    /* something came back since then */
};

struct view_lanes {
    int32_t n_layer;
    int32_t n_head;
    int32_t n_token;
    int32_t cap;            /* tokens that there is room for */
    int32_t *tokens;        /* [cap] owned */
    uint16_t *went;         /* [n_layer * n_head][cap] owned: VIEW_HELD, or the round */
    int32_t *positions;     /* [cap] owned: of a lane that is looked at */
    uint8_t *seen;          /* [cap] owned, likewise */
    struct view_lane *lane; /* [n_layer * n_head] owned */
};

/* The findings of a look. */
struct view_found {
    int64_t n_gone; /* entries */
    int64_t n_back;
    int32_t from; /* positions of the first and the last entry that went; -1: none */
    int32_t to;
    int32_t n_lane; /* lanes that lost some */
};

bool view_lanes_create(struct view_lanes *v, int32_t n_layer, int32_t n_head);
void view_lanes_free(struct view_lanes *v);

/* Whether seq goes on from the tokens that were seen. */
bool view_lanes_continue(const struct view_lanes *v, const pith_seq *seq);
/* Forgets all tokens. */
void view_lanes_reset(struct view_lanes *v);
/* Takes the tokens that are new, which each lane is thought to hold; false: no memory. */
bool view_lanes_grow(struct view_lanes *v, const pith_seq *seq);
/* Whether a lane has another length than that of its tokens so far; notes the lengths. */
bool view_lanes_differ(struct view_lanes *v, const pith_seq *seq, int32_t n_new);
/* Reads all positions: what is gone went at this round. */
void view_lanes_scan(struct view_lanes *v, const pith_seq *seq, int32_t round,
                     struct view_found *found);

/* A lane as runs from position 0: "12 3:7 40": 12 held, 3 that went at round 7, 40 held. */
void view_lanes_write(const struct view_lanes *v, int32_t lane, struct view_text *out);
/* Positions that went at rounds from `round` on: "start+length:round" with blanks between. */
void view_lanes_write_gone(const struct view_lanes *v, int32_t lane, int32_t round,
                           struct view_text *out);
/* How many lanes hold each position: "n*length" with blanks between. */
bool view_lanes_write_held(const struct view_lanes *v, struct view_text *out);

#endif
