/*
 * safetensors.c - the format of safetensors files. They have 8 bytes little-endian length N of the
 * header and N bytes of JSON (an object, padded with spaces). Then the data of all arrays follows
 * without a gap. The header maps names to {"dtype", "shape", "data_offsets": [begin, end)} with
 * offsets from the first byte of the data. "__metadata__" is mapped to an object of texts.
 *
 * It must not know what the arrays mean. The parser is a pure function of its bytes; it trusts
 * nothing, and Jansson, which bounds its own depth, reads the JSON.
 */
#include "file/safetensors.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/new_file.h"

#define LENGTH_SIZE 8
#define MAX_HEADER 100000000 /* the limit that the format's own reader sets */
#define META_KEY "__metadata__"

static const struct {
    const char *name;
    size_t size;
} dtypes[SAFETENSORS_N_DTYPE] = {
    [SAFETENSORS_BOOL] = {"BOOL", 1},       [SAFETENSORS_U8] = {"U8", 1},
    [SAFETENSORS_I8] = {"I8", 1},           [SAFETENSORS_F8_E4M3] = {"F8_E4M3", 1},
    [SAFETENSORS_F8_E5M2] = {"F8_E5M2", 1}, [SAFETENSORS_I16] = {"I16", 2},
    [SAFETENSORS_U16] = {"U16", 2},         [SAFETENSORS_F16] = {"F16", 2},
    [SAFETENSORS_BF16] = {"BF16", 2},       [SAFETENSORS_I32] = {"I32", 4},
    [SAFETENSORS_U32] = {"U32", 4},         [SAFETENSORS_F32] = {"F32", 4},
    [SAFETENSORS_I64] = {"I64", 8},         [SAFETENSORS_U64] = {"U64", 8},
    [SAFETENSORS_F64] = {"F64", 8},
};

const char *safetensors_dtype_name(enum safetensors_dtype dtype)
{
    return dtypes[dtype].name;
}
size_t safetensors_dtype_size(enum safetensors_dtype dtype)
{
    return dtypes[dtype].size;
}

__attribute__((format(printf, 3, 4))) static pith_status fail(pith_error *err, pith_status status,
                                                              const char *fmt, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, fmt);
        err->status = status;
        vsnprintf(err->message, sizeof(err->message), fmt, args);
        va_end(args);
    }
    return status;
}

/* A text of the file that may stand in a sentence: short, and on one line. */
struct shown {
    char text[64];
};

static struct shown show(const char *text)
{
    struct shown s;
    size_t n = 0;
    for (; text[n] != '\0' && n < sizeof(s.text) - 1; n++)
        s.text[n] = (unsigned char)text[n] < ' ' || text[n] == 0x7f ? '?' : text[n];
    if (text[n] != '\0') /* cut: not within a character */
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
            n--;
    s.text[n] = '\0';
    return s;
}

/* ---- reading ---- */

struct reader {
    const char *path;
    const uint8_t *data; /* of the arrays, [data_size] */
    size_t data_size;
    pith_error *err;
};

static pith_status read_dtype(const struct reader *r, const char *name, const json_t *value,
                              enum safetensors_dtype *out)
{
    const char *text = json_string_value(value);
    if (text == NULL)
        return fail(r->err, PITH_FORMAT, "%s: \"%s\": dtype is missing or no text", r->path,
                    show(name).text);
    for (int i = 0; i < SAFETENSORS_N_DTYPE; i++)
        if (strcmp(text, dtypes[i].name) == 0) {
            *out = (enum safetensors_dtype)i;
            return PITH_OK;
        }
    return fail(r->err, PITH_UNSUPPORTED, "%s: \"%s\": dtype \"%.20s\" is not known", r->path,
                show(name).text, show(text).text);
}

/* Fills dim and size, what the shape needs. */
static pith_status read_shape(const struct reader *r, const char *name, const json_t *value,
                              struct safetensor *t)
{
    size_t n = json_array_size(value);
    if (!json_is_array(value))
        return fail(r->err, PITH_FORMAT, "%s: \"%s\": shape is missing or no list", r->path,
                    show(name).text);
    if (n > SAFETENSORS_MAX_DIM)
        return fail(r->err, PITH_UNSUPPORTED, "%s: \"%s\": %zu dimensions are more than %d",
                    r->path, show(name).text, n, SAFETENSORS_MAX_DIM);
    t->n_dim = (int32_t)n;
    t->size = dtypes[t->dtype].size;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(value, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0)
            return fail(r->err, PITH_FORMAT, "%s: \"%s\": shape[%zu] is no count", r->path,
                        show(name).text, i);
        uint64_t dim = (uint64_t)json_integer_value(item);
        if (dim != 0 && t->size > SIZE_MAX / dim)
            return fail(r->err, PITH_FORMAT, "%s: \"%s\": the shape is more than memory can hold",
                        r->path, show(name).text);
        t->dim[i] = (int64_t)dim;
        t->size *= (size_t)dim;
    }
    return PITH_OK;
}

/* Fills data, which must be as long as the shape says. */
static pith_status read_offsets(const struct reader *r, const char *name, const json_t *value,
                                struct safetensor *t)
{
    const json_t *first = json_array_get(value, 0), *last = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return fail(r->err, PITH_FORMAT, "%s: \"%s\": data_offsets is missing or no [begin, end]",
                    r->path, show(name).text);
    json_int_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin || (uint64_t)end > r->data_size)
        return fail(r->err, PITH_FORMAT,
                    "%s: \"%s\": data_offsets [%lld, %lld] leave the %zu bytes of data", r->path,
                    show(name).text, (long long)begin, (long long)end, r->data_size);
    if ((uint64_t)(end - begin) != t->size)
        return fail(r->err, PITH_FORMAT,
                    "%s: \"%s\": data_offsets give %lld bytes, dtype and shape need %zu", r->path,
                    show(name).text, (long long)(end - begin), t->size);
    t->data = r->data + begin;
    return PITH_OK;
}

static pith_status read_tensor(const struct reader *r, const char *name, const json_t *value,
                               struct safetensor *t)
{
    *t = (struct safetensor){.name = name};
    if (!json_is_object(value))
        return fail(r->err, PITH_FORMAT, "%s: \"%s\" is no object", r->path, show(name).text);
    pith_status status = read_dtype(r, name, json_object_get(value, "dtype"), &t->dtype);
    if (status == PITH_OK)
        status = read_shape(r, name, json_object_get(value, "shape"), t);
    if (status == PITH_OK)
        status = read_offsets(r, name, json_object_get(value, "data_offsets"), t);
    return status;
}

static pith_status read_meta(const struct reader *r, json_t *object, struct safetensors *out)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return fail(r->err, PITH_FORMAT, "%s: " META_KEY " is no object", r->path);
    out->meta = calloc(json_object_size(object) + 1, sizeof(*out->meta));
    if (out->meta == NULL)
        return fail(r->err, PITH_NOMEM, "%s: no memory for the metadata", r->path);
    json_object_foreach(object, key, value)
    {
        if (!json_is_string(value))
            return fail(r->err, PITH_FORMAT, "%s: " META_KEY ": \"%s\" is no text", r->path,
                        show(key).text);
        out->meta[out->n_meta++] = (struct safetensors_pair){key, json_string_value(value)};
    }
    return PITH_OK;
}

/* In the order of the data; an empty array stands before the one that begins where it lies. */
static int compare_data(const void *a, const void *b)
{
    const struct safetensor *x = a, *y = b;
    if (x->data != y->data)
        return (const uint8_t *)x->data < (const uint8_t *)y->data ? -1 : 1;
    if (x->size != y->size)
        return x->size < y->size ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_name(const void *a, const void *b)
{
    return strcmp(((const struct safetensor *)a)->name, ((const struct safetensor *)b)->name);
}

/* The arrays, in the order of their data, cover the data without gap or overlap. */
static pith_status check_cover(const struct reader *r, const struct safetensors *st)
{
    size_t at = 0;
    for (size_t i = 0; i < st->n_tensor; i++) {
        const struct safetensor *t = &st->tensor[i];
        size_t begin = (size_t)((const uint8_t *)t->data - r->data);
        if (begin < at)
            return fail(r->err, PITH_FORMAT, "%s: \"%s\" begins at byte %zu, within \"%s\"",
                        r->path, show(t->name).text, begin, show(st->tensor[i - 1].name).text);
        if (begin > at)
            return fail(r->err, PITH_FORMAT,
                        "%s: the %zu bytes of data before \"%s\" belong to no array", r->path,
                        begin - at, show(t->name).text);
        at = begin + t->size;
    }
    if (at != r->data_size)
        return fail(r->err, PITH_FORMAT, "%s: the last %zu bytes belong to no array", r->path,
                    r->data_size - at);
    return PITH_OK;
}

static pith_status read_header(const struct reader *r, json_t *header, struct safetensors *out)
{
    const char *key;
    json_t *value;
    out->tensor = calloc(json_object_size(header) + 1, sizeof(*out->tensor));
    if (out->tensor == NULL)
        return fail(r->err, PITH_NOMEM, "%s: no memory for the list of arrays", r->path);
    json_object_foreach(header, key, value)
    {
        pith_status status = strcmp(key, META_KEY) == 0
                                 ? read_meta(r, value, out)
                                 : read_tensor(r, key, value, &out->tensor[out->n_tensor++]);
        if (status != PITH_OK)
            return status;
    }
    qsort(out->tensor, out->n_tensor, sizeof(*out->tensor), compare_data);
    pith_status status = check_cover(r, out);
    qsort(out->tensor, out->n_tensor, sizeof(*out->tensor), compare_name);
    return status;
}

/* The number of bytes that the header's JSON has; 0 with a sentence. */
static size_t header_size(const char *path, const uint8_t *data, size_t size, pith_error *err)
{
    uint64_t n = 0;
    if (size < LENGTH_SIZE) {
        fail(err, PITH_FORMAT, "%s: %zu bytes are too short for a safetensors file", path, size);
        return 0;
    }
    for (int i = 0; i < LENGTH_SIZE; i++)
        n |= (uint64_t)data[i] << (8 * i);
    if (n > MAX_HEADER || n > size - LENGTH_SIZE)
        fail(err, PITH_FORMAT, "%s: a header of %llu bytes does not fit a file of %zu", path,
             (unsigned long long)n, size);
    else if (n == 0 || data[LENGTH_SIZE] != '{')
        fail(err, PITH_FORMAT, "%s: the header does not begin with {", path);
    else
        return (size_t)n;
    return 0;
}

/* Jansson does not always tell no memory from bad JSON, so it is asked for another object. */
static pith_status fail_json(const char *path, size_t n, const json_error_t *why, pith_error *err)
{
    json_t *probe = json_object();
    bool memory = probe == NULL || why->text[0] == '\0';
    json_decref(probe);
    if (memory)
        return fail(err, PITH_NOMEM, "%s: no memory for a header of %zu bytes", path, n);
    return fail(err, PITH_FORMAT, "%s: the header is no JSON, at byte %d: %s", path, why->position,
                show(why->text).text);
}

pith_status safetensors_parse(const char *path, const uint8_t *data, size_t size,
                              struct safetensors *out, pith_error *err)
{
    json_error_t why;
    *out = (struct safetensors){0};
    size_t n = header_size(path, data, size, err);
    if (n == 0)
        return PITH_FORMAT;
    json_t *header = json_loadb((const char *)data + LENGTH_SIZE, n, JSON_REJECT_DUPLICATES, &why);
    if (header == NULL)
        return fail_json(path, n, &why, err);
    const struct reader r = {
        .path = path,
        .data = data + LENGTH_SIZE + n,
        .data_size = size - LENGTH_SIZE - n,
        .err = err,
    };
    out->header = header;
    pith_status status = read_header(&r, header, out);
    if (status != PITH_OK)
        safetensors_free(out);
    return status;
}

void safetensors_free(struct safetensors *st)
{
    free(st->tensor);
    free(st->meta);
    json_decref(st->header);
    *st = (struct safetensors){0};
}

const struct safetensor *safetensors_find(const struct safetensors *st, const char *name)
{
    const struct safetensor key = {.name = name};
    if (st->n_tensor == 0)
        return NULL;
    return bsearch(&key, st->tensor, st->n_tensor, sizeof(key), compare_name);
}

const char *safetensors_meta(const struct safetensors *st, const char *key)
{
    for (size_t i = 0; i < st->n_meta; i++)
        if (strcmp(st->meta[i].key, key) == 0)
            return st->meta[i].value;
    return NULL;
}

/* ---- values ---- */

/* The little-endian number of size bytes at p. */
static uint64_t load(const uint8_t *p, size_t size)
{
    uint64_t n = 0;
    for (size_t i = 0; i < size; i++)
        n |= (uint64_t)p[i] << (8 * i);
    return n;
}

static bool in_range(const struct safetensor *t, int64_t begin, int64_t n)
{
    uint64_t len = t->size / dtypes[t->dtype].size;
    return begin >= 0 && n >= 0 && (uint64_t)begin <= len && (uint64_t)n <= len - (uint64_t)begin;
}

static double double_from_bits(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof(d));
    return d;
}

static double float_value(enum safetensors_dtype dtype, uint64_t bits)
{
    switch (dtype) {
    case SAFETENSORS_F16:
        return (double)pi_f32_from_f16((uint16_t)bits);
    case SAFETENSORS_BF16:
        return (double)pi_f32_from_bf16((uint16_t)bits);
    case SAFETENSORS_F32:
        return (double)pi_f32_from_bits((uint32_t)bits);
    default:
        return double_from_bits(bits);
    }
}

static bool is_float(enum safetensors_dtype dtype)
{
    return dtype == SAFETENSORS_F16 || dtype == SAFETENSORS_BF16 || dtype == SAFETENSORS_F32 ||
           dtype == SAFETENSORS_F64;
}

bool safetensor_read_f64(const struct safetensor *t, int64_t begin, int64_t n, double *out)
{
    size_t size = dtypes[t->dtype].size;
    if (!is_float(t->dtype) || !in_range(t, begin, n))
        return false;
    const uint8_t *p = (const uint8_t *)t->data + (size_t)begin * size;
    for (int64_t i = 0; i < n; i++, p += size)
        out[i] = float_value(t->dtype, load(p, size));
    return true;
}

bool safetensor_read_f32(const struct safetensor *t, int64_t begin, int64_t n, float *out)
{
    size_t size = dtypes[t->dtype].size;
    if (!is_float(t->dtype) || !in_range(t, begin, n))
        return false;
    const uint8_t *p = (const uint8_t *)t->data + (size_t)begin * size;
    for (int64_t i = 0; i < n; i++, p += size)
        out[i] = (float)float_value(t->dtype, load(p, size));
    return true;
}

bool safetensor_read_i64(const struct safetensor *t, int64_t begin, int64_t n, int64_t *out)
{
    static const bool is_signed[SAFETENSORS_N_DTYPE] = {
        [SAFETENSORS_I8] = true,
        [SAFETENSORS_I16] = true,
        [SAFETENSORS_I32] = true,
        [SAFETENSORS_I64] = true,
    };
    size_t size = dtypes[t->dtype].size;
    if (is_float(t->dtype) || t->dtype == SAFETENSORS_F8_E4M3 || t->dtype == SAFETENSORS_F8_E5M2 ||
        !in_range(t, begin, n))
        return false;
    const uint8_t *p = (const uint8_t *)t->data + (size_t)begin * size;
    for (int64_t i = 0; i < n; i++, p += size) {
        uint64_t bits = load(p, size);
        uint64_t sign = UINT64_C(1) << (8 * size - 1);
        if (is_signed[t->dtype])
            bits = (bits ^ sign) - sign; /* extends the sign: the high half wraps to negative */
        else if (bits > INT64_MAX)
            return false;
        memcpy(&out[i], &bits, sizeof(bits));
    }
    return true;
}

/* ---- writing ---- */

/* Well-formed UTF-8, as JSON wants it: no overlong forms, no surrogates, nothing above U+10FFFF. */
static bool is_utf8(const char *text)
{
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    for (const unsigned char *p = (const unsigned char *)text; *p != 0; p++) {
        int more = *p < 0x80 ? 0 : *p >= 0xf0 ? 3 : *p >= 0xe0 ? 2 : 1;
        uint32_t c = more == 0 ? *p : *p & (0x3fu >> more);
        if (*p >= 0xf8 || (*p & 0xc0) == 0x80)
            return false;
        for (int i = 0; i < more; i++) {
            if ((p[1] & 0xc0) != 0x80)
                return false;
            c = c << 6 | (*++p & 0x3fu);
        }
        if (c < least[more] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
            return false;
    }
    return true;
}

static pith_status check_text(const char *text, pith_error *err)
{
    return is_utf8(text) ? PITH_OK
                         : fail(err, PITH_INVALID, "\"%s\" is not UTF-8", show(text).text);
}

/* The bytes that the shape needs; false when they are not those that the array has. */
static bool size_fits(const struct safetensor *t)
{
    size_t need = dtypes[t->dtype].size;
    for (int32_t i = 0; i < t->n_dim; i++) {
        if (t->dim[i] < 0 || (t->dim[i] > 0 && need > SIZE_MAX / (size_t)t->dim[i]))
            return false;
        need *= (size_t)t->dim[i];
    }
    return need == t->size;
}

/* The header's entry of an array whose data begin at *offset, which moves on. */
static pith_status add_tensor(json_t *header, const struct safetensor *t, uint64_t *offset,
                              pith_error *err)
{
    if (t->n_dim < 0 || t->n_dim > SAFETENSORS_MAX_DIM || !size_fits(t))
        return fail(err, PITH_INVALID, "\"%s\": %zu bytes are not what dtype and shape need",
                    show(t->name).text, t->size);
    if (json_object_get(header, t->name) != NULL || strcmp(t->name, META_KEY) == 0)
        return fail(err, PITH_INVALID, "\"%s\": the name is taken", show(t->name).text);
    pith_status status = check_text(t->name, err);
    if (status != PITH_OK)
        return status;
    json_t *shape = json_array();
    bool ok = shape != NULL;
    for (int32_t i = 0; ok && i < t->n_dim; i++)
        ok = json_array_append_new(shape, json_integer(t->dim[i])) == 0;
    json_t *entry = NULL;
    if (ok)
        entry = json_pack("{s:s, s:O, s:[I, I]}", "dtype", dtypes[t->dtype].name, "shape", shape,
                          "data_offsets", (json_int_t)*offset, (json_int_t)(*offset + t->size));
    json_decref(shape);
    *offset += t->size;
    if (json_object_set_new(header, t->name, entry) != 0)
        return fail(err, PITH_NOMEM, "no memory for the header's \"%s\"", show(t->name).text);
    return PITH_OK;
}

/* The object of "__metadata__". */
static pith_status add_meta(json_t *header, const struct safetensors_pair *meta, size_t n,
                            pith_error *err)
{
    json_t *texts = json_object();
    if (texts == NULL || json_object_set_new(header, META_KEY, texts) != 0)
        return fail(err, PITH_NOMEM, "no memory for the metadata");
    for (size_t i = 0; i < n; i++) {
        pith_status status = check_text(meta[i].key, err);
        if (status == PITH_OK)
            status = check_text(meta[i].value, err);
        if (status != PITH_OK)
            return status;
        if (json_object_set_new(texts, meta[i].key, json_string(meta[i].value)) != 0)
            return fail(err, PITH_NOMEM, "no memory for the metadata");
    }
    return PITH_OK;
}

/* The header's text, padded so that the data begin at a multiple of 8 bytes; the caller frees. */
static pith_status make_header(const struct safetensor *tensor, size_t n_tensor,
                               const struct safetensors_pair *meta, size_t n_meta, char **text,
                               size_t *len, pith_error *err)
{
    uint64_t offset = 0;
    char *dump = NULL;
    json_t *header = json_object();
    pith_status status = header != NULL ? PITH_OK : fail(err, PITH_NOMEM, "no memory for a header");
    if (status == PITH_OK && n_meta > 0)
        status = add_meta(header, meta, n_meta, err);
    for (size_t i = 0; status == PITH_OK && i < n_tensor; i++)
        status = add_tensor(header, &tensor[i], &offset, err);
    if (status == PITH_OK)
        dump = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (dump != NULL) {
        size_t n = strlen(dump);
        *len = (n + 7) / 8 * 8;
        *text = malloc(*len);
        if (*text != NULL) {
            memcpy(*text, dump, n);
            memset(*text + n, ' ', *len - n);
        }
        free(dump);
    }
    if (status == PITH_OK && *text == NULL)
        status = fail(err, PITH_NOMEM, "no memory for the header of %zu arrays", n_tensor);
    return status;
}

pith_status safetensors_write(const char *path, const struct safetensor *tensor, size_t n_tensor,
                              const struct safetensors_pair *meta, size_t n_meta, pith_error *err)
{
    struct pi_new_file f = {0};
    char *header = NULL;
    size_t header_len = 0;
    uint8_t length[LENGTH_SIZE];
    pith_status status = make_header(tensor, n_tensor, meta, n_meta, &header, &header_len, err);
    if (status == PITH_OK)
        status = pi_new_file_open(path, &f, err);
    for (int i = 0; i < LENGTH_SIZE; i++)
        length[i] = (uint8_t)((uint64_t)header_len >> (8 * i));
    if (status == PITH_OK)
        status = pi_new_file_write(&f, length, sizeof(length), err);
    if (status == PITH_OK)
        status = pi_new_file_write(&f, header, header_len, err);
    for (size_t i = 0; status == PITH_OK && i < n_tensor; i++)
        status = pi_new_file_write(&f, tensor[i].data, tensor[i].size, err);
    if (status == PITH_OK)
        status = pi_new_file_commit(&f, err);
    pi_new_file_discard(&f);
    free(header);
    return status;
}
