/*
 * saved.c - a policy's state of a sequence: its memory on the host, and on the lanes' device where
 * that learns. It checks whether the options in a file are the engine's, and whether bytes can be a
 * state. It knows no files.
 */
#include "base/mem.h"
#include "policy/keep/rules/rounds.h"

bool keep_config_same(const struct keep_config *a, const struct keep_config *b)
{
    return a->policy == b->policy &&
           (a->policy == NULL || (policy_fields_same(keep_rule_params, &a->rules, &b->rules) &&
                                  policy_fields_same(a->policy->params, &a->params, &b->params)));
}

bool keep_state_sound(const struct keep *k, const void *state)
{
    const struct keep_policy *p = k->config.policy;
    return p->sound == NULL || k->state_size == 0 ||
           p->sound(&k->config.params, &k->model, k->data, state);
}

/* ---- blocks ---- */

/* Whether all lanes are on the device that rounds ask. */
static bool is_whole(const struct keep *k)
{
    bool whole = true;
    for (int32_t l = 0; whole && l < k->model.g.n_layer; l++)
        whole = kv_layer_device(&k->model.g, l) == k->stream->device;
    return whole;
}

bool keep_remembers(const struct keep *k)
{
    return k->config.policy->learn != NULL && k->state_size > 0;
}

bool keep_learns(const struct keep *k)
{
    return keep_remembers(k) && k->stream->device->learn != NULL && is_whole(k);
}

bool keep_predicts(const struct keep *k)
{
    return k->config.policy->predict != NULL && k->stream->device->predict != NULL && is_whole(k);
}

pith_status keep_block_make(const struct keep *k, struct keep_block *out, pith_error *err)
{
    struct pi_device *d = k->stream->device;
    *out = (struct keep_block){0};
    if (k->state_size == 0)
        return PITH_OK;
    out->state = pi_mem_alloc(PI_MEM_TABLE, k->state_size);
    if (out->state != NULL && keep_learns(k))
        out->there = d->alloc(d, PI_MEM_TABLE, k->state_size);
    if (out->state != NULL && (pi_at_some(out->there) || !keep_learns(k)))
        return PITH_OK;
    keep_block_free(k, out);
    return pi_fail(err, PITH_NOMEM, "no memory for a keep policy's state");
}

void keep_block_free(const struct keep *k, struct keep_block *block)
{
    if (pi_at_some(block->there))
        k->stream->device->free(k->stream->device, block->there);
    pi_mem_free(block->state);
    *block = (struct keep_block){0};
}

void keep_block_copy(const struct keep *k, const struct keep_block *from,
                     const struct keep_block *to)
{
    if (from->state == NULL)
        return;
    if (pi_at_some(from->there)) {
        memcpy(to->state, from->state, keep_head(k));
        k->stream->device->clone(k->stream->device, to->there, from->there, k->state_size);
    } else {
        memcpy(to->state, from->state, k->state_size);
    }
}

void keep_block_pull(const struct keep *k, const struct keep_block *block)
{
    if (!pi_at_some(block->there))
        return;
    size_t head = keep_head(k);
    k->stream->device->download(NULL, pi_at_add(block->there, head), k->state_size - head,
                                (uint8_t *)block->state + head);
}

void keep_block_push(const struct keep *k, const struct keep_block *block)
{
    if (pi_at_some(block->there))
        k->stream->device->upload(NULL, block->state, k->state_size, block->there);
}
