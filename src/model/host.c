/*
 * host.c - packs matrices for the processor when a stage needs them, and gives their memory back.
 * Each has its place among the packed weights, and a place that is not packed takes no memory.
 * Invariant: a matrix that is taken is packed. The processor's account has what is packed in
 * memory.
 */
#include "model/host.h"

#include "base/mem.h"
#include "device/device.h"

struct pi_host {
    struct pith_model *model;
    struct pi_plan_matrix *matrix; /* [n], owned */
    int32_t *n_user;               /* [n], owned */
    bool *packed;                  /* [n], owned */
    int64_t n;
    int32_t n_thread;
};

/* Whole pages of the system: no other matrix is in them. */
static size_t size_of(const struct pi_plan_matrix *what)
{
    return pi_align(pi_plan_size(what), PI_PLAN_ALIGN);
}

static void count(struct pith_model *model, int64_t bytes)
{
    model->counted += bytes;
    atomic_fetch_add(&pi_device_cpu.bytes, bytes);
}

pith_status pi_host_create(struct pi_plan *plan, struct pith_model *model, int32_t n_thread,
                           bool packed, pith_error *err)
{
    size_t n = (size_t)plan->n_matrix;
    struct pi_host *h = pi_mem_alloc(PI_MEM_MODEL, sizeof(*h));
    if (h == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a list of %zu matrices", n);
    model->host = h;
    h->model = model;
    h->n_user = pi_mem_alloc_n(PI_MEM_MODEL, n, sizeof(*h->n_user));
    h->packed = pi_mem_alloc_n(PI_MEM_MODEL, n, sizeof(*h->packed));
    if (h->n_user == NULL || h->packed == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a list of %zu matrices", n);
    h->matrix = plan->matrix;
    h->n = plan->n_matrix;
    h->n_thread = n_thread;
    plan->matrix = NULL;
    for (int64_t i = 0; i < h->n; i++) {
        h->packed[i] = packed;
        h->matrix[i].matrix->data = model->weights + h->matrix[i].place;
        if (packed && model->weights_file.data == NULL)
            count(model, (int64_t)size_of(&h->matrix[i]));
    }
    count(model, (int64_t)pi_mem_size(model->vectors));
    return PITH_OK;
}

void pi_host_free(struct pith_model *model)
{
    struct pi_host *h = model->host;
    if (h == NULL)
        return;
    count(model, -model->counted);
    pi_mem_free(h->matrix);
    pi_mem_free(h->n_user);
    pi_mem_free(h->packed);
    pi_mem_free(h);
    model->host = NULL;
}

static bool is_within(const struct pi_host *h, int64_t i, const void *begin, const void *end)
{
    uintptr_t at = (uintptr_t)h->matrix[i].matrix;
    return at >= (uintptr_t)begin && at < (uintptr_t)end;
}

/* The matrices of the range that are not packed, as a plan of their own; caller frees its list. */
static pith_status list_missing(const struct pi_host *h, const void *begin, const void *end,
                                struct pi_plan *plan, pith_error *err)
{
    *plan = (struct pi_plan){0};
    for (int64_t i = 0; i < h->n; i++)
        plan->n_matrix += is_within(h, i, begin, end) && !h->packed[i];
    if (plan->n_matrix == 0)
        return PITH_OK;
    plan->matrix = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)plan->n_matrix, sizeof(*plan->matrix));
    if (plan->matrix == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a list of %lld matrices",
                       (long long)plan->n_matrix);
    plan->n_matrix = 0;
    for (int64_t i = 0; i < h->n; i++)
        if (is_within(h, i, begin, end) && !h->packed[i]) {
            plan->matrix[plan->n_matrix++] = h->matrix[i];
            plan->weights_size += pi_plan_size(&h->matrix[i]);
        }
    return PITH_OK;
}

static pith_status pack(const struct pith_model *model, const struct pi_plan *plan, pith_error *err)
{
    struct pi_pack_target target = {.memory = model->weights};
    const pith_model_params params = {.n_thread = model->host->n_thread};
    struct pi_beside nothing = {.done = true};
    return pi_pack_all(plan, model, &params, &target, &nothing, err);
}

static void forget(struct pi_host *h, int64_t i)
{
    struct pith_model *model = h->model;
    size_t place = h->matrix[i].place, size = size_of(&h->matrix[i]);
    if (model->weights_file.data != NULL) {
        size_t offset = (size_t)(model->weights - (const uint8_t *)model->weights_file.data);
        pi_file_drop(&model->weights_file, offset + place, size);
        return;
    }
    pi_mem_drop(model->weights + place, size);
    count(model, -(int64_t)size);
    h->packed[i] = false;
}

pith_status pi_host_take(const struct pith_model *model, const void *begin, const void *end,
                         pith_error *err)
{
    struct pi_host *h = model->host;
    struct pi_plan plan;
    PI_TRY(list_missing(h, begin, end, &plan, err));
    pith_status status = plan.n_matrix > 0 ? pack(model, &plan, err) : PITH_OK;
    for (int64_t i = 0; i < h->n; i++)
        if (is_within(h, i, begin, end)) {
            if (!h->packed[i])
                count(h->model, (int64_t)size_of(&h->matrix[i]));
            h->packed[i] = true;
            h->n_user[i]++;
        }
    pi_mem_free(plan.matrix);
    if (status != PITH_OK) /* what was packed in part goes, too */
        pi_host_give(model, begin, end, true);
    return status;
}

void pi_host_give(const struct pith_model *model, const void *begin, const void *end, bool drop)
{
    struct pi_host *h = model->host;
    for (int64_t i = 0; i < h->n; i++)
        if (is_within(h, i, begin, end) && --h->n_user[i] == 0 && drop)
            forget(h, i);
}
