/*
 * emu.h - kernels without a GPU: every function of gpu.h has its other meaning here.
 *
 * It finds errors that a GPU hides. Shared memory starts as NaN. Asynchronous copies arrive as late
 * as they may, and what was there is lost at once. Warps, and blocks that run together, take turns
 * in an order that EMU_ORDER chooses: 0 forth, 1 back, 2.. a seed. By a seed some rest, too.
 * Threads that leave a barrier out are reported, and AddressSanitizer sees every access of a
 * kernel. It does not find races within a warp and has no opinion on memory order between blocks of
 * one launch.
 */
#ifndef PI_EMU_H
#define PI_EMU_H

#include "device/emulated/emu_copies.h"
#include "device/emulated/emu_fibers.h"
#include "device/emulated/emu_numbers.h"

#endif
