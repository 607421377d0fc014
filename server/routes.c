/*
 * routes.c - the table of routes and the search in it. docs/openapi.yaml lists the same ones.
 */
#include "routes.h"

#include <stdlib.h>
#include <string.h>

#define GET "GET"
#define POST "POST"

static const struct route routes[] = {
    {POST, "/v1/chat/completions", answer_request, ROUTE_WORKER, ROUTE_KEYED, SERVE_CHAT},
    {POST, "/chat/completions", answer_request, ROUTE_WORKER, ROUTE_KEYED, SERVE_CHAT},
    {POST, "/v1/completions", answer_request, ROUTE_WORKER, ROUTE_KEYED, SERVE_TEXT},
    {POST, "/completion", answer_request, ROUTE_WORKER, ROUTE_KEYED, SERVE_COMPLETION},
    {POST, "/completions", answer_request, ROUTE_WORKER, ROUTE_KEYED, SERVE_COMPLETION},
    {POST, "/infill", answer_request, ROUTE_WORKER, ROUTE_KEYED, SERVE_INFILL},
    {POST, "/v1/messages", answer_request, ROUTE_WORKER, ROUTE_KEYED, SERVE_MESSAGES},
    {POST, "/v1/messages/count_tokens", answer_count, ROUTE_WORKER, ROUTE_KEYED, SERVE_COUNT},
    {POST, "/v1/chat/completions/input_tokens", answer_count, ROUTE_WORKER, ROUTE_KEYED,
     SERVE_CHAT},
    {POST, "/chat/completions/input_tokens", answer_count, ROUTE_WORKER, ROUTE_KEYED, SERVE_CHAT},
    {POST, "/v1/chat/completions/render", answer_render, ROUTE_WORKER, ROUTE_KEYED, SERVE_CHAT},
    {POST, "/v1/completions/render", answer_render, ROUTE_WORKER, ROUTE_KEYED, SERVE_TEXT},
    {POST, "/v1/responses", answer_request, ROUTE_WORKER, ROUTE_KEYED, SERVE_RESPONSES},
    {POST, "/responses", answer_request, ROUTE_WORKER, ROUTE_KEYED, SERVE_RESPONSES},
    {POST, "/v1/responses/input_tokens", answer_count, ROUTE_WORKER, ROUTE_KEYED, SERVE_RESPONSES},
    {POST, "/responses/input_tokens", answer_count, ROUTE_WORKER, ROUTE_KEYED, SERVE_RESPONSES},
    {POST, "/tokenize", tokens_encode, ROUTE_WORKER, ROUTE_KEYED, SERVE_CHAT},
    {POST, "/detokenize", tokens_decode, ROUTE_WORKER, ROUTE_KEYED, SERVE_CHAT},
    {POST, "/apply-template", answer_template, ROUTE_WORKER, ROUTE_KEYED, SERVE_CHAT},
    {GET, "/v1/models", about_models, ROUTE_HTTP, ROUTE_KEYED, SERVE_CHAT},
    {GET, "/v1/models/*", about_model, ROUTE_HTTP, ROUTE_KEYED, SERVE_CHAT},
    {GET, "/models", about_models, ROUTE_HTTP, ROUTE_KEYED, SERVE_CHAT},
    {GET, "/health", about_health, ROUTE_HTTP, ROUTE_OPEN, SERVE_CHAT},
    {GET, "/health/ready", about_health, ROUTE_HTTP, ROUTE_OPEN, SERVE_CHAT},
    {GET, "/health/live", about_alive, ROUTE_HTTP, ROUTE_OPEN, SERVE_CHAT},
    {GET, "/v1/health", about_health, ROUTE_HTTP, ROUTE_OPEN, SERVE_CHAT},
    {GET, "/props", about_props, ROUTE_HTTP, ROUTE_KEYED, SERVE_CHAT},
    {GET, "/metrics", metrics_answer, ROUTE_HTTP, ROUTE_KEYED, SERVE_CHAT},
    {GET, "/slots", slots_list, ROUTE_MODEL, ROUTE_PRIVATE, SERVE_CHAT},
    {POST, "/slots/{id}", slots_act, ROUTE_MODEL, ROUTE_PRIVATE, SERVE_CHAT},
    {GET, "/kv", view_now, ROUTE_MODEL, ROUTE_PRIVATE, SERVE_CHAT},
    {GET, "/kv/events", view_events, ROUTE_MODEL, ROUTE_PRIVATE, SERVE_CHAT},
    {POST, "/kv/cancel", view_cancel, ROUTE_MODEL, ROUTE_PRIVATE, SERVE_CHAT},
    {POST, "/kv/follow", view_follow, ROUTE_MODEL, ROUTE_PRIVATE, SERVE_CHAT},
    {GET, "/", about_page, ROUTE_HTTP, ROUTE_OPEN, SERVE_CHAT},
    {GET, "/index.html", about_page, ROUTE_HTTP, ROUTE_OPEN, SERVE_CHAT},
    {GET, "/page/*", about_page, ROUTE_HTTP, ROUTE_OPEN, SERVE_CHAT},
    {POST, "/v1/embeddings", about_absent, ROUTE_HTTP, ROUTE_KEYED, SERVE_CHAT},
    {POST, "/embeddings", about_absent, ROUTE_HTTP, ROUTE_KEYED, SERVE_CHAT},
    {POST, "/embedding", about_absent, ROUTE_HTTP, ROUTE_KEYED, SERVE_CHAT},
    {POST, "/rerank", about_absent, ROUTE_HTTP, ROUTE_KEYED, SERVE_CHAT},
    {POST, "/reranking", about_absent, ROUTE_HTTP, ROUTE_KEYED, SERVE_CHAT},
    {POST, "/v1/rerank", about_absent, ROUTE_HTTP, ROUTE_KEYED, SERVE_CHAT},
    {POST, "/v1/reranking", about_absent, ROUTE_HTTP, ROUTE_KEYED, SERVE_CHAT},
    {GET, "/lora-adapters", about_absent, ROUTE_HTTP, ROUTE_KEYED, SERVE_CHAT},
    {POST, "/lora-adapters", about_absent, ROUTE_HTTP, ROUTE_KEYED, SERVE_CHAT},
    {POST, "/v1/audio/*", about_absent, ROUTE_HTTP, ROUTE_KEYED, SERVE_CHAT},
    {POST, "/v1/images/*", about_absent, ROUTE_HTTP, ROUTE_KEYED, SERVE_CHAT},
};

#define N_ROUTE (sizeof(routes) / sizeof(routes[0]))

/* Digits alone, at most seven, which all numbers below PITH_SLOT_MAX have. */
static bool read_slot(const char *text, int32_t *slot)
{
    size_t len = strspn(text, "0123456789");
    if (len == 0 || len > 7 || text[len] != '\0')
        return false;
    *slot = atoi(text);
    return true;
}

static bool path_is(const struct route *r, const char *path, int32_t *slot)
{
    size_t len = strcspn(r->path, "{*");
    if (strncmp(r->path, path, len) != 0)
        return false;
    if (r->path[len] == '{')
        return read_slot(path + len, slot);
    return r->path[len] == '*' ? path[len] != '\0' : path[len] == '\0';
}

const struct route *route_find(const char *method, const char *path, int32_t *slot,
                               const char **allow)
{
    bool get = false, post = false;
    if (strcmp(method, "HEAD") == 0)
        method = GET;
    *slot = -1;
    *allow = NULL;
    for (size_t i = 0; i < N_ROUTE; i++) {
        if (!path_is(&routes[i], path, slot))
            continue;
        if (strcmp(routes[i].method, method) == 0)
            return &routes[i];
        get = get || strcmp(routes[i].method, GET) == 0;
        post = post || strcmp(routes[i].method, POST) == 0;
    }
    if (get || post)
        *allow = get && post ? "GET, HEAD, POST, OPTIONS"
                 : get       ? "GET, HEAD, OPTIONS"
                             : "POST, OPTIONS";
    return NULL;
}
