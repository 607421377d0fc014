/*
 * driver.c - a GPU through NVIDIA's driver library, libcuda.so.1, which is opened when a GPU is
 * asked for: no CUDA runtime, nothing to link. The kernels are fatbins in the library, arrays that
 * the build makes. Work runs on one stream. Lists go up on another, and pages come and go beside
 * the work on a third. Invariant: what the driver refuses is noted once, in `failure`, and nothing
 * crashes.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "base/mem.h"
#include "device/cuda/inside.h"

/* The modules, and how many kernels each one has. */
#define GPU_IMAGE(name, kernels) extern const unsigned long long pi_gpu_##name[];
GPU_GROUPS(GPU_IMAGE)
#undef GPU_IMAGE
#undef GPU_K_WAITS
#define GPU_K_WAITS(...) +1
#define GPU_K(...) +1
#define GPU_MODULE(name, kernels) {pi_gpu_##name, 0 kernels},
static const struct {
    const void *image;
    int n_kernel;
} modules[CUDA_MODULES] = {GPU_GROUPS(GPU_MODULE)};
#undef GPU_MODULE
#undef GPU_K

struct cu_api cu;

#define CU_NAME(field, name, ...) name,
static const char *const cu_names[] = {CU_FUNCTIONS(CU_NAME)};
#undef CU_NAME

#define GPU_K(name, threads, per_sm, type) {"pi_" #name, threads, sizeof(struct type), false},
#undef GPU_K_WAITS
#define GPU_K_WAITS(name, threads, per_sm, type) {"pi_" #name, threads, sizeof(struct type), true},
const struct cuda_kernel cuda_kernels[GPU_N_KERNEL] = {GPU_KERNELS};
#undef GPU_K

static struct cuda *cuda_of(struct gpu_card *d)
{
    return (struct cuda *)d;
}

bool cuda_good(struct cuda *c, cu_result r, const char *what)
{
    const char *name = "an error without a name";
    if (r == 0)
        return true;
    cu.error_name(r, &name);
    if (c->base.failure == NULL) {
        snprintf(c->why, sizeof(c->why), "%s: %s", what, name);
        c->base.failure = c->why;
    }
    return false;
}

/* The context of whichever thread calls. */
static bool enter(struct cuda *c)
{
    return cuda_good(c, cu.context_set(c->context), "the GPU's context");
}

/* ---- memory ---- */

static gpu_at cuda_alloc(struct gpu_card *d, size_t size)
{
    struct cuda *c = cuda_of(d);
    uint64_t at = 0;
    return enter(c) && cu.mem_alloc(&at, size) == 0 ? at : 0;
}

/* Work may still use memory that is given back, and pages may be on their way. */
static bool await_work(struct cuda *c)
{
    return enter(c) && cuda_good(c, cu.stream_wait(c->stream), "the GPU's work");
}

static bool await_all(struct cuda *c)
{
    return await_work(c) && cuda_good(c, cu.stream_wait(c->beside), "copies beside the GPU's work");
}

static void cuda_free(struct gpu_card *d, gpu_at at, size_t size)
{
    struct cuda *c = cuda_of(d);
    (void)size;
    if (await_work(c))
        cuda_good(c, cu.mem_free(at), "freeing the GPU's memory");
}

/* It has one address for both. */
static void *cuda_alloc_host(struct gpu_card *d, size_t size, gpu_at *at)
{
    struct cuda *c = cuda_of(d);
    void *p = NULL;
    if (!enter(c) || cu.host_alloc(&p, size, HOST_MAPPED) != 0)
        return NULL;
    *at = (gpu_at)(uintptr_t)p;
    return p;
}

static void cuda_free_host(struct gpu_card *d, void *p, size_t size)
{
    struct cuda *c = cuda_of(d);
    (void)size;
    if (enter(c))
        cuda_good(c, cu.host_free(p), "freeing pinned memory");
}

static gpu_at cuda_map(struct gpu_card *d, size_t size)
{
    struct cuda *c = cuda_of(d);
    size_t n_chunk = (size + c->base.chunk - 1) / c->base.chunk;
    uint64_t at = 0;
    struct cuda_mapping *m =
        pi_mem_alloc(PI_MEM_DEVICE, sizeof(*m) + n_chunk * sizeof(m->handle[0]));
    if (m == NULL || !enter(c) ||
        cu.reserve(&at, n_chunk * c->base.chunk, c->base.chunk, 0, 0) != 0) {
        pi_mem_free(m);
        return 0;
    }
    m->at = at;
    m->size = size;
    m->n_chunk = n_chunk;
    m->next = c->mapping;
    c->mapping = m;
    return at;
}

static struct cuda_mapping *mapping_of(struct cuda *c, gpu_at at)
{
    struct cuda_mapping *m = c->mapping;
    while (m != NULL && (at < m->at || at >= m->at + m->n_chunk * c->base.chunk))
        m = m->next;
    return m;
}

/* False: no memory, which is no failure. */
static bool give_chunk(struct cuda *c, struct cuda_mapping *m, size_t i)
{
    const struct cu_access access = {c->prop.location, CU_READ_WRITE};
    gpu_at at = m->at + i * c->base.chunk;
    if (cu.create(&m->handle[i], c->base.chunk, &c->prop, 0) != 0) {
        m->handle[i] = 0;
        return false;
    }
    return cuda_good(c, cu.map(at, c->base.chunk, 0, m->handle[i], 0), "mapping pages") &&
           cuda_good(c, cu.access(at, c->base.chunk, &access, 1), "mapping pages") &&
           cuda_good(c, cu.fill(at, 0, c->base.chunk, c->stream), "clearing pages");
}

static void take_chunk(struct cuda *c, struct cuda_mapping *m, size_t i)
{
    if (m->handle[i] == 0)
        return;
    cuda_good(c, cu.unmap(m->at + i * c->base.chunk, c->base.chunk), "unmapping pages");
    cuda_good(c, cu.release(m->handle[i]), "giving pages back");
    m->handle[i] = 0;
}

static bool cuda_touch(struct gpu_card *d, gpu_at at, size_t size)
{
    struct cuda *c = cuda_of(d);
    struct cuda_mapping *m = mapping_of(c, at);
    bool ok = m != NULL && enter(c);
    for (size_t i = ok ? (size_t)(at - m->at) / c->base.chunk : 0;
         ok && m->at + i * c->base.chunk < at + size; i++)
        ok = m->handle[i] != 0 || give_chunk(c, m, i);
    return ok;
}

static void cuda_drop(struct gpu_card *d, gpu_at at, size_t size)
{
    struct cuda *c = cuda_of(d);
    struct cuda_mapping *m = mapping_of(c, at);
    if (m == NULL || !await_all(c))
        return;
    for (size_t i = (size_t)(at - m->at) / c->base.chunk; m->at + i * c->base.chunk < at + size;
         i++)
        take_chunk(c, m, i);
}

static void cuda_unmap(struct gpu_card *d, gpu_at at, size_t size)
{
    struct cuda *c = cuda_of(d);
    struct cuda_mapping **link = &c->mapping, *m;
    (void)size;
    while (*link != NULL && (*link)->at != at)
        link = &(*link)->next;
    m = *link;
    if (m == NULL || !await_all(c))
        return;
    for (size_t i = 0; i < m->n_chunk; i++)
        take_chunk(c, m, i);
    cuda_good(c, cu.unreserve(m->at, m->n_chunk * c->base.chunk), "giving addresses back");
    *link = m->next;
    pi_mem_free(m);
}

/* ---- copies and work ---- */

static size_t piece_of(size_t size, size_t i)
{
    return (size_t)pi_min((int64_t)(size - i * CUDA_STAGE), CUDA_STAGE);
}

/* The other stage's turn: its copies have gone. */
static bool turn_stage(struct cuda *c)
{
    if (!cuda_good(c, cu.event_record(c->stage[c->turn].done, c->stream), "a copy to the GPU"))
        return false;
    c->turn = (c->turn + 1) % CUDA_N_STAGE;
    c->stage[c->turn].used = 0;
    return cuda_good(c, cu.event_wait(c->stage[c->turn].done), "a copy to the GPU");
}

/* By way of pinned memory: copies are on their way while the next bytes are copied there. */
static void cuda_put(struct gpu_card *d, gpu_at to, const void *host, size_t size)
{
    struct cuda *c = cuda_of(d);
    bool ok = enter(c);
    while (ok && size > 0) {
        if (c->stage[c->turn].used == CUDA_STAGE && !turn_stage(c))
            return;
        struct cuda_stage *s = &c->stage[c->turn];
        size_t n = (size_t)pi_min((int64_t)size, (int64_t)(CUDA_STAGE - s->used));
        memcpy(s->host + s->used, host, n);
        ok = cuda_good(c, cu.copy_in(to, s->host + s->used, n, c->stream), "a copy to the GPU");
        s->used += n;
        to += n;
        host = (const uint8_t *)host + n;
        size -= n;
    }
}

/* Piece i sets out while the one before it is copied from there. Copies to the card have gone
   by then: they are earlier on the stream. */
static void cuda_get(struct gpu_card *d, void *host, gpu_at from, size_t size)
{
    struct cuda *c = cuda_of(d);
    size_t n = (size + CUDA_STAGE - 1) / CUDA_STAGE;
    bool ok = enter(c);
    for (size_t i = 0; ok && i <= n; i++) {
        struct cuda_stage *next = &c->stage[i % CUDA_N_STAGE];
        const struct cuda_stage *last = &c->stage[(i + 1) % CUDA_N_STAGE];
        ok = i == n ||
             (cuda_good(
                  c, cu.copy_out(next->host, from + i * CUDA_STAGE, piece_of(size, i), c->stream),
                  "a copy from the GPU") &&
              cuda_good(c, cu.event_record(next->done, c->stream), "a copy from the GPU"));
        next->used = 0;
        ok = ok && (i == 0 || cuda_good(c, cu.event_wait(last->done), "the GPU's work"));
        if (ok && i > 0)
            memcpy((uint8_t *)host + (i - 1) * CUDA_STAGE, last->host, piece_of(size, i - 1));
    }
}

/* Lists go up beside the work of earlier batches. The batch that had their place is done first, and
   the one after it, which may have read those lists too. */
static bool send_lists(struct cuda *c, const struct gpu_batch *b)
{
    int32_t after = (b->slot + 1) % GPU_N_SLOT;
    return cuda_good(c, cu.stream_await(c->up, c->used[after], 0), "lists of work") &&
           cuda_good(c, cu.copy_in(b->lists, b->host, b->size, c->up), "lists of work") &&
           cuda_good(c, cu.event_record(c->there[b->slot], c->up), "lists of work") &&
           cuda_good(c, cu.stream_await(c->stream, c->there[b->slot], 0), "lists of work");
}

static void cuda_submit(struct gpu_card *d, const struct gpu_batch *b)
{
    struct cuda *c = cuda_of(d);
    if (!enter(c) || (b->size > 0 && !send_lists(c, b)))
        return;
    cuda_run(c, b);
    cuda_good(c, cu.event_record(c->used[b->slot], c->stream), "the GPU's work");
}

static void cuda_claim(struct gpu_card *d, int32_t slot)
{
    struct cuda *c = cuda_of(d);
    if (enter(c))
        cuda_good(c, cu.event_wait(c->there[slot]), "lists of work");
}

static void cuda_wait(struct gpu_card *d)
{
    await_work(cuda_of(d));
}

static void cuda_carry(struct gpu_card *d, const struct gpu_carry *list, int32_t n, bool out)
{
    static const char what[] = "copies beside the GPU's work";
    struct cuda *c = cuda_of(d);
    bool ok = enter(c) && cuda_good(c, cu.event_record(c->before, c->stream), what) &&
              cuda_good(c, cu.stream_await(c->beside, c->before, 0), what);
    for (int32_t i = 0; ok && i < n; i++)
        ok = cuda_good(c,
                       out ? cu.copy_out(list[i].host, list[i].at, list[i].size, c->beside)
                           : cu.copy_in(list[i].at, list[i].host, list[i].size, c->beside),
                       what);
    if (ok)
        cuda_good(c, cu.event_record(c->carried, c->beside), what);
}

static void cuda_settle(struct gpu_card *d)
{
    struct cuda *c = cuda_of(d);
    if (enter(c))
        cuda_good(c, cu.stream_await(c->stream, c->carried, 0), "copies beside the GPU's work");
}

static void cuda_carried(struct gpu_card *d)
{
    struct cuda *c = cuda_of(d);
    if (enter(c))
        cuda_good(c, cu.stream_wait(c->beside), "copies beside the GPU's work");
}

/* Whether the card can read the other's memory, which is asked once. */
static bool reaches(struct cuda *c, const struct cuda *o)
{
    const uint32_t bit = o->device < 32 ? (uint32_t)1 << o->device : 0;
    int can = 0;
    if ((c->met & bit) == 0 && bit != 0 && enter(c) &&
        cu.peer_can(&can, c->device, o->device) == 0 && can != 0) {
        const cu_result r = cu.peer_enable(o->context, 0);
        c->reached |= r == 0 || r == PEER_ALREADY ? bit : 0;
    }
    c->met |= bit;
    return (c->reached & bit) != 0;
}

static bool cuda_fetch(struct gpu_card *d, gpu_at to, struct gpu_card *other, gpu_at from,
                       size_t size)
{
    static const char what[] = "a copy from GPU to GPU";
    struct cuda *c = cuda_of(d), *o = cuda_of(other);
    if (!reaches(c, o))
        return false;
    if (enter(o) && cuda_good(o, cu.event_record(o->given, o->stream), what) && enter(c) &&
        cuda_good(c, cu.stream_await(c->stream, o->given, 0), what) &&
        cuda_good(c, cu.copy_peer(to, c->context, from, o->context, size, c->stream), what) &&
        cuda_good(c, cu.event_record(c->taken, c->stream), what) && enter(o))
        cuda_good(o, cu.stream_await(o->stream, c->taken, 0), what);
    return true;
}

static void cuda_memory(struct gpu_card *d, size_t *free, size_t *total)
{
    struct cuda *c = cuda_of(d);
    *free = *total = 0;
    if (enter(c))
        cuda_good(c, cu.memory_info(free, total), "the GPU's memory");
}

/* ---- the library ---- */

/* Looks the library up, once. Returns why it cannot be used; "": it can. */
static const char *open_library(void)
{
    static bool done;
    static char why[128];
    if (done)
        return why;
    done = true;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return strcpy(why, "no GPU here: NVIDIA's driver is not installed");
    for (size_t i = 0; i < PI_LEN(cu_names); i++) {
        void *f = dlsym(library, cu_names[i]);
        if (f == NULL) {
            snprintf(why, sizeof(why), "no GPU here: NVIDIA's driver is too old, it has no %s",
                     cu_names[i]);
            return why;
        }
        memcpy((char *)&cu + i * sizeof(f), &f, sizeof(f));
    }
    return cu.init(0) == 0 ? why : strcpy(why, "no GPU here");
}

int32_t cuda_count(pith_error *err)
{
    const char *why = open_library();
    int n = 0;
    if (why[0] == '\0' && (cu.device_count(&n) != 0 || n == 0)) {
        why = "no GPU here";
        n = 0;
    }
    if (why[0] != '\0')
        pi_fail(err, PITH_UNSUPPORTED, "%s", why);
    return n;
}

static int attribute(const struct cuda *c, int which)
{
    int value = 0;
    cu.device_attribute(&value, which, c->device);
    return value;
}

void cuda_describe(int32_t i, struct pi_device_report *out)
{
    int device;
    size_t total;
    if (cuda_count(NULL) <= i || cu.device_get(&device, i) != 0)
        return;
    cu.device_name(out->text, (int)sizeof(out->text), device);
    if (cu.device_total(&total, device) == 0)
        out->total = (int64_t)total;
}

static bool load_kernels(struct cuda *c)
{
    for (int i = 0, module = -1, end = 0; i < GPU_N_KERNEL; i++) {
        if (i == end) {
            end += modules[++module].n_kernel;
            if (!cuda_good(c, cu.module_load(&c->module[module], modules[module].image),
                           "loading kernels"))
                return false;
        }
        uint32_t smem = gpu_smem_of(&c->base, (enum gpu_kernel)i);
        if (!cuda_good(c,
                       cu.module_function(&c->function[i], c->module[module], cuda_kernels[i].name),
                       cuda_kernels[i].name) ||
            !cuda_good(c, cu.function_set(c->function[i], FUNCTION_SMEM, (int)smem),
                       cuda_kernels[i].name))
            return false;
    }
    return true;
}

static bool make_event(struct cuda *c, void **out)
{
    return cuda_good(c, cu.event_create(out, EVENT_NO_TIMES), "the GPU's events");
}

static bool make_streams(struct cuda *c)
{
    bool ok = cuda_good(c, cu.stream_create(&c->stream, STREAM_NON_BLOCKING), "the GPU's stream") &&
              cuda_good(c, cu.stream_create(&c->up, STREAM_NON_BLOCKING), "the GPU's stream") &&
              cuda_good(c, cu.stream_create(&c->beside, STREAM_NON_BLOCKING), "the GPU's stream") &&
              make_event(c, &c->before) && make_event(c, &c->carried) && make_event(c, &c->given) &&
              make_event(c, &c->taken);
    for (int i = 0; ok && i < GPU_N_SLOT; i++)
        ok = make_event(c, &c->there[i]) && make_event(c, &c->used[i]);
    for (int i = 0; ok && i < CUDA_N_STAGE; i++)
        ok =
            make_event(c, &c->stage[i].done) &&
            cuda_good(c, cu.host_alloc((void **)&c->stage[i].host, CUDA_STAGE, 0), "pinned memory");
    return ok;
}

static void free_streams(struct cuda *c)
{
    for (int i = 0; i < GPU_N_SLOT; i++) {
        if (c->there[i] != NULL)
            cu.event_destroy(c->there[i]);
        if (c->used[i] != NULL)
            cu.event_destroy(c->used[i]);
    }
    for (int i = 0; i < CUDA_N_STAGE; i++) {
        if (c->stage[i].done != NULL)
            cu.event_destroy(c->stage[i].done);
        if (c->stage[i].host != NULL)
            cu.host_free(c->stage[i].host);
    }
    void *const event[] = {c->before, c->carried, c->given, c->taken};
    for (size_t i = 0; i < PI_LEN(event); i++)
        if (event[i] != NULL)
            cu.event_destroy(event[i]);
    if (c->beside != NULL)
        cu.stream_destroy(c->beside);
    if (c->up != NULL)
        cu.stream_destroy(c->up);
    if (c->stream != NULL)
        cu.stream_destroy(c->stream);
}

/* Operations of a processor in a clock, of the last row at or below the capability. f16 is dense,
   by tensor cores with sums in f32. Of 8.6, 8.9 and 12.0 workstation cards have this, others
   half of it in f16. From the papers that NVIDIA has for each architecture. */
static void set_peaks(struct cuda *c)
{
    static const struct {
        int capability, f16, f32;
    } rates[] = {
        {80, 2048, 128}, {86, 1024, 256}, {90, 4096, 256}, {100, 8192, 256}, {120, 1024, 256}};
    int capability = 10 * attribute(c, ATTRIBUTE_MAJOR) + attribute(c, ATTRIBUTE_MINOR);
    double clocks = 1e3 * attribute(c, ATTRIBUTE_CLOCK) * c->base.n_processor;
    for (size_t i = 0; i < PI_LEN(rates); i++)
        if (rates[i].capability <= capability) {
            c->base.f16_flop_per_s = rates[i].f16 * clocks;
            c->base.f32_flop_per_s = rates[i].f32 * clocks;
        }
}

static bool start(struct cuda *c, int32_t i)
{
    const size_t least = 2 << 20;
    if (!cuda_good(c, cu.device_get(&c->device, i), "the GPU") ||
        !cuda_good(c, cu.device_name(c->text, (int)sizeof(c->text), c->device), "the GPU's name") ||
        !cuda_good(c, cu.context_retain(&c->context, c->device), "the GPU's context") ||
        !enter(c) || !make_streams(c))
        return false;
    int smem = attribute(c, ATTRIBUTE_SMEM);
    c->base.n_processor = attribute(c, ATTRIBUTE_PROCESSORS);
    c->base.smem_most = (uint32_t)(smem < 99 * 1024 ? smem : 99 * 1024);
    c->base.smem_all = (uint32_t)smem;
    /* It has bulk copies from 9.0 on. On an H100 it is slower behind long lanes (docs/gpu.md). */
    c->base.smem_step = attribute(c, ATTRIBUTE_MAJOR) >= 9 ? (uint32_t)smem : 0;
    c->base.step = false;
    c->overlaps = attribute(c, ATTRIBUTE_MAJOR) >= 9;
    c->base.wgmma = attribute(c, ATTRIBUTE_MAJOR) == 9 && attribute(c, ATTRIBUTE_MINOR) == 0;
    c->base.attend_wgmma = false; /* no card has run it (docs/gpu.md) */
    set_peaks(c);
    c->prop = (struct cu_prop){.type = CU_PINNED, .location = {CU_DEVICE, c->device}};
    return cuda_good(c, cu.granularity(&c->base.chunk, &c->prop, CU_MINIMUM), "the GPU's pages") &&
           (c->base.chunk = c->base.chunk < least ? least : c->base.chunk) > 0 && load_kernels(c);
}

pith_status cuda_open(int32_t i, struct gpu_card **out, pith_error *err)
{
    int32_t n = cuda_count(err);
    *out = NULL;
    if (n == 0)
        return PITH_UNSUPPORTED;
    if (i < 0 || i >= n)
        return pi_fail(err, PITH_INVALID, "there is no GPU %d: there are %d", i, n);
    struct cuda *c = pi_mem_alloc(PI_MEM_DEVICE, sizeof(*c));
    if (c == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a GPU");
    snprintf(c->name, sizeof(c->name), "cuda:%d", i);
    c->base = (struct gpu_card){.name = c->name,
                                .text = c->text,
                                .alloc = cuda_alloc,
                                .free = cuda_free,
                                .alloc_host = cuda_alloc_host,
                                .free_host = cuda_free_host,
                                .map = cuda_map,
                                .unmap = cuda_unmap,
                                .touch = cuda_touch,
                                .drop = cuda_drop,
                                .put = cuda_put,
                                .get = cuda_get,
                                .submit = cuda_submit,
                                .claim = cuda_claim,
                                .wait = cuda_wait,
                                .carry = cuda_carry,
                                .fetch = cuda_fetch,
                                .settle = cuda_settle,
                                .carried = cuda_carried,
                                .memory = cuda_memory};
    if (!start(c, i)) {
        pith_status status = pi_fail(err, PITH_UNSUPPORTED, "GPU %d cannot be used: %s", i, c->why);
        cuda_close(&c->base);
        return status;
    }
    *out = &c->base;
    return PITH_OK;
}

void cuda_close(struct gpu_card *card)
{
    if (card == NULL)
        return;
    struct cuda *c = cuda_of(card);
    enter(c);
    while (c->mapping != NULL)
        cuda_unmap(card, c->mapping->at, c->mapping->size);
    cuda_graphs_free(c);
    for (int i = 0; i < CUDA_MODULES; i++)
        if (c->module[i] != NULL)
            cu.module_unload(c->module[i]);
    free_streams(c);
    if (c->context != NULL)
        cu.context_release(c->device);
    pi_mem_free(c);
}
