/*
 * haystack.c - text to hide facts in. It counts bytes, words and sentences, never tokens.
 *
 * Invariant: the same prose, start and number of words give the same text.
 */
#include "haystack.h"

#include <stdlib.h>
#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Whether the sentence ends with the byte at i: a full stop, or what closes behind one, before a
   space or the end. */
static bool ends_sentence(const char *text, size_t len, size_t i)
{
    if (i + 1 < len && !is_space(text[i + 1]))
        return false;
    while (i > 0 && strchr("\"')]", text[i]) != NULL && text[i] != '\0')
        i--;
    return text[i] == '.' || text[i] == '?' || text[i] == '!';
}

struct eval_prose eval_prose_noise(void)
{
    return (struct eval_prose){EVAL_NOISE "\n", sizeof(EVAL_NOISE "\n") - 1};
}

pith_status eval_prose_check(const char *task, const struct eval_prose *prose, pith_error *err)
{
    size_t i = 0;
    while (i < prose->len && is_space(prose->text[i]))
        i++;
    if (i == prose->len)
        return eval_fail(err, PITH_INVALID, "%s: the haystack holds no word", task);
    if (memchr(prose->text, '\0', prose->len) != NULL)
        return eval_fail(err, PITH_INVALID, "%s: the haystack holds a zero byte", task);
    return PITH_OK;
}

void eval_prose_append(const struct eval_prose *prose, size_t start, int32_t n_word, bool squeeze,
                       struct eval_text *out)
{
    size_t at = start % prose->len, gap = at;
    bool wrapped = false;
    for (int32_t i = 0; i < n_word; i++) {
        gap = at;
        wrapped = false;
        while (at == prose->len || is_space(prose->text[at])) {
            wrapped = wrapped || at == prose->len;
            at = at == prose->len ? 0 : at + 1;
        }
        if (i > 0 && (squeeze || (wrapped && gap == prose->len)))
            eval_text_add(out, " ");
        else if (i > 0 && wrapped)
            eval_text_add_n(out, prose->text + gap, prose->len - gap);
        else if (i > 0)
            eval_text_add_n(out, prose->text + gap, at - gap);
        size_t word = at;
        while (at < prose->len && !is_space(prose->text[at]))
            at++;
        eval_text_add_n(out, prose->text + word, at - word);
    }
}

size_t eval_prose_pick(const struct eval_prose *prose, struct eval_rng *rng)
{
    if (prose->len > INT32_MAX)
        return 0;
    size_t from = (size_t)eval_rng_below(rng, (int32_t)prose->len);
    for (size_t i = from; i < prose->len; i++) {
        if (!ends_sentence(prose->text, prose->len, i))
            continue;
        for (size_t j = i + 1; j < prose->len; j++) {
            if (!is_space(prose->text[j]))
                return j;
        }
    }
    return 0;
}

static bool find_places(const char *text, size_t len, bool sentences, struct eval_places *out)
{
    size_t cap = 0;
    for (size_t i = 0; i < len; i++) {
        bool end = sentences ? ends_sentence(text, len, i)
                             : !is_space(text[i]) && (i + 1 == len || is_space(text[i + 1]));
        if (i > 0 && !end)
            continue;
        if ((size_t)out->n + 2 > cap) {
            cap = 2 * cap + 64;
            size_t *at = realloc(out->at, cap * sizeof(*at));
            if (at == NULL)
                return false;
            out->at = at;
        }
        if (i == 0)
            out->at[out->n++] = 0;
        if (end)
            out->at[out->n++] = i + 1;
    }
    return true;
}

void eval_places_find(const char *text, size_t len, struct eval_places *out)
{
    eval_places_free(out);
    out->failed = !find_places(text, len, true, out);
    if (!out->failed && out->n < 2) {
        out->n = 0;
        out->failed = !find_places(text, len, false, out);
    }
    if (!out->failed && out->n == 0) { /* an empty text has its start */
        out->at = calloc(1, sizeof(*out->at));
        out->failed = out->at == NULL;
        out->n = !out->failed;
    }
    if (out->failed)
        out->n = 0;
}

void eval_places_free(struct eval_places *p)
{
    free(p->at);
    *p = (struct eval_places){0};
}

pith_status eval_haystack_make(const char *task, const struct eval_prose *prose, size_t start,
                               int32_t n_word, bool squeeze, struct eval_text *haystack,
                               struct eval_places *places, pith_error *err)
{
    eval_text_clear(haystack);
    eval_prose_append(prose, start, n_word, squeeze, haystack);
    eval_places_find(haystack->data != NULL ? haystack->data : "", haystack->len, places);
    if (haystack->failed || places->failed)
        return eval_fail(err, PITH_NOMEM, "%s: no memory for a haystack", task);
    return PITH_OK;
}

void eval_places_insert(const char *haystack, size_t len, const struct eval_places *places,
                        const struct eval_insert *inserts, int32_t n, struct eval_text *out,
                        size_t *offset)
{
    size_t done = 0;
    bool space = false; /* a sentence at the very start was written: the text needs a space */
    for (int32_t i = 0; i < n; i++) {
        size_t at = places->at[inserts[i].place];
        if (at > done) {
            if (space)
                eval_text_add(out, " ");
            eval_text_add_n(out, haystack + done, at - done);
            done = at;
            space = false;
        }
        if (done > 0 || i > 0)
            eval_text_add(out, " ");
        if (offset != NULL)
            offset[i] = out->len;
        eval_text_add(out, inserts[i].sentence);
        space = done == 0;
    }
    if (done < len) {
        if (space)
            eval_text_add(out, " ");
        eval_text_add_n(out, haystack + done, len - done);
    }
}
