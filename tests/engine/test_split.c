/*
 * test_split.c - layers on several devices. GPUs are copies of the processor, and the tests' own
 * device where it is another one. Texts have the bits of one device for any split. On a GPU
 * they have its own for any chunk and company.
 */
#define _POSIX_C_SOURCE 200809L

#include "engine/devices.h"
#include "testing.h"

#include <math.h>
#include <stdio.h>

#include "device/device.h"
#include "folder.h"
#include "model_maker.h"
#include "pith/inspect.h"
#include "status.h"

enum { MOST_TOKEN = 70, MOST_VOCAB = 2048 };

static struct pi_device twins[2], *real; /* real: the tests' device; NULL: the processor */
static int64_t unused;                   /* bytes that each GPU has */
static pith_model *model;
static pith_model_info info;
static int32_t tokens[MOST_TOKEN], n_token;

static void describe(struct pi_device *d, struct pi_device_report *out)
{
    snprintf(out->text, sizeof(out->text), "a twin of the processor, %s", d->name);
    out->total = out->unused = unused;
}

static int32_t count(pith_error *why)
{
    (void)why;
    return 2;
}

static void describe_one(int32_t i, struct pi_device_report *out)
{
    describe(&twins[i], out);
}

static pith_status open_one(int32_t i, struct pi_device **out, pith_error *why)
{
    static const char *const names[] = {"cuda:0", "cuda:1"};
    (void)why;
    memcpy(&twins[i], &pi_device_cpu, sizeof(twins[i]));
    twins[i].name = names[i];
    twins[i].describe = describe;
    *out = i == 0 && real != NULL ? real : &twins[i];
    return PITH_OK;
}

static const struct pi_gpu_list list = {count, describe_one, open_one};

static void setup(void)
{
    make_folder();
    real = pi_device_of_tests();
    if (real == &pi_device_cpu)
        real = NULL;
    pi_device_register(NULL);
    pi_gpu_list_register(&list);
    unused = (int64_t)1 << 30;
    n_token = real != NULL && real->floats ? 20 : MOST_TOKEN; /* an emulation takes long */
}

static void teardown(void)
{
    pith_model_free(model);
    model = NULL;
    remove_folder();
}

TEST_GROUP(setup, teardown);

static const char *const shapes[] = {
    "arch=llama layers=5 width=64 heads=4 kv_heads=2 head_dim=16 ff=96 tied=1",
    "arch=qwen3moe layers=4 width=64 heads=4 kv_heads=2 head_dim=32 experts=8 used=2 expert_ff=40",
    "arch=gemma3 layers=7 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 window=20 tied=1",
    "arch=qwen35 layers=8 width=64 heads=4 kv_heads=2 head_dim=32 rot=8 ff=96",
    "arch=deepseek2 layers=4 width=64 heads=4 head_dim=24 rot=8 rank=32 value_dim=24 query_rank=40 "
    "ff=96 experts=4 used=2 expert_ff=40 lead=2",
};

static void load(const char *words)
{
    uint64_t seed = 7;
    char more[512];
    snprintf(more, sizeof(more), "%s vocab=101 ctx=512", words);
    check(model_make_of(more, in_folder("model.gguf"), &err), &err);
    pith_model_free(model);
    model = model_at(in_folder("model.gguf"));
    pith_model_get_info(model, &info);
    for (int32_t i = 0; i < MOST_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&seed, 101);
}

/* ---- one text ---- */

struct text {
    uint64_t hash[MOST_TOKEN];
    float last[MOST_VOCAB];
};

static bool look(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    struct text *t = user;
    (void)seq;
    t->hash[pos] = pith_logits_hash(logits, info.n_vocab);
    memcpy(t->last, logits, (size_t)info.n_vocab * sizeof(float));
    return true;
}

static pith_engine *engine(const char *device, int32_t n, int32_t chunk)
{
    return engine_with(model, (pith_engine_params){.device = device,
                                                   .n_gpu_layers = n,
                                                   .chunk = chunk,
                                                   .n_thread = 1,
                                                   .page_len = 16,
                                                   .kv_tokens = 4 * MOST_TOKEN});
}

/* With half of another text beside it where there is room in a chunk. */
static void read_text(const char *device, int32_t n, int32_t chunk, struct text *out)
{
    pith_engine *e = engine(device, n, chunk);
    pith_seq *seq = seq_make(e), *other = seq_make(e);
    pith_batch_item items[2] = {{.seq = seq,
                                 .tokens = tokens,
                                 .n_token = n_token,
                                 .logits = PITH_LOGITS_ALL,
                                 .on_logits = look,
                                 .user = out},
                                {.seq = other, .tokens = tokens + 3, .n_token = n_token / 2}};
    check(pith_batch_eval(e, items, chunk > 8 ? 2 : 1, NULL, NULL, &err), &err);
    pith_seq_free(seq);
    pith_seq_free(other);
    pith_engine_free(e);
}

static bool same(const struct text *a, const struct text *b)
{
    return memcmp(a->hash, b->hash, (size_t)n_token * sizeof(a->hash[0])) == 0;
}

/* 1 - cosine of the last logits. */
static double distance(const struct text *a, const struct text *b)
{
    double ab = 0.0, aa = 0.0, bb = 0.0;
    for (int32_t i = 0; i < info.n_vocab; i++) {
        ab += (double)a->last[i] * (double)b->last[i];
        aa += (double)a->last[i] * (double)a->last[i];
        bb += (double)b->last[i] * (double)b->last[i];
    }
    return 1.0 - ab / sqrt(aa * bb);
}

static void layers_anywhere(const char *device, int32_t n)
{
    static struct text cpu, whole, parts;
    read_text("cpu", 0, 64, &cpu);
    read_text(device, n, 64, &whole);
    bool exact = real == NULL || !real->floats;
    for (int32_t chunk = exact ? 1 : 7; chunk <= 7; chunk += 6) {
        read_text(device, n, chunk, &parts);
        if (!same(&whole, &parts))
            fail_msg("%s, %d layers of %s: other bits in chunks of %d", info.architecture, n,
                     device, chunk);
    }
    if (exact ? !same(&cpu, &whole) : distance(&cpu, &whole) > 1e-4)
        fail_msg("%s, %d layers of %s: %g from the processor's", info.architecture, n, device,
                 distance(&cpu, &whole));
}

TEST(layers_are_anywhere_with_the_same_bits)
{
    for (size_t i = 0; i < PI_LEN(shapes); i++) {
        load(shapes[i]);
        const int32_t n[] = {PITH_GPU_LAYERS_NONE, 1, info.n_layer / 2, info.n_layer,
                             PITH_GPU_LAYERS_ALL};
        for (size_t k = 0; k < PI_LEN(n) && (real == NULL || !real->floats); k++)
            layers_anywhere("cuda:0", n[k]);
        layers_anywhere("cuda:0", info.n_layer / 2);
        layers_anywhere("cuda:0,cuda:1", PITH_GPU_LAYERS_ALL);
        layers_anywhere("cuda:1,cuda:0", info.n_layer - 1);
    }
}

/* ---- what policies look at ---- */

static int32_t n_download;

static void *counted_download(struct pi_stream *s, struct pi_at from, size_t size, void *room)
{
    n_download++;
    return pi_device_cpu.download(s, from, size, room);
}

/* Copies of rows from the GPU while the last of some tokens is read. */
static int32_t count_downloads(const char *keep)
{
    enum { N = 12 };
    pith_engine *e = engine_with(model, (pith_engine_params){.device = "cuda:0",
                                                             .n_gpu_layers = 2,
                                                             .keep = keep,
                                                             .n_thread = 1,
                                                             .kv_tokens = 4 * MOST_TOKEN});
    pith_seq *seq = seq_make(e);
    check(pith_seq_eval(seq, tokens, N, &err), &err);
    twins[0].download = counted_download;
    n_download = 0;
    check(pith_seq_eval(seq, tokens + N, 1, &err), &err);
    twins[0].download = pi_device_cpu.download;
    pith_seq_free(seq);
    pith_engine_free(e);
    return n_download;
}

/* Where a GPU has only some of the layers the host learns. It looks at a layer's queries alone, and
   at nothing behind a warm-up. */
TEST(policies_look_at_no_more_rows_of_a_gpu_than_they_learn_from)
{
    load(shapes[0]);
    if (real != NULL)
        test_skip("the GPU's own tests count its copies");
    int32_t n = count_downloads("none");
    assert_int_equal(count_downloads("snapkv:budget=60,queries=8,window=8"), n + 2);
    assert_int_equal(count_downloads("triattention:budget=60"), n + 2);
    assert_int_equal(count_downloads("triattention:budget=60,warmup=8"), n);
}

/* ---- what is where ---- */

/* The stages of an engine as "cpu 0-2, cuda:0 2-5+". */
static const char *stages(const char *device, int32_t n, const char *split)
{
    static char text[128];
    pith_stage_info s;
    size_t len = 0;
    pith_engine *e = engine_with(
        model, (pith_engine_params){
                   .device = device, .n_gpu_layers = n, .tensor_split = split, .kv_tokens = 64});
    for (int32_t i = 0; pith_engine_stage(e, i, &s) == PITH_OK; i++)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s %d-%d%s", i > 0 ? ", " : "",
                                s.device, s.first_layer, s.first_layer + s.n_layer,
                                s.output ? "+" : "");
    pith_engine_free(e);
    return text;
}

TEST(layers_are_counted_from_the_last)
{
    load(shapes[0]);
    if (real != NULL)
        test_skip("the GPU has another name");
    assert_string_equal(stages("cuda:0", PITH_GPU_LAYERS_NONE, NULL), "cpu 0-5+");
    assert_string_equal(stages("cuda:0", 2, NULL), "cpu 0-3, cuda:0 3-5, cpu 5-5+");
    assert_string_equal(stages("cuda:0", 5, NULL), "cuda:0 0-5, cpu 5-5+");
    assert_string_equal(stages("cuda:0", 6, NULL), "cuda:0 0-5+");
    assert_string_equal(stages("cuda:0", 99, NULL), "cuda:0 0-5+");
    assert_string_equal(stages("cuda:0", 0, NULL), "cuda:0 0-5+");
    assert_string_equal(stages("cuda:1", 0, NULL), "cuda:1 0-5+");
    assert_string_equal(stages("cpu", 3, NULL), "cpu 0-5+");
    assert_string_equal(stages("cuda:0,cuda:1", 99, NULL), "cuda:0 0-3, cuda:1 3-5+");
    assert_string_equal(stages("cuda:1,cuda:0", 4, "3,1"),
                        "cpu 0-1, cuda:1 1-4, cuda:0 4-5, cpu 5-5+");
    assert_string_equal(stages("cuda:0,cuda:1", 99, "0,1"), "cuda:1 0-5+");
}

TEST(names_and_shares_are_refused_in_a_sentence)
{
    pith_engine *e;
    pith_engine_params p;
    load(shapes[0]);
    pith_engine_params_default(&p);
    p.device = "cuda:0,cuda:0";
    expect(pith_engine_create(model, &p, &e, &err), &err, PITH_INVALID, "cannot stand beside");
    p.device = "cuda:0,cpu";
    expect(pith_engine_create(model, &p, &e, &err), &err, PITH_INVALID,
           "device: cpu cannot stand beside");
    p.device = "cuda:0,cuda:1";
    p.tensor_split = "1";
    expect(pith_engine_create(model, &p, &e, &err), &err, PITH_INVALID,
           "tensor_split: \"1\" is not a share for each of 2 devices");
    p.tensor_split = "0,0";
    expect(pith_engine_create(model, &p, &e, &err), &err, PITH_INVALID, "all are 0");
    p.tensor_split = NULL;
    p.n_gpu_layers = -2;
    expect(pith_engine_create(model, &p, &e, &err), &err, PITH_INVALID, "n_gpu_layers");
}

/* ---- memory ---- */

#define MARGIN ((int64_t)32 << 20) /* the least that stays free */

/* Layers of auto on a GPU with that much memory beside what stays free. */
static int32_t layers_in(int64_t bytes, int64_t kv_bytes)
{
    pith_stage_info s;
    pith_engine_params p;
    int32_t n = 0;
    unused = MARGIN + bytes;
    pith_engine_params_default(&p);
    p.device = "cuda:1";
    p.chunk = 1;
    p.kv_bytes = kv_bytes;
    for (int32_t i = 0; pith_stage_plan(model, &p, i, &s, &err) == PITH_OK; i++)
        if (strcmp(s.device, "cuda:1") == 0)
            n += s.n_layer + s.output;
    assert_non_null(strstr(err.message, ": an engine of these params has "));
    return n;
}

TEST(auto_takes_what_fits_beside_the_pages)
{
    pith_engine *e = NULL;
    pith_engine_params p;
    pith_kv_stats kv;
    int64_t room;
    load(shapes[0]);
    int32_t all = layers_in((int64_t)1 << 30, 1 << 20), last = all;
    assert_int_equal(all, info.n_layer + 1);
    assert_int_equal(layers_in(0, 1 << 20), 0);
    for (int64_t bytes = (int64_t)4 << 20; bytes > 0; bytes -= 16 << 10) {
        int32_t n = layers_in(bytes, 1 << 20);
        assert_true(n <= last && n >= last - 2);
        last = n;
    }
    assert_int_equal(last, 0);

    /* Without a size pages are what fits; more is refused with the numbers. */
    pith_engine_params_default(&p);
    p.device = "cuda:1";
    p.chunk = 1;
    p.n_gpu_layers = PITH_GPU_LAYERS_ALL;
    unused = 2 * MARGIN + (700 << 10);
    check(pith_kv_room(model, &p, &room, &err), &err);
    check(pith_engine_create(model, &p, &e, &err), &err);
    pith_engine_kv_stats(e, &kv);
    assert_true(kv.reserved_bytes <= room && kv.reserved_bytes > 0);
    pith_engine_free(e);
    p.kv_bytes = room + 2 * MARGIN;
    expect(pith_engine_create(model, &p, &e, &err), &err, PITH_NOMEM, "device cuda:1");
}
