/*
 * view_text.c - appending numbers to a text quickly. It does not know their meaning. Invariant:
 * after a failed allocation the text is left as it was and nothing more is appended.
 */
#include "serve/view/view_text.h"

#include <stdlib.h>

#define CAP_MIN 256
#define DIGITS 10 /* of the largest number */

void view_text_free(struct view_text *t)
{
    free(t->data);
    *t = (struct view_text){0};
}

static bool has_room(struct view_text *t, size_t n)
{
    if (t->failed || t->cap - t->len >= n)
        return !t->failed;
    size_t cap = t->cap < CAP_MIN ? CAP_MIN : 2 * t->cap;
    char *grown = realloc(t->data, cap);
    if (grown == NULL) {
        t->failed = true;
        return false;
    }
    t->data = grown;
    t->cap = cap;
    return true;
}

void view_text_char(struct view_text *t, char c)
{
    if (has_room(t, 1))
        t->data[t->len++] = c;
}

void view_text_number(struct view_text *t, uint32_t n)
{
    char digits[DIGITS];
    int i = DIGITS;
    if (!has_room(t, DIGITS))
        return;
    do
        digits[--i] = (char)('0' + n % 10);
    while ((n /= 10) > 0);
    while (i < DIGITS)
        t->data[t->len++] = digits[i++];
}

void view_text_gap(struct view_text *t)
{
    if (t->len > 0)
        view_text_char(t, ' ');
}
