/*
 * recursion.h - the generators and checkers of the recursive state query: a graph, a number of
 * steps of depth-first search, and the state after them. Two forms: the paper's, a question that is
 * answered with JSON, and the trace, in which every step is written out.
 */
#ifndef PI_EVAL_RECURSION_H
#define PI_EVAL_RECURSION_H

#include "graph.h"
#include "prompt.h"

/* One record of the benchmark: its file's fields. Zero it before use. */
struct recursion_record {
    struct graph graph; /* ordered: ascending by label, or as a trace lists it */
    int32_t *label;     /* [n_node] what the nodes are called, in the order of the file; owned */
    int32_t start;      /* node */
    int32_t steps;
    int32_t *stack; /* [n_stack] nodes, from the start on; the last is the current; owned */
    int32_t n_stack;
    int32_t *visited; /* [n_visited] nodes in the order of visiting; owned */
    int32_t n_visited;
};
void eval_record_free(struct recursion_record *r);

/* Fills stack and visited by searching. INVALID when there are fewer steps than r->steps. NOMEM. */
pith_status eval_record_solve(struct recursion_record *r, pith_error *err);

/* Records of a file of the benchmark's format. */
struct recursion_file {
    struct recursion_record *record; /* [n] solved here; owned */
    int32_t n;
    int32_t n_wrong; /* records whose own answer is another */
};
/* Reads text [len], a JSON array of records. FORMAT (which record and field), NOMEM. The caller
   frees with eval_record_file_free, also on failure. */
pith_status eval_record_file_parse(const char *text, size_t len, struct recursion_file *out,
                                   pith_error *err);
void eval_record_file_free(struct recursion_file *f);

/* How an answer compares with a record. */
struct recursion_score {
    bool parsed; /* a state was found in the answer */
    bool node;
    bool stack;   /* exact: the benchmark's primary measure */
    bool depth;   /* as many nodes on the stack */
    bool visited; /* the same set; of traces the same order too */
    double f1;    /* of the visited set */
    double lines; /* of traces: the share of the steps' lines that are right */
};

/* ---- the paper's form: recursion_paper.c ---- */

#define RECURSION_MIN_NODE 10
#define RECURSION_MAX_NODE 30
#define RECURSION_MAX_STEP (2 * RECURSION_MAX_NODE - 2) /* the last with a node on the stack */

/* Draws a record: a tree, a tree with one to three more edges, or a sparse graph (Watts-Strogatz
   with 4 neighbours and 0.1 rewired). It has as many nodes as leave steps to do, and start node 0.
   INVALID for steps beyond 1..RECURSION_MAX_STEP, NOMEM. */
pith_status eval_paper_random(uint64_t seed, int32_t steps, int32_t sample,
                              struct recursion_record *out, pith_error *err);

/* The question. NOMEM shows in the prompt. */
void eval_paper_prompt(const struct recursion_record *r, struct eval_prompt *out);

/* The answer is JSON, looked for in this order: the whole text, a fenced json block, any fenced
   block. Then the first group of braces without inner braces that has current_node in it, and the
   text from the first to the last brace. */
void eval_paper_score(const char *answer, const struct recursion_record *r,
                      struct recursion_score *out);

/* ---- the trace: recursion_trace.c ---- */

#define TRACE_MIN_NODE 6
#define TRACE_MAX_NODE 30
#define TRACE_MAX_STEP (2 * TRACE_MAX_NODE - 2)

/* Draws a graph whose nodes are names, and writes the prompt; refs[0] is all that must follow.
   label holds indices of eval_names. INVALID for steps beyond 1..TRACE_MAX_STEP, NOMEM. */
pith_status eval_trace_make(uint64_t seed, int32_t steps, int32_t sample,
                            struct recursion_record *record, struct eval_prompt *out,
                            pith_error *err);

/* Compares with what must follow. */
void eval_trace_score(const char *answer, const char *expected, struct recursion_score *out);

#endif
