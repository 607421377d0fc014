/*
 * jinja_json.c - JSON text to values of a template. The reader is our own because the core links no
 * JSON library. Whole numbers of any size, the order of keys and the marks of users' text must come
 * through, too. It is strict (RFC 8259), and its depth is the heap's.
 */
#include <stdlib.h>

#include "base/utf8.h"
#include "text/value/jinja_json.h"

struct reader {
    struct jinja_heap *h;
    const char *text;
    size_t at, len;
};

static struct jinja_value read_value(struct reader *r);

static struct jinja_value bad(struct reader *r, const char *what)
{
    jinja_fail(r->h, PITH_INVALID, "JSON: at byte %zu %s", r->at, what);
    return jinja_none();
}

static void skip_space(struct reader *r)
{
    while (r->at < r->len && (r->text[r->at] == ' ' || r->text[r->at] == '\n' ||
                              r->text[r->at] == '\t' || r->text[r->at] == '\r'))
        r->at++;
}

static bool next_is(struct reader *r, char c)
{
    if (r->at >= r->len || r->text[r->at] != c)
        return false;
    r->at++;
    return true;
}

/* ---- strings ---- */

/* Four hexadecimal digits; false where they are not there. */
static bool read_hex(struct reader *r, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        char c = r->at < r->len ? r->text[r->at] : 0;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return false;
        *out = *out * 16 + (uint32_t)digit;
    }
    return true;
}

/* Behind \u. Half of a surrogate pair is no character. */
static bool read_unicode(struct reader *r, uint32_t *out)
{
    uint32_t low;
    if (!read_hex(r, out))
        return false;
    if (*out < 0xd800 || *out > 0xdfff)
        return true;
    if (*out > 0xdbff || !next_is(r, '\\') || !next_is(r, 'u') || !read_hex(r, &low) ||
        low < 0xdc00 || low > 0xdfff)
        return false;
    *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

static bool read_escape(struct reader *r, struct jinja_buf *b)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = r->at < r->len ? r->text[r->at++] : 0;
    const char *known = c != 0 ? strchr(from, c) : NULL;
    uint32_t code;
    if (known != NULL) {
        jinja_put_bytes(b, &to[known - from], 1, true);
        return true;
    }
    if (c != 'u' || !read_unicode(r, &code))
        return false;
    jinja_put_char(b, code, true);
    return true;
}

/* Behind the quote. */
static struct jinja_value read_string(struct reader *r)
{
    struct jinja_buf b = {.h = r->h};
    size_t begin = r->at;
    for (;;) {
        size_t at = r->at;
        while (at < r->len && r->text[at] != '"' && r->text[at] != '\\' &&
               (uint8_t)r->text[at] >= 0x20)
            at++;
        if (pi_utf8_span(r->text + r->at, at - r->at) != at - r->at) {
            r->at += pi_utf8_span(r->text + r->at, at - r->at);
            return bad(r, "stands what is not UTF-8");
        }
        jinja_put_bytes(&b, r->text + r->at, at - r->at, true);
        r->at = at;
        if (next_is(r, '"'))
            break;
        if (r->at >= r->len) {
            r->at = begin;
            return bad(r, "a string begins that does not end");
        }
        if (!next_is(r, '\\'))
            return bad(r, "a string has a control character");
        if (!read_escape(r, &b))
            return bad(r, "a string has no such escape");
    }
    return b.len > 0 ? jinja_of(jinja_buf_end(&b)) : jinja_of(jinja_str_new(r->h, "", 0, true));
}

/* ---- numbers ---- */

static size_t digits(struct reader *r)
{
    size_t n = 0;
    while (r->at < r->len && r->text[r->at] >= '0' && r->text[r->at] <= '9') {
        r->at++;
        n++;
    }
    return n;
}

/* text is [-]digits. Beyond 64 bits it stays text. */
static struct jinja_value whole_number(struct reader *r, const char *text, size_t len)
{
    bool negative = text[0] == '-';
    uint64_t most = (uint64_t)INT64_MAX + negative, value = 0;
    for (size_t i = negative; i < len; i++) {
        uint64_t digit = (uint64_t)(text[i] - '0');
        if (value > (most - digit) / 10) {
            struct jinja_value big = {.kind = JINJA_BIG};
            big.u.s = jinja_str_new(r->h, text, len, false);
            return big;
        }
        value = value * 10 + digit;
    }
    return jinja_int(negative ? (int64_t)(0 - value) : (int64_t)value);
}

/* strtod gets the digits as a whole number and a power of ten: no locale has a say in those. */
static struct jinja_value real_number(struct reader *r, const char *text, size_t len)
{
    char *plain = jinja_alloc(r->h, len + 32, 1);
    size_t n = 0, i = 0;
    long fraction = 0, power = 0;
    if (plain == NULL)
        return jinja_none();
    for (bool point = false; i < len && text[i] != 'e' && text[i] != 'E'; i++) {
        if (text[i] == '.') {
            point = true;
            continue;
        }
        plain[n++] = text[i];
        fraction += point;
    }
    if (i < len) {
        bool negative = text[i + 1] == '-';
        for (i += 1 + (text[i + 1] == '-' || text[i + 1] == '+'); i < len; i++)
            power = power > 100000000 ? power : power * 10 + (text[i] - '0');
        power = negative ? -power : power;
    }
    plain[n] = 'e';
    power -= fraction;
    char *at = plain + n + 1;
    if (power < 0)
        *at++ = '-';
    for (long rest = power < 0 ? -power : power, unit = 1000000000; unit > 0; unit /= 10)
        *at++ = (char)('0' + rest / unit % 10);
    return jinja_float(strtod(plain, NULL));
}

/* A float that would print otherwise keeps its text, so that the digits of a history stay. */
static void keep_text(struct reader *r, struct jinja_value *v, const char *text, size_t len)
{
    char printed[64];
    struct jinja_heap *h = r->h;
    jinja_print_float(v->u.f, printed);
    if ((strlen(printed) == len && memcmp(printed, text, len) == 0) || jinja_failed(h))
        return;
    if (h->n_written == h->cap_written) {
        uint32_t cap = h->cap_written > 0 ? 2 * h->cap_written : 16;
        const struct jinja_str **list = jinja_alloc(h, cap, sizeof(*list));
        if (list == NULL)
            return;
        if (h->n_written > 0)
            memcpy(list, h->written, h->n_written * sizeof(*list));
        h->written = list;
        h->cap_written = cap;
    }
    const struct jinja_str *s = jinja_str_new(h, text, len, false);
    if (s == NULL)
        return;
    h->written[h->n_written++] = s;
    v->as = h->n_written;
}

static struct jinja_value read_number(struct reader *r)
{
    size_t begin = r->at;
    bool whole = true;
    next_is(r, '-');
    bool zero = r->at < r->len && r->text[r->at] == '0';
    size_t n = digits(r);
    if (n == 0 || (zero && n > 1))
        return bad(r, "stands what is no JSON");
    if (next_is(r, '.')) {
        whole = false;
        if (digits(r) == 0)
            return bad(r, "a number lacks digits");
    }
    if (next_is(r, 'e') || next_is(r, 'E')) {
        whole = false;
        if (!next_is(r, '-'))
            next_is(r, '+');
        if (digits(r) == 0)
            return bad(r, "a number lacks digits");
    }
    const char *text = r->text + begin;
    size_t len = r->at - begin;
    if (whole)
        return whole_number(r, text, len);
    struct jinja_value v = real_number(r, text, len);
    keep_text(r, &v, text, len);
    return v;
}

/* ---- lists and objects ---- */

static struct jinja_value read_list(struct reader *r)
{
    struct jinja_value list = jinja_list_new(r->h, JINJA_LIST, 0);
    skip_space(r);
    if (next_is(r, ']'))
        return list;
    while (!jinja_failed(r->h)) {
        jinja_list_add(r->h, list, read_value(r));
        skip_space(r);
        if (next_is(r, ']'))
            break;
        if (!next_is(r, ','))
            return bad(r, "a list lacks a comma or its end");
    }
    return list;
}

static struct jinja_value read_object(struct reader *r)
{
    struct jinja_value dict = jinja_dict_new(r->h);
    skip_space(r);
    if (next_is(r, '}'))
        return dict;
    while (!jinja_failed(r->h)) {
        skip_space(r);
        if (!next_is(r, '"'))
            return bad(r, "an object lacks a key");
        struct jinja_value key = read_string(r);
        skip_space(r);
        if (!next_is(r, ':'))
            return bad(r, "a key lacks its colon");
        struct jinja_value value = read_value(r);
        if (jinja_failed(r->h))
            break;
        jinja_dict_set(r->h, dict.u.dict, key, value);
        skip_space(r);
        if (next_is(r, '}'))
            break;
        if (!next_is(r, ','))
            return bad(r, "an object lacks a comma or its end");
    }
    return dict;
}

static struct jinja_value read_word(struct reader *r)
{
    static const char *const words[] = {"null", "true", "false"};
    for (size_t i = 0; i < PI_LEN(words); i++) {
        size_t len = strlen(words[i]);
        if (r->len - r->at < len || memcmp(r->text + r->at, words[i], len) != 0)
            continue;
        r->at += len;
        return i == 0 ? jinja_none() : jinja_bool(i == 1);
    }
    return read_number(r);
}

static struct jinja_value read_value(struct reader *r)
{
    struct jinja_value v;
    skip_space(r);
    if (!jinja_charge(r->h, 1) || !jinja_enter(r->h))
        return jinja_none();
    if (next_is(r, '"'))
        v = read_string(r);
    else if (next_is(r, '['))
        v = read_list(r);
    else if (next_is(r, '{'))
        v = read_object(r);
    else
        v = read_word(r);
    jinja_leave(r->h);
    return v;
}

struct jinja_value jinja_json_read(struct jinja_heap *h, const char *text, size_t len)
{
    struct reader r = {.h = h, .text = text, .len = len};
    struct jinja_value v = read_value(&r);
    skip_space(&r);
    if (r.at < r.len)
        bad(&r, "something follows the value");
    return v;
}
