/*
 * gguf_write.c - writes GGUF files, version 3, little-endian. Metadata and tensor heads are encoded
 * as they are added. The tensors' data then streams behind them, so that no tensor needs to be in
 * memory. It knows nothing of weight types: the caller says how many bytes a tensor has. Invariant:
 * head and info always hold whole entries, so a failed addition changes nothing.
 */
#include "base/mem.h"
#include "file/gguf.h"

#define VERSION 3
#define DEFAULT_ALIGNMENT 32
#define MIN_ALIGNMENT 8
#define MAX_DIM 4
#define MAX_DATA_BYTES ((uint64_t)1 << 62) /* leaves room for any padding */
#define HEADER_BYTES (4 + 4 + 8 + 8)

/* ---- bytes ---- */

struct buffer {
    uint8_t **data;
    size_t *len, *cap;
};

static struct buffer head_of(struct pi_gguf_writer *w)
{
    return (struct buffer){&w->head, &w->head_len, &w->head_cap};
}

static struct buffer info_of(struct pi_gguf_writer *w)
{
    return (struct buffer){&w->info, &w->info_len, &w->info_cap};
}

/* Makes room for size more bytes, so that the puts that follow cannot fail. */
static pith_status reserve(struct buffer b, size_t size)
{
    if (size > SIZE_MAX / 4 - *b.len)
        return PITH_NOMEM;
    if (*b.len + size <= *b.cap)
        return PITH_OK;
    size_t cap = 2 * (*b.len + size);
    uint8_t *grown = pi_mem_grow(PI_MEM_MODEL, *b.data, cap, 1);
    if (grown == NULL)
        return PITH_NOMEM;
    *b.data = grown;
    *b.cap = cap;
    return PITH_OK;
}

static void put_bytes(struct buffer b, const void *data, size_t size)
{
    if (size > 0)
        memcpy(*b.data + *b.len, data, size);
    *b.len += size;
}

static void store_le(uint8_t *p, uint64_t v, size_t size)
{
    for (size_t i = 0; i < size; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static void put_int(struct buffer b, uint64_t v, size_t size)
{
    uint8_t bytes[8];
    store_le(bytes, v, size);
    put_bytes(b, bytes, size);
}

static void put_str(struct buffer b, struct pi_str s)
{
    put_int(b, s.len, 8);
    put_bytes(b, s.data, s.len);
}

/* ---- keys and values ---- */

static bool is_alignment_key(struct pi_str key)
{
    static const char name[] = "general.alignment";
    return key.len == sizeof(name) - 1 && memcmp(key.data, name, key.len) == 0;
}

static uint32_t alignment_of(const struct pi_gguf_writer *w)
{
    return w->alignment != 0 ? w->alignment : DEFAULT_ALIGNMENT;
}

/* The file is laid out by the alignment that it states. */
static pith_status take_alignment(struct pi_gguf_writer *w, enum pi_gguf_type type,
                                  const uint8_t *data)
{
    if (type != PI_GGUF_U32 || w->n_tensor > 0)
        return PITH_INVALID;
    uint32_t v =
        data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
    if (v < MIN_ALIGNMENT || (v & (v - 1)) != 0)
        return PITH_INVALID;
    w->alignment = v;
    return PITH_OK;
}

pith_status pi_gguf_add_kv(struct pi_gguf_writer *w, const struct pi_gguf_kv *kv)
{
    const struct buffer b = head_of(w);
    if (kv->key.len == 0 || kv->key.len > SIZE_MAX / 8 || kv->size > SIZE_MAX / 8)
        return PITH_INVALID;
    PI_TRY(reserve(b, 8 + kv->key.len + 4 + 4 + 8 + kv->size));
    if (is_alignment_key(kv->key))
        PI_TRY(take_alignment(w, kv->type, kv->data));
    put_str(b, kv->key);
    put_int(b, kv->type, 4);
    if (kv->type == PI_GGUF_ARRAY) {
        put_int(b, kv->item_type, 4);
        put_int(b, kv->n_item, 8);
    }
    put_bytes(b, kv->data, kv->size);
    w->n_kv++;
    return PITH_OK;
}

static pith_status add_u32_bits(struct pi_gguf_writer *w, const char *key, enum pi_gguf_type type,
                                uint32_t bits)
{
    uint8_t data[4];
    store_le(data, bits, sizeof(data));
    return pi_gguf_add_kv(w, &(struct pi_gguf_kv){.key = {key, strlen(key)},
                                                  .type = type,
                                                  .item_type = type,
                                                  .n_item = 1,
                                                  .data = data,
                                                  .size = sizeof(data)});
}

pith_status pi_gguf_add_u32(struct pi_gguf_writer *w, const char *key, uint32_t value)
{
    return add_u32_bits(w, key, PI_GGUF_U32, value);
}

pith_status pi_gguf_add_f32(struct pi_gguf_writer *w, const char *key, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return add_u32_bits(w, key, PI_GGUF_F32, bits);
}

pith_status pi_gguf_add_str(struct pi_gguf_writer *w, const char *key, const char *value)
{
    const struct buffer b = head_of(w);
    const struct pi_str name = {key, strlen(key)}, text = {value, strlen(value)};
    if (name.len == 0 || is_alignment_key(name))
        return PITH_INVALID;
    PI_TRY(reserve(b, 8 + name.len + 4 + 8 + text.len));
    put_str(b, name);
    put_int(b, PI_GGUF_STRING, 4);
    put_str(b, text);
    w->n_kv++;
    return PITH_OK;
}

/* ---- tensors ---- */

pith_status pi_gguf_add_tensor(struct pi_gguf_writer *w, struct pi_str name, int32_t n_dim,
                               const int64_t *ne, uint32_t type, size_t size)
{
    const struct buffer b = info_of(w);
    if (name.len == 0 || name.len > PI_GGUF_MAX_TENSOR_NAME || n_dim < 1 || n_dim > MAX_DIM ||
        size > MAX_DATA_BYTES || w->data_len > MAX_DATA_BYTES - size)
        return PITH_INVALID;
    for (int32_t d = 0; d < n_dim; d++)
        if (ne[d] < 1)
            return PITH_INVALID;
    PI_TRY(reserve(b, 8 + name.len + 4 + 8 * (size_t)n_dim + 4 + 8));
    put_str(b, name);
    put_int(b, (uint64_t)n_dim, 4);
    for (int32_t d = 0; d < n_dim; d++)
        put_int(b, (uint64_t)ne[d], 8);
    put_int(b, type, 4);
    put_int(b, w->data_len, 8);
    w->data_len += pi_align(size, alignment_of(w));
    w->n_tensor++;
    return PITH_OK;
}

/* ---- the file ---- */

/* Zeros up to the next multiple of the alignment after size bytes. */
static pith_status write_zeros(const struct pi_gguf_writer *w, struct pi_new_file *file,
                               uint64_t size, pith_error *err)
{
    static const uint8_t zeros[4096];
    uint64_t n = (alignment_of(w) - size % alignment_of(w)) % alignment_of(w);
    for (; n > sizeof(zeros); n -= sizeof(zeros))
        PI_TRY(pi_new_file_write(file, zeros, sizeof(zeros), err));
    return pi_new_file_write(file, zeros, (size_t)n, err);
}

pith_status pi_gguf_write_head(const struct pi_gguf_writer *w, struct pi_new_file *file,
                               pith_error *err)
{
    uint8_t header[HEADER_BYTES];
    memcpy(header, "GGUF", 4);
    store_le(header + 4, VERSION, 4);
    store_le(header + 8, (uint64_t)w->n_tensor, 8);
    store_le(header + 16, (uint64_t)w->n_kv, 8);
    PI_TRY(pi_new_file_write(file, header, sizeof(header), err));
    PI_TRY(pi_new_file_write(file, w->head, w->head_len, err));
    PI_TRY(pi_new_file_write(file, w->info, w->info_len, err));
    return write_zeros(w, file, sizeof(header) + w->head_len + w->info_len, err);
}

pith_status pi_gguf_write_tensor(const struct pi_gguf_writer *w, struct pi_new_file *file,
                                 const void *data, size_t size, pith_error *err)
{
    PI_TRY(pi_new_file_write(file, data, size, err));
    return write_zeros(w, file, size, err);
}

pith_status pi_gguf_write_padding(const struct pi_gguf_writer *w, struct pi_new_file *file,
                                  size_t size, pith_error *err)
{
    return write_zeros(w, file, size, err);
}

void pi_gguf_writer_free(struct pi_gguf_writer *w)
{
    pi_mem_free(w->head);
    pi_mem_free(w->info);
    *w = (struct pi_gguf_writer){0};
}
