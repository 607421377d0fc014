/*
 * plan.h - how to spend bytes of KV memory: storage types, which entries stay, and recall, chosen
 * by what was measured. docs/memory.md says how, and docs/real/budget.md what it costs.
 */
#ifndef PITH_PLAN_H
#define PITH_PLAN_H

#include "pith/pith.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The bytes that may be spent, and for which conversation. */
typedef struct pith_plan_goal {
    int32_t n_token; /* tokens of the longest conversation; 0: the model's trained context */
    double share;    /* of the bytes that the full f16 cache of n_token tokens takes, above 0 and at
                          most 1; 0: bytes says it */
    int64_t bytes;   /* for all that grows with such a conversation */
    const char *stats; /* a file of pith_calibrate_importance for this model; NULL: there is none */
    bool no_text;      /* recall of text cannot be used, where nothing is asked */
    bool drafts;       /* only plans under which tokens can be drafted (PITH_USE_DRAFT) */
    uint32_t reserved[4];
} pith_plan_goal;

/* The choice. Texts are "" where params decide, or for none. */
typedef struct pith_plan {
    char type_k[64], type_v[64]; /* as in pith_engine_params */
    char keep[640];
    char recall[320];
    int32_t n_token;    /* of the goal */
    int32_t chunk;      /* tokens of a pass; 0: params decide */
    int32_t n_entry;    /* entries of a lane that stay, of them */
    int64_t full_bytes; /* pages of the full f16 cache of n_token tokens */
    int64_t bytes;      /* pith_memory_estimate of n_token tokens under the plan */
    /* The measured loss in percent, with errors. Facts: the share that is found, of all that the
       full cache finds; below 0: not measured. Perplexity: its rise; NAN: not measured. */
    float facts, facts_error;
    float perplexity, perplexity_error;
    const char *on; /* the model that it was measured on, a constant; NULL: nothing was measured */
    bool on_its_kind; /* a model of this architecture and size */
    bool wants_stats; /* with statistics (goal.stats) another plan would lose less */
    char loss[80];    /* those figures, for people: "nothing", "not measured" */
    char line[400];   /* all of it, likewise */
    uint32_t reserved[7];
} pith_plan;

/* Chooses how to spend the bytes. All that params name stands: device and pages, a chunk that is
   not 0, and type_k, type_v, keep and recall where they are not NULL. A keep policy without a
   budget gets one. First fewer bits are spent, then fewer entries, then recall, in the order of a
   table of measurements. The weights need not be loaded (vocab_only). INVALID: a goal out of range,
   or no plan fits; the sentence has the least bytes that one takes. Also the statuses of
   pith_memory_estimate. */
PITH_API pith_status pith_plan_make(const pith_model *model, const pith_engine_params *params,
                                    const pith_plan_goal *goal, pith_plan *out, pith_error *err);

/* Sets the chunk and the texts of params that are the plan's, which must outlive the use of params.
   Where nothing is evicted there is no recall. */
PITH_API void pith_plan_apply(const pith_plan *plan, pith_engine_params *params);

/* Bytes of this process with an engine of these params, beside all that grows with conversations.
   They are weights (mapped ones and those on GPUs, too), vocabulary, code, the buffers of a pass,
   and a row of logits that it computes. Subtract it from a limit of the whole process to get
   pith_plan_goal.bytes. Without a model (NULL) it is what the process takes now: so the bytes of
   two models sum to theirs less that. The statuses of pith_memory_estimate; UNSUPPORTED where the
   system does not say. */
PITH_API pith_status pith_process_bytes(const pith_model *model, const pith_engine_params *params,
                                        int64_t *bytes, pith_error *err);

/* Bytes that n_answer answers at once take beside KV memory. Each has a row of logits and a sampler
   of these params (NULL: the default ones). Some have one more row while a pass computes them: 64,
   or 32 MiB of rows, and no fewer than 16. pith_process_bytes has the first. n_draft is rows of
   drafts: the most tokens of one (pith_draft_params.n_max), and one more for each answer that
   drafts. Of a scheduler's answers at most 4 do. The index in which drafts are looked up is not in
   it. INVALID: a number below 0. */
PITH_API pith_status pith_answers_bytes(const pith_model *model, const pith_sample_params *sample,
                                        int32_t n_answer, int32_t n_draft, int64_t *bytes,
                                        pith_error *err);

/* A number, never 0, that tells a model from others by its shape and norms. Files of one model in
   several types have the same (docs/stats.md). */
PITH_API uint64_t pith_model_fingerprint(const pith_model *model);

#ifdef __cplusplus
}
#endif

#endif
