/* draft.h - the options of drafts, which run, chat, batch and serve have in common. */
#ifndef CLI_DRAFT_H
#define CLI_DRAFT_H

#include "session.h"

struct draft_options {
    const char *what; /* "auto", "lookup", "none" or a model's file */
    int32_t n_max;
};

extern const struct option draft_option_table[];

/* what: where --draft does not say. */
void draft_options_default(struct draft_options *o, const char *what);

/* Loads the model that --draft names, if any, before KV memory is divided (budget.h). */
void draft_load(struct session *s, const struct draft_options *o, const struct model_options *m);

/* The params of its engine, whose passes have `chunk` tokens. No memory is set. */
pith_engine_params draft_params(const struct model_options *m, int32_t chunk);

/* Makes the drafts that the options ask for, in a session that was started. They are valid until it
   is freed; NULL: nothing is drafted. "auto" is lookup where policies and model allow it. Fails
   where they do not and drafts were asked for by name. */
const pith_draft_params *draft_start(struct session *s, const struct draft_options *o,
                                     const struct model_options *m);

/* Bytes that the drafting model's conversations take; 0 without one. */
int64_t draft_memory(const struct session *s);

/* Reports the drafts of a session that had any: a line, and members of a report. */
void draft_report(const struct session *s, int64_t n_draft, int64_t n_accepted);
json_t *draft_json(const struct session *s, int64_t n_draft, int64_t n_accepted);

#endif
