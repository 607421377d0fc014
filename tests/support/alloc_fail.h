/*
 * alloc_fail.h - makes the n-th allocation of the code under test fail, where that code calls
 * malloc itself. The program is linked with --wrap for malloc, calloc and realloc
 * (tests/CMakeLists.txt), and Jansson uses the same functions. The library's own allocations have
 * pi_mem_fail_at.
 */
#ifndef ALLOC_FAIL_H
#define ALLOC_FAIL_H

#include <stdint.h>

/* Jansson's blocks count from now on, too. Call it before any of them is made. */
void alloc_fail_begin(void);

/* The n-th allocation from now (1 = the next) and all later ones fail; 0: none. Returns how many
   there were since the last call. */
int64_t alloc_fail_at(int64_t n);

#endif
