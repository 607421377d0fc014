/*
 * jinja_print.c - values as text, as Python's str() and repr() write them. Strings keep their
 * marks; brackets, digits and names of constants are the template's own.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "text/value/jinja_value.h"

/* ---- numbers ---- */

/* Digits of f that give it again, and the power of ten of the first one. digits [20], terminated.
   printf and strtod see neither a point of the locale's making nor one of ours. */
static int shortest_digits(double f, char *digits)
{
    char text[40], again[48];
    for (int n = 1;; n++) {
        snprintf(text, sizeof(text), "%.*e", n - 1, f);
        const char *e = strchr(text, 'e');
        int len = 0, exponent = atoi(e + 1);
        for (const char *c = text; c < e; c++)
            if (*c >= '0' && *c <= '9')
                digits[len++] = *c;
        digits[len] = 0;
        snprintf(again, sizeof(again), "%se%d", digits, exponent - (len - 1));
        if (n == 17 || strtod(again, NULL) == f)
            return exponent;
    }
}

void jinja_print_float(double f, char *out)
{
    char digits[24], *at = out;
    if (isnan(f) || isinf(f)) {
        strcpy(out, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    if (signbit(f)) {
        *at++ = '-';
        f = -f;
    }
    int exponent = shortest_digits(f, digits), len = (int)strlen(digits);
    if (exponent >= 16 || exponent < -4) {
        *at++ = digits[0];
        if (len > 1)
            at += sprintf(at, ".%s", digits + 1);
        sprintf(at, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) {
        at += sprintf(at, "0.");
        for (int i = -1; i > exponent; i--)
            *at++ = '0';
        sprintf(at, "%s", digits);
        return;
    }
    for (int i = 0; i <= exponent || i < len; i++) {
        if (i == exponent + 1)
            *at++ = '.';
        *at++ = i < len ? digits[i] : '0';
    }
    sprintf(at, "%s", len <= exponent + 1 ? ".0" : "");
}

/* ---- repr ---- */

/* Whether Python calls it printable, nearly: controls, separators, format characters and private
   use are not. */
static bool printable(uint32_t c)
{
    static const uint32_t ranges[][2] = {
        {0, 0x1f},        {0x7f, 0xa0},     {0xad, 0xad},     {0x1680, 0x1680},    {0x180e, 0x180e},
        {0x2000, 0x200f}, {0x2028, 0x202f}, {0x205f, 0x206f}, {0x3000, 0x3000},    {0xe000, 0xf8ff},
        {0xfeff, 0xfeff}, {0xfff0, 0xfffb}, {0xfffe, 0xffff}, {0xe0000, 0x10ffff},
    };
    for (size_t i = 0; i < PI_LEN(ranges); i++)
        if (c >= ranges[i][0] && c <= ranges[i][1])
            return c >= 0xe0100 && c <= 0xe01ef; /* variation selectors */
    return true;
}

/* False: the character stands for itself. */
static bool escape_char(uint32_t c, char quote, char *out)
{
    static const char names[][3] = {"\t\\t", "\n\\n", "\r\\r", "\\\\"};
    for (size_t i = 0; i < 3; i++) {
        if (c == (uint8_t)names[i][0]) {
            sprintf(out, "\\%c", names[i][2]);
            return true;
        }
    }
    if (c == '\\' || c == (uint8_t)quote)
        sprintf(out, "\\%c", (char)c);
    else if (printable(c))
        return false;
    else
        sprintf(out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
    return true;
}

static void put_quoted(struct jinja_buf *b, const struct jinja_str *s)
{
    char text[16];
    bool single = memchr(s->data, '\'', s->len) != NULL && s->len > 0;
    bool both = single && memchr(s->data, '"', s->len) != NULL;
    char quote = single && !both ? '"' : '\'';
    size_t done = 0;
    jinja_put_bytes(b, &quote, 1, false);
    for (size_t at = 0; at < s->len;) {
        struct pi_utf8_char c = pi_utf8_next(s->data + at, s->len - at);
        if (c.valid && escape_char(pi_utf8_decode(s->data + at, c.len), quote, text)) {
            jinja_put(b, jinja_str_cut(b->h, s, done, at));
            jinja_put_bytes(b, text, strlen(text), jinja_str_user(s, at));
            done = at + c.len;
        }
        at += c.len;
    }
    jinja_put(b, jinja_str_cut(b->h, s, done, s->len));
    jinja_put_bytes(b, &quote, 1, false);
}

static void put_items(struct jinja_buf *b, const struct jinja_list *list)
{
    for (size_t i = 0; i < list->n && jinja_charge(b->h, 1); i++) {
        if (i > 0)
            jinja_put_text(b, ", ");
        jinja_put_repr(b, list->item[i]);
    }
}

static void put_list(struct jinja_buf *b, struct jinja_value v)
{
    char text[64];
    const struct jinja_list *list = v.u.list;
    switch (v.kind) {
    case JINJA_ITER:
        jinja_put_text(b, "<generator object>");
        return;
    case JINJA_RANGE:
        snprintf(text, sizeof(text), "range(%lld, %lld)",
                 list->n > 0 ? (long long)list->item[0].u.i : 0,
                 list->n > 0 ? (long long)list->item[list->n - 1].u.i + 1 : 0);
        jinja_put_text(b, text);
        return;
    case JINJA_TUPLE:
        jinja_put_text(b, "(");
        put_items(b, list);
        jinja_put_text(b, list->n == 1 ? ",)" : ")");
        return;
    default:
        jinja_put_text(b, v.kind == JINJA_VIEW ? "dict_view([" : "[");
        put_items(b, list);
        jinja_put_text(b, v.kind == JINJA_VIEW ? "])" : "]");
    }
}

static void put_dict(struct jinja_buf *b, const struct jinja_dict *d)
{
    jinja_put_text(b, "{");
    for (size_t i = 0; i < d->n && jinja_charge(b->h, 1); i++) {
        if (i > 0)
            jinja_put_text(b, ", ");
        jinja_put_repr(b, d->pair[i].key);
        jinja_put_text(b, ": ");
        jinja_put_repr(b, d->pair[i].value);
    }
    jinja_put_text(b, "}");
}

static void put_plain(struct jinja_buf *b, struct jinja_value v)
{
    char text[64];
    switch (v.kind) {
    case JINJA_BOOL:
        jinja_put_text(b, v.u.b ? "True" : "False");
        return;
    case JINJA_INT:
        snprintf(text, sizeof(text), "%lld", (long long)v.u.i);
        jinja_put_text(b, text);
        return;
    case JINJA_FLOAT:
        jinja_print_float(v.u.f, text);
        if (v.as > 0)
            jinja_put(b, b->h->written[v.as - 1]);
        else
            jinja_put_text(b, text);
        return;
    case JINJA_NONE:
        jinja_put_text(b, "None");
        return;
    case JINJA_BIG:
        jinja_put(b, v.u.s);
        return;
    default:
        snprintf(text, sizeof(text), "<%s>", jinja_type(v));
        jinja_put_text(b, text);
    }
}

void jinja_put_repr(struct jinja_buf *b, struct jinja_value v)
{
    if (!jinja_enter(b->h))
        return;
    if (v.kind == JINJA_STR) {
        put_quoted(b, v.u.s);
    } else if (v.kind == JINJA_UNDEFINED) {
        jinja_put_text(b, "Undefined");
    } else if (jinja_is_list(v)) {
        put_list(b, v);
    } else if (v.kind == JINJA_DICT) {
        put_dict(b, v.u.dict);
    } else if (v.kind == JINJA_NAMESPACE) {
        jinja_put_text(b, "<Namespace ");
        put_dict(b, v.u.dict);
        jinja_put_text(b, ">");
    } else {
        put_plain(b, v);
    }
    jinja_leave(b->h);
}

/* ---- str ---- */

void jinja_put_value(struct jinja_buf *b, struct jinja_value v)
{
    if (v.kind == JINJA_STR)
        jinja_put(b, v.u.s);
    else if (v.kind == JINJA_UNDEFINED && v.missing == JINJA_UNSAFE)
        jinja_fail_undefined(b->h, v);
    else if (v.kind != JINJA_UNDEFINED)
        jinja_put_repr(b, v);
}

const struct jinja_str *jinja_to_str(struct jinja_heap *h, struct jinja_value v)
{
    if (v.kind == JINJA_STR)
        return v.u.s;
    struct jinja_buf b = {.h = h};
    jinja_put_value(&b, v);
    return jinja_buf_end(&b);
}
