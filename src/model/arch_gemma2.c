/*
 * arch_gemma2.c - Gemma 2. Every other layer sees a window, scores of attention and logits are
 * capped, the output of blocks is normalised, and embeddings are scaled. Window, period, caps and
 * the scale of scores are the family's: files need not say them. There is no output matrix.
 */
#include "model/gemma.h"

#define WINDOW 4096
#define WINDOW_EVERY 2 /* the last of each group of layers sees everything */
#define LAYERS_27B 46  /* this size has another scale, and no key of a file says it */
#define SCORE_CAP 50
#define LOGIT_CAP 30

static const struct pi_tensor_spec attention[] = {
    PI_SPEC_VECTOR(attn.norm, "attn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(attn.wq, "attn_q", PI_DIM_Q, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wk, "attn_k", PI_DIM_K, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wv, "attn_v", PI_DIM_V, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wo, "attn_output", PI_DIM_EMBD, PI_DIM_O),
    PI_SPEC_VECTOR(attn.post_norm, "post_attention_norm.weight", PI_DIM_EMBD, true),
};

static const struct pi_arch_part parts[] = {PI_ARCH_PART(pi_block_attention, attention),
                                            PI_ARCH_GEMMA_FFN};

static pith_status read_caps(struct pith_model *m, pith_error *err)
{
    struct pi_hparams *hp = &m->hp;
    hp->attn_cap = SCORE_CAP;
    hp->logit_cap = LOGIT_CAP;
    PI_TRY(pi_key_number(m, "attn_logit_softcapping", 0, PI_MOST_CAP, false, &hp->attn_cap, err));
    return pi_key_number(m, "final_logit_softcapping", 0, PI_MOST_CAP, false, &hp->logit_cap, err);
}

static pith_status read_layers(struct pith_model *m, pith_error *err)
{
    struct pi_hparams *hp = &m->hp;
    pi_gemma_set(hp, LAYERS_27B);
    PI_TRY(read_caps(m, err));
    return pi_load_windows(m, WINDOW, WINDOW_EVERY, err);
}

const struct pi_arch pi_arch_gemma2 = {
    .name = "gemma2",
    .rope_adjacent = false,
    .part = parts,
    .n_part = PI_LEN(parts),
    .read = read_layers,
};
