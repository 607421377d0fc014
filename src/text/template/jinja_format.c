/*
 * jinja_format.c - "..." % values and "...".format(values), as Python's for the kinds of values
 * that templates have. Parts of the pattern and of values keep their marks.
 */
#include <math.h>
#include <stdio.h>

#include "base/utf8.h"
#include "text/template/jinja_run.h"

/* How a value is to be written; of "%-05.2f" or "{:<5.2f}". */
struct spec {
    const struct jinja_str *fill;
    char align; /* '<', '>', '^', '='; 0: by kind */
    char sign;  /* '+', ' ' or 0 */
    bool zero, comma, alternate;
    int32_t width, precision; /* precision -1: none */
    char type;
};

#define WIDTH_MAX 1000000

static const struct jinja_str space = {.data = " ", .len = 1}, zero = {.data = "0", .len = 1};

/* A number within the pattern; *at stands behind it. */
static int32_t read_count(struct jinja_run *r, const struct jinja_str *s, size_t *at)
{
    int32_t n = 0;
    for (; *at < s->len && s->data[*at] >= '0' && s->data[*at] <= '9'; ++*at) {
        n = n * 10 + (s->data[*at] - '0');
        if (n > WIDTH_MAX) {
            jinja_fail(r->h, PITH_INVALID, "chat template: a width is above %d", WIDTH_MAX);
            return 0;
        }
    }
    return n;
}

/* ---- one value ---- */

/* Pads text, whose first sign characters stay in front of zeros. */
static void put_padded(struct jinja_buf *b, const struct jinja_str *text, const struct spec *spec,
                       char align, size_t sign)
{
    int64_t room = spec->width - (int64_t)jinja_str_count(text);
    int64_t left = align == '<' ? 0 : align == '^' ? room / 2 : room;
    if (align == '=')
        jinja_put(b, jinja_str_cut(b->h, text, 0, sign));
    for (int64_t i = 0; i < left && jinja_charge(b->h, 1); i++)
        jinja_put(b, spec->fill);
    jinja_put(b, jinja_str_cut(b->h, text, align == '=' ? sign : 0, text->len));
    for (int64_t i = left < 0 ? 0 : left; i < room && jinja_charge(b->h, 1); i++)
        jinja_put(b, spec->fill);
}

/* printf writes the point of its locale, which is whatever no number has. */
static void fix_point(char *text)
{
    char *to = text;
    for (const char *c = text; *c != 0; c++) {
        bool known = (*c >= '0' && *c <= '9') || strchr("+-eEinfa", *c) != NULL;
        if (known)
            *to++ = *c;
        else if (to == text || to[-1] != '.')
            *to++ = '.';
    }
    *to = 0;
}

static void add_commas(char *text, size_t cap)
{
    size_t len = strlen(text), begin = text[0] == '-' || text[0] == '+' || text[0] == ' ';
    size_t end = begin;
    while (text[end] >= '0' && text[end] <= '9')
        end++;
    for (size_t i = end; i > begin + 3 && len + 1 < cap; len++) {
        i -= 3;
        memmove(text + i + 1, text + i, len - i + 1);
        text[i] = ',';
    }
}

static void print_whole(const struct spec *spec, int64_t value, char *text, size_t cap)
{
    const char *prefix = "";
    uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    char digits[72], sign[2] = {value < 0 ? '-' : spec->sign, 0};
    if (spec->type == 'x' || spec->type == 'X' || spec->type == 'o') {
        snprintf(digits, sizeof(digits),
                 spec->type == 'x'   ? "%llx"
                 : spec->type == 'X' ? "%llX"
                                     : "%llo",
                 (unsigned long long)size);
        if (spec->alternate)
            prefix = spec->type == 'x' ? "0x" : spec->type == 'X' ? "0X" : "0o";
    } else {
        snprintf(digits, sizeof(digits), "%llu", (unsigned long long)size);
    }
    snprintf(text, cap, "%s%s%s", sign, prefix, digits);
}

static void print_real(const struct spec *spec, double value, char *text, size_t cap)
{
    static const char *const formats[] = {"%.*f", "%.*e", "%.*g"};
    double size = spec->type == '%' ? fabs(value) * 100 : fabs(value);
    char body[400], type = (char)(spec->type | 0x20);
    int32_t precision = spec->precision < 0 ? 6 : spec->precision;
    if (precision > 60)
        precision = 60;
    if (spec->type == 0 && spec->precision < 0)
        jinja_print_float(size, body);
    else
        snprintf(body, sizeof(body),
                 formats[type == 'e'                      ? 1
                         : type == 'g' || spec->type == 0 ? 2
                                                          : 0],
                 (int)precision, size);
    fix_point(body);
    char sign[2] = {signbit(value) ? '-' : spec->sign, 0};
    snprintf(text, cap, "%s%s%s", sign, body, spec->type == '%' ? "%" : "");
}

/* False: the type does not go with the value. */
static bool put_number(struct jinja_buf *b, const struct spec *spec, struct jinja_value v)
{
    char text[480];
    bool real = v.kind == JINJA_FLOAT || (spec->type != 0 && strchr("feEgGF%", spec->type) != NULL);
    if (!real && spec->type != 0 && strchr("dixXon", spec->type) == NULL)
        return false;
    if (real && spec->type != 0 && strchr("feEgGF%", spec->type) == NULL)
        return false;
    if (real)
        print_real(spec, jinja_number(v), text, sizeof(text));
    else
        print_whole(spec, jinja_whole(v), text, sizeof(text));
    if (spec->comma)
        add_commas(text, sizeof(text));
    const struct jinja_str s = {.data = text, .len = strlen(text)};
    size_t sign = text[0] == '-' || text[0] == '+' || text[0] == ' ';
    const struct jinja_str *copy = jinja_str_new(b->h, s.data, s.len, false);
    char align = spec->align != 0 ? spec->align : spec->zero ? '=' : '>';
    put_padded(b, copy, spec, align, sign);
    return true;
}

static void put_string(struct jinja_buf *b, const struct spec *spec, const struct jinja_str *s,
                       char align)
{
    if (spec->precision >= 0)
        s = jinja_str_cut(b->h, s, 0, jinja_str_offset(s, (size_t)spec->precision));
    put_padded(b, s, spec, spec->align != 0 ? spec->align : align, 0);
}

static const struct jinja_str *repr_of(struct jinja_heap *h, struct jinja_value v)
{
    struct jinja_buf b = {.h = h};
    jinja_put_repr(&b, v);
    return jinja_buf_end(&b);
}

/* ---- "..." % values ---- */

struct percent {
    struct jinja_run *r;
    const struct jinja_str *format;
    size_t at;
    struct jinja_value values;
    size_t next; /* of a tuple */
    bool by_name;
};

static struct jinja_value next_value(struct percent *p)
{
    size_t n = p->values.kind == JINJA_TUPLE ? p->values.u.list->n : 1;
    if (p->next >= n) {
        jinja_fail(p->r->h, PITH_INVALID, "chat template: not enough arguments for format string");
        return jinja_undefined();
    }
    p->next++;
    return p->values.kind == JINJA_TUPLE ? p->values.u.list->item[p->next - 1] : p->values;
}

/* %(name) */
static struct jinja_value named_value(struct percent *p)
{
    size_t begin = ++p->at;
    while (p->at < p->format->len && p->format->data[p->at] != ')')
        p->at++;
    const struct jinja_str *name = jinja_str_cut(p->r->h, p->format, begin, p->at);
    const struct jinja_value *value = NULL;
    p->at += p->at < p->format->len;
    p->by_name = true;
    if (p->values.kind == JINJA_DICT)
        value = jinja_dict_get(p->r->h, p->values.u.dict, jinja_of(name));
    if (value == NULL)
        jinja_fail(p->r->h, PITH_INVALID, "chat template: format requires a mapping with '%.*s'",
                   (int)pi_min((int64_t)name->len, 60), name->data);
    return value != NULL ? *value : jinja_undefined();
}

static void read_percent_spec(struct percent *p, struct spec *spec)
{
    const struct jinja_str *f = p->format;
    for (; p->at < f->len && strchr("-+ 0#", f->data[p->at]) != NULL && f->data[p->at] != 0;
         p->at++) {
        char c = f->data[p->at];
        spec->align = c == '-' ? '<' : spec->align;
        spec->sign = c == '+' ? '+' : c == ' ' && spec->sign == 0 ? ' ' : spec->sign;
        spec->zero = spec->zero || c == '0';
        spec->alternate = spec->alternate || c == '#';
    }
    spec->width = read_count(p->r, f, &p->at);
    if (p->at < f->len && f->data[p->at] == '.') {
        p->at++;
        spec->precision = read_count(p->r, f, &p->at);
    }
    spec->type = p->at < f->len ? f->data[p->at++] : 0;
}

static void put_conversion(struct percent *p, struct jinja_buf *b)
{
    struct spec spec = {.fill = &space, .precision = -1};
    struct jinja_value v = jinja_undefined();
    bool named = p->at < p->format->len && p->format->data[p->at] == '(';
    if (named)
        v = named_value(p);
    read_percent_spec(p, &spec);
    if (spec.type == '%') {
        jinja_put_text(b, "%");
        return;
    }
    if (!named)
        v = next_value(p);
    if (spec.zero && spec.align == 0 && spec.type != 's' && spec.type != 'r')
        spec.fill = &zero;
    if (jinja_failed(b->h))
        return;
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'a')
        put_string(b, &spec, spec.type == 's' ? jinja_to_str(b->h, v) : repr_of(b->h, v), '>');
    else if (v.kind == JINJA_FLOAT && (spec.type == 'd' || spec.type == 'i'))
        put_number(b, &spec, jinja_int(fabs(v.u.f) < 9e18 ? (int64_t)v.u.f : 0));
    else if (!jinja_is_number(v) || spec.type == 0 || !put_number(b, &spec, v))
        jinja_fail(b->h, PITH_INVALID, "chat template: %%%c format: a number is required, not %s",
                   spec.type != 0 ? spec.type : '?', jinja_type(v));
}

const struct jinja_str *jinja_percent(struct jinja_run *r, const struct jinja_str *format,
                                      struct jinja_value values)
{
    struct percent p = {.r = r, .format = format, .values = values};
    struct jinja_buf b = {.h = r->h};
    while (p.at < format->len && !jinja_failed(r->h)) {
        size_t begin = p.at;
        while (p.at < format->len && format->data[p.at] != '%')
            p.at++;
        jinja_put(&b, jinja_str_cut(r->h, format, begin, p.at));
        if (p.at < format->len) {
            p.at++;
            put_conversion(&p, &b);
        }
    }
    bool left =
        values.kind == JINJA_TUPLE
            ? p.next < values.u.list->n
            : p.next == 0 && !p.by_name && values.kind != JINJA_DICT && values.kind != JINJA_LIST;
    if (left)
        jinja_fail(r->h, PITH_INVALID,
                   "chat template: not all arguments converted during string formatting");
    return jinja_str_safe(r->h, jinja_buf_end(&b), format->markup);
}

/* ---- "...".format(values) ---- */

static bool is_align(char c)
{
    return c == '<' || c == '>' || c == '^' || c == '=';
}

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static struct spec read_spec(struct jinja_run *r, const struct jinja_str *s)
{
    struct spec spec = {.fill = &space, .precision = -1};
    size_t at = 0, first = s->len > 0 ? pi_utf8_next(s->data, s->len).len : 0;
    if (first > 0 && first < s->len && is_align(s->data[first])) {
        spec.fill = jinja_str_cut(r->h, s, 0, first);
        spec.align = s->data[first];
        at = first + 1;
    } else if (s->len > 0 && is_align(s->data[0])) {
        spec.align = s->data[0];
        at = 1;
    }
    if (at < s->len && (s->data[at] == '+' || s->data[at] == ' ' || s->data[at] == '-'))
        spec.sign = s->data[at++];
    spec.sign = spec.sign == '-' ? 0 : spec.sign;
    if (at < s->len && s->data[at] == '#') {
        spec.alternate = true;
        at++;
    }
    if (at < s->len && s->data[at] == '0') {
        spec.zero = true;
        spec.fill = spec.align == 0 ? &zero : spec.fill;
        at++;
    }
    spec.width = read_count(r, s, &at);
    if (at < s->len && s->data[at] == ',') {
        spec.comma = true;
        at++;
    }
    if (at < s->len && s->data[at] == '.') {
        at++;
        spec.precision = read_count(r, s, &at);
    }
    if (at < s->len)
        spec.type = s->data[at++];
    if (at < s->len)
        jinja_fail(r->h, PITH_INVALID, "chat template: Invalid format specifier");
    return spec;
}

/* The value that "0", "name", "" (the next one) stand for. */
static struct jinja_value first_of_field(struct jinja_run *r, const struct jinja_str *name,
                                         const struct jinja_args *args, size_t *next)
{
    size_t i = 0;
    bool number = true;
    for (size_t k = 0; k < name->len && number; k++) {
        number = name->data[k] >= '0' && name->data[k] <= '9' && name->len < 9;
        i = i * 10 + (size_t)(name->data[k] - '0');
    }
    if (name->len == 0)
        i = (*next)++;
    if (number && i < args->n_place)
        return args->place[i];
    for (size_t k = 0; !number && k < args->n_named; k++)
        if (jinja_str_equal(args->named[k].name, name))
            return args->named[k].value;
    jinja_fail(r->h, PITH_INVALID, "chat template: format: there is no argument '%.*s'",
               (int)pi_min((int64_t)name->len, 60), name->data);
    return jinja_undefined();
}

static size_t name_end(const struct jinja_str *s, size_t at)
{
    while (at < s->len && s->data[at] != '.' && s->data[at] != '[')
        at++;
    return at;
}

/* name.attribute[item] */
static struct jinja_value field_value(struct jinja_run *r, const struct jinja_str *field,
                                      const struct jinja_args *args, size_t *next)
{
    size_t at = name_end(field, 0);
    struct jinja_value v = first_of_field(r, jinja_str_cut(r->h, field, 0, at), args, next);
    while (at < field->len && !jinja_failed(r->h)) {
        bool item = field->data[at] == '[';
        size_t begin = ++at;
        if (item) {
            while (at < field->len && field->data[at] != ']')
                at++;
        } else {
            at = name_end(field, at);
        }
        const struct jinja_str *name = jinja_str_cut(r->h, field, begin, at);
        at += item && at < field->len;
        v = item ? jinja_get_path(r, v, jinja_of(name)) : jinja_get_attr(r, v, name);
    }
    return v;
}

/* The inside of braces. */
static void put_field(struct jinja_run *r, struct jinja_buf *b, const struct jinja_str *inside,
                      const struct jinja_args *args, size_t *next)
{
    size_t end = 0, spec_at;
    while (end < inside->len && inside->data[end] != '!' && inside->data[end] != ':')
        end++;
    struct jinja_value v = field_value(r, jinja_str_cut(r->h, inside, 0, end), args, next);
    char conversion = 0;
    if (end + 1 < inside->len && inside->data[end] == '!') {
        conversion = inside->data[end + 1];
        end += 2;
    }
    spec_at = end + (end < inside->len);
    struct spec spec = read_spec(r, jinja_str_cut(r->h, inside, spec_at, inside->len));
    if (jinja_failed(r->h))
        return;
    if (conversion == 'r' || conversion == 'a')
        v = jinja_of(repr_of(r->h, v));
    bool plain = spec.type == 0 || spec.type == 's';
    bool number =
        (v.kind == JINJA_INT || v.kind == JINJA_FLOAT || (v.kind == JINJA_BOOL && !plain)) &&
        conversion == 0;
    if (number && put_number(b, &spec, v))
        return;
    if (number || !plain)
        jinja_fail(r->h, PITH_INVALID,
                   "chat template: Unknown format code '%c' for object of type '%s'", spec.type,
                   jinja_type(v));
    put_string(b, &spec, jinja_to_str(r->h, v), '<');
}

const struct jinja_str *jinja_format(struct jinja_run *r, const struct jinja_str *format,
                                     const struct jinja_args *args)
{
    struct jinja_buf b = {.h = r->h};
    size_t at = 0, next = 0;
    while (at < format->len && jinja_charge(r->h, 1)) {
        size_t begin = at;
        while (at < format->len && format->data[at] != '{' && format->data[at] != '}')
            at++;
        jinja_put(&b, jinja_str_cut(r->h, format, begin, at));
        if (at >= format->len)
            break;
        if (at + 1 < format->len && format->data[at + 1] == format->data[at]) {
            jinja_put(&b, jinja_str_cut(r->h, format, at, at + 1));
            at += 2;
            continue;
        }
        size_t end = at + 1;
        while (end < format->len && format->data[end] != '}' && format->data[end] != '{')
            end++;
        if (format->data[at] == '}' || end >= format->len || format->data[end] == '{') {
            jinja_fail(r->h, PITH_INVALID, "chat template: format: a brace stands alone");
            break;
        }
        put_field(r, &b, jinja_str_cut(r->h, format, at + 1, end), args, &next);
        at = end + 1;
    }
    return jinja_buf_end(&b);
}
