/*
 * store.c - how entries are stored, as far as an engine decides it: whether keys are stored less
 * the mean of a lane's keys. It says once that a storage type is too small for the model. The
 * storage types themselves are kv/'s.
 */
#include "engine/engine.h"

static pith_status open_store(struct pith_engine *e, const pith_engine_params *params,
                              const struct policy_model *model, pith_error *err)
{
    (void)params;
    (void)model;
    return e->traits.centred ? pi_pass_centre(e->pass, err) : PITH_OK;
}

/* Says once that a storage type is too small for the model. The logits are there by then, so that
   a device need not wait for this alone. */
static void say_clipped(const pith_batch_item *item, const struct pi_item_state *state)
{
    struct pith_engine *e = item->seq->engine;
    int32_t layer;
    bool value;
    (void)state;
    if (e->told_clipped)
        return;
    pi_pass_wait(e->pass);
    if (!kv_cache_clipped(e->kv, &layer, &value))
        return;
    e->told_clipped = true;
    const struct kv_geometry *g = kv_cache_geometry(e->kv);
    enum kv_type type = value ? kv_layer_type_v(g, layer) : kv_layer_type_k(g, layer);
    pi_log(PITH_LOG_WARN,
           "kv: layer %d: a %s is no number or more than %s holds; the nearest number is stored "
           "instead; bf16 and f32 hold more",
           layer, value ? "value" : "key", kv_type_name(type));
}

const struct seq_hooks pi_store_hooks = {
    .name = "store",
    .open = open_store,
    .after = say_clipped,
};
