/*
 * entries.cuh - single entries that come from the host or from another lane, and sums of values. A
 * block has one entry of one side.
 */
#ifndef PI_GPU_ENTRIES_CUH
#define PI_GPU_ENTRIES_CUH

#include "device/gpu/store.cuh"

/* Bytes as stored, or a row of floats. Shared: codes, then scales. Grid: rows. */
KERNEL(128, 4) entry_put(const gpu_entry_args &a)
{
    SHARED(smem);
    const gpu_entry_row row = AT(const gpu_entry_row, a.rows)[blockIdx.x];
    const gpu_part &part = a.part[row.value ? 1 : 0];
    uint8_t *page = AT(uint8_t, row.page);
    if (row.encode) {
        const float *x = AT(const float, row.from);
        uint16_t *scale = (uint16_t *)(smem + row_codes(part.dim));
        row_encode(part, x, smem, scale, TID);
        sync_block();
        row_store(part, x, smem, scale, page, a.page_len, row.slot, TID);
        return; /* the whole block */
    }
    const uint16_t *from = AT(const uint16_t, row.from);
    for (int p = 0; p < GPU_N_PLANE; p++) {
        const int n = (int)part.plane[p].row / 2;
        for (int u = TID; u < n; u += 128)
            *(uint16_t *)(page + unit_at(part, p, a.page_len, row.slot, u)) = from[u];
        from += n;
    }
}

/* An entry of another lane: part[0] is that of its pages, part[1] of those it goes to. As stored,
   or decoded, moved and encoded anew. Shared: [dim + 1] floats, codes, scales. Grid: rows. */
KERNEL(128, 4) entry_copy(const gpu_entry_args &a)
{
    SHARED(smem);
    const gpu_entry_row row = AT(const gpu_entry_row, a.rows)[blockIdx.x];
    const gpu_part &from = a.part[0], &to = a.part[1];
    const uint8_t *source = AT(const uint8_t, row.from);
    uint8_t *page = AT(uint8_t, row.page);
    if (!row.encode) {
        for (int p = 0; p < GPU_N_PLANE; p++)
            for (int u = TID; u < (int)to.plane[p].row / 2; u += 128)
                *(uint16_t *)(page + unit_at(to, p, a.page_len, row.slot, u)) =
                    (uint16_t)unit_of(from, p, source, a.from_len, row.from_slot, u);
        return; /* the whole block */
    }
    float *x = (float *)smem;
    uint8_t *code = smem + (to.dim + 4) / 4 * 16;
    uint16_t *scale = (uint16_t *)(code + row_codes(to.dim));
    decode_entries(from, source, a.from_len, row.from_slot, row.from_slot + 1, 1, x);
    for (int d = TID; row.shift != 0 && d < to.dim; d += 128)
        x[d] += AT(const float, row.shift)[d];
    sync_block();
    row_encode(to, x, code, scale, TID);
    sync_block();
    row_store(to, x, code, scale, page, a.page_len, row.slot, TID);
}

/* The sum of a page's values, where it is not there. Shared: [n_entry][dim + 1]. Grid: pages. */
KERNEL(128, 4) value_pages(const gpu_value_args &a)
{
    SHARED(smem);
    float *x = (float *)smem;
    const gpu_value_page page = AT(const gpu_value_page, a.pages)[blockIdx.x];
    float *out = AT(float, page.sum);
    for (int first = 0; page.makes && first < page.n; first += a.n_entry) {
        decode_entries(a.part, AT(const uint8_t, page.page), a.page_len, first, page.n, a.n_entry,
                       x);
        for (int d = TID; d < a.part.dim; d += 128)
            for (int e = 0; e < a.n_entry && first + e < page.n; e++) {
                const float y = x[e * (a.part.dim + 1) + d];
                out[d] = first + e == 0 ? y : out[d] + y;
            }
        sync_block();
    }
}

/* The sums of pages, added in order. Grid: dimensions / 128. */
KERNEL(128, 4) value_join(const gpu_value_args &a)
{
    const int d = (int)blockIdx.x * 128 + TID;
    float sum = 0.0f;
    if (d >= a.part.dim)
        return;
    for (int i = 0; i < a.n_page; i++)
        sum += AT(const float, AT(const gpu_value_page, a.pages)[i].sum)[d];
    AT(float, a.out)[d] = sum;
}

#endif
