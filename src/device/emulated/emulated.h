/*
 * emulated.h - a GPU whose kernels run on the processor, for tests.
 */
#ifndef PI_EMULATED_H
#define PI_EMULATED_H

#ifdef __cplusplus
extern "C" {
#endif

#include "device/gpu/card.h"

/* The first one of the process, and one more. They have one memory, whose bounds and counts are
   below. */
struct gpu_card *emulated_card(void);
struct gpu_card *emulated_other(void);
/* Whether the two do not reach each other's memory; and how often one copied from the other. */
void emulated_part(bool apart);
size_t emulated_fetches(void);
/* Bytes of pages that have memory, at most (1 GB), and now. */
void emulated_limit(size_t size);
size_t emulated_given(void);
/* A mutant: what comes after `settle` does not wait for copies beside it. */
void emulated_forget_settle(bool forget);
/* Copies beside the work that are not done. */
size_t emulated_on_the_way(void);
/* How often the host waited for bytes of the card. */
size_t emulated_gets(void);

#ifdef __cplusplus
}
#endif

#endif
