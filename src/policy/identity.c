/*
 * identity.c - names in files that others wrote, made fit to be shown. Pure functions.
 */
#include "policy/identity.h"

#include "base/mem.h"

char *policy_name(const char *name, size_t n)
{
    char *copy = pi_mem_strndup(PI_MEM_OTHER, name, n);
    for (size_t i = 0; copy != NULL && i < n; i++) {
        uint8_t byte = (uint8_t)copy[i], next = (uint8_t)copy[i + 1]; /* the last: the zero */
        if ((byte > 0 && byte < ' ') || byte == 0x7f)
            copy[i] = '?';
        if (byte == 0xc2 && next >= 0x80 && next < 0xa0) /* UTF-8 of U+0080..U+009F */
            copy[i] = copy[i + 1] = '?';
    }
    return copy;
}
