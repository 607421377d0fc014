/*
 * plan_table.h - the ways to spend bytes of KV memory, and what was measured of them. plan.c
 * chooses by it.
 */
#ifndef PI_PLAN_TABLE_H
#define PI_PLAN_TABLE_H

#include "base/base.h"

enum plan_way_id {
    PLAN_F16,
    PLAN_Q8,
    PLAN_Q8_TURBO4,
    PLAN_Q8_TURBO3,
    PLAN_TURBO4,
    PLAN_KVZAP_TURBO4,
    PLAN_KVZAP,
    PLAN_KVZAP_TEXT,
    PLAN_V3_TEXT,
    PLAN_V3_KV,
    PLAN_V3,
    PLAN_STREAMING_TEXT,
    PLAN_STREAMING,
    PLAN_N_WAY,
};

struct plan_way {
    const char *type_k; /* NULL: the fewest bits that the model's head size takes */
    const char *type_v;
    const char *keep;   /* without its budget; NULL: every entry stays */
    const char *recall; /* NULL: none */
    bool stats;         /* the policy wants statistics of the model */
};

/* The figures of one cell, in percent. */
struct plan_point {
    enum plan_way_id way;
    float bytes;            /* of the full f16 cache's */
    float facts, error;     /* found, of those that the full cache finds; below 0: not measured */
    float rise, rise_error; /* of perplexity; NAN: not measured */
};

struct plan_choice {
    enum plan_way_id way;
    double least; /* share of the tokens whose entries must stay, else it is passed over */
};

/* A model that was measured. */
struct plan_class {
    const char *name;
    const char *architecture;
    double n_param;
    const struct plan_choice *order; /* of preference, ended by PLAN_N_WAY */
    const struct plan_point *point;  /* [n_point] of a way with falling bytes */
    size_t n_point;
};

extern const struct plan_way pi_plan_ways[PLAN_N_WAY];

/* The measured model that is nearest: of the architecture before others, then by size. *same: it is
   of this architecture, and less than twice as large or small. */
const struct plan_class *pi_plan_class(const char *architecture, double n_param, bool *same);

#endif
