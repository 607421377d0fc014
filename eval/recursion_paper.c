/*
 * recursion_paper.c - the recursive state query in the paper's form: its records and a generator of
 * records of the same kinds. Also the question, and the reading of the answer. The rules and the
 * format are the benchmark's, the words of the question are our own.
 *
 * Invariant: a record's state is always computed here; the file's is only compared.
 */
#include "recursion.h"

#include "answers.h"

#include <stdlib.h>
#include <string.h>

void eval_record_free(struct recursion_record *r)
{
    graph_free(&r->graph);
    free(r->label);
    free(r->stack);
    free(r->visited);
    *r = (struct recursion_record){0};
}

pith_status eval_record_solve(struct recursion_record *r, pith_error *err)
{
    struct graph_search s;
    pith_status status = graph_search_start(&s, &r->graph, r->start, err);
    for (int32_t i = 0; i < r->steps && status == PITH_OK; i++) {
        if (!graph_search_step(&s))
            status = eval_fail(err, PITH_INVALID, "recursion: steps = %d, the search has only %d",
                               (int)r->steps, (int)i);
    }
    if (status == PITH_OK) {
        free(r->stack);
        free(r->visited);
        r->stack = s.stack;
        r->n_stack = s.n_stack;
        r->visited = s.visited;
        r->n_visited = s.n_visited;
        s.stack = s.visited = NULL;
    }
    graph_search_free(&s);
    return status;
}

/* ---- files ---- */

static pith_status bad(pith_error *err, size_t i, const char *field)
{
    return eval_fail(err, PITH_FORMAT, "recursion: record %d: %s is missing or not valid", (int)i,
                     field);
}

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "recursion: no memory for records");
}

/* The node with a label, -1 when there is none. */
static int32_t node_of(const struct recursion_record *r, const json_t *label)
{
    if (!json_is_integer(label))
        return -1;
    for (int32_t i = 0; i < r->graph.n_node; i++) {
        if (r->label[i] == json_integer_value(label))
            return i;
    }
    return -1;
}

/* Labels ascend, so that the order of nodes is that of the search. */
static pith_status read_nodes(const json_t *nodes, size_t i, struct recursion_record *r,
                              pith_error *err)
{
    size_t n = json_array_size(nodes);
    if (n < 1 || n > GRAPH_MAX_NODE)
        return bad(err, i, "graph.nodes");
    r->label = calloc(n, sizeof(*r->label));
    if (r->label == NULL)
        return no_memory(err);
    for (size_t k = 0; k < n; k++) {
        const json_t *node = json_array_get(nodes, k);
        json_int_t value = json_integer_value(node);
        if (!json_is_integer(node) || value < 0 || value > INT32_MAX)
            return bad(err, i, "graph.nodes");
        r->label[k] = (int32_t)value;
    }
    qsort(r->label, n, sizeof(*r->label), eval_by_size);
    for (size_t k = 1; k < n; k++) {
        if (r->label[k] == r->label[k - 1])
            return bad(err, i, "graph.nodes");
    }
    r->graph.n_node = (int32_t)n;
    return PITH_OK;
}

static pith_status read_edges(const json_t *edges, size_t i, struct recursion_record *r,
                              pith_error *err)
{
    if (!json_is_array(edges))
        return bad(err, i, "graph.edges");
    pith_status status = PITH_OK;
    for (size_t k = 0; k < json_array_size(edges) && status == PITH_OK; k++) {
        const json_t *edge = json_array_get(edges, k);
        int32_t a = node_of(r, json_array_get(edge, 0)), b = node_of(r, json_array_get(edge, 1));
        if (json_array_size(edge) != 2 || a < 0 || b < 0)
            return bad(err, i, "graph.edges");
        status = graph_link(&r->graph, a, b, NULL, err);
    }
    return status != PITH_OK ? status : graph_order(&r->graph, NULL, err);
}

/* Whether a JSON list holds the labels of these nodes, in this order. */
static bool same_list(const json_t *list, const struct recursion_record *r, const int32_t *nodes,
                      int32_t n)
{
    if (!json_is_array(list) || json_array_size(list) != (size_t)n)
        return false;
    for (int32_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, (size_t)i);
        if (!json_is_integer(item) || json_integer_value(item) != r->label[nodes[i]])
            return false;
    }
    return true;
}

/* The nodes of a list, each once; others and repetitions are counted in *n_other. */
static void mark_nodes(const json_t *list, const struct recursion_record *r, bool *in,
                       int32_t *n_other)
{
    *n_other = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        int32_t node = node_of(r, json_array_get(list, i));
        if (node < 0)
            (*n_other)++;
        else
            in[node] = true;
    }
}

static bool same_node(const json_t *node, const struct recursion_record *r)
{
    if (r->n_stack == 0)
        return json_is_null(node);
    return json_is_integer(node) && json_integer_value(node) == r->label[r->stack[r->n_stack - 1]];
}

/* Compares a state in the benchmark's form. */
static void compare(const json_t *state, const struct recursion_record *r,
                    struct recursion_score *out)
{
    static const struct recursion_score none = {0};
    const json_t *stack = json_object_get(state, "stack");
    const json_t *visited = json_object_get(state, "visited_nodes");
    *out = none;
    out->parsed = true;
    out->node = same_node(json_object_get(state, "current_node"), r);
    out->stack = same_list(stack, r, r->stack, r->n_stack);
    out->depth = json_is_array(stack) && json_array_size(stack) == (size_t)r->n_stack;

    bool in[GRAPH_MAX_NODE] = {false};
    int32_t n_other, n_right = 0, n_named;
    mark_nodes(visited, r, in, &n_other);
    n_named = n_other;
    for (int32_t i = 0; i < r->graph.n_node; i++)
        n_named += in[i];
    for (int32_t i = 0; i < r->n_visited; i++)
        n_right += in[r->visited[i]];
    out->visited = json_is_array(visited) && n_right == r->n_visited && n_named == n_right;
    out->f1 = 2.0 * n_right / (n_named + r->n_visited);
}

static pith_status read_record(const json_t *json, size_t i, struct recursion_record *r,
                               bool *wrong, pith_error *err)
{
    const json_t *graph = json_object_get(json, "graph"), *steps = json_object_get(json, "steps");
    const json_t *answer = json_object_get(json, "answer");
    pith_status status = read_nodes(json_object_get(graph, "nodes"), i, r, err);
    if (status == PITH_OK)
        status = read_edges(json_object_get(graph, "edges"), i, r, err);
    if (status != PITH_OK)
        return status;
    r->start = node_of(r, json_object_get(json, "start_node"));
    if (r->start < 0)
        return bad(err, i, "start_node");
    if (!json_is_integer(steps) || json_integer_value(steps) < 0 ||
        json_integer_value(steps) > 2 * GRAPH_MAX_NODE)
        return bad(err, i, "steps");
    r->steps = (int32_t)json_integer_value(steps);
    status = eval_record_solve(r, err);
    if (status == PITH_INVALID)
        return bad(err, i, "steps");
    if (status != PITH_OK)
        return status;
    if (!json_is_object(answer))
        return bad(err, i, "answer");
    struct recursion_score s;
    compare(answer, r, &s);
    *wrong = !(s.node && s.stack && s.visited);
    return PITH_OK;
}

pith_status eval_record_file_parse(const char *text, size_t len, struct recursion_file *out,
                                   pith_error *err)
{
    json_error_t where;
    *out = (struct recursion_file){0};
    json_t *list = json_loadb(text, len, 0, &where);
    size_t n = json_array_size(list);
    pith_status status = PITH_OK;
    if (list == NULL)
        status = eval_fail(err, PITH_FORMAT, "recursion: line %d: %s", where.line, where.text);
    else if (!json_is_array(list) || n == 0 || n > INT32_MAX)
        status = eval_fail(err, PITH_FORMAT, "recursion: the file is no list of records");
    if (status == PITH_OK) {
        out->record = calloc(n, sizeof(*out->record));
        status = out->record != NULL ? PITH_OK : no_memory(err);
    }
    for (size_t i = 0; i < n && status == PITH_OK; i++) {
        bool wrong = false;
        out->n = (int32_t)i + 1; /* half a record is freed too */
        status = read_record(json_array_get(list, i), i, &out->record[i], &wrong, err);
        out->n_wrong += wrong;
    }
    json_decref(list);
    return status;
}

void eval_record_file_free(struct recursion_file *f)
{
    for (int32_t i = 0; i < f->n; i++)
        eval_record_free(&f->record[i]);
    free(f->record);
    *f = (struct recursion_file){0};
}

/* ---- records of our own ---- */

/* A tree, uniform among the labelled ones: the tree of a random Pruefer sequence. */
static pith_status random_tree(struct graph *g, struct eval_rng *rng, pith_error *err)
{
    int32_t n = g->n_node, sequence[RECURSION_MAX_NODE], left[RECURSION_MAX_NODE];
    for (int32_t i = 0; i < n; i++)
        left[i] = 1;
    for (int32_t i = 0; i < n - 2; i++) {
        sequence[i] = eval_rng_below(rng, n);
        left[sequence[i]]++;
    }
    pith_status status = PITH_OK;
    for (int32_t i = 0; i < n - 2 && status == PITH_OK; i++) {
        int32_t leaf = 0;
        while (left[leaf] != 1)
            leaf++;
        status = graph_link(g, leaf, sequence[i], NULL, err);
        left[leaf]--;
        left[sequence[i]]--;
    }
    int32_t ends[2] = {0, 0}, n_end = 0;
    for (int32_t i = 0; i < n && n_end < 2; i++) {
        if (left[i] == 1)
            ends[n_end++] = i;
    }
    return status != PITH_OK ? status : graph_link(g, ends[0], ends[1], NULL, err);
}

/* Up to n more edges; as many attempts as find room in a graph that has it. */
static pith_status add_edges(struct graph *g, int32_t n, struct eval_rng *rng, pith_error *err)
{
    pith_status status = PITH_OK;
    for (int32_t tries = 0; n > 0 && tries < 1000 && status == PITH_OK; tries++) {
        bool added;
        int32_t a = eval_rng_below(rng, g->n_node), b = eval_rng_below(rng, g->n_node);
        status = graph_link(g, a, b, &added, err);
        n -= added;
    }
    return status;
}

/* A ring in which each node has 4 neighbours, a tenth of the edges with a new end. */
static pith_status random_ring(struct graph *g, struct eval_rng *rng, pith_error *err)
{
    pith_status status = PITH_OK;
    for (int32_t k = 1; k <= 2; k++) {
        for (int32_t i = 0; i < g->n_node && status == PITH_OK; i++) {
            bool added = false;
            if (eval_rng_unit(rng) < 0.1)
                status = graph_link(g, i, eval_rng_below(rng, g->n_node), &added, err);
            if (status == PITH_OK && !added)
                status = graph_link(g, i, (i + k) % g->n_node, NULL, err);
        }
    }
    return status;
}

static pith_status is_connected(const struct graph *g, bool *connected, pith_error *err)
{
    struct graph_search s;
    pith_status status = graph_search_start(&s, g, 0, err);
    while (status == PITH_OK && graph_search_step(&s))
        ;
    *connected = s.n_visited == g->n_node;
    graph_search_free(&s);
    return status;
}

static pith_status random_graph(struct graph *g, int32_t n_node, int32_t kind, struct eval_rng *rng,
                                pith_error *err)
{
    graph_free(g);
    g->n_node = n_node;
    pith_status status = kind == 2 ? random_ring(g, rng, err) : random_tree(g, rng, err);
    if (status == PITH_OK && kind == 1)
        status = add_edges(g, 1 + eval_rng_below(rng, 3), rng, err);
    return status != PITH_OK ? status : graph_order(g, NULL, err);
}

pith_status eval_paper_random(uint64_t seed, int32_t steps, int32_t sample,
                              struct recursion_record *out, pith_error *err)
{
    if (steps < 1 || steps > RECURSION_MAX_STEP)
        return eval_fail(err, PITH_INVALID, "recursion: steps = %d is not between 1 and %d",
                         (int)steps, RECURSION_MAX_STEP);
    struct eval_rng rng = eval_rng_make(seed, (uint64_t)steps, (uint64_t)(uint32_t)sample);
    int32_t least = steps / 2 + 1 + steps % 2; /* 2 (n - 1) steps leave the start on the stack */
    if (least < RECURSION_MIN_NODE)
        least = RECURSION_MIN_NODE;
    int32_t n = least + eval_rng_below(&rng, RECURSION_MAX_NODE - least + 1);
    int32_t kind = eval_rng_below(&rng, 3);
    bool connected = false;
    pith_status status = PITH_OK;
    while (status == PITH_OK && !connected) {
        status = random_graph(&out->graph, n, kind, &rng, err);
        if (status == PITH_OK)
            status = is_connected(&out->graph, &connected, err);
    }
    if (status != PITH_OK)
        return status;
    out->label = calloc((size_t)n, sizeof(*out->label));
    if (out->label == NULL)
        return no_memory(err);
    for (int32_t i = 0; i < n; i++)
        out->label[i] = i;
    out->start = 0;
    out->steps = steps;
    return eval_record_solve(out, err);
}

/* ---- the question ---- */

void eval_paper_prompt(const struct recursion_record *r, struct eval_prompt *out)
{
    struct eval_text *t = &out->text;
    int start = r->label[r->start];
    eval_text_add(t, "Here is an undirected graph.\nNodes: [");
    for (int32_t i = 0; i < r->graph.n_node; i++)
        eval_text_printf(t, "%s%d", i > 0 ? ", " : "", (int)r->label[i]);
    eval_text_add(t, "]\nEdges: [");
    for (int32_t i = 0; i < r->graph.n_edge; i++)
        eval_text_printf(t, "%s[%d, %d]", i > 0 ? ", " : "", (int)r->label[r->graph.edge[i][0]],
                         (int)r->label[r->graph.edge[i][1]]);
    eval_text_printf(
        t,
        "]\n\nA depth-first search begins at node %d.\n\nWhat counts as a step:\n- After 0 steps"
        " the search is at node %d and has not moved.\n- A step is one move: either on to a"
        " neighbor or back to the parent.\n- So after 1 step the search is at the first neighbor"
        " that it chose, and after N steps it has moved N times, moves back included.\n\nThe rules"
        " of the search:\n1. Of the neighbors that have not been visited, it always moves to the"
        " one with the smallest number.\n2. When all neighbors have been visited, it moves back to"
        " the parent.\n3. The stack is the whole path from the start node to the current node.\n",
        start, start);
    eval_text_printf(
        t,
        "\nQuestion: after exactly %d steps, which node is the current one, what is on the stack,"
        " and which nodes have been visited?\n\nTo find out: write down every node's neighbors in"
        " ascending order; simulate the steps 1 to %d one after the other; after each step note"
        " the current node, the stack and the visited nodes; then give the state after step"
        " %d.\n\nBegin with \"Analysis:\". End with \"Answer:\" and one JSON object of this form,"
        " with nothing behind it:\n{\"current_node\": 0, \"stack\": [0], \"visited_nodes\":"
        " [0]}\nstack goes from the start node to the current node, visited_nodes is in ascending"
        " order.\n",
        (int)r->steps, (int)r->steps, (int)r->steps);
}

/* ---- the answer ---- */

/* The object with a state in text [len], NULL when it is none. */
static json_t *parse_state(const char *text, size_t len)
{
    json_t *json = json_loadb(text, len, 0, NULL);
    if (json_is_object(json) && json_object_get(json, "current_node") != NULL)
        return json;
    json_decref(json);
    return NULL;
}

/* The first block between ``` marks whose opening has this tag; a state must be in it. */
static json_t *parse_fence(const char *text, const char *tag)
{
    for (const char *at = strstr(text, "```"); at != NULL;) {
        const char *start = at + 3, *end = strstr(start, "```");
        if (end == NULL)
            return NULL;
        size_t n_tag = strlen(tag);
        if (strncmp(start, tag, n_tag) == 0) {
            if (n_tag == 0)
                start += strcspn(start, "{\n`"); /* a tag of another name */
            else
                start += n_tag;
            json_t *state = start < end ? parse_state(start, (size_t)(end - start)) : NULL;
            if (state != NULL)
                return state;
        }
        at = strstr(end + 3, "```");
    }
    return NULL;
}

/* The first { } without braces inside that names current_node. */
static json_t *parse_group(const char *text)
{
    for (const char *open = strchr(text, '{'); open != NULL; open = strchr(open + 1, '{')) {
        size_t len = strcspn(open + 1, "{}");
        if (open[1 + len] != '}')
            continue;
        json_t *state = parse_state(open, len + 2);
        if (state != NULL)
            return state;
    }
    return NULL;
}

void eval_paper_score(const char *answer, const struct recursion_record *r,
                      struct recursion_score *out)
{
    const char *text = eval_visible(answer);
    *out = (struct recursion_score){0};
    json_t *state = parse_state(text, strlen(text));
    if (state == NULL)
        state = parse_fence(text, "json");
    if (state == NULL)
        state = parse_fence(text, "");
    if (state == NULL)
        state = parse_group(text);
    const char *open = strchr(text, '{'), *close = strrchr(text, '}');
    if (state == NULL && open != NULL && close != NULL && close > open)
        state = parse_state(open, (size_t)(close - open) + 1);
    if (state != NULL)
        compare(state, r, out);
    json_decref(state);
}
