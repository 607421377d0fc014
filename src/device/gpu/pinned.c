/*
 * pinned.c - memory of the host for pages that are swapped. The system takes long to pin memory. So
 * it comes in blocks which many requests share, and empty blocks stay for later ones, up to a
 * bound. Invariants: pieces of a block lie one behind the other and fill it, and no two
 * neighbours are free. `pinned` of the device counts all blocks.
 */
#include "device/gpu/host.h"

enum {
    FIRST_BLOCK = 8 << 20,
    MOST_BLOCK = 64 << 20, /* but where one request is larger */
    EMPTY_MOST = 256 << 20 /* bytes of blocks that are empty */
};

struct piece {
    struct piece *next;
    size_t size;
    bool used;
};

struct gpu_pinned {
    struct gpu_pinned *next;
    uint8_t *host;
    size_t size;
    struct piece *piece; /* from the block's begin on, owned */
};

static bool is_empty(const struct gpu_pinned *b)
{
    return !b->piece->used && b->piece->next == NULL;
}

static void drop_block(struct gpu_device *d, struct gpu_pinned **link)
{
    struct gpu_pinned *b = *link;
    *link = b->next;
    if (b->host != NULL) {
        d->card->free_host(d->card, b->host, b->size);
        atomic_fetch_sub(&d->base.pinned, (int64_t)b->size);
    }
    for (struct piece *p = b->piece, *next; p != NULL; p = next) {
        next = p->next;
        pi_mem_free(p);
    }
    pi_mem_free(b);
}

static void drop_empty(struct gpu_device *d)
{
    for (struct gpu_pinned **link = &d->pinned; *link != NULL;)
        if (is_empty(*link))
            drop_block(d, link);
        else
            link = &(*link)->next;
}

/* A block of that size, all of it free; false: no memory. */
static bool add_block(struct gpu_device *d, size_t size)
{
    struct gpu_pinned *b = pi_mem_alloc(PI_MEM_DEVICE, sizeof(*b));
    gpu_at at;
    if (b == NULL)
        return false;
    b->next = d->pinned;
    d->pinned = b;
    b->size = size;
    b->piece = pi_mem_alloc(PI_MEM_DEVICE, sizeof(*b->piece));
    if (b->piece != NULL)
        b->host = d->card->alloc_host(d->card, size, &at);
    if (b->host == NULL) {
        drop_block(d, &d->pinned);
        return false;
    }
    b->piece->size = size;
    atomic_fetch_add(&d->base.pinned, (int64_t)size);
    return true;
}

/* The first free piece that is large enough; NULL: there is none, or no memory to cut it. */
static uint8_t *take_from(struct gpu_pinned *b, size_t size)
{
    uint8_t *at = b->host;
    struct piece *p = b->piece;
    for (; p != NULL && (p->used || p->size < size); p = p->next)
        at += p->size;
    if (p == NULL)
        return NULL;
    if (p->size > size) {
        struct piece *rest = pi_mem_alloc(PI_MEM_DEVICE, sizeof(*rest));
        if (rest == NULL)
            return NULL;
        *rest = (struct piece){.next = p->next, .size = p->size - size};
        p->next = rest;
        p->size = size;
    }
    p->used = true;
    return at;
}

static uint8_t *take(struct gpu_device *d, size_t size)
{
    uint8_t *at = NULL;
    for (struct gpu_pinned *b = d->pinned; b != NULL && at == NULL; b = b->next)
        at = take_from(b, size);
    return at;
}

/* Blocks grow with what there is, so that little is pinned for little. */
void *gpu_pinned_take(struct gpu_device *d, size_t size)
{
    size = pi_align(size + (size == 0), 256);
    int64_t more = pi_min(pi_max(atomic_load(&d->base.pinned), FIRST_BLOCK), MOST_BLOCK);
    uint8_t *at = take(d, size);
    if (at != NULL)
        return at;
    if (!add_block(d, (size_t)pi_max(more, (int64_t)size))) {
        drop_empty(d);
        if (!add_block(d, size))
            return NULL;
    }
    return take_from(d->pinned, size);
}

/* Free neighbours of pieces become one. */
static void join(struct gpu_pinned *b)
{
    for (struct piece *p = b->piece; p->next != NULL;) {
        struct piece *next = p->next;
        if (p->used || next->used) {
            p = next;
            continue;
        }
        p->size += next->size;
        p->next = next->next;
        pi_mem_free(next);
    }
}

void gpu_pinned_give(struct gpu_device *d, void *host)
{
    struct gpu_pinned **link = &d->pinned;
    size_t empty = 0;
    while ((uintptr_t)host - (uintptr_t)(*link)->host >= (*link)->size)
        link = &(*link)->next;
    uint8_t *at = (*link)->host;
    struct piece *p = (*link)->piece;
    for (; at != host; p = p->next)
        at += p->size;
    assert(p->used);
    p->used = false;
    join(*link);
    for (const struct gpu_pinned *b = d->pinned; b != NULL; b = b->next)
        empty += is_empty(b) ? b->size : 0;
    if (is_empty(*link) && empty > EMPTY_MOST)
        drop_block(d, link);
}

void gpu_pinned_free(struct gpu_device *d)
{
    drop_empty(d);
    assert(d->pinned == NULL);
}
