/*
 * text.c - what tasks share and no model is needed for: random numbers, texts under construction,
 * files, intervals, failures.
 */
#define _XOPEN_SOURCE 700

#include "eval.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/new_file.h"

#define FIRST_CAP 256
#define FIRST_READ 65536

/* ---- random numbers ---- */

/* The finaliser of splitmix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
   Generators", OOPSLA 2014, figure 17 with Stafford's variant 13): a bijection of 64 bits. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#define GAMMA 0x9e3779b97f4a7c15u /* 2^64 over the golden ratio, odd */

struct eval_rng eval_rng_make(uint64_t seed, uint64_t a, uint64_t b)
{
    /* One round of mixing between the numbers, so that (0, 1) and (1, 0) are different streams. */
    uint64_t state = mix(seed + GAMMA);
    state = mix(state + a + GAMMA);
    return (struct eval_rng){mix(state + b + GAMMA)};
}

uint64_t eval_rng_next(struct eval_rng *rng)
{
    return mix(rng->state += GAMMA);
}

int32_t eval_rng_below(struct eval_rng *rng, int32_t n)
{
    uint64_t range = n > 0 ? (uint64_t)n : 1;
    uint64_t n_left_over = (UINT64_MAX % range + 1) % range; /* 2^64 mod range */
    uint64_t number;
    do
        number = eval_rng_next(rng);
    while (number < n_left_over); /* what is left is a multiple of range */
    return (int32_t)(number % range);
}

double eval_rng_unit(struct eval_rng *rng)
{
    return (double)(eval_rng_next(rng) >> 11) * 0x1p-53;
}

static void swap_bytes(unsigned char *a, unsigned char *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char t = a[i];
        a[i] = b[i];
        b[i] = t;
    }
}

/* Fisher and Yates, from the end. More than 2^31 - 1 items are no list of any task. */
void eval_rng_shuffle(struct eval_rng *rng, void *items, size_t n, size_t item_size)
{
    unsigned char *at = items;
    for (size_t i = n; i > 1; i--) {
        size_t j = (size_t)eval_rng_below(rng, (int32_t)i);
        if (j != i - 1)
            swap_bytes(at + j * item_size, at + (i - 1) * item_size, item_size);
    }
}

int eval_by_size(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* ---- texts ---- */

/* Room for len more bytes and the terminator; false marks the text as failed. */
static bool make_room(struct eval_text *t, size_t len)
{
    if (t->failed)
        return false;
    if (len < t->cap && t->len < t->cap - len)
        return true;
    size_t cap = t->cap > 0 ? t->cap : FIRST_CAP;
    while (len >= cap || t->len >= cap - len) {
        if (cap > SIZE_MAX / 2) {
            t->failed = true;
            return false;
        }
        cap *= 2;
    }
    char *grown = realloc(t->data, cap);
    if (grown == NULL) {
        t->failed = true;
        return false;
    }
    t->data = grown;
    t->cap = cap;
    return true;
}

void eval_text_add_n(struct eval_text *t, const char *s, size_t len)
{
    if (!make_room(t, len))
        return;
    if (len > 0)
        memcpy(t->data + t->len, s, len);
    t->len += len;
    t->data[t->len] = '\0';
}

void eval_text_add(struct eval_text *t, const char *s)
{
    eval_text_add_n(t, s, strlen(s));
}

void eval_text_add_json(struct eval_text *t, const json_t *value, size_t flags)
{
    char *json = json_dumps(value, flags);
    if (json != NULL)
        eval_text_add(t, json);
    else
        t->failed = true;
    free(json);
}

void eval_text_printf(struct eval_text *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (len < 0) {
        t->failed = true;
        return;
    }
    if (!make_room(t, (size_t)len))
        return;
    va_start(args, fmt);
    vsnprintf(t->data + t->len, (size_t)len + 1, fmt, args);
    va_end(args);
    t->len += (size_t)len;
}

void eval_text_clear(struct eval_text *t)
{
    t->len = 0;
    t->failed = false;
    if (t->data != NULL)
        t->data[0] = '\0';
}

void eval_text_free(struct eval_text *t)
{
    free(t->data);
    *t = (struct eval_text){0};
}

char *eval_utf8(const char *text)
{
    pith_utf8_stream stream = {0};
    size_t len = strlen(text), cap = 3 * (len + 4);
    char *out = malloc(2 * cap + 1);
    if (out == NULL)
        return NULL;
    size_t n = pith_utf8_push(&stream, text, len, out, cap);
    n += pith_utf8_push(&stream, NULL, 0, out + n, cap);
    out[n] = '\0';
    return out;
}

/* ---- files ---- */

size_t eval_drop_mark(char *text, size_t len)
{
    if (len < 3 || memcmp(text, "\xef\xbb\xbf", 3) != 0)
        return len;
    memmove(text, text + 3, len - 3);
    return len - 3;
}

static pith_status read_all(FILE *file, const char *path, struct eval_text *t, pith_error *err)
{
    for (;;) {
        size_t want = t->cap > FIRST_READ ? t->cap : FIRST_READ;
        if (!make_room(t, want))
            return eval_fail(err, PITH_NOMEM, "no memory for the %zu bytes and more of \"%s\"",
                             t->len, path);
        size_t got = fread(t->data + t->len, 1, want, file);
        t->len += got;
        if (got < want)
            break;
    }
    if (ferror(file))
        return eval_fail(err, PITH_IO, "cannot read \"%s\": %s", path, strerror(errno));
    t->len = eval_drop_mark(t->data, t->len);
    t->data[t->len] = '\0';
    return PITH_OK;
}

pith_status eval_read_file(const char *path, char **text, size_t *len, pith_error *err)
{
    struct eval_text t = {0};
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return eval_fail(err, PITH_IO, "cannot open \"%s\": %s", path, strerror(errno));
    pith_status status = read_all(file, path, &t, err);
    fclose(file);
    if (status != PITH_OK) {
        eval_text_free(&t);
        return status;
    }
    *text = t.data;
    *len = t.len;
    return PITH_OK;
}

pith_status eval_check_file(const char *path, pith_error *err)
{
    return pi_new_file_check(path, err);
}

pith_status eval_write_file(const char *path, const struct eval_text *text, pith_error *err)
{
    return pi_new_file_save(path, text->data, text->len, err);
}

/* ---- figures ---- */

/*
 * Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927):
 *   centre = (p + z^2 / 2n) / (1 + z^2 / n)
 *   half   = z sqrt(p (1 - p) / n + z^2 / 4n^2) / (1 + z^2 / n)
 * with z the 97.5 % point of the normal distribution.
 */
struct eval_interval eval_wilson(double successes, double n)
{
    const double z = 1.959963984540054;
    if (!(n > 0.0))
        return (struct eval_interval){0.0, 0.0, 1.0};
    double p = successes / n, zz = z * z / n;
    double centre = (p + zz / 2.0) / (1.0 + zz);
    double half = z * sqrt(fmax(p * (1.0 - p), 0.0) / n + zz / (4.0 * n)) / (1.0 + zz);
    /* At the ends one bound is exact, which rounding would miss. */
    return (struct eval_interval){p, p > 0.0 ? fmax(centre - half, 0.0) : 0.0,
                                  p < 1.0 ? fmin(centre + half, 1.0) : 1.0};
}

json_t *eval_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

double eval_clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double eval_cpu_s(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) != 0)
        return 0.0;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

pith_status eval_fail(pith_error *err, pith_status status, const char *fmt, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, fmt);
        err->status = status;
        vsnprintf(err->message, sizeof(err->message), fmt, args);
        va_end(args);
    }
    return status;
}
