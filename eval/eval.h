/*
 * eval.h - the measuring tasks of `pith eval`. Every task takes the same setup and gives the same
 * shape of result. So one printer, one sweep and one report serve all of them.
 *
 * The tasks stand on the public header alone, so they measure the library as its users have it.
 */
#ifndef PI_EVAL_H
#define PI_EVAL_H

#include <jansson.h>
#include "pith/scheduler.h"

/* Called between items: fraction in [0,1] of the task, what is being done ("4096 tokens, depth
   0.50"). Return false to cancel. */
typedef bool eval_progress_fn(void *user, double fraction, const char *what);

/* The most tokens of a text, or of an answer: sums of a few are far within int32_t. */
#define EVAL_MAX_TOKENS (1 << 24)

struct eval_setup {
    const pith_model *model;   /* borrowed, like everything else here, by a run until it is freed */
    pith_engine_params engine; /* of the measured run; its policy is what is measured */
    uint64_t seed;             /* of everything that a task draws */
    bool chat;                 /* prompts go through the model's chat template */
    int64_t most_bytes;        /* of KV memory of all engines of a task, where it sizes them itself;
                                  0: as it needs */
    bool keep_text;            /* rows carry prompt and answer texts */
    eval_progress_fn *progress; /* may be NULL */
    void *progress_user;
};

/*
 * A result is a JSON object:
 *   "task"     name
 *   "model"    general.name
 *   "policy"   the options of the keep policy as given, "full" without any
 *   "read"     the read policy's; absent without any
 *   "recall"   recall's; absent without any
 *   "share"    the share policy's; absent without any
 *   "store"    storage types of keys and values, "q8_0/turbo3"; absent where both are f16
 *   "settings" object: what the task was asked, enough to repeat it
 *   "summary"  object: the figures; "score" (0..1, more is better) where the task has one, and
 *              always "n" (items), "prompt_tokens", "generated_tokens", "seconds",
 *              "tokens_per_s" (generated), "prompt_tokens_per_s", "prompt_seconds" (of all
 *              prompts), "kv_peak_bytes",
 *              "evicted" (entries, summed over lanes and sequences), "rounds", "read_share" (of
 *              the entries that lanes held when they were attended to: those that were read);
 *              with recall the object "recall" (figures of struct eval_recall_cost);
 *              with a share policy the object "share" (figures of struct eval_share_cost);
 *              "note", a text, where something must be said about the run
 *   "rows"     array of objects with the same keys in the same order, one per item or cell
 *   "columns"  of them those that a table shows; absent: all
 */

/* The work of recall for items; sums but for the bytes. */
struct eval_recall_cost {
    int64_t recalls; /* passes that chose guests, or texts that were retrieved */
    int64_t stored;  /* entries that the tier held at the end of items, or spans in the store */
    int64_t lost;
    int64_t guests;     /* of the last recall of each item */
    int64_t tokens;     /* of text that was put into prompts, beside those that are counted there */
    int64_t ram_bytes;  /* at the end of the item that took most */
    int64_t file_bytes; /* likewise */
    double seconds;
};

/* The work of a share policy for items; sums. */
struct eval_share_cost {
    int64_t steps; /* that ended, of which */
    int64_t similar;
    int64_t pages;  /* that others stood for */
    int64_t tokens; /* in them, and */
    int64_t of;     /* of all tokens, prompts included */
    double seconds;
};

/* One generated answer and what it cost. */
struct eval_answer {
    char *text; /* owned, terminated; freed by eval_answer_free */
    size_t len;
    int32_t n_prompt;
    int32_t n_generated;
    pith_stop_reason reason;
    double prompt_s;
    double generate_s;
    int64_t kv_peak_bytes;
    int64_t evicted;
    int64_t rounds;
    int64_t stored; /* entries of lanes, summed over everything that attended to them, .. */
    int64_t read;   /* .. and the entries that were read */
    int64_t steps;  /* single tokens times lanes, and of them those that read a part */
    int64_t steps_sparse;
    int64_t step_gate; /* as in pith_read_stats */
    struct eval_recall_cost recall;
    struct eval_share_cost share;
};
void eval_answer_free(struct eval_answer *a);

/* Adds the cost of other items; of memory the most counts. Texts and reasons stay as they are. */
void eval_add_cost(struct eval_answer *sum, const struct eval_answer *cost);

/* Rows of logits that divergence holds where setup->most_bytes bounds memory. */
#define EVAL_BOUNDED_STEP 16

/* The engine of a running task and its totals. */
struct eval_run; /* run.c */

/* Sequences of n_token tokens that fit setup->most_bytes, from 1 to n_seq. As many are in an engine
   of the params beside (NULL: there is none). */
int32_t eval_seqs_that_fit(const struct eval_setup *setup, const pith_engine_params *beside,
                           int32_t n_token, int32_t n_seq);

/* KV memory for n_seq sequences of n_token tokens, as the policy leaves them, where the params do
   not say otherwise. */
pith_status eval_size_memory(const pith_model *model, int32_t n_token, int32_t n_seq,
                             pith_engine_params *params, pith_error *err);

/* n_token: the most tokens one item takes, prompt and answer. KV memory is sized for it unless
   setup->engine says otherwise; 0: it does, or the library chooses. */
pith_status eval_run_create(const struct eval_setup *setup, int32_t n_token, struct eval_run **out,
                            pith_error *err);
void eval_run_free(struct eval_run *run); /* NULL is ignored */

/* Tokens of a prompt text, BOS as the model asks. *ids is malloc'ed, the caller frees. With
   setup->chat, text is a user's message and prefix opens the answer, behind an empty thinking block
   where the template opens one. Otherwise prefix follows text directly. prefix may be NULL. */
pith_status eval_encode(const struct eval_setup *setup, const char *text, const char *prefix,
                        int32_t **ids, int32_t *n_id, pith_error *err);

/* pith_tokenize into memory that the caller frees. */
pith_status eval_tokenize(const pith_model *model, const char *text, size_t len, uint32_t flags,
                          int32_t **ids, int32_t *n_id, pith_error *err);

/* Sets *thinks: the model's chat template leaves a thinking block open in front of an answer that
   has no prefix. So the answer begins with thoughts and not with the mark of the block. */
pith_status eval_thinks(const struct eval_setup *setup, bool *thinks, pith_error *err);

/* Reads the prompt into a fresh sequence and generates at most n_predict tokens, greedily unless
   sample is given. It stops at an end token or at one of stop [n_stop]. message is the user's
   within the prompt's text, which recall `text` looks for its question in; NULL: there is none.
   Adds to the run's totals. */
pith_status eval_ask(struct eval_run *run, const int32_t *ids, int32_t n_id, const char *message,
                     int32_t n_predict, const pith_sample_params *sample, const char *const *stop,
                     int32_t n_stop, struct eval_answer *out, pith_error *err);

/* Adds an answer without a text to the run's totals, for tasks that evaluate by themselves. */
void eval_run_add(struct eval_run *run, const struct eval_answer *cost);
pith_engine *eval_run_engine(struct eval_run *run); /* owned by the run */

/* Makes a pith_progress_fn of the setup's callback, for the passes of one item. It repeats the last
   fraction of eval_progress, so that a long evaluation can be cancelled. user is the run. */
bool eval_progress_step(void *run, double fraction);

/* Tells the setup's progress callback; CANCELLED when it returned false. */
pith_status eval_progress(struct eval_run *run, double fraction, pith_error *err, const char *what,
                          ...) __attribute__((format(printf, 4, 5)));

/* A result with "task", "model", "policy", perhaps "read", "recall", "share" and "store",
   "settings" (stolen) and "rows" (stolen). Its "summary" holds n and the run's totals; the task
   adds its own figures. NULL when out of memory. */
json_t *eval_result(const struct eval_run *run, const char *task, int32_t n, json_t *settings,
                    json_t *rows);

/* The options of the keep policy as a result names them: as given, "full" without any. */
const char *eval_policy(const pith_engine_params *params);
/* The options of the read policy as given, NULL without any. */
const char *eval_read(const pith_engine_params *params);
/* The options of recall, NULL without any. */
const char *eval_recall(const pith_engine_params *params);
/* INVALID for recall `text` in a task that asks nothing, whose sentence names the task. */
pith_status eval_check_recall(const struct eval_setup *setup, const char *task, pith_error *err);
/* Storage types as a result names them, "q8_0/turbo3"; "" where both are f16. */
void eval_store(const pith_engine_params *params, char *buf, size_t cap);
/* The options of a policy with budget=BUDGET behind them; malloc'ed, NULL: no memory. */
char *eval_add_budget(const char *options, const char *budget);
bool eval_is_full(const pith_engine_params *params);  /* nothing is evicted */
bool eval_is_plain(const pith_engine_params *params); /* and everything is read */

/* Adds a sequence's figures of its policies to *cost. */
void eval_account(const pith_seq *seq, struct eval_answer *cost);
/* The same of a scheduler's result of an answer; its tokens, too. */
void eval_account_result(const pith_answer_result *result, struct eval_answer *cost);

/* A number of JSON; null where value is not finite, which JSON cannot say. NULL: out of memory. */
json_t *eval_number(double value);

/* A text of JSON, null for NULL; what is not UTF-8 becomes U+FFFD, as JSON demands. NULL: out of
   memory. */
json_t *eval_json_text(const char *text);

/* A list of token ids. NULL: no memory. */
json_t *eval_json_ids(const int32_t *ids, int32_t n);

/* Seconds of a monotonic clock; of processor time that all threads have had, 0 where the system
   does not say. */
double eval_clock_s(void);
double eval_cpu_s(void);

/* ---- random numbers: the same on every machine ---- */

struct eval_rng {
    uint64_t state;
};
/* Any mix of numbers: the stream depends on all of them. */
struct eval_rng eval_rng_make(uint64_t seed, uint64_t a, uint64_t b);
uint64_t eval_rng_next(struct eval_rng *rng);
int32_t eval_rng_below(struct eval_rng *rng, int32_t n); /* uniform in [0, n), n > 0 */
double eval_rng_unit(struct eval_rng *rng);              /* [0, 1) */
void eval_rng_shuffle(struct eval_rng *rng, void *items, size_t n, size_t item_size);

/* Compares two int32_t for qsort, the smaller first. */
int eval_by_size(const void *a, const void *b);

/* ---- text under construction ---- */

struct eval_text {
    char *data; /* owned, terminated; NULL while empty */
    size_t len;
    size_t cap;
    bool failed; /* out of memory: later calls do nothing */
};
void eval_text_add(struct eval_text *t, const char *s);
/* A value as JSON, by flags of Jansson. */
void eval_text_add_json(struct eval_text *t, const json_t *value, size_t flags);
void eval_text_add_n(struct eval_text *t, const char *s, size_t len);
void eval_text_printf(struct eval_text *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void eval_text_clear(struct eval_text *t); /* keeps the memory */
void eval_text_free(struct eval_text *t);

/* A copy in well-formed UTF-8: what is none becomes U+FFFD. The caller frees; NULL: no memory. */
char *eval_utf8(const char *text);

/* A whole file without a byte order mark, terminated; the caller frees. IO, NOMEM. */
pith_status eval_read_file(const char *path, char **text, size_t *len, pith_error *err);

/* Whether a file can be written there, before anything is computed for it; leaves a present file
   unchanged. IO names the path and the reason. */
pith_status eval_check_file(const char *path, pith_error *err);

/* Writes a text to a file that appears whole or not at all; where the path is a device, to the
   device (base/new_file.h). IO names the path and the reason, NOMEM. */
pith_status eval_write_file(const char *path, const struct eval_text *text, pith_error *err);

/* Takes a byte order mark, which some editors write, off the start of text [len]; the length
   left. */
size_t eval_drop_mark(char *text, size_t len);

/* Mean and half width of the 95 % interval (Wilson's for a share of successes). */
struct eval_interval {
    double mean, low, high;
};
struct eval_interval eval_wilson(double successes, double n);

/* Puts value by its printf-like conversion into err and returns status. */
pith_status eval_fail(pith_error *err, pith_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- tasks ---- */

struct eval_perplexity_params {
    const char *text; /* [text_len] */
    size_t text_len;
    int32_t n_ctx;   /* -c: tokens of a chunk */
    int32_t n_batch; /* -b: tokens evaluated at once. Beyond n_ctx: as many chunks side by side as
                        it holds whole */
    int32_t n_chunk; /* 0: all */
    bool paired;     /* also against the full cache, token by token, in the same run */
    const char *reference_type; /* the full cache's storage; NULL: as the measured one's */
};
pith_status eval_perplexity(const struct eval_setup *setup,
                            const struct eval_perplexity_params *params, json_t **result,
                            pith_error *err);

struct eval_stack_params {
    const char *text; /* [text_len] */
    size_t text_len;
    int32_t n_ctx;              /* tokens of a chunk */
    int32_t n_batch;            /* tokens evaluated at once, at most n_ctx */
    int32_t n_chunk;            /* 0: all */
    const char *reference_type; /* storage of the full cache that all else is compared with; NULL:
                                   "f16" */
    const char *const *budgets; /* [n_budget] each given to the keep policy, which must have none */
    int32_t n_budget;           /* 0: the keep policy as it is */
    int32_t n_repeat;           /* times that the text is read under each configuration: the least
                                   seconds count */
};
/* The effects that storage types, read policy, keep policy and recall of setup->engine have on one
   text, alone and together. Rows: one per configuration, the first the full cache. */
pith_status eval_stack(const struct eval_setup *setup, const struct eval_stack_params *params,
                       json_t **result, pith_error *err);

struct eval_divergence_params {
    const char *text; /* [text_len] */
    size_t text_len;
    int32_t n_ctx;              /* tokens of a chunk */
    int32_t n_chunk;            /* 0: all */
    const char *reference_type; /* as for perplexity */
};
pith_status eval_divergence(const struct eval_setup *setup,
                            const struct eval_divergence_params *params, json_t **result,
                            pith_error *err);

/* Texts and values that an eval_needle_params leaves NULL. */
enum eval_needle_style {
    EVAL_NEEDLE_PAPER, /* the secret code word PURPLE ELEPHANT 7742 */
    EVAL_NEEDLE_PITH,  /* "The password of Maria is copper lantern.", drawn anew for each text */
};

struct eval_needle_params {
    enum eval_needle_style style;
    const char *haystack; /* [haystack_len]; NULL: RULER's noise */
    size_t haystack_len;
    /* Templates: {name}, {word} and {number} stand for a fact's subject and its two parts. With
       several needles, needle and question must hold {name}, needle also {word} and {number}. NULL:
       the style's. */
    const char *needle; /* sentence */
    const char *question;
    const char *prefix;     /* opening of the answer; "": none */
    const char *word;       /* the two parts of the answer: "PURPLE ELEPHANT" .. */
    const char *number;     /* .. and "7742"; NULL: the style's, which may be drawn */
    const int32_t *lengths; /* [n_length] tokens of the whole prompt */
    int32_t n_length;
    const double *depths; /* [n_depth] in [0,1] */
    int32_t n_depth;
    int32_t n_needle; /* facts in the text, one of them asked about; 1: the needle alone */
    int32_t n_repeat; /* texts per cell */
    int32_t n_predict;
    bool paired; /* also under the full cache, text by text, in the same run */
};
pith_status eval_needle(const struct eval_setup *setup, const struct eval_needle_params *params,
                        json_t **result, pith_error *err);

enum eval_haystack {
    EVAL_HAYSTACK_TASK,
    EVAL_HAYSTACK_NOISE,
    EVAL_HAYSTACK_TEXT,
    EVAL_HAYSTACK_NEEDLES
};

struct eval_ruler_params {
    const char *const *tasks; /* [n_task] names; "all" stands for every one */
    int32_t n_task;
    const int32_t *lengths; /* [n_length] tokens, the answer included */
    int32_t n_length;
    int32_t n_sample;            /* per task and length */
    enum eval_haystack haystack; /* TASK: as RULER has it for each task */
    const char *text;            /* [text_len] prose for text haystacks, or NULL */
    size_t text_len;
    const char *squad;    /* the file of qa_1, and .. */
    const char *hotpotqa; /* .. that of qa_2; NULL: "all" leaves the task out */
    bool example;         /* vt and cwe: one worked example before the question, as RULER has */
};
pith_status eval_ruler(const struct eval_setup *setup, const struct eval_ruler_params *params,
                       json_t **result, pith_error *err);

struct eval_recursion_params {
    const char *path;  /* a file of the benchmark's format, or NULL: generated */
    int32_t min_steps; /* also of the records of a file */
    int32_t max_steps;
    int32_t step_stride;
    int32_t n_sample;   /* per number of steps; of a file at most, 0: all */
    int32_t n_predict;  /* 0, of traces only: a right trace's length and a quarter more */
    int32_t n_parallel; /* answers that are generated at the same time, 1 or more */
    bool trace;         /* the trace format that pith-mini is trained on, not the paper's prompt */
};
pith_status eval_recursion(const struct eval_setup *setup,
                           const struct eval_recursion_params *params, json_t **result,
                           pith_error *err);

struct eval_derivation_params {
    const int32_t *parts; /* [n_part] sums of an item, each a row of the result */
    int32_t n_part;
    int32_t n_sample;  /* per number of sums */
    int32_t n_predict; /* 0: a right text's length and a quarter more */
};
pith_status eval_derivation(const struct eval_setup *setup,
                            const struct eval_derivation_params *params, json_t **result,
                            pith_error *err);

/* Whose the answers of `share` are. */
enum eval_share_answers {
    EVAL_SHARE_WRITTEN,  /* the model's, judged as `derivation` judges them */
    EVAL_SHARE_RIGHT,    /* given: right derivations, token by token */
    EVAL_SHARE_VERBATIM, /* given: steps of which half recur letter by letter */
};

struct eval_share_params {
    int32_t n_request; /* submitted at once */
    int32_t n_part;    /* sums of each derivation: steps of an answer */
    int32_t n_example; /* worked derivations that all prompts begin with, the same for all */
    int32_t n_predict; /* most tokens of an answer; 0: a right one's length and a quarter more */
    double fit;        /* KV memory: the share of the requests that the full cache holds at once */
    enum eval_share_answers answers;
    int32_t n_line; /* of each step of EVAL_SHARE_VERBATIM, about 35 tokens in pith-mini's */
    const char *const *rows; /* [n_row] ways to run them, as share_rows_parse (share.h) reads them;
                                the first is what the others are compared with */
    int32_t n_row;           /* 0: the usual ones, with policies of setup->engine */
    int32_t n_repeat;        /* medians are taken of n_repeat rounds over all rows */
};
/* Many requests in one KV memory that holds a part of them: throughput, memory and accuracy for
   each way to run them. setup->engine.share adds a row of it, and setup->engine.keep takes the
   place of the usual keep policy. Its kv_bytes take the place of the size that `fit` gives. */
pith_status eval_share(const struct eval_setup *setup, const struct eval_share_params *params,
                       json_t **result, pith_error *err);

#define EVAL_QUESTIONS_INSTRUCTION                                                                 \
    "Please reason step by step, and put your final answer within \\boxed{}."

struct eval_questions_params {
    const char *path;   /* JSONL */
    int32_t n_question; /* 0: all */
    int32_t n_draw;     /* answers per question */
    int32_t n_parallel; /* answers that are generated at the same time, 1 or more */
    int32_t n_predict;
    pith_sample_params sample;
    const char *instruction; /* appended to each problem, or NULL */
};
pith_status eval_questions(const struct eval_setup *setup,
                           const struct eval_questions_params *params, json_t **result,
                           pith_error *err);

struct eval_longbench_params {
    const char *path;    /* JSONL of the benchmark */
    const char *dataset; /* NULL: as the file or its lines name it */
    int32_t n_item;      /* 0: all */
    int32_t n_length;    /* most tokens of a prompt, the middle of a longer one is left out; 0: as
                            many as the model's context holds */
    int32_t n_predict;   /* most tokens of an answer; 0: the data set's */
    int32_t n_parallel;  /* answers that are generated at the same time, 1 or more */
};
/* A data set of LongBench, greedily, with its prompts and metrics. Rows: one per class of
   length. */
pith_status eval_longbench(const struct eval_setup *setup,
                           const struct eval_longbench_params *params, json_t **result,
                           pith_error *err);

/* Policies on recorded tensors; needs no model in the setup, and of its engine params the storage
   types and the page length. Rows: one per policy, stop, layer and KV head; docs/eval.md describes
   their figures. With several policies the rows name theirs, and the summary has the figures of
   each in "policies" in place of a score. */
struct eval_replay_params {
    const char *path; /* a file of docs/record.md */
    /* Tried one after the other: every keep policy with the setup's read policy, then every read
       policy with the setup's keep policy. Without any of either they are the setup's. */
    const char *const *policies; /* [n_policy] each as in pith_engine_params.keep */
    int32_t n_policy;
    const char *const *readers; /* [n_reader] each as in pith_engine_params.read */
    int32_t n_reader;
    const int32_t *at; /* [n_at] stops: tokens read when the lanes are looked at, ascending */
    int32_t n_at;      /* 0: one stop, before the last n_query tokens */
    int32_t n_query;   /* tokens after a stop whose queries judge what is gone, at least 1; a read
                          policy sees them as one chunk */
    int32_t n_missing; /* most evicted or unread positions that a row names */
};
pith_status eval_replay(const struct eval_setup *setup, const struct eval_replay_params *params,
                        json_t **result, pith_error *err);

#endif
