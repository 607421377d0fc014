/*
 * answers.c - the checkers that look for strings, and the extractor of final answers. It knows no
 * task and no model; the comparison of formulas is answers_math.c.
 *
 * Invariant: only generated text is looked at, and of it only what the model says after thinking
 * and after repeating its prompt.
 */
#include "answers.h"

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

static char fold(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static const char *last_of(const char *text, const char *part)
{
    const char *last = NULL;
    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part))
        last = at;
    return last;
}

const char *eval_visible(const char *text)
{
    static const char open[] = "<think>", close[] = "</think>";
    const char *closed = last_of(text, close);
    const char *rest = closed != NULL ? closed + strlen(close) : text;
    return strstr(rest, open) != NULL ? rest + strlen(rest) : rest;
}

/* Finds part [len] in text, the last occurrence. */
static const char *last_of_n(const char *text, const char *part, size_t len)
{
    size_t text_len = strlen(text);
    for (size_t i = text_len >= len ? text_len - len + 1 : 0; i-- > 0;) {
        if (memcmp(text + i, part, len) == 0)
            return text + i;
    }
    return NULL;
}

const char *eval_after_echo(const char *text, const char *question)
{
    if (question == NULL)
        return text;
    while (is_space(*question))
        question++;
    size_t len = strlen(question);
    while (len > 0 && is_space(question[len - 1]))
        len--;
    const char *echo = len > 0 ? last_of_n(text, question, len) : NULL;
    return echo != NULL ? echo + len : text;
}

/* ---- needle ---- */

const char *eval_verdict_name(enum eval_verdict verdict)
{
    static const char *const names[EVAL_N_VERDICT] = {"PASS", "PARTIAL_WORD", "PARTIAL_NUMBER",
                                                      "FAIL"};
    return names[verdict];
}

static bool same(const char *a, const char *b, size_t len, bool any_case)
{
    for (size_t i = 0; i < len; i++) {
        if (any_case ? fold(a[i]) != fold(b[i]) : a[i] != b[i])
            return false;
    }
    return true;
}

/* Whether the text between start and end goes on beyond them as one word or one number. */
static bool is_joined(const char *text, const char *start, const char *end)
{
    if (start > text && (is_digit(start[-1]) || is_letter(start[-1])))
        return true;
    if (is_digit(end[0]) || is_letter(end[0]))
        return true;
    if (is_digit(start[0]) && start - text >= 2 && (start[-1] == '.' || start[-1] == ',') &&
        is_digit(start[-2]))
        return true;
    return is_digit(end[-1]) && (end[0] == '.' || end[0] == ',') && is_digit(end[1]);
}

static bool has_word(const char *text, const char *word, bool any_case)
{
    size_t len = strlen(word), text_len = strlen(text);
    for (size_t i = 0; len > 0 && i + len <= text_len; i++) {
        if (same(text + i, word, len, any_case) && !is_joined(text, text + i, text + i + len))
            return true;
    }
    return false;
}

/* Whether text holds the needle together with what stands on one side of it in the prompt. */
static bool repeats_prompt(const char *text, const struct eval_needle_key *key)
{
    size_t n_before = strlen(key->before), n_after = strlen(key->after);
    size_t n_needle = strlen(key->needle);
    if (n_needle == 0)
        return false;
    for (const char *at = strstr(text, key->needle); at != NULL; at = strstr(at + 1, key->needle)) {
        if (n_before > 0 && (size_t)(at - text) >= n_before &&
            memcmp(at - n_before, key->before, n_before) == 0)
            return true;
        if (n_after > 0 && strncmp(at + n_needle, key->after, n_after) == 0)
            return true;
    }
    return false;
}

/* Whether "word number" stands in text, exactly and alone. */
static bool has_pair(const char *text, const char *word, const char *number)
{
    size_t n_word = strlen(word), n_number = strlen(number);
    if (n_word == 0 || n_number == 0)
        return has_word(text, n_word > 0 ? word : number, false);
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word)) {
        const char *second = at + n_word + 1;
        if (at[n_word] == ' ' && strncmp(second, number, n_number) == 0 &&
            !is_joined(text, at, second + n_number))
            return true;
    }
    return false;
}

enum eval_verdict eval_needle_check(const char *answer, const struct eval_needle_key *key)
{
    const char *text = eval_visible(answer);
    const char *rest = eval_after_echo(text, key->question);
    if (repeats_prompt(rest, key))
        return EVAL_FAIL;
    if (has_pair(rest, key->word, key->number))
        return EVAL_PASS;
    if (has_word(rest, key->word, true))
        return EVAL_PARTIAL_WORD;
    return has_word(rest, key->number, false) ? EVAL_PARTIAL_NUMBER : EVAL_FAIL;
}

/* ---- RULER ---- */

static bool contains(const char *text, const char *part)
{
    size_t len = strlen(part), text_len = strlen(text);
    for (size_t i = 0; i + len <= text_len; i++) {
        if (same(text + i, part, len, true))
            return true;
    }
    return false;
}

double eval_share_found(const char *answer, const struct eval_strings *refs)
{
    const char *text = eval_visible(answer);
    int32_t found = 0;
    for (int32_t i = 0; i < refs->n; i++)
        found += contains(text, refs->at[i]);
    return refs->n > 0 ? (double)found / refs->n : 0.0;
}

/* ---- final answers ---- */

struct span {
    const char *at; /* NULL: nothing found */
    size_t len;
};

/* The group that starts with the brace at open, without its braces; braces escaped as \{ do not
   count. Nothing when it is not closed. */
static struct span braced(const char *open)
{
    int depth = 0;
    for (const char *c = open; *c != '\0'; c++) {
        if (*c == '\\' && c[1] != '\0')
            c++;
        else if (*c == '{')
            depth++;
        else if (*c == '}' && --depth == 0)
            return (struct span){open + 1, (size_t)(c - open - 1)};
    }
    return (struct span){NULL, 0};
}

/* The content of the last complete box; *begun: there is a box at all. */
static struct span last_box(const char *text, bool *begun)
{
    static const char *const marks[] = {"\\boxed", "\\fbox"};
    struct span last = {NULL, 0};
    *begun = false;
    for (int m = 0; m < 2; m++) {
        for (const char *at = strstr(text, marks[m]); at != NULL; at = strstr(at + 1, marks[m])) {
            const char *open = at + strlen(marks[m]);
            while (*open == ' ')
                open++;
            struct span s = {open, strcspn(open, " \n$")}; /* \boxed 5 */
            if (*open == '{')
                s = braced(open);
            *begun = true;
            if (s.at != NULL && s.len > 0 && (last.at == NULL || s.at > last.at))
                last = s;
        }
    }
    return last;
}

static size_t digits(const char *at)
{
    size_t n = 0;
    while (is_digit(at[n]))
        n++;
    return n;
}

/* \frac{3}{4} and its variants with whole numbers, 0 when at is none. */
static size_t fraction_len(const char *at)
{
    static const char *const names[] = {"\\frac{", "\\dfrac{", "\\tfrac{"};
    for (int i = 0; i < 3; i++) {
        size_t head = strlen(names[i]);
        if (strncmp(at, names[i], head) != 0)
            continue;
        size_t a = digits(at + head);
        if (a == 0 || strncmp(at + head + a, "}{", 2) != 0)
            return 0;
        size_t b = digits(at + head + a + 2);
        return b > 0 && at[head + a + 2 + b] == '}' ? head + a + b + 3 : 0;
    }
    return 0;
}

/* The unsigned number at at: 18, 1,450,000, 0.5, .5, 3/4; 0 when there is none. */
static size_t number_len(const char *at)
{
    size_t n = digits(at);
    if (n >= 1 && n <= 3) {
        while (at[n] == ',' && digits(at + n + 1) == 3)
            n += 4;
    }
    if (at[n] == '.' && is_digit(at[n + 1]))
        n += 1 + digits(at + n + 1);
    if (n > 0 && at[n] == '/' && is_digit(at[n + 1]))
        n += 1 + digits(at + n + 1);
    return n;
}

/* 2nd, 3rd, 4th and names such as 3D are no amounts; 5km is one. */
static bool is_ordinal(const char *after)
{
    static const char *const ends[] = {"st", "nd", "rd", "th"};
    for (int i = 0; i < 4; i++) {
        if (strncmp(after, ends[i], 2) == 0 && !is_letter(after[2]))
            return true;
    }
    return false;
}

/* The first number or fraction at or after at, with its sign. */
static struct span next_number(const char *text, const char *at)
{
    for (; *at != '\0'; at++) {
        bool inside = at > text && (is_letter(at[-1]) || is_digit(at[-1]) || at[-1] == '_');
        size_t len = *at == '\\' ? fraction_len(at) : inside ? 0 : number_len(at);
        if (len == 0)
            continue;
        if (is_ordinal(at + len)) {
            at += len;
            continue;
        }
        bool minus = at > text && at[-1] == '-' &&
                     (at - text < 2 || !(is_letter(at[-2]) || is_digit(at[-2])));
        return minus ? (struct span){at - 1, len + 1} : (struct span){at, len};
    }
    return (struct span){NULL, 0};
}

/* The number of a line "#### 18 dollars". A heading, "#### 2. The sum", is none. */
static struct span mark_number(const char *text, const char *line)
{
    while (*line == ' ' || *line == '$' || *line == '\t')
        line++;
    struct span s = next_number(text, line);
    if (s.at != line)
        return (struct span){NULL, 0};
    const char *after = s.at + s.len;
    if (*after == '.' || *after == ')' || *after == ':') {
        after++;
        while (*after == ' ')
            after++;
        if (*after != '\0' && *after != '\n' && *after != '\r')
            return (struct span){NULL, 0};
    }
    return s;
}

static struct span last_mark(const char *text)
{
    struct span last = {NULL, 0};
    for (const char *at = strstr(text, "####"); at != NULL; at = strstr(at + 4, "####")) {
        struct span s = mark_number(text, at + 4);
        if (s.at != NULL)
            last = s;
    }
    return last;
}

static struct span last_number(const char *text)
{
    struct span last = {NULL, 0};
    for (struct span s = next_number(text, text); s.at != NULL; s = next_number(text, s.at + s.len))
        last = s;
    return last;
}

pith_status eval_final_answer(const char *answer, const char *question, bool cut, char **out,
                              pith_error *err)
{
    const char *text = eval_after_echo(eval_visible(answer), question);
    bool begun;
    struct span s = last_box(text, &begun);
    if (s.at == NULL && !begun) {
        s = last_mark(text);
        if (s.at == NULL)
            s = last_number(text);
        if (cut && s.at != NULL && s.at[s.len] == '\0')
            s.at = NULL;
    }
    size_t len = s.at != NULL ? s.len : 0;
    char *copy = malloc(len + 1);
    if (copy == NULL)
        return eval_fail(err, PITH_NOMEM, "questions: no memory for an answer");
    if (len > 0)
        memcpy(copy, s.at, len);
    copy[len] = '\0';
    *out = copy;
    return PITH_OK;
}

/* The letter of a choice that stands alone at `at`, '\0' where none does. */
static char choice_at(const char *text, const char *at, int32_t n)
{
    bool alone = (at == text || !is_letter(at[-1])) && !is_letter(at[1]) && at[1] != '\'';
    return alone && *at >= 'A' && *at < 'A' + n ? *at : '\0';
}

/* The first choice in the first `len` bytes of a text. */
static char first_choice(const char *text, size_t len, int32_t n)
{
    for (size_t i = 0; i < len && text[i] != '\0'; i++)
        if (choice_at(text, text + i, n) != '\0')
            return text[i];
    return '\0';
}

#define BEHIND_ANSWER 24 /* bytes behind the word in which the letter stands */

pith_status eval_final_choice(const char *answer, const char *question, int32_t n, char *out,
                              pith_error *err)
{
    const char *text = eval_after_echo(eval_visible(answer), question);
    char *boxed = NULL, behind = '\0', bracket = '\0';
    *out = '\0';
    if (strstr(text, "\\boxed{") != NULL) {
        pith_status status = eval_final_answer(answer, question, false, &boxed, err);
        if (status != PITH_OK)
            return status;
        *out = first_choice(boxed, strlen(boxed), n);
        free(boxed);
    }
    for (const char *at = text; *at != '\0'; at++) {
        char found = strncmp(at + 1, "nswer", 5) == 0 && (*at == 'a' || *at == 'A')
                         ? first_choice(at + 6, BEHIND_ANSWER, n)
                         : '\0';
        behind = found != '\0' ? found : behind;
        if (*at == '(' && at[1] != '\0' && at[2] == ')' && choice_at(text, at + 1, n) != '\0')
            bracket = at[1];
    }
    if (*out == '\0')
        *out = behind != '\0' ? behind : bracket;
    return PITH_OK;
}
