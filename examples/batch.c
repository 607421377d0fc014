/*
 * batch.c - many texts at once: every argument is continued, in one KV budget, and printed when it
 * is done.
 *
 *     batch MODEL.gguf "Once upon a time" "The friend of" ...
 */
#include <stdio.h>
#include <string.h>

#include <pith/scheduler.h>

struct text {
    char continued[4096];
    size_t len;
    const char *begin;
};

static bool on_token(void *user, const pith_answer_token *token)
{
    struct text *text = user;
    if (text->len + token->len >= sizeof(text->continued))
        return false;
    if (token->len > 0)
        memcpy(text->continued + text->len, token->text, token->len);
    text->len += token->len;
    return true;
}

static void on_done(void *user, const pith_answer_result *result)
{
    const struct text *text = user;
    printf("%lld: %s%.*s\n", (long long)result->request, text->begin, (int)text->len,
           text->continued);
    if (result->status != PITH_OK)
        fprintf(stderr, "%lld: %s\n", (long long)result->request, result->message);
}

static bool submit(pith_scheduler *scheduler, const pith_model *model, struct text *text,
                   pith_error *err)
{
    int32_t ids[4096], n_id;
    pith_generate_params params;
    pith_request request;
    pith_generate_params_default(&params);
    params.n_predict = 64;
    pith_request_default(&request);
    if (pith_tokenize(model, text->begin, strlen(text->begin), PITH_TOKENIZE_BOS, ids, 4096, &n_id,
                      err) != PITH_OK)
        return false;
    request.prompt = ids;
    request.n_prompt = n_id;
    request.params = &params;
    request.on_token = on_token;
    request.on_done = on_done;
    request.user = text;
    return pith_scheduler_submit(scheduler, &request, NULL, err) == PITH_OK;
}

int main(int argc, char **argv)
{
    static struct text texts[64];
    pith_model *model = NULL;
    pith_engine *engine = NULL;
    pith_scheduler *scheduler = NULL;
    pith_error err = {PITH_OK, "name a model and some texts"};

    bool ok = argc > 2 && argc <= 66 && pith_model_load(argv[1], NULL, &model, &err) == PITH_OK &&
              pith_engine_create(model, NULL, &engine, &err) == PITH_OK &&
              pith_scheduler_create(engine, NULL, &scheduler, &err) == PITH_OK;
    for (int i = 2; ok && i < argc; i++) {
        texts[i - 2].begin = argv[i];
        ok = submit(scheduler, model, &texts[i - 2], &err);
    }
    ok = ok && pith_scheduler_run(scheduler, &err) == PITH_OK;
    if (!ok)
        fprintf(stderr, "batch: %s\n", err.message);
    pith_scheduler_free(scheduler);
    pith_engine_free(engine);
    pith_model_free(model);
    return ok ? 0 : 1;
}
