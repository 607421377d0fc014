/*
 * events_pack.c - msgpack by hand, of the shapes that events have. An event is an array with its
 * type first:
 *
 *   ["BlockStored", hashes, parent's hash or nil, tokens, page length, nil, nil]
 *   ["BlockRemoved", hashes, nil]
 *   ["AllBlocksCleared"]
 *
 * The last nil of an event is the medium: the memory that the engine computes in, whichever it is.
 * "CPU" means what was put aside from there. llm-d counts it for less, and Dynamo keeps it apart.
 *
 * Records are all of one size, so that the n-th is found at once.
 */
#include "events_pack.h"

#include <string.h>

struct record {
    pith_prefix_change change;
    bool first;
    uint64_t hash;
    uint64_t parent;
};

struct list {
    const char *data;
    size_t size; /* of a record and its tokens */
    size_t n;
    int32_t page_len;
};

/* A lack of memory is told at the end. */
struct writer {
    struct serve_bytes *out;
    bool failed;
};

bool pack_add(struct serve_bytes *records, const pith_prefix_event *event)
{
    struct record r = {event->change, event->first, event->hash, event->parent};
    static const int32_t none = 0;
    size_t before = records->len;
    bool ok = serve_bytes_add(records, (const char *)&r, sizeof(r));
    for (int32_t i = 0; ok && i < event->page_len; i++)
        ok = serve_bytes_add(records, (const char *)(event->tokens ? &event->tokens[i] : &none),
                             sizeof(none));
    if (!ok)
        records->len = before;
    return ok;
}

/* ---- msgpack ---- */

static void put(struct writer *w, const void *data, size_t len)
{
    w->failed = !serve_bytes_add(w->out, data, len) || w->failed;
}

/* A byte that says the type, and a number of n bytes, the highest first. */
static void put_big(struct writer *w, int type, uint64_t value, int n)
{
    unsigned char bytes[9] = {(unsigned char)type};
    for (int i = 0; i < n; i++)
        bytes[1 + i] = (unsigned char)(value >> 8 * (n - 1 - i));
    put(w, bytes, (size_t)n + 1);
}

static void put_array(struct writer *w, size_t n)
{
    if (n < 16)
        put_big(w, 0x90 | (int)n, 0, 0);
    else if (n <= UINT16_MAX)
        put_big(w, 0xdc, n, 2);
    else
        put_big(w, 0xdd, n, 4);
}

static void put_number(struct writer *w, uint64_t value)
{
    if (value < 128)
        put_big(w, (int)value, 0, 0);
    else if (value <= UINT8_MAX)
        put_big(w, 0xcc, value, 1);
    else if (value <= UINT16_MAX)
        put_big(w, 0xcd, value, 2);
    else if (value <= UINT32_MAX)
        put_big(w, 0xce, value, 4);
    else
        put_big(w, 0xcf, value, 8);
}

static void put_nil(struct writer *w)
{
    put_big(w, 0xc0, 0, 0);
}

static void put_double(struct writer *w, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    put_big(w, 0xcb, bits, 8);
}

/* Of fewer than 32 bytes. */
static void put_word(struct writer *w, const char *word)
{
    put_big(w, 0xa0 | (int)strlen(word), 0, 0);
    put(w, word, strlen(word));
}

/* ---- events ---- */

static struct record record_of(const struct list *l, size_t i)
{
    struct record r;
    memcpy(&r, l->data + i * l->size, sizeof(r));
    return r;
}

/* The record behind those that make one event with record `from`. */
static size_t end_of(const struct list *l, size_t from)
{
    struct record last = record_of(l, from);
    size_t i = from + 1;
    for (; i < l->n; i++) {
        struct record r = record_of(l, i);
        bool goes_on = r.change == PITH_PREFIX_STORED ? !r.first && r.parent == last.hash
                                                      : r.change == PITH_PREFIX_REMOVED;
        if (r.change != last.change || !goes_on)
            break;
        last = r;
    }
    return i;
}

static void put_hashes(struct writer *w, const struct list *l, size_t from, size_t to)
{
    put_array(w, to - from);
    for (size_t i = from; i < to; i++)
        put_number(w, record_of(l, i).hash);
}

static void put_tokens(struct writer *w, const struct list *l, size_t from, size_t to)
{
    put_array(w, (to - from) * (size_t)l->page_len);
    for (size_t i = from; i < to; i++)
        for (int32_t t = 0; t < l->page_len; t++) {
            int32_t token;
            const char *tokens = l->data + i * l->size + sizeof(struct record);
            memcpy(&token, tokens + (size_t)t * sizeof(token), sizeof(token));
            put_number(w, (uint64_t)token);
        }
}

static void put_event(struct writer *w, const struct list *l, size_t from, size_t to)
{
    struct record first = record_of(l, from);
    switch (first.change) {
    case PITH_PREFIX_STORED:
        put_array(w, 7);
        put_word(w, "BlockStored");
        put_hashes(w, l, from, to);
        if (first.first)
            put_nil(w);
        else
            put_number(w, first.parent);
        put_tokens(w, l, from, to);
        put_number(w, (uint64_t)l->page_len);
        put_nil(w); /* no adapter */
        put_nil(w); /* the medium */
        break;
    case PITH_PREFIX_REMOVED:
        put_array(w, 3);
        put_word(w, "BlockRemoved");
        put_hashes(w, l, from, to);
        put_nil(w); /* the medium */
        break;
    case PITH_PREFIX_CLEARED:
        put_array(w, 1);
        put_word(w, "AllBlocksCleared");
        break;
    }
}

bool pack_batch(const struct serve_bytes *records, int32_t page_len, double time,
                struct serve_bytes *out)
{
    struct writer w = {.out = out};
    struct list l = {.data = records->data, .page_len = page_len};
    size_t n_event = 0;
    l.size = sizeof(struct record) + (size_t)page_len * sizeof(int32_t);
    l.n = records->len / l.size;
    for (size_t i = 0; i < l.n; i = end_of(&l, i))
        n_event++;
    put_array(&w, 3);
    put_double(&w, time);
    put_array(&w, n_event);
    for (size_t i = 0, end; i < l.n; i = end) {
        end = end_of(&l, i);
        put_event(&w, &l, i, end);
    }
    put_number(&w, 0); /* the rank among data-parallel ones */
    return !w.failed;
}
