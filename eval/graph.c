/*
 * graph.c - graphs as lists of edges, and depth-first search over them. It knows neither names nor
 * texts.
 *
 * Invariant: edges are distinct and join different nodes.
 */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

void graph_free(struct graph *g)
{
    free(g->edge);
    free(g->first);
    free(g->to);
    *g = (struct graph){0};
}

pith_status graph_link(struct graph *g, int32_t a, int32_t b, bool *added, pith_error *err)
{
    bool is_new = a != b;
    for (int32_t i = 0; i < g->n_edge && is_new; i++) {
        const int32_t *e = g->edge[i];
        is_new = !((e[0] == a && e[1] == b) || (e[0] == b && e[1] == a));
    }
    if (added != NULL)
        *added = is_new;
    if (!is_new)
        return PITH_OK;
    if (g->n_edge == g->cap) {
        int32_t cap = g->cap > 0 ? 2 * g->cap : 64;
        int32_t(*edge)[2] = realloc(g->edge, (size_t)cap * sizeof(*edge));
        if (edge == NULL)
            return eval_fail(err, PITH_NOMEM, "recursion: no memory for a graph");
        g->edge = edge;
        g->cap = cap;
    }
    g->edge[g->n_edge][0] = a;
    g->edge[g->n_edge][1] = b;
    g->n_edge++;
    return PITH_OK;
}

int32_t graph_degree(const struct graph *g, int32_t node)
{
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_edge; i++)
        n += g->edge[i][0] == node || g->edge[i][1] == node;
    return n;
}

pith_status graph_order(struct graph *g, struct eval_rng *rng, pith_error *err)
{
    free(g->first);
    free(g->to);
    g->first = calloc((size_t)g->n_node + 1, sizeof(*g->first));
    g->to = calloc(2 * (size_t)g->n_edge + 1, sizeof(*g->to));
    if (g->first == NULL || g->to == NULL)
        return eval_fail(err, PITH_NOMEM, "recursion: no memory for a graph");
    int32_t n = 0;
    for (int32_t node = 0; node < g->n_node; node++) {
        int32_t *list = g->to + n, len = 0;
        g->first[node] = n;
        for (int32_t i = 0; i < g->n_edge; i++) {
            const int32_t *e = g->edge[i];
            if (e[0] == node || e[1] == node)
                list[len++] = e[0] == node ? e[1] : e[0];
        }
        if (rng != NULL)
            eval_rng_shuffle(rng, list, (size_t)len, sizeof(*list));
        else
            qsort(list, (size_t)len, sizeof(*list), eval_by_size);
        n += len;
    }
    g->first[g->n_node] = n;
    return PITH_OK;
}

static void visit(struct graph_search *s, int32_t node)
{
    s->stack[s->n_stack++] = node;
    s->visited[s->n_visited++] = node;
    s->number[node] = s->n_visited;
}

pith_status graph_search_start(struct graph_search *s, const struct graph *g, int32_t start,
                               pith_error *err)
{
    size_t n = (size_t)g->n_node;
    *s = (struct graph_search){.g = g,
                               .stack = calloc(n, sizeof(int32_t)),
                               .visited = calloc(n, sizeof(int32_t)),
                               .number = calloc(n, sizeof(int32_t))};
    if (s->stack == NULL || s->visited == NULL || s->number == NULL)
        return eval_fail(err, PITH_NOMEM, "recursion: no memory for a search");
    visit(s, start);
    return PITH_OK;
}

void graph_search_free(struct graph_search *s)
{
    free(s->stack);
    free(s->visited);
    free(s->number);
    *s = (struct graph_search){0};
}

int32_t graph_search_next(const struct graph_search *s)
{
    int32_t here = s->stack[s->n_stack - 1];
    for (int32_t i = s->g->first[here]; i < s->g->first[here + 1]; i++) {
        if (s->number[s->g->to[i]] == 0)
            return s->g->to[i];
    }
    return -1;
}

bool graph_search_step(struct graph_search *s)
{
    if (s->n_stack == 0)
        return false;
    int32_t next = graph_search_next(s);
    if (next < 0)
        s->n_stack--;
    else
        visit(s, next);
    return true;
}
