/*
 * jinja_tree.h - a template between its text and its run: tokens, the tree they make, and the
 * template that owns the tree. Shared by the jinja_*.c files only.
 *
 *   jinja_lex.c     text -> tokens; white space around tags
 *   jinja_parse.c   tokens -> statements
 *   jinja_expr.c    tokens -> expressions
 *   jinja_exec.c    runs statements
 *   jinja_eval.c    computes expressions
 */
#ifndef PI_JINJA_TREE_H
#define PI_JINJA_TREE_H

#include "text/value/jinja_value.h"

enum jinja_token_kind {
    JINJA_T_END,
    JINJA_T_DATA,
    JINJA_T_VAR_BEGIN,
    JINJA_T_VAR_END,
    JINJA_T_BLOCK_BEGIN,
    JINJA_T_BLOCK_END,
    JINJA_T_NAME,
    JINJA_T_CONST, /* a string or a number */
    JINJA_T_OP,
};

/* An operator of one or two characters. */
#define JINJA_OP2(a, b) ((uint16_t)((a) << 8 | (b)))

struct jinja_token {
    uint8_t kind;
    uint16_t op;
    int32_t line;
    struct jinja_value value; /* DATA, NAME, CONST */
};

struct jinja_tokens {
    struct jinja_token *token; /* [n], the last is END; in the heap */
    size_t n, cap;
};

/* Failures go to the heap. */
void jinja_lex(struct jinja_heap *h, const char *text, size_t len, struct jinja_tokens *out);

enum jinja_node_kind {
    /* expressions */
    JINJA_N_CONST,
    JINJA_N_NAME,
    JINJA_N_LIST,    /* a: items */
    JINJA_N_TUPLE,   /* a: items */
    JINJA_N_DICT,    /* a: pairs */
    JINJA_N_PAIR,    /* a: key, b: value */
    JINJA_N_ATTR,    /* a.name */
    JINJA_N_ITEM,    /* a[b] */
    JINJA_N_SLICE,   /* [a:b:c], each may be NULL */
    JINJA_N_CALL,    /* a(b: arguments) */
    JINJA_N_FILTER,  /* a|name(b); a NULL: the text of a block */
    JINJA_N_TEST,    /* a is name(b) */
    JINJA_N_ARG,     /* name = a; name NULL: by place; op: '*' or '**' */
    JINJA_N_NOT,     /* a */
    JINJA_N_SIGN,    /* op a */
    JINJA_N_AND,     /* a, b */
    JINJA_N_OR,      /* a, b */
    JINJA_N_COMPARE, /* a, then b: operands */
    JINJA_N_OPERAND, /* op a */
    JINJA_N_MATH,    /* a op b */
    JINJA_N_CONCAT,  /* a: parts */
    JINJA_N_IF_ELSE, /* a if b else c */
    /* statements */
    JINJA_N_DATA,         /* value */
    JINJA_N_PRINT,        /* a */
    JINJA_N_IF,           /* if a: b, else: c, which is an if of its own where flag */
    JINJA_N_FOR,          /* for a in b if c: d, else e; flag: recursive */
    JINJA_N_SET,          /* a = b */
    JINJA_N_SET_BLOCK,    /* a = the text of d, through the filters of b */
    JINJA_N_MACRO,        /* name(a: parameters): d */
    JINJA_N_PARAM,        /* name, default a or NULL */
    JINJA_N_CALL_BLOCK,   /* call(a: parameters) b: d */
    JINJA_N_FILTER_BLOCK, /* the text of d, through the filters of b */
    JINJA_N_WITH,         /* a: SETs, d */
    JINJA_N_SCOPE,        /* d, in a scope of its own */
    JINJA_N_BREAK,
    JINJA_N_CONTINUE,
    JINJA_N_NS_ATTR, /* a target: name of namespace, value: attribute */
};

/* The special names that a macro's body refers to. */
enum { JINJA_USES_VARARGS = 1, JINJA_USES_KWARGS = 2, JINJA_USES_CALLER = 4 };

struct jinja_node {
    uint8_t kind; /* enum jinja_node_kind */
    uint8_t uses; /* MACRO, CALL_BLOCK */
    bool flag;
    uint16_t op;
    int32_t line;
    const struct jinja_str *name; /* one for all that are equal */
    struct jinja_value value;
    struct jinja_node *a, *b, *c, *d, *e;
    struct jinja_node *next;             /* of a list */
    const struct jinja_builtin *builtin; /* FILTER, TEST; NULL: unknown */
};

/* Names that are bound without being written. */
struct jinja_names {
    const struct jinja_str *loop, *caller, *kwargs, *varargs;
};

struct jinja_tree {
    struct jinja_node *body; /* a list, NULL for an empty template */
    struct jinja_names names;
};

struct jinja_parser {
    struct jinja_heap *h;
    struct jinja_tokens tokens;
    size_t at;
    struct jinja_value names; /* dict: text -> name */
    struct jinja_node spare;
    uint8_t uses;   /* of the macro that is read */
    int32_t n_loop; /* loops around, within the macro */
};

/* ---- shared by the two parsers ---- */

static inline const struct jinja_token *jinja_peek(const struct jinja_parser *p)
{
    return &p->tokens.token[p->at];
}

bool jinja_at_op(const struct jinja_parser *p, uint16_t op);
bool jinja_at_name(const struct jinja_parser *p, const char *name);
/* Steps over it where it is there. */
bool jinja_skip_op(struct jinja_parser *p, uint16_t op);
bool jinja_skip_name(struct jinja_parser *p, const char *name);
/* Fails where it is not there. */
void jinja_expect_op(struct jinja_parser *p, uint16_t op);
const struct jinja_str *jinja_expect_name(struct jinja_parser *p);
void jinja_syntax(struct jinja_parser *p, const char *what);
/* Never NULL. */
struct jinja_node *jinja_node_new(struct jinja_parser *p, enum jinja_node_kind kind);
const struct jinja_str *jinja_intern(struct jinja_parser *p, const struct jinja_str *name);

/* Each returns a node, never NULL. */
struct jinja_node *jinja_parse_expr(struct jinja_parser *p, bool with_if);
/* a, b, c; end: a name that ends it, or NULL. */
struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, bool with_if, const char *end);
struct jinja_node *jinja_parse_target(struct jinja_parser *p, const char *end, bool with_attr);
/* name(...)|name(...); start: the first has no bar. */
struct jinja_node *jinja_parse_filters(struct jinja_parser *p, struct jinja_node *node, bool start);

/* The whole text; the tree lives in the heap. */
struct jinja_tree jinja_parse(struct jinja_heap *h, const char *text, size_t len);

#endif
