/*
 * test_nfc.c - composed texts. Every character in several surroundings and many texts are compared
 * with another library (golden file, see scripts/golden/nfc.py). Composed texts come back
 * unchanged. Also bytes that are not UTF-8, hostile lengths, and memory that runs out.
 */
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "base/utf8.h"
#include "testing.h"
#include "text/vocab/nfc.h"

#define GOLDEN PITH_SOURCE_DIR "/tests/golden/nfc.txt"

static size_t unhex(const char *hex, char *out)
{
    size_t n = 0;
    for (unsigned byte; hex[0] != '-' && hex[2 * n] != 0; n++) {
        assert_int_equal(sscanf(hex + 2 * n, "%2x", &byte), 1);
        out[n] = (char)byte;
    }
    return n;
}

static void compose(struct pi_nfc *nfc, const char *text, size_t len, const char **out, size_t *n)
{
    err = (pith_error){0};
    if (pi_nfc_compose(nfc, text, len, out, n, &err) != PITH_OK)
        fail_msg("%s", err.message);
}

static void check_case(struct pi_nfc *nfc, const char *in, const char *want)
{
    char text[1024], form[1024];
    const char *out;
    size_t len = unhex(in, text), form_len = unhex(want, form), n;
    compose(nfc, text, len, &out, &n);
    if (n != form_len || memcmp(out, form, n) != 0)
        fail_msg("%s: not %s", in, want);
    compose(nfc, form, form_len, &out, &n); /* once is enough */
    assert_int_equal(n, form_len);
    assert_memory_equal(out, form, n);
}

/* FNV-1a of the forms of before + c + behind, for every character c. */
static uint64_t sum_of_all(struct pi_nfc *nfc, const char *before, const char *behind)
{
    uint64_t sum = 0xcbf29ce484222325u;
    char text[64];
    size_t first = unhex(before, text);
    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        if (c >= 0xd800 && c < 0xe000)
            continue;
        const char *out;
        size_t len = first + pi_utf8_encode(c, text + first), n;
        len += unhex(behind, text + len);
        compose(nfc, text, len, &out, &n);
        for (size_t i = 0; i < n; i++)
            sum = (sum ^ (uint8_t)out[i]) * 0x100000001b3u;
    }
    return sum;
}

TEST(composes_as_unicodedata_does)
{
    static char line[8192], in[4096], want[4096];
    struct pi_nfc nfc = {0};
    unsigned long long sum;
    int n_case = 0, n_sum = 0;
    FILE *file = fopen(GOLDEN, "rb");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "case %4095s %4095s", in, want) == 2) {
            check_case(&nfc, in, want);
            n_case++;
        } else if (sscanf(line, "sum %4095s %4095s %llx", in, want, &sum) == 3) {
            if (n_sum++ % TEST_STRIDE == 0 && sum_of_all(&nfc, in, want) != sum)
                fail_msg("between %s and %s", in, want);
        }
    }
    fclose(file);
    pi_nfc_free(&nfc);
    assert_int_equal(n_case, 621);
    assert_int_equal(n_sum, 6);
}

/* A composed text is not copied. */
TEST(a_composed_text_is_not_copied)
{
    static const char *const texts[] = {"",
                                        "plain text",
                                        "d\xc3\xa9j\xc3\xa0 vu",
                                        "Ti\xe1\xba\xbfng Vi\xe1\xbb\x87t", /* Vietnamese */
                                        "\xec\x95\x88\xeb\x85\x95",
                                        "\xe4\xbd\xa0\xe5\xa5\xbd",
                                        "\xff\x80 \xcc"};
    struct pi_nfc nfc = {0};
    for (size_t i = 0; i < PI_LEN(texts); i++) {
        const char *out;
        size_t n;
        compose(&nfc, texts[i], strlen(texts[i]), &out, &n);
        assert_ptr_equal(out, texts[i]);
        assert_int_equal(n, strlen(texts[i]));
    }
    assert_null(nfc.out);
    pi_nfc_free(&nfc);
}

/* Bytes that are no character stay, and no mark joins the bytes before them. */
TEST(bytes_that_are_no_character_stay)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"e\xff\xcc\x81", "e\xff\xcc\x81"},
        {"\x80\xcc\x81", "\x80\xcc\x81"},
        {"\xc3\xcc\x81"
         "e\xcc\x81",
         "\xc3\xcc\x81\xc3\xa9"},
        {"e\xcc\x81\xff"
         "e\xcc\x81\xe1\x84",
         "\xc3\xa9\xff\xc3\xa9\xe1\x84"},
    };
    struct pi_nfc nfc = {0};
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        const char *out;
        size_t n;
        compose(&nfc, cases[i].in, strlen(cases[i].in), &out, &n);
        assert_int_equal(n, strlen(cases[i].out));
        assert_memory_equal(out, cases[i].out, n);
    }
    pi_nfc_free(&nfc);
}

/* A megabyte of marks of two classes in turn: the time is linear. */
TEST(a_megabyte_of_marks_takes_linear_time)
{
    const size_t n_pair = 1 << 18, size = 1 + 4 * n_pair;
    char *text = malloc(size);
    struct pi_nfc nfc = {0};
    const char *out;
    size_t n;
    text[0] = 'q';
    for (size_t i = 0; i < n_pair; i++)
        memcpy(text + 1 + 4 * i, "\xcc\x81\xcc\xa3", 4); /* classes 230 and 220 */
    double start = pi_time_s();
    compose(&nfc, text, size, &out, &n);
    assert_true(pi_time_s() - start < 5);
    assert_int_equal(n, size);
    assert_memory_equal(out, "q\xcc\xa3\xcc\xa3", 5);
    assert_memory_equal(out + size - 4, "\xcc\x81\xcc\x81", 4);
    pi_nfc_free(&nfc);
    free(text);
}

TEST(survives_every_failing_allocation)
{
    static const char text[] = "e\xcc\x81 and \xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab";
    for (int64_t i = 1;; i++) {
        struct pi_nfc nfc = {0};
        err = (pith_error){0};
        const char *out;
        size_t n;
        pi_mem_fail_at(i, false);
        pith_status status = pi_nfc_compose(&nfc, text, strlen(text), &out, &n, &err);
        pi_mem_fail_at(0, false);
        pi_nfc_free(&nfc);
        if (status == PITH_OK) {
            assert_true(i > 2);
            break;
        }
        assert_int_equal(status, PITH_NOMEM);
        assert_true(err.message[0] != 0);
    }
    assert_int_equal(pi_mem_used(PI_MEM_OTHER), 0);
}
