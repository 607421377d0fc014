/*
 * test_utf8.c - characters in bytes and the stream: every code point, every cut, and ill-formed
 * bytes. These are replaced as the Unicode standard shows (section 3.9, tables 3-8 to 3-11).
 */
#include <string.h>

#include "base/utf8.h"
#include "testing.h"

#define FFFD "\xef\xbf\xbd"

struct vector {
    const char *in;
    const char *out;
};

static const struct vector vectors[] = {
    {"", ""},
    {"plain", "plain"},
    {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
    /* Table 3-8: non-shortest forms. */
    {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A"},
    /* Table 3-9: surrogates. */
    {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A"},
    /* Table 3-10: other ill-formed sequences. */
    {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", FFFD FFFD FFFD FFFD FFFD "A" FFFD FFFD "B"},
    /* Table 3-11: truncated sequences. */
    {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", FFFD FFFD FFFD FFFD "A"},
    /* An end inside of a character. */
    {"a\xf0\x9f\x98", "a" FFFD},
    {"a\xe2\x82", "a" FFFD},
    {"a\xc3", "a" FFFD},
    {"\x80", FFFD},
    {"\xf5", FFFD},
};

/* Pushes in as pieces [0, cut), [cut, end) and flushes. */
static size_t push_cut(const char *in, size_t len, size_t cut, char *out, size_t cap)
{
    pith_utf8_stream stream = {0};
    size_t n = pith_utf8_push(&stream, in, cut, out, cap);
    n += pith_utf8_push(&stream, in + cut, len - cut, out + n, cap - n);
    n += pith_utf8_push(&stream, NULL, 0, out + n, cap - n);
    assert_int_equal(stream.n_pending, 0);
    return n;
}

TEST(replaces_as_the_standard_shows_at_every_cut)
{
    for (size_t i = 0; i < PI_LEN(vectors); i++) {
        size_t len = strlen(vectors[i].in), want = strlen(vectors[i].out);
        for (size_t cut = 0; cut <= len; cut++) {
            char out[128] = {0};
            assert_int_equal(push_cut(vectors[i].in, len, cut, out, sizeof(out)), want);
            assert_memory_equal(out, vectors[i].out, want);
        }
    }
}

/* After every single byte, the output consists of whole characters. */
TEST(never_gives_half_a_character)
{
    uint64_t rng = 1;
    for (int round = 0; round < 2000; round++) {
        char in[24], out[256];
        size_t n = 0;
        pith_utf8_stream stream = {0};
        for (size_t i = 0; i < sizeof(in); i++) {
            /* Lead and continuation bytes more often than chance has it. */
            uint64_t kind = rng_below(&rng, 4);
            in[i] = (char)(kind == 0   ? rng_below(&rng, 256)
                           : kind == 1 ? 0xc0 + rng_below(&rng, 64)
                                       : 0x80 + rng_below(&rng, 64));
            n += pith_utf8_push(&stream, in + i, 1, out + n, sizeof(out) - n);
            assert_int_equal(pi_utf8_span(out, n), n);
        }
        n += pith_utf8_push(&stream, NULL, 0, out + n, sizeof(out) - n);
        char whole[256];
        assert_int_equal(push_cut(in, sizeof(in), sizeof(in), whole, sizeof(whole)), n);
        assert_memory_equal(out, whole, n);
        assert_int_equal(pi_utf8_span(out, n), n);
    }
}

TEST(passes_every_code_point)
{
    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        char bytes[8];
        size_t len = pi_utf8_encode(c, bytes);
        struct pi_utf8_char at = pi_utf8_next(bytes, len);
        bool surrogate = c >= 0xd800 && c <= 0xdfff;
        if (at.valid == surrogate)
            fail_msg("U+%X is%s valid", (unsigned)c, at.valid ? "" : " not");
        if (surrogate)
            continue;
        if (at.len != len || pi_utf8_decode(bytes, len) != c)
            fail_msg("U+%X is read as %u bytes, U+%X", (unsigned)c, at.len,
                     (unsigned)pi_utf8_decode(bytes, len));
        for (size_t part = 1; part < len; part++)
            assert_true(pi_utf8_next(bytes, part).cut);
    }
}

/* No sequence of two bytes is well-formed but those that the encoder writes. */
TEST(passes_or_replaces_any_two_bytes)
{
    for (int a = 0x80; a < 256; a++) {
        for (int b = 0; b < 256; b++) {
            char bytes[2] = {(char)a, (char)b}, again[4];
            struct pi_utf8_char at = pi_utf8_next(bytes, 2);
            if (!at.valid)
                continue;
            assert_int_equal(at.len, 2);
            assert_int_equal(pi_utf8_encode(pi_utf8_decode(bytes, 2), again), 2);
            assert_memory_equal(bytes, again, 2);
        }
    }
}

TEST(a_small_cap_writes_nothing)
{
    pith_utf8_stream stream = {0};
    char out[64];
    memset(out, '#', sizeof(out));
    assert_int_equal(pith_utf8_push(&stream, "abcd", 4, out, 3 * (4 + 4) - 1), 0);
    assert_int_equal(out[0], '#');
    assert_int_equal(pith_utf8_push(&stream, "abcd", 4, out, 3 * (4 + 4)), 4);
}
