/*
 * window.c - lanes of layers whose queries see a window: when their entries leave, and how much
 * they hold at most. attend.c decides which entries a query sees. Invariant: such a lane holds the
 * entries of a stretch of positions without a gap, and gives up whole pages. So a position has the
 * same place in its page whenever it is read.
 *
 * Entries are appended in steps of at most S = step_len. A query of a step sees at most the W - 1
 * entries before the step's first position. So W - 1 + S entries are held at a time, which begin
 * anywhere in a page of P:
 *
 *   pages <= 1 + floor((W - 1 + S + P - 2) / P)
 */
#include "kv/window.h"
#include "kv/lane_internal.h"
#include "kv/marks_internal.h"
#include "kv/pool_internal.h"
#include "kv/seq.h"
#include "kv/window_internal.h"

int32_t kv_window_pages(const struct kv_geometry *g, int32_t window)
{
    int64_t n = (int64_t)window - 1 + g->step_len;
    return (int32_t)pi_min(1 + (n + g->page_len - 2) / g->page_len, INT32_MAX);
}

/* The pages that the lane may need beyond its own. Its last page counts as its own if the lane will
   own it when it writes to it. Dropping a page that others share gives no room for new entries. */
int32_t kv_lane_window_room(const struct kv_cache *cache, const struct kv_lane *lane)
{
    int32_t n_own = 0;
    for (int32_t i = 0; i < lane->n_live; i++)
        n_own += lane->kind->n_ref[lane->table[i].page] == 1 ||
                 (i == lane->n_live - 1 && kv_lane_tail_room(cache, lane) > 0);
    return (int32_t)pi_max(0, kv_window_pages(&cache->g, lane->window) - n_own);
}

/* The position after the lane's last entry, of which there is one. */
static int64_t next_pos(const struct kv_lane *lane)
{
    const struct kv_page_ref *last = &lane->table[lane->n_live - 1];
    return (int64_t)kv_page_pos(lane->kind, last->page)[last->n - 1] + last->delta + 1;
}

static int64_t first_pos(const struct kv_lane *lane)
{
    const struct kv_page_ref *ref = &lane->table[0];
    return (int64_t)kv_page_pos(lane->kind, ref->page)[0] + ref->delta;
}

/* Pages at the front that are full and out of sight. */
static int32_t count_passed(const struct kv_cache *cache, const struct kv_lane *lane)
{
    int32_t n = 0;
    int64_t sight = lane->n_live > 0 ? next_pos(lane) - lane->window : 0;
    while (n < lane->n_live && lane->table[n].n == cache->g.page_len &&
           (int64_t)kv_page_pos(lane->kind, lane->table[n].page)[lane->table[n].n - 1] +
                   lane->table[n].delta <=
               sight)
        n++;
    return n;
}

static void slide_lane(struct kv_seq *seq, struct kv_lane *lane, bool hold)
{
    struct kv_cache *cache = seq->cache;
    int32_t n_passed = count_passed(cache, lane), n_entry = n_passed * cache->g.page_len;
    for (int32_t i = 0; i < n_passed; i++) {
        int32_t page = lane->table[0].page;
        struct kv_page_ref *table = kv_lane_edit(lane);
        memmove(table, table + 1, (size_t)(lane->n_page - 1) * sizeof(*table));
        if (hold && lane->kind->n_ref[page] == 1) {
            table[lane->n_page - 1] = (struct kv_page_ref){.page = page};
            continue;
        }
        kv_page_drop(cache, lane->kind, page);
        lane->n_page--;
    }
    if (n_passed > 0) {
        kv_marks_move(seq, lane, 0, n_entry, lane->len - n_entry);
        kv_lane_recount(cache, lane);
    }
    if (!hold)
        kv_lane_drop_from(cache, lane, lane->n_live);
}

void kv_seq_slide(struct kv_seq *seq, bool hold)
{
    for (int32_t l = 0; seq->cache->g.window != NULL && l < kv_lane_count(seq->cache); l++)
        if (seq->lane[l].window > 0)
            slide_lane(seq, &seq->lane[l], hold);
}

struct kv_need kv_seq_window_lacks(const struct kv_seq *seq, int32_t n)
{
    const struct kv_geometry *g = &seq->cache->g;
    struct kv_need need = {0};
    for (int32_t l = 0; g->window != NULL && l < g->n_layer; l++)
        for (int32_t h = 0; g->window[l] > 0 && h < g->n_head; h++)
            kv_need_add(&need, kv_layer_part(g, l),
                        kv_lane_lacks(seq, l, h, n) * (int64_t)kv_layer_page_bytes(g, l));
    return need;
}

bool kv_seq_reaches(const struct kv_seq *seq, int32_t pos)
{
    for (int32_t l = 0; pos > 0 && l < kv_lane_count(seq->cache); l++) {
        const struct kv_lane *lane = &seq->lane[l];
        int64_t seen = pi_max(0, (int64_t)pos - lane->window + 1); /* the first that is */
        if (lane->window == 0 || seen >= pos)
            continue;
        if (lane->n_live == 0 || lane->unordered)
            return false;
        int64_t first = first_pos(lane), next = next_pos(lane);
        if (first > seen || next < pos || next - first != lane->len)
            return false;
    }
    return true;
}
