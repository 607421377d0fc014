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
    const char *const *stop; /* [n_stop] borrowed */
    int32_t n_stop;
    struct eval_answer answer; /* set; zero before, freed by the caller */
};

/* eval_run_create with memory for n_parallel items of n_token tokens, unless setup->engine says
   otherwise. */
pith_status eval_run_create_many(const struct eval_setup *setup, int32_t n_token,
                                 int32_t n_parallel, struct eval_run **out, pith_error *err);

/* Asks all n, n_parallel of them at a time, each as eval_prompt_ask would. Every answer is the one
   that its prompt gets alone. Its seconds are the n-th part of all, and its peak of memory is that
   of all together. The run's memory must hold n_parallel items. Adds to the run's totals. The
   statuses of a scheduler. With n_parallel 1 one is asked behind the other. */
pith_status eval_prompts_ask(struct eval_run *run, const struct eval_setup *setup,
                             struct eval_asked *asked, int32_t n, int32_t n_parallel,
                             pith_error *err);

#endif
