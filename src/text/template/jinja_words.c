/*
 * jinja_words.c - what Python's string methods do to strings of templates: split, strip, replace,
 * join, change of case. Every part keeps the marks of the bytes that it was made of.
 */
#include "base/utf8.h"
#include "text/template/jinja_builtin.h"

/* ---- split ---- */

static void add_part(struct jinja_heap *h, struct jinja_value list, const struct jinja_str *s,
                     size_t from, size_t to)
{
    if (jinja_charge(h, 1))
        jinja_list_add(h, list, jinja_of(jinja_str_cut(h, s, from, to)));
}

static size_t word_end(const struct jinja_str *s, size_t at)
{
    while (at < s->len && jinja_space_begin(s->data + at, s->len - at) == 0)
        at += pi_utf8_next(s->data + at, s->len - at).len;
    return at;
}

static struct jinja_value split_words(struct jinja_heap *h, const struct jinja_str *s, int64_t most)
{
    struct jinja_value list = jinja_list_new(h, JINJA_LIST, 0);
    size_t at = jinja_space_begin(s->data, s->len);
    while (at < s->len && !jinja_failed(h)) {
        size_t end = most == 0 ? jinja_space_end(s->data, s->len) : word_end(s, at);
        add_part(h, list, s, at, end);
        most -= most > 0;
        at = end + jinja_space_begin(s->data + end, s->len - end);
    }
    return list;
}

static bool check_sep(struct jinja_heap *h, const struct jinja_str *sep)
{
    if (sep->len == 0)
        jinja_fail(h, PITH_INVALID, "chat template: empty separator");
    return !jinja_failed(h);
}

struct jinja_value jinja_split(struct jinja_heap *h, const struct jinja_str *s,
                               const struct jinja_str *sep, int64_t most)
{
    if (sep == NULL)
        return split_words(h, s, most);
    struct jinja_value list = jinja_list_new(h, JINJA_LIST, 0);
    size_t done = 0, at;
    if (!check_sep(h, sep))
        return list;
    while (most-- != 0 && (at = jinja_str_find(h, s, sep, done)) != SIZE_MAX && !jinja_failed(h)) {
        add_part(h, list, s, done, at);
        done = at + sep->len;
    }
    add_part(h, list, s, done, s->len);
    return list;
}

/* The last place before end where part stands. */
static size_t find_last(struct jinja_heap *h, const struct jinja_str *s,
                        const struct jinja_str *part, size_t end)
{
    for (size_t at = end < part->len ? 0 : end - part->len + 1; at-- > 0;) {
        if (memcmp(s->data + at, part->data, part->len) == 0)
            return at;
        if (at % 64 == 0 && !jinja_charge(h, 1 + part->len / 64))
            break;
    }
    return SIZE_MAX;
}

static void reverse(struct jinja_list *list)
{
    for (size_t i = 0; i < list->n / 2; i++) {
        struct jinja_value swap = list->item[i];
        list->item[i] = list->item[list->n - 1 - i];
        list->item[list->n - 1 - i] = swap;
    }
}

/* At white space only without a limit: from the right that is the same. */
struct jinja_value jinja_rsplit(struct jinja_heap *h, const struct jinja_str *s,
                                const struct jinja_str *sep, int64_t most)
{
    if (sep == NULL || most < 0)
        return jinja_split(h, s, sep, sep == NULL ? -1 : most);
    struct jinja_value list = jinja_list_new(h, JINJA_LIST, 0);
    size_t end = s->len, at;
    if (!check_sep(h, sep))
        return list;
    while (most-- != 0 && (at = find_last(h, s, sep, end)) != SIZE_MAX && !jinja_failed(h)) {
        add_part(h, list, s, at + sep->len, end);
        end = at;
    }
    add_part(h, list, s, 0, end);
    if (!jinja_failed(h))
        reverse(list.u.list);
    return list;
}

/* Bytes of the line end at the beginning of a text, 0: none stands there. */
static size_t line_end(const char *data, size_t len)
{
    uint8_t c = (uint8_t)data[0];
    if (c == '\r')
        return len > 1 && data[1] == '\n' ? 2 : 1;
    if ((c >= '\n' && c <= '\f') || (c >= 0x1c && c <= 0x1e))
        return 1;
    if (c == 0xc2 && len > 1 && (uint8_t)data[1] == 0x85)
        return 2;
    if (c == 0xe2 && len > 2 && (uint8_t)data[1] == 0x80)
        return (uint8_t)data[2] == 0xa8 || (uint8_t)data[2] == 0xa9 ? 3 : 0;
    return 0;
}

struct jinja_value jinja_lines(struct jinja_heap *h, const struct jinja_str *s, bool keep)
{
    struct jinja_value list = jinja_list_new(h, JINJA_LIST, 0);
    for (size_t at = 0; at < s->len && !jinja_failed(h);) {
        size_t end = at, n = 0;
        while (end < s->len && (n = line_end(s->data + end, s->len - end)) == 0)
            end++;
        add_part(h, list, s, at, keep ? end + n : end);
        at = end + n;
    }
    return list;
}

/* ---- strip, replace, join ---- */

/* Whether the character of len bytes at at is one of set. */
static bool in_set(const struct jinja_str *set, const char *at, size_t len)
{
    for (size_t i = 0; i < set->len;) {
        size_t n = pi_utf8_next(set->data + i, set->len - i).len;
        if (n == len && memcmp(set->data + i, at, len) == 0)
            return true;
        i += n;
    }
    return false;
}

static size_t char_begin(const struct jinja_str *s, size_t end)
{
    size_t n = 1;
    while (n < 4 && n < end && ((uint8_t)s->data[end - n] & 0xc0) == 0x80)
        n++;
    return pi_utf8_next(s->data + end - n, n).len == n ? end - n : end - 1;
}

const struct jinja_str *jinja_strip(struct jinja_heap *h, const struct jinja_str *s,
                                    const struct jinja_str *set, bool left, bool right)
{
    size_t from = 0, to = s->len;
    if (!jinja_charge(h, s->len / 64))
        return s;
    if (set == NULL) {
        to = right ? jinja_space_end(s->data, to) : to;
        from = left ? jinja_space_begin(s->data, to) : 0;
        return jinja_str_cut(h, s, from, to);
    }
    while (left && from < to && jinja_charge(h, set->len / 64)) {
        size_t n = pi_utf8_next(s->data + from, to - from).len;
        if (!in_set(set, s->data + from, n))
            break;
        from += n;
    }
    while (right && to > from && jinja_charge(h, set->len / 64)) {
        size_t begin = char_begin(s, to);
        if (!in_set(set, s->data + begin, to - begin))
            break;
        to = begin;
    }
    return jinja_str_cut(h, s, from, to);
}

/* An empty old text stands in front of every character and at the end. */
static const struct jinja_str *replace_empty(struct jinja_heap *h, const struct jinja_str *s,
                                             const struct jinja_str *with, int64_t most)
{
    struct jinja_buf b = {.h = h};
    size_t at = 0;
    for (; most != 0 && jinja_charge(h, 1); most--) {
        jinja_put(&b, with);
        if (at >= s->len)
            break;
        size_t n = pi_utf8_next(s->data + at, s->len - at).len;
        jinja_put(&b, jinja_str_cut(h, s, at, at + n));
        at += n;
    }
    jinja_put(&b, jinja_str_cut(h, s, at, s->len));
    return jinja_buf_end(&b);
}

const struct jinja_str *jinja_replace(struct jinja_heap *h, const struct jinja_str *s,
                                      const struct jinja_str *old, const struct jinja_str *with,
                                      int64_t most)
{
    struct jinja_buf b = {.h = h};
    size_t done = 0, at;
    if (old->len == 0)
        return replace_empty(h, s, with, most);
    while (most-- != 0 && (at = jinja_str_find(h, s, old, done)) != SIZE_MAX &&
           jinja_charge(h, 1)) {
        jinja_put(&b, jinja_str_cut(h, s, done, at));
        jinja_put(&b, with);
        done = at + old->len;
    }
    if (done == 0)
        return s;
    jinja_put(&b, jinja_str_cut(h, s, done, s->len));
    return jinja_buf_end(&b);
}

const struct jinja_str *jinja_join(struct jinja_heap *h, const struct jinja_str *sep,
                                   const struct jinja_list *items)
{
    struct jinja_buf b = {.h = h};
    for (size_t i = 0; i < items->n && jinja_charge(h, 1); i++) {
        if (i > 0)
            jinja_put(&b, sep);
        jinja_put_value(&b, items->item[i]);
    }
    return jinja_buf_end(&b);
}

/* ---- case ---- */

/* Letters whose small form lies a fixed distance behind the large one. */
static const struct {
    uint32_t first, last, distance;
} letters[] = {
    {'A', 'Z', 32},     {0xc0, 0xd6, 32},   {0xd8, 0xde, 32},   {0x391, 0x3a1, 32},
    {0x3a3, 0x3ab, 32}, {0x410, 0x42f, 32}, {0x400, 0x40f, 80},
};

/* Large and small letters in turn, the large one even, or odd where it says so. */
static const struct {
    uint32_t first, last;
    bool odd;
} pairs[] = {
    {0x100, 0x12f, false}, {0x132, 0x137, false}, {0x139, 0x148, true},  {0x14a, 0x177, false},
    {0x179, 0x17e, true},  {0x460, 0x481, false}, {0x48a, 0x4bf, false}, {0x4d0, 0x4ff, false},
};

static uint32_t pair_base(uint32_t c, bool *small)
{
    for (size_t i = 0; i < PI_LEN(pairs); i++) {
        if (c >= pairs[i].first && c <= pairs[i].last) {
            *small = ((c & 1) != 0) != pairs[i].odd;
            return *small ? c - 1 : c;
        }
    }
    return 0;
}

uint32_t jinja_lower_char(uint32_t c)
{
    bool small;
    for (size_t i = 0; i < PI_LEN(letters); i++)
        if (c >= letters[i].first && c <= letters[i].last)
            return c + letters[i].distance;
    uint32_t base = pair_base(c, &small);
    return base != 0 ? base + 1 : c == 0x178 ? 0xff : c;
}

uint32_t jinja_upper_char(uint32_t c)
{
    bool small;
    for (size_t i = 0; i < PI_LEN(letters); i++)
        if (c >= letters[i].first + letters[i].distance &&
            c <= letters[i].last + letters[i].distance)
            return c - letters[i].distance;
    uint32_t base = pair_base(c, &small);
    return base != 0 ? base : c == 0xff ? 0x178 : c == 0x3c2 ? 0x3a3 : c;
}

static bool is_letter(uint32_t c)
{
    return jinja_lower_char(c) != c || jinja_upper_char(c) != c || c == 0xdf;
}

static uint32_t new_case(uint32_t c, enum jinja_case how, bool first, bool after_letter)
{
    switch (how) {
    case JINJA_UPPER:
        return jinja_upper_char(c);
    case JINJA_LOWER:
        return jinja_lower_char(c);
    case JINJA_CAPITALIZE:
        return first ? jinja_upper_char(c) : jinja_lower_char(c);
    default:
        return after_letter ? jinja_lower_char(c) : jinja_upper_char(c);
    }
}

const struct jinja_str *jinja_change_case(struct jinja_heap *h, const struct jinja_str *s,
                                          enum jinja_case how)
{
    struct jinja_buf b = {.h = h};
    bool after_letter = false;
    for (size_t at = 0; at < s->len && !jinja_failed(h);) {
        struct pi_utf8_char c = pi_utf8_next(s->data + at, s->len - at);
        uint32_t code = c.valid ? pi_utf8_decode(s->data + at, c.len) : 0;
        uint32_t changed = new_case(code, how, at == 0, after_letter);
        after_letter = is_letter(code);
        if (!c.valid)
            jinja_put(&b, jinja_str_cut(h, s, at, at + c.len));
        else if (code == 0xdf &&
                 (how == JINJA_UPPER || (changed == 0xdf && at == 0 && how != JINJA_LOWER)))
            jinja_put_bytes(&b, how == JINJA_UPPER ? "SS" : "Ss", 2, jinja_str_user(s, at));
        else
            jinja_put_char(&b, changed, jinja_str_user(s, at));
        at += c.len;
        jinja_charge(h, at % 16 == 0);
    }
    return jinja_str_safe(h, jinja_buf_end(&b), s->markup);
}
