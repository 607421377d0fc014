/*
 * manual.c - pages of man from the tables of commands and options, and the help on variables of the
 * environment. It knows no option by name.
 */
#include "manual.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "io.h"

#define NAME_LEN 64 /* of "pith-eval-perplexity" */

/* ---- the environment ---- */

static const char environment[] =
    "Each option can be given by a variable, too. The command line is stronger, and an empty\n"
    "variable is none. PITH_ and the option's name, with _ for -, work in all commands:\n"
    "\n"
    "  PITH_KV_MEMORY=2GiB PITH_MODEL=model.gguf pith serve      # --kv-memory, --model\n"
    "  PITH_CACHE_WEIGHTS=on PITH_QUIET=1 pith run -p Hello      # --cache-weights, --quiet\n"
    "\n"
    "Options without a value are on for on, enabled, true and 1, and off for off, disabled, false\n"
    "and 0. A value that cannot be read is an error, which names the variable. Variables of "
    "options\n"
    "that a command does not have are not looked at.\n"
    "\n"
    "Where PITH_NAME is not set, the variables of llama.cpp count:\n"
    "\n";

struct variables {
    const char *name[256];
    size_t n;
};

/* Collects the variables that the commands of a list have, each once. */
static void collect(const struct command *const *list, struct variables *seen, FILE *out,
                    void (*print)(FILE *out, const struct option *o))
{
    for (; *list != NULL; list++) {
        if ((*list)->subcommands != NULL)
            collect((*list)->subcommands, seen, out, print);
        for (const struct option_group *g = (*list)->groups; g != NULL && g->options != NULL; g++)
            for (const struct option *o = g->options; o->name != NULL; o++) {
                bool new = o->env != NULL && o->env[0] != '\0' && options_has_field(o) &&
                           seen->n < sizeof(seen->name) / sizeof(seen->name[0]);
                for (size_t i = 0; i < seen->n && new; i++)
                    new = strcmp(seen->name[i], o->env) != 0;
                if (!new)
                    continue;
                seen->name[seen->n++] = o->env;
                print(out, o);
            }
    }
}

static void print_variable(FILE *out, const struct option *o)
{
    bool inverted = o->env[0] == '!';
    fprintf(out, "  %-30s %s%s\n", o->env + inverted, o->name, inverted ? ", where it is off" : "");
}

void help_environment(void)
{
    struct variables seen = {.n = 0};
    fputs(environment, stdout);
    collect(cli_commands, &seen, stdout, print_variable);
    printf(
        "\nBeside them: with NO_COLOR pictures of the cache have no colours; in the folder HOME\n"
        "\"pith chat\" keeps the lines that you type.\n");
}

/* ---- roff ---- */

/* One character of text, so that it stands for itself anywhere. */
static void put(FILE *out, char c)
{
    if (c == '\\')
        fputs("\\e", out);
    else if (c == '-')
        fputs("\\-", out);
    else if (c == '\'')
        fputs("\\(aq", out);
    else if (c == '^')
        fputs("\\(ha", out);
    else if (c == '~')
        fputs("\\(ti", out);
    else
        fputc(c, out);
}

/* A line of text; white space is one space, so that tables may break lines for help. */
static void put_text(FILE *out, const char *text)
{
    bool begun = false, space = false;
    for (; *text != '\0'; text++) {
        if (isspace((unsigned char)*text)) {
            space = begun;
            continue;
        }
        if (space)
            fputc(' ', out);
        if (!begun && *text == '.')
            fputs("\\&", out);
        put(out, *text);
        begun = true;
        space = false;
    }
}

/* Notes: paragraphs, and lines that begin with blanks as they are. */
static void put_notes(FILE *out, const char *notes)
{
    bool literal = false;
    while (*notes != '\0') {
        size_t len = strcspn(notes, "\n");
        bool wants = notes[0] == ' ';
        if (len == 0) {
            fputs(literal ? ".fi\n.PP\n" : ".PP\n", out);
            literal = false;
        } else if (wants != literal) {
            fputs(wants ? ".nf\n" : ".fi\n", out);
            literal = wants;
        }
        if (len > 0 && (notes[0] == '.' || notes[0] == '\''))
            fputs("\\&", out);
        for (size_t i = 0; i < len; i++)
            put(out, notes[i]);
        if (len > 0)
            fputc('\n', out);
        notes += len + (notes[len] == '\n');
    }
    if (literal)
        fputs(".fi\n", out);
}

/* "\fB--name\fR \fIVALUE\fR" for each spelling, with commas. */
static void put_spellings(FILE *out, const struct option *o, const char *words, bool *any)
{
    const char *word;
    for (size_t len; (len = options_next_word(&words, &word)) > 0;) {
        fputs(*any ? ", \\fB" : "\\fB", out);
        for (size_t i = 0; i < len; i++)
            put(out, word[i]);
        fputs("\\fR", out);
        *any = true;
    }
    (void)o;
}

static void put_value(FILE *out, const struct option *o)
{
    if (o->value == NULL)
        return;
    bool maybe = o->type == OPTION_MAYBE;
    fputs(maybe ? "[=\\fI" : " \\fI", out);
    put_text(out, o->value);
    fputs(maybe ? "\\fR]" : "\\fR", out);
}

static void put_option(FILE *out, const struct option_group *g, const struct option *o,
                       const void *values)
{
    char text[256], variable[OPTION_ENV_LEN];
    bool any = false;
    fputs(".TP\n", out);
    put_spellings(out, o, o->alias, &any);
    put_spellings(out, o, o->name, &any);
    put_spellings(out, o, o->also, &any);
    put_value(out, o);
    fputc('\n', out);
    put_text(out, o->help);
    for (int i = 0; o->type == OPTION_CHOICE && o->choices[i] != NULL; i++) {
        fputs(i == 0 ? ": " : ", ", out);
        put_text(out, o->choices[i]);
    }
    options_default(g, o, values, text, sizeof(text));
    if (text[0] != '\0') {
        fputc(' ', out);
        put_text(out, text);
    }
    fputs(".\n", out);
    if (o->negative != NULL) {
        bool first = false;
        fputs("Off again: ", out);
        put_spellings(out, o, o->negative, &first);
        fputs(".\n", out);
    }
    if (options_is_operand(o) || (o->env != NULL && o->env[0] == '\0'))
        return;
    fputs("Variable: ", out);
    put_text(out, options_variable(o, variable));
    if (o->env != NULL) {
        fputs(", ", out);
        put_text(out, o->env + (o->env[0] == '!'));
    }
    fputs(".\n", out);
}

/* The spellings of a group without fields, one kind in one paragraph. */
static void put_taken(FILE *out, const struct option_group *g, bool lacking)
{
    bool any = false;
    for (const struct option *o = g->options; o->name != NULL; o++)
        if ((o->type == OPTION_LACKING) == lacking) {
            put_spellings(out, o, o->alias, &any);
            put_spellings(out, o, o->name, &any);
            put_spellings(out, o, o->also, &any);
        }
    fputs(".\n", out);
}

static void put_options(FILE *out, const struct command *c)
{
    void *values = command_options(c);
    fputs(".SH OPTIONS\n", out);
    for (const struct option_group *g = c->groups; g->options != NULL; g++) {
        if (g->title != NULL) {
            fputs(".SS ", out);
            put_text(out, g->title);
            fputc('\n', out);
        }
        for (const struct option *o = g->options; g->note == NULL && o->name != NULL; o++)
            put_option(out, g, o, values);
        if (g->note == NULL)
            continue;
        fputs("These are taken without effect, which one line says:\n", out);
        put_taken(out, g, false);
        fputs(".PP\nThese are refused, but for values that ask for the usual behaviour:\n", out);
        put_taken(out, g, true);
    }
    free(values);
}

static void put_commands(FILE *out, const struct command *const *list, const char *above)
{
    for (; *list != NULL; list++) {
        fputs(".TP\n\\fB", out);
        put_text(out, above);
        put_text(out, "-");
        put_text(out, (*list)->name);
        fputs("\\fR(1)\n", out);
        put_text(out, (*list)->summary);
        fputs(".\n", out);
    }
}

/* ---- pages ---- */

/* "pith-run" in capitals, as the head of a page. */
static void put_head(FILE *out, const char *name, const char *summary)
{
    fputs(".\\\" Written by \"pith help --man\" from the tables of options.\n.TH ", out);
    for (const char *c = name; *c != '\0'; c++)
        put(out, (char)toupper((unsigned char)*c));
    fprintf(out, " 1 \"\" \"Pith %s\" \"Pith\"\n.SH NAME\n", pith_version());
    put_text(out, name);
    fputs(" \\- ", out);
    put_text(out, summary);
    fputc('\n', out);
}

static void put_end(FILE *out, const char *also)
{
    fputs(".SH EXIT STATUS\n0 when all was done, 1 when something failed, 2 where the command line "
          "is "
          "wrong, 130 after Ctrl\\-C.\n",
          out);
    fprintf(out, ".SH SEE ALSO\n%s\n", also);
}

static FILE *open_page(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s.1", folder, name);
    FILE *out = fopen(path, "wb");
    if (out == NULL)
        cli_fail("cannot write \"%s\": %s", path, strerror(errno));
    return out;
}

static void close_page(FILE *out, const char *name)
{
    bool bad = ferror(out) != 0;
    if (fclose(out) != 0 || bad)
        cli_fail("cannot write the page %s: %s", name, strerror(errno));
}

static void write_commands(const char *folder, const struct command *const *list, const char *above)
{
    for (; *list != NULL; list++) {
        const struct command *c = *list;
        char name[NAME_LEN];
        snprintf(name, sizeof(name), "%s-%s", above, c->name);
        FILE *out = open_page(folder, name);
        put_head(out, name, c->summary);
        fputs(".SH SYNOPSIS\n\\fB", out);
        for (const char *at = name; *at != '\0'; at++)
            fputc(*at == '-' ? ' ' : *at, out);
        fputs("\\fR ", out);
        put_text(out, c->subcommands != NULL ? "TASK [options]" : c->synopsis);
        fputc('\n', out);
        if (c->notes != NULL) {
            fputs(".SH DESCRIPTION\n", out);
            put_notes(out, c->notes);
        }
        if (c->subcommands != NULL) {
            fputs(".SH TASKS\n", out);
            put_commands(out, c->subcommands, name);
        } else {
            put_options(out, c);
        }
        put_end(out, "\\fBpith\\fR(1)");
        close_page(out, name);
        if (c->subcommands != NULL)
            write_commands(folder, c->subcommands, name);
    }
}

void manual_write(const char *folder)
{
    struct variables seen = {.n = 0};
    FILE *out = open_page(folder, "pith");
    put_head(out, "pith", "run language models on a KV cache that is a managed memory");
    fputs(".SH SYNOPSIS\n\\fBpith\\fR \\fICOMMAND\\fR [options]\n.SH DESCRIPTION\n", out);
    put_notes(out,
              "Pith runs language models from GGUF files on CPUs. You set the budget of the KV\n"
              "cache, choose which entries stay, and can get evicted ones back. Pith counts every\n"
              "byte. When the budget is spent, you get a status, not a crash.\n"
              "\n"
              "\"pith help COMMAND\" tells the options of a command.\n");
    fputs(".SH COMMANDS\n", out);
    put_commands(out, cli_commands, "pith");
    fputs(".SH ENVIRONMENT\n", out);
    put_notes(out, environment);
    fputs(".nf\n", out);
    collect(cli_commands, &seen, out, print_variable);
    fputs(".fi\n", out);
    fputs(".SH FILES\n.TP\n\\fI~/.pith_history\\fR\nThe lines that you typed in \\fBpith "
          "chat\\fR.\n",
          out);
    put_end(out, "\\fBpith\\-run\\fR(1), \\fBpith\\-chat\\fR(1), \\fBpith\\-serve\\fR(1)");
    close_page(out, "pith");
    write_commands(folder, cli_commands, "pith");
}
