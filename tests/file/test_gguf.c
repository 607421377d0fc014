/*
 * test_gguf.c - correct GGUF files: versions 2 and 3, every value type, look-up and typed reads,
 * the writer's round trip. Also 2,000 damaged copies, which must load or be refused with a
 * sentence, but never crash. Files with one known mistake are in test_gguf_bad.c.
 */
#include <math.h>

#include "base/mem.h"
#include "file/gguf.h"
#include "gguf_bytes.h"

#define N_MUTATION 2000

static void parse_whole(struct pi_gguf *g, const struct bytes *b)
{
    err = (pith_error){0};
    if (pi_gguf_parse(g, b->data, b->len, "test.gguf", &err) != PITH_OK)
        fail_msg("%s", err.message);
}

/* ---- a file with everything ---- */

#define N_KEY 19
#define N_TENSOR 4

static void put_scalars(struct bytes *b)
{
    put_key(b, "i.u8", PI_GGUF_U8);
    put_int(b, 200, 1);
    put_key(b, "i.i8", PI_GGUF_I8);
    put_int(b, 0x80, 1);
    put_key(b, "i.u16", PI_GGUF_U16);
    put_int(b, 65535, 2);
    put_key(b, "i.i16", PI_GGUF_I16);
    put_int(b, 0x8000, 2);
    put_key(b, "i.u32", PI_GGUF_U32);
    put_u32(b, 4000000000u);
    put_key(b, "i.i32", PI_GGUF_I32);
    put_u32(b, (uint32_t)-5);
    put_key(b, "i.u64", PI_GGUF_U64);
    put_u64(b, UINT64_MAX);
    put_key(b, "i.i64", PI_GGUF_I64);
    put_u64(b, 77);
    put_key(b, "i.large", PI_GGUF_I64);
    put_u64(b, 1ull << 32);
    put_key(b, "f.f32", PI_GGUF_F32);
    put_u32(b, 0x3fc00000); /* 1.5 */
    put_key(b, "f.f64", PI_GGUF_F64);
    put_u64(b, 0xc004000000000000); /* -2.5 */
    put_key(b, "f.nan", PI_GGUF_F32);
    put_u32(b, 0x7fc00000);
    put_key(b, "b.true", PI_GGUF_BOOL);
    put_int(b, 1, 1);
    put_key(b, "s.text", PI_GGUF_STRING);
    put_text(b, "gr\xc3\xbc\xc3\x9f");
    put_key(b, "s.empty", PI_GGUF_STRING);
    put_text(b, "");
}

static void put_arrays(struct bytes *b)
{
    static const char *const words[] = {"one", "", "three"};
    put_key(b, "a.words", PI_GGUF_ARRAY);
    put_u32(b, PI_GGUF_STRING);
    put_u64(b, PI_LEN(words));
    for (size_t i = 0; i < PI_LEN(words); i++)
        put_text(b, words[i]);
    put_key(b, "a.f32", PI_GGUF_ARRAY);
    put_u32(b, PI_GGUF_F32);
    put_u64(b, 2);
    put_u32(b, 0x3f800000);
    put_u32(b, 0xbf800000);
    put_key(b, "a.i16", PI_GGUF_ARRAY);
    put_u32(b, PI_GGUF_I16);
    put_u64(b, 2);
    put_int(b, 3, 2);
    put_int(b, 0xfffe, 2);
    put_key(b, "a.none", PI_GGUF_ARRAY);
    put_u32(b, PI_GGUF_STRING);
    put_u64(b, 0);
}

static void put_everything(struct bytes *b, uint32_t version)
{
    put_header(b, version, N_TENSOR, N_KEY);
    put_scalars(b);
    put_arrays(b);
    put_tensor(b, "matrix", 3, 2, 0, 96); /* not in the order of their places */
    put_tensor(b, "blocks", 32, 3, 8, 160);
    put_tensor(b, "vector", 8, 0, 0, 0);
    put_tensor(b, "unknown", 7, 0, 99, 32);
    put_padding(b, 32);
    for (int i = 0; i < 160 + 3 * 34; i++)
        put_int(b, (uint64_t)i & 0xff, 1);
}

/* ---- reading ---- */

TEST(reads_every_value)
{
    static struct bytes b;
    struct pi_gguf g;
    for (uint32_t version = 2; version <= 3; version++) {
        put_everything(&b, version);
        parse_whole(&g, &b);
        assert_int_equal(g.version, version);
        assert_int_equal(g.alignment, 32);
        assert_int_equal(g.n_kv, N_KEY);
        assert_int_equal(pi_gguf_item_int(pi_gguf_find(&g, "i.u8"), 0), 200);
        assert_int_equal(pi_gguf_item_int(pi_gguf_find(&g, "i.i8"), 0), -128);
        assert_int_equal(pi_gguf_item_int(pi_gguf_find(&g, "i.u16"), 0), 65535);
        assert_int_equal(pi_gguf_item_int(pi_gguf_find(&g, "i.i16"), 0), -32768);
        assert_int_equal(pi_gguf_item_int(pi_gguf_find(&g, "i.i32"), 0), -5);
        assert_int_equal(pi_gguf_item_int(pi_gguf_find(&g, "i.large"), 0), 1ll << 32);
        assert_int_equal(pi_gguf_item_int(pi_gguf_find(&g, "b.true"), 0), 1);
        assert_null(pi_gguf_find(&g, "i.u"));
        assert_null(pi_gguf_find(&g, "i.u88"));
        assert_null(pi_gguf_find(&g, ""));
        for (int64_t i = 0; i < g.n_kv; i++) { /* the order of the file is kept */
            char key[32];
            snprintf(key, sizeof(key), "%.*s", (int)g.kv[i].key.len, g.kv[i].key.data);
            assert_ptr_equal(pi_gguf_find(&g, key), &g.kv[i]);
        }
        pi_gguf_free(&g);
    }
}

TEST(reads_arrays)
{
    static struct bytes b;
    struct pi_gguf g;
    const struct pi_gguf_kv *kv;
    put_everything(&b, 3);
    parse_whole(&g, &b);
    assert_int_equal(pi_gguf_array(&g, "a.words", PI_GGUF_STRING, &kv, &err), PITH_OK);
    assert_int_equal(kv->n_item, 3);
    assert_int_equal(pi_gguf_item_str(kv, 0).len, 3);
    assert_int_equal(pi_gguf_item_str(kv, 1).len, 0);
    assert_memory_equal(pi_gguf_item_str(kv, 2).data, "three", 5);
    assert_int_equal(pi_gguf_array(&g, "a.f32", PI_GGUF_F32, &kv, &err), PITH_OK);
    assert_true(pi_gguf_item_f32(kv, 0) == 1.0f && pi_gguf_item_f32(kv, 1) == -1.0f);
    assert_int_equal(pi_gguf_array(&g, "a.i16", PI_GGUF_I16, &kv, &err), PITH_OK);
    assert_int_equal(pi_gguf_item_int(kv, 1), -2);
    assert_int_equal(pi_gguf_array(&g, "a.none", PI_GGUF_STRING, &kv, &err), PITH_OK);
    assert_int_equal(kv->n_item, 0);
    pi_gguf_free(&g);
}

TEST(reads_tensors)
{
    static struct bytes b;
    struct pi_gguf g;
    put_everything(&b, 3);
    parse_whole(&g, &b);
    assert_int_equal(g.n_tensor, N_TENSOR);
    assert_int_equal(g.data_offset % 32, 0);
    assert_int_equal(b.len - g.data_offset, 160 + 3 * 34);
    const struct pi_gguf_tensor *t = pi_gguf_find_tensor(&g, "matrix");
    assert_ptr_equal(t, &g.tensor[0]);
    assert_int_equal(t->n_dim, 2);
    assert_int_equal(t->ne[0], 3);
    assert_int_equal(t->ne[1], 2);
    assert_int_equal(t->ne[3], 1);
    assert_int_equal(t->size, 24);
    assert_ptr_equal(t->data, b.data + g.data_offset + 96);
    t = pi_gguf_find_tensor(&g, "blocks");
    assert_int_equal(t->size, 3 * 34);
    assert_int_equal(t->data[0], 160);
    t = pi_gguf_find_tensor(&g, "unknown");
    assert_int_equal(t->type, 99);
    assert_int_equal(t->size, 0);
    assert_null(t->data);
    assert_null(pi_gguf_find_tensor(&g, "matri"));
    pi_gguf_free(&g);
}

/* ---- typed reads ---- */

TEST(converts_integers)
{
    static struct bytes b;
    struct pi_gguf g;
    uint32_t v = 1;
    float f = 1;
    bool flag = false;
    struct pi_str text;
    put_everything(&b, 3);
    parse_whole(&g, &b);
    assert_int_equal(pi_gguf_u32(&g, "i.u8", &v, &err), PITH_OK);
    assert_int_equal(v, 200);
    assert_int_equal(pi_gguf_u32(&g, "i.u32", &v, &err), PITH_OK);
    assert_int_equal(v, 4000000000u);
    assert_int_equal(pi_gguf_u32(&g, "i.i64", &v, &err), PITH_OK);
    assert_int_equal(v, 77);
    assert_int_equal(pi_gguf_f32(&g, "f.f32", &f, &err), PITH_OK);
    assert_true(f == 1.5f);
    assert_int_equal(pi_gguf_f32(&g, "f.f64", &f, &err), PITH_OK);
    assert_true(f == -2.5f);
    assert_int_equal(pi_gguf_bool(&g, "b.true", &flag, &err), PITH_OK);
    assert_true(flag);
    assert_int_equal(pi_gguf_str(&g, "s.text", &text, &err), PITH_OK);
    assert_int_equal(text.len, 6);
    assert_int_equal(pi_gguf_str(&g, "s.empty", &text, &err), PITH_OK);
    assert_int_equal(text.len, 0);
    pi_gguf_free(&g);
}

/* One typed read that must fail: the value stays, the sentence names the key. */
static void refuse(pith_status status, pith_status expected, const pith_error *why,
                   const char *sentence)
{
    char whole[256];
    snprintf(whole, sizeof(whole), "test.gguf: key %s", sentence);
    assert_string_equal(why->message, whole);
    assert_int_equal(status, expected);
}

TEST(refuses_wrong_types)
{
    static struct bytes b;
    struct pi_gguf g;
    pith_error e;
    uint32_t v = 11;
    float f = 12;
    bool flag = true;
    struct pi_str text = {"13", 2};
    const struct pi_gguf_kv *kv = NULL;
    put_everything(&b, 3);
    parse_whole(&g, &b);
    refuse(pi_gguf_u32(&g, "absent", &v, &e), PITH_NOT_FOUND, &e, "\"absent\" is missing");
    refuse(pi_gguf_u32(&g, "i.i32", &v, &e), PITH_FORMAT, &e,
           "\"i.i32\": the value -5 is negative");
    refuse(pi_gguf_u32(&g, "i.large", &v, &e), PITH_FORMAT, &e,
           "\"i.large\": the value 4294967296 is too large");
    refuse(pi_gguf_u32(&g, "i.u64", &v, &e), PITH_FORMAT, &e,
           "\"i.u64\": the value 18446744073709551615 is too large");
    refuse(pi_gguf_u32(&g, "f.f32", &v, &e), PITH_FORMAT, &e,
           "\"f.f32\": the type is f32, not an integer");
    refuse(pi_gguf_u32(&g, "a.i16", &v, &e), PITH_FORMAT, &e,
           "\"a.i16\": the type is array of i16, not an integer");
    refuse(pi_gguf_f32(&g, "i.u32", &f, &e), PITH_FORMAT, &e,
           "\"i.u32\": the type is u32, not f32");
    refuse(pi_gguf_f32(&g, "f.nan", &f, &e), PITH_FORMAT, &e,
           "\"f.nan\": the value nan is not finite");
    refuse(pi_gguf_bool(&g, "i.u8", &flag, &e), PITH_FORMAT, &e,
           "\"i.u8\": the type is u8, not bool");
    refuse(pi_gguf_str(&g, "a.words", &text, &e), PITH_FORMAT, &e,
           "\"a.words\": the type is array of string, not string");
    refuse(pi_gguf_array(&g, "a.words", PI_GGUF_F32, &kv, &e), PITH_FORMAT, &e,
           "\"a.words\": the type is array of string, not array of f32");
    refuse(pi_gguf_array(&g, "s.text", PI_GGUF_STRING, &kv, &e), PITH_FORMAT, &e,
           "\"s.text\": the type is string, not array of string");
    assert_int_equal(v, 11);
    assert_true(f == 12 && flag && text.len == 2 && kv == NULL);
    pi_gguf_free(&g);
}

/* ---- writing ---- */

/* Writes g again through the writer, to path. */
static void write_copy(const struct pi_gguf *g, const char *path)
{
    struct pi_gguf_writer w = {0};
    struct pi_new_file file;
    for (int64_t i = 0; i < g->n_kv; i++)
        assert_int_equal(pi_gguf_add_kv(&w, &g->kv[i]), PITH_OK);
    for (int64_t i = 0; i < g->n_tensor; i++) {
        const struct pi_gguf_tensor *t = &g->tensor[i];
        assert_int_equal(pi_gguf_add_tensor(&w, t->name, t->n_dim, t->ne, t->type, t->size),
                         PITH_OK);
    }
    assert_int_equal(pi_new_file_open(path, &file, &err), PITH_OK);
    assert_int_equal(pi_gguf_write_head(&w, &file, &err), PITH_OK);
    for (int64_t i = 0; i < g->n_tensor; i++)
        assert_int_equal(
            pi_gguf_write_tensor(&w, &file, g->tensor[i].data, g->tensor[i].size, &err), PITH_OK);
    assert_int_equal(pi_new_file_commit(&file, &err), PITH_OK);
    pi_gguf_writer_free(&w);
}

static void temp_path(char *path, size_t cap, const char *name)
{
    const char *dir = getenv("TMPDIR");
    snprintf(path, cap, "%s/pith-test-gguf-%ld-%s", dir != NULL ? dir : "/tmp", (long)getpid(),
             name);
}

/* A file whose tensors lie in order and are padded comes back byte for byte, also with another
   alignment than the default. */
TEST(the_writer_writes_what_is_read)
{
    static struct bytes b;
    char path[256];
    struct pi_file file = {0};
    struct pi_gguf g;
    temp_path(path, sizeof(path), "round-trip");
    for (uint32_t alignment = 8; alignment <= 8192; alignment *= 4) {
        put_header(&b, 3, 2, N_KEY + 1);
        put_scalars(&b);
        put_key(&b, "general.alignment", PI_GGUF_U32);
        put_u32(&b, alignment);
        put_arrays(&b);
        put_tensor(&b, "odd", 5, 3, 0, 0);
        put_tensor(&b, "blocks", 32, 3, 8, pi_align(60, alignment));
        put_padding(&b, alignment);
        put_zeros(&b, 60);
        put_padding(&b, alignment);
        for (int i = 0; i < 102; i++)
            put_int(&b, (uint64_t)i, 1);
        put_padding(&b, alignment);
        parse_whole(&g, &b);
        write_copy(&g, path);
        pi_gguf_free(&g);
        assert_int_equal(pi_file_map(path, &file, &err), PITH_OK);
        assert_int_equal(file.size, b.len);
        assert_memory_equal(file.data, b.data, b.len);
        pi_file_unmap(&file);
    }
    unlink(path);
}

TEST(the_writer_makes_metadata)
{
    char path[256];
    struct pi_gguf_writer w = {0};
    struct pi_new_file out;
    struct pi_file file = {0};
    struct pi_gguf g;
    uint32_t v;
    float f;
    struct pi_str text;
    temp_path(path, sizeof(path), "metadata");
    assert_int_equal(pi_gguf_add_str(&w, "general.architecture", "llama"), PITH_OK);
    assert_int_equal(pi_gguf_add_u32(&w, "llama.block_count", 7), PITH_OK);
    assert_int_equal(pi_gguf_add_f32(&w, "llama.rope.freq_base", 5e5f), PITH_OK);
    assert_int_equal(pi_new_file_open(path, &out, &err), PITH_OK);
    assert_int_equal(pi_gguf_write_head(&w, &out, &err), PITH_OK);
    assert_int_equal(pi_new_file_commit(&out, &err), PITH_OK);
    pi_gguf_writer_free(&w);
    assert_int_equal(pi_file_map(path, &file, &err), PITH_OK);
    assert_int_equal(pi_gguf_parse(&g, file.data, file.size, path, &err), PITH_OK);
    assert_int_equal(pi_gguf_str(&g, "general.architecture", &text, &err), PITH_OK);
    assert_memory_equal(text.data, "llama", text.len);
    assert_int_equal(pi_gguf_u32(&g, "llama.block_count", &v, &err), PITH_OK);
    assert_int_equal(v, 7);
    assert_int_equal(pi_gguf_f32(&g, "llama.rope.freq_base", &f, &err), PITH_OK);
    assert_true(f == 5e5f);
    pi_gguf_free(&g);
    pi_file_unmap(&file);
    unlink(path);
}

TEST(the_writer_refuses_bad_names_and_shapes)
{
    struct pi_gguf_writer w = {0};
    const int64_t ne[] = {8, 0, 1, 1, 1};
    const struct pi_str name = {"name", 4};
    char long_name[PI_GGUF_MAX_TENSOR_NAME + 1] = {'n'};
    assert_int_equal(pi_gguf_add_u32(&w, "", 1), PITH_INVALID);
    assert_int_equal(pi_gguf_add_str(&w, "", "text"), PITH_INVALID);
    assert_int_equal(pi_gguf_add_u32(&w, "general.alignment", 24), PITH_INVALID);
    assert_int_equal(pi_gguf_add_u32(&w, "general.alignment", 4), PITH_INVALID);
    assert_int_equal(pi_gguf_add_f32(&w, "general.alignment", 32), PITH_INVALID);
    assert_int_equal(pi_gguf_add_str(&w, "general.alignment", "32"), PITH_INVALID);
    assert_int_equal(pi_gguf_add_tensor(&w, (struct pi_str){"", 0}, 1, ne, 0, 32), PITH_INVALID);
    assert_int_equal(
        pi_gguf_add_tensor(&w, (struct pi_str){long_name, sizeof(long_name)}, 1, ne, 0, 32),
        PITH_INVALID);
    assert_int_equal(pi_gguf_add_tensor(&w, name, 0, ne, 0, 32), PITH_INVALID);
    assert_int_equal(pi_gguf_add_tensor(&w, name, 5, ne, 0, 32), PITH_INVALID);
    assert_int_equal(pi_gguf_add_tensor(&w, name, 2, ne, 0, 32), PITH_INVALID);
    assert_int_equal(pi_gguf_add_tensor(&w, name, 1, ne, 0, SIZE_MAX), PITH_INVALID);
    assert_int_equal(w.n_kv + w.n_tensor + (int64_t)w.data_len, 0);
    assert_int_equal(pi_gguf_add_tensor(&w, name, 1, ne, 0, INT64_MAX / 2), PITH_OK);
    assert_int_equal(pi_gguf_add_tensor(&w, name, 1, ne, 0, INT64_MAX / 2), PITH_INVALID);
    assert_int_equal(pi_gguf_add_u32(&w, "general.alignment", 64), PITH_INVALID);
    pi_gguf_writer_free(&w);
}

/* ---- memory ---- */

TEST(each_allocation_may_fail)
{
    static struct bytes b;
    const int64_t used = pi_mem_used(PI_MEM_MODEL);
    pith_status status = PITH_NOMEM;
    int64_t n = 1;
    put_everything(&b, 3);
    for (; status == PITH_NOMEM; n++) {
        struct pi_gguf g;
        err = (pith_error){0};
        pi_mem_fail_at(n, false);
        status = pi_gguf_parse(&g, b.data, b.len, "test.gguf", &err);
        pi_mem_fail_at(0, false);
        if (status == PITH_NOMEM)
            assert_non_null(strstr(err.message, "test.gguf: no memory for "));
        pi_gguf_free(&g);
        assert_int_equal(pi_mem_used(PI_MEM_MODEL), used);
    }
    assert_int_equal(status, PITH_OK);
    assert_true(n > 6);
}

/* ---- damaged files ---- */

/* Reads everything that a caller could, so that a sanitizer sees reads outside the bytes. */
static uint64_t touch_everything(const struct pi_gguf *g)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < g->n_kv; i++) {
        const struct pi_gguf_kv *kv = &g->kv[i];
        for (uint64_t k = 0; k < kv->n_item; k++) {
            if (kv->item_type == PI_GGUF_STRING) {
                struct pi_str s = pi_gguf_item_str(kv, k);
                for (size_t c = 0; c < s.len; c++)
                    sum += (uint8_t)s.data[c];
            } else if (kv->item_type == PI_GGUF_F32 || kv->item_type == PI_GGUF_F64) {
                sum += isfinite(pi_gguf_item_f32(kv, k));
            } else {
                sum += (uint64_t)pi_gguf_item_int(kv, k);
            }
        }
    }
    for (int64_t i = 0; i < g->n_tensor; i++)
        for (size_t c = 0; c < g->tensor[i].size; c++)
            sum += g->tensor[i].data[c];
    return sum;
}

/* Does one to four acts of damage: flips, integers at extremes, a cut, a piece from elsewhere. */
static void damage(struct bytes *b, uint64_t *rng)
{
    static const uint64_t extremes[] = {0, 1, 0xff, 0x7fffffff, 0xffffffff, 1ull << 62, UINT64_MAX};
    for (uint64_t n = 1 + rng_below(rng, 4); n > 0 && b->len > 0; n--) {
        const size_t at = (size_t)rng_below(rng, b->len), left = b->len - at;
        const size_t size = (size_t)rng_below(rng, left < 64 ? left : 64) + 1;
        const uint64_t extreme = extremes[rng_below(rng, PI_LEN(extremes))];
        switch (rng_below(rng, 5)) {
        case 0:
            b->data[at] ^= (uint8_t)(1u << rng_below(rng, 8));
            break;
        case 1:
            b->data[at] = (uint8_t)rng_next(rng);
            break;
        case 2:
            for (size_t i = 0; i < 8 && i < left; i++)
                b->data[at + i] = (uint8_t)(extreme >> (8 * i));
            break;
        case 3:
            b->len = rng_below(rng, 4) == 0 ? at : b->len;
            break;
        default:
            memmove(b->data + rng_below(rng, b->len - size + 1), b->data + at, size);
        }
    }
}

TEST(damaged_files_are_safe)
{
    static struct bytes whole, b;
    uint64_t rng = 20;
    int n_refused = 0;
    const int64_t used = pi_mem_used(PI_MEM_MODEL);
    put_everything(&whole, 3);
    for (int i = 0; i < N_MUTATION; i++) {
        struct pi_gguf g;
        err = (pith_error){0};
        b = whole;
        damage(&b, &rng);
        uint8_t *copy = malloc(b.len > 0 ? b.len : 1);
        assert_non_null(copy);
        memcpy(copy, b.data, b.len);
        pith_status status = pi_gguf_parse(&g, copy, b.len, "test.gguf", &err);
        if (status == PITH_OK)
            touch_everything(&g);
        else
            assert_true(strlen(err.message) > strlen("test.gguf: "));
        n_refused += status != PITH_OK;
        pi_gguf_free(&g);
        free(copy);
        assert_int_equal(pi_mem_used(PI_MEM_MODEL), used);
    }
    assert_in_range(n_refused, N_MUTATION / 10, N_MUTATION - N_MUTATION / 10);
}
