/*
 * grammar_program.h - rules as automata over bytes that call each other. Immutable once compiled.
 */
#ifndef PI_GRAMMAR_PROGRAM_H
#define PI_GRAMMAR_PROGRAM_H

#include "text/grammar/grammar_expr.h"

enum grammar_node_kind {
    GRAMMAR_NODE_END,   /* of the rule: goes on behind the call */
    GRAMMAR_NODE_EDGES, /* takes a byte: edges a to a + b - 1 */
    GRAMMAR_NODE_SPLIT, /* goes on at a and at b, without a byte */
    GRAMMAR_NODE_CALL,  /* rule a, then node b */
};

enum { GRAMMAR_END = 0, GRAMMAR_DEAD = 1 }; /* nodes that are always there; DEAD has no edges */

struct grammar_node {
    uint8_t kind;
    uint32_t a, b;
};

struct grammar_edge {
    uint8_t lo, hi;
    uint32_t next;
};

struct grammar_program {
    struct grammar_node *node; /* [n_node], owned */
    struct grammar_edge *edge; /* [n_edge], owned */
    uint32_t *start;           /* [n_rule] nodes, owned */
    uint32_t *rank;            /* [n_rule] a rule that begins with another comes first; owned */
    uint8_t *empty;            /* [n_rule] whether it has the empty text; owned */
    uint32_t n_node, n_edge, n_rule, root;
    uint32_t n_class;
    uint8_t class_of[256]; /* bytes that no edge tells apart have one class */
    uint8_t byte_of[256];  /* [n_class] some byte of a class */
};

/* Compiles the tree's rules. Rules that can never end are cut off. INVALID: a rule begins with
   itself, or nothing that the root allows ever ends; UNSUPPORTED: too large; NOMEM. The caller
   frees, also after a failure. */
pith_status grammar_compile(struct grammar_tree *tree, struct grammar_program *out,
                            pith_error *err);
void grammar_program_free(struct grammar_program *p);

/* The second part of it (grammar_check.c): left recursion, dead ends, byte classes. */
pith_status grammar_check(struct grammar_tree *tree, struct grammar_program *p, pith_error *err);

#endif
