/*
 * fuzz_weights.c - the check of files of packed weights on any bytes, as they are and with a right
 * head in front. A finding is a sanitizer's report, a refusal without a sentence, or a file that is
 * accepted and is not the one, whole.
 */
#include <stdlib.h>

#include "file/sum.h"
#include "model/weights_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEAD_SIZE (PI_WEIGHTS_FIXED + 3 * PI_WEIGHTS_ENTRY + PI_WEIGHTS_SUM)

static void check(const uint8_t *data, size_t size, const struct pi_weights_head *head)
{
    pith_error err = {0};
    bool ours;
    pith_status status = pi_weights_check(data, size, head, &ours, &err);
    if (status != PITH_OK && (err.message[0] == 0 || err.status != status))
        abort();
    if (status == PITH_OK &&
        (!ours || size != head->file_size || memcmp(data, head->data, head->size) != 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[HEAD_SIZE] = PI_WEIGHTS_MAGIC;
    struct pi_weights_head head = {bytes, HEAD_SIZE, 512, 512 + 64};
    bytes[8] = PI_WEIGHTS_VERSION;
    bytes[12] = 3;
    for (size_t i = 16; i < HEAD_SIZE - PI_WEIGHTS_SUM; i++)
        bytes[i] = (uint8_t)(i * 37);
    uint64_t sum = pi_sum_of(bytes, HEAD_SIZE - PI_WEIGHTS_SUM);
    memcpy(bytes + HEAD_SIZE - PI_WEIGHTS_SUM, &sum, PI_WEIGHTS_SUM);
    check(data, size, &head);
    uint8_t *behind = malloc(HEAD_SIZE + size);
    if (behind == NULL)
        return 0;
    memcpy(behind, bytes, HEAD_SIZE);
    memcpy(behind + HEAD_SIZE, data, size);
    check(behind, HEAD_SIZE + size, &head);
    check(behind, size < HEAD_SIZE ? size : HEAD_SIZE, &head);
    if (size > 2) /* one byte of the head is another */
        behind[data[0] % HEAD_SIZE] ^= data[1];
    check(behind, HEAD_SIZE + size, &head);
    free(behind);
    return 0;
}
