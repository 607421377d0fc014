/*
 * weights_file.h - packed weights in a file beside the model, which a later start maps instead of
 * packing (docs/weights-file.md). Its head holds everything that the weights depend on, and nothing
 * else. A file is used only if its head is, byte for byte, the one that would be written now.
 */
#ifndef PI_WEIGHTS_FILE_H
#define PI_WEIGHTS_FILE_H

#include "model/plan.h"

#define PI_WEIGHTS_MAGIC "PITHPACK"
#define PI_WEIGHTS_VERSION 1
#define PI_WEIGHTS_FIXED 56 /* bytes of the head before its table */
#define PI_WEIGHTS_ENTRY 48 /* of a matrix in the table */
#define PI_WEIGHTS_SUM 8    /* after the table */

/* The head of a plan's file, and its size. */
struct pi_weights_head {
    uint8_t *data; /* [size], owned */
    size_t size;
    size_t offset;    /* of the weights in the file */
    size_t file_size; /* of the whole */
};

/* The head of a plan's file. The plan's matrices have their places. NOMEM. */
pith_status pi_weights_head_make(const struct pi_plan *plan, const struct pith_model *model,
                                 struct pi_weights_head *out, pith_error *err);
void pi_weights_head_free(struct pi_weights_head *head);

/* Whether data [size] is the whole file that begins with this head. FORMAT names the fault. *ours
   then tells whether it is a file of packed weights at all, which may be replaced. */
pith_status pi_weights_check(const void *data, size_t size, const struct pi_weights_head *head,
                             bool *ours, pith_error *err);

/* Maps the file for params->cache_weights, and makes it where there is none that fits; path is the
   model's. Fails as pi_pack_all; IO means that there can be no such file, and a line of the log has
   said why. model->weights_file has the mapping, and the matrices their data. */
pith_status pi_weights_file(const struct pi_plan *plan, struct pith_model *model, const char *path,
                            const pith_model_params *params, struct pi_beside *beside,
                            pith_error *err);

#endif
