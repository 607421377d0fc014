/*
 * test_gpu_swap.c - sequences leave for the host's memory and come back beside the passes of
 * others. The emulated GPU copies as late as it may. PITH_TEST_DEVICE names another one.
 */
#define _GNU_SOURCE

#include "engine/schedule.h"
#include "testing.h"

#include <stdlib.h>
#include <string.h>

#include "device/emulated/emulated.h"
#include "device/gpu/device.h"
#include "folder.h"
#include "model_maker.h"
#include "pith/inspect.h"
#include "status.h"

enum { PAGE = 16, N_TOKEN = PAGE + 4, MORE = 4 };

static struct pi_device *gpu;
static bool real; /* the tests' device, not the emulation of this program */
static pith_model *model;
static pith_model_info info;
static pith_engine *engine;
static uint64_t known[3]; /* of texts; 0: not yet */

static void make_model(void)
{
    make_folder();
    check(model_make_of("layers=3 width=64 heads=2 kv_heads=1 head_dim=64 ff=96 vocab=101 ctx=64",
                        in_folder("model.gguf"), &err),
          &err);
    check(pith_model_load(in_folder("model.gguf"), NULL, &model, &err), &err);
}

static void setup(void)
{
    real = getenv("PITH_TEST_DEVICE") != NULL;
    gpu = real ? pi_device_default() : gpu_device_make(emulated_card());
    assert_non_null(gpu);
    if (!real)
        gpu->step = NULL; /* takes long in the emulation */
    pi_device_register(gpu);
    make_model();
    pith_model_get_info(model, &info);
}

static void teardown(void)
{
    pith_model_free(model);
    remove_folder();
    if (!real)
        gpu_device_free(gpu);
}

TEST_GROUP(setup, teardown);

/* Whether copies are not done. A real device does not say. */
static bool on_the_way(void)
{
    return real || emulated_on_the_way() > 0;
}

/* kv_tokens: how many tokens there are pages for. */
static void open_engine(int32_t n_gpu_layers, int32_t kv_tokens)
{
    pith_engine_params p;
    pith_engine_params_default(&p);
    memset(known, 0, sizeof(known));
    p.n_gpu_layers = n_gpu_layers;
    p.page_len = PAGE;
    p.kv_tokens = kv_tokens;
    p.n_thread = 1;
    check(pith_engine_create(model, &p, &engine, &err), &err);
}

static int32_t token(int32_t text, int32_t i)
{
    return (text * 131 + i * 17) % info.n_vocab;
}

/* Tokens [from, to) of a text; the hash of the last logits. */
static uint64_t read_text(pith_seq *seq, int32_t text, int32_t from, int32_t to)
{
    int32_t tokens[256];
    for (int32_t i = from; i < to; i++)
        tokens[i - from] = token(text, i);
    check(pith_seq_eval(seq, tokens, to - from, &err), &err);
    return pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
}

static pith_seq *seq_of(int32_t text, int32_t n)
{
    pith_seq *seq;
    check(pith_seq_create(engine, &seq, &err), &err);
    read_text(seq, text, 0, n);
    return seq;
}

/* The hash of a text's last logits where nothing is swapped, of the engine. */
static uint64_t plain(int32_t text)
{
    if (known[text] != 0)
        return known[text];
    pith_seq *seq = seq_of(text, N_TOKEN);
    known[text] = read_text(seq, text, N_TOKEN, N_TOKEN + MORE);
    pith_seq_free(seq);
    return known[text];
}

/* Away and back, with passes of another sequence in between. The hash of the last logits. */
static uint64_t away_and_back(bool beside)
{
    struct kv_swapped *away;
    pith_seq *one = seq_of(1, N_TOKEN), *other = seq_of(2, N_TOKEN);
    int32_t n = N_TOKEN;
    read_text(other, 2, n, n + 1); /* buffers have the size of such a pass */
    n++;
    check(pi_seq_swap_out(one, &away, &err), &err);
    assert_true(on_the_way());
    read_text(other, 2, n, n + 1);
    n++;
    if (beside)
        assert_true(on_the_way()); /* its pass did not wait */
    check(pi_seq_swap_in(one, away, &err), &err);
    read_text(other, 2, n, n + 1);
    n++;
    if (beside)
        assert_true(on_the_way());
    uint64_t hash = read_text(one, 1, N_TOKEN, N_TOKEN + MORE);
    assert_int_equal(read_text(other, 2, n, N_TOKEN + MORE), plain(2));
    pith_seq_free(one);
    pith_seq_free(other);
    return hash;
}

TEST(passes_of_others_do_not_wait)
{
    pith_memory_stats memory;
    open_engine(PITH_GPU_LAYERS_ALL, 1024);
    assert_int_equal(away_and_back(true), plain(1));
    assert_true(real || !on_the_way());
    pith_engine_memory_stats(engine, &memory);
    assert_int_equal(memory.aside_bytes, 0);
    pith_engine_free(engine);
}

TEST(layers_on_both_devices_leave_and_come_back)
{
    open_engine(2, 1024);
    assert_int_equal(away_and_back(true), plain(1));
    pith_engine_free(engine);
}

/* The mutant: a sequence that comes back reads pages that are not there yet. */
TEST(a_missing_wait_is_seen)
{
    if (real)
        test_skip("a real device waits");
    open_engine(PITH_GPU_LAYERS_ALL, 1024);
    uint64_t want = plain(1);
    emulated_forget_settle(true);
    assert_true(away_and_back(false) != want);
    emulated_forget_settle(false);
    pith_engine_free(engine);
}

/* Another sequence takes the pages before they are copied out, where nothing waits. */
static uint64_t pages_of_another(void)
{
    struct kv_swapped *away;
    pith_seq *one = seq_of(1, N_TOKEN);
    check(pi_seq_swap_out(one, &away, &err), &err);
    pith_seq *other = seq_of(2, N_TOKEN);
    pith_seq_free(other);
    check(pi_seq_swap_in(one, away, &err), &err);
    uint64_t hash = read_text(one, 1, N_TOKEN, N_TOKEN + MORE);
    pith_seq_free(one);
    return hash;
}

TEST(pages_are_taken_when_they_are_copied)
{
    open_engine(PITH_GPU_LAYERS_ALL, 3 * PAGE);
    uint64_t want = plain(1);
    assert_int_equal(pages_of_another(), want);
    emulated_forget_settle(true);
    assert_true(real || pages_of_another() != want);
    emulated_forget_settle(false);
    pith_engine_free(engine);
}

/* Rows go from stage to stage in one copy, however many there are. */
TEST(a_pass_waits_once_where_devices_change)
{
    if (real)
        test_skip("a real device does not count");
    open_engine(2, 1024); /* the processor has the first layer and the output */
    pith_seq *seq = seq_of(1, 3);
    size_t before = emulated_gets();
    read_text(seq, 1, 3, 3 + PAGE);
    assert_int_equal(emulated_gets() - before, 1);
    read_text(seq, 1, 3 + PAGE, 4 + PAGE);
    assert_int_equal(emulated_gets() - before, 2);
    pith_seq_free(seq);
    pith_engine_free(engine);
}

TEST(freed_cut_and_forked_on_the_way)
{
    struct kv_swapped *away;
    pith_seq *fork;
    open_engine(PITH_GPU_LAYERS_ALL, 1024);
    uint64_t want = plain(1);
    pith_seq *one = seq_of(1, N_TOKEN + MORE), *other = seq_of(2, N_TOKEN);
    for (int turn = 0; turn < 3; turn++) {
        check(pi_seq_swap_out(one, &away, &err), &err);
        check(pi_seq_swap_in(one, away, &err), &err);
        if (turn == 0)
            check(pith_seq_fork(one, &fork, &err), &err);
        else if (turn == 1)
            check(pith_seq_truncate(one, N_TOKEN, &err), &err);
    }
    assert_int_equal(read_text(one, 1, N_TOKEN, N_TOKEN + MORE), want);
    check(pith_seq_truncate(fork, N_TOKEN, &err), &err);
    check(pi_seq_swap_out(fork, &away, &err), &err);
    pith_seq_free(one); /* it shared pages */
    check(pi_seq_swap_in(fork, away, &err), &err);
    assert_int_equal(read_text(fork, 1, N_TOKEN, N_TOKEN + MORE), want);
    check(pi_seq_swap_out(fork, &away, &err), &err);
    check(pi_seq_swap_in(fork, away, &err), &err);
    pith_seq_free(fork); /* its pages are not there yet */
    assert_int_equal(read_text(other, 2, N_TOKEN, N_TOKEN + MORE), plain(2));
    pith_seq_free(other);
    one = seq_of(1, N_TOKEN); /* pages that were on the way */
    assert_int_equal(read_text(one, 1, N_TOKEN, N_TOKEN + MORE), want);
    pith_seq_free(one);
    pith_engine_free(engine);
}

/* Memory that is pinned serves many requests, stays for later ones, and does not grow without
   end. */
TEST(pinned_memory_is_asked_for_once_for_many_copies)
{
    enum { N = 8, MIB = 1 << 20, LARGE = 300 * MIB };
    uint8_t *piece[N];
    int64_t before = atomic_load(&gpu->pinned);
    for (int32_t turn = 0; turn < 3; turn++) {
        for (int32_t i = 0; i < N; i++) {
            piece[i] = gpu->alloc_host(gpu, MIB);
            assert_non_null(piece[i]);
            memset(piece[i], i, MIB);
        }
        assert_true(atomic_load(&gpu->pinned) <= before + N * MIB);
        for (int32_t i = 0; i < N; i += 2)
            gpu->free_host(gpu, piece[i], MIB);
        piece[0] = gpu->alloc_host(gpu, MIB / 2);
        piece[2] = gpu->alloc_host(gpu, MIB / 2);
        memset(piece[0], N, MIB / 2);
        memset(piece[2], N, MIB / 2);
        for (int32_t i = 1; i < N; i += 2)
            assert_true(piece[i][0] == i && piece[i][MIB - 1] == i);
        for (int32_t i = 0; i < N; i += i < 3 ? 1 : 2)
            gpu->free_host(gpu, piece[i], MIB);
    }
    int64_t kept = atomic_load(&gpu->pinned);
    assert_true(kept > 0 && kept <= before + N * MIB);
    void *large = gpu->alloc_host(gpu, LARGE);
    assert_non_null(large);
    assert_int_equal(atomic_load(&gpu->pinned), kept + LARGE);
    gpu->free_host(gpu, large, LARGE);
    assert_int_equal(atomic_load(&gpu->pinned), kept);
}
