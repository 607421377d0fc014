/*
 * machine.h - one reading of memory, for programs that measure it between other things, so that
 * both meet the same disturbances. pith_machine_measure's figures are the best of several rounds.
 */
#ifndef PI_CPU_MACHINE_H
#define PI_CPU_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* The most bytes of a buffer that does not stay in the caches. A virtual machine may see a large
   last-level cache that it shares with others. With a cache of 480 MiB, 128 MiB were read twice as
   fast as memory. */
#define PI_MACHINE_BYTES ((size_t)512 << 20)

/* Bytes per second at which n_thread threads read the buffer once; size is a multiple of 64. */
double pi_machine_read(const void *buffer, size_t size, int32_t n_thread);

#endif
