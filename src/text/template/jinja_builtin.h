/*
 * jinja_builtin.h - what templates can call by name: tables of filters, tests, methods and
 * functions, a row each. Shared by the jinja_*.c files only.
 */
#ifndef PI_JINJA_BUILTIN_H
#define PI_JINJA_BUILTIN_H

#include "text/value/jinja_value.h"

#define JINJA_PARAM_MAX 5

struct jinja_run;

struct jinja_named {
    const struct jinja_str *name;
    struct jinja_value value;
};

struct jinja_args {
    struct jinja_value *place; /* [n_place] */
    size_t n_place;
    struct jinja_named *named; /* [n_named] */
    size_t n_named;
};

/* self: what stands in front of the bar, the "is" or the dot. arg [JINJA_PARAM_MAX]: by the row's
   parameters, ABSENT where not given. rest: all arguments, for rows that take any. */
typedef struct jinja_value jinja_fn(struct jinja_run *r, struct jinja_value self,
                                    const struct jinja_value *arg, const struct jinja_args *rest);

/* The parameters of a row's function, and that it may leave some alone. */
#define JINJA_ROW                                                                                  \
    struct jinja_run *r, struct jinja_value self, const struct jinja_value *arg,                   \
        const struct jinja_args *rest
#define JINJA_UNUSED (void)r, (void)self, (void)arg, (void)rest

struct jinja_builtin {
    const char *name;
    jinja_fn *fn;
    const char *param[JINJA_PARAM_MAX]; /* as they are named in calls */
    int32_t n_needed;                   /* of them must be given */
    bool any;                           /* takes any arguments; fn looks at rest */
};

/* NULL: there is none. */
const struct jinja_builtin *jinja_find_filter(const struct jinja_str *name);
const struct jinja_builtin *jinja_find_test(const struct jinja_str *name);
const struct jinja_builtin *jinja_find_function(const struct jinja_str *name);
const struct jinja_builtin *jinja_find_method(enum jinja_kind kind, const struct jinja_str *name);
/* Whether Python's type has a method that changes the value, which the sandbox does not give. */
bool jinja_is_unsafe(enum jinja_kind kind, const struct jinja_str *name);

/* Calls with arguments bound to parameters. A failure names the row and the argument. */
struct jinja_value jinja_call_builtin(struct jinja_run *r, const struct jinja_builtin *row,
                                      struct jinja_value self, const struct jinja_args *args);

/* The tables, each in the file of its name; the last row has no name. */
extern const struct jinja_builtin jinja_filters[];      /* jinja_filters.c */
extern const struct jinja_builtin jinja_list_filters[]; /* jinja_lists.c */
extern const struct jinja_builtin jinja_tests[];        /* jinja_tests.c */
extern const struct jinja_builtin jinja_functions[];    /* jinja_functions.c */
extern const struct jinja_builtin jinja_str_methods[];  /* jinja_methods.c */
extern const struct jinja_builtin jinja_dict_methods[];
extern const struct jinja_builtin jinja_list_methods[];
extern const struct jinja_builtin jinja_loop_methods[];

/* ---- helpers of rows ---- */

/* An argument as whole number or text; a failure where it is of another kind. The fallback where it
   is not given (or, for text, None). what: "indent: width". */
int64_t jinja_arg_int(struct jinja_run *r, struct jinja_value arg, int64_t fallback,
                      const char *what);
const struct jinja_str *jinja_arg_str(struct jinja_run *r, struct jinja_value arg,
                                      const char *what);

/* str % values, str.format(values) (jinja_format.c). */
const struct jinja_str *jinja_percent(struct jinja_run *r, const struct jinja_str *format,
                                      struct jinja_value values);
const struct jinja_str *jinja_format(struct jinja_run *r, const struct jinja_str *format,
                                     const struct jinja_args *args);
/* Words of a string: at sep, or at white space where it is NULL; most < 0: no limit. */
struct jinja_value jinja_split(struct jinja_heap *h, const struct jinja_str *s,
                               const struct jinja_str *sep, int64_t most);
struct jinja_value jinja_rsplit(struct jinja_heap *h, const struct jinja_str *s,
                                const struct jinja_str *sep, int64_t most);
/* keep: with the line ends. */
struct jinja_value jinja_lines(struct jinja_heap *h, const struct jinja_str *s, bool keep);
/* set NULL: white space. */
const struct jinja_str *jinja_strip(struct jinja_heap *h, const struct jinja_str *s,
                                    const struct jinja_str *set, bool left, bool right);
const struct jinja_str *jinja_replace(struct jinja_heap *h, const struct jinja_str *s,
                                      const struct jinja_str *old, const struct jinja_str *with,
                                      int64_t most);
const struct jinja_str *jinja_join(struct jinja_heap *h, const struct jinja_str *sep,
                                   const struct jinja_list *items);
/* Letters of ASCII, Latin-1, Latin Extended-A, Greek and Cyrillic change; others stay. */
enum jinja_case { JINJA_UPPER, JINJA_LOWER, JINJA_CAPITALIZE, JINJA_TITLE };
const struct jinja_str *jinja_change_case(struct jinja_heap *h, const struct jinja_str *s,
                                          enum jinja_case how);
uint32_t jinja_upper_char(uint32_t c);
uint32_t jinja_lower_char(uint32_t c);

#endif
