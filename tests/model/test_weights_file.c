/*
 * test_weights_file.c - packed weights in a file: the same logits with it and without for all
 * weight types, and one file for any threads. Files that do not fit are refused with a sentence
 * each and not used. Also folders without write access, and pages that the system took away.
 * Families are in test_families.c.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "file/sum.h"
#include "folder.h"
#include "mem_used.h"
#include "model/weights_file.h"
#include "model_maker.h"
#include "pith/inspect.h"

#define N_VOCAB 101
#define SHAPE "layers=2 width=256 heads=4 kv_heads=2 head_dim=64 ff=512 ctx=64 vocab=101 "
#define EXPERTS "arch=qwen3moe experts=4 used=2 expert_ff=256 "

static char line[512]; /* the last of the log */
static int n_line;

static void take_line(void *user, pith_log_level level, const char *text)
{
    (void)user;
    if (level != PITH_LOG_WARN || strncmp(text, "weights: ", 9) != 0)
        return;
    snprintf(line, sizeof(line), "%s", text);
    n_line++;
}

static void set_up(void)
{
    pith_log_set(take_line, NULL);
    make_folder();
}

TEST_GROUP(set_up, remove_folder);

/* ---- models ---- */

static void make(const char *words)
{
    char all[512];
    snprintf(all, sizeof(all), SHAPE "%s", words);
    check(model_make_of(all, in_folder("model.gguf"), &err), &err);
}

/* Loads the model; cache is as pith_model_params.cache_weights. */
static pith_model *load(const char *cache, int32_t n_thread)
{
    pith_model_params params;
    pith_model *model = NULL;
    pith_model_params_default(&params);
    params.cache_weights = cache;
    params.n_thread = n_thread;
    check(pith_model_load(in_folder("model.gguf"), &params, &model, &err), &err);
    return model;
}

static bool is_mapped(const pith_model *model)
{
    pith_model_info info;
    pith_model_get_info(model, &info);
    return info.weights_mapped;
}

/* Of the logits behind a few tokens. */
static uint64_t hash_of(const pith_model *model)
{
    static const int32_t tokens[] = {3, 1, 41, 59, 26, 53, 58, 97};
    pith_engine *engine = engine_with(model, (pith_engine_params){.n_thread = 1, .kv_tokens = 16});
    pith_seq *seq = seq_make(engine);
    check(pith_seq_eval(seq, tokens, (int32_t)PI_LEN(tokens), &err), &err);
    uint64_t hash = pith_logits_hash(pith_seq_logits(seq), N_VOCAB);
    pith_seq_free(seq);
    pith_engine_free(engine);
    return hash;
}

/* Loads, tells whether the weights are mapped, and frees. */
static uint64_t load_and_hash(const char *cache, int32_t n_thread, bool *mapped)
{
    pith_model *model = load(cache, n_thread);
    uint64_t hash = hash_of(model);
    *mapped = is_mapped(model);
    pith_model_free(model);
    return hash;
}

/* ---- bytes ---- */

static uint8_t *read_file(const char *name, size_t *size)
{
    struct pi_file file = {0};
    check(pi_file_map(in_folder(name), &file, &err), &err);
    uint8_t *copy = malloc(file.size);
    assert_non_null(copy);
    memcpy(copy, file.data, file.size);
    *size = file.size;
    pi_file_unmap(&file);
    return copy;
}

static void write_file(const char *name, const void *data, size_t size)
{
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* ---- the same bits ---- */

TEST(gives_the_same_bits_for_all_types)
{
    static const char *const models[] = {
        "type=F32",          "type=F16",           "type=BF16",         "type=Q8_0",
        "type=Q4_0",         "type=Q4_1",          "type=Q5_0",         "type=Q5_1",
        "type=Q2_K",         "type=Q3_K",          "type=Q4_K",         "type=Q5_K",
        "type=Q6_K",         "type=IQ4_NL",        "type=IQ4_XS",       "type=MXFP4",
        "type=Q4_K_M",       "type=Q4_K tied=1",   EXPERTS "type=Q4_K", EXPERTS "type=MXFP4",
        EXPERTS "type=Q8_0", EXPERTS "type=IQ4_XS"};
    for (size_t i = 0; i < PI_LEN(models); i++) {
        bool mapped;
        make(models[i]);
        unlink(in_folder("model.gguf.packed"));
        uint64_t wanted = load_and_hash(NULL, 1, &mapped);
        assert_false(mapped);
        for (int turn = 0; turn < 2; turn++) /* the first makes the file, the second maps it */
            if (load_and_hash("", 1, &mapped) != wanted || !mapped)
                fail_msg("%s: %s, turn %d", models[i], mapped ? "other logits" : "not mapped",
                         turn);
    }
    mem_check(NULL);
}

TEST(writes_one_file_for_any_threads)
{
    size_t size[2];
    uint8_t *data[2];
    make(EXPERTS "type=Q5_K");
    for (int i = 0; i < 2; i++) {
        unlink(in_folder("model.gguf.packed"));
        pith_model_free(load("", i == 0 ? 1 : 3));
        data[i] = read_file("model.gguf.packed", &size[i]);
    }
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(data[0], data[1], size[0]);
    free(data[0]);
    free(data[1]);
}

TEST(writes_into_a_folder_of_its_own)
{
    bool mapped;
    make("type=Q8_0");
    unlink(in_folder("model.gguf.packed"));
    mkdir(in_folder("kept"), 0777);
    load_and_hash(in_folder("kept"), 1, &mapped);
    assert_true(mapped);
    assert_int_equal(access(in_folder("kept/model.gguf.packed"), R_OK), 0);
    assert_int_equal(access(in_folder("model.gguf.packed"), R_OK), -1);
    assert_int_equal(count_files("tmp-"), 0);
}

/* ---- files that do not fit ---- */

/* The file holds these bytes. The log says so, and whether the file was made again. */
static void expect_refusal(const void *data, size_t size, const char *word, bool again)
{
    bool mapped;
    write_file("model.gguf.packed", data, size);
    uint64_t wanted = load_and_hash(NULL, 1, &mapped);
    n_line = 0;
    if (load_and_hash("", 1, &mapped) != wanted || mapped != again || n_line != 1 ||
        strstr(line, word) == NULL)
        fail_msg("%s: mapped %d, %d lines, the last \"%s\"", word, mapped, n_line, line);
    n_line = 0;
    load_and_hash("", 1, &mapped);
    assert_int_equal(n_line, again ? 0 : 1); /* a file that was made again is used */
}

TEST(refuses_files_that_do_not_fit)
{
    static const struct {
        size_t at; /* of the byte that differs */
        const char *sentence;
    } bytes[] = {
        {8, "its version is 254, not 1: it is made again"},
        {16, "its weights are packed in another way: it is made again"},
        {24, "it was made from another model, or before that changed: it is made again"},
        {12, "its head is damaged, or of another release: it is made again"},
        {32, "its head is damaged"},
        {40, "its head is damaged"},
        {PI_WEIGHTS_FIXED, "its head is damaged"},
        {PI_WEIGHTS_FIXED + 40, "its head is damaged"},
        {PI_WEIGHTS_FIXED + PI_WEIGHTS_ENTRY * 10, "its head is damaged"},
    };
    size_t size;
    make("type=Q4_0");
    unlink(in_folder("model.gguf.packed"));
    pith_model_free(load("", 1));
    uint8_t *data = read_file("model.gguf.packed", &size);
    for (size_t i = 0; i < PI_LEN(bytes); i++) {
        data[bytes[i].at] ^= 0xff;
        expect_refusal(data, size, bytes[i].sentence, true);
        data[bytes[i].at] ^= 0xff;
    }
    expect_refusal(data, size - 1, " bytes of ", true);
    expect_refusal(data, size - 4096, " bytes of ", true);
    expect_refusal(data, 300, "it ends at byte 300, inside its head: it is made again", true);
    expect_refusal(data, 5, "it ends at byte 5, inside its head: it is made again", true);
    expect_refusal(data, 0, "the file is empty: it is made again", true);
    uint8_t *longer = calloc(size + 1, 1);
    assert_non_null(longer);
    memcpy(longer, data, size);
    expect_refusal(longer, size + 1, " bytes of ", true);
    free(longer);
    free(data);
}

/* A file that is not ours stays. */
TEST(leaves_a_foreign_file)
{
    static const char text[] = "a letter to nobody";
    size_t size;
    make("type=Q4_0");
    expect_refusal(text, sizeof(text),
                   "it does not begin as a file of packed weights: they are packed into memory",
                   false);
    uint8_t *data = read_file("model.gguf.packed", &size);
    assert_int_equal(size, sizeof(text));
    assert_memory_equal(data, text, size);
    free(data);
    unlink(in_folder("model.gguf.packed"));
}

TEST(packs_anew_when_the_model_changed)
{
    bool mapped;
    size_t size;
    struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    make("type=Q4_0");
    unlink(in_folder("model.gguf.packed"));
    uint64_t before = load_and_hash("", 1, &mapped);
    make("type=Q4_0 seed=7"); /* as many bytes, others */
    n_line = 0;
    uint64_t after = load_and_hash("", 1, &mapped);
    assert_true(after != before && mapped);
    assert_true(after == load_and_hash(NULL, 1, &mapped));
    assert_non_null(strstr(line, "it was made from another model"));
    /* Bytes of a tensor, and the time put back: the samples tell. */
    utimensat(AT_FDCWD, in_folder("model.gguf"), times, 0);
    before = load_and_hash("", 1, &mapped);
    uint8_t *data = read_file("model.gguf", &size);
    for (size_t i = size / 2; i < size; i++)
        data[i] ^= 1;
    write_file("model.gguf", data, size);
    free(data);
    utimensat(AT_FDCWD, in_folder("model.gguf"), times, 0);
    n_line = 0;
    after = load_and_hash("", 1, &mapped);
    assert_int_equal(n_line, 1);
    assert_true(after == load_and_hash(NULL, 1, &mapped));
}

/* ---- no file at all ---- */

TEST(loads_where_no_file_can_be)
{
    bool mapped;
    make("type=Q4_0");
    uint64_t wanted = load_and_hash(NULL, 1, &mapped);
    n_line = 0;
    assert_true(load_and_hash(in_folder("nowhere"), 1, &mapped) == wanted && !mapped);
    assert_int_equal(n_line, 1);
    assert_non_null(strstr(line, "No such file or directory: they are packed into memory"));
    mkdir(in_folder("dir"), 0777);
    mkdir(in_folder("dir/model.gguf.packed"), 0777);
    assert_true(load_and_hash(in_folder("dir"), 1, &mapped) == wanted && !mapped);
    assert_non_null(strstr(line, "not a regular file: they are packed into memory"));
    mem_check(NULL);
}

TEST(failing_memory_is_told)
{
    pith_model_params params;
    make(EXPERTS "type=Q4_0");
    pith_model_params_default(&params);
    params.cache_weights = "";
    params.n_thread = 1;
    for (int64_t n = 1; n < 2000; n++) {
        pith_model *model = NULL;
        err = (pith_error){0};
        unlink(in_folder("model.gguf.packed"));
        pi_mem_fail_at(n, true);
        pith_status status = pith_model_load(in_folder("model.gguf"), &params, &model, &err);
        pi_mem_fail_at(0, false);
        pith_model_free(model);
        mem_check(NULL);
        if (status == PITH_OK)
            break;
        assert_int_equal(status, PITH_NOMEM);
        assert_true(err.message[0] != '\0');
        assert_int_equal(count_files("tmp-"), 0);
    }
}

static bool stop_at_half(void *user, double fraction)
{
    (void)user;
    return fraction < 0.5;
}

TEST(a_cancelled_load_leaves_no_file)
{
    pith_model_params params;
    pith_model *model = NULL;
    make("type=F32");
    unlink(in_folder("model.gguf.packed"));
    pith_model_params_default(&params);
    params.progress = stop_at_half;
    for (int turn = 0; turn < 2; turn++) {
        params.cache_weights = turn == 0 ? NULL : "";
        expect(pith_model_load(in_folder("model.gguf"), &params, &model, &err), &err,
               PITH_CANCELLED, "loading was cancelled");
    }
    assert_int_equal(count_files("packed"), 0);
    mem_check(NULL);
}

/* ---- pages that go ---- */

/* Bytes of a mapping that are in memory. */
static size_t resident(const struct pi_file *file)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (file->size + page - 1) / page, sum = 0;
    unsigned char *in = malloc(n);
    assert_non_null(in);
    assert_int_equal(mincore((void *)file->data, file->size, in), 0);
    for (size_t i = 0; i < n; i++)
        sum += in[i] & 1u;
    free(in);
    return sum * page;
}

/* As where memory is short: the system takes the weights' pages, and a pass reads them again. */
TEST(pages_that_the_system_took_come_back)
{
#if !defined(MADV_PAGEOUT)
    test_skip("this system cannot be told to take pages");
#else
    make("type=Q8_0 layers=4");
    pith_model *model = load("", 1);
    uint64_t wanted = hash_of(model);
    const struct pi_file *file = &model->weights_file;
    size_t before = resident(file);
    madvise((void *)file->data, file->size, MADV_PAGEOUT);
    size_t after = resident(file);
    if (after > before / 2) {
        pith_model_free(model);
        test_skip("this file system keeps %zu of %zu bytes in memory", after, before);
    }
    assert_true(hash_of(model) == wanted);
    assert_true(resident(file) > after);
    pith_model_free(model);
#endif
}
