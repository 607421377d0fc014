/*
 * stop.c - stop strings in a stream. It knows text only: no tokens, no model.
 *
 * Invariant: between calls, held is the longest end of the text so far that a stop string begins
 * with. So it is shorter than the longest of them.
 */
#include "base/mem.h"
#include "text/stop.h"

#define FIRST_CAP 1024 /* holds any usual piece, so that the loop over tokens allocates nothing */

size_t pi_stop_len(const struct pi_stop *stop, int32_t i)
{
    return stop->lens != NULL ? stop->lens[i] : strlen(stop->strings[i]);
}

pith_status pi_stop_init(struct pi_stop *stop, const char *const *strings, const size_t *lens,
                         int32_t n_string, pith_error *err)
{
    *stop = (struct pi_stop){.strings = strings, .lens = lens, .n_string = n_string};
    if (n_string < 0 || (n_string > 0 && strings == NULL))
        return pi_fail(err, PITH_INVALID, "n_stop: %d stop strings without a list", n_string);
    for (int32_t i = 0; i < n_string; i++) {
        if (strings[i] == NULL || pi_stop_len(stop, i) == 0)
            return pi_fail(err, PITH_INVALID, "stop: string %d is empty", i);
        stop->longest = (size_t)pi_max((int64_t)stop->longest, (int64_t)pi_stop_len(stop, i));
    }
    stop->cap = stop->longest + FIRST_CAP;
    stop->held = pi_mem_alloc(PI_MEM_OTHER, stop->cap);
    if (stop->held == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for stop strings of %zu bytes", stop->longest);
    return PITH_OK;
}

void pi_stop_free(struct pi_stop *stop)
{
    pi_mem_free(stop->held);
    *stop = (struct pi_stop){0};
}

static pith_status append(struct pi_stop *stop, const char *text, size_t len, pith_error *err)
{
    if (stop->len + len > stop->cap) {
        size_t cap = 2 * (stop->len + len);
        char *held = pi_mem_grow(PI_MEM_OTHER, stop->held, cap, 1);
        if (held == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for %zu bytes of text", cap);
        stop->held = held;
        stop->cap = cap;
    }
    if (len > 0)
        memcpy(stop->held + stop->len, text, len);
    stop->len += len;
    return PITH_OK;
}

/* The longest stop string that ends at held[end); 0: none does. */
static size_t match_ending_at(const struct pi_stop *stop, size_t end)
{
    size_t longest = 0;
    for (int32_t i = 0; i < stop->n_string; i++) {
        size_t len = pi_stop_len(stop, i);
        if (len <= end && len > longest &&
            memcmp(stop->held + end - len, stop->strings[i], len) == 0)
            longest = len;
    }
    return longest;
}

/* Whether some stop string begins with all of held[begin, len). */
static bool may_begin_at(const struct pi_stop *stop, size_t begin)
{
    size_t rest = stop->len - begin;
    for (int32_t i = 0; i < stop->n_string; i++)
        if (pi_stop_len(stop, i) > rest && memcmp(stop->held + begin, stop->strings[i], rest) == 0)
            return true;
    return false;
}

pith_status pi_stop_push(struct pi_stop *stop, const char *text, size_t len, size_t *n_certain,
                         bool *found, pith_error *err)
{
    size_t old_len = stop->len;
    PI_TRY(append(stop, text, len, err));
    *found = false;
    for (size_t end = old_len + 1; end <= stop->len; end++) {
        size_t match = match_ending_at(stop, end);
        if (match > 0) {
            *n_certain = end - match;
            *found = true;
            return PITH_OK;
        }
    }
    size_t begin = stop->len > stop->longest ? stop->len - stop->longest : 0;
    while (begin < stop->len && !may_begin_at(stop, begin))
        begin++;
    *n_certain = begin;
    return PITH_OK;
}

void pi_stop_drop(struct pi_stop *stop, size_t n)
{
    stop->len -= n;
    memmove(stop->held, stop->held + n, stop->len);
}
