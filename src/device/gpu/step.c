/*
 * step.c - a token's whole pass in one launch (step.cuh). It knows which models, lanes and cards
 * the launch takes, and makes its lists and its share of shared memory. Other passes go by the
 * other operations, with the same bits. Invariant: nothing has changed when it says no.
 */
#include "device/cpu/pages.h"
#include "device/gpu/host.h"
#include "tensor/dtype.h"

static_assert(sizeof(struct gpu_step_layer) % 16 == 0 && sizeof(struct gpu_step_lane) % 16 == 0,
              "layers are copied by 16 bytes");

enum {
    ROWS = 16,
    GROUP_MOST = 16,    /* query heads of a lane */
    DIM_MOST = 128,     /* of a key or value */
    ENTRIES = 64,       /* of a tile */
    SLOT = 9216,        /* bytes of a slot of the ring: copies of less than 8 KB are slower */
    UNITS = 4,          /* of a copy, at most: one for each warp of a team */
    PART_UNITS = 192,   /* stretches whose sums are added together */
    SLOTS_LEAST = 4,    /* they come in fours */
    SUMS = 256,         /* bytes of numbers that warps exchange */
    TOPS_LAYER = 2,     /* noted magnitudes of a layer */
    BARS = 16,          /* bytes of the two barriers of a slot */
    CHUNK_MOST = 16,    /* pages of a chunk, without a window */
    PAGES_MOST = 512,   /* that a block reads in a layer */
    TOPS = 8 * ROWS * 4 /* bytes of the maxima of warps */
};

static const struct gpu_weight *weight_of(const struct pi_weight *w)
{
    return (const struct gpu_weight *)w->data.at;
}

/* ---- what it takes ---- */

static bool takes_type(enum gpu_weight_type type)
{
#define IS(name) || type == GPU_WEIGHT_##name
    return false GPU_STEP_WEIGHTS(IS);
#undef IS
}

static bool takes_weight(const struct pi_weight *w)
{
    return pi_at_some(w->data) && takes_type(weight_of(w)->type) && w->n_col % 2 == 0;
}

static bool takes_layer(const struct pi_step_layer *l)
{
    const struct pi_weight *const w[] = {l->wq, l->wk, l->wv, l->wo, l->gate, l->up, l->down};
    bool ok = true;
    for (size_t i = 0; i < PI_LEN(w); i++)
        ok = ok && takes_weight(w[i]);
    return ok;
}

/* Entries are read as they were written, and none is behind the token. */
static bool takes_lane(const struct kv_lane *lane, int32_t pos0)
{
    int32_t delta = 0;
    for (int32_t i = 0; i < lane->n_live; i++)
        delta |= lane->table[i].delta;
    return delta == 0 && (!lane->unordered || lane->top <= pos0);
}

/* Vectors and rows are read by 16 bytes. */
static bool takes_widths(const struct pi_step *p)
{
    uint64_t at = p->x.at | p->att.at | p->act.at | p->head_norm.at;
    for (int32_t l = 0; l < p->n_layer; l++)
        at |= p->layer[l].norm.at | p->layer[l].ffn_norm.at;
    return p->n_embd % 8 == 0 && p->n_embd <= GPU_STEP_EMBD && p->n_ff % 8 == 0 &&
           p->n_head * p->dim_v % 8 == 0 && at % 16 == 0;
}

/* Pages go to shared memory as they are. */
static bool takes_pages(const struct kv_cache *cache)
{
    bool ok = cache->g.page_len == ENTRIES && cache->g.index == 0 && !cache->value_norm &&
              cache->g.v_in_k == 0;
    for (int32_t i = 0; i < cache->n_kind && ok; i++) {
        const struct kv_class *kind = &cache->kind[i];
        if (kind == cache->state)
            continue;
        struct gpu_part k = gpu_part_of(kind, &kind->k, true);
        struct gpu_part v = gpu_part_of(kind, &kind->v, false);
        ok = kind->type_k == KV_TYPE_F16 && kind->type_v == KV_TYPE_F16 && k.beside &&
             k.dim % 16 == 0 && v.dim % 16 == 0 && v.plane[0].pitch == (uint32_t)v.dim * 2 &&
             (k.plane[0].at | v.plane[0].at | kind->layout.stride) % 16 == 0;
    }
    return ok;
}

static bool takes(const struct pi_step *p)
{
    const struct kv_cache *cache = p->append[0].seq->cache;
    bool ok = p->n_head_kv < GPU_COUNTS && p->n_head <= GROUP_MOST * p->n_head_kv &&
              p->dim_k <= DIM_MOST && p->dim_v <= DIM_MOST && takes_widths(p) &&
              takes_pages(cache) && (p->head == NULL || takes_weight(p->head));
    for (int32_t l = 0; l < p->n_layer && ok; l++) {
        const struct kv_append *jobs = p->append + (size_t)l * (size_t)p->n_head_kv;
        ok = takes_layer(&p->layer[l]);
        for (int32_t h = 0; h < p->n_head_kv && ok; h++)
            ok = takes_lane(kv_lane_at(jobs[h].seq, jobs[h].layer, jobs[h].head), p->pos0);
    }
    return ok;
}

/* ---- shared memory ---- */

/* The widest input of a product, in blocks of columns. */
static int32_t widest(const struct pi_step *p)
{
    int64_t n = pi_max(p->n_embd, pi_max(p->n_ff, p->n_head * p->dim_v));
    return (int32_t)pi_ceil_div(n, 256);
}

/* The most pages that a block reads in a layer, behind the token; above the list's room: -1. */
static int32_t pages_most(const struct gpu_device *d, const struct pi_step *p)
{
    int32_t n_chunk = 0, n_page = 1;
    for (int32_t i = 0; i < p->n_layer * p->n_head_kv; i++) {
        const struct kv_append *job = &p->append[i];
        const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
        /* with a window a chunk may be a single page, or have all pages of a place */
        int32_t n = lane->n_live + 1, chunks = lane->window > 0 ? n : gpu_chunk_of(n - 1) + 1;
        n_chunk = (int32_t)pi_max(n_chunk, chunks);
        n_page = (int32_t)pi_max(n_page, lane->window > 0 ? n : pi_min(n, CHUNK_MOST));
    }
    int64_t n_piece = pi_ceil_div((int64_t)n_chunk * p->n_head_kv, (int64_t)d->driver->n_processor);
    int64_t n = pi_min(n_piece * n_page, PAGES_MOST + 1);
    return n_piece <= GPU_STEP_PIECES && n <= PAGES_MOST ? (int32_t)n : -1;
}

/* Says where everything lies; false: a block has too little. */
static bool plan(const struct gpu_device *d, const struct pi_step *p, struct gpu_step_args *a)
{
    int32_t n_group = p->n_head / p->n_head_kv, n_block = widest(p), n_page = pages_most(d, p), at;
    int32_t x = 512 * n_block;
    a->part_units = (int32_t)pi_max(PART_UNITS, 2 * n_block);
    a->tile = p->dim_k * 128 + ENTRIES * (int32_t)pi_align((size_t)p->dim_v * 2, 128);
    a->slot_size = SLOT;
    int32_t parts = 2 * 64 * a->part_units;
    int32_t copies = 2 * a->layer_size + (int32_t)sizeof(struct gpu_step_matrix) + 3 * 4 * p->dim_k;
    const int32_t size[] = {
        (int32_t)pi_align((size_t)pi_max(x + parts, 2 * a->tile), 128),
        ROWS * p->dim_k * 2,
        ROWS * ENTRIES * 2 + TOPS,
        4 * ((n_group + 1) * p->dim_k + p->dim_v),
        GPU_STEP_PIECES * (int32_t)sizeof(struct gpu_step_piece) + 16 +
            n_page * (int32_t)sizeof(struct gpu_attend_ref),
        SUMS,
        copies,
    };
    int32_t *const place[] = {&a->area, &a->queries, &a->weights, &a->rows,
                              &a->list, &a->sums,    &a->copies};
    at = 0;
    for (size_t i = 0; i < PI_LEN(size); i++)
        at += (int32_t)pi_align((size_t)size[i], 128);
    int32_t left = (int32_t)d->driver->smem_step - at;
    a->n_slot = left / (a->slot_size + BARS) / SLOTS_LEAST * SLOTS_LEAST;
    if (n_page < 0 || left < 0 || a->n_slot < SLOTS_LEAST)
        return false;
    at = a->n_slot * a->slot_size;
    for (size_t i = 0; i < PI_LEN(size); i++) {
        *place[i] = at;
        at += (int32_t)pi_align((size_t)size[i], 128);
    }
    a->parts = a->area + x;
    a->bars = at;
    return true;
}

static size_t smem_of(const struct gpu_step_args *a)
{
    return (size_t)a->bars + (size_t)a->n_slot * BARS;
}

/* ---- the list ---- */

struct list {
    struct gpu_device *d;
    const struct pi_step *p;
    uint8_t *host; /* and where it will be: */
    gpu_at at;
    size_t used, size;
};

static void *take(struct list *l, size_t n, size_t size, gpu_at *at)
{
    void *part = l->host + l->used;
    *at = l->at + l->used;
    l->used += pi_align(n * size, 16);
    assert(l->used <= l->size);
    return part;
}

static size_t list_bytes(const struct pi_step *p, const struct gpu_step_args *a)
{
    size_t n_lane = (size_t)p->n_layer * (size_t)p->n_head_kv, n_chunk = 0;
    for (size_t i = 0; i < n_lane; i++) {
        const struct kv_append *job = &p->append[i];
        const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
        if (lane->window > 0)
            n_chunk += (size_t)lane->n_live + 8;
    }
    return (size_t)p->n_layer *
               ((size_t)a->layer_size + (size_t)(p->n_head + TOPS_LAYER) * sizeof(float) + 16) +
           n_chunk * sizeof(int32_t) + 64;
}

/* The pages that the token sees, of a lane with a window. Positions ascend. */
static void see_window(const struct kv_lane *lane, int32_t pos0, struct gpu_step_lane *to)
{
    int64_t first = (int64_t)pos0 - lane->window + 1;
    while (to->first < to->end - 1) {
        const struct kv_page_ref *ref = &lane->table[to->first];
        if (ref->n > 0 && kv_page_pos(lane->kind, ref->page)[ref->n - 1] >= first)
            break;
        to->first++;
    }
    const struct kv_page_ref *ref = &lane->table[to->first];
    while (to->skip < ref->n && kv_page_pos(lane->kind, ref->page)[to->skip] < first)
        to->skip++;
}

/* Where its chunks begin. */
static void list_chunks(struct list *l, const struct kv_lane *lane, struct gpu_step_lane *to)
{
    int32_t *chunk = take(l, (size_t)(to->end - to->first) + 1, sizeof(*chunk), &to->chunks);
    for (int32_t i = to->first, last = -1; i < to->end; i++) {
        int32_t at = gpu_chunk_of(kv_page_pos(lane->kind, lane->table[i].page)[0] / ENTRIES);
        if (at != last)
            chunk[to->n_chunk++] = i;
        last = at;
        if (i == to->index)
            to->chunk = to->n_chunk - 1;
    }
    chunk[to->n_chunk] = to->end;
}

/* The lane with the entry that it has got. */
static void add_lane(struct list *l, const struct kv_append *job, gpu_at refs,
                     struct gpu_step_lane *to)
{
    const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
    int32_t index = job->n_over > 0 ? job->over_index : job->index;
    *to = (struct gpu_step_lane){
        .refs = refs,
        .page = gpu_page_at(lane->kind, lane->table[index].page),
        .slot = job->n_over > 0 ? job->over_entry : job->entry,
        .index = index,
        .end = lane->n_live,
        .last = lane->n_live - 1,
        .last_n = lane->table[lane->n_live - 1].n,
    };
    gpu_touch_page(l->d, lane->kind, lane->table[index].page);
    if (lane->window > 0) {
        see_window(lane, l->p->pos0, to);
        list_chunks(l, lane, to);
    } else {
        to->chunk = gpu_chunk_of(index);
        to->n_chunk = gpu_chunk_of(to->end - 1) + 1;
    }
}

static struct gpu_step_matrix matrix_of(const struct pi_weight *w)
{
    const struct gpu_weight *p = weight_of(w);
    int32_t bytes = (int32_t)pi_dtype_row_bytes(pi_dtype_find((uint32_t)w->type), 256) * PI_GROUP;
    int32_t n_unit = (int32_t)pi_min(SLOT / bytes, UNITS);
    return (struct gpu_step_matrix){.w = p->at,
                                    .type = (int32_t)p->type,
                                    .n_row =
                                        (int32_t)pi_min(w->n_row, (int64_t)w->n_group * PI_GROUP),
                                    .n_block = p->n_block,
                                    .bytes = bytes,
                                    .n_unit = n_unit,
                                    .n_copy = (int32_t)pi_ceil_div(p->n_block, n_unit),
                                    .scale = p->scale};
}

static void add_layer(struct list *l, int32_t which, const struct gpu_lane_list *lists,
                      struct gpu_step_layer *to)
{
    const struct pi_step_layer *from = &l->p->layer[which];
    const struct kv_append *jobs = l->p->append + (size_t)which * (size_t)l->p->n_head_kv;
    const struct kv_lane *any = kv_lane_at(jobs->seq, jobs->layer, 0);
    *to = (struct gpu_step_layer){
        .m = {matrix_of(from->wq), matrix_of(from->wk), matrix_of(from->wv), matrix_of(from->wo),
              matrix_of(from->gate), matrix_of(from->up), matrix_of(from->down)},
        .norm = from->norm.at,
        .ffn_norm = from->ffn_norm.at,
        .bq = from->bq.at,
        .bk = from->bk.at,
        .bv = from->bv.at,
        .bo = from->bo.at,
        .q_norm = from->q_norm.at,
        .k_norm = from->k_norm.at,
        .centre = from->centre.at,
        .cs = from->rope != NULL ? from->cs.at : 0,
        .n_pair = from->rope != NULL ? from->rope->n_pair : 0,
        .adjacent = from->rope != NULL && from->rope->adjacent,
        .pool = any->kind->pool.at,
        .stride = any->kind->layout.stride,
        .k_at = (int32_t)gpu_part_of(any->kind, &any->kind->k, true).plane[0].at,
        .v_at = (int32_t)gpu_part_of(any->kind, &any->kind->v, false).plane[0].at,
        .clip = 2 * jobs->layer,
    };
    if (from->sink != NULL) {
        size_t n = (size_t)l->p->n_head;
        memcpy(take(l, n, sizeof(float), &to->sink), from->sink, n * sizeof(float));
    }
    struct gpu_step_lane *lane = (struct gpu_step_lane *)(void *)(to + 1);
    for (int32_t h = 0; h < l->p->n_head_kv; h++) {
        add_lane(l, &jobs[h], lists[which * l->p->n_head_kv + h].refs, &lane[h]);
        to->n_most = (int32_t)pi_max(to->n_most, lane[h].n_chunk);
    }
}

/* ---- the launch ---- */

/* Rooms for what chunks leave. */
static bool take_rooms(struct gpu_device *d, const struct pi_step *p, int32_t n_most,
                       struct gpu_step_args *a)
{
    size_t n = (size_t)n_most * (size_t)p->n_head;
    a->o = gpu_room(d, GPU_ROOM_PART, n * (size_t)p->dim_v * sizeof(float));
    a->ml = gpu_room(d, GPU_ROOM_ML, n * 2 * sizeof(float));
    a->met = gpu_counts(d); /* of the barrier, then of KV heads */
    a->done = a->met + sizeof(uint32_t);
    return a->o != 0 && a->ml != 0 && a->met != 0;
}

/* The device's lists of all lanes; NULL: no memory. */
static struct gpu_lane_list *lists_of(struct gpu_device *d, const struct pi_step *p)
{
    size_t n = (size_t)p->n_layer * (size_t)p->n_head_kv;
    if (!gpu_host_room(d, (void **)&d->list, n * (sizeof(struct gpu_lane_list) + sizeof(void *))))
        return NULL;
    struct gpu_lane_list *lists = (struct gpu_lane_list *)(void *)d->list;
    const struct kv_lane **lanes = (const struct kv_lane **)(void *)(lists + n);
    for (size_t i = 0; i < n; i++)
        lanes[i] = kv_lane_at(p->append[i].seq, p->append[i].layer, p->append[i].head);
    if (gpu_attend_lists(d, lanes, (int32_t)n, lists))
        return lists;
    d->driver->failure = "no memory for lists of pages";
    return NULL;
}

static void launch(struct gpu_device *d, const struct pi_step *p, struct gpu_step_args *a)
{
    struct list l = {.d = d, .p = p, .size = list_bytes(p, a)};
    struct kv_cache *cache = p->append[0].seq->cache;
    const struct gpu_lane_list *lists = lists_of(d, p);
    int32_t n_most = 0;
    void *host;
    l.at = lists != NULL ? gpu_list(d, l.size, &host) : 0;
    if (l.at == 0)
        return;
    l.host = host;
    size_t n_top = (size_t)(p->n_layer * TOPS_LAYER);
    memset(take(&l, n_top, sizeof(float), &a->tops), 0, n_top * sizeof(float));
    uint8_t *layers = take(&l, (size_t)p->n_layer, (size_t)a->layer_size, &a->layers);
    for (int32_t i = 0; i < p->n_layer; i++) {
        struct gpu_step_layer *layer = (void *)(layers + (size_t)i * (size_t)a->layer_size);
        add_layer(&l, i, lists, layer);
        n_most = (int32_t)pi_max(n_most, layer->n_most);
    }
    if (!take_rooms(d, p, n_most, a))
        return;
    gpu_note_for(d, cache);
    gpu_send(d, l.at, l.used);
    gpu_run(d, GPU_KERNEL_step, d->driver->n_processor, 1, 1, smem_of(a), a);
}

bool gpu_step(struct pi_stream *s, const struct pi_step *p)
{
    struct gpu_device *d = gpu_of_stream(s);
    struct gpu_step_args a = {
        .head_norm = p->head_norm.at,
        .x = p->x.at,
        .q = p->q.at,
        .k = p->k.at,
        .v = p->v.at,
        .att = p->att.at,
        .act = p->act.at,
        .logits = p->logits.at,
        .pos = p->pos.at,
        .clipped = d->clipped,
        .n_layer = p->n_layer,
        .layer_size = (int32_t)(sizeof(struct gpu_step_layer) +
                                (size_t)p->n_head_kv * sizeof(struct gpu_step_lane)),
        .n_embd = p->n_embd,
        .n_ff = p->n_ff,
        .n_head = p->n_head,
        .n_head_kv = p->n_head_kv,
        .dim_k = p->dim_k,
        .dim_v = p->dim_v,
        .temp_len = p->temp.len,
        .activation = (int32_t)p->activation,
        .temp_scale = p->temp.scale,
        .eps = p->eps,
        .factor = p->scale,
        .cap = p->cap,
        .cap_by = gpu_cap_by(p->cap),
        .limit = kv_codec_limit(KV_TYPE_F16),
    };
    if (!takes(p) || !plan(d, p, &a))
        return false;
    if (p->head != NULL)
        a.head = matrix_of(p->head);
    gpu_enter_pass(d);
    kv_append_place(p->append, p->n_layer * p->n_head_kv);
    launch(d, p, &a);
    gpu_leave(d);
    return true;
}
