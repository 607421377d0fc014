/*
 * arch.h - families of networks. A family is one const struct in one file and one line in arch.c's
 * table. It lists the blocks of its layers, the names and shapes of their tensors and the order of
 * rotary pairs. A hook reads the differences between its layers. The pass (forward.c) knows no
 * family: the loaded layers decide its steps.
 */
#ifndef PI_ARCH_H
#define PI_ARCH_H

#include "model/model.h"

/* Lengths that tensors are made of. */
enum pi_dim {
    PI_DIM_NONE, /* a vector's missing second dimension */
    PI_DIM_EMBD,
    PI_DIM_FF,
    PI_DIM_Q,      /* n_head * dim_k; where attention is gated twice that */
    PI_DIM_K,      /* n_head_kv * dim_k */
    PI_DIM_V,      /* n_head_kv * dim_v */
    PI_DIM_O,      /* n_head * dim_v */
    PI_DIM_HEAD_K, /* dim_k */
    PI_DIM_MIX,    /* of a delta net: the channels of its convolution */
    PI_DIM_CONV,   /* its taps */
    PI_DIM_VALUES,
    PI_DIM_VALUE_HEADS,
    PI_DIM_DELTA,         /* of one head */
    PI_DIM_MIX_VALUES,    /* PI_DIM_MIX and PI_DIM_VALUES */
    PI_DIM_2_VALUE_HEADS, /* twice PI_DIM_VALUE_HEADS */
    PI_DIM_HEADS,         /* n_head */
    PI_DIM_EXPERT,
    PI_DIM_FF_EXPERT, /* of one expert */
    PI_DIM_FF_SHARED, /* of the expert that takes every token */
    PI_DIM_LATENT,    /* of latent attention: n_rank + n_rot */
    PI_DIM_RANK,
    PI_DIM_LOW,          /* n_query */
    PI_DIM_QUERIES,      /* n_head * (dim_key + n_rot) */
    PI_DIM_QUERIES_ONCE, /* the same, where n_query is 0 */
    PI_DIM_HEAD_KEY,     /* dim_key */
    PI_DIM_HEAD_OUT,     /* dim_out */
    PI_DIM_OUTS,         /* n_head * dim_out */
};

/* One tensor of a layer: "blk.N.NAME" goes to the field at offset of struct pi_layer. */
struct pi_tensor_spec {
    const char *name;
    size_t offset;
    enum pi_dim row; /* output features, or the length of a vector */
    enum pi_dim col; /* input features; PI_DIM_NONE: a vector of floats */
    bool required;
    enum pi_dim slab; /* a number of these, one after the other; PI_DIM_NONE: one */
};

/* A block of a family's layers, and its tensors. */
struct pi_arch_part {
    const struct pi_block *block;
    const struct pi_tensor_spec *tensor; /* [n_tensor] */
    int32_t n_tensor;
};

struct pi_rope_keys;

struct pi_arch {
    const char *name; /* general.architecture */
    bool rope_adjacent;
    const struct pi_arch_part *part; /* [n_part] in the order in which a layer runs them */
    int32_t n_part;
    const struct pi_moe_rule *moe; /* the rule where the file has no key; NULL: no experts */
    bool moe_keys;                 /* files say how the router chooses and weighs */
    /* Changes the keys of the main rotation. NULL: nothing. */
    void (*rope)(struct pi_rope_keys *keys);
    /* Reads the file's keys that only some families have. The common keys are in model->hp,
       model->rope is loaded, and every layer has all parts, that rope and no window. The hook sets
       differences in model->layer, or removes blocks with pi_layer_leave_out. NULL: nothing
       differs. */
    pith_status (*read)(struct pith_model *model, pith_error *err);
};

/* NULL when the family is unknown. */
const struct pi_arch *pi_arch_find(const char *name, size_t len);
/* The names of all families, as a list in a sentence; cut where it does not fit. */
void pi_arch_list(char *out, size_t cap);

bool pi_arch_has(const struct pi_arch *arch, const struct pi_block *block);
bool pi_layer_has(const struct pi_layer *layer, const struct pi_block *block);
bool pi_layer_attends(const struct pi_layer *layer); /* whether it has lanes */
/* Nothing where the layer does not have it. */
void pi_layer_leave_out(struct pi_layer *layer, const struct pi_block *block);

#define PI_SPEC_SLABS(field, tensor, row, col, required, slab)                                     \
    {                                                                                              \
        tensor, offsetof(struct pi_layer, field), row, col, required, slab                         \
    }
#define PI_SPEC_MATRIX(field, tensor, row, col)                                                    \
    PI_SPEC_SLABS(field, tensor ".weight", row, col, true, PI_DIM_NONE)
#define PI_SPEC_VECTOR(field, tensor, row, required)                                               \
    PI_SPEC_SLABS(field, tensor, row, PI_DIM_NONE, required, PI_DIM_NONE)
/* Of every expert. */
#define PI_SPEC_EXPERTS(field, tensor, row, col)                                                   \
    PI_SPEC_SLABS(field, tensor ".weight", row, col, true, PI_DIM_EXPERT)
#define PI_SPEC_EXPERTS_BIAS(field, tensor, row)                                                   \
    PI_SPEC_SLABS(field, tensor ".bias", row, PI_DIM_NONE, true, PI_DIM_EXPERT)

/* The matrices of all experts, and of the expert that takes every token. */
#define PI_SPEC_ALL_EXPERTS                                                                        \
    PI_SPEC_EXPERTS(moe.gate, "ffn_gate_exps", PI_DIM_FF_EXPERT, PI_DIM_EMBD),                     \
        PI_SPEC_EXPERTS(moe.up, "ffn_up_exps", PI_DIM_FF_EXPERT, PI_DIM_EMBD),                     \
        PI_SPEC_EXPERTS(moe.down, "ffn_down_exps", PI_DIM_EMBD, PI_DIM_FF_EXPERT)
#define PI_SPEC_SHARED_EXPERT                                                                      \
    PI_SPEC_MATRIX(moe.shared_gate, "ffn_gate_shexp", PI_DIM_FF_SHARED, PI_DIM_EMBD),              \
        PI_SPEC_MATRIX(moe.shared_up, "ffn_up_shexp", PI_DIM_FF_SHARED, PI_DIM_EMBD),              \
        PI_SPEC_MATRIX(moe.shared_down, "ffn_down_shexp", PI_DIM_EMBD, PI_DIM_FF_SHARED)

/* A part with its array of tensors. Then attention without norms of heads and with optional biases,
   attention with such norms and without biases, and the usual feed-forward. */
#define PI_ARCH_PART(block, tensors)                                                               \
    {                                                                                              \
        &(block), tensors, PI_LEN(tensors)                                                         \
    }
#define PI_ARCH_ATTENTION                                                                          \
    {                                                                                              \
        &pi_block_attention, pi_spec_attention, PI_SPEC_ATTENTION_LEN                              \
    }
#define PI_ARCH_NORMED_ATTENTION                                                                   \
    {                                                                                              \
        &pi_block_attention, pi_spec_normed_attention, PI_SPEC_NORMED_ATTENTION_LEN                \
    }
#define PI_ARCH_FFN                                                                                \
    {                                                                                              \
        &pi_block_ffn, pi_spec_ffn, PI_SPEC_FFN_LEN                                                \
    }
#define PI_SPEC_ATTENTION_LEN 9
#define PI_SPEC_NORMED_ATTENTION_LEN 7
#define PI_SPEC_FFN_LEN 4
extern const struct pi_tensor_spec pi_spec_attention[PI_SPEC_ATTENTION_LEN];
extern const struct pi_tensor_spec pi_spec_normed_attention[PI_SPEC_NORMED_ATTENTION_LEN];
extern const struct pi_tensor_spec pi_spec_ffn[PI_SPEC_FFN_LEN];

extern const struct pi_arch pi_arch_deepseek2;
extern const struct pi_arch pi_arch_gemma2;
extern const struct pi_arch pi_arch_gemma3;
extern const struct pi_arch pi_arch_llama;
extern const struct pi_arch pi_arch_mistral3;
extern const struct pi_arch pi_arch_phi3;
extern const struct pi_arch pi_arch_qwen2;
extern const struct pi_arch pi_arch_qwen3;
extern const struct pi_arch pi_arch_qwen35;
extern const struct pi_arch pi_arch_qwen35moe;
extern const struct pi_arch pi_arch_qwen3next;
extern const struct pi_arch pi_arch_smollm3;
extern const struct pi_arch pi_arch_qwen3moe;
extern const struct pi_arch pi_arch_glm4moe;
extern const struct pi_arch pi_arch_gpt_oss;

#endif
