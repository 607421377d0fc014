/*
 * test_load_keys.c - the keys of a family: presets, ranges, and which layers a pattern has, as a
 * period and as an array; each mistake is named.
 */
#include "base/mem.h"
#include "file/gguf.h"
#include "gguf_bytes.h"
#include "model/arch.h"
#include "model/load.h"

#define N_LAYER 6
#define PATTERN "llama.attention.sliding_window_pattern"

static struct pi_layer layers[N_LAYER];
static struct pith_model model;

/* A file of one key, whose type and value follow in b. */
static void begin(struct bytes *b, const char *key, uint32_t type)
{
    put_header(b, 3, 0, 1);
    put_key(b, key, type);
}

static void open_file(const struct bytes *b)
{
    memset(layers, 0, sizeof(layers));
    model = (struct pith_model){.arch = &pi_arch_llama, .layer = layers};
    model.hp.n_layer = N_LAYER;
    if (pi_gguf_parse(&model.gguf, b->data, b->len, "keys", &err) != PITH_OK)
        fail_msg("%s", err.message);
}

static void refused(pith_status status, const pith_error *why, const char *sentence)
{
    assert_int_equal(status, PITH_FORMAT);
    if (strcmp(why->message, sentence) != 0)
        fail_msg("\"%s\" is not \"%s\"", why->message, sentence);
    pi_gguf_free(&model.gguf);
}

/* The layers' windows are a letter each: w or none. */
static void windows_are(int32_t window, const char *wanted)
{
    if (pi_load_windows(&model, 8, 3, &err) != PITH_OK)
        fail_msg("%s", err.message);
    for (int32_t l = 0; l < N_LAYER; l++)
        if (layers[l].window != (wanted[l] == 'w' ? window : 0))
            fail_msg("layer %d: a window of %d", l, layers[l].window);
    pi_gguf_free(&model.gguf);
}

TEST(a_period_says_which_layers_have_windows)
{
    static const struct {
        uint32_t period;
        const char *wanted;
    } periods[] = {{0, "wwwwww"}, {1, "......"}, {2, "w.w.w."}, {4, "www.ww"}, {9, "wwwwww"}};
    static struct bytes b;
    for (size_t i = 0; i < PI_LEN(periods); i++) {
        begin(&b, PATTERN, PI_GGUF_U32);
        put_u32(&b, periods[i].period);
        open_file(&b);
        windows_are(8, periods[i].wanted);
    }
}

TEST(absent_keys_keep_their_presets)
{
    static struct bytes b;
    int32_t count = 5;
    float number = 0.5f;
    begin(&b, "llama.attention.sliding_window", PI_GGUF_U32);
    put_u32(&b, 33);
    open_file(&b);
    windows_are(33, "ww.ww.");
    open_file(&b);
    assert_int_equal(pi_key_count(&model, "other", 1, 9, false, &count, &err), PITH_OK);
    assert_int_equal(pi_key_number(&model, "other", 0, 1, false, &number, &err), PITH_OK);
    assert_true(count == 5 && number == 0.5f);
    refused(pi_key_number(&model, "other", 0, 1, true, &number, &err), &err,
            "llama.other is missing");
}

TEST(an_array_says_which_layers_have_windows)
{
    static struct bytes b;
    begin(&b, PATTERN, PI_GGUF_ARRAY);
    put_u32(&b, PI_GGUF_U32);
    put_u64(&b, N_LAYER);
    for (uint32_t l = 0; l < N_LAYER; l++)
        put_u32(&b, l == 1 || l == 4 ? l : 0);
    open_file(&b);
    windows_are(8, ".w..w.");
}

TEST(each_mistake_names_its_key)
{
    static struct bytes b;
    begin(&b, PATTERN, PI_GGUF_ARRAY);
    put_u32(&b, PI_GGUF_U32);
    put_u64(&b, 2);
    put_u64(&b, 0);
    open_file(&b);
    refused(pi_load_windows(&model, 8, 3, &err), &err,
            PATTERN ": 2 values of type u32, where each of 6 layers has a truth value");
    begin(&b, PATTERN, PI_GGUF_U32);
    put_u32(&b, 1u << 31);
    open_file(&b);
    refused(pi_load_windows(&model, 8, 3, &err), &err,
            PATTERN ": 2147483648 is not in 0..2147483647");
}
