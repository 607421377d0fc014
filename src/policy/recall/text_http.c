/*
 * text_http.c - the outside store over libcurl and Jansson. It keeps one connection and trusts no
 * answer: sizes are bounded and each field is checked.
 */
#include "policy/recall/text_http.h"

#include <curl/curl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "policy/recall/text_spans.h"

#define MOST_ANSWER ((size_t)16 << 20) /* bytes of an answer that are read */
#define MOST_URL 1024

struct text_http {
    CURL *curl;  /* owned */
    bool global; /* curl_global_init was called */
    char *url;   /* without slashes at its end; owned */
    int32_t timeout_ms;
    struct curl_slist *headers; /* of a POST; owned */
    char *answer;               /* [cap], of the running request; owned */
    size_t len;
    size_t cap;
    bool no_memory; /* for the running answer */
};

/* ---- opening ---- */

static bool has_part(CURLU *parts, CURLUPart part)
{
    char *text = NULL;
    bool has = curl_url_get(parts, part, &text, 0) == CURLUE_OK;
    curl_free(text);
    return has;
}

static pith_status check_url(const char *url, pith_error *err)
{
    CURLU *parts = curl_url();
    if (parts == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a url");
    bool known = strncmp(url, "http://", 7) == 0 || strncmp(url, "https://", 8) == 0;
    bool valid = known && strlen(url) < MOST_URL &&
                 curl_url_set(parts, CURLUPART_URL, url, 0) == CURLUE_OK &&
                 has_part(parts, CURLUPART_HOST) && !has_part(parts, CURLUPART_QUERY) &&
                 !has_part(parts, CURLUPART_FRAGMENT) && !has_part(parts, CURLUPART_USER) &&
                 !has_part(parts, CURLUPART_PASSWORD);
    curl_url_cleanup(parts);
    if (!valid)
        return pi_fail(err, PITH_INVALID, "recall: url: \"%.128s\" is not like http://HOST:PORT",
                       url);
    return PITH_OK;
}

/* Takes what comes of an answer. */
static size_t take(char *data, size_t size, size_t n, void *user)
{
    struct text_http *http = user;
    size_t more = size * n, wanted = http->len + more + 1;
    if (wanted > MOST_ANSWER)
        return 0;
    if (wanted > http->cap) {
        size_t cap = wanted > 2 * http->cap ? wanted : 2 * http->cap;
        char *grown = pi_mem_grow(PI_MEM_OTHER, http->answer, cap, 1);
        http->no_memory = grown == NULL;
        if (grown == NULL)
            return 0;
        http->answer = grown;
        http->cap = cap;
    }
    memcpy(http->answer + http->len, data, more);
    http->len += more;
    return more;
}

static pith_status open_all(struct text_http *http, const char *url, pith_error *err)
{
    size_t len = strlen(url);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return pi_fail(err, PITH_NOMEM, "no memory for HTTP");
    http->global = true;
    PI_TRY(check_url(url, err));
    while (len > 0 && url[len - 1] == '/')
        len--;
    http->url = pi_mem_strndup(PI_MEM_OTHER, url, len);
    http->curl = curl_easy_init();
    struct curl_slist *list = curl_slist_append(NULL, "Content-Type: application/json");
    /* Without this a server that does not know the word is waited for. */
    http->headers = curl_slist_append(list, "Expect:");
    if (http->headers == NULL)
        curl_slist_free_all(list);
    if (http->url == NULL || http->curl == NULL || http->headers == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for HTTP");
    return PITH_OK;
}

pith_status text_http_open(const char *url, int32_t timeout_ms, struct text_http **out,
                           pith_error *err)
{
    struct text_http *http = pi_mem_alloc(PI_MEM_OTHER, sizeof(*http));
    if (http == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for an outside store");
    http->timeout_ms = timeout_ms;
    pith_status status = open_all(http, url, err);
    if (status != PITH_OK) {
        text_http_close(http);
        return status;
    }
    *out = http;
    return PITH_OK;
}

void text_http_close(struct text_http *http)
{
    if (http == NULL)
        return;
    curl_slist_free_all(http->headers);
    curl_easy_cleanup(http->curl);
    if (http->global)
        curl_global_cleanup();
    pi_mem_free(http->url);
    pi_mem_free(http->answer);
    pi_mem_free(http);
}

/* ---- requests ---- */

/* One request: body NULL for a GET. On success the answer's bytes are in http->answer. */
static pith_status request(struct text_http *http, const char *path, const char *body,
                           pith_error *err)
{
    char url[2 * MOST_URL], why[CURL_ERROR_SIZE] = "";
    long code = 0;
    CURL *c = http->curl;
    snprintf(url, sizeof(url), "%s%s", http->url, path);
    http->len = 0;
    http->no_memory = false;
    curl_easy_reset(c); /* the connection stays */
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)http->timeout_ms);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_PROXY, ""); /* nor one that the environment names */
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, http);
    if (body != NULL) {
        curl_easy_setopt(c, CURLOPT_HTTPHEADER, http->headers);
        curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
    }
    CURLcode failed = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &code);
    if (http->no_memory)
        return pi_fail(err, PITH_NOMEM, "no memory for an answer");
    if (failed == CURLE_OPERATION_TIMEDOUT)
        return pi_fail(err, PITH_IO, "%s%.32s: no answer within %g s", http->url, path,
                       http->timeout_ms / 1000.0);
    if (failed == CURLE_WRITE_ERROR)
        return pi_fail(err, PITH_IO, "%s%.32s: an answer of more than %zu bytes", http->url, path,
                       MOST_ANSWER);
    if (failed != CURLE_OK)
        return pi_fail(err, PITH_IO, "%s%.32s: %s", http->url, path,
                       *why != '\0' ? why : curl_easy_strerror(failed));
    if (code != 200)
        return pi_fail(err, PITH_IO, "%s%.32s: status %ld%s", http->url, path, code,
                       code / 100 == 3 ? ": redirects are not followed" : "");
    return PITH_OK;
}

static pith_status fail_answer(const struct text_http *http, const char *path, const char *what,
                               pith_error *err)
{
    return pi_fail(err, PITH_FORMAT, "%s%.32s: the answer %s", http->url, path, what);
}

/* The answer to a request, whose JSON the caller releases. body is released here. */
static pith_status ask(struct text_http *http, const char *path, json_t *body, json_t **out,
                       pith_error *err)
{
    char *text = NULL;
    json_error_t json_err;
    if (body != NULL) {
        text = json_dumps(body, JSON_COMPACT);
        json_decref(body);
        if (text == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for a request");
    }
    pith_status status = request(http, path, text, err);
    free(text);
    PI_TRY(status);
    *out = http->len > 0 ? json_loadb(http->answer, http->len, 0, &json_err) : NULL;
    if (!json_is_object(*out)) {
        json_decref(*out);
        return fail_answer(http, path, "is no JSON object", err);
    }
    return PITH_OK;
}

static json_t *chunk_of(const struct text_hit *hit)
{
    return json_pack("{s:s, s:[i, i], s:i, s:f}", "text", hit->text, "token_range", hit->first,
                     hit->last, "layer", hit->layer, "score", hit->score);
}

static pith_status write_some(struct text_http *http, const char *session,
                              const struct text_hit *hits, int32_t n, pith_error *err)
{
    json_t *chunks = json_array(), *answer = NULL;
    bool ok = chunks != NULL;
    for (int32_t i = 0; ok && i < n; i++)
        ok = json_array_append_new(chunks, chunk_of(&hits[i])) == 0;
    json_t *body = ok ? json_pack("{s:s, s:O}", "session_id", session, "chunks", chunks) : NULL;
    json_decref(chunks);
    if (body == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a request");
    PI_TRY(ask(http, "/evict/write", body, &answer, err));
    pith_status status = PITH_OK;
    json_t *accepted = json_object_get(answer, "accepted");
    if (!json_is_integer(accepted))
        status = fail_answer(http, "/evict/write", "has no number \"accepted\"", err);
    else if (json_integer_value(accepted) != n)
        status = pi_fail(err, PITH_IO, "%s/evict/write: %lld of %d spans were accepted", http->url,
                         (long long)json_integer_value(accepted), n);
    json_decref(answer);
    return status;
}

pith_status text_http_write(struct text_http *http, const char *session,
                            const struct text_hit *hits, int32_t n, pith_error *err)
{
    for (int32_t i = 0; i < n; i += TEXT_HTTP_CHUNKS)
        PI_TRY(write_some(http, session, hits + i, (int32_t)pi_min(n - i, TEXT_HTTP_CHUNKS), err));
    return PITH_OK;
}

/* ---- answers ---- */

static bool read_int(const json_t *value, int32_t *out)
{
    json_int_t n = json_integer_value(value);
    *out = (int32_t)n;
    return json_is_integer(value) && n >= INT32_MIN && n <= INT32_MAX;
}

static bool read_range(const json_t *value, struct text_hit *hit)
{
    return json_array_size(value) == 2 && read_int(json_array_get(value, 0), &hit->first) &&
           read_int(json_array_get(value, 1), &hit->last) && hit->first >= 0 &&
           hit->last >= hit->first;
}

/* A chunk of an answer; its text is cleaned. */
static pith_status add_chunk(const struct text_http *http, const json_t *chunk,
                             struct text_hits *hits, pith_error *err)
{
    struct text_hit hit = {.layer = -1};
    const json_t *text = json_object_get(chunk, "text"), *score = json_object_get(chunk, "score");
    if (!json_is_string(text) || !json_is_number(score) ||
        !read_range(json_object_get(chunk, "token_range"), &hit) ||
        !read_int(json_object_get(chunk, "layer"), &hit.layer))
        return fail_answer(http, "/evict/retrieve",
                           "has a chunk without text, token_range, layer or score", err);
    hit.score = json_number_value(score);
    hit.text = pi_mem_strndup(PI_MEM_OTHER, json_string_value(text), json_string_length(text));
    if (hit.text == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the text of a span");
    hit.text[text_clean(hit.text, json_string_length(text))] = '\0';
    if (*hit.text == '\0') {
        pi_mem_free(hit.text);
        return PITH_OK;
    }
    return text_hits_add(hits, hit, err);
}

pith_status text_http_find(struct text_http *http, const char *session, const char *question,
                           size_t len, const struct text_ranking *ranking, struct text_hits *hits,
                           pith_error *err)
{
    json_t *answer = NULL;
    char *query = pi_mem_strndup(PI_MEM_OTHER, question, len);
    if (query != NULL)
        query[text_clean(query, len)] = '\0';
    json_t *body = query != NULL ? json_pack("{s:s, s:s, s:i, s:f, s:f}", "session_id", session,
                                             "query", query, "top_k", ranking->top, "score_floor",
                                             ranking->floor, "hybrid_alpha", ranking->alpha)
                                 : NULL;
    pi_mem_free(query);
    if (body == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a request");
    PI_TRY(ask(http, "/evict/retrieve", body, &answer, err));
    const json_t *chunks = json_object_get(answer, "chunks");
    pith_status status = PITH_OK;
    if (!json_is_array(chunks))
        status = fail_answer(http, "/evict/retrieve", "has no array \"chunks\"", err);
    for (size_t i = 0; status == PITH_OK && i < json_array_size(chunks) && hits->n < ranking->top;
         i++)
        status = add_chunk(http, json_array_get(chunks, i), hits, err);
    json_decref(answer);
    return status;
}

pith_status text_http_list(struct text_http *http, const char *session, struct text_hits *hits,
                           pith_error *err)
{
    json_t *answer = NULL;
    char path[3 * MOST_URL / 4 + 64];
    char *name = curl_easy_escape(http->curl, session, 0);
    if (name == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a request");
    snprintf(path, sizeof(path), "/evict/dump?session_id=%s", name);
    curl_free(name);
    PI_TRY(ask(http, path, NULL, &answer, err));
    const json_t *ranges = json_object_get(answer, "token_ranges");
    const json_t *layers = json_object_get(answer, "layers");
    const json_t *scores = json_object_get(answer, "scores");
    size_t n = json_array_size(ranges);
    bool ok = json_is_array(ranges) && json_array_size(layers) == n && json_array_size(scores) == n;
    pith_status status = PITH_OK;
    for (size_t i = 0; ok && status == PITH_OK && i < n; i++) {
        struct text_hit hit = {.score = json_number_value(json_array_get(scores, i))};
        ok = read_range(json_array_get(ranges, i), &hit) &&
             read_int(json_array_get(layers, i), &hit.layer);
        if (ok)
            status = text_hits_add(hits, hit, err);
    }
    json_decref(answer);
    return ok ? status : fail_answer(http, "/evict/dump", "has no such lists of ranges", err);
}
