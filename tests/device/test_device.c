/*
 * Devices: every operation is there, memory can be written and read, and rows and products give the
 * same bits on both. So does an engine, and either device reads its files.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/device.h"
#include "engine/devices.h"
#include "kv/kv.h"
#include "mem_used.h"
#include "pith/inspect.h"
#include "status.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"

static struct pi_device *const devices[] = {&pi_device_cpu, &pi_device_checked};

enum { N_DEVICE = 2 };

/* ---- the table ---- */

/* Operations stand one behind the other, from alloc on to the end. Some of them are for devices of
   GPU kind alone. */
TEST(no_operation_is_missing)
{
    size_t first = offsetof(struct pi_device, alloc);
    const size_t own[] = {
        offsetof(struct pi_device, weigh),        offsetof(struct pi_device, move_lane),
        offsetof(struct pi_device, alloc_host),   offsetof(struct pi_device, free_host),
        offsetof(struct pi_device, carry),        offsetof(struct pi_device, settle),
        offsetof(struct pi_device, pack_marks),   offsetof(struct pi_device, apart),
        offsetof(struct pi_device, note_clipped), offsetof(struct pi_device, victims),
        offsetof(struct pi_device, map_host),     offsetof(struct pi_device, unite),
        offsetof(struct pi_device, share),        offsetof(struct pi_device, blend),
        offsetof(struct pi_device, sees),         offsetof(struct pi_device, learn),
        offsetof(struct pi_device, predict),      offsetof(struct pi_device, clone),
        offsetof(struct pi_device, asked)};
    size_t n = (sizeof(struct pi_device) - first) / sizeof(void (*)(void));
    assert_true(n > 30);
    for (int i = 0; i < N_DEVICE; i++)
        for (size_t j = 0; j < n; j++) {
            uintptr_t at;
            memcpy(&at, (const char *)devices[i] + first + j * sizeof(at), sizeof(at));
            size_t offset = first + j * sizeof(at), k = 0;
            while (k < PI_LEN(own) && own[k] != offset)
                k++;
            if (at == 0 && k == PI_LEN(own))
                fail_msg("operation %zu of %zu is missing on the %s", j, n, devices[i]->name);
        }
}

/* ---- memory ---- */

TEST(memory_goes_in_and_out)
{
    for (int i = 0; i < N_DEVICE; i++) {
        struct pi_device *d = devices[i];
        int64_t before = atomic_load(&d->bytes);
        uint8_t in[1000], room[1000];
        struct pi_at a = d->alloc(d, PI_MEM_OTHER, sizeof(in));
        struct pi_at b = d->map(d, PI_MEM_OTHER, 1 << 20);
        assert_int_equal(atomic_load(&d->bytes), before + (int64_t)sizeof(in) + (1 << 20));
        for (size_t j = 0; j < sizeof(in); j++)
            in[j] = (uint8_t)(j * 7);
        const uint8_t *zero = d->download(NULL, a, sizeof(in), room);
        for (size_t j = 0; j < sizeof(in); j++)
            assert_int_equal(zero[j], 0);
        d->upload(NULL, in, sizeof(in), a);
        d->upload(NULL, in, 500, pi_at_add(b, 4096));
        assert_memory_equal(d->download(NULL, a, sizeof(in), room), in, sizeof(in));
        assert_memory_equal(d->download(NULL, pi_at_add(b, 4096), 500, room), in, 500);
        assert_int_equal(d->download(NULL, a, 1, room) == (void *)room, !d->in_host);
        d->free(d, a);
        d->unmap(d, PI_MEM_OTHER, b, 1 << 20);
        assert_int_equal(atomic_load(&d->bytes), before);
    }
}

/* ---- operations ---- */

enum { N_ROW = 37, N_COL = 96, N_OUT = 50 };

/* out [N_ROW][N_OUT], a product of normed rows, as a device makes it. */
static void norm_and_multiply(struct pi_device *d, const struct pi_matrix *w, const float *x,
                              const float *gain, float *out)
{
    const struct pi_stream_shape shape = {.n_thread = 2, .widest = N_COL};
    struct pi_stream *s = d->open(d, &shape);
    size_t size = N_ROW * N_COL * sizeof(float), out_size = N_ROW * N_OUT * sizeof(float);
    struct pi_at at = d->alloc(d, PI_MEM_OTHER, size), h = d->alloc(d, PI_MEM_OTHER, size);
    struct pi_at to = d->alloc(d, PI_MEM_OTHER, out_size);
    struct pi_weight packed = {.type = w->type,
                               .n_row = w->n_row,
                               .n_col = w->n_col,
                               .n_group = w->n_group,
                               .group_bytes = w->group_bytes,
                               .data = d->pack(d, w, 1),
                               .floats = d->floats};
    const struct pi_between_rows rows = {
        .x = at, .h = h, .norm = d->pack_vector(d, gain, N_COL), .n = N_COL, .eps = 1e-5f};
    const struct pi_product product = {.x = h, .n_tok = N_ROW, .n = 1, .w = {&packed}, .out = {to}};
    d->upload(s, x, size, at);
    d->rows(s, PI_ROWS_BETWEEN, &rows, N_ROW, N_COL);
    d->product(s, &product);
    d->wait(s);
    memcpy(out, d->download(s, to, out_size, out), d->in_host ? out_size : 0);
    d->unpack(d, packed.data);
    d->unpack(d, rows.norm);
    d->free(d, at);
    d->free(d, h);
    d->free(d, to);
    d->close(s);
}

TEST(rows_and_products_agree)
{
    static float x[N_ROW * N_COL], w[N_OUT * N_COL], gain[N_COL], out[N_DEVICE][N_ROW * N_OUT];
    uint64_t rng = 5;
    struct pi_matrix m = {.type = PI_DTYPE_F32,
                          .n_row = N_OUT,
                          .n_col = N_COL,
                          .n_group = (N_OUT + PI_GROUP - 1) / PI_GROUP,
                          .group_bytes = pi_matmul_group_bytes(PI_DTYPE_F32, N_COL)};
    m.data = pi_mem_alloc(PI_MEM_OTHER, (size_t)m.n_group * m.group_bytes);
    for (size_t i = 0; i < PI_LEN(x); i++)
        x[i] = rng_float(&rng);
    for (size_t i = 0; i < PI_LEN(w); i++)
        w[i] = rng_float(&rng);
    for (size_t i = 0; i < PI_LEN(gain); i++)
        gain[i] = rng_float(&rng);
    for (int32_t g = 0; g < m.n_group; g++)
        pi_matmul_pack_group(PI_DTYPE_F32, N_COL, w + (size_t)g * PI_GROUP * N_COL,
                             (int32_t)pi_min(PI_GROUP, N_OUT - g * PI_GROUP),
                             m.data + (size_t)g * m.group_bytes);
    for (int i = 0; i < N_DEVICE; i++)
        norm_and_multiply(devices[i], &m, x, gain, out[i]);
    assert_memory_equal(out[0], out[1], sizeof(out[0]));
    assert_true(out[0][0] != 0.0f);
    pi_mem_free(m.data);
}

/* ---- an engine ---- */

#define N_TOKEN 150

static void read_text(pith_seq *seq, int32_t n)
{
    int32_t ids[N_TOKEN];
    for (int32_t i = 0; i < n; i++)
        ids[i] = (i * 7919 + 13) % 200;
    check(pith_seq_eval(seq, ids, n, &err), &err);
}

static pith_engine *engine_on(struct pi_device *d, const pith_model *model)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    pith_engine_params_default(&params);
    params.kv_tokens = 1024;
    params.type_k = "q8_0";
    params.type_v = "turbo3";
    params.keep = "h2o:budget=64,slack=16";
    params.device = d->name;
    check(pith_engine_create(model, &params, &e, &err), &err);
    assert_string_equal(pith_engine_device(e), d->name);
    return e;
}

/* Reads a text, saves it, and goes on from the other device's file. */
TEST(engines_agree)
{
    char path[N_DEVICE][64];
    uint64_t hash[N_DEVICE][2];
    struct pi_device *was = pi_device_register(&pi_device_checked);
    pith_model_info info;
    int64_t before = atomic_load(&pi_device_checked.bytes);
    pith_model *model = model_at(MODEL);
    pith_model_get_info(model, &info);
    for (int i = 0; i < N_DEVICE; i++) {
        pith_engine *e = engine_on(devices[i], model);
        pith_seq *seq = seq_make(e);
        snprintf(path[i], sizeof(path[i]), "/tmp/test_device.%ld.%d", (long)getpid(), i);
        read_text(seq, N_TOKEN);
        hash[i][0] = pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
        check(pith_seq_save(seq, path[i], &err), &err);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
    for (int i = 0; i < N_DEVICE; i++) {
        pith_engine *e = engine_on(devices[i], model);
        pith_seq *seq = NULL;
        check(pith_seq_load(e, path[1 - i], &seq, &err), &err);
        read_text(seq, 20);
        hash[i][1] = pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
    assert_int_equal(hash[0][0], hash[1][0]);
    assert_int_equal(hash[0][1], hash[1][1]);
    assert_int_equal(atomic_load(&pi_device_checked.bytes), before);
    for (int i = 0; i < N_DEVICE; i++)
        unlink(path[i]);
    pi_device_register(was);
    pith_model_free(model);
}

/* A device has the weights of a model once, until the last of its engines goes. */
TEST(engines_of_a_model_share_its_weights)
{
    struct pi_device *d = &pi_device_checked, *was = pi_device_register(d);
    int64_t before = atomic_load(&d->bytes);
    pith_model_info info;
    pith_model *model = model_at(MODEL), *other = model_at(MODEL);
    pith_model_get_info(model, &info);
    pith_engine *a = engine_on(d, model);
    int64_t one = atomic_load(&d->bytes) - before;
    pith_engine *b = engine_on(d, model);
    int64_t two = atomic_load(&d->bytes) - before;
    assert_true(one > info.weight_bytes);
    assert_true(two - one <= one - info.weight_bytes); /* all but the weights */
    pith_engine *c = engine_on(d, other);
    assert_int_equal(atomic_load(&d->bytes) - before, two + one); /* another model's are its own */
    pith_engine_free(c);
    pith_engine_free(a);
    pith_seq *seq = seq_make(b); /* b still has them */
    read_text(seq, 20);
    assert_non_null(pith_seq_logits(seq));
    pith_seq_free(seq);
    pith_engine_free(b);
    assert_int_equal(atomic_load(&d->bytes), before);
    pith_model_free(model);
    pith_model_free(other);
    pi_device_register(was);
}

/* ---- the list ---- */

static int64_t used_of(const char *name)
{
    pith_device_info info;
    check(pith_device_find(name, &info, &err), &err);
    return info.used_bytes;
}

/* Weights, pages and buffers of the process. Positions are among them, and buffers in which
   policies work. */
static int64_t taken(void)
{
    return pi_mem_used(PI_MEM_WEIGHTS) + pi_mem_used(PI_MEM_KV) + pi_mem_used(PI_MEM_SCRATCH);
}

TEST(the_processors_account_is_what_the_process_takes)
{
    int64_t used = used_of("cpu"), all = taken();
    pith_model *model = model_at(MODEL);
    assert_int_equal(used_of("cpu") - used, taken() - all); /* weights */
    pith_engine *e = engine_on(&pi_device_cpu, model);
    pith_seq *seq = seq_make(e);
    read_text(seq, 100);
    int64_t more = used_of("cpu") - used, most = taken() - all;
    print_message("device %lld of %lld bytes\n", (long long)more, (long long)most);
    assert_true(more <= most && more >= most * 8 / 10);
    pith_seq_free(seq);
    pith_engine_free(e);
    pith_model_free(model);
    assert_int_equal(used_of("cpu"), used);
}

static int32_t no_gpus(pith_error *why)
{
    (void)why;
    return 0;
}

TEST(names_mean_devices)
{
    static const struct pi_gpu_list none = {.count = no_gpus};
    struct pi_device *was = pi_device_register(NULL);
    pith_device_info info, first;
    pith_engine_params params;
    pith_engine *e = NULL;
    pi_gpu_list_register(&none);
    assert_true(pith_device_count() >= 1);
    assert_int_equal(pith_device_get(0, &first), PITH_OK);
    assert_true(first.description[0] != '\0');
    assert_int_equal(pith_device_get(pith_device_count(), &info), PITH_NOT_FOUND);
    assert_int_equal(pith_device_get(-1, &info), PITH_NOT_FOUND);
    static const char *const firsts[] = {NULL, "auto"};
    for (size_t i = 0; i < PI_LEN(firsts); i++) {
        check(pith_device_find(firsts[i], &info, &err), &err);
        assert_string_equal(info.name, first.name);
    }
    pith_model *model = model_at(MODEL);
    pith_engine_params_default(&params);
    params.device = "checked"; /* a device of tests, which no list has */
    assert_int_equal(pith_engine_create(model, &params, &e, &err), PITH_INVALID);
    assert_string_equal(err.message, "device: \"checked\" is no device; there are auto, cpu");
    pith_model_free(model);
    pi_gpu_list_register(NULL);
    pi_device_register(was);
}

/* The bytes of a cache's pages are its device's. */
TEST(caches_count_where_they_are)
{
    struct kv_geometry g = {.n_layer = 1, .n_head = 1, .dim_k = 32, .dim_v = 32, .page_len = 16};
    for (int i = 0; i < N_DEVICE; i++) {
        struct kv_cache *cache;
        int64_t before = atomic_load(&devices[i]->bytes);
        g.device = devices[i];
        check(kv_cache_create(&g, 1 << 20, &cache, &err), &err);
        int64_t taken = atomic_load(&devices[i]->bytes) - before;
        assert_true(taken > (1 << 20) - (1 << 17) && taken <= 1 << 20);
        kv_cache_free(cache);
        assert_int_equal(atomic_load(&devices[i]->bytes), before);
    }
}
