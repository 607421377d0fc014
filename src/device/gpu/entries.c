/*
 * entries.c - single entries that come from the host or from another lane, and the sum of a lane's
 * values. Entries on their way wait in a list of the host's until another operation begins. So
 * all lanes' entries go in a launch of each kind, and the host waits for nothing.
 *
 * Invariant: what waits goes to pages of one form, each place once, and no place that is written is
 * read. Either entries wait, or moves (keep.c).
 */
#include "device/gpu/host.h"

enum {
    MOST_ROWS = 1 << 16,
    MOST_BYTES = 16 << 20, /* from the host */
    SMEM_MOST = 90 << 10,  /* of entries that a block decodes */
    FIRST_PLACES = 1 << 10 /* of the set of places; a power of two */
};

/* ---- what waits ---- */

void gpu_entries_free(struct gpu_device *d)
{
    pi_mem_free(d->entries.row);
    pi_mem_free(d->entries.index);
    pi_mem_free(d->entries.bytes);
    pi_mem_free(d->entries.place);
}

/* The place of a key in the set, or an empty one; keys are not 0. */
static size_t place_of(const uint64_t *set, size_t cap, uint64_t key)
{
    size_t i = (size_t)((key * 0x9e3779b97f4a7c15u) >> 20) & (cap - 1);
    while (set[i] != 0 && set[i] != key)
        i = (i + 1) & (cap - 1);
    return i;
}

/* A side of an entry, as it is read or written. */
static uint64_t key_of(const struct kv_place *p, enum kv_side side, bool reads)
{
    return gpu_page_at(p->kind, p->page) << 8 | (uint64_t)reads << 7 | (uint64_t)p->slot << 1 |
           (uint64_t)(side == KV_SIDE_V);
}

static bool has_place(const struct gpu_entries *e, uint64_t key)
{
    return e->n_place > 0 && e->place[place_of(e->place, e->cap_place, key)] != 0;
}

/* False: there is no memory. */
static bool add_place(struct gpu_device *d, uint64_t key)
{
    struct gpu_entries *e = &d->entries;
    if (2 * (e->n_place + 1) > e->cap_place) {
        size_t cap = e->cap_place > 0 ? 2 * e->cap_place : FIRST_PLACES;
        uint64_t *set = pi_mem_alloc(PI_MEM_DEVICE, cap * sizeof(*set));
        if (set == NULL) {
            d->driver->failure = "no memory of the host";
            return false;
        }
        for (size_t i = 0; i < e->cap_place; i++)
            if (e->place[i] != 0)
                set[place_of(set, cap, e->place[i])] = e->place[i];
        pi_mem_free(e->place);
        e->place = set;
        e->cap_place = cap;
    }
    size_t at = place_of(e->place, e->cap_place, key);
    e->n_place += e->place[at] == 0;
    e->place[at] = key;
    return true;
}

/* Whether pages of a class have the form, which becomes theirs where nothing has it yet. */
static bool takes_form(struct gpu_form *f, const struct kv_class *kind, bool some)
{
    if (some && f->kind == kind)
        return true;
    const struct gpu_form form = {kind, gpu_part_of(kind, &kind->k, true),
                                  gpu_part_of(kind, &kind->v, false), kind->page_len};
    if (some && (memcmp(&f->k, &form.k, sizeof(form.k)) != 0 ||
                 memcmp(&f->v, &form.v, sizeof(form.v)) != 0 || f->page_len != form.page_len))
        return false;
    *f = form;
    return true;
}

/* Rows of one kind share a launch: of the host, or of a pair of parts. */
enum row_kind { ROW_OF_HOST, ROW_KEY, ROW_VALUE, N_ROW_KIND };

static enum row_kind kind_of_row(const struct gpu_entry_row *row)
{
    return row->of_host ? ROW_OF_HOST : row->value == 0 ? ROW_KEY : ROW_VALUE;
}

static void run_rows(struct gpu_device *d, gpu_at rows, enum row_kind kind, size_t n)
{
    const struct gpu_entries *e = &d->entries;
    struct gpu_entry_args args = {.rows = rows, .page_len = e->to.page_len};
    size_t dim = (size_t)pi_max(e->to.k.dim, e->to.v.dim);
    size_t smem = pi_align(dim, 128) + pi_align(dim / 8 + 2, 16);
    if (kind == ROW_OF_HOST) {
        args.part[0] = e->to.k;
        args.part[1] = e->to.v;
        gpu_run(d, GPU_KERNEL_entry_put, (int64_t)n, 1, 1, smem, &args);
        return;
    }
    args.from_len = e->from.page_len;
    args.part[0] = kind == ROW_KEY ? e->from.k : e->from.v;
    args.part[1] = kind == ROW_KEY ? e->to.k : e->to.v;
    gpu_run(d, GPU_KERNEL_entry_copy, (int64_t)n, 1, 1, smem + (dim + 4) * sizeof(float), &args);
}

/* The rows, kind by kind, to the list that goes to the device; from[k] is the first of a kind. */
static void sort_rows(const struct gpu_entries *e, gpu_at bytes, struct gpu_entry_row *to,
                      size_t from[N_ROW_KIND + 1])
{
    size_t at[N_ROW_KIND];
    memset(from, 0, (N_ROW_KIND + 1) * sizeof(*from));
    for (size_t i = 0; i < e->n; i++)
        from[kind_of_row(&e->row[i]) + 1]++;
    for (int k = 0; k < N_ROW_KIND; k++) {
        from[k + 1] += from[k];
        at[k] = from[k];
    }
    for (size_t i = 0; i < e->n; i++) {
        struct gpu_entry_row row = e->row[i];
        row.from += row.of_host ? bytes : 0;
        row.shift += row.shift != 0 ? bytes - 1 : 0;
        to[at[kind_of_row(&row)]++] = row;
    }
}

void gpu_flush_entries(struct gpu_device *d)
{
    struct gpu_entries *e = &d->entries;
    size_t rows = pi_align(e->n * sizeof(*e->row), 16), n_index = e->n_index, from[N_ROW_KIND + 1];
    void *host;
    gpu_at list = e->n > 0 ? gpu_list(d, rows + e->n_byte, &host) : 0;
    if (list != 0) {
        sort_rows(e, list + rows, host, from);
        if (e->n_byte > 0)
            memcpy((uint8_t *)host + rows, e->bytes, e->n_byte);
        gpu_send(d, list, rows + e->n_byte);
        for (int k = 0; k < N_ROW_KIND; k++)
            if (from[k + 1] > from[k])
                run_rows(d, list + from[k] * sizeof(*e->row), (enum row_kind)k,
                         from[k + 1] - from[k]);
    }
    e->n = e->n_byte = e->n_index = e->n_place = 0;
    e->copies = false;
    if (e->cap_place > 0)
        memset(e->place, 0, e->cap_place * sizeof(*e->place));
    if (n_index > 0)
        gpu_index_rows(d, e->cache, e->to.kind, e->index, (int32_t)n_index, NULL);
}

/* Bytes of the host that a row needs; returns where they are. */
static bool keep_bytes(struct gpu_device *d, const void *from, size_t size, size_t *at)
{
    struct gpu_entries *e = &d->entries;
    size_t room = pi_align(size, 16);
    if (!gpu_host_grow(d, (void **)&e->bytes, e->n_byte, room, 1))
        return false;
    memcpy(e->bytes + e->n_byte, from, size);
    *at = e->n_byte;
    e->n_byte += room;
    return true;
}

/* Whether a row to that place can wait with what waits, whose forms become its own where nothing
   does. */
static bool can_wait(struct gpu_entries *e, const struct kv_place *from, const struct kv_place *to,
                     enum kv_side side)
{
    return e->n < MOST_ROWS && e->n_byte < MOST_BYTES &&
           (e->n_index == 0 || e->to.kind == to->kind) && takes_form(&e->to, to->kind, e->n > 0) &&
           !has_place(e, key_of(to, side, false)) && !has_place(e, key_of(to, side, true)) &&
           (from == NULL || (takes_form(&e->from, from->kind, e->copies) &&
                             !has_place(e, key_of(from, side, false))));
}

/* Under the lock: room for one more row to that place, from `from` or (NULL) the host. */
static bool begin_row(struct gpu_device *d, const struct kv_place *from, const struct kv_place *to,
                      enum kv_side side)
{
    struct gpu_entries *e = &d->entries;
    if (d->moves.n_goal > 0)
        gpu_flush_moves(d);
    d->packed.x = 0;
    if (!can_wait(e, from, to, side)) {
        gpu_flush_entries(d);
        (void)can_wait(e, from, to, side); /* nothing waits: it can, and the forms are its own */
    }
    e->copies = e->copies || from != NULL;
    e->cache = to->cache;
    gpu_touch_page(d, to->kind, to->page);
    return add_place(d, key_of(to, side, false)) &&
           (from == NULL || add_place(d, key_of(from, side, true))) &&
           gpu_host_grow(d, (void **)&e->row, e->n, 1, sizeof(*e->row));
}

/* ---- from the host ---- */

static void take_row(const struct kv_place *p, enum kv_side side, const void *from, size_t size,
                     bool encode)
{
    struct gpu_device *d = gpu_of_class(p->kind);
    size_t at;
    pi_lock_take(&d->lock);
    if (begin_row(d, NULL, p, side) && keep_bytes(d, from, size, &at))
        d->entries.row[d->entries.n++] =
            (struct gpu_entry_row){.page = gpu_page_at(p->kind, p->page),
                                   .from = at,
                                   .slot = p->slot,
                                   .value = side == KV_SIDE_V,
                                   .encode = encode,
                                   .of_host = 1};
    pi_lock_give(&d->lock);
}

void gpu_put_entry(const struct kv_place *p, enum kv_side side, const uint8_t *bytes)
{
    take_row(p, side, bytes, kv_part_bytes(kv_place_part(p, side)), false);
}

void gpu_encode_entry(const struct kv_place *p, enum kv_side side, const float *row)
{
    take_row(p, side, row, (size_t)kv_place_part(p, side)->dim * sizeof(*row), true);
}

bool gpu_index_later(struct gpu_device *d, const struct kv_cache *cache,
                     const struct kv_class *kind, int32_t lane, int32_t page, int32_t slot,
                     int32_t n)
{
    struct gpu_entries *e = &d->entries;
    if (e->n == 0 || e->to.kind != kind || e->cache != cache ||
        !gpu_host_grow(d, (void **)&e->index, e->n_index, (size_t)n, sizeof(*e->index)))
        return false;
    for (int32_t i = 0; i < n; i++)
        e->index[e->n_index++] =
            (struct gpu_index_row){.page = gpu_page_at(kind, page), .slot = slot + i, .lane = lane};
    return true;
}

/* ---- from another lane ---- */

/* One side of an entry: as it is stored where both store it alike. */
static void copy_side(struct gpu_device *d, const struct kv_place *a, const struct kv_place *b,
                      enum kv_side side, const float *shift)
{
    const struct kv_part *from = kv_place_part(a, side), *to = kv_place_part(b, side);
    size_t at = 0;
    if (from->dim == 0 || !begin_row(d, a, b, side) ||
        (shift != NULL && !keep_bytes(d, shift, (size_t)from->dim * sizeof(*shift), &at)))
        return;
    d->entries.row[d->entries.n++] =
        (struct gpu_entry_row){.page = gpu_page_at(b->kind, b->page),
                               .from = gpu_page_at(a->kind, a->page),
                               .shift = shift != NULL ? at + 1 : 0,
                               .slot = b->slot,
                               .from_slot = a->slot,
                               .value = side == KV_SIDE_V,
                               .encode = shift != NULL || from->type != to->type};
}

void gpu_fill(const struct kv_copy *c, const int32_t *slots, int32_t n, int32_t to_slot)
{
    const struct kv_lane *from = kv_lane_at(c->from, c->from_layer, c->from_head);
    const struct kv_lane *to = kv_lane_at(c->to, c->to_layer, c->to_head);
    struct gpu_device *d = gpu_of_class(to->kind);
    struct kv_place a = kv_place_of(c->from, from, slots[0]);
    int32_t begin = slots[0] - a.slot;
    pi_lock_take(&d->lock);
    for (int side = 0; side < 2; side++)
        for (int32_t i = 0; i < n; i++) {
            const struct kv_place b = kv_place_of(c->to, to, to_slot + i);
            a.slot = slots[i] - begin;
            copy_side(d, &a, &b, side == 0 ? KV_SIDE_K : KV_SIDE_V, side == 0 ? c->shift : NULL);
        }
    pi_lock_give(&d->lock);
    for (int32_t i = 0; i < n; i++) {
        const struct kv_place b = kv_place_of(c->to, to, to_slot + i);
        gpu_index(b.cache, b.kind, b.lane, b.page, b.slot, 1);
    }
}

/* ---- sums ---- */

int32_t gpu_list_values(const struct kv_seq *seq, const struct kv_lane *lane, int32_t n,
                        gpu_at room, struct gpu_value_page *page)
{
    const struct kv_class *kind = lane->kind;
    bool has_sums = (seq->cache->g.index & KV_INDEX_VALUE_SUM) != 0;
    int32_t n_page = 0;
    for (int32_t i = 0, slot = 0; slot < n; slot += lane->table[i++].n) {
        const struct kv_page_ref *ref = &lane->table[i];
        int32_t here = (int32_t)pi_min(ref->n, n - slot);
        gpu_at at = gpu_page_at(kind, ref->page);
        bool has = has_sums && here == kind->page_len;
        if (here == 0)
            continue;
        page[n_page] = (struct gpu_value_page){
            at,
            has ? at + kind->layout.value_sum : room + (size_t)n_page * (size_t)kind->value.dim * 4,
            here, !has};
        n_page++;
    }
    return n_page;
}

struct gpu_value_args gpu_value_args_of(const struct kv_class *kind)
{
    size_t dim = (size_t)kind->value.dim;
    struct gpu_value_args args = {.page_len = kind->page_len,
                                  .n_entry = kind->page_len,
                                  .part = gpu_part_of(kind, &kind->value, kind->v.dim == 0)};
    while (args.n_entry > 1 && (size_t)args.n_entry * (dim + 1) * sizeof(float) > SMEM_MOST)
        args.n_entry /= 2;
    return args;
}

void gpu_value_sum(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t n, float *out)
{
    struct gpu_device *d = gpu_of_lane(seq, layer, head);
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    size_t dim = (size_t)lane->kind->value.dim, n_live = (size_t)lane->n_live;
    struct gpu_value_args args = gpu_value_args_of(lane->kind);
    void *host;
    gpu_enter(d);
    args.out = gpu_room(d, GPU_ROOM_HOST, (n_live + 1) * dim * sizeof(float));
    args.pages = args.out != 0 ? gpu_list(d, n_live * sizeof(struct gpu_value_page), &host) : 0;
    memset(out, 0, dim * sizeof(*out));
    if (args.pages != 0) {
        args.n_page = gpu_list_values(seq, lane, n, args.out + dim * sizeof(float), host);
        gpu_send(d, args.pages, (size_t)args.n_page * sizeof(struct gpu_value_page));
        gpu_run(d, GPU_KERNEL_value_pages, args.n_page, 1, 1,
                (size_t)args.n_entry * (dim + 1) * sizeof(float), &args);
        gpu_run(d, GPU_KERNEL_value_join, pi_ceil_div((int64_t)dim, 128), 1, 1, 0, &args);
        d->driver->get(d->driver, out, args.out, dim * sizeof(*out));
    }
    gpu_leave(d);
}
