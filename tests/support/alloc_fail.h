/*
 * alloc_fail.h - makes the n-th allocation of the code under test fail, where that calls malloc
 * itself: the program is linked with --wrap for malloc, calloc and realloc (tests/CMakeLists.txt),
 * and Jansson is told to use the same. The library's own allocations have pi_mem_fail_at.
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
