/*
 * longbench.h - the data sets and metrics of LongBench: Bai et al., "LongBench: A Bilingual,
 * Multitask Benchmark for Long Context Understanding", 2023. Prompts, lengths of answers and
 * formulas are the benchmark's.
 */
#ifndef PI_EVAL_LONGBENCH_H
#define PI_EVAL_LONGBENCH_H

#include "prompt.h"

enum longbench_metric {
    LONGBENCH_QA_F1,        /* F1 of the words, without articles and punctuation */
    LONGBENCH_ROUGE,        /* ROUGE-L of summaries, as the package "rouge" 1.0.1 */
    LONGBENCH_CLASS,        /* the class is named, among few others */
    LONGBENCH_RETRIEVAL,    /* the share of numbers that are that of "Paragraph N" */
    LONGBENCH_RETRIEVAL_ZH, /* the same in Chinese */
    LONGBENCH_COUNT,        /* the share of numbers that are the truth */
    LONGBENCH_CODE,         /* likeness of the first line of code, as fuzzywuzzy on difflib */
    LONGBENCH_NONE,         /* words of Chinese, which only a dictionary tells */
};

struct longbench_set {
    const char *name;
    enum longbench_metric metric;
    int32_t n_predict;
    bool plain;         /* asked without a chat template */
    bool first_line;    /* only the answer's first line counts */
    bool one_line;      /* the answer ends with its line */
    const char *prompt; /* with {context} and {input} */
};

/* NULL: there is no such set. */
const struct longbench_set *eval_longbench_find(const char *name);

/* The prompt with an item's texts in it. Out of memory shows in *out. */
void eval_longbench_prompt(const struct longbench_set *set, const char *context, const char *input,
                           struct eval_text *out);

/* The score of an answer beside one truth, 0 to 1. classes: of LONGBENCH_CLASS. NOMEM. */
pith_status eval_longbench_score(enum longbench_metric metric, const char *answer,
                                 const char *truth, const struct eval_strings *classes,
                                 double *score, pith_error *err);

#endif
