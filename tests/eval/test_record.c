/*
 * Safetensors files and recorded tensors. Files are read back as they were written, and each fault
 * of a file has its sentence. A recording holds the tensors that the model computed; it changes
 * nothing and leaves no partial file behind.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "folder.h"

#include "alloc_fail.h"
#include "base/half.h"
#include "mem_used.h"
#include "engine/engine.h"
#include "eval/record.h"
#include "eval/recorder.h"
#include "status.h"
#include "near.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define N_TOKEN 150

static pith_model *model;
static pith_model_info info;
static int32_t tokens[N_TOKEN];
/* ---- recording ---- */

static pith_engine *engine_make(int32_t chunk, const char *type)
{
    return engine_with(model, (pith_engine_params){.chunk = chunk,
                                                   .n_thread = 2,
                                                   .kv_tokens = 1024,
                                                   .page_len = 16,
                                                   .type_k = type,
                                                   .type_v = type});
}

static uint64_t hash_of(const pith_seq *seq)
{
    return pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
}

/* Evaluates the tokens in two batches beside another sequence, recorded to path unless it is NULL;
   returns the sequence. */
static pith_seq *run(pith_engine *e, const char *path)
{
    struct eval_recorder *r = NULL;
    pith_seq *other = seq_make(e), *seq = seq_make(e);
    if (path != NULL)
        check(eval_recorder_create(seq, path, &r, &err), &err);
    pith_batch_item items[2] = {{.seq = other, .tokens = tokens + 7, .n_token = 40},
                                {.seq = seq, .tokens = tokens, .n_token = 61}};
    check(pith_batch_eval(e, items, 2, NULL, NULL, &err), &err);
    check(pith_seq_eval(seq, tokens + 61, N_TOKEN - 61, &err), &err);
    if (path != NULL)
        check(eval_recorder_write(r, &err), &err);
    eval_recorder_free(r);
    pith_seq_free(other);
    return seq;
}

/* All floats of an array; the caller frees. */
static float *floats(const struct safetensor *t)
{
    int64_t n = (int64_t)(t->size / sizeof(float));
    float *x = malloc(t->size);
    assert_non_null(x);
    assert_true(safetensor_read_f32(t, 0, n, x));
    return x;
}

/* q after rope is q_pre turned by the file's own frequencies. */
static void check_rotation(const struct eval_record *rec, const float *q_pre, const float *q)
{
    double freq[256];
    const struct safetensor *t = safetensors_find(&rec->st, "rope.freq");
    const char *pairing = safetensors_meta(&rec->st, "rope_pairing");
    double magnitude = strtod(safetensors_meta(&rec->st, "rope_magnitude"), NULL);
    int32_t n_pair = (int32_t)t->dim[0];
    assert_true(n_pair > 0 && n_pair <= 256);
    assert_int_equal(2 * n_pair, atoi(safetensors_meta(&rec->st, "rope_n_rot")));
    assert_true(safetensor_read_f64(t, 0, n_pair, freq));
    bool adjacent = strcmp(pairing, "adjacent") == 0;
    double turned = 0.0;
    for (int32_t row = 0; row < rec->n_token * rec->n_head; row++)
        for (int32_t i = 0; i < n_pair; i++) {
            const float *in = q_pre + (size_t)row * rec->dim_k, *out = q + (size_t)row * rec->dim_k;
            int32_t a = adjacent ? 2 * i : i, b = adjacent ? a + 1 : i + n_pair;
            double angle = rec->position[row / rec->n_head] * freq[i];
            double x = magnitude * (in[a] * cos(angle) - in[b] * sin(angle));
            double y = magnitude * (in[a] * sin(angle) + in[b] * cos(angle));
            double most = 1e-5 * (1.0 + fabs(x) + fabs(y));
            if (fabs(x - out[a]) > most || fabs(y - out[b]) > most)
                fail_msg("row %d, pair %d: (%g, %g) instead of (%g, %g)", row, i, (double)out[a],
                         (double)out[b], x, y);
            turned += fabs(x - in[a]);
        }
    assert_true(turned > 1.0);
}

/* The entries of the lanes equal the recorded ones, in the storage type. */
static void check_stored(const struct eval_record *rec, const pith_seq *seq, int32_t layer,
                         const float *k, const float *v)
{
    float row[256];
    for (int32_t h = 0; h < rec->n_head_kv; h++)
        for (int32_t s = 0; s < rec->n_token; s++) {
            const float *key = k + ((size_t)s * rec->n_head_kv + h) * rec->dim_k;
            const float *value = v + ((size_t)s * rec->n_head_kv + h) * rec->dim_v;
            kv_lane_key(seq->memory.kv, layer, h, s, row);
            for (int32_t d = 0; d < rec->dim_k; d++)
                assert_true(row[d] == pi_f32_from_f16(pi_f16_from_f32(key[d])));
            kv_lane_value(seq->memory.kv, layer, h, s, row);
            for (int32_t d = 0; d < rec->dim_v; d++)
                assert_true(row[d] == pi_f32_from_f16(pi_f16_from_f32(value[d])));
        }
}

TEST(recording_is_what_the_model_did)
{
    struct eval_record rec;
    const char *path = in_folder("run.safetensors");
    pith_engine *e = engine_make(32, "f16");
    pith_seq *seq = run(e, path);
    check(eval_record_open(path, &rec, &err), &err);
    assert_int_equal(rec.n_token, N_TOKEN);
    assert_int_equal(rec.n_layer, info.n_layer);
    assert_int_equal(rec.n_head, info.n_head);
    assert_int_equal(rec.n_head_kv, info.n_head_kv);
    assert_int_equal(rec.dim_k, info.head_dim_k);
    assert_int_equal(rec.dim_v, info.head_dim_v);
    assert_string_equal(rec.model, info.name);
    assert_string_equal(safetensors_meta(&rec.st, "architecture"), info.architecture);
    assert_string_equal(safetensors_meta(&rec.st, "pith"), pith_version());
    assert_true(strtof(safetensors_meta(&rec.st, "rope_theta"), NULL) == info.rope_theta);
    assert_true(rec.attn_scale == model->hp.attn_scale);
    assert_memory_equal(rec.token, tokens, sizeof(tokens));
    for (int32_t i = 0; i < N_TOKEN; i++)
        assert_int_equal(rec.position[i], i);
    for (int32_t l = 0; l < rec.n_layer; l++) {
        float *q_pre = floats(rec.layer[l].q_pre), *q = floats(rec.layer[l].q);
        float *k = floats(rec.layer[l].k), *v = floats(rec.layer[l].v);
        check_rotation(&rec, q_pre, q);
        check_stored(&rec, seq, l, k, v);
        free(q_pre);
        free(q);
        free(k);
        free(v);
    }
    eval_record_close(&rec);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* The engine's attention over its lanes, given the recorded queries, is softmax attention over the
   recorded keys and values, computed one by one. */
TEST(recorded_rows_give_the_engines_attention)
{
    struct eval_record rec;
    const char *path = in_folder("attention.safetensors");
    pith_engine *e = engine_make(512, "f32");
    pith_seq *seq = run(e, path);
    check(eval_record_open(path, &rec, &err), &err);
    int32_t n_group = rec.n_head / rec.n_head_kv, at = N_TOKEN - 1;
    size_t q_len = (size_t)rec.n_head * rec.dim_k, v_len = (size_t)rec.n_head * rec.dim_v;
    float *out = malloc(v_len * sizeof(float));
    void *scratch =
        aligned_alloc(64, pi_align(kv_attend_scratch_bytes(kv_cache_geometry(e->kv), n_group), 64));
    for (int32_t l = 0; l < rec.n_layer; l++) {
        float *q = floats(rec.layer[l].q), *k = floats(rec.layer[l].k), *v = floats(rec.layer[l].v);
        for (int32_t h = 0; h < rec.n_head; h++) {
            int32_t kv_head = h / n_group;
            const float *query = q + (size_t)at * q_len + (size_t)h * rec.dim_k;
            struct kv_attend_job job = {
                .seq = seq->memory.kv,
                .layer = l,
                .head = kv_head,
                .n_tok = 1,
                .n_group = 1,
                .pos0 = at,
                .q = query,
                .scale = rec.attn_scale,
                .out = out,
            };
            double weight[N_TOKEN], sum = 0.0, max = -INFINITY;
            kv_attend(&job, scratch);
            for (int32_t i = 0; i <= at; i++) {
                const float *key = k + ((size_t)i * rec.n_head_kv + kv_head) * rec.dim_k;
                weight[i] = (double)rec.attn_scale * dot(query, key, rec.dim_k);
                max = fmax(max, weight[i]);
            }
            for (int32_t i = 0; i <= at; i++)
                sum += weight[i] = exp(weight[i] - max);
            for (int32_t d = 0; d < rec.dim_v; d++) {
                double wanted = 0.0;
                for (int32_t i = 0; i <= at; i++)
                    wanted += weight[i] / sum *
                              (double)v[((size_t)i * rec.n_head_kv + kv_head) * rec.dim_v + d];
                if (fabs(wanted - (double)out[d]) > 2e-5 * (1.0 + fabs(wanted)))
                    fail_msg("layer %d, head %d, dimension %d: %g instead of %g", l, h, d,
                             (double)out[d], wanted);
            }
        }
        free(q);
        free(k);
        free(v);
    }
    free(scratch);
    free(out);
    eval_record_close(&rec);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* The logits and the file are the same for any chunk, and the logits also without a recorder. */
TEST(recording_changes_nothing)
{
    static const int32_t chunks[] = {512, 1, 9};
    char line[400];
    pith_engine *e = engine_make(64, "f16");
    pith_seq *seq = run(e, NULL);
    uint64_t hash = hash_of(seq);
    pith_seq_free(seq);
    pith_engine_free(e);
    for (size_t i = 0; i < sizeof(chunks) / sizeof(*chunks); i++) {
        e = engine_make(chunks[i], "f16");
        seq = run(e, in_folder(i == 0 ? "first" : "again"));
        assert_true(hash_of(seq) == hash);
        pith_seq_free(seq);
        seq = run(e, NULL);
        assert_true(hash_of(seq) == hash);
        pith_seq_free(seq);
        pith_engine_free(e);
        snprintf(line, sizeof(line), "cmp '%s' '%s'", in_folder("first"), in_folder("again"));
        if (i > 0)
            assert_int_equal(system(line), 0);
    }
}

/* A token that is forgotten and evaluated again is recorded once, as it was the last time. */
TEST(records_after_a_truncation)
{
    struct eval_recorder *r = NULL;
    struct eval_record a, b;
    pith_engine *e = engine_make(64, "f16");
    pith_seq *seq = seq_make(e);
    check(eval_recorder_create(seq, in_folder("turned"), &r, &err), &err);
    check(pith_seq_eval(seq, tokens + 20, 30, &err), &err);
    check(pith_seq_truncate(seq, 0, &err), &err);
    check(pith_seq_eval(seq, tokens, 25, &err), &err);
    check(eval_recorder_write(r, &err), &err);
    eval_recorder_free(r);
    pith_seq_free(seq);
    seq = seq_make(e);
    check(eval_recorder_create(seq, in_folder("straight"), &r, &err), &err);
    check(pith_seq_eval(seq, tokens, 25, &err), &err);
    check(eval_recorder_write(r, &err), &err);
    eval_recorder_free(r);
    check(eval_record_open(in_folder("turned"), &a, &err), &err);
    check(eval_record_open(in_folder("straight"), &b, &err), &err);
    assert_int_equal(a.map_size, b.map_size);
    assert_memory_equal(a.map, b.map, a.map_size);
    eval_record_close(&a);
    eval_record_close(&b);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* ---- the tap ---- */

struct listener {
    const pith_seq *seq;
    int32_t n_call;
    int32_t stop_after; /* calls; 0: never */
    int32_t layer;      /* of the last call */
    int32_t next[64];   /* [n_layer] the position expected next */
};

static bool listen(void *user, const pith_tap_rows *rows)
{
    struct listener *l = user;
    assert_ptr_equal(rows->seq, l->seq);
    assert_int_equal(rows->layer, (l->n_call > 0 ? l->layer + 1 : 0) % info.n_layer);
    assert_int_equal(rows->pos0, l->next[rows->layer]);
    assert_memory_equal(rows->tokens, tokens + rows->pos0, (size_t)rows->n_token * sizeof(int32_t));
    l->layer = rows->layer;
    l->next[rows->layer] += rows->n_token;
    return ++l->n_call != l->stop_after;
}

TEST(a_tap_hears_every_layer_of_every_token)
{
    pith_engine *e = engine_make(16, "f16");
    pith_seq *seq = seq_make(e);
    struct listener l = {.seq = seq};
    check(pith_engine_set_tap(e, listen, &l, &err), &err);
    check(pith_seq_eval(seq, tokens, 50, &err), &err);
    assert_int_equal(l.n_call, 4 * info.n_layer); /* 16 + 16 + 16 + 2 tokens */
    check(pith_seq_eval(seq, tokens + 50, 1, &err), &err);
    assert_int_equal(l.next[info.n_layer - 1], 51);
    uint64_t hash = hash_of(seq);

    /* Stopped in the second of three passes: the sequence is as before, and nothing follows. */
    l = (struct listener){.seq = seq, .stop_after = info.n_layer + 1};
    for (int32_t i = 0; i < info.n_layer; i++)
        l.next[i] = 51;
    expect(pith_seq_eval(seq, tokens + 51, 40, &err), &err, PITH_CANCELLED, "tap");
    assert_int_equal(l.n_call, info.n_layer + 1);
    assert_int_equal(pith_seq_length(seq), 51);

    check(pith_engine_set_tap(e, NULL, NULL, &err), &err);
    check(pith_seq_truncate(seq, 50, &err), &err);
    check(pith_seq_eval(seq, tokens + 50, 1, &err), &err);
    assert_true(hash_of(seq) == hash);
    assert_int_equal(l.n_call, info.n_layer + 1);

    int64_t used = pi_mem_used(PI_MEM_SCRATCH);
    pi_mem_fail_at(1, false);
    expect(pith_engine_set_tap(e, listen, &l, &err), &err, PITH_NOMEM, "16 tokens");
    pi_mem_fail_at(0, false);
    check(pith_seq_eval(seq, tokens + 51, 3, &err), &err); /* still no tap */
    assert_int_equal(l.n_call, info.n_layer + 1);
    assert_int_equal(pi_mem_used(PI_MEM_SCRATCH), used);
    expect(pith_engine_set_tap(NULL, listen, &l, &err), &err, PITH_INVALID, "engine");
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* ---- what fails ---- */

TEST(refuses_bad_files_and_used_sequences)
{
    struct eval_recorder *r = NULL;
    pith_engine *e = engine_make(64, "f16");
    pith_seq *seq = seq_make(e);
    expect(eval_recorder_create(seq, in_folder("no/such"), &r, &err), &err, PITH_IO, "no/such");
    expect(eval_recorder_create(seq, "/", &r, &err), &err, PITH_IO, "Is a directory");
    check(eval_recorder_create(seq, in_folder("empty"), &r, &err), &err);
    expect(eval_recorder_write(r, &err), &err, PITH_INVALID, "no token was recorded");
    eval_recorder_free(r);
    check(pith_seq_eval(seq, tokens, 3, &err), &err);
    expect(eval_recorder_create(seq, in_folder("late"), &r, &err), &err, PITH_INVALID,
           "holds 3 tokens already");
    assert_int_equal(count_files("empty\\|late"), 0);
    eval_recorder_free(NULL);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* A disk that fills up: here a limit on the size of files. The old file stays. */
TEST(a_full_disk_leaves_the_old_file)
{
    struct eval_recorder *r = NULL;
    struct stat st;
    struct rlimit limit, small;
    const char *path = in_folder("full.safetensors");
    FILE *file = fopen(path, "wb");
    fputs("old", file);
    fclose(file);
    pith_engine *e = engine_make(64, "f16");
    pith_seq *seq = seq_make(e);
    check(eval_recorder_create(seq, path, &r, &err), &err);
    check(pith_seq_eval(seq, tokens, 100, &err), &err);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 100000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    pith_status status = eval_recorder_write(r, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    expect(status, &err, PITH_IO, "full.safetensors: cannot write: File too large");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 3);
    assert_int_equal(count_files("full"), 1);
    check(eval_recorder_write(r, &err), &err); /* once there is room */
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > 100000);
    eval_recorder_free(r);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* Records 40 tokens; the status of the first step that failed, with its sentence. */
static pith_status try_recording(pith_engine *e, const char *path, pith_error *why)
{
    struct eval_recorder *r = NULL;
    pith_seq *seq = seq_make(e);
    pith_status status = eval_recorder_create(seq, path, &r, why);
    if (status == PITH_OK) {
        status = pith_seq_eval(seq, tokens, 40, why);
        if (status == PITH_CANCELLED)
            status = eval_recorder_status(r, why);
        else if (eval_recorder_status(r, NULL) != PITH_OK)
            fail_msg("the recorder failed, the evaluation did not");
    }
    if (status == PITH_OK)
        status = eval_recorder_write(r, why);
    eval_recorder_free(r);
    pith_seq_free(seq);
    return status;
}

TEST(survives_every_failing_allocation)
{
    pith_engine *e = engine_make(64, "f16");
    alloc_fail_at(0);
    check(try_recording(e, in_folder("memory"), &err), &err);
    int64_t n = alloc_fail_at(0);
    assert_int_equal(remove(in_folder("memory")), 0);
    int64_t n_nomem = 0;
    for (int64_t i = 1; i <= n; i++) {
        memset(&err, 0, sizeof(err));
        alloc_fail_at(i);
        pith_status status = try_recording(e, in_folder("memory"), &err);
        alloc_fail_at(0);
        if (status == PITH_OK) { /* a buffer of stdio that it can do without */
            assert_int_equal(remove(in_folder("memory")), 0);
            continue;
        }
        expect(status, &err, PITH_NOMEM, "no memory");
        assert_int_equal(count_files("memory"), 0);
        n_nomem++;
    }
    assert_true(n > 50 && n_nomem > n / 2);

    struct eval_record rec;
    check(try_recording(e, in_folder("memory"), &err), &err);
    alloc_fail_at(0);
    check(eval_record_open(in_folder("memory"), &rec, &err), &err);
    n = alloc_fail_at(0);
    eval_record_close(&rec);
    assert_true(n > 50);
    for (int64_t i = 1; i <= n; i++) {
        alloc_fail_at(i);
        pith_status status = eval_record_open(in_folder("memory"), &rec, &err);
        alloc_fail_at(0);
        expect(status, &err, PITH_NOMEM, "no memory");
        assert_null(rec.st.header);
        assert_null(rec.layer);
    }
    pith_engine_free(e);
}

/* ---- files that are no record ---- */

enum { N_GOOD = 5, N_GOOD_META = 8 };
static const int32_t two[2] = {0, 1};
static const float zeros[64];
static const struct safetensor good[N_GOOD] = {
    {"positions", SAFETENSORS_I32, 1, {2}, two, 8},
    {"tokens", SAFETENSORS_I32, 1, {2}, two, 8},
    {"layers.0.q", SAFETENSORS_F32, 3, {2, 2, 4}, zeros, 64},
    {"layers.0.k", SAFETENSORS_F32, 3, {2, 1, 4}, zeros, 32},
    {"layers.0.v", SAFETENSORS_F32, 3, {2, 1, 3}, zeros, 24},
};
static const struct safetensors_pair good_meta[N_GOOD_META] = {
    {"format", "pith.record"}, {"version", "1"},    {"n_layer", "1"},    {"n_head", "2"},
    {"n_head_kv", "1"},        {"head_dim_k", "4"}, {"head_dim_v", "3"}, {"attn_scale", "0.5"},
};

/* Writes the good file with array i and text j replaced (-1: none) and opens it. */
static pith_status open_with(int i, const struct safetensor *tensor, int j, const char *value,
                             pith_error *why)
{
    struct safetensor t[N_GOOD];
    struct safetensors_pair m[N_GOOD_META];
    struct eval_record rec;
    pith_error write_err;
    memcpy(t, good, sizeof(t));
    memcpy(m, good_meta, sizeof(m));
    if (i >= 0)
        t[i] = *tensor;
    if (j >= 0)
        m[j] = (struct safetensors_pair){value != NULL ? m[j].key : "other",
                                         value != NULL ? value : "1"};
    check(safetensors_write(in_folder("bad"), t, N_GOOD, m, N_GOOD_META, &write_err), &write_err);
    pith_status status = eval_record_open(in_folder("bad"), &rec, why);
    eval_record_close(&rec);
    return status;
}

TEST(refuses_bad_records)
{
    static const int32_t falling[2] = {1, 1}, negative[2] = {-1, 0};
    static const int64_t big[2] = {0, INT64_C(1) << 40};
    static const struct {
        int i; /* array */
        struct safetensor tensor;
        int j; /* text; value NULL: missing */
        const char *value;
        pith_status status;
        const char *word;
    } cases[] = {
        {-1, {0}, 0, NULL, PITH_FORMAT, "format is not \"pith.record\""},
        {-1, {0}, 0, "numbers", PITH_FORMAT, "format is not \"pith.record\""},
        {-1, {0}, 1, "2", PITH_UNSUPPORTED, "version \"2\" of the format is not 1"},
        {-1, {0}, 1, NULL, PITH_UNSUPPORTED, "version \"\" of the format is not 1"},
        {-1, {0}, 2, NULL, PITH_FORMAT, "n_layer is missing"},
        {-1, {0}, 2, "0", PITH_FORMAT, "n_layer: \"0\" is not a whole number in 1..5"},
        {-1, {0}, 2, "6", PITH_FORMAT, "n_layer: \"6\" is not a whole number in 1..5"},
        {-1, {0}, 2, "2", PITH_FORMAT, "layers.1.q is missing"},
        {-1, {0}, 3, "2x", PITH_FORMAT, "n_head: \"2x\" is not"},
        {-1, {0}, 3, "", PITH_FORMAT, "n_head: \"\" is not"},
        {-1, {0}, 4, "3", PITH_FORMAT, "n_head 2 is no multiple of n_head_kv 3"},
        {-1, {0}, 5, "99999999999999999999", PITH_FORMAT, "head_dim_k: \"9999"},
        {-1, {0}, 5, "5", PITH_FORMAT, "layers.0.q: the shape is not [2][2][5]"},
        {-1, {0}, 6, "1", PITH_FORMAT, "layers.0.v: the shape is not [2][1][1]"},
        {-1, {0}, 7, "nan", PITH_FORMAT, "attn_scale: \"nan\" is not a number"},
        {-1, {0}, 7, NULL, PITH_FORMAT, "attn_scale: \"\" is not a number"},
        {0, {"p", SAFETENSORS_I32, 1, {2}, two, 8}, -1, NULL, PITH_FORMAT, "positions is missing"},
        {0,
         {"positions", SAFETENSORS_I32, 1, {0}, two, 0},
         -1,
         NULL,
         PITH_FORMAT,
         "positions is missing or no list"},
        {0,
         {"positions", SAFETENSORS_F32, 1, {2}, zeros, 8},
         -1,
         NULL,
         PITH_FORMAT,
         "positions are not whole numbers"},
        {0,
         {"positions", SAFETENSORS_I32, 1, {2}, falling, 8},
         -1,
         NULL,
         PITH_FORMAT,
         "positions[1] is 1, not above 1"},
        {0,
         {"positions", SAFETENSORS_I32, 1, {2}, negative, 8},
         -1,
         NULL,
         PITH_FORMAT,
         "positions[0] is -1, not in 0.."},
        {0,
         {"positions", SAFETENSORS_I64, 1, {2}, big, 16},
         -1,
         NULL,
         PITH_FORMAT,
         "positions[1] is 1099511627776, not in 0.."},
        {1,
         {"tokens", SAFETENSORS_I32, 1, {1}, two, 4},
         -1,
         NULL,
         PITH_FORMAT,
         "tokens is missing or no list of 2"},
        {2,
         {"layers.0.q", SAFETENSORS_F32, 2, {2, 8}, zeros, 64},
         -1,
         NULL,
         PITH_FORMAT,
         "layers.0.q: the shape is not"},
        {3,
         {"layers.0.k", SAFETENSORS_I32, 3, {2, 1, 4}, zeros, 32},
         -1,
         NULL,
         PITH_FORMAT,
         "layers.0.k: I32 is not F32"},
        {4,
         {"layers.0.w", SAFETENSORS_F32, 3, {2, 1, 3}, zeros, 24},
         -1,
         NULL,
         PITH_FORMAT,
         "layers.0.v is missing"},
    };
    check(open_with(-1, NULL, -1, NULL, &err), &err);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        expect(open_with(cases[i].i, &cases[i].tensor, cases[i].j, cases[i].value, &err), &err,
               cases[i].status, cases[i].word);
    struct eval_record rec;
    expect(eval_record_open(in_folder("none"), &rec, &err), &err, PITH_IO, "cannot open");
    expect(eval_record_open(folder, &rec, &err), &err, PITH_IO, "not a regular file");
    fclose(fopen(in_folder("empty"), "wb"));
    expect(eval_record_open(in_folder("empty"), &rec, &err), &err, PITH_FORMAT, "empty");
}

/* ---- setup ---- */

static void setup(void)
{
    uint64_t rng = 5;
    alloc_fail_begin();
    make_folder();
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    pith_model_get_info(model, &info);
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&rng, (uint64_t)info.n_vocab);
}

static void teardown(void)
{
    pith_model_free(model);
    mem_check(NULL);
    remove_folder();
}

TEST_GROUP(setup, teardown);
