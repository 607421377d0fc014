/*
 * compact.c - moves of whole lanes, as a round leaves them. They wait in a list of the host's, from
 * several threads, until another operation begins; the marks of the same entries with them
 * (note.c).
 */
#include "device/gpu/host.h"

/* The place of a lane, which has its number or nothing. */
static int32_t *place_of(const struct gpu_moves *all, const void *lane)
{
    size_t i = gpu_hash(lane) & (all->cap_place - 1);
    while (all->place[i] != 0 && all->lane[all->place[i] - 1].lane != lane)
        i = (i + 1) & (all->cap_place - 1);
    return &all->place[i];
}

struct gpu_moving *gpu_moving_of(const struct gpu_moves *all, const void *lane)
{
    const int32_t *place = all->n_lane > 0 ? place_of(all, lane) : NULL;
    return place != NULL && *place != 0 ? &all->lane[*place - 1] : NULL;
}

/* Places for one more lane. */
static bool grow_places(struct gpu_device *d)
{
    struct gpu_moves *all = &d->moves;
    if (2 * (all->n_lane + 1) <= all->cap_place)
        return true;
    size_t cap = all->cap_place > 0 ? 2 * all->cap_place : 1024;
    int32_t *more = pi_mem_alloc(PI_MEM_DEVICE, cap * sizeof(*more));
    if (more == NULL) {
        d->driver->failure = "no memory of the host";
        return false;
    }
    pi_mem_free(all->place);
    all->place = more;
    all->cap_place = cap;
    for (size_t i = 0; i < all->n_lane; i++)
        *place_of(all, all->lane[i].lane) = (int32_t)i + 1;
    return true;
}

static struct gpu_moving *moving_of(struct gpu_device *d, const struct kv_lane_moves *m)
{
    struct gpu_moves *all = &d->moves;
    struct gpu_moving *lane = gpu_moving_of(all, m->lane);
    if (all->n_lane > 0 && (all->kind != m->kind || (m->first && lane != NULL))) {
        gpu_flush_moves(d);
        lane = NULL;
    }
    if (lane == NULL) {
        if (!grow_places(d) ||
            !gpu_host_grow(d, (void **)&all->lane, all->n_lane, 1, sizeof(*all->lane)))
            return NULL;
        *place_of(all, m->lane) = (int32_t)all->n_lane + 1;
        lane = &all->lane[all->n_lane++];
        *lane = (struct gpu_moving){m->lane, 0, all->n_chunk, all->n_chunk};
    }
    return lane;
}

void gpu_move_lane(const struct kv_cache *cache, const struct kv_lane_moves *m)
{
    struct gpu_device *d = gpu_of_class(m->kind);
    struct gpu_moves *all = &d->moves;
    pi_lock_take(&d->lock);
    if (d->entries.n > 0)
        gpu_flush_entries(d);
    struct gpu_moving *lane = moving_of(d, m);
    if (lane == NULL ||
        !gpu_host_grow(d, (void **)&all->chunk, all->n_chunk, 1, sizeof(*all->chunk)) ||
        !gpu_host_grow(d, (void **)&all->goal, all->n_goal, (size_t)m->n_goal,
                       sizeof(*all->goal)) ||
        !gpu_host_grow(d, (void **)&all->part, all->n_part, (size_t)m->n_part,
                       sizeof(*all->part))) {
        pi_lock_give(&d->lock);
        return;
    }
    all->cache = cache;
    all->kind = m->kind;
    if (lane->n_goal > 0)
        all->chunk[lane->last].next = all->n_chunk;
    lane->last = all->n_chunk;
    all->chunk[all->n_chunk++] = (struct gpu_move_chunk){all->n_goal, (size_t)m->n_goal, 0};
    for (int32_t i = 0, part = 0; i < m->n_goal; i++) {
        all->goal[all->n_goal++] = (struct gpu_goal){m->goal[i], all->n_part};
        for (int32_t end = part + m->goal[i].n_part; part < end; part++)
            all->part[all->n_part++] = m->part[part];
    }
    lane->n_goal += (size_t)m->n_goal;
    pi_lock_give(&d->lock);
}

static void add_plane(struct gpu_compact_args *a, uint32_t width, size_t at, size_t row,
                      size_t element, size_t n_row, bool beside)
{
    bool wide = !beside && at % 16 == 0 && element % 16 == 0;
    uint32_t own = wide ? 16 : at % 4 == 0 && element % 4 == 0 && row % 4 == 0 ? 4 : 2;
    if (element == 0 || n_row == 0 || own != width)
        return;
    a->plane[a->n_plane++] =
        (struct gpu_compact_plane){.at = (uint32_t)at,
                                   .row = (uint32_t)row,
                                   .element = (uint32_t)element,
                                   .per_row = (uint32_t)element / own,
                                   .n_vector = (uint32_t)(n_row * element / own),
                                   .beside = beside};
}

/* Planes whose entries are made of elements of some width. */
static void add_planes(struct gpu_compact_args *a, const struct gpu_move_args *all, uint32_t width)
{
    a->n_plane = 0;
    for (int32_t i = 0; i < all->n_plane; i++) {
        const struct gpu_move_plane *p = &all->plane[i];
        add_plane(a, width, p->at, p->row, p->element, p->n_row, p->n_row > 1);
    }
}

/* A launch for each width of elements. */
static void run_moves(struct gpu_device *d, struct gpu_compact_args *a, size_t n_lane)
{
    static const struct {
        uint32_t width, n;
        enum gpu_kernel kernel;
    } widths[] = {
        {2, 8, GPU_KERNEL_compact_2}, {4, 8, GPU_KERNEL_compact_4}, {16, 4, GPU_KERNEL_compact_16}};
    struct gpu_move_args all = {.n_plane = 0};
    gpu_planes_of(&all, d->moves.cache, d->moves.kind);
    for (size_t i = 0; i < PI_LEN(widths); i++) {
        int64_t per = 256 * widths[i].n / a->page_len, most = 0;
        add_planes(a, &all, widths[i].width);
        for (int32_t p = 0; p < a->n_plane; p++)
            most = pi_max(most, a->plane[p].n_vector);
        gpu_run(d, widths[i].kernel, (int64_t)n_lane, pi_ceil_div(most, per), a->n_plane, 0, a);
    }
}

/* The list, lane by lane. */
static void put_moves(const struct gpu_moves *all, struct gpu_compact_lane *lane, int32_t *page,
                      struct gpu_compact_part *part)
{
    size_t row = 0;
    for (size_t l = 0; l < all->n_lane; l++) {
        lane[l] = (struct gpu_compact_lane){(int32_t)row, (int32_t)all->lane[l].n_goal};
        const struct gpu_move_chunk *chunk = &all->chunk[all->lane[l].first];
        for (;; chunk = &all->chunk[chunk->next]) {
            const struct gpu_goal *goal = &all->goal[chunk->first], *end = goal + chunk->n;
            for (; goal < end; goal++, row++) {
                const struct kv_page_part *p = &all->part[goal->part];
                page[row] = goal->of.page;
                for (int32_t i = 0; i < goal->of.n_part; i++, p++)
                    *part++ = (struct gpu_compact_part){(uint32_t)p->from,     (uint32_t)row,
                                                        (uint8_t)p->from_slot, (uint8_t)p->to_slot,
                                                        (uint8_t)p->n,         0};
            }
            if (chunk->next == 0)
                break;
        }
    }
}

/* Pages that are full now. */
static void finish_goals(struct gpu_device *d, const struct gpu_moves *all)
{
    struct gpu_index_row *row;
    int32_t n = 0;
    if ((all->cache->g.index & (KV_INDEX_BOUNDS | KV_INDEX_VALUE_SUM)) == 0 ||
        !gpu_host_room(d, &d->rows, all->n_goal * sizeof(*row)))
        return;
    row = d->rows;
    for (size_t i = 0; i < all->n_goal; i++)
        if (all->goal[i].of.full)
            row[n++] = (struct gpu_index_row){.page = gpu_page_at(all->kind, all->goal[i].of.page)};
    gpu_index_full(d, all->cache, all->kind, row, n);
}

void gpu_flush_moves(struct gpu_device *d)
{
    struct gpu_moves *all = &d->moves;
    size_t len = all->n_goal > 0 ? (size_t)all->kind->page_len : 0;
    size_t lanes = pi_align(all->n_lane * sizeof(struct gpu_compact_lane), 16);
    size_t pages = pi_align(all->n_goal * sizeof(int32_t), 16);
    size_t size = lanes + pages + all->n_part * sizeof(struct gpu_compact_part);
    size_t source = all->n_goal * len * sizeof(uint32_t);
    void *host;
    gpu_flush_marks(d);
    gpu_at room = all->n_part > 0 ? gpu_room(d, GPU_ROOM_PART, source) : 0;
    gpu_at list = room != 0 ? gpu_list(d, size, &host) : 0;
    if (list != 0) {
        uint8_t *at = host;
        struct gpu_compact_args args = {.pool = all->kind->pool.at,
                                        .lanes = list,
                                        .goals = list + lanes,
                                        .parts = list + lanes + pages,
                                        .source = room,
                                        .stride = all->kind->layout.stride,
                                        .n_part = (int32_t)all->n_part,
                                        .page_len = all->kind->page_len};
        put_moves(all, (struct gpu_compact_lane *)(void *)at, (int32_t *)(void *)(at + lanes),
                  (struct gpu_compact_part *)(void *)(at + lanes + pages));
        gpu_send(d, list, size);
        d->driver->clear(d->driver, room, source);
        gpu_run(d, GPU_KERNEL_compact_list, pi_ceil_div(args.n_part, 128), 1, 1, 0, &args);
        run_moves(d, &args, all->n_lane);
        finish_goals(d, all);
    }
    if (all->n_lane > 0)
        memset(all->place, 0, all->cap_place * sizeof(*all->place));
    all->n_lane = all->n_chunk = all->n_goal = all->n_part = 0;
}

void gpu_moves_free(struct gpu_device *d)
{
    pi_mem_free(d->moves.lane);
    pi_mem_free(d->moves.place);
    pi_mem_free(d->moves.chunk);
    pi_mem_free(d->moves.goal);
    pi_mem_free(d->moves.part);
    pi_mem_free(d->marks.lane);
    pi_mem_free(d->marks.run);
}
