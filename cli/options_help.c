/*
 * options_help.c - help from tables of options: a line for each option, wrapped into its column.
 */
#include "options.h"

#include <stdio.h>
#include <string.h>

#define HELP_COLUMN 30
#define HELP_CAP 1024 /* bytes of an option's text: help, choices and default */

void help_print_wrapped(const char *text, size_t at, size_t indent)
{
    while (*text != '\0') {
        size_t len = strcspn(text, " ,");
        size_t word = text[len] == ',' ? len + 1 : len;
        if (at > indent && at + word > HELP_WIDTH) {
            printf("\n%*s", (int)indent, "");
            at = indent;
        }
        printf("%.*s", (int)word, text);
        at += word;
        text += word;
        size_t next = 1 + strcspn(text + (*text == ' '), " ,");
        if (*text == ' ' && at + next <= HELP_WIDTH)
            putchar(' ');
        at += *text == ' ';
        text += *text == ' ';
    }
    putchar('\n');
}

/* The value of a field as text; "" where it has none. */
static void value_text(const struct option *o, const void *field, char *buf, size_t cap)
{
    const struct option_ints *ints = field;
    const struct option_shares *shares = field;
    const char *text;
    buf[0] = '\0';
    switch (o->type) {
    case OPTION_INT:
        snprintf(buf, cap, "%d", *(const int32_t *)field);
        break;
    case OPTION_LONG:
    case OPTION_BYTES:
        snprintf(buf, cap, "%lld", (long long)*(const int64_t *)field);
        break;
    case OPTION_FLOAT:
        snprintf(buf, cap, "%g", (double)*(const float *)field);
        break;
    case OPTION_TEXT:
    case OPTION_MAYBE:
    case OPTION_CHOICE:
        text = *(const char *const *)field;
        snprintf(buf, cap, "%s", text != NULL ? text : "");
        break;
    case OPTION_INTS:
        for (int32_t i = 0; i < ints->n; i++) {
            size_t len = strlen(buf);
            snprintf(buf + len, cap - len, "%s%d", i > 0 ? "," : "", ints->value[i]);
        }
        break;
    case OPTION_SHARES:
        for (int32_t i = 0; i < shares->n; i++) {
            size_t len = strlen(buf);
            snprintf(buf + len, cap - len, "%s%g", i > 0 ? "," : "", 100.0 * shares->value[i]);
        }
        break;
    default:
        break;
    }
}

const char *options_default(const struct option_group *g, const struct option *o,
                            const void *values, char *buf, size_t cap)
{
    char text[160];
    const char *absent = o->required && g->without != NULL ? g->without : o->absent;
    buf[0] = '\0';
    if (absent != NULL) {
        if (absent[0] != '\0')
            snprintf(buf, cap, "(default: %s)", absent);
        return buf;
    }
    value_text(o, (const char *)values + g->offset + o->offset, text, sizeof(text));
    if (text[0] != '\0')
        snprintf(buf, cap, "(default %s)", text);
    return buf;
}

/* "  -m, --model FILE" */
static void spell(const struct option *o, char *buf, size_t cap)
{
    bool maybe = o->type == OPTION_MAYBE;
    snprintf(buf, cap, "  %s%s%s", o->alias != NULL ? o->alias : "", o->alias != NULL ? ", " : "",
             o->name);
    size_t len = strlen(buf);
    if (o->value != NULL)
        snprintf(buf + len, cap - len, "%s%s%s", maybe ? "[=" : " ", o->value, maybe ? "]" : "");
}

static void print_option(const struct option_group *g, const struct option *o, const void *values)
{
    char names[96], otherwise[192], text[HELP_CAP];
    spell(o, names, sizeof(names));
    if (strlen(names) >= HELP_COLUMN)
        printf("%s\n%*s", names, HELP_COLUMN, "");
    else
        printf("%-*s", HELP_COLUMN, names);
    size_t len = (size_t)snprintf(text, sizeof(text), "%s", o->help);
    for (int i = 0; o->type == OPTION_CHOICE && o->choices[i] != NULL; i++)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s", i == 0 ? ": " : ", ",
                                o->choices[i]);
    options_default(g, o, values, otherwise, sizeof(otherwise));
    snprintf(text + len, sizeof(text) - len, "%s%s", otherwise[0] != '\0' ? " " : "", otherwise);
    help_print_wrapped(text, HELP_COLUMN, HELP_COLUMN);
}

void options_print(const struct option_group *groups, const void *values)
{
    for (const struct option_group *g = groups; g->options != NULL; g++) {
        putchar('\n');
        if (g->title != NULL)
            printf("%s:\n", g->title);
        if (g->note != NULL)
            printf("%s\n", g->note);
        for (const struct option *o = g->options; g->note == NULL && o->name != NULL; o++)
            print_option(g, o, values);
    }
}
