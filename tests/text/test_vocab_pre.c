/*
 * test_vocab_pre.c - pre-tokenizers. Words equal the result of another engine on the published
 * patterns (golden file, see scripts/golden/pre.py). Also invalid bytes, and linear time on inputs
 * that are slow for such patterns.
 */
#include <string.h>

#include "base/os.h"
#include "testing.h"
#include "text/vocab/vocab_internal.h"

#define GOLDEN PITH_SOURCE_DIR "/tests/golden/pre.txt"
#define LINE_MAX_LEN 4096

/* Where words go: they are compared with their places in the text and counted. */
struct words {
    const char *text; /* where the next word must start */
    int32_t n;
    size_t start[512]; /* of the first words */
    size_t len[512];
    const char *base;
};

static pith_status take_word(void *user, const char *word, size_t len, pith_error *why)
{
    (void)why;
    struct words *w = user;
    assert_ptr_equal(word, w->text);
    assert_true(len > 0);
    w->text = word + len;
    if (w->n < (int32_t)PI_LEN(w->start)) {
        w->start[w->n] = (size_t)(word - w->base);
        w->len[w->n] = len;
    }
    w->n++;
    return PITH_OK;
}

static struct pi_pre *open_pre(const char *name)
{
    struct pi_pre *pre;
    struct pi_pre_traits traits;
    err = (pith_error){0};
    if (pi_pre_create(name, strlen(name), &pre, &traits, &err) != PITH_OK)
        fail_msg("%s", err.message);
    return pre;
}

/* The words of a text are its bytes, in order; returns their count. */
static int32_t split(const struct pi_pre *pre, const char *text, size_t len, struct words *w)
{
    struct pi_pre_scratch scratch = {0};
    err = (pith_error){0};
    *w = (struct words){.text = text, .base = text};
    assert_int_equal(pi_pre_begin(pre, &scratch, &err), PITH_OK);
    if (pi_pre_split(pre, &scratch, text, len, take_word, w, &err) != PITH_OK)
        fail_msg("%s", err.message);
    pi_pre_end(&scratch);
    assert_ptr_equal(w->text, text + len);
    return w->n;
}

/* ---- golden words ---- */

/* Copies the text between the bars of a line with its escapes undone; returns the length. */
static size_t read_text(const char *line, char *out)
{
    const char *begin = strchr(line, '|'), *end = strrchr(line, '|');
    assert_non_null(begin);
    size_t n = 0;
    for (const char *p = begin + 1; p < end; p++) {
        if (*p != '\\') {
            out[n++] = *p;
            continue;
        }
        p++;
        out[n++] = *p == 'n' ? '\n' : *p == 'r' ? '\r' : *p == 't' ? '\t' : *p;
    }
    out[n] = 0;
    return n;
}

static void check_golden(const char *name, const char *text, size_t len, FILE *file)
{
    static char line[LINE_MAX_LEN], want[LINE_MAX_LEN];
    static struct words w;
    struct pi_pre *pre = open_pre(name);
    split(pre, text, len, &w);
    long at = ftell(file);
    int32_t n = 0;
    for (; fgets(line, sizeof(line), file) != NULL && line[0] == 'w'; at = ftell(file), n++) {
        size_t want_len = read_text(line, want);
        assert_true(n < w.n);
        if (w.len[n] != want_len || memcmp(text + w.start[n], want, want_len) != 0)
            fail_msg("%s: word %d is \"%.*s\", not \"%s\"", name, n, (int)w.len[n],
                     text + w.start[n], want);
    }
    fseek(file, at, SEEK_SET);
    assert_int_equal(n, w.n);
    pi_pre_free(pre);
}

TEST(splits_words_as_published_patterns_do)
{
    static char line[LINE_MAX_LEN], text[LINE_MAX_LEN], name[64];
    FILE *file = fopen(GOLDEN, "rb");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    size_t len = read_text(line, text);
    int n = 0;
    for (; fgets(line, sizeof(line), file) != NULL; n++) {
        assert_int_equal(sscanf(line, "pre %63s", name), 1);
        check_golden(name, text, len, file);
    }
    fclose(file);
    assert_true(n >= 16);
}

/* ---- names ---- */

TEST(refuses_unknown_names)
{
    struct pi_pre *pre = NULL;
    struct pi_pre_traits traits;
    err = (pith_error){0};
    static const char *const unknown[] = {"", "qwen", "qwen22", "gpt-", "klingon"};
    for (size_t i = 0; i < PI_LEN(unknown); i++) {
        char quoted[64];
        snprintf(quoted, sizeof(quoted), "\"%s\"", unknown[i]);
        assert_int_equal(pi_pre_create(unknown[i], strlen(unknown[i]), &pre, &traits, &err),
                         PITH_UNSUPPORTED);
        assert_non_null(strstr(err.message, quoted));
        assert_non_null(strstr(err.message, "tokenizer.ggml.pre"));
    }
    assert_null(pre);
    static const char *const whole[] = {"llama3", "llama-v3", "llama-bpe", "falcon3", "tekken"};
    for (size_t i = 0; i < PI_LEN(whole); i++) {
        assert_int_equal(pi_pre_create(whole[i], strlen(whole[i]), &pre, &traits, &err), PITH_OK);
        assert_true(traits.ignore_merges && traits.add_bos);
        pi_pre_free(pre);
    }
}

/* ---- hostile text ---- */

static const char *const pres[] = {
    "default", "gpt-2",     "llama-bpe", "qwen2",       "qwen35", "deepseek-llm", "deepseek-coder",
    "gpt-4o",  "starcoder", "command-r", "deepseek-v3", "falcon", "tekken"};

/* Bytes that are not well-formed are words of their own, between any others. */
TEST(ill_formed_bytes_are_words_of_their_own)
{
    static const char text[] = "ab\xff\xfe"
                               "cd \xe4\xbd"
                               "1\xed\xa0\x80\xc3\xa9";
    static const size_t lens[] = {2, 2, 2, 1, 2, 1, 3, 2};
    for (size_t i = 0; i < PI_LEN(pres); i++) {
        static struct words w;
        struct pi_pre *pre = open_pre(pres[i]);
        assert_int_equal(split(pre, text, sizeof(text) - 1, &w), PI_LEN(lens));
        for (size_t k = 0; k < PI_LEN(lens); k++)
            assert_int_equal(w.len[k], lens[k]);
        pi_pre_free(pre);
    }
}

TEST(random_texts_are_split_without_loss)
{
    static const char *const parts[] = {" ",
                                        "  ",
                                        "\n",
                                        "\r\n",
                                        "\t",
                                        "a",
                                        "B",
                                        "'s",
                                        "'LL",
                                        "1",
                                        "23",
                                        ".",
                                        "$",
                                        "\xc2\xa0",
                                        "\xe3\x80\x80",
                                        "\xc3\xa9",
                                        "\xe4\xbd\xa0",
                                        "\xf0\x9f\x98\x80",
                                        "\xcc\x81",
                                        "\x80",
                                        "\xe2\x80\xa8",
                                        "\xc3\x89",
                                        "/"};
    uint64_t rng = 11;
    for (size_t i = 0; i < PI_LEN(pres); i++) {
        struct pi_pre *pre = open_pre(pres[i]);
        for (int round = 0; round < 300; round++) {
            static struct words w;
            char text[256] = {0};
            size_t len = 0;
            for (uint64_t n = rng_below(&rng, 40); n > 0; n--) {
                const char *part = parts[rng_below(&rng, PI_LEN(parts))];
                memcpy(text + len, part, strlen(part));
                len += strlen(part);
            }
            split(pre, text, len, &w);
        }
        pi_pre_free(pre);
    }
}

#define LONG_LEN ((size_t)1 << 17)

/* One kind of text over and over, then something that makes greedy patterns go back. A pattern that
   tries every start or every end of such a run would take hours. */
TEST(long_runs_take_linear_time)
{
    static const char *const units[] = {
        " ",   "\n",           "a",        "A",  "1",  ".",    "\r",      "\xe3\x80\x80",
        "\t ", "\xe4\xbd\xa0", "\xcc\x81", "' ", "Aa", "\xff", "\xc2\x85"};
    static const char *const ends[] = {"", "x", "\xe4\xbd\xa0", "1"};
    char *text = test_malloc(LONG_LEN + 8);
    double begin = pi_time_s();
    for (size_t i = 0; i < PI_LEN(pres); i++) {
        struct pi_pre *pre = open_pre(pres[i]);
        for (size_t u = 0; u < PI_LEN(units) * PI_LEN(ends); u++) {
            static struct words w;
            const char *unit = units[u / PI_LEN(ends)], *end = ends[u % PI_LEN(ends)];
            size_t len = 0, unit_len = strlen(unit);
            for (; len + unit_len <= LONG_LEN; len += unit_len)
                memcpy(text + len, unit, unit_len);
            memcpy(text + len, end, strlen(end));
            split(pre, text, len + strlen(end), &w);
        }
        pi_pre_free(pre);
    }
    printf("%zu MiB of runs in %.2f s\n",
           PI_LEN(pres) * PI_LEN(units) * PI_LEN(ends) * LONG_LEN >> 20, pi_time_s() - begin);
    test_free(text);
}
