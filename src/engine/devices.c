/*
 * devices.c - the list of devices, for this library and its users: the processor, then the GPUs. A
 * GPU is opened when an engine first asks for it, and stays open. Listing opens none.
 */
#include "engine/devices.h"

#include <pthread.h>
#include <stdio.h>

#include "device/cuda/cuda.h"
#include "device/gpu/device.h"
#include "pith/inspect.h"

/* ---- GPUs ---- */

static pith_status open_cuda(int32_t i, struct pi_device **out, pith_error *err)
{
    struct gpu_card *card;
    PI_TRY(cuda_open(i, &card, err));
    *out = gpu_device_make(card);
    if (*out == NULL) {
        cuda_close(card);
        return pi_fail(err, PITH_NOMEM, "no memory for GPU %d", i);
    }
    return PITH_OK;
}

static const struct pi_gpu_list cuda_list = {cuda_count, cuda_describe, open_cuda};

static struct {
    pthread_mutex_t mutex; /* of all */
    const struct pi_gpu_list *list;
    struct pi_device *device[PI_GPU_MOST]; /* NULL: not opened */
    char name[PI_GPU_MOST][20];
    bool told[PI_GPU_MOST]; /* why it cannot be used */
    bool counted;
    int32_t n;
    pith_error why; /* there are none */
} gpus = {.mutex = PTHREAD_MUTEX_INITIALIZER, .list = &cuda_list};

static int32_t count_gpus(void)
{
    pthread_mutex_lock(&gpus.mutex);
    if (!gpus.counted)
        gpus.n = (int32_t)pi_min(gpus.list->count(&gpus.why), PI_GPU_MOST);
    for (int32_t i = 0; i < gpus.n && !gpus.counted; i++)
        snprintf(gpus.name[i], sizeof(gpus.name[i]), "cuda:%d", i);
    gpus.counted = true;
    pthread_mutex_unlock(&gpus.mutex);
    return gpus.n;
}

static pith_status open_gpu(int32_t i, struct pi_device **out, pith_error *err)
{
    struct pi_device **place = &gpus.device[i];
    pthread_mutex_lock(&gpus.mutex);
    pith_status status = *place == NULL ? gpus.list->open(i, place, err) : PITH_OK;
    *out = *place;
    pthread_mutex_unlock(&gpus.mutex);
    return status;
}

void pi_gpu_list_register(const struct pi_gpu_list *list)
{
    gpus.list = list != NULL ? list : &cuda_list;
    gpus.counted = false;
    memset(gpus.device, 0, sizeof(gpus.device));
    memset(gpus.told, 0, sizeof(gpus.told));
}

/* ---- the list ---- */

static pith_status fail_name(const char *name, pith_error *err)
{
    char more[sizeof(gpus.why.message) + 2] = "";
    int32_t n = count_gpus();
    if (n > 0)
        snprintf(more, sizeof(more), n > 1 ? ", cuda:0 .. cuda:%d" : ", cuda:%d", n - 1);
    else if (strncmp(name, "cuda", 4) == 0)
        snprintf(more, sizeof(more), "; %s", gpus.why.message);
    return pi_fail(err, PITH_INVALID, "device: \"%.64s\" is no device; there are auto, cpu%s", name,
                   more);
}

/* Says once of each GPU why it is not the one. */
static struct pi_device *best(void)
{
    struct pi_device *d = pi_device_of_tests();
    pith_error why;
    for (int32_t i = 0; d == NULL && i < count_gpus(); i++)
        if (open_gpu(i, &d, &why) != PITH_OK && !gpus.told[i]) {
            pi_log(PITH_LOG_WARN, "device=%s cannot be used: %s", gpus.name[i], why.message);
            gpus.told[i] = true;
        }
    return d != NULL ? d : &pi_device_cpu;
}

/* Number i of the GPUs by its name; -1: it is none. */
static int32_t number_of(const char *name)
{
    int32_t i = count_gpus() - 1;
    while (i >= 0 && strcmp(name, gpus.name[i]) != 0)
        i--;
    return i < 0 && gpus.n > 0 && strcmp(name, "cuda") == 0 ? 0 : i;
}

pith_status pi_device_find(const char *name, struct pi_device **out, pith_error *err)
{
    struct pi_device *of_tests = pi_device_of_tests();
    *out = NULL;
    if (name == NULL || strcmp(name, "auto") == 0)
        *out = best();
    else if (of_tests != NULL && strcmp(name, of_tests->name) == 0)
        *out = of_tests;
    else if (strcmp(name, pi_device_cpu.name) == 0)
        *out = &pi_device_cpu;
    if (*out != NULL)
        return PITH_OK;
    int32_t i = number_of(name);
    return i < 0 ? fail_name(name, err) : open_gpu(i, out, err);
}

/* ---- for users ---- */

static void fill(const char *name, const struct pi_device_report *report, pith_device_info *out)
{
    *out = (pith_device_info){
        .name = name, .total_bytes = report->total, .free_bytes = report->unused};
    snprintf(out->description, sizeof(out->description), "%s", report->text);
}

static void describe(struct pi_device *d, pith_device_info *out)
{
    struct pi_device_report report = {.total = -1, .unused = -1};
    d->describe(d, &report);
    fill(d->name, &report, out);
    out->used_bytes = atomic_load(&d->bytes);
    out->pinned_bytes = atomic_load(&d->pinned);
}

static void describe_gpu(int32_t i, pith_device_info *out)
{
    struct pi_device_report report = {.total = -1, .unused = -1};
    pthread_mutex_lock(&gpus.mutex);
    struct pi_device *d = gpus.device[i];
    if (d == NULL)
        gpus.list->describe(i, &report);
    pthread_mutex_unlock(&gpus.mutex);
    if (d != NULL)
        describe(d, out);
    else
        fill(gpus.name[i], &report, out);
}

int32_t pith_device_count(void)
{
    return 1 + count_gpus();
}

pith_status pith_device_get(int32_t i, pith_device_info *out)
{
    if (i < 0 || i >= pith_device_count())
        return PITH_NOT_FOUND;
    if (i == 0)
        describe(&pi_device_cpu, out);
    else
        describe_gpu(i - 1, out);
    return PITH_OK;
}

pith_status pith_device_find(const char *name, pith_device_info *out, pith_error *err)
{
    struct pi_device *d;
    PI_TRY(pi_device_find(name, &d, err));
    if (out != NULL)
        describe(d, out);
    return PITH_OK;
}

pith_status pith_device_measure(const char *device, int32_t n_thread, pith_machine *out,
                                pith_error *err)
{
    struct pi_device *d;
    PI_TRY(pi_device_find(device, &d, err));
    return d->measure != NULL ? d->measure(d, out, err) : pith_machine_measure(n_thread, out, err);
}
