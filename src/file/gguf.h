/*
 * gguf.h - GGUF files, versions 2 and 3, little-endian. Reading is a pure function of (bytes,
 * length). Every count, offset, string and size is checked against the length before it is used,
 * and the result points into the bytes. Writing streams.
 */
#ifndef PI_GGUF_H
#define PI_GGUF_H

#include "base/base.h"
#include "base/new_file.h"
#include "base/os.h"

#define PI_GGUF_MAX_TENSOR_NAME 64 /* bytes of a tensor's name */

enum pi_gguf_type {
    PI_GGUF_U8 = 0,
    PI_GGUF_I8,
    PI_GGUF_U16,
    PI_GGUF_I16,
    PI_GGUF_U32,
    PI_GGUF_I32,
    PI_GGUF_F32,
    PI_GGUF_BOOL,
    PI_GGUF_STRING,
    PI_GGUF_ARRAY,
    PI_GGUF_U64,
    PI_GGUF_I64,
    PI_GGUF_F64,
    PI_GGUF_N_TYPE
};

/* Text that is not terminated; borrowed from the file's bytes. */
struct pi_str {
    const char *data;
    size_t len;
};

struct pi_gguf_kv {
    struct pi_str key;
    enum pi_gguf_type type;
    enum pi_gguf_type item_type; /* of arrays (never ARRAY: nested arrays are refused) */
    uint64_t n_item;             /* of arrays; 1 otherwise */
    const uint8_t *data;         /* the value, or the first item; unaligned */
    size_t size;                 /* bytes of the value or of all items */
    const uint64_t *item_offset; /* string arrays: [n_item] offsets of the items from data; owned */
};

struct pi_gguf_tensor {
    struct pi_str name;
    uint32_t type; /* as in the file; may be a type that Pith has no traits for */
    int32_t n_dim;
    int64_t ne[4];       /* fastest first, as in the file; 1 beyond n_dim */
    uint64_t offset;     /* from the start of the data section */
    const uint8_t *data; /* NULL when the type is unknown (its size cannot be checked) */
    size_t size;         /* bytes; 0 when the type is unknown */
};

/* A line of a sorted index: the name and its place in the file's order. */
struct pi_gguf_name {
    struct pi_str name;
    int64_t i;
};

struct pi_gguf {
    char *source; /* the name used in messages, owned */
    uint32_t version;
    uint32_t alignment; /* a power of two, at least 8 */
    int64_t n_kv;
    struct pi_gguf_kv *kv;        /* [n_kv], owned */
    struct pi_gguf_name *kv_name; /* [n_kv], sorted, owned */
    int64_t n_tensor;
    struct pi_gguf_tensor *tensor;    /* [n_tensor], owned */
    struct pi_gguf_name *tensor_name; /* [n_tensor], sorted, owned */
    size_t data_offset;               /* of the data section in the file */
};

/* Parses data [size], which must outlive g. source is the name used in messages, copied. Keys and
   tensor names are unique, not empty and free of zero bytes; tensors lie inside the data section
   and do not overlap. On failure g is empty. FORMAT, NOMEM. */
pith_status pi_gguf_parse(struct pi_gguf *g, const void *data, size_t size, const char *source,
                          pith_error *err);
void pi_gguf_free(struct pi_gguf *g);

/* NULL when absent. */
const struct pi_gguf_kv *pi_gguf_find(const struct pi_gguf *g, const char *key);
const struct pi_gguf_tensor *pi_gguf_find_tensor(const struct pi_gguf *g, const char *name);

/* N of a tensor's name "blk.N.rest", -1 for other names. */
int32_t pi_gguf_layer(struct pi_str name);

/* Typed reads: NOT_FOUND when the key is absent (*out unchanged: preset the default), FORMAT when
   its type or range does not fit. Integers of any width convert when the value fits. */
pith_status pi_gguf_u32(const struct pi_gguf *g, const char *key, uint32_t *out, pith_error *err);
pith_status pi_gguf_f32(const struct pi_gguf *g, const char *key, float *out, pith_error *err);
pith_status pi_gguf_bool(const struct pi_gguf *g, const char *key, bool *out, pith_error *err);
pith_status pi_gguf_str(const struct pi_gguf *g, const char *key, struct pi_str *out,
                        pith_error *err);
/* The array under key, whose items must be of item_type; out is set to the entry. */
pith_status pi_gguf_array(const struct pi_gguf *g, const char *key, enum pi_gguf_type item_type,
                          const struct pi_gguf_kv **out, pith_error *err);

/* Item i of an array (or the scalar itself, i = 0); the caller has checked type and range. */
struct pi_str pi_gguf_item_str(const struct pi_gguf_kv *kv, uint64_t i);
float pi_gguf_item_f32(const struct pi_gguf_kv *kv, uint64_t i);
int64_t pi_gguf_item_int(const struct pi_gguf_kv *kv, uint64_t i); /* any integer or bool type */

const char *pi_gguf_type_name(enum pi_gguf_type type);

/* ---- writing ---- */

/* Collects metadata and tensor heads; the head of the file and then each tensor's data are written
   in that order. Zero it before use. Additions fail with NOMEM, or INVALID for what no reader would
   take (named at each), and then change nothing; unique names are the caller's care. */
struct pi_gguf_writer {
    uint8_t *head; /* encoded key-value pairs, owned */
    size_t head_len, head_cap;
    int64_t n_kv;
    uint8_t *info; /* encoded tensor heads, owned */
    size_t info_len, info_cap;
    int64_t n_tensor;
    uint64_t data_len;  /* bytes of the data section so far, padding included */
    uint32_t alignment; /* 0 until the key general.alignment is added: the default of 32 */
};

/* INVALID: an empty key; general.alignment that is no u32, no power of two of at least 8, or that
   comes after a tensor. */
pith_status pi_gguf_add_u32(struct pi_gguf_writer *w, const char *key, uint32_t value);
pith_status pi_gguf_add_f32(struct pi_gguf_writer *w, const char *key, float value);
pith_status pi_gguf_add_str(struct pi_gguf_writer *w, const char *key, const char *value);
/* Copies an entry as another file has it (key, type, item_type, n_item, data and size). */
pith_status pi_gguf_add_kv(struct pi_gguf_writer *w, const struct pi_gguf_kv *kv);
/* Declares a tensor of size bytes; data follows in the same order. INVALID: an empty or too long
   name, dimensions outside 1 to 4, one below 1, a data section of more than 2^62 bytes. */
pith_status pi_gguf_add_tensor(struct pi_gguf_writer *w, struct pi_str name, int32_t n_dim,
                               const int64_t *ne, uint32_t type, size_t size);
/* Writes everything before the data section. IO. */
pith_status pi_gguf_write_head(const struct pi_gguf_writer *w, struct pi_new_file *file,
                               pith_error *err);
/* Writes one tensor's data and its padding. IO. */
pith_status pi_gguf_write_tensor(const struct pi_gguf_writer *w, struct pi_new_file *file,
                                 const void *data, size_t size, pith_error *err);
/* Writes the padding alone, after the tensor's size bytes went through pi_new_file_write. IO. */
pith_status pi_gguf_write_padding(const struct pi_gguf_writer *w, struct pi_new_file *file,
                                  size_t size, pith_error *err);
void pi_gguf_writer_free(struct pi_gguf_writer *w);

#endif
