/*
 * test_centre.c - keys that are stored relative to their lane's centre. The centre is the mean of
 * the rotated bias, the model's expectations stay the same, and settings that exclude it are
 * refused.
 */
#include "model/centre.h"

#include <math.h>
#include <unistd.h>

#include "base/mem.h"
#include "cpu/kernels.h"
#include "model_maker.h"
#include "status.h"
#include "testing.h"
#include "pith/policy.h"

#define NANO PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define N_TOKEN 120

static pith_model *nano_load(void)
{
    return model_at(NANO);
}

/* The definition, position by position with the rotation of attention. */
TEST(centre_is_the_mean)
{
    pith_model *model = nano_load();
    const struct pi_hparams *hp = &model->hp;
    float *centre = NULL, cs[512], x[256];
    double largest = 0.0, sum[256];
    check(pi_centre_create(model, &centre, &err), &err);
    for (int32_t l = 0; l < hp->n_layer; l++)
        for (int32_t h = 0; h < hp->n_head_kv; h++) {
            memset(sum, 0, sizeof(sum));
            for (int32_t p = 0; p < PI_CENTRE_POSITIONS; p++) {
                memcpy(x, model->layer[l].attn.bk + h * hp->dim_k, (size_t)hp->dim_k * sizeof(*x));
                pi_rope_fill(&model->rope, p, cs);
                pi_kernels()->vec.rope(x, cs, model->rope.n_pair, model->rope.adjacent);
                for (int32_t d = 0; d < hp->dim_k; d++)
                    sum[d] += (double)x[d] / PI_CENTRE_POSITIONS;
            }
            for (int32_t d = 0; d < hp->dim_k; d++) {
                float got = centre[(l * hp->n_head_kv + h) * hp->dim_k + d];
                assert_float_equal(got, (float)sum[d], 2e-4);
                largest = fmax(largest, fabs((double)got));
            }
        }
    assert_true(largest > 0.01);
    pi_mem_free(centre);
    pith_model_free(model);
}

static pith_engine_params params_of(const char *type_k)
{
    pith_engine_params params;
    pith_engine_params_default(&params);
    params.type_k = type_k;
    params.n_thread = 1;
    params.kv_tokens = 256;
    return params;
}

/* Logits of the last of some tokens; caller frees. */
static float *logits_of(const pith_model *model, const char *type_k)
{
    pith_engine_params params = params_of(type_k);
    int32_t tokens[N_TOKEN], n_vocab = model->hp.n_vocab;
    float *logits = malloc((size_t)n_vocab * sizeof(*logits));
    pith_engine *e = NULL;
    uint64_t rng = 4;
    assert_non_null(logits);
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&rng, (uint64_t)n_vocab);
    check(pith_engine_create(model, &params, &e, &err), &err);
    pith_seq *seq = seq_make(e);
    check(pith_seq_eval(seq, tokens, N_TOKEN - 2, &err), &err);
    check(pith_seq_eval(seq, tokens + N_TOKEN - 2, 1, &err), &err);
    check(pith_seq_eval(seq, tokens + N_TOKEN - 1, 1, &err), &err);
    memcpy(logits, pith_seq_logits(seq), (size_t)n_vocab * sizeof(*logits));
    pith_seq_free(seq);
    pith_engine_free(e);
    return logits;
}

TEST(a_centre_changes_logits_little)
{
    pith_model *model = nano_load();
    float *whole = logits_of(model, "f32"), *less = logits_of(model, "f32:centre");
    float most = 0.0f;
    for (int32_t i = 0; i < model->hp.n_vocab; i++)
        most = fmaxf(most, fabsf(whole[i] - less[i]));
    assert_true(most > 0.0f); /* something was taken off */
    assert_true(most < 0.05f);
    free(whole);
    free(less);
    pith_model_free(model);
}

static void refused(const pith_model *model, const pith_engine_params *params, const char *words)
{
    pith_engine *e = NULL;
    assert_int_equal(pith_engine_create(model, params, &e, &err), PITH_UNSUPPORTED);
    assert_non_null(strstr(err.message, words));
    assert_null(e);
}

TEST(refuses_what_does_not_go_with_it)
{
    pith_model *model = nano_load(), *plain = NULL;
    pith_engine_params p = params_of("q8_0:centre");
    pith_engine *e = NULL;
    p.keep = "streaming:budget=64";
    refused(model, &p, "keep: its policies need whole keys");
    p.keep = NULL;
    p.read = "quoka:budget=64";
    refused(model, &p, "read: its policies need whole keys");
    p.read = NULL;
    p.share = "memshare";
    refused(model, &p, "share: its policies need whole keys");
    p = params_of("q8_0:centre");
    check(pith_engine_create(model, &p, &e, &err), &err);
    pith_seq *seq = seq_make(e);
    assert_int_equal(pith_seq_save(seq, "/tmp/pith-centre-never", &err), PITH_UNSUPPORTED);
    pith_seq_free(seq);
    seq = NULL;
    assert_int_equal(pith_seq_load(e, "/tmp/pith-centre-never", &seq, &err), PITH_UNSUPPORTED);
    assert_non_null(strstr(err.message, "(centre) cannot be saved or loaded"));
    pith_engine_free(e);
    assert_int_equal(pith_store_check("f16", "turbo3:centre", &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "type_v: \"turbo3:centre\": centre is for keys"));
    check(pith_store_check("turbo4:force:centre:q8_0=1+1", "f16", &err), &err);
    pith_model_free(model);

    char path[64];
    snprintf(path, sizeof(path), "/tmp/pith-centre-%ld", (long)getpid());
    check(model_make_of("layers=1 width=64 heads=2 kv_heads=1 ff=64 vocab=64", path, &err), &err);
    check(pith_model_load(path, NULL, &plain, &err), &err);
    unlink(path);
    p = params_of("f16:centre");
    refused(plain, &p, "the keys of the model's layer 0 have no bias");
    pith_model_free(plain);
}
