/*
 * request_prompts.c - prompts that are texts or tokens: one, or an array of them.
 */
#include "serve/api/request_body.h"

#include <string.h>

/* ---- tokens ---- */

void request_tokenize(struct serve_reader *rd, struct serve_prompt *p, const char *text, size_t len,
                      uint32_t flags)
{
    pith_error err;
    const pith_model *model = rd->setup->model;
    int32_t n = 0;
    pith_status status = pith_tokenize(model, text, len, flags, NULL, 0, &n, &err);
    if (status == PITH_RANGE) {
        int32_t *ids = request_alloc(rd, (size_t)p->n_id + (size_t)n + 1, sizeof(*ids));
        if (ids == NULL)
            return;
        if (p->n_id > 0)
            memcpy(ids, p->ids, (size_t)p->n_id * sizeof(*ids));
        p->ids = ids;
        status = pith_tokenize(model, text, len, flags, ids + p->n_id, n, &n, &err);
    }
    if (status != PITH_OK)
        SERVE_FAULT(rd, "prompt", "prompt: %s", err.message);
    else
        p->n_id += n;
}

/* A prompt is the model's whole input, so that names of special tokens in it are those tokens.
   With them a client renders a chat or names a gap. */
static uint32_t text_flags(const struct serve_reader *rd)
{
    return (rd->setup->no_bos ? 0 : PITH_TOKENIZE_BOS) |
           (rd->setup->plain_prompts ? 0 : PITH_TOKENIZE_SPECIAL);
}

static bool read_id(struct serve_reader *rd, const json_t *id, int32_t *out)
{
    char buf[SERVE_SHOW];
    pith_model_info info = {.n_vocab = INT32_MAX};
    int64_t value;
    if (rd->setup->model != NULL)
        pith_model_get_info(rd->setup->model, &info);
    if (!request_whole(id, &value) || value < 0 || value >= info.n_vocab) {
        SERVE_FAULT(rd, "prompt", "prompt: %s is not a token id", request_show(rd, id, buf));
        return false;
    }
    *out = (int32_t)value;
    return true;
}

/* Ids of one prompt. */
static void read_ids(struct serve_reader *rd, const json_t *ids, struct serve_prompt *out)
{
    size_t n = json_array_size(ids);
    if (n == 0)
        SERVE_FAULT(rd, "prompt", "prompt: a prompt of no tokens");
    if (n > INT32_MAX)
        SERVE_FAULT(rd, "prompt", "prompt: %zu tokens are too many", n);
    out->ids = request_is_bad(rd) ? NULL : request_alloc(rd, n + 1, sizeof(*out->ids));
    for (size_t i = 0; out->ids != NULL && i < n; i++)
        if (!read_id(rd, json_array_get(ids, i), &out->ids[i]))
            return;
    out->n_id = (int32_t)n;
}

/* llama-server's own: ids and texts that follow each other. */
static void read_mixed(struct serve_reader *rd, const json_t *list, struct serve_prompt *out)
{
    uint32_t flags = text_flags(rd);
    for (size_t i = 0; i < json_array_size(list) && !request_is_bad(rd); i++) {
        const json_t *one = json_array_get(list, i);
        if (json_is_string(one) && rd->setup->model != NULL) {
            request_tokenize(rd, out, json_string_value(one), json_string_length(one), flags);
        } else if (!json_is_string(one)) {
            int32_t *ids = request_alloc(rd, (size_t)out->n_id + 2, sizeof(*ids));
            if (ids == NULL || !read_id(rd, one, &ids[out->n_id]))
                return;
            if (out->n_id > 0)
                memcpy(ids, out->ids, (size_t)out->n_id * sizeof(*ids));
            out->ids = ids;
            out->n_id++;
        }
        flags &= ~(uint32_t)PITH_TOKENIZE_BOS;
    }
}

/* llama-server's own: a text in an object, beside which images might stand. */
static const json_t *unwrap(struct serve_reader *rd, const json_t *value)
{
    const json_t *text = request_get(value, "prompt_string");
    if (rd->r->api != SERVE_COMPLETION || !json_is_object(value) || text == NULL)
        return value;
    if (request_get(value, "multimodal_data") != NULL)
        SERVE_FAULT(rd, "prompt", "prompt.multimodal_data: images and sound are not supported");
    return text;
}

static void read_prompt(struct serve_reader *rd, const json_t *value, struct serve_prompt *out)
{
    bool text = false;
    value = unwrap(rd, value);
    for (size_t i = 0; rd->r->api == SERVE_COMPLETION && i < json_array_size(value); i++)
        text = text || json_is_string(json_array_get(value, i));
    if (json_is_array(value) && text) {
        read_mixed(rd, value, out);
    } else if (json_is_array(value)) {
        read_ids(rd, value, out);
    } else if (json_is_string(value)) {
        out->text = json_string_value(value);
        out->len = json_string_length(value);
        out->message = out->text;
        out->message_len = out->len;
        if (rd->setup->model != NULL)
            request_tokenize(rd, out, out->text, out->len, text_flags(rd));
    } else {
        request_wrong_type(rd, "prompt", value, "a string or an array of token ids");
    }
}

/* ---- lists ---- */

static bool is_one(const struct serve_reader *rd, const json_t *prompt)
{
    bool number = json_is_number(json_array_get(prompt, 0));
    for (size_t i = 1; rd->r->api == SERVE_COMPLETION && i < json_array_size(prompt); i++)
        number = number || json_is_number(json_array_get(prompt, i));
    return !json_is_array(prompt) || number;
}

/* A string, ids, or an array of either; an array that begins with a number is one of ids. */
void request_read_prompts(struct serve_reader *rd, const json_t *body)
{
    struct serve_request *r = rd->r;
    const json_t *prompt = request_get(body, "prompt");
    if (prompt == NULL) {
        SERVE_FAULT(rd, "prompt", "prompt: is missing");
        return;
    }
    bool one = is_one(rd, prompt);
    size_t n = one ? 1 : json_array_size(prompt);
    if (n < 1 || n > SERVE_ANSWERS_MAX) {
        SERVE_FAULT(rd, "prompt", "prompt: %zu prompts are not between 1 and %d", n,
                    SERVE_ANSWERS_MAX);
        return;
    }
    if ((int)n * r->n_answer > SERVE_ANSWERS_MAX)
        SERVE_FAULT(rd, "n", "n: %d answers to each of %zu prompts are more than %d", r->n_answer,
                    n, SERVE_ANSWERS_MAX);
    if (n > 1 && r->cache.slot >= 0)
        SERVE_FAULT(rd, "id_slot", "id_slot: %d does not hold %zu prompts", r->cache.slot, n);
    r->prompts.item = request_alloc(rd, n, sizeof(*r->prompts.item));
    if (r->prompts.item == NULL)
        return;
    r->prompts.n = (int32_t)n;
    for (size_t i = 0; i < n && !request_is_bad(rd); i++)
        read_prompt(rd, one ? prompt : json_array_get(prompt, i), &r->prompts.item[i]);
}
