/*
 * grammar_expr.h - a grammar's text or a schema in memory: rules, each an expression over
 * characters. Expressions stand in one heap that keeps the first failure; after one, all functions
 * give something harmless.
 */
#ifndef PI_GRAMMAR_EXPR_H
#define PI_GRAMMAR_EXPR_H

#include "text/value/jinja_value.h"

#define GRAMMAR_CHAR_MAX 0x10ffffu
#define GRAMMAR_REPEAT_MAX 65536 /* bounds of a repetition */

enum grammar_kind {
    GRAMMAR_BYTES,  /* as they are; none: the empty text */
    GRAMMAR_CHARS,  /* one character of some ranges */
    GRAMMAR_SEQ,    /* all parts in order */
    GRAMMAR_ALT,    /* one of the parts; none: never */
    GRAMMAR_REPEAT, /* part[0], min to max times */
    GRAMMAR_REF,    /* a rule */
    GRAMMAR_LIST,   /* parts in order, each optional or not, then more of another kind, with
                       something between them */
};

struct grammar_range {
    uint32_t lo, hi; /* code points */
};

struct grammar_expr {
    enum grammar_kind kind;
    uint32_t n; /* bytes, ranges or parts */
    const char *bytes;
    const struct grammar_range *range; /* in ascending order, apart */
    const struct grammar_expr *const *part;
    const bool *required;               /* LIST: [n] */
    const struct grammar_expr *between; /* LIST */
    const struct grammar_expr *more;    /* LIST: NULL: none */
    int32_t min,
        max; /* REPEAT, LIST: of more; max -1: any number. LIST without more: min 1 asks for
                         at least one part */
    uint32_t rule;
};

struct grammar_rule {
    const char *name;                /* terminated */
    const struct grammar_expr *expr; /* NULL: not defined yet */
};

struct grammar_tree {
    struct jinja_heap heap;
    struct grammar_rule *rule; /* [n_rule] in the heap */
    uint32_t n_rule, cap_rule;
    uint32_t root;
};

/* Growing lists that expressions are made of. Zero it. */
struct grammar_parts {
    const struct grammar_expr **part;
    uint32_t n, cap;
};
void grammar_add(struct grammar_tree *t, struct grammar_parts *list, const struct grammar_expr *e);

typedef const struct grammar_expr grammar_expr;

grammar_expr *grammar_bytes(struct grammar_tree *t, const char *bytes, size_t len);
grammar_expr *grammar_text(struct grammar_tree *t, const char *text);
grammar_expr *grammar_empty(struct grammar_tree *t);
grammar_expr *grammar_never(struct grammar_tree *t);
/* Ranges in any order; they may overlap. Surrogates are left out. negated: all other characters. */
grammar_expr *grammar_chars(struct grammar_tree *t, const struct grammar_range *range, size_t n,
                            bool negated);
grammar_expr *grammar_seq(struct grammar_tree *t, const struct grammar_parts *list);
grammar_expr *grammar_alt(struct grammar_tree *t, const struct grammar_parts *list);
grammar_expr *grammar_seq2(struct grammar_tree *t, grammar_expr *a, grammar_expr *b);
grammar_expr *grammar_seq3(struct grammar_tree *t, grammar_expr *a, grammar_expr *b,
                           grammar_expr *c);
grammar_expr *grammar_alt2(struct grammar_tree *t, grammar_expr *a, grammar_expr *b);
grammar_expr *grammar_repeat(struct grammar_tree *t, grammar_expr *e, int32_t min, int32_t max);
grammar_expr *grammar_ref(struct grammar_tree *t, uint32_t rule);
/* A list's parts and whether they are required, both copied. */
grammar_expr *grammar_list(struct grammar_tree *t, const struct grammar_parts *list,
                           const bool *required, grammar_expr *between, grammar_expr *more,
                           int32_t min, int32_t max);

/* A new rule without expression; its name is copied. */
uint32_t grammar_rule_new(struct grammar_tree *t, const char *name, size_t len);
/* The rule of a name, UINT32_MAX: none. */
uint32_t grammar_rule_find(struct grammar_tree *t, const char *name, size_t len);

bool grammar_is_never(grammar_expr *e);

void grammar_tree_init(struct grammar_tree *t);
void grammar_tree_free(struct grammar_tree *t);
/* The failure that the tree's heap keeps, in the words of a grammar. */
pith_status grammar_tree_failure(const struct grammar_tree *t, pith_error *err);

#endif
