/*
 * jinja_run.h - a template while it runs: variables, output, what loops and macros are. Shared by
 * the jinja_*.c files only.
 */
#ifndef PI_JINJA_RUN_H
#define PI_JINJA_RUN_H

#include "text/template/jinja_builtin.h"
#include "text/template/jinja_tree.h"

/* Variables of a block. Loops use theirs again unless a macro has taken hold of it. */
struct jinja_scope {
    struct jinja_scope *parent;
    struct jinja_named *var; /* [n] */
    size_t n, cap;
    bool held;
};

struct jinja_macro {
    const struct jinja_node *node; /* MACRO or CALL_BLOCK */
    struct jinja_scope *scope;     /* where it was made */
};

struct jinja_loop {
    const struct jinja_node *node;
    struct jinja_scope *scope; /* around the loop */
    const struct jinja_list *items;
    size_t i;
    int64_t depth0;
    struct jinja_value changed; /* what loop.changed saw last; ABSENT: nothing */
};

enum jinja_flow { JINJA_GO_ON, JINJA_DO_BREAK, JINJA_DO_CONTINUE };

struct jinja_run {
    struct jinja_heap *h;
    struct jinja_value globals; /* dict: variables that the caller gave */
    struct jinja_names names;
    struct jinja_scope *scope;
    struct jinja_buf *out;
    enum jinja_flow flow;
    const int64_t *now; /* seconds since 1970, local; NULL: no strftime_now */
    bool has_clock;     /* strftime_now is there for those that ask */
    bool asked_thinking;
};

struct jinja_scope *jinja_scope_new(struct jinja_run *r, struct jinja_scope *parent);
void jinja_set_var(struct jinja_run *r, struct jinja_scope *scope, const struct jinja_str *name,
                   struct jinja_value value);

struct jinja_value jinja_eval(struct jinja_run *r, const struct jinja_node *node);
void jinja_exec(struct jinja_run *r, const struct jinja_node *list);
/* Runs a list with its text kept apart. */
const struct jinja_str *jinja_exec_text(struct jinja_run *r, const struct jinja_node *list);
struct jinja_value jinja_call(struct jinja_run *r, struct jinja_value callee,
                              const struct jinja_args *args);
struct jinja_value jinja_call_macro(struct jinja_run *r, const struct jinja_macro *macro,
                                    const struct jinja_args *args);
/* loop(items) of a recursive loop. */
struct jinja_value jinja_call_loop(struct jinja_run *r, const struct jinja_loop *loop,
                                   const struct jinja_args *args);
/* Binds names to a value, or to its parts. */
void jinja_assign(struct jinja_run *r, const struct jinja_node *target, struct jinja_value value);
/* Arguments of a call or filter; caller: a call block's, or ABSENT. */
struct jinja_args jinja_eval_args(struct jinja_run *r, const struct jinja_node *list,
                                  struct jinja_value caller);
/* Through the filters of a block. */
struct jinja_value jinja_eval_filters(struct jinja_run *r, const struct jinja_node *node,
                                      struct jinja_value text);

/* ---- operators (jinja_ops.c) ---- */

struct jinja_value jinja_math(struct jinja_run *r, uint16_t op, struct jinja_value a,
                              struct jinja_value b);
struct jinja_value jinja_sign(struct jinja_run *r, uint16_t op, struct jinja_value a);
bool jinja_compare(struct jinja_run *r, uint16_t op, struct jinja_value a, struct jinja_value b);
bool jinja_contains(struct jinja_run *r, struct jinja_value where, struct jinja_value what);
struct jinja_value jinja_concat(struct jinja_run *r, const struct jinja_value *part, size_t n);
struct jinja_value jinja_slice(struct jinja_run *r, struct jinja_value of,
                               const struct jinja_value bound[3]);

/* ---- access (jinja_access.c) ---- */

struct jinja_value jinja_get_attr(struct jinja_run *r, struct jinja_value of,
                                  const struct jinja_str *name);
struct jinja_value jinja_get_item(struct jinja_run *r, struct jinja_value of,
                                  struct jinja_value key);
/* a.b.0, as filters name attributes; key INT: an item. */
struct jinja_value jinja_get_path(struct jinja_run *r, struct jinja_value of,
                                  struct jinja_value path);

#endif
