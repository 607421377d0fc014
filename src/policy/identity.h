/*
 * identity.h - names in files that others wrote, made fit to be shown.
 */
#ifndef PI_POLICY_IDENTITY_H
#define PI_POLICY_IDENTITY_H

#include <stddef.h>

/* A copy of a name of n bytes for people to read: control characters become '?', so that a file
   cannot steer a terminal. A pi_mem block that the caller frees; NULL: no memory. */
char *policy_name(const char *name, size_t n);

#endif
