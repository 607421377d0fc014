/*
 * device.c - the table of this machine's processor, whose memory is the process's own. Lending,
 * uploading and looking copy nothing.
 */
#include "base/processors.h"
#include "device/cpu/cpu.h"
#include "device/cpu/pages.h"

static void describe(struct pi_device *d, struct pi_device_report *out)
{
    (void)d;
    pi_processor_name(out->text, sizeof(out->text));
    pi_memory_size(&out->total, &out->unused);
}

/* The system's memory is the system's matter. */
pith_status cpu_check(struct pi_device *d, pith_error *err)
{
    (void)d;
    (void)err;
    return PITH_OK;
}

/* ---- memory ---- */

static struct pi_at at_of(const void *p)
{
    return (struct pi_at){(uintptr_t)p};
}

struct pi_at cpu_alloc(struct pi_device *d, enum pi_mem_tag tag, size_t size)
{
    void *block = pi_mem_alloc(tag, size);
    atomic_fetch_add(&d->bytes, (int64_t)pi_mem_size(block));
    return at_of(block);
}

void cpu_free(struct pi_device *d, struct pi_at at)
{
    atomic_fetch_sub(&d->bytes, (int64_t)pi_mem_size(pi_cpu_ptr(at)));
    pi_mem_free(pi_cpu_ptr(at));
}

struct pi_at cpu_map(struct pi_device *d, enum pi_mem_tag tag, size_t size)
{
    void *block = pi_mem_map(tag, size);
    atomic_fetch_add(&d->bytes, block != NULL ? (int64_t)size : 0);
    return at_of(block);
}

void cpu_unmap(struct pi_device *d, enum pi_mem_tag tag, struct pi_at at, size_t size)
{
    atomic_fetch_sub(&d->bytes, pi_at_some(at) ? (int64_t)size : 0);
    pi_mem_unmap(tag, pi_cpu_ptr(at), size);
}

bool cpu_spare(struct pi_device *d, size_t size)
{
    (void)d;
    (void)size;
    return true;
}

void cpu_drop(struct pi_device *d, struct pi_at at, size_t size)
{
    (void)d;
    pi_mem_drop(pi_cpu_ptr(at), size);
}

static struct pi_at lend(struct pi_device *d, const void *host, size_t size, struct pi_at room)
{
    (void)d;
    (void)size;
    (void)room;
    return at_of(host);
}

static struct pi_at lend_out(struct pi_device *d, void *host, struct pi_at room)
{
    (void)d;
    (void)room;
    return at_of(host);
}

static void upload(struct pi_stream *s, const void *host, size_t size, struct pi_at to)
{
    (void)s;
    if (host != pi_cpu_ptr(to))
        memcpy(pi_cpu_ptr(to), host, size);
}

static void *download(struct pi_stream *s, struct pi_at from, size_t size, void *room)
{
    (void)s;
    (void)size;
    (void)room;
    return pi_cpu_ptr(from);
}

/* ---- weights: the model's own ---- */

static struct pi_at pack(struct pi_device *d, const struct pi_matrix *w, int32_t n_slab)
{
    (void)d;
    (void)n_slab;
    return at_of(w->data);
}

static struct pi_at pack_vector(struct pi_device *d, const float *x, size_t n)
{
    (void)d;
    (void)n;
    return at_of(x);
}

static void unpack(struct pi_device *d, struct pi_at at)
{
    (void)d;
    (void)at;
}

/* ---- the table ---- */

static struct pi_stream *open_stream(struct pi_device *d, const struct pi_stream_shape *shape)
{
    return cpu_stream_make(d, shape, pi_kernels(), false);
}

struct pi_device pi_device_cpu = {
    .name = "cpu",
    .in_host = true,
    .describe = describe,
    .check = cpu_check,
    .spare = cpu_spare,
    .alloc = cpu_alloc,
    .map = cpu_map,
    .lend = lend,
    .lend_out = lend_out,
    .upload = upload,
    .download = download,
    .pack = pack,
    .pack_vector = pack_vector,
    .unpack = unpack,
    .open = open_stream,
    CPU_OPERATIONS,
};
