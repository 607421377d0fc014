/*
 * load_find.c - finds a tensor of the model in the file. It owns the lengths of shapes, and tensors
 * that are rows of a larger one. It packs nothing and checks no types.
 */
#include <stdio.h>

#include "model/load.h"
#include "tensor/dtype_table.h"

int64_t pi_dim_len(const struct pi_hparams *hp, enum pi_dim dim)
{
    const struct pi_delta_shape *delta = &hp->delta;
    const struct pi_latent_shape *latent = &hp->latent;
    switch (dim) {
    case PI_DIM_NONE:
        return 1;
    case PI_DIM_EMBD:
        return hp->n_embd;
    case PI_DIM_FF:
        return hp->n_ff;
    case PI_DIM_Q:
        return (int64_t)hp->n_head * hp->dim_k * (hp->attn_gated ? 2 : 1);
    case PI_DIM_K:
        return (int64_t)hp->n_head_kv * hp->dim_k;
    case PI_DIM_V:
        return (int64_t)hp->n_head_kv * hp->dim_v;
    case PI_DIM_O:
        return (int64_t)hp->n_head * hp->dim_v;
    case PI_DIM_HEAD_K:
        return hp->dim_k;
    case PI_DIM_MIX:
        return (int64_t)delta->dim * (2 * delta->n_key + delta->n_value);
    case PI_DIM_CONV:
        return delta->n_conv;
    case PI_DIM_VALUES:
        return (int64_t)delta->dim * delta->n_value;
    case PI_DIM_VALUE_HEADS:
        return delta->n_value;
    case PI_DIM_DELTA:
        return delta->dim;
    case PI_DIM_MIX_VALUES:
        return (int64_t)delta->dim * 2 * (delta->n_key + delta->n_value);
    case PI_DIM_2_VALUE_HEADS:
        return 2 * (int64_t)delta->n_value;
    case PI_DIM_HEADS:
        return hp->n_head;
    case PI_DIM_EXPERT:
        return hp->moe.n_expert;
    case PI_DIM_FF_EXPERT:
        return hp->moe.n_ff;
    case PI_DIM_FF_SHARED:
        return hp->moe.n_ff_shared;
    case PI_DIM_LATENT:
        return (int64_t)latent->n_rank + hp->n_rot;
    case PI_DIM_RANK:
        return latent->n_rank;
    case PI_DIM_LOW:
        return latent->n_query;
    case PI_DIM_QUERIES:
        return (int64_t)hp->n_head * (latent->dim_key + hp->n_rot);
    case PI_DIM_QUERIES_ONCE:
        return latent->n_query > 0 ? 0 : (int64_t)hp->n_head * (latent->dim_key + hp->n_rot);
    case PI_DIM_HEAD_KEY:
        return latent->dim_key;
    case PI_DIM_HEAD_OUT:
        return latent->dim_out;
    case PI_DIM_OUTS:
        return (int64_t)hp->n_head * latent->dim_out;
    }
    return 0;
}

/* Tensors that may be rows of a larger one, and the tensors above each there. */
static const struct fused {
    const char *name, *whole;
    enum pi_dim above[2], below[2];
    bool stacked; /* the whole tensor has all these rows of one slab, then the rows of the next */
    bool turned;  /* and there a tensor's rows are columns */
} fused_rows[] = {
    {"attn_q.weight",
     "attn_qkv.weight",
     {PI_DIM_NONE, PI_DIM_NONE},
     {PI_DIM_K, PI_DIM_V},
     false,
     false},
    {"attn_k.weight",
     "attn_qkv.weight",
     {PI_DIM_Q, PI_DIM_NONE},
     {PI_DIM_V, PI_DIM_NONE},
     false,
     false},
    {"attn_v.weight",
     "attn_qkv.weight",
     {PI_DIM_Q, PI_DIM_K},
     {PI_DIM_NONE, PI_DIM_NONE},
     false,
     false},
    {"attn_q.bias",
     "attn_qkv.bias",
     {PI_DIM_NONE, PI_DIM_NONE},
     {PI_DIM_K, PI_DIM_V},
     false,
     false},
    {"attn_k.bias",
     "attn_qkv.bias",
     {PI_DIM_Q, PI_DIM_NONE},
     {PI_DIM_V, PI_DIM_NONE},
     false,
     false},
    {"attn_v.bias",
     "attn_qkv.bias",
     {PI_DIM_Q, PI_DIM_K},
     {PI_DIM_NONE, PI_DIM_NONE},
     false,
     false},
    {"ffn_gate.weight",
     "ffn_up.weight",
     {PI_DIM_NONE, PI_DIM_NONE},
     {PI_DIM_FF, PI_DIM_NONE},
     false,
     false},
    {"ffn_up.weight",
     "ffn_up.weight",
     {PI_DIM_FF, PI_DIM_NONE},
     {PI_DIM_NONE, PI_DIM_NONE},
     false,
     false},
    {"ffn_gate_exps.weight",
     "ffn_gate_up_exps.weight",
     {PI_DIM_NONE, PI_DIM_NONE},
     {PI_DIM_FF_EXPERT, PI_DIM_NONE},
     false,
     false},
    {"ffn_up_exps.weight",
     "ffn_gate_up_exps.weight",
     {PI_DIM_FF_EXPERT, PI_DIM_NONE},
     {PI_DIM_NONE, PI_DIM_NONE},
     false,
     false},
    {"attn_k_b.weight",
     "attn_kv_b.weight",
     {PI_DIM_NONE, PI_DIM_NONE},
     {PI_DIM_HEAD_OUT, PI_DIM_NONE},
     true,
     true},
    {"attn_v_b.weight",
     "attn_kv_b.weight",
     {PI_DIM_HEAD_KEY, PI_DIM_NONE},
     {PI_DIM_NONE, PI_DIM_NONE},
     true,
     false},
};

static int64_t rows_of(const struct pi_hparams *hp, const enum pi_dim dims[2])
{
    int64_t n = 0;
    for (int i = 0; i < 2; i++)
        n += dims[i] != PI_DIM_NONE ? pi_dim_len(hp, dims[i]) : 0;
    return n;
}

/* The entry of a whole tensor that may hold this one; NULL: none. */
static const struct fused *find_fused(const char *name)
{
    for (size_t i = 0; i < PI_LEN(fused_rows); i++)
        if (strcmp(fused_rows[i].name, name) == 0)
            return &fused_rows[i];
    return NULL;
}

/* The rows of a tensor in a whole one, of all of which `above` stand before it. */
static void take_rows(struct pi_source *out, int axis, int64_t above, int64_t own)
{
    const struct pi_dtype_traits *traits = pi_dtype_find(out->tensor.type);
    out->tensor.ne[axis] = own;
    if (traits != NULL && above > 0) /* an unknown type is refused later, with its name */
        out->tensor.data +=
            (size_t)above * pi_dtype_row_bytes(traits, axis == 0 ? 1 : out->tensor.ne[0]);
}

pith_status pi_find_tensor(const struct pith_model *m, int32_t l, const struct pi_tensor_spec *spec,
                           struct pi_source *out, pith_error *err)
{
    static const struct fused alone;
    char name[128], whole_name[128];
    const struct fused *f = find_fused(spec->name);
    snprintf(name, sizeof(name), "blk.%d.%s", l, spec->name);
    snprintf(whole_name, sizeof(whole_name), "blk.%d.%s", l, f != NULL ? f->whole : spec->name);
    const struct pi_gguf_tensor *t = pi_gguf_find_tensor(&m->gguf, name);
    const struct pi_gguf_tensor *whole = pi_gguf_find_tensor(&m->gguf, whole_name);
    f = f != NULL ? f : &alone;
    int axis = spec->col == PI_DIM_NONE ? 0 : 1; /* along which rows stand */
    int64_t n_stack = f->stacked ? pi_dim_len(&m->hp, spec->slab) : 1;
    int64_t above = rows_of(&m->hp, f->above), below = rows_of(&m->hp, f->below);
    int64_t own = pi_dim_len(&m->hp, f->turned ? spec->col : spec->row), all = above + own + below;
    *out = (struct pi_source){.there = t != NULL || whole != NULL};
    if (!out->there)
        return PITH_OK;
    out->stored = t != NULL ? t : whole;
    out->spare = t != NULL ? whole : NULL;
    out->tensor = *out->stored;
    out->slab_rows = out->tensor.ne[axis];
    if (t != NULL && (t != whole || t->ne[axis] != all))
        return PITH_OK; /* it stands alone */
    if (whole->ne[axis] != all * n_stack)
        return pi_fail(err, PITH_FORMAT,
                       "tensor \"%s\" is missing, and \"%s\" has %lld rows, not the %lld with it",
                       name, whole_name, (long long)whole->ne[axis], (long long)(all * n_stack));
    take_rows(out, axis, above, own);
    out->turned = f->turned;
    if (f->stacked) {
        out->tensor.ne[2] = n_stack;
        out->slab_rows = all;
    }
    return PITH_OK;
}
