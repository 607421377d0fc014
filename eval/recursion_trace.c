/*
 * recursion_trace.c - the recursive state query as a trace: a graph of names, the search written
 * out step by step, then the state. This is the text that the models of this repository are trained
 * on (scripts/train/reasoning.py); its every character is part of the format.
 *
 * Invariant: a graph is connected, and no node has more than MAX_DEGREE neighbours.
 */
#include "recursion.h"

#include "answers.h"
#include "words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEGREE 4
#define LINE_SIZE 512

/* ---- the graph ---- */

/* A tree in which each node hangs on an earlier one, then up to a quarter more edges. */
static pith_status random_graph(struct graph *g, int32_t n, struct eval_rng *rng, pith_error *err)
{
    pith_status status = PITH_OK;
    g->n_node = n;
    for (int32_t i = 1; i < n && status == PITH_OK; i++) {
        int32_t parent = eval_rng_below(rng, i);
        while (graph_degree(g, parent) >= MAX_DEGREE)
            parent = eval_rng_below(rng, i);
        status = graph_link(g, i, parent, NULL, err);
    }
    for (int32_t k = eval_rng_below(rng, n / 4 + 1); k > 0 && status == PITH_OK; k--) {
        int32_t a = eval_rng_below(rng, n), b = eval_rng_below(rng, n);
        if (graph_degree(g, a) < MAX_DEGREE && graph_degree(g, b) < MAX_DEGREE)
            status = graph_link(g, a, b, NULL, err);
    }
    return status != PITH_OK ? status : graph_order(g, rng, err);
}

static const char *name_of(const struct recursion_record *r, int32_t node)
{
    return eval_names.word[r->label[node]];
}

static pith_status random_record(uint64_t seed, int32_t steps, int32_t sample, struct eval_rng *rng,
                                 struct recursion_record *r, pith_error *err)
{
    if (steps < 1 || steps > TRACE_MAX_STEP)
        return eval_fail(err, PITH_INVALID, "recursion: steps = %d is not between 1 and %d",
                         (int)steps, TRACE_MAX_STEP);
    *rng = eval_rng_make(seed, (uint64_t)steps, (uint64_t)(uint32_t)sample);
    int32_t least = steps / 2 + 1 + steps % 2;
    least = least < TRACE_MIN_NODE ? TRACE_MIN_NODE : least;
    int32_t n = least + eval_rng_below(rng, TRACE_MAX_NODE - least + 1);
    r->label = calloc((size_t)eval_names.n, sizeof(*r->label));
    if (r->label == NULL)
        return eval_fail(err, PITH_NOMEM, "recursion: no memory for names");
    for (int32_t i = 0; i < eval_names.n; i++)
        r->label[i] = i;
    eval_rng_shuffle(rng, r->label, (size_t)eval_names.n, sizeof(*r->label));
    pith_status status = random_graph(&r->graph, n, rng, err);
    if (status != PITH_OK)
        return status;
    r->start = eval_rng_below(rng, n);
    r->steps = steps;
    return eval_record_solve(r, err);
}

/* ---- the text ---- */

static void write_graph(const struct recursion_record *r, struct eval_rng *rng,
                        struct eval_text *out)
{
    int32_t order[TRACE_MAX_NODE], n = r->graph.n_node;
    for (int32_t i = 0; i < n; i++)
        order[i] = i;
    eval_rng_shuffle(rng, order, (size_t)n, sizeof(*order));
    eval_text_add(out, "Graph:\n");
    for (int32_t i = 0; i < n; i++) {
        int32_t first = r->graph.first[order[i]], last = r->graph.first[order[i] + 1];
        eval_text_printf(out, "- %s:", name_of(r, order[i]));
        for (int32_t k = first; k < last; k++)
            eval_text_printf(out, "%s %s", k > first ? "," : "", name_of(r, r->graph.to[k]));
        eval_text_add(out, ".\n");
    }
    eval_text_printf(out, "Search of %d steps from %s.\n", (int)r->steps, name_of(r, r->start));
}

/* The lines of one step, which is then taken. */
static void write_step(const struct recursion_record *r, struct graph_search *s, int32_t step,
                       struct eval_text *out)
{
    int32_t here = s->stack[s->n_stack - 1], next = graph_search_next(s);
    eval_text_printf(out, "Step %d of %d: %s:", (int)step, (int)r->steps, name_of(r, here));
    for (int32_t k = r->graph.first[here]; k < r->graph.first[here + 1]; k++) {
        if (r->graph.to[k] == next)
            break;
        eval_text_printf(out, " %s old,", name_of(r, r->graph.to[k]));
    }
    graph_search_step(s);
    int32_t now = s->stack[s->n_stack - 1];
    if (next < 0)
        eval_text_printf(out, " end. Back to %s.\n", name_of(r, now));
    else
        eval_text_printf(out, " %s new.\n%d %s under %s.\n", name_of(r, next), (int)s->n_visited,
                         name_of(r, next), name_of(r, here));
}

static void write_state(const struct recursion_record *r, struct eval_text *out)
{
    eval_text_printf(out, "State: at %s. Stack:", name_of(r, r->stack[r->n_stack - 1]));
    for (int32_t i = r->n_stack; i-- > 0;)
        eval_text_printf(out, "%s %s", i + 1 < r->n_stack ? " under" : "", name_of(r, r->stack[i]));
    eval_text_add(out, ". Visited:");
    for (int32_t i = 0; i < r->n_visited; i++)
        eval_text_printf(out, "%s %d %s", i > 0 ? "," : "", (int)(i + 1),
                         name_of(r, r->visited[i]));
    eval_text_add(out, ".");
}

pith_status eval_trace_make(uint64_t seed, int32_t steps, int32_t sample,
                            struct recursion_record *record, struct eval_prompt *out,
                            pith_error *err)
{
    struct eval_rng rng;
    struct eval_text trace = {0};
    struct graph_search s = {0};
    pith_status status = random_record(seed, steps, sample, &rng, record, err);
    if (status == PITH_OK)
        status = graph_search_start(&s, &record->graph, record->start, err);
    if (status == PITH_OK) {
        write_graph(record, &rng, &out->text);
        eval_text_printf(&trace, "1 %s.\n", name_of(record, record->start));
        for (int32_t i = 1; i <= steps; i++)
            write_step(record, &s, i, &trace);
        write_state(record, &trace);
        if (trace.failed)
            status = eval_fail(err, PITH_NOMEM, "recursion: no memory for a trace");
        else
            eval_strings_add(&out->refs, trace.data);
    }
    graph_search_free(&s);
    eval_text_free(&trace);
    return status != PITH_OK ? status : eval_prompt_check(out, err);
}

/* ---- the answer ---- */

struct line {
    const char *at; /* NULL: none */
    size_t len;     /* without the line's end and spaces before it */
};

/* The line of text that starts with head, the first one. */
static struct line find_line(const char *text, const char *head)
{
    size_t n = strlen(head);
    for (const char *at = text; at != NULL; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (strncmp(at, head, n) != 0) {
            if (*at == '\0')
                break;
            continue;
        }
        size_t len = strcspn(at, "\n");
        while (len > 0 && (at[len - 1] == ' ' || at[len - 1] == '\r'))
            len--;
        return (struct line){at, len};
    }
    return (struct line){NULL, 0};
}

static bool same_text(struct line a, struct line b)
{
    return a.at != NULL && b.at != NULL && a.len == b.len && memcmp(a.at, b.at, a.len) == 0;
}

/* The part of a line behind mark, up to the next full stop. */
static struct line part_of(struct line l, const char *mark)
{
    size_t n = strlen(mark);
    for (size_t i = 0; l.at != NULL && i + n <= l.len; i++) {
        if (memcmp(l.at + i, mark, n) != 0)
            continue;
        struct line part = {l.at + i + n, 0};
        while (i + n + part.len < l.len && part.at[part.len] != '.')
            part.len++;
        bool whole = i + n + part.len < l.len; /* a part that was cut has no full stop */
        return whole ? part : (struct line){NULL, 0};
    }
    return (struct line){NULL, 0};
}

/* Occurrences of sep in a part, plus one. */
static int32_t items(struct line part, const char *sep)
{
    int32_t n = 1;
    size_t len = strlen(sep);
    for (size_t i = 0; i + len <= part.len; i++)
        n += memcmp(part.at + i, sep, len) == 0;
    return n;
}

/* Whether item i of a list "1 Maria, 2 Anton" is a name in the other list too. */
static int32_t common_names(struct line a, struct line b)
{
    int32_t n = 0;
    for (size_t i = 0; i < a.len;) {
        size_t len = 0;
        while (i + len < a.len && a.at[i + len] != ',')
            len++;
        size_t name = len; /* from the last space on, the name with that space */
        while (name > 0 && a.at[i + name - 1] != ' ')
            name--;
        const char *at = a.at + i + (name > 0 ? name - 1 : 0);
        size_t n_name = (size_t)(a.at + i + len - at);
        for (size_t j = 0; n_name > 1 && j + n_name <= b.len; j++) {
            bool ends = j + n_name == b.len || b.at[j + n_name] == ',';
            if (ends && memcmp(b.at + j, at, n_name) == 0) {
                n++;
                break;
            }
        }
        i += len + 1;
    }
    return n;
}

static double share_of_lines(const char *text, const char *expected)
{
    int32_t n = 0, right = 0;
    for (;; n++) {
        char head[32];
        snprintf(head, sizeof(head), "Step %d of ", (int)(n + 1));
        struct line want = find_line(expected, head);
        if (want.at == NULL)
            return n > 0 ? (double)right / n : 0.0;
        right += same_text(want, find_line(text, head));
    }
}

void eval_trace_score(const char *answer, const char *expected, struct recursion_score *out)
{
    const char *text = eval_visible(answer);
    struct line got = find_line(text, "State:"), want = find_line(expected, "State:");
    struct line stack = part_of(got, "Stack: "), want_stack = part_of(want, "Stack: ");
    struct line visited = part_of(got, "Visited: "), want_visited = part_of(want, "Visited: ");
    *out = (struct recursion_score){0};
    out->parsed = stack.at != NULL;
    out->node = same_text(part_of(got, "at "), part_of(want, "at "));
    out->stack = same_text(stack, want_stack);
    out->depth = stack.at != NULL && items(stack, " under ") == items(want_stack, " under ");
    out->visited = same_text(visited, want_visited);
    if (visited.at != NULL && want_visited.at != NULL) {
        int32_t n = items(visited, ", ") + items(want_visited, ", ");
        out->f1 = 2.0 * common_names(visited, want_visited) / n;
        out->f1 = out->f1 > 1.0 ? 1.0 : out->f1; /* a name said twice */
    }
    out->lines = share_of_lines(text, expected);
}
