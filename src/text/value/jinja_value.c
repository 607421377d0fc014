/*
 * jinja_value.c - the heap of a run, lists, dicts, and the relations of values: equal, less, true,
 * their length. It knows nothing of templates. After a failure everything here is a no-op.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/value/jinja_value.h"

/* ---- the heap ---- */

struct jinja_chunk {
    struct jinja_chunk *next;
    size_t used, cap;
    char data[];
};

#define CHUNK_SIZE ((size_t)1 << 15)

/* For a thousand messages, the template that looks at all of them for each (Gemma 4) takes 2.7
   million steps, others 0.04 to 0.2. A step takes about 12 ns. */
void jinja_limits_default(struct jinja_limits *out)
{
    *out = (struct jinja_limits){
        .steps = 100000000,
        .depth = 1000,
        .output = (size_t)64 << 20,
        .memory = (size_t)512 << 20,
    };
}

void jinja_heap_init(struct jinja_heap *h, const struct jinja_limits *limits)
{
    *h = (struct jinja_heap){.limits = *limits};
}

void jinja_heap_free(struct jinja_heap *h)
{
    while (h->chunk != NULL) {
        struct jinja_chunk *next = h->chunk->next;
        pi_mem_free(h->chunk);
        h->chunk = next;
    }
}

void jinja_fail(struct jinja_heap *h, pith_status status, const char *fmt, ...)
{
    va_list args;
    if (jinja_failed(h))
        return;
    h->err.status = status;
    va_start(args, fmt);
    vsnprintf(h->err.message, sizeof(h->err.message), fmt, args);
    va_end(args);
}

void *jinja_alloc(struct jinja_heap *h, size_t n, size_t size)
{
    size_t bytes, head = sizeof(struct jinja_chunk);
    if (jinja_failed(h))
        return NULL;
    if (!pi_mul_size(n, size, &bytes) ||
        bytes > h->limits.memory - pi_min((int64_t)h->used, (int64_t)h->limits.memory)) {
        jinja_fail(h, PITH_INVALID, "chat template: it takes more than the limit of %zu bytes",
                   h->limits.memory);
        return NULL;
    }
    bytes = pi_align(bytes, 16);
    if (h->chunk == NULL || bytes > h->chunk->cap - h->chunk->used) {
        size_t cap = bytes > CHUNK_SIZE / 4 ? bytes : CHUNK_SIZE;
        struct jinja_chunk *chunk = pi_mem_alloc(PI_MEM_OTHER, head + cap);
        if (chunk == NULL) {
            jinja_fail(h, PITH_NOMEM, "chat template: no memory for %zu bytes", cap);
            return NULL;
        }
        chunk->cap = cap;
        h->used += cap;
        if (cap != CHUNK_SIZE && h->chunk != NULL) { /* what the newest has left stays in use */
            chunk->next = h->chunk->next;
            h->chunk->next = chunk;
            chunk->used = bytes;
            return chunk->data;
        }
        chunk->next = h->chunk;
        h->chunk = chunk;
    }
    void *block = h->chunk->data + h->chunk->used;
    h->chunk->used += bytes;
    return block;
}

bool jinja_charge(struct jinja_heap *h, size_t n)
{
    if (jinja_failed(h))
        return false;
    if (n > (size_t)(h->limits.steps - h->steps)) {
        jinja_fail(h, PITH_INVALID, "chat template: it takes more than the limit of %lld steps",
                   (long long)h->limits.steps);
        return false;
    }
    h->steps += (int64_t)n;
    return true;
}

bool jinja_enter(struct jinja_heap *h)
{
    if (jinja_failed(h))
        return false;
    if (h->depth >= h->limits.depth) {
        jinja_fail(h, PITH_INVALID, "chat template: it is nested deeper than the limit of %d",
                   h->limits.depth);
        return false;
    }
    h->depth++;
    return true;
}

/* ---- lists ---- */

struct jinja_value jinja_list_new(struct jinja_heap *h, enum jinja_kind kind, size_t cap)
{
    struct jinja_list *list = jinja_alloc(h, 1, sizeof(*list));
    if (list == NULL)
        return (struct jinja_value){.kind = (uint8_t)kind, .u.list = &h->no_list};
    list->item = cap > 0 ? jinja_alloc(h, cap, sizeof(*list->item)) : NULL;
    list->cap = list->item != NULL ? cap : 0;
    return (struct jinja_value){.kind = (uint8_t)kind, .u.list = list};
}

void jinja_list_add(struct jinja_heap *h, struct jinja_value v, struct jinja_value item)
{
    if (jinja_failed(h))
        return;
    struct jinja_list *list = v.u.list;
    if (list->n == list->cap) {
        size_t cap = list->cap < 4 ? 8 : 2 * list->cap;
        struct jinja_value *grown = jinja_alloc(h, cap, sizeof(*grown));
        if (grown == NULL)
            return;
        if (list->n > 0)
            memcpy(grown, list->item, list->n * sizeof(*grown));
        list->item = grown;
        list->cap = cap;
    }
    list->item[list->n++] = item;
}

struct jinja_value jinja_pair_new(struct jinja_heap *h, struct jinja_value a, struct jinja_value b)
{
    struct jinja_value pair = jinja_list_new(h, JINJA_TUPLE, 2);
    jinja_list_add(h, pair, a);
    jinja_list_add(h, pair, b);
    return pair;
}

/* ---- dicts ---- */

#define FEW 8 /* pairs that are searched one by one */

struct jinja_value jinja_dict_new(struct jinja_heap *h)
{
    struct jinja_dict *dict = jinja_alloc(h, 1, sizeof(*dict));
    if (dict == NULL)
        return (struct jinja_value){.kind = JINJA_DICT, .u.dict = &h->no_dict};
    return (struct jinja_value){.kind = JINJA_DICT, .u.dict = dict};
}

/* Equal keys have equal hashes: numbers by their value as a double. */
static uint64_t hash_of(struct jinja_value key)
{
    uint64_t hash = PI_HASH_EMPTY;
    if (key.kind == JINJA_STR) {
        hash = pi_hash_bytes(hash, key.u.s->data, key.u.s->len);
    } else if (jinja_is_number(key)) {
        double f = jinja_number(key) + 0.0;
        memcpy(&hash, &f, sizeof(hash));
    }
    hash *= 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static void index_pair(struct jinja_dict *d, size_t i)
{
    size_t at = hash_of(d->pair[i].key) & d->slot_mask;
    while (d->slot[at] != 0)
        at = (at + 1) & d->slot_mask;
    d->slot[at] = (uint32_t)i + 1;
}

/* Twice as much room; false where there is none. */
static bool grow_dict(struct jinja_heap *h, struct jinja_dict *d)
{
    size_t cap = d->cap == 0 ? FEW : 2 * d->cap;
    struct jinja_pair *pair = jinja_alloc(h, cap, sizeof(*pair));
    uint32_t *slot = cap > FEW ? jinja_alloc(h, 2 * cap, sizeof(*slot)) : NULL;
    if (pair == NULL || (cap > FEW && slot == NULL) || cap > UINT32_MAX / 4)
        return false;
    if (d->n > 0)
        memcpy(pair, d->pair, d->n * sizeof(*pair));
    d->pair = pair;
    d->cap = cap;
    d->slot = slot;
    d->slot_mask = 2 * cap - 1;
    for (size_t i = 0; slot != NULL && i < d->n; i++)
        index_pair(d, i);
    return true;
}

struct jinja_value *jinja_dict_get(struct jinja_heap *h, const struct jinja_dict *d,
                                   struct jinja_value key)
{
    if (d->slot == NULL) {
        for (size_t i = 0; i < d->n; i++)
            if (jinja_equal(h, d->pair[i].key, key))
                return &d->pair[i].value;
        return NULL;
    }
    size_t at = hash_of(key) & d->slot_mask, looked = 0;
    for (; d->slot[at] != 0; at = (at + 1) & d->slot_mask, looked++)
        if (jinja_equal(h, d->pair[d->slot[at] - 1].key, key))
            return &d->pair[d->slot[at] - 1].value;
    jinja_charge(h, looked / 8);
    return NULL;
}

struct jinja_value *jinja_dict_find(struct jinja_heap *h, const struct jinja_dict *d,
                                    const char *key)
{
    const struct jinja_str name = {.data = key, .len = strlen(key)};
    return jinja_dict_get(h, d, jinja_of(&name));
}

void jinja_dict_set(struct jinja_heap *h, struct jinja_dict *d, struct jinja_value key,
                    struct jinja_value value)
{
    if (jinja_failed(h))
        return;
    struct jinja_value *old = jinja_dict_get(h, d, key);
    if (old != NULL) {
        *old = value;
        return;
    }
    if (d->n == d->cap && !grow_dict(h, d))
        return;
    d->pair[d->n++] = (struct jinja_pair){key, value};
    if (d->slot != NULL)
        index_pair(d, d->n - 1);
}

/* ---- what values are ---- */

const char *jinja_type(struct jinja_value v)
{
    static const char *const names[] = {
        [JINJA_ABSENT] = "nothing",
        [JINJA_UNDEFINED] = "Undefined",
        [JINJA_NONE] = "NoneType",
        [JINJA_BOOL] = "bool",
        [JINJA_INT] = "int",
        [JINJA_BIG] = "int",
        [JINJA_FLOAT] = "float",
        [JINJA_STR] = "str",
        [JINJA_LIST] = "list",
        [JINJA_TUPLE] = "tuple",
        [JINJA_ITER] = "generator",
        [JINJA_VIEW] = "dict_view",
        [JINJA_RANGE] = "range",
        [JINJA_DICT] = "dict",
        [JINJA_NAMESPACE] = "Namespace",
        [JINJA_LOOP] = "LoopContext",
        [JINJA_MACRO] = "Macro",
        [JINJA_METHOD] = "method",
        [JINJA_FUNCTION] = "function",
    };
    return names[v.kind];
}

double jinja_number(struct jinja_value v)
{
    return v.kind == JINJA_FLOAT ? v.u.f : (double)jinja_whole(v);
}

int64_t jinja_whole(struct jinja_value v)
{
    return v.kind == JINJA_BOOL ? v.u.b : v.u.i;
}

bool jinja_length(struct jinja_value v, size_t *out)
{
    *out = 0;
    if (v.kind == JINJA_STR)
        *out = jinja_str_count(v.u.s);
    else if (v.kind == JINJA_DICT)
        *out = v.u.dict->n;
    else if (jinja_is_list(v) && v.kind != JINJA_ITER)
        *out = v.u.list->n;
    else
        return v.kind == JINJA_UNDEFINED;
    return true;
}

bool jinja_truth(struct jinja_value v)
{
    switch (v.kind) {
    case JINJA_ABSENT:
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
        return v.u.b;
    case JINJA_INT:
        return v.u.i != 0;
    case JINJA_FLOAT:
        return v.u.f != 0.0;
    case JINJA_STR:
        return v.u.s->len > 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_VIEW:
    case JINJA_RANGE:
        return v.u.list->n > 0;
    case JINJA_DICT:
        return v.u.dict->n > 0;
    default:
        return true;
    }
}

static bool equal_lists(struct jinja_heap *h, const struct jinja_list *a,
                        const struct jinja_list *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!jinja_equal(h, a->item[i], b->item[i]))
            return false;
    return true;
}

static bool equal_dicts(struct jinja_heap *h, const struct jinja_dict *a,
                        const struct jinja_dict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        struct jinja_value *other = jinja_dict_get(h, b, a->pair[i].key);
        if (other == NULL || !jinja_equal(h, a->pair[i].value, *other))
            return false;
    }
    return true;
}

static bool equal_numbers(struct jinja_value a, struct jinja_value b)
{
    if (a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT)
        return jinja_number(a) == jinja_number(b);
    return jinja_whole(a) == jinja_whole(b);
}

bool jinja_equal(struct jinja_heap *h, struct jinja_value a, struct jinja_value b)
{
    if (jinja_is_number(a) && jinja_is_number(b))
        return equal_numbers(a, b);
    if (a.kind != b.kind)
        return false;
    if (a.kind == JINJA_STR || a.kind == JINJA_BIG)
        return jinja_str_equal(a.u.s, b.u.s);
    if (a.kind == JINJA_NONE || a.kind == JINJA_UNDEFINED)
        return true;
    if (a.u.list == b.u.list)
        return true;
    bool deep = a.kind == JINJA_LIST || a.kind == JINJA_TUPLE || a.kind == JINJA_RANGE ||
                a.kind == JINJA_DICT;
    if (!deep || !jinja_charge(h, 1) || !jinja_enter(h))
        return false;
    bool same = a.kind == JINJA_DICT ? equal_dicts(h, a.u.dict, b.u.dict)
                                     : equal_lists(h, a.u.list, b.u.list);
    jinja_leave(h);
    return same;
}

static int order_lists(struct jinja_heap *h, const struct jinja_list *a, const struct jinja_list *b)
{
    for (size_t i = 0; i < a->n && i < b->n; i++)
        if (!jinja_equal(h, a->item[i], b->item[i]))
            return jinja_order(h, a->item[i], b->item[i]);
    return a->n < b->n ? -1 : a->n > b->n;
}

/* The nearest double of an integer's digits; infinite beyond them all. */
static double big_number(const struct jinja_str *s)
{
    double x = 0.0;
    bool minus = s->data[0] == '-';
    for (size_t i = minus; i < s->len; i++)
        x = x * 10.0 + (s->data[i] - '0');
    return minus ? -x : x;
}

/* Of two numbers, of which one is beyond 64 bits. */
static int order_big(struct jinja_value a, struct jinja_value b)
{
    if (a.kind != JINJA_BIG)
        return -order_big(b, a);
    int sign = a.u.s->data[0] == '-' ? -1 : 1;
    if (b.kind == JINJA_FLOAT) {
        double x = big_number(a.u.s);
        return x < b.u.f ? -1 : x > b.u.f;
    }
    if (b.kind != JINJA_BIG || sign != (b.u.s->data[0] == '-' ? -1 : 1))
        return sign;
    if (a.u.s->len != b.u.s->len)
        return a.u.s->len < b.u.s->len ? -sign : sign;
    int order = memcmp(a.u.s->data, b.u.s->data, a.u.s->len);
    return order < 0 ? -sign : order > 0 ? sign : 0;
}

int jinja_order(struct jinja_heap *h, struct jinja_value a, struct jinja_value b)
{
    bool big = a.kind == JINJA_BIG || b.kind == JINJA_BIG;
    if (big && (jinja_is_number(a) || a.kind == JINJA_BIG) &&
        (jinja_is_number(b) || b.kind == JINJA_BIG)) {
        size_t n = (a.kind == JINJA_BIG ? a.u.s->len : 0) + (b.kind == JINJA_BIG ? b.u.s->len : 0);
        return jinja_charge(h, n / 64) ? order_big(a, b) : 0;
    }
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a.kind != JINJA_FLOAT && b.kind != JINJA_FLOAT)
            return jinja_whole(a) < jinja_whole(b) ? -1 : jinja_whole(a) > jinja_whole(b);
        return jinja_number(a) < jinja_number(b) ? -1 : jinja_number(a) > jinja_number(b);
    }
    if (a.kind == JINJA_STR && b.kind == JINJA_STR) {
        size_t n = a.u.s->len < b.u.s->len ? a.u.s->len : b.u.s->len;
        int order = n > 0 ? memcmp(a.u.s->data, b.u.s->data, n) : 0;
        jinja_charge(h, n / 64);
        return order != 0 ? order : a.u.s->len < b.u.s->len ? -1 : a.u.s->len > b.u.s->len;
    }
    if ((a.kind == JINJA_LIST || a.kind == JINJA_TUPLE) && a.kind == b.kind && jinja_enter(h)) {
        int order = order_lists(h, a.u.list, b.u.list);
        jinja_leave(h);
        return order;
    }
    if (a.kind == JINJA_UNDEFINED || b.kind == JINJA_UNDEFINED)
        jinja_fail_undefined(h, a.kind == JINJA_UNDEFINED ? a : b);
    jinja_fail(h, PITH_INVALID,
               "chat template: '<' not supported between instances of '%s' and '%s'", jinja_type(a),
               jinja_type(b));
    return 0;
}

/* The characters of a string. */
static void add_chars(struct jinja_heap *h, const struct jinja_str *s, struct jinja_value list)
{
    for (size_t at = 0; at < s->len && jinja_charge(h, 1);) {
        size_t len = pi_utf8_next(s->data + at, s->len - at).len;
        jinja_list_add(h, list, jinja_of(jinja_str_cut(h, s, at, at + len)));
        at += len;
    }
}

/* The rest of a generator, which is empty afterwards. */
static struct jinja_value drain(struct jinja_heap *h, struct jinja_list *from)
{
    struct jinja_list *left = jinja_alloc(h, 1, sizeof(*left));
    if (left == NULL)
        return jinja_undefined();
    left->item = from->at < from->n ? from->item + from->at : NULL; /* none of an empty one */
    left->n = left->cap = from->n - from->at;
    from->at = from->n;
    return (struct jinja_value){.kind = JINJA_LIST, .u.list = left};
}

/* Lists never change, so that their items need no copy. */
struct jinja_value jinja_items(struct jinja_heap *h, struct jinja_value v)
{
    if (v.kind == JINJA_ITER)
        return drain(h, v.u.list);
    if (jinja_is_list(v))
        return (struct jinja_value){.kind = JINJA_LIST, .u.list = v.u.list};
    struct jinja_value list = jinja_list_new(h, JINJA_LIST, 0);
    if (v.kind == JINJA_DICT) {
        for (size_t i = 0; i < v.u.dict->n && jinja_charge(h, i % 8 == 0); i++)
            jinja_list_add(h, list, v.u.dict->pair[i].key);
    } else if (v.kind == JINJA_STR) {
        add_chars(h, v.u.s, list);
    } else if (v.kind != JINJA_UNDEFINED) {
        jinja_fail(h, PITH_INVALID, "chat template: '%s' object is not iterable", jinja_type(v));
    } else if (v.missing == JINJA_UNSAFE) {
        jinja_fail_undefined(h, v);
    }
    return list;
}

/* "dict object", as jinja2 names what lacks an attribute. */
static void name_owner(uint8_t kind, char *out, size_t cap)
{
    const struct jinja_value v = {.kind = kind};
    if (kind == JINJA_NONE)
        snprintf(out, cap, "None");
    else
        snprintf(out, cap, "%s object", jinja_type(v));
}

void jinja_fail_undefined(struct jinja_heap *h, struct jinja_value v)
{
    char owner[40];
    if (jinja_failed(h))
        return;
    const struct jinja_str *name = v.u.s;
    int len = name != NULL ? (int)(name->len < 80 ? name->len : 80) : 0;
    name_owner(v.owner, owner, sizeof(owner));
    if (name == NULL)
        jinja_fail(h, PITH_INVALID, "chat template: a value is undefined");
    else if (v.missing == JINJA_NO_VARIABLE)
        jinja_fail(h, PITH_INVALID, "chat template: '%.*s' is undefined", len, name->data);
    else if (v.missing == JINJA_NO_PARAMETER)
        jinja_fail(h, PITH_INVALID, "chat template: parameter '%.*s' was not provided", len,
                   name->data);
    else if (v.missing == JINJA_UNSAFE)
        jinja_fail(h, PITH_INVALID, "chat template: access to attribute '%.*s' of '%s' is unsafe.",
                   len, name->data, owner);
    else
        jinja_fail(h, PITH_INVALID, "chat template: '%s' has no attribute '%.*s'", owner, len,
                   name->data);
}
