/*
 * memory.c - memory of a device of GPU kind: blocks, mappings, rooms of kernels, room of the host.
 * It keeps a list of its blocks, since the driver wants sizes back. Invariant: `bytes` counts every
 * block that is given out, packed matrix and room, and what of mappings has memory.
 */
#include "device/gpu/host.h"

/* ---- what is given out ---- */

static bool note_block(struct gpu_device *d, gpu_at at, size_t size)
{
    if (d->n_block == d->cap_block) {
        size_t cap = d->cap_block * 2 + 16;
        struct gpu_block *more = pi_mem_grow(PI_MEM_DEVICE, d->block, cap, sizeof(*more));
        if (more == NULL)
            return false;
        d->block = more;
        d->cap_block = cap;
    }
    d->block[d->n_block++] = (struct gpu_block){at, size};
    atomic_fetch_add(&d->base.bytes, (int64_t)size);
    return true;
}

/* The block that begins there; its size, and it is forgotten. */
static size_t forget_block(struct gpu_device *d, gpu_at at)
{
    size_t i = d->n_block;
    while (i > 0 && d->block[i - 1].at != at)
        i--;
    assert(i > 0);
    size_t size = d->block[i - 1].size;
    d->block[i - 1] = d->block[--d->n_block];
    atomic_fetch_sub(&d->base.bytes, (int64_t)size);
    return size;
}

/* Small blocks that were given back are kept for the next of their size: the card would wait. */
enum { SPARE_MOST = 1 << 20 };

void gpu_free_spare(struct gpu_device *d, struct gpu_block *spare)
{
    if (spare->at != 0)
        d->driver->free(d->driver, spare->at, spare->size);
    *spare = (struct gpu_block){0, 0};
}

static void give_back(struct gpu_device *d, gpu_at at, size_t size)
{
    if (size > SPARE_MOST) {
        d->driver->free(d->driver, at, size);
        return;
    }
    gpu_free_spare(d, &d->spare[0]);
    d->spare[0] = d->spare[1];
    d->spare[1] = (struct gpu_block){at, size};
}

static gpu_at alloc_block(struct gpu_device *d, size_t size)
{
    for (int i = 0; i < 2; i++)
        if (d->spare[i].at != 0 && d->spare[i].size == size) {
            gpu_at at = d->spare[i].at;
            d->spare[i] = (struct gpu_block){0, 0};
            return at;
        }
    gpu_at at = d->driver->alloc(d->driver, size);
    if (at != 0)
        return at;
    gpu_free_spare(d, &d->spare[0]);
    gpu_free_spare(d, &d->spare[1]);
    return d->driver->alloc(d->driver, size);
}

static gpu_at take(struct gpu_device *d, size_t size)
{
    size += size == 0;
    gpu_at at = alloc_block(d, size);
    if (at != 0 && !note_block(d, at, size)) {
        d->driver->free(d->driver, at, size);
        return 0;
    }
    return at;
}

struct pi_at gpu_alloc(struct pi_device *device, enum pi_mem_tag tag, size_t size)
{
    struct gpu_device *d = gpu_of(device);
    (void)tag;
    gpu_enter_pass(d);
    gpu_at at = take(d, size);
    if (at != 0)
        d->driver->clear(d->driver, at, size);
    gpu_leave(d);
    return (struct pi_at){(uintptr_t)at};
}

void gpu_free(struct pi_device *device, struct pi_at at)
{
    struct gpu_device *d = gpu_of(device);
    if (!pi_at_some(at))
        return;
    gpu_enter_pass(d);
    give_back(d, at.at, forget_block(d, at.at));
    gpu_leave(d);
}

/* ---- mapped memory ---- */

struct gpu_mapping *gpu_mapping_of(struct gpu_device *d, gpu_at at)
{
    struct gpu_mapping *m = d->mapping;
    while (m != NULL && at - m->at >= m->size)
        m = m->next;
    return m;
}

static bool is_touched(const struct gpu_mapping *m, size_t i)
{
    return (m->touched[i / 64] >> (i % 64) & 1) != 0;
}

bool gpu_touch(struct gpu_device *d, gpu_at at, size_t size)
{
    struct gpu_mapping *m = gpu_mapping_of(d, at);
    size_t chunk = d->card->chunk;
    if (m == NULL || m->host != NULL || size == 0)
        return true;
    for (size_t i = (size_t)(at - m->at) / chunk; i * chunk < at - m->at + size; i++) {
        if (is_touched(m, i))
            continue;
        if (!d->driver->touch(d->driver, m->at + i * chunk, chunk)) {
            d->driver->failure = "no memory is left for pages";
            return false;
        }
        m->touched[i / 64] |= (uint64_t)1 << (i % 64);
        atomic_fetch_add(&d->base.bytes, (int64_t)chunk);
    }
    return true;
}

/* The chunks that lie within. */
static void drop(struct gpu_device *d, gpu_at at, size_t size)
{
    struct gpu_mapping *m = gpu_mapping_of(d, at);
    size_t chunk = d->card->chunk;
    assert(m != NULL);
    if (m->host != NULL)
        return;
    for (size_t i = ((size_t)(at - m->at) + chunk - 1) / chunk;
         (i + 1) * chunk <= at - m->at + size; i++)
        if (is_touched(m, i)) {
            d->driver->drop(d->driver, m->at + i * chunk, chunk);
            m->touched[i / 64] &= ~((uint64_t)1 << (i % 64));
            atomic_fetch_sub(&d->base.bytes, (int64_t)chunk);
        }
}

static size_t touched_size(const struct gpu_device *d, size_t size)
{
    return (size / d->card->chunk / 64 + 1) * sizeof(uint64_t);
}

static struct gpu_mapping *make_mapping(struct gpu_device *d, size_t size)
{
    struct gpu_mapping *m = pi_mem_alloc(PI_MEM_DEVICE, sizeof(*m));
    if (m == NULL)
        return NULL;
    m->touched = pi_mem_map(PI_MEM_DEVICE, touched_size(d, size));
    m->at = m->touched != NULL ? d->driver->map(d->driver, size) : 0;
    m->size = size;
    if (m->at != 0)
        return m;
    if (m->touched != NULL)
        pi_mem_unmap(PI_MEM_DEVICE, m->touched, touched_size(d, size));
    pi_mem_free(m);
    return NULL;
}

struct pi_at gpu_map(struct pi_device *device, enum pi_mem_tag tag, size_t size)
{
    struct gpu_device *d = gpu_of(device);
    (void)tag;
    gpu_enter(d);
    struct gpu_mapping *m = make_mapping(d, size);
    if (m != NULL) {
        m->next = d->mapping;
        d->mapping = m;
    }
    gpu_leave(d);
    return (struct pi_at){m != NULL ? (uintptr_t)m->at : 0};
}

struct pi_at gpu_map_host(struct pi_device *device, size_t size)
{
    struct gpu_device *d = gpu_of(device);
    gpu_enter(d);
    struct gpu_mapping *m = pi_mem_alloc(PI_MEM_DEVICE, sizeof(*m));
    if (m != NULL)
        m->host = d->card->alloc_host(d->card, size, &m->at);
    if (m != NULL && m->host != NULL) {
        m->size = size;
        m->next = d->mapping;
        d->mapping = m;
    } else {
        pi_mem_free(m);
        m = NULL;
    }
    gpu_leave(d);
    return (struct pi_at){m != NULL ? (uintptr_t)m->at : 0};
}

static void free_mapping(struct gpu_device *d, struct gpu_mapping **link)
{
    struct gpu_mapping *m = *link;
    size_t chunk = d->card->chunk, n = 0;
    *link = m->next;
    if (m->host != NULL) {
        d->driver->wait(d->driver);
        d->card->free_host(d->card, m->host, m->size);
        pi_mem_free(m);
        return;
    }
    d->driver->unmap(d->driver, m->at, m->size);
    for (size_t i = 0; i * chunk < m->size; i++)
        n += is_touched(m, i);
    atomic_fetch_sub(&d->base.bytes, (int64_t)(n * chunk));
    pi_mem_unmap(PI_MEM_DEVICE, m->touched, touched_size(d, m->size));
    pi_mem_free(m);
}

void gpu_unmap(struct pi_device *device, enum pi_mem_tag tag, struct pi_at at, size_t size)
{
    struct gpu_device *d = gpu_of(device);
    struct gpu_mapping **link = &d->mapping;
    (void)tag;
    (void)size;
    if (!pi_at_some(at))
        return;
    gpu_enter(d);
    gpu_fold_clipped(d); /* the cache is still there */
    d->noted = NULL;
    gpu_forget_projection(d);
    while ((*link)->at != at.at)
        link = &(*link)->next;
    free_mapping(d, link);
    gpu_leave(d);
}

void gpu_drop(struct pi_device *device, struct pi_at at, size_t size)
{
    struct gpu_device *d = gpu_of(device);
    gpu_enter(d);
    drop(d, at.at, size);
    gpu_leave(d);
}

/* Bytes from there on that have memory, at most. */
static size_t touched_from(struct gpu_device *d, gpu_at at, size_t most)
{
    const struct gpu_mapping *m = gpu_mapping_of(d, at);
    size_t chunk = d->card->chunk, n = 0, begin = m != NULL ? (size_t)(at - m->at) : 0;
    if (m != NULL && m->host != NULL)
        return (size_t)pi_min((int64_t)most, (int64_t)(m->size - begin));
    while (m != NULL && n < most && begin + n < m->size && is_touched(m, (begin + n) / chunk))
        n += chunk - (begin + n) % chunk;
    return m != NULL ? (size_t)pi_min(pi_min((int64_t)n, (int64_t)most), (int64_t)(m->size - begin))
                     : 0;
}

enum { AHEAD_MOST = 2 << 20 };

void gpu_get_near(struct gpu_device *d, void *host, gpu_at from, size_t size)
{
    struct gpu_ahead *a = &d->ahead;
    bool same = a->asked == d->driver->n_asked && d->driver->failure == NULL;
    if (same && a->has && from >= a->at && from + size <= a->at + a->size) {
        memcpy(host, a->bytes + (from - a->at), size);
        return;
    }
    size_t more = same && from == a->at + a->size ? 2 * a->size : 0;
    more = touched_from(d, from, (size_t)pi_min((int64_t)more, AHEAD_MOST));
    more -= more % size;
    *a = (struct gpu_ahead){from, size, more > size, d->driver->n_asked, a->bytes};
    if (a->has && gpu_host_room(d, (void **)&a->bytes, more)) {
        a->size = more;
        d->driver->get(d->driver, a->bytes, from, more);
        memcpy(host, a->bytes, size);
        return;
    }
    a->has = false;
    d->driver->get(d->driver, host, from, size);
}

bool gpu_spare(struct pi_device *device, size_t size)
{
    struct gpu_device *d = gpu_of(device);
    size_t unused, total;
    gpu_enter_pass(d);
    d->card->memory(d->card, &unused, &total);
    gpu_leave(d);
    return unused >= size + d->card->chunk;
}

/* ---- rooms ---- */

gpu_at gpu_room(struct gpu_device *d, enum gpu_room room, size_t size)
{
    struct gpu_block *b = &d->room[room];
    if (size <= b->size && b->at != 0)
        return b->at;
    size = pi_align(size + size / 2, 4096);
    if (b->at != 0)
        d->driver->free(d->driver, b->at, b->size);
    atomic_fetch_sub(&d->base.bytes, (int64_t)b->size);
    *b = (struct gpu_block){d->driver->alloc(d->driver, size), size};
    if (b->at == 0) {
        b->size = 0;
        d->driver->failure = "no memory is left for what is computed";
    }
    atomic_fetch_add(&d->base.bytes, (int64_t)b->size);
    return b->at;
}

bool gpu_host_room(struct gpu_device *d, void **block, size_t size)
{
    if (*block != NULL && pi_mem_size(*block) >= size)
        return true;
    pi_mem_free(*block);
    *block = pi_mem_alloc(PI_MEM_DEVICE, size + size / 2);
    if (*block == NULL)
        d->driver->failure = "no memory of the host is left";
    return *block != NULL;
}

bool gpu_host_grow(struct gpu_device *d, void **block, size_t used, size_t n, size_t size)
{
    if (*block != NULL && pi_mem_size(*block) >= (used + n) * size)
        return true;
    void *more = pi_mem_grow(PI_MEM_DEVICE, *block, 2 * (used + n), size);
    if (more == NULL) {
        d->driver->failure = "no memory of the host";
        return false;
    }
    *block = more;
    return true;
}
