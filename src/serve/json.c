/*
 * json.c - numbers that Jansson has no room for, kept by their text (json.h). Jansson alone decides
 * which text is JSON. Before it reads, such numbers are made strings that begin with U+0000 and an
 * n. Strings that begin with U+0000 themselves get an s behind it, so that no text can pass for a
 * number. Both are restored after Jansson has read them. Also how a sentence names a value.
 *
 * Invariant: a table holds a reference to each of its values, so that no other value can come to
 * stand at the same address.
 */
#include "serve/json.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

#define SHOWN_CHARS 40

/* ---- memory ---- */

/* Jansson's, so that it counts where Jansson's is counted. */
static void *alloc_block(size_t size)
{
    json_malloc_t alloc;
    json_free_t release;
    json_get_alloc_funcs(&alloc, &release);
    return alloc(size);
}

static void free_block(void *block)
{
    json_malloc_t alloc;
    json_free_t release;
    json_get_alloc_funcs(&alloc, &release);
    if (block != NULL)
        release(block);
}

/* ---- the table ---- */

struct serve_number {
    json_t *value; /* a reference; NULL: free */
    char *digits;  /* owned, terminated */
};

void serve_numbers_free(struct serve_numbers *numbers)
{
    for (size_t i = 0; i < numbers->cap; i++) {
        json_decref(numbers->slot[i].value);
        free_block(numbers->slot[i].digits);
    }
    free_block(numbers->slot);
    *numbers = (struct serve_numbers){0};
}

static struct serve_number *find(const struct serve_numbers *numbers, const json_t *value)
{
    uint64_t hash = (uint64_t)(uintptr_t)value * UINT64_C(0x9e3779b97f4a7c15);
    size_t i = (size_t)(hash >> 32) & (numbers->cap - 1);
    while (numbers->slot[i].value != NULL && numbers->slot[i].value != value)
        i = (i + 1) & (numbers->cap - 1);
    return &numbers->slot[i];
}

static bool make_room(struct serve_numbers *numbers)
{
    struct serve_numbers grown = {
        .n = numbers->n, .cap = numbers->cap > 0 ? 2 * numbers->cap : 16, .more = numbers->more};
    if (2 * (numbers->n + 1) <= numbers->cap)
        return true;
    grown.slot = alloc_block(grown.cap * sizeof(*grown.slot));
    if (grown.slot == NULL)
        return false;
    memset(grown.slot, 0, grown.cap * sizeof(*grown.slot));
    for (size_t i = 0; i < numbers->cap; i++)
        if (numbers->slot[i].value != NULL)
            *find(&grown, numbers->slot[i].value) = numbers->slot[i];
    free_block(numbers->slot);
    *numbers = grown;
    return true;
}

/* The nearest double; beyond the largest one, that. */
static json_t *nearest(const char *digits, size_t len)
{
    json_t *value = json_loadb(digits, len, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL);
    return value != NULL ? value : json_real(digits[0] == '-' ? -DBL_MAX : DBL_MAX);
}

json_t *serve_json_number(struct serve_numbers *numbers, const char *digits, size_t len)
{
    json_t *value = make_room(numbers) ? nearest(digits, len) : NULL;
    char *copy = value != NULL ? alloc_block(len + 1) : NULL;
    if (copy == NULL) {
        json_decref(value);
        return NULL;
    }
    memcpy(copy, digits, len);
    copy[len] = '\0';
    *find(numbers, value) = (struct serve_number){json_incref(value), copy};
    numbers->n++;
    return value;
}

const char *serve_json_digits(const struct serve_numbers *numbers, const json_t *value)
{
    const char *digits = NULL;
    for (; numbers != NULL && digits == NULL && json_is_real(value); numbers = numbers->more)
        digits = numbers->n > 0 ? find(numbers, value)->digits : NULL;
    return digits;
}

/* ---- which numbers ---- */

static size_t digits_at(const char *text, size_t len, size_t at)
{
    size_t n = 0;
    while (at + n < len && text[at + n] >= '0' && text[at + n] <= '9')
        n++;
    return n;
}

/* Whether text is a number as JSON writes them; *whole: without point and exponent. */
static bool is_number(const char *text, size_t len, bool *whole)
{
    size_t at = len > 0 && text[0] == '-', n = digits_at(text, len, at);
    if (n == 0 || (n > 1 && text[at] == '0'))
        return false;
    at += n;
    *whole = at == len;
    if (at < len && text[at] == '.') {
        n = digits_at(text, len, ++at);
        if (n == 0)
            return false;
        at += n;
    }
    if (at < len && (text[at] == 'e' || text[at] == 'E')) {
        at++;
        at += at < len && (text[at] == '+' || text[at] == '-');
        n = digits_at(text, len, at);
        if (n == 0)
            return false;
        at += n;
    }
    return at == len;
}

/* Whether Jansson would write another text: all but whole numbers of 64 bits. */
static bool is_kept(const char *text, size_t len)
{
    static const char most[] = "9223372036854775807", least[] = "9223372036854775808";
    bool whole, minus = text[0] == '-';
    size_t n = len - minus;
    if (!is_number(text, len, &whole))
        return false;
    if (!whole || (minus && text[1] == '0'))
        return true;
    return n > 19 || (n == 19 && memcmp(text + minus, minus ? least : most, 19) > 0);
}

/* ---- before Jansson reads ---- */

struct text {
    char *data; /* owned */
    size_t len, cap;
    bool no_memory;
};

static void add(struct text *t, const char *data, size_t len)
{
    if (t->cap - t->len < len) {
        size_t cap = t->cap + t->cap / 2 + len + 256;
        char *grown = t->no_memory ? NULL : realloc(t->data, cap);
        t->no_memory = grown == NULL;
        if (t->no_memory)
            return;
        t->data = grown;
        t->cap = cap;
    }
    memcpy(t->data + t->len, data, len);
    t->len += len;
}

/* Bytes of the string that begins at text[0], with its quotes, or all where it does not end. */
static size_t string_len(const char *text, size_t len)
{
    size_t at = 1;
    while (at < len && text[at] != '"')
        at += text[at] == '\\' ? 2 : 1;
    return at < len ? at + 1 : len;
}

/* Bytes of a number or a word. */
static size_t word_len(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && ((text[n] >= '0' && text[n] <= '9') || text[n] == '-' || text[n] == '+' ||
                       text[n] == '.' || (text[n] >= 'a' && text[n] <= 'z') ||
                       (text[n] >= 'A' && text[n] <= 'Z')))
        n++;
    return n;
}

static const char zero[] = "\"\\u0000";
static const size_t n_zero = sizeof(zero) - 1;

/* Bytes of the text with marks; 0: no number of it is kept. */
static size_t marked_len(const char *text, size_t len)
{
    size_t sum = len;
    bool any = false;
    for (size_t at = 0; at < len;) {
        bool string = text[at] == '"';
        size_t n = string ? string_len(text + at, len - at) : word_len(text + at, len - at);
        bool kept = !string && n > 0 && is_kept(text + at, n);
        any = any || kept;
        sum += kept                                                           ? n_zero + 2
               : string && n > n_zero && memcmp(text + at, zero, n_zero) == 0 ? 1
                                                                              : 0;
        at += n > 0 ? n : 1;
    }
    return any ? sum : 0;
}

static void mark(const char *text, size_t len, struct text *out)
{
    for (size_t at = 0; at < len && !out->no_memory;) {
        bool string = text[at] == '"';
        size_t n = string ? string_len(text + at, len - at) : word_len(text + at, len - at);
        if (string && n > n_zero && memcmp(text + at, zero, n_zero) == 0) {
            add(out, zero, n_zero);
            add(out, "s", 1);
            add(out, text + at + n_zero, n - n_zero);
        } else if (!string && n > 0 && is_kept(text + at, n)) {
            add(out, zero, n_zero);
            add(out, "n", 1);
            add(out, text + at, n);
            add(out, "\"", 1);
        } else {
            n = n > 0 ? n : 1;
            add(out, text + at, n);
        }
        at += n;
    }
}

/* ---- behind it ---- */

/* The value that a marked string stands for: a new reference. NULL: no memory. */
static json_t *unmarked(struct serve_numbers *numbers, const json_t *string)
{
    const char *text = json_string_value(string);
    size_t len = json_string_length(string);
    if (text[1] == 'n')
        return serve_json_number(numbers, text + 2, len - 2);
    char *whole = alloc_block(len);
    if (whole == NULL)
        return NULL;
    whole[0] = '\0';
    memcpy(whole + 1, text + 2, len - 2);
    json_t *value = json_stringn_nocheck(whole, len - 1);
    free_block(whole);
    return value;
}

static bool is_marked(const json_t *value)
{
    return json_is_string(value) && json_string_length(value) > 0 &&
           json_string_value(value)[0] == '\0';
}

/* As deep as Jansson reads. */
static bool unmark(struct serve_numbers *numbers, json_t *value)
{
    bool ok = true;
    for (size_t i = 0; i < json_array_size(value) && ok; i++) {
        json_t *item = json_array_get(value, i);
        ok = is_marked(item) ? json_array_set_new(value, i, unmarked(numbers, item)) == 0
                             : unmark(numbers, item);
    }
    void *at = json_is_object(value) ? json_object_iter(value) : NULL;
    for (; at != NULL && ok; at = json_object_iter_next(value, at)) {
        json_t *item = json_object_iter_value(at);
        ok = is_marked(item) ? json_object_iter_set_new(value, at, unmarked(numbers, item)) == 0
                             : unmark(numbers, item);
    }
    return ok;
}

json_t *serve_json_load(struct serve_numbers *numbers, const char *text, size_t len, size_t flags,
                        json_error_t *error)
{
    struct text marked = {0};
    size_t order = pi_utf8_mark(text, len); /* a byte order mark */
    text += order;
    len -= order;
    marked.cap = marked_len(text, len);
    if (marked.cap == 0)
        return json_loadb(text, len, flags, error);
    marked.data = alloc_block(marked.cap); /* all that it comes to need */
    marked.no_memory = marked.data == NULL;
    mark(text, len, &marked);
    json_t *value = marked.no_memory
                        ? NULL
                        : json_loadb(marked.data, marked.len, flags | JSON_ALLOW_NUL, error);
    bool failed = value == NULL && !marked.no_memory;
    free_block(marked.data);
    if (failed) /* what is wrong is told of the text as it came */
        return json_loadb(text, len, flags, error);
    if (is_marked(value)) {
        json_t *root = unmarked(numbers, value);
        json_decref(value);
        return root;
    }
    if (value != NULL && !unmark(numbers, value)) {
        json_decref(value);
        return NULL;
    }
    return value;
}

/* ---- writing ---- */

struct writer {
    const struct serve_numbers *numbers;
    bool compact;
    json_dump_callback_t fn;
    void *user;
};

static bool put(struct writer *w, const char *text)
{
    return w->fn(text, strlen(text), w->user) == 0;
}

static bool write_value(struct writer *w, const json_t *value);

static bool write_array(struct writer *w, const json_t *value)
{
    bool ok = put(w, "[");
    for (size_t i = 0; i < json_array_size(value) && ok; i++)
        ok =
            (i == 0 || put(w, w->compact ? "," : ", ")) && write_value(w, json_array_get(value, i));
    return ok && put(w, "]");
}

static bool write_object(struct writer *w, json_t *value)
{
    bool ok = put(w, "{");
    void *first = json_object_iter(value);
    for (void *at = first; at != NULL && ok; at = json_object_iter_next(value, at)) {
        json_t *key = json_string_nocheck(json_object_iter_key(at));
        ok = key != NULL && (at == first || put(w, w->compact ? "," : ", ")) &&
             json_dump_callback(key, w->fn, w->user, JSON_ENCODE_ANY) == 0 &&
             put(w, w->compact ? ":" : ": ") && write_value(w, json_object_iter_value(at));
        json_decref(key);
    }
    return ok && put(w, "}");
}

/* As deep as Jansson reads, and what was put around it. */
static bool write_value(struct writer *w, const json_t *value)
{
    const char *digits = serve_json_digits(w->numbers, value);
    if (digits != NULL)
        return put(w, digits);
    if (json_is_array(value))
        return write_array(w, value);
    if (json_is_object(value))
        return write_object(w, (json_t *)value);
    return json_dump_callback(value, w->fn, w->user, JSON_ENCODE_ANY) == 0;
}

bool serve_json_write(const struct serve_numbers *numbers, const json_t *value, size_t flags,
                      json_dump_callback_t fn, void *user)
{
    struct writer w = {numbers, (flags & JSON_COMPACT) != 0, fn, user};
    if (value == NULL)
        return false;
    if (numbers == NULL || (numbers->n == 0 && numbers->more == NULL))
        return json_dump_callback(value, fn, user, flags | JSON_ENCODE_ANY) == 0;
    return write_value(&w, value);
}

static int add_text(const char *data, size_t len, void *user)
{
    struct text *out = user;
    add(out, data, len);
    return out->no_memory ? -1 : 0;
}

char *serve_json_dump(const struct serve_numbers *numbers, const json_t *value, size_t flags)
{
    struct text out = {0};
    if (serve_json_write(numbers, value, flags, add_text, &out))
        add_text("", 1, &out); /* the end */
    else
        out.no_memory = true;
    if (!out.no_memory)
        return out.data;
    free(out.data);
    return NULL;
}

bool serve_json_is_value(const char *text, size_t len)
{
    struct serve_numbers numbers = {0};
    json_t *value = serve_json_load(&numbers, text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    bool is = value != NULL;
    json_decref(value);
    serve_numbers_free(&numbers);
    return is;
}

/* ---- sentences ---- */

const char *serve_show_text(const char *text, size_t len, char *buf)
{
    size_t n = len < SHOWN_CHARS ? len : SHOWN_CHARS;
    while (n > 0 && n < len && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--; /* not within a character */
    for (size_t i = 0; i < n; i++)
        buf[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? ' ' : text[i];
    snprintf(buf + n, SERVE_SHOW - n, "%s", n < len ? "..." : "");
    return buf;
}

const char *serve_show(const json_t *value, char *buf)
{
    char text[SERVE_SHOW];
    if (value == NULL)
        return memcpy(buf, "nothing", 8);
    switch (json_typeof(value)) {
    case JSON_STRING:
        serve_show_text(json_string_value(value), json_string_length(value), text);
        snprintf(buf, SERVE_SHOW, "\"%.*s\"", SERVE_SHOW - 3, text);
        break;
    case JSON_INTEGER:
        snprintf(buf, SERVE_SHOW, "%lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        snprintf(buf, SERVE_SHOW, "%.17g", json_real_value(value));
        break;
    case JSON_ARRAY:
        snprintf(buf, SERVE_SHOW, "an array of %zu", json_array_size(value));
        break;
    case JSON_OBJECT:
        snprintf(buf, SERVE_SHOW, "an object");
        break;
    default:
        snprintf(buf, SERVE_SHOW, "%s",
                 json_is_true(value)    ? "true"
                 : json_is_false(value) ? "false"
                                        : "null");
    }
    return buf;
}
