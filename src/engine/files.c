/*
 * files.c - sequences to files and back. The cache's part of a snapshot is kv/'s; this owns the
 * rest, the bytes that docs/snapshot.md calls the caller's: tokens, and what the keep policy
 * remembers. Invariant: what the policy remembers goes back into an engine with the same policy and
 * options only, where the sequence goes on as if it had never been saved.
 */
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/files.h"

_Static_assert(sizeof(struct pi_saved_head) == 32, "the head is part of the file format");

/* Entries in all lanes. */
static uint64_t count_entries(const struct kv_seq *kv, const struct kv_geometry *g)
{
    uint64_t n = 0;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            n += (uint64_t)kv_lane_len(kv, l, h);
    return n;
}

static size_t aims_bytes(const struct kv_geometry *g)
{
    return (size_t)g->n_layer * (size_t)g->n_head * sizeof(int32_t);
}

/* ---- saving ---- */

/* Whether the tokens alone do not say how the sequence goes on. */
static bool has_memory(const struct pith_seq *seq, const struct kv_geometry *g)
{
    const struct pith_engine *e = seq->engine;
    if (!e->traits.evicts)
        return false;
    bool has = e->traits.remembers || (e->policies.keep.rules.pin_prompt && seq->n_prompt > 0);
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            has = has || kv_lane_aim(seq->memory.kv, l, h) >= 0;
    return has;
}

static void put(uint8_t **to, const void *from, size_t size)
{
    if (size > 0)
        memcpy(*to, from, size);
    *to += size;
}

static void put_lanes(uint8_t **to, const struct pith_seq *seq, const struct kv_geometry *g)
{
    int32_t n_mark = seq->engine->traits.n_mark;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            int32_t aim = kv_lane_aim(seq->memory.kv, l, h);
            put(to, &aim, sizeof(aim));
        }
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            for (int32_t i = 0; i < n_mark; i++) {
                size_t n = (size_t)kv_lane_len(seq->memory.kv, l, h);
                if (n > 0)
                    put(to, kv_lane_marks(seq->memory.kv, l, h, i), n * sizeof(float));
            }
}

/* The caller's bytes of a sequence with memory; *out is a pi_mem block. */
static pith_status write_memory(const struct pith_seq *seq, const struct kv_geometry *g, void **out,
                                size_t *size, pith_error *err)
{
    const struct pith_engine *e = seq->engine;
    size_t n_text = strlen(e->keep_text), n_tokens = (size_t)seq->n_token * sizeof(int32_t);
    const struct pi_saved_head head = {
        .no_token = -1,
        .layout = PI_SAVED_LAYOUT,
        .n_token = (uint32_t)seq->n_token,
        .n_prompt = (uint32_t)seq->n_prompt,
        .text_size = (uint32_t)n_text,
        .n_mark = (uint32_t)e->traits.n_mark,
        .state_size = e->traits.state_size,
    };
    *size = sizeof(head) + n_tokens + aims_bytes(g) +
            (size_t)count_entries(seq->memory.kv, g) * head.n_mark * sizeof(float) +
            (size_t)head.state_size + n_text;
    uint8_t *at = *out = pi_mem_alloc(PI_MEM_OTHER, *size);
    if (at == NULL)
        return pi_fail(err, PITH_NOMEM,
                       "no memory for the %zu bytes that the keep policy remembers", *size);
    put(&at, &head, sizeof(head));
    put(&at, seq->tokens, n_tokens);
    put_lanes(&at, seq, g);
    put(&at, seq->keep_state, (size_t)head.state_size);
    put(&at, e->keep_text, n_text);
    assert(at == (uint8_t *)*out + *size);
    return PITH_OK;
}

pith_status pith_seq_save(const pith_seq *seq, const char *path, pith_error *err)
{
    const struct kv_geometry *g = kv_cache_geometry(seq->engine->kv);
    void *memory = NULL;
    size_t size;
    PI_TRY(engine_traits_check(&seq->engine->traits, PITH_USE_FILE, err));
    if (!has_memory(seq, g))
        return pi_memory_save(&seq->memory, seq->tokens, (size_t)seq->n_token * sizeof(int32_t),
                              path, err);
    PI_TRY(write_memory(seq, g, &memory, &size, err));
    pith_status status = pi_memory_save(&seq->memory, memory, size, path, err);
    pi_mem_free(memory);
    return status;
}

/* ---- loading ---- */

pith_status pi_saved_read(const struct kv_seq *kv, const struct kv_geometry *g, const char *path,
                          const uint8_t *extra, size_t size, struct pi_saved *out, pith_error *err)
{
    struct pi_saved_head *head = &out->head;
    *out = (struct pi_saved){.tokens = (const int32_t *)(const void *)extra};
    if (size >= sizeof(*head))
        memcpy(head, extra, sizeof(*head));
    if (head->no_token != -1) { /* tokens and nothing else */
        if (size % sizeof(int32_t) != 0 || size > INT32_MAX)
            return pi_fail(err, PITH_FORMAT, "%s: %zu bytes are no list of tokens", path, size);
        *head = (struct pi_saved_head){.n_token = (uint32_t)(size / sizeof(int32_t))};
        return PITH_OK;
    }
    if (head->layout != PI_SAVED_LAYOUT)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s: layout %u of what a keep policy remembers; this build reads %d", path,
                       head->layout, PI_SAVED_LAYOUT);
    uint64_t tokens = (uint64_t)head->n_token * sizeof(int32_t), aims = aims_bytes(g);
    uint64_t n_entry = count_entries(kv, g), mark_size = n_entry * sizeof(float);
    bool fits = head->n_token <= INT32_MAX && head->n_prompt <= head->n_token &&
                head->state_size <= size && head->n_mark <= size / (mark_size > 0 ? mark_size : 1);
    uint64_t marks = fits ? head->n_mark * mark_size : 0;
    if (!fits || sizeof(*head) + tokens + aims + marks + head->state_size + head->text_size != size)
        return pi_fail(err, PITH_FORMAT,
                       "%s: %u tokens, %u marks, a state of %llu bytes and options of %u are not "
                       "the %zu bytes that follow the pages",
                       path, head->n_token, head->n_mark, (unsigned long long)head->state_size,
                       head->text_size, size);
    const uint8_t *at = extra + sizeof(*head);
    out->tokens = (const int32_t *)(const void *)at;
    out->aim = (const int32_t *)(const void *)(at + tokens);
    out->mark = (const float *)(const void *)(at + tokens + aims);
    out->state = at + tokens + aims + marks;
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

/* Gives the sequence the policy's state. Sizes must be the policy's own, and a lane may aim at what
   can be overwritten alone. */
static pith_status check_memory(struct pith_seq *seq, const struct kv_geometry *g,
                                const struct pi_saved *m, const char *path, pith_error *err)
{
    const struct pith_engine *e = seq->engine;
    const char *name = e->policies.keep.policy->name;
    if (m->head.state_size != e->traits.state_size || m->head.n_mark != (uint32_t)e->traits.n_mark)
        return pi_fail(err, PITH_FORMAT,
                       "%s: %llu bytes of state and %u marks are not the %zu and %d of %s", path,
                       (unsigned long long)m->head.state_size, m->head.n_mark, e->traits.state_size,
                       e->traits.n_mark, name);
    if (m->head.state_size > 0)
        memcpy(seq->keep_state, m->state, (size_t)m->head.state_size);
    if (!keep_state_sound(e->keep, seq->keep_state))
        return pi_fail(err, PITH_FORMAT, "%s: its %llu bytes are no state of %s", path,
                       (unsigned long long)m->head.state_size, name);
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            int32_t aim = m->aim[l * g->n_head + h], len = kv_lane_len(seq->memory.kv, l, h);
            if (aim < -1 || (aim >= 0 && !kv_lane_can_aim(seq->memory.kv, l, h, aim)))
                return pi_fail(err, PITH_FORMAT,
                               "%s: layer %d, head %d: slot %d of %d cannot be overwritten", path,
                               l, h, aim, len);
        }
    return PITH_OK;
}

/* Gives the sequence the rest of what its policy remembered, which was checked. */
static void restore(struct pith_seq *seq, const struct kv_geometry *g, const struct pi_saved *m)
{
    const float *mark = m->mark;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            size_t n = (size_t)kv_lane_len(seq->memory.kv, l, h);
            int32_t aim = m->aim[l * g->n_head + h];
            for (uint32_t i = 0; i < m->head.n_mark; i++, mark += n)
                if (n > 0)
                    memcpy(kv_lane_marks(seq->memory.kv, l, h, (int32_t)i), mark,
                           n * sizeof(*mark));
            if (aim >= 0)
                kv_seq_aim(seq->memory.kv, l, h, aim);
        }
    seq->n_prompt = (int32_t)m->head.n_prompt;
}

/* Whether the options in a file are those of the engine. Ones that this build does not know are
   others. */
static pith_status find_same(const struct pith_engine *e, const struct pi_saved *m, bool *same,
                             pith_error *err)
{
    struct keep_config file, engine;
    pith_error unknown;
    *same = false;
    if (m->aim == NULL || !e->traits.evicts)
        return PITH_OK;
    char *text = pi_mem_strndup(PI_MEM_OTHER, m->text, m->head.text_size);
    if (text == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the %u bytes of a keep policy's options",
                       m->head.text_size);
    *same = keep_config_parse(text, &file, &unknown) == PITH_OK &&
            keep_config_parse(e->keep_text, &engine, &unknown) == PITH_OK &&
            keep_config_same(&file, &engine);
    pi_mem_free(text);
    return PITH_OK;
}

/* Fills a fresh sequence whose entries are there. */
static pith_status load_rest(struct pith_seq *seq, const char *path, const void *extra, size_t size,
                             pith_error *err)
{
    struct pith_engine *e = seq->engine;
    const struct kv_geometry *g = kv_cache_geometry(e->kv);
    struct pi_saved m;
    bool same;
    PI_TRY(pi_saved_read(seq->memory.kv, g, path, extra, size, &m, err));
    PI_TRY(check_tokens(e, &m, path, err));
    PI_TRY(check_positions(seq->memory.kv, g, (int32_t)m.head.n_token, path, err));
    if (pi_memory_reach(&seq->memory, (int32_t)m.head.n_token) < (int32_t)m.head.n_token)
        return pi_fail(
            err, PITH_FORMAT,
            "%s: a layer with a window lacks entries, or recurrent ones their state, that "
            "tokens behind the %u see",
            path, m.head.n_token);
    PI_TRY(find_same(e, &m, &same, err));
    if (same)
        PI_TRY(check_memory(seq, g, &m, path, err));
    PI_TRY(pi_seq_set_tokens(seq, m.tokens, (int32_t)m.head.n_token, err));
    if (same)
        restore(seq, g, &m);
    else if (m.aim != NULL)
        pi_log(PITH_LOG_INFO, "snapshot=%s keep_memory=left_out keep=%.*s", path,
               (int)pi_min(m.head.text_size, 128), m.text);
    seq->uneven = e->traits.evicts && !keep_lanes_agree(e->keep, seq->memory.kv);
    seq->foreign = m.head.n_token > 0;
    pi_seq_load_share(seq);
    return PITH_OK;
}

pith_status pith_seq_load(pith_engine *e, const char *path, pith_seq **out, pith_error *err)
{
    struct pith_seq *seq = NULL;
    void *extra = NULL;
    size_t size = 0;
    PI_TRY(engine_traits_check(&e->traits, PITH_USE_FILE, err));
    PI_TRY(pi_seq_alloc(e, &seq, err));
    pith_status status = pi_memory_load(&seq->memory, e->kv, path, &extra, &size, err);
    if (status == PITH_OK)
        status = load_rest(seq, path, extra, size, err);
    if (status == PITH_OK)
        keep_expect(&e->policies.keep, &e->lanes, 0.0, seq->memory.kv);
    pi_mem_free(extra);
    if (status != PITH_OK) {
        pith_seq_free(seq);
        return status;
    }
    *out = seq;
    return PITH_OK;
}
