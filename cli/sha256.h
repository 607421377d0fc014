/* sha256.h - SHA-256 (FIPS 180-4) of bytes that come in pieces. */
#ifndef CLI_SHA256_H
#define CLI_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256 {
    uint32_t h[8];
    uint64_t size;    /* bytes so far */
    uint8_t part[64]; /* [size % 64] that wait for a whole block */
};

void sha256_start(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t size);
/* The hash of everything added, as 64 digits, terminated; more may be added afterwards. */
void sha256_digits(const struct sha256 *s, char out[65]);

/* Of one block. */
void sha256(const void *data, size_t size, char out[65]);

#endif
