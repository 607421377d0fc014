/*
 * policy.h - what the five verbs share: the shape of a model as a policy sees it, and options,
 * "NAME:key=value,...". A verb has rules (options that each of its policies has) and policies with
 * options of their own. Both are rows of a table, which says how a text becomes a field of a
 * struct.
 */
#ifndef PI_POLICY_H
#define PI_POLICY_H

#include "kv/kv.h"
#include "model/shape.h"
#include "pith/calibrate.h"

/* The shape that a policy works on. Read-only, borrowed until the engine is freed. */
struct policy_model {
    struct kv_geometry g; /* layers without a window, KV heads, head sizes, page length, types */
    int32_t n_group;      /* query heads that share a KV head: h * n_group .. (h + 1) * n_group - 1
                             read KV head h */
    float scale;          /* multiplies q.k */
    const struct pi_rope *rope; /* frequencies with the model's scaling, pairing, 2 * n_pair rotated
                  dimensions; NULL where keys were not rotated or it is not known how */
    const struct pi_rope *const *lane_rope; /* [n_layer] where layers rotate otherwise, with as many
                                               pairs in the same pairing; NULL: all as rope */
    const struct pith_model *model; /* for a fingerprint; NULL where there are only tensors */
    const struct pith_stats *stats; /* of the rule stats=FILE, of these lanes; NULL: none */
};

/* How a layer's keys are rotated; NULL: not known. */
static inline const struct pi_rope *policy_rope(const struct policy_model *m, int32_t layer)
{
    return m->lane_rope != NULL ? m->lane_rope[layer] : m->rope;
}

/* The lanes of all ranks together (base/ranks.h), and which of them are the model's. */
struct policy_whole {
    int32_t n_layer;
    int32_t n_head;
    int32_t first_layer;
    int32_t first_head;
};

static inline struct policy_whole policy_whole(const struct policy_model *m)
{
    if (m->model == NULL)
        return (struct policy_whole){m->g.n_layer, m->g.n_head, 0, 0};
    const struct pi_whole_shape *all = &pi_model_hparams(m->model)->whole;
    return (struct policy_whole){all->n_layer_full, all->n_head_kv, all->first_full,
                                 all->first_head_kv};
}

enum policy_type {
    POLICY_TYPE_COUNT,  /* int32_t: "128" */
    POLICY_TYPE_BUDGET, /* struct policy_budget: "2048", "50%", "64MiB" */
    POLICY_TYPE_REAL,   /* double: "0.5"; min and max are in thousandths; -1: the only word */
    POLICY_TYPE_CHOICE, /* int32_t: the index of one of `words` */
    POLICY_TYPE_TEXT,   /* char[POLICY_TEXT_SIZE], terminated: a file's name; no comma */
    POLICY_TYPE_SIZE,   /* int64_t, bytes: "64MiB", min and max in mebibytes; -1: the only word */
};

#define POLICY_TEXT_SIZE 256

/* One option key. */
struct policy_param {
    const char *key; /* NULL ends a table */
    enum policy_type type;
    size_t offset; /* of the field in the struct that the table fills */
    int32_t min;   /* COUNT, REAL, SIZE, and BUDGET in tokens: min <= value <= max */
    int32_t max;
    const char *fallback; /* the value when the option is not given, as text */
    const char *help;
    const char *const *words; /* CHOICE, SIZE: NULL-terminated */
};

/* Words of a CHOICE: off is 0, on 1. */
extern const char *const policy_switch_words[];

/* Options under a name, read after the defaults and before what the user says: NAME:PRESET,... */
struct policy_preset {
    const char *name; /* NULL ends a table */
    const char *options;
    const char *help;
};

enum policy_unit { POLICY_UNIT_TOKENS, POLICY_UNIT_SHARE, POLICY_UNIT_BYTES };

struct policy_budget {
    enum policy_unit unit;
    int64_t value; /* entries per lane; millionths of the tokens; bytes of the whole sequence */
};

/* The options of one policy: their tables, and the structs that they fill. */
struct policy_options {
    const char *verb; /* "keep", which every sentence begins with */
    const char *name; /* of the policy */
    const struct policy_param *rules;
    void *rule_fields;
    const struct policy_param *own; /* NULL: none */
    void *own_fields;
    const char *defaults;                /* options that are read before the user's; NULL: none */
    const struct policy_preset *presets; /* NULL: none */
};

/* Fills both structs: fallbacks, defaults, and options, which may begin with a preset; NULL or "":
   none. INVALID with a sentence that lists what there is. */
pith_status policy_options_read(const struct policy_options *o, const char *options,
                                pith_error *err);

/* The value that a parameter has when the user says nothing, as text. */
void policy_param_fallback(const char *defaults, const struct policy_param *param, char *out,
                           size_t cap);

/* Whether two structs that a table filled say the same. */
bool policy_fields_same(const struct policy_param *params, const void *a, const void *b);

/* Finds the policy of a text "NAME" or "NAME:options", where name_at(i) is the name of policy i and
   NULL past the last. *index is -1 for NULL and "none"; *options is NULL where there are none.
   INVALID with a sentence that lists the names. */
pith_status policy_find(const char *verb, const char *text, const char *(*name_at)(int32_t i),
                        int32_t *index, const char **options, pith_error *err);

/* The same of a program's own policy, named "custom", which NULL means, too. INVALID: the text
   names another. */
pith_status policy_find_custom(const char *verb, const char *text, const char **options,
                               pith_error *err);

/* ---- verbs ---- */

/* Policy i as the public listing shows it; its options' fields are NULL. */
struct policy_listed {
    const char *summary;
    const char *citation;
    struct policy_options options;
    const char *file; /* the option that it cannot do without; NULL: none */
    uint32_t gpu;     /* this and the next are pith_policy_info's */
    bool ranks_lanes;
};

/* The tables of a verb that listing and checking need. */
struct policy_verb {
    bool (*at)(int32_t i, struct policy_listed *out); /* false past the last */
    pith_status (*check)(const char *text, pith_error *err);
};

extern const struct policy_verb keep_verb, read_verb, recall_verb, share_verb;

#endif
