/*
 * tasks.h - every task of `pith eval` in one table: its options, their defaults, and the call. The
 * command reads the options from its command line, a sweep reads them from its file.
 */
#ifndef PI_EVAL_TASKS_H
#define PI_EVAL_TASKS_H

#include "facts.h"
#include "kept.h"
#include "option.h"

/* The arguments that several tasks have; the first member of every task's own. */
struct task_common {
    const char *path; /* of the file that it reads; NULL: none */
    const char *text; /* [len] borrowed: its bytes, where eval_task_wants_text */
    size_t len;
    bool paired; /* also under the full cache, and .. */
    bool not_paired;
};

/* The arguments of each task. They are the parameters of eval.h, and beside them the options that
   are lists, names and pairs of flags. */
struct perplexity_args {
    struct task_common common;
    struct eval_perplexity_params p;
};

struct stack_args {
    struct task_common common;
    struct eval_stack_params p;
    struct option_texts budgets;
};

struct divergence_args {
    struct task_common common;
    struct eval_divergence_params p;
};

struct needle_args {
    struct task_common common;
    struct eval_needle_params p;
    const char *style;
    struct option_ints lengths;
    struct option_shares depths;
};

struct ruler_args {
    struct task_common common;
    struct option_texts tasks;
    struct option_ints lengths;
    int32_t n_sample;
    const char *haystack;
    const char *squad, *hotpotqa;
    bool no_example;
};

struct recursion_args {
    struct task_common common;
    struct eval_recursion_params p;
};

struct derivation_args {
    struct task_common common;
    struct option_ints parts;
    int32_t n_sample;
    int32_t n_predict;
};

struct share_args {
    struct task_common common;
    struct eval_share_params p;
    struct option_texts rows;
    float fit;
    const char *forced;
};

struct questions_args {
    struct task_common common;
    struct eval_questions_params p;
};

struct longbench_args {
    struct task_common common;
    struct eval_longbench_params p;
};

struct facts_args {
    struct task_common common;
    struct eval_facts_texts_params p;
    const char *style;
    struct option_ints lengths;
    bool cut_once; /* needs a file */
    int32_t n_context;
};

struct replay_args {
    struct task_common common;
    struct option_texts policies;
    struct option_texts readers;
    struct option_ints at;
    int32_t n_query;
    int32_t n_missing;
};

struct kept_args {
    struct task_common common;
    struct eval_kept_params p;
};

union eval_args {
    struct task_common common;
    struct perplexity_args perplexity;
    struct stack_args stack;
    struct divergence_args divergence;
    struct needle_args needle;
    struct ruler_args ruler;
    struct recursion_args recursion;
    struct derivation_args derivation;
    struct share_args share;
    struct questions_args questions;
    struct longbench_args longbench;
    struct facts_args facts;
    struct replay_args replay;
    struct kept_args kept;
};

/* Their tables of options; offsets are offsets in union eval_args. */
extern const struct option eval_perplexity_options[], eval_stack_options[],
    eval_divergence_options[], eval_needle_options[], eval_ruler_options[],
    eval_recursion_options[], eval_derivation_options[], eval_share_options[],
    eval_questions_options[], eval_longbench_options[], eval_facts_options[], eval_replay_options[],
    eval_kept_options[];

struct eval_task {
    const char *name; /* NULL ends the table */
    const struct option *options;
    const union eval_args *defaults;
    bool (*reads_itself)(const union eval_args *a); /* its file, by path; NULL: it wants the text */
    bool drops_newline;                             /* one at the end of the text */
    bool in_sweeps;                                 /* one that compares policies is not */
    bool (*is_random)(const union eval_args *a);    /* another seed is another measurement;
                                                           NULL: always */
    pith_status (*run)(const struct eval_setup *setup, const union eval_args *a, json_t **result,
                       pith_error *err);
};

extern const struct eval_task eval_task_table[];

/* NULL when there is none. */
const struct eval_task *eval_task_find(const char *name);

/* A sentence on options that do not go together; NULL: they do. */
const char *eval_task_check(const struct eval_task *task, const union eval_args *a);

/* Whether the text of its file, when one is named, belongs into the arguments. */
bool eval_task_wants_text(const struct eval_task *task, const union eval_args *a);

/* Puts it there; text must stay until the task has run. */
void eval_task_set_text(const struct eval_task *task, union eval_args *a, const char *text,
                        size_t len);

#endif
