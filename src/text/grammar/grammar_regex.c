/*
 * grammar_regex.c - regular expressions of schemas (ECMA 262, the part that JSON Schema recommends)
 * as the inside of JSON strings. A character that JSON escapes is written as its escape.
 * Look-around, back references, word boundaries and anchors within the expression are refused.
 *
 * A pattern without ^ or $ is found anywhere in a string, so any characters may stand around it.
 */
#include "base/utf8.h"
#include "text/grammar/grammar_schema.h"

#define RANGES_MAX 512

struct regex {
    struct schema_reader *r;
    struct grammar_tree *t;
    const char *keyword;
    const char *text;
    size_t at, len;
    struct schema_lengths want; /* of the whole string */
};

/* A part, and how many characters it has; of one that is repeated also what is. */
struct piece {
    grammar_expr *e;
    struct schema_lengths len;
    grammar_expr *unit; /* of one character; NULL: not such a repetition */
    int32_t unit_min, unit_max;
};

struct ranges {
    struct grammar_range r[RANGES_MAX];
    size_t n;
};

static struct piece read_choice(struct regex *x, bool outermost);

static bool failed(const struct regex *x)
{
    return jinja_failed(x->r->h);
}

static void refuse(struct regex *x, const char *what)
{
    schema_fail(x->r, PITH_UNSUPPORTED, x->keyword, what);
}

static bool next_is(struct regex *x, const char *text)
{
    size_t n = strlen(text);
    if (x->len - x->at < n || memcmp(x->text + x->at, text, n) != 0)
        return false;
    x->at += n;
    return true;
}

static int64_t plus(int64_t a, int64_t b)
{
    return a < 0 || b < 0 ? -1 : a + b;
}

static int64_t times(int64_t a, int64_t n)
{
    return a == 0 || n == 0 ? 0 : a < 0 || n < 0 ? -1 : a * n;
}

/* ---- characters ---- */

/* Characters of some ranges as JSON writes them within quotes. */
static grammar_expr *in_quotes(struct regex *x, const struct ranges *s, bool negated)
{
    static const struct grammar_range special[] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
    struct grammar_tree *t = x->t;
    grammar_expr *all = grammar_chars(t, s->r, s->n, negated);
    struct grammar_parts list = {0};
    struct ranges plain = {.n = 0};
    for (uint32_t i = 0; i < all->n && all->kind == GRAMMAR_CHARS; i++) {
        uint32_t from = all->range[i].lo, hi = all->range[i].hi;
        for (size_t k = 0; k < PI_LEN(special); k++) {
            for (uint32_t c = special[k].lo; c <= special[k].hi; c++)
                if (from <= c && c <= hi && all->range[i].lo <= c) {
                    const struct jinja_str one = {.data = (char[]){(char)c}, .len = 1};
                    grammar_add(t, &list, schema_key(x->r, &one));
                }
            if (from < special[k].lo && plain.n < RANGES_MAX)
                plain.r[plain.n++] =
                    (struct grammar_range){from, hi < special[k].lo ? hi : special[k].lo - 1};
            if (from <= special[k].hi)
                from = special[k].hi + 1;
            if (from > hi)
                break;
        }
        if (from <= hi && plain.n < RANGES_MAX)
            plain.r[plain.n++] = (struct grammar_range){from, hi};
    }
    if (plain.n > 0)
        grammar_add(t, &list, grammar_chars(t, plain.r, plain.n, false));
    return grammar_alt(t, &list);
}

static void add(struct regex *x, struct ranges *s, uint32_t lo, uint32_t hi)
{
    if (s->n == RANGES_MAX)
        refuse(x, "a class of characters has too many ranges");
    else
        s->r[s->n++] = (struct grammar_range){lo, hi};
}

/* \d \w \s and their opposites; false: c is none of them. */
static bool add_known(struct regex *x, struct ranges *s, char c)
{
    static const struct grammar_range digits[] = {{'0', '9'}},
                                      words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                                      spaces[] = {{'\t', '\r'}, {' ', ' '}};
    const struct grammar_range *from = NULL;
    size_t n = 0;
    char kind = (char)(c | 0x20);
    if (kind == 'd')
        from = digits, n = PI_LEN(digits);
    else if (kind == 'w')
        from = words, n = PI_LEN(words);
    else if (kind == 's')
        from = spaces, n = PI_LEN(spaces);
    else
        return false;
    /* Of the opposites ASCII only: readers differ in which others are digits, letters or spaces. */
    uint32_t at = kind == 's' ? 0x21 : 0x20;
    for (size_t i = 0; i < n; i++) {
        if (c == kind) {
            add(x, s, from[i].lo, from[i].hi);
        } else {
            if (from[i].lo > at)
                add(x, s, at, from[i].lo - 1);
            at = from[i].hi + 1 > at ? from[i].hi + 1 : at;
        }
    }
    if (c != kind)
        add(x, s, at, 0x7e);
    return true;
}

static uint32_t read_hex(struct regex *x, int n)
{
    uint32_t value = 0;
    for (int i = 0; i < n; i++) {
        char c = x->at < x->len ? x->text[x->at++] : 0;
        if (c >= '0' && c <= '9')
            value = value * 16 + (uint32_t)(c - '0');
        else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
            value = value * 16 + (uint32_t)((c | 0x20) - 'a' + 10);
        else
            refuse(x, "an escape lacks hexadecimal digits");
    }
    return value;
}

/* Behind the backslash: one character. */
static uint32_t read_escape(struct regex *x)
{
    static const char from[] = "nrtfv0", to[] = "\n\r\t\f\v";
    char c = x->at < x->len ? x->text[x->at++] : 0;
    const char *known = c != 0 ? strchr(from, c) : NULL;
    if (known != NULL)
        return (uint8_t)to[known - from];
    if (c == 'x' || c == 'u')
        return read_hex(x, c == 'x' ? 2 : 4);
    if (c == 0 || (uint8_t)c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
        (c >= 'A' && c <= 'Z'))
        refuse(x, "an escape of the pattern is not supported");
    return (uint8_t)c;
}

static uint32_t read_plain(struct regex *x)
{
    size_t n = pi_utf8_next(x->text + x->at, x->len - x->at).len;
    x->at += n;
    return pi_utf8_decode(x->text + x->at - n, n);
}

/* Behind the bracket. */
static grammar_expr *read_class(struct regex *x)
{
    struct ranges s = {.n = 0};
    bool negated = next_is(x, "^");
    while (!failed(x) && !next_is(x, "]")) {
        if (x->at >= x->len) {
            refuse(x, "a class of characters lacks its end");
            break;
        }
        bool escaped = next_is(x, "\\");
        if (escaped && x->at < x->len && add_known(x, &s, x->text[x->at])) {
            x->at++;
            continue;
        }
        uint32_t lo = escaped && next_is(x, "b") ? '\b' : escaped ? read_escape(x) : read_plain(x);
        uint32_t hi = lo;
        if (x->at + 1 < x->len && x->text[x->at] == '-' && x->text[x->at + 1] != ']') {
            x->at++;
            hi = next_is(x, "\\") ? read_escape(x) : read_plain(x);
        }
        if (hi < lo)
            refuse(x, "a range of characters ends before it begins");
        add(x, &s, lo, hi);
    }
    return in_quotes(x, &s, negated);
}

static struct piece one_char(grammar_expr *e)
{
    return (struct piece){.e = e, .len = {1, 1}};
}

static struct piece read_group(struct regex *x)
{
    if (next_is(x, "?:")) {
    } else if (x->at < x->len && x->text[x->at] == '?') {
        refuse(x, "look-around and named groups of a pattern are not supported");
    }
    struct piece p = read_choice(x, false);
    if (!next_is(x, ")"))
        refuse(x, "a group of the pattern lacks its end");
    p.unit = NULL;
    return p;
}

static struct piece read_one(struct regex *x)
{
    struct ranges s = {.n = 0};
    if (next_is(x, "("))
        return read_group(x);
    if (next_is(x, "["))
        return one_char(read_class(x));
    if (next_is(x, ".")) {
        add(x, &s, '\n', '\n');
        add(x, &s, '\r', '\r');
        add(x, &s, 0x2028, 0x2029);
        return one_char(in_quotes(x, &s, true));
    }
    if (next_is(x, "\\")) {
        if (x->at < x->len && add_known(x, &s, x->text[x->at]))
            x->at++;
        else {
            uint32_t c = read_escape(x);
            add(x, &s, c, c);
        }
        return one_char(in_quotes(x, &s, false));
    }
    if (strchr("^$*+?{", x->text[x->at]) != NULL)
        refuse(x, "an anchor or a repetition within the pattern is not supported");
    uint32_t c = read_plain(x);
    add(x, &s, c, c);
    return one_char(in_quotes(x, &s, false));
}

/* ---- repetitions ---- */

static int32_t read_count(struct regex *x)
{
    int32_t n = 0;
    if (x->at >= x->len || x->text[x->at] < '0' || x->text[x->at] > '9')
        refuse(x, "a repetition of the pattern lacks a number");
    while (!failed(x) && x->at < x->len && x->text[x->at] >= '0' && x->text[x->at] <= '9') {
        n = n * 10 + (x->text[x->at++] - '0');
        if (n > GRAMMAR_REPEAT_MAX)
            refuse(x, "a repetition of the pattern is above the limit of 65536");
    }
    return n;
}

static struct piece repeated(struct regex *x, struct piece p, int32_t min, int32_t max)
{
    bool unit = p.len.min == 1 && p.len.max == 1;
    return (struct piece){
        .e = grammar_repeat(x->t, p.e, min, max),
        .len = {times(p.len.min, min), times(p.len.max, max)},
        .unit = unit ? p.e : NULL,
        .unit_min = min,
        .unit_max = max,
    };
}

static struct piece read_suffix(struct regex *x, struct piece p)
{
    int32_t min = 0, max = -1;
    if (next_is(x, "*")) {
    } else if (next_is(x, "+")) {
        min = 1;
    } else if (next_is(x, "?")) {
        max = 1;
    } else if (next_is(x, "{")) {
        min = max = read_count(x);
        if (next_is(x, ","))
            max = x->at < x->len && x->text[x->at] == '}' ? -1 : read_count(x);
        if (!next_is(x, "}") || (max >= 0 && max < min))
            refuse(x, "a repetition of the pattern is not well-formed");
    } else {
        return p;
    }
    next_is(x, "?"); /* lazy ones match the same strings */
    return failed(x) ? p : repeated(x, p, min, max);
}

/* ---- sequences ---- */

struct pieces {
    struct piece p[256];
    size_t n;
};

static struct schema_lengths total(const struct pieces *s)
{
    struct schema_lengths len = {0, 0};
    for (size_t i = 0; i < s->n; i++)
        len =
            (struct schema_lengths){plus(len.min, s->p[i].len.min), plus(len.max, s->p[i].len.max)};
    return len;
}

static bool fits(struct schema_lengths len, struct schema_lengths want)
{
    return len.min >= want.min && (want.max < 0 || (len.max >= 0 && len.max <= want.max));
}

/* Where the only part whose length varies is a repetition of single characters, its bounds can
   become the string's. */
static void fit(struct regex *x, struct pieces *s)
{
    struct schema_lengths len = total(s);
    size_t which = s->n;
    if (fits(len, x->want))
        return;
    for (size_t i = 0; i < s->n; i++)
        if (s->p[i].len.min != s->p[i].len.max) {
            if (which < s->n || s->p[i].unit == NULL) {
                refuse(x, "a length beside a pattern of several variable parts is not supported");
                return;
            }
            which = i;
        }
    if (which == s->n) { /* of one length, which is not wanted */
        s->p[s->n == 0 ? s->n++ : 0] = (struct piece){.e = grammar_never(x->t)};
        return;
    }
    struct piece *p = &s->p[which];
    int64_t rest = len.min - p->len.min, min = pi_max(p->unit_min, x->want.min - rest);
    int64_t max = p->unit_max;
    if (x->want.max >= 0)
        max = max < 0 ? x->want.max - rest : pi_min(max, x->want.max - rest);
    max = pi_min(max, GRAMMAR_REPEAT_MAX);
    if (min > GRAMMAR_REPEAT_MAX)
        refuse(x, "a string of more than 65536 characters is not supported");
    p->e = x->want.max >= 0 && max < min
               ? grammar_never(x->t)
               : grammar_repeat(x->t, p->unit, (int32_t)min, (int32_t)max);
}

static struct piece any_chars(struct regex *x)
{
    return repeated(x, one_char(schema_char(x->r)), 0, -1);
}

/* Whether the pattern's last anchor stands here. */
static bool ends_here(struct regex *x)
{
    if (x->text[x->at] != '$' || (x->at + 1 < x->len && x->text[x->at + 1] != '|'))
        return false;
    x->at++;
    return true;
}

static void read_pieces(struct regex *x, bool outermost, struct pieces *s)
{
    bool closed = false;
    if (outermost && !next_is(x, "^"))
        s->p[s->n++] = any_chars(x);
    while (!failed(x) && x->at < x->len && x->text[x->at] != '|' && x->text[x->at] != ')') {
        if (outermost && ends_here(x)) {
            closed = true;
            break;
        }
        if (s->n + 2 >= PI_LEN(s->p)) {
            refuse(x, "the pattern has too many parts");
            break;
        }
        struct piece p = read_one(x);
        s->p[s->n++] = failed(x) ? p : read_suffix(x, p);
    }
    if (outermost && !closed)
        s->p[s->n++] = any_chars(x);
}

static struct piece read_sequence(struct regex *x, bool outermost)
{
    struct pieces *s = jinja_alloc(x->r->h, 1, sizeof(*s));
    struct grammar_parts list = {0};
    if (s == NULL)
        return (struct piece){.e = grammar_empty(x->t)};
    read_pieces(x, outermost, s);
    if (outermost && !failed(x))
        fit(x, s);
    for (size_t i = 0; i < s->n; i++)
        grammar_add(x->t, &list, s->p[i].e);
    struct piece all = s->n == 1 ? s->p[0] : (struct piece){.len = total(s)};
    all.e = s->n > 0 ? grammar_seq(x->t, &list) : grammar_empty(x->t);
    return all;
}

static struct piece read_choice(struct regex *x, bool outermost)
{
    struct grammar_parts list = {0};
    struct piece all = {.len = {INT64_MAX, 0}};
    if (!jinja_enter(x->r->h))
        return (struct piece){.e = grammar_empty(x->t)};
    do {
        struct piece p = read_sequence(x, outermost);
        grammar_add(x->t, &list, p.e);
        all.len.min = pi_min(all.len.min, p.len.min);
        all.len.max = all.len.max < 0 || p.len.max < 0 ? -1 : pi_max(all.len.max, p.len.max);
    } while (!failed(x) && next_is(x, "|"));
    jinja_leave(x->r->h);
    all.e = grammar_alt(x->t, &list);
    return all;
}

grammar_expr *schema_pattern(struct schema_reader *r, const char *keyword, const char *text,
                             size_t len, struct schema_lengths want)
{
    struct regex x = {
        .r = r, .t = r->t, .keyword = keyword, .text = text, .len = len, .want = want};
    struct piece p = read_choice(&x, true);
    if (!failed(&x) && x.at < len)
        refuse(&x, "a parenthesis of the pattern has no beginning");
    return p.e;
}
