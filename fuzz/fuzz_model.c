/*
 * fuzz_model.c - pith_model_load on any bytes, through a file in memory: the shape, the tensors and
 * their packing, the vocabulary. A model that loads evaluates a few tokens.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "pith/inspect.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int64_t memory_used(void)
{
    int64_t sum = 0;
    for (int tag = 0; tag < PI_MEM_N_TAG; tag++)
        sum += pi_mem_used((enum pi_mem_tag)tag);
    return sum;
}

static void use(const pith_model *model)
{
    static const char text[] = "A <s>word</s>\n 12";
    char value[64], bytes[512];
    int32_t ids[64], n_id;
    size_t len;
    pith_model_info info;
    pith_tensor_info tensor;
    pith_model_get_info(model, &info);
    for (int64_t i = 0; i < pith_model_meta_count(model); i++)
        pith_model_meta(model, i, NULL, NULL, value, sizeof(value));
    for (int64_t i = 0; pith_model_tensor(model, i, &tensor) == PITH_OK; i++)
        ;
    if (pith_tokenize(model, text, sizeof(text) - 1, PITH_TOKENIZE_BOS | PITH_TOKENIZE_SPECIAL, ids,
                      64, &n_id, NULL) == PITH_OK)
        pith_detokenize(model, ids, n_id, true, bytes, sizeof(bytes), &len, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    pith_error err = {0};
    pith_model *model = NULL;
    pith_model_params params;
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    pith_model_params_default(&params);
    params.n_thread = 1;
    for (int vocab_only = 0; vocab_only <= 1; vocab_only++) {
        params.vocab_only = vocab_only;
        const pith_status status = pith_model_load(path, &params, &model, &err);
        if (status != PITH_OK && (err.message[0] == 0 || err.status != status))
            abort();
        if (status == PITH_OK) {
            use(model);
            pith_model_free(model);
        }
        if (memory_used() != 0)
            abort();
    }
    close(fd);
    return 0;
}
