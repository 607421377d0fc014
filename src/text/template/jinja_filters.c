/*
 * jinja_filters.c - filters of single values: text, numbers, JSON. Filters of lists and dicts are
 * in jinja_lists.c. Each is a row of the table at the end.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/number.h"
#include "text/value/jinja_json.h"
#include "text/template/jinja_run.h"

/* ---- text ---- */

static struct jinja_value filter_upper(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_of(jinja_change_case(r->h, jinja_to_str(r->h, self), JINJA_UPPER));
}

static struct jinja_value filter_lower(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_of(jinja_change_case(r->h, jinja_to_str(r->h, self), JINJA_LOWER));
}

static struct jinja_value filter_capitalize(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_of(jinja_change_case(r->h, jinja_to_str(r->h, self), JINJA_CAPITALIZE));
}

/* Words begin behind white space, - and opening brackets. */
static struct jinja_value filter_title(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str *s = jinja_to_str(r->h, self);
    struct jinja_buf b = {.h = r->h};
    for (size_t at = 0, end; at < s->len && !jinja_failed(r->h); at = end) {
        end = at + 1;
        while (end < s->len && memchr("-({[<", s->data[end - 1], 5) == NULL &&
               jinja_space_begin(s->data + end - 1, 1) == 0)
            end++;
        jinja_put(&b, jinja_change_case(r->h, jinja_str_cut(r->h, s, at, end), JINJA_CAPITALIZE));
    }
    return jinja_of(jinja_buf_end(&b));
}

static struct jinja_value filter_trim(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str *set = jinja_arg_str(r, arg[0], "trim: chars");
    return jinja_of(jinja_strip(r->h, jinja_to_str(r->h, self), set, true, true));
}

static struct jinja_value filter_replace(JINJA_ROW)
{
    JINJA_UNUSED;
    int64_t most = arg[2].kind == JINJA_NONE ? -1 : jinja_arg_int(r, arg[2], -1, "replace: count");
    return jinja_of(
        jinja_str_safe(r->h,
                       jinja_replace(r->h, jinja_to_str(r->h, self), jinja_to_str(r->h, arg[0]),
                                     jinja_to_str(r->h, arg[1]), most),
                       false));
}

static struct jinja_value filter_string(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_of(jinja_to_str(r->h, self));
}

static struct jinja_value filter_safe(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_of(jinja_str_safe(r->h, jinja_to_str(r->h, self), true));
}

static struct jinja_value filter_escape(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_of(jinja_str_escape(r->h, jinja_to_str(r->h, self)));
}

static struct jinja_value filter_forceescape(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str *s = jinja_str_safe(r->h, jinja_to_str(r->h, self), false);
    return jinja_of(jinja_str_escape(r->h, s));
}

static struct jinja_value filter_format(JINJA_ROW)
{
    JINJA_UNUSED;
    struct jinja_value values = jinja_list_new(r->h, JINJA_TUPLE, rest->n_place);
    if (rest->n_named > 0)
        values = jinja_dict_new(r->h);
    for (size_t i = 0; rest->n_named == 0 && i < rest->n_place; i++)
        jinja_list_add(r->h, values, rest->place[i]);
    for (size_t i = 0; i < rest->n_named && !jinja_failed(r->h); i++)
        jinja_dict_set(r->h, values.u.dict, jinja_of(rest->named[i].name), rest->named[i].value);
    return jinja_of(jinja_percent(r, jinja_to_str(r->h, self), values));
}

/* The text in front of indented lines: a text, or a number of spaces. */
static const struct jinja_str *indention(struct jinja_run *r, struct jinja_value width)
{
    if (width.kind == JINJA_STR)
        return width.u.s;
    struct jinja_buf b = {.h = r->h};
    int64_t n = jinja_arg_int(r, width, 4, "indent: width");
    for (int64_t i = 0; i < n && jinja_charge(r->h, 1); i++)
        jinja_put_text(&b, " ");
    return jinja_buf_end(&b);
}

static struct jinja_value filter_indent(JINJA_ROW)
{
    JINJA_UNUSED;
    if (self.kind != JINJA_STR) {
        jinja_fail(r->h, PITH_INVALID, "chat template: indent: '%s' is not a string",
                   jinja_type(self));
        return self;
    }
    const struct jinja_str *front = indention(r, arg[0]);
    bool first = jinja_truth(arg[1]), blank = jinja_truth(arg[2]);
    struct jinja_buf whole = {.h = r->h}, b = {.h = r->h};
    jinja_put(&whole, self.u.s);
    jinja_put_text(&whole, "\n");
    struct jinja_value lines = jinja_lines(r->h, jinja_buf_end(&whole), false);
    for (size_t i = 0; !jinja_failed(r->h) && i < lines.u.list->n; i++) {
        const struct jinja_str *line = lines.u.list->item[i].u.s;
        if (i > 0)
            jinja_put_text(&b, "\n");
        if (i == 0 ? first : (blank || line->len > 0))
            jinja_put(&b, front);
        jinja_put(&b, line);
    }
    return jinja_of(jinja_str_safe(r->h, jinja_buf_end(&b), self.u.s->markup));
}

static struct jinja_value filter_center(JINJA_ROW)
{
    JINJA_UNUSED;
    struct jinja_args args = {.place = (struct jinja_value *)arg, .n_place = 1};
    const struct jinja_str name = {.data = "center", .len = 6};
    struct jinja_value text = jinja_of(jinja_to_str(r->h, self)), width = jinja_int(80);
    if (arg[0].kind == JINJA_ABSENT)
        args.place = &width;
    return jinja_call_builtin(r, jinja_find_method(JINJA_STR, &name), text, &args);
}

/* Runs of letters, digits and _; what is beyond ASCII counts as a letter. */
static struct jinja_value filter_wordcount(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str *s = jinja_to_str(r->h, self);
    int64_t n = 0;
    bool within = false;
    for (size_t i = 0; i < s->len && jinja_charge(r->h, i % 64 == 0); i++) {
        char c = s->data[i], low = (char)(c | 0x20);
        bool word =
            (c >= '0' && c <= '9') || (low >= 'a' && low <= 'z') || c == '_' || (uint8_t)c >= 0x80;
        n += word && !within;
        within = word;
    }
    return jinja_int(n);
}

/* ---- default, length ---- */

static struct jinja_value filter_default(JINJA_ROW)
{
    JINJA_UNUSED;
    bool instead = self.kind == JINJA_UNDEFINED || (jinja_truth(arg[1]) && !jinja_truth(self));
    if (!instead)
        return self;
    return arg[0].kind != JINJA_ABSENT ? arg[0] : jinja_text(r->h, "");
}

static struct jinja_value filter_length(JINJA_ROW)
{
    JINJA_UNUSED;
    size_t n = 0;
    if (!jinja_length(self, &n))
        jinja_fail(r->h, PITH_INVALID, "chat template: object of type '%s' has no len()",
                   jinja_type(self));
    jinja_charge(r->h, self.kind == JINJA_STR ? self.u.s->len / 64 : 0);
    return jinja_int((int64_t)n);
}

/* ---- numbers ---- */

/* Reads a number as Python's float() does; false: it is no number. */
static bool read_float(struct jinja_run *r, const struct jinja_str *s, double *out)
{
    s = jinja_strip(r->h, s, NULL, true, true);
    if (!pi_number_read(s->data, s->len, out)) {
        size_t sign = s->len > 0 && (s->data[0] == '-' || s->data[0] == '+');
        const struct jinja_str *word =
            jinja_change_case(r->h, jinja_str_cut(r->h, s, sign, s->len), JINJA_LOWER);
        if (!jinja_str_is(word, "inf") && !jinja_str_is(word, "infinity"))
            return false;
        *out = s->data[0] == '-' ? -INFINITY : INFINITY;
        return true;
    }
    bool minus = s->len > 0 && s->data[0] == '-', plus = s->len > 0 && s->data[0] == '+';
    size_t begin = minus || plus;
    struct jinja_value exact = jinja_json_read(r->h, s->data + begin, s->len - begin);
    if (jinja_is_number(exact)) /* exact, but JSON knows fewer spellings */
        *out = minus ? -jinja_number(exact) : jinja_number(exact);
    if (r->h->err.status == PITH_INVALID)
        r->h->err.status = PITH_OK;
    return true;
}

/* Reads a number as Python's int(text, base) does. */
static bool read_int(struct jinja_run *r, const struct jinja_str *s, int64_t base, int64_t *out)
{
    s = jinja_strip(r->h, s, NULL, true, true);
    bool negative = s->len > 0 && s->data[0] == '-', any = false;
    size_t at = s->len > 0 && (s->data[0] == '-' || s->data[0] == '+');
    char letter = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : 0;
    if (letter != 0 && at + 1 < s->len && s->data[at] == '0' && (s->data[at + 1] | 32) == letter)
        at += 2;
    int64_t value = 0;
    for (; at < s->len; at++) {
        char c = s->data[at], low = (char)(c | 32);
        int digit = c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'z' ? low - 'a' + 10 : 99;
        if (c == '_' && any && at + 1 < s->len)
            continue;
        if (digit >= base || value > (INT64_MAX - 36) / base)
            return false;
        value = value * base + digit;
        any = true;
    }
    *out = negative ? -value : value;
    return any;
}

static struct jinja_value whole_of(double f, struct jinja_value fallback)
{
    return fabs(f) < 9.2e18 ? jinja_int((int64_t)f) : fallback;
}

static struct jinja_value filter_int(JINJA_ROW)
{
    JINJA_UNUSED;
    struct jinja_value fallback = arg[0].kind == JINJA_ABSENT ? jinja_int(0) : arg[0];
    int64_t base = jinja_arg_int(r, arg[1], 10, "int: base"), whole = 0;
    double f = 0;
    if (base < 2 || base > 36)
        jinja_fail(r->h, PITH_INVALID, "chat template: int: base %lld is not between 2 and 36",
                   (long long)base);
    if (self.kind == JINJA_UNDEFINED)
        jinja_fail_undefined(r->h, self);
    if (jinja_failed(r->h) || self.kind == JINJA_BIG)
        return self;
    if (self.kind == JINJA_FLOAT)
        return whole_of(self.u.f, fallback);
    if (jinja_is_number(self))
        return jinja_int(jinja_whole(self));
    if (self.kind != JINJA_STR)
        return fallback;
    if (read_int(r, self.u.s, base, &whole))
        return jinja_int(whole);
    return read_float(r, self.u.s, &f) ? whole_of(f, fallback) : fallback;
}

static struct jinja_value filter_float(JINJA_ROW)
{
    JINJA_UNUSED;
    double f = 0;
    if (self.kind == JINJA_UNDEFINED)
        jinja_fail_undefined(r->h, self);
    if (jinja_is_number(self))
        return jinja_float(jinja_number(self));
    if (self.kind == JINJA_STR && read_float(r, self.u.s, &f))
        return jinja_float(f);
    return arg[0].kind == JINJA_ABSENT ? jinja_float(0) : arg[0];
}

static struct jinja_value fail_number(struct jinja_run *r, const char *what, struct jinja_value v)
{
    if (v.kind == JINJA_UNDEFINED)
        jinja_fail_undefined(r->h, v);
    jinja_fail(r->h, PITH_INVALID, "chat template: %s: '%s' is not a number", what, jinja_type(v));
    return jinja_undefined();
}

static struct jinja_value filter_abs(JINJA_ROW)
{
    JINJA_UNUSED;
    if (!jinja_is_number(self))
        return fail_number(r, "abs", self);
    if (self.kind == JINJA_FLOAT)
        return jinja_float(fabs(self.u.f));
    return jinja_whole(self) < 0 ? jinja_sign(r, '-', self) : jinja_int(jinja_whole(self));
}

/* Half goes to the even digit, counted on the exact value. printf's point may be a comma, so that
   only digits are taken over. */
static double round_common(double f, int64_t precision)
{
    char text[400], digits[420];
    size_t n = 0;
    if (precision > 17 || precision < 0 || !(fabs(f) < 1e22))
        return f;
    snprintf(text, sizeof(text), "%.*f", (int)precision, f);
    for (const char *c = text; *c != 0; c++)
        if (*c == '-' || (*c >= '0' && *c <= '9'))
            digits[n++] = *c;
    snprintf(digits + n, sizeof(digits) - n, "e-%d", (int)precision);
    return strtod(digits, NULL);
}

static struct jinja_value filter_round(JINJA_ROW)
{
    JINJA_UNUSED;
    int64_t precision = jinja_arg_int(r, arg[0], 0, "round: precision");
    const struct jinja_str *method = jinja_arg_str(r, arg[1], "round: method");
    bool up = method != NULL && jinja_str_is(method, "ceil");
    bool down = method != NULL && jinja_str_is(method, "floor");
    if (!jinja_is_number(self))
        return fail_number(r, "round", self);
    if (method != NULL && !up && !down && !jinja_str_is(method, "common"))
        jinja_fail(r->h, PITH_INVALID, "chat template: method must be common, ceil or floor");
    if (!up && !down)
        return self.kind == JINJA_FLOAT ? jinja_float(round_common(self.u.f, precision))
                                        : jinja_int(jinja_whole(self));
    double scale = pow(10, (double)precision), f = jinja_number(self) * scale;
    return jinja_float((up ? ceil(f) : floor(f)) / scale);
}

/* ---- JSON ---- */

static struct jinja_value filter_tojson(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str comma = {.data = ",", .len = 1}, wide = {.data = ", ", .len = 2};
    const struct jinja_str colon = {.data = ": ", .len = 2};
    bool on_lines = arg[1].kind != JINJA_ABSENT && arg[1].kind != JINJA_NONE;
    struct jinja_json_style style = {
        .comma = on_lines ? &comma : &wide,
        .colon = &colon,
        .ascii = jinja_truth(arg[0]),
        .sort_keys = jinja_truth(arg[3]),
    };
    if (on_lines)
        style.indent = indention(r, arg[1]);
    if (arg[2].kind != JINJA_ABSENT && arg[2].kind != JINJA_NONE) {
        const struct jinja_list *pair = jinja_is_list(arg[2]) ? arg[2].u.list : NULL;
        if (pair == NULL || pair->n != 2 || pair->item[0].kind != JINJA_STR ||
            pair->item[1].kind != JINJA_STR) {
            jinja_fail(r->h, PITH_INVALID, "chat template: tojson: separators are not two strings");
            return self;
        }
        style.comma = pair->item[0].u.s;
        style.colon = pair->item[1].u.s;
    }
    struct jinja_buf b = {.h = r->h};
    jinja_json_write(&b, self, &style);
    return jinja_of(jinja_buf_end(&b));
}

const struct jinja_builtin jinja_filters[] = {
    {"abs", filter_abs, {0}, 0, false},
    {"capitalize", filter_capitalize, {0}, 0, false},
    {"center", filter_center, {"width"}, 0, false},
    {"count", filter_length, {0}, 0, false},
    {"d", filter_default, {"default_value", "boolean"}, 0, false},
    {"default", filter_default, {"default_value", "boolean"}, 0, false},
    {"e", filter_escape, {0}, 0, false},
    {"escape", filter_escape, {0}, 0, false},
    {"float", filter_float, {"default"}, 0, false},
    {"forceescape", filter_forceescape, {0}, 0, false},
    {"format", filter_format, {0}, 0, true},
    {"indent", filter_indent, {"width", "first", "blank"}, 0, false},
    {"int", filter_int, {"default", "base"}, 0, false},
    {"length", filter_length, {0}, 0, false},
    {"lower", filter_lower, {0}, 0, false},
    {"replace", filter_replace, {"old", "new", "count"}, 2, false},
    {"round", filter_round, {"precision", "method"}, 0, false},
    {"safe", filter_safe, {0}, 0, false},
    {"string", filter_string, {0}, 0, false},
    {"title", filter_title, {0}, 0, false},
    {"tojson", filter_tojson, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, false},
    {"trim", filter_trim, {"chars"}, 0, false},
    {"upper", filter_upper, {0}, 0, false},
    {"wordcount", filter_wordcount, {0}, 0, false},
    {0},
};
