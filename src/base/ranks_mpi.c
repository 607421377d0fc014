/*
 * ranks_mpi.c - ranks over MPI. A gather is one message per rank, and parts may be of unequal
 * length, so any number of ranks will do. It must not know what rows are.
 *
 * Invariant: sent and got have room for `cap` bytes each.
 */
#define _POSIX_C_SOURCE 200809L

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/ranks.h"

#define PROBE_BYTES 16384
#define ROWS_TAG 1
#define WAKE_TAG 2
#define GIVE_TAG 3
#define FAIL_TAG 4
#define SPIN_S 0.001 /* of waiting in which a rank sleeps not at all, and briefly */
#define LONG_S 0.1
#define SHORT_NS 200000
#define LONG_NS 5000000
#define BLOCK 32       /* codes that share a scale */
#define BLOCK_BYTES 40 /* these, the scale, two sums of int16 */

static pith_ranks_info ranks = {.n_rank = 1};
static _Thread_local const pith_ranks_info *pretended;
static int32_t weights[PI_RANKS_MOST];
static uint8_t *sent, *got;
static size_t cap;

/* Rows on their way to the next rank. It may be a few passes behind before this one waits. */
static struct {
    uint8_t *rows;
    size_t cap;
    bool busy;
    MPI_Request request;
} ahead[4];
static size_t n_ahead; /* handed on so far */

const pith_ranks_info *pi_ranks(void)
{
    return pretended != NULL ? pretended : &ranks;
}

void pi_ranks_pretend(const pith_ranks_info *as)
{
    pretended = as;
}

/* Whether no other rank listens. */
static bool is_alone(void)
{
    return ranks.n_rank == 1 || pretended != NULL;
}

/* Whether rows are in parts. */
static bool gathers(void)
{
    return !is_alone() && ranks.split == PITH_SPLIT_ROWS;
}

void pith_ranks_describe(pith_ranks_info *out)
{
    *out = ranks;
}

/* ---- begin and end ---- */

/* Of words and where each ends. */
static uint64_t sum_of(const char *const *words, int32_t n_word)
{
    uint64_t sum = PI_HASH_EMPTY;
    for (int32_t i = 0; i < n_word; i++)
        sum = pi_hash_bytes(sum, words[i], strlen(words[i]) + 1);
    return sum;
}

pith_status pith_ranks_start(const char *const *words, int32_t n_word, pith_error *err)
{
    const char *version = pith_version();
    int level = 0, there = 0;
    MPI_Initialized(&there);
    if (!there && MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS)
        return pi_fail(err, PITH_INTERNAL, "MPI does not start");
    MPI_Comm_rank(MPI_COMM_WORLD, &ranks.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks.n_rank);
    if (ranks.n_rank > PI_RANKS_MOST)
        return pi_fail(err, PITH_UNSUPPORTED, "%d ranks are more than the %d that Pith can use",
                       ranks.n_rank, PI_RANKS_MOST);
    PI_TRY(pi_ranks_same("versions", sum_of(&version, 1), err));
    return pi_ranks_same("options", sum_of(words, n_word), err);
}

/* The mean of some gathers, after others that open connections. */
static double probe(void)
{
    const int before = 4, n = 16, size = PROBE_BYTES / ranks.n_rank;
    static uint8_t own[PROBE_BYTES], all[PROBE_BYTES];
    double start = 0;
    for (int i = 0; i < before + n; i++) {
        if (i == before)
            start = MPI_Wtime();
        MPI_Allgather(own, size, MPI_BYTE, all, size, MPI_BYTE, MPI_COMM_WORLD);
    }
    return (MPI_Wtime() - start) / n;
}

pith_status pith_ranks_divide(pith_split split, const int32_t *weight, int32_t n_weight,
                              pith_error *err)
{
    uint64_t sum = (uint64_t)split;
    PI_TRY(pi_ranks_check_parts(split, weight, n_weight, ranks.n_rank, err));
    for (int32_t r = 0; r < n_weight; r++)
        sum = sum * (PITH_RANKS_WEIGHT_MOST + 1) + (uint64_t)weight[r];
    PI_TRY(pi_ranks_same("parts of ranks", sum, err));
    for (int32_t r = 0; r < n_weight; r++)
        weights[r] = weight[r];
    ranks.weight = n_weight > 0 ? weights : NULL;
    ranks.split = split;
    if (split == PITH_SPLIT_AUTO && ranks.n_rank > 1)
        ranks.probe_s = probe();
    return PITH_OK;
}

static void forget_ahead(void)
{
    for (size_t i = 0; i < PI_LEN(ahead); i++) {
        if (ahead[i].busy)
            MPI_Wait(&ahead[i].request, MPI_STATUS_IGNORE);
        pi_mem_free(ahead[i].rows);
        ahead[i].rows = NULL;
        ahead[i].cap = 0;
        ahead[i].busy = false;
    }
}

bool pith_ranks_all_fail(double wait_s)
{
    int told = ranks.rank == 0;
    MPI_Request request;
    for (int32_t r = 1; told && r < ranks.n_rank; r++)
        MPI_Isend(NULL, 0, MPI_BYTE, r, FAIL_TAG, MPI_COMM_WORLD, &request);
    for (double end = MPI_Wtime() + wait_s; !told && MPI_Wtime() < end;) {
        MPI_Iprobe(0, FAIL_TAG, MPI_COMM_WORLD, &told, MPI_STATUS_IGNORE);
        nanosleep(&(struct timespec){.tv_nsec = SHORT_NS}, NULL);
    }
    return told;
}

void pith_ranks_end(bool ok)
{
    int there = 0, over = 0;
    MPI_Initialized(&there);
    MPI_Finalized(&over);
    if (!there || over)
        return;
    if (!ok)
        MPI_Abort(MPI_COMM_WORLD, 1);
    forget_ahead();
    MPI_Finalize();
    pi_mem_free(sent);
    pi_mem_free(got);
    sent = got = NULL;
    cap = 0;
}

/* ---- rows ---- */

/* Others wait for this rank: without memory all of them end. */
static uint8_t *take(size_t size)
{
    uint8_t *rows = pi_mem_alloc(PI_MEM_SCRATCH, size);
    if (rows == NULL) {
        pi_log(PITH_LOG_WARN, "rank=%d no memory for rows of %zu bytes", ranks.rank, size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return rows;
}

/* Bytes that were written to `sent` stay there. */
static void reserve(size_t size)
{
    if (size <= cap)
        return;
    uint8_t *larger = take(size);
    if (cap > 0)
        memcpy(larger, sent, cap);
    pi_mem_free(sent);
    pi_mem_free(got);
    sent = larger;
    got = take(size);
    cap = size;
}

/* sent holds this rank's units of n_tok rows; got receives everybody's, rank after rank, or does so
   on rank 0 alone. */
static void exchange(int32_t n_tok, int32_t n_unit, size_t unit_bytes, bool to_all)
{
    int32_t n_receiver = to_all ? ranks.n_rank - 1 : ranks.rank > 0;
    int count[PI_RANKS_MOST], at[PI_RANKS_MOST];
    MPI_Datatype unit;
    double start = MPI_Wtime();
    MPI_Type_contiguous((int)unit_bytes, MPI_BYTE, &unit);
    MPI_Type_commit(&unit);
    for (int32_t r = 0; r < ranks.n_rank; r++) {
        at[r] = n_tok * pi_ranks_from(n_unit, r);
        count[r] = n_tok * pi_ranks_from(n_unit, r + 1) - at[r];
    }
    if (to_all)
        MPI_Allgatherv(sent, count[ranks.rank], unit, got, count, at, unit, MPI_COMM_WORLD);
    else
        MPI_Gatherv(sent, count[ranks.rank], unit, got, count, at, unit, 0, MPI_COMM_WORLD);
    MPI_Type_free(&unit);
    ranks.sent_bytes += (int64_t)count[ranks.rank] * (int64_t)unit_bytes * n_receiver;
    ranks.n_gather++;
    ranks.gather_s += MPI_Wtime() - start;
}

static void gather(void *rows, int32_t n_tok, int32_t n_unit, size_t unit_bytes, bool to_all)
{
    size_t row = (size_t)n_unit * unit_bytes;
    uint8_t *out = rows;
    if (!gathers())
        return;
    reserve((size_t)n_tok * row);
    memcpy(sent, rows, (size_t)n_tok * (size_t)pi_ranks_own(n_unit) * unit_bytes);
    exchange(n_tok, n_unit, unit_bytes, to_all);
    for (int32_t r = 0; r < ranks.n_rank && (to_all || ranks.rank == 0); r++) {
        size_t from = (size_t)pi_ranks_from(n_unit, r) * unit_bytes;
        size_t size = (size_t)pi_ranks_from(n_unit, r + 1) * unit_bytes - from;
        const uint8_t *part = got + from * (size_t)n_tok;
        for (int32_t t = 0; t < n_tok; t++)
            memcpy(out + (size_t)t * row + from, part + (size_t)t * size, size);
    }
}

void pi_ranks_gather(void *rows, int32_t n_tok, int32_t n_unit, size_t unit_bytes)
{
    gather(rows, n_tok, n_unit, unit_bytes, true);
}

void pi_ranks_collect(void *rows, int32_t n_tok, int32_t n_unit, size_t unit_bytes)
{
    gather(rows, n_tok, n_unit, unit_bytes, false);
}

void pi_ranks_gather_int8(int8_t *q, float *scale, int16_t *sum16, int32_t n_tok, int32_t n_unit,
                          int32_t n_block)
{
    size_t n_own = (size_t)(pi_ranks_own(n_unit) * n_block), n_all = (size_t)(n_unit * n_block);
    if (!gathers())
        return;
    reserve((size_t)n_tok * n_all * BLOCK_BYTES);
    for (size_t i = 0; i < (size_t)n_tok * n_own; i++) {
        uint8_t *to = sent + i * BLOCK_BYTES;
        memcpy(to, q + i * BLOCK, BLOCK);
        memcpy(to + BLOCK, scale + i, sizeof(*scale));
        memcpy(to + BLOCK + sizeof(*scale), sum16 + i * 2, 2 * sizeof(*sum16));
    }
    exchange(n_tok, n_unit, (size_t)n_block * BLOCK_BYTES, true);
    const uint8_t *part = got;
    for (int32_t r = 0; r < ranks.n_rank; r++) {
        size_t from = (size_t)(pi_ranks_from(n_unit, r) * n_block);
        size_t end = (size_t)(pi_ranks_from(n_unit, r + 1) * n_block);
        for (size_t t = 0; t < (size_t)n_tok; t++)
            for (size_t at = t * n_all + from; at < t * n_all + end; at++, part += BLOCK_BYTES) {
                memcpy(q + at * BLOCK, part, BLOCK);
                memcpy(scale + at, part + BLOCK, sizeof(*scale));
                memcpy(sum16 + at * 2, part + BLOCK + sizeof(*scale), 2 * sizeof(*sum16));
            }
    }
}

void *pi_ranks_write(size_t size)
{
    reserve(size);
    return sent;
}

const uint8_t *pi_ranks_share(const size_t *size)
{
    int count[PI_RANKS_MOST], at[PI_RANKS_MOST + 1] = {0};
    double start = MPI_Wtime();
    for (int32_t r = 0; r < ranks.n_rank; r++) {
        count[r] = (int)size[r];
        at[r + 1] = at[r] + count[r];
    }
    reserve((size_t)at[ranks.n_rank]);
    MPI_Allgatherv(sent, count[ranks.rank], MPI_BYTE, got, count, at, MPI_BYTE, MPI_COMM_WORLD);
    ranks.sent_bytes += (int64_t)count[ranks.rank] * (ranks.n_rank - 1);
    ranks.n_gather++;
    ranks.gather_s += MPI_Wtime() - start;
    return got;
}

void pi_ranks_learn_sizes(size_t own, size_t *size)
{
    uint64_t number = own, all[PI_RANKS_MOST];
    MPI_Allgather(&number, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, MPI_COMM_WORLD);
    for (int32_t r = 0; r < ranks.n_rank; r++)
        size[r] = (size_t)all[r];
}

/* ---- agreement ---- */

void pi_ranks_tell(void *data, size_t size)
{
    if (!is_alone())
        MPI_Bcast(data, (int)size, MPI_BYTE, 0, MPI_COMM_WORLD);
}

void pith_ranks_tell(void *data, size_t size)
{
    pi_ranks_tell(data, size);
}

void pi_ranks_wake(void)
{
    for (int32_t r = 1; r < ranks.n_rank; r++)
        MPI_Send(NULL, 0, MPI_BYTE, r, WAKE_TAG, MPI_COMM_WORLD);
}

/* MPI itself waits with all of a processor. Between two steps of rank 0 that is short. */
void pi_ranks_sleep(void)
{
    int there = 0;
    double start = MPI_Wtime();
    for (;;) {
        MPI_Iprobe(0, WAKE_TAG, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
        if (there)
            break;
        double waited = MPI_Wtime() - start;
        if (waited > SPIN_S)
            nanosleep(&(struct timespec){.tv_nsec = waited < LONG_S ? SHORT_NS : LONG_NS}, NULL);
        else
            sched_yield();
    }
    MPI_Recv(NULL, 0, MPI_BYTE, 0, WAKE_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

int64_t pi_ranks_least(int64_t number)
{
    int64_t least = number;
    if (!is_alone())
        MPI_Allreduce(&number, &least, 1, MPI_INT64_T, MPI_MIN, MPI_COMM_WORLD);
    return least;
}

int64_t pi_ranks_sum(int64_t number)
{
    int64_t sum = number;
    if (!is_alone())
        MPI_Allreduce(&number, &sum, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    return sum;
}

pith_status pi_ranks_agree(pith_status status, pith_error *err)
{
    int failed = status != PITH_OK ? ranks.rank : PI_RANKS_MOST, first;
    pith_error said = {.status = status};
    if (is_alone())
        return status;
    MPI_Allreduce(&failed, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (first == PI_RANKS_MOST)
        return PITH_OK;
    if (status != PITH_OK && err != NULL)
        said = *err;
    MPI_Bcast(&said, (int)sizeof(said), MPI_BYTE, first, MPI_COMM_WORLD);
    if (first == 0)
        return pi_fail(err, said.status, "%s", said.message);
    return pi_fail(err, said.status, "rank %d: %.200s", first, said.message);
}

pith_status pi_ranks_same(const char *what, uint64_t number, pith_error *err)
{
    uint64_t first = number;
    int differs, any;
    if (is_alone())
        return PITH_OK;
    pi_ranks_tell(&first, sizeof(first));
    differs = first != number ? ranks.rank : PI_RANKS_MOST;
    MPI_Allreduce(&differs, &any, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (any < PI_RANKS_MOST)
        return pi_fail(err, PITH_INVALID, "rank %d of %d: its %s differ from rank 0's", any,
                       ranks.n_rank, what);
    return PITH_OK;
}

/* ---- layers ---- */

void pi_ranks_choose(double layer_s)
{
    if (is_alone() || ranks.split != PITH_SPLIT_AUTO)
        return;
    ranks.split = ranks.probe_s < layer_s / 10 ? PITH_SPLIT_ROWS : PITH_SPLIT_LAYERS;
    pi_ranks_tell(&ranks.split, sizeof(ranks.split));
}

static void count_sent(size_t size, double start)
{
    ranks.sent_bytes += (int64_t)size;
    ranks.n_gather++;
    ranks.gather_s += MPI_Wtime() - start;
}

void pi_ranks_receive(void *rows, size_t size)
{
    double start = MPI_Wtime();
    MPI_Recv(rows, (int)size, MPI_BYTE, ranks.rank - 1, ROWS_TAG, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
    ranks.gather_s += MPI_Wtime() - start;
}

void pi_ranks_hand_on(const void *rows, size_t size)
{
    size_t i = n_ahead++ % PI_LEN(ahead);
    double start = MPI_Wtime();
    if (ahead[i].busy)
        MPI_Wait(&ahead[i].request, MPI_STATUS_IGNORE);
    if (ahead[i].cap < size) {
        pi_mem_free(ahead[i].rows);
        ahead[i].rows = take(size);
        ahead[i].cap = size;
    }
    memcpy(ahead[i].rows, rows, size);
    MPI_Isend(ahead[i].rows, (int)size, MPI_BYTE, ranks.rank + 1, ROWS_TAG, MPI_COMM_WORLD,
              &ahead[i].request);
    ahead[i].busy = true;
    count_sent(size, start);
}

void pi_ranks_move(void)
{
    for (size_t i = 0; i < PI_LEN(ahead); i++) {
        int done = 0;
        if (ahead[i].busy)
            MPI_Test(&ahead[i].request, &done, MPI_STATUS_IGNORE);
        ahead[i].busy = ahead[i].busy && !done;
    }
}

void pi_ranks_tell_last(void *data, size_t size)
{
    int last = ranks.n_rank - 1;
    double start = MPI_Wtime();
    if (is_alone())
        return;
    MPI_Bcast(data, (int)size, MPI_BYTE, last, MPI_COMM_WORLD);
    if (ranks.rank == last)
        count_sent(size * (size_t)last, start);
    else
        ranks.gather_s += MPI_Wtime() - start;
}

void pi_ranks_give_first(void *data, size_t size)
{
    int last = ranks.n_rank - 1;
    double start = MPI_Wtime();
    if (is_alone())
        return;
    if (ranks.rank == last) {
        MPI_Send(data, (int)size, MPI_BYTE, 0, GIVE_TAG, MPI_COMM_WORLD);
        count_sent(size, start);
    } else if (ranks.rank == 0) {
        MPI_Recv(data, (int)size, MPI_BYTE, last, GIVE_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        ranks.gather_s += MPI_Wtime() - start;
    }
}
