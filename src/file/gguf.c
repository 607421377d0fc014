/*
 * gguf.c - reads GGUF files, versions 2 and 3 (https://github.com/ggml-org/ggml/blob/master/docs/
 * gguf.md): a pure function of (bytes, length). It knows the sizes of weight types from their table
 * and nothing of models or tokenizers. Invariants: no byte is read before its place was checked
 * against the length. No count sizes an allocation before the bytes left could hold that many. Each
 * refusal is one sentence that names the field and its value.
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "file/gguf.h"
#include "tensor/dtype.h"

#define DEFAULT_ALIGNMENT 32
#define MIN_ALIGNMENT 8 /* the format asks for a multiple of 8; F32 rows rely on it */
#define MAX_KEY_LEN 65535
#define MAX_DIM 4
/* The least a key takes: length, one byte, type, value; a tensor: length, one byte, number of
   dimensions, one dimension, type, offset. */
#define MIN_KEY_BYTES (8 + 1 + 4 + 1)
#define MIN_TENSOR_BYTES (8 + 1 + 4 + 8 + 4 + 8)

static const struct {
    const char *name;
    uint8_t size; /* bytes of a value; 0 where it varies */
} value_types[PI_GGUF_N_TYPE] = {
    [PI_GGUF_U8] = {"u8", 1},       [PI_GGUF_I8] = {"i8", 1},     [PI_GGUF_U16] = {"u16", 2},
    [PI_GGUF_I16] = {"i16", 2},     [PI_GGUF_U32] = {"u32", 4},   [PI_GGUF_I32] = {"i32", 4},
    [PI_GGUF_F32] = {"f32", 4},     [PI_GGUF_BOOL] = {"bool", 1}, [PI_GGUF_STRING] = {"string", 0},
    [PI_GGUF_ARRAY] = {"array", 0}, [PI_GGUF_U64] = {"u64", 8},   [PI_GGUF_I64] = {"i64", 8},
    [PI_GGUF_F64] = {"f64", 8},
};

/* The place in the bytes, and whose bytes they are for messages. */
struct reader {
    const uint8_t *data; /* [size] */
    size_t size;
    size_t pos;
    const char *source;
    const char *noun;   /* "key", "tensor"; NULL in the header */
    int64_t i;          /* which key or tensor */
    struct pi_str name; /* its name; empty until it is read */
    pith_error *err;
};

/* ---- messages ---- */

/* Writes a name for a message: printable ASCII, abridged. */
static void print_name(struct pi_str name, char *out, size_t cap)
{
    size_t n = name.len < cap - 4 ? name.len : cap - 4;
    for (size_t i = 0; i < n; i++)
        out[i] = name.data[i] >= 0x20 && name.data[i] < 0x7f ? name.data[i] : '?';
    memcpy(out + n, n < name.len ? "..." : "", n < name.len ? 4 : 1);
}

/* The end of a path, so that a long one leaves room for the sentence; cut between characters. */
static const char *short_source(const char *source)
{
    const size_t most = 80;
    size_t len = strlen(source);
    if (len > most)
        source += len - most;
    while (((uint8_t)*source & 0xc0) == 0x80)
        source++;
    return source;
}

/* "SOURCE: key "NAME": SENTENCE", with the number instead of a name that is not known yet. */
static pith_status bad(const struct reader *r, const char *fmt, ...) PI_PRINTF(2, 3);
static pith_status bad(const struct reader *r, const char *fmt, ...)
{
    char text[200];
    char name[52];
    const char *source = short_source(r->source);
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (r->noun == NULL)
        return pi_fail(r->err, PITH_FORMAT, "%s: %s", source, text);
    if (r->name.len == 0)
        return pi_fail(r->err, PITH_FORMAT, "%s: %s %" PRId64 ": %s", source, r->noun, r->i, text);
    print_name(r->name, name, sizeof(name));
    return pi_fail(r->err, PITH_FORMAT, "%s: %s \"%s\": %s", source, r->noun, name, text);
}

static pith_status no_memory(const struct reader *r, const char *what)
{
    return pi_fail(r->err, PITH_NOMEM, "%s: no memory for %s", short_source(r->source), what);
}

/* ---- bytes ---- */

static uint64_t load_le(const uint8_t *p, size_t size)
{
    uint64_t v = 0;
    for (size_t i = 0; i < size; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static size_t left(const struct reader *r)
{
    return r->size - r->pos;
}

static pith_status read_int(struct reader *r, const char *what, size_t size, uint64_t *out)
{
    *out = 0;
    if (left(r) < size)
        return bad(r, "the file ends at byte %zu, inside %s", r->size, what);
    *out = load_le(r->data + r->pos, size);
    r->pos += size;
    return PITH_OK;
}

static pith_status read_str(struct reader *r, const char *what, struct pi_str *out)
{
    uint64_t len;
    PI_TRY(read_int(r, what, 8, &len));
    if (len > left(r))
        return bad(r, "%s of %" PRIu64 " bytes is longer than the %zu bytes left in the file", what,
                   len, left(r));
    out->data = (const char *)r->data + r->pos;
    out->len = (size_t)len;
    r->pos += (size_t)len;
    return PITH_OK;
}

/* A key or a tensor's name, which from then on stands in the messages. */
static pith_status read_name(struct reader *r, size_t max_len, struct pi_str *out)
{
    struct pi_str name;
    PI_TRY(read_str(r, "the name", &name));
    if (name.len == 0)
        return bad(r, "the name is empty");
    if (name.len > max_len)
        return bad(r, "the name has %zu bytes, more than the %zu allowed", name.len, max_len);
    if (memchr(name.data, 0, name.len) != NULL)
        return bad(r, "the name holds a zero byte");
    r->name = name;
    *out = name;
    return PITH_OK;
}

/* ---- names ---- */

static int compare_str(struct pi_str a, struct pi_str b)
{
    int order = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);
    return order != 0 ? order : (a.len > b.len) - (a.len < b.len);
}

static int compare_names(const void *a, const void *b)
{
    return compare_str(((const struct pi_gguf_name *)a)->name,
                       ((const struct pi_gguf_name *)b)->name);
}

/* Sorts the index and refuses a name that stands in it twice. */
static pith_status sort_names(struct reader *r, struct pi_gguf_name *names, int64_t n)
{
    qsort(names, (size_t)n, sizeof(names[0]), compare_names);
    for (int64_t i = 1; i < n; i++)
        if (compare_str(names[i - 1].name, names[i].name) == 0) {
            r->name = names[i].name;
            return bad(r, "the name stands twice in the file");
        }
    return PITH_OK;
}

/* The place of name in the file's order, -1 when absent. */
static int64_t find_name(const struct pi_gguf_name *names, int64_t n, const char *name)
{
    struct pi_gguf_name key = {.name = {name, strlen(name)}};
    const struct pi_gguf_name *found =
        n > 0 ? bsearch(&key, names, (size_t)n, sizeof(names[0]), compare_names) : NULL;
    return found != NULL ? found->i : -1;
}

/* ---- keys and values ---- */

static pith_status check_bools(const struct reader *r, const struct pi_gguf_kv *kv)
{
    for (size_t i = 0; i < kv->size; i++)
        if (kv->data[i] > 1)
            return bad(r, "a bool has the value %u, not 0 or 1", (unsigned)kv->data[i]);
    return PITH_OK;
}

static pith_status read_strings(struct reader *r, struct pi_gguf_kv *kv)
{
    struct pi_str item;
    if (kv->n_item > left(r) / 8)
        return bad(r, "an array of %" PRIu64 " strings does not fit into the %zu bytes left",
                   kv->n_item, left(r));
    uint64_t *offset = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)kv->n_item, sizeof(uint64_t));
    if (offset == NULL)
        return no_memory(r, "the offsets of an array of strings");
    kv->item_offset = offset;
    for (uint64_t i = 0; i < kv->n_item; i++) {
        offset[i] = (uint64_t)(r->data + r->pos - kv->data);
        PI_TRY(read_str(r, "a string of the array", &item));
    }
    return PITH_OK;
}

static pith_status read_array_head(struct reader *r, struct pi_gguf_kv *kv)
{
    uint64_t type;
    PI_TRY(read_int(r, "the array's item type", 4, &type));
    if (type == PI_GGUF_ARRAY)
        return bad(r, "an array of arrays is not supported");
    if (type >= PI_GGUF_N_TYPE)
        return bad(r, "the array's item type %" PRIu64 " is unknown", type);
    kv->item_type = (enum pi_gguf_type)type;
    return read_int(r, "the array's length", 8, &kv->n_item);
}

static pith_status read_value(struct reader *r, struct pi_gguf_kv *kv)
{
    uint64_t type;
    struct pi_str text;
    PI_TRY(read_int(r, "the value's type", 4, &type));
    if (type >= PI_GGUF_N_TYPE)
        return bad(r, "the value's type %" PRIu64 " is unknown", type);
    kv->type = (enum pi_gguf_type)type;
    kv->item_type = kv->type;
    kv->n_item = 1;
    if (kv->type == PI_GGUF_ARRAY)
        PI_TRY(read_array_head(r, kv));

    const uint8_t item_size = value_types[kv->item_type].size;
    kv->data = r->data + r->pos;
    if (kv->type == PI_GGUF_STRING) {
        PI_TRY(read_str(r, "the string", &text));
    } else if (kv->item_type == PI_GGUF_STRING) {
        PI_TRY(read_strings(r, kv));
    } else {
        if (kv->n_item > left(r) / item_size)
            return bad(r, "%" PRIu64 " x %s does not fit into the %zu bytes left", kv->n_item,
                       value_types[kv->item_type].name, left(r));
        r->pos += (size_t)kv->n_item * item_size;
    }
    kv->size = (size_t)(r->data + r->pos - kv->data);
    return kv->item_type == PI_GGUF_BOOL ? check_bools(r, kv) : PITH_OK;
}

static pith_status read_keys(struct reader *r, struct pi_gguf *g)
{
    for (r->i = 0; r->i < g->n_kv; r->i++) {
        struct pi_gguf_kv *kv = &g->kv[r->i];
        r->name = (struct pi_str){0};
        PI_TRY(read_name(r, MAX_KEY_LEN, &kv->key));
        PI_TRY(read_value(r, kv));
        g->kv_name[r->i] = (struct pi_gguf_name){kv->key, r->i};
    }
    return sort_names(r, g->kv_name, g->n_kv);
}

static pith_status read_alignment(struct reader *r, struct pi_gguf *g)
{
    const struct pi_gguf_kv *kv = pi_gguf_find(g, "general.alignment");
    g->alignment = DEFAULT_ALIGNMENT;
    if (kv == NULL)
        return PITH_OK;
    r->name = kv->key;
    if (kv->type != PI_GGUF_U32)
        return bad(r, "the type is %s, not u32", pi_gguf_type_name(kv->type));
    g->alignment = (uint32_t)load_le(kv->data, 4);
    if (g->alignment < MIN_ALIGNMENT || (g->alignment & (g->alignment - 1)) != 0)
        return bad(r, "the alignment %" PRIu32 " is not a power of two of at least %d",
                   g->alignment, MIN_ALIGNMENT);
    return PITH_OK;
}

/* ---- tensors ---- */

static pith_status read_shape(struct reader *r, struct pi_gguf_tensor *t)
{
    uint64_t n_dim, ne;
    int64_t n_weight = 1;
    PI_TRY(read_int(r, "the number of dimensions", 4, &n_dim));
    if (n_dim < 1 || n_dim > MAX_DIM)
        return bad(r, "the number of dimensions %" PRIu64 " is not 1 to %d", n_dim, MAX_DIM);
    t->n_dim = (int32_t)n_dim;
    for (int d = 0; d < MAX_DIM; d++) {
        t->ne[d] = 1;
        if (d >= t->n_dim)
            continue;
        PI_TRY(read_int(r, "a dimension", 8, &ne));
        if (ne == 0)
            return bad(r, "dimension %d is 0", d);
        if (ne > (uint64_t)(INT64_MAX / n_weight))
            return bad(r, "dimension %d is %" PRIu64 ": the number of weights overflows", d, ne);
        t->ne[d] = (int64_t)ne;
        n_weight *= t->ne[d];
    }
    return PITH_OK;
}

/* The tensor's size, where the type is known. */
static pith_status size_tensor(const struct reader *r, struct pi_gguf_tensor *t)
{
    const struct pi_dtype_traits *traits = pi_dtype_find(t->type);
    size_t row_bytes;
    if (traits == NULL)
        return PITH_OK;
    if (t->ne[0] % traits->block_len != 0)
        return bad(r, "a row of %" PRId64 " weights is not a multiple of the %d of a %s block",
                   t->ne[0], (int)traits->block_len, traits->name);
    int64_t n_row = t->ne[1] * t->ne[2] * t->ne[3];
    if (!pi_mul_size((size_t)(t->ne[0] / traits->block_len), (size_t)traits->block_bytes,
                     &row_bytes) ||
        !pi_mul_size(row_bytes, (size_t)n_row, &t->size))
        return bad(r, "%" PRId64 " rows of %" PRId64 " weights overflow the size", n_row, t->ne[0]);
    return PITH_OK;
}

static pith_status read_tensors(struct reader *r, struct pi_gguf *g)
{
    uint64_t type;
    for (r->i = 0; r->i < g->n_tensor; r->i++) {
        struct pi_gguf_tensor *t = &g->tensor[r->i];
        r->name = (struct pi_str){0};
        PI_TRY(read_name(r, PI_GGUF_MAX_TENSOR_NAME, &t->name));
        PI_TRY(read_shape(r, t));
        PI_TRY(read_int(r, "the weight type", 4, &type));
        t->type = (uint32_t)type;
        PI_TRY(size_tensor(r, t));
        PI_TRY(read_int(r, "the offset", 8, &t->offset));
        if (t->offset % g->alignment != 0)
            return bad(r, "offset %" PRIu64 " is not a multiple of the alignment %" PRIu32,
                       t->offset, g->alignment);
        g->tensor_name[r->i] = (struct pi_gguf_name){t->name, r->i};
    }
    return sort_names(r, g->tensor_name, g->n_tensor);
}

/* Points each tensor at its bytes. */
static pith_status place_tensors(struct reader *r, struct pi_gguf *g)
{
    const size_t data_size = r->size - g->data_offset;
    for (int64_t i = 0; i < g->n_tensor; i++) {
        struct pi_gguf_tensor *t = &g->tensor[i];
        r->name = t->name;
        if (t->offset > data_size)
            return bad(r,
                       "offset %" PRIu64 " lies beyond the end of the file (size %zu, data from "
                       "byte %zu)",
                       t->offset, r->size, g->data_offset);
        if (t->size > data_size - t->offset)
            return bad(r,
                       "%zu bytes at offset %" PRIu64 " reach beyond the end of the file (size "
                       "%zu, data from byte %zu)",
                       t->size, t->offset, r->size, g->data_offset);
        if (t->size > 0)
            t->data = r->data + g->data_offset + t->offset;
    }
    return PITH_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct pi_gguf_tensor *x = *(const struct pi_gguf_tensor *const *)a;
    const struct pi_gguf_tensor *y = *(const struct pi_gguf_tensor *const *)b;
    return x->offset != y->offset ? (x->offset > y->offset) - (x->offset < y->offset)
                                  : (x->size > y->size) - (x->size < y->size);
}

/* Refuses tensors that share bytes. Reading them would be harmless, but no writer makes such a
   file, and a damaged offset would otherwise pass for a model. */
static pith_status check_overlap(struct reader *r, const struct pi_gguf *g)
{
    pith_status status = PITH_OK;
    char name[36];
    const struct pi_gguf_tensor **sorted =
        pi_mem_alloc_n(PI_MEM_MODEL, (size_t)g->n_tensor, sizeof(sorted[0]));
    if (sorted == NULL)
        return no_memory(r, "the order of the tensors");
    for (int64_t i = 0; i < g->n_tensor; i++)
        sorted[i] = &g->tensor[i];
    qsort(sorted, (size_t)g->n_tensor, sizeof(sorted[0]), compare_offsets);
    for (int64_t i = 1; i < g->n_tensor && status == PITH_OK; i++) {
        const struct pi_gguf_tensor *before = sorted[i - 1];
        if (before->offset + before->size <= sorted[i]->offset)
            continue;
        print_name(before->name, name, sizeof(name));
        r->name = sorted[i]->name;
        status =
            bad(r, "offset %" PRIu64 " lies inside tensor \"%s\" (offset %" PRIu64 ", %zu bytes)",
                sorted[i]->offset, name, before->offset, before->size);
    }
    pi_mem_free(sorted);
    return status;
}

static pith_status read_tensor_section(struct reader *r, struct pi_gguf *g)
{
    PI_TRY(read_tensors(r, g));
    uint64_t begin = ((uint64_t)r->pos + g->alignment - 1) / g->alignment * g->alignment;
    if (g->n_tensor == 0) { /* nothing to place: the file may end without padding */
        g->data_offset = begin < r->size ? (size_t)begin : r->size;
        return PITH_OK;
    }
    if (begin > r->size) {
        r->noun = NULL;
        return bad(
            r, "the data section starts at byte %" PRIu64 ", beyond the end of the file (size %zu)",
            begin, r->size);
    }
    g->data_offset = (size_t)begin;
    PI_TRY(place_tensors(r, g));
    return check_overlap(r, g);
}

/* ---- the file ---- */

static pith_status read_version(struct reader *r, struct pi_gguf *g)
{
    uint64_t version;
    char magic[8];
    if (r->size < 4)
        return bad(r, "not a GGUF file: it has %zu bytes, less than the magic \"GGUF\"", r->size);
    if (memcmp(r->data, "GGUF", 4) != 0) {
        print_name((struct pi_str){(const char *)r->data, 4}, magic, sizeof(magic));
        return bad(r, "not a GGUF file: the magic is \"%s\", not \"GGUF\"", magic);
    }
    r->pos = 4;
    PI_TRY(read_int(r, "the version", 4, &version));
    if ((version & 0xffff) == 0 && version != 0)
        return bad(r, "the file is big-endian (version 0x%08" PRIx64 "), which is not supported",
                   version);
    if (version < 2 || version > 3)
        return bad(r, "GGUF version %" PRIu64 " is not supported (2 and 3 are)", version);
    g->version = (uint32_t)version;
    return PITH_OK;
}

static pith_status read_count(struct reader *r, const char *what, size_t min_bytes, int64_t *out)
{
    uint64_t n;
    PI_TRY(read_int(r, what, 8, &n));
    if (n > left(r) / min_bytes)
        return bad(r, "%s %" PRIu64 " is more than the %zu bytes left could hold", what, n,
                   left(r));
    *out = (int64_t)n;
    return PITH_OK;
}

static pith_status parse(struct reader *r, struct pi_gguf *g)
{
    PI_TRY(read_version(r, g));
    PI_TRY(read_count(r, "the number of tensors", MIN_TENSOR_BYTES, &g->n_tensor));
    PI_TRY(read_count(r, "the number of keys", MIN_KEY_BYTES, &g->n_kv));

    g->kv = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)g->n_kv, sizeof(g->kv[0]));
    g->kv_name = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)g->n_kv, sizeof(g->kv_name[0]));
    if (g->kv == NULL || g->kv_name == NULL)
        return no_memory(r, "the keys");
    r->noun = "key";
    PI_TRY(read_keys(r, g));
    PI_TRY(read_alignment(r, g));

    r->noun = NULL;
    if ((size_t)g->n_tensor > left(r) / MIN_TENSOR_BYTES)
        return bad(r, "%" PRId64 " tensors do not fit into the %zu bytes after the keys",
                   g->n_tensor, left(r));
    g->tensor = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)g->n_tensor, sizeof(g->tensor[0]));
    g->tensor_name = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)g->n_tensor, sizeof(g->tensor_name[0]));
    if (g->tensor == NULL || g->tensor_name == NULL)
        return no_memory(r, "the tensors");
    r->noun = "tensor";
    return read_tensor_section(r, g);
}

pith_status pi_gguf_parse(struct pi_gguf *g, const void *data, size_t size, const char *source,
                          pith_error *err)
{
    struct reader r = {.data = data, .size = size, .source = source, .err = err};
    *g = (struct pi_gguf){0};
    g->source = pi_mem_strndup(PI_MEM_MODEL, source, strlen(source));
    pith_status status = g->source != NULL ? parse(&r, g) : no_memory(&r, "the file's name");
    if (status != PITH_OK)
        pi_gguf_free(g);
    return status;
}

void pi_gguf_free(struct pi_gguf *g)
{
    for (int64_t i = 0; g->kv != NULL && i < g->n_kv; i++)
        pi_mem_free((void *)g->kv[i].item_offset);
    pi_mem_free(g->kv);
    pi_mem_free(g->kv_name);
    pi_mem_free(g->tensor);
    pi_mem_free(g->tensor_name);
    pi_mem_free(g->source);
    *g = (struct pi_gguf){0};
}

/* ---- look-up ---- */

const char *pi_gguf_type_name(enum pi_gguf_type type)
{
    return (uint32_t)type < PI_GGUF_N_TYPE ? value_types[type].name : "unknown";
}

const struct pi_gguf_kv *pi_gguf_find(const struct pi_gguf *g, const char *key)
{
    int64_t i = find_name(g->kv_name, g->n_kv, key);
    return i >= 0 ? &g->kv[i] : NULL;
}

const struct pi_gguf_tensor *pi_gguf_find_tensor(const struct pi_gguf *g, const char *name)
{
    int64_t i = find_name(g->tensor_name, g->n_tensor, name);
    return i >= 0 ? &g->tensor[i] : NULL;
}

int32_t pi_gguf_layer(struct pi_str name)
{
    int32_t layer = 0;
    size_t i = 4;
    if (name.len < 4 || memcmp(name.data, "blk.", 4) != 0)
        return -1;
    for (; i < name.len && name.data[i] >= '0' && name.data[i] <= '9' && layer < 1000000; i++)
        layer = 10 * layer + (name.data[i] - '0');
    return i > 4 && i < name.len && name.data[i] == '.' ? layer : -1;
}

struct pi_str pi_gguf_item_str(const struct pi_gguf_kv *kv, uint64_t i)
{
    const uint8_t *p = kv->data + (kv->item_offset != NULL ? kv->item_offset[i] : 0);
    return (struct pi_str){(const char *)p + 8, (size_t)load_le(p, 8)};
}

float pi_gguf_item_f32(const struct pi_gguf_kv *kv, uint64_t i)
{
    const uint8_t *p = kv->data + i * value_types[kv->item_type].size;
    uint64_t bits = load_le(p, value_types[kv->item_type].size);
    if (kv->item_type == PI_GGUF_F64) {
        double wide;
        memcpy(&wide, &bits, sizeof(wide));
        return (float)wide;
    }
    uint32_t low = (uint32_t)bits;
    float f;
    memcpy(&f, &low, sizeof(f));
    return f;
}

int64_t pi_gguf_item_int(const struct pi_gguf_kv *kv, uint64_t i)
{
    const uint8_t *p = kv->data + i * value_types[kv->item_type].size;
    uint64_t bits = load_le(p, value_types[kv->item_type].size);
    switch (kv->item_type) {
    case PI_GGUF_I8:
        return (int8_t)bits;
    case PI_GGUF_I16:
        return (int16_t)bits;
    case PI_GGUF_I32:
        return (int32_t)bits;
    default:
        return (int64_t)bits;
    }
}

/* ---- typed reads ---- */

static pith_status find_key(const struct pi_gguf *g, const char *key, const struct pi_gguf_kv **out,
                            pith_error *err)
{
    *out = pi_gguf_find(g, key);
    if (*out == NULL)
        return pi_fail(err, PITH_NOT_FOUND, "%s: key \"%s\" is missing", short_source(g->source),
                       key);
    return PITH_OK;
}

static pith_status wrong_type(const struct pi_gguf *g, const struct pi_gguf_kv *kv, const char *key,
                              const char *expected, pith_error *err)
{
    bool array = kv->type == PI_GGUF_ARRAY;
    return pi_fail(err, PITH_FORMAT, "%s: key \"%s\": the type is %s%s, not %s",
                   short_source(g->source), key, array ? "array of " : "",
                   pi_gguf_type_name(kv->item_type), expected);
}

static bool is_integer(enum pi_gguf_type type)
{
    return type == PI_GGUF_U64 || type == PI_GGUF_I64 || type <= PI_GGUF_I32;
}

pith_status pi_gguf_u32(const struct pi_gguf *g, const char *key, uint32_t *out, pith_error *err)
{
    const struct pi_gguf_kv *kv;
    PI_TRY(find_key(g, key, &kv, err));
    if (!is_integer(kv->type))
        return wrong_type(g, kv, key, "an integer", err);
    int64_t value = pi_gguf_item_int(kv, 0);
    if (kv->type == PI_GGUF_U64 && value < 0)
        return pi_fail(err, PITH_FORMAT, "%s: key \"%s\": the value %" PRIu64 " is too large",
                       short_source(g->source), key, (uint64_t)value);
    if (value < 0 || value > UINT32_MAX)
        return pi_fail(err, PITH_FORMAT, "%s: key \"%s\": the value %" PRId64 " is %s",
                       short_source(g->source), key, value, value < 0 ? "negative" : "too large");
    *out = (uint32_t)value;
    return PITH_OK;
}

pith_status pi_gguf_f32(const struct pi_gguf *g, const char *key, float *out, pith_error *err)
{
    const struct pi_gguf_kv *kv;
    PI_TRY(find_key(g, key, &kv, err));
    if (kv->type != PI_GGUF_F32 && kv->type != PI_GGUF_F64)
        return wrong_type(g, kv, key, "f32", err);
    float value = pi_gguf_item_f32(kv, 0);
    if (!isfinite(value))
        return pi_fail(err, PITH_FORMAT, "%s: key \"%s\": the value %f is not finite",
                       short_source(g->source), key, (double)value);
    *out = value;
    return PITH_OK;
}

pith_status pi_gguf_bool(const struct pi_gguf *g, const char *key, bool *out, pith_error *err)
{
    const struct pi_gguf_kv *kv;
    PI_TRY(find_key(g, key, &kv, err));
    if (kv->type != PI_GGUF_BOOL)
        return wrong_type(g, kv, key, "bool", err);
    *out = kv->data[0] != 0;
    return PITH_OK;
}

pith_status pi_gguf_str(const struct pi_gguf *g, const char *key, struct pi_str *out,
                        pith_error *err)
{
    const struct pi_gguf_kv *kv;
    PI_TRY(find_key(g, key, &kv, err));
    if (kv->type != PI_GGUF_STRING)
        return wrong_type(g, kv, key, "string", err);
    *out = pi_gguf_item_str(kv, 0);
    return PITH_OK;
}

pith_status pi_gguf_array(const struct pi_gguf *g, const char *key, enum pi_gguf_type item_type,
                          const struct pi_gguf_kv **out, pith_error *err)
{
    const struct pi_gguf_kv *kv;
    char expected[32];
    PI_TRY(find_key(g, key, &kv, err));
    if (kv->type != PI_GGUF_ARRAY || kv->item_type != item_type) {
        snprintf(expected, sizeof(expected), "array of %s", pi_gguf_type_name(item_type));
        return wrong_type(g, kv, key, expected, err);
    }
    *out = kv;
    return PITH_OK;
}
