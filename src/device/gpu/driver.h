/*
 * driver.h - what operations ask of a GPU, call by call. record.c has it: launches, small copies
 * and lists are recorded, and go to the card together (card.h). So a call costs the host little,
 * and the card waits for no word of it.
 */
#ifndef PI_GPU_DRIVER_H
#define PI_GPU_DRIVER_H

#include "device/gpu/card.h"

/* Calls come from one thread at a time, and have the effects of running in their order. When
   they return they have read the host's memory. Failures are sticky: `failure` has the first
   one. */
struct gpu_driver {
    int32_t n_processor;
    uint32_t smem_most, smem_step, smem_all; /* as card.h has them */
    bool wgmma;
    const char *failure; /* NULL: there was none */
    uint64_t n_asked;    /* calls that write to the device's memory or take it away */

    gpu_at (*alloc)(struct gpu_driver *d, size_t size); /* not cleared; 0: none is left */
    void (*free)(struct gpu_driver *d, gpu_at at, size_t size);
    /* As card.h has them. */
    gpu_at (*map)(struct gpu_driver *d, size_t size);
    void (*unmap)(struct gpu_driver *d, gpu_at at, size_t size);
    bool (*touch)(struct gpu_driver *d, gpu_at at, size_t size);
    void (*drop)(struct gpu_driver *d, gpu_at at, size_t size);
    void (*put)(struct gpu_driver *d, gpu_at to, const void *host, size_t size);
    void (*get)(struct gpu_driver *d, void *host, gpu_at from, size_t size);
    void (*carry)(struct gpu_driver *d, const struct gpu_carry *list, int32_t n, bool out);
    bool (*fetch)(struct gpu_driver *d, gpu_at to, struct gpu_driver *other, gpu_at from,
                  size_t size);
    void (*copy)(struct gpu_driver *d, gpu_at to, gpu_at from, size_t size);
    void (*clear)(struct gpu_driver *d, gpu_at at, size_t size);
    void (*launch)(struct gpu_driver *d, const struct gpu_launch *l);
    /* Room for a list that kernels read, and where to write it now; 0: there is none. send closes
       it: the first bytes of it go up before the next launch runs. One list is open at a time, and
       `rest` closes it, too. The list stays as it is until the operation ends. */
    gpu_at (*list)(struct gpu_driver *d, size_t size, void **host);
    void (*send)(struct gpu_driver *d, size_t size);
    /* An operation has ended: the card may have what was recorded. */
    void (*rest)(struct gpu_driver *d);
    void (*wait)(struct gpu_driver *d);
};

/* NULL: no memory. The card is borrowed until the end. */
struct gpu_driver *gpu_record(struct gpu_card *card);
void gpu_record_free(struct gpu_driver *d);

#endif
