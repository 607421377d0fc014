/*
 * testing.h - what every test includes: cmocka, TEST, a seeded generator, data that may be absent.
 */
#ifndef TESTING_H
#define TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "pith/pith.h"

/* The stride of loops over similar rounds. A build with sanitizers, which takes five to ten times
   as long, runs one round of TEST_STRIDE, every other build all of them. The number has no divisor
   in common with the periods of the rounds. */
#ifdef __SANITIZE_ADDRESS__
#define TEST_STRIDE 5
#else
#define TEST_STRIDE 1
#endif

/* Why a call failed: check(pith_seq_create(e, &seq, &err), &err). It belongs to the file and is
   empty when a test of it begins. Threads need one of their own. */
static pith_error err __attribute__((unused));

/* A test is TEST(evicts_oldest_of_equal_scores) { ... }, and its name is a sentence about its
   subject. It registers itself, with a constructor function, which GCC and Clang know. main() is
   testing.c's. It runs the tests of a program in the order of the file, or those whose names fit a
   pattern. */
struct test {
    const char *name;
    int line;
    void (*run)(void), (*set_up)(void), (*tear_down)(void); /* NULL: nothing to do */
    pith_error *err;                                        /* of its file */
    struct test *next;
};
void testing_add(struct test *test);

#define TEST(name) TEST_WITH(NULL, NULL, name)

/* set_up runs before the test, and tear_down behind it, whether it passed or not. */
#define TEST_WITH(set_up, tear_down, name)                                                         \
    static void test_##name(void);                                                                 \
    __attribute__((constructor)) static void add_test_##name(void)                                 \
    {                                                                                              \
        static struct test test = {#name, __LINE__, test_##name, set_up, tear_down, &err, NULL};   \
        testing_add(&test);                                                                        \
    }                                                                                              \
    static void test_##name(void)

/* The common fixture of all tests of a program: runs before the first and after the last of them. A
   program has one such line at most. */
#define TEST_GROUP(set_up, tear_down) const struct test_group test_group = {set_up, tear_down}
struct test_group {
    void (*set_up)(void), (*tear_down)(void);
};
extern const struct test_group test_group __attribute__((weak));

/* Frees memory when the running test ends. */
void test_free_later(void *memory);

/* Ends the running test as skipped, and prints why. A program whose tests were all skipped exits
   with 77. If a script of ours can fetch the missing data, the reason ends with "; to fetch it:
   COMMAND": scripts/test.sh counts these. */
_Noreturn void test_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The path of a file of test data, such as "tokenizer/ggml-vocab-gpt-2.gguf", or NULL. It lies in
   the folder that PITH_DATA names, in build-data, which scripts/data.sh fills, or in
   ../shared/data. The last eight paths stay valid. */
const char *test_data_find(const char *name);

/* The same of a file that the running test cannot do without. */
const char *test_data(const char *name);

/* A real pretrained model of this name, in the folder that PITH_MODELS names or in build-models,
   which scripts/models.sh fills. Without it the running test is skipped. */
const char *test_model_file(const char *name, const char *file);

/* The variable PITH_TEST_LAYERS: layers that engines of tests have on the tests' device, and the
   others on the processor; 0: none is set. */
int32_t test_gpu_layers(void);

/* splitmix64: the same numbers on every machine. */
static inline uint64_t rng_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [0, n). */
static inline uint64_t rng_below(uint64_t *state, uint64_t n)
{
    return rng_next(state) % n;
}

/* Uniform in [-1, 1). */
static inline float rng_float(uint64_t *state)
{
    return (float)(rng_next(state) >> 40) * 0x1p-23f - 1.0f;
}

/* Skips the running test when path cannot be read. */
#define SKIP_WITHOUT(path)                                                                         \
    do {                                                                                           \
        if (access((path), R_OK) != 0)                                                             \
            test_skip("%s is absent", (path));                                                     \
    } while (0)

#endif
