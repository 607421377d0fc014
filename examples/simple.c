/*
 * simple.c - the shortest useful program: continues a text.
 *
 *     simple MODEL.gguf "Once upon a time"
 */
#include <stdio.h>
#include <string.h>

#include <pith/pith.h>

static bool print_piece(void *user, const char *text, size_t len)
{
    return fwrite(text, 1, len, user) == len && fflush(user) == 0;
}

int main(int argc, char **argv)
{
    pith_model *model = NULL;
    pith_engine *engine = NULL;
    pith_seq *seq = NULL;
    pith_error err;
    int32_t ids[4096], n_id;
    const char *text = argc > 2 ? argv[2] : "Once upon a time";

    bool ok = argc > 1 && pith_model_load(argv[1], NULL, &model, &err) == PITH_OK &&
              pith_engine_create(model, NULL, &engine, &err) == PITH_OK &&
              pith_seq_create(engine, &seq, &err) == PITH_OK &&
              pith_tokenize(model, text, strlen(text), PITH_TOKENIZE_BOS, ids, 4096, &n_id, &err) ==
                  PITH_OK &&
              pith_generate(seq, ids, n_id, NULL, print_piece, stdout, NULL, &err) == PITH_OK;
    if (!ok)
        fprintf(stderr, "simple: %s\n", argc > 1 ? err.message : "name a model");
    pith_seq_free(seq);
    pith_engine_free(engine);
    pith_model_free(model);
    return ok ? 0 : 1;
}
