/*
 * kernels.h - the one kernel table, chosen at first use. Five domains, each with its own header
 * that states every kernel's contract (formula, shapes, alignment, tails, error bound):
 *   matmul.h  packed weight matrices times activations
 *   attend.h  attention over pages
 *   score.h   scores of keys
 *   move.h    packing entries within pages
 *   vec.h     rows of activations: norms, rotary positions, activation functions, quantising
 * Levels: the scalar table is filled first, higher levels overwrite entries. Callers never test CPU
 * features.
 */
#ifndef PI_KERNELS_H
#define PI_KERNELS_H

#include "cpu/attend.h"
#include "cpu/matmul.h"
#include "cpu/move.h"
#include "cpu/score.h"
#include "cpu/vec.h"

enum pi_cpu_level {
    PI_CPU_SCALAR,
    PI_CPU_AVX2,
    PI_CPU_AVX512,
    PI_CPU_AMX, /* AVX-512 and its matrix instructions for int8 */
    PI_CPU_NEON,
    PI_CPU_N_LEVEL
};

struct pi_kernels {
    enum pi_cpu_level level;
    struct pi_matmul_kernels matmul;
    struct pi_attend_kernels attend;
    struct pi_vec_kernels vec;
    struct pi_score_kernels score;
    struct pi_move_kernels move;
};

/* The table in use; filled on the first call. */
const struct pi_kernels *pi_kernels(void);

/* Fills *out for a level, which need not be the one in use; false when this processor or build
   lacks it. */
bool pi_kernels_fill(enum pi_cpu_level level, struct pi_kernels *out);

const char *pi_cpu_level_name(enum pi_cpu_level level);

/* Each overwrites the entries it has; files of levels that the build lacks are left out. */
void pi_matmul_init_scalar(struct pi_matmul_kernels *k);
void pi_matmul_init_avx2(struct pi_matmul_kernels *k);
void pi_matmul_init_avx512(struct pi_matmul_kernels *k);
void pi_matmul_init_amx(struct pi_matmul_kernels *k);
void pi_matmul_init_neon(struct pi_matmul_kernels *k);
void pi_attend_init_scalar(struct pi_attend_kernels *k);
void pi_attend_init_avx2(struct pi_attend_kernels *k);
void pi_attend_init_avx512(struct pi_attend_kernels *k);
void pi_attend_init_avx512_bf16(struct pi_attend_kernels *k);
void pi_attend_init_avx512_pairs(struct pi_attend_kernels *k);
void pi_attend_init_neon(struct pi_attend_kernels *k);
void pi_score_init_scalar(struct pi_score_kernels *k);
void pi_score_init_avx2(struct pi_score_kernels *k);
void pi_score_init_avx512(struct pi_score_kernels *k);
void pi_score_init_neon(struct pi_score_kernels *k);
void pi_move_init_scalar(struct pi_move_kernels *k);
void pi_move_init_avx512(struct pi_move_kernels *k);
void pi_vec_init_scalar(struct pi_vec_kernels *k);
void pi_vec_init_avx2(struct pi_vec_kernels *k);
void pi_vec_init_avx512(struct pi_vec_kernels *k);
void pi_vec_init_neon(struct pi_vec_kernels *k);

#endif
