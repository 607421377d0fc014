/*
 * fuzz_request.c - the body of a request (serve/api/request.h), on any bytes: the first byte
 * chooses the API, the rest is JSON. The request is answered by a few tokens and streamed, so that
 * the replies are run as well. A finding is a sanitizer's report, a leak, or a refusal that is not
 * one sentence on one line. So is a request that exceeds its limits.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "serve/api/reply.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct serve_setup setup;

static void expect(bool ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    pith_model_params params;
    pith_model *model = NULL;
    pith_model_params_default(&params);
    params.vocab_only = true;
    expect(pith_model_load(PITH_FUZZ_MODEL, &params, &model, NULL) == PITH_OK);
    serve_setup_default(&setup);
    setup.model = model;
    setup.n_slot = 4;
    setup.pins = true;
    setup.n_ctx = 4096;
    setup.template_name = "qwen3";
    return 0;
}

static void check_params(const pith_request *q)
{
    const pith_generate_params *p = q->params;
    const pith_sample_params *s = &p->sample;
    expect(p->n_predict >= -1 && p->n_stop <= SERVE_STOPS_MAX);
    expect(s->temperature >= 0 && s->top_p >= 0 && s->top_p <= 1 && s->top_k >= 0);
    for (int32_t i = 0; i < p->n_stop; i++)
        expect(p->stop_len[i] > 0);
    for (int32_t i = 0; i < s->n_bias; i++)
        expect(s->bias[i].token >= 0 && !isnan(s->bias[i].bias));
    expect(q->n_prompt > 0 && q->n_prompt < setup.n_ctx);
    expect(q->n_answer >= 1 && q->n_answer <= SERVE_ANSWERS_MAX);
}

static void answer(struct serve_reply *reply, int32_t i, int32_t k, struct serve_bytes *out)
{
    static const char *const texts[] = {"<think>a", "</think>", "<tool_call>{\"name\": \"x\", ",
                                        "\"arguments\": {}}</tool_call>", ""};
    for (int32_t t = 0; t < 5; t++) {
        const pith_answer_token token = {
            .answer = k, .token = t, .text = texts[t], .len = strlen(texts[t])};
        expect(serve_reply_token(reply, i, &token, out));
    }
    const pith_answer_result result = {.answer = k, .reason = PITH_STOP_END, .n_generated = 5};
    expect(serve_reply_done(reply, i, &result, out));
}

static void check_reply(const struct serve_request *r)
{
    struct serve_reply *reply = NULL;
    struct serve_bytes out = {0};
    expect(serve_reply_create(r, 0, "id", &reply) == PITH_OK);
    for (int32_t i = 0; i < serve_request_count(r); i++) {
        pith_generate_params params;
        pith_request q;
        serve_request_get(r, i, &params, &q);
        check_params(&q);
        for (int32_t k = 0; k < q.n_answer; k++)
            answer(reply, i, k, &out);
    }
    expect(serve_reply_finished(reply) && serve_reply_code(reply) == 200 && out.len > 0);
    serve_bytes_free(&out);
    serve_reply_free(reply);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct serve_request *r = NULL;
    struct serve_fault fault;
    if (size == 0)
        return 0;
    enum serve_api api = (enum serve_api)(data[0] % (SERVE_COUNT + 1));
    if (serve_request_parse(&setup, api, (const char *)data + 1, size - 1, &r, &fault) != PITH_OK) {
        expect(fault.code >= 400 && fault.type != NULL && fault.message[0] != '\0');
        expect(strchr(fault.message, '\n') == NULL);
        return 0;
    }
    expect(serve_request_answers(r) <= SERVE_ANSWERS_MAX);
    check_reply(r);
    serve_request_free(r);
    return 0;
}
