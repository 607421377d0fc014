/*
 * jinja_str.c - strings of templates and text that grows. It keeps the marks: every byte of a new
 * string is a user's byte exactly where the byte it came from was.
 */
#include "base/utf8.h"
#include "text/value/jinja_value.h"

static const struct jinja_str empty = {.data = ""};

const struct jinja_str *jinja_str_new(struct jinja_heap *h, const char *data, size_t len,
                                      bool from_user)
{
    struct jinja_str *s = jinja_alloc(h, 1, sizeof(*s));
    char *copy = jinja_alloc(h, len, 1);
    if (s == NULL || copy == NULL)
        return &empty;
    if (len > 0)
        memcpy(copy, data, len);
    *s = (struct jinja_str){.data = copy, .len = len, .from_user = from_user};
    return s;
}

const struct jinja_str *jinja_str_static(struct jinja_heap *h, const char *text)
{
    struct jinja_str *s = jinja_alloc(h, 1, sizeof(*s));
    if (s == NULL)
        return &empty;
    *s = (struct jinja_str){.data = text, .len = strlen(text)};
    return s;
}

struct jinja_value jinja_text(struct jinja_heap *h, const char *text)
{
    return jinja_of(jinja_str_new(h, text, strlen(text), false));
}

const struct jinja_str *jinja_str_cut(struct jinja_heap *h, const struct jinja_str *s, size_t from,
                                      size_t to)
{
    if (from == 0 && to == s->len)
        return s;
    struct jinja_str *cut = jinja_alloc(h, 1, sizeof(*cut));
    if (cut == NULL)
        return &empty;
    *cut = *s;
    cut->data += from;
    cut->len = to - from;
    if (s->user != NULL)
        cut->user += from;
    return cut;
}

bool jinja_str_equal(const struct jinja_str *a, const struct jinja_str *b)
{
    return a == b || (a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0));
}

bool jinja_str_is(const struct jinja_str *s, const char *text)
{
    if (s->len > 0 && s->data[0] != text[0]) /* tables are searched with it */
        return false;
    return s->len == strlen(text) && memcmp(s->data, text, s->len) == 0;
}

size_t jinja_str_find(struct jinja_heap *h, const struct jinja_str *s, const struct jinja_str *part,
                      size_t from)
{
    if (from > s->len || part->len > s->len - from)
        return SIZE_MAX;
    if (part->len == 0)
        return from;
    size_t last = s->len - part->len, begin = from, compared = 0;
    while (from <= last) {
        const char *at = memchr(s->data + from, part->data[0], last - from + 1);
        if (at == NULL)
            break;
        from = (size_t)(at - s->data);
        compared += part->len;
        if (memcmp(at, part->data, part->len) == 0) {
            jinja_charge(h, (from - begin + compared) / 64);
            return from;
        }
        from++;
        if (compared > 1 << 16) { /* a text of many near matches */
            if (!jinja_charge(h, compared / 64))
                return SIZE_MAX;
            compared = 0;
        }
    }
    jinja_charge(h, (s->len - begin + compared) / 64);
    return SIZE_MAX;
}

static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t jinja_space_begin(const char *data, size_t len)
{
    size_t at = 0;
    while (at < len) {
        struct pi_utf8_char c = pi_utf8_next(data + at, len - at);
        if (!c.valid || !is_space(pi_utf8_decode(data + at, c.len)))
            break;
        at += c.len;
    }
    return at;
}

size_t jinja_space_end(const char *data, size_t len)
{
    while (len > 0) {
        size_t n = 1; /* back to where a character begins */
        while (n < 4 && n < len && ((uint8_t)data[len - n] & 0xc0) == 0x80)
            n++;
        struct pi_utf8_char c = pi_utf8_next(data + len - n, n);
        if (!c.valid || c.len != n || !is_space(pi_utf8_decode(data + len - n, n)))
            break;
        len -= n;
    }
    return len;
}

size_t jinja_str_count(const struct jinja_str *s)
{
    size_t n = 0;
    for (size_t at = 0; at < s->len; n++)
        at += (uint8_t)s->data[at] < 0x80 ? 1 : pi_utf8_next(s->data + at, s->len - at).len;
    return n;
}

size_t jinja_str_offset(const struct jinja_str *s, size_t i)
{
    size_t at = 0;
    while (at < s->len && i-- > 0)
        at += (uint8_t)s->data[at] < 0x80 ? 1 : pi_utf8_next(s->data + at, s->len - at).len;
    return at;
}

const struct jinja_str *jinja_str_safe(struct jinja_heap *h, const struct jinja_str *s, bool safe)
{
    if (s->markup == safe)
        return s;
    struct jinja_str *copy = jinja_alloc(h, 1, sizeof(*copy));
    if (copy == NULL)
        return &empty;
    *copy = *s;
    copy->markup = safe;
    return copy;
}

const struct jinja_str *jinja_str_escape(struct jinja_heap *h, const struct jinja_str *s)
{
    if (s->markup)
        return s;
    struct jinja_buf b = {.h = h};
    size_t done = 0;
    for (size_t i = 0; i < s->len; i++) {
        const char *entity = NULL;
        switch (s->data[i]) {
        case '&':
            entity = "&amp;";
            break;
        case '<':
            entity = "&lt;";
            break;
        case '>':
            entity = "&gt;";
            break;
        case '\'':
            entity = "&#39;";
            break;
        case '"':
            entity = "&#34;";
            break;
        default:
            continue;
        }
        jinja_put(&b, jinja_str_cut(h, s, done, i));
        jinja_put_bytes(&b, entity, strlen(entity), jinja_str_user(s, i));
        done = i + 1;
    }
    jinja_put(&b, jinja_str_cut(h, s, done, s->len));
    return jinja_str_safe(h, jinja_buf_end(&b), true);
}

/* ---- text that grows ---- */

/* Room for n more bytes; false where there is none. */
static bool reserve(struct jinja_buf *b, size_t n)
{
    if (jinja_failed(b->h))
        return false;
    if (b->limit > 0 && n > b->limit - b->len) {
        jinja_fail(b->h, PITH_INVALID, "chat template: its text is above the limit of %zu bytes",
                   b->limit);
        return false;
    }
    if (n <= b->cap - b->len)
        return true;
    size_t cap = b->cap < 32 ? 64 : 2 * b->cap;
    if (cap < b->len + n)
        cap = b->len + n;
    char *data = jinja_alloc(b->h, cap, 1);
    uint8_t *user = b->user != NULL ? jinja_alloc(b->h, cap, 1) : NULL;
    if (data == NULL || (b->user != NULL && user == NULL))
        return false;
    if (b->len > 0)
        memcpy(data, b->data, b->len);
    if (user != NULL)
        memcpy(user, b->user, b->len);
    b->data = data;
    b->user = user;
    b->cap = cap;
    return true;
}

/* Marks per byte from now on. */
static bool split_marks(struct jinja_buf *b)
{
    if (b->user != NULL)
        return true;
    b->user = jinja_alloc(b->h, b->cap, 1);
    if (b->user != NULL)
        memset(b->user, b->from_user, b->len);
    return b->user != NULL;
}

void jinja_put(struct jinja_buf *b, const struct jinja_str *s)
{
    if (s->len == 0 || !jinja_charge(b->h, s->len / 64) || !reserve(b, s->len))
        return;
    if (b->len == 0 && b->user == NULL)
        b->from_user = s->from_user;
    if ((s->user != NULL || s->from_user != b->from_user) && !split_marks(b))
        return;
    memcpy(b->data + b->len, s->data, s->len);
    if (b->user != NULL && s->user != NULL)
        memcpy(b->user + b->len, s->user, s->len);
    else if (b->user != NULL)
        memset(b->user + b->len, s->from_user, s->len);
    b->len += s->len;
}

void jinja_put_bytes(struct jinja_buf *b, const char *data, size_t len, bool from_user)
{
    const struct jinja_str s = {.data = data, .len = len, .from_user = from_user};
    jinja_put(b, &s);
}

void jinja_put_text(struct jinja_buf *b, const char *text)
{
    jinja_put_bytes(b, text, strlen(text), false);
}

void jinja_put_char(struct jinja_buf *b, uint32_t c, bool from_user)
{
    char bytes[4];
    jinja_put_bytes(b, bytes, pi_utf8_encode(c, bytes), from_user);
}

const struct jinja_str *jinja_buf_end(struct jinja_buf *b)
{
    struct jinja_str *s = b->len > 0 ? jinja_alloc(b->h, 1, sizeof(*s)) : NULL;
    if (s == NULL)
        return &empty;
    *s = (struct jinja_str){b->data, b->len, b->user, b->from_user, false};
    return s;
}
