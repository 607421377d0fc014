/*
 * start_llama.c - llama.cpp from nothing to its first token: load a file, read a prompt, print a
 * token, end. Built by starts.py against a tree of llama.cpp; it is no part of Pith.
 *
 * usage: start_llama MODEL THREADS PROMPT
 */
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOKEN 512

static int fail(const char *what)
{
    fprintf(stderr, "start_llama: %s\n", what);
    return 1;
}

static void quiet(enum ggml_log_level level, const char *text, void *ctx)
{
    (void)level, (void)text, (void)ctx;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return fail("usage: start_llama MODEL THREADS PROMPT");
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model_params model_params = llama_model_default_params();
    model_params.use_extra_bufts = false; /* with repacking a start is slower */
    struct llama_model *model = llama_model_load_from_file(argv[1], model_params);
    if (model == NULL)
        return fail("cannot load the model");
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = MAX_TOKEN;
    params.n_threads = params.n_threads_batch = atoi(argv[2]);
    struct llama_context *context = llama_init_from_model(model, params);
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    llama_token token[MAX_TOKEN];
    int n = llama_tokenize(vocab, argv[3], (int)strlen(argv[3]), token, MAX_TOKEN, true, true);
    if (context == NULL || n <= 0 || llama_decode(context, llama_batch_get_one(token, n)) != 0)
        return fail("cannot read the prompt");
    const float *row = llama_get_logits_ith(context, -1);
    llama_token best = 0;
    for (llama_token i = 1; i < llama_vocab_n_tokens(vocab); i++)
        best = row[i] > row[best] ? i : best;
    char text[256];
    n = llama_token_to_piece(vocab, best, text, sizeof(text), 0, true);
    fwrite(text, 1, n > 0 ? (size_t)n : 0, stdout);
    return 0;
}
