/*
 * jinja_tojson.c - values as JSON, byte for byte as Python's json.dumps writes them with the
 * options that templates give to tojson. Strings keep their marks.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "text/value/jinja_json.h"

struct writer {
    struct jinja_buf *b;
    const struct jinja_json_style *style;
};

static void write_value(struct writer *w, struct jinja_value v, int32_t level);

/* False: the character stands for itself. */
static bool escape_char(uint32_t c, bool ascii, char *out)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *known = c != 0 && c < 0x80 ? strchr(from, (int)c) : NULL;
    if (known != NULL)
        sprintf(out, "\\%c", to[known - from]);
    else if (c < 0x20 || (ascii && c >= 0x7f && c < 0x10000 && c != 0x7f))
        sprintf(out, "\\u%04x", (unsigned)c);
    else if (ascii && c >= 0x10000)
        sprintf(out, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((c - 0x10000) >> 10)),
                (unsigned)(0xdc00 + ((c - 0x10000) & 0x3ff)));
    else
        return false;
    return true;
}

static void write_string(struct writer *w, const struct jinja_str *s)
{
    char text[16];
    size_t done = 0;
    jinja_put_text(w->b, "\"");
    for (size_t at = 0; at < s->len;) {
        struct pi_utf8_char c = pi_utf8_next(s->data + at, s->len - at);
        if (c.valid && escape_char(pi_utf8_decode(s->data + at, c.len), w->style->ascii, text)) {
            jinja_put(w->b, jinja_str_cut(w->b->h, s, done, at));
            jinja_put_bytes(w->b, text, strlen(text), jinja_str_user(s, at));
            done = at + c.len;
        }
        at += c.len;
    }
    jinja_put(w->b, jinja_str_cut(w->b->h, s, done, s->len));
    jinja_put_text(w->b, "\"");
}

static void new_line(struct writer *w, int32_t level)
{
    if (w->style->indent == NULL)
        return;
    jinja_put_text(w->b, "\n");
    for (int32_t i = 0; i < level; i++)
        jinja_put(w->b, w->style->indent);
}

static void write_list(struct writer *w, const struct jinja_list *list, int32_t level)
{
    jinja_put_text(w->b, "[");
    for (size_t i = 0; i < list->n && jinja_charge(w->b->h, 1); i++) {
        if (i > 0)
            jinja_put(w->b, w->style->comma);
        new_line(w, level + 1);
        write_value(w, list->item[i], level + 1);
    }
    if (list->n > 0)
        new_line(w, level);
    jinja_put_text(w->b, "]");
}

/* Keys are strings: of numbers and constants their JSON. */
static void write_key(struct writer *w, struct jinja_value key)
{
    if (key.kind == JINJA_STR) {
        write_string(w, key.u.s);
        return;
    }
    if (!jinja_is_number(key) && key.kind != JINJA_NONE && key.kind != JINJA_BIG) {
        jinja_fail(w->b->h, PITH_INVALID,
                   "chat template: keys must be str, int, float, bool or None, not %s",
                   jinja_type(key));
        return;
    }
    jinja_put_text(w->b, "\"");
    write_value(w, key, 0);
    jinja_put_text(w->b, "\"");
}

/* Merge sort: the heap has no say in how deep qsort goes, and equal keys there are none. */
static void sort_pairs(struct jinja_heap *h, struct jinja_pair *pair, struct jinja_pair *spare,
                       size_t n)
{
    for (size_t width = 1; width < n && jinja_charge(h, n / 8); width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n;
            size_t hi = lo + 2 * width < n ? lo + 2 * width : n, a = lo, b = mid;
            for (size_t i = lo; i < hi; i++) {
                bool left = b == hi || (a < mid && jinja_order(h, pair[a].key, pair[b].key) <= 0);
                spare[i] = left ? pair[a++] : pair[b++];
            }
        }
        memcpy(pair, spare, n * sizeof(*pair));
    }
}

static void write_dict(struct writer *w, const struct jinja_dict *d, int32_t level)
{
    struct jinja_pair *pair = d->pair;
    if (w->style->sort_keys && d->n > 1) {
        pair = jinja_alloc(w->b->h, 2 * d->n, sizeof(*pair));
        if (pair == NULL)
            return;
        memcpy(pair, d->pair, d->n * sizeof(*pair));
        sort_pairs(w->b->h, pair, pair + d->n, d->n);
    }
    jinja_put_text(w->b, "{");
    for (size_t i = 0; i < d->n && jinja_charge(w->b->h, 1); i++) {
        if (i > 0)
            jinja_put(w->b, w->style->comma);
        new_line(w, level + 1);
        write_key(w, pair[i].key);
        jinja_put(w->b, w->style->colon);
        write_value(w, pair[i].value, level + 1);
    }
    if (d->n > 0)
        new_line(w, level);
    jinja_put_text(w->b, "}");
}

static void write_float(struct writer *w, double f)
{
    char text[40];
    jinja_print_float(f, text);
    jinja_put_text(w->b, isnan(f) ? "NaN" : isinf(f) ? (f < 0 ? "-Infinity" : "Infinity") : text);
}

static void write_value(struct writer *w, struct jinja_value v, int32_t level)
{
    if (!jinja_enter(w->b->h))
        return;
    if (v.kind == JINJA_STR)
        write_string(w, v.u.s);
    else if (v.kind == JINJA_NONE)
        jinja_put_text(w->b, "null");
    else if (v.kind == JINJA_BOOL)
        jinja_put_text(w->b, v.u.b ? "true" : "false");
    else if (v.kind == JINJA_INT || v.kind == JINJA_BIG || (v.kind == JINJA_FLOAT && v.as > 0))
        jinja_put_value(w->b, v);
    else if (v.kind == JINJA_FLOAT)
        write_float(w, v.u.f);
    else if (v.kind == JINJA_LIST || v.kind == JINJA_TUPLE)
        write_list(w, v.u.list, level);
    else if (v.kind == JINJA_DICT)
        write_dict(w, v.u.dict, level);
    else
        jinja_fail(w->b->h, PITH_INVALID,
                   "chat template: Object of type %s is not JSON serializable", jinja_type(v));
    jinja_leave(w->b->h);
}

void jinja_json_write(struct jinja_buf *b, struct jinja_value v,
                      const struct jinja_json_style *style)
{
    struct writer w = {b, style};
    write_value(&w, v, 0);
}
