/*
 * arch_gemma3.c - Gemma 3. Five of six layers see a window and rotate by a base of their own. Heads
 * are normalised before their rotation, the output of blocks is normalised, too, and embeddings are
 * scaled. The period, that base and the scale of scores are the family's: files need not say them.
 */
#include "model/gemma.h"

#define LOCAL_BASE 10000
#define WINDOW_EVERY 6 /* the last of each group of layers sees everything */
#define LAYERS_27B 62  /* this size has another scale, and no key of a file says it */

static const struct pi_tensor_spec attention[] = {
    PI_SPEC_VECTOR(attn.norm, "attn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(attn.wq, "attn_q", PI_DIM_Q, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wk, "attn_k", PI_DIM_K, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wv, "attn_v", PI_DIM_V, PI_DIM_EMBD),
    PI_SPEC_VECTOR(attn.q_norm, "attn_q_norm.weight", PI_DIM_HEAD_K, true),
    PI_SPEC_VECTOR(attn.k_norm, "attn_k_norm.weight", PI_DIM_HEAD_K, true),
    PI_SPEC_MATRIX(attn.wo, "attn_output", PI_DIM_EMBD, PI_DIM_O),
    PI_SPEC_VECTOR(attn.post_norm, "post_attention_norm.weight", PI_DIM_EMBD, true),
};

static const struct pi_arch_part parts[] = {PI_ARCH_PART(pi_block_attention, attention),
                                            PI_ARCH_GEMMA_FFN};

/* Layers with a window rotate by a base of their own, which no scaling of the file touches. */
static pith_status read_windows(struct pith_model *m, pith_error *err)
{
    struct pi_rope_keys keys = pi_rope_keys_of(m);
    PI_TRY(pi_load_windows(m, 0, WINDOW_EVERY, err));
    keys.base = "freq_base_swa";
    keys.preset = LOCAL_BASE;
    keys.plain = true;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        if (m->layer[l].window == 0)
            continue;
        if (m->rope_local.n_pair == 0)
            PI_TRY(pi_rope_load(&m->rope_local, &m->gguf, m->arch->name, &keys, err));
        m->layer[l].rope = &m->rope_local;
    }
    return PITH_OK;
}

static pith_status read_layers(struct pith_model *m, pith_error *err)
{
    struct pi_hparams *hp = &m->hp;
    pi_gemma_set(hp, LAYERS_27B);
    PI_TRY(pi_key_number(m, "final_logit_softcapping", 0, PI_MOST_CAP, false, &hp->logit_cap, err));
    return read_windows(m, err);
}

const struct pi_arch pi_arch_gemma3 = {
    .name = "gemma3",
    .rope_adjacent = false,
    .part = parts,
    .n_part = PI_LEN(parts),
    .read = read_layers,
};
