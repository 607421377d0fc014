/*
 * steps.c - where a step of reasoning ends, and which steps say about the same. A blank line ends
 * one, and two are alike by the cosine of their bags of tokens (MemShare, Algorithm 1, stage 1). It
 * knows tokens alone, no pages. Pure functions but for the table of a vocabulary.
 */
#include <math.h>

#include "base/mem.h"
#include "policy/share/internal.h"

/* ---- blank lines ---- */

uint8_t share_text_flags(const char *text, size_t len)
{
    uint8_t flags = 0;
    if (len == 0)
        return SHARE_EMPTY;
    flags |= text[0] == '\n' ? SHARE_BEGINS : 0;
    flags |= text[len - 1] == '\n' ? SHARE_ENDS : 0;
    for (size_t i = 1; i < len; i++)
        if (text[i] == '\n' && text[i - 1] == '\n')
            flags |= SHARE_BLANK;
    return flags;
}

pith_status share_vocab_flags(const struct pith_model *model, uint8_t **out, pith_error *err)
{
    size_t cap = 64, len = 0;
    int32_t n = pi_model_hparams(model)->n_vocab;
    char *text = pi_mem_alloc(PI_MEM_OTHER, cap);
    uint8_t *flags = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n, 1);
    if (text == NULL || flags == NULL)
        goto fail;
    for (int32_t id = 0; id < n; id++) {
        /* Rows of the embedding beyond the vocabulary have no text. */
        pith_status status = pith_token_bytes(model, id, false, text, cap, &len);
        if (status == PITH_RANGE) {
            char *grown = pi_mem_grow(PI_MEM_OTHER, text, len, 1);
            if (grown == NULL)
                goto fail;
            text = grown;
            cap = len;
            status = pith_token_bytes(model, id, false, text, cap, &len);
        }
        flags[id] = share_text_flags(text, status == PITH_OK ? len : 0);
    }
    pi_mem_free(text);
    *out = flags;
    return PITH_OK;
fail:
    pi_mem_free(text);
    pi_mem_free(flags);
    return pi_fail(err, PITH_NOMEM, "no memory for where the %d tokens end lines", n);
}

bool share_ends_step(const uint8_t *flags, const int32_t *tokens, int32_t n)
{
    if (n == 0 || (flags[tokens[n - 1]] & SHARE_EMPTY) != 0)
        return false;
    if ((flags[tokens[n - 1]] & SHARE_BLANK) != 0)
        return true;
    if ((flags[tokens[n - 1]] & SHARE_BEGINS) == 0)
        return false;
    int32_t before = n - 2;
    while (before >= 0 && (flags[tokens[before]] & SHARE_EMPTY) != 0)
        before--;
    return before >= 0 && (flags[tokens[before]] & SHARE_ENDS) != 0;
}

/* ---- bags ---- */

int64_t share_bag_fill(struct share_bag *bag, const int32_t *tokens, int32_t n, int32_t *count)
{
    int64_t norm = 0;
    bag->n = 0;
    for (int32_t i = 0; i < n; i++)
        if (count[tokens[i]]++ == 0)
            bag->id[bag->n++] = tokens[i];
    for (int32_t i = 0; i < bag->n; i++) {
        bag->count[i] = count[bag->id[i]];
        norm += (int64_t)bag->count[i] * bag->count[i];
    }
    return norm;
}

void share_bag_clear(const struct share_bag *bag, int32_t *count)
{
    for (int32_t i = 0; i < bag->n; i++)
        count[bag->id[i]] = 0;
}

int64_t share_bag_dot(const struct share_bag *bag, const int32_t *count)
{
    int64_t dot = 0;
    for (int32_t i = 0; i < bag->n; i++)
        dot += (int64_t)bag->count[i] * count[bag->id[i]];
    return dot;
}

/* The product of two numbers, as its upper and lower 64 bits. */
static uint64_t multiply(uint64_t a, uint64_t b, uint64_t *low)
{
    uint64_t a0 = a & UINT32_MAX, a1 = a >> 32, b0 = b & UINT32_MAX, b1 = b >> 32;
    uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
    uint64_t other = a0 * b1 + (middle & UINT32_MAX);
    *low = a * b;
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

bool share_alike(int64_t dot, int64_t a, int64_t b, double cosine)
{
    uint64_t thousandths = (uint64_t)lround(1000.0 * cosine), left_low, right_low;
    if (dot <= 0)
        return false;
    uint64_t left = multiply(1000 * (uint64_t)dot, 1000 * (uint64_t)dot, &left_low);
    uint64_t right = multiply(thousandths * thousandths * (uint64_t)a, (uint64_t)b, &right_low);
    return left > right || (left == right && left_low > right_low);
}
