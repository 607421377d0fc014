/*
 * pages.c - stretches of a step in the lanes of a sequence: where they lie, and how far apart two
 * of them are. Also how many places come free when one stands for the other. It also lets one stand
 * for the other in all lanes or in none. It knows no steps. Invariant: what is compared and what is
 * shared are entries at consecutive positions, the same in every lane.
 */
#include <math.h>

#include "kv/apart.h"
#include "policy/share/internal.h"

/* ---- where ---- */

static int32_t first_pos(const struct kv_seq *kv, int32_t layer, int32_t head, int32_t run)
{
    return kv_lane_pos(kv, layer, head, kv_lane_run(kv, layer, head, run).slot);
}

/* The first run that begins at a position or behind it: positions ascend from run to run. */
static int32_t run_from(const struct kv_seq *kv, int32_t layer, int32_t head, int32_t pos)
{
    int32_t n = kv_lane_runs(kv, layer, head), low = 0, high = n;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (first_pos(kv, layer, head, mid) < pos)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

int32_t share_run_from(const struct kv_seq *kv, int32_t pos)
{
    return run_from(kv, 0, 0, pos);
}

/* Goes from run to run over the n entries that begin at out->slot; false: there is a gap. */
static bool walk(const struct kv_seq *kv, int32_t layer, int32_t head, int32_t pos, int32_t n,
                 struct share_spot *out)
{
    int32_t n_run = kv_lane_runs(kv, layer, head), done = 0, skip = out->entry, delta = out->delta;
    for (int32_t i = out->run; done < n; i++, skip = 0) {
        if (i == n_run)
            return false;
        struct kv_run run = kv_lane_run(kv, layer, head, i);
        int32_t part = (int32_t)pi_min(run.n - skip, n - done), slot = run.slot + skip;
        if (kv_lane_pos(kv, layer, head, slot) != pos + done ||
            kv_lane_pos(kv, layer, head, slot + part - 1) != pos + done + part - 1)
            return false;
        out->turns += run.delta != delta;
        out->count = (int32_t)pi_max(out->count, run.count);
        out->ends = skip + part == run.n;
        out->n_run++;
        delta = run.delta;
        done += part;
    }
    return true;
}

static bool find_spot(const struct share_place *p, int32_t layer, int32_t head,
                      struct share_spot *out)
{
    int32_t i = run_from(p->kv, layer, head, p->pos), n_run = kv_lane_runs(p->kv, layer, head);
    if (i == n_run || first_pos(p->kv, layer, head, i) > p->pos)
        i--;
    if (i < 0)
        return false;
    struct kv_run run = kv_lane_run(p->kv, layer, head, i);
    int32_t low = 0, high = run.n - 1;
    while (low < high) { /* the last entry there that is not behind the position */
        int32_t mid = low + (high - low + 1) / 2;
        if (kv_lane_pos(p->kv, layer, head, run.slot + mid) <= p->pos)
            low = mid;
        else
            high = mid - 1;
    }
    *out = (struct share_spot){.run = i, .entry = low, .slot = run.slot + low, .delta = run.delta};
    return walk(p->kv, layer, head, p->pos, p->n, out);
}

bool share_place_find(struct share_place *p)
{
    return p->n > 0 && find_spot(p, 0, 0, &p->spot);
}

/* Where it lies in a lane; false: it is not there. */
static bool spot_of(const struct share_place *p, int32_t layer, int32_t head,
                    struct share_spot *out)
{
    *out = p->spot;
    return !p->lanes_differ || find_spot(p, layer, head, out);
}

int32_t share_pages_inside(const struct kv_seq *kv, int32_t begin, int32_t end,
                           struct share_page *out, int32_t cap)
{
    int32_t n = 0, n_run = kv_lane_runs(kv, 0, 0);
    for (int32_t i = run_from(kv, 0, 0, begin); i < n_run && n < cap; i++) {
        struct kv_run run = kv_lane_run(kv, 0, 0, i);
        int32_t at = kv_lane_pos(kv, 0, 0, run.slot);
        int32_t last = kv_lane_pos(kv, 0, 0, run.slot + run.n - 1);
        if (last >= end)
            break;
        bool open = i == n_run - 1 && kv_lane_room(kv, 0, 0) > 0;
        if (!open && last == at + run.n - 1 && run.delta == 0 && run.count == 1)
            out[n++] = (struct share_page){.at = at, .n = run.n};
    }
    return n;
}

/* ---- how far ---- */

/* The keys and values of a place's entries, whatever pages they lie in. */
static void gather(const struct share *s, const struct share_place *p, int32_t layer, int32_t head,
                   const struct share_spot *spot, float *k, float *v, float *work)
{
    size_t page_len = (size_t)s->g.page_len, dim_v = (size_t)s->g.dim_v;
    size_t at = 0, skip = (size_t)spot->entry, n = (size_t)p->n;
    if (spot->n_run == 1 && skip == 0) {
        kv_lane_run_keys(p->kv, layer, head, spot->run, k);
        kv_lane_run_values(p->kv, layer, head, spot->run, v);
        return;
    }
    for (int32_t i = spot->run; at < n; i++, skip = 0) {
        size_t part = (size_t)kv_lane_run(p->kv, layer, head, i).n - skip;
        part = part < n - at ? part : n - at;
        kv_lane_run_keys(p->kv, layer, head, i, work);
        for (size_t d = 0; d < (size_t)s->g.dim_k; d++)
            memcpy(k + d * page_len + at, work + d * page_len + skip, part * sizeof(*k));
        kv_lane_run_values(p->kv, layer, head, i, work);
        memcpy(v + at * dim_v, work + skip * dim_v, part * dim_v * sizeof(*v));
        at += part;
    }
}

/* Where both are in a lane; false: it does not have the entries, or reads parts of them
   differently. */
static bool are_there(const struct share_place *a, const struct share_place *b, int32_t layer,
                      int32_t head, struct share_spot *at, struct share_spot *from)
{
    return spot_of(a, layer, head, at) && spot_of(b, layer, head, from) && at->turns == 0 &&
           from->turns == 0 && at->delta == a->spot.delta && from->delta == b->spot.delta;
}

/* Sums of a layer's lanes; false: one of them does not have the entries, or reads parts of them
   differently. */
static bool compare_layer(const struct share *s, struct share_scratch *scratch,
                          const struct share_place *a, const struct share_place *b, int32_t layer,
                          const struct share_turn *turn)
{
    float *row[5];
    for (size_t r = 0; r < 5; r++)
        row[r] = scratch->work + r * s->work_row;
    const struct share_rows x = {row[0], row[2]}, y = {row[1], row[3]};
    for (int32_t head = 0; head < s->g.n_head; head++) {
        struct share_spot at, from;
        if (!are_there(a, b, layer, head, &at, &from))
            return false;
        gather(s, a, layer, head, &at, row[0], row[2], row[4]);
        gather(s, b, layer, head, &from, row[1], row[3], row[4]);
        share_lane_sums(&s->g, &x, &y, a->n, turn, row[4], &scratch->sums[head]);
    }
    return true;
}

/* Keys, which are rotated for where they were written, are turned on by delta positions. Pages of
   one step lie equally far from the pages of another. */
static struct share_turn turn_by(const struct share *s, struct share_scratch *scratch,
                                 int32_t delta)
{
    if (delta != scratch->cs_delta || delta == 0)
        pi_rope_fill_delta(s->rope, delta, scratch->cs);
    scratch->cs_delta = delta;
    return (struct share_turn){s->rope, scratch->cs};
}

/* Keys of a layer that does not rotate them are compared as they are. */
static bool is_turned(const struct share *s, int32_t layer)
{
    return s->lane_rope == NULL || s->lane_rope[layer] == s->rope;
}

/* The device's sums of all lanes, from the last layer to the first. Returns how many layers have
   the entries, up to one that does not. */
static int32_t sum_up(const struct share *s, struct share_scratch *scratch,
                      const struct share_place *a, const struct share_place *b,
                      const struct share_turn *turn)
{
    struct kv_apart_list list = {.jobs = scratch->apart, .n = a->n};
    int32_t n_layer = 0;
    if (turn != NULL) {
        list.rope = turn->rope;
        list.turn = turn->cs;
    }
    for (bool there = true; there && n_layer < s->g.n_layer; n_layer += there) {
        int32_t layer = s->g.n_layer - 1 - n_layer;
        for (int32_t head = 0; head < s->g.n_head && there; head++) {
            struct share_spot at = {0}, from = {0};
            there = are_there(a, b, layer, head, &at, &from);
            list.jobs[n_layer * s->g.n_head + head] =
                (struct kv_apart_job){.seq_a = a->kv,
                                      .seq_b = b->kv,
                                      .layer = layer,
                                      .head = head,
                                      .a = at.slot,
                                      .b = from.slot,
                                      .turned = turn != NULL && is_turned(s, layer)};
        }
    }
    list.n_job = n_layer * s->g.n_head;
    kv_layer_device(&s->g, 0)->apart(&list);
    return n_layer;
}

/* Of the layer's lanes what the device summed up. */
static void take_layer(const struct share *s, struct share_scratch *scratch, int32_t layer)
{
    const struct kv_apart_job *job = scratch->apart + (s->g.n_layer - 1 - layer) * s->g.n_head;
    for (int32_t head = 0; head < s->g.n_head; head++)
        scratch->sums[head] = (struct share_sums){job[head].k, job[head].v, job[head].size};
}

bool share_compare(const struct share *s, struct share_scratch *scratch,
                   const struct share_place *a, const struct share_place *b, double limit,
                   struct share_distance *out)
{
    bool paper = s->config.options.form == SHARE_PAPER;
    bool positional = s->config.options.mode == SHARE_POSITIONAL;
    int32_t n_layer = s->g.n_layer;
    struct share_total total = {0};
    struct share_turn turn;
    assert(a->n == b->n && a->n <= s->g.page_len);
    if (positional)
        turn = turn_by(s, scratch, b->pos - b->spot.delta - (a->pos - a->spot.delta));
    *out = (struct share_distance){0};
    int32_t n_there = n_layer;
    if (scratch->apart != NULL)
        n_there = sum_up(s, scratch, a, b, positional ? &turn : NULL);
    for (int32_t l = n_layer - 1; l >= 0 && !out->early; l--) {
        if (n_layer - 1 - l >= n_there)
            return false;
        if (scratch->apart != NULL)
            take_layer(s, scratch, l);
        else if (!compare_layer(s, scratch, a, b, l, positional && is_turned(s, l) ? &turn : NULL))
            return false;
        share_total_add(&total, &s->g, scratch->sums, a->n);
        double so_far =
            paper ? share_total_paper(&total, n_layer) : share_total_rms(&total, n_layer);
        out->early = l > 0 && so_far >= limit; /* what is added is not negative */
    }
    out->paper = share_total_paper(&total, n_layer);
    out->rms = share_total_rms(&total, n_layer);
    out->relative = share_total_relative(&total);
    return true;
}

/* ---- what it saves ---- */

bool share_layout_find(struct share *s, const struct share_place *step, int32_t layer, int32_t head,
                       struct share_layout *out)
{
    struct share_spot spot;
    if (!spot_of(step, layer, head, &spot) || spot.n_run >= s->cap_cut)
        return false;
    struct kv_run run = {0};
    for (int32_t i = 0; i < spot.n_run; i++) {
        run = kv_lane_run(step->kv, layer, head, spot.run + i);
        s->cut[i] = run.slot - spot.slot;
    }
    s->cut[spot.n_run] = run.slot + run.n - spot.slot;
    bool at_end = spot.run + spot.n_run == kv_lane_runs(step->kv, layer, head);
    *out = (struct share_layout){.cut = s->cut,
                                 .n = spot.n_run,
                                 .page_len = s->g.page_len,
                                 .room = at_end ? kv_lane_room(step->kv, layer, head) : 0,
                                 .at_end = at_end,
                                 .literal = s->config.options.mode == SHARE_LITERAL};
    return true;
}

/* The first of the n + 1 cuts that is not before a place. */
static int32_t cut_from(const struct share_layout *layout, int32_t at)
{
    int32_t low = 0, high = layout->n;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (layout->cut[mid] < at)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

int32_t share_gain(const struct share_layout *layout, int32_t begin, int32_t n)
{
    const int32_t *cut = layout->cut;
    int32_t end = begin + n, first = cut_from(layout, begin), last = cut_from(layout, end);
    int32_t room = layout->room;
    if (cut[last] > end)
        last--; /* the run that it ends in */
    if (last < first)
        return -1; /* it lies in the middle of one, which would become two */
    if (!layout->at_end)
        room = 0;
    else if (last == layout->n) /* what stands for it takes no more; where it goes the head does */
        room =
            layout->literal && cut[first] > begin ? layout->page_len - (begin - cut[first - 1]) : 0;
    else if (last == layout->n - 1)
        room += end - cut[last];
    return layout->page_len * (last - first) + room - layout->room;
}

/* ---- standing for it ---- */

/* Whether a lane has both as they are to be, takes no more than before, and has room for another
   stretch at other positions. */
static bool can_apply(struct share *s, const struct share_place *step, const struct share_place *a,
                      const struct share_place *b, int32_t layer, int32_t head)
{
    bool literal = s->config.options.mode == SHARE_LITERAL;
    struct share_layout layout;
    struct share_spot to, from;
    if (!spot_of(a, layer, head, &to) || !spot_of(b, layer, head, &from))
        return false;
    if (to.count > 1 || from.entry > 0 || (literal ? !from.ends : from.count > 1))
        return false;
    int32_t breaks = literal ? from.n_run + 1 : from.turns + 2;
    if (s->config.evicts &&
        kv_lane_breaks(a->kv, layer, head) + breaks > 2 * s->config.options.runs)
        return false;
    return !step->lanes_differ || (share_layout_find(s, step, layer, head, &layout) &&
                                   share_gain(&layout, a->pos - step->pos, a->n) >= 0);
}

static pith_status apply(const struct share *s, struct kv_seq *kv, const struct share_place *a,
                         const struct share_place *b, int32_t layer, int32_t head)
{
    struct share_spot to, from;
    if (!spot_of(a, layer, head, &to) || !spot_of(b, layer, head, &from))
        return PITH_INVALID;
    if (s->config.options.mode == SHARE_LITERAL)
        return kv_seq_fold_span(kv, layer, head, to.slot, a->n, from.slot, NULL);
    return kv_seq_share_span(kv, layer, head, to.slot, a->n, b->kv, from.slot, a->pos - b->pos,
                             NULL);
}

bool share_apply(struct share *s, struct kv_seq *kv, const struct share_place *step,
                 const struct share_place *a, const struct share_place *b)
{
    int64_t takes = 0;
    for (int32_t l = 0; l < s->g.n_layer; l++)
        for (int32_t h = 0; h < s->g.n_head; h++) {
            struct share_spot to;
            if (!can_apply(s, step, a, b, l, h) || !spot_of(a, l, h, &to))
                return false;
            takes += kv_lane_span_takes(kv, l, h, to.slot, a->n);
        }
    if (takes > kv_seq_free_bytes(kv) ||
        kv_seq_reserve_runs(kv, b->spot.n_run + 1, NULL) != PITH_OK)
        return false;
    for (int32_t l = 0; l < s->g.n_layer; l++)
        for (int32_t h = 0; h < s->g.n_head; h++) {
            pith_status status = apply(s, kv, a, b, l, h);
            assert(status == PITH_OK);
            (void)status;
        }
    return true;
}
