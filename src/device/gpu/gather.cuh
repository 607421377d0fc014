/*
 * gather.cuh - entries that attention reads of a lane, out of its pages. They become pages of f16,
 * 64 entries each, keys side by side and values entry by entry. So the kernels of frequent forms
 * take entries of any type, with the bits that attend_part has over the same list. For attend_wide
 * keys lie entry by entry, too.
 */
#ifndef PI_GPU_GATHER_CUH
#define PI_GPU_GATHER_CUH

#include "device/gpu/attend.cuh"

/* Number i of the entries that are read: guests come first, and have tiles of their own. */
DEV gpu_attend_entry gathered_entry(const gpu_gather_args &a, const gpu_gather_job &job, int i)
{
    if (job.chosen == 0)
        return AT(const gpu_attend_entry, job.entries)[i];
    const bool guest = i < job.n_guest;
    const int own = guest ? i : i - job.n_guest, before = job.n_first + job.n_chosen,
              tile = guest ? i / TILE : (job.n_guest + TILE - 1) / TILE + own / TILE;
    const int slot = guest || own < job.n_first ? own
                     : own < before ? AT(const int32_t, job.chosen)[own - job.n_first] + job.n_first
                                    : job.end - (job.n - job.n_guest) + own;
    const gpu_attend_ref ref =
        AT(const gpu_attend_ref, guest ? job.guests : job.refs)[slot / a.page_len];
    gpu_attend_entry entry;
    entry.page = a.pool + (uint64_t)ref.page * a.stride;
    entry.slot = slot % a.page_len;
    entry.pos =
        tile < job.high ? 0 : AT(const int32_t, job.pos)[(tile - job.high) * TILE + own % TILE];
    return entry;
}

/* The list of what was chosen. Grid: (entries / 128, calls). */
KERNEL(128, 8) gather_list(const gpu_gather_args &a)
{
    const gpu_gather_job job = AT(const gpu_gather_job, a.jobs)[blockIdx.y];
    const int i = (int)blockIdx.x * 128 + TID;
    if (job.chosen == 0 || i >= job.n)
        return;
    AT(gpu_attend_entry, job.entries)[i] = gathered_entry(a, job, i);
}

/* Eight numbers of an entry, as f16; zeros behind its last one. */
DEV uint4 gathered_eight(const gpu_part &part, const gpu_attend_entry &entry, int page_len, int d)
{
    const uint8_t *page = AT(const uint8_t, entry.page);
    float x[8];
    if (d >= part.dim)
        return make_uint4(0, 0, 0, 0);
    if (part.type == STORE_F16 && !part.beside &&
        (part.plane[PLANE_LOW].at | part.plane[PLANE_LOW].pitch) % 16 == 0)
        return *(const uint4 *)(page + part.plane[PLANE_LOW].at +
                                (size_t)entry.slot * part.plane[PLANE_LOW].pitch + d * 2);
    entry_read(part, page, page_len, entry.slot, d, x);
    return make_uint4(h2(x[0], x[1]), h2(x[2], x[3]), h2(x[4], x[5]), h2(x[6], x[7]));
}

/* Keys or values of a page, entry by entry. */
DEV void gathered_rows(uint8_t *to, const gpu_gather_args &a, const gpu_part &part, int dim,
                       const gpu_attend_entry *entry, int n)
{
    const int n8 = dim / 8;
    for (int i = TID; i < TILE * n8; i += 128) {
        const int e = i / n8, d = i % n8 * 8;
        *(uint4 *)(to + (e * dim + d) * 2) =
            e < n ? gathered_eight(part, entry[e], a.page_len, d) : make_uint4(0, 0, 0, 0);
    }
}

/* Keys side by side, by way of rows [64][dim + 2] in shared memory. */
DEV void gathered_beside(uint8_t *to, const gpu_gather_args &a, const gpu_attend_entry *entry,
                         int n, uint16_t *keys)
{
    const int dim = a.to_k, row = dim + 2, n8 = dim / 8;
    for (int i = TID; i < TILE * n8; i += 128) {
        const int e = i / n8, d = i % n8 * 8;
        const uint4 k =
            e < n ? gathered_eight(a.k, entry[e], a.page_len, d) : make_uint4(0, 0, 0, 0);
        uint32_t *out = (uint32_t *)(keys + e * row + d);
        out[0] = k.x, out[1] = k.y, out[2] = k.z, out[3] = k.w;
    }
    sync_block();
    for (int i = TID; i < dim * (TILE / 8); i += 128) {
        const int d = i / (TILE / 8), e = i % (TILE / 8) * 8;
        uint32_t x[4];
        UNROLL
        for (int j = 0; j < 4; j++)
            x[j] = keys[(e + 2 * j) * row + d] | (uint32_t)keys[(e + 2 * j + 1) * row + d] << 16;
        *(uint4 *)(to + (d * TILE + e) * 2) = make_uint4(x[0], x[1], x[2], x[3]);
    }
}

/* A page of what is read. Shared: 64 entries, and keys that will lie side by side. Grid: (pages,
   calls). */
KERNEL(128, 8) gather_pages(const gpu_gather_args &a)
{
    SHARED(smem);
    const gpu_gather_job job = AT(const gpu_gather_job, a.jobs)[blockIdx.y];
    const int tile = (int)blockIdx.x;
    if (tile >= job.n_tile)
        return; /* the whole block */
    const gpu_attend_ref from = AT(const gpu_attend_ref, job.tiles)[tile];
    gpu_attend_entry *entry = (gpu_attend_entry *)smem;
    uint8_t *to = AT(uint8_t, a.to) + (size_t)(job.first + tile) * a.to_stride;
    if (TID < from.n)
        entry[TID] = gathered_entry(a, job, from.page + TID);
    sync_block();
    if (a.to_v > 0)
        gathered_rows(to + TILE * a.to_k * 2, a, a.v, a.to_v, entry, from.n);
    if (a.beside)
        gathered_beside(to, a, entry, from.n, (uint16_t *)(entry + TILE));
    else
        gathered_rows(to, a, a.k, a.to_k, entry, from.n);
    if (TID == 0) {
        gpu_attend_ref ref = from;
        ref.page = job.first + tile;
        AT(gpu_attend_ref, a.refs)[job.first + tile] = ref;
    }
}

#endif
