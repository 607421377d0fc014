/*
 * gguf_parts.c - the files of one model. Each is parsed for itself and trusted no more than
 * another: its number, the count and the tensors must be what the first one promises. Tensors of
 * all parts then stand in one list, in the order of the parts.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "file/gguf_parts.h"

#define MAX_PART 4096
#define KEY_NO "split.no"
#define KEY_COUNT "split.count"
#define KEY_TENSORS "split.tensors.count"
#define END_LEN 40 /* room for "-00001-of-00003.gguf" */

/* The place of a file among the parts of a model. */
struct place {
    uint32_t no;    /* from 0 on */
    uint32_t count; /* 0 or 1: it is whole */
};

static pith_status read_place(const struct pi_gguf *g, struct place *out, pith_error *err)
{
    *out = (struct place){0};
    pith_status status = pi_gguf_u32(g, KEY_COUNT, &out->count, err);
    if (status != PITH_OK && status != PITH_NOT_FOUND)
        return status;
    status = pi_gguf_u32(g, KEY_NO, &out->no, err);
    if (status != PITH_OK && status != PITH_NOT_FOUND)
        return status;
    if (out->count > MAX_PART)
        return pi_fail(err, PITH_FORMAT, "%s: %s: %u parts are more than %d", g->source, KEY_COUNT,
                       out->count, MAX_PART);
    return PITH_OK;
}

static void end_of(uint32_t no, uint32_t count, char out[END_LEN])
{
    snprintf(out, END_LEN, "-%05u-of-%05u.gguf", (unsigned)no + 1, (unsigned)count);
}

/* The path of part no, from that of the first; caller frees. */
static pith_status path_of(const char *first, const struct place *place, uint32_t no, char **out,
                           pith_error *err)
{
    char end[END_LEN];
    size_t len = strlen(first), end_len;
    end_of(0, place->count, end);
    end_len = strlen(end);
    if (len < end_len || strcmp(first + len - end_len, end) != 0)
        return pi_fail(err, PITH_FORMAT,
                       "%s: %s is %u, but the name does not end in %s, from which the names of the "
                       "other parts follow",
                       first, KEY_COUNT, place->count, end);
    *out = pi_mem_alloc(PI_MEM_OTHER, len + 1);
    if (*out == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a path");
    end_of(no, place->count, end);
    memcpy(*out, first, len - end_len);
    memcpy(*out + len - end_len, end, end_len + 1);
    return PITH_OK;
}

/* ---- one list of tensors ---- */

static int compare_names(const void *a, const void *b)
{
    const struct pi_str *x = &((const struct pi_gguf_name *)a)->name;
    const struct pi_str *y = &((const struct pi_gguf_name *)b)->name;
    int order = memcmp(x->data, y->data, x->len < y->len ? x->len : y->len);
    return order != 0 ? order : (x->len > y->len) - (x->len < y->len);
}

/* Appends the tensors of a part. */
static pith_status take_tensors(struct pi_gguf *g, const struct pi_gguf *part, pith_error *err)
{
    size_t n = (size_t)(g->n_tensor + part->n_tensor);
    struct pi_gguf_tensor *tensor = pi_mem_alloc_n(PI_MEM_MODEL, n, sizeof(*tensor));
    struct pi_gguf_name *name = pi_mem_alloc_n(PI_MEM_MODEL, n, sizeof(*name));
    if (n > 0 && (tensor == NULL || name == NULL)) {
        pi_mem_free(tensor);
        pi_mem_free(name);
        return pi_fail(err, PITH_NOMEM, "no memory for %zu tensors", n);
    }
    for (size_t i = 0; i < n; i++) {
        bool old = i < (size_t)g->n_tensor;
        tensor[i] = old ? g->tensor[i] : part->tensor[i - (size_t)g->n_tensor];
        name[i] = (struct pi_gguf_name){tensor[i].name, (int64_t)i};
    }
    pi_mem_free(g->tensor);
    pi_mem_free(g->tensor_name);
    g->tensor = tensor;
    g->tensor_name = name;
    g->n_tensor = (int64_t)n;
    return PITH_OK;
}

/* Sorts the index of all parts' tensors. */
static pith_status index_tensors(struct pi_gguf *g, pith_error *err)
{
    qsort(g->tensor_name, (size_t)g->n_tensor, sizeof(*g->tensor_name), compare_names);
    for (int64_t i = 1; i < g->n_tensor; i++)
        if (compare_names(&g->tensor_name[i - 1], &g->tensor_name[i]) == 0)
            return pi_fail(err, PITH_FORMAT, "%s: tensor \"%.*s\" is in two parts", g->source,
                           (int)g->tensor_name[i].name.len, g->tensor_name[i].name.data);
    uint32_t n = (uint32_t)g->n_tensor;
    pith_status status = pi_gguf_u32(g, KEY_TENSORS, &n, err);
    if (status != PITH_OK && status != PITH_NOT_FOUND)
        return status;
    if (n != g->n_tensor)
        return pi_fail(err, PITH_FORMAT, "%s: %s is %u, and the parts have %lld", g->source,
                       KEY_TENSORS, n, (long long)g->n_tensor);
    return PITH_OK;
}

/* ---- the files ---- */

static pith_status open_part(const char *path, const struct place *whole, uint32_t no,
                             struct pi_gguf *g, struct pi_gguf_parts *parts, pith_error *err)
{
    struct pi_gguf part = {0};
    struct place place;
    struct pi_file *file = &parts->file[parts->n];
    PI_TRY(pi_file_map(path, file, err));
    parts->n++;
    parts->size += file->size;
    PI_TRY(pi_gguf_parse(&part, file->data, file->size, path, err));
    pith_status status = read_place(&part, &place, err);
    if (status == PITH_OK && (place.no != no || place.count != whole->count))
        status = pi_fail(err, PITH_FORMAT, "%s: it is part %u of %u, where part %u of %u is asked",
                         path, place.no + 1, place.count, no + 1, whole->count);
    if (status == PITH_OK)
        status = take_tensors(g, &part, err);
    pi_gguf_free(&part);
    return status;
}

static pith_status open_others(const char *path, const struct place *place, struct pi_gguf *g,
                               struct pi_gguf_parts *parts, pith_error *err)
{
    char end[END_LEN];
    end_of(0, place->count, end);
    if (place->no != 0)
        return pi_fail(err, PITH_FORMAT, "%s: it is part %u of %u: give the first, ...%s", path,
                       place->no + 1, place->count, end);
    for (uint32_t no = 1; no < place->count; no++) {
        char *other;
        PI_TRY(path_of(path, place, no, &other, err));
        pith_status status = open_part(other, place, no, g, parts, err);
        pi_mem_free(other);
        PI_TRY(status);
    }
    return index_tensors(g, err);
}

static pith_status open_all(const char *path, struct pi_gguf *g, struct pi_gguf_parts *parts,
                            pith_error *err)
{
    struct pi_file first = {0};
    struct place place;
    PI_TRY(pi_file_map(path, &first, err));
    pith_status status = pi_gguf_parse(g, first.data, first.size, path, err);
    if (status == PITH_OK)
        status = read_place(g, &place, err);
    size_t n = status == PITH_OK ? (size_t)pi_max(place.count, 1) : 1;
    parts->file = pi_mem_alloc_n(PI_MEM_MODEL, n, sizeof(*parts->file));
    if (parts->file == NULL) {
        pi_file_unmap(&first);
        return pi_fail(err, PITH_NOMEM, "no memory for a list of %zu files", n);
    }
    parts->file[0] = first;
    parts->n = 1;
    parts->size = first.size;
    PI_TRY(status);
    return place.count > 1 ? open_others(path, &place, g, parts, err) : PITH_OK;
}

pith_status pi_gguf_open(const char *path, struct pi_gguf *g, struct pi_gguf_parts *parts,
                         pith_error *err)
{
    pith_status status = open_all(path, g, parts, err);
    if (status != PITH_OK) {
        pi_gguf_free(g);
        pi_gguf_parts_free(parts);
    }
    return status;
}

void pi_gguf_parts_free(struct pi_gguf_parts *parts)
{
    for (int32_t i = 0; i < parts->n; i++)
        pi_file_unmap(&parts->file[i]);
    pi_mem_free(parts->file);
    *parts = (struct pi_gguf_parts){0};
}

const struct pi_file *pi_gguf_file(const struct pi_gguf_parts *parts, const uint8_t *at,
                                   size_t *offset)
{
    for (int32_t i = 0; i < parts->n; i++) {
        const struct pi_file *file = &parts->file[i];
        if (at < file->data || at >= file->data + file->size)
            continue;
        *offset = (size_t)(at - file->data);
        return file;
    }
    return NULL;
}

pith_status pi_gguf_read(const struct pi_gguf_parts *parts, const uint8_t *at, void *data,
                         size_t size, pith_error *err)
{
    size_t offset;
    const struct pi_file *file = pi_gguf_file(parts, at, &offset);
    if (file == NULL)
        return pi_fail(err, PITH_INTERNAL, "no file has these bytes");
    return pi_file_read(file, offset, data, size, err);
}

void pi_gguf_drop(const struct pi_gguf_parts *parts, const uint8_t *at, size_t size)
{
    size_t offset;
    const struct pi_file *file = pi_gguf_file(parts, at, &offset);
    if (file != NULL)
        pi_file_drop(file, offset, size);
}
