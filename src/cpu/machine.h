/*
 * machine.h - one reading of memory, for programs that measure it between other things, so that
 * both meet the same disturbances. pith_machine_measure's figures are the best of several rounds.
 */
#ifndef PI_CPU_MACHINE_H
#define PI_CPU_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* Of a buffer that is read from memory. Of the last cache of a server, which a virtual machine has
   among many, a part does not count: 128 MiB were read twice as fast as memory is on one with
   480 MiB. */
#define PI_MACHINE_BYTES ((size_t)512 << 20)

/* Bytes per second at which n_thread threads read the buffer once; size is a multiple of 64. */
double pi_machine_read(const void *buffer, size_t size, int32_t n_thread);

#endif
