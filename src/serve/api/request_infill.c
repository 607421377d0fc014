/*
 * request_infill.c - a gap in a text as a prompt: the text before it, the text behind it and other
 * files beside. They stand between the tokens that a vocabulary has for that (FIM). The order is
 * prefix, suffix, middle, as llama-server has it.
 */
#include "serve/api/request_body.h"

#include <stdio.h>
#include <string.h>

static void add_token(struct serve_reader *rd, struct serve_prompt *p, int32_t id)
{
    int32_t *ids = request_alloc(rd, (size_t)p->n_id + 1, sizeof(*ids));
    if (ids == NULL)
        return;
    if (p->n_id > 0)
        memcpy(ids, p->ids, (size_t)p->n_id * sizeof(*ids));
    ids[p->n_id++] = id;
    p->ids = ids;
}

static void add_words(struct serve_reader *rd, struct serve_prompt *p, const char *words)
{
    request_tokenize(rd, p, words, strlen(words), 0);
}

/* NULL: nothing. */
static void add_text(struct serve_reader *rd, struct serve_prompt *p, const json_t *text)
{
    if (json_string_length(text) > 0)
        request_tokenize(rd, p, json_string_value(text), json_string_length(text), 0);
}

/* A string field; NULL where it is not given. */
static const json_t *text_of(struct serve_reader *rd, const json_t *object, const char *key)
{
    const json_t *value = request_get(object, key);
    return value != NULL && request_text(rd, key, key, value) ? value : NULL;
}

/* Other files, each behind a token where there is one. */
static void add_extra(struct serve_reader *rd, struct serve_prompt *p, const pith_gap_tokens *ids,
                      const json_t *extra)
{
    size_t i, n = json_array_size(extra);
    json_t *file;
    if (n > 0 && ids->repo >= 0) {
        add_token(rd, p, ids->repo);
        add_words(rd, p, "myproject\n");
    }
    json_array_foreach((json_t *)extra, i, file)
    {
        if (ids->file >= 0) {
            add_token(rd, p, ids->file);
            add_text(rd, p, json_object_get(file, "filename"));
            add_words(rd, p, "\n");
        } else {
            add_words(rd, p, "\n\n--- snippet ---\n\n");
        }
        add_text(rd, p, json_object_get(file, "text"));
    }
    if (n > 0 && ids->file >= 0) {
        add_token(rd, p, ids->file);
        add_words(rd, p, "filename\n");
    }
}

static const json_t *read_extra(struct serve_reader *rd, const json_t *body)
{
    char where[64];
    const json_t *extra = request_get(body, "input_extra");
    if (extra != NULL && !json_is_array(extra))
        request_wrong_type(rd, "input_extra", extra, "an array");
    for (size_t i = 0; i < json_array_size(extra) && !request_is_bad(rd); i++) {
        const json_t *file = json_array_get(extra, i);
        snprintf(where, sizeof(where), "input_extra[%zu].text", i);
        request_text(rd, "input_extra", where, request_get(file, "text"));
        const json_t *name = request_get(file, "filename");
        snprintf(where, sizeof(where), "input_extra[%zu].filename", i);
        if (name != NULL)
            request_text(rd, "input_extra", where, name);
    }
    return extra;
}

void request_read_infill(struct serve_reader *rd, const json_t *body)
{
    struct serve_request *r = rd->r;
    pith_gap_tokens ids;
    const json_t *before = text_of(rd, body, "input_prefix");
    const json_t *after = text_of(rd, body, "input_suffix");
    const json_t *prompt = text_of(rd, body, "prompt");
    const json_t *extra = read_extra(rd, body);
    if (request_get(body, "input_prefix") == NULL && request_get(body, "input_suffix") == NULL)
        SERVE_FAULT(rd, "input_prefix", "input_prefix: is missing, and input_suffix is, too");
    r->prompts.item = request_alloc(rd, 1, sizeof(*r->prompts.item));
    r->prompts.n = 1;
    if (request_is_bad(rd) || rd->setup->model == NULL)
        return;
    if (!pith_model_gap_tokens(rd->setup->model, &ids)) {
        serve_fault_set(rd->fault, 501, "not_supported_error", NULL,
                        "infill: the model's vocabulary has no tokens for a gap in a text");
        return;
    }
    struct serve_prompt *p = &r->prompts.item[0];
    if (!rd->setup->no_bos) /* the token alone, which the vocabulary wants before a text */
        request_tokenize(rd, p, "", 0, PITH_TOKENIZE_BOS);
    add_extra(rd, p, &ids, extra);
    add_token(rd, p, ids.prefix);
    add_text(rd, p, before);
    add_text(rd, p, prompt);
    add_token(rd, p, ids.suffix);
    add_text(rd, p, after);
    add_token(rd, p, ids.middle);
}
