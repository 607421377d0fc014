/*
 * test_vocab_bad.c - the refusals of a vocabulary, each with its own sentence. Also long words in
 * bounded time, allocation failures one by one, and two threads on one vocabulary.
 */
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "testing.h"
#include "vocab_maker.h"

/* ---- damaged files ---- */

static void expect_bad(const struct bytes *b, pith_status status, const char *says)
{
    struct pi_gguf g;
    struct pi_vocab *v = NULL;
    pith_error why = {0};
    assert_int_equal(pi_gguf_parse(&g, b->data, b->len, "made", &why), PITH_OK);
    pith_status got = pi_vocab_load(&g, 0, &v, &why);
    if (got != status || strstr(why.message, says) == NULL)
        fail_msg("%s: \"%s\" does not say \"%s\"", pith_status_name(got), why.message, says);
    assert_null(v);
    pi_gguf_free(&g);
}

#define TOKENS "tokenizer.ggml.tokens"

static void begin(struct bytes *b, const char *model)
{
    put_header(b, 3, 0, 0);
    if (model != NULL)
        made_string(b, "tokenizer.ggml.model", model);
}

static void three_tokens(struct bytes *b)
{
    made_array(b, TOKENS, T_STRING, 3);
    put_text(b, "a");
    put_text(b, "b");
    put_text(b, "ab");
}

static void merges(struct bytes *b)
{
    made_array(b, "tokenizer.ggml.merges", T_STRING, 1);
    put_text(b, "a b");
}

static void put_ints(struct bytes *b, uint32_t n, uint32_t value)
{
    for (; n > 0; n--)
        put_u32(b, value);
}

TEST(refuses_bad_lists_of_tokens)
{
    static struct bytes b;
    begin(&b, "bert");
    expect_bad(&b, PITH_UNSUPPORTED, "tokenizer.ggml.model: \"bert\"");
    begin(&b, "gpt2");
    expect_bad(&b, PITH_FORMAT, TOKENS ": absent");
    begin(&b, "llama");
    made_array(&b, TOKENS, T_STRING, 0);
    expect_bad(&b, PITH_FORMAT, TOKENS ": 0 tokens");
    begin(&b, "llama");
    made_array(&b, TOKENS, T_I32, 2);
    put_ints(&b, 2, 0);
    expect_bad(&b, PITH_FORMAT, TOKENS);
    begin(&b, "llama");
    made_string(&b, TOKENS, "one");
    expect_bad(&b, PITH_FORMAT, TOKENS);
    put_header(&b, 3, 0, 0);
    made_u32(&b, "tokenizer.ggml.model", 7);
    expect_bad(&b, PITH_FORMAT, "tokenizer.ggml.model");
}

TEST(refuses_arrays_of_other_lengths)
{
    static struct bytes b;
    static const char types[] = "tokenizer.ggml.token_type", scores[] = "tokenizer.ggml.scores";
    for (uint32_t n = 2; n <= 4; n += 2) {
        begin(&b, "llama");
        three_tokens(&b);
        made_array(&b, types, T_I32, n);
        put_ints(&b, n, 1);
        expect_bad(&b, PITH_FORMAT,
                   n == 2 ? "token_type: 2 types for 3 tokens"
                          : "token_type: 4 types for 3 tokens");
        begin(&b, "llama");
        three_tokens(&b);
        made_array(&b, scores, T_F32, n);
        put_ints(&b, n, 0);
        expect_bad(&b, PITH_FORMAT,
                   n == 2 ? "scores: 2 scores for 3 tokens" : "scores: 4 scores for 3 tokens");
    }
    begin(&b, "llama");
    three_tokens(&b);
    made_array(&b, types, T_F32, 3);
    put_ints(&b, 3, 0);
    expect_bad(&b, PITH_FORMAT, types);
    begin(&b, "llama");
    three_tokens(&b);
    made_array(&b, scores, T_STRING, 0);
    expect_bad(&b, PITH_FORMAT, scores);
    begin(&b, "gpt2");
    three_tokens(&b);
    expect_bad(&b, PITH_FORMAT, "tokenizer.ggml.merges: absent");
    begin(&b, "gpt2");
    three_tokens(&b);
    made_array(&b, "tokenizer.ggml.merges", T_I32, 1);
    put_u32(&b, 0);
    expect_bad(&b, PITH_FORMAT, "tokenizer.ggml.merges");
    begin(&b, "gpt2");
    three_tokens(&b);
    merges(&b);
    made_string(&b, "tokenizer.ggml.pre", "klingon");
    expect_bad(&b, PITH_UNSUPPORTED, "\"klingon\"");
    begin(&b, "gpt2");
    three_tokens(&b);
    merges(&b);
    made_u32(&b, "tokenizer.ggml.pre", 1);
    expect_bad(&b, PITH_FORMAT, "tokenizer.ggml.pre");
}

TEST(refuses_ids_beyond_the_tokens)
{
    static struct bytes b;
    static const char *const names[] = {"bos", "eos", "eot", "eom", "unknown", "fim_pad"};
    for (size_t i = 0; i < PI_LEN(names); i++) {
        char key[64], says[96];
        snprintf(key, sizeof(key), "tokenizer.ggml.%s_token_id", names[i]);
        snprintf(says, sizeof(says), "%s: 3, but there are 3 tokens", key);
        begin(&b, "llama");
        three_tokens(&b);
        made_u32(&b, key, 3);
        expect_bad(&b, PITH_FORMAT, says);
        begin(&b, "llama");
        three_tokens(&b);
        made_string(&b, key, "2");
        expect_bad(&b, PITH_FORMAT, key);
    }
    begin(&b, "llama");
    three_tokens(&b);
    made_u32(&b, "tokenizer.ggml.add_bos_token", 1);
    expect_bad(&b, PITH_FORMAT, "tokenizer.ggml.add_bos_token");
    begin(&b, "llama");
    three_tokens(&b);
    made_string(&b, "tokenizer.ggml.add_space_prefix", "yes");
    expect_bad(&b, PITH_FORMAT, "tokenizer.ggml.add_space_prefix");
}

/* Odd, but no damage: ids that say "none", merges of no tokens, equal and empty tokens. */
TEST(accepts_odd_files)
{
    static struct bytes b;
    int32_t ids[16], n;
    begin(&b, "gpt2");
    made_array(&b, TOKENS, T_STRING, 6);
    put_text(&b, "a");
    put_text(&b, "b");
    put_text(&b, "ab");
    put_text(&b, "ab");
    put_text(&b, "");
    put_text(&b, "\xff\xfe");
    made_array(&b, "tokenizer.ggml.merges", T_STRING, 6);
    put_text(&b, "a x");
    put_text(&b, "");
    put_text(&b, "ab");
    put_text(&b, " ");
    put_text(&b, "b b");
    put_text(&b, "a b");
    made_u32(&b, "tokenizer.ggml.bos_token_id", UINT32_MAX);
    struct pi_vocab *v = vocab_open(&b);
    assert_int_equal(pi_vocab_bos(v), -1);
    assert_string_equal(pi_vocab_kind(v), "bpe/default");
    assert_int_equal(pi_vocab_tokenize(v, "abbx", 4, 0, ids, 16, &n, NULL), PITH_OK);
    assert_int_equal(n, 2); /* "ab", "b"; nothing covers the x */
    assert_int_equal(ids[0], 2);
    assert_int_equal(ids[1], 1);
    pi_vocab_free(v);
}

TEST(a_file_without_a_vocabulary_has_none)
{
    static struct bytes b;
    static const char *const models[] = {NULL, "none", "no_vocab"};
    for (size_t i = 0; i < PI_LEN(models); i++) {
        int32_t id = 0, n = 5;
        size_t len = 5;
        pith_error why = {0};
        begin(&b, models[i]);
        made_string(&b, "general.architecture", "llama");
        made_u32(&b, "llama.vocab_size", 123);
        struct pi_vocab *v = vocab_open(&b);
        assert_string_equal(pi_vocab_kind(v), "none");
        assert_int_equal(pi_vocab_size(v), 123);
        assert_int_equal(pi_vocab_bos(v), -1);
        assert_int_equal(pi_vocab_eos(v), -1);
        assert_false(pi_vocab_is_end(v, 0));
        assert_int_equal(pi_vocab_tokenize(v, "a", 1, 0, &id, 1, &n, &why), PITH_UNSUPPORTED);
        assert_non_null(strstr(why.message, "no tokenizer"));
        assert_int_equal(pi_vocab_detokenize(v, &id, 1, false, NULL, 0, &len, &why),
                         PITH_UNSUPPORTED);
        assert_int_equal(pi_vocab_token_bytes(v, 122, true, NULL, 0, &len), PITH_OK);
        assert_int_equal(len, 0);
        assert_int_equal(pi_vocab_token_bytes(v, 123, true, NULL, 0, &len), PITH_INVALID);
        pi_vocab_free(v);
    }
}

/* ---- long words ---- */

#define LONG_LEN ((size_t)1 << 20)

/* One word of a mebibyte: the merges are as many as the bytes. */
static void long_word(const struct pi_vocab *v, const char *unit, int32_t want)
{
    char *text = test_malloc(LONG_LEN + 8);
    int32_t *ids = test_malloc((LONG_LEN + 8) * sizeof(*ids)), n;
    pith_error why = {0};
    size_t len = 0;
    for (; len < LONG_LEN; len += strlen(unit))
        memcpy(text + len, unit, strlen(unit));
    double start = pi_time_s();
    if (pi_vocab_tokenize(v, text, len, PITH_TOKENIZE_SPECIAL, ids, (int32_t)LONG_LEN + 8, &n,
                          &why) != PITH_OK)
        fail_msg("%s", why.message);
    printf("%s, \"%s\" to %zu bytes: %d ids in %.2f s\n", pi_vocab_kind(v), unit, len, n,
           pi_time_s() - start);
    assert_int_equal(n, want);
    test_free(text);
    test_free(ids);
}

TEST(long_words_take_bounded_time)
{
    static struct made_vocab m;
    const int32_t len = (int32_t)LONG_LEN;
    made_bpe(&m, "gpt-2");
    struct pi_vocab *v = vocab_made(&m);
    long_word(v, "a", len / 4);
    long_word(v, "ab", len / 4);
    long_word(v, " ", len / 2);
    long_word(v, "<", len);
    long_word(v, "<|im_en|", len);
    pi_vocab_free(v);
    made_spm(&m);
    v = vocab_made(&m);
    long_word(v, "a", len / 4 + 1);
    long_word(v, " ", len / 2 + 1);
    long_word(v, "x", len + 1);
    pi_vocab_free(v);
}

/* ---- memory ---- */

static const char sample[] = "hello world \xe4\xbd\xa0 <user tag> aaaabab 123 <|stop|>";

/* Loads, tokenizes a text long enough for the cache of words, and goes back. */
static pith_status load_and_use(const struct pi_gguf *g, const char *text, size_t len)
{
    static int32_t ids[8192];
    static char back[8192];
    struct pi_vocab *v = NULL;
    int32_t n;
    size_t n_back;
    pith_error why = {0};
    pith_status status = pi_vocab_load(g, 0, &v, &why);
    if (status == PITH_OK)
        status = pi_vocab_tokenize(v, text, len, PITH_TOKENIZE_SPECIAL, ids, 8192, &n, &why);
    if (status == PITH_OK)
        status = pi_vocab_detokenize(v, ids, n, true, back, sizeof(back), &n_back, &why);
    if (status == PITH_OK) {
        assert_int_equal(n_back, len);
        assert_memory_equal(back, text, len);
    } else {
        assert_true(why.message[0] != 0);
    }
    pi_vocab_free(v);
    return status;
}

static void fail_each(const struct made_vocab *m)
{
    static struct bytes b;
    static char text[4096];
    struct pi_gguf g;
    size_t len = 0;
    while (len + sizeof(sample) < sizeof(text)) {
        memcpy(text + len, sample, sizeof(sample) - 1);
        len += sizeof(sample) - 1;
    }
    vocab_write(m, &b);
    assert_int_equal(pi_gguf_parse(&g, b.data, b.len, "made", NULL), PITH_OK);
    int64_t model = pi_mem_used(PI_MEM_MODEL), other = pi_mem_used(PI_MEM_OTHER), n = 1;
    for (;; n++) {
        pi_mem_fail_at(n, n % 2 == 0);
        pith_status status = load_and_use(&g, text, len);
        pi_mem_fail_at(0, false);
        assert_int_equal(pi_mem_used(PI_MEM_MODEL), model);
        assert_int_equal(pi_mem_used(PI_MEM_OTHER), other);
        if (status == PITH_OK)
            break;
        assert_int_equal(status, PITH_NOMEM);
    }
    assert_true(n > 8);
    pi_gguf_free(&g);
}

TEST(survives_every_failing_allocation)
{
    static struct made_vocab m;
    static const char *const pres[] = {"gpt-2", "deepseek-llm", "gpt-4o"};
    for (size_t i = 0; i < PI_LEN(pres); i++) {
        made_bpe(&m, pres[i]);
        fail_each(&m);
    }
    made_spm(&m);
    fail_each(&m);
}

/* ---- threads ---- */

struct worker {
    const struct pi_vocab *v;
    const char *text; /* the same for all */
    size_t len;
    const int32_t *want; /* [n_want] */
    int32_t n_want;
    bool same;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    int32_t *ids = malloc(w->len * sizeof(*ids)), n;
    char *back = malloc(w->len);
    size_t len;
    w->same = true;
    for (int round = 0; round < 20 && w->same; round++) {
        w->same = pi_vocab_tokenize(w->v, w->text, w->len, 0, ids, (int32_t)w->len, &n, NULL) ==
                      PITH_OK &&
                  n == w->n_want && memcmp(ids, w->want, (size_t)n * sizeof(*ids)) == 0 &&
                  pi_vocab_detokenize(w->v, ids, n, false, back, w->len, &len, NULL) == PITH_OK &&
                  len == w->len && memcmp(back, w->text, len) == 0;
    }
    free(ids);
    free(back);
    return NULL;
}

TEST(two_threads_share_a_vocabulary)
{
    static struct made_vocab m;
    static char text[20000];
    static int32_t ids[sizeof(text)];
    uint64_t rng = 9;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = "ab hello world\n12<|"[rng_below(&rng, 19)];
    for (int kind = 0; kind < 2; kind++) {
        if (kind == 0)
            made_bpe(&m, "qwen2");
        else
            made_spm(&m);
        struct pi_vocab *v = vocab_made(&m);
        struct worker w = {.v = v, .text = text, .len = sizeof(text), .want = ids};
        assert_int_equal(pi_vocab_tokenize(v, text, sizeof(text), 0, ids, (int32_t)sizeof(text),
                                           &w.n_want, NULL),
                         PITH_OK);
        struct worker workers[2] = {w, w};
        pthread_t thread[2];
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, work, &workers[i]), 0);
        for (int i = 0; i < 2; i++) {
            pthread_join(thread[i], NULL);
            assert_true(workers[i].same);
        }
        pi_vocab_free(v);
    }
}
