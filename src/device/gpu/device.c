/*
 * device.c - a device of GPU kind: whose turn it is, copies, streams, the table. memory.c has its
 * memory. Invariant: what waits in lists of the host is flushed before an operation that could see
 * it.
 */
#include "device/gpu/device.h"

#include <stdio.h>

#include "device/gpu/host.h"

/* ---- one at a time ---- */

static void settle(struct gpu_device *d)
{
    if (d->carries)
        d->card->settle(d->card);
    d->carries = false;
}

void gpu_enter_beside(struct gpu_device *d)
{
    pi_lock_take(&d->lock);
    settle(d);
    d->packed.x = 0;
    if (d->entries.n > 0)
        gpu_flush_entries(d);
}

void gpu_enter_product(struct gpu_device *d)
{
    pi_lock_take(&d->lock);
    if (d->moves.n_goal > 0 || d->marks.n_lane > 0 || d->entries.n > 0)
        settle(d);
    if (d->moves.n_goal > 0 || d->marks.n_lane > 0)
        gpu_flush_moves(d);
    if (d->entries.n > 0)
        gpu_flush_entries(d);
}

void gpu_enter_pass(struct gpu_device *d)
{
    gpu_enter_product(d);
    d->packed.x = 0;
}

void gpu_enter(struct gpu_device *d)
{
    gpu_enter_pass(d);
    settle(d);
}

gpu_at gpu_counts(struct gpu_device *d)
{
    size_t size = GPU_COUNTS * sizeof(uint32_t);
    if (d->counts == 0) {
        d->counts = d->driver->alloc(d->driver, size);
        if (d->counts == 0)
            d->driver->failure = "no memory for the counts of a launch";
        else
            d->driver->clear(d->driver, d->counts, size);
    }
    return d->counts;
}

void gpu_leave(struct gpu_device *d)
{
    d->driver->rest(d->driver);
    pi_lock_give(&d->lock);
}

/* ---- copies ---- */

static void put(struct gpu_device *d, struct pi_at to, const void *host, size_t size)
{
    gpu_touch(d, to.at, size);
    d->driver->put(d->driver, to.at, host, size);
    gpu_leave(d);
}

/* Two devices at a time are entered in the order of their addresses. */
static bool fetch(struct pi_stream *s, struct pi_at to, struct pi_stream *of, struct pi_at from,
                  size_t size)
{
    struct gpu_device *d = gpu_of_stream(s), *other = gpu_of_stream(of);
    if (of->device->fetch != fetch || d == other)
        return false;
    struct gpu_device *first = (uintptr_t)d < (uintptr_t)other ? d : other;
    gpu_enter_pass(first);
    gpu_enter_pass(first == d ? other : d);
    bool can = d->driver->fetch(d->driver, to.at, other->driver, from.at, size);
    gpu_leave(d);
    gpu_leave(other);
    return can;
}

static struct pi_at lend(struct pi_device *d, const void *host, size_t size, struct pi_at room)
{
    gpu_enter_pass(gpu_of(d));
    put(gpu_of(d), room, host, size);
    return room;
}

static struct pi_at lend_out(struct pi_device *d, void *host, struct pi_at room)
{
    (void)d;
    (void)host;
    return room;
}

/* ---- copies beside passes ---- */

static void *alloc_host(struct pi_device *device, size_t size)
{
    struct gpu_device *d = gpu_of(device);
    gpu_enter_pass(d);
    void *p = gpu_pinned_take(d, size);
    gpu_leave(d);
    return p;
}

static void free_host(struct pi_device *device, void *p, size_t size)
{
    struct gpu_device *d = gpu_of(device);
    (void)size;
    gpu_enter_pass(d);
    d->card->carried(d->card);
    gpu_pinned_give(d, p);
    gpu_leave(d);
}

static void carry(struct pi_device *device, const struct pi_carry *list, int32_t n, bool out)
{
    struct gpu_device *d = gpu_of(device);
    struct gpu_carry piece[64];
    gpu_enter_pass(d);
    for (int32_t i = 0, k = 0; i < n; i++) {
        d->lost = !gpu_touch(d, list[i].at.at, list[i].size) || d->lost;
        piece[k++] = (struct gpu_carry){list[i].at.at, list[i].host, list[i].size};
        if (k < (int32_t)PI_LEN(piece) && i < n - 1)
            continue;
        d->driver->carry(d->driver, piece, k, out);
        k = 0;
    }
    d->carries = true;
    gpu_leave(d);
}

static void device_settle(struct pi_device *device)
{
    gpu_enter(gpu_of(device));
    gpu_leave(gpu_of(device));
}

/* ---- the devices of this kind ---- */

enum { MOST_DEVICES = 16 };

static struct gpu_device
    *devices[MOST_DEVICES]; /* set when one is made or freed, nothing else runs */

static bool owns(const struct gpu_device *d, gpu_at at)
{
    const struct gpu_mapping *m = d != NULL ? d->mapping : NULL;
    for (size_t i = 0; d != NULL && i < d->n_block; i++)
        if (at - d->block[i].at < d->block[i].size)
            return true;
    while (m != NULL && at - m->at >= m->size)
        m = m->next;
    return m != NULL;
}

/* Calls without a stream are for the device that the address is of: no two share one. */
static struct gpu_device *device_of(struct pi_stream *s, struct pi_at at)
{
    if (s != NULL)
        return gpu_of_stream(s);
    for (int i = 0; i < MOST_DEVICES; i++)
        if (owns(devices[i], at.at))
            return devices[i];
    assert(false);
    return NULL;
}

static bool note_device(struct gpu_device *from, struct gpu_device *to)
{
    for (int i = 0; i < MOST_DEVICES; i++)
        if (devices[i] == from) {
            devices[i] = to;
            return true;
        }
    return false;
}

/* A call on a stream is one of a pass, and no copies beside passes are of memory but pages. */
static void enter_on(struct gpu_device *d, const struct pi_stream *s, gpu_at at)
{
    gpu_enter_pass(d);
    if (s == NULL && gpu_mapping_of(d, at) != NULL)
        settle(d);
}

static void upload(struct pi_stream *s, const void *host, size_t size, struct pi_at to)
{
    struct gpu_device *d = device_of(s, to);
    enter_on(d, s, to.at);
    put(d, to, host, size);
}

static void *download(struct pi_stream *s, struct pi_at from, size_t size, void *room)
{
    struct gpu_device *d = device_of(s, from);
    enter_on(d, s, from.at);
    gpu_touch(d, from.at, size);
    d->driver->get(d->driver, room, from.at, size);
    gpu_leave(d);
    return room;
}

/* ---- lists and launches ---- */

gpu_at gpu_list(struct gpu_device *d, size_t size, void **host)
{
    return d->driver->list(d->driver, size, host);
}

void gpu_send(struct gpu_device *d, gpu_at list, size_t size)
{
    (void)list;
    d->driver->send(d->driver, size);
}

void gpu_run(struct gpu_device *d, enum gpu_kernel kernel, int64_t x, int64_t y, int64_t z,
             size_t smem, const void *args)
{
    const struct gpu_launch launch = {kernel,      (uint32_t)x,    (uint32_t)y,
                                      (uint32_t)z, (uint32_t)smem, args};
    if (x > 0 && y > 0 && z > 0 && d->driver->failure == NULL)
        d->driver->launch(d->driver, &launch);
}

void gpu_fold_clipped(struct gpu_device *d)
{
    d->driver->wait(d->driver);
    if (d->noted == NULL)
        return;
    int32_t which = *(volatile int32_t *)d->clipped_host;
    int32_t was = atomic_load(&d->noted->clipped);
    if (which < was)
        atomic_store(&d->noted->clipped, which);
}

/* ---- streams ---- */

static struct pi_stream *open_stream(struct pi_device *device, const struct pi_stream_shape *shape)
{
    struct gpu_stream *s = pi_mem_alloc(PI_MEM_SCRATCH, sizeof(*s));
    if (s == NULL)
        return NULL;
    s->base = (struct pi_stream){device, shape->n_thread};
    return &s->base;
}

static void close_stream(struct pi_stream *s)
{
    pi_mem_free(s);
}

static void wait(struct pi_stream *s)
{
    struct gpu_device *d = gpu_of_stream(s);
    gpu_enter_pass(d);
    gpu_fold_clipped(d);
    gpu_leave(d);
}

/* ---- the table ---- */

static void describe(struct pi_device *device, struct pi_device_report *out)
{
    struct gpu_device *d = gpu_of(device);
    size_t unused, total;
    gpu_enter_pass(d);
    d->card->memory(d->card, &unused, &total);
    gpu_leave(d);
    snprintf(out->text, sizeof(out->text), "%s", d->card->text);
    out->total = (int64_t)total;
    out->unused = (int64_t)unused;
}

static pith_status check(struct pi_device *device, pith_error *err)
{
    struct gpu_device *d = gpu_of(device);
    gpu_enter_pass(d);
    const char *why = d->driver->failure;
    bool lost = d->lost || d->card->failure != NULL;
    if (!lost)
        d->driver->failure = NULL;
    gpu_leave(d);
    if (why == NULL)
        return PITH_OK;
    return pi_fail(err, lost ? PITH_INTERNAL : PITH_NOMEM, "%s: %s", device->name, why);
}

static const struct pi_device table = {
    .in_host = false,
    .floats = true,
    .describe = describe,
    .check = check,
    .measure = gpu_measure,
    .best = gpu_best,
    .alloc = gpu_alloc,
    .free = gpu_free,
    .map = gpu_map,
    .unmap = gpu_unmap,
    .map_host = gpu_map_host,
    .drop = gpu_drop,
    .spare = gpu_spare,
    .lend = lend,
    .lend_out = lend_out,
    .upload = upload,
    .download = download,
    .alloc_host = alloc_host,
    .free_host = free_host,
    .carry = carry,
    .fetch = fetch,
    .settle = device_settle,
    .pack = gpu_pack,
    .pack_vector = gpu_pack_vector,
    .unpack = gpu_unpack,
    .open = open_stream,
    .close = close_stream,
    .wait = wait,
    .rows = gpu_rows,
    .product = gpu_product,
    .product_heads = gpu_product_heads,
    .product_experts = gpu_product_experts,
    .moe_sort = gpu_moe_sort,
    .delta_conv = gpu_delta_conv,
    .delta_turn = gpu_delta_turn,
    .step = gpu_step,
    .attend_scratch = gpu_attend_scratch,
    .score_scratch = gpu_score_scratch,
    .attend_tile = gpu_attend_tile,
    .append = gpu_append,
    .note_clipped = gpu_note_clipped,
    .attend = gpu_attend,
    .attend_one = gpu_attend_one,
    .weigh = gpu_weigh,
    .sees = gpu_sees,
    .victims = gpu_victims,
    .learn = gpu_learn,
    .predict = gpu_predict,
    .clone = gpu_clone,
    .score = gpu_score,
    .score_one = gpu_score_one,
    .choose = gpu_choose,
    .choose_all = gpu_choose_all,
    .unite = gpu_unite,
    .share = gpu_share,
    .blend = gpu_blend,
    .asked = gpu_asked,
    .decode_run = gpu_decode_run,
    .value_sum = gpu_value_sum,
    .apart = gpu_apart,
    .decode_entry = gpu_decode_entry,
    .encode_entry = gpu_encode_entry,
    .get_entry = gpu_get_entry,
    .put_entry = gpu_put_entry,
    .fill = gpu_fill,
    .index = gpu_index,
    .finish = gpu_finish,
    .norms = gpu_norms,
    .move = gpu_move,
    .move_lane = gpu_move_lane,
    .pack_marks = gpu_pack_marks,
    .copy = gpu_copy,
    .read_page = gpu_read_page,
    .write_page = gpu_write_page,
    .clear_page = gpu_clear_page,
};

struct pi_device *gpu_device_make(struct gpu_card *card)
{
    struct gpu_device *d = pi_mem_alloc(PI_MEM_DEVICE, sizeof(*d));
    if (d == NULL)
        return NULL;
    d->card = card;
    d->driver = gpu_record(card);
    if (d->driver == NULL || pi_lock_init(&d->lock, NULL) != PITH_OK) {
        gpu_record_free(d->driver);
        pi_mem_free(d);
        return NULL;
    }
    memcpy(&d->base, &table, sizeof(table));
    d->base.name = card->name;
    gpu_device_step(&d->base, card->step);
    gpu_device_wgmma(&d->base, card->attend_wgmma);
    d->padded = d->driver->alloc(d->driver, (PI_MOE_MAX_EXPERT + 1) * sizeof(int32_t));
    d->clipped_host = card->alloc_host(card, sizeof(int32_t), &d->clipped);
    if (d->padded == 0 || d->clipped_host == NULL || !note_device(NULL, d)) {
        gpu_device_free(&d->base);
        return NULL;
    }
    return &d->base;
}

bool gpu_device_step(struct pi_device *device, bool on)
{
    const bool can = gpu_of(device)->card->smem_step > 0;
    device->step = on && can ? gpu_step : NULL;
    return can;
}

bool gpu_device_wgmma(struct pi_device *device, bool on)
{
    struct gpu_device *d = gpu_of(device);
    d->attend_wgmma = on && d->card->wgmma;
    return d->card->wgmma;
}

void gpu_device_free(struct pi_device *device)
{
    struct gpu_device *d = gpu_of(device);
    if (d == NULL)
        return;
    if (d->padded != 0)
        d->driver->free(d->driver, d->padded, (PI_MOE_MAX_EXPERT + 1) * sizeof(int32_t));
    if (d->counts != 0)
        d->driver->free(d->driver, d->counts, GPU_COUNTS * sizeof(uint32_t));
    if (d->clipped_host != NULL)
        d->card->free_host(d->card, d->clipped_host, sizeof(int32_t));
    for (int i = 0; i < GPU_N_ROOM; i++)
        if (d->room[i].at != 0)
            d->driver->free(d->driver, d->room[i].at, d->room[i].size);
    for (int i = 0; i < GPU_N_ROPE; i++) {
        if (d->rope[i].freq != 0)
            d->driver->free(d->driver, d->rope[i].freq, (size_t)d->rope[i].n_pair * sizeof(double));
        pi_mem_free(d->rope[i].copy);
    }
    for (int i = 0; i < 2; i++)
        gpu_stage_free(&d->stage[i]);
    gpu_free_spare(d, &d->spare[0]);
    gpu_free_spare(d, &d->spare[1]);
    gpu_moves_free(d);
    gpu_entries_free(d);
    gpu_forget_projection(d);
    pi_mem_free(d->rows);
    while (d->n_weight > 0)
        gpu_weight_free(d, d->weight[--d->n_weight]);
    pi_mem_free(d->weight);
    pi_mem_free(d->block);
    pi_mem_free(d->list);
    pi_mem_free(d->ahead.bytes);
    pi_mem_free(d->scratch);
    pi_mem_free(d->votes);
    gpu_attend_free(d->attend);
    d->card->carried(d->card);
    gpu_pinned_free(d);
    gpu_record_free(d->driver);
    pi_lock_destroy(&d->lock);
    note_device(d, NULL);
    pi_mem_free(d);
}
