/*
 * choose.c - which pages stand for which. Of the steps before a closed one, steps of like words
 * (MemShare, Algorithm 1, stage 1) are laid over it where most tokens agree. Of their pages the
 * near ones (stage 2) are shared, as far as they follow each other and places come free. As a
 * control, pages are taken at random instead. Invariant: the choice depends on the tokens and pages
 * of the steps alone.
 */
#include <math.h>

#include "base/threads.h"
#include "policy/share/internal.h"

/* An earlier step, as like as it is. */
struct candidate {
    struct share_seq *seq;
    int32_t step;
    int64_t dot;
    int64_t norm;
};

/* ---- steps ---- */

static struct share_bag bag_of(const struct share_seq *seq, const struct share_step *step)
{
    return (struct share_bag){seq->bag_id + step->ids, seq->bag_count + step->ids, step->n_bag};
}

/* Whether a is more like than b: by the cosine, whose square is dot^2 / (norm of the step's
   own). */
static bool is_closer(const struct candidate *a, const struct candidate *b)
{
    double x = (double)a->dot, y = (double)b->dot;
    return x * x * (double)b->norm > y * y * (double)a->norm;
}

/* Puts a candidate where it belongs among the best *n, of which there are at most cap. */
static void add_candidate(struct candidate *best, int32_t *n, int32_t cap,
                          const struct candidate *c)
{
    int32_t i = *n;
    while (i > 0 && is_closer(c, &best[i - 1]))
        i--;
    if (i >= cap)
        return;
    *n = (int32_t)pi_min(*n + 1, cap);
    memmove(&best[i + 1], &best[i], (size_t)(*n - 1 - i) * sizeof(*best));
    best[i] = *c;
}

/* The most similar of a sequence's first n_step steps; returns whether there were any. count is the
   bag of the step that they are compared with. */
static bool add_steps(struct share_seq *seq, int32_t n_step, int64_t norm, struct candidate *best,
                      int32_t *n)
{
    const struct share_options *o = &seq->share->config.options;
    bool any = false;
    for (int32_t i = 0; i < n_step; i++) {
        const struct share_step *step = &seq->step[i];
        if (step->gone)
            continue;
        any = true;
        const struct share_bag bag = bag_of(seq, step);
        const struct candidate c = {seq, i, share_bag_dot(&bag, seq->share->count), step->norm};
        if (share_alike(c.dot, norm, step->norm, o->step))
            add_candidate(best, n, o->candidates, &c);
    }
    return any;
}

static int32_t find_steps(struct share_seq *seq, struct share_step *step, struct candidate *best)
{
    struct share *s = seq->share;
    struct share_bag bag = bag_of(seq, step);
    int32_t n = 0, index = (int32_t)(step - seq->step);
    for (int32_t i = 0; i < bag.n; i++)
        s->count[bag.id[i]] = bag.count[i];
    bool any = add_steps(seq, index, step->norm, best, &n);
    for (struct share_seq *other = s->first; s->config.options.across == 1 && other != NULL;
         other = other->next)
        if (other != seq && other->kv != NULL)
            any = add_steps(other, other->n_step, step->norm, best, &n) || any;
    share_bag_clear(&bag, s->count);
    step->tally.compared |= any;
    step->tally.similar |= n > 0;
    return n;
}

static const struct share_step *step_of(const struct candidate *c)
{
    return &c->seq->step[c->step];
}

/* ---- blocks ---- */

#define SHIFT_MAX 16 /* how far apart in their steps entries may lie that are compared */

/* How many tokens of a step, from its place `begin` on, equal the tokens of another from `from`
   on. */
static int32_t count_same(const struct share_seq *seq, const struct share_step *step, int32_t begin,
                          const struct candidate *c, int32_t from, int32_t n)
{
    const int32_t *a = seq->ids + step->ids + begin;
    const int32_t *b = c->seq->ids + step_of(c)->ids + from;
    int32_t same = 0;
    for (int32_t i = 0; i < n; i++)
        same += a[i] == b[i];
    return same;
}

/* By how much a step lies later than a candidate where most of their tokens are the same. Of equals
   it is the least, forward first. Returns how many are the same. */
static int32_t find_shift(const struct share_seq *seq, const struct share_step *step,
                          const struct candidate *c, int32_t *shift)
{
    int32_t own = step->end - step->begin, their = step_of(c)->end - step_of(c)->begin, most = 0;
    *shift = 0;
    for (int32_t i = 0; i <= 2 * SHIFT_MAX; i++) {
        int32_t d = i % 2 == 1 ? (i + 1) / 2 : -i / 2;
        int32_t begin = (int32_t)pi_max(d, 0), from = begin - d;
        int32_t n = (int32_t)pi_min(own - begin, their - from);
        int32_t same = n > 0 ? count_same(seq, step, begin, c, from, n) : 0;
        if (same > most) {
            most = same;
            *shift = d;
        }
    }
    return most;
}

/* The part of run i of a candidate's first lane that could stand in a step, which lies `shift`
   later. It goes from its first entry on, as that begins a page. False: nothing of it. */
static bool block_of(const struct share_seq *seq, const struct share_step *step,
                     const struct candidate *c, int32_t i, int32_t shift, struct share_block *out)
{
    const struct share_step *other = step_of(c);
    const struct kv_seq *kv = c->seq->kv;
    struct kv_run run = kv_lane_run(kv, 0, 0, i);
    int32_t at = kv_lane_pos(kv, 0, 0, run.slot), begin = at - other->begin + shift;
    int32_t n = (int32_t)pi_min(run.n, pi_min(other->end - at, step->end - step->begin - begin));
    bool literal = seq->share->config.options.mode == SHARE_LITERAL;
    if (begin < 0 || n <= 0 || (literal && n < run.n) || (!literal && run.count > 1) ||
        kv_lane_pos(kv, 0, 0, run.slot + n - 1) != at + n - 1)
        return false;
    *out = (struct share_block){.at = at, .begin = begin, .n = n};
    return true;
}

/* Adds the blocks of candidate number `from` to those at out; returns how many. The lane's last
   page may go on to change. */
static int32_t add_blocks(const struct share_seq *seq, const struct share_step *step,
                          const struct candidate *best, int32_t from, struct share_block *out)
{
    const struct candidate *c = &best[from];
    const struct kv_seq *kv = c->seq->kv;
    bool all = seq->share->log_all;
    int32_t n = 0, shift, most = share_runs_at(seq->share, step->end - step->begin);
    if (find_shift(seq, step, c, &shift) == 0 && !all)
        return 0;
    for (int32_t i = share_run_from(kv, step_of(c)->begin);
         n < most && i < kv_lane_runs(kv, 0, 0) - 1; i++) {
        int32_t at = kv_lane_pos(kv, 0, 0, kv_lane_run(kv, 0, 0, i).slot);
        if (at >= step_of(c)->end)
            break;
        if (!block_of(seq, step, c, i, shift, &out[n]))
            continue;
        out[n].from = from;
        at -= step_of(c)->begin;
        n += all || count_same(seq, step, out[n].begin, c, at, out[n].n) > 0;
    }
    return n;
}

static struct share_place place_at(const struct share_seq *seq, int32_t pos, int32_t n)
{
    return (struct share_place){
        .kv = seq->kv, .pos = pos, .n = n, .lanes_differ = seq->lanes_differ};
}

static double distance_of(const struct share *s, const struct share_distance *d)
{
    return s->config.options.form == SHARE_PAPER ? d->paper : d->rms;
}

/* A closed step's blocks, which any free thread compares. */
struct compare_job {
    const struct share_seq *seq;
    const struct share_step *step;
    const struct candidate *best;
    double loose;
    double block;  /* the threshold, loosened */
    bool measures; /* all layers are compared, as the distance is a measurement */
};

/* Whether a pair was compared to the end, and is no further apart than the thresholds say. */
static bool is_near(const struct compare_job *job, const struct share_distance *d)
{
    const struct share *s = job->seq->share;
    const struct share_options *o = &s->config.options;
    return !d->early && distance_of(s, d) < job->block &&
           (o->form == SHARE_PAPER || d->relative < job->loose * o->relative);
}

/* Compares the block's entries; false: not every lane has them. */
static bool compare_entries(const struct compare_job *job, struct share_scratch *scratch,
                            struct share_block *b)
{
    const struct share *s = job->seq->share;
    struct share_place own = place_at(job->seq, job->step->begin + b->begin, b->n);
    struct share_place their = place_at(job->best[b->from].seq, b->at, b->n);
    double limit = s->log_all || job->measures ? INFINITY : job->block;
    return share_place_find(&own) && share_place_find(&their) &&
           share_compare(s, scratch, &own, &their, limit, &b->distance);
}

/* A block that is not near ends where its tokens begin to differ, if that is: the last of a stretch
   need not be whole. */
static void compare_block(const struct compare_job *job, struct share_scratch *scratch,
                          struct share_block *b)
{
    const struct share *s = job->seq->share;
    const struct candidate *c = &job->best[b->from];
    int32_t from = b->at - step_of(c)->begin, n = 0;
    b->compared = compare_entries(job, scratch, b);
    if (!b->compared)
        return;
    b->near = !s->log_all && is_near(job, &b->distance);
    while (n < b->n && count_same(job->seq, job->step, b->begin + n, c, from + n, 1) == 1)
        n++;
    if (!b->near && !s->log_all && s->config.options.mode == SHARE_POSITIONAL && n > 0 &&
        n < b->n) {
        struct share_block first = *b;
        first.n = n;
        first.near = compare_entries(job, scratch, &first) && is_near(job, &first.distance);
        if (first.near)
            *b = first;
    }
}

static void compare_some(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct compare_job *job = ctx;
    struct share *s = job->seq->share;
    for (int64_t i = begin; i < end; i++)
        compare_block(job, &s->scratch[thread], &s->block[i]);
}

static void compare_blocks(struct share_seq *seq, struct share_step *step,
                           const struct candidate *best, int32_t n_block, double loose)
{
    struct share *s = seq->share;
    struct compare_job job = {.seq = seq,
                              .step = step,
                              .best = best,
                              .loose = loose,
                              .block = loose * share_block_limit(seq),
                              .measures = s->config.options.block < 0.0 && loose == 1.0};
    pi_parallel_items(s->n_thread, n_block, compare_some, &job);
    for (int32_t i = 0; i < n_block && job.measures; i++)
        if (s->block[i].compared)
            share_sample_add(seq, (int32_t)(step - seq->step),
                             distance_of(s, &s->block[i].distance), false);
    for (int32_t i = 0; i < n_block; i++) {
        step->tally.pages_compared += s->block[i].compared;
        step->tally.pages_early += s->block[i].compared && s->block[i].distance.early;
    }
}

static void tell(const struct share_seq *seq, const struct share_step *step,
                 const struct candidate *c, const struct share_block *b)
{
    struct share *s = seq->share;
    if (s->log == NULL || !b->compared)
        return;
    const pith_share_pair told = {
        .seq = seq->owner,
        .pos = step->begin + b->begin,
        .from_pos = b->at,
        .n = b->n,
        .cosine = (double)c->dot / sqrt((double)step->norm * (double)c->norm),
        .paper = b->distance.paper,
        .rms = b->distance.rms,
        .relative = b->distance.relative,
        .early = b->distance.early,
        .shared = b->shared,
    };
    s->log(s->log_user, &told);
}

/* ---- stretches ---- */

/* Blocks that follow each other in one step and are near, the last as far as it is wanted. */
struct stretch {
    int32_t first, last; /* blocks */
    int32_t n;           /* entries */
    int32_t gain;        /* places */
    double distance;     /* the mean of the entries' */
};

static int32_t begin_of(const struct share_block *block, const struct stretch *x)
{
    return block[x->first].begin;
}

/* Whether a stretch pays: half a page comes free at least, and half of the entries that are read
   elsewhere. */
static bool pays(const struct share *s, const struct stretch *x)
{
    return 2 * x->gain >= s->g.page_len && 2 * x->gain >= x->n;
}

static bool is_better(const struct stretch *a, const struct stretch *b)
{
    if (a->gain != b->gain)
        return a->gain > b->gain;
    return a->n != b->n ? a->n < b->n : a->distance < b->distance;
}

static void offer(const struct share *s, const struct share_layout *layout,
                  const struct share_block *block, struct stretch x, struct stretch *best)
{
    x.gain = share_gain(layout, begin_of(block, &x), x.n);
    if (pays(s, &x) && (best->n == 0 || is_better(&x, best)))
        *best = x;
}

/* Offers all stretches that begin with a block. They go up to the end of each that follows, and up
   to the last place before that where a page ends. */
static void offer_from(const struct share *s, const struct share_layout *layout,
                       const struct share_block *block, int32_t n_block, int32_t first,
                       struct stretch *best)
{
    double sum = 0.0;
    int32_t cut = 0, begin = block[first].begin;
    for (int32_t i = first; i < n_block && block[i].near; i++) {
        const struct share_block *b = &block[i], *before = b - (i > first);
        int32_t end = b->begin + b->n;
        if (b->from != block[first].from || (i > first && (b->begin != before->begin + before->n ||
                                                           b->at != before->at + before->n)))
            return;
        sum += distance_of(s, &b->distance) * b->n;
        struct stretch x = {first, i, end - begin, 0, sum / (end - begin)};
        offer(s, layout, block, x, best);
        while (cut < layout->n && layout->cut[cut + 1] <= end)
            cut++;
        if (layout->literal || layout->cut[cut] <= b->begin || layout->cut[cut] == end)
            continue;
        x.n = layout->cut[cut] - begin;
        offer(s, layout, block, x, best);
    }
}

/* Notes that n entries from a position on are read elsewhere, as `from` says. */
static void note_shared(struct share_seq *seq, struct share_step *step,
                        const struct share_place *own, const struct share_place *from,
                        int64_t n_free)
{
    bool literal = seq->share->config.options.mode == SHARE_LITERAL;
    int32_t changed = literal ? from->pos : own->pos;
    seq->first_change = (int32_t)pi_min(seq->first_change, changed);
    step->tally.tokens_shared += own->n;
    step->tally.bytes += kv_seq_free_bytes(seq->kv) - n_free;
}

/* Lets a stretch stand; false: not every lane has it. */
static bool share_stretch(struct share_seq *seq, struct share_step *step,
                          const struct candidate *best, struct share_block *block,
                          const struct stretch *x)
{
    const struct share_block *b = &block[x->first];
    struct share_place whole = place_at(seq, step->begin, step->end - step->begin);
    struct share_place own = place_at(seq, step->begin + b->begin, x->n);
    struct share_place from = place_at(best[b->from].seq, b->at, x->n);
    int64_t n_free = kv_seq_free_bytes(seq->kv);
    if (!share_place_find(&whole) || !share_place_find(&own) || !share_place_find(&from) ||
        !share_apply(seq->share, seq->kv, &whole, &own, &from))
        return false;
    for (int32_t i = x->first; i <= x->last; i++)
        block[i].shared = true;
    step->tally.pages_shared += x->last - x->first + 1;
    note_shared(seq, step, &own, &from, n_free);
    return true;
}

/* Blocks that overlap a stretch are offered no more. */
static void forget_blocks(struct share_block *block, int32_t n, const struct stretch *x)
{
    int32_t begin = begin_of(block, x), end = begin + x->n;
    for (int32_t i = 0; i < n; i++)
        if (block[i].begin < end && block[i].begin + block[i].n > begin)
            block[i].near = false;
}

static void share_blocks(struct share_seq *seq, struct share_step *step,
                         const struct candidate *best, int32_t n_block)
{
    struct share *s = seq->share;
    struct share_block *block = s->block;
    int32_t n_run = 0, most = share_runs_at(s, step->end - step->begin);
    for (bool more = true; more;) {
        struct share_place whole = place_at(seq, step->begin, step->end - step->begin);
        struct share_layout layout;
        struct stretch x = {0};
        /* Where entries were folded away the step is no longer there whole. */
        if (!share_place_find(&whole) || !share_layout_find(s, &whole, 0, 0, &layout))
            return;
        for (int32_t i = 0; i < n_block; i++)
            if (block[i].near)
                offer_from(s, &layout, block, n_block, i, &x);
        more = x.n > 0;
        n_run += x.last - x.first + 2;
        if (more && n_run <= most)
            share_stretch(seq, step, best, block, &x);
        if (more)
            forget_blocks(block, n_block, &x);
    }
}

static void compare_step(struct share_seq *seq, struct share_step *step, double loose)
{
    struct candidate best[SHARE_CANDIDATES_MAX + 1];
    struct share *s = seq->share;
    int32_t n = find_steps(seq, step, best), n_block = 0;
    for (int32_t i = 0; i < n; i++)
        n_block += add_blocks(seq, step, best, i, s->block + n_block);
    compare_blocks(seq, step, best, n_block, loose);
    share_blocks(seq, step, best, n_block);
    for (int32_t i = 0; i < n_block; i++)
        tell(seq, step, &best[s->block[i].from], &s->block[i]);
}

/* ---- chance ---- */

/* A number in [0, 1) that the seed, a position and k say (splitmix64's output function). */
static double chance(const struct share *s, int32_t pos, int32_t k)
{
    uint64_t z =
        ((uint64_t)(uint32_t)s->config.options.seed << 32 | (uint32_t)pos) * 2 + (uint64_t)k;
    z = (z + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

static bool fits(const struct share *s, const struct share_page *page,
                 const struct share_page *from)
{
    return s->config.options.mode == SHARE_LITERAL ? from->n == page->n : from->n >= page->n;
}

/* Page number `take` of the pages before a step that could stand for one of its own, if there are
   that many. It is `out`, of candidate c. Returns how many there are. */
static int32_t find_any(struct share_seq *seq, const struct share_step *step,
                        const struct share_page *page, int32_t take, struct candidate *c,
                        struct share_page *out)
{
    struct share *s = seq->share;
    struct share_page *other = s->page + s->cap_page;
    int32_t n = 0;
    for (int32_t k = 0; &seq->step[k] < step; k++) {
        if (seq->step[k].gone)
            continue;
        int32_t n_page =
            share_pages_inside(seq->kv, seq->step[k].begin, seq->step[k].end, other, s->cap_page);
        for (int32_t i = 0; i < n_page; i++)
            if (fits(s, page, &other[i]) && n++ == take) {
                *c = (struct candidate){.seq = seq, .step = k, .norm = seq->step[k].norm};
                *out = other[i];
            }
    }
    return n;
}

/* The likeness of a candidate that was taken by chance. */
static void measure(struct share_seq *seq, const struct share_step *step, struct candidate *c)
{
    struct share *s = seq->share;
    struct share_bag own = bag_of(seq, step), their = bag_of(seq, step_of(c));
    for (int32_t k = 0; k < own.n; k++)
        s->count[own.id[k]] = own.count[k];
    c->dot = share_bag_dot(&their, s->count);
    share_bag_clear(&own, s->count);
}

static void share_any(struct share_seq *seq, struct share_step *step, const struct share_page *page)
{
    struct share *s = seq->share;
    struct candidate c;
    struct share_page from;
    int32_t n = find_any(seq, step, page, -1, &c, &from);
    if (n == 0)
        return;
    find_any(seq, step, page, (int32_t)(chance(s, page->at, 1) * n), &c, &from);
    struct share_block b = {.at = from.at, .begin = page->at - step->begin, .n = page->n};
    struct share_place whole = place_at(seq, step->begin, step->end - step->begin);
    struct share_place own = place_at(seq, page->at, page->n);
    struct share_place their = place_at(seq, from.at, page->n);
    if (!share_place_find(&own) || !share_place_find(&their))
        return;
    if (s->log != NULL) {
        measure(seq, step, &c);
        b.compared = share_compare(s, &s->scratch[0], &own, &their, INFINITY, &b.distance);
        step->tally.pages_compared += b.compared;
    }
    int64_t n_free = kv_seq_free_bytes(seq->kv);
    b.shared = !s->log_all && share_apply(s, seq->kv, &whole, &own, &their);
    if (b.shared) {
        step->tally.pages_shared++;
        note_shared(seq, step, &own, &their, n_free);
    }
    tell(seq, step, &c, &b);
}

static void share_by_chance(struct share_seq *seq, struct share_step *step)
{
    struct share *s = seq->share;
    int32_t n = share_pages_inside(seq->kv, step->begin, step->end, s->page, s->cap_page);
    for (int32_t i = 0; i < n; i++)
        if (chance(s, s->page[i].at, 0) < s->config.options.share)
            share_any(seq, step, &s->page[i]);
}

#define CHANCES 4 /* pages by chance that are measured beside a step */

/* Measures a page of the step beside one of the steps before it. Both are drawn by number k, and
   have no token at the same place. */
static void measure_chance(struct share_seq *seq, const struct share_step *step, int32_t n_page,
                           int32_t k)
{
    struct share *s = seq->share;
    struct candidate c;
    struct share_page from;
    struct share_distance d;
    const struct share_page page = s->page[(int32_t)(chance(s, step->begin, 2 * k) * n_page)];
    int32_t n = find_any(seq, step, &page, -1, &c, &from);
    if (n == 0)
        return;
    find_any(seq, step, &page, (int32_t)(chance(s, step->begin, 2 * k + 1) * n), &c, &from);
    struct share_place own = place_at(seq, page.at, page.n);
    struct share_place their = place_at(seq, from.at, page.n);
    if (count_same(seq, step, page.at - step->begin, &c, from.at - step_of(&c)->begin, page.n) ==
            0 &&
        share_place_find(&own) && share_place_find(&their) &&
        share_compare(s, &s->scratch[0], &own, &their, INFINITY, &d))
        share_sample_add(seq, (int32_t)(step - seq->step), distance_of(s, &d), true);
}

static void measure_chances(struct share_seq *seq, const struct share_step *step)
{
    struct share *s = seq->share;
    int32_t n = share_pages_inside(seq->kv, step->begin, step->end, s->page, s->cap_page);
    for (int32_t k = 0; k < CHANCES && n > 0; k++)
        measure_chance(seq, step, n, k);
}

/* ---- a step ---- */

void share_step_compare(struct share_seq *seq, int32_t index, double loose)
{
    struct share_step *step = &seq->step[index];
    if (step->gone)
        return;
    if (seq->share->config.kind != SHARE_MEMSHARE) {
        share_by_chance(seq, step);
        return;
    }
    bool measures = seq->share->config.options.block < 0.0 && loose == 1.0;
    if (measures) /* before pages of the step give way to others */
        measure_chances(seq, step);
    compare_step(seq, step, loose);
}
