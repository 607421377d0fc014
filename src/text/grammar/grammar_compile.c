/*
 * grammar_compile.c - expressions to nodes. Each expression is compiled from its end: compile(e,
 * next) gives the node where e begins if next follows it. So tails that are the same are shared,
 * and a list of n optional parts takes O(n) nodes.
 *
 * Invariant: bytes on a path from a rule's start to its end are whole UTF-8 characters wherever the
 * expression was of characters. Depth is the heap's to bound.
 */
#include "base/mem.h"
#include "base/utf8.h"
#include "text/grammar/grammar_program.h"

#define NODE_MAX (1u << 22)
#define INLINE_COPIES 64 /* of a large part that is repeated; more share a rule */
#define SMALL_NODES 8

struct compiler {
    struct grammar_tree *tree;
    struct grammar_program *p;
    uint32_t cap_node, cap_edge;
    uint32_t n_compiled; /* rules */
};

static uint32_t compile(struct compiler *c, grammar_expr *e, uint32_t next);

/* ---- nodes ---- */

static uint32_t add_node(struct compiler *c, enum grammar_node_kind kind, uint32_t a, uint32_t b)
{
    struct grammar_program *p = c->p;
    if (jinja_failed(&c->tree->heap))
        return GRAMMAR_DEAD;
    if (p->n_node == c->cap_node) {
        uint32_t cap = c->cap_node > 0 ? 2 * c->cap_node : 256;
        struct grammar_node *node = pi_mem_grow(PI_MEM_OTHER, p->node, cap, sizeof(*node));
        if (node == NULL || cap > NODE_MAX) {
            p->node = node != NULL ? node : p->node;
            jinja_fail(&c->tree->heap, node == NULL ? PITH_NOMEM : PITH_UNSUPPORTED,
                       "the grammar takes more than %u nodes", p->n_node);
            return GRAMMAR_DEAD;
        }
        p->node = node;
        c->cap_node = cap;
    }
    p->node[p->n_node] = (struct grammar_node){(uint8_t)kind, a, b};
    return p->n_node++;
}

static void add_edge(struct compiler *c, uint8_t lo, uint8_t hi, uint32_t next)
{
    struct grammar_program *p = c->p;
    if (p->n_edge == c->cap_edge) {
        uint32_t cap = c->cap_edge > 0 ? 2 * c->cap_edge : 256;
        struct grammar_edge *edge = pi_mem_grow(PI_MEM_OTHER, p->edge, cap, sizeof(*edge));
        if (edge == NULL) {
            jinja_fail(&c->tree->heap, PITH_NOMEM, "no memory for a grammar of %u edges", cap);
            return;
        }
        p->edge = edge;
        c->cap_edge = cap;
    }
    p->edge[p->n_edge++] = (struct grammar_edge){lo, hi, next};
}

static uint32_t one_edge(struct compiler *c, uint8_t lo, uint8_t hi, uint32_t next)
{
    uint32_t first = c->p->n_edge;
    add_edge(c, lo, hi, next);
    return add_node(c, GRAMMAR_NODE_EDGES, first, 1);
}

static uint32_t split(struct compiler *c, uint32_t a, uint32_t b)
{
    return a == b ? a : add_node(c, GRAMMAR_NODE_SPLIT, a, b);
}

static uint32_t compile_bytes(struct compiler *c, grammar_expr *e, uint32_t next)
{
    for (uint32_t i = e->n; i-- > 0;)
        next = one_edge(c, (uint8_t)e->bytes[i], (uint8_t)e->bytes[i], next);
    return next;
}

/* ---- characters ---- */

/* Nodes of continuation bytes that one set of characters has made, to be used again. */
#define TAILS 32
struct tails {
    struct {
        uint8_t lo, hi;
        uint32_t next, node;
    } t[TAILS];
    int n;
    struct grammar_edge lead[256 * 4];
    int n_lead;
};

static uint32_t tail(struct compiler *c, struct tails *s, uint8_t lo, uint8_t hi, uint32_t next)
{
    for (int i = 0; i < s->n; i++)
        if (s->t[i].lo == lo && s->t[i].hi == hi && s->t[i].next == next)
            return s->t[i].node;
    uint32_t node = one_edge(c, lo, hi, next);
    if (s->n < TAILS) {
        s->t[s->n].lo = lo;
        s->t[s->n].hi = hi;
        s->t[s->n].next = next;
        s->t[s->n++].node = node;
    }
    return node;
}

/* lo and hi have as many bytes, and differ in such a way that each byte's range is free of the
   others'. */
static void add_sequence(struct compiler *c, struct tails *s, uint32_t lo, uint32_t hi,
                         uint32_t next)
{
    char a[4], b[4];
    size_t n = pi_utf8_encode(lo, a);
    pi_utf8_encode(hi, b);
    for (size_t i = n; i-- > 1;)
        next = tail(c, s, (uint8_t)a[i], (uint8_t)b[i], next);
    if (s->n_lead < (int)PI_LEN(s->lead)) {
        s->lead[s->n_lead++] = (struct grammar_edge){(uint8_t)a[0], (uint8_t)b[0], next};
        return;
    }
    jinja_fail(&c->tree->heap, PITH_UNSUPPORTED, "a set of characters has too many ranges");
}

/* Cuts lo..hi where the number of bytes changes, and so that behind a byte that varies all
   continuation bytes are possible. */
static void add_range(struct compiler *c, struct tails *s, uint32_t lo, uint32_t hi, uint32_t next)
{
    static const uint32_t last[] = {0x7f, 0x7ff, 0xffff};
    while (lo <= hi && !jinja_failed(&c->tree->heap)) {
        uint32_t end = hi;
        for (int i = 0; i < 3; i++)
            if (lo <= last[i] && end > last[i])
                end = last[i];
        for (int shift = 6; shift <= 18 && end > 0x7f; shift += 6) {
            uint32_t mask = (1u << shift) - 1;
            if ((lo & ~mask) == (end & ~mask))
                continue;
            if ((lo & mask) != 0)
                end = lo | mask;
            else if ((end & mask) != mask)
                end = (end & ~mask) - 1;
        }
        add_sequence(c, s, lo, end, next);
        lo = end + 1;
    }
}

static uint32_t compile_chars(struct compiler *c, grammar_expr *e, uint32_t next)
{
    struct tails s = {.n = 0};
    for (uint32_t i = 0; i < e->n; i++)
        add_range(c, &s, e->range[i].lo, e->range[i].hi, next);
    uint32_t first = c->p->n_edge;
    for (int i = 0; i < s.n_lead; i++)
        add_edge(c, s.lead[i].lo, s.lead[i].hi, s.lead[i].next);
    return add_node(c, GRAMMAR_NODE_EDGES, first, (uint32_t)s.n_lead);
}

/* ---- parts ---- */

/* Whether an expression takes a few nodes only. */
static bool is_small(grammar_expr *e, int32_t *left)
{
    switch (e->kind) {
    case GRAMMAR_BYTES:
        *left -= (int32_t)pi_min(e->n, SMALL_NODES);
        break;
    case GRAMMAR_CHARS:
        *left -= e->n > 0 && e->range[e->n - 1].hi > 0x7f ? SMALL_NODES : 1;
        break;
    case GRAMMAR_REF:
        *left -= 1;
        break;
    default:
        *left = 0;
    }
    return *left > 0;
}

/* An expression that is repeated often becomes a rule of its own. */
static grammar_expr *shared(struct compiler *c, grammar_expr *e, int32_t copies)
{
    int32_t left = SMALL_NODES + 1;
    if (copies <= 2 || is_small(e, &left) || (e->kind == GRAMMAR_CHARS && copies <= INLINE_COPIES))
        return e;
    uint32_t rule = grammar_rule_new(c->tree, "", 0);
    if (jinja_failed(&c->tree->heap))
        return e;
    c->tree->rule[rule].expr = e;
    return grammar_ref(c->tree, rule);
}

static uint32_t loop_of(struct compiler *c, grammar_expr *x, uint32_t next)
{
    uint32_t loop = add_node(c, GRAMMAR_NODE_SPLIT, next, next);
    uint32_t body = compile(c, x, loop);
    if (loop != GRAMMAR_DEAD)
        c->p->node[loop].a = body;
    return loop;
}

static uint32_t compile_times(struct compiler *c, grammar_expr *x, int32_t min, int32_t max,
                              uint32_t next)
{
    x = shared(c, x, max > 0 ? max : min);
    uint32_t at = max < 0 ? loop_of(c, x, next) : next;
    for (int32_t i = min; i < max && !jinja_failed(&c->tree->heap); i++)
        at = split(c, compile(c, x, at), next);
    for (int32_t i = 0; i < min && !jinja_failed(&c->tree->heap); i++)
        at = compile(c, x, at);
    return at;
}

/* Parts in order, none or any of the optional ones, with something between those that are there.
   first is where the rest begins if nothing was there yet, later if something was. */
static uint32_t compile_list(struct compiler *c, grammar_expr *e, uint32_t next)
{
    uint32_t first = next, later = next;
    if (e->more != NULL) {
        grammar_expr *another = grammar_seq2(c->tree, e->between, e->more);
        later = compile_times(c, another, e->min, e->max, next);
        int32_t min = e->min > 0 ? e->min - 1 : 0, max = e->max > 0 ? e->max - 1 : e->max;
        uint32_t rest = compile_times(c, another, min, max, next);
        first = e->max == 0 ? next : compile(c, e->more, rest);
        if (e->min == 0)
            first = split(c, first, next);
    }
    if (e->more == NULL && e->min > 0) /* at least one of those that are optional */
        first = GRAMMAR_DEAD;
    for (uint32_t i = e->n; i-- > 0 && !jinja_failed(&c->tree->heap);) {
        uint32_t part = compile(c, e->part[i], later);
        uint32_t again = compile(c, e->between, part);
        first = e->required[i] ? part : split(c, part, first);
        later = e->required[i] ? again : split(c, again, later);
    }
    return first;
}

static uint32_t compile_parts(struct compiler *c, grammar_expr *e, uint32_t next)
{
    uint32_t at = e->kind == GRAMMAR_SEQ ? next : GRAMMAR_DEAD;
    for (uint32_t i = e->n; i-- > 0;) {
        uint32_t part = compile(c, e->part[i], e->kind == GRAMMAR_SEQ ? at : next);
        at = e->kind == GRAMMAR_SEQ || i + 1 == e->n ? part : split(c, part, at);
    }
    return at;
}

static uint32_t compile(struct compiler *c, grammar_expr *e, uint32_t next)
{
    uint32_t at = GRAMMAR_DEAD;
    if (!jinja_charge(&c->tree->heap, 1) || !jinja_enter(&c->tree->heap))
        return at;
    switch (e->kind) {
    case GRAMMAR_BYTES:
        at = compile_bytes(c, e, next);
        break;
    case GRAMMAR_CHARS:
        at = compile_chars(c, e, next);
        break;
    case GRAMMAR_SEQ:
    case GRAMMAR_ALT:
        at = compile_parts(c, e, next);
        break;
    case GRAMMAR_REPEAT:
        at = compile_times(c, e->part[0], e->min, e->max, next);
        break;
    case GRAMMAR_REF:
        at = add_node(c, GRAMMAR_NODE_CALL, e->rule, next);
        break;
    case GRAMMAR_LIST:
        at = compile_list(c, e, next);
        break;
    }
    jinja_leave(&c->tree->heap);
    return at;
}

/* ---- rules ---- */

/* Compiling a rule can add others. */
static pith_status compile_rules(struct compiler *c)
{
    struct grammar_tree *t = c->tree;
    uint32_t cap = 0;
    for (uint32_t i = 0; i < t->n_rule && !jinja_failed(&t->heap); i++) {
        if (i == cap) {
            cap = t->n_rule * 2;
            uint32_t *start = pi_mem_grow(PI_MEM_OTHER, c->p->start, cap, sizeof(*start));
            if (start == NULL) {
                jinja_fail(&t->heap, PITH_NOMEM, "no memory for %u rules", cap);
                break;
            }
            c->p->start = start;
        }
        c->p->start[i] = compile(c, t->rule[i].expr, GRAMMAR_END);
    }
    c->p->n_rule = t->n_rule;
    return t->heap.err.status;
}

pith_status grammar_compile(struct grammar_tree *tree, struct grammar_program *out, pith_error *err)
{
    struct compiler c = {.tree = tree, .p = out};
    *out = (struct grammar_program){.root = tree->root};
    add_node(&c, GRAMMAR_NODE_END, 0, 0);
    add_node(&c, GRAMMAR_NODE_EDGES, 0, 0);
    if (compile_rules(&c) != PITH_OK)
        return grammar_tree_failure(tree, err);
    return grammar_check(tree, out, err);
}

void grammar_program_free(struct grammar_program *p)
{
    pi_mem_free(p->node);
    pi_mem_free(p->edge);
    pi_mem_free(p->start);
    pi_mem_free(p->rank);
    pi_mem_free(p->empty);
    *p = (struct grammar_program){0};
}
