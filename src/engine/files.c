/*
 * files.c - sequences to files and back. The cache's part of a snapshot is kv/'s. This owns the
 * rest, which docs/snapshot.md calls the caller's bytes: tokens, and the memory of a policy (hooks
 * save and load).
 */
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/files.h"
#include "engine/over_ranks.h"

_Static_assert(sizeof(struct pi_saved_head) == 40, "the head is part of the file format");

#define HEAD_BEFORE offsetof(struct pi_saved_head, fingerprint) /* bytes of layout 1's head */

uint64_t pi_saved_entries(const struct kv_seq *kv, const struct kv_geometry *g)
{
    uint64_t n = 0;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            n += (uint64_t)kv_lane_len(kv, l, h);
    return n;
}

size_t pi_saved_victims_bytes(const struct kv_geometry *g)
{
    return (size_t)g->n_layer * (size_t)g->n_head * sizeof(int32_t);
}

/* ---- saving ---- */

/* The bytes where no policy remembers anything. */
static pith_status save_tokens(const struct pith_seq *seq, void **out, size_t *size,
                               pith_error *err)
{
    size_t n_tokens = (size_t)seq->n_token * sizeof(int32_t);
    const struct pi_saved_head head = {
        .no_token = -1,
        .layout = PI_SAVED_LAYOUT,
        .n_token = (uint32_t)seq->n_token,
        .fingerprint = pi_model_fingerprint(seq->engine->model),
    };
    *size = sizeof(head) + n_tokens;
    *out = pi_mem_alloc(PI_MEM_OTHER, *size);
    if (*out == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a file's %d tokens", seq->n_token);
    memcpy(*out, &head, sizeof(head));
    if (n_tokens > 0)
        memcpy((uint8_t *)*out + sizeof(head), seq->tokens, n_tokens);
    return PITH_OK;
}

pith_status pi_seq_save(const struct pith_seq *seq, const char *path, pith_error *err)
{
    void *bytes = NULL;
    size_t size = 0;
    PI_TRY(engine_traits_check(&seq->engine->traits, PITH_USE_FILE, err));
    PI_TRY(pi_over_ranks_check_file(err));
    PI_TRY(pi_verbs_save(seq, &bytes, &size, err));
    if (bytes == NULL)
        PI_TRY(save_tokens(seq, &bytes, &size, err));
    pith_status status = pi_memory_save(&seq->memory, bytes, size, path, err);
    pi_mem_free(bytes);
    return status;
}

/* ---- loading ---- */

pith_status pi_saved_read(const struct kv_seq *kv, const struct kv_geometry *g, const char *path,
                          const uint8_t *extra, size_t size, struct pi_saved *out, pith_error *err)
{
    struct pi_saved_head *head = &out->head;
    *out = (struct pi_saved){.tokens = (const int32_t *)(const void *)extra};
    if (size >= HEAD_BEFORE)
        memcpy(head, extra, HEAD_BEFORE);
    if (head->no_token != -1) { /* tokens and nothing else */
        if (size % sizeof(int32_t) != 0 || size > INT32_MAX)
            return pi_fail(err, PITH_FORMAT, "%s: %zu bytes are no list of tokens", path, size);
        *head = (struct pi_saved_head){.n_token = (uint32_t)(size / sizeof(int32_t))};
        return PITH_OK;
    }
    if (head->layout < 1 || head->layout > PI_SAVED_LAYOUT)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s: layout %u of a keep policy's state; this build reads 1 to %d", path,
                       head->layout, PI_SAVED_LAYOUT);
    size_t head_size = head->layout == 1 ? HEAD_BEFORE : sizeof(*head);
    if (size >= head_size)
        memcpy(head, extra, head_size);
    bool alone =
        head->layout > 1 && head->text_size == 0 && head->n_mark == 0 && head->state_size == 0;
    uint64_t tokens = (uint64_t)head->n_token * sizeof(int32_t),
             victims = alone ? 0 : pi_saved_victims_bytes(g);
    uint64_t n_entry = pi_saved_entries(kv, g), mark_size = n_entry * sizeof(float);
    bool fits = head->n_token <= INT32_MAX && head->n_prompt <= head->n_token &&
                head->state_size <= size && head->n_mark <= size / (mark_size > 0 ? mark_size : 1);
    uint64_t marks = fits ? head->n_mark * mark_size : 0;
    if (!fits || head_size + tokens + victims + marks + head->state_size + head->text_size != size)
        return pi_fail(err, PITH_FORMAT,
                       "%s: %u tokens, %u marks, a state of %llu bytes and options of %u are not "
                       "the %zu bytes that follow the pages",
                       path, head->n_token, head->n_mark, (unsigned long long)head->state_size,
                       head->text_size, size);
    const uint8_t *at = extra + head_size;
    out->tokens = (const int32_t *)(const void *)at;
    if (alone)
        return PITH_OK;
    out->victim = (const int32_t *)(const void *)(at + tokens);
    out->mark = (const float *)(const void *)(at + tokens + victims);
    out->state = at + tokens + victims + marks;
    out->text = (const char *)out->state + head->state_size;
    return PITH_OK;
}

/* No entry may stand where the next token goes, or beyond. */
static pith_status check_positions(const struct kv_seq *kv, const struct kv_geometry *g, int32_t n,
                                   const char *path, pith_error *err)
{
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            if (kv_lane_last(kv, l, h) >= n)
                return pi_fail(err, PITH_FORMAT,
                               "%s: layer %d, head %d: an entry at position %d of %d tokens", path,
                               l, h, kv_lane_last(kv, l, h), n);
    return PITH_OK;
}

static pith_status check_tokens(const struct pith_engine *e, const struct pi_saved *m,
                                const char *path, pith_error *err)
{
    for (uint32_t i = 0; i < m->head.n_token; i++)
        if (m->tokens[i] < 0 || m->tokens[i] >= e->model->hp.n_vocab)
            return pi_fail(err, PITH_FORMAT, "%s: token %u is %d, not below %d", path, i,
                           m->tokens[i], e->model->hp.n_vocab);
    return PITH_OK;
}

/* Weights of the same shape may be another model's, whose entries say nothing to this one. */
static void compare_models(const struct pith_engine *e, const struct pi_saved *m, const char *path)
{
    uint64_t file = m->head.fingerprint, own = pi_model_fingerprint(e->model);
    if (file != 0 && file != own)
        pi_log(PITH_LOG_WARN,
               "snapshot=%s is of another model of this shape: fingerprint=%016llx own=%016llx",
               path, (unsigned long long)file, (unsigned long long)own);
}

/* Fills a fresh sequence whose entries are there. */
static pith_status load_rest(struct pith_seq *seq, const char *path, const void *extra, size_t size,
                             pith_error *err)
{
    struct pith_engine *e = seq->engine;
    const struct kv_geometry *g = kv_cache_geometry(e->kv);
    struct pi_saved m;
    PI_TRY(pi_saved_read(seq->memory.kv, g, path, extra, size, &m, err));
    PI_TRY(check_tokens(e, &m, path, err));
    compare_models(e, &m, path);
    PI_TRY(check_positions(seq->memory.kv, g, (int32_t)m.head.n_token, path, err));
    if (pi_memory_reach(&seq->memory, (int32_t)m.head.n_token) < (int32_t)m.head.n_token)
        return pi_fail(
            err, PITH_FORMAT,
            "%s: a layer with a window lacks entries, or recurrent ones their state, that "
            "tokens behind the %u see",
            path, m.head.n_token);
    PI_TRY(pi_seq_set_tokens(seq, m.tokens, (int32_t)m.head.n_token, err));
    seq->is_loaded = m.head.n_token > 0;
    PI_TRY(pi_verbs_load(seq, &m, path, err));
    if (m.victim != NULL && !m.taken)
        pi_log(PITH_LOG_INFO, "snapshot=%s keep_memory=left_out keep=%.*s", path,
               (int)pi_min(m.head.text_size, 128), m.text);
    return PITH_OK;
}

pith_status pi_seq_load(struct pith_engine *e, const char *path, struct pith_seq **out,
                        pith_error *err)
{
    struct pith_seq *seq = NULL;
    void *extra = NULL;
    size_t size = 0;
    PI_TRY(engine_traits_check(&e->traits, PITH_USE_FILE, err));
    PI_TRY(pi_over_ranks_check_file(err));
    PI_TRY(pi_seq_alloc(e, &seq, err));
    pith_status status = pi_memory_load(&seq->memory, e->kv, path, &extra, &size, err);
    if (status == PITH_OK)
        status = load_rest(seq, path, extra, size, err);
    if (status == PITH_OK)
        pi_verbs_attach(seq);
    pi_mem_free(extra);
    if (status != PITH_OK) {
        pith_seq_free(seq);
        return status;
    }
    *out = seq;
    return PITH_OK;
}
