/*
 * grammar_expr.c - makes expressions. Invariant: nothing returns NULL; after a failure, which the
 * heap keeps, the empty text stands for everything.
 */
#include "text/grammar/grammar_expr.h"

#include <stdlib.h>

static const struct grammar_expr empty = {.kind = GRAMMAR_BYTES, .bytes = ""};
static const struct grammar_expr never = {.kind = GRAMMAR_ALT};

void grammar_tree_init(struct grammar_tree *t)
{
    const struct jinja_limits limits = {
        .steps = 20000000,
        .depth = 1000,
        .output = 0,
        .memory = (size_t)128 << 20,
    };
    *t = (struct grammar_tree){0};
    jinja_heap_init(&t->heap, &limits);
}

void grammar_tree_free(struct grammar_tree *t)
{
    jinja_heap_free(&t->heap);
}

/* The heap speaks of its first user where a limit is passed: too deep, too much. */
pith_status grammar_tree_failure(const struct grammar_tree *t, pith_error *err)
{
    static const char other[] = "chat template: ";
    const pith_error *why = &t->heap.err;
    if (strncmp(why->message, other, sizeof(other) - 1) != 0)
        return pi_fail(err, why->status, "%s", why->message);
    return pi_fail(err, why->status == PITH_INVALID ? PITH_UNSUPPORTED : why->status, "grammar: %s",
                   why->message + sizeof(other) - 1);
}

static struct grammar_expr *make(struct grammar_tree *t, enum grammar_kind kind)
{
    struct grammar_expr *e =
        jinja_charge(&t->heap, 1) ? jinja_alloc(&t->heap, 1, sizeof(*e)) : NULL;
    if (e != NULL)
        e->kind = kind;
    return e;
}

/* A copy in the heap; NULL after a failure. */
static void *copy(struct grammar_tree *t, const void *from, size_t n, size_t size)
{
    void *to = jinja_alloc(&t->heap, n > 0 ? n : 1, size);
    if (to != NULL && n > 0)
        memcpy(to, from, n * size);
    return to;
}

grammar_expr *grammar_empty(struct grammar_tree *t)
{
    (void)t;
    return &empty;
}

grammar_expr *grammar_never(struct grammar_tree *t)
{
    (void)t;
    return &never;
}

bool grammar_is_never(grammar_expr *e)
{
    return e->kind == GRAMMAR_ALT && e->n == 0;
}

grammar_expr *grammar_bytes(struct grammar_tree *t, const char *bytes, size_t len)
{
    struct grammar_expr *e = make(t, GRAMMAR_BYTES);
    char *own = copy(t, bytes, len, 1);
    if (e == NULL || own == NULL)
        return &empty;
    e->bytes = own;
    e->n = (uint32_t)len;
    return e;
}

grammar_expr *grammar_text(struct grammar_tree *t, const char *text)
{
    return grammar_bytes(t, text, strlen(text));
}

/* ---- characters ---- */

static int by_lo(const void *left, const void *right)
{
    const struct grammar_range *a = left, *b = right;
    return a->lo != b->lo ? (a->lo < b->lo ? -1 : 1) : (a->hi > b->hi) - (a->hi < b->hi);
}

/* Sorts and joins; returns the number of ranges left. */
static size_t tidy(struct grammar_range *r, size_t n)
{
    size_t n_out = 0;
    if (n > 1)
        qsort(r, n, sizeof(*r), by_lo);
    for (size_t i = 0; i < n; i++) {
        if (n_out > 0 && r[i].lo <= r[n_out - 1].hi + 1) {
            if (r[i].hi > r[n_out - 1].hi)
                r[n_out - 1].hi = r[i].hi;
        } else {
            r[n_out++] = r[i];
        }
    }
    return n_out;
}

/* out [n + 1] receives what lies between r[0..n). */
static size_t invert(const struct grammar_range *r, size_t n, struct grammar_range *out)
{
    uint32_t from = 0;
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        if (r[i].lo > from)
            out[n_out++] = (struct grammar_range){from, r[i].lo - 1};
        from = r[i].hi + 1;
    }
    if (from <= GRAMMAR_CHAR_MAX)
        out[n_out++] = (struct grammar_range){from, GRAMMAR_CHAR_MAX};
    return n_out;
}

grammar_expr *grammar_chars(struct grammar_tree *t, const struct grammar_range *range, size_t n,
                            bool negated)
{
    struct grammar_expr *e = make(t, GRAMMAR_CHARS);
    struct grammar_range *a = jinja_alloc(&t->heap, n + 3, sizeof(*a));
    struct grammar_range *b = jinja_alloc(&t->heap, n + 3, sizeof(*b));
    if (e == NULL || a == NULL || b == NULL)
        return &empty;
    if (n > 0)
        memcpy(a, range, n * sizeof(*a));
    n = tidy(a, n);
    if (!negated) { /* not twice negated: the same, without surrogates */
        n = invert(a, n, b);
        memcpy(a, b, n * sizeof(*a));
    }
    a[n++] = (struct grammar_range){0xd800, 0xdfff};
    n = tidy(a, n);
    e->n = (uint32_t)invert(a, n, b);
    e->range = b;
    return e->n > 0 ? e : &never;
}

/* ---- parts ---- */

void grammar_add(struct grammar_tree *t, struct grammar_parts *list, const struct grammar_expr *e)
{
    if (list->n == list->cap) {
        uint32_t cap = list->cap > 0 ? 2 * list->cap : 8;
        const struct grammar_expr **part = jinja_alloc(&t->heap, cap, sizeof(*part));
        if (part == NULL)
            return;
        if (list->n > 0)
            memcpy(part, list->part, list->n * sizeof(*part));
        list->part = part;
        list->cap = cap;
    }
    list->part[list->n++] = e;
}

static grammar_expr *of_parts(struct grammar_tree *t, enum grammar_kind kind,
                              const struct grammar_parts *list)
{
    struct grammar_expr *e = make(t, kind);
    if (e == NULL)
        return &empty;
    e->n = list->n;
    e->part = copy(t, list->part, list->n, sizeof(*list->part));
    return e->part != NULL ? e : &empty;
}

grammar_expr *grammar_seq(struct grammar_tree *t, const struct grammar_parts *list)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (grammar_is_never(list->part[i]))
            return &never;
    return list->n == 1 ? list->part[0] : of_parts(t, GRAMMAR_SEQ, list);
}

grammar_expr *grammar_alt(struct grammar_tree *t, const struct grammar_parts *list)
{
    struct grammar_parts left = {0};
    for (uint32_t i = 0; i < list->n; i++)
        if (!grammar_is_never(list->part[i]))
            grammar_add(t, &left, list->part[i]);
    if (left.n == 0)
        return &never;
    return left.n == 1 ? left.part[0] : of_parts(t, GRAMMAR_ALT, &left);
}

grammar_expr *grammar_seq2(struct grammar_tree *t, grammar_expr *a, grammar_expr *b)
{
    const struct grammar_expr *part[] = {a, b};
    return grammar_seq(t, &(struct grammar_parts){part, 2, 2});
}

grammar_expr *grammar_seq3(struct grammar_tree *t, grammar_expr *a, grammar_expr *b,
                           grammar_expr *c)
{
    const struct grammar_expr *part[] = {a, b, c};
    return grammar_seq(t, &(struct grammar_parts){part, 3, 3});
}

grammar_expr *grammar_alt2(struct grammar_tree *t, grammar_expr *a, grammar_expr *b)
{
    const struct grammar_expr *part[] = {a, b};
    return grammar_alt(t, &(struct grammar_parts){part, 2, 2});
}

grammar_expr *grammar_repeat(struct grammar_tree *t, grammar_expr *x, int32_t min, int32_t max)
{
    if (max == 0 || (grammar_is_never(x) && min == 0))
        return &empty;
    if (grammar_is_never(x) || (min == 1 && max == 1))
        return x;
    struct grammar_expr *e = make(t, GRAMMAR_REPEAT);
    if (e == NULL)
        return &empty;
    e->n = 1;
    e->part = copy(t, &x, 1, sizeof(x));
    e->min = min;
    e->max = max;
    return e->part != NULL ? e : &empty;
}

grammar_expr *grammar_ref(struct grammar_tree *t, uint32_t rule)
{
    struct grammar_expr *e = make(t, GRAMMAR_REF);
    if (e == NULL)
        return &empty;
    e->rule = rule;
    return e;
}

grammar_expr *grammar_list(struct grammar_tree *t, const struct grammar_parts *list,
                           const bool *required, grammar_expr *between, grammar_expr *more,
                           int32_t min, int32_t max)
{
    struct grammar_expr *e = make(t, GRAMMAR_LIST);
    if (e == NULL)
        return &empty;
    e->n = list->n;
    e->part = copy(t, list->part, list->n, sizeof(*list->part));
    e->required = copy(t, required, list->n, sizeof(*required));
    e->between = between;
    e->more = more;
    e->min = min;
    e->max = max;
    return e->part != NULL && e->required != NULL ? e : &empty;
}

/* ---- rules ---- */

uint32_t grammar_rule_new(struct grammar_tree *t, const char *name, size_t len)
{
    char *own = jinja_alloc(&t->heap, len + 1, 1);
    if (t->n_rule == t->cap_rule) {
        uint32_t cap = t->cap_rule > 0 ? 2 * t->cap_rule : 32;
        struct grammar_rule *rule = jinja_alloc(&t->heap, cap, sizeof(*rule));
        if (rule == NULL)
            return 0;
        if (t->n_rule > 0)
            memcpy(rule, t->rule, t->n_rule * sizeof(*rule));
        t->rule = rule;
        t->cap_rule = cap;
    }
    if (own == NULL)
        return 0;
    memcpy(own, name, len);
    t->rule[t->n_rule] = (struct grammar_rule){.name = own};
    return t->n_rule++;
}

uint32_t grammar_rule_find(struct grammar_tree *t, const char *name, size_t len)
{
    if (!jinja_charge(&t->heap, 1 + t->n_rule / 8))
        return UINT32_MAX;
    for (uint32_t i = 0; i < t->n_rule; i++)
        if (strlen(t->rule[i].name) == len && memcmp(t->rule[i].name, name, len) == 0)
            return i;
    return UINT32_MAX;
}
