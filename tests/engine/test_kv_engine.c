/*
 * test_kv_engine.c - storage types in an engine: the types it accepts where many query heads share
 * a KV head. Every pair of types, also with layers that differ, gives the same logits in any chunk
 * and within its budget of bytes. So it does with a keep policy and after a file. A file names its
 * model.
 */
#include <unistd.h>

#include "engine/engine.h"
#include "mem_used.h"
#include "model_maker.h"
#include "status.h"
#include "testing.h"
#include "pith/inspect.h"

#define N_TOKEN 150

/* A model of random weights; words as make_model takes them. */
static pith_model *model_of(const char *words)
{
    char path[64];
    snprintf(path, sizeof(path), "/tmp/pith-kv-engine-%ld", (long)getpid());
    check(model_make_of(words, path, &err), &err);
    pith_model *model = model_at(path);
    unlink(path);
    return model;
}

static pith_engine_params params_of(const char *type_k, const char *type_v)
{
    pith_engine_params params;
    pith_engine_params_default(&params);
    params.type_k = type_k;
    params.type_v = type_v;
    params.n_thread = 1;
    params.page_len = 16;
    params.kv_tokens = 256;
    return params;
}

/* ---- shared heads ---- */

/* How an engine with these params stores a layer; values are never replaced. */
static void check_types(const pith_model *model, const pith_engine_params *params, int32_t layer,
                        const char *want_k)
{
    pith_engine *e = NULL;
    check(pith_engine_create(model, params, &e, &err), &err);
    const struct kv_geometry *g = kv_cache_geometry(e->kv);
    assert_string_equal(kv_type_name(kv_layer_type_k(g, layer)), want_k);
    assert_string_equal(kv_type_name(kv_layer_type_v(g, layer)), "turbo3");
    pith_engine_free(e);
}

TEST(shared_keys_are_not_turbo)
{
    static const struct {
        const char *type_k;
        int32_t layer;
        const char *want;
        const char *given; /* what few query heads leave as it is */
    } cases[] = {
        {"turbo3", 1, "q8_0", "turbo3"},
        {"turbo2", 0, "q8_0", "turbo2"},
        {"turbo3:force", 1, "turbo3", "turbo3"},
        {"turbo3:f16=1+0", 0, "f16", "f16"},
        {"turbo3:f16=1+0", 1, "q8_0", "turbo3"},
        {"f16:turbo4=0+1", 3, "q8_0", "turbo4"},
        {"f16:turbo4=0+1", 2, "f16", "f16"},
        {"f16:force:turbo4=0+1", 3, "turbo4", "turbo4"},
        {"q4_0", 2, "q4_0", "q4_0"},
        {NULL, 2, "f16", "f16"},
    };
    pith_model *shared =
        model_of("layers=4 width=64 heads=6 kv_heads=1 head_dim=32 ff=64 vocab=64");
    pith_model *apart = model_of("layers=4 width=64 heads=5 kv_heads=1 head_dim=32 ff=64 vocab=64");
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        pith_engine_params p = params_of(cases[i].type_k, "turbo3");
        check_types(shared, &p, cases[i].layer, cases[i].want);
        check_types(apart, &p, cases[i].layer, cases[i].given);
    }
    pith_model_free(shared);
    pith_model_free(apart);
}

TEST(turbo_keys_of_shared_heads_need_force)
{
    pith_model *model = model_of("layers=2 width=64 heads=6 kv_heads=1 head_dim=80 ff=64 vocab=64");
    pith_engine_params p = params_of("turbo3", "turbo3");
    pith_engine *e = NULL;
    assert_int_equal(pith_engine_create(model, &p, &e, &err), PITH_UNSUPPORTED);
    assert_non_null(strstr(err.message, "type_k: \"turbo3\": 6 query heads share a KV head"));
    assert_non_null(strstr(err.message, "head size of 80"));
    p.type_k = "turbo3:force";
    check(pith_engine_create(model, &p, &e, &err), &err);
    pith_engine_free(e);
    p.type_v = "turbo3:force";
    assert_int_equal(pith_engine_create(model, &p, &e, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "type_v: \"turbo3:force\""));
    p.type_v = "f16:turbo2=2+1";
    assert_int_equal(pith_engine_create(model, &p, &e, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "type_v: the first 2 and the last 1 layers"));
    pith_model_free(model);
}

/* ---- every pair ---- */

static void eval_all(pith_engine *e, pith_seq **seq, int32_t n_vocab)
{
    uint64_t rng = 4;
    int32_t tokens[N_TOKEN];
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&rng, (uint64_t)n_vocab);
    check(pith_seq_create(e, seq, &err), &err);
    check(pith_seq_eval(*seq, tokens, N_TOKEN - 3, &err), &err);
    for (int32_t i = N_TOKEN - 3; i < N_TOKEN; i++)
        check(pith_seq_eval(*seq, tokens + i, 1, &err), &err);
}

/* The logits in chunks of 512 and of 7; after a file they go on alike. */
static void check_pair(const pith_model *model, const char *type_k, const char *type_v,
                       const char *keep)
{
    pith_model_info info;
    pith_engine *e[2];
    pith_seq *seq[2], *loaded;
    pith_kv_stats kv;
    char path[64];
    static const int32_t more[] = {3, 1, 4};
    pith_model_get_info(model, &info);
    snprintf(path, sizeof(path), "/tmp/pith-kv-engine-%ld.seq", (long)getpid());
    for (int i = 0; i < 2; i++) {
        pith_engine_params p = params_of(type_k, type_v);
        p.chunk = i ? 7 : 512;
        p.keep = keep;
        p.kv_tokens = keep != NULL ? 0 : 2 * p.kv_tokens;
        if (keep != NULL) { /* two sequences */
            check(pith_kv_estimate(model, &p, 4 * N_TOKEN, &p.kv_bytes, &err), &err);
            p.kv_bytes *= 2;
        }
        check(pith_engine_create(model, &p, &e[i], &err), &err);
        eval_all(e[i], &seq[i], info.n_vocab);
        pith_engine_kv_stats(e[i], &kv);
        assert_true(kv.peak_bytes <= kv.reserved_bytes);
        assert_true(kv.live_bytes <= kv.used_bytes);
    }
    size_t size = (size_t)info.n_vocab * sizeof(float);
    assert_memory_equal(pith_seq_logits(seq[0]), pith_seq_logits(seq[1]), size);
    check(pith_seq_save(seq[0], path, &err), &err);
    check(pith_seq_load(e[0], path, &loaded, &err), &err);
    unlink(path);
    check(pith_seq_eval(seq[1], more, 3, &err), &err);
    check(pith_seq_eval(loaded, more, 3, &err), &err);
    assert_memory_equal(pith_seq_logits(loaded), pith_seq_logits(seq[1]), size);
    pith_seq_free(loaded);
    for (int i = 0; i < 2; i++) {
        pith_seq_free(seq[i]);
        pith_engine_free(e[i]);
    }
}

TEST(every_pair_of_types_keeps_its_promises)
{
    static const char *const names[] = {"f32", "f16", "q8_0", "q4_0", "turbo4", "turbo3", "turbo2"};
    static const char *const edges[][2] = {
        {"turbo3:f16=1+1", "turbo2:q8_0=1+0"},
        {"turbo2:q8_0=1+2", "f16:turbo4=0+1"},
        {"q8_0", "turbo3:q8_0=0+4"},
    };
    pith_model *model = model_of("layers=4 width=64 heads=4 kv_heads=2 head_dim=64 ff=64 vocab=96");
    for (size_t i = 0; i < PI_LEN(names) * PI_LEN(names); i++)
        check_pair(model, names[i % PI_LEN(names)], names[i / PI_LEN(names)],
                   i % 3 == 0 ? "keydiff:budget=40,slack=16" : NULL);
    for (size_t i = 0; i < PI_LEN(edges); i++) {
        check_pair(model, edges[i][0], edges[i][1], NULL);
        check_pair(model, edges[i][0], edges[i][1], "h2o:budget=40,slack=16");
        check_pair(model, edges[i][0], edges[i][1], "keydiff:budget=64KiB,slack=16,layers=1/2/2/1");
    }
    pith_model_free(model);
    mem_check(NULL);
}

/* ---- whose a file is ---- */

static char heard[512];

static void hear(void *user, pith_log_level level, const char *line)
{
    (void)user;
    if (level == PITH_LOG_WARN)
        snprintf(heard, sizeof(heard), "%s", line);
}

/* Loads the file, goes on from it, and returns what was warned of. */
static const char *load_into(const pith_model *model, const char *path)
{
    static const int32_t more[3] = {1, 2, 3};
    pith_engine *e = NULL;
    pith_seq *seq = NULL;
    pith_engine_params p = params_of("f16", "f16");
    check(pith_engine_create(model, &p, &e, &err), &err);
    heard[0] = '\0';
    pith_log_set(hear, NULL);
    check(pith_seq_load(e, path, &seq, &err), &err);
    pith_log_set(NULL, NULL);
    assert_int_equal(pith_seq_length(seq), N_TOKEN);
    check(pith_seq_eval(seq, more, 3, &err), &err);
    pith_seq_free(seq);
    pith_engine_free(e);
    return heard;
}

/* As builds wrote it whose heads had no fingerprint: layout 1, 4 lanes that overwrite nothing. */
static void save_as_before(const pith_seq *seq, const char *path)
{
    uint32_t extra[8 + N_TOKEN + 4] = {UINT32_MAX, 1, N_TOKEN};
    memcpy(extra + 8, seq->tokens, N_TOKEN * sizeof(*extra));
    memset(extra + 8 + N_TOKEN, 0xff, 4 * sizeof(*extra));
    check(pi_memory_save(&seq->memory, extra, sizeof(extra), path, &err), &err);
}

/* A file knows its model. Files of older builds do not: tokens alone, or behind layout 1. */
TEST(a_file_of_another_model_is_warned_of)
{
    static const char shape[] = "layers=2 width=64 heads=2 kv_heads=2 head_dim=32 ff=64 vocab=96";
    char words[128], path[64];
    pith_engine *e = NULL;
    pith_seq *seq = NULL;
    snprintf(words, sizeof(words), "%s seed=2", shape);
    pith_model *model = model_of(shape), *other = model_of(words);
    pith_engine_params p = params_of("f16", "f16");
    snprintf(path, sizeof(path), "/tmp/pith-kv-engine-seq-%ld", (long)getpid());
    check(pith_engine_create(model, &p, &e, &err), &err);
    eval_all(e, &seq, 96);
    check(pith_seq_save(seq, path, &err), &err);
    assert_string_equal(load_into(model, path), "");
    assert_non_null(strstr(load_into(other, path), "is of another model of this shape"));
    check(pi_memory_save(&seq->memory, seq->tokens, N_TOKEN * sizeof(int32_t), path, &err), &err);
    assert_string_equal(load_into(model, path), "");
    assert_string_equal(load_into(other, path), "");
    save_as_before(seq, path);
    assert_string_equal(load_into(other, path), "");
    unlink(path);
    pith_seq_free(seq);
    pith_engine_free(e);
    pith_model_free(other);
    pith_model_free(model);
    mem_check(NULL);
}
