/*
 * test_host.c - the processor's packing of weights. An engine has it made, a device that has its
 * own gives it back, and the process takes what is said. The device is hollow: it packs nothing and
 * computes nothing.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <unistd.h>

#include "device/device.h"
#include "folder.h"
#include "mem_used.h"
#include "model/host.h"
#include "model/placed.h"
#include "model_maker.h"
#include "pith/inspect.h"
#include "status.h"
#include "testing.h"

enum { N_VOCAB = 101 };

static struct pi_device hollow;
static int32_t n_packed; /* matrices that it has */

static struct pi_at pack(struct pi_device *d, const struct pi_matrix *w, int32_t n_slab)
{
    (void)d;
    (void)n_slab;
    float first = 0.0f; /* the packed groups are there */
    for (size_t i = 0; i < w->group_bytes; i++)
        first += w->data[i];
    assert_true(first > 0.0f);
    n_packed++;
    return (struct pi_at){1};
}

static struct pi_at pack_vector(struct pi_device *d, const float *x, size_t n)
{
    (void)d;
    (void)n;
    (void)x;
    return (struct pi_at){1};
}

static void unpack(struct pi_device *d, struct pi_at at)
{
    (void)d;
    (void)at;
}

static void set_up(void)
{
    make_folder();
    memcpy(&hollow, &pi_device_cpu, sizeof(hollow));
    hollow.name = "hollow";
    hollow.in_host = false;
    hollow.pack = pack;
    hollow.pack_vector = pack_vector;
    hollow.unpack = unpack;
}

TEST_GROUP(set_up, remove_folder);

/* ---- models ---- */

static void make(const char *words)
{
    char all[512];
    snprintf(all, sizeof(all), "vocab=101 ctx=64 head_dim=64 %s", words);
    check(model_make_of(all, in_folder("model.gguf"), &err), &err);
}

static pith_model *load(bool on_demand, const char *cache)
{
    pith_model_params params;
    pith_model *model = NULL;
    pith_model_params_default(&params);
    params.on_demand = on_demand;
    params.cache_weights = cache;
    params.n_thread = 2;
    check(pith_model_load(in_folder("model.gguf"), &params, &model, &err), &err);
    return model;
}

/* Of the logits behind a few tokens, on the processor. */
static uint64_t hash_of(const pith_model *model)
{
    static const int32_t tokens[] = {3, 1, 41, 59, 26, 53, 58, 97};
    pith_engine *engine =
        engine_with(model, (pith_engine_params){.n_thread = 1, .kv_tokens = 16, .device = "cpu"});
    pith_seq *seq = seq_make(engine);
    check(pith_seq_eval(seq, tokens, (int32_t)PI_LEN(tokens), &err), &err);
    uint64_t hash = pith_logits_hash(pith_seq_logits(seq), N_VOCAB);
    pith_seq_free(seq);
    pith_engine_free(engine);
    return hash;
}

static int64_t counted(void)
{
    return atomic_load(&pi_device_cpu.bytes);
}

static int64_t weights_of(const pith_model *model)
{
    pith_model_info info;
    pith_model_get_info(model, &info);
    return info.weight_bytes;
}

static const struct pi_placed *take(const pith_model *model, struct pi_device *d, int32_t begin,
                                    int32_t end, bool output)
{
    struct pi_packing packing = {.fn = NULL};
    const struct pi_stage stage = {d, begin, end, output};
    const struct pi_placed *placed = NULL;
    check(pi_placed_take(model, &stage, &packing, &placed, &err), &err);
    return placed;
}

/* ---- what is packed ---- */

static void check_counts(const char *words)
{
    make(words);
    int64_t before = counted();
    pith_model *model = load(false, NULL), *late = load(true, NULL);
    int64_t all = weights_of(model), few = counted() - before;
    uint64_t want = hash_of(model);
    int32_t n = late->hp.n_layer;
    pith_model_free(model);
    few -= before + few - counted(); /* what is left of it are vectors of the late one */
    assert_true(few < all / 4);

    /* Each device has its own layers, and the processor counts its own. */
    const struct pi_placed *there = take(late, &hollow, 1, n, true);
    assert_true(counted() - before < few + 4096);
    const struct pi_placed *here = take(late, &pi_device_cpu, 0, 1, false);
    int64_t some = counted() - before - few;
    assert_true(some > 0 && some < all);
    pi_placed_give(there);
    pi_placed_give(here);
    assert_int_equal(counted() - before - few, some); /* it stays for the next one */

    /* An engine packs what it needs, with the same bits, as often as it is asked. */
    assert_true(hash_of(late) == want);
    assert_true(counted() - before >= all);
    pi_placed_give(take(late, &hollow, 0, n, true));
    assert_int_equal(counted() - before, few);
    assert_true(hash_of(late) == want);
    pith_model_free(late);
    assert_int_equal(counted(), before);
    mem_check(NULL);
}

TEST(layers_are_packed_for_their_device_alone)
{
    check_counts("layers=4 width=256 heads=4 kv_heads=2 ff=512 type=Q8_0");
    check_counts("layers=4 width=256 heads=4 kv_heads=2 ff=512 type=Q4_K tied=1");
    check_counts("arch=qwen3moe layers=3 width=256 heads=4 kv_heads=2 experts=4 used=2 "
                 "expert_ff=256 type=Q4_0");
}

/* Parts that an engine was told of, and after how many of them it is to stop. */
struct told {
    int32_t n, stop;
    double last;
};

static bool tell(void *user, double fraction)
{
    struct told *told = user;
    assert_true(fraction > told->last && fraction <= 1.0);
    told->last = fraction;
    return ++told->n != told->stop;
}

TEST(packing_for_an_engine_tells_how_far_it_is_and_can_be_stopped)
{
    make("layers=4 width=256 heads=4 kv_heads=2 ff=512 type=Q8_0");
    int64_t before = counted();
    pith_model *model = load(true, NULL);
    pith_engine_params params;
    pith_engine *engine = NULL;
    pith_engine_params_default(&params);
    params.kv_tokens = 16;
    params.device = "cpu";
    params.progress = tell;
    struct told stopped = {.stop = 2}, whole = {0};
    params.progress_user = &stopped;
    assert_int_equal(pith_engine_create(model, &params, &engine, &err), PITH_CANCELLED);
    assert_int_equal(stopped.n, 2);
    params.progress_user = &whole;
    check(pith_engine_create(model, &params, &engine, &err), &err);
    assert_int_equal(whole.n, 5); /* four layers, embeddings and output */
    assert_true(whole.last == 1.0);
    pith_engine_free(engine);
    pith_model_free(model);
    assert_int_equal(counted(), before);
    mem_check(NULL);
}

TEST(a_load_that_packed_gives_back_what_a_device_has)
{
    make("layers=4 width=256 heads=4 kv_heads=2 ff=512 type=Q8_0");
    int64_t before = counted();
    pith_model *model = load(false, NULL);
    int64_t loaded = counted() - before;
    uint64_t want = hash_of(model);
    assert_int_equal(counted() - before, loaded);
    n_packed = 0;
    const struct pi_placed *placed = take(model, &hollow, 0, model->hp.n_layer, true);
    assert_int_equal(n_packed, 7 * 4 + 1);
    assert_true(counted() - before < loaded / 4);
    assert_true(hash_of(model) == want);
    assert_int_equal(counted() - before, loaded);
    pi_placed_give(placed);
    pith_model_free(model);
    assert_int_equal(counted(), before);
}

/* ---- the file ---- */

TEST(a_file_of_weights_fits_any_split)
{
    make("layers=4 width=256 heads=4 kv_heads=2 ff=512 type=Q8_0");
    pith_model_info info;
    pith_model *model = load(false, NULL);
    uint64_t want = hash_of(model);
    pith_model_free(model);
    for (int turn = 0; turn < 3; turn++) {
        int64_t before = counted();
        model = load(turn != 1, "");
        pith_model_get_info(model, &info);
        assert_true(info.weights_mapped);
        const struct pi_placed *placed = take(model, &hollow, 2, 4, true);
        assert_true(hash_of(model) == want);
        assert_true(counted() - before < info.weight_bytes / 4);
        pi_placed_give(placed);
        pith_model_free(model);
        assert_int_equal(counted(), before);
    }
}

/* ---- what the process takes ---- */

static int64_t resident(void)
{
    long long size = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL)
        test_skip("there is no /proc/self/statm");
    int n = fscanf(file, "%lld %lld", &size, &pages);
    fclose(file);
    assert_int_equal(n, 2);
    return pages * (int64_t)sysconf(_SC_PAGESIZE);
}

TEST(the_process_takes_what_is_said)
{
#if defined(__SANITIZE_ADDRESS__)
    test_skip("the sanitizer's own memory counts, too");
#endif
    make("layers=8 width=512 heads=8 kv_heads=2 ff=2048 type=F16");
    int64_t before = resident(), said = counted();
    pith_model *model = load(true, NULL);
    int64_t all = weights_of(model);
    const struct pi_placed *placed = take(model, &hollow, 1, 8, true);
    int64_t grown = resident() - before;
    print_message("weights %lld, resident %lld, said %lld\n", (long long)all, (long long)grown,
                  (long long)(counted() - said));
    assert_true(grown < all / 4);
    const struct pi_placed *here = take(model, &pi_device_cpu, 0, 8, true);
    grown = resident() - before;
    said = counted() - said;
    print_message("on the processor, too: resident %lld, said %lld\n", (long long)grown,
                  (long long)said);
    assert_true(said > all * 9 / 10 && grown > said * 8 / 10 && grown < said * 12 / 10 + (8 << 20));
    pi_placed_give(here);
    pi_placed_give(placed);
    pi_placed_give(take(model, &hollow, 0, 8, true));
    assert_true(resident() - before < all / 4);
    pith_model_free(model);
}
