/*
 * parallel.h - answers to many prompts, several of them generated at the same time.
 */
#ifndef PI_EVAL_PARALLEL_H
#define PI_EVAL_PARALLEL_H

#include "prompt.h"

/* A prompt and its answer. */
struct eval_asked {
    const struct eval_prompt *prompt; /* borrowed */
    int32_t n_predict;
    pith_sample_params sample;
    struct eval_answer answer; /* set; zero before, freed by the caller */
};

/* Asks all n, n_parallel of them at a time, each as eval_prompt_ask would. Every answer is the one
   that its prompt gets alone. Its seconds are the n-th part of all, and its peak of memory is that
   of all together. Figures of read and recall policies are not in it. The run's memory must hold
   n_parallel items. Adds to the run's totals. UNSUPPORTED for recall of text; otherwise the
   statuses of a scheduler. */
pith_status eval_prompts_ask(struct eval_run *run, const struct eval_setup *setup,
                             struct eval_asked *asked, int32_t n, int32_t n_parallel,
                             pith_error *err);

#endif
