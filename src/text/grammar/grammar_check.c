/*
 * grammar_check.c - the conditions of a compiled grammar: no rule begins with itself, and from
 * every node that a text gets to it can end. Nodes from which nothing ends are cut off. Rules get a
 * rank by which of them begin with which, and bytes that no edge tells apart one class.
 */
#include "base/mem.h"
#include "text/grammar/grammar_program.h"

/* ---- ends ---- */

/* Whether a node reaches its rule's end; empty: without any byte. rule [n_rule]: of rules. */
static bool node_ends(const struct grammar_program *p, uint32_t i, const uint8_t *ends,
                      const uint8_t *rule, bool empty)
{
    const struct grammar_node *n = &p->node[i];
    switch (n->kind) {
    case GRAMMAR_NODE_END:
        return true;
    case GRAMMAR_NODE_SPLIT:
        return ends[n->a] || ends[n->b];
    case GRAMMAR_NODE_CALL:
        return rule[n->a] && ends[n->b];
    default:
        for (uint32_t k = 0; k < n->b && !empty; k++)
            if (ends[p->edge[n->a + k].next])
                return true;
        return false;
    }
}

/* Least fixed point. Nodes come behind their followers but for loops, so a few rounds do, unless
   rules call each other in long chains. Rounds are counted as the heap's steps. */
static pith_status find_ends(struct grammar_tree *t, const struct grammar_program *p, uint8_t *ends,
                             uint8_t *rule, bool empty, pith_error *err)
{
    bool changed = true;
    while (changed) {
        changed = false;
        if (!jinja_charge(&t->heap, 1 + (p->n_node + p->n_rule) / 16))
            return pi_fail(err, PITH_UNSUPPORTED, "the grammar's %u rules take too long to check",
                           p->n_rule);
        for (uint32_t i = 0; i < p->n_node; i++)
            if (!ends[i] && node_ends(p, i, ends, rule, empty))
                ends[i] = changed = true;
        for (uint32_t r = 0; r < p->n_rule; r++)
            if (!rule[r] && ends[p->start[r]])
                rule[r] = changed = true;
    }
    return PITH_OK;
}

/* A node that cannot end is replaced by one without edges, and so are edges to one. */
static void cut_off(struct grammar_program *p, const uint8_t *ends)
{
    for (uint32_t i = 0; i < p->n_node; i++) {
        struct grammar_node *n = &p->node[i];
        if (!ends[i]) {
            *n = (struct grammar_node){GRAMMAR_NODE_EDGES, 0, 0};
            continue;
        }
        uint32_t left = 0;
        for (uint32_t k = 0; n->kind == GRAMMAR_NODE_EDGES && k < n->b; k++)
            if (ends[p->edge[n->a + k].next])
                p->edge[n->a + left++] = p->edge[n->a + k];
        if (n->kind == GRAMMAR_NODE_EDGES)
            n->b = left;
    }
}

/* ---- left recursion ---- */

enum { NEW, OPEN, DONE };

struct walk {
    const struct grammar_program *p;
    const uint8_t *empty_rule; /* [n_rule] */
    uint8_t *node_state;       /* [n_node] */
    uint32_t *finish;          /* [n_node] when it was done: before all that lead to it */
    uint32_t n_finish;
};

/* Follows a rule's nodes without taking a byte; nodes are open while what they lead to is looked
   at. Returns a node that leads to itself through a call, or UINT32_MAX. Loops within a rule are no
   harm: only calls lay something on the stack. */
struct place {
    uint32_t node;
    uint8_t next; /* which successor comes next */
    bool called;  /* got here by a call */
};

static uint32_t successor(const struct walk *w, struct place *at, bool *called)
{
    const struct grammar_node *n = &w->p->node[at->node];
    uint8_t i = at->next++;
    *called = false;
    if (n->kind == GRAMMAR_NODE_SPLIT && i < 2)
        return i == 0 ? n->a : n->b;
    if (n->kind == GRAMMAR_NODE_CALL && i == 0) {
        *called = true;
        return w->p->start[n->a];
    }
    if (n->kind == GRAMMAR_NODE_CALL && i == 1 && w->empty_rule[n->a])
        return n->b;
    return UINT32_MAX;
}

/* Calls between the place where an open node was entered and the top of the stack. */
static bool calls_since(const struct place *stack, size_t n, uint32_t node)
{
    while (n > 0 && stack[n - 1].node != node)
        if (stack[--n].called)
            return true;
    return false;
}

static bool find_cycle(struct walk *w, uint32_t from, struct place *stack, uint32_t *where)
{
    size_t n = 0;
    if (w->node_state[from] != NEW)
        return false;
    stack[n++] = (struct place){from, 0, false};
    w->node_state[from] = OPEN;
    while (n > 0) {
        bool called;
        uint32_t next = successor(w, &stack[n - 1], &called);
        if (next == UINT32_MAX) {
            w->node_state[stack[--n].node] = DONE;
            w->finish[stack[n].node] = ++w->n_finish;
        } else if (w->node_state[next] == NEW) {
            stack[n++] = (struct place){next, 0, called};
            w->node_state[next] = OPEN;
        } else if (w->node_state[next] == OPEN && (called || calls_since(stack, n, next))) {
            *where = next;
            return true;
        }
    }
    return false;
}

/* The name of a rule that begins at a node that leads to itself. */
static const char *name_at(const struct grammar_tree *t, const struct grammar_program *p,
                           uint32_t node)
{
    for (uint32_t r = 0; r < t->n_rule; r++)
        if (p->start[r] == node && t->rule[r].name[0] != '\0')
            return t->rule[r].name;
    return NULL;
}

/* A node that is led to without leading back is done earlier. */
static void set_ranks(struct grammar_program *p, const struct walk *w)
{
    for (uint32_t r = 0; r < p->n_rule; r++)
        p->rank[r] = w->n_finish - w->finish[p->start[r]];
}

static pith_status check_recursion(const struct grammar_tree *t, struct grammar_program *p,
                                   const uint8_t *empty_rule, pith_error *err)
{
    struct walk w = {.p = p, .empty_rule = empty_rule};
    struct place *stack = pi_mem_alloc_n(PI_MEM_OTHER, p->n_node + 1, sizeof(*stack));
    w.node_state = pi_mem_alloc_n(PI_MEM_OTHER, p->n_node, 1);
    w.finish = pi_mem_alloc_n(PI_MEM_OTHER, p->n_node, sizeof(*w.finish));
    pith_status status = PITH_OK;
    if (stack == NULL || w.node_state == NULL || w.finish == NULL)
        status = pi_fail(err, PITH_NOMEM, "no memory to check a grammar of %u nodes", p->n_node);
    for (uint32_t r = 0; status == PITH_OK && r < p->n_rule; r++) {
        uint32_t where;
        if (!find_cycle(&w, p->start[r], stack, &where))
            continue;
        const char *name = name_at(t, p, where);
        status = pi_fail(err, PITH_INVALID, "rule %s: it begins with itself (left recursion)",
                         name != NULL ? name : t->rule[r].name);
    }
    if (status == PITH_OK)
        set_ranks(p, &w);
    pi_mem_free(stack);
    pi_mem_free(w.finish);
    pi_mem_free(w.node_state);
    return status;
}

/* ---- classes ---- */

static void find_classes(struct grammar_program *p)
{
    bool cut[257] = {false};
    for (uint32_t i = 0; i < p->n_edge; i++) {
        cut[p->edge[i].lo] = true;
        cut[p->edge[i].hi + 1] = true;
    }
    cut[0x20] = cut[0x7f] = cut[0x80] = true; /* plain characters of the vocabulary's tree */
    for (int b = '"'; b <= '\\'; b += '\\' - '"')
        cut[b] = cut[b + 1] = true;
    p->n_class = 0;
    for (int b = 0; b < 256; b++) {
        if (b == 0 || cut[b])
            p->byte_of[p->n_class++] = (uint8_t)b;
        p->class_of[b] = (uint8_t)(p->n_class - 1);
    }
}

/* ---- all of it ---- */

static pith_status check_with(struct grammar_tree *t, struct grammar_program *p, uint8_t *node,
                              uint8_t *rule, pith_error *err)
{
    p->rank = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)p->n_rule + 1, sizeof(*p->rank));
    p->empty = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)p->n_rule + 1, sizeof(*p->empty));
    if (node == NULL || rule == NULL || p->rank == NULL || p->empty == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory to check a grammar of %u nodes", p->n_node);
    PI_TRY(find_ends(t, p, node, rule, true, err));
    memcpy(p->empty, rule, p->n_rule);
    PI_TRY(check_recursion(t, p, rule, err));
    memset(node, 0, p->n_node);
    memset(rule, 0, p->n_rule);
    PI_TRY(find_ends(t, p, node, rule, false, err));
    if (!rule[p->root])
        return pi_fail(err, PITH_INVALID, "rule %s: no text that it allows ever ends",
                       t->rule[p->root].name);
    cut_off(p, node);
    find_classes(p);
    return PITH_OK;
}

pith_status grammar_check(struct grammar_tree *tree, struct grammar_program *p, pith_error *err)
{
    uint8_t *node = pi_mem_alloc_n(PI_MEM_OTHER, p->n_node, 1);
    uint8_t *rule = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)p->n_rule + 1, 1);
    pith_status status = check_with(tree, p, node, rule, err);
    pi_mem_free(node);
    pi_mem_free(rule);
    return status;
}
