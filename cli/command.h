/* command.h - a verb of `pith`, and the list of all verbs. One verb, one file. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "options.h"

/* An option that chose a command below in earlier lines, and the word that replaces it now. */
struct command_older {
    const char *option;  /* "--loki"; NULL ends the list */
    const char *instead; /* "--output"; "": its value is an operand, or there is none */
    const char *name;    /* of the command below */
};

struct command {
    const char *name;
    const char *summary;               /* half a line for `pith help` */
    const char *synopsis;              /* "-m MODEL [-p TEXT]" */
    const char *notes;                 /* help's last paragraphs; NULL: none */
    const struct option_group *groups; /* what may stand on the command line */
    size_t options_size;               /* bytes of the struct that groups fill */
    void (*defaults)(void *options);   /* fills a zeroed struct; NULL: zeros are the defaults */
    int (*run)(void *options);         /* returns the exit status */
    /* The verbs below this one, ended by NULL. Of the fields above, only name, summary and notes
       then count, and run, which may be NULL (its options are NULL). */
    const struct command *const *subcommands;
    const char *otherwise; /* the verb below that words mean which name none; NULL: none */
    const struct command_older *older; /* NULL: options do not come before the verb below */
};

extern const struct command command_run;
extern const struct command command_chat;
extern const struct command command_batch;
extern const struct command command_serve; /* serve.c, or without libmicrohttpd serve_none.c */
extern const struct command command_demo;
extern const struct command command_logits;
extern const struct command command_bench;
extern const struct command command_tokenize;
extern const struct command command_info;
extern const struct command command_plan;
extern const struct command command_eval;
extern const struct command command_quantize;
extern const struct command command_calibrate;
extern const struct command command_policies;
extern const struct command command_devices;
extern const struct command command_completion;
extern const struct command command_pull;
extern const struct command command_models;

/* All of them, ended by NULL (main.c). */
extern const struct command *const *const cli_commands;

/* `pith --version`: prints the version, the commit, and what was compiled in (version.c). */
void version_print(void);

/* A command's options with their defaults; the caller frees. */
void *command_options(const struct command *c);

#endif
