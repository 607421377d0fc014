/*
 * grammar_json.c - JSON's own grammar: any value, strings, and values that are given. Numbers have
 * at most 16 digits in front of the point, 16 behind it and 2 in the exponent. So a model cannot
 * write digits for ever and every reader has a number for them.
 */
#include "base/utf8.h"
#include "text/grammar/grammar_schema.h"
#include "text/value/jinja_json.h"

grammar_expr *schema_rule(struct schema_reader *r, uint32_t *rule, const char *name,
                          grammar_expr *(*make)(struct schema_reader *))
{
    if (*rule == UINT32_MAX) {
        *rule = grammar_rule_new(r->t, name, strlen(name));
        grammar_expr *e = make(r);
        if (!jinja_failed(r->h))
            r->t->rule[*rule].expr = e;
    }
    return grammar_ref(r->t, *rule);
}

grammar_expr *schema_quoted(struct schema_reader *r, grammar_expr *e)
{
    grammar_expr *quote = grammar_text(r->t, "\"");
    return grammar_seq3(r->t, quote, e, quote);
}

/* ---- strings ---- */

static grammar_expr *hex(struct schema_reader *r, const char *digits)
{
    struct grammar_range range[22];
    size_t n = strlen(digits);
    for (size_t i = 0; i < n; i++)
        range[i].lo = range[i].hi = (uint8_t)digits[i];
    return grammar_chars(r->t, range, n, false);
}

/* \u and four digits: no half of a surrogate pair, but whole pairs. */
static grammar_expr *escaped_unit(struct schema_reader *r)
{
    struct grammar_tree *t = r->t;
    grammar_expr *any = hex(r, "0123456789abcdefABCDEF"), *d = hex(r, "dD");
    grammar_expr *two = grammar_repeat(t, any, 2, 2);
    grammar_expr *plain =
        grammar_seq2(t, hex(r, "0123456789abcefABCEF"), grammar_repeat(t, any, 3, 3));
    grammar_expr *low = grammar_seq3(t, d, hex(r, "01234567"), two);
    grammar_expr *first = grammar_seq3(t, d, hex(r, "89abAB"), two);
    grammar_expr *second = grammar_seq3(t, d, hex(r, "cdefCDEF"), two);
    grammar_expr *pair = grammar_seq3(t, first, grammar_text(t, "\\u"), second);
    return grammar_seq2(t, grammar_text(t, "u"),
                        grammar_alt2(t, grammar_alt2(t, plain, low), pair));
}

static grammar_expr *plain_char(struct schema_reader *r)
{
    static const struct grammar_range not [] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}, {0x7f, 0x7f}};
    return grammar_chars(r->t, not, PI_LEN(not ), true);
}

grammar_expr *schema_char(struct schema_reader *r)
{
    struct grammar_tree *t = r->t;
    grammar_expr *escape = grammar_alt2(t, hex(r, "\"\\/bfnrt"), escaped_unit(r));
    return grammar_alt2(t, plain_char(r), grammar_seq2(t, grammar_text(t, "\\"), escape));
}

static grammar_expr *make_string(struct schema_reader *r)
{
    return schema_quoted(r, grammar_repeat(r->t, schema_char(r), 0, -1));
}

grammar_expr *schema_any_string(struct schema_reader *r)
{
    return schema_rule(r, &r->string, "string", make_string);
}

grammar_expr *schema_key(struct schema_reader *r, const struct jinja_str *s)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    struct jinja_buf b = {.h = r->h};
    for (size_t i = 0; i < s->len; i++) {
        char c = s->data[i], text[8] = {'\\', 'u', '0', '0', 0, 0};
        const char *known = c != 0 ? strchr(from, c) : NULL;
        if (known != NULL) {
            text[1] = to[known - from];
            jinja_put_bytes(&b, text, 2, false);
        } else if ((uint8_t)c < 0x20) {
            text[4] = (char)('0' + (c >> 4));
            text[5] = "0123456789abcdef"[c & 15];
            jinja_put_bytes(&b, text, 6, false);
        } else {
            jinja_put_bytes(&b, &c, 1, false);
        }
    }
    return grammar_bytes(r->t, b.data, b.len);
}

/* ---- any value ---- */

static grammar_expr *member(struct schema_reader *r, grammar_expr *value)
{
    struct grammar_tree *t = r->t;
    return grammar_seq3(t, schema_any_string(r), grammar_text(t, ":"),
                        grammar_seq2(t, r->space, value));
}

static grammar_expr *enclosed(struct schema_reader *r, const char *open, grammar_expr *item,
                              const char *close)
{
    struct grammar_tree *t = r->t;
    const struct grammar_parts none = {0};
    grammar_expr *comma = grammar_seq2(t, grammar_text(t, ","), r->space);
    grammar_expr *list = grammar_list(t, &none, NULL, comma, item, 0, -1);
    return grammar_seq3(t, grammar_seq2(t, grammar_text(t, open), r->space), list,
                        grammar_seq2(t, r->space, grammar_text(t, close)));
}

static grammar_expr *make_object(struct schema_reader *r)
{
    return enclosed(r, "{", member(r, schema_any(r)), "}");
}

static grammar_expr *make_array(struct schema_reader *r)
{
    return enclosed(r, "[", schema_any(r), "]");
}

grammar_expr *schema_any_object(struct schema_reader *r)
{
    return schema_rule(r, &r->object, "object", make_object);
}

grammar_expr *schema_any_array(struct schema_reader *r)
{
    return schema_rule(r, &r->array, "array", make_array);
}

static grammar_expr *make_any(struct schema_reader *r)
{
    static const char *const words[] = {"null", "true", "false"};
    struct grammar_parts list = {0};
    struct jinja_value none = jinja_dict_new(r->h);
    for (size_t i = 0; i < PI_LEN(words); i++)
        grammar_add(r->t, &list, grammar_text(r->t, words[i]));
    grammar_add(r->t, &list, schema_number(r, none, false));
    grammar_add(r->t, &list, schema_any_string(r));
    grammar_add(r->t, &list, schema_any_array(r));
    grammar_add(r->t, &list, schema_any_object(r));
    return grammar_alt(r->t, &list);
}

grammar_expr *schema_any(struct schema_reader *r)
{
    return schema_rule(r, &r->any, "any", make_any);
}

/* ---- given values ---- */

/* Scalars as they are written; names of keys and strings with as few escapes as can be. */
static grammar_expr *scalar(struct schema_reader *r, struct jinja_value v)
{
    if (v.kind == JINJA_STR)
        return schema_quoted(r, schema_key(r, v.u.s));
    struct jinja_buf b = {.h = r->h};
    const struct jinja_json_style style = {.comma = jinja_str_static(r->h, ","),
                                           .colon = jinja_str_static(r->h, ":")};
    jinja_json_write(&b, v, &style);
    return grammar_bytes(r->t, b.data, b.len);
}

grammar_expr *schema_literal(struct schema_reader *r, struct jinja_value v)
{
    struct grammar_tree *t = r->t;
    struct grammar_parts list = {0};
    bool is_list = jinja_is_list(v);
    if (!is_list && v.kind != JINJA_DICT)
        return scalar(r, v);
    if (!jinja_enter(r->h))
        return grammar_empty(t);
    size_t n = is_list ? v.u.list->n : v.u.dict->n;
    grammar_add(t, &list, grammar_text(t, is_list ? "[" : "{"));
    grammar_add(t, &list, r->space);
    for (size_t i = 0; i < n && !jinja_failed(r->h); i++) {
        if (i > 0) {
            grammar_add(t, &list, grammar_text(t, ","));
            grammar_add(t, &list, r->space);
        }
        if (!is_list) {
            grammar_add(t, &list, scalar(r, v.u.dict->pair[i].key));
            grammar_add(t, &list, grammar_text(t, ":"));
            grammar_add(t, &list, r->space);
        }
        grammar_add(t, &list,
                    schema_literal(r, is_list ? v.u.list->item[i] : v.u.dict->pair[i].value));
    }
    grammar_add(t, &list, r->space);
    grammar_add(t, &list, grammar_text(t, is_list ? "]" : "}"));
    jinja_leave(r->h);
    return grammar_seq(t, &list);
}
