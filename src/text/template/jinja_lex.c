/*
 * jinja_lex.c - a template's text as tokens. White space around tags is decided here, as jinja2
 * does with trim_blocks and lstrip_blocks. The line end behind a tag goes, and the blanks in front
 * of a tag that begins its line.
 */
#include "base/utf8.h"
#include "text/value/jinja_json.h"
#include "text/template/jinja_tree.h"

#define DEPTH_MAX 256 /* of brackets within a tag */

struct lexer {
    struct jinja_heap *h;
    const char *text; /* with \n at line ends */
    size_t at, len;
    struct jinja_tokens *out;
    int32_t line;
    size_t line_at; /* up to where lines are counted */
    bool line_starting;
    char bracket[DEPTH_MAX];
    int32_t n_bracket;
};

static int32_t line_of(struct lexer *x, size_t at)
{
    for (; x->line_at < at; x->line_at++)
        x->line += x->text[x->line_at] == '\n';
    return x->line;
}

static void syntax(struct lexer *x, const char *what)
{
    jinja_fail(x->h, PITH_INVALID, "chat template: line %d: %s", (int)line_of(x, x->at), what);
}

static void emit(struct lexer *x, enum jinja_token_kind kind, uint16_t op, struct jinja_value value)
{
    struct jinja_tokens *out = x->out;
    if (out->n == out->cap) {
        size_t cap = out->cap == 0 ? 64 : 2 * out->cap;
        struct jinja_token *grown = jinja_alloc(x->h, cap, sizeof(*grown));
        if (grown == NULL)
            return;
        if (out->n > 0)
            memcpy(grown, out->token, out->n * sizeof(*grown));
        out->token = grown;
        out->cap = cap;
    }
    out->token[out->n++] = (struct jinja_token){(uint8_t)kind, op, line_of(x, x->at), value};
}

static void emit_text(struct lexer *x, enum jinja_token_kind kind, size_t from, size_t to)
{
    emit(x, kind, 0, jinja_of(jinja_str_new(x->h, x->text + from, to - from, false)));
}

static bool starts(const struct lexer *x, size_t at, const char *word)
{
    size_t n = strlen(word);
    return x->len - at >= n && memcmp(x->text + at, word, n) == 0;
}

/* Steps behind a tag's end, with the white space that its sign (or none) takes. */
static void end_tag(struct lexer *x, size_t at, char sign, bool trim)
{
    x->at = at;
    if (sign == '-')
        x->at += jinja_space_begin(x->text + at, x->len - at);
    else if (sign != '+' && trim && at < x->len && x->text[at] == '\n')
        x->at++;
    x->line_starting = x->at > 0 && x->text[x->at - 1] == '\n';
}

/* Text [from, to) in front of a tag: what of it stays. */
static size_t strip_before(const struct lexer *x, size_t from, size_t to, char sign, bool block)
{
    if (sign == '-')
        return from + jinja_space_end(x->text + from, to - from);
    if (sign == '+' || !block)
        return to;
    size_t begin = to;
    while (begin > from && x->text[begin - 1] != '\n')
        begin--;
    if (begin == from && !x->line_starting)
        return to;
    return jinja_space_begin(x->text + begin, to - begin) == to - begin ? begin : to;
}

static char sign_at(const struct lexer *x, size_t at)
{
    char c = at < x->len ? x->text[at] : 0;
    return c == '-' || c == '+' ? c : 0;
}

/* ---- inside of tags ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (uint8_t)c >= 0x80;
}

/* Digits and single _ between them; their end. */
static size_t digits_end(const struct lexer *x, size_t at)
{
    while (at < x->len && (is_digit(x->text[at]) ||
                           (x->text[at] == '_' && at + 1 < x->len && is_digit(x->text[at + 1]))))
        at++;
    return at;
}

static void lex_based(struct lexer *x, int base)
{
    size_t at = x->at + 2;
    int64_t value = 0;
    for (; at < x->len && is_word(x->text[at]); at++) {
        char c = x->text[at];
        int digit = is_digit(c)            ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                    : c == '_'             ? -1
                                           : 99;
        if (digit >= base || value > (INT64_MAX - 15) / base) {
            syntax(x, "a number that is none, or too large");
            return;
        }
        value = digit < 0 ? value : value * base + digit;
    }
    emit(x, JINJA_T_CONST, 0, jinja_int(value));
    x->at = at;
}

static void lex_number(struct lexer *x)
{
    size_t begin = x->at, end = digits_end(x, begin);
    char base = starts(x, begin, "0") && begin + 1 < x->len ? x->text[begin + 1] | 0x20 : 0;
    if (base == 'x' || base == 'o' || base == 'b') {
        lex_based(x, base == 'x' ? 16 : base == 'o' ? 8 : 2);
        return;
    }
    bool may_be_float = begin == 0 || x->text[begin - 1] != '.';
    if (may_be_float && end + 1 < x->len && x->text[end] == '.' && is_digit(x->text[end + 1]))
        end = digits_end(x, end + 1);
    if (may_be_float && end < x->len && (x->text[end] | 0x20) == 'e') {
        size_t power = end + 1 + (sign_at(x, end + 1) != 0);
        if (power < x->len && is_digit(x->text[power]))
            end = digits_end(x, power);
    }
    char *plain = jinja_alloc(x->h, end - begin + 1, 1);
    size_t n = 0;
    for (size_t i = begin; plain != NULL && i < end; i++)
        if (x->text[i] != '_' && !(n == 1 && plain[0] == '0' && x->text[i] == '0'))
            plain[n++] = x->text[i]; /* a second zero is none */
    if (plain == NULL)
        return;
    struct jinja_value value = jinja_json_read(x->h, plain, n);
    if (value.kind == JINJA_BIG)
        syntax(x, "a number is too large");
    value.as = 0; /* a template's own prints as Python prints it */
    emit(x, JINJA_T_CONST, 0, value);
    x->at = end;
}

static int hex_digit(char c)
{
    return is_digit(c)            ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* n hexadecimal digits at *at as a character. */
static void lex_code(struct lexer *x, struct jinja_buf *b, size_t *at, size_t end, int n)
{
    uint32_t code = 0;
    for (int i = 0; i < n; i++, ++*at) {
        int digit = *at < end ? hex_digit(x->text[*at]) : -1;
        if (digit < 0) {
            syntax(x, "a string has an escape that lacks digits");
            return;
        }
        code = code << 4 | (uint32_t)digit;
    }
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        syntax(x, "a string has an escape that is no character");
    else
        jinja_put_char(b, code, false);
}

static void lex_octal(struct lexer *x, struct jinja_buf *b, size_t *at, size_t end)
{
    uint32_t code = 0;
    for (int i = 0; i < 3 && *at < end && x->text[*at] >= '0' && x->text[*at] <= '7'; i++)
        code = code * 8 + (uint32_t)(x->text[(*at)++] - '0');
    jinja_put_char(b, code, false);
}

/* Behind a backslash; an escape that is none stays as it is. */
static void lex_escape(struct lexer *x, struct jinja_buf *b, size_t *at, size_t end)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = x->text[*at];
    const char *known = c != 0 ? strchr(from, c) : NULL;
    if (c >= '0' && c <= '7') {
        lex_octal(x, b, at, end);
        return;
    }
    ++*at;
    if (known != NULL)
        jinja_put_bytes(b, &to[known - from], 1, false);
    else if (c == 'x')
        lex_code(x, b, at, end, 2);
    else if (c == 'u' || c == 'U')
        lex_code(x, b, at, end, c == 'u' ? 4 : 8);
    else if (c == 'N')
        syntax(x, "a string names a character by \\N, which is not supported");
    else if (c != '\n')
        jinja_put_bytes(b, x->text + *at - 2, 2, false);
}

static void lex_string(struct lexer *x, char quote)
{
    struct jinja_buf b = {.h = x->h};
    size_t begin = x->at + 1, end = begin;
    while (end < x->len && x->text[end] != quote)
        end += x->text[end] == '\\' ? 2 : 1;
    if (end >= x->len) {
        syntax(x, "a string does not end");
        return;
    }
    for (size_t at = begin; at < end && !jinja_failed(x->h);) {
        if (x->text[at] == '\\') {
            at++;
            lex_escape(x, &b, &at, end);
            continue;
        }
        size_t plain = at;
        while (at < end && x->text[at] != '\\')
            at++;
        jinja_put_bytes(&b, x->text + plain, at - plain, false);
    }
    emit(x, JINJA_T_CONST, 0, jinja_of(jinja_buf_end(&b)));
    x->at = end + 1;
}

/* Brackets must match; within them }} and %} end nothing. */
static void count_bracket(struct lexer *x, char c)
{
    static const char open[] = "([{", close[] = ")]}";
    const char *is_open = strchr(open, c), *is_close = strchr(close, c);
    if (is_open != NULL && x->n_bracket == DEPTH_MAX)
        syntax(x, "brackets are nested too deep");
    else if (is_open != NULL)
        x->bracket[x->n_bracket++] = close[is_open - open];
    else if (is_close != NULL && (x->n_bracket == 0 || x->bracket[--x->n_bracket] != c))
        syntax(x, "a bracket closes that was not opened");
}

static void lex_operator(struct lexer *x)
{
    static const char *const twos[] = {"//", "**", "==", "!=", ">=", "<="};
    char c = x->text[x->at];
    for (size_t i = 0; i < PI_LEN(twos); i++) {
        if (starts(x, x->at, twos[i])) {
            emit(x, JINJA_T_OP, JINJA_OP2(twos[i][0], twos[i][1]), jinja_none());
            x->at += 2;
            return;
        }
    }
    if (c == 0 || strchr("+-/*%~[](){}><=.:|,;", c) == NULL) {
        syntax(x, "a character that has no meaning here");
        return;
    }
    count_bracket(x, c);
    emit(x, JINJA_T_OP, (uint8_t)c, jinja_none());
    x->at++;
}

/* From behind a tag's opening to behind its end. */
static void lex_tag(struct lexer *x, const char *close, enum jinja_token_kind end_kind)
{
    bool block = end_kind == JINJA_T_BLOCK_END;
    x->n_bracket = 0;
    while (!jinja_failed(x->h)) {
        x->at += jinja_space_begin(x->text + x->at, x->len - x->at);
        if (x->at >= x->len) {
            syntax(x, "a tag does not end");
            return;
        }
        char c = x->text[x->at];
        bool sign = (c == '-' || (c == '+' && block)) && starts(x, x->at + 1, close);
        if (x->n_bracket == 0 && (sign || starts(x, x->at, close))) {
            emit(x, end_kind, 0, jinja_none());
            end_tag(x, x->at + sign + 2, sign ? c : 0, block);
            return;
        }
        if (is_digit(c)) {
            lex_number(x);
        } else if (is_word(c)) {
            size_t end = x->at;
            while (end < x->len && is_word(x->text[end]))
                end++;
            emit_text(x, JINJA_T_NAME, x->at, end);
            x->at = end;
        } else if (c == '\'' || c == '"') {
            lex_string(x, c);
        } else {
            lex_operator(x);
        }
    }
}

/* ---- outside of tags ---- */

/* Behind "{#" and its sign. */
static void skip_comment(struct lexer *x)
{
    size_t begin = x->at, at = begin;
    while (at < x->len && !starts(x, at, "#}"))
        at++;
    if (at >= x->len) {
        syntax(x, "a comment does not end");
        return;
    }
    end_tag(x, at + 2, at > begin ? sign_at(x, at - 1) : 0, true);
}

/* Where a tag that holds only word ends, 0 where at begins none; *close_sign: that of its end. */
static size_t word_tag(const struct lexer *x, size_t at, const char *word, char *close_sign)
{
    at += jinja_space_begin(x->text + at, x->len - at);
    if (!starts(x, at, word))
        return 0;
    at += strlen(word);
    at += jinja_space_begin(x->text + at, x->len - at);
    *close_sign = sign_at(x, at);
    at += *close_sign != 0;
    return at < x->len && starts(x, at, "%}") ? at + 2 : 0;
}

/* Behind {% raw %}, whose end is at x->at: everything up to {% endraw %} is text. */
static void lex_raw(struct lexer *x)
{
    size_t begin = x->at;
    for (size_t at = begin; at < x->len; at++) {
        if (!starts(x, at, "{%"))
            continue;
        char close_sign, sign = sign_at(x, at + 2);
        size_t end = word_tag(x, at + 2 + (sign != 0), "endraw", &close_sign);
        if (end == 0)
            continue;
        size_t to = strip_before(x, begin, at, sign, true);
        if (to > begin)
            emit_text(x, JINJA_T_DATA, begin, to);
        end_tag(x, end, close_sign, true);
        return;
    }
    syntax(x, "a raw block does not end");
}

/* A tag at x->at, with the text [from, x->at) in front. */
static void lex_opening(struct lexer *x, size_t from)
{
    char kind = x->text[x->at + 1], sign = sign_at(x, x->at + 2), raw_sign;
    size_t to = strip_before(x, from, x->at, sign, kind != '{');
    if (to > from)
        emit_text(x, JINJA_T_DATA, from, to);
    x->at += 2 + (sign != 0);
    size_t raw = kind == '%' ? word_tag(x, x->at, "raw", &raw_sign) : 0;
    if (raw != 0 && raw_sign != '+') {
        end_tag(x, raw, raw_sign, false);
        lex_raw(x);
    } else if (kind == '#') {
        skip_comment(x);
    } else if (kind == '%') {
        emit(x, JINJA_T_BLOCK_BEGIN, 0, jinja_none());
        lex_tag(x, "%}", JINJA_T_BLOCK_END);
    } else {
        emit(x, JINJA_T_VAR_BEGIN, 0, jinja_none());
        lex_tag(x, "}}", JINJA_T_VAR_END);
    }
}

static bool is_opening(const struct lexer *x, size_t at)
{
    return x->text[at] == '{' && at + 1 < x->len &&
           (x->text[at + 1] == '{' || x->text[at + 1] == '%' || x->text[at + 1] == '#');
}

/* Line ends become \n, and the last one goes. */
static char *normalise(struct jinja_heap *h, const char *text, size_t *len)
{
    char *out = jinja_alloc(h, *len + 1, 1);
    size_t n = 0;
    for (size_t i = 0; out != NULL && i < *len; i++) {
        out[n++] = text[i] == '\r' ? '\n' : text[i];
        if (text[i] == '\r' && i + 1 < *len && text[i + 1] == '\n')
            i++;
    }
    if (n > 0 && out[n - 1] == '\n')
        n--;
    *len = n;
    return out;
}

void jinja_lex(struct jinja_heap *h, const char *text, size_t len, struct jinja_tokens *out)
{
    struct lexer x = {.h = h, .len = len, .out = out, .line = 1, .line_starting = true};
    x.text = normalise(h, text, &x.len);
    while (!jinja_failed(h) && x.at < x.len) {
        size_t from = x.at;
        while (x.at < x.len && !is_opening(&x, x.at))
            x.at++;
        if (x.at < x.len)
            lex_opening(&x, from);
        else
            emit_text(&x, JINJA_T_DATA, from, x.len);
    }
    emit(&x, JINJA_T_END, 0, jinja_none());
}
