/*
 * tier.c - the second tier: what it is made of, and the stores of sequences. Lanes are
 * tier_shelf.c's, what comes back is tier_choose.c's. Invariant: pages in memory never take more
 * than the budget, and the file never grows beyond its own. After a tier and its stores are made no
 * operation on them can fail.
 */
#include "policy/recall/tier.h"

/* ---- making a tier ---- */

int32_t recall_tier_kind(struct recall_tier *tier, const struct kv_geometry *g)
{
    int32_t i = 0;
    while (i < tier->n_kind &&
           (tier->kind[i].type_k != g->type_k || tier->kind[i].type_v != g->type_v))
        i++;
    if (i == tier->n_kind) {
        assert(i < RECALL_KINDS);
        tier->kind[tier->n_kind++] = *g;
    }
    return i;
}

/* Other scores are of whole keys, and values that are parts of keys have no such constant. */
static bool centres(const struct recall_tier *tier, const struct kv_geometry *g, int32_t layer)
{
    return tier->o.score == RECALL_ATTENTION && g->v_in_k == 0 &&
           g->type_k != kv_layer_type_k(&tier->model.g, layer) &&
           kv_type_bits(g->type_k, g->dim_k) < 16;
}

/* The part of a layer's device: the host's memory has no number of its own. */
static int32_t find_part(struct recall_tier *tier, struct pi_device *d)
{
    int32_t i = 0;
    d = d->asked != NULL ? d : &pi_device_cpu;
    while (i < tier->n_part && tier->part[i].device != d)
        i++;
    if (i == tier->n_part)
        tier->part[tier->n_part++].device = d;
    return i;
}

/* How many pages of every lane the memory has room for. */
static pith_status count_pages(struct recall_tier *tier, pith_error *err)
{
    const struct policy_model *m = &tier->model;
    int64_t all = 0;
    for (int32_t i = 0; i < tier->n_shelf; i++) {
        struct recall_shelf *shelf = &tier->shelf[i];
        struct kv_geometry g = recall_lane_geometry(&tier->o, &m->g, i / m->g.n_head, m->n_group);
        pith_error why;
        pith_status status = kv_geometry_check(&g, &why);
        if (status != PITH_OK)
            return pi_fail(err, status, "recall: type: %s", why.message);
        shelf->number = i;
        shelf->layer = i / m->g.n_head;
        shelf->part = find_part(tier, kv_layer_device(&m->g, shelf->layer));
        shelf->kind = recall_tier_kind(tier, &g);
        shelf->centres = centres(tier, &g, shelf->layer);
        shelf->page_bytes = kv_page_bytes(&g);
        all += (int64_t)shelf->page_bytes;
    }
    if (tier->o.ram < all)
        return pi_fail(err, PITH_INVALID,
                       "recall: ram: %lld bytes are less than the %lld that a page of %d entries "
                       "takes in each of %d lanes",
                       (long long)tier->o.ram, (long long)all, RECALL_PAGE_LEN, tier->n_shelf);
    tier->n_page = (int32_t)pi_min(tier->o.ram / all, RECALL_PAGES_MOST);
    return PITH_OK;
}

static int64_t shelf_bytes(const struct recall_tier *tier, const struct recall_shelf *shelf)
{
    return tier->n_page * (int64_t)shelf->page_bytes;
}

/* Bytes of a device that pages of a cache may still take. */
static int64_t bytes_to_come(const struct kv_cache *cache, const struct pi_device *d)
{
    struct kv_device_parts parts = {0};
    if (cache != NULL)
        kv_cache_device_parts(cache, d, &parts);
    return parts.most - parts.used;
}

/* Pinned memory is there at once, all of it. More than this stays the system's to give. */
#define PINNED_MOST ((size_t)4 << 30)

/* The pages of a GPU's layers: there, or in pinned memory. Else the part is the processor's. */
static pith_status map_beside(struct recall_part *part, const struct kv_cache *beside,
                              pith_error *err)
{
    struct pi_device *d = part->device;
    size_t need = part->size + (size_t)pi_max(0, bytes_to_come(beside, d));
    part->stream = d->open(d, &(struct pi_stream_shape){.n_thread = 1});
    if (part->stream == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the tier of recall");
    part->where = d->spare(d, need) ? RECALL_ON_DEVICE : RECALL_IN_PINNED;
    if (part->where == RECALL_ON_DEVICE)
        part->pages = d->map(d, PI_MEM_KV, part->size);
    else if (part->size <= PINNED_MOST)
        part->pages = d->map_host(d, part->size);
    if (pi_at_some(part->pages))
        return PITH_OK;
    d->close(part->stream);
    *part = (struct recall_part){.device = &pi_device_cpu, .size = part->size};
    return PITH_OK;
}

/* One mapping for the pages of a device. Small shelves by themselves would each be rounded up to
   the pages of the system, or of the GPU. */
static pith_status map_part(struct recall_part *part, const struct kv_cache *beside,
                            pith_error *err)
{
    if (!part->device->in_host)
        PI_TRY(map_beside(part, beside, err));
    if (!pi_at_some(part->pages))
        part->pages = part->device->map(part->device, PI_MEM_KV, part->size);
    return pi_at_some(part->pages) ? PITH_OK
                                   : pi_fail(err, PITH_NOMEM, "no memory for the tier of recall");
}

static pith_status size_shelf(const struct recall_tier *tier, const struct recall_shelf *shelf,
                              struct kv_cache_bytes *out, pith_error *err)
{
    struct kv_geometry g = tier->kind[shelf->kind];
    g.device = tier->part[shelf->part].device;
    return kv_cache_sizes(&g, shelf_bytes(tier, shelf), out, err);
}

/* Lists and positions of all shelves are one mapping, lists in front. */
static pith_status map_shelves(struct recall_tier *tier, const struct kv_cache *beside,
                               size_t *lists, pith_error *err)
{
    struct kv_cache_bytes one;
    size_t positions = 0;
    *lists = 0;
    for (int32_t i = 0; i < tier->n_shelf; i++) {
        PI_TRY(size_shelf(tier, &tier->shelf[i], &one, err));
        *lists += one.lists;
        positions += one.positions;
        tier->part[tier->shelf[i].part].size += one.pages;
    }
    for (int32_t i = 0; i < tier->n_part; i++)
        PI_TRY(map_part(&tier->part[i], beside, err));
    tier->memory_size = *lists + positions;
    tier->memory = pi_mem_map(PI_MEM_KV, tier->memory_size);
    return tier->memory != NULL ? PITH_OK
                                : pi_fail(err, PITH_NOMEM, "no memory for the tier of recall");
}

static pith_status make_shelves(struct recall_tier *tier, const struct kv_cache *beside,
                                pith_error *err)
{
    size_t at_pos, at_list = 0;
    size_t at_page[KV_PART_MOST + 1] = {0};
    struct kv_cache_bytes one;
    PI_TRY(map_shelves(tier, beside, &at_pos, err));
    for (int32_t i = 0; i < tier->n_shelf; i++) {
        struct recall_shelf *shelf = &tier->shelf[i];
        const struct recall_part *part = &tier->part[shelf->part];
        struct kv_geometry g = tier->kind[shelf->kind];
        g.device = part->device;
        shelf->n_page = tier->n_page;
        PI_TRY(size_shelf(tier, shelf, &one, err));
        const struct kv_cache_place place = {tier->memory + at_list, tier->memory + at_pos,
                                             pi_at_add(part->pages, at_page[shelf->part])};
        PI_TRY(kv_cache_create_in(&g, shelf_bytes(tier, shelf), &place, &shelf->cache, err));
        at_list += one.lists;
        at_pos += one.positions;
        at_page[shelf->part] += one.pages;
    }
    return PITH_OK;
}

/* The places of the file's pages in memory: parts of one mapping, of which only used pages cost
   memory. */
static size_t place_places(struct recall_tier *tier, uint8_t *base)
{
    size_t used = 0, n = (size_t)tier->n_place, dim = (size_t)tier->model.g.dim_k;
    for (int32_t i = 0; i < tier->n_shelf; i++) {
        struct recall_shelf *shelf = &tier->shelf[i];
        shelf->place = pi_mem_part(base, &used, n, sizeof(*shelf->place));
        shelf->free = pi_mem_part(base, &used, n, sizeof(*shelf->free));
        shelf->bounds = pi_mem_part(base, &used, n * 2 * dim, sizeof(*shelf->bounds));
    }
    return used;
}

static pith_status make_places(struct recall_tier *tier, pith_error *err)
{
    if (tier->n_place == 0)
        return PITH_OK;
    tier->places_size = place_places(tier, NULL);
    tier->places = pi_mem_map(PI_MEM_TABLE, tier->places_size);
    if (tier->places == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory to know %d pages of a file in %d lanes",
                       tier->n_place, tier->n_shelf);
    place_places(tier, tier->places);
    return PITH_OK;
}

/* Each thread has room for the keys of a lane that comes in, and for a page of the file. */
static pith_status make_hands(struct recall_tier *tier, pith_error *err)
{
    size_t key = (size_t)RECALL_PAGE_LEN * (size_t)tier->model.g.dim_k, page = 0;
    for (int32_t k = 0; k < tier->n_kind && tier->n_place > 0; k++)
        page = (size_t)pi_max((int64_t)page, (int64_t)kv_page_bytes(&tier->kind[k]));
    for (int32_t t = 0; t < tier->n_thread; t++) {
        struct recall_work *w = &tier->work[t];
        w->lane_key = pi_mem_alloc_n(PI_MEM_SCRATCH, key, sizeof(*w->lane_key));
        w->file_page = pi_mem_alloc(PI_MEM_SCRATCH, page);
        if (w->lane_key == NULL || w->file_page == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for the tier of recall");
    }
    return PITH_OK;
}

static pith_status make_desks(struct recall_tier *tier, pith_error *err)
{
    PI_TRY(make_hands(tier, err));
    for (int32_t t = 0; t < (tier->n_place > 0 ? tier->n_thread : 0); t++)
        for (int32_t k = 0; k < tier->n_kind; k++) {
            struct recall_staging *staging = &tier->work[t].staging[k];
            int64_t page = (int64_t)kv_page_bytes(&tier->kind[k]);
            PI_TRY(
                kv_cache_create(&tier->kind[k], RECALL_STAGING_LEN * page, &staging->cache, err));
            PI_TRY(kv_seq_create(staging->cache, &staging->kv, err));
            PI_TRY(kv_seq_reserve(staging->kv, RECALL_STAGING_LEN * RECALL_PAGE_LEN, err));
        }
    return PITH_OK;
}

static pith_status fill(struct recall_tier *tier, const struct kv_cache *beside, pith_error *err)
{
    PI_TRY(count_pages(tier, err));
    PI_TRY(make_shelves(tier, beside, err));
    PI_TRY(recall_score_open(tier, err));
    PI_TRY(recall_file_open(tier, err));
    PI_TRY(make_places(tier, err));
    return make_desks(tier, err);
}

pith_status recall_tier_create(const struct recall_kv_options *o, const struct policy_model *model,
                               const struct kv_cache *beside, int32_t n_thread,
                               struct recall_tier **out, pith_error *err)
{
    size_t n_shelf = (size_t)model->g.n_layer * (size_t)model->g.n_head;
    struct recall_tier *tier = pi_mem_alloc(PI_MEM_TABLE, sizeof(*tier));
    if (tier == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the tier of recall");
    tier->o = *o;
    tier->model = *model;
    tier->n_thread = n_thread;
    tier->n_shelf = (int32_t)n_shelf;
    atomic_init(&tier->file.failed, false);
    atomic_init(&tier->file.read_spoke, false);
    tier->shelf = pi_mem_alloc_n(PI_MEM_TABLE, n_shelf, sizeof(*tier->shelf));
    tier->work = pi_mem_alloc_n(PI_MEM_TABLE, (size_t)n_thread, sizeof(*tier->work));
    pith_status status = tier->shelf == NULL || tier->work == NULL
                             ? pi_fail(err, PITH_NOMEM, "no memory for the tier of recall")
                             : fill(tier, beside, err);
    if (status != PITH_OK) {
        recall_tier_free(tier);
        return status;
    }
    *out = tier;
    return PITH_OK;
}

void recall_tier_free(struct recall_tier *tier)
{
    if (tier == NULL)
        return;
    assert(tier->first == NULL);
    for (int32_t t = 0; tier->work != NULL && t < tier->n_thread; t++) {
        for (int32_t k = 0; k < RECALL_KINDS; k++) {
            kv_seq_free(tier->work[t].staging[k].kv);
            kv_cache_free(tier->work[t].staging[k].cache);
        }
        pi_mem_free(tier->work[t].lane_key);
        pi_mem_free(tier->work[t].file_page);
        pi_mem_unmap(PI_MEM_SCRATCH, tier->work[t].block, tier->work[t].block_size);
    }
    /* A device may still tell a cache what it clipped: pages go first. */
    for (int32_t i = 0; i < tier->n_part; i++) {
        const struct recall_part *part = &tier->part[i];
        part->device->unmap(part->device, PI_MEM_KV, part->pages, part->size);
        if (part->stream != NULL)
            part->device->close(part->stream);
    }
    for (int32_t i = 0; tier->shelf != NULL && i < tier->n_shelf; i++) {
        kv_cache_free(tier->shelf[i].cache);
    }
    recall_score_close(tier);
    recall_file_close(tier);
    pi_mem_unmap(PI_MEM_KV, tier->memory, tier->memory_size);
    pi_mem_unmap(PI_MEM_SCRATCH, tier->value, RECALL_ASK_MOST * tier->n_value * sizeof(float));
    pi_mem_unmap(PI_MEM_TABLE, tier->places, tier->places_size);
    pi_mem_free(tier->work);
    pi_mem_free(tier->shelf);
    pi_mem_free(tier);
}

/* ---- stores ---- */

/* Stamps and refs of all rows, parts of one mapping. */
static size_t place_rows(const struct recall_tier *tier, struct recall_row *row, uint8_t *base)
{
    size_t used = 0;
    for (int32_t i = 0; i < tier->n_shelf; i++) {
        size_t n_centre = tier->shelf[i].centres ? 2 * (size_t)tier->model.g.dim_k : 0;
        row[i].centre = pi_mem_part(base, &used, n_centre, sizeof(*row[i].centre));
        row[i].stamp = pi_mem_part(base, &used, (size_t)tier->n_page, sizeof(*row[i].stamp));
        row[i].ref = pi_mem_part(base, &used, (size_t)tier->n_place, sizeof(*row[i].ref));
    }
    return used;
}

/* A store whose rows have no sequences yet. */
static pith_status make_store(struct recall_tier *tier, struct recall_store **out, pith_error *err)
{
    struct recall_store *store = pi_mem_alloc(PI_MEM_TABLE, sizeof(*store));
    struct recall_row *row =
        pi_mem_alloc_n(PI_MEM_TABLE, (size_t)tier->n_shelf, sizeof(*store->row));
    if (store != NULL && row != NULL) {
        store->row = row;
        store->block_size = place_rows(tier, row, NULL);
        store->block = pi_mem_map(PI_MEM_TABLE, store->block_size);
    }
    if (store == NULL || row == NULL || store->block == NULL) {
        pi_mem_free(row);
        pi_mem_free(store);
        return pi_fail(err, PITH_NOMEM, "no memory to remember %d lanes", tier->n_shelf);
    }
    place_rows(tier, row, store->block);
    store->tier = tier;
    store->id = tier->n_store++;
    store->next = tier->first;
    if (tier->first != NULL)
        tier->first->prev = store;
    tier->first = store;
    *out = store;
    return PITH_OK;
}

pith_status recall_store_create(struct recall_tier *tier, struct recall_store **out,
                                pith_error *err)
{
    struct recall_store *store;
    pith_status status = make_store(tier, &store, err);
    if (status != PITH_OK)
        return status;
    for (int32_t i = 0; i < tier->n_shelf && status == PITH_OK; i++) {
        status = kv_seq_create(tier->shelf[i].cache, &store->row[i].kv, err);
        if (status == PITH_OK)
            status = kv_seq_reserve_table(store->row[i].kv, tier->n_page * RECALL_PAGE_LEN, err);
    }
    if (status != PITH_OK) {
        recall_store_free(store);
        return status;
    }
    *out = store;
    return PITH_OK;
}

void recall_store_free(struct recall_store *store)
{
    if (store == NULL)
        return;
    struct recall_tier *tier = store->tier;
    for (int32_t i = 0; i < tier->n_shelf; i++) {
        recall_row_free(&tier->shelf[i], &store->row[i]);
        kv_cache_give_back(tier->shelf[i].cache);
    }
    if (store->prev != NULL)
        store->prev->next = store->next;
    else
        tier->first = store->next;
    if (store->next != NULL)
        store->next->prev = store->prev;
    pi_mem_unmap(PI_MEM_TABLE, store->block, store->block_size);
    pi_mem_free(store->row);
    pi_mem_free(store);
}

/* The list stands with the newest first, and a row without a sequence is no row. So it is filled
   before anything else happens to the tier. */
static pith_status fork_row(const struct recall_tier *tier, struct recall_shelf *shelf,
                            const struct recall_row *from, struct recall_row *to, pith_error *err)
{
    PI_TRY(kv_seq_fork(from->kv, &to->kv, err));
    PI_TRY(kv_seq_reserve_table(to->kv, shelf->n_page * RECALL_PAGE_LEN - kv_lane_len(to->kv, 0, 0),
                                err));
    memcpy(to->stamp, from->stamp, (size_t)kv_lane_runs(from->kv, 0, 0) * sizeof(*to->stamp));
    for (int32_t i = 0; i < from->n_ref; i++) {
        int32_t at = (int32_t)(((int64_t)from->first_ref + i) % shelf->n_place);
        to->ref[i] = from->ref[at];
        shelf->place[to->ref[i].place].n_ref++;
        to->n_ref++;
    }
    to->centred = from->centred;
    if (shelf->centres)
        memcpy(to->centre, from->centre, 2 * (size_t)tier->model.g.dim_k * sizeof(*to->centre));
    to->n_file = from->n_file;
    to->n_lost = from->n_lost;
    return PITH_OK;
}

pith_status recall_store_fork(const struct recall_store *from, struct recall_store **out,
                              pith_error *err)
{
    struct recall_tier *tier = from->tier;
    struct recall_store *store;
    PI_TRY(make_store(tier, &store, err));
    for (int32_t i = 0; i < tier->n_shelf; i++) {
        pith_status status = fork_row(tier, &tier->shelf[i], &from->row[i], &store->row[i], err);
        if (status != PITH_OK) {
            recall_store_free(store);
            return status;
        }
    }
    *out = store;
    return PITH_OK;
}

void recall_store_truncate(struct recall_store *store, int32_t n_token)
{
    for (int32_t i = 0; i < store->tier->n_shelf; i++) {
        recall_row_truncate(store, i, n_token);
        kv_cache_give_back(store->tier->shelf[i].cache);
    }
}

/* ---- remembering ---- */

static int32_t shelf_of(const struct recall_store *store, int32_t layer, int32_t head)
{
    return layer * store->tier->model.g.n_head + head;
}

void recall_store_remember(struct recall_store *store, const struct kv_seq *kv, int32_t layer,
                           int32_t head, const int32_t *kept, int32_t n_kept, int32_t thread)
{
    int32_t shelf = shelf_of(store, layer, head), slots[RECALL_PAGE_LEN], k = 0;
    for (int32_t i = 0; i < kv_lane_runs(kv, layer, head); i++) {
        struct kv_run run = kv_lane_run(kv, layer, head, i);
        int32_t n = 0;
        for (int32_t s = run.slot; s < run.slot + run.n; s++) {
            if (k < n_kept && kept[k] == s)
                k++;
            else
                slots[n++] = s;
        }
        /* Keys were rotated for where they were written: they come back there or not at all. */
        if (run.delta != 0)
            store->row[shelf].n_lost += n;
        else if (n > 0)
            recall_row_add(store, shelf, kv, layer, head, slots, n, thread);
    }
}

void recall_store_remember_one(struct recall_store *store, const struct kv_seq *kv, int32_t layer,
                               int32_t head, int32_t slot)
{
    int32_t shelf = shelf_of(store, layer, head);
    if (kv_lane_pos(kv, layer, head, slot) != kv_lane_written_pos(kv, layer, head, slot))
        store->row[shelf].n_lost++;
    else
        recall_row_add(store, shelf, kv, layer, head, &slot, 1, 0);
}

void recall_store_count(const struct recall_store *store, struct recall_counts *out)
{
    *out = (struct recall_counts){0};
    for (int32_t i = 0; i < store->tier->n_shelf; i++) {
        const struct recall_shelf *shelf = &store->tier->shelf[i];
        const struct recall_row *row = &store->row[i];
        out->n_stored += kv_lane_len(row->kv, 0, 0) + row->n_file;
        out->n_lost += row->n_lost;
        out->ram_bytes += kv_lane_pages(row->kv, 0, 0) * (int64_t)shelf->page_bytes;
        out->file_bytes += row->n_ref * shelf->place_bytes;
    }
}

int64_t recall_tables_at(const struct recall_kv_options *o, const struct policy_model *model,
                         int32_t n_token)
{
    const struct kv_geometry *g = &model->g;
    int64_t bytes = (int64_t)(sizeof(struct recall_tier) + sizeof(struct recall_store)), all = 0;
    int64_t n_page = n_token / RECALL_PAGE_LEN + 2, beside = 0; /* of a page */
    for (int32_t l = 0; l < g->n_layer; l++) {
        const struct kv_geometry lane = recall_lane_geometry(o, g, l, model->n_group);
        all += g->n_head * (int64_t)kv_page_bytes(&lane);
    }
    if (o->ram != RECALL_RAM_AUTO && all > 0)
        n_page = pi_min(o->ram / all, RECALL_PAGES_MOST);
    if (o->file[0] != '\0')
        beside = (int64_t)(sizeof(struct recall_place) + sizeof(int32_t) +
                           sizeof(struct recall_ref) + 4 * (size_t)g->dim_k * sizeof(uint16_t));
    for (int32_t l = 0; l < g->n_layer; l++) {
        const struct kv_geometry lane = recall_lane_geometry(o, g, l, model->n_group);
        bytes += g->n_head *
                 (kv_cache_bytes_at(1, n_page) +
                  kv_seq_bytes_at(&lane, 0, (int32_t)n_page * RECALL_PAGE_LEN, 0) +
                  (int64_t)sizeof(struct recall_row) + n_page * (int64_t)sizeof(uint64_t) +
                  2 * g->dim_k * (int64_t)sizeof(float) + (n_token / RECALL_PAGE_LEN + 1) * beside);
    }
    return bytes;
}

void recall_tier_parts(const struct recall_tier *tier, struct recall_parts *out)
{
    struct kv_parts parts;
    *out = (struct recall_parts){.tables = (int64_t)sizeof(*tier)};
    for (int32_t i = 0; i < tier->n_shelf; i++) {
        const struct recall_shelf *shelf = &tier->shelf[i];
        kv_cache_parts(shelf->cache, &parts);
        out->pages += parts.held + parts.idle;
        if (tier->part[shelf->part].where == RECALL_ON_DEVICE)
            out->there += parts.held + parts.idle;
        out->tables += parts.tables;
        out->file += (shelf->n_fresh - shelf->n_free) * shelf->place_bytes;
        out->tables +=
            shelf->n_fresh * (int64_t)(sizeof(*shelf->place) + sizeof(*shelf->free) +
                                       2 * sizeof(*shelf->bounds) * (size_t)tier->model.g.dim_k);
    }
    for (const struct recall_store *store = tier->first; store != NULL; store = store->next)
        for (int32_t i = 0; i < tier->n_shelf; i++) {
            const struct recall_row *row = &store->row[i];
            out->tables += kv_lane_runs(row->kv, 0, 0) * (int64_t)sizeof(*row->stamp) +
                           row->n_ref * (int64_t)sizeof(*row->ref) + (int64_t)sizeof(*row) +
                           (row->centred ? 2 * tier->model.g.dim_k * (int64_t)sizeof(float) : 0);
        }
    out->work = recall_work_bytes(tier);
}
