/*
 * about.c - what is known without the engine: health, the model, its properties, the page, and what
 * is not offered.
 */
#include <jansson.h>
#include <microhttpd.h>
#include <string.h>

#include <page.h>
#include "routes.h"
#include "state.h"

const char *server_model_name(const struct server *s)
{
    if (s->config.alias != NULL)
        return s->config.alias;
    return s->info.name != NULL && s->info.name[0] != '\0' ? s->info.name : "pith";
}

void about_health(struct exchange *ex)
{
    if (atomic_load(&ex->server->stage) == SERVER_RUNS) {
        exchange_json(ex, MHD_HTTP_OK, json_pack("{s:s}", "status", "ok"));
        return;
    }
    exchange_refuse_with(ex, MHD_HTTP_SERVICE_UNAVAILABLE, "unavailable_error", NULL,
                         "the server is shutting down");
}

void about_alive(struct exchange *ex)
{
    double silent = pith_scheduler_silence(ex->server->scheduler);
    if (silent <= ex->server->config.hang_s)
        exchange_json(ex, MHD_HTTP_OK, json_pack("{s:s}", "status", "ok"));
    else
        exchange_refuse_with(ex, MHD_HTTP_SERVICE_UNAVAILABLE, "unavailable_error", NULL,
                             "the model has been silent for %.0f seconds", silent);
}

static json_t *describe_model(const struct server *s)
{
    const pith_model_info *m = &s->info;
    return json_pack("{s:s, s:s, s:I, s:s, s:{s:i, s:i, s:i, s:i, s:I, s:I}}", "id",
                     server_model_name(s), "object", "model", "created", (json_int_t)s->started,
                     "owned_by", "pith", "meta", "n_vocab", m->n_vocab, "n_ctx", s->config.n_ctx,
                     "n_ctx_train", m->n_ctx_train, "n_embd", m->n_embd, "n_params",
                     (json_int_t)m->n_param, "size", (json_int_t)m->weight_bytes);
}

void about_models(struct exchange *ex)
{
    exchange_json(ex, MHD_HTTP_OK,
                  json_pack("{s:s, s:[o]}", "object", "list", "data", describe_model(ex->server)));
}

void about_model(struct exchange *ex)
{
    const char *name = ex->path + strlen("/v1/models/");
    if (strcmp(name, server_model_name(ex->server)) == 0)
        exchange_json(ex, MHD_HTTP_OK, describe_model(ex->server));
    else
        exchange_refuse_with(ex, MHD_HTTP_NOT_FOUND, "not_found_error", "model",
                             "model: there is no \"%.64s\" here, only \"%.64s\"", name,
                             server_model_name(ex->server));
}

static json_t *default_params(const struct server *s)
{
    const pith_sample_params *p = &s->config.generate.sample;
    return json_pack("{s:i, s:I, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:i}", "n_predict",
                     s->config.generate.n_predict, "seed", (json_int_t)p->seed, "temperature",
                     (double)p->temperature, "top_k", p->top_k, "top_p", (double)p->top_p, "min_p",
                     (double)p->min_p, "repeat_penalty", (double)p->repeat_penalty,
                     "presence_penalty", (double)p->presence_penalty, "frequency_penalty",
                     (double)p->frequency_penalty, "repeat_last_n", p->penalty_last_n);
}

static json_t *token_text(const struct server *s, int32_t id)
{
    char text[128];
    size_t len = 0;
    if (id < 0 || pith_token_bytes(s->config.model, id, true, text, sizeof(text), &len) != PITH_OK)
        len = 0;
    json_t *value = json_stringn(text, len);
    return value != NULL ? value : json_string("");
}

void about_props(struct exchange *ex)
{
    const struct server *s = ex->server;
    const pith_model *model = s->config.model;
    const char *template = s->config.template_text;
    if (template == NULL && s->config.template_name == NULL)
        template = pith_chat_template(model);
    json_t *o = json_pack("{s:{s:i, s:o}, s:i, s:s, s:s, s:o, s:o, s:s, s:s, s:b}",
                          "default_generation_settings", "n_ctx", s->config.n_ctx, "params",
                          default_params(s), "total_slots", s->requests.n_slot, "model_alias",
                          server_model_name(s), "model_path", s->config.model_path, "bos_token",
                          token_text(s, pith_token_bos(model)), "eos_token",
                          token_text(s, pith_token_eos(model)), "build_info", pith_version(),
                          "chat_template", template != NULL ? template : "", "is_sleeping", 0);
    if (o != NULL && s->config.template_name != NULL)
        json_object_set_new(o, "chat_template_name", json_string(s->config.template_name));
    exchange_json(ex, MHD_HTTP_OK, o);
}

static const char *content_type(const char *name)
{
    const char *end = strrchr(name, '.');
    return strcmp(end, ".css") == 0  ? "text/css; charset=utf-8"
           : strcmp(end, ".js") == 0 ? "text/javascript; charset=utf-8"
                                     : "text/html; charset=utf-8";
}

void about_page(struct exchange *ex)
{
    const char *below = "/page/";
    bool named = strncmp(ex->path, below, strlen(below)) == 0;
    const char *name = named ? ex->path + strlen(below) : page_files[0].name;
    for (size_t i = 0; i < page_n_file; i++)
        if (strcmp(page_files[i].name, name) == 0) {
            const struct page_file *file = &page_files[i];
            exchange_text(ex, content_type(file->name), file->data, file->size);
            return;
        }
    exchange_refuse_with(ex, MHD_HTTP_NOT_FOUND, "not_found_error", NULL,
                         "%.64s: the page has no such file", ex->path);
}

void about_absent(struct exchange *ex)
{
    exchange_refuse_with(ex, MHD_HTTP_NOT_IMPLEMENTED, "not_supported_error", NULL,
                         "%.64s is not offered: pith serves chat and text completion", ex->path);
}
