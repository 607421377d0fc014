/*
 * slots.c - /slots: what runs and what is parked, and conversations to files and back. It runs on
 * the model thread between steps.
 */
#include <jansson.h>
#include <microhttpd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "routes.h"
#include "serve/json.h"
#include "state.h"

#define WRONG MHD_HTTP_BAD_REQUEST, "invalid_request_error"
#define NAME_MAX_LEN 200
#define PATH_BYTES 4096

/* ---- the listing ---- */

const char *slots_state_name(pith_item_state state)
{
    static const char *const names[] = {
        [PITH_ITEM_WAITING] = "waiting",       [PITH_ITEM_READING] = "reading",
        [PITH_ITEM_GENERATING] = "generating", [PITH_ITEM_SWAPPED] = "swapped",
        [PITH_ITEM_PARKED] = "parked",
    };
    return names[state];
}

struct listing {
    const struct server *server;
    json_t *slots;    /* [n_slot] */
    json_t *requests; /* of no slot that can be named, and conversations that stay in none */
};

static json_t *describe(const struct server *s, const pith_scheduler_item *item)
{
    bool runs = item->state != PITH_ITEM_PARKED && item->state != PITH_ITEM_WAITING;
    json_t *o = json_pack(
        "{s:i, s:s, s:b, s:I, s:i, s:i, s:i, s:i, s:i, s:I, s:I}", "n_ctx", s->config.n_ctx,
        "state", slots_state_name(item->state), "is_processing", (int)runs, "id_task",
        (json_int_t)item->id, "answer", item->answer, "n_prompt_tokens", item->n_prompt, "n_tokens",
        item->n_done, "n_decoded", item->n_generated, "n_cached", item->n_cached, "kv_bytes",
        (json_int_t)item->held_bytes, "kv_aside_bytes", (json_int_t)item->aside_bytes);
    return o;
}

static bool add_item(void *user, const pith_scheduler_item *item)
{
    struct listing *l = user;
    json_t *o = describe(l->server, item);
    bool named = item->slot >= 0 && item->slot < l->server->requests.n_slot;
    if (!named || item->state == PITH_ITEM_WAITING) {
        json_object_set_new(o, "id", json_integer(item->slot));
        json_array_append_new(l->requests, o);
        return true;
    }
    json_object_set_new(o, "id", json_integer(item->slot));
    json_array_set_new(l->slots, (size_t)item->slot, o);
    return true;
}

void slots_list(struct exchange *ex)
{
    struct server *s = ex->server;
    struct listing l = {.server = s, .slots = json_array(), .requests = json_array()};
    for (int32_t i = 0; i < s->requests.n_slot; i++)
        json_array_append_new(l.slots,
                              json_pack("{s:i, s:i, s:s, s:b}", "id", i, "n_ctx", s->config.n_ctx,
                                        "state", "empty", "is_processing", 0));
    pith_scheduler_each(s->scheduler, add_item, &l);
    json_array_extend(l.slots, l.requests);
    json_decref(l.requests);
    exchange_json(ex, MHD_HTTP_OK, l.slots);
}

/* ---- files ---- */

/* A plain file name: nothing that leaves the folder, nothing hidden. */
static bool is_file_name(const char *name)
{
    size_t len = strlen(name);
    if (len == 0 || len > NAME_MAX_LEN || name[0] == '.')
        return false;
    return strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == len;
}

/* The path of the body's "filename" into path [PATH_BYTES]; false: refused. */
static bool read_path(struct exchange *ex, const json_t *body, char *path)
{
    const char *folder = ex->server->config.slot_folder;
    const json_t *value = json_object_get(body, "filename");
    const char *name = json_string_value(value);
    char buf[SERVE_SHOW];
    if (folder == NULL) {
        exchange_refuse_with(ex, MHD_HTTP_NOT_IMPLEMENTED, "not_supported_error", NULL,
                             "slots are saved where the server was started with --slot-save-path");
        return false;
    }
    if (name == NULL || !is_file_name(name)) {
        exchange_refuse_with(ex, WRONG, "filename",
                             "filename: %s is not a name of letters, digits, '.', '-' and '_' that "
                             "does not begin with '.'",
                             serve_show(value, buf));
        return false;
    }
    snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    return true;
}

/* Tells the scheduler's words without its own name of the slot and without the server's folder. */
static void refuse(struct exchange *ex, pith_status status, const pith_error *err)
{
    const char *folder = ex->server->config.slot_folder, *text = err->message;
    size_t len = folder != NULL ? strlen(folder) : 0;
    int code = status == PITH_NOT_FOUND ? MHD_HTTP_NOT_FOUND
               : status == PITH_BUSY    ? MHD_HTTP_CONFLICT
               : status == PITH_NOMEM   ? MHD_HTTP_INTERNAL_SERVER_ERROR
                                        : MHD_HTTP_BAD_REQUEST;
    if (len > 0 && strncmp(text, folder, len) == 0 && text[len] == '/')
        text += len + 1;
    if (strncmp(text, "slot: ", 6) == 0)
        exchange_refuse_with(ex, code, "invalid_request_error", NULL, "%s", text);
    else
        exchange_refuse_with(ex, code, "invalid_request_error", NULL, "slot %d: %s", ex->slot,
                             text);
}

static int64_t file_size(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : 0;
}

static void save(struct exchange *ex, const json_t *body)
{
    char path[PATH_BYTES];
    pith_error err;
    int32_t n = 0;
    double start = server_now();
    if (!read_path(ex, body, path))
        return;
    pith_status status = pith_scheduler_slot_save(ex->server->scheduler, ex->slot, path, &n, &err);
    if (status != PITH_OK) {
        refuse(ex, status, &err);
        return;
    }
    exchange_json(ex, MHD_HTTP_OK,
                  json_pack("{s:i, s:O, s:i, s:I, s:{s:f}}", "id_slot", ex->slot, "filename",
                            json_object_get(body, "filename"), "n_saved", n, "n_written",
                            (json_int_t)file_size(path), "timings", "save_ms",
                            1e3 * (server_now() - start)));
}

static void restore(struct exchange *ex, const json_t *body)
{
    char path[PATH_BYTES];
    pith_error err;
    int32_t n = 0;
    double start = server_now();
    if (!read_path(ex, body, path))
        return;
    pith_status status =
        pith_scheduler_slot_restore(ex->server->scheduler, ex->slot, path, 0, &n, &err);
    if (status != PITH_OK) {
        refuse(ex, status, &err);
        return;
    }
    exchange_json(ex, MHD_HTTP_OK,
                  json_pack("{s:i, s:O, s:i, s:I, s:{s:f}}", "id_slot", ex->slot, "filename",
                            json_object_get(body, "filename"), "n_restored", n, "n_read",
                            (json_int_t)file_size(path), "timings", "restore_ms",
                            1e3 * (server_now() - start)));
}

static void erase(struct exchange *ex)
{
    pith_error err;
    int32_t n = 0;
    pith_status status = pith_scheduler_slot_erase(ex->server->scheduler, ex->slot, &n, &err);
    if (status != PITH_OK && status != PITH_NOT_FOUND)
        refuse(ex, status, &err);
    else
        exchange_json(ex, MHD_HTTP_OK, json_pack("{s:i, s:i}", "id_slot", ex->slot, "n_erased", n));
}

void slots_act(struct exchange *ex)
{
    struct serve_numbers numbers = {0};
    json_t *body =
        ex->body.len > 0 ? serve_json_load(&numbers, ex->body.data, ex->body.len, 0, NULL) : NULL;
    serve_numbers_free(&numbers);
    if (strcmp(ex->action, "save") == 0)
        save(ex, body);
    else if (strcmp(ex->action, "restore") == 0)
        restore(ex, body);
    else if (strcmp(ex->action, "erase") == 0)
        erase(ex);
    else
        exchange_refuse_with(ex, WRONG, "action", "action: \"%.32s\" is not save, restore or erase",
                             ex->action);
    json_decref(body);
}
