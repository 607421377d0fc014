/*
 * batch_answer.c - answers of a batch as JSON. It knows the layout of the output file, and not who
 * makes the tokens.
 *
 * Invariant: what is written depends on the request, its place in the input and its tokens; of the
 * clock only "created" does.
 */
#include "batch_answer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "io.h"

#define LOGPROB_LEAST (-9999.0f) /* JSON has no infinity: others' word for "never" */
#define PIECE_CAP 512            /* bytes of a token; longer ones are cut in logprobs */

struct choice {
    int32_t id;
    float logprob;
};

struct batch_token {
    struct choice chosen;
    size_t offset; /* bytes of the text before it */
    int32_t n_top;
    struct choice top[BATCH_TOP_MAX]; /* [n_top] the likeliest, best first */
};

/* ---- gathering ---- */

/* Room for n elements; the first `used` are kept. */
static void *with_room(void *old, size_t used, size_t n, size_t *cap, size_t size)
{
    if (n <= *cap)
        return old;
    size_t most = 2 * n;
    char *block = cli_alloc(most, size);
    if (used > 0)
        memcpy(block, old, used * size);
    free(old);
    *cap = most;
    return block;
}

/* The likeliest of a row, best first, of equal ones the lower id. */
static int32_t find_top(const float *logits, int32_t n_vocab, int32_t n, struct choice *top)
{
    int32_t n_top = 0;
    for (int32_t id = 0; id < n_vocab; id++) {
        int32_t at = n_top < n ? n_top : n;
        if (n == 0 || (n_top == n && logits[id] <= top[n - 1].logprob))
            continue;
        if (n_top < n)
            n_top++;
        else
            at = n - 1;
        for (; at > 0 && logits[id] > top[at - 1].logprob; at--)
            top[at] = top[at - 1];
        top[at] = (struct choice){id, logits[id]};
    }
    return n_top;
}

/* log p = logit - (max + ln sum exp(logit - max)), of the row as the model made it: before bias,
   penalties and temperature. */
static double log_of_sum(const float *logits, int32_t n_vocab)
{
    double max = -INFINITY, sum = 0.0;
    for (int32_t i = 0; i < n_vocab; i++)
        max = fmax(max, logits[i]);
    for (int32_t i = 0; i < n_vocab; i++)
        sum += exp(logits[i] - max);
    return max + log(sum);
}

static float logprob_of(float logit, double norm)
{
    return fmaxf((float)(logit - norm), LOGPROB_LEAST);
}

static size_t token_bytes(const pith_model *model, int32_t id, bool special, char *piece)
{
    size_t len = 0;
    return pith_token_bytes(model, id, special, piece, PIECE_CAP, &len) == PITH_OK ? len : 0;
}

static void add_logprobs(struct batch_answer *answer, const struct batch_line *line,
                         const pith_model *model, const pith_answer_token *token)
{
    pith_model_info info;
    char piece[PIECE_CAP];
    pith_model_get_info(model, &info);
    answer->token = with_room(answer->token, answer->n_token, answer->n_token + 1,
                              &answer->cap_token, sizeof(*answer->token));
    struct batch_token *t = &answer->token[answer->n_token++];
    double norm = log_of_sum(token->logits, info.n_vocab);
    t->chosen = (struct choice){token->token, logprob_of(token->logits[token->token], norm)};
    t->n_top = find_top(token->logits, info.n_vocab, line->top_logprobs, t->top);
    for (int32_t i = 0; i < t->n_top; i++)
        t->top[i].logprob = logprob_of(t->top[i].logprob, norm);
    if (answer->n_token > 1) {
        const struct batch_token *last = t - 1;
        t->offset = last->offset + token_bytes(model, last->chosen.id, line->params.special, piece);
    }
}

void batch_answer_add(struct batch_answer *answer, const struct batch_line *line,
                      const pith_model *model, const pith_answer_token *token)
{
    if (token->len > 0) {
        answer->text =
            with_room(answer->text, answer->len, answer->len + token->len, &answer->cap, 1);
        memcpy(answer->text + answer->len, token->text, token->len);
        answer->len += token->len;
    }
    if (line->top_logprobs >= 0 && token->token >= 0 && token->logits != NULL)
        add_logprobs(answer, line, model, token);
}

void batch_answer_free(struct batch_answer *answer)
{
    free(answer->text);
    free(answer->token);
    *answer = (struct batch_answer){0};
}

/* ---- JSON ---- */

static json_t *need(json_t *value)
{
    if (value == NULL)
        cli_fail("no memory for a line of the output");
    return value;
}

static void set(json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0)
        cli_fail("no memory for a line of the output");
}

static void append(json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0)
        cli_fail("no memory for a line of the output");
}

static json_t *text_json(const char *text, size_t len)
{
    return need(cli_json_text(text != NULL ? text : "", len));
}

/* 128 bits from the request's name and place, FNV-1a twice from two beginnings; as hexadecimal
   digits into buf [33]. */
static const char *make_id(const struct batch_reply *r, char *buf)
{
    for (uint64_t part = 0; part < 2; part++) {
        uint64_t hash = 0xcbf29ce484222325u;
        hash = (hash ^ part) * 0x100000001b3u;
        for (const char *c = r->line->custom_id; *c != '\0'; c++)
            hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
        for (int i = 0; i < 8; i++)
            hash = (hash ^ ((uint64_t)r->number >> (8 * i) & 0xff)) * 0x100000001b3u;
        snprintf(buf + 16 * part, 17, "%016llx", (unsigned long long)hash);
    }
    return buf;
}

static json_t *prefixed(const char *prefix, const char *id)
{
    return need(json_sprintf("%s%s", prefix, id));
}

/* ---- log probabilities ---- */

/* Tokens that the text holds at least the beginning of: those of a stop string are not in it. */
static size_t tokens_in_text(const struct batch_answer *a)
{
    size_t n = a->n_token;
    while (a->reason == PITH_STOP_STRING && n > 0 && a->token[n - 1].offset >= a->len)
        n--;
    return n;
}

static json_t *choice_json(const pith_model *model, const struct choice *c)
{
    char piece[PIECE_CAP];
    size_t len = token_bytes(model, c->id, true, piece);
    json_t *bytes = need(json_array());
    for (size_t i = 0; i < len; i++)
        append(bytes, json_integer((unsigned char)piece[i]));
    return need(json_pack("{s:o, s:f, s:o}", "token", text_json(piece, len), "logprob",
                          (double)c->logprob, "bytes", bytes));
}

static json_t *chat_logprobs(const struct batch_reply *r, const struct batch_answer *a)
{
    json_t *content = need(json_array());
    size_t n = tokens_in_text(a);
    for (size_t i = 0; i < n; i++) {
        const struct batch_token *t = &a->token[i];
        json_t *one = choice_json(r->model, &t->chosen), *top = need(json_array());
        for (int32_t k = 0; k < t->n_top; k++)
            append(top, choice_json(r->model, &t->top[k]));
        set(one, "top_logprobs", top);
        append(content, one);
    }
    return need(json_pack("{s:o, s:n}", "content", content, "refusal"));
}

static json_t *token_text(const struct batch_reply *r, int32_t id)
{
    char piece[PIECE_CAP];
    return text_json(piece, token_bytes(r->model, id, true, piece));
}

/* The older layout: lists side by side, and the likeliest as an object by their texts. */
static json_t *text_logprobs(const struct batch_reply *r, const struct batch_answer *a)
{
    json_t *tokens = need(json_array()), *logprobs = need(json_array());
    json_t *tops = need(json_array()), *offsets = need(json_array());
    size_t n = tokens_in_text(a);
    json_int_t n_char = 0;
    for (size_t i = 0, at = 0; i < n; i++) {
        const struct batch_token *t = &a->token[i];
        for (; at < t->offset && at < a->len; at++)
            n_char += ((unsigned char)a->text[at] & 0xc0) != 0x80;
        json_t *top = need(json_object());
        for (int32_t k = t->n_top - 1; k >= 0; k--) { /* of equal texts the likelier stays */
            json_t *name = token_text(r, t->top[k].id);
            set(top, json_string_value(name), json_real((double)t->top[k].logprob));
            json_decref(name);
        }
        append(tokens, token_text(r, t->chosen.id));
        append(logprobs, json_real((double)t->chosen.logprob));
        append(tops, top);
        append(offsets, json_integer(n_char));
    }
    return need(json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", logprobs,
                          "top_logprobs", tops, "text_offset", offsets));
}

/* ---- bodies ---- */

/* Memory that ran out is told as a length that was reached, which it is for whoever asked. */
static const char *finish_reason(pith_stop_reason reason)
{
    return reason == PITH_STOP_END || reason == PITH_STOP_STRING ? "stop" : "length";
}

static json_t *choice_body(const struct batch_reply *r, int32_t index)
{
    const struct batch_answer *a = &r->answer[index];
    bool chat = r->line->endpoint == BATCH_CHAT, logprobs = r->line->top_logprobs >= 0;
    json_t *choice = need(json_pack("{s:i}", "index", (int)index));
    json_t *text = text_json(a->text, a->len);
    if (chat)
        set(choice, "message", need(json_pack("{s:s, s:o}", "role", "assistant", "content", text)));
    else
        set(choice, "text", text);
    set(choice, "logprobs",
        !logprobs ? json_null()
        : chat    ? chat_logprobs(r, a)
                  : text_logprobs(r, a));
    set(choice, "finish_reason", json_string(finish_reason(a->reason)));
    return choice;
}

static json_t *usage_json(const struct batch_reply *r)
{
    json_int_t generated = 0, cached = 0;
    int32_t n_each = r->line->n_answer;
    for (int32_t i = 0; i < r->n_answer; i++) {
        generated += r->answer[i].n_generated;
        if (i % n_each == 0) /* answers to one prompt have it in common */
            cached += r->answer[i].n_cached;
    }
    return need(json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens",
                          (json_int_t)r->n_prompt_token, "completion_tokens", generated,
                          "total_tokens", (json_int_t)r->n_prompt_token + generated,
                          "prompt_tokens_details", "cached_tokens", cached));
}

static json_t *body_json(const struct batch_reply *r)
{
    char id[33];
    pith_model_info info;
    bool chat = r->line->endpoint == BATCH_CHAT;
    json_t *choices = need(json_array());
    pith_model_get_info(r->model, &info);
    const char *model = r->line->model != NULL ? r->line->model : info.name;
    for (int32_t i = 0; i < r->n_answer; i++)
        append(choices, choice_body(r, i));
    return need(json_pack("{s:o, s:s, s:I, s:o, s:o, s:o, s:o}", "id",
                          prefixed(chat ? "chatcmpl-" : "cmpl-", make_id(r, id)), "object",
                          chat ? "chat.completion" : "text_completion", "created",
                          (json_int_t)time(NULL), "model", text_json(model, strlen(model)),
                          "system_fingerprint", prefixed("pith-", pith_version()), "choices",
                          choices, "usage", usage_json(r)));
}

/* ---- lines ---- */

/* Takes response and error over. */
static json_t *line_json(const struct batch_reply *r, json_t *response, json_t *error)
{
    char id[33];
    const char *name = r->line->custom_id;
    return need(json_pack("{s:o, s:o, s:o, s:o}", "id", prefixed("batch_req_", make_id(r, id)),
                          "custom_id", text_json(name, strlen(name)), "response", response, "error",
                          error));
}

static json_t *response_json(const struct batch_reply *r, int code, json_t *body)
{
    char id[33];
    return need(json_pack("{s:i, s:o, s:o}", "status_code", code, "request_id",
                          prefixed("req_", make_id(r, id)), "body", body));
}

json_t *batch_reply_answered(const struct batch_reply *reply)
{
    return line_json(reply, response_json(reply, 200, body_json(reply)), json_null());
}

json_t *batch_reply_refused(const struct batch_reply *reply, const struct batch_fault *fault)
{
    char message[sizeof(fault->message) + 32];
    int len = snprintf(message, sizeof(message), "line %lld: %s", (long long)reply->number,
                       fault->message);
    json_t *text = text_json(message, (size_t)len), *code = need(json_string(fault->type));
    json_t *param = fault->param != NULL ? need(json_string(fault->param)) : json_null();
    json_t *error = need(json_pack("{s:O, s:O, s:o, s:i}", "message", text, "type", code, "param",
                                   param, "code", fault->code));
    json_t *body = need(json_pack("{s:o}", "error", error));
    return line_json(reply, response_json(reply, fault->code, body),
                     need(json_pack("{s:o, s:o}", "code", code, "message", text)));
}

json_t *batch_reply_failed(const struct batch_reply *reply, pith_status status, const char *message)
{
    static const struct {
        pith_status status;
        const char *type;
    } refused[] = {
        {PITH_INVALID, "invalid_request_error"},     {PITH_UNSUPPORTED, "invalid_request_error"},
        {PITH_NOT_FOUND, "invalid_request_error"},   {PITH_KV_FULL, "kv_budget_exceeded"},
        {PITH_CONTEXT, "exceed_context_size_error"},
    };
    struct batch_fault fault = {.code = 400};
    snprintf(fault.message, sizeof(fault.message), "%s", message);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        if (refused[i].status == status) {
            fault.type = refused[i].type;
            return batch_reply_refused(reply, &fault);
        }
    char line[sizeof(fault.message) + 32];
    int len =
        snprintf(line, sizeof(line), "line %lld: %s", (long long)reply->number, fault.message);
    return line_json(reply, json_null(),
                     need(json_pack("{s:s, s:o}", "code", "server_error", "message",
                                    text_json(line, (size_t)len))));
}
