/*
 * graph.h - small undirected graphs and a depth-first search that stops after any step.
 */
#ifndef PI_EVAL_GRAPH_H
#define PI_EVAL_GRAPH_H

#include "eval.h"

#define GRAPH_MAX_NODE 4096

/* Nodes are 0..n_node-1. Zero it before use. */
struct graph {
    int32_t n_node;
    int32_t n_edge;
    int32_t cap;        /* of edge, in edges */
    int32_t (*edge)[2]; /* [n_edge] owned */
    int32_t *first;     /* [n_node + 1] where a node's neighbours start in to; owned */
    int32_t *to;        /* [2 * n_edge] neighbours in the order of the search; owned */
};
void graph_free(struct graph *g);

/* Adds an edge between two nodes; an edge that is there already, or from a node to itself, is left
   out. *added (may be NULL) says which. NOMEM. */
pith_status graph_link(struct graph *g, int32_t a, int32_t b, bool *added, pith_error *err);

int32_t graph_degree(const struct graph *g, int32_t node); /* counts the edges */

/* Lists the neighbours: ascending, or shuffled where rng is given. NOMEM. */
pith_status graph_order(struct graph *g, struct eval_rng *rng, pith_error *err);

/* A depth-first search. A step goes to the first neighbour, in the graph's order, that was not
   visited, or back when there is none. The step back from the start empties the stack. */
struct graph_search {
    const struct graph *g; /* borrowed; ordered */
    int32_t *stack;        /* [n_stack] the path from the start to here; owned, as all below */
    int32_t n_stack;
    int32_t *visited; /* [n_visited] in the order of visiting */
    int32_t n_visited;
    int32_t *number; /* [n_node] place in visited, from 1; 0: not visited */
};

/* NOMEM. The caller frees with graph_search_free, also on failure. */
pith_status graph_search_start(struct graph_search *s, const struct graph *g, int32_t start,
                               pith_error *err);
void graph_search_free(struct graph_search *s);

/* The neighbour that the next step goes to, -1 for a step back; the stack must not be empty. */
int32_t graph_search_next(const struct graph_search *s);

/* Takes a step. False when the stack is empty. */
bool graph_search_step(struct graph_search *s);

#endif
