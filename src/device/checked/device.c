/*
 * device.c - a device for tests, which proves that all code uses the table. The host cannot see its
 * memory (memory.c). It does everything late (queue.c), with the scalar kernels, on one thread, and
 * loops whose order is free from their ends. So a test fails if code takes an address for a
 * pointer, changes memory that the device still reads, or looks at results too early.
 */
#include <stdio.h>

#include "device/checked/checked.h"
#include "device/cpu/cpu.h"
#include "device/cpu/pages.h"

static void describe(struct pi_device *d, struct pi_device_report *out)
{
    (void)d;
    snprintf(out->text, sizeof(out->text), "memory that the host cannot see, for tests");
}

/* ---- memory ---- */

static void drop(struct pi_device *d, struct pi_at at, size_t size)
{
    checked_wait(NULL);
    cpu_drop(d, at, size);
}

static struct pi_at lend(struct pi_device *d, const void *host, size_t size, struct pi_at room)
{
    (void)d;
    checked_upload(NULL, host, size, room);
    return room;
}

static struct pi_at lend_out(struct pi_device *d, void *host, struct pi_at room)
{
    (void)d;
    (void)host;
    return room;
}

/* ---- weights ---- */

static struct pi_at copy_of(struct pi_device *d, const void *data, size_t size)
{
    struct pi_at at = checked_alloc(d, PI_MEM_WEIGHTS, size);
    if (pi_at_some(at))
        checked_copy_in(data, size, at);
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

/* ---- the store, without a stream: behind all that was asked of any ---- */

static void begin(void)
{
    checked_wait(NULL);
    checked_enter(CHECKED_PAGES);
}

static void end(void)
{
    checked_leave(CHECKED_PAGES);
}

/* The same of operations on one page. */
static struct pi_at page_at(const struct kv_class *kind, int32_t page)
{
    return pi_at_add(kind->pool, (size_t)page * kind->layout.stride);
}

static void begin_page(const struct kv_class *kind, int32_t page)
{
    checked_wait(NULL);
    checked_enter_range(page_at(kind, page), kind->layout.stride);
}

static void end_page(const struct kv_class *kind, int32_t page)
{
    checked_leave_range(page_at(kind, page), kind->layout.stride);
}

static void attend_one(const struct kv_attend_job *job, void *scratch)
{
    begin();
    cpu_attend_one(job, scratch);
    end();
}

static void score_one(const struct kv_score_job *job, void *scratch)
{
    begin();
    cpu_score_one(job, scratch);
    end();
}

static void decode_run(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i,
                       enum kv_side side, float *out)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    begin_page(lane->kind, lane->table[i].page);
    cpu_decode_run(seq, layer, head, i, side, out);
    end_page(lane->kind, lane->table[i].page);
}

static void value_sum(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t n, float *out)
{
    begin();
    cpu_value_sum(seq, layer, head, n, out);
    end();
}

static void decode_entry(const struct kv_place *p, enum kv_side side, float *out)
{
    begin_page(p->kind, p->page);
    cpu_decode_entry(p, side, out);
    end_page(p->kind, p->page);
}

static void encode_entry(const struct kv_place *p, enum kv_side side, const float *row)
{
    begin_page(p->kind, p->page);
    cpu_encode_entry(p, side, row);
    end_page(p->kind, p->page);
}

static void get_entry(const struct kv_place *p, enum kv_side side, uint8_t *out)
{
    begin_page(p->kind, p->page);
    cpu_get_entry(p, side, out);
    end_page(p->kind, p->page);
}

static void put_entry(const struct kv_place *p, enum kv_side side, const uint8_t *bytes)
{
    begin_page(p->kind, p->page);
    cpu_put_entry(p, side, bytes);
    end_page(p->kind, p->page);
}

static void fill(const struct kv_copy *c, const int32_t *slots, int32_t n, int32_t to_slot)
{
    begin();
    cpu_fill(c, slots, n, to_slot);
    end();
}

static void index_entries(const struct kv_cache *cache, const struct kv_class *kind, int32_t lane,
                          int32_t page, int32_t slot, int32_t n)
{
    begin_page(kind, page);
    cpu_index(cache, kind, lane, page, slot, n);
    end_page(kind, page);
}

static void finish(const struct kv_cache *cache, const struct kv_class *kind, int32_t page)
{
    begin_page(kind, page);
    cpu_finish(cache, kind, page);
    end_page(kind, page);
}

static void norms(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                  int32_t slot, int32_t n, uint16_t *out)
{
    begin_page(kind, page);
    cpu_norms(cache, kind, page, slot, n, out);
    end_page(kind, page);
}

static void move(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
                 const struct kv_page_part *part, int32_t n_part)
{
    begin();
    kv_page_move_bytes(cache, kind, to, part, n_part);
    end();
}

static void copy(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
                 int32_t from)
{
    begin();
    cpu_copy(cache, kind, to, from);
    end();
}

static void read_page(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                      enum kv_page_form form, uint8_t *out)
{
    begin_page(kind, page);
    cpu_read_page(cache, kind, page, form, out);
    end_page(kind, page);
}

static void write_page(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                       enum kv_page_form form, const uint8_t *bytes)
{
    begin_page(kind, page);
    cpu_write_page(cache, kind, page, form, bytes);
    end_page(kind, page);
}

static void clear_page(const struct kv_cache *cache, const struct kv_class *kind, int32_t page)
{
    begin_page(kind, page);
    cpu_clear_page(cache, kind, page);
    end_page(kind, page);
}

/* ---- the table ---- */

struct pi_device pi_device_checked = {
    .name = "checked",
    .in_host = false,
    .describe = describe,
    .check = cpu_check,
    .alloc = checked_alloc,
    .free = checked_free,
    .map = checked_alloc,
    .unmap = checked_unmap,
    .drop = drop,
    .spare = cpu_spare,
    .lend = lend,
    .lend_out = lend_out,
    .upload = checked_upload,
    .download = checked_download,
    .pack = pack,
    .pack_vector = pack_vector,
    .unpack = checked_free,
    .open = checked_open,
    .close = checked_close,
    .wait = checked_wait,
    .rows = checked_rows,
    .product = checked_product,
    .product_heads = checked_product_heads,
    .product_experts = checked_product_experts,
    .moe_sort = checked_moe_sort,
    .delta_conv = checked_delta_conv,
    .delta_turn = checked_delta_turn,
    .attend_scratch = cpu_attend_scratch,
    .score_scratch = cpu_score_scratch,
    .attend_tile = cpu_attend_tile,
    .append = checked_append,
    .attend = checked_attend,
    .attend_one = attend_one,
    .score = checked_score,
    .score_one = score_one,
    .choose = checked_choose,
    .choose_all = cpu_choose_all,
    .decode_run = decode_run,
    .value_sum = value_sum,
    .decode_entry = decode_entry,
    .encode_entry = encode_entry,
    .get_entry = get_entry,
    .put_entry = put_entry,
    .fill = fill,
    .index = index_entries,
    .finish = finish,
    .norms = norms,
    .move = move,
    .copy = copy,
    .read_page = read_page,
    .write_page = write_page,
    .clear_page = clear_page,
};
