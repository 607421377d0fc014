/*
 * ranks_one.c - the process is alone: a library without MPI.
 */
#include "base/ranks.h"

static const pith_ranks_info alone = {.n_rank = 1};
static _Thread_local const pith_ranks_info *pretended;

const pith_ranks_info *pi_ranks(void)
{
    return pretended != NULL ? pretended : &alone;
}

void pi_ranks_pretend(const pith_ranks_info *ranks)
{
    pretended = ranks;
}

void pith_ranks_describe(pith_ranks_info *out)
{
    *out = alone;
}

pith_status pith_ranks_start(const char *const *words, int32_t n_word, pith_error *err)
{
    (void)words, (void)n_word;
    return pi_fail(err, PITH_UNSUPPORTED,
                   "this build has no MPI, so that it cannot run on several ranks; "
                   "-DPITH_MPI=ON builds it in");
}

pith_status pith_ranks_divide(pith_split split, const int32_t *weight, int32_t n_weight,
                              pith_error *err)
{
    return pi_ranks_check_parts(split, weight, n_weight, 1, err);
}

bool pith_ranks_all_fail(double wait_s)
{
    (void)wait_s;
    return true;
}

void pith_ranks_end(bool ok)
{
    (void)ok;
}

void pi_ranks_gather(void *rows, int32_t n_tok, int32_t n_unit, size_t unit_bytes)
{
    (void)rows, (void)n_tok, (void)n_unit, (void)unit_bytes;
}

void pi_ranks_collect(void *rows, int32_t n_tok, int32_t n_unit, size_t unit_bytes)
{
    (void)rows, (void)n_tok, (void)n_unit, (void)unit_bytes;
}

void pi_ranks_gather_int8(int8_t *q, float *scale, int16_t *sum16, int32_t n_tok, int32_t n_unit,
                          int32_t n_block)
{
    (void)q, (void)scale, (void)sum16, (void)n_tok, (void)n_unit, (void)n_block;
}

void *pi_ranks_write(size_t size)
{
    (void)size;
    return NULL;
}

const uint8_t *pi_ranks_share(const size_t *size)
{
    (void)size;
    return NULL;
}

void pi_ranks_learn_sizes(size_t own, size_t *size)
{
    size[0] = own;
}

void pi_ranks_tell(void *data, size_t size)
{
    (void)data, (void)size;
}

void pith_ranks_tell(void *data, size_t size)
{
    pi_ranks_tell(data, size);
}

void pi_ranks_wake(void) {}

void pi_ranks_sleep(void) {}

int64_t pi_ranks_least(int64_t number)
{
    return number;
}

int64_t pi_ranks_sum(int64_t number)
{
    return number;
}

pith_status pi_ranks_agree(pith_status status, pith_error *err)
{
    (void)err;
    return status;
}

pith_status pi_ranks_same(const char *what, uint64_t number, pith_error *err)
{
    (void)what, (void)number, (void)err;
    return PITH_OK;
}

/* ---- layers ---- */

void pi_ranks_choose(double layer_s)
{
    (void)layer_s;
}

void pi_ranks_receive(void *rows, size_t size)
{
    (void)rows, (void)size;
}

void pi_ranks_hand_on(const void *rows, size_t size)
{
    (void)rows, (void)size;
}

void pi_ranks_move(void) {}

void pi_ranks_tell_last(void *data, size_t size)
{
    (void)data, (void)size;
}

void pi_ranks_give_first(void *data, size_t size)
{
    (void)data, (void)size;
}
