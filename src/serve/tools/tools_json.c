/*
 * tools_json.c - the automaton behind tools_json.h: RFC 8259 with a stack of bits, UTF-8 and
 * surrogate pairs checked. Any reader of JSON takes the text that it lets through.
 */
#include "serve/tools/tools_json.h"

#include <stdio.h>

static bool is_space(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
static bool is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

static enum tools_json_result to(struct tools_json *j, enum tools_json_state state)
{
    j->state = state;
    return TOOLS_JSON_MORE;
}

/* A value has ended. */
static enum tools_json_result ended(struct tools_json *j)
{
    j->state = TOOLS_JSON_AFTER;
    return j->depth == 0 ? TOOLS_JSON_DONE : TOOLS_JSON_MORE;
}

static enum tools_json_result open(struct tools_json *j, bool object)
{
    if (j->depth == TOOLS_JSON_DEPTH)
        return TOOLS_JSON_BAD;
    j->is_object[j->depth++] = object;
    return to(j, object ? TOOLS_JSON_KEY_OR_END : TOOLS_JSON_VALUE_OR_END);
}

static enum tools_json_result close(struct tools_json *j, bool object)
{
    if (j->depth == 0 || j->is_object[j->depth - 1] != object)
        return TOOLS_JSON_BAD;
    j->depth--;
    return ended(j);
}

static enum tools_json_result begin_string(struct tools_json *j, bool key)
{
    j->in_key = key;
    return to(j, TOOLS_JSON_STRING);
}

static enum tools_json_result begin_literal(struct tools_json *j, const char *rest)
{
    j->literal = rest;
    return to(j, TOOLS_JSON_LITERAL);
}

static enum tools_json_result begin_value(struct tools_json *j, uint8_t c)
{
    if (c == '{' || c == '[')
        return open(j, c == '{');
    if (c == '"')
        return begin_string(j, false);
    if (j->depth == 0) /* a number's end would only show behind it */
        return TOOLS_JSON_BAD;
    if (c == 't')
        return begin_literal(j, "rue");
    if (c == 'f')
        return begin_literal(j, "alse");
    if (c == 'n')
        return begin_literal(j, "ull");
    if (c == '-')
        return to(j, TOOLS_JSON_MINUS);
    if (is_digit(c))
        return to(j, c == '0' ? TOOLS_JSON_ZERO : TOOLS_JSON_INT);
    return TOOLS_JSON_BAD;
}

static enum tools_json_result after_value(struct tools_json *j, uint8_t c)
{
    if (is_space(c))
        return to(j, TOOLS_JSON_AFTER);
    if (c == '}' || c == ']')
        return close(j, c == '}');
    if (c != ',' || j->depth == 0)
        return TOOLS_JSON_BAD;
    return to(j, j->is_object[j->depth - 1] ? TOOLS_JSON_KEY : TOOLS_JSON_VALUE);
}

/* The first byte of a character of several (Unicode standard, table 3-7). */
static enum tools_json_result begin_character(struct tools_json *j, uint8_t c)
{
    if (c < 0xc2 || c > 0xf4)
        return TOOLS_JSON_BAD;
    j->n_more = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    j->lo = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    j->hi = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    return TOOLS_JSON_MORE;
}

static enum tools_json_result in_string(struct tools_json *j, uint8_t c)
{
    if (j->n_more > 0) {
        if (c < j->lo || c > j->hi)
            return TOOLS_JSON_BAD;
        j->n_more--;
        j->lo = 0x80;
        j->hi = 0xbf;
        return TOOLS_JSON_MORE;
    }
    if (c >= 0x80)
        return begin_character(j, c);
    if (c == '\\')
        return to(j, TOOLS_JSON_ESCAPE);
    if (c != '"')
        return TOOLS_JSON_MORE;
    return j->in_key ? to(j, TOOLS_JSON_COLON) : ended(j);
}

static enum tools_json_result escaped(struct tools_json *j, uint8_t c)
{
    if (c == 'u') {
        j->n_hex = 0;
        j->hex = 0;
        return to(j, TOOLS_JSON_HEX);
    }
    if (c == 0 || strchr("\"\\/bfnrt", c) == NULL)
        return TOOLS_JSON_BAD;
    return to(j, TOOLS_JSON_STRING);
}

static enum tools_json_result hex_digit(struct tools_json *j, uint8_t c)
{
    uint8_t lower = c | 0x20;
    if (!is_digit(c) && (lower < 'a' || lower > 'f'))
        return TOOLS_JSON_BAD;
    j->hex = j->hex * 16 + (is_digit(c) ? c - '0' : lower - 'a' + 10);
    if (++j->n_hex < 4)
        return TOOLS_JSON_MORE;
    bool high = j->hex >= 0xd800 && j->hex < 0xdc00;
    bool low = j->hex >= 0xdc00 && j->hex < 0xe000;
    if (low != j->low_due)
        return TOOLS_JSON_BAD;
    j->low_due = high;
    j->low_u = false;
    return to(j, high ? TOOLS_JSON_LOW : TOOLS_JSON_STRING);
}

static enum tools_json_result low_half(struct tools_json *j, uint8_t c)
{
    if (c != (j->low_u ? 'u' : '\\'))
        return TOOLS_JSON_BAD;
    if (j->low_u)
        return escaped(j, c);
    j->low_u = true;
    return TOOLS_JSON_MORE;
}

/* A byte of a number; one that is none of it ends it and is looked at again. */
static enum tools_json_result in_number(struct tools_json *j, uint8_t c)
{
    enum tools_json_state s = j->state;
    bool whole = s == TOOLS_JSON_ZERO || s == TOOLS_JSON_INT;
    if (is_digit(c) && s != TOOLS_JSON_ZERO) {
        if (s == TOOLS_JSON_MINUS)
            return to(j, c == '0' ? TOOLS_JSON_ZERO : TOOLS_JSON_INT);
        if (s == TOOLS_JSON_POINT)
            return to(j, TOOLS_JSON_FRACTION);
        if (s == TOOLS_JSON_E || s == TOOLS_JSON_SIGN)
            return to(j, TOOLS_JSON_EXPONENT);
        return TOOLS_JSON_MORE;
    }
    if (c == '.' && whole)
        return to(j, TOOLS_JSON_POINT);
    if ((c == 'e' || c == 'E') && (whole || s == TOOLS_JSON_FRACTION))
        return to(j, TOOLS_JSON_E);
    if ((c == '+' || c == '-') && s == TOOLS_JSON_E)
        return to(j, TOOLS_JSON_SIGN);
    if (!whole && s != TOOLS_JSON_FRACTION && s != TOOLS_JSON_EXPONENT)
        return TOOLS_JSON_BAD;
    return after_value(j, c);
}

static enum tools_json_result between(struct tools_json *j, uint8_t c)
{
    if (is_space(c))
        return TOOLS_JSON_MORE;
    switch (j->state) {
    case TOOLS_JSON_VALUE_OR_END:
        return c == ']' ? close(j, false) : begin_value(j, c);
    case TOOLS_JSON_KEY_OR_END:
        if (c == '}')
            return close(j, true);
        return c == '"' ? begin_string(j, true) : TOOLS_JSON_BAD;
    case TOOLS_JSON_KEY:
        return c == '"' ? begin_string(j, true) : TOOLS_JSON_BAD;
    case TOOLS_JSON_COLON:
        return c == ':' ? to(j, TOOLS_JSON_VALUE) : TOOLS_JSON_BAD;
    default:
        return begin_value(j, c);
    }
}

enum tools_json_result tools_json_step(struct tools_json *j, uint8_t c)
{
    switch (j->state) {
    case TOOLS_JSON_STRING:
        return in_string(j, c);
    case TOOLS_JSON_ESCAPE:
        return escaped(j, c);
    case TOOLS_JSON_HEX:
        return hex_digit(j, c);
    case TOOLS_JSON_LOW:
        return low_half(j, c);
    case TOOLS_JSON_LITERAL:
        if (c != (uint8_t)*j->literal)
            return TOOLS_JSON_BAD;
        return *++j->literal == 0 ? ended(j) : TOOLS_JSON_MORE;
    case TOOLS_JSON_AFTER:
        return after_value(j, c);
    default:
        return j->state >= TOOLS_JSON_MINUS ? in_number(j, c) : between(j, c);
    }
}

size_t tools_json_escape(uint8_t c, char out[8])
{
    static const char names[] = "\bb\ff\nn\rr\tt\"\"\\\\";
    for (size_t i = 0; i + 1 < sizeof names; i += 2)
        if ((uint8_t)names[i] == c) {
            out[0] = '\\';
            out[1] = names[i + 1];
            return 2;
        }
    if (c < 0x20)
        return (size_t)snprintf(out, 8, "\\u%04x", (unsigned)c);
    out[0] = (char)c;
    return 1;
}

bool tools_json_is_object(const char *text, size_t len)
{
    struct tools_json j = {0};
    size_t i = 0;
    while (i < len && is_space((uint8_t)text[i]))
        i++;
    if (i == len || text[i] != '{')
        return false;
    enum tools_json_result r = TOOLS_JSON_MORE;
    for (; i < len && r == TOOLS_JSON_MORE; i++)
        r = tools_json_bare(&j, (uint8_t)text[i]) ? TOOLS_JSON_BAD
                                                  : tools_json_step(&j, (uint8_t)text[i]);
    while (i < len && is_space((uint8_t)text[i]))
        i++;
    return r == TOOLS_JSON_DONE && i == len;
}
