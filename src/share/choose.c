/*
 * choose.c - what stands for what: of the steps before a closed one those of like words (MemShare,
 * Algorithm 1, stage 1), of their pages those with the same tokens at the same places, and of these
 * the nearest (stage 2); or, as a control, pages taken by chance. Invariant: the choice depends on
 * the tokens and pages of the steps alone.
 */
#include <math.h>

#include "share/internal.h"

/* An earlier step, as like as it is. */
struct candidate {
    struct share_seq *seq;
    int32_t step;
    int64_t dot;
    int64_t norm;
};

/* A page of one. */
struct pair {
    const struct candidate *from;
    int32_t page; /* in its share_seq.page */
    int32_t n_same;
    struct share_distance distance;
    bool compared;
};

/* ---- steps ---- */

static struct share_bag bag_of(const struct share_seq *seq, const struct share_step *step)
{
    return (struct share_bag){seq->bag_id + step->ids, seq->bag_count + step->ids, step->n_bag};
}

/* Whether a is more like than b: by the cosine, whose square is dot^2 / (norm of the step's own).
 */
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
        if (step->gone || step->n_page == 0)
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

/* ---- pages ---- */

static const struct share_step *step_of(const struct candidate *c)
{
    return &c->seq->step[c->step];
}

/* The token of a page's first entry. */
static const int32_t *tokens_of(const struct share_seq *seq, const struct share_step *step,
                                const struct share_page *page)
{
    return seq->ids + step->ids + (page->at - step->begin);
}

static bool fits(const struct share *s, const struct share_page *page,
                 const struct share_page *from)
{
    return s->config.options.mode == SHARE_LITERAL ? from->n == page->n : from->n >= page->n;
}

/* Of each candidate the page with most equal tokens at equal places, the first of equals; a page
   without any is not compared but where everything is. */
static int32_t find_pages(struct share_seq *seq, const struct share_step *step,
                          const struct share_page *page, const struct candidate *best, int32_t n,
                          struct pair *pair)
{
    const int32_t *tokens = tokens_of(seq, step, page);
    int32_t n_pair = 0;
    for (int32_t c = 0; c < n; c++) {
        const struct share_step *other = step_of(&best[c]);
        struct pair p = {.from = &best[c], .n_same = seq->share->log_all ? -1 : 0};
        bool found = false;
        for (int32_t i = other->page; i < other->page + other->n_page; i++) {
            const struct share_page *from = &best[c].seq->page[i];
            if (!fits(seq->share, page, from))
                continue;
            const int32_t *theirs = tokens_of(best[c].seq, other, from);
            int32_t n_same = 0;
            for (int32_t t = 0; t < page->n; t++)
                n_same += tokens[t] == theirs[t];
            if (n_same <= p.n_same)
                continue;
            p.n_same = n_same;
            p.page = i;
            found = true;
        }
        int32_t at = n_pair;
        for (; found && at > 0 && pair[at - 1].n_same < p.n_same; at--)
            pair[at] = pair[at - 1];
        if (found) {
            pair[at] = p;
            n_pair++;
        }
    }
    return n_pair;
}

static struct share_place place_of(const struct share_seq *seq, const struct share_page *page,
                                   bool exact)
{
    return (struct share_place){
        .kv = seq->kv, .pos = page->reads, .n = page->n, .uneven = seq->uneven, .exact = exact};
}

/* ---- sharing ---- */

/* What reads a page that was folded away reads the other one now. */
static void redirect(struct share_seq *seq, int32_t from, int32_t to)
{
    for (int32_t i = 0; i < seq->n_page; i++)
        if (seq->page[i].reads == from)
            seq->page[i].reads = to;
}

/* Lets another page stand for one of the step's; false: not every lane has both. */
static bool share_page(struct share_seq *seq, struct share_step *step, struct share_page *page,
                       const struct share_place *a, const struct share_place *b)
{
    struct share *s = seq->share;
    int32_t changed = page->at;
    if (!share_apply(s, seq->kv, a, b))
        return false;
    if (s->config.options.mode == SHARE_LITERAL) {
        changed = b->pos;
        redirect(seq, page->reads, b->pos);
    }
    page->shared = true;
    seq->first_change = (int32_t)pi_min(seq->first_change, changed);
    step->tally.pages_shared++;
    step->tally.tokens_shared += page->n;
    return true;
}

static void tell(const struct share_seq *seq, const struct share_step *step,
                 const struct share_page *page, const struct pair *p, bool shared)
{
    struct share *s = seq->share;
    if (s->log == NULL)
        return;
    const pith_share_pair told = {
        .seq = seq->owner,
        .pos = page->at,
        .from_pos = p->from->seq->page[p->page].at,
        .n = page->n,
        .cosine = (double)p->from->dot / sqrt((double)step->norm * (double)p->from->norm),
        .paper = p->distance.paper,
        .rms = p->distance.rms,
        .relative = p->distance.relative,
        .early = p->distance.early,
        .shared = shared,
    };
    s->log(s->log_user, &told);
}

static double distance_of(const struct share *s, const struct share_distance *d)
{
    return s->config.options.form == SHARE_PAPER ? d->paper : d->rms;
}

/* Whether a pair was compared to the end and is no further apart than the guard says. */
static bool is_near(const struct share *s, const struct share_distance *d, double loose)
{
    const struct share_options *o = &s->config.options;
    return !d->early && (o->form == SHARE_PAPER || d->relative < loose * o->relative);
}

/* Compares one page with those that it is most like, and shares it with the nearest that is near
   enough; of equals with the first. */
static void compare_page(struct share_seq *seq, struct share_step *step, struct share_page *page,
                         const struct candidate *best, int32_t n, double loose)
{
    struct share *s = seq->share;
    struct pair pair[SHARE_CANDIDATES_MAX];
    struct share_place a = place_of(seq, page, true), to = {0};
    int32_t n_pair = find_pages(seq, step, page, best, n, pair), nearest = -1;
    double lowest = loose * s->config.options.block;
    if (n_pair == 0 || !share_place_find(&a))
        return;
    for (int32_t i = 0; i < n_pair; i++) {
        const struct share_seq *other = pair[i].from->seq;
        struct share_place b =
            place_of(other, &other->page[pair[i].page], s->config.options.mode == SHARE_LITERAL);
        if (!share_place_find(&b) ||
            !share_compare(s, &a, &b, s->log_all ? INFINITY : lowest, &pair[i].distance))
            continue;
        pair[i].compared = true;
        step->tally.pages_compared++;
        step->tally.pages_early += pair[i].distance.early;
        if (is_near(s, &pair[i].distance, loose) &&
            share_take_nearer(distance_of(s, &pair[i].distance), &lowest)) {
            nearest = i;
            to = b;
        }
    }
    bool shared = nearest >= 0 && !s->log_all && share_page(seq, step, page, &a, &to);
    for (int32_t i = 0; i < n_pair; i++)
        if (pair[i].compared)
            tell(seq, step, page, &pair[i], shared && i == nearest);
}

static void compare_step(struct share_seq *seq, struct share_step *step, double loose)
{
    struct candidate best[SHARE_CANDIDATES_MAX + 1];
    int32_t n = find_steps(seq, step, best);
    for (int32_t i = step->page; n > 0 && i < step->page + step->n_page; i++)
        if (!seq->page[i].shared)
            compare_page(seq, step, &seq->page[i], best, n, loose);
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

/* The step that page i of a sequence belongs to. */
static int32_t owner_of(const struct share_seq *seq, int32_t i)
{
    int32_t low = 0, high = seq->n_step - 1;
    while (low < high) {
        int32_t mid = low + (high - low + 1) / 2;
        if (seq->step[mid].page <= i)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* A page of the steps before, taken by chance of those that could stand for it; -1: there are none.
 */
static int32_t choose_any(const struct share_seq *seq, const struct share_step *step,
                          const struct share_page *page)
{
    int32_t n = 0, k = 0;
    while (seq->step[k].gone) /* those before a round, which step is not */
        k++;
    int32_t first = seq->step[k].page;
    for (int32_t i = first; i < step->page; i++)
        n += fits(seq->share, page, &seq->page[i]);
    int32_t take = (int32_t)(chance(seq->share, page->at, 1) * n);
    for (int32_t i = first; i < step->page; i++)
        if (fits(seq->share, page, &seq->page[i]) && take-- == 0)
            return i;
    return -1;
}

static void share_any(struct share_seq *seq, struct share_step *step, struct share_page *page)
{
    struct share *s = seq->share;
    int32_t i = choose_any(seq, step, page);
    if (i < 0)
        return;
    struct candidate from = {.seq = seq, .step = owner_of(seq, i)};
    struct pair p = {.from = &from, .page = i};
    struct share_place a = place_of(seq, page, true);
    struct share_place b = place_of(seq, &seq->page[i], s->config.options.mode == SHARE_LITERAL);
    if (!share_place_find(&a) || !share_place_find(&b))
        return;
    if (s->log != NULL) {
        const struct share_step *other = step_of(&from);
        struct share_bag own = bag_of(seq, step), their = bag_of(seq, other);
        for (int32_t k = 0; k < own.n; k++)
            s->count[own.id[k]] = own.count[k];
        from.dot = share_bag_dot(&their, s->count);
        from.norm = other->norm;
        share_bag_clear(&own, s->count);
        if (!share_compare(s, &a, &b, INFINITY, &p.distance))
            return;
        step->tally.pages_compared++;
    }
    bool shared = !s->log_all && share_page(seq, step, page, &a, &b);
    tell(seq, step, page, &p, shared);
}

/* ---- a step ---- */

void share_step_compare(struct share_seq *seq, int32_t index, double loose)
{
    struct share_step *step = &seq->step[index];
    if (step->n_page == 0 || step->gone)
        return;
    if (seq->share->config.kind == SHARE_MEMSHARE) {
        compare_step(seq, step, loose);
        return;
    }
    for (int32_t i = step->page; i < step->page + step->n_page; i++)
        if (!seq->page[i].shared &&
            chance(seq->share, seq->page[i].at, 0) < seq->share->config.options.share)
            share_any(seq, step, &seq->page[i]);
}
