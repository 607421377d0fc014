/*
 * test_devices.c - the list of devices, with GPUs of its own: what is named, what is opened, what
 * is said.
 */
#include "engine/devices.h"
#include "testing.h"

#include <stdio.h>

#include "pith/pith.h"
#include "status.h"

static int32_t n_gpu, n_broken, n_opened;
static struct pi_device opened[PI_GPU_MOST];
static char said[256];
static int32_t n_said;

static int32_t count(pith_error *why)
{
    if (n_gpu == 0)
        pi_fail(why, PITH_UNSUPPORTED, "no GPU here: it is a test");
    return n_gpu;
}

static void describe(int32_t i, struct pi_device_report *out)
{
    snprintf(out->text, sizeof(out->text), "GPU of a test");
    out->total = 1000 + i;
}

/* The first ones are broken. */
static pith_status open_one(int32_t i, struct pi_device **out, pith_error *why)
{
    static char name[PI_GPU_MOST][16];
    if (i < n_broken)
        return pi_fail(why, PITH_UNSUPPORTED, "GPU %d is of paper", i);
    n_opened++;
    snprintf(name[i], sizeof(name[i]), "cuda:%d", i);
    memcpy(&opened[i], &pi_device_cpu, sizeof(opened[i]));
    opened[i].name = name[i];
    *out = &opened[i];
    return PITH_OK;
}

static void hear(void *user, pith_log_level level, const char *line)
{
    (void)user;
    if (level != PITH_LOG_WARN)
        return;
    n_said++;
    snprintf(said, sizeof(said), "%s", line);
}

static const struct pi_gpu_list list = {count, describe, open_one};

static void gpus(int32_t n, int32_t broken)
{
    n_gpu = n;
    n_broken = broken;
    n_opened = n_said = 0;
    pi_device_register(NULL);
    pi_gpu_list_register(&list);
    pith_log_set(hear, NULL);
}

static const char *name_of(const char *name)
{
    pith_device_info info;
    pith_status status = pith_device_find(name, &info, &err);
    check(status, &err);
    return info.name;
}

TEST(what_is_listed_is_not_opened)
{
    pith_device_info info;
    gpus(2, 0);
    assert_int_equal(pith_device_count(), 3);
    check(pith_device_get(2, &info), NULL);
    assert_string_equal(info.name, "cuda:1");
    assert_string_equal(info.description, "GPU of a test");
    assert_int_equal(info.total_bytes, 1001);
    assert_int_equal(info.free_bytes, -1);
    assert_int_equal(pith_device_get(3, &info), PITH_NOT_FOUND);
    assert_int_equal(n_opened, 0);
    assert_string_equal(name_of("cpu"), "cpu");
    assert_int_equal(n_opened, 0);
}

TEST(auto_is_the_first_that_can_be_used)
{
    gpus(3, 2);
    assert_string_equal(name_of(NULL), "cuda:2");
    assert_int_equal(n_said, 2);
    assert_string_equal(said, "device=cuda:1 cannot be used: GPU 1 is of paper");
    assert_string_equal(name_of("auto"), "cuda:2");
    assert_int_equal(n_said, 2);
    assert_int_equal(n_opened, 1);
    gpus(1, 1);
    assert_string_equal(name_of("auto"), "cpu");
    assert_int_equal(n_said, 1);
    gpus(0, 0);
    assert_string_equal(name_of("auto"), "cpu");
    assert_int_equal(n_said, 0);
}

TEST(names_are_found_or_refused_in_a_sentence)
{
    gpus(2, 1);
    assert_string_equal(name_of("cuda:1"), "cuda:1");
    assert_int_equal(pith_device_find("cuda", NULL, &err), PITH_UNSUPPORTED);
    assert_string_equal(err.message, "GPU 0 is of paper");
    assert_int_equal(pith_device_find("cuda:2", NULL, &err), PITH_INVALID);
    assert_string_equal(err.message,
                        "device: \"cuda:2\" is no device; there are auto, cpu, cuda:0 .. cuda:1");
    gpus(0, 0);
    assert_int_equal(pith_device_find("cuda:0", NULL, &err), PITH_INVALID);
    assert_string_equal(err.message, "device: \"cuda:0\" is no device; there are auto, cpu; no GPU "
                                     "here: it is a test");
    assert_int_equal(pith_device_find("gpu", NULL, &err), PITH_INVALID);
    assert_string_equal(err.message, "device: \"gpu\" is no device; there are auto, cpu");
}
