/*
 * test_quantize.c - pith_quantize from end to end on a small file made here: every type, the mix
 * and the fallbacks, and the metadata. Also failures on the way: cancelling, no memory, a full
 * disk. After each failure the folder must be as before.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "file/gguf.h"
#include "tensor/dtype.h"
#include "testing.h"
#include "pith/inspect.h"

#define N_LAYER 8
#define N_ROW 4

static char dir[128], in_path[192], out_path[192];

/* ---- the file ---- */

struct tensor {
    char name[64];
    int64_t ne[3]; /* ne[1] 0: one dimension; ne[2] 0: two */
    enum pi_dtype type;
};

static struct tensor tensors[64];
static int n_tensor;

static void add(const char *name, int64_t ne0, int64_t ne1, int64_t ne2, enum pi_dtype type)
{
    struct tensor *t = &tensors[n_tensor++];
    *t = (struct tensor){.ne = {ne0, ne1, ne2}, .type = type};
    snprintf(t->name, sizeof(t->name), "%s", name);
}

static void add_layer(int layer, const char *name, int64_t ne0, int64_t ne1, enum pi_dtype type)
{
    char whole[64];
    snprintf(whole, sizeof(whole), "blk.%d.%s.weight", layer, name);
    add(whole, ne0, ne1, 0, type);
}

/* A model's tensors, in source types of every kind, and some that are odd. */
static void list_tensors(bool tied)
{
    n_tensor = 0;
    add("token_embd.weight", 256, 9, 0, PI_DTYPE_F32);
    for (int l = 0; l < N_LAYER; l++) {
        add_layer(l, "attn_norm", 256, 0, PI_DTYPE_F32);
        add_layer(l, "attn_q", 256, N_ROW, PI_DTYPE_F16);
        add_layer(l, "attn_v", 256, N_ROW, PI_DTYPE_BF16);
        add_layer(l, "ffn_down", 256, N_ROW, PI_DTYPE_F32);
        add_layer(l, "ffn_up", 256, N_ROW, PI_DTYPE_Q8_0);
    }
    add("blk.0.attn_q.bias", 256, 0, 0, PI_DTYPE_F32);
    add("blk.0.narrow.weight", 96, 3, 0, PI_DTYPE_F32);
    add("blk.0.odd.weight", 40, 3, 0, PI_DTYPE_F32);
    add("blk.0.experts.weight", 256, 2, 3, PI_DTYPE_F32);
    add("blk.0.ffn_gate_inp.weight", 256, 2, 0, PI_DTYPE_F32);
    add("large.weight", 512, 97, 0, PI_DTYPE_F32); /* several pieces and a remainder */
    if (!tied)
        add("output.weight", 256, 9, 0, PI_DTYPE_F16);
}

static int64_t tensor_len(const struct tensor *t)
{
    return t->ne[0] * pi_max(t->ne[1], 1) * pi_max(t->ne[2], 1);
}

/* The weights of tensor i as its source type has them: [tensor_len]. */
static void source_bytes(int i, void *bytes)
{
    static float x[512 * 97];
    uint64_t rng = (uint64_t)i;
    for (int64_t k = 0; k < tensor_len(&tensors[i]); k++)
        x[k] = rng_float(&rng) + rng_float(&rng) * rng_float(&rng);
    pi_dtype_find(tensors[i].type)->encode(x, bytes, tensor_len(&tensors[i]));
}

static void write_input(bool tied)
{
    static uint8_t bytes[4 * 512 * 97];
    struct pi_gguf_writer w = {0};
    struct pi_new_file file;
    list_tensors(tied);
    assert_int_equal(pi_gguf_add_str(&w, "general.architecture", "llama"), PITH_OK);
    assert_int_equal(pi_gguf_add_u32(&w, "general.file_type", 1), PITH_OK);
    assert_int_equal(pi_gguf_add_u32(&w, "general.alignment", 64), PITH_OK);
    assert_int_equal(pi_gguf_add_u32(&w, "llama.block_count", N_LAYER), PITH_OK);
    for (int i = 0; i < n_tensor; i++) {
        const struct tensor *t = &tensors[i];
        const struct pi_dtype_traits *traits = pi_dtype_find(t->type);
        int32_t n_dim = t->ne[2] != 0 ? 3 : t->ne[1] != 0 ? 2 : 1;
        assert_int_equal(pi_gguf_add_tensor(&w, (struct pi_str){t->name, strlen(t->name)}, n_dim,
                                            t->ne, t->type,
                                            pi_dtype_row_bytes(traits, tensor_len(t))),
                         PITH_OK);
    }
    assert_int_equal(pi_new_file_open(in_path, &file, &err), PITH_OK);
    assert_int_equal(pi_gguf_write_head(&w, &file, &err), PITH_OK);
    for (int i = 0; i < n_tensor; i++) {
        source_bytes(i, bytes);
        size_t size = pi_dtype_row_bytes(pi_dtype_find(tensors[i].type), tensor_len(&tensors[i]));
        assert_int_equal(pi_gguf_write_tensor(&w, &file, bytes, size, &err), PITH_OK);
    }
    assert_int_equal(pi_new_file_commit(&file, &err), PITH_OK);
    pi_gguf_writer_free(&w);
}

/* ---- helpers ---- */

struct result {
    struct pi_file file;
    struct pi_gguf g;
};

static void open_result(struct result *r)
{
    *r = (struct result){0};
    assert_int_equal(pi_file_map(out_path, &r->file, &err), PITH_OK);
    if (pi_gguf_parse(&r->g, r->file.data, r->file.size, "out.gguf", &err) != PITH_OK)
        fail_msg("%s", err.message);
}

static void close_result(struct result *r)
{
    pi_gguf_free(&r->g);
    pi_file_unmap(&r->file);
}

static void quantize(const char *type, int32_t n_thread, struct result *r)
{
    err = (pith_error){0};
    if (pith_quantize(in_path, out_path, type, n_thread, NULL, NULL, &err) != PITH_OK)
        fail_msg("%s: %s", type, err.message);
    open_result(r);
}

static int count_files(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static const char *type_of(const struct result *r, const char *name)
{
    const struct pi_gguf_tensor *t = pi_gguf_find_tensor(&r->g, name);
    assert_non_null(t);
    return pi_dtype_find(t->type)->name;
}

/* The tensor holds what its type makes of the source's weights. */
static void check_weights(const struct result *r, int i)
{
    static uint8_t source[4 * 512 * 97], expected[4 * 512 * 97];
    static float x[512 * 97];
    const struct pi_gguf_tensor *t = &r->g.tensor[i];
    const struct pi_dtype_traits *from = pi_dtype_find(tensors[i].type),
                                 *to = pi_dtype_find(t->type);
    const int64_t n = tensor_len(&tensors[i]);
    assert_memory_equal(t->name.data, tensors[i].name, t->name.len);
    source_bytes(i, source);
    assert_int_equal(t->size, pi_dtype_row_bytes(to, n));
    if (from == to) {
        assert_memory_equal(t->data, source, t->size);
        return;
    }
    from->decode(source, x, n);
    to->encode(x, expected, n);
    assert_memory_equal(t->data, expected, t->size);
}

/* ---- types ---- */

static const struct {
    const char *name, *narrow, *odd; /* of rows of 256, 96 and 40 */
    uint32_t file_type;
} types[] = {
    {"F32", "F32", "F32", 0},    {"F16", "F16", "F16", 1},    {"BF16", "BF16", "BF16", 32},
    {"Q8_0", "Q8_0", "F16", 7},  {"Q4_0", "Q4_0", "F16", 2},  {"Q4_1", "Q4_1", "F16", 3},
    {"Q5_0", "Q5_0", "F16", 8},  {"Q5_1", "Q5_1", "F16", 9},  {"Q2_K", "Q4_0", "F16", 10},
    {"Q3_K", "Q4_0", "F16", 11}, {"Q4_K", "Q5_0", "F16", 14}, {"Q5_K", "Q5_1", "F16", 16},
    {"Q6_K", "Q8_0", "F16", 18},
};

TEST(writes_every_type)
{
    struct result r;
    uint32_t v;
    write_input(false);
    for (size_t k = 0; k < PI_LEN(types); k++) {
        quantize(types[k].name, 2, &r);
        assert_int_equal(r.g.n_tensor, n_tensor);
        for (int i = 0; i < n_tensor; i++)
            check_weights(&r, i);
        assert_string_equal(type_of(&r, "token_embd.weight"), types[k].name);
        assert_string_equal(type_of(&r, "output.weight"), types[k].name);
        assert_string_equal(type_of(&r, "blk.7.ffn_up.weight"), types[k].name);
        assert_string_equal(type_of(&r, "blk.0.experts.weight"), types[k].name);
        assert_string_equal(type_of(&r, "blk.0.narrow.weight"), types[k].narrow);
        assert_string_equal(type_of(&r, "blk.0.odd.weight"), types[k].odd);
        assert_string_equal(type_of(&r, "blk.3.attn_norm.weight"), "F32");
        assert_string_equal(type_of(&r, "blk.0.attn_q.bias"), "F32");
        assert_string_equal(type_of(&r, "blk.0.ffn_gate_inp.weight"), "F32");
        assert_int_equal(pi_gguf_u32(&r.g, "general.file_type", &v, &err), PITH_OK);
        assert_int_equal(v, types[k].file_type);
        close_result(&r);
    }
    assert_int_equal(count_files(), 2);
}

TEST(metadata_is_kept)
{
    struct result r;
    uint32_t v;
    struct pi_str text;
    write_input(false);
    quantize("q6_k", 1, &r);
    assert_int_equal(r.g.n_kv, 5);
    assert_int_equal(r.g.alignment, 64);
    assert_memory_equal(r.g.kv[1].key.data, "general.file_type", r.g.kv[1].key.len);
    assert_int_equal(pi_gguf_u32(&r.g, "general.quantization_version", &v, &err), PITH_OK);
    assert_int_equal(v, 2);
    assert_int_equal(pi_gguf_u32(&r.g, "llama.block_count", &v, &err), PITH_OK);
    assert_int_equal(v, N_LAYER);
    assert_int_equal(pi_gguf_str(&r.g, "general.architecture", &text, &err), PITH_OK);
    assert_int_equal(text.len, 5);
    close_result(&r);
}

/* Of 8 layers the mix gives more bits to the first and the last. It also gives more to layers 3 and
   6, the second after each multiple of three counted from the first. */
TEST(the_mix_gives_some_layers_more_bits)
{
    static const bool more[N_LAYER] = {true, false, false, true, false, false, true, true};
    struct result r;
    uint32_t v;
    char name[64];
    for (int tied = 0; tied <= 1; tied++) {
        write_input(tied);
        quantize("Q4_K_M", 0, &r);
        for (int i = 0; i < n_tensor; i++)
            check_weights(&r, i);
        for (int l = 0; l < N_LAYER; l++) {
            snprintf(name, sizeof(name), "blk.%d.attn_v.weight", l);
            assert_string_equal(type_of(&r, name), more[l] ? "Q6_K" : "Q4_K");
            snprintf(name, sizeof(name), "blk.%d.ffn_down.weight", l);
            assert_string_equal(type_of(&r, name), more[l] ? "Q6_K" : "Q4_K");
            snprintf(name, sizeof(name), "blk.%d.ffn_up.weight", l);
            assert_string_equal(type_of(&r, name), "Q4_K");
        }
        assert_string_equal(type_of(&r, "token_embd.weight"), tied ? "Q6_K" : "Q4_K");
        if (!tied)
            assert_string_equal(type_of(&r, "output.weight"), "Q6_K");
        assert_string_equal(type_of(&r, "blk.0.narrow.weight"), "Q5_0");
        assert_int_equal(pi_gguf_u32(&r.g, "general.file_type", &v, &err), PITH_OK);
        assert_int_equal(v, 15);
        close_result(&r);
    }
}

TEST(threads_make_no_difference)
{
    struct result a, b;
    write_input(false);
    quantize("Q4_K_M", 1, &a); /* stays mapped when the next run replaces the name */
    for (int32_t n_thread = 2; n_thread <= 5; n_thread += 3) {
        quantize("Q4_K_M", n_thread, &b);
        assert_int_equal(a.file.size, b.file.size);
        assert_memory_equal(a.file.data, b.file.data, a.file.size);
        close_result(&b);
    }
    close_result(&a);
}

/* ---- what may go wrong ---- */

static pith_progress_fn count_progress, stop_at_half;

static bool count_progress(void *user, double fraction)
{
    double *last = user;
    assert_true(fraction >= *last && fraction <= 1);
    *last = fraction;
    return true;
}

static bool stop_at_half(void *user, double fraction)
{
    *(int *)user += 1;
    return fraction < 0.5;
}

TEST(tells_progress_and_may_be_cancelled)
{
    double last = 0;
    int n_call = 0;
    err = (pith_error){0};
    write_input(false);
    assert_int_equal(pith_quantize(in_path, out_path, "Q8_0", 2, count_progress, &last, &err),
                     PITH_OK);
    assert_true(last == 1);
    unlink(out_path);
    assert_int_equal(pith_quantize(in_path, out_path, "Q8_0", 2, stop_at_half, &n_call, &err),
                     PITH_CANCELLED);
    assert_true(n_call > 1);
    assert_string_equal(err.message, "quantizing was cancelled");
    assert_int_equal(count_files(), 1);
}

static int64_t memory_used(void)
{
    int64_t sum = 0;
    for (int tag = 0; tag < PI_MEM_N_TAG; tag++)
        sum += pi_mem_used((enum pi_mem_tag)tag);
    return sum;
}

TEST(each_allocation_may_fail)
{
    const int64_t used = memory_used();
    pith_status status = PITH_NOMEM;
    int64_t n = 1;
    write_input(false);
    unlink(out_path);
    for (; status == PITH_NOMEM; n++) {
        err = (pith_error){0};
        pi_mem_fail_at(n, n % 2 == 0);
        status = pith_quantize(in_path, out_path, "Q4_K_M", 2, NULL, NULL, &err);
        pi_mem_fail_at(0, false);
        assert_int_equal(memory_used(), used);
        assert_int_equal(count_files(), status == PITH_OK ? 2 : 1);
        if (status == PITH_NOMEM)
            assert_non_null(strstr(err.message, "no memory for "));
    }
    assert_int_equal(status, PITH_OK);
    assert_true(n > 10);
}

/* The limit on the size of files stands in for a full disk: writes fail in the same way. */
TEST(a_full_disk_leaves_the_old_file)
{
    struct rlimit old, low;
    struct stat st;
    err = (pith_error){0};
    write_input(false);
    unlink(out_path);
    assert_int_equal(pith_quantize(in_path, out_path, "Q4_0", 2, NULL, NULL, &err), PITH_OK);
    assert_int_equal(stat(out_path, &st), 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    const rlim_t limits[] = {0, 100, (rlim_t)st.st_size / 2, (rlim_t)st.st_size - 1};
    for (int keep = 0; keep <= 1; keep++) { /* with and without an older file of that name */
        for (size_t i = 0; i < PI_LEN(limits); i++) {
            if (!keep)
                unlink(out_path);
            low = (struct rlimit){limits[i], old.rlim_max};
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
            pith_status status = pith_quantize(in_path, out_path, "Q4_0", 2, NULL, NULL, &err);
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
            assert_int_equal(status, PITH_IO);
            assert_non_null(strstr(err.message, "cannot write"));
            assert_int_equal(count_files(), keep ? 2 : 1);
        }
        assert_int_equal(pith_quantize(in_path, out_path, "Q4_0", 2, NULL, NULL, &err), PITH_OK);
    }
    signal(SIGXFSZ, SIG_DFL);
}

static void refuse(const char *in, const char *out, const char *type, int32_t n_thread,
                   pith_status status, const char *sentence)
{
    err = (pith_error){0};
    const int n_file = count_files();
    assert_int_equal(pith_quantize(in, out, type, n_thread, NULL, NULL, &err), status);
    if (strstr(err.message, sentence) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.message, sentence);
    assert_int_equal(count_files(), n_file);
}

TEST(refuses_bad_paths)
{
    char link_path[256], missing[256];
    write_input(false);
    snprintf(link_path, sizeof(link_path), "%s/link", dir);
    snprintf(missing, sizeof(missing), "%s/missing/out.gguf", dir);
    refuse(NULL, out_path, "Q8_0", 1, PITH_INVALID, "must be given");
    refuse(in_path, NULL, "Q8_0", 1, PITH_INVALID, "must be given");
    refuse(in_path, out_path, NULL, 1, PITH_INVALID, "must be given");
    refuse(in_path, out_path, "Q9_0", 1, PITH_INVALID, "type: \"Q9_0\" is unknown (F32, ");
    refuse(in_path, out_path, "Q8_0", -1, PITH_INVALID, "n_thread: -1 is not in 0..1024");
    refuse(missing, out_path, "Q8_0", 1, PITH_IO, "cannot open");
    refuse(in_path, missing, "Q8_0", 1, PITH_IO, "cannot create");
    refuse(in_path, "/dev/full", "Q8_0", 1, PITH_IO, "/dev/full: cannot write");
    refuse(in_path, dir, "Q8_0", 1, PITH_IO, "Is a directory");
    refuse(in_path, in_path, "Q8_0", 1, PITH_INVALID, "the output is the input");
    assert_int_equal(symlink(in_path, link_path), 0);
    refuse(in_path, link_path, "Q8_0", 1, PITH_INVALID, "the output is the input");
    unlink(link_path);
    refuse(PITH_SOURCE_DIR "/LICENSE", out_path, "Q8_0", 1, PITH_FORMAT, "not a GGUF file");
}

/* A weight type that cannot be read cannot be converted, nor copied: its size is not known. */
TEST(refuses_unknown_types)
{
    struct pi_gguf_writer w = {0};
    struct pi_new_file file;
    const int64_t ne[] = {32, 2};
    uint8_t zeros[64] = {0};
    assert_int_equal(pi_gguf_add_tensor(&w, (struct pi_str){"new.weight", 10}, 2, ne, 21, 64),
                     PITH_OK);
    assert_int_equal(pi_new_file_open(in_path, &file, &err), PITH_OK);
    assert_int_equal(pi_gguf_write_head(&w, &file, &err), PITH_OK);
    assert_int_equal(pi_gguf_write_tensor(&w, &file, zeros, sizeof(zeros), &err), PITH_OK);
    assert_int_equal(pi_new_file_commit(&file, &err), PITH_OK);
    pi_gguf_writer_free(&w);
    refuse(in_path, out_path, "Q8_0", 1, PITH_UNSUPPORTED,
           "tensor \"new.weight\": weight type 21 is not supported");
}

static void set_up(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(dir, sizeof(dir), "%s/pith-test-quantize-XXXXXX", base != NULL ? base : "/tmp");
    assert_non_null(mkdtemp(dir));
    snprintf(in_path, sizeof(in_path), "%s/in.gguf", dir);
    snprintf(out_path, sizeof(out_path), "%s/out.gguf", dir);
}

static void tear_down(void)
{
    unlink(in_path);
    unlink(out_path);
    assert_int_equal(rmdir(dir), 0);
}

TEST_GROUP(set_up, tear_down);
