/*
 * plan.h - the places of a file's tensors, planned before anything is packed: the matrices with
 * their places among the packed weights, and the vectors. load.c makes it, pack.c packs by it,
 * weights_file.c writes it down. A plan borrows the model's file and points into the model.
 */
#ifndef PI_PLAN_H
#define PI_PLAN_H

#include "file/gguf.h"
#include "model/model.h"

#define PI_PLAN_NAME_LEN 128
#define PI_PLAN_ALIGN 4096 /* of places: a page of the system has bytes of one matrix alone */

/* Where the rows of a rank's part stand in the file: its heads' queries, keys and values lie apart.
   All zero: side by side. */
struct pi_plan_rows {
    int64_t n_side;  /* rows side by side, */
    int64_t step;    /* from the first of them to the first of the next such */
    int64_t n_apart; /* the first rows, which lie so */
    int64_t rest;    /* from the first row to the others, which lie side by side */
};

/* The place in the file of row r, in rows from the first one; *n_side: rows side by side from it
   on. */
static inline int64_t pi_plan_row(const struct pi_plan_rows *rows, int64_t r, int64_t *n_side)
{
    *n_side = INT64_MAX;
    if (r >= rows->n_apart)
        return rows->rest + r - rows->n_apart;
    *n_side = rows->n_side - r % rows->n_side;
    return r / rows->n_side * rows->step + r % rows->n_side;
}

struct pi_plan_matrix {
    const uint8_t *data; /* of the first row, in the file */
    struct pi_matrix *matrix;
    struct pi_plan_rows rows; /* of a slab */
    int64_t n_slab;           /* matrices, one after the other in memory */
    int64_t slab_rows;        /* of the file, from the first row of one to that of the next */
    bool turned;              /* the file has its rows as columns, */
    enum pi_dtype in_file;    /* in this type */
    size_t place;             /* of the first group among the packed weights */
    char name[PI_PLAN_NAME_LEN];
};

struct pi_plan_vector {
    struct pi_gguf_tensor tensor;
    int64_t step; /* values of the file from the first of a row to that of the next */
    struct pi_plan_rows rows;
    float **vector;
};

struct pi_plan {
    struct pi_plan_matrix *matrix; /* [n_matrix], owned */
    int64_t n_matrix;
    struct pi_plan_vector *vector; /* [n_vector], owned */
    int64_t n_vector;
    bool *used;          /* [n_tensor] of the file's: which ones these are made of; owned */
    size_t weights_size; /* bytes of all packed matrices */
    size_t places_size;  /* the same including the gaps between them */
    size_t vectors_len;  /* floats of all vectors, each rounded up to a cache line */
};

/* Bytes of a matrix with all its slabs, packed. */
static inline size_t pi_plan_size(const struct pi_plan_matrix *what)
{
    const struct pi_matrix *m = what->matrix;
    return (size_t)what->n_slab * (size_t)m->n_group * m->group_bytes;
}

/* Work that needs nothing of the weights, and that one thread does while others pack. */
struct pi_beside {
    void (*fn)(void *ctx);
    void *ctx;
    bool done;
};

/* ---- pack.c ---- */

/* Where packed groups go: into memory, or into a file that is being written. */
struct pi_pack_target {
    uint8_t *memory;                /* [places_size]; NULL: the file */
    const struct pi_new_file *file; /* borrowed */
    size_t offset;                  /* of the weights in it */
};

/* Packs every matrix and calls the function of `beside`, unless that was done. Where they go into
   memory, the model's matrices then have their data. Of the plan nothing but the matrices and their
   size matters. Afterwards the file's pages are given back.
   FORMAT (a scale that is none), IO (of the target), NOMEM, CANCELLED. */
pith_status pi_pack_all(const struct pi_plan *plan, const struct pith_model *model,
                        const pith_model_params *params, const struct pi_pack_target *target,
                        struct pi_beside *beside, pith_error *err);

#endif
