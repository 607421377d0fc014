/*
 * pack.c - packs a model's matrices by plan, all of them in one loop over all threads. It must not
 * know the purpose of a matrix. A thread reads the rows of some groups into a buffer and packs them
 * from there. So memory holds one copy of the weights at the end, and little more on the way.
 *
 * Invariant: an item writes its own groups, so the result does not depend on threads or their
 * number.
 */
#include <stdatomic.h>

#include "base/mem.h"
#include "base/threads.h"
#include "model/load_turned.h"
#include "model/plan.h"
#include "tensor/dtype_table.h"

#define PACK_GROUPS 12 /* groups that one work item packs */
#define PROGRESS_STEP 0.01

struct pack_job {
    const struct pi_plan *plan;
    const struct pith_model *model;
    const pith_model_params *params;
    const struct pi_pack_target *target;
    struct pi_beside *beside; /* NULL: nothing is */
    int64_t *first_item;      /* [n_matrix + 1], owned */
    uint8_t *buffer;          /* [n_thread][buffer_size]: rows, then, for a file, packed groups;
                                 owned */
    size_t buffer_size, rows_size;
    struct pi_mem_fresh fresh; /* the memory that they go to */
    double told;               /* of the progress, on the loading thread */
    atomic_size_t packed;      /* bytes */
    atomic_bool stop;          /* packing stops, because of this failure: */
    atomic_llong unsound;      /* matrices before this one have scales that are some */
    atomic_bool cancelled;     /* by the caller */
    atomic_bool failed;        /* to read or to write: */
    pith_error why;
};

/* ---- one matrix ---- */

/* Matrices that are turned have no items in the loop. */
static int64_t items_of_slab(const struct pi_plan_matrix *what)
{
    return what->turned ? 0 : pi_ceil_div(what->matrix->n_group, PACK_GROUPS);
}

/* Bytes of a row in the file. */
static size_t row_size(const struct pi_plan_matrix *what)
{
    const struct pi_matrix *m = what->matrix;
    return pi_dtype_row_bytes(pi_dtype_find(m->type), m->n_col);
}

static void mark_unsound(struct pack_job *job, int64_t matrix)
{
    long long first = atomic_load(&job->unsound);
    while (matrix < first && !atomic_compare_exchange_weak(&job->unsound, &first, matrix)) {
    }
    atomic_store(&job->stop, true);
}

/* The first failure is the one that is told. */
static bool stop_unless(struct pack_job *job, pith_status status, const pith_error *why)
{
    if (status == PITH_OK)
        return true;
    if (!atomic_exchange(&job->failed, true))
        job->why = *why;
    atomic_store(&job->stop, true);
    return false;
}

/* n_row rows of a matrix to groups. */
static void pack_rows(struct pack_job *job, int64_t matrix, const uint8_t *rows, int64_t n_row,
                      uint8_t *out)
{
    const struct pi_plan_matrix *what = &job->plan->matrix[matrix];
    const struct pi_matrix *m = what->matrix;
    size_t group_rows = PI_GROUP * row_size(what);
    if (m->type == PI_DTYPE_MXFP4 && !pi_mxfp4_is_sound(rows, n_row * m->n_col))
        mark_unsound(job, matrix);
    for (int64_t r = 0; r < n_row; r += PI_GROUP, rows += group_rows, out += m->group_bytes)
        pi_matmul_pack_group(m->type, m->n_col, rows, (int32_t)pi_min(PI_GROUP, n_row - r), out);
}

/* Rows of a slab from the file. */
static bool read_rows(struct pack_job *job, const struct pi_plan_matrix *what, int64_t slab,
                      int64_t row, int64_t n_row, uint8_t *rows)
{
    const struct pith_model *model = job->model;
    size_t size = row_size(what);
    pith_status status = PITH_OK;
    pith_error reason, why;
    for (int64_t end = row + n_row, n; row < end && status == PITH_OK; row += n) {
        int64_t at = slab * what->slab_rows + pi_plan_row(&what->rows, row, &n);
        n = pi_min(n, end - row);
        status = pi_gguf_read(&model->parts, what->data + (size_t)at * size, rows, (size_t)n * size,
                              &reason);
        rows += (size_t)n * size;
    }
    if (status != PITH_OK)
        pi_file_fail(model->gguf.source, status, &reason, &why);
    return stop_unless(job, status, &why);
}

static void write_groups(struct pack_job *job, size_t place, const uint8_t *groups, size_t size)
{
    const struct pi_pack_target *target = job->target;
    pith_error why;
    pith_status status =
        pi_new_file_write_at(target->file, target->offset + place, groups, size, &why);
    stop_unless(job, status, &why);
}

static void pack_item(struct pack_job *job, int64_t matrix, int64_t item, int32_t thread)
{
    const struct pi_plan_matrix *what = &job->plan->matrix[matrix];
    const struct pi_matrix *m = what->matrix;
    int64_t n = items_of_slab(what), slab = item / n, first = item % n * PACK_GROUPS;
    int64_t last = pi_min(first + PACK_GROUPS, m->n_group), row = first * PI_GROUP;
    int64_t n_row = pi_min(last * PI_GROUP, m->n_row) - row;
    size_t place = what->place + (size_t)(slab * m->n_group + first) * m->group_bytes;
    size_t size = (size_t)(last - first) * m->group_bytes;
    uint8_t *memory = job->target->memory, *rows = job->buffer + (size_t)thread * job->buffer_size;
    uint8_t *out = memory != NULL ? memory + place : rows + job->rows_size;
    if (!read_rows(job, what, slab, row, n_row, rows))
        return;
    if (memory != NULL)
        pi_mem_fresh_touch(&job->fresh, out, size);
    pack_rows(job, matrix, rows, n_row, out);
    if (memory == NULL)
        write_groups(job, place, out, size);
    atomic_fetch_add(&job->packed, size);
}

/* ---- turned ones ---- */

static bool is_sound(const struct pi_plan_matrix *what)
{
    const struct pi_matrix *m = what->matrix;
    size_t row = pi_dtype_row_bytes(pi_dtype_find(what->in_file), m->n_row);
    for (int64_t i = 0; what->in_file == PI_DTYPE_MXFP4 && i < what->n_slab; i++)
        if (!pi_mxfp4_is_sound(what->data + (size_t)(i * what->slab_rows) * row,
                               (int64_t)m->n_col * m->n_row))
            return false;
    return true;
}

/* All slabs of a matrix whose rows are columns in the file, to out. */
static void turn_matrix(struct pack_job *job, int64_t matrix, int32_t n_thread, uint8_t *out)
{
    const struct pi_plan_matrix *what = &job->plan->matrix[matrix];
    struct pi_turned turned = {.data = what->data,
                               .in_file = what->in_file,
                               .slab_rows = what->slab_rows,
                               .n_slab = what->n_slab,
                               .matrix = what->matrix};
    size_t row = pi_dtype_row_bytes(pi_dtype_find(what->in_file), what->matrix->n_row);
    int64_t n_row = (what->n_slab - 1) * what->slab_rows + what->matrix->n_col;
    pith_error why;
    what->matrix->data = out;
    if (!is_sound(what))
        mark_unsound(job, matrix);
    else if (stop_unless(job, pi_turned_pack(&turned, n_thread, what->name, &why), &why))
        atomic_fetch_add(&job->packed, pi_plan_size(what));
    what->matrix->data = NULL;
    pi_gguf_drop(&job->model->parts, what->data, (size_t)n_row * row);
}

/* They are small. */
static void pack_turned(struct pack_job *job, int64_t matrix, int32_t n_thread)
{
    const struct pi_plan_matrix *what = &job->plan->matrix[matrix];
    size_t size = pi_plan_size(what);
    if (job->target->memory != NULL) {
        turn_matrix(job, matrix, n_thread, job->target->memory + what->place);
        return;
    }
    pith_error why;
    uint8_t *out = pi_mem_map_whole(PI_MEM_OTHER, size);
    pith_status status =
        out != NULL ? PITH_OK
                    : pi_fail(&why, PITH_NOMEM, "no memory to turn tensor \"%s\"", what->name);
    if (stop_unless(job, status, &why))
        turn_matrix(job, matrix, n_thread, out);
    if (!atomic_load(&job->stop))
        write_groups(job, what->place, out, size);
    pi_mem_unmap(PI_MEM_OTHER, out, size);
}

/* ---- all of them ---- */

/* On the loading thread, now and then. */
static void tell_progress(struct pack_job *job)
{
    const pith_model_params *params = job->params;
    double fraction = (double)atomic_load(&job->packed) / (double)job->plan->weights_size;
    if (params->progress == NULL || job->told >= 1.0 ||
        (fraction < job->told + PROGRESS_STEP && fraction < 1.0))
        return;
    job->told = fraction;
    if (params->progress(params->progress_user, fraction))
        return;
    atomic_store(&job->cancelled, true);
    atomic_store(&job->stop, true);
}

/* The matrix that an item is of. */
static int64_t matrix_of(const struct pack_job *job, int64_t item)
{
    int64_t low = 0, high = job->plan->n_matrix;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (job->first_item[middle] <= item)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Item 0 is the function of `beside`, where there is one. */
static void pack_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pack_job *job = ctx;
    int64_t skip = job->beside != NULL ? 1 : 0;
    for (int64_t i = begin; i < end; i++) {
        if (i < skip) {
            job->beside->fn(job->beside->ctx);
            continue;
        }
        if (atomic_load(&job->stop))
            return;
        int64_t matrix = matrix_of(job, i - skip);
        pack_item(job, matrix, i - skip - job->first_item[matrix], thread);
        if (thread == 0)
            tell_progress(job);
    }
}

/* Counts the items and allocates the threads' buffers. */
static pith_status prepare(struct pack_job *job, int32_t n_thread, pith_error *err)
{
    const struct pi_plan *plan = job->plan;
    size_t most = 0;
    job->first_item =
        pi_mem_alloc_n(PI_MEM_MODEL, (size_t)plan->n_matrix + 1, sizeof(*job->first_item));
    if (job->first_item == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %lld matrices", (long long)plan->n_matrix);
    for (int64_t i = 0; i < plan->n_matrix; i++) {
        const struct pi_plan_matrix *what = &plan->matrix[i];
        job->first_item[i + 1] = job->first_item[i] + what->n_slab * items_of_slab(what);
        if (what->turned)
            continue;
        size_t rows = pi_align(PACK_GROUPS * PI_GROUP * row_size(what), 64);
        size_t groups = PACK_GROUPS * what->matrix->group_bytes;
        job->rows_size = rows > job->rows_size ? rows : job->rows_size;
        most = groups > most ? groups : most;
    }
    job->buffer_size =
        pi_align(job->rows_size + (job->target->memory == NULL ? most : 0), PI_APART);
    job->buffer = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)n_thread, job->buffer_size);
    return job->buffer != NULL ? PITH_OK
                               : pi_fail(err, PITH_NOMEM, "no memory to pack %zu bytes at a time",
                                         job->buffer_size);
}

static pith_status result_of(const struct pack_job *job, pith_error *err)
{
    int64_t unsound = atomic_load(&job->unsound);
    if (unsound < job->plan->n_matrix)
        return pi_fail(err, PITH_FORMAT,
                       "tensor \"%s\": a scale of MXFP4 is above 2^%d, no weight's",
                       job->plan->matrix[unsound].name, PI_MXFP4_MOST - 128);
    if (atomic_load(&job->cancelled))
        return pi_fail(err, PITH_CANCELLED, "loading was cancelled");
    if (atomic_load(&job->failed))
        return pi_fail(err, job->why.status, "%s", job->why.message);
    return PITH_OK;
}

pith_status pi_pack_all(const struct pi_plan *plan, const struct pith_model *model,
                        const pith_model_params *params, const struct pi_pack_target *target,
                        struct pi_beside *beside, pith_error *err)
{
    int32_t n_thread = params->n_thread > 0 ? params->n_thread : pi_thread_count();
    struct pack_job job = {.plan = plan,
                           .model = model,
                           .params = params,
                           .target = target,
                           .beside = beside->done ? NULL : beside,
                           .fresh = pi_mem_fresh(target->memory, plan->places_size),
                           .unsound = plan->n_matrix};
    pith_status status = prepare(&job, n_thread, err);
    if (status == PITH_OK) {
        int64_t n_item = job.first_item[plan->n_matrix] + (job.beside != NULL ? 1 : 0);
        for (int64_t i = 0; i < plan->n_matrix && !atomic_load(&job.stop); i++)
            if (plan->matrix[i].turned)
                pack_turned(&job, i, n_thread);
        pi_parallel_items(n_thread, n_item, pack_items, &job);
        beside->done = true;
        if (!atomic_load(&job.stop))
            tell_progress(&job);
        status = result_of(&job, err);
    }
    for (int64_t i = 0; i < plan->n_matrix && target->memory != NULL; i++)
        plan->matrix[i].matrix->data = target->memory + plan->matrix[i].place;
    pi_mem_free(job.first_item);
    pi_mem_free(job.buffer);
    return status;
}
