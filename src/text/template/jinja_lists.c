/*
 * jinja_lists.c - filters of lists and dicts. Filters that are generators in jinja2 give values
 * that are read once and have no length, as there.
 */
#include "text/template/jinja_run.h"

static bool given(struct jinja_value v)
{
    return v.kind != JINJA_ABSENT && v.kind != JINJA_NONE;
}

/* Items [0, n); n 0 after a failure. */
static const struct jinja_list *items_of(struct jinja_run *r, struct jinja_value v)
{
    static const struct jinja_list none;
    struct jinja_value items = jinja_items(r->h, v);
    return jinja_failed(r->h) ? &none : items.u.list;
}

/* ---- order ---- */

/* The key by which an item is sorted: itself or an attribute, strings in lower case unless told. */
static struct jinja_value sort_key(struct jinja_run *r, struct jinja_value item,
                                   struct jinja_value attribute, bool case_sensitive)
{
    if (given(attribute))
        item = jinja_get_path(r, item, attribute);
    if (item.kind == JINJA_STR && !case_sensitive)
        item = jinja_of(jinja_change_case(r->h, item.u.s, JINJA_LOWER));
    return item;
}

/* A stable merge sort; spare [n] is overwritten. */
static void sort_pairs(struct jinja_heap *h, struct jinja_pair *pair, struct jinja_pair *spare,
                       size_t n, bool reverse)
{
    for (size_t width = 1; width < n && jinja_charge(h, n / 8 + 1); width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n;
            size_t hi = lo + 2 * width < n ? lo + 2 * width : n, a = lo, b = mid;
            for (size_t i = lo; i < hi; i++) {
                int order = a < mid && b < hi ? jinja_order(h, pair[a].key, pair[b].key) : 0;
                bool left = b == hi || (a < mid && (reverse ? order >= 0 : order <= 0));
                spare[i] = left ? pair[a++] : pair[b++];
            }
        }
        memcpy(pair, spare, n * sizeof(*pair));
    }
}

static struct jinja_value sorted(struct jinja_run *r, struct jinja_pair *pair, size_t n,
                                 bool reverse)
{
    struct jinja_value list = jinja_list_new(r->h, JINJA_LIST, n);
    struct jinja_pair *spare = jinja_alloc(r->h, n, sizeof(*spare));
    if (spare == NULL)
        return list;
    sort_pairs(r->h, pair, spare, n, reverse);
    for (size_t i = 0; i < n; i++)
        jinja_list_add(r->h, list, pair[i].value);
    return list;
}

/* A list, as jinja2 makes it: by an attribute, by several with commas between, or by the item. So
   what is undefined twice is equal, and nothing fails. */
static struct jinja_value attributes_key(struct jinja_run *r, struct jinja_value item,
                                         struct jinja_value attribute, bool case_sensitive)
{
    const struct jinja_str comma = {.data = ",", .len = 1};
    struct jinja_value key = jinja_list_new(r->h, JINJA_LIST, 1), names = key;
    if (attribute.kind != JINJA_STR) {
        jinja_list_add(r->h, key, sort_key(r, item, attribute, case_sensitive));
        return key;
    }
    names = jinja_split(r->h, attribute.u.s, &comma, -1);
    for (size_t i = 0; !jinja_failed(r->h) && i < names.u.list->n; i++)
        jinja_list_add(r->h, key, sort_key(r, item, names.u.list->item[i], case_sensitive));
    return key;
}

static struct jinja_value filter_sort(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_list *items = items_of(r, self);
    struct jinja_pair *pair = jinja_alloc(r->h, items->n, sizeof(*pair));
    for (size_t i = 0; pair != NULL && i < items->n && jinja_charge(r->h, 1); i++)
        pair[i] = (struct jinja_pair){
            attributes_key(r, items->item[i], arg[2], jinja_truth(arg[1])), items->item[i]};
    return jinja_failed(r->h) ? self : sorted(r, pair, items->n, jinja_truth(arg[0]));
}

static struct jinja_value filter_dictsort(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str *by = jinja_arg_str(r, arg[1], "dictsort: by");
    bool values = by != NULL && jinja_str_is(by, "value");
    if (by != NULL && !values && !jinja_str_is(by, "key"))
        jinja_fail(r->h, PITH_INVALID,
                   "chat template: You can only sort by either \"key\" or \"value\"");
    if (self.kind == JINJA_UNDEFINED)
        jinja_fail_undefined(r->h, self);
    if (self.kind != JINJA_DICT)
        jinja_fail(r->h, PITH_INVALID, "chat template: dictsort: '%s' is no dict",
                   jinja_type(self));
    if (jinja_failed(r->h))
        return self;
    const struct jinja_dict *d = self.u.dict;
    struct jinja_pair *pair = jinja_alloc(r->h, d->n, sizeof(*pair));
    for (size_t i = 0; pair != NULL && i < d->n && jinja_charge(r->h, 1); i++) {
        pair[i].key = sort_key(r, values ? d->pair[i].value : d->pair[i].key, jinja_none(),
                               jinja_truth(arg[0]));
        pair[i].value = jinja_pair_new(r->h, d->pair[i].key, d->pair[i].value);
    }
    return jinja_failed(r->h) ? self : sorted(r, pair, d->n, jinja_truth(arg[2]));
}

static struct jinja_value extreme(struct jinja_run *r, struct jinja_value self,
                                  const struct jinja_value *arg, int sign)
{
    const struct jinja_list *items = items_of(r, self);
    struct jinja_value best = jinja_undefined(), best_key = best;
    for (size_t i = 0; i < items->n && jinja_charge(r->h, 1); i++) {
        struct jinja_value key = sort_key(r, items->item[i], arg[1], jinja_truth(arg[0]));
        if (i == 0 || jinja_order(r->h, key, best_key) * sign > 0) {
            best = items->item[i];
            best_key = key;
        }
    }
    return best;
}

static struct jinja_value filter_max(JINJA_ROW)
{
    JINJA_UNUSED;
    return extreme(r, self, arg, 1);
}

static struct jinja_value filter_min(JINJA_ROW)
{
    JINJA_UNUSED;
    return extreme(r, self, arg, -1);
}

static struct jinja_value filter_unique(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_list *items = items_of(r, self);
    struct jinja_value list = jinja_list_new(r->h, JINJA_ITER, 0), seen = jinja_dict_new(r->h);
    for (size_t i = 0; i < items->n && jinja_charge(r->h, 1); i++) {
        struct jinja_value key = sort_key(r, items->item[i], arg[1], jinja_truth(arg[0]));
        if (jinja_failed(r->h) || jinja_dict_get(r->h, seen.u.dict, key) != NULL)
            continue;
        jinja_dict_set(r->h, seen.u.dict, key, jinja_none());
        jinja_list_add(r->h, list, items->item[i]);
    }
    return list;
}

static struct jinja_value filter_reverse(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_list *items = items_of(r, self);
    struct jinja_value list = jinja_list_new(r->h, JINJA_ITER, items->n);
    struct jinja_buf b = {.h = r->h};
    for (size_t i = items->n; i-- > 0 && jinja_charge(r->h, 1);) {
        if (self.kind == JINJA_STR)
            jinja_put(&b, items->item[i].u.s);
        else
            jinja_list_add(r->h, list, items->item[i]);
    }
    return self.kind == JINJA_STR ? jinja_of(jinja_buf_end(&b)) : list;
}

/* ---- parts ---- */

static struct jinja_value filter_first(JINJA_ROW)
{
    JINJA_UNUSED;
    if (self.kind == JINJA_ITER) { /* the others are still to be read */
        struct jinja_list *list = self.u.list;
        return list->at < list->n ? list->item[list->at++] : jinja_undefined();
    }
    if (self.kind == JINJA_STR)
        return jinja_get_item(r, self, jinja_int(0));
    const struct jinja_list *items = items_of(r, self);
    return items->n > 0 ? items->item[0] : jinja_undefined();
}

static struct jinja_value filter_last(JINJA_ROW)
{
    JINJA_UNUSED;
    if (self.kind == JINJA_ITER) {
        jinja_fail(r->h, PITH_INVALID, "chat template: 'generator' object is not reversible");
        return self;
    }
    const struct jinja_list *items = items_of(r, self);
    return items->n > 0 ? items->item[items->n - 1] : jinja_undefined();
}

static struct jinja_value filter_list(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_items(r->h, self);
}

static struct jinja_value filter_items(JINJA_ROW)
{
    JINJA_UNUSED;
    struct jinja_value list = jinja_list_new(r->h, JINJA_ITER, 0);
    if (self.kind != JINJA_DICT && self.kind != JINJA_UNDEFINED)
        jinja_fail(r->h, PITH_INVALID, "chat template: Can only get item pairs from a mapping.");
    for (size_t i = 0; self.kind == JINJA_DICT && i < self.u.dict->n && jinja_charge(r->h, 1); i++)
        jinja_list_add(r->h, list,
                       jinja_pair_new(r->h, self.u.dict->pair[i].key, self.u.dict->pair[i].value));
    return list;
}

static struct jinja_value filter_batch(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_list *items = items_of(r, self);
    int64_t size = jinja_arg_int(r, arg[0], 1, "batch: linecount");
    struct jinja_value list = jinja_list_new(r->h, JINJA_ITER, 0), row = list;
    for (size_t i = 0; i < items->n && jinja_charge(r->h, 1); i++) {
        if (i == 0 || (!jinja_failed(r->h) && (int64_t)row.u.list->n == size)) {
            row = jinja_list_new(r->h, JINJA_LIST, 0);
            jinja_list_add(r->h, list, row);
        }
        jinja_list_add(r->h, row, items->item[i]);
    }
    while (items->n > 0 && given(arg[1]) && jinja_charge(r->h, 1) && (int64_t)row.u.list->n < size)
        jinja_list_add(r->h, row, arg[1]);
    return list;
}

static struct jinja_value filter_attr(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str *name = jinja_to_str(r->h, arg[0]);
    if (self.kind == JINJA_DICT) { /* attributes only, no items */
        const struct jinja_builtin *row = jinja_find_method(JINJA_DICT, name);
        if (row == NULL)
            return (struct jinja_value){.kind = JINJA_UNDEFINED,
                                        .missing = JINJA_NO_ATTRIBUTE,
                                        .owner = JINJA_DICT,
                                        .u.s = name};
    }
    return jinja_get_attr(r, self, name);
}

/* ---- sums ---- */

static struct jinja_value filter_join(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_list *items = items_of(r, self);
    struct jinja_value list = jinja_list_new(r->h, JINJA_LIST, items->n);
    for (size_t i = 0; i < items->n && jinja_charge(r->h, i % 8 == 0); i++)
        jinja_list_add(r->h, list,
                       given(arg[1]) ? jinja_get_path(r, items->item[i], arg[1]) : items->item[i]);
    const struct jinja_str empty = {.data = ""};
    const struct jinja_str *sep = arg[0].kind != JINJA_ABSENT ? jinja_to_str(r->h, arg[0]) : &empty;
    return jinja_failed(r->h) ? self : jinja_of(jinja_join(r->h, sep, list.u.list));
}

static struct jinja_value filter_sum(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_list *items = items_of(r, self);
    struct jinja_value sum = arg[1].kind != JINJA_ABSENT ? arg[1] : jinja_int(0);
    for (size_t i = 0; i < items->n && jinja_charge(r->h, 1); i++) {
        struct jinja_value item = items->item[i];
        if (given(arg[0]))
            item = jinja_get_path(r, item, arg[0]);
        if (!jinja_failed(r->h))
            sum = jinja_math(r, '+', sum, item);
    }
    return sum;
}

/* ---- map, select ---- */

static struct jinja_args without_first(const struct jinja_args *args, size_t n)
{
    struct jinja_args rest = *args;
    rest.place += n;
    rest.n_place -= n;
    return rest;
}

/* map(attribute=name, default=value) */
static struct jinja_value map_attribute(struct jinja_run *r, const struct jinja_list *items,
                                        const struct jinja_args *args)
{
    struct jinja_value list = jinja_list_new(r->h, JINJA_ITER, items->n);
    struct jinja_value attribute = {0}, fallback = {0};
    for (size_t i = 0; i < args->n_named; i++) {
        if (jinja_str_is(args->named[i].name, "attribute"))
            attribute = args->named[i].value;
        else if (jinja_str_is(args->named[i].name, "default"))
            fallback = args->named[i].value;
        else
            jinja_fail(r->h, PITH_INVALID, "chat template: map: unexpected keyword argument");
    }
    if (attribute.kind == JINJA_ABSENT)
        jinja_fail(r->h, PITH_INVALID, "chat template: map requires a filter argument");
    for (size_t i = 0; i < items->n && jinja_charge(r->h, 1); i++) {
        struct jinja_value value = jinja_get_path(r, items->item[i], attribute);
        if (value.kind == JINJA_UNDEFINED && fallback.kind != JINJA_ABSENT)
            value = fallback;
        jinja_list_add(r->h, list, value);
    }
    return list;
}

static const struct jinja_builtin *named_row(struct jinja_run *r, struct jinja_value name,
                                             bool test)
{
    const struct jinja_builtin *row = NULL;
    if (name.kind == JINJA_STR)
        row = test ? jinja_find_test(name.u.s) : jinja_find_filter(name.u.s);
    if (row == NULL) {
        const struct jinja_str *text = jinja_to_str(r->h, name);
        jinja_fail(r->h, PITH_UNSUPPORTED, "chat template: No %s named '%.*s'.",
                   test ? "test" : "filter", (int)pi_min((int64_t)text->len, 60), text->data);
    }
    return row;
}

static struct jinja_value filter_map(JINJA_ROW)
{
    JINJA_UNUSED;
    if (!jinja_truth(self)) /* None, too, gives nothing */
        return jinja_list_new(r->h, JINJA_ITER, 0);
    const struct jinja_list *items = items_of(r, self);
    if (rest->n_place == 0)
        return map_attribute(r, items, rest);
    struct jinja_value list = jinja_list_new(r->h, JINJA_ITER, items->n);
    const struct jinja_builtin *row = named_row(r, rest->place[0], false);
    const struct jinja_args args = without_first(rest, 1);
    for (size_t i = 0; row != NULL && i < items->n && jinja_charge(r->h, 1); i++)
        jinja_list_add(r->h, list, jinja_call_builtin(r, row, items->item[i], &args));
    return list;
}

/* Items, or attributes of them, of which a test (or their truth) is want. */
static struct jinja_value choose(struct jinja_run *r, struct jinja_value self,
                                 const struct jinja_args *args, bool by_attribute, bool want)
{
    if (!jinja_truth(self)) /* None, too, gives nothing */
        return jinja_list_new(r->h, JINJA_ITER, 0);
    const struct jinja_list *items = items_of(r, self);
    struct jinja_value list = jinja_list_new(r->h, JINJA_ITER, 0);
    const struct jinja_builtin *row = NULL;
    if (by_attribute && args->n_place == 0)
        jinja_fail(r->h, PITH_INVALID, "chat template: Missing parameter for attribute name");
    if (args->n_place > by_attribute)
        row = named_row(r, args->place[by_attribute], true);
    if (jinja_failed(r->h))
        return list;
    const struct jinja_args left = without_first(args, by_attribute + (row != NULL));
    for (size_t i = 0; i < items->n && jinja_charge(r->h, 1); i++) {
        struct jinja_value value = items->item[i];
        if (by_attribute)
            value = jinja_get_path(r, value, args->place[0]);
        if (row != NULL && !jinja_failed(r->h))
            value = jinja_call_builtin(r, row, value, &left);
        if (jinja_truth(value) == want)
            jinja_list_add(r->h, list, items->item[i]);
    }
    return list;
}

static struct jinja_value filter_select(JINJA_ROW)
{
    JINJA_UNUSED;
    return choose(r, self, rest, false, true);
}

static struct jinja_value filter_reject(JINJA_ROW)
{
    JINJA_UNUSED;
    return choose(r, self, rest, false, false);
}

static struct jinja_value filter_selectattr(JINJA_ROW)
{
    JINJA_UNUSED;
    return choose(r, self, rest, true, true);
}

static struct jinja_value filter_rejectattr(JINJA_ROW)
{
    JINJA_UNUSED;
    return choose(r, self, rest, true, false);
}

const struct jinja_builtin jinja_list_filters[] = {
    {"attr", filter_attr, {"name"}, 1, false},
    {"batch", filter_batch, {"linecount", "fill_with"}, 1, false},
    {"dictsort", filter_dictsort, {"case_sensitive", "by", "reverse"}, 0, false},
    {"first", filter_first, {0}, 0, false},
    {"items", filter_items, {0}, 0, false},
    {"join", filter_join, {"d", "attribute"}, 0, false},
    {"last", filter_last, {0}, 0, false},
    {"list", filter_list, {0}, 0, false},
    {"map", filter_map, {0}, 0, true},
    {"max", filter_max, {"case_sensitive", "attribute"}, 0, false},
    {"min", filter_min, {"case_sensitive", "attribute"}, 0, false},
    {"reject", filter_reject, {0}, 0, true},
    {"rejectattr", filter_rejectattr, {0}, 0, true},
    {"reverse", filter_reverse, {0}, 0, false},
    {"select", filter_select, {0}, 0, true},
    {"selectattr", filter_selectattr, {0}, 0, true},
    {"sort", filter_sort, {"reverse", "case_sensitive", "attribute"}, 0, false},
    {"sum", filter_sum, {"attribute", "start"}, 0, false},
    {"unique", filter_unique, {"case_sensitive", "attribute"}, 0, false},
    {0},
};
