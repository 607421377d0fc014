/*
 * grammar_schema.c - JSON schemas to expressions: what each keyword allows, and which keywords are
 * refused. A $ref that stands alone is a rule, so schemas may be recursive.
 *
 * Invariant: what the expression allows the schema allows. It may be less where JSON has several
 * ways to write the same: properties have an order, numbers few digits.
 */
#include <stdio.h>

#include "base/utf8.h"
#include "text/grammar/grammar_schema.h"
#include "text/value/jinja_json.h"

/* ---- keywords ---- */

/* Keywords that change which texts are allowed, and are not understood. */
static const char *const refused[] = {
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "dependencies",
    "$dynamicRef",
    "$recursiveRef",
    "extends",
    "disallow",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
    "unevaluatedItems",
};

static void check_keywords(struct schema_reader *r, struct jinja_value schema)
{
    for (size_t i = 0; i < PI_LEN(refused); i++)
        if (schema_get(r, schema, refused[i]) != NULL)
            schema_fail(r, PITH_UNSUPPORTED, refused[i], "this keyword is not supported");
}

/* Keywords that speak of one type. Where a schema names no type, they choose it: {"properties":
   ...} is an object, though others would satisfy it, too. */
static const struct {
    const char *name;
    uint32_t types;
} speaks_of[] = {
    {"properties", SCHEMA_OBJECT},
    {"required", SCHEMA_OBJECT},
    {"additionalProperties", SCHEMA_OBJECT},
    {"patternProperties", SCHEMA_OBJECT},
    {"propertyNames", SCHEMA_OBJECT},
    {"minProperties", SCHEMA_OBJECT},
    {"maxProperties", SCHEMA_OBJECT},
    {"items", SCHEMA_ARRAY},
    {"prefixItems", SCHEMA_ARRAY},
    {"minItems", SCHEMA_ARRAY},
    {"maxItems", SCHEMA_ARRAY},
    {"uniqueItems", SCHEMA_ARRAY},
    {"pattern", SCHEMA_STRING},
    {"format", SCHEMA_STRING},
    {"minLength", SCHEMA_STRING},
    {"maxLength", SCHEMA_STRING},
    {"minimum", SCHEMA_INTEGER | SCHEMA_FRACTION},
    {"maximum", SCHEMA_INTEGER | SCHEMA_FRACTION},
    {"exclusiveMinimum", SCHEMA_INTEGER | SCHEMA_FRACTION},
    {"exclusiveMaximum", SCHEMA_INTEGER | SCHEMA_FRACTION},
    {"multipleOf", SCHEMA_INTEGER | SCHEMA_FRACTION},
};

static uint32_t chosen_types(struct schema_reader *r, struct jinja_value schema)
{
    uint32_t types = 0;
    if (schema_get(r, schema, "type") != NULL)
        return schema_types(r, schema);
    for (size_t i = 0; i < PI_LEN(speaks_of); i++)
        if (schema_get(r, schema, speaks_of[i].name) != NULL)
            types |= speaks_of[i].types;
    return types != 0 ? types : SCHEMA_ANY;
}

static bool speaks(struct schema_reader *r, struct jinja_value schema, uint32_t types)
{
    for (size_t i = 0; i < PI_LEN(speaks_of); i++)
        if ((speaks_of[i].types & types) != 0 && schema_get(r, schema, speaks_of[i].name) != NULL)
            return true;
    return false;
}

/* ---- numbers ---- */

/* A bound as a plain decimal. False: it is so far away that it bounds nothing. */
static bool decimal(struct schema_reader *r, const char *keyword, struct jinja_value v, char *out,
                    size_t size)
{
    char text[64], digits[64];
    int n = 0, point = -1, power = 0;
    if (v.kind == JINJA_BIG) {
        if (v.u.s->len < size)
            snprintf(out, size, "%.*s", (int)v.u.s->len, v.u.s->data);
        else
            schema_fail(r, PITH_UNSUPPORTED, keyword,
                        "a number of this many digits is not supported");
        return v.u.s->len < size;
    }
    if (!jinja_is_number(v) || v.kind == JINJA_BOOL) {
        schema_fail(r, PITH_INVALID, keyword, "it is no number");
        return false;
    }
    if (v.kind == JINJA_INT) {
        snprintf(out, size, "%lld", (long long)v.u.i);
        return true;
    }
    if (v.u.f > 1e18 || v.u.f < -1e18)
        return false;
    jinja_print_float(v.u.f, text);
    const char *at = text + (text[0] == '-');
    for (; (*at >= '0' && *at <= '9') || *at == '.'; at++)
        if (*at == '.')
            point = n;
        else
            digits[n++] = *at;
    if (*at == 'e') {
        for (const char *p = at + 1 + (at[1] == '-' || at[1] == '+'); *p != '\0'; p++)
            power = power * 10 + (*p - '0');
        power = at[1] == '-' ? -power : power;
    }
    point = (point < 0 ? n : point) + power; /* 0.digits times 10 to the power of point */
    int k = snprintf(out, size, "%s%s", text[0] == '-' ? "-" : "", point <= 0 ? "0." : "");
    for (int i = point < 0 ? point : 0; (i < point || i < n) && k + 2 < (int)size; i++) {
        if (i == point && point > 0)
            out[k++] = '.';
        out[k++] = i >= 0 && i < n ? digits[i] : '0';
    }
    out[k] = '\0';
    return true;
}

static bool is_number(struct jinja_value v)
{
    return jinja_is_number(v) || v.kind == JINJA_BIG;
}

/* Draft 4's exclusiveMinimum is a mark at minimum. */
static void read_bound(struct schema_reader *r, struct jinja_value schema, const char *keyword,
                       const char *exclusive, bool *has, bool *open, char *out)
{
    const struct jinja_value *v = schema_get(r, schema, keyword);
    const struct jinja_value *e = schema_get(r, schema, exclusive);
    bool mark = e != NULL && e->kind == JINJA_BOOL;
    if (v != NULL)
        *has = decimal(r, keyword, *v, out, 48);
    *open = v != NULL && schema_is_true(e);
    if (e == NULL || mark)
        return;
    bool upper = exclusive[10] == 'a'; /* exclusiveMaximum */
    if (v != NULL && is_number(*v) && is_number(*e)) {
        int order = jinja_order(r->h, *e, *v);
        if (upper ? order > 0 : order < 0)
            return; /* the other bound is nearer */
    }
    *has = decimal(r, exclusive, *e, out, 48);
    *open = true;
}

static grammar_expr *free_number(struct schema_reader *r, bool integer)
{
    struct grammar_tree *t = r->t;
    static const struct grammar_range digits = {'0', '9'}, leading = {'1', '9'};
    static const struct grammar_range es[] = {{'e', 'e'}, {'E', 'E'}},
                                      signs[] = {{'+', '+'}, {'-', '-'}};
    grammar_expr *d = grammar_chars(t, &digits, 1, false);
    grammar_expr *whole = grammar_alt2(t, grammar_text(t, "0"),
                                       grammar_seq2(t, grammar_chars(t, &leading, 1, false),
                                                    grammar_repeat(t, d, 0, integer ? 17 : 15)));
    grammar_expr *minus = grammar_repeat(t, grammar_text(t, "-"), 0, 1);
    if (integer)
        return grammar_seq2(t, minus, whole);
    grammar_expr *part = grammar_seq2(t, grammar_text(t, "."), grammar_repeat(t, d, 1, 16));
    grammar_expr *power = grammar_seq3(t, grammar_chars(t, es, 2, false),
                                       grammar_repeat(t, grammar_chars(t, signs, 2, false), 0, 1),
                                       grammar_repeat(t, d, 1, 2));
    return grammar_seq3(
        t, minus, whole,
        grammar_seq2(t, grammar_repeat(t, part, 0, 1), grammar_repeat(t, power, 0, 1)));
}

static grammar_expr *make_number(struct schema_reader *r)
{
    return free_number(r, false);
}

static grammar_expr *make_integer(struct schema_reader *r)
{
    return free_number(r, true);
}

grammar_expr *schema_number(struct schema_reader *r, struct jinja_value schema, bool integer)
{
    struct schema_range range = {.has_min = false};
    const struct jinja_value *step = schema_get(r, schema, "multipleOf");
    if (step != NULL && step->kind == JINJA_INT && step->u.i == 1)
        integer = true;
    else if (step != NULL && step->kind == JINJA_FLOAT && step->u.f == 1.0)
        integer = true;
    else if (step != NULL)
        schema_fail(r, PITH_UNSUPPORTED, "multipleOf", "only 1 is supported");
    read_bound(r, schema, "minimum", "exclusiveMinimum", &range.has_min, &range.above, range.min);
    read_bound(r, schema, "maximum", "exclusiveMaximum", &range.has_max, &range.below, range.max);
    if (range.has_min || range.has_max)
        return schema_range(r->t, &range, integer);
    return integer ? schema_rule(r, &r->integer, "integer", make_integer)
                   : schema_rule(r, &r->number, "number", make_number);
}

/* ---- strings ---- */

/* A pattern. Where it cannot be read, a known format beside it stands for it. A schema that has
   both means the same by them, and a pattern with look-ahead is a usual way to write it. */
static grammar_expr *pattern_expr(struct schema_reader *r, const struct jinja_str *pattern,
                                  const char *format, struct schema_lengths want)
{
    grammar_expr *e = schema_pattern(r, "pattern", pattern->data, pattern->len, want);
    if (format == NULL || r->h->err.status != PITH_UNSUPPORTED)
        return e;
    pith_error why = r->h->err;
    r->h->err = (pith_error){0};
    e = schema_pattern(r, "format", format, strlen(format), want);
    if (jinja_failed(r->h))
        r->h->err = why;
    return e;
}

grammar_expr *schema_string(struct schema_reader *r, struct jinja_value schema)
{
    const struct jinja_value *pattern = schema_get(r, schema, "pattern");
    const struct jinja_value *format = schema_get(r, schema, "format");
    struct schema_lengths want = {schema_count(r, schema, "minLength", 0),
                                  schema_count(r, schema, "maxLength", -1)};
    const char *known = NULL;
    if (want.max >= 0 && want.max < want.min)
        return grammar_never(r->t);
    if (pattern != NULL && pattern->kind != JINJA_STR)
        schema_fail(r, PITH_INVALID, "pattern", "it is not a string");
    if (format != NULL && format->kind == JINJA_STR)
        known = schema_format(format->u.s); /* NULL: a remark, as JSON Schema has it */
    if (jinja_failed(r->h))
        return grammar_never(r->t);
    if (pattern != NULL)
        return schema_quoted(r, pattern_expr(r, pattern->u.s, known, want));
    if (known != NULL)
        return schema_quoted(r, schema_pattern(r, "format", known, strlen(known), want));
    if (want.min == 0 && want.max < 0)
        return schema_any_string(r);
    if (want.min > GRAMMAR_REPEAT_MAX)
        schema_fail(r, PITH_UNSUPPORTED, "minLength", "it is above the limit of 65536");
    int64_t max = pi_min(want.max, GRAMMAR_REPEAT_MAX);
    return schema_quoted(r, grammar_repeat(r->t, schema_char(r), (int32_t)want.min, (int32_t)max));
}

/* ---- enum ---- */

static int64_t characters(struct jinja_value v)
{
    return (int64_t)jinja_str_count(v.u.s);
}

/* Whether a number is on the right side (sign: 1 above, -1 below) of a bound, or on it. */
static bool is_beyond(struct schema_reader *r, struct jinja_value schema, const char *keyword,
                      struct jinja_value v, int sign, bool open)
{
    const struct jinja_value *bound = schema_get(r, schema, keyword);
    if (bound == NULL || bound->kind == JINJA_BOOL)
        return true;
    int order = sign * jinja_order(r->h, v, *bound);
    return open ? order > 0 : order >= 0;
}

static bool is_within(struct schema_reader *r, struct jinja_value schema, struct jinja_value v)
{
    bool above = schema_is_true(schema_get(r, schema, "exclusiveMinimum"));
    bool below = schema_is_true(schema_get(r, schema, "exclusiveMaximum"));
    return is_beyond(r, schema, "minimum", v, 1, above) &&
           is_beyond(r, schema, "maximum", v, -1, below) &&
           is_beyond(r, schema, "exclusiveMinimum", v, 1, true) &&
           is_beyond(r, schema, "exclusiveMaximum", v, -1, true);
}

/* Whether a value of an enum satisfies what stands beside it, as far as that is about it. */
static bool is_allowed(struct schema_reader *r, struct jinja_value schema, struct jinja_value v)
{
    uint32_t type = schema_type_of(v);
    if ((type & schema_types(r, schema)) == 0)
        return false;
    if (type == SCHEMA_STRING && schema_get(r, schema, "pattern") == NULL) {
        int64_t max = schema_count(r, schema, "maxLength", -1);
        return characters(v) >= schema_count(r, schema, "minLength", 0) &&
               (max < 0 || characters(v) <= max); /* a format does not restrict a list's texts */
    }
    if ((type & (SCHEMA_INTEGER | SCHEMA_FRACTION)) != 0 &&
        schema_get(r, schema, "multipleOf") == NULL)
        return is_within(r, schema, v);
    if (speaks(r, schema, type))
        schema_fail(r, PITH_UNSUPPORTED, "enum",
                    "it is supported beside type and bounds of lengths and numbers only");
    return true;
}

static grammar_expr *enum_expr(struct schema_reader *r, struct jinja_value schema,
                               struct jinja_value list)
{
    struct grammar_parts values = {0};
    if (!jinja_is_list(list)) {
        schema_fail(r, PITH_INVALID, "enum", "it is not a list");
        return grammar_never(r->t);
    }
    for (size_t i = 0; i < list.u.list->n && !jinja_failed(r->h); i++)
        if (is_allowed(r, schema, list.u.list->item[i]))
            grammar_add(r->t, &values, schema_literal(r, list.u.list->item[i]));
    return grammar_alt(r->t, &values);
}

/* ---- anyOf, oneOf ---- */

/* A text that one schema of oneOf allows, no other may allow. */
static void check_apart(struct schema_reader *r, const struct jinja_value *part, size_t n)
{
    for (size_t i = 0; i < n && !jinja_failed(r->h); i++)
        for (size_t k = 0; k < i; k++)
            if (jinja_charge(r->h, 16) && !schema_apart(r, part[i], part[k])) {
                char what[96];
                snprintf(what, sizeof(what), "schemas %zu and %zu may allow the same text", k, i);
                schema_fail(r, PITH_UNSUPPORTED, "oneOf", what);
                return;
            }
}

static grammar_expr *choice_expr(struct schema_reader *r, struct jinja_value schema,
                                 const char *keyword)
{
    struct jinja_value list = *schema_get(r, schema, keyword);
    struct jinja_value base = schema_without(r, schema, keyword);
    struct grammar_parts parts = {0};
    if (!jinja_is_list(list) || list.u.list->n == 0) {
        schema_fail(r, PITH_INVALID, keyword, "it is not a list of schemas");
        return grammar_never(r->t);
    }
    struct jinja_value *part = jinja_alloc(r->h, list.u.list->n, sizeof(*part));
    size_t n = 0;
    for (size_t i = 0; i < list.u.list->n && !jinja_failed(r->h); i++) {
        struct jinja_value one, all;
        size_t old = schema_enter_item(r, keyword, i);
        if (schema_resolve(r, list.u.list->item[i], &one)) {
            part[n++] = one;
            if (schema_merge(r, base, one, &all))
                grammar_add(r->t, &parts,
                            schema_is_bare(r, base, "") ? schema_expr(r, list.u.list->item[i])
                                                        : schema_expr(r, all));
        }
        schema_leave(r, old);
    }
    if (strcmp(keyword, "oneOf") == 0)
        check_apart(r, part, n);
    return grammar_alt(r->t, &parts);
}

/* ---- all of it ---- */

static grammar_expr *of_types(struct schema_reader *r, struct jinja_value schema, uint32_t types)
{
    struct grammar_tree *t = r->t;
    struct grammar_parts list = {0};
    bool array = speaks(r, schema, SCHEMA_ARRAY), object = speaks(r, schema, SCHEMA_OBJECT);
    if ((types & SCHEMA_NULL) != 0)
        grammar_add(t, &list, grammar_text(t, "null"));
    if ((types & SCHEMA_BOOLEAN) != 0) {
        grammar_add(t, &list, grammar_text(t, "true"));
        grammar_add(t, &list, grammar_text(t, "false"));
    }
    if ((types & (SCHEMA_INTEGER | SCHEMA_FRACTION)) != 0)
        grammar_add(t, &list, schema_number(r, schema, (types & SCHEMA_FRACTION) == 0));
    if ((types & SCHEMA_STRING) != 0)
        grammar_add(t, &list, schema_string(r, schema));
    if ((types & SCHEMA_ARRAY) != 0)
        grammar_add(t, &list, array ? schema_array(r, schema) : schema_any_array(r));
    if ((types & SCHEMA_OBJECT) != 0)
        grammar_add(t, &list, object ? schema_object(r, schema) : schema_any_object(r));
    return grammar_alt(t, &list);
}

/* The rule of the schema that a $ref points to. */
static grammar_expr *ref_expr(struct schema_reader *r, struct jinja_value ref)
{
    const struct jinja_value *target = schema_target(r, ref);
    if (target == NULL)
        return grammar_never(r->t);
    for (size_t i = 0; i < r->n_ref; i++)
        if (r->ref[i].schema == target)
            return grammar_ref(r->t, r->ref[i].rule);
    if (r->n_ref == r->cap_ref) {
        size_t cap = r->cap_ref > 0 ? 2 * r->cap_ref : 16;
        struct schema_ref *list = jinja_alloc(r->h, cap, sizeof(*list));
        if (list == NULL)
            return grammar_never(r->t);
        if (r->n_ref > 0)
            memcpy(list, r->ref, r->n_ref * sizeof(*list));
        r->ref = list;
        r->cap_ref = cap;
    }
    uint32_t rule = grammar_rule_new(r->t, ref.u.s->data, ref.u.s->len);
    r->ref[r->n_ref++] = (struct schema_ref){target, rule};
    char path[sizeof(r->path)];
    size_t path_len = r->path_len;
    memcpy(path, r->path, sizeof(path));
    r->path_len = (size_t)snprintf(r->path, sizeof(r->path), "%.*s",
                                   (int)pi_min((int64_t)ref.u.s->len, 100), ref.u.s->data);
    grammar_expr *e = schema_expr(r, *target);
    memcpy(r->path, path, sizeof(path));
    r->path_len = path_len;
    if (!jinja_failed(r->h))
        r->t->rule[rule].expr = e;
    return grammar_ref(r->t, rule);
}

static grammar_expr *resolved_expr(struct schema_reader *r, struct jinja_value schema)
{
    const struct jinja_value *list = schema_get(r, schema, "enum");
    check_keywords(r, schema);
    if (jinja_failed(r->h))
        return grammar_never(r->t);
    if (schema_get(r, schema, "oneOf") != NULL)
        return choice_expr(r, schema, "oneOf");
    if (schema_get(r, schema, "anyOf") != NULL)
        return choice_expr(r, schema, "anyOf");
    if (list != NULL)
        return enum_expr(r, schema, *list);
    uint32_t types = chosen_types(r, schema);
    return types == SCHEMA_ANY && !speaks(r, schema, SCHEMA_ANY) ? schema_any(r)
                                                                 : of_types(r, schema, types);
}

/* allOf of one schema, of which nothing is said beside it; NULL: it is not that. */
static const struct jinja_value *only_part(struct schema_reader *r, struct jinja_value schema)
{
    const struct jinja_value *all = schema_get(r, schema, "allOf");
    if (all == NULL || !jinja_is_list(*all) || all->u.list->n != 1 ||
        !schema_is_bare(r, schema, "allOf"))
        return NULL;
    return &all->u.list->item[0];
}

grammar_expr *schema_expr(struct schema_reader *r, struct jinja_value schema)
{
    struct jinja_value plain;
    const struct jinja_value *ref = schema_get(r, schema, "$ref");
    const struct jinja_value *part = only_part(r, schema);
    grammar_expr *e = grammar_never(r->t);
    if (!jinja_enter(r->h))
        return e;
    if (ref != NULL && schema_is_bare(r, schema, "$ref"))
        e = ref_expr(r, *ref);
    else if (part != NULL)
        e = schema_expr(r, *part);
    else if (schema_resolve(r, schema, &plain))
        e = resolved_expr(r, plain);
    jinja_leave(r->h);
    return e;
}

/* Between JSON's parts: nothing, a space, or line ends with what indents the next line. */
static grammar_expr *make_space(struct schema_reader *r)
{
    static const struct grammar_range blanks[] = {{' ', ' '}, {'\t', '\t'}};
    struct grammar_tree *t = r->t;
    grammar_expr *lines = grammar_repeat(t, grammar_text(t, "\n"), 1, 2);
    grammar_expr *indent = grammar_repeat(t, grammar_chars(t, blanks, 2, false), 0, 20);
    return grammar_alt2(t, grammar_alt2(t, grammar_empty(t), grammar_text(t, " ")),
                        grammar_seq2(t, lines, indent));
}

void grammar_read_schema(struct grammar_tree *t, const char *text, size_t len,
                         const pith_grammar_params *params)
{
    struct schema_reader r = {.t = t, .h = &t->heap, .params = params, .path = "#", .path_len = 1};
    r.any = r.object = r.array = r.string = r.number = r.integer = UINT32_MAX;
    size_t mark = pi_utf8_mark(text, len);
    r.doc = jinja_json_read(&t->heap, text + mark, len - mark);
    t->root = grammar_rule_new(t, "#", 1);
    if (jinja_failed(&t->heap))
        return;
    uint32_t space = UINT32_MAX;
    r.space = params->compact ? grammar_empty(t) : schema_rule(&r, &space, "space", make_space);
    grammar_expr *e = schema_expr(&r, r.doc);
    if (!jinja_failed(&t->heap))
        t->rule[t->root].expr = e;
    if (!jinja_failed(&t->heap) && grammar_is_never(e))
        jinja_fail(&t->heap, PITH_INVALID, "schema: #: nothing satisfies it");
}
