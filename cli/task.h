/*
 * task.h - the common part of the tasks of `pith eval` on the command line. It has the options of
 * model, cache and output, and the way from them to a result that is printed.
 */
#ifndef CLI_TASK_H
#define CLI_TASK_H

#include <eval.h>

#include "command.h"
#include "session.h"

struct measure_options {
    int64_t seed;
    bool chat;
    bool keep_text;
    bool progress;
    const char *json;
    const char *csv;
};

/* The first member of every task's options. */
struct eval_options {
    struct model_options model;
    struct memory_options memory;
    struct measure_options measure;
    enum session_pairs pairs; /* whether the task reads the full cache, too. No option */
    bool asks;                /* questions, which recall of text answers. No option */
    int64_t longest; /* tokens of the longest text that the task reads; 0: not known. No option */
};

extern const struct option measure_option_table[];

/* The groups that every task with a model has; they stand in a table of a task whose options begin
   with a struct eval_options. The size of the KV memory in tokens is not among them: a task knows
   how many it takes, and perplexity calls its chunks -c. */
#define EVAL_MODEL_GROUP                                                                           \
    {                                                                                              \
        "Model", model_option_table, offsetof(struct eval_options, model)                          \
    }
#define EVAL_GROUPS                                                                                \
    {"Measuring", measure_option_table, offsetof(struct eval_options, measure)},                   \
        {"KV memory", memory_option_table + 1, offsetof(struct eval_options, memory)}, LLAMA_GROUP

void eval_options_default(struct eval_options *o);

/* Runs a task: options is the task's whole struct. */
typedef pith_status measure_fn(const struct eval_setup *setup, const void *options, json_t **result,
                               pith_error *err);

/* Loads the model, measures, prints; options begins with a struct eval_options. Returns the exit
   status, or fails with a sentence. */
int eval_command_run(void *options, measure_fn *measure);
/* The same for a task that needs no model. */
int eval_command_run_alone(void *options, measure_fn *measure);

/* The tasks that have files of their own. */
extern const struct command task_sweep;
extern const struct command task_report;

extern const struct command *const eval_tasks[]; /* ends with NULL */

#endif
