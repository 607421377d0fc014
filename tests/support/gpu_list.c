/*
 * gpu_list.c - makes the emulated GPU cuda:0 of the machine, in a program that is linked with this
 * file. PITH_TEST_GPU_BYTES is the memory that it has for pages (1 GB). With PITH_TEST_GPU_IDLE
 * kernels do nothing, and an H100's figures are its: what takes time then is the host's part of a
 * pass (docs/gpu.md, "Launches").
 */
#include <stdio.h>
#include <stdlib.h>

#include "device/emulated/emulated.h"
#include "device/gpu/device.h"
#include "engine/devices.h"

static int32_t count(pith_error *why)
{
    (void)why;
    return 1;
}

static void describe(int32_t i, struct pi_device_report *out)
{
    (void)i;
    snprintf(out->text, sizeof(out->text), "%s", emulated_card()->text);
}

static void submit_nothing(struct gpu_card *c, const struct gpu_batch *batch)
{
    (void)c;
    (void)batch;
}

static void make_idle(struct gpu_card *card)
{
    card->n_processor = 132;
    card->wgmma = true;
    card->step = false;
    card->chunk = 2 << 20;
    card->submit = submit_nothing;
}

static struct pi_device *made;

/* The emulation hides its memory from the search for leaks, so it goes at the end. */
static void free_made(void)
{
    gpu_device_free(made);
}

static pith_status open_one(int32_t i, struct pi_device **out, pith_error *why)
{
    (void)i;
    struct gpu_card *card = emulated_card();
    card->name = "cuda:0";
    if (getenv("PITH_TEST_GPU_IDLE") != NULL)
        make_idle(card);
    *out = made = gpu_device_make(card);
    atexit(free_made);
    return *out != NULL ? PITH_OK : pi_fail(why, PITH_NOMEM, "no memory for the emulation");
}

static const struct pi_gpu_list list = {count, describe, open_one};

__attribute__((constructor)) static void offer(void)
{
    const char *bytes = getenv("PITH_TEST_GPU_BYTES");
    if (bytes != NULL)
        emulated_limit((size_t)strtoull(bytes, NULL, 10));
    pi_gpu_list_register(&list);
}
