/*
 * request.c - a request from its body to what the scheduler takes. It knows which reader an API
 * has; fields, messages and prompts are theirs. * Invariant: a request that comes out is complete.
 * Either it has tokens of each prompt, or there was no model, and it was only judged.
 */
#include "serve/api/request_body.h"

#include <stdlib.h>
#include <string.h>

void serve_setup_default(struct serve_setup *setup)
{
    *setup = (struct serve_setup){0};
    pith_generate_params_default(&setup->params);
}

void serve_request_free(struct serve_request *r)
{
    if (r == NULL)
        return;
    pith_prompt_free(r->prompts.rendered);
    pith_grammar_free(r->format.grammar);
    json_decref(r->source.chat);
    json_decref(r->source.body);
    json_decref(r->source.json);
    serve_numbers_free(&r->source.numbers);
    request_blocks_free(r->source.block);
    free(r);
}

/* ---- reading ---- */

static struct serve_request *make(const struct serve_setup *setup, enum serve_api api)
{
    struct serve_request *r = calloc(1, sizeof(*r));
    pith_model_info info = {.name = ""};
    if (r == NULL)
        return NULL;
    if (setup->model != NULL)
        pith_model_get_info(setup->model, &info);
    r->api = api;
    r->setup = setup;
    r->params = setup->params;
    r->n_answer = 1;
    r->reply.top_logprobs = -1;
    r->cache.slot = -1;
    r->cache.caches = true;
    r->prompts.no_thinking = setup->no_thinking;
    r->model_name = setup->alias != NULL ? setup->alias : info.name;
    return r;
}

static json_t *load(struct serve_reader *rd, const char *text, size_t len)
{
    json_error_t error;
    char buf[SERVE_SHOW];
    json_t *json =
        serve_json_load(&rd->r->source.numbers, text, len,
                        JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (json == NULL)
        SERVE_FAULT(rd, NULL, "body: \"%s\" is not JSON: %s", serve_show_text(text, len, buf),
                    error.text);
    else if (!json_is_object(json))
        SERVE_FAULT(rd, NULL, "body: %s is not an object", request_show(rd, json, buf));
    return json;
}

/* Other APIs' chats are read as OpenAI's. */
static json_t *translate(struct serve_reader *rd)
{
    switch (rd->r->api) {
    case SERVE_MESSAGES:
    case SERVE_COUNT:
        return request_from_messages(rd, rd->r->source.json);
    case SERVE_RESPONSES:
        return request_from_responses(rd, rd->r->source.json);
    default:
        return json_incref(rd->r->source.json);
    }
}

static void read_body(struct serve_reader *rd)
{
    struct serve_request *r = rd->r;
    r->source.body = translate(rd);
    if (request_is_bad(rd) || r->source.body == NULL)
        return;
    request_read_fields(rd, r->source.body);
    request_read_session(rd, r->source.json); /* as it came: translations leave names out */
    if (r->api == SERVE_TEXT || r->api == SERVE_COMPLETION)
        request_read_prompts(rd, r->source.body);
    else if (r->api == SERVE_INFILL)
        request_read_infill(rd, r->source.body);
    else
        request_read_chat(rd, r->source.body);
    if (!request_is_bad(rd) && r->source.chat != NULL)
        request_make_chat(rd);
    if (!request_is_bad(rd))
        request_read_format(rd, r->source.body);
}

/* ---- the end of it ---- */

/* A prompt may be as long as leaves room for a token. */
static void check_prompts(struct serve_reader *rd)
{
    const struct serve_request *r = rd->r;
    int32_t n_ctx = rd->setup->n_ctx;
    for (int32_t i = 0; i < r->prompts.n && rd->setup->model != NULL; i++) {
        int32_t n = r->prompts.item[i].n_id;
        if (n == 0)
            SERVE_FAULT(rd, r->source.chat != NULL ? "messages" : "prompt",
                        "prompt: \"\" has no tokens, and the model none to begin a text with");
        if (n_ctx > 0 && n >= n_ctx && !request_is_bad(rd)) {
            serve_fault_set(
                rd->fault, 400, SERVE_CONTEXT, r->source.chat != NULL ? "messages" : "prompt",
                "request (%d tokens) exceeds the available context size (%d tokens)", n, n_ctx);
            rd->fault->n_prompt_tokens = n;
            rd->fault->n_ctx = n_ctx;
        }
    }
}

pith_status serve_request_parse(const struct serve_setup *setup, enum serve_api api,
                                const char *body, size_t len, struct serve_request **out,
                                struct serve_fault *fault)
{
    struct serve_reader rd = {setup, make(setup, api), fault};
    *fault = (struct serve_fault){0};
    if (rd.r == NULL) {
        request_no_memory(&rd);
        return PITH_NOMEM;
    }
    rd.r->source.json = load(&rd, body, len);
    if (!request_is_bad(&rd))
        read_body(&rd);
    if (!request_is_bad(&rd))
        check_prompts(&rd);
    if (request_is_bad(&rd)) {
        request_rename_fault(fault, api);
        serve_request_free(rd.r);
        return fault->code == 500 ? PITH_NOMEM : PITH_INVALID;
    }
    *out = rd.r;
    return PITH_OK;
}

/* ---- what it says ---- */

int32_t serve_request_count(const struct serve_request *r)
{
    return r->prompts.n;
}

int32_t serve_request_answers(const struct serve_request *r)
{
    return r->prompts.n * r->n_answer;
}

void serve_request_get(const struct serve_request *r, int32_t i, pith_generate_params *params,
                       pith_request *out)
{
    pith_request_default(out);
    *params = r->params;
    params->sample.seed += (uint64_t)(i * r->n_answer); /* each answer of a body has its own */
    out->prompt = r->prompts.item[i].ids;
    out->n_prompt = r->prompts.item[i].n_id;
    params->message = r->prompts.item[i].message;
    params->message_len = r->prompts.item[i].message_len;
    int32_t n_pin = r->cache.n_keep != 0 ? r->cache.n_keep : r->cache.n_system;
    out->n_pin = n_pin > 0 && n_pin < out->n_prompt ? n_pin : 0; /* 0: the prompt */
    out->params = params;
    out->n_answer = r->n_answer;
    out->deadline_s = (double)r->timeout_s;
    out->priority = -r->priority; /* vLLM's lowest number is the scheduler's highest */
    out->budget = r->cache.budget;
    out->no_logits = r->reply.top_logprobs < 0 || r->reply.after_sampling;
}

enum serve_api serve_request_api(const struct serve_request *r)
{
    return r->api;
}

const char *serve_request_model(const struct serve_request *r)
{
    return r->model;
}

bool serve_request_streams(const struct serve_request *r)
{
    return r->reply.stream;
}

int32_t serve_request_slot(const struct serve_request *r)
{
    return r->cache.slot;
}

bool serve_request_caches(const struct serve_request *r)
{
    return r->cache.caches;
}

uint64_t serve_request_salt(const struct serve_request *r)
{
    return r->cache.salt;
}

uint64_t serve_request_session(const struct serve_request *r)
{
    return r->cache.session;
}

double serve_request_timeout(const struct serve_request *r)
{
    return (double)r->timeout_s;
}

bool serve_request_wants_progress(const struct serve_request *r)
{
    return r->reply.return_progress && r->reply.stream;
}

bool serve_request_wants_prompt(const struct serve_request *r)
{
    return r->reply.echo && r->reply.top_logprobs >= 0;
}

int64_t serve_request_n_prompt(const struct serve_request *r)
{
    int64_t n = 0;
    for (int32_t i = 0; i < r->prompts.n; i++)
        n += r->prompts.item[i].n_id;
    return n;
}

const char *serve_request_text(const struct serve_request *r, size_t *len)
{
    return r->prompts.rendered != NULL ? pith_prompt_text(r->prompts.rendered, len) : NULL;
}
