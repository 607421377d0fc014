/*
 * policy.c - policies of one's own. The keep policy scores an entry by all attention that it got,
 * times the length of its value. The read policy takes the entries that a chunk's queries like
 * best.
 *
 *     policy MODEL.gguf [TEXT]
 *
 * Its own square roots want -lm: cc policy.c $(pkg-config --cflags --libs pith) -lm
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <pith/inspect.h>
#include <pith/policy.h>

/* Higher stays. The rules (budget, sinks, window) are in the text of options. */
static bool score_entries(void *user, const pith_keep_lane *lane, float *score)
{
    int *n_call = (int *)user;
    int32_t i, d;
    for (i = 0; i < lane->n; i++) {
        const float *v = lane->v + (size_t)i * (size_t)lane->dim_v;
        float square = 0.0f;
        for (d = 0; d < lane->dim_v; d++)
            square += v[d] * v[d];
        score[i] = lane->sum[i] * sqrtf(square);
    }
    (*n_call)++;
    return true;
}

/* Higher is read. */
static bool score_chunk(void *user, const pith_read_chunk *c, float *score)
{
    int *n_call = (int *)user;
    int32_t i, r, d;
    for (i = 0; i < c->n; i++) {
        const float *k = c->k + (size_t)i * (size_t)c->dim_k;
        score[i] = 0.0f;
        for (r = 0; r < c->n_token * c->n_group; r++)
            for (d = 0; d < c->dim_k; d++)
                score[i] += c->q[(size_t)r * (size_t)c->dim_k + (size_t)d] * k[d];
    }
    (*n_call)++;
    return true;
}

/* Reads the text with these policies, and says what they did. */
static pith_status read_text(const pith_model *model, const pith_engine_params *params,
                             const int32_t *ids, int32_t n_id, const int *n_call, pith_error *err)
{
    pith_engine *engine = NULL;
    pith_seq *seq = NULL;
    pith_keep_stats keep;
    pith_read_stats read;
    pith_status status = pith_engine_create(model, params, &engine, err);
    if (status == PITH_OK)
        status = pith_seq_create(engine, &seq, err);
    if (status == PITH_OK)
        status = pith_seq_eval(seq, ids, n_id, err);
    if (status == PITH_OK) {
        pith_seq_keep_stats(seq, &keep);
        pith_seq_read_stats(seq, &read);
        printf("%d tokens, asked %d times: %lld entries evicted", n_id, *n_call,
               (long long)keep.evicted);
        if (read.stored > 0)
            printf(", %lld of %lld read", (long long)read.read, (long long)read.stored);
        printf("\n");
    }
    pith_seq_free(seq);
    pith_engine_free(engine);
    return status;
}

int main(int argc, char **argv)
{
    static char text[8192];
    pith_model *model = NULL;
    pith_engine_params keeps, reads;
    pith_error err = {PITH_INVALID, "name a model"};
    int32_t ids[4096], n_id;
    int n_keep = 0, n_read = 0;

    while (strlen(text) < 1500) /* long enough to be cut */
        strcat(text, argc > 2 && argv[2][0] != 0 && strlen(argv[2]) < 4096
                         ? argv[2]
                         : "Once upon a time a small dog lived near the river. ");
    pith_engine_params_default(&keeps);
    keeps.kv_tokens = 4096;
    reads = keeps;
    keeps.keep = "custom:sums=on,budget=25%,sinks=4,window=32,granularity=global";
    keeps.keep_score = score_entries;
    keeps.keep_user = &n_keep;
    reads.read = "custom:budget=64,chunk=32,sinks=4,recent=16";
    reads.read_score = score_chunk;
    reads.read_user = &n_read;
    bool ok = argc > 1 && pith_model_load(argv[1], NULL, &model, &err) == PITH_OK &&
              pith_tokenize(model, text, strlen(text), PITH_TOKENIZE_BOS, ids, 4096, &n_id, &err) ==
                  PITH_OK &&
              read_text(model, &keeps, ids, n_id, &n_keep, &err) == PITH_OK &&
              read_text(model, &reads, ids, n_id, &n_read, &err) == PITH_OK;
    if (!ok)
        fprintf(stderr, "policy: %s\n", err.message);
    pith_model_free(model);
    return ok && n_keep > 0 && n_read > 0 ? 0 : 1;
}
