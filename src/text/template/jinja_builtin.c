/*
 * jinja_builtin.c - finds rows by name and binds arguments to their parameters, so that no row
 * looks at how it was called.
 */
#include "text/template/jinja_run.h"

static const struct jinja_builtin *find(const struct jinja_builtin *table,
                                        const struct jinja_str *name)
{
    for (; table->name != NULL; table++)
        if (jinja_str_is(name, table->name))
            return table;
    return NULL;
}

const struct jinja_builtin *jinja_find_filter(const struct jinja_str *name)
{
    const struct jinja_builtin *row = find(jinja_filters, name);
    return row != NULL ? row : find(jinja_list_filters, name);
}

const struct jinja_builtin *jinja_find_test(const struct jinja_str *name)
{
    return find(jinja_tests, name);
}

const struct jinja_builtin *jinja_find_function(const struct jinja_str *name)
{
    return find(jinja_functions, name);
}

const struct jinja_builtin *jinja_find_method(enum jinja_kind kind, const struct jinja_str *name)
{
    switch (kind) {
    case JINJA_STR:
        return find(jinja_str_methods, name);
    case JINJA_DICT:
        return find(jinja_dict_methods, name);
    case JINJA_LIST:
        return find(jinja_list_methods, name);
    case JINJA_TUPLE:
        return jinja_str_is(name, "copy") ? NULL : find(jinja_list_methods, name);
    case JINJA_LOOP:
        return find(jinja_loop_methods, name);
    default:
        return NULL;
    }
}

bool jinja_is_unsafe(enum jinja_kind kind, const struct jinja_str *name)
{
    static const char *const of_list[] = {"append", "clear",  "pop",    "reverse", "insert",
                                          "sort",   "extend", "remove", NULL};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "update", "setdefault", NULL};
    const char *const *names = kind == JINJA_LIST ? of_list : kind == JINJA_DICT ? of_dict : NULL;
    for (; names != NULL && *names != NULL; names++)
        if (jinja_str_is(name, *names))
            return true;
    return false;
}

static int32_t count_params(const struct jinja_builtin *row)
{
    int32_t n = 0;
    while (n < JINJA_PARAM_MAX && row->param[n] != NULL)
        n++;
    return n;
}

static void refuse_arg(struct jinja_run *r, const struct jinja_builtin *row,
                       const struct jinja_named *arg, const char *why)
{
    jinja_fail(r->h, PITH_INVALID, "chat template: %s() %s '%.*s'", row->name, why,
               (int)pi_min((int64_t)arg->name->len, 60), arg->name->data);
}

static void bind_named(struct jinja_run *r, const struct jinja_builtin *row,
                       const struct jinja_args *args, struct jinja_value *bound)
{
    for (size_t i = 0; i < args->n_named; i++) {
        int32_t k = 0, n = count_params(row);
        while (k < n && !jinja_str_is(args->named[i].name, row->param[k]))
            k++;
        if (k == n)
            refuse_arg(r, row, &args->named[i], "got an unexpected keyword argument");
        else if (bound[k].kind != JINJA_ABSENT)
            refuse_arg(r, row, &args->named[i], "got multiple values for argument");
        else
            bound[k] = args->named[i].value;
    }
}

struct jinja_value jinja_call_builtin(struct jinja_run *r, const struct jinja_builtin *row,
                                      struct jinja_value self, const struct jinja_args *args)
{
    struct jinja_value bound[JINJA_PARAM_MAX] = {{.kind = JINJA_ABSENT}}, value;
    int32_t n = count_params(row);
    if (!row->any && args->n_place > (size_t)n)
        jinja_fail(r->h, PITH_INVALID, "chat template: %s() takes %d arguments but %zu were given",
                   row->name, (int)n, args->n_place);
    for (size_t i = 0; i < args->n_place && i < (size_t)n; i++)
        bound[i] = args->place[i];
    if (!row->any && !jinja_failed(r->h))
        bind_named(r, row, args, bound);
    for (int32_t i = 0; i < row->n_needed; i++)
        if (bound[i].kind == JINJA_ABSENT)
            jinja_fail(r->h, PITH_INVALID, "chat template: %s() lacks its argument '%s'", row->name,
                       row->param[i]);
    if (!jinja_enter(r->h))
        return jinja_undefined();
    value = row->fn(r, self, bound, args);
    jinja_leave(r->h);
    return jinja_failed(r->h) ? jinja_undefined() : value;
}

int64_t jinja_arg_int(struct jinja_run *r, struct jinja_value arg, int64_t fallback,
                      const char *what)
{
    if (arg.kind == JINJA_ABSENT)
        return fallback;
    if (arg.kind == JINJA_INT || arg.kind == JINJA_BOOL)
        return jinja_whole(arg);
    jinja_fail(r->h, PITH_INVALID, "chat template: %s: '%s' is not a whole number", what,
               jinja_type(arg));
    return fallback;
}

const struct jinja_str *jinja_arg_str(struct jinja_run *r, struct jinja_value arg, const char *what)
{
    if (arg.kind == JINJA_STR)
        return arg.u.s;
    if (arg.kind != JINJA_ABSENT && arg.kind != JINJA_NONE)
        jinja_fail(r->h, PITH_INVALID, "chat template: %s: '%s' is not a string", what,
                   jinja_type(arg));
    return NULL;
}
