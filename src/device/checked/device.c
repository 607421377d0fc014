/*
 * device.c - a device for tests, which proves that nothing reaches around the table. Its memory is
 * the process's, but no address of it can be read or written by the host: a bit is set in each that
 * pointers do not have, so that whoever takes one for a pointer crashes. Weights are copies. It runs
 * on one thread, and loops whose order is free from their ends. Tests choose the scalar kernels for
 * it where that does not take too long.
 */
#include "device/cpu/cpu.h"
#include "device/cpu/pages.h"

/* ---- memory ---- */

/* None stays none. */
static struct pi_at hide(struct pi_at at)
{
    return (struct pi_at){pi_at_some(at) ? at.at | PI_AT_HIDDEN : 0};
}

static struct pi_at alloc(struct pi_device *d, enum pi_mem_tag tag, size_t size)
{
    return hide(cpu_alloc(d, tag, size));
}

static struct pi_at map(struct pi_device *d, enum pi_mem_tag tag, size_t size)
{
    return hide(cpu_map(d, tag, size));
}

static struct pi_at lend(struct pi_device *d, const void *host, size_t size, struct pi_at room)
{
    (void)d;
    memcpy(pi_cpu_ptr(room), host, size);
    return room;
}

static struct pi_at lend_out(struct pi_device *d, void *host, struct pi_at room)
{
    (void)d;
    (void)host;
    return room;
}

static void upload(struct pi_stream *s, const void *host, size_t size, struct pi_at to)
{
    (void)s;
    memcpy(pi_cpu_ptr(to), host, size);
}

static void *download(struct pi_stream *s, struct pi_at from, size_t size, void *room)
{
    (void)s;
    return memcpy(room, pi_cpu_ptr(from), size);
}

/* ---- weights ---- */

static struct pi_at copy_of(struct pi_device *d, const void *data, size_t size)
{
    struct pi_at at = alloc(d, PI_MEM_WEIGHTS, size);
    if (pi_at_some(at))
        memcpy(pi_cpu_ptr(at), data, size);
    return at;
}

static struct pi_at pack(struct pi_device *d, const struct pi_matrix *w, int32_t n_slab)
{
    return copy_of(d, w->data, (size_t)n_slab * (size_t)w->n_group * w->group_bytes);
}

static struct pi_at pack_vector(struct pi_device *d, const float *x, size_t n)
{
    return copy_of(d, x, n * sizeof(*x));
}

/* ---- the table ---- */

static struct pi_stream *open_stream(struct pi_device *d, const struct pi_stream_shape *shape)
{
    return cpu_stream_make(d, shape, pi_kernels(), true);
}

struct pi_device pi_device_checked = {
    .name = "checked device",
    .in_host = false,
    .alloc = alloc,
    .map = map,
    .lend = lend,
    .lend_out = lend_out,
    .upload = upload,
    .download = download,
    .pack = pack,
    .pack_vector = pack_vector,
    .unpack = cpu_free,
    .open = open_stream,
    CPU_OPERATIONS,
};
