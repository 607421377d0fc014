/*
 * split.c - shares of a budget from text: even, a pyramid, or numbers. It knows neither what is
 * shared nor among whom. A pure function of the text, or of the file that the text names.
 */
#include "base/number.h"
#include "base/os.h"
#include "base/utf8.h"
#include "keep/keep.h"

/* Cai et al., "PyramidKV", 2024 (arXiv 2406.02069), section 3.2: budgets that fall by equal steps
   from 2 - 1 / beta of the mean in the first layer to 1 / beta of it in the last. */
static pith_status fill_pyramid(const char *key, const char *text, int32_t n, double *weight,
                                pith_error *err)
{
    double beta;
    if (!pi_number_read(text, strlen(text), &beta) || !(beta >= 1.0) || !(beta <= 1e6))
        return pi_fail(err, PITH_INVALID, "keep: %s: \"pyramid:%.32s\" has no number in 1..1e6",
                       key, text);
    for (int32_t i = 0; i < n; i++)
        weight[i] = n == 1 ? 1.0 : 2.0 - 1.0 / beta - i * (2.0 - 2.0 / beta) / (n - 1);
    return PITH_OK;
}

/* Numbers as they are to numbers whose mean is 1. */
static void normalise(int32_t n, double *weight)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += weight[i];
    for (int32_t i = 0; i < n; i++)
        weight[i] *= n / sum;
}

/* A number at the beginning of text [len], behind blanks, that ends there or before `end`; *used
   characters with what ends it. False: none, or not above zero. */
static bool read_number(const char *text, size_t len, char end, size_t *used, double *out)
{
    size_t n = 0, blank = 0;
    while (n < len && text[n] != end)
        n++;
    while (blank < n && pi_is_space(text[blank]))
        blank++;
    *used = n < len ? n + 1 : n;
    return pi_number_read(text + blank, n - blank, out) && *out > 0.0 && *out <= 1e9;
}

/* Exactly n numbers, each ended by `end` or the text. */
static pith_status read_numbers(const char *key, const char *text, size_t len, char end, int32_t n,
                                double *weight, pith_error *err)
{
    size_t at = 0, used;
    int32_t i = 0;
    for (; at < len; i++) {
        double x;
        if (!read_number(text + at, len - at, end, &used, &x))
            return pi_fail(err, PITH_INVALID, "keep: %s: number %d, at \"%.*s\", is not above zero",
                           key, i + 1, (int)pi_min((int64_t)(len - at), 16), text + at);
        if (i < n)
            weight[i] = x;
        at += used;
    }
    if (i != n)
        return pi_fail(err, PITH_INVALID, "keep: %s: %d numbers, and %d are shared among", key, i,
                       n);
    normalise(n, weight);
    return PITH_OK;
}

/* One number per line. */
static pith_status read_file(const char *key, const char *path, int32_t n, double *weight,
                             pith_error *err)
{
    struct pi_file file = {0};
    PI_TRY(pi_file_map(path, &file, err));
    pith_status status =
        read_numbers(key, (const char *)file.data, file.size, '\n', n, weight, err);
    pi_file_unmap(&file);
    return status;
}

pith_status keep_split_read(const char *key, const char *text, int32_t n, double *weight,
                            pith_error *err)
{
    static const char pyramid[] = "pyramid:", beyond[] = "pyramidkv:";
    if (strcmp(text, "even") == 0) {
        for (int32_t i = 0; i < n; i++)
            weight[i] = 1.0;
        return PITH_OK;
    }
    if (strncmp(text, pyramid, sizeof(pyramid) - 1) == 0)
        return fill_pyramid(key, text + sizeof(pyramid) - 1, n, weight, err);
    if (strncmp(text, beyond, sizeof(beyond) - 1) == 0)
        return fill_pyramid(key, text + sizeof(beyond) - 1, n, weight, err);
    if (text[0] >= '0' && text[0] <= '9')
        return read_numbers(key, text, strlen(text), '/', n, weight, err);
    return read_file(key, text, n, weight, err);
}
