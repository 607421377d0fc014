/*
 * fuzz_recall.c - the readers of the file of recall's second tier, of its header and of the heads
 * of pages. They read any bytes, as they are and with correct checksums. A finding is a sanitizer's
 * report or a refusal without a sentence. So is accepted input that breaks tier.h's promises or is
 * not read again as it was written.
 */
#include <stdlib.h>

#include "file/sum.h"
#include "policy/recall/tier.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void put_le(uint8_t *p, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(value >> (8 * i));
}

static void try_header(const uint8_t *data, size_t size)
{
    struct recall_file_shape shape;
    size_t header = 0;
    pith_error err = {0};
    pith_status status = recall_file_parse(data, size, &shape, &header, &err);
    if (status != PITH_OK) {
        require(err.message[0] != '\0' && err.status == status);
        return;
    }
    require(header <= size && header <= RECALL_FILE_HEADER_MAX);
    require(shape.n_layer >= 1 && shape.n_layer <= RECALL_FILE_LAYER_MAX && shape.n_head >= 1);
    require(shape.n_place >= 1 && shape.n_place <= RECALL_PAGES_MOST);
    for (int32_t l = 0; l < shape.n_layer; l++)
        require(recall_file_place_size(data, l) > RECALL_HEAD_SIZE);
}

static void try_head(const uint8_t data[RECALL_HEAD_SIZE])
{
    struct recall_head head, again;
    uint8_t bytes[RECALL_HEAD_SIZE];
    bool empty;
    pith_error err = {0};
    pith_status status = recall_head_parse(data, &head, &empty, &err);
    if (status != PITH_OK) {
        require(err.message[0] != '\0' && err.status == status && !empty);
        return;
    }
    if (empty)
        return;
    require(head.n >= 1 && head.n <= RECALL_PAGE_LEN && head.lane >= 0);
    recall_head_format(&head, bytes);
    require(recall_head_parse(bytes, &again, &empty, &err) == PITH_OK && !empty);
    require(memcmp(&head, &again, sizeof(head)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_header(data, size);
    if (size >= RECALL_FILE_HEADER + 8 && size <= RECALL_FILE_HEADER_MAX) {
        uint8_t sealed[RECALL_FILE_HEADER_MAX];
        const uint32_t order = RECALL_FILE_ORDER;
        memcpy(sealed, data, size);
        memcpy(sealed, RECALL_FILE_MAGIC, 8);
        memcpy(sealed + 12, &order, sizeof(order));
        put_le(sealed + size - 8, pi_sum_of(sealed, size - 8));
        try_header(sealed, size);
    }
    if (size >= RECALL_HEAD_SIZE) {
        uint8_t sealed[RECALL_HEAD_SIZE];
        try_head(data);
        memcpy(sealed, data, sizeof(sealed));
        memcpy(sealed, "PAGE", 4);
        memset(sealed + 56, 0, 8);
        put_le(sealed + 56, pi_sum_of(sealed, sizeof(sealed)));
        try_head(sealed);
    }
    return 0;
}
