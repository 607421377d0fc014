/*
 * options.h - command lines from tables. One row per option gives its parsing, the check of its
 * value and its line of help, so the three cannot disagree.
 *
 * Options that several commands have are one table, a group. A command names the groups it takes
 * and where in its own struct each group's struct lies.
 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <option.h>

struct option_group {
    const char *title;            /* NULL: no heading */
    const struct option *options; /* NULL ends the list of groups */
    size_t offset;                /* of the group's struct in the command's */
    const char *without; /* required options may be left out, and what then; NULL: they may not */
    const char *note;    /* what help says in place of the rows; NULL: the rows */
};

/* The fault of a command line, one sentence. */
struct option_error {
    char message[256];
};

/* Options and variables of the environment that were taken without effect, as they were written. */
struct option_taken {
    const char *name[OPTION_TEXTS_MAX];
    int32_t n;
};

/* Reads argv[0, argc) (without the command's name) into values, which holds the defaults. Options
   that are not among them come from the environment: PITH_NAME for --name, and where that is not
   set the row's own variable. An empty variable is none. *help is set when --help or -h is met;
   nothing after it is read, and nothing need be complete. Returns false with a sentence that names
   the option, or the variable, and the value. */
bool options_parse(const struct option_group *groups, void *values, int argc, char **argv,
                   bool *help, struct option_taken *taken, struct option_error *err);

#define OPTION_ENV_LEN 64

/* The variable PITH_NAME of an option into buf [OPTION_ENV_LEN]; returns buf. */
const char *options_variable(const struct option *o, char *buf);

/* Whether it has no dash, and so stands on the command line by itself. */
bool options_is_operand(const struct option *o);

/* Whether it has a field: not llama.cpp's alone. */
bool options_has_field(const struct option *o);

/* Whether the command has a flag of this name and it is set. */
bool options_flag(const struct option_group *groups, const void *values, const char *name);

/* Takes the next word off *rest, a text of words with spaces between; its length, 0 at the end.
   *word is not terminated. */
size_t options_next_word(const char **rest, const char **word);

/* Whether a text of words with spaces between has the word of len bytes; words may be NULL. */
bool options_has_word(const char *words, const char *word, size_t len);

/* The default in help's words, "(default 512)", into buf; "" where there is none to say. */
const char *options_default(const struct option_group *g, const struct option *o,
                            const void *values, char *buf, size_t cap);

#define HELP_WIDTH 100 /* columns of a line of help, where words allow it */

/* Prints text from column `at` on and breaks it behind spaces and commas; later lines begin at
   `indent`. Ends the line. */
void help_print_wrapped(const char *text, size_t at, size_t indent);

/* Prints each option under its group's title; values holds the defaults. */
void options_print(const struct option_group *groups, const void *values);

/* Parses "512MiB", "1.5G", "4096": KiB, MiB, GiB, TiB are powers of 1024; k, M, G, T, also with B,
   powers of 1000. False when text is no size or beyond 2^62. */
bool options_parse_bytes(const char *text, int64_t *bytes);

/* Parses a whole number and nothing else. */
bool options_parse_long(const char *text, int64_t *value);

/* Parses a finite number and nothing else. */
bool options_parse_double(const char *text, double *value);

#endif
