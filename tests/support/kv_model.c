/*
 * kv_model.c - the model: entries copied wherever they go, pages only counted. It is written from
 * what kv.h promises and knows nothing of how the store does it.
 */
#include "kv_model.h"

int64_t model_page_bytes(const struct world *w, int32_t lane)
{
    return (int64_t)kv_layer_page_bytes(&w->cache->g, lane / N_HEAD);
}

int64_t model_free_bytes(const struct world *w)
{
    return w->cache->budget - w->used;
}

int32_t model_take(struct world *w, int32_t lane)
{
    int32_t u = 0;
    while (w->uid[u].n_ref + w->uid[u].n_held > 0)
        u++;
    assert_true(u < N_UID);
    w->uid[u] = (struct uid){.n_ref = 1, .lane = lane};
    w->used += model_page_bytes(w, lane);
    return u;
}

void model_drop(struct world *w, int32_t u, bool held)
{
    struct uid *uid = &w->uid[u];
    *(held ? &uid->n_held : &uid->n_ref) -= 1;
    assert_true(uid->n_ref >= 0 && uid->n_held >= 0);
    if (uid->n_ref + uid->n_held == 0)
        w->used -= model_page_bytes(w, uid->lane);
}

bool model_is_shared(const struct world *w, const struct ref *ref)
{
    return w->uid[ref->uid].n_ref + w->uid[ref->uid].n_held > 1;
}

static void unshare(struct world *w, int32_t lane, struct ref *ref)
{
    if (!model_is_shared(w, ref))
        return;
    model_drop(w, ref->uid, false);
    ref->uid = model_take(w, lane);
}

int32_t model_find_page(const struct lane *m, int32_t slot, int32_t *entry)
{
    int32_t i = 0;
    while (slot >= m->page[i].n)
        slot -= m->page[i++].n;
    *entry = slot;
    return i;
}

int32_t model_begin(const struct lane *m, int32_t i)
{
    int32_t slot = 0;
    while (i > 0)
        slot += m->page[--i].n;
    return slot;
}

int32_t model_tail_room(const struct lane *m)
{
    if (m->n_live == 0)
        return 0;
    const struct ref *last = &m->page[m->n_live - 1];
    return last->delta != 0 || last->n_folded > 0 || last->closed ? 0 : P - last->n;
}

/* Counts the entries of the pages, and whether an unordered lane still is one. */
void model_recount(struct lane *m)
{
    bool unordered = false;
    m->len = m->n_live = 0;
    for (int32_t i = 0; i < m->n_page && m->page[i].n > 0; i++) {
        for (int32_t e = 0; e < m->page[i].n; e++) {
            bool first = e == 0 && (i == 0 || m->page[i - 1].delta != m->page[i].delta);
            const struct entry *entry = &m->entry[m->len + e];
            unordered = unordered || (!first && entry->pos <= entry[-1].pos);
        }
        m->len += m->page[i].n;
        m->n_live++;
    }
    m->unordered = m->unordered && unordered;
}

void model_drop_reserved(struct world *w, struct lane *m)
{
    while (m->n_page > m->n_live)
        model_drop(w, m->page[--m->n_page].uid, false);
}

/* The largest position that is read in a lane. */
int32_t model_last(const struct lane *m)
{
    int32_t last = -1;
    for (int32_t i = 0, s = 0; i < m->n_live; i++)
        for (int32_t e = 0; e < m->page[i].n; e++, s++)
            last = (int32_t)pi_max(last, m->entry[s].pos + m->page[i].delta);
    return last;
}

/* ---- room and entries ---- */

int64_t model_lacks(const struct lane *m, int32_t n)
{
    int32_t beyond = n - model_tail_room(m);
    int32_t n_page = beyond > 0 ? (beyond + P - 1) / P : 0;
    return pi_max(0, n_page - (m->n_page - m->n_live));
}

int32_t model_copies(const struct world *w, const int32_t *uid, int32_t n)
{
    int32_t n_copy = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t before = 0;
        for (int32_t j = 0; j < i; j++)
            before += uid[j] == uid[i];
        n_copy += before < w->uid[uid[i]].n_ref + w->uid[uid[i]].n_held - 1;
    }
    return n_copy;
}

int64_t model_reserve(struct world *w, int32_t l, struct lane *m, int32_t n, bool take)
{
    int32_t entry, grows = n - (m->victim >= 0);
    int64_t lack = model_lacks(m, grows);
    struct ref *tail = model_tail_room(m) > 0 && grows > 0 ? &m->page[m->n_live - 1] : NULL;
    struct ref *victim = m->victim >= 0 ? &m->page[model_find_page(m, m->victim, &entry)] : NULL;
    int32_t written[2] = {0}, n_written = 0;
    if (tail != NULL)
        written[n_written++] = tail->uid;
    if (victim != NULL && victim != tail)
        written[n_written++] = victim->uid;
    int64_t takes = lack + model_copies(w, written, n_written);
    if (!take)
        return takes;
    if (tail != NULL)
        unshare(w, l, tail);
    if (victim != NULL)
        unshare(w, l, victim);
    for (int64_t i = 0; i < lack; i++)
        m->page[m->n_page++] = (struct ref){.uid = model_take(w, l)};
    return takes;
}

/* Of a page's entries, from slot `from` of before on, those that are read below pos, n of them; how
   many are its first ones. */
static int32_t find_below(const struct lane *m, const struct ref *ref, int32_t from, int32_t pos,
                          int32_t kept[P], int32_t *n)
{
    int32_t prefix = 0;
    *n = 0;
    for (int32_t e = 0; e < ref->n; e++)
        if (m->entry[from + e].pos + ref->delta < pos)
            kept[(*n)++] = e;
    while (prefix < *n && kept[prefix] == prefix)
        prefix++;
    return prefix;
}

/* The rest of a page of an overwritten lane may have gaps, and closing them writes to the page.
   Where no page is free for that, the entries after the first gap go, too. */
void model_truncate(struct world *w, int32_t l, struct lane *m, int32_t pos)
{
    struct ref old[MOST_PAGE];
    int32_t n_old = m->n_live, to = 0, from = 0, before = m->len, kept[P], n;
    model_drop_reserved(w, m);
    memcpy(old, m->page, sizeof(old));
    m->n_page = 0;
    for (int32_t i = 0; i < n_old; from += old[i++].n) {
        struct ref ref = old[i];
        int32_t prefix = find_below(m, &ref, from, pos, kept, &n);
        if (prefix < n && model_is_shared(w, &ref) && model_free_bytes(w) < model_page_bytes(w, l))
            n = prefix;
        if (prefix < n)
            unshare(w, l, &ref);
        for (int32_t j = 0; j < n; j++)
            m->entry[to++] = m->entry[from + kept[j]];
        ref.closed = ref.closed && n == ref.n;
        ref.n = n;
        if (n > 0)
            m->page[m->n_page++] = ref;
        else
            model_drop(w, ref.uid, false);
    }
    model_recount(m);
    if (m->len != before)
        m->victim = -1;
}

/* ---- packing ---- */

/* Places for kept slots, page after page. A new page begins where the last is full, and where the
   delta changes. One begins where the position falls in a lane that has not been overwritten. It
   also begins around a page that counts more than once and loses nothing. */
void model_pack(const struct lane *m, const int32_t *slots, int32_t n, struct packed *out)
{
    int32_t source = -1, entry, n_folded = 0;
    out->n_page = 0;
    for (int32_t j = 0; j < n; j++) {
        int32_t i = model_find_page(m, slots[j], &entry), begin = slots[j] - entry;
        const struct ref *from = &m->page[i];
        bool entered = i != source, whole = entry == 0 && n - j >= from->n;
        for (int32_t e = 0; whole && e < from->n; e++)
            whole = slots[j + e] == begin + e;
        n_folded = !entered ? n_folded : whole ? from->n_folded : 0;
        struct ref *to = out->n_page > 0 ? &out->page[out->n_page - 1] : NULL;
        bool falls = j > 0 && m->entry[slots[j]].pos <= m->entry[slots[j - (j > 0)]].pos;
        if (to == NULL || to->n == P || to->delta != from->delta ||
            (entered && (n_folded > 0 || to->n_folded > 0)) || (falls && !m->unordered)) {
            out->written[out->n_page] = false;
            to = &out->page[out->n_page++];
            *to = (struct ref){
                .uid = m->page[out->n_page - 1].uid, .delta = from->delta, .n_folded = n_folded};
        }
        source = i;
        if (i != out->n_page - 1 || entry != to->n)
            out->written[out->n_page - 1] = true;
        to->n++;
    }
}

void model_apply(struct world *w, int32_t l, struct lane *m, const int32_t *slots, int32_t n,
                 const struct packed *to)
{
    for (int32_t i = 0; i < to->n_page; i++) {
        int32_t own = m->page[i].uid;
        m->page[i] = to->page[i];
        m->page[i].uid = own;
        if (to->written[i])
            unshare(w, l, &m->page[i]);
    }
    while (m->n_page > to->n_page)
        model_drop(w, m->page[--m->n_page].uid, false);
    for (int32_t j = 0; j < n; j++)
        m->entry[j] = m->entry[slots[j]];
    m->victim = -1;
    model_recount(m);
}

/* ---- comparing ---- */

/* The page of a lane that a number of the model stands for, by the first match. */
struct names {
    int32_t page[N_UID];
};

static void check_names(const struct pair *p, struct names *names)
{
    for (int32_t l = 0; l < N_LANE; l++) {
        const struct lane *m = &p->lane[l];
        const struct kv_lane *lane = &p->seq->lane[l];
        assert_int_equal(lane->len, m->len);
        assert_int_equal(lane->n_page, m->n_page);
        assert_int_equal(lane->n_live, m->n_live);
        assert_int_equal(lane->victim, m->victim + 1);
        assert_int_equal(lane->unordered, m->unordered);
        for (int32_t i = 0; i < m->n_page; i++) {
            const struct kv_page_ref *ref = &lane->table[i];
            assert_int_equal(ref->n, m->page[i].n);
            assert_int_equal(ref->delta, m->page[i].delta);
            assert_int_equal(ref->n_folded, m->page[i].n_folded);
            assert_int_equal(ref->closed, m->page[i].closed);
            int32_t *name = &names->page[m->page[i].uid];
            assert_true(*name < 0 || *name == ref->page);
            *name = ref->page;
        }
    }
}

void model_check_tables(const struct pair *p)
{
    struct names names;
    memset(&names, 0xff, sizeof(names));
    check_names(p, &names);
}

void model_numbers(uint32_t id, float *key, float *value)
{
    for (uint32_t d = 0; d < DIM; d++) { /* exact in f16 */
        key[d] = (float)((id * (2 * d + 3) + 7 * d) % 2039) - 1019;
        value[d] = (float)((id * (2 * d + 5) + 3 * d) % 2029) - 1014;
    }
}

static void check_entries(const struct pair *p)
{
    float key[DIM], value[DIM], want_key[DIM], want_value[DIM];
    for (int32_t l = 0; l < N_LANE; l++)
        for (int32_t i = 0, s = 0; i < p->lane[l].n_live; i++)
            for (int32_t e = 0; e < p->lane[l].page[i].n; e++, s++) {
                const struct entry *want = &p->lane[l].entry[s];
                const struct kv_run run = kv_lane_run(p->seq, l / N_HEAD, l % N_HEAD, i);
                model_numbers(want->id, want_key, want_value);
                kv_lane_key(p->seq, l / N_HEAD, l % N_HEAD, s, key);
                kv_lane_value(p->seq, l / N_HEAD, l % N_HEAD, s, value);
                assert_memory_equal(key, want_key, sizeof(key));
                assert_memory_equal(value, want_value, sizeof(value));
                assert_int_equal(kv_lane_written_pos(p->seq, l / N_HEAD, l % N_HEAD, s), want->pos);
                assert_int_equal(kv_lane_pos(p->seq, l / N_HEAD, l % N_HEAD, s),
                                 want->pos + p->lane[l].page[i].delta);
                assert_int_equal(run.count, 1 + p->lane[l].page[i].n_folded);
                assert_true(kv_lane_marks(p->seq, l / N_HEAD, l % N_HEAD, 0)[s] == want->mark);
            }
}

/* Everything: the used, shared, saved and live counts, and that each number of the model is one
   page. */
void model_check(const struct world *w)
{
    struct names names;
    int32_t most[N_UID] = {0};
    int64_t shared_bytes = 0, saved = 0, live = 0;
    pith_kv_stats stats;
    memset(&names, 0xff, sizeof(names));
    for (const struct pair *p = w->pair; p < w->pair + N_SEQ; p++) {
        if (p->seq == NULL || p->swapped != NULL)
            continue;
        check_names(p, &names);
        check_entries(p);
        for (int32_t l = 0; l < N_LANE; l++)
            for (int32_t i = 0; i < p->lane[l].n_live; i++) {
                const struct ref *ref = &p->lane[l].page[i];
                most[ref->uid] = (int32_t)pi_max(most[ref->uid], ref->n);
            }
    }
    for (int32_t u = 0; u < N_UID; u++) {
        int32_t lane = w->uid[u].lane, layer = lane / N_HEAD;
        bool half_k = kv_layer_type_k(&w->cache->g, layer) == KV_TYPE_F16;
        bool half_v = kv_layer_type_v(&w->cache->g, layer) == KV_TYPE_F16;
        int32_t extra = w->uid[u].n_ref - 1;
        shared_bytes += extra > 0 ? model_page_bytes(w, lane) : 0;
        saved += extra > 0 ? extra * model_page_bytes(w, lane) : 0;
        live += most[u] * (4 + DIM * (half_k ? 2 : 4) + DIM * (half_v ? 2 : 4));
        for (int32_t v = 0; v < u && names.page[u] >= 0; v++) /* pages of one class are different */
            if (names.page[v] == names.page[u] &&
                kv_layer_type_k(&w->cache->g, w->uid[v].lane / N_HEAD) ==
                    kv_layer_type_k(&w->cache->g, layer) &&
                kv_layer_type_v(&w->cache->g, w->uid[v].lane / N_HEAD) ==
                    kv_layer_type_v(&w->cache->g, layer))
                fail_msg("numbers %d and %d are page %d", v, u, names.page[u]);
    }
    kv_cache_stats(w->cache, &stats);
    assert_int_equal(stats.used_bytes, w->used);
    assert_int_equal(stats.shared_bytes, shared_bytes);
    assert_int_equal(stats.saved_bytes, saved);
    assert_int_equal(stats.live_bytes, live);
    kv_check_account(w->cache, w->tables);
}
