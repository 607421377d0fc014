/*
 * main.c - the list of verbs, their help, and the way from the command line to one of them.
 */
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "io.h"

static const struct command *const commands[] = {
    &command_run,      &command_chat, &command_demo,     &command_bench,
    &command_tokenize, &command_info, &command_quantize, &command_logits,
};
#define N_COMMAND (sizeof(commands) / sizeof(commands[0]))

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMAND; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

static const struct command *need_command(const char *name)
{
    const char *names[N_COMMAND];
    const struct command *c = find_command(name);
    if (c != NULL)
        return c;
    for (size_t i = 0; i < N_COMMAND; i++)
        names[i] = commands[i]->name;
    const char *near = options_nearest(name, names, N_COMMAND);
    if (near != NULL)
        cli_fail_usage("%s: there is no such command; did you mean \"pith %s\"?", name, near);
    cli_fail_usage("%s: there is no such command; \"pith help\" lists them", name);
}

static void print_commands(FILE *out)
{
    fprintf(out,
            "Pith %s runs language models on a KV cache that is a managed memory.\n\n"
            "usage: pith COMMAND [options]\n\n",
            pith_version());
    for (size_t i = 0; i < N_COMMAND; i++)
        fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out, "\n\"pith help COMMAND\" tells the options of a command, \"pith --version\" the "
                 "version.\nBegin with \"pith demo\".\n");
}

/* The options' struct with the defaults; the caller frees. */
static void *make_options(const struct command *c)
{
    void *options = cli_alloc(1, c->options_size);
    if (c->defaults != NULL)
        c->defaults(options);
    return options;
}

static void print_help(const struct command *c)
{
    void *options = make_options(c);
    printf("usage: pith %s %s\n\nTo %s.\n", c->name, c->synopsis, c->summary);
    options_print(c->groups, options);
    if (c->notes != NULL)
        printf("\n%s\n", c->notes);
    free(options);
}

static int run_command(const struct command *c, int argc, char **argv)
{
    struct option_error err;
    bool help;
    void *options = make_options(c);
    cli_set_verb(c->name);
    if (!options_parse(c->groups, options, argc, argv, &help, &err))
        cli_fail_usage("%s", err.message);
    int status = EXIT_SUCCESS;
    if (help)
        print_help(c);
    else
        status = c->run(options);
    free(options);
    return status;
}

static int run_help(int argc, char **argv)
{
    if (argc == 0)
        print_commands(stdout);
    else if (argc == 1)
        print_help(need_command(argv[0]));
    else
        cli_fail_usage("help: \"%s\": one argument too many", argv[1]);
    return EXIT_SUCCESS;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_commands(stderr);
        return EXIT_USAGE;
    }
    const char *verb = argv[1];
    if (strcmp(verb, "help") == 0 || strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0)
        return run_help(argc - 2, argv + 2);
    if (strcmp(verb, "--version") == 0 || strcmp(verb, "version") == 0) {
        printf("pith %s (%s)\n", pith_version(), pith_cpu_level());
        return EXIT_SUCCESS;
    }
    if (verb[0] == '-')
        cli_fail_usage("%s: there is no such option; \"pith help\" lists the commands", verb);
    return run_command(need_command(verb), argc - 2, argv + 2);
}

int main(int argc, char **argv)
{
    setlocale(LC_CTYPE, "");
    signal(SIGPIPE, SIG_IGN); /* a write then fails with EPIPE, which cli_finish_output handles */
    int status = dispatch(argc, argv);
    cli_finish_output();
    return status;
}
