/*
 * number.c - numbers in text. It owns no memory and knows no locale: strtod reads "0.5" as 0 in a
 * process whose decimal point is a comma. Invariant: digits are collected in an integer and scaled.
 * That is one multiplication or division where it is exact (Clinger, "How to read floating point
 * numbers accurately", 1990).
 */
#include "base/number.h"

#define MAX_DIGITS 19      /* that an uint64_t holds */
#define MAX_EXPONENT 99999 /* far beyond any double: larger ones count as this */
#define EXACT_POWER 22     /* the largest power of ten that a double holds */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The part of a number that was read. */
struct digits {
    uint64_t value; /* of those that count */
    int32_t n;      /* how many these are, leading zeros left out */
    int64_t power;  /* of ten that the value is to be multiplied by */
    bool any;
};

static void add_digit(struct digits *d, int32_t digit, bool fraction)
{
    d->any = true;
    if (d->n == MAX_DIGITS) {
        d->power += !fraction;
        return;
    }
    d->value = d->value * 10 + (uint64_t)digit;
    d->n += d->value > 0;
    d->power -= fraction;
}

/* The digits of an exponent, behind its sign; false: none. */
static bool read_exponent(const char *text, size_t len, int64_t *out)
{
    int64_t value = 0;
    for (size_t i = 0; i < len; i++) {
        if (!is_digit(text[i]))
            return false;
        value = pi_min(value * 10 + (text[i] - '0'), MAX_EXPONENT);
    }
    *out = value;
    return len > 0;
}

static double scale(uint64_t value, int64_t power)
{
    static const double exact[EXACT_POWER + 1] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                                  1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                                  1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    double x = (double)value;
    while (power > 0 && x > 0.0 && x - x == 0.0) { /* neither zero nor infinite */
        int64_t step = pi_min(power, EXACT_POWER);
        x *= exact[step];
        power -= step;
    }
    while (power < 0 && x > 0.0) {
        int64_t step = pi_min(-power, EXACT_POWER);
        x /= exact[step];
        power += step;
    }
    return x;
}

bool pi_number_read(const char *text, size_t len, double *out)
{
    struct digits d = {0};
    bool negative = len > 0 && text[0] == '-', fraction = false;
    size_t i = len > 0 && (text[0] == '-' || text[0] == '+');
    for (; i < len && (is_digit(text[i]) || (text[i] == '.' && !fraction)); i++)
        if (text[i] == '.')
            fraction = true;
        else
            add_digit(&d, text[i] - '0', fraction);
    if (!d.any)
        return false;
    if (i < len && (text[i] == 'e' || text[i] == 'E')) {
        int64_t exponent;
        bool down = ++i < len && text[i] == '-';
        i += i < len && (text[i] == '-' || text[i] == '+');
        if (!read_exponent(text + i, len - i, &exponent))
            return false;
        d.power += down ? -exponent : exponent;
        i = len;
    }
    if (i != len)
        return false;
    *out = negative ? -scale(d.value, d.power) : scale(d.value, d.power);
    return true;
}
