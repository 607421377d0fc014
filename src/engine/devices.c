/*
 * devices.c - the list of devices, for this library and its users: the processor, then the GPUs. A
 * GPU is opened when it is first asked for, and stays open.
 */
#include "engine/devices.h"

#include <pthread.h>
#include <stdio.h>

#include "device/cuda/cuda.h"
#include "device/gpu/device.h"
#include "pith/inspect.h"

enum { MOST_GPU = 16 };

/* ---- GPUs ---- */

static struct {
    pthread_mutex_t mutex; /* of the devices; the rest is set once */
    struct pi_device *device[MOST_GPU];
    pthread_once_t once;
    int32_t n;
    pith_error why; /* there are none */
} gpus = {.mutex = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static void look_for_gpus(void)
{
    gpus.n = (int32_t)pi_min(cuda_count(&gpus.why), MOST_GPU);
}

static int32_t count_gpus(void)
{
    pthread_once(&gpus.once, look_for_gpus);
    return gpus.n;
}

static pith_status open_gpu(int32_t i, struct pi_device **out, pith_error *err)
{
    struct gpu_driver *driver;
    PI_TRY(cuda_open(i, &driver, err));
    *out = gpu_device_make(driver);
    if (*out == NULL) {
        cuda_close(driver);
        return pi_fail(err, PITH_NOMEM, "no memory for GPU %d", i);
    }
    return PITH_OK;
}

static pith_status gpu(int32_t i, struct pi_device **out, pith_error *err)
{
    struct pi_device **place = &gpus.device[i];
    pthread_mutex_lock(&gpus.mutex);
    pith_status status = *place == NULL ? open_gpu(i, place, err) : PITH_OK;
    *out = *place;
    pthread_mutex_unlock(&gpus.mutex);
    return status;
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

static struct pi_device *best(void)
{
    struct pi_device *d = pi_device_of_tests();
    for (int32_t i = 0; i < count_gpus() && d == NULL; i++)
        gpu(i, &d, NULL);
    return d != NULL ? d : &pi_device_cpu;
}

/* Number i of the GPUs by its name; -1: it is none. */
static int32_t number_of(const char *name)
{
    for (int32_t i = 0; i < count_gpus(); i++) {
        char one[16];
        snprintf(one, sizeof(one), "cuda:%d", i);
        if (strcmp(name, one) == 0 || (i == 0 && strcmp(name, "cuda") == 0))
            return i;
    }
    return -1;
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
    return i < 0 ? fail_name(name, err) : gpu(i, out, err);
}

/* ---- for users ---- */

static void describe(struct pi_device *d, pith_device_info *out)
{
    struct pi_device_report report = {.total = -1, .unused = -1};
    d->describe(d, &report);
    *out = (pith_device_info){.name = d->name,
                              .total_bytes = report.total,
                              .free_bytes = report.unused,
                              .used_bytes = atomic_load(&d->bytes)};
    snprintf(out->description, sizeof(out->description), "%s", report.text);
}

int32_t pith_device_count(void)
{
    return 1 + count_gpus();
}

pith_status pith_device_get(int32_t i, pith_device_info *out)
{
    struct pi_device *d = &pi_device_cpu;
    if (i < 0 || i >= pith_device_count())
        return PITH_NOT_FOUND;
    if (i > 0)
        PI_TRY(gpu(i - 1, &d, NULL));
    describe(d, out);
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
