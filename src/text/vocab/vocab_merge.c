/*
 * vocab_merge.c - one word to ids: the cache of words met before, and the merging of neighbours,
 * best pair first. A heap keeps a word of n symbols at n log n steps however long it is. It does
 * not know what makes a pair better than another: vocab_bpe.c and vocab_spm.c do.
 *
 * Invariant: symbols that are alive form a list in text order. A heap entry is out of date when one
 * of its symbols was merged away or has grown, which its length tells.
 */
#include "base/mem.h"
#include "text/vocab/vocab_internal.h"

/* ---- heap ---- */

static void sift_down(struct pi_bigram *heap, size_t n, size_t i)
{
    struct pi_bigram moving = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1].order < heap[child].order)
            child++;
        if (heap[child].order >= moving.order)
            break;
        heap[i] = heap[child];
    }
    heap[i] = moving;
}

static void sift_up(struct pi_bigram *heap, size_t i)
{
    struct pi_bigram moving = heap[i];
    for (size_t parent; i > 0 && heap[parent = (i - 1) / 2].order > moving.order; i = parent)
        heap[i] = heap[parent];
    heap[i] = moving;
}

/* ---- merging ---- */

/* Whether symbols left and right may merge; fills *out when they do. */
static bool join(const struct pi_session *s, const char *word, int32_t left, int32_t right,
                 struct pi_bigram *out)
{
    if (left < 0 || right < 0)
        return false;
    const struct pi_symbol *l = &s->symbol[left], *r = &s->symbol[right];
    const struct pi_vocab *v = s->vocab;
    uint32_t priority;
    const char *text = word + l->start;
    uint32_t len = l->len + r->len;
    bool joins = v->type == PI_VOCAB_SPM ? pi_spm_pair(v, text, len, &priority, &out->id)
                 : v->merge != NULL      ? pi_bpe_pair(v, l->id, r->id, &priority, &out->id)
                                         : pi_rank_pair(v, text, len, &priority, &out->id);
    if (!joins)
        return false;
    out->order = (uint64_t)priority << 32 | (uint32_t)left;
    out->right = (uint32_t)right;
    out->len = len;
    return true;
}

static void merge(struct pi_session *s, const char *word, size_t n_symbol)
{
    struct pi_symbol *symbol = s->symbol;
    struct pi_bigram *heap = s->heap;
    size_t n = 0;
    for (size_t i = 1; i < n_symbol; i++)
        n += join(s, word, (int32_t)i - 1, (int32_t)i, &heap[n]);
    for (size_t i = n / 2; i-- > 0;)
        sift_down(heap, n, i);
    while (n > 0) {
        struct pi_bigram best = heap[0];
        heap[0] = heap[--n];
        if (n > 1)
            sift_down(heap, n, 0);
        int32_t left = (int32_t)(uint32_t)best.order;
        struct pi_symbol *l = &symbol[left], *r = &symbol[best.right];
        if (l->len == 0 || r->len == 0 || l->len + r->len != best.len)
            continue;
        l->len = best.len;
        l->id = best.id;
        l->next = r->next;
        r->len = 0;
        if (r->next >= 0)
            symbol[r->next].prev = left;
        if (join(s, word, l->prev, left, &heap[n]))
            sift_up(heap, n++);
        if (join(s, word, left, l->next, &heap[n]))
            sift_up(heap, n++);
    }
}

/* Each merge takes one entry off the heap and puts at most two on, and there are fewer merges than
   symbols. So 2 * n_symbol entries always suffice. */
static pith_status reserve(struct pi_session *s, size_t n_symbol, pith_error *err)
{
    if (n_symbol <= s->symbol_cap)
        return PITH_OK;
    size_t cap = n_symbol < 256 ? 256 : n_symbol + n_symbol / 2;
    pi_mem_free(s->symbol);
    pi_mem_free(s->heap);
    s->symbol_cap = 0;
    s->symbol = pi_mem_alloc_n(PI_MEM_OTHER, cap, sizeof(*s->symbol));
    s->heap = pi_mem_alloc_n(PI_MEM_OTHER, 2 * cap, sizeof(*s->heap));
    if (s->symbol == NULL || s->heap == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory to tokenize a word of %zu bytes", n_symbol);
    s->symbol_cap = cap;
    return PITH_OK;
}

/* Gives out the tokens of n bytes; false: one of them has none. */
static bool emit_bytes(struct pi_session *s, const char *bytes, uint32_t n)
{
    const int32_t *id = s->vocab->byte_id;
    for (uint32_t k = 0; k < n; k++)
        if (id[(uint8_t)bytes[k]] < 0)
            return false;
    for (uint32_t k = 0; k < n; k++)
        pi_session_emit(s, id[(uint8_t)bytes[k]]);
    return true;
}

/* A symbol that is no token is given out byte by byte. Where bytes have no tokens it is unknown,
   and a run of such is one unknown token, as SentencePiece has it. */
static void emit_symbols(struct pi_session *s, const char *word)
{
    bool unknown = false;
    for (int32_t i = 0; i >= 0; i = s->symbol[i].next) {
        const struct pi_symbol *symbol = &s->symbol[i];
        if (symbol->id >= 0)
            pi_session_emit(s, symbol->id);
        bool known = symbol->id >= 0 || emit_bytes(s, word + symbol->start, symbol->len);
        if (!known && !unknown && s->vocab->unk >= 0)
            pi_session_emit(s, s->vocab->unk);
        unknown = !known;
    }
}

/* ---- words ---- */

#define CACHE_LEN 2048 /* words; a power of two. 128 KiB stay in a core's second-level cache. */
#define CACHE_TEXT_MIN 2048 /* shorter texts do not repeat themselves enough to pay for it */

pith_status pi_session_begin(struct pi_session *s, const struct pi_vocab *v, size_t text_len,
                             pith_error *err)
{
    s->vocab = v;
    if (text_len >= CACHE_TEXT_MIN) {
        s->cache = pi_mem_alloc_n(PI_MEM_OTHER, CACHE_LEN, sizeof(*s->cache));
        if (s->cache == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for a cache of words");
    }
    return v->pre != NULL ? pi_pre_begin(v->pre, &s->pre, err) : PITH_OK;
}

void pi_session_end(struct pi_session *s)
{
    pi_pre_end(&s->pre);
    pi_mem_free(s->symbol);
    pi_mem_free(s->heap);
    pi_mem_free(s->cache);
    pi_mem_free(s->buffer);
    pi_nfc_free(&s->nfc);
}

pith_status pi_session_buffer(struct pi_session *s, size_t len, pith_error *err)
{
    if (len <= s->buffer_cap)
        return PITH_OK;
    pi_mem_free(s->buffer);
    s->buffer_cap = 0;
    s->buffer = pi_mem_alloc(PI_MEM_OTHER, len);
    if (s->buffer == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory to tokenize %zu bytes", len);
    s->buffer_cap = len;
    return PITH_OK;
}

static pith_status merge_word(struct pi_session *s, const char *word, size_t len, pith_error *err)
{
    if (s->vocab->lacks_bytes)
        PI_TRY(pi_bpe_known(s, &word, &len, err));
    if (len == 0)
        return PITH_OK;
    PI_TRY(reserve(s, len, err));
    size_t n_symbol = s->vocab->type == PI_VOCAB_BPE ? pi_bpe_symbols(s, word, len)
                                                     : pi_spm_symbols(s, word, len);
    merge(s, word, n_symbol);
    emit_symbols(s, word);
    return PITH_OK;
}

pith_status pi_session_word(void *session, const char *word, size_t len, pith_error *err)
{
    struct pi_session *s = session;
    if (len == 0)
        return PITH_OK;
    struct pi_cached_word *entry = NULL;
    if (s->cache != NULL && len <= PI_CACHED_LEN) {
        entry = &s->cache[pi_hash(word, len) & (CACHE_LEN - 1)];
        if (entry->len == len && memcmp(entry->text, word, len) == 0) {
            for (uint8_t i = 0; i < entry->n_id; i++)
                pi_session_emit(s, entry->id[i]);
            return PITH_OK;
        }
    }
    int64_t first = s->n_out;
    int32_t whole = s->vocab->ignore_merges ? pi_vocab_find(s->vocab, word, len) : -1;
    if (whole >= 0)
        pi_session_emit(s, whole);
    else
        PI_TRY(merge_word(s, word, len, err));
    int64_t n_id = s->n_out - first;
    if (entry != NULL && n_id <= PI_CACHED_IDS && s->n_out <= s->cap) {
        memcpy(entry->text, word, len);
        memcpy(entry->id, s->out + first, (size_t)n_id * sizeof(*entry->id));
        entry->len = (uint8_t)len;
        entry->n_id = (uint8_t)n_id;
    }
    return PITH_OK;
}
