/*
 * jinja_value.h - the values that a template computes with, and the memory they live in. All of one
 * run's values stand in one heap, which is freed whole. The heap also counts steps and depth and
 * keeps the first failure: a function that fails says so there and returns something harmless.
 *
 * A string knows of each of its bytes whether a user wrote it. Texts that are cut from it, joined
 * with it or mapped over it keep these marks.
 */
#ifndef PI_JINJA_VALUE_H
#define PI_JINJA_VALUE_H

#include "base/base.h"

/* ---- memory, limits, failure ---- */

struct jinja_limits {
    int64_t steps; /* expressions, statements, and 64 bytes of a string or 8 items looked at */
    int32_t depth; /* of nested expressions, calls and values */
    size_t output; /* bytes of the result */
    size_t memory; /* bytes of all values of a run */
};

void jinja_limits_default(struct jinja_limits *out);

struct jinja_value;
struct jinja_pair;

struct jinja_list {
    struct jinja_value *item; /* [n] */
    size_t n, cap;
    size_t at; /* ITER: items before it were read */
};

/* In order of insertion. */
struct jinja_dict {
    struct jinja_pair *pair; /* [n] */
    size_t n, cap;
    uint32_t *slot; /* [slot_mask + 1] index + 1, 0: empty; NULL while there are few */
    size_t slot_mask;
};

struct jinja_chunk;
struct jinja_str;
struct jinja_heap {
    struct jinja_chunk *chunk; /* the newest, owned */
    size_t used;               /* bytes of all chunks */
    struct jinja_limits limits;
    int64_t steps;
    int32_t depth;
    pith_error err;                   /* the first failure; status OK: none */
    const struct jinja_str **written; /* [n_written] how floats of the input were written */
    uint32_t n_written, cap_written;
    struct jinja_list no_list; /* what has no memory is one of these, which stay empty */
    struct jinja_dict no_dict;
};

void jinja_heap_init(struct jinja_heap *h, const struct jinja_limits *limits);
void jinja_heap_free(struct jinja_heap *h);
/* Zeroed bytes, or NULL with a failure kept. */
void *jinja_alloc(struct jinja_heap *h, size_t n, size_t size);
/* Keeps the failure if it is the first. */
void jinja_fail(struct jinja_heap *h, pith_status status, const char *fmt, ...) PI_PRINTF(3, 4);
static inline bool jinja_failed(const struct jinja_heap *h)
{
    return h->err.status != PITH_OK;
}
/* Counts work; false when the run has failed or its steps are used up. */
bool jinja_charge(struct jinja_heap *h, size_t n);
/* One level deeper; false when that is too deep. Each call that returned true has its leave. */
bool jinja_enter(struct jinja_heap *h);
static inline void jinja_leave(struct jinja_heap *h)
{
    h->depth--;
}

/* ---- values ---- */

struct jinja_str {
    const char *data; /* [len], not terminated */
    size_t len;
    const uint8_t *user; /* [len], 1: a user's byte; NULL: all as from_user */
    bool from_user;
    bool markup; /* safe: strings that are joined with it are escaped */
};

enum jinja_kind {
    JINJA_ABSENT, /* an argument that was not given; no value of templates */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_BIG, /* an integer beyond 64 bits: its digits, good for printing only */
    JINJA_FLOAT,
    JINJA_STR,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_ITER,  /* a generator: read once, no length */
    JINJA_VIEW,  /* of a dict: length, but no items by index */
    JINJA_RANGE, /* a list that prints as one */
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_LOOP,
    JINJA_MACRO,
    JINJA_METHOD,
    JINJA_FUNCTION,
};

/* Why a value is undefined: of which object it was no attribute. */
enum jinja_missing { JINJA_NO_VARIABLE, JINJA_NO_ATTRIBUTE, JINJA_UNSAFE, JINJA_NO_PARAMETER };

struct jinja_loop;
struct jinja_macro;
struct jinja_method;
struct jinja_builtin;

struct jinja_value {
    uint8_t kind;    /* enum jinja_kind */
    uint8_t missing; /* UNDEFINED: enum jinja_missing */
    uint8_t owner;   /* UNDEFINED: enum jinja_kind of the value that lacks it */
    uint32_t as;     /* FLOAT: 1 + the index of how it was written, where it prints as that; 0 */
    union {
        bool b;
        int64_t i;
        double f;
        const struct jinja_str *s; /* STR, BIG; UNDEFINED: the name, may be NULL */
        struct jinja_list *list;
        struct jinja_dict *dict;
        struct jinja_loop *loop;
        struct jinja_macro *macro;
        const struct jinja_method *method;
        const struct jinja_builtin *builtin;
    } u;
};

struct jinja_pair {
    struct jinja_value key, value;
};

struct jinja_method {
    struct jinja_value self;
    const struct jinja_builtin *builtin;
};

static inline struct jinja_value jinja_none(void)
{
    return (struct jinja_value){.kind = JINJA_NONE};
}

static inline struct jinja_value jinja_bool(bool b)
{
    return (struct jinja_value){.kind = JINJA_BOOL, .u.b = b};
}

static inline struct jinja_value jinja_int(int64_t i)
{
    return (struct jinja_value){.kind = JINJA_INT, .u.i = i};
}

static inline struct jinja_value jinja_float(double f)
{
    return (struct jinja_value){.kind = JINJA_FLOAT, .u.f = f};
}

static inline struct jinja_value jinja_of(const struct jinja_str *s)
{
    return (struct jinja_value){.kind = JINJA_STR, .u.s = s};
}

static inline struct jinja_value jinja_undefined(void)
{
    return (struct jinja_value){.kind = JINJA_UNDEFINED};
}

/* LIST, TUPLE, ITER, VIEW or RANGE. */
static inline bool jinja_is_list(struct jinja_value v)
{
    return v.kind >= JINJA_LIST && v.kind <= JINJA_RANGE;
}

static inline bool jinja_is_number(struct jinja_value v)
{
    return v.kind == JINJA_BOOL || v.kind == JINJA_INT || v.kind == JINJA_FLOAT;
}

/* ---- strings (jinja_str.c) ---- */

/* Copies bytes. Never NULL: an empty string where there is no memory. */
const struct jinja_str *jinja_str_new(struct jinja_heap *h, const char *data, size_t len,
                                      bool from_user);
/* Terminated text that lives as long as the heap. */
const struct jinja_str *jinja_str_static(struct jinja_heap *h, const char *text);
struct jinja_value jinja_text(struct jinja_heap *h, const char *text); /* trusted */
/* Bytes [from, to). */
const struct jinja_str *jinja_str_cut(struct jinja_heap *h, const struct jinja_str *s, size_t from,
                                      size_t to);
bool jinja_str_equal(const struct jinja_str *a, const struct jinja_str *b);
bool jinja_str_is(const struct jinja_str *s, const char *text);
static inline bool jinja_str_user(const struct jinja_str *s, size_t i)
{
    return s->user != NULL ? s->user[i] != 0 : s->from_user;
}
/* The first place at or behind from where part stands, SIZE_MAX: none. */
size_t jinja_str_find(struct jinja_heap *h, const struct jinja_str *s, const struct jinja_str *part,
                      size_t from);
/* White space as Unicode has it: how many bytes are left without the white space at the end, and
   how many stand before the text. */
size_t jinja_space_end(const char *data, size_t len);
size_t jinja_space_begin(const char *data, size_t len);
/* Characters, and the bytes in front of character i. */
size_t jinja_str_count(const struct jinja_str *s);
size_t jinja_str_offset(const struct jinja_str *s, size_t i);
/* With & < > ' " written as HTML's entities, marked as safe. */
const struct jinja_str *jinja_str_escape(struct jinja_heap *h, const struct jinja_str *s);
const struct jinja_str *jinja_str_safe(struct jinja_heap *h, const struct jinja_str *s, bool safe);

/* Text that grows. Zero it but for the heap. */
struct jinja_buf {
    struct jinja_heap *h;
    char *data;
    uint8_t *user; /* NULL while all bytes are of one kind */
    size_t len, cap;
    bool from_user;
    size_t limit; /* bytes; 0: none but the heap's */
};

void jinja_put(struct jinja_buf *b, const struct jinja_str *s);
void jinja_put_bytes(struct jinja_buf *b, const char *data, size_t len, bool from_user);
void jinja_put_text(struct jinja_buf *b, const char *text); /* trusted */
const struct jinja_str *jinja_buf_end(struct jinja_buf *b);
/* Character c, with the mark of byte i of s. */
void jinja_put_char(struct jinja_buf *b, uint32_t c, bool from_user);

/* ---- lists and dicts (jinja_value.c) ---- */

struct jinja_value jinja_list_new(struct jinja_heap *h, enum jinja_kind kind, size_t cap);
void jinja_list_add(struct jinja_heap *h, struct jinja_value list, struct jinja_value item);
struct jinja_value jinja_dict_new(struct jinja_heap *h);
void jinja_dict_set(struct jinja_heap *h, struct jinja_dict *d, struct jinja_value key,
                    struct jinja_value value);
/* NULL: not there. */
struct jinja_value *jinja_dict_get(struct jinja_heap *h, const struct jinja_dict *d,
                                   struct jinja_value key);
struct jinja_value *jinja_dict_find(struct jinja_heap *h, const struct jinja_dict *d,
                                    const char *key);
struct jinja_value jinja_pair_new(struct jinja_heap *h, struct jinja_value a, struct jinja_value b);

/* The name of the type in messages: "dict". */
const char *jinja_type(struct jinja_value v);
bool jinja_truth(struct jinja_value v);
bool jinja_equal(struct jinja_heap *h, struct jinja_value a, struct jinja_value b);
/* Below, at or above 0; a failure where the kinds have no order. */
int jinja_order(struct jinja_heap *h, struct jinja_value a, struct jinja_value b);
/* The items of an iterable value, as a list to be read only; a failure otherwise. */
struct jinja_value jinja_items(struct jinja_heap *h, struct jinja_value v);
/* False: it has none. */
bool jinja_length(struct jinja_value v, size_t *out);
double jinja_number(struct jinja_value v); /* of BOOL, INT, FLOAT */
int64_t jinja_whole(struct jinja_value v); /* of BOOL, INT */
/* Fails with what jinja2 says about a value that is not there. */
void jinja_fail_undefined(struct jinja_heap *h, struct jinja_value v);

/* ---- as text (jinja_print.c) ---- */

void jinja_put_value(struct jinja_buf *b, struct jinja_value v); /* str() */
void jinja_put_repr(struct jinja_buf *b, struct jinja_value v);
const struct jinja_str *jinja_to_str(struct jinja_heap *h, struct jinja_value v);
/* The shortest digits that give f again, as Python writes them. out [32], terminated. */
void jinja_print_float(double f, char *out);

#endif
