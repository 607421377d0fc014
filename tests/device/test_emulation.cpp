/*
 * The emulation finds what a GPU hides: each kernel here is one that is right, or a mutant of it
 * with one thing left out. A mutant must give a wrong number or end the process, in every order of
 * warps that has to show it. Kernels of the library are checked by the same means (test_gpu.c).
 */
#define _Noreturn [[noreturn]] /* C11's, in testing.h */

extern "C" {
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "testing.h"
}

#include "device/gpu/gpu.h"
#include "device/gpu/matmul_wgmma.cuh"

enum { N = 128 };

struct args {
    float *out;
    const float *in;
    int mutant; /* what is left out; 0: nothing */
};

enum {
    NO_BARRIER = 1,
    NO_WAIT,
    SHORT_MEMORY,
    LANES_APART,
    THREADS_APART,
    NO_PRODUCT_WAIT,
    EARLY_REGISTER,
    EARLY_MEMORY,
    EARLY_ROWS
};

/* out[i] = in[N - 1 - i], by way of shared memory and asynchronous copies. */
KERNEL(N, 1) turn_round(const args a)
{
    SHARED(smem);
    float *x = (float *)smem;
    if (TID < N / 4)
        cp16(x + 4 * TID, a.in + 4 * TID);
    cp_commit();
    if (a.mutant != NO_WAIT)
        CP_WAIT(0);
    if (a.mutant == THREADS_APART && TID == 5)
        return;
    if (a.mutant != NO_BARRIER)
        sync_block();
    a.out[TID] = x[N - 1 - TID];
}

/* The sum of a warp's numbers, in every lane. */
KERNEL(32, 1) sum_warp(const args a)
{
    float v = a.in[TID];
    for (int mask = 16; mask > 0; mask /= 2)
        if (a.mutant == LANES_APART && TID == 7)
            sync_warp();
        else
            v += shfl_xor(v, mask);
    a.out[TID] = v;
}

/* Numbers of a [64][32] and b [32][64], all exact in f16 with their products' sums. */
BOTH float left(int row, int k)
{
    return (float)((row * 5 + k * 3) % 17 - 8);
}
BOTH float right(int k, int column)
{
    return (float)((k * 7 + column * 11) % 13 - 6);
}

/* out[thread] = the sum of the 32 numbers of a b that a thread has, each times its place. Which ones
   it has is as PTX has it for m64n64k16. */
KERNEL(128, 1) multiply_group(const args a)
{
    SHARED(smem);
    uint16_t *b = (uint16_t *)smem; /* 8 x 8 matrices, as wgmma_matrix says, of 64 k */
    for (int i = TID; i < 32 * 64; i += 128) {
        const int k = i / 64, n = i % 64;
        b[n / 8 * 512 + k / 8 * 64 + n % 8 * 8 + k % 8] = (uint16_t)h2(right(k, n), 0.0f);
    }
    sync_block();
    float d[32];
    uint32_t x[2][4];
    const int row = 16 * WARP + LANE / 4, column = 2 * (LANE % 4);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 4; i++) {
            const int r = row + i % 2 * 8, c = 16 * k + column + i / 2 * 8;
            x[k][i] = h2(left(r, c), left(r, c + 1));
        }
    for (int i = 0; i < 32; i++)
        d[i] = 1000.0f; /* the first product does not add to it */
    wgmma_fence();
    for (int k = 0; k < 2; k++)
        wgmma(d, x[k], wgmma_matrix(smem_at(smem) + k * 256), k > 0);
    wgmma_commit();
    if (a.mutant == EARLY_REGISTER)
        x[1][2] = 0;
    if (a.mutant == EARLY_MEMORY && TID == 77)
        b[3] = 0;
    if (a.mutant != NO_PRODUCT_WAIT)
        WGMMA_WAIT(0);
    float sum = 0.0f;
    for (int i = 0; i < 32; i++)
        sum += (float)(i + 1) * d[i];
    a.out[TID] = sum;
}

/* The same, with both factors in shared memory, the second one turned. */
KERNEL(128, 1) multiply_shared(const args a)
{
    enum { NEXT_K = 64 * 16, NEXT = 4 * 128 }; /* bytes, of rows and of columns */
    SHARED(smem);
    uint8_t *rows = smem, *columns = smem + 4 * NEXT_K;
    for (int i = TID; i < 32 * 64; i += 128) {
        const int k = i / 64, n = i % 64;
        *(uint16_t *)(rows + k / 8 * NEXT_K + n / 8 * 128 + n % 8 * 16 + k % 8 * 2) =
            (uint16_t)h2(left(n, k), 0.0f);
        *(uint16_t *)(columns + k / 8 * 128 + n / 8 * NEXT + k % 8 * 16 + n % 8 * 2) =
            (uint16_t)h2(right(k, n), 0.0f);
    }
    fence_products();
    sync_block();
    float d[32];
    for (int i = 0; i < 32; i++)
        d[i] = 1000.0f;
    wgmma_fence();
    for (int k = 0; k < 2; k++)
        wgmma<true>(d, wgmma_operand(smem_at(rows) + k * 2 * NEXT_K, NEXT_K, 128),
                    wgmma_operand(smem_at(columns) + k * 256, 128, NEXT), k > 0);
    wgmma_commit();
    if (a.mutant == EARLY_ROWS && TID == 77)
        rows[4 * 128] ^= 1; /* of its own warp */
    WGMMA_WAIT(0);
    float sum = 0.0f;
    for (int i = 0; i < 32; i++)
        sum += (float)(i + 1) * d[i];
    a.out[TID] = sum;
}

static float in[N], out[N];

static void run_turn(void *p)
{
    turn_round(*(args *)p);
}

static void run_sum(void *p)
{
    sum_warp(*(args *)p);
}

static void run_group(void *p)
{
    multiply_group(*(args *)p);
}

static void run_shared(void *p)
{
    multiply_shared(*(args *)p);
}

/* What thread t of a warp group should give: number i is of row 8 (i / 2 % 2) + t % 32 / 4 of its
   warp's, and of column 8 (i / 4) + 2 (t % 4) + i % 2. */
static float group_sum(int t)
{
    float sum = 0.0f;
    for (int i = 0; i < 32; i++) {
        const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, n = i / 4 * 8 + t % 4 * 2 + i % 2;
        float d = 0.0f;
        for (int k = 0; k < 32; k++)
            d += left(row, k) * right(k, n);
        sum += (float)(i + 1) * d;
    }
    return sum;
}

static bool is_right_group(void (*run)(void *), int mutant)
{
    args a = {out, in, mutant};
    emu_grid(dim3(1), dim3(N), 64 * 64 * sizeof(uint16_t), run, &a);
    for (int t = 0; t < N; t++)
        if (!(out[t] == group_sum(t)))
            return false;
    return true;
}

/* Whether the kernel ends, and gives what it should. */
static bool is_right(void (*run)(void *), int mutant)
{
    if (run == run_group || run == run_shared)
        return is_right_group(run, mutant);
    args a = {out, in, mutant};
    size_t smem = mutant == SHORT_MEMORY ? (N - 4) * sizeof(float) : N * sizeof(float);
    for (int i = 0; i < N; i++)
        in[i] = (float)(i + 1);
    emu_grid(dim3(1), dim3(run == run_turn ? N : 32), smem, run, &a);
    for (int i = 0; i < (run == run_turn ? N : 32); i++)
        if (!(out[i] == (run == run_turn ? (float)(N - i) : 528.0f)))
            return false;
    return true;
}

/* In a process of its own: a mutant may end it. */
static bool is_caught(void (*run)(void *), int mutant)
{
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        close(2);
        _exit(is_right(run, mutant) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status != 0;
}

TEST(kernels_that_are_right_pass)
{
    assert_true(is_right(run_turn, 0));
    assert_true(is_right(run_sum, 0));
    assert_true(is_right(run_group, 0));
    assert_true(is_right(run_shared, 0));
}

TEST(a_missing_barrier_is_caught)
{
    assert_true(is_caught(run_turn, NO_BARRIER));
}

TEST(a_copy_that_nobody_waits_for_is_caught)
{
    assert_true(is_caught(run_turn, NO_WAIT));
}

TEST(threads_that_leave_a_barrier_out_are_caught)
{
    assert_true(is_caught(run_turn, THREADS_APART));
}

TEST(lanes_at_different_collectives_are_caught)
{
    assert_true(is_caught(run_sum, LANES_APART));
}

/* Products of a warp group run until they are waited for. */
TEST(operands_that_change_too_early_are_caught)
{
    assert_true(is_caught(run_group, NO_PRODUCT_WAIT));
    assert_true(is_caught(run_group, EARLY_REGISTER));
    assert_true(is_caught(run_group, EARLY_MEMORY));
    assert_true(is_caught(run_shared, EARLY_ROWS));
}

#ifdef __SANITIZE_ADDRESS__
TEST(a_float_too_little_of_shared_memory_is_caught)
{
    assert_true(is_caught(run_turn, SHORT_MEMORY));
}
#endif
