/*
 * jinja_methods.c - methods of strings, dicts, lists and loops, as Python's where templates call
 * them. Methods that change a list or dict are not here: the sandbox that transformers runs
 * templates in refuses them.
 */
#include "base/utf8.h"
#include "text/template/jinja_run.h"

/* A result that is marked as safe where the string was. */
static struct jinja_value like(struct jinja_run *r, struct jinja_value self,
                               const struct jinja_str *s)
{
    return jinja_of(jinja_str_safe(r->h, s, self.u.s->markup));
}

/* ---- strip, split, replace, join ---- */

static struct jinja_value str_strip(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str *set = jinja_arg_str(r, arg[0], "strip");
    return jinja_of(jinja_strip(r->h, self.u.s, set, true, true));
}

static struct jinja_value str_lstrip(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str *set = jinja_arg_str(r, arg[0], "lstrip");
    return jinja_of(jinja_strip(r->h, self.u.s, set, true, false));
}

static struct jinja_value str_rstrip(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str *set = jinja_arg_str(r, arg[0], "rstrip");
    return jinja_of(jinja_strip(r->h, self.u.s, set, false, true));
}

static struct jinja_value str_split(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str *sep = jinja_arg_str(r, arg[0], "split");
    return jinja_split(r->h, self.u.s, sep, jinja_arg_int(r, arg[1], -1, "split: maxsplit"));
}

static struct jinja_value str_rsplit(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str *sep = jinja_arg_str(r, arg[0], "rsplit");
    return jinja_rsplit(r->h, self.u.s, sep, jinja_arg_int(r, arg[1], -1, "rsplit: maxsplit"));
}

static struct jinja_value str_splitlines(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_lines(r->h, self.u.s, jinja_truth(arg[0]));
}

static struct jinja_value str_replace(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str *old = jinja_arg_str(r, arg[0], "replace: old");
    const struct jinja_str *with = jinja_arg_str(r, arg[1], "replace: new");
    if (old == NULL || with == NULL) {
        jinja_fail(r->h, PITH_INVALID, "chat template: replace: None is not a string");
        return self;
    }
    if (self.u.s->markup)
        with = jinja_str_escape(r->h, with);
    return like(r, self,
                jinja_replace(r->h, self.u.s, old, with, jinja_arg_int(r, arg[2], -1, "replace")));
}

static struct jinja_value str_join(JINJA_ROW)
{
    JINJA_UNUSED;
    struct jinja_value items = jinja_items(r->h, arg[0]);
    if (jinja_failed(r->h))
        return self;
    for (size_t i = 0; i < items.u.list->n; i++)
        if (items.u.list->item[i].kind != JINJA_STR)
            jinja_fail(r->h, PITH_INVALID,
                       "chat template: sequence item %zu: expected str instance, %s found", i,
                       jinja_type(items.u.list->item[i]));
    return like(r, self, jinja_join(r->h, self.u.s, items.u.list));
}

/* (before, sep, behind) */
static struct jinja_value cut_at(struct jinja_run *r, const struct jinja_str *s, size_t at,
                                 size_t len)
{
    struct jinja_value list = jinja_list_new(r->h, JINJA_TUPLE, 3);
    jinja_list_add(r->h, list, jinja_of(jinja_str_cut(r->h, s, 0, at)));
    jinja_list_add(r->h, list, jinja_of(jinja_str_cut(r->h, s, at, at + len)));
    jinja_list_add(r->h, list, jinja_of(jinja_str_cut(r->h, s, at + len, s->len)));
    return list;
}

static size_t last_place(struct jinja_run *r, const struct jinja_str *s,
                         const struct jinja_str *part)
{
    size_t at = SIZE_MAX, next = jinja_str_find(r->h, s, part, 0);
    while (next != SIZE_MAX && jinja_charge(r->h, 1)) {
        at = next;
        next = jinja_str_find(r->h, s, part, at + 1);
    }
    return at;
}

static struct jinja_value partition(struct jinja_run *r, struct jinja_value self,
                                    struct jinja_value sep_arg, bool last)
{
    const struct jinja_str *s = self.u.s, *sep = jinja_arg_str(r, sep_arg, "partition");
    if (sep == NULL || sep->len == 0) {
        jinja_fail(r->h, PITH_INVALID, "chat template: empty separator");
        return self;
    }
    size_t at = last ? last_place(r, s, sep) : jinja_str_find(r->h, s, sep, 0);
    if (at != SIZE_MAX)
        return cut_at(r, s, at, sep->len);
    struct jinja_value list = cut_at(r, s, last ? 0 : s->len, 0);
    return list;
}

static struct jinja_value str_partition(JINJA_ROW)
{
    JINJA_UNUSED;
    return partition(r, self, arg[0], false);
}

static struct jinja_value str_rpartition(JINJA_ROW)
{
    JINJA_UNUSED;
    return partition(r, self, arg[0], true);
}

/* ---- looking ---- */

static bool has_affix(struct jinja_run *r, const struct jinja_str *s, struct jinja_value affix,
                      bool at_end)
{
    if (affix.kind == JINJA_TUPLE) {
        for (size_t i = 0; i < affix.u.list->n; i++)
            if (affix.u.list->item[i].kind == JINJA_STR &&
                has_affix(r, s, affix.u.list->item[i], at_end))
                return true;
        return false;
    }
    const struct jinja_str *a = jinja_arg_str(r, affix, at_end ? "endswith" : "startswith");
    if (a == NULL) {
        jinja_fail(r->h, PITH_INVALID, "chat template: %s: the argument is not a string",
                   at_end ? "endswith" : "startswith");
        return false;
    }
    return a->len <= s->len && jinja_charge(r->h, a->len / 64) &&
           memcmp(at_end ? s->data + s->len - a->len : s->data, a->data, a->len) == 0;
}

static struct jinja_value str_startswith(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(has_affix(r, self.u.s, arg[0], false));
}

static struct jinja_value str_endswith(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_bool(has_affix(r, self.u.s, arg[0], true));
}

static struct jinja_value str_removeprefix(JINJA_ROW)
{
    JINJA_UNUSED;
    if (arg[0].kind != JINJA_STR || !has_affix(r, self.u.s, arg[0], false))
        return self;
    return jinja_of(jinja_str_cut(r->h, self.u.s, arg[0].u.s->len, self.u.s->len));
}

static struct jinja_value str_removesuffix(JINJA_ROW)
{
    JINJA_UNUSED;
    if (arg[0].kind != JINJA_STR || !has_affix(r, self.u.s, arg[0], true))
        return self;
    return jinja_of(jinja_str_cut(r->h, self.u.s, 0, self.u.s->len - arg[0].u.s->len));
}

/* Characters in front of the place, -1 where there is none. */
static int64_t find_chars(struct jinja_run *r, struct jinja_value self, struct jinja_value what,
                          bool last)
{
    const struct jinja_str *part = jinja_arg_str(r, what, "find");
    if (part == NULL) {
        jinja_fail(r->h, PITH_INVALID, "chat template: find: the argument is not a string");
        return -1;
    }
    size_t at = last ? last_place(r, self.u.s, part) : jinja_str_find(r->h, self.u.s, part, 0);
    const struct jinja_str before = {.data = self.u.s->data, .len = at};
    return at == SIZE_MAX ? -1 : (int64_t)jinja_str_count(&before);
}

static struct jinja_value str_find(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_int(find_chars(r, self, arg[0], false));
}

static struct jinja_value str_rfind(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_int(find_chars(r, self, arg[0], true));
}

static struct jinja_value str_index(JINJA_ROW)
{
    JINJA_UNUSED;
    int64_t at = find_chars(r, self, arg[0], false);
    if (at < 0)
        jinja_fail(r->h, PITH_INVALID, "chat template: substring not found");
    return jinja_int(at);
}

static struct jinja_value str_count(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str *part = jinja_arg_str(r, arg[0], "count");
    int64_t n = 0;
    if (part == NULL || part->len == 0)
        return jinja_int((int64_t)jinja_str_count(self.u.s) + 1);
    for (size_t at = 0; jinja_charge(r->h, 1); at += part->len, n++) {
        at = jinja_str_find(r->h, self.u.s, part, at);
        if (at == SIZE_MAX)
            break;
    }
    return jinja_int(n);
}

/* ---- kinds of characters: ASCII's, and letters that have two cases ---- */

enum class { DIGIT = 1, ALPHA = 2, SPACE = 4, UPPER = 8, LOWER = 16 };

static int class_of(const char *at, size_t len)
{
    uint32_t c = pi_utf8_decode(at, len);
    int found = c >= '0' && c <= '9' ? DIGIT : 0;
    found |= jinja_space_begin(at, len) > 0 ? SPACE : 0;
    found |= jinja_lower_char(c) != c ? UPPER | ALPHA : 0;
    found |= jinja_upper_char(c) != c || c == 0xdf ? LOWER | ALPHA : 0;
    return found;
}

/* All characters are of allowed, and there is one; with need, one at least is of need. */
static struct jinja_value all_of(struct jinja_run *r, const struct jinja_str *s, int allowed,
                                 int need, int never)
{
    bool any = false;
    for (size_t at = 0; at < s->len && jinja_charge(r->h, at % 32 == 0);) {
        struct pi_utf8_char c = pi_utf8_next(s->data + at, s->len - at);
        int found = c.valid ? class_of(s->data + at, c.len) : 0;
        if ((allowed != 0 && (found & allowed) == 0) || (found & never) != 0)
            return jinja_bool(false);
        any = any || (found & need) != 0;
        at += c.len;
    }
    return jinja_bool(any);
}

static struct jinja_value str_isdigit(JINJA_ROW)
{
    JINJA_UNUSED;
    return all_of(r, self.u.s, DIGIT, DIGIT, 0);
}

static struct jinja_value str_isalpha(JINJA_ROW)
{
    JINJA_UNUSED;
    return all_of(r, self.u.s, ALPHA, ALPHA, 0);
}

static struct jinja_value str_isalnum(JINJA_ROW)
{
    JINJA_UNUSED;
    return all_of(r, self.u.s, ALPHA | DIGIT, ALPHA | DIGIT, 0);
}

static struct jinja_value str_isspace(JINJA_ROW)
{
    JINJA_UNUSED;
    return all_of(r, self.u.s, SPACE, SPACE, 0);
}

static struct jinja_value str_isupper(JINJA_ROW)
{
    JINJA_UNUSED;
    return all_of(r, self.u.s, 0, UPPER, LOWER);
}

static struct jinja_value str_islower(JINJA_ROW)
{
    JINJA_UNUSED;
    return all_of(r, self.u.s, 0, LOWER, UPPER);
}

/* ---- case, width, format ---- */

static struct jinja_value str_upper(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_of(jinja_change_case(r->h, self.u.s, JINJA_UPPER));
}

static struct jinja_value str_lower(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_of(jinja_change_case(r->h, self.u.s, JINJA_LOWER));
}

static struct jinja_value str_capitalize(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_of(jinja_change_case(r->h, self.u.s, JINJA_CAPITALIZE));
}

static struct jinja_value str_title(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_of(jinja_change_case(r->h, self.u.s, JINJA_TITLE));
}

/* share of 2: how much of the room is in front. */
static struct jinja_value pad(struct jinja_run *r, struct jinja_value self,
                              const struct jinja_value *arg, int front)
{
    const struct jinja_str *fill = jinja_arg_str(r, arg[1], "fillchar"), space = {" ", 1, 0, 0, 0};
    int64_t n = (int64_t)jinja_str_count(self.u.s), width = jinja_arg_int(r, arg[0], 0, "width");
    int64_t room = width > n ? width - n : 0;
    int64_t left = front == 1 ? room / 2 + (room & width & 1) : front == 2 ? room : 0;
    struct jinja_buf b = {.h = r->h};
    for (int64_t i = 0; i < left && jinja_charge(r->h, 1); i++)
        jinja_put(&b, fill != NULL ? fill : &space);
    jinja_put(&b, self.u.s);
    for (int64_t i = left; i < room && jinja_charge(r->h, 1); i++)
        jinja_put(&b, fill != NULL ? fill : &space);
    return like(r, self, jinja_buf_end(&b));
}

static struct jinja_value str_ljust(JINJA_ROW)
{
    JINJA_UNUSED;
    return pad(r, self, arg, 0);
}

static struct jinja_value str_center(JINJA_ROW)
{
    JINJA_UNUSED;
    return pad(r, self, arg, 1);
}

static struct jinja_value str_rjust(JINJA_ROW)
{
    JINJA_UNUSED;
    return pad(r, self, arg, 2);
}

static struct jinja_value str_zfill(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str *s = self.u.s;
    size_t sign = s->len > 0 && (s->data[0] == '-' || s->data[0] == '+');
    int64_t n = (int64_t)jinja_str_count(s), width = jinja_arg_int(r, arg[0], 0, "zfill");
    struct jinja_buf b = {.h = r->h};
    jinja_put(&b, jinja_str_cut(r->h, s, 0, sign));
    for (int64_t i = n; i < width && jinja_charge(r->h, 1); i++)
        jinja_put_text(&b, "0");
    jinja_put(&b, jinja_str_cut(r->h, s, sign, s->len));
    return jinja_of(jinja_buf_end(&b));
}

static struct jinja_value str_format(JINJA_ROW)
{
    JINJA_UNUSED;
    return like(r, self, jinja_format(r, self.u.s, rest));
}

const struct jinja_builtin jinja_str_methods[] = {
    {"strip", str_strip, {"chars"}, 0, false},
    {"lstrip", str_lstrip, {"chars"}, 0, false},
    {"rstrip", str_rstrip, {"chars"}, 0, false},
    {"split", str_split, {"sep", "maxsplit"}, 0, false},
    {"rsplit", str_rsplit, {"sep", "maxsplit"}, 0, false},
    {"splitlines", str_splitlines, {"keepends"}, 0, false},
    {"replace", str_replace, {"old", "new", "count"}, 2, false},
    {"join", str_join, {"iterable"}, 1, false},
    {"partition", str_partition, {"sep"}, 1, false},
    {"rpartition", str_rpartition, {"sep"}, 1, false},
    {"startswith", str_startswith, {"prefix"}, 1, false},
    {"endswith", str_endswith, {"suffix"}, 1, false},
    {"removeprefix", str_removeprefix, {"prefix"}, 1, false},
    {"removesuffix", str_removesuffix, {"suffix"}, 1, false},
    {"find", str_find, {"sub"}, 1, false},
    {"rfind", str_rfind, {"sub"}, 1, false},
    {"index", str_index, {"sub"}, 1, false},
    {"count", str_count, {"sub"}, 1, false},
    {"isdigit", str_isdigit, {0}, 0, false},
    {"isnumeric", str_isdigit, {0}, 0, false},
    {"isdecimal", str_isdigit, {0}, 0, false},
    {"isalpha", str_isalpha, {0}, 0, false},
    {"isalnum", str_isalnum, {0}, 0, false},
    {"isspace", str_isspace, {0}, 0, false},
    {"isupper", str_isupper, {0}, 0, false},
    {"islower", str_islower, {0}, 0, false},
    {"upper", str_upper, {0}, 0, false},
    {"lower", str_lower, {0}, 0, false},
    {"capitalize", str_capitalize, {0}, 0, false},
    {"title", str_title, {0}, 0, false},
    {"ljust", str_ljust, {"width", "fillchar"}, 1, false},
    {"center", str_center, {"width", "fillchar"}, 1, false},
    {"rjust", str_rjust, {"width", "fillchar"}, 1, false},
    {"zfill", str_zfill, {"width"}, 1, false},
    {"format", str_format, {0}, 0, true},
    {0},
};

/* ---- dicts ---- */

static struct jinja_value dict_get(JINJA_ROW)
{
    JINJA_UNUSED;
    if (arg[0].kind == JINJA_LIST || arg[0].kind == JINJA_DICT) {
        jinja_fail(r->h, PITH_INVALID, "chat template: unhashable type: '%s'", jinja_type(arg[0]));
        return jinja_none();
    }
    const struct jinja_value *value = jinja_dict_get(r->h, self.u.dict, arg[0]);
    if (value != NULL)
        return *value;
    return arg[1].kind != JINJA_ABSENT ? arg[1] : jinja_none();
}

static struct jinja_value view_of(struct jinja_run *r, const struct jinja_dict *d, bool keys,
                                  bool values)
{
    struct jinja_value list = jinja_list_new(r->h, JINJA_VIEW, d->n);
    for (size_t i = 0; i < d->n && jinja_charge(r->h, i % 4 == 0); i++)
        jinja_list_add(r->h, list,
                       keys && values ? jinja_pair_new(r->h, d->pair[i].key, d->pair[i].value)
                       : keys         ? d->pair[i].key
                                      : d->pair[i].value);
    return list;
}

static struct jinja_value dict_items(JINJA_ROW)
{
    JINJA_UNUSED;
    return view_of(r, self.u.dict, true, true);
}

static struct jinja_value dict_keys(JINJA_ROW)
{
    JINJA_UNUSED;
    return view_of(r, self.u.dict, true, false);
}

static struct jinja_value dict_values(JINJA_ROW)
{
    JINJA_UNUSED;
    return view_of(r, self.u.dict, false, true);
}

static struct jinja_value dict_copy(JINJA_ROW)
{
    JINJA_UNUSED;
    struct jinja_value copy = jinja_dict_new(r->h);
    for (size_t i = 0; i < self.u.dict->n && jinja_charge(r->h, 1); i++)
        jinja_dict_set(r->h, copy.u.dict, self.u.dict->pair[i].key, self.u.dict->pair[i].value);
    return copy;
}

const struct jinja_builtin jinja_dict_methods[] = {
    {"get", dict_get, {"key", "default"}, 1, false},
    {"items", dict_items, {0}, 0, false},
    {"keys", dict_keys, {0}, 0, false},
    {"values", dict_values, {0}, 0, false},
    {"copy", dict_copy, {0}, 0, false},
    {0},
};

/* ---- lists ---- */

static struct jinja_value list_index(JINJA_ROW)
{
    JINJA_UNUSED;
    for (size_t i = 0; i < self.u.list->n && jinja_charge(r->h, 1); i++)
        if (jinja_equal(r->h, self.u.list->item[i], arg[0]))
            return jinja_int((int64_t)i);
    jinja_fail(r->h, PITH_INVALID, "chat template: index: the value is not in the list");
    return jinja_none();
}

static struct jinja_value list_count(JINJA_ROW)
{
    JINJA_UNUSED;
    int64_t n = 0;
    for (size_t i = 0; i < self.u.list->n && jinja_charge(r->h, 1); i++)
        n += jinja_equal(r->h, self.u.list->item[i], arg[0]);
    return jinja_int(n);
}

static struct jinja_value list_copy(JINJA_ROW)
{
    JINJA_UNUSED;
    return jinja_items(r->h, self);
}

const struct jinja_builtin jinja_list_methods[] = {
    {"index", list_index, {"value"}, 1, false},
    {"count", list_count, {"value"}, 1, false},
    {"copy", list_copy, {0}, 0, false},
    {0},
};

/* ---- loops ---- */

static struct jinja_value loop_cycle(JINJA_ROW)
{
    JINJA_UNUSED;
    if (rest->n_place == 0) {
        jinja_fail(r->h, PITH_INVALID, "chat template: no items for cycling given");
        return jinja_none();
    }
    return rest->place[self.u.loop->i % rest->n_place];
}

static struct jinja_value loop_changed(JINJA_ROW)
{
    JINJA_UNUSED;
    struct jinja_value now = jinja_list_new(r->h, JINJA_TUPLE, rest->n_place);
    for (size_t i = 0; i < rest->n_place; i++)
        jinja_list_add(r->h, now, rest->place[i]);
    struct jinja_value last = self.u.loop->changed;
    self.u.loop->changed = now;
    return jinja_bool(last.kind == JINJA_ABSENT || !jinja_equal(r->h, last, now));
}

const struct jinja_builtin jinja_loop_methods[] = {
    {"cycle", loop_cycle, {0}, 0, true},
    {"changed", loop_changed, {0}, 0, true},
    {0},
};
