/*
 * jinja_functions.c - what templates call without an object: range, namespace, dict, and the two
 * that transformers adds, raise_exception and strftime_now. The date comes from the caller; nothing
 * here asks the system.
 */
#include <stdio.h>

#include "text/template/jinja_run.h"

#define RANGE_MAX 100000 /* as the sandbox has it */

static struct jinja_value call_range(JINJA_ROW)
{
    JINJA_UNUSED;
    bool one = arg[1].kind == JINJA_ABSENT;
    int64_t from = one ? 0 : jinja_arg_int(r, arg[0], 0, "range: start");
    int64_t to = jinja_arg_int(r, arg[!one], 0, "range: stop");
    int64_t step = jinja_arg_int(r, arg[2], 1, "range: step");
    struct jinja_value list = jinja_list_new(r->h, JINJA_RANGE, 0);
    if (step == 0)
        jinja_fail(r->h, PITH_INVALID, "chat template: range() arg 3 must not be zero");
    if (jinja_failed(r->h))
        return list;
    double n = ((double)to - (double)from) / (double)step;
    if (n > RANGE_MAX) {
        jinja_fail(r->h, PITH_INVALID,
                   "chat template: Range too big. The sandbox blocks ranges larger than %d.",
                   RANGE_MAX);
        return list;
    }
    for (int64_t i = from; n > 0 && (step > 0 ? i < to : i > to) && jinja_charge(r->h, 1);) {
        jinja_list_add(r->h, list, jinja_int(i));
        if (step > 0 ? i > INT64_MAX - step : i < INT64_MIN - step)
            break;
        i += step;
    }
    return list;
}

/* dict(mapping or pairs, name=value) */
static struct jinja_value make_dict(struct jinja_run *r, const struct jinja_args *args)
{
    struct jinja_value dict = jinja_dict_new(r->h);
    for (size_t i = 0; i < args->n_place && !jinja_failed(r->h); i++) {
        struct jinja_value from = args->place[i];
        bool mapping = from.kind == JINJA_DICT;
        struct jinja_value items = jinja_items(r->h, from);
        for (size_t k = 0; !jinja_failed(r->h) && k < items.u.list->n; k++) {
            struct jinja_value item = items.u.list->item[k];
            if (mapping)
                jinja_dict_set(r->h, dict.u.dict, item, from.u.dict->pair[k].value);
            else if (jinja_is_list(item) && item.u.list->n == 2)
                jinja_dict_set(r->h, dict.u.dict, item.u.list->item[0], item.u.list->item[1]);
            else
                jinja_fail(r->h, PITH_INVALID, "chat template: dict: element %zu is no pair", k);
        }
    }
    for (size_t i = 0; i < args->n_named && !jinja_failed(r->h); i++)
        jinja_dict_set(r->h, dict.u.dict, jinja_of(args->named[i].name), args->named[i].value);
    return dict;
}

static struct jinja_value call_dict(JINJA_ROW)
{
    JINJA_UNUSED;
    return make_dict(r, rest);
}

static struct jinja_value call_namespace(JINJA_ROW)
{
    JINJA_UNUSED;
    struct jinja_value dict = make_dict(r, rest);
    if (dict.kind == JINJA_DICT)
        dict.kind = JINJA_NAMESPACE;
    return dict;
}

/* The message is the template's own. */
static struct jinja_value call_raise(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str *message = jinja_to_str(r->h, arg[0]);
    jinja_fail(r->h, PITH_INVALID, "%.*s", (int)pi_min((int64_t)message->len, 4096), message->data);
    return jinja_undefined();
}

/* ---- dates ---- */

struct date {
    int64_t year;
    int month, day, weekday, yearday; /* from 1, 1, Sunday 0, 1 */
    int hour, minute, second;
};

/* Days since 1970 to the Gregorian calendar, by way of years that begin in March. */
static struct date date_of(int64_t now)
{
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    struct date d = {0};
    int64_t days = now / 86400, left = now % 86400;
    if (left < 0) {
        days--;
        left += 86400;
    }
    d.hour = (int)(left / 3600);
    d.minute = (int)(left / 60 % 60);
    d.second = (int)(left % 60);
    d.weekday = (int)(((days + 4) % 7 + 7) % 7);
    int64_t shifted = days + 719468, era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
    int64_t of_era = shifted - era * 146097;
    int64_t year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t month = (5 * of_year + 2) / 153;
    d.day = (int)(of_year - (153 * month + 2) / 5 + 1);
    d.month = (int)(month < 10 ? month + 3 : month - 9);
    d.year = year_of_era + era * 400 + (d.month <= 2);
    bool leap = (d.year % 4 == 0 && d.year % 100 != 0) || d.year % 400 == 0;
    d.yearday = before[d.month - 1] + d.day + (leap && d.month > 2);
    return d;
}

static const char *const months[] = {"January",   "February", "March",    "April",
                                     "May",       "June",     "July",     "August",
                                     "September", "October",  "November", "December"};
static const char *const weekdays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};

/* The numbers of a date. False: the letter names none. pad: '-' none, 0 as usual. */
static bool print_number(const struct date *d, char letter, char pad, char *out, size_t cap)
{
    int hour12 = d->hour % 12 == 0 ? 12 : d->hour % 12, width = 2;
    int64_t n;
    switch (letter) {
    case 'Y':
        n = d->year;
        width = 1;
        break;
    case 'y':
        n = (d->year % 100 + 100) % 100;
        break;
    case 'm':
        n = d->month;
        break;
    case 'd':
    case 'e':
        n = d->day;
        break;
    case 'H':
        n = d->hour;
        break;
    case 'I':
        n = hour12;
        break;
    case 'M':
        n = d->minute;
        break;
    case 'S':
        n = d->second;
        break;
    case 'j':
        n = d->yearday;
        width = 3;
        break;
    case 'w':
        n = d->weekday;
        width = 1;
        break;
    case 'u':
        n = d->weekday == 0 ? 7 : d->weekday;
        width = 1;
        break;
    default:
        return false;
    }
    if (letter == 'e' && pad == 0)
        snprintf(out, cap, "%2lld", (long long)n);
    else
        snprintf(out, cap, "%0*lld", pad == '-' ? 1 : width, (long long)n);
    return true;
}

static void put_date(struct jinja_buf *b, const struct date *d, const char *format, size_t len);

/* One letter behind a percent sign; what is none stays as it is. */
static void put_letter(struct jinja_buf *b, const struct date *d, char letter, char pad)
{
    static const struct {
        char letter;
        const char *stands_for;
    } forms[] = {
        {'F', "%Y-%m-%d"},
        {'T', "%H:%M:%S"},
        {'R', "%H:%M"},
        {'D', "%m/%d/%y"},
        {'x', "%m/%d/%y"},
        {'X', "%H:%M:%S"},
        {'c', "%a %b %e %H:%M:%S %Y"},
    };
    char text[32];
    for (size_t i = 0; i < PI_LEN(forms); i++) {
        if (forms[i].letter == letter) {
            put_date(b, d, forms[i].stands_for, strlen(forms[i].stands_for));
            return;
        }
    }
    if (print_number(d, letter, pad, text, sizeof(text))) {
        jinja_put_text(b, text);
    } else if (letter == 'B' || letter == 'b' || letter == 'h') {
        const char *name = months[d->month - 1];
        jinja_put_bytes(b, name, letter == 'B' ? strlen(name) : 3, false);
    } else if (letter == 'A' || letter == 'a') {
        const char *name = weekdays[d->weekday];
        jinja_put_bytes(b, name, letter == 'A' ? strlen(name) : 3, false);
    } else if (letter == 'p') {
        jinja_put_text(b, d->hour < 12 ? "AM" : "PM");
    } else if (letter == '%') {
        jinja_put_text(b, "%");
    } else {
        jinja_fail(b->h, PITH_UNSUPPORTED, "chat template: strftime_now: %%%c is not supported",
                   letter);
    }
}

static void put_date(struct jinja_buf *b, const struct date *d, const char *format, size_t len)
{
    for (size_t at = 0; at < len && jinja_charge(b->h, 1); at++) {
        char pad = 0;
        if (format[at] != '%' || at + 1 >= len) {
            jinja_put_bytes(b, &format[at], 1, false);
            continue;
        }
        if (format[++at] == '-' && at + 1 < len)
            pad = format[at++];
        put_letter(b, d, format[at], pad);
    }
}

static struct jinja_value call_strftime_now(JINJA_ROW)
{
    JINJA_UNUSED;
    const struct jinja_str *format = jinja_arg_str(r, arg[0], "strftime_now");
    struct jinja_buf b = {.h = r->h};
    const struct date d = date_of(*r->now);
    if (format != NULL)
        put_date(&b, &d, format->data, format->len);
    return jinja_of(jinja_buf_end(&b));
}

const struct jinja_builtin jinja_functions[] = {
    {"range", call_range, {"start", "stop", "step"}, 1, false},
    {"dict", call_dict, {0}, 0, true},
    {"namespace", call_namespace, {0}, 0, true},
    {"raise_exception", call_raise, {"message"}, 1, false},
    {"strftime_now", call_strftime_now, {"format"}, 1, false},
    {0},
};
