/*
 * jinja_exec.c - runs statements: output, branches, loops, assignments, macros. A block that has
 * variables of its own gets a scope. Names are looked up from the innermost scope outwards, and in
 * macros from where the macro was made.
 */
#include "text/template/jinja_run.h"

/* ---- scopes ---- */

struct jinja_scope *jinja_scope_new(struct jinja_run *r, struct jinja_scope *parent)
{
    struct jinja_scope *scope = jinja_alloc(r->h, 1, sizeof(*scope));
    if (scope != NULL)
        scope->parent = parent;
    return scope;
}

void jinja_set_var(struct jinja_run *r, struct jinja_scope *scope, const struct jinja_str *name,
                   struct jinja_value value)
{
    if (jinja_failed(r->h))
        return;
    for (size_t i = 0; i < scope->n; i++) {
        if (scope->var[i].name == name) {
            scope->var[i].value = value;
            return;
        }
    }
    if (scope->n == scope->cap) {
        size_t cap = scope->cap == 0 ? 4 : 2 * scope->cap;
        struct jinja_named *grown = jinja_alloc(r->h, cap, sizeof(*grown));
        if (grown == NULL)
            return;
        if (scope->n > 0)
            memcpy(grown, scope->var, scope->n * sizeof(*grown));
        scope->var = grown;
        scope->cap = cap;
    }
    jinja_charge(r->h, scope->n / 16);
    scope->var[scope->n++] = (struct jinja_named){name, value};
}

/* A macro may look at it later. */
static void hold(struct jinja_scope *scope)
{
    for (; scope != NULL && !scope->held; scope = scope->parent)
        scope->held = true;
}

/* ---- assignments ---- */

static void assign_attr(struct jinja_run *r, const struct jinja_node *target,
                        struct jinja_value value)
{
    struct jinja_node name = {.kind = JINJA_N_NAME, .name = target->name};
    struct jinja_value ns = jinja_eval(r, &name);
    if (!jinja_failed(r->h) && ns.kind != JINJA_NAMESPACE)
        jinja_fail(r->h, PITH_INVALID,
                   "chat template: cannot assign attribute on non-namespace object");
    if (!jinja_failed(r->h))
        jinja_dict_set(r->h, ns.u.dict, target->value, value);
}

void jinja_assign(struct jinja_run *r, const struct jinja_node *target, struct jinja_value value)
{
    if (!jinja_enter(r->h))
        return;
    if (target->kind == JINJA_N_NS_ATTR) {
        assign_attr(r, target, value);
    } else if (target->kind == JINJA_N_NAME) {
        jinja_set_var(r, r->scope, target->name, value);
    } else {
        struct jinja_value items = jinja_items(r->h, value);
        size_t n = 0, got = jinja_failed(r->h) ? 0 : items.u.list->n;
        for (const struct jinja_node *t = target->a; t != NULL; t = t->next)
            n++;
        if (got < n)
            jinja_fail(r->h, PITH_INVALID,
                       "chat template: not enough values to unpack (expected %zu, got %zu)", n,
                       got);
        else if (got > n)
            jinja_fail(r->h, PITH_INVALID,
                       "chat template: too many values to unpack (expected %zu)", n);
        const struct jinja_node *t = target->a;
        for (size_t i = 0; i < n && !jinja_failed(r->h); i++, t = t->next)
            jinja_assign(r, t, items.u.list->item[i]);
    }
    jinja_leave(r->h);
}

/* ---- loops ---- */

/* The items that the condition of a loop lets through. */
static struct jinja_value filter_items(struct jinja_run *r, const struct jinja_node *node,
                                       struct jinja_value items)
{
    struct jinja_scope *outer = r->scope;
    struct jinja_value left = jinja_list_new(r->h, JINJA_LIST, 0);
    r->scope = jinja_scope_new(r, outer);
    for (size_t i = 0; !jinja_failed(r->h) && i < items.u.list->n; i++) {
        jinja_assign(r, node->a, items.u.list->item[i]);
        if (jinja_truth(jinja_eval(r, node->c)))
            jinja_list_add(r->h, left, items.u.list->item[i]);
    }
    r->scope = outer;
    return left;
}

/* One round of the loop in scope, which is empty. */
static void run_round(struct jinja_run *r, const struct jinja_node *node, struct jinja_scope *scope,
                      struct jinja_loop *loop)
{
    r->scope = scope;
    jinja_assign(r, node->a, loop->items->item[loop->i]);
    jinja_set_var(r, scope, r->names.loop,
                  (struct jinja_value){.kind = JINJA_LOOP, .u.loop = loop});
    jinja_exec(r, node->d);
}

static void run_loop(struct jinja_run *r, const struct jinja_node *node, struct jinja_value over,
                     struct jinja_scope *outer, int64_t depth0)
{
    struct jinja_scope *back = r->scope, *scope = NULL;
    struct jinja_value items = jinja_items(r->h, over);
    r->scope = outer;
    if (node->c != NULL && !jinja_failed(r->h))
        items = filter_items(r, node, items);
    struct jinja_loop *loop = jinja_alloc(r->h, 1, sizeof(*loop));
    if (loop != NULL)
        *loop = (struct jinja_loop){
            .node = node, .scope = outer, .items = items.u.list, .depth0 = depth0};
    for (size_t i = 0; !jinja_failed(r->h) && i < items.u.list->n; i++) {
        if (scope == NULL || scope->held)
            scope = jinja_scope_new(r, outer);
        if (scope == NULL)
            break;
        scope->n = 0;
        loop->i = i;
        run_round(r, node, scope, loop);
        if (r->flow == JINJA_DO_BREAK)
            break;
        r->flow = JINJA_GO_ON;
    }
    r->flow = JINJA_GO_ON;
    if (!jinja_failed(r->h) && items.u.list->n == 0 && node->e != NULL) {
        r->scope = jinja_scope_new(r, outer);
        jinja_exec(r, node->e);
    }
    r->scope = back;
}

static void exec_for(struct jinja_run *r, const struct jinja_node *node)
{
    struct jinja_value over = jinja_eval(r, node->b);
    if (!jinja_failed(r->h))
        run_loop(r, node, over, r->scope, 0);
}

/* The text that was written apart; output goes on where it did. */
static const struct jinja_str *end_text(struct jinja_run *r, struct jinja_buf *b,
                                        struct jinja_buf *back)
{
    r->out = back;
    return jinja_buf_end(b);
}

struct jinja_value jinja_call_loop(struct jinja_run *r, const struct jinja_loop *loop,
                                   const struct jinja_args *args)
{
    if (!loop->node->flag || args->n_place != 1 || args->n_named > 0) {
        jinja_fail(r->h, PITH_INVALID,
                   "chat template: The loop must have the 'recursive' marker to be called "
                   "recursively, with one argument.");
        return jinja_undefined();
    }
    struct jinja_buf b = {.h = r->h}, *back = r->out;
    if (!jinja_enter(r->h))
        return jinja_undefined();
    r->out = &b;
    run_loop(r, loop->node, args->place[0], loop->scope, loop->depth0 + 1);
    jinja_leave(r->h);
    return jinja_of(end_text(r, &b, back));
}

/* ---- macros ---- */

/* Takes the named argument out of those that are left. */
static struct jinja_value take_named(struct jinja_args *left, const struct jinja_str *name)
{
    for (size_t i = 0; i < left->n_named; i++) {
        if (jinja_str_equal(left->named[i].name, name)) {
            struct jinja_value value = left->named[i].value;
            left->n_named--;
            memmove(&left->named[i], &left->named[i + 1],
                    (left->n_named - i) * sizeof(*left->named));
            return value;
        }
    }
    return (struct jinja_value){.kind = JINJA_ABSENT};
}

/* Arguments to parameters; defaults are computed in the macro, so they see those before. */
static void bind_params(struct jinja_run *r, const struct jinja_macro *macro,
                        struct jinja_args *left)
{
    for (const struct jinja_node *p = macro->node->a; p != NULL && !jinja_failed(r->h);
         p = p->next) {
        struct jinja_value value = {
            .kind = JINJA_UNDEFINED, .missing = JINJA_NO_PARAMETER, .u.s = p->name};
        struct jinja_value named = take_named(left, p->name);
        if (left->n_place > 0) {
            value = *left->place++;
            left->n_place--;
            if (named.kind != JINJA_ABSENT)
                jinja_fail(r->h, PITH_INVALID,
                           "chat template: a macro got multiple values for argument '%.*s'",
                           (int)pi_min((int64_t)p->name->len, 60), p->name->data);
        } else if (named.kind != JINJA_ABSENT) {
            value = named;
        } else if (p->a != NULL) {
            value = jinja_eval(r, p->a);
        }
        jinja_set_var(r, r->scope, p->name, value);
    }
}

static struct jinja_value rest_of(struct jinja_run *r, const struct jinja_args *left, bool named)
{
    struct jinja_value v = named ? jinja_dict_new(r->h) : jinja_list_new(r->h, JINJA_TUPLE, 0);
    for (size_t i = 0; !named && i < left->n_place; i++)
        jinja_list_add(r->h, v, left->place[i]);
    for (size_t i = 0; named && !jinja_failed(r->h) && i < left->n_named; i++)
        jinja_dict_set(r->h, v.u.dict, jinja_of(left->named[i].name), left->named[i].value);
    return v;
}

static void refuse_rest(struct jinja_run *r, const struct jinja_node *node,
                        const struct jinja_args *left)
{
    int len = (int)(node->name->len < 60 ? node->name->len : 60);
    if (left->n_named > 0)
        jinja_fail(r->h, PITH_INVALID,
                   "chat template: macro '%.*s' takes no keyword argument '%.*s'", len,
                   node->name->data, (int)pi_min((int64_t)left->named[0].name->len, 60),
                   left->named[0].name->data);
    else if (left->n_place > 0)
        jinja_fail(r->h, PITH_INVALID, "chat template: macro '%.*s' got %zu arguments too many",
                   len, node->name->data, left->n_place);
}

/* The arguments that no parameter took: for the names that the body uses, or too many. */
static void bind_rest(struct jinja_run *r, const struct jinja_macro *macro, struct jinja_args *left)
{
    const struct jinja_node *node = macro->node;
    if ((node->uses & JINJA_USES_CALLER) != 0) {
        struct jinja_value caller = take_named(left, r->names.caller);
        if (caller.kind == JINJA_ABSENT)
            caller = (struct jinja_value){.kind = JINJA_UNDEFINED, .u.s = r->names.caller};
        jinja_set_var(r, r->scope, r->names.caller, caller);
    }
    if ((node->uses & JINJA_USES_KWARGS) != 0) {
        jinja_set_var(r, r->scope, r->names.kwargs, rest_of(r, left, true));
        left->n_named = 0;
    }
    if ((node->uses & JINJA_USES_VARARGS) != 0) {
        jinja_set_var(r, r->scope, r->names.varargs, rest_of(r, left, false));
        left->n_place = 0;
    }
    refuse_rest(r, node, left);
}

struct jinja_value jinja_call_macro(struct jinja_run *r, const struct jinja_macro *macro,
                                    const struct jinja_args *args)
{
    struct jinja_args left = *args;
    struct jinja_scope *back_scope = r->scope, *scope = jinja_scope_new(r, macro->scope);
    struct jinja_buf b = {.h = r->h}, *back = r->out;
    enum jinja_flow flow = r->flow;
    if (scope == NULL || !jinja_enter(r->h))
        return jinja_undefined();
    r->scope = scope;
    r->out = &b;
    r->flow = JINJA_GO_ON;
    bind_params(r, macro, &left);
    bind_rest(r, macro, &left);
    jinja_exec(r, macro->node->d);
    r->scope = back_scope;
    r->flow = flow;
    jinja_leave(r->h);
    return jinja_of(end_text(r, &b, back));
}

static struct jinja_value new_macro(struct jinja_run *r, const struct jinja_node *node)
{
    struct jinja_macro *macro = jinja_alloc(r->h, 1, sizeof(*macro));
    if (macro == NULL)
        return jinja_undefined();
    *macro = (struct jinja_macro){node, r->scope};
    hold(r->scope);
    return (struct jinja_value){.kind = JINJA_MACRO, .u.macro = macro};
}

static void exec_macro(struct jinja_run *r, const struct jinja_node *node)
{
    struct jinja_value macro = new_macro(r, node);
    jinja_set_var(r, r->scope, node->name, macro);
}

static void exec_call_block(struct jinja_run *r, const struct jinja_node *node)
{
    struct jinja_value caller = new_macro(r, node), callee = jinja_eval(r, node->b->a);
    const struct jinja_args args = jinja_eval_args(r, node->b->b, caller);
    struct jinja_value value = jinja_call(r, callee, &args);
    if (!jinja_failed(r->h))
        jinja_put_value(r->out, value);
}

/* ---- the other statements ---- */

const struct jinja_str *jinja_exec_text(struct jinja_run *r, const struct jinja_node *list)
{
    struct jinja_buf b = {.h = r->h}, *back = r->out;
    struct jinja_scope *outer = r->scope;
    r->out = &b;
    r->scope = jinja_scope_new(r, outer);
    jinja_exec(r, list);
    r->scope = outer;
    return end_text(r, &b, back);
}

static void exec_data(struct jinja_run *r, const struct jinja_node *node)
{
    jinja_put(r->out, node->value.u.s);
}

static void exec_print(struct jinja_run *r, const struct jinja_node *node)
{
    struct jinja_value value = jinja_eval(r, node->a);
    if (!jinja_failed(r->h))
        jinja_put_value(r->out, value);
}

static void exec_if(struct jinja_run *r, const struct jinja_node *node)
{
    while (node != NULL && !jinja_failed(r->h)) {
        if (jinja_truth(jinja_eval(r, node->a))) {
            jinja_exec(r, node->b);
            return;
        }
        if (!node->flag) {
            jinja_exec(r, node->c);
            return;
        }
        node = node->c;
    }
}

static void exec_set(struct jinja_run *r, const struct jinja_node *node)
{
    struct jinja_value value = jinja_eval(r, node->b);
    if (!jinja_failed(r->h))
        jinja_assign(r, node->a, value);
}

static void exec_set_block(struct jinja_run *r, const struct jinja_node *node)
{
    const struct jinja_str *text = jinja_exec_text(r, node->d);
    struct jinja_value value = jinja_eval_filters(r, node->b, jinja_of(text));
    if (!jinja_failed(r->h))
        jinja_assign(r, node->a, value);
}

static void exec_filter_block(struct jinja_run *r, const struct jinja_node *node)
{
    const struct jinja_str *text = jinja_exec_text(r, node->d);
    struct jinja_value value = jinja_eval_filters(r, node->b, jinja_of(text));
    if (!jinja_failed(r->h))
        jinja_put_value(r->out, value);
}

/* Values of a with are computed outside of it. */
static void exec_scope(struct jinja_run *r, const struct jinja_node *node)
{
    struct jinja_scope *outer = r->scope, *inner = jinja_scope_new(r, outer);
    for (const struct jinja_node *set = node->a; set != NULL && inner != NULL; set = set->next) {
        struct jinja_value value = jinja_eval(r, set->b);
        r->scope = inner;
        if (!jinja_failed(r->h))
            jinja_assign(r, set->a, value);
        r->scope = outer;
    }
    if (inner == NULL)
        return;
    r->scope = inner;
    jinja_exec(r, node->d);
    r->scope = outer;
}

static void exec_break(struct jinja_run *r, const struct jinja_node *node)
{
    r->flow = node->kind == JINJA_N_BREAK ? JINJA_DO_BREAK : JINJA_DO_CONTINUE;
}

typedef void exec_fn(struct jinja_run *r, const struct jinja_node *node);

static exec_fn *const exec_table[] = {
    [JINJA_N_DATA] = exec_data,
    [JINJA_N_PRINT] = exec_print,
    [JINJA_N_IF] = exec_if,
    [JINJA_N_FOR] = exec_for,
    [JINJA_N_SET] = exec_set,
    [JINJA_N_SET_BLOCK] = exec_set_block,
    [JINJA_N_MACRO] = exec_macro,
    [JINJA_N_CALL_BLOCK] = exec_call_block,
    [JINJA_N_FILTER_BLOCK] = exec_filter_block,
    [JINJA_N_WITH] = exec_scope,
    [JINJA_N_SCOPE] = exec_scope,
    [JINJA_N_BREAK] = exec_break,
    [JINJA_N_CONTINUE] = exec_break,
};

void jinja_exec(struct jinja_run *r, const struct jinja_node *list)
{
    if (!jinja_enter(r->h))
        return;
    for (; list != NULL && r->flow == JINJA_GO_ON && jinja_charge(r->h, 1); list = list->next)
        exec_table[list->kind](r, list);
    jinja_leave(r->h);
}
