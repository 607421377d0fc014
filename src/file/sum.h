/* sum.h - the sum over the bytes of files: XXH64 with seed 0, over bytes that come in pieces. */
#ifndef PI_SUM_H
#define PI_SUM_H

#include "base/base.h"

struct pi_sum {
    uint64_t lane[4];
    uint64_t size;    /* bytes so far */
    uint8_t part[32]; /* [size % 32] bytes that wait for a whole stripe */
};

void pi_sum_start(struct pi_sum *hash);
void pi_sum_add(struct pi_sum *hash, const void *data, size_t size);
/* The hash of everything added; more may be added afterwards. */
uint64_t pi_sum_value(const struct pi_sum *hash);

/* Of one block. */
uint64_t pi_sum_of(const void *data, size_t size);

#endif
