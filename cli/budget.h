/*
 * budget.h - `--kv`: one word for the bytes of KV memory, and the statistics of models that
 * commands find by themselves. The library chooses how bytes are spent (pith/plan.h).
 */
#ifndef CLI_BUDGET_H
#define CLI_BUDGET_H

#include "session.h"

/* The conversations that a command has. */
enum budget_use {
    BUDGET_ONE, /* one, which gets the bytes */
    /* Several: a share is of each, a size of all. */
    BUDGET_SERVER,
    BUDGET_BATCH,
    /* A task sizes its engines itself, and asks questions or none. */
    BUDGET_QUESTIONS,
    BUDGET_TEXTS,
};

/* A value of --kv. */
struct budget {
    double share;   /* above 0, up to 1; 0: not given */
    int64_t bytes;  /* of the whole process; 0: not given */
    bool automatic; /* what the machine has free */
};

/* Reads "25%", "500MiB" or "auto"; fails (usage) for anything else. */
struct budget budget_parse(const char *text);

/* Settles what options leave to the model, which is loaded. A keep policy that wants statistics
   gets the model's own. Its entries come back by default. --kv becomes types, --keep, --recall and
   a size, and one line says which. A drafting model (draft_load) gets its part. n_token: of the
   longest conversation where -c does not say; 0: the trained context. */
void budget_settle(struct session *s, const struct model_options *m, struct memory_options *o,
                   enum budget_use use, int64_t n_token);

/* Sizes the KV memory of n conversations where nothing else did: -c, --kv-memory or a size of --kv.
   Each gets what was planned, or the trained context. All together are at most what there is room
   for. */
void budget_several(struct session *s, const struct model_options *m, struct memory_options *o,
                    int64_t n);

/* Most tokens of a conversation in a session that was started, where --kv keeps all entries. 0:
   memory or a policy's budget says it. */
int32_t budget_context(const struct session *s);

/* Whether a keep policy, which may be NULL, wants statistics that it does not name. */
bool budget_wants_stats(const char *keep);

/* The path of the session's model's own statistics, which it owns; NULL: there are none.
   Of a damaged file it says so once. */
const char *budget_find_stats(struct session *s);

/* Whether a file holds a model's statistics, with importance; else err says why not. */
pith_status budget_check_stats(const pith_model *model, const char *path, pith_error *err);

#define BUDGET_THRESHOLD 64 /* bytes of a threshold as text */

/* The threshold of pages that a file gives in its first line, "auto" or a number. NOT_FOUND: there
   is no file. FORMAT: the line is another. */
pith_status budget_read_threshold(const char *path, char value[BUDGET_THRESHOLD], pith_error *err);

/* Where `pith calibrate` keeps the statistics of a model; the caller frees. */
char *budget_stats_path(const pith_model *model);

/* "82 seconds", "4 minutes": what calibrating a model takes on this machine, about. */
const char *budget_calibration_time(const pith_model_info *info, char buf[32]);

#endif
