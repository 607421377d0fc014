/*
 * delta_load.c - keys of the families with gated delta nets: the shape of the heads, and the layers
 * that have one instead of attention.
 */
#include <stdio.h>

#include "cpu/vec.h"
#include "model/delta.h"
#include "model/load.h"

#define MAX_HEADS 4096
#define MAX_DIM 1024

const struct pi_tensor_spec pi_spec_delta_experts[PI_SPEC_DELTA_EXPERTS_LEN] = {
    PI_SPEC_VECTOR(moe.norm, "post_attention_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(moe.router, "ffn_gate_inp", PI_DIM_EXPERT, PI_DIM_EMBD),
    PI_SPEC_ALL_EXPERTS,
    PI_SPEC_VECTOR(moe.shared_weight, "ffn_gate_inp_shexp.weight", PI_DIM_EMBD, true),
    PI_SPEC_SHARED_EXPERT,
};

const struct pi_moe_rule pi_delta_moe = {
    .gating = PI_MOE_SOFTMAX,
    .act = PI_MOE_SILU,
    .norm = true,
    .scale = 1,
};

/* ---- the shape ---- */

static pith_status read_shape(struct pith_model *m, pith_error *err)
{
    struct pi_delta_shape *s = &m->hp.delta;
    int32_t inner;
    PI_TRY(pi_key_count(m, "ssm.conv_kernel", 2, PI_CONV_TAPS, true, &s->n_conv, err));
    PI_TRY(pi_key_count(m, "ssm.state_size", 1, MAX_DIM, true, &s->dim, err));
    PI_TRY(pi_key_count(m, "ssm.group_count", 1, MAX_HEADS, true, &s->n_key, err));
    PI_TRY(pi_key_count(m, "ssm.time_step_rank", 1, MAX_HEADS, true, &s->n_value, err));
    PI_TRY(pi_key_count(m, "ssm.inner_size", 1, MAX_HEADS * MAX_DIM, true, &inner, err));
    if (s->n_value % s->n_key != 0)
        return pi_fail(err, PITH_FORMAT,
                       "%s.ssm.group_count: %d key heads do not divide the %d value heads of "
                       "ssm.time_step_rank",
                       m->arch->name, s->n_key, s->n_value);
    if (inner != s->n_value * s->dim)
        return pi_fail(err, PITH_FORMAT,
                       "%s.ssm.inner_size: %d is not ssm.time_step_rank %d times ssm.state_size %d",
                       m->arch->name, inner, s->n_value, s->dim);
    return PITH_OK;
}

/* ---- which layers ---- */

/* The array of all blocks, including the ones after the layers. */
static pith_status check_list(const struct pith_model *m, const struct pi_gguf_kv *kv,
                              pith_error *err)
{
    if (kv->n_item < (uint64_t)m->hp.n_layer)
        return pi_fail(err, PITH_FORMAT, "%s.attention.recurrent_layers: %llu values for %d layers",
                       m->arch->name, (unsigned long long)kv->n_item, m->hp.n_layer);
    if (kv->item_type == PI_GGUF_STRING || kv->item_type == PI_GGUF_F32 ||
        kv->item_type == PI_GGUF_F64)
        return pi_fail(err, PITH_FORMAT,
                       "%s.attention.recurrent_layers: its values are of type %s, not bool or an "
                       "integer",
                       m->arch->name, pi_gguf_type_name(kv->item_type));
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        int64_t value = pi_gguf_item_int(kv, (uint64_t)l);
        if (value != 0 && value != 1)
            return pi_fail(err, PITH_FORMAT, "%s.attention.recurrent_layers: %lld is not 0 or 1",
                           m->arch->name, (long long)value);
    }
    return PITH_OK;
}

static pith_status read_interval(const struct pith_model *m, uint32_t *out, pith_error *err)
{
    char key[128];
    *out = 4;
    snprintf(key, sizeof(key), "%s.full_attention_interval", m->arch->name);
    pith_status status = pi_gguf_u32(&m->gguf, key, out, err);
    if (status != PITH_NOT_FOUND)
        PI_TRY(status);
    return *out > 0 ? PITH_OK : pi_fail(err, PITH_FORMAT, "%s: 0 is no interval", key);
}

static void set_layer(struct pith_model *m, int32_t l, bool recurrent)
{
    struct pi_layer *layer = &m->layer[l];
    layer->delta_layer = recurrent ? m->hp.delta.n_layer++ : -1;
    pi_layer_leave_out(layer, recurrent ? &pi_block_attention : &pi_block_delta);
}

pith_status pi_delta_read(struct pith_model *m, bool tiled, pith_error *err)
{
    char key[128];
    uint32_t interval;
    PI_TRY(read_shape(m, err));
    m->hp.delta.tiled = tiled;
    m->hp.attn_gated = true;
    if (m->arch->moe != NULL && m->hp.moe.n_ff_shared == 0)
        m->hp.moe.n_ff_shared = m->hp.n_ff;
    if (m->hp.dim_k != m->hp.dim_v)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s.attention.value_length: %d, and keys of %d: their sizes must be equal",
                       m->arch->name, m->hp.dim_v, m->hp.dim_k);
    snprintf(key, sizeof(key), "%s.attention.recurrent_layers", m->arch->name);
    const struct pi_gguf_kv *list = pi_gguf_find(&m->gguf, key);
    PI_TRY(read_interval(m, &interval, err));
    if (list != NULL && list->type != PI_GGUF_ARRAY)
        return pi_fail(err, PITH_FORMAT, "%s: it is of type %s, not an array", key,
                       pi_gguf_type_name(list->type));
    if (list != NULL)
        PI_TRY(check_list(m, list, err));
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        set_layer(m, l,
                  list != NULL ? pi_gguf_item_int(list, (uint64_t)l) != 0
                               : ((uint32_t)l + 1) % interval != 0);
    return PITH_OK;
}

/* ---- the rotation ---- */

/* Checks the sections of Qwen's interleaved M-RoPE. Pair i rotates by one of the first three
   positions, which are equal for text, where i < 3 * section[i mod 3]. Otherwise it rotates by the
   fourth, which is 0. i counts modulo the sections' sum. */
pith_status pi_delta_check_sections(const struct pith_model *m, pith_error *err)
{
    char key[128];
    int64_t section[4], sum = 0;
    const struct pi_gguf_kv *kv;
    snprintf(key, sizeof(key), "%s.rope.dimension_sections", m->arch->name);
    kv = pi_gguf_find(&m->gguf, key);
    if (kv == NULL)
        return pi_fail(err, PITH_FORMAT, "%s is missing", key);
    if (kv->type != PI_GGUF_ARRAY || kv->n_item < 3 || kv->n_item > 4 ||
        (kv->item_type != PI_GGUF_I32 && kv->item_type != PI_GGUF_U32))
        return pi_fail(err, PITH_FORMAT, "%s: it is no array of 4 integers", key);
    for (uint64_t i = 0; i < 4; i++) {
        section[i] = i < kv->n_item ? pi_gguf_item_int(kv, i) : 0;
        if (section[i] < 0 || section[i] > m->hp.n_rot)
            return pi_fail(err, PITH_FORMAT, "%s: %lld is not in 0..%d", key, (long long)section[i],
                           m->hp.n_rot);
        sum += section[i];
    }
    for (int64_t i = 0; i < m->hp.n_rot / 2; i++) {
        int64_t j = sum > 0 ? i % sum : 0;
        if (sum == 0 || j >= 3 * section[j % 3])
            return pi_fail(err, PITH_UNSUPPORTED,
                           "%s: [%lld, %lld, %lld, %lld] leave pair %lld of %d to a position that "
                           "text has not",
                           key, (long long)section[0], (long long)section[1], (long long)section[2],
                           (long long)section[3], (long long)i, m->hp.n_rot / 2);
    }
    return PITH_OK;
}
