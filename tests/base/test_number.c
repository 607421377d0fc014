/* Numbers in text: the double that strtod reads in the C locale, under every locale. */
#include <locale.h>
#include <math.h>
#include <string.h>

#include "testing.h"

#include "base/number.h"
#include "policy/keep/rules/options.h"

static bool reads(const char *text, double *out)
{
    *out = 12345.0;
    return pi_number_read(text, strlen(text), out);
}

static void expect(const char *text, double want)
{
    double got;
    if (!reads(text, &got) || got != want || signbit(got) != signbit(want))
        fail_msg("\"%s\" is read as %.17g, not %.17g", text, got, want);
}

TEST(reads_numbers_in_every_form)
{
    expect("0", 0.0);
    expect("-0", -0.0);
    expect("1", 1.0);
    expect("+1.5", 1.5);
    expect(".5", 0.5);
    expect("5.", 5.0);
    expect("-2.25e2", -225.0);
    expect("1E-3", 1e-3);
    expect("0.1", 0.1);
    expect("1e22", 1e22);
    expect("123456789012345e-22", 123456789012345e-22);
    expect("0000000000000000000000000000.0000000000000000000000000000125", 1.25e-29 * 1.0);
    expect("1e400", INFINITY);
    expect("-1e99999999999999999999", -INFINITY);
    expect("1e-400", 0.0);
    expect("0e99999", 0.0);
    expect("9007199254740992000000000000000000000", 9007199254740992e21);
}

TEST(refuses_what_is_no_number)
{
    static const char *const texts[] = {"",      "+",   "-",     ".",    "e5",  "1e",
                                        "1e+",   "1e-", " 1",    "1 ",   "1,5", "1.2.3",
                                        "0x10",  "inf", "nan",   "1e5.", "--1", "1e--5",
                                        "1e5e5", ".e1", "1_000", "\n1",  "1f"};
    for (size_t i = 0; i < PI_LEN(texts); i++) {
        double x;
        if (reads(texts[i], &x))
            fail_msg("\"%s\" is read as %g", texts[i], x);
        assert_true(x == 12345.0);
    }
    double x = 7.0; /* nothing behind the length is looked at */
    assert_true(pi_number_read("12.5e3", 3, &x) && x == 12.0);
    assert_true(pi_number_read("12.5e3", 4, &x) && x == 12.5);
    assert_false(pi_number_read("12.5e3", 5, &x));
}

/* Numbers within the range that is promised to be exact, and beyond it. */
TEST(reads_numbers_as_strtod_does)
{
    uint64_t rng = 4;
    for (int32_t i = 0; i < 200000; i++) {
        char text[64];
        bool exact = i % 2 == 0;
        uint64_t digits = rng_next(&rng) >> (exact ? 11 : 1);
        digits >>= rng_below(&rng, 53);
        int32_t power =
            exact ? (int32_t)rng_below(&rng, 45) - 22 : (int32_t)rng_below(&rng, 601) - 300;
        snprintf(text, sizeof(text), "%llue%d", (unsigned long long)digits, power);
        double want = strtod(text, NULL), got;
        assert_true(reads(text, &got));
        double bound = exact || !isfinite(want) ? 0.0 : 16.0 * 0x1p-52 * want;
        if (want < 0x1p-1000 && !exact)
            bound = 0x1p-1050; /* denormal numbers have fewer places */
        if (got != want && !(fabs(got - want) <= bound) && !(exact == false && want > 1e307))
            fail_msg("\"%s\" is read as %.17g, not %.17g", text, got, want);
    }
}

/* The options of policies in a process whose decimal point is a comma. */
TEST(a_locale_with_a_comma_changes_nothing)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8",  "fr_FR.UTF-8", "fr_FR.utf8",
                                        "nl_NL.UTF-8", "pt_BR.UTF-8", "de_DE",       "fr_FR"};
    bool found = false;
    for (size_t i = 0; i < PI_LEN(names) && !found; i++)
        found =
            setlocale(LC_ALL, names[i]) != NULL && strcmp(localeconv()->decimal_point, ",") == 0;
    if (!found)
        test_skip("no locale with a decimal comma is installed");
    double weight[3];
    expect("0.5", 0.5);
    assert_int_equal(keep_split_read("layers", "1.5/0.5/1", 3, weight, &err), PITH_OK);
    assert_true(weight[0] == 1.5 && weight[1] == 0.5 && weight[2] == 1.0);
    assert_int_equal(keep_split_read("layers", "1,5/0,5/1", 3, weight, &err), PITH_INVALID);
    setlocale(LC_ALL, "C");
}
