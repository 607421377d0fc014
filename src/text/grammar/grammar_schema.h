/*
 * grammar_schema.h - a JSON schema while it is read; shared by the files that read it. A failure
 * names the place in the schema: the path that the reader keeps.
 */
#ifndef PI_GRAMMAR_SCHEMA_H
#define PI_GRAMMAR_SCHEMA_H

#include "text/grammar/grammar.h"

enum schema_type {
    SCHEMA_NULL = 1,
    SCHEMA_BOOLEAN = 2,
    SCHEMA_INTEGER = 4,
    SCHEMA_FRACTION = 8, /* numbers that are no integers; "number" is both */
    SCHEMA_STRING = 16,
    SCHEMA_ARRAY = 32,
    SCHEMA_OBJECT = 64,
    SCHEMA_ANY = 127,
};

struct schema_ref {
    const struct jinja_value *schema; /* in the document */
    uint32_t rule;
};

struct schema_reader {
    struct grammar_tree *t;
    struct jinja_heap *h; /* the tree's */
    const pith_grammar_params *params;
    struct jinja_value doc;
    char path[128]; /* terminated, "#/properties/a" */
    size_t path_len;
    struct schema_ref *ref; /* [n_ref] rules of the schemas that $ref points to */
    size_t n_ref, cap_ref;
    grammar_expr *space;                                  /* between JSON's parts */
    uint32_t any, object, array, string, number, integer; /* rules; UINT32_MAX: not made yet */
};

/* ---- failures and places (grammar_merge.c) ---- */

/* "#/properties/a/not: what". */
void schema_fail(struct schema_reader *r, pith_status status, const char *keyword,
                 const char *what);
/* Goes down to a keyword, and to a key below it (NULL: none); returns what to go back to. */
size_t schema_enter(struct schema_reader *r, const char *keyword, const struct jinja_str *key);
size_t schema_enter_item(struct schema_reader *r, const char *keyword, size_t i);
void schema_leave(struct schema_reader *r, size_t path_len);

/* A keyword's value, NULL: not there. */
const struct jinja_value *schema_get(struct schema_reader *r, struct jinja_value schema,
                                     const char *keyword);
/* A count, or fallback where it is not there. */
int64_t schema_count(struct schema_reader *r, struct jinja_value schema, const char *keyword,
                     int64_t fallback);
bool schema_is_true(const struct jinja_value *v);
bool schema_is_false(const struct jinja_value *v);

/* ---- combining (grammar_merge.c) ---- */

/* Without $ref and allOf; true is {}. False: the schema false. */
bool schema_resolve(struct schema_reader *r, struct jinja_value schema, struct jinja_value *out);
/* Makes the schema of texts that satisfy both, of which each is resolved. */
bool schema_merge(struct schema_reader *r, struct jinja_value a, struct jinja_value b,
                  struct jinja_value *out);
/* A schema without a keyword. */
struct jinja_value schema_without(struct schema_reader *r, struct jinja_value schema,
                                  const char *keyword);
/* Whether a schema says nothing of a text but what the keyword ("": none) does. */
bool schema_is_bare(struct schema_reader *r, struct jinja_value schema, const char *keyword);
/* The types that a resolved schema names, SCHEMA_ANY where it names none. */
uint32_t schema_types(struct schema_reader *r, struct jinja_value schema);
uint32_t schema_type_of(struct jinja_value value);
/* Whether nothing satisfies both; false: not certain. */
bool schema_apart(struct schema_reader *r, struct jinja_value a, struct jinja_value b);
const struct jinja_value *schema_target(struct schema_reader *r, struct jinja_value ref);

/* ---- expressions ---- */

grammar_expr *schema_expr(struct schema_reader *r, struct jinja_value schema);
grammar_expr *schema_object(struct schema_reader *r, struct jinja_value schema);
grammar_expr *schema_array(struct schema_reader *r, struct jinja_value schema);
grammar_expr *schema_string(struct schema_reader *r, struct jinja_value schema);
grammar_expr *schema_number(struct schema_reader *r, struct jinja_value schema, bool integer);
/* A value as it is (grammar_json.c). */
grammar_expr *schema_literal(struct schema_reader *r, struct jinja_value value);
/* A string's characters with the escapes that JSON needs, without quotes. */
grammar_expr *schema_key(struct schema_reader *r, const struct jinja_str *s);
grammar_expr *schema_char(struct schema_reader *r); /* one character within quotes */
grammar_expr *schema_quoted(struct schema_reader *r, grammar_expr *e);
grammar_expr *schema_rule(struct schema_reader *r, uint32_t *rule, const char *name,
                          grammar_expr *(*make)(struct schema_reader *));
grammar_expr *schema_any(struct schema_reader *r);
grammar_expr *schema_any_object(struct schema_reader *r);
grammar_expr *schema_any_array(struct schema_reader *r);
grammar_expr *schema_any_string(struct schema_reader *r);

/* ---- patterns (grammar_regex.c) ---- */

struct schema_lengths {
    int64_t min, max; /* characters; max -1: any number */
};
/* A regular expression as the inside of a JSON string; with a length of `want`. A failure says what
   is not understood, at keyword. */
grammar_expr *schema_pattern(struct schema_reader *r, const char *keyword, const char *text,
                             size_t len, struct schema_lengths want);
/* The pattern of a format (grammar_format.c); NULL: none is known, the format is a remark. */
const char *schema_format(const struct jinja_str *name);

/* Numbers in a range (grammar_number.c). */
struct schema_range {
    bool has_min, has_max, above, below; /* above, below: the bound itself is not in the range */
    char min[48], max[48];               /* plain decimals, "-12.5" */
};
grammar_expr *schema_range(struct grammar_tree *t, const struct schema_range *range, bool integer);

#endif
