/*
 * policy_options.h - what the targets of policies' options make of an input: a shape of its first
 * two bytes, and a text of the rest.
 */
#ifndef PI_FUZZ_POLICY_OPTIONS_H
#define PI_FUZZ_POLICY_OPTIONS_H

#include <stdlib.h>
#include <string.h>

#include "kv/geometry.h"

static void require(bool holds)
{
    if (!holds)
        abort();
}

static struct kv_geometry policy_geometry(const uint8_t *data)
{
    return (struct kv_geometry){.n_layer = 1 + data[0] % 40,
                                .n_head = 1 + data[0] / 40,
                                .dim_k = 64,
                                .dim_v = 32,
                                .page_len = 16 << data[1] % 3,
                                .type_k = KV_TYPE_F16,
                                .type_v = KV_TYPE_Q8_0};
}

/* Terminated; the caller frees. size: 2 at least. */
static char *policy_text(const uint8_t *data, size_t size)
{
    char *text = malloc(size - 1);
    require(text != NULL);
    memcpy(text, data + 2, size - 2);
    text[size - 2] = '\0';
    return text;
}

#endif
