/*
 * record.c - a driver over a card: launches and small copies are recorded, and lists are written
 * where the card will copy them from. A batch goes to the card when the host wants to know
 * something, and when it is long enough. Then the card works on while the host records the next.
 *
 * Invariant: a list's place depends on the sizes of those before it since the last wait. So the
 * same pass over again has the same places, its launches the same arguments, and the card may keep
 * what it made of them.
 */
#include "base/mem.h"
#include "device/gpu/driver.h"

enum {
    /* Launches of a batch: the first ones are short, so that the card begins soon. A batch costs
       the host about as much as ten launches, so the later ones are longer. */
    BATCH_FIRST = 16,
    BATCH_LONG = 128,
    BATCH_MOST = 512,      /* however long an operation is */
    ARGS_MOST = 512,       /* bytes of a kernel's struct */
    PUT_MOST = 16 << 10,   /* bytes of a copy from the host that is recorded */
    SLOT_LEAST = 256 << 10 /* bytes of a slot of lists */
};

#define GPU_K(name, threads, per_sm, type)                                                         \
    static_assert(sizeof(struct type) <= ARGS_MOST, "the arguments of " #name);
GPU_KERNELS
#undef GPU_K

#define GPU_K(name, threads, per_sm, type) sizeof(struct type),
static const size_t args_size[GPU_N_KERNEL] = {GPU_KERNELS};
#undef GPU_K

struct slot {
    uint8_t *host;
    gpu_at at;
    size_t size;
};

struct recorder {
    struct gpu_driver base;
    struct gpu_card *card;
    struct slot slot[GPU_N_SLOT];
    bool busy;               /* the card may have work */
    int32_t number;          /* of the batch that is recorded, since the last wait */
    bool claimed;            /* its slot's lists are the host's */
    bool open;               /* the last list is being written */
    size_t sent, last, used; /* bytes of the slot that went up, before the last list, in all */
    struct gpu_launch launch[BATCH_MOST];
    _Alignas(16) uint8_t args[BATCH_MOST][ARGS_MOST];
    int32_t n;
};

static struct recorder *recorder_of(struct gpu_driver *d)
{
    return (struct recorder *)d;
}

static void note_failure(struct recorder *r)
{
    if (r->base.failure == NULL)
        r->base.failure = r->card->failure;
}

/* ---- batches ---- */

static int32_t slot_of(const struct recorder *r)
{
    return r->number % GPU_N_SLOT;
}

/* The next batch has the next slot, but where a list is open: that one goes on. */
static void submit(struct recorder *r)
{
    const struct slot *s = &r->slot[slot_of(r)];
    size_t end = r->open ? r->last : r->used;
    if (r->n == 0 && end == r->sent)
        return;
    const struct gpu_batch batch = {.launch = r->launch,
                                    .n = r->n,
                                    .number = r->number,
                                    .slot = slot_of(r),
                                    .lists = s->at + r->sent,
                                    .host = s->host + r->sent,
                                    .size = end - r->sent};
    if (r->base.failure == NULL)
        r->card->submit(r->card, &batch);
    r->busy = true;
    note_failure(r);
    r->n = 0;
    r->sent = end;
    if (r->open)
        return;
    r->number++;
    r->claimed = false;
    r->sent = r->used = 0;
}

/* Everything is done: batches are counted anew. */
static void count_anew(struct recorder *r)
{
    note_failure(r);
    r->busy = false;
    if (r->open || r->number == 0)
        return;
    r->number = 0;
    r->claimed = false;
    r->sent = r->used = 0;
}

static void settle(struct recorder *r)
{
    submit(r);
    if (r->busy)
        r->card->wait(r->card);
    count_anew(r);
}

static void rest(struct gpu_driver *d)
{
    struct recorder *r = recorder_of(d);
    int32_t most = r->number < 3 ? BATCH_FIRST << r->number : BATCH_LONG;
    r->open = false;
    if (r->n >= most)
        submit(r);
}

static void launch(struct gpu_driver *d, const struct gpu_launch *l)
{
    struct recorder *r = recorder_of(d);
    if (l->x == 0 || l->y == 0 || l->z == 0)
        return;
    if (r->n == BATCH_MOST)
        submit(r);
    d->n_asked++;
    struct gpu_launch *to = &r->launch[r->n];
    *to = *l;
    to->args = r->args[r->n++];
    memcpy(r->args[r->n - 1], l->args, args_size[l->kernel]);
}

static void record_wait(struct gpu_driver *d)
{
    settle(recorder_of(d));
}

/* ---- lists ---- */

static bool grow_slot(struct recorder *r, struct slot *s, size_t size)
{
    size = pi_align(size < SLOT_LEAST ? SLOT_LEAST : size + size / 2, 4096);
    if (s->at != 0)
        r->card->free(r->card, s->at, s->size);
    if (s->host != NULL)
        r->card->free_host(r->card, s->host, s->size);
    gpu_at seen;
    *s = (struct slot){r->card->alloc_host(r->card, size, &seen), r->card->alloc(r->card, size),
                       size};
    if (s->at != 0 && s->host != NULL)
        return true;
    r->base.failure = "no memory is left for lists of work";
    return false;
}

/* Room for size bytes in the slot of the batch, or in the next one's. */
static bool make_room(struct recorder *r, size_t size)
{
    if (r->used > 0 && r->used + size > r->slot[slot_of(r)].size)
        submit(r);
    struct slot *s = &r->slot[slot_of(r)];
    if (!r->claimed)
        r->card->claim(r->card, slot_of(r));
    r->claimed = true;
    return size <= s->size || grow_slot(r, s, size);
}

static gpu_at list(struct gpu_driver *d, size_t size, void **host)
{
    struct recorder *r = recorder_of(d);
    size = pi_align(size > 0 ? size : 1, 256);
    assert(!r->open);
    if (r->base.failure != NULL || !make_room(r, size))
        return 0;
    const struct slot *s = &r->slot[slot_of(r)];
    r->last = r->used;
    r->used += size;
    r->open = true;
    *host = s->host + r->last;
    return s->at + r->last;
}

/* Sizes are rounded to an eighth, so that a list that grows slowly seldom moves those behind it. */
static void send(struct gpu_driver *d, size_t size)
{
    struct recorder *r = recorder_of(d);
    size_t unit = 256;
    while (unit * 8 < size)
        unit *= 2;
    r->used = r->last + pi_min(pi_align(size, unit), r->used - r->last);
    r->open = false;
}

/* ---- copies ---- */

static void fill(struct recorder *r, gpu_at to, gpu_at from, size_t size)
{
    const struct gpu_fill_args args = {to, from, size};
    const struct gpu_launch l = {GPU_KERNEL_fill,
                                 (uint32_t)pi_min(pi_ceil_div((int64_t)size, 16 * 256), 1024),
                                 1,
                                 1,
                                 0,
                                 &args};
    launch(&r->base, &l);
}

static void put(struct gpu_driver *d, gpu_at to, const void *bytes, size_t size)
{
    struct recorder *r = recorder_of(d);
    void *host;
    gpu_at from = 0;
    if (size == 0 || r->base.failure != NULL)
        return;
    if (size <= PUT_MOST && !r->open)
        from = list(d, size, &host);
    if (from != 0) {
        memcpy(host, bytes, size);
        send(d, size);
        fill(r, to, from, size);
        return;
    }
    submit(r);
    d->n_asked++;
    r->card->put(r->card, to, bytes, size);
    r->busy = true;
    note_failure(r);
}

static void get(struct gpu_driver *d, void *host, gpu_at from, size_t size)
{
    struct recorder *r = recorder_of(d);
    submit(r);
    if (r->base.failure == NULL)
        r->card->get(r->card, host, from, size);
    count_anew(r);
    if (r->base.failure != NULL)
        memset(host, 0, size);
}

/* Recorded launches come before it. */
static void carry(struct gpu_driver *d, const struct gpu_carry *list, int32_t n, bool out)
{
    struct recorder *r = recorder_of(d);
    submit(r);
    d->n_asked++;
    if (r->base.failure == NULL)
        r->card->carry(r->card, list, n, out);
    note_failure(r);
}

static bool fetch(struct gpu_driver *d, gpu_at to, struct gpu_driver *other, gpu_at from,
                  size_t size)
{
    struct recorder *r = recorder_of(d), *o = recorder_of(other);
    if (r->card->fetch == NULL || d->failure != NULL || other->failure != NULL)
        return false;
    submit(o);
    submit(r);
    d->n_asked++;
    bool can = r->card->fetch(r->card, to, o->card, from, size);
    r->busy = o->busy = true;
    note_failure(r);
    note_failure(o);
    return can;
}

static void copy(struct gpu_driver *d, gpu_at to, gpu_at from, size_t size)
{
    fill(recorder_of(d), to, from, size);
}

static void clear(struct gpu_driver *d, gpu_at at, size_t size)
{
    fill(recorder_of(d), at, 0, size);
}

/* ---- memory ---- */

/* Recorded launches may use memory that changes now: they go first. */
static struct recorder *settle_memory(struct gpu_driver *d)
{
    struct recorder *r = recorder_of(d);
    submit(r);
    d->n_asked++;
    return r;
}

static gpu_at record_alloc(struct gpu_driver *d, size_t size)
{
    struct recorder *r = recorder_of(d);
    return r->card->alloc(r->card, size);
}

static void record_free(struct gpu_driver *d, gpu_at at, size_t size)
{
    struct recorder *r = settle_memory(d);
    r->card->free(r->card, at, size);
    note_failure(r);
}

static gpu_at map(struct gpu_driver *d, size_t size)
{
    struct recorder *r = recorder_of(d);
    return r->card->map(r->card, size);
}

static void unmap(struct gpu_driver *d, gpu_at at, size_t size)
{
    struct recorder *r = settle_memory(d);
    r->card->unmap(r->card, at, size);
    note_failure(r);
}

static bool touch(struct gpu_driver *d, gpu_at at, size_t size)
{
    struct recorder *r = recorder_of(d);
    bool ok = r->card->touch(r->card, at, size);
    note_failure(r);
    return ok;
}

static void drop(struct gpu_driver *d, gpu_at at, size_t size)
{
    struct recorder *r = settle_memory(d);
    r->card->drop(r->card, at, size);
    note_failure(r);
}

/* ---- the driver ---- */

struct gpu_driver *gpu_record(struct gpu_card *card)
{
    struct recorder *r = pi_mem_alloc(PI_MEM_DEVICE, sizeof(*r));
    if (r == NULL)
        return NULL;
    r->card = card;
    r->base = (struct gpu_driver){.n_processor = card->n_processor,
                                  .smem_most = card->smem_most,
                                  .smem_step = card->smem_step,
                                  .smem_all = card->smem_all,
                                  .wgmma = card->wgmma,
                                  .alloc = record_alloc,
                                  .free = record_free,
                                  .map = map,
                                  .unmap = unmap,
                                  .touch = touch,
                                  .drop = drop,
                                  .put = put,
                                  .get = get,
                                  .carry = carry,
                                  .fetch = fetch,
                                  .copy = copy,
                                  .clear = clear,
                                  .launch = launch,
                                  .list = list,
                                  .send = send,
                                  .rest = rest,
                                  .wait = record_wait};
    return &r->base;
}

void gpu_record_free(struct gpu_driver *d)
{
    struct recorder *r = recorder_of(d);
    if (r == NULL)
        return;
    settle(r);
    for (int i = 0; i < GPU_N_SLOT; i++) {
        if (r->slot[i].at != 0)
            r->card->free(r->card, r->slot[i].at, r->slot[i].size);
        if (r->slot[i].host != NULL)
            r->card->free_host(r->card, r->slot[i].host, r->slot[i].size);
    }
    pi_mem_free(r);
}
