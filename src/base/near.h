/*
 * near.h - suggests the nearest known name for an unknown one.
 */
#ifndef PI_NEAR_H
#define PI_NEAR_H

#include <stddef.h>

/* The name nearest to the first len bytes of word, NULL where none is near. At most a third of the
   word is wrong, so that a word of two letters has no neighbours. Or the word is the beginning of
   one name alone. names [n] may hold NULL. */
const char *pi_nearest(const char *word, size_t len, const char *const *names, size_t n);

#endif
