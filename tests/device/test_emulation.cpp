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

enum { N = 128 };

struct args {
    float *out;
    const float *in;
    int mutant; /* what is left out; 0: nothing */
};

enum { NO_BARRIER = 1, NO_WAIT, SHORT_MEMORY, LANES_APART, THREADS_APART };

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

static float in[N], out[N];

static void run_turn(void *p)
{
    turn_round(*(args *)p);
}

static void run_sum(void *p)
{
    sum_warp(*(args *)p);
}

/* Whether the kernel ends, and gives what it should. */
static bool is_right(void (*run)(void *), int mutant)
{
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

#ifdef __SANITIZE_ADDRESS__
TEST(a_float_too_little_of_shared_memory_is_caught)
{
    assert_true(is_caught(run_turn, SHORT_MEMORY));
}
#endif
