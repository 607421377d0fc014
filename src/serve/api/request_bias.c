/*
 * request_bias.c - logit_bias: what is added to the logits of tokens, which are named by id or by
 * text. A text stands for each of its tokens, as in llama-server.
 *
 * Invariant: a key that is a whole number is an id, also where it is a text of the vocabulary.
 */
#include "serve/api/request_body.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct biases {
    pith_logit_bias *at; /* [n] of room for cap; the request's */
    size_t n, cap;
};

static void add(struct serve_reader *rd, struct biases *list, int32_t token, float bias)
{
    if (list->n == list->cap) {
        size_t cap = 2 * list->cap + 16;
        pith_logit_bias *grown = request_alloc(rd, cap, sizeof(*grown));
        if (grown == NULL)
            return;
        if (list->n > 0)
            memcpy(grown, list->at, list->n * sizeof(*grown));
        list->at = grown;
        list->cap = cap;
    }
    list->at[list->n++] = (pith_logit_bias){token, bias};
}

/* A number; false bans the token. name is how a fault calls the token. */
static bool read_bias(struct serve_reader *rd, const char *name, const json_t *value, float *out)
{
    char buf[SERVE_SHOW];
    *out = json_is_false(value) ? -INFINITY : (float)json_number_value(value);
    if (json_is_false(value) || (json_is_number(value) && fabs(json_number_value(value)) <= 1e6))
        return true;
    SERVE_FAULT(rd, "logit_bias", "logit_bias: %s, for token %s, is no number up to 1000000",
                request_show(rd, value, buf), name);
    return false;
}

static void add_id(struct serve_reader *rd, struct biases *list, int64_t id, const json_t *value)
{
    char name[32];
    float bias = 0.0f;
    pith_model_info info = {.n_vocab = INT32_MAX};
    snprintf(name, sizeof(name), "%lld", (long long)id);
    if (rd->setup->model != NULL)
        pith_model_get_info(rd->setup->model, &info);
    if (id < 0 || id >= info.n_vocab)
        SERVE_FAULT(rd, "logit_bias", "logit_bias: %s is not a token id", name);
    else if (read_bias(rd, name, value, &bias))
        add(rd, list, (int32_t)id, bias);
}

/* Names of special tokens are text here: a control token has its id only. */
static void add_text(struct serve_reader *rd, struct biases *list, const char *text, size_t len,
                     const json_t *value)
{
    char name[SERVE_SHOW + 2], shown[SERVE_SHOW];
    struct serve_prompt tokens = {0};
    float bias = 0.0f;
    snprintf(name, sizeof(name), "\"%s\"", serve_show_text(text, len, shown));
    if (len == 0)
        SERVE_FAULT(rd, "logit_bias", "logit_bias: \"\" has no tokens");
    else if (read_bias(rd, name, value, &bias) && rd->setup->model != NULL)
        request_tokenize(rd, &tokens, text, len, 0);
    for (int32_t i = 0; i < tokens.n_id && !request_is_bad(rd); i++)
        add(rd, list, tokens.ids[i], bias);
}

static void read_map(struct serve_reader *rd, const json_t *map, struct biases *list)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)map, key, value)
    {
        char *end;
        errno = 0;
        long long id = strtoll(key, &end, 10);
        if (end != key && *end == '\0' && errno == 0)
            add_id(rd, list, id, value);
        else
            add_text(rd, list, key, strlen(key), value);
        if (request_is_bad(rd))
            return;
    }
}

static void read_pairs(struct serve_reader *rd, const json_t *pairs, struct biases *list)
{
    char buf[SERVE_SHOW];
    for (size_t i = 0; i < json_array_size(pairs) && !request_is_bad(rd); i++) {
        const json_t *pair = json_array_get(pairs, i);
        const json_t *token = json_array_get(pair, 0), *value = json_array_get(pair, 1);
        int64_t id;
        if (json_array_size(pair) == 2 && request_whole(token, &id))
            add_id(rd, list, id, value);
        else if (json_array_size(pair) == 2 && json_is_string(token))
            add_text(rd, list, json_string_value(token), json_string_length(token), value);
        else
            SERVE_FAULT(rd, "logit_bias", "logit_bias[%zu]: %s is not a pair of a token and a bias",
                        i, request_show(rd, pair, buf));
    }
}

void request_read_biases(struct serve_reader *rd, const json_t *bias)
{
    struct biases list = {0};
    if (bias == NULL)
        return;
    if (json_is_object(bias))
        read_map(rd, bias, &list);
    else if (json_is_array(bias))
        read_pairs(rd, bias, &list);
    else
        request_wrong_type(rd, "logit_bias", bias, "an object or an array of pairs");
    if (list.n > INT32_MAX)
        SERVE_FAULT(rd, "logit_bias", "logit_bias: %zu are too many", list.n);
    rd->r->params.sample.bias = list.at;
    rd->r->params.sample.n_bias = (int32_t)list.n;
}
