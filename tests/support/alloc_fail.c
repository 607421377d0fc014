/* alloc_fail.c - the wrapped allocation functions. One thread at a time counts. */
#include "alloc_fail.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>

static int64_t n_call, fail_from;

static bool fails(void)
{
    n_call++;
    return fail_from > 0 && n_call >= fail_from;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}
void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}
void *__wrap_realloc(void *old, size_t size)
{
    return fails() ? NULL : __real_realloc(old, size);
}

static void *json_malloc(size_t size)
{
    return malloc(size);
}
static void json_free(void *block)
{
    free(block);
}

void alloc_fail_begin(void)
{
    json_set_alloc_funcs(json_malloc, json_free);
}

int64_t alloc_fail_at(int64_t n)
{
    int64_t counted = n_call;
    n_call = 0;
    fail_from = n;
    return counted;
}
