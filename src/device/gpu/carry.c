/*
 * carry.c - what has no kernel: pages come to the host, the processor's operation works on them
 * there, and what it wrote goes back. Pages have the same bytes on both. It is right, and slow.
 */
#include "device/cpu/cpu.h"
#include "device/cpu/pages.h"
#include "device/gpu/host.h"

/* ---- pages on the host ---- */

void gpu_stage_free(struct gpu_stage *s)
{
    pi_mem_free(s->lane);
    pi_mem_free(s->table);
    pi_mem_free(s->page);
    pi_mem_free(s->pos);
    *s = (struct gpu_stage){.n_lane = 0};
}

/* Page `page` of a class becomes number i of the stage. */
static void fetch(struct gpu_device *d, struct gpu_stage *s, const struct kv_class *kind,
                  int32_t page, size_t i)
{
    size_t stride = kind->layout.stride, len = (size_t)kind->page_len;
    gpu_touch_page(d, kind, page);
    gpu_get_near(d, s->page + i * stride, gpu_page_at(kind, page), stride);
    if (kind->pos != NULL)
        memcpy(s->pos + i * len, kv_page_pos(kind, page), len * sizeof(int32_t));
}

/* Room for n pages of a class. */
static bool make_room(struct gpu_device *d, struct gpu_stage *s, const struct kv_class *kind,
                      size_t n)
{
    size_t len = pi_max(kind->page_len, 1);
    if (!gpu_host_room(d, (void **)&s->page, n * kind->layout.stride) ||
        !gpu_host_room(d, (void **)&s->pos, n * len * sizeof(int32_t)))
        return false;
    s->kind = *kind;
    s->kind.pool = (struct pi_at){(uintptr_t)s->page};
    s->kind.pos = s->pos;
    s->kind.n_page = (int32_t)n;
    return true;
}

bool gpu_stage_page(struct gpu_device *d, const struct kv_class *kind, int32_t page)
{
    struct gpu_stage *s = &d->stage[0];
    if (!make_room(d, s, kind, 1))
        return false;
    fetch(d, s, kind, page, 0);
    return true;
}

/* n table entries of a lane, from number `first` on, become all that the lane has. */
static bool stage_entries(struct gpu_device *d, int which, const struct kv_seq *seq, int32_t layer,
                          int32_t head, int32_t first, int32_t n)
{
    struct gpu_stage *s = &d->stage[which];
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    size_t n_lane = (size_t)kv_lane_count(seq->cache), room = (size_t)pi_max(n, 1);
    size_t number = (size_t)kv_lane_number(seq, lane);
    if (!make_room(d, s, lane->kind, room) ||
        !gpu_host_room(d, (void **)&s->lane, n_lane * sizeof(*s->lane)) ||
        !gpu_host_room(d, (void **)&s->table, room * sizeof(*s->table)))
        return false;
    s->seq = *seq;
    s->seq.lane = s->lane;
    s->seq.table = s->table;
    s->lane[number] = *lane;
    s->lane[number].kind = &s->kind;
    s->lane[number].table = s->table;
    s->lane[number].n_live = n;
    for (int32_t i = 0; i < n; i++) {
        s->table[i] = lane->table[first + i];
        s->table[i].page = i;
        fetch(d, s, lane->kind, lane->table[first + i].page, (size_t)i);
    }
    return true;
}

bool gpu_stage_lane(struct gpu_device *d, int which, const struct kv_seq *seq, int32_t layer,
                    int32_t head)
{
    return stage_entries(d, which, seq, layer, head, 0, kv_lane_at(seq, layer, head)->n_live);
}

/* ---- lanes ---- */

void gpu_decode_run(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i,
                    enum kv_side side, float *out)
{
    struct gpu_device *d = gpu_of_lane(seq, layer, head);
    gpu_enter(d);
    if (stage_entries(d, 0, seq, layer, head, i, 1))
        cpu_decode_run(&d->stage[0].seq, layer, head, 0, side, out);
    gpu_leave(d);
}

/* ---- entries ---- */

/* The place of an entry in the staged page; false: no memory. */
static bool stage_place(struct gpu_device *d, const struct kv_place *p, struct kv_place *out)
{
    if (!gpu_stage_page(d, p->kind, p->page))
        return false;
    *out = *p;
    out->kind = &d->stage[0].kind;
    out->page = 0;
    return true;
}

void gpu_decode_entry(const struct kv_place *p, enum kv_side side, float *out)
{
    struct gpu_device *d = gpu_of_class(p->kind);
    struct kv_place here;
    gpu_enter(d);
    if (stage_place(d, p, &here))
        cpu_decode_entry(&here, side, out);
    gpu_leave(d);
}

void gpu_get_entry(const struct kv_place *p, enum kv_side side, uint8_t *out)
{
    struct gpu_device *d = gpu_of_class(p->kind);
    struct kv_place here;
    gpu_enter(d);
    if (stage_place(d, p, &here))
        cpu_get_entry(&here, side, out);
    gpu_leave(d);
}
