/*
 * fuzz_projection.c - the reader of Loki's bases on any bytes, as they are and with size and
 * checksum made right. A finding is a sanitizer's report, a leak or a refusal without a sentence.
 * So are accepted bases that break projection.h's promises or are written differently from the
 * input.
 */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "file/sum.h"
#include "policy/read/projection.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* Writes and reads the bases again. */
static void check_round_trip(const struct pith_projection *p)
{
    struct pith_projection *again = NULL;
    uint8_t *bytes = NULL, *bytes_again = NULL;
    size_t n, n_again;
    require(projection_format(p, &bytes, &n, NULL) == PITH_OK);
    require(projection_parse(bytes, n, &again, NULL) == PITH_OK);
    require(projection_format(again, &bytes_again, &n_again, NULL) == PITH_OK);
    require(n == n_again && memcmp(bytes, bytes_again, n) == 0);
    pith_projection_free(again);
    pi_mem_free(bytes);
    pi_mem_free(bytes_again);
}

/* Values descend to 0 or more, vectors have length 1, and more of the variance takes no fewer
   dimensions. */
static void check(const struct pith_projection *p)
{
    int32_t rank = 0;
    for (int32_t l = 0; l < p->n_layer; l++)
        for (int32_t h = 0; h < p->n_head; h++)
            for (int32_t i = 0; i < p->dim; i++) {
                const float *value = projection_value(p, l, h);
                const float *vector = projection_vector(p, l, h) + (size_t)i * (size_t)p->dim;
                double length = 0.0;
                require(value[i] >= 0.0f && isfinite(value[i]));
                require(i == 0 || value[i] <= value[i - 1]);
                for (int32_t d = 0; d < p->dim; d++)
                    length += (double)vector[d] * (double)vector[d];
                require(fabs(length - 1.0) < 2e-3);
            }
    for (double share = 0.0; share <= 1.0; share += 0.25) {
        int32_t more = pith_projection_rank(p, -1, -1, share);
        require(more >= 1 && more >= rank && more <= p->dim);
        rank = more;
    }
    check_round_trip(p);
}

static void try_parse(const uint8_t *data, size_t size)
{
    struct pith_projection *p = NULL;
    pith_error err = {0};
    pith_status status = projection_parse(data, size, &p, &err);
    if (status == PITH_OK)
        check(p);
    else
        require(err.message[0] != '\0' && err.status == status && p == NULL);
    pith_projection_free(p);
}

static void put_le(uint8_t *p, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(value >> (8 * i));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_parse(data, size);
    if (size >= 80) {
        uint8_t *sealed = malloc(size);
        if (sealed == NULL)
            return 0;
        memcpy(sealed, data, size);
        memcpy(sealed, "PITHLOKI", 8);
        put_le(sealed + 16, size);
        put_le(sealed + size - 8, pi_sum_of(sealed, size - 8));
        try_parse(sealed, size);
        free(sealed);
    }
    require(pi_mem_used(PI_MEM_OTHER) == 0);
    return 0;
}
