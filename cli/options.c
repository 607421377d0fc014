/*
 * options.c - the reader of option tables, for command lines and for the environment. It knows no
 * command; it writes to the command's struct only, through the offsets of the rows.
 *
 * Invariant: a value is stored only after it was checked, so a command sees valid values only.
 */
#include "options.h"

#include "pith/policy.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD_LEN 64   /* of an option as it was typed */
#define NAMES_MAX 512 /* spellings that a misspelt one is compared with */
#define GIVEN_MAX 256 /* options of a command line and of the environment */

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

/* ---- words ---- */

size_t options_next_word(const char **rest, const char **word)
{
    *word = *rest != NULL ? *rest + strspn(*rest, " ") : "";
    size_t len = strcspn(*word, " ");
    *rest = *word + len;
    return len;
}

bool options_has_word(const char *words, const char *word, size_t len)
{
    const char *one;
    for (size_t n; (n = options_next_word(&words, &one)) > 0;)
        if (n == len && memcmp(one, word, n) == 0)
            return true;
    return false;
}

/* As llama.cpp reads them. */
static const char words_on[] = "on enabled true 1";
static const char words_off[] = "off disabled false 0";
static const char words_auto[] = "auto -1";

static bool is_switch(const char *text)
{
    size_t len = strlen(text);
    return options_has_word(words_on, text, len) || options_has_word(words_off, text, len) ||
           options_has_word(words_auto, text, len);
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
    if (o->max >= (double)INT32_MAX && value < o->min)
        return fail(err, "%s: %.40s is not %g or more", used, text, o->min);
    bool whole = o->type != OPTION_FLOAT;
    return fail(err,
                whole ? "%s: %.40s is not between %.0f and %.0f"
                      : "%s: %.40s is not between %g and %g",
                used, text, o->min, o->max);
}

/* A whole number, or the nearest end of 64 bits. */
static bool parse_whole(const char *text, char **end, int64_t *value)
{
    *value = strtoll(text, end, 10);
    return *end != text;
}

/* Whether a number of a row is in the row's range, and one of 32 bits where its field is. */
static bool check_whole(const struct option *o, const char *used, const char *text, bool narrow,
                        int64_t v, struct option_error *err)
{
    int64_t least = narrow ? INT32_MIN : INT64_MIN + 1, most = narrow ? INT32_MAX : INT64_MAX - 1;
    if (!check_range(o, used, text, (double)v, err))
        return false;
    return (v >= least && v <= most) || fail(err, "%s: %.40s is not between %lld and %lld", used,
                                             text, (long long)least, (long long)most);
}

static bool store_long(const struct option *o, const char *used, const char *text, void *field,
                       struct option_error *err)
{
    char *end;
    int64_t v;
    bool narrow = o->type == OPTION_INT;
    if (!parse_whole(text, &end, &v) || *end != '\0')
        return fail(err, "%s: \"%.40s\" is not a whole number", used, text);
    if (!check_whole(o, used, text, narrow, v, err))
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
        int64_t v;
        if (!parse_whole(at, &end, &v) || (*end != ',' && *end != '\0'))
            return fail(err, "%s: \"%.60s\" is not a list of whole numbers such as 0,4096", used,
                        text);
        if (!check_whole(o, used, text, true, v, err))
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

/* Percent as shares. */
static bool store_shares(const struct option *o, const char *used, const char *text,
                         struct option_shares *field, struct option_error *err)
{
    struct option_ints list;
    if (!store_ints(o, used, text, &list, err))
        return false;
    for (int32_t i = 0; i < list.n; i++)
        field->value[i] = list.value[i] / 100.0;
    field->n = list.n;
    return true;
}

static bool store_bytes(const struct option *o, const char *used, const char *text, int64_t *field,
                        struct option_error *err)
{
    int64_t bytes;
    if (!options_parse_bytes(text, &bytes))
        return fail(err, "%s: \"%.40s\" is not a size such as 512MiB or 2G", used, text);
    if (bytes > 0 && isdigit((unsigned char)text[strlen(text) - 1]))
        return fail(err, "%s: %.40s has no unit: is it %.40sMiB, %.40sGiB or %.40sB?", used, text,
                    text, text, text);
    if (!check_range(o, used, text, (double)bytes, err))
        return false;
    *field = bytes;
    return true;
}

static bool store_choice(const struct option *o, const char *used, const char *text,
                         const char **field, struct option_error *err)
{
    char list[160] = "";
    int n = 0;
    for (; o->choices[n] != NULL; n++) {
        if (strcmp(o->choices[n], text) == 0) {
            *field = o->choices[n];
            return true;
        }
        size_t len = strlen(list);
        snprintf(list + len, sizeof(list) - len, "%s%s", n > 0 ? ", " : "", o->choices[n]);
    }
    const char *near = pith_nearest(text, o->choices, (size_t)n);
    if (near != NULL)
        return fail(err, "%s: \"%.40s\" is not one of %s; did you mean %s?", used, text, list,
                    near);
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
        return store_bytes(o, used, text, field, err);
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
    case OPTION_SHARES:
        return store_shares(o, used, text, field, err);
    case OPTION_TAKEN:
    case OPTION_TAKEN_VALUE:
    case OPTION_TAKEN_SWITCH:
    case OPTION_LACKING:
        break;
    }
    return fail(err, "%s: its table row has no field", used);
}

/* ---- what was given ---- */

/* A field that has got its value, and from which option. */
struct given {
    const struct option *option;
    const void *field;
};

struct parse {
    const struct option_group *groups;
    void *values;
    struct given given[GIVEN_MAX];
    int n_given;
    struct option_taken *taken;
    struct option_error *err;
};

static void *field_of(const struct option_group *g, const struct option *o, void *values)
{
    return (char *)values + g->offset + o->offset;
}

bool options_is_operand(const struct option *o)
{
    return o->name[0] != '-';
}

bool options_has_field(const struct option *o)
{
    return o->type < OPTION_TAKEN;
}

static bool note_given(struct parse *p, const struct option *o, const void *field)
{
    if (p->n_given == GIVEN_MAX)
        return fail(p->err, "%s: more than %d options are given", o->name, GIVEN_MAX);
    p->given[p->n_given++] = (struct given){o, field};
    return true;
}

static void note_taken(struct parse *p, const char *name)
{
    if (p->taken->n < OPTION_TEXTS_MAX)
        p->taken->name[p->taken->n++] = name;
}

/* Whether one of the first n that were given has this field, or decides the same. */
static bool is_decided(const struct parse *p, int n, const struct option *o, const void *field)
{
    for (int i = 0; i < n; i++) {
        const struct option *other = p->given[i].option;
        if (p->given[i].field == field)
            return true;
        if (o->one_of != NULL && other->one_of != NULL && strcmp(o->one_of, other->one_of) == 0)
            return true;
    }
    return false;
}

static bool store_given(struct parse *p, const struct option *o, const char *used, const char *text,
                        void *field)
{
    if (text != NULL && options_has_word(o->unset, text, strlen(text)))
        return note_given(p, o, field);
    return store(o, used, text, field, p->err) && note_given(p, o, field);
}

/* ---- the command line ---- */

struct found {
    const struct option *option; /* NULL: none */
    void *field;
    bool negative; /* by a spelling that makes the flag false */
};

/* The option with a name of len bytes. */
static struct found find_option(const struct option_group *groups, void *values, const char *name,
                                size_t len)
{
    for (const struct option_group *g = groups; g->options != NULL; g++)
        for (const struct option *o = g->options; o->name != NULL; o++) {
            bool negative = options_has_word(o->negative, name, len);
            bool same = negative || options_has_word(o->name, name, len) ||
                        options_has_word(o->alias, name, len) ||
                        options_has_word(o->also, name, len);
            if (same && !options_is_operand(o))
                return (struct found){o, field_of(g, o, values), negative};
        }
    return (struct found){0};
}

static struct found find_operand(const struct option_group *groups, void *values, int index)
{
    for (const struct option_group *g = groups; g->options != NULL; g++)
        for (const struct option *o = g->options; o->name != NULL; o++)
            if (options_is_operand(o) && (o->type == OPTION_TEXTS || index-- == 0))
                return (struct found){o, field_of(g, o, values), false};
    return (struct found){0};
}

/* Spellings, copied one behind the other. */
struct spellings {
    const char *name[NAMES_MAX];
    size_t n;
    char text[NAMES_MAX * 24];
    size_t text_len;
};

static void add_spellings(struct spellings *s, const char *words)
{
    const char *word;
    for (size_t len; (len = options_next_word(&words, &word)) > 0;) {
        if (s->n == NAMES_MAX || s->text_len + len + 1 > sizeof(s->text))
            return;
        char *copy = s->text + s->text_len;
        memcpy(copy, word, len);
        copy[len] = '\0';
        s->text_len += len + 1;
        s->name[s->n++] = copy;
    }
}

static bool unknown(const struct option_group *groups, const char *word, struct option_error *err)
{
    struct spellings all = {.n = 0};
    for (const struct option_group *g = groups; g->options != NULL; g++)
        for (const struct option *o = g->options; o->name != NULL; o++) {
            if (options_is_operand(o) || !options_has_field(o))
                continue;
            add_spellings(&all, o->name);
            add_spellings(&all, o->alias);
            add_spellings(&all, o->also);
            add_spellings(&all, o->negative);
        }
    const char *near = pith_nearest(word, all.name, all.n);
    if (near != NULL)
        return fail(err, "%.60s: there is no such option; did you mean %s?", word, near);
    return fail(err, "%.60s: there is no such option", word);
}

/* Whether text is one of the row's choices, as a word or as the same number. */
static bool is_harmless(const struct option *o, const char *text)
{
    double value, other;
    bool number = options_parse_double(text, &value);
    for (int i = 0; o->choices != NULL && o->choices[i] != NULL; i++) {
        if (strcmp(o->choices[i], text) == 0)
            return true;
        if (number && options_parse_double(o->choices[i], &other) && value == other)
            return true;
    }
    return false;
}

/* An option of llama.cpp's that has no field; text: behind "=", or NULL. */
static bool parse_llama(struct parse *p, const struct option *o, const char *used, const char *text,
                        int argc, char **argv, int *i)
{
    bool has_value =
        o->type == OPTION_TAKEN_VALUE || (o->type == OPTION_LACKING && o->value != NULL);
    if (has_value && text == NULL) {
        if (*i + 1 >= argc)
            return fail(p->err, "%s: its value (%s) is missing", used, o->value);
        text = argv[++*i];
    } else if (o->type == OPTION_TAKEN_SWITCH && text == NULL && *i + 1 < argc &&
               is_switch(argv[*i + 1])) {
        ++*i;
    }
    if (o->type == OPTION_LACKING && (text == NULL || !is_harmless(o, text)))
        return fail(p->err, "%s%s%.40s: llama.cpp has this option, Pith does not%s%s", used,
                    text != NULL ? " " : "", text != NULL ? text : "", o->help != NULL ? "; " : "",
                    o->help != NULL ? o->help : "");
    return note_given(p, o, o);
}

/* One option at argv[*i]; *i moves to the last word it took. */
static bool parse_option(struct parse *p, int argc, char **argv, int *i)
{
    const char *word = argv[*i];
    bool is_long = strncmp(word, "--", 2) == 0;
    const char *equals = is_long ? strchr(word, '=') : NULL;
    size_t len = equals != NULL ? (size_t)(equals - word) : strlen(word);
    char used[WORD_LEN];
    snprintf(used, sizeof(used), "%.*s", (int)(len < WORD_LEN ? len : WORD_LEN - 1), word);
    struct found f = find_option(p->groups, p->values, used, strlen(used));
    if (f.option == NULL && is_long) { /* "--n_predict", as llama.cpp reads it */
        char name[WORD_LEN];
        snprintf(name, sizeof(name), "%s", used);
        for (char *c = name; *c != '\0'; c++)
            *c = *c == '_' ? '-' : *c;
        f = find_option(p->groups, p->values, name, strlen(name));
    }
    if (f.option == NULL)
        return unknown(p->groups, word, p->err);

    const char *text = equals != NULL ? equals + 1 : NULL;
    if (!options_has_field(f.option)) {
        if (!parse_llama(p, f.option, used, text, argc, argv, i))
            return false;
        note_taken(p, word);
        return true;
    }
    if (f.option->type == OPTION_FLAG) {
        if (text != NULL)
            return fail(p->err, "%s: takes no value, \"%.40s\" was given", used, text);
        *(bool *)f.field = !f.negative;
        return note_given(p, f.option, f.field);
    }
    if (text == NULL && f.option->type == OPTION_MAYBE)
        text = "";
    if (text == NULL) {
        if (*i + 1 >= argc)
            return fail(p->err, "%s: its value (%s) is missing", used, f.option->value);
        text = argv[++*i];
    }
    return store_given(p, f.option, used, text, f.field);
}

static bool parse_line(struct parse *p, int argc, char **argv, bool *help)
{
    int n_operand = 0;
    bool only_operands = false;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (!only_operands && strcmp(word, "--") == 0) {
            only_operands = true;
        } else if (!only_operands && word[0] == '-' && word[1] != '\0') {
            if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
                *help = true;
                return true;
            }
            if (!parse_option(p, argc, argv, &i))
                return false;
        } else {
            struct found f = find_operand(p->groups, p->values, n_operand++);
            if (f.option == NULL)
                return fail(p->err, "\"%.60s\": one argument too many", word);
            if (!store_given(p, f.option, f.option->name, word, f.field))
                return false;
        }
    }
    return true;
}

/* ---- the environment ---- */

const char *options_variable(const struct option *o, char *buf)
{
    snprintf(buf, OPTION_ENV_LEN, "PITH_%s", o->name + strspn(o->name, "-"));
    for (char *c = buf; *c != '\0'; c++)
        *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    return buf;
}

static bool store_variable(struct parse *p, const struct option *o, const char *name,
                           const char *text, bool inverted, void *field)
{
    bool on = options_has_word(words_on, text, strlen(text));
    bool off = options_has_word(words_off, text, strlen(text));
    if (o->type == OPTION_FLAG) {
        if (!on && !off)
            return fail(p->err,
                        "%s: \"%.40s\" is none of on, enabled, true, 1, off, disabled, false, 0",
                        name, text);
        *(bool *)field = on != inverted;
        return note_given(p, o, field);
    }
    if (o->type == OPTION_MAYBE && off)
        return note_given(p, o, field);
    return store_given(p, o, name, o->type == OPTION_MAYBE && on ? "" : text, field);
}

/* The value of PITH_NAME, or of llama.cpp's variable, whose name is then in buf; NULL: not set. */
static const char *variable(const struct option *o, bool llama, char *buf, bool *inverted)
{
    static const char prefix[] = "LLAMA_ARG_";
    *inverted = false;
    if (o->env != NULL && o->env[0] == '\0')
        return NULL;
    if (!llama)
        return getenv(options_variable(o, buf));
    if (o->env == NULL)
        return NULL;
    *inverted = o->env[0] == '!';
    const char *name = o->env + *inverted;
    bool plain = strncmp(name, prefix, sizeof(prefix) - 1) == 0;
    if (o->type == OPTION_FLAG && plain) { /* LLAMA_ARG_NO_X, whatever its value, is X=off */
        snprintf(buf, OPTION_ENV_LEN, "%sNO_%s", prefix, name + sizeof(prefix) - 1);
        if (getenv(buf) != NULL)
            return "off";
    }
    snprintf(buf, OPTION_ENV_LEN, "%s", name);
    return getenv(buf);
}

/* Whether the flag that an option goes with is missing, where the command has it. */
static bool wants_flag(const struct parse *p, const struct option *o)
{
    if (o->with == NULL)
        return false;
    struct found f = find_option(p->groups, p->values, o->with, strlen(o->with));
    return f.option != NULL && !*(const bool *)f.field;
}

/* One pass over all options; what was given before it stays. */
static bool parse_environment(struct parse *p, bool llama)
{
    int n_before = p->n_given;
    char name[OPTION_ENV_LEN];
    bool inverted;
    for (const struct option_group *g = p->groups; g->options != NULL; g++)
        for (const struct option *o = g->options; o->name != NULL; o++) {
            if (options_is_operand(o) || (!options_has_field(o) && !llama))
                continue;
            void *field = options_has_field(o) ? field_of(g, o, p->values) : (void *)(uintptr_t)o;
            const char *text = variable(o, llama, name, &inverted);
            if (text == NULL || text[0] == '\0' || is_decided(p, n_before, o, field) ||
                wants_flag(p, o))
                continue;
            if (!options_has_field(o))
                note_taken(p, o->env);
            else if (!store_variable(p, o, name, text, inverted, field))
                return false;
        }
    return true;
}

/* ---- what goes together ---- */

static bool check_required(struct parse *p)
{
    for (const struct option_group *g = p->groups; g->options != NULL; g++)
        for (const struct option *o = g->options; o->name != NULL; o++) {
            const char *const *text = field_of(g, o, p->values);
            if (!o->required || g->without != NULL || *text != NULL ||
                is_decided(p, p->n_given, o, text))
                continue;
            if (options_is_operand(o))
                return fail(p->err, "%s is missing: %s", o->name, o->help);
            return fail(p->err, "%s %s is missing: %s", o->alias != NULL ? o->alias : o->name,
                        o->value, o->help);
        }
    return true;
}

/* Of the n options of the command line. */
static bool check_with(struct parse *p, int n)
{
    for (int i = 0; i < n; i++)
        if (wants_flag(p, p->given[i].option))
            return fail(p->err, "%s goes with %s, which is not given", p->given[i].option->name,
                        p->given[i].option->with);
    return true;
}

bool options_parse(const struct option_group *groups, void *values, int argc, char **argv,
                   bool *help, struct option_taken *taken, struct option_error *err)
{
    struct parse p = {.groups = groups, .values = values, .taken = taken, .err = err};
    *help = false;
    *taken = (struct option_taken){.n = 0};
    if (!parse_line(&p, argc, argv, help))
        return false;
    if (*help)
        return true;
    int n_line = p.n_given;
    return parse_environment(&p, false) && parse_environment(&p, true) && check_required(&p) &&
           check_with(&p, n_line);
}

bool options_flag(const struct option_group *groups, const void *values, const char *name)
{
    struct found f = find_option(groups, (void *)(uintptr_t)values, name, strlen(name));
    return f.option != NULL && f.option->type == OPTION_FLAG && *(const bool *)f.field;
}
