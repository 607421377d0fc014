/*
 * option.h - a row of a table of options: what may be asked, into which field it goes, and which
 * values are valid. Command lines are read by it (cli/options.h), and the tasks of a sweep's file
 * (sweep_task.h).
 */
#ifndef PI_EVAL_OPTION_H
#define PI_EVAL_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The type of an option's field, and the form of its text on the command line. */
enum option_type {
    OPTION_FLAG,   /* bool; takes no value */
    OPTION_INT,    /* int32_t, "12" */
    OPTION_LONG,   /* int64_t, "12" */
    OPTION_FLOAT,  /* float, "0.8" */
    OPTION_BYTES,  /* int64_t, "512MiB", "2G"; a number without a unit is refused */
    OPTION_TEXT,   /* const char *, borrowed from the command line */
    OPTION_CHOICE, /* const char *, one of the row's choices */
    OPTION_TEXTS,  /* struct option_texts; each use appends one */
    OPTION_INTS,   /* struct option_ints, "0,4096" */
    OPTION_SHARES, /* struct option_shares, in percent, "0,50" */
    OPTION_MAYBE,  /* const char *; "--name=TEXT", or "--name" alone for "" */

    /* Spellings of llama.cpp's that have no field here. */
    OPTION_TAKEN,        /* without effect; takes no value */
    OPTION_TAKEN_VALUE,  /* without effect; takes a value */
    OPTION_TAKEN_SWITCH, /* without effect; "on", "off" or "auto" may follow */
    OPTION_LACKING,      /* refused, but for a value among choices, which is what happens anyway;
                            value NULL: takes none */
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

struct option_shares {
    double value[OPTION_INTS_MAX]; /* in [0, 1] */
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

    /* The fields below are NULL where there is none; words stand behind each other, with spaces. */
    const char *also;     /* further spellings, llama.cpp's above all */
    const char *negative; /* OPTION_FLAG: spellings that make it false */
    const char *unset;    /* values that leave the default */
    const char *env;      /* llama.cpp's variable; of a flag "!NAME" where true there is false here;
                             "": it has no variable, PITH_NAME means other commands' option */
    const char *one_of;   /* what it decides: a stronger source silences all options of that word */
    const char *with;     /* the flag of the command that it goes with */
    const char *keys;     /* further keys that a sweep's file may have for it */

    bool writes; /* the value is a file that the command writes */
};

#endif
