/*
 * A token's pass in one launch on a device of GPU kind (device/gpu/step.cuh), beside the same pass
 * by the device's other operations. Every bit of the logits is the same. Cases are the kinds of
 * models, weights and pages that it takes. A counter tells that it was taken.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "folder.h"
#include "gpu_count.h"
#include "gpu_rig.h"
#include "model_maker.h"
#include "pith/inspect.h"
#include "status.h"

enum { N_STEP = 3, MOST_TOKEN = 160 };

static bool (*the_step)(struct pi_stream *, const struct pi_step *);
static int32_t n_taken;

static bool counted_step(struct pi_stream *s, const struct pi_step *p)
{
    bool took = the_step(s, p);
    n_taken += took;
    return took;
}

/* The device, which takes a token in one launch. */
static struct pi_device *stepper(void)
{
    bool is_new = the_gpu == NULL;
    if (is_new && gpu_device_step(gpu(), true))
        the_step = gpu()->step;
    return gpu();
}

static void free_all(void)
{
    remove_folder();
    free_gpu();
}

TEST_GROUP(make_folder, free_all);

static pith_engine *engine_on(const pith_model *model, const char *type, bool step)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    pith_engine_params_default(&params);
    params.kv_tokens = 1024;
    params.type_k = params.type_v = type;
    struct pi_device *was = pi_device_register(stepper());
    stepper()->step = step ? counted_step : NULL;
    check(pith_engine_create(model, &params, &e, &err), &err);
    pi_device_register(was);
    return e;
}

static uint64_t hash_of(pith_seq *seq, const pith_model *model)
{
    pith_model_info info;
    pith_model_get_info(model, &info);
    return pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
}

/* Pages, and how many tokens lie in them before those that are compared. */
struct pages {
    const char *type;
    int32_t n_prompt;
};

/* A prompt, then tokens one by one: the hash of each one's logits. */
static void run(const pith_model *model, const struct pages *pages, bool step,
                uint64_t hash[N_STEP])
{
    pith_model_info info;
    int32_t ids[MOST_TOKEN];
    pith_model_get_info(model, &info);
    for (int32_t i = 0; i < pages->n_prompt + N_STEP; i++)
        ids[i] = (i * 7919 + 13) % info.n_vocab;
    pith_engine *e = engine_on(model, pages->type, step);
    pith_seq *seq = seq_make(e);
    check(pith_seq_eval(seq, ids, pages->n_prompt, &err), &err);
    for (int32_t i = 0; i < N_STEP; i++) {
        check(pith_seq_eval(seq, ids + pages->n_prompt + i, 1, &err), &err);
        hash[i] = hash_of(seq, model);
    }
    pith_seq_free(seq);
    pith_engine_free(e);
}

static void same_bits(const pith_model *model, const struct pages *pages, const char *what)
{
    uint64_t whole[N_STEP], parts[N_STEP];
    n_taken = 0;
    run(model, pages, false, parts);
    assert_int_equal(n_taken, 0);
    run(model, pages, true, whole);
    if (n_taken != N_STEP)
        fail_msg("%s, pages of %s: %d of %d tokens in one launch", what, pages->type, (int)n_taken,
                 N_STEP);
    for (int32_t i = 0; i < N_STEP; i++)
        if (whole[i] != parts[i])
            fail_msg("%s, pages of %s: token %d differs", what, pages->type,
                     (int)(pages->n_prompt + i));
}

/* It is for the most frequent form alone. */
static void not_taken(const pith_model *model, const struct pages *pages, const char *what)
{
    uint64_t hash[N_STEP];
    n_taken = 0;
    run(model, pages, true, hash);
    if (n_taken != 0)
        fail_msg("%s, pages of %s: %d tokens in one launch", what, pages->type, (int)n_taken);
}

static void on_model(const char *words, struct pages pages,
                     void (*check_it)(const pith_model *, const struct pages *, const char *))
{
    pith_model *model;
    const char *path = in_folder("step.gguf");
    stepper();
    if (the_step == NULL)
        test_skip("%s makes no token in one launch", the_gpu->name);
    check(model_make_of(words, path, &err), &err);
    check(pith_model_load(path, NULL, &model, &err), &err);
    check_it(model, &pages, words);
    pith_model_free(model);
}

TEST(families_have_the_same_bits)
{
    const char *const words[] = {
        "arch=llama type=Q4_K_M layers=2 width=512 heads=8 kv_heads=2 ff=768",
        "arch=qwen2 type=Q8_0 layers=2 width=320 heads=10 kv_heads=2 ff=448",
        "arch=qwen3 type=Q6_K layers=2 width=256 heads=4 kv_heads=4 head_dim=128 ff=512",
        "arch=smollm3 type=Q4_0 layers=4 width=192 heads=6 kv_heads=3 ff=320",
        "arch=mistral3 type=Q5_K layers=2 width=256 heads=4 kv_heads=2 ff=512",
        "arch=phi3 type=Q5_0 layers=2 width=128 heads=2 kv_heads=2 head_dim=64 ff=352",
        "arch=llama type=F16 layers=2 width=96 heads=3 kv_heads=1 head_dim=80 ff=208 bias=1",
    };
    for (size_t i = 0; i < PI_LEN(words); i++)
        on_model(words[i], (struct pages){"f16", i < 3 ? 66 : 18}, same_bits);
}

/* Chunks of a lane are other blocks' work, and the last one of them joins all. */
TEST(lanes_of_several_chunks_have_the_same_bits)
{
    const char *const words[] = {
        "arch=qwen3 type=Q4_0 layers=1 width=64 heads=4 kv_heads=1 head_dim=32 ff=64",
        /* several pieces a block; 16 heads of a lane, whose queries, key and value are two
           rounds */
        "arch=llama type=Q4_0 layers=2 width=128 heads=8 kv_heads=8 head_dim=16 ff=64",
        "arch=llama type=Q4_0 layers=1 width=64 heads=16 kv_heads=1 head_dim=96 ff=64",
        /* with a window a lane's first pages are not seen, or only in part */
        "arch=phi3 type=Q4_0 layers=2 width=128 heads=2 kv_heads=1 ff=64 window=70",
    };
    for (size_t i = 0; i < PI_LEN(words); i++)
        on_model(words[i], (struct pages){"f16", MOST_TOKEN - N_STEP}, same_bits);
}

/* A thread holds no more of a row than a part at a time. */
TEST(long_rows_have_the_same_bits)
{
    on_model("arch=llama type=Q4_0 layers=1 width=4352 heads=1 kv_heads=1 head_dim=32 ff=64",
             (struct pages){"f16", 2}, same_bits);
    on_model("arch=llama type=Q4_0 layers=1 width=64 heads=1 kv_heads=1 head_dim=32 ff=12800",
             (struct pages){"f16", 2}, same_bits);
}

TEST(other_forms_go_by_single_kernels)
{
    static const struct {
        const char *words, *type;
    } cases[] = {
        {"arch=qwen3 type=Q4_0 layers=1 width=64 heads=2 kv_heads=1 head_dim=64 ff=64", "q8_0"},
        {"arch=qwen3 type=Q4_0 layers=1 width=64 heads=2 kv_heads=1 head_dim=64 ff=64", "turbo3"},
        {"arch=qwen3 type=Q4_0 layers=1 width=64 heads=2 kv_heads=1 head_dim=64 ff=64", "f32"},
        {"arch=qwen3 type=Q4_0 layers=1 width=64 heads=2 kv_heads=1 head_dim=256 ff=64", "f16"},
        {"arch=llama type=F16 layers=1 width=60 heads=2 kv_heads=1 head_dim=64 ff=64", "f16"},
        {"arch=llama type=F16 layers=1 width=64 heads=2 kv_heads=1 head_dim=40 ff=64", "f16"},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++)
        on_model(cases[i].words, (struct pages){cases[i].type, 4}, not_taken);
}

/* ---- kernels one by one ---- */

/* The launches of a token's pass behind a prompt. */
static void count_token(const char *words, int32_t n_layer, int32_t count[GPU_N_KERNEL])
{
    const int32_t ids[] = {3, 1, 4, 1, 5, 9};
    char all[256];
    pith_model *model;
    const char *path = in_folder("layers.gguf");
    snprintf(all, sizeof(all), "%s layers=%d", words, (int)n_layer);
    check(model_make_of(all, path, &err), &err);
    check(pith_model_load(path, NULL, &model, &err), &err);
    pith_engine *e = engine_on(model, "f16", false);
    pith_seq *seq = seq_make(e);
    check(pith_seq_eval(seq, ids, 4, &err), &err);
    check(pith_seq_eval(seq, ids + 4, 1, &err), &err);
    (void)hash_of(seq, model);
    gpu_count(emulated_card());
    check(pith_seq_eval(seq, ids + 5, 1, &err), &err);
    (void)hash_of(seq, model);
    memcpy(count, gpu_launches, sizeof(gpu_launches));
    pith_seq_free(seq);
    pith_engine_free(e);
    pith_model_free(model);
}

/* The launches that a third layer adds, in the order of args.h. */
static void layer_launches(const char *words, const char *expected)
{
    static const char *const names[] = {
#define GPU_K(name, threads, per_sm, args) #name,
        GPU_KERNELS
#undef GPU_K
    };
    int32_t two[GPU_N_KERNEL], three[GPU_N_KERNEL];
    char text[512] = "";
    count_token(words, 2, two);
    count_token(words, 3, three);
    for (int32_t i = 0; i < GPU_N_KERNEL; i++)
        if (three[i] != two[i])
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s %d, ", names[i],
                     (int)(three[i] - two[i]));
    assert_string_equal(text, expected);
}

TEST(a_layer_of_one_token_has_few_launches)
{
    stepper();
    if (getenv("PITH_TEST_DEVICE") != NULL)
        test_skip("launches are counted on the emulated card");
    /* queries, keys and values are a product, and so are gate and up */
    layer_launches("arch=llama type=Q4_0 width=128 heads=2 kv_heads=1 ff=192",
                   "mul_few_1_Q4_0 4, between 2, qkv 1, gate 1, append 1, attend_few_64_f16 1, "
                   "attend_join 1, ");
    layer_launches("arch=qwen3 type=Q4_0 width=128 heads=2 kv_heads=1 head_dim=128 ff=192",
                   "mul_few_1_Q4_0 4, between 2, qkv 1, gate 1, append 1, attend_few_128_f16 1, "
                   "attend_join 1, ");
}
