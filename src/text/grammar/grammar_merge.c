/*
 * grammar_merge.c - the keywords of a schema together. $ref is replaced by the schema that it
 * points to, allOf is merged into one schema, and two schemas can be told apart. It makes no
 * expressions.
 *
 * Invariant: a merged schema allows no text that one of the two forbids. Where that cannot be had,
 * it is refused.
 */
#include <stdio.h>

#include "text/grammar/grammar_schema.h"

/* ---- failures and places ---- */

void schema_fail(struct schema_reader *r, pith_status status, const char *keyword, const char *what)
{
    jinja_fail(r->h, status, "schema: %s%s%s: %s", r->path, keyword[0] != '\0' ? "/" : "", keyword,
               what);
}

/* Appends to the path as far as there is room. */
static void append(struct schema_reader *r, const char *text, size_t len)
{
    size_t room = sizeof(r->path) - 1 - r->path_len;
    size_t n = len < room ? len : room;
    memcpy(r->path + r->path_len, text, n);
    r->path_len += n;
    r->path[r->path_len] = '\0';
}

size_t schema_enter(struct schema_reader *r, const char *keyword, const struct jinja_str *key)
{
    size_t old = r->path_len;
    append(r, "/", 1);
    append(r, keyword, strlen(keyword));
    if (key != NULL) {
        append(r, "/", 1);
        append(r, key->data, key->len);
    }
    return old;
}

size_t schema_enter_item(struct schema_reader *r, const char *keyword, size_t i)
{
    char number[24];
    const struct jinja_str key = {.data = number,
                                  .len = (size_t)snprintf(number, sizeof(number), "%zu", i)};
    return schema_enter(r, keyword, &key);
}

void schema_leave(struct schema_reader *r, size_t path_len)
{
    r->path_len = path_len;
    r->path[path_len] = '\0';
}

/* ---- keywords ---- */

const struct jinja_value *schema_get(struct schema_reader *r, struct jinja_value schema,
                                     const char *keyword)
{
    return schema.kind == JINJA_DICT ? jinja_dict_find(r->h, schema.u.dict, keyword) : NULL;
}

int64_t schema_count(struct schema_reader *r, struct jinja_value schema, const char *keyword,
                     int64_t fallback)
{
    const struct jinja_value *v = schema_get(r, schema, keyword);
    if (v == NULL)
        return fallback;
    if (v->kind == JINJA_FLOAT && v->u.f >= 0 && v->u.f < 1e15 && v->u.f == (double)(int64_t)v->u.f)
        return (int64_t)v->u.f;
    if (v->kind == JINJA_INT && v->u.i >= 0)
        return v->u.i;
    if ((v->kind == JINJA_FLOAT && v->u.f >= 1e15) ||
        (v->kind == JINJA_BIG && v->u.s->data[0] != '-'))
        return INT64_C(1) << 53; /* more than anything has */
    schema_fail(r, PITH_INVALID, keyword, "it is not a whole number of 0 or more");
    return fallback;
}

bool schema_is_true(const struct jinja_value *v)
{
    return v != NULL && v->kind == JINJA_BOOL && v->u.b;
}

bool schema_is_false(const struct jinja_value *v)
{
    return v != NULL && v->kind == JINJA_BOOL && !v->u.b;
}

static const struct {
    const char *name;
    uint32_t types;
} type_names[] = {
    {"null", SCHEMA_NULL},       {"boolean", SCHEMA_BOOLEAN},
    {"integer", SCHEMA_INTEGER}, {"number", SCHEMA_INTEGER | SCHEMA_FRACTION},
    {"string", SCHEMA_STRING},   {"array", SCHEMA_ARRAY},
    {"object", SCHEMA_OBJECT},
};

static uint32_t type_named(struct schema_reader *r, struct jinja_value name)
{
    for (size_t i = 0; name.kind == JINJA_STR && i < PI_LEN(type_names); i++)
        if (jinja_str_is(name.u.s, type_names[i].name))
            return type_names[i].types;
    schema_fail(r, PITH_INVALID, "type", "there is no such type");
    return 0;
}

uint32_t schema_types(struct schema_reader *r, struct jinja_value schema)
{
    const struct jinja_value *v = schema_get(r, schema, "type");
    uint32_t types = v == NULL ? SCHEMA_ANY : 0;
    if (v != NULL && jinja_is_list(*v))
        for (size_t i = 0; i < v->u.list->n; i++)
            types |= type_named(r, v->u.list->item[i]);
    else if (v != NULL)
        types = type_named(r, *v);
    if (v != NULL && schema_is_true(schema_get(r, schema, "nullable")))
        types |= SCHEMA_NULL;
    return types;
}

/* The names of a set, as schemas have them: numbers are integers and fractions. No schema can name
   fractions alone, so they are no set that two of them have in common. */
static struct jinja_value type_list(struct schema_reader *r, uint32_t types)
{
    struct jinja_value list = jinja_list_new(r->h, JINJA_LIST, PI_LEN(type_names));
    for (size_t i = 0; i < PI_LEN(type_names); i++)
        if ((type_names[i].types & ~types) == 0)
            jinja_list_add(r->h, list, jinja_text(r->h, type_names[i].name));
    return list;
}

uint32_t schema_type_of(struct jinja_value v)
{
    switch (v.kind) {
    case JINJA_NONE:
        return SCHEMA_NULL;
    case JINJA_BOOL:
        return SCHEMA_BOOLEAN;
    case JINJA_INT:
    case JINJA_BIG:
        return SCHEMA_INTEGER;
    case JINJA_FLOAT:
        return v.u.f >= INT32_MIN && v.u.f <= INT32_MAX && v.u.f == (double)(int64_t)v.u.f
                   ? SCHEMA_INTEGER
                   : SCHEMA_FRACTION;
    case JINJA_STR:
        return SCHEMA_STRING;
    case JINJA_DICT:
        return SCHEMA_OBJECT;
    default:
        return SCHEMA_ARRAY;
    }
}

struct jinja_value schema_without(struct schema_reader *r, struct jinja_value schema,
                                  const char *keyword)
{
    struct jinja_value out = jinja_dict_new(r->h);
    for (size_t i = 0; i < schema.u.dict->n && !jinja_failed(r->h); i++)
        if (!jinja_str_is(schema.u.dict->pair[i].key.u.s, keyword))
            jinja_dict_set(r->h, out.u.dict, schema.u.dict->pair[i].key,
                           schema.u.dict->pair[i].value);
    return out;
}

/* ---- $ref ---- */

/* One name of a JSON pointer: ~1, ~0 and %XX undone. */
static struct jinja_value pointer_name(struct schema_reader *r, const char *text, size_t len)
{
    struct jinja_buf b = {.h = r->h};
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '~' && i + 1 < len && (text[i + 1] == '0' || text[i + 1] == '1')) {
            c = text[++i] == '0' ? '~' : '/';
        } else if (c == '%' && i + 2 < len) {
            static const char hex[] = "0123456789abcdef";
            const char *a = strchr(hex, text[i + 1] | 0x20), *d = strchr(hex, text[i + 2] | 0x20);
            if (a != NULL && d != NULL && *a != 0 && *d != 0) {
                c = (char)((a - hex) * 16 + (d - hex));
                i += 2;
            }
        }
        jinja_put_bytes(&b, &c, 1, false);
    }
    return b.len > 0 ? jinja_of(jinja_buf_end(&b)) : jinja_of(jinja_str_new(r->h, "", 0, false));
}

static const struct jinja_value *child(struct schema_reader *r, const struct jinja_value *of,
                                       struct jinja_value name)
{
    if (of->kind == JINJA_DICT)
        return jinja_dict_get(r->h, of->u.dict, name);
    size_t i = 0, k = 0;
    for (; k < name.u.s->len && k < 9 && name.u.s->data[k] >= '0' && name.u.s->data[k] <= '9'; k++)
        i = i * 10 + (size_t)(name.u.s->data[k] - '0');
    if (of->kind != JINJA_LIST || k == 0 || k < name.u.s->len || i >= of->u.list->n)
        return NULL;
    return &of->u.list->item[i];
}

const struct jinja_value *schema_target(struct schema_reader *r, struct jinja_value ref)
{
    const struct jinja_value *at = &r->doc;
    if (ref.kind != JINJA_STR || ref.u.s->len == 0 || ref.u.s->data[0] != '#' ||
        (ref.u.s->len > 1 && ref.u.s->data[1] != '/')) {
        schema_fail(r, PITH_UNSUPPORTED, "$ref", "only places in the same document can be named");
        return NULL;
    }
    for (size_t i = 1; i < ref.u.s->len && at != NULL;) {
        size_t end = i + 1;
        while (end < ref.u.s->len && ref.u.s->data[end] != '/')
            end++;
        at = child(r, at, pointer_name(r, ref.u.s->data + i + 1, end - i - 1));
        i = end;
    }
    if (at == NULL)
        schema_fail(r, PITH_INVALID, "$ref", "the place that it names is not there");
    return at;
}

/* ---- merging ---- */

typedef struct jinja_value merge_fn(struct schema_reader *r, struct jinja_value a,
                                    struct jinja_value b);

static struct jinja_value both(struct schema_reader *r, struct jinja_value a, struct jinja_value b)
{
    struct jinja_value list = jinja_list_new(r->h, JINJA_LIST, 2);
    struct jinja_value out = jinja_dict_new(r->h);
    if (schema_is_false(&a) || schema_is_false(&b))
        return jinja_bool(false);
    if (jinja_equal(r->h, a, b) || schema_is_true(&b))
        return a;
    if (schema_is_true(&a))
        return b;
    jinja_list_add(r->h, list, a);
    jinja_list_add(r->h, list, b);
    jinja_dict_set(r->h, out.u.dict, jinja_text(r->h, "allOf"), list);
    return out;
}

static struct jinja_value greater(struct schema_reader *r, struct jinja_value a,
                                  struct jinja_value b)
{
    return jinja_order(r->h, a, b) < 0 ? b : a;
}

static struct jinja_value less(struct schema_reader *r, struct jinja_value a, struct jinja_value b)
{
    return jinja_order(r->h, a, b) < 0 ? a : b;
}

static struct jinja_value either(struct schema_reader *r, struct jinja_value a,
                                 struct jinja_value b)
{
    (void)r;
    return jinja_bool(schema_is_true(&a) || schema_is_true(&b));
}

/* JSON's true is not its 1. */
static bool is_same(struct schema_reader *r, struct jinja_value a, struct jinja_value b)
{
    return (a.kind == JINJA_BOOL) == (b.kind == JINJA_BOOL) && jinja_equal(r->h, a, b);
}

static bool holds(struct schema_reader *r, struct jinja_value list, struct jinja_value v)
{
    for (size_t i = 0; i < list.u.list->n; i++)
        if (is_same(r, list.u.list->item[i], v))
            return true;
    return false;
}

static struct jinja_value in_both(struct schema_reader *r, struct jinja_value a,
                                  struct jinja_value b)
{
    struct jinja_value out = jinja_list_new(r->h, JINJA_LIST, 0);
    for (size_t i = 0; jinja_is_list(a) && jinja_is_list(b) && i < a.u.list->n; i++)
        if (holds(r, b, a.u.list->item[i]))
            jinja_list_add(r->h, out, a.u.list->item[i]);
    return out;
}

static struct jinja_value in_any(struct schema_reader *r, struct jinja_value a,
                                 struct jinja_value b)
{
    struct jinja_value out = jinja_list_new(r->h, JINJA_LIST, 0);
    for (size_t i = 0; jinja_is_list(a) && i < a.u.list->n; i++)
        jinja_list_add(r->h, out, a.u.list->item[i]);
    for (size_t i = 0; jinja_is_list(b) && i < b.u.list->n; i++)
        if (!holds(r, out, b.u.list->item[i]))
            jinja_list_add(r->h, out, b.u.list->item[i]);
    return out;
}

/* anyOf of both: one of the first and one of the second. */
static struct jinja_value product(struct schema_reader *r, struct jinja_value a,
                                  struct jinja_value b)
{
    struct jinja_value out = jinja_list_new(r->h, JINJA_LIST, 0);
    if (!jinja_is_list(a) || !jinja_is_list(b) || a.u.list->n * b.u.list->n > 256) {
        schema_fail(r, PITH_UNSUPPORTED, "anyOf", "too many combinations");
        return out;
    }
    for (size_t i = 0; i < a.u.list->n; i++)
        for (size_t k = 0; k < b.u.list->n; k++)
            jinja_list_add(r->h, out, both(r, a.u.list->item[i], b.u.list->item[k]));
    return out;
}

/* Keywords of which the two values make one; of others both must be equal. */
static const struct {
    const char *name;
    merge_fn *fn;
} merges[] = {
    {"minimum", greater},       {"maximum", less},       {"minLength", greater},
    {"maxLength", less},        {"minItems", greater},   {"maxItems", less},
    {"minProperties", greater}, {"maxProperties", less}, {"uniqueItems", either},
    {"enum", in_both},          {"required", in_any},    {"anyOf", product},
};

/* Keywords that do not restrict a text. */
static const char *const notes[] = {
    "title",   "description", "default", "examples",    "example",         "$comment",
    "$schema", "$id",         "id",      "deprecated",  "readOnly",        "writeOnly",
    "$defs",   "definitions", "$anchor", "$vocabulary", "contentEncoding", "contentMediaType",
};

static bool is_note(const struct jinja_str *name)
{
    for (size_t i = 0; i < PI_LEN(notes); i++)
        if (jinja_str_is(name, notes[i]))
            return true;
    return false;
}

bool schema_is_bare(struct schema_reader *r, struct jinja_value schema, const char *keyword)
{
    for (size_t i = 0; i < schema.u.dict->n && jinja_charge(r->h, 1); i++) {
        const struct jinja_str *name = schema.u.dict->pair[i].key.u.s;
        if (!is_note(name) && !jinja_str_is(name, keyword))
            return false;
    }
    return true;
}

/* Properties of a, as b sees them: those that b does not name follow b's additionalProperties. */
static void put_properties(struct schema_reader *r, struct jinja_value a, struct jinja_value b,
                           struct jinja_value out)
{
    const struct jinja_value *mine = schema_get(r, a, "properties");
    const struct jinja_value *theirs = schema_get(r, b, "properties");
    const struct jinja_value *rest = schema_get(r, b, "additionalProperties");
    for (size_t i = 0; mine != NULL && mine->kind == JINJA_DICT && i < mine->u.dict->n; i++) {
        struct jinja_pair p = mine->u.dict->pair[i];
        const struct jinja_value *other = theirs != NULL && theirs->kind == JINJA_DICT
                                              ? jinja_dict_get(r->h, theirs->u.dict, p.key)
                                              : NULL;
        other = other != NULL ? other : rest;
        if (jinja_dict_get(r->h, out.u.dict, p.key) == NULL)
            jinja_dict_set(r->h, out.u.dict, p.key,
                           other != NULL ? both(r, p.value, *other) : p.value);
    }
}

static void merge_objects(struct schema_reader *r, struct jinja_value a, struct jinja_value b,
                          struct jinja_value out)
{
    struct jinja_value all = jinja_dict_new(r->h);
    if (schema_get(r, a, "properties") == NULL && schema_get(r, b, "properties") == NULL)
        return;
    if ((schema_get(r, a, "patternProperties") != NULL ||
         schema_get(r, b, "patternProperties") != NULL))
        schema_fail(r, PITH_UNSUPPORTED, "patternProperties", "it is not supported beside allOf");
    put_properties(r, a, b, all);
    put_properties(r, b, a, all);
    jinja_dict_set(r->h, out.u.dict, jinja_text(r->h, "properties"), all);
}

static void merge_keyword(struct schema_reader *r, struct jinja_value out, struct jinja_value key,
                          struct jinja_value value)
{
    struct jinja_value *mine = jinja_dict_get(r->h, out.u.dict, key);
    if (mine == NULL || jinja_equal(r->h, *mine, value)) {
        jinja_dict_set(r->h, out.u.dict, key, value);
        return;
    }
    if (jinja_str_is(key.u.s, "properties") || is_note(key.u.s))
        return;
    if (jinja_str_is(key.u.s, "additionalProperties") || jinja_str_is(key.u.s, "items")) {
        jinja_dict_set(r->h, out.u.dict, key, both(r, *mine, value));
        return;
    }
    for (size_t i = 0; i < PI_LEN(merges); i++)
        if (jinja_str_is(key.u.s, merges[i].name)) {
            jinja_dict_set(r->h, out.u.dict, key, merges[i].fn(r, *mine, value));
            return;
        }
    char name[64];
    snprintf(name, sizeof(name), "%.*s", (int)key.u.s->len, key.u.s->data);
    schema_fail(r, PITH_UNSUPPORTED, name, "two of it cannot be merged");
}

bool schema_merge(struct schema_reader *r, struct jinja_value a, struct jinja_value b,
                  struct jinja_value *out)
{
    uint32_t types = schema_types(r, a) & schema_types(r, b);
    bool typed = schema_get(r, a, "type") != NULL || schema_get(r, b, "type") != NULL;
    bool lists =
        (schema_get(r, a, "prefixItems") != NULL) != (schema_get(r, b, "prefixItems") != NULL);
    if (lists && (schema_get(r, a, "items") != NULL || schema_get(r, b, "items") != NULL))
        schema_fail(r, PITH_UNSUPPORTED, "prefixItems", "it cannot be merged with items");
    if (!jinja_enter(r->h))
        return false;
    *out = schema_without(r, a, "type");
    b = schema_without(r, b, "type");
    for (size_t i = 0; i < b.u.dict->n && !jinja_failed(r->h); i++)
        merge_keyword(r, *out, b.u.dict->pair[i].key, b.u.dict->pair[i].value);
    merge_objects(r, a, b, *out);
    if (typed)
        jinja_dict_set(r->h, out->u.dict, jinja_text(r->h, "type"), type_list(r, types));
    jinja_leave(r->h);
    return types != 0 && !jinja_failed(r->h);
}

/* const is an enum of one. */
static struct jinja_value with_enum(struct schema_reader *r, struct jinja_value schema)
{
    const struct jinja_value *value = schema_get(r, schema, "const");
    if (value == NULL)
        return schema;
    struct jinja_value list = jinja_list_new(r->h, JINJA_LIST, 1);
    jinja_list_add(r->h, list, *value);
    struct jinja_value out = schema_without(r, schema, "const");
    merge_keyword(r, out, jinja_text(r->h, "enum"), list);
    return out;
}

static bool merge_into(struct schema_reader *r, struct jinja_value *all, struct jinja_value part)
{
    struct jinja_value one;
    return schema_resolve(r, part, &one) && schema_merge(r, *all, one, all);
}

static bool merge_all(struct schema_reader *r, struct jinja_value schema, struct jinja_value *out)
{
    const struct jinja_value *ref = schema_get(r, schema, "$ref");
    const struct jinja_value *all = schema_get(r, schema, "allOf");
    bool ok = true;
    *out = schema_without(r, schema_without(r, schema, "$ref"), "allOf");
    if (jinja_failed(r->h))
        return false;
    *out = with_enum(r, *out);
    if (ref != NULL) {
        const struct jinja_value *target = schema_target(r, *ref);
        ok = target != NULL && merge_into(r, out, *target);
    }
    if (all != NULL && !jinja_is_list(*all))
        schema_fail(r, PITH_INVALID, "allOf", "it is not a list");
    for (size_t i = 0; ok && all != NULL && jinja_is_list(*all) && i < all->u.list->n; i++) {
        size_t old = schema_enter_item(r, "allOf", i);
        ok = merge_into(r, out, all->u.list->item[i]);
        schema_leave(r, old);
    }
    return ok;
}

bool schema_resolve(struct schema_reader *r, struct jinja_value schema, struct jinja_value *out)
{
    *out = jinja_dict_new(r->h);
    if (schema.kind == JINJA_BOOL)
        return schema.u.b;
    if (schema.kind != JINJA_DICT) {
        schema_fail(r, PITH_INVALID, "", "a schema is an object, true or false");
        return false;
    }
    if (!jinja_enter(r->h) || !jinja_charge(r->h, 16))
        return false;
    bool ok = merge_all(r, schema, out);
    jinja_leave(r->h);
    return ok && !jinja_failed(r->h);
}

/* ---- apart ---- */

static bool requires(struct schema_reader *r, struct jinja_value schema, struct jinja_value key)
{
    const struct jinja_value *list = schema_get(r, schema, "required");
    return list != NULL && jinja_is_list(*list) && holds(r, *list, key);
}

/* A property that both require and that differs, or one that a requires and b forbids. */
static bool objects_apart(struct schema_reader *r, struct jinja_value a, struct jinja_value b)
{
    const struct jinja_value *list = schema_get(r, a, "required");
    const struct jinja_value *in_a = schema_get(r, a, "properties");
    const struct jinja_value *in_b = schema_get(r, b, "properties");
    bool closed = schema_is_false(schema_get(r, b, "additionalProperties")) &&
                  schema_get(r, b, "patternProperties") == NULL;
    for (size_t i = 0; list != NULL && jinja_is_list(*list) && i < list->u.list->n; i++) {
        struct jinja_value key = list->u.list->item[i], x, y;
        const struct jinja_value *p = in_a != NULL && in_a->kind == JINJA_DICT
                                          ? jinja_dict_get(r->h, in_a->u.dict, key)
                                          : NULL;
        const struct jinja_value *q = in_b != NULL && in_b->kind == JINJA_DICT
                                          ? jinja_dict_get(r->h, in_b->u.dict, key)
                                          : NULL;
        if (q == NULL && closed)
            return true;
        if (p == NULL || q == NULL || !requires(r, b, key))
            continue;
        if (!schema_resolve(r, *p, &x) || !schema_resolve(r, *q, &y) || schema_apart(r, x, y))
            return true;
    }
    return false;
}

static bool values_apart(struct schema_reader *r, struct jinja_value list, struct jinja_value b)
{
    const struct jinja_value *other = schema_get(r, b, "enum");
    uint32_t types = schema_types(r, b);
    for (size_t i = 0; i < list.u.list->n; i++) {
        struct jinja_value v = list.u.list->item[i];
        if ((schema_type_of(v) & types) == 0)
            continue;
        if (other == NULL || !jinja_is_list(*other) || holds(r, *other, v))
            return false;
    }
    return true;
}

bool schema_apart(struct schema_reader *r, struct jinja_value a, struct jinja_value b)
{
    const struct jinja_value *x = schema_get(r, a, "enum"), *y = schema_get(r, b, "enum");
    uint32_t types = schema_types(r, a) & schema_types(r, b);
    if (jinja_failed(r->h) || !jinja_enter(r->h))
        return false;
    bool apart = types == 0 || (x != NULL && jinja_is_list(*x) && values_apart(r, *x, b)) ||
                 (y != NULL && jinja_is_list(*y) && values_apart(r, *y, a)) ||
                 (types == SCHEMA_OBJECT && (objects_apart(r, a, b) || objects_apart(r, b, a)));
    jinja_leave(r->h);
    return apart;
}
