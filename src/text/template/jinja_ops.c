/*
 * jinja_ops.c - operators of templates, as Python's. Whole numbers divide towards minus infinity,
 * and strings and lists add and repeat. Strings that are marked as safe escape the texts that join
 * them. Whole numbers have 64 bits; beyond them is a failure.
 */
#include <math.h>

#include "text/template/jinja_run.h"

static struct jinja_value fail_types(struct jinja_run *r, const char *op, struct jinja_value a,
                                     struct jinja_value b)
{
    if (a.kind == JINJA_UNDEFINED || b.kind == JINJA_UNDEFINED)
        jinja_fail_undefined(r->h, a.kind == JINJA_UNDEFINED ? a : b);
    jinja_fail(r->h, PITH_INVALID,
               "chat template: unsupported operand type(s) for %s: '%s' and '%s'", op,
               jinja_type(a), jinja_type(b));
    return jinja_undefined();
}

static struct jinja_value too_large(struct jinja_run *r)
{
    jinja_fail(r->h, PITH_INVALID, "chat template: a whole number is beyond 64 bits");
    return jinja_undefined();
}

/* ---- numbers ---- */

static bool add_whole(int64_t a, int64_t b, int64_t *out)
{
    if ((b > 0 && a > INT64_MAX - b) || (b < 0 && a < INT64_MIN - b))
        return false;
    *out = a + b;
    return true;
}

static bool multiply_whole(int64_t a, int64_t b, int64_t *out)
{
    uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
    bool negative = (a < 0) != (b < 0);
    uint64_t most = (uint64_t)INT64_MAX + negative;
    if (x != 0 && y > most / x)
        return false;
    uint64_t product = x * y;
    *out = negative ? (int64_t)(0 - product) : (int64_t)product;
    return true;
}

static bool power_whole(int64_t base, int64_t power, int64_t *out)
{
    *out = 1;
    for (; power > 0; power /= 2) {
        if ((power & 1) != 0 && !multiply_whole(*out, base, out))
            return false;
        if (power > 1 && !multiply_whole(base, base, &base))
            return false;
    }
    return true;
}

/* Towards minus infinity, with the remainder of b's sign. */
static bool divide_whole(int64_t a, int64_t b, int64_t *quotient, int64_t *rest)
{
    if (a == INT64_MIN && b == -1)
        return false;
    *quotient = a / b;
    *rest = a % b;
    if (*rest != 0 && (*rest < 0) != (b < 0)) {
        *quotient -= 1;
        *rest += b;
    }
    return true;
}

static struct jinja_value math_whole(struct jinja_run *r, uint16_t op, int64_t a, int64_t b)
{
    int64_t out = 0, other = 0;
    bool fits = true;
    switch (op) {
    case '+':
        fits = add_whole(a, b, &out);
        break;
    case '-':
        fits = b != INT64_MIN ? add_whole(a, -b, &out) : a < 0 && add_whole(a + 1, INT64_MAX, &out);
        break;
    case '*':
        fits = multiply_whole(a, b, &out);
        break;
    case '%':
        fits = divide_whole(a, b, &other, &out);
        break;
    case JINJA_OP2('/', '/'):
        fits = divide_whole(a, b, &out, &other);
        break;
    default:
        fits = power_whole(a, b, &out);
    }
    return fits ? jinja_int(out) : too_large(r);
}

static struct jinja_value math_real(uint16_t op, double a, double b)
{
    double rest;
    switch (op) {
    case '+':
        return jinja_float(a + b);
    case '-':
        return jinja_float(a - b);
    case '*':
        return jinja_float(a * b);
    case '/':
        return jinja_float(a / b);
    case '%':
    case JINJA_OP2('/', '/'):
        rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0))
            rest += b;
        return jinja_float(op == '%' ? rest : floor((a - rest) / b + 0.5));
    default:
        return jinja_float(pow(a, b));
    }
}

static struct jinja_value math_numbers(struct jinja_run *r, uint16_t op, struct jinja_value a,
                                       struct jinja_value b)
{
    bool divides = op == '/' || op == '%' || op == JINJA_OP2('/', '/');
    if (divides && jinja_number(b) == 0) {
        jinja_fail(r->h, PITH_INVALID, "chat template: division by zero");
        return jinja_undefined();
    }
    bool whole = a.kind != JINJA_FLOAT && b.kind != JINJA_FLOAT && op != '/';
    if (whole && op == JINJA_OP2('*', '*') && jinja_whole(b) < 0)
        whole = false;
    return whole ? math_whole(r, op, jinja_whole(a), jinja_whole(b))
                 : math_real(op, jinja_number(a), jinja_number(b));
}

/* ---- strings and lists ---- */

static struct jinja_value add_strings(struct jinja_run *r, const struct jinja_str *a,
                                      const struct jinja_str *b)
{
    struct jinja_buf out = {.h = r->h};
    bool markup = a->markup || b->markup;
    jinja_put(&out, markup ? jinja_str_escape(r->h, a) : a);
    jinja_put(&out, markup ? jinja_str_escape(r->h, b) : b);
    return jinja_of(jinja_str_safe(r->h, jinja_buf_end(&out), markup));
}

static struct jinja_value add_lists(struct jinja_run *r, struct jinja_value a, struct jinja_value b)
{
    const struct jinja_list *part[2] = {a.u.list, b.u.list};
    struct jinja_value sum = jinja_list_new(r->h, a.kind, part[0]->n + part[1]->n);
    for (int p = 0; p < 2; p++)
        for (size_t i = 0; i < part[p]->n && jinja_charge(r->h, i % 8 == 0); i++)
            jinja_list_add(r->h, sum, part[p]->item[i]);
    return sum;
}

static struct jinja_value repeat(struct jinja_run *r, struct jinja_value what, int64_t times)
{
    struct jinja_buf out = {.h = r->h};
    if (what.kind == JINJA_STR) {
        for (int64_t i = 0; i < times && jinja_charge(r->h, 1) && what.u.s->len > 0; i++)
            jinja_put(&out, what.u.s);
        return jinja_of(jinja_str_safe(r->h, jinja_buf_end(&out), what.u.s->markup));
    }
    struct jinja_value list = jinja_list_new(r->h, what.kind, 0);
    for (int64_t i = 0; i < times && jinja_charge(r->h, 1) && what.u.list->n > 0; i++)
        for (size_t k = 0; k < what.u.list->n && jinja_charge(r->h, 1); k++)
            jinja_list_add(r->h, list, what.u.list->item[k]);
    return list;
}

static bool is_whole(struct jinja_value v)
{
    return v.kind == JINJA_INT || v.kind == JINJA_BOOL;
}

static bool is_sequence(struct jinja_value v)
{
    return v.kind == JINJA_STR || v.kind == JINJA_LIST || v.kind == JINJA_TUPLE;
}

static const char *op_name(uint16_t op, char *buf)
{
    buf[0] = op > 0xff ? (char)(op >> 8) : (char)op;
    buf[1] = op > 0xff ? (char)(op & 0xff) : 0;
    buf[2] = 0;
    return buf;
}

struct jinja_value jinja_math(struct jinja_run *r, uint16_t op, struct jinja_value a,
                              struct jinja_value b)
{
    char name[3];
    if (jinja_is_number(a) && jinja_is_number(b))
        return math_numbers(r, op, a, b);
    if (op == '%' && a.kind == JINJA_STR && b.kind != JINJA_UNDEFINED)
        return jinja_of(jinja_percent(r, a.u.s, b));
    if (op == '+' && a.kind == JINJA_STR && b.kind == JINJA_STR)
        return add_strings(r, a.u.s, b.u.s);
    if (op == '+' && is_sequence(a) && a.kind == b.kind)
        return add_lists(r, a, b);
    if (op == '*' && is_sequence(a) && is_whole(b))
        return repeat(r, a, jinja_whole(b));
    if (op == '*' && is_whole(a) && is_sequence(b))
        return repeat(r, b, jinja_whole(a));
    return fail_types(r, op_name(op, name), a, b);
}

struct jinja_value jinja_sign(struct jinja_run *r, uint16_t op, struct jinja_value a)
{
    if (!jinja_is_number(a))
        return fail_types(r, op == '-' ? "unary -" : "unary +", a, a);
    if (a.kind == JINJA_FLOAT)
        return jinja_float(op == '-' ? -a.u.f : a.u.f);
    return math_whole(r, op, 0, jinja_whole(a));
}

/* Where nothing is escaped by itself, as here, ~ makes plain text of strings marked as safe. */
struct jinja_value jinja_concat(struct jinja_run *r, const struct jinja_value *part, size_t n)
{
    struct jinja_buf out = {.h = r->h};
    for (size_t i = 0; i < n; i++)
        jinja_put_value(&out, part[i]);
    return jinja_of(jinja_buf_end(&out));
}

/* ---- comparisons ---- */

bool jinja_contains(struct jinja_run *r, struct jinja_value where, struct jinja_value what)
{
    if (where.kind == JINJA_STR) {
        if (what.kind == JINJA_STR)
            return jinja_str_find(r->h, where.u.s, what.u.s, 0) != SIZE_MAX;
        jinja_fail(r->h, PITH_INVALID,
                   "chat template: 'in <string>' requires string as left operand, not %s",
                   jinja_type(what));
        return false;
    }
    if (where.kind == JINJA_DICT) {
        if (what.kind == JINJA_LIST || what.kind == JINJA_DICT)
            jinja_fail(r->h, PITH_INVALID, "chat template: unhashable type: '%s'",
                       jinja_type(what));
        return !jinja_failed(r->h) && jinja_dict_get(r->h, where.u.dict, what) != NULL;
    }
    if (jinja_is_list(where)) {
        struct jinja_list *list = where.u.list;
        size_t i = where.kind == JINJA_ITER ? list->at : 0, first = i;
        bool found = false;
        for (; i < list->n && !found; i++)
            found = jinja_equal(r->h, list->item[i], what);
        if (where.kind == JINJA_ITER)
            list->at = i;
        return jinja_charge(r->h, (i - first) / 8) && found;
    }
    if (where.kind != JINJA_UNDEFINED)
        jinja_fail(r->h, PITH_INVALID, "chat template: argument of type '%s' is not iterable",
                   jinja_type(where));
    return false;
}

bool jinja_compare(struct jinja_run *r, uint16_t op, struct jinja_value a, struct jinja_value b)
{
    if (jinja_failed(r->h))
        return false;
    switch (op) {
    case JINJA_OP2('=', '='):
        return jinja_equal(r->h, a, b);
    case JINJA_OP2('!', '='):
        return !jinja_equal(r->h, a, b);
    case 'i':
        return jinja_contains(r, b, a);
    case 'n':
        return !jinja_contains(r, b, a);
    case '<':
        return jinja_order(r->h, a, b) < 0;
    case '>':
        return jinja_order(r->h, a, b) > 0;
    case JINJA_OP2('<', '='):
        return jinja_order(r->h, a, b) <= 0;
    default:
        return jinja_order(r->h, a, b) >= 0;
    }
}

/* ---- slices ---- */

/* A bound as Python takes it: counted from the end where negative, then within [low, high]. */
static int64_t clamp_bound(struct jinja_value v, int64_t n, int64_t fallback, int64_t low,
                           int64_t high)
{
    if (v.kind == JINJA_NONE)
        return fallback;
    int64_t i = jinja_whole(v);
    if (i < 0)
        i = i < -n ? -1 : i + n; /* -1: in front of the first */
    return i < low ? low : i > high ? high : i;
}

static struct jinja_value slice_string(struct jinja_run *r, const struct jinja_str *s, int64_t from,
                                       int64_t to, int64_t step)
{
    if (step == 1) {
        size_t begin = jinja_str_offset(s, (size_t)from);
        if (to <= from)
            return jinja_of(jinja_str_cut(r->h, s, begin, begin));
        const struct jinja_str rest = {.data = s->data + begin, .len = s->len - begin};
        size_t end = begin + jinja_str_offset(&rest, (size_t)(to - from));
        return jinja_of(jinja_str_cut(r->h, s, begin, end));
    }
    struct jinja_buf out = {.h = r->h};
    struct jinja_value chars = jinja_items(r->h, jinja_of(s));
    for (int64_t i = from; !jinja_failed(r->h) && (step > 0 ? i < to : i > to); i += step)
        jinja_put(&out, chars.u.list->item[i].u.s);
    return jinja_of(jinja_str_safe(r->h, jinja_buf_end(&out), s->markup));
}

struct jinja_value jinja_slice(struct jinja_run *r, struct jinja_value of,
                               const struct jinja_value bound[3])
{
    size_t n_item;
    bool known = of.kind == JINJA_STR || of.kind == JINJA_LIST || of.kind == JINJA_TUPLE ||
                 of.kind == JINJA_RANGE;
    if (of.kind == JINJA_UNDEFINED)
        jinja_fail_undefined(r->h, of);
    else if (!known)
        jinja_fail(r->h, PITH_INVALID, "chat template: '%s' object is not subscriptable",
                   jinja_type(of));
    for (int i = 0; i < 3; i++)
        if (bound[i].kind != JINJA_NONE && !is_whole(bound[i]))
            jinja_fail(r->h, PITH_INVALID, "chat template: slice indices must be integers");
    if (jinja_failed(r->h))
        return jinja_undefined();
    int64_t step = bound[2].kind != JINJA_NONE ? jinja_whole(bound[2]) : 1;
    if (step == 0)
        jinja_fail(r->h, PITH_INVALID, "chat template: slice step cannot be zero");
    if (jinja_failed(r->h))
        return jinja_undefined();
    jinja_length(of, &n_item);
    int64_t n = (int64_t)n_item, low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    int64_t from = clamp_bound(bound[0], n, step > 0 ? 0 : n - 1, low, high);
    int64_t to = clamp_bound(bound[1], n, step > 0 ? n : -1, low, high);
    step = step > n ? n + 1 : step < -n ? -n - 1 : step; /* that i + step stays small */
    if (of.kind == JINJA_STR)
        return jinja_charge(r->h, of.u.s->len / 64) ? slice_string(r, of.u.s, from, to, step) : of;
    struct jinja_value list = jinja_list_new(r->h, of.kind, 0);
    for (int64_t i = from; (step > 0 ? i < to : i > to) && jinja_charge(r->h, 1); i += step)
        jinja_list_add(r->h, list, of.u.list->item[i]);
    return list;
}
