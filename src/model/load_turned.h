/*
 * load_turned.h - matrices that the file has with rows and columns exchanged.
 */
#ifndef PI_LOAD_TURNED_H
#define PI_LOAD_TURNED_H

#include "cpu/matmul.h"

struct pi_turned {
    const uint8_t *data;   /* of the first slab's first column: a row of the file, [n_row] long */
    enum pi_dtype in_file; /* its type */
    int64_t slab_rows;     /* rows of the file from one slab to the next */
    int64_t n_slab;
    struct pi_matrix *matrix; /* of the first slab; its data has room for all */
};

/* The type of the turned matrix: a block of codes cannot be turned, and becomes F16, whose rounding
   is small beside that of the codes. Floats keep their type. */
enum pi_dtype pi_turned_type(enum pi_dtype in_file);

/* Packs all slabs. NOMEM, which names the tensor. */
pith_status pi_turned_pack(const struct pi_turned *turned, int32_t n_thread, const char *name,
                           pith_error *err);

#endif
