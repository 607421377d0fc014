/*
 * pages.c - a step's pages in the lanes of a sequence: where they lie, how far apart two of them
 * are, and one standing for the other in all lanes or in none. It knows no steps. Invariant: what
 * is compared and what is shared are entries at consecutive positions, the same in every lane.
 */
#include <math.h>

#include "base/threads.h"
#include "share/internal.h"

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

/* The run that begins at a position, -1: none does. */
static int32_t find_run(const struct kv_seq *kv, int32_t layer, int32_t head, int32_t pos)
{
    int32_t i = run_from(kv, layer, head, pos);
    return i < kv_lane_runs(kv, layer, head) && first_pos(kv, layer, head, i) == pos ? i : -1;
}

/* Whether a run begins with the place's entries. */
static bool holds(const struct share_place *p, int32_t layer, int32_t head, int32_t i)
{
    struct kv_run run = kv_lane_run(p->kv, layer, head, i);
    return (p->exact ? run.n == p->n : run.n >= p->n) &&
           kv_lane_pos(p->kv, layer, head, run.slot) == p->pos &&
           kv_lane_pos(p->kv, layer, head, run.slot + p->n - 1) == p->pos + p->n - 1;
}

bool share_place_find(struct share_place *p)
{
    p->index = find_run(p->kv, 0, 0, p->pos);
    return p->index >= 0 && holds(p, 0, 0, p->index);
}

int32_t share_place_run(const struct share_place *p, int32_t layer, int32_t head)
{
    if (!p->uneven)
        return p->index;
    /* What came after a round is the same in all lanes, and so is its place from their ends. */
    int32_t n = kv_lane_runs(p->kv, layer, head);
    int32_t i = n - (kv_lane_runs(p->kv, 0, 0) - p->index);
    if (i < 0 || first_pos(p->kv, layer, head, i) != p->pos)
        i = find_run(p->kv, layer, head, p->pos);
    if (i < 0 || !holds(p, layer, head, i) ||
        kv_lane_run(p->kv, layer, head, i).delta != kv_lane_run(p->kv, 0, 0, p->index).delta)
        return -1;
    return i;
}

int32_t share_pages_inside(const struct kv_seq *kv, int32_t begin, int32_t end, bool ended,
                           struct share_page *out, int32_t cap)
{
    int32_t n = 0, n_run = kv_lane_runs(kv, 0, 0);
    for (int32_t i = run_from(kv, 0, 0, begin); i < n_run && n < cap; i++) {
        struct kv_run run = kv_lane_run(kv, 0, 0, i);
        int32_t at = kv_lane_pos(kv, 0, 0, run.slot);
        if (kv_lane_pos(kv, 0, 0, run.slot + run.n - 1) >= end)
            break;
        bool open = i == n_run - 1 && !ended;
        bool whole = kv_lane_pos(kv, 0, 0, run.slot + run.n - 1) == at + run.n - 1;
        if (!open && whole && run.delta == 0 && run.count == 1)
            out[n++] = (struct share_page){.at = at, .n = run.n, .reads = at};
    }
    return n;
}

/* ---- how far ---- */

struct compare_job {
    struct share *s;
    const struct share_place *a, *b;
    const struct share_turn *turn; /* NULL: keys as they are */
    int32_t layer;                 /* the first of the job's lanes */
};

static void compare_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct compare_job *job = ctx;
    struct share *s = job->s;
    float *work = s->work + (size_t)thread * 5 * s->work_row;
    for (int64_t i = begin; i < end; i++) {
        int32_t layer = job->layer + (int32_t)(i / s->g.n_head), head = (int32_t)(i % s->g.n_head);
        size_t lane = (size_t)layer * (size_t)s->g.n_head + (size_t)head;
        int32_t ia = share_place_run(job->a, layer, head);
        int32_t ib = share_place_run(job->b, layer, head);
        s->missing[lane] = ia < 0 || ib < 0;
        if (s->missing[lane])
            continue;
        float *row[4];
        for (int32_t r = 0; r < 4; r++)
            row[r] = work + (size_t)r * s->work_row;
        kv_lane_run_keys(job->a->kv, layer, head, ia, row[0]);
        kv_lane_run_keys(job->b->kv, layer, head, ib, row[1]);
        kv_lane_run_values(job->a->kv, layer, head, ia, row[2]);
        kv_lane_run_values(job->b->kv, layer, head, ib, row[3]);
        const struct share_rows a = {row[0], row[2]}, b = {row[1], row[3]};
        share_lane_sums(&s->g, &a, &b, job->a->n, job->turn, work + 4 * s->work_row,
                        &s->sums[lane]);
    }
}

/* Where the entries of a place were written; their keys are rotated for that. */
static int32_t written_at(const struct share_place *p)
{
    return kv_lane_written_pos(p->kv, 0, 0, kv_lane_run(p->kv, 0, 0, p->index).slot);
}

/* Layers that are compared before it is asked whether to go on: one, as most pairs that are apart
   are so in the last layer, and then enough that threads have something to do. */
#define LAYERS_TOGETHER 4

bool share_compare(struct share *s, const struct share_place *a, const struct share_place *b,
                   double limit, struct share_distance *out)
{
    struct share_turn turn = {s->rope, s->cs};
    struct share_total total = {0};
    struct compare_job job = {.s = s, .a = a, .b = b};
    int32_t n_layer = s->g.n_layer, n = 1;
    bool paper = s->config.options.form == SHARE_PAPER;
    if (s->config.options.mode == SHARE_POSITIONAL) {
        pi_rope_fill_delta(s->rope, written_at(b) - written_at(a), s->cs);
        job.turn = &turn;
    }
    *out = (struct share_distance){0};
    for (int32_t end = n_layer; end > 0 && !out->early; end = job.layer, n = LAYERS_TOGETHER) {
        job.layer = (int32_t)pi_max(0, end - n);
        pi_parallel_items(s->n_thread, (int64_t)(end - job.layer) * s->g.n_head, compare_lanes,
                          &job);
        for (int32_t l = end - 1; l >= job.layer && !out->early; l--) {
            const size_t lane = (size_t)l * (size_t)s->g.n_head;
            for (int32_t h = 0; h < s->g.n_head; h++)
                if (s->missing[lane + (size_t)h])
                    return false;
            share_total_add(&total, &s->g, &s->sums[lane], a->n);
            double so_far =
                paper ? share_total_paper(&total, n_layer) : share_total_rms(&total, n_layer);
            out->early = l > 0 && so_far >= limit; /* what is added is not negative */
        }
    }
    out->paper = share_total_paper(&total, n_layer);
    out->rms = share_total_rms(&total, n_layer);
    out->relative = share_total_relative(&total);
    return true;
}

/* ---- standing for it ---- */

/* Whether all lanes have both, and room for another stretch at other positions. */
static bool can_apply(const struct share *s, const struct kv_seq *kv, const struct share_place *a,
                      const struct share_place *b)
{
    for (int32_t l = 0; l < s->g.n_layer; l++)
        for (int32_t h = 0; h < s->g.n_head; h++) {
            if (share_place_run(a, l, h) < 0 || share_place_run(b, l, h) < 0)
                return false;
            if (s->config.evicts && kv_lane_breaks(kv, l, h) + 2 > 2 * s->config.options.runs)
                return false;
        }
    return true;
}

bool share_apply(struct share *s, struct kv_seq *kv, const struct share_place *a,
                 const struct share_place *b)
{
    bool literal = s->config.options.mode == SHARE_LITERAL;
    if (!can_apply(s, kv, a, b))
        return false;
    for (int32_t l = 0; l < s->g.n_layer; l++)
        for (int32_t h = 0; h < s->g.n_head; h++) {
            int32_t ia = share_place_run(a, l, h), ib = share_place_run(b, l, h);
            /* The first lane's own index is what the others are found by: it is changed last. */
            if (l == 0 && h == 0)
                continue;
            pith_status status =
                literal ? kv_seq_fold_page(kv, l, h, ia, ib, NULL)
                        : kv_seq_share_page(kv, l, h, ia, b->kv, ib, a->pos - b->pos, NULL);
            assert(status == PITH_OK);
            (void)status;
        }
    return literal ? kv_seq_fold_page(kv, 0, 0, a->index, b->index, NULL) == PITH_OK
                   : kv_seq_share_page(kv, 0, 0, a->index, b->kv, b->index, a->pos - b->pos,
                                       NULL) == PITH_OK;
}
