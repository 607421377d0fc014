/*
 * call.h - a task of `pith eval` for other languages: options and result are texts of JSON, and
 * this header needs nothing but Pith's public ones.
 */
#ifndef PI_EVAL_CALL_H
#define PI_EVAL_CALL_H

#include "pith/pith.h"

typedef struct pith_eval_params {
    const pith_model *model;          /* all are borrowed until the call ends */
    const pith_engine_params *engine; /* of the measured run; its policy is what is measured */
    const char *task;                 /* "needle" */
    const char *options; /* a JSON object with the keys that a sweep's file has; NULL: none */
    uint64_t seed;       /* of everything that the task draws */
    bool chat;           /* prompts go through the model's chat template */
    bool keep_text;      /* rows carry prompt and answer texts */
    /* Called between items: fraction in [0,1], what is being done. False cancels. May be NULL. */
    bool (*progress)(void *user, double fraction, const char *what);
    void *user;
} pith_eval_params;

/* Sets *result to the JSON that `pith eval TASK --json` writes; the caller frees it with
   pith_eval_free. NOT_FOUND without such a task, INVALID with a sentence on the option, CANCELLED,
   or the task's own failure. */
pith_status pith_eval(const pith_eval_params *params, char **result, pith_error *err);
void pith_eval_free(char *result); /* NULL is ignored */

#endif
