/*
 * jinja_tests.c - what stands behind "is", a row each.
 */
#include "text/template/jinja_run.h"

/* ---- kinds ---- */

static struct jinja_value is_defined(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(self.kind != JINJA_UNDEFINED);
}

static struct jinja_value is_undefined(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(self.kind == JINJA_UNDEFINED);
}

static struct jinja_value is_none(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(self.kind == JINJA_NONE);
}

static struct jinja_value is_boolean(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(self.kind == JINJA_BOOL);
}

static struct jinja_value is_true(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(self.kind == JINJA_BOOL && self.u.b);
}

static struct jinja_value is_false(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(self.kind == JINJA_BOOL && !self.u.b);
}

static struct jinja_value is_integer(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(self.kind == JINJA_INT || self.kind == JINJA_BIG);
}

static struct jinja_value is_float(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(self.kind == JINJA_FLOAT);
}

static struct jinja_value is_number(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(jinja_is_number(self) || self.kind == JINJA_BIG);
}

static struct jinja_value is_string(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(self.kind == JINJA_STR);
}

static struct jinja_value is_mapping(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(self.kind == JINJA_DICT);
}

/* Whether it has a length and items by index or key; an undefined value has both, empty. */
static struct jinja_value is_sequence(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(self.kind == JINJA_STR || self.kind == JINJA_DICT ||
                      self.kind == JINJA_UNDEFINED || self.kind == JINJA_LIST ||
                      self.kind == JINJA_TUPLE || self.kind == JINJA_RANGE);
}

static struct jinja_value is_iterable(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(self.kind == JINJA_STR || self.kind == JINJA_DICT || jinja_is_list(self) ||
                      self.kind == JINJA_LOOP ||
                      (self.kind == JINJA_UNDEFINED && self.missing != JINJA_UNSAFE));
}

/* jinja2's undefined can be called, to fail. */
static struct jinja_value is_callable(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(self.kind == JINJA_MACRO || self.kind == JINJA_FUNCTION ||
                      self.kind == JINJA_METHOD || self.kind == JINJA_LOOP ||
                      self.kind == JINJA_UNDEFINED);
}

static struct jinja_value is_escaped(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(self.kind == JINJA_STR && self.u.s->markup);
}

/* ---- texts ---- */

static bool has_case(struct jinja_run *r, struct jinja_value self, const char *method)
{
    const struct jinja_str name = {.data = method, .len = strlen(method)};
    const struct jinja_args none = {0};
    return jinja_truth(jinja_call_builtin(r, jinja_find_method(JINJA_STR, &name),
                                          jinja_of(jinja_to_str(r->h, self)), &none));
}

static struct jinja_value is_lower(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(has_case(r, self, "islower"));
}

static struct jinja_value is_upper(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(has_case(r, self, "isupper"));
}

/* ---- numbers ---- */

static bool divides(struct jinja_run *r, struct jinja_value self, struct jinja_value by, int64_t is)
{
    struct jinja_value left = jinja_math(r, '%', self, by);
    return !jinja_failed(r->h) && jinja_equal(r->h, left, jinja_int(is));
}

static struct jinja_value is_odd(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(divides(r, self, jinja_int(2), 1));
}

static struct jinja_value is_even(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(divides(r, self, jinja_int(2), 0));
}

static struct jinja_value is_divisibleby(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(divides(r, self, arg[0], 0));
}

/* ---- comparisons ---- */

static struct jinja_value is_eq(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(jinja_equal(r->h, self, arg[0]));
}

static struct jinja_value is_ne(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(!jinja_equal(r->h, self, arg[0]));
}

static struct jinja_value is_lt(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(jinja_order(r->h, self, arg[0]) < 0);
}

static struct jinja_value is_le(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(jinja_order(r->h, self, arg[0]) <= 0);
}

static struct jinja_value is_gt(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(jinja_order(r->h, self, arg[0]) > 0);
}

static struct jinja_value is_ge(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(jinja_order(r->h, self, arg[0]) >= 0);
}

static struct jinja_value is_in(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(jinja_contains(r, arg[0], self));
}

/* One object: lists and dicts by identity, the rest by kind and value. */
static struct jinja_value is_sameas(JINJA_ROW)
{
    JINJA_UNUSED;
    bool object = jinja_is_list(self) || self.kind == JINJA_DICT;
    if (self.kind != arg[0].kind)
        return jinja_bool(false);
    return jinja_bool(object ? self.u.list == arg[0].u.list : jinja_equal(r->h, self, arg[0]));
}

static struct jinja_value is_filter(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(self.kind == JINJA_STR && jinja_find_filter(self.u.s) != NULL);
}

static struct jinja_value is_test(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(self.kind == JINJA_STR && jinja_find_test(self.u.s) != NULL);
}

const struct jinja_builtin jinja_tests[] = {
    {"defined", is_defined, {0}, 0, false},
    {"undefined", is_undefined, {0}, 0, false},
    {"none", is_none, {0}, 0, false},
    {"boolean", is_boolean, {0}, 0, false},
    {"true", is_true, {0}, 0, false},
    {"false", is_false, {0}, 0, false},
    {"integer", is_integer, {0}, 0, false},
    {"float", is_float, {0}, 0, false},
    {"number", is_number, {0}, 0, false},
    {"string", is_string, {0}, 0, false},
    {"mapping", is_mapping, {0}, 0, false},
    {"sequence", is_sequence, {0}, 0, false},
    {"iterable", is_iterable, {0}, 0, false},
    {"callable", is_callable, {0}, 0, false},
    {"escaped", is_escaped, {0}, 0, false},
    {"lower", is_lower, {0}, 0, false},
    {"upper", is_upper, {0}, 0, false},
    {"odd", is_odd, {0}, 0, false},
    {"even", is_even, {0}, 0, false},
    {"divisibleby", is_divisibleby, {"num"}, 1, false},
    {"eq", is_eq, {"b"}, 1, false},
    {"==", is_eq, {"b"}, 1, false},
    {"equalto", is_eq, {"b"}, 1, false},
    {"ne", is_ne, {"b"}, 1, false},
    {"!=", is_ne, {"b"}, 1, false},
    {"lt", is_lt, {"b"}, 1, false},
    {"<", is_lt, {"b"}, 1, false},
    {"lessthan", is_lt, {"b"}, 1, false},
    {"le", is_le, {"b"}, 1, false},
    {"<=", is_le, {"b"}, 1, false},
    {"gt", is_gt, {"b"}, 1, false},
    {">", is_gt, {"b"}, 1, false},
    {"greaterthan", is_gt, {"b"}, 1, false},
    {"ge", is_ge, {"b"}, 1, false},
    {">=", is_ge, {"b"}, 1, false},
    {"in", is_in, {"seq"}, 1, false},
    {"sameas", is_sameas, {"other"}, 1, false},
    {"filter", is_filter, {0}, 0, false},
    {"test", is_test, {0}, 0, false},
    {0},
};
