/*
 * test_gpu_peer.c - layers on two emulated GPUs. Rows go from one to the other without the host, or
 * over it where the cards do not reach each other. Both ways have the bits of one GPU.
 */
#define _GNU_SOURCE

#include <stdlib.h>

#include "device/emulated/emulated.h"
#include "device/gpu/device.h"
#include "engine/devices.h"
#include "folder.h"
#include "mem_used.h"
#include "model_maker.h"
#include "pith/inspect.h"
#include "status.h"
#include "testing.h"

enum { N_VOCAB = 101, N_TOKEN = 24 };

static struct pi_device *gpu[2];
static pith_model *model;

static int32_t count(pith_error *why)
{
    (void)why;
    return 2;
}

static void describe(int32_t i, struct pi_device_report *out)
{
    (void)i;
    (void)out;
}

static pith_status open_one(int32_t i, struct pi_device **out, pith_error *why)
{
    struct gpu_card *card = i == 0 ? emulated_card() : emulated_other();
    card->name = i == 0 ? "cuda:0" : "cuda:1";
    *out = gpu[i] = gpu_device_make(card);
    if (*out == NULL)
        return pi_fail(why, PITH_NOMEM, "no memory for the emulation");
    (*out)->step = NULL; /* takes long in the emulation */
    return PITH_OK;
}

static const struct pi_gpu_list list = {count, describe, open_one};

static void set_up(void)
{
    make_folder();
    pi_device_register(NULL);
    pi_gpu_list_register(&list);
    check(model_make_of("layers=4 width=64 heads=2 kv_heads=1 head_dim=64 ff=96 vocab=101 ctx=64",
                        in_folder("model.gguf"), &err),
          &err);
    check(pith_model_load(in_folder("model.gguf"), NULL, &model, &err), &err);
}

static void tear_down(void)
{
    pith_model_free(model);
    remove_folder();
    for (int i = 0; i < 2; i++)
        gpu_device_free(gpu[i]);
    mem_check(NULL);
}

TEST_GROUP(set_up, tear_down);

/* Of the last logits of a text that is read in chunks, and then token by token. */
static uint64_t hash_on(const char *devices)
{
    int32_t tokens[N_TOKEN];
    pith_engine *engine = engine_with(
        model, (pith_engine_params){.device = devices, .chunk = 8, .n_thread = 1, .kv_tokens = 64});
    pith_seq *seq = seq_make(engine);
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = i * 17 % N_VOCAB;
    check(pith_seq_eval(seq, tokens, N_TOKEN - 4, &err), &err);
    for (int32_t i = N_TOKEN - 4; i < N_TOKEN; i++)
        check(pith_seq_eval(seq, &tokens[i], 1, &err), &err);
    uint64_t hash = pith_logits_hash(pith_seq_logits(seq), N_VOCAB);
    pith_seq_free(seq);
    pith_engine_free(engine);
    return hash;
}

TEST(rows_go_from_gpu_to_gpu_without_the_host)
{
    uint64_t one = hash_on("cuda:0");
    size_t gets = emulated_gets(), before = emulated_fetches();
    assert_true(hash_on("cuda:0,cuda:1") == one);
    size_t by_card = emulated_gets() - gets;
    assert_int_equal(emulated_fetches() - before, 3 + 4); /* of each pass */

    emulated_part(true);
    gets = emulated_gets();
    assert_true(hash_on("cuda:0,cuda:1") == one);
    emulated_part(false);
    assert_int_equal(emulated_fetches() - before, 3 + 4);
    assert_int_equal(emulated_gets() - gets, by_card + 3 + 4);
}

/* From the processor to a GPU rows go over the host. */
TEST(the_processor_and_two_gpus_share_a_model)
{
    pith_engine *engine = engine_with(model, (pith_engine_params){.device = "cuda:0,cuda:1",
                                                                  .n_gpu_layers = 3,
                                                                  .tensor_split = "1,1",
                                                                  .n_thread = 1,
                                                                  .kv_tokens = 64});
    pith_seq *seq = seq_make(engine);
    int32_t token = 5;
    size_t before = emulated_fetches();
    check(pith_seq_eval(seq, &token, 1, &err), &err);
    assert_int_equal(emulated_fetches() - before, 1);
    pith_seq_free(seq);
    pith_engine_free(engine);
}
