/*
 * tokens.c - /tokenize and /detokenize, as llama-server has them: text to ids and back, without the
 * engine.
 */
#include <jansson.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "routes.h"
#include "serve/json.h"
#include "state.h"

#define WRONG MHD_HTTP_BAD_REQUEST, "invalid_request_error"
#define PIECE_BYTES 512
#define BLOCK_BYTES 65536

enum {
    PIECE_BESIDE = 19, /* bytes about an id and the text of its piece */
    TEXT_COPIES = 2,   /* of the text: some characters are escaped */
};

/* The body as an object; NULL: refused. */
static json_t *read_body(struct exchange *ex)
{
    json_error_t why;
    struct serve_numbers numbers = {0}; /* their digits are not asked for */
    json_t *body = serve_json_load(&numbers, ex->body.data != NULL ? ex->body.data : "",
                                   ex->body.len, JSON_ALLOW_NUL, &why);
    serve_numbers_free(&numbers);
    if (body == NULL)
        exchange_refuse_with(ex, WRONG, NULL, "the body is not JSON: %s at byte %d", why.text,
                             why.position);
    else if (!json_is_object(body))
        exchange_refuse_with(ex, WRONG, NULL, "the body is no JSON object");
    if (json_is_object(body))
        return body;
    json_decref(body);
    return NULL;
}

struct ids {
    int32_t *data;
    int32_t n;
};

static bool tokenize(const struct server *s, const char *text, size_t len, uint32_t flags,
                     struct ids *ids, pith_error *err)
{
    pith_status status = pith_tokenize(s->config.model, text, len, flags, NULL, 0, &ids->n, err);
    if (status != PITH_OK && status != PITH_RANGE)
        return false;
    ids->data = malloc(((size_t)ids->n + 1) * sizeof(*ids->data));
    if (ids->data == NULL)
        return false;
    return pith_tokenize(s->config.model, text, len, flags, ids->data, ids->n, &ids->n, err) ==
           PITH_OK;
}

/* ---- lists of tokens ---- */

/* The list is written in blocks: as values of Jansson it would take hundreds of times its text. */
struct writer {
    struct exchange *ex;
    char block[BLOCK_BYTES];
    size_t len;
    bool failed;
};

static int add(const char *text, size_t len, void *user)
{
    struct writer *w = user;
    while (len > 0 && !w->failed) {
        size_t n = sizeof(w->block) - w->len < len ? sizeof(w->block) - w->len : len;
        memcpy(w->block + w->len, text, n);
        w->len += n;
        text += n;
        len -= n;
        if (w->len == sizeof(w->block)) {
            w->failed = !exchange_send(w->ex, w->block, w->len);
            w->len = 0;
        }
    }
    return w->failed ? -1 : 0;
}

static void add_words(struct writer *w, const char *words)
{
    add(words, strlen(words), w);
}

static void add_number(struct writer *w, int32_t number)
{
    char digits[16];
    snprintf(digits, sizeof(digits), "%d", number);
    add_words(w, digits);
}

/* The bytes of a token: a string, or where they are no whole characters their numbers. */
static void add_piece(struct writer *w, int32_t id)
{
    char piece[PIECE_BYTES];
    size_t len = 0;
    if (pith_token_bytes(w->ex->server->config.model, id, true, piece, sizeof(piece), &len) !=
        PITH_OK)
        len = 0;
    json_t *text = json_stringn(piece, len);
    if (text != NULL) {
        w->failed = w->failed || json_dump_callback(text, add, w, JSON_ENCODE_ANY) != 0;
        json_decref(text);
        return;
    }
    for (size_t i = 0; i < len; i++) {
        add_words(w, i == 0 ? "[" : ",");
        add_number(w, (unsigned char)piece[i]);
    }
    add_words(w, len > 0 ? "]" : "\"\"");
}

/* Counts the answer's memory beside that of bodies; false: refused. */
static bool weigh_answer(struct exchange *ex, const struct ids *ids, size_t len, bool pieces)
{
    struct server *s = ex->server;
    long long most = s->config.json_max;
    long long bytes = pieces ? TEXT_COPIES * (long long)len : 0;
    for (int32_t i = 0; i < ids->n; i++) {
        bytes += pieces ? PIECE_BESIDE + 2 : 2; /* a digit and a comma */
        for (int32_t id = ids->data[i]; id > 9; id /= 10)
            bytes++;
    }
    if (bytes > most) {
        exchange_refuse_with(ex, MHD_HTTP_CONTENT_TOO_LARGE, "invalid_request_error", "content",
                             "content: a list of its %d tokens takes more than %lld bytes of "
                             "memory, which is the limit",
                             ids->n, most);
        return false;
    }
    if (atomic_load(&s->count.json_bytes) + bytes > JSONS_MAX * most) {
        exchange_refuse_with(ex, MHD_HTTP_SERVICE_UNAVAILABLE, "unavailable_error", NULL,
                             "other requests take all memory for bodies: try again later");
        return false;
    }
    atomic_fetch_add(&s->count.json_bytes, bytes);
    ex->weighed += bytes;
    return true;
}

static void write_ids(struct exchange *ex, const struct ids *ids, bool pieces)
{
    struct writer *w = calloc(1, sizeof(*w));
    if (w == NULL) {
        exchange_abort(ex);
        return;
    }
    w->ex = ex;
    add_words(w, "{\"tokens\":[");
    for (int32_t i = 0; i < ids->n && !w->failed; i++) {
        add_words(w, i > 0 ? "," : "");
        add_words(w, pieces ? "{\"id\":" : "");
        add_number(w, ids->data[i]);
        if (!pieces)
            continue;
        add_words(w, ",\"piece\":");
        add_piece(w, ids->data[i]);
        add_words(w, "}");
    }
    add_words(w, "]}");
    if (w->failed || !exchange_send(ex, w->block, w->len))
        exchange_abort(ex);
    else
        exchange_end(ex, MHD_HTTP_OK);
    free(w);
}

/* ---- the paths ---- */

/* The switches of a body; false: refused. */
static bool read_switches(struct exchange *ex, const json_t *body, uint32_t *flags, bool *pieces)
{
    static const struct {
        const char *key;
        uint32_t flag; /* 0: pieces */
        bool otherwise;
    } switches[] = {
        {"add_special", PITH_TOKENIZE_BOS, false},
        {"parse_special", PITH_TOKENIZE_SPECIAL, true},
        {"with_pieces", 0, false},
    };
    char buf[SERVE_SHOW];
    *flags = 0;
    *pieces = false;
    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++) {
        const char *key = switches[i].key;
        const json_t *value = json_object_get(body, key);
        bool given = value != NULL && !json_is_null(value);
        bool on = given ? json_is_true(value) : switches[i].otherwise;
        if (given && !json_is_boolean(value)) {
            exchange_refuse_with(ex, WRONG, key, "%s: %s is not true or false", key,
                                 serve_show(value, buf));
            return false;
        }
        *flags |= on ? switches[i].flag : 0;
        if (switches[i].flag == 0)
            *pieces = on;
    }
    return true;
}

void tokens_encode(struct exchange *ex)
{
    json_t *body = read_body(ex);
    uint32_t flags;
    bool pieces;
    if (body == NULL || !read_switches(ex, body, &flags, &pieces)) {
        json_decref(body);
        return;
    }
    json_t *content = json_object_get(body, "content");
    struct ids ids = {0};
    char buf[SERVE_SHOW];
    pith_error err = {.message = "no memory"};
    if (content != NULL && !json_is_string(content))
        exchange_refuse_with(ex, WRONG, "content", "content: %s is not a string",
                             serve_show(content, buf));
    else if (content != NULL && !tokenize(ex->server, json_string_value(content),
                                          json_string_length(content), flags, &ids, &err))
        exchange_refuse_with(ex, WRONG, "content", "content: %s", err.message);
    else if (weigh_answer(ex, &ids, json_string_length(content), pieces))
        write_ids(ex, &ids, pieces);
    free(ids.data);
    json_decref(body);
}

/* -1: it is none, in whatever vocabulary. */
static json_int_t id_of(const json_t *id)
{
    double x = json_number_value(id);
    if (json_is_real(id))
        return x >= 0.0 && x <= INT32_MAX && x == (double)(int32_t)x ? (json_int_t)x : -1;
    return json_is_integer(id) ? json_integer_value(id) : -1;
}

/* The ids of "tokens"; false: refused. */
static bool read_ids(struct exchange *ex, const json_t *list, struct ids *ids)
{
    size_t n = json_array_size(list);
    char buf[SERVE_SHOW];
    ids->data = malloc((n + 1) * sizeof(*ids->data));
    if (!json_is_array(list) || ids->data == NULL) {
        exchange_refuse_with(ex, WRONG, "tokens", "tokens: %s is not an array of token ids",
                             serve_show(list, buf));
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t value = id_of(id);
        if (value < 0 || value >= ex->server->info.n_vocab) {
            exchange_refuse_with(ex, WRONG, "tokens",
                                 "tokens[%zu]: %s is not a token id from 0 to %d", i,
                                 serve_show(id, buf), ex->server->info.n_vocab - 1);
            return false;
        }
        ids->data[ids->n++] = (int32_t)value;
    }
    return true;
}

/* Whole characters of any bytes. */
static json_t *text_of(const char *bytes, size_t len)
{
    pith_utf8_stream stream = {0};
    char *out = malloc(3 * (len + 4));
    if (out == NULL)
        return NULL;
    size_t n = pith_utf8_push(&stream, bytes, len, out, 3 * (len + 4));
    n += pith_utf8_push(&stream, NULL, 0, out + n, 3 * (len + 4) - n);
    json_t *text = json_stringn(out, n);
    free(out);
    return text;
}

void tokens_decode(struct exchange *ex)
{
    json_t *body = read_body(ex);
    struct ids ids = {0};
    pith_error err = {.message = "no memory"};
    size_t len = 0;
    if (body == NULL)
        return;
    if (read_ids(ex, json_object_get(body, "tokens"), &ids)) {
        pith_detokenize(ex->server->config.model, ids.data, ids.n, true, NULL, 0, &len, &err);
        char *bytes = malloc(len + 1);
        if (bytes == NULL || pith_detokenize(ex->server->config.model, ids.data, ids.n, true, bytes,
                                             len, &len, &err) != PITH_OK)
            exchange_refuse_with(ex, WRONG, "tokens", "tokens: %s", err.message);
        else
            exchange_json(ex, MHD_HTTP_OK, json_pack("{s:o}", "content", text_of(bytes, len)));
        free(bytes);
    }
    free(ids.data);
    json_decref(body);
}
