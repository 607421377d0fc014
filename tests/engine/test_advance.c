/*
 * test_advance.c - an evaluation that is stopped within a pass (pith_engine_params.on_advance). It
 * leaves the sequence as one that was stopped behind the pass before did, or as it was; going on
 * gives the same bits. With keep_read a cancelled prompt keeps the tokens that were read.
 */
#define _POSIX_C_SOURCE 200809L

#include <string.h>

#include "engine/engine.h"
#include "folder.h"
#include "mem_used.h"
#include "model_maker.h"
#include "status.h"
#include "testing.h"

#define N_TOKEN 200
#define CHUNK 32
#define NANO PITH_SOURCE_DIR "/models/pith-nano.gguf"

static pith_model *model;
static int32_t tokens[2 * N_TOKEN];

static void load(const char *path)
{
    pith_model_info info;
    uint64_t seed = 5;
    check(pith_model_load(path, NULL, &model, &err), &err);
    pith_model_get_info(model, &info);
    for (int32_t i = 0; i < 2 * N_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&seed, (uint64_t)info.n_vocab);
}

static void unload(void)
{
    pith_model_free(model);
    mem_check(NULL);
}

/* ---- stopping ---- */

struct stopper {
    int32_t n_asked;
    int32_t stop_at;  /* the call that says no; -1: none does */
    int32_t n_passed; /* pass boundaries, of pith_progress_fn */
    int32_t pass_at;  /* likewise */
    int64_t last;
};

static bool on_advance(void *user, int64_t n_read, int64_t n_token)
{
    struct stopper *s = user;
    if (n_read == 0) /* another evaluation */
        s->last = 0;
    assert_true(n_read >= s->last && n_read <= n_token && n_token > 1);
    s->last = n_read;
    return s->n_asked++ != s->stop_at;
}

static bool on_pass(void *user, double fraction)
{
    struct stopper *s = user;
    (void)fraction;
    return s->n_passed++ != s->pass_at;
}

struct setting {
    const char *keep, *read, *recall, *share;
    int32_t n_thread;
};

static pith_engine *engine_make(const struct setting *s, struct stopper *stopper)
{
    return engine_with(model, (pith_engine_params){.chunk = CHUNK,
                                                   .n_thread = s->n_thread > 0 ? s->n_thread : 1,
                                                   .page_len = 16,
                                                   .kv_tokens = 4 * N_TOKEN,
                                                   .keep = s->keep,
                                                   .read = s->read,
                                                   .recall = s->recall,
                                                   .share = s->share,
                                                   .on_advance = on_advance,
                                                   .advance_user = stopper});
}

/* Reads the rest of the text and some steps; the hash of all the logits on the way. */
static uint64_t go_on(pith_seq *seq, int32_t n_token)
{
    uint64_t hash = 0;
    pith_model_info info;
    pith_model_get_info(model, &info);
    int32_t n = pith_seq_length(seq);
    check(pith_seq_eval(seq, tokens + n, n_token - n, &err), &err);
    for (int32_t i = 0; i < 6; i++) {
        hash = 31 * hash + pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
        check(pith_seq_eval(seq, tokens + n_token + i, 1, &err), &err);
    }
    return 31 * hash + pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
}

/* A sequence of the first `held` tokens, whose evaluation up to N_TOKEN is stopped by one of the
   two; then the rest. *n receives its length in between. */
static uint64_t stop_and_go_on(const struct setting *s, int32_t held, int32_t stop_at,
                               int32_t pass_at, int32_t *n, bool *stopped)
{
    struct stopper stopper = {.stop_at = -1, .pass_at = pass_at};
    pith_engine *e = engine_make(s, &stopper);
    pith_seq *seq = seq_make(e);
    if (held > 0)
        check(pith_seq_eval(seq, tokens, held, &err), &err);
    stopper.n_asked = 0;
    stopper.stop_at = stop_at;
    pith_batch_item item = {.seq = seq, .tokens = tokens + held, .n_token = N_TOKEN - held};
    pith_status status = pith_batch_eval(e, &item, 1, on_pass, &stopper, &err);
    *stopped = status == PITH_CANCELLED;
    if (!*stopped)
        check(status, &err);
    stopper.stop_at = stopper.pass_at = -1;
    *n = pith_seq_length(seq);
    uint64_t hash = *n < N_TOKEN ? go_on(seq, N_TOKEN) : 0;
    pith_seq_free(seq);
    pith_engine_free(e);
    return hash;
}

/* Stopping in any pass, at many of its blocks, leaves the state after the pass before, where
   pith_progress_fn stops. In the first pass, and where nothing was evicted, it leaves the state of
   a fresh sequence. */
static void check_setting(const struct setting *s, int32_t held, int32_t step)
{
    uint64_t after[N_TOKEN + 1] = {0};
    int32_t n;
    bool stopped = true, any = false;
    for (int32_t p = 0; stopped; p++) {
        uint64_t hash = stop_and_go_on(s, held, -1, p, &n, &stopped);
        if (stopped && n < N_TOKEN)
            after[n] = hash;
    }
    struct stopper stopper = {.stop_at = -1};
    pith_engine *e = engine_make(s, &stopper);
    pith_seq *seq = seq_make(e);
    if (held > 0)
        check(pith_seq_eval(seq, tokens, held, &err), &err);
    after[held] = go_on(seq, N_TOKEN);
    pith_seq_free(seq);
    pith_engine_free(e);
    stopped = true;
    for (int32_t k = 0; stopped; k += step) {
        uint64_t hash = stop_and_go_on(s, held, k, -1, &n, &stopped);
        if (!stopped || n == N_TOKEN)
            continue;
        any = true;
        if (after[n] == 0 || hash != after[n])
            fail_msg("%s %s %s %s, %d held, stopped at call %d, %d tokens stayed: other logits",
                     s->keep != NULL ? s->keep : "", s->read != NULL ? s->read : "",
                     s->recall != NULL ? s->recall : "", s->share != NULL ? s->share : "", held, k,
                     n);
    }
    assert_true(any);
}

TEST(stopping_within_a_pass_changes_no_bit_under_any_policy)
{
    static const struct setting settings[] = {
        {0},
        {.n_thread = 2},
        {.keep = "streaming:budget=64,slack=8"},
        {.keep = "h2o:budget=64,slack=8"},
        {.keep = "h2o:budget=64,slack=8,overwrite=off"},
        {.keep = "snapkv:budget=64,slack=8,window=8,queries=8"},
        {.keep = "rkv:budget=64,slack=8,window=8,queries=8"},
        {.keep = "longflow:budget=64,slack=8,prompt-window=8"},
        {.keep = "kvzip:budget=64,slack=8,window=8"},
        {.keep = "lazyeviction:budget=64,slack=8,window=8"},
        {.keep = "raas:budget=112,slack=4"},
        {.keep = "vatp:budget=64,slack=8"},
        {.keep = "tova:budget=64,slack=8"},
        {.keep = "keydiff:budget=64,slack=8"},
        {.keep = "triattention:budget=112,slack=4,warmup=60"},
        {.keep = "streaming:budget=64,slack=8", .recall = "kv:take=6,last=8,ram=4MiB"},
        {.keep = "streaming:budget=64,slack=8", .recall = "text"},
        {.read = "quoka:budget=24,chunk=16,gate=1"},
        {.read = "quest:budget=24,dense-layers=0"},
        {.read = "tidaldecode:budget=24,source=0"},
        {.keep = "streaming:budget=64,slack=8", .read = "sparq:budget=24,r=8"},
        {.share = "memshare:step=0.1,block=100,relative=2"},
    };
    load(NANO);
    for (size_t i = 0; i < PI_LEN(settings); i++) {
        if (TEST_STRIDE == 1 || i % 2 == 0)
            check_setting(&settings[i], 0, 11 * TEST_STRIDE);
        if (TEST_STRIDE == 1 || i % 2 == 1)
            check_setting(&settings[i], 70, 13 * TEST_STRIDE);
    }
    unload();
}

static void make(const char *words, const char *name)
{
    check(model_make_of(words, in_folder(name), &err), &err);
    load(in_folder(name));
}

/* Layers with a recurrent state, which a pass writes over, and layers with a window. */
TEST(stopping_within_a_pass_changes_no_bit_of_states_and_windows)
{
    static const char *const families[] = {
        "arch=qwen35 layers=4 width=64 heads=4 kv_heads=2 head_dim=32 rot=8 ff=96 vocab=61 ctx=512",
        "arch=gemma2 layers=4 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 vocab=61 ctx=512 "
        "window=20",
    };
    const struct setting plain = {0}, keep = {.keep = "streaming:budget=64,slack=8"};
    make_folder();
    const int32_t step = 2 * TEST_STRIDE - 1;
    for (size_t i = 0; i < PI_LEN(families); i++) {
        make(families[i], "family.gguf");
        check_setting(&plain, 0, step);
        check_setting(&plain, 70, step);
        check_setting(&keep, 0, step);
        check_setting(&keep, 70, step);
        unload();
    }
    remove_folder();
}

/* Several sequences: all of them are as they were. */
TEST(stopping_leaves_all_sequences_of_a_batch_as_they_were)
{
    const struct setting plain = {0};
    load(NANO);
    for (int32_t stop_at = 0; stop_at < 30; stop_at += 7) {
        struct stopper stopper = {.stop_at = -1};
        pith_engine *e = engine_make(&plain, &stopper);
        pith_seq *a = seq_make(e), *b = seq_make(e);
        check(pith_seq_eval(b, tokens, 40, &err), &err);
        pith_batch_item items[] = {{.seq = a, .tokens = tokens, .n_token = 90},
                                   {.seq = b, .tokens = tokens + 40, .n_token = 50}};
        stopper = (struct stopper){.stop_at = stop_at};
        expect(pith_batch_eval(e, items, 2, NULL, NULL, &err), &err, PITH_CANCELLED, "cancelled");
        assert_int_equal(pith_seq_length(a), 0);
        assert_int_equal(pith_seq_length(b), 40);
        stopper.stop_at = -1;
        assert_true(go_on(a, N_TOKEN) == go_on(b, N_TOKEN));
        pith_seq_free(a);
        pith_seq_free(b);
        pith_engine_free(e);
    }
    unload();
}

/* ---- prompts ---- */

/* The text that follows the prompt; read in one go where there is nothing to stop at. */
static int32_t generate(pith_seq *seq, const struct stopper *stopper, char *text, size_t cap)
{
    (void)stopper;
    pith_generate_params params;
    pith_generate_result result;
    pith_generate_params_default(&params);
    params.n_predict = 8;
    params.sample.temperature = 0.0f;
    params.ignore_end = true;
    check(pith_generate(seq, tokens, N_TOKEN, &params, NULL, NULL, &result, &err), &err);
    size_t n = 0;
    for (int32_t i = N_TOKEN; i < pith_seq_length(seq); i++)
        n += (size_t)snprintf(text + n, cap - n, "%d ", pith_seq_tokens(seq)[i]);
    return result.n_cached;
}

TEST(keep_read_keeps_what_was_read_of_a_cancelled_prompt)
{
    static const char *const keeps[] = {NULL, "streaming:budget=64,slack=8",
                                        "kvzip:budget=64,slack=8,window=8"};
    char expected[256], text[256];
    load(NANO);
    for (size_t i = 0; i < PI_LEN(keeps); i++) {
        const struct setting s = {.keep = keeps[i]};
        struct stopper stopper = {.stop_at = -1};
        pith_engine *e = engine_make(&s, &stopper);
        pith_seq *seq = seq_make(e);
        generate(seq, &stopper, expected, sizeof(expected));
        int32_t n_call = stopper.n_asked, longest = 0; /* the last call comes too late */
        pith_seq_free(seq);
        for (int32_t k = 0; k < n_call - 1; k += TEST_STRIDE) {
            pith_generate_params params;
            pith_generate_params_default(&params);
            params.keep_read = true;
            seq = seq_make(e);
            stopper = (struct stopper){.stop_at = k};
            expect(pith_generate(seq, tokens, N_TOKEN, &params, NULL, NULL, NULL, &err), &err,
                   PITH_CANCELLED, "cancelled");
            stopper.stop_at = -1;
            int32_t n = pith_seq_length(seq);
            assert_int_equal(n < N_TOKEN ? n % 8 : 0,
                             0); /* ends of passes, which rounds end, too */
            longest = (int32_t)pi_max(longest, n < N_TOKEN ? n : 0);
            int32_t n_cached = generate(seq, &stopper, text, sizeof(text));
            assert_string_equal(text, expected);
            assert_int_equal(n_cached, n < N_TOKEN ? n : n_cached);
            pith_seq_free(seq);
        }
        assert_true(longest > N_TOKEN / 2);
        pith_engine_free(e);
    }
    unload();
}
