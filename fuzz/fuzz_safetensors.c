/*
 * fuzz_safetensors.c - the safetensors reader and the reader of recorded tensors on any bytes, as
 * they are and with the header's length made right. A finding is a sanitizer's report, a leak, a
 * refusal without a sentence, or an array that is not what its header says.
 */
#include <stdlib.h>
#include <string.h>

#include "eval/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LENGTH_SIZE 8

/* Every array lies within the file and is as long as its shape says; values can be read. */
static void touch(const struct safetensor *t, const uint8_t *data, size_t size)
{
    const uint8_t *begin = t->data;
    size_t value_size = safetensors_dtype_size(t->dtype), n = t->size / value_size;
    uint64_t len = 1;
    double real;
    float narrow;
    int64_t whole;
    if (begin < data || t->size > size || begin > data + (size - t->size))
        abort();
    for (int32_t i = 0; i < t->n_dim; i++)
        len *= (uint64_t)t->dim[i];
    if (len != n || t->size % value_size != 0)
        abort();
    for (size_t i = 0; i < n; i++) {
        bool is_real = safetensor_read_f64(t, (int64_t)i, 1, &real);
        if (is_real != safetensor_read_f32(t, (int64_t)i, 1, &narrow))
            abort();
        if (is_real && safetensor_read_i64(t, (int64_t)i, 1, &whole))
            abort();
    }
    if (safetensor_read_f64(t, (int64_t)n, 1, &real) || safetensor_read_i64(t, -1, 1, &whole))
        abort();
}

static void parse(const uint8_t *data, size_t size)
{
    struct safetensors st;
    pith_error err = {0};
    pith_status status = safetensors_parse("file", data, size, &st, &err);
    if (status != PITH_OK && (err.message[0] == 0 || err.status != status || st.tensor != NULL))
        abort();
    for (size_t i = 0; i < st.n_tensor; i++) {
        touch(&st.tensor[i], data, size);
        if (safetensors_find(&st, st.tensor[i].name) != &st.tensor[i])
            abort();
    }
    for (size_t i = 0; i < st.n_meta; i++)
        if (safetensors_meta(&st, st.meta[i].key) == NULL)
            abort();
    safetensors_free(&st);
}

/* Checks the promises of a record: rows of every token, ascending positions. */
static void open_record(const uint8_t *data, size_t size)
{
    struct eval_record record;
    pith_error err = {0};
    float row;
    pith_status status = eval_record_parse("file", data, size, &record, &err);
    if (status != PITH_OK) {
        if (err.message[0] == 0 || err.status != status || record.layer != NULL)
            abort();
        return;
    }
    if (record.n_token < 1 || record.n_head % record.n_head_kv != 0)
        abort();
    for (int32_t i = 1; i < record.n_token; i++)
        if (record.position[i] <= record.position[i - 1])
            abort();
    for (int32_t l = 0; l < record.n_layer; l++) {
        const struct eval_record_layer *layer = &record.layer[l];
        int64_t n = record.n_token;
        if (!safetensor_read_f32(layer->q, n * record.n_head * record.dim_k - 1, 1, &row) ||
            !safetensor_read_f32(layer->k, n * record.n_head_kv * record.dim_k - 1, 1, &row) ||
            !safetensor_read_f32(layer->v, n * record.n_head_kv * record.dim_v - 1, 1, &row))
            abort();
    }
    eval_record_close(&record);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse(data, size);
    open_record(data, size);
    if (size <= LENGTH_SIZE)
        return 0;
    /* The header ends at the last brace, wherever the fuzzer moved it. */
    size_t end = size;
    while (end > LENGTH_SIZE && data[end - 1] != '}')
        end--;
    uint8_t *sealed = malloc(size);
    if (sealed == NULL)
        return 0;
    memcpy(sealed, data, size);
    for (int i = 0; i < LENGTH_SIZE; i++)
        sealed[i] = (uint8_t)((uint64_t)(end - LENGTH_SIZE) >> (8 * i));
    parse(sealed, size);
    open_record(sealed, size);
    free(sealed);
    return 0;
}
