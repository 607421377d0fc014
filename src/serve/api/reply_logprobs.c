/*
 * reply_logprobs.c - the probabilities of tokens: gathered from a model's logits, and in the
 * layouts of chats, of texts, and of llama-server's own completion.
 *
 * log p = logit - (max + ln sum exp(logit - max)), of the row as the model made it: before bias,
 * penalties and temperature. With post_sampling_probs the sampler says p, after all of its steps.
 */
#include "serve/api/reply_form.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOGPROB_LEAST (-9999.0f) /* JSON has no infinity: others' word for "never" */
#define PIECE_CAP 512            /* bytes of a token; longer ones are cut */

/* ---- gathering ---- */

/* The likeliest of a row, best first, of equal ones the lower id. */
static int32_t find_top(const float *logits, int32_t n_vocab, int32_t n, struct reply_choice *top)
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
        top[at] = (struct reply_choice){id, logits[id]};
    }
    return n_top;
}

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

static size_t token_bytes(const struct serve_reply *reply, int32_t id, bool special, char *piece)
{
    size_t len = 0;
    return pith_token_bytes(reply->r->setup->model, id, special, piece, PIECE_CAP, &len) == PITH_OK
               ? len
               : 0;
}

static struct reply_token *add(struct reply_tokens *tokens)
{
    if (tokens->n == tokens->cap) {
        size_t cap = 2 * tokens->cap + 16;
        struct reply_token *grown = realloc(tokens->at, cap * sizeof(*grown));
        if (grown == NULL)
            return NULL;
        tokens->at = grown;
        tokens->cap = cap;
    }
    struct reply_token *t = &tokens->at[tokens->n++];
    *t = (struct reply_token){0};
    return t;
}

/* Bytes of the text behind one more token. The text has U+FFFD in place of bytes that are no
   character. A character that is not whole yet counts with the bytes that it has. */
static size_t text_behind(struct serve_reply *reply, struct reply_tokens *tokens, int32_t id)
{
    char piece[PIECE_CAP], whole[3 * (PIECE_CAP + 4)];
    size_t len = token_bytes(reply, id, reply->r->params.special, piece);
    tokens->n_text += pith_utf8_push(&tokens->utf8, piece, len, whole, sizeof(whole));
    return tokens->n_text + tokens->utf8.n_pending;
}

/* A further token, at its place in the text. */
static struct reply_token *append(struct serve_reply *reply, struct reply_tokens *tokens,
                                  int32_t id)
{
    struct reply_token *t = add(tokens);
    if (t == NULL) {
        reply->no_memory = true;
        return NULL;
    }
    t->chosen.id = id;
    if (tokens->n > 1)
        t->offset = text_behind(reply, tokens, t[-1].chosen.id);
    return t;
}

void reply_tokens_add(struct serve_reply *reply, struct reply_tokens *tokens, int32_t id,
                      const float *logits)
{
    pith_model_info info;
    struct reply_token *t = append(reply, tokens, id);
    if (t == NULL)
        return;
    pith_model_get_info(reply->r->setup->model, &info);
    t->first = logits == NULL;
    if (logits != NULL) {
        double norm = log_of_sum(logits, info.n_vocab);
        t->chosen.logprob = logprob_of(logits[id], norm);
        t->n_top = find_top(logits, info.n_vocab, reply->r->reply.top_logprobs, t->top);
        for (int32_t i = 0; i < t->n_top; i++)
            t->top[i].logprob = logprob_of(t->top[i].logprob, norm);
    }
}

void reply_tokens_add_drawn(struct serve_reply *reply, struct reply_tokens *tokens, int32_t id,
                            pith_sampler *sampler)
{
    pith_chance top[SERVE_TOP_MAX];
    struct reply_token *t = append(reply, tokens, id);
    if (t == NULL)
        return;
    t->chosen.logprob = pith_sampler_chance(sampler, id);
    t->n_top = pith_sampler_chances(sampler, top, reply->r->reply.top_logprobs);
    for (int32_t i = 0; i < t->n_top; i++)
        t->top[i] = (struct reply_choice){top[i].token, top[i].p};
}

void reply_tokens_free(struct reply_tokens *tokens)
{
    free(tokens->at);
    *tokens = (struct reply_tokens){0};
}

size_t reply_tokens_told(const struct reply_answer *a)
{
    size_t n = a->tokens.n;
    if (!a->done)
        while (n > a->n_sent && a->tokens.at[n - 1].offset >= a->n_text)
            n--;
    while (a->done && a->reason == PITH_STOP_STRING && n > 0 &&
           a->tokens.at[n - 1].offset >= a->n_text)
        n--;
    return n;
}

/* ---- chats ---- */

static json_t *choice_json(struct serve_reply *reply, const struct reply_choice *c)
{
    char piece[PIECE_CAP];
    size_t len = token_bytes(reply, c->id, true, piece);
    json_t *bytes = reply_need(reply, json_array());
    for (size_t i = 0; i < len; i++)
        reply_append(reply, bytes, json_integer((unsigned char)piece[i]));
    return reply_need(reply, json_pack("{s:o, s:f, s:o}", "token", reply_string(reply, piece, len),
                                       reply->r->reply.after_sampling ? "prob" : "logprob",
                                       (double)c->logprob, "bytes", bytes));
}

static json_t *top_json(struct serve_reply *reply, const struct reply_token *t)
{
    json_t *top = reply_need(reply, json_array());
    for (int32_t k = 0; k < t->n_top; k++)
        reply_append(reply, top, choice_json(reply, &t->top[k]));
    return top;
}

static json_t *list_json(struct serve_reply *reply, const struct reply_tokens *tokens, size_t from,
                         size_t to, bool ids)
{
    json_t *list = reply_need(reply, json_array());
    for (size_t i = from; i < to; i++) {
        const struct reply_token *t = &tokens->at[i];
        json_t *one = choice_json(reply, &t->chosen), *top = top_json(reply, t);
        for (int32_t k = 0; ids && k < t->n_top; k++)
            reply_set(reply, json_array_get(top, (size_t)k), "id", json_integer(t->top[k].id));
        if (ids)
            reply_set(reply, one, "id", json_integer(t->chosen.id));
        reply_set(reply, one, reply->r->reply.after_sampling ? "top_probs" : "top_logprobs", top);
        reply_append(reply, list, one);
    }
    return list;
}

json_t *reply_chat_logprobs(struct serve_reply *reply, const struct reply_tokens *tokens,
                            size_t from, size_t to)
{
    return reply_need(reply, json_pack("{s:o, s:n}", "content",
                                       list_json(reply, tokens, from, to, false), "refusal"));
}

json_t *reply_own_logprobs(struct serve_reply *reply, const struct reply_tokens *tokens,
                           size_t from, size_t to)
{
    return list_json(reply, tokens, from, to, true);
}

/* ---- texts ---- */

/* The older layout: lists side by side, and the likeliest as an object by their texts. */
struct lists {
    json_t *tokens, *logprobs, *tops, *offsets;
    const char *text; /* [len] that offsets count characters of */
    size_t len, at;
    json_int_t n_char;
};

static json_t *token_text(struct serve_reply *reply, int32_t id)
{
    char piece[PIECE_CAP];
    size_t len = token_bytes(reply, id, true, piece);
    return reply_string(reply, piece, len);
}

static void add_token(struct serve_reply *reply, const struct reply_token *t, struct lists *l)
{
    for (; l->at < t->offset && l->at < l->len; l->at++)
        l->n_char += ((unsigned char)l->text[l->at] & 0xc0) != 0x80;
    json_t *top = t->first ? json_null() : reply_need(reply, json_object());
    for (int32_t k = t->n_top - 1; k >= 0; k--) { /* of equal texts the likelier stays */
        json_t *name = token_text(reply, t->top[k].id);
        if (name != NULL)
            reply_set(reply, top, json_string_value(name), json_real((double)t->top[k].logprob));
        json_decref(name);
    }
    reply_append(reply, l->tokens, token_text(reply, t->chosen.id));
    reply_append(reply, l->logprobs, t->first ? json_null() : json_real((double)t->chosen.logprob));
    reply_append(reply, l->tops, top);
    reply_append(reply, l->offsets, json_integer(l->n_char));
}

static void start(struct lists *l, const char *text, size_t len)
{
    l->text = text;
    l->len = len;
    l->at = 0;
}

json_t *reply_text_logprobs(struct serve_reply *reply, const struct reply_answer *a, size_t from,
                            size_t to)
{
    struct lists l = {reply_need(reply, json_array()),
                      reply_need(reply, json_array()),
                      reply_need(reply, json_array()),
                      reply_need(reply, json_array()),
                      NULL,
                      0,
                      0,
                      0};
    int32_t i_prompt = a->index / reply->r->n_answer;
    const struct reply_tokens *prompt = &reply->scored[i_prompt];
    const struct serve_bytes *echo = &reply->echo[i_prompt]; /* empty, where it is not wanted */
    start(&l, echo->data, echo->len);
    for (size_t i = 0; i < prompt->n && !a->begun; i++)
        add_token(reply, &prompt->at[i], &l);
    for (; l.at < echo->len; l.at++)
        l.n_char += ((unsigned char)echo->data[l.at] & 0xc0) != 0x80;
    start(&l, a->content.data, a->content.len);
    for (size_t i = from; i < to; i++)
        add_token(reply, &a->tokens.at[i], &l);
    return reply_need(reply,
                      json_pack("{s:o, s:o, s:o, s:o}", "tokens", l.tokens, "token_logprobs",
                                l.logprobs, "top_logprobs", l.tops, "text_offset", l.offsets));
}
