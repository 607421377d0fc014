/*
 * test_kv_model.c - the KV store against a model that shares nothing (kv_model.h): random
 * operations over several sequences and blocks in a pool that is too small. After each the tables,
 * the bytes and the status are those foretold, and every so often each key, value, mark and
 * reference is looked at.
 */
#include "kv_model.h"

enum { N_OP = 100000 };

static uint64_t below(struct world *w, uint64_t n)
{
    return rng_below(&w->rng, n);
}

/* The status of an operation is the expected one. */
static bool went(struct world *w, enum op op, pith_status got, pith_status want)
{
    if (got != want)
        fail_msg("operation %d: status %d, foretold %d", (int)op, (int)got, (int)want);
    w->n_full[op] += got == PITH_KV_FULL;
    w->n_done[op] += got == PITH_OK;
    return got == PITH_OK;
}

/* ---- room and entries ---- */

static void append_one(struct world *w, struct pair *p, int32_t l, int32_t pos)
{
    struct lane *m = &p->lane[l];
    struct entry new = {.pos = pos, .id = ++w->n_id, .mark = (float)(w->n_id % 4093)};
    int32_t slot = m->victim, entry;
    float key[DIM], value[DIM];
    if (slot >= 0) {
        m->page[model_find_page(m, slot, &entry)].closed = false;
        m->unordered = m->unordered || slot != m->len - 1;
        m->victim = -1;
    } else {
        if (model_tail_room(m) == 0)
            m->n_live++;
        m->page[m->n_live - 1].n++;
        slot = m->len++;
    }
    m->entry[slot] = new;
    model_numbers(new.id, key, value);
    kv_seq_append(p->seq, l / N_HEAD, l % N_HEAD, pos, 1, key, 0, value, 0);
    float *mark = kv_lane_marks(p->seq, l / N_HEAD, l % N_HEAD, 0);
    assert_true(mark[slot] == 0.0f);
    mark[slot] = new.mark;
}

static void op_append(struct world *w, struct pair *p)
{
    int32_t n = 1 + (int32_t)below(w, below(w, 4) ? 12 : 60);
    int32_t used = below(w, 4) ? n : (int32_t)below(w, (uint64_t)n + 1);
    int64_t takes = 0;
    for (int32_t l = 0; l < N_LANE; l++) {
        if (p->lane[l].len + n > MOST_ENTRY ||
            p->lane[l].n_page + model_lacks(&p->lane[l], n) >= MOST_PAGE)
            return;
        takes += model_reserve(w, l, &p->lane[l], n, false) * model_page_bytes(w, l);
    }
    assert_int_equal(kv_seq_takes(p->seq, n), takes);
    pith_status want = takes > model_free_bytes(w) ? PITH_KV_FULL : PITH_OK;
    if (!went(w, OP_APPEND, kv_seq_reserve(p->seq, n, NULL), want))
        return;
    for (int32_t l = 0; l < N_LANE; l++) {
        model_reserve(w, l, &p->lane[l], n, true);
        for (int32_t i = 0; i < used; i++)
            append_one(w, p, l, p->next + i);
    }
    p->next += used;
}

static void op_victim(struct world *w, struct pair *p)
{
    for (int32_t l = 0; l < N_LANE; l++) {
        struct lane *m = &p->lane[l];
        int32_t slot = (int32_t)below(w, (uint64_t)m->len + 1) - 1, entry;
        const struct ref *ref = slot >= 0 ? &m->page[model_find_page(m, slot, &entry)] : NULL;
        bool can = ref != NULL && ref->delta == 0 && ref->n_folded == 0;
        assert_int_equal(kv_lane_can_overwrite(p->seq, l / N_HEAD, l % N_HEAD, slot), can);
        if (slot >= 0 && !can)
            continue;
        kv_seq_set_victim(p->seq, l / N_HEAD, l % N_HEAD, slot);
        m->victim = slot;
        w->n_done[OP_VICTIM]++;
    }
}

static void op_truncate(struct world *w, struct pair *p)
{
    int32_t back = (int32_t)below(w, below(w, 6) ? 25 : 300);
    int32_t pos = (int32_t)pi_max(0, p->next - back);
    kv_seq_truncate(p->seq, pos);
    for (int32_t l = 0; l < N_LANE; l++)
        model_truncate(w, l, &p->lane[l], pos);
    p->next = pos;
    w->n_done[OP_TRUNCATE]++;
}

/* ---- packing ---- */

static void op_compact(struct world *w, struct pair *p)
{
    static int32_t slots[N_LANE][MOST_ENTRY];
    static struct packed to[N_LANE];
    struct kv_cut cut[N_LANE];
    int32_t n_cut = 0;
    int64_t copies = 0;
    for (int32_t l = 0; l < N_LANE; l++) {
        const struct lane *m = &p->lane[l];
        int32_t n = 0, first = (int32_t)below(w, (uint64_t)m->len + 1);
        uint64_t keep = below(w, 12); /* of ten */
        int32_t apart = kv_lane_breaks(p->seq, l / N_HEAD, l % N_HEAD);
        if (below(w, 2))
            continue;
        for (int32_t s = 0; s < m->len; s++)
            if (s < first || below(w, 10) < keep)
                slots[l][n++] = s;
        cut[n_cut++] = (struct kv_cut){l / N_HEAD, l % N_HEAD, slots[l], n};
        model_pack(m, slots[l], n, &to[l]);
        int32_t written[MOST_PAGE], n_written = 0;
        for (int32_t i = 0; i < to[l].n_page; i++)
            if (to[l].written[i])
                written[n_written++] = m->page[i].uid;
        copies += model_copies(w, written, n_written) * model_page_bytes(w, l);
        assert_true(to[l].n_page <= apart + (pi_max(0, n - apart) + P - 1) / P);
    }
    pith_status want = copies > model_free_bytes(w) ? PITH_KV_FULL : PITH_OK;
    assert_true(copies <= kv_seq_charge_copies(p->seq).all); /* pages that a plan sets aside */
    kv_seq_clear_charges(p->seq);
    if (!went(w, OP_COMPACT, kv_seq_compact_lanes(p->seq, cut, n_cut, 1, NULL), want))
        return;
    for (int32_t i = 0; i < n_cut; i++) {
        int32_t l = cut[i].layer * N_HEAD + cut[i].head;
        model_apply(w, l, &p->lane[l], cut[i].slots, cut[i].n, &to[l]);
    }
}

/* ---- sharing ---- */

static void op_fork(struct world *w, const struct pair *from, struct pair *to)
{
    assert_int_equal(kv_seq_fork(from->seq, &to->seq, NULL), PITH_OK);
    to->next = from->next;
    for (int32_t l = 0; l < N_LANE; l++) {
        struct lane *m = &to->lane[l];
        *m = from->lane[l];
        m->n_page = m->n_live;
        for (int32_t i = 0; i < m->n_live; i++)
            w->uid[m->page[i].uid].n_ref++;
        model_recount(m);
    }
    w->n_done[OP_FORK]++;
}

/* ---- stretches ---- */

/* A stretch of a lane, and the entries that are to stand there. */
struct stretch {
    int32_t slot, n;
    int32_t first, head; /* page of the first, and entries before it there */
    int32_t last, gone;  /* page after it, and number of entries to evict there */
    int32_t from, index; /* slot and page of its first entry, */
    int32_t n_from;      /* pages */
};

/* Draws a stretch, mostly within the lane. from's page is drawn by number, and at times the stretch
   to replace is a page, too. */
static void draw_stretch(struct world *w, const struct lane *m, const struct lane *q,
                         struct stretch *s)
{
    int32_t page = (int32_t)below(w, (uint64_t)m->n_live + 1);
    s->index = (int32_t)below(w, (uint64_t)q->n_live + 1);
    s->from = model_begin(q, (int32_t)pi_min(s->index, q->n_live));
    if (q == m && s->index < m->n_live && below(w, 8)) /* behind the other */
        page = s->index + 1 + (int32_t)below(w, (uint64_t)(m->n_live - s->index));
    if (below(w, 2)) {
        s->slot = model_begin(m, page);
        s->n = page < m->n_live ? m->page[page].n : 0;
        return;
    }
    s->slot = (int32_t)below(w, (uint64_t)m->len + 2);
    if (q == m && below(w, 8))
        s->slot = s->from + (int32_t)below(w, (uint64_t)(m->len - s->from) + 1);
    int32_t most = q == m && s->slot > s->from ? s->slot - s->from : 40;
    s->n = (int32_t)below(w, (uint64_t)pi_min(most, 40) + 1);
    if (below(w, 3) == 0) /* to the end */
        s->n = m->len - s->slot;
    s->from += below(w, 20) == 0;
}

/* Chooses the stretch to evict; false: there is none. */
static bool place_stretch(const struct lane *m, struct stretch *s)
{
    if (s->n < 1 || s->slot + s->n > m->len)
        return false;
    s->first = model_find_page(m, s->slot, &s->head);
    s->last = m->n_live;
    s->gone = 0;
    if (s->slot + s->n < m->len)
        s->last = model_find_page(m, s->slot + s->n, &s->gone);
    bool valid = s->first != s->last || s->head == 0;
    for (int32_t i = s->first; i < s->last + (s->gone > 0); i++)
        valid = valid && m->page[i].n_folded == 0;
    return valid;
}

/* Whether the other lane has n entries from the beginning of a page on. */
static bool place_from(const struct lane *q, struct stretch *s)
{
    int32_t entry = 0;
    s->n_from = 0;
    if (s->n < 1 || s->from + s->n > q->len)
        return false;
    s->index = model_find_page(q, s->from, &entry);
    if (entry > 0)
        return false;
    for (int32_t left = s->n; left > 0; left -= q->page[s->index + s->n_from++].n)
        ;
    return true;
}

/* Whether there is no page for the copy that a stretch takes, which is foretold, too. */
static bool lacks_copy(const struct world *w, int32_t l, const struct pair *p,
                       const struct stretch *s)
{
    bool copied = s->gone > 0 && model_is_shared(w, &p->lane[l].page[s->last]);
    int64_t takes = copied ? model_page_bytes(w, l) : 0;
    assert_int_equal(kv_lane_span_takes(p->seq, l / N_HEAD, l % N_HEAD, s->slot, s->n), takes);
    return takes > model_free_bytes(w);
}

static void model_cut_out(struct world *w, int32_t l, struct lane *m, const struct stretch *s,
                          int32_t n_new)
{
    int32_t begin = s->first + (s->head > 0);
    if (s->gone > 0 && model_is_shared(w, &m->page[s->last])) {
        model_drop(w, m->page[s->last].uid, false);
        m->page[s->last].uid = model_take(w, l);
    }
    m->page[s->last].n -= s->gone;
    if (s->head > 0) {
        m->page[s->first].n = s->head;
        m->page[s->first].closed = false;
    }
    for (int32_t i = begin; i < s->last; i++)
        model_drop(w, m->page[i].uid, false);
    memmove(&m->page[begin + n_new], &m->page[s->last],
            (size_t)(m->n_page - s->last) * sizeof(m->page[0]));
    m->n_page += n_new - (s->last - begin);
}

static void op_span(struct world *w, struct pair *p, const struct pair *other)
{
    int32_t l = (int32_t)below(w, N_LANE), delta = (int32_t)below(w, 9) - 4;
    struct lane *m = &p->lane[l];
    const struct lane *q = &other->lane[l];
    struct stretch s;
    struct ref ref[MOST_PAGE];
    draw_stretch(w, m, q, &s);
    bool valid = place_stretch(m, &s), there = place_from(q, &s);
    bool before = p != other || s.from + s.n <= s.slot;
    if (valid && there && below(w, 4)) /* at the position of the stretch */
        delta = m->entry[s.slot].pos + m->page[s.first].delta - q->entry[s.from].pos -
                q->page[s.index].delta;
    bool fits = true;
    for (int32_t i = 0, left = s.n, at = s.from; there && i < s.n_from; i++) {
        ref[i] = q->page[s.index + i];
        ref[i].n = (int32_t)pi_min(ref[i].n, left);
        ref[i].delta += delta;
        fits = fits && ref[i].n_folded == 0;
        for (int32_t e = 0; e < ref[i].n; e++)
            fits = fits && q->entry[at + e].pos + ref[i].delta >= 0;
        left -= ref[i].n;
        at += ref[i].n;
        ref[i].closed = left == 0 && s.last == m->n_live && ref[i].n < P;
    }
    if (there && m->n_page + s.n_from >= MOST_PAGE - 1)
        return;
    assert_int_equal(kv_seq_reserve_runs(p->seq, there ? s.n_from : 1, NULL), PITH_OK);
    pith_status want = !before || !valid ? PITH_INVALID : PITH_OK;
    if (want == PITH_OK && lacks_copy(w, l, p, &s))
        want = PITH_KV_FULL;
    if (want == PITH_OK && (!there || !fits))
        want = PITH_INVALID;
    if (!went(w, OP_SPAN,
              kv_seq_share_span(p->seq, l / N_HEAD, l % N_HEAD, s.slot, s.n, other->seq, s.from,
                                delta, NULL),
              want))
        return;
    for (int32_t i = 0; i < s.n_from; i++)
        w->uid[ref[i].uid].n_ref++;
    memmove(&m->entry[s.slot], &q->entry[s.from], (size_t)s.n * sizeof(m->entry[0]));
    model_cut_out(w, l, m, &s, s.n_from);
    memcpy(&m->page[s.first + (s.head > 0)], ref, (size_t)s.n_from * sizeof(ref[0]));
    m->unordered = m->unordered || q->unordered;
    if (m->victim >= s.slot && m->victim < s.slot + s.n)
        m->victim = -1;
    model_recount(m);
    p->next = (int32_t)pi_max(p->next, model_last(m) + 1);
}

static void op_fold_span(struct world *w, struct pair *p)
{
    int32_t l = (int32_t)below(w, N_LANE);
    struct lane *m = &p->lane[l];
    struct stretch s;
    draw_stretch(w, m, m, &s);
    if (below(w, 4) && s.index < m->n_live) { /* whole pages */
        s.n = m->page[s.index].n;
        if (below(w, 2) && s.index + 1 < m->n_live)
            s.n += m->page[s.index + 1].n;
        int32_t space = m->len - s.from - 2 * s.n, entry;
        s.slot = s.from + s.n + (space > 0 ? (int32_t)below(w, (uint64_t)space + 1) : 0);
        if (below(w, 2) && s.slot < m->len && model_find_page(m, s.slot, &entry) > s.index)
            s.slot -= entry;
    }
    bool valid = place_stretch(m, &s), there = place_from(m, &s);
    pith_status want = !valid || s.from + s.n > s.slot ? PITH_INVALID : PITH_OK;
    if (want == PITH_OK && lacks_copy(w, l, p, &s))
        want = PITH_KV_FULL;
    if (want == PITH_OK && (!there || model_begin(m, s.index + s.n_from) != s.from + s.n))
        want = PITH_INVALID;
    if (!went(w, OP_FOLD_SPAN,
              kv_seq_fold_span(p->seq, l / N_HEAD, l % N_HEAD, s.slot, s.n, s.from, NULL), want))
        return;
    for (int32_t i = 0; i < s.n_from; i++)
        m->page[s.index + i].n_folded++;
    model_cut_out(w, l, m, &s, 0);
    memmove(&m->entry[s.slot], &m->entry[s.slot + s.n],
            (size_t)(m->len - s.slot - s.n) * sizeof(m->entry[0]));
    if (m->victim >= s.slot + s.n)
        m->victim -= s.n;
    else if (m->victim >= s.slot || (m->victim >= s.from && m->victim < s.from + s.n))
        m->victim = -1;
    model_recount(m);
}

/* ---- blocks ---- */

static void op_hold(struct world *w, const struct pair *p, struct held *h)
{
    int32_t i = (int32_t)below(w, 4);
    bool valid = true;
    for (const struct lane *m = p->lane; m < p->lane + N_LANE; m++)
        valid = valid && i < m->n_live && !m->unordered && m->page[i].n == P &&
                m->page[i].delta == 0 && m->page[i].n_folded == 0;
    pith_status want = valid ? PITH_OK : PITH_INVALID;
    if (!went(w, OP_HOLD, kv_block_hold(p->seq, i, &h->block, NULL), want))
        return;
    for (int32_t l = 0; l < N_LANE; l++) {
        const struct lane *m = &p->lane[l];
        h->uid[l] = m->page[i].uid;
        w->uid[h->uid[l]].n_held++;
        memcpy(h->entry[l], &m->entry[model_begin(m, i)], sizeof(h->entry[l]));
    }
}

static void op_drop(struct world *w, struct held *h)
{
    bool alone = true;
    for (int32_t l = 0; l < N_LANE; l++)
        alone = alone && w->uid[h->uid[l]].n_ref + w->uid[h->uid[l]].n_held == 1;
    assert_int_equal(kv_block_is_alone(w->cache, h->block), alone);
    int64_t used = w->cache->used;
    kv_block_drop(w->cache, h->block);
    if (alone)
        assert_int_equal(used - w->cache->used, kv_block_bytes(w->cache));
    for (int32_t l = 0; l < N_LANE; l++)
        model_drop(w, h->uid[l], true);
    h->block = NULL;
    w->n_done[OP_DROP]++;
}

static void op_append_block(struct world *w, struct pair *p, const struct held *h)
{
    bool valid = true;
    for (int32_t l = 0; l < N_LANE; l++) {
        const struct lane *m = &p->lane[l];
        valid = valid && m->n_page == m->n_live && !m->unordered && m->n_page < MOST_PAGE - 1 &&
                model_last(m) < h->entry[l][0].pos;
        for (int32_t i = 0; i < m->n_live; i++)
            valid = valid && m->page[i].n == P;
    }
    pith_status want = valid ? PITH_OK : PITH_INVALID;
    if (!went(w, OP_APPEND_BLOCK, kv_seq_append_blocks(p->seq, &h->block, 1, NULL), want))
        return;
    for (int32_t l = 0; l < N_LANE; l++) {
        struct lane *m = &p->lane[l];
        m->page[m->n_page++] = (struct ref){.uid = h->uid[l], .n = P};
        w->uid[h->uid[l]].n_ref++;
        for (int32_t e = 0; e < P; e++) {
            m->entry[m->len + e] = h->entry[l][e];
            m->entry[m->len + e].mark = 0.0f;
        }
        model_recount(m);
        p->next = (int32_t)pi_max(p->next, model_last(m) + 1);
    }
}

/* ---- waiting ---- */

/* Of a sequence that waits, a page's number is the first table entry that has it. */
static void op_swap_out(struct world *w, struct pair *p)
{
    int64_t bytes = 0;
    for (int32_t l = 0; l < N_LANE; l++) {
        struct lane *m = &p->lane[l];
        struct ref old[MOST_PAGE];
        model_drop_reserved(w, m);
        memcpy(old, m->page, sizeof(old));
        for (int32_t i = 0; i < m->n_live; i++) {
            int32_t first = 0;
            while (old[first].uid != old[i].uid)
                first++;
            bytes += first == i ? model_page_bytes(w, l) : 0;
            m->page[i].uid = first;
            model_drop(w, old[i].uid, false);
        }
    }
    assert_int_equal(kv_seq_swap_out(p->seq, &p->swapped, NULL), PITH_OK);
    assert_int_equal(kv_swapped_pool_bytes(p->swapped), bytes);
    assert_true(kv_swapped_host_bytes(p->swapped) > bytes);
    for (int32_t l = 0; l < N_LANE; l++)
        assert_int_equal(kv_lane_len(p->seq, l / N_HEAD, l % N_HEAD), 0);
}

static void op_swap_in(struct world *w, struct pair *p)
{
    pith_status want =
        kv_swapped_pool_bytes(p->swapped) > model_free_bytes(w) ? PITH_KV_FULL : PITH_OK;
    if (!went(w, OP_SWAP, kv_seq_swap_in(p->seq, p->swapped, NULL), want))
        return;
    p->swapped = NULL;
    for (int32_t l = 0; l < N_LANE; l++) {
        struct lane *m = &p->lane[l];
        for (int32_t i = 0; i < m->n_live; i++) {
            int32_t first = m->page[i].uid;
            m->page[i].uid = first == i ? model_take(w, l) : m->page[first].uid;
            w->uid[m->page[i].uid].n_ref += first < i;
        }
    }
}

static void op_free(struct world *w, struct pair *p)
{
    for (int32_t l = 0; p->seq != NULL && p->swapped == NULL && l < N_LANE; l++)
        for (int32_t i = 0; i < p->lane[l].n_page; i++)
            model_drop(w, p->lane[l].page[i].uid, false);
    kv_swapped_free(p->swapped);
    kv_seq_free(p->seq);
    p->seq = NULL;
    p->swapped = NULL;
}

static void op_create(struct world *w, struct pair *p)
{
    assert_int_equal(kv_seq_create(w->cache, &p->seq, NULL), PITH_OK);
    p->next = 0;
    for (struct lane *m = p->lane; m < p->lane + N_LANE; m++) {
        m->n_page = m->n_live = m->len = 0;
        m->victim = -1;
        m->unordered = false;
    }
}

/* ---- all together ---- */

/* How often each comes, of their sum. */
static const int32_t weight[N_KIND] = {
    [OP_APPEND] = 30, [OP_FORK] = 2,     [OP_SPAN] = 38, [OP_FOLD_SPAN] = 14, [OP_COMPACT] = 6,
    [OP_VICTIM] = 2,  [OP_TRUNCATE] = 3, [OP_HOLD] = 6,  [OP_DROP] = 2,       [OP_APPEND_BLOCK] = 8,
    [OP_SWAP] = 4,    [OP_TRIM] = 2,     [OP_FREE] = 1,
};

static enum op choose(struct world *w)
{
    int32_t sum = 0, op = 0;
    for (int32_t i = 0; i < N_KIND; i++)
        sum += weight[i];
    for (int32_t at = (int32_t)below(w, (uint64_t)sum); at >= weight[op];)
        at -= weight[op++];
    return (enum op)op;
}

/* A sequence that is there; one that waits comes back or goes, or another is taken. */
static struct pair *awake(struct world *w)
{
    struct pair *p = &w->pair[below(w, N_SEQ)];
    for (int32_t i = 0; i < N_SEQ && p->swapped != NULL; i++) {
        if (below(w, 2))
            op_swap_in(w, p);
        if (p->swapped != NULL)
            p = &w->pair[below(w, N_SEQ)];
    }
    if (p->swapped != NULL)
        op_free(w, p);
    if (p->seq == NULL)
        op_create(w, p);
    return p;
}

static void with_block(struct world *w, enum op op, struct pair *p)
{
    struct held *h = &w->held[below(w, N_BLOCK)];
    if (op == OP_HOLD && h->block == NULL)
        op_hold(w, p, h);
    else if (op == OP_DROP && h->block != NULL)
        op_drop(w, h);
    else if (op == OP_APPEND_BLOCK && h->block != NULL) {
        if (below(w, 4) == 0) { /* sequences begin with blocks */
            op_free(w, p);
            op_create(w, p);
        }
        op_append_block(w, p, h);
    }
}

/* Places that packing leaves: planned for once, so that only sharing and folding may add some. */
static void count_breaks(const struct pair *p, int32_t breaks[N_LANE])
{
    for (int32_t l = 0; l < N_LANE; l++)
        breaks[l] = kv_lane_breaks(p->seq, l / N_HEAD, l % N_HEAD);
}

/* Whether a lane's last page takes no more entries because it was ended. */
static bool has_closed(const struct pair *p)
{
    bool any = false;
    for (const struct lane *m = p->lane; m < p->lane + N_LANE; m++)
        any = any || (m->n_live > 0 && m->page[m->n_live - 1].closed);
    return any;
}

static void random_op(struct world *w)
{
    int32_t before[N_LANE], after[N_LANE];
    enum op op = choose(w);
    struct pair *p = awake(w), *other = op == OP_FORK || op == OP_SPAN ? awake(w) : p;
    count_breaks(p, before);
    w->n_closed[op] += has_closed(p);
    if (op == OP_APPEND)
        op_append(w, p);
    else if (op == OP_FORK && other != p) {
        op_free(w, other);
        op_fork(w, p, other);
    } else if (op == OP_SPAN)
        op_span(w, p, other);
    else if (op == OP_FOLD_SPAN)
        op_fold_span(w, p);
    else if (op == OP_COMPACT)
        op_compact(w, p);
    else if (op == OP_VICTIM)
        op_victim(w, p);
    else if (op == OP_TRUNCATE)
        op_truncate(w, p);
    else if (op == OP_SWAP)
        op_swap_out(w, p);
    else if (op == OP_FREE)
        op_free(w, p);
    else if (op == OP_TRIM) {
        kv_seq_trim(p->seq);
        for (struct lane *m = p->lane; m < p->lane + N_LANE; m++)
            model_drop_reserved(w, m);
    } else
        with_block(w, op, p);
    if (op == OP_APPEND || (op >= OP_COMPACT && op <= OP_TRUNCATE)) {
        count_breaks(p, after);
        for (int32_t l = 0; l < N_LANE; l++)
            assert_true(after[l] <= before[l]);
    }
    if (p->seq != NULL && p->swapped == NULL)
        model_check_tables(p);
    assert_int_equal(w->cache->used, w->used);
}

/* Keys and values of the first and the last layer are of another type: three classes of pages. */
static void run(uint64_t seed, int32_t n_page)
{
    static struct world w;
    const struct kv_geometry g = {N_LAYER,
                                  N_HEAD,
                                  DIM,
                                  DIM,
                                  P,
                                  KV_TYPE_F32,
                                  KV_TYPE_F32,
                                  seed % 2 ? KV_INDEX_ROWS : 0,
                                  0,
                                  {KV_TYPE_F16, 1, 0},
                                  {KV_TYPE_F16, 0, 1},
                                  NULL,
                                  0,
                                  0,
                                  0,
                                  NULL,
                                  {0}};
    w = (struct world){.rng = seed, .tables = pi_mem_used(PI_MEM_TABLE)};
    w.cache = kv_check_cache(&g, n_page);
    kv_cache_set_marks(w.cache, 1, false);
    for (int32_t i = 0; i < N_OP; i++) {
        random_op(&w);
        if (i % 50 == 0)
            model_check(&w);
    }
    model_check(&w);
    for (int32_t i = 0; i < N_KIND; i++)
        if (weight[i] > 0 && i != OP_TRIM && i != OP_FREE && w.n_done[i] < N_OP / 1000)
            fail_msg("operation %d went through %d times only", i, w.n_done[i]);
    static const enum op takes[] = {OP_APPEND, OP_COMPACT, OP_SWAP};
    for (size_t i = 0; i < PI_LEN(takes); i++)
        if (w.n_full[takes[i]] < N_OP / 1000)
            fail_msg("operation %d found no memory %d times only", (int)takes[i],
                     w.n_full[takes[i]]);
    static const enum op meets[] = {OP_APPEND, OP_SPAN, OP_FOLD_SPAN, OP_COMPACT,
                                    OP_VICTIM, OP_FORK, OP_TRUNCATE,  OP_SWAP};
    for (size_t i = 0; i < PI_LEN(meets); i++)
        if (w.n_closed[meets[i]] < N_OP / 1000)
            fail_msg("operation %d met a closed page %d times only", (int)meets[i],
                     w.n_closed[meets[i]]);
    for (int32_t i = 0; i < N_SEQ; i++)
        op_free(&w, &w.pair[i]);
    for (int32_t i = 0; i < N_BLOCK; i++)
        kv_block_drop(w.cache, w.held[i].block);
    assert_int_equal(w.cache->used, 0);
    kv_cache_free(w.cache);
    assert_int_equal(pi_mem_used(PI_MEM_TABLE), w.tables);
}

TEST(random_operations_agree_with_a_store_that_shares_nothing)
{
    for (uint64_t seed = 1; seed <= (TEST_STRIDE > 1 ? 2 : 4); seed++) {
        printf("seed %llu\n", (unsigned long long)seed);
        run(seed, 80 + 30 * (int32_t)seed);
    }
}
