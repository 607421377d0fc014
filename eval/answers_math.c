/*
 * answers_math.c - whether two final answers are the same. Answers are short TeX. They are brought
 * to one spelling by passes over the text, each of which says why it is there. Then they are
 * compared as text, as numbers, or as lists of such. It is no algebra: x+1 and 1+x differ.
 *
 * Invariant: a pass only ever shortens a text, or adds braces within the room that was allocated.
 */
#include "answers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool starts(const char *text, const char *part)
{
    return strncmp(text, part, strlen(part)) == 0;
}

/* Bytes of the group at open, braces included; 0 when it is not closed. */
static size_t group_len(const char *open)
{
    int depth = 0;
    for (size_t i = 0; open[i] != '\0'; i++) {
        if (open[i] == '\\' && open[i + 1] != '\0')
            i++;
        else if (open[i] == '{')
            depth++;
        else if (open[i] == '}' && --depth == 0)
            return i + 1;
    }
    return 0;
}

static void cut(char *at, size_t n)
{
    memmove(at, at + n, strlen(at + n) + 1);
}

/* ---- passes that shorten, in place ---- */

static void trim(char *s)
{
    size_t lead = 0;
    while (is_space(s[lead]))
        lead++;
    cut(s, lead);
    size_t len = strlen(s);
    while (len > 0 && is_space(s[len - 1]))
        s[--len] = '\0';
}

/* Takes off the signs that put a formula into a sentence: $x$, \(x\), \[x\], and what ends the
   sentence. */
static void strip_sentence(char *s)
{
    static const char *const pairs[][2] = {
        {"$$", "$$"}, {"$", "$"}, {"\\(", "\\)"}, {"\\[", "\\]"}};
    bool changed = true;
    while (changed) {
        changed = false;
        trim(s);
        size_t len = strlen(s);
        for (int i = 0; i < 4 && !changed; i++) {
            size_t n = strlen(pairs[i][0]);
            changed = len >= 2 * n && starts(s, pairs[i][0]) && starts(s + len - n, pairs[i][1]);
            if (changed) {
                s[len - n] = '\0';
                cut(s, n);
            }
        }
        if (!changed && len > 0 && strchr(".,;", s[len - 1]) != NULL) {
            s[len - 1] = '\0';
            changed = true;
        }
    }
}

/* Commands that print space or nothing, sizes of brackets, and signs of a unit. "\left" is none
   where a letter follows (\leftarrow). */
static void drop_marks(char *s)
{
    static const char *const marks[] = {
        "\\left", "\\right", "\\displaystyle", "\\!",     "\\,",      "\\;", "\\:", "\\$", "$",
        "\\%",    "%",       "^{\\circ}",      "^\\circ", "\\degree", "~",
    };
    for (char *c = s; *c != '\0';) {
        size_t found = 0;
        for (size_t i = 0; i < sizeof(marks) / sizeof(*marks) && found == 0; i++) {
            size_t n = strlen(marks[i]);
            if (starts(c, marks[i]) && !(is_letter(marks[i][n - 1]) && is_letter(c[n])))
                found = n;
        }
        if (found > 0)
            cut(c, found);
        else
            c += c[0] == '\\' && c[1] == '\\' ? 2 : 1; /* a matrix row ends with two */
    }
}

/* Whether nothing but a power follows: the end of "5 \text{cm}^2". */
static bool ends_unit(const char *after)
{
    if (*after == '^') {
        after++;
        after += *after == '{' ? group_len(after) : *after != '\0';
    }
    return *after == '\0' || strcmp(after, ".") == 0;
}

/* \text{cm} behind something is a unit and goes; other \text{...} leave their content. */
static void unwrap_text(char *s)
{
    static const char *const names[] = {"\\textbf{",       "\\textit{", "\\text{",  "\\mathrm{",
                                        "\\operatorname{", "\\mbox{",   "\\mathbf{"};
    for (char *c = s; *c != '\0';) {
        size_t head = 0;
        for (size_t i = 0; i < sizeof(names) / sizeof(*names) && head == 0; i++)
            head = starts(c, names[i]) ? strlen(names[i]) : 0;
        size_t group = head > 0 ? group_len(c + head - 1) : 0;
        if (group == 0) {
            c++;
            continue;
        }
        char *close = c + head - 1 + group - 1;
        bool behind = false;
        for (const char *b = s; b < c; b++)
            behind = behind || !is_space(*b);
        if (behind && ends_unit(close + 1)) {
            *c = '\0';
            return;
        }
        cut(close, 1);
        cut(c, head);
    }
}

/* 1,450,000 as a whole answer is a number; (1,450) and 3, 500 are not. */
static void join_thousands(char *s)
{
    size_t i = s[0] == '-' || s[0] == '+', lead = 0;
    while (is_digit(s[i + lead]))
        lead++;
    if (lead < 1 || lead > 3 || s[i + lead] != ',')
        return;
    size_t at = i + lead;
    while (s[at] == ',' && is_digit(s[at + 1]) && is_digit(s[at + 2]) && is_digit(s[at + 3]) &&
           !is_digit(s[at + 4]))
        at += 4;
    if (s[at] != '\0' && s[at] != '.')
        return;
    for (char *c = s; *c != '\0';) {
        if (*c == ',')
            cut(c, 1);
        else
            c++;
    }
}

static void drop_spaces(char *s)
{
    char *to = s;
    for (const char *from = s; *from != '\0'; from++) {
        if (from[0] == '\\' && is_space(from[1]) && (from == s || from[-1] != '\\'))
            continue; /* "\ " */
        if (!is_space(*from))
            *to++ = *from;
    }
    *to = '\0';
}

/* "x=5" answers "what is x" as "5" does. */
static void drop_variable(char *s)
{
    if (is_letter(s[0]) && s[1] == '=' && s[2] != '\0' && strchr(s + 2, '=') == NULL)
        cut(s, 2);
}

/* ^{2} and _{8} of one character are ^2 and _8. */
static void drop_script_braces(char *s)
{
    for (char *c = s; *c != '\0'; c++) {
        if ((c[0] == '^' || c[0] == '_') && c[1] == '{' && c[2] != '\0' && c[3] == '}') {
            c[1] = c[2];
            cut(c + 2, 2);
        }
    }
}

/* ---- passes that add braces, in place: the text has room ---- */

/* Bytes that a byte may become: 1/2 becomes \frac{1}{2}, and its parts are digits. */
#define ROOM 6

static void insert(char *at, const char *what)
{
    size_t n = strlen(what);
    memmove(at + n, at, strlen(at) + 1);
    memcpy(at, what, n);
}

/* Bytes of the argument at s as TeX reads it: a group, a command, or one character. */
static size_t argument_len(const char *s)
{
    size_t n = *s == '{' ? group_len(s) : 0;
    if (n == 0)
        n = *s != '\0';
    if (*s == '\\') {
        while (is_letter(s[n]))
            n++;
    }
    return n;
}

/* The command of a fraction or a root at s: the bytes of its name, and how many arguments it
   has. */
static size_t command_len(const char *s, int *n_argument)
{
    bool fraction = starts(s, "\\frac") && !is_letter(s[5]);
    bool root = starts(s, "\\sqrt") && !is_letter(s[5]) && s[5] != '[';
    *n_argument = fraction ? 2 : 1;
    return fraction || root ? 5 : 0;
}

/* \dfrac12 to \frac{1}{2}, \sqrt3 to \sqrt{3}; what is inside the arguments is scanned in turn. */
static void spell_commands(char *s)
{
    for (char *c = s; *c != '\0'; c++) {
        bool variant = starts(c, "\\dfrac") || starts(c, "\\tfrac") || starts(c, "\\cfrac");
        if (variant && !is_letter(c[6]))
            cut(c + 1, 1);
        int n_argument;
        size_t n = command_len(c, &n_argument);
        char *at = c + n;
        for (int i = 0; i < n_argument && n > 0; i++) {
            size_t len = argument_len(at);
            bool bare = len > 0 && *at != '{';
            if (bare) {
                insert(at + len, "}");
                insert(at, "{");
            }
            at += bare ? len + 2 : len;
        }
    }
}

/* 1/2 to \frac{1}{2}, where both are whole numbers. */
static void spell_quotients(char *text)
{
    for (char *s = text; *s != '\0';) {
        size_t a = 0, b = 0;
        while (is_digit(s[a]))
            a++;
        while (a > 0 && s[a] == '/' && is_digit(s[a + 1 + b]))
            b++;
        if (b > 0 && s[a + 1 + b] != '.' && (s == text || s[-1] != '.')) {
            insert(s + a + 1 + b, "}");
            cut(s + a, 1);
            insert(s + a, "}{");
            insert(s, "\\frac{");
            s += a + b + strlen("\\frac{}{}");
        } else {
            s += a > 0 ? a : 1;
        }
    }
}

pith_status eval_normalise(const char *answer, char **out, pith_error *err)
{
    size_t len = strlen(answer);
    char *s = len < SIZE_MAX / ROOM - 1 ? malloc(ROOM * len + 1) : NULL;
    if (s == NULL)
        return eval_fail(err, PITH_NOMEM, "questions: no memory for an answer");
    memcpy(s, answer, len + 1);
    strip_sentence(s);
    drop_marks(s);
    unwrap_text(s);
    strip_sentence(s);
    join_thousands(s);
    drop_spaces(s);
    drop_variable(s);
    spell_commands(s);
    spell_quotients(s);
    drop_script_braces(s);
    *out = s;
    return PITH_OK;
}

/* ---- comparison ---- */

#define MAX_EXACT_DIGITS 15 /* of a whole number or a decimal that a double holds exactly */
#define NUMBER_TOLERANCE 1e-12

/* Reads an unsigned decimal; 0 when there is none or it has too many digits. */
static size_t read_decimal(const char *s, double *value)
{
    size_t n = 0, n_digit = 0;
    bool point = false;
    for (; is_digit(s[n]) || (s[n] == '.' && !point); n++) {
        point = point || s[n] == '.';
        n_digit += is_digit(s[n]);
    }
    if (n_digit == 0 || n_digit > MAX_EXACT_DIGITS)
        return 0;
    *value = strtod(s, NULL);
    return n;
}

/* \frac{a}{b} of decimals with signs; 0 when s is none. */
static size_t read_fraction(const char *s, double *value)
{
    double part[2];
    if (!starts(s, "\\frac"))
        return 0;
    size_t at = 5;
    for (int i = 0; i < 2; i++) {
        if (s[at++] != '{')
            return 0;
        bool minus = s[at] == '-';
        at += minus;
        size_t n = read_decimal(s + at, &part[i]);
        if (n == 0 || s[at + n] != '}')
            return 0;
        part[i] = minus ? -part[i] : part[i];
        at += n + 1;
    }
    *value = part[0] / part[1];
    return part[1] != 0.0 ? at : 0;
}

/* A whole answer as a number: 18, -0.50, \frac{1}{2}, 1\frac{4}{5}. */
static bool read_number(const char *s, double *value)
{
    double whole = 0.0, part = 0.0;
    bool minus = *s == '-';
    s += *s == '-' || *s == '+';
    if (is_digit(*s) || *s == '.') {
        size_t n = read_decimal(s, &whole);
        if (n == 0)
            return false;
        s += n;
    } else if (*s == '\0') {
        return false;
    }
    if (*s != '\0') {
        size_t n = read_fraction(s, &part);
        if (n == 0 || s[n] != '\0')
            return false;
    }
    *value = minus ? -(whole + part) : whole + part;
    return true;
}

static bool same_word(const char *a, const char *b)
{
    size_t n = strlen(a);
    if (n < 3 || n != strlen(b)) /* x and X are two variables */
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!is_letter(a[i]) || !is_letter(b[i]) || (a[i] | 0x20) != (b[i] | 0x20))
            return false;
    }
    return true;
}

static bool same_scalar(const char *a, const char *b)
{
    double x, y;
    if (strcmp(a, b) == 0)
        return a[0] != '\0';
    if (read_number(a, &x) && read_number(b, &y))
        return fabs(x - y) <= NUMBER_TOLERANCE * fmax(1.0, fabs(x));
    return same_word(a, b);
}

/* Splits at the first comma outside of brackets: ends s there and returns what follows it, NULL
   when there is none. */
static char *split(char *s)
{
    int depth = 0;
    for (; *s != '\0'; s++) {
        depth += (*s == '(' || *s == '[' || *s == '{') - (*s == ')' || *s == ']' || *s == '}');
        if (*s == ',' && depth == 0) {
            *s = '\0';
            return s + 1;
        }
    }
    return NULL;
}

/* Lists are compared item by item, in order; the brackets around them must be the same. */
static bool same_list(char *a, char *b)
{
    size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a >= 2 && n_b >= 2 && strchr("([", a[0]) != NULL && strchr(")]", a[n_a - 1]) != NULL) {
        if (a[0] != b[0] || a[n_a - 1] != b[n_b - 1])
            return false;
        a[n_a - 1] = b[n_b - 1] = '\0';
        a++;
        b++;
    }
    int n_item = 0;
    while (a != NULL && b != NULL) {
        char *next_a = split(a), *next_b = split(b);
        if (!same_scalar(a, b))
            return false;
        a = next_a;
        b = next_b;
        n_item++;
    }
    return a == NULL && b == NULL && n_item > 1;
}

pith_status eval_answers_equal(const char *a, const char *b, bool *equal, pith_error *err)
{
    char *x = NULL, *y = NULL;
    pith_status status = eval_normalise(a, &x, err);
    if (status == PITH_OK)
        status = eval_normalise(b, &y, err);
    if (status == PITH_OK)
        *equal = same_scalar(x, y) || same_list(x, y);
    free(x);
    free(y);
    return status;
}

#define ITEMS_MAX 64

/* Splits a list; returns the number of its items, at most ITEMS_MAX. */
static int32_t split_all(char *s, char **item)
{
    int32_t n = 0;
    for (; s != NULL && n < ITEMS_MAX; n++) {
        item[n] = s;
        s = split(s);
    }
    return s == NULL ? n : 0;
}

pith_status eval_sets_equal(const char *a, const char *b, bool *equal, pith_error *err)
{
    char *x = NULL, *y = NULL, *items_x[ITEMS_MAX], *items_y[ITEMS_MAX];
    pith_status status = eval_normalise(a, &x, err);
    if (status == PITH_OK)
        status = eval_normalise(b, &y, err);
    int32_t n = status == PITH_OK ? split_all(x, items_x) : 0;
    *equal = n > 0 && split_all(y, items_y) == n;
    for (int32_t i = 0; i < n && *equal; i++) {
        int32_t j = i;
        while (j < n && !same_scalar(items_x[i], items_y[j]))
            j++;
        *equal = j < n;
        if (j < n)
            items_y[j] = items_y[i]; /* the one that was matched is used up */
    }
    free(x);
    free(y);
    return status;
}
