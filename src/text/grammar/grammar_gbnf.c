/*
 * grammar_gbnf.c - reads grammars as llama.cpp's users write them (its grammars/README.md):
 *
 *     rule  ::= name "::=" alternatives     "..." with \x41 \u0041 \U00000041 \n \r \t \\ \" \[ \]
 *     [a-z] [^a-z] . (group) a? a* a+ a{3} a{3,} a{3,5} # comment
 *
 * A rule goes on over line ends in groups, behind "::=" and around "|". Token references are
 * refused. Invariant: after a failure, which names the line, nothing more is read.
 */
#include "base/utf8.h"
#include "text/grammar/grammar.h"

struct reader {
    struct grammar_tree *t;
    const char *text;
    size_t at, len;
};

static grammar_expr *read_alternatives(struct reader *r, bool nested);

static void bad(struct reader *r, pith_status status, const char *what)
{
    size_t line = 1;
    for (size_t i = 0; i < r->at && i < r->len; i++)
        line += r->text[i] == '\n';
    jinja_fail(&r->t->heap, status, "grammar: line %zu: %s", line, what);
}

static bool failed(const struct reader *r)
{
    return jinja_failed(&r->t->heap);
}

static char peek(const struct reader *r)
{
    return r->at < r->len ? r->text[r->at] : 0;
}

static bool next_is(struct reader *r, char c)
{
    if (r->at >= r->len || r->text[r->at] != c)
        return false;
    r->at++;
    return true;
}

static void skip_space(struct reader *r, bool lines)
{
    for (; r->at < r->len; r->at++) {
        char c = r->text[r->at];
        if (c == '#') {
            while (r->at < r->len && r->text[r->at] != '\n' && r->text[r->at] != '\r')
                r->at++;
            r->at--;
        } else if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r'))) {
            return;
        }
    }
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '-' || c == '_';
}

static size_t word_len(const struct reader *r)
{
    size_t n = 0;
    while (r->at + n < r->len && is_word(r->text[r->at + n]))
        n++;
    return n;
}

/* ---- characters ---- */

static uint32_t read_hex(struct reader *r, int n_digit)
{
    uint32_t value = 0;
    for (int i = 0; i < n_digit; i++, r->at++) {
        char c = peek(r);
        if (is_digit(c))
            value = value * 16 + (uint32_t)(c - '0');
        else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
            value = value * 16 + (uint32_t)((c | 32) - 'a' + 10);
        else {
            bad(r, PITH_INVALID, "an escape lacks hexadecimal digits");
            return 0;
        }
    }
    if (value > GRAMMAR_CHAR_MAX || (value >= 0xd800 && value <= 0xdfff))
        bad(r, PITH_INVALID, "an escape is no Unicode character");
    return value;
}

/* One character, escaped or not. */
static uint32_t read_char(struct reader *r)
{
    static const char from[] = "nrt\\\"[]", to[] = "\n\r\t\\\"[]";
    if (r->at >= r->len) {
        bad(r, PITH_INVALID, "the text ends within quotes or brackets");
        return 0;
    }
    if (!next_is(r, '\\')) {
        size_t n = pi_utf8_next(r->text + r->at, r->len - r->at).len;
        r->at += n;
        return pi_utf8_decode(r->text + r->at - n, n);
    }
    char c = peek(r);
    const char *known = c != 0 ? strchr(from, c) : NULL;
    r->at++;
    if (known != NULL)
        return (uint8_t)to[known - from];
    if (c == 'x' || c == 'u' || c == 'U')
        return read_hex(r, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    bad(r, PITH_INVALID, "there is no such escape");
    return 0;
}

static grammar_expr *read_literal(struct reader *r)
{
    struct jinja_buf b = {.h = &r->t->heap};
    while (!failed(r) && !next_is(r, '"')) {
        char utf8[4];
        size_t n = pi_utf8_encode(read_char(r), utf8);
        jinja_put_bytes(&b, utf8, n, false);
    }
    return grammar_bytes(r->t, b.data, b.len);
}

/* Behind the bracket. */
static grammar_expr *read_class(struct reader *r)
{
    bool negated = next_is(r, '^');
    struct grammar_range *range = NULL;
    size_t n = 0, cap = 0;
    while (!failed(r) && !next_is(r, ']')) {
        struct grammar_range one;
        one.lo = one.hi = read_char(r);
        if (r->at + 1 < r->len && r->text[r->at] == '-' && r->text[r->at + 1] != ']') {
            r->at++;
            one.hi = read_char(r);
        }
        if (one.hi < one.lo)
            bad(r, PITH_INVALID, "a range of characters ends before it begins");
        if (n == cap) {
            cap = cap > 0 ? 2 * cap : 16;
            struct grammar_range *grown = jinja_alloc(&r->t->heap, cap, sizeof(*grown));
            if (grown == NULL)
                break;
            if (n > 0)
                memcpy(grown, range, n * sizeof(*grown));
            range = grown;
        }
        range[n++] = one;
    }
    return grammar_chars(r->t, range, n, negated);
}

/* ---- parts ---- */

static int32_t read_count(struct reader *r)
{
    int32_t n = 0;
    if (!is_digit(peek(r)))
        bad(r, PITH_INVALID, "a repetition lacks a number");
    while (is_digit(peek(r)) && !failed(r)) {
        n = n * 10 + (r->text[r->at++] - '0');
        if (n > GRAMMAR_REPEAT_MAX)
            bad(r, PITH_UNSUPPORTED, "a repetition is above the limit of 65536");
    }
    return n;
}

/* {m}, {m,} or {m,n}, behind the brace. */
static grammar_expr *read_braces(struct reader *r, grammar_expr *e)
{
    skip_space(r, false);
    int32_t min = read_count(r), max = min;
    skip_space(r, false);
    if (next_is(r, ',')) {
        skip_space(r, false);
        max = peek(r) == '}' ? -1 : read_count(r);
        skip_space(r, false);
    }
    if (!next_is(r, '}'))
        bad(r, PITH_INVALID, "a repetition lacks its closing brace");
    if (max >= 0 && max < min)
        bad(r, PITH_INVALID, "a repetition's bounds are the wrong way round");
    return failed(r) ? e : grammar_repeat(r->t, e, min, max);
}

static grammar_expr *read_suffix(struct reader *r, grammar_expr *e, bool nested)
{
    for (;;) {
        size_t at = r->at;
        skip_space(r, nested);
        if (next_is(r, '*'))
            e = grammar_repeat(r->t, e, 0, -1);
        else if (next_is(r, '+'))
            e = grammar_repeat(r->t, e, 1, -1);
        else if (next_is(r, '?'))
            e = grammar_repeat(r->t, e, 0, 1);
        else if (next_is(r, '{'))
            e = read_braces(r, e);
        else {
            r->at = at;
            return e;
        }
    }
}

static grammar_expr *read_reference(struct reader *r)
{
    size_t n = word_len(r);
    uint32_t rule = grammar_rule_find(r->t, r->text + r->at, n);
    if (rule == UINT32_MAX)
        rule = grammar_rule_new(r->t, r->text + r->at, n);
    r->at += n;
    return grammar_ref(r->t, rule);
}

/* One part without its suffix; NULL: none begins here. */
static grammar_expr *read_part(struct reader *r)
{
    if (next_is(r, '"'))
        return read_literal(r);
    if (next_is(r, '['))
        return read_class(r);
    if (next_is(r, '.'))
        return grammar_chars(r->t, NULL, 0, true);
    if (next_is(r, '(')) {
        skip_space(r, true);
        grammar_expr *e = read_alternatives(r, true);
        skip_space(r, true);
        if (!next_is(r, ')'))
            bad(r, PITH_INVALID, "a group lacks its closing parenthesis");
        return e;
    }
    if (peek(r) == '<' || peek(r) == '!')
        bad(r, PITH_UNSUPPORTED, "references to tokens are not supported");
    return word_len(r) > 0 ? read_reference(r) : NULL;
}

static grammar_expr *read_sequence(struct reader *r, bool nested)
{
    struct grammar_parts list = {0};
    while (!failed(r)) {
        skip_space(r, nested);
        grammar_expr *part = read_part(r);
        if (part == NULL)
            break;
        grammar_add(r->t, &list, read_suffix(r, part, nested));
    }
    return list.n > 0 ? grammar_seq(r->t, &list) : grammar_empty(r->t);
}

/* A "|" may also begin a line. */
static bool next_is_bar(struct reader *r, bool nested)
{
    size_t at = r->at;
    skip_space(r, true);
    if (next_is(r, '|'))
        return true;
    r->at = nested ? r->at : at;
    return false;
}

static grammar_expr *read_alternatives(struct reader *r, bool nested)
{
    struct grammar_parts list = {0};
    if (!jinja_enter(&r->t->heap))
        return grammar_empty(r->t);
    do {
        skip_space(r, true);
        grammar_add(r->t, &list, read_sequence(r, nested));
    } while (!failed(r) && next_is_bar(r, nested));
    jinja_leave(&r->t->heap);
    return grammar_alt(r->t, &list);
}

/* ---- rules ---- */

static void read_rule(struct reader *r)
{
    size_t n = word_len(r);
    if (n == 0) {
        bad(r, PITH_INVALID, "a rule's name is expected");
        return;
    }
    uint32_t rule = grammar_rule_find(r->t, r->text + r->at, n);
    if (rule == UINT32_MAX)
        rule = grammar_rule_new(r->t, r->text + r->at, n);
    if (failed(r))
        return;
    if (r->t->rule[rule].expr != NULL)
        bad(r, PITH_INVALID, "a rule of this name is there already");
    r->at += n;
    skip_space(r, false);
    if (r->len - r->at < 3 || memcmp(r->text + r->at, "::=", 3) != 0) {
        bad(r, PITH_INVALID, "a rule lacks \"::=\" behind its name");
        return;
    }
    r->at += 3;
    grammar_expr *e = read_alternatives(r, false);
    if (failed(r))
        return;
    r->t->rule[rule].expr = e;
    skip_space(r, false);
    if (r->at < r->len && peek(r) != '\n' && peek(r) != '\r')
        bad(r, PITH_INVALID, "a rule is followed by what is no part of one");
}

static void check_rules(struct reader *r, const char *root)
{
    struct grammar_tree *t = r->t;
    for (uint32_t i = 0; i < t->n_rule && !failed(r); i++)
        if (t->rule[i].expr == NULL)
            jinja_fail(&t->heap, PITH_INVALID, "grammar: rule %.100s is not defined",
                       t->rule[i].name);
    t->root = grammar_rule_find(t, root, strlen(root));
    if (t->root == UINT32_MAX)
        jinja_fail(&t->heap, PITH_INVALID, "grammar: rule %.100s is not there", root);
}

void grammar_read_gbnf(struct grammar_tree *t, const char *text, size_t len, const char *root)
{
    struct reader r = {.t = t, .text = text, .len = len};
    size_t good = pi_utf8_span(text, len);
    if (good != len) {
        r.at = good;
        bad(&r, PITH_INVALID, "the text is not UTF-8");
        return;
    }
    r.at = pi_utf8_mark(text, len);
    skip_space(&r, true);
    while (r.at < len && !failed(&r)) {
        if (!jinja_charge(&t->heap, 1))
            return;
        read_rule(&r);
        skip_space(&r, true);
    }
    check_rules(&r, root);
}
