/* base.h - what every file of the library may use: error forwarding, small arithmetic,
   alignment. */
#ifndef PI_BASE_H
#define PI_BASE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "pith/pith.h"

/* Forwards a failure to the caller. The only macro of the library that hides control flow. */
#define PI_TRY(expr)                                                                               \
    do {                                                                                           \
        pith_status pi_try_status_ = (expr);                                                       \
        if (pi_try_status_ != PITH_OK)                                                             \
            return pi_try_status_;                                                                 \
    } while (0)

#define PI_LEN(array) (sizeof(array) / sizeof((array)[0]))

/* Asks the processor's cache for a line that will be read. */
#define PI_ASK(p) __builtin_prefetch(p)
/* Begins a function that does nothing else. GCC leaves out calls of one that it does not inline. */
#define PI_ASKS static inline __attribute__((always_inline)) void

#if defined(__GNUC__)
#define PI_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define PI_PRINTF(fmt, args)
#endif

/* Fills *err (may be NULL) with status and the formatted sentence, and returns status. */
pith_status pi_fail(pith_error *err, pith_status status, const char *fmt, ...) PI_PRINTF(3, 4);
/* INVALID, with the field and the value, unless min <= value <= max. */
pith_status pi_check_range(const char *field, int64_t value, int64_t min, int64_t max,
                           pith_error *err);

/* One log line, "key=value ...", to the callback that pith_log_set installed. */
void pi_log(pith_log_level level, const char *fmt, ...) PI_PRINTF(2, 3);

static inline int64_t pi_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t pi_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
static inline int64_t pi_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static inline size_t pi_align(size_t n, size_t a)
{
    return (n + a - 1) / a * a;
}

/* *out = a * b; returns false on overflow. */
static inline bool pi_mul_size(size_t a, size_t b, size_t *out)
{
    if (b != 0 && a > SIZE_MAX / b)
        return false;
    *out = a * b;
    return true;
}

#endif
