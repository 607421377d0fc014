/*
 * reply.c - answers as they grow, and when what is said of them. It knows no API's layout: that is
 * its form's (reply_form.h).
 *
 * Invariant: what is appended are whole documents and whole events. Memory that ran out is noted
 * once, and nothing is said any more.
 */
#include "serve/api/reply_form.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes ---- */

bool serve_bytes_add(struct serve_bytes *b, const char *data, size_t len)
{
    if (b->cap - b->len < len) {
        size_t cap = 2 * (b->len + len) + 64;
        char *grown = realloc(b->data, cap);
        if (grown == NULL)
            return false;
        b->data = grown;
        b->cap = cap;
    }
    if (len > 0)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    return true;
}

void serve_bytes_free(struct serve_bytes *b)
{
    free(b->data);
    *b = (struct serve_bytes){0};
}

/* ---- JSON ---- */

json_t *reply_need(struct serve_reply *reply, json_t *value)
{
    reply->no_memory = reply->no_memory || value == NULL;
    return value;
}

void reply_set(struct serve_reply *reply, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0)
        reply->no_memory = true;
}

void reply_append(struct serve_reply *reply, json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0)
        reply->no_memory = true;
}

json_t *reply_string(struct serve_reply *reply, const char *text, size_t len)
{
    return reply_need(reply, serve_json_text(text, len));
}

json_t *reply_text(struct serve_reply *reply, const struct serve_bytes *b)
{
    return reply_string(reply, b->data, b->len);
}

json_t *reply_stop(const struct reply_answer *a, json_t *none)
{
    const pith_generate_params *p = &a->reply->r->params;
    if (a->stop_word < 0)
        return none;
    json_decref(none);
    return reply_string(a->reply, p->stop[a->stop_word], p->stop_len[a->stop_word]);
}

json_t *reply_id(struct serve_reply *reply, const char *prefix)
{
    return reply_need(reply, json_sprintf("%s%s", prefix, reply->id));
}

static int dump(const char *data, size_t len, void *user)
{
    return serve_bytes_add(user, data, len) ? 0 : -1;
}

static bool write_json(const struct serve_numbers *numbers, const json_t *value,
                       struct serve_bytes *out)
{
    return serve_json_write(numbers, value, JSON_COMPACT, dump, out);
}

void reply_emit(struct serve_reply *reply, const char *name, json_t *value)
{
    size_t len = reply->out->len;
    bool ok = !reply->no_memory && value != NULL;
    if (!reply->r->reply.stream) {
        json_decref(value);
        return;
    }
    if (ok && name != NULL)
        ok = serve_bytes_add(reply->out, "event: ", 7) &&
             serve_bytes_add(reply->out, name, strlen(name)) &&
             serve_bytes_add(reply->out, "\n", 1);
    ok = ok && serve_bytes_add(reply->out, "data: ", 6) &&
         write_json(&reply->numbers, value, reply->out) && serve_bytes_add(reply->out, "\n\n", 2);
    json_decref(value);
    if (!ok) { /* no half of an event */
        reply->no_memory = true;
        reply->out->len = len;
    }
}

const char *reply_model(const struct serve_reply *reply)
{
    return reply->r->model != NULL ? reply->r->model : reply->r->model_name;
}

/* ---- its life ---- */

static const struct reply_form *const forms[] = {
    [SERVE_CHAT] = &reply_form_chat,
    [SERVE_TEXT] = &reply_form_text,
    [SERVE_COMPLETION] = &reply_form_completion,
    [SERVE_INFILL] = &reply_form_completion,
    [SERVE_MESSAGES] = &reply_form_messages,
    [SERVE_RESPONSES] = &reply_form_responses,
    [SERVE_COUNT] = &reply_form_messages,
};

static void on_event(void *user, const struct reply_event *event);

/* Adds a text in which bytes that are no character are U+FFFD. */
static bool add_characters(struct serve_bytes *b, const char *text, size_t len)
{
    size_t n;
    char *whole = serve_characters(text, len, &n);
    bool ok = whole != NULL && serve_bytes_add(b, whole, n);
    free(whole);
    return ok;
}

/* The text of a prompt: as it was given, or of its tokens. */
static bool make_echo(struct serve_reply *reply, int32_t i)
{
    const struct serve_prompt *p = &reply->r->prompts.item[i];
    const pith_model *model = reply->r->setup->model;
    size_t len = 0;
    pith_error err;
    if (p->text != NULL)
        return serve_bytes_add(&reply->echo[i], p->text, p->len);
    pith_status status = pith_detokenize(model, p->ids, p->n_id, false, NULL, 0, &len, &err);
    char *text = status == PITH_OK || status == PITH_RANGE ? malloc(len + 1) : NULL;
    bool ok =
        text != NULL &&
        pith_detokenize(model, p->ids, p->n_id, false, text, len + 1, &len, &err) == PITH_OK &&
        add_characters(&reply->echo[i], text, len);
    free(text);
    return ok;
}

static bool make_answers(struct serve_reply *reply)
{
    const struct serve_request *r = reply->r;
    char id[48];
    reply->n_answer = reply->n_pending = serve_request_answers(r);
    reply->answer = calloc((size_t)reply->n_answer, sizeof(*reply->answer));
    reply->scored = calloc((size_t)r->prompts.n, sizeof(*reply->scored));
    reply->echo = calloc((size_t)r->prompts.n, sizeof(*reply->echo));
    for (int32_t i = 0; i < r->prompts.n && r->reply.echo; i++)
        if (reply->echo == NULL || !make_echo(reply, i))
            return false;
    for (int32_t i = 0; i < reply->n_answer && reply->answer != NULL; i++) {
        struct reply_answer *a = &reply->answer[i];
        a->reply = reply;
        a->index = i;
        a->last = a->stop_word = -1;
        snprintf(id, sizeof(id), "%s%d", reply->id, i);
        if (!reply->form->parses)
            continue;
        a->parse = reply_parse_create(r, id, on_event, a);
        if (a->parse == NULL)
            return false;
    }
    return reply->answer != NULL && reply->scored != NULL && reply->echo != NULL;
}

pith_status serve_reply_create(const struct serve_request *r, int64_t now, const char *id,
                               struct serve_reply **out)
{
    struct serve_reply *reply = calloc(1, sizeof(*reply));
    if (reply == NULL)
        return PITH_NOMEM;
    reply->r = r;
    reply->now = now;
    reply->form = forms[r->api];
    reply->numbers.more = &r->source.numbers;
    reply->start_s = r->reply.timings_per_token ? reply_clock_s() : 0.0;
    snprintf(reply->id, sizeof(reply->id), "%s", id);
    if (!make_answers(reply)) {
        serve_reply_free(reply);
        return PITH_NOMEM;
    }
    *out = reply;
    return PITH_OK;
}

static void answer_free(struct reply_answer *a)
{
    for (size_t i = 0; i < a->n_call; i++) {
        free(a->call[i].id);
        free(a->call[i].name);
        serve_bytes_free(&a->call[i].args);
    }
    free(a->call);
    free(a->ids);
    reply_parse_free(a->parse);
    reply_tokens_free(&a->tokens);
    serve_bytes_free(&a->content);
    serve_bytes_free(&a->reasoning);
    serve_bytes_free(&a->raw);
    json_decref(a->items);
}

void serve_reply_free(struct serve_reply *reply)
{
    if (reply == NULL)
        return;
    for (int32_t i = 0; i < reply->n_answer && reply->answer != NULL; i++)
        answer_free(&reply->answer[i]);
    for (int32_t i = 0; i < reply->r->prompts.n && reply->scored != NULL; i++)
        reply_tokens_free(&reply->scored[i]);
    for (int32_t i = 0; i < reply->r->prompts.n && reply->echo != NULL; i++)
        serve_bytes_free(&reply->echo[i]);
    free(reply->answer);
    free(reply->scored);
    free(reply->echo);
    serve_numbers_free(&reply->numbers);
    free(reply);
}

/* ---- events ---- */

static void keep(struct serve_reply *reply, struct serve_bytes *b, const char *text, size_t len)
{
    reply->no_memory = reply->no_memory || !serve_bytes_add(b, text, len);
}

static char *copy_of(struct serve_reply *reply, const char *text)
{
    char *copy = malloc(strlen(text) + 1);
    if (copy == NULL)
        reply->no_memory = true;
    else
        memcpy(copy, text, strlen(text) + 1);
    return copy;
}

static void keep_call(struct reply_answer *a, const struct reply_event *event)
{
    struct serve_reply *reply = a->reply;
    if (a->n_call == a->cap_call) {
        size_t cap = 2 * a->cap_call + 4;
        struct reply_call *grown = realloc(a->call, cap * sizeof(*grown));
        if (grown == NULL) {
            reply->no_memory = true;
            return;
        }
        a->call = grown;
        a->cap_call = cap;
    }
    a->call[a->n_call++] = (struct reply_call){.id = copy_of(reply, event->id),
                                               .name = copy_of(reply, event->name),
                                               .custom = request_is_custom(reply->r, event->name)};
}

/* Indices of calls count from 0, so the call of an event is at its index. */
static void on_event(void *user, const struct reply_event *event)
{
    struct reply_answer *a = user;
    struct serve_reply *reply = a->reply;
    struct reply_call *call = (size_t)event->index < a->n_call ? &a->call[event->index] : NULL;
    a->said = event->type == REPLY_EVENT_CONTENT     ? REPLY_CONTENT
              : event->type == REPLY_EVENT_REASONING ? REPLY_REASONING
                                                     : REPLY_CALL;
    if (event->type == REPLY_EVENT_CONTENT)
        keep(reply, &a->content, event->text, event->len);
    else if (event->type == REPLY_EVENT_REASONING)
        keep(reply, &a->reasoning, event->text, event->len);
    else if (event->type == REPLY_EVENT_CALL_START)
        keep_call(a, event);
    else if (event->type == REPLY_EVENT_CALL_ARGS && call != NULL)
        keep(reply, &call->args, event->text, event->len);
    else if (event->type == REPLY_EVENT_CALL_END && call != NULL)
        call->ended = true, call->cut = event->cut;
    if ((reply->r->reply.stream || reply->form->blocks) && !reply->no_memory)
        reply->form->event(a, event);
}

static void feed(struct reply_answer *a, const char *text, size_t len)
{
    const struct reply_event event = {.type = REPLY_EVENT_CONTENT, .text = text, .len = len};
    a->n_text += len;
    if (a->parse == NULL)
        on_event(a, &event);
    else if (!reply_parse_feed(a->parse, text, len))
        a->reply->no_memory = true;
}

/* ---- tokens ---- */

static void begin(struct reply_answer *a)
{
    struct serve_reply *reply = a->reply;
    if (!reply->r->reply.stream || a->begun)
        return;
    reply->code = 200;
    reply->events = true;
    reply->form->begin(a);
    a->begun = true;
}

/* An echo of the prompt may come with what the model thinks of it, which is not known yet. */
bool serve_reply_open(struct serve_reply *reply, struct serve_bytes *out)
{
    if (reply->finished || !reply->r->reply.stream)
        return true;
    reply->out = out;
    reply->code = 200;
    reply->events = true;
    for (int32_t i = 0; i < reply->n_answer && !reply->r->reply.echo; i++)
        begin(&reply->answer[i]);
    return !reply->no_memory;
}

const char *serve_reply_beat(const struct serve_reply *reply)
{
    return reply->form->beat != NULL ? reply->form->beat : ": waiting\n\n";
}

static void keep_id(struct reply_answer *a, int32_t id)
{
    if (a->n_id == a->cap_id) {
        size_t cap = 2 * a->cap_id + 32;
        int32_t *grown = realloc(a->ids, cap * sizeof(*grown));
        if (grown == NULL) {
            a->reply->no_memory = true;
            return;
        }
        a->ids = grown;
        a->cap_id = cap;
    }
    a->ids[a->n_id++] = id;
}

static void keep_token(struct reply_answer *a, const pith_answer_token *token)
{
    char piece[512];
    size_t len = 0;
    const struct serve_request *r = a->reply->r;
    bool own = a->reply->form == &reply_form_completion;
    if (r->params.n_stop > 0 && pith_token_bytes(r->setup->model, token->token, r->params.special,
                                                 piece, sizeof(piece), &len) == PITH_OK)
        keep(a->reply, &a->raw, piece, len);
    if (own && !pith_token_is_end(r->setup->model, token->token))
        keep_id(a, token->token);
    if (r->reply.top_logprobs >= 0 && r->reply.after_sampling && token->sampler != NULL)
        reply_tokens_add_drawn(a->reply, &a->tokens, token->token, token->sampler);
    else if (r->reply.top_logprobs >= 0 && token->logits != NULL)
        reply_tokens_add(a->reply, &a->tokens, token->token, token->logits);
}

bool serve_reply_token(struct serve_reply *reply, int32_t i, const pith_answer_token *token,
                       struct serve_bytes *out)
{
    struct reply_answer *a = &reply->answer[i * reply->r->n_answer + token->answer];
    if (reply->finished)
        return true;
    reply->out = out;
    begin(a);
    if ((reply->r->reply.timings_per_token || reply->r->reply.predict_ms > 0) && a->n_seen == 0)
        a->first_s = reply_clock_s();
    a->n_seen += token->token >= 0;
    a->last = token->token >= 0 ? token->token : a->last;
    if (token->token >= 0)
        keep_token(a, token);
    if (token->len > 0)
        feed(a, token->text, token->len);
    a->n_thought += token->token >= 0 && a->said == REPLY_REASONING &&
                    !(a->parse != NULL && reply_parse_in_call(a->parse));
    return !reply->no_memory;
}

bool serve_reply_is_over(const struct serve_reply *reply, int32_t i, int32_t answer)
{
    const struct reply_answer *a = &reply->answer[i * reply->r->n_answer + answer];
    if (reply_has_its_call(a))
        return true;
    return reply->r->reply.predict_ms > 0 && a->content.len > 0 &&
           memchr(a->content.data, '\n', a->content.len) != NULL &&
           (reply_clock_s() - a->first_s) * 1000.0 > (double)reply->r->reply.predict_ms;
}

bool serve_reply_prompt(struct serve_reply *reply, int32_t i, int32_t pos, const float *logits)
{
    const struct serve_prompt *p = &reply->r->prompts.item[i];
    struct reply_tokens *tokens = &reply->scored[i];
    if (tokens->n == 0)
        reply_tokens_add(reply, tokens, p->ids[0], NULL);
    if (pos >= 0 && pos + 1 < p->n_id && tokens->n == (size_t)pos + 1)
        reply_tokens_add(reply, tokens, p->ids[pos + 1], logits);
    return !reply->no_memory;
}

bool serve_reply_progress(struct serve_reply *reply, int32_t i, int32_t n_cached, int32_t n_read,
                          double seconds, struct serve_bytes *out)
{
    struct reply_answer *a = &reply->answer[i * reply->r->n_answer];
    if (reply->finished || !reply->r->reply.stream || reply->form->progress == NULL)
        return true;
    reply->out = out;
    begin(a);
    reply->form->progress(a,
                          reply_need(reply, json_pack("{s:i, s:i, s:i, s:I}", "total",
                                                      (int)reply->r->prompts.item[i].n_id, "cache",
                                                      (int)n_cached, "processed", (int)n_read,
                                                      "time_ms", (json_int_t)(seconds * 1000.0))));
    return !reply->no_memory;
}

/* ---- ends ---- */

/* The stop string that ended the text: what the tokens say where the text stops, or the name of the
   last token. -1: none did. */
static int32_t find_stop(const struct reply_answer *a)
{
    char name[512];
    size_t n_name = 0;
    const struct serve_request *r = a->reply->r;
    const pith_generate_params *p = &r->params;
    if (a->reason != PITH_STOP_STRING)
        return -1;
    for (int32_t i = 0; i < p->n_stop; i++)
        if (a->n_text + p->stop_len[i] <= a->raw.len &&
            memcmp(a->raw.data + a->n_text, p->stop[i], p->stop_len[i]) == 0)
            return i;
    for (int32_t i = 0; i < p->n_stop; i++) /* where bytes before were no characters */
        for (size_t at = 0; at + p->stop_len[i] <= a->raw.len; at++)
            if (memcmp(a->raw.data + at, p->stop[i], p->stop_len[i]) == 0)
                return i;
    if (a->last < 0 ||
        pith_token_bytes(r->setup->model, a->last, true, name, sizeof(name), &n_name) != PITH_OK)
        return -1;
    for (int32_t i = 0; i < p->n_stop; i++)
        if (n_name == p->stop_len[i] && memcmp(name, p->stop[i], n_name) == 0)
            return i;
    return -1;
}

static void take_result(struct reply_answer *a, const pith_answer_result *result)
{
    a->done = true;
    a->reason = result->reason == PITH_STOP_CALLER && reply_has_its_call(a) ? PITH_STOP_END
                                                                            : result->reason;
    a->n_prompt = result->n_prompt;
    a->n_cached = result->n_cached;
    a->n_from_park = result->n_from_park;
    a->slot = result->slot;
    a->reuse = result->reuse;
    a->differs_at = result->differs_at;
    a->n_generated = result->n_generated;
    a->n_draft = result->n_draft;
    a->n_draft_accepted = result->n_draft_accepted;
    a->prompt_s = result->prompt_s;
    a->generate_s = result->generate_s;
    a->kept = result->keep;
    a->recalled = result->recall;
    a->n_predict = result->n_predict;
    a->held_bytes = result->held_bytes;
    a->full_bytes = result->full_bytes;
    a->n_recalled = result->n_recalled;
    a->stop_word = find_stop(a);
}

static bool write_document(struct serve_reply *reply)
{
    json_t *document = reply_need(reply, reply->form->document(reply));
    size_t len = reply->out->len;
    bool ok = !reply->no_memory && write_json(&reply->numbers, document, reply->out);
    json_decref(document);
    if (!ok) {
        reply->no_memory = true;
        reply->out->len = len;
    }
    return ok;
}

bool serve_reply_done(struct serve_reply *reply, int32_t i, const pith_answer_result *result,
                      struct serve_bytes *out)
{
    struct reply_answer *a = &reply->answer[i * reply->r->n_answer + result->answer];
    struct serve_fault fault = {0};
    if (reply->finished || a->done)
        return true;
    reply->out = out;
    if (result->status != PITH_OK) {
        serve_fault_status(&fault, result->status, result->message, 0, 0);
        return serve_reply_fail(reply, &fault, out);
    }
    begin(a);
    take_result(a, result);
    if (a->parse != NULL &&
        !reply_parse_finish(a->parse, a->reason != PITH_STOP_END && a->reason != PITH_STOP_STRING))
        reply->no_memory = true;
    if (reply->r->reply.stream)
        reply->form->end(a);
    if (--reply->n_pending > 0)
        return !reply->no_memory;
    reply->code = 200;
    reply->finished = true;
    if (reply->r->reply.stream)
        reply->form->finish(reply);
    else
        write_document(reply);
    return !reply->no_memory;
}

bool serve_reply_fail(struct serve_reply *reply, const struct serve_fault *fault,
                      struct serve_bytes *out)
{
    if (reply->finished)
        return true;
    reply->out = out;
    reply->finished = true;
    reply->fault = *fault;
    if (reply->events) {
        reply->form->fault(reply);
        return !reply->no_memory;
    }
    reply->code = fault->code;
    return serve_fault_write(fault, reply->r->api, out);
}

int serve_reply_code(const struct serve_reply *reply)
{
    return reply->code;
}

bool serve_reply_is_events(const struct serve_reply *reply)
{
    return reply->events;
}

bool serve_reply_finished(const struct serve_reply *reply)
{
    return reply->finished;
}

const struct serve_fault *serve_reply_fault(const struct serve_reply *reply)
{
    return &reply->fault;
}

/* ---- documents of their own ---- */

static bool write_own(json_t *value, struct serve_bytes *out)
{
    size_t len = out->len;
    bool ok = write_json(NULL, value, out);
    json_decref(value);
    if (!ok)
        out->len = len;
    return ok;
}

bool serve_fault_write(const struct serve_fault *fault, enum serve_api api, struct serve_bytes *out)
{
    return write_own(serve_fault_json(fault, api), out);
}

/* Anthropic's names for HTTP statuses. */
static const char *their_type(const struct serve_fault *fault)
{
    return fault->code == 401   ? "authentication_error"
           : fault->code == 403 ? "permission_error"
           : fault->code == 404 ? "not_found_error"
           : fault->code == 413 ? "request_too_large"
           : fault->code == 429 ? "rate_limit_error"
           : fault->code == 503 ? "overloaded_error"
           : fault->code == 504 ? "timeout_error"
           : fault->code >= 500 ? "api_error"
                                : SERVE_INVALID;
}

bool serve_fault_is_context(const struct serve_fault *fault)
{
    return fault->n_ctx > 0 && fault->n_prompt_tokens > 0;
}

/* A prompt that is too long, in the words of the API by which clients know that they have to
   shorten it. These are OpenAI's and vLLM's, Anthropic's, and for its own paths llama-server's. */
static json_t *too_long(const struct serve_fault *fault, enum serve_api api)
{
    long long n = (long long)fault->n_prompt_tokens, most = (long long)fault->n_ctx;
    if (api == SERVE_MESSAGES || api == SERVE_COUNT)
        return json_sprintf("prompt is too long: %lld tokens > %lld maximum", n, most - 1);
    if (api == SERVE_COMPLETION || api == SERVE_INFILL)
        return json_sprintf("request (%lld tokens) exceeds the available context size (%lld "
                            "tokens), try increasing it",
                            n, most);
    return json_sprintf("This model's maximum context length is %lld tokens. However, your %s "
                        "resulted in %lld tokens, which leave no room for an answer.",
                        most,
                        api == SERVE_TEXT        ? "prompt"
                        : api == SERVE_RESPONSES ? "input"
                                                 : "messages",
                        n);
}

/* llama-server's code is the status; OpenAI's is a word. */
static json_t *code_json(const struct serve_fault *fault, enum serve_api api)
{
    bool own = api == SERVE_COMPLETION || api == SERVE_INFILL;
    return serve_fault_is_context(fault) && !own ? json_string(SERVE_TOO_LONG)
                                                 : json_integer(fault->code);
}

/* /v1/responses calls the messages its input. */
static const char *their_param(const struct serve_fault *fault, enum serve_api api)
{
    bool input =
        api == SERVE_RESPONSES && fault->param != NULL && strcmp(fault->param, "messages") == 0;
    return input ? "input" : fault->param;
}

static json_t *words(const struct serve_fault *fault, enum serve_api api)
{
    const char *text = fault->message, *own = "messages: ";
    if (serve_fault_is_context(fault))
        return too_long(fault, api);
    if (api != SERVE_RESPONSES || strncmp(text, own, strlen(own)) != 0)
        return serve_json_text(text, strlen(text));
    return json_sprintf("input: %s", text + strlen(own));
}

json_t *serve_fault_json(const struct serve_fault *fault, enum serve_api api)
{
    json_t *text = words(fault, api);
    if (api == SERVE_MESSAGES || api == SERVE_COUNT)
        return json_pack("{s:s, s:{s:s, s:o}}", "type", "error", "error", "type", their_type(fault),
                         "message", text);
    json_t *error = json_pack("{s:o, s:o, s:s, s:s?}", "code", code_json(fault, api), "message",
                              text, "type", fault->type, "param", their_param(fault, api));
    if (fault->n_ctx > 0 || fault->n_prompt_tokens > 0) {
        json_object_set_new(error, "n_prompt_tokens", json_integer(fault->n_prompt_tokens));
        json_object_set_new(error, "n_ctx", json_integer(fault->n_ctx));
    }
    return json_pack("{s:o}", "error", error);
}

bool serve_count_write(const struct serve_request *r, struct serve_bytes *out)
{
    const char *object = r->api == SERVE_RESPONSES ? "response.input_tokens" : NULL;
    return write_own(json_pack("{s:s*, s:I}", "object", object, "input_tokens",
                               (json_int_t)serve_request_n_prompt(r)),
                     out);
}

static json_t *prompt_json(const struct serve_request *r, int32_t i)
{
    pith_generate_params params;
    pith_request request;
    json_t *ids = json_array();
    serve_request_get(r, i, &params, &request);
    for (int32_t k = 0; k < request.n_prompt; k++)
        json_array_append_new(ids, json_integer(request.prompt[k]));
    return json_pack("{s:o}", "token_ids", ids);
}

bool serve_render_write(const struct serve_request *r, struct serve_bytes *out)
{
    if (r->api == SERVE_CHAT)
        return write_own(prompt_json(r, 0), out);
    json_t *list = json_array();
    for (int32_t i = 0; i < serve_request_count(r); i++)
        json_array_append_new(list, prompt_json(r, i));
    return write_own(list, out);
}
