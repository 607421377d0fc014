/*
 * weights_file.c - the file of packed weights: its head, its checks, and how it is made. It must
 * not know how weights are packed.
 *
 * Invariant: a file is mapped only where its head names this model's file, this layout of packed
 * weights and these matrices. Its length must also be as the head says. A file appears under its
 * name only when it is whole and on disk.
 */
#include <stdio.h>

#include "base/cursor.h"
#include "base/mem.h"
#include "base/ranks.h"
#include "file/sum.h"
#include "model/weights_file.h"

#define SAMPLE_SIZE 4096    /* bytes at the start of a tensor that its identity is made of */
#define DATA_ALIGN 0x200000 /* of the weights in the file: the start of a huge page */
#define SUFFIX ".packed"

/* Places of the fixed part. */
enum { AT_VERSION = 8, AT_LAYOUT = 16, AT_SOURCE = 24 };

/* ---- the head ---- */

static void add_number(struct pi_sum *sum, uint64_t value)
{
    uint8_t bytes[8];
    pi_put(&(struct pi_cursor){.out = bytes}, value, sizeof(bytes));
    pi_sum_add(sum, bytes, sizeof(bytes));
}

/* Where a tensor's bytes lie, counted from the start of the first file. */
static uint64_t place_of(const struct pith_model *model, const uint8_t *data)
{
    size_t at = 0;
    const struct pi_file *file = pi_gguf_file(&model->parts, data, &at);
    for (const struct pi_file *f = model->parts.file; file != NULL && f < file; f++)
        at += f->size;
    return at;
}

static size_t sample_of(const struct pi_gguf_tensor *t)
{
    return t->size < SAMPLE_SIZE ? t->size : SAMPLE_SIZE;
}

/* A checksum that tells this model's files from others. It covers their sizes and times of change,
   and everything before the first tensor's bytes. It also covers each tensor's name, shape, place
   and first bytes. It prefetches all samples first, so that a disk reads them together. */
static uint64_t sum_of_source(const struct pith_model *model)
{
    struct pi_sum sum;
    const struct pi_gguf *g = &model->gguf;
    pi_sum_start(&sum);
    for (int64_t i = 0; i < g->n_tensor; i++) {
        size_t at;
        const struct pi_file *file = pi_gguf_file(&model->parts, g->tensor[i].data, &at);
        if (file != NULL)
            pi_file_want(file, at, sample_of(&g->tensor[i]));
    }
    add_number(&sum, (uint64_t)model->parts.n);
    for (int32_t i = 0; i < model->parts.n; i++) {
        add_number(&sum, model->parts.file[i].size);
        add_number(&sum, (uint64_t)model->parts.file[i].changed_ns);
    }
    pi_sum_add(&sum, model->parts.file[0].data, g->data_offset);
    for (int64_t i = 0; i < g->n_tensor; i++) {
        const struct pi_gguf_tensor *t = &g->tensor[i];
        add_number(&sum, t->name.len);
        pi_sum_add(&sum, t->name.data, t->name.len);
        add_number(&sum, t->type);
        for (int d = 0; d < 4; d++)
            add_number(&sum, (uint64_t)t->ne[d]);
        add_number(&sum, place_of(model, t->data));
        pi_sum_add(&sum, t->data, sample_of(t));
    }
    return pi_sum_value(&sum);
}

/* A matrix: types, rows, columns, slabs, its place, its size, and which rows of the source it
   is. */
static void put_entry(struct pi_cursor *c, const struct pith_model *model,
                      const struct pi_plan_matrix *what)
{
    const struct pi_matrix *m = what->matrix;
    pi_put(c, (uint64_t)m->type | (uint64_t)what->in_file << 8 | (uint64_t)what->turned << 16, 4);
    pi_put(c, (uint64_t)m->n_row, 4);
    pi_put(c, (uint64_t)m->n_col, 4);
    pi_put(c, (uint64_t)what->n_slab, 4);
    pi_put(c, what->place, 8);
    pi_put(c, pi_plan_size(what), 8);
    pi_put(c, place_of(model, what->data), 8);
    pi_put(c, (uint64_t)what->slab_rows, 8);
}

pith_status pi_weights_head_make(const struct pi_plan *plan, const struct pith_model *model,
                                 struct pi_weights_head *out, pith_error *err)
{
    size_t table = (size_t)plan->n_matrix * PI_WEIGHTS_ENTRY, end = PI_WEIGHTS_FIXED + table;
    *out = (struct pi_weights_head){.size = end + PI_WEIGHTS_SUM};
    out->offset = pi_align(out->size, DATA_ALIGN);
    out->file_size = out->offset + plan->places_size;
    out->data = pi_mem_alloc(PI_MEM_MODEL, out->size);
    if (out->data == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a table of %lld matrices",
                       (long long)plan->n_matrix);
    struct pi_cursor c = {.out = out->data};
    pi_put_bytes(&c, PI_WEIGHTS_MAGIC, AT_VERSION);
    pi_put(&c, PI_WEIGHTS_VERSION, 4);
    pi_put(&c, (uint64_t)plan->n_matrix, 4);
    pi_put(&c, pi_matmul_layout_sum(), 8);
    pi_put(&c, sum_of_source(model), 8);
    pi_put(&c, out->file_size, 8);
    pi_put(&c, out->offset, 8);
    c.at = PI_WEIGHTS_FIXED; /* the bytes between are zero */
    for (int64_t i = 0; i < plan->n_matrix; i++)
        put_entry(&c, model, &plan->matrix[i]);
    pi_put(&c, pi_sum_of(out->data, end), PI_WEIGHTS_SUM);
    return PITH_OK;
}

void pi_weights_head_free(struct pi_weights_head *head)
{
    pi_mem_free(head->data);
    *head = (struct pi_weights_head){0};
}

/* ---- the check ---- */

/* Whether two heads have the same bytes at a place of the fixed part. */
static bool same(const uint8_t *data, const struct pi_weights_head *head, size_t at, size_t size)
{
    return memcmp(data + at, head->data + at, size) == 0;
}

/* Names the first field that differs. */
pith_status pi_weights_check(const void *bytes, size_t size, const struct pi_weights_head *head,
                             bool *ours, pith_error *err)
{
    const uint8_t *data = bytes;
    const size_t magic_size = AT_VERSION;
    *ours = memcmp(data, PI_WEIGHTS_MAGIC, size < magic_size ? size : magic_size) == 0;
    if (!*ours)
        return pi_fail(err, PITH_FORMAT, "it does not begin as a file of packed weights");
    if (size < head->size)
        return pi_fail(err, PITH_FORMAT, "it ends at byte %zu, inside its head", size);
    if (!same(data, head, AT_VERSION, 4))
        return pi_fail(err, PITH_FORMAT, "its version is %u, not %d",
                       (unsigned)pi_get(&(struct pi_cursor){.in = data, .at = AT_VERSION}, 4),
                       PI_WEIGHTS_VERSION);
    if (!same(data, head, AT_LAYOUT, 8))
        return pi_fail(err, PITH_FORMAT, "its weights are packed in another way");
    if (!same(data, head, AT_SOURCE, 8))
        return pi_fail(err, PITH_FORMAT, "it was made from another model, or before that changed");
    if (memcmp(data, head->data, head->size) != 0)
        return pi_fail(err, PITH_FORMAT, "its head is damaged, or of another release");
    if (size != head->file_size)
        return pi_fail(err, PITH_FORMAT, "it has %zu bytes of %zu", size, head->file_size);
    return PITH_OK;
}

/* ---- the file ---- */

/* Where the packed weights of the model at `model_path` are kept; caller frees. Each rank has a
   file of its own. */
static char *path_of(const char *model_path, const char *folder)
{
    const char *slash = strrchr(model_path, '/');
    const char *name = slash != NULL && folder[0] != '\0' ? slash + 1 : model_path;
    char part[32] = "";
    if (pi_ranks()->n_rank > 1)
        snprintf(part, sizeof(part), ".%d-of-%d", pi_ranks()->rank, pi_ranks()->n_rank);
    size_t size = strlen(folder) + 1 + strlen(name) + strlen(part) + sizeof(SUFFIX);
    char *path = pi_mem_alloc(PI_MEM_OTHER, size);
    if (path != NULL)
        snprintf(path, size, "%s%s%s%s%s", folder, folder[0] != '\0' ? "/" : "", name, part,
                 SUFFIX);
    return path;
}

static void use(const struct pi_plan *plan, struct pith_model *model, const struct pi_file *file,
                size_t offset)
{
    model->weights_file = *file;
    model->weights = (uint8_t *)file->data + offset; /* packed weights are never written to */
    pi_file_huge(file, offset, model->experts_at);   /* of experts more than one would be read */
    for (int64_t i = 0; i < plan->n_matrix; i++)
        plan->matrix[i].matrix->data = model->weights + plan->matrix[i].place;
}

/* Maps the file where it fits. NOT_FOUND: there is none. FORMAT: it does not fit and may be made
   anew; IO: it cannot be. */
static pith_status map(const struct pi_plan *plan, struct pith_model *model, const char *path,
                       const struct pi_weights_head *head, pith_error *err)
{
    struct pi_file file = {0};
    pith_error why;
    bool ours = true;
    if (!pi_file_exists(path))
        return pi_fail(err, PITH_NOT_FOUND, "%s: there is no such file", path);
    PI_TRY(pi_file_map(path, &file, err));
    pith_status status = pi_weights_check(file.data, file.size, head, &ours, &why);
    if (status == PITH_OK) {
        use(plan, model, &file, head->offset);
        return PITH_OK;
    }
    pi_file_unmap(&file);
    return pi_file_fail(path, ours ? status : PITH_IO, &why, err);
}

static pith_status make(const struct pi_plan *plan, const struct pith_model *model,
                        const char *path, const struct pi_weights_head *head,
                        const pith_model_params *params, struct pi_beside *beside, pith_error *err)
{
    struct pi_new_file file;
    PI_TRY(pi_new_file_open(path, &file, err));
    struct pi_pack_target target = {.file = &file, .offset = head->offset};
    pith_status status = pi_new_file_write_at(&file, 0, head->data, head->size, err);
    if (status == PITH_OK)
        status = pi_new_file_resize(&file, head->file_size, err);
    if (status == PITH_OK)
        status = pi_pack_all(plan, model, params, &target, beside, err);
    if (status == PITH_OK)
        status = pi_new_file_commit(&file, err);
    pi_new_file_discard(&file);
    return status;
}

/* The file as it is, or made now. */
static pith_status map_or_make(const struct pi_plan *plan, struct pith_model *model,
                               const char *path, const struct pi_weights_head *head,
                               const pith_model_params *params, struct pi_beside *beside,
                               pith_error *err)
{
    pith_status status = map(plan, model, path, head, err);
    if (status == PITH_OK || status == PITH_IO)
        return status;
    if (status != PITH_NOT_FOUND)
        pi_log(PITH_LOG_WARN, "weights: %s: it is made again", err->message);
    PI_TRY(make(plan, model, path, head, params, beside, err));
    pi_file_forget(path);
    status = map(plan, model, path, head, err);
    return status == PITH_OK ? PITH_OK : pi_fail(err, PITH_IO, "%s", err->message);
}

pith_status pi_weights_file(const struct pi_plan *plan, struct pith_model *model, const char *path,
                            const pith_model_params *params, struct pi_beside *beside,
                            pith_error *err)
{
    struct pi_weights_head head = {0};
    pith_error why = {0};
    char *file = path_of(path, params->cache_weights);
    pith_status status = file != NULL ? pi_weights_head_make(plan, model, &head, &why)
                                      : pi_fail(&why, PITH_NOMEM, "no memory for a path");
    if (status == PITH_OK)
        status = map_or_make(plan, model, file, &head, params, beside, &why);
    if (status == PITH_IO)
        pi_log(PITH_LOG_WARN, "weights: %s: they are packed into memory", why.message);
    if (status != PITH_OK && err != NULL)
        *err = why;
    pi_weights_head_free(&head);
    pi_mem_free(file);
    return status;
}
