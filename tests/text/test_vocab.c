/*
 * test_vocab.c - text to ids and back. It is compared with slow reference algorithms on made
 * vocabularies, and with the reference ids of real ones (shared data). Also the rules for special
 * tokens, spaces and ends.
 */
#include <string.h>

#include "base/os.h"
#include "base/utf8.h"
#include "testing.h"
#include "text/vocab/nfc.h"
#include "vocab_maker.h"

#define ID_MAX 4096
#define SPACE "\xe2\x96\x81" /* as SentencePiece writes it */

/* Tokenizes into ids [ID_MAX]; returns the count. */
static int32_t tokenize(const struct pi_vocab *v, const char *text, size_t len, uint32_t flags,
                        int32_t *ids)
{
    int32_t n = -1;
    err = (pith_error){0};
    if (pi_vocab_tokenize(v, text, len, flags, ids, ID_MAX, &n, &err) != PITH_OK)
        fail_msg("%s", err.message);
    return n;
}

/* Checks the ids of a text, given as the texts of the tokens they should be; NULL ends them. */
static void expect(const struct pi_vocab *v, const struct made_vocab *m, const char *text,
                   uint32_t flags, const char *const *tokens)
{
    int32_t ids[ID_MAX], n = tokenize(v, text, strlen(text), flags, ids), i = 0;
    for (; tokens[i] != NULL && i < n; i++) {
        if (ids[i] != made_find(m, tokens[i]))
            fail_msg("\"%s\": id %d is %s, not %s", text, i, m->token[ids[i]].text, tokens[i]);
    }
    if (i != n || tokens[i] != NULL)
        fail_msg("\"%s\": %d ids, not %d", text, n, i);
}

#define EXPECT(v, m, text, flags, ...)                                                             \
    expect(v, m, text, flags, (const char *const[]){__VA_ARGS__, NULL})

/* Detokenizes into out [cap]; returns the length. */
static size_t detokenize(const struct pi_vocab *v, const int32_t *ids, int32_t n, bool special,
                         char *out, size_t cap)
{
    size_t len = 0;
    err = (pith_error){0};
    if (pi_vocab_detokenize(v, ids, n, special, out, cap, &len, &err) != PITH_OK)
        fail_msg("%s", err.message);
    return len;
}

static void expect_text(const struct pi_vocab *v, const int32_t *ids, int32_t n, bool special,
                        const char *want)
{
    char out[1024];
    size_t len = detokenize(v, ids, n, special, out, sizeof(out) - 1);
    out[len] = 0;
    assert_string_equal(out, want);
}

/* ---- merging, against the obvious algorithm ---- */

struct symbols {
    char text[64][128];
    int32_t n;
};

static void join_at(struct symbols *s, int32_t i)
{
    char right[128];
    memcpy(right, s->text[i + 1], sizeof(right));
    size_t len = strlen(s->text[i]);
    snprintf(s->text[i] + len, sizeof(s->text[i]) - len, "%s", right);
    memmove(s->text[i + 1], s->text[i + 2], (size_t)(s->n - i - 2) * sizeof(s->text[0]));
    s->n--;
}

/* Joins the pair of the best rank, the leftmost of equals, until there is none. */
static void merge_bpe(struct symbols *s, const struct made_vocab *m)
{
    for (;;) {
        int32_t best = -1, best_rank = INT32_MAX;
        for (int32_t i = 0; i + 1 < s->n; i++) {
            char pair[260];
            snprintf(pair, sizeof(pair), "%s %s", s->text[i], s->text[i + 1]);
            for (int32_t rank = 0; m->merge[rank] != NULL && rank < best_rank; rank++) {
                if (strcmp(pair, m->merge[rank]) == 0) {
                    best = i;
                    best_rank = rank;
                }
            }
        }
        if (best < 0)
            return;
        join_at(s, best);
    }
}

static void merge_spm(struct symbols *s, const struct made_vocab *m)
{
    for (;;) {
        int32_t best = -1;
        float best_score = 0;
        for (int32_t i = 0; i + 1 < s->n; i++) {
            char pair[260];
            snprintf(pair, sizeof(pair), "%s%s", s->text[i], s->text[i + 1]);
            int32_t id = made_find(m, pair);
            if (id >= 0 && m->token[id].type == NORMAL &&
                (best < 0 || m->token[id].score > best_score)) {
                best = i;
                best_score = m->token[id].score;
            }
        }
        if (best < 0)
            return;
        join_at(s, best);
    }
}

static void compare_symbols(const struct symbols *s, const struct made_vocab *m, const char *text,
                            const int32_t *ids, int32_t n)
{
    if (n != s->n)
        fail_msg("\"%s\": %d ids, not %d", text, n, s->n);
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] != made_find(m, s->text[i]))
            fail_msg("\"%s\": id %d is %s, not %s", text, i, m->token[ids[i]].text, s->text[i]);
    }
}

TEST(bpe_agrees_with_a_slow_reference)
{
    static struct made_vocab m;
    made_bpe(&m, "gpt-2");
    struct pi_vocab *v = vocab_made(&m);
    static const char letters[] = "aaabbhelorwd";
    uint64_t rng = 3;
    for (int round = 0; round < 3000; round++) {
        char text[48] = {0};
        static struct symbols s;
        int32_t ids[ID_MAX];
        s.n = 1 + (int32_t)rng_below(&rng, 40);
        for (int32_t i = 0; i < s.n; i++) {
            text[i] = letters[rng_below(&rng, sizeof(letters) - 1)];
            snprintf(s.text[i], sizeof(s.text[i]), "%c", text[i]);
        }
        int32_t n = tokenize(v, text, strlen(text), 0, ids);
        merge_bpe(&s, &m);
        compare_symbols(&s, &m, text, ids, n);
    }
    pi_vocab_free(v);
}

static void compare_spm(const struct made_vocab *m)
{
    struct pi_vocab *v = vocab_made(m);
    static const char *const chars[] = {
        "a", "a", "b", " ", " ", "h", "e", "l", "o", "w", "r", "d", "\xe4\xbd\xa0", "\xc3\xa9"};
    uint64_t rng = 4;
    for (int round = 0; round < 3000; round++) {
        char text[256] = {0};
        static struct symbols s;
        int32_t ids[ID_MAX];
        s.n = 1 + (int32_t)rng_below(&rng, 40);
        snprintf(s.text[0], sizeof(s.text[0]), "\xe2\x96\x81"); /* the prefix */
        for (int32_t i = 1; i < s.n; i++) {
            const char *c = chars[rng_below(&rng, PI_LEN(chars))];
            strcat(text, c);
            snprintf(s.text[i], sizeof(s.text[i]), "%s", *c == ' ' ? "\xe2\x96\x81" : c);
        }
        if (s.n == 1)
            continue; /* no text, no prefix */
        int32_t n = tokenize(v, text, strlen(text), 0, ids);
        merge_spm(&s, m);
        compare_symbols(&s, m, text, ids, n);
    }
    pi_vocab_free(v);
}

/* Tokens with a space inside let merges cross the border of words. */
TEST(spm_agrees_with_a_slow_reference)
{
    static struct made_vocab m;
    made_spm(&m);
    compare_spm(&m);
    made_add(&m, "a" SPACE, NORMAL, -3);
    made_add(&m, "a" SPACE "b", NORMAL, -2);
    made_add(&m, SPACE "a" SPACE, NORMAL, -1);
    compare_spm(&m);
}

TEST(splits_words_and_merges)
{
    static struct made_vocab m;
    made_bpe(&m, "gpt-2");
    struct pi_vocab *v = vocab_made(&m);
    assert_string_equal(pi_vocab_kind(v), "bpe/gpt-2");
    assert_int_equal(pi_vocab_size(v), m.n_token);
    EXPECT(v, &m, "hello world", 0, "hello", "\xc4\xa0world");
    EXPECT(v, &m, "aaaab", 0, "aaaa", "b");
    EXPECT(v, &m, "he he", 0, "he", "\xc4\xa0", "he");
    EXPECT(v, &m, "\xe5\xbd\xbc", 0, "\xc3\xa5\xc2\xbd", "\xc2\xbc");
    expect(v, &m, "", 0, (const char *const[]){NULL});
    pi_vocab_free(v);
}

/* Of two tokens with one text the first is found. Merges find it, too: they look it up from the
   token of the merge before. */
TEST(of_twin_tokens_the_first_is_found)
{
    static struct made_vocab m;
    made_bpe(&m, "gpt-2");
    int32_t ids[ID_MAX], second = made_find(&m, "ll");
    assert_int_equal(second, made_find(&m, "he") + 1);
    snprintf(m.token[255].text, sizeof(m.token[255].text), "ll"); /* byte 255 is in no text here */
    struct pi_vocab *v = vocab_made(&m);
    assert_int_equal(tokenize(v, "ll", 2, 0, ids), 1);
    assert_int_equal(ids[0], 255);
    EXPECT(v, &m, "hello", 0, "hello");
    pi_vocab_free(v);
}

/* Words that are tokens stay whole where the pre-tokenizer says so: merging alone would make
   "12" + "3" of "123", and 1 + 23 has no merge. */
TEST(words_that_are_tokens_stay_whole)
{
    static struct made_vocab m;
    made_bpe(&m, "llama-bpe");
    made_add(&m, "rod", NORMAL, 0); /* no merge makes it */
    struct pi_vocab *v = vocab_made(&m);
    EXPECT(v, &m, "rod", 0, "rod");
    EXPECT(v, &m, "rodd", 0, "r", "o", "d", "d");
    pi_vocab_free(v);
    m.pre = "qwen2";
    v = vocab_made(&m);
    EXPECT(v, &m, "rod", 0, "r", "o", "d");
    pi_vocab_free(v);
}

/* Bytes that have no token are left out before merging, as Hugging Face's tokenizers do. Their
   neighbours may merge, and there is no unknown token, even where the file names one. */
TEST(leaves_out_bytes_without_a_token)
{
    static struct made_vocab m;
    made_bpe(&m, "gpt-2");
    char lost[8];
    made_byte_char(0x13, lost);
    snprintf(m.token[made_find(&m, lost)].text, sizeof(m.token[0].text), "not a byte");
    m.id[0].name = "unknown";
    m.id[0].value = (uint32_t)m.eos;
    struct pi_vocab *v = vocab_made(&m);
    EXPECT(v, &m, "h\x13o", 0, "h", "o");
    EXPECT(v, &m, "a\x13", 0, "a");
    EXPECT(v, &m, "\x13", 0, NULL);
    EXPECT(v, &m, "\x13\x13hello\x13", 0, "hello");
    pi_vocab_free(v);
    char part[8];
    made_byte_char(0x85, part); /* the second byte of U+00C5, A with a ring */
    snprintf(m.token[made_find(&m, part)].text, sizeof(m.token[0].text), "no byte either");
    v = vocab_made(&m);
    EXPECT(v, &m, "aa\xc3\x85", 0, "aa", "\xc3\x83");
    pi_vocab_free(v);
}

/* Text without a SentencePiece token is unknown, once for a run of it. */
TEST(a_run_without_tokens_is_unknown_once)
{
    static struct made_vocab m;
    made_spm(&m);
    struct pi_vocab *v = vocab_made(&m);
    EXPECT(v, &m, "a?", 0, SPACE "a", "<0x3F>");
    pi_vocab_free(v);
    for (int byte = 0; byte < 256; byte++)
        m.token[3 + byte].type = CONTROL;
    v = vocab_made(&m);
    EXPECT(v, &m, "a?!b\xe2\x82\xac", 0, SPACE "a", "<unk>", "b", "<unk>");
    pi_vocab_free(v);
    m.id[0].name = "unknown";
    m.id[0].value = UINT32_MAX; /* none */
    v = vocab_made(&m);
    EXPECT(v, &m, "a?b", 0, SPACE "a", "b");
    pi_vocab_free(v);
}

/* Texts are composed where the published tokenizer does so, and names of tokens are not. */
TEST(composes_texts_where_the_tokenizer_does)
{
    static struct made_vocab m;
    static const char *const composes[] = {
        "qwen2", "qwen35", "deepseek-r1-qwen", "stablelm2", "command-r", "olmo", "mpt", "hunyuan"};
    static const char *const not [] = {"gpt-2", "llama-bpe", "smollm", "tekken", "kimi-k2"};
    static const char plain[] = "a\xcc\x8a"; /* a and a ring */
    for (size_t i = 0; i < PI_LEN(composes) + PI_LEN(not ); i++) {
        bool nfc = i < PI_LEN(composes);
        made_bpe(&m, nfc ? composes[i] : not [i - PI_LEN(composes)]);
        if (strcmp(m.pre, "llama-bpe") == 0 || strcmp(m.pre, "tekken") == 0)
            m.add_bos = 0;
        made_add(&m, "<e\xcc\x81>", CONTROL, 0);
        struct pi_vocab *v = vocab_made(&m);
        int32_t ids[8];
        assert_int_equal(tokenize(v, plain, 3, 0, ids), nfc ? 2 : 3);
        if (nfc)
            EXPECT(v, &m, plain, 0, "\xc3\x83", "\xc2\xa5"); /* the bytes of U+00E5 */
        assert_int_equal(tokenize(v, "<e\xcc\x81>", 5, PITH_TOKENIZE_SPECIAL, ids), 1);
        assert_int_equal(tokenize(v, "<e\xcc\x81>", 5, 0, ids), nfc ? 4 : 5);
        /* A user's text is composed, too, and gives no control token. */
        int32_t n = 0;
        static const uint8_t user[5] = {1, 1, 1, 1, 1};
        assert_int_equal(pi_vocab_tokenize_marked(v, "<e\xcc\x81>", 5, user, PITH_TOKENIZE_SPECIAL,
                                                  ids, 8, &n, NULL),
                         PITH_OK);
        assert_int_equal(n, nfc ? 4 : 5);
        pi_vocab_free(v);
    }
}

/* A file of Kimi K2 may have no merges: any two neighbours merge whose text is a token, the lowest
   id first. No other file may. */
TEST(merges_by_rank_where_a_file_has_no_merges)
{
    static struct made_vocab m;
    made_bpe(&m, "kimi-k2");
    m.merge = NULL;
    made_add(&m, "rd", NORMAL, 0);
    made_add(&m, "ow", NORMAL, 0);
    struct pi_vocab *v = vocab_made(&m);
    EXPECT(v, &m, "hello", 0, "hello");
    EXPECT(v, &m, "ord", 0, "or", "d"); /* "or" comes before "rd" */
    EXPECT(v, &m, "erd", 0, "e", "rd");
    EXPECT(v, &m, "hellow", 0, "hello", "w");
    EXPECT(v, &m,
           "12\xe4\xbd\xa1"
           "3",
           0, "12", "\xc3\xa4", "\xc2\xbd", "\xc2\xa1", "3");
    pi_vocab_free(v);
}

/* ---- the gap of a text ---- */

TEST(finds_the_tokens_of_a_gap)
{
    static struct made_vocab m;
    pith_gap_tokens gap;
    made_bpe(&m, "gpt-2");
    struct pi_vocab *v = vocab_made(&m);
    assert_false(pi_vocab_gap_tokens(v, &gap)); /* "<|fim_prefix|>" alone is no set */
    assert_int_equal(gap.prefix, -1);
    pi_vocab_free(v);
    int32_t suffix = made_add(&m, "<|fim_suffix|>", CONTROL, 0);
    int32_t middle = made_add(&m, "<|fim_middle|>", CONTROL, 0);
    int32_t file = made_add(&m, "<|file_sep|>", CONTROL, 0);
    v = vocab_made(&m);
    assert_true(pi_vocab_gap_tokens(v, &gap));
    assert_int_equal(gap.prefix, made_find(&m, "<|fim_prefix|>"));
    assert_int_equal(gap.suffix, suffix);
    assert_int_equal(gap.middle, middle);
    assert_int_equal(gap.repo, -1);
    assert_int_equal(gap.file, file);
    pi_vocab_free(v);
    /* The file's own word comes first, and may name any token; the older keys are read, too. */
    static const char *const names[] = {"fim_pre", "suffix", "fim_mid", "fim_rep"};
    for (int i = 0; i < 4; i++) {
        m.id[i].name = names[i];
        m.id[i].value = (uint32_t)i + 40;
    }
    v = vocab_made(&m);
    assert_true(pi_vocab_gap_tokens(v, &gap));
    assert_int_equal(gap.prefix, 40);
    assert_int_equal(gap.suffix, 41);
    assert_int_equal(gap.middle, 42);
    assert_int_equal(gap.repo, 43);
    assert_int_equal(gap.file, file);
    pi_vocab_free(v);
}

/* ---- special tokens and flags ---- */

TEST(special_tokens_are_found_when_asked_for)
{
    static struct made_vocab m;
    made_bpe(&m, "gpt-2");
    struct pi_vocab *v = vocab_made(&m);
    const uint32_t special = PITH_TOKENIZE_SPECIAL;
    /* Control tokens only when asked for, user-defined ones always, the longest first. */
    EXPECT(v, &m, "a<|stop|>b", special, "a", "<|stop|>", "b");
    EXPECT(v, &m, "a<|stop|>", 0, "a", "<", "|", "s", "t", "o", "p", "|", ">");
    EXPECT(v, &m, "a<user tag>b<user>", 0, "a", "<user tag>", "b", "<user", ">");
    EXPECT(v, &m, "<|im_end|><|im_end|><|im_end|>", special, "<|im_end|><|im_end|>", "<|im_end|>");
    EXPECT(v, &m, "<|begin|><|stop", special, "<|begin|>", "<", "|", "s", "t", "o", "p");
    /* The file calls it user-defined; its text says that it is a control token. */
    EXPECT(v, &m, "<|fim_prefix|>", special, "<|fim_prefix|>");
    int32_t ids[ID_MAX];
    assert_true(tokenize(v, "<|fim_prefix|>", 14, 0, ids) > 1);
    pi_vocab_free(v);
}

TEST(adds_bos_and_eos_as_the_file_says)
{
    static struct made_vocab m;
    made_bpe(&m, "gpt-2");
    const uint32_t bos = PITH_TOKENIZE_BOS;
    struct pi_vocab *v = vocab_made(&m);
    EXPECT(v, &m, "a", bos, "a");
    pi_vocab_free(v);
    m.add_bos = m.add_eos = 1;
    v = vocab_made(&m);
    EXPECT(v, &m, "a", bos, "<|begin|>", "a", "<|stop|>");
    EXPECT(v, &m, "", bos, "<|begin|>", "<|stop|>");
    EXPECT(v, &m, "a", 0, "a");
    assert_int_equal(pi_vocab_bos(v), m.bos);
    assert_int_equal(pi_vocab_eos(v), m.eos);
    pi_vocab_free(v);
    m.bos = m.eos = -1;
    v = vocab_made(&m);
    EXPECT(v, &m, "a", bos, "a");
    assert_int_equal(pi_vocab_bos(v), -1);
    pi_vocab_free(v);
    made_bpe(&m, "llama-bpe"); /* has BOS unless the file says no */
    v = vocab_made(&m);
    EXPECT(v, &m, "a", bos, "<|begin|>", "a");
    pi_vocab_free(v);
    made_spm(&m);
    v = vocab_made(&m);
    EXPECT(v, &m, "a", bos, "<s>",
           "\xe2\x96\x81"
           "a");
    pi_vocab_free(v);
}

TEST(knows_tokens_that_end_an_answer)
{
    static struct made_vocab m;
    made_bpe(&m, "gpt-2");
    static const char *const ends[] = {"<|eot_id|>",
                                       "<end_of_turn>",
                                       "<|endoftext|>",
                                       "<|end|>",
                                       "<|eom_id|>",
                                       "</s>",
                                       "<|EOT|>",
                                       "<\xef\xbd\x9c"
                                       "end\xe2\x96\x81of\xe2\x96\x81sentence"
                                       "\xef\xbd\x9c>"};
    for (size_t i = 0; i < PI_LEN(ends); i++)
        made_add(&m, ends[i], CONTROL, 0);
    struct pi_vocab *v = vocab_made(&m);
    for (size_t i = 0; i < PI_LEN(ends); i++)
        assert_true(pi_vocab_is_end(v, made_find(&m, ends[i])));
    assert_true(pi_vocab_is_end(v, made_find(&m, "<|im_end|>")));
    assert_true(pi_vocab_is_end(v, m.eos));
    assert_false(pi_vocab_is_end(v, m.bos));
    assert_false(pi_vocab_is_end(v, made_find(&m, "a")));
    assert_false(pi_vocab_is_end(v, -1));
    assert_false(pi_vocab_is_end(v, m.n_token));
    pi_vocab_free(v);
}

/* In gpt-oss's vocabulary an end is that of a message, and the marks of messages are text. */
TEST(ends_of_messages_are_no_text)
{
    static const char *const marks[] = {"<|end|>", "<|start|>", "<|channel|>", "<|message|>",
                                        "<|constrain|>"};
    static struct made_vocab m;
    made_bpe(&m, "gpt-2");
    made_add(&m, "<|return|>", CONTROL, 0);
    made_add(&m, "<|call|>", CONTROL, 0);
    for (size_t i = 0; i < PI_LEN(marks); i++)
        made_add(&m, marks[i], CONTROL, 0);
    struct pi_vocab *v = vocab_made(&m);
    assert_true(pi_vocab_is_end(v, made_find(&m, "<|return|>")));
    assert_true(pi_vocab_is_end(v, made_find(&m, "<|call|>")));
    for (size_t i = 0; i < PI_LEN(marks); i++) {
        int32_t id = made_find(&m, marks[i]);
        char text[32];
        size_t len;
        assert_false(pi_vocab_is_end(v, id));
        assert_int_equal(pi_vocab_token_bytes(v, id, false, text, sizeof(text), &len), PITH_OK);
        assert_int_equal(len, strlen(marks[i]));
        assert_memory_equal(text, marks[i], len);
    }
    EXPECT(v, &m, "<|end|>", PITH_TOKENIZE_SPECIAL, "<|end|>");
    int32_t ids[16], n;
    assert_int_equal(pi_vocab_tokenize(v, "<|end|>", 7, 0, ids, 16, &n, NULL), PITH_OK);
    assert_int_not_equal(n, 1); /* a user's text gives no special token */
    pi_vocab_free(v);
}

/* Phi-3's special tokens swallow the white space behind them. */
TEST(phi_3_strips_space_behind_special_tokens)
{
    static struct made_vocab m;
    made_spm(&m);
    const uint32_t special = PITH_TOKENIZE_SPECIAL;
    struct pi_vocab *v = vocab_made(&m);
    EXPECT(v, &m, "<|end|> \n a", special, "<|end|>", "\xe2\x96\x81\xe2\x96\x81", "<0x0A>",
           "\xe2\x96\x81"
           "a");
    pi_vocab_free(v);
    m.name = "My Phi-3 mini";
    v = vocab_made(&m);
    EXPECT(v, &m, "<|end|> \n a<|user|>\n\n", special, "<|end|>",
           "\xe2\x96\x81"
           "a",
           "<|user|>");
    EXPECT(v, &m, "<s>  a", special, "<s>", "\xe2\x96\x81\xe2\x96\x81",
           "\xe2\x96\x81"
           "a");
    pi_vocab_free(v);
}

/* ---- back to text ---- */

TEST(spm_marks_spaces)
{
    static struct made_vocab m;
    made_spm(&m);
    struct pi_vocab *v = vocab_made(&m);
    assert_string_equal(pi_vocab_kind(v), "spm");
    EXPECT(v, &m, "hello world", 0, "\xe2\x96\x81hello", "\xe2\x96\x81world");
    EXPECT(v, &m, "a<|user|>a", 0,
           "\xe2\x96\x81"
           "a",
           "<|user|>",
           "\xe2\x96\x81"
           "a");
    EXPECT(v, &m,
           "\xe2\x96\x81"
           "a\n",
           0, "\xe2\x96\x81\xe2\x96\x81", "a", "<0x0A>");
    EXPECT(v, &m, "\xe2\x96", 0, "\xe2\x96\x81", "<0xE2>", "<0x96>");
    int32_t ids[] = {1, made_find(&m, "\xe2\x96\x81hello"), 2, made_find(&m, "\xe2\x96\x81world")};
    expect_text(v, ids, 4, false, "hello world");
    expect_text(v, ids, 4, true, "<s>hello</s> world");
    expect_text(v, ids + 1, 1, true, "hello");
    char bytes[16];
    size_t len;
    assert_int_equal(pi_vocab_token_bytes(v, ids[1], false, bytes, sizeof(bytes), &len), PITH_OK);
    assert_int_equal(len, 6); /* one token knows nothing of its place: the space stays */
    assert_memory_equal(bytes, " hello", 6);
    pi_vocab_free(v);
    m.add_space_prefix = 0;
    v = vocab_made(&m);
    EXPECT(v, &m, "hello world", 0, "hello", "\xe2\x96\x81world");
    expect_text(v, ids, 4, false, " hello world");
    pi_vocab_free(v);
}

/* Any bytes come back, composed where the vocabulary wants that. The pieces of a stream are the
   same text with U+FFFD for invalid bytes. */
static void round_trip(const struct pi_vocab *v, uint64_t *rng)
{
    char text[200], back[800], streamed[2048], whole[2048];
    int32_t ids[ID_MAX];
    size_t len = rng_below(rng, sizeof(text)), want_len;
    for (size_t i = 0; i < len;) {
        if (rng_below(rng, 3) == 0) {
            text[i++] = (char)rng_next(rng);
            continue;
        }
        char c[4];
        uint32_t point = (uint32_t)rng_below(rng, rng_below(rng, 2) == 0 ? 0x80 : 0x11000);
        size_t n = pi_utf8_encode(point == 0x2581 ? 'x' : point, c);
        for (size_t k = 0; k < n && i < len; k++)
            text[i++] = c[k];
    }
    int32_t n = tokenize(v, text, len, 0, ids);
    struct pi_nfc nfc = {0};
    const char *want = text;
    want_len = len;
    if (strcmp(pi_vocab_kind(v), "bpe/qwen2") == 0)
        assert_int_equal(pi_nfc_compose(&nfc, text, len, &want, &want_len, NULL), PITH_OK);
    len = detokenize(v, ids, n, false, back, sizeof(back));
    assert_int_equal(len, want_len);
    assert_memory_equal(back, want, len);
    pi_nfc_free(&nfc);

    pith_utf8_stream one = {0}, all = {0};
    size_t n_streamed = 0, n_whole = pith_utf8_push(&all, back, len, whole, sizeof(whole));
    for (int32_t i = 0; i < n; i++) {
        char piece[64];
        size_t piece_len;
        assert_int_equal(pi_vocab_token_bytes(v, ids[i], false, piece, sizeof(piece), &piece_len),
                         PITH_OK);
        n_streamed += pith_utf8_push(&one, piece, piece_len, streamed + n_streamed,
                                     sizeof(streamed) - n_streamed);
        assert_int_equal(pi_utf8_span(streamed, n_streamed), n_streamed);
    }
    n_streamed +=
        pith_utf8_push(&one, NULL, 0, streamed + n_streamed, sizeof(streamed) - n_streamed);
    n_whole += pith_utf8_push(&all, NULL, 0, whole + n_whole, sizeof(whole) - n_whole);
    size_t prefix = n_streamed - n_whole; /* SentencePiece's space in front */
    assert_true(prefix <= 1);
    assert_memory_equal(streamed + prefix, whole, n_whole);
}

TEST(any_text_comes_back)
{
    static struct made_vocab m;
    uint64_t rng = 5;
    static const char *const pres[] = {NULL, "gpt-2", "qwen2", "deepseek-llm", "tekken"};
    for (size_t i = 0; i <= PI_LEN(pres); i++) {
        if (i < PI_LEN(pres))
            made_bpe(&m, pres[i]);
        else
            made_spm(&m);
        struct pi_vocab *v = vocab_made(&m);
        for (int round = 0; round < 300; round++)
            round_trip(v, &rng);
        pi_vocab_free(v);
    }
}

TEST(special_tokens_are_printed_when_asked_for)
{
    static struct made_vocab m;
    made_bpe(&m, "gpt-2");
    struct pi_vocab *v = vocab_made(&m);
    int32_t ids[] = {m.bos, made_find(&m, "hello"), made_find(&m, "<user tag>"), m.eos};
    expect_text(v, ids, 4, false, "hello<user tag>");
    expect_text(v, ids, 4, true, "<|begin|>hello<user tag><|stop|>");
    pi_vocab_free(v);
}

/* ---- sizes ---- */

TEST(writes_nothing_beyond_the_cap)
{
    static struct made_vocab m;
    made_bpe(&m, "gpt-2");
    struct pi_vocab *v = vocab_made(&m);
    const char *text = "hello world, abab aaaa 123";
    size_t len = strlen(text), text_len;
    int32_t whole[64], part[64], n, needed;
    assert_int_equal(pi_vocab_tokenize(v, text, len, 0, whole, 64, &n, NULL), PITH_OK);
    for (int32_t cap = 0; cap < n; cap++) {
        memset(part, 0x55, sizeof(part));
        assert_int_equal(
            pi_vocab_tokenize(v, text, len, 0, cap > 0 ? part : NULL, cap, &needed, &err),
            PITH_RANGE);
        assert_int_equal(needed, n);
        assert_memory_equal(part, whole, (size_t)cap * sizeof(*part));
        assert_int_equal(part[cap], 0x55555555);
    }
    for (size_t cap = 0; cap < len; cap++) {
        char out[64];
        memset(out, '#', sizeof(out));
        assert_int_equal(pi_vocab_detokenize(v, whole, n, false, out, cap, &text_len, &err),
                         PITH_RANGE);
        assert_int_equal(text_len, len);
        assert_int_equal(out[cap], '#');
    }
    assert_int_equal(pi_vocab_token_bytes(v, whole[0], false, NULL, 0, &text_len), PITH_RANGE);
    assert_int_equal(text_len, 5);
    assert_int_equal(pi_vocab_token_bytes(v, m.n_token, false, NULL, 0, &text_len), PITH_INVALID);
    assert_int_equal(pi_vocab_token_bytes(v, -1, false, NULL, 0, &text_len), PITH_INVALID);
    int32_t bad = m.n_token;
    assert_int_equal(pi_vocab_detokenize(v, &bad, 1, false, NULL, 0, &text_len, &err),
                     PITH_INVALID);
    assert_int_equal(pi_vocab_tokenize(v, NULL, 3, 0, whole, 64, &n, &err), PITH_INVALID);
    assert_int_equal(pi_vocab_tokenize(v, text, len, 0, NULL, 4, &n, &err), PITH_INVALID);
    pi_vocab_free(v);
}

/* Where the embedding has more rows than the file has tokens, the ids behind are valid, empty. */
TEST(ids_behind_the_tokens_are_empty)
{
    static struct made_vocab m;
    static struct bytes b;
    made_bpe(&m, "gpt-2");
    vocab_write(&m, &b);
    struct pi_gguf g;
    struct pi_vocab *v;
    size_t len = 9;
    assert_int_equal(pi_gguf_parse(&g, b.data, b.len, "made", NULL), PITH_OK);
    assert_int_equal(pi_vocab_load(&g, m.n_token + 50, &v, NULL), PITH_OK);
    assert_int_equal(pi_vocab_size(v), m.n_token + 50);
    assert_int_equal(pi_vocab_token_bytes(v, m.n_token + 49, true, NULL, 0, &len), PITH_OK);
    assert_int_equal(len, 0);
    assert_false(pi_vocab_is_end(v, m.n_token + 49));
    pi_vocab_free(v);
    pi_gguf_free(&g);
}

/* ---- real vocabularies ---- */

#define SEPARATOR "\n__ggml_vocab_test__\n"

static char *read_file(const char *path, size_t *len)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    static char text[4][1 << 16];
    static int at;
    char *out = text[at++ % 4];
    *len = fread(out, 1, sizeof(text[0]) - 1, file);
    assert_true(*len < sizeof(text[0]) - 1);
    out[*len] = 0;
    fclose(file);
    return out;
}

/* Compares the ids of one case with its line; returns the start of the next line. */
static const char *check_line(const struct pi_vocab *v, const char *text, size_t len,
                              const char *line)
{
    int32_t ids[ID_MAX], n = tokenize(v, text, len, 0, ids), i = 0;
    for (; *line != '\n' && *line != 0; i++) {
        char *end;
        long want = strtol(line, &end, 10);
        assert_ptr_not_equal(end, line);
        if (i >= n || ids[i] != want)
            fail_msg("\"%.*s\": id %d is %d, not %ld", (int)len, text, i, i < n ? ids[i] : -1,
                     want);
        for (line = end; *line == ' '; line++)
            ;
    }
    assert_int_equal(i, n);
    char back[4096];
    assert_int_equal(detokenize(v, ids, n, false, back, sizeof(back)), len);
    assert_memory_equal(back, text, len);
    return *line == '\n' ? line + 1 : line;
}

static int check_pairs(const struct pi_vocab *v, const char *path)
{
    char name[600];
    size_t len, out_len;
    snprintf(name, sizeof(name), "%s.inp", path);
    const char *text = read_file(name, &len), *end = text + len;
    snprintf(name, sizeof(name), "%s.out", path);
    const char *line = read_file(name, &out_len);
    int n = 0;
    for (; text <= end; n++) {
        const char *next = strstr(text, SEPARATOR);
        size_t case_len = next != NULL ? (size_t)(next - text) : (size_t)(end - text);
        if (next == NULL && case_len == 0)
            break;
        line = check_line(v, text, case_len, line);
        if (next == NULL)
            break;
        text = next + strlen(SEPARATOR);
    }
    assert_int_equal(*line, 0);
    return n;
}

TEST(real_vocabularies_agree_with_llama_cpp)
{
    static const char *const names[] = {"gpt-2",     "llama-bpe",    "qwen2",          "starcoder",
                                        "llama-spm", "deepseek-llm", "deepseek-coder", "phi-3"};
    for (size_t i = 0; i < PI_LEN(names); i++) {
        char name[64];
        snprintf(name, sizeof(name), "tokenizer/ggml-vocab-%s.gguf", names[i]);
        const char *path = test_data(name);
        struct pi_file file = {0};
        struct pi_gguf g;
        struct pi_vocab *v = NULL;
        err = (pith_error){0};
        if (pi_file_map(path, &file, &err) != PITH_OK ||
            pi_gguf_parse(&g, file.data, file.size, path, &err) != PITH_OK ||
            pi_vocab_load(&g, 0, &v, &err) != PITH_OK)
            fail_msg("%s", err.message);
        pi_gguf_free(&g);
        pi_file_unmap(&file);
        printf("%s: %s, %d tokens, %d cases\n", names[i], pi_vocab_kind(v), pi_vocab_size(v),
               check_pairs(v, path));
        pi_vocab_free(v);
    }
}
