/*
 * tier_shelf.c - one lane of the tier. Entries come in at the end of a row. Where there is no page
 * left the oldest of all rows goes to the file, or out of it. It asks nothing about what entries
 * are worth. Invariant: a row's pages ascend by their stamps, first the pages in the file, then the
 * pages in memory. Pages that several rows share stand first in all of them at the same time.
 */
#include <math.h>

#include "policy/recall/tier.h"

/* ---- pages in the file ---- */

struct recall_ref *recall_row_ref(const struct recall_shelf *shelf, struct recall_row *row,
                                  int32_t i)
{
    return &row->ref[(int32_t)(((int64_t)row->first_ref + i) % shelf->n_place)];
}

static void give_place(struct recall_shelf *shelf, int32_t place)
{
    if (--shelf->place[place].n_ref == 0)
        shelf->free[shelf->n_free++] = place;
}

void recall_row_sweep(struct recall_shelf *shelf, struct recall_row *row)
{
    int32_t n = 0;
    row->n_file = 0;
    for (int32_t i = 0; i < row->n_ref; i++) {
        const struct recall_ref ref = *recall_row_ref(shelf, row, i);
        if (ref.n == 0)
            give_place(shelf, ref.place);
        else
            *recall_row_ref(shelf, row, n++) = ref;
        row->n_file += ref.n;
    }
    row->n_ref = n;
}

/* Drops the oldest page of the file from all rows that it belongs to. */
static void lose_page(struct recall_tier *tier, struct recall_shelf *shelf)
{
    struct recall_store *store;
    int32_t oldest = -1;
    for (store = tier->first; store != NULL; store = store->next) {
        struct recall_row *row = &store->row[shelf->number];
        int32_t place = row->n_ref > 0 ? recall_row_ref(shelf, row, 0)->place : -1;
        if (place >= 0 && (oldest < 0 || shelf->place[place].stamp < shelf->place[oldest].stamp))
            oldest = place;
    }
    assert(oldest >= 0);
    for (store = tier->first; store != NULL; store = store->next) {
        struct recall_row *row = &store->row[shelf->number];
        const struct recall_ref *ref = row->n_ref > 0 ? recall_row_ref(shelf, row, 0) : NULL;
        if (ref == NULL || ref->place != oldest)
            continue;
        row->n_lost += ref->n;
        row->n_file -= ref->n;
        row->first_ref = (row->first_ref + 1) % shelf->n_place;
        row->n_ref--;
        give_place(shelf, oldest);
    }
    assert(shelf->n_free > 0);
}

/* A free place of the file, made free where there is none. */
static int32_t take_place(struct recall_tier *tier, struct recall_shelf *shelf)
{
    if (shelf->n_free == 0 && shelf->n_fresh < shelf->n_place)
        return shelf->n_fresh++;
    if (shelf->n_free == 0)
        lose_page(tier, shelf);
    return shelf->free[--shelf->n_free];
}

/* ---- out of memory ---- */

static int32_t front_page(const struct recall_row *row)
{
    return kv_lane_runs(row->kv, 0, 0) > 0 ? kv_lane_page(row->kv, 0, 0, 0) : -1;
}

/* The store whose first page in memory is the oldest. */
static struct recall_store *find_oldest(const struct recall_tier *tier,
                                        const struct recall_shelf *shelf)
{
    struct recall_store *oldest = NULL;
    for (struct recall_store *store = tier->first; store != NULL; store = store->next) {
        const struct recall_row *row = &store->row[shelf->number];
        if (front_page(row) >= 0 &&
            (oldest == NULL || row->stamp[0] < oldest->row[shelf->number].stamp[0]))
            oldest = store;
    }
    return oldest;
}

/* Writes the first page of a row to the file, with the n entries that some row sees of it. Returns
   its place; -1: there is no file, or it failed. */
static int32_t write_page(struct recall_tier *tier, struct recall_shelf *shelf,
                          const struct recall_store *store, const struct kv_seq *kv, uint64_t stamp,
                          int32_t n, int32_t thread)
{
    if (shelf->n_place == 0 || atomic_load(&tier->file.failed))
        return -1;
    int32_t place = take_place(tier, shelf), dim = tier->model.g.dim_k;
    struct recall_place *known = &shelf->place[place];
    struct recall_head head = {.lane = shelf->number, .n = n, .store = store->id, .stamp = stamp};
    kv_lane_positions(kv, 0, 0, head.pos, n);
    *known = (struct recall_place){.stamp = stamp, .n = n, .low = head.pos[0], .high = head.pos[0]};
    for (int32_t i = 1; i < n; i++) {
        known->low = (int32_t)pi_min(known->low, head.pos[i]);
        known->high = (int32_t)pi_max(known->high, head.pos[i]);
    }
    const struct recall_work *w = &tier->work[thread];
    recall_bounds_make(tier, shelf, kv, n, w->lane_key,
                       shelf->bounds + (size_t)place * 2 * (size_t)dim);
    kv_lane_get_page(kv, 0, 0, 0, w->file_page);
    if (!recall_file_write(tier, shelf, place, &head, w->file_page)) {
        shelf->free[shelf->n_free++] = place;
        return -1;
    }
    known->sum = head.sum;
    return place;
}

/* Takes the oldest page out of memory, of all rows that see it; false: no row has any. */
static bool push_out(struct recall_tier *tier, struct recall_shelf *shelf, int32_t thread)
{
    struct recall_store *oldest = find_oldest(tier, shelf), *most = oldest;
    if (oldest == NULL)
        return false;
    int32_t page = front_page(&oldest->row[shelf->number]), n = 0, place;
    for (struct recall_store *store = tier->first; store != NULL; store = store->next) {
        const struct recall_row *row = &store->row[shelf->number];
        if (front_page(row) == page && kv_lane_run(row->kv, 0, 0, 0).n > n) {
            n = kv_lane_run(row->kv, 0, 0, 0).n;
            most = store;
        }
    }
    const struct recall_row *whole = &most->row[shelf->number];
    place = write_page(tier, shelf, most, whole->kv, whole->stamp[0], n, thread);
    for (struct recall_store *store = tier->first; store != NULL; store = store->next) {
        struct recall_row *row = &store->row[shelf->number];
        if (front_page(row) != page)
            continue;
        const struct recall_ref ref = {place, kv_lane_run(row->kv, 0, 0, 0).n, INT32_MAX,
                                       kv_lane_run(row->kv, 0, 0, 0).n};
        kv_lane_drop_first(row->kv, 0, 0);
        memmove(row->stamp, row->stamp + 1,
                (size_t)kv_lane_runs(row->kv, 0, 0) * sizeof(*row->stamp));
        if (place < 0) {
            row->n_lost += ref.n;
            continue;
        }
        shelf->place[place].n_ref++;
        row->n_file += ref.n;
        *recall_row_ref(shelf, row, row->n_ref++) = ref;
    }
    return true;
}

/* ---- in ---- */

const float *recall_row_centre(const struct recall_row *row)
{
    return row->centred ? row->centre : NULL;
}

/* The mean of the keys of a lane. Any constant is right: this one leaves little to be coded. */
static void set_centre(float *key, struct recall_row *row, const struct kv_seq *from, int32_t layer,
                       int32_t head)
{
    int32_t n = kv_lane_len(from, layer, head), dim = kv_seq_geometry(from)->dim_k;
    float *mean = row->centre, *opposite = row->centre + dim;
    memset(mean, 0, (size_t)dim * sizeof(*mean));
    int32_t page_len = kv_seq_geometry(from)->page_len;
    for (int32_t i = 0; i < kv_lane_runs(from, layer, head); i++) {
        int32_t n_here = kv_lane_run(from, layer, head, i).n;
        kv_lane_run_keys(from, layer, head, i, key);
        for (int32_t d = 0; d < dim; d++)
            for (int32_t e = 0; e < n_here; e++)
                mean[d] += key[d * page_len + e] / (float)n;
    }
    for (int32_t d = 0; d < dim; d++) {
        mean[d] = isfinite(mean[d]) ? mean[d] : 0.0f;
        opposite[d] = -mean[d];
    }
    row->centred = true;
}

/* Entries that the last page of a row has room for. */
static int32_t tail_room(const struct recall_row *row)
{
    int32_t n = kv_lane_runs(row->kv, 0, 0);
    return n == 0 ? 0 : RECALL_PAGE_LEN - kv_lane_run(row->kv, 0, 0, n - 1).n;
}

void recall_row_add(struct recall_store *store, int32_t number, const struct kv_seq *from,
                    int32_t layer, int32_t head, const int32_t *slots, int32_t n, int32_t thread)
{
    struct recall_shelf *shelf = &store->tier->shelf[number];
    struct recall_row *row = &store->row[number];
    struct kv_copy copy = {from, layer, head, row->kv, 0, 0, NULL};
    if (shelf->centres && !row->centred)
        set_centre(store->tier->work[thread].lane_key, row, from, layer, head);
    if (row->centred)
        copy.shift = row->centre + store->tier->model.g.dim_k;
    while (n > 0) {
        bool open = tail_room(row) == 0;
        int32_t part = (int32_t)pi_min(n, open ? RECALL_PAGE_LEN : tail_room(row));
        if (kv_seq_reserve(row->kv, part, NULL) != PITH_OK) {
            /* A shelf has a page at least: with no row in its way it is free. */
            bool out = push_out(store->tier, shelf, thread);
            assert(out);
            if (out)
                continue;
            row->n_lost += n;
            return;
        }
        kv_seq_copy(&copy, slots, part);
        if (open)
            row->stamp[kv_lane_runs(row->kv, 0, 0) - 1] = shelf->clock++;
        slots += part;
        n -= part;
    }
}

/* ---- truncation ---- */

/* Packs the stamps of the pages in memory that keep an entry. */
static void truncate_stamps(struct recall_row *row, int32_t n_token)
{
    int32_t n_left = 0;
    for (int32_t i = 0; i < kv_lane_runs(row->kv, 0, 0); i++) {
        struct kv_run run = kv_lane_run(row->kv, 0, 0, i);
        bool stays = false;
        for (int32_t j = 0; j < run.n && !stays; j++)
            stays = kv_lane_pos(row->kv, 0, 0, run.slot + j) < n_token;
        if (stays)
            row->stamp[n_left++] = row->stamp[i];
    }
}

/* The entries of a ref that stand below its limit; what cannot be read is lost. */
static void truncate_ref(struct recall_tier *tier, const struct recall_shelf *shelf,
                         struct recall_row *row, struct recall_ref *ref, int32_t n_token)
{
    const struct recall_place *place = &shelf->place[ref->place];
    uint8_t bytes[RECALL_HEAD_SIZE];
    struct recall_head head;
    if (place->high < n_token || ref->below <= n_token)
        return;
    ref->below = n_token;
    if (place->low >= n_token) {
        ref->n = 0;
        return;
    }
    if (!recall_file_read(tier, shelf, ref->place, false, &head, bytes)) {
        row->n_lost += ref->n;
        ref->n = 0;
        return;
    }
    ref->n = 0;
    for (int32_t i = 0; i < ref->seen; i++)
        ref->n += head.pos[i] < n_token;
}

void recall_row_truncate(struct recall_store *store, int32_t number, int32_t n_token)
{
    struct recall_shelf *shelf = &store->tier->shelf[number];
    struct recall_row *row = &store->row[number];
    while (kv_seq_truncate_copies(row->kv, n_token) > kv_seq_free_bytes(row->kv))
        if (!push_out(store->tier, shelf, 0)) /* truncation is one thread's */
            break;
    for (int32_t i = 0; i < row->n_ref; i++)
        truncate_ref(store->tier, shelf, row, recall_row_ref(shelf, row, i), n_token);
    recall_row_sweep(shelf, row);
    truncate_stamps(row, n_token);
    kv_seq_truncate(row->kv, n_token);
    row->centred = row->centred && (row->n_ref > 0 || kv_lane_len(row->kv, 0, 0) > 0);
}

void recall_row_free(struct recall_shelf *shelf, struct recall_row *row)
{
    for (int32_t i = 0; i < row->n_ref; i++)
        give_place(shelf, recall_row_ref(shelf, row, i)->place);
    row->n_ref = 0;
    kv_seq_free(row->kv);
    row->kv = NULL;
}
