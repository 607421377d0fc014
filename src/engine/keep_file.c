/*
 * keep_file.c - what the keep policy remembers of a sequence, in a snapshot (docs/snapshot.md): the
 * bytes beside the tokens. Invariant: they go back into an engine with the same policy and options
 * only. There the sequence goes on as if it had never been saved.
 */
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/files.h"

/* ---- saving ---- */

/* Whether the tokens alone do not say how the sequence goes on. */
static bool has_memory(const struct pith_seq *seq, const struct kv_geometry *g)
{
    const struct pith_engine *e = seq->engine;
    bool has = e->traits.remembers || (e->policies.keep.rules.pin_prompt && seq->n_prompt > 0);
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            has = has || kv_lane_victim(seq->memory.kv, l, h) >= 0;
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
            int32_t victim = kv_lane_victim(seq->memory.kv, l, h);
            put(to, &victim, sizeof(victim));
        }
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            for (int32_t i = 0; i < n_mark; i++) {
                size_t n = (size_t)kv_lane_len(seq->memory.kv, l, h);
                if (n > 0)
                    put(to, kv_lane_read_marks(seq->memory.kv, l, h, i), n * sizeof(float));
            }
}

pith_status pi_keep_save(const struct pith_seq *seq, void **out, size_t *size, pith_error *err)
{
    const struct kv_geometry *g = kv_cache_geometry(seq->engine->kv);
    if (!has_memory(seq, g))
        return PITH_OK;
    const struct pith_engine *e = seq->engine;
    size_t n_text = strlen(e->keep.text), n_tokens = (size_t)seq->n_token * sizeof(int32_t);
    const struct pi_saved_head head = {
        .no_token = -1,
        .layout = PI_SAVED_LAYOUT,
        .n_token = (uint32_t)seq->n_token,
        .n_prompt = (uint32_t)seq->n_prompt,
        .text_size = (uint32_t)n_text,
        .n_mark = (uint32_t)e->traits.n_mark,
        .state_size = e->traits.state_size,
        .fingerprint = pi_model_fingerprint(e->model),
    };
    *size = sizeof(head) + n_tokens + pi_saved_victims_bytes(g) +
            (size_t)pi_saved_entries(seq->memory.kv, g) * head.n_mark * sizeof(float) +
            (size_t)head.state_size + n_text;
    uint8_t *at = *out = pi_mem_alloc(PI_MEM_OTHER, *size);
    if (at == NULL)
        return pi_fail(err, PITH_NOMEM,
                       "no memory for the %zu bytes that the keep policy remembers", *size);
    put(&at, &head, sizeof(head));
    put(&at, seq->tokens, n_tokens);
    put_lanes(&at, seq, g);
    put(&at, pi_seq_keep_state(seq), (size_t)head.state_size);
    put(&at, e->keep.text, n_text);
    assert(at == (uint8_t *)*out + *size);
    return PITH_OK;
}

/* ---- loading ---- */

/* Gives the sequence the policy's state. Sizes must be the policy's own, and a lane's victim must
   be an entry that can be overwritten. */
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
        memcpy(seq->keep.block.state, m->state, (size_t)m->head.state_size);
    keep_block_push(e->keep.handle, &seq->keep.block);
    if (!keep_state_sound(e->keep.handle, seq->keep.block.state))
        return pi_fail(err, PITH_FORMAT, "%s: its %llu bytes are no state of %s", path,
                       (unsigned long long)m->head.state_size, name);
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            int32_t victim = m->victim[l * g->n_head + h], len = kv_lane_len(seq->memory.kv, l, h);
            if (victim < -1 ||
                (victim >= 0 && !kv_lane_can_overwrite(seq->memory.kv, l, h, victim)))
                return pi_fail(err, PITH_FORMAT,
                               "%s: layer %d, head %d: slot %d of %d cannot be overwritten", path,
                               l, h, victim, len);
        }
    return PITH_OK;
}

/* Gives the sequence the rest of its policy's memory, which was checked. */
static void restore(struct pith_seq *seq, const struct kv_geometry *g, const struct pi_saved *m)
{
    const float *mark = m->mark;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            size_t n = (size_t)kv_lane_len(seq->memory.kv, l, h);
            int32_t victim = m->victim[l * g->n_head + h];
            for (uint32_t i = 0; i < m->head.n_mark; i++, mark += n)
                if (n > 0)
                    memcpy(kv_lane_marks(seq->memory.kv, l, h, (int32_t)i), mark,
                           n * sizeof(*mark));
            if (victim >= 0)
                kv_seq_set_victim(seq->memory.kv, l, h, victim);
        }
    seq->n_prompt = (int32_t)m->head.n_prompt;
}

/* Whether the options in a file are the engine's. Ones that this build does not know are others. */
static pith_status find_same(const struct pith_engine *e, const struct pi_saved *m, bool *same,
                             pith_error *err)
{
    struct keep_config file, engine;
    pith_error unknown;
    *same = false;
    if (m->victim == NULL)
        return PITH_OK;
    char *text = pi_mem_strndup(PI_MEM_OTHER, m->text, m->head.text_size);
    if (text == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the %u bytes of a keep policy's options",
                       m->head.text_size);
    *same = keep_config_parse(text, &file, &unknown) == PITH_OK &&
            keep_config_parse(e->keep.text, &engine, &unknown) == PITH_OK &&
            keep_config_same(&file, &engine);
    pi_mem_free(text);
    return PITH_OK;
}

pith_status pi_keep_load(struct pith_seq *seq, struct pi_saved *m, const char *path,
                         pith_error *err)
{
    struct pith_engine *e = seq->engine;
    const struct kv_geometry *g = kv_cache_geometry(e->kv);
    bool same;
    PI_TRY(find_same(e, m, &same, err));
    if (same) {
        PI_TRY(check_memory(seq, g, m, path, err));
        restore(seq, g, m);
        m->taken = true;
    }
    seq->keep.may_disagree = !keep_lanes_agree(e->keep.handle, seq->memory.kv);
    return PITH_OK;
}
