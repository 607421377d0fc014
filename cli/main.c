/*
 * main.c - the list of verbs, their help, and the way from the command line to one of them.
 */
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "io.h"
#include "manual.h"
#include "outputs.h"
#include "ranks.h"
#include "pith/policy.h"

static const struct command *const commands[] = {
    &command_run,
    &command_chat,
    &command_serve,
    &command_batch,
    &command_demo,
    &command_bench,
    &command_eval,
    &command_tokenize,
    &command_info,
    &command_quantize,
    &command_calibrate,
    &command_plan,
    &command_policies,
    &command_devices,
    &command_logits,
    &command_pull,
    &command_models,
    &command_completion,
    NULL,
};

const struct command *const *const cli_commands = commands;

#define VERB_LEN 64 /* of "eval perplexity" and the like */

/* A verb and those above it, as they are typed. */
struct verb {
    const struct command *command;
    char name[VERB_LEN];
};

/* Finds the verb among list, ended by NULL; above is the verb that the list belongs to, "" for the
   first. Fails (usage) when there is none. */
static struct verb need_command(const struct command *const *list, const char *above,
                                const char *name)
{
    const char *names[32];
    struct verb verb = {0};
    const char *space = above[0] != '\0' ? " " : "";
    size_t n = 0;
    for (; list[n] != NULL && n < sizeof(names) / sizeof(names[0]); n++) {
        names[n] = list[n]->name;
        if (strcmp(name, names[n]) == 0)
            verb.command = list[n];
    }
    snprintf(verb.name, sizeof(verb.name), "%s%s%s", above, space, name);
    if (verb.command != NULL)
        return verb;
    const char *near = pith_nearest(name, names, n);
    if (near != NULL)
        cli_fail_usage("%s: there is no such command; did you mean \"pith %s%s%s\"?", name, above,
                       space, near);
    cli_fail_usage("%s: there is no such command; \"pith help%s%s\" lists them", name, space,
                   above);
}

static void print_list(FILE *out, const struct command *const *list)
{
    for (size_t i = 0; list[i] != NULL; i++)
        fprintf(out, "  %-11s %s\n", list[i]->name, list[i]->summary);
}

static void print_commands(FILE *out)
{
    fprintf(out,
            "Pith %s runs language models on a KV cache that is a managed memory.\n\n"
            "usage: pith COMMAND [options]\n\n",
            pith_version());
    print_list(out, commands);
    fprintf(out,
            "\n\"pith help COMMAND\" tells the options of a command, \"pith help environment\" "
            "their\nvariables, \"pith --version\" the version. Begin with \"pith demo\".\n");
}

static void print_subcommands(FILE *out, const struct verb *verb)
{
    fprintf(out, "usage: pith %s TASK [options]\n\nTo %s.\n\n", verb->name, verb->command->summary);
    print_list(out, verb->command->subcommands);
    fprintf(out, "\n\"pith %s TASK --help\" tells the options of a task.\n", verb->name);
    if (verb->command->notes != NULL)
        fprintf(out, "\n%s\n", verb->command->notes);
}

void *command_options(const struct command *c)
{
    void *options = cli_alloc(1, c->options_size);
    if (c->defaults != NULL)
        c->defaults(options);
    return options;
}

static void print_help(const struct verb *verb)
{
    const struct command *c = verb->command;
    if (c->subcommands != NULL) {
        print_subcommands(stdout, verb);
        return;
    }
    void *options = command_options(c);
    int at = printf("usage: pith %s ", verb->name);
    help_print_wrapped(c->synopsis, (size_t)at, (size_t)at);
    printf("\nTo %s.\n", c->summary);
    options_print(c->groups, options);
    if (c->notes != NULL)
        printf("\n%s\n", c->notes);
    free(options);
}

static bool is_help(const char *word)
{
    return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int run_help(int argc, char **argv)
{
    struct verb verb = {0};
    const struct command *const *list = commands;
    if (argc == 0) {
        print_commands(stdout);
        return EXIT_SUCCESS;
    }
    if (strcmp(argv[0], "environment") == 0 && argc == 1) {
        help_environment();
        return EXIT_SUCCESS;
    }
    if (strcmp(argv[0], "--man") == 0) { /* for the build: pages into a folder */
        if (argc != 2)
            cli_fail_usage("help: --man wants the folder to write to");
        manual_write(argv[1]);
        return EXIT_SUCCESS;
    }
    for (int i = 0; i < argc; i++) {
        if (list == NULL)
            cli_fail_usage("help: \"%s\": one argument too many", argv[i]);
        char above[VERB_LEN];
        memcpy(above, verb.name, sizeof(above));
        verb = need_command(list, above, argv[i]);
        list = verb.command->subcommands;
    }
    print_help(&verb);
    return EXIT_SUCCESS;
}

/* Names the options of llama.cpp that have no effect, in one line. Where output is for programs, it
   prints none. */
static void note_taken(const struct command *c, const void *options,
                       const struct option_taken *taken)
{
    if (taken->n == 0 || options_flag(c->groups, options, "--quiet") ||
        options_flag(c->groups, options, "--json"))
        return;
    fprintf(stderr, "without effect in Pith:");
    for (int32_t i = 0; i < taken->n; i++)
        fprintf(stderr, "%s %s", i > 0 ? "," : "", taken->name[i]);
    fputc('\n', stderr);
}

static int run_leaf(const struct verb *verb, int argc, char **argv)
{
    const struct command *c = verb->command;
    struct option_error err;
    struct option_taken taken;
    bool help;
    void *options = command_options(c);
    cli_set_verb(verb->name);
    if (!options_parse(c->groups, options, argc, argv, &help, &taken, &err))
        cli_fail_usage("%s", err.message);
    int status = EXIT_SUCCESS;
    if (help) {
        print_help(verb);
    } else {
        outputs_check(c->groups, options);
        note_taken(c, options, &taken);
        status = c->run(options);
    }
    free(options);
    return status;
}

/* The place of an option in argv, as it is or with "=VALUE"; -1: it is not there. */
static int find_word(int argc, char **argv, const char *option)
{
    size_t len = strlen(option);
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], option, len) == 0 && (argv[i][len] == '\0' || argv[i][len] == '='))
            return i;
    return -1;
}

/* Whether the word names a verb below. */
static bool is_below(const struct command *c, const char *word)
{
    for (size_t i = 0; c->subcommands[i] != NULL; i++)
        if (strcmp(c->subcommands[i]->name, word) == 0)
            return true;
    return false;
}

/* The verb below that an option chose earlier. Its words then stand in argv as they are now. */
static struct verb older_command(const struct verb *verb, int *argc, char **argv)
{
    int at = -1;
    const struct command_older *o = verb->command->older;
    while (o->option != NULL && (at = find_word(*argc, argv, o->option)) < 0)
        o++;
    struct verb below = need_command(verb->command->subcommands, verb->name,
                                     o->option != NULL ? o->name : verb->command->otherwise);
    if (o->option == NULL)
        return below;
    cli_set_verb(verb->name);
    if (find_word(*argc, argv, "-q") < 0 && find_word(*argc, argv, "--quiet") < 0)
        cli_note("this is \"pith %s\" now", below.name);
    char *value = strchr(argv[at], '=');
    if (value != NULL && o->instead[0] != '\0') {
        size_t size = strlen(o->instead) + strlen(value) + 1;
        argv[at] = cli_alloc(size, 1); /* for as long as the command runs */
        snprintf(argv[at], size, "%s%s", o->instead, value);
    } else if (value != NULL) {
        argv[at] = value + 1;
    } else if (o->instead[0] != '\0') {
        argv[at] = (char *)(uintptr_t)o->instead;
    } else {
        memmove(argv + at, argv + at + 1, (size_t)(*argc - at - 1) * sizeof(*argv));
        --*argc;
    }
    return below;
}

static int run_verb(const struct verb *verb, int argc, char **argv)
{
    const struct command *c = verb->command;
    if (c->subcommands == NULL)
        return run_leaf(verb, argc, argv);
    if (argc == 0 && c->run != NULL) {
        cli_set_verb(verb->name);
        return c->run(NULL);
    }
    if (argc == 0) {
        print_subcommands(stderr, verb);
        return EXIT_USAGE;
    }
    if (is_help(argv[0])) {
        print_help(verb);
        return EXIT_SUCCESS;
    }
    if (argv[0][0] == '-' && c->older != NULL) {
        struct verb chosen = older_command(verb, &argc, argv);
        return run_leaf(&chosen, argc, argv);
    }
    if (argv[0][0] == '-')
        cli_fail_usage("%s: the task comes before the options: \"pith %s TASK %s\"", argv[0],
                       verb->name, argv[0]);
    bool all = c->otherwise != NULL && !is_below(c, argv[0]);
    struct verb below = need_command(c->subcommands, verb->name, all ? c->otherwise : argv[0]);
    return all ? run_leaf(&below, argc, argv) : run_leaf(&below, argc - 1, argv + 1);
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_commands(stderr);
        return EXIT_USAGE;
    }
    const char *verb = argv[1];
    if (is_help(verb))
        return run_help(argc - 2, argv + 2);
    if (strcmp(verb, "--version") == 0 || strcmp(verb, "version") == 0) {
        version_print();
        return EXIT_SUCCESS;
    }
    if (verb[0] == '-')
        cli_fail_usage("%s: there is no such option; \"pith help\" lists the commands", verb);
    struct verb found = need_command(commands, "", verb);
    return run_verb(&found, argc - 2, argv + 2);
}

int main(int argc, char **argv)
{
    static char output[1 << 16]; /* stdout's until the very end */
    setlocale(LC_CTYPE, "");
    signal(SIGPIPE, SIG_IGN); /* a write then fails with EPIPE, which cli_finish_output handles */
#ifdef SIGXFSZ
    signal(SIGXFSZ,
           SIG_IGN); /* likewise beyond the limit of a file's size: EFBIG, said in a sentence */
#endif
    /* stdio forgets why a full buffer could not be written: texts of a page or two fit in one,
       whose end is cli_finish_output's. */
    if (!cli_is_terminal(STDOUT_FILENO))
        setvbuf(stdout, output, _IOFBF, sizeof(output));
    ranks_join(argc, argv);
    int status = dispatch(argc, argv);
    cli_finish_output();
    if (status == EXIT_SUCCESS)
        ranks_leave();
    else
        ranks_abandon();
    return status;
}
