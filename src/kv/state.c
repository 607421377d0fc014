/*
 * state.c - states: the memory that layers without lanes have of a sequence. A state covers all
 * tokens up to one position. A state is a page of a class of its own, so the pool handles its
 * references, budget and memory. It must not know the meaning of the floats.
 *
 * Invariants: a state is only written to where its page's reference count is 1. Kept states ascend
 * and lie at positions before or at the sequence's own.
 */
#include "kv/state.h"
#include "device/device.h"
#include "kv/page.h"
#include "kv/pool_internal.h"
#include "kv/state_internal.h"

#define STATE_ALIGN 64

/* ---- pages ---- */

static void make_part(struct pi_device *device, size_t size, struct kv_class *out)
{
    *out = (struct kv_class){.type_k = KV_N_TYPE, .type_v = KV_N_TYPE, .device = device};
    out->layout.bytes = out->layout.stride = pi_align(size, STATE_ALIGN);
    out->layout.stored = size;
}

int32_t kv_state_classes_make(const struct kv_geometry *g, struct kv_class *first,
                              struct kv_class more[KV_PART_MOST])
{
    int32_t n = 0;
    for (int32_t i = 0; i < g->devices.n; i++)
        if (g->devices.part[i].state_bytes > 0) {
            make_part(g->devices.part[i].device, g->devices.part[i].state_bytes,
                      n == 0 ? first : &more[n - 1]);
            n++;
        }
    if (n == 0) {
        make_part(kv_geometry_device(g), g->state_bytes, first);
        n = 1;
    }
    first->layout.bytes = (size_t)kv_bytes_of_state(g);
    return n;
}

static int64_t bytes_of(const struct kv_seq *seq)
{
    return kv_pages_bytes(seq->cache->state, 1);
}

static int32_t take(const struct kv_seq *seq)
{
    int32_t page = kv_page_take(seq->cache, seq->cache->state, NULL, 0, 1);
    assert(page >= 0);
    return page;
}

static void give(const struct kv_seq *seq, int32_t page)
{
    if (page >= 0)
        kv_page_drop(seq->cache, seq->cache->state, page);
}

static int32_t share(const struct kv_seq *seq, int32_t page)
{
    if (page >= 0)
        kv_page_ref_add(seq->cache, seq->cache->state, page);
    return page;
}

/* Part i of the states, on one device. */
static const struct kv_class *part_of(const struct kv_cache *cache, int32_t i)
{
    return i == 0 ? cache->state : &cache->more[i - 1];
}

static void copy_page(const struct kv_cache *cache, int32_t to, int32_t from)
{
    for (int32_t i = 0; i <= cache->n_more; i++)
        kv_page_copy(cache, part_of(cache, i), to, from);
}

/* ---- a sequence's ---- */

void kv_state_start(struct kv_seq *seq)
{
    seq->state = (struct kv_state){-1, 0};
    seq->n_kept = 0;
    seq->state_wanted = -1;
}

void kv_state_fork(const struct kv_seq *from, struct kv_seq *seq)
{
    seq->state = (struct kv_state){share(from, from->state.page), from->state.n_token};
}

void kv_state_drop(struct kv_seq *seq)
{
    kv_state_forget_kept(seq);
    give(seq, seq->state.page);
    kv_state_start(seq);
}

int64_t kv_state_lacks(const struct kv_seq *seq)
{
    const struct kv_class *kind = seq->cache->state;
    if (kind == NULL || (seq->state.page >= 0 && kind->n_ref[seq->state.page] == 1))
        return 0;
    return bytes_of(seq);
}

void kv_state_reserve(struct kv_seq *seq)
{
    int32_t shared = seq->state.page;
    if (kv_state_lacks(seq) == 0)
        return;
    seq->state.page = take(seq);
    if (shared >= 0)
        copy_page(seq->cache, seq->state.page, shared);
    for (int32_t i = 0; shared < 0 && i <= seq->cache->n_more; i++) {
        const struct kv_class *part = part_of(seq->cache, i);
        part->device->clear_page(seq->cache, part, seq->state.page);
    }
    give(seq, shared);
}

void kv_state_adopt(struct kv_seq *seq, int32_t page, int32_t n_token)
{
    assert(seq->state.page < 0);
    seq->state = (struct kv_state){share(seq, page), n_token};
}

void kv_state_trim(struct kv_seq *seq)
{
    if (seq->state.page < 0 || seq->state.n_token > 0)
        return;
    give(seq, seq->state.page);
    seq->state.page = -1;
}

/* Where a part's bytes are, in the whole state and in a page. */
static struct pi_at at_of(const struct kv_class *part, int32_t page)
{
    return pi_at_add(part->pool, (size_t)page * part->layout.stride);
}

void kv_seq_read_state(const struct kv_seq *seq, void *out)
{
    uint8_t *to = out;
    for (int32_t i = 0; i <= seq->cache->n_more; i++) {
        const struct kv_class *part = part_of(seq->cache, i);
        size_t size = part->layout.stored;
        pi_download_to(part->device, NULL, at_of(part, seq->state.page), size, to);
        to += size;
    }
}

void kv_seq_write_state(const struct kv_seq *seq, const void *state)
{
    const uint8_t *from = state;
    for (int32_t i = 0; i <= seq->cache->n_more; i++) {
        const struct kv_class *part = part_of(seq->cache, i);
        part->device->upload(NULL, from, part->layout.stored, at_of(part, seq->state.page));
        from += part->layout.stored;
    }
}

bool kv_state_save(const struct kv_seq *seq, uint8_t *out)
{
    if (seq->state.page >= 0)
        kv_seq_read_state(seq, out);
    return seq->state.page >= 0;
}

void kv_state_load(struct kv_seq *seq, const uint8_t *bytes, int32_t n_token)
{
    kv_state_reserve(seq);
    kv_seq_write_state(seq, bytes);
    seq->state.n_token = n_token;
}

struct pi_at kv_seq_state(const struct kv_seq *seq, size_t offset)
{
    int32_t i = 0;
    assert(kv_state_lacks(seq) == 0);
    for (; offset >= part_of(seq->cache, i)->layout.stored; i++)
        offset -= part_of(seq->cache, i)->layout.stored;
    return pi_at_add(at_of(part_of(seq->cache, i), seq->state.page), offset);
}

void kv_seq_note_state(struct kv_seq *seq, int32_t n_token)
{
    if (seq->cache->state != NULL)
        seq->state.n_token = n_token;
}

void kv_seq_want_state(struct kv_seq *seq, int32_t n_token)
{
    seq->state_wanted = n_token;
}

int32_t kv_seq_wanted_state(const struct kv_seq *seq)
{
    return seq->state_wanted;
}

/* ---- kept states ---- */

/*
 * Chooses the kept state to give up. Without state i, a sequence that goes back to between i and i
 * + 1 reads on from i - 1. This is rarer the older the state is. So it chooses the state with the
 * lowest (p[i + 1] - p[i - 1]) / (p - p[i - 1]), where p is the sequence's own position. The
 * remaining states are denser towards the end.
 */
static int32_t find_least(const struct kv_seq *seq)
{
    int32_t least = 0;
    double lowest = 2.0;
    for (int32_t i = 0; i < seq->n_kept; i++) {
        double before = i > 0 ? seq->kept[i - 1].n_token : 0, p = seq->state.n_token;
        double next = i + 1 < seq->n_kept ? seq->kept[i + 1].n_token : p;
        double value = p > before ? (next - before) / (p - before) : 0.0;
        least = value < lowest ? i : least;
        lowest = value < lowest ? value : lowest;
    }
    return least;
}

static void forget(struct kv_seq *seq, int32_t i)
{
    give(seq, seq->kept[i].page);
    seq->n_kept--;
    memmove(&seq->kept[i], &seq->kept[i + 1], (size_t)(seq->n_kept - i) * sizeof(*seq->kept));
}

void kv_state_forget_kept(struct kv_seq *seq)
{
    while (seq->n_kept > 0)
        forget(seq, seq->n_kept - 1);
}

void kv_seq_keep_state(struct kv_seq *seq)
{
    struct kv_cache *cache = seq->cache;
    if (cache->state == NULL || seq->state.page < 0 ||
        (seq->n_kept > 0 && seq->kept[seq->n_kept - 1].n_token >= seq->state.n_token))
        return;
    if (seq->n_kept == KV_STATES_KEPT)
        forget(seq, find_least(seq));
    if (!kv_page_fits_now(cache, cache->state)) /* others' are worth as much */
        return;
    int32_t page = take(seq);
    copy_page(cache, page, seq->state.page);
    seq->kept[seq->n_kept++] = (struct kv_state){page, seq->state.n_token};
}

/* Whether this sequence alone holds a kept state, so that giving it up frees its bytes. */
static bool is_alone(const struct kv_seq *seq, int32_t i)
{
    return seq->cache->state->n_ref[seq->kept[i].page] == 1;
}

int64_t kv_state_kept_bytes(const struct kv_cache *cache)
{
    int64_t n = 0;
    for (const struct kv_seq *seq = cache->first; seq != NULL; seq = seq->next)
        for (int32_t i = 0; i < seq->n_kept; i++)
            n += is_alone(seq, i);
    return n * kv_pages_bytes(cache->state, 1);
}

void kv_state_give_way(struct kv_cache *cache, const struct kv_class *kind)
{
    for (struct kv_seq *seq = cache->first; seq != NULL; seq = seq->next)
        for (int32_t i = 0; i < seq->n_kept && !kv_page_fits_now(cache, kind);)
            if (is_alone(seq, i))
                forget(seq, i);
            else
                i++;
}

/* ---- going back ---- */

int32_t kv_state_find(const struct kv_seq *seq, int32_t n_token)
{
    if (seq->state.n_token == n_token)
        return seq->state.page;
    for (int32_t i = 0; i < seq->n_kept; i++)
        if (seq->kept[i].n_token == n_token)
            return seq->kept[i].page;
    return -1;
}

int32_t kv_seq_state_reach(const struct kv_seq *seq, int32_t n_token)
{
    int32_t most = 0;
    if (seq->cache->state == NULL)
        return n_token;
    for (int32_t i = 0; i < seq->n_kept; i++)
        if (seq->kept[i].n_token <= n_token)
            most = seq->kept[i].n_token;
    return seq->state.n_token <= n_token ? seq->state.n_token : most;
}

void kv_state_truncate(struct kv_seq *seq, int32_t n_token)
{
    if (seq->cache->state == NULL || n_token == seq->state.n_token)
        return;
    int32_t page = share(seq, kv_state_find(seq, n_token));
    assert(page >= 0 || n_token == 0);
    while (seq->n_kept > 0 && seq->kept[seq->n_kept - 1].n_token > n_token)
        forget(seq, seq->n_kept - 1);
    give(seq, seq->state.page);
    seq->state = (struct kv_state){page, n_token};
}

void kv_seq_borrow_state(struct kv_seq *seq, const struct kv_seq *from, int32_t n_token)
{
    int32_t page = seq->cache->state != NULL ? kv_state_find(from, n_token) : -1;
    if (page < 0 || seq->state.n_token == n_token)
        return;
    share(from, page);
    give(seq, seq->state.page);
    seq->state = (struct kv_state){page, n_token};
}

/* ---- the account ---- */

/* Bytes of a page that is met for the first time. */
static int64_t count_page(const struct kv_seq *seq, int32_t page)
{
    uint8_t *mark = &seq->cache->state->n_entry[page];
    int64_t bytes = *mark == 0 ? bytes_of(seq) : 0;
    *mark = 1;
    return bytes;
}

int64_t kv_state_count(const struct kv_seq *seq)
{
    return seq->state.page >= 0 ? count_page(seq, seq->state.page) : 0;
}

void kv_state_uncount(const struct kv_seq *seq)
{
    if (seq->state.page >= 0)
        seq->cache->state->n_entry[seq->state.page] = 0;
}

int64_t kv_state_held_bytes(const struct kv_seq *seq)
{
    return seq->state.page >= 0 ? bytes_of(seq) : 0;
}
