/*
 * test_recurrent.c - recurrent layers: their keys and tensors, their lines in `info`, and their
 * state as a part of the KV memory. Cases: truncation, the budget to a byte, kept states giving
 * way, files. test_families.c checks that results are the same in every way of computing them.
 */
#define _POSIX_C_SOURCE 200809L

#include "engine/engine.h"
#include "folder.h"
#include "kv_check.h"
#include "mem_used.h"
#include "model_maker.h"
#include "status.h"

#define N_TOKEN 90
#define N_VOCAB 61
#define PAGE_LEN 16
#define KEPT 80 /* where a text of N_TOKEN keeps a state: the last page that 8 tokens follow */
#define SMALL                                                                                      \
    "arch=qwen35 layers=4 width=64 heads=4 kv_heads=2 head_dim=32 rot=8 ff=96 vocab=61 ctx=512"

static pith_model *model;
static int32_t tokens[N_TOKEN];

/* ---- files ---- */

static const char *make(const char *words, const char *name)
{
    check(model_make_of(words, in_folder(name), &err), &err);
    return in_folder(name);
}

static uint8_t *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*size);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

static void write_file(const char *path, const uint8_t *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

/* The bytes after a name in a file. */
static uint8_t *find(uint8_t *bytes, size_t size, const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; i + len <= size; i++)
        if (memcmp(bytes + i, name, len) == 0)
            return bytes + i + len;
    fail_msg("%s is not in the file", name);
    return NULL;
}

/* ---- keys and tensors ---- */

static const struct mistake {
    const char *name;
    int64_t value; /* u32 behind the key's type, at `at`; -1: the name is spoilt */
    size_t at;
    pith_status status;
    const char *says;
} mistakes[] = {
    {"qwen35.ssm.conv_kernel", -1, 0, PITH_FORMAT, "qwen35.ssm.conv_kernel is missing"},
    {"qwen35.ssm.conv_kernel", 1, 0, PITH_FORMAT, "qwen35.ssm.conv_kernel: 1 is not in 2..16"},
    {"qwen35.ssm.state_size", 0, 0, PITH_FORMAT, "qwen35.ssm.state_size: 0 is not in 1.."},
    {"qwen35.ssm.state_size", -1, 0, PITH_FORMAT, "qwen35.ssm.state_size is missing"},
    {"qwen35.ssm.group_count", 4, 0, PITH_FORMAT, "group_count: 4 key heads do not divide the 6"},
    {"qwen35.ssm.time_step_rank", -1, 0, PITH_FORMAT, "time_step_rank is missing"},
    {"qwen35.ssm.inner_size", 97, 0, PITH_FORMAT, "inner_size: 97 is not"},
    {"qwen35.full_attention_interval", 0, 0, PITH_FORMAT, "interval: 0 is no interval"},
    {"qwen35.full_attention_interval", 5, 0, PITH_UNSUPPORTED, "no layer of 4 has attention"},
    {"qwen35.attention.value_length", 16, 0, PITH_UNSUPPORTED, "value_length: 16, and keys of 32"},
    {"qwen35.rope.dimension_sections", -1, 0, PITH_FORMAT, "dimension_sections is missing"},
    {"qwen35.rope.dimension_sections", 9, 12, PITH_FORMAT, "dimension_sections: 9 is not in 0..8"},
    {"qwen35.rope.dimension_sections", 0, 12, PITH_UNSUPPORTED,
     "dimension_sections: [0, 1, 1, 0] leave pair 0"},
    {"blk.0.ssm_a\001", -1, 0, PITH_FORMAT, "tensor \"blk.0.ssm_a\" is missing"},
    {"blk.1.ssm_conv1d.weight", -1, 0, PITH_FORMAT, "\"blk.1.ssm_conv1d.weight\" is missing"},
    {"blk.2.attn_gate.weight", -1, 0, PITH_FORMAT, "\"blk.2.attn_gate.weight\" is missing"},
    {"blk.3.attn_q_norm.weight", -1, 0, PITH_FORMAT, "\"blk.3.attn_q_norm.weight\" is missing"},
    {"blk.0.post_attention_norm.weight", -1, 0, PITH_FORMAT, "post_attention_norm.weight\" is"},
    {"qwen35.ssm.conv_kernel", 3, 0, PITH_FORMAT,
     "tensor \"blk.0.ssm_conv1d.weight\": shape [160][4] where the metadata asks for [160][3]"},
};

TEST(each_mistake_has_its_sentence)
{
    size_t size;
    uint8_t *right = read_file(make(SMALL, "right.gguf"), &size), *wrong = malloc(size);
    for (size_t i = 0; i < PI_LEN(mistakes); i++) {
        const struct mistake *m = &mistakes[i];
        pith_model *none = NULL;
        memcpy(wrong, right, size);
        uint8_t *at = find(wrong, size, m->name);
        if (m->value < 0)
            at[-2] = '?';
        else
            at[4 + m->at] = (uint8_t)m->value;
        write_file(in_folder("wrong.gguf"), wrong, size);
        printf("%s\n", m->says);
        expect(pith_model_load(in_folder("wrong.gguf"), NULL, &none, &err), &err, m->status,
               m->says);
        assert_null(none);
    }
    free(right);
    free(wrong);
}

/* Which layers are recurrent, of an array that says it; and lists that do not. */
TEST(an_array_says_which_layers_are_recurrent)
{
    size_t size;
    uint8_t *bytes = read_file(make(SMALL " listed=1 interval=2", "list.gguf"), &size);
    pith_model *m = model_at(in_folder("list.gguf"));
    assert_int_equal(m->hp.n_layer_kv, 2);
    assert_int_equal(m->kv_layer[0], 1);
    assert_int_equal(m->kv_layer[1], 3);
    assert_int_equal(m->layer[0].delta_layer, 0);
    assert_int_equal(m->layer[1].delta_layer, -1);
    assert_int_equal(m->layer[2].delta_layer, 1);
    pith_model_free(m);
    uint8_t *at = find(bytes, size, "qwen35.attention.recurrent_layers") + 4;
    assert_int_equal(at[4], 4); /* items, behind their type */
    at[0] = 0;                  /* bytes, not truth values */
    at[12] = 2;
    write_file(in_folder("list.gguf"), bytes, size);
    expect(pith_model_load(in_folder("list.gguf"), NULL, &m, &err), &err, PITH_FORMAT,
           "recurrent_layers: 2 is not 0 or 1");
    free(bytes);
}

static int64_t estimate(int32_t n_token)
{
    pith_engine_params params;
    int64_t bytes;
    pith_engine_params_default(&params);
    params.page_len = PAGE_LEN;
    check(pith_kv_estimate(model, &params, n_token, &bytes, &err), &err);
    return bytes;
}

TEST(tells_layers_and_bytes_of_states)
{
    pith_model_info info;
    pith_model_get_info(model, &info);
    assert_int_equal(info.n_layer, 4);
    assert_int_equal(info.n_layer_kv, 1);
    /* Three inputs of 160 channels, six matrices of 16 times 16. */
    assert_int_equal(estimate(0), 3 * 4 * (3 * 160 + 6 * 16 * 16));
}

/* ---- the memory ---- */

static pith_status try_engine(int64_t kv_bytes, pith_engine **out, pith_error *why)
{
    pith_engine_params params;
    pith_engine_params_default(&params);
    params.chunk = 32;
    params.n_thread = 1;
    params.page_len = PAGE_LEN;
    params.kv_bytes = kv_bytes;
    return pith_engine_create(model, &params, out, why);
}

static pith_engine *engine_make(int64_t kv_bytes)
{
    pith_engine *e = NULL;
    check(try_engine(kv_bytes, &e, &err), &err);
    return e;
}

/* Every counter against the tables. An engine has tables beside the ones of its cache. */
static void check_account(const pith_engine *e)
{
    pith_kv_stats stats;
    kv_cache_stats(e->kv, &stats);
    kv_check_account(e->kv, pi_mem_used(PI_MEM_TABLE) - stats.table_bytes);
}

static void read_on(pith_seq *seq, int32_t n)
{
    int32_t from = pith_seq_length(seq);
    check(pith_seq_eval(seq, tokens + from, n - from, &err), &err);
    check_account(seq->engine);
}

static uint64_t hash_of(const pith_seq *seq)
{
    return pith_logits_hash(pith_seq_logits(seq), N_VOCAB);
}

TEST(goes_back_to_kept_states)
{
    pith_engine *e = engine_make(4 * estimate(N_TOKEN));
    pith_seq *seq = seq_make(e);
    read_on(seq, N_TOKEN);
    uint64_t wanted = hash_of(seq);
    expect(pith_seq_truncate(seq, KEPT - 1, &err), &err, PITH_UNSUPPORTED,
           "(0 can be gone back to)");
    expect(pith_seq_truncate(seq, KEPT + 5, &err), &err, PITH_UNSUPPORTED,
           "n_token: 85: the recurrent layers have kept no state there, so tokens from 80 on");
    assert_int_equal(pith_seq_length(seq), N_TOKEN);
    assert_true(hash_of(seq) == wanted);
    for (int i = 0; i < 2; i++) { /* the state is still kept */
        check(pith_seq_truncate(seq, KEPT, &err), &err);
        check_account(e);
        check(pith_seq_eval(seq, tokens + 3 + i, 5, &err), &err);
        check(pith_seq_truncate(seq, KEPT, &err), &err);
        read_on(seq, N_TOKEN);
        assert_true(hash_of(seq) == wanted);
    }
    assert_int_equal(pi_seq_reusable(seq, tokens, N_TOKEN - 3), KEPT);
    assert_int_equal(pi_seq_reusable(seq, tokens, KEPT - 3), 0);
    check(pith_seq_truncate(seq, 0, &err), &err);
    read_on(seq, N_TOKEN);
    assert_true(hash_of(seq) == wanted);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* States of a long text are kept denser towards its end. */
TEST(keeps_states_denser_towards_the_end)
{
    pith_engine *e = engine_make(8 * estimate(N_TOKEN));
    pith_seq *seq = seq_make(e);
    for (int32_t n = 30; n <= 450; n += 30)
        check(pith_seq_eval(seq, tokens, 30, &err), &err);
    int32_t before = pith_seq_length(seq), n_found = 0, at;
    while ((at = pi_memory_reach(&seq->memory, before - 1)) > 0) {
        assert_true(at % PAGE_LEN == 0 && at < before);
        before = at;
        n_found++;
    }
    assert_int_equal(n_found, KV_STATES_KEPT);
    assert_int_equal(pi_memory_reach(&seq->memory, 449), 432);
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(holds_the_budget_to_a_byte)
{
    int64_t whole = estimate(N_TOKEN), state_bytes = estimate(0);
    pith_engine *e = NULL;
    pith_kv_stats stats;
    expect(try_engine(state_bytes, &e, &err), &err, PITH_INVALID,
           "and a recurrent state of 24192)");
    for (int64_t less = 0; less < 2; less++) {
        e = engine_make(whole - less);
        pith_seq *seq = seq_make(e);
        pith_status status = pith_seq_eval(seq, tokens, N_TOKEN, &err);
        pith_engine_kv_stats(e, &stats);
        if (less > 0) {
            expect(status, &err, PITH_KV_FULL, "more entries");
            assert_int_equal(stats.used_bytes, 0);
        } else {
            check(status, &err);
            assert_int_equal(stats.used_bytes, whole);
        }
        pith_seq_free(seq);
        pith_engine_kv_stats(e, &stats);
        assert_int_equal(stats.used_bytes, 0);
        pith_engine_free(e);
    }
}

/* Kept states give their bytes to any sequence that needs them, and forks have states of their
   own. */
TEST(kept_states_give_way)
{
    int64_t whole = estimate(N_TOKEN);
    pith_engine *e = engine_make(2 * whole);
    pith_seq *seq = seq_make(e), *other = seq_make(e);
    pith_kv_stats stats;
    read_on(seq, N_TOKEN);
    uint64_t wanted = hash_of(seq);
    pith_engine_kv_stats(e, &stats);
    assert_int_equal(stats.used_bytes, whole + estimate(0));
    assert_int_equal(pi_memory_reach(&seq->memory, N_TOKEN - 1), KEPT);
    read_on(other, N_TOKEN);
    assert_true(hash_of(other) == wanted);
    pith_engine_kv_stats(e, &stats);
    assert_int_equal(stats.used_bytes, 2 * whole);
    assert_int_equal(pi_memory_reach(&seq->memory, N_TOKEN - 1), 0);
    pith_seq_free(other);
    check(pith_seq_fork(seq, &other, &err), &err);
    check_account(e);
    pith_engine_kv_stats(e, &stats);
    assert_int_equal(stats.used_bytes, whole);
    assert_int_equal(stats.saved_bytes, whole);
    check(pith_seq_eval(other, tokens, 1, &err), &err);
    pith_engine_kv_stats(e, &stats);
    assert_int_equal(stats.used_bytes, whole + estimate(PAGE_LEN)); /* the last pages, too */
    check(pith_seq_eval(seq, tokens, 1, &err), &err);
    assert_true(hash_of(seq) == hash_of(other));
    pith_seq_free(seq);
    pith_seq_free(other);
    pith_engine_free(e);
}

/* Going back to the only state that there is room for: the kept state becomes the sequence's
   own. */
TEST(goes_back_to_the_only_state_that_fits)
{
    pith_engine *e = engine_make(estimate(N_TOKEN) + estimate(1));
    pith_seq *seq = seq_make(e), *other = seq_make(e);
    read_on(seq, N_TOKEN);
    uint64_t wanted = hash_of(seq);
    check(pith_seq_truncate(seq, KEPT, &err), &err);
    check(pith_seq_eval(other, tokens, 1, &err), &err); /* takes the free memory */
    read_on(seq, KEPT + 1);
    pith_seq_free(other);
    read_on(seq, N_TOKEN);
    assert_true(hash_of(seq) == wanted);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* A file has the state; one of another shape, or none, is refused. */
TEST(a_file_holds_the_state)
{
    pith_model *narrow = NULL;
    pith_engine *e = engine_make(4 * estimate(N_TOKEN)), *f = NULL;
    pith_seq *seq = seq_make(e), *loaded = NULL;
    read_on(seq, 50);
    check(pith_seq_save(seq, in_folder("seq"), &err), &err);
    make(SMALL " delta_values=4", "narrow.gguf");
    check(pith_model_load(in_folder("narrow.gguf"), NULL, &narrow, &err), &err);
    f = engine_with(narrow, (pith_engine_params){.page_len = PAGE_LEN});
    expect(pith_seq_load(f, in_folder("seq"), &loaded, &err), &err, PITH_INVALID,
           "the recurrent layers' state has 24192 bytes, and the engine's");
    pith_engine_free(f);
    pith_model_free(narrow);
    pith_seq_free(seq);
    seq = seq_make(e);
    check(pith_seq_save(seq, in_folder("empty"), &err), &err);
    check(pith_seq_load(e, in_folder("empty"), &loaded, &err), &err);
    read_on(seq, N_TOKEN);
    read_on(loaded, N_TOKEN);
    assert_true(hash_of(seq) == hash_of(loaded));
    pith_seq_free(seq);
    pith_seq_free(loaded);
    pith_engine_free(e);
}

/* ---- policies ---- */

static const struct {
    const char *keep, *read;
} policies[] = {
    {"streaming:budget=32,slack=8", NULL},
    {"h2o:budget=32,window=8,slack=8", NULL},
    {"snapkv:budget=48,slack=8", NULL},
    {"knorm:budget=32,slack=8", NULL},
    {"streaming:budget=400", NULL},
    {NULL, "quoka:budget=32,gate=1,chunk=16,queries=4"},
    {NULL, "quest:quoka,budget=32,gate=1,chunk=16,sinks=0,dense-layers=0"},
};

/* The hash of a text's last logits, read in two evaluations. */
static uint64_t read_with(const char *keep, const char *read, int32_t chunk, int64_t *evicted)
{
    pith_keep_stats stats;
    pith_engine *e = engine_with(
        model,
        (pith_engine_params){
            .chunk = chunk, .n_thread = 1, .page_len = PAGE_LEN, .keep = keep, .read = read});
    pith_seq *seq = seq_make(e);
    read_on(seq, 70);
    read_on(seq, N_TOKEN);
    for (int32_t i = 0; i < 20; i++)
        check(pith_seq_eval(seq, tokens + i, 1, &err), &err);
    uint64_t hash = hash_of(seq);
    pith_seq_keep_stats(seq, &stats);
    *evicted = stats.evicted;
    pith_seq_free(seq);
    pith_engine_free(e);
    return hash;
}

/* Policies act on the lanes of the layers with attention; the state is whole. */
TEST(policies_leave_states_alone)
{
    int64_t evicted;
    uint64_t whole = read_with(NULL, NULL, 32, &evicted);
    for (size_t i = 0; i < PI_LEN(policies); i++) {
        uint64_t hash = read_with(policies[i].keep, policies[i].read, 32, &evicted);
        bool all = policies[i].keep != NULL && strstr(policies[i].keep, "=400") != NULL;
        printf("%s\n", policies[i].keep != NULL ? policies[i].keep : policies[i].read);
        assert_true((hash == whole) == all);
        assert_true((evicted > 0) == (policies[i].keep != NULL && !all));
        for (int32_t chunk = policies[i].read != NULL ? 16 : 5; chunk <= 64; chunk += 24)
            assert_true(read_with(policies[i].keep, policies[i].read, chunk, &evicted) == hash);
    }
}

/* ---- set-up ---- */

static void start(void)
{
    uint64_t seed = 5;
    make_folder();
    check(pith_model_load(make(SMALL, "model.gguf"), NULL, &model, &err), &err);
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&seed, N_VOCAB);
}

static void end(void)
{
    pith_model_free(model);
    remove_folder();
}

TEST_GROUP(start, end);
