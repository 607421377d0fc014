/*
 * fuzz_tools.c - answers of any bytes, in every form, in any pieces. The events are the same as for
 * the text in one piece. Calls begin once and end once, and arguments of a complete call are one
 * JSON object. Without tools, all text is content and reasoning.
 *
 * Input: form, options, a seed for the pieces, then the answer.
 */
#include <stdlib.h>
#include <string.h>

#include "serve/tools/tools.h"
#include "serve/tools/tools_json.h"

struct told {
    char *text; /* [len] the text of the events, with kinds and indices between */
    size_t len;
    char *args; /* of the call that is open */
    size_t n_args;
    int32_t n_call;
    int last;
    bool open, cut, sure;
    size_t n_text; /* bytes of content and reasoning */
};

static void put(struct told *told, const char *text, size_t len)
{
    told->text = realloc(told->text, told->len + len + 1);
    memcpy(told->text + told->len, text, len);
    told->len += len;
}

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void on_event(void *user, const struct serve_tools_event *e)
{
    struct told *told = user;
    bool text = e->type <= SERVE_TOOLS_REASONING || e->type == SERVE_TOOLS_CALL_ARGS;
    if (!text || told->last != (int)e->type) {
        char kind[2] = {(char)('A' + e->type),
                        e->type >= SERVE_TOOLS_CALL_START ? (char)e->index : 0};
        put(told, kind, 2);
    }
    told->last = (int)e->type;
    if (text) {
        require(e->len > 0);
        put(told, e->text, e->len);
    }
    if (e->type <= SERVE_TOOLS_REASONING) {
        require(!told->open);
        told->n_text += e->len;
    } else if (e->type == SERVE_TOOLS_CALL_START) {
        require(!told->open && e->index == told->n_call++ && e->name[0] != 0 && e->id[0] != 0);
        put(told, e->name, strlen(e->name));
        told->open = true;
        told->n_args = 0;
    } else if (e->type == SERVE_TOOLS_CALL_ARGS) {
        require(told->open && e->index == told->n_call - 1);
        told->args = realloc(told->args, told->n_args + e->len);
        memcpy(told->args + told->n_args, e->text, e->len);
        told->n_args += e->len;
    } else {
        require(told->open && e->index == told->n_call - 1);
        told->open = false;
        require(e->complete || told->cut || told->sure); /* no incomplete call */
        if (e->complete)
            require(tools_json_is_object(told->args, told->n_args));
    }
}

static void tell(const struct serve_tools_style *style, struct serve_tools_options options,
                 bool cut, const char *text, size_t len, uint32_t seed, struct told *told)
{
    struct serve_tools *t;
    *told = (struct told){.last = -1, .cut = cut, .sure = options.sure};
    bool whole = seed == 0;
    options.on_event = on_event;
    options.user = told;
    require(serve_tools_create(style, &options, &t, NULL) == PITH_OK);
    while (len > 0) {
        seed = seed * 1664525u + 1013904223u;
        size_t n = whole ? len : 1 + (seed >> 24) % 9;
        n = n < len ? n : len;
        require(serve_tools_feed(t, text, n, NULL) == PITH_OK);
        text += n;
        len -= n;
    }
    require(serve_tools_finish(t, cut, NULL) == PITH_OK && !told->open);
    serve_tools_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char tools_text[] =
        "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"n\": {\"type\": \"integer\"}}}}]";
    if (size < 6)
        return 0;
    struct serve_tools_style style;
    serve_tools_style_detect((const char *)data + 6, size - 6, &style);
    style.form = (enum serve_tool_form)(data[0] % SERVE_TOOLS_N_FORM);
    json_t *tools = data[1] & 1 ? NULL : json_loads(tools_text, 0, NULL);
    struct serve_tools_options options = {.tools = tools,
                                          .constrained = (data[1] & 32) != 0,
                                          .thinking = data[1] & 2,
                                          .reasoning_is_text = data[1] & 4,
                                          .one_call = data[1] & 8,
                                          .sure = (data[1] & 64) != 0,
                                          .request_id = "r"};
    uint32_t seed;
    memcpy(&seed, data + 2, 4);
    struct told one, other;
    size_t len = size - 6;
    const char *text = (const char *)data + 6;
    tell(&style, options, data[1] & 16, text, len, 0, &one);
    tell(&style, options, data[1] & 16, text, len, seed | 1, &other);
    require(one.len == other.len);
    require(one.len == 0 || memcmp(one.text, other.text, one.len) == 0);
    require(tools != NULL || one.n_call == 0);
    if (tools == NULL && (data[1] & 4) && style.form != SERVE_TOOLS_GPT_OSS && !(data[1] & 2))
        require(one.n_text == len); /* nothing has a meaning: all of it is content */
    free(one.text);
    free(one.args);
    free(other.text);
    free(other.args);
    json_decref(tools);
    return 0;
}
