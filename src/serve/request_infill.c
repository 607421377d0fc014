/*
 * request_infill.c - a gap in a text as a prompt: what stands before it, what follows it and other
 * files beside, between the tokens that a vocabulary has for that (FIM). The order is prefix,
 * suffix, middle, as llama-server has it.
 */
#include "serve/request_body.h"

#include <stdio.h>
#include <string.h>

/* Names of the tokens, of families of models. repo and file may be NULL. */
static const struct fim {
    const char *prefix, *suffix, *middle, *repo, *file;
} families[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>", "<file_sep>"},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", NULL, NULL},
    {"<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "begin\xef\xbd\x9c>",
     "<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "hole\xef\xbd\x9c>",
     "<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "end\xef\xbd\x9c>",
     NULL, NULL},
    {"\xe2\x96\x81<PRE>", "\xe2\x96\x81<SUF>", "\xe2\x96\x81<MID>", NULL, NULL},
    {"<PRE>", "<SUF>", "<MID>", NULL, NULL},
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", NULL, NULL},
};

struct fim_ids {
    int32_t prefix, suffix, middle, repo, file; /* -1: none */
};

/* The token of a name; -1: the vocabulary has none. */
static int32_t find_token(const pith_model *model, const char *name)
{
    int32_t id = -1, n = 0;
    if (name == NULL ||
        pith_tokenize(model, name, strlen(name), PITH_TOKENIZE_SPECIAL, &id, 1, &n, NULL) !=
            PITH_OK ||
        n != 1)
        return -1;
    return id;
}

static bool find_family(const pith_model *model, struct fim_ids *out)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        const struct fim *f = &families[i];
        *out = (struct fim_ids){find_token(model, f->prefix), find_token(model, f->suffix),
                                find_token(model, f->middle), find_token(model, f->repo),
                                find_token(model, f->file)};
        if (out->prefix >= 0 && out->suffix >= 0 && out->middle >= 0)
            return true;
    }
    return false;
}

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
static void add_extra(struct serve_reader *rd, struct serve_prompt *p, const struct fim_ids *ids,
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
    struct fim_ids ids;
    const json_t *before = text_of(rd, body, "input_prefix");
    const json_t *after = text_of(rd, body, "input_suffix");
    const json_t *prompt = text_of(rd, body, "prompt");
    const json_t *extra = read_extra(rd, body);
    if (request_get(body, "input_prefix") == NULL && request_get(body, "input_suffix") == NULL)
        SERVE_FAULT(rd, "input_prefix", "input_prefix: is missing, and input_suffix is, too");
    r->prompt = request_alloc(rd, 1, sizeof(*r->prompt));
    r->n_prompt = 1;
    if (request_is_bad(rd) || rd->setup->model == NULL)
        return;
    if (!find_family(rd->setup->model, &ids)) {
        serve_fault_set(rd->fault, 501, "not_supported_error", NULL,
                        "infill: the model's vocabulary has no tokens for a gap in a text");
        return;
    }
    struct serve_prompt *p = &r->prompt[0];
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
