/*
 * arch.c - the table of families.
 */
#include "model/arch.h"

static const struct pi_arch *const families[] = {&pi_arch_llama, &pi_arch_qwen2, &pi_arch_qwen3};

const struct pi_arch *pi_arch_find(const char *name, size_t len)
{
    for (size_t i = 0; i < PI_LEN(families); i++)
        if (strlen(families[i]->name) == len && !memcmp(families[i]->name, name, len))
            return families[i];
    return NULL;
}
