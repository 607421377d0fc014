/*
 * jinja_access.c - a.b and a[b]: items, methods, and the properties of a loop. A missing item is
 * undefined, which is an error only where it is used.
 */
#include "text/template/jinja_run.h"

static struct jinja_value missing(struct jinja_value of, const struct jinja_str *name,
                                  enum jinja_missing why)
{
    return (struct jinja_value){
        .kind = JINJA_UNDEFINED, .missing = (uint8_t)why, .owner = of.kind, .u.s = name};
}

/* ---- loop ---- */

static struct jinja_value loop_item(const struct jinja_loop *loop, size_t i)
{
    return i < loop->items->n ? loop->items->item[i] : jinja_undefined();
}

/* Methods of loops are builtins; this is what is no method. False: no such attribute. */
static bool loop_attr(const struct jinja_loop *loop, const struct jinja_str *name,
                      struct jinja_value *out)
{
    int64_t i = (int64_t)loop->i, n = (int64_t)loop->items->n;
    const struct {
        const char *name;
        struct jinja_value value;
    } attrs[] = {
        {"index0", jinja_int(i)},
        {"index", jinja_int(i + 1)},
        {"first", jinja_bool(i == 0)},
        {"last", jinja_bool(i == n - 1)},
        {"length", jinja_int(n)},
        {"revindex0", jinja_int(n - 1 - i)},
        {"revindex", jinja_int(n - i)},
        {"previtem", loop_item(loop, i > 0 ? (size_t)i - 1 : SIZE_MAX)},
        {"nextitem", loop_item(loop, (size_t)i + 1)},
        {"depth0", jinja_int(loop->depth0)},
        {"depth", jinja_int(loop->depth0 + 1)},
    };
    for (size_t k = 0; k < PI_LEN(attrs); k++) {
        if (jinja_str_is(name, attrs[k].name)) {
            *out = attrs[k].value;
            return true;
        }
    }
    return false;
}

/* ---- attributes ---- */

/* A method, or what stands for one that templates may not use. False: there is none. */
static bool method_attr(struct jinja_run *r, struct jinja_value of, const struct jinja_str *name,
                        struct jinja_value *out)
{
    if (jinja_is_unsafe(of.kind, name)) {
        *out = missing(of, name, JINJA_UNSAFE);
        return true;
    }
    const struct jinja_builtin *row = jinja_find_method(of.kind, name);
    if (row == NULL)
        return false;
    struct jinja_method *method = jinja_alloc(r->h, 1, sizeof(*method));
    if (method != NULL)
        *method = (struct jinja_method){of, row};
    *out = (struct jinja_value){.kind = JINJA_METHOD, .u.method = method};
    return method != NULL;
}

/* The value that an object has by name, apart from items. */
static bool own_attr(struct jinja_run *r, struct jinja_value of, const struct jinja_str *name,
                     struct jinja_value *out)
{
    if (of.kind == JINJA_NAMESPACE) {
        const struct jinja_value *value = jinja_dict_get(r->h, of.u.dict, jinja_of(name));
        if (value != NULL)
            *out = *value;
        return value != NULL;
    }
    if (of.kind == JINJA_LOOP && loop_attr(of.u.loop, name, out))
        return true;
    if (of.kind == JINJA_MACRO && jinja_str_is(name, "name")) {
        *out = jinja_of(of.u.macro->node->name);
        return true;
    }
    return method_attr(r, of, name, out);
}

struct jinja_value jinja_get_attr(struct jinja_run *r, struct jinja_value of,
                                  const struct jinja_str *name)
{
    struct jinja_value out = jinja_undefined();
    if (jinja_failed(r->h))
        return out;
    if (of.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(r->h, of);
        return out;
    }
    if (own_attr(r, of, name, &out))
        return out;
    if (of.kind == JINJA_DICT) {
        const struct jinja_value *value = jinja_dict_get(r->h, of.u.dict, jinja_of(name));
        if (value != NULL)
            return *value;
    }
    return missing(of, name, JINJA_NO_ATTRIBUTE);
}

/* ---- items ---- */

static bool list_item(struct jinja_value of, int64_t i, struct jinja_value *out)
{
    int64_t n = (int64_t)of.u.list->n;
    i = i < 0 ? i + n : i;
    if (i < 0 || i >= n)
        return false;
    *out = of.u.list->item[i];
    return true;
}

static bool char_item(struct jinja_run *r, const struct jinja_str *s, int64_t i,
                      struct jinja_value *out)
{
    jinja_charge(r->h, s->len / 64);
    if (i < 0)
        i += (int64_t)jinja_str_count(s);
    size_t at = i >= 0 ? jinja_str_offset(s, (size_t)i) : s->len;
    if (at >= s->len)
        return false;
    const struct jinja_str rest = {.data = s->data + at, .len = s->len - at};
    *out = jinja_of(jinja_str_cut(r->h, s, at, at + jinja_str_offset(&rest, 1)));
    return true;
}

/* False: there is no such item. */
static bool own_item(struct jinja_run *r, struct jinja_value of, struct jinja_value key,
                     struct jinja_value *out)
{
    bool whole = key.kind == JINJA_INT || key.kind == JINJA_BOOL;
    if (of.kind == JINJA_DICT && key.kind != JINJA_LIST && key.kind != JINJA_DICT) {
        const struct jinja_value *value = jinja_dict_get(r->h, of.u.dict, key);
        if (value != NULL)
            *out = *value;
        return value != NULL;
    }
    if (of.kind == JINJA_STR && whole)
        return char_item(r, of.u.s, jinja_whole(key), out);
    if ((of.kind == JINJA_LIST || of.kind == JINJA_TUPLE || of.kind == JINJA_RANGE) && whole)
        return list_item(of, jinja_whole(key), out);
    return false;
}

struct jinja_value jinja_get_item(struct jinja_run *r, struct jinja_value of,
                                  struct jinja_value key)
{
    struct jinja_value out = jinja_undefined();
    if (jinja_failed(r->h))
        return out;
    if (of.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(r->h, of);
        return out;
    }
    if (own_item(r, of, key, &out))
        return out;
    if (key.kind == JINJA_STR && own_attr(r, of, key.u.s, &out))
        return out;
    return missing(of, jinja_to_str(r->h, key), JINJA_NO_ATTRIBUTE);
}

struct jinja_value jinja_get_path(struct jinja_run *r, struct jinja_value of,
                                  struct jinja_value path)
{
    if (path.kind != JINJA_STR)
        return jinja_get_item(r, of, path);
    const struct jinja_str dot = {.data = ".", .len = 1};
    struct jinja_value parts = jinja_split(r->h, path.u.s, &dot, -1);
    for (size_t i = 0; !jinja_failed(r->h) && i < parts.u.list->n; i++) {
        const struct jinja_str *part = parts.u.list->item[i].u.s;
        int64_t number = 0;
        bool whole = part->len > 0 && part->len < 10;
        for (size_t k = 0; k < part->len && whole; k++) {
            whole = part->data[k] >= '0' && part->data[k] <= '9';
            number = number * 10 + (part->data[k] - '0');
        }
        of = jinja_get_item(r, of, whole ? jinja_int(number) : jinja_of(part));
    }
    return of;
}
