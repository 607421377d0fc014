/*
 * traits.h - what the policies of an engine imply together. It is computed once, when the engine is
 * configured. All others ask it, and look at no policy to find out which ones there are.
 */
#ifndef PI_TRAITS_H
#define PI_TRAITS_H

#include "policy/keep/rules/options.h"
#include "policy/read/read.h"
#include "policy/recall/recall.h"
#include "policy/share/share.h"

/* ---- options ---- */

/* The policies of an engine, fitted to its lanes and to each other. A plain value. */
struct policy_set {
    struct keep_config keep;
    struct read_config read;
    struct recall_config recall;
    struct share_config share;
    struct kv_type_choice k; /* what was asked for keys */
};

/* Reads the policies of params. INVALID, in one sentence. */
pith_status policy_set_parse(const pith_engine_params *params, struct policy_set *out,
                             pith_error *err);

/* Entries of a page where params do not say. */
int32_t policy_set_page_len(const struct policy_set *set);

/* Fits what was parsed to lanes, whose types are known, and to each other; g gets what pages hold
   beside entries. INVALID, UNSUPPORTED, in one sentence. */
pith_status policy_set_fit(struct policy_set *set, struct kv_geometry *g, pith_error *err);

/* The first verb that has a policy, as options name it; NULL: none has. */
const char *policy_set_verb(const struct policy_set *set);

/* Reads a text as a sequence's own budget: keep_point's scale. Statuses of keep_read_scale;
   UNSUPPORTED: with a share policy. */
pith_status policy_set_read_scale(const struct policy_set *set, const struct kv_geometry *lanes,
                                  const char *text, double *scale, pith_error *err);

/* Bytes of KV memory that one sequence takes at most while it grows to to.n_token tokens, guests
   and the ends of steps included. to.n_prompt is as for keep_bytes_to. */
int64_t policy_set_bytes(const struct policy_set *set, const struct kv_geometry *g,
                         struct keep_point to);

/* ---- what follows from them ---- */

/* The pages that a sequence may give to the cache of prefixes. */
enum engine_publishes {
    ENGINE_PUBLISHES_NOTHING,
    ENGINE_PUBLISHES_PROMPTS, /* not what it generated */
    ENGINE_PUBLISHES_ALL,
};

struct engine_traits {
    /* ---- which policies there are ---- */
    bool evicts;       /* a keep policy */
    bool reads_parts;  /* a read policy */
    bool recalls_kv;   /* recall of entries */
    bool recalls_text; /* recall as text */
    bool shares;       /* a share policy */
    bool full;         /* none of them */
    bool centred;      /* keys are stored less the common part of a lane's keys */
    bool coarse_keys;  /* of few bits, which some models store in q8_0 instead */
    const char *keep;  /* the keep policy's name; NULL: there is none */
    const char *read;  /* likewise */

    /* ---- what the keep policy wants; 0 and false without one ---- */
    uint32_t needs;    /* set of keep_need */
    size_t state_size; /* bytes of the block that each sequence has for it; known when it is open */
    int32_t n_mark;    /* floats that each entry carries along */
    bool overwrites;   /* full lanes are overwritten */
    bool waits;        /* its rounds wait for a prompt's end */

    /* ---- what lanes have in common; false without a policy of the verb ---- */
    bool bytes;         /* the keep budget is in bytes, of all lanes together */
    bool uneven_heads;  /* a budget is split over heads, or over lanes by a file */
    bool uneven_layers; /* it is split over layers */
    bool lanes_apart;   /* each lane decides for itself which entries stay */
    bool heads_share;   /* the heads of a layer share its budget by their scores */
    bool reads_for_all; /* a layer chooses what others read */
    bool reads_file;    /* of projections, for all layers */

    /* ---- what follows ---- */
    /* The policy remembers more of a sequence than the entries that are there. */
    bool remembers;
    /* A sequence's memory is bounded whatever it generates, and rounds copy shared pages. */
    bool bounded;
    /* A prompt may be read in several evaluations, and leave the tokens as they would be. Where
       steps count, none of them may be of a single token. */
    bool cuts_prompts;
    /* It matters that generated tokens are evaluated one by one. */
    bool counts_steps;
    /* Prefixes of other sequences can begin one and leave its tokens as they would be. */
    bool takes_prefixes;
    enum engine_publishes publishes;
    /* The policy on whose account an evaluation does not show what full attention sees: "keep" or
       "read"; NULL: it shows all. */
    const char *hides;
};

/* Of options that were fitted. Uses over ranks can be asked about before that. */
struct engine_traits engine_traits_compute(const struct policy_set *set);

/* Whether sequences may be used so. UNSUPPORTED with why not, in one sentence. */
pith_status engine_traits_check(const struct engine_traits *t, pith_use use, pith_error *err);

/* A remark on a use that there is: one sentence, or none. */
void engine_traits_note(const struct engine_traits *t, pith_use use, pith_error *out);

/* Why a sequence is not swapped while it has guests of recall. */
extern const char engine_guests_stay[];

#endif
