/*
 * status.c - statuses as text, the one place where an error message is made, and the log line. It
 * knows nothing of causes.
 */
#include <stdarg.h>
#include <stdio.h>

#include "base/base.h"

static pith_log_fn *log_fn;
static void *log_user;

const char *pith_status_name(pith_status status)
{
    switch (status) {
#define XX(name, value, text)                                                                      \
    case PITH_##name:                                                                              \
        return #name;
        PITH_STATUS_MAP(XX)
#undef XX
    }
    return "UNKNOWN";
}

const char *pith_status_text(pith_status status)
{
    switch (status) {
#define XX(name, value, text)                                                                      \
    case PITH_##name:                                                                              \
        return text;
        PITH_STATUS_MAP(XX)
#undef XX
    }
    return "an unknown status";
}

const char *pith_version(void)
{
    return PITH_VERSION;
}

pith_status pi_fail(pith_error *err, pith_status status, const char *fmt, ...)
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

pith_status pi_check_range(const char *field, int64_t value, int64_t min, int64_t max,
                           pith_error *err)
{
    if (value < min || value > max)
        return pi_fail(err, PITH_INVALID, "%s: %lld is not in %lld..%lld", field, (long long)value,
                       (long long)min, (long long)max);
    return PITH_OK;
}

void pith_log_set(pith_log_fn *fn, void *user)
{
    log_fn = fn;
    log_user = user;
}

void pi_log(pith_log_level level, const char *fmt, ...)
{
    char line[512];
    va_list args;
    if (log_fn == NULL)
        return;
    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    log_fn(log_user, level, line);
}
