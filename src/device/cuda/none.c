/*
 * none.c - of a build without kernels for GPUs.
 */
#include "device/cuda/cuda.h"

int32_t cuda_count(pith_error *err)
{
    pi_fail(err, PITH_UNSUPPORTED, "this build has no kernels for GPUs");
    return 0;
}

void cuda_describe(int32_t i, struct pi_device_report *out)
{
    (void)i;
    (void)out;
}

pith_status cuda_open(int32_t i, struct gpu_card **out, pith_error *err)
{
    (void)i;
    *out = NULL;
    cuda_count(err);
    return PITH_UNSUPPORTED;
}

void cuda_close(struct gpu_card *card)
{
    (void)card;
}
