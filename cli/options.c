/*
 * options.c - the reader of option tables and the printer of their help. It knows no command; it
 * writes to the command's struct only, through the offsets of the rows.
 *
 * Invariant: a value is stored only after it was checked, so a command sees valid values only.
 */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELP_COLUMN 30
#define NAME_LEN_MAX 40 /* longer words are not compared for likeness */

static bool fail(struct option_error *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static bool fail(struct option_error *err, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->message, sizeof(err->message), fmt, args);
    va_end(args);
    return false;
}

/* ---- values ---- */

bool options_parse_long(const char *text, int64_t *value)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0)
        return false;
    *value = v;
    return true;
}

bool options_parse_double(const char *text, double *value)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(v))
        return false;
    *value = v;
    return true;
}

bool options_parse_bytes(const char *text, int64_t *bytes)
{
    static const char prefixes[] = "kMGT";
    char *end;
    double v = strtod(text, &end);
    if (end == text || !isfinite(v) || v < 0.0)
        return false;
    double base = 1.0;
    const char *prefix = *end == 'K' ? prefixes : *end != '\0' ? strchr(prefixes, *end) : NULL;
    if (prefix != NULL) {
        bool binary = end[1] == 'i';
        base = pow(binary ? 1024.0 : 1000.0, (double)(prefix - prefixes + 1));
        end += binary ? 2 : 1;
    }
    if (*end == 'B')
        end++;
    if (*end != '\0' || v * base >= 0x1p62)
        return false;
    *bytes = (int64_t)(v * base);
    return true;
}

static bool check_range(const struct option *o, const char *used, const char *text, double value,
                        struct option_error *err)
{
    if (!(o->min < o->max) || (value >= o->min && value <= o->max))
        return true;
    if (o->max >= (double)INT32_MAX)
        return fail(err, "%s: %.40s is not %g or more", used, text, o->min);
    return fail(err, "%s: %.40s is not between %g and %g", used, text, o->min, o->max);
}

static bool store_long(const struct option *o, const char *used, const char *text, void *field,
                       struct option_error *err)
{
    int64_t v;
    bool narrow = o->type == OPTION_INT;
    if (!options_parse_long(text, &v) || (narrow && (v < INT32_MIN || v > INT32_MAX)))
        return fail(err, "%s: \"%.40s\" is not a whole number", used, text);
    if (!check_range(o, used, text, (double)v, err))
        return false;
    if (narrow)
        *(int32_t *)field = (int32_t)v;
    else
        *(int64_t *)field = v;
    return true;
}

static bool store_ints(const struct option *o, const char *used, const char *text,
                       struct option_ints *field, struct option_error *err)
{
    struct option_ints list = {.n = 0};
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        long long v = strtoll(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0') || errno != 0 || v < INT32_MIN ||
            v > INT32_MAX)
            return fail(err, "%s: \"%.60s\" is not a list of whole numbers such as 0,4096", used,
                        text);
        if (!check_range(o, used, text, (double)v, err))
            return false;
        if (list.n == OPTION_INTS_MAX)
            return fail(err, "%s: more than %d numbers", used, OPTION_INTS_MAX);
        list.value[list.n++] = (int32_t)v;
        at = end;
        if (*at == '\0')
            break;
    }
    *field = list;
    return true;
}

static bool store_choice(const struct option *o, const char *used, const char *text,
                         const char **field, struct option_error *err)
{
    char list[160] = "";
    for (int i = 0; o->choices[i] != NULL; i++) {
        if (strcmp(o->choices[i], text) == 0) {
            *field = o->choices[i];
            return true;
        }
        size_t len = strlen(list);
        snprintf(list + len, sizeof(list) - len, "%s%s", i > 0 ? ", " : "", o->choices[i]);
    }
    return fail(err, "%s: \"%.40s\" is not one of %s", used, text, list);
}

/* used: the name as it was typed. */
static bool store(const struct option *o, const char *used, const char *text, void *field,
                  struct option_error *err)
{
    double number;
    struct option_texts *texts = field;
    switch (o->type) {
    case OPTION_FLAG:
        *(bool *)field = true;
        return true;
    case OPTION_INT:
    case OPTION_LONG:
        return store_long(o, used, text, field, err);
    case OPTION_FLOAT:
        if (!options_parse_double(text, &number))
            return fail(err, "%s: \"%.40s\" is not a number", used, text);
        if (!check_range(o, used, text, number, err))
            return false;
        *(float *)field = (float)number;
        return true;
    case OPTION_BYTES:
        if (!options_parse_bytes(text, field))
            return fail(err, "%s: \"%.40s\" is not a size such as 512MiB or 2G", used, text);
        return check_range(o, used, text, (double)*(int64_t *)field, err);
    case OPTION_TEXT:
    case OPTION_MAYBE:
        *(const char **)field = text;
        return true;
    case OPTION_CHOICE:
        return store_choice(o, used, text, field, err);
    case OPTION_TEXTS:
        if (texts->n == OPTION_TEXTS_MAX)
            return fail(err, "%s: given more than %d times", used, OPTION_TEXTS_MAX);
        texts->text[texts->n++] = text;
        return true;
    case OPTION_INTS:
        return store_ints(o, used, text, field, err);
    }
    return fail(err, "%s: its table row has no type", used);
}

/* ---- the command line ---- */

struct found {
    const struct option *option; /* NULL: none */
    void *field;
};

static void *field_of(const struct option_group *g, const struct option *o, void *values)
{
    return (char *)values + g->offset + o->offset;
}

static bool is_operand(const struct option *o)
{
    return o->name[0] != '-';
}

/* The option with a name of len bytes. */
static struct found find_option(const struct option_group *groups, void *values, const char *name,
                                size_t len)
{
    for (const struct option_group *g = groups; g->options != NULL; g++)
        for (const struct option *o = g->options; o->name != NULL; o++) {
            bool same = strncmp(o->name, name, len) == 0 && o->name[len] == '\0';
            if (!same && o->alias != NULL)
                same = strncmp(o->alias, name, len) == 0 && o->alias[len] == '\0';
            if (same && !is_operand(o))
                return (struct found){o, field_of(g, o, values)};
        }
    return (struct found){0};
}

static struct found find_operand(const struct option_group *groups, void *values, int index)
{
    for (const struct option_group *g = groups; g->options != NULL; g++)
        for (const struct option *o = g->options; o->name != NULL; o++)
            if (is_operand(o) && (o->type == OPTION_TEXTS || index-- == 0))
                return (struct found){o, field_of(g, o, values)};
    return (struct found){0};
}

static bool unknown(const struct option_group *groups, const char *word, struct option_error *err)
{
    const char *names[256];
    size_t n = 0;
    for (const struct option_group *g = groups; g->options != NULL; g++)
        for (const struct option *o = g->options; o->name != NULL && n + 2 <= 256; o++)
            if (!is_operand(o)) {
                names[n++] = o->name;
                names[n++] = o->alias;
            }
    const char *near = options_nearest(word, names, n);
    if (near != NULL)
        return fail(err, "%.60s: there is no such option; did you mean %s?", word, near);
    return fail(err, "%.60s: there is no such option", word);
}

/* One option at argv[*i]; *i moves to the last word it took. */
static bool parse_option(const struct option_group *groups, void *values, int argc, char **argv,
                         int *i, struct option_error *err)
{
    const char *word = argv[*i];
    const char *equals = strncmp(word, "--", 2) == 0 ? strchr(word, '=') : NULL;
    size_t len = equals != NULL ? (size_t)(equals - word) : strlen(word);
    struct found f = find_option(groups, values, word, len);
    if (f.option == NULL)
        return unknown(groups, word, err);

    char used[64];
    snprintf(used, sizeof(used), "%.*s", (int)len, word);
    if (f.option->type == OPTION_FLAG) {
        if (equals != NULL)
            return fail(err, "%s: takes no value, \"%.40s\" was given", used, equals + 1);
        return store(f.option, used, NULL, f.field, err);
    }
    if (equals != NULL)
        return store(f.option, used, equals + 1, f.field, err);
    if (f.option->type == OPTION_MAYBE)
        return store(f.option, used, "", f.field, err);
    if (*i + 1 >= argc)
        return fail(err, "%s: its value (%s) is missing", used, f.option->value);
    return store(f.option, used, argv[++*i], f.field, err);
}

static bool check_required(const struct option_group *groups, void *values,
                           struct option_error *err)
{
    for (const struct option_group *g = groups; g->options != NULL; g++)
        for (const struct option *o = g->options; o->name != NULL; o++) {
            const char *const *text = field_of(g, o, values);
            if (!o->required || *text != NULL)
                continue;
            if (is_operand(o))
                return fail(err, "%s is missing: %s", o->name, o->help);
            return fail(err, "%s %s is missing: %s", o->alias != NULL ? o->alias : o->name,
                        o->value, o->help);
        }
    return true;
}

bool options_parse(const struct option_group *groups, void *values, int argc, char **argv,
                   bool *help, struct option_error *err)
{
    int n_operand = 0;
    bool only_operands = false;
    *help = false;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (!only_operands && strcmp(word, "--") == 0) {
            only_operands = true;
        } else if (!only_operands && word[0] == '-' && word[1] != '\0') {
            if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
                *help = true;
                return true;
            }
            if (!parse_option(groups, values, argc, argv, &i, err))
                return false;
        } else {
            struct found f = find_operand(groups, values, n_operand++);
            if (f.option == NULL)
                return fail(err, "\"%.60s\": one argument too many", word);
            if (!store(f.option, f.option->name, word, f.field, err))
                return false;
        }
    }
    return check_required(groups, values, err);
}

/* ---- help ---- */

static void print_default(const struct option *o, const void *field)
{
    const char *text;
    const struct option_ints *ints = field;
    switch (o->type) {
    case OPTION_INT:
        printf(" (default %d)", *(const int32_t *)field);
        break;
    case OPTION_LONG:
    case OPTION_BYTES:
        printf(" (default %lld)", (long long)*(const int64_t *)field);
        break;
    case OPTION_FLOAT:
        printf(" (default %g)", (double)*(const float *)field);
        break;
    case OPTION_TEXT:
    case OPTION_MAYBE:
    case OPTION_CHOICE:
        text = *(const char *const *)field;
        if (text != NULL)
            printf(" (default %s)", text);
        break;
    case OPTION_INTS:
        for (int32_t i = 0; i < ints->n; i++)
            printf("%s%d", i == 0 ? " (default " : ",", ints->value[i]);
        if (ints->n > 0)
            putchar(')');
        break;
    case OPTION_FLAG:
    case OPTION_TEXTS:
        break;
    }
}

static void print_option(const struct option *o, const void *field)
{
    char names[96];
    bool maybe = o->type == OPTION_MAYBE;
    snprintf(names, sizeof(names), "  %s%s%s%s%s%s", o->alias != NULL ? o->alias : "",
             o->alias != NULL ? ", " : "", o->name,
             o->value == NULL ? ""
             : maybe          ? "[="
                              : " ",
             o->value != NULL ? o->value : "", maybe ? "]" : "");
    if (strlen(names) >= HELP_COLUMN)
        printf("%s\n%*s", names, HELP_COLUMN, "");
    else
        printf("%-*s", HELP_COLUMN, names);
    printf("%s", o->help);
    if (o->type == OPTION_CHOICE)
        for (int i = 0; o->choices[i] != NULL; i++)
            printf("%s%s", i == 0 ? ": " : ", ", o->choices[i]);
    if (o->absent == NULL)
        print_default(o, field);
    else if (o->absent[0] != '\0')
        printf(" (default: %s)", o->absent);
    putchar('\n');
}

void options_print(const struct option_group *groups, const void *values)
{
    for (const struct option_group *g = groups; g->options != NULL; g++) {
        putchar('\n');
        if (g->title != NULL)
            printf("%s:\n", g->title);
        for (const struct option *o = g->options; o->name != NULL; o++)
            print_option(o, (const char *)values + g->offset + o->offset);
    }
}

/* ---- likeness ---- */

/* Edit distance with swaps of neighbours (optimal string alignment: Boytsov, "Indexing methods for
   approximate dictionary searching", 2011, section 2.1). */
static size_t distance(const char *a, const char *b)
{
    size_t row[3][NAME_LEN_MAX + 1];
    size_t n = strlen(a), m = strlen(b);
    if (n > NAME_LEN_MAX || m > NAME_LEN_MAX)
        return NAME_LEN_MAX;
    for (size_t j = 0; j <= m; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *now = row[i % 3], *last = row[(i - 1) % 3], *before = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[n % 3][m];
}

/* Near is a third of the word at most: a word of two letters has no neighbours but itself. */
const char *options_nearest(const char *word, const char *const *names, size_t n)
{
    const char *best = NULL;
    size_t best_distance = strlen(word) / 3 + 1;
    for (size_t i = 0; i < n; i++) {
        if (names[i] == NULL)
            continue;
        size_t d = distance(word, names[i]);
        if (d < best_distance) {
            best_distance = d;
            best = names[i];
        }
    }
    return best;
}
