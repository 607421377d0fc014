/*
 * options.h - command lines from tables. One row per option gives its parsing, the check of its
 * value and its line of help, so the three cannot disagree.
 *
 * Options that several commands have are one table, a group; a command names the groups it takes
 * and where in its own struct each group's struct lies.
 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the field of an option is, and what its text on the command line looks like. */
enum option_type {
    OPTION_FLAG,   /* bool; takes no value */
    OPTION_INT,    /* int32_t, "12" */
    OPTION_LONG,   /* int64_t, "12" */
    OPTION_FLOAT,  /* float, "0.8" */
    OPTION_BYTES,  /* int64_t, "512MiB", "2G" */
    OPTION_TEXT,   /* const char *, borrowed from the command line */
    OPTION_CHOICE, /* const char *, one of the row's choices */
    OPTION_TEXTS,  /* struct option_texts; each use appends one */
    OPTION_INTS,   /* struct option_ints, "0,4096" */
    OPTION_MAYBE,  /* const char *; "--name=TEXT", or "--name" alone for "" */
};

#define OPTION_TEXTS_MAX 64
#define OPTION_INTS_MAX 64

struct option_texts {
    const char *text[OPTION_TEXTS_MAX]; /* borrowed from the command line */
    int32_t n;
};

struct option_ints {
    int32_t value[OPTION_INTS_MAX];
    int32_t n;
};

struct option {
    const char *name;  /* "--model"; "FILE" without a dash is an operand, taken in order, one
                          of OPTION_TEXTS takes all that are left; NULL ends the table */
    const char *alias; /* "-m"; NULL: none */
    const char *value; /* what help calls the value, "FILE"; NULL for flags and operands */
    enum option_type type;
    size_t offset; /* of the field in the group's struct */
    double min;    /* numbers: min <= value <= max is checked where min < max */
    double max;
    const char *const *choices; /* OPTION_CHOICE: ends with NULL */
    bool required;              /* the field may not stay NULL (texts only) */
    const char *absent; /* help's words for the default; NULL: the field's value, "": none */
    const char *help;
};

struct option_group {
    const char *title;            /* NULL: no heading */
    const struct option *options; /* NULL ends the list of groups */
    size_t offset;                /* of the group's struct in the command's */
};

/* What went wrong with a command line, one sentence. */
struct option_error {
    char message[256];
};

/* Reads argv[0, argc) (without the command's name) into values, which holds the defaults. *help is
   set when --help or -h is met; nothing after it is read, and nothing need be complete. Returns
   false with a sentence that names the option and the value. */
bool options_parse(const struct option_group *groups, void *values, int argc, char **argv,
                   bool *help, struct option_error *err);

/* Prints one line per option under its group's title; values holds the defaults. */
void options_print(const struct option_group *groups, const void *values);

/* Returns the name nearest to word, NULL when none is near; names [n] may hold NULL. */
const char *options_nearest(const char *word, const char *const *names, size_t n);

/* Parses "512MiB", "1.5G", "4096": KiB, MiB, GiB, TiB are powers of 1024; k, M, G, T, also with B,
   powers of 1000. False when text is no size or beyond 2^62. */
bool options_parse_bytes(const char *text, int64_t *bytes);

/* Parses a whole number and nothing else. */
bool options_parse_long(const char *text, int64_t *value);

/* Parses a finite number and nothing else. */
bool options_parse_double(const char *text, double *value);

#endif
