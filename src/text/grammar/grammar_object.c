/*
 * grammar_object.c - objects and arrays. Properties come in the order of the schema, then those
 * that only `required` names, then others. A key of the others is written without escapes and is
 * none of the schema's, so that no key stands twice where that could matter.
 */
#include <stdlib.h>

#include "text/grammar/grammar_schema.h"

/* ---- keys that are not in a list ---- */

struct keys {
    const struct jinja_str **key; /* [n] sorted */
    size_t n;
};

static int by_bytes(const void *left, const void *right)
{
    const struct jinja_str *a = *(const struct jinja_str *const *)left,
                           *b = *(const struct jinja_str *const *)right;
    int c = memcmp(a->data, b->data, a->len < b->len ? a->len : b->len);
    return c != 0 ? c : (a->len > b->len) - (a->len < b->len);
}

static const struct grammar_range not_plain[] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}, {0x7f, 0x7f}};
#define N_NOT_PLAIN PI_LEN(not_plain)

static grammar_expr *plain_chars(struct schema_reader *r)
{
    grammar_expr *c = grammar_chars(r->t, not_plain, N_NOT_PLAIN, true);
    return grammar_repeat(r->t, c, 0, -1);
}

/* The texts that may follow `at` bytes that keys [n] have in common, such that the whole is none of
   them. A beginning of a key that no byte more of ASCII tells apart is cut at its first other
   byte. */
static grammar_expr *other_keys(struct schema_reader *r, const struct jinja_str **key, size_t n,
                                size_t at)
{
    struct grammar_tree *t = r->t;
    struct grammar_parts list = {0};
    struct grammar_range *seen = jinja_alloc(r->h, n + N_NOT_PLAIN + 1, sizeof(*seen));
    size_t n_seen = 0, i = 0;
    if (seen == NULL || !jinja_enter(r->h))
        return grammar_empty(t);
    if (n > 0 && key[0]->len == at)
        i++; /* this one must go on */
    else
        grammar_add(t, &list, grammar_empty(t));
    memcpy(seen, not_plain, sizeof(not_plain));
    n_seen = N_NOT_PLAIN;
    for (size_t end; i < n && !jinja_failed(r->h); i = end) {
        uint8_t c = (uint8_t)key[i]->data[at];
        for (end = i + 1; end < n && (uint8_t)key[end]->data[at] == c; end++) {
        }
        if (c >= 0x80) { /* no key goes on with a character beyond ASCII here */
            seen[n_seen++] = (struct grammar_range){0x80, GRAMMAR_CHAR_MAX};
            continue;
        }
        seen[n_seen++] = (struct grammar_range){c, c};
        if (c < 0x20 || c == '"' || c == '\\' || c == 0x7f)
            continue;
        grammar_add(t, &list,
                    grammar_seq2(t, grammar_bytes(t, (char *)&c, 1),
                                 other_keys(r, key + i, end - i, at + 1)));
    }
    /* Several keys can begin with wide bytes: one range for all. */
    for (size_t k = n_seen;
         k > 1 && seen[k - 1].hi == GRAMMAR_CHAR_MAX && seen[k - 2].hi == GRAMMAR_CHAR_MAX; k--)
        n_seen = k - 1;
    grammar_expr *other = grammar_chars(t, seen, n_seen, true);
    grammar_add(t, &list, grammar_seq2(t, other, plain_chars(r)));
    jinja_leave(r->h);
    return grammar_alt(t, &list);
}

/* A key that no property of the schema has. */
static grammar_expr *other_key(struct schema_reader *r, const struct keys *keys)
{
    if (keys->n == 0)
        return schema_any_string(r);
    qsort(keys->key, keys->n, sizeof(*keys->key), by_bytes);
    return schema_quoted(r, other_keys(r, keys->key, keys->n, 0));
}

/* ---- objects ---- */

struct object {
    struct grammar_parts list;
    bool *required; /* [cap] */
    struct keys keys;
    size_t cap;
    int64_t n_required;
    bool never;
};

static grammar_expr *member(struct schema_reader *r, grammar_expr *key, grammar_expr *value)
{
    struct grammar_tree *t = r->t;
    return grammar_seq3(t, key, grammar_text(t, ":"), grammar_seq2(t, r->space, value));
}

static void add_property(struct schema_reader *r, struct object *o, const struct jinja_str *key,
                         struct jinja_value schema, bool required)
{
    size_t old = schema_enter(r, "properties", key);
    grammar_expr *value = schema_expr(r, schema);
    schema_leave(r, old);
    if (o->keys.n >= o->cap || jinja_failed(r->h))
        return;
    o->keys.key[o->keys.n++] = key;
    if (grammar_is_never(value)) {
        o->never = o->never || required;
        return;
    }
    grammar_add(r->t, &o->list, member(r, schema_quoted(r, schema_key(r, key)), value));
    o->required[o->list.n - 1] = required;
    o->n_required += required;
}

static bool is_required(struct schema_reader *r, const struct jinja_value *list,
                        const struct jinja_value *key)
{
    for (size_t i = 0; list != NULL && i < list->u.list->n; i++)
        if (list->u.list->item[i].kind == JINJA_STR &&
            jinja_str_equal(list->u.list->item[i].u.s, key->u.s))
            return jinja_charge(r->h, i / 8);
    return false;
}

static const struct jinja_value *of_kind(struct schema_reader *r, struct jinja_value schema,
                                         const char *keyword, bool list)
{
    const struct jinja_value *v = schema_get(r, schema, keyword);
    if (v == NULL || (list ? jinja_is_list(*v) : v->kind == JINJA_DICT))
        return v;
    schema_fail(r, PITH_INVALID, keyword, list ? "it is not a list" : "it is not an object");
    return NULL;
}

static void add_properties(struct schema_reader *r, struct object *o, struct jinja_value schema,
                           struct jinja_value others)
{
    const struct jinja_value *properties = of_kind(r, schema, "properties", false);
    const struct jinja_value *required = of_kind(r, schema, "required", true);
    size_t n = properties != NULL ? properties->u.dict->n : 0;
    o->cap = n + (required != NULL ? required->u.list->n : 0);
    o->required = jinja_alloc(r->h, o->cap + 1, sizeof(*o->required));
    o->keys.key = jinja_alloc(r->h, o->cap + 1, sizeof(*o->keys.key));
    for (size_t i = 0; i < n && !jinja_failed(r->h); i++) {
        struct jinja_pair p = properties->u.dict->pair[i];
        add_property(r, o, p.key.u.s, p.value, is_required(r, required, &p.key));
    }
    for (size_t i = 0; required != NULL && i < required->u.list->n && !jinja_failed(r->h); i++) {
        struct jinja_value key = required->u.list->item[i];
        bool known = key.kind != JINJA_STR;
        if (known)
            schema_fail(r, PITH_INVALID, "required", "it names what is not a string");
        for (size_t k = 0; !known && k < o->keys.n; k++)
            known = jinja_str_equal(o->keys.key[k], key.u.s);
        if (!known)
            add_property(r, o, key.u.s, others, true);
    }
}

/* Keys by a pattern, where nothing else says what keys there are. */
static grammar_expr *pattern_member(struct schema_reader *r, struct jinja_value schema,
                                    const struct object *o)
{
    const struct jinja_value *patterns = of_kind(r, schema, "patternProperties", false);
    if (patterns == NULL || jinja_failed(r->h))
        return NULL;
    if (patterns->u.dict->n != 1 || o->keys.n > 0) {
        schema_fail(r, PITH_UNSUPPORTED, "patternProperties",
                    "only one pattern, and no properties beside it, are supported");
        return NULL;
    }
    struct jinja_pair p = patterns->u.dict->pair[0];
    size_t old = schema_enter(r, "patternProperties", p.key.u.s);
    grammar_expr *key =
        schema_pattern(r, "", p.key.u.s->data, p.key.u.s->len, (struct schema_lengths){0, -1});
    grammar_expr *value = schema_expr(r, p.value);
    schema_leave(r, old);
    return member(r, schema_quoted(r, key), value);
}

/* Members that no property names; NULL: there are none. */
static grammar_expr *other_member(struct schema_reader *r, struct jinja_value schema,
                                  const struct object *o, const struct jinja_value *additional)
{
    const struct jinja_value *names = schema_get(r, schema, "propertyNames");
    if (schema_get(r, schema, "patternProperties") != NULL)
        return pattern_member(r, schema, o);
    bool open = r->params->open_objects || schema_get(r, schema, "properties") == NULL;
    if (additional == NULL ? !open : schema_is_false(additional))
        return NULL;
    grammar_expr *key = NULL;
    if (names != NULL) {
        struct jinja_value string = jinja_dict_new(r->h), all;
        jinja_dict_set(r->h, string.u.dict, jinja_text(r->h, "type"), jinja_text(r->h, "string"));
        size_t old = schema_enter(r, "propertyNames", NULL);
        if (o->keys.n > 0)
            schema_fail(r, PITH_UNSUPPORTED, "", "it is not supported beside properties");
        if (!schema_resolve(r, *names, &all) || !schema_merge(r, string, all, &all))
            key = grammar_never(r->t);
        else
            key = schema_expr(r, all);
        schema_leave(r, old);
    } else {
        key = other_key(r, &o->keys);
    }
    size_t old = schema_enter(r, "additionalProperties", NULL);
    grammar_expr *value = additional == NULL ? schema_any(r) : schema_expr(r, *additional);
    schema_leave(r, old);
    return grammar_is_never(value) || grammar_is_never(key) ? NULL : member(r, key, value);
}

/* minProperties and maxProperties: false: nothing satisfies them. */
static bool count_members(struct schema_reader *r, struct jinja_value schema,
                          const struct object *o, grammar_expr **more, int32_t *min, int32_t *max)
{
    int64_t least = schema_count(r, schema, "minProperties", 0);
    int64_t most = schema_count(r, schema, "maxProperties", -1);
    *min = 0;
    *max = -1;
    if (least > o->n_required &&
        (least > o->n_required + 1 || o->n_required > 0 || (o->list.n > 0 && *more != NULL))) {
        if (*more == NULL && least > o->list.n)
            return false;
        schema_fail(r, PITH_UNSUPPORTED, "minProperties",
                    "more than one property that is not required cannot be asked for");
    } else if (least > o->n_required) {
        *min = 1;
    }
    if (most >= 0 && most < o->n_required)
        return false;
    if (most >= 0 && most < o->list.n)
        schema_fail(r, PITH_UNSUPPORTED, "maxProperties", "it is below the number of properties");
    if (most >= 0 && *more != NULL)
        *max = (int32_t)pi_min(most - o->list.n, GRAMMAR_REPEAT_MAX);
    if (*max == 0)
        *more = NULL;
    return true;
}

grammar_expr *schema_object(struct schema_reader *r, struct jinja_value schema)
{
    struct grammar_tree *t = r->t;
    struct object o = {.never = false};
    int32_t min, max;
    const struct jinja_value *additional = schema_get(r, schema, "additionalProperties");
    add_properties(r, &o, schema, additional != NULL ? *additional : jinja_bool(true));
    if (jinja_failed(r->h) || o.never)
        return grammar_never(t);
    grammar_expr *more = other_member(r, schema, &o, additional);
    if (jinja_failed(r->h) || !count_members(r, schema, &o, &more, &min, &max))
        return grammar_never(t);
    grammar_expr *open = grammar_seq2(t, grammar_text(t, "{"), r->space);
    grammar_expr *close = grammar_seq2(t, r->space, grammar_text(t, "}"));
    grammar_expr *comma = grammar_seq2(t, grammar_text(t, ","), r->space);
    if (min > 0 && more == NULL && o.list.n == 0)
        return grammar_never(t);
    grammar_expr *list = grammar_list(t, &o.list, o.required, comma, more, min, max);
    return grammar_seq3(t, open, list, close);
}

/* ---- arrays ---- */

struct array {
    struct grammar_parts first; /* prefixItems */
    grammar_expr *rest;         /* items; never: none */
    int64_t min, max;           /* max -1: any number */
};

static void read_prefix(struct schema_reader *r, const char *keyword, const struct jinja_value *v,
                        struct array *a)
{
    for (size_t i = 0; v != NULL && i < v->u.list->n && !jinja_failed(r->h); i++) {
        size_t old = schema_enter_item(r, keyword, i);
        grammar_add(r->t, &a->first, schema_expr(r, v->u.list->item[i]));
        schema_leave(r, old);
    }
}

/* Before 2020 items was a list where prefixItems is now, and additionalItems what items is. */
static void read_items(struct schema_reader *r, struct jinja_value schema, struct array *a)
{
    const struct jinja_value *prefix = of_kind(r, schema, "prefixItems", true);
    const struct jinja_value *items = schema_get(r, schema, "items");
    const char *keyword = "items";
    read_prefix(r, "prefixItems", prefix, a);
    if (items != NULL && jinja_is_list(*items)) {
        read_prefix(r, "items", items, a);
        keyword = "additionalItems";
        items = schema_get(r, schema, keyword);
    }
    size_t old = schema_enter(r, keyword, NULL);
    bool closed =
        items == NULL && a->first.n > 0 && a->min <= a->first.n && !r->params->open_objects;
    a->rest = closed ? grammar_never(r->t) : items == NULL ? schema_any(r) : schema_expr(r, *items);
    schema_leave(r, old);
}

/* Items from number i on, of which i are there. */
static grammar_expr *items_from(struct schema_reader *r, const struct array *a, grammar_expr *comma)
{
    struct grammar_tree *t = r->t;
    int64_t n = a->first.n, min = pi_max(0, a->min - n);
    int64_t max = a->max < 0 ? -1 : a->max - n;
    grammar_expr *e = grammar_empty(t);
    if (max != 0) {
        max = pi_min(max, GRAMMAR_REPEAT_MAX);
        if (n == 0 && !grammar_is_never(a->rest)) {
            const struct grammar_parts none = {0};
            return grammar_list(t, &none, NULL, comma, a->rest, (int32_t)min, (int32_t)max);
        }
        e = grammar_repeat(t, grammar_seq2(t, comma, a->rest), (int32_t)min, (int32_t)max);
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        grammar_expr *item = i > 0 ? grammar_seq2(t, comma, a->first.part[i]) : a->first.part[i];
        e = a->max >= 0 && i >= a->max ? grammar_empty(t) : grammar_seq2(t, item, e);
        if (i >= a->min)
            e = grammar_repeat(t, e, 0, 1);
    }
    return e;
}

grammar_expr *schema_array(struct schema_reader *r, struct jinja_value schema)
{
    struct grammar_tree *t = r->t;
    struct array a = {.min = schema_count(r, schema, "minItems", 0),
                      .max = schema_count(r, schema, "maxItems", -1)};
    if (schema_is_true(schema_get(r, schema, "uniqueItems")) && (a.max < 0 || a.max > 1))
        schema_fail(r, PITH_UNSUPPORTED, "uniqueItems", "it is not supported");
    if (a.max >= 0 && a.max < a.min)
        return grammar_never(t);
    if (a.min > GRAMMAR_REPEAT_MAX)
        schema_fail(r, PITH_UNSUPPORTED, "minItems", "it is above the limit of 65536");
    read_items(r, schema, &a);
    if (jinja_failed(r->h))
        return grammar_never(t);
    grammar_expr *comma = grammar_seq2(t, grammar_text(t, ","), r->space);
    grammar_expr *list = items_from(r, &a, comma);
    return grammar_seq3(t, grammar_seq2(t, grammar_text(t, "["), r->space), list,
                        grammar_seq2(t, r->space, grammar_text(t, "]")));
}
