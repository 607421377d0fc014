/*
 * safetensors.h - named arrays of numbers in one file, in the format that PyTorch users know. It
 * has 8 bytes length, a JSON header, and the arrays one after the other. A file is checked in full
 * before any of it is used.
 */
#ifndef PI_SAFETENSORS_H
#define PI_SAFETENSORS_H

#include "pith/pith.h"

enum safetensors_dtype {
    SAFETENSORS_BOOL,
    SAFETENSORS_U8,
    SAFETENSORS_I8,
    SAFETENSORS_F8_E4M3,
    SAFETENSORS_F8_E5M2,
    SAFETENSORS_I16,
    SAFETENSORS_U16,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I32,
    SAFETENSORS_U32,
    SAFETENSORS_F32,
    SAFETENSORS_I64,
    SAFETENSORS_U64,
    SAFETENSORS_F64,
    SAFETENSORS_N_DTYPE
};

enum { SAFETENSORS_MAX_DIM = 8 };

/* "F32"; bytes of one value. */
const char *safetensors_dtype_name(enum safetensors_dtype dtype);
size_t safetensors_dtype_size(enum safetensors_dtype dtype);

struct safetensor {
    const char *name;
    enum safetensors_dtype dtype;
    int32_t n_dim;                    /* 0: a single value */
    int64_t dim[SAFETENSORS_MAX_DIM]; /* slowest first */
    const void *data; /* little-endian, as it lies in the file: aligned to nothing */
    size_t size;      /* bytes: the product of dim times that of a value */
};

struct safetensors_pair {
    const char *key;
    const char *value;
};

/* A file's arrays and texts. The arrays point into the caller's bytes, names and texts into
   *this. */
struct safetensors {
    struct safetensor *tensor; /* [n_tensor] in the order of their names; owned */
    size_t n_tensor;
    struct safetensors_pair *meta; /* [n_meta] "__metadata__"; owned */
    size_t n_meta;
    void *header; /* the parsed header, which owns the texts */
};

/*
 * Reads data [size]; path stands in messages. Every dtype, shape and offset is checked, as every
 * reader of the format must do. Arrays lie within the file, do not overlap, leave no byte unused,
 * and are as long as their shape says. data is borrowed until safetensors_free. FORMAT (one
 * sentence names the array and the value). UNSUPPORTED (a dtype or number of dimensions that the
 * format may have but this reader has not). NOMEM. *out is empty then.
 */
pith_status safetensors_parse(const char *path, const uint8_t *data, size_t size,
                              struct safetensors *out, pith_error *err);
void safetensors_free(struct safetensors *st); /* an empty one, too */

/* NULL when there is none of the name. */
const struct safetensor *safetensors_find(const struct safetensors *st, const char *name);
const char *safetensors_meta(const struct safetensors *st, const char *key);

/* Values [begin, begin + n) as floats: F32, F64 (rounded), F16 and BF16. False for other dtypes,
   or where the range leaves the array. */
bool safetensor_read_f32(const struct safetensor *t, int64_t begin, int64_t n, float *out);
/* The same as int64_t: every whole-number dtype, U64 up to INT64_MAX (false beyond). */
bool safetensor_read_i64(const struct safetensor *t, int64_t begin, int64_t n, int64_t *out);
/* The same as double: what safetensor_read_f32 reads, F64 without rounding. */
bool safetensor_read_f64(const struct safetensor *t, int64_t begin, int64_t n, double *out);

/*
 * Writes a file that safetensors_parse reads; the arrays follow in the given order, the first at a
 * multiple of 8 bytes. The host must be little-endian. The file appears when it is whole
 * (base/new_file.h). Names and texts are UTF-8; no name twice. INVALID (a name twice or not UTF-8,
 * a size that is not the shape's). IO (a folder, a full disk). NOMEM.
 */
pith_status safetensors_write(const char *path, const struct safetensor *tensor, size_t n_tensor,
                              const struct safetensors_pair *meta, size_t n_meta, pith_error *err);

#endif
