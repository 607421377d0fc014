/*
 * gguf_parts.h - a GGUF model in one file or in several, NAME-00001-of-00003.gguf and so on: the
 * first has the metadata, each has tensors. Seen from outside it is one model.
 */
#ifndef PI_GGUF_PARTS_H
#define PI_GGUF_PARTS_H

#include "file/gguf.h"

/* Zero it before pi_gguf_open. */
struct pi_gguf_parts {
    struct pi_file *file; /* [n] mapped, owned */
    int32_t n;
    size_t size; /* bytes of all */
};

/* Maps and parses the file at path and, where it is the first of several, the others. g has the
   metadata of the first and the tensors of all. IO, FORMAT (also: parts that do not belong
   together), NOMEM. On failure both are empty. Free g first. */
pith_status pi_gguf_open(const char *path, struct pi_gguf *g, struct pi_gguf_parts *parts,
                         pith_error *err);
void pi_gguf_parts_free(struct pi_gguf_parts *parts);

/* The file that a tensor's byte lies in, and where; NULL: none. */
const struct pi_file *pi_gguf_file(const struct pi_gguf_parts *parts, const uint8_t *at,
                                   size_t *offset);
/* Copies a tensor's bytes [at, at + size) into memory, as pi_file_read. */
pith_status pi_gguf_read(const struct pi_gguf_parts *parts, const uint8_t *at, void *data,
                         size_t size, pith_error *err);
/* Gives the pages of a tensor's bytes [at, at + size) back to the system, as pi_file_drop. */
void pi_gguf_drop(const struct pi_gguf_parts *parts, const uint8_t *at, size_t size);

#endif
