/*
 * jinja_eval.c - computes expressions: one small function per kind of node. After a failure, which
 * the heap keeps, values are undefined and nothing has effects.
 */
#include "text/template/jinja_run.h"

/* ---- names ---- */

/* For templates that know no switch for thinking, the caller finds another way. */
static void watch(struct jinja_run *r, const struct jinja_str *name)
{
    if (jinja_str_is(name, "enable_thinking") || jinja_str_is(name, "thinking"))
        r->asked_thinking = true;
}

static struct jinja_value eval_name(struct jinja_run *r, const struct jinja_node *node)
{
    size_t looked = 0;
    for (const struct jinja_scope *s = r->scope; s != NULL; s = s->parent) {
        for (size_t i = s->n; i-- > 0;)
            if (s->var[i].name == node->name)
                return s->var[i].value;
        looked += s->n;
    }
    jinja_charge(r->h, looked / 16);
    watch(r, node->name);
    const struct jinja_value *value = jinja_dict_get(r->h, r->globals.u.dict, jinja_of(node->name));
    if (value != NULL)
        return *value;
    const struct jinja_builtin *row = jinja_find_function(node->name);
    if (row != NULL && (r->has_clock || !jinja_str_is(node->name, "strftime_now")))
        return (struct jinja_value){.kind = JINJA_FUNCTION, .u.builtin = row};
    return (struct jinja_value){.kind = JINJA_UNDEFINED, .u.s = node->name};
}

/* ---- literals ---- */

static struct jinja_value eval_const(struct jinja_run *r, const struct jinja_node *node)
{
    (void)r;
    return node->value;
}

static struct jinja_value eval_list(struct jinja_run *r, const struct jinja_node *node)
{
    enum jinja_kind kind = node->kind == JINJA_N_LIST ? JINJA_LIST : JINJA_TUPLE;
    struct jinja_value list = jinja_list_new(r->h, kind, 0);
    for (const struct jinja_node *item = node->a; item != NULL && !jinja_failed(r->h);
         item = item->next)
        jinja_list_add(r->h, list, jinja_eval(r, item));
    return list;
}

static struct jinja_value eval_dict(struct jinja_run *r, const struct jinja_node *node)
{
    struct jinja_value dict = jinja_dict_new(r->h);
    for (const struct jinja_node *pair = node->a; pair != NULL && !jinja_failed(r->h);
         pair = pair->next) {
        struct jinja_value key = jinja_eval(r, pair->a), value = jinja_eval(r, pair->b);
        if (key.kind == JINJA_LIST || key.kind == JINJA_DICT)
            jinja_fail(r->h, PITH_INVALID, "chat template: unhashable type: '%s'", jinja_type(key));
        if (!jinja_failed(r->h))
            jinja_dict_set(r->h, dict.u.dict, key, value);
    }
    return dict;
}

/* ---- access ---- */

static struct jinja_value eval_attr(struct jinja_run *r, const struct jinja_node *node)
{
    return jinja_get_attr(r, jinja_eval(r, node->a), node->name);
}

static struct jinja_value eval_slice(struct jinja_run *r, const struct jinja_node *node,
                                     struct jinja_value of)
{
    const struct jinja_node *part[3] = {node->a, node->b, node->c};
    struct jinja_value bound[3];
    for (int i = 0; i < 3; i++)
        bound[i] = part[i] != NULL ? jinja_eval(r, part[i]) : jinja_none();
    return jinja_slice(r, of, bound);
}

static struct jinja_value eval_item(struct jinja_run *r, const struct jinja_node *node)
{
    struct jinja_value of = jinja_eval(r, node->a);
    if (node->b->kind == JINJA_N_SLICE)
        return eval_slice(r, node->b, of);
    return jinja_get_item(r, of, jinja_eval(r, node->b));
}

/* ---- calls ---- */

static void add_arg(struct jinja_run *r, const struct jinja_node *node, struct jinja_value list,
                    struct jinja_value named)
{
    struct jinja_value value = jinja_eval(r, node->a);
    if (jinja_failed(r->h))
        return;
    if (node->op == '*') {
        struct jinja_value items = jinja_items(r->h, value);
        for (size_t i = 0; !jinja_failed(r->h) && i < items.u.list->n; i++)
            jinja_list_add(r->h, list, items.u.list->item[i]);
    } else if (node->op != 0 && value.kind != JINJA_DICT) {
        jinja_fail(r->h, PITH_INVALID, "chat template: argument after ** must be a mapping, not %s",
                   jinja_type(value));
    } else if (node->op != 0) {
        for (size_t i = 0; i < value.u.dict->n; i++)
            jinja_dict_set(r->h, named.u.dict, value.u.dict->pair[i].key,
                           value.u.dict->pair[i].value);
    } else if (node->name != NULL) {
        jinja_dict_set(r->h, named.u.dict, jinja_of(node->name), value);
    } else {
        jinja_list_add(r->h, list, value);
    }
}

/* Names of arguments, which must be strings. */
static void take_named(struct jinja_run *r, const struct jinja_dict *named, struct jinja_args *args)
{
    args->named = jinja_alloc(r->h, named->n, sizeof(*args->named));
    for (size_t i = 0; args->named != NULL && i < named->n; i++) {
        if (named->pair[i].key.kind != JINJA_STR) {
            jinja_fail(r->h, PITH_INVALID, "chat template: keywords must be strings");
            return;
        }
        args->named[args->n_named++] =
            (struct jinja_named){named->pair[i].key.u.s, named->pair[i].value};
    }
}

struct jinja_args jinja_eval_args(struct jinja_run *r, const struct jinja_node *list,
                                  struct jinja_value caller)
{
    struct jinja_args args = {0};
    if ((list == NULL && caller.kind == JINJA_ABSENT) || jinja_failed(r->h))
        return args;
    struct jinja_value place = jinja_list_new(r->h, JINJA_LIST, 0), named = jinja_dict_new(r->h);
    for (; list != NULL && !jinja_failed(r->h); list = list->next)
        add_arg(r, list, place, named);
    if (caller.kind != JINJA_ABSENT && !jinja_failed(r->h))
        jinja_dict_set(r->h, named.u.dict, jinja_text(r->h, "caller"), caller);
    if (jinja_failed(r->h))
        return args;
    args.place = place.u.list->item;
    args.n_place = place.u.list->n;
    take_named(r, named.u.dict, &args);
    return args;
}

struct jinja_value jinja_call(struct jinja_run *r, struct jinja_value callee,
                              const struct jinja_args *args)
{
    if (jinja_failed(r->h))
        return jinja_undefined();
    switch (callee.kind) {
    case JINJA_FUNCTION:
        return jinja_call_builtin(r, callee.u.builtin, jinja_none(), args);
    case JINJA_METHOD:
        return jinja_call_builtin(r, callee.u.method->builtin, callee.u.method->self, args);
    case JINJA_MACRO:
        return jinja_call_macro(r, callee.u.macro, args);
    case JINJA_LOOP:
        return jinja_call_loop(r, callee.u.loop, args);
    case JINJA_UNDEFINED:
        jinja_fail_undefined(r->h, callee);
        return jinja_undefined();
    default:
        jinja_fail(r->h, PITH_INVALID, "chat template: '%s' object is not callable",
                   jinja_type(callee));
        return jinja_undefined();
    }
}

/* A call of the clock that was not asked for first gets the caller's value for that. */
static struct jinja_value find_clock(struct jinja_run *r, const struct jinja_node *node,
                                     struct jinja_value callee)
{
    if (callee.kind != JINJA_UNDEFINED || r->now == NULL || node->kind != JINJA_N_NAME ||
        !jinja_str_is(node->name, "strftime_now"))
        return callee;
    return (struct jinja_value){.kind = JINJA_FUNCTION,
                                .u.builtin = jinja_find_function(node->name)};
}

static struct jinja_value eval_call(struct jinja_run *r, const struct jinja_node *node)
{
    struct jinja_value callee = find_clock(r, node->a, jinja_eval(r, node->a));
    const struct jinja_args args = jinja_eval_args(r, node->b, (struct jinja_value){0});
    return jinja_call(r, callee, &args);
}

/* ---- filters and tests ---- */

static void fail_unknown(struct jinja_run *r, const struct jinja_node *node, const char *what)
{
    jinja_fail(r->h, PITH_UNSUPPORTED, "chat template: line %d: No %s named '%.*s'.",
               (int)node->line, what, (int)(node->name->len < 80 ? node->name->len : 80),
               node->name->data);
}

static struct jinja_value apply_filter(struct jinja_run *r, const struct jinja_node *node,
                                       struct jinja_value self)
{
    if (node->builtin == NULL)
        fail_unknown(r, node, "filter");
    const struct jinja_args args = jinja_eval_args(r, node->b, (struct jinja_value){0});
    if (jinja_failed(r->h))
        return jinja_undefined();
    return jinja_call_builtin(r, node->builtin, self, &args);
}

static struct jinja_value eval_filter(struct jinja_run *r, const struct jinja_node *node)
{
    return apply_filter(r, node, jinja_eval(r, node->a));
}

struct jinja_value jinja_eval_filters(struct jinja_run *r, const struct jinja_node *node,
                                      struct jinja_value text)
{
    if (node == NULL || !jinja_enter(r->h))
        return text;
    struct jinja_value inner = jinja_eval_filters(r, node->a, text);
    jinja_leave(r->h);
    return jinja_failed(r->h) ? inner : apply_filter(r, node, inner);
}

static struct jinja_value eval_test(struct jinja_run *r, const struct jinja_node *node)
{
    struct jinja_value self = jinja_eval(r, node->a);
    if (node->builtin == NULL)
        fail_unknown(r, node, "test");
    const struct jinja_args args = jinja_eval_args(r, node->b, (struct jinja_value){0});
    if (jinja_failed(r->h))
        return jinja_undefined();
    return jinja_call_builtin(r, node->builtin, self, &args);
}

/* ---- operators ---- */

static struct jinja_value eval_not(struct jinja_run *r, const struct jinja_node *node)
{
    return jinja_bool(!jinja_truth(jinja_eval(r, node->a)));
}

static struct jinja_value eval_logic(struct jinja_run *r, const struct jinja_node *node)
{
    struct jinja_value left = jinja_eval(r, node->a);
    if (jinja_truth(left) == (node->kind == JINJA_N_OR))
        return left;
    return jinja_eval(r, node->b);
}

static struct jinja_value eval_compare(struct jinja_run *r, const struct jinja_node *node)
{
    struct jinja_value left = jinja_eval(r, node->a);
    for (const struct jinja_node *o = node->b; o != NULL && !jinja_failed(r->h); o = o->next) {
        struct jinja_value right = jinja_eval(r, o->a);
        if (!jinja_compare(r, o->op, left, right))
            return jinja_bool(false);
        left = right;
    }
    return jinja_bool(true);
}

static struct jinja_value eval_math(struct jinja_run *r, const struct jinja_node *node)
{
    struct jinja_value a = jinja_eval(r, node->a), b = jinja_eval(r, node->b);
    return jinja_failed(r->h) ? a : jinja_math(r, node->op, a, b);
}

static struct jinja_value eval_sign(struct jinja_run *r, const struct jinja_node *node)
{
    struct jinja_value a = jinja_eval(r, node->a);
    return jinja_failed(r->h) ? a : jinja_sign(r, node->op, a);
}

static struct jinja_value eval_concat(struct jinja_run *r, const struct jinja_node *node)
{
    struct jinja_value parts = jinja_list_new(r->h, JINJA_LIST, 4);
    for (const struct jinja_node *part = node->a; part != NULL && !jinja_failed(r->h);
         part = part->next)
        jinja_list_add(r->h, parts, jinja_eval(r, part));
    if (jinja_failed(r->h))
        return jinja_undefined();
    return jinja_concat(r, parts.u.list->item, parts.u.list->n);
}

static struct jinja_value eval_if_else(struct jinja_run *r, const struct jinja_node *node)
{
    if (jinja_truth(jinja_eval(r, node->b)))
        return jinja_eval(r, node->a);
    return node->c != NULL ? jinja_eval(r, node->c) : jinja_undefined();
}

typedef struct jinja_value eval_fn(struct jinja_run *r, const struct jinja_node *node);

static eval_fn *const eval_table[] = {
    [JINJA_N_CONST] = eval_const,   [JINJA_N_NAME] = eval_name,
    [JINJA_N_LIST] = eval_list,     [JINJA_N_TUPLE] = eval_list,
    [JINJA_N_DICT] = eval_dict,     [JINJA_N_ATTR] = eval_attr,
    [JINJA_N_ITEM] = eval_item,     [JINJA_N_CALL] = eval_call,
    [JINJA_N_FILTER] = eval_filter, [JINJA_N_TEST] = eval_test,
    [JINJA_N_NOT] = eval_not,       [JINJA_N_AND] = eval_logic,
    [JINJA_N_OR] = eval_logic,      [JINJA_N_COMPARE] = eval_compare,
    [JINJA_N_MATH] = eval_math,     [JINJA_N_SIGN] = eval_sign,
    [JINJA_N_CONCAT] = eval_concat, [JINJA_N_IF_ELSE] = eval_if_else,
};

struct jinja_value jinja_eval(struct jinja_run *r, const struct jinja_node *node)
{
    if (!jinja_charge(r->h, 1) || !jinja_enter(r->h))
        return jinja_undefined();
    struct jinja_value value = eval_table[node->kind](r, node);
    jinja_leave(r->h);
    return jinja_failed(r->h) ? jinja_undefined() : value;
}
