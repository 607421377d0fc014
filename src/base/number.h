/* number.h - numbers in text, written as in the C locale under every locale. */
#ifndef PI_NUMBER_H
#define PI_NUMBER_H

#include "base/base.h"

/* Reads [+-] digits [. digits] [e [+-] digits], with at least one digit before the e, which must be
   all of text[0..len). Blanks, hexadecimal digits and infinity are refused. The first 19 digits
   count. The result is the nearest double where these are less than 2^53 and the power of ten is
   within 10^-22 .. 10^22. Elsewhere it is within a few units in the last place, infinite above the
   largest double, and the same on every machine. */
bool pi_number_read(const char *text, size_t len, double *out);

#endif
